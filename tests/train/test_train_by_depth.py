"""Incremental training of the weights of iterations."""

import pytest
import torch
from reference import normal

import learnsolve as ls
from learnsolve.recipes.by_depth import train_by_depth

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


def test_errors():
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
