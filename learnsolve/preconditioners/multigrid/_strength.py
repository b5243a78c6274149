"""Strong connections, determined by how an error at one point spreads.

Source: L. N. Olson, J. Schroder, R. S. Tuminaro, "A new perspective on strength measures in algebraic
multigrid", Numer. Linear Algebra Appl. 17 (2010), doi:10.1002/nla.669.
"""

import torch

from learnsolve.matrix.csr import CSR
from learnsolve.ops.core.symmetry import symmetric_pattern
from learnsolve.ops.spgemm import spgemm
from learnsolve.ops.structure import scale_rows, transpose

_DROP = 4.0  # a connection is strong up to this multiple of the best measure in its row


def evolution(A: CSR, b: torch.Tensor, radius: float) -> CSR:
    r"""1 for the strong entries of A and of A^T, on A's pattern, else 0.

    Two steps :math:`z = (I - D^{-1} A / \rho)^2 \delta_i` of Jacobi's method, on the pattern: j is close to i
    if z_j agrees with the candidate b scaled to agree in i, that is, :math:`|1 - z_i b_j / (b_i z_j)|` is
    small.
    """
    rows, columns = A.pattern.row_indices.long(), A.pattern.col_indices.long()
    own = rows == columns
    jacobi = scale_rows(A, -1 / (radius * A.diagonal()))
    jacobi = jacobi.with_values(jacobi.values + own)
    z = spgemm(jacobi, jacobi, mask=A.pattern)
    here = z.diagonal()[rows] / b[rows]
    there = z.values / b[columns]
    measure = torch.where((here * there > 0) & ~own, (1 - here / there).abs(), torch.inf)
    best = measure.new_full((A.shape[0],), torch.inf).scatter_reduce(0, rows, measure, "amin")
    strong = A.with_values(((measure <= _DROP * best[rows]) & measure.isfinite()).to(A.dtype))
    if not symmetric_pattern(A.pattern):
        return strong
    return strong.with_values(torch.maximum(strong.values, transpose(strong).values))
