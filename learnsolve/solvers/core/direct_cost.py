"""What a direct solve costs, estimated from the pattern before anything is factorized."""

import numpy as np

from learnsolve.matrix.pattern import SparsityPattern, as_numpy
from learnsolve.ops.core.symmetry import symmetric_pattern
from learnsolve.ordering import reverse_cuthill_mckee

FACTORS = 400  # flops in the time that SuperLU spends on the structure of an entry of the factors


def direct_cost(P: SparsityPattern) -> float:
    """The time of `spsolve` with a matrix of this pattern, in flops of SuperLU (about 1e-10 s each). O(nnz),
    once for a pattern. Within a factor of three on meshes; too much on trees and on graphs with few cycles.

    In reverse Cuthill-McKee order the envelope of A + A^T has rows of w entries, about the size of the
    separators of the graph. A band of this width needs 2 n w entries and n w^2 flops. An order that reduces
    fill leaves at most about 8 entries per nonzero, and 10 (w / n)^1/2 of the flops: n^1.5 in the plane.
    """
    return P._planned(_direct_cost)[0]


def _direct_cost(P: SparsityPattern) -> tuple[float]:
    n = P.shape[0]
    sides = [P] if symmetric_pattern(P) else [P, P.T]
    if n == 0 or not all(np.diff(as_numpy(side.crow_indices)).all() for side in sides):
        return (0.0,)  # no factor of an empty row
    place = np.empty(n, dtype=np.int64)
    place[as_numpy(reverse_cuthill_mckee(P))] = np.arange(n)
    first = place
    for side in sides:
        of_rows = np.minimum.reduceat(place[as_numpy(side.col_indices)], as_numpy(side.crow_indices)[:-1])
        first = np.minimum(first, of_rows)
    width = (place - first).astype(np.float64)
    entries = min(2 * width.sum() + n, 8 * P.nnz)
    flops = np.square(width).sum()
    by_order = min(2.0, 10 * (flops / n) ** 0.25 / n**0.5)
    return (float(FACTORS * entries + by_order * flops),)
