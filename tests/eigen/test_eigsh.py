"""`eigsh` and `svds` against dense algebra: values, derivatives of three orders, in clusters too."""

import warnings

import numpy as np
import pytest
import torch
from reference import assert_nested_forward_mode
from torch._dynamo.exc import Unsupported
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls
from learnsolve.solvers import ConvergenceWarning, SolverError, Status

F64 = torch.float64
SQUARE = ls.problems.poisson((6, 6))  # the second and the third value are equal


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=1):
    return torch.randn(shape, dtype=F64, generator=generator(seed))


def symmetric(values, pattern):
    """A symmetric matrix as a function of values without symmetry."""
    return ls.CSR(0.5 * (values + values[..., pattern.transpose_permutation]), pattern)


def perturbed(A, size, seed=2):
    noise = torch.rand(A.nnz, dtype=F64, generator=generator(seed))
    return symmetric(A.values + size * noise, A.pattern)


A = perturbed(ls.problems.poisson((6, 5)), 0.2)
B = ls.ops.add(ls.ops.eye(30) * 2.0, perturbed(ls.CSR(0 * A.values, A.pattern), 0.2))
ARPACK_LARGEST = {"method": "arpack", "which": "largest"}
TIGHT = {"method": "lobpcg", "rtol": 1e-12}
CASES = {
    "dense": {},
    "dense, largest": {"which": "largest"},
    "dense, near 3.1": {"which": 3.1},
    "arpack": {"method": "arpack"},
    "arpack, largest": ARPACK_LARGEST,
    "arpack, near 3.1": {"method": "arpack", "which": 3.1},
    "lobpcg": TIGHT,
    "lobpcg, largest": TIGHT | {"which": "largest"},
    "lobpcg, Jacobi": TIGHT | {"M": ls.preconditioners.Jacobi(A)},
}
with_B = pytest.mark.parametrize("B", [None, B], ids=["I", "B"])
every_case = pytest.mark.parametrize("options", CASES.values(), ids=list(CASES))


def signed(U):
    return U * U.gather(0, U.abs().argmax(0, keepdim=True)).sign()


def dense(a, b, k, which="smallest", pattern=A.pattern, **_):
    """The same by torch.linalg.eigh, with its derivatives."""
    D = symmetric(a, pattern).to_dense()
    inverse = torch.eye(len(D), dtype=F64)
    if b is not None:
        inverse = torch.linalg.inv(torch.linalg.cholesky(symmetric(b, B.pattern).to_dense()))
    values, V = torch.linalg.eigh(inverse @ D @ inverse.mT)
    at = {"smallest": torch.arange(k), "largest": torch.arange(len(D) - k, len(D))}
    chosen = at[which] if isinstance(which, str) else (values - which).abs().argsort()[:k].sort().values
    return values[chosen], signed(inverse.mT @ V[:, chosen])


def sparse(a, b, k, **options):
    pairs = ls.eigsh(
        symmetric(a, A.pattern), k, B=None if b is None else symmetric(b, B.pattern), throw=True, **options
    )
    return pairs.values, pairs.vectors


def three_orders(function, inputs):
    """What function(*inputs), a tuple, is, and three derivatives of a number that depends on all of it."""
    inputs = [t.detach().requires_grad_() for t in inputs]
    out = function(*inputs)
    loss = sum((t.sin() * normal(*t.shape)).sum() for t in out)
    orders = []
    for seed in range(3):
        grads = torch.autograd.grad(loss, inputs, create_graph=True)
        orders += grads
        loss = sum((g.sin() * normal(*g.shape, seed=seed)).sum() for g in grads)
    return *out, *orders


@every_case
@with_B
def test_three_orders_of_derivatives(options, B):
    inputs = [A.values] if B is None else [A.values, B.values]
    found = three_orders(lambda a, b=None: sparse(a, b, 3, **options), inputs)
    wanted = three_orders(lambda a, b=None: dense(a, b, 3, **options), inputs)
    for i, (x, y) in enumerate(zip(found, wanted, strict=True)):
        assert (x - y).abs().max() <= (1e-10 if i < 2 else 1e-6) * max(1, y.abs().max()), i


@every_case
@with_B
def test_forward_mode(options, B):
    inputs = (A.values,) if B is None else (A.values, B.values)
    tangents = tuple(normal(len(t), seed=5) for t in inputs)
    tangent = lambda f: torch.func.jvp(lambda a, b=None: f(a, b, 3, **options), inputs, tangents)[1]  # noqa: E731
    found, wanted = tangent(sparse), tangent(dense)
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("B", [None, pytest.param(B, marks=pytest.mark.slow)], ids=["I", "B"])
@pytest.mark.parametrize("part", [0, 1], ids=["values", "vectors"])
def test_forward_mode_in_forward_mode(B, part):
    inputs = (A.values,) if B is None else (A.values, B.values)
    of = lambda f: lambda a, b=None: f(a, b, 2, method="arpack")[part]  # noqa: E731
    assert_nested_forward_mode(of(sparse), inputs, of(dense), 1e-7)


@pytest.mark.parametrize("B", [None, pytest.param(B, marks=pytest.mark.slow)], ids=["I", "B"])
def test_gradcheck(B):
    inputs = [t.clone().requires_grad_() for t in ((A.values,) if B is None else (A.values, B.values))]
    function = lambda a, b=None: sparse(a, b, 2, method="arpack")  # noqa: E731
    assert gradcheck(function, inputs, check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(function, inputs, check_fwd_over_rev=True, fast_mode=True)


def test_transformations_of_torch_func():
    weights = normal(30, 2)
    loss = lambda f: lambda a: (f(a, None, 2)[1].exp() * weights).sum()  # noqa: E731
    for transform in (
        lambda f: torch.func.jacrev(f),
        lambda f: torch.func.jacfwd(f),
        lambda f: torch.func.jacrev(torch.func.jacrev(f)),
        lambda f: torch.func.hessian(f),
    ):
        found, wanted = transform(loss(sparse))(A.values), transform(loss(dense))(A.values)
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def test_the_gradient_is_symmetric():
    a = A.values.clone().requires_grad_()
    ls.eigsh(ls.CSR(a, A.pattern), 2).vectors.pow(3).sum().backward()
    assert torch.equal(a.grad, a.grad[A.pattern.transpose_permutation])


# --- clusters ---


def riesz(D, center, radius):
    """The projector on the vectors of the values within the circle, and their sum, by a contour integral."""
    projector = total = 0
    for i in range(48):
        step = radius * torch.exp(torch.tensor(2j * torch.pi * (i + 0.5) / 48, dtype=torch.complex128))
        R = torch.linalg.inv((center + step) * torch.eye(len(D)) - D) * step / 48
        projector, total = projector + R.real, total + ((center + step) * R).real.trace()
    return total, projector


@pytest.mark.parametrize("options", [{}, {"method": "arpack"}, TIGHT], ids=["dense", "arpack", "lobpcg"])
def test_what_is_invariant_in_a_cluster_has_three_derivatives(options):
    P = SQUARE.pattern

    def by_pairs(a):
        values, U = ls.eigsh(symmetric(a, P), 4, **options)[:2]
        return values[1:3].sum(), U[:, 1:3] @ U[:, 1:3].mT

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = three_orders(by_pairs, [SQUARE.values])
    wanted = three_orders(lambda a: riesz(symmetric(a, P).to_dense(), 0.951083, 0.2), [SQUARE.values])
    for x, y in zip(found, wanted, strict=True):
        assert (x - y).abs().max() <= 1e-7 * max(1, y.abs().max())


def test_single_vectors_of_a_cluster_are_named():
    pairs = ls.eigsh(SQUARE.clone().requires_grad_(), 3, method="arpack")
    assert pairs.gaps[1] < 1e-12 < 1e-2 < pairs.gaps[0]
    with pytest.warns(RuntimeWarning, match=r"undefined in a cluster: values 1 and 2 differ by .*0\.951083"):
        pairs.vectors[0, 1].backward()
    for_it = ls.eigsh(SQUARE.clone().requires_grad_(), 3, throw=True).vectors[0, 1]
    with pytest.raises(ValueError, match="undefined in a cluster"):
        for_it.backward()
    with pytest.warns(RuntimeWarning, match="undefined in a cluster"):
        torch.func.jvp(lambda a: ls.eigsh(symmetric(a, SQUARE.pattern), 3).vectors, (SQUARE.values,),
                       (normal(SQUARE.nnz),))  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"method": "arpack"}, TIGHT], ids=["dense", "arpack", "lobpcg"])
def test_a_cluster_that_is_cut_is_named(options):
    """Without its partner no function of a vector is differentiable; those of others are."""
    vectors = ls.eigsh(SQUARE.clone().requires_grad_(), 2, **options).vectors
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vectors[0, 0].backward(retain_graph=True)
    with pytest.warns(RuntimeWarning, match="vector 1 is undefined: .* 2 pairs cut a cluster"):
        vectors[0, 1].backward()
    one = ls.CSR(torch.ones(9, dtype=torch.float64, requires_grad=True), ls.ops.eye(9).pattern)
    vectors = ls.eigsh(one, 2, **options).vectors  # the gap is zero: the derivative is NaN or arbitrary
    with pytest.warns(RuntimeWarning, match="2 pairs cut a cluster"):
        (vectors @ vectors.mT)[0, 1].backward()


# --- results ---


@pytest.mark.parametrize("shift", [0.0, -0.5], ids=["definite", "indefinite"])
def test_a_shift_below_all_values_is_found(shift):
    """Of the biharmonic stencil Gershgorin's bound is negative; its Cholesky factor tells."""
    L = ls.problems.poisson((18, 18))
    for M in (L, ls.ops.spgemm(L, L)):
        S = ls.ops.add(M, ls.ops.eye(324), beta=shift)
        exact = torch.linalg.eigvalsh(S.to_dense())[:5]
        torch.testing.assert_close(ls.eigsh(S, 5, throw=True).values, exact, rtol=1e-10, atol=1e-12)


def test_a_singular_matrix_has_the_value_zero():
    L = ls.problems.graph_laplacian(
        torch.stack([torch.arange(299), torch.arange(1, 300)]), both_directions=False
    )
    for options in ({}, {"M": ls.factorize(ls.ops.add(L, ls.ops.eye(300), beta=1e-3))}):
        pairs = ls.eigsh(L.clone().requires_grad_(), 3, throw=True, **options)
        assert pairs.values[0].abs() < 1e-9
        pairs.vectors[:, 1].pow(3).sum().backward()


def test_batches_are_matrices_one_by_one():
    a = torch.stack([A.values, 2 * A.values, perturbed(A, 0.3).values]).reshape(3, 1, -1).requires_grad_()
    pairs = ls.eigsh(ls.CSR(a, A.pattern), 2, B=B)
    assert pairs.values.shape == (3, 1, 2)
    assert pairs.vectors.shape == (3, 1, 30, 2)
    assert pairs.statuses == [Status.CONVERGED] * 6
    pairs.vectors.pow(3).sum().backward()
    for i in range(3):
        one = a[i, 0].detach().requires_grad_()
        U = ls.eigsh(ls.CSR(one, A.pattern), 2, B=B).vectors
        assert torch.equal(U, pairs.vectors[i, 0])
        U.pow(3).sum().backward()
        torch.testing.assert_close(one.grad, a.grad[i, 0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("method", ["dense", "arpack", "lobpcg"])
def test_float32(method):
    S = ls.CSR(A.values.float(), A.pattern).requires_grad_()
    pairs = ls.eigsh(S, 3, method=method, throw=True)
    assert pairs.values.dtype == pairs.vectors.dtype == torch.float32
    torch.testing.assert_close(pairs.values.double(), dense(A.values, None, 3)[0], rtol=1e-5, atol=1e-5)
    pairs.values.sum().backward()
    assert S.values.grad.dtype == torch.float32


def test_failures_are_told():
    L = ls.problems.poisson((20, 20))
    for options in (
        {"method": "lobpcg", "maxiter": 3},
        {"method": "arpack", "maxiter": 1, "which": "largest"},
    ):
        with pytest.warns(ConvergenceWarning, match="eigsh: did not converge: MAX_ITERATIONS"):
            pairs = ls.eigsh(L, 4, **options)
        assert pairs.status is Status.MAX_ITERATIONS
        assert "in 4 of 4 pairs" in pairs.summary()
        with pytest.raises(SolverError, match="eigsh: MAX_ITERATIONS"):
            ls.eigsh(L, 4, throw=True, **options)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: ls.eigsh(A, 0), ValueError, "k must be at least 1"),
        (lambda: ls.eigsh(A, 31), ValueError, "k must be at most n = 30, got 31"),
        (lambda: ls.eigsh(A.tril(), 2), ValueError, "A must be symmetric"),
        (lambda: ls.eigsh(A, 2, B=ls.ops.eye(29)), ValueError, "B must have A's shape"),
        (lambda: ls.eigsh(A, 2, B=-B), ValueError, "B must be positive definite"),
        (lambda: ls.eigsh(A, 2, B=-B, method="arpack"), ValueError, "B must be positive definite"),
        (lambda: ls.eigsh(A, 2, B=-B, method="lobpcg"), ValueError, "B must be positive definite"),
        (lambda: ls.eigsh(A, 2, which="middle"), ValueError, "which must be one of"),
        (lambda: ls.eigsh(A, 2, which=None), TypeError, "which must be"),
        (lambda: ls.eigsh(A, 2, which=1.0, M=B), ValueError, "M belongs to LOBPCG"),
        (lambda: ls.eigsh(A, 2, method="arpack", M=B), ValueError, "M belongs to"),
        (lambda: ls.eigsh(ls.ops.eye(300), 2, which=1.0), ValueError, "which is an eigenvalue"),
        (lambda: ls.eigsh(lambda x: x, 2), TypeError, "A must be a CSR, got function"),
        (lambda: torch.vmap(lambda a: ls.eigsh(ls.CSR(a, A.pattern), 2).values)(A.values.expand(2, -1)),
         NotImplementedError, "vmap over matrices"),
        (lambda: torch.autograd.functional.jacobian(
            lambda a: ls.eigsh(ls.CSR(a, A.pattern), 2).vectors, A.values, vectorize=True),
         NotImplementedError, "use torch.func.jacrev"),
        (lambda: ls.eigsh(ls.CSR(A.values * torch.nan, A.pattern), 2), ValueError, "finite"),
        (lambda: ls.eigsh(A, 2, M=ls.preconditioners.Diagonal(torch.ones(30, dtype=F64, requires_grad=True))),
         ValueError, "M requires grad"),
        (lambda: ls.eigsh(ls.CSR(A.values.expand(0, -1), A.pattern), 2), ValueError, "empty batch"),
        (lambda: ls.svds(A, 31), ValueError, r"k must be at most min\(m, n\) = 30"),
    ],
)  # fmt: skip
def test_errors_name_the_rule(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_compiled_code_breaks_its_graph_around_the_solve():
    function = lambda a: (2 * ls.eigsh(ls.CSR(2 * a, A.pattern), 2).values).sum()  # noqa: E731
    a = A.values.clone().requires_grad_()
    torch.testing.assert_close(torch.compile(function, backend="eager")(a), function(a))
    torch._dynamo.reset()
    with pytest.raises(Unsupported, match="call it outside of the graph"):
        torch.compile(function, backend="eager", fullgraph=True)(a)


@pytest.mark.parametrize("which", ["largest", "smallest"])
@pytest.mark.parametrize("shape", [(24, 16), (16, 24)])
def test_svds(which, shape):
    D = normal(*shape) * (torch.rand(shape, generator=generator()) < 0.4)
    C = ls.CSR.from_dense(D)

    def by_svds(c):
        U, S, V, _ = ls.svds(ls.CSR(c, C.pattern), 3, which=which, throw=True)
        return S, U @ V.mT

    def by_dense(c):
        U, S, Vh = torch.linalg.svd(ls.CSR(c, C.pattern).to_dense(), full_matrices=False)
        some = slice(0, 3) if which == "largest" else slice(-3, None)
        return S[some], U[:, some] @ Vh[some]

    found, wanted = (three_orders(f, [C.values])[:4] for f in (by_svds, by_dense))
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-7, atol=1e-8)


def test_large_blocks_by_scipy():
    """All methods agree with SciPy where the matrix is not dense."""
    L = ls.problems.poisson((40, 41))
    S = L.to_scipy().tocsc()
    exact = np.linalg.eigvalsh(S.toarray())[[0, 1, 2, 3, -4, -3, -2, -1]]
    AMG = ls.preconditioners.AMG(L)
    for options, wanted in (({}, exact[:4]), ({"M": AMG}, exact[:4]), ({"which": "largest"}, exact[4:])):
        pairs = ls.eigsh(L.clone().requires_grad_(), 4, throw=True, **options)
        np.testing.assert_allclose(pairs.values.detach(), wanted, rtol=1e-9)
        residual = S @ pairs.vectors.detach().numpy() - pairs.vectors.detach().numpy() * wanted
        assert np.linalg.norm(residual) < 1e-7
        pairs.vectors.pow(3).sum().backward()
