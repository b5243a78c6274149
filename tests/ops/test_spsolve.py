"""The direct solve: values, derivatives and transformations, against dense matrices and SciPy."""

import itertools
import tracemalloc

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
import torch
from ops.direct import (
    BATCHES,
    VALUES,
    P,
    assert_solves,
    batch_of_values,
    convection,
    dense,
    matrices,
    pair,
    sparse,
    without_diagonal,
)
from reference import UNIT_ROUNDOFF, densify, gradients, normal, peak
from torch import func

import learnsolve as ls

MATRICES = matrices()
EITHER = pytest.mark.parametrize("transpose", [False, True], ids=["", "transpose"])


def inputs_of(shapes, requires_grad=False):
    values, b = shapes
    v = batch_of_values(*values) if values else VALUES.clone()
    return [t.requires_grad_(requires_grad) for t in (v, normal(b, seed=1))]


@EITHER
@pytest.mark.parametrize("name", MATRICES)
def test_value_and_gradients(name, transpose):
    for index, dtype, k in itertools.product(
        (torch.int32, torch.int64), (torch.float32, torch.float64), ((), (1,), (3,), (0,))
    ):
        Q, v = pair(MATRICES[name], index, dtype)
        b = normal((Q.shape[0], *k), dtype, seed=1)
        D = densify(Q, v.double())
        D = D.mT if transpose else D
        what = f"{name}, {index}, {dtype}, {k}"

        x = sparse(v, b, transpose, Q)
        assert x.dtype == dtype
        exact = dense(v.double(), b.double(), transpose, Q)
        assert_solves(x, exact, D, what)

        g = normal(x.shape, dtype, seed=2)
        gv, gb = gradients(lambda v, b: sparse(v, b, transpose, Q), [v, b], g)  # noqa: B023
        wv, wb = gradients(lambda v, b: dense(v, b, transpose, Q), [v.double(), b.double()], g.double())  # noqa: B023
        assert gv.dtype == gb.dtype == dtype
        assert_solves(gb, wb, D, f"gradient for b, {what}")
        if x.numel():
            # y x^T summed over the columns: the errors of both solves.
            bound = 32 * len(D) * UNIT_ROUNDOFF[dtype] * torch.linalg.cond(D, torch.inf)
            size = (wb.abs() * exact.abs().amax(0)).amax(0).sum()
            assert (gv.double() - wv).abs().max() <= bound * size, what


def poisson(side):
    S = ls.problems.poisson((side, side)).to_scipy()
    return scipy.sparse.csr_array(S)


@pytest.mark.parametrize(
    "S",
    [poisson(60), convection(60), without_diagonal(60), scipy.sparse.csr_array(convection(40)[::-1])],
    ids=["poisson", "convection", "no diagonal", "rows upside down"],
)
@EITHER
def test_against_scipy(S, transpose):
    A = ls.CSR.from_scipy(S)
    M = S.T if transpose else S
    size = abs(M)
    b = np.random.default_rng(0).standard_normal((S.shape[0], 4))
    x = ls.ops.spsolve(A, torch.from_numpy(b), transpose=transpose).numpy()
    # Backward stable: the residual is small against |A||x|, row by row of the norm.
    assert np.abs(M @ x - b).max() <= 1e-13 * (size @ np.abs(x)).max()
    wanted = scipy.sparse.linalg.spsolve(M.tocsc(), b)
    np.testing.assert_allclose(x, wanted, rtol=1e-9, atol=1e-11 * np.abs(wanted).max())


def test_pivots_where_dominance_does_not_hold():
    """[[tiny, 1], [1, 1]] eliminated in order loses everything."""
    D = torch.tensor([[1e-20, 1.0], [1.0, 1.0]], dtype=torch.float64)
    x = ls.ops.spsolve(ls.CSR.from_dense(D), torch.tensor([1.0, 2.0], dtype=torch.float64))
    torch.testing.assert_close(x, torch.ones(2, dtype=torch.float64), rtol=1e-15, atol=0)


def test_nonsymmetric_adjoint():
    """The default adjoint is that of A^T. With A in its place this would be off by much."""
    v, b = VALUES.clone(), normal((5,)).requires_grad_()
    g = normal((5,), seed=1)
    (gb,) = torch.autograd.grad(sparse(v, b), b, g)
    D = densify(P, v)
    torch.testing.assert_close(gb, torch.linalg.solve(D.mT, g), rtol=1e-13, atol=1e-13)
    assert (gb - torch.linalg.solve(D, g)).abs().max() > 0.1


@EITHER
def test_small_cotangents_are_not_zero(transpose):
    """The adjoint is linear in the cotangent: scaled by a power of two, it scales to the bit."""
    inputs = inputs_of(BATCHES["matrix"])
    g = normal((5, 3), seed=2)
    wanted = gradients(lambda *a: sparse(*a, transpose), inputs, g)
    for scale in (2.0**-40, 2.0**-200, 2.0**60):
        found = gradients(lambda *a: sparse(*a, transpose), inputs, g * scale)
        assert all(torch.equal(f, w * scale) for f, w in zip(found, wanted, strict=True))
    found = gradients(lambda *a: sparse(*a, transpose), inputs, 1e-12 * g)
    assert all((f != 0).any() for f in found)


def test_float32_is_solved_in_float32_and_float64_is_not():
    for dtype in (torch.float32, torch.float64):
        x = sparse(VALUES.to(dtype), torch.ones(5, dtype=dtype))
        error = (x.double() - dense(VALUES, torch.ones(5, dtype=torch.float64))).abs().max()
        assert x.dtype == dtype
        assert (error > 1e-12) == (dtype == torch.float32)
        kind = ls.ops.factorized(ls.CSR(VALUES.to(dtype), P))._factors._factored[0][1][0].factors.L.dtype
        assert kind == torch.empty(0, dtype=dtype).numpy().dtype


@EITHER
def test_a_batch_is_a_loop(transpose):
    V, B = batch_of_values(3, 2), normal((4, 1, 2, 5, 3))
    x = sparse(V, B, transpose)
    assert x.shape == (4, 3, 2, 5, 3)
    for i, j, k in itertools.product(range(4), range(3), range(2)):
        one = sparse(V[j, k], B[i, 0, k], transpose)
        torch.testing.assert_close(x[i, j, k], one, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(
    ("n", "values", "b"),
    [
        (0, (), (0,)),
        (0, (), (0, 3)),
        (0, (2,), (0, 3)),
        (0, (2,), (0,)),
        (0, (), (2, 0, 3)),
        (5, (), (5, 0)),
        (5, (2,), (5, 0)),
        (5, (0,), (5,)),
        (5, (0,), (0, 5, 2)),
        (5, (), (0, 5, 2)),
        (5, (3, 0), (5, 2)),
    ],
)
def test_empty(n, values, b):
    Q = P if n else pair(scipy.sparse.csr_array((0, 0)))[0]
    v = VALUES.expand((*values, P.nnz)) if n else torch.empty((*values, 0), dtype=torch.float64)
    v, c = v.clone().requires_grad_(), normal(b).requires_grad_()
    x = sparse(v, c, False, Q)
    batch = torch.broadcast_shapes(values, b[:-2])
    assert x.shape == (*batch, *(b if len(b) == 1 else b[-2:]))
    gv, gb = torch.autograd.grad(x.sum(), (v, c), create_graph=True)
    assert torch.equal(gv, torch.zeros_like(v))
    assert gb.shape == c.shape
    ls.ops.factorized(ls.CSR(v, Q))(c)


def test_one_matrix_for_a_batch():
    one, b = VALUES.expand(3, P.nnz), normal((5, 2))
    torch.testing.assert_close(sparse(one, b), sparse(VALUES, b).expand(3, 5, 2), rtol=0, atol=0)
    assert sparse(VALUES, normal((5, 4)).mT.contiguous().mT).is_contiguous()


def test_explicit_zeros_stay_entries():
    v, b = VALUES.clone().requires_grad_(), normal((5,))
    x = sparse(v, b)
    (gv,) = torch.autograd.grad(x, v, normal((5,), seed=1))
    assert (gv[(VALUES == 0).nonzero()] != 0).all()


def test_modes():
    v, b = inputs_of(BATCHES["vector"], requires_grad=True)
    wanted = sparse(v, b).detach()
    with torch.no_grad():
        assert torch.equal(sparse(v, b), wanted)
    with torch.inference_mode():
        assert torch.equal(sparse(v, b), wanted)
        F = ls.ops.factorized(ls.CSR(VALUES.clone(), P))
        assert torch.equal(F(b), wanted)
    assert torch.equal(F(b.detach()), wanted)


def test_the_graph_that_torch_records_solves():
    """Not a constant: the operator stands in it."""
    from torch.fx.experimental.proxy_tensor import make_fx

    v, b = inputs_of(BATCHES["matrix"])
    graph = make_fx(func.grad(lambda v, b: (sparse(v, b) ** 2).sum(), argnums=(0, 1)))(v, b)
    w, c = batch_of_values(1)[0], normal((5, 3), seed=7)
    wanted = func.grad(lambda v, b: (dense(v, b) ** 2).sum(), argnums=(0, 1))(w, c)
    torch.testing.assert_close(graph(w, c), wanted, rtol=1e-11, atol=1e-11)


def test_memory():
    """O(nnz of A and of its factors + n k): no dense matrix, no column for each entry."""
    n, k = 20_000, 16
    A = ls.problems.poisson((n,))
    v, b = A.values.clone().requires_grad_(), normal((n, k)).requires_grad_()
    g = torch.ones(n, k, dtype=torch.float64)

    def call():
        return torch.autograd.grad(ls.ops.spsolve(A.with_values(v), b), (v, b), g)

    call()
    tracemalloc.start()  # what NumPy holds; SuperLU and torch hold theirs elsewhere
    call()
    numpy_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    word = 8
    assert numpy_peak <= (6 * n * k + 12 * A.nnz) * word
    assert peak(call) <= (6 * n * k + 12 * A.nnz) * word
