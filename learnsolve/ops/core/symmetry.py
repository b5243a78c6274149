"""The test for symmetry, for `CSR.is_symmetric` and everything that is symmetric if A is.

Entries count as equal if they differ by rounding, |a_ij - a_ji| <= 512 eps sqrt(m_i m_j), with m_i the
largest modulus in row and column i: after assembly in another order, or two-sided scaling, a symmetric matrix
is symmetric only up to rounding. An entry that is a sum is off by some eps times the largest of its terms,
which may cancel: a discontinuous Galerkin matrix of pyamg is off by 246. The rows rather than the diagonal
give the scale, since a diagonal may be zero; the two rows rather than the whole matrix, since rows may have
different units.
"""

import torch
from torch import Tensor

from learnsolve import _analysis
from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, as_numpy
from learnsolve.matrix.plain import numbers, plain_tensors

_ROUNDINGS = 512


def symmetry(function: str, A: CSR, given: bool | None) -> bool:
    """The argument `symmetric` if `given`, otherwise a test of A's values: O(nnz), on the host."""
    if given is not None:
        checks.flag(function, "symmetric", given)
        return given
    compiling = torch.compiler.is_dynamo_compiling()
    if not compiling and (found := _in_one_pass(numbers(A.values), A.pattern)) is not None:
        return found
    if not symmetric_pattern(A.pattern):
        return False
    if compiling:
        raise NotImplementedError(
            f"{function}: whether A is symmetric cannot be read off its values under torch.compile; pass "
            "symmetric=True or symmetric=False"
        )
    with plain_tensors(), torch.no_grad():
        return _equal(numbers(A.values), A.pattern)


def _in_one_pass(v: Tensor, P: SparsityPattern) -> bool | None:
    """For one matrix on the CPU, without its transpose; None if values differ, possibly by rounding."""
    if v.dim() > 1 or v.dtype not in (torch.float32, torch.float64) or not v.is_cpu:
        return None
    if P.shape[0] != P.shape[1]:
        return False
    with plain_tensors(), torch.no_grad():
        arrays = as_numpy(P.crow_indices), as_numpy(P.col_indices), as_numpy(v.contiguous())
    return (False, None, True)[_analysis.symmetry_of(*arrays)]


def symmetric_pattern(P: SparsityPattern) -> bool:
    return P._planned(_symmetric_pattern)[0]


def symmetric_blocks(B: Tensor) -> bool:
    """The same test for dense blocks (..., n, n)."""
    m = torch.maximum(B.abs(), B.mT.abs()).amax(-1).sqrt()
    return _alike(B, B.mT, m.unsqueeze(-1), m.unsqueeze(-2))


def _alike(a: Tensor, b: Tensor, *roots: Tensor) -> bool:
    return bool(((a - b).abs() <= _ROUNDINGS * torch.finfo(a.dtype).eps * roots[0] * roots[1]).all())


def _equal(v: Tensor, P: SparsityPattern) -> bool:
    turned = v.index_select(-1, P.transpose_permutation).conj().resolve_conj()
    if torch.equal(v, turned):
        return True
    sizes, rows = torch.maximum(v.abs(), turned.abs()), P.row_indices
    m = sizes.new_zeros((*v.shape[:-1], P.shape[0]))
    m = m.scatter_reduce(-1, rows.long().expand(v.shape), sizes, "amax").sqrt()
    return _alike(v, turned, m.index_select(-1, rows), m.index_select(-1, P.col_indices))


def _symmetric_pattern(P: SparsityPattern) -> tuple[bool]:
    if P.shape[0] != P.shape[1]:
        return (False,)
    pairs = ((P.crow_indices, P.T.crow_indices), (P.col_indices, P.T.col_indices))
    return (all((as_numpy(a) == as_numpy(b)).all() for a, b in pairs),)
