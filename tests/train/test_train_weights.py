"""Recipes of weights and of graph networks: jacobi, heavyball, heavyball_network, gcn."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import planetoid_files as files
import pytest
import scipy.io
import scipy.sparse
import torch
import yaml
from real_data import MISSING, data_folder
from safetensors.torch import load_file
from train.train_cases import make

from learnsolve import CSR, problems, solvers, train
from learnsolve.ops import quadratic_form
from learnsolve.recipes import gcn as gcn_model
from learnsolve.recipes import heavyball, matrix
from learnsolve.recipes.gcn import GcnSettings
from learnsolve.recipes.heavyball import best_parameters, bound, eigenvalues
from learnsolve.recipes.jacobi import (
    SWEEPS,
    best_constant,
    convergence_factor,
    expected_energy,
    optimal_weights,
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
    weight = load_file(folder / "model.safetensors")["weight"]
    assert 0.8 > float(weight[[0, -1]].mean()) >= 0.7 > float(weight[1:-1].mean())


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
    left = dense_loss(A, best * ones, recipe.held_out, sweeps)
    assert recipe.held_out_energy(best) == pytest.approx(left)


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
        (["--problem.shape", "[6,6]", "--problem.discretization", "fe"], 36),
        (["--problem.name", "anisotropic", "--problem.shape", "[6,6]", "--problem.theta", "0.5"], 36),
        (["--problem.name", "diffusion", "--problem.shape", "[6,6]"], 36),
        (["--problem.name", "pyamg_gallery", "--problem.matrix", "unit_square"], 191),
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


DIFFUSION = "--problem.name diffusion --problem.shape [4,4]"


@pytest.mark.parametrize(
    ("recipe", "options", "changes"),
    [
        (
            "jacobi",
            "",
            "lr 0.02, seed 1, dtype float32, test_vectors 99, test_vectors identity",
        ),
        ("jacobi", "", "resample true, sweeps 2, held_out 5, evaluate_every 2, problem.shape 17"),
        ("jacobi", DIFFUSION, "problem.contrast 10"),
        ("gcn", "", "lr 0.02, seed 1, seeds 2, dtype float64, hidden 8, dropout 0.4, weight_decay 0.1"),
        ("gcn", "", "evaluate_every 2"),
    ],
)
def test_each_option_changes_the_run(run, rows, no_pictures, recipe, options, changes):
    options = "--steps", 4, *options.split()
    usual = rows(run(*options, out="usual", recipe=recipe)[1])
    for change in changes.split(", "):
        _, out = run(*options, *f"--{change}".split(), out=f"with {change}", recipe=recipe)
        assert rows(out) != usual, change


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
    assert "the sweeps diverge. Train with more --sweeps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "lost"),
    [
        ((), ["convergence factor", "residual after 50 sweeps"]),
        (("--sweeps", 5, "--hard_fraction", 0.1), ["loss per vector", "convergence factor"]),
        (("--steps", 5), ["loss per vector"]),  # near weight 1 factor and residual are the best
    ],
)
def test_the_report_says_where_a_constant_weight_is_better(run, no_pictures, capsys, options, lost):
    run(*options)
    lines = capsys.readouterr().out.strip().splitlines()
    found = re.findall("Best in ([^:]*): (weight 1|textbook|best constant)", lines[-2])
    assert [column for column, _ in found] == lost


def test_a_million_unknowns_fit():
    recipe = make("jacobi", shape=1_000_000, test_vectors=1)
    recipe.loss(0).backward()
    assert recipe.weight.grad is not None
    assert recipe.A.shape == problems.poisson(1_000_000).shape


MATRICES = {
    "1D": lambda: problems.poisson(16),
    "2D": lambda: problems.poisson((5, 6)),
    "q1": lambda: problems.poisson((5, 6), discretization="fe"),
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


# --- `python -m learnsolve.train heavyball` and `heavyball_network` ---


def dense_sweeps(A, x, alpha, beta, sweeps):
    before = x
    for _ in range(sweeps):
        x, before = x - alpha * (A @ x) + beta * (x - before), x
    return x


def test_a_run_learns_what_the_formula_says(run, rows, report, no_pictures):
    _, out = run("--steps", 200, "--test_vectors", "identity", recipe="heavyball")
    learned, table = load_file(out / "model.safetensors"), rows(out)
    assert set(learned) == {"alpha", "beta"}
    assert (float(table[0]["alpha"]), float(table[0]["beta"])) == (0.5, 0.5)
    assert float(table[-1]["alpha"]) == float(learned["alpha"])
    assert float(table[-1]["loss"]) < 0.8 * float(table[0]["loss"])

    compared = report(out)["parameters"]
    best, usual = compared["best for 12 sweeps"], compared["asymptotic optimum"]
    # The columns of I are the exact expectation: training reaches the formula's minimum.
    for key in ("alpha", "beta"):
        assert compared["learned"][key] == pytest.approx(best[key], rel=1e-3)
    assert compared["learned"]["expected_loss"] == pytest.approx(float(table[-1]["loss"]), rel=1e-9)
    assert best["expected_loss"] <= compared["learned"]["expected_loss"] < compared["start"]["expected_loss"]
    assert usual["expected_loss"] > 100 * best["expected_loss"]
    assert usual["convergence_factor"] < best["convergence_factor"] < 1
    s = torch.sin(torch.tensor(torch.pi / 17, dtype=torch.float64))
    assert usual["alpha"] == pytest.approx(float(1 / (1 + s)))
    assert usual["beta"] == pytest.approx(float((1 - s) / (1 + s)))

    assert yaml.safe_load((out / "config.yaml").read_text())["sweeps"] == 12
    assert report(out)["learned"].startswith("Best in loss per vector: learned (")


@pytest.mark.parametrize("shape", [[7], [4, 3]])
def test_the_losses_of_heavyball_are_those_of_dense_algebra(shape):
    its = make("heavyball", shape=shape, test_vectors=5, sweeps=4, alpha=0.2, beta=0.3)
    A, E = its.A.to_dense(), its.test_vectors
    x = dense_sweeps(A, E, 0.2, 0.3, 4)
    expected = (x * (A @ x)).sum(0)
    torch.testing.assert_close(its.losses(0), expected)
    torch.testing.assert_close(its.loss(0), expected.sum())
    # Divided so that a sum is the mean: together the vectors are as long as one from N(0, I).
    assert float(E.square().sum()) == pytest.approx(len(A), rel=0.8)
    H = its.held_out
    x = dense_sweeps(A, H, 0.1, 0.2, 4)
    assert its.held_out_energy(0.1, 0.2) == pytest.approx(float((x * (A @ x)).sum()))


@pytest.mark.parametrize("sweeps", [0, 1, 5])
def test_the_expected_energy_is_that_of_the_columns_of_the_identity(sweeps):
    A = problems.anisotropic((4, 5), 0.1, 0.4)
    spectrum = eigenvalues(A)
    dense = A.to_dense()
    x = dense_sweeps(dense, torch.eye(20, dtype=torch.float64), 0.2, 0.4, sweeps)
    assert float(heavyball.expected_energy(spectrum, 0.2, 0.4, sweeps)) == pytest.approx(
        float((x * (dense @ x)).sum())
    )
    a, c = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (0.2, 0.4))
    assert torch.autograd.gradcheck(lambda a, c: heavyball.expected_energy(spectrum, a, c, sweeps), (a, c))


@pytest.mark.parametrize("sweeps", [2, 6, 12])
def test_no_neighbor_of_the_best_parameters_is_better(sweeps):
    spectrum = eigenvalues(problems.poisson(16))
    alpha, beta = best_parameters(spectrum, sweeps)
    least = float(heavyball.expected_energy(spectrum, alpha, beta, sweeps))
    for da, dc in ((0.01, 0), (-0.01, 0), (0, 0.01), (0, -0.01), (0.01, 0.01)):
        assert float(heavyball.expected_energy(spectrum, alpha + da, beta + dc, sweeps)) > least
    assert best_parameters(spectrum, sweeps) == (alpha, beta)
    several = torch.stack((spectrum, 3 * spectrum))
    scaled = best_parameters(several, sweeps, torch.tensor([1.0, 1 / 3]))
    assert scaled == pytest.approx((alpha, beta), rel=1e-5)


def test_the_convergence_factor_is_the_radius_of_the_iteration():
    A = problems.poisson(9)
    spectrum, dense, one = eigenvalues(A), A.to_dense(), torch.eye(9, dtype=torch.float64)
    for alpha, beta in ((0.3, 0.5), (0.5, 0.1), (0.7, 0.9), (0.4, -0.2)):
        top = torch.cat(((1 + beta) * one - alpha * dense, -beta * one), 1)
        whole = torch.cat((top, torch.cat((one, 0 * one), 1)))
        radius = float(torch.linalg.eigvals(whole).abs().max())
        assert heavyball.convergence_factor(spectrum, alpha, beta) == pytest.approx(radius, rel=1e-6)


@pytest.mark.parametrize(("shape", "names"), [("[50,60]", {"asymptotic optimum"}), ("3000", set())])
def test_a_large_matrix_has_no_closed_form(run, report, no_pictures, shape, names):
    options = ["--problem.shape", shape, "--sweeps", 5, "--test_vectors", 2, "--alpha", 0.2]
    compared = report(run("--steps", 2, *options, recipe="heavyball")[1])["parameters"]
    assert set(compared) == {"learned", "start"} | names
    for values in compared.values():
        assert values["expected_loss"] is None
        assert (values["convergence_factor"] is None) == (not names)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["anisotropic", "diffusion"])
def test_a_network_learns_for_matrices_that_it_has_not_seen(run, rows, report, no_pictures, family):
    options = ["--family", family, "--grid", "[6,6]", "--evaluate_every", 20]
    _, out = run("--steps", 240, *options, recipe="heavyball_network")
    table = rows(out)
    assert float(table[-1]["held_out_loss"]) < 0.7 * float(table[0]["held_out_loss"])
    left = {name: values["expected_loss"] for name, values in report(out)["parameters"].items()}
    assert left["best of each"] < left["network"] < left["one pair for all"]
    assert left["network"] < left["asymptotic optimum of each"]


def test_the_losses_of_a_network_are_those_of_dense_algebra():
    its = make("heavyball_network", grid=[3, 4], matrices=3, held_out_matrices=2, test_vectors=2, sweeps=4)
    alpha, beta = its.model(its.A)
    expected = []
    for i, A in enumerate(its.A.to_dense()):
        E = its.test_vectors[i]
        assert float((E * (A @ E)).sum()) == pytest.approx(1)
        x = dense_sweeps(A, E, alpha[i], beta[i], 4)
        expected.append((x * (A @ x)).sum())
    torch.testing.assert_close(its.losses(0), torch.stack(expected) / 3)
    (loss := its.loss(0)).backward()
    torch.testing.assert_close(loss, torch.stack(expected).mean())
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in its.model.parameters())
    # Held-out matrices are others; each follows from its index alone.
    assert not torch.equal(its.A.values[:2], its.others.values)
    more = make("heavyball_network", grid=[3, 4], matrices=5, test_vectors=2, sweeps=4)
    assert torch.equal(more.A.values[:3], its.A.values)


def test_whatever_the_network_says_the_sweeps_converge():
    its = make("heavyball_network", family="diffusion", grid=[4, 4], matrices=8)
    with torch.no_grad():
        for scale in (1.0, 30.0):
            for p in its.model.parameters():
                p.normal_(generator=torch.Generator().manual_seed(3)).mul_(scale)
            for spectrum, alpha, beta in zip(eigenvalues(its.A), *its.model(its.A), strict=True):
                assert heavyball.convergence_factor(spectrum, float(alpha), float(beta)) <= 1


def test_the_network_depends_neither_on_scale_nor_on_order():
    its = make("heavyball_network", grid=[4, 4], matrices=2)
    A = its.A
    scaled, beta = its.model.scaled(A)
    torch.testing.assert_close(its.model.scaled(A.with_values(7 * A.values)), (scaled, beta))
    alpha, _ = its.model(A)
    torch.testing.assert_close(alpha * bound(A), scaled)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(0))
    dense = A.to_dense()[0][order][:, order]
    torch.testing.assert_close(its.model.scaled(CSR.from_dense(dense)), (scaled[0], beta[0]))


def test_a_step_that_is_too_long_diverges_by_name(run, capsys):
    assert run("--lr", 10.0, recipe="heavyball")[0] == train.FAILED
    assert "smaller --lr or --alpha" in capsys.readouterr().err


# --- `python -m learnsolve.train gcn`, on a small graph in Planetoid's raw files ---


CITESEER = (data_folder() or Path()) / "citeseer"


def recipe(tmp_path, **options):
    return make("gcn", data=str(files.write(tmp_path / "planetoid")), **options)


def test_a_run_learns_the_classes(run, rows, report, leaves):
    code, out = run("--steps", 60, "--lr", 0.05, recipe="gcn")
    assert code == train.OK
    leaves(out, "loss.png", "accuracy.png")
    weights = load_file(out / "model.safetensors")
    assert weights["conv1.weight"].shape == (files.FEATURES, 16)
    assert weights["conv2.weight"].shape == (16, files.CLASSES)
    assert weights["conv1.weight"].dtype == torch.float32
    table, numbers = rows(out), report(out)
    last = {name: float(value) for name, value in table[-1].items()}
    assert last["held_out_loss"] < 0.7 * float(table[0]["held_out_loss"])
    graph = {"name": "citeseer", "nodes": 42, "edges": 85, "features": 12, "classes": 3}
    assert numbers["graph"] == graph
    for part in ("training", "validation", "test"):
        assert last[f"{part}_accuracy"] == numbers[f"{part}_accuracy"]
    assert numbers["test_accuracy"] > 0.8
    assert "published_test_accuracy" not in numbers
    assert [row[:2] for row in numbers["table"]["rows"]] == [
        *(["training", "6"], ["validation", "20"], ["test", "8"])
    ]
    assert numbers["learned"] == f"Test accuracy {100 * numbers['test_accuracy']:.1f} %."
    config = yaml.safe_load((out / "config.yaml").read_text())
    chosen = {name: config[name] for name in ("steps", "lr", "hidden", "dropout", "weight_decay")}
    assert chosen == {"steps": 60, "lr": 0.05, "hidden": 16, "dropout": 0.5, "weight_decay": 5e-4}


def dense_normalized(A: torch.Tensor) -> torch.Tensor:
    d = (A.sum(1) + 1) ** -0.5
    return d[:, None] * (A + torch.eye(len(A), dtype=A.dtype)) * d[None]


def cross_entropy(Z: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return -torch.log_softmax(Z, 1)[torch.arange(len(labels)), labels].mean()


@pytest.mark.parametrize("step", [0, 3])
def test_the_losses_of_gcn_are_those_of_dense_algebra(tmp_path, step):
    p, decay = 0.3, 0.01
    task = recipe(tmp_path, dtype="float64", dropout=p, weight_decay=decay, hidden=5)
    graph, model, training = task.graph, task.model, task.training
    loss, held_out = task.loss(step), task.evaluate()
    A = dense_normalized(graph.adjacency.to_dense())
    X = graph.features.to_dense()
    assert torch.allclose(X.sum(1)[graph.train], torch.ones(6, dtype=torch.float64))
    drop_X = model._keep((training.X.nnz,), gcn_model.DROP_FEATURES, step)
    drop_H = model._keep((training.first.shape[0], 5), gcn_model.DROP_HIDDEN, step)
    W1, W2 = model.conv1.weight, model.conv2.weight
    features = training.X.with_values(training.X.values * drop_X / (1 - p)).to_dense()
    H = torch.relu(training.first.to_dense() @ features @ W1) * drop_H / (1 - p)
    Z = training.second.to_dense() @ H @ W2
    expected = cross_entropy(Z, graph.labels[graph.train]) + decay / 2 * W1.square().sum()
    torch.testing.assert_close(loss, expected)
    Z = A @ torch.relu(A @ X @ W1) @ W2
    nodes = graph.validation
    assert held_out == pytest.approx(cross_entropy(Z[nodes], graph.labels[nodes]).item(), rel=1e-12)
    right = (Z.argmax(1) == graph.labels)[graph.test].double().mean()
    assert task.scores["test"][1] == right


def test_training_sees_what_its_nodes_depend_on(tmp_path):
    """The smaller inputs give the rows of the whole network."""
    task = recipe(tmp_path, dtype="float64")
    whole, part = task.whole, task.training
    assert part.second.shape[0] == 6
    assert part.X.shape[0] < whole.X.shape[0]
    torch.testing.assert_close(task.model(part), task.model(whole)[task.graph.train])


def test_without_data_and_pooch_the_extra_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("LEARNSOLVE_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pooch", None)
    assert train.main(["gcn", "--out", str(tmp_path / "run")]) == train.FAILED
    message = capsys.readouterr().err
    assert "pip install 'learnsolve[data]'. Or pass the folder with the files by --data" in message


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
    assert (settings.steps, settings.lr, settings.hidden) == (200, 0.01, 16)
    assert (settings.dropout, settings.weight_decay) == (0.5, 5e-4)


@pytest.mark.slow
@pytest.mark.skipif(not CITESEER.is_dir(), reason=MISSING)
def test_citeseer_reaches_the_published_accuracy(run, rows, report):
    code, out = run("--data", CITESEER, "--seeds", 10, recipe="gcn")
    assert code == train.OK
    numbers = report(out)
    assert numbers["test_accuracy"]["mean"] == pytest.approx(numbers["published_test_accuracy"], abs=0.015)
    assert numbers["test_accuracy"]["std"] < 0.015
    assert len(rows(out)) == 201
