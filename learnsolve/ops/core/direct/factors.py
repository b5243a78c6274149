"""Factors of the matrices that occur in a solve: computed once and looked up by the matrix values.

A factor is looked up by comparing values, not by the identity of a tensor: torch transformations pass the
same values in other tensors, and values changed without torch's knowledge do not match an old factor. A
comparison costs O(nnz), less than any solve.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from learnsolve import _library  # noqa: F401  (the namespace of the operators)
from learnsolve.matrix.interning import Recent
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.matrix.plain import plain_tensors
from learnsolve.ops.core.direct import choice
from learnsolve.ops.core.direct.backend import (
    AUTO,
    LARGEST,
    Factor,
    NotDefinite,
    Request,
    Singular,
    structure,
)
from learnsolve.ops.core.singular import sums_to_zero, why_singular


class Factored(NamedTuple):
    """A matrix with its factors."""

    pattern: SparsityPattern
    data: np.ndarray
    largest: float  # largest absolute value
    factor: Factor

    @property
    def S(self) -> scipy.sparse.csr_array:
        return structure(self.pattern).matrix(self.data)


class Factors:
    """Factors of the matrices that occur in one solve and its derivatives of any order.

    `function` is the public function that messages name.
    """

    __slots__ = ("__weakref__", "_factored", "function", "how")

    def __init__(self, function: str, how: Request = AUTO):
        self.function, self.how = function, how
        self._factored: list[tuple[SparsityPattern, Tensor, list[Factored]]] = []

    def find(self, P: SparsityPattern, values: Tensor, how: Request) -> list[Factored] | None:
        """Factors of `values`, (nnz,) or (B, nnz) on the host, if they exist: one per matrix."""
        for pattern, known, factors in self._factored:
            if self.how == how and (known is values or _same(known, values)) and _same_pattern(pattern, P):
                return factors
        return None

    def of(self, P: SparsityPattern, values: Tensor) -> list[Factored]:
        values = _host(values)
        factors = self.find(P, values, self.how)
        if factors is None:
            with plain_tensors():
                values = values.clone()
            factors = _factor(self.function, P, values, self.how)
            self._factored.append((P, values, factors))
        return factors

    @property
    def all(self) -> list[Factored]:
        return [f for _, _, factors in self._factored for f in factors]

    def bytes(self) -> int:
        """The size of the entries and indices of all factors."""
        index = np.intc().itemsize
        return sum((f.data.itemsize + index) * f.factor.entries for f in self.all)

    def share(self) -> None:
        """Let calls through the operator find these factors while a reference to them exists."""
        with _recent.lock:
            _recent.shared.add(self)


def solve(factors: Factors, P: SparsityPattern, values: Tensor, b: Tensor, transpose: bool) -> Tensor:
    """A^-1 b, or A^-T b, for values (nnz,) with b (n,) or (n, k), or (B, nnz) with (B, n, k)."""
    return _solve(factors.function, factors.of(P, values), b, transpose)


def _solve(function: str, factors: list[Factored], b: Tensor, transpose: bool) -> Tensor:
    rhs = _host(b).numpy()
    if rhs.size == 0:
        x = np.empty_like(rhs)
    elif rhs.ndim < 3:
        x = _solve_one(function, factors[0], rhs, transpose)
    else:
        x = np.stack([_solve_one(function, *pair, transpose) for pair in zip(factors, rhs, strict=True)])
    return torch.from_numpy(np.ascontiguousarray(x)).to(b.device)


def _solve_one(function: str, A: Factored, b: np.ndarray, transpose: bool) -> np.ndarray:
    x = A.factor.solve(b, transpose)
    # `not <=` is true for NaN too.
    if not _largest(x) * A.largest <= 0.01 * _largest(b) / np.finfo(b.dtype).eps:
        _judge(function, A.S, x, b, transpose)
    return x


def _judge(function: str, S: scipy.sparse.csr_array, x: np.ndarray, b: np.ndarray, transpose: bool) -> None:
    """Reject a solution that is not finite; warn if its residual is large."""
    usable = np.isfinite(b).all(0)
    if (usable & ~np.isfinite(x).all(0)).any():
        raise ValueError(
            f"{function}: the solution is not finite, though A and the right-hand side are: A is singular to "
            f"working precision, or the numbers leave the range of {b.dtype}; rescale the equations, use "
            "float64, or add a shift to the diagonal of A"
        )
    # Is rounding in A x about as large as b? Each equation counts relative to its largest coefficient.
    # A singular matrix whose last pivot is rounding gives 0.01 to 30 (Laplacians with random weights); others
    # come close only at condition numbers that exceed the precision.
    size = abs(S.T.tocsr() if transpose else S)
    with np.errstate(all="ignore"):
        scale = 1 / size.max(1).toarray()
        if b.ndim == 2:
            scale = scale[:, None]
        rounding = np.finfo(b.dtype).eps * (scale * (size @ np.abs(x))).max(0)
        useless = rounding >= 0.1 * (scale * np.abs(b)).max(0)
    if (usable & useless).any():
        warnings.warn(
            f"{function}: A is nearly singular{sums_to_zero(S)}: rounding errors in A x are about as large "
            "as the right-hand side; fix one of the unknowns that are not determined, add a shift to the "
            "diagonal, or use float64",
            RuntimeWarning,
            stacklevel=2,
        )


def _largest(a: np.ndarray) -> float:
    if not a.size:
        return 0.0
    return np.abs(a).max() if np.iscomplexobj(a) else max(a.max(), -a.min())


def _factor(function: str, P: SparsityPattern, values: Tensor, how: Request) -> list[Factored]:
    n = P.shape[0]
    if max(n, P.nnz) > LARGEST:
        raise ValueError(
            f"{function}: direct solvers count up to {LARGEST}, A has {n} rows and {P.nnz} entries; use an "
            "iterative solver"
        )
    if n == 0:
        return []
    if fault := structure(P).fault:
        if how.unknowns:
            raise _dependent(function, "A")
        raise ValueError(
            f"{function}: A is structurally singular: {fault}; remove that row and column, or add "
            "entries there"
        )
    single = values.dim() == 1
    made = []
    for at, data in enumerate(values.unsqueeze(0) if single else values):
        which = "A" if single else f"matrix {at} of the batch"
        numbers = data.numpy()
        largest = _largest(numbers)
        if not np.isfinite(largest):
            p = int(np.flatnonzero(~np.isfinite(numbers))[0])
            raise ValueError(
                f"{function}: the values of {which} must be finite, got {numbers[p]} at row "
                f"{int(P.row_indices[p])}, column {int(P.col_indices[p])} (values[{p}]); look for "
                "what made it"
            )
        made.append(Factored(P, numbers, float(largest), _factor_one(function, which, P, data, how)))
        if how.unknowns:
            _check_independent(function, which, made[-1], int(how.unknowns))
    return made


def _check_independent(function: str, which: str, K: Factored, n: int) -> None:
    """For K = a [I, B; B^T, -c I]: the smallest eigenvalue of (B^T B + c I) / (D D^T), of unit diagonal, by
    two steps of inverse iteration. At the level of rounding errors the columns of B depend on each other, and
    the factors give any one of the solutions."""
    S, m = structure(K.pattern), K.pattern.shape[0] - n
    if not m or not n:
        return
    first, a = S.indptr[m], K.data[0]
    entries = K.data[first:] / a
    terms = np.where(S.indices[first:] < m, entries * entries, -entries)
    D = np.sqrt(np.add.reduceat(terms, S.indptr[m:-1] - first))
    x, size = np.random.default_rng(0).standard_normal(n).astype(D.dtype), 0.0
    with np.errstate(all="ignore"):
        for _ in range(2):
            b = np.concatenate((np.zeros(m, D.dtype), D * (x / np.linalg.norm(x))))
            x = a * K.factor.solve(b, False)[m:] * D
            size = 1 / np.linalg.norm(x)
    if not size > 10 * np.finfo(D.dtype).eps:  # true for NaN too
        raise _dependent(function, which)


def _dependent(function: str, which: str) -> ValueError:
    return ValueError(
        f"{function}: the columns of {which} depend on each other up to rounding errors; give damp, or more "
        "of it, or use solvers.lsqr for the solution of minimum norm"
    )


def _factor_one(function: str, which: str, P: SparsityPattern, data: Tensor, how: Request) -> Factor:
    if how.kind in ("cholesky", "ldlt") and not choice.symmetric(P, data):
        needed = "Hermitian" if data.is_complex() else "symmetric"
        raise ValueError(
            f'{function}: kind="{how.kind}" needs a {needed} matrix, which {which} is not; use kind="lu", '
            'or kind="auto"'
        )
    try:
        return choice.factor(P, data, how)
    except Singular:
        if how.unknowns:
            raise _dependent(function, which) from None
        raise ValueError(
            f"{function}: {which} is {why_singular(structure(P).matrix(data.numpy()))}"
        ) from None
    except NotDefinite as error:
        row = f" in row {error.row}" if error.row >= 0 else ""
        raise ValueError(
            f"{function}: {which} is not positive definite: the elimination met a pivot that is not positive"
            f'{row}; use kind="ldlt" or kind="auto", or add a shift to the diagonal'
        ) from None
    except MemoryError:
        raise MemoryError(
            f"{function}: out of memory while factoring {which}, {P.shape[0]} rows and {P.nnz} entries; use "
            "an iterative solver such as cg or gmres, which needs O(nnz)"
        ) from None


def logdets(factors: list[Factored], values: Tensor) -> Tensor:
    """log |det A| for values (nnz,), or (B, nnz)."""
    batch = values.shape[:-1]
    logs = [_logdet(A) for A in factors] or [0.0] * batch.numel()
    return torch.tensor(logs, dtype=values.dtype.to_real(), device=values.device).reshape(batch)


def _logdet(A: Factored) -> float:
    found = A.factor.logdet()
    if found is None:
        data = torch.from_numpy(A.data)
        found = _factor_one("factorize", "A", A.pattern, data, Request("lu", "superlu")).logdet()
    assert found is not None
    return found


def _host(t: Tensor) -> Tensor:
    return t.detach().resolve_conj().resolve_neg().cpu().contiguous()


def _same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.device == b.device and a.shape == b.shape and torch.equal(a, b)


def _same_pattern(P: SparsityPattern, Q: SparsityPattern) -> bool:
    return P is Q or all(_same(a, b) for a, b in zip(P._arrays, Q._arrays, strict=True))


# --- for torch.compile: the same as opaque operators ---

# The backward may never run: hence the limit.
_recent = Recent(8, 2**30, Factors.bytes)


def _remembered(crow: Tensor, col: Tensor, values: Tensor, how: Request) -> list[Factored]:
    """The factors from an earlier call."""
    values, shape = _host(values), (len(crow) - 1, len(crow) - 1)
    P = SparsityPattern._trusted(crow, col, shape)
    factors = _recent.find(lambda known: known.find(P, values, how))
    if factors is None:
        # The plans of the pattern are kept as long as one of its matrices.
        same = _recent.find(
            lambda known: next((Q for Q, _, _ in known._factored if _same_pattern(Q, P)), None)
        )
        new = Factors("lstsq" if how.unknowns else "spsolve", how)
        factors = new.of(same or SparsityPattern._trusted(crow.clone(), col.clone(), shape), values)
        _recent.add(new)
    return factors


@torch.library.custom_op("learnsolve::direct_solve", mutates_args=())
def direct_solve(crow: Tensor, col: Tensor, values: Tensor, b: Tensor, transpose: bool, how: str) -> Tensor:
    """`solve`, with the factors of a recent call if it had the same values. `how`: a Request."""
    request = Request(*how.split())
    factors = _remembered(crow, col, values, request)
    return _solve("lstsq" if request.unknowns else "spsolve", factors, b, transpose)


@direct_solve.register_fake
def _(crow, col, values, b, transpose, how):
    return b.new_empty(b.shape)


@torch.library.custom_op("learnsolve::direct_logdet", mutates_args=())
def direct_logdet(crow: Tensor, col: Tensor, values: Tensor, how: str) -> Tensor:
    """`logdets`, with factors as for `direct_solve`."""
    return logdets(_remembered(crow, col, values, Request(*how.split())), values)


@direct_logdet.register_fake
def _(crow, col, values, how):
    return values.new_empty(values.shape[:-1], dtype=values.dtype.to_real())
