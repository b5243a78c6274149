"""Tests of the derivatives of functions of sparse matrices."""

from learnsolve.testing.check_gradients import check_gradients
from learnsolve.testing.report import GradientEntry, GradientReport

__all__ = ["GradientEntry", "GradientReport", "check_gradients"]
