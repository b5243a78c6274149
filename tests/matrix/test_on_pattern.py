"""Matrices that share a pattern: `CSR.from_*` with pattern=, and `CSR.stack`."""

import numpy as np
import pytest
import scipy.sparse
import torch
from reference import normal

import learnsolve as ls

D = torch.tensor([[4.0, 0.0, 1.0], [0.0, 0.0, 2.0], [0.0, 3.0, 0.0]], dtype=torch.float64)
P = ls.CSR.from_dense(D + torch.eye(3)).pattern


def csr(D: torch.Tensor) -> scipy.sparse.csr_array:
    return scipy.sparse.csr_array(D.numpy())


@pytest.mark.parametrize("pattern", [P, P.to(dtype=torch.int32), ls.CSR.from_dense(D).pattern])
@pytest.mark.parametrize("format", ["csr", "csc", "coo", "dia"])
def test_from_scipy_is_on_the_pattern(format, pattern):
    A = ls.CSR.from_scipy(csr(D).asformat(format), pattern=pattern)
    assert A.pattern is pattern
    assert A.dtype == torch.float64
    assert torch.equal(A.to_dense(), D)
    assert ls.CSR.from_scipy(csr(D), torch.float32, pattern=pattern).dtype == torch.float32


def test_duplicates_are_added_up():
    S = scipy.sparse.coo_array((np.array([1.0, 2.0, 5.0]), ([0, 0, 2], [2, 2, 1])), shape=(3, 3))
    A = ls.CSR.from_scipy(S, pattern=P)
    assert A[0, 2] == 3
    assert A[2, 1] == 5
    assert A.sum() == 8
    assert A.pattern is P


def test_data_on_one_pattern_share_plans():
    first, second = (ls.CSR.from_scipy(csr(s * D), pattern=P) for s in (1, 2))
    assert (first @ second).pattern is (second @ first).pattern


@pytest.mark.parametrize("value", [7.0, 0.0])
def test_an_entry_outside_is_refused(value):
    S = scipy.sparse.coo_array((np.array([1.0, value]), ([0, 1], [0, 0])), shape=(3, 3))
    message = (
        rf"\(an explicit zero is one\) must lie on the pattern, .* row 1, column 0, {value:g}, does not; use"
    )
    with pytest.raises(ValueError, match=f"CSR.from_scipy: every entry {message}"):
        ls.CSR.from_scipy(S, pattern=P)
    full = torch.full((3, 3), 2.0)
    with pytest.raises(ValueError, match=r"CSR.from_dense: every entry must .* row 0, column 1, 2, does not"):
        ls.CSR.from_dense(full, pattern=P)


def test_what_is_no_pattern_of_the_matrix_is_refused():
    with pytest.raises(
        TypeError, match=r"CSR.from_scipy: pattern must be a SparsityPattern, got CSR; that of"
    ):
        ls.CSR.from_scipy(csr(D), pattern=ls.CSR.from_dense(D))
    with pytest.raises(TypeError, match=r"CSR.from_scipy: pattern must be a SparsityPattern, got str"):
        ls.CSR.from_scipy(csr(D), pattern="csr")
    with pytest.raises(ValueError, match=r"CSR.from_torch: the pattern must have the shape \(2, 3\), got"):
        ls.CSR.from_torch(D[:2].to_sparse(), pattern=P)
    with pytest.raises(
        TypeError, match=r"from_scipy: the values must be float32 or float64, got torch.int64"
    ):
        ls.CSR.from_scipy(csr(D).astype(int), pattern=P)


def coo(v: torch.Tensor) -> torch.Tensor:
    return torch.sparse_coo_tensor([[0, 1], [2, 2]], v, (3, 3), check_invariants=True)


FROM = {
    "torch": lambda v: ls.CSR.from_torch(coo(v), pattern=P),
    "coo": lambda v: ls.CSR.from_coo(torch.tensor([1, 0]), torch.tensor([2, 0]), v, (3, 3), pattern=P),
    "dense": lambda v: ls.CSR.from_dense(torch.diag(torch.cat((v, v[:1]))), pattern=P),
}


@pytest.mark.parametrize("source", FROM)
def test_values_on_a_pattern_are_differentiable(source):
    v = normal((2,)).requires_grad_()
    assert FROM[source](v).pattern is P
    assert torch.autograd.gradcheck(lambda v: FROM[source](v).values, (v,))
    if source != "torch":  # torch's own coalesce() has no second derivatives
        assert torch.autograd.gradgradcheck(lambda v: FROM[source](v).values.square(), (v,))


def test_zeros_of_a_dense_matrix_have_gradients():
    X = D.clone().requires_grad_()
    ls.CSR.from_dense(X, pattern=P).values.sum().backward()
    assert torch.equal(X.grad, ((D + torch.eye(3)) != 0).double())


# --- stack ---


def test_stack_is_a_batch():
    A = ls.CSR(normal((P.nnz,)).requires_grad_(), P)
    B = ls.CSR(normal((P.nnz,), seed=1), ls.SparsityPattern(P.crow_indices, P.col_indices, P.shape))
    C = ls.CSR.stack([A, B])
    assert C.pattern is P
    assert torch.equal(C.values, torch.stack((A.values, B.values)))
    C.to_dense()[0].sum().backward()
    assert torch.equal(A.values.grad, torch.ones(P.nnz))
    assert ls.CSR.stack([C, C]).batch_shape == (2, 2)


def test_stack_refuses_what_is_no_batch():
    A = ls.CSR(normal((P.nnz,)), P)
    for other in (ls.CSR.from_dense(D), ls.ops.eye(4, dtype=torch.float64)):
        with pytest.raises(
            ValueError, match=r"CSR.stack: the matrices must have one pattern, but .* matrix 1"
        ):
            ls.CSR.stack([A, other])
    with pytest.raises(ValueError, match=r"one batch shape, got \(1,\) in matrix 1, \(\) in the first"):
        ls.CSR.stack([A, A.with_values(A.values.unsqueeze(0))])
    with pytest.raises(TypeError, match=r"matrix 1 has dtype torch.float32"):
        ls.CSR.stack([A, A.to(torch.float32)])
    with pytest.raises(ValueError, match=r"CSR.stack: expected at least one matrix"):
        ls.CSR.stack([])
