"""Graphs whose Laplacians are tested with their assembly edge by edge, and a mesh that is a grid."""

import numpy as np
import torch

import learnsolve as ls

# Two triangles that share a node, an edge given three times in both directions, a node (6) on its own.
EDGES = torch.tensor([[0, 1], [1, 2], [2, 0], [2, 3], [4, 3], [2, 4], [1, 0], [0, 1], [5, 4]]).T
# A triangle and a tail; an edge given twice; an edge between grounded nodes; node 6 on its own.
PATHS = torch.tensor([[0, 1], [1, 2], [2, 0], [3, 2], [3, 4], [1, 0], [4, 5]]).T
GROUNDED = torch.tensor([True, False, False, False, True, True, False])


def assembled(edges, weights, grounded):
    """The Laplacian, edge by edge, on the nodes that are not grounded."""
    L = np.zeros((len(grounded),) * 2)
    for (i, j), w in zip(edges.T.tolist(), weights, strict=True):
        L[[i, j], [i, j]] += w
        L[[i, j], [j, i]] -= w
    free = ~grounded.cpu().numpy()
    return L[np.ix_(free, free)]


def grid_mesh(nx, ny, **options):
    """Squares cut along one diagonal."""
    number = torch.arange((nx + 1) * (ny + 1)).view(nx + 1, ny + 1)
    a, b, c, d = (number[i : nx + i, j : ny + j].flatten() for i in (0, 1) for j in (0, 1))
    points = torch.cartesian_prod(torch.arange(nx + 1.0), torch.arange(ny + 1.0))
    triangles = torch.cat((torch.stack((a, b, d), 1), torch.stack((a, d, c), 1)))
    return ls.problems.TriangleMesh(points, triangles, **options)
