"""Whether a matrix is symmetric, by its numbers: what a preconditioner made of it says of itself."""

import torch

from learnsolve.csr import CSR
from learnsolve.ops.add import add
from learnsolve.ops.structure import plain_values, transpose


def is_symmetric(A: CSR) -> bool:
    """Is every matrix of the batch symmetric up to 16 units of rounding of the largest entry? Scaling from
    both sides, (d_i a_ij) d_j, is not exactly symmetric."""
    if A.shape[0] != A.shape[1]:
        return False
    with torch.no_grad():
        A = A.detach()
        difference = plain_values(add(A, transpose(A), beta=-1).values)
    values = plain_values(A.values)
    if values.numel() == 0:
        return True
    return bool(difference.abs().max() <= 16 * torch.finfo(A.dtype).eps * values.abs().max())
