"""The kinds of preconditioners of pcg.py, and what its operators take of them and of patterns."""

import torch
from torch import Tensor

from learnsolve.ops._pcg_unfused import LOWER, LOWER_T
from learnsolve.ops._triangular import _system
from learnsolve.pattern import SparsityPattern

KINDS = ("none", "diagonal", "product", "triangular")


def fitting(
    kind: str, pattern: SparsityPattern, factor: SparsityPattern | None
) -> tuple[int, SparsityPattern, SparsityPattern | None]:
    """The number of the kind, and the patterns with one type of indices."""
    if factor is not None and factor.dtype != pattern.dtype:
        pattern, factor = _wide(pattern), _wide(factor)
    return KINDS.index(kind), pattern, factor


def _wide(pattern: SparsityPattern) -> SparsityPattern:
    return pattern if pattern.dtype == torch.int64 else pattern._planned(_with_int64)[0]


def _with_int64(pattern: SparsityPattern) -> tuple[SparsityPattern]:
    return (SparsityPattern._trusted(pattern.crow_indices.long(), pattern.col_indices.long(), pattern.shape),)


def preconditioner(m: Tensor | None, factor: SparsityPattern | None, kind: int) -> tuple[Tensor, ...]:
    """M as the raw operators take it (csrc/ops/pcg_factor.h)."""
    if kind == 0:
        return ()
    assert m is not None
    if kind == 1:
        return (m,)
    assert factor is not None
    if kind == 2:
        return (m, *factor._structure(False), *factor._structure(True))
    return (m, *factor._structure(False), *_system(factor, LOWER).tensors, *_system(factor, LOWER_T).tensors)
