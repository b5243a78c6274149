"""What a pattern caches: for itself, and plans together with other patterns."""

import contextlib
import gc
import inspect
import warnings
import weakref
from types import SimpleNamespace
from typing import ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from reference import coordinates, grid, normal, pattern_of, random
from stress.resources import Lines, let_go
from torch import Tensor

import learnsolve as ls
from learnsolve.matrix import cache
from learnsolve.matrix.budget import Budget, budget
from learnsolve.matrix.cache import Entry


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


def test_cached_arrays_count_until_they_are_dropped():
    P = pattern_of(random(30, 20, 0.3))
    assert P.cache_bytes() == 0
    before = P.row_indices
    assert P.cache_bytes() == P.nnz * 8
    _ = P.T  # its arrays and their permutation
    assert P.cache_bytes() >= (P.nnz + 21 + 2 * P.nnz) * 8
    P.drop_caches()
    assert P.cache_bytes() == 0
    assert torch.equal(P.row_indices, before)
    A = ls.CSR(normal((P.nnz,)).requires_grad_(), P)
    (A @ torch.ones(20, dtype=torch.float64)).sum().backward()
    _ = A.T.diagonal(), P.T.row_blocks, P.to(dtype=torch.int32).T.row_indices, P.T.to(dtype=torch.int32).T
    assert P.cache_bytes() > 0
    assert P.T.cache_bytes() > 0


def test_compiled_code_reads_what_was_converted_before():
    torch._dynamo.reset()
    P = pattern_of(random(6, 5, 0.5))
    expected = P.to(dtype=torch.int32).col_indices + 1
    f = torch.compile(lambda: P.to(dtype=torch.int32).col_indices + 1, fullgraph=True, backend="aot_eager")
    assert torch.equal(f(), expected)
    P.drop_caches()
    P.to(dtype=torch.int32)
    assert torch.equal(f(), expected)


def test_a_plan_counts_as_cache(pair):
    P, Q = pair
    plan = P._planned(make, Q, 0)
    own = (plan.positions, plan.result.crow_indices, plan.result.col_indices)
    assert P.cache_bytes() == sum(t.numel() * t.element_size() for t in own)
    P.drop_caches()
    assert P.cache_bytes() == 0


def test_what_fails_is_computed_again(pair):
    P, Q = pair

    def fails(*_):
        raise MemoryError

    for call in (lambda: P._cached("key", fails), lambda: P._planned(fails, Q)):
        with pytest.raises(MemoryError):
            call()
        assert P.cache_bytes() == 0
    assert P._cached("key", lambda: 1) == 1
    with pytest.raises(MemoryError):
        P._planned(fails, Q)


@pytest.mark.parametrize("first", ["own", "other"])
def test_a_plan_dies_with_the_first_pattern(first):
    patterns = {"own": pattern_of(random(6, 5, 0.5)), "other": pattern_of(random(6, 5, 0.8, seed=1))}
    result = weakref.ref(patterns["own"]._planned(make, patterns["other"], 0).result)
    coordinates.cache_clear()  # the tests' own cache holds patterns
    gone = weakref.ref(patterns.pop(first))
    gc.collect()
    assert gone() is None, "a plan holds a pattern"
    assert result() is None
    assert all(P.cache_bytes() == 0 for P in patterns.values())


@pytest.mark.parametrize(
    ("which", "planned"), [("own", False), ("own", True), ("other", False), ("other", True), ("result", True)]
)
def test_a_changed_pattern_is_refused(pair, planned, which):
    P, Q = pair
    result = P._planned(make, Q, 0).result if planned else None
    {"own": P, "other": Q, "result": result}[which].col_indices[0] = 3
    with pytest.raises(RuntimeError, match="changed in place"):
        P._planned(make, Q, 0)


def test_a_product_with_a_changed_pattern_is_refused():
    """Its kernels would read out of bounds."""
    A = ls.problems.poisson((50, 50))
    P = A.pattern
    B = ls.CSR(A.values, ls.SparsityPattern(P.crow_indices.clone(), P.col_indices.clone(), P.shape))
    C = A.with_values(A.values.clone().requires_grad_()) @ B
    C.values.sum().backward(retain_graph=True)
    B.pattern.crow_indices[7] = 2**30
    with pytest.raises(RuntimeError, match="changed in place"):
        C.values.sum().backward()
    with pytest.raises(RuntimeError, match="changed in place"):
        A + B


def test_a_pattern_that_lives_long_does_not_collect_those_that_died():
    Q = pattern_of(random(6, 5, 0.8, seed=1))
    first = len(weakref.finalize._registry)
    for seed in range(20):
        pattern_of(random(6, 5, 0.5, seed))._planned(make, Q, 0)
        coordinates.cache_clear()
    gc.collect()
    assert len(weakref.finalize._registry) <= first + 1
    assert len(Q._dependents) == 0


def test_each_pair_of_patterns_has_a_plan_of_its_own(pair):
    P, Q = pair
    R = pattern_of(random(6, 5, 0.3, seed=2))
    plans = [
        [X._planned(make, Y, k) for X, Y, k in ((P, Q, 3), (P, Q, 4), (Q, P, 3), (P, R, 3))] for _ in "ab"
    ]
    assert all(a is b for a, b in zip(*plans, strict=True))
    assert len({id(plan) for plan in plans[0]}) == len(made) == 4
    A, B, C = (ls.CSR(torch.ones(X.nnz, dtype=torch.float64), X) for X in (P, Q, R))
    for M in (B, C):
        torch.testing.assert_close((A + M).to_dense(), A.to_dense() + M.to_dense())


def test_functions_of_one_name_in_two_modules_have_plans_of_their_own():
    def plan(P):
        return (1,)

    def other(P):
        return (2,)

    other.__name__, other.__module__ = plan.__name__, "elsewhere"
    P = ls.problems.poisson((4,)).pattern
    assert (P._planned(plan), P._planned(other)) == ((1,), (2,))


@pytest.fixture
def limit(request):
    before = ls.ops.set_plan_cache_limit(request.param)
    yield request.param
    ls.ops.set_plan_cache_limit(before)


no_memory = pytest.mark.parametrize("limit", [0], indirect=True)
little_memory = pytest.mark.parametrize("limit", [2**16], indirect=True)


COMBINATIONS = {
    "block_diag": lambda A: ls.ops.block_diag(A),
    "hstack": lambda A: ls.ops.hstack(A),
    "sum": lambda A: A[0] + A[1],
    "product": lambda A: A[0] @ A[1],
    "kron": lambda A: ls.ops.kron(A[0], A[1]),
    "slices": lambda A: A[0][A[1].nnz % 12 :, A[2].nnz % 12 :],
}


@pytest.mark.filterwarnings("ignore:set_plan_cache_limit")
@little_memory
@pytest.mark.parametrize("name", COMBINATIONS)
def test_random_batches_take_bounded_memory(name, limit):
    """What a result keeps, here for products with its transpose, counts too."""
    pool = [ls.CSR.from_scipy(random(12, 12, 0.3 + seed / 100, seed)) for seed in range(24)]
    for A in pool:
        A.T.T.diagonal(), A.pattern.row_indices
    own = sum(A.pattern.cache_bytes() for A in pool)
    choose = torch.Generator().manual_seed(0)
    most = 0
    for _ in range(200):
        result = COMBINATIONS[name]([pool[i] for i in torch.randperm(24, generator=choose)[:4]])
        if isinstance(result, ls.CSR) and name != "kron":
            ls.ops.spmm(result, result.values.new_ones(result.shape[0]), transpose=True)
        ls.ops.set_plan_cache_limit(limit)  # counts what was kept since the last plan, as the next one does
        most = max(most, sum(A.pattern.cache_bytes() for A in pool) - own)
    sixteen = 16 * {"kron": 100_000, "hstack": 8000, "product": 8000}.get(name, 0)  # those used last are kept
    assert 0 < most <= max(limit, sixteen)
    entries = sum(len(A.pattern._entries) for A in pool)
    assert sum(len(A.pattern._dependents or ()) for A in pool) <= 3 * entries, "dropped plans are still known"


@little_memory
def test_the_least_recently_used_plan_is_dropped(pair, limit):
    P, Q = pair
    first = P._planned(make, Q, 0)
    for shift in range(1, 1000):
        P._planned(make, Q, shift)
        assert P._planned(make, Q, 0) is first
    assert P._planned(make, Q, 1) is not None
    assert made.count((P._serial, Q._serial, 1)) == 2, "it was not dropped"


@no_memory
def test_the_last_sixteen_plans_are_kept(pair, limit):
    for shift in [*range(16)] * 3:
        pair[0]._planned(make, pair[1], shift)
    assert len(made) == 16
    pair[0]._planned(make, pair[1], 16)
    assert len(pair[0]._entries) == 16


@no_memory
def test_a_plan_made_again_and_again_warns_once(pair, limit):
    P, Q = pair
    turns = range(17)  # one more than are always kept: the next is always the one just dropped
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for step in range(4):
            for shift in turns:
                P._planned(make, Q, shift)
            assert len(seen) == (step >= 2)
    message = "set_plan_cache_limit: the plans in use take more than the limit of 0 bytes"
    assert message in str(seen[0].message)
    assert len(made) == 4 * 17
    assert ls.ops.set_plan_cache_limit(2**20) == 0
    for shift in [*turns] * 4:
        P._planned(make, Q, shift)
    assert len(made) == 4 * 17 + 1


def test_a_plan_counts_once(pair):
    """The result of a plan has a plan of its own."""
    P, Q = pair
    coordinates.cache_clear(), gc.collect()
    before = budget.total
    result = P._planned(make, Q, 0).result
    result._planned(make, Q, 1)
    result._cached("more", lambda: torch.zeros(3))  # the first plan is counted again
    assert budget.total - before == P.cache_bytes()


def test_a_plan_that_grows_is_counted_with_the_next_one(pair, monkeypatch):
    P, Q = pair
    coordinates.cache_clear(), gc.collect()
    before, counted = budget.total, []
    result = P._planned(make, Q, 0).result
    bytes = Entry.bytes
    monkeypatch.setattr(Entry, "bytes", lambda entry: counted.append(entry) or bytes(entry))
    for i in range(9):
        result._cached(f"more {i}", lambda: torch.zeros(3))
    assert not counted
    Q._planned(make, P, 1)
    assert len(counted) == 2
    assert budget.counted - before == P.cache_bytes() + Q.cache_bytes()


def test_a_plan_that_another_thread_drops_meanwhile_does_no_harm(pair, monkeypatch):
    P, Q = pair
    first = P._planned(make, Q, 0)
    check = Entry.check
    monkeypatch.setattr(Entry, "check", lambda entry: entry.drop() if entry.key else check(entry))
    torch.testing.assert_close(P._planned(make, Q, 0).positions, first.positions)
    assert P.cache_bytes() == 0


@little_memory
def test_a_plan_that_is_made_while_tracing_is_kept(limit):
    torch._dynamo.reset()
    f = torch.compile(use, fullgraph=True, backend="aot_eager")
    for seed in range(3):
        P, Q = pattern_of(random(6, 5, 0.5, seed)), pattern_of(random(6, 5, 0.8, seed + 9))
        A, B = (ls.CSR(torch.randn(X.nnz), X) for X in (P, Q))
        torch.testing.assert_close(f(A, B), use(A, B))
        plan = P._planned(make, Q, 3)
        for shift in range(4, 1000):
            P._planned(make, Q, shift)
        assert P._planned(make, Q, 3) is plan
        torch.testing.assert_close(f(A, B), use(A, B))


@pytest.mark.parametrize("wrong", [-1, 1.5, True, None])
def test_a_plan_cache_limit_that_is_none(wrong):
    with pytest.raises((TypeError, ValueError), match=r"^set_plan_cache_limit: bytes must"):
        ls.ops.set_plan_cache_limit(wrong)


def test_an_interrupt_at_any_line_of_planning():
    """Ctrl-C comes between two lines. The next call gets the plan, which is counted and freed as usual."""
    S, T = grid(5, 3), random(9, 9, 0.3)

    def once(at=0):
        A, B = ls.CSR.from_scipy(S), ls.CSR.from_scipy(T)
        lines = Lines(at, (cache.__file__, inspect.getfile(Budget)))
        with contextlib.suppress(KeyboardInterrupt), lines:
            A + B
        let_go()
        assert np.array_equal((A + B).to_dense(), (S + T).toarray())
        entries = A.pattern._entries
        (key,) = (key for key in entries if "union" in key)
        assert budget.counts(entries[key])
        assert budget.total == sum(size for _, size in budget.entries.values())
        del B
        assert key not in entries
        return lines.seen

    lines = once()
    assert lines > 50
    for at in range(1, lines + 1):
        once(at)


class There(Tensor):
    """As on a CUDA device, whose allocator is told of streams."""

    is_cuda = True  # type: ignore[assignment]
    told: ClassVar[list] = []

    def record_stream(self, stream):
        self.told.append((self.data_ptr(), stream.stream_id))


def plan_there(P, Q):
    return Plan(torch.arange(P.nnz).as_subclass(There), there(random(*P.shape, 0.5)))


def there(S):
    P = pattern_of(S)
    return ls.SparsityPattern._trusted(*(t.as_subclass(There) for t in P._arrays), P.shape)


def test_arrays_used_on_another_stream_are_recorded(monkeypatch):
    """Once each, before they are freed: index arrays, what is computed from them, and plans."""
    stream, told = SimpleNamespace(stream_id=0), There.told
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: stream)
    monkeypatch.setattr(cache, "_raw_stream", lambda index: stream.stream_id)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    P, Q = there(random(6, 5, 0.5)), there(random(6, 5, 0.8, seed=1))

    def use():
        plan = P._planned(plan_there, Q)
        twice = P._cached("twice", lambda: 2 * P.crow_indices)
        arrays = (plan.positions, twice, *plan.result._structure(False), P.crow_indices, Q.col_indices)
        return [t.data_ptr() for t in arrays if t.is_cuda and t.numel()]

    for number in (0, 5, 7):
        stream.stream_id = number
        assert {(at, number) for at in use()} <= set(told)
        told.clear()
        use()
        assert told == []
    stream.stream_id = 8
    positions = P._planned(plan_there, Q).positions
    at = positions.data_ptr()
    weakref.finalize(positions, told.append, "freed")
    del positions
    P.drop_caches()
    assert told.index((at, 8)) < told.index("freed")
    assert type(pattern_of(random(6, 5, 0.5))._entries) is dict, "the CPU's costs nothing more"
