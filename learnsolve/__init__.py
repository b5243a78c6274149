"""learnsolve: differentiable sparse iterative solvers for scientific machine learning, in PyTorch."""

from learnsolve import ops, problems, solvers
from learnsolve.csr import CSR, SparsityPattern

__version__ = "0.1.0"
__all__ = ["CSR", "SparsityPattern", "ops", "problems", "solvers"]
