"""The direct solve beyond the table: values against dense matrices and SciPy, memory, and what it refuses."""

import itertools
import tracemalloc

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.csgraph
import scipy.sparse.linalg
import torch
from ops.rows import SHAPES
from ops.systems import (
    VALUES,
    P,
    assert_solves,
    batch_of_values,
    convection,
    dense,
    matrices,
    pair,
    sparse,
    without_diagonal,
)
from reference import UNIT_ROUNDOFF, densify, gradients, normal, peak
from torch import func

import learnsolve as ls
from learnsolve.ops import direct

MATRICES = matrices()
EITHER = pytest.mark.parametrize("transpose", [False, True], ids=["", "transpose"])


def inputs_of(shapes, requires_grad=False):
    values, b = shapes
    v = batch_of_values(*values) if values else VALUES.clone()
    return [t.requires_grad_(requires_grad) for t in (v, normal(b, seed=1))]


@EITHER
@pytest.mark.parametrize("name", MATRICES)
def test_value_and_gradients(name, transpose):
    for index, dtype, k in itertools.product(
        (torch.int32, torch.int64), (torch.float32, torch.float64), ((), (1,), (3,), (0,))
    ):
        Q, v = pair(MATRICES[name], index, dtype)
        b = normal((Q.shape[0], *k), dtype, seed=1)
        D = densify(Q, v.double())
        D = D.mT if transpose else D
        what = f"{name}, {index}, {dtype}, {k}"

        x = sparse(v, b, transpose, Q)
        assert x.dtype == dtype
        exact = dense(v.double(), b.double(), transpose, Q)
        assert_solves(x, exact, D, what)

        g = normal(x.shape, dtype, seed=2)
        gv, gb = gradients(lambda v, b: sparse(v, b, transpose, Q), [v, b], g)  # noqa: B023
        wv, wb = gradients(lambda v, b: dense(v, b, transpose, Q), [v.double(), b.double()], g.double())  # noqa: B023
        assert gv.dtype == gb.dtype == dtype
        assert_solves(gb, wb, D, f"gradient for b, {what}")
        if x.numel():
            # y x^T summed over the columns: the errors of both solves.
            bound = 32 * len(D) * UNIT_ROUNDOFF[dtype] * torch.linalg.cond(D, torch.inf)
            size = (wb.abs() * exact.abs().amax(0)).amax(0).sum()
            assert (gv.double() - wv).abs().max() <= bound * size, what


def poisson(side):
    S = ls.problems.poisson((side, side)).to_scipy()
    return scipy.sparse.csr_array(S)


@pytest.mark.parametrize(
    "S",
    [poisson(60), convection(60), without_diagonal(60), scipy.sparse.csr_array(convection(40)[::-1])],
    ids=["poisson", "convection", "no diagonal", "rows upside down"],
)
@EITHER
def test_against_scipy(S, transpose):
    A = ls.CSR.from_scipy(S)
    M = S.T if transpose else S
    size = abs(M)
    b = np.random.default_rng(0).standard_normal((S.shape[0], 4))
    x = ls.ops.spsolve(A, torch.from_numpy(b), transpose=transpose).numpy()
    # Backward stable: the residual is small against |A||x|, row by row of the norm.
    assert np.abs(M @ x - b).max() <= 1e-13 * (size @ np.abs(x)).max()
    wanted = scipy.sparse.linalg.spsolve(M.tocsc(), b)
    np.testing.assert_allclose(x, wanted, rtol=1e-9, atol=1e-11 * np.abs(wanted).max())


def test_pivots_where_dominance_does_not_hold():
    """[[tiny, 1], [1, 1]] eliminated in order loses everything."""
    D = torch.tensor([[1e-20, 1.0], [1.0, 1.0]], dtype=torch.float64)
    x = ls.ops.spsolve(ls.CSR.from_dense(D), torch.tensor([1.0, 2.0], dtype=torch.float64))
    torch.testing.assert_close(x, torch.ones(2, dtype=torch.float64), rtol=1e-15, atol=0)


def test_float32_is_solved_in_float32_and_float64_is_not():
    for dtype in (torch.float32, torch.float64):
        x = sparse(VALUES.to(dtype), torch.ones(5, dtype=dtype))
        error = (x.double() - dense(VALUES, torch.ones(5, dtype=torch.float64))).abs().max()
        assert x.dtype == dtype
        assert (error > 1e-12) == (dtype == torch.float32)
        kind = ls.factorize(ls.CSR(VALUES.to(dtype), P))._factors.all[0].factor.lu.L.dtype
        assert kind == torch.empty(0, dtype=dtype).numpy().dtype


EMPTY = [((), (0,)), ((), (0, 3)), ((2,), (0, 3)), ((2,), (0,)), ((), (2, 0, 3))]
NO_COLUMN = [((), (5, 0)), ((2,), (5, 0)), ((0,), (5,)), ((0,), (0, 5, 2)), ((), (0, 5, 2)), ((3, 0), (5, 2))]


@pytest.mark.parametrize(("values", "b"), [*EMPTY, *NO_COLUMN])
def test_empty(values, b):
    Q, v = pair(scipy.sparse.csr_array((0, 0))) if (values, b) in EMPTY else (P, VALUES)
    v, c = v.expand(*values, Q.nnz).clone().requires_grad_(), normal(b).requires_grad_()
    x = sparse(v, c, False, Q)
    assert x.shape == (*torch.broadcast_shapes(values, b[:-2]), *b[-2:])
    gv, gb = torch.autograd.grad(x.sum(), (v, c), create_graph=True)
    assert torch.equal(gv, torch.zeros_like(v))
    assert gb.shape == c.shape
    ls.factorize(ls.CSR(v, Q))(c)


def test_the_graph_that_torch_records_solves():
    """Not a constant: the operator stands in it."""
    from torch.fx.experimental.proxy_tensor import make_fx

    v, b = inputs_of(SHAPES["columns"])
    graph = make_fx(func.grad(lambda v, b: (sparse(v, b) ** 2).sum(), argnums=(0, 1)))(v, b)
    w, c = batch_of_values(1)[0], normal((5, 3), seed=7)
    wanted = func.grad(lambda v, b: (dense(v, b) ** 2).sum(), argnums=(0, 1))(w, c)
    torch.testing.assert_close(graph(w, c), wanted, rtol=1e-11, atol=1e-11)


def test_memory():
    """O(nnz of A and of its factors + n k): no dense matrix, no column for each entry."""
    n, k = 20_000, 16
    A = ls.problems.poisson((n,))
    v, b = A.values.clone().requires_grad_(), normal((n, k)).requires_grad_()
    g = torch.ones(n, k, dtype=torch.float64)

    def call():
        return torch.autograd.grad(ls.ops.spsolve(A.with_values(v), b), (v, b), g)

    call()
    tracemalloc.start()  # what NumPy holds; SuperLU and torch hold theirs elsewhere
    call()
    numpy_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    word = 8
    assert numpy_peak <= (6 * n * k + 12 * A.nnz) * word
    assert peak(call) <= (6 * n * k + 12 * A.nnz) * word


INF, NAN = float("inf"), float("nan")


def of(rows):
    """A matrix with the entries that are not None, zeros among them."""
    entries = [(i, j, a) for i, row in enumerate(rows) for j, a in enumerate(row) if a is not None]
    i, j, a = (list(t) for t in zip(*entries, strict=True))
    S = scipy.sparse.csr_array((np.array(a, dtype=float), (i, j)), shape=(len(rows), len(rows)))
    return ls.CSR.from_scipy(S)


_ = None
SINGULAR = {
    "empty row": ([[1, 2, _], [_, _, _], [_, 1, 1]], "A is structurally singular: row 1 has no entry"),
    "empty column": ([[1, _, 1], [1, _, 2], [1, _, 3]], "structurally singular: column 1 has no entry"),
    "no matching": ([[1, 2, 3], [_, _, 4], [_, _, 5]],
        r"structurally singular: its rank is at most 2 of 3, whatever the values: row [12] finds no column"),
    "zero row": ([[1, 2, _], [0, 0, 0], [_, 1, 1]],
        "A is singular: without its explicit zeros, row 1 has no entry"),
    "zeros in the way": ([[1, 2, 3], [0, 0, 4], [0, 0, 5]],
        "A is singular: without its explicit zeros, its rank is at most 2 of 3"),
    "one zero": ([[0]], "without its explicit zeros, row 0 has no entry"),
    "rows sum to zero": ([[1, -1, _], [-1, 2, -1], [_, -1, 1]],
        r"pivot that is exactly zero \(every row sums to zero up to rounding\)"),
    "columns sum to zero": ([[1, 2, _], [-1, -4, 1], [_, 2, -1]],
        r"pivot that is exactly zero \(every column sums to zero up to rounding\)"),
    "dependent columns": ([[1, _, 2, _], [_, 1, _, 1], [2, _, 4, _], [_, 1, _, 5]],
        r"pivot that is exactly zero \(columns 0, 2 depend on each other\)"),
}  # fmt: skip


@pytest.mark.filterwarnings("error::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
@pytest.mark.parametrize("name", SINGULAR)
def test_singular(name, dtype):
    rows, message = SINGULAR[name]
    A = of(rows).to(dtype) * (1 + 1j if dtype.is_complex else 1)
    b = torch.ones(len(rows), dtype=dtype)
    for tracked in (False, True):
        A.values.requires_grad_(tracked)
        for transpose in (False, True):
            with pytest.raises(ValueError, match=f"^spsolve: .*{message}.*\\. (Remove|Fix)"):
                ls.ops.spsolve(A, b, transpose=transpose)
    with pytest.raises(ValueError, match=f"^factorize: .*{message}"):
        ls.factorize(A)
    with pytest.raises(ValueError, match=f"^spsolve: .*{message}"):
        torch.func.grad(lambda v: ls.ops.spsolve(A.with_values(v), b).real.sum())(A.values.detach())
    if dtype != torch.float64:
        return
    torch._dynamo.reset()
    with pytest.raises(ValueError, match=f"^spsolve: .*{message}"):
        torch.compile(ls.ops.spsolve, fullgraph=True, backend="aot_eager")(A.detach(), b)


def test_structurally_singular_matrices_never_reach_superlu():
    """On some of them it calls BLAS with invalid sizes. The verdict is that of SciPy's search."""
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(300):
        n = int(rng.integers(2, 40))
        S = scipy.sparse.random_array((n, n), density=min(rng.uniform(1, 5) / n, 1.0), rng=rng, format="csr")
        S.data[:] = rng.standard_normal(S.nnz)
        A, b = ls.CSR.from_scipy(S), torch.ones(n, dtype=torch.float64)
        if scipy.sparse.csgraph.structural_rank(S) == n:
            assert sparse(A.values, b, False, A.pattern).isfinite().all()
            continue
        found += 1
        with pytest.raises(ValueError, match="A is structurally singular"):
            ls.ops.spsolve(A, b)
    assert 100 < found < 290


def test_one_singular_matrix_of_a_batch():
    V = batch_of_values(3)
    V[2, :2] = 0
    with pytest.raises(
        ValueError, match=r"spsolve: matrix 2 of the batch is singular: .* row 0 has no entry"
    ):
        sparse(V, normal((5,)))


def test_nearly_singular_is_a_warning_that_says_so():
    """A pure Neumann problem whose last pivot is rounding instead of zero."""
    w = np.random.default_rng(0).random(29)
    S = scipy.sparse.diags_array([-w, -w], offsets=(-1, 1))
    S = scipy.sparse.csr_array(S - scipy.sparse.diags_array(S.sum(1)))
    A = ls.CSR.from_scipy(S)
    b = normal((30,))
    with pytest.warns(RuntimeWarning, match=r"nearly singular \(every row sums to zero up to rounding\)"):
        ls.ops.spsolve(A, b)
    with pytest.warns(RuntimeWarning, match="nearly singular"):
        ls.ops.spsolve(A, b.unsqueeze(-1).expand(30, 2), transpose=True)


@pytest.mark.filterwarnings("error")
def test_no_warning_without_a_reason():
    """Bad scaling alone, of equations or unknowns, is none; neither is a solution that is zero."""
    b = normal((5,))
    for scale in (
        torch.logspace(-150, 150, 5, dtype=torch.float64),
        torch.full((5,), 1e200, dtype=torch.float64),
    ):
        A = ls.CSR(VALUES.clone(), P)
        torch.testing.assert_close(
            ls.ops.spsolve(A.scale_rows(scale), b * scale), dense(VALUES, b), rtol=1e-11, atol=1e-11
        )
        x = ls.ops.spsolve(A.scale_columns(scale), b)
        torch.testing.assert_close(x * scale, dense(VALUES, b), rtol=1e-11, atol=1e-11)
    assert torch.equal(
        sparse(VALUES, torch.zeros(5, dtype=torch.float64)), torch.zeros(5, dtype=torch.float64)
    )
    ls.ops.spsolve(ls.problems.poisson((5000,)), torch.ones(5000, dtype=torch.float64))  # condition 1e7
    tiny = sparse(VALUES, b * 1e-300)
    torch.testing.assert_close(tiny * 1e300, dense(VALUES, b), rtol=1e-11, atol=1e-11)


def test_right_hand_sides_that_are_no_numbers_stay_in_their_columns():
    b = normal((5, 4))
    b[2, 1], b[0, 3] = NAN, INF
    x = sparse(VALUES, b)
    assert torch.equal(x.isfinite().all(0), torch.tensor([True, False, True, False]))
    torch.testing.assert_close(x[:, ::2], dense(VALUES, b[:, ::2]), rtol=1e-12, atol=1e-12)
    # A cotangent passes, as a scaled loss that overflowed sends it: whoever scales looks at the gradients.
    c = normal((5,)).requires_grad_()
    (g,) = torch.autograd.grad(sparse(VALUES, c), c, torch.full((5,), INF, dtype=torch.float64))
    assert not g.isfinite().all()


def test_overflow():
    A = ls.CSR.from_dense(torch.tensor([[1e-30, 0.0], [0.0, 1.0]]))
    b = torch.tensor([1e30, 1.0])
    with pytest.raises(ValueError, match=r"spsolve: the solution is not finite.* range of float32\. Rescale"):
        ls.ops.spsolve(A, b)
    x = ls.ops.spsolve(A.to(torch.float64), b.double())
    assert x.isfinite().all()


def test_too_large_for_the_libraries(monkeypatch):
    monkeypatch.setattr(direct, "LARGEST", 10)
    with pytest.raises(
        ValueError, match="spsolve: direct solvers count up to 10, A has 5 rows and 11 entries"
    ):
        sparse(VALUES, normal((5,)))


@pytest.mark.parametrize("value", [INF, -INF, NAN])
def test_values_that_are_no_numbers(value):
    v, V = VALUES.clone(), batch_of_values(2)
    v[3] = V[1, 0] = value
    with pytest.raises(ValueError, match=r"the values of A must be finite, got .* at row 1, column 2"):
        sparse(v, normal((5,)))
    with pytest.raises(ValueError, match=r"of matrix 1 of the batch .* at row 0, column 1 \(values\[0\]\)"):
        sparse(V, normal((5,)))


@pytest.mark.parametrize("damp", [0.0, 0.7])
def test_least_squares(damp):
    """Against LAPACK on [W^1/2 A; damp I], also where A is badly scaled; and what has no solution."""
    D, b, w = normal((9, 4)), normal((9, 2), seed=1), normal((9,), seed=2).exp()
    for scale in (1.0, 1e6, 1e-6, 1e150, 1e-150):
        A = ls.CSR.from_dense(scale * D)
        stacked = torch.cat((w.sqrt()[:, None] * A.to_dense(), damp * scale * torch.eye(4, dtype=D.dtype)))
        rhs = torch.cat((w.sqrt()[:, None] * b, torch.zeros(4, 2, dtype=D.dtype)))
        wanted = torch.linalg.lstsq(stacked, rhs).solution
        for found in (
            ls.ops.lstsq(A, b, damp=damp * scale, weight=w),
            torch.stack([ls.ops.lstsq(A, c, damp=damp * scale, weight=w) for c in b.T], 1),
        ):
            torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-12 / scale)
    tall = ls.CSR.from_dense(torch.tensor([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]]))
    for bad, options, message in (
        (tall, {}, "the columns of A depend on each other .*. Pass damp, .* use solvers.lsqr"),
        (tall.T, {}, "A is 2 x 3, so that its columns depend on each other"),
        (tall, {"damp": -1.0}, "damp must be finite and not negative, got -1.0"),
        (tall, {"weight": torch.tensor([1.0, 0.0, 1.0])}, "weight must be positive, got 0.0 in row 1"),
        (tall, {"weight": torch.ones(2)}, r"weight must have shape \(m,\) = \(3,\), got \(2,\)"),
    ):
        with pytest.raises(ValueError, match=f"^lstsq: {message}"):
            ls.ops.lstsq(bad, torch.ones(bad.shape[0]), **options)


def dependent(m: int, n: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    """Of rank below n: random numbers, small integers, or sparse with one column the sum of two."""
    rng = np.random.default_rng(seed)
    r = int(rng.integers(1, n))
    if seed % 3 == 0:
        D = rng.standard_normal((m, r)) @ rng.standard_normal((r, n))
    elif seed % 3 == 1:
        D = rng.integers(-2, 3, (m, r)) @ rng.integers(-2, 3, (r, n)) + 0.0
    else:
        D = rng.standard_normal((m, n)) * (rng.random((m, n)) < 0.5)
        D[:, -1] = 2 * D[:, 0] + D[:, -2]
    return torch.tensor(D * 10 ** rng.uniform(-4, 4, n) ** (seed % 2), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_least_squares_refuse_dependent_columns(dtype):
    """Whose last pivot is rounding, and with a damping that is; in batches and under transformations too."""
    message = "lstsq: the columns of .* depend on each other"
    for seed in range(30):
        m = 3 + seed % 17
        D = dependent(m, max(2, m - seed % 5), seed, dtype)
        A, b = ls.CSR.from_dense(D), normal((m,), seed=seed).to(dtype)
        with pytest.raises(ValueError, match=message):
            ls.ops.lstsq(A, b)
    f = lambda v: ls.ops.lstsq(A.with_values(v), b, damp=1e-16)  # noqa: E731
    for call in (
        lambda: f(A.values),
        lambda: f(torch.stack((A.values, A.values))),
        lambda: torch.vmap(f)(torch.stack((A.values, A.values))),
        lambda: torch.func.jacrev(f)(A.values),
        lambda: torch.func.jvp(f, (A.values,), (A.values,)),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("decades", [3, 5])
def test_least_squares_with_columns_of_any_size(decades):
    """Of a condition number below 1 / sqrt(eps), whatever the units of the unknowns."""
    for seed in range(8):
        U, V = (torch.linalg.qr(normal((k, 6), seed=seed + k))[0] for k in (9, 6))
        D = (U * torch.logspace(0, -decades, 6).double()) @ V.mT
        scale, x = torch.logspace(-8, 8, 6).double(), normal((6,), seed=seed)
        found = ls.ops.lstsq(ls.CSR.from_dense(D * scale), D @ x)
        torch.testing.assert_close(found * scale, x, rtol=1e-4, atol=1e-4)
