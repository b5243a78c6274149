"""A pattern's analysis happens at its first use, wherever that is: inside a transformation, in inference
mode, on several threads at once. What is cached there must remain valid afterwards."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from reference import densify, normal, pattern_of, random

import learnsolve as ls

S = random(9, 9, 0.3)

FIRST_USE = {
    "spmm": lambda A, x: A @ x,
    "spmm transpose": lambda A, x: ls.ops.spmm(A, x, transpose=True),
    "sddmm": lambda A, x: ls.ops.sddmm(x, x, A.pattern),
    "transpose": lambda A, x: A.T.values,
    "diagonal": lambda A, x: A.diagonal() * x,
    "to_dense": lambda A, x: A.to_dense() @ x,
    "sum": lambda A, x: A.sum(0) * x,
    "scale_rows": lambda A, x: A.scale_rows(x).values,
    "from_coo": lambda A, x: ls.CSR.from_coo(*_COO, A.values, (9, 9)) @ x,
}
_COO = tuple(torch.from_numpy(i).long() for i in S.tocoo().coords)

TRANSFORMATIONS = {
    "grad": lambda f, v, x: torch.func.grad(lambda v, x: f(v, x).sum(), argnums=(0, 1))(v, x),
    "grad of grad": lambda f, v, x: torch.func.hessian(lambda v, x: torch.sin(f(v, x)).sum())(v, x),
    "jvp": lambda f, v, x: torch.func.jvp(f, (v, x), (v, x)),
    "vmap": lambda f, v, x: torch.vmap(f)(v.expand(2, -1), x.expand(2, -1)),
    "vmap of grad": lambda f, v, x: torch.vmap(torch.func.grad(lambda v, x: f(v, x).sum()))(
        v.expand(2, -1), x.expand(2, -1)
    ),
    "no_grad": lambda f, v, x: torch.no_grad()(f)(v, x),
    "inference mode": lambda f, v, x: torch.inference_mode()(f)(v, x).clone(),
}


@pytest.mark.parametrize("use", FIRST_USE)
@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
def test_first_use_inside(transformation, use):
    v, x = normal((S.nnz,), seed=1), normal((9,), seed=2)

    def run(P):
        return TRANSFORMATIONS[transformation](lambda v, x: FIRST_USE[use](ls.CSR(v, P), x), v, x)

    known = pattern_of(S)
    _ = known.T, known.row_indices, known.diagonal_positions
    wanted = run(known)
    fresh = pattern_of(S)
    torch.testing.assert_close(run(fresh), wanted, rtol=0, atol=0)
    # And what was cached there works outside, with and without gradients.
    A = ls.CSR(v.clone().requires_grad_(), fresh)
    D = densify(fresh, v)
    for y, reference in (
        (A @ x, D @ x),
        (A.T @ x, D.mT @ x),
        (A.to_dense(), D),
        (A.diagonal(), D.diagonal()),
    ):
        torch.testing.assert_close(y.detach(), reference)
        y.sum().backward()


def test_pattern_made_in_inference_mode():
    with torch.inference_mode():
        P = ls.SparsityPattern(torch.tensor([0, 1, 3]), torch.tensor([0, 0, 1]), (2, 2))
        assert torch.equal(ls.CSR(torch.ones(3), P) @ torch.ones(2), torch.tensor([1.0, 2.0]))
    v = torch.ones(3, requires_grad=True)
    A = ls.CSR(v, P)
    (A @ torch.ones(2) + A.T @ torch.ones(2)).sum().backward()
    assert torch.equal(v.grad, torch.full((3,), 2.0))


def test_first_use_on_many_threads_at_once():
    big = pattern_of(random(2000, 2000, 0.01))
    v, x = normal((big.nnz,)), normal((2000,), seed=1)
    wanted = densify_free_product(big, v, x)

    def work(_):
        a, b = v.clone().requires_grad_(), x.clone().requires_grad_()
        A = ls.CSR(a, big)
        y = A @ b + A.T @ b
        return torch.autograd.grad(y.sum(), (a, b)), y.detach()

    big.drop_caches()
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, range(16)))
    for (gv, gx), y in results:
        torch.testing.assert_close(y, wanted)
        assert torch.equal(gv, results[0][0][0])
        assert torch.equal(gx, results[0][0][1])


def densify_free_product(P, v, x):
    rows, columns = P.row_indices.long(), P.col_indices.long()
    y = torch.zeros(P.shape[0], dtype=v.dtype)
    return y.index_add(0, rows, v * x[columns]).index_add(0, columns, v * x[rows])
