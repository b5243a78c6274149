"""`evaluate`: the table, the files, the figure."""

import csv
import json
import sys

import pytest
import torch
from evaluated import F64, MATRICES, Jacobi, Skew

import learnsolve as ls


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


def test_the_execution_stands_beside_the_seconds(small, tmp_path):
    head, _, *lines = str(small).splitlines()
    at = head.index("execution") + len("execution")
    assert head.index("seconds") < at < head.index("set-up")
    assert [line[at - 8 : at].strip() for line in lines] == ["compiled"] * 6 + ["-"] * 3
    small.to_csv(tmp_path / "a.csv")
    with (tmp_path / "a.csv").open() as file:
        assert [row["execution"] for row in csv.DictReader(file)] == ["compiled"] * 6 + [""] * 3
    small.to_json(tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text())["rows"][0]["execution"] == "compiled"


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


def test_a_name_with_an_underscore_is_in_the_legend():
    pytest.importorskip("matplotlib")
    result = ls.evaluate(
        MATRICES["poisson 1D"](), torch.ones(60, dtype=F64), {"_mine": None, "J": Jacobi}, repeats=1
    )
    (axes,) = result.plot().axes
    assert [text.get_text().strip() for text in axes.get_legend().get_texts()] == ["_mine", "J"]
