"""tr(X^T A X)."""

import itertools

import pytest
import torch
from reference import (
    assert_within,
    densify,
    gradients,
    grid,
    inputs_for,
    normal,
    pattern_of,
    power_law,
    random,
)

import learnsolve as ls

F64 = torch.float64
STRUCTURES = {
    "random": random(23, 23, 0.2),
    "5 points": grid(5, 6),
    "power law": power_law(24),
    "1 x 1": random(1, 1, 2.0),
    "no entry": random(4, 4, -1.0),
    "0 x 0": random(0, 0, 0.5),
}
P = pattern_of(random(5, 5, 0.5))


def sparse(v, x, P=P, symmetric=False):
    return ls.ops.quadratic_form(ls.CSR(v, P), x, symmetric=symmetric)


def dense(v, x, P=P):
    x = x.unsqueeze(-1) if x.dim() == 1 else x
    return (x * (densify(P, v) @ x)).sum((-2, -1))


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("columns", [(), (1,), (3,), (0,)], ids=str)
def test_value_and_gradients(structure, columns):
    for index, dtype in itertools.product((torch.int32, torch.int64), (torch.float32, F64)):
        Q = pattern_of(STRUCTURES[structure], index)
        inputs = inputs_for(((Q.nnz,), (Q.shape[0], *columns)), dtype)
        exact = [t.double() for t in inputs]
        size, ones = [t.abs() for t in exact], [torch.ones_like(t) for t in exact]
        out = sparse(*inputs, Q)
        assert out.dtype == dtype
        terms = dense(*ones, Q) + Q.shape[0] + 2  # the product, then the sum
        assert_within(out, dense(*exact, Q), dense(*size, Q), terms, "value")
        g = normal((), dtype, seed=9)
        found = gradients(lambda *a: sparse(*a, Q), inputs, g)  # noqa: B023
        wanted = gradients(lambda *a: dense(*a, Q), exact, g.double())  # noqa: B023
        magnitude = gradients(lambda *a: dense(*a, Q), size, g.double().abs())  # noqa: B023
        for i, t in enumerate(found):
            count = gradients(lambda *a: dense(*a, Q), ones, torch.ones((), dtype=F64))[i] + 3  # noqa: B023
            assert_within(t, wanted[i], magnitude[i], count, f"gradient {i}")


@pytest.mark.parametrize("columns", [(), (3,)], ids=str)
def test_symmetric(columns):
    A = ls.problems.poisson((4, 3))
    x, v = normal((12, *columns)), A.values
    for which in ((0, 1), (1,), (0,)):
        results = []
        for symmetric in (False, True):
            a, y = (t.clone().requires_grad_(i in which) for i, t in enumerate((v, x)))
            q = sparse(a, y, A.pattern, symmetric)
            results.append((q, *torch.autograd.grad(q, [(a, y)[i] for i in which])))
        torch.testing.assert_close(*results, rtol=1e-14, atol=1e-14)
    y = x.clone().requires_grad_()
    g = torch.autograd.grad(sparse(v, y, A.pattern, True), y, create_graph=True)[0]
    hessian = torch.autograd.grad(g.sum(), y)[0]
    torch.testing.assert_close(hessian, 2 * (A @ torch.ones_like(x)), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("columns", [(), (3,)], ids=str)
def test_symmetric_is_a_promise(columns):
    """If A breaks it the gradient is 2 g A x, where it should be g (A + A^T) x: the keyword is used."""
    v, x = normal((P.nnz,)), normal((5, *columns), seed=1).requires_grad_()
    (found,) = torch.autograd.grad(3 * sparse(v, x, symmetric=True), x)
    torch.testing.assert_close(found, 6 * (densify(P, v) @ x.detach()), rtol=1e-13, atol=1e-13)
    (general,) = torch.autograd.grad(3 * sparse(v, x), x)
    assert not torch.allclose(found, general)


A, X = ls.CSR(normal((P.nnz,)), P), normal((5, 2))


@pytest.mark.cpu_only
@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda q: q(A.to_dense(), X), TypeError, "A must be a CSR, got Tensor; make one with CSR"),
        (lambda q: q(A.to(torch.int64), X.long()), TypeError, "A.values must be float32 or float64"),
        (
            lambda q: q(ls.CSR.from_dense(torch.ones(2, 3)), torch.ones(3)),
            ValueError,
            r"A must be square, got shape \(2, 3\)",
        ),
        (lambda q: q(A, [1.0] * 5), TypeError, "x must be a torch.Tensor, got list"),
        (lambda q: q(A, X.float()), TypeError, "x has dtype torch.float32, the matrix torch.float64"),
        (lambda q: q(A, X.to("meta")), TypeError, "x is on meta, the matrix on cpu"),
        (lambda q: q(A, X[:4]), ValueError, r"x must have A.shape\[0\] = 5 rows, got shape \(4, 2\)"),
        (lambda q: q(A, X[0, 0]), ValueError, r"x must have A.shape\[0\] = 5 rows, got shape \(\)"),
        (
            lambda q: q(A.with_values(torch.stack((A.values, A.values))), X.expand(3, 5, 2)),
            ValueError,
            r"the batch axes of A.values and x must broadcast, got \(2,\) and \(3,\)",
        ),
    ],
)
def test_errors(call, kind, message):
    with pytest.raises(kind, match=f"^quadratic_form: {message}"):
        call(ls.ops.quadratic_form)


def test_symmetric_second_derivatives_are_those_of_the_general_form():
    A = ls.problems.poisson((5,))
    h = torch.arange(5.0, dtype=torch.float64)

    def mixed(symmetric):
        v = A.values.clone().requires_grad_()
        x = torch.linspace(1, 2, 5, dtype=torch.float64, requires_grad=True)
        q = ls.ops.quadratic_form(A.with_values(v), x, symmetric=symmetric)
        (gx,) = torch.autograd.grad(q, x, create_graph=True)
        return torch.autograd.grad(gx @ h, (v, x))

    torch.testing.assert_close(mixed(True), mixed(False), rtol=1e-14, atol=1e-14)
