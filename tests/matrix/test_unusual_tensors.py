"""Values whose negation or conjugation is pending, and values that were swapped for others."""

import numpy as np
import pytest
import torch

import learnsolve as ls

P = ls.preconditioners
A = ls.problems.poisson((6, 6))
b = torch.linspace(-1, 1, 36, dtype=torch.float64)


def negated(t):
    """t, as the negative of a tensor of other numbers: of a kind that NumPy does not take."""
    t = torch._neg_view(-t)
    assert t.is_neg()
    return t


def conjugated(t):
    return t.conj().resolve_conj().conj()


@pytest.mark.parametrize(
    "call",
    [
        lambda A, b: P.ICT(A)(b),
        lambda A, b: P.ILUT(A)(b),
        lambda A, b: torch.from_numpy(A.toarray() @ np.ones(36)),
        lambda A, b: torch.from_numpy(A.to_scipy() @ np.ones(36)),
        lambda A, b: ls.solvers.cg(A.to_scipy_linear_operator(), b).x,
        lambda A, b: torch.stack(ls.analysis.extreme_eigenvalues(A)[:2]),
        lambda A, b: ls.eigsh(A, 2).values,
        lambda A, b: ls.solve(A, b).x,
        lambda A, b: ls.problems.TriangleMesh.delaunay(b.reshape(18, 2) ** 3).points,
    ],
)
def test_a_pending_negation(call):
    torch.testing.assert_close(call(A.with_values(negated(A.values)), negated(b)), call(A, b))


def test_complex_values_with_a_pending_conjugation():
    C = A.with_values(torch.complex(A.values, torch.linspace(-0.1, 0.1, A.nnz, dtype=torch.float64)))
    D, c = C.with_values(conjugated(C.values)), conjugated(torch.complex(b, b.flip(0)))
    assert D.values.is_conj()
    assert abs(D.to_scipy() - C.to_scipy()).max() == 0
    assert np.array_equal(D.toarray(), C.toarray())
    for call in (
        lambda A, c: ls.solve(A, c).x,
        lambda A, c: ls.ops.spsolve(A, c),
        lambda A, c: A @ c,
        lambda A, c: ls.solvers.gmres(A, c, M=P.ILU0(A)).x,
        lambda A, c: ls.factorize(A).solve(c),
    ):
        torch.testing.assert_close(call(D, c), call(C, c.resolve_conj()))


@pytest.mark.parametrize("length", [5, 500])
def test_swapped_values_of_another_size_are_refused(length):
    """`torch.utils.swap_tensors` exchanges a tensor behind the back of the matrix that holds it."""
    for name, call in (
        ("spmm", lambda B: B @ b),
        ("diagonal", lambda B: B.diagonal()),
        ("Jacobi", P.Jacobi),
        ("cg", lambda B: ls.solvers.cg(B, b)),
        ("solve", lambda B: ls.solve(B, b)),
        ("spsolve", lambda B: ls.ops.spsolve(B, b)),
        ("transpose", lambda B: B.T),
    ):
        values = A.values.clone()
        B = A.with_values(values)
        call(B)
        torch.utils.swap_tensors(values, 2 * A.values)
        torch.testing.assert_close(ls.solve(B, b).x, ls.solve(A, b).x / 2)
        torch.utils.swap_tensors(values, torch.ones(length, dtype=torch.float64))
        with pytest.raises(ValueError, match=rf"^{name}: A.values has now shape \({length},\)"):
            call(B)
