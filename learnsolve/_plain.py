"""Ordinary tensors, wherever they are made."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar, cast

import torch

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def plain_tensors() -> Iterator[None]:
    """Tensors made inside are ordinary ones, wherever the caller is. What a pattern keeps and shares must not
    belong to a transformation of `torch.func` or to inference mode."""
    with torch.inference_mode(False), torch._C._DisableFuncTorch():
        yield


def outside_of_graphs(function: Callable[P, T]) -> Callable[P, T]:
    """`torch.compile` does not look inside `function`: it breaks its graph there."""
    return cast(Callable[P, T], torch.compiler.disable(function))


def makes_plain_tensors(make: Callable[P, T]) -> Callable[P, T]:
    """Run `make` among `plain_tensors`, and outside of the graph that `torch.compile` traces."""

    @wraps(make)
    def outside(*args: P.args, **kwargs: P.kwargs) -> T:
        with plain_tensors():
            return make(*args, **kwargs)

    return outside_of_graphs(outside)
