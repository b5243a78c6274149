"""Memory of the two ways to differentiate: K n k numbers, or about 2 sqrt(K) n k."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from reference import grid, normal, pattern_of, peak
from solvers.dense_jacobi import values_on

import learnsolve as ls

P = pattern_of(grid(5, 40), torch.int32)
N, COLUMNS, WORD = P.shape[0], 8, 8
VECTORS = N * COLUMNS


def solve(gradient, K, learns=True):
    v, b = values_on(P).requires_grad_(learns), normal((N, COLUMNS)).requires_grad_(learns)
    w = torch.full((N,), 0.8, dtype=b.dtype, requires_grad=learns)
    return lambda: ls.solvers.jacobi(ls.CSR(v, P), b, weight=w, iterations=K, gradient=gradient), (v, b, w)


@pytest.mark.parametrize("K", [1, 2, 10, 25, 40])
def test_iterates_that_are_saved(K):
    stride = max(1, round(math.sqrt(K)))
    for gradient, stored in (("unrolled", K), ("checkpointed", math.ceil(K / stride))):
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.shape) or t, lambda t: t):  # noqa: B023
            solve(gradient, K)[0]()
        assert (stored, N, COLUMNS) in saved
        assert sum(s.numel() for s in saved if len(s) == 3) == stored * VECTORS
        # With b, x0, and one of each small one beside them.
        assert sum(s.numel() for s in saved) <= (stored + 2) * VECTORS + 4 * N + 2 * P.nnz + K * COLUMNS


@pytest.mark.parametrize(("gradient", "stored"), [("unrolled", 36), ("checkpointed", 6)])
def test_peak(gradient, stored):
    call, inputs = solve(gradient, 36)
    small = (2 * P.nnz + 8 * N + 4096) * WORD
    torch.autograd.grad(call().x.sum(), inputs)  # the analysis of the pattern is not counted
    found = peak(call)
    # The iterates, x, x0 = 0.
    assert stored * VECTORS * WORD < found <= (stored + 2) * VECTORS * WORD + small
    y = call().x.sum()
    # Backward: the cotangent, its expanded form written out, the gradient of b.
    assert peak(lambda: torch.autograd.grad(y, inputs)) <= 3 * VECTORS * WORD + small


def test_peak_without_a_gradient():
    call, _ = solve("unrolled", 36, learns=False)
    call()
    assert peak(call) <= 2 * VECTORS * WORD + (2 * P.nnz + 8 * N + 4096) * WORD


SCRIPT = """
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
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    before, checkpointed, unrolled = map(int, run.stdout.split())
    vector = 40_000 * WORD
    assert unrolled - before > 250 * vector  # 400 iterates, less what was free to be used again
    assert checkpointed - before < 60 * vector  # 20 iterates, 20 of a segment, a few more
