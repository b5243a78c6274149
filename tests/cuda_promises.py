"""What every operation and every solve on a CUDA device promises (docs/cuda.md).

`run` returns results and gradients; the tensors that it reads stay where they are.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from learnsolve.matrix import device_analysis

ON_HOST = device_analysis.everywhere
DEVICE = torch.device("cpu" if ON_HOST else "cuda")
needs_a_device = pytest.mark.skipif(ON_HOST, reason="needs a CUDA device")

Run = Callable[[], list[Tensor]]


def skip_without_operators() -> None:
    """For the top of a file of tests."""
    if not (ON_HOST or torch.cuda.is_available()):
        pytest.skip("no CUDA device, and no emulated operators", allow_module_level=True)


def assert_same(found: list[Tensor], wanted: list[Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


class Promises:
    """Their tests, for a class with `runs` that is parametrized by `name`."""

    runs: Callable[[], dict[str, Run]]

    def test_same_bits_on_every_run(self, name):
        run = self.runs()[name]
        wanted = run()
        for _ in range(5):
            assert_same(run(), wanted)

    @needs_a_device
    def test_no_call_waits_for_the_device(self, name):
        run = self.runs()[name]
        run()  # makes the plans
        torch.cuda.set_sync_debug_mode("error")
        try:
            run()
        finally:
            torch.cuda.set_sync_debug_mode("default")

    @needs_a_device
    def test_captured_in_a_graph(self, name):
        """The whole call with its gradients."""
        run = self.runs()[name]
        wanted = run()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = run()
        for t in captured:
            t.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert_same(captured, wanted)

    @needs_a_device
    def test_on_another_stream(self, name):
        """Plans made on one stream, used on another that is behind work of its own."""
        run = self.runs()[name]
        wanted = run()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(10_000_000)
            found = run()
        stream.synchronize()
        assert_same(found, wanted)
