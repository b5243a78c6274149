"""Preconditioners: functions M(r) ~ A^-1 r. Trainable ones are torch.nn.Modules."""

from learnsolve.matrix.checks import export
from learnsolve.ops.incomplete import fill_pattern
from learnsolve.preconditioners.amg import AMG
from learnsolve.preconditioners.base import Preconditioner
from learnsolve.preconditioners.direct import BlockJacobi, Factorization, factorize
from learnsolve.preconditioners.factors import IC, ICT, ILU, ILUT, MIC, FactorPreconditioner
from learnsolve.preconditioners.hierarchy import Hierarchy
from learnsolve.preconditioners.inverses import FSAI, SPAI, lower_pattern
from learnsolve.preconditioners.learned import GNP, FactorNetwork, NeuralAMG, NeuralIF, PreCorrector
from learnsolve.preconditioners.pointwise import RowFactor, StencilFactor
from learnsolve.preconditioners.polynomials import Chebyshev, Neumann, Polynomial
from learnsolve.preconditioners.relaxation import SOR, SSOR, Diagonal, Jacobi
from learnsolve.preconditioners.schwarz import AdditiveSchwarz
from learnsolve.preconditioners.trainable import Trainable, load

__all__ = [
    "AMG",
    "FSAI",
    "GNP",
    "IC",
    "ICT",
    "ILU",
    "ILUT",
    "MIC",
    "SOR",
    "SPAI",
    "SSOR",
    "AdditiveSchwarz",
    "BlockJacobi",
    "Chebyshev",
    "Diagonal",
    "FactorNetwork",
    "FactorPreconditioner",
    "Factorization",
    "Hierarchy",
    "Jacobi",
    "Neumann",
    "NeuralAMG",
    "NeuralIF",
    "Polynomial",
    "PreCorrector",
    "Preconditioner",
    "RowFactor",
    "StencilFactor",
    "Trainable",
    "factorize",
    "fill_pattern",
    "load",
    "lower_pattern",
]
export(globals())
