"""The recipe gnp: its loss against dense algebra, its vectors, its files and its table."""

import json

import pytest
import torch

import learnsolve as ls
from learnsolve.recipes.gnp import GnpRecipe, GnpSettings

GRID = ["--problem.shape", "[5,4]", "--test_vectors", 3, "--width", 4, "--layers", 2, "--krylov", 6]
FEW = [*GRID, "--evaluated", 2, "--repeats", 1, "--iterations", 12, "--evaluate_every", 2]


def recipe(**options):
    settings = GnpSettings(**{"dtype": "float64", "test_vectors": 5, "width": 4, "layers": 2, **options})
    settings.problem.shape = [5, 4]
    settings.check()
    return GnpRecipe(settings)


def test_the_loss_is_that_of_dense_algebra():
    its = recipe()
    A, B = its.A.to_dense(), its.vectors(3)
    assert bool((its.A.diagonal() == 0).all())
    torch.testing.assert_close(B.square().mean(0), torch.ones(5, dtype=B.dtype))
    losses = its.losses(B, 3)
    expected = [(A @ its.model(b) - b).abs().mean() / 5 for b in B.T]
    torch.testing.assert_close(losses, torch.stack(expected))


def test_half_of_the_vectors_are_from_the_krylov_space_and_each_step_has_others():
    its = recipe(krylov=6)
    B, space = its.vectors(2), its.A @ its._basis
    outside = (B - space @ (space.T @ B)).norm(dim=0)
    assert bool((outside[:3] > 0.1).all())
    assert bool((outside[3:] < 1e-10).all())
    assert not torch.equal(its.vectors(1), B)
    assert torch.equal(its.vectors(2), B)
    fixed = recipe(resample=False)
    assert torch.equal(fixed.vectors(1), fixed.vectors(2))


@pytest.mark.slow
def test_a_run_is_resumed_and_its_file_is_a_preconditioner(run, rows, leaves):
    code, whole = run(*FEW, "--steps", 8, out="whole", recipe="gnp")
    assert code == 0
    leaves(whole, "evaluation.csv", "loss.png", "convergence.png")
    assert run(*FEW, "--steps", 4, "--schedule_steps", 8, out="part", recipe="gnp")[0] == 0
    code, _ = run("--resume", "part", "--steps", 8, out=None, recipe="gnp")
    assert code == 0
    assert rows(whole) == rows(whole.parent / "part")
    report = json.loads((whole / "report.json").read_text())
    by_name = {row["preconditioner"]: row for row in report["evaluation"]}
    assert "pivot" in by_name["ILU(0)"]["message"]
    assert by_name["learned"]["residual"] < 1
    M = ls.preconditioners.load(whole / "model.safetensors")
    A = recipe().A
    b = torch.ones(20, dtype=torch.float64)
    assert ls.solvers.fgmres(A, b, M=M, restart=20).converged


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--test_vectors", "identity"], "--test_vectors must be a number here"),
        (["--problem.shape", "[4,4,4]"], "convection_diffusion needs a shape of two axes"),
        (["--krylov", 0], "--krylov must be at least 1"),
        (["--problem.contrast", 3], "--problem.contrast is not used by --problem.name convection_diffusion"),
    ],
)
def test_settings_that_do_not_fit(run, options, words, capsys):
    assert run(*options, recipe="gnp")[0] == 2
    assert words in " ".join(capsys.readouterr().err.split())
