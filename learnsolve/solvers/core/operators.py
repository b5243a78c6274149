"""A and M as operators on blocks of columns, for a CSR and a `BlockBatch`. Callables: functions.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import scipy.sparse.linalg
import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.convert import conjugate
from learnsolve.matrix.csr import CSR
from learnsolve.ops import structure
from learnsolve.ops.block_batch import BlockBatch, Layout
from learnsolve.ops.core.product import product, sampled
from learnsolve.solvers.core.functions import Function, Watched, on_columns, on_host
from learnsolve.solvers.core.system import Map, Operator
from learnsolve.solvers.core.vectors import largest, safe_size
from learnsolve.solvers.options import Options


class Matrix(Operator):
    """A CSR matrix or its transpose."""

    def __init__(self, A: CSR, transpose: bool = False):
        self.A, self.transpose = A, transpose
        self.parameters = (A.values,)

    def __call__(self, x: Tensor) -> Tensor:
        return product(self.A.values, x, self.A.pattern, self.transpose)

    @property
    def T(self) -> Matrix:
        return Matrix(self.A, not self.transpose)

    @property
    def csr(self) -> CSR:
        return structure.transpose(self.A) if self.transpose else self.A

    def with_parameters(self, parameters: tuple[Tensor, ...]) -> Matrix:
        return Matrix(self.A.with_values(parameters[0]), self.transpose)

    def pullback(self, y: Tensor, x: Tensor) -> tuple[Tensor | None, ...]:
        u, w = (x, y) if self.transpose else (y, x)
        return (conjugate(sampled(u, w, self.A.pattern).sum_to_size(self.A.values.shape)),)

    def pushforward(self, x: Tensor, tangents: tuple[Tensor | None, ...]) -> Tensor:
        assert tangents[0] is not None
        return product(tangents[0], x, self.A.pattern, self.transpose)

    def size(self) -> Tensor | None:
        values = self.A.values
        return None if values.shape[-1] == 0 else largest(values, -1).unsqueeze(-1)

    def magnitude(self, x: Tensor) -> Tensor | None:
        return product(self.A.values.detach().abs(), x.abs(), self.A.pattern, self.transpose)

    def frobenius(self) -> Tensor | None:
        return safe_size(self.A.values.detach().unsqueeze(-1))

    def divided(self, unit: Tensor) -> Matrix:
        """Divide all entries by one scalar per matrix, (..., 1, 1)."""
        return Matrix(self.A.with_values(self.A.values / unit.squeeze(-1)), self.transpose)


class Blocks(Operator):
    """A `BlockBatch`, one system per block, on vectors padded with zeros to the size of the largest.

    With E the 0/1 matrix that pads, the operator is E A E^T and M is E M E^T (`Padded`): padding stays zero
    in every method, and a method computes each of its per-column values once per block, (..., B, 1, k).
    """

    def __init__(self, A: BlockBatch, inner: Matrix):
        self.batch, self.layout, self.inner = A, A._layout, inner
        self.parameters = inner.parameters

    def _with(self, inner: Matrix) -> Blocks:
        return Blocks(self.batch, inner)

    def __call__(self, x: Tensor) -> Tensor:
        return self.layout.padded(self.inner(self.layout.joined(x)))

    @property
    def T(self) -> Blocks:
        return self._with(self.inner.T)

    def with_parameters(self, parameters: tuple[Tensor, ...]) -> Blocks:
        return self._with(self.inner.with_parameters(parameters))

    def pullback(self, y: Tensor, x: Tensor) -> tuple[Tensor | None, ...]:
        return self.inner.pullback(self.layout.joined(y), self.layout.joined(x))

    def pushforward(self, x: Tensor, tangents: tuple[Tensor | None, ...]) -> Tensor:
        return self.layout.padded(self.inner.pushforward(self.layout.joined(x), tangents))

    def size(self) -> Tensor | None:
        values = self.inner.A.values.detach()
        if values.shape[-1] == 0:
            return None
        values = torch.where(values.isnan(), torch.inf, values.abs())
        of = self._blocks_of_entries()
        largest = values.new_zeros((*values.shape[:-1], len(self.layout.sizes)))
        return largest.scatter_reduce(-1, of.expand(values.shape), values, "amax")[..., None, None]

    def magnitude(self, x: Tensor) -> Tensor | None:
        y = self.inner.magnitude(self.layout.joined(x))
        return None if y is None else self.layout.padded(y)

    def divided(self, unit: Tensor) -> Blocks:
        values = self.inner.A.values
        return self.with_parameters((values / unit.flatten()[self._blocks_of_entries()],))

    def parts(self) -> list[CSR]:
        """The matrix of each block."""
        parts = self.batch.split(self.inner.A)
        return [structure.transpose(A) for A in parts] if self.inner.transpose else parts

    def _blocks_of_entries(self) -> Tensor:
        return self.layout.batch[self.inner.A.pattern.row_indices]

    def core(self) -> int:
        return 0  # values (..., nnz) of all blocks go with x of shape (..., B, largest, k)


class Padded:
    """M of the whole block-diagonal matrix, or one for each block, on padded blocks of columns."""

    def __init__(self, layout: Layout, maps: Sequence[Map | None]):
        self.layout, self.maps = layout, maps

    def __call__(self, r: Tensor) -> Tensor:
        r = self.layout.joined(r)
        if len(self.maps) == 1 and self.maps[0] is not None:
            return self.layout.padded(self.maps[0](r))
        parts = zip(r.split(self.layout.sizes, -2), self.maps, strict=True)
        return self.layout.padded(torch.cat([s if M is None else M(s) for s, M in parts], -2))


def as_operator(
    function: str,
    A: Any,
    b: Tensor,
    transpose: Any,
    parameters: Iterable[Tensor],
    symmetric: bool = False,
    square: bool = True,
    blocks: bool = False,
) -> Operator:
    """A CSR, a SciPy LinearOperator or a callable as an operator for the loops; with `blocks` a BlockBatch,
    on padded columns."""
    parameters = checks.sequence(function, "parameters", parameters, "Tensors")
    for i, p in enumerate(parameters):
        checks.tensor(function, f"parameters[{i}]", p)
    if hasattr(A, "as_operator"):  # a StencilOperator; a matrix whose rows lie in several processes
        if transpose is not None or parameters:
            raise ValueError(
                f"{function}: transpose and parameters belong to a callable A; {type(A).__name__} has its own"
            )
        return A.as_operator(function, b)
    rows = b.shape[0 if b.dim() == 1 else -2]
    if isinstance(A, BlockBatch) and not blocks:
        raise TypeError(
            f"{function}: takes no BlockBatch; A.matrix is the block-diagonal CSR, one system, and "
            "A.split(A.matrix) are the blocks"
        )
    if isinstance(A, (CSR, BlockBatch, scipy.sparse.linalg.LinearOperator)):
        if transpose is not None:
            raise ValueError(f"{function}: transpose belongs to a callable A; {type(A).__name__} has its own")
        shape = A.shape
        if square and shape[0] != shape[1]:
            raise ValueError(f"{function}: A must be square, got shape {shape}; lsqr and lsmr take any")
        if rows != shape[0]:
            raise ValueError(
                f"{function}: b must have A.shape[0] = {shape[0]} rows, got shape {tuple(b.shape)}"
            )
    if isinstance(A, (CSR, BlockBatch)):
        if parameters:
            raise ValueError(
                f"{function}: parameters belong to a callable A; a {type(A).__name__}'s are its values"
            )
        matrix = A if isinstance(A, CSR) else A.matrix
        checks.matrix(function, "A", matrix)
        if matrix.values.is_complex() and not b.is_complex():
            checks.same_kind(function, "b", b, matrix.values)
        checks.dtype(function, "A.values", matrix.values, or_complex=True)
        return Matrix(A) if isinstance(A, CSR) else Blocks(A, Matrix(matrix))
    if isinstance(A, scipy.sparse.linalg.LinearOperator):
        if parameters:
            raise ValueError(f"{function}: parameters belong to a callable A; a LinearOperator has none")
        forward = on_host(function, "A", A, b.is_complex())
        return Function(function, forward, lambda x: forward(x, True), ())
    if not callable(A):
        raise TypeError(
            f"{function}: A must be a CSR, a BlockBatch, a StencilOperator, a LinearOperator of SciPy or a "
            f"callable, got {type(A).__name__}; make a CSR with CSR.from_*"
        )
    if not (transpose is None or callable(transpose)):
        raise TypeError(
            f"{function}: transpose must be a callable x -> A^T x, got {type(transpose).__name__}"
        )
    vector = b.dim() == 1
    apply = on_columns(function, "A", A, vector, square)
    if transpose is None:
        return Function(function, apply, apply if symmetric else None, parameters)
    return Function(function, apply, on_columns(function, "transpose", transpose, vector, square), parameters)


def as_preconditioner(function: str, name: str, M: Any, b: Tensor) -> Callable[[Tensor], Tensor] | None:
    """M as a function of blocks of columns."""
    if M is None:
        return None
    if isinstance(M, type):
        raise TypeError(
            f"{function}: {name} is the class {M.__name__}, not a preconditioner; give {M.__name__}(A)"
        )
    n = b.shape[0 if b.dim() == 1 else -2]
    if isinstance(M, (CSR, scipy.sparse.linalg.LinearOperator)) and M.shape != (n, n):
        raise ValueError(f"{function}: {name} must have shape ({n}, {n}), as A has, got {tuple(M.shape)}")
    if isinstance(M, CSR):
        checks.same_kind(function, f"{name}.values", M.values, b)
        checks.batches(function, M.batch_shape, b.shape[:-2], f"{name}.values and b")
        if len(M.batch_shape) > max(b.dim() - 2, 0):
            raise ValueError(
                f"{function}: {name} must not have more batch axes than A or b, got {tuple(M.batch_shape)}; "
                "give b its shape (..., n, k)"
            )
        return Matrix(M)
    if isinstance(M, scipy.sparse.linalg.LinearOperator):
        return on_host(function, name, M, b.is_complex())
    if not callable(M):
        raise TypeError(
            f"{function}: {name} must be a callable r -> M r, a CSR or a LinearOperator, got "
            f"{type(M).__name__}; of a diagonal d pass ops.diag(d)"
        )
    columns: Any = on_columns(function, name, M, b.dim() == 1, True)
    columns.original = M  # for its compiled form
    return columns


def systems_of(name: str, options: Options, b: Tensor, layout: Layout | None) -> list[tuple[Options, Tensor]]:
    """The options and the right-hand side that each M belongs to: one, or with a list of M one per block."""
    if layout is None or not isinstance(options.M, (list, tuple)):
        return [(options, b)]
    for key, given in (("M", options.M), ("adjoint_M", options.adjoint_M)):
        listed = isinstance(given, (list, tuple))
        if given is not None and (not listed or len(given) != len(layout.sizes)):
            count = len(given) if listed else type(given).__name__
            raise ValueError(
                f"{name}: {key} must be a list of one for each of {len(layout.sizes)} blocks, as M is, got "
                f"{count}"
            )
    adjoints = [None] * len(layout.sizes) if options.adjoint_M is None else options.adjoint_M
    parts = b.split(layout.sizes, 0 if b.dim() == 1 else -2)
    return [
        (replace(options, M=M, adjoint_M=T), part)
        for M, T, part in zip(options.M, adjoints, parts, strict=True)
    ]


def joined(layout: Layout | None, maps: Sequence[Map | None]) -> Map | None:
    """The M of a solve: the single one; with blocks, all of them on padded columns."""
    if layout is None:
        return maps[0]
    return None if all(M is None for M in maps) else Padded(layout, maps)


def source(M: Any) -> Any:
    """The caller's M behind an M of the loops."""
    M = M.function if isinstance(M, Watched) else M
    return getattr(M, "original", M)


def compiled_form(M: Any) -> tuple[str, Tensor | None, Any] | None:
    """(kind, m, factor) of M for the compiled loop of `cg` (ops/pcg.py), else None. A
    preconditioner provides it by a method `pcg_form()`."""
    if isinstance(M, type):
        return None
    return ("none", None, None) if M is None else getattr(M, "pcg_form", lambda: None)()
