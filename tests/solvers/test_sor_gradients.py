"""Derivatives of the relaxations: every mode against dense autograd, any order, torch.func, torch.compile."""

import functools
import math
import warnings

import pytest
import torch
from reference import gradients, normal
from solvers.krylov import convection
from torch import func
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls

S = ls.solvers
A = convection(3, 3)
N, K = 9, 4
MODES = ("unrolled", "checkpointed")
DIRECTIONS = ("forward", "backward", "symmetric")
EVERY = (0, 1, 2, 3)


@pytest.fixture(autouse=True)
def adjoints_converge():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*did not converge")
        yield


def dense_sweeps(v, omega, b, x, direction, multicolour=False, sweeps=K):
    """The same with dense matrices: x and all norms."""
    p = ls.ordering.greedy_colouring(A).rows.long() if multicolour else torch.arange(N)
    D = A.with_values(v).to_dense()[p][:, p]
    T = D - torch.diag(torch.diag(D)) + torch.diag(torch.diag(D)) / omega
    b, x, norms = b[p], x[p], []
    for _ in range(sweeps):
        for step in ("forward", "backward"):
            r = b - D @ x
            if step == "forward":
                norms.append(torch.linalg.vector_norm(r, dim=0))
            if direction in (step, "symmetric"):
                x = x + torch.linalg.solve(torch.tril(T) if step == "forward" else torch.triu(T), r)
    norms.append(torch.linalg.vector_norm(b - D @ x, dim=0))
    return x[torch.argsort(p)], torch.stack(norms)


def sweeps(v, omega, b, x0, gradient="unrolled", direction="forward", multicolour=False, iterations=K):
    solution = S.sor(
        A.with_values(v), b, x0,
        omega=omega, direction=direction, multicolour=multicolour, iterations=iterations, gradient=gradient,
    )  # fmt: skip
    return solution.x, solution.residual_norms


def inputs(columns=(2,)):
    omega = torch.tensor(1.2, dtype=torch.float64)
    return A.values.clone(), omega, normal((N, *columns)), normal((N, *columns), seed=1)


def weighted(out):
    return sum((t * normal(tuple(t.shape), seed=9 + i)).sum() for i, t in enumerate(out))


@pytest.mark.parametrize("multicolour", [False, True])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("gradient", MODES)
@pytest.mark.parametrize("columns", [(), (2,)])
def test_a_fixed_number_against_dense(columns, gradient, direction, multicolour):
    args = [t.requires_grad_() for t in inputs(columns)]
    found = torch.autograd.grad(weighted(sweeps(*args, gradient, direction, multicolour)), args)
    expected = torch.autograd.grad(weighted(dense_sweeps(*args, direction, multicolour)), args)
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("gradient", MODES)
def test_to_a_tolerance_unrolled_is_the_gradient_of_what_ran(gradient, direction):
    args = [t.requires_grad_() for t in inputs()]
    v, omega, b, x0 = args
    x = S.sor(A.with_values(v), b, x0, omega=omega, direction=direction, rtol=0, maxiter=K, gradient=gradient)
    expected = torch.autograd.grad(weighted(dense_sweeps(*args, direction)), args)
    found = torch.autograd.grad(weighted((x.x, x.residual_norms)), args)
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("multicolour", [False, True])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("gradient", ["implicit", *MODES])
def test_converged_gradients_are_those_of_the_solution(gradient, direction, multicolour):
    v, _, b, _ = (t.requires_grad_() for t in inputs())
    key = {"direction": direction, "multicolour": multicolour, "gradient": gradient}
    solution = S.gauss_seidel(A.with_values(v), b, rtol=1e-13, **key)
    g = normal((N, 2), seed=7)
    found = torch.autograd.grad(solution.x, (v, b), g)
    expected = torch.autograd.grad(torch.linalg.solve(A.with_values(v).to_dense(), b), (v, b), g)
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e, rtol=1e-8, atol=1e-9)
    if gradient == "implicit":
        assert solution.adjoint is not None
        assert solution.adjoint.converged
        assert abs(solution.adjoint.iterations - solution.iterations) <= 5  # the same rate


def test_the_adjoint_is_told_of():
    v, _, b, _ = (t.requires_grad_() for t in inputs())
    loose = S.ssor(A.with_values(v), b, rtol=1e-10, adjoint_rtol=1e-2)
    loose.x.sum().backward()
    assert loose.adjoint is not None
    assert loose.adjoint.iterations < loose.iterations / 2
    failed = S.ssor(A.with_values(v), b, adjoint_maxiter=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="ssor, adjoint solve of the backward: did not converge"):
            failed.x.sum().backward()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_any_order_and_forward_mode(direction):
    args = tuple(t.requires_grad_() for t in inputs((1,)))
    f = functools.partial(sweeps, direction=direction, multicolour=direction == "backward", iterations=3)
    assert gradcheck(f, args, check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(f, args, fast_mode=True)
    v, _, b, _ = args

    def implicit(v, b):
        return S.gauss_seidel(A.with_values(v), b, direction=direction, rtol=1e-14).x

    assert gradcheck(implicit, (v, b), check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(implicit, (v, b), fast_mode=True)


@pytest.mark.parametrize("gradient", MODES)
def test_torch_func(gradient):
    args = inputs()
    found, expected = (
        (
            func.grad(lambda *a: weighted(f(*a)), argnums=EVERY)(*args),  # noqa: B023
            func.jvp(f, args, tuple(normal(tuple(t.shape), seed=3) for t in args)),
            func.vmap(f, in_dims=(None, None, 1, 1))(
                *args[:2], *(torch.stack((t, 2 * t), 1) for t in args[2:])
            ),
            func.vmap(f, in_dims=(0, 0, 1, None))(
                torch.stack((args[0], 1.1 * args[0])), torch.stack((args[1], args[1] / 2)),
                torch.stack((args[2], 2 * args[2]), 1), args[3],
            ),
        )
        for f in (lambda *a: sweeps(*a, gradient), lambda *a: dense_sweeps(*a, "forward"))
    )  # fmt: skip
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_vmap_to_a_tolerance():
    values = torch.stack((A.values, 1.5 * A.values))
    b = normal((2, N, 3))
    f = lambda v, b: S.ssor(A.with_values(v), b, rtol=1e-10, multicolour=True).x  # noqa: E731
    together = func.vmap(f)(values, b)
    assert torch.allclose(together, torch.stack([f(*one) for one in zip(values, b, strict=True)]))
    g = func.vmap(func.grad(lambda v, b: f(v, b).sum()))(values, b)
    expected = torch.stack(
        [func.grad(lambda v, b: f(v, b).sum())(*one) for one in zip(values, b, strict=True)]
    )
    assert torch.allclose(g, expected, rtol=1e-6)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(
    ("gradient", "direction", "multicolour"),
    [
        pytest.param("unrolled", "symmetric", False, marks=pytest.mark.slow),
        ("checkpointed", "forward", True),
    ],
)
def test_compile(direction, multicolour, gradient):
    args = inputs()
    f = lambda *a: sweeps(*a, gradient, direction, multicolour, iterations=2)[0]  # noqa: E731
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    g = normal((N, 2), seed=9)
    torch.testing.assert_close(compiled(*args), f(*args))
    torch.testing.assert_close(gradients(compiled, list(args), g), gradients(f, list(args), g))


def test_only_what_is_asked_for():
    args = inputs()
    for chosen in range(1, 16):
        some = [t.clone().requires_grad_(bool(chosen >> i & 1)) for i, t in enumerate(args)]
        weighted(sweeps(*some)).backward()
        assert [t.grad is not None for t in some] == [t.requires_grad for t in some]


def test_checkpoints_keep_few_iterates():
    big = ls.problems.poisson((20, 20))
    b = normal((400, 4)).requires_grad_()
    counts = {}
    for gradient in MODES:
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):  # noqa: B023
            S.gauss_seidel(big, b, iterations=64, gradient=gradient)
        counts[gradient] = len({t.data_ptr() for t in saved if t.shape == b.shape})
    assert counts["checkpointed"] <= 2 * math.isqrt(64)
    assert counts["unrolled"] >= 64


def test_gradients_of_each_matrix_of_a_batch():
    values = torch.stack((A.values, 1.5 * A.values)).requires_grad_()
    omega = torch.tensor([0.9, 1.3], dtype=torch.float64, requires_grad=True)
    b = normal((2, N, 2))
    S.ssor(A.with_values(values), b, omega=omega, iterations=3).x.square().sum().backward()
    for i in range(2):
        one = [t[i].detach().clone().requires_grad_() for t in (values, omega)]
        S.ssor(A.with_values(one[0]), b[i], omega=one[1], iterations=3).x.square().sum().backward()
        for t, o in zip((values, omega), one, strict=True):
            torch.testing.assert_close(t.grad[i], o.grad)
