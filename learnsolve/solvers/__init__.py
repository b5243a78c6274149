"""Iterative solvers whose gradients are exact, one method a file."""

from learnsolve.solvers.base import Iteration, Solution, SolverError, Status
from learnsolve.solvers.bicgstab import bicgstab
from learnsolve.solvers.cg import cg
from learnsolve.solvers.fcg import fcg
from learnsolve.solvers.fgmres import fgmres
from learnsolve.solvers.gmres import gmres
from learnsolve.solvers.jacobi import Jacobi, jacobi
from learnsolve.solvers.lsmr import lsmr
from learnsolve.solvers.lsqr import lsqr
from learnsolve.solvers.minres import minres
from learnsolve.solvers.pcg import PCG
from learnsolve.solvers.sor import SOR, gauss_seidel, sor, ssor
from learnsolve.solvers.triangular_solve import TriangularSolve

__all__ = [
    "PCG",
    "SOR",
    "Iteration",
    "Jacobi",
    "Solution",
    "SolverError",
    "Status",
    "TriangularSolve",
    "bicgstab",
    "cg",
    "fcg",
    "fgmres",
    "gauss_seidel",
    "gmres",
    "jacobi",
    "lsmr",
    "lsqr",
    "minres",
    "sor",
    "ssor",
]
