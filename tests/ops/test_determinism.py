"""The same bits on every run and for any number of threads."""

import subprocess
import sys
import threading
import tracemalloc
from collections import Counter

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from ops.cases import BRANCHES, CASES
from reference import (
    assert_same_bits,
    assert_within,
    banded,
    grid,
    layouts,
    normal,
    pattern_of,
    peak,
    power_law,
    random,
)
from scipy.sparse import random_array
from stress._calls import CALLS, KINDS, Sample, quiet
from stress.resources import BLAS, compare

import learnsolve as ls
from learnsolve import _library
from learnsolve._library import buffer_bytes
from learnsolve.ops.segments import perceptron
from learnsolve.preconditioners import RowFactor, StencilFactor

# All with more than 50 000 multiply-adds in every operation below: enough for several threads.
LARGE = {
    "random": random(3000, 2500, 0.01),
    "banded": banded(20000, 5),
    "5 points": grid(5, 150),
    "7 points": grid(7, 24),
    "power law": power_law(9000),
}


def everything(P, dtype, k):
    """Products, sampled products and their gradients."""
    tail = () if k is None else (k,)
    v = normal((P.nnz,), dtype, seed=1).requires_grad_()
    x = normal((P.shape[1], *tail), dtype, seed=2).requires_grad_()
    u = normal((P.shape[0], *tail), dtype, seed=3).requires_grad_()
    A = ls.CSR(v, P)
    y, z, w = A @ x, ls.ops.spmm(A, u, transpose=True), ls.ops.sddmm(u, x, P)
    results = [y, z, w, A.sum(0), A.sum(1), A.T.values, A.diagonal()]
    for out in (y, z, w):
        inputs = [t for t, used in ((v, out is not w), (x, out is not z), (u, out is not y)) if used]
        results += torch.autograd.grad(out, inputs, normal(out.shape, dtype, seed=4), retain_graph=True)
    (only_values,) = torch.autograd.grad(y, v, y.detach(), retain_graph=True)
    (only_x,) = torch.autograd.grad(y, x, y.detach())
    return [t.detach() for t in (*results, only_values, only_x)]


@pytest.mark.parametrize("structure", LARGE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("k", [None, 3])
def test_same_bits_for_any_number_of_threads(structure, dtype, k):
    P = pattern_of(LARGE[structure], torch.int32)
    assert P.nnz + P.shape[0] > 50_000
    assert_same_bits(lambda: everything(P, dtype, k), (2, 3, 5, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_a_row_has_the_same_bits_in_a_long_range_and_alone(dtype):
    """Rows of random lengths go through streams of entries if there are many of them."""
    n = 12_000
    lengths = torch.from_numpy(np.random.default_rng(0).geometric(0.12, size=n).clip(max=60))
    crow = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)))
    row = torch.arange(n).repeat_interleave(lengths)
    columns = row % 199 + n // 60 * (torch.arange(len(row)) - crow[row])  # the place in its row, spread
    P = ls.SparsityPattern(crow, columns, (n, n))
    assert P.nnz > 80_000
    A, x = ls.CSR(normal((P.nnz,), dtype, seed=1), P), normal((n,), dtype, seed=2)
    parts = [A[i : i + 2000] @ x for i in range(0, n, 2000)]
    assert torch.equal(A @ x, torch.cat(parts))
    assert torch.equal(A @ x, (A @ torch.stack([x] * 8, 1))[:, 5])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_sums_over_rows_of_random_lengths_have_the_same_bits(dtype):
    """With one thread a range of rows is long enough for streams, with eight it is not."""
    n = 12_000
    lengths = torch.from_numpy(np.random.default_rng(0).geometric(0.28, size=n).clip(max=20))
    row = torch.arange(n).repeat_interleave(lengths)
    place = torch.arange(len(row)) - (lengths.cumsum(0) - lengths)[row]
    A = ls.CSR.from_coo(
        row, (row + 7 * place * (row % 29 + 1)) % n, normal((len(row),), dtype, seed=1), (n, n)
    )
    A = A + A.T + ls.CSR.from_scipy(sp.eye_array(n, format="csr"), dtype=dtype) * 200.0
    P, b = A.pattern, normal((n,), dtype, seed=2).requires_grad_()
    v = A.values.clone().requires_grad_()
    assert 65_536 < P.nnz < 8 * 65_536

    def run():
        A, found = ls.CSR(v, P), []
        for solve in (
            lambda: ls.solvers.cg(A, b, iterations=3, gradient="unrolled"),
            lambda: ls.solvers.jacobi(A, b, iterations=3),
            lambda: ls.solvers.heavyball(A, b, alpha=0.004, beta=0.3, iterations=3),
        ):
            s = solve()
            found += [s.x, s.residual_norms]
            found += torch.autograd.grad(s.x.sum() + s.residual_norms.sum(), (v, b))
        return [t.detach() for t in found]

    assert_same_bits(run, (8,))


def test_the_layout_of_memory_does_not_change_a_sum():
    A = ls.CSR(normal((40_000,)), pattern_of(banded(40_000, 1)))
    x = normal((40_000, 2), seed=1)
    for sparse in (lambda v, x: A.with_values(v).sum(), lambda v, x: ls.ops.quadratic_form(A, x)):
        wanted = sparse(A.values, x)
        for (_, v), (kind, t) in zip(layouts(A.values), layouts(x), strict=False):
            if "expanded" not in kind:
                assert torch.equal(sparse(v, t), wanted), kind


def test_perceptrons():
    z, *layers = (
        normal(s, torch.float32).requires_grad_() for s in ((3, 9000, 8), (8, 8), (8,), (8, 8), (8,))
    )

    def results():
        y = perceptron(z, tuple(layers[:2]), tuple(layers[2:]))
        return [y.detach(), *torch.autograd.grad(y.square().sum(), [z, *layers])]

    assert_same_bits(results)


def test_pointwise_factors():
    A = ls.problems.poisson((70, 80))
    networks = (P(width=8, **o) for P, o in ((StencilFactor, {"diagonals": 5}), (RowFactor, {"largest": 2})))
    networks = [network.requires_grad_(False) for network in networks]
    for network in networks:
        network.network[-1].weight.copy_(normal(network.network[-1].weight.shape, torch.float32))
    assert_same_bits(lambda: [network.factor(A).values for network in networks])


NAMES = sorted(CALLS.keys() - BLAS)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (i % 6 > 0)) for i, n in enumerate(NAMES)]
)
def test_every_call_has_the_same_bits(name):
    """Operations, solvers, preconditioners and layers, forward and backward."""
    samples = (Sample.draw(kind, 0, 100_000) for kind in KINDS)
    s = next(s for s in samples if CALLS[name].takes(s))
    for s.dtype in (torch.float32, torch.float64):
        with quiet():
            assert not compare(s, name, CALLS[name], 0, 0, Counter())


CODE = """
import os, time
import torch
import learnsolve as ls

A = ls.problems.poisson((200, 200))
b, M = torch.ones(A.shape[0], dtype=A.dtype), ls.preconditioners.MIC(A)
torch.set_num_threads(2)
first = ls.solvers.cg(A, b, M=M).x
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
times = {1: [], 2: []}
for _ in range(5):
    for threads in times:
        torch.set_num_threads(threads)
        start = time.perf_counter()
        assert torch.equal(ls.solvers.cg(A, b, M=M).x, first)
        times[threads].append(time.perf_counter() - start)
print(sorted(times[2])[2] / sorted(times[1])[2])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a process is bound to one core as Linux does it")
def test_two_threads_on_one_core():
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=300, check=True
    )
    assert float(done.stdout) < 6  # where each loop waits for the other thread's time slice: more than 50


COLUMNS = (1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 33, 64, 100)
MATRICES = {f"rows of {length}": banded(45, length) for length in range(1, 13)} | {
    "5 points": grid(5, 11),
    "9 points": grid(9, 11),
    "7 points": grid(7, 6),
    "random": random(37, 29, 0.2),
    "power law": power_law(40),
}


def check(P, dtype, k, transpose):
    """y = A x (or A^T x), its gradients together and apart, and the sampled product."""
    m, n = reversed(P.shape) if transpose else P.shape
    tail = () if k is None else (k,)
    rows, columns = P.row_indices.long(), P.col_indices.long()
    if transpose:
        rows, columns = columns, rows
    v, x, g = (normal(shape, dtype, seed=i) for i, shape in enumerate(((P.nnz,), (n, *tail), (m, *tail))))

    def product(a, t, to, source, size):
        a = a if t.dim() == 1 else a.unsqueeze(-1)
        return torch.zeros(size, *tail, dtype=torch.float64).index_add_(0, to, a * t[source])

    def sampled(s, t):
        return (s[rows] * t[columns]).reshape(P.nnz, -1).sum(-1)

    a, b, c = v.double(), x.double(), g.double()
    ones = torch.ones(P.nnz, dtype=torch.float64)
    y_ref = [
        product(a, b, rows, columns, m),
        product(a.abs(), b.abs(), rows, columns, m),
        product(ones, torch.ones_like(b), rows, columns, m),
    ]
    gx_ref = [
        product(a, c, columns, rows, n),
        product(a.abs(), c.abs(), columns, rows, n),
        product(ones, torch.ones_like(c), columns, rows, n),
    ]
    gv_ref = [sampled(c, b), sampled(c.abs(), b.abs()), sampled(torch.ones_like(c), torch.ones_like(b))]

    what = f"{dtype}, k = {k}, transpose = {transpose}"
    A, X = ls.CSR(v.requires_grad_(), P), x.requires_grad_()
    y = ls.ops.spmm(A, X, transpose=transpose)
    assert_within(y, *y_ref, f"product, {what}")
    gv, gx = torch.autograd.grad(y, (v, x), g, retain_graph=True)
    assert_within(gv, *gv_ref, f"gradient for values, {what}")
    assert_within(gx, *gx_ref, f"gradient for x, {what}")
    (gv,) = torch.autograd.grad(y, v, g, retain_graph=True)
    (gx,) = torch.autograd.grad(y, x, g)
    assert_within(gv, *gv_ref, f"gradient for values alone, {what}")
    assert_within(gx, *gx_ref, f"gradient for x alone, {what}")


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_values_and_gradients(isa, name, dtype):
    for index in (torch.int32, torch.int64):
        P = pattern_of(MATRICES[name], index)
        for transpose in (False, True):
            check(P, dtype, None, transpose)
    for k in COLUMNS:
        check(pattern_of(MATRICES[name]), dtype, k, False)


def test_misaligned_memory(isa):
    """Vector loads must not assume an alignment."""
    for name, S in MATRICES.items():
        P = pattern_of(S, torch.int32)
        for dtype in (torch.float32, torch.float64):
            v, x = normal((P.nnz + 1,), dtype)[1:], normal((P.shape[1] + 1,), dtype)[1:]
            assert torch.equal(ls.CSR(v, P) @ x, ls.CSR(v.clone(), P) @ x.clone()), name


def test_an_unknown_variant_is_refused():
    with pytest.raises(ValueError, match=rf"{_library.instruction_sets()[0]}.*got 'sse9'"):
        _library.select_instruction_set("sse9")


N, K = 20_000, 64
P = pattern_of(random_array((N, N), density=8 / N, rng=0), torch.int32)
WORD = 8


def test_the_instrument_sees_a_temporary():
    values, x = normal((P.nnz,)), normal((N, K))
    rows, columns = P.row_indices.long(), P.col_indices.long()
    found = peak(lambda: torch.zeros(N, K, dtype=x.dtype).index_add_(0, rows, values[:, None] * x[columns]))
    assert found > P.nnz * K * WORD


def learned_product(values: bool = True, dense: bool = True):
    """A matrix and a dense operand, of which the gradient is wanted for one or both."""
    v, x = normal((P.nnz,)).requires_grad_(values), normal((N, K)).requires_grad_(dense)
    A = ls.CSR(v, P)
    torch.autograd.grad((A @ x).sum(), [t for t in (v, x) if t.requires_grad])  # analysis is not counted
    return A, x


def test_forward():
    A, x = learned_product()
    assert peak(lambda: A @ x) <= (N * K + 4096) * WORD


@pytest.mark.parametrize("expanded", [False, True], ids=["", "expanded gradient"])
@pytest.mark.parametrize(("values", "dense"), [(True, True), (True, False), (False, True)])
def test_backward(values, dense, expanded):
    A, x = learned_product(values, dense)
    inputs = [t for t in (A.values, x) if t.requires_grad]
    y = A @ x
    g = torch.ones((), dtype=y.dtype).expand_as(y) if expanded else torch.ones_like(y)
    found = peak(lambda: torch.autograd.grad(y, inputs, g))
    # An n x k for the gradient of x, one more if the incoming gradient has to be written out.
    assert found <= (values * P.nnz + (dense + expanded) * N * K + 4096) * WORD


def test_double_backward():
    A, x = learned_product()
    y = A @ x
    g = torch.ones_like(y).requires_grad_()
    gv, gx = torch.autograd.grad(y, (A.values, x), g, create_graph=True)
    found = peak(lambda: torch.autograd.grad(gv.sum() + gx.sum(), (A.values, x, g)))
    assert found <= (6 * P.nnz + 6 * N * K) * WORD
    assert found < P.nnz * K * WORD


def test_sampled_product():
    u, w = (normal((N, K), seed=i).requires_grad_() for i in (1, 2))
    out = ls.ops.sddmm(u, w, P)
    assert peak(lambda: ls.ops.sddmm(u, w, P)) <= (P.nnz + 4096) * WORD
    g = torch.ones_like(out)
    assert peak(lambda: torch.autograd.grad(out, (u, w), g)) <= (2 * N * K + 4096) * WORD


LONG = 2**24
ONE = torch.ones(1, dtype=torch.float64)
# Two entries in a row of LONG columns: what is made of it, and its numbers.
OF_A_LONG_ROW = {
    "scale_rows": (lambda A: A.scale_rows(3 * ONE), [6, 9]),
    "scale_rows, batch": (lambda A: A.scale_rows(torch.stack((ONE, 3 * ONE))), [2, 3, 6, 9]),
    "gradient of scale_rows": (lambda A: gradient(lambda d: A.scale_rows(d).values, ONE), [5]),
    "sum": (lambda A: A.sum(1), [5]),
    "gradient of sum": (lambda A: gradient(lambda v: A.with_values(v).sum(1), A.values), [1, 1]),
    "norm of rows": (lambda A: A.norm(1, 1), [5]),
    "norm 1": (lambda A: A.norm(1), [3]),
    "norm inf": (lambda A: A.norm(torch.inf), [5]),
    "segment_sum": (lambda A: ls.ops.segment_sum(A.values, A.pattern), [5]),
    "gather": (lambda A: ls.ops.gather(3 * ONE, A.pattern), [3, 3]),
    "segment_softmax": (lambda A: ls.ops.segment_softmax(0 * A.values, A.pattern), [0.5, 0.5]),
    "slice": (lambda A: A[:, 5:10], [2]),
    "long slice": (lambda A: A[:, 8:], [3]),
    "slice with a step": (lambda A: A[:, :6:-1], [3, 2]),
    "rows by an array": (lambda A: A[[0, 0]], [2, 3, 2, 3]),
    "columns by an array": (lambda A: A[:, [LONG - 1, 4, 7, 7]], [3, 2, 2]),
    "rows and columns": (lambda A: A[np.ix_([0], [7, 6])], [2]),
    "tril": (lambda A: A.tril(8), [2]),
    "hstack": (lambda A: ls.ops.hstack([A, A]), [2, 3, 2, 3]),
    "vstack": (lambda A: ls.ops.vstack([A, A]), [2, 3, 2, 3]),
    "add": (lambda A: A + A[[0]][:, :], [4, 6]),
    "to_scipy and back": (lambda A: ls.CSR.from_scipy(A.to_scipy("coo")), [2, 3]),
}


def gradient(f, t):
    t = t.clone().requires_grad_()
    return torch.autograd.grad(f(t).sum(), t)[0]


@pytest.mark.parametrize("name", OF_A_LONG_ROW)
def test_a_row_costs_its_entries_and_not_its_columns(name):
    f, numbers = OF_A_LONG_ROW[name]
    f(long_row())  # imports are not counted
    A = long_row()
    of_numpy = []

    def watched():
        tracemalloc.start()
        try:
            return f(A)
        finally:
            of_numpy.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()

    most = peak(watched) + of_numpy[0]
    found = f(A)
    assert (found.values if isinstance(found, ls.CSR) else found).flatten().tolist() == numbers
    assert most < LONG / 8


def long_row() -> ls.CSR:
    pattern = ls.SparsityPattern(torch.tensor([0, 2]), torch.tensor([7, LONG - 1]), (1, LONG))
    return ls.CSR(torch.tensor([2.0, 3.0], dtype=torch.float64), pattern)


LENGTH = 40_000  # 320 KB, above the least size that is kept
LINE = ls.problems.poisson((LENGTH,))
needs_blob = pytest.mark.skipif(torch.__version__ < "2.11", reason="torch 2.10 has no memory of one's own")


def constant(value: float) -> torch.Tensor:
    return torch.full((LENGTH,), value, dtype=torch.float64)


def kept_product(value: float) -> torch.Tensor:
    """value at both ends, zero between."""
    return LINE @ constant(value)


def holds(y: torch.Tensor, value: float) -> bool:
    return y[0] == y[-1] == value and not y[1:-1].any()


HOLDERS = {
    "view": lambda y: y[5:],
    "numpy": lambda y: y.numpy(),
    "detached": lambda y: y.detach(),
    "storage": lambda y: y.untyped_storage(),
}


FORK = """
import os, threading, torch, learnsolve as ls
from learnsolve._library import buffer_bytes
torch.set_num_threads(1)
A = ls.problems.poisson((40_000,))
x = torch.ones(40_000, dtype=torch.float64)

class Results(torch.utils.data.Dataset):
    def __len__(self): return 6
    def __getitem__(self, i): return (A @ (i * x)).requires_grad_(False)

keep = A @ x
A @ x
assert buffer_bytes() > 0
stop = threading.Event()
def hammer():
    while not stop.is_set(): A @ x
thread = threading.Thread(target=hammer); thread.start()
for _ in range(20):  # a thread may hold the lock at any of them
    child = os.fork()
    if child == 0:
        os._exit(0 if buffer_bytes() == 0 and torch.equal(A @ x, keep) and buffer_bytes() > 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
stop.set(); thread.join()
for y, i in zip(torch.utils.data.DataLoader(Results(), num_workers=2, batch_size=None), range(6)):
    assert torch.equal(y, i * keep)
"""


@needs_blob
class TestKeptMemory:
    """Memory of freed results that is kept: never that of a tensor that is alive, never beyond the limit."""

    @pytest.fixture(autouse=True)
    def limit(self):
        with ls.set_options(buffer_pool_bytes=0):  # nothing is left of other tests
            ls.set_options(buffer_pool_bytes=2**22)
            yield 2**22

    def test_memory_of_a_freed_result_is_used_again(self):
        y = kept_product(1.0)
        place = y.data_ptr()
        del y
        assert buffer_bytes() >= 8 * LENGTH
        again = kept_product(2.0)
        assert again.data_ptr() == place
        assert buffer_bytes() == 0
        assert holds(again, 2.0)

    @pytest.mark.parametrize("rest", HOLDERS)
    def test_memory_that_anything_holds_is_not_used_again(self, rest):
        y = kept_product(1.0)
        kept = HOLDERS[rest](y)
        place = y.data_ptr()
        del y
        later = [kept_product(float(i)) for i in range(4)]
        assert place not in [t.data_ptr() for t in later]
        assert buffer_bytes() == 0
        del kept
        assert buffer_bytes() > 0

    def test_a_result_survives_what_is_kept(self, limit):
        y, z = kept_product(3.0), kept_product(4.0)
        del z
        assert buffer_bytes() > 0
        ls.set_options(buffer_pool_bytes=0)
        assert buffer_bytes() == 0
        assert holds(y, 3.0)
        del y
        assert buffer_bytes() == 0

    def test_no_more_is_kept_than_the_limit(self, limit):
        results = [kept_product(float(i)) for i in range(40)]
        while results:
            results.pop(0)
            assert buffer_bytes() <= limit
        assert buffer_bytes() > limit - 2**19
        ls.set_options(buffer_pool_bytes=2**20)
        assert 2**20 >= buffer_bytes() > 2**19
        ls.problems.poisson((3,)).pattern.drop_caches()
        assert buffer_bytes() == 0
        large = ls.problems.poisson((2**18,)) @ torch.ones(2**18, dtype=torch.float64)  # 2 MiB
        del large
        assert buffer_bytes() == 0, "a result larger than the limit is kept"

    def test_small_results_are_not_kept(self):
        ls.problems.poisson((1000,)) @ torch.ones(1000, dtype=torch.float64)
        assert buffer_bytes() == 0

    def test_gradients_have_the_same_bits_whatever_the_memory(self):
        """Several graphs at once; what a solver keeps for its backward is in kept memory too."""
        b = torch.randn(LENGTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

        def graph():
            inputs = [LINE.values.clone().requires_grad_(), b.clone().requires_grad_()]
            x = ls.solvers.cg(
                ls.CSR(inputs[0], LINE.pattern),
                inputs[1],
                iterations=7,
                gradient="unrolled",
                throw=False,
            ).x
            return x, inputs

        def gradients(x, inputs):
            return torch.autograd.grad(x.square().sum(), inputs, retain_graph=True)

        ls.set_options(buffer_pool_bytes=0)
        wanted = gradients(*graph())
        ls.set_options(buffer_pool_bytes=2**28)
        for _ in range(2):
            graphs = [graph() for _ in range(2)]
            for x, inputs in (*graphs, *graphs):
                assert all(map(torch.equal, gradients(x, inputs), wanted))

    def test_threads(self):
        errors = []

        def work(number: int) -> None:
            alive = []
            for i in range(200):
                value = float(1000 * number + i)
                alive.append((kept_product(value), value))
                if len(alive) > 1 + i % 5:
                    alive = [pair for pair in alive if holds(*pair) or errors.append(pair)][-2:]

        workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        [t.start() for t in workers], [t.join() for t in workers]
        assert not errors
        assert buffer_bytes() <= 2**22

    def test_a_result_goes_into_shared_memory(self):
        y = kept_product(5.0)
        y.share_memory_()
        assert buffer_bytes() > 0, "its own memory is free now"
        assert holds(kept_product(6.0), 6.0)
        assert holds(y, 5.0)

    @pytest.mark.slow
    def test_fork(self):
        subprocess.run([sys.executable, "-c", FORK], check=True, timeout=100)

    @pytest.mark.parametrize("wrong", [-1, 1.5, True, None, 2**63])
    def test_a_buffer_pool_limit_that_is_none(self, wrong):
        with pytest.raises((TypeError, ValueError), match=r"^set_options: buffer_pool_bytes must"):
            ls.set_options(buffer_pool_bytes=wrong)


@pytest.mark.parametrize("corruption", [1e-4, -1e-5, float("nan"), float("inf")])
def test_one_corrupted_entry_is_rejected(corruption):
    D, x = normal((20, 9)), normal((9,), seed=1)
    found, rest = (D @ x).float(), (D @ x, D.abs() @ x.abs(), torch.full((20,), 9.0))
    assert_within(found, *rest)
    found[7] += corruption
    with pytest.raises(AssertionError, match=r"1 of 20 entries are off; at \(7,\)"):
        assert_within(found, *rest)


def test_the_table_names_its_branches():
    assert len({case.name for case in CASES}) == len(CASES)
    assert {case.name for case in CASES} >= BRANCHES
