"""Families of matrices: a seed and a size make a matrix, as a SciPy CSR. Held-out seeds start from 0."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
import torch

import learnsolve as ls

p = ls.problems
TRAINING = 10_000  # the first seed of matrices for tuning and training


class Family(NamedTuple):
    """make(seed, size); the size of held-out matrices, and of those on which networks are trained: the side
    of a grid, or the `power` of it. Diagonals of a matrix on a grid."""

    make: Callable[[int, int], ls.CSR]
    size: int
    small: int
    diagonals: int = 0
    symmetric: bool = True
    power: int = 1

    def smaller(self, size: int, times: float) -> int:
        return round(size / times**self.power)

    def matrix(self, seed: int, size: int) -> sp.csr_matrix:
        S = sp.csr_matrix(self.make(seed, size).to_scipy())
        S.sort_indices()
        return S

    def training(self, number: int) -> list[ls.CSR]:
        """Of two sizes: a network that reads the size may learn what it does."""
        sizes = [self.small, self.smaller(self.small, 0.5)]
        return [self.make(TRAINING + seed, sizes[seed % 2]) for seed in range(number)]


def cells(seed: int, n: int) -> ls.CSR:
    generator = torch.Generator().manual_seed(seed)
    return p.diffusion(torch.exp(2 * torch.randn(n, n, dtype=torch.float64, generator=generator)))


def anisotropic(seed: int, n: int) -> ls.CSR:
    """Angle uniform in (0, pi), logarithm of the ratio uniform in (1e-3, 1)."""
    angle, ratio = np.random.default_rng(seed).random(2)
    return p.anisotropic((n, n), 10 ** (-3 * ratio), math.pi * angle)


def heterogeneous(seed: int, n: int) -> ls.CSR:
    """A log-normal field in three dimensions, standard deviation 2, correlated over a tenth of the cube."""
    return p.diffusion(
        torch.exp(p.gaussian_field((n, n, n), seed, length=0.1, variance=4.0, covariance="exponential"))
    )


def delaunay(seed: int, n: int) -> ls.CSR:
    """Laplacians of Delaunay graphs, log-normal weights, grounded at the boundary."""
    _, edges, grounded = p.delaunay_graph(n, seed)
    generator = torch.Generator().manual_seed(seed)
    weights = torch.exp(torch.randn(edges.shape[1], dtype=torch.float64, generator=generator))
    return p.grounded_laplacian(edges, weights, grounded, both_directions=False)


def convection(seed: int, n: int) -> ls.CSR:
    """Upwind, in eddies of a random stream function; mesh Peclet number 10^u, u uniform in (-1, 1)."""
    psi = p.gaussian_field((n, n), seed, length=0.3)
    dx, dy = torch.gradient(psi)
    wind = torch.stack((dy, -dx)) / torch.sqrt(dx**2 + dy**2).max()
    return p.convection_diffusion(wind, 10 ** (2 * np.random.default_rng(seed).random() - 1))


FAMILIES: dict[str, Family] = {
    "log-normal cells": Family(cells, 316, 64, 5),
    "rotated anisotropy": Family(anisotropic, 256, 64, 9),
    "heterogeneous 3D": Family(heterogeneous, 50, 16, 7),
    "Delaunay graphs": Family(delaunay, 30_000, 4_000, power=2),
    "convection": Family(convection, 200, 64, symmetric=False),
}
