"""The recipe multigrid: its loss against dense algebra, a run from end to end."""

import json

import pytest
import torch

import learnsolve as ls
from learnsolve.recipes.family.results import candidates
from learnsolve.recipes.harness.recipe import TRAINING
from learnsolve.recipes.harness.settings import SettingError
from learnsolve.recipes.multigrid import MultigridRecipe, MultigridSettings
from learnsolve.train import main

SMALL = {
    "family": "grid",
    "grid": 6,
    "matrices": 3,
    "batch": 2,
    "held_out_matrices": 2,
    "max_coarse": 4,
    "test_vectors": 3,
}


def recipe(**options) -> MultigridRecipe:
    settings = MultigridSettings(**SMALL | {"rounds": 1, "width": 3} | options)
    settings.check()
    return MultigridRecipe(settings)


def test_loss_by_dense_algebra():
    task = recipe(cycles=3)
    with torch.no_grad():
        task.model.last.weight.fill_(0.3)
    every = list(range(2))
    X, B = task._held_out
    found = task._losses(task.others.parts(every, X, B))
    for i, A in enumerate(task.others.matrices):
        start = task.model.start(A)
        M = ls.preconditioners.AMG(
            A, hierarchy=ls.preconditioners.Hierarchy([task.model.prolongation(start)])
        )
        dense = A.to_dense()
        L = torch.linalg.cholesky(dense)
        E = torch.eye(36, dtype=A.dtype) - M(dense)
        before, after = (torch.linalg.matrix_norm(L.mT @ e) for e in (B[i], E @ E @ E @ B[i]))
        torch.testing.assert_close(found[i], (after / before) ** (1 / 3))
        torch.testing.assert_close(torch.linalg.matrix_norm(B[i]), torch.ones((), dtype=A.dtype))
    found.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in task.model.parameters())


def test_errors_have_the_inverse_as_covariance():
    task = recipe(test_vectors=4000)
    A = task.training.matrices[1]
    error = task._drawn(task.training, 1, 0, TRAINING, 0)
    found = A.to_dense() @ error @ error.T / 4000  # the identity
    torch.testing.assert_close(found, torch.eye(36, dtype=A.dtype), atol=0.15, rtol=0)
    plain = recipe(loss="iterations", test_vectors=4000)._drawn(task.training, 1, 0, TRAINING, 0)
    torch.testing.assert_close(plain @ plain.T / 4000, torch.eye(36, dtype=A.dtype), atol=0.15, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"family": "graph", "grid": 10}], ids=str)
def test_training_reduces_the_loss(options):
    fixed = {"batch": 3, "resample": False, "test_vectors": 20}
    task = recipe(**{"rounds": 2, "width": 8, "lr": 1e-2, "steps": 25} | fixed | options)
    assert len({A.shape for A in task.training.matrices}) > 1 or not options
    optimizer, before = task.optimizer(), task.loss(0).item()
    for _ in range(25):
        optimizer.zero_grad()
        task.loss(0).backward()
        optimizer.step()
    assert task.loss(0).item() < 0.97 * before


def test_residuals_and_graphs():
    assert recipe(loss="iterations", iterations=2).loss(0).isfinite()
    assert recipe(family="graph", batch=1).loss(0).isfinite()
    found, _ = candidates(recipe().model, 36)
    assert "RS-AMG" in found
    for options, message in (
        ({"max_coarse": 36}, "--max_coarse must be at least 1 and below 36"),
        ({"cycles": 0}, "cycles"),
        ({"grid": 33}, "--grid must be at most 32 with --loss cycles, which factors dense matrices"),
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
