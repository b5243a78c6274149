"""What every stationary method promises about its end, row by row: tolerances, implicit gradients,
callbacks, divergence, sizes near the limits of the dtype; and that its module is the function."""

import itertools
import math

import pytest
import torch
from reference import gradients, normal
from solvers.stationary_cases import MODES, Row, close, halved, results, rows, small_square, values_on
from torch import func
from torch.autograd import gradgradcheck

import learnsolve as ls
from learnsolve.solvers import SolverError, Status

P = small_square()
F64 = torch.float64
every_row = rows()
every_row_that_stops = rows(lambda r: r.stops)


def of(row: Row, **keywords):
    return lambda *t: row.sparse(P, *t, **keywords)


# --- until a tolerance ---


@every_row_that_stops
def test_until_a_tolerance(row):
    """SciPy's rule, by the true residual, columns on their own."""
    A = halved()
    b = normal((16, 3), seed=2) * torch.tensor([1.0, 1e-3, 1e4], dtype=F64)
    seen = []
    solution = row.solve(A, b, rtol=1e-9, maxiter=2000, callback=lambda at: seen.append(at))
    assert solution.converged
    assert [at.iteration for at in seen] == list(range(1, solution.iterations + 1))
    norms, size = solution.residual_norms, b.norm(dim=0)
    close([at.residual_norm for at in seen], list(norms[1:]))
    close(norms[-1], (b - A @ solution.x).norm(dim=0))
    assert (norms[-1] <= 1e-9 * size).all()
    for c in range(3):
        met = (norms[:, c] <= 1e-9 * size[c]).nonzero()[0]
        assert (norms[met:, c] == norms[met, c]).all()
    close(solution.x / size, torch.linalg.solve(A.to_dense(), b / size), 1e-8)
    alone = row.solve(A, b[:, 0], rtol=1e-9, maxiter=2000)  # the steps are those of a fixed number
    again = row.solve(A, b[:, 0], iterations=alone.iterations)
    close([alone.x, alone.residual_norms], [again.x, again.residual_norms], 1e-11)
    if not row.sweeps:
        M = {"M": row.preconditioner(A)} if row.M else {}
        close(
            row.solve(A.to_scipy_linear_operator(), b[:, 0], rtol=1e-9, maxiter=2000, **M).x, alone.x, 1e-11
        )
    assert not row.solve(A, torch.zeros_like(b), b).x.any()
    single, b = ls.CSR(A.values.float(), A.pattern.to(dtype=torch.int32)), b.float()
    x = row.solve(single, b, rtol=1e-4, maxiter=2000).x
    assert x.dtype == torch.float32
    assert ((b - single @ x).norm(dim=0) <= 1.1e-4 * b.norm(dim=0)).all()


@every_row_that_stops
def test_every_keyword_counts(row):
    A, b = halved(), normal((16, 2), seed=2)
    plain = row.solve(A, b, maxiter=500)
    assert plain.converged
    for fewer in ({"rtol": 1e-2}, {"atol": 1.0}, {"maxiter": 2}, {"callback": lambda at: at.iteration == 3}):
        assert row.solve(A, b, **{"maxiter": 500, **fewer}).iterations < plain.iterations, fewer
    short = row.solve(A, b, maxiter=2)
    assert (short.status, short.iterations) == (Status.MAX_ITERATIONS, 2)
    with pytest.raises(SolverError, match=f"{row.method}: MAX_ITERATIONS"):
        row.solve(A, b, maxiter=2, throw=True)
    stopped = row.solve(A, b, callback=lambda at: at.iteration == 3)
    assert (stopped.status, stopped.iterations) == (Status.STOPPED_BY_CALLBACK, 3)


@pytest.mark.few
@every_row_that_stops
@pytest.mark.parametrize("mode", MODES)
def test_unrolled_until_a_tolerance(row, mode):
    """The gradient of the iterations that ran, for the parameters too."""
    A, b = halved(), normal((16, 1))
    given = row.inputs(P, "vector", "()")[3:]

    def f(count):
        def solve(v, b, *given):
            solution = row.solve(A.with_values(v), b, None, *given, gradient=mode, **count)
            counts.append(solution.iterations)
            return solution.x, solution.residual_norms.clamp(min=1e-300).log()

        return solve

    counts = []
    found = results(f({"rtol": 1e-4, "maxiter": 500}), [A.values, b, *given])
    close(found, results(f({"iterations": counts[0]}), [A.values, b, *given]), 1e-9)
    (x, _), [none] = results(f({"maxiter": 0}), [A.values, b, *given])
    assert not x.any()
    assert [t.shape for t in none] == [t.shape for t in (A.values, b, *given)]


@every_row_that_stops
def test_a_batch_until_a_tolerance_is_a_loop(row):
    options = {"rtol": 1e-7, "maxiter": 3000}
    for shape, form in (("batch of b", "(n,)"), ("batch of values", "()"), ("batch of both", "(B,)")):
        v, b, _, *given = row.inputs(P, shape, form)
        together = row.solve(ls.CSR(v, P), b, None, *given, **options)
        assert together.converged
        for i in range(2):
            member = [t[i] if len(t.shape) == 1 and form == "(B,)" else t for t in given]
            A = ls.CSR(v if v.dim() == 1 else v[i], P)
            alone = row.solve(A, b if b.dim() < 3 else b[i], None, *member, **options)
            steps = alone.iterations
            assert steps <= together.iterations
            close(together.x[i], alone.x, 1e-9)
            close(together.residual_norms[i, : steps + 1], alone.residual_norms, 1e-11)


# The gradient is one code for all methods, and the adjoint of a sweep its transpose.
IN_QUICK_RUNS = ("richardson", "gauss_seidel", "sor, direction backward, multicolor True")


@every_row_that_stops
def test_implicit_gradient(row, quick):
    """On a matrix that is not symmetric, against dense solves; forward, mapped, and twice."""
    v, b = values_on(P), normal((4, 2), seed=3)
    options = {"rtol": 1e-14, "maxiter": 3000}
    adjoints = []

    def solve(v, b, **keywords):
        solution = row.solve(ls.CSR(v, P), b, **options, **keywords)
        adjoints.append(solution)
        return solution.x

    def dense(v, b):
        return torch.linalg.solve(ls.CSR(v, P).to_dense(), b)

    g = normal((4, 2), seed=8)
    expected = gradients(dense, [v, b], g)
    close(gradients(solve, [v, b], g), expected, 1e-9)
    assert adjoints[-1].adjoint.converged
    assert abs(adjoints[-1].adjoint.iterations - adjoints[-1].iterations) <= 12  # the same rate
    for mode in MODES:  # at the solution theirs is that of the solution
        close(gradients(lambda v, b: solve(v, b, gradient=mode), [v, b], g), expected, 1e-8)  # noqa: B023
    tangents = normal(v.shape, seed=1), normal(b.shape, seed=2)
    close(func.jvp(solve, (v, b), tangents), func.jvp(dense, (v, b), tangents), 1e-9)
    dims = (None if row.M == "diagonal" else 0, 0)  # an M is that of all members
    several = v if row.M == "diagonal" else torch.stack((v, 1.1 * v)), torch.stack((b, 2 * b))
    close(func.vmap(solve, dims)(*several), func.vmap(dense, dims)(*several), 1e-9)
    sums = [func.grad(lambda v, b, f=f: f(v, b).sin().sum(), argnums=(0, 1)) for f in (solve, dense)]
    close(func.vmap(sums[0], dims)(*several), func.vmap(sums[1], dims)(*several), 1e-9)
    if not quick or row.name in IN_QUICK_RUNS:
        inputs = v.requires_grad_(), b.requires_grad_()
        assert gradgradcheck(solve, inputs, atol=1e-5, fast_mode=quick)


@every_row_that_stops
def test_what_learns_and_has_no_implicit_gradient(row):
    A, b = halved(), normal((16,))
    for i, key in enumerate(row.parameters):
        given = row.inputs(P, "vector", "()")[3:]
        given[i].requires_grad_()
        with pytest.raises(ValueError, match=rf'{row.method}: {key} requires grad.*"unrolled"'):
            row.solve(A, b, None, *given)
        with torch.no_grad():
            row.solve(A, b, None, *given, maxiter=500)


# --- callables, callbacks, ends ---


@rows(lambda r: r.stops and not r.sweeps)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", ["vector", "batch of b"])
def test_steps_op_by_op_are_those_of_the_compiled_loop(row, shape, mode):
    """With a callback and for a callable A; a callback that says so ends them."""
    inputs, N = row.inputs(P, shape, "()"), 7
    expected = results(of(row, iterations=N, gradient=mode), inputs)
    seen = []
    watched = of(row, iterations=N, gradient=mode, callback=lambda at: seen.append(at))
    close(results(watched, inputs), expected)
    assert [at.iteration for at in seen] == list(range(1, N + 1))
    axis = 0 if shape == "vector" else -2
    close(torch.stack([at.residual_norm for at in seen], axis), expected[0][1].narrow(axis, 1, N))
    close(seen[-1].x, expected[0][0])

    def with_callable(v, b, x0, *given):
        A = ls.CSR(v, P)
        M = {"M": row.preconditioner(A)} if row.M else {}
        solution = row.solve(lambda x: A @ x, b, x0, *given, iterations=N, gradient=mode, **M)
        return solution.x, solution.residual_norms

    close(results(with_callable, inputs), expected)
    for at in (3, N):
        stop = {"iterations": N, "gradient": mode, "callback": lambda s: s.iteration == at}  # noqa: B023
        solution = row.solve(ls.CSR(inputs[0], P), *inputs[1:], **stop)
        assert (solution.status, solution.iterations) == (Status.STOPPED_BY_CALLBACK, at)
        close(results(of(row, **stop), inputs), results(of(row, iterations=at), inputs))


@every_row
def test_divergence_is_named(row):
    A = ls.CSR.from_dense(torch.tensor([[1.0, 9.0], [9.0, 1.0]], dtype=F64))
    b = normal((2, 2)) + 3
    bad = b.clone()
    bad[0, 0] = math.nan
    for keywords in ({"iterations": 30}, {"maxiter": 3000}):
        if "maxiter" in keywords and not row.stops:
            continue
        solution = row.solve(A, b, **keywords)
        assert (solution.status, solution.converged) == (Status.DIVERGED, False)
        assert solution.x.isfinite().all()
        assert row.solve(A, bad, **keywords).status is Status.NON_FINITE
        if row.stops and not (row.sweeps and "iterations" in keywords):
            with pytest.raises(SolverError, match="DIVERGED"):
                row.solve(A, b, throw=True, **keywords)
    assert row.solve(A, b, iterations=700).status is Status.NON_FINITE
    if row.stops and not row.sweeps:  # whoever stopped it
        overflow = lambda at: not bool(at.residual_norm.isfinite().all())  # noqa: E731
        ended = row.solve(A, b, iterations=700, callback=overflow)
        assert ended.status is Status.NON_FINITE
        assert ended.iterations < 700
    good, b = halved(), normal((16, 2))
    b[0, 0] = math.nan
    if row.stops:
        assert row.solve(good, b, maxiter=3000).statuses == [Status.NON_FINITE, Status.CONVERGED]
    if row.stops and not row.sweeps:
        assert row.solve(good, b[:, 1], iterations=3, throw=True).status is Status.MAX_ITERATIONS


@every_row
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_input_that_is_not_finite(row, bad):
    inputs = range(row.M == "diagonal", 3 + bool(row.parameters.keys() & {"weight", "alpha"}))
    for where, N, learns in itertools.product(inputs, (0, 1, 3), (False, True)):
        if where == 3 and N == 0:
            continue  # the weight is not used
        inputs = row.inputs(P, "vector", "()")
        inputs[where][0 if where < 3 else ()] = bad
        given = [t.requires_grad_(learns) for t in inputs[3:]]
        solution = row.solve(ls.CSR(inputs[0], P), *inputs[1:3], *given, iterations=N)
        assert solution.status is Status.NON_FINITE


@every_row_that_stops
def test_extraordinary_sizes(row):
    """Residuals whose squares leave the range of the dtype: the same iterations in any units."""
    A, b = halved(), normal((16,)).requires_grad_()
    options = {"rtol": 1e-6, "maxiter": 1000}
    plain, g = row.solve(A, b, **options), normal((16,), seed=3)
    of_g, of_small = (torch.autograd.grad(plain.x, b, t, retain_graph=True)[0] for t in (g, 1e-200 * g))
    close(1e200 * of_small, of_g, 1e-9)
    for A_size, b_size in ((1e-200, 1e-100), (1.0, 1e-250), (1e200, 1e100)):
        unit = 1.0 if row.M == "diagonal" else A_size  # of the spectrum of M A
        units = {"weight": 1 / unit, "alpha": 1 / unit, "lmin": unit, "lmax": unit}
        given = [start * units.get(key, 1) for key, (start, _) in row.parameters.items()]
        scaled = ls.CSR(A.values * A_size, A.pattern)
        for count in ({"iterations": 9}, options):
            solution = row.solve(scaled, b * b_size, None, *given, **count)
            expected = row.solve(A, b, **count)
            close(solution.x * (A_size / b_size), expected.x, 1e-9)
            assert abs(solution.iterations - expected.iterations) <= 1


# --- modules ---


@rows(lambda r: r.module)
@pytest.mark.parametrize(
    ("form", "mode"), zip(["()", "(N,)", "(B,)", "(N, B)", "(B, N, 1)", "(N, n)"], 3 * MODES, strict=True)
)
def test_module(row, form, mode):
    """The function with parameters that learn, of any shape, and a state that can be saved."""
    v, b, x0, *given = row.inputs(P, "batch of both", form)
    A, make = ls.CSR(v, P), getattr(ls.solvers, row.module)
    own = {**row.keywords, "iterations": 3, "gradient": mode}
    if row.M:
        own["M"] = row.preconditioner(A)
    module = make(*given, **own)
    for start in ((), (x0,)):
        solution = module(A, b, *start)
        expected = row.solve(A, b, *(start or (None,)), *given, iterations=3, gradient=mode)
        close([solution.x, solution.residual_norms], [expected.x, expected.residual_norms])
    solution.residual_norms[..., -1, :].sum().backward()
    assert [p.grad.shape for p in module.parameters()] == [t.shape for t in given]
    assert all(p.grad.any() for p in module.parameters())
    again = make(*(1.05 * t for t in given), **own)
    assert not torch.equal(again(A, b).x, module(A, b).x)
    again.load_state_dict(module.state_dict())
    assert torch.equal(again(A, b).x, module(A, b).x)
    owners = [*given, *module.parameters(), *again.parameters()]
    assert len({t.data_ptr() for t in owners}) == len(owners)
    assert repr(module).startswith(f"{row.module}(")
    assert "iterations=3" in repr(module)
    assert repr(mode) in repr(module)
