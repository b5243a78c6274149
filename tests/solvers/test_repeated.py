"""gradient="checkpointed": the backward repeats the iterations, and notices where it would repeat others.
All methods and operands: tests/stress/inplace.py."""

import pytest
import torch
from reference import normal
from solvers.cases import quiet

import learnsolve as ls

pytestmark = quiet
S = ls.solvers
F64 = torch.float64
KRYLOV = {
    name: {"maxiter": 5, "rtol": 0.0} for name in ("cg", "fcg", "minres", "bicgstab", "gmres", "fgmres")
}
FIXED = {
    "jacobi": {"weight": 0.6},
    "richardson": {"weight": 0.3},
    "heavyball": {"alpha": 0.3, "beta": 0.1},
    "chebyshev": {"lmin": 0.5, "lmax": 4.0},
    "gauss_seidel": {},
    "sor": {"omega": 1.2},
    "ssor": {"omega": 1.2},
}
METHODS = {
    **KRYLOV,
    **{name: {"iterations": 5, **parameters} for name, parameters in FIXED.items()},
    **{
        f"{name}, to a tolerance": {"maxiter": 5, **parameters}
        for name, parameters in FIXED.items()
        if name not in ("jacobi", "sor", "ssor")
    },
    "lsqr": {"maxiter": 5},
    "lsmr": {"maxiter": 5},
}
WITH_M = [name for name in METHODS if name[:3] not in ("jac", "gau", "sor", "sso", "lsq", "lsm")]


class Operands:
    """A, b and x0, which can be changed."""

    def __init__(self):
        pattern = ls.problems.poisson((12,)).pattern
        self.values = ls.problems.poisson((12,)).values.clone().requires_grad_()
        self.A = ls.CSR(self.values, pattern)
        self.b, self.x0 = normal((12,)).requires_grad_(), normal((12,), seed=1)

    def solve(self, name, gradient, **changed):
        method = getattr(S, name.partition(",")[0])
        start = (self.x0,) if "ls" not in name[:2] else ()
        return method(self.A, self.b, *start, gradient=gradient, **METHODS[name] | changed)

    def gradient(self, loss):
        return torch.autograd.grad(loss, (self.values, self.b), allow_unused=True)


def loss_of(solution):
    return solution.x.square().sum() + solution.residual_norms.sum()


@pytest.mark.parametrize("name", ["fcg", "bicgstab", "gmres", "minres"])
def test_a_change_is_noticed_where_the_iterates_do_not_reach(name):
    """Of a second block, where b is zero: the gradient for b reads it all the same."""
    A = ls.ops.block_diag([ls.problems.poisson((6,))] * 2)
    A = A.with_values(A.values.clone().requires_grad_())
    b = torch.cat((normal((6,)), torch.zeros(6, dtype=F64))).requires_grad_()
    solution = getattr(S, name)(A, b, gradient="checkpointed", maxiter=3)
    with torch.no_grad():
        A.values[-1] += 1
    with pytest.raises(RuntimeError, match=f'{name}: gradient="checkpointed" repeats'):
        solution.x.sum().backward()


@pytest.mark.parametrize("name", ["richardson", "richardson, to a tolerance", "heavyball, to a tolerance"])
def test_a_change_is_noticed_that_is_too_small_for_the_norms(name):
    """Autograd does not save b, which a step only adds."""
    operands = Operands()
    loss = operands.solve(name, "checkpointed").x.square().sum()
    with torch.no_grad():
        operands.b[0] += 1e-12
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        operands.gradient(loss)


def test_a_fused_step_before_the_backward_is_noticed():
    operands = Operands()
    optimizer = torch.optim.SGD([operands.values], lr=0.1, fused=True)
    solution = operands.solve("gmres", "checkpointed")
    operands.values.grad = torch.ones_like(operands.values)
    optimizer.step()
    with pytest.raises(RuntimeError, match=r'gmres: gradient="checkpointed" repeats'):
        operands.gradient(loss_of(solution))


@pytest.mark.parametrize("kind", ["fails later", "noise"])
@pytest.mark.parametrize(
    "name", ["fcg", "bicgstab", "gmres", "fgmres", "richardson", "richardson, to a tolerance"]
)
def test_an_M_that_is_no_function_is_an_error_of_ours(name, kind):
    """Not torch's, of a number of saved tensors, and no gradient of other iterations."""
    calls = 0

    def M(r):
        nonlocal calls
        calls += 1
        if kind == "noise":
            return r * torch.linspace(0.2, 0.4, 12, dtype=F64).pow(1 / calls).view(-1, *[1] * (r.dim() - 1))
        return r * (float("nan") if calls > 3 else 0.4)

    operands = Operands()
    solution = operands.solve(name, "checkpointed", M=M)
    if kind == "fails later":
        assert solution.status is S.Status.NON_FINITE
    with pytest.raises(RuntimeError, match="does not give the same when it is called again"):
        operands.gradient(loss_of(solution))


@pytest.mark.parametrize("name", METHODS)
def test_a_solve_that_ends_without_finite_numbers_has_the_gradient_of_unrolled(name):
    actual = {}
    for gradient in ("unrolled", "checkpointed"):
        operands = Operands()
        with torch.no_grad():
            operands.values[7] = 1e200
            operands.b[3] = 1e150
        # The numbers of M depend on r alone: they are not finite from some iteration on.
        M = lambda r: r / (r.abs().amax(-1 if r.dim() == 1 else -2, keepdim=True) > 1.0)  # noqa: E731
        solution = operands.solve(name, gradient, **({"M": M} if name in WITH_M and name != "cg" else {}))
        actual[gradient] = solution.status, operands.gradient(loss_of(solution))
    (status, g), (other, h) = actual.values()
    assert status is other
    for a, b in zip(g, h, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)
