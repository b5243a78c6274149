"""`--logger tensorboard`, read by TensorBoard's own reader; skipped where the package is not installed."""

import csv
import sys
from importlib.util import find_spec

import pytest

from learnsolve import train
from learnsolve.recipes.harness.figures import loss_figure
from learnsolve.recipes.pcg import PcgRecipe

MISSING = "tensorboard is not installed: pip install 'learnsolve[tensorboard]'"
installed = pytest.mark.skipif(find_spec("tensorboard") is None, reason=MISSING)
PCG = "--nx", 4, "--ny", 4, "--test_vectors", 4, "--evaluated", 2, "--schedule", "cosine", "--steps", 4


def events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0, "images": 0})
    found.Reload()
    return found


def scalars(folder):
    log = events(folder)
    found = {tag: [(e.step, e.value) for e in log.Scalars(tag)] for tag in log.Tags()["scalars"]}
    assert all(len(dict(pairs)) == len(pairs) for pairs in found.values())  # a step has one value
    return {tag: dict(pairs) for tag, pairs in found.items()}


@installed
def test_losses_learning_rate_and_pictures(pcg_run, monkeypatch):
    def figures(self, history, outcome):
        yield "loss.png", loss_figure("", "", history)

    monkeypatch.setattr(PcgRecipe, "figures", figures)
    code, folder = pcg_run(*PCG, "--evaluate_every", 2, "--logger", "tensorboard")
    assert code == train.OK
    found = scalars(folder)
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    names = set(rows[0]) - {"step", "learning_rate"}
    for name in names:
        known = {int(row["step"]): float(row[name]) for row in rows if row[name]}
        assert found[name] == pytest.approx(known, rel=1e-6, abs=1e-6), name
    assert set(found) == {*names, "learning_rate"}
    assert len(found["learning_rate"]) == 5
    assert found["learning_rate"][4] < found["learning_rate"][0] == pytest.approx(1e-3)
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


def test_nothing_is_logged_by_default(run, no_pictures):
    _, folder = run("--steps", 1)
    assert not (folder / "tensorboard").exists()
