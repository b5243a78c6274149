"""Preconditioners of values that carry a graph, and the forms in which the compiled loop of cg takes them."""

import pytest
import torch
from preconditioners.cases import CASES, _labels, dense, general, matrix, spd
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
def test_gradients_through_unrolled_cg(make):
    b = normal((20,))

    def solve(theta):
        solution = S.cg(A, b, M=make(theta), rtol=0, maxiter=3, gradient="unrolled")
        return solution.x, solution.residual_norms

    theta = THETA.clone().requires_grad_()
    assert torch.autograd.gradcheck(solve, theta)
    assert torch.autograd.gradgradcheck(solve, theta, fast_mode=True)


@kinds
def test_the_implicit_gradient_does_not_depend_on_it(make):
    """M of the numbers: x of A(theta) x = b has its gradient, to second order, whatever M is."""
    b = normal((20,))

    def solve(theta):
        of = A.with_values(A.values * (1 + theta[0] ** 2) + theta[1] * (A.values > 0))
        return S.cg(of, b, M=make(theta.detach()), rtol=1e-13).x

    theta = THETA.clone().requires_grad_()
    assert torch.autograd.gradcheck(solve, theta)
    assert torch.autograd.gradgradcheck(solve, theta, fast_mode=True)


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


def test_the_kinds_of_compiled_forms():
    kinds = [
        (P.Factored(L), "triangular"),
        (P.Factored(L, form="product"), "product"),
        (P.Factored(L, form="product", shift=0.3), "product"),
        (P.Factored(L[:, :5], form="product", shift=torch.tensor(0.3).double()), "product"),
        (P.Diagonal(A.diagonal()), "diagonal"),
    ]
    assert [M.pcg_form()[0] for M, _ in kinds] == [kind for _, kind in kinds]
    assert P.Factored(LOWER, U).pcg_form() is None


F, NAN = P.Factored, float("nan")
LEARNS = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)

P = ls.preconditioners
OMEGA = torch.tensor(1.3, dtype=torch.float64)
MAKERS = {
    "SSOR": lambda A, omega: P.SSOR(A, omega, symmetric=True),
    "BlockJacobi": lambda A, _: P.BlockJacobi(A, 3, symmetric=True),
    "BlockJacobi, labels": lambda A, _: P.BlockJacobi(A, blocks=_labels(A), symmetric=True),
    "Schwarz": lambda A, _: P.AdditiveSchwarz(A, n_subdomains=3, symmetric=True),
}
makers = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


@makers
@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
def test_the_factor_is_one_of_M(make, batch):
    A = spd()
    A = A.with_values(A.values * torch.linspace(1, 2, 2, dtype=A.dtype).reshape(2, 1)[: len(batch) or 1])
    A = A if batch else A.with_values(A.values[0])
    M = make(A, OMEGA)
    kind, values, pattern = M.pcg_form()
    F = ls.CSR(values, pattern).to_dense()
    found = F @ F.mT if kind == "product" else torch.linalg.inv(F.tril() @ F.tril().mT)
    torch.testing.assert_close(found, dense(M), rtol=1e-11, atol=1e-13)


def run(make, A, values, omega, b, apart, gradient="unrolled"):
    M = make(A.with_values(values), omega)
    given = (lambda r: M(r)) if apart else M
    out = ls.solvers.cg(A.with_values(values), b, M=given, rtol=0, maxiter=4, gradient=gradient)
    assert out.execution == ("eager" if apart else "compiled")
    return out.x, out.residual_norms


@makers
def test_gradients_of_unrolled_iterations(make):
    """By finite differences; and as op by op, along symmetric changes of A."""
    A, b = spd(3), normal((12, 2)).requires_grad_()
    inputs = A.values.clone().requires_grad_(), OMEGA.clone().requires_grad_(), b
    assert torch.autograd.gradcheck(lambda *t: run(make, A, *t, False), inputs, fast_mode=True)
    turned = A.pattern.transpose_permutation.long()
    found = []
    for apart, gradient in ((True, "unrolled"), (False, "unrolled"), (False, "checkpointed")):
        x, norms = run(make, A, *inputs, apart, gradient)
        loss = (x * normal(x.shape, seed=8)).sum() + norms.square().sum()
        v, omega, r = torch.autograd.grad(loss, inputs, allow_unused=True)
        omega = torch.zeros(()) if omega is None else omega
        found.append((x, norms, v + v[turned], omega, r))
    torch.testing.assert_close(found[1], found[0], rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(found[2], found[1], rtol=1e-12, atol=1e-14)


@makers
def test_implicit_gradients(make):
    A, b = spd(), normal((20,)).requires_grad_()
    values = A.values.clone().requires_grad_()
    B = A.with_values(values)
    solution = ls.solvers.cg(B, b, M=make(B, 1.3), rtol=1e-13)
    solution.x.square().sum().backward()
    assert solution.execution == solution.adjoint.execution == "compiled"
    D, c = A.to_dense().requires_grad_(), b.detach().clone().requires_grad_()
    torch.linalg.solve(D, c).square().sum().backward()
    torch.testing.assert_close(b.grad, c.grad, rtol=1e-9, atol=1e-11)
    picked = D.grad[A.pattern.row_indices.long(), A.col_indices.long()]
    torch.testing.assert_close(values.grad, picked, rtol=1e-8, atol=1e-10)


def test_what_has_no_form():
    A = spd()
    minus = A.with_values(-A.values)
    for M in (
        P.SSOR(minus),
        P.SSOR(A, multicolor=True),
        P.SSOR(general()),
        P.BlockJacobi(minus, 2),
        P.BlockJacobi(general(), 2),
        P.AdditiveSchwarz(minus, n_subdomains=2),
        P.AdditiveSchwarz(A, n_subdomains=2, coarse=True),
        P.AdditiveSchwarz(A, n_subdomains=2, restricted=True),
    ):
        assert M.pcg_form() is None


@makers
def test_the_factor_is_kept_for_a_constant_matrix_alone(make):
    A = spd()
    M = make(A, 1.3)
    assert M.pcg_form()[1] is M.pcg_form()[1]
    values = A.values.clone().requires_grad_()
    M = make(A.with_values(values), 1.3)
    with torch.no_grad():
        M.pcg_form()
    assert M.pcg_form()[1].requires_grad
    with torch.inference_mode():
        M = make(A.with_values(A.values.clone()), 1.3)
        assert M.pcg_form()[1] is not M.pcg_form()[1]


def test_a_matrix_that_was_changed_in_place():
    A, b = spd(), normal((20,))
    A = A.with_values(A.values.clone())
    makers = (P.SSOR, lambda A: P.SSOR(A, 1.3), lambda A: P.BlockJacobi(A, 2), P.AdditiveSchwarz)
    made = [make(A) for make in makers]
    before = [M(b) for M in made]
    for M in made[:2]:
        M.pcg_form()
    A.values.mul_(2)
    for M, z in zip(made, before, strict=True):
        assert ls.solvers.cg(A, b, M=M).execution == "compiled"
        assert torch.equal(M(b), z)
