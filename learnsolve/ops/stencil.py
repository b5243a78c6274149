"""Matrix-free stencils on structured grids."""

import functools
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.ops.core.stencil import Neighbors, apply

_BOUNDARIES = ("zero", "periodic")


def stencil(
    coefficients: Tensor,
    x: Tensor,
    *,
    offsets: Sequence[Sequence[int]] | None = None,
    boundary: str | Sequence[str] = "zero",
) -> Tensor:
    r"""Apply a stencil on a one-, two- or three-dimensional grid, without a matrix.

    .. math:: y_i = \sum_k c_k(i)\, x_{i + o_k}

    Parameters
    ----------
    coefficients : Tensor, float32 or float64, or complex. Without `offsets`: a window of odd sizes, (w,),
        (wx, wy) or (wx, wy, wz), for all points, centered and not flipped (as in `conv2d`). With K `offsets`
        of d integers: (K,), constant over the grid; (..., K, \*grid), :math:`c_k(i)`; or (..., K, 1, ..., 1)
        with d ones, constant over the grid with batch axes
    x : Tensor, shape (..., \*grid), of the coefficients' dtype and device
    offsets : K sequences of d integers, or None: relative positions of the neighbors; repeated ones are added
    boundary : "zero", "periodic", or one of them per axis: the values outside the grid

    Returns
    -------
    Tensor, shape (..., \*grid); batch axes broadcast.

    Raises
    ------
    ValueError
        if shapes, offsets or boundary are invalid.
    TypeError
        if dtypes or devices do not match, or offsets are not integers.

    Notes
    -----
    Gradient: :math:`\bar x_j = \sum_k c_k(j - o_k) \bar y_{j - o_k}`, the transposed stencil; :math:`\bar
    c_k(i) = \bar y_i x_{i + o_k}`, summed over the grid if constant. Any order; forward mode, vmap,
    `torch.compile`. Cost: 2 K n flops for n points, as many for each gradient. Deterministic.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> x = torch.arange(4.0)
    >>> ls.ops.stencil(torch.tensor([-1.0, 2.0, -1.0]), x)
    tensor([-1.,  0.,  0.,  4.])
    >>> ls.ops.stencil(torch.tensor([2.0, -1.0]), x, offsets=[(0,), (1,)], boundary="periodic")
    tensor([-1.,  0.,  1.,  6.])
    """
    _operand("coefficients", coefficients)
    _operand("x", x)
    if not checks.one_precision(x.dtype, coefficients.dtype) or x.device != coefficients.device:
        raise TypeError(
            "stencil: coefficients and x must have one dtype and device, got "
            f"{coefficients.dtype} on {coefficients.device} and {x.dtype} on {x.device}; convert one with "
            ".to()"
        )
    if offsets is None:
        c, where = window("stencil", coefficients, boundary)
    else:
        c, where = coefficients, neighbors("stencil", offsets, boundary)
    d = len(where.periodic)
    if x.dim() < d:
        raise ValueError(
            f"stencil: x must have shape (..., *grid) with {d} axes of a grid, got {tuple(x.shape)}"
        )
    c = by_offset("stencil", c, where, x.shape[-d:])
    checks.batches("stencil", c.shape[: -d - 1], x.shape[:-d], "coefficients and x")
    return apply(c, x, where)


def _operand(name: str, value: Any) -> None:
    checks.tensor("stencil", name, value)
    checks.dtype("stencil", name, value, or_complex=True)


def window(function: str, coefficients: Tensor, boundary: Any) -> tuple[Tensor, Neighbors]:
    """The coefficients of a centered window, (K, 1, ..., 1), and their neighbors."""
    sizes = tuple(coefficients.shape)
    if not 1 <= len(sizes) <= 3 or any(w % 2 == 0 for w in sizes):
        raise ValueError(
            f"{function}: without offsets, coefficients must be a window of 1, 2 or 3 odd sizes, got shape "
            f"{sizes}; fill it up with zeros, or give offsets"
        )
    periodic = _periodic(function, boundary, len(sizes))
    tracing = torch.compiler.is_dynamo_compiling()
    offsets = (_window_offsets.__wrapped__ if tracing else _window_offsets)(sizes)
    return coefficients.reshape((-1,) + (1,) * len(sizes)), Neighbors(offsets, periodic)


@functools.lru_cache(maxsize=64)
def _window_offsets(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The offsets of the entries of a window, in order."""
    places: list[tuple[int, ...]] = [()]
    for w in sizes:
        places = [(*p, o) for p in places for o in range(-(w // 2), w // 2 + 1)]
    return tuple(o for p in places for o in p)


def neighbors(function: str, offsets: Any, boundary: Any) -> Neighbors:
    """`offsets` and `boundary` in the form of the kernels."""
    try:
        each = [tuple([operator.index(o) for o in _ordered(offset)]) for offset in _ordered(offsets)]
    except TypeError:
        raise TypeError(
            f"{function}: offsets must be tuples of integers, in an order, got {offsets!r}"
        ) from None
    d = len(each[0]) if each else 0
    if not 1 <= d <= 3 or any(len(offset) != d for offset in each):
        raise ValueError(
            f"{function}: offsets must be one or more tuples of 1, 2 or 3 integers, all of one length, got "
            f"{offsets!r}"
        )
    flat = tuple([o for offset in each for o in offset])
    for o in flat:
        if not -(2**63) <= o < 2**63:
            raise ValueError(
                f"{function}: offsets must fit into 64 bits, got {o}; on a periodic axis take it modulo the "
                "size of the grid"
            )
    return Neighbors(flat, _periodic(function, boundary, d))


def _ordered(sequence: Any) -> Any:
    if isinstance(sequence, (set, frozenset, dict)):
        raise TypeError
    return sequence


def _periodic(function: str, boundary: Any, d: int) -> tuple[int, ...]:
    if isinstance(boundary, str):
        checks.one_of(function, "boundary", boundary, _BOUNDARIES)
        return (int(boundary == "periodic"),) * d
    if not isinstance(boundary, Sequence):
        raise TypeError(
            f'{function}: boundary must be "zero", "periodic" or one of them for each axis, got {boundary!r}'
        )
    if len(boundary) != d:
        raise ValueError(
            f"{function}: boundary must be one word, or one for each of {d} axes, got {boundary!r}"
        )
    for word in boundary:
        checks.one_of(function, "boundary", word, _BOUNDARIES)
    return tuple([int(word == "periodic") for word in boundary])


def by_offset(function: str, c: Tensor, where: Neighbors, grid: torch.Size) -> Tensor:
    """Checked coefficients of shape (..., K, *grid) or (..., K, 1, ..., 1)."""
    d = len(where.periodic)
    K = len(where.offsets) // d
    if c.dim() == 1 and c.shape[0] == K:
        return c.reshape((K,) + (1,) * d)
    tail = c.shape[-d:]
    if c.dim() <= d or c.shape[-d - 1] != K or (tail != grid and tail.numel() != 1):
        raise ValueError(
            f"{function}: coefficients must have shape (K,), (..., K, *grid) or (..., K{', 1' * d}) with K = "
            f"{K} offsets and grid {tuple(grid)}, got {tuple(c.shape)}"
        )
    return c


def grid_sizes(function: str, grid: Sequence[int], d: int) -> torch.Size:
    try:
        sizes = torch.Size([operator.index(n) for n in grid])
    except TypeError:
        raise TypeError(f"{function}: grid must be a sequence of ints, got {grid!r}") from None
    if len(sizes) != d or any(n < 0 for n in sizes):
        raise ValueError(f"{function}: grid must have {d} sizes, none negative, got {tuple(sizes)}")
    return sizes
