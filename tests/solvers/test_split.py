"""A factor into which A splits, so that cg finds the product with A in its sweeps: csrc/ops/solves.h."""

from functools import partial

import pytest
import scipy.sparse
import torch
from reference import assert_same_bits, normal
from solvers.cases import S, poisson
from solvers.stationary_cases import PCGSystem, fused, unfused

import learnsolve as ls
from learnsolve.ops.pcg import Iterations

P = ls.preconditioners


def grid(*shape: int) -> ls.CSR:
    return ls.problems.poisson(shape or (7, 8, 6))


def filled(n: int) -> ls.CSR:
    X = normal((n, n))
    return ls.CSR.from_dense(X + X.mT + 2 * n * torch.eye(n, dtype=torch.float64))


def irregular() -> ls.CSR:
    """Rows of any number of entries, some of them zero."""
    found = scipy.sparse.random(60, 60, 0.08, random_state=1)
    A = ls.CSR.from_scipy(scipy.sparse.csr_array(found @ found.T + 2 * scipy.sparse.eye_array(60)))
    rows, cols = A.pattern.row_indices, A.col_indices
    return A.with_values(torch.where((rows != cols) & ((rows + cols) % 5 == 0), 0.0, A.values))


SPLIT = {
    "band": lambda: ls.CSR.from_scipy(
        scipy.sparse.diags_array(
            [2.0, -3.0, -1.0, 9.0, -1.0, -3.0, 2.0], offsets=range(-3, 4), shape=(60, 60)
        )
    ),
    "grid": lambda: ls.problems.anisotropic((9, 8), 0.1, 0.6),
    "3D": grid,
    "irregular": irregular,
    "long rows": lambda: filled(40),
}
FACTORS = {f"SSOR {w}": partial(P.SSOR, omega=w) for w in (0.1, 0.7, 1.0, 1.9)} | {"IC": P.IC}


def system(A, M, b, x0):
    kind, m, factor = M.pcg_form()
    return PCGSystem(A.values, m, b, x0, A.pattern, factor, kind)


def by_operations(A, M, b, x0, iterations):
    return unfused(system(A, M, b, x0), iterations)


def by_kernel(A, M, b, x0, iterations):
    return fused(system(A, M, b, x0), iterations)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("M", FACTORS)
@pytest.mark.parametrize("kind", SPLIT)
def test_a_product_in_the_sweeps_of_the_factor(kind, M, dtype):
    A = SPLIT[kind]().to(dtype)
    M, n, level = FACTORS[M](A), A.shape[0], 1e-11 if dtype is torch.float64 else 1e-3
    for shape in ((n,), (n, 3), (n, 8), (n, 17)):
        b = normal(shape, dtype)
        for x0 in (None, normal(shape, dtype, seed=3)):
            ours, theirs = (f(A, M, b, x0, 6) for f in (by_kernel, by_operations))
            for found, wanted in zip(ours[:2], theirs[:2], strict=True):
                torch.testing.assert_close(found, wanted, rtol=0, atol=level * float(wanted.norm()))


@pytest.mark.parametrize("M", ["SSOR 1.9", "IC"])
def test_the_residual_falls_as_far_as_with_a_product(M):
    """Beyond what the dtype can reach, in one call and in several."""
    A = grid(10, 10, 9)
    M, b = FACTORS[M](A), normal((900,))
    norms = by_kernel(A, M, b, None, 150)[1]
    wanted = by_operations(A, M, b, None, 150)[1]
    assert norms[-1] <= 4e-16 * norms[0]
    assert abs(int((norms > 1e-12 * norms[0]).sum()) - int((wanted > 1e-12 * norms[0]).sum())) <= 1
    kind, m, factor = M.pcg_form()
    run = Iterations(A.values, b[:, None], None, A.pattern, 9, kind=kind, m=m, factor=factor)
    state = None
    for done in range(0, 99, 9):
        state, parts = run(state, 9, done, None, torch.zeros(1, 1, dtype=A.dtype))
        torch.testing.assert_close(parts[-1, 0], wanted[done + 9], rtol=1e-3, atol=float(1e-12 * wanted[0]))


@pytest.mark.parametrize("M", ["SSOR 1.9", "IC"])
def test_a_matrix_that_is_another_has_a_product(M):
    A, b = grid(), normal((336, 2))
    M = FACTORS[M](A)
    rows, cols = A.pattern.row_indices, A.col_indices
    others = [
        A.with_values(torch.where((rows == 30) & (cols == 31), 1 + 1e-9, 1.0) * A.values),
        A.with_values(torch.where((rows == 31) & (cols == 30), 1 + 1e-9, 1.0) * A.values),
        A.with_values(torch.where(rows == cols, 1.5, 1.0) * A.values),
        2 * A,
        grid(8, 7, 6),
        A @ A,
    ]
    for other in others:
        found, wanted = (f(other, M, b, None, 5) for f in (by_kernel, by_operations))
        torch.testing.assert_close(found[0], wanted[0], rtol=0, atol=1e-12 * float(wanted[0].norm()))
        torch.testing.assert_close(found[1], wanted[1], rtol=0, atol=1e-12 * float(wanted[1].norm()))


def test_which_matrices_split():
    """Few iterations are not worth it, nor are few entries, so that their bits are those of a product."""

    def splits(A, M):
        b, state = normal((A.shape[0], 1)), None
        kind, m, factor = M.pcg_form()
        run = Iterations(A.values, b, None, A.pattern, 3, kind=kind, m=m, factor=factor)
        for done in range(0, 9, 3):
            state, _ = run(state, 3, done, None, torch.zeros(1, 1, dtype=A.dtype))
        return not torch.equal(state.x, by_kernel(A, M, b, None, 9)[0])

    A, F, few = grid(), filled(40), poisson(9, 8)
    assert splits(A, P.SSOR(A, 1.2))
    assert splits(A, P.IC(A))
    assert splits(F, P.SSOR(F, 1.2))
    assert not splits(F, P.IC(F))
    assert not splits(few, P.SSOR(few, 1.2))
    assert not splits(A.with_values(A.values * (1 + 1e-12 * normal((A.nnz,)))), P.SSOR(A, 1.2))
    assert not splits(A, P.SSOR(A, 0.1))  # a product would be a small difference of large numbers


def test_no_rows():
    A = ls.ops.diag(torch.ones(0, dtype=torch.float64))
    assert S.cg(A, A.values, M=P.SSOR(A), iterations=9, gradient="unrolled").x.shape == (0,)


def test_matrices_of_a_batch_split_one_by_one():
    A = grid()
    factors = torch.tensor([1.0, 3.0, 0.5], dtype=A.dtype)
    batch = A.with_values(factors[:, None] * A.values)
    omega, b = torch.tensor([1.0, 1.9, 0.1], dtype=A.dtype), normal((3, 336, 2))
    x = by_kernel(batch, P.SSOR(batch, omega), b, None, 7)[0]
    for i, w in enumerate(omega.tolist()):
        one = A.with_values(batch.values[i])
        alone = by_kernel(one, P.SSOR(one, w), b[i], None, 7)[0]
        torch.testing.assert_close(x[i], alone, rtol=1e-12, atol=1e-12)


def test_derivatives_through_a_split():
    A = filled(10)
    omega = torch.tensor(1.3, dtype=A.dtype, requires_grad=True)

    def solve(v, b, omega):
        full = A.with_values(v)
        full = (full + full.T) * 0.5  # a change of one entry leaves it symmetric
        M = P.SSOR(full, omega, symmetric=True)
        return S.cg(full, b, M=M, iterations=5, gradient="unrolled").x

    inputs = A.values.clone().requires_grad_(), normal((10, 2)).requires_grad_(), omega
    assert torch.autograd.gradcheck(solve, inputs)


def test_bits_of_a_split_on_any_number_of_threads():
    A = grid(100, 50, 4)
    order = ls.ordering.greedy_coloring(A).rows  # two levels
    colored = ls.CSR.from_scipy(A.to_scipy()[order.numpy()][:, order.numpy()])
    results = []
    for matrix in (A, colored):
        for shape in ((20000,), (20000, 3)):
            results.append((matrix, P.SSOR(matrix, 1.5), normal(shape)))
    before = torch.get_num_threads()
    try:
        assert_same_bits(lambda: [t for A, M, b in results for t in by_kernel(A, M, b, None, 8)], (2, 3))
    finally:
        torch.set_num_threads(before)
