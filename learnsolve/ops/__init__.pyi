# ruff: noqa: I001
"""Written by tests/ops_stub.py: the operations with the matrices that their callers may pass."""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from torch import Tensor

from learnsolve.matrix.convert import SciPyMatrix
from learnsolve.matrix.csr import CSR
from learnsolve.nn.modules import SparseMatrix
from learnsolve.ops.arithmetic import Scalar
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.complete import LDLT as LDLT
from learnsolve.ops.complete import LU as LU
from learnsolve.ops.indexing import Assembly as Assembly
from learnsolve.ops.complete import Cholesky as Cholesky
from learnsolve.ops.incomplete import IncompleteCholesky as IncompleteCholesky
from learnsolve.ops.incomplete import IncompleteLU as IncompleteLU
from learnsolve.ops.complete import SignLogdet as SignLogdet
from learnsolve.ops.stencils import StencilOperator as StencilOperator
from learnsolve.ops.blocks import diag as diag
from learnsolve.ops.blocks import eye as eye
from learnsolve.ops.segments import gather as gather
from learnsolve.ops.segments import segment_max as segment_max
from learnsolve.ops.segments import segment_mean as segment_mean
from learnsolve.ops.segments import segment_softmax as segment_softmax
from learnsolve.ops.segments import segment_sum as segment_sum
from learnsolve.ops.stencils import stencil as stencil
from learnsolve.ops.stencils import stencil_matrix as stencil_matrix
from learnsolve.ops.blocks import zeros as zeros

# Of tensors the sparse ones; no type says which are.
MatrixLike: TypeAlias = CSR | Tensor | SparseMatrix | SciPyMatrix

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

def add(A: MatrixLike, B: MatrixLike, *, alpha: Scalar = 1, beta: Scalar = 1) -> CSR: ...
def block(blocks: Sequence[Sequence[MatrixLike | None]]) -> CSR: ...
def block_diag(matrices: Sequence[MatrixLike]) -> CSR: ...
def cholesky(A: MatrixLike, *, ordering: str | Tensor = "minimum_degree") -> Cholesky: ...
def diagonal(A: MatrixLike, k: int = 0) -> Tensor: ...
def galerkin(P: MatrixLike, A: MatrixLike) -> CSR: ...
def hstack(matrices: Sequence[MatrixLike]) -> CSR: ...
def ic(
    A: MatrixLike,
    *,
    level: int | None = 0,
    pattern: SparsityPattern | None = None,
    shift: float | Tensor = 0.0,
    on_breakdown: Literal["raise", "shift"] = "raise",
) -> IncompleteCholesky: ...
def ict(
    A: MatrixLike,
    *,
    max_fill: int = 5,
    drop_tol: float = 0.001,
    shift: float | Tensor = 0.0,
    on_breakdown: Literal["raise", "shift"] = "raise",
) -> IncompleteCholesky: ...
def ilu(
    A: MatrixLike,
    *,
    level: int | None = 0,
    pattern: SparsityPattern | None = None,
    shift: float | Tensor = 0.0,
    on_breakdown: Literal["raise", "shift"] = "raise",
) -> IncompleteLU: ...
def ilut(
    A: MatrixLike,
    *,
    max_fill: int = 5,
    drop_tol: float = 0.001,
    shift: float | Tensor = 0.0,
    on_breakdown: Literal["raise", "shift"] = "raise",
) -> IncompleteLU: ...
def inverse_diagonal(A: MatrixLike) -> Tensor: ...
def kron(A: MatrixLike, B: MatrixLike) -> CSR: ...
def ldlt(A: MatrixLike, *, ordering: str | Tensor = "minimum_degree") -> LDLT: ...
def logdet(A: MatrixLike, *, ordering: str | Tensor = "minimum_degree") -> Tensor: ...
def lstsq(
    A: MatrixLike, b: Tensor, *, damp: float | Tensor = 0.0, weight: Tensor | None = None
) -> Tensor: ...
def lu(A: MatrixLike, *, ordering: str | Tensor = "minimum_degree") -> LU: ...
def mic(
    A: MatrixLike,
    *,
    level: int | None = 0,
    pattern: SparsityPattern | None = None,
    shift: float | Tensor = 0.0,
    omega: float | Tensor = 1.0,
    on_breakdown: Literal["raise", "shift"] = "raise",
) -> IncompleteCholesky: ...
def norm(
    A: MatrixLike, ord: float | str | None = None, dim: Literal[0, 1, -1, -2] | None = None
) -> Tensor: ...
def permute(A: MatrixLike, p: object, q: object = None) -> CSR: ...
def quadratic_form(A: MatrixLike, x: Tensor, *, symmetric: bool = False) -> Tensor: ...
def real_equivalent(re: Any, im: MatrixLike | None = None) -> CSR: ...
def scale_columns(A: MatrixLike, d: Tensor) -> CSR: ...
def scale_rows(A: MatrixLike, d: Tensor) -> CSR: ...
def sddmm(U: Tensor, V: Tensor, pattern: SparsityPattern | MatrixLike) -> Tensor: ...
def selected_inverse(
    A: MatrixLike, *, kind: Literal["cholesky", "lu"] = "cholesky", ordering: str | Tensor = "minimum_degree"
) -> CSR: ...
def slogdet(A: MatrixLike, *, ordering: str | Tensor = "minimum_degree") -> SignLogdet: ...
def spgemm(A: MatrixLike, B: MatrixLike, *, mask: SparsityPattern | None = None) -> CSR: ...
def spmm(A: MatrixLike, x: Tensor, *, transpose: bool = False) -> Tensor: ...
def spsolve(A: MatrixLike, b: Tensor, *, transpose: bool = False) -> Tensor: ...
def sptrsv(
    L: MatrixLike, b: Tensor, *, lower: bool = True, unit_diagonal: bool = False, transpose: bool = False
) -> Tensor: ...
def sum(A: MatrixLike, dim: Literal[0, 1, -1, -2] | None = None) -> Tensor: ...
def symmetric_scaling(A: MatrixLike, by: Literal["diagonal", "row_sums"] = "diagonal") -> CSR: ...
def trace(A: MatrixLike) -> Tensor: ...
def transpose(A: MatrixLike) -> CSR: ...
def tril(A: MatrixLike, k: int = 0) -> CSR: ...
def triu(A: MatrixLike, k: int = 0) -> CSR: ...
def vstack(matrices: Sequence[MatrixLike]) -> CSR: ...
