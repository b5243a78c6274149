"""Nonlinear functions: sparse Jacobians and Hessians, roots, fixed points, least squares, time steps."""

from learnsolve.nonlinear._pattern import jacobian_sparsity
from learnsolve.nonlinear.equations import fixed_point, least_squares, root
from learnsolve.nonlinear.jacobians import Jacobian, hessian, jacobian
from learnsolve.nonlinear.steppers import implicit_euler, trapezoidal

__all__ = [
    "Jacobian",
    "fixed_point",
    "hessian",
    "implicit_euler",
    "jacobian",
    "jacobian_sparsity",
    "least_squares",
    "root",
    "trapezoidal",
]
