"""tr(X^T A X) and 1 / diag(A) beyond the table: a promise of symmetry, what is kept, errors."""

import copy

import numpy as np
import pytest
import torch
from reference import (
    densify,
    normal,
    pattern_of,
    random,
)
from scipy.sparse import csr_array

import learnsolve as ls

F64 = torch.float64
form, inverse_diagonal = ls.ops.quadratic_form, ls.ops.inverse_diagonal
P = pattern_of(random(5, 5, 0.5))


@pytest.mark.parametrize("columns", [(), (3,)], ids=str)
def test_symmetric(columns):
    """The same value and gradients of a symmetric A. If A breaks the promise the gradient is 2 g A x, where
    it should be g (A + A^T) x: the keyword is used."""
    A = ls.problems.poisson((4, 3))
    for which in ((0, 1), (1,), (0,)):
        results = []
        for symmetric in (False, True):
            a, y = (
                t.clone().requires_grad_(i in which) for i, t in enumerate((A.values, normal((12, *columns))))
            )
            q = form(A.with_values(a), y, symmetric=symmetric)
            results.append((q, *torch.autograd.grad(q, [(a, y)[i] for i in which])))
        torch.testing.assert_close(*results, rtol=1e-14, atol=1e-14)
    v, x = normal((P.nnz,)), normal((5, *columns), seed=1).requires_grad_()
    found, general = (
        torch.autograd.grad(3 * form(ls.CSR(v, P), x, symmetric=symmetric), x)[0]
        for symmetric in (True, False)
    )
    torch.testing.assert_close(found, 6 * (densify(P, v) @ x.detach()), rtol=1e-13, atol=1e-13)
    assert not torch.allclose(found, general)


def test_symmetric_second_derivatives_are_those_of_the_general_form():
    A = ls.problems.poisson((5,))
    h = torch.arange(5.0, dtype=F64)

    def mixed(symmetric):
        v = A.values.clone().requires_grad_()
        x = torch.linspace(1, 2, 5, dtype=F64, requires_grad=True)
        q = form(A.with_values(v), x, symmetric=symmetric)
        (gx,) = torch.autograd.grad(q, x, create_graph=True)
        return torch.autograd.grad(gx @ h, (v, x))

    torch.testing.assert_close(mixed(True), mixed(False), rtol=1e-14, atol=1e-14)


A, X = ls.CSR(normal((P.nnz,)), P), normal((5, 2))


@pytest.mark.cpu_only
@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ((A.to_dense(), X), TypeError, "A must be a CSR, got Tensor; make one with CSR"),
        ((A.to(torch.int64), X.long()), TypeError, "A.values must be float32 or float64"),
        ((A[:2], X), ValueError, r"A must be square, got shape \(2, 5\)"),
        ((A, [1.0] * 5), TypeError, "x must be a torch.Tensor, got list"),
        ((A, X.float()), TypeError, "x has dtype torch.float32, the matrix torch.float64"),
        ((A, X.to("meta")), TypeError, "x is on meta, the matrix on cpu"),
        ((A, X[:4]), ValueError, r"x must have A.shape\[0\] = 5 rows, got shape \(4, 2\)"),
        ((A, X[0, 0]), ValueError, r"x must have A.shape\[0\] = 5 rows, got shape \(\)"),
        (
            (ls.CSR.stack([A, A]), X.expand(3, 5, 2)),
            ValueError,
            r"batch axes .* broadcast, got \(2,\) and \(3,\)",
        ),
    ],
)
def test_errors(arguments, kind, message):
    with pytest.raises(kind, match=f"^quadratic_form: .*{message}"):
        form(*arguments)


# --- the inverse diagonal, and that what is kept of it is never stale ---

D = pattern_of(csr_array(np.array([[1, 0, 1, 0], [1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 0, 1]])))


def values(*batch, dtype=F64):
    return normal((*batch, D.nnz), dtype).abs() + 0.5


def test_what_is_kept_follows_the_values():
    A = ls.CSR(values(), D)
    first = inverse_diagonal(A)
    kept = first.clone()
    assert torch.equal(first, torch.diagonal(densify(D, A.values)).reciprocal())
    first.zero_()  # it is the caller's: what is kept must not follow
    assert torch.equal(inverse_diagonal(A), kept)
    A.values.mul_(2)
    assert torch.equal(inverse_diagonal(A), kept / 2)
    assert torch.equal(inverse_diagonal(A.with_values(A.values * 2)), kept / 4)
    A.values.mul_(2)
    for twin in (copy.deepcopy(A), torch.utils._pytree.tree_map(lambda t: t, A)):  # have nothing kept
        assert torch.equal(inverse_diagonal(twin), kept / 4)
    A.requires_grad_()
    assert inverse_diagonal(A).requires_grad


def test_kept_in_inference_mode_and_learned_after():
    A = ls.problems.poisson((4,))
    with torch.inference_mode():
        ls.solvers.jacobi(A, torch.ones(4, dtype=F64))
        B = ls.CSR(values(), D)
        assert torch.equal(inverse_diagonal(B), inverse_diagonal(B))
    w = torch.ones(4, dtype=F64, requires_grad=True)
    ls.solvers.jacobi(A, torch.ones(4, dtype=F64), weight=w).x.sum().backward()
    assert torch.equal(w.grad, torch.full_like(w, 0.5))


@pytest.mark.cpu_only
def test_errors_of_the_diagonal():
    with pytest.raises(ValueError, match=r"inverse_diagonal: A must be square, got shape \(1, 2\)"):
        inverse_diagonal(ls.CSR.from_dense(torch.ones(1, 2)))
    with pytest.raises(ValueError, match=r"inverse_diagonal: .* row 1 has none"):
        inverse_diagonal(ls.CSR.from_dense(torch.tensor([[1.0, 1.0], [1.0, 0.0]])))
    v = values(2)
    v[1, int(D.diagonal_positions[2])] = 0
    for learns in (False, True):
        with pytest.raises(ValueError, match=r"inverse_diagonal: .* row 2 has one"):
            inverse_diagonal(ls.CSR(v.clone().requires_grad_(learns), D))
    with pytest.raises(ValueError, match="row 2 has one"):
        torch.func.grad(lambda v: inverse_diagonal(ls.CSR(v, D)).sum())(v[1])
