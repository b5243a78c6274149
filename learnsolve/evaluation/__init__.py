"""Comparison of preconditioners: iterations, seconds, failures."""

from learnsolve.evaluation.comparison import Evaluation, Row, Spread, compare_preconditioners
from learnsolve.matrix.checks import export

__all__ = ["Evaluation", "Row", "Spread", "compare_preconditioners"]
export(globals())
