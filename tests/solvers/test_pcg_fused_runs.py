"""How the compiled conjugate gradients run: in parts, on threads, in little memory, until an interrupt."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from ops.test_memory import peak
from reference import assert_same_bits, grid, normal, power_law
from scipy.sparse import eye_array
from solvers.dense_pcg import fused, gradients, system

from learnsolve.ops import pcg
from learnsolve.ops.pcg import KINDS

WORD = 8


def equal(found, wanted):
    return all(torch.equal(f, w) for f, w in zip(found, wanted, strict=True))


@pytest.mark.parametrize("shape", ["vector", "columns", "batch of all"])
@pytest.mark.parametrize("kind", KINDS)
def test_parts_do_not_change_a_bit(kind, shape, monkeypatch):
    """Checkpointed or not, in one call or several."""
    for start in (True, False):
        s = system(kind, shape, start=start)
        wanted = gradients(s, fused, 40)  # some columns stop on the way
        assert equal(gradients(s, fused, 40, checkpointed=True), wanted)
        with monkeypatch.context() as patch:
            patch.setattr(pcg, "_WORK", 10_000)
            assert len(pcg._calls(s.values, s.values, s.b, 40, False)) > 2
            assert equal(gradients(s, fused, 40), wanted)
            for i, t in enumerate(s.inputs):  # the gradient of one input alone
                inputs = [u.detach().requires_grad_(u is t) for u in s.inputs]
                x, norms, _ = fused(s.with_inputs(*inputs), 40)
                loss = (x * normal(x.shape, seed=8)).sum() + (norms * normal(norms.shape, seed=9)).sum()
                assert torch.equal(torch.autograd.grad(loss, inputs[i])[0], wanted[2 + i])
            patch.setattr(pcg, "_WORK", 1)
            assert equal(gradients(s, fused, 40, checkpointed=True), wanted)


@pytest.mark.few
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", ["vector", "columns"])
def test_threads_do_not_change_a_bit(kind, shape):
    for S in (grid(5, 110), power_law(6000) + eye_array(6000)) if kind != "triangular" else (grid(5, 110),):
        s = system(kind, shape, S)
        assert_same_bits(lambda: gradients(s, fused, 4), (2, 3))  # noqa: B023


@pytest.mark.parametrize("kind", KINDS)
def test_memory(kind):
    s = system(kind, "vector", grid(5, 60), start=False)
    n, iterations = s.P.shape[0], 64
    leaves = s.leaves()
    torch.autograd.grad(fused(leaves, 2)[0].sum(), leaves.inputs)  # the analysis is not counted
    small = 4 * s.P.nnz + 12 * n
    for checkpointed, stored in ((False, 2 * iterations), (True, 3 * 8)):
        out = []
        held = peak(lambda: out.append(fused(leaves, iterations, checkpointed)))  # noqa: B023
        assert held <= (stored * n + small) * WORD
        assert checkpointed or held > stored * n * WORD
        g = peak(lambda: torch.autograd.grad(out[0][0].sum(), leaves.inputs))  # noqa: B023
        assert g <= ((2 * 8 * n if checkpointed else 0) + 2 * small) * WORD
    assert peak(lambda: fused(s, iterations)) <= small * WORD  # no gradient is required


SCRIPT = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent may have it ignored
import sys, torch, learnsolve as ls
from learnsolve.ops.pcg import pcg_iterations
torch.set_num_threads(1)
A = ls.problems.poisson((20_000,))  # needs as many iterations
b = torch.randn(20_000, dtype=torch.float64)
learns = sys.argv[1] == "backward"
b.requires_grad_(learns)
iterations = 20_000 if learns else 2_000_000_000 // 20_000
try:
    if not learns:
        print("ready", flush=True)
    x, _, _ = pcg_iterations(A.values, b, None, A.pattern, iterations, checkpointed=True)
    print("ready", flush=True)
    x.sum().backward()
    print("finished", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
@pytest.mark.slow
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_an_interrupt_is_heard(where):
    run = subprocess.Popen([sys.executable, "-c", SCRIPT, where], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    assert run.stdout.readline() == "ready\n"
    time.sleep(0.1)
    run.send_signal(signal.SIGINT)
    assert run.stdout.read() == "interrupted\n"
    run.wait()


def test_no_call_runs_for_long():
    """About 1 ns for each number of a call's work: a tenth of a second, on a slow machine a few."""
    for n, k, iterations in ((100, 1, 10**7), (10**6, 4, 1000)):
        values, b = torch.empty(5 * n, device="meta"), torch.empty(n, k, device="meta")
        for checkpointed in (False, True):
            calls = pcg._calls(values, values[:0], b, iterations, checkpointed)
            assert sum(calls) == iterations
            assert max(calls) * (5 * n + 12 * n) * k <= 1.1e8 or max(calls) == 1


def test_no_call_launches_for_long():
    """A device is through a small system's iterations soon, but the host launches them one by one."""
    with torch._subclasses.FakeTensorMode():
        values, none, b = (torch.empty(size, device="cuda") for size in (15, 0, 5))
        calls = pcg._calls(values, none, b, 10**6 + 1, False)
    assert sum(calls) == 10**6 + 1
    assert calls[0] == max(calls) == 10_000
