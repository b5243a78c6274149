"""problems.nodal_diffusion: against the published formulas, with derivatives of every kind."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls

KINDS = list(itertools.product(("fd", "q1"), ("dirichlet", "periodic")))


def positive(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator).exp().to(dtype)


def reference(kappa, stencil, boundary):
    """Node by node: each pair of nodes of a cell, from the table of the documentation."""
    cx, cy = kappa.shape
    periodic = boundary == "periodic"
    nx, ny = (cx, cy) if periodic else (cx + 1, cy + 1)
    A = np.zeros((nx * ny, nx * ny))
    beside, across, center = {"fd": (1 / 2, 0, 1), "q1": (1 / 6, 1 / 3, 2 / 3)}[stencil]
    for i, j in itertools.product(range(cx), range(cy)):
        corners = [(i + a, j + b) for a, b in itertools.product((0, 1), (0, 1))]
        for (a, p), (b, q) in itertools.product(enumerate(corners), enumerate(corners)):
            factor = center if a == b else -across if a + b == 3 else -beside
            A[p[0] % nx * ny + p[1] % ny, q[0] % nx * ny + q[1] % ny] += factor * kappa[i, j]
    if periodic:
        return A
    inside = np.arange(nx * ny).reshape(nx, ny)[1:-1, 1:-1].ravel()
    return A[np.ix_(inside, inside)]


def values(kappa, stencil="q1", boundary="dirichlet"):
    return ls.problems.nodal_diffusion(kappa, stencil=stencil, boundary=boundary).values


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("stencil", "boundary"), KINDS)
@pytest.mark.parametrize("shape", [(3, 3), (4, 6), (7, 3)], ids=str)
def test_against_assembly(shape, stencil, boundary, dtype):
    kappa = positive(*shape, dtype=dtype)
    A = ls.problems.nodal_diffusion(kappa, stencil=stencil, boundary=boundary)
    ls.SparsityPattern(A.crow_indices, A.col_indices, A.shape)  # checks every index
    wanted = reference(kappa.double().numpy(), stencil, boundary)
    assert A.dtype == dtype
    if min(A.shape) > 9 or stencil == "fd":  # on a periodic 3 x 3 grid, all nodes are neighbors
        assert A.nnz == np.count_nonzero(wanted)
    # At most four products and their sum, for entries of one sign.
    np.testing.assert_allclose(A.to_scipy().toarray(), wanted, rtol=8 * torch.finfo(dtype).eps, atol=0)


def test_precorrector():
    """The published loop, of arXiv 2405.15557's fd_mtx2: offsets -n, -1, 0, 1, n, first axis fastest."""
    n = 6
    a = positive(n + 1, n + 1).numpy()
    A = np.zeros((n * n, n * n))
    for i, j in itertools.product(range(n), range(n)):
        row = i + n * j
        A[row, row] = a[i, j] + a[i, j + 1] + a[i + 1, j] + a[i + 1, j + 1]
        if i + 1 < n:
            A[row, row + 1] = A[row + 1, row] = -0.5 * (a[i + 1, j] + a[i + 1, j + 1])
        if j + 1 < n:
            A[row, row + n] = A[row + n, row] = -0.5 * (a[i, j + 1] + a[i + 1, j + 1])
    A *= (n + 1) ** 2
    ours = ls.problems.nodal_diffusion(torch.from_numpy(a * (n + 1) ** 2)).to_dense().numpy()
    order = np.arange(n * n).reshape(n, n).T.ravel()  # our last axis is fastest
    np.testing.assert_allclose(ours[np.ix_(order, order)], A, rtol=1e-15, atol=0)


def test_one_is_poisson():
    one = torch.ones(5, 8, dtype=torch.float64)
    five = ls.problems.nodal_diffusion(one)
    assert torch.equal(five.to_dense(), ls.problems.poisson((4, 7)).to_dense())
    assert five.nnz == ls.problems.poisson((4, 7)).nnz
    nine = ls.problems.nodal_diffusion(3 * one, stencil="q1")
    torch.testing.assert_close(nine.to_dense(), ls.problems.poisson((4, 7), stencil="q1").to_dense())


@pytest.mark.parametrize("stencil", ["fd", "q1"])
def test_periodic_null_space_and_shift(stencil):
    kappa = positive(4, 5)
    A = ls.problems.nodal_diffusion(kappa, stencil=stencil, boundary="periodic")
    sums = A @ torch.ones(20, dtype=torch.float64)
    assert sums.abs().max() <= 12 * torch.finfo(torch.float64).eps * A.diagonal().max()
    assert torch.linalg.eigvalsh(A.to_dense())[1] > 0.1  # constants alone
    B = ls.problems.nodal_diffusion(kappa, stencil=stencil, boundary="periodic", shift=0.25)
    assert torch.equal(B.to_dense(), A.to_dense() + 0.25 * torch.eye(20, dtype=torch.float64))
    assert B.pattern is A.pattern


@pytest.mark.parametrize(("stencil", "boundary"), KINDS)
def test_symmetric(stencil, boundary):
    kappa = positive(5, 4, seed=5) ** 3
    D = ls.problems.nodal_diffusion(kappa, stencil=stencil, boundary=boundary, shift=1e-3).to_dense()
    assert torch.equal(D, D.T)
    assert torch.linalg.eigvalsh(D)[0] > 0


@pytest.mark.parametrize(("stencil", "boundary"), KINDS)
def test_batch_is_a_loop(stencil, boundary):
    kappa = positive(2, 3, 4, 5)
    A = ls.problems.nodal_diffusion(kappa, stencil=stencil, boundary=boundary)
    assert A.batch_shape == (2, 3)
    for at in itertools.product(range(2), range(3)):
        one = ls.problems.nodal_diffusion(kappa[at], stencil=stencil, boundary=boundary)
        assert one.pattern is A.pattern
        assert torch.equal(A.values[at], one.values)


@pytest.mark.parametrize(("stencil", "boundary"), KINDS)
def test_derivatives(stencil, boundary):
    def f(kappa):
        return values(kappa, stencil, boundary).square()

    kappa = positive(3, 3).requires_grad_()
    assert gradcheck(f, kappa, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(f, kappa, check_fwd_over_rev=True)


def test_torch_func():
    many = positive(4, 3, 5)
    torch.testing.assert_close(torch.func.vmap(values)(many), torch.stack([values(k) for k in many]))
    reverse, forward = (d(values)(many[0]) for d in (torch.func.jacrev, torch.func.jacfwd))
    torch.testing.assert_close(reverse, forward, rtol=0, atol=0)


def test_the_first_call_may_be_anywhere():
    """What is kept for later calls belongs neither to inference mode nor to a transformation."""

    def energy(kappa):
        return values(kappa).square().sum()

    with torch.inference_mode():
        energy(positive(2, 9))
    kappa = positive(2, 9).requires_grad_()
    (wanted,) = torch.autograd.grad(energy(kappa), kappa)
    torch.testing.assert_close(torch.func.grad(energy)(positive(2, 9)), wanted)
    wanted = torch.func.grad(energy)(positive(2, 10))
    kappa = positive(2, 10).requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(energy(kappa), kappa)[0], wanted)


@pytest.mark.parametrize(
    ("kappa", "options", "error", "words"),
    [
        (torch.ones(1, 4), {}, ValueError, r"at least 2 x 2 cells .*dirichlet.* got \(1, 4\)"),
        (torch.ones(2, 4), {"boundary": "periodic"}, ValueError, "at least 3 x 3 cells"),
        (torch.ones(4), {}, ValueError, r"shape \(..., cx, cy\)"),
        (torch.ones(4, 4), {"stencil": "fe"}, ValueError, r"stencil must be one of \('fd', 'q1'\)"),
        (torch.ones(4, 4), {"boundary": "neumann"}, ValueError, "boundary must be one of"),
        (torch.ones(4, 4), {"shift": -1.0}, ValueError, "shift must be finite and not negative"),
        (torch.ones(4, 4), {"shift": math.nan}, ValueError, "shift must be finite and not negative"),
        (torch.zeros(4, 4), {}, ValueError, r"kappa must be positive and finite, got kappa\[0, 0\] = 0.0"),
        (torch.ones(4, 4).int(), {}, TypeError, "kappa must be float32 or float64"),
        ([[1.0]], {}, TypeError, "kappa must be a torch.Tensor"),
    ],
)
def test_errors(kappa, options, error, words):
    with pytest.raises(error, match="nodal_diffusion: .*" + words):
        ls.problems.nodal_diffusion(kappa, **options)
