"""Preconditioners: functions M(r) ~ A^-1 r, one a file; those that learn are torch.nn.Modules."""

from learnsolve.preconditioners._hierarchy import Hierarchy
from learnsolve.preconditioners.amg import AMG
from learnsolve.preconditioners.base import Learned, Preconditioner
from learnsolve.preconditioners.jacobi import Jacobi
from learnsolve.preconditioners.learned_amg import LearnedAMG
from learnsolve.preconditioners.schwarz import AdditiveSchwarz

__all__ = ["AMG", "AdditiveSchwarz", "Hierarchy", "Jacobi", "Learned", "LearnedAMG", "Preconditioner"]
