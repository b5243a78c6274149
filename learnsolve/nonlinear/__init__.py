"""Nonlinear systems of equations, with gradients."""
