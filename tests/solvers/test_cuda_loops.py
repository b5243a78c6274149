"""Sweeps of Jacobi, Richardson, heavy ball and Chebyshev as CUDA operators: rows of all lengths, sums that go
in several parts, columns without a cotangent, both forms of a loop; on a device streams, graphs, determinism.

Runs on a CUDA device or, without its last part, with the operators compiled for the host (tests/conftest.py).
"""

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
    P = arrow(1500, row, column)
    assert (len(P.row_blocks) > 1) == row
    agree(P, 5, system(P, 5, tail))


@pytest.mark.parametrize("tail", [(1,), (4,), (7,)], ids=str)
def test_batches_on_long_rows(tail):
    P = arrow(1200, True, True)
    agree(P, 4, system(P, 4, tail, batch=(3,)))


@pytest.mark.parametrize("length", [1, 3, 12, 40])
def test_every_number_of_lanes(length):
    S = scipy.sparse.diags_array([np.ones(300)] * length, offsets=np.arange(length), shape=(300, 300))
    P = pattern_of(S.tocsr(), torch.int64).to(DEVICE)
    for tail in ((), (2,), (8,), (34,)):
        agree(P, 3, system(P, 3, tail))


def test_more_rows_than_a_round_of_chunks():
    """The last chunk is not full; several rows fall to each team."""
    P = ls.problems.poisson((135_011,)).pattern.to(DEVICE)
    agree(P, 2, system(P, 2, ()), rtol=1e-9)


def test_norms_that_go_in_several_parts():
    n, k, K = 3, 4096, 1030
    P = pattern_of(scipy.sparse.eye_array(n).tocsr()).to(DEVICE)
    v = torch.full((n,), 2.0, dtype=torch.float64, device=DEVICE)
    s = torch.full((n,), 0.25, dtype=torch.float64, device=DEVICE)
    b = normal((n, k)).to(DEVICE)
    _, norms = richardson_sweeps(v, s, b, torch.zeros_like(b), P, K)
    halves = 0.5 ** torch.arange(K, dtype=torch.float64, device=DEVICE)
    wanted = halves.unsqueeze(-1) * torch.linalg.vector_norm(b, dim=0)
    torch.testing.assert_close(norms[:40], wanted[:40], rtol=1e-3, atol=1e-14)
    assert norms.isfinite().all()
    assert float(norms[60:].max()) < 1e-12


def test_gradients_of_the_values_that_go_in_several_parts():
    P = ls.problems.poisson((512,)).pattern.to(dtype=torch.int32).to(DEVICE)
    K = 6
    agree(P, K, system(P, K, (1024,)), rtol=1e-9)


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
    small, skewed = ls.problems.poisson((12, 11)).to(DEVICE), arrow(1500, True, True)
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
