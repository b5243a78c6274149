"""Comparison of preconditioners: iterations, seconds, failures."""

from learnsolve.evaluation._result import Evaluation, Row, Spread
from learnsolve.evaluation.evaluate import evaluate
from learnsolve.matrix.autocast import guard

__all__ = ["Evaluation", "Row", "Spread", "evaluate"]
guard(globals())
