"""Differentiable operations on `CSR` matrices, one per file."""

import sys

from learnsolve.matrix import csr
from learnsolve.matrix.autocast import guard, guard_methods
from learnsolve.matrix.inputs import takes_sparse_matrices
from learnsolve.ops import arithmetic, coo, indexing  # noqa: F401  (methods of CSR)
from learnsolve.ops.add import add
from learnsolve.ops.block_batch import BlockBatch
from learnsolve.ops.core import batched, fake, linear_operator, on_pattern, symmetry
from learnsolve.ops.core.sparse_product import set_spgemm_plan_limit
from learnsolve.ops.diagonal import diagonal, inverse_diagonal, trace
from learnsolve.ops.diagonals import diag, eye, zeros
from learnsolve.ops.factors import LDLT, LU, Cholesky, cholesky, ldlt, lu
from learnsolve.ops.gather import gather
from learnsolve.ops.incomplete import IncompleteCholesky, IncompleteLU, ic0, ilu0, mic0
from learnsolve.ops.indexing import permute
from learnsolve.ops.kron import kron
from learnsolve.ops.limits import set_buffer_pool_limit, set_plan_cache_limit
from learnsolve.ops.logdet import SignLogdet, logdet, selected_inverse, slogdet
from learnsolve.ops.lstsq import lstsq
from learnsolve.ops.norm import norm
from learnsolve.ops.quadratic_form import quadratic_form
from learnsolve.ops.real_form import real_form
from learnsolve.ops.sddmm import sddmm
from learnsolve.ops.segment_max import segment_max
from learnsolve.ops.segment_softmax import segment_softmax
from learnsolve.ops.segment_sum import segment_mean, segment_sum
from learnsolve.ops.spgemm import galerkin, spgemm
from learnsolve.ops.spmm import spmm
from learnsolve.ops.spsolve import spsolve
from learnsolve.ops.sptrsv import sptrsv
from learnsolve.ops.stack import block, block_diag, hstack, vstack
from learnsolve.ops.stencil import stencil
from learnsolve.ops.stencil_matrix import stencil_matrix
from learnsolve.ops.stencil_operator import StencilOperator
from learnsolve.ops.structure import scale_columns, scale_rows, sum, transpose
from learnsolve.ops.symmetric_scaling import symmetric_scaling
from learnsolve.ops.threshold import ict, ilut
from learnsolve.ops.triangle import tril, triu

__all__ = [
    "LDLT",
    "LU",
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
    "ic0",
    "ict",
    "ilu0",
    "ilut",
    "inverse_diagonal",
    "kron",
    "ldlt",
    "logdet",
    "lstsq",
    "lu",
    "mic0",
    "norm",
    "permute",
    "quadratic_form",
    "real_form",
    "scale_columns",
    "scale_rows",
    "sddmm",
    "segment_max",
    "segment_mean",
    "segment_softmax",
    "segment_sum",
    "selected_inverse",
    "set_buffer_pool_limit",
    "set_plan_cache_limit",
    "set_spgemm_plan_limit",
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
guard(globals(), takes_sparse_matrices)
guard_methods(  # its other methods are operations of this package
    csr.CSR,
    *("from_coo", "from_dense", "from_torch", "stack", "abs", "pow", "__pow__", "__getitem__"),
    *("__add__", "__sub__", "__mul__", "__rmul__", "__truediv__"),
)
guard_methods(BlockBatch, "__init__", "__matmul__", "with_values")
del (
    csr,
    sys,
    BlockBatch,
    guard,
    guard_methods,
    takes_sparse_matrices,
    batched,
    fake,
    linear_operator,
    on_pattern,
    symmetry,
)
