"""Nonlinear functions: sparse Jacobians and Hessians."""

from learnsolve.nonlinear._hessian import hessian
from learnsolve.nonlinear._jacobian import Jacobian, jacobian
from learnsolve.nonlinear._pattern import jacobian_pattern

__all__ = ["Jacobian", "hessian", "jacobian", "jacobian_pattern"]
