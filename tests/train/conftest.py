"""Runs of the training program within the test's own process, which is much faster than a new one each."""

import csv
import json
from pathlib import Path

import planetoid_files
import pytest
import torch

from learnsolve import recipes, train

USUAL = {"config.yaml", "metrics.csv", "model.safetensors", "state.safetensors", "report.html", "report.json"}


@pytest.fixture(autouse=True)
def _same_threads():
    """A run sets torch's number of threads; the next test has its own."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def no_pictures(monkeypatch):
    """Most tests look at numbers: drawing would be nearly all of their time."""
    for name in recipes.RECIPES:
        monkeypatch.setattr(recipes.load(name), "figures", lambda self, history, outcome: iter(()))


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Call with options; returns (exit code, folder). Runs in tmp_path; gcn on a small graph there."""
    monkeypatch.chdir(tmp_path)

    def call(*options: object, out: str | None = "run", recipe: str = "jacobi") -> tuple[int, Path]:
        argv = [recipe, *map(str, options), "--threads", "1", "--quiet"]
        if recipe == "gcn" and not {"--data", "--resume"} & {*argv}:
            argv += ["--data", str(planetoid_files.write(tmp_path / "planetoid"))]
        if out is not None:
            argv += ["--out", out]
        return train.main(argv), tmp_path / (out or "")

    return call


@pytest.fixture
def leaves():
    """Call with a run's folder: it must hold the usual files, `others`, and nothing else."""

    def check(folder: Path, *others: str) -> None:
        assert {path.name for path in folder.iterdir()} == USUAL | set(others)
        for content in (path.read_bytes() for path in folder.glob("*.png")):
            assert content.startswith(b"\x89PNG")
            assert len(content) > 5000

    return check


@pytest.fixture
def rows():
    """The rows of a run's metrics.csv, without the seconds, which no two runs share."""

    def read(folder: Path) -> list[dict[str, str]]:
        with (folder / "metrics.csv").open(newline="") as file:
            return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]

    return read


@pytest.fixture
def report():
    """The content of a run's report.json."""
    return lambda folder: json.loads((folder / "report.json").read_text())
