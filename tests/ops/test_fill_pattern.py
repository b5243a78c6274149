"""fill_pattern against levels on dense matrices, and incomplete factors on patterns that are given."""

import numpy as np
import pytest
import scipy.sparse
import torch
from ops.incomplete_cases import STRUCTURES, dominant, every_kind, library, loops, other, small
from reference import assert_same_bits, coordinates, densify, grid, normal, on_pattern, pattern_of, random

import learnsolve as ls

fill_pattern = ls.preconditioners.fill_pattern


def mask(P: ls.SparsityPattern) -> np.ndarray:
    return densify(P, torch.ones(P.nnz)).numpy() > 0


def levels(entries: np.ndarray) -> np.ndarray:
    """lev_ij of the whole elimination, without dropping on the way; infinite where nothing is."""
    n = len(entries)
    level = np.where(entries | np.eye(n, dtype=bool), 0.0, np.inf)
    for k in range(n):  # right-looking, where the library eliminates row by row
        step = level[k + 1 :, k, None] + level[k, k + 1 :] + 1
        level[k + 1 :, k + 1 :] = np.minimum(level[k + 1 :, k + 1 :], step)
    return level


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("structure", [*STRUCTURES, "no diagonal", "no entries"])
def test_levels(structure, index):
    more = {"no diagonal": random(20, 20, 0.1, seed=3), "no entries": scipy.sparse.csr_array((4, 4))}
    P = pattern_of({**STRUCTURES, **more}[structure], index)
    wanted = levels(mask(P))
    for level in (0, 1, 2, 3, 10**30):
        Q = fill_pattern(P, level)
        ls.SparsityPattern(Q.crow_indices, Q.col_indices, Q.shape)  # valid
        assert Q.dtype == index
        assert (mask(Q) == (wanted <= min(level, 10**9))).all()
        assert Q is fill_pattern(P, level)
        assert Q is fill_pattern(ls.CSR(torch.ones(P.nnz), P), level)


def test_level_infinity_is_the_factor_without_dropping():
    P = pattern_of(STRUCTURES["5 points"])
    full = fill_pattern(P, P.shape[0])
    A = ls.CSR(dominant(P), P)
    symmetric = A + A.T
    exact = torch.linalg.cholesky(symmetric.to_dense())
    assert ((exact != 0).numpy() == np.tril(mask(full))).all()
    L = ls.ops.ic0(symmetric, pattern=full).L
    torch.testing.assert_close(L.to_dense(), exact, rtol=1e-13, atol=1e-14)
    L, U, _ = ls.ops.ilu0(A, pattern=full)
    torch.testing.assert_close(L.to_dense() @ U.to_dense(), A.to_dense(), rtol=1e-13, atol=1e-13)


def test_a_pattern_that_has_all_its_fill_is_itself():
    P = pattern_of(STRUCTURES["tridiagonal"])
    assert fill_pattern(P, 3) is P
    assert fill_pattern(pattern_of(STRUCTURES["5 points"]), 0).nnz == STRUCTURES["5 points"].nnz


def test_errors():
    A = ls.problems.poisson((3, 3))
    for error, message, call in (
        (
            TypeError,
            "A must be a CSR or a SparsityPattern, got Tensor",
            lambda: fill_pattern(A.to_dense(), 1),
        ),
        (ValueError, r"A must be square, got shape \(3, 9\)", lambda: fill_pattern(A[:3], 1)),
        (ValueError, "level must be at least 0, got -1", lambda: fill_pattern(A, -1)),
        (TypeError, "level must be an int, got float", lambda: fill_pattern(A, float("inf"))),
    ):
        with pytest.raises(error, match=f"fill_pattern: {message}"):
            call()


# --- factors on a pattern ---


@every_kind
@pytest.mark.parametrize("structure", ["5 points", "power law", "random", "random symmetric", "1 x 1"])
def test_factors_on_a_pattern(kind, structure):
    for index in (torch.int32, torch.int64):
        P = pattern_of(STRUCTURES[structure], index)
        Q = fill_pattern(P, 1)
        v = dominant(P, (2,)).requires_grad_()
        found = library(kind, P, v, pattern=Q)
        exact = v.detach().requires_grad_()
        wanted = loops(kind, Q, on_pattern(Q, densify(P, exact)))
        torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-13)
        g = normal(found.shape, seed=3)
        pair = [torch.autograd.grad(f, x, g)[0] for f, x in ((found, v), (wanted, exact))]
        torch.testing.assert_close(*pair, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["ic0", "mic0"])
def test_the_lower_triangle_of_a_pattern_is_enough(kind):
    P, Q = small(), other()
    lower = ls.CSR(torch.ones(Q.nnz), Q).tril().pattern
    v = dominant(P)
    op = getattr(ls.ops, kind)
    L = op(ls.CSR(v, P), pattern=Q).L
    assert L.pattern is lower
    assert op(ls.CSR(v, P), pattern=lower).L.pattern is lower
    assert torch.equal(L.values, library(kind, P, v, pattern=lower))
    A = ls.CSR(v, P)
    assert torch.equal(L.values, op(A.tril(), pattern=Q).L.values)


@every_kind
def test_of_entries_outside_of_the_pattern_nothing_is_read(kind):
    P, Q = small(), other()
    v = dominant(P)
    outside = on_pattern(P, densify(Q, torch.ones(Q.nnz))) == 0
    assert outside.sum() == 2
    spoiled = torch.where(outside, torch.nan, v).requires_grad_()
    found = library(kind, P, spoiled, pattern=Q)
    assert torch.equal(found, library(kind, P, v, pattern=Q))
    (grad,) = torch.autograd.grad(found.sum(), spoiled)
    assert (grad[outside] == 0).all()


@every_kind
def test_shift_and_breakdown_on_a_pattern(kind):
    P, Q = small(), other()
    v = dominant(P)
    shifted = torch.where(torch.isin(torch.arange(P.nnz), P.diagonal_positions), v * 1.5, v)
    assert torch.equal(library(kind, P, v, pattern=Q, shift=0.5), library(kind, P, shifted, pattern=Q))
    v[P.diagonal_positions[0]] = 0
    with pytest.raises(ValueError, match=f"{kind}: every pivot must be .* that of row 0 is 0; add a shift"):
        library(kind, P, v, pattern=Q)
    with pytest.raises(ValueError, match="row 0 is 0, even with shift"):
        library(kind, P, v, pattern=Q, on_breakdown="shift")


def test_a_pivot_that_A_does_not_have_may_come_from_fill():
    A = ls.CSR.from_dense(torch.tensor([[2.0, 1.0], [1.0, 0.0]]))
    pattern = fill_pattern(A)
    with pytest.raises(ValueError, match="row 1 has none"):
        ls.ops.ilu0(A)
    assert float(ls.ops.ilu0(A, pattern=pattern).U.values[-1]) == -0.5


@every_kind
def test_pattern_errors(kind):
    op, P = getattr(ls.ops, kind), small()
    A = ls.CSR(dominant(P), P)
    nine = ls.problems.poisson((9,)).pattern
    hole = pattern_of(scipy.sparse.csr_array(np.diag([1.0, 1, 1, 0, 1])))
    for error, message, pattern in (
        (TypeError, "pattern must be a SparsityPattern, got CSR; of a CSR take its .pattern", A),
        (ValueError, r"the pattern must have A's shape \(5, 5\), got \(9, 9\)", nine),
        (ValueError, "the pattern must have an entry on its diagonal in every row, row 3 has none", hole),
        (TypeError, "the pattern is on meta, A on cpu", other().to("meta")),
    ):
        with pytest.raises(error, match=f"{kind}: {message}"):
            op(A, pattern=pattern)


@every_kind
def test_same_bits_for_any_number_of_threads(kind):
    P = pattern_of(grid(5, 30), torch.int32)
    v = dominant(P, (3,))
    assert_same_bits(lambda: [library(kind, P, v, pattern=fill_pattern(P, 2))])


def test_rows_of_a_level_pattern_are_symmetric_for_a_symmetric_one():
    Q = fill_pattern(pattern_of(STRUCTURES["7 points"]), 2)
    i, j = coordinates(Q)
    assert set(zip(i, j, strict=True)) == set(zip(j, i, strict=True))
