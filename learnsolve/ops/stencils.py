"""Stencils on structured grids: matrix-free, as an operator, as a matrix, differentiable to any order.

They are the derivatives of one trilinear form,

    Phi(c, x, g) = sum_b <g_b, S(c_b) x_b>,      (S(c) x)_i = sum_k c_k(i) x_{i + o_k},

with dPhi/dg = S(c) x the stencil, dPhi/dx = S(c)^T g its transpose, dPhi/dc_k(i) = g_i x_{i + o_k} the
products, summed over the grid if c_k is constant over it. Here c is (K, *grid) or (K, 1, ..., 1), x and g are
(*grid), each optionally with a leading batch axis.
"""

from __future__ import annotations

import functools
import math
import operator
import weakref
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from learnsolve import _library  # noqa: F401  (registers torch.ops.learnsolve)
from learnsolve.matrix import checks
from learnsolve.matrix.cache import makes_plain_tensors
from learnsolve.matrix.checks import Numbers, like
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops import complex_values
from learnsolve.ops.autograd import Derivative, broadcast, dispatch, gradients
from learnsolve.ops.indexing import first_of_each, sum_at_places
from learnsolve.ops.operators import LinearOperator

_raw = torch.ops.learnsolve.stencil.default
_raw_products = torch.ops.learnsolve.stencil_products.default

# The operands c, x, g of Phi.
_COEFFICIENTS, _X, _G = 0, 1, 2


@torch.library.register_fake("learnsolve::stencil")
def _(coefficients, x, offsets, periodic, transpose=False, sum_batch=False):
    d = len(periodic)
    grid = x.shape[x.dim() - d :]
    if sum_batch or (coefficients.dim() < d + 2 and x.dim() < d + 1):
        return x.new_empty(grid)
    batch = coefficients.shape[0] if coefficients.dim() == d + 2 else 1
    return x.new_empty(x.shape[0] if x.dim() == d + 1 and batch == 1 else batch, *grid)


@torch.library.register_fake("learnsolve::stencil_products")
def _(u, w, offsets, periodic, constant, sum_batch=False):
    d = len(periodic)
    tail = (len(offsets) // d, *((1,) * d if constant else u.shape[u.dim() - d :]))
    if sum_batch or (u.dim() == d and w.dim() == d):
        return u.new_empty(tail)
    batch = u.shape[0] if u.dim() == d + 1 else 1
    return u.new_empty(w.shape[0] if w.dim() == d + 1 and batch == 1 else batch, *tail)


class Neighbors(NamedTuple):
    """K offsets of d integers, concatenated, and 1 or 0 for each of the d axes: periodic or not."""

    offsets: tuple[int, ...]
    periodic: tuple[int, ...]


def apply(c: Tensor, x: Tensor, where: Neighbors, transpose: bool = False) -> Tensor:
    """S(c) x or S(c)^T x, unchecked: merges any batch axes into the one axis of the kernels."""
    d, role = len(where.periodic), _X if transpose else _G
    if complex_values.either(c, x):
        return complex_values.bilinear(lambda c, x: apply(c, x, where, transpose), c, x, (d + 1, d))
    constant = c.shape[-d:].numel() == 1
    both = c.dim() == d + 2 and x.dim() == d + 1
    if c.dim() <= d + 2 and x.dim() <= d + 1 and not (both and len(c) != len(x)):
        return dispatch(_Stencil, (c, x), role, False, where, constant)
    return broadcast(_Stencil, role, c, x, where, constant)


def products(y: Tensor, x: Tensor, where: Neighbors, like: Tensor) -> Tensor:
    """The gradient of <y, S(c) x> for the coefficients c, in the shape of `like`. The last axis before the
    grid is an axis of columns, which share the coefficients."""
    d = len(where.periodic)
    batch = torch.broadcast_shapes(y.shape[:-d], x.shape[:-d])
    u, w = (t.expand(batch + t.shape[-d:]).reshape((batch.numel(), *t.shape[-d:])) for t in (y, x))
    constant, shared = like.shape[-d:].numel() == 1, like.dim() == d + 1
    q = dispatch(_Stencil, (w, u), _COEFFICIENTS, shared, where, constant)
    if shared:
        return q.reshape(like.shape)
    return q.reshape(batch + q.shape[-d - 1 :]).sum(-d - 2).sum_to_size(like.shape)


class _Stencil(Derivative):
    """dPhi/dg, dPhi/dx and dPhi/dc. `constant`: c is constant over the grid."""

    @staticmethod
    def axes(role, where, constant):
        return len(where.periodic) + (role == _COEFFICIENTS)

    @staticmethod
    def forward(c, x, role, shared, where, constant):
        if role == _COEFFICIENTS:
            u, w = x, c
            return _raw_products(u, w, *where, constant, shared)
        return _raw(c, x, *where, role == _X, shared)

    @staticmethod
    def backward(ctx, g):
        return gradients(_Stencil, ctx, g)


def stencil(
    coefficients: Numbers,
    x: Annotated[Tensor, like("coefficients", or_complex=True)],
    *,
    offsets: Sequence[Sequence[int]] | None = None,
    boundary: str | Sequence[str] = "dirichlet",
) -> Tensor:
    r"""Apply a stencil on a one-, two- or three-dimensional grid, without a matrix.

    .. math:: y_i = \sum_k c_k(i)\, x_{i + o_k}

    Parameters
    ----------
    coefficients : Tensor, float32 or float64, or complex. Without `offsets`: a window of odd sizes, (w,),
        (wx, wy) or (wx, wy, wz), for all points, centered and not flipped (as in `conv2d`). With K `offsets`
        of d integers: (K,), constant over the grid; (..., K, \*grid), :math:`c_k(i)`, or (..., K, 1, ..., 1)
        with d ones, constant over the grid with batch axes
    x : Tensor, shape (..., \*grid), of the coefficients' dtype and device
    offsets : K sequences of d integers, or None: relative positions of the neighbors. Repeated ones are added
    boundary : "dirichlet" (zero outside the grid), "periodic", or one of them per axis

    Returns
    -------
    Tensor, shape (..., \*grid). Batch axes broadcast.

    Raises
    ------
    ValueError, TypeError
        if shapes, offsets or boundary do not fit.

    Notes
    -----
    Gradient: :math:`\bar x_j = \sum_k c_k(j - o_k) \bar y_{j - o_k}`, the transposed stencil; :math:`\bar
    c_k(i) = \bar y_i x_{i + o_k}`, summed over the grid if constant. Any order, forward mode, vmap,
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
    if offsets is None:
        c, where = window("stencil", coefficients, boundary)
    else:
        c, where = coefficients, neighbors("stencil", offsets, boundary)
    d = len(where.periodic)
    if x.dim() < d:
        raise ValueError(
            f"stencil: x must have shape (..., *grid) with {d} axes of a grid, got {tuple(x.shape)}"
        )
    c = expand_coefficients("stencil", c, where, x.shape[-d:])
    checks.batches("stencil", c.shape[: -d - 1], x.shape[:-d], "coefficients and x")
    return apply(c, x, where)


def window(function: str, coefficients: Tensor, boundary: object) -> tuple[Tensor, Neighbors]:
    """The coefficients of a centered window, (K, 1, ..., 1), and their neighbors."""
    sizes = tuple(coefficients.shape)
    if not 1 <= len(sizes) <= 3 or any(w % 2 == 0 for w in sizes):
        raise ValueError(
            f"{function}: without offsets, coefficients must be a window of 1, 2 or 3 odd sizes, got shape "
            f"{sizes}. Pad it with zeros, or pass offsets"
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


def neighbors(function: str, offsets: object, boundary: object) -> Neighbors:
    """`offsets` and `boundary` in the form of the kernels."""
    try:
        each = [tuple([operator.index(o) for o in _check_order(offset)]) for offset in _check_order(offsets)]
    except TypeError:
        raise TypeError(
            f"{function}: offsets must be tuples of integers, in an order, got {offsets!r}"
        ) from None
    d = len(each[0]) if each else 0
    if not 1 <= d <= 3 or any(len(offset) != d for offset in each):
        raise ValueError(
            f"{function}: offsets must be one or more tuples of 1, 2 or 3 integers, all of the same length, "
            f"got {offsets!r}"
        )
    flat = tuple([o for offset in each for o in offset])
    for o in flat:
        if not -(2**63) <= o < 2**63:
            raise ValueError(
                f"{function}: offsets must fit into 64 bits, got {o}. On a periodic axis take it modulo the "
                "size of the grid"
            )
    return Neighbors(flat, _periodic(function, boundary, d))


def _check_order(sequence: object) -> Any:
    if isinstance(sequence, (set, frozenset, dict)):
        raise TypeError
    return sequence


def _periodic(function: str, boundary: object, d: int) -> tuple[int, ...]:
    words = checks.words(function, "boundary", boundary, ("dirichlet", "periodic"))
    words = words * d if isinstance(boundary, str) else words
    if len(words) != d:
        raise ValueError(
            f"{function}: boundary must be one word, or one for each of {d} axes, got {boundary!r}"
        )
    return tuple([int(word == "periodic") for word in words])


def expand_coefficients(function: str, c: Tensor, where: Neighbors, grid: torch.Size) -> Tensor:
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
    given = checks.sequence(function, "grid", grid, "ints")
    sizes = torch.Size([checks.integer(function, "each size of grid", n, 0) for n in given])
    if len(sizes) != d:
        raise ValueError(f"{function}: grid must have {d} sizes, got {tuple(sizes)}")
    return sizes


# Patterns in use: a matrix that is rebuilt with other coefficients keeps its pattern.
_patterns: weakref.WeakValueDictionary[object, SparsityPattern] = weakref.WeakValueDictionary()


def stencil_matrix(
    coefficients: Numbers,
    grid: Sequence[int],
    *,
    offsets: Sequence[Sequence[int]] | None = None,
    boundary: str | Sequence[str] = "dirichlet",
) -> CSR:
    r"""The matrix of a stencil operator, for which :math:`A x` is `stencil` of x, flattened.

    .. math:: A_{i, i + o_k} = c_k(i)

    Parameters
    ----------
    coefficients, offsets, boundary : see `stencil`
    grid : sequence of int, its sizes. Points are numbered with the last axis fastest

    Returns
    -------
    CSR, shape (n, n), n the number of points, with int32 indices if they can count the entries, otherwise
    int64. Its values have the batch axes of the coefficients. Zero coefficients are entries. If offsets
    coincide, on a small periodic grid, their coefficients are added.

    Notes
    -----
    Gradient: :math:`\bar c_k(i) = \bar A_{i, i + o_k}`, summed over the grid if the coefficient is the
    same for all points. Any order.

    Cost: O(K n log(K n)) to make the pattern. While a matrix with this pattern lives, later ones share it and
    only gather their values, O(K n). Not supported under `torch.compile`.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> ls.ops.stencil_matrix(torch.tensor([-1.0, 2.0, 0.0]), (4,), boundary="periodic").to_dense()
    tensor([[ 2.,  0.,  0., -1.],
            [-1.,  2.,  0.,  0.],
            [ 0., -1.,  2.,  0.],
            [ 0.,  0., -1.,  2.]])
    """
    if offsets is None:
        c, where = window("stencil_matrix", coefficients, boundary)
    else:
        c, where = coefficients, neighbors("stencil_matrix", offsets, boundary)
    sizes = grid_sizes("stencil_matrix", grid, len(where.periodic))
    return assemble_matrix(expand_coefficients("stencil_matrix", c, where, sizes), where, sizes)


def assemble_matrix(c: Tensor, where: Neighbors, grid: torch.Size) -> CSR:
    """`stencil_matrix` for checked coefficients (..., K, *grid) or (..., K, 1, ..., 1)."""
    d = len(grid)
    constant = c.shape[-d:].numel() == 1 and grid.numel() != 1
    pattern, gather = _plan(where, tuple(grid), constant, c.device)
    return CSR(sum_at_places(c.flatten(-d - 1), gather), pattern)


@makes_plain_tensors
def _plan(
    where: Neighbors, grid: tuple[int, ...], constant: bool, device: torch.device
) -> tuple[SparsityPattern, SparsityPattern]:
    """The patterns of the matrix and of the 0/1 matrix from the coefficients (K or K n) to its entries."""
    key = (where, grid, device)
    pattern = _patterns.get(key)
    if pattern is None:
        pattern = _patterns[key] = _pattern(where, grid, device)
    return pattern, pattern._plan_once(_gather, where.offsets, where.periodic, grid, constant)[0]


def stencil_entries(
    offsets: Sequence[Sequence[int]], periodic: Sequence[int | bool], grid: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(row, column, offset) of each neighbor on the grid, sorted by row, column, offset."""
    n, count = math.prod(grid), len(offsets)
    narrow = n <= np.iinfo(np.int32).max // 4  # room for columns outside the grid, which are dropped
    inside = np.ones((*grid, count), dtype=bool)
    column = np.empty((*grid, count), dtype=np.int32 if narrow else np.int64)
    column[:] = np.arange(n).reshape(*grid, 1)
    for k, offset in enumerate(offsets):
        for axis, (step, size) in enumerate(zip(offset, grid, strict=True)):
            stride = math.prod(grid[axis + 1 :])
            at: list[slice | int] = [*(slice(None),) * len(grid), k]
            step = step % max(size, 1) if periodic[axis] else step
            # The points whose neighbor lies beyond the end of the axis.
            at[axis] = slice(0, min(-step, size)) if step < 0 else slice(max(size - step, 0), size)
            if periodic[axis]:
                column[tuple(at)] -= size * stride
            else:
                inside[tuple(at)] = False
            column[..., k] += step * stride if abs(step) < size else 0
    mask = inside.reshape(n, count)
    i, k = np.nonzero(mask)
    j = column.reshape(n, count)[mask]
    if not any(periodic) and list(map(tuple, offsets)) == sorted(map(tuple, offsets)):
        return i, j, k  # neighbors in lexicographic order have ascending columns
    order = np.lexsort((k, j, i))
    return i[order], j[order], k[order]


def _triples(where: Neighbors, grid: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    d = len(grid)
    offsets = [where.offsets[k : k + d] for k in range(0, len(where.offsets), d)]
    return stencil_entries(offsets, where.periodic, grid)


def _index(array: np.ndarray, largest: int, device: torch.device) -> Tensor:
    narrow = largest <= torch.iinfo(torch.int32).max
    return torch.from_numpy(array.astype(np.int32 if narrow else np.int64)).to(device)


def _pattern(where: Neighbors, grid: tuple[int, ...], device: torch.device) -> SparsityPattern:
    i, j, _ = _triples(where, grid)
    first, n = first_of_each(i, j), math.prod(grid)
    crow = np.searchsorted(i[first], np.arange(n + 1))
    largest = max(n, len(first))
    return SparsityPattern._construct(
        _index(crow, largest, device), _index(j[first], largest, device), (n, n)
    )


def _gather(
    pattern: SparsityPattern,
    offsets: tuple[int, ...],
    periodic: tuple[int, ...],
    grid: tuple[int, ...],
    constant: bool,
) -> tuple[SparsityPattern]:
    i, j, k = _triples(Neighbors(offsets, periodic), grid)
    n = math.prod(grid)
    source = k if constant else k * n + i
    sources = len(offsets) // len(grid) * (1 if constant else n)
    crow = np.append(first_of_each(i, j), len(i))
    largest = max(len(i), sources)
    return (
        SparsityPattern._construct(
            _index(crow, largest, pattern.device),
            _index(source, largest, pattern.device),
            (pattern.nnz, sources),
        ),
    )


class StencilOperator(LinearOperator):
    r"""The matrix of a stencil without stored entries, for products and as the A of solvers.

    :math:`(A x)_i = \sum_k c_k(i)\, x_{i + o_k}` for vectors x on a grid, its points numbered with the
    last axis fastest.

    Parameters
    ----------
    coefficients, offsets, boundary : as for `stencil`. Coefficients may be trainable
    grid : sequence of int, its sizes

    Attributes
    ----------
    shape : (n, n), n the number of points
    coefficients : Tensor, (..., K, \*grid), or (..., K, 1, ..., 1) if constant over the grid
    batch_shape : the batch axes of the coefficients
    T : the transposed operator
    dtype, device

    Notes
    -----
    ``A @ x`` accepts x of shape (n,) or (..., n, k). `to_csr` is `stencil_matrix`, for what reads entries.
    Gradients are as for `stencil`, to any order. Cost: 2 K
    n flops per column, no indices. k > 1 columns are copied to make each contiguous.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> laplacian = torch.tensor([[0.0, -1, 0], [-1, 4, -1], [0, -1, 0]], dtype=torch.float64)
    >>> A = ls.ops.StencilOperator(laplacian, (30, 40))
    >>> A.shape
    (1200, 1200)
    >>> ls.solvers.cg(A, torch.ones(1200, dtype=torch.float64)).status.name
    'CONVERGED'
    """

    watched, takes_complex = False, False

    def __init__(
        self,
        coefficients: Numbers,
        grid: Sequence[int],
        *,
        offsets: Sequence[Sequence[int]] | None = None,
        boundary: str | Sequence[str] = "dirichlet",
    ):
        name = "StencilOperator"
        if offsets is None:
            c, where = window(name, coefficients, boundary)
        else:
            c, where = coefficients, neighbors(name, offsets, boundary)
        self.grid, self._where = grid_sizes(name, grid, len(where.periodic)), where
        n = self.grid.numel()
        super().__init__((n, n), expand_coefficients(name, c, where, self.grid))

    @property
    def coefficients(self) -> Tensor:
        return self.parameters[0]

    @property
    def dtype(self) -> torch.dtype:
        return self.coefficients.dtype

    @property
    def device(self) -> torch.device:
        return self.coefficients.device

    @property
    def requires_grad(self) -> bool:
        return self.coefficients.requires_grad

    def requires_grad_(self, requires_grad: bool = True) -> StencilOperator:
        """Set whether the coefficients require grad. Their gradient is in ``A.coefficients.grad``."""
        self.coefficients.requires_grad_(requires_grad)
        return self

    @property
    def batch_shape(self) -> torch.Size:
        return self.coefficients.shape[: -len(self.grid) - 1]

    def with_coefficients(self, coefficients: Numbers) -> StencilOperator:
        """The same stencil with other coefficients, of the shape of the attribute except for batch axes.
        Their dtype and device become those of the new operator."""
        c = expand_coefficients("StencilOperator.with_coefficients", coefficients, self._where, self.grid)
        return self.with_parameters((c,))

    def csr(self, *parameters: Tensor) -> CSR:
        return assemble_matrix(parameters[0], self._where, self.grid)

    def __matmul__(self, x: object) -> Any:
        if not isinstance(x, Tensor):
            return super().__matmul__(x)
        name = "StencilOperator"
        checks.same_kind(name, "x", x, self.coefficients, or_complex=True)
        n = self.shape[0]
        if x.dim() == 0 or x.shape[0 if x.dim() == 1 else -2] != n:
            raise ValueError(
                f"{name}: x must have shape ({n},) or (..., {n}, k), got {tuple(x.shape)}. Flatten the grid"
            )
        if x.dim() > 1:
            checks.batches(name, self.batch_shape, x.shape[:-2], "coefficients and x")
            return self(x)
        if self.batch_shape:
            raise ValueError(
                f"{name}: for a batch of operators x must have shape (..., n, k), got {tuple(x.shape)}. "
                "x.unsqueeze(-1) is one column for all"
            )
        return self(x.unsqueeze(-1)).squeeze(-1)

    def __call__(self, x: Tensor) -> Tensor:
        return self._product(x, self.coefficients, self.turned)

    def mv(self, x: Tensor, *parameters: Tensor) -> Tensor:
        return self._product(x, parameters[0], False)

    def rmv(self, y: Tensor, *parameters: Tensor) -> Tensor:
        return self._product(y, parameters[0], True)

    def _product(self, X: Tensor, c: Tensor, transpose: bool) -> Tensor:
        d = len(self.grid)
        Y = apply(c.unsqueeze(-d - 2) if c.dim() > d + 1 else c, self._fields(X), self._where, transpose)
        return Y.reshape(*Y.shape[:-d], self.shape[0]).mT

    def pullback(self, y: Tensor, x: Tensor) -> tuple[Tensor | None, ...]:
        u, w = (x, y) if self.turned else (y, x)
        return (products(self._fields(u), self._fields(w), self._where, self.coefficients),)

    def pushforward(self, x: Tensor, tangents: tuple[Tensor | None, ...]) -> Tensor:
        assert tangents[0] is not None
        return self._product(x, tangents[0], self.turned)

    def largest_entry(self) -> Tensor | None:
        c = self.coefficients
        return None if c.numel() == 0 else c.detach().abs().flatten(-self.core()).amax(-1)[..., None, None]

    def magnitude(self, x: Tensor) -> Tensor | None:
        return self._product(x.abs(), self.coefficients.detach().abs(), self.turned)

    def core(self) -> int:
        return 1 + len(self.grid)

    def _fields(self, X: Tensor) -> Tensor:
        """(..., n, k) as fields (..., k, *grid)."""
        return X.mT.reshape(*X.shape[:-2], X.shape[-1], *self.grid)

    def __repr__(self) -> str:
        points = len(self._where.offsets) // len(self.grid)
        return f"StencilOperator(grid={tuple(self.grid)}, neighbors={points}, dtype={self.dtype})"
