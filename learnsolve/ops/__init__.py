"""Differentiable operations on `CSR` matrices, a family per file."""

import sys

from learnsolve.matrix import csr
from learnsolve.matrix.checks import export, export_methods
from learnsolve.ops.arithmetic import add
from learnsolve.ops.blocks import (
    BlockBatch,
    block,
    block_diag,
    diag,
    eye,
    hstack,
    kron,
    real_equivalent,
    vstack,
    zeros,
)
from learnsolve.ops.complete import (
    LDLT,
    LU,
    Cholesky,
    SignLogdet,
    cholesky,
    ldlt,
    logdet,
    lu,
    selected_inverse,
    slogdet,
)
from learnsolve.ops.direct import lstsq, spsolve
from learnsolve.ops.incomplete import IncompleteCholesky, IncompleteLU, ic, ict, ilu, ilut, mic
from learnsolve.ops.indexing import Assembly, permute
from learnsolve.ops.products import quadratic_form, sddmm, spmm
from learnsolve.ops.segments import gather, segment_max, segment_mean, segment_softmax, segment_sum
from learnsolve.ops.sparse_products import galerkin, spgemm
from learnsolve.ops.stencils import StencilOperator, stencil, stencil_matrix
from learnsolve.ops.structure import (
    diagonal,
    inverse_diagonal,
    norm,
    scale_columns,
    scale_rows,
    sum,
    symmetric_scaling,
    trace,
    transpose,
)
from learnsolve.ops.triangular import sptrsv, tril, triu

__all__ = [
    "LDLT",
    "LU",
    "Assembly",
    "Cholesky",
    "IncompleteCholesky",
    "IncompleteLU",
    "SignLogdet",
    "StencilOperator",
    "add",
    "block",
    "block_diag",
    "cholesky",
    "diag",
    "diagonal",
    "eye",
    "galerkin",
    "gather",
    "hstack",
    "ic",
    "ict",
    "ilu",
    "ilut",
    "inverse_diagonal",
    "kron",
    "ldlt",
    "logdet",
    "lstsq",
    "lu",
    "mic",
    "norm",
    "permute",
    "quadratic_form",
    "real_equivalent",
    "scale_columns",
    "scale_rows",
    "sddmm",
    "segment_max",
    "segment_mean",
    "segment_softmax",
    "segment_sum",
    "selected_inverse",
    "slogdet",
    "spgemm",
    "spmm",
    "spsolve",
    "sptrsv",
    "stencil",
    "stencil_matrix",
    "sum",
    "symmetric_scaling",
    "trace",
    "transpose",
    "tril",
    "triu",
    "vstack",
    "zeros",
]
csr._ops = sys.modules[__name__]
# Public functions also accept sparse matrices of other libraries; the library calls the inner functions.
export(globals())
export_methods(  # its other methods are operations of this package
    csr.CSR,
    *("from_coo", "from_dense", "from_torch", "stack", "abs", "pow", "__pow__", "__getitem__"),
    *("__add__", "__sub__", "__mul__", "__rmul__", "__truediv__"),
)
export_methods(BlockBatch, "__init__", "__matmul__", "with_values")
del csr, sys, BlockBatch, export, export_methods
