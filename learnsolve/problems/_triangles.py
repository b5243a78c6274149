"""Triangles in the plane."""

import numpy as np


def triangulate(points: np.ndarray) -> np.ndarray:
    """The Delaunay triangles of points (n, 2), from SciPy: (triangles, 3)."""
    from scipy.spatial import Delaunay  # takes long to import

    return Delaunay(points).simplices


def triangle_edges(triangles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The edges (i, j), i < j, of triangles, each once, (edges, 2), and the number of triangles with each."""
    pairs = np.concatenate([triangles[:, [a, b]] for a, b in ((0, 1), (1, 2), (2, 0))]).astype(np.int64)
    low, high = pairs.min(1), pairs.max(1)
    size = int(high.max()) + 1
    keys, times = np.unique(low * size + high, return_counts=True)
    return np.stack(np.divmod(keys, size), -1), times
