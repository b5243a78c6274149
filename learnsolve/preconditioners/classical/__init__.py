"""Diagonals, factors, polynomials and sweeps, of a matrix or of tensors that a network predicts."""
