"""Layers of networks on graphs, made of the operations on sparse matrices."""

from learnsolve.nn.dropout import SparseDropout
from learnsolve.nn.gcn import GCNConv, gcn_normalise

__all__ = ["GCNConv", "SparseDropout", "gcn_normalise"]
