"""learnsolve: differentiable sparse iterative solvers for scientific machine learning, in PyTorch."""

from typing import TYPE_CHECKING

from learnsolve import _first_line  # noqa: F401  (before torch)

# isort: split
from learnsolve import _library  # noqa: F401  (first, because it reports missing requirements)

# isort: split
from learnsolve import analysis, io, nn, nonlinear, ops, ordering, preconditioners, problems, solvers, testing
from learnsolve.collate import collate
from learnsolve.config import config, set_options, show_config
from learnsolve.eigen import Eigenpairs, SingularTriplets, eigsh, svds
from learnsolve.evaluation import Evaluation, compare_preconditioners
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.blocks import BlockBatch
from learnsolve.ops.operators import LinearOperator
from learnsolve.preconditioners import Factorization, factorize
from learnsolve.profiling import profile
from learnsolve.solvers import solve

__version__ = "0.1.0"
__all__ = [
    "CSR",
    "BlockBatch",
    "Eigenpairs",
    "Evaluation",
    "Factorization",
    "LinearOperator",
    "SingularTriplets",
    "SparsityPattern",
    "analysis",
    "collate",
    "compare_preconditioners",
    "config",
    "eigsh",
    "factorize",
    "io",
    "nn",
    "nonlinear",
    "ops",
    "ordering",
    "preconditioners",
    "problems",
    "profile",
    "set_options",
    "show_config",
    "solve",
    "solvers",
    "svds",
    "testing",
]

if not TYPE_CHECKING:  # type checkers would take every name for an attribute

    def __getattr__(name: str) -> object:
        parts = ("solvers", "preconditioners", "ops", "problems", "nonlinear", "nn", "io", "analysis")
        parts += ("ordering", "testing")
        found = [f"{__name__}.{part}.{name}" for part in parts if name in globals()[part].__all__]
        meant = f". Did you mean {' or '.join(found)}?" if found else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{meant}")
