"""Preconditioners: functions M(r) ~ A^-1 r, one a file; trainable ones are torch.nn.Modules."""

from learnsolve._autocast import guard
from learnsolve.preconditioners._hierarchy import Hierarchy
from learnsolve.preconditioners._interfaces import interface_pattern
from learnsolve.preconditioners.amg import AMG
from learnsolve.preconditioners.approximate_inverse import ApproximateInverse, lower_pattern
from learnsolve.preconditioners.base import Learned, Preconditioner
from learnsolve.preconditioners.block_jacobi import BlockJacobi
from learnsolve.preconditioners.chebyshev import Chebyshev
from learnsolve.preconditioners.diagonal import Diagonal
from learnsolve.preconditioners.factored import Factored
from learnsolve.preconditioners.fill_pattern import fill_pattern
from learnsolve.preconditioners.gnp import GNP
from learnsolve.preconditioners.incomplete import IC0, ILU0, MIC0
from learnsolve.preconditioners.incomplete_factor import IncompleteFactor
from learnsolve.preconditioners.jacobi import Jacobi
from learnsolve.preconditioners.learned_amg import LearnedAMG
from learnsolve.preconditioners.load import load
from learnsolve.preconditioners.matrix_polynomial import MatrixPolynomial
from learnsolve.preconditioners.neumann import Neumann
from learnsolve.preconditioners.neural_amg import NeuralAMG
from learnsolve.preconditioners.neural_if import NeuralIF
from learnsolve.preconditioners.polynomial import Polynomial
from learnsolve.preconditioners.precorrector import PreCorrector
from learnsolve.preconditioners.scaled_jacobi import ScaledJacobi
from learnsolve.preconditioners.schwarz import AdditiveSchwarz
from learnsolve.preconditioners.sor import SOR
from learnsolve.preconditioners.spai import SPAI
from learnsolve.preconditioners.ssor import SSOR
from learnsolve.preconditioners.threshold import ICT, ILUT

__all__ = [
    "AMG",
    "GNP",
    "IC0",
    "ICT",
    "ILU0",
    "ILUT",
    "MIC0",
    "SOR",
    "SPAI",
    "SSOR",
    "AdditiveSchwarz",
    "ApproximateInverse",
    "BlockJacobi",
    "Chebyshev",
    "Diagonal",
    "Factored",
    "Hierarchy",
    "IncompleteFactor",
    "Jacobi",
    "Learned",
    "LearnedAMG",
    "MatrixPolynomial",
    "Neumann",
    "NeuralAMG",
    "NeuralIF",
    "Polynomial",
    "PreCorrector",
    "Preconditioner",
    "ScaledJacobi",
    "fill_pattern",
    "interface_pattern",
    "load",
    "lower_pattern",
]
guard(globals())
