"""Algebraic multigrid: hierarchies, smoothers, cycles."""
