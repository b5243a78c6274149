"""Preconditioners: functions M(r) ~ A^-1 r, one per file; trainable ones are torch.nn.Modules."""

from learnsolve.matrix.autocast import guard
from learnsolve.preconditioners.base import Preconditioner
from learnsolve.preconditioners.classical.block_jacobi import BlockJacobi
from learnsolve.preconditioners.classical.chebyshev import Chebyshev
from learnsolve.preconditioners.classical.diagonal import Diagonal
from learnsolve.preconditioners.classical.factored import Factored
from learnsolve.preconditioners.classical.factorization import Factorization, factorize
from learnsolve.preconditioners.classical.fill_pattern import fill_pattern
from learnsolve.preconditioners.classical.fsai import FSAI, lower_pattern
from learnsolve.preconditioners.classical.incomplete import IC0, ILU0, MIC0
from learnsolve.preconditioners.classical.jacobi import Jacobi
from learnsolve.preconditioners.classical.neumann import Neumann
from learnsolve.preconditioners.classical.polynomial import Polynomial
from learnsolve.preconditioners.classical.sor import SOR
from learnsolve.preconditioners.classical.spai import SPAI
from learnsolve.preconditioners.classical.ssor import SSOR
from learnsolve.preconditioners.classical.threshold import ICT, ILUT
from learnsolve.preconditioners.domain._interfaces import interface_pattern
from learnsolve.preconditioners.domain.schwarz import AdditiveSchwarz
from learnsolve.preconditioners.learned._saved import loadable
from learnsolve.preconditioners.learned.factor_network import FactorNetwork, NetworkStart
from learnsolve.preconditioners.learned.gnp import GNP
from learnsolve.preconditioners.learned.load import load
from learnsolve.preconditioners.learned.neural_amg import NeuralAMG
from learnsolve.preconditioners.learned.neural_if import NeuralIF
from learnsolve.preconditioners.learned.precorrector import PreCorrector
from learnsolve.preconditioners.learned.trainable import Trainable
from learnsolve.preconditioners.multigrid._hierarchy import Hierarchy
from learnsolve.preconditioners.multigrid.amg import AMG

__all__ = [
    "AMG",
    "FSAI",
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
    "BlockJacobi",
    "Chebyshev",
    "Diagonal",
    "FactorNetwork",
    "Factored",
    "Factorization",
    "Hierarchy",
    "Jacobi",
    "NetworkStart",
    "Neumann",
    "NeuralAMG",
    "NeuralIF",
    "Polynomial",
    "PreCorrector",
    "Preconditioner",
    "Trainable",
    "factorize",
    "fill_pattern",
    "interface_pattern",
    "load",
    "loadable",
    "lower_pattern",
]
guard(globals())
