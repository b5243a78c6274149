"""Matrices that are nearly singular are not taken for singular, and singular ones are: `ls.solve`."""

import warnings

import pytest
import torch
from reference import normal
from solvers.cases import laplacian

import learnsolve as ls
from learnsolve.solvers import ConvergenceWarning, SolverError, Status
from learnsolve.solvers.core import problem

REAL = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def solved(A, b, loss):
    """The solution, and the gradient of the loss for b, without the warning that A is nearly singular."""
    b = b.clone().requires_grad_()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*nearly singular")
        solution = ls.solve(A, b)
        return solution, torch.autograd.grad(loss(solution.x), b)[0]


def random_laplacian(dtype, n=40):
    """With rounding errors in its sums."""
    edges = torch.stack((torch.arange(n).repeat(3), torch.randint(n, (3 * n,))))
    edges = edges[:, edges[0] != edges[1]]
    weights = torch.rand(edges.shape[1], dtype=dtype) ** 3
    return ls.problems.graph_laplacian(edges, weights, n=n, both_directions=False)


@REAL
@pytest.mark.parametrize("roundings", [1, 2, 4, 32, 1024])
@pytest.mark.parametrize("scale", [1.0, 2.0**-90, 2.0**90])
def test_a_shift_of_a_few_roundings_is_no_null_space(dtype, roundings, scale):
    c = roundings * torch.finfo(dtype).eps
    A = ls.CSR.from_dense(scale * torch.tensor([[1 + c, -1], [-1, 1 + c]], dtype=dtype))
    b = scale * torch.tensor([1.0, -1.0], dtype=dtype)
    solution, gradient = solved(A, b, torch.sum)
    rounding = {"rtol": 1e-3 if dtype == torch.float32 else 1e-6, "atol": 0}
    torch.testing.assert_close(solution.x.detach(), b / (scale * (2 + c)), **rounding)
    torch.testing.assert_close(gradient * (c * scale), torch.ones(2, dtype=dtype), **rounding)
    if roundings > 1:  # so that rounding of x leaves a residual below the tolerance
        solution, _ = solved(A, scale * torch.full((2,), c, dtype=dtype), torch.sum)
        assert solution.converged or roundings == 1024
        torch.testing.assert_close(solution.x.detach(), torch.ones(2, dtype=dtype), **rounding)


@REAL
def test_a_boundary_value_problem_with_neumann_ends(dtype):
    """-u'' + u = f: the mean of u is that of f."""
    n = 300
    L = ls.problems.poisson((n,)).to_dense()
    L[0, 0] = L[-1, -1] = 1
    A = ls.CSR.from_dense((L * n * n + torch.eye(n, dtype=torch.float64)).to(dtype))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # float32 does not reach the tolerance
        solution, gradient = solved(A, torch.ones(n, dtype=dtype), lambda x: x.mean())
    torch.testing.assert_close(solution.x.detach(), torch.ones(n, dtype=dtype), rtol=2e-3, atol=0)
    torch.testing.assert_close(gradient, torch.full((n,), 1 / n, dtype=dtype), rtol=2e-3, atol=0)


@REAL
def test_what_is_detected(dtype):
    torch.manual_seed(0)
    eps = torch.finfo(dtype).eps
    ring = ls.problems.poisson((12,), boundary="periodic", dtype=dtype)
    assert problem.detected(ring).exactly
    assert problem.detected(laplacian(torch.ones(5, dtype=dtype))).exactly
    for A in (random_laplacian(dtype), random_laplacian(dtype, 400)):
        assert problem.detected(A) == "constants"
        assert not problem.detected(A).exactly
        for scale in (torch.finfo(dtype).max / 1e6, torch.finfo(dtype).tiny * 1e10):
            assert problem.detected(A * scale) == "constants"
        assert problem.detected(ls.CSR.stack([A, 2 * A])) == "constants"
        assert (
            problem.detected(A + 64 * eps * float(A.values.max()) * ls.ops.eye(A.shape[0], dtype=dtype))
            is None
        )
    for shift in (eps, 2 * eps, 3 * eps, 1e-3):
        shifted = ring + 2 * shift * ls.ops.eye(12, dtype=dtype)
        assert problem.detected(shifted) is None
        assert problem.detected(ls.CSR.stack([ring + 0 * shifted, shifted])) is None
        assert (
            problem.detected(ls.ops.block_diag([ring, shifted])) is None
        )  # one part of the graph is regular
    assert problem.detected(ls.ops.scale_columns(ring, torch.arange(1, 13).to(dtype))) is None
    assert problem.detected(ring * torch.nan) is None
    zero = ls.CSR.from_dense(torch.zeros(3, 3, dtype=dtype))
    assert problem.detected(zero).exactly


@REAL
def test_a_null_space_up_to_rounding_is_judged_in_the_gradient(dtype):
    """A may be regular, and then the gradient along constants is huge."""
    torch.manual_seed(1)
    A, b = random_laplacian(dtype), normal((40,), dtype)
    b -= b.mean()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solution, gradient = solved(A, b, lambda x: x[0] - x[1])
        given = ls.solve(A, b.requires_grad_(), null_space="constants")
        torch.autograd.grad(given.x[0], b)
    assert solution.converged
    assert solution.note.startswith('null_space="constants", as the rows of A sum to zero up to rounding')
    with pytest.warns(ConvergenceWarning, match="adjoint solve of the backward.*INCONSISTENT"):
        solution, gradient = solved(A, b.detach(), lambda x: x[0])
    assert solution.adjoint.status is Status.INCONSISTENT
    assert 'null_space="constants" asks for that' in solution.adjoint.note
    assert gradient.isfinite().all()
    with pytest.raises(SolverError, match="adjoint solve"):
        ls.solve(A, b, throw=True).x[0].backward()
    with pytest.warns(ConvergenceWarning, match="solve for the tangent.*INCONSISTENT"):
        torch.func.jvp(lambda b: ls.solve(A, b).x, (b.detach(),), (torch.ones_like(b),))
    ring = ls.problems.poisson((40,), boundary="periodic", dtype=dtype)  # of an exact one A^+ is meant
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solution, gradient = solved(ring, b.detach(), lambda x: x[0])
    torch.testing.assert_close(gradient, torch.linalg.pinv(ring.to_dense())[0], rtol=1e-3, atol=1e-3)


@REAL
@pytest.mark.parametrize("exponent", [-200, -160, -100, 100, 200])
def test_a_wrong_null_space_is_refused_at_any_scale(dtype, exponent):
    scale = 10.0 ** (exponent if dtype == torch.float64 else exponent / 6)
    A, b = ls.problems.poisson((5,), dtype=dtype) * scale, torch.ones(5, dtype=dtype)
    ring = ls.problems.poisson((5,), boundary="periodic", dtype=dtype) * scale
    for name in ("cg", "minres", "gmres", "bicgstab"):
        solve = getattr(ls.solvers, name)
        with pytest.raises(ValueError, match=f"{name}: null_space is not in the null space of A"):
            solve(A, b, null_space="constants")
        turned = {} if name in ("cg", "minres") else {"transpose": lambda x: A @ x}
        with pytest.raises(ValueError, match=f"{name}: null_space is not in the null space of A"):
            solve(lambda x: A @ x, b, null_space="constants", **turned)
        assert solve(ring, (b - b.mean()) * scale, null_space="constants").converged
