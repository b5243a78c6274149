"""Matrices from files, products, inner products and their derivatives in several processes, against one."""

import pytest

pytest.importorskip("petsc4py", reason="needs petsc4py: make test-petsc")

import os
import tempfile
from pathlib import Path

import numpy as np
import scipy.io
import scipy.sparse as sp
import torch
from distributed import close, distributed, leaves, numbers, own_entries, own_rows, random_matrix, ranges
from petsc4py import PETSc
from torch.autograd import forward_ad

import learnsolve as ls
from learnsolve import petsc
from learnsolve.petsc._processes import processes

HOW = ["even", "last", "uneven"]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("columns", [(), (3,)])
def test_product_with_derivatives(how, symmetric, columns):
    S = random_matrix(17, symmetric)
    A, C = distributed(S, how), ls.CSR.from_scipy(S)
    x, c = numbers(17, *columns), numbers(17, *columns, seed=1)
    (v, xh), (w, xo) = leaves(A, C, x)
    for transpose in (False, True):
        y = petsc.spmm(A.with_values(v), xh, transpose=transpose)
        z = ls.ops.spmm(C.with_values(w), xo, transpose=transpose)
        close(y, own_rows(A, z))
        loss = petsc.dot(own_rows(A, c), torch.sin(y)).sum()
        loss_one = (c * torch.sin(z)).sum()
        close(loss, loss_one)
        g = torch.autograd.grad(loss, (v, xh), create_graph=True)
        h = torch.autograd.grad(loss_one, (w, xo), create_graph=True)
        close(g[0], own_entries(A, C, h[0]))
        close(g[1], own_rows(A, h[1]))
        second = petsc.dot(g[0].flatten(), g[0].flatten()) + petsc.norm(g[1]).sum()
        second_one = (h[0] ** 2).sum() + torch.linalg.vector_norm(h[1], dim=0).sum()
        close(second, second_one)
        g, h = torch.autograd.grad(second, (v, xh)), torch.autograd.grad(second_one, (w, xo))
        close(g[0], own_entries(A, C, h[0]))
        close(g[1], own_rows(A, h[1]))


def test_forward_mode():
    S = random_matrix(12, False)
    A, C = distributed(S), ls.CSR.from_scipy(S)
    x, t, s = numbers(12), numbers(12, seed=1), numbers(C.nnz, seed=2)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(own_rows(A, x), own_rows(A, t))
        values = forward_ad.make_dual(A.values, own_entries(A, C, s))
        y = petsc.spmm(A.with_values(values), dual)
        close(forward_ad.unpack_dual(y).tangent, own_rows(A, C @ t + C.with_values(s) @ x))
        q = forward_ad.unpack_dual(petsc.dot(dual, y)).tangent
        close(q, t @ (C @ x) + x @ (C @ t + C.with_values(s) @ x))


def test_norm_has_the_derivative_zero_at_zero():
    A = distributed(random_matrix(9, True))
    x = torch.zeros(A.row_range[1] - A.row_range[0], dtype=torch.float64, requires_grad=True)
    petsc.norm(x).backward()
    assert torch.equal(x.grad, torch.zeros_like(x))


def test_rectangular_matrix():
    rng = np.random.default_rng(3)
    S = sp.csr_array(sp.random_array((14, 9), density=0.4, rng=rng))
    (lo, hi), columns = ranges(14, "even"), ranges(9, "uneven")
    rows = ls.CSR.from_scipy(S[lo:hi])
    A = petsc.Matrix(rows.values, rows.pattern, (lo, hi), 14, column_range=columns)
    x, y = numbers(9), numbers(14, seed=1)
    close(A @ x[columns[0] : columns[1]], torch.from_numpy(S @ x.numpy())[lo:hi])
    close(petsc.spmm(A, y[lo:hi], transpose=True), torch.from_numpy(S.T @ y.numpy())[columns[0] : columns[1]])
    assert abs(A.to_scipy() - S).max() == 0
    with pytest.raises(ValueError, match="needs column_range"):
        petsc.Matrix(rows.values, rows.pattern, (lo, hi), 14)
    with pytest.raises(ValueError, match="square"):
        petsc.solve(A, y[lo:hi])


def test_the_same_bits_each_time_and_everywhere():
    S = random_matrix(40, True)
    A, x = distributed(S), numbers(40, 2)
    first, second = (petsc.norm(A @ own_rows(A, x)) for _ in range(2))
    assert torch.equal(first, second)
    everywhere = processes().gathered(first)
    assert bool((everywhere == everywhere[0]).all())


def test_sums_over_processes_are_each_others_derivatives():
    p = processes()
    t = numbers(3, seed=p.rank).requires_grad_()
    total = p.sum(t)
    close(total, sum(numbers(3, seed=r) for r in range(p.size)))
    (g,) = torch.autograd.grad((total**2).sum(), t, create_graph=True)
    close(g, 2 * total)
    (h,) = torch.autograd.grad(p.sum((g**2).sum()), t)
    close(h, 8 * p.size * total * 1.0)  # of sum_p (2 T)^2: 8 P T


def test_what_does_not_fit_is_refused():
    S = random_matrix(8, True)
    A = distributed(S)
    rows = ls.CSR.from_scipy(S[A.row_range[0] : A.row_range[1]])
    with pytest.raises(ValueError, match=r"follow one another from 0 to n = 8.*share"):
        petsc.Matrix(rows.values, rows.pattern, (A.row_range[0] + 1, A.row_range[1] + 1), 8)
    with pytest.raises(TypeError, match="float64 on the CPU"):
        petsc.Matrix(rows.values.float(), rows.pattern, A.row_range, 8)
    with pytest.raises(TypeError, match=r"use ops.spmm"):
        petsc.spmm(rows, numbers(8))
    with pytest.raises(ValueError, match="rows of this process"):
        A @ numbers(9)
    with pytest.raises(ValueError, match="one shape"):
        petsc.dot(numbers(3), numbers(2))
    with pytest.raises(TypeError, match="two integers"):
        petsc.Matrix(rows.values, rows.pattern, 3, 8)


# --- files ---


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
