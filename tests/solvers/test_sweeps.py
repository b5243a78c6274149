"""The compiled sweeps of the stationary methods: parts of a run, columns without a cotangent, rounding,
threads, and when they are taken."""

import importlib

import pytest
import torch
from reference import assert_same_bits, grid, normal, pattern_of, power_law
from scipy.sparse import eye_array
from solvers.stationary_cases import ROWS, close, results, rows, small_square

import learnsolve as ls
from learnsolve.ops.core import sweep_calls
from learnsolve.ops.richardson import richardson_sweeps
from learnsolve.solvers.core import stationary as engine

module = importlib.import_module("learnsolve.solvers.stationary")
HEAVYBALL = next(r for r in ROWS if r.name == "heavyball")
P = small_square()
SHAPES = {"vector": "(N, n)", "columns": "(1, n)", "one column": "(1, n)", "batch of b": "(N, n)"}
SHAPES |= {"batch of both": "(B, N, n)"}
LEARNING = [[0], [5], [1, 2], [0, 3, 4, 7], [0, 1, 2, 3, 4, 6, 7]]


def inputs_for(shape: str, K: int, pattern=P) -> list:
    """values, b, x0, scale, momentum"""
    *rest, scale, momentum = HEAVYBALL.inputs(pattern, shape, SHAPES[shape], K)
    return [*rest, scale.squeeze(0) if shape == "one column" else scale, momentum.squeeze(-1)]


def sweeps(pattern, K, checkpointed=False):
    return lambda v, b, x0, s, m: richardson_sweeps(v, s, b, x0, pattern, K, checkpointed, m)


def dense(pattern, K, form):
    """x, and the norms before each sweep."""

    def f(v, b, x0, s, m):
        x, norms = HEAVYBALL.dense(pattern, v, b, x0, s, m.unsqueeze(-1), iterations=K, form=form)
        return x, norms.narrow(0 if b.dim() == 1 else -2, 0, K)

    return f


def equal(found, expected):
    assert all(torch.equal(f, e) for f, e in zip(found, expected, strict=True))


@pytest.mark.parametrize("shape", SHAPES)
def test_parts(shape, monkeypatch):
    """In one call or several, checkpointed or not, with momentum or not: iterates to the last bit. Within one
    call checkpointing changes no bit of a gradient either."""
    lengths, back = [], []
    raw, raw_backward = sweep_calls._raw, sweep_calls._raw_backward
    monkeypatch.setattr(sweep_calls, "_raw", lambda *a: lengths.append(a[-2]) or raw(*a))
    monkeypatch.setattr(sweep_calls, "_raw_backward", lambda *a: back.append(a[-3]) or raw_backward(*a))
    for K, heavy in ((10, True), (10, False), (37, True), (37, False)):
        inputs = inputs_for(shape, K)
        if not heavy:
            inputs[4] = inputs[4].new_empty(0)
        monkeypatch.setattr(sweep_calls, "_WORK", 10**9)
        expected, [gradient] = results(sweeps(P, K), inputs)
        del lengths[:], back[:]
        for work in (10**9, 3000, 400, 1):
            monkeypatch.setattr(sweep_calls, "_WORK", work)
            for checkpointed in (False, True):
                found, [g] = results(sweeps(P, K, checkpointed), inputs)
                equal(found, expected)
                calls = sweep_calls._calls(inputs[0], inputs[1], K, checkpointed, heavy)
                assert lengths[: sum(map(len, calls))] == back[::-1] == [n for part in calls for n in part]
                del lengths[:], back[:]
                # Calls add their gradients up, each its own: not the same bits.
                (equal if work == 10**9 else lambda a, b: close(a, b, 1e-13))(g, gradient)


@pytest.mark.parametrize("shape", ["vector", "columns", "batch of both"])
def test_threads_do_not_change_a_bit(shape):
    for matrix, checkpointed in ((grid(5, 150), True), (power_law(6000) + eye_array(6000), False)):
        pattern = pattern_of(matrix, torch.int32)
        inputs = inputs_for(shape, 4, pattern)

        def run():
            out, [g] = results(sweeps(pattern, 4, checkpointed), inputs)  # noqa: B023
            return [*out, *g]

        assert_same_bits(run, (2, 3))


# --- cotangents of zero ---


@pytest.mark.parametrize("heavy", [True, False], ids=["momentum", "jacobi"])
@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("learning", LEARNING)
def test_columns_without_a_cotangent(learning, checkpointed, heavy):
    """Left out of the adjoint, where the others are computed among fewer: in vectors or one by one, which
    decides what a machine with FMA rounds."""
    pattern = pattern_of(grid(5, 6), torch.int32)
    v, _, _, s, m = inputs_for("vector", 9, pattern)
    b, x0 = normal((pattern.shape[0], 8), seed=6), normal((pattern.shape[0], 8), seed=7)
    inputs = [t.requires_grad_() for t in (v, b, x0, s, m if heavy else 0 * m)]
    given = [*inputs[:4], m if heavy else m[:0].detach()]
    x, norms = sweeps(pattern, 9, checkpointed)(*given)
    learned = inputs[:5] if heavy else inputs[:4]
    gx, gnorms = normal(x.shape, seed=8), normal(norms.shape, seed=9)
    every = torch.autograd.grad((x, norms), learned, (gx, gnorms), retain_graph=True)
    some = torch.zeros(8, dtype=torch.float64)
    some[learning] = 1
    for a, c in ((1, 1), (1, 0), (0, 1)):
        found = torch.autograd.grad(
            (x, norms), learned, (a * gx * some, c * gnorms * some), retain_graph=True
        )
        alone = [(t[:, learning] if i in (1, 2) else t).detach().clone() for i, t in enumerate(inputs)]
        alone = [t.requires_grad_() for t in alone]
        cotangents = a * gx[:, learning], c * gnorms[:, learning]
        expected = torch.autograd.grad(dense(pattern, 9, "(N, n)")(*alone), alone, cotangents)
        for i, (f, w, e) in enumerate(zip(found, expected, every, strict=False)):
            close(f[:, learning] if i in (1, 2) else f, w, 1e-11)
            if i in (1, 2):
                assert (f[:, some == 0] == 0).all()
                if a and c:
                    close(f[:, learning], e[:, learning], 1e-14)


def test_zero_and_small_cotangents():
    """None at all, none of an item of a batch; and a small one is not zero."""
    inputs = [t.requires_grad_() for t in inputs_for("batch of both", 5)]
    out = sweeps(P, 5)(*inputs)
    x, g = out[0], normal(out[0].shape)
    assert not any(t.any() for t in torch.autograd.grad(x, inputs, 0 * g, retain_graph=True))
    g[0] = 0
    found = torch.autograd.grad(x, inputs, g, retain_graph=True)
    assert all((t[0] == 0).all() and (t[1] != 0).any() for t in found)
    small, large = (
        torch.autograd.grad(out, inputs, [size * normal(t.shape) for t in out], retain_graph=True)
        for size in (1e-200, 1.0)
    )
    close([1e200 * t for t in small], large, 1e-13)


def test_norms_alone():
    """They come without x: a loss on them has all gradients, and none of the last scale."""
    inputs = inputs_for("vector", 4)
    (_, [found]), (_, [expected]) = (
        results(f, inputs, ((1,),)) for f in (sweeps(P, 4), dense(P, 4, "(N, n)"))
    )
    close(found, expected)
    assert not found[3][-1].any()
    assert found[3][:-1].all()


# --- which way a solve takes ---


@rows(lambda r: not r.sweeps)
def test_when_the_compiled_sweeps_are_taken(row, monkeypatch):
    """For a CSR and an M that is none or diagonal, parameters of any shape; not for what calls Python."""
    taken, real = [], engine.richardson_sweeps
    monkeypatch.setattr(engine, "richardson_sweeps", lambda *a: taken.append(a) or real(*a))
    for form in ("()", "(N,)", "(B,)", "(N, B)"):
        v, b, x0, *given = (t.requires_grad_() for t in row.inputs(P, "batch of b", form))
        row.solve(ls.CSR(v, P), b, x0, *given, iterations=3).x.sum().backward()
    assert len(taken) == (0 if row.M == "callable" else 4)
    del taken[:]
    if row.stops:
        A, b = ls.problems.poisson((4, 4)), normal((16,))
        M = {"M": row.preconditioner(A)} if row.M else {}
        row.solve(A, b, iterations=3, callback=lambda _: None)
        row.solve(lambda x: A @ x, b, iterations=3, **M)
        row.solve(A, b, rtol=1e-2)
        assert not taken


def test_one_jacobi_sweep_of_which_only_the_weight_learns(monkeypatch):
    """It is computed by torch, with the same results; all else by the sweeps."""
    taken, real, row = [], module._one_sweep, ROWS[0]
    monkeypatch.setattr(module, "_one_sweep", lambda *a: taken.append(a) or real(*a))
    for shape in row.shapes:
        for form in ("()", "(n,)", "(1, n)", "(1, 1)"):
            v, b, x0, w = row.inputs(P, shape, form, 1)
            found, expected = (
                results(f, [w], ((0,), (1,), (0, 1)))
                for f in (
                    lambda w: row.sparse(P, v, b, x0, w, iterations=1),  # noqa: B023
                    lambda w: row.dense(P, v, b, x0, w, iterations=1, form=form),  # noqa: B023
                )
            )
            close(found, expected)
            assert len(taken) == 1
            del taken[:]
    for learning, K in [((0, 3), 1), ((3, 1), 1), ((3, 2), 1), ((1,), 1), ((), 1), ((3,), 2)]:
        inputs = row.inputs(P, "vector", "(n,)", K)
        row.sparse(P, *(t.requires_grad_(i in learning) for i, t in enumerate(inputs)), iterations=K)
    with torch.no_grad():
        v, b, x0, w = row.inputs(P, "vector", "(n,)", 1)
        row.sparse(P, v, b, x0, w.requires_grad_(), iterations=1)
    assert not taken
