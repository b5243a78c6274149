"""Comparison of preconditioners: iterations, seconds, failures."""

from learnsolve.evaluation.comparison import Evaluation, Row, Spread, evaluate
from learnsolve.matrix.checks import guard

__all__ = ["Evaluation", "Row", "Spread", "evaluate"]
guard(globals())
