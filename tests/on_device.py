"""What `pytest --device` does: the tests create their tensors on that device.

It is torch's default device then, so `torch.ones` and the helpers of reference.py make theirs
there; and so do the library's constructors from host data, `CSR.from_scipy` and `problems.*`, when a test
calls them without a device. Calls by the library itself are left alone: it must choose the device of its
tensors.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from pretend_device import DEVICE, PretendDevice

import learnsolve as ls

TESTS = str(Path(__file__).resolve().parent)
NAMES = ("cpu", "cuda", "pretend")


def what_is_missing(name: str, on_host: bool) -> str:
    """Why tests cannot run on this device; nothing if they can."""
    if name == "cuda" and not torch.cuda.is_available():
        return "--device cuda: torch sees no CUDA device"
    if name == "pretend" and not on_host:
        return (
            "--device pretend needs the CUDA operators compiled for the host: build and run with "
            "LEARNSOLVE_CUDA_ON_HOST=1"
        )
    return ""


def moved(function: Callable) -> Callable:
    """The constructor, for calls that a test makes without a device."""

    @functools.wraps(function)
    def make(*args: Any, **keywords: Any) -> Any:
        made = function(*args, **keywords)
        if "device" in keywords or not sys._getframe(1).f_code.co_filename.startswith(TESTS):
            return made
        return made.to(torch.empty(0).device) if isinstance(made, ls.CSR) else made

    return make


@contextmanager
def tensors_on(name: str) -> Iterator[torch.device]:
    if name == "cpu":
        yield torch.device("cpu")
        return
    makers = [f for f, v in vars(ls.problems).items() if inspect.isfunction(v)]
    kept = [(ls.problems, f, getattr(ls.problems, f)) for f in makers]
    kept.append((ls.CSR, "from_scipy", inspect.getattr_static(ls.CSR, "from_scipy")))
    for owner, maker, function in kept[:-1]:
        setattr(owner, maker, moved(function))
    ls.CSR.from_scipy = staticmethod(moved(ls.CSR.from_scipy))  # type: ignore[method-assign]
    try:
        device = DEVICE if name == "pretend" else torch.device(name)
        with PretendDevice() if name == "pretend" else nullcontext():
            torch.set_default_device(device)
            yield device
    finally:
        torch.set_default_device(None)
        for owner, maker, function in kept:
            setattr(owner, maker, function)
