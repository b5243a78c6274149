"""Matrices of applications, from the folder LEARNSOLVE_DATA."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import scipy.io
import scipy.sparse
import scipy.sparse.linalg
import torch
from real_data import MISSING, data_folder

import learnsolve as ls


class Real(NamedTuple):
    name: str
    shape: tuple[int, int]
    nnz: int  # with both triangles of a symmetric matrix
    symmetric: bool
    positive_definite: bool
    condition: float | None = None  # within a factor of 2


MATRICES = [
    Real("1138_bus", (1138, 1138), 4054, True, True, 9e6),
    Real("ash219", (219, 85), 438, False, False),
    Real("bcsstk01", (48, 48), 400, True, True, 9e5),
    Real("bcsstk16", (4884, 4884), 290_378, True, True),
    Real("delaunay_n13", (8192, 8192), 49_094, True, False),
    Real("fs_183_1", (183, 183), 1069, False, False),
    Real("west0067", (67, 67), 294, False, False),
]
each = pytest.mark.parametrize("real", MATRICES, ids=lambda real: real.name)


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real data; skips the test, saying why, where there is none."""
    folder = data_folder()
    if folder is None:
        pytest.skip(MISSING)
    return folder


@pytest.fixture
def path(data, real):
    return data / "matrices" / f"{real.name}.mtx"


@each
def test_sizes(real, path):
    A = ls.problems.matrix_market(path)
    ls.SparsityPattern(A.crow_indices, A.col_indices, A.shape)  # looks at every index
    assert A.shape == real.shape
    assert A.nnz == real.nnz
    assert A.dtype == torch.float64
    assert A.col_indices.dtype == torch.int32


@each
def test_products(real, path):
    A, S = ls.problems.matrix_market(path), scipy.sparse.csr_array(scipy.io.mmread(path)).astype(float)
    rng = np.random.default_rng(0)
    for M, R, transpose in ((A, S, False), (A, S.T.tocsr(), True)):
        x = rng.standard_normal(R.shape[1])
        y = ls.ops.spmm(M, torch.from_numpy(x), transpose=transpose).numpy()
        # Two sums of the products of a row, each within n u sum |a||x| (Higham 2002, section 3.1).
        bound = 2 * (np.diff(R.indptr) + 1) * 2**-53 * (abs(R) @ abs(x))
        assert np.all(np.abs(y - R @ x) <= bound)


@each
def test_symmetry(real, path):
    A = ls.problems.matrix_market(path)
    if real.shape[0] != real.shape[1]:
        assert not real.symmetric
        return
    T = A.T
    same = torch.equal(T.col_indices, A.col_indices) and torch.equal(T.values, A.values)
    assert same == real.symmetric


@pytest.mark.parametrize("real", [r for r in MATRICES if r.positive_definite], ids=lambda real: real.name)
def test_positive_definite(real, path):
    A = ls.problems.matrix_market(path)
    if A.shape[0] > 2000:
        # A = L D L^T by LU without exchanges of rows: as many positive pivots as positive eigenvalues.
        lu = scipy.sparse.linalg.splu(
            A.to_scipy().tocsc(), "MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}
        )
        assert np.array_equal(lu.perm_r, lu.perm_c)
        assert (lu.U.diagonal() > 0).all()
        return
    eigenvalues = torch.linalg.eigvalsh(A.to_dense())
    assert eigenvalues[0] > 0
    assert real.condition is not None
    assert 0.5 < (eigenvalues[-1] / eigenvalues[0]).item() / real.condition < 2


def test_pattern_files_have_ones(data):
    A = ls.problems.matrix_market(data / "matrices" / "delaunay_n13.mtx")
    assert (A.values == 1).all()


def test_zeros_on_the_diagonal(data):
    A = ls.problems.matrix_market(data / "matrices" / "west0067.mtx")
    assert (A.diagonal() == 0).any()


def test_bad_scaling(data):
    """Entries of very different size survive, in float32 too where it can hold them."""
    path = data / "matrices" / "fs_183_1.mtx"
    A = ls.problems.matrix_market(path)
    size = A.values.abs()
    assert size.max() / size[size > 0].min() > 1e9
    assert torch.equal(ls.problems.matrix_market(path, dtype=torch.float32).values, A.values.float())


def test_laplacian_of_a_triangulation(data):
    W = ls.problems.matrix_market(data / "matrices" / "delaunay_n13.mtx")
    edges = torch.stack((W.pattern.row_indices, W.col_indices))
    L = ls.problems.graph_laplacian(edges)
    assert L.shape == W.shape
    assert L.nnz == 49_094 + 8192
    reference = scipy.sparse.csgraph.laplacian(W.to_scipy())
    assert abs(L.to_scipy() - reference).max() == 0
    assert (L @ torch.ones(8192, dtype=torch.float64)).abs().max() == 0
    assert scipy.sparse.csgraph.connected_components(W.to_scipy())[0] == 1
    # Of one component: the next eigenvalue is positive. Shifted a little, so that it can be factorized.
    small = scipy.sparse.linalg.eigsh(
        ls.problems.graph_laplacian(edges, shift=1e-3).to_scipy().tocsc(),
        k=2,
        sigma=0,
        return_eigenvectors=False,
    )
    assert sorted(small - 1e-3)[0] == pytest.approx(0, abs=1e-9)
    assert sorted(small - 1e-3)[1] > 1e-5
