"""Systems for a method that has to take any: definite, indefinite, singular and nonsymmetric ones, of 48 to
100,000 rows, from grids in two and three dimensions, meshes, graphs, saddle points, and random.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import scipy.sparse as sp
import torch

import learnsolve as ls
from benchmarks.matrices import GALLERY, _rows, banded, power_law

Make = Callable[[], sp.csr_array]


def complex_as_real(S: sp.csr_array) -> sp.csr_array:
    return sp.csr_array(sp.block_array([[S.real, -S.imag], [S.imag, S.real]]))


def helmholtz(shape: tuple[int, ...], kh: float, damping: float = 0.0) -> sp.csr_array:
    """-Laplace - (1 + i damping) kh^2, times h^2: complex as a real 2 x 2 block if there is damping."""
    L = ls.problems.poisson(shape).to_scipy()
    S = sp.csr_array(L - (1 + 1j * damping) * kh**2 * sp.eye_array(L.shape[0]))
    return complex_as_real(S) if damping else sp.csr_array(S.real)


def convection(
    shape: tuple[int, ...], peclet: float, scheme: Literal["central", "upwind"] = "upwind"
) -> sp.csr_array:
    wind = torch.ones((len(shape), *shape), dtype=torch.float64)
    wind[0] *= 0.5
    return ls.problems.convection_diffusion(wind, peclet, scheme=scheme).to_scipy()


def circulating(side: int, peclet: float) -> sp.csr_array:
    x = torch.linspace(-1, 1, side, dtype=torch.float64)
    X, Y = torch.meshgrid(x, x, indexing="ij")
    wind = torch.stack((2 * Y * (1 - X**2), -2 * X * (1 - Y**2)))
    return ls.problems.convection_diffusion(wind, peclet).to_scipy()


def jumps(shape: tuple[int, ...], contrast: float) -> sp.csr_array:
    kappa = torch.exp(math.log(contrast) * torch.rand(shape, dtype=torch.float64).round())
    return ls.problems.diffusion(kappa).to_scipy()


def laplacian(S: sp.csr_array, shift: float = 0.0) -> sp.csr_array:
    W = abs(sp.csr_array(S + S.T))
    W.setdiag(0)
    W.eliminate_zeros()
    return sp.csr_array(sp.diags_array(np.asarray(W.sum(1)).ravel() + shift) - W)


def stokes(side: int, viscosity: float = 1.0, penalty: float = 0.0) -> sp.csr_array:
    """Marker-and-cell Stokes on a unit square, one pressure fixed by a small penalty."""
    D = sp.diags_array([np.ones(side), -np.ones(side - 1)], offsets=range(0, -2, -1), shape=(side, side - 1))
    eye, inner = sp.eye_array(side), sp.eye_array(side - 1)
    T = lambda n: sp.diags_array([-np.ones(n - 1), 2 * np.ones(n), -np.ones(n - 1)], offsets=range(-1, 2))  # noqa: E731
    L = sp.kron(T(side - 1), eye) + sp.kron(inner, T(side))
    R = sp.kron(eye, T(side - 1)) + sp.kron(T(side), inner)
    B = sp.hstack([sp.kron(D, eye), sp.kron(eye, D)])
    C = sp.eye_array(side**2) * (penalty or 1e-6)
    return sp.csr_array(sp.block_array([[viscosity * sp.block_diag([L, R]), B.T], [B, -C]]))


def optimization(n: int, m: int, seed: int = 0) -> sp.csr_array:
    """[[H, G^T], [G, 0]] of a quadratic program with random sparse constraints."""
    rng = np.random.default_rng(seed)
    G = sp.random_array((m, n), density=3 / n, rng=rng) + sp.eye_array(m, n)
    H = sp.diags_array(rng.random(n) + 0.1)
    return sp.csr_array(sp.block_array([[H, G.T], [G, None]]))


def random_dominant(n: int, length: int, margin: float) -> sp.csr_array:
    S = _rows(np.full(n, length), np.random.default_rng(n))
    return sp.csr_array(S + sp.diags_array((1 + margin) * np.asarray(abs(S).sum(1)).ravel()))


def random_sparse(n: int, length: int) -> sp.csr_array:
    S = _rows(np.full(n, length), np.random.default_rng(n))
    return sp.csr_array(S + 2 * math.sqrt(length) * sp.eye_array(n))


def shifted_to_definite(n: int, length: int) -> sp.csr_array:
    S = _rows(np.full(n, length), np.random.default_rng(n + 1))
    S = S + S.T
    return sp.csr_array(S + 3 * math.sqrt(length) * sp.eye_array(n))


def cases(folder: Path | None) -> Iterator[tuple[str, Make]]:
    p = ls.problems
    P = lambda *shape, **k: lambda: p.poisson(shape, **k).to_scipy()  # noqa: E731
    for name in GALLERY:
        yield f"pyamg {name}", lambda name=name: p.pyamg_gallery(name).to_scipy()
    yield "Poisson 10x10", P(10, 10)
    yield "Poisson 40x40", P(40, 40)
    yield "Poisson 100x100", P(100, 100)
    yield "Poisson 300x300", P(300, 300)
    yield "Poisson 20x5000", P(20, 5000)
    yield "Poisson 100000", P(100_000)
    yield "Poisson 8x8x8", P(8, 8, 8)
    yield "Poisson 20x20x20", P(20, 20, 20)
    yield "Poisson 46x46x46", P(46, 46, 46)
    yield "Poisson q1 150x150", P(150, 150, discretization="fe")
    yield "anisotropic 1e-3 150x150", lambda: p.anisotropic((150, 150), 1e-3, 0.5).to_scipy()
    yield "jumps 1e4 200x200", lambda: jumps((200, 200), 1e4)
    yield "jumps 1e6 25x25x25", lambda: jumps((25, 25, 25), 1e6)
    yield "P1 mesh 20000", lambda: p.p1_stiffness(p.random_mesh(20_000, 0)).to_scipy()
    yield "biharmonic 70x70", lambda: sp.csr_array(P(70, 70)() @ P(70, 70)())
    yield "random SPD 3000", lambda: shifted_to_definite(3_000, 3)
    yield "random SPD 50000", lambda: shifted_to_definite(50_000, 5)
    yield "indefinite shift 2D 60x60", lambda: helmholtz((60, 60), 0.3)
    yield "indefinite shift 2D 200x200", lambda: helmholtz((200, 200), 0.3)
    yield "indefinite shift 3D 20x20x20", lambda: helmholtz((20, 20, 20), 0.5)
    yield "indefinite shift 3D 28x28x28", lambda: helmholtz((28, 28, 28), 0.5)
    yield (
        "random indefinite 4000",
        lambda: sp.csr_array(
            shifted_to_definite(4_000, 3) @ sp.diags_array(np.ones(4_000)) - 12 * sp.eye_array(4_000)
        ),
    )
    yield "complex Helmholtz 20x20", lambda: helmholtz((20, 20), 0.5, 0.1)
    yield "complex Helmholtz 60x60", lambda: helmholtz((60, 60), 0.5, 0.05)
    yield "complex Helmholtz 150x150", lambda: helmholtz((150, 150), 0.5, 0.02)
    yield "complex Helmholtz 12x12x12", lambda: helmholtz((12, 12, 12), 0.6, 0.1)
    yield "complex Helmholtz 20x20x20", lambda: helmholtz((20, 20, 20), 0.6, 0.1)
    yield "complex Helmholtz damped 200x200", lambda: helmholtz((200, 200), 0.3, 1.0)
    yield "convection 15x15", lambda: convection((15, 15), 1.0)
    yield "convection 60x60", lambda: convection((60, 60), 1.0)
    yield "convection 100x100 central", lambda: convection((100, 100), 1.5, "central")
    yield "convection 300x300", lambda: convection((300, 300), 0.1)
    yield "convection strong 300x300", lambda: convection((300, 300), 20.0)
    yield "convection central 200x200 unstable", lambda: convection((200, 200), 8.0, "central")
    yield "circulating 200x200", lambda: circulating(200, 5.0)
    yield "convection 20x20x20", lambda: convection((20, 20, 20), 1.0)
    yield "convection 40x40x40", lambda: convection((40, 40, 40), 1.0)
    yield (
        "convection-reaction 100x100",
        lambda: sp.csr_array(convection((100, 100), 1.0) - 0.05 * sp.eye_array(10_000)),
    )
    yield "Laplacian Delaunay 5000", lambda: laplacian(p.p1_stiffness(p.random_mesh(5_000, 1)).to_scipy())
    yield "Laplacian power law 20000", lambda: laplacian(power_law(20_000))
    yield "Laplacian shifted power law 20000", lambda: laplacian(power_law(20_000), 0.01)
    yield "Laplacian regular 10000", lambda: laplacian(_rows(np.full(10_000, 3), np.random.default_rng(5)))
    yield "Laplacian periodic 150x150", P(150, 150, boundary="periodic")
    yield "Stokes 16x16", lambda: stokes(16)
    yield "Stokes 50x50", lambda: stokes(50)
    yield "Stokes 130x130", lambda: stokes(130)
    yield "optimization 3000 + 1000", lambda: optimization(3_000, 1_000)
    yield "optimization 40000 + 10000", lambda: optimization(40_000, 10_000)
    yield "random dominant 1000", lambda: random_dominant(1_000, 6, 0.1)
    yield "random dominant 20000", lambda: random_dominant(20_000, 6, 0.1)
    yield "random dominant 100000", lambda: random_dominant(100_000, 6, 0.1)
    yield "random 3000", lambda: random_sparse(3_000, 4)
    yield "power law dominant 20000", lambda: laplacian(power_law(20_000), 1.0)
    yield "band of 4, 50000", lambda: sp.csr_array(banded(50_000, 4) + 2 * sp.eye_array(50_000))
    if folder:
        for path in sorted(folder.glob("**/*.mtx")):
            S = p.matrix_market(str(path)).to_scipy()
            if S.shape[0] == S.shape[1]:  # one without a diagonal is a graph
                graph = not S.diagonal().any()
                yield path.stem, lambda S=S, graph=graph: laplacian(S, 1e-3) if graph else S
