"""`python -m learnsolve.train gcn`, on a small graph in Planetoid's raw files."""

import csv
import json
import signal
import sys
from pathlib import Path

import numpy as np
import planetoid_files as files
import pytest
import torch
import yaml
from real_data import MISSING, data_folder
from safetensors.torch import load_file

from learnsolve import train
from learnsolve.recipes import gcn
from learnsolve.recipes.gcn import GcnRecipe, GcnSettings
from learnsolve.recipes.gcn import model as gcn_model

CITESEER = (data_folder() or Path()) / "citeseer"


@pytest.fixture
def folder(tmp_path):
    return files.write(tmp_path / "planetoid")


@pytest.fixture
def gcn_run(run, folder):
    """Call with options; returns (exit code, folder)."""

    def call(*options, out: str | None = "run"):
        resumed = "--resume" in options
        return run(*([] if resumed else ["--data", "planetoid"]), *options, out=out, recipe="gcn")

    return call


def recipe(folder, **options) -> GcnRecipe:
    settings = GcnSettings(data=str(folder), **options)
    settings.check()
    return GcnRecipe(settings)


def test_a_run_leaves_its_files_and_says_what_it_learned(gcn_run, rows, capsys, leaves):
    code, out = gcn_run("--epochs", 60, "--seeds", 3, "--lr", 0.05)
    assert code == train.OK
    leaves(out, "loss.png", "accuracy.png", "seeds.png")
    weights = load_file(out / "model.safetensors")
    assert weights["conv1.weight"].shape == (3, files.FEATURES, 16)
    assert weights["conv2.weight"].shape == (3, 16, files.CLASSES)
    assert weights["conv1.weight"].dtype == torch.float32

    table = rows(out)
    assert [int(row["step"]) for row in table] == list(range(61))
    last = {name: float(value) for name, value in table[-1].items()}
    assert last["held_out_loss"] < 0.7 * float(table[0]["held_out_loss"])

    report = json.loads((out / "report.json").read_text())
    assert report["seeds"] == 3
    assert report["variant"] == "kipf_welling"
    assert report["graph"] == {"name": "citeseer", "nodes": 42, "edges": 85, "features": 12, "classes": 3}
    for part in ("training", "validation", "test"):
        each = np.array(report[f"{part}_accuracies"])
        assert len(each) == 3
        assert report[f"{part}_accuracy_mean"] == pytest.approx(each.mean())
        assert report[f"{part}_accuracy_std"] == pytest.approx(each.std(ddof=1))
        assert last[f"{part}_accuracy"] == report[f"{part}_accuracy_mean"]
        assert last[f"{part}_accuracy_std"] == report[f"{part}_accuracy_std"]
    assert report["test_accuracy_mean"] > 0.8
    assert report["held_out_loss"] == last["held_out_loss"]
    assert "published_test_accuracy" not in report

    config = yaml.safe_load((out / "config.yaml").read_text())
    chosen = {name: config[name] for name in ("steps", "lr", "hidden", "dropout", "weight_decay")}
    assert chosen == {"steps": 60, "lr": 0.05, "hidden": 16, "dropout": 0.5, "weight_decay": 5e-4}

    printed = capsys.readouterr()
    assert printed.err == ""
    lines = printed.out.strip().splitlines()
    assert [line.split()[:2] for line in lines[2:5]] == [
        ["training", "6"],
        ["validation", "20"],
        ["test", "8"],
    ]
    assert lines[-1] == "Results: run"
    assert lines[-2] == report["learned"]
    assert lines[-2].startswith("Test accuracy ")
    assert "mean of 3 initializations" in lines[-2]


def test_one_initialization_has_no_deviation(gcn_run, rows, leaves):
    code, out = gcn_run("--epochs", 3)
    assert code == train.OK
    leaves(out, "loss.png", "accuracy.png")
    assert {row["loss_std"] for row in rows(out)} == {row["test_accuracy_std"] for row in rows(out)} == {""}
    report = json.loads((out / "report.json").read_text())
    assert report["test_accuracy_std"] is None
    assert report["test_accuracies"] == [report["test_accuracy_mean"]]


def dense_normalized(A: torch.Tensor, loops: bool) -> torch.Tensor:
    d = (A.sum(1) + 1) ** -0.5
    A = A + torch.eye(len(A), dtype=A.dtype) if loops else A
    return d[:, None] * A * d[None]


def cross_entropy(Z: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return -torch.log_softmax(Z, 1)[torch.arange(len(labels)), labels].mean()


@pytest.mark.parametrize("step", [0, 3])
def test_the_losses_are_those_of_dense_algebra(folder, step):
    p, decay = 0.3, 0.01
    made = recipe(folder, seeds=2, dtype="float64", dropout=p, weight_decay=decay, hidden=5)
    graph, model, training = made.data.graph, made.model, made.data.training
    losses, held_out = made.loss(step), made.evaluate()
    A = dense_normalized(graph.adjacency.to_dense(), loops=True)
    X = graph.features.to_dense()
    assert torch.allclose(X.sum(1)[graph.train], torch.ones(6, dtype=torch.float64))
    drop_X = model._keep((training.X.nnz,), gcn_model.DROP_FEATURES, step)
    drop_H = model._keep((training.first.shape[0], 5), gcn_model.DROP_HIDDEN, step)
    wanted, scores = [], []
    for s in range(2):
        W1, W2 = model.conv1.weight[s], model.conv2.weight[s]
        features = training.X.with_values(training.X.values * drop_X[s] / (1 - p)).to_dense()
        H = torch.relu(training.first.to_dense() @ features @ W1) * drop_H[s] / (1 - p)
        Z = training.second.to_dense() @ H @ W2
        wanted.append(cross_entropy(Z, graph.labels[graph.train]) + decay / 2 * W1.square().sum())
        Z = A @ torch.relu(A @ X @ W1) @ W2
        nodes = graph.validation
        scores.append(cross_entropy(Z[nodes], graph.labels[nodes]))
        right = (Z.argmax(1) == graph.labels)[graph.test].double().mean()
        assert made.scores["test"][1][s] == right
    torch.testing.assert_close(losses, torch.stack(wanted))
    assert held_out == pytest.approx(torch.stack(scores).mean().item(), rel=1e-12)


def test_training_sees_what_its_nodes_depend_on(folder):
    """The smaller inputs give the rows of the whole network."""
    made = recipe(folder, seeds=2, dtype="float64")
    (whole,) = made.data.evaluated
    part = made.data.training
    assert part.second.shape[0] == 6
    assert part.X.shape[0] < whole.X.shape[0]
    torch.testing.assert_close(made.model(part), made.model(whole)[:, made.data.graph.train])


def test_the_demonstration_is_that_of_dense_algebra(folder):
    made = recipe(folder, variant="demo", seeds=2, dtype="float64")
    graph, model = made.data.graph, made.model
    assert made.settings.steps == 100
    assert model.conv1.weight.shape == (2, files.FEATURES, 100)
    losses, held_out = made.loss(7), made.evaluate()
    training, test = made.data.parts
    # Every node with a label is in one part, and their features are as they were read.
    assert len(training.rows) + len(test.rows) == int((graph.labels >= 0).sum())
    assert set(graph.features.values.tolist()) == {1.0}
    trains = torch.rand(
        files.NODES,
        generator=torch.Generator().manual_seed(gcn_model.stream_seed(0, 0, 0, 0)),
        dtype=torch.float64,
    )
    results = {}
    for name, chosen in (("training", trains < 0.8), ("test", trains >= 0.8)):
        nodes = torch.nonzero(chosen & (graph.labels >= 0)).flatten()
        A = dense_normalized(graph.adjacency.to_dense()[nodes][:, nodes], loops=False)
        X = graph.features.to_dense()[nodes]
        found = []
        for s in range(2):
            (W1, b1), (W2, b2) = ((layer.weight[s], layer.bias[s]) for layer in (model.conv1, model.conv2))
            Z = A @ torch.relu(A @ X @ W1 + b1) @ W2 + b2
            found.append(cross_entropy(torch.sigmoid(Z), graph.labels[nodes]))
        results[name] = torch.stack(found)
    torch.testing.assert_close(losses, results["training"])
    assert held_out == pytest.approx(results["test"].mean().item(), rel=1e-12)
    assert model.conv1.weight.detach().std() == pytest.approx(1, rel=0.1)
    assert model.conv2.bias.detach().abs().max() > 0.1


def test_the_demonstration_runs(gcn_run, rows, leaves):
    code, out = gcn_run("--variant", "demo", "--epochs", 5)
    assert code == train.OK
    leaves(out, "loss.png", "accuracy.png")
    report = json.loads((out / "report.json").read_text())
    assert report["variant"] == "demo"
    assert "validation_accuracies" not in report
    assert rows(out)[-1]["validation_accuracy"] == ""
    assert rows(out)[-1]["test_loss"] == rows(out)[-1]["held_out_loss"]


@pytest.mark.parametrize("variant", ["kipf_welling", "demo"])
def test_a_training_does_not_depend_on_how_many_run_with_it(gcn_run, no_pictures, variant):
    options = "--epochs", 12, "--variant", variant
    trained = [
        load_file(gcn_run(*options, "--seeds", count, out=f"{count}")[1] / "model.safetensors")
        for count in (1, 2, 5)
    ]
    for one, more in ((0, 1), (0, 2), (1, 2)):
        for name, weights in trained[one].items():
            assert torch.equal(weights, trained[more][name][: len(weights)])
    first, second = trained[1]["conv1.weight"]
    assert not torch.equal(first, second)


@pytest.mark.parametrize("options", [[], ["--seeds", 3], ["--variant", "demo"], ["--dtype", "float64"]])
def test_more_epochs_go_on_bit_for_bit(gcn_run, rows, no_pictures, options):
    _, whole = gcn_run("--epochs", 12, *options, out="whole")
    _, parts = gcn_run("--epochs", 5, *options, out="parts")
    code, _ = gcn_run("--resume", "parts", "--epochs", 12, out=None)
    assert code == train.OK
    assert rows(whole) == rows(parts)
    assert (whole / "model.safetensors").read_bytes() == (parts / "model.safetensors").read_bytes()
    a, b = (json.loads((out / "report.json").read_text()) for out in (whole, parts))
    assert a["test_accuracies"] == b["test_accuracies"]


def test_an_interrupted_run_goes_on(gcn_run, rows, no_pictures, monkeypatch, capsys):
    _, whole = gcn_run("--epochs", 8, out="whole")
    loss = GcnRecipe.loss

    def interrupted(self, step):
        if step == 4:
            signal.raise_signal(signal.SIGINT)
        return loss(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(GcnRecipe, "loss", interrupted)
        code, parts = gcn_run("--epochs", 8, out="parts")
    assert code == train.INTERRUPTED
    assert "python -m learnsolve.train gcn --resume parts" in capsys.readouterr().err
    assert gcn_run("--resume", "parts", out=None)[0] == train.OK
    assert rows(whole) == rows(parts)


def test_each_option_changes_the_run(gcn_run, rows, no_pictures):
    usual = rows(gcn_run("--epochs", 3, out="usual")[1])
    changes = "--lr 0.02, --seed 1, --seeds 2, --dtype float64, --hidden 8, --dropout 0.4, --weight_decay 0.1"
    changes += ", --evaluate_every 2, --variant demo"
    for change in changes.split(", "):
        assert rows(gcn_run("--epochs", 3, *change.split(), out=f"with {change}")[1]) != usual, change


def test_what_would_change_the_run_is_refused(gcn_run, capsys):
    gcn_run("--epochs", 2)
    for option, value in {"--seeds": 2, "--variant": "demo", "--hidden": 3, "--data": "elsewhere"}.items():
        assert gcn_run(option, value, "--resume", "run", out=None)[0] == train.BAD_SETTING
        assert option in capsys.readouterr().err


def test_without_data_and_pooch_the_extra_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("LEARNSOLVE_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pooch", None)
    assert train.main(["gcn", "--out", str(tmp_path / "run")]) == train.FAILED
    message = capsys.readouterr().err
    assert "pip install 'learnsolve[data]'; or give the folder with the files by --data" in message


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_masks_keep_as_many_as_they_should(p):
    generator = torch.Generator().manual_seed(0)
    mask = gcn_model.keep_mask(torch.Size((333, 301)), p, generator)
    assert mask.dtype == torch.bool
    assert mask.shape == (333, 301)
    assert float(mask.double().mean()) == pytest.approx(1 - p, abs=0.005)
    # Neighbors, which one random number decides on, know nothing of each other.
    flat = mask.flatten().double()
    pairs = flat[:-1] * flat[1:]
    assert float(pairs.mean()) == pytest.approx((1 - p) ** 2, abs=0.006)
    assert not torch.equal(mask, gcn_model.keep_mask(torch.Size((333, 301)), p, generator))


def test_defaults_are_those_of_the_publications():
    settings = GcnSettings()
    settings.check()
    assert gcn.VARIANTS["kipf_welling"] == gcn.Variant(200, 0.01, 16, 0.5, 5e-4, demo=False)
    assert (settings.steps, settings.lr, settings.hidden) == (200, 0.01, 16)
    kept = GcnSettings(variant="demo", hidden=7)
    kept.check()
    assert (kept.steps, kept.lr, kept.hidden, kept.dropout, kept.weight_decay) == (100, 0.1, 7, 0.0, 0.0)


@pytest.mark.slow
@pytest.mark.skipif(not CITESEER.is_dir(), reason=MISSING)
def test_citeseer_reaches_the_published_accuracy(run):
    code, out = run("--data", CITESEER, "--seeds", 10, recipe="gcn")
    assert code == train.OK
    report = json.loads((out / "report.json").read_text())
    assert report["test_accuracy_mean"] == pytest.approx(report["published_test_accuracy"], abs=0.015)
    assert report["test_accuracy_std"] < 0.015
    with (out / "metrics.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 201
