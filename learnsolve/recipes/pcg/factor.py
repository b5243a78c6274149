"""The preconditioner that is learned: pattern, form and start of its factor L."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from learnsolve.csr import CSR
from learnsolve.pattern import SparsityPattern, as_numpy
from learnsolve.preconditioners import ApproximateInverse, IncompleteFactor, lower_pattern
from learnsolve.recipes.harness.base import SettingError

if TYPE_CHECKING:
    from learnsolve.recipes.pcg.settings import PcgSettings

DIAGONAL, BELOW = 2.0, 0.1  # section 4.3: L = 2 I + 0.1 S

Model = ApproximateInverse | IncompleteFactor


def pattern_of(A: CSR, name: str) -> SparsityPattern:
    """The pattern of L: its diagonal with the one below, tril(A), or that of tril(A^2)."""
    if name == "bidiagonal":
        return ApproximateInverse.bidiagonal(A.shape[0], dtype=A.dtype).pattern.to(A.device)
    return lower_pattern(A, rings=2 if name == "two_ring" else 1)


def build(A: CSR, settings: PcgSettings) -> Model:
    """The module, at its start; SettingError where the matrix does not allow this start."""
    pattern = pattern_of(A, settings.pattern)
    try:
        if settings.form == "product":
            if settings.start == "fsai":
                return ApproximateInverse.initialise_from(A, pattern)
            return ApproximateInverse.from_pattern(pattern, DIAGONAL, BELOW, A.dtype)
        if settings.start == "ic0":
            return IncompleteFactor.initialise_from(_restricted(A, pattern), "ic0")
        on = pattern.row_indices == pattern.col_indices
        values = torch.full((pattern.nnz,), BELOW, dtype=A.dtype, device=A.device)
        return IncompleteFactor(CSR(values.masked_fill_(on, DIAGONAL), pattern))
    except ValueError as error:
        raise SettingError(
            f"--start {settings.start}: {' '.join(str(error).split())}; take --start paper"
        ) from error


def factor_of(model: Model) -> CSR:
    """L, as it is now."""
    return model.L if isinstance(model, ApproximateInverse) else model.L.matrix()


def _restricted(A: CSR, pattern: SparsityPattern) -> CSR:
    """The entries of A on another pattern; zeros where A has none."""
    rows, columns = (np.array(as_numpy(t)) for t in (pattern.row_indices, pattern.col_indices))
    values = np.asarray(A.to_scipy()[rows, columns]).reshape(-1)
    return CSR(torch.from_numpy(values).to(A.values), pattern)
