"""Tests of the derivatives of functions of sparse matrices."""

from learnsolve.testing.gradients import GradientEntry, GradientReport, check_gradients

__all__ = ["GradientEntry", "GradientReport", "check_gradients"]
