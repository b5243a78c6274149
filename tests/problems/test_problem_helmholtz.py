"""problems.helmholtz: Poisson minus (kh)^2, with derivatives in kh."""

import itertools
import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls


def wavenumbers(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(shape, dtype=torch.float64, generator=generator) + 0.2).to(dtype)


def values(kh):
    return ls.problems.helmholtz(kh, dimensions=2).values


@pytest.mark.parametrize("shift", [1.0, 0.0, -1.0, 0.5])
@pytest.mark.parametrize("grid", [(1,), (6,), (3, 4), (2, 3, 2)], ids=str)
def test_against_poisson(grid, shift):
    kh = wavenumbers(*grid)
    A = ls.problems.helmholtz(kh, shift=shift)
    ls.SparsityPattern(A.crow_indices, A.col_indices, A.shape)
    wanted = ls.problems.poisson(grid).to_dense() - shift * kh.flatten().square().diag()
    torch.testing.assert_close(A.to_dense(), wanted, rtol=1e-15, atol=1e-15)
    single = ls.problems.helmholtz(kh.float(), shift=shift)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.to_dense().double(), wanted, rtol=1e-6, atol=1e-6)


def test_the_published_stencil():
    """(-1, 2 - k^2 / (n + 1)^2, -1) of Deep multigrid: the eigenvalue of sin(j pi x) changes its sign at
    k = 2 (n + 1) sin(j pi / (2 (n + 1))), about j pi."""
    n = 31
    for j in (1, 3):
        at = 2 * (n + 1) * math.sin(j * math.pi / (2 * (n + 1)))
        for k, negative in ((at - 1e-6, j - 1), (at + 1e-6, j)):
            A = ls.problems.helmholtz(torch.full((n,), k / (n + 1), dtype=torch.float64))
            assert int((torch.linalg.eigvalsh(A.to_dense()) < 0).sum()) == negative


def test_batch_is_a_loop():
    kh = wavenumbers(2, 3, 4, 5)
    A = ls.problems.helmholtz(kh, dimensions=2)
    for at in itertools.product(range(2), range(3)):
        one = ls.problems.helmholtz(kh[at])
        assert one.pattern is A.pattern
        assert torch.equal(one.values, A.values[at])


def test_derivatives():
    kh = wavenumbers(2, 3).requires_grad_()
    assert gradcheck(values, kh, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(values, kh)
    many = wavenumbers(4, 2, 3)
    torch.testing.assert_close(torch.func.vmap(values)(many), torch.stack([values(k) for k in many]))


@pytest.mark.parametrize(
    ("kh", "options", "error", "words"),
    [
        (torch.ones(()), {}, ValueError, "kh must have 1, 2 or 3 axes"),
        (torch.ones(2, 2, 2, 2), {}, ValueError, "for a batch, pass dimensions"),
        (torch.ones(4), {"dimensions": 2}, ValueError, r"kh must have shape \(..., nx, ny\)"),
        (torch.ones(4, 0), {}, ValueError, "with a grid point at least"),
        (torch.ones(4), {"dimensions": 0}, ValueError, "dimensions must be 1, 2 or 3, got 0"),
        (torch.ones(4), {"shift": math.inf}, ValueError, "shift must be finite"),
        (torch.ones(4), {"shift": torch.ones(())}, TypeError, "shift must be a number"),
        (torch.ones(4, dtype=torch.complex64), {}, TypeError, "kh must be real, got torch.complex64"),
    ],
)
def test_errors(kh, options, error, words):
    with pytest.raises(error, match="helmholtz: .*" + words):
        ls.problems.helmholtz(kh, **options)
