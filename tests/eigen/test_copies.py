"""`eigsh` gives all copies of multiple eigenvalues, and right values where single entries are huge."""

import math
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import learnsolve as ls
from learnsolve.eigen import _methods
from learnsolve.solvers import ConvergenceWarning, Status

F64 = torch.float64


def line(n, periodic=False):
    """The eigenvalues of a line of a grid."""
    angles = 2 * math.pi * torch.arange(n, dtype=F64) / n
    return 2 - 2 * torch.cos(angles if periodic else math.pi * torch.arange(1, n + 1, dtype=F64) / (n + 1))


def cube(n, periodic=False):
    values = line(n, periodic)
    return (values[:, None, None] + values[:, None] + values).flatten().sort().values


PERIODIC = ls.problems.poisson((8, 8, 8), boundary="periodic")


@pytest.mark.parametrize("k", [19, 8, 33])
def test_all_copies_of_a_periodic_cube(k):
    pairs = ls.eigsh(PERIODIC, k, throw=True)
    torch.testing.assert_close(pairs.values, cube(8, True)[:k], rtol=1e-10, atol=1e-10)
    I = pairs.vectors.T @ pairs.vectors  # noqa: E741
    torch.testing.assert_close(I, torch.eye(k, dtype=F64), rtol=0, atol=1e-9)


@pytest.mark.parametrize("k", [24, *(pytest.param(k, marks=pytest.mark.slow) for k in (21, 32, 33, 38))])
def test_all_copies_of_a_cube(k):
    pairs = ls.eigsh(ls.problems.poisson((12, 12, 12)), k, throw=True)
    torch.testing.assert_close(pairs.values, cube(12)[:k], rtol=1e-10, atol=0)


@pytest.mark.parametrize("k", [5, 12, 17, 20])
def test_all_copies_of_the_largest_values(k):
    pairs = ls.eigsh(ls.problems.poisson((8, 8, 8)), k, which="largest", throw=True)
    torch.testing.assert_close(pairs.values, cube(8)[-k:], rtol=1e-10, atol=0)
    shifted = ls.ops.add(PERIODIC, ls.ops.eye(512), beta=-20.0)  # negative definite
    pairs = ls.eigsh(shifted, k, which="largest", throw=True)
    torch.testing.assert_close(pairs.values, cube(8, True)[-k:] - 20, rtol=1e-10, atol=0)


@pytest.mark.parametrize("B", [None, 3.0])
@pytest.mark.parametrize("which", [3.01, "smallest", "largest"])
def test_all_copies_with_B_and_near_a_number(which, B):
    values = cube(8, True) / (B or 1)
    at = (values - which).abs().argsort()[:17].sort().values if which == 3.01 else slice(0, 17)
    wanted = values[-17:] if which == "largest" else values[at]
    pairs = ls.eigsh(PERIODIC, 17, which=which, B=B and ls.ops.eye(512) * B, throw=True)
    torch.testing.assert_close(pairs.values, wanted, rtol=1e-10, atol=1e-10)


def test_all_copies_in_float32_and_by_lobpcg():
    for options in ({}, {"M": ls.factorize(ls.ops.add(PERIODIC, ls.ops.eye(512)).to(torch.float32))}):
        pairs = ls.eigsh(PERIODIC.to(torch.float32), 19, throw=True, **options)
        torch.testing.assert_close(pairs.values, cube(8, True)[:19].float(), rtol=1e-4, atol=1e-4)


def test_pairs_that_may_not_be_the_smallest_are_not_converged(monkeypatch):
    """If the search for missing copies does not end, nothing is known."""
    run = _methods._run

    def without_search(A, B, k, *rest):
        found = run(A, B, k, *rest)
        return found if k > 1 else (found[0][:0], found[1][:, :0], found[2])

    monkeypatch.setattr(_methods, "_run", without_search)
    with pytest.warns(ConvergenceWarning, match="MAX_ITERATIONS"):
        assert not ls.eigsh(PERIODIC, 19).converged


# --- single huge entries ---


def penalized(n, c, at=-1):
    """tridiagonal(-1, 2, -1) of n beside one entry c, and the eigenvalues of the former."""
    order = np.argsort(np.insert(np.arange(n), at % (n + 1), n))
    T = sp.block_diag([sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n)), [[c]]], "csr")
    return ls.CSR.from_scipy(sp.csr_array(T[order][:, order])), line(n)


@pytest.mark.parametrize("n", [300, 100])
@pytest.mark.parametrize("c", [1e15, 1e16, 1e20, 1e30])
def test_one_huge_entry_leaves_the_small_values_right(n, c):
    for at in (-1, n // 3):
        A, wanted = penalized(n, c, at)
        for which in ("smallest", 1.0):
            pairs = ls.eigsh(A, 3, which=which, throw=True)
            near = wanted[(wanted - which).abs().argsort()[:3]] if which == 1.0 else wanted[:3]
            torch.testing.assert_close(pairs.values, near.sort().values, rtol=1e-10, atol=0)


@pytest.mark.parametrize("dtype", [F64, torch.float32])
@pytest.mark.parametrize("method", ["dense", "lobpcg", "arpack"])
@pytest.mark.parametrize("n", [300, 100])
def test_scaled_rows_give_the_right_values_or_a_status(method, n, dtype):
    """A row and its column 1e10 times the others, between others: the eigenvalues of the rest, to 1e-8."""
    size = 1e10 if dtype == F64 else 1e5
    A, _ = penalized(n, 1.0)
    T = A.to_dense()[:n, :n]
    s = torch.ones(n, dtype=F64)
    s[n // 2] = size
    rest = torch.cat((torch.arange(n // 2), torch.arange(n // 2 + 1, n)))
    schur = T[rest][:, rest] - T[rest][:, [n // 2]] @ T[[n // 2]][:, rest] / 2
    wanted = torch.linalg.eigvalsh(schur)[:3]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        S = ls.CSR.from_dense((s[:, None] * T * s).to(dtype))
        pairs = ls.eigsh(S, 3, method=method, **({"maxiter": 50} if method == "lobpcg" else {}))
    if method == "arpack":
        assert pairs.converged
    bound = (2e-8 if dtype == F64 else 2e-4) * wanted[-1] + 2000 * torch.finfo(dtype).eps
    for value, right, status in zip(pairs.values, wanted, pairs.statuses, strict=True):
        assert abs(value - right) <= bound or status is not Status.CONVERGED


def test_gradients_beside_a_huge_entry():
    """Rounding in the huge entry makes no cluster of all others."""
    n = 300
    A, _ = penalized(n, 1e20)
    small = ls.CSR.from_scipy(sp.csr_array(A.to_scipy()[:n, :n])).requires_grad_()
    A.requires_grad_()
    weights = torch.linspace(0, 1, n, dtype=F64).unsqueeze(1)
    grads = []
    for S in (A, small):
        pairs = ls.eigsh(S, 3, throw=True)
        loss = pairs.values.prod() + (weights * pairs.vectors[:n] ** 4).sum()
        grads.append(torch.autograd.grad(loss, S.values)[0])
    torch.testing.assert_close(grads[0][:-1], grads[1], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("which", ["smallest", "largest"])
@pytest.mark.parametrize("method", ["arpack", "dense", "lobpcg"])
def test_zero_rows_have_the_value_zero(method, which):
    """As isolated nodes of a graph have: nothing but rounding errors is left in A u, and in |A| |u|."""
    for sign in (1, -1):
        d = torch.zeros(280, dtype=F64)
        d[7], d[9] = sign, 3 * sign
        for k in (1, 3):
            pairs = ls.eigsh(ls.CSR.from_dense(d.diag()), k, which=which, method=method, throw=True)
            wanted = d.sort().values[:k] if which == "smallest" else d.sort().values[-k:]
            torch.testing.assert_close(pairs.values, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", ["arpack", "dense"])
def test_a_grid_with_isolated_nodes(method):
    L = ls.problems.poisson((150,)).to_scipy()
    A = ls.CSR.from_scipy(sp.block_diag([L, sp.csr_array((3, 3)), L], format="csr"))
    values = torch.cat([torch.zeros(3, dtype=F64), line(150)[:1]])
    torch.testing.assert_close(ls.eigsh(A, 4, method=method, throw=True).values, values, rtol=0, atol=1e-12)
