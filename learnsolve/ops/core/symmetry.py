"""The test for symmetry, for `CSR.is_symmetric` and preconditioners that are symmetric if A is.

Entries count as equal if they differ by rounding, |a_ij - a_ji| <= 64 eps sqrt(|a_ii a_jj|): after assembly
in another order, or two-sided scaling, a symmetric matrix is symmetric only up to rounding. The bound gives
the same result for A and D A D.
"""

import torch
from torch import Tensor

from learnsolve import _analysis
from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, as_numpy
from learnsolve.matrix.plain import numbers, plain_tensors

_ROUNDINGS = 64


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


def alike(a: Tensor, b: Tensor, scale: Tensor) -> bool:
    """|a - b| <= 64 eps scale, everywhere."""
    return bool(((a - b).abs() <= _ROUNDINGS * torch.finfo(a.dtype).eps * scale).all())


def _equal(v: Tensor, P: SparsityPattern) -> bool:
    turned = v.index_select(-1, P.transpose_permutation).conj().resolve_conj()
    if torch.equal(v, turned):
        return True
    at = P.diagonal_positions
    d = torch.where(at >= 0, v.index_select(-1, at.clamp(min=0)), 0).abs().sqrt()
    return alike(v, turned, d.index_select(-1, P.row_indices) * d.index_select(-1, P.col_indices))


def _symmetric_pattern(P: SparsityPattern) -> tuple[bool]:
    if P.shape[0] != P.shape[1]:
        return (False,)
    pairs = ((P.crow_indices, P.T.crow_indices), (P.col_indices, P.T.col_indices))
    return (all((as_numpy(a) == as_numpy(b)).all() for a, b in pairs),)
