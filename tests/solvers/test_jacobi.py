"""Values of weighted Jacobi: a dense reference, rounding, layouts, sizes, threads, keywords."""

import numpy as np
import pytest
import torch
from reference import assert_same_bits, assert_within, densify, grid, layouts, normal, pattern_of
from solvers.dense_jacobi import (
    MATRICES,
    SHAPES,
    WEIGHTS,
    dense_jacobi,
    inputs_on,
    scale_of,
    small_square,
    sparse_jacobi,
    values_on,
)

import learnsolve as ls

jacobi = ls.solvers.jacobi


def majorant(P, v, weight, b, x0, K):
    """What the sweeps give if no two terms cancel, for x and for the norms."""
    D = densify(P, v.abs())
    inverse = torch.diagonal(D, dim1=-2, dim2=-1).reciprocal()
    X, norms = x0.abs(), []
    for sweep in range(K + 1):
        R = b.abs() + D @ X
        norms.append(torch.linalg.vector_norm(R, dim=-2))
        if sweep < K:
            X = X + scale_of(sweep, weight.abs(), inverse) * R
    return X, torch.stack(norms, dim=-2)


@pytest.mark.parametrize("structure", MATRICES)
@pytest.mark.parametrize("columns", [1, 3, 8, 21])
def test_value_within_rounding(structure, columns):
    """Each index type and dtype, against float64, within what rounding explains (Higham's gamma)."""
    K = 3
    for index in (torch.int32, torch.int64):
        P = pattern_of(MATRICES[structure], index)
        n = P.shape[0]
        # On a path from an input to x stand, in each sweep, a sum along a row, b - Ax, w / d, s r, x + s r.
        terms = (K + 1) * (int(P.crow_indices.diff().max()) + 6)
        for dtype in (torch.float32, torch.float64):
            v = values_on(P, dtype=dtype)
            w, b, x0 = (normal(s, dtype, i) for i, s in enumerate([(K, n), (n, columns), (n, columns)], 5))
            inputs = v, w, b, x0
            found = sparse_jacobi(P, *inputs, K)
            exact = [t.double() for t in inputs]
            wanted, size = dense_jacobi(P, *exact, K), majorant(P, *exact, K)
            for out, reference, magnitude, extra in zip(found, wanted, size, (0, n), strict=True):
                assert out.dtype == dtype
                count = torch.full_like(reference, terms + extra)
                assert_within(out, reference, magnitude, count, f"{index}, {dtype}")
            if columns == 1:
                x, norms = sparse_jacobi(P, v, w, b[:, 0], x0[:, 0], K)
                torch.testing.assert_close(x, found[0][:, 0])
                torch.testing.assert_close(norms, found[1][:, 0])


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape(shape, weight):
    P = small_square()
    for K in (0, 1, 2, 5):
        inputs = inputs_on(P, weight, shape, K)
        for gradient in ("unrolled", "checkpointed"):
            found = sparse_jacobi(P, *inputs, K, gradient)
            torch.testing.assert_close(found, dense_jacobi(P, *inputs, K), rtol=1e-13, atol=1e-13)


def test_no_keyword_is_ignored():
    P = small_square()
    A, b = ls.CSR(values_on(P), P), normal((4,), seed=1)
    x = jacobi(A, b).x
    torch.testing.assert_close(x, b / A.diagonal())  # one sweep with weight 1 from zero
    assert torch.equal(x, jacobi(A, b, torch.zeros_like(b), weight=1.0, iterations=1).x)
    for changed in (
        jacobi(A, b, x0=normal((4,), seed=2)),
        jacobi(A, b, weight=0.5),
        jacobi(A, b, iterations=2),
        jacobi(A, b, iterations=0),
    ):
        assert not torch.allclose(changed.x, x)
    # `gradient` changes what is stored: test_jacobi_memory.py.


@pytest.mark.parametrize("number", [0.5, 2, np.float64(0.5)], ids=repr)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_number_is_a_scalar_weight(number, shape):
    P = small_square()
    v, _, b, x0 = inputs_on(P, "scalar", shape, 3)
    as_tensor = torch.tensor(float(number), dtype=v.dtype)
    assert torch.equal(sparse_jacobi(P, v, number, b, x0, 3)[0], sparse_jacobi(P, v, as_tensor, b, x0, 3)[0])


def test_as_many_sweeps_as_rows():
    """With K = n, (1, n) means one weight a row, and (n, 1) one a sweep; (n,) is refused."""
    P = small_square()
    v, w, b, x0 = inputs_on(P, "row", "vector", 4)
    for weight in (w[None], w[:, None]):
        found, wanted = sparse_jacobi(P, v, weight, b, x0, 4), dense_jacobi(P, v, weight, b, x0, 4)
        torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-13)
    assert not torch.allclose(
        sparse_jacobi(P, v, w[None], b, x0, 4)[0], sparse_jacobi(P, v, w[:, None], b, x0, 4)[0]
    )
    with pytest.raises(
        ValueError, match=r"one a row or one a step; give it in full, as \(1, 4\) or \(4, 1\)"
    ):
        sparse_jacobi(P, v, w, b, x0, 4)


@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("shape", ["vector", "columns", "batch of both"])
def test_any_layout(shape, K):
    P = small_square()
    inputs = inputs_on(P, "row and sweep", shape, K)
    for i in range(4):
        for name, view in layouts(inputs[i]):
            if i == 0 and name == "overlapping windows":  # zeros may fall on the diagonal
                continue
            there, copy = list(inputs), list(inputs)
            there[i], copy[i] = view, view.clone(memory_format=torch.contiguous_format)
            pairs = zip(sparse_jacobi(P, *there, K), sparse_jacobi(P, *copy, K), strict=True)
            assert all(torch.equal(a, b) for a, b in pairs), f"input {i}, {name}"


def test_inputs_stay_as_they_are_and_x_is_new():
    P = small_square()
    inputs = inputs_on(P, "row", "columns", 0)
    before = [t.clone() for t in inputs]
    for K in (0, 1, 5):
        x, _ = sparse_jacobi(P, *inputs, K)
        x.fill_(7)
        assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True)), K


@pytest.mark.parametrize("learns", [False, True])
def test_zero_sweeps(learns):
    P = small_square()
    v, w, b, x0 = inputs_on(P, "row", "columns", 0, learns)
    x, norms = sparse_jacobi(P, v, w, b, x0, 0)
    assert torch.equal(x, x0)
    torch.testing.assert_close(norms, torch.linalg.vector_norm(b - densify(P, v) @ x0, dim=0, keepdim=True))


@pytest.mark.parametrize("K", [0, 1, 3])
def test_nothing_to_solve(K):
    """No columns, no rows, no members of a batch: empty results and gradients of zero."""
    P, Q = small_square(), ls.CSR.from_dense(torch.zeros(0, 0)).pattern
    for pattern, shape in ((P, (4, 0)), (P, (0, 4, 2)), (Q, (0,)), (Q, (0, 3)), (P, (0, 4, 0))):
        v = values_on(pattern).requires_grad_()
        w = torch.ones(pattern.shape[0], dtype=v.dtype, requires_grad=True)
        b = torch.zeros(shape, dtype=v.dtype, requires_grad=True)
        solution = jacobi(ls.CSR(v, pattern), b, weight=w, iterations=K)
        assert solution.x.shape == shape
        assert solution.residual_norms.shape == (*shape[:-2], K + 1, *shape[max(len(shape) - 1, 1) :])
        loss = solution.x.sum() + solution.residual_norms.sum()
        gv, gw, gb = torch.autograd.grad(loss, (v, w, b), allow_unused=True, materialize_grads=True)
        assert not gv.any()
        assert not gw.any()
        assert gb.shape == shape


def test_the_inverse_diagonal_follows_the_values():
    P = small_square()
    A, b = ls.CSR(values_on(P), P), normal((4,), seed=1)
    for learns in (False, True):
        A.requires_grad_(learns)
        for _ in range(2):
            jacobi(A, b, iterations=2)
            with torch.no_grad():
                A.values[P.diagonal_positions] *= 1.5
            fresh = ls.CSR(A.values.detach().clone(), P)
            assert torch.equal(jacobi(A, b, iterations=2).x, jacobi(fresh, b, iterations=2).x)


@pytest.mark.parametrize("columns", [None, 3])
@pytest.mark.parametrize("gradient", ["unrolled", "checkpointed"])
def test_same_bits_for_any_number_of_threads(columns, gradient):
    P = pattern_of(grid(5, 150), torch.int32)
    assert P.nnz > 100_000
    n, K = P.shape[0], 3
    shape = (n,) if columns is None else (n, columns)

    def results():
        inputs = values_on(P), normal((K, n), seed=2), normal(shape, seed=3), normal(shape, seed=4)
        inputs = [t.requires_grad_() for t in inputs]
        x, norms = sparse_jacobi(P, *inputs, K, gradient)
        return [x, norms, *torch.autograd.grad(x.square().sum() + norms.sum(), inputs)]

    assert_same_bits(results, (2, 3))
