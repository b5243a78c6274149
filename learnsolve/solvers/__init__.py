"""Iterative solvers whose gradients are exact, one family of methods per file."""

from learnsolve.matrix.checks import export
from learnsolve.solvers.automatic import solve
from learnsolve.solvers.krylov import CG, bicgstab, cg, fcg, fgmres, gmres, minres
from learnsolve.solvers.least_squares import lsmr, lsqr
from learnsolve.solvers.relaxation import SOR, TriangularSolve, gauss_seidel, sor, ssor
from learnsolve.solvers.solution import ConvergenceWarning, Iteration, Solution, SolverError, Status
from learnsolve.solvers.stationary import (
    Chebyshev,
    Heavyball,
    Jacobi,
    Richardson,
    chebyshev,
    heavyball,
    heavyball_parameters,
    jacobi,
    richardson,
    richardson_weight,
)

__all__ = [
    "CG",
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
    "solve",
    "sor",
    "ssor",
]
export(globals())
