"""`compare_preconditioners`: counts against SciPy's, solvers, systems, failures, tables and files."""

import csv
import functools
import json
import math
import sys
import time
import warnings

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg as spla
import torch
from solvers.cases import SQUARE, SYMMETRIC, convection

import learnsolve as ls

F64, P = torch.float64, ls.preconditioners
LINE, GRID, B = ls.problems.poisson((60,)), ls.problems.poisson((25, 25)), torch.ones(60, dtype=F64)
compare = functools.partial(ls.compare_preconditioners, repeats=1)


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
    "poisson 1D": LINE,
    "poisson 2D": GRID,
    "anisotropic": ls.problems.anisotropic((20, 20), 0.05, 0.4),
    "stretched": stretched(),
    "other": stretched(150, seed=1),
}


class Skew(P.Preconditioner):
    """Not symmetric, and says so."""

    def __init__(self, A):
        self.shape, self.depends_on = A.shape, (A.values,)

    def mv(self, R):
        return R


@pytest.mark.parametrize("name", MATRICES)
def test_iterations_are_those_of_scipy(name):
    A = MATRICES[name]
    S = A.to_scipy()
    b = torch.randn(S.shape[0], dtype=F64)
    for row in compare(A, b, {"none": None, "Jacobi": P.Jacobi}).rows:
        M, calls = None if row.preconditioner == "none" else scipy.sparse.diags_array(1 / S.diagonal()), []
        _, info = spla.cg(S, b.numpy(), rtol=row.rtol, M=M, callback=calls.append, maxiter=10 * len(b))
        assert (row.converged, info) == (1, 0)
        assert abs(row.iterations.mean - len(calls)) <= 1, row
        assert row.iterations.mean <= len(b) + 1


def test_one_run_gives_the_iterations_of_all_tolerances():
    b, rtol = torch.randn(625, dtype=F64), (1e-2, 1e-5, 1e-8)
    result = compare(GRID, b, {"none": None}, rtol=rtol)
    for row, tol in zip(result.rows, rtol, strict=True):
        assert row.rtol == tol
        assert row.iterations.mean == ls.solvers.cg(GRID, b, rtol=tol).iterations
        assert row.seconds.mean > 0
    (history,) = result.histories["none"]
    torch.testing.assert_close(history, ls.solvers.cg(GRID, b, rtol=1e-8).residual_norms / b.norm())
    for one in (torch.tensor(0.25), torch.tensor([0.25]), np.array(0.25), np.float32(0.25)):
        assert compare(LINE, B, {"n": None}, rtol=one).rows[0].rtol == 0.25


@pytest.mark.parametrize("solver", SQUARE)
def test_every_solver(solver):
    A = GRID if solver in SYMMETRIC else convection(8, 8)
    result = compare(A, torch.ones(A.shape[0], dtype=F64), {"J": P.Jacobi}, solver=solver)
    assert result.solver == solver
    assert [row.converged for row in result.rows] == [1, 1, 1]


def test_a_custom_solver_gets_the_keywords():
    keywords = []

    def solve(A, b, *, rtol, maxiter, M):
        keywords.append((rtol, maxiter, M))
        return ls.solvers.cg(A, b, rtol=rtol, maxiter=maxiter, M=M)

    assert compare(LINE, B, {"x": None}, rtol=1e-6, solver=solve, maxiter=77).solver == "solve"
    assert set(keywords) == {(1e-6, 77, None)}
    b, restarted = torch.randn(60, dtype=F64), functools.partial(ls.solvers.gmres, restart=60)
    both = [compare(LINE, b, {"x": None}, rtol=1e-6, solver=s).rows[0] for s in ("gmres", restarted)]
    assert both[0].iterations.mean > both[1].iterations.mean


def test_systems_in_every_form():
    b = torch.randn(60, 4, dtype=F64)
    counts = [ls.solvers.cg(LINE, c, rtol=1e-6).iterations for c in b.mT]
    batch = LINE.with_values(torch.stack((LINE.values, 2 * LINE.values, LINE.values + LINE.values.abs())))
    assert compare(batch, b, {"J": P.Jacobi}).rows[0].converged == 12
    laplacian = torch.tensor([[0.0, -1, 0], [-1, 4, -1], [0, -1, 0]], dtype=F64)
    stencil, c = ls.ops.StencilOperator(laplacian, (9, 10)), torch.randn(90, 2, dtype=F64)
    stencils = stencil.with_coefficients(torch.stack((stencil.coefficients, 2 * stencil.coefficients)))
    mean, std = pytest.approx(np.mean(counts)), pytest.approx(np.std(counts))
    row = compare(LINE, b, {"x": None}, rtol=1e-6).rows[0]
    assert row.iterations == (mean, std, min(counts), max(counts))
    for A, right, systems in (
        (LINE, b, 4),
        (LINE, b.expand(2, 60, 4), 8),
        (batch, b, 12),
        (batch, torch.randn(3, 60, 2, dtype=F64), 6),
        ([LINE, MATRICES["stretched"]], [b, torch.ones(80, dtype=F64)], 5),
        ([stencil, stencil.to_csr()], [c, c], 4),
        (stencils, c, 4),
    ):
        row = compare(A, right, {"x": None}, rtol=1e-6).rows[0]
        assert (row.systems, row.converged) == (systems, systems)
    expected = compare(stencil.to_csr(), c, {"none": None}, rtol=1e-6).rows[0]
    preconditioners = {"none": None, "D": lambda A: lambda r: r / A.coefficients.amax()}
    for row in compare(stencil, c, preconditioners, rtol=1e-6).rows:
        assert row.iterations == expected.iterations


def test_factories_are_called_for_each_matrix_and_timed():
    matrices, made = [stretched(40, seed=i) for i in range(3)], []

    def make(A):
        made.append(A.nnz)
        return P.Jacobi(A)

    kinds = {"f": make, "one": P.Jacobi(matrices[0]), "M": lambda A: lambda r: r}
    b = [torch.ones(40, 2, dtype=F64)] * 3
    f, one, _ = ls.compare_preconditioners(matrices, b, kinds, repeats=2, rtol=1e-6).rows
    assert made == [A.nnz for A in matrices for _ in range(3)]
    assert min(f.setup.mean, f.first_setup.mean) > 0
    assert math.isnan(one.setup.mean)
    assert f.iterations.mean < one.iterations.mean
    inverse = lambda A: ls.ops.diag(1 / A.diagonal())  # noqa: E731  a matrix is a preconditioner too
    assert compare(LINE, B, {"D": inverse}, rtol=1e-3).rows[0].converged == 1


def test_each_row_says_what_ran_its_solves():
    b = torch.ones(625, dtype=F64)
    kinds = {"none": None, "SSOR": lambda A: P.SSOR(A, 1.6), "AMG": P.AMG, "f": lambda A: lambda r: r}
    rows = compare(GRID, b, kinds, rtol=1e-6).rows
    assert [row.backend for row in rows] == ["compiled"] * 2 + ["compiled, Python preconditioner"] * 2
    between = "compiled, Python preconditioner"
    for solver, others in (("gmres", [between] * 3), ("bicgstab", ["compiled", "eager", "eager"])):
        rows = compare(GRID, b, kinds, rtol=1e-6, solver=solver).rows
        assert [row.backend for row in rows] == ["compiled", *others]
    called = lambda A, b, **how: ls.solvers.cg(A, b, callback=lambda _: None, **how)  # noqa: E731
    assert {row.backend for row in compare(GRID, b, kinds, rtol=1e-6, solver=called).rows} == {"eager"}
    huge = GRID.with_values(GRID.values * 2.0**200)  # in units, in which M is called between the steps
    row = compare([GRID, huge], [b, b], {"J": P.Jacobi}, rtol=1e-6).rows[0]
    assert row.backend == "compiled or compiled, Python preconditioner"


def test_what_a_method_computes_of_a_preconditioner_once_is_set_up():
    class Counted(P.SSOR):
        computed = 0

        def _cholesky(self):
            Counted.computed += 1
            return super()._cholesky()

    b = torch.ones(60, 5, dtype=F64)
    ls.compare_preconditioners(LINE, b, {"S": Counted}, repeats=2)
    assert Counted.computed == 3  # one a set-up
    ls.compare_preconditioners(LINE, b, {"S": Counted}, solver="minres", repeats=2)
    assert Counted.computed == 6
    ls.compare_preconditioners(LINE, b, {"S": Counted}, solver="gmres", repeats=2)
    assert Counted.computed == 6


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
    (row,) = ls.compare_preconditioners(A, b, {"network": make}, rtol=1e-3, repeats=2).rows
    assert recorded == [False] * 15
    assert (row.systems, row.converged, row.backend) == (5, 5, "compiled, Python preconditioner")
    assert row.first_setup.max >= 0.2
    assert row.setup.mean < row.first_setup.mean
    solve = functools.partial(ls.solvers.cg, rtol=1e-3)
    with torch.no_grad():
        counts = [solve(a, c, M=make(a)).iterations for a, c in zip(A, b, strict=True)]
    assert row.iterations == (np.mean(counts), pytest.approx(np.std(counts)), min(counts), max(counts))


def test_nothing_learns_and_zero_is_solved():
    A, b = LINE.detach().requires_grad_(), torch.ones(60, dtype=F64, requires_grad=True)
    assert not compare(A, b, {"J": P.Jacobi}).histories["J"][0].requires_grad
    row = compare(LINE, torch.zeros(60, dtype=F64), {"x": None}).rows[0]
    assert (row.converged, row.iterations.mean) == (1, 0)


@pytest.mark.parametrize(
    ("dtype", "sizes"),
    [(F64, (2.0**665, 2.0**-665, 2.0**1000)), (torch.float32, (2.0**83, 2.0**-100, 2.0**120))],
    ids=str,
)
def test_the_size_of_b_does_not_matter(dtype, sizes):
    A, b = ls.problems.poisson((10, 10)).to(dtype), torch.ones(100, dtype=dtype)
    ordinary = compare(A, b, {"n": None}, rtol=(1e-2, 1e-4))
    for size in sizes:
        scaled = compare(A, b * size, {"n": None}, rtol=(1e-2, 1e-4))
        for row, expected in zip(scaled.rows, ordinary.rows, strict=True):
            assert (row.converged, row.failures) == (1, {})
            assert row.iterations == expected.iterations
        torch.testing.assert_close(scaled.histories["n"][0], ordinary.histories["n"][0], rtol=1e-6, atol=0)


def test_a_system_that_the_solver_calls_converged_has_converged():
    """Also where norms of float32 and of float64 fall on two sides of the tolerance."""
    A = ls.problems.poisson((10, 10)).to(torch.float32)
    for b in torch.randn(100, 20).mT:
        # A tolerance at which the system arrives exactly.
        rtol = float((ls.solvers.cg(A, b, rtol=1e-3).residual_norms[-1] / b.norm()).double())
        for t in (rtol, np.nextafter(rtol, 0), np.nextafter(rtol, 1)):
            (row,) = compare(A, b, {"n": None}, rtol=t).rows
            theirs = ls.solvers.cg(A, b, rtol=t)
            assert row.converged == theirs.converged
            assert row.iterations.mean == theirs.iterations
            assert "CONVERGED" not in row.failures


def test_the_median_of_two_is_their_mean(monkeypatch):
    module = sys.modules["learnsolve.evaluation.comparison"]
    seconds = iter([1.0, 3.0, 7.0, 2.0, 4.0])
    monkeypatch.setattr(module, "time_call", lambda f, devices: (next(seconds), f()))
    (row,) = ls.compare_preconditioners(LINE, B, {"J": P.Jacobi}, rtol=1e-3, repeats=2).rows
    assert (row.first_setup.mean, row.setup.mean, row.seconds.mean) == (1.0, 5.0, 3.0)


def test_warnings_of_solves_are_in_the_report_alone():
    """The filters are those of all threads, and Python shows again what it has shown once after a change."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(2):
            ls.solvers.cg(LINE, B, maxiter=1)
            assert not any(row.converged for row in compare(LINE, B, {"n": None}, maxiter=1).rows)
    assert len(seen) == 1


# --- failures and errors ---


def test_failures_have_names():
    D = torch.ones(625, dtype=F64)
    D[3] = -1
    kinds = {
        "none": None,
        "indefinite": lambda A: lambda r: D * r,
        "NaN": lambda A: lambda r: r * torch.nan,
        "zero": ls.CSR.from_dense(torch.zeros(625, 625, dtype=F64)),
    }
    result = compare(GRID, torch.randn(625, 2, dtype=F64), kinds, rtol=(1e-1, 1e-9), maxiter=30)
    rows = {(row.preconditioner, row.rtol): (row.converged, row.failures) for row in result.rows}
    assert rows["none", 1e-1] == (2, {})
    assert rows["none", 1e-9] == (0, {"MAX_ITERATIONS": 2})
    assert rows["indefinite", 1e-9] == rows["zero", 1e-9] == (0, {"INDEFINITE": 2})
    assert rows["NaN", 1e-9] == (0, {"NON_FINITE": 2})
    assert math.isnan(result.rows[1].seconds.mean)
    assert "2 MAX_ITERATIONS" in str(result)


class Particular(ValueError):
    def __init__(self, code: int, text: str):
        super().__init__(f"{code}: {text}")


def fails_with(error):
    def factory(A):
        raise error

    return factory


_TWO = LINE.with_values(LINE.values.expand(2, -1))
BATCH = {"A": _TWO, "b": B.unsqueeze(1), "preconditioners": {"J": P.Jacobi(_TWO)}}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Skew, "cg: needs a linear, symmetric M"),
        (fails_with(Particular(3, "of its own")), "3: of its own"),
        (fails_with(UnicodeDecodeError("utf-8", b"a", 0, 1, "of its own")), "'utf-8' codec .*of its own"),
        (fails_with(NotImplementedError("of its own")), "of its own"),
    ],
)
def test_an_error_names_the_preconditioner_or_is_a_row(make, message):
    kinds = {"none": None, "bad": make}
    with pytest.raises(
        ValueError, match=f"compare_preconditioners: preconditioner 'bad': .*{message}"
    ) as caught:
        compare(LINE, B, kinds)
    assert caught.value.__cause__ is not None
    result = compare(LINE, B, kinds, rtol=1e-3, on_error="row")
    fine, bad = result.rows
    assert (fine.converged, bad.converged, fine.message, bad.failures) == (1, 0, "", {})
    assert bad.message in str(result)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"rtol": ()}, ValueError, "rtol must be a tolerance or several"),
        ({"preconditioners": {3: None}}, TypeError, "names of preconditioners must be strings, got 3"),
        ({"preconditioners": {"x": lambda A: 3}}, TypeError, "'x': must be a function A -> M .* got int"),
        ({"preconditioners": {"x": lambda A: None}}, TypeError, "must be a function A -> M .* got NoneType"),
        ({"preconditioners": {"x": lambda r: 0.5 * r}}, TypeError, "a plain function .* lambda A: f"),
        ({"solver": lambda *_, **__: 3}, TypeError, "solver must return a Solution, got int"),
        ({"preconditioners": {"x": 3}}, TypeError, "preconditioner 'x': must be None, a preconditioner, or"),
        (BATCH, ValueError, "was built from a batch of matrices"),
        ({"A": [], "b": []}, ValueError, "one b for each A"),
        ({"A": [3], "b": [3]}, TypeError, "A must hold CSRs, BlockBatches or LinearOperators"),
    ],
)
def test_errors(change, error, match):
    arguments = {"A": LINE, "b": B, "preconditioners": {"x": None}}
    with pytest.raises(error, match=match):
        compare(**(arguments | change))


# --- the table, the files, the figure ---


@pytest.fixture(scope="module")
def small() -> ls.Evaluation:
    kinds = {"none": None, "Jacobi": P.Jacobi, "bad": Skew}
    return compare(GRID, torch.ones(625, 3, dtype=F64), kinds, on_error="row")


def test_the_table_is_aligned(small):
    head, _, *lines = str(small).splitlines()
    assert len(lines) == 9
    at = head.index("converged") + len("converged")
    assert all(line[at - 3 : at + 1].rstrip() in ("3/3", "0/3") for line in lines)
    at = head.index("backend") + len("backend")
    assert head.index("seconds") < at < head.index("set-up")
    assert [line[at - 8 : at].strip() for line in lines] == ["compiled"] * 6 + ["-"] * 3


def test_files(small, tmp_path):
    small.to_csv(tmp_path / "a.csv")
    with (tmp_path / "a.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["backend"] for row in rows] == ["compiled"] * 6 + [""] * 3
    assert float(rows[0]["iterations_mean"]) == small.rows[0].iterations.mean
    assert rows[0]["setup_mean"] == ""
    small.to_json(tmp_path / "a.json")
    text = (tmp_path / "a.json").read_text()
    assert "NaN" not in text
    content = json.loads(text)
    assert content["solver"] == "cg"
    first = content["rows"][0]
    assert (first["backend"], first["setup"]["mean"]) == ("compiled", None)
    assert first["iterations"]["max"] == small.rows[0].iterations.max
    assert content["histories"]["none"][0] == small.histories["none"][0].tolist()


def test_figure(small, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    figure = small.plot(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    (axes,) = figure.axes
    assert axes.get_xlabel() == "iteration"
    assert "relative" in axes.get_ylabel()
    lines = [line for line in axes.get_lines() if not line.get_label().startswith("_")]
    assert [line.get_label() for line in lines] == ["none", "Jacobi"]
    assert lines[0].get_color() != lines[1].get_color()
    assert lines[0].get_ydata()[0] == pytest.approx(1)
    (legend,) = compare(LINE, B, {"_mine": None, "J": P.Jacobi}).plot().legends
    assert [text.get_text().strip() for text in legend.get_texts()] == ["_mine", "J"]
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'learnsolve\[train\]'"):
        small.plot()
