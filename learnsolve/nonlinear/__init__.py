"""Nonlinear functions: sparse Jacobians and Hessians."""

from learnsolve.nonlinear._hessian import Hessian, hessian
from learnsolve.nonlinear._jacobian import Jacobian, jacobian
from learnsolve.nonlinear._pattern import jacobian_pattern

__all__ = ["Hessian", "Jacobian", "hessian", "jacobian", "jacobian_pattern"]
