"""`--seeds N`: what the runs have in common, on runs in the test's own process."""

import csv
import signal
import statistics
from html import unescape

import numpy as np
import pytest
from matplotlib.collections import FillBetweenPolyCollection
from train.train_cases import SMALL

from learnsolve import recipes, train
from learnsolve.evaluation import figures
from learnsolve.recipes.harness import parallel, seeds
from learnsolve.recipes.harness.recipe import Curves, tabulate
from learnsolve.recipes.jacobi import JacobiRecipe


@pytest.fixture(autouse=True)
def _figures_only(monkeypatch):
    """Figures are made, and drawn by one test."""
    monkeypatch.setattr(seeds, "png", lambda figure: str(figure.axes[0].get_title()).encode())


def test_every_recipe_is_here():
    assert {*SMALL} == set(recipes.RECIPES)


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(name, marks=() if name in ("jacobi", "pcg") else pytest.mark.slow)
        for name in SMALL
        if name != "gcn"  # trains its own side by side
    ],
)
def test_the_runs_are_those_of_their_seeds_and_the_summary_their_means(
    run, rows, report, no_pictures, capsys, recipe
):
    options = ["--steps", 2, "--evaluate_every", 1, *SMALL[recipe].split()]
    code, folder = run(*options, "--seeds", 2, "--seed", 5, recipe=recipe)
    assert code == train.OK
    printed = capsys.readouterr()
    assert printed.err == ""
    _, alone = run(*options, "--seed", 6, out="alone", recipe=recipe)
    assert rows(folder / "seed-6") == rows(alone)

    each = [report(folder / name) for name in ("seed-5", "seed-6")]
    summary, losses = report(folder), [numbers["held_out_loss"] for numbers in each]
    assert summary["held_out_loss"] == {
        "mean": pytest.approx(np.mean(losses)),
        "std": pytest.approx(np.std(losses, ddof=1)),
    }
    assert summary["seeds"] == [5, 6]
    assert [entry["held_out_loss"] for entry in summary["each"]] == losses
    assert printed.out.splitlines()[-2] == summary["learned"]
    assert summary["learned"] in unescape((folder / "report.html").read_text())
    names = [row[0] for row in each[0]["table"]["rows"]]
    assert [row[0] for row in summary["table"]["rows"]] == names

    parts = rows(folder / "seed-5"), rows(folder / "seed-6")
    for both, *two in zip(rows(folder), *parts, strict=True):
        values = [float(row["loss"]) for row in two]
        assert float(both["loss"]) == pytest.approx(statistics.fmean(values))
        assert float(both["loss_std"]) == pytest.approx(statistics.stdev(values))
    pictures = {path.name for path in folder.glob("*.png")}
    assert pictures == {*recipes.load(recipe).curves, "seeds.png"}
    assert (folder / "report.html").read_text().count("data:image/png") == len(pictures)


def test_an_interrupted_run_goes_on_where_it_stopped(run, rows, report, no_pictures, monkeypatch, capsys):
    options = "--steps", 12, "--seeds", 3, "--test_vectors", 5
    _, whole = run(*options, out="whole")
    loss, steps = JacobiRecipe.loss, []

    def interrupted(self, step):
        steps.append(step)
        if len(steps) == 13 + 5:
            signal.raise_signal(signal.SIGINT)
        return loss(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(JacobiRecipe, "loss", interrupted)
        capsys.readouterr()
        code, parts = run(*options, out="parts")
    assert code == train.INTERRUPTED
    assert "stopped at seed 1, step 4" in (message := capsys.readouterr().err)
    assert message.rstrip().endswith("python -m learnsolve.train jacobi --resume parts")
    assert not (parts / "report.json").exists()
    first = (parts / "seed-0" / "report.json").read_bytes()
    assert run("--resume", "parts", out=None)[0] == train.OK
    assert (parts / "seed-0" / "report.json").read_bytes() == first
    for name in ("seed-0", "seed-1", "seed-2", ""):
        assert rows(parts / name) == rows(whole / name)
    assert report(parts)["weights"] == report(whole)["weights"]


def test_more_steps_and_more_seeds(run, rows, no_pictures, monkeypatch, capsys):
    monkeypatch.setattr(seeds, "png", figures.png)
    _, whole = run("--steps", 6, "--seeds", 3, out="whole")
    for name in ("loss.png", "seeds.png"):
        assert (whole / name).read_bytes().startswith(b"\x89PNG")
    _, parts = run("--steps", 4, "--seeds", 2, out="parts")
    assert run("--resume", "parts", "--steps", 6, "--seeds", 3, out=None)[0] == train.OK
    for name in ("seed-0", "seed-1", "seed-2", ""):
        assert rows(parts / name) == rows(whole / name)
    capsys.readouterr()
    assert run("--resume", "parts", "--seeds", 2, out=None)[0] == train.BAD_SETTING
    assert "--seeds 2 is less than the 3" in capsys.readouterr().err
    assert run("--resume", "parts/seed-1", "--seeds", 2, out=None)[0] == train.BAD_SETTING
    assert "--seeds 2 would change the run" in capsys.readouterr().err
    # A run of one seed is a run like any other.
    assert run("--resume", "parts/seed-1", "--steps", 8, out=None)[0] == train.OK
    assert len(rows(parts / "seed-1")) == 9


def test_overwriting_removes_the_runs_and_nothing_else(run, no_pictures):
    _, folder = run("--steps", 1, "--seeds", 3)
    (folder / "seed-2" / "thesis.tex").touch()
    assert run("--steps", 1, "--overwrite")[0] == train.OK
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {"seed-2"}
    assert [path.name for path in (folder / "seed-2").iterdir()] == ["thesis.tex"]
    assert run("--steps", 1, "--seeds", 2, "--overwrite")[0] == train.OK
    assert not (folder / "model.safetensors").exists()


def test_a_seed_that_diverges_is_named(run, report, no_pictures, monkeypatch, capsys):
    loss = JacobiRecipe.loss
    monkeypatch.setattr(
        JacobiRecipe, "loss", lambda self, step: loss(self, step) * (np.nan if self.settings.seed == 1 else 1)
    )
    code, folder = run("--steps", 2, "--seeds", 3)
    assert code == train.FAILED
    message = capsys.readouterr().err
    assert "seed 1, step 0: the training diverged" in message
    assert message.endswith("the last good checkpoint is in run/seed-1\n")
    assert report(folder / "seed-0")["steps"] == 2


def test_torchrun_is_refused(run, monkeypatch, capsys):
    class Joined:
        def __enter__(self):
            return parallel.Group(rank=0, size=2)

        def __exit__(self, *exception):
            return None

    monkeypatch.setattr(parallel, "joined", lambda *_: Joined())
    monkeypatch.setattr("torch.distributed.all_gather_object", lambda codes, own: codes.__setitem__(0, own))
    assert run("--seeds", 2)[0] == train.BAD_SETTING
    assert (
        "--seeds 2 trains one run after another in one process; start it without" in capsys.readouterr().err
    )


def test_a_table_has_a_line_for_each_name_and_a_header_for_each_cell():
    """What the first row of a name has, then what each of its rows adds."""
    rows = [{"name": name, "rtol": rtol, "x": None} for name in "ab" for rtol in (0.1, 0.01)]
    heads, lines = tabulate(
        rows, {"M": "name", "x": "x"}, lambda row: {"rtol": row["rtol"], "ms": row["name"]}
    )
    assert heads == ["M", "x", "rtol", "ms", "rtol", "ms"]
    assert lines == [["a", "", 0.1, "a", 0.01, "a"], ["b", "", 0.1, "b", 0.01, "b"]]


def test_cells_and_reports():
    assert seeds.one_cell([2.0, 2.0]) == "2.000"
    assert seeds.one_cell([1.0, "diverges"]) == "diverges in 1 of 2"
    assert seeds.one_cell(["10.0 ± 3.0", "12.0 ± 1.0"]) == "11.00 ± 1.4"
    assert seeds.merged([{"a": [1, None]}, {"a": [1, 2.0]}]) == {"a": [1, [None, 2.0]]}
    assert seeds.merged([[1], [1, 2]]) == [[1], [1, 2]]
    assert seeds.merged([True, False]) == [True, False]


def histories(values):
    return [{"step": [0, 1], "loss": list(column), "held_out_loss": [None, None]} for column in values]


def bands(figure):
    (axes,) = figure.axes
    areas = [c for c in axes.collections if isinstance(c, FillBetweenPolyCollection)]
    return axes, [area.get_paths()[0].vertices[:, 1] for area in areas]


def test_a_band_on_a_logarithmic_axis_is_positive():
    axes, (band,) = bands(seeds.curves_figure("", Curves(log=True), histories([[1.0, 1e-9], [100.0, 1.0]])))
    assert axes.get_yscale() == "log"
    assert axes.lines[0].get_ydata()[0] == pytest.approx(10.0)
    deviation = np.std(np.log([1.0, 100.0]), ddof=1)
    assert band.min() > 0
    assert np.isclose(band, 10 * np.exp(2 * deviation)).any()
    _, (band,) = bands(seeds.curves_figure("", Curves(log=True), histories([[1.0, 0.0], [1.0, 2.0]])))
    assert band.min() > 0


def test_curves_name_settings_and_leave_out_what_would_squeeze_them():
    curves = Curves("Through {sweeps} sweeps", columns={"loss": "{sweeps} sweeps"}, log=True)
    curves = curves.of(JacobiRecipe.Settings(sweeps=7))
    values = figures.Line("none", 2.0), figures.Line("learned", 1000.0)
    figure = curves.picture(curves.title, lambda column: ([0, 1], [4.0, 1.0], None), values)
    (axes,) = figure.axes
    assert axes.get_title() == "Through 7 sweeps"
    assert [line.get_label() for line in axes.lines] == ["none", "7 sweeps"]
    assert curves.picture("", lambda column: ([], [], None)) is None


def test_a_band_is_two_deviations_wide():
    axes, (band,) = bands(seeds.curves_figure("", Curves(), histories([[1.0, 5.0], [3.0, 5.0]])))
    assert axes.lines[0].get_ydata().tolist() == [2.0, 5.0]
    assert band.max() == pytest.approx(5.0)
    assert band.min() == pytest.approx(2 - 2 * 2**0.5)
    assert "2 seeds" in axes.get_title()


def test_curves_end_where_the_first_run_ended():
    short, long = histories([[1.0, 2.0], [3.0, 4.0]])
    long["step"], long["loss"], long["held_out_loss"] = [0, 1, 2], [3.0, 4.0, 5.0], [None] * 3
    table = list(csv.DictReader(seeds.mean_metrics([long, short]).splitlines()))
    assert [row["loss"] for row in table] == ["2.0", "3.0"]
