"""What every Krylov method of the table promises: solutions, histories, ends, and the same by compiled code
as by operations of torch. Derivatives: test_krylov_contract_gradients.py; blocks: test_blocks.py."""

import itertools
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from reference import assert_same_bits, normal
from solvers.cases import CASES, MODES, every, every_mode, quiet
from solvers.krylov import poisson
from solvers.references import agree, close, compiled, eager, gradients
from torch.autograd import grad

import learnsolve as ls
from learnsolve.solvers import ConvergenceWarning, SolverError, Status
from learnsolve.solvers.solution import COMPILED

NAN, INF = float("nan"), float("inf")
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
plain = pytest.mark.parametrize("case", [c for c in CASES if "," not in c.name], ids=lambda c: c.name)


# --- solutions and histories ---


@pytest.mark.few
@every
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
            assert solution.execution == (case.columns if columns and not one_by_one else case.vector)
            x = case.dense(values.double(), b.double())
            torch.testing.assert_close(solution.x.double(), x, rtol=300 * tol, atol=300 * tol)
            assert solution.residual_norms.shape == (*x.shape[:-2], solution.iterations + 1, *columns)
            assert len(solution.statuses) == max(1, int(np.prod((*x.shape[:-2], *columns))))


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
            assert theirs.execution == "eager"
            agree(ours, theirs, 1e-7 if dtype == torch.float64 else 2e-3)


@every
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


@every
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


@pytest.mark.few
@every
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


@every
@pytest.mark.parametrize("where", ["A", "b", "x0", "M"])
@quiet
def test_what_is_not_finite_is_named(case, where):
    for bad, columns in itertools.product((NAN, INF), ((), (2,))):
        v, b = case.v.clone(), case.right(*columns)
        x0, options = case.start(b), {}
        if where == "A":
            v[3] = bad
        elif where == "M" and not case.square:
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


@pytest.mark.few
@every
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


@pytest.mark.few
@every
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
    with pytest.raises(SolverError, match=f"{name}, adjoint solve of the backward: MAX_ITERATIONS"):
        (solution.x * w).sum().backward()
    assert solution.adjoint.iterations == 1


@every
@quiet
def test_no_keyword_is_ignored(case):
    A, b = case.build(case.v), case.right(2)
    w = torch.linspace(1, 2, case.shape[1], dtype=b.dtype).unsqueeze(1)
    standard = dict.fromkeys(("rtol", "atol") if case.square else ("atol", "btol", "conlim"))
    stops = {"maxiter": 2, "callback": lambda at: True}
    changed = {"atol": 1.0, "rtol": 0.5, "M": lambda r: w * r}
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
    if case.square and not case.symmetric:
        assert not torch.equal(gradient(), gradient(adjoint_M=lambda r: w * r))


@every
@quiet
def test_a_fixed_number_of_iterations(case, quick):
    runs: list[tuple] = []

    def f(mode, v, b, *x0):
        solution = case.solve(v, b, *x0, tol=0.0, maxiter=3, gradient=mode)
        runs.append((solution.execution, solution.iterations, solution.statuses))
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


@every
def test_units_change_no_bit(case):
    """Powers of two, whose products leave the range of squares."""
    if not case.square or case.function or case.M is not None or "null_space" in case.keywords:
        pytest.skip("M, constants, functions and normal equations have units of their own")
    A, b = case.build(case.v), case.right(2)
    one = case.call(A, b, tol=1e-8)
    for of_A, of_b in itertools.product((1.0, 2.0**530, 2.0**-530), (2.0**400, 2.0**-400)):
        other = case.call(A * of_A, b * of_b, tol=1e-8)
        assert other.statuses == one.statuses
        assert torch.equal(other.x, one.x * (of_b / of_A))


@pytest.mark.few
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
