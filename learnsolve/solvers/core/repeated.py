"""Segments of a loop that the backward repeats ("checkpointed"), and whether it repeats the same.

The graph holds what a segment starts from, and nothing that its iterations compute. If the repetition reads
other values than the forward did, the gradient belongs to neither: that is an error. It shows in

    versions         of all tensors that autograd saves, as without checkpoints; torch checks the arguments
    residual norms   on the CPU, to sqrt(eps): changes that raise no version, and functions that give
                     something else when they are called again
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C._autograd import _top_saved_tensors_default_hooks
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import CheckpointError, checkpoint, set_checkpoint_early_stop

from learnsolve.matrix.unchanged import version
from learnsolve.ops.core import across


def in_segments(loop: Any, progress: Any, maxiter: int) -> tuple[Any, list[Tensor]]:
    """Up to `maxiter` iterations of a `_Loop` (loop.py), in segments of 1, 2, 3, ... of them; their norms."""
    done, length, norms = 0, 1, []
    kind, make = type(progress), type(progress.state)
    runs, _ = loop.runs(progress)
    while done < maxiter and runs:
        segment = _Segment(loop, kind, make, min(length, maxiter - done), done)
        state, *rest = progress
        *ended, history = repeated(loop.system.name, segment, loop.b, *rest, *state)
        progress, runs = kind(make(*ended[4:]), *ended[:4]), segment.runs
        norms.append(history)
        done += history.shape[-2]
        length += 1
    return progress, norms


class _Segment:
    """`count` iterations as a function of tensors, which a backward repeats."""

    def __init__(self, loop: Any, kind: type, make: type, count: int, done: int):
        self.loop, self.kind, self.make, self.count, self.done = loop, kind, make, count, done
        self.first, self.runs = True, True
        self.across = across.across()  # a backward repeats this outside of the solve

    def __call__(self, _: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        rest, state = tensors[:4], tensors[4:]
        progress = self.kind(self.make(*state), *rest)
        with across.over(self.across):
            ended, history, self.runs = self.loop.run(self.count, self.done, progress, replay=not self.first)
        if self.first and self.loop.callback is not None:
            self.count = len(history)  # a callback may have ended it; a repetition does not call it
        self.first = False
        return (*ended[1:], *ended.state, torch.cat(history, dim=-2))


def repeated(function: str, run: Callable[..., tuple], *tensors: Tensor | None) -> Any:
    """run(*tensors), whose last result are residual norms, (..., iterations, k). A backward repeats it, and
    an error names `function`."""
    if torch.compiler.is_dynamo_compiling() or not torch.is_grad_enabled():
        return checkpoint(run, *tensors, use_reentrant=False)
    # The repetition runs to its end: its last norms are compared too.
    with set_checkpoint_early_stop(False):
        return checkpoint(_Repeated(function, run), *tensors, use_reentrant=False)


class _Repeated:
    def __init__(self, function: str, run: Callable[..., tuple]):
        self.function, self.run = function, run
        self.versions: list[int] = []
        self.norms: Tensor | None = None  # of the forward

    def __call__(self, *tensors: Tensor | None) -> tuple:
        if self.norms is None:
            with _watching_saved(lambda t: self.versions.append(version(t))):
                results = self.run(*tensors)
            self.norms = results[-1].detach()
            return results
        known = iter(self.versions)

        def compare(t: Tensor) -> None:
            if version(t) != next(known, None):
                raise self.error()

        try:
            with _watching_saved(compare):
                results = self.run(*tensors)
        except CheckpointError:
            raise self.error() from None
        if next(known, None) is not None or not _alike(results[-1].detach(), self.norms):
            raise self.error()
        return results

    def error(self) -> RuntimeError:
        return RuntimeError(
            f'{self.function}: gradient="checkpointed" repeats iterations in the backward, and they gave '
            "something else there: A, b, x0, M or parameters were changed in place after the solve, or a "
            "function among them does not give the same when it is called again. Call backward before such "
            'changes, solve with clones, or use gradient="unrolled"'
        )


@contextmanager
def _watching_saved(call: Callable[[Tensor], None]) -> Iterator[None]:
    """Calls `call` with every tensor that autograd saves, and then the hooks of the checkpoint."""
    hooks = _top_saved_tensors_default_hooks(True)
    assert hooks is not None
    pack, unpack = hooks

    def pack_watched(t: Tensor) -> Any:
        call(t)
        return pack(t)

    with saved_tensors_hooks(pack_watched, unpack):
        yield


def _alike(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    if not a.is_cpu:  # to compare would wait for the device
        return True
    rtol = torch.finfo(a.dtype).eps ** 0.5
    return torch.allclose(a, b, rtol=rtol, atol=0.0, equal_nan=True)
