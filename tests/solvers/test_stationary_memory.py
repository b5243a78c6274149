"""Memory of sweeps, stored and checkpointed: N n k numbers, or about 2 sqrt(N) n k. Calls are short."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from reference import grid, normal, pattern_of, peak
from solvers.stationary_cases import values_on

import learnsolve as ls
from learnsolve.ops.core import sweep_calls

P = pattern_of(grid(5, 40), torch.int32)
N, COLUMNS, WORD = P.shape[0], 8, 8
VECTORS = N * COLUMNS
SMALL = (2 * P.nnz + 8 * N + 4096) * WORD
METHODS = ("jacobi", "heavyball")


def solve(method, gradient, K, learns=True):
    v, b = values_on(P).requires_grad_(learns), normal((N, COLUMNS)).requires_grad_(learns)
    w = torch.full((N,), 0.2, dtype=b.dtype, requires_grad=learns)
    beta = torch.tensor(0.5, dtype=b.dtype, requires_grad=learns)
    own = {"weight": w} if method == "jacobi" else {"alpha": w, "beta": beta}
    call = getattr(ls.solvers, method)
    return lambda: call(ls.CSR(v, P), b, iterations=K, gradient=gradient, **own), (v, b, *own.values())


@pytest.mark.parametrize("K", [1, 2, 10, 25, 40])
@pytest.mark.parametrize("method", METHODS)
def test_what_is_saved(method, K):
    stride = max(1, round(math.sqrt(K)))
    pairs = 2 if stride > 1 and method == "heavyball" else 1  # an iterate and the one before it
    for gradient, stored in (("unrolled", K), ("checkpointed", pairs * math.ceil(K / stride))):
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.shape) or t, lambda t: t):  # noqa: B023
            solve(method, gradient, K)[0]()
        assert sum(s.numel() for s in saved if len(s) == 3) == stored * VECTORS
        # With b, x0, and one of each small one beside them.
        assert sum(s.numel() for s in saved) <= (stored + 2) * VECTORS + 6 * N + 2 * P.nnz + K * COLUMNS


@pytest.mark.parametrize("parts", [False, True], ids=["one call", "several calls"])
@pytest.mark.parametrize(
    ("method", "gradient", "stored"),
    [
        (m, g, s)
        for m, few in zip(METHODS, (6, 12), strict=True)
        for g, s in (("unrolled", 36), ("checkpointed", few))
    ],
)
def test_peak(method, gradient, stored, parts, monkeypatch):
    call, inputs = solve(method, gradient, 36)
    torch.autograd.grad(call().x.sum(), inputs)  # the analysis of the pattern is not counted
    if parts:
        monkeypatch.setattr(sweep_calls, "_WORK", 4 * (P.nnz + 6 * N) * COLUMNS)
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


@pytest.mark.parametrize("method", METHODS)
def test_peak_without_a_gradient(method):
    call, _ = solve(method, "unrolled", 36, learns=False)
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
