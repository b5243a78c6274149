"""Stencils by index arrays and torch alone: what those of the library are compared with."""

import functools
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from learnsolve.matrix.plain import plain_tensors

CROSS = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))
SKEW = ((-7, 3), (0, 1), (2, -1), (0, 1), (0, -40))  # beyond small grids; one offset comes twice
LINE = ((0,), (3,), (-1,), (-100,))
SPACE = ((0, 0, 0), (1, -1, 2), (-1, 0, 1), (0, 5, 0))


def box(*sizes: int) -> tuple[tuple[int, ...], ...]:
    """The offsets of a centered window, in the order of its places."""
    return tuple(tuple(int(i) - w // 2 for i, w in zip(at, sizes, strict=True)) for at in np.ndindex(*sizes))


@functools.lru_cache(maxsize=512)
@plain_tensors()
def neighbors(grid: tuple[int, ...], offsets: tuple, boundary: str | tuple) -> tuple[Tensor, Tensor]:
    """Place of each neighbor, 0 where there is none, and whether there is one: both (K, n)."""
    words = (boundary,) * len(grid) if isinstance(boundary, str) else boundary
    shape = (len(offsets), math.prod(grid))
    place, inside = np.zeros(shape, dtype=np.int64), np.ones(shape, dtype=bool)
    points = np.indices(grid).reshape(len(grid), -1)
    for a, (size, word) in enumerate(zip(grid, words, strict=True)):
        at = points[a] + np.array([o[a] for o in offsets])[:, None]
        at = at % size if word == "periodic" and size else at
        inside &= (at >= 0) & (at < size)
        place = place * size + at
    return torch.as_tensor(np.where(inside, place, 0)), torch.as_tensor(inside)


def stencil(c: Tensor, x: Tensor, offsets: Sequence, boundary: str | tuple = "zero") -> Tensor:
    """sum_k c_k(i) x_{i + o_k} for c (K,), (..., K, *grid) or (..., K, 1, ..., 1)."""
    d = len(offsets[0])
    place, inside = neighbors(tuple(x.shape[-d:]), tuple(offsets), boundary)
    c = c.unflatten(-1, (len(offsets), *(1,) * d)) if c.dim() == 1 else c
    xs = torch.where(inside, x.flatten(-d)[..., place], 0).unflatten(-1, x.shape[-d:])
    return (c * xs).sum(-d - 1)
