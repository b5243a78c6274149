"""Plans that a pattern keeps for itself together with other patterns."""

import gc
import weakref
from typing import NamedTuple

import pytest
import torch
from reference import coordinates, pattern_of, random
from torch import Tensor

import learnsolve as ls

reference_cache_clear = coordinates.cache_clear  # the tests' own cache holds patterns


class Plan(NamedTuple):
    positions: Tensor
    result: ls.SparsityPattern


made = []


def make(P, Q, shift):
    made.append((P._serial, Q._serial, shift))
    return Plan(torch.arange(P.nnz) + shift, pattern_of(random(*P.shape, 0.5)))


def use(A, B):
    plan = A.pattern._planned(make, B.pattern, 3)
    return ls.ops.spmm(ls.CSR(A.values[plan.positions - 3], A.pattern), B.values[: A.shape[1]])


@pytest.fixture
def pair():
    made.clear()
    return pattern_of(random(6, 5, 0.5)), pattern_of(random(6, 5, 0.8, seed=1))


def test_a_plan_is_made_once(pair):
    P, Q = pair
    first = P._planned(make, Q, 3)
    assert P._planned(make, Q, 3) is first
    assert P._planned(make, Q, 4) is not first
    assert Q._planned(make, P, 3) is not first
    assert len(made) == 3


def test_a_plan_counts_as_cache(pair):
    P, Q = pair
    plan = P._planned(make, Q, 0)
    own = (plan.positions, plan.result.crow_indices, plan.result.col_indices)
    assert P.cache_bytes() == sum(t.numel() * t.element_size() for t in own)
    P.drop_caches()
    assert P.cache_bytes() == 0


def test_a_plan_dies_with_the_other_pattern():
    P, Q = pattern_of(random(6, 5, 0.5)), pattern_of(random(6, 5, 0.8, seed=1))
    result, other = weakref.ref(P._planned(make, Q, 0).result), weakref.ref(Q)
    reference_cache_clear()
    del Q
    gc.collect()
    assert other() is None, "a plan holds the other pattern"
    assert result() is None
    assert P.cache_bytes() == 0


def test_a_plan_dies_with_its_pattern():
    P, Q = pattern_of(random(6, 5, 0.5)), pattern_of(random(6, 5, 0.8, seed=1))
    result, owner = weakref.ref(P._planned(make, Q, 0).result), weakref.ref(P)
    reference_cache_clear()
    del P
    gc.collect()
    assert owner() is None
    assert result() is None


def test_a_changed_pattern_is_refused(pair):
    P, Q = pair
    Q.col_indices[0] = 3
    with pytest.raises(RuntimeError, match="changed in place"):
        P._planned(make, Q, 0)


def test_plans_are_made_while_tracing():
    torch._dynamo.reset()
    f = torch.compile(use, fullgraph=True, backend="aot_eager")
    for seed in range(3):
        A, B = (
            ls.CSR(torch.randn(P.nnz), P)
            for P in (pattern_of(random(6, 5, 0.5, seed)), pattern_of(random(6, 5, 0.8, seed + 9)))
        )
        torch.testing.assert_close(f(A, B), use(A, B))
