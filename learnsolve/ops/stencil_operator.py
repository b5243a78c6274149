"""A stencil on a grid as a matrix-free operator."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.ops.core.stencil import apply, products
from learnsolve.ops.stencil import by_offset, grid_sizes, neighbors, window
from learnsolve.ops.stencil_matrix import matrix_of


class StencilOperator:
    r"""The matrix of a stencil without stored entries, for products and as the A of solvers.

    :math:`(A x)_i = \sum_k c_k(i)\, x_{i + o_k}` for vectors x on a grid, its points numbered with the
    last axis fastest.

    Parameters
    ----------
    coefficients, offsets, boundary : as for `stencil`; coefficients may be trainable
    grid : sequence of int, its sizes

    Attributes
    ----------
    shape : (n, n), n the number of points
    coefficients : Tensor, (..., K, \*grid), or (..., K, 1, ..., 1) if constant over the grid
    batch_shape : the batch axes of the coefficients
    T : the transposed operator
    dtype, device

    Raises
    ------
    ValueError, TypeError
        as for `stencil`.

    Notes
    -----
    ``A @ x`` accepts x of shape (n,) or (..., n, k); gradients as for `stencil`, to any order. Cost: 2 K n
    flops per column, no indices; k > 1 columns are copied to make each contiguous.

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

    def __init__(
        self,
        coefficients: Tensor,
        grid: Sequence[int],
        *,
        offsets: Sequence[Sequence[int]] | None = None,
        boundary: str | Sequence[str] = "zero",
    ):
        name = "StencilOperator"
        checks.tensor(name, "coefficients", coefficients)
        checks.dtype(name, "coefficients", coefficients, or_complex=True)
        if offsets is None:
            c, where = window(name, coefficients, boundary)
        else:
            c, where = coefficients, neighbors(name, offsets, boundary)
        self.grid = grid_sizes(name, grid, len(where.periodic))
        self.coefficients = by_offset(name, c, where, self.grid)
        self._where, self._transpose = where, False

    def _like(self, coefficients: Tensor, transpose: bool) -> StencilOperator:
        other = object.__new__(StencilOperator)
        other.grid, other._where = self.grid, self._where
        other.coefficients, other._transpose = coefficients, transpose
        return other

    @property
    def shape(self) -> tuple[int, int]:
        n = self.grid.numel()
        return (n, n)

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
        """Set whether the coefficients require grad; their gradient is in ``A.coefficients.grad``."""
        self.coefficients.requires_grad_(requires_grad)
        return self

    @property
    def batch_shape(self) -> torch.Size:
        return self.coefficients.shape[: -len(self.grid) - 1]

    @property
    def T(self) -> StencilOperator:
        return self._like(self.coefficients, not self._transpose)

    def with_coefficients(self, coefficients: Tensor) -> StencilOperator:
        """The same stencil with other coefficients, of the shape of the attribute except for batch axes.
        Their dtype and device become those of the new operator."""
        name = "StencilOperator.with_coefficients"
        checks.tensor(name, "coefficients", coefficients)
        checks.dtype(name, "coefficients", coefficients, or_complex=True)
        return self._like(by_offset(name, coefficients, self._where, self.grid), self._transpose)

    def to_csr(self) -> CSR:
        """The matrix as a CSR, as from `stencil_matrix`."""
        A = matrix_of(self.coefficients, self._where, self.grid)
        return A.T if self._transpose else A

    def __matmul__(self, x: Tensor) -> Tensor:
        name = "StencilOperator"
        checks.same_kind(name, "x", x, self.coefficients, or_complex=True)
        n = self.shape[0]
        if x.dim() == 0 or x.shape[0 if x.dim() == 1 else -2] != n:
            raise ValueError(
                f"{name}: x must have shape ({n},) or (..., {n}, k), got {tuple(x.shape)}; flatten the grid"
            )
        if x.dim() > 1:
            checks.batches(name, self.batch_shape, x.shape[:-2], "coefficients and x")
            return self._product(x)
        if self.batch_shape:
            raise ValueError(
                f"{name}: for a batch of operators x must have shape (..., n, k), got {tuple(x.shape)}; "
                "x.unsqueeze(-1) is one column for all"
            )
        return self._product(x.unsqueeze(-1)).squeeze(-1)

    def as_operator(self, function: str, b: Tensor) -> _Linear:
        """A checked operator for the solvers."""
        rows = b.shape[0 if b.dim() == 1 else -2]
        if rows != self.shape[0]:
            raise ValueError(
                f"{function}: b must have A.shape[0] = {self.shape[0]} rows, got shape {tuple(b.shape)}"
            )
        return _Linear(self)

    def _product(self, X: Tensor) -> Tensor:
        """A X for blocks of columns, (..., n, k)."""
        c, d = self.coefficients, len(self.grid)
        Y = apply(
            c.unsqueeze(-d - 2) if self.batch_shape else c, self._fields(X), self._where, self._transpose
        )
        return self._columns(Y)

    def _outer(self, Y: Tensor, X: Tensor) -> Tensor:
        """The gradient of <Y, A X> with respect to the coefficients, in their shape."""
        if self._transpose:
            X, Y = Y, X
        return products(self._fields(Y), self._fields(X), self._where, self.coefficients)

    def _fields(self, X: Tensor) -> Tensor:
        """(..., n, k) as fields (..., k, *grid)."""
        return X.mT.reshape(*X.shape[:-2], X.shape[-1], *self.grid)

    def _columns(self, Y: Tensor) -> Tensor:
        return Y.reshape(*Y.shape[: -len(self.grid)], self.shape[0]).mT

    def __repr__(self) -> str:
        points = len(self._where.offsets) // len(self.grid)
        return f"StencilOperator(grid={tuple(self.grid)}, neighbors={points}, dtype={self.dtype})"


class _Linear:
    """An `Operator` of solvers/core/operators.py, for the loops."""

    def __init__(self, A: StencilOperator):
        self.A = A
        self.parameters = (A.coefficients,)

    def __call__(self, x: Tensor) -> Tensor:
        return self.A._product(x)

    @property
    def T(self) -> _Linear:
        return _Linear(self.A.T)

    def with_parameters(self, parameters: tuple[Tensor, ...]) -> _Linear:
        return _Linear(self.A.with_coefficients(parameters[0]))

    def pullback(self, y: Tensor, x: Tensor) -> tuple[Tensor | None, ...]:
        return (self.A._outer(y, x),)

    def pushforward(self, x: Tensor, tangents: tuple[Tensor | None, ...]) -> Tensor:
        assert tangents[0] is not None
        return self.A.with_coefficients(tangents[0])._product(x)

    def size(self) -> Tensor | None:
        c = self.A.coefficients
        return None if c.numel() == 0 else c.detach().abs().flatten(-self.core()).amax(-1)[..., None, None]

    def magnitude(self, x: Tensor) -> Tensor | None:
        return self.A.with_coefficients(self.A.coefficients.detach().abs())._product(x.abs())

    def frobenius(self) -> Tensor | None:
        return None  # some coefficients point outside the grid

    def core(self) -> int:
        return 1 + len(self.A.grid)
