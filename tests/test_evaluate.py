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
        ls.evaluate(A, b, P, repeats=1)
    result = ls.evaluate(A, b, P, repeats=1, on_error="row", rtol=1e-6)
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
        ({"rtol": math.inf}, ValueError, "rtol must not be negative, and be finite, got inf"),
        ({"rtol": (1e-3, math.nan)}, ValueError, "rtol must not be negative, and be finite, got nan"),
        ({"rtol": "a"}, TypeError, "rtol must be a number, got str"),
        ({"rtol": None}, TypeError, "rtol must be a number, got NoneType"),
        ({"preconditioners": {3: None}}, TypeError, "names of preconditioners must be strings, got 3"),
        ({"preconditioners": {"x": lambda A: 3}}, TypeError, "'x': must be a function A -> M .* got int"),
        ({"preconditioners": {"x": lambda A: None}}, TypeError, "must be a function A -> M .* got NoneType"),
        ({"preconditioners": {"x": lambda r: 0.5 * r}}, TypeError, "a plain function .* lambda A: f"),
        ({"solver": lambda *_, **__: 3}, TypeError, "solver must return a Solution, got int"),
        ({"repeats": 0}, ValueError, "repeats must be at least 1"),
        ({"maxiter": -1}, ValueError, "maxiter must be at least 0"),
        ({"on_error": "warn"}, ValueError, "on_error must be one of"),
        ({"preconditioners": [None]}, TypeError, "preconditioners must be a dict"),
        ({"preconditioners": {"x": 3}}, TypeError, "preconditioner 'x': must be None, a preconditioner, or"),
        ({"b": torch.ones(3, dtype=F64)}, ValueError, "b must have A.shape"),
        ({"b": torch.ones(60)}, TypeError, "b has dtype"),
        ({"A": []}, TypeError, "sequences of them"),
        ({"A": [], "b": []}, ValueError, "one b for each A"),
        ({"A": [3], "b": [3]}, TypeError, "A must hold CSRs or StencilOperators"),
    ],
)
def test_errors(change, error, match):
    arguments = {
        "A": MATRICES["poisson 1D"](),
        "b": torch.ones(60, dtype=F64),
        "preconditioners": {"x": None},
        "repeats": 1,
    }
    with pytest.raises(error, match=match):
        ls.evaluate(**(arguments | change))


def test_a_preconditioner_of_a_batch_needs_its_factory():
    A = MATRICES["poisson 1D"]()
    batch = A.with_values(torch.stack((A.values, 2 * A.values)))
    with pytest.raises(ValueError, match="was built from a batch of matrices"):
        ls.evaluate(batch, torch.ones(60, 1, dtype=F64), {"J": Jacobi(batch)}, repeats=1)
    assert ls.evaluate(batch, torch.ones(60, 1, dtype=F64), {"J": Jacobi}, repeats=1).rows[0].converged == 2


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


class Particular(ValueError):
    def __init__(self, code: int, text: str):
        super().__init__(f"{code}: {text}")


def fails_with(error):
    def factory(A):
        raise error

    return factory


@pytest.mark.parametrize(
    "error",
    [
        Particular(3, "of its own"),
        UnicodeDecodeError("utf-8", b"a", 0, 1, "of its own"),
        np.linalg.LinAlgError("of its own"),
        torch.linalg.LinAlgError("of its own"),
        NotImplementedError("of its own"),
        RuntimeError("of its own"),
        ZeroDivisionError("of its own"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_any_kind(error):
    A, b = MATRICES["poisson 1D"](), torch.ones(60, dtype=F64)
    P = {"none": None, "bad": fails_with(error)}
    with pytest.raises(ValueError, match=r"evaluate: preconditioner 'bad': .*of its own") as caught:
        ls.evaluate(A, b, P, repeats=1)
    assert caught.value.__cause__ is error
    fine, bad = ls.evaluate(A, b, P, rtol=1e-3, repeats=1, on_error="row").rows
    assert (fine.converged, bad.converged) == (1, 0)
    assert "of its own" in bad.message


def test_the_median_of_two_is_their_mean(monkeypatch):
    module = sys.modules["learnsolve.evaluation.evaluate"]
    took = iter([1.0, 3.0, 7.0, 2.0, 4.0])
    monkeypatch.setattr(module, "_timed", lambda f, device: (next(took), f()))
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


def test_a_name_with_an_underscore_is_in_the_legend():
    pytest.importorskip("matplotlib")
    result = ls.evaluate(
        MATRICES["poisson 1D"](), torch.ones(60, dtype=F64), {"_mine": None, "J": Jacobi}, repeats=1
    )
    (axes,) = result.plot().axes
    assert [text.get_text().strip() for text in axes.get_legend().get_texts()] == ["_mine", "J"]
