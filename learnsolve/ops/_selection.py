"""Parts of a pattern, and the values that belong to them."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from learnsolve import _check
from learnsolve.csr import CSR
from learnsolve.ops._gather import take
from learnsolve.ops._product import product
from learnsolve.pattern import SparsityPattern, as_numpy


class Selection(NamedTuple):
    """Another pattern and, for each of its entries, the place of its value; None: the pattern itself."""

    pattern: SparsityPattern | None
    at: Tensor | None
    repeats: SparsityPattern | None = None  # where a value comes twice: the 0/1 matrix that hands them out


def selected(A: CSR, plan: Selection) -> CSR:
    if plan.pattern is None or plan.at is None:
        return A
    if plan.repeats is None:
        return CSR(take(A.values, plan.at), plan.pattern)
    return CSR(handed_out(A.values, plan.repeats), plan.pattern)


def handed_out(values: Tensor, places: SparsityPattern) -> Tensor:
    """Row i of `places` has the place of value i of the result, or none for a zero. The gradient of a value
    that comes several times is a sum in a fixed order."""
    _check.dtype("A[...]", "A.values", values)
    ones = torch.ones(places.nnz, dtype=values.dtype, device=values.device)
    if values.dim() == 1:
        return product(ones, values, places, False)
    return product(ones, values.unsqueeze(-1), places, False).squeeze(-1)


def places(P: SparsityPattern, at: np.ndarray) -> SparsityPattern:
    """The 0/1 matrix for `handed_out`; at = -1: a zero."""
    crow = np.concatenate(([0], np.cumsum(at >= 0)))
    return trusted(P, crow, at[at >= 0], (len(at), P.nnz))


def kept(P: SparsityPattern, keep: np.ndarray) -> Selection:
    """The entries of P in the mask `keep`."""
    if keep.all():
        return Selection(None, None)
    at = np.flatnonzero(keep)
    crow = np.searchsorted(at, as_numpy(P.crow_indices))
    return Selection(trusted(P, crow, as_numpy(P.col_indices)[at], P.shape), P._tensor(at))


def trusted(like: SparsityPattern, crow: np.ndarray, col: np.ndarray, shape: tuple) -> SparsityPattern:
    """A valid pattern with the index type of `like`, unless that is too narrow."""
    wide = max(*shape, len(col)) > torch.iinfo(torch.int32).max
    dtype = torch.int64 if wide else like.dtype
    rows, columns = (int(s) for s in shape)
    return SparsityPattern._trusted(
        like._tensor(np.ascontiguousarray(crow)).to(dtype),
        like._tensor(np.ascontiguousarray(col)).to(dtype),
        (rows, columns),
    )
