"""Ordinary tensors, wherever they are made."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar, cast

import torch
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def plain_tensors() -> Iterator[None]:
    """Tensors made inside are ordinary ones, wherever the caller is. What a pattern keeps and shares must not
    belong to a transformation of `torch.func` or to inference mode."""
    with torch.inference_mode(False), torch._C._DisableFuncTorch():
        yield


def outside_of_graphs(function: Callable[P, T]) -> Callable[P, T]:
    """`torch.compile` does not look inside `function`: it breaks its graph there.

    The same as `torch.compiler.disable`, which loads Dynamo (a second and a half) when it is called. Here the
    function carries Dynamo's mark, and is wrapped only once something else has loaded Dynamo.
    """
    wrapped: list[Callable[P, T]] = []

    @wraps(function)
    def outside(*args: P.args, **kwargs: P.kwargs) -> T:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if not wrapped:
            wrapped.append(cast(Callable[P, T], torch.compiler.disable(function)))
        return wrapped[0](*args, **kwargs)

    outside._torchdynamo_disable = True  # type: ignore[attr-defined]
    outside._torchdynamo_disable_msg = None  # type: ignore[attr-defined]
    # Dynamo must not compile the frame of `outside` either when it is called after the graph break.
    skip = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.DEFAULT)
    set_code_exec_strategy(outside.__code__, skip)  # type: ignore[attr-defined]
    return outside


def constant_in_graphs(function: Callable[P, T]) -> Callable[P, T]:
    """`torch.compile` calls `function` while it traces and takes the result for a constant: the mark that
    `torch.compiler.assume_constant_result` sets, without loading Dynamo."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def makes_plain_tensors(make: Callable[P, T]) -> Callable[P, T]:
    """Run `make` among `plain_tensors`, and outside of the graph that `torch.compile` traces."""

    @wraps(make)
    def outside(*args: P.args, **kwargs: P.kwargs) -> T:
        with plain_tensors():
            return make(*args, **kwargs)

    return outside_of_graphs(outside)
