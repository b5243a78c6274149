"""Quantities that determine how fast an iteration converges: eigenvalues, condition numbers, convergence
factors, with gradients."""

from learnsolve.analysis._estimate import Estimate
from learnsolve.analysis.condition_number import condition_number
from learnsolve.analysis.convergence_factor import convergence_factor
from learnsolve.analysis.error_propagator import ErrorPropagator
from learnsolve.analysis.extreme_eigenvalues import ExtremeEigenvalues, extreme_eigenvalues
from learnsolve.analysis.spectral_radius import spectral_radius

__all__ = [
    "ErrorPropagator",
    "Estimate",
    "ExtremeEigenvalues",
    "condition_number",
    "convergence_factor",
    "extreme_eigenvalues",
    "spectral_radius",
]
