"""Layers of graph networks, built from the operations on sparse matrices."""

from learnsolve.matrix.autocast import guard
from learnsolve.nn.dropout import SparseDropout
from learnsolve.nn.edge_index import pattern_from_edge_index
from learnsolve.nn.gcn import GCNConv, gcn_norm
from learnsolve.nn.graph_net import GraphNetBlock
from learnsolve.nn.positive_diagonal import positive_diagonal
from learnsolve.nn.res_gcn import ResGCN
from learnsolve.nn.sparse_matrix import SparseMatrix

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
guard(globals())
