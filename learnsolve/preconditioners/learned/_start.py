"""The description, in a file, of the preconditioner inside a `Trainable`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.preconditioners.base import Preconditioner
from learnsolve.preconditioners.classical.diagonal import Diagonal
from learnsolve.preconditioners.classical.factored import Factored

if TYPE_CHECKING:
    from learnsolve.preconditioners.learned.trainable import Trainable


def settings_of(module: Trainable) -> dict[str, Any]:
    """Settings for JSON; "complete" if `made` needs only these and the tensors of the file."""
    M: Any = module.M
    complete = not module._keeps_tensors and isinstance(M, (Diagonal, Factored))
    settings: dict[str, Any] = {"M": type(M).__name__, "complete": complete}
    if complete and isinstance(M, Factored):
        columns = module.L.pattern.shape[1]
        settings |= {"form": M.form, "columns": columns, "shift": vars(M).get("shift")}
    return settings


def made(settings: dict[str, Any], tensors: dict[str, Tensor]) -> Preconditioner:
    """A preconditioner with these patterns; its values are replaced later."""
    if settings["M"] == "Diagonal":
        (d,) = tensors.values()
        return Diagonal(torch.ones_like(d))
    columns, shift = settings["columns"], settings["shift"]
    rows = len(tensors["L.crow_indices"]) - 1
    L = _matrix(tensors, "L", (rows, columns))
    U = _matrix(tensors, "U", (columns, rows)) if "U.crow_indices" in tensors else None
    if shift is None:
        (shift,) = (torch.ones_like(t) for name, t in tensors.items() if name.startswith("shift."))
    return Factored(L, U, form=settings["form"], shift=shift)


def _matrix(tensors: dict[str, Tensor], name: str, shape: tuple[int, int]) -> CSR:
    """A matrix on the saved pattern, with ones on the diagonal."""
    pattern = SparsityPattern(tensors[f"{name}.crow_indices"], tensors[f"{name}.col_indices"], shape)
    split = f"{name}.off_diagonal" in tensors
    values = tensors[f"{name}.off_diagonal" if split else f"{name}.values"]
    if values.shape[-1] != pattern.nnz - (shape[0] if split else 0):
        raise ValueError(f"{name} has {values.shape[-1]} numbers for {pattern.nnz} entries")
    ones = (pattern.row_indices == pattern.col_indices).to(values.dtype)
    return CSR(ones.expand(*values.shape[:-1], -1), pattern)
