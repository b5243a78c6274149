"""`python -m learnsolve.train pcg`: schedules, what stops a run, and the guard of its factor."""

import json

import pytest
import torch
import yaml
from train.pcg_cases import SMALL, recipe

from learnsolve import train
from learnsolve.preconditioners import Factored, Trainable
from learnsolve.recipes.pcg import factor
from learnsolve.recipes.pcg.factor import Guard, definiteness, factor_of
from learnsolve.recipes.schedule import Patience


def test_the_curriculum_and_the_schedule_are_recorded(pcg_run, rows, no_pictures):
    schedule = ["--schedule", "cosine", "--curriculum", 5, "--evaluate_every", 4]
    table = rows(pcg_run("--steps", 24, *SMALL, *schedule)[1])
    assert [float(row["iterations"]) for row in table if row["iterations"]] == [1, 1, 2, 3, 4, 4, 4]
    rates = [float(row["learning_rate"]) for row in table if row["learning_rate"]]
    assert rates[0] == 1e-3
    assert rates[-1] == pytest.approx(1e-5)
    assert rates == sorted(rates, reverse=True)


def test_the_schedule_stays_that_of_the_first_run(pcg_run, no_pictures):
    pcg_run("--steps", 4, *SMALL, "--schedule", "cosine")
    code, out = pcg_run("--resume", "run", "--steps", 8, out=None)
    assert code == train.OK
    out = out / "run"
    assert yaml.safe_load((out / "config.yaml").read_text())["schedule_steps"] == 4


def test_patience_ends_a_run_and_a_resumed_one_stays_ended(pcg_run, rows, no_pictures):
    # So large a rate makes the held-out loss grow soon.
    options = [*SMALL, "--lr", 0.3, "--patience", 2, "--evaluate_every", 2]
    code, out = pcg_run("--steps", 400, *options)
    assert code == train.OK
    table = rows(out)
    assert len(table) < 200
    held = [float(row["held_out_loss"]) for row in table if row["held_out_loss"]]
    best = held.index(min(held))
    assert best < len(held) - 2
    assert json.loads((out / "report.json").read_text())["stopped_early"] is True
    assert pcg_run("--resume", "run", "--steps", 500, out=None)[0] == train.OK
    assert rows(out) == table


def test_patience_counts_what_does_not_improve():
    patience = Patience(2)
    assert [patience.see(loss) for loss in (3.0, 2.0, 2.5, 1.0, 1.0, 1.0 - 1e-9)] == [False] * 5 + [True]
    assert not any(Patience(None).see(1.0) for _ in range(9))


def test_a_target_ends_a_run_at_the_weights_that_reach_it(pcg_run, rows, no_pictures):
    options = [*SMALL, "--test_vectors", "ramp", "--target", 0.05, "--curriculum", 3, "--lr", 0.01]
    code, out = pcg_run("--steps", 2000, *options)
    assert code == train.OK
    last = rows(out)[-1]
    assert 9 <= int(last["step"]) < 2000
    assert float(last["training_residual"]) < 0.05
    assert float(last["iterations"]) == 4


def test_clipping_bounds_the_gradient():
    its = recipe(clip=1e-3, test_vectors=4)
    optimizer = its.optimizer()
    its.loss(0).backward()
    norm = float(its.model.L.values.grad.norm())
    optimizer.step()
    assert norm > 1e-3
    assert float(its.model.L.values.grad.norm()) == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("limit", [256, 1])
def test_definiteness_is_that_of_dense_algebra(monkeypatch, limit):
    monkeypatch.setattr(factor, "DENSE_LIMIT", limit)
    for pattern in ("bidiagonal", "tril"):
        L = factor_of(recipe(pattern=pattern).model)
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


def test_shortened_steps_are_counted_in_the_metrics_and_survive_resuming(pcg_run, rows, no_pictures):
    options = [*SMALL, "--guard", 0.01, "--lr", 2.0, "--evaluate_every", 1]
    code, out = pcg_run("--steps", 20, *options, out="whole")
    assert code == train.OK
    table = rows(out)
    assert float(table[-1]["shortened_steps"]) > 0
    assert all(float(row["definiteness"]) >= 0.01 for row in table)
    pcg_run("--steps", 13, *options, out="parts")
    pcg_run("--resume", "parts", "--steps", 20, out=None)
    assert rows(out.parent / "parts") == table
    report = json.loads((out / "report.json").read_text())
    assert report["shortened_steps"] == float(table[-1]["shortened_steps"])
    assert "steps were shortened" in report["learned"]
