"""The same bits on every run and for any number of threads."""

from collections import Counter

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from reference import assert_same_bits, banded, grid, layouts, normal, pattern_of, power_law, random
from stress._calls import CALLS, quiet
from stress._samples import KINDS, Sample
from stress.threads import BLAS, compare

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
