"""Products with vectors and matrices beyond the table: identities, batches, special values, and the backward
in the order of the rows."""

import numpy as np
import pytest
import scipy.sparse
import torch
from reference import (
    assert_same_bits,
    assert_within,
    banded,
    inputs_for,
    normal,
    pattern_of,
    random,
    structures,
)
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls
from learnsolve.ops import products
from learnsolve.ops.segments import perceptron, reference_perceptron
from learnsolve.ops.sparse_products import NotPositive, local_solve

INF, NAN = float("inf"), float("nan")
STRUCTURES = structures()


def test_a_batch_is_a_loop():
    """To the last bit."""
    P = pattern_of(random(40, 30, 0.2))
    values, X, U = normal((3, P.nnz), seed=1), normal((3, 30, 5), seed=2), normal((3, 40, 5), seed=3)
    A = ls.CSR(values, P)
    one = [ls.CSR(v, P) for v in values]
    for b in range(3):
        assert torch.equal((A @ X)[b], one[b] @ X[b])
        assert torch.equal((one[1] @ X)[b], one[1] @ X[b])
        assert torch.equal((A @ X[0])[b], one[b] @ X[0])
        assert torch.equal((A @ X[0, :, 0])[b], one[b] @ X[0, :, 0].contiguous())
        assert torch.equal(ls.ops.sddmm(U, X, P)[b], ls.ops.sddmm(U[b], X[b], P))
        assert torch.equal(A.T.values[b], one[b].T.values)
        assert torch.equal(A.diagonal()[b], one[b].diagonal())
        assert torch.equal(A.to_dense()[b], one[b].to_dense())
        for dim in (0, 1):
            torch.testing.assert_close(A.sum(dim)[b], one[b].sum(dim), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("batch", [(0,), (0, 3), (2, 0), (), (2,), (2, 3)], ids=str)
def test_nothing(batch):
    """An empty batch of values, x or both, or no column: results and gradients of the right, empty shape."""
    P = pattern_of(random(6, 5, 0.5))
    for v_batch, x_batch, k in ((batch, (), 2), ((), batch, 2), (batch, batch, 2))[: 3 * (0 in batch)] or (
        (batch, batch, 0),
    ):
        v = torch.ones(*v_batch, P.nnz, dtype=torch.float64, requires_grad=True)
        x = torch.ones(*x_batch, 5, k, dtype=torch.float64, requires_grad=True)
        y = ls.CSR(v, P) @ x
        assert y.shape == (*batch, 6, k)
        gv, gx = torch.autograd.grad(y.sum(), (v, x))
        assert torch.equal(gv, torch.zeros_like(v))
        assert torch.equal(gx, torch.zeros_like(x))
        w = ls.ops.sddmm(torch.ones(*batch, 6, k, dtype=v.dtype), x.detach(), P)
        assert torch.equal(w, torch.zeros(*batch, P.nnz, dtype=v.dtype))


# --- infinities, NaN, explicit zeros ---


@pytest.mark.parametrize("S", [random(30, 30, 0.2), banded(40, 5)], ids=["random", "banded"])
@pytest.mark.parametrize("k", [None, 1, 3, 40])
def test_nonfinite_numbers_pass_as_in_scipy(S, k):
    rng = np.random.default_rng(0)
    S = S.astype(np.float64)
    S.data[:] = rng.standard_normal(S.nnz)
    S.data[::7] = 0  # 0 * inf is NaN where there is an entry, and nothing where there is none
    S.data[3], S.data[11] = INF, NAN
    A = ls.CSR.from_scipy(S)
    for M, transpose in ((S, False), (S.T, True)):
        x = rng.standard_normal((M.shape[1],) if k is None else (M.shape[1], k))
        x[2], x[5], x[9] = INF, -INF, NAN
        with np.errstate(invalid="ignore"):
            wanted = torch.as_tensor(M @ x)
        found = ls.ops.spmm(A, torch.as_tensor(x), transpose=transpose)
        torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-13, equal_nan=True)


def test_nan_in_one_gradient_stays_in_its_entries():
    A = ls.CSR.from_scipy(random(20, 20, 0.2)).requires_grad_()
    x, g = normal((20,)).requires_grad_(), normal((20,), seed=1)
    g[3] = NAN
    gv, gx = torch.autograd.grad(A @ x, (A.values, x), g)
    assert torch.equal(gv.isnan(), A.pattern.row_indices == 3)
    row = A.pattern.col_indices[A.pattern.row_indices == 3]
    assert set(gx.isnan().nonzero().flatten().tolist()) == set(row.tolist())


def test_diagonal_without_entry_has_no_part_in_nan():
    """Where the pattern has no diagonal entry the result is 0 whatever the values are, and no gradient."""
    A = ls.CSR.from_scipy(scipy.sparse.csr_array(np.array([[NAN, 1.0], [1.0, 0.0]]))).requires_grad_()
    d = A.diagonal()
    assert d[0].isnan()
    assert d[1] == 0
    (g,) = torch.autograd.grad(d, A.values, torch.tensor([1.0, NAN], dtype=torch.float64))
    assert g.tolist() == [1, 0, 0]


def test_explicit_zeros_have_a_gradient():
    P = ls.CSR.from_scipy(random(8, 8, 0.4)).pattern
    v = torch.zeros(P.nnz, dtype=torch.float64, requires_grad=True)
    x, g = normal((8,), seed=1), normal((8,), seed=2)
    (ls.CSR(v, P) @ x).backward(g)
    assert torch.equal(v.grad, ls.ops.sddmm(g, x, P))
    assert (v.grad != 0).all()


def test_subnormal_numbers_survive():
    """The kernels must not flush small numbers to zero (no fast-math)."""
    A = ls.CSR.from_scipy(banded(20, 3))
    x = torch.full((22,), 5e-324, dtype=torch.float64)
    assert torch.equal(A @ x, torch.full((20,), 15e-324, dtype=torch.float64))


# --- the backward in the order of the rows, which large irregular matrices with few columns take ---


@pytest.fixture(scope="module")
def tall():
    S = scipy.sparse.random_array((60000, 300), density=0.06, format="csr", dtype=float, rng=0)
    A = ls.CSR.from_scipy(S)
    assert A.pattern._prefers_scatter
    return A


@pytest.mark.cpu_only
def test_scattered_gradients(tall):
    x, g = torch.linspace(1, 2, 300, dtype=torch.float64), torch.linspace(-1, 1, 60000, dtype=torch.float64)

    def gradients(needs=(True, True), shape=(300,)):
        v, y = (
            t.clone().requires_grad_(n) for t, n in zip((tall.values, x.reshape(shape)), needs, strict=True)
        )
        out = ls.ops.spmm(tall.with_values(v), y)
        return torch.autograd.grad(out, [t for t in (v, y) if t.requires_grad], g.reshape(out.shape))

    gv, gx = gradients()
    torch.testing.assert_close(gv, g[tall.pattern.row_indices.long()] * x[tall.col_indices.long()])
    torch.testing.assert_close(gx, torch.from_numpy(tall.to_scipy().T @ g.numpy()), rtol=1e-12, atol=1e-10)
    assert torch.equal(gradients((False, True))[0], gx)
    assert torch.equal(gradients((False, True), (300, 1))[0], gx.unsqueeze(1))
    assert "transposed" not in tall.pattern._entries  # it is not needed: no time, no memory for it
    assert_same_bits(gradients)


@pytest.mark.cpu_only
@pytest.mark.parametrize("shape", [(60000,), (60000, 1)], ids=str)
def test_the_transposed_product_goes_the_same_way(tall, shape):
    fresh = tall.to(dtype=torch.float32).to(dtype=torch.float64)
    P, S = fresh.pattern, fresh.to_scipy()
    g = torch.linspace(-1, 1, 60000, dtype=torch.float64).reshape(shape).requires_grad_()
    v = fresh.values.clone().requires_grad_()
    y = ls.ops.spmm(fresh.with_values(v), g, transpose=True)
    wanted = torch.from_numpy(S.T @ g.detach().numpy())
    torch.testing.assert_close(y.detach(), wanted, rtol=1e-12, atol=1e-10)
    c = torch.linspace(1, 2, 300, dtype=torch.float64).reshape(y.shape)
    gv, gg = torch.autograd.grad(y, (v, g), c)
    torch.testing.assert_close(gg, ls.ops.spmm(fresh, c))
    torch.testing.assert_close(gv, g.detach().flatten()[P.row_indices] * c.flatten()[P.col_indices])
    _, tangent = torch.func.jvp(lambda g: ls.ops.spmm(fresh, g, transpose=True), (g.detach(),), (g.detach(),))
    torch.testing.assert_close(tangent, y.detach())


@pytest.mark.cpu_only
def test_second_derivative_of_a_scattered_product(tall):
    x = torch.linspace(1, 2, 300, dtype=torch.float64, requires_grad=True)
    y = ls.ops.spmm(tall.with_values(tall.values.clone().requires_grad_()), x)
    (gx,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gx.sum(), x)
    S = tall.to_scipy()
    torch.testing.assert_close(second, torch.from_numpy(2 * S.T @ (S @ np.ones(300))))
    assert not ls.problems.poisson((16,)).pattern._prefers_scatter
    assert not ls.problems.poisson((64, 64)).pattern._prefers_scatter


GRAPH = pattern_of(random(9, 9, 0.4))


def operands(k, f, o, dtype=torch.float64, batch=(), n=None):
    """z, ends, W1, b1, W2, b2; on the edges of GRAPH without n, with one layer for o = 0."""
    edges = n is None
    shapes = ((*batch, GRAPH.nnz if edges else n, k), (*batch, 18, f) if edges else (0,), (f, k), (f,))
    shapes += ((o, f), (o,)) if o else ((0,), (0,))
    return [normal(shape, dtype, seed) for seed, shape in enumerate(shapes)]


def ours(P):
    def f(z, ends, w1, b1, w2, b2):
        return perceptron(z, (w1, b1), (w2, b2) if w2.numel() else None, None if P is None else ends, P)

    return f


@pytest.mark.cpu_only
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("batch", [(), (3,), (2, 2)], ids=len)
@pytest.mark.parametrize(
    "n", [None, 1, 40, 1100], ids=["edges", "1", "40", "1100"]
)  # a tile has 32, a chunk 512
def test_equal_to_the_composition(n, batch, dtype):
    P = GRAPH if n is None else None
    for k, f, o in ((1, 8, 8), (8, 8, 1), (24, 8, 8), (3, 5, 2), (9, 17, 0), (8, 16, 0), (2, 1, 3)):
        given = [t.requires_grad_() for t in operands(k, f, o, dtype, batch, n)]
        y, (wanted,) = ours(P)(*given), reference_perceptron(P)(*given)
        tolerance = {"rtol": 0, "atol": (1e-5 if dtype == torch.float32 else 1e-14) * (k + f)}
        torch.testing.assert_close(y, wanted, **tolerance)
        g = normal(y.shape, dtype, 9)
        both = (torch.autograd.grad(out, given, g, allow_unused=True) for out in (y, wanted))
        for a, b in zip(*both, strict=True):
            if b is not None and b.numel():
                torch.testing.assert_close(a, b, rtol=0, atol=tolerance["atol"] * float(b.abs().max() + 1))


@pytest.mark.cpu_only
def test_gradients_of_any_order():
    for P, n in ((GRAPH, None), (None, 4)):
        for o in (2, 0):
            given = [t.requires_grad_(t.numel() > 0) for t in operands(2, 3, o, n=n)]
            assert gradcheck(ours(P), given, check_forward_ad=True, check_batched_grad=True, fast_mode=True)
            assert gradgradcheck(ours(P), given, check_fwd_over_rev=True, fast_mode=True)


@pytest.mark.cpu_only
def test_gradients_that_are_asked_for():
    """Without the others: of no operand alone is anything lost, in the second derivative neither."""
    given = [t.requires_grad_() for t in operands(3, 5, 2)]
    wanted = torch.autograd.grad(ours(GRAPH)(*given).sin().sum(), given, create_graph=True)
    for i in range(6):
        alone = [t.detach().requires_grad_(i == j) for j, t in enumerate(given)]
        (found,) = torch.autograd.grad(ours(GRAPH)(*alone).sin().sum(), alone[i], create_graph=True)
        assert torch.equal(found, wanted[i])
        (again,) = torch.autograd.grad(wanted[i].square().sum(), given[i], retain_graph=True)
        torch.testing.assert_close(torch.autograd.grad(found.square().sum(), alone[i])[0], again)


@pytest.mark.cpu_only
def test_nan_and_infinity_as_with_torch():
    given = operands(3, 8, 2, n=5)
    given[0][1, 0], given[0][2, 1] = torch.nan, torch.inf
    given[0].requires_grad_()
    y, (wanted,) = ours(None)(*given), reference_perceptron(None)(*given)
    torch.testing.assert_close(y, wanted, equal_nan=True)
    (a,), (b,) = (torch.autograd.grad(out.sum(), given[0]) for out in (y, wanted))
    torch.testing.assert_close(a, b, equal_nan=True)


@pytest.mark.cpu_only
def test_no_rows():
    for batch in ((), (0,)):
        given = [t.requires_grad_() for t in operands(3, 8, 2, batch=batch, n=0)]
        y = ours(None)(*given)
        assert y.shape == (*batch, 0, 2)
        y.sum().backward()
        assert all(not t.grad.any() for t in given[2:])


# Of operands a (..., k), u and v (..., n, k).
BATCHES = {"one": ((), ()), "batch": ((3,), (3,)), "shared": ((3,), ()), "two axes": ((2, 1), (1, 3))}


@pytest.fixture
def always_compiled(monkeypatch):
    monkeypatch.setattr(products, "SPLIT", 0)


def scaled(u, v):
    return products.multiply_columns(u[..., :1, :], v)


def combination(u, v):
    a = u[..., :1, :]
    return products.combination(torch.stack((a, a * a)), torch.stack((v, -v)))


@pytest.mark.usefixtures("isa", "always_compiled")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("k", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 33])
@pytest.mark.parametrize("n", [0, 1, 7, 150, 5000])
def test_dots(n, k, dtype):
    u, v = normal((2, n, k), dtype), normal((2, n, k), dtype, seed=1)
    terms = torch.tensor(float(n))
    for a, b in (
        (u, v),
        (u[0], v[0]),
        (u, v[0]),
        (u[0], v),
        (u, torch.ones((), dtype=dtype).expand(v.shape)),
    ):
        wanted, size = ((f(a.double()) * f(b.double())).sum(-2) for f in (torch.clone, torch.abs))
        assert_within(products.dots(a, b), wanted, size, terms)
    a = normal((2, 1, k), dtype, seed=2)
    wanted, size = ((f(a.double()) * f(v.double())).sum(0) for f in (torch.clone, torch.abs))
    assert_within(products.combination(a, v), wanted, size, torch.tensor(2.0))


@pytest.mark.usefixtures("always_compiled")
@pytest.mark.parametrize(
    ("function", "batch"),
    [(f, b) for f in (products.dots, scaled) for b in BATCHES] + [(combination, b) for b in ("one", "batch")],
)
def test_derivatives_of_dots(function, batch):
    inputs = inputs_for(tuple((*axes, 4, 2) for axes in BATCHES[batch]), requires_grad=True)
    assert gradcheck(function, inputs, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(function, inputs)


@pytest.fixture(params=[torch.int64, torch.int32], ids=["int64", "int32"])
def problem(request):
    """A symmetric positive definite K, and values on a pattern with columns of many sizes, one is empty."""
    K = ls.problems.poisson((2, 3))
    S = torch.zeros(6, 6, dtype=torch.float64)
    for j in range(5):
        S[: j + 1, j] = 1
    S[0, 3:] = 0
    S = ls.CSR.from_dense(S)
    K, S = (ls.CSR(M.values, M.pattern.to(dtype=request.param)) for M in (K, S))
    return K, S.with_values(normal((S.nnz,)))


def reference(K: torch.Tensor, G: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    Y = torch.zeros_like(G)
    for j in range(G.shape[1]):
        J = mask[:, j].nonzero().squeeze(1)
        Y[J, j] = torch.linalg.solve(K[J][:, J], G[J, j])
    return Y


def test_small_systems(problem):
    K, G = problem
    D = G.to_dense()
    wanted = reference(K.to_dense(), D, D != 0)
    assert torch.allclose(local_solve(K, G).to_dense(), wanted, rtol=1e-12, atol=1e-14)
    single = local_solve(K.to(torch.float32), G.to(torch.float32)).to_dense()
    assert torch.allclose(single.double(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-150, 1.0, 1e150])
def test_small_systems_of_any_scale(scale):
    K = ls.problems.poisson((3, 4)) * scale
    G = K.with_values(normal((K.nnz,)))
    wanted = local_solve(ls.problems.poisson((3, 4)), G).values
    assert torch.allclose(local_solve(K, G).values * scale, wanted, rtol=1e-12)


@pytest.mark.parametrize("fault", ["negative", "zero", "singular", "nan"])
def test_what_is_not_positive_definite_is_named(fault):
    K = ls.problems.poisson((4,)).to_dense()
    if fault == "singular":
        K[2:, 2:] = 1.0
    else:
        K[3, 3] = {"negative": -1.0, "zero": 0.0, "nan": float("nan")}[fault]
    K = ls.CSR.from_dense(K)
    G = ls.CSR.from_dense(torch.ones(4, 4, dtype=torch.float64).tril(1).triu(-1))
    with pytest.raises(NotPositive) as caught:
        local_solve(K, G)
    assert caught.value.column == 2 if fault != "singular" else caught.value.column in (2, 3)


def test_no_small_systems():
    K = ls.problems.poisson((4,))
    none = ls.CSR.from_dense(torch.zeros(4, 4, dtype=torch.float64))
    assert local_solve(K, none).values.shape == (0,)
    nothing = ls.CSR.from_dense(torch.zeros(0, 0, dtype=torch.float64))
    assert local_solve(nothing, nothing).values.shape == (0,)
    assert local_solve(K, K.with_values(torch.zeros(0, K.nnz, dtype=torch.float64))).values.shape == (0, 10)
