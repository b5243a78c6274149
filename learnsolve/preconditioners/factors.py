"""Preconditioners in factored form, with differentiable factors: incomplete factors on a pattern, by level of
fill or by threshold.

Sources: Saad, "Iterative Methods for Sparse Linear Systems" (2003), chapter 10; Kolotilina and Yeremin,
"Factorized sparse approximate inverse preconditionings I. Theory", SIAM J. Matrix Anal. Appl. 14, 1993,
doi:10.1137/0614004.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from learnsolve.arguments import Index, NotNegative
from learnsolve.matrix import checks
from learnsolve.matrix.cache import readable
from learnsolve.matrix.checks import RealMatrix, RealSystem, System
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.arithmetic import check_open_interval, fit
from learnsolve.ops.blocks import diag, hstack
from learnsolve.ops.complex_values import tall, untall
from learnsolve.ops.incomplete import ic, ict, ilu, ilut, level_pattern, mic
from learnsolve.ops.products import spmm
from learnsolve.ops.program import Operand
from learnsolve.ops.structure import diagonal, symmetric_pattern, symmetry
from learnsolve.ops.triangular import _mask, real_matrix, real_pattern, sptrsv, tril
from learnsolve.preconditioners.base import Part, Preconditioner, TransposedPreconditioner, check_finite


class FactorPreconditioner(Preconditioner):
    r"""Triangular solves or products with differentiable factors, for example predicted by a network.

    .. math:: M = (L L^T)^{-1} \text{ or } (L U)^{-1} \quad (\mathtt{form="solve"}), \qquad
              M = L L^T + s I \text{ or } L U + s I \quad (\mathtt{form="product"})

    Linear. Without `U` it is symmetric, and positive definite if s > 0 or L is nonsingular.

    Parameters
    ----------
    L : CSR, values (..., nnz). form="solve": (n, n), lower triangular with its diagonal (ones or no entries,
        if there is a U). form="product": any pattern, shape (n, m)
    U : CSR, upper triangular with its diagonal, or (m, n)
    form : "solve" or "product"
    shift : s, for form="product": positive float, or Tensor, shape () or one per matrix of the batch

    Attributes
    ----------
    L, U, form, shift : as given

    Raises
    ------
    ValueError
        if shapes or patterns do not match, or, on the CPU, values are not finite or a diagonal to solve with
        has a zero (the message names the row).
    TypeError
        if dtypes or devices differ.

    Notes
    -----
    Gradient: exact, for the values of L and U, a Tensor shift, and r, to any order. Nothing is copied.
    ``FactorPreconditioner.bidiagonal(n)`` and ``from_pattern(pattern)`` are initial products for training.
    Cost: two triangular solves or products, 2 nnz flops each per column.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((8, 8)), torch.ones(64, dtype=torch.float64)
    >>> M = ls.preconditioners.FactorPreconditioner(ls.ops.ic(A).L)
    >>> ls.solvers.cg(A, b, M=M).iterations < ls.solvers.cg(A, b).iterations
    True
    """

    symmetric = True
    L: CSR
    U: CSR | None = None
    form = "solve"
    shift: Any = 0.0

    def __init__(
        self,
        L: RealMatrix,
        U: RealMatrix | None = None,
        *,
        form: Literal["solve", "product"] = "solve",
        shift: float | Tensor = 0.0,
    ):
        name = type(self).__name__
        check_finite(name, L, "L")
        self.L, self.U, self.form, self.symmetric = L, U, form, U is None
        self.shape, self.batch_shape, self.depends_on = (L.shape[0], L.shape[0]), L.batch_shape, (L.values,)
        if U is not None:
            fit(name, L, U, "L", "U")
            check_finite(name, U, "U")
            if U.shape != L.shape[::-1]:
                raise ValueError(f"{name}: U must have shape {L.shape[::-1]}, for L {L.shape}, got {U.shape}")
            self.batch_shape = torch.broadcast_shapes(L.batch_shape, U.batch_shape)
            self.depends_on += (U.values,)
        if form == "solve":
            self._check_solvable(name)
        if isinstance(shift, Tensor) or shift != 0:
            self._add(name, shift)

    @classmethod
    def bidiagonal(
        cls,
        n: Index,
        diagonal: float = 2.0,
        off: float = 0.1,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> FactorPreconditioner:
        """M = L L^T with L lower bidiagonal, `diagonal` on the diagonal and `off` below. Section 4.3 of arXiv
        2212.05159 starts from L = 2 I + 0.1 S."""
        rows = np.arange(n)
        crow = torch.from_numpy(np.concatenate(([0], 2 * rows + 1))).to(device)
        col = torch.from_numpy(np.stack((rows - 1, rows), 1).reshape(-1)[1:]).to(device)
        return FactorPreconditioner.from_pattern(
            SparsityPattern._construct(crow, col, (n, n)), diagonal, off, dtype
        )

    @classmethod
    def from_pattern(
        cls,
        pattern: SparsityPattern,
        diagonal: float = 1.0,
        off: float = 0.0,
        dtype: torch.dtype = torch.float64,
    ) -> FactorPreconditioner:
        """M = L L^T with L on `pattern`, `diagonal` on the diagonal and `off` elsewhere."""
        on = pattern.row_indices == pattern.col_indices
        values = torch.full((pattern.nnz,), off, dtype=dtype, device=pattern.device)
        return FactorPreconditioner(CSR(values.masked_fill_(on, diagonal), pattern), form="product")

    def _check_solvable(self, name: str) -> None:
        L, U = self.L, self.U
        checks.square(name, "L", L.shape)
        check_triangular(name, "L", L, lower=True)
        divisor = ("L", L)
        if U is not None:
            check_triangular(name, "U", U, lower=False)
            if readable(L.values):
                _check_ones(name, L)
            divisor = ("U", U)
        check_has_diagonal(name, *divisor)
        _check_divisors(name, *divisor)

    def _add(self, name: str, shift: float | Tensor) -> None:
        values = self.L.values.expand(*self.batch_shape, -1)
        self.shift = check_open_interval(name, "shift", shift, values, math.inf, "be positive and finite")
        if self.form != "product":
            raise ValueError(
                f'{name}: shift is for form="product", M = L L^T + shift I. For form="solve" remove it '
                "and shift the matrix that is factorized (ops.ic has shift=)"
            )
        if isinstance(shift, Tensor):
            self.depends_on += (shift,)

    def learnable(self) -> dict[str, Part]:
        L, U = self.L, self.U
        if U is None:
            parts = {"L": Part(L, "diagonal")}
        elif self.form == "solve":  # the unit diagonal of L is not read
            parts = {"L": Part(tril(L, -1)), "U": Part(U, "absolute diagonal")}
        else:
            parts = {"L": Part(L), "U": Part(U)}
        if self.form == "product" and (isinstance(self.shift, Tensor) or self.shift):
            shift = torch.as_tensor(self.shift, dtype=L.dtype, device=L.device)
            parts["shift"] = Part(shift, "all", default=False)
        return parts

    def with_tensors(self, tensors: dict[str, Any]) -> Preconditioner:
        """A plain `FactorPreconditioner`, whatever the source of the factors."""
        if type(self) is FactorPreconditioner:
            return super().with_tensors(tensors)
        about: dict[str, Any] = {"form": self.form, "shape": self.shape, "batch_shape": self.batch_shape}
        about |= {"shift": self.shift if self.form == "product" else 0.0, "symmetric": self.U is None}
        return FactorPreconditioner._construct(L=self.L, U=self.U, **about).with_tensors(tensors)

    def mv(self, R: Tensor) -> Tensor:
        return self._apply(R, False)

    def rmv(self, R: Tensor) -> Tensor:
        return self._apply(R, True)

    def _apply(self, R: Tensor, transpose: bool) -> Tensor:
        L, U = self.L, self.U
        if self.form == "product":
            if U is None:
                out = spmm(L, spmm(L, R, transpose=True))
            elif transpose:
                out = spmm(U, spmm(L, R, transpose=True), transpose=True)
            else:
                out = spmm(L, spmm(U, R))
            s = self.shift
            if isinstance(s, Tensor):
                return out + s[..., None, None] * R
            return out + s * R if s else out
        if U is None:
            return sptrsv(L, sptrsv(L, R), transpose=True)
        if transpose:
            return sptrsv(L, sptrsv(U, R, lower=False, transpose=True), unit_diagonal=True, transpose=True)
        return sptrsv(U, sptrsv(L, R, unit_diagonal=True), lower=False)

    def pcg_form(self) -> tuple[str, Tensor, Any] | None:
        if self.U is not None:
            return None
        if self.form == "solve":
            return "triangular", self.L.values, self.L.pattern
        G = self._square_root() if isinstance(self.shift, Tensor) or self.shift else self.L
        return "product", G.values, G.pattern

    def operands(self, transpose: bool) -> Sequence[Operand] | None:
        L, U = self.L, self.U
        if U is None or self.form == "product":
            return None
        with_L = Operand.solve(L.pattern, L.values, True, True, transpose)
        with_U = Operand.solve(U.pattern, U.values, False, False, transpose)
        return (with_U, with_L) if transpose else (with_L, with_U)

    def _square_root(self) -> CSR:
        """G = [L, sqrt(s) I], for which G G^T = L L^T + s I."""
        L = self.L
        s = torch.as_tensor(self.shift, dtype=L.dtype, device=L.device).sqrt()
        ones = torch.ones(L.shape[0], dtype=L.dtype, device=L.device)
        return hstack((L, diag(s.unsqueeze(-1) * ones)))

    def __repr__(self) -> str:
        U = "" if self.U is None else f", U={self.U!r}"
        return f"{type(self).__name__}(L={self.L!r}{U}, form={self.form!r}, shift={self.shift})"


def check_triangular(function: str, name: str, T: CSR, lower: bool) -> None:
    read = T.pattern._plan_once(_mask, lower, False).read
    if read is not None:
        side, triangle = ("lower", "tril") if lower else ("upper", "triu")
        raise ValueError(
            f"{function}: {name} must be {side} triangular, but {T.nnz - int(read.sum())} of its {T.nnz} "
            f"entries lie in the other triangle. Pass ops.{triangle}({name})"
        )


def check_has_diagonal(function: str, name: str, T: CSR) -> None:
    row = T.pattern._missing_diagonal
    if row >= 0:
        raise ValueError(
            f"{function}: {name} must have an entry on its diagonal in every row, row {row} has none. Add it"
        )


def _check_divisors(function: str, name: str, T: CSR) -> None:
    """Raise for a zero on the diagonal, if values can be read. `sptrsv` checks it in every call."""
    if not readable(T.values):
        return
    d = T.values.detach().index_select(-1, T.pattern.diagonal_positions)
    bad = d.reciprocal().isinf().nonzero()
    if len(bad):
        at: list[int] = bad[0].tolist()
        which = f" of matrix {at[0] if len(at) == 2 else tuple(at[:-1])} of the batch" if len(at) > 1 else ""
        raise ValueError(
            f"{function}: {name} is divided by, so its diagonal must not have zeros, or numbers whose "
            f"reciprocal overflows, row {at[-1]}{which} has {d[tuple(at)].item():.6g}. Shift it"
        )


def _check_ones(function: str, L: CSR) -> None:
    d = diagonal(L).detach()
    there = L.pattern.diagonal_positions >= 0
    wrong = ((d != 1) & there).nonzero()
    if len(wrong):
        at = tuple(wrong[0].tolist())
        raise ValueError(
            f"{function}: with a U, L must have ones on its diagonal, or no entries there, row {at[-1]} has "
            f"{d[at].item():.6g}. Move the diagonal to U"
        )


class ComplexForm(Preconditioner):
    """`IC` and `ILU` of a complex matrix: the factor of its real form (ops/triangular.py). Its
    pattern is closed under 2 x 2 blocks, so that it is equivalent to the complex factor. A `shift` is added
    to the real part of the diagonal.

    Attributes
    ----------
    real : Preconditioner, the factor of the real form
    """

    def __init__(self, real: Preconditioner, values: Tensor, phase: Tensor | None = None):
        self.real, self.phase, self.symmetric = real, phase, real.symmetric and phase is None
        self.shape = (real.shape[0] // 2, real.shape[1] // 2)
        self.batch_shape, self.depends_on = real.batch_shape, (values,)

    def mv(self, R: Tensor) -> Tensor:
        R = R if self.phase is None else self.phase.unsqueeze(-1) * R
        return untall(self.real.mv(tall(R)))

    def rmv(self, R: Tensor) -> Tensor:
        """M^T R, by the transpose of the real form, which is the real form of the conjugate transpose."""
        Z = untall(self.real.T.mv(tall(R.conj()))).conj()
        return Z if self.phase is None else self.phase.unsqueeze(-1) * Z

    @property
    def T(self) -> Preconditioner:
        return TransposedPreconditioner(self)

    def real_equivalent(self) -> Preconditioner | None:
        return self.real if self.phase is None else None

    def __repr__(self) -> str:
        return f"ComplexForm({self.real!r})"


def initialize_complex(
    M: Preconditioner, A: object, pattern: SparsityPattern | None, hermitian: bool, **keywords: object
) -> bool:
    """Initialize M for a complex A, or False if A is not complex."""
    if not (isinstance(A, CSR) and A.values.is_complex()):
        return False
    make: Any = type(M)
    if isinstance(keywords["shift"], Tensor):
        raise NotImplementedError(
            f"{make.__name__}: of a complex matrix shift must be a number, got a tensor"
        )
    phase = None if hermitian else _phase(A)
    B = A if phase is None else A.with_values(A.values * phase.index_select(-1, A.pattern.row_indices))
    try:
        real = make(real_matrix(B), pattern=None if pattern is None else real_pattern(pattern), **keywords)
    except ValueError as error:
        raise ValueError(f"{error} (of the real form, which has two rows for each row of A)") from None
    M.__class__ = ComplexForm
    ComplexForm.__init__(M, real, A.values, phase)  # type: ignore[arg-type]
    return True


def _phase(A: CSR) -> Tensor | None:
    """Factors that make the diagonal real and positive, so that elimination within blocks is stable."""
    d = A.diagonal()
    size = d.abs()
    if readable(d) and bool(((d.real > 0) & (d.imag.abs() <= d.real)).all()):
        return None
    return torch.where(size > 0, d.conj() / torch.where(size > 0, size, 1), 1)


class IC(FactorPreconditioner):
    r"""Incomplete Cholesky, IC(k): :math:`M = (L L^T)^{-1}`, linear, symmetric, positive definite.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz), assumed symmetric: only its lower triangle is read
    level, pattern, shift, on_breakdown : see `ops.ic`

    Attributes
    ----------
    L : CSR, the factor
    shift : Tensor, the shift used, with A's batch shape

    Raises
    ------
    ValueError, NotImplementedError
        see `ops.ic`.

    Notes
    -----
    Gradient: exact, for A's values, a tensor shift, and r, to any order. Cost: the factorization
    once, two triangular solves with L, 2 nnz flops per column, per call. Compiled in `cg`.

    References
    ----------
    J. A. Meijerink and H. A. van der Vorst, "An iterative solution method for linear systems of which the
    coefficient matrix is a symmetric M-matrix", Math. Comp. 31 (1977) 148-162,
    doi:10.1090/S0025-5718-1977-0438681-4

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((50, 50)), torch.ones(2500, dtype=torch.float64)
    >>> M = ls.preconditioners.IC(A)
    >>> ls.solvers.cg(A, b, M=M).iterations < ls.solvers.cg(A, b).iterations / 2
    True
    """

    def __init__(
        self,
        A: System,
        *,
        level: Index | None = 0,
        pattern: SparsityPattern | None = None,
        shift: float | Tensor = 0.0,
        on_breakdown: Literal["raise", "shift"] = "raise",
    ):
        pattern = level_pattern("IC", A, level, pattern, lower=True)
        if initialize_complex(self, A, pattern, True, shift=shift, on_breakdown=on_breakdown):
            return
        Preconditioner.__init__(self, A, shift, finite=False)
        self.L, self.shift = ic(A, pattern=pattern, shift=shift, on_breakdown=on_breakdown)


class MIC(FactorPreconditioner):
    r"""Modified incomplete Cholesky, MIC(k): `IC` that preserves A's row sums.

    For elliptic problems on fine grids: the condition number of M A is O(1/h), not O(1/h^2). A small `shift`,
    or an `omega` slightly below 1, guarantees this and the existence of the factor.

    Parameters
    ----------
    A, level, pattern, shift, on_breakdown : see `ops.mic`
    omega : the fraction of the dropped fill that is compensated, from 0 (`IC`) to 1

    Attributes
    ----------
    L, shift : see `IC`

    Raises
    ------
    ValueError, NotImplementedError
        see `ops.mic`.

    Notes
    -----
    Gradient and cost are as for `IC`. A tensor omega also gets a gradient.

    References
    ----------
    I. Gustafsson, "A class of first order factorization methods", BIT 18 (1978) 142-156,
    doi:10.1007/BF01931691

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((100, 100)), torch.ones(10_000, dtype=torch.float64)
    >>> IC, MIC = ls.preconditioners.IC, ls.preconditioners.MIC
    >>> ls.solvers.cg(A, b, M=MIC(A)).iterations < ls.solvers.cg(A, b, M=IC(A)).iterations
    True
    """

    def __init__(
        self,
        A: RealSystem,
        *,
        level: Index | None = 0,
        pattern: SparsityPattern | None = None,
        shift: float | Tensor = 0.0,
        omega: float | Tensor = 1.0,
        on_breakdown: Literal["raise", "shift"] = "raise",
    ):
        Preconditioner.__init__(self, A, shift, omega, finite=False)
        pattern = level_pattern("MIC", A, level, pattern, lower=True)
        self.L, self.shift = mic(A, pattern=pattern, shift=shift, omega=omega, on_breakdown=on_breakdown)


class ILU(FactorPreconditioner):
    r"""Incomplete LU, ILU(k): :math:`M = (L U)^{-1}`, linear, symmetric if A (and the pattern) is.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz)
    level, pattern, shift, on_breakdown : see `ops.ilu`
    symmetric : bool, whether A and the pattern are symmetric. Default: determined from the values, once per
        matrix (not under `torch.compile`)

    Attributes
    ----------
    L, U : CSR, the factors. The unit diagonal of L is stored
    shift : Tensor, the shift used, with A's batch shape

    Raises
    ------
    ValueError, NotImplementedError
        see `ops.ilu`.

    Notes
    -----
    Gradient: exact, for A's values, a tensor shift, and r, to any order. Cost: the factorization
    once, one triangular solve with L and one with U, 2 nnz flops per column, per call.

    References
    ----------
    Y. Saad, "Iterative Methods for Sparse Linear Systems", 2nd edition, SIAM, 2003, section 10.3

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[2.0, 1.0], [4.0, 5.0]]))
    >>> ls.preconditioners.ILU(A)(torch.tensor([3.0, 9.0]))  # no fill is dropped: A^-1 r
    tensor([1., 1.])
    """

    def __init__(
        self,
        A: System,
        *,
        level: Index | None = 0,
        pattern: SparsityPattern | None = None,
        shift: float | Tensor = 0.0,
        on_breakdown: Literal["raise", "shift"] = "raise",
        symmetric: bool | None = None,
    ):
        pattern = level_pattern("ILU", A, level, pattern)
        if initialize_complex(
            self, A, pattern, False, shift=shift, on_breakdown=on_breakdown, symmetric=symmetric
        ):
            return
        Preconditioner.__init__(self, A, shift, finite=False)
        self.L, self.U, self.shift = ilu(A, pattern=pattern, shift=shift, on_breakdown=on_breakdown)
        if symmetric is None and pattern is not None and not symmetric_pattern(pattern):
            symmetric = False
        self.symmetric = symmetry("ILU", A, symmetric)


class ICT(FactorPreconditioner):
    r"""Incomplete Cholesky with a threshold, :math:`M = (L L^T)^{-1}`: linear, symmetric, positive definite.

    Parameters
    ----------
    A : CSR, shape (n, n), values (nnz,), assumed symmetric: only its lower triangle is read
    max_fill, drop_tol, shift, on_breakdown : see `ops.ict`

    Attributes
    ----------
    L : CSR, the factor
    shift : Tensor, the shift used

    Raises
    ------
    ValueError, NotImplementedError
        see `ops.ict`. For a batch of matrices use ``IC(A, pattern=M.L.pattern)``, with M of one of the
        matrices.

    Notes
    -----
    Gradient: exact on the chosen pattern, for A's values, a tensor shift, and r, to any order. Cost: the
    choice and the factorization once, then two triangular solves with L, 2 nnz flops per column. The compiled
    loop of `cg` supports it. For another matrix on the same pattern, ``IC(A, pattern=M.L.pattern)`` is
    faster.

    References
    ----------
    C.-J. Lin and J. J. Moré, "Incomplete Cholesky factorizations with limited memory", SIAM J. Sci. Comput.
    21 (1999) 24-45, doi:10.1137/S1064827597327334

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((50, 50)), torch.ones(2500, dtype=torch.float64)
    >>> M = ls.preconditioners.ICT(A, max_fill=5)
    >>> ls.solvers.cg(A, b, M=M).iterations < ls.solvers.cg(A, b, M=ls.preconditioners.IC(A)).iterations / 2
    True
    """

    def __init__(
        self,
        A: RealSystem,
        *,
        max_fill: Index = 5,
        drop_tol: NotNegative = 1e-3,
        shift: float | Tensor = 0.0,
        on_breakdown: Literal["raise", "shift"] = "raise",
    ):
        Preconditioner.__init__(self, A, shift, finite=False)
        self.L, self.shift = ict(
            A, max_fill=max_fill, drop_tol=drop_tol, shift=shift, on_breakdown=on_breakdown
        )


class ILUT(FactorPreconditioner):
    r"""Incomplete LU with a threshold, :math:`M = (L U)^{-1}`: linear, symmetric if A and the pattern are.

    Parameters
    ----------
    A : CSR, shape (n, n), values (nnz,)
    max_fill, drop_tol, shift, on_breakdown : see `ops.ilut`
    symmetric : bool, as for `ILU`. For a symmetric A prefer `ICT`

    Attributes
    ----------
    L, U : CSR, the factors. The unit diagonal of L is stored
    shift : Tensor, the shift used

    Raises
    ------
    ValueError, NotImplementedError
        see `ops.ilut`.

    Notes
    -----
    Gradient and cost are as for `ICT`, with two factors: a triangular solve with L and one with U per call.

    References
    ----------
    Y. Saad, "ILUT: a dual threshold incomplete LU factorization", Numer. Linear Algebra Appl. 1 (1994)
    387-402, doi:10.1002/nla.1680010405

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.convection_diffusion(torch.ones(2, 30, 30, dtype=torch.float64))
    >>> b = torch.ones(900, dtype=torch.float64)
    >>> P, gmres = ls.preconditioners, ls.solvers.gmres
    >>> gmres(A, b, M=P.ILUT(A)).iterations < gmres(A, b, M=P.ILU(A)).iterations
    True
    """

    def __init__(
        self,
        A: RealSystem,
        *,
        max_fill: Index = 5,
        drop_tol: NotNegative = 1e-3,
        shift: float | Tensor = 0.0,
        on_breakdown: Literal["raise", "shift"] = "raise",
        symmetric: bool | None = None,
    ):
        Preconditioner.__init__(self, A, shift, finite=False)
        factors = ilut(A, max_fill=max_fill, drop_tol=drop_tol, shift=shift, on_breakdown=on_breakdown)
        self.L, self.U, self.shift = factors
        T, U = self.L.pattern.T, self.U.pattern
        pairs = ((T.crow_indices, U.crow_indices), (T.col_indices, U.col_indices))
        if symmetric is None and not all(torch.equal(*pair) for pair in pairs):
            symmetric = False
        self.symmetric = symmetry("ILUT", A, symmetric)
