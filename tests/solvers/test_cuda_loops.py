"""Sweeps of Jacobi, Richardson, heavy ball and Chebyshev, and conjugate gradients, as CUDA operators: rows of
all lengths, sums that go in several parts, large batches, columns without a cotangent; on a device streams,
graphs, determinism, no waits. What is not particular to it: test_loop_operators.py, which .ci/run runs on it.

Runs on a CUDA device or, without its last part, with the emulated operators (tests/conftest.py).
"""

import functools

import cuda_promises
import numpy as np
import pytest
import scipy.sparse
import torch
from cuda_promises import DEVICE, needs_a_device
from reference import normal, pattern_of
from solvers.cases import close, equal
from solvers.stationary_cases import fused, lower, unfused
from solvers.stationary_cases import pcg_system as pcg_system

import learnsolve as ls
from benchmarks import traffic
from learnsolve.ops.pcg import KINDS
from learnsolve.ops.sweeps import _reference_sweeps, richardson_sweeps

# Solves that cannot converge, or are stopped before, are part of what is tested.
pytestmark = pytest.mark.filterwarnings("ignore::learnsolve.solvers.ConvergenceWarning")

cuda_promises.skip_without_operators()


def long_lines(n: int, row: bool, column: bool) -> scipy.sparse.csr_array:
    """A diagonal with a full row, a full column or both: A, its transpose or both in several pieces."""
    rows, columns = [np.arange(n)], [np.arange(n)]
    for wanted, one, other in ((row, rows, columns), (column, columns, rows)):
        if wanted:
            one.append(np.full(n, n // 3))
            other.append(np.arange(n))
    S = scipy.sparse.coo_array(
        (np.ones(sum(map(len, rows))), (np.concatenate(rows), np.concatenate(columns)))
    )
    return S.tocsr()


def arrow(n: int, row: bool, column: bool) -> ls.SparsityPattern:
    return pattern_of(long_lines(n, row, column), torch.int32).to(DEVICE)


def system(P, K, tail, batch=(), dtype=torch.float64):
    """values, scale, b, x0, momentum: sweeps that do not grow."""
    n = P.shape[0]
    longest = max(int(P.crow_indices.diff().max()), 1)
    made = (
        normal((*batch, P.nnz), dtype) / longest,
        0.2 + 0.1 * normal((*batch, K, n), dtype, seed=1),
        normal((*batch, n, *tail), dtype, seed=2),
        normal((*batch, n, *tail), dtype, seed=3),
        0.3 + 0.1 * normal((*batch, K), dtype, seed=4),
    )
    return [t.to(DEVICE).requires_grad_() for t in made]


def fused_sweeps(P, K, inputs, checkpointed=False):
    v, s, b, x0, m = inputs
    return richardson_sweeps(v, s, b, x0, P, K, checkpointed, m)


def composed(P, K, inputs):
    v, s, b, x0, m = inputs
    return _reference_sweeps(v, s, m, b, x0, P, K)


def with_gradients(out, inputs):
    g = [normal(t.shape, t.dtype, seed=9 + i).to(DEVICE) for i, t in enumerate(out)]
    return [*(t.detach() for t in out), *torch.autograd.grad(out, inputs, g)]


def agree(P, K, inputs, rtol=1e-11):
    wanted = with_gradients(composed(P, K, inputs), inputs)
    for checkpointed in (False, True):
        found = with_gradients(fused_sweeps(P, K, inputs, checkpointed), inputs)
        torch.testing.assert_close(found, wanted, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("tail", [(), (3,), (24,)], ids=str)
@pytest.mark.parametrize(("row", "column"), [(True, False), (False, True), (True, True)])
def test_one_long_row_or_column(row, column, tail):
    P = arrow(1100, row, column)
    assert (P.crow_indices.diff().max() > 1024) == row
    agree(P, 5, system(P, 5, tail))


@pytest.mark.parametrize("tail", [(1,), (4,), (7,)], ids=str)
def test_batches_on_long_rows(tail):
    P = arrow(1100, True, True)
    agree(P, 4, system(P, 4, tail, batch=(3,)))


@pytest.mark.parametrize("length", [1, 3, 12, 24, 40])
def test_every_number_of_lanes(length):
    S = scipy.sparse.diags_array([np.ones(140)] * length, offsets=np.arange(length), shape=(140, 140))
    P = pattern_of(S.tocsr(), torch.int64).to(DEVICE)
    for tail in ((), (2,), (8,), (34,)):
        agree(P, 3, system(P, 3, tail))


def test_chunks_of_more_rows_than_the_fewest():
    """More than 1,024 times 128 rows, the last chunk not full."""
    n = 131_500
    P = pattern_of(scipy.sparse.eye_array(n).tocsr(), torch.int32).to(DEVICE)
    v, s, b, x0, _ = inputs = system(P, 1, ())
    found = with_gradients(richardson_sweeps(v, s, b, x0, P, 1), inputs[:4])
    r = b - v * x0
    wanted = with_gradients((x0 + s[0] * r, torch.linalg.vector_norm(r).unsqueeze(0)), inputs[:4])
    torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)


def test_norms_that_go_in_several_parts():
    """Those of 32 sweeps are added up at once."""
    n, k, K = 3, 5, 70
    P = pattern_of(scipy.sparse.eye_array(n).tocsr()).to(DEVICE)
    v = torch.full((n,), 2.0, dtype=torch.float64, device=DEVICE)
    s = torch.full((n,), 0.25, dtype=torch.float64, device=DEVICE)
    b = normal((n, k)).to(DEVICE)
    _, norms = richardson_sweeps(v, s, b, torch.zeros_like(b), P, K)
    halves = 0.5 ** torch.arange(K, dtype=torch.float64, device=DEVICE)
    wanted = halves.unsqueeze(-1) * torch.linalg.vector_norm(b, dim=0)
    torch.testing.assert_close(norms, wanted, rtol=1e-3, atol=1e-14)


def test_gradients_of_the_values_that_go_in_several_parts():
    """Those of 8 sweeps at once, and of 10 sweeps before iterates are repeated."""
    P = ls.problems.poisson((12,)).pattern.to(dtype=torch.int32).to(DEVICE)
    agree(P, 100, system(P, 100, (3,)), rtol=1e-9)


def test_only_norms_of_some_sweeps_have_a_cotangent():
    """Then the other sweeps do without the product with A."""
    P, K = ls.problems.poisson((13, 11)).pattern.to(DEVICE), 4
    inputs = system(P, K, (3,), batch=(3,))
    inputs[1] = inputs[1].detach()
    learn = [t for t in inputs if t.requires_grad]

    def gradients(sweeps):
        _, norms = sweeps(P, K, inputs)
        return torch.autograd.grad(norms[0, 1, 2] + norms[2, 3].sum(), learn)

    torch.testing.assert_close(gradients(fused_sweeps), gradients(composed), rtol=1e-11, atol=1e-11)


def test_a_scale_that_a_batch_shares_is_added_up_in_groups():
    """Not by one team that has all 1,024 members: 32 groups have other bits than one sum."""
    n, B = 64, 1024
    P = pattern_of(scipy.sparse.eye_array(n).tocsr()).to(DEVICE)
    v, s = (torch.ones(n, dtype=torch.float64, device=DEVICE).requires_grad_() for _ in range(2))
    b = normal((B, n, 1)).to(DEVICE)
    x, _ = richardson_sweeps(v, s, b, torch.zeros_like(b), P, 1)
    (found,) = torch.autograd.grad(x.sum(), s)
    members = b.squeeze(-1)
    groups = [functools.reduce(torch.add, group) for group in members.split(B // 32)]
    assert torch.equal(found, functools.reduce(torch.add, groups))
    assert not torch.equal(found, functools.reduce(torch.add, members))


def test_a_large_batch_that_shares_what_it_can():
    """1,024 members, against dense algebra, and the same bits twice."""
    P, K, B = ls.problems.poisson((8, 8)).pattern.to(DEVICE), 2, 1024
    v, s, _, _, m = system(P, K, ())
    b, x0 = (normal((B, 64, 1), seed=i).to(DEVICE).requires_grad_() for i in (2, 3))
    inputs = [v, s, b, x0, m]
    A = torch.zeros(P.shape, dtype=v.dtype, device=DEVICE)
    A = A.index_put((P.row_indices.long(), P.col_indices.long()), v)
    x, old, norms = x0, x0, []
    for k in range(K):
        r = b - A @ x
        norms.append(torch.linalg.vector_norm(r, dim=1))
        x, old = x + s[k].unsqueeze(-1) * r + m[k] * (x - old), x
    wanted = with_gradients((x, torch.stack(norms, 1)), inputs)
    found, again = (with_gradients(fused_sweeps(P, K, inputs), inputs) for _ in range(2))
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    cuda_promises.assert_same(found, again)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_column_without_a_cotangent_adds_nothing(checkpointed):
    """Nor does it if it holds NaN."""
    P, K = ls.problems.poisson((9, 8)).pattern.to(DEVICE), 5
    inputs = system(P, K, (3,))
    clean = [t.detach().clone().requires_grad_() for t in inputs]
    with torch.no_grad():
        inputs[3][4, 1] = torch.nan

    def gradients(inputs):
        x, norms = fused_sweeps(P, K, inputs, checkpointed)
        return torch.autograd.grad(x[:, ::2].sum() + norms[:, ::2].sum(), inputs)

    for found, wanted in zip(gradients(inputs), gradients(clean), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-13)


# --- conjugate gradients ---

every_kind = pytest.mark.parametrize("kind", KINDS)


def on_device(s):
    """A system of `pcg_system`, its tensors leaves."""
    moved = [t.detach().to(DEVICE).requires_grad_() for t in s.inputs]
    factor = None if s.factor is None else s.factor.to(DEVICE)
    return s.with_inputs(*moved)._replace(P=s.P.to(DEVICE), factor=factor)


def run_pcg(s, iterations, function=fused, **options):
    return with_gradients(function(s, iterations, **options)[:2], s.inputs)


def pcg_agree(s, iterations, tolerance):
    expected = run_pcg(s, iterations, unfused)
    for checkpointed in (False, True):
        close(run_pcg(s, iterations, checkpointed=checkpointed), expected, tolerance)


@every_kind
@pytest.mark.parametrize("shape", ["vector", "columns", "many columns", "batch of all"])
def test_sums_over_several_chunks(kind, shape):
    """300 rows are three chunks."""
    s = on_device(pcg_system(kind, shape, ls.problems.poisson((15, 20)).to_scipy()))
    pcg_agree(s, 5, 1e-10)


@every_kind
@pytest.mark.parametrize("shape", ["vector", "columns"])
def test_long_rows(kind, shape):
    S = long_lines(1100, True, True)
    s = pcg_system("none", shape, S)
    diagonal = s.P.row_indices == s.P.col_indices
    values = torch.where(diagonal, 5.0, 0.01 * normal((s.P.nnz,), seed=1))
    factor = m = None
    if kind == "diagonal":
        m = 0.2 + 0.1 * normal((1100,), seed=2).abs()
    elif kind != "none":
        factor = lower(s.P)
        on = factor.row_indices == factor.col_indices
        m = torch.where(on, 2.0, 0.01 * normal((factor.nnz,), seed=2)).double()
    s = on_device(s._replace(values=values.double(), m=m, factor=factor, kind=kind))
    assert s.P.crow_indices.diff().max() > 1024
    pcg_agree(s, 4, 1e-10)


@pytest.mark.parametrize("kind", ["none", "product"])
def test_values_that_a_batch_of_many_members_shares(kind):
    """Their gradients are added up in groups of two members, the last of one, and again for each part."""
    s = pcg_system(kind, "vector", ls.problems.poisson((5, 4)).to_scipy())
    b, x0 = normal((37, 20, 2), seed=5), normal((37, 20, 2), seed=6)
    pcg_agree(on_device(s._replace(b=b, x0=x0)), 7, 1e-10)


@pytest.mark.parametrize("shape", ["vector", "batch of values", "batch of all"])
@pytest.mark.parametrize("rows", [40, 600])
def test_a_factor_with_few_columns(shape, rows):
    """M = L L^T with L of 7 columns: vectors of odd length, one behind another, beside those of A. 40 rows of
    all of them are products and sums apart, 600 several chunks."""
    S = ls.problems.poisson((rows // 8, 8)).to_scipy()
    s = pcg_system("none", shape, S)
    L = scipy.sparse.random_array((rows, 7), density=1.0 if rows == 40 else 0.3, rng=np.random.default_rng(0))
    factor = pattern_of(L.tocsr(), torch.int32)
    lead = (2,) if shape == "batch of all" else ()
    m = 0.3 * normal((*lead, factor.nnz), seed=2)
    pcg_agree(on_device(s._replace(m=m, factor=factor, kind="product")), 4, 1e-10)


@pytest.mark.parametrize("kind", ["diagonal", "product"])
def test_a_batch_of_several_groups(kind):
    """The gradients of a matrix and a preconditioner that all members share."""
    s = pcg_system(kind, "batch of b", ls.problems.poisson((5, 6)).to_scipy())
    b, x0 = (normal((40, 30, 2), seed=i) for i in (3, 4))
    pcg_agree(on_device(s._replace(b=b, x0=x0)), 2, 1e-10)


@pytest.mark.parametrize("store", [False, True])
def test_a_member_that_has_stopped_keeps_its_iterates(store):
    """The second one has the matrix 2 I, so that its residual is exactly zero after an iteration."""
    s = on_device(
        pcg_system("diagonal", "batch of all", ls.problems.poisson((13, 11)).to_scipy(), start=False)
    )
    on = s.P.row_indices == s.P.col_indices
    values, m, b = s.values.detach().clone(), s.m.detach().clone(), s.b.detach()
    values[1], m[1] = 2.0 * on, 0.5
    csr_pcg = torch.ops.learnsolve.csr_pcg
    for iterations in (1, 2, 5):
        x, r, p, *_, norms, _, residuals, _ = csr_pcg(
            s.P._structure(False), values, 1, [m], None, b, [], None, 0, iterations, store
        )
        assert torch.equal(x[1], 0.5 * b[1])
        assert not any(t.any() for t in (r[1], p[1], norms[1, 1:]))
        assert r[0].all()
        if store:
            assert torch.equal(residuals[1, 0], b[1])
            assert not residuals[1, 1:].any()


@every_kind
@pytest.mark.parametrize("k", [1, 2, 4, 5, 40])
def test_any_alignment(kind, k):
    """Blocks of vectors that begin anywhere give the same bits."""
    s = on_device(pcg_system(kind, "columns"))
    n = s.P.shape[0]

    def shifted(t):
        buffer = torch.full((t.numel() + 1,), torch.nan, dtype=t.dtype, device=DEVICE)
        buffer[1:] = t.detach().flatten()
        return buffer[1:].view(t.shape).requires_grad_()

    b, x0 = (normal((n, k) if k > 1 else (n,), seed=i).to(DEVICE).requires_grad_() for i in (3, 4))
    s = s._replace(b=b, x0=x0)
    assert equal(run_pcg(s.with_inputs(*map(shifted, s.inputs)), 6), run_pcg(s, 6))


@pytest.mark.skipif(not cuda_promises.ON_HOST, reason="counts the launches of the emulator")
@pytest.mark.parametrize("kind", ["none", "diagonal"])
def test_launches_of_an_iteration(kind):
    """Product, residual and update, the scalars in the last blocks of two of them; their adjoints, and for
    every eighth iteration the gradient of the values."""
    s = on_device(pcg_system(kind, "vector", ls.problems.poisson((15, 20)).to_scipy()))

    def launches(iterations):
        done = []
        forward = traffic.launches(lambda: done.extend(fused(s, iterations)))
        loss = done[0].sum() + done[1].sum()
        backward = traffic.launches(lambda: torch.autograd.grad(loss, s.inputs))
        return np.array((len(forward), len(backward)))

    assert (launches(24) - launches(8)).tolist() == [16 * 3, 16 * 3 + 2]


def solves():
    """Every solver once, with its gradients: functions without arguments, all on prepared tensors."""
    S, P = ls.solvers, ls.preconditioners
    leaf = lambda *shape: normal(shape, seed=5).to(DEVICE).requires_grad_()  # noqa: E731
    small, large = (ls.problems.poisson(shape).to(DEVICE) for shape in ((12, 11), (30, 31)))
    A, B = (matrix.with_values(matrix.values.clone().requires_grad_()) for matrix in (small, large))
    v, u, b, c, d, e = A.values, B.values, leaf(132), leaf(132, 4), leaf(930), leaf(930, 4)
    w = torch.full((132,), 0.7, dtype=b.dtype, device=DEVICE, requires_grad=True)
    alpha, beta = (torch.tensor(t, dtype=b.dtype, device=DEVICE, requires_grad=True) for t in (0.2, 0.4))
    bounds = lambda: {"lmin": alpha, "lmax": 8.0 + beta}  # noqa: E731
    skewed, jacobi, ic = arrow(1100, True, True), P.Jacobi(large), P.IC(large)
    long_rows = system(skewed, 6, (4,))
    nine, fixed = {"iterations": 9}, {"iterations": 9, "gradient": "unrolled"}
    again = {"gradient": "checkpointed"}
    calls = {
        "jacobi": (lambda: S.jacobi(A, b, weight=w, **nine), (v, b, w)),
        "jacobi checkpointed": (lambda: S.jacobi(A, c, weight=w, **nine, **again), (v, c, w)),
        "richardson": (lambda: S.richardson(A, b, weight=alpha, **nine), (v, b, alpha)),
        "heavyball": (lambda: S.heavyball(A, c, alpha=alpha, beta=beta, **nine), (v, c, alpha, beta)),
        "chebyshev": (lambda: S.chebyshev(A, b, lmin=0.1, lmax=8.0, **nine), (v, b)),
        "chebyshev learned": (lambda: S.chebyshev(A, b, **bounds(), **nine), (v, b, alpha, beta)),
        "long rows": (lambda: fused_sweeps(skewed, 6, long_rows), long_rows),
        "long rows checkpointed": (lambda: fused_sweeps(skewed, 6, long_rows, True), long_rows),
        "cg": (lambda: S.cg(B, d, **fixed), (u, d)),
        "cg, columns": (lambda: S.cg(B, e, **fixed), (u, e)),
        "cg checkpointed": (lambda: S.cg(B, d, **fixed | again), (u, d)),
        "cg, jacobi": (lambda: S.cg(B, e, M=jacobi, **fixed), (u, e)),
        "cg, ic": (lambda: S.cg(B, d, M=ic, **fixed), (u, d)),
    }
    for kind in ("none", "product"):
        s = on_device(pcg_system(kind, "columns", long_lines(1100, True, True)))
        calls[f"cg, long rows, {kind}"] = (lambda s=s: fused(s, 5)[:2], s.inputs)

    def recorded(call, inputs):
        def run():
            solution = call()
            x, norms = solution if isinstance(solution, tuple) else (solution.x, solution.residual_norms)
            return [x.detach(), norms.detach(), *torch.autograd.grad(x.sum() + norms.sum(), inputs)]

        return run

    return {name: recorded(*call) for name, call in calls.items()}


SWEEPS = ("jacobi", "jacobi checkpointed", "richardson", "heavyball", "chebyshev", "chebyshev learned")
OF_CG = ("cg", "cg, columns", "cg checkpointed", "cg, jacobi", "cg, ic", "cg, long rows, none")


@pytest.mark.parametrize(
    "name", [*SWEEPS, "long rows", "long rows checkpointed", *OF_CG, "cg, long rows, product"]
)
class TestPromises(cuda_promises.Promises):
    runs = staticmethod(solves)


@needs_a_device
@every_kind
def test_as_on_the_host(kind):
    """The numbers of the CPU's operators, a larger system by launches too."""
    for points in ((24, 25), (700, 701)):
        S = ls.problems.poisson(points).to_scipy()
        if kind == "triangular" and points[0] > 24:
            continue
        s = pcg_system(kind, "vector", S)
        there = on_device(s)
        (x, norms, status), actual = fused(s, 12), fused(there, 12)
        torch.testing.assert_close(actual[0].cpu(), x, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(actual[1].cpu(), norms, rtol=1e-9, atol=0)
        assert torch.equal(actual[2].cpu(), status)


@needs_a_device
def test_to_a_tolerance():
    """The loop of `cg` to a tolerance, forward and adjoint, on the device."""
    A = ls.problems.poisson((60, 61)).to(DEVICE)
    b = normal((3660, 2), seed=3).to(DEVICE).requires_grad_()
    solution = ls.solvers.cg(A, b, rtol=1e-9)
    assert solution.converged
    (g,) = torch.autograd.grad(solution.x.sum(), b)
    torch.testing.assert_close(A @ g, torch.ones_like(g), rtol=1e-6, atol=1e-6)
