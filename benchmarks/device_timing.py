"""Timing on a CUDA device: events around bursts of calls, replays of CUDA graphs. On the CPU, `timing`."""

from __future__ import annotations

from collections.abc import Callable

import timing
import torch

Functions = dict[str, Callable[[], object]]
IN_A_GRAPH = 10  # calls in a graph, which share its launch


class Clock:
    """Medians of interleaved repetitions, in seconds, for functions that run on `device`."""

    def __init__(self, device: torch.device, seconds: float, most: int = 200):
        self.device, self.seconds, self.most = device, seconds, most

    def medians(self, functions: Functions) -> dict[str, float]:
        """Time of one call within a sequence of calls, as in a training loop: that of the device, or of the
        host if that is slower. Inputs are in the cache if they fit."""
        if self.device.type == "cpu":
            return timing.medians(functions, self.seconds, self.most)
        once = {}
        for name, f in functions.items():
            for _ in range(3):
                f()
            once[name] = self._elapsed(f, 3)
        samples: dict[str, list[float]] = {name: [] for name in functions}
        calls = {name: int(min(max(2e-4 / max(t, 1e-7), 1), 50)) for name, t in once.items()}
        rounds = {
            name: int(min(max(self.seconds / (calls[name] * max(t, 1e-7)), 5), self.most))
            for name, t in once.items()
        }
        while any(len(samples[name]) < rounds[name] for name in functions):
            for name, f in functions.items():
                if len(samples[name]) < rounds[name]:
                    samples[name].append(self._elapsed(f, calls[name]))
        return {name: sorted(s)[len(s) // 2] for name, s in samples.items()}

    def _elapsed(self, f: Callable[[], object], calls: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            f()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / calls / 1e3

    def replays(self, functions: Functions) -> dict[str, float]:
        """Time of one call within a replayed CUDA graph: the device without the host. Empty on a CPU."""
        if self.device.type == "cpu":
            return {}
        graphs = {name: captured(f) for name, f in functions.items()}
        found = self.medians({name: graph.replay for name, graph in graphs.items()})
        return {name: t / IN_A_GRAPH for name, t in found.items()}

    def copy_bandwidth(self, megabytes: int) -> float:
        """Bytes per second, read and written, of a copy on the device."""
        x = torch.ones(megabytes * 2**20 // 4, dtype=torch.float32, device=self.device)
        y = torch.empty_like(x)
        return 2 * x.numel() * 4 / self.medians({"copy": lambda: y.copy_(x)})["copy"]


def captured(f: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """IN_A_GRAPH calls as a CUDA graph. Plans are created before the capture (docs/cuda.md)."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            f()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(IN_A_GRAPH):
            f()
    return graph


def waits(f: Callable[[], object]) -> bool:
    """Does a repeated call of f wait for the device?"""
    f()
    torch.cuda.set_sync_debug_mode("error")
    try:
        f()
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return False
