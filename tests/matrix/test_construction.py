"""From dense matrices and triples, on a pattern, in a stack; complex matrices, which are refused."""

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
import torch
from reference import assert_within, normal, random
from torch.autograd import gradcheck, gradgradcheck
from torch.multiprocessing.reductions import StorageWeakRef

import learnsolve as ls
from learnsolve.matrix import convert

DENSE = torch.tensor([[4.0, 0.0, 1.0], [0.0, 0.0, 2.0], [0.0, 3.0, 0.0]], dtype=torch.float64)
P = ls.CSR.from_dense(DENSE + torch.eye(3)).pattern


def csr(D: torch.Tensor) -> scipy.sparse.csr_array:
    return scipy.sparse.csr_array(D.numpy())


# --- from dense matrices ---


def test_from_dense():
    D = torch.tensor([[0.0, 3, 0], [0, 0, 0], [7, 0, float("nan")]])
    A = ls.CSR.from_dense(D)
    assert A.crow_indices.tolist() == [0, 1, 1, 3]
    assert A.col_indices.tolist() == [1, 0, 2]
    torch.testing.assert_close(A.to_dense(), D, equal_nan=True)
    assert ls.CSR.from_dense(D.bool().long()).dtype == torch.int64
    assert torch.equal(ls.CSR.from_dense(D.nan_to_num().T).to_dense(), D.nan_to_num().T)


def test_a_pattern_made_in_a_transformation_outlives_it():
    made = []

    def f(x):
        made.append(ls.CSR.from_dense(DENSE * x.sum()).pattern)
        return x.sum()

    torch.func.grad(f)(normal((3,)))
    A = ls.CSR(torch.ones(made[0].nnz), made[0])
    assert torch.equal(A.to_dense(), (DENSE != 0).float())
    made[0].col_indices[0] = 2
    with pytest.raises(RuntimeError, match="changed in place"):
        A @ torch.ones(3)


# --- from triples ---


def triples():
    return torch.tensor([1, 0, 1, 1]), torch.tensor([0, 1, 2, 0]), torch.tensor([1.0, 2.0, 4.0, 8.0])


def test_from_coo():
    A = ls.CSR.from_coo(*triples(), (2, 3))
    assert A.to_dense().tolist() == [[0, 2, 0], [9, 0, 4]]
    i, j, v = triples()
    assert ls.CSR.from_coo(i.int(), j.int(), v, (2, 3)).crow_indices.dtype == torch.int32
    B = ls.CSR.from_coo(i.to(torch.uint8), j.short(), v, torch.Size([2, 3]))
    assert torch.equal(B.to_dense(), A.to_dense())
    far = 2**31 + 5
    A = ls.CSR.from_coo(i[1:2].int(), torch.tensor([far]), v[:1], (1, far + 1))
    assert A.col_indices.tolist() == [far]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rows", torch.tensor([1, 0, 2, 1]), r"rows must lie in .* < 2, got rows\[2\] = 2"),
        ("columns", torch.tensor([0, 1, 2, 3]), r"columns must .* < 3, got columns\[3\] = 3"),
        ("rows", torch.ones(4), "rows and columns must be 1-D tensors of integers"),
        ("shape", (-1, 3), r"shape must not be negative, got \(-1, 3\)"),
    ],
)
def test_from_coo_refuses(name, value, message):
    arguments = dict(zip(("rows", "columns", "values"), triples(), strict=True))
    with pytest.raises((ValueError, TypeError), match=f"^(CSR.)?from_coo: .*{message}"):
        ls.CSR.from_coo(**(arguments | {"shape": (2, 3)} | {name: value}))


def elements(n):
    """The nodes of the squares of an n x n grid."""
    node = torch.arange(n * n).view(n, n)
    return torch.stack((node[:-1, :-1], node[:-1, 1:], node[1:, 1:], node[1:, :-1]), -1).view(-1, 4)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("n", [3, 40])
def test_an_assembly_sums_the_matrices_of_elements(n, index):
    """As SciPy does, in one sort for all values: a large one counts, a small one compares."""
    e = elements(n).to(index)
    rows, columns = e.repeat_interleave(4, 1).flatten(), e.repeat(1, 4).flatten()
    assembly = ls.ops.Assembly(rows, columns.numpy(), (n * n, n * n + 1))
    values = normal((2, len(rows)))
    K = assembly(values)
    assert K.pattern is assembly.pattern is assembly(values[0].numpy()).pattern
    assert K.pattern.dtype is index
    assert repr(assembly) == f"Assembly(shape={K.shape}, entries={len(rows)}, nnz={K.nnz})"
    places = rows.numpy(), columns.numpy()
    for one, v in zip(K.values, values, strict=True):
        S, magnitude = (scipy.sparse.coo_array((a.numpy(), places), K.shape).tocsr() for a in (v, v.abs()))
        assert K.col_indices.tolist() == S.indices.tolist()
        assert K.crow_indices.tolist() == S.indptr.tolist()
        assert_within(one, *map(torch.from_numpy, (S.data, magnitude.data)), torch.tensor(4))


def test_the_order_of_repeated_entries_is_kept():
    """So a sum is the one of a loop over the entries; also where columns are too many to be counted."""
    i, j = torch.randint(3, (2, 20_000), generator=torch.Generator().manual_seed(0))
    for far in (1, 2**40):
        places = ls.ops.Assembly(i, far * j, (3, 2 * far + 1)).places
        order, ends = places.col_indices.long(), places.crow_indices.tolist()
        assert order.tolist() == torch.argsort(3 * i + j, stable=True).tolist()
        assert ends == [0, *torch.bincount(3 * i + j).cumsum(0).tolist()]


def test_an_assembly_refuses_other_values():
    assembly = ls.ops.Assembly(*triples()[:2], (2, 3))
    with pytest.raises(ValueError, match=r"^Assembly: the last axis of values .* 4, got shape \(3,\)"):
        assembly(torch.ones(3))
    with pytest.raises(TypeError, match=r"^Assembly: values are on meta, the matrices on cpu\. Pass device="):
        assembly(torch.ones(4, device="meta"))


# --- on a pattern ---


@pytest.mark.parametrize("pattern", [P, P.to(dtype=torch.int32), ls.CSR.from_dense(DENSE).pattern])
@pytest.mark.parametrize("format", ["csr", "csc", "coo", "dia"])
def test_from_scipy_is_on_the_pattern(format, pattern):
    A = ls.CSR.from_scipy(csr(DENSE).asformat(format), pattern=pattern)
    assert A.pattern is pattern
    assert A.dtype == torch.float64
    assert torch.equal(A.to_dense(), DENSE)
    assert ls.CSR.from_scipy(csr(DENSE), torch.float32, pattern=pattern).dtype == torch.float32


def test_duplicates_are_added_up():
    S = scipy.sparse.coo_array((np.array([1.0, 2.0, 5.0]), ([0, 0, 2], [2, 2, 1])), shape=(3, 3))
    A = ls.CSR.from_scipy(S, pattern=P)
    assert A.to_dense().tolist() == [[0, 0, 3], [0, 0, 0], [0, 5, 0]]
    assert A.pattern is P


def test_data_on_one_pattern_share_plans():
    first, second = (ls.CSR.from_scipy(csr(s * DENSE), pattern=P) for s in (1, 2))
    assert (first @ second).pattern is (second @ first).pattern


def outside(value):
    return scipy.sparse.coo_array((np.array([1.0, value]), ([0, 1], [0, 0])), shape=(3, 3))


LIES = (
    r"every entry \(an explicit zero is one\) must lie on the pattern, .* row 1, column 0, {} does not. Use"
)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ls.CSR.from_scipy(outside(7.0), pattern=P), LIES.format(7)),
        (lambda: ls.CSR.from_scipy(outside(0.0), pattern=P), LIES.format(0)),
        (
            lambda: ls.CSR.from_dense(torch.full((3, 3), 2.0), pattern=P),
            "every .* row 0, column 1, 2 does not",
        ),
        (lambda: ls.CSR.from_scipy(csr(DENSE), pattern=SQUARE), "a SparsityPattern, got CSR. Pass A.pattern"),
        (lambda: ls.CSR.from_torch(DENSE[:2].to_sparse(), pattern=P), r"must have the shape \(2, 3\), got"),
        (lambda: ls.CSR.from_scipy(csr(DENSE).astype(int), pattern=P), "float32 or float64, got torch.int64"),
    ],
)
def test_what_does_not_fit_the_pattern_is_refused(make, message):
    with pytest.raises((ValueError, TypeError), match=rf"CSR\.from_\w+: .*{message}"):
        make()


FROM = {
    "torch": lambda v: ls.CSR.from_torch(
        torch.sparse_coo_tensor([[0, 1], [2, 2]], v, (3, 3), check_invariants=True), pattern=P
    ),
    "coo": lambda v: ls.CSR.from_coo(torch.tensor([1, 0]), torch.tensor([2, 0]), v, (3, 3), pattern=P),
    "dense": lambda v: ls.CSR.from_dense(torch.diag(torch.cat((v, v[:1]))), pattern=P),
}


@pytest.mark.parametrize("source", FROM)
def test_values_on_a_pattern_are_differentiable(source):
    v = normal((2,)).requires_grad_()
    assert FROM[source](v).pattern is P
    assert gradcheck(lambda v: FROM[source](v).values, (v,))
    if source != "torch":  # torch's own coalesce() has no second derivatives
        assert gradgradcheck(lambda v: FROM[source](v).values.square(), (v,))


def test_zeros_of_a_dense_matrix_have_gradients():
    X = DENSE.clone().requires_grad_()
    ls.CSR.from_dense(X, pattern=P).values.sum().backward()
    assert torch.equal(X.grad, ((DENSE + torch.eye(3)) != 0).double())


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
    one, more = ls.CSR(normal((P.nnz,)), P), ls.CSR(normal((1, P.nnz)), P)
    with pytest.raises(
        ValueError, match=r"CSR.stack: the matrices must have the same pattern, but .* matrix 1"
    ):
        ls.CSR.stack([one, ls.CSR.from_dense(DENSE)])
    with pytest.raises(
        ValueError, match=r"CSR.stack: .* one batch shape, got \(1,\) in matrix 1, \(\) in the first"
    ):
        ls.CSR.stack([one, more])


# --- complex matrices ---

SQUARE = ls.CSR.from_scipy(random(6, 6, 0.4))
COMPLEX = SQUARE.to_scipy() * (1 + 2j)
z = torch.complex(SQUARE.values, 2 * SQUARE.values)
Z = SQUARE.with_values(z)
FORMATS = ("csr", "csc", "coo", "bsr", "dia", "dok", "lil")
MADE = {
    "to": lambda: SQUARE.to(torch.complex128).to_dense() * (1 + 2j),
    **{f"from_scipy, {f}": lambda f=f: ls.CSR.from_scipy(COMPLEX.asformat(f)).to_dense() for f in FORMATS},
    "from_scipy on a pattern": lambda: ls.CSR.from_scipy(COMPLEX, pattern=SQUARE.pattern).to_dense(),
    "from_torch, CSR": lambda: ls.CSR.from_torch(Z.to_torch()).to_dense(),
    "from_torch, COO": lambda: ls.CSR.from_torch(Z.to_torch(torch.sparse_coo)).to_dense(),
    "from_dense": lambda: ls.CSR.from_dense(Z.to_dense()).to_dense(),
    "from_dense on a pattern": lambda: ls.CSR.from_dense(Z.to_dense(), pattern=SQUARE.pattern).to_dense(),
    "from_dense of NumPy": lambda: ls.CSR.from_dense(COMPLEX.toarray()).to_dense(),
    "from_coo": lambda: ls.CSR.from_coo(Z.pattern.row_indices, Z.col_indices, z, Z.shape).to_dense(),
    "to_scipy": lambda: torch.from_numpy(Z.to_scipy().toarray()),
    "real and imag": lambda: torch.complex(Z.real.to_dense(), Z.imag.to_dense()),
    "H": lambda: Z.H.to_dense().mT.conj(),
    "conj": lambda: Z.conj().to_dense().conj(),
    "product": lambda: Z @ torch.eye(6, dtype=z.dtype),
    "LinearOperator": lambda: torch.from_numpy(Z.to_scipy_linear_operator() @ np.eye(6)),
    "its adjoint": lambda: torch.from_numpy(Z.to_scipy_linear_operator().H @ np.eye(6)).mT.conj(),
    "a number": lambda: (SQUARE * (1 + 2j)).to_dense(),
}


@pytest.mark.parametrize("make", MADE.values(), ids=list(MADE))
def test_complex_numbers_come_and_go(make):
    torch.testing.assert_close(make(), torch.from_numpy(COMPLEX.toarray()), rtol=1e-15, atol=0)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_a_file_of_complex_numbers(tmp_path, dtype):
    Z.to(dtype).save(tmp_path / "Z")
    found = ls.CSR.load(tmp_path / "Z")
    assert torch.equal(found.values, z.to(dtype))
    assert found.shape == Z.shape


def test_complex_numbers_are_refused_with_the_real_form_as_remedy():
    with pytest.raises(TypeError, match=r"real.*got .*complex.*Im A, Re A.*learnsolve\.ops\.real_equivalent"):
        ls.nn.SparseMatrix(Z)


@pytest.mark.parametrize(
    "drop",
    [lambda: Z.to(torch.float64), lambda: Z.float(), lambda: ls.CSR.from_scipy(COMPLEX, dtype=torch.float64)],
)
def test_no_imaginary_part_is_dropped(drop):
    with pytest.raises(TypeError, match=r"would drop the imaginary parts .*A\.real"):
        drop()


def test_files_with_complex_numbers_are_refused(tmp_path):
    path = tmp_path / "A.mtx"
    scipy.io.mmwrite(path, COMPLEX)
    with pytest.raises(NotImplementedError, match=r"complex .*complex128.*learnsolve\.ops\.real_equivalent"):
        ls.problems.matrix_market(path)


@pytest.mark.parametrize("format", FORMATS)
def test_real_form_multiplies_as_the_complex_matrix(format):
    R = ls.ops.real_equivalent(COMPLEX.astype(np.complex64).asformat(format))
    assert (R.shape, R.nnz, R.dtype) == ((12, 12), 4 * SQUARE.nnz, torch.float32)
    x = np.random.default_rng(0).standard_normal(6) + 1j
    y = torch.complex(*(R.double() @ torch.from_numpy(np.concatenate((x.real, x.imag)))).chunk(2))
    np.testing.assert_allclose(y.numpy(), COMPLEX @ x, rtol=1e-6)


def test_real_form_of_a_hermitian_matrix_is_symmetric():
    assert ls.ops.real_equivalent(COMPLEX + COMPLEX.conj().T).is_symmetric()
    assert not ls.ops.real_equivalent(COMPLEX + COMPLEX.T).is_symmetric()


def scipy_matrix(seed=0):
    S = random(8, 6, 0.4, seed).astype(np.float64)
    S.data[:] = np.random.default_rng(seed).standard_normal(S.nnz)
    return S


SCIPY_FORMATS = ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"]


@pytest.mark.parametrize("kind", [scipy.sparse.csr_array, scipy.sparse.csr_matrix])
@pytest.mark.parametrize("format", SCIPY_FORMATS)
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


A = ls.problems.poisson((4,))
S, D = A.to_scipy(), A.to_dense()
X = torch.linspace(1, 2, 4, dtype=torch.float64)
EDGES = torch.tensor([[0, 1], [1, 2]])
MODULE = ls.nn.SparseMatrix(A)

WORKS = {
    "A.t()": (lambda: A.t(), D),
    "A.size()": (lambda: torch.tensor(A.size()), torch.tensor([4, 4])),
    "A.size(0)": (lambda: torch.tensor(A.size(0)), torch.tensor(4)),
    "abs(A)": (lambda: abs(A), D.abs()),
    "A.toarray()": (lambda: torch.from_numpy(A.clone().requires_grad_().toarray()), D),
    "A @ S": (lambda: A @ S, D @ D),
    "A @ S, csc_matrix": (lambda: A @ scipy.sparse.csc_matrix(S), D @ D),
    "A + S": (lambda: A + S, 2 * D),
    "A - S": (lambda: A - S, 0 * D),
    "array @ A": (lambda: np.ones((2, 4)) @ A, torch.ones(2, 4).double() @ D),
    "bmat": (lambda: ls.ops.block([[A, None], [None, S]]), torch.block_diag(D, D)),
    "zeros": (lambda: A + ls.ops.zeros(4), D),
    "A + eye": (lambda: A + ls.ops.eye(4), D + torch.eye(4)),
    "module(x)": (lambda: MODULE(X), D @ X),
    "x, info = cg(A, array)": (lambda: next(iter(ls.solvers.cg(S, X.numpy(), rtol=1e-12))),
        torch.linalg.solve(D, X)),
    "cg(A, array)[0]": (lambda: ls.solvers.cg(S, X.numpy(), X.numpy(), rtol=1e-12)[0],
        torch.linalg.solve(D, X)),
    "cg(A, array)[1]": (lambda: torch.tensor(ls.solvers.cg(S, X.numpy())[1]), torch.tensor(0)),
}  # fmt: skip


@pytest.mark.parametrize("habit", WORKS)
def test_habits_that_work(habit):
    call, expected = WORKS[habit]
    found = call()
    assert isinstance(found, (torch.Tensor, ls.CSR))
    torch.testing.assert_close(found.to_dense() if isinstance(found, ls.CSR) else found, expected)


ANSWERED = {
    "A.max()": (lambda: A.max(), AttributeError, r"Write A\.values\.max\(\), or with the zeros A\.to_dense"),
    "A.min()": (lambda: A.min(), AttributeError, r"Write A\.values\.min\(\)"),
    "A.mean()": (lambda: A.mean(), AttributeError, r"Write A\.sum\(dim\) / A\.shape\[dim\]"),
    "A.todense()": (lambda: A.todense(), AttributeError, r"Write A\.to_dense\(\)"),
    "A.tocsc()": (lambda: A.tocsc(), AttributeError, r'Write A\.to_scipy\("csc"\)'),
    "A.dot(x)": (lambda: A.dot(X), AttributeError, "Write A @ x"),
    "A.multiply(A)": (lambda: A.multiply(A), AttributeError, r"Write A \* B"),
    "A.transpose()": (lambda: A.transpose(), AttributeError, r"Write A\.T"),
    "A.astype(dtype)": (lambda: A.astype("float32"), AttributeError, r"Write A\.to\(dtype\)"),
    "A.copy()": (lambda: A.copy(), AttributeError, r"Write A\.clone\(\)"),
    "A.data": (lambda: A.data, AttributeError, r"Write A\.values"),
    "A.indptr": (lambda: A.indptr, AttributeError, r"Write A\.crow_indices"),
    "A.indices": (lambda: A.indices, AttributeError, r"Write A\.col_indices"),
    "A.numpy()": (lambda: A.numpy(), AttributeError, r"Write A\.toarray\(\)"),
    "A.mv(x)": (lambda: A.mv(X), AttributeError, "Write A @ x"),
    "A.to_sparse_csr()": (lambda: A.to_sparse_csr(), AttributeError, r"Write A\.to_torch\(\)"),
    "a misspelling": (lambda: A.vlaues, AttributeError, "no attribute 'vlaues'$"),
    "A.crow_indices()": (lambda: A.crow_indices(), TypeError, "'Tensor' object is not callable"),
    "A.values()": (lambda: A.values(), TypeError, "'Tensor' object is not callable"),
    "S @ A": (lambda: S @ A, TypeError, r"write CSR\.from_scipy\(S\) @ A"),
    "spsolve(A, array)": (lambda: ls.ops.spsolve(A, X.numpy()), TypeError, r"torch\.from_numpy"),
    "gcn_norm(data)": (lambda: ls.nn.gcn_norm(SimpleNamespace(edge_index=EDGES)), TypeError,
        r"gcn_norm: .* pass its \.edge_index"),
    "GCNConv(data, x)": (lambda: ls.nn.GCNConv(1, 1)(SimpleNamespace(edge_index=EDGES), torch.ones(3, 1)),
        TypeError, r"GCNConv: .* pass its \.edge_index"),
    "graph_laplacian(data)": (lambda: ls.problems.graph_laplacian(SimpleNamespace(edge_index=EDGES)),
        TypeError, r"graph_laplacian: .* pass its \.edge_index"),
}  # fmt: skip


@pytest.mark.parametrize("habit", ANSWERED)
def test_habits_whose_error_names_what_to_write(habit):
    call, error, words = ANSWERED[habit]
    with pytest.raises(error, match=words):
        call()


@pytest.mark.cpu_only
@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without CUDA")
@pytest.mark.parametrize(
    "move",
    [
        lambda: A.to("cuda"),
        lambda: A.cuda(),
        lambda: A.cuda(0),
        lambda: A.pattern.to("cuda:0"),
        lambda: ls.BlockBatch([A]).to("cuda"),
        lambda: ls.problems.poisson((4,), device="cuda"),
        lambda: ls.CSR.from_scipy(S, device="cuda"),
        lambda: ls.ops.eye(4, device="cuda"),
    ],
)
def test_a_move_to_a_device_that_is_not_there_is_one_sentence(move):
    with pytest.raises(RuntimeError, match=r"torch\.cuda\.is_available\(\) is False.*device=\"cpu\""):
        move()


PRECONDITIONERS = ls.preconditioners
GRID = ls.problems.poisson((6, 6))
RHS = torch.linspace(-1, 1, 36, dtype=torch.float64)


def negated(t):
    """t, as the negative of a tensor of other numbers: of a kind that NumPy does not take."""
    t = torch._neg_view(-t)
    assert t.is_neg()
    return t


def conjugated(t):
    return t.conj().resolve_conj().conj()


@pytest.mark.parametrize(
    "call",
    [
        lambda A, b: PRECONDITIONERS.ICT(A)(b),
        lambda A, b: PRECONDITIONERS.ILUT(A)(b),
        lambda A, b: torch.from_numpy(A.toarray() @ np.ones(36)),
        lambda A, b: torch.from_numpy(A.to_scipy() @ np.ones(36)),
        lambda A, b: ls.solvers.cg(A.to_scipy_linear_operator(), b).x,
        lambda A, b: torch.stack(ls.analysis.extreme_eigenvalues(A)[:2]),
        lambda A, b: ls.eigsh(A, 2).values,
        lambda A, b: ls.solve(A, b).x,
        lambda A, b: ls.problems.TriangleMesh.delaunay(b.reshape(18, 2) ** 3).points,
    ],
)
def test_a_pending_negation(call):
    torch.testing.assert_close(call(GRID.with_values(negated(GRID.values)), negated(RHS)), call(GRID, RHS))


def test_complex_values_with_a_pending_conjugation():
    C = GRID.with_values(torch.complex(GRID.values, torch.linspace(-0.1, 0.1, GRID.nnz, dtype=torch.float64)))
    D, c = C.with_values(conjugated(C.values)), conjugated(torch.complex(RHS, RHS.flip(0)))
    assert D.values.is_conj()
    assert abs(D.to_scipy() - C.to_scipy()).max() == 0
    assert np.array_equal(D.toarray(), C.toarray())
    for call in (
        lambda A, c: ls.solve(A, c).x,
        lambda A, c: ls.ops.spsolve(A, c),
        lambda A, c: A @ c,
        lambda A, c: ls.solvers.gmres(A, c, M=PRECONDITIONERS.ILU(A)).x,
        lambda A, c: ls.factorize(A).solve(c),
    ):
        torch.testing.assert_close(call(D, c), call(C, c.resolve_conj()))


def test_swapped_values_of_another_size_are_refused():
    """`torch.utils.swap_tensors` exchanges a tensor behind the back of the matrix that holds it."""
    for name, call in (
        ("spmm", lambda B: B @ RHS),
        ("diagonal", lambda B: B.diagonal()),
        ("Jacobi", PRECONDITIONERS.Jacobi),
        ("cg", lambda B: ls.solvers.cg(B, RHS)),
        ("solve", lambda B: ls.solve(B, RHS)),
        ("spsolve", lambda B: ls.ops.spsolve(B, RHS)),
        ("transpose", lambda B: B.T),
    ):
        values = GRID.values.clone()
        B = GRID.with_values(values)
        call(B)
        torch.utils.swap_tensors(values, 2 * GRID.values)
        torch.testing.assert_close(ls.solve(B, RHS).x, ls.solve(GRID, RHS).x / 2)
        torch.utils.swap_tensors(values, torch.ones(5, dtype=torch.float64))
        with pytest.raises(ValueError, match=rf"^{name}: A.values has now shape \(5,\)"):
            call(B)


# --- the pattern of a CSR tensor of torch is kept ---


def test_a_tensor_of_torch_is_analyzed_once():
    crow, col = torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1])
    T = torch.sparse_csr_tensor(crow, col, torch.tensor([1.0, 2.0, 3.0]), (2, 2))
    first = ls.CSR.from_torch(T).pattern
    assert ls.CSR.from_torch(T).pattern is first
    other = torch.sparse_csr_tensor(crow, col, torch.ones(3), (2, 2))  # the same storage, other values
    assert ls.CSR.from_torch(other).pattern is first
    torch.testing.assert_close(ls.CSR.from_torch(other).values, torch.ones(3))
    wide = torch.sparse_csr_tensor(crow, col, torch.ones(3), (2, 3))
    assert ls.CSR.from_torch(wide).shape == (2, 3)
    crow.numpy()[1] = 1  # no version of torch's says so
    changed = ls.CSR.from_torch(T)
    torch.testing.assert_close(changed.to_dense(), torch.tensor([[1.0, 0.0], [0.0, 5.0]]))


def test_a_kept_pattern_keeps_no_tensor_alive():
    T = torch.eye(3).to_sparse_csr()
    storages = [StorageWeakRef(t.untyped_storage()) for t in (T.crow_indices(), T.col_indices())]
    ls.CSR.from_torch(T)
    del T
    assert all(storage.expired() for storage in storages)
    others = [torch.eye(n).to_sparse_csr() for n in range(1, 20)]
    patterns = [ls.CSR.from_torch(other).pattern for other in others]
    assert ls.CSR.from_torch(others[-1]).pattern is patterns[-1]
    assert len(convert._patterns) <= convert._MOST
