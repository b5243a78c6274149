"""Every experiment is complete and runs; the numbers of the threads are what they claim to be.

A new folder with a run.py is found by itself.
"""

import csv
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = sorted(p.parent for p in (ROOT / "experiments").glob("*/run.py"))
NAMES = [folder.name for folder in FOLDERS]
PNG = b"\x89PNG\r\n\x1a\n"
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


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
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
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from spmm import regression_matrix

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
