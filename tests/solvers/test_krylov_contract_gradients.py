"""Derivatives of every Krylov method of the table: the three modes, any order, forward mode, torch.func, and
torch.compile; that nothing is kept; and those for tensors that a callable A computes with."""

import gc
import time
import warnings
import weakref

import pytest
import torch
from reference import assert_nested_forward_mode, normal, on_cuda
from solvers.cases import (
    BRANCHES,
    CASES,
    COMPLEX,
    MODES,
    complex_branch,
    complex_too,
    every,
    every_mode,
    quiet,
)
from solvers.krylov import S, poisson
from solvers.references import close, gradients
from torch.autograd import grad, gradcheck, gradgradcheck

COMPILED_TOO = ("cg", "minres", "gmres(3)", "lsqr", "gmres, complex")


@complex_too
def test_gradients_are_those_of_dense_algebra(case):
    """Whatever the size of the cotangent; both solves of an implicit gradient run the same way."""
    solutions = []

    def x(v, b, mode="implicit", tol=1e-13):
        solutions.append(case.solve(v, b, tol=tol, gradient=mode))
        return solutions[-1].x

    batch = torch.stack((case.v, 1.5 * case.v)) if case.square and not case.function else case.v
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*did not converge")
        for v, shape in ((case.v, ()), (case.v, (2,)), (batch, (2, 2))):
            b = case.right(*shape[-1:], lead=shape[:-1])
            expected = gradients(case.dense, v, b)
            for scale in (1.0, 1e-12, 1e-300, 1e200) if shape != (2,) else (1.0,):
                close([g / scale for g in gradients(x, v, b, scale=scale)], expected, 1e-7)
        for scale in (1e-30, 1e30):
            single = gradients(lambda v, b: x(v, b, tol=1e-5), v.float(), b.float(), scale=scale)
            close([g.double() / scale for g in single], expected, 1e-2)
        v, b = case.v, case.right(2)
        close(gradients(lambda v, b: x(v, b, "unrolled"), v, b), gradients(case.dense, v, b), 1e-6)
    if "nonlinear" not in case.name:  # of which the adjoint uses no M
        assert solutions[0].adjoint.execution == solutions[0].execution


@complex_branch
def test_derivatives_of_any_order(case):
    def f(v, b):
        return case.solve(v, b, tol=1e-13).x

    inputs = case.v.clone().requires_grad_(), case.right(1).requires_grad_()
    assert gradcheck(f, inputs, check_forward_ad=not case.function, fast_mode=True)
    assert gradgradcheck(f, inputs, fast_mode=True)


@complex_branch
@quiet
def test_derivatives_of_the_iterations(case):
    """Of iterates that have not converged, and of the history; x0 and a scaled M."""
    m = (normal((case.shape[1], 1), seed=6).abs() + 1).requires_grad_()
    b = case.right(1)
    inputs = [t.clone().requires_grad_() for t in (case.v, b, case.start(b))]
    inputs += [m] if case.square and case.M is None and not case.function else []

    # An M that is made of a copy of A is a constant.
    constant = {"M": case.M(case.build(case.v))} if "FSAI" in case.name else {}

    def f(v, b, x0, *m, mode="unrolled", maxiter=3):
        M = {"M": lambda r: m[0] * r} if m else constant
        solution = case.solve(v, b, x0, tol=0.0, maxiter=maxiter, gradient=mode, **M)
        return solution.x, solution.residual_norms

    assert gradcheck(f, inputs, fast_mode=True, check_forward_ad=not case.function)
    assert gradgradcheck(lambda *t: f(*t, mode="checkpointed"), inputs, fast_mode=True)
    if not case.function:
        given = [t.detach() for t in inputs]
        assert_nested_forward_mode(lambda *t: f(*t)[0], given, lambda *t: f(*t)[0], 1e-7)
    for count in (0, 4):
        loss = lambda x, norms: norms.sum() + (x**2).sum()  # noqa: E731
        actual = [
            grad(loss(*f(*inputs, mode=mode, maxiter=count)), inputs, materialize_grads=True)
            for mode in MODES[1:]
        ]
        close(*actual, 1e-12)


@pytest.mark.few
@every
@pytest.mark.parametrize("mode", MODES[1:])
@quiet
def test_columns_that_stopped_leave_finite_gradients(case, mode):
    v, b = case.v.clone().requires_grad_(), case.right(3)
    b[:, 1] = 0
    b[:, 2] = 1e-3 * (case.build(case.v) @ torch.ones(case.shape[1], dtype=b.dtype))
    solution = case.solve(v, b.requires_grad_(), tol=1e-11, gradient=mode)
    loss = (solution.x**2).sum() + solution.residual_norms.sum()
    assert all(torch.isfinite(g).all() for g in grad(loss, (v, b)))


@complex_branch
def test_transformations(case):
    v, B = case.v, case.right(3)

    M = {} if case.M is None else {"M": case.M(case.build(v))}

    def f(v, b):
        return case.solve(v, b, tol=1e-13, **M).x

    near = {"rtol": 1e-7, "atol": 1e-7}
    torch.testing.assert_close(torch.vmap(f, (None, 1), 1)(v, B), case.dense(v, B), **near)
    columns = torch.vmap(lambda b, x0: case.solve(v, b, x0, tol=1e-13, **M).x, 1, 1)(B, case.start(B))
    torch.testing.assert_close(columns, case.dense(v, B), **near)
    of_b = lambda h: torch.func.jacrev(lambda b: h(v, b))(B[:, 0])  # noqa: E731
    torch.testing.assert_close(of_b(f), of_b(case.dense), **near)
    if case.function:
        return
    batch = torch.stack((v, 2 * v, 3 * v))
    for axes, arguments in (((0, None), (batch, B[:, 0])), ((0, 1), (batch, B)), ((0, None), (batch, B))):
        actual = torch.vmap(f, axes)(*arguments)
        torch.testing.assert_close(actual, torch.vmap(case.dense, axes)(*arguments), **near)
    nested = torch.vmap(torch.vmap(f, (None, 1)), (0, None))(batch, B)
    torch.testing.assert_close(nested[1, 2], case.dense(2 * v, B[:, 2]), **near)
    expected = torch.func.jacrev(case.dense)(v, B)
    torch.testing.assert_close(torch.func.jacrev(f)(v, B), expected, **near)
    torch.testing.assert_close(torch.func.jacfwd(f)(v, B), expected, **near)
    assert_nested_forward_mode(f, (v, B), case.dense, 1e-7)
    loss = lambda h: lambda v: (h(v, B[:, 0]) ** 2).sum()  # noqa: E731
    each = torch.vmap(torch.func.grad(loss(f)))(batch)
    torch.testing.assert_close(each[1], torch.func.grad(loss(case.dense))(2 * v), **near)
    if case.name in BRANCHES:
        hessian = torch.func.hessian(loss(case.dense))(v)
        torch.testing.assert_close(torch.func.hessian(loss(f))(v), hessian, rtol=1e-6, atol=1e-6)


@pytest.mark.few
@pytest.mark.parametrize(
    "case",
    [c for c in [*CASES, *COMPLEX] if c.name in COMPILED_TOO],
    ids=lambda c: c.name,
)
@every_mode
def test_compile_breaks_its_graph_and_goes_on(case, mode):
    def f(v, b):
        return case.solve(v, 2 * b, gradient=mode).x ** 2

    v, b = case.v, case.right(2)
    close(gradients(torch.compile(f, backend="aot_eager"), v, b), gradients(f, v, b), 1e-12)


@complex_branch
@every_mode
def test_no_cycles_and_no_graph_that_nobody_asked_for(case, mode):
    """Without the garbage collector, all is freed with the last name of it."""
    gc.disable()
    try:
        for create_graph in (False, True):
            v, b = case.v.clone().requires_grad_(), case.right(2).requires_grad_()
            solution = case.solve(v, b, gradient=mode)
            loss = (solution.x**2).sum()
            grads = grad(loss, (v, b), create_graph=create_graph)
            watched = [weakref.ref(t) for t in (solution, solution.x, loss, grads[0], v)]
            if solution.adjoint is not None:
                watched += [weakref.ref(solution.adjoint), weakref.ref(solution.adjoint.x)]
            del solution, loss, grads, v, b
            if on_cuda():  # torch's thread of the device lets go a little later
                time.sleep(0.05)
            assert not [w for w in watched if w() is not None]
    finally:
        gc.enable()
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            assert not case.solve(case.v, case.right().requires_grad_(), gradient=mode).x.requires_grad


def tensors(p):
    u = p.exp()
    first, last = torch.unbind(torch.stack([p.sin(), p * p]))
    return {"p": p, "u": u, "w": u * p, "first": first, "last": last, "sum": u + p}


@pytest.mark.parametrize("names", ["p u", "u p", "w p u", "p p", "p first last", "last u", "p sum"])
def test_parameters_may_be_made_of_one_another(names):
    A, b, p = poisson(2, 3), normal((6,)).requires_grad_(), normal((6,)).abs().requires_grad_()

    def f(p, b):
        of = tensors(p)
        used = tuple(of[name] for name in names.split())
        return S.cg(lambda x: A @ x + sum(t * x for t in used), b, parameters=used, rtol=1e-13).x

    def dense(p, b):
        of = tensors(p)
        return torch.linalg.solve(A.to_dense() + torch.diag(sum(of[name] for name in names.split())), b)

    w = normal((6,), seed=7)
    expected = torch.autograd.grad(dense(p, b), (p, b), w)
    torch.testing.assert_close(torch.autograd.grad(f(p, b), (p, b), w), expected)
    assert gradgradcheck(f, (p, b), fast_mode=True)


def test_a_parameter_may_be_unused():
    A, b, p = poisson(2, 3), normal((6,)).requires_grad_(), normal((6,)).requires_grad_()
    x = S.cg(lambda x: A @ x, b, parameters=(p,), rtol=1e-13).x
    assert not torch.autograd.grad(x.sum(), p, create_graph=True)[0].any()


def test_a_derivative_leaves_the_graph_of_the_parameters_as_it_is():
    A, b, p = poisson(2, 3), normal((6,)), normal((6,)).abs().requires_grad_()
    u = p.exp()
    S.cg(lambda x: A @ x + u * x + p * x, b, parameters=(p, u)).x.sum().backward()
    assert p.grad is not None


@pytest.mark.parametrize("used", ["p", "sum"])
def test_a_tensor_that_is_left_out_raises(used):
    A, b, p = poisson(2, 3), normal((6,)), normal((6,)).abs().requires_grad_()
    of = tensors(p)
    with pytest.raises(ValueError, match="cg: A computes with other tensors that require grad; name them"):
        S.cg(lambda x: A @ x + (of["u"] + of[used]) * x, b, parameters=(of["u"],))
    S.cg(lambda x: A @ x + (of["u"] + of["w"]) * x, b, parameters=(p,))  # made of p only
    w = 2 * of["u"]
    S.cg(lambda x: A @ x + w * x, b, parameters=(of["u"],))
