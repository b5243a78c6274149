"""Preconditioners of values that carry a graph: what a network predicts. The rows of cases.py run the
contract."""

import pytest
import torch
from preconditioners.cases import CASES, dense, general, matrix, spd
from reference import normal

import learnsolve as ls

P, S = ls.preconditioners, ls.solvers
A, G = spd(), general()
L, (LOWER, U, _) = ls.ops.ic0(A).L, ls.ops.ilu0(G)
THETA = normal((2,), seed=5) * 0.1


def predicted(v: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
    """What a network makes of values v."""
    return v * (1 + theta[0] * (v * theta[1]).tanh())


def with_values(T: ls.CSR, theta: torch.Tensor) -> ls.CSR:
    return T.with_values(predicted(T.values, theta))


KINDS = {
    "solve": lambda theta: P.Factored(with_values(L, theta)),
    "product": lambda theta: P.Factored(0.3 * with_values(L, theta), form="product"),
    "shift": lambda theta: P.Factored(0.3 * L, form="product", shift=(1 + theta[0]) ** 2),
    "diagonal": lambda theta: P.Diagonal(predicted(1 / A.diagonal(), theta)),
    "polynomial": lambda theta: P.Polynomial(A, 1 + theta, interval=(0.0, 2 + theta[1])),
}
kinds = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


@kinds
def test_gradients_through_unrolled_cg(make, quick):
    b = normal((20,))

    def solve(theta):
        solution = S.cg(A, b, M=make(theta), rtol=0, maxiter=3, gradient="unrolled")
        return solution.x, solution.residual_norms

    theta = THETA.clone().requires_grad_()
    assert torch.autograd.gradcheck(solve, theta)
    assert torch.autograd.gradgradcheck(solve, theta, fast_mode=quick)


@kinds
def test_the_implicit_gradient_does_not_depend_on_it(make, quick):
    """M of the numbers: x of A(theta) x = b has its gradient, to second order, whatever M is."""
    b = normal((20,))

    def solve(theta):
        of = A.with_values(A.values * (1 + theta[0] ** 2) + theta[1] * (A.values > 0))
        return S.cg(of, b, M=make(theta.detach()), rtol=1e-13).x

    theta = THETA.clone().requires_grad_()
    assert torch.autograd.gradcheck(solve, theta)
    assert torch.autograd.gradgradcheck(solve, theta, fast_mode=quick)


@kinds
def test_with_its_graph_the_implicit_gradient_refuses_it_and_says_what_to_do(make):
    theta, b = THETA.clone().requires_grad_(), normal((20,))
    words = 'fcg: M requires grad, .*gradient="unrolled".*torch.no_grad.*make it of detached tensors'
    with pytest.raises(ValueError, match=words):
        S.fcg(A, b, M=make(theta))
    with torch.no_grad():
        assert S.fcg(A, b, M=make(theta)).converged


def test_a_factor_of_each_matrix_of_a_batch():
    theta = torch.stack((THETA, 2 * THETA)).requires_grad_()
    values = torch.stack([predicted(L.values, t) for t in theta])
    b = normal((20, 1))
    together = S.cg(A, b.expand(2, 20, 1), M=P.Factored(L.with_values(values)), gradient="unrolled")
    together.x.square().sum().backward()
    for i, t in enumerate(theta):
        alone = t.detach().clone().requires_grad_()
        x = S.cg(A, b, M=P.Factored(with_values(L, alone)), gradient="unrolled").x
        x.square().sum().backward()
        assert torch.allclose(together.x[i], x, rtol=1e-4)
        assert torch.allclose(theta.grad[i], alone.grad, rtol=1e-6, atol=1e-12)


R = normal((20, 2))
CALLS = {
    "solve": (lambda v: P.Factored(L.with_values(v))(R), L.values),
    "LU": (lambda v: P.Factored(LOWER, U.with_values(v))(R), U.values),
    "product": (lambda v: P.Factored(L.with_values(v), form="product", shift=v[0] ** 2)(R), L.values),
    "diagonal": (lambda v: P.Diagonal(v)(R), A.diagonal()),
    "polynomial": (lambda v: P.Polynomial(A, v, symmetric=True)(R), torch.ones(3).double()),
}


def test_forward_mode_and_vmap():
    for name, (f, v) in CALLS.items():
        tangent, h = normal(v.shape, seed=3), 1e-6
        _, along = torch.func.jvp(f, (v,), (tangent,))
        wanted = (f(v + h * tangent) - f(v - h * tangent)) / (2 * h)
        assert torch.allclose(along, wanted, rtol=1e-5, atol=1e-7), name
        together = torch.vmap(f)(torch.stack((v, 1.1 * v)))
        assert torch.allclose(together[1], f(1.1 * v), rtol=1e-12), name


@pytest.mark.usefixtures("fresh_compiler")
def test_torch_compile():
    calls = [CALLS[name] for name in ("solve", "product", "polynomial")]
    values = [v.clone().requires_grad_() for _, v in calls]

    def loss(*values):
        return sum(f(v).square().sum() for (f, _), v in zip(calls, values, strict=True))

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found, wanted = (torch.autograd.grad(f(*values), values) for f in (compiled, loss))
    for f, w in zip(found, wanted, strict=True):
        assert torch.allclose(f, w, rtol=1e-10)


def test_values_against_dense_algebra():
    D, LD, UD = L.to_dense(), LOWER.to_dense(), U.to_dense()
    one = torch.eye(20, dtype=torch.float64)
    shift = torch.tensor(0.7, dtype=torch.float64)
    T = (A.to_dense() - 5 * one) / 4  # of [1, 9] onto [-1, 1]
    pairs = [
        (P.Factored(L), torch.linalg.inv(D @ D.T)),
        (P.Factored(LOWER, U), torch.linalg.inv(LD @ UD)),
        (P.Factored(L, form="product", shift=0.5), D @ D.T + 0.5 * one),
        (P.Factored(L[:, :5], form="product", shift=shift), D[:, :5] @ D[:, :5].T + 0.7 * one),
        (P.Factored(LOWER, U, form="product"), LD @ UD),
        (P.Polynomial(A, [2.0, -0.5], M=None), 2 * one - 0.5 * A.to_dense()),
        (
            P.Polynomial(A, [2.0, -0.5, 0.3], M=None, interval=(1.0, 9.0)),
            1.7 * one - 0.5 * T + 0.6 * T @ T,
        ),
    ]
    for M, wanted in pairs:
        assert torch.allclose(dense(M), wanted, rtol=1e-12, atol=1e-12), M


@pytest.mark.parametrize(
    "case", [c for c in CASES if isinstance(c.make(matrix(c)), P.Trainable)], ids=lambda c: c.name
)
def test_modules_hold_the_parameters_of_one_that_carries_a_graph(case):
    M, r = case.make(matrix(case)), normal((20, 2))
    now = M.build()
    assert not isinstance(now, torch.nn.Module)
    assert (now.shape, now.symmetric, now.dtype) == (M.shape, M.symmetric, M.dtype)
    assert torch.equal(now(r), M(r))
    assert torch.equal(now.T(r), M.T(r))
    grads = torch.autograd.grad(now(r).square().sum(), list(M.parameters()))
    assert all(g.abs().sum() > 0 for g in grads)


def test_made_of_all_that_may_require_grad():
    learns = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    for M in (
        P.Factored(with_values(L, learns.expand(2))),
        P.Factored(LOWER, with_values(U, learns.expand(2))),
        P.Factored(L, form="product", shift=learns),
        P.Diagonal(learns.expand(20)),
        P.Polynomial(A, learns.expand(2)),
        P.Polynomial(A, [1.0], interval=(learns, 2.0)),
        P.Polynomial(A, [1.0], M=P.Diagonal(learns.expand(20))),
        P.Polynomial(with_values(A, learns.expand(2)), [1.0], M=None),
    ):
        assert any(t.requires_grad for t in M.depends_on), M


def test_compiled_forms():
    kinds = [
        (P.Factored(L), "triangular"),
        (P.Factored(L, form="product"), "product"),
        (P.Factored(L, form="product", shift=0.3), "product"),
        (P.Factored(L[:, :5], form="product", shift=torch.tensor(0.3).double()), "product"),
        (P.Diagonal(A.diagonal()), "diagonal"),
    ]
    assert [M.pcg_form()[0] for M, _ in kinds] == [kind for _, kind in kinds]
    assert P.Factored(LOWER, U).pcg_form() is None


def zero(T: ls.CSR, row: int, value: float = 0.0) -> ls.CSR:
    values = T.values.clone()
    values[T.pattern.diagonal_positions[row]] = value
    return T.with_values(values)


F, NAN = P.Factored, float("nan")
LEARNS = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: F(L.to_dense()), TypeError, "Factored: L must be a CSR, got Tensor"),
        (lambda: F(L, form="inverse"), ValueError, r"form must be one of \('solve', 'product'\)"),
        (lambda: F(A), ValueError, r"L must be lower triangular, but 31 of its 82 .*take ops.tril\(L\)"),
        (lambda: F(LOWER, LOWER), ValueError, r"U must be upper triangular, .*take ops.triu\(U\)"),
        (lambda: F(L[:, :5]), ValueError, "L must be square"),
        (lambda: F(L.tril(-1)), ValueError, "L must have an entry on its diagonal in every row, row 0 has"),
        (lambda: F(LOWER, U.triu(1)), ValueError, "U must have an entry on its diagonal"),
        (lambda: F(zero(L, 3)), ValueError, "L is divided by, .*row 3 has 0; shift it"),
        (lambda: F(LOWER, zero(U, 4, 1e-320)), ValueError, "U is divided by, .*overflows, row 4 has"),
        (
            lambda: F(L.with_values(torch.stack((L.values, zero(L, 2).values)))),
            ValueError,
            "row 2 of matrix 1 of the batch",
        ),
        (lambda: F(zero(L, 3, NAN)), ValueError, "L's values must be finite, got nan in row 3"),
        (lambda: F(LOWER, zero(U, 3, NAN)), ValueError, "U's values must be finite"),
        (lambda: F(L, U), ValueError, "beside a U, L must have ones on its diagonal, or no entries, row 0"),
        (lambda: F(LOWER, U.to(dtype=torch.float32)), TypeError, "U.values has dtype torch.float32"),
        (lambda: F(L, shift=0.1), ValueError, 'shift is for form="product"'),
        (lambda: F(L, form="product", shift=-1.0), ValueError, "shift must be positive and finite, got -1"),
        (lambda: F(L, form="product", shift=LEARNS), ValueError, "shift must be positive and finite, got -1"),
        (lambda: F(L[:, :5], L, form="product"), ValueError, r"U must have shape \(5, 20\)"),
        (lambda: P.Diagonal([1.0]), TypeError, "d must be a torch.Tensor"),
        (lambda: P.Diagonal(torch.ones(3).int()), TypeError, "d must be float32 or float64"),
        (lambda: P.Diagonal(torch.tensor(1.0)), ValueError, "got a scalar; use d.expand"),
        (lambda: P.Diagonal(torch.tensor([1.0, NAN])), ValueError, "d must be finite, got nan in row 1"),
        (lambda: P.Polynomial(A, []), ValueError, r"shape \(degree \+ 1,\), got \(0,\)"),
        (lambda: P.Polynomial(A, [1.0, NAN]), ValueError, "finite, .*that of degree 1 is one"),
        (lambda: P.Polynomial(A, [1.0], interval=(2.0, LEARNS)), ValueError, "lo < hi"),
        (lambda: P.Polynomial(A, torch.ones(3)), TypeError, "coefficients has dtype torch.float32"),
        (lambda: P.Polynomial(A, [1.0], M=lambda r: r), TypeError, "M must be a Preconditioner"),
    ],
)
def test_errors(make, error, words):
    with pytest.raises(error, match=words):
        make()


def tracked(T: ls.CSR) -> ls.CSR:
    return T.with_values(T.values.clone().requires_grad_())


@pytest.mark.parametrize(
    "make",
    [
        lambda: P.Factored(tracked(L)),
        lambda: P.Factored(LOWER, tracked(U)),
        lambda: P.IC0(tracked(A)),
        lambda: P.FSAI(tracked(A)),
        lambda: P.Jacobi(A, LEARNS.expand(20)),
        lambda: P.Jacobi(tracked(A)),
        lambda: P.Polynomial(A, LEARNS.expand(3)),
        lambda: P.Polynomial(tracked(A), [1.0]),
        lambda: P.Polynomial(A, [1.0], M=P.Diagonal(LEARNS.expand(20))),
        lambda: P.AMG(A, max_coarse=4, weight=-LEARNS),
    ],
)
def test_a_module_refuses_a_graph_that_would_end_in_it(make):
    with pytest.raises(
        ValueError, match=r"^Trainable: .*requires grad.*\.detach\(\).*use M itself, which keeps"
    ):
        P.Trainable(make())
