"""Direct solves: factors of a matrix, with determinant and inertia, and inverses of small matrices: coarsest
grids, subdomains, diagonal blocks.

Source for block Jacobi: Saad, "Iterative Methods for Sparse Linear Systems" (2003), sections 4.1.1 and 12.2.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from learnsolve.arguments import Count
from learnsolve.matrix import checks
from learnsolve.matrix.cache import makes_plain_tensors, numbers, plain_tensors, version
from learnsolve.matrix.checks import RealSystem, System
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, to_numpy
from learnsolve.ops.arithmetic import plain_values
from learnsolve.ops.complete import logdet_of_factors
from learnsolve.ops.direct import (
    FactoredMatrix,
    Factors,
    check_request,
    check_right_hand_side,
    has_numbers,
    matrices,
    solve_values,
)
from learnsolve.ops.direct_backends import Request
from learnsolve.ops.indexing import construct_pattern, permute_values, place, take
from learnsolve.ops.linear_steps import dense_product
from learnsolve.ops.products import product
from learnsolve.ops.structure import symmetric_blocks, symmetry
from learnsolve.ops.triangular import tril
from learnsolve.preconditioners.base import Preconditioner, TransposedPreconditioner


def factorize(
    A: System, *, kind: str = "auto", backend: str = "auto", ordering: str = "auto"
) -> Factorization:
    r"""Direct factors of A, for any number of solves: :math:`A = L L^T`, :math:`L D L^T` or :math:`L U`.

    Parameters
    ----------
    A : CSR, shape (n, n), real or complex. Its values may have batch axes, (..., nnz)
    kind : "auto"; "cholesky", for a symmetric (Hermitian) positive definite A; "ldlt", a symmetric A; "lu"
    backend : "auto"; "superlu" (SciPy's); "pardiso" (MKL's, extra `pardiso`) or "cholmod" (extra `cholmod`)
    ordering : "auto", "minimum_degree", "colamd", "nested_dissection" or "natural", if supported

    Returns
    -------
    Factorization: ``F.solve(b)``, ``F.refactorize(values)``, ``F.logdet``, also a preconditioner.

    Raises
    ------
    ValueError
        if A is singular, or not symmetric or positive definite as its kind requires (the message names the
        row), or if the library does not support the kind, ordering or dtype.
    ImportError, NotImplementedError
        if the library is not installed, for backend="cudss" and under `torch.compile`.
    MemoryError
        if the factors do not fit in memory.

    Notes
    -----
    Gradient: of a solve, as for `ops.spsolve`, to any order, with one triangular pair per adjoint. Of
    ``F.logdet``, to any order: the entries of :math:`A^{-T}` on A's pattern, computed by the factors of
    `ops.selected_inverse`, or by n solves if those do not exist or are unstable.

    For the cost, and the rule of "auto", see docs/direct.md.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((3,))
    >>> F = ls.factorize(A)
    >>> F.solve(torch.ones(3, dtype=torch.float64))
    tensor([1.5000, 2.0000, 1.5000], dtype=torch.float64)
    >>> F.refactorize(2 * A.values).solve(torch.ones(3, dtype=torch.float64))
    tensor([0.7500, 1.0000, 0.7500], dtype=torch.float64)
    """
    return Factorization(A, kind=kind, backend=backend, ordering=ordering)


class Factorization(Preconditioner):
    r"""The result of `ls.factorize`. Calling it solves with A: M = A^-1, for any solver.

    Attributes
    ----------
    A : CSR, the matrix
    T : the factorization of the transpose, which uses the same factors
    kind, backend : the kind of factors and the library, for a batch, of the first matrix
    seconds : float, of the last factorization, including the analysis if it ran
    fill : float, entries of the factors per entry of A
    logdet : Tensor, :math:`\log |\det A|`, shape batch_shape
    inertia : Tensor, (positive, negative, zero) eigenvalues of a symmetric A, shape (..., 3)

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[2.0, 1.0], [0.0, 4.0]]))
    >>> F, b = ls.factorize(A), torch.tensor([4.0, 8.0])
    >>> F.solve(b), F.T.solve(b)
    (tensor([1., 2.]), tensor([2.0000, 1.5000]))
    >>> F
    Factorization(lu by superlu, shape=(2, 2), nnz=3, fill=2, dtype=float32, device=cpu)
    >>> F.logdet
    tensor(2.0794)
    """

    A: CSR

    def __init__(self, A: System, *, kind: str = "auto", backend: str = "auto", ordering: str = "auto"):
        if torch.compiler.is_dynamo_compiling():
            raise NotImplementedError(
                "factorize: cannot be traced by torch.compile. Call it outside and use what it returns "
                "inside, or call spsolve, whose backward pass reuses the factors of the forward pass"
            )
        self._request = check_request("factorize", Request(kind, backend, ordering), A.dtype)
        self._how = " ".join(self._request)  # for compiled code
        self._factor_values(A)

    def _factor_values(self, A: CSR) -> None:
        self.A, self._values, self._version = A, A.values, version(A.values)
        self.shape, self.batch_shape, self.depends_on = A.shape, A.batch_shape, (A.values,)
        self._symmetric: bool | None = None
        self._factors = Factors("factorize", self._request)
        start = time.perf_counter()
        # Inside a transformation values are not available yet: the first solve computes the factors.
        if has_numbers(A.values) and not is_functorch_wrapped_tensor(A.values):
            self._all()
            self._factors.share()
        self.seconds = time.perf_counter() - start
        if has_numbers(A.values):  # now, since a graph traced later cannot read it
            self._symmetric = symmetry("factorize", A, None)

    def _all(self) -> list[FactoredMatrix]:
        """The factors of all matrices."""
        return self._factors.of(self.A.pattern, matrices(numbers(self.A.values)))

    def refactorize(self, values: Tensor) -> Factorization:
        """Factor the matrix with other values, (..., nnz), on the same pattern and replace these factors. The
        analysis is reused. Graphs of earlier solves keep the earlier factors. Returns self."""
        checks.same_kind("refactorize", "values", values, self.A.values)
        if values.shape[-1:] != (self.A.nnz,):
            raise ValueError(
                f"refactorize: values must have shape (..., {self.A.nnz}), as in A, got "
                f"{tuple(values.shape)}. Call factorize for another pattern"
            )
        del self._factors  # first, so that their memory and the library's handle can be reused
        self._factor_values(self.A.with_values(values))
        return self

    def solve(self, b: Tensor, *, transpose: bool = False) -> Tensor:
        """A^-1 b or A^-T b, for b (n,) or (..., n, k), like `ops.spsolve`: differentiable in the values of A
        and in b, to any order."""
        A = self.A
        check_right_hand_side("factorize", A, b)
        if torch.compiler.is_dynamo_compiling():
            # The operator looks up factors of these values, and recomputes them if there are none.
            return solve_values(A.values, b, A.pattern, transpose, self._how)
        return solve_values(A.values, b, A.pattern, transpose, self._current())

    def _current(self) -> Factors:
        values = self.A.values
        if values is not self._values or (self._version >= 0 and version(values) != self._version):
            raise RuntimeError(
                "factorize: the values of A were changed after it was factored. Call "
                "F.refactorize(A.values), or factor a copy, factorize(A.clone())"
            )
        return self._factors

    def forward(self, r: Tensor) -> Tensor:
        """The solution of A z = r, like `solve`."""
        return self.solve(r)

    def _solve_with_gradient(self, A: CSR, b: Tensor) -> Tensor:
        """The solution, differentiable in the values of an A that equals the factored matrix."""
        return solve_values(A.values, b, A.pattern, False, self._factors)

    def mv(self, R: Tensor) -> Tensor:
        return self.solve(R)

    def rmv(self, R: Tensor) -> Tensor:
        return self.solve(R, transpose=True)

    @property
    def T(self) -> Factorization | TransposedFactorization:
        same = self.symmetric and not self.A.values.is_complex()
        return self if same else TransposedFactorization(self)

    @property
    def symmetric(self) -> bool:
        """Whether A is symmetric, from its values once they can be read."""
        if self._symmetric is None:
            self._symmetric = symmetry("factorize", self.A, None)
        return self._symmetric

    @property
    def kind(self) -> str:
        return next((f.factor.kind for f in self._all()), "lu")

    @property
    def backend(self) -> str:
        return next((f.factor.backend for f in self._all()), "superlu")

    @property
    def fill(self) -> float:
        entries = sum(f.factor.entries for f in self._all())
        return entries / max(self.batch_shape.numel() * self.A.nnz, 1)

    @property
    def logdet(self) -> Tensor:
        factors = self._how if torch.compiler.is_dynamo_compiling() else self._current()
        return logdet_of_factors(matrices(self.A.values), self.A.pattern, factors).reshape(self.batch_shape)

    @property
    def inertia(self) -> Tensor:
        if not self.symmetric:
            raise ValueError("factorize: inertia needs a symmetric A. Eigenvalues of others may be complex")
        counts, n = [], self.shape[0]
        for f in self._all():
            negative = f.factor.negative()
            if negative is None:
                other = "superlu" if self.A.values.is_complex() else "pardiso"
                raise ValueError(
                    f"factorize: the factors, {self.kind} by {self.backend}, do not tell the inertia, as "
                    f'pivots are not counted, or not on the diagonal. Use kind="ldlt" with backend="{other}"'
                )
            counts.append((n - negative, negative, 0))
        counts = counts or [(0, 0, 0)] * self.batch_shape.numel()
        return torch.tensor(counts, device=self.A.device).reshape(*self.batch_shape, 3)

    def _convert(self, **kind: Any) -> Factorization:
        return _again(self.A.to(**kind), self._request)

    def __reduce__(self):
        return _again, (self.A, self._request)

    def __repr__(self) -> str:
        A = self.A
        batch = f", batch={tuple(A.batch_shape)}" if A.values.dim() > 1 else ""
        dtype = str(A.dtype).removeprefix("torch.")
        return (
            f"Factorization({self.kind} by {self.backend}, shape={A.shape}, nnz={A.nnz}{batch}, "
            f"fill={self.fill:.3g}, dtype={dtype}, device={A.device})"
        )


class TransposedFactorization(TransposedPreconditioner):
    """The factors of A used for its transpose."""

    M: Factorization

    def solve(self, b: Tensor, *, transpose: bool = False) -> Tensor:
        return self.M.solve(b, transpose=not transpose)


def _again(A: CSR, request: Request) -> Factorization:
    return Factorization(A, kind=request.kind, backend=request.backend, ordering=request.ordering)


_BATCHED = 64  # rows up to which blocks are inverted in a batch: LAPACK uses one thread each
_DENSE = 500  # rows up to which an inverse is stored: 2 MB in float64


def inverses(D: Tensor, singular: Callable[[int], Exception]) -> Tensor:
    """D^-1 for D of shape (..., n, n). `singular(i)` makes the error for block i (counted through all leading
    axes, mapped ones first) that is singular up to rounding: its condition number times 16 units of rounding
    exceeds one. LAPACK's bits depend on the number of threads."""
    if D.numel() == 0:
        return torch.zeros_like(D)
    if torch.compiler.is_dynamo_compiling():
        return torch.linalg.inv(D)  # raises if D is exactly singular: values cannot be read here
    X = _inverse(D)
    d, x = numbers(D), numbers(X)
    condition = (d.abs().sum(-1).amax(-1) * x.abs().sum(-1).amax(-1)).reshape(-1)
    bad = ~(condition * 16 * torch.finfo(d.dtype).eps < 1)  # true also for NaN
    if bad.any():
        raise singular(int(bad.nonzero()[0]))
    return X


def _inverse(D: Tensor) -> Tensor:
    """Invert larger blocks one by one on the CPU. For a batch, torch calls LAPACK from several threads, and
    oneMKL's parallel LU (in torch 2.13, with two or more threads) then hangs or returns wrong pivots."""
    if D.is_cpu and D.dim() > 2 and D.shape[-1] > _BATCHED:
        return torch.stack([torch.linalg.inv_ex(B).inverse for B in D.flatten(0, -3)]).reshape(D.shape)
    return torch.linalg.inv_ex(D).inverse


def cholesky(M: Tensor) -> Tensor | None:
    """The lower triangular factors L, M = L L^T, of the symmetric part of M (..., n, n), or None if one is
    not positive definite. On a CUDA device they are NaN then, since a check would synchronize."""
    L, failed = torch.linalg.cholesky_ex((M + M.mT) / 2)
    return None if failed.is_cpu and bool(numbers(failed).any()) else L


def _nearly_singular(A: CSR, factors: Factorization) -> int:
    """The first matrix whose factors amplify a fixed random vector more than the factors of a numerically
    nonsingular matrix could, or -1 if there is none."""
    if plain_values(A.values).shape != A.values.shape:  # under torch.func.vmap
        return -1
    with plain_tensors():  # under a vmap random numbers are not available
        generator = torch.Generator("cpu").manual_seed(0)
        v = torch.rand((A.shape[0], 1), generator=generator, dtype=torch.float64, device="cpu")
        v = v.to(A.device, A.dtype)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # reported by the error
        x = plain_values(factors.solve(v))
    growth = x.abs().amax((-1, -2)) * plain_values(A.values).abs().amax(-1)
    bad = (~(growth * 16 * torch.finfo(A.dtype).eps < 1)).reshape(-1)
    return int(bad.nonzero()[0]) if bad.any() else -1


class _Singular(ValueError):
    """A coarsest matrix is singular up to rounding."""


class DirectSolver:
    """A^-1, or A^+ if `pseudo`, for a matrix that is small compared with the whole problem. `pseudo` None:
    A^+ if a matrix is singular up to rounding.

    Up to 500 rows by a dense inverse (one matrix product, 2 n^2 flops per column), beyond by sparse LU.
    Differentiable in the values of A.
    """

    def __init__(self, function: str, A: CSR, pseudo: bool | None, remedy: str):
        if pseudo is None:
            try:
                self._set_up(function, A, False, remedy)
            except _Singular:
                if A.shape[0] > 4 * _DENSE or not bool(numbers(A.values).isfinite().all()):
                    raise
                self._set_up(function, A, True, remedy)
        else:
            self._set_up(function, A, pseudo, remedy)

    def _set_up(self, function: str, A: CSR, pseudo: bool, remedy: str) -> None:
        n = A.shape[0]
        self.inverse = self.factors = None

        def singular(i: int) -> Exception:
            which = f", matrix {i} of the batch" if A.batch_shape else ""
            return _Singular(
                f"{function}: the coarsest matrix, {n} x {n}{which}, is singular up to rounding, like the "
                f"matrix of a pure Neumann problem. {remedy}, or fix one unknown of A"
            )

        if pseudo:
            if n > 4 * _DENSE:
                raise ValueError(
                    f"{function}: a pseudo-inverse is dense and for at most {4 * _DENSE} unknowns, the "
                    f"coarsest level has {n}. Coarsen further"
                )
            tolerance = 4 * max(n, 16) * torch.finfo(A.dtype).eps  # rounding errors of each level
            self.inverse = torch.linalg.pinv(A.to_dense(), rtol=tolerance)
        elif n <= _DENSE:
            self.inverse = inverses(A.to_dense(), singular)
        else:
            try:
                self.factors = factorize(A)
            except ValueError as error:
                raise singular(0) from error
            bad = _nearly_singular(A, self.factors)
            if bad >= 0:
                raise singular(bad)

    def __call__(self, b: Any, transpose: bool) -> Any:
        if self.inverse is None:
            assert self.factors is not None
            return self.factors.solve(b, transpose=transpose)
        return dense_product(self.inverse, b, transpose)


_LIMIT = 2**27  # entries of all inverses of one matrix: 1 GiB in float64


class BlockJacobi(Preconditioner):
    r"""The inverse of the block diagonal, :math:`M = \mathrm{diag}(A_{11}^{-1}, \dots, A_{mm}^{-1})`.

    Linear, symmetric if the blocks are, and positive definite if A is symmetric positive definite.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz)
    block_size : int, the size of consecutive blocks (the last may be smaller)
    blocks : integers, shape (n,), instead of block_size: the block of each unknown. The unknowns of a block
        need not be neighbors, and labels need not be consecutive
    symmetric : bool, whether the blocks are symmetric. Default: determined from the values (not under
        `torch.compile`)

    Attributes
    ----------
    matrix : CSR, M, with the inverses of the blocks in their positions

    Raises
    ------
    ValueError
        if not exactly one of block_size and blocks is given, a block is singular or has a condition number
        above 1 / (16 eps) (the message names its unknowns), or the inverses have more than 2^27 entries per
        matrix.
    TypeError
        if blocks are not integers.

    Notes
    -----
    Gradient: exact, for A's values and r, to any order. Cost: 2 s^3 flops once for a block of s unknowns,
    then one product with sum s^2 entries per call. Bitwise identical on every run with the same number of
    threads (the inverses use LAPACK).

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[2.0, 1.0], [1.0, 1.0]]))
    >>> ls.preconditioners.BlockJacobi(A, block_size=2).matrix.to_dense()
    tensor([[ 1., -1.],
            [-1.,  2.]])
    """

    def __init__(
        self,
        A: RealSystem,
        block_size: Count | None = None,
        *,
        blocks: object = None,
        symmetric: bool | None = None,
    ):
        name = "BlockJacobi"
        super().__init__(A, finite=False)
        if (block_size is None) == (blocks is None):
            raise ValueError(
                f"{name}: exactly one of block_size and blocks must be given, got "
                f"{'none' if blocks is None else 'both'}"
            )
        if block_size is not None:
            plan = A.pattern._plan_once(_consecutive_blocks, block_size)
        else:
            plan = _group_by_label(A.pattern, blocks)
        self.symmetric, values = _inverses(name, A, plan, symmetric)
        self.matrix, self._plan = CSR(values, plan.pattern), plan

    def mv(self, R: Tensor) -> Tensor:
        return product(self.matrix.values, R, self.matrix.pattern, False)

    def rmv(self, R: Tensor) -> Tensor:
        return product(self.matrix.values, R, self.matrix.pattern, True)

    def pcg_form(self) -> tuple[str, Tensor, Any] | None:
        if not self.symmetric:
            return None
        L = self._kept_factor(self._cholesky)
        return None if L is None else ("product", L.values, L.pattern)

    def _cholesky(self) -> CSR | None:
        """The lower triangular L with M = L L^T, block by block, or None if M is not positive definite."""
        plan = self._plan
        factors = [cholesky(M) for M in plan.split(plan.gather_blocks(self.matrix.values))]
        if not factors or any(L is None for L in factors):
            return None
        return tril(CSR(plan.scatter_blocks(factors), plan.pattern))  # type: ignore[arg-type]


class _Blocks(NamedTuple):
    """The entries of blocks: grouped by block size, each block row by row."""

    sizes: tuple[tuple[int, int], ...]  # (size, count)
    unknowns: Tensor  # of all blocks, in this order
    at: Tensor  # positions in A's values of the entries that it has
    where: Tensor  # and their positions among the entries of the blocks
    pattern: SparsityPattern  # of M
    order: Tensor | None  # position of each entry of M among the entries of the blocks; None: same order
    inverse: Tensor | None

    def split(self, entries: Tensor) -> list[Tensor]:
        """The entries of blocks as tensors (..., count, size, size), one per size."""
        parts = entries.split([count * size * size for size, count in self.sizes], -1)
        return [
            t.unflatten(-1, (count, size, size)) for t, (size, count) in zip(parts, self.sizes, strict=True)
        ]

    def gather_blocks(self, values: Tensor) -> Tensor:
        """The entries of blocks from the entries of a matrix on M's pattern."""
        return values if self.order is None else permute_values(values, self.inverse, self.order)  # type: ignore[arg-type]

    def scatter_blocks(self, blocks: list[Tensor]) -> Tensor:
        """The values of the matrix on M's pattern with these blocks."""
        values = torch.cat([block.flatten(-3) for block in blocks], dim=-1)
        return values if self.order is None else permute_values(values, self.order, self.inverse)  # type: ignore[arg-type]


def _consecutive_blocks(P: SparsityPattern, size: int) -> _Blocks:
    return _plan(P, np.arange(P.shape[0]) // size)


@makes_plain_tensors
def _group_by_label(P: SparsityPattern, blocks: object) -> _Blocks:
    n = P.shape[0]
    try:
        labels = to_numpy(blocks) if isinstance(blocks, Tensor) else np.asarray(blocks)
    except ValueError:  # lists of different lengths
        raise TypeError(
            "BlockJacobi: blocks must be one integer for each unknown, got nested lists"
        ) from None
    labels = labels.astype(np.int64) if labels.size == 0 else labels
    if labels.dtype.kind not in "iu":
        raise TypeError(f"BlockJacobi: blocks must be integers, got {labels.dtype}")
    if labels.shape != (n,):
        raise ValueError(
            f"BlockJacobi: blocks must have one label for each unknown, shape ({n},), got {labels.shape}"
        )
    labels = np.unique(labels, return_inverse=True)[1]
    key = f"blocks {hashlib.sha256(labels.astype(np.int64).tobytes()).hexdigest()}"
    return P._compute_once(key, lambda: _plan(P, labels))


def _plan(P: SparsityPattern, labels: np.ndarray) -> _Blocks:
    """The plan for labels 0, 1, 2, ..., all in use."""
    n = len(labels)
    size_of = np.bincount(labels)
    total = int((size_of.astype(np.float64) ** 2).sum())
    if total > _LIMIT:
        raise ValueError(
            f"BlockJacobi: the inverses of {len(size_of)} blocks of up to {size_of.max()} unknowns hold "
            f"{total} values, at most {_LIMIT} are allowed. Use smaller blocks"
        )
    # Unknowns sorted by the size of their block, then by block, then by index.
    unknowns = np.lexsort((np.arange(n), labels, size_of[labels]))
    sizes, counts = np.unique(size_of, return_counts=True)
    place_in_order = np.empty(n, dtype=np.int64)
    place_in_order[unknowns] = np.arange(n)
    size_in_order = size_of[labels[unknowns]]
    row_start = np.concatenate(([0], np.cumsum(size_in_order)))  # entries before each unknown's row
    first = np.empty(len(size_of), dtype=np.int64)  # first unknown of each block, in this order
    first[labels[unknowns[::-1]]] = np.arange(n)[::-1]

    rows, columns = to_numpy(P.row_indices).astype(np.int64), to_numpy(P.col_indices).astype(np.int64)
    at = np.flatnonzero(labels[rows] == labels[columns])
    i, j = rows[at], columns[at]
    where = row_start[place_in_order[i]] + place_in_order[j] - first[labels[j]]

    # Row i of M has the unknowns of i's block, sorted.
    lengths = size_of[labels]
    crow = np.concatenate(([0], np.cumsum(lengths)))
    within = np.arange(crow[-1]) - np.repeat(crow[:-1], lengths)
    order = np.repeat(row_start[:-1][place_in_order], lengths) + within
    col = unknowns[np.repeat(first[labels], lengths) + within]
    pattern = construct_pattern(P, crow, col, P.shape)
    same = np.array_equal(order, np.arange(len(order)))
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order))
    return _Blocks(
        tuple((int(s), int(m)) for s, m in zip(sizes, counts, strict=True)),
        P._tensor(unknowns),
        P._tensor(at),
        P._tensor(where),
        pattern,
        None if same else P._tensor(order),
        None if same else P._tensor(inverse),
    )


def _inverses(name: str, A: CSR, plan: _Blocks, symmetric: bool | None) -> tuple[bool, Tensor]:
    """Whether the blocks are symmetric, and M's values."""
    tracing = torch.compiler.is_dynamo_compiling()
    if tracing and symmetric is None:
        raise NotImplementedError(
            f"{name}: whether the blocks are symmetric cannot be read off their values under torch.compile. "
            "Pass symmetric=True or symmetric=False"
        )
    entries = place(take(A.values, plan.at), plan.where, plan.pattern.nnz)
    found, unknown, all_alike = [], 0, True
    for (size, count), blocks in zip(plan.sizes, plan.split(entries), strict=True):
        if symmetric is None and size > 1:
            all_alike = all_alike and symmetric_blocks(numbers(blocks))
        singular = _singular(name, plan.unknowns[unknown : unknown + count * size], size, A.batch_shape)
        found.append(inverses(blocks, singular))
        unknown += count * size
    values = plan.scatter_blocks(found) if found else entries
    return all_alike if symmetric is None else symmetric, values


def _singular(name: str, unknowns: Tensor, size: int, batch_shape: torch.Size) -> Callable[[int], Exception]:
    """A function that makes the error for block i of one size, counted through the batch."""

    def error(i: int) -> Exception:
        count = len(unknowns) // size
        batch = np.unravel_index(i // count, batch_shape) if batch_shape else ()
        at = tuple(int(b) for b in batch)
        where = f" of matrix {at[0] if len(at) == 1 else at} of the batch" if at else ""
        with plain_tensors():
            own = unknowns[i % count * size : (i % count + 1) * size].tolist()
        named = ", ".join(map(str, own[:4])) + (", ..." if size > 4 else "")
        return ValueError(
            f"{name}: every block must have a finite inverse, but the block of the unknowns {named}{where} "
            "is singular (or nearly so, or holds infinities or NaNs). Choose other blocks, or shift the "
            "diagonal"
        )

    return error
