"""Nonlinear functions: sparse Jacobians and Hessians."""

from learnsolve.nonlinear._jacobian import Jacobian, jacobian

__all__ = ["Jacobian", "jacobian"]
