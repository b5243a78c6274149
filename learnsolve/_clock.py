"""Seconds of a call, with the work that it queues on devices."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch


def wait(devices: Iterable[torch.device]) -> None:
    """Wait for all work queued on the CUDA devices among these."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def time_call(run: Callable[[], object], devices: Iterable[torch.device]) -> tuple[float, Any]:
    wait(devices)
    start = time.perf_counter()
    result = run()
    wait(devices)
    return time.perf_counter() - start, result
