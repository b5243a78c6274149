"""Comparison of preconditioners: iterations, seconds, failures."""

from learnsolve._autocast import guard
from learnsolve.evaluation._result import Evaluation, Row, Spread
from learnsolve.evaluation.evaluate import evaluate

__all__ = ["Evaluation", "Row", "Spread", "evaluate"]
guard(globals())
