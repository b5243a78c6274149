"""AMG and how Hierarchy coarsens: dense formulas, pyamg, theory, elasticity, gradients, options."""

from types import SimpleNamespace

import numpy as np
import pyamg
import pytest
import scipy.sparse
import torch
from preconditioners.cases import dense, general, spd
from reference import normal

import learnsolve as ls
from learnsolve import _analysis
from learnsolve.matrix import device_analysis
from learnsolve.preconditioners import amg

P = ls.preconditioners
POISSON = pyamg.gallery.poisson((100, 100), format="csr")
STENCIL = pyamg.gallery.diffusion_stencil_2d(epsilon=0.01, theta=np.pi / 6, type="FE")
ANISOTROPIC = pyamg.gallery.stencil_grid(STENCIL, (60, 60), format="csr")
MATRICES = {
    "poisson": POISSON,
    "anisotropic": ANISOTROPIC,
    "airfoil": pyamg.gallery.load_example("airfoil")["A"].tocsr(),
    "bar": pyamg.gallery.load_example("bar")["A"].tocsr(),
}
METHODS = {"smoothed_aggregation": pyamg.smoothed_aggregation_solver, "ruge_stuben": pyamg.ruge_stuben_solver}
JACOBI = ("jacobi", {"omega": 4 / 3, "withrho": True})


SMOOTHERS = {"jacobi": JACOBI, "gauss_seidel": ("gauss_seidel", {"sweep": "symmetric"})}


def theirs(S, method="smoothed_aggregation", smoother="jacobi"):
    np.random.seed(0)  # noqa: NPY002  pyamg starts its eigenvalue estimates with it
    its = SMOOTHERS[smoother]
    return METHODS[method](S, presmoother=its, postsmoother=its, max_coarse=10)


# --- the cycle by its definition, with dense matrices ---


def dense_smoother(D, name, radius):
    """S."""
    n = len(D)
    diagonal = np.diag(np.diag(D))
    inverse = np.linalg.inv(diagonal)
    if name == "jacobi":
        return 4 / (3 * radius) * inverse
    if name == "chebyshev":  # the polynomial with roots at Chebyshev's points and value 1 at zero
        low, high = radius / 30, 1.1 * radius
        roots = (high + low) / 2 + (high - low) / 2 * np.cos(np.pi * (np.arange(3) + 0.5) / 3)
        error = np.eye(n)
        for root in roots:
            error = error @ (np.eye(n) - inverse @ D / root)
        return (np.eye(n) - error) @ np.linalg.inv(D)
    order = np.arange(n)
    if name == "by colors" or device_analysis.here(torch.empty(0)):
        order = ls.ordering.greedy_coloring(ls.CSR.from_dense(torch.from_numpy(D))).colors.numpy()
    lower = np.where(order[:, None] > order[None, :], D, 0)
    upper = np.where(order[:, None] < order[None, :], D, 0)
    return np.linalg.inv(diagonal + upper) @ diagonal @ np.linalg.inv(diagonal + lower)


def dense_cycle(D, hierarchy, name, sweeps, cycle, level=0):
    """M with I - M A the error propagator of one cycle."""
    if level == len(hierarchy):
        return np.linalg.inv(D)
    prolong = hierarchy.prolongations[level].to_dense().numpy()
    R = hierarchy.restrictions[level]
    restrict = prolong.T if R is None else R.to_dense().numpy()
    coarse, I = restrict @ D @ prolong, np.eye(len(D))  # noqa: E741
    error = np.eye(len(coarse))
    for kind in {"V": "V", "W": "WW", "F": "FV"}[cycle]:
        B = dense_cycle(coarse, hierarchy, name, sweeps, kind, level + 1)
        error = (np.eye(len(coarse)) - B @ coarse) @ error
    correction = (np.eye(len(coarse)) - error) @ np.linalg.inv(coarse)
    smoothing = I - dense_smoother(D, name, hierarchy.radii[level]) @ D
    E = np.linalg.matrix_power(smoothing, sweeps[0])
    E = np.linalg.matrix_power(smoothing, sweeps[1]) @ (I - prolong @ correction @ restrict @ D) @ E
    return (I - E) @ np.linalg.inv(D)


@pytest.mark.parametrize("smoother", ["jacobi", "chebyshev", "gauss_seidel"])
@pytest.mark.parametrize("cycle", ["V", "W", "F"])
@pytest.mark.parametrize("make", [spd, general])
def test_the_cycle_is_its_formula(smoother, cycle, make):
    A = make()
    H = P.AMG(A, method="ruge_stuben", max_coarse=1, smoother="jacobi").hierarchy  # with radii
    if make is general:
        H = P.Hierarchy(H.prolongations, [(2 * Q).T for Q in H.prolongations], H.radii)
    assert len(H) >= 3
    for sweeps in ((1, 1), (2, 1), (0, 2)):
        M = P.AMG(A, hierarchy=H, cycle=cycle, smoother=smoother, presweeps=sweeps[0], postsweeps=sweeps[1])
        D = dense_cycle(A.to_dense().numpy(), H, smoother, sweeps, cycle)
        assert np.allclose(dense(M), D, rtol=1e-10, atol=1e-12)
        assert np.allclose(dense(M.T), D.T, rtol=1e-10, atol=1e-12)
        assert M.symmetric == np.allclose(D, D.T, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("make", [spd, general])
def test_gauss_seidel_by_colors_as_on_a_device(make, monkeypatch):
    monkeypatch.setattr(amg, "device_analysis", SimpleNamespace(here=lambda _: True))
    A = make()
    H = P.AMG(A, method="ruge_stuben", max_coarse=1, smoother="jacobi").hierarchy
    M = P.AMG(A, hierarchy=H, smoother="gauss_seidel", presweeps=2)
    D = dense_cycle(A.to_dense().numpy(), H, "by colors", (2, 1), "V")
    assert np.allclose(dense(M), D, rtol=1e-10, atol=1e-12)
    assert np.allclose(dense(M.T), D.T, rtol=1e-10, atol=1e-12)


# --- pyamg ---


@pytest.mark.parametrize("smoother", SMOOTHERS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("cycle", ["V", "W", "F"])
@pytest.mark.parametrize("name", MATRICES)
def test_one_application_is_that_of_pyamg(smoother, method, cycle, name):
    S = MATRICES[name]
    solver = theirs(S, method, smoother)
    if smoother == "gauss_seidel" and device_analysis.here(torch.empty(0)):
        pytest.skip("pyamg has no sweep by colors")
    M = P.AMG(ls.CSR.from_scipy(S), hierarchy=solver, cycle=cycle, smoother=smoother)
    r = normal((S.shape[0],))
    expected = solver.aspreconditioner(cycle=cycle) @ r.numpy()
    assert len(M.hierarchy) >= 2
    assert abs(M(r).numpy() - expected).max() <= 1e-12 * abs(expected).max()


# --- theory ---


@pytest.mark.parametrize(("method", "spread"), [("smoothed_aggregation", 5), ("ruge_stuben", 2)])
def test_iterations_do_not_grow_with_the_grid(method, spread):
    counts = []
    for side in (32, 64, 128, 256):
        A = ls.problems.poisson((side, side))
        b = torch.ones(side * side, dtype=torch.float64)
        counts.append(ls.solvers.cg(A, b, M=P.AMG(A, method=method), rtol=1e-8).iterations)
    assert max(counts) <= 18
    assert max(counts) - min(counts) <= spread


def test_a_v_cycle_of_the_textbook_contracts_by_a_tenth_or_better():
    # Linear interpolation, injection's Galerkin operators, two sweeps of weight 2/3 on each side in 1D.
    n, prolongations = 127, []
    A = ls.problems.poisson((n,))
    while n > 1:
        m = n // 2
        rows = np.concatenate([2 * np.arange(m), 2 * np.arange(m) + 1, 2 * np.arange(m) + 2])
        S = scipy.sparse.coo_array((np.repeat((0.5, 1.0, 0.5), m), (rows, np.tile(np.arange(m), 3))), (n, m))
        prolongations.append(ls.CSR.from_scipy(S))
        n = m
    M = P.AMG(A, hierarchy=P.Hierarchy(prolongations), weight=2 / 3, presweeps=2, postsweeps=2)
    E = torch.eye(127, dtype=torch.float64) - dense(M) @ A.to_dense()
    assert torch.linalg.eigvals(E).abs().max() < 0.1


def test_the_spectral_radius_is_that_of_the_matrix():
    A = spd(8)
    D = torch.diag(1 / A.diagonal()) @ A.to_dense()
    exact = float(torch.linalg.eigvals(D).abs().max())
    assert abs(P.AMG(A, max_coarse=3, smoother="jacobi").hierarchy.radii[0] - exact) <= 0.02 * exact


# --- singular coarse matrices, large ones, batches ---


def neumann(n=30):
    S = scipy.sparse.diags_array([-np.ones(n - 1), np.full(n, 2.0), -np.ones(n - 1)], offsets=[-1, 0, 1])
    D = S.toarray()
    D[0, 0] = D[-1, -1] = 1
    return ls.CSR.from_dense(torch.from_numpy(D))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_pure_neumann(dtype):
    A = neumann().to(dtype=dtype)
    with pytest.raises(ValueError, match=r'AMG: the coarsest matrix, .* singular .*Use coarse_solver="pinv"'):
        P.AMG(A, max_coarse=5, coarse_solver="lu")
    M = P.AMG(A, max_coarse=5)
    assert torch.equal(dense(M), dense(P.AMG(A, max_coarse=5, coarse_solver="pinv")))
    b = normal((30,), dtype)
    solution = ls.solvers.cg(A, b - b.mean(), M=M, rtol=1e-10 if dtype == torch.float64 else 1e-4)
    assert solution.converged
    assert solution.iterations <= 15


def test_a_large_coarsest_level_is_solved_sparsely():
    A = ls.problems.poisson((40, 40))
    M = P.AMG(A, max_coarse=2000)
    assert len(M.hierarchy) == 0
    b = normal((1600,)).requires_grad_()
    assert torch.allclose(A @ M(b), b)
    (g,) = torch.autograd.grad(M(b)[0], b)
    assert torch.allclose((A @ g)[:3], torch.tensor([1.0, 0, 0], dtype=torch.float64), atol=1e-10)
    S = A.to_scipy()
    singular = ls.CSR.from_scipy(S - scipy.sparse.diags_array(S.sum(1)))
    with pytest.raises(ValueError, match="AMG: the coarsest matrix, 1600 x 1600"):
        P.AMG(singular, max_coarse=2000, coarse_solver="lu")
    large = ls.CSR.from_scipy(scipy.sparse.kron(scipy.sparse.eye_array(70), neumann().to_scipy()))
    with pytest.raises(
        ValueError, match=r"2100 x 2100.*\(for at most 2000 unknowns\), coarsen further, or fix"
    ):
        P.AMG(large, max_coarse=3000)


def test_the_pseudo_inverse_is_chosen_only_for_a_singular_coarsest_matrix():
    A = ls.problems.poisson((20, 20))
    assert torch.equal(dense(P.AMG(A)), dense(P.AMG(A, coarse_solver="lu")))
    uncoupled = P.AMG(2.0 * ls.ops.eye(200).to(torch.float64))  # its coarsest matrix is zero
    assert uncoupled(torch.ones(200, dtype=torch.float64)).isfinite().all()
    A = neumann()
    v = torch.stack((A.values, (A + ls.ops.eye(30).to(A.dtype)).values))
    B, r = A.with_values(v), torch.ones(30, 1, dtype=A.dtype)  # one of two is singular
    pinv = P.AMG(B, max_coarse=5, coarse_solver="pinv")
    assert torch.allclose(P.AMG(B, max_coarse=5)(r), pinv(r), rtol=1e-12)


def test_a_matrix_with_large_rounding_errors_is_symmetric():
    """Of a discontinuous Galerkin method: entries that mirror one another differ by 246 eps."""
    S = pytest.importorskip("pyamg").gallery.load_example("local_disc_galerkin_diffusion")["A"].tocsr()
    A = ls.CSR.from_scipy(S)
    assert A.is_symmetric()
    assert ls.solvers.cg(A, torch.ones(966, dtype=torch.float64), M=ls.preconditioners.AMG(A)).converged
    rough = A.with_values(A.values * (1 + 1e-9 * torch.rand(A.nnz, dtype=torch.float64)))
    b, M = torch.ones(966, dtype=torch.float64), ls.preconditioners.AMG(rough)
    with pytest.raises(ValueError, match=r"cg: .*AMG is not symmetric\. .*, AMG\(A, symmetric=True\)$"):
        ls.solvers.cg(rough, b, M=M)
    solution = ls.solvers.cg(rough, b, M=ls.preconditioners.AMG(rough, symmetric=True))
    assert solution.converged
    assert solution.iterations < 60


def test_an_empty_batch_of_matrices_without_rows():
    nothing = ls.CSR.from_dense(torch.zeros(0, 0)).pattern
    for batch in ((), (3,), (2, 3)):
        M = ls.preconditioners.AMG(ls.CSR(torch.zeros(*batch, 0, dtype=torch.float64), nothing))
        assert M(torch.zeros(*batch, 0, 2, dtype=torch.float64)).shape == (*batch, 0, 2)


def test_a_batch_takes_the_hierarchy_of_the_mean():
    A = spd()
    values = torch.stack((A.values, 3 * A.values))
    M = P.AMG(A.with_values(values), max_coarse=3)
    H = P.AMG(2.0 * A, max_coarse=3).hierarchy
    for Q, W in zip(M.hierarchy.prolongations, H.prolongations, strict=True):
        assert torch.allclose(Q.values, W.values)
    assert torch.allclose(M(torch.ones(20, 1, dtype=A.dtype))[0], 3 * M(torch.ones(20, 1, dtype=A.dtype))[1])


@pytest.mark.parametrize(
    ("learn", "count"), [(("prolongations",), 2), (("weights",), 2), (("restrictions",), 2), (None, 4)]
)
def test_what_learns(learn, count):
    M = P.Trainable(P.AMG(spd(), max_coarse=1, smoother="jacobi"), learn=learn)
    assert len(list(M.parameters())) == count
    learned = {name.split(".")[0] for name in M.state_dict()}
    assert learned == set(learn or ("prolongations", "weights"))
    assert torch.allclose(M(torch.ones(20, dtype=M.dtype)), M.M(torch.ones(20, dtype=M.dtype)))


def test_a_hierarchy_is_not_made_inside_of_vmap():
    A = spd()
    values = torch.stack((A.values, 2 * A.values))
    with pytest.raises(ValueError, match=r"inside torch.func.vmap .* hierarchy=M.hierarchy"):
        torch.vmap(lambda v: P.AMG(A.with_values(v), max_coarse=3))(values)


# --- how `Hierarchy` coarsens ---


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


SA, RS = Hierarchy.smoothed_aggregation, Hierarchy.ruge_stuben


@pytest.mark.parametrize(
    ("make", "options", "match"),
    [
        (SA, {"near_null": torch.ones(3, 1)}, r"near_null must have shape \(16, k\)"),
        (SA, {"near_null": torch.full((16, 1), torch.nan)}, "near_null must be finite"),
        (SA, {"strength": "evolution", "block": 2}, "block is only used by strength='symmetric'"),
        (SA, {"block": 3}, "block must divide A's 16 rows, got 3"),
        (SA, {"theta": 1.0}, "theta must lie in 0 <= theta < 1, got 1"),
        (SA, {"strength": "evolution", "near_null": torch.eye(16)[:, :2]}, "one vector .*, got 2 with 30 ze"),
        (RS, {"max_entries": 0, "interpolation": "extended+i"}, "max_entries must be at least 1"),
        (RS, {"max_levels": 0}, "max_levels must be at least 1"),
        (RS, {"max_entries": 3}, "max_entries is only used by interpolation="),
        (P.AMG, {"aggressive": 1}, "aggressive is only used by method='ruge_stuben', got 1"),
        (P.AMG, {"aggressive": 1, "hierarchy": Hierarchy([])}, "aggressive is for making a hi"),
    ],
)
def test_errors(make, options, match):
    with pytest.raises(ValueError, match=match):
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
