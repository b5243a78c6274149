"""Differentiable operations on `CSR` matrices, one a file."""

from learnsolve.ops import _fake
from learnsolve.ops.quadratic_form import quadratic_form
from learnsolve.ops.sddmm import sddmm
from learnsolve.ops.spmm import spmm
from learnsolve.ops.sptrsv import sptrsv
from learnsolve.ops.structure import diagonal, inverse_diagonal, scale_columns, scale_rows, sum, transpose

__all__ = [
    "diagonal",
    "inverse_diagonal",
    "quadratic_form",
    "scale_columns",
    "scale_rows",
    "sddmm",
    "spmm",
    "sptrsv",
    "sum",
    "transpose",
]
del _fake
