"""The loop of a solve. gradient="checkpointed": the backward repeats the iterations, and notices where it
would repeat others (all methods and operands: tests/stress/inputs.py); memory of the modes: O(1) for the
implicit gradient, O(N) unrolled, O(sqrt N) checkpointed. Compiled code that advances a solve, and the loop
that decides. A device that is checked from time to time, simulated, compared with the CPU."""

import math
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from preconditioners.cases import spd
from pretend_device import DEVICE, PretendDevice, waits
from reference import grid, normal, pattern_of, peak
from solvers.cases import (
    MODES,
    RECTANGULAR,
    SQUARE,
    STATIONARY,
    SYMMETRIC,
    S,
    agree,
    close,
    convection,
    dense_solution,
    eager,
    matrix,
    poisson,
    quiet,
    run,
)
from solvers.stationary_cases import values_on

import learnsolve as ls
from learnsolve.matrix.cache import budget
from learnsolve.ops import sweeps
from learnsolve.ops.pcg import STOP, Iterations
from learnsolve.solvers.core import advance
from learnsolve.solvers.core.advance import ResidualNorm, Schedule
from learnsolve.solvers.core.loop import Method, iterate
from learnsolve.solvers.core.operators import Function, Matrix, System
from learnsolve.solvers.core.stationary import State
from learnsolve.solvers.options import KRYLOV, check_every
from learnsolve.solvers.solution import CODE, COMPILED, EAGER, PYTHON_M

pytestmark = quiet
F64 = torch.float64
REPEATED = {name: {"maxiter": 5, "tol": 0.0} for name in SQUARE}
REPEATED |= {name: {"iterations": 5} for name in STATIONARY}
TO_A_TOLERANCE = ("richardson", "heavyball", "chebyshev", "gauss_seidel")
REPEATED |= {f"{name}, to a tolerance": {"maxiter": 5, "tol": None} for name in TO_A_TOLERANCE}
REPEATED |= {name: {"maxiter": 5, "tol": None} for name in RECTANGULAR}
WITH_M = [name for name in REPEATED if name[:3] not in ("jac", "gau", "sor", "sso", "lsq", "lsm")]


class Operands:
    """A, b and x0, which can be changed."""

    def __init__(self):
        pattern = ls.problems.poisson((12,)).pattern
        self.values = ls.problems.poisson((12,)).values.clone().requires_grad_()
        self.A = ls.CSR(self.values, pattern)
        self.b, self.x0 = normal((12,)).requires_grad_(), normal((12,), seed=1)

    def solve(self, name, gradient, **changed):
        x0 = None if name in RECTANGULAR else self.x0
        options = {"gradient": gradient, **REPEATED[name], **changed}
        return run(name.partition(",")[0], self.A, self.b, x0, **options)

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
    with pytest.raises(RuntimeError, match="returns other values when it is called again"):
        operands.gradient(loss_of(solution))


@pytest.mark.parametrize("name", REPEATED)
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


GRID = ls.problems.poisson((24, 24))
UNKNOWNS, COLUMNS, WORD = 576, 8, 8
BLOCK = UNKNOWNS * COLUMNS


def recorded(gradient, K, name="cg"):
    b = normal((UNKNOWNS, COLUMNS)).requires_grad_()
    return getattr(S, name)(GRID, b, iterations=K, gradient=gradient), b


def most(gradient, K, name="cg"):
    """Peak of a solve and its backward, in blocks."""

    def both():
        solution, b = recorded(gradient, K, name)
        torch.autograd.grad(solution.x.sum() + solution.residual_norms.sum(), b)

    both()
    return peak(both) / (BLOCK * WORD)


@pytest.mark.parametrize("name", ["cg", pytest.param("minres", marks=pytest.mark.slow)])
def test_peak_of_the_modes(name):
    per = (most("unrolled", 30, name) - most("unrolled", 15, name)) / 15  # blocks of an iteration
    assert per >= (2 if name == "cg" else 3)  # the compiled loop of cg keeps r and p
    for K in (30, 90):
        # A state at the end of each segment of 1, 2, 3, ... iterations, and the last segment in full.
        segments = (2 * K) ** 0.5 + 1
        state = 4 if name == "cg" else 9
        assert most("checkpointed", K, name) <= (per + state) * segments + 30
    assert most("checkpointed", 90, name) < 0.45 * most("unrolled", 90, name)


def test_peak_of_the_implicit_gradient():
    def both(K):
        b = normal((UNKNOWNS, COLUMNS)).requires_grad_()
        S.cg(GRID, b, rtol=0.5, adjoint_rtol=1e-5 if K else 0.9, adjoint_maxiter=200).x.sum().backward()

    both(1)
    small, large = (peak(lambda K=K: both(K)) for K in (0, 1))
    assert large <= small + 6 * BLOCK * WORD


LARGE = pattern_of(grid(5, 40), torch.int32)
N = LARGE.shape[0]
VECTORS = N * COLUMNS
SMALL = (2 * LARGE.nnz + 8 * N + 4096) * WORD
SWEEPS = ("jacobi", "heavyball")


def sweeping(method, gradient, K, learns=True):
    v, b = values_on(LARGE).requires_grad_(learns), normal((N, COLUMNS)).requires_grad_(learns)
    w = torch.full((N,), 0.2, dtype=b.dtype, requires_grad=learns)
    beta = torch.tensor(0.5, dtype=b.dtype, requires_grad=learns)
    own = {"weight": w} if method == "jacobi" else {"alpha": w, "beta": beta}
    call = getattr(ls.solvers, method)
    return lambda: call(ls.CSR(v, LARGE), b, iterations=K, gradient=gradient, **own), (v, b, *own.values())


@pytest.mark.parametrize("parts", [False, True], ids=["one call", "several calls"])
@pytest.mark.parametrize(
    ("method", "gradient", "stored"),
    [
        (m, g, s)
        for m, few in zip(SWEEPS, (6, 12), strict=True)
        for g, s in (("unrolled", 36), ("checkpointed", few))
    ],
)
def test_peak(method, gradient, stored, parts, monkeypatch):
    call, inputs = sweeping(method, gradient, 36)
    torch.autograd.grad(call().x.sum(), inputs)  # the analysis of the pattern is not counted
    if parts:
        monkeypatch.setattr(sweeps, "_WORK", 4 * (LARGE.nnz + 6 * N) * COLUMNS)
    forward = peak(call)
    # What is kept, x, x0 = 0; in parts also x and the one before it of the call before and the one in work.
    assert forward <= (stored + 2 + 4 * parts) * VECTORS * WORD + SMALL
    assert forward > (stored if gradient == "unrolled" or method == "jacobi" else 0) * VECTORS * WORD
    y = call().x.sum()
    # Backward: the cotangent, its expanded form written out, the gradient of b; in parts the iterates of a
    # segment, and of each call the cotangents of x and the iterate before, and of b and its sum.
    again = 6 + 4 if gradient == "checkpointed" and parts else 0
    backward = peak(lambda: torch.autograd.grad(y, inputs))
    assert backward <= (3 + 12 * parts + again) * VECTORS * WORD + 3 * SMALL


@pytest.mark.parametrize("method", SWEEPS)
def test_peak_without_a_gradient(method):
    call, _ = sweeping(method, "unrolled", 36, learns=False)
    call()
    assert peak(call) <= (2 + (method == "heavyball")) * VECTORS * WORD + SMALL


RESIDENT = """
import torch, learnsolve as ls

A = ls.problems.poisson((200, 200))
b = torch.ones(40_000, dtype=torch.float64)

def most(gradient, K):
    w = torch.full((40_000,), 0.8, dtype=b.dtype, requires_grad=True)
    ls.solvers.jacobi(A, b, weight=w, iterations=K, gradient=gradient).x.sum().backward()
    # Not getrusage's maximum, which a process inherits from the one that started it.
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM"))

print(most("unrolled", 2), most("checkpointed", 400), most("unrolled", 400))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc/self/status")
def test_resident_memory_of_forward_and_backward():
    """Scratch memory of the compiled sweeps counts too, which torch's profiler does not see."""
    run = subprocess.run([sys.executable, "-c", RESIDENT], capture_output=True, text=True, check=True)
    before, checkpointed, unrolled = map(int, run.stdout.split())
    vector = 40_000 * WORD
    assert unrolled - before > 250 * vector  # 400 iterates, less what was free to be used again
    assert checkpointed - before < 60 * vector  # 20 iterates, 20 of a segment, a few more


COMPILED_METHODS = {
    "cg": S.cg,
    "fcg": lambda *args, M=None, **keywords: S.fcg(*args, M=M or (lambda r: r), **keywords),
    "minres": S.minres,
    "bicgstab": S.bicgstab,
    "gmres": S.gmres,
    "gmres(3)": lambda *args, **keywords: S.gmres(*args, restart=3, **keywords),
    "gmres(1)": lambda *args, **keywords: S.gmres(*args, restart=1, **keywords),
    "fgmres": S.fgmres,
}
STEPS = [m for m in COMPILED_METHODS if "cg" not in m]  # csrc/ops/gmres.cpp, program.cpp


def matrix_of(method: str) -> ls.CSR:
    return poisson(6, 5) if method in SYMMETRIC else convection(6, 5)


def with_entry(A: ls.CSR, value: float) -> ls.CSR:
    return A.with_values(torch.where(torch.arange(A.nnz) == 7, value, A.values))


def diagonal(*d: float) -> ls.CSR:
    return ls.ops.diag(torch.tensor(d, dtype=torch.float64))


class Form:
    """An M of any entries that states its form."""

    linear = symmetric = is_diagonal = True

    def __init__(self, d):
        self.d, self.T = d, self

    def __call__(self, r):
        return self.d * r

    def pcg_form(self):
        return "diagonal", self.d, None


ONES = torch.ones(30, dtype=torch.float64)
SHIFT = ls.CSR.from_dense(torch.roll(torch.eye(12), 1, 1).double())
# A (none: that of the method), b, keywords.
EDGES = {
    "b = 0": (None, 0 * ONES, {}),
    "n = 1": (diagonal(3.0), ONES[:1], {}),
    "identity": (ls.ops.diag(ONES), ONES, {}),
    "diagonal of two numbers": (diagonal(*[1.0] * 9, *[2.0] * 9), normal((18,)), {}),
    "zero matrix": (ls.ops.diag(0 * ONES), ONES, {}),
    "singular": (ls.ops.diag(torch.arange(30.0, dtype=torch.float64) % 6), ONES, {}),
    "skew": (ls.CSR.from_dense(torch.tensor([[0.0, 1.0], [-1.0, 0.0]]).double()), ONES[:2], {}),
    "cyclic shift": (SHIFT, torch.eye(12, dtype=torch.float64)[0], {}),
    "indefinite": (ls.ops.diag(torch.arange(30.0, dtype=torch.float64) % 6 - 2.5), ONES, {}),
    "NaN in b": (None, torch.nan * ONES, {}),
    "NaN in A": (with_entry(poisson(6, 5), torch.nan), ONES, {}),
    "infinite A": (with_entry(poisson(6, 5), torch.inf), ONES, {}),
    "large entries": (with_entry(poisson(6, 5), 1e200), ONES, {}),
    "maxiter=0": (None, ONES, {"maxiter": 0}),
    "maxiter=3": (None, ONES, {"maxiter": 3}),
    "a fixed number": (None, ONES, {"rtol": 0, "maxiter": 9}),
    "atol": (None, ONES, {"rtol": 0, "atol": 1e-3}),
    "negative M": (None, ONES, {"M": -1.0}),
    "M = 0": (None, ONES, {"M": 0.0}),
    "M with NaN": (None, ONES, {"M": torch.nan}),
    "diverges": (None, ONES, {"x0": 1e-9 * ONES, "rtol": 1e-5}),
}


@quiet
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("method", COMPILED_METHODS)
def test_edges_end_as_op_by_op(method, edge):
    A, b, keywords = EDGES[edge]
    A = matrix_of(method) if A is None else A
    if (method, edge) == ("fcg", "large entries"):
        pytest.skip("M r underflows in units of A: what is then said is chance")
    if "M" in keywords:
        keywords = {"M": Form(keywords["M"] * torch.ones_like(b))}
    solve = lambda: COMPILED_METHODS[method](A, b, **{"rtol": 1e-9, "maxiter": 60, **keywords})  # noqa: E731
    ours = solve()
    with eager():
        theirs = solve()
    assert ours.statuses == theirs.statuses
    if edge == "singular":  # and inconsistent: when that shows is chance
        return
    # Compiled cg does not count the iteration that breaks down.
    if method in ("cg", "fcg") and ours.iterations == theirs.iterations - 1 == 0:
        return
    assert ours.iterations == theirs.iterations
    if torch.isfinite(torch.cat((A.values, theirs.residual_norms))).all():
        ours.x, theirs.x = A @ ours.x, A @ theirs.x  # as A may be singular
        agree(ours, theirs)


@quiet
def test_what_goes_which_way():
    """Besides what the rows of cases.py promise."""
    A, b = matrix_of("cg"), normal((30,))
    two, jacobi = normal((30, 2)), ls.preconditioners.Jacobi(A)
    assert S.cg(A, b, callback=lambda at: None).backend == EAGER
    assert S.cg(1e200 * A, 1e200 * b).backend == COMPILED
    assert S.cg(1e200 * A, 1e200 * b, M=jacobi).backend == PYTHON_M  # in units M is called between the steps
    for x, options in ((b, {"rtol": 1e-3}), (b, {"atol": 1e-3}), (two, {"callback": lambda _: None})):
        unrolled = S.cg(A, x.requires_grad_(), maxiter=2, gradient="unrolled", **{"rtol": 0.0} | options)
        assert unrolled.backend == EAGER
    with torch.autograd.forward_ad.dual_level():
        assert S.minres(A, normal((30,)), gradient="unrolled").backend == EAGER


# --- between two calls ---


@pytest.mark.parametrize("method", STEPS)
def test_calls_may_be_short(method, monkeypatch):
    """So that an interrupt is handled in time: the next call goes on where one ended."""
    A, b = matrix_of(method), normal((30,))
    solve = lambda: COMPILED_METHODS[method](A, b, rtol=1e-8)  # noqa: E731
    whole = solve()
    calls = []
    for name, at in (("gmres_steps", -2), ("run_program", -2)):
        raw = getattr(advance, name)
        record = lambda *args, raw=raw, at=at: (calls.append(args[at]), raw(*args))[1]  # noqa: E731
        monkeypatch.setattr(advance, name, record)
    for most in (1, 2):
        monkeypatch.setattr(advance, "_MOST", most * (A.nnz + 28 * 30 if "gmres" not in method else 10**6))
        agree(solve(), whole)
    assert len(calls) > 3
    assert "gmres" in method or set(calls) <= {1, 2}


@quiet
@pytest.mark.parametrize("method", STEPS)
def test_each_call_returns_the_residual_of_its_x(method, monkeypatch):
    """The loop goes on from both, and gmres updates them once a call."""
    A, b, calls = matrix_of(method), normal((30,)), []
    for kind in (advance.GmresSteps, advance.RecordedSteps):
        raw = kind.__call__
        record = lambda *args, raw=raw: (calls.append(raw(*args)), calls[-1])[1]  # noqa: E731
        monkeypatch.setattr(kind, "__call__", record)
    COMPILED_METHODS[method](A, b, rtol=1e-6, maxiter=90)
    assert calls
    for state, norms, _ in calls:
        assert len(norms) > 0
        x, r = state.x.squeeze(-1), state.r.squeeze(-1)
        torch.testing.assert_close(r, b - A @ x, rtol=0, atol=1e-12 * float(b.norm()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_iterations_in_several_calls_of_cg(dtype):
    A, b = ls.problems.poisson((40, 40)).to(dtype=dtype), torch.ones(1600, dtype=dtype)
    ours = S.cg(A, b, rtol=1e-5)
    with eager():
        theirs = S.cg(A, b, rtol=1e-5)
    assert ours.iterations > 32  # more than one call
    assert abs(ours.iterations - theirs.iterations) <= 1
    torch.testing.assert_close(ours.x, theirs.x, rtol=1e-3, atol=1e-3)


@quiet
def test_what_the_recurrence_believes_is_measured():
    """Where the recurrence falls below the tolerance and b - A x does not, the general loop goes on."""
    d, Q = torch.logspace(0, 11, 60, dtype=torch.float64), torch.linalg.qr(normal((60, 60)))[0]
    A = ls.CSR.from_dense((Q * d) @ Q.T)
    b = A @ normal((60,), seed=3)
    for rtol in (1e-8, 1e-12, 1e-16):
        solution = S.cg(A, b, rtol=rtol, maxiter=400)
        true = torch.linalg.vector_norm(b - A @ solution.x)
        assert solution.converged == bool(true <= rtol * torch.linalg.vector_norm(b))
        assert solution.residual_norms.shape == (solution.iterations + 1,)
        assert solution.iterations <= 400
    with eager():
        assert solution.status is S.cg(A, b, rtol=1e-16, maxiter=400).status


@quiet
@pytest.mark.parametrize("of", ["columns", "blocks"])
def test_what_stagnates_stands_still_while_others_run(of, monkeypatch):
    """The loop stops it, and compiled code that knows nothing of that must not move it."""
    level = torch.tensor([torch.inf, 0.0], dtype=torch.float64)
    level = level.reshape(2, 1, 1) if of == "blocks" else level.unsqueeze(0)
    reached = lambda self, A, b, x, r: (torch.ones_like(level), level)  # noqa: E731
    monkeypatch.setattr("learnsolve.solvers.core.advance.ResidualNorm.measure", reached)
    monkeypatch.setattr("learnsolve.solvers.core.advance.CompiledCG.schedule", Schedule(8, 1))
    A, b = ls.problems.poisson((200,)), normal((200, 2))
    if of == "blocks":
        A, b = ls.BlockBatch([A, A]), b.mT.reshape(-1)
    solution, sooner = (S.cg(A, b, rtol=1e-12, maxiter=maxiter) for maxiter in (40, 16))
    assert [status.name for status in solution.statuses] == ["STAGNATED", "MAX_ITERATIONS"]
    ours, theirs = (s.x.reshape(2, 200) if of == "blocks" else s.x.mT for s in (solution, sooner))
    assert torch.equal(ours[0], theirs[0])
    assert not torch.equal(ours[1], theirs[1])


def test_norms_of_a_column_that_is_done_are_true_ones():
    """From the iteration on in which it was, while another one goes on."""
    A = ls.problems.poisson((300,)).to(torch.float32)
    b = torch.stack((A @ torch.ones(300), normal((300,)).float()), 1)
    solution = S.cg(A, b, rtol=1e-4, maxiter=400)
    assert solution.backend == COMPILED
    assert solution.statuses[0].name == "CONVERGED"
    norms = solution.residual_norms[:, 0]
    true = torch.linalg.vector_norm((b - A @ solution.x)[:, 0])  # in the rounding of the product that judged
    done = (norms <= 1e-4 * norms[0]).nonzero().min()
    assert done < solution.iterations - 50
    assert torch.allclose(norms[done:], true, rtol=1e-5, atol=0)


@quiet
def test_statuses_of_a_fixed_number_of_iterations():
    A = spd()
    A = A.with_values(torch.where(torch.arange(A.nnz) == A.pattern.diagonal_positions[0], -20.0, A.values))
    b = normal((20, 3))
    b[:, :2] = 0
    b[0, 1] = 1
    options = {"iterations": 2, "gradient": "unrolled"}
    solution = S.cg(A, b, torch.ones_like(b), **options)
    assert solution.statuses[0] is S.Status.CONVERGED
    assert not solution.x[:, 0].any()
    solution = S.cg(A, b, **options)
    assert solution.statuses[:2] == [S.Status.CONVERGED, S.Status.INDEFINITE]
    with pytest.raises(S.SolverError, match="INDEFINITE"):
        S.cg(A, b, throw=True, **options)
    alone = S.cg(A, b[:, 1], **options)
    assert (alone.status, alone.iterations, alone.backend) == (S.Status.INDEFINITE, 0, COMPILED)
    assert alone.residual_norms.tolist() == [1]


@pytest.mark.parametrize("name", [*KRYLOV, "lsqr", "lsmr"])
def test_iterations_are_a_limit_without_a_tolerance(name):
    A, b, solve = matrix_of("cg"), normal((30, 2)), getattr(S, name)
    exact = {"atol": 0.0, "maxiter": 3, ("btol" if name in ("lsqr", "lsmr") else "rtol"): 0.0}
    for options in ({}, {"gradient": "unrolled"}):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fixed, wanted = (solve(A, b, **ends, **options) for ends in ({"iterations": 3}, exact))
        assert torch.equal(fixed.x, wanted.x)
        assert torch.equal(fixed.residual_norms, wanted.residual_norms)
        assert (fixed.status, fixed.iterations) == (S.Status.MAX_ITERATIONS, 3)
        assert fixed.status is S.jacobi(A, b, weight=0.1, iterations=3).status
    assert solve(A, b, iterations=3, throw=True).iterations == 3  # which failed in nothing
    assert torch.equal(solve(A, b, iterations=0).x, torch.zeros_like(b))
    with pytest.raises(S.SolverError, match="NON_FINITE"):
        solve(A, torch.nan * b, iterations=3, throw=True)


@pytest.mark.parametrize("name", ["cg", "gmres", "lsmr", "CG"])
def test_what_iterations_exclude(name):
    A, b = matrix_of("cg"), normal((30,))

    def call(**ends):
        if name == "CG":
            return S.CG(ls.preconditioners.Jacobi(A), **ends)(A, b)
        return getattr(S, name)(A, b, **ends)

    defaults = {"atol": 1e-6, "btol": 1e-6} if name == "lsmr" else {"rtol": 1e-5, "atol": 0.0}
    assert call(iterations=2, maxiter=None, **defaults).iterations == 2
    assert call(iterations=2, **dict.fromkeys(defaults)).iterations == 2
    for key in ("maxiter", *defaults):
        with pytest.raises(ValueError, match=f"^{name}: {key} must not be passed with iterations"):
            call(iterations=2, **{key: 3})
    with pytest.raises(ValueError, match="iterations must be at least 0, got -1"):
        call(iterations=-1)
    with pytest.raises(TypeError, match="iterations must be an int, got float"):
        call(iterations=2.0)


def test_the_size_kept_of_a_matrix_follows_changes_in_place():
    A = ls.problems.poisson((8,))
    assert Matrix(A).largest_entry().item() == 2.0
    A.values.mul_(3.0)
    assert Matrix(A).largest_entry().item() == 6.0


def test_raw_operator_checks_its_state():
    A, b = poisson(), torch.ones(16, dtype=torch.float64)
    fixed = (A.pattern._structure(False), A.values, None, b)
    with pytest.raises(RuntimeError, match="the state is not that of the method"):
        advance.gmres_steps(*fixed, [b] * 4, [b[:1]] * 3, 0.0, 1.0, 1, 1)
    with pytest.raises(RuntimeError, match="one dtype"):
        advance.gmres_steps(*fixed, [b] * 4 + [b.float()], [b[:1]] * 3, 0.0, 1.0, 1, 1)
    state = [b, b, b, b[:0], b], [b[0], b[0], b[:0], b[:0]]
    with pytest.raises(RuntimeError, match="for one iteration that is not a restart"):
        advance.gmres_steps(*fixed, *state, 0.0, 1.0, 2, 3)


ON_A_DEVICE = (*SQUARE, *RECTANGULAR, *TO_A_TOLERANCE[:3])


@pytest.fixture
def device():
    with PretendDevice():
        yield


@pytest.fixture(params=[1, 7, None])
def every(request):
    with ls.set_options(check_every=request.param):
        yield request.param


def system(name):
    D = matrix("cg" if name in STATIONARY else name).to_dense()
    b = normal((D.shape[0], 4))
    b[:, 1] = 0  # done before the first iteration
    b[:, 2] = D @ torch.ones(D.shape[1], dtype=D.dtype)  # done before the others
    return D, b


def solved(name, D, b, tol=1e-9, **keywords):
    """The solution of D x = b and x's gradient for b, on the host; computed where they are."""
    b = b.detach().clone().requires_grad_()
    solution = run_on(name, D, b, tol, keywords)
    (gradient,) = torch.autograd.grad(solution.x.square().sum(), b)
    solution.x, solution._norms = solution.x.detach().cpu(), solution.residual_norms.detach().cpu()
    return solution, gradient.cpu()


def both(name, D, b, **keywords):
    """There and here: the same, but for rounding."""
    there, here = solved(name, D.to(DEVICE), b.to(DEVICE), **keywords), solved(name, D, b, **keywords)
    agree(there[0], here[0], 1e-6)
    close([there[1]], [here[1]], 1e-6)
    return there[0], here[0]


def run_on(name, D, b, tol, keywords):
    def A(x):
        return D @ x

    if name not in SYMMETRIC:
        keywords["transpose"] = lambda y: D.mT @ y
    return run(name, A, b, tol=tol, **keywords)


@pytest.mark.rows(2)
@pytest.mark.parametrize("gradient", MODES)
@pytest.mark.parametrize("name", ON_A_DEVICE)
@pytest.mark.parametrize("every", [7, None], indirect=True)
def test_results_do_not_tell(name, gradient, every, device):
    """Nor do gradients, through iterations in which nothing moves any more."""
    D, b = system(name)
    _, here = both(name, D, b, gradient=gradient)
    assert here.converged
    assert torch.allclose(here.x, dense_solution(name, D, b), rtol=0, atol=1e-6)


@pytest.mark.rows(4)
@pytest.mark.parametrize("name", ON_A_DEVICE)
def test_number_of_looks(name, every, device):
    """Each reads once, and once more where something seems done."""
    D, b = (t.to(DEVICE) for t in system(name))
    waits.clear()
    with torch.no_grad():
        n = run_on(name, D, b, 1e-9, {}).iterations
    looks = {1: n, 7: -(-n // 7), None: n if n <= 16 else 16 + 8 * (n // 16).bit_length()}[every]
    assert sum("core/loop.py" in wait for wait in waits) <= 1 + looks + 3


@pytest.mark.parametrize("maxiter", [0, 1, 5])
@pytest.mark.parametrize("name", ON_A_DEVICE)
def test_no_more_than_maxiter(name, maxiter, every, device):
    for gradient in MODES[1:]:
        actual, _ = both(name, *system(name), gradient=gradient, maxiter=maxiter)
        assert actual.iterations == maxiter


@pytest.mark.parametrize("name", [*SYMMETRIC, *RECTANGULAR])
def test_columns_that_fail_between_two_looks(name, every, device):
    D = torch.diag(torch.tensor([1.0, 2.0, -3.0, 4.0, 0.0], dtype=torch.float64))
    b = torch.tensor([[1.0, 1, 1], [0, 1, 1], [0, 1, 0], [0, 0, 0], [0, 0, 1]], dtype=torch.float64)
    _, here = both(name, D, b, gradient="unrolled")
    assert here.statuses[0] == S.Status.CONVERGED
    assert name in RECTANGULAR or not here.converged


@pytest.mark.rows(3)
@pytest.mark.parametrize("name", SQUARE)
def test_beyond_what_the_recurrence_knows(name, every, device):
    """In float32 r drifts away from b - A x: converged is what the true residual says, after new starts."""
    D, b = (t.float() for t in system(name))
    b, options = b + 100, {"tol": 3e-7, "gradient": "unrolled", "maxiter": 300}
    actual, _ = solved(name, D.to(DEVICE), b.to(DEVICE), **options)
    expected, _ = solved(name, D, b, **options)
    assert actual.statuses == expected.statuses
    holds = torch.linalg.vector_norm(b - D @ actual.x, dim=0) <= 3.3e-7 * torch.linalg.vector_norm(b, dim=0)
    assert holds[[t == S.Status.CONVERGED for t in expected.statuses]].all()


class Drifting(Method):
    """Richardson's iteration, whose recurrence for r is wrong until its third start: far too small."""

    starts = 0

    def start(self, A, M, x, r, running):
        self.starts += 1
        return State(x, r, x, torch.zeros_like(r[:1]))

    def step(self, A, M, b, state, running):
        x = state.x + 0.3 * (b - A(state.x))
        r = (b - A(x)) * (1 if self.starts == 3 else 1e-3)
        return State(x, r, state.x, state.t + 1), torch.zeros_like(running, dtype=torch.int64)


def diagonal_system(device):
    D = torch.diag(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)).to(device)
    return Function("A", lambda x: D @ x, None, ()), torch.eye(3, dtype=torch.float64, device=device)[:, :2]


def test_nothing_is_called_converged_on_the_word_of_a_recurrence(every, device):
    A, b = diagonal_system(DEVICE)
    b, method = b[:, :1], Drifting()
    actual = iterate(method, System("test", A, None, b, None, ResidualNorm(1e-8, 0.0)), 200)
    assert method.starts == 3
    assert actual.codes.item() == CODE[S.Status.CONVERGED]
    true = torch.linalg.vector_norm(b - A(actual.x))
    assert true <= 1e-8
    # The norm with which it stood still is the true one, also where that sent it on.
    torch.testing.assert_close(actual.norms[-1, 0], true)
    assert (actual.norms[:-1] > 1e-8).all()


def test_what_is_judged_is_the_state_of_that_iteration(every, device):
    """Also what a criterion reads beside x and r, though columns stand still at different times."""

    class Watching(ResidualNorm):
        reads = ("t",)
        judged: ClassVar = {}

        def is_done(self, A, state, r, norm):
            for column in (norm <= self.target).nonzero()[:, 1].tolist():
                self.judged.setdefault(column, state.t[0, column].item())
            return super().is_done(A, state, r, norm)

    method = Drifting()
    method.starts = 2
    A, b = diagonal_system(DEVICE)
    actual = iterate(method, System("test", A, None, b, None, Watching(1e-8, 0.0)), 200)
    needed = (actual.norms > 1e-8).sum(0)
    assert needed[0] > 2 * needed[1]
    assert Watching.judged == {0: needed[0], 1: needed[1]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("condition", "dtype"),
    [(1e2, torch.float32)]
    + [
        pytest.param(*p, marks=pytest.mark.slow)
        for p in ((1e2, torch.float64), (1e4, torch.float32), (1e4, torch.float64))
    ],
)
def test_minres_goes_on_to_rounding_level(condition, dtype, device):
    """A fixed number of iterations, without checks: a bound on rounding errors says little about them."""
    Q = torch.linalg.qr(normal((40, 40)))[0]
    D = (Q * torch.logspace(0, math.log10(condition), 40, dtype=Q.dtype)) @ Q.mT
    D, b = ((D + D.mT) / 2).to(dtype), normal((40, 1), dtype)

    def error(D, b):
        D = D.to(b.device)
        x = S.minres(lambda x: D @ x, b, iterations=150, gradient="unrolled").x
        r = b.cpu().double() - D.cpu().double() @ x.cpu().double()
        return float(torch.linalg.vector_norm(r) / torch.linalg.vector_norm(b.cpu().double()))

    waits.clear()
    ours = error(D, b.to(DEVICE))
    assert sum("core/loop.py" in wait for wait in waits) == 0
    assert ours <= 2 * error(D, b) <= 100 * condition * torch.finfo(dtype).eps


@pytest.mark.rows(1)
@pytest.mark.parametrize("where", ["cpu", "device"])
@pytest.mark.parametrize("gradient", ["unrolled", "checkpointed"])
@pytest.mark.parametrize("name", ["fcg", "fgmres"])
def test_an_M_without_a_derivative_at_zero(name, gradient, where, device):
    """A network is given unit vectors. It is not asked about columns that are done."""
    place = DEVICE if where == "device" else torch.device("cpu")
    D, b = (t.to(place) for t in system("cg"))

    def gradients(b):
        w = torch.tensor(0.3, dtype=b.dtype, device="cpu").to(place).requires_grad_()
        T = D.clone().requires_grad_()

        def M(r):
            length = torch.linalg.vector_norm(r, dim=-2, keepdim=True)
            return length * (w * r / length + 0.1 * torch.tanh(r / length))

        x = getattr(S, name)(lambda x: T @ x, b, M=M, rtol=1e-9, gradient=gradient).x
        return [g.cpu() for g in torch.autograd.grad(x.square().sum(), (w, T))]

    with ls.set_options(check_every=50):
        actual = gradients(b)
    with ls.set_options(check_every=1):
        one_by_one = [gradients(b[:, j : j + 1]) for j in (0, 2, 3)]
    for g, parts in zip(actual, zip(*one_by_one, strict=True), strict=True):
        torch.testing.assert_close(g, sum(parts), rtol=1e-5, atol=1e-10)


def test_a_callback_is_told_at_once(every, device):
    D, b = system("cg")
    ends = []
    T = D.to(DEVICE)
    solution = S.cg(lambda x: T @ x, b.to(DEVICE), rtol=1e-9, callback=lambda at: ends.append(at.converged))
    assert len(ends) == solution.iterations
    assert ends[-1].all()
    assert not ends[-2].all()


@pytest.mark.parametrize("kind", ["none", "diagonal"])
def test_the_compiled_loop(kind):
    A, b = matrix("cg"), normal((16, 2))
    m = 1 / A.diagonal() if kind == "diagonal" else None

    target = 1e-9 * torch.linalg.vector_norm(b, dim=-2, keepdim=True)
    results = []
    for every in (None, 1, 5, 100):
        run, state, norms = Iterations(A.values, b, None, A.pattern, every, kind=kind, m=m), None, []
        running = torch.ones(1, 2, dtype=torch.bool)
        while running.any():
            state, history = run(state, run.most(100), len(norms), running, target)
            norms += history
            running = state.carry[:, STOP] == 0
        results.append((state.x, torch.stack(norms)[: int(state.carry[:, -1].max())]))
    for actual in results[1:]:
        for ours, theirs in zip(actual, results[0], strict=True):
            assert torch.equal(ours, theirs)


def test_what_is_set():
    with ls.set_options(check_every=5):
        with ls.set_options(check_every=None, plan_cache_bytes=0):
            assert (check_every(), budget.limit) == (None, 0)
        assert (check_every(), budget.limit) == (5, 2**26)
    assert check_every() is None
    for error, options, message in (
        (TypeError, {"check_every": 2.5}, "set_options: check_every must be an int, got float"),
        (ValueError, {"check_every": 0}, "set_options: check_every must be at least 1, got 0"),
        (TypeError, {"spgemm_plan_bytes": 1e9}, "set_options: spgemm_plan_bytes must be an int, got float"),
        (ValueError, {"spgemm_plan_bytes": -1}, "set_options: spgemm_plan_bytes must be at least 0, got -1"),
        (TypeError, {"check_evry": 2}, "unexpected keyword argument 'check_evry'. Did you mean check_every?"),
        (TypeError, {"threads": 2}, "'threads'. Valid keywords: plan_cache_bytes, spgemm_plan_bytes"),
    ):
        with pytest.raises(error, match=re.escape(message)):
            ls.set_options(plan_cache_bytes=0, **options)
    assert budget.limit == 2**26, "options are checked before any is set"
