"""gradient="checkpointed": the backward repeats the iterations, and notices where it would repeat others (all
methods and operands: tests/stress/inplace.py). Memory of the modes: O(1) for the implicit gradient, O(N)
unrolled, O(sqrt N) checkpointed; of compiled sweeps N n k values, or about 2 sqrt(N) n k."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from reference import grid, normal, pattern_of, peak
from solvers.cases import quiet
from solvers.krylov import SQUARE, S
from solvers.stationary_cases import values_on

import learnsolve as ls
from learnsolve.ops.core import sweep_calls

pytestmark = quiet
F64 = torch.float64
KRYLOV = {name: {"maxiter": 5, "rtol": 0.0} for name in SQUARE}
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


GRID = ls.problems.poisson((24, 24))
UNKNOWNS, COLUMNS, WORD = 576, 8, 8
BLOCK = UNKNOWNS * COLUMNS


def recorded(gradient, K, name="cg"):
    b = normal((UNKNOWNS, COLUMNS)).requires_grad_()
    return getattr(S, name)(GRID, b, rtol=0.0, maxiter=K, gradient=gradient), b


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


@pytest.mark.parametrize("K", [1, 2, 10, 25, 40])
@pytest.mark.parametrize("method", SWEEPS)
def test_what_is_saved(method, K):
    stride = max(1, round(math.sqrt(K)))
    pairs = 2 if stride > 1 and method == "heavyball" else 1  # an iterate and the one before it
    for gradient, stored in (("unrolled", K), ("checkpointed", pairs * math.ceil(K / stride))):
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.shape) or t, lambda t: t):  # noqa: B023
            sweeping(method, gradient, K)[0]()
        assert sum(s.numel() for s in saved if len(s) == 3) == stored * VECTORS
        # With b, x0, and one of each small one beside them.
        assert sum(s.numel() for s in saved) <= (stored + 2) * VECTORS + 6 * N + 2 * LARGE.nnz + K * COLUMNS


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
        monkeypatch.setattr(sweep_calls, "_WORK", 4 * (LARGE.nnz + 6 * N) * COLUMNS)
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


@pytest.mark.parametrize("checkpointed", [False, True])
def test_no_call_runs_for_long(checkpointed):
    """Python handles an interrupt between calls (test_sweeps.py: a run is made of these)."""
    for n, k, iterations in ((100, 1, 10**7), (10**6, 4, 1000), (10**6, 4, 10**4)):
        values, b = torch.empty(5 * n, device="meta"), torch.empty(n, k, device="meta")
        calls = sweep_calls._calls(values, b, iterations, checkpointed)
        assert sum(map(sum, calls)) == iterations
        assert max(map(max, calls)) * 11 * n * k <= 1.1e8 or max(map(max, calls)) == 1
        assert len(calls) <= (round(math.sqrt(iterations)) if checkpointed else 1) + 1
    # A device is through a small system's sweeps soon, but the host launches them one by one.
    with torch._subclasses.FakeTensorMode():
        values, b = torch.empty(15, device="cuda"), torch.empty(5, device="cuda")
        for heavy in (False, True):
            calls = sweep_calls._calls(values, b, 10**6 + 1, checkpointed, heavy)
            assert sum(map(sum, calls)) == 10**6 + 1
            assert max(map(max, calls)) <= 10_000
            assert sum(map(len, calls)) <= 1001  # and no shorter than need be
