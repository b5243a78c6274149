"""Every experiment is complete and runs; the numbers of the threads are what they claim to be.

A new folder with a run.py is found by itself. One file, because several tests read the same quick run.
"""

import csv
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = sorted(p.parent for p in (ROOT / "experiments").glob("*/run.py"))
NAMES = [folder.name for folder in FOLDERS]
PNG = b"\x89PNG\r\n\x1a\n"
SMOKE = "multigrid_prolongation"  # its quick run is the quickest; CI takes them all
ROUNDING = 1e-5  # of float32, for norms of differences


@pytest.fixture(scope="session")
def quick_run(tmp_path_factory):
    """name -> (the folder that its quick run has written, what it has printed); each runs once."""

    @cache
    def run(name: str) -> tuple[Path, str]:
        out = tmp_path_factory.mktemp(name)
        before = {p: p.stat().st_mtime_ns for p in (ROOT / "experiments" / name).rglob("*")}
        command = [sys.executable, f"experiments/{name}/run.py", "--quick", "--out", str(out)]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        result = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stderr
        after = {p: p.stat().st_mtime_ns for p in (ROOT / "experiments" / name).rglob("*")}
        assert after == before, "a run with --out writes there and nowhere else"
        return out, result.stdout

    return run


def read(folder: Path, name: str):
    return json.loads((folder / name).read_text())


def test_there_are_experiments():
    assert {
        "thread_slow_backward_regression",
        "thread_custom_conv_backward",
        "thread_subset_of_losses",
        "figure03_04_jacobi",
        "figure09_10_gcn",
        "spai",
        "multigrid_prolongation",
        "learned_prolongation",
        "learned_smoother",
        "learned_schwarz",
        "helmholtz_two_grid",
        "precorrector",
        "neuralif",
    } <= set(NAMES)


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_a_folder_is_complete(folder):
    page = (folder / "README.md").read_text()
    assert f"python experiments/{folder.name}/run.py" in page
    shown = re.findall(r"!\[[^]]*\]\(([^)]+)\)", page)
    assert shown, "the page shows a figure"
    for picture in shown:
        assert (folder / picture).read_bytes().startswith(PNG)
    assert folder.name in (ROOT / "experiments" / "README.md").read_text()


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_results_are_committed_with_their_machine(folder):
    results = sorted((folder / "results").iterdir())
    assert sum(p.stat().st_size for p in results) < 1_500_000
    numbers = [json.loads(p.read_text()) for p in results if p.suffix == ".json"]
    assert numbers
    for each in numbers:
        assert each["experiment"] == folder.name
        assert each["quick"] is False, "results of a quick run are none"
        assert {"cpu", "torch", "threads", "learnsolve"} <= set(each["environment"])
    listing = subprocess.run(
        ["git", "ls-files", f"experiments/{folder.name}/results"], cwd=ROOT, capture_output=True, text=True
    )
    if listing.returncode == 0:
        assert {Path(line).name for line in listing.stdout.split()} == {p.name for p in results}


@pytest.mark.parametrize(
    "folder", [pytest.param(f, marks=() if f.name == SMOKE else pytest.mark.slow, id=f.name) for f in FOLDERS]
)
def test_a_quick_run_writes_what_is_committed(folder, quick_run):
    out, printed = quick_run(folder.name)
    written = {p.name for p in out.iterdir()}
    committed = {p.name for p in (folder / "results").iterdir()}
    assert written
    assert written <= committed
    for path in out.iterdir():
        assert path.name in printed
        if path.suffix == ".json":
            assert read(out, path.name)["quick"] is True
        elif path.suffix == ".png":
            assert path.read_bytes().startswith(PNG)
        elif path.suffix == ".csv":
            assert list(csv.DictReader(path.open()))


@pytest.mark.slow
def test_regression_by_all_libraries(quick_run):
    out, _ = quick_run("thread_slow_backward_regression")
    found = read(out, "tenth.json")
    rows = {row["by"]: row for row in found["times"]}
    assert set(rows) == {"learnsolve", "learnsolve, 2 threads", "SciPy", "torch CSR", "torch COO"}
    for row in rows.values():
        assert row["gradient differs by"] < ROUNDING
        assert row["loss"] == pytest.approx(rows["SciPy"]["loss"], rel=1e-4)
    solved = found["solved"]
    for method in ("gradient descent", "lsqr"):
        assert solved[method]["x differs from the truth by"] < 0.01
        assert solved[method]["loss"] < 1e-4 * rows["SciPy"]["loss"]
    assert solved["the two differ by"] < 0.01
    assert solved["lsqr"]["loss"] <= solved["gradient descent"]["loss"]
    assert found["memory_gb"]["peak"] < 2


def test_the_full_regression_is_committed():
    found = read(ROOT / "experiments/thread_slow_backward_regression/results", "full.json")
    assert found["problem"]["entries"] == 178_500_000
    assert found["memory_gb"]["peak"] < 8
    rows = {row["by"]: row for row in found["times"]}
    assert rows["learnsolve"]["gradient differs by"] < ROUNDING
    assert found["solved"]["the two differ by"] < 1e-3


def test_the_matrix_of_the_regression(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.matrices import regression_matrix

    crow, cols, values = regression_matrix(120, 40, 8)
    assert (str(crow.dtype), str(cols.dtype), str(values.dtype)) == ("int32", "int32", "float32")
    assert crow.tolist() == list(range(0, 961, 8))
    rows = cols.reshape(120, 8)
    assert (rows[:, 1:] > rows[:, :-1]).all()
    assert rows.min() == 0
    assert rows.max() == 39
    assert abs(values.std() - 1) < 0.1
    assert (regression_matrix(120, 40, 8)[2] == values).all()
    assert (regression_matrix(120, 40, 8, seed=1)[2] != values).any()


@pytest.mark.slow
def test_convolutions_agree_and_their_calls_are_counted(quick_run):
    out, _ = quick_run("thread_custom_conv_backward")
    cases = read(out, "calls.json")["cases"]
    for rows in cases.values():
        for row in rows:
            for what in ("output", "gradient for x", "gradient for w"):
                assert row[f"{what} differs by"] < ROUNDING, row["variant"]
    calls = {title: {row["variant"]: row["calls backward"] for row in rows} for title, rows in cases.items()}
    grouped, one = "Function, torch.nn.grad as of 2020", "Function, convolution_backward"
    # 16 groups (batch 4, 4 channels used), each with operators of its own where oneDNN does not take them.
    assert calls["without oneDNN"][grouped] > 16 * 10
    assert calls["with oneDNN"][one] < calls["with oneDNN"]["Function, torch.nn.grad"]


def test_the_committed_calls_are_those_of_the_question():
    rows = read(ROOT / "experiments/thread_custom_conv_backward/results", "calls.json")["cases"]
    calls = {row["variant"]: row["calls backward"] for row in rows["without oneDNN"]}
    assert calls["Function, torch.nn.grad as of 2020"] > 100_000
    assert calls["Function, convolution_backward"] < 1000


@pytest.mark.slow
def test_a_subset_of_losses_has_the_same_gradient_by_all_ways(quick_run):
    out, _ = quick_run("thread_subset_of_losses")
    found = read(out, "times.json")
    variants = {row["variant"] for row in found["rows"]}
    assert {"plain, one pass", "plain, two pass", "ours, one pass", "ours, two pass"} <= variants
    counts = {row["losses"] for row in found["rows"]}
    assert {1, 2, 4, 8} <= counts
    assert len(found["rows"]) == len(variants) * len(counts)
    for row in found["rows"]:
        assert row["gradient differs by"] < 1e-11
    assert 0 < found["fraction_above_average"]["cg"] < 1


def test_the_committed_subset_costs_its_fraction():
    found = read(ROOT / "experiments/thread_subset_of_losses/results", "times.json")
    time = {(row["variant"], row["losses"]): row["backward ms"] for row in found["rows"]}
    for row in found["rows"]:
        assert row["gradient differs by"] < 1e-9
    assert time["ours, one pass", 8] < 0.5 * time["ours, one pass", 32]
    assert time["plain, one pass", 8] > 0.7 * time["plain, one pass", 32]


def test_make_lists_and_runs_experiments():
    result = subprocess.run(
        ["make", "-n", "experiments", "ONLY=a b", "ARGS=--quick", "VENV="],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "experiments/a/run.py experiments/b/run.py" in result.stdout
    assert '"$run" --quick' in result.stdout


def results(name, quick, quick_run):
    return quick_run(name)[0] if quick else ROOT / "experiments" / name / "results"


def by(rows, key):
    return {row[key]: row for row in rows}


both = pytest.mark.parametrize(
    "quick", [pytest.param(True, marks=pytest.mark.slow), False], ids=["quick", "committed"]
)


@both
def test_the_ends_have_the_largest_jacobi_weights(quick, quick_run):
    folder = results("figure03_04_jacobi", quick, quick_run)
    found = by(read(folder, "summary.json")["weights"], "weights")
    for learned in ("published", "exact"):
        assert found[learned]["ends"] > found[learned]["largest inside"] + 0.05
        assert found[learned]["exact loss"] >= found["closed form"]["exact loss"]
        assert found[learned]["exact loss"] < found["weight 2/3"]["exact loss"]
    assert found["weight 1"]["exact loss"] == pytest.approx(15)  # tr(E A E) = n - 1
    assert found["exact"]["distance to the closed form"] < (0.01 if quick else 1e-4)
    if not quick:
        assert found["published"]["exact loss"] < 1.01 * found["closed form"]["exact loss"]
    steps = list(csv.DictReader((folder / "loss.csv").open()))
    assert float(steps[-1]["held_out_loss"]) < float(steps[0]["held_out_loss"]) / 3


@pytest.mark.slow
def test_gcn_learns_a_small_graph(quick_run):
    out, printed = quick_run("figure09_10_gcn")
    found = read(out, "summary_10.json")
    assert found["graph"]["nodes"] == 42
    assert found["test_accuracy_mean"] > 0.6  # one in three by chance
    assert found["published_test_accuracy"] is None
    assert "SKIPPED" not in printed
    losses = [float(row["test_loss"]) for row in csv.DictReader((out / "curves_10.csv").open())]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("seeds", [10, 100])
def test_the_committed_accuracies_are_those_of_citeseer(seeds):
    found = read(ROOT / "experiments/figure09_10_gcn/results", f"summary_{seeds}.json")
    assert found["graph"]["nodes"] == 3327
    accuracies = found["test_accuracies"]
    assert len(accuracies) == found["seeds"] == seeds
    assert statistics.mean(accuracies) == pytest.approx(found["test_accuracy_mean"], abs=1e-6)
    assert statistics.stdev(accuracies) == pytest.approx(found["test_accuracy_std"], abs=1e-6)
    assert abs(found["test_accuracy_mean"] - 0.703) < 0.01
    assert found["test_accuracy_std"] < 0.01


def test_gcn_without_data_says_so_and_goes_on(monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", [*sys.path])  # run.py adds to it
    spec = importlib.util.spec_from_file_location("gcn_run", ROOT / "experiments/figure09_10_gcn/run.py")
    run = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(run)

    def unreachable(name):
        raise OSError("planetoid: cannot download")

    monkeypatch.setattr(run, "planetoid", unreachable)
    assert run.found_data("a folder")
    assert not run.found_data(None)
    printed = capsys.readouterr().out
    assert "SKIPPED" in printed
    assert "cannot download" in printed
    assert "--data DIR" in printed
    assert "CITESEER=DIR" in printed


@pytest.mark.slow
def test_gcn_refuses_a_folder_without_the_files(tmp_path):
    command = [sys.executable, "experiments/figure09_10_gcn/run.py", "--data", str(tmp_path / "none")]
    result = subprocess.run(
        [*command, "--out", str(tmp_path / "out")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert "there is no file" in result.stderr
    assert not list((tmp_path / "out").iterdir())


@both
def test_a_learned_approximate_inverse_is_the_minimizer_and_preconditions(quick, quick_run):
    found = read(results("spai", quick, quick_run), "summary.json")
    task = found["demonstration"]
    assert task["loss at the start"] == pytest.approx(1264)  # A and ones on the outer diagonals
    assert task["loss at the end"] >= task["smallest loss"] * (1 - 1e-12)
    assert task["loss at the end"] == pytest.approx(task["smallest loss"], rel=0.02 if quick else 1e-10)
    rows = by(found["preconditioners"], "M")
    for pattern in ("A", "A²"):
        learned, direct = rows[f"learned, {pattern}"], rows[f"SPAI, {pattern}"]
        assert learned["entries"] == direct["entries"]
        assert direct["right"] <= learned["right"] * (1 + 1e-9), "SPAI is the minimizer of that"
        assert (
            learned["right"] ** 2 + learned["left"] ** 2 <= direct["right"] ** 2 + direct["left"] ** 2 + 1e-6
        )
        assert learned["right"] == pytest.approx(learned["left"], rel=1e-6), "it is symmetric"
        assert learned["cg"] < rows["none"]["cg"] * 0.65
        assert learned["condition number"] < rows["none"]["condition number"] / 3
        assert found["learned"][pattern]["loss at the end"] == pytest.approx(
            found["learned"][pattern]["smallest loss"], rel=1e-3
        )


@both
def test_a_learned_prolongation_respects_the_bound_and_reaches_it(quick, quick_run):
    rows = read(results("multigrid_prolongation", quick, quick_run), "summary.json")["prolongations"]
    radius = {(row["k"], row["P"]): row["radius"] for row in rows}
    for k in ("constant", "rough"):
        assert radius[k, "bound"] == pytest.approx(1 / 9)
        assert radius[k, "ideal"] == pytest.approx(1 / 9)
        for P in ("linear", "learned, radius", "learned, squares", "learned, random errors"):
            assert radius[k, P] > radius[k, "bound"] - 1e-9
    assert radius["constant", "linear"] == pytest.approx(1 / 9)
    assert radius["rough", "linear"] > 0.5
    assert radius["rough", "learned, radius"] < (0.5 if quick else 0.112)
    assert radius["rough", "learned, squares"] < (0.4 if quick else 0.13)
    assert radius["rough", "learned, random errors"] > 0.9
    random = {(row["k"], row["P"]): row.get("random errors") for row in rows}
    assert random["rough", "learned, random errors"] < random["rough", "linear"]


@both
def test_learned_v_cycles_are_as_fast_as_published(quick, quick_run):
    rows = read(results("learned_vcycle", quick, quick_run), "summary.json")["factors"]
    for row in rows:
        if row["P, R, damping"] == "linear":
            linear = row["radius"]
            assert linear == pytest.approx(row["published"], abs=5.1e-4)
        elif row["P, R, damping"] == "learned":
            assert row["radius"] <= (linear if quick else row["published"])


@both
def test_learned_smoothers_leave_less_than_classical_ones(quick, quick_run):
    found = read(results("learned_smoother", quick, quick_run), "summary.json")
    task = found["demonstration"]
    assert task["losses"][-1] < 0.007
    assert task["losses"][0] == pytest.approx(task["published"]["0"], rel=0.3)
    assert 30 < task["steps"] < 300  # published: 102, with other random guesses
    compared = by(task["compared"], "S")
    assert compared["learned"]["new guesses"] < compared["I - 0.4 A"]["new guesses"]
    for matrix in ("2D Poisson", "anisotropic"):
        rows = [row for row in found["relaxation"]["smoothers"] if row["matrix"] == matrix]
        usual, best, two, diagonal, pattern = rows
        assert usual["S"].startswith("Jacobi, usual")
        assert best["radius"] <= usual["radius"]
        assert diagonal["energy left"] < usual["energy left"]
        assert pattern["energy left"] < diagonal["energy left"]
        assert pattern["radius"] < usual["radius"]
        assert pattern["entries"] == two["entries"]
        for row in rows:
            assert row["measured factor"] < row["radius"] * 1.02
            assert row["measured factor"] > row["radius"] * 0.8
        if not quick:
            assert pattern["energy left"] < two["energy left"] / 2
            assert pattern["measured factor"] < usual["measured factor"] * 0.75
            assert pattern["cg"] < usual["cg"]


@both
def test_a_corrected_factor_takes_the_published_iterations(quick, quick_run):
    found = read(results("precorrector", quick, quick_run), "summary.json")
    stop, losses = found["absolute_stop"], by(found["losses"], "loss")
    assert all(row["converged"] == row["systems"] for row in stop.values())
    assert stop["learned"]["iterations"] <= stop["IC(0)"]["iterations"]
    assert losses["product"]["iterations"] < losses["frobenius"]["iterations"]
    assert losses["product"]["held-out"] < losses["frobenius"]["held-out"]  # in the same seconds
    if quick:
        return
    published = found["published"]["grid 32, variance 0.1"]
    assert stop["learned"]["systems"] >= 100
    assert stop["IC(0)"]["iterations"] == pytest.approx(published["IC(0)"], abs=0.5)
    assert stop["learned"]["iterations"] <= published["learned"]
    published = found["published"]["grid 64, variance 0.5"]
    assert losses["product"]["iterations"] <= published["product"]
    assert losses["frobenius"]["iterations"] == pytest.approx(published["frobenius"], rel=0.1)
    large = [row for row in found["seconds_to_1e6"]["one round, 64 x 64"] if row["n"] == 65536]
    both_ms = {row["preconditioner"]: row["both ms"] for row in large}
    assert both_ms["learned"] < both_ms["IC(0)"]


@both
def test_a_given_factor_takes_fewer_iterations_than_jacobi(quick, quick_run):
    found = read(results("neuralif", quick, quick_run), "summary.json")
    rows = by(found["evaluation"], "preconditioner")
    assert rows["learned"]["converged"] == rows["learned"]["systems"]
    assert rows["learned"]["iterations"] < rows["Jacobi"]["iterations"]
    assert {row["loss"] for row in found["losses"]} | set(found["diverged"]) >= {"product", "frobenius"}
    if not quick:
        assert found["data"]["rows"] == 10_000
        assert 0.9e6 < found["data"]["entries"] < 1.1e6


@both
def test_learned_interfaces_leave_less_than_the_best_constant(quick, quick_run):
    rows = read(results("learned_schwarz", quick, quick_run), "summary.json")["interfaces"]
    for problem in {row["problem"] for row in rows}:
        its = {row["interface values"]: row for row in rows if row["problem"] == problem}
        constants = [row for name, row in its.items() if "learned" not in name]
        learned = its["learned entries, K = 12"]
        assert learned["K = 12"] < (1.0 if quick else 0.05) * min(row["K = 12"] for row in constants)
        assert learned["radius"] < (1.0 if quick else 0.75) * min(row["radius"] for row in constants)
        if not quick:
            assert its["learned entries, K = 4"]["K = 4"] < min(row["K = 4"] for row in constants)


@both
def test_learned_two_grid_cycles_for_helmholtz(quick, quick_run):
    rows = read(results("helmholtz_two_grid", quick, quick_run), "summary.json")["factors"]
    for row in rows:
        assert row["linear, best"] <= row["linear, 2/3"]
        assert row["linear, 2/3"] == pytest.approx(1 / 9, abs=0.2)
        if not quick:
            assert row["both"] < 0.3 * row["linear, best"]
            assert row["prolongation"] < 0.12
    indefinite = {row["k"]: row["negative eigenvalues"] for row in rows}
    assert indefinite[2.0] == 0
    assert indefinite[10.0] == 3


@both
def test_a_network_gives_better_prolongations_on_larger_matrices(quick, quick_run):
    for family, classical in (("grid", "Black Box"), ("graph", "Ruge-Stueben")):
        found = read(results("learned_prolongation", quick, quick_run), f"{family}.json")
        assert {row["cycle"] for row in found["factors"]} >= {"two grids", "V"}
        for row in found["factors"]:
            assert 0 < row[classical] < 0.5
            assert row["learned"] < (1.05 if quick else 1.0) * row[classical]
        if not quick:
            assert max(row["count"] for row in found["factors"]) >= 100
