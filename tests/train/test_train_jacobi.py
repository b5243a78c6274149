"""`python -m learnsolve.train jacobi`: what a run computes and what it leaves in its folder."""

import json
import re
import sys
from html import unescape

import numpy as np
import pytest
import scipy.io
import scipy.sparse
import torch
import yaml
from safetensors.torch import load_file

from learnsolve import problems, train
from learnsolve.recipes import matrix
from learnsolve.recipes.harness.report import Progress
from learnsolve.recipes.jacobi import JacobiRecipe, JacobiSettings
from learnsolve.recipes.jacobi.results import SWEEPS, best_constant, convergence_factor, relative_errors


def dense_loss(A: torch.Tensor, weight: torch.Tensor, E: torch.Tensor, sweeps: int = 1) -> float:
    """The sum of e^T A e after the sweeps, over the columns of E."""
    x = E
    for _ in range(sweeps):
        x = x - (weight / A.diagonal()).unsqueeze(1) * (A @ x)
    return float((x * (A @ x)).sum())


def test_device_auto_is_stored_as_what_it_was(run):
    code, folder = run("--steps", 1, "--device", "auto")
    assert code == train.OK
    device = yaml.safe_load((folder / "config.yaml").read_text())["device"]
    assert device == ("cuda" if torch.cuda.is_available() else "cpu")


def test_a_run_leaves_its_files_and_says_what_it_learned(run, rows, capsys, leaves):
    code, folder = run("--steps", 120)
    assert code == train.OK
    leaves(folder, "energy.png", "loss.png", "weights.png")

    weight = load_file(folder / "model.safetensors")["weight"]
    assert weight.shape == (16,)
    assert weight.dtype == torch.float64

    table = rows(folder)
    assert [int(row["step"]) for row in table] == list(range(121))
    assert float(table[-1]["gradient_norm"]) < 0.1 < 10 < float(table[0]["gradient_norm"])
    assert [bool(row["held_out_loss"]) for row in table] == [step % 10 == 0 for step in range(121)]

    report = json.loads((folder / "report.json").read_text())
    assert report["final_loss"] == float(table[-1]["loss"])
    compared = report["weights"]
    assert (
        compared["learned"]["held_out_loss"] == report["held_out_loss"] == float(table[-1]["held_out_loss"])
    )
    losses = [compared[n]["held_out_loss"] for n in ("closed form", "learned", "textbook 2/3", "weight 1")]
    assert losses == sorted(losses)
    # The spectral radius of I - A / 2, which the residual of random vectors comes down to.
    assert compared["weight 1"]["convergence_factor"] == pytest.approx(np.cos(np.pi / 17), rel=1e-3)
    assert report["versions"]["torch"] == torch.__version__
    assert 0 < report["seconds_per_step"] < 1

    html = (folder / "report.html").read_text()
    assert html.count('src="data:image/png;base64,iVBOR') == 3
    assert "<th>weights</th>" in html
    assert report["learned"] in unescape(html)
    assert "http" not in html

    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["steps"] == 120
    assert config["held_out"] == 100
    assert config["problem"]["shape"] == 16

    printed = capsys.readouterr()
    assert printed.err == ""
    lines = printed.out.strip().splitlines()
    assert lines[-1] == "Results: run"
    assert lines[-2].startswith("The two ends carry the larger weights (0.7")
    assert lines[-2] == report["learned"]
    assert [line.split("  ")[0] for line in lines[2:7]] == [
        "learned",
        "weight 1",
        "textbook 2/3",
        "best constant",
        "closed form",
    ]


@pytest.mark.parametrize("sweeps", [1, 3])
def test_the_best_constant_weight_and_the_errors_it_leaves(sweeps):
    settings = JacobiSettings(test_vectors=7, sweeps=sweeps)
    settings.problem.shape = [5, 4]
    settings.check()
    recipe = JacobiRecipe(settings)
    A, E = recipe.A.to_dense(), recipe.test_vectors
    best, ones = best_constant(recipe), torch.ones(20, dtype=torch.float64)
    around = [dense_loss(A, weight * ones, E, sweeps) for weight in (best - 1e-3, best, best + 1e-3)]
    assert around[1] < min(around[0], around[2])
    together, each = relative_errors(recipe, best)
    E = recipe.held_out
    before = [dense_loss(A, ones, e.unsqueeze(1), 0) for e in E.T]
    after = [dense_loss(A, best * ones, e.unsqueeze(1), sweeps) for e in E.T]
    assert each == pytest.approx(np.sqrt(np.divide(after, before)))
    assert together == pytest.approx((sum(after) / sum(before)) ** 0.5)


@pytest.mark.parametrize("vectors", [6, "identity"])
def test_the_best_constant_weight_is_that_of_all_processes(monkeypatch, vectors):
    settings = JacobiSettings(test_vectors=vectors)
    settings.check()
    alone = best_constant(JacobiRecipe(settings))
    monkeypatch.setattr(matrix, "share", lambda count: range(count // 2))
    first = JacobiRecipe(settings)
    assert first.test_vectors.shape[1] == first.count // 2
    assert best_constant(first) == alone


@pytest.mark.parametrize("sweeps", [1, 3])
def test_the_losses_are_those_of_dense_algebra(run, rows, no_pictures, sweeps):
    options = ["--test_vectors", 7, "--problem.shape", "[5,4]", "--sweeps", sweeps]
    _, folder = run("--steps", 0, *options)
    settings = JacobiSettings(test_vectors=7)
    settings.problem.shape = [5, 4]
    settings.check()
    recipe = JacobiRecipe(settings)
    A, ones = recipe.A.to_dense(), torch.ones(20, dtype=torch.float64)
    (row,) = rows(folder)
    training, held_out = recipe.test_vectors, recipe.held_out
    assert float(row["loss"]) == pytest.approx(dense_loss(A, ones, training, sweeps), rel=1e-12)
    assert float(row["held_out_loss"]) == pytest.approx(dense_loss(A, ones, held_out, sweeps), rel=1e-12)
    # Divided so that a sum is the mean: together the vectors are as long as one from N(0, I).
    assert float(held_out.square().sum()) == pytest.approx(20, rel=0.5)

    compared = json.loads((folder / "report.json").read_text())["weights"]
    textbook = dense_loss(A, 0.8 * ones, held_out, sweeps)
    assert compared["textbook 4/5"]["held_out_loss"] == pytest.approx(textbook, rel=1e-12)
    assert ("closed form" in compared) == (sweeps == 1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("options", "n"),
    [
        (["--problem.shape", "[6,5]"], 30),
        (["--problem.shape", "[4,3,5]"], 60),
        (["--problem.shape", "[6,6]", "--problem.stencil", "q1"], 36),
        (["--problem.name", "anisotropic", "--problem.shape", "[6,6]", "--problem.theta", "0.5"], 36),
        (["--problem.name", "diffusion", "--problem.shape", "[6,6]"], 36),
        (["--problem.name", "gallery", "--problem.matrix", "unit_square"], 191),
        (["--sweeps", "3"], 16),
    ],
)
def test_every_kind_of_problem_trains(run, rows, options, n, dtype, no_pictures):
    code, folder = run("--steps", 30, "--dtype", dtype, "--test_vectors", 20, *options)
    assert code == train.OK
    weight = load_file(folder / "model.safetensors")["weight"]
    assert weight.shape == (n,)
    assert weight.dtype == getattr(torch, dtype)
    table = rows(folder)
    assert float(table[-1]["held_out_loss"]) < 0.8 * float(table[0]["held_out_loss"])


def test_matrices_and_graphs_from_files(run, no_pictures, tmp_path):
    A = scipy.sparse.random_array((30, 30), density=0.1, rng=np.random.default_rng(0))
    A = abs(A + A.T)
    A.setdiag(A.sum(axis=1) + 1)
    scipy.io.mmwrite(tmp_path / "spd.mtx", scipy.sparse.coo_array(A), symmetry="symmetric")
    code, folder = run(
        "--problem.name", "matrix_market", "--problem.path", "spd.mtx", "--test_vectors", "identity"
    )
    assert code == train.OK
    report = json.loads((folder / "report.json").read_text())
    assert report["problem"]["n"] == 30
    assert report["closed_form_distance"] < 1e-3

    edges = ["--problem.name", "graph_laplacian", "--problem.path", "spd.mtx", "--problem.shift", 0.5]
    code, folder = run("--steps", 3, *edges, out="graph")
    assert code == train.OK
    recorded = json.loads((folder / "report.json").read_text())
    assert recorded["problem"]["description"] == "graph of spd.mtx"


@pytest.mark.parametrize("shape", ["[7,6]", "[4,5,6]", "300"])
def test_pictures_of_grids(run, shape):
    code, folder = run("--steps", 2, "--test_vectors", 3, "--problem.shape", shape)
    assert code == train.OK
    assert (folder / "weights.png").read_bytes().startswith(b"\x89PNG")


def test_each_option_changes_the_run(run, rows, no_pictures):
    """No option is ignored."""
    usual = rows(run("--steps", 4, out="usual")[1])
    changes = "--lr 0.02, --seed 1, --dtype float32, --test_vectors 99, --test_vectors identity, --resample"
    changes += ", --sweeps 2, --held_out 5, --evaluate_every 2, --problem.shape 17"
    for change in changes.split(", "):
        assert rows(run("--steps", 4, *change.split(), out=f"with {change}")[1]) != usual, change
    a = rows(run("--steps", 1, "--problem.name", "diffusion", "--problem.shape", "[4,4]", out="a")[1])
    b = ["--problem.name", "diffusion", "--problem.shape", "[4,4]", "--problem.contrast", 10]
    assert rows(run("--steps", 1, *b, out="b")[1]) != a


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


def test_convergence_factor_of_known_curves():
    geometric = [0.5**k for k in range(SWEEPS + 1)]
    assert convergence_factor(geometric, 0.0) == pytest.approx(0.5)
    levelling = [max(r, 1e-16) for r in geometric]
    assert convergence_factor(levelling, 1e-13) == pytest.approx(0.5)
    assert convergence_factor([1.0] + [0.0] * SWEEPS, 1e-13) == 0.0
    assert convergence_factor([1.0, 1e200], 1e-13) is None


def test_weights_that_diverge_when_repeated_are_called_so(run, no_pictures, capsys, tmp_path):
    # Rows of very different coupling: the best single sweep does not contract.
    A = torch.full((6, 6), 0.95, dtype=torch.float64) + 0.05 * torch.eye(6, dtype=torch.float64)
    scipy.io.mmwrite(tmp_path / "stiff.mtx", scipy.sparse.coo_array(A.numpy()), symmetry="symmetric")
    run("--steps", 1, "--lr", 1e-6, "--problem.name", "matrix_market", "--problem.path", "stiff.mtx")
    assert "sweeps with these weights diverge" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "trained", "lost"),
    [
        ((), "one sweep leaves", "convergence factor, residual after 50 sweeps"),
        (
            ("--sweeps", 5, "--hard_fraction", 0.1),
            "5 sweeps leave of the hardest vectors",
            "loss per vector, convergence factor",
        ),
        (("--steps", 5), None, None),  # near weight 1 the factor and the residual are the best of the table
    ],
)
def test_the_report_says_what_was_trained_where_a_constant_weight_is_better(
    run, no_pictures, capsys, options, trained, lost
):
    run(*options)
    text = capsys.readouterr().out
    if trained is None:
        assert "trained only for" not in text
    else:
        assert f"trained only for the energy that {trained}; a constant weight is better in" in text
        assert text.split("what was not trained: ")[1].startswith(f"{lost}.\n")


def test_a_million_unknowns_fit():
    settings = JacobiSettings(test_vectors=1)
    settings.problem.shape = 1_000_000
    settings.check()
    recipe = JacobiRecipe(settings)
    recipe.loss(0).backward()
    assert recipe.weight.grad is not None
    assert recipe.A.shape == problems.poisson(1_000_000).shape
