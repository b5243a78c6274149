"""SciPy operators with complex numbers are refused; their imaginary part is not dropped."""

import numpy as np
import pytest
import scipy.sparse.linalg as sl
import torch

import learnsolve as ls

S = ls.solvers
A = ls.problems.poisson((10, 10))
b = torch.ones(100, dtype=torch.float64)
C = sl.aslinearoperator(A.to_scipy() * (1 + 1j))
# One that says it is real, and is not.
SLY = sl.LinearOperator(
    (100, 100), matvec=lambda x: (1 + 1j) * x, rmatvec=lambda x: (1 - 1j) * x, dtype=float
)
NAMES = ("cg", "fcg", "minres", "bicgstab", "gmres", "fgmres")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("operator", [C, SLY], ids=["complex", "result"])
def test_as_matrix_or_preconditioner(name, operator):
    solve = getattr(S, name)
    with pytest.raises(
        TypeError, match=f"{name}: .*LinearOperator A must be real, got complex128; solve the real"
    ):
        solve(operator, b)
    with pytest.raises(TypeError, match=f"{name}: .*LinearOperator M must be real, got complex128; "):
        solve(A, b, M=operator)


@pytest.mark.parametrize("operator", [C, SLY], ids=["complex", "result"])
def test_elsewhere(operator):
    with pytest.raises(TypeError, match=r"lsqr: .*A must be real, got complex128"):
        S.lsqr(operator, b)
    with pytest.raises(TypeError, match=r"richardson: .*A must be real"):
        S.richardson(operator, b, weight=0.1, iterations=2)
    with pytest.raises(TypeError, match="adjoint_M must be real"):
        S.gmres(A, b.clone().requires_grad_(), adjoint_M=operator).x.sum().backward()
    with pytest.raises(TypeError, match="must be real, got complex128"):
        ls.analysis.spectral_radius(operator)
    with pytest.raises(TypeError, match="must be real, got complex128"):
        ls.analysis.condition_number(A, operator)


def test_real_ones_and_batches():
    R = sl.aslinearoperator(A.to_scipy())
    B = torch.stack((b, 2 * b)).unsqueeze(-1).requires_grad_()
    x = S.cg(R, B, rtol=1e-10).x
    assert torch.allclose(x[1], 2 * x[0])
    x.sum().backward()
    assert B.grad is not None
    integers = sl.aslinearoperator(A.to_scipy().astype(np.int64))
    assert torch.equal(S.cg(integers, b).x, S.cg(R, b).x)
    with pytest.raises(ValueError, match=r"cg: a LinearOperator A cannot be applied to an empty batch"):
        S.cg(R, B[:0], B[:0])
