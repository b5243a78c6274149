"""The recipes precorrector and neuralif: losses against dense algebra, order of matrices, files, tables."""

import csv
import json

import pytest
import torch

import learnsolve as ls
from learnsolve import train
from learnsolve.recipes.neuralif import NeuralifRecipe, NeuralifSettings
from learnsolve.recipes.precorrector import PrecorrectorRecipe, PrecorrectorSettings

SMALL = ["--matrices", 5, "--batch", 2, "--held_out_matrices", 2, "--test_vectors", 3, "--width", 3]
SMALL += ["--validated", 2, "--evaluated", 2, "--evaluated_larger", 1, "--rounds", 2, "--repeats", 1]
GRID = [*SMALL, "--grid", 5]
ROWS = [*SMALL, "--rows", 20, "--density", 0.1]
KINDS = {
    "precorrector": (PrecorrectorRecipe, PrecorrectorSettings),
    "neuralif": (NeuralifRecipe, NeuralifSettings),
}
NAMES = ("precorrector", "neuralif")


def recipe(name, **options):
    Recipe, Settings = KINDS[name]
    size = {"grid": 4} if name == "precorrector" else {"rows": 12, "density": 0.2}
    few = {"matrices": 5, "batch": 2, "held_out_matrices": 2, "test_vectors": 3, "width": 3, "rounds": 2}
    settings = Settings(**{"dtype": "float64", **size, **few, **options})
    settings.check()
    its = Recipe(settings)
    with torch.no_grad():
        torch.manual_seed(0)
        for p in its.model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return its


def residuals(A, L, b, iterations):
    """||r_i||, i = 1 .. iterations, of conjugate gradients with (L L^T)^-1, by dense algebra."""
    M = torch.linalg.inv(L @ L.T)
    r, p, found = b, M @ b, []
    for _ in range(iterations):
        q, rho = A @ p, r @ (M @ r)
        r = r - rho / (p @ q) * q
        found.append(r.norm())
        p = M @ r + (r @ (M @ r)) / rho * p
    return torch.stack(found)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("loss", ["product", "frobenius", "iterations"])
def test_the_losses_are_those_of_dense_algebra(name, loss):
    its = recipe(name, loss=loss, iterations=3, gamma=0.5, resample=False)
    which, _ = its._of_step(its.vectors(0), 0)
    expected = []
    for i in which:
        A = its.training.matrices[i]
        V = its.normal(A, range(3 * i, 3 * i + 3), 0, 0)
        L, D = its.model.factor(A).to_dense(), A.to_dense()
        if loss == "iterations":
            weights = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64) / 7
            expected.append(sum(weights @ residuals(D, L, b, 3) / b.norm() for b in V.T) / 3)
        else:
            X, B = (torch.linalg.solve(D, V), V) if loss == "product" else (V, D @ V)
            expected.append((L @ L.T @ X - B).square().sum() / B.square().sum())
    losses = its.losses(its.vectors(0), 0)
    torch.testing.assert_close(losses, torch.stack(expected) / 2, rtol=1e-6, atol=1e-8)
    its.loss(0).backward()
    assert all(bool(p.grad.isfinite().all()) for p in its.model.parameters())


def test_every_matrix_comes_once_in_an_epoch():
    its = recipe("precorrector")
    taken = [i for step in range(10) for i in its._of_step(its.vectors(step), step)[0]]
    epochs = [taken[k : k + 5] for k in range(0, 20, 5)]
    assert all(sorted(epoch) == list(range(5)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_held_out_matrices_are_others():
    its = recipe("neuralif")
    seeds = [its.settings.data(split, 5).seeds for split in ("train", "validation", "test")]
    assert not set(seeds[0]) & set(seeds[1]) | set(seeds[1]) & set(seeds[2])


@pytest.mark.parametrize(
    ("name", "options"),
    [pytest.param("precorrector", GRID, marks=pytest.mark.slow), ("neuralif", ROWS)],
)
def test_a_run_learns_and_leaves_a_network(run, rows, leaves, name, options):
    code, out = run("--steps", 60, "--lr", 0.02, "--evaluate_every", 20, *options, recipe=name)
    assert code == train.OK
    leaves(out, "evaluation.csv", "loss.png", "iterations.png", "sizes.png")
    table = rows(out)
    assert float(table[-1]["held_out_loss"]) < float(table[0]["held_out_loss"])
    assert float(table[-1]["iterations"]) > 0
    network = ls.preconditioners.load(out / "model.safetensors")
    report = json.loads((out / "report.json").read_text())
    assert report["network"]["class"] == type(network).__name__
    with (out / "evaluation.csv").open() as file:
        found = list(csv.DictReader(file))
    sizes = sorted({int(row["n"]) for row in found})
    assert sizes == ([25, 100, 400] if name == "precorrector" else [20, 40, 80])
    assert {"learned", "none", "Jacobi", "SSOR", "IC(0)", "MIC(0)"} <= {
        row["preconditioner"] for row in found
    }
    stops = {row["rtol"] for row in found}
    assert stops == {"0.001", "1e-06", "1e-09"} | ({"absolute 1e-06"} if name == "precorrector" else set())
    sample = KINDS[name][1](**({"grid": 5} if name == "precorrector" else {"rows": 20, "density": 0.1}))
    data = sample.data("test", 2)
    mean = sum(ls.solvers.cg(s.A, s.b, rtol=1e-6, M=network(s.A)).iterations for s in data) / 2
    (mine,) = (
        row
        for row in found
        if (row["preconditioner"], row["rtol"], row["n"]) == ("learned", "1e-06", str(sizes[0]))
    )
    assert float(mine["iterations"]) == mean


def test_what_the_recipes_refuse(run, capsys):
    for name, options, message in (
        ("precorrector", ["--batch", 0], "--batch must be at least 1"),
        ("precorrector", ["--scales", "[1]"], "--scales must be at least 2"),
        ("precorrector", ["--contrast", "[1.0]"], "--contrast must be the smallest and the largest"),
        (
            "precorrector",
            ["--aggregate", "[median]"],
            "--aggregate must be a list of sum, mean, max, softmax",
        ),
        ("precorrector", ["--tolerances", "[2.0]"], "--tolerances must be numbers between 0 and 1"),
        ("neuralif", ["--loss", "product"], "give --resample false"),
        ("neuralif", ["--density", 2.0], "--density must be above 0 and at most 1"),
        ("neuralif", ["--gamma", 0.0], "--gamma must be a positive number"),
    ):
        capsys.readouterr()
        assert run(*options, recipe=name)[0] == train.BAD_SETTING
        assert message in capsys.readouterr().err
