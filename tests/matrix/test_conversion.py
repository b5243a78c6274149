"""From and to SciPy and torch's sparse tensors: what is kept, what is refused, what has a gradient."""

import numpy as np
import pytest
import scipy.sparse
import torch
from reference import random

import learnsolve as ls


def scipy_matrix(seed=0):
    S = random(8, 6, 0.4, seed).astype(np.float64)
    S.data[:] = np.random.default_rng(seed).standard_normal(S.nnz)
    return S


FORMATS = ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"]


@pytest.mark.parametrize("kind", [scipy.sparse.csr_array, scipy.sparse.csr_matrix])
@pytest.mark.parametrize("format", FORMATS)
def test_every_scipy_format(format, kind):
    S = scipy_matrix()
    A = ls.CSR.from_scipy(kind(S).asformat(format))
    assert A.shape == (8, 6)
    assert np.array_equal(A.to_dense().numpy(), S.toarray())


@pytest.mark.parametrize("dtype", ["f4", "f8", "i1", "i2", "i4", "i8", "u1", "?"])
@pytest.mark.parametrize("order", ["<", ">"])
def test_dtype_is_kept(dtype, order):
    S = scipy_matrix()
    data = (S.data * 50).astype(np.dtype(dtype).newbyteorder(order))
    S = scipy.sparse.csr_array((data, S.indices, S.indptr), shape=S.shape)
    A = ls.CSR.from_scipy(S)
    assert A.values.numpy().dtype == np.dtype(dtype)
    assert np.array_equal(A.values.numpy(), data)
    assert isinstance(A.to_scipy(), scipy.sparse.csr_array)
    assert A.to_scipy().dtype == np.dtype(dtype)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("index", ["i4", "i8"])
def test_index_dtype_is_kept(index, order):
    S = scipy_matrix()
    expected = S.toarray()
    S.indptr, S.indices = (a.astype(np.dtype(index).newbyteorder(order)) for a in (S.indptr, S.indices))
    for a in (S.data, S.indices, S.indptr):
        a.flags.writeable = False
    A = ls.CSR.from_scipy(S)
    assert A.crow_indices.dtype == {"i4": torch.int32, "i8": torch.int64}[index]
    assert np.array_equal(A.to_dense().numpy(), expected)
    assert ls.CSR.from_scipy(S.astype(index), dtype=torch.float32).dtype == torch.float32


def test_unsorted_and_duplicate_entries():
    indptr, indices, data = np.array([0, 3, 5]), np.array([2, 0, 2, 1, 0]), np.array([1.0, 2, 4, 8, 16])
    S = scipy.sparse.csr_array((data, indices, indptr), shape=(2, 3))
    A = ls.CSR.from_scipy(S)
    assert A.to_dense().tolist() == [[2, 0, 5], [16, 8, 0]]
    assert A.nnz == 4
    assert S.indices.tolist() == [2, 0, 2, 1, 0]  # the caller's matrix is as it was
    assert S.data.tolist() == [1, 2, 4, 8, 16]
    C = scipy.sparse.coo_array((data, ([0, 0, 0, 1, 1], indices)), shape=(2, 3))
    assert ls.CSR.from_scipy(C).to_dense().tolist() == [[2, 0, 5], [16, 8, 0]]
    T = scipy.sparse.csc_array((data, indices, indptr), shape=(3, 2))
    assert ls.CSR.from_scipy(T).to_dense().T.tolist() == [[2, 0, 5], [16, 8, 0]]


def test_explicit_zeros_are_kept():
    S = scipy.sparse.csr_array((np.array([0.0, 1.0]), np.array([0, 1]), np.array([0, 2])), shape=(1, 2))
    for T in (S, S.tocsc(), S.tocoo()):
        A = ls.CSR.from_scipy(T)
        assert A.nnz == A.to_scipy().nnz == ls.CSR.from_torch(A.to_torch()).nnz == 2
    canceled = ls.CSR.from_coo(torch.tensor([0, 0]), torch.tensor([0, 0]), torch.tensor([1.0, -1.0]), (1, 1))
    assert (canceled.nnz, canceled.values.item()) == (1, 0)


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "bsr"])
def test_the_source_is_not_shared(format):
    S = scipy_matrix().asformat(format)
    A = ls.CSR.from_scipy(S)
    before = A.to_dense()
    S.data[...] = -1
    for name in ("indices", "indptr", "row", "col"):
        if hasattr(S, name):
            getattr(S, name)[...] = 0
    assert torch.equal(A.to_dense(), before)
    assert torch.equal(A @ torch.eye(6, dtype=torch.float64), before)


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (3, 2)])
def test_without_entries(shape):
    A = ls.CSR.from_scipy(scipy.sparse.csr_array(shape))
    for B in (
        A,
        ls.CSR.from_dense(torch.zeros(shape)),
        ls.CSR.from_torch(torch.zeros(shape).to_sparse()),
        ls.CSR.from_coo(torch.empty(0).long(), torch.empty(0).long(), torch.empty(0), shape),
    ):
        assert (B.shape, B.nnz) == (shape, 0)
        assert B.to_dense().shape == shape
        assert B.to_scipy().shape == shape
        assert B.to_torch().shape == shape
        assert B.T.shape == shape[::-1]


@pytest.mark.parametrize("bad", [np.eye(2), torch.eye(2), [[1.0]], None], ids=lambda b: type(b).__name__)
def test_from_scipy_refuses(bad):
    with pytest.raises(
        TypeError, match=f"CSR.from_scipy: expected a scipy.sparse matrix, got {type(bad).__name__}"
    ):
        ls.CSR.from_scipy(bad)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_torch_csr(index):
    S = scipy_matrix()
    arrays = (torch.from_numpy(a) for a in (S.indptr.astype(int), S.indices.astype(int), S.data))
    crow, col, values = arrays
    T = torch.sparse_csr_tensor(crow.to(index), col.to(index), values, S.shape)
    A = ls.CSR.from_torch(T)
    assert A.crow_indices.dtype == index
    assert np.array_equal(A.to_dense().numpy(), S.toarray())
    assert A.to_torch().layout == torch.sparse_csr
    assert torch.equal(A.to_torch().to_dense(), T.to_dense())
    T = A.to_torch(torch.sparse_coo)
    assert T.layout == torch.sparse_coo
    assert T.is_coalesced()
    assert torch.equal(T.to_dense(), A.to_dense())
    with pytest.raises(ValueError, match=r"CSR.to_torch: layout must be .* got torch.sparse_csc"):
        A.to_torch(torch.sparse_csc)


def test_torch_csr_that_is_not_in_order():
    crow, col = torch.tensor([0, 3, 5]), torch.tensor([2, 0, 1, 1, 0])
    values = torch.tensor([1.0, 2, 4, 8, 16])
    for col_, expected in (
        (col, [[2, 4, 1], [16, 8, 0]]),
        (torch.tensor([2, 0, 2, 1, 1]), [[2, 0, 5], [0, 24, 0]]),
    ):
        T = torch.sparse_csr_tensor(crow, col_, values, (2, 3), check_invariants=False)
        A = ls.CSR.from_torch(T)
        assert A.to_dense().tolist() == expected
        ls.SparsityPattern(A.crow_indices, A.col_indices, A.shape)


def test_torch_coo_uncoalesced():
    i = torch.tensor([[1, 0, 1, 0], [2, 1, 2, 0]])
    A = ls.CSR.from_torch(torch.sparse_coo_tensor(i, torch.tensor([1.0, 2, 4, 8]), (2, 3)))
    assert A.to_dense().tolist() == [[8, 2, 0], [0, 0, 5]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_coo])
def test_torch_dtype_is_kept(layout, dtype):
    D = torch.tensor([[0, 3, 0], [7, 0, 1]], dtype=dtype)
    T = D.to_sparse_csr() if layout == torch.sparse_csr else D.to_sparse_coo()
    A = ls.CSR.from_torch(T)
    assert A.dtype == dtype
    assert torch.equal(A.to_dense(), D)


CROW, COL, ROWS = torch.tensor([0, 2, 3]), torch.tensor([0, 2, 1]), torch.tensor([0, 0, 1])
INDICES, SWAPPED = torch.stack((ROWS, COL)), torch.tensor([1, 0, 2])
OF_VALUES = {
    "csr": lambda v: torch.sparse_csr_tensor(CROW, COL, v, (2, 3)),
    "csr unsorted": lambda v: torch.sparse_csr_tensor(
        CROW, COL[SWAPPED], v[SWAPPED], (2, 3), check_invariants=False
    ),
    "coo": lambda v: torch.sparse_coo_tensor(INDICES, v, (2, 3)),
    "coo uncoalesced": lambda v: torch.sparse_coo_tensor(
        INDICES.repeat(1, 2), torch.cat((v / 2, v / 2)), (2, 3)
    ),
}


@pytest.mark.parametrize("kind", OF_VALUES)
def test_gradient_through_torch_sparse(kind):
    v = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
    if kind == "csr unsorted":
        # torch 2.13 itself hands gradients to an unsorted CSR tensor in the order of sorted columns.
        with pytest.raises(NotImplementedError, match=r"CSR\.from_torch"):
            ls.CSR.from_torch(OF_VALUES[kind](v))
        return
    out = ls.CSR.from_torch(OF_VALUES[kind](v)).values
    assert out.requires_grad, "the gradient is lost silently"
    (g,) = torch.autograd.grad(out, v, torch.tensor([5.0, 6.0, 7.0], dtype=torch.float64))
    assert g.to_dense().tolist() == [5, 6, 7]


@pytest.mark.parametrize("kind", ["csr", "coo"])
def test_gradient_to_a_torch_sparse_leaf(kind):
    """A sparse tensor that requires a gradient itself gets it, or the call says that it cannot."""
    D = torch.tensor([[1.0, 0, 2], [0, 3, 0]], dtype=torch.float64)
    T = (D.to_sparse_csr() if kind == "csr" else D.to_sparse_coo().coalesce()).detach().requires_grad_()
    A = ls.CSR.from_torch(T)
    assert A.requires_grad, "the gradient is lost silently"
    (A.values * torch.tensor([5.0, 6.0, 7.0], dtype=torch.float64)).sum().backward()
    assert T.grad.to_dense().tolist() == [[5, 0, 6], [0, 7, 0]]


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_coo])
def test_gradient_out_to_torch_sparse(layout):
    A = ls.CSR.from_dense(torch.tensor([[1.0, 0, 2], [0, 3, 0]], dtype=torch.float64))
    v = A.values.clone().requires_grad_()
    T = A.with_values(v).to_torch(layout)
    assert T.requires_grad, "the gradient is lost silently"
    weight = torch.tensor([[5.0, 1, 6], [1, 7, 1]], dtype=torch.float64)
    ((T @ torch.eye(3, dtype=torch.float64)) * weight).sum().backward()
    assert v.grad.tolist() == [5, 6, 7]


@pytest.mark.parametrize(
    "bad",
    [torch.eye(2), torch.zeros(2, 2, 2).to_sparse(), torch.ones(2, 2).to_sparse(1), np.eye(2)],
    ids=["dense", "three axes", "hybrid", "array"],
)
def test_from_torch_refuses(bad):
    with pytest.raises(TypeError, match=r"CSR.from_torch: T must be a 2-D sparse tensor of torch"):
        ls.CSR.from_torch(bad)


def test_from_torch_does_not_trust_a_coalesced_flag():
    indices = torch.tensor([[0, 1], [9, -5]])
    T = torch.sparse_coo_tensor(indices, torch.ones(2), (2, 2), check_invariants=False, is_coalesced=True)
    with pytest.raises(ValueError, match=r"columns must lie in 0 <= index < 2, got columns\[0\] = 9"):
        ls.CSR.from_torch(T)


@pytest.mark.parametrize("kind", ["csr", "csc", "bsr"])
def test_an_index_out_of_range_behind_columns_that_are_not_sorted(kind):
    S = scipy.sparse.csr_array(np.ones((4, 4)))
    S = S.tobsr((2, 2)) if kind == "bsr" else S.asformat(kind)
    S.indices[:2] = S.indices[:2][::-1].copy()
    S.indices[-1] = 10**6
    with pytest.raises(ValueError, match=r"CSR.from_scipy: .* must lie in .*= 1000000"):
        ls.CSR.from_scipy(S)


@pytest.mark.parametrize("name", ["rows", "data"])
def test_lists_in_lists_are_refused(name):
    S = scipy.sparse.lil_array(np.eye(3))
    getattr(S, name)[0] = [[0]]
    S.rows[1], S.data[1] = [1], [1.0]
    with pytest.raises(TypeError, match=f"CSR.from_scipy: {name} must "):
        ls.CSR.from_scipy(S)


@pytest.mark.parametrize(
    ("ccol", "row", "words"),
    [
        ([[0, 1, 2]], [0, 1], "ccol_indices must have one dimension"),
        ([0.0, 1.0, 2.0], [0, 1], "ccol_indices must be int32 or int64"),
        ([0, 1, 2], [0.0, 1.0], "row_indices must be int32 or int64"),
        ([0, 1, 1], [0], "as many values as row_indices, got 2 and 1"),
    ],
)
def test_errors_of_a_csc_tensor_name_its_arrays(ccol, row, words):
    ccol, row = torch.tensor(ccol), torch.tensor(row)
    T = torch.sparse_csc_tensor(ccol, row, torch.ones(2), (2, 2), check_invariants=False)
    with pytest.raises((ValueError, TypeError), match=f"CSR.from_torch: .*{words}"):
        ls.CSR.from_torch(T)
