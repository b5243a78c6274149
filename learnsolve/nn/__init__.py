"""Layers of graph networks, built from the operations on sparse matrices."""

from learnsolve.nn.dropout import SparseDropout
from learnsolve.nn.gcn import GCNConv, gcn_normalise

__all__ = ["GCNConv", "SparseDropout", "gcn_normalise"]
