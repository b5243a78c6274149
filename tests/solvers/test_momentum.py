"""The compiled sweeps with momentum: values, derivatives, the paths that must agree."""

import pytest
import torch
from reference import assert_same_bits, grid, normal, pattern_of, power_law
from scipy.sparse import eye_array
from solvers.dense_jacobi import MATRICES, small_square
from solvers.dense_momentum import SYSTEMS, close, dense, equal, inputs_for, results, sparse

from learnsolve.ops import _sweep_calls
from learnsolve.ops.richardson import _unfused, richardson_sweeps

LEARNING = [[0], [5], [1, 2], [0, 3, 4, 7], [0, 1, 2, 3, 4, 6, 7]]


def unfused(P, v, s, m, b, x0, K):
    return _unfused(v, s, m, b, x0, P, K)


@pytest.mark.parametrize("name", SYSTEMS)
def test_against_dense_autograd(name):
    P = small_square()
    for K in (0, 1, 2, 5, 7):
        inputs = inputs_for(name, K)
        for which in ((0,), (1,), (0, 1)):
            wanted = results(lambda *t: dense(P, *t, K), inputs, which)  # noqa: B023
            close(results(lambda *t: unfused(P, *t, K), inputs, which), wanted)  # noqa: B023
            for checkpointed in (False, True):
                close(results(lambda *t: sparse(P, *t, K, checkpointed), inputs, which), wanted)  # noqa: B023


@pytest.mark.parametrize("structure", MATRICES)
@pytest.mark.parametrize("name", ["vector, all a step", "columns"])
def test_on_larger_matrices(structure, name):
    for index in (torch.int32, torch.int64):
        P = pattern_of(MATRICES[structure], index)
        inputs = inputs_for(name, 6, P)
        wanted = results(lambda *t: dense(P, *t, 6), inputs)  # noqa: B023
        for checkpointed in (False, True):
            close(results(lambda *t: sparse(P, *t, 6, checkpointed), inputs), wanted, 1e-11)  # noqa: B023
        single = [t.float() for t in inputs]
        close([t.double() for t in results(lambda *t: sparse(P, *t, 6), single)], wanted, 2e-3)  # noqa: B023


@pytest.mark.parametrize("name", ["vector", "columns", "batch of all"])
def test_gradient_of_some_inputs_only(name):
    P, inputs = small_square(), inputs_for(name, 4)
    for checkpointed in (False, True):
        together = results(lambda *t: sparse(P, *t, 4, checkpointed), inputs)[2:]  # noqa: B023
        for subset in range(1, 32):
            some = [t.clone().requires_grad_(bool(subset >> i & 1)) for i, t in enumerate(inputs)]
            out = sparse(P, *some, 4, checkpointed)
            torch.autograd.backward(out, [normal(t.shape, seed=60 + i) for i, t in enumerate(out)])
            for i, t in enumerate(some):
                assert (t.grad is not None) == t.requires_grad
                if t.requires_grad:
                    close([t.grad], [together[i]], 1e-13)


@pytest.mark.parametrize("name", SYSTEMS)
def test_parts(name, monkeypatch):
    """In one call or several, checkpointed or not, with momentum or not: iterates to the last bit. Within one
    call checkpointing changes no bit of a gradient either."""
    P = small_square()
    for K in (10, 37):
        for heavy in (True, False):
            inputs = inputs_for(name, K)
            if not heavy:
                inputs[2] = inputs[2].new_empty(0)
            wanted = results(lambda *t: sparse(P, *t, K), inputs)  # noqa: B023
            for work in (10**9, 3000, 400, 1):
                with monkeypatch.context() as patch:
                    patch.setattr(_sweep_calls, "_WORK", work)
                    for checkpointed in (False, True):
                        found = results(lambda *t: sparse(P, *t, K, checkpointed), inputs)  # noqa: B023
                        equal(found[:2], wanted[:2])
                        # Calls add their gradients up, each its own: not the same bits.
                        close(found[2:], wanted[2:], 1e-13)
        stored, repeated = (results(lambda *t: sparse(P, *t, K, c), inputs) for c in (False, True))  # noqa: B023
        equal(repeated, stored)


def test_no_momentum_is_jacobi():
    """Empty, None: the same bits, and a gradient for neither."""
    P = small_square()
    v, s, _, b, x0 = inputs_for("columns", 5, requires_grad=True)
    empty = torch.empty(0, dtype=torch.float64, requires_grad=True)
    without = richardson_sweeps(v, s, b, x0, P, 5)
    x, norms = richardson_sweeps(v, s, b, x0, P, 5, False, empty)
    equal((x, norms), without)
    close(sparse(P, v, s, torch.zeros(1, dtype=torch.float64), b, x0, 5), without, 1e-14)
    assert torch.autograd.grad(x.sum() + norms.sum(), empty)[0].shape == (0,)


@pytest.mark.parametrize("name", ["vector, all a step", "columns", "batch of all"])
def test_threads_do_not_change_a_bit(name):
    for S in (grid(5, 110), power_law(6000) + eye_array(6000)):
        P = pattern_of(S, torch.int32)
        inputs = inputs_for(name, 4, P)
        assert_same_bits(lambda: results(lambda *t: sparse(P, *t, 4), inputs), (2, 3))  # noqa: B023


@pytest.mark.parametrize("heavy", [True, False], ids=["momentum", "jacobi"])
@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("learning", LEARNING)
def test_columns_without_a_cotangent(learning, checkpointed, heavy):
    """Left out of the adjoint, where the others are computed among fewer: in vectors or one by one, which
    decides what a machine with FMA rounds."""
    P = pattern_of(grid(5, 6), torch.int32)
    v, s, m, _, _ = inputs_for("vector, all a step", 9, P)
    b, x0 = normal((P.shape[0], 8), seed=6), normal((P.shape[0], 8), seed=7)
    inputs = [t.requires_grad_() for t in (v, s, m if heavy else m[:0], b, x0)]
    x, norms = sparse(P, *inputs, 9, checkpointed)
    gx, gnorms = normal(x.shape, seed=8), normal(norms.shape, seed=9)
    every = torch.autograd.grad((x, norms), inputs, (gx, gnorms), retain_graph=True)
    some = torch.zeros(8, dtype=torch.float64)
    some[learning] = 1
    for a, c in ((1, 1), (1, 0), (0, 1)):
        found = torch.autograd.grad((x, norms), inputs, (a * gx * some, c * gnorms * some), retain_graph=True)
        alone = [t.detach()[:, learning] if i > 2 else t.detach() for i, t in enumerate(inputs)]
        alone = [t.clone().requires_grad_() for t in alone]
        out = dense(P, *alone, 9) if heavy else unfused(P, *alone, 9)
        wanted = torch.autograd.grad(
            out,
            alone,
            (a * gx[:, learning], c * gnorms[:, learning]),
            allow_unused=True,
            materialize_grads=True,
        )
        close(found[:3], wanted[:3], 1e-11)
        for f, w, e in zip(found[3:], wanted[3:], every[3:], strict=True):
            close([f[:, learning]], [w], 1e-11)
            if a and c:
                close([f[:, learning]], [e[:, learning]], 1e-14)
            assert (f[:, some == 0] == 0).all()


def test_no_cotangent_at_all():
    P, inputs = small_square(), inputs_for("columns", 5, requires_grad=True)
    x, _ = sparse(P, *inputs, 5)
    assert all((g == 0).all() for g in torch.autograd.grad(x, inputs, torch.zeros_like(x)))


def test_items_of_a_batch_without_a_cotangent():
    P, inputs = small_square(), inputs_for("batch of all", 5, requires_grad=True)
    x, _ = sparse(P, *inputs, 5)
    g = torch.zeros_like(x)
    g[1] = normal(g[1].shape)
    assert all((t[0] == 0).all() and (t[1] != 0).any() for t in torch.autograd.grad(x, inputs, g))


def test_small_cotangents_are_not_zero():
    P, inputs = small_square(), inputs_for("columns", 5, requires_grad=True)
    out = sparse(P, *inputs, 5)
    g = [normal(t.shape) for t in out]
    wanted = torch.autograd.grad(out, inputs, g, retain_graph=True)
    found = torch.autograd.grad(out, inputs, [1e-200 * t for t in g])
    close([1e200 * t for t in found], wanted, 1e-13)


@pytest.mark.parametrize("sizes", [(0, 3, 0), (4, 0, 0), (4, 2, 0), (4, 2, 3)], ids=str)
def test_empty(sizes):
    """n, k, batch of 0."""
    n, k, batch = sizes
    P = small_square() if n else pattern_of(eye_array(0))
    shape = (batch, n, k) if batch or (n, k) == (4, 2) else (n, k)
    inputs = [
        normal((P.nnz,)), normal((2, n)), normal((2,)), normal(shape), normal(shape)
    ]  # fmt: skip
    inputs = [t.requires_grad_() for t in inputs]
    for checkpointed in (False, True):
        x, norms = sparse(P, *inputs, 2, checkpointed)
        assert x.shape == shape
        assert norms.shape == (*shape[:-2], 2, k)
        grads = torch.autograd.grad(x.sum() + norms.sum(), inputs)
        assert [g.shape for g in grads] == [t.shape for t in inputs]
