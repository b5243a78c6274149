"""`evaluate`: counts against SciPy's, failures by name, the table, the files, the figure."""

import csv
import functools
import json
import math
import sys

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg as spla
import torch
from solvers.krylov import convection

import learnsolve as ls

F64 = torch.float64
Jacobi = ls.preconditioners.Jacobi


def stretched(n: int = 80, seed: int = 0) -> ls.CSR:
    """Positive definite, its rows and columns scaled at random: Jacobi has something to do. Not so much that
    cg needs more than n iterations: then rounding, which differs between libraries, decides on their number.
    """
    rng = np.random.default_rng(seed)
    S = scipy.sparse.random_array((n, n), density=0.05, rng=rng)
    S = S + S.T + scipy.sparse.diags_array(np.asarray(abs(S + S.T).sum(axis=1)) + 0.1)
    d = scipy.sparse.diags_array(10 ** rng.uniform(-0.3, 0.3, n))
    return ls.CSR.from_scipy(scipy.sparse.csr_array(d @ S @ d))


MATRICES = {
    "poisson 1D": lambda: ls.problems.poisson((60,)),
    "poisson 2D": lambda: ls.problems.poisson((25, 25)),
    "poisson 3D": lambda: ls.problems.poisson((9, 9, 9)),
    "q1": lambda: ls.problems.poisson((20, 20), stencil="q1"),
    "anisotropic": lambda: ls.problems.anisotropic((20, 20), 0.05, 0.4),
    "diffusion": lambda: ls.problems.diffusion(
        10 ** torch.linspace(-1, 1, 400, dtype=F64).reshape(20, 20).sin()
    ),
    "stretched": stretched,
    "other": lambda: stretched(150, seed=1),
}


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
    result = ls.evaluate(A, b, {"none": None, "Jacobi": Jacobi}, repeats=0)
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
        ls.evaluate(A, torch.randn(60, dtype=F64), {"x": None}, rtol=1e-6, solver=s, repeats=0)
        for s in ("gmres", restarted)
    ]
    assert both[0].rows[0].iterations.mean > both[1].rows[0].iterations.mean


def test_systems_in_every_form():
    A = MATRICES["poisson 1D"]()
    B = torch.randn(60, 4, dtype=F64)
    counts = [ls.solvers.cg(A, c, rtol=1e-6).iterations for c in B.mT]
    values = torch.stack((A.values, 2 * A.values, A.values + A.values.abs()))
    evaluate = functools.partial(ls.evaluate, preconditioners={"x": None}, rtol=1e-6, repeats=0)
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


def test_failures_have_names():
    A = MATRICES["poisson 2D"]()
    D = torch.ones(625, dtype=F64)
    D[3] = -1
    zero = ls.CSR.from_dense(torch.zeros(625, 625, dtype=F64))
    P = {
        "none": None,
        "indefinite": lambda A: lambda r: D * r,
        "NaN": lambda A: lambda r: r * torch.nan,
        "zero": zero,
    }
    result = ls.evaluate(A, torch.randn(625, 2, dtype=F64), P, rtol=(1e-1, 1e-9), maxiter=30, repeats=1)
    found = {(row.preconditioner, row.rtol): (row.converged, row.failures) for row in result.rows}
    assert found["none", 1e-1] == (2, {})
    assert found["none", 1e-9] == (0, {"MAX_ITERATIONS": 2})
    assert found["indefinite", 1e-9] == (0, {"INDEFINITE": 2})
    assert found["NaN", 1e-9] == (0, {"NON_FINITE": 2})
    assert found["zero", 1e-9] == (0, {"INDEFINITE": 2})
    failed = result.rows[1]
    assert math.isnan(failed.seconds.mean)
    assert "2 MAX_ITERATIONS" in str(result)


class Skew(ls.preconditioners.Preconditioner):
    """Not symmetric, and says so."""

    def __init__(self, A):
        self.shape, self.made_of = A.shape, (A.values,)

    def _columns(self, R):
        return R


def test_a_refused_preconditioner_is_named():
    A, b = MATRICES["poisson 1D"](), torch.ones(60, dtype=F64)
    P = {"fine": Jacobi, "skew": Skew}
    with pytest.raises(ValueError, match="evaluate: preconditioner 'skew': cg: needs a linear, symmetric M"):
        ls.evaluate(A, b, P, repeats=0)
    result = ls.evaluate(A, b, P, repeats=0, on_error="row", rtol=1e-6)
    fine, skew = result.rows
    assert fine.converged == 1
    assert not fine.message
    assert (skew.converged, skew.failures) == (0, {})
    assert skew.message.startswith("cg: needs a linear, symmetric M")
    assert skew.message in str(result)


@pytest.fixture
def small() -> ls.Evaluation:
    A = MATRICES["poisson 2D"]()
    return ls.evaluate(
        A,
        torch.randn(625, 3, dtype=F64),
        {"none": None, "Jacobi": Jacobi, "bad": Skew},
        repeats=1,
        on_error="row",
    )


def test_the_table_is_aligned(small):
    lines = str(small).splitlines()
    assert len(lines) == 2 + 9
    at = lines[0].index("converged") + len("converged")
    assert all(line[at - 3 : at + 1].rstrip() in ("3/3", "0/3") for line in lines[2:])


def test_files(small, tmp_path):
    small.to_csv(tmp_path / "a.csv")
    with (tmp_path / "a.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 9
    assert float(rows[0]["iterations_mean"]) == small.rows[0].iterations.mean
    assert rows[0]["setup_mean"] == ""
    small.to_json(tmp_path / "a.json")
    text = (tmp_path / "a.json").read_text()
    assert "NaN" not in text
    content = json.loads(text)
    assert content["solver"] == "cg"
    assert content["rows"][0]["iterations"]["max"] == small.rows[0].iterations.max
    assert content["rows"][0]["setup"]["mean"] is None
    assert content["histories"]["none"][0] == small.histories["none"][0].tolist()


def test_figure(small, tmp_path):
    pytest.importorskip("matplotlib")
    figure = small.plot(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    (axes,) = figure.axes
    assert axes.get_xlabel() == "iterations"
    assert "relative" in axes.get_ylabel()
    lines = [line for line in axes.get_lines() if not line.get_label().startswith("_")]
    assert [line.get_label() for line in lines] == ["none", "Jacobi"]
    assert lines[0].get_color() != lines[1].get_color()
    assert lines[0].get_ydata()[0] == pytest.approx(1)


def test_the_figure_names_the_extra(small, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'learnsolve\[train\]'"):
        small.plot()


def test_nothing_learns():
    A = MATRICES["poisson 1D"]().requires_grad_()
    result = ls.evaluate(A, torch.ones(60, dtype=F64, requires_grad=True), {"J": Jacobi}, repeats=1)
    assert not result.histories["J"][0].requires_grad


def test_a_right_hand_side_of_zero():
    A = MATRICES["poisson 1D"]()
    row = ls.evaluate(A, torch.zeros(60, dtype=F64), {"x": None}, repeats=1).rows[0]
    assert (row.converged, row.iterations.mean) == (1, 0)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"solver": "lsqr"}, ValueError, "solver must be one of"),
        ({"solver": 3}, TypeError, "solver must be a name or a callable"),
        ({"rtol": ()}, ValueError, "rtol must be a tolerance or several"),
        ({"rtol": (-1.0,)}, ValueError, "rtol must not be negative"),
        ({"repeats": -1}, ValueError, "repeats must be at least 0"),
        ({"maxiter": -1}, ValueError, "maxiter must be at least 0"),
        ({"on_error": "warn"}, ValueError, "on_error must be one of"),
        ({"preconditioners": [None]}, TypeError, "preconditioners must be a dict"),
        ({"preconditioners": {"x": 3}}, TypeError, "preconditioner 'x': must be None, a preconditioner, or"),
        ({"b": torch.ones(3, dtype=F64)}, ValueError, "b must have A.shape"),
        ({"b": torch.ones(60)}, TypeError, "b has dtype"),
        ({"A": []}, TypeError, "sequences of them"),
        ({"A": [], "b": []}, ValueError, "one b for each A"),
        ({"A": [3], "b": [3]}, TypeError, "A must hold CSRs"),
    ],
)
def test_errors(change, error, match):
    arguments = {
        "A": MATRICES["poisson 1D"](),
        "b": torch.ones(60, dtype=F64),
        "preconditioners": {"x": None},
        "repeats": 0,
    }
    with pytest.raises(error, match=match):
        ls.evaluate(**(arguments | change))


def test_a_preconditioner_of_a_batch_needs_its_factory():
    A = MATRICES["poisson 1D"]()
    batch = A.with_values(torch.stack((A.values, 2 * A.values)))
    with pytest.raises(ValueError, match="is made of a batch of matrices"):
        ls.evaluate(batch, torch.ones(60, 1, dtype=F64), {"J": Jacobi(batch)}, repeats=0)
    assert ls.evaluate(batch, torch.ones(60, 1, dtype=F64), {"J": Jacobi}, repeats=0).rows[0].converged == 2
