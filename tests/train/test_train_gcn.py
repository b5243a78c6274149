"""`python -m learnsolve.train gcn`, on a small graph in Planetoid's raw files."""

import sys
from pathlib import Path

import numpy as np
import planetoid_files as files
import pytest
import torch
import yaml
from real_data import MISSING, data_folder
from safetensors.torch import load_file
from train.train_cases import make

from learnsolve import train
from learnsolve.recipes import gcn
from learnsolve.recipes import gcn as gcn_model
from learnsolve.recipes.gcn import GcnSettings

CITESEER = (data_folder() or Path()) / "citeseer"


def recipe(tmp_path, **options):
    return make("gcn", data=str(files.write(tmp_path / "planetoid")), **options)


def test_a_run_learns_and_has_the_accuracies_of_each_initialization(run, rows, report, leaves):
    code, out = run("--epochs", 60, "--seeds", 3, "--lr", 0.05, recipe="gcn")
    assert code == train.OK
    leaves(out, "loss.png", "accuracy.png", "seeds.png")
    weights = load_file(out / "model.safetensors")
    assert weights["conv1.weight"].shape == (3, files.FEATURES, 16)
    assert weights["conv2.weight"].shape == (3, 16, files.CLASSES)
    assert weights["conv1.weight"].dtype == torch.float32
    table, numbers = rows(out), report(out)
    last = {name: float(value) for name, value in table[-1].items()}
    assert last["held_out_loss"] < 0.7 * float(table[0]["held_out_loss"])
    graph = {"name": "citeseer", "nodes": 42, "edges": 85, "features": 12, "classes": 3}
    assert (numbers["seeds"], numbers["variant"], numbers["graph"]) == (3, "kipf_welling", graph)
    for part in ("training", "validation", "test"):
        each = np.array(numbers[f"{part}_accuracies"])
        assert len(each) == 3
        mean, std = (numbers[f"{part}_accuracy_{what}"] for what in ("mean", "std"))
        assert (mean, std) == (pytest.approx(each.mean()), pytest.approx(each.std(ddof=1)))
        assert (last[f"{part}_accuracy"], last[f"{part}_accuracy_std"]) == (mean, std)
    assert numbers["test_accuracy_mean"] > 0.8
    assert "published_test_accuracy" not in numbers
    assert [row[:2] for row in numbers["table"]["rows"]] == [
        *(["training", "6"], ["validation", "20"], ["test", "8"])
    ]
    assert numbers["learned"].startswith("Test accuracy ")
    assert "mean of 3 initializations" in numbers["learned"]
    config = yaml.safe_load((out / "config.yaml").read_text())
    chosen = {name: config[name] for name in ("steps", "lr", "hidden", "dropout", "weight_decay")}
    assert chosen == {"steps": 60, "lr": 0.05, "hidden": 16, "dropout": 0.5, "weight_decay": 5e-4}


def test_one_initialization_has_no_deviation(run, rows, report, no_pictures):
    _, out = run("--epochs", 3, recipe="gcn")
    assert {row["loss_std"] for row in rows(out)} == {row["test_accuracy_std"] for row in rows(out)} == {""}
    assert report(out)["test_accuracy_std"] is None
    assert report(out)["test_accuracies"] == [report(out)["test_accuracy_mean"]]


def dense_normalized(A: torch.Tensor, loops: bool) -> torch.Tensor:
    d = (A.sum(1) + 1) ** -0.5
    A = A + torch.eye(len(A), dtype=A.dtype) if loops else A
    return d[:, None] * A * d[None]


def cross_entropy(Z: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return -torch.log_softmax(Z, 1)[torch.arange(len(labels)), labels].mean()


@pytest.mark.parametrize("step", [0, 3])
def test_the_losses_are_those_of_dense_algebra(tmp_path, step):
    p, decay = 0.3, 0.01
    task = recipe(tmp_path, seeds=2, dtype="float64", dropout=p, weight_decay=decay, hidden=5)
    graph, model, training = task.data.graph, task.model, task.data.training
    losses, held_out = task.loss(step), task.evaluate()
    A = dense_normalized(graph.adjacency.to_dense(), loops=True)
    X = graph.features.to_dense()
    assert torch.allclose(X.sum(1)[graph.train], torch.ones(6, dtype=torch.float64))
    drop_X = model._keep((training.X.nnz,), gcn_model.DROP_FEATURES, step)
    drop_H = model._keep((training.first.shape[0], 5), gcn_model.DROP_HIDDEN, step)
    expected, scores = [], []
    for s in range(2):
        W1, W2 = model.conv1.weight[s], model.conv2.weight[s]
        features = training.X.with_values(training.X.values * drop_X[s] / (1 - p)).to_dense()
        H = torch.relu(training.first.to_dense() @ features @ W1) * drop_H[s] / (1 - p)
        Z = training.second.to_dense() @ H @ W2
        expected.append(cross_entropy(Z, graph.labels[graph.train]) + decay / 2 * W1.square().sum())
        Z = A @ torch.relu(A @ X @ W1) @ W2
        nodes = graph.validation
        scores.append(cross_entropy(Z[nodes], graph.labels[nodes]))
        right = (Z.argmax(1) == graph.labels)[graph.test].double().mean()
        assert task.scores["test"][1][s] == right
    torch.testing.assert_close(losses, torch.stack(expected))
    assert held_out == pytest.approx(torch.stack(scores).mean().item(), rel=1e-12)


def test_training_sees_what_its_nodes_depend_on(tmp_path):
    """The smaller inputs give the rows of the whole network."""
    task = recipe(tmp_path, seeds=2, dtype="float64")
    (whole,) = task.data.evaluated
    part = task.data.training
    assert part.second.shape[0] == 6
    assert part.X.shape[0] < whole.X.shape[0]
    torch.testing.assert_close(task.model(part), task.model(whole)[:, task.data.graph.train])


def test_the_demonstration_is_that_of_dense_algebra(tmp_path):
    task = recipe(tmp_path, variant="demo", seeds=2, dtype="float64")
    graph, model = task.data.graph, task.model
    assert task.settings.steps == 100
    assert model.conv1.weight.shape == (2, files.FEATURES, 100)
    losses, held_out = task.loss(7), task.evaluate()
    training, test = task.data.parts
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
        losses_of_part = []
        for s in range(2):
            (W1, b1), (W2, b2) = ((layer.weight[s], layer.bias[s]) for layer in (model.conv1, model.conv2))
            Z = A @ torch.relu(A @ X @ W1 + b1) @ W2 + b2
            losses_of_part.append(cross_entropy(torch.sigmoid(Z), graph.labels[nodes]))
        results[name] = torch.stack(losses_of_part)
    torch.testing.assert_close(losses, results["training"])
    assert held_out == pytest.approx(results["test"].mean().item(), rel=1e-12)
    assert model.conv1.weight.detach().std() == pytest.approx(1, rel=0.1)
    assert model.conv2.bias.detach().abs().max() > 0.1


def test_the_demonstration_runs(run, rows, report, leaves):
    code, out = run("--variant", "demo", "--epochs", 5, recipe="gcn")
    assert code == train.OK
    leaves(out, "loss.png", "accuracy.png")
    assert report(out)["variant"] == "demo"
    assert "validation_accuracies" not in report(out)
    assert rows(out)[-1]["validation_accuracy"] == ""
    assert rows(out)[-1]["test_loss"] == rows(out)[-1]["held_out_loss"]


@pytest.mark.parametrize("variant", ["kipf_welling", "demo"])
def test_a_training_does_not_depend_on_how_many_run_with_it(run, no_pictures, variant):
    options = "--epochs", 12, "--variant", variant
    trained = [
        load_file(run(*options, "--seeds", count, out=f"{count}", recipe="gcn")[1] / "model.safetensors")
        for count in (1, 2, 5)
    ]
    for one, more in ((0, 1), (0, 2), (1, 2)):
        for name, weights in trained[one].items():
            assert torch.equal(weights, trained[more][name][: len(weights)])
    first, second = trained[1]["conv1.weight"]
    assert not torch.equal(first, second)


def test_each_option_changes_the_run(run, rows, no_pictures):
    usual = rows(run("--epochs", 3, out="usual", recipe="gcn")[1])
    changes = "--lr 0.02, --seed 1, --seeds 2, --dtype float64, --hidden 8, --dropout 0.4, --weight_decay 0.1"
    changes += ", --evaluate_every 2, --variant demo"
    for change in changes.split(", "):
        _, out = run("--epochs", 3, *change.split(), out=f"with {change}", recipe="gcn")
        assert rows(out) != usual, change


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
    demo = GcnSettings(variant="demo", hidden=7)
    demo.check()
    assert (demo.steps, demo.lr, demo.hidden, demo.dropout, demo.weight_decay) == (100, 0.1, 7, 0.0, 0.0)


@pytest.mark.slow
@pytest.mark.skipif(not CITESEER.is_dir(), reason=MISSING)
def test_citeseer_reaches_the_published_accuracy(run, rows, report):
    code, out = run("--data", CITESEER, "--seeds", 10, recipe="gcn")
    assert code == train.OK
    numbers = report(out)
    assert numbers["test_accuracy_mean"] == pytest.approx(numbers["published_test_accuracy"], abs=0.015)
    assert numbers["test_accuracy_std"] < 0.015
    assert len(rows(out)) == 201
