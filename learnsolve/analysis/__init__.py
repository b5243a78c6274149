"""Quantities that determine how fast an iteration converges: eigenvalues, condition numbers, convergence
factors, with gradients; one-step losses, and training vectors."""

from learnsolve.analysis._estimate import Estimate
from learnsolve.analysis.condition_number import condition_number
from learnsolve.analysis.convergence_factor import convergence_factor
from learnsolve.analysis.error_propagator import ErrorPropagator
from learnsolve.analysis.extreme_eigenvalues import ExtremeEigenvalues, extreme_eigenvalues
from learnsolve.analysis.krylov_samples import krylov_basis, krylov_samples
from learnsolve.analysis.one_step_loss import one_step_loss
from learnsolve.analysis.spectral_radius import spectral_radius
from learnsolve.analysis.two_grid import two_grid_factor, two_grid_symbols
from learnsolve.matrix.autocast import guard

__all__ = [
    "ErrorPropagator",
    "Estimate",
    "ExtremeEigenvalues",
    "condition_number",
    "convergence_factor",
    "extreme_eigenvalues",
    "krylov_basis",
    "krylov_samples",
    "one_step_loss",
    "spectral_radius",
    "two_grid_factor",
    "two_grid_symbols",
]
guard(globals())
