"""Eigenpairs and singular triplets: values, all copies, derivatives of three orders, in clusters too."""

import math
import warnings

import numpy as np
import pytest
import reference
import scipy.sparse as sp
import torch
from torch._dynamo.exc import Unsupported
from torch.autograd import grad

import learnsolve as ls
from learnsolve.eigen import _methods
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


@pytest.mark.rows(1)
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
        (lambda: ls.eigsh(A, 31), ValueError, "k must be at most 30, got 31"),
        (lambda: ls.eigsh(A.tril(), 2), ValueError, "A must be symmetric"),
        (lambda: ls.eigsh(A, 2, B=-B), ValueError, "B must be positive definite"),
        (lambda: ls.eigsh(A, 2, B=-B, method="arpack"), ValueError, "B must be positive definite"),
        (lambda: ls.eigsh(A, 2, B=-B, method="lobpcg"), ValueError, "B must be positive definite"),
        (lambda: ls.eigsh(A, 2, which=1.0, M=B), ValueError, "M is only used by LOBPCG"),
        (lambda: ls.eigsh(A, 2, method="arpack", M=B), ValueError, "M is only used by"),
        (lambda: ls.eigsh(ls.ops.eye(300), 2, which=1.0), ValueError, "which is an eigenvalue"),
        (lambda: torch.vmap(lambda a: ls.eigsh(ls.CSR(a, A.pattern), 2).values)(A.values.expand(2, -1)),
         NotImplementedError, "vmap over matrices"),
        (lambda: torch.autograd.functional.jacobian(
            lambda a: ls.eigsh(ls.CSR(a, A.pattern), 2).vectors, A.values, vectorize=True),
         NotImplementedError, "Use torch.func.jacrev"),
        (lambda: ls.eigsh(A, 2, M=ls.preconditioners.Diagonal(torch.ones(30, dtype=F64, requires_grad=True))),
         ValueError, "M requires grad"),
        (lambda: ls.eigsh(ls.CSR(A.values.expand(0, -1), A.pattern), 2), ValueError, "empty batch"),
        (lambda: ls.svds(A, 31), ValueError, "k must be at most 30"),
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
    with pytest.raises(Unsupported, match="Call it outside of the compiled graph"):
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


# --- second derivatives of symmetric functions of equal eigenvalues, against contour integrals ---


CUBE = ls.problems.poisson((3, 3, 3))  # 1.757, three times 3.172, then 4.586
FUNCTIONS = {
    "squares": lambda v: v.square().sum(),
    "logarithm": lambda v: v.log().sum(),
    "products": lambda v: v.exp().sum() * v.sin().sum() + v.prod(),
    "sum": lambda v: v.sum(),
}
MEANS = {  # the same, of the mean f(v) over the spectrum: f -> sum of f(v)
    "squares": lambda total: total(lambda z: z**2),
    "logarithm": lambda total: total(torch.log),
    "products": lambda total: total(torch.exp) * total(torch.sin) + total(torch.log).exp(),
    "sum": lambda total: total(lambda z: z),
}


def contour(name, D, C, low, high):
    """The function of the eigenvalues of D x = lambda C x between low and high."""
    center, radius = (low + high) / 2, (high - low) / 2
    angles = 2j * torch.pi * (torch.arange(96, dtype=F64) + 0.5) / 96
    steps = radius * torch.exp(angles)
    z = center + steps
    traces = (torch.linalg.inv(z[:, None, None] * C - D) @ C.to(z.dtype)).diagonal(dim1=-2, dim2=-1).sum(-1)
    return MEANS[name](lambda f: (f(z) * traces * steps).mean().real)


def second(f, inputs):
    """A product of the Hessian, in all inputs together, and the first derivative."""
    inputs = [t.detach().requires_grad_() for t in inputs]
    first = torch.autograd.grad(f(*inputs), inputs, create_graph=True)
    loss = sum((g * normal(*g.shape, seed=i)).sum() for i, g in enumerate(first))
    return *first, *torch.autograd.grad(loss, inputs)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in FUNCTIONS),
        ("products", {"method": "arpack"}),  # the method only changes the solves
        ("products", {"method": "lobpcg", "rtol": 1e-12}),
    ],
    ids=str,
)
def test_second_derivatives_in_a_cluster(name, options):
    for A, k, bounds in ((SQUARE, 3, (0.2, 1.2)), (CUBE, 4, (1.0, 3.9))):
        P = A.pattern

        def by_pairs(a, P=P, k=k):
            return FUNCTIONS[name](ls.eigsh(symmetric(a, P), k, **options).values)

        def by_contour(a, P=P, bounds=bounds):
            return contour(name, symmetric(a, P).to_dense(), torch.eye(P.shape[0], dtype=F64), *bounds)

        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            found = second(by_pairs, [A.values])
        for x, y in zip(found, second(by_contour, [A.values]), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-7, atol=1e-7 * float(y.detach().abs().max()) + 1e-9)


def test_second_derivatives_in_a_cluster_with_B():
    P, b = SQUARE.pattern, ls.CSR(0 * SQUARE.values, SQUARE.pattern).values
    both = [SQUARE.values, torch.where(P.row_indices == P.col_indices, 2.0, b)]

    def by_pairs(a, b):
        return FUNCTIONS["products"](ls.eigsh(symmetric(a, P), 3, B=symmetric(b, P)).values)

    def by_contour(a, b):
        D, C = (symmetric(v, P).to_dense() for v in (a, b))
        return contour("products", D, C, 0.1, 0.6)

    for x, y in zip(second(by_pairs, both), second(by_contour, both), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-7, atol=1e-7 * float(y.detach().abs().max()) + 1e-9)


@pytest.mark.parametrize("multiplicity", [2, 3, 40])
def test_the_hessian_of_a_multiple_of_the_identity(multiplicity):
    """tr A^2 and log det A at A = I, along a direction without a diagonal."""
    n = multiplicity
    pattern = ls.CSR.from_dense(torch.ones(n, n, dtype=F64)).pattern
    V = normal(n, n).tril(-1)
    V = (V + V.T).flatten()
    for f, times in ((FUNCTIONS["squares"], 2.0), (FUNCTIONS["logarithm"], -1.0)):
        a = torch.eye(n, dtype=F64).flatten().requires_grad_()
        (g,) = torch.autograd.grad(f(ls.eigsh(ls.CSR(a, pattern), n).values), a, create_graph=True)
        (hessian,) = torch.autograd.grad(g, a, V)
        torch.testing.assert_close(hessian, times * V, rtol=1e-9, atol=1e-9)


def test_forward_over_reverse_in_a_cluster():
    P, f = SQUARE.pattern, FUNCTIONS["products"]
    V = normal(SQUARE.nnz, seed=0)
    wanted = second(lambda a: f(ls.eigsh(symmetric(a, P), 3).values), [SQUARE.values])[1]
    with warnings.catch_warnings(), torch.autograd.forward_ad.dual_level():
        warnings.simplefilter("ignore")
        a = torch.autograd.forward_ad.make_dual(SQUARE.values.clone().requires_grad_(), V)
        values = ls.eigsh(symmetric(a, P), 3).values
        (g,) = torch.autograd.grad(f(values), a, create_graph=True)
        tangent = torch.autograd.forward_ad.unpack_dual(g).tangent
    torch.testing.assert_close(tangent, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("transform", ["hessian", "grad of grad", "jacrev of jacrev"])
def test_second_derivatives_that_torch_func_hides_are_named(transform):
    """It releases the graph of the loss, or does not show it."""
    f = lambda a: FUNCTIONS["products"](ls.eigsh(symmetric(a, SQUARE.pattern), 3).values)  # noqa: E731
    F = torch.func
    calls = {
        "hessian": F.hessian(f),
        "grad of grad": F.grad(lambda a: F.grad(f)(a).pow(2).sum()),
        "jacrev of jacrev": F.jacrev(F.jacrev(f)),
    }
    with pytest.warns(RuntimeWarning, match=r"second derivative .* Call torch.autograd.grad"):
        calls[transform](SQUARE.values)


def third(f):
    """A product of the third derivative with directions, and the warnings of the last order."""
    a = SQUARE.values.clone().requires_grad_()
    loss = f(a)
    for seed in range(2):
        (g,) = torch.autograd.grad(loss, a, create_graph=True)
        loss = (g * normal(len(g), seed=seed)).sum()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (g,) = torch.autograd.grad(loss, a)
    return g, [str(w.message) for w in caught if w.category is RuntimeWarning]


def test_third_derivatives_in_a_cluster_are_named():
    """Those of sums of values and of squares are right."""
    P = SQUARE.pattern
    pairs = {n: third(lambda a, n=n: FUNCTIONS[n](ls.eigsh(symmetric(a, P), 3).values)) for n in FUNCTIONS}
    assert "third derivatives" in pairs["logarithm"][1][0]
    for name in ("squares", "sum"):
        found, said = pairs[name]
        assert not said
        wanted, _ = third(
            lambda a, n=name: contour(n, symmetric(a, P).to_dense(), torch.eye(36, dtype=F64), 0.2, 1.2)
        )
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-8)


# --- `eigsh` gives all copies of multiple eigenvalues, and right values where single entries are huge ---


def line(n, periodic=False):
    """The eigenvalues of a line of a grid."""
    angles = 2 * math.pi * torch.arange(n, dtype=F64) / n
    return 2 - 2 * torch.cos(angles if periodic else math.pi * torch.arange(1, n + 1, dtype=F64) / (n + 1))


def cube(n, periodic=False):
    values = line(n, periodic)
    return (values[:, None, None] + values[:, None] + values).flatten().sort().values


PERIODIC = ls.problems.poisson((8, 8, 8), boundary="periodic")


@pytest.mark.parametrize("k", [19, 8, 33])
def test_all_copies_of_a_periodic_cube(k):
    pairs = ls.eigsh(PERIODIC, k, throw=True)
    torch.testing.assert_close(pairs.values, cube(8, True)[:k], rtol=1e-10, atol=1e-10)
    I = pairs.vectors.T @ pairs.vectors  # noqa: E741
    torch.testing.assert_close(I, torch.eye(k, dtype=F64), rtol=0, atol=1e-9)


@pytest.mark.parametrize("k", [5, 12, 17, 20])
def test_all_copies_of_the_largest_values(k):
    pairs = ls.eigsh(ls.problems.poisson((8, 8, 8)), k, which="largest", throw=True)
    torch.testing.assert_close(pairs.values, cube(8)[-k:], rtol=1e-10, atol=0)
    shifted = ls.ops.add(PERIODIC, ls.ops.eye(512), beta=-20.0)  # negative definite
    pairs = ls.eigsh(shifted, k, which="largest", throw=True)
    torch.testing.assert_close(pairs.values, cube(8, True)[-k:] - 20, rtol=1e-10, atol=0)


@pytest.mark.parametrize("B", [None, 3.0])
@pytest.mark.parametrize("which", [3.01, "smallest", "largest"])
def test_all_copies_with_B_and_near_a_number(which, B):
    values = cube(8, True) / (B or 1)
    at = (values - which).abs().argsort()[:17].sort().values if which == 3.01 else slice(0, 17)
    wanted = values[-17:] if which == "largest" else values[at]
    pairs = ls.eigsh(PERIODIC, 17, which=which, B=B and ls.ops.eye(512) * B, throw=True)
    torch.testing.assert_close(pairs.values, wanted, rtol=1e-10, atol=1e-10)


def test_all_copies_in_float32_and_by_lobpcg():
    for options in ({}, {"M": ls.factorize(ls.ops.add(PERIODIC, ls.ops.eye(512)).to(torch.float32))}):
        pairs = ls.eigsh(PERIODIC.to(torch.float32), 19, throw=True, **options)
        torch.testing.assert_close(pairs.values, cube(8, True)[:19].float(), rtol=1e-4, atol=1e-4)


def test_pairs_that_may_not_be_the_smallest_are_not_converged(monkeypatch):
    """If the search for missing copies does not end, nothing is known."""
    run = _methods._run

    def without_search(A, B, k, *rest):
        found = run(A, B, k, *rest)
        return found if k > 1 else (found[0][:0], found[1][:, :0], found[2])

    monkeypatch.setattr(_methods, "_run", without_search)
    with pytest.warns(ConvergenceWarning, match="MAX_ITERATIONS"):
        assert not ls.eigsh(PERIODIC, 19).converged


# --- single huge entries ---


def penalized(n, c, at=-1):
    """tridiagonal(-1, 2, -1) of n beside one entry c, and the eigenvalues of the former."""
    order = np.argsort(np.insert(np.arange(n), at % (n + 1), n))
    T = sp.block_diag([sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n)), [[c]]], "csr")
    return ls.CSR.from_scipy(sp.csr_array(T[order][:, order])), line(n)


@pytest.mark.parametrize("n", [300, 100])
@pytest.mark.parametrize("c", [1e15, 1e16, 1e20, 1e30])
def test_one_huge_entry_leaves_the_small_values_right(n, c):
    for at in (-1, n // 3):
        A, wanted = penalized(n, c, at)
        for which in ("smallest", 1.0):
            pairs = ls.eigsh(A, 3, which=which, throw=True)
            near = wanted[(wanted - which).abs().argsort()[:3]] if which == 1.0 else wanted[:3]
            torch.testing.assert_close(pairs.values, near.sort().values, rtol=1e-10, atol=0)


@pytest.mark.parametrize("dtype", [F64, torch.float32])
@pytest.mark.parametrize("method", ["dense", "lobpcg", "arpack"])
@pytest.mark.parametrize("n", [300, 100])
def test_scaled_rows_give_the_right_values_or_a_status(method, n, dtype):
    """A row and its column 1e10 times the others, between others: the eigenvalues of the rest, to 1e-8."""
    size = 1e10 if dtype == F64 else 1e5
    A, _ = penalized(n, 1.0)
    T = A.to_dense()[:n, :n]
    s = torch.ones(n, dtype=F64)
    s[n // 2] = size
    rest = torch.cat((torch.arange(n // 2), torch.arange(n // 2 + 1, n)))
    schur = T[rest][:, rest] - T[rest][:, [n // 2]] @ T[[n // 2]][:, rest] / 2
    wanted = torch.linalg.eigvalsh(schur)[:3]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        S = ls.CSR.from_dense((s[:, None] * T * s).to(dtype))
        pairs = ls.eigsh(S, 3, method=method, **({"maxiter": 50} if method == "lobpcg" else {}))
    if method == "arpack":
        assert pairs.converged
    bound = (2e-8 if dtype == F64 else 2e-4) * wanted[-1] + 2000 * torch.finfo(dtype).eps
    for value, right, status in zip(pairs.values, wanted, pairs.statuses, strict=True):
        assert abs(value - right) <= bound or status is not Status.CONVERGED


def test_gradients_beside_a_huge_entry():
    """Rounding in the huge entry makes no cluster of all others."""
    n = 300
    A, _ = penalized(n, 1e20)
    small = ls.CSR.from_scipy(sp.csr_array(A.to_scipy()[:n, :n])).requires_grad_()
    A.requires_grad_()
    weights = torch.linspace(0, 1, n, dtype=F64).unsqueeze(1)
    grads = []
    for S in (A, small):
        pairs = ls.eigsh(S, 3, throw=True)
        loss = pairs.values.prod() + (weights * pairs.vectors[:n] ** 4).sum()
        grads.append(torch.autograd.grad(loss, S.values)[0])
    torch.testing.assert_close(grads[0][:-1], grads[1], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("which", ["smallest", "largest"])
@pytest.mark.parametrize("method", ["arpack", "dense", "lobpcg"])
def test_zero_rows_have_the_value_zero(method, which):
    """As isolated nodes of a graph have: nothing but rounding errors is left in A u, and in |A| |u|."""
    for sign in (1, -1):
        d = torch.zeros(280, dtype=F64)
        d[7], d[9] = sign, 3 * sign
        for k in (1, 3):
            pairs = ls.eigsh(ls.CSR.from_dense(d.diag()), k, which=which, method=method, throw=True)
            wanted = d.sort().values[:k] if which == "smallest" else d.sort().values[-k:]
            torch.testing.assert_close(pairs.values, wanted, rtol=1e-12, atol=1e-12)


# --- singular triplets of matrices that are singular or nearly so, and eigenpairs of zero ---


both = pytest.mark.parametrize("which", ["largest", "smallest"])


def of_values(m, n, values, seed=0):
    """Dense, with these singular values."""
    U, V = (torch.linalg.qr(reference.normal((k, len(values)), seed=seed + k))[0] for k in (m, n))
    return (U * torch.tensor(values, dtype=U.dtype)) @ V.mT


def check(D, triplets, which, tolerance):
    U, S, V, pairs = triplets
    k, exact = len(S), torch.linalg.svdvals(D)
    size = float(exact[0]) or 1.0
    assert pairs.converged
    some = exact[:k] if which == "largest" else exact[len(exact) - k :]
    assert (S - some).abs().max() <= tolerance * size
    for X in (U, V):
        torch.testing.assert_close(X.mT @ X, torch.eye(k, dtype=X.dtype), rtol=0, atol=100 * tolerance)
    assert (D @ V - U * S).abs().max() <= 100 * tolerance * size
    assert (D.mT @ U - V * S).abs().max() <= 100 * tolerance * size


@both
@pytest.mark.parametrize(
    ("large", "dtype"),
    [
        (False, torch.float64),
        (False, torch.float32),
        (True, torch.float64),
        pytest.param(True, torch.float32, marks=pytest.mark.slow),  # computed in float64 too
    ],
    ids=str,
)
def test_singular_values_of_zero(which, dtype, large):
    """Also those that come with a null space of A and another of its transpose; and A = 0."""
    n = 290 if large else 9
    for m, values in ((n + 4, [3.0, 2.0]), (n, [2.0, 1.0, 0.5]), (n - 3, [1.0]), (n + 1, [0.0])):
        D = of_values(m, n, values).to(dtype)
        triplets = ls.svds(ls.CSR.from_dense(D), 4, which=which)
        check(D, triplets, which, 20 * torch.finfo(dtype).eps)
    ones = torch.ones(5, 6, dtype=dtype)
    check(ones, ls.svds(ls.CSR.from_dense(ones), 2, which=which), which, 20 * torch.finfo(dtype).eps)


@both
def test_tiny_singular_values(which):
    """Relative to the largest 1e-7 and less, whose squares are rounding errors of A^T A."""
    for n, tiny in ((20, [1e-7, 3e-8]), (20, [1e-7, 1e-11, 0.0]), (300, [1e-7])):
        values = torch.cat((torch.linspace(2, 1, n - len(tiny)), torch.tensor(tiny)))
        D = of_values(n + 5, n, values.double().tolist())
        check(D, ls.svds(ls.CSR.from_dense(D), 3, which=which), which, 1e-14)


@both
@pytest.mark.parametrize("values", [[2.0, 1.0, 0.5, 0.1, 0.0], [2.0, 1.5, 1.0, 1e-3, 1e-7]], ids=str)
def test_gradients_beside_a_zero(which, values):
    """Of values and vectors, for a simple value of zero of a square matrix too."""
    D, k = of_values(5, 5, values), 3
    P = ls.CSR.from_dense(torch.ones(5, 5)).pattern
    C, c = reference.normal((5, k)), reference.normal((k,), seed=3)
    some = slice(0, k) if which == "largest" else slice(5 - k, 5)

    def loss(U, S, V):
        return (S * c).sum() + ((U * (U * C).sum(0)) * C).sum() + ((V * (V * C).sum(0)).square() * C).sum()

    v, w = (D.flatten().requires_grad_() for _ in range(2))
    U, S, V, _ = ls.svds(ls.CSR(v, P), k, which=which)
    W, s, Xh = torch.linalg.svd(w.view(5, 5))
    (found,), (wanted,) = grad(loss(U, S, V), v), grad(loss(W[:, some], s[some], Xh.mT[:, some]), w)
    torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-7 * float(wanted.abs().max()))


@both
@pytest.mark.parametrize("large", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_third_derivatives(which, large):
    """In which the mirror of a pair has a part."""
    m, n = (290, 270) if large else (6, 5)
    D = of_values(m, n, torch.linspace(1, 3, n, dtype=torch.float64).tolist())
    P, w = ls.CSR.from_dense(torch.ones(m, n)).pattern, reference.normal((m, n), seed=5)

    def third(vectors):
        v = D.flatten().requires_grad_()
        U, V = vectors(v)
        g = ((w @ V) * U).sum()
        for seed in range(3):
            g = grad(g, v, create_graph=True)[0] @ reference.normal((m * n,), seed=seed)
        return g.detach()

    def ours(v):
        U, _, V, _ = ls.svds(ls.CSR(v, P), 1, which=which)
        return U, V

    def dense(v):
        U, _, Vh = torch.linalg.svd(v.view(m, n), full_matrices=False)
        at = slice(0, 1) if which == "largest" else slice(n - 1, n)
        return U[:, at], Vh.mT[:, at]

    torch.testing.assert_close(third(ours), third(dense), rtol=1e-7, atol=0)


def test_an_undefined_derivative_warns():
    A = ls.CSR.from_dense(torch.ones(5, 6).double()).requires_grad_()
    U, S = ls.svds(A, 2)[:2]
    (g,) = grad(S.sum() + U[0, 0], A.values, retain_graph=True)
    assert g.isfinite().all()
    with pytest.warns(RuntimeWarning, match="undefined"):
        grad(U[1, 1], A.values)


@both
@pytest.mark.parametrize("n", [6, 300])
@pytest.mark.parametrize("method", ["auto", "arpack", "lobpcg"])
def test_eigenpairs_of_zero(which, n, method):
    for B in (None, ls.ops.diag(torch.arange(1.0, n + 1).double())):
        A = ls.ops.diag(torch.zeros(n, dtype=torch.float64)).requires_grad_()
        pairs = ls.eigsh(A, 3, B=B, which=which, method=method)
        assert pairs.converged
        assert (pairs.values == 0).all()
        U = pairs.vectors
        torch.testing.assert_close(U.mT @ (U if B is None else B @ U), torch.eye(3, dtype=U.dtype))
        (g,) = grad(pairs.values.sum(), A.values)
        torch.testing.assert_close(g, U.square().sum(1))
    assert (ls.eigsh(ls.ops.zeros(n, n, dtype=torch.float64), 2, which=which).values == 0).all()
