"""Preconditioners: functions M(r) ~ A^-1 r, one a file; those that learn are torch.nn.Modules."""

from learnsolve.preconditioners.approximate_inverse import ApproximateInverse, lower_pattern
from learnsolve.preconditioners.base import Learned, Preconditioner
from learnsolve.preconditioners.incomplete_factor import IncompleteFactor
from learnsolve.preconditioners.jacobi import Jacobi
from learnsolve.preconditioners.polynomial import Polynomial
from learnsolve.preconditioners.scaled_jacobi import ScaledJacobi
from learnsolve.preconditioners.spai import SPAI

__all__ = [
    "SPAI",
    "ApproximateInverse",
    "IncompleteFactor",
    "Jacobi",
    "Learned",
    "Polynomial",
    "Preconditioner",
    "ScaledJacobi",
    "lower_pattern",
]
