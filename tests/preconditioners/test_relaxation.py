"""SOR, SSOR, polynomials and additive Schwarz: dense formulas, bounds, options, errors."""

import math

import numpy as np
import pytest
import torch
from numpy.polynomial import chebyshev as T
from preconditioners.cases import dense, general, spd
from reference import normal

import learnsolve as ls
from learnsolve.preconditioners import polynomials

P, S = ls.preconditioners, ls.solvers


def rings(A, rows, overlap):
    D = A.to_dense().numpy()
    coupled = (D != 0) | (D.T != 0)
    rows = set(rows)
    for _ in range(overlap):
        rows |= {j for i in rows for j in np.flatnonzero(coupled[i])}
    return sorted(rows)


def by_a_loop(A, subdomains, overlap, restricted, coarse, local=None):
    D = A.to_dense().numpy()
    n = len(D)
    M, seen, columns = np.zeros((n, n)), set(), []
    for number, rows in enumerate(subdomains):
        own = [i for i in rows if i not in seen]
        seen |= set(own)
        extended = rings(A, rows, overlap)
        R = np.eye(n)[extended]
        kept = np.diag([float(i in own) for i in extended]) if restricted else np.eye(len(extended))
        into = kept if restricted == "symmetric" else np.eye(len(extended))
        L = 0 if local is None else local[number]
        M += R.T @ kept @ np.linalg.inv(R @ D @ R.T + L) @ into @ R
        columns.append(np.eye(n)[own].sum(0))
    if coarse:
        Q = np.stack(columns, 1)
        M += Q @ np.linalg.inv(Q.T @ D @ Q) @ Q.T
    return M


SUBDOMAINS = {
    "in order": [range(0, 7), range(7, 12), range(12, 20)],
    "overlapping and of one row": [[3], range(0, 12), torch.arange(19, 10, -1)],
    "one": [range(20)],
    "every row": [[i] for i in range(20)],
}


@pytest.mark.parametrize("name", SUBDOMAINS)
@pytest.mark.parametrize("overlap", [0, 1, 2])
@pytest.mark.parametrize("restricted", [False, True])
@pytest.mark.parametrize("coarse", [False, True])
@pytest.mark.parametrize("make", [spd, general])
def test_equals_a_loop_over_subdomains(name, overlap, restricted, coarse, make):
    A, subdomains = make(), SUBDOMAINS[name]
    M = P.AdditiveSchwarz(A, subdomains, overlap=overlap, restricted=restricted, coarse=coarse)
    D = by_a_loop(A, [[int(i) for i in rows] for rows in subdomains], overlap, restricted, coarse)
    assert np.allclose(dense(M), D, rtol=1e-10, atol=1e-12)
    assert np.allclose(dense(M.T), D.T, rtol=1e-10, atol=1e-12)
    expected = [len(rings(A, [int(i) for i in rows], overlap)) for rows in subdomains]
    assert M.sizes == tuple(expected)
    if M.symmetric:
        assert np.allclose(D, D.T, rtol=1e-10, atol=1e-12)
    assert M.symmetric == (make is spd and not (restricted and sum(expected) > 20))


OVERLAPPING = [[3], range(0, 12), torch.arange(19, 10, -1)]


@pytest.mark.parametrize("restricted", [False, True, "symmetric"])
@pytest.mark.parametrize("make", [spd, general])
def test_local_values_are_added_in_the_order_of_the_rows(restricted, make):
    """Subdomains of different sizes, which the plan sorts; matrices of each and one of all."""
    A = make()
    plain = P.AdditiveSchwarz(A, OVERLAPPING, overlap=1)
    rows = plain.rows.split(plain.sizes)
    for own, r in zip(OVERLAPPING, rows, strict=True):
        assert r.tolist() == rings(A, [int(i) for i in own], 1)
    local = [normal((s, s), seed=i) for i, s in enumerate(plain.sizes)]
    M = P.AdditiveSchwarz(A, OVERLAPPING, restricted=restricted, local=local)
    lists = [[int(i) for i in rows] for rows in OVERLAPPING]
    D = by_a_loop(A, lists, 1, restricted, False, [L.numpy() for L in local])
    assert np.allclose(dense(M), D, rtol=1e-10, atol=1e-12)
    assert np.allclose(dense(M.T), D.T, rtol=1e-10, atol=1e-12)
    assert not M.symmetric
    whole = ls.ops.block_diag([ls.CSR.from_dense(L) for L in local])
    again = P.AdditiveSchwarz(A, OVERLAPPING, restricted=restricted, local=whole)
    assert torch.equal(dense(again), dense(M))
    assert again.plan is M.plan  # of given subdomains too
    twice = ls.CSR.stack([whole, 2.0 * whole])
    batch = P.AdditiveSchwarz(A, OVERLAPPING, restricted=restricted, local=twice)
    r = normal((2, 20, 3))
    torch.testing.assert_close(batch(r)[0], M(r[0]))
    double = P.AdditiveSchwarz(A, OVERLAPPING, restricted=restricted, local=2.0 * whole)
    torch.testing.assert_close(batch(r)[1], double(r[1]))


def test_the_interface_is_what_touches_the_outside():
    A = general()
    D = A.to_dense().numpy()
    coupled = (D != 0) | (D.T != 0)
    pattern = P.learned.interface_pattern(A, OVERLAPPING, overlap=1)
    wanted, start = set(), 0
    for own in OVERLAPPING:
        rows = rings(A, [int(i) for i in own], 1)
        outside = [i for i in range(20) if i not in rows]
        on = [k for k, i in enumerate(rows) if coupled[i, outside].any()]
        pairs = {(start + k, start + m) for k in on for m in on if coupled[rows[k], rows[m]] or k == m}
        wanted, start = wanted | pairs, start + len(rows)
    assert set(zip(pattern.row_indices.tolist(), pattern.col_indices.tolist(), strict=True)) == wanted
    assert pattern.shape == (start, start)


def test_two_half_lines_with_the_exact_robin_value_are_a_direct_solver():
    """The Schur complement of what lies outside, on the interface: two ORAS steps then solve, restricted."""
    n, m = 12, 7  # rows 0..6 and 5..11
    A = ls.problems.poisson((n,))
    D = A.to_dense()
    left, right = torch.zeros(m, m).double(), torch.zeros(m, m).double()
    left[-1, -1] = -torch.linalg.inv(D[m:, m:])[0, 0]
    right[0, 0] = -torch.linalg.inv(D[:5, :5])[-1, -1]
    halves = [range(6), range(6, 12)]
    M = P.AdditiveSchwarz(A, halves, overlap=1, restricted=True, local=[left, right])
    E = torch.eye(n).double() - dense(M) @ D
    assert (E @ E).abs().max() < 1e-12
    plain = torch.eye(n).double() - dense(P.AdditiveSchwarz(A, halves, overlap=1, restricted=True)) @ D
    assert (plain @ plain).abs().max() > 0.1


def cores(M):
    owner = M.plan.parts.col_indices
    return [torch.nonzero(owner == i).flatten() for i in range(M.plan.count)]


@pytest.mark.parametrize("count", [1, 2, 5, 7, 16])
def test_automatic_subdomains_are_even_compact_and_always_the_same(count):
    A = ls.problems.poisson((24, 20))
    M = P.AdditiveSchwarz(A, n_subdomains=count, overlap=0)
    assert len(M.sizes) == count
    assert sum(M.sizes) == 480
    assert max(M.sizes) - min(M.sizes) <= 4
    # An edge of the grid that is cut lies in no local matrix: squares of s rows have 2 sqrt(s) of them each.
    cut = A.nnz - sum(int((M_i != 0).sum()) for M_i in blocks(A, cores(M)))
    assert cut <= 2 * 1.6 * count * 2 * np.sqrt(480 / count) * (count > 1)
    fresh = ls.CSR.from_scipy(A.to_scipy())
    assert torch.equal(dense(P.AdditiveSchwarz(fresh, n_subdomains=count, overlap=0)), dense(M))


def blocks(A, parts):
    D = A.to_dense()
    return [D[p][:, p] for p in parts]


def test_the_default_number_of_subdomains_and_the_plan():
    A = ls.problems.poisson((30, 30))
    M = P.AdditiveSchwarz(A)
    assert len(M.sizes) == 15
    assert P.AdditiveSchwarz(2.0 * A).plan is M.plan
    assert len(P.AdditiveSchwarz(ls.problems.poisson((3, 3))).sizes) == 1


def test_graphs_that_fall_apart_and_none():
    A = ls.ops.block_diag([spd(), spd(3), ls.ops.eye(5).to(dtype=torch.float64)])
    M = P.AdditiveSchwarz(A, n_subdomains=4, overlap=1)
    b = normal((A.shape[0],))
    assert ls.solvers.cg(A, b, M=M).converged
    empty = ls.CSR.from_dense(torch.zeros(0, 0))
    assert P.AdditiveSchwarz(empty)(torch.zeros(0, 2)).shape == (0, 2)


ONE, FULL = torch.ones(1, 1).double(), torch.ones(20, 20).double()


@pytest.mark.parametrize(
    ("keywords", "error", "words"),
    [
        ({"n_subdomains": 21}, ValueError, "n_subdomains must be at most 20, got 21"),
        ({"subdomains": [range(20)], "n_subdomains": 2}, ValueError, "both given"),
        ({"subdomains": 4}, TypeError, "subdomains must be a sequence .*, got int. .* n_subdomains=4"),
        ({"subdomains": torch.tensor(4)}, TypeError, "subdomains must be a sequence .*, got Tensor"),
        ({"subdomains": [range(5), range(6, 20)]}, ValueError, "row 5 is in none"),
        ({"subdomains": [range(20), []]}, ValueError, r"subdomains\[1\] must be a list of one or more"),
        ({"subdomains": [range(20), [0.5]]}, ValueError, r"subdomains\[1\] must be a list"),
        ({"subdomains": [range(21)]}, ValueError, r"subdomains\[0\] must hold rows from 0 to 19"),
        ({"subdomains": [range(20)], "local": []}, ValueError, "one matrix for each of 1 subdomains, got 0"),
        ({"subdomains": [range(20)], "local": [ONE]}, ValueError, r"local\[0\] must have shape \(20, 20\)"),
        ({"subdomains": [range(20)], "local": ONE}, ValueError, r"local must have shape \(20, 20\)"),
        ({"subdomains": [range(20)], "local": [3]}, TypeError, r"local\[0\] must be a CSR, got int"),
        ({"subdomains": [range(20)], "local": FULL.float()}, TypeError, "local.values has dtype"),
        ({"subdomains": [range(9), range(9, 20)], "overlap": 0, "local": FULL}, ValueError, "block diagonal"),
    ],
)
def test_bad_options(keywords, error, words):
    with pytest.raises(error, match=f"AdditiveSchwarz: .*{words}|AdditiveSchwarz: {words}"):
        P.AdditiveSchwarz(spd(), **keywords)


def test_bad_matrices():
    A = spd()
    D = A.to_dense()
    D[12] = D[13]
    D[:, 12] = D[:, 13]
    singular = ls.CSR.from_dense(D)
    with pytest.raises(ValueError, match="the matrix of subdomain 1, of 10 rows, is singular"):
        P.AdditiveSchwarz(singular, [range(10), range(10, 20)], overlap=0)
    Z = ls.CSR.from_scipy(singular.to_scipy())
    batch = Z.with_values(
        torch.stack((torch.where(Z.pattern.row_indices == Z.col_indices, 9.0, Z.values), Z.values))
    )
    with pytest.raises(ValueError, match=r"matrix of subdomain 1, .* \(matrix 1 of the batch\)"):
        P.AdditiveSchwarz(batch, [range(10), range(10, 20)], overlap=0)
    with pytest.raises(ValueError, match=r"the matrix of subdomain 0, of \d+ rows, is singular"):
        torch.func.grad(
            lambda v: P.AdditiveSchwarz(A.with_values(v), n_subdomains=3, symmetric=True)(v[:20]).sum()
        )(0 * A.values)
    with pytest.raises(ValueError, match=r"hold .* numbers, at most .* more subdomains"):
        P.AdditiveSchwarz(ls.problems.poisson((200, 200)), n_subdomains=2)


def test_large_subdomains_on_any_number_of_threads():
    """torch's own batch of inverses hangs, or has wrong pivots, for blocks of this size in two threads."""
    A, r, before = ls.problems.poisson((42, 42)), normal((42 * 42,)), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            M = P.AdditiveSchwarz(A, n_subdomains=2)
            assert M.inverses[0].shape == (2, 928, 928)
            found.append(M(r))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-12, atol=1e-12)


# --- SOR, SSOR, Chebyshev and Neumann ---


def triangles(A, order=None):
    D = A.to_dense()
    if order is not None:
        D = D[order][:, order]
    return torch.diag(torch.diag(D)), torch.tril(D, -1), torch.triu(D, 1)


@pytest.mark.parametrize("multicolor", [False, True])
@pytest.mark.parametrize("omega", [1.0, 0.4, 1.9, torch.tensor(1.3, dtype=torch.float64)])
@pytest.mark.parametrize("A", [spd(), general()])
def test_formulas(A, omega, multicolor):
    order = ls.ordering.greedy_coloring(A).rows.long() if multicolor else torch.arange(A.shape[0])
    back = torch.argsort(order)
    D, L, U = triangles(A, order)
    w = float(omega)
    lower, upper = D + w * L, D + w * U
    for M, expected in (
        (P.SOR(A, omega, multicolor=multicolor), w * torch.linalg.inv(lower)),
        (P.SOR(A, omega, direction="backward", multicolor=multicolor), w * torch.linalg.inv(upper)),
        (
            P.SSOR(A, omega, multicolor=multicolor),
            w * (2 - w) * torch.linalg.inv(upper) @ D @ torch.linalg.inv(lower),
        ),
    ):
        expected = expected[back][:, back]
        torch.testing.assert_close(dense(M), expected, rtol=1e-10, atol=1e-13)
        torch.testing.assert_close(dense(M.T), expected.mT, rtol=1e-10, atol=1e-13)


def test_a_sweep_of_the_solver():
    A, r = general(), normal((20, 2))
    assert torch.equal(P.SOR(A, 1.2)(r), S.sor(A, r, omega=1.2, iterations=1).x)
    assert torch.equal(P.SSOR(A, 1.2)(r), S.ssor(A, r, omega=1.2, iterations=1).x)


def test_multicolor_has_as_many_levels_as_colors():
    A = ls.problems.poisson((30, 30))
    M = P.SOR(A, multicolor=True)
    from learnsolve import _analysis
    from learnsolve.matrix.pattern import to_numpy

    for system, levels in ((A, 59), (M._system, 2)):
        P_ = system.pattern
        found = _analysis.level_schedule(to_numpy(P_.crow_indices), to_numpy(P_.col_indices), False)[1]
        assert len(found) - 1 == levels


def test_the_order_is_planned_once():
    A = ls.problems.poisson((5, 5))
    one = P.SSOR(A, multicolor=True)
    assert P.SOR(A.with_values(2 * A.values), 1.5, multicolor=True)._system.pattern is one._system.pattern


def test_a_diagonal_matrix_and_none_at_all():
    eye = ls.ops.eye(3, dtype=torch.float64)
    assert torch.allclose(P.SSOR(eye, 0.5)(torch.ones(3, dtype=torch.float64)), torch.tensor(0.75).double())
    nothing = ls.ops.eye(0, dtype=torch.float64)
    for M in (P.SOR(nothing), P.SSOR(nothing, multicolor=True)):
        assert M(normal((0, 2))).shape == (0, 2)


A = spd()


def jacobi_spectrum(A):
    """Of D^-1 A, for a symmetric A."""
    d = A.diagonal().rsqrt()
    return torch.linalg.eigvalsh(d[:, None] * A.to_dense() * d)


@pytest.mark.parametrize("degree", [0, 1, 2, 5])
def test_chebyshev_is_the_best_polynomial(degree):
    """1 - t p(t) is the scaled Chebyshev polynomial, on the eigenvalues of a diagonal matrix."""
    t = np.linspace(0.3, 2.0, 30)
    A = ls.ops.diag(torch.from_numpy(t))
    M = P.Chebyshev(A, lmin=0.4, lmax=1.8, degree=degree, M=None)
    residual = 1 - t * M(torch.ones(30, dtype=torch.float64)).numpy()
    coefficients = [0] * (degree + 1) + [1]
    theta, delta = 1.1, 0.7
    expected = T.chebval((theta - t) / delta, coefficients) / T.chebval(theta / delta, coefficients)
    assert np.allclose(residual, expected, rtol=1e-11, atol=1e-13)
    inside = (t >= 0.4) & (t <= 1.8)
    assert np.abs(residual[inside]).max() <= 1 / T.chebval(theta / delta, coefficients) * (1 + 1e-12)


def test_one_eigenvalue():
    A = ls.ops.diag(torch.full((3,), 4.0, dtype=torch.float64))
    r = normal((3,))
    for degree in (0, 3):
        assert torch.allclose(P.Chebyshev(A, lmin=4.0, lmax=4.0, degree=degree, M=None)(r), r / 4)


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
@pytest.mark.parametrize("A", [spd(), general()])
def test_neumann_is_the_truncated_series(A, degree):
    weight = 0.8
    for M, inner in (("jacobi", P.Jacobi(A)), (P.Jacobi(A), P.Jacobi(A)), (None, None), (P.SOR(A), P.SOR(A))):
        W = weight * (torch.eye(20, dtype=A.dtype) if inner is None else dense(inner))
        step = torch.eye(20, dtype=A.dtype) - W @ A.to_dense()
        expected = sum(torch.linalg.matrix_power(step, i) for i in range(degree + 1)) @ W
        found = P.Neumann(A, degree=degree, weight=weight, M=M)
        torch.testing.assert_close(dense(found), expected, rtol=1e-10, atol=1e-11)
        torch.testing.assert_close(dense(found.T), expected.mT, rtol=1e-10, atol=1e-11)


def test_the_compiled_sweeps_agree_with_the_loop():
    A, R = general(), normal((2, 3, 20, 4))
    M = P.Neumann(A, degree=3, weight=0.7)
    torch.testing.assert_close(M(R), super(P.Neumann, M).mv(R), rtol=1e-13, atol=1e-13)


def test_when_neumann_is_positive_definite():
    """Always for even degrees; for odd ones if weight < 2 / lmax."""
    A = spd()
    lmax = float(jacobi_spectrum(A)[-1])
    for degree in (0, 1, 2, 3, 4):
        for of_bound, positive in ((0.95, True), (1.05, degree % 2 == 0)):
            D = dense(P.Neumann(A, degree=degree, weight=of_bound * 2 / lmax))
            assert bool(torch.linalg.eigvalsh((D + D.mT) / 2).min() > 0) == positive


def test_chebyshev_is_positive_definite_if_lmax_is_above_the_spectrum():
    A = spd()
    lmin, lmax = (float(t) for t in jacobi_spectrum(A)[[0, -1]])
    for degree in (0, 1, 2, 5):
        D = dense(P.Chebyshev(A, lmin=5 * lmin, lmax=lmax * 1.01, degree=degree))
        assert torch.linalg.eigvalsh((D + D.mT) / 2).min() > 0


@pytest.mark.parametrize(
    "A",
    [
        ls.problems.poisson((30, 30)),
        ls.problems.poisson((9, 9, 9)),
        ls.problems.poisson((900,)),
        ls.problems.anisotropic((30, 30), epsilon=0.01, theta=0.5),
        ls.problems.poisson((3,)),
        spd(20),
    ],
)
def test_the_estimate_lies_above_the_spectrum_and_not_far(A):
    M = P.Chebyshev(A)
    lmax = float(jacobi_spectrum(A)[-1])
    assert lmax * 0.999 < float(M.lmax) < 1.11 * lmax
    assert torch.allclose(M.lmin, M.lmax / 30)
    assert torch.equal(P.Chebyshev(A).lmax, M.lmax)  # deterministic


def test_the_estimate_of_a_batch_and_of_invariant_subspaces():
    A = spd()
    both = P.Chebyshev(A.with_values(torch.stack((A.values, 3 * A.values))), M=None)
    assert both.lmax.shape == (2,)
    assert torch.allclose(both.lmax, torch.stack((both.lmax[0], 3 * both.lmax[0])))
    one = ls.ops.eye(7, dtype=torch.float64) * 5.0
    assert torch.allclose(P.Chebyshev(one, M=None).lmax, torch.tensor(5.5).double())
    nothing = ls.ops.eye(0, dtype=torch.float64)
    assert P.Chebyshev(nothing)(normal((0, 2))).shape == (0, 2)
    known = polynomials.largest_eigenvalue(
        lambda X: X * torch.tensor([1.0, 2.0, 9.0])[:, None], torch.ones(3, 1)
    )
    assert torch.allclose(known, torch.tensor(9.9))


# --- polynomials against dense formulas and against the theory of Neumann's and Chebyshev's ---


def parts(A: ls.CSR) -> tuple[torch.Tensor, torch.Tensor]:
    """D^-1 and D^-1 A, dense."""
    inverse = torch.diag(1 / A.diagonal())
    return inverse, inverse @ A.to_dense()


@pytest.mark.parametrize("A", [spd(), general()], ids=["spd", "general"])
@pytest.mark.parametrize("interval", [None, (0.1, 1.9)])
@pytest.mark.parametrize("degree", [0, 1, 2, 5])
def test_formula(A, interval, degree):
    c = normal((degree + 1,), seed=4)
    inverse, B = parts(A)
    one = torch.eye(20, dtype=torch.float64)
    if interval is None:
        basis = [torch.linalg.matrix_power(B, k) for k in range(degree + 1)]
    else:
        lo, hi = interval
        X = (2 * B - (lo + hi) * one) / (hi - lo)
        basis = [one, X]
        while len(basis) <= degree:
            basis.append(2 * X @ basis[-1] - basis[-2])
    wanted = sum(ck * T for ck, T in zip(c, basis, strict=False)) @ inverse
    M = P.Polynomial(A, c, interval=interval)
    assert torch.allclose(M(one), wanted, rtol=1e-11, atol=1e-13)
    assert torch.allclose(M.T(one), wanted.T, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("degree", [0, 1, 2, 5])
def test_neumann(degree):
    A = spd()
    inverse, B = parts(A)
    N = torch.eye(20, dtype=torch.float64) - B
    wanted = sum(torch.linalg.matrix_power(N, k) for k in range(degree + 1)) @ inverse
    assert torch.allclose(
        P.Polynomial.neumann(A, degree)(torch.eye(20, dtype=torch.float64)), wanted, rtol=1e-11
    )


@pytest.mark.parametrize("degree", [0, 1, 3, 8])
def test_chebyshev_has_the_smallest_error_on_the_interval(degree):
    A = ls.problems.poisson((12,))
    lo, hi = (float(f(2 * np.sin(np.arange(1, 13) * np.pi / 26) ** 2)) for f in (np.min, np.max))
    M = P.Polynomial.chebyshev(A, degree, lmin=lo, lmax=hi)
    # Constant diagonal: D^-1 A and its polynomials have the same eigenvectors.
    eigenvalues, V = torch.linalg.eigh(A.to_dense() / 2)
    error = 1 - eigenvalues * torch.einsum("ij,ij->j", V, M(2.0 * V))
    kappa = (hi + lo) / (hi - lo)
    bound = 1 / math.cosh((degree + 1) * math.acosh(kappa))
    assert float(error.abs().max()) <= bound * (1 + 1e-9)
    assert float(error.abs().max()) >= 0.5 * bound  # and no smaller than by luck between extrema


def test_the_default_interval_is_safe():
    A = spd()
    M = P.Polynomial.chebyshev(A, 4)
    _, B = parts(A)
    assert M.interval is not None
    assert float(torch.linalg.eigvals(B).abs().max()) <= float(M.interval[1])
    assert (torch.linalg.eigvalsh(M(torch.eye(20, dtype=torch.float64))) > 0).all()


def test_coefficients_for_another_matrix():
    A, B = spd(), ls.problems.poisson((6,))
    for make in (P.Polynomial.chebyshev, P.Polynomial.neumann):
        M = P.Trainable(make(A, 3))
        N = M.on(make(B, 3, symmetric=False))
        assert N.coefficients is M.coefficients
        assert N.shape == (6, 6)
        assert not N.symmetric
        assert set(M.state_dict()) <= {"coefficients.values", "interval.values"}
        wanted = P.Polynomial(B, M.coefficients().detach(), interval=M.build().interval)
        assert torch.equal(N(normal((6,))), wanted(normal((6,))))
    # The interval comes with the coefficients.
    first, second = (
        P.Trainable(P.Polynomial.chebyshev(B, 3, lmin=0.5, lmax=2.0)),
        P.Trainable(P.Polynomial.chebyshev(B, 3)),
    )
    second.load_state_dict(first.state_dict())
    assert torch.equal(second(normal((6,))), first(normal((6,))))
