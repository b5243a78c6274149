"""Preconditioners of complex matrices through their real forms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.matrix.plain import readable
from learnsolve.ops.core.complex import tall, untall
from learnsolve.ops.core.interleaved import real_matrix, real_pattern
from learnsolve.preconditioners.base import Preconditioner, Transposed


class ComplexForm(Preconditioner):
    """`IC0` and `ILU0` of a complex matrix: the factor of its real form (ops/core/interleaved.py). Its
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

    def _columns(self, R: Tensor) -> Tensor:
        R = R if self.phase is None else self.phase.unsqueeze(-1) * R
        return untall(self.real._columns(tall(R)))

    def _transposed(self, R: Tensor) -> Tensor:
        """M^T R, by the transpose of the real form, which is the real form of the conjugate transpose."""
        Z = untall(self.real.T._columns(tall(R.conj()))).conj()
        return Z if self.phase is None else self.phase.unsqueeze(-1) * Z

    @property
    def T(self) -> Preconditioner:
        return Transposed(self)

    def real_form(self) -> Preconditioner | None:
        return self.real if self.phase is None else None

    def _converted(self, **kind: Any) -> Preconditioner:
        raise NotImplementedError("a preconditioner of a complex matrix: make it again of A.to(...)")

    def __repr__(self) -> str:
        return f"ComplexForm({self.real!r})"


def of_complex(
    M: Preconditioner, A: Any, pattern: SparsityPattern | None, hermitian: bool, **keywords: Any
) -> bool:
    """Initialize M for a complex A; False if A is not complex."""
    if not (isinstance(A, CSR) and A.values.is_complex()):
        return False
    make: Any = type(M)
    checks.square(make.__name__, "A", A.shape)
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
