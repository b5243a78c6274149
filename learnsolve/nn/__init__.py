"""Layers of graph networks, built from the operations on sparse matrices."""

from learnsolve.matrix.checks import export
from learnsolve.nn.graphs import GCNConv, gcn_norm, pattern_from_edge_index
from learnsolve.nn.modules import SparseDropout, SparseMatrix, positive_diagonal
from learnsolve.nn.networks import GraphNetBlock, ResGCN

__all__ = [
    "GCNConv",
    "GraphNetBlock",
    "ResGCN",
    "SparseDropout",
    "SparseMatrix",
    "gcn_norm",
    "pattern_from_edge_index",
    "positive_diagonal",
]
export(globals())
