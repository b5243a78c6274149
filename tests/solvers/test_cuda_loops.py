"""Sweeps of Jacobi, Richardson, heavy ball and Chebyshev as CUDA operators: rows of all lengths, sums that go
in several parts, large batches, columns without a cotangent; on a device streams, graphs, determinism.

Runs on a CUDA device or, without its last part, with the emulated operators (tests/conftest.py).
"""

import functools

import cuda_promises
import numpy as np
import pytest
import scipy.sparse
import torch
from cuda_promises import DEVICE
from reference import normal, pattern_of

import learnsolve as ls
from learnsolve.ops.richardson import _unfused, richardson_sweeps

# Solves that cannot converge, or are stopped before, are part of what is tested.
pytestmark = pytest.mark.filterwarnings("ignore::learnsolve.solvers.ConvergenceWarning")

cuda_promises.skip_without_operators()


def arrow(n: int, row: bool, column: bool) -> ls.SparsityPattern:
    """A diagonal with a full row, a full column or both: A, its transpose or both in several pieces."""
    rows, columns = [np.arange(n)], [np.arange(n)]
    for wanted, one, other in ((row, rows, columns), (column, columns, rows)):
        if wanted:
            one.append(np.full(n, n // 3))
            other.append(np.arange(n))
    S = scipy.sparse.coo_array(
        (np.ones(sum(map(len, rows))), (np.concatenate(rows), np.concatenate(columns)))
    )
    return pattern_of(S.tocsr(), torch.int32).to(DEVICE)


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


def fused(P, K, inputs, checkpointed=False):
    v, s, b, x0, m = inputs
    return richardson_sweeps(v, s, b, x0, P, K, checkpointed, m)


def composed(P, K, inputs):
    v, s, b, x0, m = inputs
    return _unfused(v, s, m, b, x0, P, K)


def with_gradients(out, inputs):
    g = [normal(t.shape, t.dtype, seed=9 + i).to(DEVICE) for i, t in enumerate(out)]
    return [*(t.detach() for t in out), *torch.autograd.grad(out, inputs, g)]


def agree(P, K, inputs, rtol=1e-11):
    wanted = with_gradients(composed(P, K, inputs), inputs)
    for checkpointed in (False, True):
        found = with_gradients(fused(P, K, inputs, checkpointed), inputs)
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

    torch.testing.assert_close(gradients(fused), gradients(composed), rtol=1e-11, atol=1e-11)


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
    found, again = (with_gradients(fused(P, K, inputs), inputs) for _ in range(2))
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
        x, norms = fused(P, K, inputs, checkpointed)
        return torch.autograd.grad(x[:, ::2].sum() + norms[:, ::2].sum(), inputs)

    for found, wanted in zip(gradients(inputs), gradients(clean), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-13)


def solves():
    """Every solver once, with its gradients: functions without arguments, all on prepared tensors."""
    small, skewed = ls.problems.poisson((12, 11)).to(DEVICE), arrow(1100, True, True)
    v = small.values.clone().requires_grad_()
    b, c = (normal((132, *tail), seed=5).to(DEVICE).requires_grad_() for tail in ((), (4,)))
    w = torch.full((132,), 0.7, dtype=b.dtype, device=DEVICE, requires_grad=True)
    alpha, beta = (torch.tensor(t, dtype=b.dtype, device=DEVICE, requires_grad=True) for t in (0.2, 0.4))
    A = ls.CSR(v, small.pattern)
    long_rows = system(skewed, 6, (4,))
    S = ls.solvers

    def both(call, inputs):
        def run():
            solution = call()
            x, norms = solution if isinstance(solution, tuple) else (solution.x, solution.residual_norms)
            return [x.detach(), norms.detach(), *torch.autograd.grad(x.sum() + norms.sum(), inputs)]

        return run

    return {
        "jacobi": both(lambda: S.jacobi(A, b, weight=w, iterations=9), (v, b, w)),
        "jacobi checkpointed": both(
            lambda: S.jacobi(A, c, weight=w, iterations=9, gradient="checkpointed"), (v, c, w)
        ),
        "richardson": both(lambda: S.richardson(A, b, weight=alpha, iterations=9), (v, b, alpha)),
        "heavyball": both(
            lambda: S.heavyball(A, c, alpha=alpha, beta=beta, iterations=9), (v, c, alpha, beta)
        ),
        "chebyshev": both(lambda: S.chebyshev(A, b, lmin=0.1, lmax=8.0, iterations=9), (v, b)),
        "chebyshev learned": both(
            lambda: S.chebyshev(A, b, lmin=alpha, lmax=8.0 + beta, iterations=9), (v, b, alpha, beta)
        ),
        "long rows": both(lambda: fused(skewed, 6, long_rows), long_rows),
        "long rows checkpointed": both(lambda: fused(skewed, 6, long_rows, True), long_rows),
    }


METHODS = ("jacobi", "jacobi checkpointed", "richardson", "heavyball", "chebyshev", "chebyshev learned")


@pytest.mark.parametrize("name", [*METHODS, "long rows", "long rows checkpointed"])
class TestPromises(cuda_promises.Promises):
    runs = staticmethod(solves)
