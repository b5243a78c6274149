"""Quantities that determine how fast an iteration converges: eigenvalues, condition numbers, convergence
factors, with gradients; one-step losses, and training vectors."""

from learnsolve.analysis.iterations import ErrorPropagator, convergence_factor, spectral_radius
from learnsolve.analysis.learning import krylov_basis, krylov_samples, one_step_loss
from learnsolve.analysis.spectrum import Estimate, ExtremeEigenvalues, condition_number, extreme_eigenvalues
from learnsolve.analysis.two_grid import two_grid_factor, two_grid_symbols
from learnsolve.matrix.checks import export

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
export(globals())
