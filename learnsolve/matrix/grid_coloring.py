"""Column colorings that repeat along the axes of a grid."""

from itertools import pairwise

import numpy as np

from learnsolve import _analysis
from learnsolve.matrix.pattern import SparsityPattern, as_numpy

_SAMPLE = 256


def repeated_coloring(pattern: SparsityPattern, fewest: int) -> tuple[np.ndarray, ...] | None:
    """A column coloring x + a y + b z modulo the number of colors, with `fewest` colors or a few more, for
    the unknowns of a grid in order; None if there is none. The axes are found from the distances of columns
    that share a row, in a sample of rows; the coloring is then checked in all rows."""
    crow, col = as_numpy(pattern.crow_indices), as_numpy(pattern.col_indices)
    n = pattern.shape[1]
    if not 2 <= fewest <= 64 or n < 4 * fewest:
        return None
    sample = np.unique(np.linspace(0, len(crow) - 2, _SAMPLE).astype(np.int64))
    rows = (col[crow[i] : crow[i + 1]].astype(np.int64) for i in sample)
    distances, number = np.unique(
        np.concatenate([(row[:, None] - row).ravel() for row in rows]), return_counts=True
    )
    distances = distances[(distances > 0) & (8 * number >= len(sample))]  # boundary rows have other distances
    if not 0 < len(distances) <= 512:
        return None
    strides = _strides(distances)
    digits, coordinates = [], []
    nearest, unknown = distances, np.arange(n)
    for stride in reversed(strides):
        digits.append((2 * nearest + stride) // (2 * stride))
        coordinates.append(unknown // stride)
        nearest, unknown = nearest - digits[-1] * stride, unknown % stride
    for count in range(fewest, fewest + 3):
        if count ** (len(strides) - 1) > 2**16:
            return None
        free = len(strides) - 1  # the factor of the innermost axis is 1
        factors = np.ones((len(strides), count**free), dtype=np.int64)
        factors[:free] = np.indices((count,) * free).reshape(free, count**free)
        distinct = (np.stack(digits).T @ factors % count != 0).all(0)
        for choice in factors.T[distinct][:2]:
            colors = np.zeros(n, dtype=np.int64)
            for factor, x in zip(choice, coordinates, strict=True):
                colors += factor * x
            found = _analysis.as_column_coloring(crow, col, (colors % count).astype(crow.dtype), count)
            if found is not None:
                return found
    return None


def _strides(distances: np.ndarray) -> list[int]:
    """Strides of the axes of a grid: 1, and the middle of each cluster of distances that is far larger than
    the previous ones."""
    strides, reach = [1], 0
    for distance, following in pairwise(distances):
        if following > 2 * distance and len(strides) < 4:
            reach = distance
            cluster = distances[(distances >= following) & (distances <= following + 2 * reach)]
            strides.append(int(cluster[0] + cluster[-1]) // 2)
    return strides
