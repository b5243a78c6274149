"""Recipes of preconditioners: networks, pcg, and the hard fraction."""

import csv
import json
import re

import pytest
import torch
import yaml
from safetensors.torch import load_file
from train import train_cases
from train.train_cases import make

import learnsolve as ls
from learnsolve import preconditioners, solvers, train
from learnsolve.ops.products import quadratic_form
from learnsolve.preconditioners import FactorPreconditioner, Trainable
from learnsolve.recipes import load, pcg
from learnsolve.recipes import newton as newton_recipe
from learnsolve.recipes.family import candidates
from learnsolve.recipes.jacobi import JacobiRecipe
from learnsolve.recipes.newton import SMALL, energy, starts
from learnsolve.recipes.pcg import Guard, current_factor, definiteness
from learnsolve.recipes.training.parallel import ALONE
from learnsolve.recipes.training.recipe import TRAINING, Patience, VectorRecipe, number_of_hardest
from learnsolve.recipes.training.run import Objective, descend
from learnsolve.recipes.training.settings import VectorSettings


def recipe(name, **options):
    size = {"rows": 12, "density": 0.2} if name == "neuralif" else {"grid": 4}
    few = {"matrices": 5, "batch": 2, "held_out_matrices": 2, "test_vectors": 3, "width": 3}
    few["layers" if name == "stencil" else "rounds"] = 2
    its = make(name, **{"dtype": "float64", **size, **few, **options})
    with torch.no_grad():
        torch.manual_seed(0)
        for p in its.model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return its


def residuals(A, L, b, iterations):
    """r_i, i = 1 .. iterations, of conjugate gradients with (L L^T)^-1, by dense algebra."""
    M = torch.linalg.inv(L @ L.T)
    r, p, found = b, M @ b, []
    for _ in range(iterations):
        q, rho = A @ p, r @ (M @ r)
        r = r - rho / (p @ q) * q
        found.append(r)
        p = M @ r + (r @ (M @ r)) / rho * p
    return torch.stack(found)


@pytest.mark.parametrize("name", ["precorrector", "neuralif", "stencil"])
@pytest.mark.parametrize("loss", ["product", "frobenius", "iterations", "error"])
def test_the_losses_are_those_of_dense_algebra(name, loss):
    its = recipe(name, loss=loss, iterations=3, gamma=0.5, resample=False)
    which = its._draw_indices(0)
    expected = []
    for i in which:
        A = its.training.matrices[i]
        V = its.normal(A, range(3 * i, 3 * i + 3), 0, 0)
        L, D = its.model.factor(A).to_dense(), A.to_dense()
        if loss == "iterations":
            weights = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64) / 7
            expected.append(sum(weights @ residuals(D, L, b, 3).norm(dim=1) / b.norm() for b in V.T) / 3)
        elif loss == "error":
            last = torch.stack([residuals(D, L, b, 3)[-1] for b in V.T], dim=1)
            energies = [(R * torch.linalg.solve(D, R)).sum() for R in (last, V)]
            expected.append((energies[0] / energies[1]).log() / 2)
        else:
            X, B = (torch.linalg.solve(D, V), V) if loss == "product" else (V, D @ V)
            expected.append((L @ L.T @ X - B).square().sum() / B.square().sum())
    losses = its.losses(0)
    torch.testing.assert_close(losses, torch.stack(expected) / 2, rtol=1e-6, atol=1e-8)
    its.loss(0).backward()
    assert all(bool(p.grad.isfinite().all()) for p in its.model.parameters())


def test_every_matrix_comes_once_in_an_epoch():
    its = recipe("precorrector")
    taken = [i for step in range(10) for i in its._draw_indices(step)]
    epochs = [taken[k : k + 5] for k in range(0, 20, 5)]
    assert all(sorted(epoch) == list(range(5)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_held_out_matrices_are_others():
    its = recipe("neuralif")
    seeds = [its.settings.data(split, 5).seeds for split in ("train", "validation", "test")]
    assert not set(seeds[0]) & set(seeds[1]) | set(seeds[1]) & set(seeds[2])


@pytest.mark.rows(1)
@pytest.mark.parametrize(
    ("name", "options", "sizes"),
    [
        pytest.param("precorrector", {"grid": 5}, [25, 100, 400], marks=pytest.mark.slow),
        ("neuralif", {"rows": 20, "density": 0.1}, [20, 40, 80]),
        ("multigrid", {"family": "grid", "grid": 6, "max_coarse": 4}, [36, 144, 576]),
        ("stencil", {"grid": 5}, [25, 100, 400]),
    ],
)
def test_a_run_learns_and_leaves_a_network(run, rows, report, leaves, name, options, sizes):
    few = ["--matrices", 5, "--batch", 2, "--held_out_matrices", 2, "--test_vectors", 3, "--width", 3]
    few += ["--validated", 2, "--evaluated", 2, "--evaluated_larger", 1, "--repeats", 1]
    few += ["--layers" if name == "stencil" else "--rounds", 2, "--scales", [2, 4]]
    few += ["--tolerances", [1e-3, 1e-6, 1e-9], "--steps", 60, "--lr", 0.02, "--evaluate_every", 20]
    code, out = run(*few, *(f"--{option}={value}" for option, value in options.items()), recipe=name)
    assert code == train.OK
    leaves(out, "evaluation.csv", "loss.png", "iterations.png", "times.png", "sizes.png")
    text = report(out)["learned"]
    assert text.count("of the time of the fastest other") + text.count("it solves") == len(sizes)
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
    losses = its.losses(3)
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
        sum(energy(its.predict(k), k, 5.0).item() for k in its.held_out) / 2
    )


@pytest.mark.slow
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
    whole = its.predict(k)
    assert whole.shape == (2, 7, 7)
    torch.testing.assert_close(its.predict(k[1]), whole[1])
    fine = its.predict(k.repeat_interleave(4, 1).repeat_interleave(4, 2))
    assert fine.shape == (2, 31, 31)
    assert fine[:, 0].abs().max() < 0.6 * fine.abs().max()


@pytest.mark.slow
def test_training_makes_newtons_method_shorter():
    its = newton(steps=150, width=8, lr=1e-2, batch=8)
    optimizer, before = its.optimizer(), its.measure()
    for step in range(150):
        optimizer.zero_grad()
        its.loss(step).backward()
        descend(optimizer, its.settings, step)
    after = its.measure()
    assert after[0] < 0.2 * before[0]
    assert after[1] < before[1]


def test_the_verdict_on_starts_is_of_those_that_converge(monkeypatch):
    whole = newton_recipe.measure_start

    def measured(recipe, start, k, x):
        row, norms = whole(recipe, start, k, x)
        if start.__name__ in ("zero", "learned"):
            row |= {"converged": 0.0, "steps": 0, "work": 0}
        return row, norms

    its = newton(grid=4, modes=2, evaluated=10)
    monkeypatch.setattr(newton_recipe, "measure_start", measured)
    outcome = its.outcome()
    assert outcome.sentence.count("learned: fails") == 3
    assert not re.search(r"Best in [^:]*: (zero|learned)", outcome.sentence)
    steps = outcome.columns.index("Newton steps")
    assert [row[steps].endswith("converge") for row in outcome.rows] == [True, True, *4 * [False]]


# --- `python -m learnsolve.train pcg` ---


PCG = train_cases.SMALL["pcg"].split()


def dense_residuals(A, M, b, iterations):
    """||r_i|| / ||b|| of the textbook's loop."""
    x, r = torch.zeros_like(b), b
    z = M @ r
    p, rho, norms = z, r @ z, [r.norm()]
    for _ in range(iterations):
        q = A @ p
        alpha = rho / (p @ q)
        x, r = x + alpha * p, r - alpha * q
        z = M @ r
        old, rho = rho, r @ z
        p = z + rho / old * p
        norms.append(r.norm())
    return torch.stack(norms) / b.norm()


def test_a_run_learns_what_it_says(run, rows, report, no_pictures):
    options = ["--steps", 250, "--test_vectors", 50, "--held_out", 20, "--evaluated", 10]
    _, out = run(*options, recipe="pcg")
    assert load_file(out / "model.safetensors")["L.values"].shape == (127,)
    table, numbers = rows(out), report(out)
    first, last = ({k: float(v) for k, v in row.items()} for row in (table[0], table[-1]))
    for name in ("loss", "held_out_loss"):
        assert last[name] < 0.85 * first[name]
    assert last["held_out_residual"] < first["held_out_residual"]
    assert (last["learning_rate"], last["iterations"], last["shortened_steps"]) == (1e-3, 4, 0)
    assert table[1]["definiteness"] == ""
    assert numbers["preconditioner"]["definiteness"] == last["definiteness"]
    mean = {(row["preconditioner"], row["rtol"]): row["iterations"] for row in numbers["evaluation"]}
    for rtol in (1e-3, 1e-6, 1e-9):
        assert mean["IC(0)", rtol] < mean["learned", rtol] < mean["none", rtol] == mean["Jacobi", rtol]
    conditions = numbers["condition_numbers"]
    assert conditions["learned"] < 0.7 * conditions["none"]
    assert conditions["none"] == pytest.approx(conditions["Jacobi"])
    with (out / "evaluation.csv").open(newline="") as file:
        assert [float(line["iterations"]) for line in csv.DictReader(file)] == list(mean.values())
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["problem"]["shape"] == [8, 8]
    assert (config["iterations"], config["gamma"], config["target"]) == (4, 0.6, None)
    assert numbers["learned"].startswith(
        "To 1e-06, setup included, training not counted: On held-out right-hand sides it takes "
    )


@pytest.mark.parametrize("variant", ["paper", "demo"])
@pytest.mark.parametrize("form", ["product", "triangular"])
def test_the_losses_of_pcg_are_those_of_dense_algebra(variant, form):
    its = make("pcg", variant=variant, form=form, test_vectors=5)
    L = current_factor(its.model).detach().to_dense()
    two = 2 * torch.eye(64, dtype=torch.float64)
    torch.testing.assert_close(L, two + 0.1 * torch.ones(63, dtype=torch.float64).diag(-1))
    M = L @ L.T if form == "product" else torch.linalg.inv(L @ L.T)
    A, expected = its.A.to_dense(), []
    for b in its.test_vectors.T:
        if variant == "paper":
            weights = torch.tensor([0.6**3, 0.6**2, 0.6, 1]).double()
            terms = dense_residuals(A, M, b, 4)[1:]
        else:
            weights = torch.tensor([0.7**3, 0.7**2, 0.7, 1]).double()
            terms = torch.log10(1 + dense_residuals(A, M, b, 3))
        expected.append(weights @ terms / weights.sum())
    losses = its.losses(0)
    torch.testing.assert_close(losses, torch.stack(expected) / 5, rtol=1e-6, atol=0)
    torch.testing.assert_close(its.loss(0), torch.stack(expected).mean(), rtol=1e-6, atol=0)


def test_the_ramp_of_the_demonstration():
    its = make("pcg", variant="demo")
    line = torch.linspace(-1, 1, 10, dtype=torch.float64)[1:-1]
    expected = torch.meshgrid(line, line, indexing="xy")[0].reshape(-1, 1)
    assert torch.equal(its.test_vectors, expected)
    assert (its.settings.steps, its.settings.target, its.settings.iterations) == (100_000, 3e-5, 3)


def test_residuals_of_vectors_that_are_solved_before_the_last_iteration():
    its = make("pcg", test_vectors=1, shape=[2, 1], iterations=8)
    residuals = its.residuals(its.test_vectors, 8, its.space)
    assert residuals.shape == (9, 1)
    assert float(residuals[-1].detach().max()) < 1e-12


@pytest.mark.rows(4)
@pytest.mark.parametrize(
    "options",
    [
        ["--pattern", "tril"],
        ["--pattern", "two_ring", "--start", "fsai"],
        ["--form", "triangular"],
        ["--form", "triangular", "--start", "ic"],
        ["--form", "triangular", "--start", "ic", "--pattern", "tril"],
        ["--form", "triangular", "--start", "ic", "--pattern", "two_ring", "--dtype", "float32"],
        ["--start", "fsai", "--pattern", "tril", "--resample"],
        ["--problem.name", "anisotropic", "--problem.shape", "[6,6]"],
        ["--problem.name", "diffusion", "--problem.shape", "[6,6]", "--pattern", "tril"],
        ["--problem.shape", "20"],
    ],
)
def test_every_pattern_form_and_start_trains(run, rows, report, options, no_pictures):
    pytest.importorskip("pyamg")
    few = ["--steps", 60, "--test_vectors", 20, "--held_out", 8, "--evaluated", 2]
    code, out = run(*few, *options, recipe="pcg")
    assert code == train.OK
    table = rows(out)
    which = "held_out_loss" if "--resample" in options else "loss"
    assert float(table[-1][which]) < float(table[0][which])
    assert all(row["converged"] == 2 for row in report(out)["evaluation"])


def test_larger_patterns_and_better_starts_are_better():
    loss = {
        (pattern, form, start): make("pcg", pattern=pattern, form=form, start=start).evaluate()
        for pattern in ("bidiagonal", "tril", "two_ring")
        for form, start in (("product", "paper"), ("product", "fsai"), ("triangular", "ic"))
    }
    for form, start in (("product", "fsai"), ("triangular", "ic")):
        better = [loss[pattern, form, start] for pattern in ("two_ring", "tril", "bidiagonal")]
        assert better == sorted(better)
    exact = solvers.cg(
        (its := make("pcg", pattern="tril", form="triangular", start="ic")).A,
        its.held_out,
        iterations=4,
        M=preconditioners.IC(its.A),
        gradient="unrolled",
    )
    torch.testing.assert_close(
        its.residuals(its.held_out, 4, its.space),
        exact.residual_norms / its.held_out.norm(dim=0),
        rtol=1e-9,
        atol=0,
    )


# --- schedules, what stops a run, and the guard of its factor ---


def test_the_curriculum_and_the_schedule_are_recorded(run, rows, no_pictures):
    schedule = ["--schedule", "cosine", "--curriculum", 5, "--evaluate_every", 4]
    table = rows(run("--steps", 24, *PCG, *schedule, recipe="pcg")[1])
    assert [float(row["iterations"]) for row in table if row["iterations"]] == [1, 1, 2, 3, 4, 4, 4]
    rates = [float(row["learning_rate"]) for row in table if row["learning_rate"]]
    assert rates[0] == 1e-3
    assert rates[-1] == pytest.approx(1e-5)
    assert rates == sorted(rates, reverse=True)


def test_the_schedule_stays_that_of_the_first_run(run, no_pictures):
    _, out = run("--steps", 4, *PCG, "--schedule", "cosine", recipe="pcg")
    assert run("--resume", "run", "--steps", 8, out=None, recipe="pcg")[0] == train.OK
    assert yaml.safe_load((out / "config.yaml").read_text())["schedule_steps"] == 4


def test_patience_ends_a_run_and_a_resumed_one_stays_ended(run, rows, no_pictures):
    # So large a rate makes the held-out loss grow soon.
    options = [*PCG, "--lr", 0.3, "--patience", 2, "--evaluate_every", 2]
    code, out = run("--steps", 400, *options, recipe="pcg")
    assert code == train.OK
    table = rows(out)
    assert len(table) < 200
    held = [float(row["held_out_loss"]) for row in table if row["held_out_loss"]]
    best = held.index(min(held))
    assert best < len(held) - 2
    assert json.loads((out / "report.json").read_text())["stopped_early"] is True
    assert run("--resume", "run", "--steps", 500, out=None, recipe="pcg")[0] == train.OK
    assert rows(out) == table


def test_patience_counts_what_does_not_improve():
    patience = Patience(2)
    assert [patience.see(loss) for loss in (3.0, 2.0, 2.5, 1.0, 1.0, 1.0 - 1e-9)] == [False] * 5 + [True]
    assert not any(Patience(None).see(1.0) for _ in range(9))


def test_a_target_ends_a_run_at_the_weights_that_reach_it(run, rows, no_pictures):
    options = [*PCG, "--test_vectors", "ramp", "--target", 0.05, "--curriculum", 3, "--lr", 0.01]
    code, out = run("--steps", 2000, *options, recipe="pcg")
    assert code == train.OK
    last = rows(out)[-1]
    assert 9 <= int(last["step"]) < 2000
    assert float(last["training_residual"]) < 0.05
    assert float(last["iterations"]) == 4


def test_clipping_bounds_the_gradient():
    its = make("pcg", clip=1e-3, test_vectors=4)
    optimizer = its.optimizer()
    its.loss(0).backward()
    norm = float(its.model.L.values.grad.norm())
    descend(optimizer, its.settings, 0)
    assert norm > 1e-3
    assert float(its.model.L.values.grad.norm()) == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("limit", [256, 1])
def test_definiteness_is_that_of_dense_algebra(monkeypatch, limit):
    monkeypatch.setattr(pcg, "DENSE_LIMIT", limit)
    for pattern in ("bidiagonal", "tril"):
        L = current_factor(make("pcg", pattern=pattern).model)
        generator = torch.Generator().manual_seed(0)
        L = L.with_values(L.values.detach() * torch.rand(L.nnz, generator=generator, dtype=torch.float64))
        eigenvalues = torch.linalg.eigvalsh(L.to_dense() @ L.to_dense().T)
        expected = float(eigenvalues[0] / eigenvalues[-1])
        assert definiteness(L) == pytest.approx(expected, rel=1e-9 if limit > 1 else 0.3)
    singular = L.values.clone()
    singular[L.pattern.diagonal_positions[3]] = 0
    assert definiteness(L.with_values(singular)) == 0
    singular[0] = float("nan")
    assert definiteness(L.with_values(singular)) == 0


def test_the_guard_halves_a_step_that_makes_the_factor_singular():
    model = Trainable(FactorPreconditioner.bidiagonal(10))
    guard = Guard(model.parameters(), model.L, 1e-3)
    guard.before()
    with torch.no_grad():
        model.L.values[0] -= 1.999
    before = model.L.values.detach().clone()
    guard.after()
    assert guard.shortened == 1
    assert guard.holds()
    assert float(model.L.values[0].detach()) == pytest.approx(2 - 1.999 / 2)
    assert torch.equal(model.L.values[1:], before[1:])

    guard.before()
    kept = model.L.values.detach().clone()
    with torch.no_grad():
        model.L.values += float("nan")
    guard.after()
    assert guard.shortened == 2
    assert torch.equal(model.L.values, kept)

    for floor, count in ((1e-3, 2), (0.0, 0)):
        other = Guard(model.parameters(), model.L, floor)
        other.before()
        other.after()
        assert other.shortened == 0 <= count


def test_shortened_steps_are_counted_in_the_metrics_and_survive_resuming(run, rows, no_pictures):
    options = [*PCG, "--guard", 0.01, "--lr", 2.0, "--evaluate_every", 1]
    _, out = run("--steps", 20, *options, out="whole", recipe="pcg")
    table = rows(out)
    assert float(table[-1]["shortened_steps"]) > 0
    assert all(float(row["definiteness"]) >= 0.01 for row in table)
    run("--steps", 13, *options, out="parts", recipe="pcg")
    run("--resume", "parts", "--steps", 20, out=None, recipe="pcg")
    assert rows(out.parent / "parts") == table
    report = json.loads((out / "report.json").read_text())
    assert report["shortened_steps"] == float(table[-1]["shortened_steps"])
    assert "steps were shortened" in report["learned"]


# --- training on the hardest test vectors of every step ---


NETWORK = {"grid": [3, 4], "test_vectors": 2, "sweeps": 4, "matrices": 11}


def made(fraction: float = 1.0, **options) -> tuple[JacobiRecipe, Objective]:
    options = {"hard_fraction": fraction, "test_vectors": 11, **options}
    recipe = make("jacobi", shape=[5, 4], **options)
    with torch.no_grad():  # where rows have weights of their own
        recipe.weight.copy_(torch.linspace(0.5, 1, 20))
    return recipe, Objective(recipe, ALONE)


OTHERS = {
    "heavyball": {"test_vectors": 11, "sweeps": 3},
    "heavyball, resampled": {"test_vectors": 11, "resample": True},
    "heavyball_network": NETWORK,
    "heavyball_network, resampled": {**NETWORK, "resample": True},
    "pcg": {"test_vectors": 11},
    "pcg, resampled": {"test_vectors": 11, "form": "triangular", "resample": True},
    "pcg, curriculum": {"test_vectors": 11, "curriculum": 2, "pattern": "tril"},
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_recipes_learn_from_the_hardest_chosen_by_hand(name):
    """Their losses themselves are compared with dense algebra in the tests of each recipe."""
    recipe = make(name.split(",")[0], hard_fraction=0.3, **OTHERS[name])
    objective = Objective(recipe, ALONE)
    step = 3
    loss = objective(step)
    of_all = recipe.loss(step).detach()
    losses = recipe.losses(step)
    torch.testing.assert_close(losses.sum(), of_all, rtol=1e-12, atol=0)
    by_hand = losses.topk(4).values.mean() * 11
    torch.testing.assert_close(loss, by_hand, rtol=1e-11, atol=0)
    parameters = list(recipe.model.parameters())
    gradient, expected = (torch.autograd.grad(t, parameters) for t in (loss, by_hand))
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-13)
    assert objective.measure() == pytest.approx((of_all.item(),), rel=1e-12)


def gradient(recipe: JacobiRecipe, loss: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(loss, recipe.weight)[0]


@pytest.mark.parametrize("options", [{}, {"sweeps": 3}, {"resample": True}, {"test_vectors": "identity"}])
def test_loss_and_gradient_are_those_of_the_hardest_chosen_by_hand(options):
    recipe, objective = made(0.3, **options)
    step = 3
    loss = objective(step)

    A, E = recipe.A.to_dense(), recipe.vectors(step)
    x = E
    for _ in range(recipe.settings.sweeps):
        x = x - (recipe.weight / A.diagonal()).unsqueeze(1) * (A @ x)
    losses = (x * (A @ x)).sum(0)
    count = E.shape[1]
    by_hand = losses.topk({11: 4, 20: 6}[count]).values.mean() * count
    torch.testing.assert_close(loss, by_hand, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient(recipe, loss), gradient(recipe, by_hand), rtol=1e-11, atol=1e-13)
    assert objective.columns == ("loss_of_all",)
    assert objective.measure() == pytest.approx((losses.sum().item(),), rel=1e-12)


def test_all_vectors_take_the_path_without_the_option():
    """Bit for bit: quadratic form of the sweeps, backward, Adam."""
    recipe, objective = made()
    other, _ = made()
    optimizers = recipe.optimizer(), other.optimizer()
    E = other.test_vectors
    for step in range(5):
        objective(step).backward()
        x = solvers.jacobi(other.A, torch.zeros_like(E), E, weight=other.weight).x
        quadratic_form(other.A, x, symmetric=True).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert torch.equal(recipe.weight, other.weight)
    assert objective.columns == objective.measure() == ()


class Numbers(VectorRecipe):
    """Vectors are numbers v_i, their losses p v_i."""

    def __init__(self, values: list[float], fraction: float):
        self.settings = VectorSettings(hard_fraction=fraction)
        self.model = torch.nn.Module()
        self.model.p = torch.nn.Parameter(torch.ones(()))
        self.values = torch.tensor(values)
        self.count, self.indices = len(values), range(len(values))
        self.cotangent = None

    def losses(self, step):
        losses = self.values * self.model.p  # type: ignore[operator]
        losses.register_hook(lambda g: setattr(self, "cotangent", g.tolist()))
        return losses


def test_the_hardest_have_the_weight_of_all():
    recipe = Numbers([1.0, 7.0, 3.0, 5.0], 0.5)
    Objective(recipe, ALONE)(0).backward()
    assert recipe.cotangent == [0.0, 2.0, 0.0, 2.0]
    assert recipe.model.p.grad == 24.0  # twice the mean of 7 and 5, as the loss of all is twice that of half


def test_of_equal_losses_the_first_are_kept():
    recipe = Numbers([2.0] * 40 + [3.0] + [2.0] * 40, 5 / 81)
    Objective(recipe, ALONE)(0).backward()
    assert [i for i, c in enumerate(recipe.cotangent or ()) if c] == [0, 1, 2, 3, 40]


def test_a_loss_that_is_no_number_is_among_the_hardest():
    recipe = Numbers([1.0, float("nan"), 9.0], 0.3)
    assert Objective(recipe, ALONE)(0).isnan()


@pytest.mark.parametrize(
    ("fraction", "count", "kept"),
    [(0.25, 100, 25), (0.25, 7, 2), (0.07, 100, 7), (0.1, 30, 3), (1e-9, 5, 1), (0.999, 5, 5), (1.0, 5, 5)],
)
def test_the_number_of_hardest_is_that_of_the_fraction_as_written(fraction, count, kept):
    assert number_of_hardest(fraction, count) == kept


@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        ("jacobi", "--test_vectors 9"),
        ("heavyball", "--test_vectors 9"),
        ("heavyball_network", "--grid [3,3] --matrices 9 --held_out_matrices 2"),
        ("pcg", "--problem.shape [4,4] --test_vectors 9 --held_out 3 --evaluated 1"),
    ],
)
def test_a_run_records_both_losses(run, rows, report, no_pictures, recipe, options):
    options = ["--steps", 20, "--evaluate_every", 10, *options.split(), "--hard_fraction", 0.25]
    code, folder = run(*options, recipe=recipe)
    assert code == 0
    table, numbers = rows(folder), report(folder)
    assert [bool(row["loss_of_all"]) for row in table] == [step % 10 == 0 for step in range(21)]
    assert all(float(row["loss"]) > float(row["loss_of_all"]) for row in table if row["loss_of_all"])
    assert float(table[-1]["loss_of_all"]) < float(table[0]["loss_of_all"])
    assert numbers["hardest"] == {"kept": 3, "of": 9}
    assert numbers["processes"] == 1
