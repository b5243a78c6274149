"""Recipes that train networks: losses against dense algebra, files, tables."""

import csv

import pytest
import torch
from train.train_cases import make

import learnsolve as ls
from learnsolve import train
from learnsolve.recipes import load
from learnsolve.recipes.family import candidates
from learnsolve.recipes.harness.recipe import TRAINING
from learnsolve.recipes.newton import SMALL, energy, starts


def recipe(name, **options):
    size = {"grid": 4} if name == "precorrector" else {"rows": 12, "density": 0.2}
    few = {"matrices": 5, "batch": 2, "held_out_matrices": 2, "test_vectors": 3, "width": 3, "rounds": 2}
    its = make(name, **{"dtype": "float64", **size, **few, **options})
    with torch.no_grad():
        torch.manual_seed(0)
        for p in its.model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return its


def residuals(A, L, b, iterations):
    """||r_i||, i = 1 .. iterations, of conjugate gradients with (L L^T)^-1, by dense algebra."""
    M = torch.linalg.inv(L @ L.T)
    r, p, norms = b, M @ b, []
    for _ in range(iterations):
        q, rho = A @ p, r @ (M @ r)
        r = r - rho / (p @ q) * q
        norms.append(r.norm())
        p = M @ r + (r @ (M @ r)) / rho * p
    return torch.stack(norms)


@pytest.mark.parametrize("name", ["precorrector", "neuralif"])
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
    ("name", "options", "sizes"),
    [
        pytest.param("precorrector", {"grid": 5}, [25, 100, 400], marks=pytest.mark.slow),
        ("neuralif", {"rows": 20, "density": 0.1}, [20, 40, 80]),
        ("multigrid", {"family": "grid", "grid": 6, "max_coarse": 4}, [36, 144, 576]),
    ],
)
def test_a_run_learns_and_leaves_a_network(run, rows, report, leaves, name, options, sizes):
    few = ["--matrices", 5, "--batch", 2, "--held_out_matrices", 2, "--test_vectors", 3, "--width", 3]
    few += ["--validated", 2, "--evaluated", 2, "--evaluated_larger", 1, "--rounds", 2, "--repeats", 1]
    few += ["--steps", 60, "--lr", 0.02, "--evaluate_every", 20]
    code, out = run(*few, *(f"--{option}={value}" for option, value in options.items()), recipe=name)
    assert code == train.OK
    leaves(out, "evaluation.csv", "loss.png", "iterations.png", "sizes.png")
    table = rows(out)
    assert float(table[-1]["held_out_loss"]) < float(table[0]["held_out_loss"])
    assert float(table[-1]["iterations"]) > 0
    network = ls.preconditioners.load(out / "model.safetensors")
    assert report(out)["network"]["class"] == type(network).__name__
    with (out / "evaluation.csv").open() as file:
        key = lambda line: (line["preconditioner"], line["rtol"], int(line["n"]))  # noqa: E731
        lines = {key(line): line for line in csv.DictReader(file)}
    others = {"AMG", "RS-AMG"} if name == "multigrid" else set()
    assert {"learned", "none", "Jacobi", "SSOR", "IC(0)", "MIC(0)", *others} <= {k[0] for k in lines}
    stops = {"0.001", "1e-06", "1e-09"} | ({"absolute 1e-06"} if name == "precorrector" else set())
    assert {k[1] for k in lines} == stops
    assert sorted({k[2] for k in lines}) == sizes
    data = load(name).Settings(**options).data("test", 2)
    taken = [ls.solvers.cg(s.A, s.b, rtol=1e-6, M=network(s.A)).iterations for s in data]
    assert float(lines["learned", "1e-06", sizes[0]]["iterations"]) == sum(taken) / 2


def test_what_the_recipes_refuse(run, capsys):
    for name, options, message in (
        ("precorrector", ["--batch", 0], "--batch must be at least 1"),
        ("precorrector", ["--scales", "[1]"], "--scales must be at least 2"),
        ("precorrector", ["--contrast", "[1.0]"], "--contrast must be the smallest and the largest"),
        ("precorrector", ["--tolerances", "[2.0]"], "--tolerances must be numbers between 0 and 1"),
        ("neuralif", ["--loss", "product"], "give --resample false"),
        ("neuralif", ["--density", 2.0], "--density must be above 0 and at most 1"),
        ("neuralif", ["--gamma", 0.0], "--gamma must be a positive number"),
        ("multigrid", ["--max_coarse", 256], "--max_coarse must be at least 1 and below 256"),
        ("multigrid", ["--cycles", 0], "--cycles"),
        ("multigrid", ["--grid", 33], "--grid must be at most 32 with --loss cycles, which factors dense"),
        ("gnp", ["--test_vectors", "identity"], "--test_vectors must be a number here"),
        ("gnp", ["--problem.shape", "[4,4,4]"], "convection_diffusion needs a shape of two axes"),
        ("gnp", ["--krylov", 0], "--krylov must be at least 1"),
        ("gnp", ["--problem.contrast", 3], "not used by --problem.name convection_diffusion"),
        ("newton", ["--p", 1.5], "--p must be at least 2"),
        ("newton", ["--modes", 21], "--modes must be at most 20 on --grid 32, got 21"),
        ("newton", ["--rtol", 1.0], "--rtol must be a number between 0 and 1, got 1.0"),
        ("newton", ["--length", -1.0], "--length: gaussian_field: length"),
        ("newton", ["--scales", "[1]"], "--scales must be at least 2"),
    ):
        capsys.readouterr()
        assert run(*options, recipe=name)[0] == train.BAD_SETTING
        assert message in capsys.readouterr().err


# --- multigrid ---


GRID = {
    "family": "grid",
    "grid": 6,
    "matrices": 3,
    "batch": 2,
    "held_out_matrices": 2,
    "max_coarse": 4,
    "test_vectors": 3,
}


def multigrid(**options):
    return make("multigrid", **GRID | {"rounds": 1, "width": 3} | options)


def test_loss_by_dense_algebra():
    task = multigrid(cycles=3)
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
    task = multigrid(test_vectors=4000)
    A = task.training.matrices[1]
    error = task._drawn(task.training, 1, 0, TRAINING, 0)
    found = A.to_dense() @ error @ error.T / 4000  # the identity
    torch.testing.assert_close(found, torch.eye(36, dtype=A.dtype), atol=0.15, rtol=0)
    plain = multigrid(loss="iterations", test_vectors=4000)._drawn(task.training, 1, 0, TRAINING, 0)
    torch.testing.assert_close(plain @ plain.T / 4000, torch.eye(36, dtype=A.dtype), atol=0.15, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"family": "graph", "grid": 10}], ids=str)
def test_training_reduces_the_loss(options):
    fixed = {"batch": 3, "resample": False, "test_vectors": 20}
    task = multigrid(**{"rounds": 2, "width": 8, "lr": 1e-2, "steps": 25} | fixed | options)
    assert len({A.shape for A in task.training.matrices}) > 1 or not options
    optimizer, before = task.optimizer(), task.loss(0).item()
    for _ in range(25):
        optimizer.zero_grad()
        task.loss(0).backward()
        optimizer.step()
    assert task.loss(0).item() < 0.97 * before


def test_residuals_and_graphs():
    assert multigrid(loss="iterations", iterations=2).loss(0).isfinite()
    assert multigrid(family="graph", batch=1).loss(0).isfinite()
    assert "RS-AMG" in candidates(multigrid().model, 36)


# --- gnp ---


def gnp(**options):
    return make(
        "gnp", shape=[5, 4], **{"dtype": "float64", "test_vectors": 5, "width": 4, "layers": 2, **options}
    )


def test_the_loss_of_gnp_is_that_of_dense_algebra():
    its = gnp()
    A, B = its.A.to_dense(), its.vectors(3)
    assert bool((its.A.diagonal() == 0).all())
    torch.testing.assert_close(B.square().mean(0), torch.ones(5, dtype=B.dtype))
    losses = its.losses(B, 3)
    expected = [(A @ its.model(b) - b).abs().mean() / 5 for b in B.T]
    torch.testing.assert_close(losses, torch.stack(expected))


def test_half_of_the_vectors_are_from_the_krylov_space_and_each_step_has_others():
    its = gnp(krylov=6)
    B, space = its.vectors(2), its.A @ its._basis
    outside = (B - space @ (space.T @ B)).norm(dim=0)
    assert bool((outside[:3] > 0.1).all())
    assert bool((outside[3:] < 1e-10).all())
    assert not torch.equal(its.vectors(1), B)
    assert torch.equal(its.vectors(2), B)
    fixed = gnp(resample=False)
    assert torch.equal(fixed.vectors(1), fixed.vectors(2))


@pytest.mark.slow
def test_the_file_of_gnp_is_a_preconditioner(run, report, no_pictures):
    options = ["--problem.shape", "[5,4]", "--test_vectors", 3, "--width", 4, "--layers", 2, "--krylov", 6]
    few = ["--steps", 8, "--evaluated", 2, "--repeats", 1, "--iterations", 12]
    _, out = run(*options, *few, recipe="gnp")
    by_name = {row["preconditioner"]: row for row in report(out)["evaluation"]}
    assert "pivot" in by_name["ILU(0)"]["message"]
    assert by_name["learned"]["residual"] < 1
    M = ls.preconditioners.load(out / "model.safetensors")
    assert ls.solvers.fgmres(gnp().A, torch.ones(20, dtype=torch.float64), M=M, restart=20).converged


# --- newton ---


def newton(**options):
    few = {"grid": 8, "modes": 3, "width": 4, "rounds": 2, "batch": 3, "held_out": 2, "solved": 3}
    return make(
        "newton", **{"dtype": "float64", "evaluated": 2, "scales": [], "repeats": 1, **few, **options}
    )


def test_the_energy_is_that_of_linear_elements_and_its_minimum_the_root():
    its, A = newton(p=2.0), ls.problems.poisson((7, 7))
    u, k = torch.rand(7, 7, dtype=A.dtype), 3 * torch.ones(8, 8, dtype=A.dtype)
    expected = 1.5 * (u.reshape(-1) @ (A @ u.reshape(-1))) + 1.5 * SMALL - u.sum() / 64
    torch.testing.assert_close(energy(u, k, 2.0), expected)
    torch.testing.assert_close(its.solution(k).reshape(-1), ls.ops.spsolve(3 * A, u.new_ones(49) / 64))
    its = newton()
    k, u = its.held_out[0], its.minima[0]
    v = torch.rand_like(u).requires_grad_()
    torch.testing.assert_close(its.problem.f(v, k), torch.autograd.grad(energy(v, k, 5.0), v)[0])
    around = u + 1e-3 * torch.randn(50, 7, 7, dtype=u.dtype)
    assert bool((energy(around, k, 5.0) > energy(u, k, 5.0)).all())
    loss = its.loss(3)
    assert torch.equal(its.loss(3), loss)
    assert not torch.equal(its.loss(4), loss)
    assert its.evaluate() == pytest.approx(
        sum(energy(its.predicted(k), k, 5.0).item() for k in its.held_out) / 2
    )


def test_the_starts_are_what_they_are_called():
    its = newton()
    every, known = starts(its), its.fields(TRAINING, range(3), step=-1)
    for k in known:
        torch.testing.assert_close(every["nearest solution"](k)[0], its.solution(k))
    u, x = every["linear problem"](known[0])[0], its.solution(known[0])
    lengths = torch.linspace(0.5, 1.5, 11, dtype=u.dtype)[:, None, None]
    assert energy(lengths * u, known[0], 5.0).argmin() == 5  # u is the best of its multiples
    u, work = every["coarse grids"](its.fields(TRAINING, [0], scale=2)[0])
    assert work > 1
    assert (u - x.new_zeros(15, 15)).norm() > 0
    rows = its.outcome().numbers["evaluation"]
    at = {row["start"]: row for row in rows}
    assert at["zero"]["error"] == 1
    assert at["zero"]["work"] == at["zero"]["steps"] > at["coarse grids"]["steps"]
    assert at["linear problem"]["work"] == at["linear problem"]["steps"] + 1
    assert all(row["seconds"] > row["start_seconds"] > 0 for row in rows)


def test_a_prediction_is_of_any_grid_and_zero_around():
    its = newton()
    k = its.held_out
    whole = its.predicted(k)
    assert whole.shape == (2, 7, 7)
    torch.testing.assert_close(its.predicted(k[1]), whole[1])
    fine = its.predicted(k.repeat_interleave(4, 1).repeat_interleave(4, 2))
    assert fine.shape == (2, 31, 31)
    assert fine[:, 0].abs().max() < 0.6 * fine.abs().max()


@pytest.mark.slow
def test_training_makes_newtons_method_shorter():
    its = newton(steps=150, width=8, lr=1e-2, batch=8)
    optimizer, before = its.optimizer(), its.measure()
    for step in range(150):
        optimizer.zero_grad()
        its.loss(step).backward()
        optimizer.step()
    after = its.measure()
    assert after[1] < 0.2 * before[1]
    assert after[2] < before[2]
