"""Triangles, stacks, Kronecker products, indexing, norms, scaling, blocks: SciPy as reference;
sparse matrices of other libraries as arguments; the words of errors."""

import ast
import copy
import functools
import inspect
import itertools
import pickle

import numpy as np
import ops_stub
import pytest
import scipy.sparse
import scipy.sparse.linalg
import torch
from reference import densify, matrix, normal, pattern_of, random, small_pattern, structures
from registry import beside, outputs
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
INTEGERS = A.to(torch.int64)
SINGLE, BATCH = A.to(torch.float32), ls.CSR(normal((2, A.nnz)), A.pattern)
ONES = torch.ones(20, dtype=torch.float64)
# Each remedy and each rule of two arguments once; tests/properties ask of every call that
# it names a bad argument.
BAD = [
    # products
    (lambda: ops.spmm([[1.0]], ONES), TypeError, r"A must be a CSR, got .*CSR\.from_scipy, CSR\.from_torch"),
    (lambda: ops.spmm(A, torch.eye(5).to_sparse()), TypeError, r"layout torch.sparse_coo\. .*CSR.from_torch"),
    (lambda: ops.spmm(BATCH, normal((3, 5, 1))), ValueError, r"spmm: .*\(?2,?\)?.*\(?3"),
    (lambda: INTEGERS @ ONES[:5].long(), TypeError, "A.values must be float32 or float64"),
    (lambda: A.to(torch.complex64) @ ONES[:5], TypeError, "x has dtype torch.float64, the .*complex64"),
    (lambda: A.to(torch.complex32) @ ONES, TypeError, "must be complex64 or complex128, got torch.complex32"),
    (lambda: [1.0] * 6 @ A, TypeError, "x @ A: x must be a torch.Tensor or a NumPy array, got list"),
    (lambda: ONES[:5] @ A, ValueError, r"A.shape\[0\] = 6"),
    (lambda: ops.sddmm(normal((6, 2)), normal((5, 3)), A), ValueError, r"sddmm: .*got \(6, 2\) and"),
    (lambda: ops.sddmm(ONES[:6], ONES[:5], [A]), TypeError, "must be a SparsityPattern or a CSR, got list"),
    (lambda: ops.sddmm(normal((2, 6, 1)), normal((3, 5, 1)), A), ValueError, "sddmm: .*2.*3"),
    # sums, scalings
    (lambda: A + 1, TypeError, r"A \+ B: B must be a CSR, got int"),
    (lambda: 1 + A, TypeError, "unsupported operand"),
    (lambda: A - 1.0, TypeError, "A - B: B must be a CSR, got float: .*A.values"),
    (lambda: ONES[:6] + A, TypeError, "unsupported operand"),
    (lambda: A * A.T, ValueError, r"A \* B: .*\(6, 5\) and \(5, 6\)"),
    (lambda: A + SINGLE, TypeError, r"A \+ B: B.values has dtype"),
    (lambda: BATCH + ls.CSR(normal((3, A.nnz)), A.pattern), ValueError, r"A \+ B: the batch axes"),
    (lambda: A * torch.full((1, 1), 2j), TypeError, "s has dtype torch.complex64, the matrix torch.float64"),
    (lambda: A * ONES[:5], TypeError, r"A \* B: .*\(5,\).*scale_rows"),
    (lambda: A / A, TypeError, "A / s: .*CSR"),
    (lambda: 1 / A, TypeError, "unsupported operand"),
    (lambda: BATCH * normal((3, 1)), ValueError, ".*2.*3"),
    (lambda: ops.add(A, A, alpha=ONES[:3]), TypeError, r"add: alpha must be a number or .*\(3,\)"),
    (lambda: ops.add(SINGLE, SINGLE, alpha=normal((2, 1))), TypeError, "add: alpha .*float64.*float32"),
    (lambda: A.scale_rows(ONES[0]), ValueError, r"scale_rows: .*A \* s"),
    (lambda: BATCH.scale_rows(normal((3, 6))), ValueError, "scale_rows: .*2.*3"),
    (lambda: ops.transpose(ONES), TypeError, "transpose: A must be a CSR, got Tensor. Make one with"),
    (lambda: ops.symmetric_scaling(0.0 * ops.eye(3), "row_sums"), ValueError, "all row sums .* row 0 has 0"),
    # parts and arrangements
    (lambda: ops.zeros(2, -1), ValueError, "zeros: m must be at least 0, got -1"),
    (lambda: ops.hstack([]), ValueError, "hstack: matrices must hold at least one matrix"),
    (lambda: ops.hstack([A, Q]), ValueError, "hstack: .*6 rows .*got 5 in matrix 1"),
    (lambda: ops.vstack([A, A.T]), ValueError, "vstack: .*5 columns .*got 6 in matrix 1"),
    (lambda: ops.vstack([A, SINGLE]), TypeError, "matrix 1 has dtype"),
    (lambda: ops.block([[A, A], [A]]), ValueError, r"block: rows must have equal length, got \[2, 1\]"),
    (lambda: ops.block([[A, None], [A, None]]), ValueError, r"block: column 1 .* Put ops.zeros\(rows"),
    (lambda: ops.block([[None], [A]]), ValueError, "block: row 0 has no matrix"),
    (lambda: ops.block([[A, None], [Q, A]]), ValueError, "block: .*5 rows .*got 6 in matrix 2"),
    (lambda: A[6], IndexError, "index 6 is out of range for an axis of length 6"),
    (lambda: A[0, 0, 0], IndexError, "two axes, got 3"),
    (lambda: A[np.ones((5, 5), bool)], IndexError, r"mask of entries must have A's shape \(6, 5\)"),
    (lambda: A[np.ones(5, bool)], IndexError, r"mask must have .* length 6, got shape \(5,\)"),
    (lambda: A[1.5], IndexError, "A.*an index must be an int"),
    (lambda: A[None], IndexError, "None is not an index"),
    (lambda: A[[0, 1], [0, 1, 2]], IndexError, r"must broadcast, .*A\[rows\]\[:, columns\]"),
    (lambda: A[()], IndexError, "expected one or two indices, got none"),
    (lambda: A[[0, [1]]], IndexError, r"an index must be an array, got \[0, \[1\]\]"),
    (lambda: A[np.array([2**64 - 1], np.uint64)], IndexError, "index 18446744073709551615"),
    (lambda: list(A), TypeError, "not iterable"),
    (lambda: ops.permute(Q, None), TypeError, "permute: p must be an array .* got None"),
    (
        lambda: ops.real_equivalent(A),
        TypeError,
        "real_equivalent: without im, re must be a complex .*got CSR of torch",
    ),
    # blocks
    (lambda: ls.BlockBatch([]), ValueError, "BlockBatch: matrices must hold at least one matrix"),
    (lambda: ls.BlockBatch([Q, Q.to(torch.float32)]), TypeError, "matrix 1 has dtype torch.float32"),
    (lambda: ls.BlockBatch([Q, A]), ValueError, r"matrix 1 must be square, got shape \(6, 5\)"),
    (lambda: ls.BlockBatch([Q, ls.CSR.stack([Q, Q])]), ValueError, r"no batch axes, matrix 1 has \(2,\)"),
    (lambda: batch().with_values(torch.ones(2, 4)), ValueError, r"\(nnz,\) = \(102,\), got \(2, 4\)"),
    (lambda: list(batch()), TypeError, "BlockBatch"),
    (lambda: batch().split(batch().matrix.values), ValueError, r"rows must have .* = 28, got \(102,\)"),
    (lambda: batch().split(normal((28,)), entries=True), ValueError, r"the entries .* = 102, got \(28,\)"),
    (lambda: batch().split(ls.CSR.from_dense(torch.ones(28, 28))), ValueError, "one in row 0, column 2"),
    (lambda: batch().split(GRID), ValueError, r"must have the shape \(28, 28\), got \(16, 16\)"),
    (lambda: ls.collate([(Q, ONES[:5]), (Q,)]), ValueError, r"as many parts as each other, got \[1, 2\]"),
    (lambda: ls.collate([(ONES, Q)]), TypeError, "the matrix of sample 0 must be a CSR, got Tensor"),
    (lambda: ls.collate([(Q, ONES)]), ValueError, r"part 1 of sample 0 must .* n = 5, .* got \(20,\)"),
    (lambda: ls.collate([(Q, ONES[:5]), (Q, None)]), TypeError, "part 1 of sample 1 .* got NoneType"),
    (lambda: ls.collate(matrices(), stack=True), ValueError, "the matrices must have the same pattern"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "message"), BAD)
def test_bad_argument(call, kind, message):
    with pytest.raises(Exception, match=message) as caught:
        call()
    assert type(caught.value) is kind, f"{type(caught.value).__name__}: {caught.value}"


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
    for M in (A, A.with_values(A.values * (1 - 2j))):
        S = M.to_scipy()
        for o, axis in ((None, None), (1, None), (np.inf, None), (2, 0), (2, 1), (1, 0), (1, 1)):
            wanted = scipy.sparse.linalg.norm(S, o, axis)
            np.testing.assert_allclose(M.norm(o, axis), wanted, rtol=1e-14, atol=0)


@pytest.mark.parametrize("by", ["diagonal", "row_sums"])
def test_symmetric_scaling(by):
    P = pattern_of(random(5, 5, 0.5) + scipy.sparse.eye_array(5))
    v = (normal((P.nnz,)).abs() + 0.5).requires_grad_()

    def dense(v):
        D = densify(P, v)
        d = (torch.diagonal(D, dim1=-2, dim2=-1) if by == "diagonal" else D.sum(-1)).rsqrt()
        return d.unsqueeze(-1) * D * d.unsqueeze(-2)

    torch.testing.assert_close(ops.symmetric_scaling(ls.CSR(v, P), by).to_dense(), dense(v))


GRID = ls.problems.poisson((4, 4))
OPERATIONS = [
    name
    for name in ls.ops.__all__
    if inspect.isfunction(f := getattr(ls.ops, name))
    and any("CSR" in str(p.annotation) for p in inspect.signature(f).parameters.values())
]


def converted(convert, value):
    if isinstance(value, list):
        return [converted(convert, part) for part in value]
    return convert(value) if isinstance(value, ls.CSR) else value


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_takes_sparse_matrices_of_other_libraries(name):
    f = getattr(ls.ops, name)
    given = beside(name, f) | {"sddmm": {"pattern": GRID}, "real_equivalent": {"im": GRID}}.get(name, {})
    expected = outputs(f(**given))
    assert expected
    assert any(isinstance(value, (ls.CSR, list)) for value in given.values())
    for convert in (ls.CSR.to_scipy, ls.CSR.to_torch, ls.nn.SparseMatrix):
        turned = {key: converted(convert, value) for key, value in given.items()}
        torch.testing.assert_close(outputs(f(**turned)), expected)
    by_place = [converted(ls.CSR.to_scipy, value) for value in given.values()]
    torch.testing.assert_close(outputs(f(*by_place)), expected)


def test_gradients_arrive_at_a_sparse_tensor():
    T = GRID.to_torch().requires_grad_()
    b = torch.linspace(1, 2, 16, dtype=torch.float64)
    (ls.ops.spsolve(T, b).sum() + ls.ops.spmm(T, b).square().sum()).backward()
    values = GRID.values.clone().requires_grad_()
    B = GRID.with_values(values)
    (ls.ops.spsolve(B, b).sum() + ls.ops.spmm(B, b).square().sum()).backward()
    torch.testing.assert_close(T.grad.values(), values.grad)


def test_operations_are_pickled_by_name():
    assert pickle.loads(pickle.dumps(ls.ops.spmm)) is ls.ops.spmm


def test_evaluate_takes_them():
    S, b = GRID.to_scipy(), np.ones(16)
    rows = []
    for sparse_matrix, right in (
        (GRID, torch.from_numpy(b)),
        (S, b),
        (GRID.to_torch(), b),
        ([S, GRID.to_dense()], [b, b]),
    ):
        result = ls.compare_preconditioners(
            sparse_matrix, right, {"Jacobi": ls.preconditioners.Jacobi}, rtol=1e-6, repeats=1
        )
        rows.append((result.rows[0].converged / result.rows[0].systems, result.rows[0].iterations.mean))
    assert rows == rows[:1] * 4
    with pytest.raises(TypeError, match=r"compare_preconditioners: A must hold .*CSR\.from_scipy"):
        ls.compare_preconditioners([scipy.sparse], [b], {"none": None})


def test_the_types_that_users_see_are_those_of_the_functions():
    """`python tests/ops_stub.py` writes the stub again."""
    written, wanted = (
        sorted(map(ast.dump, ast.parse(t).body)) for t in (ops_stub.STUB.read_text(), ops_stub.text())
    )
    assert written == wanted


SHAPES = ((2,), (4, 5), (6,))


def matrices() -> list[ls.CSR]:
    return [ls.problems.poisson(shape) for shape in SHAPES]


def test_it_is_block_diagonal():
    members = matrices()
    batch = ls.BlockBatch(members)
    dense = torch.block_diag(*(member.to_dense() for member in members))
    assert torch.equal(batch.matrix.to_dense(), dense)
    assert torch.equal(batch.T.matrix.to_dense(), dense.T)
    x = normal((28, 2))
    torch.testing.assert_close(batch @ x, dense @ x)
    assert (batch.sizes, batch.shape, len(batch), batch.dtype) == ((2, 20, 6), (28, 28), 3, torch.float64)
    assert torch.equal(batch.batch, torch.tensor([0] * 2 + [1] * 20 + [2] * 6))
    assert batch.requires_grad is False
    assert ls.BlockBatch(members).matrix.pattern is batch.matrix.pattern, "planned once"


def test_split():
    members = matrices()
    batch = ls.BlockBatch(members)
    x, v = normal((3, 28, 2)), normal((batch.matrix.nnz,))
    assert [tuple(part.shape) for part in batch.split(x)] == [(3, 2, 2), (3, 20, 2), (3, 6, 2)]
    assert torch.equal(torch.cat(batch.split(v, entries=True)), v)
    features = normal((batch.matrix.nnz, 4))
    assert [len(part) for part in batch.split(features, entries=True)] == [member.nnz for member in members]
    for member, part in zip(members, batch.split(batch.matrix), strict=True):
        assert part.pattern is member.pattern
        assert torch.equal(member.values, part.values)
    L = ls.ops.ic(batch.matrix).L
    for member, part, C in zip(members, batch.split(L), batch.split(L * 2.0), strict=True):
        torch.testing.assert_close(part.to_dense(), ls.ops.ic(member).L.to_dense())
        assert part.pattern is C.pattern
    stack = L.with_values(torch.stack((L.values, 2 * L.values)))
    assert [part.batch_shape for part in batch.split(stack)] == [(2,)] * 3


def test_values_and_gradients():
    members = [member.requires_grad_() for member in matrices()]
    batch = ls.BlockBatch(members)
    assert batch.requires_grad
    (batch.matrix.values * torch.arange(102.0)).sum().backward()
    found = torch.cat([member.values.grad for member in members])
    assert torch.equal(found, torch.arange(102.0).double())
    other = batch.with_values(2 * batch.matrix.values)
    assert other.matrix.pattern is batch.matrix.pattern
    assert other.split(other.matrix)[2].pattern is members[2].pattern
    v = normal((102,)).requires_grad_()

    def blocks(v):
        one = batch.with_values(v)
        return torch.cat([member.to_dense().flatten() for member in one.split(one.matrix)])

    assert torch.autograd.gradcheck(blocks, (v,))


def test_moves_and_copies():
    # A block that no other test has: a copy's pattern is the oldest equal one, which may be another test's.
    batch = ls.BlockBatch([*matrices(), ls.problems.poisson((3, 7))])
    single = batch.to(torch.float32)
    assert single.dtype == single.split(single.matrix)[0].dtype == torch.float32
    assert single.matrix.pattern is batch.matrix.pattern
    for twin in (copy.deepcopy(batch), pickle.loads(pickle.dumps(batch)), batch.to("cpu")):
        assert twin.matrix.pattern is batch.matrix.pattern
        assert torch.equal(twin.split(twin.matrix)[1].to_dense(), matrices()[1].to_dense())


def test_patterns_of_combinations_are_bounded():
    with ls.set_options(plan_cache_bytes=0):
        pool = [ls.problems.random_spd(20 + i, i) for i in range(12)]
        generator = torch.Generator().manual_seed(0)
        for _ in range(60):
            chosen = torch.randint(12, (4,), generator=generator).tolist()
            ls.BlockBatch([pool[i] for i in chosen])
        plans = [name for member in pool for name in member.pattern._entries]
        assert len([name for name in plans if "_plan_stack" in name]) <= 16


# --- collate ---


def samples() -> list[tuple[ls.CSR, torch.Tensor, torch.Tensor]]:
    made = []
    for i, member in enumerate(matrices()):
        x = normal((member.shape[0],), seed=i)
        made.append((member, member @ x, x))
    return made


def test_collate():
    batch, b, x = ls.collate(samples())
    assert isinstance(batch, ls.BlockBatch)
    torch.testing.assert_close(ls.solvers.cg(batch, b, rtol=1e-12).x, x)
    assert isinstance(ls.collate(matrices()), ls.BlockBatch)
    assert len(ls.collate([(member,) for member in matrices()])) == 1
    assert ls.collate([(member, None) for member in matrices()])[1] is None
    data = ls.problems.dataset("delaunay_laplacian", "train", 2)
    batch, b, x = ls.collate(list(data))
    torch.testing.assert_close(batch @ x, b)


def test_collate_to_a_stack():
    member, b = ls.problems.poisson((3,)), torch.ones(3, dtype=torch.float64)
    stack, c = ls.collate([(member, b), (2.0 * member, b)], stack=True)
    assert (stack.batch_shape, tuple(c.shape)) == ((2,), (2, 3, 1))
    torch.testing.assert_close(ls.solvers.cg(stack, c).x[1], ls.solvers.cg(2.0 * member, b.unsqueeze(1)).x)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_data_loader_with_workers():
    data = samples() * 2
    loader = torch.utils.data.DataLoader(data, batch_size=3, collate_fn=ls.collate, num_workers=2)
    first, second = list(loader)
    assert first[0].matrix.pattern is second[0].matrix.pattern, "of one combination, from two processes"
    for blocks, b, x in (first, second):
        torch.testing.assert_close(ls.solvers.cg(blocks, b, rtol=1e-12).x, x)
    member = ls.CSR.from_dense((normal((13, 13)) > 0.3).double())  # no other test has its pattern
    one = [(s * member, normal((13,))) for s in (1.0, 2.0)]
    collate = functools.partial(ls.collate, stack=True)
    for stack, _ in torch.utils.data.DataLoader(one, batch_size=1, collate_fn=collate, num_workers=2):
        assert stack.pattern is member.pattern, "the object of the data set"


def test_evaluate_takes_each_block_as_a_system():
    members = matrices()
    batch = ls.BlockBatch(members)
    b = normal((28, 2))
    given = {"none": None, "IC(0)": ls.preconditioners.IC}
    found = ls.compare_preconditioners(batch, b, given, rtol=1e-6, repeats=1)
    wanted = ls.compare_preconditioners(members, batch.split(b), given, rtol=1e-6, repeats=1)
    assert [(row.systems, row.converged, row.iterations) for row in found.rows] == [
        (row.systems, row.converged, row.iterations) for row in wanted.rows
    ]
    assert found.rows[0].systems == 6
    with pytest.raises(ValueError, match="a tensor of the rows must have shape"):
        ls.compare_preconditioners(batch, b[:5], given)
    with pytest.raises(TypeError, match=r"b must be a torch.Tensor, got list"):
        ls.compare_preconditioners(batch, batch.split(b), given)


def batch():
    return ls.BlockBatch(matrices())
