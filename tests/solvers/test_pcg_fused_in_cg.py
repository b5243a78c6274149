"""`cg` takes the compiled loop for a fixed number of iterations, and gives what the general loop gives."""

import pytest
import torch
from reference import normal
from solvers.dense_pcg import System, system
from solvers.paths import compiled, eager
from solvers.test_pcg_fused import close

import learnsolve as ls
from learnsolve import _device_analysis
from learnsolve.ops.pcg import KINDS
from learnsolve.solvers.core import advance_cg
from learnsolve.solvers.solution import SolverError, Status

# Solves that cannot converge, or are stopped before, are part of what is tested.
pytestmark = pytest.mark.filterwarnings("ignore::learnsolve.solvers.ConvergenceWarning")

N = 6


class Preconditioner:
    def __init__(self, s: System):
        self.s = s

    def pcg_form(self):
        return self.s.kind, self.s.m, self.s.factor

    def __call__(self, r):
        s = self.s
        if s.kind == "diagonal":
            return s.m * r if r.dim() == 1 else s.m[:, None] * r
        assert s.factor is not None
        L = ls.CSR(s.m, s.factor)
        if s.kind == "product":
            return L @ ls.ops.spmm(L, r, transpose=True)
        return ls.ops.sptrsv(L, ls.ops.sptrsv(L, r), transpose=True)


def run(s, gradient="unrolled", iterations=N):
    s = s.leaves()
    M = None if s.kind == "none" else Preconditioner(s)
    A, options = ls.CSR(s.values, s.P), {"rtol": 0.0, "maxiter": iterations, "M": M, "gradient": gradient}
    solution = ls.solvers.cg(A, s.b, s.x0, **options)
    x, norms = solution.x, solution.residual_norms
    loss = (x * normal(x.shape, seed=8)).sum() + (norms * normal(norms.shape, seed=9)).sum()
    return solution, [x, norms, *torch.autograd.grad(loss, s.inputs)]


@pytest.mark.parametrize("gradient", ["unrolled", "checkpointed"])
@pytest.mark.parametrize("shape", ["vector", "columns", "batch of b", "batch of values"])
@pytest.mark.parametrize("kind", KINDS)
def test_as_the_general_loop(kind, shape, gradient, monkeypatch):
    for start in (True, False):
        s = system(kind, shape, start=start)
        with eager():
            wanted, numbers = run(s, gradient)
        with compiled():
            found, others = run(s, gradient)
        assert found.statuses == wanted.statuses
        assert found.iterations == wanted.iterations == N
        close(others, numbers, 1e-10)


def test_statuses():
    s = system("none", "columns")
    values = s.values.clone()
    values[s.P.diagonal_positions[0].long()] = -20
    b = normal(s.b.shape, seed=3)
    b[:, 0] = 0
    b[:, 1] = 0
    b[0, 1] = 1
    A = ls.CSR(values, s.P)
    options = {"rtol": 0.0, "maxiter": 2, "gradient": "unrolled"}
    solution = ls.solvers.cg(A, b, torch.ones_like(b), **options)
    assert solution.statuses[0] == Status.CONVERGED
    assert (solution.x[:, 0] == 0).all()
    solution = ls.solvers.cg(A, b, **options)
    assert solution.statuses[:2] == [Status.CONVERGED, Status.INDEFINITE]
    with pytest.raises(SolverError, match="INDEFINITE"):
        ls.solvers.cg(A, b, throw=True, **options)
    alone = ls.solvers.cg(A, b[:, 1], **options)
    # On a CUDA device nothing waits for the number of iterations that ran.
    rest = 2 if _device_analysis.everywhere else 0
    assert alone.iterations == rest
    assert alone.residual_norms.tolist() == [1] * (1 + rest)
    assert alone.status == Status.INDEFINITE


@pytest.mark.parametrize(
    "change",
    [{"rtol": 1e-3}, {"atol": 1e-3}, {"callback": lambda _: None}, {"gradient": "implicit"}, {"M": abs}],
)
def test_other_options_do_not_run_a_fixed_number(change, monkeypatch):
    s = system("none")
    fixed, real = [], advance_cg.pcg_iterations
    monkeypatch.setattr(advance_cg, "pcg_iterations", lambda *a, **k: fixed.append(a) or real(*a, **k))
    options = {"rtol": 0.0, "maxiter": 2, "gradient": "unrolled"}
    ls.solvers.cg(ls.CSR(s.values, s.P), s.b, **options)
    assert len(fixed) == 1
    ls.solvers.cg(ls.CSR(s.values, s.P), s.b, **options | change)
    assert len(fixed) == 1


def test_errors_are_those_of_cg():
    s = system("none")
    A, options = ls.CSR(s.values, s.P), {"rtol": 0.0, "maxiter": 2, "gradient": "unrolled"}
    with pytest.raises(ValueError, match=r"cg: .*rows"):
        ls.solvers.cg(A, s.b[:-1], **options)
    with pytest.raises(ValueError, match="cg: x0 must"):
        ls.solvers.cg(A, s.b, s.b[:-1], **options)
    with pytest.raises(TypeError, match="cg: b has dtype"):
        ls.solvers.cg(A, s.b.float(), **options)


@pytest.mark.parametrize("shape", [(5, 0), (3, 5, 0), (0, 5, 2), (0, 5, 1)])
def test_no_columns_and_no_systems(shape):
    A = ls.problems.poisson(5)
    M = ls.preconditioners.Trainable(ls.preconditioners.Factored.bidiagonal(5))
    b = torch.zeros(shape, dtype=A.dtype)
    for x0 in (None, b):
        solution = ls.solvers.cg(A, b, x0, rtol=0.0, maxiter=3, M=M, gradient="unrolled")
        assert solution.x.shape == shape
        assert solution.converged
        (gradient,) = torch.autograd.grad(solution.residual_norms.sum() + solution.x.sum(), M.L.values)
        assert float(gradient.abs().max()) == 0
