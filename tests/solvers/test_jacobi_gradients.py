"""Derivatives of weighted Jacobi: autograd through dense sweeps, gradcheck, the paths that must agree."""

import importlib

import pytest
import torch
from reference import assert_within, densify, gradients, normal, pattern_of
from solvers.dense_jacobi import (
    MATRICES,
    SHAPES,
    WEIGHTS,
    dense_jacobi,
    inputs_on,
    small_square,
    sparse_jacobi,
    values_on,
)
from torch.autograd import grad, gradcheck

import learnsolve as ls
from learnsolve.ops.richardson import _unfused, richardson_sweeps

# `learnsolve.solvers.jacobi` is the function.
module = importlib.import_module("learnsolve.solvers.jacobi")
GRADIENTS = ("unrolled", "checkpointed")


def gradients_of(f, inputs, *which):
    """Gradients of all inputs through the chosen outputs of f (0: x, 1: norms), zero where there are none."""
    inputs = [t.detach().requires_grad_() for t in inputs]
    out = [f(*inputs)[i] for i in which]
    g = [normal(t.shape, t.dtype, seed=60 + i) for i, t in enumerate(out)]
    return grad(out, inputs, g, allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients(shape, weight):
    P = small_square()
    for K in (0, 1, 2, 5):
        inputs = inputs_on(P, weight, shape, K)
        for which in ((0,), (1,), (0, 1)):
            wanted = gradients_of(lambda *a: dense_jacobi(P, *a, K), inputs, *which)  # noqa: B023
            for mode in GRADIENTS:
                found = gradients_of(lambda *a: sparse_jacobi(P, *a, K, mode), inputs, *which)  # noqa: B023
                torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_gradients_for_b_and_x0_alone(weight):
    """The adjoint needs no residual then."""
    P, K = small_square(), 5
    values, weights, b, x0 = inputs_on(P, weight, next(iter(SHAPES)), K)
    wanted = gradients_of(lambda b, x0: dense_jacobi(P, values, weights, b, x0, K), (b, x0), 0)
    for mode in GRADIENTS:
        found = gradients_of(
            lambda b, x0: sparse_jacobi(P, values, weights, b, x0, K, mode),  # noqa: B023
            (b, x0),
            0,
        )
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("structure", MATRICES)
@pytest.mark.parametrize("columns", [(), (1,), (3,), (21,)], ids=str)
def test_gradients_on_larger_matrices(structure, columns):
    K = 5
    for index in (torch.int32, torch.int64):
        P = pattern_of(MATRICES[structure], index)
        n = P.shape[0]
        inputs = values_on(P), normal((K, n), seed=5), normal((n, *columns), seed=6), normal((n, *columns))
        wanted = gradients_of(lambda *a: dense_jacobi(P, *a, K), inputs, 0, 1)  # noqa: B023
        for mode in GRADIENTS:
            found = gradients_of(lambda *a: sparse_jacobi(P, *a, K, mode), inputs, 0, 1)  # noqa: B023
            torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("structure", MATRICES)
def test_float32_gradients_within_rounding(structure):
    """Of the sweeps, which are polynomials: with every sign made + they bound all sums in between."""
    K, k = 3, 4
    P = pattern_of(MATRICES[structure])
    n = P.shape[0]
    longest = int(max(P.crow_indices.diff().max(), P.col_indices.bincount().max()))
    inputs = (
        values_on(P, dtype=torch.float32),
        *(normal(s, torch.float32, i) for i, s in enumerate([(K, n), (n, k), (n, k)])),
    )

    def dense(sign, v, s, b, x):
        for sweep in range(K):
            x = x + s[sweep].unsqueeze(-1) * (b + sign * (densify(P, v) @ x))
        return x

    g = normal((n, k), torch.float32, seed=9)
    found = gradients(lambda *a: richardson_sweeps(*a, P, K)[0], list(inputs), g)
    wanted = gradients(lambda *a: dense(-1, *a), [t.double() for t in inputs], g.double())
    size = gradients(lambda *a: dense(1, *a), [t.double().abs() for t in inputs], g.double().abs())
    for i in range(4):
        terms = torch.full_like(size[i], 2 * K * (longest + k + 4))
        assert_within(found[i], wanted[i], size[i], terms, f"gradient {i}")


# Each shape of the weight and each shape of b once: the kernels treat them apart from each other.
CHECKED = [("vector", w) for w in WEIGHTS] + [(s, "row and sweep") for s in SHAPES if s != "vector"]


@pytest.mark.parametrize(("shape", "weight"), CHECKED)
def test_gradcheck(shape, weight):
    P = small_square()
    inputs = inputs_on(P, weight, shape, 2, requires_grad=True)
    for mode in GRADIENTS:
        assert gradcheck(
            lambda *a: sparse_jacobi(P, *a, 2, mode),  # noqa: B023
            inputs,
            check_forward_ad=True,
            check_batched_grad=True,
            check_batched_forward_grad=True,
            fast_mode=len(SHAPES[shape][1](4)) > 2 or bool(SHAPES[shape][0]),
        )


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("shape", ["vector", "columns", "batch of b", "batch of both"])
def test_gradient_of_some_inputs_only(shape, weight):
    """Every subset of inputs that learn: the gradients of all of them at once, and none elsewhere."""
    P, K = small_square(), 3
    inputs = inputs_on(P, weight, shape, K)
    for mode in GRADIENTS:
        together = gradients_of(lambda *a: sparse_jacobi(P, *a, K, mode), inputs, 0, 1)  # noqa: B023
        for subset in range(1, 16):
            some = [t.clone().requires_grad_(bool(subset >> i & 1)) for i, t in enumerate(inputs)]
            out = sparse_jacobi(P, *some, K, mode)
            g = [normal(t.shape, seed=60 + i) for i, t in enumerate(out)]
            torch.autograd.backward(out, g)
            for i, t in enumerate(some):
                assert (t.grad is not None) == t.requires_grad
                if t.requires_grad:
                    torch.testing.assert_close(t.grad, together[i], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_fused_equals_composed(shape, weight):
    """richardson_sweeps against the composition that stands in for it in second derivatives."""
    P, K = small_square(), 4
    for batched_scale in (False, True):
        _, s, b, x0 = inputs_on(P, weight, shape, K)
        if b.dim() > 3 or SHAPES[shape][0]:
            continue  # the operation takes one batch axis
        s = s.expand(4) if s.dim() == 0 else s.expand(s.shape[0], 4) if s.dim() == 2 else s
        if batched_scale:
            if b.dim() < 3:
                continue
            s = torch.stack((s, 2 * s)).reshape(2, -1, 4)
        v = values_on(P, *((2,) if batched_scale else ()), seed=1)
        inputs = v, s, b, x0

        def composed(v, s, b, x0):
            return _unfused(v, s, v.new_empty(0), b, x0, P, K)

        torch.testing.assert_close(
            richardson_sweeps(*inputs, P, K), composed(*inputs), rtol=1e-13, atol=1e-13
        )
        for which in ((0,), (1,), (0, 1)):
            wanted = gradients_of(composed, inputs, *which)
            for checkpointed in (False, True):
                found = gradients_of(lambda *a: richardson_sweeps(*a, P, K, checkpointed), inputs, *which)  # noqa: B023
                torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("columns", [(), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("K", [1, 2, 3, 10, 37])
def test_checkpointed_gives_the_same_bits(K, columns):
    P = pattern_of(MATRICES["power law"])
    n = P.shape[0]
    shape = (*columns[:-1], n, *columns[-1:])
    inputs = values_on(P), normal((K, n), seed=5), normal(shape, seed=6), normal(shape, seed=7)

    def results(mode):
        gradient = gradients_of(lambda *a: sparse_jacobi(P, *a, K, mode), inputs, 0, 1)
        return *sparse_jacobi(P, *(t.requires_grad_() for t in inputs), K, mode), *gradient

    stored, repeated = (results(mode) for mode in GRADIENTS)
    assert all(torch.equal(a, b) for a, b in zip(stored, repeated, strict=True))


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_one_sweep_equals_fused(shape, weight, monkeypatch):
    """One sweep of which only the weight learns is computed by torch, all else by the fused operation."""
    P = small_square()
    v, w, b, x0 = inputs_on(P, weight, shape, 1)
    taken, real = [], module._one_sweep
    monkeypatch.setattr(module, "_one_sweep", lambda *a: taken.append(a) or real(*a))

    def f(w):
        return sparse_jacobi(P, v, w, b, x0, 1)

    short = f(w.requires_grad_())
    assert len(taken) == 1
    of_short = [gradients_of(f, [w], i)[0] for i in (0, 1)]
    monkeypatch.setattr(module, "_only_scale_learns", lambda *a: False)
    del taken[:]
    torch.testing.assert_close(f(w), short, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close([gradients_of(f, [w], i)[0] for i in (0, 1)], of_short, rtol=1e-13, atol=1e-13)
    assert not taken


def test_when_one_sweep_is_taken(monkeypatch):
    P = small_square()
    taken, real = [], module._one_sweep
    monkeypatch.setattr(module, "_one_sweep", lambda *a: taken.append(a) or real(*a))
    for learning, K in [((0, 1), 1), ((1, 2), 1), ((1, 3), 1), ((2,), 1), ((), 1), ((1,), 2)]:
        inputs = inputs_on(P, "row", "vector", K)
        sparse_jacobi(P, *(t.requires_grad_(i in learning) for i, t in enumerate(inputs)), K)
        assert not taken, (learning, K)
    w = inputs_on(P, "row", "vector", 1)[1].requires_grad_()
    with torch.no_grad():
        sparse_jacobi(P, *inputs_on(P, "row", "vector", 1)[:1], w, normal((4,)), normal((4,)), 1)
    assert not taken


@pytest.mark.parametrize("columns", [(), (2,)], ids=str)
@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("only_weight", [True, False])
def test_gradient_of_a_norm_that_is_zero(only_weight, K, columns):
    """b - A x0 = 0: the norm has no derivative there, and its gradient is 0, not NaN."""
    A = ls.problems.poisson((4,))
    x0 = torch.arange(4.0, dtype=torch.float64).reshape(4, *(1,) * len(columns)).expand(4, *columns).clone()
    b = (A @ x0).requires_grad_(not only_weight)
    v = A.values.clone().requires_grad_(not only_weight)
    w = torch.full((4,), 0.5, dtype=torch.float64, requires_grad=True)
    solution = ls.solvers.jacobi(ls.CSR(v, A.pattern), b, x0, weight=w, iterations=K)
    assert not solution.residual_norms.any()
    found = grad(solution.residual_norms.sum(), [w] if only_weight else [v, w, b])
    assert all(not t.any() for t in found)


def test_learning_weights_have_a_gradient_without_that_of_x():
    """The norms before the last come with the sweeps: a loss on them alone has all gradients."""
    P = small_square()
    inputs = inputs_on(P, "row and sweep", "columns", 4)
    found = gradients_of(lambda *a: (sparse_jacobi(P, *a, 4)[1][:-1],), inputs, 0)
    wanted = gradients_of(lambda *a: (dense_jacobi(P, *a, 4)[1][:-1],), inputs, 0)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    assert not found[1][-1].any()  # the last weight came too late
    assert found[1][:-1].all()


def test_second_derivatives_of_a_zero_norm_are_finite():
    A = ls.problems.poisson((8,))
    b = torch.ones(8, 2, dtype=torch.float64)
    b[:, 1] = 0
    w = torch.full((8,), 0.6, dtype=torch.float64, requires_grad=True)
    norms = ls.solvers.jacobi(A, b, weight=w, iterations=2).residual_norms
    (g,) = torch.autograd.grad(norms.sum(), w, create_graph=True)
    assert torch.isfinite(torch.autograd.grad(g.sum(), w)[0]).all()
