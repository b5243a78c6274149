"""Inverses of small matrices: of coarsest grids and subdomains."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from learnsolve.matrix.csr import CSR
from learnsolve.matrix.plain import numbers, plain_tensors
from learnsolve.ops.core.linear_steps import dense_product
from learnsolve.ops.core.operands import plain_values
from learnsolve.preconditioners.classical.factorization import Factorization, factorize

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
    """The lower triangular factors L, M = L L^T, of the symmetric part of M (..., n, n); None if one is not
    positive definite. On a CUDA device they are NaN then, since a check would synchronize."""
    L, failed = torch.linalg.cholesky_ex((M + M.mT) / 2)
    return None if failed.is_cpu and bool(numbers(failed).any()) else L


def _nearly_singular(A: CSR, factors: Factorization) -> int:
    """The first matrix whose factors amplify a fixed random vector more than the factors of a numerically
    nonsingular matrix could; -1 if there is none."""
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
                f"{function}: the coarsest matrix, {n} x {n}{which}, is singular up to rounding, as that of "
                f"a pure Neumann problem is; {remedy}, or fix one unknown of A"
            )

        if pseudo:
            if n > 4 * _DENSE:
                raise ValueError(
                    f"{function}: a pseudo-inverse is dense and for at most {4 * _DENSE} unknowns, the "
                    f"coarsest level has {n}; coarsen further"
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
