"""Data sets read from files."""

from learnsolve.io.planetoid import Graph, planetoid

__all__ = ["Graph", "planetoid"]
