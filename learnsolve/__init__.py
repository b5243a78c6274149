"""learnsolve: differentiable sparse iterative solvers for scientific machine learning, in PyTorch."""

from learnsolve import ops, ordering, preconditioners, problems, solvers
from learnsolve.config import config, show_config
from learnsolve.csr import CSR
from learnsolve.pattern import SparsityPattern
from learnsolve.profiling import profile

__version__ = "0.1.0"
__all__ = [
    "CSR",
    "SparsityPattern",
    "config",
    "ops",
    "ordering",
    "preconditioners",
    "problems",
    "profile",
    "show_config",
    "solvers",
]
