"""Triangles, stacks, Kronecker products, indexing, norms, scaling: SciPy as reference, patterns, errors."""

import itertools

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
import torch
from reference import densify, matrix, normal, pattern_of, random, small_pattern, structures
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls
from learnsolve import ops

STRUCTURES = structures()
every_structure = pytest.mark.parametrize("structure", STRUCTURES)


both_indices = pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=["int32", "int64"])


def check(found, wanted, index):
    """The values, every entry (SciPy's own are its nonzeros here), sorted, of the index type of the input."""
    wanted = scipy.sparse.csr_array(wanted)
    wanted.sort_indices()
    assert found.shape == wanted.shape
    assert found.pattern.dtype == index
    P = ls.SparsityPattern(found.crow_indices, found.col_indices, found.shape)  # validates
    assert P.nnz == wanted.nnz
    np.testing.assert_array_equal(found.col_indices.cpu().numpy(), wanted.indices)
    np.testing.assert_array_equal(found.values.cpu().numpy(), wanted.data)


@every_structure
@both_indices
def test_parts_agree_with_scipy(structure, index):
    A = matrix(STRUCTURES[structure], 1, index)
    S = A.to_scipy()
    for k in (-2, 0, 1, 99, -99):
        check(A.tril(k), scipy.sparse.tril(S, k), index)
        check(A.triu(k), scipy.sparse.triu(S, k), index)
        if min(S.shape) and -S.shape[0] < k < S.shape[1]:
            np.testing.assert_array_equal(A.diagonal(k).cpu().numpy(), S.diagonal(k))
        else:
            assert A.diagonal(k).shape == (0,)
    assert A.trace().item() == pytest.approx(S.trace() if min(S.shape) else 0)
    check(abs_ := A.abs(), abs(S), index)
    np.testing.assert_allclose((abs_**1.5).values, abs(S).power(1.5).data)


@every_structure
@both_indices
def test_arrangements_agree_with_scipy(structure, index):
    A, B = (matrix(STRUCTURES[structure], seed, index) for seed in (1, 2))
    C = ls.CSR(normal((A.nnz,), seed=3), A.pattern)
    M = [X.to_scipy() for X in (A, B, C)]
    check(ops.hstack([A, B, C]), scipy.sparse.hstack(M), index)
    check(ops.vstack([A, B, C]), scipy.sparse.vstack(M), index)
    check(ops.block_diag([A, B.T, C]), scipy.sparse.block_diag([M[0], M[1].T, M[2]]), index)
    grid = [[A, None, B @ B.T], [None, B.T, C.T], [B, None, None]]
    check(
        ops.block(grid),
        scipy.sparse.block_array([[X if X is None else X.to_scipy() for X in row] for row in grid]),
        index,
    )
    small = matrix(random(3, 2, 0.7), 4, index)
    check(ops.kron(A, small), scipy.sparse.kron(M[0], small.to_scipy(), "csr"), index)
    check(ops.kron(small, A), scipy.sparse.kron(small.to_scipy(), M[0], "csr"), index)


def keys(n):
    rng = np.random.default_rng(0)
    yield from (slice(None), slice(1, -1), slice(None, None, -2), slice(3, 1), slice(99, None, -1))
    if n:
        yield from (np.arange(n)[::-1], rng.integers(-n, n, 7), torch.tensor([0, n - 1, 0]), [-1, 0])
    yield from (rng.random(n) < 0.5, torch.zeros(n, dtype=torch.bool), [])


@pytest.mark.few
@every_structure
@both_indices
def test_submatrices_agree_with_numpy(structure, index):
    A = matrix(STRUCTURES[structure], 1, index)
    D = A.to_dense()
    for rows, columns in itertools.product(keys(A.shape[0]), keys(A.shape[1])):
        i, j = (
            np.arange(n)[np.asarray(k, dtype=None if len(k) else int) if not isinstance(k, slice) else k]
            for k, n in zip((rows, columns), A.shape, strict=True)
        )
        found = A[rows][:, columns]
        assert torch.equal(found.to_dense(), D[torch.as_tensor(i.copy())][:, torch.as_tensor(j.copy())])
        assert found.pattern.dtype == index
        again = ls.SparsityPattern(found.crow_indices, found.col_indices, found.shape)
        pattern = A.with_values(torch.ones_like(A.values)).to_dense()[torch.as_tensor(i.copy())]
        assert again.nnz == int(pattern[:, torch.as_tensor(j.copy())].sum())


@every_structure
def test_entries_agree_with_numpy(structure):
    A = matrix(STRUCTURES[structure], 1)
    m, n = A.shape
    D = A.to_dense()
    assert A[:].pattern is A.pattern
    if not m or not n:
        return
    rng = np.random.default_rng(1)
    i, j = rng.integers(-m, m, 30), rng.integers(-n, n, 30)
    assert torch.equal(A[i, j], D[i, j])
    assert torch.equal(A[torch.as_tensor(i), 0], D[i, 0])
    assert torch.equal(A[np.ix_(i, j)].to_dense(), D[np.ix_(i, j)])
    for mask in (D > 0, D.isnan(), torch.ones_like(D, dtype=torch.bool)):
        assert torch.equal(A[mask], D[mask])
        assert torch.equal(A[mask.numpy()], D[mask])
    for a, b in zip(i.tolist(), j.tolist(), strict=True):
        assert A[a, b].shape == ()
        assert A[a, b] == D[a, b]
        assert torch.equal(A[a], D[a])
        assert torch.equal(A[:, np.int64(b)], D[:, b])
        assert torch.equal(A[torch.tensor(a), 1:], D[a, 1:])


def test_explicit_zeros_stay():
    P = pattern_of(random(6, 6, 0.6))
    A = ls.CSR(torch.zeros(P.nnz, dtype=torch.float64), P)
    assert A.tril(-1).nnz + A.triu().nnz == A[::-1].nnz == ops.permute(A, np.arange(6)).nnz == A.nnz
    assert ops.kron(A, A).nnz == A.nnz**2
    assert ops.hstack([A, A]).nnz == ops.vstack([A, A]).nnz == ops.block_diag([A, A]).nnz == 2 * A.nnz
    assert A.abs().nnz == (A**2).nnz == ops.diag(torch.zeros(3)).nnz * A.nnz // 3


def test_batches_stay_in_front():
    P = pattern_of(random(6, 5, 0.5))
    for batch in ((2, 3), (0,)):
        A = ls.CSR(normal((*batch, P.nnz)), P)
        D = A.to_dense()
        assert torch.equal(A[1:, ::-1].to_dense(), D[..., 1:, :].flip(-1))
        assert torch.equal(A[[0, 0]][:, [1, 1]].to_dense(), D[..., [0, 0], :][..., [1, 1]])
        assert torch.equal(A[2], D[..., 2, :])
        assert torch.equal(A[2, 3], D[..., 2, 3])
        assert torch.equal(A.tril().to_dense(), D.tril())
        assert torch.equal(
            ops.hstack([A, A.with_values(A.values[0, ...] if batch[0] else A.values)]).to_dense()[..., :5], D
        )
        assert ops.kron(A, A).batch_shape == batch
        assert ops.norm(A, dim=1).shape == (*batch, 6)


def test_the_same_pattern_in_every_call():
    P = pattern_of(random(6, 6, 0.5))
    A, B = (ls.CSR(normal((P.nnz,), seed=s), P) for s in (0, 1))
    for f in (
        ops.tril, lambda X: X.triu(1), lambda X: X[1:, ::-1], lambda X: ops.kron(X, X),
        lambda X: ops.hstack([X, X]), lambda X: ops.vstack([X, X]), lambda X: ops.block_diag([X, X.T]),
    ):  # fmt: skip
        assert f(A).pattern is f(B).pattern
    assert ops.eye(2, 3, k=9).nnz == ops.eye(2, 3, k=-9).nnz == 0
    assert ops.eye(4).pattern is ops.diag(torch.ones(4)).pattern
    assert ops.tril(ops.tril(A)).pattern is ops.tril(A).pattern
    lower = ops.tril(A, -1) + ops.triu(A)
    assert lower.nnz == A.nnz


def test_eye_and_permute():
    for n, m, k in ((4, None, 0), (3, 5, 1), (5, 3, -2), (0, 0, 0)):
        found = ops.eye(n, m, k=k, dtype=torch.float64, index_dtype=torch.int32)
        check(found, scipy.sparse.eye_array(n, m, k=k), torch.int32)
    check(ops.zeros(3, 5, index_dtype=torch.int32), scipy.sparse.csr_array((3, 5)), torch.int32)
    A = matrix(random(6, 6, 0.5))
    p = np.random.default_rng(0).permutation(6)
    D = A.to_dense()
    assert torch.equal(ops.permute(A, p).to_dense(), D[p][:, p])
    assert torch.equal(ops.permute(A, torch.as_tensor(p), range(6)).to_dense(), D[p])


# --- errors ---
A = matrix(random(6, 5, 0.5))
Q = matrix(random(5, 5, 0.5))
BAD = [
    (lambda: ops.tril(torch.ones(2, 2)), TypeError, "tril: A must be a CSR, got Tensor"),
    (lambda: A.triu(0.5), TypeError, "triu: k must be an int, got float"),
    (lambda: ops.eye(-1), ValueError, "eye: n must be at least 0, got -1"),
    (lambda: ops.eye(2, index_dtype=torch.float32), ValueError, "eye: index_dtype"),
    (lambda: ops.diag(torch.tensor(1.0)), ValueError, "diag: d must have shape"),
    (lambda: ops.hstack([]), ValueError, "hstack: expected at least one matrix"),
    (lambda: ops.vstack(A), TypeError, "vstack: expected a list of CSR"),
    (lambda: ops.hstack([A, Q]), ValueError, "hstack: .*6 rows .*got 5 in matrix 1"),
    (lambda: ops.vstack([A, A.T]), ValueError, "vstack: .*5 columns .*got 6 in matrix 1"),
    (lambda: ops.vstack([A, A.to(torch.float32)]), TypeError, "matrix 1 has dtype"),
    (lambda: ops.block(A), TypeError, "block: expected a list of rows"),
    (lambda: ops.block([A, A]), TypeError, "block: expected a list of rows"),
    (lambda: ops.block([]), ValueError, "block: expected at least one matrix"),
    (lambda: ops.block([[A, A], [A]]), ValueError, r"block: rows must have equal length, got \[2, 1\]"),
    (lambda: ops.block([[A, None], [A, None]]), ValueError, r"block: column 1 .* put ops.zeros\(rows"),
    (lambda: ops.block([[None], [A]]), ValueError, "block: row 0 has no matrix"),
    (lambda: ops.block([[A, None], [Q, A]]), ValueError, "block: .*5 rows .*got 6 in matrix 2"),
    (lambda: ops.zeros(2, -1), ValueError, "zeros: m must be at least 0, got -1"),
    (lambda: ops.kron(A, A.to(torch.float32)), TypeError, "kron: B.values has dtype"),
    (lambda: A[6], IndexError, "index 6 is out of range for an axis of length 6"),
    (lambda: A[0, -6], IndexError, "index -6 is out of range .* 5"),
    (lambda: A[[0, 9]], IndexError, "index 9 is out of range"),
    (lambda: A[0, 0, 0], IndexError, "two axes, got 3"),
    (lambda: A[np.ones((5, 5), bool)], IndexError, r"mask of entries must have A's shape \(6, 5\)"),
    (lambda: A[np.ones(5, bool)], IndexError, r"mask must have .* length 6, got shape \(5,\)"),
    (lambda: A[1.5], IndexError, "A.*an index must be an int"),
    (lambda: A[None], IndexError, "None is no index"),
    (lambda: A[[0, 1], [0, 1, 2]], IndexError, r"must broadcast, .*A\[rows\]\[:, columns\]"),
    (lambda: ops.permute(Q, [0, 1, 2, 3, 3]), ValueError, "permute: p must hold .* 4 once"),
    (lambda: ops.permute(A, range(6)), ValueError, "permute: q may be left out"),
    (lambda: ops.permute(A, range(6), range(6)), ValueError, "q must hold .* 4 once"),
    (lambda: ops.permute(Q, None), TypeError, "permute: p must be an array .* got None"),
    (lambda: ops.permute(Q, [0, [1]]), TypeError, "permute: p must be an array of int"),
    (lambda: A[()], IndexError, "expected one or two indices, got none"),
    (lambda: A[[0, [1]]], IndexError, r"an index must be an array, got \[0, \[1\]\]"),
    (lambda: A[np.array([2**64 - 1], np.uint64)], IndexError, "index 18446744073709551615"),
    (lambda: list(A), TypeError, "not iterable"),
    (lambda: A**-1, ValueError, "exponent must be a positive number, got -1"),
    (lambda: A.norm(2), ValueError, "norm: ord must be one of"),
    (lambda: A.norm(dim=2), ValueError, "norm: dim must be one of"),
    (lambda: ops.symmetric_scaling(A), ValueError, r"symmetric_scaling: A must be square"),
    (
        lambda: ops.symmetric_scaling(-1.0 * ops.eye(3)),
        ValueError,
        "symmetric_scaling: all diagonal entries must be positive and finite, row 0 has -1",
    ),
    (
        lambda: ops.symmetric_scaling(0.0 * ops.eye(3), "row_sums"),
        ValueError,
        "symmetric_scaling: all row sums must be positive and finite, row 0 has 0",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "message"), BAD)
def test_bad_argument(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def test_integers_of_numpy():
    one, three = np.int64(1), np.int32(3)
    E = ops.eye(three, np.int64(4), k=one)
    assert E.pattern is ops.eye(3, 4, k=1).pattern
    assert all(type(size) is int for size in E.shape)
    assert A.tril(one).pattern is A.tril(1).pattern
    assert torch.equal(ops.diagonal(A, one), ops.diagonal(A, 1))
    assert ops.diag(torch.ones(2), one).shape == (3, 3)
    with pytest.raises(TypeError, match="eye: n must be an int, got bool"):
        ops.eye(True)


# --- norms and scaling ---
NORMS = {
    "frobenius": (lambda A: ops.norm(A), lambda D: D.square().sum().sqrt()),
    "rows": (lambda A: A.norm(dim=1), lambda D: torch.linalg.vector_norm(D, dim=-1)),
    "columns": (lambda A: A.norm(2, 0), lambda D: torch.linalg.vector_norm(D, dim=-2)),
    "rows, 1": (lambda A: A.norm(1, -1), lambda D: D.abs().sum(-1)),
    "columns, 1": (lambda A: A.norm(1, -2), lambda D: D.abs().sum(-2)),
    "largest column sum": (lambda A: A.norm(1), lambda D: D.abs().sum(-2).amax()),
    "largest row sum": (lambda A: A.norm(float("inf")), lambda D: D.abs().sum(-1).amax()),
    "power": (lambda A: (A.abs() ** 1.5).values.sum(), lambda D: (D * D + 1e-300).pow(0.75).sum()),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms(name, quick):
    """With empty rows and columns, whose norm has the gradient zero, and not NaN."""
    sparse, dense = NORMS[name]
    for dtype in (torch.float32, torch.float64):
        for index in (torch.int32, torch.int64):
            P = small_pattern(index)
            A = ls.CSR(normal((P.nnz,), dtype), P)
            torch.testing.assert_close(sparse(A), dense(A.to_dense()))
    v = normal((P.nnz,)).requires_grad_()

    def f(v):
        return sparse(ls.CSR(v, P))

    assert gradcheck(f, v, check_forward_ad=True, check_batched_grad=True, fast_mode=quick)
    assert gradgradcheck(f, v, check_fwd_over_rev=True, check_batched_grad=True, fast_mode=quick)
    batch = normal((3, P.nnz), seed=5)
    one_by_one = torch.stack([f(b) for b in batch])
    torch.testing.assert_close(torch.vmap(f)(batch), one_by_one)
    if name != "power":
        torch.testing.assert_close(f(batch), one_by_one)
    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(v), f(v))


@pytest.mark.parametrize("dim", [None, 0, 1])
def test_norm_of_zeros_has_no_nan(dim):
    P = small_pattern()
    v = torch.zeros(P.nnz, dtype=torch.float64)
    f = lambda v: ops.norm(ls.CSR(v, P), dim=dim).sum()  # noqa: E731
    assert torch.equal(torch.func.grad(f)(v), torch.zeros_like(v))
    assert torch.equal(torch.func.hessian(f)(v), torch.zeros(P.nnz, P.nnz).double())


@pytest.mark.parametrize("dim", [None, 1])
def test_where_norms_leave_the_range(dim):
    """As the docstring says: small entries count as zeros, without a NaN, large ones give infinity."""
    for dtype, small, large in ((torch.float64, 1e-200, 1e155), (torch.float32, 1e-25, 1e20)):
        A = ops.eye(2, dtype=dtype)
        v = torch.full((2,), small, dtype=dtype, requires_grad=True)
        found = A.with_values(v).norm(dim=dim).sum()
        assert found == 0
        assert torch.equal(torch.autograd.grad(found, v)[0], torch.zeros_like(v))
        assert A.with_values(torch.full((2,), large, dtype=dtype)).norm(dim=dim).isinf().all()
        s = 1 / small
        wanted = torch.full((), small, dtype=dtype) * (2**0.5 if dim is None else 1)
        scaled = (A.with_values(v.detach()) * s).norm(dim=dim) / s
        torch.testing.assert_close(scaled, wanted.expand(scaled.shape), rtol=1e-6, atol=0)


@every_structure
def test_norms_agree_with_scipy(structure):
    A = matrix(STRUCTURES[structure], 1)
    if not min(A.shape):
        assert all(A.norm(o).item() == 0 for o in (None, 1, float("inf")))
        return
    S = A.to_scipy()
    for o, axis in ((None, None), (1, None), (np.inf, None), (2, 0), (2, 1), (1, 0), (1, 1)):
        np.testing.assert_allclose(A.norm(o, axis), scipy.sparse.linalg.norm(S, o, axis), rtol=1e-14, atol=0)


@pytest.mark.parametrize("by", ["diagonal", "row_sums"])
def test_symmetric_scaling(by):
    P = pattern_of(random(5, 5, 0.5) + scipy.sparse.eye_array(5))
    v = (normal((P.nnz,)).abs() + 0.5).requires_grad_()

    def dense(v):
        D = densify(P, v)
        d = (torch.diagonal(D, dim1=-2, dim2=-1) if by == "diagonal" else D.sum(-1)).rsqrt()
        return d.unsqueeze(-1) * D * d.unsqueeze(-2)

    def f(v):
        return ops.symmetric_scaling(ls.CSR(v, P), by)

    torch.testing.assert_close(f(v).to_dense(), dense(v))
    g = normal((5, 5), seed=2)
    torch.testing.assert_close(
        *(torch.autograd.grad(h(v), v, g)[0] for h in (lambda v: f(v).to_dense(), dense))
    )
    assert gradcheck(lambda v: f(v).values, v, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(lambda v: f(v).values, v, check_fwd_over_rev=True)
    batch = v.detach() * torch.tensor([[1.0], [2.0]])
    torch.testing.assert_close(f(batch).values, torch.vmap(lambda v: f(v).values)(batch))


NO_MATRIX = ("diagonal", "trace", "sum", "transpose", "inverse_diagonal", "scale_rows", "scale_columns")


@pytest.mark.parametrize("name", NO_MATRIX)
def test_what_is_no_matrix_is_refused(name):
    for other in (torch.ones(2, 2), "A", None, A.pattern):
        message = f"^{name}: A must be a CSR, got {type(other).__name__}; make one with"
        with pytest.raises(TypeError, match=message):
            getattr(ops, name)(other, *[torch.ones(2)] * ("scale" in name))
