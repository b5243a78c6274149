"""Data sets read from files; matrices written to files."""

from learnsolve.io.matrix_market import write_matrix_market
from learnsolve.io.planetoid import Graph, planetoid
from learnsolve.matrix.checks import export

__all__ = ["Graph", "planetoid", "write_matrix_market"]
export(globals())
