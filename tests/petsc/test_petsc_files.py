"""Matrices from files, of which each process reads its part."""

import pytest

pytest.importorskip("petsc4py", reason="needs petsc4py: make test-petsc")

import os
import tempfile
from pathlib import Path

import numpy as np
import scipy.io
import scipy.sparse as sp
from distributed import random_matrix
from petsc4py import PETSc

from learnsolve import petsc
from learnsolve.petsc._processes import processes


def path_of(name):
    return Path(tempfile.gettempdir()) / f"learnsolve-{os.getppid()}-{name}"


def written(name, write):
    """By the first process, for all."""
    path = path_of(name)
    if processes().rank == 0:
        write(path)
    PETSc.COMM_WORLD.barrier()
    return path


@pytest.mark.parametrize("symmetry", ["general", "symmetric", "skew-symmetric"])
@pytest.mark.parametrize("field", ["real", "pattern"])
def test_matrix_market(symmetry, field):
    S = random_matrix(29, symmetry == "symmetric")
    if symmetry == "skew-symmetric":
        S = sp.csr_array(S - S.T)
    if field == "pattern":
        if symmetry == "skew-symmetric":
            pytest.skip("a pattern has no signs")
        S.data[:] = 1
    path = written(
        f"{symmetry}-{field}.mtx",
        lambda p: scipy.io.mmwrite(p, sp.coo_matrix(S), symmetry=symmetry, field=field, precision=17),
    )
    assert abs(petsc.Matrix.from_file(path).to_scipy() - S).max() < 1e-15


def test_petsc_binary():
    S = random_matrix(23, False)
    A = petsc.Matrix.from_scipy(S)
    path = path_of("matrix.petsc")
    viewer, mat = PETSc.Viewer().createBinary(str(path), "w"), A.to_petsc()
    mat.view(viewer)
    viewer.destroy()
    mat.destroy()
    assert abs(petsc.Matrix.from_file(path).to_scipy() - S).max() == 0


def test_more_processes_than_rows():
    S = sp.csr_array(np.array([[2.0, 1.0], [0.0, 3.0]]))
    path = written("tiny.mtx", lambda p: scipy.io.mmwrite(p, sp.coo_matrix(S)))
    assert abs(petsc.Matrix.from_file(path).to_scipy() - S).max() == 0


HEADER = "%%MatrixMarket matrix coordinate real general\n"
BAD = {
    "dense": ("%%MatrixMarket matrix array real general\n2 2\n1\n2\n3\n4\n", "coordinate files"),
    "rectangular": (HEADER + "2 3 1\n1 1 1\n", "square"),
    "outside": (HEADER + "2 2 2\n1 1 1\n3 1 1\n", "row 3, column 1, outside"),
    "short": (HEADER + "2 2 3\n1 1 1\n", "has 1 entries, and its size line says 3"),
    "other": ("hello, this is a text and not a matrix\n", "neither a Matrix Market file nor"),
    "size": (HEADER + "two\n", "not three numbers"),
    "words": (HEADER + "1 1 1\n1 1 one\n", "not 3 numbers"),
}


@pytest.mark.skipif(processes().size > 1, reason="one process ends all where only its part is bad")
@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read_is_refused(name):
    text, message = BAD[name]
    path = written(f"{name}.mtx", lambda p: p.write_text(text))
    with pytest.raises(ValueError, match=message):
        petsc.Matrix.from_file(path)


def test_a_missing_file_is_named():
    with pytest.raises(FileNotFoundError, match="nowhere"):
        petsc.Matrix.from_file("nowhere.mtx")
