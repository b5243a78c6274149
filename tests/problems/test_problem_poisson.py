"""problems.poisson: equal to pyamg's, of the stated size and type, second-order accurate."""

import numpy as np
import pyamg
import pytest
import scipy.sparse.linalg
import torch

import learnsolve as ls
from learnsolve.problems import _grid

SHAPES = [
    (1,),
    (2,),
    (7,),
    (1, 1),
    (1, 5),
    (5, 1),
    (2, 2),
    (3, 4),
    (1, 1, 1),
    (2, 1, 2),
    (1, 4, 1),
    (2, 3, 4),
]


def checked(A: ls.CSR) -> ls.CSR:
    """Through the constructor that looks at every index."""
    return ls.CSR(A.values, ls.SparsityPattern(A.crow_indices, A.col_indices, A.shape))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_finite_differences_are_those_of_pyamg(shape):
    A = checked(ls.problems.poisson(shape))
    S = pyamg.gallery.poisson(shape, format="csr")
    assert np.array_equal(A.to_scipy().toarray(), S.toarray())
    assert A.nnz == np.count_nonzero(S.toarray())


@pytest.mark.parametrize("shape", [s for s in SHAPES if len(s) == 2], ids=str)
def test_bilinear_elements_are_those_of_pyamg(shape):
    A = checked(ls.problems.poisson(shape, stencil="q1"))
    S = pyamg.gallery.poisson(shape, format="csr", type="FE")
    assert np.array_equal(A.to_scipy().toarray(), S.toarray())


@pytest.mark.parametrize("shape", [(3,), (8,), (3, 5), (4, 3, 5)], ids=str)
def test_periodic_grids(shape):
    """Each axis a ring; the constants are null vectors."""
    A = checked(ls.problems.poisson(shape, boundary="periodic"))
    wanted = np.zeros(A.shape)
    for axis, n in enumerate(shape):
        ring = 2 * np.eye(n) - np.roll(np.eye(n), 1, 0) - np.roll(np.eye(n), -1, 0)
        before, after = (np.eye(int(np.prod(s))) for s in (shape[:axis], shape[axis + 1 :]))
        wanted += np.kron(np.kron(before, ring), after)
    assert np.array_equal(A.to_scipy().toarray(), wanted)
    assert A.nnz == np.count_nonzero(wanted)
    assert not (A @ torch.ones(A.shape[0], dtype=A.dtype)).any()


def test_periodic_bilinear_elements():
    one = torch.ones(4, 6, dtype=torch.float64)
    A, B = ls.problems.poisson((4, 6), stencil="q1", boundary="periodic"), ls.problems.nodal_diffusion
    assert torch.allclose(A.to_dense(), 3 * B(one, stencil="q1", boundary="periodic").to_dense())


def test_an_int_is_one_dimension():
    A, B = ls.problems.poisson(5), ls.problems.poisson((5,))
    assert torch.equal(A.values, B.values)
    assert torch.equal(A.col_indices, B.col_indices)
    assert torch.equal(ls.problems.poisson([3, 2]).values, ls.problems.poisson(torch.Size((3, 2))).values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_and_device(dtype):
    A = ls.problems.poisson((3, 3), dtype=dtype, device="cpu")
    assert A.dtype == dtype
    assert A.crow_indices.dtype == A.col_indices.dtype == torch.int32
    assert ls.problems.poisson((3, 3), device="meta").device.type == "meta"


@pytest.mark.parametrize(
    ("rows", "nnz", "index"),
    [
        (10, 2**31 - 1, torch.int32),
        (10, 2**31, torch.int64),
        (2**31 - 1, 10, torch.int32),
        (2**31, 10, torch.int64),
    ],
)
def test_indices_are_as_narrow_as_they_can_be(rows, nnz, index):
    assert _grid.index_dtype(rows, nnz) == index


def test_wide_indices(monkeypatch):
    """As for more than 2^31 entries, which no test could hold."""
    monkeypatch.setattr(_grid, "INT32_MAX", 32)
    A = ls.problems.poisson((3, 3))
    assert A.nnz == 33
    assert A.crow_indices.dtype == A.col_indices.dtype == torch.int64
    assert np.array_equal(A.to_scipy().toarray(), pyamg.gallery.poisson((3, 3)).toarray())


def test_a_million_unknowns():
    A = ls.problems.poisson((100, 100, 100))
    assert A.shape == (10**6, 10**6)
    assert A.nnz == 7 * 10**6 - 6 * 10**4
    assert ls.ops.sum(A, 1).sum() == 6 * 10**4  # a face of the cube loses a neighbor


def test_it_may_be_made_anywhere():
    """A matrix made inside a transformation or inference mode is like any other."""
    x = torch.linspace(0, 1, 6, dtype=torch.float64)

    def energy(x):
        return x @ (ls.problems.poisson((2, 3)) @ x)

    wanted = 2 * (ls.problems.poisson((2, 3)) @ x)
    torch.testing.assert_close(torch.func.grad(energy)(x), wanted)
    with torch.inference_mode():
        A = ls.problems.poisson((2, 3))
    assert not A.values.is_inference()
    v = A.values.clone().requires_grad_()
    (g,) = torch.autograd.grad((A.with_values(v).T.values ** 2).sum(), v)
    torch.testing.assert_close(g, 2 * A.values)


@pytest.mark.parametrize(("stencil", "scale"), [("fd", 1.0), ("q1", 3.0)])
def test_second_order_convergence(stencil, scale):
    """-div grad u = f for u = sin(pi x) sin(2 pi y) on the unit square."""
    errors = []
    for n in (7, 15, 31):
        h = 1 / (n + 1)
        x, y = np.meshgrid(*2 * [h * np.arange(1, n + 1)], indexing="ij")
        u = np.sin(np.pi * x) * np.sin(2 * np.pi * y)
        A = ls.problems.poisson((n, n), stencil=stencil).to_scipy()
        solution = scipy.sparse.linalg.spsolve(A / (scale * h**2), (5 * np.pi**2 * u).ravel())
        errors.append(np.abs(solution - u.ravel()).max())
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert np.all(np.abs(orders - 2) < 0.1), orders


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"shape": ()}, ValueError, r"shape must have 1 or 2 or 3 dimensions, got \(\)"),
        ({"shape": (2, 2, 2, 2)}, ValueError, "shape must have 1 or 2 or 3 dimensions"),
        ({"shape": (3, 0)}, ValueError, r"at least one grid point per dimension, got \(3, 0\)"),
        ({"shape": -1}, ValueError, "at least one grid point per dimension, got -1"),
        ({"shape": 2.0}, TypeError, "shape must be an int or a tuple of ints, got 2.0"),
        ({"shape": (2, 2.5)}, TypeError, "shape must be an int or a tuple of ints"),
        ({"shape": "16"}, TypeError, "shape must be an int or a tuple of ints"),
        ({"shape": 3, "stencil": "fe"}, ValueError, r"stencil must be one of \('fd', 'q1'\), got 'fe'"),
        ({"shape": 3, "boundary": "neumann"}, ValueError, "boundary must be one of .*'periodic'.*'neumann'"),
        (
            {"shape": (4, 2), "boundary": "periodic"},
            ValueError,
            r"at least 3 points along each axis.*\(4, 2\)",
        ),
        ({"shape": 3, "stencil": "q1"}, NotImplementedError, "stencil='q1' is for two dimensions"),
        ({"shape": (3, 3, 3), "stencil": "q1"}, NotImplementedError, "use stencil='fd'"),
        ({"shape": 3, "dtype": torch.int64}, TypeError, "dtype must be torch.float32 or torch.float64"),
    ],
)
def test_errors(arguments, error, words):
    with pytest.raises(error, match="poisson: .*" + words):
        ls.problems.poisson(**arguments)
