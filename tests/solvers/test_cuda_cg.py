"""Conjugate gradients as a CUDA operator: columns and batches of all widths, sums over several chunks, long
rows; on a device streams, graphs, and the absence of waits. What is
not particular to it, such as columns that stop: test_pcg_operator.py, which .ci/run runs on it.

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
from solvers.dense_pcg import fused, lower, unfused
from solvers.dense_pcg import system as host_system
from solvers.references import close, equal

import learnsolve as ls
from benchmarks import traffic
from learnsolve.ops.pcg import KINDS

cuda_promises.skip_without_operators()
every_kind = pytest.mark.parametrize("kind", KINDS)


def on_device(s):
    """A system of tests/solvers/dense_pcg.py, its tensors leaves."""
    moved = [t.detach().to(DEVICE).requires_grad_() for t in s.inputs]
    factor = None if s.factor is None else s.factor.to(DEVICE)
    return s.with_inputs(*moved)._replace(P=s.P.to(DEVICE), factor=factor)


@functools.cache  # a call that must not wait for the device finds them there
def cotangent(shape, dtype, seed):
    return normal(shape, dtype, seed).to(DEVICE)


def with_gradients(s, iterations, function=fused, checkpointed=False):
    """x, norms and the gradients of all inputs."""
    options = {"checkpointed": checkpointed} if function is fused else {}
    x, norms, _ = function(s, iterations, **options)
    g = [cotangent(t.shape, t.dtype, 8 + i) for i, t in enumerate((x, norms))]
    return [x.detach(), norms.detach(), *torch.autograd.grad((x, norms), s.inputs, g)]


def agree(s, iterations, tolerance):
    expected = with_gradients(s, iterations, unfused)
    for checkpointed in (False, True):
        close(with_gradients(s, iterations, fused, checkpointed), expected, tolerance)


def arrow(n):
    """A diagonal with a full row and a full column: in A and A^T it has two pieces."""
    S = scipy.sparse.lil_array((n, n))
    S.setdiag(1)
    S[n // 3, :] = 1
    S[:, n // 3] = 1
    return S.tocsr()


@every_kind
@pytest.mark.parametrize("shape", ["vector", "columns", "many columns", "batch of all"])
def test_sums_over_several_chunks(kind, shape):
    """300 rows are three chunks."""
    s = on_device(host_system(kind, shape, ls.problems.poisson((15, 20)).to_scipy()))
    agree(s, 5, 1e-10)


@every_kind
@pytest.mark.parametrize("shape", ["vector", "columns"])
def test_long_rows(kind, shape):
    S = arrow(1100)
    s = host_system("none", shape, S)
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
    agree(s, 4, 1e-10)


@pytest.mark.parametrize("kind", ["none", "product"])
def test_values_that_a_batch_of_many_members_shares(kind):
    """Their gradients are added up in groups of two members, the last of one, and again for each part."""
    s = host_system(kind, "vector", ls.problems.poisson((5, 4)).to_scipy())
    b, x0 = normal((37, 20, 2), seed=5), normal((37, 20, 2), seed=6)
    agree(on_device(s._replace(b=b, x0=x0)), 7, 1e-10)


@pytest.mark.parametrize("shape", ["vector", "batch of values", "batch of all"])
@pytest.mark.parametrize("rows", [40, 600])
def test_a_factor_with_few_columns(shape, rows):
    """M = L L^T with L of 7 columns: vectors of odd length, one behind another, beside those of A. 40 rows of
    all of them are products and sums apart, 600 several chunks."""
    S = ls.problems.poisson((rows // 8, 8)).to_scipy()
    s = host_system("none", shape, S)
    L = scipy.sparse.random_array((rows, 7), density=1.0 if rows == 40 else 0.3, rng=np.random.default_rng(0))
    factor = pattern_of(L.tocsr(), torch.int32)
    lead = (2,) if shape == "batch of all" else ()
    m = 0.3 * normal((*lead, factor.nnz), seed=2)
    agree(on_device(s._replace(m=m, factor=factor, kind="product")), 4, 1e-10)


@pytest.mark.parametrize("kind", ["diagonal", "product"])
def test_a_batch_of_several_groups(kind):
    """The gradients of a matrix and a preconditioner that all members share."""
    s = host_system(kind, "batch of b", ls.problems.poisson((5, 6)).to_scipy())
    b, x0 = (normal((40, 30, 2), seed=i) for i in (3, 4))
    agree(on_device(s._replace(b=b, x0=x0)), 2, 1e-10)


@pytest.mark.parametrize("store", [False, True])
def test_a_member_that_has_stopped_keeps_its_iterates(store):
    """The second one has the matrix 2 I, so that its residual is exactly zero after an iteration."""
    s = on_device(
        host_system("diagonal", "batch of all", ls.problems.poisson((13, 11)).to_scipy(), start=False)
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
    s = on_device(host_system(kind, "columns"))
    n = s.P.shape[0]

    def shifted(t):
        buffer = torch.full((t.numel() + 1,), torch.nan, dtype=t.dtype, device=DEVICE)
        buffer[1:] = t.detach().flatten()
        return buffer[1:].view(t.shape).requires_grad_()

    b, x0 = (normal((n, k) if k > 1 else (n,), seed=i).to(DEVICE).requires_grad_() for i in (3, 4))
    s = s._replace(b=b, x0=x0)
    assert equal(with_gradients(s.with_inputs(*map(shifted, s.inputs)), 6), with_gradients(s, 6))


@pytest.mark.skipif(not cuda_promises.ON_HOST, reason="counts the launches of the emulator")
@pytest.mark.parametrize("kind", ["none", "diagonal"])
def test_launches_of_an_iteration(kind):
    """Product, residual and update, the scalars in the last blocks of two of them; their adjoints, and for
    every eighth iteration the gradient of the values."""
    s = on_device(host_system(kind, "vector", ls.problems.poisson((15, 20)).to_scipy()))

    def launches(iterations):
        done = []
        forward = traffic.launches(lambda: done.extend(fused(s, iterations)))
        loss = done[0].sum() + done[1].sum()
        backward = traffic.launches(lambda: torch.autograd.grad(loss, s.inputs))
        return np.array((len(forward), len(backward)))

    assert (launches(24) - launches(8)).tolist() == [16 * 3, 16 * 3 + 2]


def solves():
    """Solves of a fixed number of iterations with their gradients: functions without arguments."""
    A = ls.problems.poisson((30, 31)).to(DEVICE)
    v = A.values.clone().requires_grad_()
    b, c = (normal((930, *tail), seed=5).to(DEVICE).requires_grad_() for tail in ((), (4,)))
    P = ls.preconditioners
    jacobi, ic = P.Jacobi(A), P.IC0(A)
    systems = {kind: on_device(host_system(kind, "columns", arrow(1100))) for kind in ("none", "product")}

    def both(call, inputs):
        def run():
            solution = call()
            x, norms = solution.x, solution.residual_norms
            return [x.detach(), norms.detach(), *torch.autograd.grad(x.sum() + norms.sum(), inputs)]

        return run

    def fixed(b, M=None, gradient="unrolled"):
        cg = ls.solvers.cg
        return lambda: cg(ls.CSR(v, A.pattern), b, rtol=0.0, maxiter=9, M=M, gradient=gradient)

    made = {
        "vector": both(fixed(b), (v, b)),
        "columns": both(fixed(c), (v, c)),
        "checkpointed": both(fixed(b, gradient="checkpointed"), (v, b)),
        "jacobi": both(fixed(c, jacobi), (v, c)),
        "ic0": both(fixed(b, ic), (v, b)),
    }
    for kind, s in systems.items():
        made[f"long rows, {kind}"] = lambda s=s: with_gradients(s, 5)
    return made


SOLVES = ("vector", "columns", "checkpointed", "jacobi", "ic0", "long rows, none", "long rows, product")


@pytest.mark.parametrize("name", SOLVES)
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
        s = host_system(kind, "vector", S)
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
