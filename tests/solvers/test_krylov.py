"""What every method of the table promises: solutions, histories, ends, and the same by compiled code
as by operations of torch; derivatives of the three modes, any order, forward mode, torch.func and
torch.compile; that nothing is kept; and tensors that a callable A or M computes with."""

import gc
import itertools
import time
import warnings
import weakref
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
from reference import TRANSFORMS, assert_nested_forward_mode, assert_same_bits, normal, on_cuda
from solvers.cases import (
    CASES,
    COMPLEX,
    MODES,
    S,
    agree,
    close,
    compiled,
    complex_branch,
    complex_too,
    convection,
    eager,
    every,
    every_method,
    every_mode,
    gradients,
    poisson,
    quiet,
)
from torch.autograd import grad, gradcheck, gradgradcheck

import learnsolve as ls
from learnsolve.ops.products import multiply_columns
from learnsolve.ops.program import Operand, can_be_recorded, record_steps, run_program
from learnsolve.solvers import ConvergenceWarning, SolverError, Status
from learnsolve.solvers.core.loop import Method
from learnsolve.solvers.core.operators import divide, dot
from learnsolve.solvers.krylov import BiCGSTAB, MinimalResidual
from learnsolve.solvers.solution import COMPILED

NAN, INF = float("nan"), float("inf")
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
plain = pytest.mark.parametrize("case", [c for c in CASES if "," not in c.name], ids=lambda c: c.name)


# --- solutions and histories ---


@every_method
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_solution_and_history(case, dtype, index):
    """Of a vector, columns and batches of both operands."""
    tol, v = TOLERANCE[dtype], case.v.to(dtype)
    batch = torch.stack((v, 2 * v))
    shapes = [(v, (), ()), (v, (), (3,)), (v, (2,), (3,)), (batch, (), (3,)), (batch, (2,), (3,))]
    for values, lead, columns in shapes if case.square and not case.function else shapes[:3]:
        A, b = case.build(values), case.right(*columns, lead=lead, dtype=dtype)
        arrays = (t.to(index) for t in (A.pattern.crow_indices, A.pattern.col_indices))
        A = ls.CSR(A.values, ls.SparsityPattern(*arrays, A.shape))
        assert A.pattern.dtype == index
        for x0 in (None, case.start(b)):
            solution = case.call(A, b, x0, tol=tol)
            assert solution.converged, solution.summary()
            assert solution.x.dtype == dtype
            one_by_one = case.vector == COMPILED and not lead and values.dim() == 1  # columns, each alone
            assert solution.backend == (case.columns if columns and not one_by_one else case.vector)
            x = case.dense(values.double(), b.double())
            torch.testing.assert_close(solution.x.double(), x, rtol=300 * tol, atol=300 * tol)
            assert solution.residual_norms.shape == (*x.shape[:-2], solution.iterations + 1, *columns)
            assert len(solution.statuses) == max(1, int(np.prod((*x.shape[:-2], *columns))))


@pytest.mark.rows(9)
@every
@quiet
def test_compiled_code_is_the_loop(case, quick):
    """To a tolerance and for a fixed number, for batches of both operands."""
    for shape, lead, dtype in itertools.product(((), (3,), (2, 2), (3, 2, 2)), ((), (2,)), TOLERANCE):
        if lead and (len(shape) < 2 or not case.square or case.function):
            continue
        b = case.right(*shape[-1:], lead=shape[:-1], dtype=dtype)
        v, x0 = case.v.to(dtype), case.start(b)
        v = torch.stack((v, 1.5 * v)) if lead else v
        ends = {"tol": 1e-8} if dtype == torch.float64 else {"tol": 0.0, "maxiter": 3}
        starts = (None, {}), (x0, {}), (x0, {"maxiter": 2})
        for start, maxiter in starts[len(shape) % 2 + bool(lead) :: 2] if quick else starts:
            ours = case.solve(v, b, start, **ends | maxiter)
            with eager():
                theirs = case.solve(v, b, start, **ends | maxiter)
            assert theirs.backend == "eager"
            agree(ours, theirs, 1e-7 if dtype == torch.float64 else 2e-3)


@every_method
def test_every_norm_of_the_history_is_that_of_its_iterate(case):
    A, b, iterates = case.build(case.v), case.right(2), []
    solution = case.call(A, b, tol=1e-8, callback=iterates.append)
    assert [at.iteration for at in iterates] == list(range(1, solution.iterations + 1))
    right = b - b.mean(0) if "null_space" in case.keywords else b
    for at, norm in zip(iterates, solution.residual_norms[1:], strict=True):
        damped = case.keywords.get("damp", 0.0) * at.x
        size = torch.cat((right - A @ at.x, damped) if damped.any() else (right - A @ at.x,)).norm(dim=0)
        torch.testing.assert_close(size, norm, rtol=1e-6, atol=1e-12)
        torch.testing.assert_close(at.residual_norm, norm, rtol=0, atol=0)
    assert torch.equal(iterates[-1].x, solution.x)


@pytest.mark.rows(14)
@every_method
@quiet
def test_columns_stop_on_their_own(case):
    """A column's iterates are the same whatever its neighbors do; in any mode."""
    A, n = case.build(case.v), case.shape[1]
    sides = [case.right(), 0 * case.right(), A @ torch.linspace(-1, 1, n, dtype=A.dtype), NAN * case.right()]
    b = torch.stack(sides, 1)
    for mode in MODES:
        together = case.call(A, b, tol=1e-9, gradient=mode)
        assert together.statuses == [Status.CONVERGED] * 3 + [Status.NON_FINITE]
        if "non" in case.name:
            continue  # for rounding errors are not linear
        for i in range(3):
            alone = case.call(A, b[:, i], tol=1e-9, gradient=mode)
            own = together.residual_norms[: alone.iterations + 1, i]
            torch.testing.assert_close(own, alone.residual_norms, rtol=1e-6, atol=1e-12)
            torch.testing.assert_close(together.x[:, i], alone.x, rtol=1e-7, atol=1e-9)
            assert bool((together.residual_norms[alone.iterations :, i] == own[-1]).all())  # it stands still
        assert bool((together.x[:, 1] == 0).all())


# --- ends ---


@every_method
@every_mode
@quiet
def test_ends_at_once(case, mode):
    A, (m, n) = case.build(case.v), case.shape
    zero = torch.zeros(m, dtype=A.dtype, requires_grad=True)
    for x0 in (None, normal((n,)), torch.full((n,), NAN, dtype=A.dtype)):
        solution = case.call(A, zero, x0, gradient=mode)
        assert (solution.status, solution.iterations) == (Status.CONVERGED, 0)
        assert not solution.x.any()
        assert solution.residual_norms.tolist() == [0]
    (g,) = grad(case.call(A, zero, gradient=mode).x.sum(), zero)
    assert torch.isfinite(g).all()
    solution = case.call(A, case.right(), maxiter=0, gradient=mode)
    assert (solution.status, solution.iterations) == (Status.MAX_ITERATIONS, 0)
    assert not solution.x.any()
    x = case.call(A, case.right(2), tol=1e-13).x
    solution = case.call(A, case.right(2), x, tol=1e-7, gradient=mode)
    assert (solution.status, solution.iterations) == (Status.CONVERGED, 0)
    torch.testing.assert_close(solution.x, x, rtol=0, atol=1e-15 if "null_space" in case.keywords else 0)
    for shape in ((m, 0), (0, m, 2)):
        b = torch.zeros(shape, dtype=A.dtype, requires_grad=True)
        solution = case.call(A, b, gradient=mode)
        assert solution.converged
        assert solution.x.shape == (*shape[:-2], n, shape[-1])
        (g,) = grad(solution.x.sum() + solution.residual_norms.sum(), b, allow_unused=True)
        assert g is None or g.shape == shape


@plain
@every_mode
def test_smallest_systems(case, mode):
    none = ls.CSR.from_dense(torch.zeros(0, 0, dtype=torch.float64))
    for shape in ((0,), (0, 2)):
        solution = case.call(none, torch.zeros(shape, dtype=torch.float64), gradient=mode)
        assert solution.converged
        assert solution.x.shape == shape
    for D, b in ((torch.tensor([[3.0]]), torch.tensor([6.0])), (torch.eye(7), normal((7, 2)))):
        solution = case.call(ls.CSR.from_dense(D.double()), b.double(), gradient=mode)
        assert (solution.status, solution.iterations) == (Status.CONVERGED, 1)
        torch.testing.assert_close(solution.x, torch.linalg.solve(D, b.to(D)).double())


@every_method
@pytest.mark.parametrize("where", ["A", "b", "x0", "M"])
@quiet
def test_what_is_not_finite_is_named(case, where):
    for bad, columns in itertools.product((NAN, INF), ((), (2,))):
        v, b = case.v.clone(), case.right(*columns)
        x0, options = case.start(b), {}
        if where == "A":
            v[3] = bad
        elif where == "M" and not case.takes("M"):
            pytest.skip("has no M")
        elif where == "M":
            options["M"] = lambda r: bad * r  # noqa: B023
        else:
            {"b": b, "x0": x0}[where][1, ...] = bad if not columns else torch.tensor([bad, 1.0])
        if where == "A" and "null_space" in case.keywords:
            pytest.skip("a Laplacian is checked before")
        if case.M is not None and "M" not in options:
            options["M"] = case.M(case.build(case.v))  # which would say so itself
        solution = case.solve(v, b, x0, **options)
        others = (
            [Status.CONVERGED] if columns and where in ("b", "x0") else [Status.NON_FINITE] * len(columns)
        )
        assert solution.statuses == [Status.NON_FINITE, *others]
        assert solution.iterations <= 2 or bool(columns)
        assert where != "b" or torch.isfinite(solution.x).all()


@every
@quiet
def test_no_tolerance_ends_at_rounding_level(case):
    A, b = case.build(case.v), case.right()
    b = b - b.mean() if "null_space" in case.keywords else b
    solution = case.call(A, b, tol=0.0, maxiter=300 if case.name == "gmres(1)" else 80)
    # minres sees by chance that it gains nothing more, compiled or op by op.
    ends = {Status.MAX_ITERATIONS, Status.CONVERGED, Status.BREAKDOWN}
    assert solution.status in (ends | {Status.STAGNATED} if case.method == "minres" else ends)
    damp = case.keywords.get("damp", 0.0)
    assert (A.T @ (b - A @ solution.x) - damp**2 * solution.x).norm() < 1e-8 * b.norm()


# --- what is said ---


@every_method
@every_mode
@quiet
def test_a_callback_stops(case, mode):
    A, b, seen = case.build(case.v), case.right().requires_grad_(), []

    def callback(at):
        assert at.x.shape == case.shape[1:]
        assert not at.x.requires_grad
        assert at.residual_norm.shape == at.converged.shape == ()
        seen.append(at.iteration)
        return at.iteration == 3

    with torch.utils.checkpoint.set_checkpoint_early_stop(False):  # a repetition ends there, too
        solution = case.call(A, b, callback=callback, gradient=mode)
        assert (solution.status, solution.iterations) == (Status.STOPPED_BY_CALLBACK, 3)
        (actual,) = grad(solution.x.sum(), b)  # which does not call it
    assert seen == [1, 2, 3]
    again = case.call(A, b, maxiter=3, gradient=mode)
    close([again.x], [solution.x], 1e-12)
    if mode != "implicit":
        close(grad(again.x.sum(), b), [actual], 1e-10)
    assert case.call(A, b, callback=lambda at: 1, gradient=mode).converged  # anything but True goes on


@every_method
@every_mode
def test_a_failure_warns_or_raises(case, mode):
    A, b, name = case.build(case.v), case.right().requires_grad_(), case.method
    with pytest.warns(ConvergenceWarning, match=f"{name}: did not converge: MAX_ITERATIONS") as seen:
        case.call(A, b, maxiter=2, gradient=mode)
    assert "cases.py" in seen[0].filename  # which called
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        case.call(A, b, maxiter=2, gradient=mode, callback=lambda at: True)  # asked to stop
        case.call(A, b, tol=0.0, maxiter=2, gradient=mode)  # no tolerance
        for options in ({}, {"adjoint_maxiter": 500}) if mode == "implicit" else ({},):
            solution = case.call(A, b, gradient=mode, **options)
            solution.x.sum().backward()
        with pytest.raises(SolverError, match=f"{name}: MAX_ITERATIONS after 2 iterations") as raised:
            case.call(A, b, maxiter=2, throw=True, gradient=mode)
    assert raised.value.solution.iterations == 2
    if mode != "implicit":
        assert solution.adjoint is None
        return
    assert solution.adjoint.converged
    assert not solution.adjoint.x.requires_grad
    w = normal(solution.x.shape, seed=3)
    solution = case.call(A, b, adjoint_maxiter=1)
    said = f"{name}, adjoint solve .* did not converge.*adjoint_maxiter"
    with pytest.warns(ConvergenceWarning, match=said):
        (solution.x * w).sum().backward()
    assert solution.adjoint.status is Status.MAX_ITERATIONS
    solution = case.call(A, b, throw=True, adjoint_maxiter=1)
    with pytest.raises(SolverError, match=f"{name}, adjoint solve of the backward pass: MAX_ITERATIONS"):
        (solution.x * w).sum().backward()
    assert solution.adjoint.iterations == 1


@pytest.mark.rows(8)
@every_method
@quiet
def test_no_keyword_is_ignored(case):
    A, b = case.build(case.v), case.right(2)
    w = torch.linspace(1, 2, case.shape[1], dtype=b.dtype).unsqueeze(1)
    standard = dict.fromkeys(("rtol", "atol") if case.square else ("atol", "btol", "conlim"))
    stops = {"maxiter": 2, "callback": lambda at: True}
    changed = {"atol": 1.0, "rtol": 0.5} | ({"M": lambda r: w * r} if case.takes("M") else {})
    if not case.square:
        changed = {"atol": 0.3, "damp": 0.1, "conlim": 1.5}
        range_of_A = A @ normal((case.shape[1],))
        consistent = case.call(A, range_of_A, **standard, tol=None)
        assert not torch.equal(case.call(A, range_of_A, btol=0.5, tol=None).x, consistent.x)
    for key, value in (changed | stops).items():
        x = case.call(A, b, tol=None, **standard).x  # None is the default
        assert not torch.equal(case.call(A, b, tol=None, **standard | {key: value}).x, x), key

    def gradient(**options):
        v = case.v.clone().requires_grad_()
        x = case.solve(v, b, **{"tol": 1e-3} | options).x
        return grad((x * w.flip(0)).sum(), v)[0]

    changed = {"adjoint_rtol": 0.9, "adjoint_maxiter": 1, "gradient": "unrolled"}
    for options in ({key: value} for key, value in changed.items()):
        assert not torch.equal(gradient(), gradient(**options)), options
    close([gradient(gradient="checkpointed")], [gradient(gradient="unrolled")], 1e-11)
    if case.takes("adjoint_M"):
        assert not torch.equal(gradient(), gradient(adjoint_M=lambda r: w * r))


@pytest.mark.rows(17)
@every
@quiet
def test_a_fixed_number_of_iterations(case, quick):
    runs: list[tuple] = []

    def f(mode, v, b, *x0):
        solution = case.solve(v, b, *x0, tol=0.0, maxiter=3, gradient=mode)
        runs.append((solution.backend, solution.iterations, solution.statuses))
        return torch.cat((solution.x.flatten(), solution.residual_norms.flatten()))

    every = list(itertools.product(MODES[1:], ((), (3,)), (False, True)))
    for mode, columns, start in (every[0], every[3], every[5], every[6]) if quick else every:  # all pairs
        b, of_mode = case.right(*columns), partial(f, mode)
        runs.clear()
        inputs = (case.v, b, case.start(b)) if start else (case.v, b)
        ours = gradients(of_mode, *inputs)
        if case.fixed == COMPILED:
            with compiled():
                gradients(of_mode, *inputs)
        with eager():
            theirs = gradients(of_mode, *inputs)
        assert runs[0][0] == case.fixed
        assert runs[0][1:] == runs[-1][1:]
        assert runs[0][1] == 3
        close(ours, theirs, 1e-9)


# --- how it runs ---


@every_method
def test_units_change_no_bit(case):
    """Powers of two, whose products leave the range of squares."""
    if case.keywords.keys() & {"weight", "alpha", "lmin"}:
        pytest.skip("parameters in units of A: test_stationary.py")
    if not case.square or case.function or case.M is not None or "null_space" in case.keywords:
        pytest.skip("M, constants, functions and normal equations have units of their own")
    A, b = case.build(case.v), case.right(2)
    one = case.call(A, b, tol=1e-8)
    for of_A, of_b in itertools.product((1.0, 2.0**530, 2.0**-530), (2.0**400, 2.0**-400)):
        other = case.call(A * of_A, b * of_b, tol=1e-8)
        assert other.statuses == one.statuses
        assert torch.equal(other.x, one.x * (of_b / of_A))


@every
@pytest.mark.parametrize("columns", [(), (2,)], ids=str)
@quiet
def test_same_bits_for_any_number_of_threads(case, columns):
    """x, norms and both kinds of gradients, of vectors long enough for torch to split their sums."""
    A = poisson(190, 190)
    v, b = A.values.clone().requires_grad_(), normal((A.shape[0], *columns)).requires_grad_()
    null = {} if "null_space" not in case.keywords else {"null_space": None}
    M = {} if case.M is None else {"M": case.M(A)}

    def results():
        out = []
        for options in ({"gradient": "implicit", "adjoint_maxiter": 2}, {"gradient": "unrolled"}):
            solution = case.call(A.with_values(v), b, tol=1e-5, maxiter=2, **options, **null, **M)
            out += [solution.x, solution.residual_norms, *grad(solution.x.square().mean(), (v, b))]
        return out

    assert_same_bits(results, (3,))


COMPILED_TOO = ("cg", "lsqr", "gmres, complex")


@pytest.mark.rows(4)
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
        assert solutions[0].adjoint.backend == solutions[0].backend


@pytest.mark.rows(2)
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


@pytest.mark.rows(4)
@complex_branch
def test_transformations(case):
    v, B = case.v, case.right(3)

    M = {} if case.M is None else {"M": case.M(case.build(v))}

    def f(v, b):
        return case.solve(v, b, tol=1e-13, **M).x

    near = {"rtol": 1e-7, "atol": 1e-7}
    torch.testing.assert_close(torch.vmap(f, (None, 1), 1)(v, B), case.dense(v, B), **near)
    if not case.function:
        batch = torch.stack((v, 2 * v, 3 * v))
        nested = torch.vmap(torch.vmap(f, (None, 1)), (0, None))(batch, B)
        torch.testing.assert_close(nested[1, 2], case.dense(2 * v, B[:, 2]), **near)
        assert_nested_forward_mode(f, (v, B), case.dense, 1e-7)


@pytest.mark.rows(2)
@pytest.mark.parametrize(
    "case", [c for c in [*CASES, *COMPLEX] if c.name in COMPILED_TOO], ids=lambda c: c.name
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
    with pytest.raises(ValueError, match=r"cg: A computes with other tensors that require grad\. Name them"):
        S.cg(lambda x: A @ x + (of["u"] + of[used]) * x, b, parameters=(of["u"],))
    S.cg(lambda x: A @ x + (of["u"] + of["w"]) * x, b, parameters=(p,))  # made of p only
    w = 2 * of["u"]
    S.cg(lambda x: A @ x + w * x, b, parameters=(of["u"],))


P = ls.preconditioners
F64 = torch.float64
A = ls.problems.poisson((3, 3))
B = torch.linspace(1, 2, 9, dtype=F64)
D = torch.linspace(1, 3, 9, dtype=F64)


@pytest.mark.parametrize("transform", ["grad", "jvp", "forward_ad"])
def test_a_callable_of_numpy_may_be_differentiated_for_b(transform):
    """It is called on plain tensors, at any level."""

    def f(b):
        return S.cg(lambda x: torch.from_numpy(A.to_scipy() @ x.detach().numpy()), b, rtol=1e-13).x

    inverse = torch.linalg.inv(A.to_dense())
    got = TRANSFORMS[transform](f, B)
    torch.testing.assert_close(got, TRANSFORMS[transform](lambda b: inverse @ b, B))


DERIVATIVES = ("grad", "jvp", "jacrev", "jacfwd", "hessian", "forward_ad")


@pytest.mark.parametrize("kind", [P.Jacobi, P.IC, P.SSOR, P.AdditiveSchwarz])
@pytest.mark.parametrize("transform", DERIVATIVES)
def test_an_M_that_is_made_of_A_is_not(kind, transform):
    def f(d, M=kind):
        C = A.with_values(A.values * d[0])
        return S.cg(C, B, M=None if M is None else M(C), rtol=1e-13).x

    got, expected = (TRANSFORMS[transform](lambda d, M=M: f(d, M), D) for M in (kind, None))
    torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("where", ["M", "adjoint_M"])
@pytest.mark.parametrize("made", [P.Diagonal, ls.ops.diag])
def test_an_M_that_is_made_inside_vmap_is_named(made, where):
    f = lambda d: S.gmres(A, B, **{where: made(d)}).x  # noqa: E731
    with pytest.raises(
        NotImplementedError, match=f"gmres: {where} is made from a tensor that torch.func.vmap"
    ):
        torch.vmap(f)(torch.stack([D, 2 * D]))


DEPENDS_ON = {
    "x0": lambda d: {"x0": d},
    "lmin": lambda d: {"lmin": d[0] / 4},
    "M, a matrix": lambda d: {"M": ls.ops.diag(d)},
    "M, a function": lambda d: {"M": lambda r: d.reshape(-1, *[1] * (r.dim() - 1)) * r},
}


@pytest.mark.parametrize("what", DEPENDS_ON)
@pytest.mark.parametrize("transform", DERIVATIVES)
def test_what_a_converged_solution_does_not_depend_on_is_an_error(what, transform):
    def f(d):
        return S.chebyshev(A, B, **{"lmin": 0.5, "lmax": 8.0, **DEPENDS_ON[what](d)}).x

    with pytest.raises(ValueError, match=f"chebyshev: {what.split(',')[0]} requires grad"):
        TRANSFORMS[transform](f, D)


# --- recorded programs ---


class Averages(Method):
    """Not a solver: what the methods of the library do not record."""

    class State(NamedTuple):
        x: torch.Tensor
        r: torch.Tensor
        u: torch.Tensor
        count: torch.Tensor
        largest: torch.Tensor

    state, state_vectors = State, 3

    def step(self, A, M, b, state, running):
        x, r, u, count, largest = state
        z = r if M is None else M(r)
        length = dot(u.abs(), z.abs())
        often = count > 1
        p = (
            x
            + r
            - multiply_columns(0.5 * largest, u)
            + z
            + A(x)
            - b
            + A(u)
            + multiply_columns(count / (1 + length), A(r))
        )
        u = torch.where(often, u, p) + p
        largest = torch.maximum(largest, (1 - length).abs() / (2 + count))
        x, u = multiply_columns(0.1 * count * (count != 1), p), divide(u, 1 + length, running)
        return self.State(x, -r, u, count + 1, largest), torch.where(~often & (count <= 3), 0, 0)


@pytest.mark.parametrize("k", [1, 2, 4, 8])
@pytest.mark.parametrize("of_M", ["", "rows", "products", "solves"])
@pytest.mark.parametrize("method", [MinimalResidual, BiCGSTAB, Averages])
def test_a_recorded_program_is_the_method(method, of_M, k):
    """Three iterations of all fields of the state, on more rows than a chunk has. Nothing that it is given
    has changed."""
    A = poisson(40, 41)
    n, L = A.shape[0], ls.ops.ic(A).L
    M = {
        "": (),
        "rows": (Operand.rows(normal((n,)).abs()),),
        "products": [Operand.product(L.pattern, L.values, transpose) for transpose in (True, False)],
        "solves": [Operand.solve(L.pattern, L.values, True, False, transpose) for transpose in (False, True)],
    }[of_M]
    maps = {
        "": None,
        "rows": lambda r: M[0].values.unsqueeze(-1) * r,
        "products": lambda r: ls.ops.spmm(L, ls.ops.spmm(L, r, transpose=True)),
        "solves": lambda r: ls.ops.sptrsv(L, ls.ops.sptrsv(L, r), transpose=True),
    }[of_M]
    b, running = normal((n, k)), torch.ones(1, k, dtype=torch.bool)
    if method is Averages:
        state = Averages.State(*(normal((n, k), seed=i) for i in range(3)), *normal((2, 1, k)).abs())
    else:
        state = method().start(A.__matmul__, maps, normal((n, k), seed=1), b, running)
    program = record_steps(method(), tuple(factor.op for factor in M), False, torch.float64)
    operands = (Operand.product(A.pattern, A.values, False), *M)
    tensors = [t for operand in operands for t in (*operand.structure, operand.values)]
    vectors, given = [*state[: program.vectors], b], torch.ones(1, k, dtype=torch.float64)
    numbers = program.numbers((*state[program.vectors :], 0 * given, 1e30 * given, given))
    before = [t.clone() for t in (*vectors, numbers)]
    forms = [operand.form for operand in operands]
    fields, registers, norms, ran, *_ = run_program(
        tensors, forms, program.code, vectors, numbers, (), 0, 3, False
    )
    for i in range(3):
        state, _ = method().step(A.__matmul__, maps, b, state, running)
        close(norms[i], torch.linalg.vector_norm(state.r, dim=0), 1e-9)
    assert ran == 3
    for field, ours in zip(state, (*fields, *registers.unsqueeze(1)), strict=False):
        close(ours.reshape(field.shape), field, 1e-9)
    assert all(map(torch.equal, before, (*vectors, numbers)))


@pytest.mark.parametrize("name", ["Jacobi", "IC", "SSOR", "FSAI", "ILU", "ILUT"])
@pytest.mark.parametrize("method", ["minres", "bicgstab"])
def test_recorded_methods_with_preconditioners(method, name):
    symmetric = method == "minres" or name in ("IC", "SSOR", "FSAI")
    A, b = poisson(12, 11) if symmetric else convection(12, 11), normal((132,)).requires_grad_()
    M = getattr(ls.preconditioners, name)(A)
    if method == "minres" and not M.symmetric:
        M = ls.preconditioners.ILU(A, symmetric=True)
    solve = lambda: getattr(S, method)(A, b, M=M, rtol=1e-10)  # noqa: E731
    ours = solve()
    ours.x.sum().backward()
    assert (ours.backend, ours.adjoint.backend) == (COMPILED, COMPILED)
    gradient, b.grad = b.grad, None
    with eager():
        theirs = solve()
        theirs.x.sum().backward()
    agree(ours, theirs)
    close(gradient, b.grad, 1e-7)


class Sorts(Averages):
    def step(self, A, M, b, state, running):
        return state._replace(x=torch.sort(state.x)[0]), running


class Norms(Averages):
    def step(self, A, M, b, state, running):
        return state._replace(count=state.x.norm()), running


class Decides(Averages):
    def step(self, A, M, b, state, running):
        return (state if state.count > 1 else state._replace(x=b)), running


class TooFew(Averages):
    state_vectors = 2


class Outside(Averages):
    def step(self, A, M, b, state, running):
        return state._replace(x=torch.ones(3, 1) * state.x), running


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (
            Sorts,
            r"Sorts: cannot record a step with the vectors \('x', 'r', 'u'\) .*sort is not recorded\. Use",
        ),
        (Norms, "'Vector' object has no attribute 'norm'"),
        (Decides, "a decision of Python, as by `if`, is not recorded"),
        (TooFew, r"the numbers \('u', 'count', 'largest'\): .* correct state_vectors"),
        (Outside, "mul of a tensor that is not in the state is not recorded"),
    ],
)
def test_what_cannot_be_recorded_is_named(method, message):
    with pytest.raises(NotImplementedError, match=message):
        record_steps(method(), (), True, torch.float64)


def test_a_method_with_vectors_is_not_recorded():
    method = Averages()
    for weight, recorded in ((None, True), (0.5, True), (torch.tensor([0.5]), True), (torch.ones(2), False)):
        method.weight = weight
        assert can_be_recorded(method) == recorded


def test_the_numbers_of_a_program_are_no_vectors():
    numbers = record_steps(Averages(), (), True, torch.float64).numbers
    with pytest.raises(
        ValueError, match=r"first fields of the state, got 3 and after them a field of shape \(9, 1"
    ):
        numbers([torch.ones(1, 1), torch.ones(9, 1)])
