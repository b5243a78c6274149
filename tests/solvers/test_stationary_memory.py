"""Memory of steps with momentum, stored and checkpointed, and that an interrupt is handled."""

import math
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from reference import grid, normal, pattern_of, peak
from solvers.dense_jacobi import values_on

import learnsolve as ls
from learnsolve.ops import _sweep_calls

P = pattern_of(grid(5, 40), torch.int32)
N, COLUMNS, WORD = P.shape[0], 8, 8
VECTORS = N * COLUMNS
SMALL = (2 * P.nnz + 8 * N + 4096) * WORD


def solve(gradient, K, learns=True):
    v, b = values_on(P).requires_grad_(learns), normal((N, COLUMNS)).requires_grad_(learns)
    alpha, beta = (torch.tensor(t, dtype=b.dtype, requires_grad=learns) for t in (0.2, 0.5))
    call = lambda: ls.solvers.heavyball(  # noqa: E731
        ls.CSR(v, P), b, alpha=alpha, beta=beta, iterations=K, gradient=gradient
    )
    return call, (v, b, alpha, beta)


@pytest.mark.parametrize("K", [1, 2, 10, 25, 40])
def test_what_is_saved(K):
    stride = max(1, round(math.sqrt(K)))
    pairs = 2 if stride > 1 else 1
    for gradient, stored in (("unrolled", K), ("checkpointed", pairs * math.ceil(K / stride))):
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.shape) or t, lambda t: t):  # noqa: B023
            solve(gradient, K)[0]()
        assert sum(s.numel() for s in saved if len(s) == 3) == stored * VECTORS
        assert sum(s.numel() for s in saved) <= (stored + 2) * VECTORS + 6 * N + 2 * P.nnz + K * COLUMNS


@pytest.mark.parametrize("parts", [False, True], ids=["one call", "several calls"])
@pytest.mark.parametrize(("gradient", "stored"), [("unrolled", 36), ("checkpointed", 12)])
def test_peak(gradient, stored, parts, monkeypatch):
    call, inputs = solve(gradient, 36)
    torch.autograd.grad(call().x.sum(), inputs)  # the analysis of the pattern is not counted
    if parts:
        monkeypatch.setattr(_sweep_calls, "_WORK", 4 * (P.nnz + 6 * N) * COLUMNS)
    found = peak(call)
    # What is kept, x, x0 = 0; in parts also x and the one before it of the call before and the one in work.
    assert found <= (stored + 2 + 4 * parts) * VECTORS * WORD + SMALL
    assert gradient == "checkpointed" or found > stored * VECTORS * WORD
    y = call().x.sum()
    # Backward: the cotangent, its expanded form written out, the gradient of b; in parts the iterates of a
    # segment, and of each call the cotangents of x and the iterate before, and of b and its sum.
    again = 6 + 4 if gradient == "checkpointed" and parts else 0
    assert (
        peak(lambda: torch.autograd.grad(y, inputs)) <= (3 + 12 * parts + again) * VECTORS * WORD + 3 * SMALL
    )


def test_peak_without_a_gradient():
    call, _ = solve("unrolled", 36, learns=False)
    call()
    assert peak(call) <= 3 * VECTORS * WORD + SMALL


SCRIPT = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent may have it ignored
import sys, torch, learnsolve as ls
torch.set_num_threads(1)
solver, where = sys.argv[1:]
A = ls.problems.poisson((20_000,))
b = torch.randn(20_000, dtype=torch.float64)
learns = where == "backward"
b.requires_grad_(learns)
K = 12_000 if learns else 200_000
try:
    if not learns:
        print("ready", flush=True)
    if solver == "jacobi":
        x = ls.solvers.jacobi(A, b, iterations=K, gradient="checkpointed").x
    else:
        x = ls.solvers.heavyball(A, b, alpha=0.4, beta=0.4, iterations=K, gradient="checkpointed").x
    print("ready", flush=True)
    x.sum().backward()
    print("finished", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
@pytest.mark.parametrize(
    ("solver", "where"),
    [
        pytest.param("jacobi", "forward", marks=pytest.mark.slow),
        pytest.param("jacobi", "backward", marks=pytest.mark.slow),
        pytest.param("heavyball", "forward", marks=pytest.mark.slow),
        ("heavyball", "backward"),
    ],
)
def test_an_interrupt_is_heard(solver, where):
    run = subprocess.Popen([sys.executable, "-c", SCRIPT, solver, where], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    assert run.stdout.readline() == "ready\n"
    time.sleep(0.1)
    run.send_signal(signal.SIGINT)
    assert run.stdout.read() == "interrupted\n"
    run.wait()


def test_no_call_runs_for_long():
    for n, k, iterations in ((100, 1, 10**7), (10**6, 4, 1000), (10**6, 4, 10**4)):
        values, b = torch.empty(5 * n, device="meta"), torch.empty(n, k, device="meta")
        for checkpointed in (False, True):
            calls = _sweep_calls._calls(values, b, iterations, checkpointed)
            assert sum(map(sum, calls)) == iterations
            assert max(map(max, calls)) * 11 * n * k <= 1.1e8 or max(map(max, calls)) == 1
            most = round(math.sqrt(iterations)) if checkpointed else 1
            assert len(calls) <= most + 1


@pytest.mark.parametrize("heavy", [False, True])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_no_call_launches_for_long(checkpointed, heavy):
    """A device is through a small system's sweeps soon, but the host launches them one by one."""
    iterations = 10**6 + 1
    with torch._subclasses.FakeTensorMode():
        values, b = torch.empty(15, device="cuda"), torch.empty(5, device="cuda")
        calls = _sweep_calls._calls(values, b, iterations, checkpointed, heavy)
    assert sum(map(sum, calls)) == iterations
    assert max(map(max, calls)) <= 10_000
    assert sum(map(len, calls)) <= 1001  # and no shorter than need be
