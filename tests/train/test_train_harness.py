"""What the harness does for recipes in general: files, pages, progress, TensorBoard."""

import csv
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from html import unescape
from importlib.util import find_spec
from typing import ClassVar

import pytest
import torch
import yaml
from train.train_cases import SMALL

from learnsolve import recipes, train
from learnsolve.recipes.harness import settings as command_line
from learnsolve.recipes.harness.checkpoint import read_metrics
from learnsolve.recipes.harness.recipe import Curves, Recipe, of_run
from learnsolve.recipes.harness.run import Progress, Run
from learnsolve.recipes.harness.run import train as train_run
from learnsolve.recipes.harness.settings import RunSettings
from learnsolve.recipes.pcg import PcgRecipe


@dataclass
class SideBySideSettings(RunSettings):
    """Parabolas.

    Parameters
    ----------
    steps : int
        Optimizer steps.
    """

    SYNONYMS: ClassVar[Mapping[str, str]] = {"epochs": "steps"}

    steps: int = 4


class SideBySide(Recipe):
    """x_i^2 for several i, each with a column of its own."""

    columns = ("first", "never")

    def __init__(self, starts: list[float]):
        self.model = torch.nn.Module()
        self.model.x = torch.nn.Parameter(torch.tensor(starts))

    def optimizer(self):
        return torch.optim.SGD(self.model.parameters(), lr=0.25)

    def loss(self, step):
        return self.model.x.square()

    def evaluate(self):
        self.evaluated = float(self.model.x.detach().sum())
        return self.evaluated

    def measure(self):
        return self.evaluated, None


def side_by_side(folder, starts):
    folder.mkdir()
    settings = SideBySideSettings(steps=4, evaluate_every=2, quiet=True)
    recipe = SideBySide(starts)
    train_run(Run(folder, settings, recipe, recipe.optimizer()))
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file)), recipe.model.x.detach()


def test_losses_side_by_side_are_summed_for_the_gradient_and_averaged_for_the_record(tmp_path):
    two, x = side_by_side(tmp_path / "two", [1.0, 3.0])
    # x <- x - 0.25 * 2 x, whatever stands beside it.
    assert x.tolist() == [1 / 16, 3 / 16]
    assert [float(row["loss"]) for row in two] == [5 / 4**k for k in range(5)]
    one, x = side_by_side(tmp_path / "one", [3.0])
    assert x.tolist() == [3 / 16]
    assert float(one[0]["loss"]) == 9.0


def test_further_columns_are_filled_where_the_recipe_is_evaluated(tmp_path):
    table, _ = side_by_side(tmp_path / "run", [2.0])
    assert [row["first"] for row in table] == ["2.0", "", "0.5", "", "0.125"]
    assert {row["never"] for row in table} == {""}
    history = read_metrics(tmp_path / "run")
    assert history["first"] == [2.0, None, 0.5, None, 0.125] == history["held_out_loss"]


@pytest.mark.parametrize("argv", [["--epochs", "7"], ["--epochs=7"], ["--steps", "7"]])
def test_a_second_name_of_an_option(argv):
    assert command_line.parse("parabolas", SideBySideSettings, argv).steps == 7


# --- what all recipes have ---

ABSENT = {"pcg": {"residuals_ramp.png"}, "gcn": {"seeds.png"}}
ABSENT |= {name: {"sizes.png"} for name in ("precorrector", "neuralif", "multigrid")}  # --scales []


# Of these other tests look at the files of a run too, or they have the figures of another.
OFTEN_SEEN = ("heavyball", "precorrector", "neuralif", "multigrid")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in OFTEN_SEEN)) for name in SMALL]
)
def test_a_run_leaves_its_files_and_says_what_it_learned(run, rows, report, leaves, capsys, name):
    code, out = run("--steps", 3, "--evaluate_every", 2, *SMALL[name].split(), recipe=name)
    assert code == train.OK
    leaves(out, *set(recipes.load(name).files) - ABSENT.get(name, set()))
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


def test_progress_is_lines_or_a_bar_or_nothing(capsys, monkeypatch):
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
    assert "100/100" in (text := capsys.readouterr().err)
    assert "loss 0.125" in text


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
        yield "loss.png", Curves().picture("", partial(of_run, history))

    monkeypatch.setattr(PcgRecipe, "figures", figures)
    few = ["--steps", 4, "--schedule", "cosine", "--evaluate_every", 2, *SMALL["pcg"].split()]
    code, folder = run(*few, "--logger", "tensorboard", recipe="pcg")
    assert code == train.OK
    curves, table = scalars(folder), rows(folder)
    names = set(table[0]) - {"step", "learning_rate"}
    for name in names:
        known = {int(row["step"]): float(row[name]) for row in table if row[name]}
        assert curves[name] == pytest.approx(known, rel=1e-6, abs=1e-6), name
    assert set(curves) == {*names, "learning_rate", "seconds"}
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
