"""`python -m learnsolve.train pcg`: the loss, what is learned, and what ends a run."""

import csv
import json

import pytest
import torch
import yaml
from safetensors.torch import load_file
from train import train_cases
from train.train_cases import make

from learnsolve import preconditioners, solvers, train
from learnsolve.preconditioners import Factored, Trainable
from learnsolve.recipes import pcg
from learnsolve.recipes.pcg import Guard, definiteness, factor_of
from learnsolve.recipes.schedule import Patience

SMALL = train_cases.SMALL["pcg"].split()


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
    assert numbers["learned"].startswith("On held-out right-hand sides it takes ")


@pytest.mark.parametrize("variant", ["paper", "demo"])
@pytest.mark.parametrize("form", ["product", "triangular"])
def test_the_losses_are_those_of_dense_algebra(variant, form):
    its = make("pcg", variant=variant, form=form, test_vectors=5)
    L = factor_of(its.model).detach().to_dense()
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
    losses = its.losses(its.test_vectors, 0)
    torch.testing.assert_close(losses, torch.stack(expected) / 5, rtol=1e-6, atol=0)
    torch.testing.assert_close(its.loss(0), torch.stack(expected).mean(), rtol=1e-6, atol=0)


def test_the_ramp_of_the_demonstration():
    its = make("pcg", variant="demo")
    line = torch.linspace(-1, 1, 10, dtype=torch.float64)[1:-1]
    expected = torch.meshgrid(line, line, indexing="xy")[0].reshape(-1, 1)
    assert torch.equal(its.test_vectors, expected)
    assert (its.settings.steps, its.settings.target, its.settings.iterations) == (100_000, 3e-5, 3)


def test_residuals_of_vectors_that_are_solved_before_the_last_iteration():
    its = make("pcg", test_vectors=1, nx=2, ny=1, iterations=8)
    residuals = its.residuals(its.test_vectors, 8, its.space)
    assert residuals.shape == (9, 1)
    assert float(residuals[-1].detach().max()) < 1e-12


@pytest.mark.parametrize(
    "options",
    [
        ["--pattern", "tril"],
        ["--pattern", "two_ring", "--start", "fsai"],
        ["--form", "triangular"],
        ["--form", "triangular", "--start", "ic0"],
        ["--form", "triangular", "--start", "ic0", "--pattern", "tril"],
        ["--form", "triangular", "--start", "ic0", "--pattern", "two_ring", "--dtype", "float32"],
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
        for form, start in (("product", "paper"), ("product", "fsai"), ("triangular", "ic0"))
    }
    for form, start in (("product", "fsai"), ("triangular", "ic0")):
        better = [loss[pattern, form, start] for pattern in ("two_ring", "tril", "bidiagonal")]
        assert better == sorted(better)
    exact = solvers.cg(
        (its := make("pcg", pattern="tril", form="triangular", start="ic0")).A,
        its.held_out,
        rtol=0.0,
        maxiter=4,
        M=preconditioners.IC0(its.A),
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
    table = rows(run("--steps", 24, *SMALL, *schedule, recipe="pcg")[1])
    assert [float(row["iterations"]) for row in table if row["iterations"]] == [1, 1, 2, 3, 4, 4, 4]
    rates = [float(row["learning_rate"]) for row in table if row["learning_rate"]]
    assert rates[0] == 1e-3
    assert rates[-1] == pytest.approx(1e-5)
    assert rates == sorted(rates, reverse=True)


def test_the_schedule_stays_that_of_the_first_run(run, no_pictures):
    _, out = run("--steps", 4, *SMALL, "--schedule", "cosine", recipe="pcg")
    assert run("--resume", "run", "--steps", 8, out=None, recipe="pcg")[0] == train.OK
    assert yaml.safe_load((out / "config.yaml").read_text())["schedule_steps"] == 4


def test_patience_ends_a_run_and_a_resumed_one_stays_ended(run, rows, no_pictures):
    # So large a rate makes the held-out loss grow soon.
    options = [*SMALL, "--lr", 0.3, "--patience", 2, "--evaluate_every", 2]
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
    options = [*SMALL, "--test_vectors", "ramp", "--target", 0.05, "--curriculum", 3, "--lr", 0.01]
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
    optimizer.step()
    assert norm > 1e-3
    assert float(its.model.L.values.grad.norm()) == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("limit", [256, 1])
def test_definiteness_is_that_of_dense_algebra(monkeypatch, limit):
    monkeypatch.setattr(pcg, "DENSE_LIMIT", limit)
    for pattern in ("bidiagonal", "tril"):
        L = factor_of(make("pcg", pattern=pattern).model)
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
    model = Trainable(Factored.bidiagonal(10))
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
    options = [*SMALL, "--guard", 0.01, "--lr", 2.0, "--evaluate_every", 1]
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
