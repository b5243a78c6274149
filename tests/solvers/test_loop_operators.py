"""The compiled loops of a fixed number of iterations, conjugate gradients and the sweeps of stationary
methods: against their twin, made of public operations, and against dense autograd; columns that stop; parts,
threads and memory; when they are taken."""

import importlib
import math

import pytest
import torch
from reference import assert_same_bits, banded, grid, normal, on_cuda, pattern_of, peak, power_law, random
from scipy.sparse import eye_array
from solvers.cases import close, equal
from solvers.stationary_cases import (
    PCG_SHAPES,
    ROWS,
    PCGSystem,
    dense_pcg,
    fused,
    near,
    pcg_gradients,
    pcg_system,
    results,
    rows,
    small_square,
    unfused,
)

import learnsolve as ls
from learnsolve.ops import pcg
from learnsolve.ops import sweeps as sweep_calls
from learnsolve.ops.pcg import KINDS, Stop, pcg_iterations
from learnsolve.ops.sweeps import richardson_sweeps
from learnsolve.solvers.core import stationary as engine

N = 6
WORD = 8
every_kind = pytest.mark.parametrize("kind", KINDS)


def agree(s, iterations, tolerance=1e-10):
    """Fused and unfused stop for the same reason at the same time, and agree in everything."""
    assert torch.equal(fused(s, iterations)[2], unfused(s, iterations)[2])
    close(pcg_gradients(s, fused, iterations), pcg_gradients(s, unfused, iterations), tolerance)


def with_start(s, b, x0=None):
    return s._replace(b=b, x0=x0)


# --- values and gradients ---


@pytest.mark.parametrize("shape", PCG_SHAPES)
@every_kind
def test_as_dense(kind, shape):
    """Each cotangent alone, too; and the adjoint is that of the iterations, whatever A is."""
    for start in (True, False):
        s = pcg_system(kind, shape, start=start)
        expected = pcg_gradients(s, dense_pcg, N)
        close(pcg_gradients(s, fused, N), expected, 1e-11)
        close(pcg_gradients(s, unfused, N), expected, 1e-11)
    for gx, gnorms in ((True, False), (False, True)):
        close(pcg_gradients(s, fused, N, gx, gnorms), pcg_gradients(s, dense_pcg, N, gx, gnorms), 1e-11)
    s = pcg_system(kind, shape, symmetric=False)
    close(pcg_gradients(s, fused, N), pcg_gradients(s, dense_pcg, N), 1e-10)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("shape", ["vector", "columns"])
@every_kind
def test_types(kind, shape, index):
    s = pcg_system(kind, shape, index=index)
    expected = pcg_gradients(s, dense_pcg, N)
    close(pcg_gradients(s, fused, N), expected, 1e-11)
    single = pcg_gradients(pcg_system(kind, shape, dtype=torch.float32, index=index), fused, N)
    assert all(t.dtype == torch.float32 for t in single)
    close([t.double() for t in single], expected, 2e-4)
    for name in ("P", "factor") if s.factor is not None else ():  # each of another index type
        other = s._replace(**{name: getattr(s, name).to(dtype=torch.int32)})
        assert equal(pcg_gradients(other, fused, N), pcg_gradients(s, fused, N))


@pytest.mark.parametrize("shape", ["vector", "many columns", "batch of m", "batch of all"])
@pytest.mark.parametrize("width", [40, 9])
def test_rectangular_factors(width, shape):
    """M = G G^T. With fewer columns than rows M is singular, and the iterations stay in its range."""
    s = pcg_system("none", shape)
    n = s.P.shape[0]
    S = torch.from_numpy(random(n, width, 0.3).toarray())
    if width >= n:
        S[:, :n] += torch.eye(n)
    G = ls.CSR.from_dense(S)
    of_m = (2,) if "batch of" in shape else ()
    s = s._replace(m=G.values * (1 + 0.1 * normal((*of_m, G.nnz))), factor=G.pattern, kind="product")
    for checkpointed in (False, True):
        actual = pcg_gradients(s, fused, 3, checkpointed=checkpointed)
        close(actual, pcg_gradients(s, dense_pcg, 3), 1e-9)
        close(actual, pcg_gradients(s, unfused, 3), 1e-9)


@pytest.mark.rows(1)
@pytest.mark.parametrize("width", [4, 2])
def test_rectangular_factors_have_second_derivatives(width):
    A = ls.problems.poisson((3,))
    G = ls.CSR.from_dense(torch.from_numpy(random(3, width, 0.5).toarray()) + torch.eye(3, width))
    s = pcg_system("none")._replace(x0=None, P=A.pattern, factor=G.pattern, kind="product")

    def f(v, g, b):
        return fused(s._replace(values=v, m=g, b=b), 1)[:2]

    inputs = tuple(t.clone().requires_grad_() for t in (A.values, G.values, normal((3, 1))))
    assert torch.autograd.gradcheck(f, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, inputs)


def test_entries_above_the_diagonal_are_not_read():
    s = pcg_system("triangular", index=torch.int64)
    m = torch.where(s.P.row_indices == s.P.col_indices, 2.0, 0.1).double()
    full = s._replace(m=m, factor=s.P)
    below = s.P.col_indices <= s.P.row_indices
    actual, expected = pcg_gradients(full, fused, N), pcg_gradients(s._replace(m=m[below]), fused, N)
    close([*actual[:3], actual[3][below], *actual[4:]], expected, 1e-12)
    assert (actual[3][~below] == 0).all()


@every_kind
@pytest.mark.parametrize(
    "S", [eye_array(1), eye_array(2), banded(40, 3)[:, :40] + eye_array(40)], ids=["1", "2", "40"]
)
def test_small_and_uniform(kind, S):
    for shape in ("vector", "columns"):
        for iterations in (0, 1, 17, 33):
            s = pcg_system(kind, shape, S, symmetric=False)
            close(pcg_gradients(s, fused, iterations), pcg_gradients(s, unfused, iterations), 1e-8)


@every_kind
def test_empty(kind):
    s = pcg_system(kind, "columns")
    for b in (s.b[:, :0], s.b[None, :, :0], s.b.expand(0, *s.b.shape)):
        t = with_start(s, b, torch.zeros_like(b)).leaves()
        x, norms, status = fused(t, 3)
        assert x.shape == b.shape
        assert norms.shape == (*b.shape[:-2], 4, b.shape[-1])
        assert status.shape == (*b.shape[:-2], 2, b.shape[-1])
        grads = torch.autograd.grad(x.sum() + norms.sum(), t.inputs)
        assert all((g == 0).all() and g.shape == u.shape for g, u in zip(grads, t.inputs, strict=True))
    none = ls.SparsityPattern(torch.zeros(1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), (0, 0))
    v = torch.zeros(0, dtype=torch.float64)
    x, norms, status = pcg_iterations(v, v, None, none, 2)
    assert x.shape == (0,)
    assert norms.tolist() == [0, 0, 0]
    assert status.tolist() == [Stop.ROUNDING, 0]
    none = ls.SparsityPattern(torch.zeros(26, dtype=torch.int32), torch.zeros(0, dtype=torch.int32), (25, 0))
    x, _, status = fused(s._replace(m=s.values[:0], factor=none, kind="product"), 2)
    assert torch.equal(x, s.x0)
    assert (status[0] == Stop.PRECONDITIONER).all()


@pytest.mark.parametrize("batch", [False, True])
def test_a_zero_on_the_diagonal_of_the_factor(batch):
    s = pcg_system("triangular", "batch of all" if batch else "vector")
    m = s.m.clone()
    m[..., 0] = 0
    s = s._replace(m=m)
    if on_cuda():  # a CUDA operator does not look: nothing is divided, and x0 stays
        x, _, status = fused(s, 2)
        assert torch.equal(x, s.x0)
        assert (status.select(-1 if s.b.dim() == 1 else -2, 0) == Stop.NON_FINITE).all()
        return
    for threads in (1, 2):
        torch.set_num_threads(threads)
        with pytest.raises(RuntimeError, match="diagonal of the factor: row 0 has 0"):
            fused(s, 300)


def test_a_small_cotangent_is_not_zero():
    s: PCGSystem = pcg_system("product", "columns").leaves()
    x, _, _ = fused(s, N)
    g = normal(x.shape, seed=8)
    large = torch.autograd.grad(x, s.inputs, g, retain_graph=True)
    assert equal([a * 2.0**-60 for a in large], torch.autograd.grad(x, s.inputs, g * 2.0**-60))


# --- columns that stop, and columns without a cotangent ---


@every_kind
def test_rounding_level(kind):
    """Zero at once; solved by x0; solved in one iteration (an eigenvector); after many; not at all."""
    s = pcg_system(kind, "columns")
    n = s.P.shape[0]
    b, x0 = normal((n, 4), seed=3), normal((n, 4), seed=4)
    b[:, 0] = x0[:, 0] = 0
    A = ls.CSR(s.values, s.P)
    b[:, 1] = A @ x0[:, 1]
    s = with_start(s, b, x0)
    x, norms, status = fused(s, 3)
    assert status[:, :2].tolist() == [[Stop.ROUNDING, Stop.ROUNDING], [0, 0]]
    assert status[:, 2:].tolist() == [[Stop.RUNNING, Stop.RUNNING], [0, 0]]
    assert torch.equal(x[:, :2], x0[:, :2])
    agree(s, 3)
    x, norms, status = fused(s, 200)
    assert (status[0] == Stop.ROUNDING).all()
    assert (status[1, 2:] > 0).all()
    assert (status[1, 2:] < 100).all()
    torch.testing.assert_close(A @ x, b, rtol=0, atol=1e-13)
    for c in range(4):  # what comes after adds nothing
        assert (norms[status[1, c] :, c] == norms[-1, c]).all()
    stop = int(status[1].max())
    of_all, of_some = (pcg_gradients(s, fused, count, gnorms=False) for count in (200, stop))
    assert torch.equal(of_all[0], of_some[0])
    assert equal(of_all[2:], of_some[2:])


def test_an_eigenvector_takes_one_iteration():
    P = pattern_of(eye_array(5), torch.int32)
    values, b = torch.full((5,), 4.0).double(), normal((5, 2))
    x, norms, status = pcg_iterations(values, b, None, P, 4)
    assert status.tolist() == [[Stop.ROUNDING] * 2, [1, 1]]
    torch.testing.assert_close(x, b / 4, rtol=1e-15, atol=0)
    assert (norms[1:] == 0).all()


@pytest.mark.parametrize("shape", ["vector", "columns"])
@pytest.mark.parametrize("where", ["A", "M"])
def test_what_is_not_positive_definite(where, shape):
    """A column meets it, the others go on."""
    s = pcg_system("none" if where == "A" else "diagonal", shape)
    if where == "A":
        at = torch.arange(s.P.nnz) == s.P.diagonal_positions[0]
        s, why = s._replace(values=torch.where(at, -20.0, s.values)), Stop.CURVATURE
    else:
        s, why = s._replace(m=torch.where(torch.arange(len(s.m)) == 0, -5.0, s.m)), Stop.PRECONDITIONER
    b = normal(s.b.shape, seed=3)
    column = b if shape == "vector" else b[:, 0]
    column.zero_()[0] = 1
    s = with_start(s, b)
    x, _, status = fused(s, 3)
    assert status[..., 0].tolist() == [why, 0] if shape == "columns" else status.tolist() == [why, 0]
    assert (x if shape == "vector" else x[:, 0]).count_nonzero() == 0
    agree(s, 3)


@every_kind
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e200])
def test_a_column_that_leaves_the_numbers_does_not_spoil_the_others(kind, bad):
    """Nor any gradient."""
    s = pcg_system(kind, "columns")
    b = s.b.clone()
    b[3, 1] = bad
    s = with_start(s, b).leaves()
    x, norms, status = fused(s, 5)
    assert status[:, 1].tolist() == [Stop.NON_FINITE, 0]
    assert torch.equal(x[:, 1], torch.zeros_like(x[:, 1]))
    assert not norms[:, 1].isfinite().any()
    clean = s._replace(b=torch.where(torch.arange(3) == 1, 0, s.b.detach())).leaves()
    keep = torch.tensor([1.0, 0.0, 1.0]).double()
    actual = torch.autograd.grad((x * normal(x.shape)).sum() + norms[:, ::2].sum(), s.inputs)
    y, history, _ = fused(clean, 5)
    expected = torch.autograd.grad((y * normal(x.shape)).sum() + history[:, ::2].sum(), clean.inputs)
    close(actual[:-1], expected[:-1], 1e-14)
    close([actual[-1] * keep], [expected[-1] * keep], 1e-14)


def test_overflow_and_divergence_on_the_way():
    """The last good iterate is what comes back. If A is not symmetric, one step may grow the residual by any
    factor."""
    P = pattern_of(eye_array(3), torch.int32)
    values = torch.tensor([1e-30, 1.0, 2.0])
    b = torch.tensor([[1e-10, 1.0], [1.0, 1.0], [1.0, 1.0]])
    for v in (values, values * 1e30):
        x, norms, status = pcg_iterations(v, b, None, P, 8)
        assert x.isfinite().all()
        assert norms[0].isfinite().all()
        assert (status[0] != Stop.RUNNING).all()
    A = ls.CSR.from_dense(torch.tensor([[1, 1e17], [-1e17, 1]], dtype=torch.float64))
    x, norms, status = pcg_iterations(A.values, torch.tensor([1.0, 0.0]).double(), None, A.pattern, 4)
    assert status.tolist() == [Stop.DIVERGED, 1]
    assert norms.tolist() == [1, 1e17, 1e17, 1e17, 1e17]
    assert x.tolist() == [1, 0]


@every_kind
@pytest.mark.parametrize("learning", [[], [0], [5], [1, 2], [0, 3, 4, 7], [0, 1, 2, 3, 4, 6, 7]])
def test_columns_without_a_cotangent(kind, learning):
    """Left out of the adjoint, so that the others are computed among fewer: not a bit of theirs changes."""
    s = pcg_system(kind, "columns")
    n = s.P.shape[0]
    s = with_start(s, normal((n, 8), seed=3), normal((n, 8), seed=4)).leaves()
    x, norms, _ = fused(s, 20)
    gx, gnorms = normal(x.shape, seed=8), normal(norms.shape, seed=9)
    every = torch.autograd.grad((x, norms), s.inputs, (gx, gnorms), retain_graph=True)
    some = torch.zeros(8, dtype=torch.float64)
    some[learning] = 1
    actual = torch.autograd.grad((x, norms), s.inputs, (gx * some, gnorms * some))
    for f, w in zip(actual[-2:], every[-2:], strict=True):  # of b and x0
        assert torch.equal(f[:, learning], w[:, learning])
        assert (f[:, some == 0] == 0).all()
    if not learning:
        assert all((g == 0).all() for g in actual)
        return
    alone = with_start(s, s.b.detach()[:, learning], s.x0.detach()[:, learning]).leaves()
    expected = torch.autograd.grad(dense_pcg(alone, 20), alone.inputs, (gx[:, learning], gnorms[:, learning]))
    close(actual[:-2], expected[:-2], 1e-7)


# --- parts, threads, memory, interrupts ---


@pytest.mark.parametrize("shape", ["vector", "columns", "batch of all"])
@every_kind
def test_parts_do_not_change_a_bit(kind, shape, monkeypatch):
    """Checkpointed or not, in one call or several."""
    for start in (True, False):
        s = pcg_system(kind, shape, start=start)
        expected = pcg_gradients(s, fused, 40)  # some columns stop on the way
        assert equal(pcg_gradients(s, fused, 40, checkpointed=True), expected)
        with monkeypatch.context() as patch:
            patch.setattr(pcg, "_WORK", 10_000)
            assert len(pcg._calls(s.values, s.values, s.b, 40, False)) > 2
            assert equal(pcg_gradients(s, fused, 40), expected)
            for i, t in enumerate(s.inputs):  # the gradient of one input alone
                inputs = [u.detach().requires_grad_(u is t) for u in s.inputs]
                x, norms, _ = fused(s.with_inputs(*inputs), 40)
                loss = (x * normal(x.shape, seed=8)).sum() + (norms * normal(norms.shape, seed=9)).sum()
                assert torch.equal(torch.autograd.grad(loss, inputs[i])[0], expected[2 + i])
            patch.setattr(pcg, "_WORK", 1)
            assert equal(pcg_gradients(s, fused, 40, checkpointed=True), expected)


@pytest.mark.parametrize(("of_values", "of_m"), [((), (24,)), ((24,), ()), ((24,), (24,)), ((), ())])
@pytest.mark.parametrize("kind", KINDS[1:])
def test_threads_do_not_change_a_bit_of_a_batch(kind, of_values, of_m):
    """Gradients of what the members share are sums over them, in order."""
    s = pcg_system(kind, S=random(300, 300, 0.03) + 9 * torch.eye(300).numpy())
    m = s.m * (1 + torch.rand(*of_m, 1, dtype=torch.float64))
    s = s._replace(values=s.values.expand(*of_values, -1).clone(), m=m)
    s = with_start(s, normal((24, 300, 2), seed=3), normal((24, 300, 2), seed=4))
    # Enough for a second thread to wake; an emulated device has none, and takes seconds.
    iterations = 2 if on_cuda() else 20
    assert_same_bits(lambda: pcg_gradients(s, fused, iterations), (2, 3))


@every_kind
def test_memory(kind):
    s = pcg_system(kind, "vector", grid(5, 60), start=False)
    n, iterations = s.P.shape[0], 64
    leaves = s.leaves()
    torch.autograd.grad(fused(leaves, 2)[0].sum(), leaves.inputs)  # the analysis is not counted
    small = 4 * s.P.nnz + 12 * n
    for checkpointed, stored in ((False, 2 * iterations), (True, 3 * 8)):
        out = []
        held = peak(lambda: out.append(fused(leaves, iterations, checkpointed)))  # noqa: B023
        assert held <= (stored * n + small) * WORD
        assert checkpointed or held > stored * n * WORD
        g = peak(lambda: torch.autograd.grad(out[0][0].sum(), leaves.inputs))  # noqa: B023
        assert g <= ((2 * 8 * n if checkpointed else 0) + 2 * small) * WORD
    assert peak(lambda: fused(s, iterations)) <= small * WORD  # no gradient is required


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("of", ["cg", "sweeps", "heavy ball"])
def test_no_call_runs_for_long(of, checkpointed):
    """About 1 ns for each number of a call's work: a tenth of a second, on a slow machine a few. An interrupt
    is handled between calls. A device is through a small system's iterations soon, but the host launches
    them one by one."""

    def lengths(values, b, iterations):
        if of == "cg":
            return pcg._calls(values, torch.empty(0, device=b.device), b, iterations, checkpointed)
        parts = sweep_calls._calls(values, b, iterations, checkpointed, of == "heavy ball")
        assert len(parts) <= (round(math.sqrt(iterations)) if checkpointed else 1) + 1
        return [n for part in parts for n in part]

    for n, k, iterations in ((100, 1, 10**7), (10**6, 4, 1000), (10**6, 4, 10**4)):
        calls = lengths(torch.empty(5 * n, device="meta"), torch.empty(n, k, device="meta"), iterations)
        assert sum(calls) == iterations
        assert max(calls) * (17 if of == "cg" else 11) * n * k <= 1.1e8 or max(calls) == 1
    with torch._subclasses.FakeTensorMode():
        calls = lengths(torch.empty(15, device="cuda"), torch.empty(5, device="cuda"), 10**6 + 1)
    assert sum(calls) == 10**6 + 1
    assert max(calls) <= 10_000
    assert of != "cg" or checkpointed or calls[0] == 10_000
    assert of == "cg" or len(calls) <= 1001  # and no shorter than need be


module = importlib.import_module("learnsolve.solvers.stationary")
HEAVYBALL = next(r for r in ROWS if r.name == "heavyball")
P = small_square()
FORM_OF = {"vector": "(N, n)", "columns": "(1, n)", "one column": "(1, n)", "batch of b": "(N, n)"}
FORM_OF |= {"batch of both": "(B, N, n)"}
LEARNING = [[0], [5], [1, 2], [0, 3, 4, 7], [0, 1, 2, 3, 4, 6, 7]]


def inputs_for(shape: str, K: int, pattern=P) -> list:
    """values, b, x0, scale, momentum"""
    *rest, scale, momentum = HEAVYBALL.inputs(pattern, shape, FORM_OF[shape], K)
    return [*rest, scale.squeeze(0) if shape == "one column" else scale, momentum.squeeze(-1)]


def sweeps(pattern, K, checkpointed=False):
    return lambda v, b, x0, s, m: richardson_sweeps(v, s, b, x0, pattern, K, checkpointed, m)


def dense_sweeps(pattern, K, form):
    """x, and the norms before each sweep."""

    def f(v, b, x0, s, m):
        x, norms = HEAVYBALL.dense(pattern, v, b, x0, s, m.unsqueeze(-1), iterations=K, form=form)
        return x, norms.narrow(0 if b.dim() == 1 else -2, 0, K)

    return f


@pytest.mark.parametrize("shape", FORM_OF)
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
                assert equal(found, expected)
                calls = sweep_calls._calls(inputs[0], inputs[1], K, checkpointed, heavy)
                assert lengths[: sum(map(len, calls))] == back[::-1] == [n for part in calls for n in part]
                del lengths[:], back[:]
                # Calls add their gradients up, each its own: not the same bits.
                near(g, gradient, 0.0 if work == 10**9 else 1e-13)


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
def test_columns_of_sweeps_without_a_cotangent(learning, checkpointed, heavy):
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
        expected = torch.autograd.grad(dense_sweeps(pattern, 9, "(N, n)")(*alone), alone, cotangents)
        for i, (f, w, e) in enumerate(zip(found, expected, every, strict=False)):
            near(f[:, learning] if i in (1, 2) else f, w, 1e-11)
            if i in (1, 2):
                assert (f[:, some == 0] == 0).all()
                if a and c:
                    near(f[:, learning], e[:, learning], 1e-14)


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
    near([1e200 * t for t in small], large, 1e-13)


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
            near(found, expected)
            assert len(taken) == 1
            del taken[:]
    for learning, K in [((0, 3), 1), ((3, 1), 1), ((3, 2), 1), ((1,), 1), ((), 1), ((3,), 2)]:
        inputs = row.inputs(P, "vector", "(n,)", K)
        row.sparse(P, *(t.requires_grad_(i in learning) for i, t in enumerate(inputs)), iterations=K)
    with torch.no_grad():
        v, b, x0, w = row.inputs(P, "vector", "(n,)", 1)
        row.sparse(P, v, b, x0, w.requires_grad_(), iterations=1)
    assert not taken
