"""Iterative solvers whose gradients are exact, one method a file."""

from learnsolve.solvers.base import Solution, Status
from learnsolve.solvers.jacobi import Jacobi, jacobi

__all__ = ["Jacobi", "Solution", "Status", "jacobi"]
