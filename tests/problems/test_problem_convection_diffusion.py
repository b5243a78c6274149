"""problems.convection_diffusion: against differences written down, with derivatives in the wind."""

import itertools
import math

import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls

GRIDS = [(5,), (1,), (3, 4), (4, 1), (2, 3, 2)]


def wind(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)


def reference(p, scheme):
    """Point by point: second differences, and first differences of the scheme."""
    d, shape = len(p), p.shape[1:]
    number = np.arange(math.prod(shape)).reshape(shape)
    A = np.zeros((number.size,) * 2)
    for at in itertools.product(*(range(s) for s in shape)):
        for axis in range(d):
            speed = p[(axis, *at)]
            if scheme == "central":
                difference = {1: speed / 2, -1: -speed / 2}
            elif speed > 0:
                difference = {0: speed, -1: -speed}
            else:
                difference = {1: speed, 0: -speed}
            for step, weight in [(0, 2), (1, -1), (-1, -1), *difference.items()]:
                to = tuple(c + step * (a == axis) for a, c in enumerate(at))
                if all(0 <= c < s for c, s in zip(to, shape, strict=True)):
                    A[number[at], number[to]] += weight
    return A


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scheme", ["central", "upwind"])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_against_differences(grid, scheme, dtype):
    w = wind(len(grid), *grid, dtype=dtype)
    A = ls.problems.convection_diffusion(w, 1.5, scheme=scheme)
    ls.SparsityPattern(A.crow_indices, A.col_indices, A.shape)
    wanted = reference(1.5 * w.double().numpy(), scheme)
    eps = torch.finfo(dtype).eps
    np.testing.assert_allclose(A.to_scipy().toarray(), wanted, rtol=8 * eps, atol=8 * eps)
    assert A.dtype == dtype


@pytest.mark.parametrize("scheme", ["central", "upwind"])
def test_without_wind_it_is_poisson(scheme):
    A = ls.problems.convection_diffusion(torch.zeros(2, 3, 5, dtype=torch.float64), scheme=scheme)
    assert torch.equal(A.to_dense(), ls.problems.poisson((3, 5)).to_dense())
    assert A.pattern is ls.problems.diffusion(torch.ones(3, 5)).pattern


@pytest.mark.parametrize(("scheme", "speeds"), [("central", (0.7, -1.6)), ("upwind", (0.7, -3.0))])
def test_eigenvalues_for_a_constant_wind(scheme, speeds):
    shape = (4, 5)
    w = torch.tensor(speeds, dtype=torch.float64).view(2, 1, 1).expand(2, *shape)
    found = np.linalg.eigvals(ls.problems.convection_diffusion(w, scheme=scheme).to_scipy().toarray())
    lines = []
    for p, n in zip(map(abs, speeds), shape, strict=True):
        cosines = np.cos(np.arange(1, n + 1) * np.pi / (n + 1))
        if scheme == "central":
            lines.append(2 + 2 * math.sqrt(1 - p * p / 4) * cosines)
        else:
            lines.append(2 + p + 2 * math.sqrt(1 + p) * cosines)
    wanted = np.sort(np.add.outer(*lines).ravel())
    # Nonsymmetric: eigenvectors of condition r^n with r = (1 + p)^(1/2) at most per axis.
    np.testing.assert_allclose(np.sort(found.real), wanted, rtol=1e-11)
    assert abs(found.imag).max() < 1e-11


def test_upwind_is_an_m_matrix():
    D = ls.problems.convection_diffusion(wind(2, 5, 6), 50.0).to_dense()
    off = D - D.diag().diag()
    assert (off <= 0).all()
    assert (D.sum(1) >= -1e-12 * D.diagonal()).all()
    assert (torch.linalg.inv(D) >= -1e-15).all()
    central = ls.problems.convection_diffusion(wind(2, 5, 6), 50.0, scheme="central").to_dense()
    assert (central - central.diag().diag() > 0).any()


@pytest.mark.parametrize(("scheme", "order"), [("central", 2), ("upwind", 1)])
def test_order_of_convergence(scheme, order):
    """-0.1 u'' + w u' = f with w = cos(x), u = sin(pi x)."""
    errors = []
    for n in (63, 127, 255):
        h = 1 / (n + 1)
        x = torch.arange(1, n + 1, dtype=torch.float64) * h
        u, slope = torch.sin(math.pi * x), math.pi * torch.cos(math.pi * x)
        f = 0.1 * math.pi**2 * u + torch.cos(x) * slope
        A = ls.problems.convection_diffusion(torch.cos(x)[None], h / 0.1, scheme=scheme)
        solution = scipy.sparse.linalg.spsolve(A.to_scipy(), (h * h / 0.1 * f).numpy())
        errors.append(np.abs(solution - u.numpy()).max())
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert np.all(np.abs(orders - order) < 0.1), orders


@pytest.mark.parametrize("scheme", ["central", "upwind"])
def test_batch_and_derivatives(scheme):
    def values(w):
        return ls.problems.convection_diffusion(w, 2.0, scheme=scheme, dimensions=2).values.square()

    w = wind(2, 3, 2, 3, 3).requires_grad_()  # (2, 3) of winds with two components
    A = ls.problems.convection_diffusion(w, 2.0, scheme=scheme, dimensions=2)
    for at in itertools.product(range(2), range(3)):
        one = ls.problems.convection_diffusion(w[at], 2.0, scheme=scheme)
        assert one.pattern is A.pattern
        assert torch.equal(one.values, A.values[at])
    w = wind(2, 2, 3).requires_grad_()
    assert gradcheck(values, w, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(values, w)
    many = wind(4, 2, 2, 3)
    torch.testing.assert_close(torch.func.vmap(values)(many), torch.stack([values(w) for w in many]))


def test_reaction_is_on_the_diagonal():
    w, c = wind(2, 3, 4), wind(3, 4, seed=1).requires_grad_()
    plain = ls.problems.convection_diffusion(w, 2.0, scheme="central")
    A = ls.problems.convection_diffusion(w, 2.0, scheme="central", reaction=c)
    torch.testing.assert_close(A.to_dense() - plain.to_dense(), c.flatten().diag())
    A.values.sum().backward()
    assert bool((c.grad == 1).all())
    zero = ls.problems.convection_diffusion(w, 2.0, scheme="central", reaction=-4.0)
    assert bool((zero.diagonal() == 0).all())


@pytest.mark.parametrize(
    ("w", "options", "error", "words"),
    [
        (torch.ones(3, 4, 4), {}, ValueError, r"wind must have shape \(..., 2, nx, ny\).* got \(3, 4, 4\)"),
        (torch.ones(5), {}, ValueError, "an axis of components and 1, 2 or 3 axes, got .* for a batch, pass"),
        (torch.ones(2, 4, 0), {}, ValueError, "wind must have shape"),
        (torch.ones(2, 4, 4), {"dimensions": 4}, ValueError, "dimensions must be 1, 2 or 3, got 4"),
        (torch.ones(2, 4, 4), {"scheme": "downwind"}, ValueError, "scheme must be one of"),
        (torch.ones(2, 4, 4), {"peclet": -1.0}, ValueError, "peclet must be finite and not negative"),
        (torch.ones(2, 4, 4), {"peclet": torch.ones(())}, TypeError, "peclet must be a number"),
        (torch.ones(2, 4, 4), {"reaction": math.nan}, ValueError, "reaction must be finite"),
        (torch.ones(2, 4, 4), {"reaction": torch.ones(3)}, ValueError, r"reaction must have.*\(3,\)"),
        (torch.ones(2, 4, 4), {"reaction": torch.ones(4).double()}, TypeError, "reaction has dtype"),
        (torch.ones(2, 4, 4).long(), {}, TypeError, "wind must be float32 or float64"),
    ],
)
def test_errors(w, options, error, words):
    with pytest.raises(error, match="convection_diffusion: .*" + words):
        ls.problems.convection_diffusion(w, **options)
