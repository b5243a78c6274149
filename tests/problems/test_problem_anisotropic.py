"""problems.anisotropic: equal to pyamg's stencils."""

import math

import numpy as np
import pyamg
import pytest
import torch

import learnsolve as ls


@pytest.mark.parametrize("discretization", ["fd", "fe"])
@pytest.mark.parametrize("theta", [0.0, 0.3, math.pi / 4, math.pi / 2, -2.0])
@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 1.0, 2.0, 100.0])
def test_equal_to_pyamg(discretization, epsilon, theta):
    shape = (4, 5)
    stencil = pyamg.gallery.diffusion_stencil_2d(epsilon, theta, type=discretization.upper())
    S = pyamg.gallery.stencil_grid(stencil, shape).toarray()
    A = ls.problems.anisotropic(shape, epsilon, theta, discretization=discretization)
    ls.SparsityPattern(A.crow_indices, A.col_indices, A.shape)  # looks at every index
    # A coefficient is a sum of a few terms of the size of 1 + epsilon.
    np.testing.assert_allclose(A.to_scipy().toarray(), S, rtol=0, atol=8 * 2**-53 * (1 + epsilon))


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (4, 1), (2, 2)], ids=str)
def test_narrow_grids(shape):
    stencil = pyamg.gallery.diffusion_stencil_2d(0.1, 0.5, type="FD")
    A = ls.problems.anisotropic(shape, 0.1, 0.5)
    # pyamg adds diagonals of a narrow grid up that it has set to zero before: still the same matrix.
    S = pyamg.gallery.stencil_grid(stencil, shape).toarray()
    np.testing.assert_allclose(A.to_scipy().toarray(), S, rtol=0, atol=1e-15)


def test_the_direction_is_the_strong_one():
    """For theta = 0 points are coupled along x, the first axis; zeros of the stencil are no entries."""
    A = ls.problems.anisotropic((3, 3), 0.01, 0.0)
    row = A.to_dense()[4].unflatten(0, (3, 3))
    assert row[0, 1] == row[2, 1] == -1
    assert row[1, 0] == row[1, 2] == -0.01
    assert A.nnz == 33
    assert (A.values != 0).all()


def test_dtype():
    A = ls.problems.anisotropic((3, 3), 0.1, 0.3, dtype=torch.float32)
    assert A.dtype == torch.float32
    B = ls.problems.anisotropic((3, 3), 0.1, 0.3)
    assert torch.equal(A.values, B.values.float())
    assert ls.problems.anisotropic((3, 3), 0.1, 0.3, device="meta").device.type == "meta"


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (((3,), 0.1, 0.0), ValueError, "shape must have 2 dimensions"),
        (((3, 3), 0.0, 0.0), ValueError, "epsilon must be positive and finite, got 0.0"),
        (((3, 3), math.inf, 0.0), ValueError, "epsilon must be positive and finite, got inf"),
        (((3, 3), math.nan, 0.0), ValueError, "epsilon must be positive and finite, got nan"),
        (((3, 3), 0.1, math.nan), ValueError, "theta must be finite, got nan"),
        (((3, 3), torch.tensor(0.1), 0.0), TypeError, "epsilon must be a number, got Tensor"),
        (((3, 3), 0.1, "x"), TypeError, "theta must be a number, got str"),
    ],
)
def test_errors(arguments, error, words):
    with pytest.raises(error, match="anisotropic: " + words):
        ls.problems.anisotropic(*arguments)


def test_unknown_discretization():
    with pytest.raises(
        ValueError, match=r"anisotropic: discretization must be one of \('fd', 'fe'\), got 'FE'"
    ):
        ls.problems.anisotropic((3, 3), 0.1, 0.0, discretization="FE")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"anisotropic: dtype must be torch.float32 or torch.float64"):
        ls.problems.anisotropic((3, 3), 0.1, 0.0, dtype=torch.float16)
