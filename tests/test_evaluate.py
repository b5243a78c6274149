"""`evaluate`: counts against SciPy's, solvers, systems and preconditioners in every form."""

import functools
import math
import sys
import time
import warnings

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg as spla
import torch
from evaluated import F64, MATRICES, Jacobi, stretched
from solvers.krylov import convection

import learnsolve as ls


def scipy_count(S, b, M, rtol) -> int:
    count = 0

    def callback(_):
        nonlocal count
        count += 1

    _, info = spla.cg(S, b, rtol=rtol, M=M, callback=callback, maxiter=10 * len(b))
    assert info == 0
    return count


@pytest.mark.parametrize("name", MATRICES)
def test_iterations_are_those_of_scipy(name):
    A = MATRICES[name]()
    S = A.to_scipy()
    b = torch.randn(S.shape[0], dtype=F64)
    result = ls.evaluate(A, b, {"none": None, "Jacobi": Jacobi}, repeats=1)
    D = scipy.sparse.diags_array(1 / S.diagonal())
    for row in result.rows:
        M = None if row.preconditioner == "none" else D
        assert row.converged == 1
        assert row.iterations.mean <= len(b) + 1
        assert abs(row.iterations.mean - scipy_count(S, b.numpy(), M, row.rtol)) <= 1, row


def test_one_run_gives_the_iterations_of_all_tolerances():
    A, b = MATRICES["poisson 2D"](), torch.randn(625, dtype=F64)
    rtol = (1e-2, 1e-5, 1e-8)
    result = ls.evaluate(A, b, {"none": None}, rtol=rtol, repeats=1)
    for row, tol in zip(result.rows, rtol, strict=True):
        assert row.rtol == tol
        assert row.iterations.mean == ls.solvers.cg(A, b, rtol=tol).iterations
        assert row.seconds.mean > 0
    (history,) = result.histories["none"]
    torch.testing.assert_close(history, ls.solvers.cg(A, b, rtol=1e-8).residual_norms / b.norm())


@pytest.mark.parametrize("solver", ["cg", "fcg", "minres", "bicgstab", "gmres", "fgmres"])
def test_every_solver(solver):
    A = MATRICES["poisson 2D"]() if solver in ("cg", "fcg", "minres") else convection(8, 8)
    result = ls.evaluate(A, torch.ones(A.shape[0], dtype=F64), {"J": Jacobi}, solver=solver, repeats=1)
    assert result.solver == solver
    assert [row.converged for row in result.rows] == [1, 1, 1]


def test_a_solver_of_ones_own_is_given_the_keywords():
    seen = []

    def solve(A, b, *, rtol, maxiter, M):
        seen.append((rtol, maxiter, M))
        return ls.solvers.cg(A, b, rtol=rtol, maxiter=maxiter, M=M)

    A = MATRICES["poisson 1D"]()
    result = ls.evaluate(
        A, torch.ones(60, dtype=F64), {"x": None}, rtol=1e-6, solver=solve, maxiter=77, repeats=1
    )
    assert result.solver == "solve"
    assert set(seen) == {(1e-6, 77, None)}
    restarted = functools.partial(ls.solvers.gmres, restart=60)
    both = [
        ls.evaluate(A, torch.randn(60, dtype=F64), {"x": None}, rtol=1e-6, solver=s, repeats=1)
        for s in ("gmres", restarted)
    ]
    assert both[0].rows[0].iterations.mean > both[1].rows[0].iterations.mean


def test_systems_in_every_form():
    A = MATRICES["poisson 1D"]()
    B = torch.randn(60, 4, dtype=F64)
    counts = [ls.solvers.cg(A, c, rtol=1e-6).iterations for c in B.mT]
    values = torch.stack((A.values, 2 * A.values, A.values + A.values.abs()))
    evaluate = functools.partial(ls.evaluate, preconditioners={"x": None}, rtol=1e-6, repeats=1)
    row = evaluate(A, B).rows[0]
    assert (row.systems, row.converged) == (4, 4)
    assert row.iterations.mean == pytest.approx(np.mean(counts))
    assert row.iterations.std == pytest.approx(np.std(counts))
    assert (row.iterations.min, row.iterations.max) == (min(counts), max(counts))
    assert evaluate(A, B.expand(2, 60, 4)).rows[0].systems == 8
    assert evaluate(A.with_values(values), B).rows[0].systems == 12
    assert evaluate(A.with_values(values), torch.randn(3, 60, 2, dtype=F64)).rows[0].systems == 6
    other = MATRICES["stretched"]()
    assert evaluate([A, other], [B, torch.ones(80, dtype=F64)]).rows[0].systems == 5


def test_factories_are_called_for_each_matrix_and_timed():
    matrices = [stretched(40, seed=i) for i in range(3)]
    made = []

    def make(A):
        made.append(A.nnz)
        return Jacobi(A)

    b = [torch.ones(40, 2, dtype=F64)] * 3
    result = ls.evaluate(
        matrices, b, {"f": make, "one": Jacobi(matrices[0]), "M": lambda A: lambda r: r}, repeats=2, rtol=1e-6
    )
    assert made == [A.nnz for A in matrices for _ in range(3)]
    f, one, _ = result.rows
    assert f.setup.mean > 0
    assert f.first_setup.mean > 0
    assert math.isnan(one.setup.mean)
    assert f.iterations.mean < one.iterations.mean


def test_each_row_says_what_ran_its_solves():
    A, P = MATRICES["poisson 2D"](), ls.preconditioners
    b = torch.ones(A.shape[0], dtype=F64)
    given = {"none": None, "SSOR": lambda A: P.SSOR(A, 1.6), "AMG": P.AMG, "f": lambda A: lambda r: r}
    evaluate = functools.partial(ls.evaluate, rtol=1e-6, repeats=1)
    rows = evaluate(A, b, given).rows
    assert [row.execution for row in rows] == ["compiled"] * 2 + ["compiled, Python preconditioner"] * 2
    for solver, execution in (("gmres", "compiled, Python preconditioner"), ("bicgstab", "eager")):
        rows = evaluate(A, b, given, solver=solver).rows
        assert [row.execution for row in rows] == ["compiled"] + [execution] * 3
    called = lambda A, b, **how: ls.solvers.cg(A, b, callback=lambda _: None, **how)  # noqa: E731
    assert {row.execution for row in evaluate(A, b, given, solver=called).rows} == {"eager"}
    huge = A.with_values(A.values * 2.0**200)  # in units, in which M is called between the steps
    row = evaluate([A, huge], [b, b], {"J": Jacobi}).rows[0]
    assert row.execution == "compiled or compiled, Python preconditioner"


def test_what_cg_computes_of_a_preconditioner_once_is_set_up():
    class Counted(ls.preconditioners.SSOR):
        computed = 0

        def _cholesky(self):
            Counted.computed += 1
            return super()._cholesky()

    A = MATRICES["poisson 1D"]()
    b = torch.ones(60, 5, dtype=F64)
    ls.evaluate(A, b, {"S": Counted}, repeats=2)
    assert Counted.computed == 3  # one a set-up
    ls.evaluate(A, b, {"S": Counted}, solver="minres", repeats=2)
    assert Counted.computed == 3


def test_a_network_that_makes_preconditioners_of_a_data_set():
    """Without gradient; what its first call does once (it is a fifth of a second here) is not in `setup`."""
    samples = list(ls.problems.dataset("q1_diffusion", "test", 5, boundary="dirichlet"))
    network, recorded = torch.nn.Linear(1, 1).double(), []

    def make(A):
        if not recorded:
            time.sleep(0.2)
        weight = 1 + network(A.diagonal().unsqueeze(-1)).squeeze(-1).square()
        recorded.append(weight.requires_grad)
        return lambda r: r * weight / A.diagonal()

    A, b = [s.A for s in samples], [s.b for s in samples]
    (row,) = ls.evaluate(A, b, {"network": make}, rtol=1e-3, repeats=2).rows
    assert recorded == [False] * 15
    assert (row.systems, row.converged, row.execution) == (5, 5, "compiled, Python preconditioner")
    assert row.first_setup.max >= 0.2
    assert row.setup.mean < row.first_setup.mean
    solve = functools.partial(ls.solvers.cg, rtol=1e-3)
    with torch.no_grad():
        counts = [solve(a, c, M=make(a)).iterations for a, c in zip(A, b, strict=True)]
    assert row.iterations == (np.mean(counts), pytest.approx(np.std(counts)), min(counts), max(counts))


def test_nothing_learns():
    A = MATRICES["poisson 1D"]().requires_grad_()
    result = ls.evaluate(A, torch.ones(60, dtype=F64, requires_grad=True), {"J": Jacobi}, repeats=1)
    assert not result.histories["J"][0].requires_grad


def test_a_right_hand_side_of_zero():
    A = MATRICES["poisson 1D"]()
    row = ls.evaluate(A, torch.zeros(60, dtype=F64), {"x": None}, repeats=1).rows[0]
    assert (row.converged, row.iterations.mean) == (1, 0)


@pytest.mark.parametrize(
    ("dtype", "sizes"),
    [(F64, (2.0**665, 2.0**-665, 2.0**1000)), (torch.float32, (2.0**83, 2.0**-100, 2.0**120))],
    ids=str,
)
def test_the_size_of_b_does_not_matter(dtype, sizes):
    A = ls.problems.poisson((10, 10)).to(dtype)
    b = torch.ones(100, dtype=dtype)
    evaluate = functools.partial(ls.evaluate, preconditioners={"n": None}, rtol=(1e-2, 1e-4), repeats=1)
    ordinary = evaluate(A, b)
    for size in sizes:
        found = evaluate(A, b * size)
        for row, expected in zip(found.rows, ordinary.rows, strict=True):
            assert (row.converged, row.failures) == (1, {})
            assert row.iterations == expected.iterations
        torch.testing.assert_close(found.histories["n"][0], ordinary.histories["n"][0], rtol=1e-6, atol=0)


def test_whoever_converged_by_the_solver_has_converged():
    """Also where norms of float32 and of float64 fall on two sides of the tolerance."""
    A = ls.problems.poisson((10, 10)).to(torch.float32)
    B = torch.randn(100, 40)
    exact = [ls.solvers.cg(A, b, rtol=1e-3) for b in B.mT]
    # Tolerances at which a system arrives exactly.
    for b, solution in zip(B.mT[:20], exact, strict=False):
        rtol = float((solution.residual_norms[-1] / b.norm()).double())
        for t in (rtol, np.nextafter(rtol, 0), np.nextafter(rtol, 1)):
            (row,) = ls.evaluate(A, b, {"n": None}, rtol=t, repeats=1).rows
            theirs = ls.solvers.cg(A, b, rtol=t)
            assert row.converged == theirs.converged
            assert row.iterations.mean == theirs.iterations
            assert "CONVERGED" not in row.failures


def test_the_median_of_two_is_their_mean(monkeypatch):
    module = sys.modules["learnsolve.evaluation.evaluate"]
    took = iter([1.0, 3.0, 7.0, 2.0, 4.0])
    monkeypatch.setattr(module, "timed", lambda f, devices: (next(took), f()))
    (row,) = ls.evaluate(
        MATRICES["poisson 1D"](), torch.ones(60, dtype=F64), {"J": Jacobi}, rtol=1e-3, repeats=2
    ).rows
    assert (row.first_setup.mean, row.setup.mean, row.seconds.mean) == (1.0, 5.0, 3.0)


def test_a_factory_that_returns_a_matrix_is_one():
    A = MATRICES["poisson 1D"]()
    inverse = lambda A: ls.ops.diag(1 / A.diagonal())  # noqa: E731
    (row,) = ls.evaluate(A, torch.ones(60, dtype=F64), {"D": inverse}, rtol=1e-3, repeats=1).rows
    assert row.converged == 1


def test_tolerances_may_be_tensors():
    A, b = MATRICES["poisson 1D"](), torch.ones(60, dtype=F64)
    for rtol in (torch.tensor(0.25), torch.tensor([0.25]), np.array(0.25), np.float32(0.25)):
        assert ls.evaluate(A, b, {"n": None}, rtol=rtol, repeats=1).rows[0].rtol == 0.25


def test_stencil_operators():
    laplacian = torch.tensor([[0.0, -1, 0], [-1, 4, -1], [0, -1, 0]], dtype=F64)
    A, b = ls.ops.StencilOperator(laplacian, (9, 10)), torch.randn(90, 2, dtype=F64)
    P = {"none": None, "D": lambda A: lambda r: r / A.coefficients.amax()}
    evaluate = functools.partial(ls.evaluate, preconditioners=P, rtol=1e-6, repeats=1)
    found, expected = evaluate(A, b), ls.evaluate(A.to_csr(), b, {"none": None}, rtol=1e-6, repeats=1)
    assert [row.iterations for row in found.rows] == [expected.rows[0].iterations] * 2
    assert evaluate([A, A.to_csr()], [b, b], preconditioners={"none": None}).rows[0].converged == 4
    batch = A.with_coefficients(torch.stack((A.coefficients, 2 * A.coefficients)))
    assert evaluate(batch, b).rows[0].converged == 4


def test_evaluate_leaves_the_filters_of_warnings_alone():
    """They are those of all threads, and Python shows again what it has shown once after a change."""
    A, b = ls.problems.poisson((8, 8)), torch.ones(64, dtype=torch.float64)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(2):
            ls.solvers.cg(A, b, maxiter=1)
            ls.evaluate(A, b, {"n": None}, maxiter=1)
    assert len(seen) == 1


def test_what_does_not_converge_is_in_the_report_alone():
    A = ls.problems.poisson((8, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = ls.evaluate(A, torch.ones(64, dtype=torch.float64), {"n": None}, maxiter=2)
    assert not any(row.converged for row in report.rows)
