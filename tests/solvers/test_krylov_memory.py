"""Memory of the modes: O(1) for the implicit gradient, O(N) unrolled, O(sqrt N) checkpointed."""

import pytest
import torch
from ops.test_memory import peak
from reference import normal
from solvers.krylov import S

import learnsolve as ls

A = ls.problems.poisson((24, 24))
N, COLUMNS, WORD = 576, 8, 8
VECTORS = N * COLUMNS


def solve(gradient, K, name="cg"):
    b = normal((N, COLUMNS)).requires_grad_()
    return getattr(S, name)(A, b, rtol=0.0, maxiter=K, gradient=gradient), b


def most(gradient, K, name="cg"):
    """Peak of a solve and its backward, in blocks."""

    def both():
        solution, b = solve(gradient, K, name)
        torch.autograd.grad(solution.x.sum() + solution.residual_norms.sum(), b)

    both()
    return peak(both) / (VECTORS * WORD)


@pytest.mark.parametrize("name", ["cg", pytest.param("minres", marks=pytest.mark.slow)])
def test_peak_of_the_modes(name):
    per = (most("unrolled", 30, name) - most("unrolled", 15, name)) / 15  # blocks of an iteration
    assert per >= (2 if name == "cg" else 3)  # the compiled loop of cg keeps r and p
    for K in (30, 90):
        # A state at the end of each segment of 1, 2, 3, ... iterations, and the last segment in full.
        segments = (2 * K) ** 0.5 + 1
        state = 4 if name == "cg" else 9
        assert most("checkpointed", K, name) <= (per + state) * segments + 30
    assert most("checkpointed", 90, name) < 0.45 * most("unrolled", 90, name)


def test_peak_of_the_implicit_gradient():
    def both(K):
        b = normal((N, COLUMNS)).requires_grad_()
        S.cg(A, b, rtol=0.5, adjoint_rtol=1e-5 if K else 0.9, adjoint_maxiter=200).x.sum().backward()

    both(1)
    small, large = (peak(lambda K=K: both(K)) for K in (0, 1))
    assert large <= small + 6 * VECTORS * WORD
