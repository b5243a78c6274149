"""Nonlinear functions: sparse Jacobians and Hessians, roots, fixed points, least squares, time steps."""

from learnsolve.nonlinear._hessian import hessian
from learnsolve.nonlinear._jacobian import Jacobian, jacobian
from learnsolve.nonlinear._pattern import jacobian_pattern
from learnsolve.nonlinear.fixed_point import fixed_point
from learnsolve.nonlinear.least_squares import least_squares
from learnsolve.nonlinear.root import root
from learnsolve.nonlinear.steppers import implicit_euler, trapezoidal

__all__ = [
    "Jacobian",
    "fixed_point",
    "hessian",
    "implicit_euler",
    "jacobian",
    "jacobian_pattern",
    "least_squares",
    "root",
    "trapezoidal",
]
