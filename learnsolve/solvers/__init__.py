"""Iterative solvers whose gradients are exact, one family of methods per file."""

from learnsolve.matrix.autocast import guard
from learnsolve.solvers.bicgstab import bicgstab
from learnsolve.solvers.cg import PCG, cg, fcg
from learnsolve.solvers.chebyshev import Chebyshev, chebyshev
from learnsolve.solvers.core.criterion import set_check_every
from learnsolve.solvers.gmres import fgmres, gmres
from learnsolve.solvers.jacobi import Jacobi, jacobi
from learnsolve.solvers.lsqr import lsmr, lsqr
from learnsolve.solvers.minres import minres
from learnsolve.solvers.richardson import (
    Heavyball,
    Richardson,
    heavyball,
    heavyball_parameters,
    richardson,
    richardson_weight,
)
from learnsolve.solvers.solution import ConvergenceWarning, Iteration, Solution, SolverError, Status
from learnsolve.solvers.solve import solve
from learnsolve.solvers.sor import SOR, gauss_seidel, sor, ssor
from learnsolve.solvers.triangular_solve import TriangularSolve

__all__ = [
    "PCG",
    "SOR",
    "Chebyshev",
    "ConvergenceWarning",
    "Heavyball",
    "Iteration",
    "Jacobi",
    "Richardson",
    "Solution",
    "SolverError",
    "Status",
    "TriangularSolve",
    "bicgstab",
    "cg",
    "chebyshev",
    "fcg",
    "fgmres",
    "gauss_seidel",
    "gmres",
    "heavyball",
    "heavyball_parameters",
    "jacobi",
    "lsmr",
    "lsqr",
    "minres",
    "richardson",
    "richardson_weight",
    "set_check_every",
    "solve",
    "sor",
    "ssor",
]
guard(globals())
