"""`python -m learnsolve.train heavyball` and `heavyball_network`: formulas and losses; training by depth."""

import pytest
import torch
import yaml
from reference import normal
from safetensors.torch import load_file
from train.train_cases import make

import learnsolve as ls
from learnsolve import CSR, problems, train
from learnsolve.recipes.heavyball import best_parameters, convergence_factor, eigenvalues, expected_energy
from learnsolve.recipes.heavyball_network import bound
from learnsolve.recipes.schedule import train_by_depth


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
    assert report(out)["learned"].startswith("Learned alpha = 0.65")


@pytest.mark.parametrize("shape", [[7], [4, 3]])
def test_the_losses_are_those_of_dense_algebra(shape):
    its = make("heavyball", shape=shape, test_vectors=5, sweeps=4, alpha=0.2, beta=0.3)
    A, E = its.A.to_dense(), its.test_vectors
    x = dense_sweeps(A, E, 0.2, 0.3, 4)
    expected = (x * (A @ x)).sum(0)
    torch.testing.assert_close(its.losses(E, 0), expected)
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
    assert float(expected_energy(spectrum, 0.2, 0.4, sweeps)) == pytest.approx(float((x * (dense @ x)).sum()))
    a, c = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (0.2, 0.4))
    assert torch.autograd.gradcheck(lambda a, c: expected_energy(spectrum, a, c, sweeps), (a, c))


@pytest.mark.parametrize("sweeps", [2, 6, 12])
def test_no_neighbor_of_the_best_parameters_is_better(sweeps):
    spectrum = eigenvalues(problems.poisson(16))
    alpha, beta = best_parameters(spectrum, sweeps)
    least = float(expected_energy(spectrum, alpha, beta, sweeps))
    for da, dc in ((0.01, 0), (-0.01, 0), (0, 0.01), (0, -0.01), (0.01, 0.01)):
        assert float(expected_energy(spectrum, alpha + da, beta + dc, sweeps)) > least
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
        assert convergence_factor(spectrum, alpha, beta) == pytest.approx(radius, rel=1e-6)


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
    torch.testing.assert_close(its.losses(its.vectors(0), 0), torch.stack(expected) / 3)
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
                assert convergence_factor(spectrum, float(alpha), float(beta)) <= 1


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


# --- train_by_depth ---

A = ls.problems.poisson((16,))
X = normal((16, 6))


def mean_square(solve, *weights):
    return (solve(A, A @ X, *weights).x - X).square().mean()


def richardson(w):
    return mean_square(lambda A, b, w: ls.solvers.richardson(A, b, weight=w, iterations=len(w)), w)


def heavyball(alpha, beta):
    solve = lambda A, b, *p: ls.solvers.heavyball(A, b, alpha=p[0], beta=p[1], iterations=len(p[0]))  # noqa: E731
    return mean_square(solve, alpha, beta)


def start(*values, depths=3):
    return [torch.nn.Parameter(torch.full((depths,), v, dtype=torch.float64)) for v in values]


@pytest.mark.parametrize(("loss", "values"), [(richardson, (0.2,)), (heavyball, (0.2, 0.1))])
def test_each_depth_goes_on_from_the_one_before(loss, values):
    seen = []

    def watched(*parts):
        seen.append([p.detach().clone() for p in parts])
        return loss(*parts)

    weights = start(*values)
    losses = train_by_depth(watched, weights, torch.optim.Adam(weights, lr=0.02), steps=15)
    assert [len(parts[0]) for parts in seen] == [1] * 15 + [2] * 15 + [3] * 15
    assert losses[0] > losses[1] > losses[2]
    for last, first in ((seen[14], seen[15]), (seen[29], seen[30])):
        for w, before, value in zip(first, last, values, strict=True):
            assert w[-1] == value  # as it was given
            torch.testing.assert_close(w[:-1], before, rtol=0, atol=0.021)  # one step away
        assert (first[0][:-1] != values[0]).all()  # beta of the first iteration has no gradient


def test_a_new_iteration_may_start_from_the_one_before():
    firsts = []

    def watched(w):
        firsts.append(w.detach().clone())
        return richardson(w)

    weights = start(0.2)
    train_by_depth(watched, weights, torch.optim.Adam(weights, lr=0.02), steps=5, carry=True)
    assert firsts[5][1] == firsts[5][0] != 0.2
    assert firsts[10][2] == firsts[10][1]


def test_errors_of_train_by_depth():
    a, b = start(0.2, 0.1)
    optimizer = torch.optim.Adam([a, b])
    with pytest.raises(ValueError, match=r"one length, an entry for each iteration, got \[2, 3\]"):
        train_by_depth(heavyball, [a, b[:2]], optimizer, steps=1)
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        train_by_depth(heavyball, [a, b], optimizer, steps=0)
    before = a.detach().clone()
    with pytest.raises(FloatingPointError, match="the loss is nan at depth 2, step 0"):
        train_by_depth(lambda w: w.sum() * (float("nan") if len(w) > 1 else 0.0), [a], optimizer, steps=2)
    assert torch.equal(a, before)
