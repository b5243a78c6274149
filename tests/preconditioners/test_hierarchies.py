"""How `Hierarchy` coarsens: against pyamg, by definition, for elasticity, in several threads; errors."""

import numpy as np
import pyamg
import pytest
import scipy.sparse
import torch
from preconditioners.cases import general
from reference import normal

import learnsolve as ls
from learnsolve import _analysis

P = ls.preconditioners
Hierarchy = P.Hierarchy


def rotated(n: int, angle: float, epsilon: float = 1e-3, kind: str = "FE"):
    stencil = pyamg.gallery.diffusion_stencil_2d(epsilon=epsilon, theta=angle, type=kind)
    return pyamg.gallery.stencil_grid(stencil, (n, n), format="csr")


def delaunay():
    A = ls.problems.dataset("delaunay_laplacian", "train", 1, n=600, boundary="dirichlet")[0].A
    return A.to_scipy()


PROBLEMS = {
    "Poisson": lambda: pyamg.gallery.poisson((90, 90), format="csr"),
    "Poisson in 3D": lambda: pyamg.gallery.poisson((18, 18, 18), format="csr"),
    "rotated": lambda: rotated(64, np.pi / 6),
    "rotated, five points": lambda: rotated(64, -np.pi / 4, kind="FD"),
    "airfoil": lambda: pyamg.gallery.load_example("airfoil")["A"].tocsr(),
    "bar": lambda: pyamg.gallery.load_example("bar")["A"].tocsr(),
    "knot": lambda: pyamg.gallery.load_example("knot")["A"].tocsr(),
    "Delaunay": delaunay,
}
RULES = {
    "smoothed aggregation": (pyamg.smoothed_aggregation_solver, {}, Hierarchy.smoothed_aggregation, {}),
    "evolution": (
        *(pyamg.smoothed_aggregation_solver, {"strength": "evolution"}),
        *(Hierarchy.smoothed_aggregation, {"strength": "evolution"}),
    ),
    "Ruge-Stueben": (pyamg.ruge_stuben_solver, {}, Hierarchy.ruge_stuben, {}),
}


def iterations(A, hierarchy) -> int:
    solution = ls.solvers.cg(A, normal((A.shape[0],)), M=P.AMG(A, hierarchy=hierarchy), rtol=1e-8)
    assert solution.converged
    return solution.iterations


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_cg_takes_as_many_iterations_as_on_the_hierarchy_of_pyamg(problem, rule):
    S = scipy.sparse.csr_array(PROBLEMS[problem]())
    S.sort_indices()
    A = ls.CSR.from_scipy(S)
    make, options, ours, own = RULES[rule]
    np.random.seed(0)  # noqa: NPY002  pyamg starts its eigenvalue estimates with it
    theirs = make(S, max_coarse=20, **options)
    H = ours(A, max_coarse=20, **own)
    # pyamg relaxes the constant before it is cut into aggregates: up to an iteration and a half of ten.
    most = iterations(A, theirs)
    assert iterations(A, H) <= most + max(1, 0.15 * most)
    if rule != "evolution":  # its measure depends on the spectral radius, which both only estimate
        assert H.sizes == tuple(level.A.shape[0] for level in theirs.levels)


def test_extended_interpolation_needs_no_more_iterations_than_classical():
    A = ls.CSR.from_scipy(rotated(64, np.pi / 6))
    classical, extended = (Hierarchy.ruge_stuben(A, interpolation=i) for i in ("classical", "extended+i"))
    assert iterations(A, extended) <= iterations(A, classical)
    for Q in extended.prolongations:
        assert int(Q.pattern.crow_indices.diff().max()) <= 4


@pytest.mark.parametrize("option", [{}, {"interpolation": "extended+i"}, {"aggressive": 1}])
def test_a_constant_is_interpolated_exactly_where_rows_sum_to_zero(option):
    S = delaunay()
    S = S - scipy.sparse.diags_array(S.sum(1))
    options = {"second_pass": True, "max_levels": 2, "max_coarse": 1, **option}
    H = Hierarchy.ruge_stuben(ls.CSR.from_scipy(scipy.sparse.csr_array(S)), **options)
    assert torch.allclose(H.prolongations[0].sum(1), torch.ones(S.shape[0], dtype=torch.float64))


def test_extended_interpolation_by_its_formula():
    A = ls.problems.dataset("delaunay_laplacian", "train", 1, n=80, boundary="dirichlet")[0].A
    D, n = A.to_dense().numpy(), A.shape[0]
    strong, coarse = _splitting(A, 0.25, False)
    S = np.zeros((n, n), bool)
    S[A.pattern.row_indices, A.pattern.col_indices] = strong
    expected = np.zeros((n, n))
    for i in range(n):
        if coarse[i]:
            expected[i, i] = 1
            continue
        F = [k for k in np.flatnonzero(S[i]) if not coarse[k]]
        C = {j for k in (i, *F) for j in np.flatnonzero(S[k]) if coarse[j]}
        weak = [m for m in np.flatnonzero(D[i]) if m != i and not S[i, m] and m not in C]
        rest, numerators = D[i, i] + D[i, weak].sum(), {j: D[i, j] for j in C}
        for k in F:
            opposite = np.where(D[k] * D[k, k] < 0, D[k], 0)
            share = D[i, k] / opposite[[*C, i]].sum()
            rest += share * opposite[i]
            for j in C:
                numerators[j] += share * opposite[j]
        for j in C:
            expected[i, j] = -numerators[j] / rest
    options = {"interpolation": "extended+i", "max_entries": n, "max_levels": 2, "max_coarse": 1}
    found = Hierarchy.ruge_stuben(A, **options).prolongations[0].to_dense().numpy()
    assert np.allclose(found, expected[:, coarse])


def test_aggressive_coarsening_by_its_definition():
    A = ls.problems.dataset("delaunay_laplacian", "train", 1, n=300, boundary="dirichlet")[0].A
    D, n = A.to_dense().numpy(), A.shape[0]
    strong, once = _splitting(A, 0.25, False)
    coarse = _splitting(A, 0.25, False, True)[1]
    S = np.zeros((n, n))
    S[A.pattern.row_indices, A.pattern.col_indices] = strong
    connected = (((2 * S + S @ S) >= 2) & ~np.eye(n, dtype=bool))[once][:, once]
    among = ls.CSR.from_scipy(scipy.sparse.csr_array(connected.astype(float)))
    lonely = ~(connected.any(0) | connected.any(1))
    assert np.array_equal(coarse[once], _splitting(among, 0.0, False)[1] | lonely)
    assert coarse.sum() < 0.7 * once.sum()
    assert not (coarse & ~once).any()
    found = Hierarchy.ruge_stuben(A, aggressive=1, max_levels=2, max_coarse=1).prolongations[0]
    rows, done = np.eye(n)[:, coarse] * coarse[:, None], coarse.copy()
    while True:
        reached = [i for i in np.flatnonzero(~done) if (S[i] * done).any()]
        if not reached:
            break
        for i in reached:
            K = np.flatnonzero(S[i] * done)
            rows[i] = -(D[i].sum() - D[i, i]) / D[i, K].sum() / D[i, i] * D[i, K] @ rows[K]
        done[reached] = True
    assert np.allclose(found.to_dense().numpy(), rows)


def test_aggressive_coarsening_saves_memory_in_three_dimensions():
    A = ls.problems.poisson((24, 24, 24))
    M, N = (P.AMG(A, method="ruge_stuben", aggressive=levels) for levels in (0, 1))
    assert N.operator_complexity < 0.65 * M.operator_complexity
    assert iterations(A, N.hierarchy) <= iterations(A, M.hierarchy) + 4
    apart = ls.CSR.from_scipy(scipy.sparse.block_diag([[[2.0, -1.0], [-1.0, 2.0]]] * 200, format="csr"))
    assert Hierarchy.ruge_stuben(apart, aggressive=1).sizes[1] == 200  # one of each pair


def _splitting(A, theta, second, aggressive=False):
    P = A.pattern
    arrays = P.crow_indices.numpy(), P.col_indices.numpy(), A.values.numpy()
    strong, coarse = _analysis.classical_splitting(*arrays, theta, second, aggressive)
    return strong.astype(bool), coarse.astype(bool)


@pytest.mark.parametrize("second", [False, True])
def test_the_splitting(second):
    """After the second pass two fine points that are connected have a strong coarse one in common."""
    A = ls.CSR.from_scipy(scipy.sparse.csr_array(delaunay()))
    strong, coarse = _splitting(A, 0.25, second)
    S = np.zeros(A.shape, bool)
    S[A.pattern.row_indices, A.pattern.col_indices] = strong
    fine = np.flatnonzero(~coarse)
    common = S[np.ix_(fine, coarse)].astype(int)
    apart = S[np.ix_(fine, fine)] & (common @ common.T == 0)
    assert apart.any() != second


def test_aggregates_of_strong_connections():
    """Along the strong axis of a grid only: theta leaves out the weak one."""
    S = ls.problems.anisotropic((24, 24), 1e-3, 0.0).to_scipy()
    A = ls.CSR.from_scipy(scipy.sparse.csr_array(S))
    arrays = A.pattern.crow_indices.numpy(), A.pattern.col_indices.numpy(), A.values.numpy()
    of, count = _analysis.aggregate(*arrays, 1, 0.25)
    assert count == 24 * 8  # threes, each on one line
    lines = (of.reshape(24, 24), of.reshape(24, 24).T)
    assert any(all(len(set(row)) == 8 for row in line) for line in lines)
    assert _analysis.aggregate(*arrays, 1, 0.0)[1] < count


def test_elasticity_takes_rigid_body_motions():
    S, motions = pyamg.gallery.linear_elasticity((30, 30), format="bsr")
    A = ls.CSR.from_scipy(scipy.sparse.csr_array(S.tocsr()))
    np.random.seed(0)  # noqa: NPY002
    theirs = iterations(A, pyamg.smoothed_aggregation_solver(S, B=motions, max_coarse=100))
    H = Hierarchy.smoothed_aggregation(A, near_null=torch.from_numpy(motions), block=2)
    assert H.sizes[1] % 3 == 0
    assert abs(iterations(A, H) - theirs) <= 1
    assert iterations(A, Hierarchy.smoothed_aggregation(A)) > 2 * theirs


def test_candidates_are_in_the_range_before_smoothing():
    S, motions = pyamg.gallery.linear_elasticity((9, 9), format="csr")
    A = ls.CSR.from_scipy(scipy.sparse.csr_array(S))
    arrays = A.pattern.crow_indices.numpy(), A.pattern.col_indices.numpy(), A.values.numpy()
    of, count = _analysis.aggregate(*arrays, 2, 0.0)
    T = motions.copy()
    coarse = _analysis.orthonormalize(of, 2, count, T)
    ptr, idx, values = _analysis.smoothed_prolongation(*arrays, of, 2, count, T, 0.0)
    tentative = scipy.sparse.csr_array((values, idx, ptr), shape=(A.shape[0], 3 * count))
    assert np.allclose(tentative @ coarse, motions)
    gram = (tentative.T @ tentative).toarray()
    assert np.allclose(gram, np.diag(np.diag(gram)))
    assert set(np.round(np.diag(gram), 12)) <= {0.0, 1.0}


def test_the_same_bits_for_any_number_of_threads():
    A, found = ls.problems.poisson((300, 300)), []
    threads = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            M = P.AMG(A.to(dtype=torch.float64))
            A.pattern.drop_caches()
            found.append([t for T in (*M.operators, *M.hierarchy.prolongations) for t in _parts(T)])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def _parts(T):
    return T.values, T.pattern.crow_indices, T.pattern.col_indices


def test_a_matrix_without_connections_has_one_level():
    A = 2.0 * ls.ops.eye(300).to(torch.float64)
    assert Hierarchy.smoothed_aggregation(A).sizes == Hierarchy.ruge_stuben(A).sizes == ()
    assert torch.allclose(P.AMG(A)(torch.ones(300, dtype=torch.float64)), torch.full((300,), 0.5).double())


def test_a_matrix_that_is_not_symmetric_has_restrictions_of_its_transpose():
    A = general()
    H = Hierarchy.smoothed_aggregation(A, max_coarse=1)
    assert all(R is not None for R in H.restrictions)
    assert Hierarchy.smoothed_aggregation(A, max_coarse=1, symmetric=True).restrictions == (None,) * len(H)


@pytest.mark.parametrize(
    ("make", "options", "error", "match"),
    [
        (
            Hierarchy.smoothed_aggregation,
            {"near_null": torch.ones(3, 1)},
            ValueError,
            r"near_null must have shape \(16, k\)",
        ),
        (Hierarchy.smoothed_aggregation, {"near_null": np.ones((16, 1))}, TypeError, "got ndarray"),
        (
            Hierarchy.smoothed_aggregation,
            {"near_null": torch.full((16, 1), torch.nan)},
            ValueError,
            "near_null must be finite",
        ),
        (Hierarchy.smoothed_aggregation, {"block": 3}, ValueError, "block must divide A's 16 rows, got 3"),
        (Hierarchy.smoothed_aggregation, {"theta": 1.0}, ValueError, "theta must be at least 0 and less"),
        (Hierarchy.smoothed_aggregation, {"strength": "distance"}, ValueError, "strength must be one of"),
        (
            Hierarchy.smoothed_aggregation,
            {"strength": "evolution", "block": 2},
            ValueError,
            "belong to strength='symmetric'",
        ),
        (Hierarchy.ruge_stuben, {"theta": -0.1}, ValueError, "theta must be at least 0"),
        (Hierarchy.ruge_stuben, {"interpolation": "direct"}, ValueError, "interpolation must be one of"),
        (
            Hierarchy.ruge_stuben,
            {"max_entries": 0, "interpolation": "extended+i"},
            ValueError,
            "max_entries must be at least 1",
        ),
        (Hierarchy.ruge_stuben, {"aggressive": -1}, ValueError, "aggressive must be at least 0"),
        (P.AMG, {"aggressive": 1}, ValueError, "aggressive belongs to method='ruge_stuben', got 1"),
        (P.AMG, {"aggressive": 1, "hierarchy": Hierarchy([])}, ValueError, "aggressive is for making a hi"),
        (Hierarchy.ruge_stuben, {"max_levels": 0}, ValueError, "max_levels must be at least 1"),
        (Hierarchy.ruge_stuben, {"max_entries": 3}, ValueError, "max_entries belongs to interpolation="),
        (
            Hierarchy.smoothed_aggregation,
            {"strength": "evolution", "near_null": torch.eye(16)[:, :2]},
            ValueError,
            "needs a near_null of one vector without zeros, got 2 with 30 zeros",
        ),
    ],
)
def test_errors(make, options, error, match):
    with pytest.raises(error, match=match):
        make(ls.problems.poisson((4, 4)), **options)


def _changed(value):
    A = ls.problems.poisson((6, 6))
    at = A.pattern.diagonal_positions[7].item()
    return A.with_values(A.values.index_fill(0, torch.tensor([at]), value))


@pytest.mark.parametrize(
    "make",
    [Hierarchy.smoothed_aggregation, Hierarchy.ruge_stuben, lambda A, **options: P.AMG(A, **options)],
    ids=["aggregation", "classical", "AMG"],
)
@pytest.mark.parametrize(
    ("matrix", "match"),
    [
        (lambda: ls.CSR.from_dense(torch.ones(30, 40)), "must be square, got shape"),
        (lambda: _changed(0.0), "must not have zeros on its diagonal, row 7 has one"),
        (lambda: _changed(float("nan")), "values must be finite, got nan in row 7"),
        (
            lambda: ls.CSR.from_dense(torch.ones(9, 9) - torch.eye(9)),
            "must have an entry on its diagonal in every row, row 0 has none",
        ),
    ],
)
def test_matrices_that_cannot_be_coarsened(make, matrix, match):
    with pytest.raises(ValueError, match=match):
        make(matrix(), max_coarse=4)
