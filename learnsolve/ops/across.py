"""Vectors whose rows lie in several processes: loops on them need sums over all processes.

Every process runs the same loop on its rows. A scalar per column (an inner product, a norm, a coefficient)
exists in each process, bitwise identical. The cotangents of these copies add up to the cotangent of the
scalar. A sum over the rows is then a local sum followed by a sum over the processes, in the forward pass and
in the backward pass. Between two sums, each process works independently.

A solver enters `over(A)` to work with such a matrix; `dots`, `largest` and `size` call `across()`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Protocol

import torch
from torch import Tensor


class Across(Protocol):
    """The processes that share the rows of a matrix. All of them must call each method, in the same order."""

    rows: int  # of the whole matrix

    def total(self, t: Tensor) -> Tensor:
        """The sum over the processes, with a copy in each, differentiable."""
        ...

    def largest(self, t: Tensor) -> Tensor:
        """The largest over the processes, a constant, or NaN if there is one."""
        ...

    def shown(self, t: Tensor) -> Tensor:
        """A scalar of the loops for the caller, whose full cotangent every process has."""
        ...

    def parameter(self, name: str, key: str, value: Tensor, rows: bool) -> Tensor:
        """A parameter (..., 1 or n) or, not `rows`, (...), for the loops: all processes hold a copy, and its
        gradient is the gradient of the copies together."""
        ...


_loops = 0  # loops that run on such vectors, in any thread: for torch.compile, which reads no ContextVar
_across: ContextVar[Across | None] = ContextVar("_across", default=None)


def across() -> Across | None:
    return _across.get() if _loops else None


def find_processes(A: object) -> Across | None:
    """The processes that share the rows of A, a matrix or an operator of the loops."""
    return getattr(A, "across", None)


def include_processes(shared: Across | None) -> AbstractContextManager[None]:
    """Inside, sums over rows include these processes."""
    return _HERE if shared is None else _include(shared)


_HERE = nullcontext()


@contextmanager
def _include(shared: Across) -> Iterator[None]:
    global _loops
    _loops += 1
    token = _across.set(shared)
    try:
        yield
    finally:
        _across.reset(token)
        _loops -= 1


def total(t: Tensor) -> Tensor:
    processes = across()
    return t if processes is None else processes.total(t)


def anywhere(flags: Tensor) -> Tensor:
    """Which of these flags hold in any process."""
    processes = across()
    return flags if processes is None else processes.largest(flags.to(torch.float64)) > 0


def everywhere(flag: bool) -> bool:
    """Whether the flag holds in all processes."""
    return flag if across() is None else not bool(anywhere(torch.tensor([not flag])))


def rows(t: Tensor) -> int:
    """The number of rows of blocks of columns (..., n, k) in all processes."""
    processes = across()
    return t.shape[-2] if processes is None else processes.rows
