"""Second derivatives of symmetric functions of equal eigenvalues, against contour integrals."""

import warnings

import pytest
import torch

import learnsolve as ls

F64 = torch.float64
SQUARE = ls.problems.poisson((6, 6))  # 0.396, twice 0.951, then 1.506
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


def normal(*shape, seed=1):
    return torch.randn(shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def symmetric(values, pattern):
    return ls.CSR(0.5 * (values + values[..., pattern.transpose_permutation]), pattern)


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
    with pytest.warns(RuntimeWarning, match=r"second derivative .* use torch.autograd.grad"):
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
