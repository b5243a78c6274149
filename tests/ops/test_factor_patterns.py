"""Patterns of incomplete factors: by threshold (ict, ilut), by level (fill_pattern), and by hand. The choice
against plain loops on dense matrices, values, derivatives, shifts, errors."""

import warnings

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse as sp
import torch
from ops.factor_cases import (
    COMPLETE,
    STRUCTURES,
    complete_values,
    dense_complete,
    dominant,
    every_kind,
    library,
    loops,
    other,
    small,
)
from reference import assert_same_bits, densify, grid, normal, on_pattern, pattern_of, random

import learnsolve as ls
from learnsolve import _analysis
from learnsolve.ops import incomplete_factors

fill_pattern = ls.preconditioners.fill_pattern


def mask(P: ls.SparsityPattern) -> np.ndarray:
    return densify(P, torch.ones(P.nnz)).numpy() > 0


TWINS = {"ict": "ic", "ilut": "ilu"}
both = pytest.mark.parametrize("kind", TWINS)


def pattern_by(kind: str, A: ls.CSR, **keywords) -> ls.SparsityPattern:
    """That of L, or of L + U."""
    result = getattr(ls.ops, kind)(A, **keywords)
    return result.L.pattern if kind == "ict" else (result.L + result.U).pattern


def values_by(kind: str, A: ls.CSR, **keywords) -> torch.Tensor:
    result = getattr(ls.ops, kind)(A, **keywords)
    return torch.cat([M.values for M in result[:-1]])


def largest(w: np.ndarray, candidates: list[int], least: float, most: int) -> list[int]:
    kept = [j for j in candidates if abs(w[j]) >= least]
    return sorted(kept, key=lambda j: (-abs(w[j]), j))[:most]


def chosen_ict(D: np.ndarray, entries: np.ndarray, fill: int, drop_tol: float) -> np.ndarray:
    n = len(D)
    L, keep = np.zeros_like(D), np.eye(n, dtype=bool)
    for j in range(n):
        w = D[:, j] - L @ L[j]
        there = [i for i in range(j + 1, n) if entries[i, j] or (keep[i, :j] & keep[j, :j]).any()]
        own = entries[j + 1 :, j].sum()
        rows = largest(w, there, drop_tol * np.linalg.norm(D[j:, j]), own + fill)
        L[j, j] = np.sqrt(w[j])
        L[rows, j] = w[rows] / L[j, j]
        keep[rows, j] = True
    return keep


def chosen_ilut(D: np.ndarray, entries: np.ndarray, fill: int, drop_tol: float) -> np.ndarray:
    n = len(D)
    U, keep = np.zeros_like(D), np.eye(n, dtype=bool)
    for i in range(n):
        w, there, least = D[i].copy(), entries[i].copy(), drop_tol * np.linalg.norm(D[i])
        for k in range(i):
            if there[k] and abs(w[k]) >= least:
                there[k + 1 :] |= keep[k, k + 1 :]
                w[k + 1 :] -= w[k] / U[k, k] * U[k, k + 1 :]
        left = largest(w, [k for k in range(i) if there[k]], least, entries[i, :i].sum() + fill)
        right = [j for j in range(i + 1, n) if there[j]]
        right = largest(w, right, least, entries[i, i + 1 :].sum() + fill)
        keep[i, left + right] = True
        U[i, [i, *right]] = w[[i, *right]]
    return keep


CHOICES = {"ict": chosen_ict, "ilut": chosen_ilut}
LIMITS = [(0, 0.0), (1, 0.0), (2, 0.05), (0, 0.2), (100, 0.1), (100, 0.0), (3, 10.0)]


@both
@pytest.mark.parametrize("structure", [*STRUCTURES, "larger"])
def test_the_choice(kind, structure):
    """With numbers of few digits, so that there are ties and what is computed is exact or far from equal."""
    P = pattern_of({**STRUCTURES, "larger": STRUCTURES["9 points"] + grid(5, 4)}[structure], torch.int32)
    v = (dominant(P) * 4).round() / 4
    D = densify(P, v).numpy()
    if kind == "ict":
        D = np.tril(D) + np.tril(D, -1).T
    A = ls.CSR(v, P)
    for fill, drop_tol in LIMITS:
        Q = pattern_by(kind, A, max_fill=fill, drop_tol=drop_tol)
        assert (mask(Q) == CHOICES[kind](D, mask(P), fill, drop_tol)).all(), (fill, drop_tol)
        ls.SparsityPattern(Q.crow_indices, Q.col_indices, Q.shape)  # valid
        assert Q.dtype == torch.int32


def test_of_equal_entries_the_first_are_kept():
    D = 4 * np.eye(6)
    D[1:, 0] = D[0, 1:] = 1  # eliminating row and column 0 fills all places, with equal numbers
    A = ls.CSR.from_dense(torch.tensor(D))
    L = ls.ops.ict(A, max_fill=2, drop_tol=0.0).L
    assert (mask(L.pattern)[2:, 1] == [True, True, False, False]).all()
    U = ls.ops.ilut(A, max_fill=2, drop_tol=0.0).U
    assert (mask(U.pattern)[1, 2:] == [True, True, False, False]).all()


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_values_are_those_on_the_pattern(kind, dtype):
    P = pattern_of(STRUCTURES["5 points"])
    A = ls.CSR(dominant(P, dtype=dtype), P)
    Q = pattern_by(kind, A, max_fill=2, drop_tol=1e-3)
    assert Q.nnz > (mask(P).sum() if kind == "ilut" else np.tril(mask(P)).sum())
    found = values_by(kind, A, max_fill=2, drop_tol=1e-3)
    assert found.dtype == dtype
    assert torch.equal(found, library(TWINS[kind], P, A.values, pattern=Q))
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-13, "atol": 1e-13}
    exact = loops(TWINS[kind], Q, on_pattern(Q, densify(P, A.values.double())))
    torch.testing.assert_close(found.double(), exact, **close)


def test_ict_reads_the_lower_triangle_only():
    P = small()
    A = ls.CSR(dominant(P), P)
    rows, columns = P.row_indices, P.col_indices
    spoiled = A.with_values(torch.where(columns > rows, torch.nan, A.values))
    assert torch.equal(ls.ops.ict(spoiled).L.values, ls.ops.ict(A.tril()).L.values)


def test_the_pattern_of_ilut_does_not_depend_on_the_scaling_of_rows():
    P = pattern_of(STRUCTURES["9 points"])
    A = ls.CSR(dominant(P), P)
    d = 2.0 ** (torch.arange(P.shape[0], dtype=torch.float64) * 7 % 11)
    kept, scaled = (pattern_by("ilut", M, max_fill=2, drop_tol=0.03) for M in (A, A.scale_rows(d)))
    assert (mask(kept) == mask(scaled)).all()


# --- shifts and breakdown ---


@both
def test_breakdown_and_search(kind):
    if kind == "ict":
        P = pattern_of(STRUCTURES["5 points"])
        v = torch.where(P.row_indices == P.col_indices, 0.05, 1.0) * dominant(P)
    else:
        P = pattern_of(scipy.sparse.csr_array(np.ones((2, 2))))  # the second pivot is 0
        v = torch.ones(4, dtype=torch.float64)
    A = ls.CSR(v, P)
    rule = "positive" if kind == "ict" else "nonzero"
    with pytest.raises(
        ValueError, match=rf"{kind}: every pivot must be {rule} .* row \d+ is .*. Add a shift"
    ):
        values_by(kind, A)
    with pytest.warns(RuntimeWarning, match=rf"{kind}: a pivot .* in \d+ factorizations?, .* by") as warned:
        result = getattr(ls.ops, kind)(A, on_breakdown="shift")
    assert len(warned) == 1  # the factorization on the pattern need not search again
    shift = float(result.shift)
    assert torch.log2(result.shift / 1e-3) % 1 == 0  # 1e-3, doubled
    found = torch.cat([M.values for M in result[:-1]])
    assert torch.equal(found, values_by(kind, A, shift=shift))
    if shift > 1e-3:
        with pytest.raises(ValueError, match="every pivot must be"):  # it is the first that works
            values_by(kind, A, shift=shift / 2)


@both
def test_a_search_in_vain_and_one_that_is_not_needed(kind):
    P = small()
    v = dominant(P)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = getattr(ls.ops, kind)(ls.CSR(v, P), on_breakdown="shift", shift=0.25)
    assert float(result.shift) == 0.25
    v[P.diagonal_positions[0]] = 0
    with pytest.raises(ValueError, match=rf"{kind}: .*row 0 is 0, even with shift 5.37e\+05 .*30 tries"):
        values_by(kind, ls.CSR(v, P), on_breakdown="shift")


# --- arguments ---


@both
def test_what_would_choose_several_patterns_is_refused(kind):
    op, P = getattr(ls.ops, kind), small()
    A, batch, shifts = ls.CSR(dominant(P), P), dominant(P, (2,)), torch.zeros(2, dtype=torch.float64)
    for message, call in (
        (r"each matrix of a batch .* \(2, 16\)", lambda: op(ls.CSR(batch, P))),
        (
            "each matrix of a batch would choose a pattern",
            lambda: torch.vmap(lambda v: values_by(kind, ls.CSR(v, P)))(batch),
        ),
        (
            r"each matrix .* shifts of shape \(2,\)",
            lambda: torch.vmap(lambda s: values_by(kind, A, shift=s))(shifts),
        ),
    ):
        with pytest.raises(NotImplementedError, match=f"{kind}: {message}"):
            call()
    with pytest.raises(Exception, match=r"torch.compile cannot trace the choice of a pattern"):
        torch.compile(lambda v: values_by(kind, ls.CSR(v, P)), backend="aot_eager", fullgraph=True)(A.values)


@both
def test_a_batch_on_a_pattern_of_one_matrix(kind):
    """What the errors advise."""
    P = small()
    batch = dominant(P, (2,))
    Q = pattern_by(kind, ls.CSR(batch[0], P), max_fill=1)
    found = library(TWINS[kind], P, batch, pattern=Q)
    assert torch.equal(found[0], values_by(kind, ls.CSR(batch[0], P), max_fill=1))
    mapped = torch.vmap(lambda v: library(TWINS[kind], P, v, pattern=Q))(batch)
    assert torch.equal(mapped, found)


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
    L = ls.ops.ic(symmetric, pattern=full).L
    torch.testing.assert_close(L.to_dense(), exact, rtol=1e-13, atol=1e-14)
    L, U, _ = ls.ops.ilu(A, pattern=full)
    torch.testing.assert_close(L.to_dense() @ U.to_dense(), A.to_dense(), rtol=1e-13, atol=1e-13)


def test_a_pattern_that_has_all_its_fill_is_itself():
    P = pattern_of(STRUCTURES["tridiagonal"])
    assert fill_pattern(P, 3) is P
    assert fill_pattern(pattern_of(STRUCTURES["5 points"]), 0).nnz == STRUCTURES["5 points"].nnz


# --- factors on a pattern ---


@every_kind
def test_a_level_is_its_pattern(kind, monkeypatch):
    """For new values nothing is analyzed."""
    P = pattern_of(STRUCTURES["5 points"])
    A, op, make = ls.CSR(dominant(P), P), getattr(ls.ops, kind), getattr(ls.preconditioners, kind.upper())
    for level in (1, 2, None):
        wanted = op(A, pattern=fill_pattern(A, level)).L
        assert wanted.nnz > A.tril().nnz
        for analysis in ("level_fill", "elimination_plan", "merge_patterns", "triangle"):
            monkeypatch.setattr(_analysis, analysis, None)
        assert torch.equal(op(A, level=level).L.values, wanted.values)
        assert torch.equal(make(A, level=level).L.values, wanted.values)
        assert op(2 * A, level=level).L.pattern is make(2 * A, level=level).L.pattern is wanted.pattern
        monkeypatch.undo()


@pytest.mark.parametrize("kind", ["ic", "mic"])
def test_fill_of_one_triangle_is_that_of_the_symmetric_matrix(kind):
    A, op = ls.problems.poisson((5, 5)), getattr(ls.ops, kind)
    wanted = op(A, level=2).L
    for part in (A.tril(), A.tril() + 0.0 * A.triu(3)):  # whose upper part is not read
        assert torch.equal(op(part, level=2).L.to_dense(), wanted.to_dense())
        assert op(part, level=2).L.pattern is op(2 * part, level=2).L.pattern


@every_kind
def test_a_level_and_a_pattern_are_refused(kind):
    A = ls.problems.poisson((3, 3))
    for module, name in ((ls.ops, kind), (ls.preconditioners, kind.upper())):
        make = getattr(module, name)
        for level in (1, None):
            with pytest.raises(ValueError, match=rf"{name}: pass level or pattern.*fill_pattern\(A, {level}"):
                make(A, level=level, pattern=A.pattern)
        with pytest.raises(ValueError, match=f"{name}: level must be at least 0, got -1"):
            make(A, level=-1)
        with pytest.raises(TypeError, match=f"{name}: level must be an int, got float"):
            make(A, level=1.0)


@pytest.mark.parametrize("kind", ["ic", "mic"])
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
    with pytest.raises(
        ValueError, match=f"{kind}: every pivot must be .* but the pivot of row 0 is 0. Add a shift"
    ):
        library(kind, P, v, pattern=Q)
    with pytest.raises(ValueError, match="row 0 is 0, even with shift"):
        library(kind, P, v, pattern=Q, on_breakdown="shift")


def test_a_pivot_that_A_does_not_have_may_come_from_fill():
    A = ls.CSR.from_dense(torch.tensor([[2.0, 1.0], [1.0, 0.0]]))
    pattern = fill_pattern(A)
    with pytest.raises(ValueError, match="row 1 has none"):
        ls.ops.ilu(A)
    assert float(ls.ops.ilu(A, pattern=pattern).U.values[-1]) == -0.5


@every_kind
def test_a_pattern_without_a_diagonal_is_refused(kind):
    op, P = getattr(ls.ops, kind), small()
    A = ls.CSR(dominant(P), P)
    hole = pattern_of(scipy.sparse.csr_array(np.diag([1.0, 1, 1, 0, 1])))
    with pytest.raises(ValueError, match=f"{kind}: .* on its diagonal in every row, row 3 has none"):
        op(A, pattern=hole)


@pytest.mark.parametrize("choose", [ls.ops.ict, ls.ops.ilut])
def test_an_equal_choice_is_one_object(choose):
    """So that what was planned for it serves again; another choice takes its place."""
    A = ls.problems.poisson((9, 8))
    first, again = choose(A, max_fill=2), choose(A.with_values(2 * A.values), max_fill=2)
    assert again.L.pattern is first.L.pattern
    other = choose(A, max_fill=1)
    assert other.L.nnz < first.L.nnz
    assert choose(A, max_fill=1).L.pattern is other.L.pattern
    back = choose(A, max_fill=2)
    assert back.L.pattern is not first.L.pattern
    assert torch.equal(back.L.values, first.L.values)
    A.pattern.drop_caches()
    assert choose(A, max_fill=2).L.pattern is not back.L.pattern


every_name = pytest.mark.parametrize("name", COMPLETE)
# Supernodes of many columns with long tails, of odd sizes.
GRIDS = {"9 points": grid(9, 7), "7 points": grid(7, 4), "two grids": sp.block_diag([grid(5, 6), grid(9, 3)])}


@every_name
@pytest.mark.parametrize("structure", STRUCTURES)
def test_values(name, structure):
    for index, dtype in ((torch.int32, torch.float32), (torch.int64, torch.float64)):
        P = pattern_of(STRUCTURES[structure], index)
        if P.shape[0] == 0:
            assert complete_values(name, P, dominant(P)).numel() in (0, 1, 2)
            continue
        for batch, order in (
            ((), "natural"),
            ((), "minimum_degree"),
            ((2, 2), torch.arange(P.shape[0]).flip(0)),
        ):
            v = dominant(P, batch, dtype)
            found, wanted = complete_values(name, P, v, order), dense_complete(name, P, v.double(), order)
            assert found.dtype == dtype
            tolerance = 1e-5 if dtype == torch.float32 else 1e-12
            torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)


@every_name
@pytest.mark.parametrize("structure", GRIDS)
def test_second_derivatives_on_grids(name, structure):
    P = pattern_of(GRIDS[structure], torch.int32)
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
        v, t = dominant(P, dtype=dtype) / 10, normal((P.nnz,), dtype, seed=1)

        def product(f, v, t):
            return torch.func.jvp(torch.func.grad(lambda v: (f(name, P, v) ** 3).sum()), (v,), (t,))

        for found, wanted in zip(
            product(complete_values, v, t), product(dense_complete, v.double(), t.double()), strict=True
        ):
            scale = float(wanted.abs().max())
            torch.testing.assert_close(found.double() / scale, wanted / scale, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("structure", {**STRUCTURES, **GRIDS})
def test_patterns_are_the_complete_fill(structure):
    P = pattern_of({**STRUCTURES, **GRIDS}[structure], torch.int32)
    n = P.shape[0]
    for order in (torch.arange(n), ls.ordering.minimum_degree(P).long()):
        A = ls.ops.permute(ls.CSR(dominant(P), P), order)
        both = (A + A.T).pattern
        wanted = ls.preconditioners.fill_pattern(both, n)
        assert ls.preconditioners.fill_pattern(A, None).equals(wanted)
        L, U, p = ls.ops.lu(ls.CSR(dominant(P), P), ordering=order)
        assert torch.equal(p.long(), order)
        assert L.pattern.equals(ls.ops.tril(ls.CSR(normal((wanted.nnz,)), wanted)).pattern)
        assert U.pattern.equals(L.pattern.T)
        again = ls.ops.lu(ls.CSR(dominant(P, seed=1), P), ordering=order.clone())
        assert again.L.pattern is L.pattern
        assert again.U.pattern is U.pattern


@every_name
def test_same_bits_for_any_number_of_threads_and_batch(name):
    P = pattern_of(grid(5, 30), torch.int32)
    v = dominant(P, (5,))

    def results(v):
        v = v.clone().requires_grad_()
        f = complete_values(name, P, v)
        (grad,) = torch.autograd.grad(f, v, f.detach(), create_graph=True)
        return [t.detach() for t in (f, grad, *torch.autograd.grad(grad, v, v.detach()))]

    alone = [torch.stack(t) for t in zip(*(results(one) for one in v), strict=True)]
    assert all(torch.equal(a, b) for a, b in zip(results(v), alone, strict=True))
    assert_same_bits(lambda: results(v))


def test_only_the_lower_triangle_is_read():
    P = small()
    v = dominant(P)
    upper = densify(P, torch.arange(P.nnz) + 1.0).triu(1)[densify(P, torch.ones(P.nnz)) > 0] > 0
    for name in ("cholesky", "ldlt"):
        spoiled = torch.where(upper, torch.nan, v).requires_grad_()
        out = complete_values(name, P, spoiled)
        assert torch.equal(out, complete_values(name, P, v))
        (grad,) = torch.autograd.grad(out.sum(), spoiled)
        assert (grad[upper] == 0).all()


def test_the_gradient_of_logdet_is_the_selected_inverse():
    A = ls.problems.poisson((7, 6)).requires_grad_()
    ls.ops.logdet(A).backward()
    torch.testing.assert_close(A.values.grad, ls.ops.selected_inverse(A).values, rtol=1e-14, atol=0)
    B = A.with_values(dominant(A.pattern)).requires_grad_()
    ls.ops.slogdet(B).logabsdet.backward()
    inverse = ls.ops.selected_inverse(B, kind="lu")
    torch.testing.assert_close(
        B.values.grad, inverse.values[A.pattern.transpose_permutation], rtol=1e-14, atol=0
    )


@pytest.mark.parametrize("kind", ["cholesky", "lu"])
@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
def test_the_selected_inverse_is_the_same_with_a_graph(kind, batch):
    """Without one the gradient of the determinant by the factors is not stored."""
    A = ls.problems.poisson((7, 6))
    v = A.values * (1 + torch.arange(2.0).reshape(2, 1)) if batch else A.values.clone()
    with_graph = ls.ops.selected_inverse(A.with_values(v.requires_grad_()), kind=kind).values
    assert with_graph.requires_grad
    with torch.no_grad():
        assert torch.equal(ls.ops.selected_inverse(A.with_values(v), kind=kind).values, with_graph)


def test_breakdown_names_the_row_of_A():
    D = torch.diag(torch.arange(1.0, 6)).double()
    D[1, 1] = -3.0
    A = ls.CSR.from_dense(D)
    for order in (torch.tensor([4, 3, 2, 1, 0]), "natural", "minimum_degree"):
        with pytest.raises(
            ValueError, match=r"cholesky: .*positive.*row 1, .*is -3\. .*not positive definite: use"
        ):
            ls.ops.cholesky(A, ordering=order)
    with pytest.raises(ValueError, match=r"logdet: .*row 1.*ops.slogdet"):
        ls.ops.logdet(A)
    with pytest.raises(ValueError, match=r'selected_inverse: .*row 1.*kind="lu"'):
        ls.ops.selected_inverse(A)
    assert ls.ops.slogdet(A).sign == -1
    assert (ls.ops.ldlt(A).D < 0).sum() == 1
    zero = A.with_values(torch.stack((A.values, A.values.clamp(min=0))))
    for f in (ls.ops.lu, ls.ops.ldlt, ls.ops.slogdet):
        with pytest.raises(ValueError, match=r"nonzero.*row 1 of matrix 1 of the batch.* is 0\. .*spsolve"):
            f(zero)
    traced = torch.compile(
        lambda v: ls.ops.lu(A.with_values(v)).U.values, backend="aot_eager", fullgraph=True
    )
    with pytest.raises(RuntimeError, match="row 1 in the order of elimination"):
        traced(zero.values[1])


def test_growth_is_reported():
    A = ls.CSR.from_dense(torch.tensor([[1e-12, 1.0], [1.0, 1.0]], dtype=torch.float64))
    for f in (ls.ops.lu, ls.ops.ldlt, ls.ops.slogdet):
        with pytest.warns(RuntimeWarning, match=r"unstable here: \|L\| \|U\| is 1e\+12 times as large as A"):
            f(A, ordering="natural")
        f(A, ordering=torch.tensor([1, 0]))  # warnings are errors


def test_errors_of_complete_factors():
    A = ls.problems.poisson((3, 3))
    for order in (torch.arange(3), torch.zeros(9, dtype=torch.int64)):
        with pytest.raises(
            ValueError, match=r"lu: ordering must hold each of 0, ..., 8 once, got torch.int64"
        ):
            ls.ops.lu(A, ordering=order)
    for name in ("logdet", "selected_inverse"):
        for B in (A.tril(), A.with_values(dominant(A.pattern))):
            with pytest.raises(ValueError, match=f"{name}: A must be symmetric, with both triangles"):
                getattr(ls.ops, name)(B)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(incomplete_factors, "PLAN_LIMIT", 64)
        with pytest.raises(ValueError, match=r"lu: L would have \d+ entries, more than the 2 that"):
            ls.ops.lu(ls.problems.poisson((5, 3)))
    huge = ls.CSR.from_dense(torch.tensor([[1e-200, 0], [1e200, 1]], dtype=torch.float64))
    with pytest.raises(
        ValueError,
        match=r"lu: every pivot must be nonzero and finite, but the pivot of row 1, .* is nan. .*scale A",
    ):
        ls.ops.lu(huge, ordering="natural")


def test_logdet_and_its_derivatives_by_known_eigenvalues():
    n = 40
    one = 4 * (torch.pi * torch.arange(1, n + 1, dtype=torch.float64) / (2 * n + 2)).sin() ** 2
    eigenvalues = (one + one[:, None]).flatten() + 0.3
    A, shift = ls.problems.poisson((n, n)), torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    value = ls.ops.logdet(A + shift * ls.ops.eye(n * n, dtype=A.dtype))
    for wanted in (eigenvalues.log(), 1 / eigenvalues, -1 / eigenvalues**2, 2 / eigenvalues**3):
        torch.testing.assert_close(value.detach(), wanted.sum(), rtol=1e-12, atol=0)
        (value,) = torch.autograd.grad(value, shift, create_graph=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logdet_takes_rounding_errors_for_symmetric(dtype):
    a = 0.3 * (1 + torch.finfo(dtype).eps)
    A = ls.CSR.from_dense(torch.tensor([[2.0, a], [0.3, 2.0]], dtype=dtype))
    assert A.values[1] != A.values[2]
    assert ls.ops.logdet(A).isfinite()
