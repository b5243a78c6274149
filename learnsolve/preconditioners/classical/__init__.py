"""Diagonals, factors, polynomials and sweeps, from a matrix or from tensors predicted by a network."""
