"""A method of a user, by what docs/extending.md describes, whose step multiplies with the transposes of A and
M: all features and gradients."""

from typing import NamedTuple

import pytest
import scipy.sparse.linalg
import torch
from reference import normal
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls
from learnsolve.ops.products import multiply_columns
from learnsolve.solvers.core.entry import solve
from learnsolve.solvers.core.loop import Method
from learnsolve.solvers.core.operators import divide, dot
from learnsolve.solvers.options import SolverOptions, read_options, solver
from learnsolve.solvers.solution import CODE, COMPILED, EAGER, Status

P = ls.preconditioners
F64 = torch.float64
N = 12


class State(NamedTuple):
    x: Tensor
    r: Tensor
    s: Tensor  # the residual of the transposed system
    p: Tensor
    q: Tensor
    rho: Tensor  # <s, M r>


class BiconjugateGradients(Method):
    """Saad, "Iterative Methods for Sparse Linear Systems" (2003), algorithm 7.3, with M."""

    state, state_vectors = State, 5

    def products(self, iterations):
        return 2 * iterations

    def start(self, A, M, x, r, running):
        z, w = (r, r) if M is None else (M(r), M.T(r))
        return State(x, r, r, z, w, dot(r, z))

    def step(self, A, M, b, state, running):
        x, r, s, p, q, rho = state
        Ap, Aq = A(p), A.T(q)
        curvature = dot(q, Ap)
        wrong = (curvature == 0) | (rho == 0)
        alpha = divide(rho, curvature, running & ~wrong)
        x, r, s = (
            x + multiply_columns(alpha, p),
            r - multiply_columns(alpha, Ap),
            s - multiply_columns(alpha, Aq),
        )
        z, w = (r, s) if M is None else (M(r), M.T(s))
        rho_old, rho = rho, dot(s, z)
        beta = divide(rho, rho_old, running & ~wrong)
        state = State(x, r, s, z + multiply_columns(beta, p), w + multiply_columns(beta, q), rho)
        return state, torch.where(wrong, CODE[Status.BREAKDOWN], 0)


@solver(SolverOptions)
def bicg(A, b, x0=None, **options):
    """Biconjugate gradients.

    Parameters
    ----------
    options : shared keywords
    """
    return solve("bicg", BiconjugateGradients(), A, b, x0, read_options("bicg", options))


def matrix(scale: float = 1.0) -> ls.CSR:
    return ls.CSR.from_dense(scale * (torch.diag(torch.linspace(2, 4, N, dtype=F64)) + 0.3 * normal((N, N))))


def as_function(A: ls.CSR):
    made = P.ILU(A)

    def M(r):
        return made(r)

    M.T = lambda r: made.T(r)
    return M


class Convolution(ls.LinearOperator):
    def mv(self, x, w):
        return w.unsqueeze(-1) * x + 0.1 * x.flip(-2)


PRECONDITIONERS = {
    "none": lambda A: None,
    "ILU": P.ILU,
    "Jacobi": P.Jacobi,  # symmetric: its own transpose
    "CSR": lambda A: ls.CSR.from_dense(torch.linalg.inv(A.to_dense()) + 0.01 * normal((N, N))),
    "LinearOperator": lambda A: Convolution((N, N), 1 / A.diagonal()),
    "of SciPy": lambda A: scipy.sparse.linalg.aslinearoperator(torch.linalg.inv(A.to_dense()).numpy()),
    "a function": as_function,
}


@pytest.mark.parametrize("name", PRECONDITIONERS)
@pytest.mark.parametrize("scale", [1.0, 1e-60], ids=["", "in units"])
def test_a_step_with_the_transpose_of_M(name, scale):
    A = matrix(scale)
    M, C, B = PRECONDITIONERS[name](A), A.values.clone().requires_grad_(), normal((N, 2))
    for b in (B, B[:, 0]):
        right = b.clone().requires_grad_()
        solution = bicg(A.with_values(C), right, M=M, rtol=1e-12)
        assert solution.converged
        assert solution.products == 2 * solution.iterations
        known = name == "none" or (name in ("ILU", "Jacobi") and scale == 1)  # in units M is a function
        assert solution.backend == (COMPILED if known else EAGER)
        D = A.with_values(C).to_dense()
        expected_x = torch.linalg.solve(D / scale, right) / scale
        torch.testing.assert_close(solution.x, expected_x)
        found, expected = (torch.autograd.grad(x.sum(), (C, right)) for x in (solution.x, expected_x))
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("gradient", ["implicit", "unrolled"])
def test_derivatives(gradient):
    A, M = matrix(), P.ILU(matrix())
    more = {"rtol": 1e-13} if gradient == "implicit" else {"iterations": 3}

    def solution(values, b):
        return bicg(A.with_values(values), b, M=M, gradient=gradient, **more).x

    inputs = (A.values.clone().requires_grad_(), normal((N,)).requires_grad_())
    assert gradcheck(solution, inputs, check_forward_ad=gradient == "implicit")
    assert gradgradcheck(solution, (inputs[0].detach(), inputs[1]), atol=1e-4)


def test_blocks():
    A = ls.BlockBatch([matrix(), ls.problems.poisson((5,))])
    b = normal((N + 5,))
    for M in (P.ILU(A.matrix), [P.ILU(one) for one in A.split(A.matrix)]):
        found = bicg(A, b, M=M, rtol=1e-12)
        torch.testing.assert_close(found.x, torch.linalg.solve(A.matrix.to_dense(), b))


def test_an_M_without_transpose_is_refused():
    A, b = matrix(), normal((N,))
    with (
        torch.no_grad(),
        pytest.raises(ValueError, match="bicg: needs the transpose of M, which func"),
    ):
        bicg(A, b, M=lambda r: r)
    with torch.no_grad(), pytest.raises(ValueError, match="bicg: needs the transpose of A"):
        bicg(lambda x: 2 * x, b)
