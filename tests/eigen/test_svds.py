"""Singular triplets of matrices that are singular or nearly so, and eigenpairs of zero."""

import pytest
import torch
from reference import normal
from torch.autograd import grad

import learnsolve as ls

both = pytest.mark.parametrize("which", ["largest", "smallest"])


def of_values(m, n, values, seed=0):
    """Dense, with these singular values."""
    U, V = (torch.linalg.qr(normal((k, len(values)), seed=seed + k))[0] for k in (m, n))
    return (U * torch.tensor(values, dtype=U.dtype)) @ V.mT


def check(D, triplets, which, tolerance):
    U, S, V, pairs = triplets
    k, exact = len(S), torch.linalg.svdvals(D)
    size = float(exact[0]) or 1.0
    assert pairs.converged
    some = exact[:k] if which == "largest" else exact[len(exact) - k :]
    assert (S - some).abs().max() <= tolerance * size
    for X in (U, V):
        torch.testing.assert_close(X.mT @ X, torch.eye(k, dtype=X.dtype), rtol=0, atol=100 * tolerance)
    assert (D @ V - U * S).abs().max() <= 100 * tolerance * size
    assert (D.mT @ U - V * S).abs().max() <= 100 * tolerance * size


@both
@pytest.mark.parametrize(
    ("large", "dtype"),
    [
        (False, torch.float64),
        (False, torch.float32),
        (True, torch.float64),
        pytest.param(True, torch.float32, marks=pytest.mark.slow),  # computed in float64 too
    ],
    ids=str,
)
def test_singular_values_of_zero(which, dtype, large):
    """Also those that come with a null space of A and another of its transpose; and A = 0."""
    n = 290 if large else 9
    for m, values in ((n + 4, [3.0, 2.0]), (n, [2.0, 1.0, 0.5]), (n - 3, [1.0]), (n + 1, [0.0])):
        D = of_values(m, n, values).to(dtype)
        triplets = ls.svds(ls.CSR.from_dense(D), 4, which=which)
        check(D, triplets, which, 20 * torch.finfo(dtype).eps)
    ones = torch.ones(5, 6, dtype=dtype)
    check(ones, ls.svds(ls.CSR.from_dense(ones), 2, which=which), which, 20 * torch.finfo(dtype).eps)


@both
def test_tiny_singular_values(which):
    """Relative to the largest 1e-7 and less, whose squares are rounding errors of A^T A."""
    for n, tiny in ((20, [1e-7, 3e-8]), (20, [1e-7, 1e-11, 0.0]), (300, [1e-7])):
        values = torch.cat((torch.linspace(2, 1, n - len(tiny)), torch.tensor(tiny)))
        D = of_values(n + 5, n, values.double().tolist())
        check(D, ls.svds(ls.CSR.from_dense(D), 3, which=which), which, 1e-14)


@both
@pytest.mark.parametrize("values", [[2.0, 1.0, 0.5, 0.1, 0.0], [2.0, 1.5, 1.0, 1e-3, 1e-7]], ids=str)
def test_gradients_beside_a_zero(which, values):
    """Of values and vectors, for a simple value of zero of a square matrix too."""
    D, k = of_values(5, 5, values), 3
    P = ls.CSR.from_dense(torch.ones(5, 5)).pattern
    C, c = normal((5, k)), normal((k,), seed=3)
    some = slice(0, k) if which == "largest" else slice(5 - k, 5)

    def loss(U, S, V):
        return (S * c).sum() + ((U * (U * C).sum(0)) * C).sum() + ((V * (V * C).sum(0)).square() * C).sum()

    v, w = (D.flatten().requires_grad_() for _ in range(2))
    U, S, V, _ = ls.svds(ls.CSR(v, P), k, which=which)
    W, s, Xh = torch.linalg.svd(w.view(5, 5))
    (found,), (wanted,) = grad(loss(U, S, V), v), grad(loss(W[:, some], s[some], Xh.mT[:, some]), w)
    torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-7 * float(wanted.abs().max()))


def test_gradient_of_a_large_matrix_is_that_of_the_dense_one():
    D = of_values(300, 270, torch.cat((torch.linspace(3, 1, 267), torch.tensor([0.5, 0.2, 0.0]))).tolist())
    C = normal((570, 2))

    def loss(U, S, V):
        return (
            S.sum() + ((U * (U * C[:300]).sum(0)) * C[:300]).sum() + (V * (V * C[300:]).sum(0)).square().sum()
        )

    A = ls.CSR.from_dense(D).requires_grad_()
    U, S, V, pairs = ls.svds(A, 3, which="smallest")
    assert pairs.method.startswith("shift-invert")
    w = D.clone().requires_grad_()
    W, s, Xh = torch.linalg.svd(w, full_matrices=False)
    some = slice(267, 269)  # the left vector of zero is not determined
    (found,) = grad(loss(U[:, :2], S[:2], V[:, :2]), A.values)
    (wanted,) = grad(loss(W[:, some], s[some], Xh.mT[:, some]), w)
    torch.testing.assert_close(
        found, wanted[A.pattern.row_indices, A.pattern.col_indices], rtol=1e-6, atol=1e-7
    )


@both
@pytest.mark.parametrize("large", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_third_derivatives(which, large):
    """In which the mirror of a pair has a part."""
    m, n = (290, 270) if large else (6, 5)
    D = of_values(m, n, torch.linspace(1, 3, n, dtype=torch.float64).tolist())
    P, w = ls.CSR.from_dense(torch.ones(m, n)).pattern, normal((m, n), seed=5)

    def third(vectors):
        v = D.flatten().requires_grad_()
        U, V = vectors(v)
        g = ((w @ V) * U).sum()
        for seed in range(3):
            g = grad(g, v, create_graph=True)[0] @ normal((m * n,), seed=seed)
        return g.detach()

    def ours(v):
        U, _, V, _ = ls.svds(ls.CSR(v, P), 1, which=which)
        return U, V

    def dense(v):
        U, _, Vh = torch.linalg.svd(v.view(m, n), full_matrices=False)
        at = slice(0, 1) if which == "largest" else slice(n - 1, n)
        return U[:, at], Vh.mT[:, at]

    torch.testing.assert_close(third(ours), third(dense), rtol=1e-7, atol=0)


def test_an_undefined_derivative_warns():
    A = ls.CSR.from_dense(torch.ones(5, 6).double()).requires_grad_()
    U, S = ls.svds(A, 2)[:2]
    (g,) = grad(S.sum() + U[0, 0], A.values, retain_graph=True)
    assert g.isfinite().all()
    with pytest.warns(RuntimeWarning, match="undefined"):
        grad(U[1, 1], A.values)


@both
@pytest.mark.parametrize("n", [6, 300])
@pytest.mark.parametrize("method", ["auto", "arpack", "lobpcg"])
def test_eigenpairs_of_zero(which, n, method):
    for B in (None, ls.ops.diag(torch.arange(1.0, n + 1).double())):
        A = ls.ops.diag(torch.zeros(n, dtype=torch.float64)).requires_grad_()
        pairs = ls.eigsh(A, 3, B=B, which=which, method=method)
        assert pairs.converged
        assert (pairs.values == 0).all()
        U = pairs.vectors
        torch.testing.assert_close(U.mT @ (U if B is None else B @ U), torch.eye(3, dtype=U.dtype))
        (g,) = grad(pairs.values.sum(), A.values)
        torch.testing.assert_close(g, U.square().sum(1))
    assert (ls.eigsh(ls.ops.zeros(n, n, dtype=torch.float64), 2, which=which).values == 0).all()
