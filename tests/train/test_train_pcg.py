"""`python -m learnsolve.train pcg`: the loss, what is learned, and what a run leaves in its folder."""

import csv
import importlib.util
import json

import pytest
import torch
import yaml
from safetensors.torch import load_file
from train.pcg_cases import SMALL, recipe

from learnsolve import CSR, preconditioners, solvers, train
from learnsolve.recipes.pcg.factor import factor_of


def test_a_run_leaves_its_files_and_learns_what_it_says(pcg_run, rows, capsys, leaves):
    code, out = pcg_run("--steps", 250, "--test_vectors", 50, "--held_out", 20, "--evaluated", 10)
    assert code == train.OK
    leaves(out, "loss.png", "residuals.png", "factor.png", "evaluation.csv")
    weights = load_file(out / "model.safetensors")
    assert weights["L.values"].shape == (127,)
    assert weights["L.values"].dtype == torch.float64

    table = rows(out)
    assert [int(row["step"]) for row in table] == list(range(251))
    first, last = ({k: float(v) for k, v in row.items()} for row in (table[0], table[-1]))
    assert last["loss"] < 0.85 * first["loss"]
    assert last["held_out_loss"] < 0.85 * first["held_out_loss"]
    assert last["held_out_residual"] < first["held_out_residual"]
    assert last["learning_rate"] == 1e-3
    assert last["iterations"] == 4
    assert last["shortened_steps"] == 0
    assert table[1]["definiteness"] == ""

    report = json.loads((out / "report.json").read_text())
    assert report["held_out_loss"] == last["held_out_loss"]
    assert report["preconditioner"]["definiteness"] == last["definiteness"]
    mean = {(row["preconditioner"], row["rtol"]): row["iterations"] for row in report["evaluation"]}
    for rtol in (1e-3, 1e-6, 1e-9):
        assert mean["IC(0)", rtol] < mean["learned", rtol] < mean["none", rtol] == mean["Jacobi", rtol]
    conditions = report["condition_numbers"]
    assert conditions["learned"] < 0.7 * conditions["none"]
    assert conditions["none"] == pytest.approx(conditions["Jacobi"])

    with (out / "evaluation.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [float(line["iterations"]) for line in lines] == list(mean.values())
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["problem"]["shape"] == [8, 8]
    assert (config["iterations"], config["gamma"], config["target"]) == (4, 0.6, None)

    printed = capsys.readouterr()
    assert printed.err == ""
    lines = printed.out.strip().splitlines()
    assert [line.split("  ")[0] for line in lines[2:6]] == ["learned", "none", "Jacobi", "IC(0)"]
    assert lines[-2] == report["learned"]
    assert lines[-2].startswith("On held-out right-hand sides it takes ")


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


@pytest.mark.parametrize("variant", ["paper", "demo"])
@pytest.mark.parametrize("form", ["product", "triangular"])
def test_the_losses_are_those_of_dense_algebra(variant, form):
    its = recipe(variant=variant, form=form, test_vectors=5)
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


def test_the_gradient_is_that_of_dense_algebra():
    its = recipe(test_vectors=3)
    its.loss(0).backward()
    L = factor_of(its.model)
    values = L.values.detach().clone().requires_grad_()
    dense = CSR(values, L.pattern).to_dense()
    A = its.A.to_dense()
    weights = 0.6 ** torch.arange(3, -1, -1, dtype=torch.float64)
    losses = [
        weights @ dense_residuals(A, dense @ dense.T, b, 4)[1:] / weights.sum() for b in its.test_vectors.T
    ]
    torch.stack(losses).mean().backward()
    torch.testing.assert_close(its.model.L.values.grad, values.grad, rtol=1e-6, atol=1e-12)


def test_the_ramp_of_the_demonstration():
    its = recipe(variant="demo")
    line = torch.linspace(-1, 1, 10, dtype=torch.float64)[1:-1]
    expected = torch.meshgrid(line, line, indexing="xy")[0].reshape(-1, 1)
    assert torch.equal(its.test_vectors, expected)
    assert (its.settings.steps, its.settings.target, its.settings.iterations) == (100_000, 3e-5, 3)


def test_residuals_of_vectors_that_are_solved_before_the_last_iteration():
    its = recipe(test_vectors=1, nx=2, ny=1, iterations=8)
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
def test_every_pattern_form_and_start_trains(pcg_run, rows, options, no_pictures):
    pytest.importorskip("pyamg")
    code, out = pcg_run("--steps", 60, "--test_vectors", 20, "--held_out", 8, "--evaluated", 2, *options)
    assert code == train.OK
    table = rows(out)
    which = "held_out_loss" if "--resample" in options else "loss"
    assert float(table[-1][which]) < float(table[0][which])
    report = json.loads((out / "report.json").read_text())
    assert all(row["converged"] == 2 for row in report["evaluation"])


def test_larger_patterns_and_better_starts_are_better():
    loss = {
        (pattern, form, start): recipe(pattern=pattern, form=form, start=start).evaluate()
        for pattern in ("bidiagonal", "tril", "two_ring")
        for form, start in (("product", "paper"), ("product", "fsai"), ("triangular", "ic0"))
    }
    for form, start in (("product", "fsai"), ("triangular", "ic0")):
        better = [loss[pattern, form, start] for pattern in ("two_ring", "tril", "bidiagonal")]
        assert better == sorted(better)
    exact = solvers.cg(
        (its := recipe(pattern="tril", form="triangular", start="ic0")).A,
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


def test_a_learned_factor_solves_other_right_hand_sides_sooner():
    its = recipe(test_vectors=30, pattern="tril", form="triangular", start="ic0", lr=1e-2)
    before = its.evaluate()
    optimizer = its.optimizer()
    for step in range(60):
        optimizer.zero_grad()
        its.loss(step).backward()
        optimizer.step()
    assert its.evaluate() < 0.9 * before
    with torch.no_grad():
        taken = [
            solvers.cg(its.A, its.held_out, rtol=1e-8, M=M).iterations
            for M in (its.model, preconditioners.IC0(its.A), None)
        ]
    assert taken == sorted(taken)
    assert taken[0] < 0.5 * taken[2]


def test_without_pyamg_amg_is_skipped_by_name(pcg_run, no_pictures, monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyamg" else find(name))
    code, out = pcg_run("--steps", 1, *SMALL)
    assert code == train.OK
    report = json.loads((out / "report.json").read_text())
    assert "pip install" in report["skipped"]["AMG"]
    assert "AMG" not in {row["preconditioner"] for row in report["evaluation"]}
    assert any(line.startswith("AMG") and "skipped" in line for line in capsys.readouterr().out.splitlines())


def test_a_replaced_run_leaves_no_table_behind(pcg_run, no_pictures):
    _, out = pcg_run("--steps", 1, *SMALL)
    (out / "residuals.png").touch()
    before = (out / "evaluation.csv").stat().st_mtime_ns
    assert pcg_run("--steps", 1, *SMALL, "--overwrite")[0] == train.OK
    assert (out / "evaluation.csv").stat().st_mtime_ns > before
    assert not (out / "residuals.png").exists()
