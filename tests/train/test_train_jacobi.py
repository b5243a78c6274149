"""`python -m learnsolve.train jacobi`: its losses, its closed form, and what a run learns and says."""

import json
import re

import numpy as np
import pytest
import scipy.io
import scipy.sparse
import torch
from safetensors.torch import load_file
from train.train_cases import make

from learnsolve import CSR, problems, solvers, train
from learnsolve.ops import quadratic_form
from learnsolve.recipes import matrix
from learnsolve.recipes.jacobi import (
    SWEEPS,
    best_constant,
    convergence_factor,
    expected_energy,
    optimal_weights,
    relative_errors,
)


def test_a_run_learns_what_the_paper_says(run, rows, report, no_pictures):
    _, folder = run("--steps", 120)
    table, numbers = rows(folder), report(folder)
    assert float(table[-1]["gradient_norm"]) < 0.1 < 10 < float(table[0]["gradient_norm"])
    assert [bool(row["held_out_loss"]) for row in table] == [step % 10 == 0 for step in range(121)]
    compared = numbers["weights"]
    assert [*compared] == ["learned", "weight 1", "textbook 2/3", "best constant", "closed form"]
    losses = [compared[n]["held_out_loss"] for n in ("closed form", "learned", "textbook 2/3", "weight 1")]
    assert losses == sorted(losses)
    # The spectral radius of I - A / 2, which the residual of random vectors comes down to.
    assert compared["weight 1"]["convergence_factor"] == pytest.approx(np.cos(np.pi / 17), rel=1e-3)
    edge, inside = re.findall(r"on average (\S+) beside the boundary and (\S+) inside", numbers["learned"])[0]
    assert 0.8 > float(edge) >= 0.7 > float(inside)


def dense_loss(A: torch.Tensor, weight: torch.Tensor, E: torch.Tensor, sweeps: int = 1) -> float:
    """The sum of e^T A e after the sweeps, over the columns of E."""
    x = E
    for _ in range(sweeps):
        x = x - (weight / A.diagonal()).unsqueeze(1) * (A @ x)
    return float((x * (A @ x)).sum())


@pytest.mark.parametrize("sweeps", [1, 3])
def test_the_best_constant_weight_and_the_errors_it_leaves(sweeps):
    recipe = make("jacobi", shape=[5, 4], test_vectors=7, sweeps=sweeps)
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
    alone = best_constant(make("jacobi", test_vectors=vectors))
    monkeypatch.setattr(matrix, "share", lambda count: range(count // 2))
    first = make("jacobi", test_vectors=vectors)
    assert first.test_vectors.shape[1] == first.count // 2
    assert best_constant(first) == alone


@pytest.mark.parametrize("sweeps", [1, 3])
def test_the_losses_are_those_of_dense_algebra(run, rows, report, no_pictures, sweeps):
    options = ["--test_vectors", 7, "--problem.shape", "[5,4]", "--sweeps", sweeps]
    _, folder = run("--steps", 0, *options)
    recipe = make("jacobi", shape=[5, 4], test_vectors=7)
    A, ones = recipe.A.to_dense(), torch.ones(20, dtype=torch.float64)
    (row,) = rows(folder)
    training, held_out = recipe.test_vectors, recipe.held_out
    assert float(row["loss"]) == pytest.approx(dense_loss(A, ones, training, sweeps), rel=1e-12)
    assert float(row["held_out_loss"]) == pytest.approx(dense_loss(A, ones, held_out, sweeps), rel=1e-12)
    # Divided so that a sum is the mean: together the vectors are as long as one from N(0, I).
    assert float(held_out.square().sum()) == pytest.approx(20, rel=0.5)

    compared = report(folder)["weights"]
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


def test_matrices_and_graphs_from_files(run, report, no_pictures, tmp_path):
    A = scipy.sparse.random_array((30, 30), density=0.1, rng=np.random.default_rng(0))
    A = abs(A + A.T)
    A.setdiag(A.sum(axis=1) + 1)
    scipy.io.mmwrite(tmp_path / "spd.mtx", scipy.sparse.coo_array(A), symmetry="symmetric")
    code, folder = run(
        "--problem.name", "matrix_market", "--problem.path", "spd.mtx", "--test_vectors", "identity"
    )
    assert code == train.OK
    assert report(folder)["problem"]["n"] == 30
    assert report(folder)["closed_form_distance"] < 1e-3

    edges = ["--problem.name", "graph_laplacian", "--problem.path", "spd.mtx", "--problem.shift", 0.5]
    code, folder = run("--steps", 3, *edges, out="graph")
    assert code == train.OK
    assert report(folder)["problem"]["description"] == "graph of spd.mtx"


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
    recipe = make("jacobi", shape=1_000_000, test_vectors=1)
    recipe.loss(0).backward()
    assert recipe.weight.grad is not None
    assert recipe.A.shape == problems.poisson(1_000_000).shape


MATRICES = {
    "1D": lambda: problems.poisson(16),
    "2D": lambda: problems.poisson((5, 6)),
    "q1": lambda: problems.poisson((5, 6), stencil="q1"),
    "anisotropic": lambda: problems.anisotropic((6, 5), 0.01, 0.3),
    "random": lambda: CSR.from_dense(random_spd(9)),
}


def random_spd(n: int) -> torch.Tensor:
    B = torch.randn(n, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return B @ B.T + torch.eye(n, dtype=torch.float64)


def autograd_loss(A: CSR, weight: torch.Tensor) -> torch.Tensor:
    E = torch.eye(A.shape[0], dtype=torch.float64)
    return quadratic_form(A, solvers.jacobi(A, torch.zeros_like(E), E, weight=weight).x)


@pytest.mark.parametrize("name", MATRICES)
def test_formula_is_the_loss_and_its_minimizer_has_no_gradient(name):
    A = MATRICES[name]()
    n = A.shape[0]
    random = torch.rand(n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert expected_energy(A, random) == pytest.approx(float(autograd_loss(A, random)), rel=1e-12)

    best = optimal_weights(A)
    assert best is not None
    best.requires_grad_()
    start = torch.ones(n, dtype=torch.float64, requires_grad=True)
    (at_best,) = torch.autograd.grad(autograd_loss(A, best), best)
    (at_start,) = torch.autograd.grad(autograd_loss(A, start), start)
    assert at_best.norm() < 1e-9 * at_start.norm()


def test_an_indefinite_quadratic_has_no_minimizer():
    # A o B B^T = [[10, 18], [18, 10]] has the eigenvalue -8.
    A = CSR.from_dense(torch.tensor([[1.0, 3.0], [3.0, 1.0]], dtype=torch.float64))
    best = optimal_weights(A)
    assert best is None or expected_energy(A, best) > expected_energy(A, best + torch.tensor([1.0, -1.0]))
    assert optimal_weights(CSR.from_dense(-torch.eye(2, dtype=torch.float64))) is None


@pytest.mark.parametrize("shape", ["16", "[5,5]"])
def test_training_reaches_the_minimizer(run, report, shape, no_pictures):
    code, folder = run("--test_vectors", "identity", "--problem.shape", shape)
    assert code == train.OK
    A = problems.poisson(json.loads(shape))
    best = optimal_weights(A)
    learned = load_file(folder / "model.safetensors")["weight"]
    torch.testing.assert_close(learned, best, rtol=0, atol=1e-3)
    numbers = report(folder)
    assert numbers["closed_form_distance"] == pytest.approx(float((learned - best).abs().max()))
    # The identity gives the exact mean over random vectors.
    assert numbers["final_loss"] == pytest.approx(expected_energy(A, learned), rel=1e-12)
