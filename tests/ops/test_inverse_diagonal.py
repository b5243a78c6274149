"""1 / diag(A): values, derivatives, what it refuses, and that what it keeps is never stale."""

import copy

import numpy as np
import pytest
import torch
from reference import densify, normal, pattern_of
from scipy.sparse import csr_array

import learnsolve as ls

P = pattern_of(csr_array(np.array([[1, 0, 1, 0], [1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 0, 1]])))


def sparse(v):
    return ls.ops.inverse_diagonal(ls.CSR(v, P))


def dense(v):
    return torch.diagonal(densify(P, v), dim1=-2, dim2=-1).reciprocal()


def values(*batch, dtype=torch.float64):
    return normal((*batch, P.nnz), dtype).abs() + 0.5


@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_value(batch, dtype):
    v = values(*batch, dtype=dtype)
    assert torch.equal(sparse(v), dense(v))


def test_what_is_kept_follows_the_values():
    A = ls.CSR(values(), P)
    first = ls.ops.inverse_diagonal(A)
    kept = first.clone()
    first.zero_()  # it is the caller's: what is kept must not follow
    assert torch.equal(ls.ops.inverse_diagonal(A), kept)
    first = kept
    A.values.mul_(2)
    assert torch.equal(ls.ops.inverse_diagonal(A), first / 2)
    assert torch.equal(ls.ops.inverse_diagonal(A.with_values(A.values * 2)), first / 4)
    A.requires_grad_()
    assert ls.ops.inverse_diagonal(A).requires_grad


def test_a_copy_has_nothing_kept():
    A = ls.CSR(values(), P)
    A.values.mul_(1)
    d = ls.ops.inverse_diagonal(A)
    A.values.mul_(2)
    assert torch.equal(ls.ops.inverse_diagonal(copy.deepcopy(A)), d / 2)


def test_kept_in_inference_mode_and_learned_after():
    A = ls.problems.poisson((4,))
    with torch.inference_mode():
        ls.solvers.jacobi(A, torch.ones(4, dtype=torch.float64))
    w = torch.ones(4, dtype=torch.float64, requires_grad=True)
    ls.solvers.jacobi(A, torch.ones(4, dtype=torch.float64), weight=w).x.sum().backward()
    assert torch.equal(w.grad, torch.full_like(w, 0.5))


def test_inference_mode():
    with torch.inference_mode():
        A = ls.CSR(values(), P)
        for _ in range(2):
            assert torch.equal(ls.ops.inverse_diagonal(A), dense(A.values))


def test_of_a_matrix_from_a_tree():
    """Matrices that transformations rebuild have what they need."""
    A = ls.CSR(values(), P)
    B = torch.utils._pytree.tree_map(lambda t: t, A)
    assert torch.equal(ls.ops.inverse_diagonal(B), dense(A.values))


@pytest.mark.cpu_only
def test_errors():
    with pytest.raises(ValueError, match=r"inverse_diagonal: A must be square, got shape \(1, 2\)"):
        ls.ops.inverse_diagonal(ls.CSR.from_dense(torch.ones(1, 2)))
    hole = ls.CSR.from_dense(torch.tensor([[1.0, 1.0], [1.0, 0.0]]))
    with pytest.raises(ValueError, match=r"inverse_diagonal: .* row 1 has none"):
        ls.ops.inverse_diagonal(hole)
    for learns in (False, True):
        v = values(2)
        v[1, int(P.diagonal_positions[2])] = 0
        with pytest.raises(ValueError, match=r"inverse_diagonal: .* row 2 has one"):
            sparse(v.requires_grad_(learns))
    with pytest.raises(ValueError, match="row 2 has one"):
        torch.func.grad(lambda v: sparse(v).sum())(v.detach()[1])
