"""What the harness does for all recipes: files, options, figures, loggers, several seeds."""

import csv
import re
import signal
import statistics
import sys
from dataclasses import dataclass
from functools import partial
from html import unescape
from importlib.util import find_spec

import numpy as np
import pytest
import torch
import yaml
from matplotlib.collections import FillBetweenPolyCollection
from train.train_cases import SMALL

from learnsolve import problems, recipes, train
from learnsolve.evaluation import figures
from learnsolve.preconditioners import Jacobi
from learnsolve.recipes.jacobi import JacobiRecipe
from learnsolve.recipes.pcg import PcgRecipe
from learnsolve.recipes.training import parallel
from learnsolve.recipes.training import run as running
from learnsolve.recipes.training.checkpoint import read_metrics
from learnsolve.recipes.training.recipe import (
    Curves,
    Recipe,
    compare,
    flat,
    make_race_outcome,
    read_series,
    tabulate,
    verdict,
)
from learnsolve.recipes.training.run import Progress, Run
from learnsolve.recipes.training.run import train as train_run
from learnsolve.recipes.training.settings import RunSettings


@dataclass
class ParabolaSettings(RunSettings):
    """A parabola.

    Parameters
    ----------
    steps : int
        Optimizer steps.
    """

    steps: int = 4


class Parabola(Recipe):
    """x^2, and two columns of its own."""

    columns = ("first", "never")

    def __init__(self, start: float):
        self.model = torch.nn.Module()
        self.model.x = torch.nn.Parameter(torch.tensor(start))

    def optimizer(self):
        return torch.optim.SGD(self.model.parameters(), lr=0.25)

    def loss(self, step):
        return self.model.x.square()

    def evaluate(self):
        self.evaluated = float(self.model.x.detach())
        return self.evaluated

    def measure(self):
        return self.evaluated, None


def test_further_columns_are_filled_where_the_recipe_is_evaluated(tmp_path):
    settings = ParabolaSettings(steps=4, lr=0.25, evaluate_every=2, quiet=True)
    recipe = Parabola(2.0)
    train_run(Run(tmp_path, settings, recipe, recipe.optimizer()))
    history = read_metrics(tmp_path)
    assert history["loss"] == [4 / 4**k for k in range(5)]  # x <- x - 0.25 * 2 x
    assert history["first"] == [2.0, None, 0.5, None, 0.125] == history["held_out_loss"]
    assert history["never"] == [None] * 5


# --- what all recipes have ---

OTHER_FILES = {  # besides curves; after so few steps no method solves the systems of gnp
    "jacobi": {"weights.png"},
    "heavyball": {"convergence.png"},
    "pcg": {"evaluation.csv", "times.png", "convergence.png"},
    "gnp": {"evaluation.csv", "convergence.png"},
    "newton": {"evaluation.csv", "convergence.png"},
    **{name: {"evaluation.csv", "times.png"} for name in recipes.FAMILY},
}

# Of these other tests look at the files of a run too, or they have the figures of another.
OFTEN_SEEN = ("heavyball", "precorrector", "neuralif", "multigrid")


@pytest.mark.rows(2)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in OFTEN_SEEN)) for name in SMALL]
)
def test_a_run_leaves_its_files_and_says_what_it_learned(run, rows, report, leaves, capsys, name):
    code, out = run("--steps", 3, "--evaluate_every", 2, *SMALL[name].split(), recipe=name)
    assert code == train.OK
    leaves(out, *recipes.load(name).curves, *OTHER_FILES.get(name, ()))
    table, numbers = rows(out), report(out)
    assert [int(row["step"]) for row in table] == [0, 1, 2, 3]
    assert [bool(row["held_out_loss"]) for row in table] == [True, False, True, True]
    assert numbers["final_loss"] == float(table[-1]["loss"])
    assert numbers["held_out_loss"] == float(table[-1]["held_out_loss"])
    assert numbers["versions"]["torch"] == torch.__version__
    assert numbers["seconds_per_step"] > 0
    page = (out / "report.html").read_text()
    assert page.count('src="data:image/png;base64,iVBOR') == len(list(out.glob("*.png")))
    assert f"<th>{numbers['table']['columns'][0]}</th>" in page
    assert numbers["learned"] in unescape(page)
    assert "http" not in page
    assert yaml.safe_load((out / "config.yaml").read_text())["steps"] == 3
    printed = capsys.readouterr()
    assert printed.err == ""
    lines = printed.out.strip().splitlines()
    names = [row[0] for row in numbers["table"]["rows"]]
    assert [line[: len(label)] for line, label in zip(lines[2:], names, strict=False)] == names
    assert lines[-2:] == [numbers["learned"], "Results: run"]


def test_device_auto_is_stored_as_what_it_was(run, no_pictures):
    code, folder = run("--steps", 1, "--device", "auto")
    assert code == train.OK
    device = yaml.safe_load((folder / "config.yaml").read_text())["device"]
    assert device == ("cuda" if torch.cuda.is_available() else "cpu")


def test_a_config_file_repeats_a_run(run, rows, no_pictures):
    _, first = run("--steps", 5, "--problem.shape", "[4,4]", "--seed", 3, out="first")
    code, second = run("--config", "first/config.yaml", out="second")
    assert code == train.OK
    assert rows(first) == rows(second)


def test_print_config_and_help(capsys):
    assert train.main(["jacobi", "--steps", "7", "--print_config"]) == train.OK
    assert yaml.safe_load(capsys.readouterr().out)["steps"] == 7
    assert train.main(["jacobi", "--help"]) == train.OK
    text = " ".join(capsys.readouterr().out.split())
    for option in ("--problem.shape", "--lr", "--resume", "--test_vectors", "--quiet"):
        assert option in text
    assert "Learning rate of the optimizer. (type: float, default: 0.01)" in text


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_without_a_recipe_the_recipes_are_listed(argv, capsys):
    assert train.main(argv) == train.OK
    assert re.search("^  jacobi +One weight for every row", capsys.readouterr().out, re.MULTILINE)


def test_progress_is_lines_or_one_that_changes_or_nothing(capsys, monkeypatch):
    lines = Progress(0, 100, quiet=False)
    lines.update(50, 0.25, lines.due)
    lines.close(100, 0.125)
    text = capsys.readouterr().err
    assert text.splitlines()[0].startswith("step 50 of 100, loss 0.25")
    assert text.splitlines()[1] == "step 100 of 100, loss 0.125"

    quiet = Progress(0, 100, quiet=True)
    assert quiet.due == float("inf")
    quiet.close(100, 0.5)
    assert capsys.readouterr().err == ""

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    bar = Progress(10, 100, quiet=False)
    bar.update(50, 0.25, bar.due)
    bar.close(100, 0.125)
    first, last = capsys.readouterr().err.split("\r")
    assert first.startswith("step 50 of 100, loss 0.25, ")
    assert last.rstrip(" \n") == "step 100 of 100, loss 0.125"
    assert len(last) > len(first)


# --- --logger tensorboard, read by its own reader ---

MISSING = "tensorboard is not installed: pip install 'learnsolve[tensorboard]'"
installed = pytest.mark.skipif(find_spec("tensorboard") is None, reason=MISSING)


def events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0, "images": 0})
    log.Reload()
    return log


def scalars(folder):
    log = events(folder)
    curves = {tag: [(e.step, e.value) for e in log.Scalars(tag)] for tag in log.Tags()["scalars"]}
    assert all(len(dict(pairs)) == len(pairs) for pairs in curves.values())  # a step has one value
    return {tag: dict(pairs) for tag, pairs in curves.items()}


@installed
def test_losses_learning_rate_and_pictures(run, rows, monkeypatch):
    def figures(self, history, outcome):
        yield "loss.png", Curves().picture("", partial(read_series, history))

    monkeypatch.setattr(PcgRecipe, "figures", figures)
    few = ["--steps", 4, "--schedule", "cosine", "--evaluate_every", 2, *SMALL["pcg"].split()]
    code, folder = run(*few, "--logger", "tensorboard", recipe="pcg")
    assert code == train.OK
    curves, table = scalars(folder), rows(folder)
    names = set(table[0]) - {"step"}
    for name in names:
        known = {int(row["step"]): float(row[name]) for row in table if row[name]}
        assert curves[name] == pytest.approx(known, rel=1e-6, abs=1e-6), name
    assert set(curves) == {*names, "seconds"}
    assert len(curves["learning_rate"]) == 5
    assert curves["learning_rate"][4] < curves["learning_rate"][0] == pytest.approx(1e-3)
    log = events(folder)
    assert log.Tags()["images"] == ["loss"]
    picture = log.Images("loss")[0]
    assert (picture.step, picture.width, picture.height) == (4, 840, 540)
    assert "learned/text_summary" in log.Tags()["tensors"]


@installed
def test_a_resumed_run_goes_on_and_an_overwritten_one_is_gone(run, no_pictures):
    _, folder = run("--steps", 3, "--logger", "tensorboard")
    assert run("--resume", "run", "--steps", 6, out=None)[0] == train.OK
    assert sorted(scalars(folder)["loss"]) == list(range(7))
    run("--steps", 1, "--logger", "tensorboard", "--overwrite")
    assert sorted(scalars(folder)["loss"]) == [0, 1]
    run("--steps", 1, "--overwrite")
    assert not (folder / "tensorboard").exists()


@installed
def test_each_seed_has_its_events(run, no_pictures):
    _, folder = run("--steps", 1, "--seeds", 2, "--logger", "tensorboard")
    first, second = (scalars(folder / f"seed-{seed}")["loss"] for seed in (0, 1))
    assert first != second


def test_without_the_package_the_command_is_named(run, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    code, folder = run("--logger", "tensorboard")
    assert code == train.FAILED
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "learnsolve.train needs tensorboard" in message
    assert message.endswith("pip install 'learnsolve[tensorboard]'\n")
    assert not folder.exists()


# --- `--seeds N` ---


@pytest.fixture(autouse=True)
def _figures_only(monkeypatch, request):
    """Without pictures those of the summary are made, and drawn by one test."""
    if "no_pictures" in request.fixturenames:
        monkeypatch.setattr(running, "png", lambda figure: str(figure.axes[0].get_title()).encode())


def test_every_recipe_is_here():
    assert {*SMALL} == set(recipes.RECIPES)


@pytest.mark.parametrize(
    "recipe",
    [pytest.param(name, marks=() if name in ("jacobi", "pcg") else pytest.mark.slow) for name in SMALL],
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
    monkeypatch.setattr(running, "png", figures.png)
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
    assert message.endswith("The last good checkpoint is in run/seed-1\n")
    assert report(folder / "seed-0")["steps"] == 2


def test_torchrun_is_refused(run, monkeypatch, capsys):
    class Joined:
        def __enter__(self):
            return parallel.Group(rank=0, size=2)

        def __exit__(self, *exception):
            return None

    monkeypatch.setattr(parallel, "join_group", lambda *_: Joined())
    monkeypatch.setattr("torch.distributed.all_gather_object", lambda codes, own: codes.__setitem__(0, own))
    assert run("--seeds", 2)[0] == train.BAD_SETTING
    assert (
        "--seeds 2 trains one run after another in one process. Start it without" in capsys.readouterr().err
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
    assert running.one_cell([2.0, 2.0]) == "2.000"
    assert running.one_cell([1.0, "diverges"]) == "diverges in 1 of 2"
    assert running.one_cell(["10.0 ± 3.0", "12.0 ± 1.0"]) == "11.00 ± 1.4"
    assert running.merge_values([{"a": [1, None]}, {"a": [1, 2.0]}]) == {"a": [1, [None, 2.0]]}
    assert running.merge_values([[1], [1, 2]]) == [[1], [1, 2]]
    assert running.merge_values([True, False]) == [True, False]


def histories(values):
    return [{"step": [0, 1], "loss": list(column), "held_out_loss": [None, None]} for column in values]


def bands(figure):
    (axes,) = figure.axes
    areas = [c for c in axes.collections if isinstance(c, FillBetweenPolyCollection)]
    return axes, [area.get_paths()[0].vertices[:, 1] for area in areas]


def test_a_band_on_a_logarithmic_axis_is_positive():
    axes, (band,) = bands(running.curves_figure("", Curves(log=True), histories([[1.0, 1e-9], [100.0, 1.0]])))
    assert axes.get_yscale() == "log"
    assert axes.lines[0].get_ydata()[0] == pytest.approx(10.0)
    deviation = np.std(np.log([1.0, 100.0]), ddof=1)
    assert band.min() > 0
    assert np.isclose(band, 10 * np.exp(2 * deviation)).any()
    _, (band,) = bands(running.curves_figure("", Curves(log=True), histories([[1.0, 0.0], [1.0, 2.0]])))
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
    axes, (band,) = bands(running.curves_figure("", Curves(), histories([[1.0, 5.0], [3.0, 5.0]])))
    assert axes.lines[0].get_ydata().tolist() == [2.0, 5.0]
    assert band.max() == pytest.approx(5.0)
    assert band.min() == pytest.approx(2 - 2 * 2**0.5)
    assert "2 seeds" in axes.get_title()


def test_curves_end_where_the_first_run_ended():
    short, long = histories([[1.0, 2.0], [3.0, 4.0]])
    long["step"], long["loss"], long["held_out_loss"] = [0, 1, 2], [3.0, 4.0, 5.0], [None] * 3
    table = list(csv.DictReader(running.mean_metrics([long, short]).splitlines()))
    assert [row["loss"] for row in table] == ["2.0", "3.0"]


# --- verdicts ---


def test_a_bound_is_left_out_where_it_is_one():
    compared = {"learned": {"a": 2.0, "b": 2.0}, "best": {"a": 1.0, "b": 1.0}}
    words = verdict(compared, {"loss": "a", "factor": "b"}, bounds={"loss": "best"})
    assert words == "Best in loss: learned (2). Best in factor: best (1, learned: 2)."


@pytest.mark.parametrize(("finished", "words"), [(True, ", training not counted:"), (False, ":")])
def test_the_time_of_a_training_is_said_not_to_count(finished, words):
    A, b = problems.poisson(9), torch.linspace(0, 1, 9, dtype=torch.float64)
    M = {"learned": Jacobi(A) if finished else Jacobi, "Jacobi": Jacobi}
    found = flat(compare(A, b, M, [1e-6], repeats=1), sides="few")
    outcome = make_race_outcome({}, found, "sides", 1e-6, "here", noun=" sides")
    assert f"setup included{words} On few sides it takes 9.0 iterations and" in outcome.sentence
    own, usual = (row[outcome.columns.index("setup ms")] for row in outcome.rows)
    assert (own == "training") == finished
    assert float(usual) > 0
