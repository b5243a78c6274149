"""Generators that make some rows of their matrix: those that the whole one has, to the last bit."""

import pytest
import torch

import learnsolve as ls

torch.manual_seed(0)
KAPPA = torch.rand(5, 4, 3, dtype=torch.float64) + 0.1
MATRICES = {
    "poisson-1": lambda **rows: ls.problems.poisson(11, **rows),
    "poisson-3": lambda **rows: ls.problems.poisson((4, 3, 5), **rows),
    "poisson-periodic": lambda **rows: ls.problems.poisson((4, 3), boundary="periodic", **rows),
    "poisson-q1": lambda **rows: ls.problems.poisson((4, 7), stencil="q1", **rows),
    "poisson-thin": lambda **rows: ls.problems.poisson((1, 6), dtype=torch.float32, **rows),
    "anisotropic": lambda **rows: ls.problems.anisotropic((5, 6), 0.1, 0.4, **rows),
    "anisotropic-fe": lambda **rows: ls.problems.anisotropic((5, 6), 0.1, 0.0, discretization="fe", **rows),
    "diffusion-2": lambda **rows: ls.problems.diffusion(KAPPA[:, :, 0], **rows),
    "diffusion-3": lambda **rows: ls.problems.diffusion(KAPPA, **rows),
}


@pytest.mark.parametrize("name", MATRICES)
def test_rows_are_those_of_the_whole(name):
    make = MATRICES[name]
    A = make()
    n = A.shape[0]
    for lo, hi in ((0, n), (0, n // 3), (n // 3, n), (2, 2), (n, n)):
        part = make(rows=(lo, hi))
        assert part.shape == (hi - lo, n)
        assert torch.equal(part.crow_indices, A.crow_indices[lo : hi + 1] - A.crow_indices[lo])
        a, b = int(A.crow_indices[lo]), int(A.crow_indices[hi])
        assert torch.equal(part.col_indices, A.col_indices[a:b])
        assert torch.equal(part.values, A.values[a:b])


def test_gradients_of_parts_add_up():
    weights = torch.arange(12.0, dtype=torch.float64)
    whole, parts = (KAPPA[:4, :3, 0].clone().requires_grad_() for _ in range(2))
    (ls.problems.diffusion(whole) @ weights).square().sum().backward()
    for rows in ((0, 5), (5, 12)):
        (ls.problems.diffusion(parts, rows=rows) @ weights).square().sum().backward()
    torch.testing.assert_close(parts.grad, whole.grad)


def test_what_are_no_rows_is_refused():
    with pytest.raises(ValueError, match=r"poisson: rows must be \(lo, hi\) with 0 <= lo <= hi <= 9"):
        ls.problems.poisson((3, 3), rows=(2, 10))
    with pytest.raises(TypeError, match="anisotropic: rows must be two ints"):
        ls.problems.anisotropic((3, 3), 0.1, 0.0, rows=3)
    with pytest.raises(ValueError, match="diffusion: rows are of one grid"):
        ls.problems.diffusion(KAPPA, dimensions=2, rows=(0, 1))
