"""Preconditioners: functions M(r) ~ A^-1 r, one a file; trainable ones are torch.nn.Modules."""

from learnsolve.preconditioners._hierarchy import Hierarchy
from learnsolve.preconditioners._network_file import load
from learnsolve.preconditioners.amg import AMG
from learnsolve.preconditioners.approximate_inverse import ApproximateInverse, lower_pattern
from learnsolve.preconditioners.base import Learned, Preconditioner
from learnsolve.preconditioners.block_jacobi import BlockJacobi
from learnsolve.preconditioners.chebyshev import Chebyshev
from learnsolve.preconditioners.incomplete import IC0, ILU0, MIC0
from learnsolve.preconditioners.incomplete_factor import IncompleteFactor
from learnsolve.preconditioners.jacobi import Jacobi
from learnsolve.preconditioners.learned_amg import LearnedAMG
from learnsolve.preconditioners.neumann import Neumann
from learnsolve.preconditioners.neural_if import NeuralIF
from learnsolve.preconditioners.polynomial import Polynomial
from learnsolve.preconditioners.precorrector import PreCorrector
from learnsolve.preconditioners.scaled_jacobi import ScaledJacobi
from learnsolve.preconditioners.schwarz import AdditiveSchwarz
from learnsolve.preconditioners.sor import SOR
from learnsolve.preconditioners.spai import SPAI
from learnsolve.preconditioners.ssor import SSOR

__all__ = [
    "AMG",
    "IC0",
    "ILU0",
    "MIC0",
    "SOR",
    "SPAI",
    "SSOR",
    "AdditiveSchwarz",
    "ApproximateInverse",
    "BlockJacobi",
    "Chebyshev",
    "Hierarchy",
    "IncompleteFactor",
    "Jacobi",
    "Learned",
    "LearnedAMG",
    "Neumann",
    "NeuralIF",
    "Polynomial",
    "PreCorrector",
    "Preconditioner",
    "ScaledJacobi",
    "load",
    "lower_pattern",
]
