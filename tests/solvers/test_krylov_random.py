"""2,000 random systems and more: what is reported as converged is, and what is not has a plausible status."""

import numpy as np
import pytest
import torch
from solvers.krylov import RECTANGULAR, SQUARE, S, run
from solvers.krylov import SYMMETRIC as SYMMETRIC_METHODS
from solvers.random_systems import KINDS, SYMMETRIC, as_csr, relative_residual, systems

import learnsolve as ls

# Solves that cannot converge, or are stopped before, are part of what is tested.
pytestmark = pytest.mark.filterwarnings("ignore::learnsolve.solvers.ConvergenceWarning")

Status = S.Status
SCALES = [(1, 1), (1e-150, 1e-150), (1e150, 1e150), (1e150, 1e-150), (1, 1e200), (1e-100, 1)]

# What may be said of a system of a kind, besides CONVERGED where it has a solution.
DIAGONAL = {"positive definite", "indefinite", "nonsymmetric", "diagonal"}  # without zeros on it
LATE = {Status.MAX_ITERATIONS}
LOST = {Status.BREAKDOWN, Status.MAX_ITERATIONS, Status.DIVERGED, Status.STAGNATED}
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
    "singular, inconsistent": {
        "bicgstab": LOST,
        "gmres": {Status.BREAKDOWN},
        "fgmres": {Status.BREAKDOWN},
    },
    "zero rows": {"bicgstab": LOST, "gmres": {Status.BREAKDOWN}, "fgmres": {Status.BREAKDOWN}},
}
WITHOUT_SOLUTION = {"semidefinite, inconsistent", "singular, inconsistent", "zero rows", "zero"}


def check(kind, name, n, count, seed, scale=(1, 1), rtol=1e-8, dtype=torch.float64, M=None):
    A, b = systems(kind, n, count, seed, *scale)
    if dtype == torch.float32:
        A, b = A.astype(np.float32).astype(float), b.astype(np.float32).astype(float)
    C = as_csr(A, dtype)
    preconditioner = None if M is None else M(C)
    solution = getattr(S, name)(C, torch.from_numpy(b)[..., None].to(dtype), rtol=rtol, M=preconditioner)
    x = solution.x[..., 0].double().numpy()
    statuses = np.array(solution.statuses)
    converged = statuses == Status.CONVERGED
    residual, slack = relative_residual(A, x, b)
    slack *= 2.0**29 if dtype == torch.float32 else 1
    wrong = converged & ~(residual <= rtol + slack)
    assert not wrong.any(), f"{name}, {kind}, n = {n}: {residual[wrong]}"
    assert np.isfinite(x).all()
    assert (x[~b.any(axis=1)] == 0).all()
    assert converged[~b.any(axis=1)].all()
    names = set(statuses[~converged])
    if kind == "skew" and n % 2:  # singular
        kind = "singular, inconsistent"
    allowed = PLAUSIBLE.get(kind, {}).get(name, set()) | (LATE if rtol < 1e-12 else set())
    if kind in WITHOUT_SOLUTION:
        allowed = allowed | {Status.INCONSISTENT}
    if M is ls.preconditioners.Jacobi and kind == "indefinite" and name in SYMMETRIC_METHODS:
        allowed = allowed | {Status.INDEFINITE}  # M is
    assert names <= allowed, f"{name}, {kind}, n = {n}: {names - allowed}"


def methods(kind):
    return [name for name in SQUARE if kind in SYMMETRIC or name not in SYMMETRIC_METHODS]


CASES = [(kind, name) for kind in KINDS for name in methods(kind)]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_random_systems(kind, name):
    for n in (1, 2, 3, 6):
        check(kind, name, n, 50, seed=n)  # of ten kinds: 2,000 systems


@pytest.mark.parametrize(("kind", "name"), [(k, m) for k, m in CASES if k in DIAGONAL])
def test_random_systems_preconditioned(kind, name):
    for n in (1, 2, 3, 6):
        check(kind, name, n, 50, seed=n, M=ls.preconditioners.Jacobi)
        check(kind, name, n, 50, seed=n, M=lambda A: ls.ops.diag(A.diagonal()[0].abs()))


def test_the_status_of_stationary_sweeps():
    """They do not look at the residual while they run: nothing is called converged, and what diverged is."""
    said = []
    for kind in ("positive definite", "indefinite", "nonsymmetric", "diagonal"):
        for n in (1, 2, 3, 6):
            A, b = systems(kind, n, 50, seed=n)
            for a, c in zip(A, b, strict=True):
                solution = S.jacobi(as_csr(a), torch.from_numpy(c), weight=0.9, iterations=200)
                x, first = solution.x.numpy(), np.linalg.norm(c)
                last = np.linalg.norm(c - a @ x)
                if not np.isfinite(last):
                    expected = {Status.NON_FINITE}
                elif abs(last - 10 * first) <= 1e-6 * first:
                    expected = {Status.DIVERGED, Status.MAX_ITERATIONS}
                else:
                    expected = {Status.DIVERGED if last > 10 * first else Status.MAX_ITERATIONS}
                assert solution.status in expected
                assert not solution.converged
                said.append(solution.status)
    assert set(said) == {Status.DIVERGED, Status.MAX_ITERATIONS} | ({Status.NON_FINITE} & set(said))


@pytest.mark.parametrize("scale", SCALES[1:], ids=str)
@pytest.mark.parametrize("name", SQUARE)
def test_random_systems_of_extraordinary_size(name, scale):
    for kind in ("positive definite", "zero", "nonsymmetric"):
        if name in methods(kind):
            check(kind, name, 5, 8, seed=1, scale=scale)


@pytest.mark.slow
@pytest.mark.parametrize("scale", SCALES, ids=str)
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_many_random_systems(kind, name, scale):
    for n in (1, 2, 5, 9):
        check(kind, name, n, 60, seed=10 * n, scale=scale)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_random_systems_without_tolerance(kind, name):
    for n in (1, 3, 6):
        A, b = systems(kind, n, 30, n)
        solution = getattr(S, name)(as_csr(A), torch.from_numpy(b)[..., None], rtol=0.0)
        statuses = np.array(solution.statuses)
        converged = statuses == Status.CONVERGED
        residual, slack = relative_residual(A, solution.x[..., 0].numpy(), b)
        assert (residual <= slack)[converged].all()
        assert not set(statuses) & {Status.NON_FINITE}


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
@pytest.mark.parametrize("name", SQUARE)
def test_single_precision(name, scale):
    # Products of such vectors leave the range of float32.
    check("positive definite", name, 4, 20, 0, (1, scale), 2e-3, torch.float32)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5), (1, 3), (3, 1)], ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e-150, 1e150])
@pytest.mark.parametrize("name", RECTANGULAR)
def test_random_least_squares(name, scale, shape):
    rng = np.random.default_rng(sum(shape))
    A = rng.standard_normal((40, *shape)) * (rng.uniform(size=(40, 1, shape[1])) > 0.1)
    b = rng.standard_normal((40, shape[0]))
    b[::7] = 0
    for damp in (0.0, 0.5):
        solution = run(
            name,
            as_csr(A * scale),
            torch.from_numpy(b * scale)[..., None],
            tol=1e-9,
            damp=damp * scale,
            maxiter=200,
        )
        assert set(solution.statuses) == {Status.CONVERGED}
        x = solution.x[..., 0].numpy()
        r = b - np.einsum("bij,bj->bi", A, x)
        normal = np.linalg.norm(np.einsum("bij,bi->bj", A, r) - damp**2 * x, axis=-1)
        total = np.sqrt(np.linalg.norm(r, axis=-1) ** 2 + damp**2 * np.linalg.norm(x, axis=-1) ** 2)
        size = np.sqrt(np.linalg.norm(A, axis=(-2, -1)) ** 2 + damp**2 * shape[1])
        length = np.linalg.norm(b, axis=-1)
        solved = total <= 1.001e-9 * (length + size * np.linalg.norm(x, axis=-1))
        assert (solved | (normal <= 1.001e-9 * size * total)).all()
        assert (x[~b.any(axis=1)] == 0).all()
        if damp == 0:  # of all solutions, the one of least norm
            least = np.stack([np.linalg.pinv(a) @ c for a, c in zip(A, b, strict=True)])
            assert np.abs(x - least).max() < 1e-5


@pytest.mark.parametrize("name", SQUARE)
def test_the_word_of_a_recurrence_is_not_enough(name):
    """Systems whose residual cannot reach the tolerance, though that of the recurrence does."""
    n = 40
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((n, n)))[0]
    A = (Q * np.logspace(0, 5, n)) @ Q.T
    A = (A + A.T) / 2
    b = np.ones(n)
    said = []
    for rtol in (1e-8, 1e-14, 1e-16):
        keywords = {"restart": 40} if "gmres" in name else {}
        solution = getattr(S, name)(as_csr(A), torch.from_numpy(b), rtol=rtol, maxiter=800, **keywords)
        x = solution.x.numpy()
        true = np.linalg.norm((b.astype(np.longdouble) - A.astype(np.longdouble) @ x).astype(float))
        if solution.converged:
            assert true <= (rtol + 1e-16 * 1e5 * np.abs(x).max()) * np.linalg.norm(b)
        assert true <= 1e-6
        said.append(solution.converged)
    assert said[0]
    assert not said[2]
