"""Direct factors of a matrix: solves, determinant and inertia, and a preconditioner."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.plain import numbers
from learnsolve.matrix.unchanged import version
from learnsolve.ops.core.direct.backend import Request
from learnsolve.ops.core.direct.choice import checked
from learnsolve.ops.core.direct.factors import Factored, Factors
from learnsolve.ops.core.direct.logdet import logdet
from learnsolve.ops.core.direct.solve import (
    check_matrix,
    check_right_hand_side,
    has_numbers,
    matrices,
    solved,
)
from learnsolve.ops.core.symmetry import symmetry
from learnsolve.preconditioners.base import Preconditioner, Transposed


def factorize(A: Any, *, kind: str = "auto", backend: str = "auto", ordering: str = "auto") -> Factorization:
    r"""Direct factors of A, for any number of solves: :math:`A = L L^T`, :math:`L D L^T` or :math:`L U`.

    Parameters
    ----------
    A : CSR, shape (n, n), real or complex; its values may have batch axes, (..., nnz)
    kind : "auto"; "cholesky", for a symmetric (Hermitian) positive definite A; "ldlt", a symmetric A; "lu"
    backend : "auto"; "superlu" (SciPy's); "pardiso" (MKL's, extra `pardiso`) or "cholmod" (extra `cholmod`)
    ordering : "auto", "minimum_degree", "colamd", "nested_dissection" or "natural", if supported

    Returns
    -------
    Factorization: ``F.solve(b)``, ``F.refactorize(values)``, ``F.logdet``, ...; also a preconditioner.

    Raises
    ------
    ValueError
        if A is singular, or not symmetric or positive definite as its kind requires (the message names the
        row); if the library does not support the kind, ordering or dtype.
    ImportError, NotImplementedError
        if the library is not installed; for backend="cudss" and under `torch.compile`.
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
    kind, backend : the kind of factors and the library; for a batch, of the first matrix
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

    def __init__(self, A: CSR, *, kind: str = "auto", backend: str = "auto", ordering: str = "auto"):
        if torch.compiler.is_dynamo_compiling():
            raise NotImplementedError(
                "factorize: cannot be traced by torch.compile; call it outside and use what it returns "
                "inside, or call spsolve, whose backward reuses the factors of the forward"
            )
        check_matrix("factorize", A)
        self._request = checked("factorize", Request(kind, backend, ordering), A.dtype)
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

    def _all(self) -> list[Factored]:
        """The factors of all matrices."""
        return self._factors.of(self.A.pattern, matrices(numbers(self.A.values)))

    def refactorize(self, values: Tensor) -> Factorization:
        """Factor the matrix with other values, (..., nnz), on the same pattern and replace these factors; the
        analysis is reused. Graphs of earlier solves keep the earlier factors. Returns self."""
        checks.same_kind("refactorize", "values", values, self.A.values)
        if values.shape[-1:] != (self.A.nnz,):
            raise ValueError(
                f"refactorize: values must have shape (..., {self.A.nnz}), as those of A, got "
                f"{tuple(values.shape)}; call factorize for another pattern"
            )
        del self._factors  # first, so that their memory and the library's handle can be reused
        self._factor_values(self.A.with_values(values))
        return self

    def solve(self, b: Tensor, *, transpose: bool = False) -> Tensor:
        """A^-1 b or A^-T b, for b (n,) or (..., n, k), like `ops.spsolve`: differentiable in the values of A
        and in b, to any order."""
        A = self.A
        check_right_hand_side("factorize", A, b)
        checks.flag("factorize", "transpose", transpose)
        if torch.compiler.is_dynamo_compiling():
            # The operator looks up factors of these values, and recomputes them if there are none.
            return solved(A.values, b, A.pattern, transpose, self._how)
        return solved(A.values, b, A.pattern, transpose, self._current())

    def _current(self) -> Factors:
        values = self.A.values
        if values is not self._values or (self._version >= 0 and version(values) != self._version):
            raise RuntimeError(
                "factorize: the values of A were changed after it was factored; call "
                "F.refactorize(A.values), or factor a copy, factorize(A.clone())"
            )
        return self._factors

    def forward(self, r: Tensor) -> Tensor:
        """The solution of A z = r, like `solve`."""
        return self.solve(r)

    def _solved_for(self, A: CSR, b: Tensor) -> Tensor:
        """The solution, differentiable in the values of an A that equals the factored matrix."""
        return solved(A.values, b, A.pattern, False, self._factors)

    def _columns(self, R: Tensor) -> Tensor:
        return self.solve(R)

    def _transposed(self, R: Tensor) -> Tensor:
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
        return logdet(matrices(self.A.values), self.A.pattern, factors).reshape(self.batch_shape)

    @property
    def inertia(self) -> Tensor:
        if not self.symmetric:
            raise ValueError("factorize: inertia needs a symmetric A; eigenvalues of others may be complex")
        counts, n = [], self.shape[0]
        for f in self._all():
            negative = f.factor.negative()
            if negative is None:
                other = "superlu" if self.A.values.is_complex() else "pardiso"
                raise ValueError(
                    f"factorize: the factors, {self.kind} by {self.backend}, do not tell the inertia, as "
                    f'pivots are not counted, or not on the diagonal; use kind="ldlt" with backend="{other}"'
                )
            counts.append((n - negative, negative, 0))
        counts = counts or [(0, 0, 0)] * self.batch_shape.numel()
        return torch.tensor(counts, device=self.A.device).reshape(*self.batch_shape, 3)

    def _converted(self, **kind: Any) -> Factorization:
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


class TransposedFactorization(Transposed):
    """The factors of A used for its transpose."""

    M: Factorization

    def solve(self, b: Tensor, *, transpose: bool = False) -> Tensor:
        return self.M.solve(b, transpose=not transpose)


def _again(A: CSR, request: Request) -> Factorization:
    return Factorization(A, kind=request.kind, backend=request.backend, ordering=request.ordering)
