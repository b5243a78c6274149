"""The triangular solve beyond the table: values by its bound, what it reads and refuses, threads, memory."""

import functools
import itertools

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from ops.test_memory import peak
from ops.triangular import (
    EMPTY,
    F64,
    SHAPES,
    SIDES,
    STRUCTURES,
    P,
    band,
    dense,
    full,
    sparse,
    triangle,
    values_for,
    with_diagonal,
)
from reference import assert_same_bits, coordinates, gradients, grid, normal, on_cuda, pattern_of, random
from torch import func

import learnsolve as ls

every_side = pytest.mark.parametrize(
    "side", SIDES, ids=lambda s: " ".join(k for k, v in s.items() if v) or "none"
)


def assert_solves(x, v, b, P, side):
    """|x - exact| <= 2 (n + 4) u |T^-1| |T| |exact|: what substitution errs by, with a rounding more an entry
    for the reciprocal (Higham, Accuracy and Stability of Numerical Algorithms, theorem 8.5), twice."""
    T = triangle(full(P, v.double()), side["lower"], side["unit_diagonal"], side["transpose"])
    u = 2.0**-24 if v.dtype == torch.float32 else 2.0**-53
    X, B = (t.double().unsqueeze(-1) if t.dim() == 1 else t.double() for t in (x, b))
    exact = torch.linalg.solve(T, B)
    bound = 2 * (T.shape[-1] + 4) * u * (torch.linalg.inv(T).abs() @ (T.abs() @ exact.abs()))
    bad = ~((X - exact).abs() <= bound)
    assert not bad.any(), f"{side}: {int(bad.sum())} of {bad.numel()} are off"


def check(Q, v, columns, side):
    """The solution and both gradients; returns the right-hand side, the cotangent and the gradients."""
    b, g = (normal((Q.shape[0], *columns), v.dtype, seed=s) for s in (1, 2))
    x = sparse(v, b, Q, **side)
    assert x.dtype == v.dtype
    assert_solves(x, v, b, Q, side)
    found = gradients(lambda *a: sparse(*a, Q, **side), [v, b], g)
    wanted = gradients(lambda *a: dense(*a, Q, **side), [v.double(), b.double()], g.double())
    tolerance = 1e-5 if v.dtype == torch.float32 else 1e-12
    for t, w in zip(found, wanted, strict=True):
        torch.testing.assert_close(t.double(), w, rtol=tolerance, atol=tolerance)
    return b, g, found


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=["float32", "float64"])
def test_value_and_gradients(structure, dtype, quick):
    S = STRUCTURES[structure]
    for index, (i, side) in itertools.product((torch.int32, torch.int64), enumerate(SIDES)):
        Q = pattern_of(S, index)
        v = values_for(Q, dtype=dtype)
        columns_of = ((), (1,), (3,), (70,)) if index == torch.int32 else ((),)
        for columns in columns_of[i.bit_count() % 2 :: 2] if quick and len(columns_of) > 1 else columns_of:
            b, g, found = check(Q, v, columns, side)
            only = torch.autograd.grad(sparse(v, b.requires_grad_(), Q, **side), b, g)[0]
            assert torch.equal(only, found[1])


@pytest.mark.parametrize("shape", EMPTY)
def test_empty(shape):
    batch, of_b = SHAPES[shape]
    v, b = values_for(P, *batch).requires_grad_(), normal(of_b).requires_grad_()
    x = sparse(v, b)
    assert x.shape == (*batch, *of_b)
    assert [t.shape for t in torch.autograd.grad(x.sum(), (v, b))] == [v.shape, b.shape]


@every_side
def test_what_is_not_read_changes_nothing_and_has_no_gradient(side):
    for structure in ("dense", "9 points, both triangles", "chain in a tridiagonal matrix", "random"):
        Q = pattern_of(STRUCTURES[structure])
        rows, columns = (torch.from_numpy(i) for i in coordinates(Q))
        read = columns <= rows if side["lower"] else columns >= rows
        read &= (columns != rows) | (not side["unit_diagonal"])
        clean = values_for(Q)
        for junk in (torch.nan, 0.0, torch.inf):
            v = torch.where(read, clean, junk).requires_grad_()
            for columns_of_b in ((), (3,)):
                b = normal((Q.shape[0], *columns_of_b), seed=1).requires_grad_()
                x = sparse(v, b, Q, **side)
                assert torch.equal(x, sparse(clean, b, Q, **side))
                gv, gb = torch.autograd.grad(x, (v, b), torch.ones_like(x), create_graph=True)
                assert (gv[~read] == 0).all()
                assert (gv[read] != 0).all()
                second = torch.autograd.grad((gv.square().sum() + gb.square().sum()), (v, b))
                assert (second[0][~read] == 0).all()
                assert all(t.isfinite().all() for t in (x, gv, gb, *second))
                solve = functools.partial(sparse, b=b.detach(), P=Q, **side)
                tangent = func.jvp(solve, (v.detach(),), (v.detach(),))[1]
                assert tangent.isfinite().all()


def test_explicit_zeros_stay_entries():
    Q = pattern_of(band(6, -1, 0))
    inputs, g = [values_for(Q), normal((6,))], normal((6,), seed=1)
    inputs[0][1] = 0
    found = gradients(lambda v, b: sparse(v, b, Q), inputs, g)
    torch.testing.assert_close(found, gradients(lambda v, b: dense(v, b, Q), inputs, g))
    assert found[0][1] != 0


def test_a_scan_survives_factors_that_overflow():
    """Products of neighboring off-diagonal entries are 1e400; the solution is small."""
    n = 64
    Q = pattern_of(band(n, -1, 0), torch.int32)
    rows, columns = (torch.from_numpy(i) for i in coordinates(Q))
    for dtype, huge in ((F64, 1e200), (torch.float32, 1e30)):
        v = torch.ones(Q.nnz, dtype=dtype)
        v[columns < rows] = huge
        b = torch.zeros(n, dtype=dtype)
        for transpose in (False, True):
            assert torch.equal(sparse(v, b, Q, transpose=transpose), b)
        # Every second coupling is missing: x = 1, 1 - huge, ... stays in range.
        v[(columns < rows) & (rows % 2 == 0)] = 0
        b += 1
        x = sparse(v, b, Q)
        assert torch.equal(x[::2], b[::2])
        assert torch.equal(x[1::2], torch.full_like(x[1::2], 1) - huge)
    b[20] = torch.nan
    x = sparse(torch.ones_like(v), b, Q)
    assert x[:20].isfinite().all()
    assert x[20:].isnan().all()


@pytest.mark.parametrize("side", SIDES[::2], ids=["lower", "lower unit", "upper", "upper unit"])
def test_a_chain_of_200_000_rows(side):
    """No recursion, no quadratic analysis."""
    n = 200_000
    Q = pattern_of(band(n, -1, 0, 1), torch.int32)
    v, b = values_for(Q).requires_grad_(), normal((n,)).requires_grad_()
    x = sparse(v, b, Q, **side)
    gv, gb = torch.autograd.grad(x, (v, b), torch.ones_like(x))
    S = ls.CSR(v.detach(), Q).to_scipy()
    T = sp.csr_array(sp.tril(S) if side["lower"] else sp.triu(S))
    if side["unit_diagonal"]:
        T.setdiag(1)
    residual = torch.from_numpy(T @ x.detach().numpy()) - b.detach()
    assert residual.abs().max() < 1e-12
    y = torch.from_numpy(T.T @ gb.numpy())
    assert (y - 1).abs().max() < 1e-12
    rows, columns = coordinates(Q)
    wanted = -gb[rows] * x.detach()[columns]
    assert torch.equal(gv[gv != 0], wanted[gv != 0])


LARGE = {
    "wide levels": sp.csr_array(sp.tril(random(3000, 3000, 0.02)) + sp.eye_array(3000)),
    "many columns": sp.csr_array(sp.tril(grid(5, 60))),
    "chain": band(40_000, -1, 0),
    "random": with_diagonal(random(2000, 2000, 0.02, seed=2)),
}


@pytest.mark.skipif(on_cuda(), reason="threads of the CPU operators")
@pytest.mark.few
@pytest.mark.parametrize("structure", LARGE)
@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=["float32", "float64"])
def test_same_bits_for_any_number_of_threads(structure, dtype, monkeypatch):
    monkeypatch.setattr("learnsolve.ops.core.triangular._LEVEL_WORK", 100)
    Q = pattern_of(LARGE[structure], torch.int32)
    v = values_for(Q, dtype=dtype)
    v3 = values_for(Q, 3, dtype=dtype)
    n = Q.shape[0]

    def everything():
        results = []
        for side in SIDES[::3]:
            for a, shape in ((v, (n,)), (v, (n, 70)), (v, (3, n, 2)), (v3, (n, 2))):
                w, b = a.clone().requires_grad_(), normal(shape, dtype, seed=5).requires_grad_()
                x = sparse(w, b, Q, **side)
                results += [x.detach(), *torch.autograd.grad(x, (w, b), normal(x.shape, dtype, seed=6))]
        return results

    assert_same_bits(everything, (2, 3))


@pytest.mark.skipif(on_cuda(), reason="a plan for the CPU operators")
def test_levels_are_used_where_they_are_wide(monkeypatch):
    from learnsolve.ops.core import triangular

    Q = pattern_of(LARGE["wide levels"])
    *_, levels = triangular._system(Q, triangular.Side(True, False, False)).tensors
    assert len(levels) == 0
    monkeypatch.setattr(triangular, "_LEVEL_WORK", 100)
    Q = pattern_of(LARGE["wide levels"])
    forward, adjoint = (triangular._system(Q, triangular.Side(True, False, t)) for t in (False, True))
    *_, order, levels = forward.tensors
    assert len(levels) > 2
    assert order is adjoint.tensors[-2]
    level = np.repeat(np.arange(len(levels) - 1), np.diff(levels))
    of_row = np.empty_like(level)
    of_row[order] = level
    rows, columns = coordinates(Q)
    below = columns < rows
    assert (of_row[columns[below]] < of_row[rows[below]]).all()


@pytest.mark.parametrize("columns", [None, 64])
def test_memory(columns):
    n = 2_000 if columns and on_cuda() else 20_000
    Q = pattern_of(
        sp.csr_array(sp.tril(sp.random_array((n, n), density=8 / n, rng=0)) + sp.eye_array(n)), torch.int32
    )
    v = values_for(Q).requires_grad_()
    b = normal((n, *(() if columns is None else (columns,))), seed=1).requires_grad_()
    torch.autograd.grad(sparse(v, b, Q).sum(), (v, b))  # analysis is not counted
    nk = b.numel()
    besides = 8 * 4096
    assert peak(lambda: sparse(v, b, Q)) <= 8 * nk + besides
    x = sparse(v, b, Q)
    g = torch.ones_like(x)
    assert peak(lambda: torch.autograd.grad(x, (v, b), g, retain_graph=True)) <= 8 * (Q.nnz + nk) + besides
    x_of_b = sparse(v.detach(), b, Q)
    assert peak(lambda: torch.autograd.grad(x_of_b, b, g)) <= 8 * nk + besides
    if columns:
        g.requires_grad_()
        gv, gb = torch.autograd.grad(x, (v, b), g, create_graph=True)
        found = peak(lambda: torch.autograd.grad(gv.sum() + gb.sum(), (v, b, g)))
        assert found <= 8 * (8 * Q.nnz + 8 * nk) + besides
        assert found < 8 * Q.nnz * columns


def test_a_matrix_that_is_the_triangle_costs_no_copy_of_its_indices():
    Q = pattern_of(STRUCTURES["ILU(0), 5 points"], torch.int32)
    v, b = values_for(Q), normal((Q.shape[0],))
    sparse(v, b, Q)
    assert Q.cache_bytes() < 8 * Q.nnz


@pytest.mark.usefixtures("isa")
def test_every_instruction_set():
    for structure, dtype in itertools.product(STRUCTURES, (torch.float32, F64)):
        Q = pattern_of(STRUCTURES[structure])
        for side, columns in itertools.product(SIDES[::3], ((), (2,), (37,))):
            check(Q, values_for(Q, dtype=dtype), columns, side)


def refuses_zero(solve, message):
    """A CUDA operator does not wait for the device to look: the result has NaN, where
    tests/ops/test_cuda_triangular.py says."""
    if on_cuda():
        assert solve().isnan().any()
        return
    with pytest.raises(ValueError, match=f"sptrsv: .*{message}"):
        solve()


@pytest.mark.parametrize("structure", ["chain", "band of 2", "random", "long rows", "dense"])
@pytest.mark.parametrize("transpose", [False, True])
def test_a_zero_on_the_diagonal_is_named(structure, transpose):
    Q = pattern_of(STRUCTURES[structure])
    place, n = Q.diagonal_positions, Q.shape[0]
    solve = functools.partial(sparse, P=Q, transpose=transpose)
    for zero, columns in itertools.product((0.0, -0.0, 1e-310), ((), (3,))):
        v, b = values_for(Q), normal((n, *columns))
        v[place[n // 2]] = zero
        both = torch.stack((values_for(Q), v))
        for learns in (False, True):
            kind = "overflow" if zero else "zeros on its diagonal"
            w = v.clone().requires_grad_(learns)
            refuses_zero(functools.partial(solve, w, b), rf"{kind}, row {n // 2} has -?[01]")
        slope = func.grad(lambda v, b: solve(v, b).sum())
        refuses_zero(functools.partial(slope, v, b), rf" row {n // 2} has")
        refuses_zero(functools.partial(solve, both, b), rf" row {n // 2} of matrix 1 of the batch .* has")
        sparse(v, b, Q, transpose=transpose, unit_diagonal=True)
    v = values_for(Q)
    v[place[n // 2]] = torch.nan  # is no zero: it spreads
    assert sparse(v, normal((n,)), Q, transpose=transpose).isnan().any()


def test_errors():
    eye, b = ls.CSR.from_dense(torch.eye(3, dtype=F64)), normal((3,))
    two = ls.CSR(torch.ones(2, 3), eye.pattern)
    hole = pattern_of(sp.csr_array(np.array([[1, 0, 0], [1, 0, 1], [0, 1, 1]])))
    rows = r"b must have L.shape\[0\] = 3 rows, got "
    for arguments, kind, message in (
        (
            (ls.CSR.from_dense(torch.ones(2, 3)), torch.ones(2)),
            ValueError,
            r"L must be square, got shape \(2, 3\)",
        ),
        ((eye, normal((4,))), ValueError, rows + r"shape \(4,\)"),
        ((eye, normal((4, 3))), ValueError, rows + r"shape \(4, 3\)"),
        ((eye, normal(())), ValueError, "b must have .* got a scalar"),
        ((eye, b.float()), TypeError, "b has dtype torch.float32, the matrix torch.float64"),
        ((eye, [1.0]), TypeError, "b must be a torch.Tensor, got list"),
        ((b, b), TypeError, "L must be a CSR, got Tensor"),
        ((two, torch.ones(3, 3, 1)), ValueError, "the batch axes of L.values and b must broadcast"),
        ((ls.CSR(torch.ones(hole.nnz, dtype=F64), hole), b), ValueError, ".* row 1 has none"),
    ):
        with pytest.raises(kind, match="sptrsv: " + message):
            ls.ops.sptrsv(*arguments)
    with pytest.raises(TypeError, match="sptrsv: lower must be True or False, got 1"):
        ls.ops.sptrsv(eye, b, lower=1)
    v = torch.ones(hole.nnz, dtype=F64)
    torch.testing.assert_close(sparse(v, b, hole, unit_diagonal=True), dense(v, b, hole, unit_diagonal=True))


def test_a_zero_on_the_diagonal_of_a_batch_is_named():
    Q = pattern_of(STRUCTURES["random"])
    row, v = Q.shape[0] // 2, torch.stack([values_for(Q)] * 6).reshape(2, 3, -1)
    v[1, 1, Q.diagonal_positions[row]] = 0
    b = normal((2, 3, Q.shape[0], 1))
    slope = func.grad(lambda v, b: sparse(v, b, Q).sum())
    refuses_zero(lambda: sparse(v, b, Q), rf" row {row} of matrix 4 of the batch")
    refuses_zero(lambda: slope(v, b), rf" row {row} of matrix 4 of the batch")
    refuses_zero(  # a map has no numbers
        lambda: func.vmap(lambda v, b: sparse(v, b, Q))(v[1], b[1, ..., 0]), rf" row {row} has 0"
    )


@pytest.mark.parametrize("transpose", [False, True])
def test_runs_of_longer_and_longer_rows(transpose):
    """One column, through rows of a grid with more and more fill: of equal length, in runs."""
    A, b = ls.problems.poisson((20, 20)), normal((400,))
    for level in range(6):
        L = ls.ops.ic0(A, pattern=ls.preconditioners.fill_pattern(A, level)).L
        D = L.to_dense().mT if transpose else L.to_dense()
        wanted = torch.linalg.solve_triangular(D, b.unsqueeze(-1), upper=transpose).squeeze(-1)
        found = ls.ops.sptrsv(L, b, transpose=transpose)
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
