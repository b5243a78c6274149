"""Small systems of many kinds: what is not solved has a plausible status. That what is said to have converged
has: tests/stress/converged.py."""

import numpy as np
import pytest
import torch
from solvers.cases import quiet
from solvers.krylov import RECTANGULAR, SQUARE, S, run
from solvers.krylov import SYMMETRIC as SYMMETRIC_METHODS

import learnsolve as ls
from learnsolve.solvers import Status

KINDS = (
    *(
        "positive definite",
        "indefinite",
        "semidefinite, consistent",
        "semidefinite, inconsistent",
        "diagonal",
    ),
    *("zero", "nonsymmetric", "skew", "singular, inconsistent", "zero rows"),
)
SYMMETRIC = KINDS[:6]
# What may be said of a system of a kind, besides CONVERGED.
LOST = {Status.BREAKDOWN, Status.MAX_ITERATIONS, Status.DIVERGED, Status.STAGNATED}
SINGULAR = {Status.BREAKDOWN}
PLAUSIBLE = {
    "indefinite": {"cg": {Status.INDEFINITE}, "fcg": {Status.INDEFINITE}, "bicgstab": LOST},
    "semidefinite, inconsistent": {
        "cg": {Status.INDEFINITE, *LOST},
        "fcg": {Status.INDEFINITE, *LOST},
        "bicgstab": LOST,
        "minres": {Status.STAGNATED},
    },
    "nonsymmetric": {"bicgstab": LOST},
    "skew": {"bicgstab": {Status.BREAKDOWN}},
    "singular, inconsistent": {"bicgstab": LOST, "gmres": SINGULAR, "fgmres": SINGULAR},
    "zero rows": {"bicgstab": LOST, "gmres": SINGULAR, "fgmres": SINGULAR},
}
WITHOUT_SOLUTION = {"semidefinite, inconsistent", "singular, inconsistent", "zero rows", "zero"}


def systems(kind: str, n: int, count: int, seed: int):
    """A (count, n, n) and b (count, n), condition numbers of nonsingular ones up to 1e3."""
    rng = np.random.default_rng(seed)
    Q, W = (np.linalg.qr(rng.standard_normal((count, n, n)))[0] for _ in range(2))
    d = 10 ** rng.uniform(-1.5, 1.5, (count, n))
    b = rng.standard_normal((count, n))
    if kind == "indefinite":
        d *= rng.choice([-1, 1], (count, n))
    if "semidefinite" in kind or kind == "singular, inconsistent":
        d[:, : max(1, n // 3)] = 0
    A = np.einsum("bij,bj,bkj->bik", Q if kind in SYMMETRIC else W, d, Q)
    if kind in SYMMETRIC:
        A = (A + A.transpose(0, 2, 1)) / 2
    if kind == "skew":
        A = (A - A.transpose(0, 2, 1)) / 2
    if kind == "zero rows":
        A *= (rng.uniform(size=(count, n, 1)) > 0.2) * np.ones((count, n, n))
    if kind == "diagonal":
        A = np.eye(n) * d[:, None]
        A[: count // 2] = np.eye(n)
    if kind == "zero":
        A *= 0
    if kind == "semidefinite, consistent":
        b = np.einsum("bij,bj->bi", A, b)
    b[::7] = 0
    return A, b


def batch(A: np.ndarray) -> ls.CSR:
    pattern = ls.CSR.from_dense(torch.ones(A.shape[-2:], dtype=torch.float64)).pattern
    return ls.CSR(torch.from_numpy(A.reshape(*A.shape[:-2], -1)), pattern)


CASES = [(k, m) for k in KINDS for m in SQUARE if k in SYMMETRIC or m not in SYMMETRIC_METHODS]


@quiet
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_statuses_are_plausible(kind, name):
    for n in (1, 2, 3, 6):
        A, b = systems(kind, n, 50, seed=n)
        solution = getattr(S, name)(batch(A), torch.from_numpy(b)[..., None], rtol=1e-8)
        x, statuses = solution.x[..., 0].numpy(), np.array(solution.statuses)
        converged = statuses == Status.CONVERGED
        residual = np.linalg.norm(b - np.einsum("bij,bj->bi", A, x), axis=1)
        assert (residual <= 1.001e-8 * np.linalg.norm(b, axis=1))[converged].all()
        assert np.isfinite(x).all()
        assert (x[~b.any(axis=1)] == 0).all()
        assert converged[~b.any(axis=1)].all()
        is_a = "singular, inconsistent" if kind == "skew" and n % 2 else kind
        allowed = PLAUSIBLE.get(is_a, {}).get(name, set())
        allowed = allowed | ({Status.INCONSISTENT} if is_a in WITHOUT_SOLUTION else set())
        assert set(statuses[~converged]) <= allowed, f"n = {n}: {set(statuses[~converged]) - allowed}"


def test_the_status_of_stationary_sweeps():
    """They do not look at the residual while they run: nothing is called converged, and what diverged is."""
    seen = []
    for kind in ("positive definite", "indefinite", "nonsymmetric", "diagonal"):
        for n in (1, 3, 6):
            for a, c in zip(*systems(kind, n, 25, seed=n), strict=True):
                solution = S.jacobi(batch(a), torch.from_numpy(c), weight=0.9, iterations=200)
                first, last = np.linalg.norm(c), np.linalg.norm(c - a @ solution.x.numpy())
                expected = {Status.DIVERGED if last > 10 * first else Status.MAX_ITERATIONS}
                if not np.isfinite(last):
                    expected = {Status.NON_FINITE}
                elif abs(last - 10 * first) <= 1e-6 * first:
                    expected = {Status.DIVERGED, Status.MAX_ITERATIONS}
                assert solution.status in expected
                seen.append(solution.status)
    assert {Status.DIVERGED, Status.MAX_ITERATIONS} <= set(seen)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5), (1, 3), (3, 1)], ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e-150, 1e150])
@pytest.mark.parametrize("name", RECTANGULAR)
def test_least_squares_of_least_norm(name, scale, shape):
    """Whatever the rank, and in any units; damped, with a normal residual within its tolerance."""
    rng = np.random.default_rng(sum(shape))
    A = rng.standard_normal((40, *shape)) * (rng.uniform(size=(40, 1, shape[1])) > 0.1)
    b = rng.standard_normal((40, shape[0]))
    b[::7] = 0
    right = torch.from_numpy(b * scale)[..., None]
    for damp in (0.0, 0.5):
        solution = run(name, batch(A * scale), right, tol=1e-9, damp=damp * scale, maxiter=200)
        assert set(solution.statuses) == {Status.CONVERGED}
        x, eye = solution.x[..., 0].numpy(), damp * np.eye(shape[1])
        least = [np.linalg.pinv(np.vstack((a, eye)))[:, : shape[0]] @ c for a, c in zip(A, b, strict=True)]
        assert np.abs(x - np.stack(least)).max() < 1e-5
        assert (x[~b.any(axis=1)] == 0).all()
