"""The same bits on every run and for any number of threads."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from reference import assert_same_bits, banded, grid, layouts, normal, pattern_of, power_law, random

import learnsolve as ls
from learnsolve.ops.core.perceptron import perceptron

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


@pytest.mark.few
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
            lambda: ls.solvers.cg(A, b, rtol=0, maxiter=3, gradient="unrolled"),
            lambda: ls.solvers.jacobi(A, b, iterations=3),
            lambda: ls.solvers.heavyball(A, b, alpha=0.004, beta=0.3, iterations=3),
        ):
            s = solve()
            found += [s.x, s.residual_norms]
            found += torch.autograd.grad(s.x.sum() + s.residual_norms.sum(), (v, b))
        return [t.detach() for t in found]

    assert_same_bits(run, (8,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("k", [None, 1, 2, 3, 9])
def test_sums_of_all_entries_have_the_same_bits(dtype, k):
    """From 32768 numbers on torch splits a sum among its threads."""
    P = pattern_of(banded(40_000, 3))
    square = pattern_of(grid(5, 200))
    v = normal((P.nnz,), dtype, seed=1).requires_grad_()
    w = normal((square.nnz,), dtype, seed=2).requires_grad_()
    x = normal((40_000, *(() if k is None else (k,))), dtype, seed=3).requires_grad_()

    def results():
        A, B = ls.CSR(v, P), ls.CSR(w, square)
        sums = [A.sum(), A.norm(), ls.ops.trace(B), ls.ops.quadratic_form(B, x)]
        batch = ls.ops.quadratic_form(ls.CSR(torch.stack((w, 2 * w)), square), x)
        return [*sums, batch, *torch.autograd.grad(sum(sums) + batch.sum(), (v, w, x))]

    assert_same_bits(results, (2, 3))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
def test_gradients_of_a_number_have_the_same_bits(shape):
    P = pattern_of(banded(40_000, 3))
    v, s = normal((P.nnz,), seed=1).requires_grad_(), normal(shape, seed=2).requires_grad_()

    def results():
        A = ls.CSR(v, P)
        found = [A * s, A / s, ls.ops.add(A, A, alpha=s, beta=2 * s)]
        return [t for B in found for t in torch.autograd.grad(B.values, (v, s), normal(B.values.shape))]

    assert_same_bits(results, (2, 3))


def test_the_layout_of_memory_does_not_change_a_sum():
    A = ls.CSR(normal((40_000,)), pattern_of(banded(40_000, 1)))
    x = normal((40_000, 2), seed=1)
    for sparse in (lambda v, x: A.with_values(v).sum(), lambda v, x: ls.ops.quadratic_form(A, x)):
        wanted = sparse(A.values, x)
        for (_, v), (kind, t) in zip(layouts(A.values), layouts(x), strict=False):
            if "expanded" not in kind:
                assert torch.equal(sparse(v, t), wanted), kind


def test_same_bits_with_a_batch():
    P = pattern_of(LARGE["random"])
    v, X = normal((2, P.nnz), torch.float32, seed=1), normal((2, 2500, 2), torch.float32, seed=2)

    def results():
        a, x = v.clone().requires_grad_(), X.clone().requires_grad_()
        shared = v[0].clone().requires_grad_()
        y, s = ls.CSR(a, P) @ x, ls.CSR(shared, P) @ x
        grads = torch.autograd.grad(y.square().sum() + s.square().sum(), (a, x, shared))
        return [y.detach(), s.detach(), *grads]

    assert_same_bits(results)


def test_duplicates_are_summed_in_the_same_order():
    rows, columns = torch.randint(0, 50, (2, 60_000), generator=torch.Generator().manual_seed(0))
    w = normal((60_000,), torch.float32)
    assert_same_bits(lambda: [ls.CSR.from_coo(rows, columns, w, (50, 50)).values])


def test_perceptrons():
    z, *layers = (
        normal(s, torch.float32).requires_grad_() for s in ((3, 9000, 8), (8, 8), (8,), (8, 8), (8,))
    )

    def results():
        y = perceptron(z, tuple(layers[:2]), tuple(layers[2:]))
        return [y.detach(), *torch.autograd.grad(y.square().sum(), [z, *layers])]

    assert_same_bits(results)


@pytest.mark.parametrize("structure", ["random", "power law"])
def test_features_of_rows_and_columns(structure):
    P, ops = pattern_of(LARGE[structure], torch.int32), ls.ops
    e = normal((P.nnz, 5), torch.float32, seed=1).requires_grad_()

    def results():
        found = []
        for by in ("row", "column"):
            for f in (ops.segment_sum, ops.segment_mean, ops.segment_max, ops.segment_softmax):
                out = f(e, P, by)
                found += [out.detach(), *torch.autograd.grad(out.sin().sum(), e)]
        return found

    assert_same_bits(results)


A_LINE = ls.problems.poisson((40_000,))
OF_A_NUMBER = {
    "jacobi": lambda b, s: ls.solvers.jacobi(A_LINE, b, weight=s, iterations=2).x,
    "richardson": lambda b, s: ls.solvers.richardson(A_LINE, b, weight=s, iterations=2).x,
    "heavyball": lambda b, s: ls.solvers.heavyball(A_LINE, b, alpha=s, beta=s, iterations=2).x,
    "sor": lambda b, s: ls.solvers.sor(A_LINE, b, omega=s, iterations=2).x,
    "ssor": lambda b, s: ls.solvers.ssor(A_LINE, b, omega=s, iterations=2).x,
    "Neumann": lambda b, s: ls.preconditioners.Neumann(A_LINE, weight=s)(b),
    "Neumann of SSOR": lambda b, s: ls.preconditioners.Neumann(
        A_LINE, weight=s, M=ls.preconditioners.SSOR(A_LINE)
    )(b),
    "Polynomial": lambda b, s: ls.preconditioners.Polynomial(
        A_LINE, torch.stack([s, s]), interval=torch.stack([s, 4 * s])
    )(b),
    "Chebyshev of SSOR": lambda b, s: ls.preconditioners.Chebyshev(
        A_LINE, lmin=s, lmax=4 * s, M=ls.preconditioners.SSOR(A_LINE)
    )(b),
}


@pytest.mark.few
@pytest.mark.parametrize("name", OF_A_NUMBER)
def test_gradients_of_parameters_have_the_same_bits(name):
    b, s = normal((40_000,), seed=1), torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    g = normal((40_000,), seed=2)
    assert_same_bits(lambda: torch.autograd.grad(OF_A_NUMBER[name](b, s), s, g), (2, 3))
