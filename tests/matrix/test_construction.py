"""From dense matrices and triples, on a pattern, in a stack; complex matrices, which are refused."""

import numpy as np
import pytest
import scipy.sparse
import torch
from reference import normal, random
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls

D = torch.tensor([[4.0, 0.0, 1.0], [0.0, 0.0, 2.0], [0.0, 3.0, 0.0]], dtype=torch.float64)
P = ls.CSR.from_dense(D + torch.eye(3)).pattern


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


def test_gradient_of_from_dense():
    D = torch.tensor([[0.0, 3, 0], [7, 0, 1]], dtype=torch.float64, requires_grad=True)
    A = ls.CSR.from_dense(D)
    (g,) = torch.autograd.grad(A.values, D, torch.tensor([5.0, 6.0, 7.0], dtype=torch.float64))
    assert g.tolist() == [[0, 5, 0], [6, 0, 7]]


def test_dense_round_trip_has_a_derivative():
    v = normal((P.nnz,)).requires_grad_()
    assert gradcheck(
        lambda v: ls.CSR.from_dense(ls.CSR(v, P).to_dense()).values ** 2, (v,), check_forward_ad=True
    )


def test_a_pattern_made_in_a_transformation_outlives_it():
    made = []

    def f(x):
        made.append(ls.CSR.from_dense(D * x.sum()).pattern)
        return x.sum()

    torch.func.grad(f)(normal((3,)))
    A = ls.CSR(torch.ones(made[0].nnz), made[0])
    assert torch.equal(A.to_dense(), (D != 0).float())
    made[0].col_indices[0] = 2
    with pytest.raises(RuntimeError, match="changed in place"):
        A @ torch.ones(3)


@pytest.mark.parametrize(
    "bad", [torch.ones(3), torch.ones(1, 2, 3), np.ones(2), [[1.0]]], ids=["1-D", "3-D", "array", "list"]
)
def test_from_dense_refuses(bad):
    with pytest.raises(TypeError, match=r"CSR.from_dense: D must be a 2-D torch.Tensor"):
        ls.CSR.from_dense(bad)


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
    ("name", "value", "kind", "message"),
    [
        ("rows", torch.tensor([1, 0, 2, 1]), ValueError, r"rows must lie in .* < 2, got rows\[2\] = 2"),
        ("rows", torch.tensor([1, -1, 0, 1]), ValueError, r"rows must lie in .* < 2, got rows\[1\] = -1"),
        ("columns", torch.tensor([0, 1, 2, 3]), ValueError, r"columns must .* < 3, got columns\[3\] = 3"),
        ("rows", torch.tensor([0]), ValueError, r"must have one length, got 1, 4 and shape \(4,\)"),
        ("values", torch.ones(3), ValueError, r"must have one length, got 4, 4 and shape \(3,\)"),
        ("values", torch.ones(()), ValueError, r"must have one length"),
        ("values", torch.ones(4).long(), TypeError, "must be float32 or float64, got torch.int64"),
        ("rows", torch.ones(4), TypeError, "rows and columns must be 1-D tensors of integers"),
        ("rows", torch.ones(4).cfloat(), TypeError, "rows and columns must be 1-D tensors of integers"),
        ("columns", torch.ones(4, 1).long(), TypeError, "rows and columns must be 1-D tensors of integers"),
        ("rows", [1, 0, 1, 1], TypeError, "rows must be a torch.Tensor, got list"),
        ("values", None, TypeError, "values must be a torch.Tensor, got NoneType"),
        ("shape", (2,), ValueError, r"shape must be \(rows, columns\)"),
        ("shape", (-1, 3), ValueError, r"shape must not be negative, got \(-1, 3\)"),
    ],
)
def test_from_coo_refuses(name, value, kind, message):
    arguments = dict(zip(("rows", "columns", "values"), triples(), strict=True))
    with pytest.raises(kind, match=f"^(CSR.)?from_coo: .*{message}"):
        ls.CSR.from_coo(**(arguments | {"shape": (2, 3)} | {name: value}))


# --- on a pattern ---


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
    assert A.to_dense().tolist() == [[0, 0, 3], [0, 0, 0], [0, 5, 0]]
    assert A.pattern is P


def test_data_on_one_pattern_share_plans():
    first, second = (ls.CSR.from_scipy(csr(s * D), pattern=P) for s in (1, 2))
    assert (first @ second).pattern is (second @ first).pattern


def outside(value):
    return scipy.sparse.coo_array((np.array([1.0, value]), ([0, 1], [0, 0])), shape=(3, 3))


LIES = (
    r"every entry \(an explicit zero is one\) must lie on the pattern, .* row 1, column 0, {}, does not; use"
)


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: ls.CSR.from_scipy(outside(7.0), pattern=P), ValueError, LIES.format(7)),
        (lambda: ls.CSR.from_scipy(outside(0.0), pattern=P), ValueError, LIES.format(0)),
        (
            lambda: ls.CSR.from_dense(torch.full((3, 3), 2.0), pattern=P),
            ValueError,
            "every entry must .* row 0, column 1, 2, does not",
        ),
        (
            lambda: ls.CSR.from_scipy(csr(D), pattern=ls.CSR.from_dense(D)),
            TypeError,
            "pattern must be a SparsityPattern, got CSR; that of",
        ),
        (
            lambda: ls.CSR.from_scipy(csr(D), pattern="csr"),
            TypeError,
            "pattern must be a SparsityPattern, got str",
        ),
        (
            lambda: ls.CSR.from_torch(D[:2].to_sparse(), pattern=P),
            ValueError,
            r"the pattern must have the shape \(2, 3\), got",
        ),
        (
            lambda: ls.CSR.from_scipy(csr(D).astype(int), pattern=P),
            TypeError,
            "the values must be float32 or float64, got torch.int64",
        ),
    ],
)
def test_what_does_not_fit_the_pattern_is_refused(make, kind, message):
    with pytest.raises(kind, match=rf"CSR\.from_\w+: {message}"):
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
    for matrices, kind, message in (
        ([A, ls.CSR.from_dense(D)], ValueError, "the matrices must have one pattern, but .* matrix 1"),
        ([A, ls.ops.eye(4).double()], ValueError, "the matrices must have one pattern, but .* matrix 1"),
        (
            [A, A.with_values(A.values.unsqueeze(0))],
            ValueError,
            r".* one batch shape, got \(1,\) in matrix 1, \(\) in the first",
        ),
        ([A, A.float()], TypeError, "matrix 1 has dtype torch.float32"),
        ([], ValueError, "expected at least one matrix"),
    ):
        with pytest.raises(kind, match=f"CSR.stack: {message}"):
            ls.CSR.stack(matrices)


# --- complex matrices ---

A = ls.CSR.from_scipy(random(6, 6, 0.4))
S = A.to_scipy() * (1 + 2j)
z = torch.complex(A.values, 2 * A.values)
Z = A.with_values(z)
FORMATS = ("csr", "csc", "coo", "bsr", "dia", "dok", "lil")
MADE = {
    "to": lambda: A.to(torch.complex128).to_dense() * (1 + 2j),
    **{f"from_scipy, {f}": lambda f=f: ls.CSR.from_scipy(S.asformat(f)).to_dense() for f in FORMATS},
    "from_scipy on a pattern": lambda: ls.CSR.from_scipy(S, pattern=A.pattern).to_dense(),
    "from_torch, CSR": lambda: ls.CSR.from_torch(Z.to_torch()).to_dense(),
    "from_torch, COO": lambda: ls.CSR.from_torch(Z.to_torch(torch.sparse_coo)).to_dense(),
    "from_dense": lambda: ls.CSR.from_dense(Z.to_dense()).to_dense(),
    "from_dense on a pattern": lambda: ls.CSR.from_dense(Z.to_dense(), pattern=A.pattern).to_dense(),
    "from_dense of NumPy": lambda: ls.CSR.from_dense(S.toarray()).to_dense(),
    "from_coo": lambda: ls.CSR.from_coo(Z.pattern.row_indices, Z.col_indices, z, Z.shape).to_dense(),
    "to_scipy": lambda: torch.from_numpy(Z.to_scipy().toarray()),
    "real and imag": lambda: torch.complex(Z.real.to_dense(), Z.imag.to_dense()),
    "H": lambda: Z.H.to_dense().mT.conj(),
    "conj": lambda: Z.conj().to_dense().conj(),
    "product": lambda: Z @ torch.eye(6, dtype=z.dtype),
    "LinearOperator": lambda: torch.from_numpy(Z.to_scipy_linear_operator() @ np.eye(6)),
    "its adjoint": lambda: torch.from_numpy(Z.to_scipy_linear_operator().H @ np.eye(6)).mT.conj(),
    "a number": lambda: (A * (1 + 2j)).to_dense(),
}


@pytest.mark.parametrize("make", MADE.values(), ids=list(MADE))
def test_complex_numbers_come_and_go(make):
    torch.testing.assert_close(make(), torch.from_numpy(S.toarray()), rtol=1e-15, atol=0)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_a_file_of_complex_numbers(tmp_path, dtype):
    Z.to(dtype).save(tmp_path / "Z")
    found = ls.CSR.load(tmp_path / "Z")
    assert torch.equal(found.values, z.to(dtype))
    assert found.shape == Z.shape


REFUSED = {
    "SparseMatrix": lambda: ls.nn.SparseMatrix(Z),
    "diffusion": lambda: ls.problems.diffusion(1j * torch.ones(3, 3)),
    "segment_softmax": lambda: ls.ops.segment_softmax(z, A.pattern),
}


@pytest.mark.parametrize("make", REFUSED.values(), ids=list(REFUSED))
def test_complex_numbers_are_refused_with_the_real_form_as_remedy(make):
    with pytest.raises(TypeError, match=r"real.*got .*complex.*Im A, Re A.*learnsolve\.ops\.real_form"):
        make()


@pytest.mark.parametrize(
    "drop",
    [lambda: Z.to(torch.float64), lambda: Z.float(), lambda: ls.CSR.from_scipy(S, dtype=torch.float64)],
)
def test_no_imaginary_part_is_dropped(drop):
    with pytest.raises(TypeError, match=r"would drop the imaginary parts .*A\.real"):
        drop()


def test_files_with_complex_numbers_are_refused(tmp_path):
    path = tmp_path / "A.mtx"
    scipy.io.mmwrite(path, S)
    with pytest.raises(NotImplementedError, match=r"complex .*complex128.*learnsolve\.ops\.real_form"):
        ls.problems.matrix_market(path)


@pytest.mark.parametrize("format", FORMATS)
def test_real_form_multiplies_as_the_complex_matrix(format):
    R = ls.ops.real_form(S.astype(np.complex64).asformat(format))
    assert (R.shape, R.nnz, R.dtype) == ((12, 12), 4 * A.nnz, torch.float32)
    x = np.random.default_rng(0).standard_normal(6) + 1j
    y = torch.complex(*(R.double() @ torch.from_numpy(np.concatenate((x.real, x.imag)))).chunk(2))
    np.testing.assert_allclose(y.numpy(), S @ x, rtol=1e-6)


def test_real_form_of_a_hermitian_matrix_is_symmetric():
    assert ls.ops.real_form(S + S.conj().T).is_symmetric()
    assert not ls.ops.real_form(S + S.T).is_symmetric()
