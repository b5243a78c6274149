"""Nonlinear functions: sparse Jacobians and Hessians, roots, fixed points, least squares, implicit time steps."""

from learnsolve.nonlinear._jacobian import Jacobian, jacobian

__all__ = ["Jacobian", "jacobian"]
