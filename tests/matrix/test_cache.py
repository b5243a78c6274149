"""What a pattern caches: for itself, and plans together with other patterns."""

import contextlib
import functools
import gc
import inspect
import io
import os
import pickle
import signal
import time
import warnings
import weakref
from types import SimpleNamespace
from typing import ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from fork_program import Program
from reference import coordinates, grid, normal, pattern_of, random
from stress.resources import Lines, let_go
from torch import Tensor
from torch._subclasses import FakeTensorMode

import learnsolve as ls
from learnsolve import _analysis
from learnsolve.matrix import cache
from learnsolve.matrix.cache import Budget, Entry, budget


class Plan(NamedTuple):
    positions: Tensor
    result: ls.SparsityPattern


made = []


def make(P, Q, shift):
    made.append((P._serial, Q._serial, shift))
    return Plan(torch.arange(P.nnz) + shift, pattern_of(random(*P.shape, 0.5)))


def use(A, B):
    plan = A.pattern._plan_once(make, B.pattern, 3)
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
    plan = P._plan_once(make, Q, 0)
    own = (plan.positions, plan.result.crow_indices, plan.result.col_indices)
    assert P.cache_bytes() == sum(t.numel() * t.element_size() for t in own)
    P.drop_caches()
    assert P.cache_bytes() == 0


def test_what_fails_is_computed_again(pair):
    P, Q = pair

    def fails(*_):
        raise MemoryError

    for call in (lambda: P._compute_once("key", fails), lambda: P._plan_once(fails, Q)):
        with pytest.raises(MemoryError):
            call()
        assert P.cache_bytes() == 0
    assert P._compute_once("key", lambda: 1) == 1
    with pytest.raises(MemoryError):
        P._plan_once(fails, Q)


@pytest.mark.parametrize("first", ["own", "other"])
def test_a_plan_dies_with_the_first_pattern(first):
    patterns = {"own": pattern_of(random(6, 5, 0.5)), "other": pattern_of(random(6, 5, 0.8, seed=1))}
    result = weakref.ref(patterns["own"]._plan_once(make, patterns["other"], 0).result)
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
    result = P._plan_once(make, Q, 0).result if planned else None
    {"own": P, "other": Q, "result": result}[which].col_indices[0] = 3
    with pytest.raises(RuntimeError, match="changed in place"):
        P._plan_once(make, Q, 0)


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
    first = weakref.getweakrefcount(Q)
    for seed in range(20):
        pattern_of(random(6, 5, 0.5, seed))._plan_once(make, Q, 0)
        coordinates.cache_clear()
    gc.collect()
    assert weakref.getweakrefcount(Q) == first


def test_each_pair_of_patterns_has_a_plan_of_its_own(pair):
    P, Q = pair
    R = pattern_of(random(6, 5, 0.3, seed=2))
    plans = [
        [X._plan_once(make, Y, k) for X, Y, k in ((P, Q, 3), (P, Q, 4), (Q, P, 3), (P, R, 3))] for _ in "ab"
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
    assert (P._plan_once(plan), P._plan_once(other)) == ((1,), (2,))


@pytest.fixture
def limit(request):
    with ls.set_options(plan_cache_bytes=request.param):
        yield request.param


no_memory = pytest.mark.parametrize("limit", [0], indirect=True)
little_memory = pytest.mark.parametrize("limit", [2**16], indirect=True)
of_few_plans = pytest.mark.parametrize("limit", [2**13], indirect=True)


COMBINATIONS = {
    "block_diag": lambda A: ls.ops.block_diag(A),
    "hstack": lambda A: ls.ops.hstack(A),
    "sum": lambda A: A[0] + A[1],
    "product": lambda A: A[0] @ A[1],
    "kron": lambda A: ls.ops.kron(A[0], A[1]),
    "slices": lambda A: A[0][A[1].nnz % 12 :, A[2].nnz % 12 :],
}


@pytest.mark.rows(2)
@pytest.mark.filterwarnings("ignore:set_options")
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
        ls.set_options(
            plan_cache_bytes=limit
        )  # counts what was kept since the last plan, as the next one does
        most = max(most, sum(A.pattern.cache_bytes() for A in pool) - own)
    sixteen = 16 * {"kron": 100_000, "hstack": 8000, "product": 8000}.get(name, 0)  # those used last are kept
    assert 0 < most <= max(limit, sixteen)
    entries = sum(len(A.pattern._entries) for A in pool)
    known = sum(weakref.getweakrefcount(A.pattern) for A in pool)
    assert known <= 3 * entries + 3 * len(pool), "dropped plans are still known"


@of_few_plans
def test_the_least_recently_used_plan_is_dropped(pair, limit):
    P, Q = pair
    first = P._plan_once(make, Q, 0)
    for shift in range(1, 200):
        P._plan_once(make, Q, shift)
        assert P._plan_once(make, Q, 0) is first
    assert P._plan_once(make, Q, 1) is not None
    assert made.count((P._serial, Q._serial, 1)) == 2, "it was not dropped"


@no_memory
def test_the_last_sixteen_plans_are_kept(pair, limit):
    for shift in [*range(16)] * 3:
        pair[0]._plan_once(make, pair[1], shift)
    assert len(made) == 16
    pair[0]._plan_once(make, pair[1], 16)
    assert len(pair[0]._entries) == 16


@no_memory
def test_a_plan_made_again_and_again_warns_once(pair, limit):
    P, Q = pair
    turns = range(17)  # one more than are always kept: the next is always the one just dropped
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for step in range(4):
            for shift in turns:
                P._plan_once(make, Q, shift)
            assert len(seen) == (step >= 2)
    message = "set_options: the plans in use take more than the limit of 0 bytes"
    assert message in str(seen[0].message)
    assert len(made) == 4 * 17
    ls.set_options(plan_cache_bytes=2**20)
    for shift in [*turns] * 4:
        P._plan_once(make, Q, shift)
    assert len(made) == 4 * 17 + 1


def test_a_plan_counts_once(pair):
    """The result of a plan has a plan of its own."""
    P, Q = pair
    coordinates.cache_clear(), gc.collect()
    before = budget.total
    result = P._plan_once(make, Q, 0).result
    result._plan_once(make, Q, 1)
    result._compute_once("more", lambda: torch.zeros(3))  # the first plan is counted again
    assert budget.total - before == P.cache_bytes()


def test_a_plan_that_grows_is_counted_with_the_next_one(pair, monkeypatch):
    P, Q = pair
    coordinates.cache_clear(), gc.collect()
    before, counted = budget.total, []
    result = P._plan_once(make, Q, 0).result
    bytes = Entry.bytes
    monkeypatch.setattr(Entry, "bytes", lambda entry: counted.append(entry) or bytes(entry))
    for i in range(9):
        result._compute_once(f"more {i}", lambda: torch.zeros(3))
    assert not counted
    Q._plan_once(make, P, 1)
    assert len(counted) == 2
    assert budget.counted - before == P.cache_bytes() + Q.cache_bytes()


def test_a_plan_that_another_thread_drops_meanwhile_does_no_harm(pair, monkeypatch):
    P, Q = pair
    first = P._plan_once(make, Q, 0)
    check = Entry.check
    monkeypatch.setattr(Entry, "check", lambda entry: entry.drop() if entry.others else check(entry))
    torch.testing.assert_close(P._plan_once(make, Q, 0).positions, first.positions)
    assert P.cache_bytes() == 0


@of_few_plans
def test_a_plan_that_is_made_while_tracing_is_kept(limit):
    torch._dynamo.reset()
    f = torch.compile(use, fullgraph=True, backend="aot_eager")
    for seed in range(3):
        P, Q = pattern_of(random(6, 5, 0.5, seed)), pattern_of(random(6, 5, 0.8, seed + 9))
        A, B = (ls.CSR(torch.randn(X.nnz), X) for X in (P, Q))
        torch.testing.assert_close(f(A, B), use(A, B))
        plan = P._plan_once(make, Q, 3)
        for shift in range(4, 200):
            P._plan_once(make, Q, shift)
        assert P._plan_once(make, Q, 3) is plan
        torch.testing.assert_close(f(A, B), use(A, B))


@pytest.mark.parametrize("wrong", [-1, 1.5, True, None])
def test_a_plan_cache_limit_that_is_none(wrong):
    with pytest.raises((TypeError, ValueError), match=r"^set_options: plan_cache_bytes must"):
        ls.set_options(plan_cache_bytes=wrong)


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
        assert budget.total == sum(budget.entries.values())
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
    return ls.SparsityPattern._construct(*(t.as_subclass(There) for t in P._arrays), P.shape)


def test_arrays_used_on_another_stream_are_recorded(monkeypatch):
    """Once each, before they are freed: index arrays, what is computed from them, and plans."""
    stream, told = SimpleNamespace(stream_id=0), There.told
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: stream)
    monkeypatch.setattr(cache, "_raw_stream", lambda index: stream.stream_id)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    P, Q = there(random(6, 5, 0.5)), there(random(6, 5, 0.8, seed=1))

    def use():
        plan = P._plan_once(plan_there, Q)
        twice = P._compute_once("twice", lambda: 2 * P.crow_indices)
        arrays = (plan.positions, twice, *plan.result._structure(False), P.crow_indices, Q.col_indices)
        return [t.data_ptr() for t in arrays if t.is_cuda and t.numel()]

    for number in (0, 5, 7):
        stream.stream_id = number
        assert {(at, number) for at in use()} <= set(told)
        told.clear()
        use()
        assert told == []
    stream.stream_id = 8
    positions = P._plan_once(plan_there, Q).positions
    at = positions.data_ptr()
    weakref.finalize(positions, told.append, "freed")
    del positions
    P.drop_caches()
    assert told.index((at, 8)) < told.index("freed")
    assert pattern_of(random(6, 5, 0.5))._own.streams is None, "the CPU's costs nothing more"


LOWER = {
    "tril": lambda A: ls.ops.tril(A).pattern,
    "A.tril": lambda A: A.tril().pattern,
    "ic": lambda A: ls.ops.ic(A).L.pattern,
    "mic": lambda A: ls.ops.mic(A).L.pattern,
    "ilu": lambda A: ls.ops.ilu(A).L.pattern,
    "lower_pattern": ls.preconditioners.lower_pattern,
    "lower_pattern of the pattern": lambda A: ls.preconditioners.lower_pattern(A.pattern),
}


@pytest.mark.parametrize("first", LOWER)
def test_triangles_of_a_matrix_are_one_object(first):
    """Also beyond the limit of plans."""
    A = ls.problems.poisson((4, 3))
    with ls.set_options(plan_cache_bytes=0):
        expected = LOWER[first](A)
        for k in range(1, 20):
            A.tril(k - 10)
        for name, make in LOWER.items():
            assert make(A) is expected, name
            assert make(A.tril()) is expected, "that of a triangular matrix is its own"
    assert ls.ops.ilu(A).U.pattern is A.triu().pattern


def unknown(n: int) -> ls.CSR:
    """A matrix whose pattern no other test has."""
    entries = torch.rand(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    return ls.CSR.from_dense(torch.where(entries < 0.3, entries, 0) + torch.eye(n))


def copy_of(P: ls.SparsityPattern) -> ls.SparsityPattern:
    return ls.SparsityPattern(P.crow_indices, P.col_indices, P.shape)


def test_pickles_of_one_pattern_share_it():
    A = unknown(11)
    B = pickle.loads(pickle.dumps(A))
    assert B.pattern is A.pattern
    assert B.values is not A.values
    first, second = pickle.dumps(A), pickle.dumps(ls.CSR(A.values, copy_of(A.pattern)))
    assert copy_of(A.pattern) is not A.pattern, "what a program makes itself stays separate"
    other = pickle.dumps(unknown(11).T)
    del A, B
    gc.collect()
    B, C, D = (pickle.loads(data) for data in (first, second, other))
    assert B.pattern is C.pattern
    assert D.pattern is not B.pattern
    assert D.shape == B.shape
    gone = weakref.ref(B.pattern)
    del B, C
    assert gone() is None, "a pickle keeps no pattern alive"


@pytest.mark.parametrize("change", ["in place", "through NumPy", "of the transpose"])
def test_a_changed_pattern_is_not_found(change):
    A = unknown(7)
    data = pickle.dumps(A)
    entered = pickle.loads(data)
    assert entered.pattern is A.pattern
    indices = A.T.col_indices if change == "of the transpose" else A.col_indices
    (indices.numpy() if change == "through NumPy" else indices)[:2] = 0
    fresh, again = pickle.loads(data), pickle.loads(data)
    assert fresh.pattern is not A.pattern
    assert again.pattern is fresh.pattern
    if change != "through NumPy":
        with pytest.raises(RuntimeError, match="changed in place"):
            A.T @ torch.ones(7, dtype=A.dtype)
    assert torch.isfinite(fresh.T @ torch.ones(7, dtype=A.dtype)).all()


def test_a_damaged_pickle_is_refused():
    A = ls.problems.poisson((4, 3))
    restore, (crow, col, shape) = A.pattern.__reduce__()
    with pytest.raises(ValueError, match="columns must be sorted within a row"):
        restore(crow, col.flip(0).contiguous(), shape)


def test_torch_save_and_load():
    A = unknown(9)
    matrices = [A * 1.0, A * 2.0]
    file = io.BytesIO()
    torch.save(matrices, file)
    file.seek(0)
    loaded = torch.load(file)  # weights_only, which reads nothing that could run code
    assert {id(A.pattern) for A in (*matrices, *loaded)} == {id(matrices[0].pattern)}
    assert torch.equal(loaded[1].values, matrices[1].values)


@pytest.mark.slow
def test_a_child_process_sends_its_matrices_home(tmp_path):
    """As the worker of a DataLoader, here a process that has only what it was sent."""
    A = unknown(10)
    program = (
        "import pickle; A = pickle.load(open('sent', 'rb')); B = pickle.loads(pickle.dumps(A)); "
        "assert A.pattern is B.pattern; pickle.dump([A, B * 2.0, A.tril()], open('back', 'wb'))"
    )
    (tmp_path / "program.py").write_text(program)
    (tmp_path / "sent").write_bytes(pickle.dumps(A))
    Program(tmp_path, "program.py", place=tmp_path).end(100)
    first, second, lower = pickle.loads((tmp_path / "back").read_bytes())
    assert first.pattern is A.pattern
    assert second.pattern is A.pattern
    assert torch.equal(second.values, 2 * A.values)
    assert torch.equal(lower.to_dense(), A.to_dense().tril())


def test_patterns_without_contents_do_not_disturb_an_arrival():
    P = ls.problems.poisson((3, 17)).pattern
    with FakeTensorMode():  # as while torch.compile traces
        ptr, idx = (torch.empty(n, dtype=torch.int32) for n in (5, 4))
        fake = ls.SparsityPattern._construct(ptr, idx, (4, 4))
    meta = P.to("meta")
    assert pickle.loads(pickle.dumps(P)) is P
    del fake, meta


with_a_timer = pytest.mark.skipif(os.name != "posix", reason="needs a timer that sends signals")

n, cols = 1_000_000, 1_000_006


@functools.cache
def arrays():
    """A line of points, each coupled with the six next: seven million entries."""
    d = SimpleNamespace()
    d.ptr = 7 * np.arange(n + 1)
    d.idx = (np.arange(n)[:, None] + np.arange(7)).reshape(-1)
    d.square = np.minimum(d.idx, n - 1)  # repeats columns in the last rows, which no analysis minds
    d.lower = (np.arange(n)[:, None] - np.arange(6, -1, -1)).clip(0).reshape(-1)
    d.products = _analysis.count_products(d.square, d.ptr)
    d.perm = _analysis.transpose(d.ptr, d.idx, cols)[2]
    d.entry = np.arange(7 * n)
    d.shuffled = np.random.default_rng(0).permutation(7 * n)
    d.dominant = np.where(np.arange(7 * n) % 7, 0.1, 1.0)
    d.values, d.diagonal = np.where(np.arange(7 * n) % 7, -0.1, 1.0), np.ones(n)
    d.coarse = (np.arange(n) % 3 == 0).astype(np.uint8)
    d.of = np.arange(n) // 3
    band = np.arange(n)[:, None] + np.arange(-3, 4)
    inside = (band >= 0) & (band < n)
    d.middle = np.append(0, np.cumsum(inside.sum(1))), band[inside]
    d.level = np.arange(n), np.full(n, -1), np.repeat(d.lower, 2)
    return d


ANALYSES = {  # name to arguments
    "validate": lambda d: (d.ptr, d.idx, cols),
    "row_indices": lambda d: (d.ptr, len(d.idx)),
    "symmetry_of": lambda d: (d.middle[0], d.middle[1], np.ones(len(d.middle[1]))),
    "transpose": lambda d: (d.ptr, d.idx, cols),
    "diagonal_positions": lambda d: (d.ptr, d.idx, cols),
    "row_blocks": lambda d: (d.ptr, d.idx, None, 8192),
    "merge_patterns": lambda d: (d.ptr, d.idx, d.ptr, d.idx),
    "common_positions": lambda d: (d.ptr, d.idx, d.ptr, d.idx),
    "greedy_coloring": lambda d: (d.ptr, d.square, d.ptr, d.square, True),
    "column_coloring": lambda d: (d.ptr, d.square, d.ptr, d.square, 0),
    "symmetric_coloring": lambda d: (d.ptr, d.square, d.entry, 1, True),
    "substitution": lambda d: (d.ptr, d.square, d.entry, d.square),
    "as_column_coloring": lambda d: (d.ptr, d.square, np.arange(n), n),
    "complete_fill": lambda d: (*d.middle, np.arange(n), 2**40),
    "match_rows": lambda d: (d.ptr, d.lower, n),
    "count_products": lambda d: (d.square, d.ptr),
    "product_pattern": lambda d: (d.ptr, d.square, d.ptr, d.idx, cols, 2**40, 1),
    "positions_of_products":
        lambda d: (*(d.ptr, d.square, d.ptr, d.idx, cols), *(d.ptr, d.idx, d.products, 1)),
    "row_product_blocks": lambda d: (d.ptr, d.square, d.ptr, d.ptr, None, 8192),
    "column_product_blocks": lambda d: (d.ptr, d.perm, d.ptr, None, None, 8192),
    "product_starts": lambda d: (d.square, d.ptr, d.entry),
    "triangle": lambda d: (d.ptr, d.lower, None, False, 0),
    "triangle_blocks": lambda d: (d.ptr, d.lower, None),
    "level_schedule": lambda d: (d.ptr, d.lower, False),
    "elimination_products": lambda d: (d.ptr, d.square, d.ptr[:-1], 0, -1),
    "elimination_plan": lambda d: (d.ptr, d.square, d.ptr[:-1], 0, True, 0),
    "level_fill": lambda d: (d.ptr, d.square, 1),
    "threshold_pattern": lambda d: (d.ptr, d.square, d.dominant, False, 2, 1e-3),
    "aggregate": lambda d: (d.ptr, d.square, d.values, 1, 0.25),
    "orthonormalize": lambda d: (d.of, 1, n // 3 + 1, np.ones((n, 4))),
    "smoothed_prolongation":
        lambda d: (*(d.ptr, d.square, d.values, d.of, 1, n // 3 + 1), *(np.ones((n, 1)), 0.5)),
    "arnoldi": lambda d: (d.ptr, d.square, d.values, d.diagonal, 3, True),
    "classical_splitting": lambda d: (d.ptr, d.square, d.values, 0.25, False, True),
    "interpolation":
        lambda d: (*(d.ptr, d.square, d.values, d.diagonal), *(np.ones(7 * n, np.uint8), d.coarse, 4)),
    "elimination_levels": lambda d: (d.level[0], d.level[1], d.ptr, d.level[2], n),
}  # fmt: skip


def test_no_interruptible_analysis_is_forgotten():
    assert set(ANALYSES) == {name for name in dir(_analysis) if not name.startswith("_")}


@pytest.mark.rows(3)
@with_a_timer
@pytest.mark.parametrize("name", ANALYSES)
def test_signals_interrupt_an_analysis(name):
    """One that waits for the end is handled once."""
    handled, arguments = [], ANALYSES[name](arrays())
    before = signal.signal(signal.SIGALRM, lambda *_: handled.append(time.perf_counter()))
    signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
    try:
        start = len(handled)
        getattr(_analysis, name)(*arguments)
        count = len(handled) - start
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert count >= 3


@with_a_timer
def test_an_interrupt_is_heard():
    """By all of a public call: it ends long before it would have."""
    d = arrays()
    rows, columns = (torch.from_numpy(a[:3_000_000]) for a in (d.square[d.shuffled], d.idx))
    values = torch.ones(len(rows))
    begin = time.perf_counter()
    ls.CSR.from_coo(rows, columns, values, (n, cols))
    whole = time.perf_counter() - begin

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    begin = time.perf_counter()
    signal.setitimer(signal.ITIMER_REAL, whole / 10)
    try:
        with pytest.raises(KeyboardInterrupt):
            ls.CSR.from_coo(rows, columns, values, (n, cols))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.perf_counter() - begin < whole / 2
    A = ls.CSR.from_scipy(grid(5, 5))
    assert torch.equal(A.T.T.to_dense(), A.to_dense())  # and the library is as it was
