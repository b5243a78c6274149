"""Several right-hand sides: what a column gets beside others is what it gets alone, at the same cost."""

import itertools

import numpy as np
import pytest
import torch
from reference import normal

import learnsolve as ls
from learnsolve.solvers.core import advance

S, P = ls.solvers, ls.preconditioners
A = ls.problems.poisson((32, 32))  # from 4 columns on, the compiled loop of cg takes them one by one
ONE_BY_ONE = {
    "cg": (S.cg, {}),
    "cg, Jacobi": (S.cg, {"M": P.Jacobi(A)}),
    "cg, MIC0": (S.cg, {"M": P.MIC0(A)}),
    "cg, at most": (S.cg, {"rtol": 0.0, "maxiter": 7}),
    "minres": (S.minres, {}),
    "minres, Jacobi": (S.minres, {"M": P.Jacobi(A)}),
    "bicgstab": (S.bicgstab, {}),
    "gmres": (S.gmres, {"restart": 20}),
    "fgmres, Jacobi": (S.fgmres, {"M": P.Jacobi(A)}),
    "jacobi": (S.jacobi, {"weight": 0.7, "iterations": 9}),
    "heavyball": (S.heavyball, {"alpha": 0.2, "beta": 0.5, "iterations": 9}),
}


@pytest.mark.parametrize("case", ONE_BY_ONE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_columns_one_by_one_have_the_bits_of_a_solve_alone(case, dtype):
    """Also one of zeros, which has no iterations, and from a start."""
    solve, keywords = ONE_BY_ONE[case]
    if dtype == torch.float32:
        if "M" in keywords:
            return
        keywords = {"rtol": 1e-4} | keywords if "iterations" not in keywords else keywords
    b = normal((1024, 5), dtype=dtype)
    b[:, 3] = 0
    matrix = A.to(dtype)
    for x0 in (None, normal((1024, 5), seed=1, dtype=dtype)):
        starts = [None] * 5 if x0 is None else x0.unbind(1)
        block = solve(matrix, b, x0, **keywords)
        alone = [solve(matrix, c, y, **keywords) for c, y in zip(b.unbind(1), starts, strict=True)]
        assert torch.equal(block.x, torch.stack([one.x for one in alone], 1))
        assert block.x.is_contiguous()
        assert block.iterations == max(one.iterations for one in alone)
        for j, one in enumerate(alone):
            assert "iterations" in keywords or block.statuses[j] is one.status
            norms = one.residual_norms
            history, rest = block.residual_norms[:, j].split((len(norms), block.iterations - one.iterations))
            torch.testing.assert_close(history, norms)
            assert (rest == history[-1]).all()


@pytest.mark.parametrize("case", ["cg", "minres, Jacobi", "gmres"])
def test_gradients_of_columns_one_by_one_are_those_of_solves_alone(case):
    solve, keywords = ONE_BY_ONE[case]
    b, w = normal((1024, 5)).requires_grad_(), normal((1024, 5), seed=2)
    own = A.detach().requires_grad_()
    x = solve(own, b, **keywords, rtol=1e-10).x
    by_A, by_b = torch.autograd.grad((w * x).sum(), (own.values, b))
    alone = [solve(own, c, **keywords, rtol=1e-10).x for c in b.unbind(1)]
    theirs = torch.autograd.grad((w * torch.stack(alone, 1)).sum(), (own.values, b))
    assert torch.equal(by_b, theirs[1])
    torch.testing.assert_close(by_A, theirs[0], rtol=1e-9, atol=1e-9)


class Widths(P.Preconditioner):
    """The inverse diagonal, which notes how many columns it gets."""

    symmetric = True

    def __init__(self, matrix):
        super().__init__(matrix)
        self.d, self.seen = 1 / matrix.diagonal().unsqueeze(-1), set()

    def _columns(self, R):
        self.seen.add(R.shape[-1])
        return self.d * R


@pytest.mark.parametrize("name", ["minres", "bicgstab", "gmres", "fcg", "chebyshev"])
def test_torch_operations_take_tiles_on_large_matrices(name, monkeypatch):
    """No vector of all columns, which would not fit the cache; and a user's function gets all columns."""
    monkeypatch.setattr(advance, "_MANY_ROWS", 64)
    monkeypatch.setattr(advance, "_ROWS", 64)
    solve, own = getattr(S, name), ls.problems.poisson((8, 8))
    keywords = {"lmin": 0.05, "lmax": 2.0} if name == "chebyshev" else {}
    M, b = Widths(own), normal((64, 18))
    block = solve(own, b, M=M, **keywords)
    assert block.converged
    assert M.seen == ({18} if name == "fcg" else {8, 1})  # between compiled steps
    monkeypatch.undo()
    whole = solve(own, b, M=Widths(own), **keywords)
    torch.testing.assert_close(block.x, whole.x, rtol=0, atol=1e-3)
    assert block.statuses == whole.statuses
    monkeypatch.setattr(advance, "_MANY_ROWS", 64)
    seen = set()
    solve(own, b, M=lambda r: (seen.add(r.shape[-1]), M.d * r)[1], **keywords)
    assert seen == {18}


def test_tiles_keep_what_belongs_to_single_columns():
    """The null space, statuses, the note, and a callback, which sees all columns."""
    periodic = ls.problems.poisson((12, 12), boundary="periodic")
    b = normal((144, 6))
    assert "along null_space" in S.minres(periodic, b, null_space="constants").note
    b[:, 2] = float("nan")
    with pytest.warns(S.ConvergenceWarning):
        block = S.minres(periodic, b, null_space="constants")
    names = [status.name for status in block.statuses]
    assert names == ["NON_FINITE" if j == 2 else "CONVERGED" for j in range(6)]
    good = block.x[:, [0, 1, 3, 4, 5]]
    torch.testing.assert_close(good.sum(0), torch.zeros(5, dtype=good.dtype), rtol=0, atol=1e-10)
    shapes = []
    S.minres(A, normal((1024, 3)), callback=lambda at: shapes.append(tuple(at.x.shape)), maxiter=2, rtol=0)
    assert shapes == [(1024, 3)] * 2


def test_products_of_few_columns():
    """Uniform blocks of 2 and 3 columns have a kernel of their own."""
    for dtype, shape in itertools.product((torch.float32, torch.float64), ((37,), (13, 11), (5, 6, 7))):
        own = ls.problems.poisson(shape).to(dtype)
        own = own.with_values(normal((own.nnz,), dtype=dtype))
        dense = own.to_dense()
        for k in (0, 2, 3):
            x = normal((own.shape[0], k), dtype=dtype)
            for y, D in ((own @ x, dense), (ls.ops.spmm(own, x, transpose=True), dense.T)):
                scale = np.finfo(str(dtype).removeprefix("torch.")).eps * 20
                assert ((y - D @ x).abs() <= scale * (D.abs() @ x.abs())).all()


def test_sweeps_of_a_large_system_take_several_calls():
    A = ls.problems.poisson((316, 316))
    b = torch.randn(A.shape[0], 8, dtype=torch.float64)
    x = ls.solvers.jacobi(A, b, weight=0.8, iterations=40).x
    for column, alone in zip(b.unbind(1), x.unbind(1), strict=True):
        wanted = ls.solvers.jacobi(A, column.contiguous(), weight=0.8, iterations=40).x
        torch.testing.assert_close(alone, wanted, rtol=1e-12, atol=1e-12)
