"""The recipe multigrid: its loss against dense algebra, a run from end to end."""

import json

import pytest
import torch

import learnsolve as ls
from learnsolve.recipes.harness.base import SettingError
from learnsolve.recipes.harness.factor_results import candidates
from learnsolve.recipes.multigrid import MultigridRecipe, MultigridSettings
from learnsolve.train import main

SMALL = {"family": "grid", "grid": 6, "matrices": 3, "batch": 2, "held_out_matrices": 2}
SMALL |= {"max_coarse": 4, "test_vectors": 3}


def recipe(**options) -> MultigridRecipe:
    settings = MultigridSettings(**SMALL | {"rounds": 1, "width": 3} | options)
    settings.check()
    return MultigridRecipe(settings)


def test_loss_by_dense_algebra():
    task = recipe(cycles=3)
    with torch.no_grad():
        w = task.model.last.weight
        w.copy_(torch.linspace(-0.5, 0.5, w.numel()).reshape(w.shape))
    every = list(range(2))
    X, B = task._held_out
    found = task._losses(task.others.parts(every, X, B))
    for i, A in enumerate(task.others.matrices):
        start = task.model.start(A)
        M = ls.preconditioners.AMG(
            A, hierarchy=ls.preconditioners.Hierarchy([task.model.prolongation(start)])
        )
        E = torch.eye(36, dtype=A.dtype) - M(A.to_dense())
        error, D = torch.linalg.matrix_power(E, 3) @ B[i], A.to_dense()
        energy = (error * (D @ error)).sum() / (B[i] * (D @ B[i])).sum()
        torch.testing.assert_close(found[i], energy.sqrt() ** (1 / 3))
        torch.testing.assert_close(torch.linalg.matrix_norm(B[i]), torch.ones((), dtype=A.dtype))
    found.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in task.model.parameters())


def test_all_modes_of_the_errors_have_the_same_energy():
    task = recipe(test_vectors=4000)
    A = task.training.matrices[0]
    E, _ = task._pair(A, task._drawn(task.training, 0, 0, 0, 0))
    w, V = torch.linalg.eigh(A.to_dense())
    energies = w * (V.mT @ E).square().mean(1)
    torch.testing.assert_close(energies, torch.ones_like(w), rtol=0, atol=0.15)


def test_training_reduces_the_loss():
    task = recipe(grid=8, batch=3, width=6, cycles=3, lr=1e-2)
    optimizer = task.optimizer()
    every = list(range(2))

    def held_out():
        with torch.no_grad():
            return float(task._losses(task.others.parts(every, *task._held_out)).mean())

    first = held_out()
    for step in range(40):
        optimizer.zero_grad()
        task.loss(step).backward()
        optimizer.step()
    assert held_out() < 0.97 * first


def test_residuals_and_graphs():
    assert recipe(loss="iterations", iterations=2).loss(0).isfinite()
    assert recipe(family="graph", batch=2).loss(0).isfinite()
    found, _ = candidates(recipe().model, 36)
    assert "RS-AMG" in found
    for options, message in (
        ({"max_coarse": 36}, "--max_coarse must be at least 1 and below 36"),
        ({"cycles": 0}, "cycles"),
        ({"grid": 49}, "--grid must be at most 48 with --loss cycles, .* got 49; train on a smaller grid"),
    ):
        with pytest.raises(SettingError, match=message):
            MultigridSettings(**SMALL | options).check()


def test_a_run(tmp_path):
    out = tmp_path / "run"
    small = [f"--{name}={value}" for name, value in SMALL.items()]
    few = [
        "--evaluated=2",
        "--evaluated_larger=1",
        "--scales=[2]",
        "--repeats=1",
        "--validated=1",
        "--steps=2",
    ]
    main(
        [
            "multigrid",
            f"--out={out}",
            *small,
            *few,
            "--rounds=1",
            "--width=3",
            "--evaluate_every=1",
            "--quiet=true",
        ]
    )
    report = json.loads((out / "report.json").read_text())
    assert {row["preconditioner"] for row in report["evaluation"]} >= {"learned", "RS-AMG", "AMG", "IC(0)"}
    assert {row["n"] for row in report["evaluation"]} == {36, 144}
    network = ls.preconditioners.load(out / "model.safetensors")
    A = ls.problems.poisson((7, 7))
    assert ls.solvers.cg(A, torch.ones(49, dtype=A.dtype), M=network(A)).converged
