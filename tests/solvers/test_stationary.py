"""What every stationary method promises, row by row: iterates and gradients of the dense recurrence for each
shape of A, b and the parameters, transformations, norms, memory, layouts; tolerances, implicit gradients,
callbacks, divergence, sizes near the limits of the dtype; that its module is the function. Then defaults,
relations between methods, statuses."""

import itertools
import math

import numpy as np
import pytest
import torch
from reference import assert_within, layouts, normal, pattern_of, same_bits
from solvers.cases import poisson
from solvers.stationary_cases import (
    FORMS,
    MATRICES,
    MODES,
    ROWS,
    SHAPES,
    Row,
    halved,
    near,
    results,
    rows,
    small_square,
    values_on,
    weighted,
)
from torch.autograd import gradgradcheck

import learnsolve as ls
from learnsolve.solvers import Solution, SolverError, Status

S = ls.solvers
P = small_square()
F64 = torch.float64
every_row = rows()
every_row_that_stops = rows(lambda r: r.stops)


def of(row: Row, pattern=P, **keywords):
    return lambda *t: row.sparse(pattern, *t, **keywords)


# --- values and gradients ---


def some(values, step: int, *at: int) -> list:
    """Every so many of them, others for each place in the table."""
    return list(values)[sum(at) % step :: step]


@every_row
@pytest.mark.parametrize("structure", MATRICES)
def test_values_and_gradients_within_rounding(row, structure, quick):
    """Each index type and dtype, against float64, within what rounding explains (Higham's gamma)."""

    def dense(pattern, **sign):
        return lambda *t: row.dense(pattern, *t, iterations=N, form="(N, n)", **sign)

    N, at = 3, (ROWS.index(row), list(MATRICES).index(structure))
    every = itertools.product((torch.int32, torch.int64), (F64, torch.float32), ((), (1,), (3,), (8,), (21,)))
    for index, dtype, columns in some(every, 8 if quick else 4, *at):
        pattern = pattern_of(MATRICES[structure], index)
        n = pattern.shape[0]
        # On a path from an input to x stand, in each step, a sum along a row, b - Ax, w / d, s r, x + s r.
        terms = (N + 1) * (int(pattern.crow_indices.diff().max()) + 8 + row.terms(pattern))
        given = row.inputs(pattern, "vector", "(N, n)", N, dtype)[3:]
        b, x0 = (normal((n, *columns), dtype, seed) for seed in (3, 4))
        inputs = values_on(pattern, dtype=dtype), b, x0, *given
        exact, which = [t.double() for t in inputs], ((0, 1), (0,))
        expected, (both, of_x) = results(dense(pattern), exact, which)
        size, (_, size_of_x) = results(dense(pattern, sign=+1), [t.abs() for t in exact], which)
        for mode in MODES:
            out, g = results(of(row, pattern, iterations=N, gradient=mode), inputs, which)
            for i, extra in enumerate((0, n)):
                assert out[i].dtype == dtype
                count = torch.full_like(expected[i], terms + extra)
                assert_within(out[i], expected[i], size[i], count, f"{index}, {dtype}, {columns}")
            # And back; parameters sum over rows and columns. Chebyshev's coefficients are no sums.
            for i in range(3 if row.method == "chebyshev" else len(inputs)):
                count = torch.full_like(of_x[i], 2 * terms + b.numel() + n)
                assert_within(g[1][i], of_x[i], size_of_x[i].abs(), count, f"gradient {i}, {mode}, {dtype}")
            near([t.double() for t in g[0]], both, 1e-11 if dtype == F64 else 1e-2)


@pytest.mark.rows(10)
@every_row
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(row, shape, quick):
    """Of A's values, b and the parameters, with gradients of x, of the norms, and of both."""
    which = ((0,), (1,), (0, 1))
    # Parameters come in one way with an M and without: together the rows of a method have every form once.
    step, at = 8 if quick else 2, (ROWS.index(row), list(SHAPES).index(shape))
    numbers = (5, sum(at) % 3) if quick else (0, 1, 2, 5)
    forms = {tuple(row.form(key, form) for key in row.parameters): form for form in FORMS}.values()
    for form, N in itertools.product(some(forms, min(step, len(forms)), *at), numbers):
        if shape not in row.shapes or (N == 2 and ("N" in form or form == "(B,)")):
            continue  # the latter is refused: one a step or one a member?
        inputs = row.inputs(P, shape, form, N)
        expected = results(lambda *t: row.dense(P, *t, iterations=N, form=form), inputs, which)  # noqa: B023
        for mode in MODES:
            near(results(of(row, iterations=N, gradient=mode), inputs, which), expected, 1e-11)


@pytest.mark.rows(11)
@every_row
def test_gradient_of_some_inputs_only(row):
    """Every subset of inputs that learn: the gradients of all of them at once, and none elsewhere."""
    every = [("vector", "(N, n)"), ("columns", "()"), ("batch of both", "(B,)")]
    for combination, mode in itertools.product(every[1:2] if row.sweeps or row.M else every, MODES):
        inputs = row.inputs(P, *combination)
        f = of(row, iterations=3, gradient=mode)
        _, [together] = results(f, inputs)
        for learns in itertools.product((False, True), repeat=len(inputs)):
            some = [t.clone().requires_grad_(flag) for t, flag in zip(inputs, learns, strict=True)]
            if any(learns):
                weighted(f(*some)).backward()
            for t, flag, expected in zip(some, learns, together, strict=True):
                assert (t.grad is not None) == flag
                if flag:
                    near(t.grad, expected, 1e-13)


@every_row
@pytest.mark.parametrize("N", [0, 1, 3])
def test_any_layout_and_nothing_written(row, N):
    inputs = row.inputs(P, "columns", "(N, n)" if N == 3 else "()", N)
    before = [t.clone() for t in inputs]
    for i, t in enumerate(inputs):
        for name, view in layouts(t):
            if name == "overlapping windows" and i not in (1, 2):
                continue  # zeros: of a diagonal, or an omega
            there, copy = list(inputs), list(inputs)
            there[i], copy[i] = view, view.clone(memory_format=torch.contiguous_format)
            x, norms = row.sparse(P, *there, iterations=N)
            expected = row.sparse(P, *copy, iterations=N)
            assert torch.equal(x, expected[0]), f"input {i}, {name}"
            assert same_bits(norms, expected[1]), f"input {i}, {name}"
    row.sparse(P, *inputs, iterations=N)[0].fill_(7)
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))


@every_row
@pytest.mark.parametrize("N", [0, 1, 3])
def test_nothing_to_solve(row, N):
    """No columns, no rows, no members of a batch: empty results and gradients of zero."""
    empty = ls.CSR.from_dense(torch.zeros(0, 0)).pattern
    for pattern, shape in ((P, (4, 0)), (P, (0, 4, 2)), (empty, (0,)), (empty, (0, 3)), (P, (0, 4, 0))):
        b = torch.zeros(shape, dtype=F64)
        inputs = values_on(pattern), b, b, *row.inputs(P, "vector", "()")[3:]
        (x, norms), [g] = results(of(row, pattern, iterations=N), inputs)
        assert x.shape == shape
        assert norms.shape == (*shape[:-2], N + 1, *shape[max(len(shape) - 1, 1) :])
        assert [t.shape for t in g] == [t.shape for t in inputs]
        assert not any(t.any() for t in g)


# --- derivatives and transformations ---


@pytest.mark.rows(4)
@every_row
def test_second_derivatives_through_checkpoints(row):
    """All else: rows of tests/registry.py."""
    inputs = row.inputs(P, "batch of both", "(B, N, n)", N=3, requires_grad=True)
    assert gradgradcheck(of(row, iterations=3, gradient="checkpointed"), inputs, fast_mode=True)


@pytest.mark.rows(1)
@pytest.mark.usefixtures("fresh_compiler")
@every_row
def test_compile(row):
    i = ROWS.index(row) // 3
    mode, (shape, form) = (
        MODES[i % 2],
        [("vector", "()"), ("columns", "()"), ("batch of both", "(N, B)")][i % 3],
    )
    inputs = row.inputs(P, shape, form)
    f = of(row, iterations=1 if shape == "vector" else 3, gradient=mode)
    if form == "()" and mode == "checkpointed":
        inputs = inputs[:3]  # parameters are tensors or numbers
    breaks = row.sweeps and form != "()"  # an omega of its own for each step
    compiled = torch.compile(f, fullgraph=not breaks, backend="aot_eager")
    near(results(compiled, inputs), results(f, inputs))


# --- a number of iterations ---


@every_row
def test_a_fixed_number_runs_whatever_happens(row):
    A, x0 = halved(), normal((16, 2))
    zero = torch.zeros_like(x0)
    smooth = row.solve(A, zero, x0, iterations=4)  # the error of another system, say
    assert (smooth.x != 0).all()
    assert (smooth.iterations, len(smooth.residual_norms)) == (4, 5)
    assert smooth.status is Status.MAX_ITERATIONS
    from_zero = row.solve(A, x0, iterations=3)
    near(from_zero.x, row.solve(A, x0, zero, iterations=3).x)
    assert not torch.equal(from_zero.x, row.solve(A, x0, iterations=4).x)
    none = row.solve(A, zero, x0, iterations=0)
    assert torch.equal(none.x, x0)
    assert none.x.data_ptr() != x0.data_ptr()
    done = row.solve(A, x0, iterations=2000)  # however small the residual is, no tolerance is met
    assert done.residual_norms[-1].max() < 1e-13
    assert done.status is Status.MAX_ITERATIONS
    assert not done.converged


@rows(lambda r: r.M != "callable")  # of steps op by op they are there at once
@pytest.mark.parametrize("changed", ["A", "b", "x"])
@pytest.mark.parametrize("columns", [False, True])
def test_norms_are_refused_once_what_they_need_has_changed(row, columns, changed):
    for N, learns in ((1, True), (1, False), (3, True)):
        v, b, _, *given = row.inputs(P, "columns" if columns else "vector", "()")
        A, given = ls.CSR(v, P), [t.requires_grad_(learns) for t in given]
        solution = row.solve(A, b, None, *given, iterations=N)
        with torch.no_grad():
            {"A": A.values, "b": b, "x": solution.x}[changed].mul_(2)
        with pytest.raises(
            RuntimeError, match=r"Solution.residual_norms: .* changed in place after the solve"
        ):
            _ = solution.residual_norms


@every_row
@pytest.mark.parametrize("N", [0, 1, 3])
def test_norms_have_the_graph_of_the_solve(row, N):
    """Whether they are differentiable does not depend on the mode in which they are first asked for."""
    A, b = ls.problems.poisson((4,)), normal((4,)).requires_grad_()
    solution = row.solve(A, b, iterations=N)
    with torch.no_grad():
        assert not solution.converged
        solution.residual_norms  # noqa: B018
    assert all(torch.autograd.grad(norm, b, retain_graph=True)[0].any() for norm in solution.residual_norms)
    with torch.no_grad():
        solution = row.solve(A, b, iterations=N)
    assert not solution.residual_norms.requires_grad


@every_row
@pytest.mark.parametrize("N", [1, 3])
def test_norms_of_zero(row, N):
    """b = A x0 = 0: a norm has no derivative there. Its gradients are 0, and theirs finite, not NaN."""
    A, x0 = ls.problems.poisson((4,)), torch.zeros(4, 2, dtype=F64)
    given = row.inputs(P, "vector", "()")[3:]
    for some_learn in (True, False):
        inputs = [t.clone().requires_grad_(some_learn) for t in (A.values, x0, x0)]
        learned = [t.clone().requires_grad_() for t in given]
        chosen = [*(inputs if some_learn else []), *learned]
        if chosen:
            _, norms = row.sparse(A.pattern, *inputs, *learned, iterations=N)
            found = torch.autograd.grad(norms.sum(), chosen, create_graph=True)
            assert not any(t.any() for t in found)
            again = torch.autograd.grad(sum(t.sum() for t in found), chosen, allow_unused=True)
            assert all(t is None or t.isfinite().all() for t in again)


@every_row
@pytest.mark.parametrize("mode", MODES)
def test_no_start_is_zero(row, mode):
    A, b = halved(), normal((16, 2), seed=2).requires_grad_()
    given = [row.solve(A, b, x0, iterations=5, gradient=mode) for x0 in (None, torch.zeros_like(b))]
    near(*[(solution.x, solution.residual_norms) for solution in given], 1e-12)


@every_row
def test_checkpoints_keep_few_iterates(row):
    A, b, N = ls.problems.poisson((20, 20)), normal((400, 4)).requires_grad_(), 64
    counts = []
    for mode in MODES:
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):  # noqa: B023
            row.solve(A, b, iterations=N, gradient=mode)
        iterates = {t.data_ptr(): t.numel() for t in saved if t.shape[-2:] == b.shape}
        counts.append(sum(iterates.values()) / b.numel())
    assert counts[0] >= N
    assert counts[1] <= 2 * math.isqrt(N) + 2


# --- until a tolerance ---


@every_row_that_stops
def test_steps_to_a_tolerance_are_those_of_a_fixed_number(row):
    """Of a LinearOperator too. All else: rows of test_krylov.py."""
    A, b, options = halved(), normal((16,), seed=2), {"rtol": 1e-9, "maxiter": 2000}
    alone = row.solve(A, b, **options)
    again = row.solve(A, b, iterations=alone.iterations)
    near([alone.x, alone.residual_norms], [again.x, again.residual_norms], 1e-11)
    if not row.sweeps:
        M = {"M": row.preconditioner(A)} if row.M else {}
        near(row.solve(A.to_scipy_linear_operator(), b, **options, **M).x, alone.x, 1e-11)


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
            near(together.x[i], alone.x, 1e-9)
            near(together.residual_norms[i, : steps + 1], alone.residual_norms, 1e-11)


@every_row_that_stops
def test_the_adjoint_solve_has_the_rate_of_the_solve(row):
    """On a matrix that is not symmetric: the adjoint of a sweep is its transpose."""
    A, b = ls.CSR(values_on(P), P), normal((4, 2), seed=3).requires_grad_()
    solution = row.solve(A, b, rtol=1e-14, maxiter=3000)
    solution.x.sum().backward()
    near(b.grad, torch.linalg.solve(A.to_dense().T, torch.ones(4, 2, dtype=F64)), 1e-9)
    assert solution.adjoint.converged
    assert abs(solution.adjoint.iterations - solution.iterations) <= 12


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
    near(results(watched, inputs), expected)
    assert [at.iteration for at in seen] == list(range(1, N + 1))
    axis = 0 if shape == "vector" else -2
    near(torch.stack([at.residual_norm for at in seen], axis), expected[0][1].narrow(axis, 1, N))
    near(seen[-1].x, expected[0][0])

    def with_callable(v, b, x0, *given):
        A = ls.CSR(v, P)
        M = {"M": row.preconditioner(A)} if row.M else {}
        solution = row.solve(lambda x: A @ x, b, x0, *given, iterations=N, gradient=mode, **M)
        return solution.x, solution.residual_norms

    near(results(with_callable, inputs), expected)
    for at in (3, N):
        stop = {"iterations": N, "gradient": mode, "callback": lambda s: s.iteration == at}  # noqa: B023
        solution = row.solve(ls.CSR(inputs[0], P), *inputs[1:], **stop)
        assert (solution.status, solution.iterations) == (Status.STOPPED_BY_CALLBACK, at)
        near(results(of(row, **stop), inputs), results(of(row, iterations=at), inputs))


@pytest.mark.rows(8)
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


@pytest.mark.rows(6)
@every_row_that_stops
def test_extraordinary_sizes(row):
    """Residuals whose squares leave the range of the dtype: the same iterations in any units."""
    A, b = halved(), normal((16,)).requires_grad_()
    options = {"rtol": 1e-6, "maxiter": 1000}
    plain, g = row.solve(A, b, **options), normal((16,), seed=3)
    of_g, of_small = (torch.autograd.grad(plain.x, b, t, retain_graph=True)[0] for t in (g, 1e-200 * g))
    near(1e200 * of_small, of_g, 1e-9)
    for A_size, b_size in ((1e-200, 1e-100), (1.0, 1e-250), (1e200, 1e100)):
        unit = 1.0 if row.M == "diagonal" else A_size  # of the spectrum of M A
        units = {"weight": 1 / unit, "alpha": 1 / unit, "lmin": unit, "lmax": unit}
        given = [start * units.get(key, 1) for key, (start, _) in row.parameters.items()]
        scaled = ls.CSR(A.values * A_size, A.pattern)
        for count in ({"iterations": 9}, options):
            solution = row.solve(scaled, b * b_size, None, *given, **count)
            expected = row.solve(A, b, **count)
            near(solution.x * (A_size / b_size), expected.x, 1e-9)
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
        near([solution.x, solution.residual_norms], [expected.x, expected.residual_norms])
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


def test_defaults():
    A, b = ls.CSR(values_on(P), P), normal((4,), seed=1)
    x = S.jacobi(A, b).x
    near(x, b / A.diagonal())  # one sweep with weight 1 from zero
    assert torch.equal(x, S.jacobi(A, b, torch.zeros_like(b), weight=1.0, iterations=1).x)
    assert torch.equal(S.sor(A, b, iterations=3).x, S.gauss_seidel(A, b, iterations=3).x)
    assert torch.equal(S.sor(A, b, omega=1.0, iterations=3).x, S.gauss_seidel(A, b, iterations=3).x)
    both = S.sor(A, b, omega=1.2, direction="symmetric", iterations=3)
    assert torch.equal(S.ssor(A, b, omega=1.2, iterations=3).x, both.x)
    assert S.Jacobi().weight.shape == ()
    assert S.Jacobi(1).weight.is_floating_point()  # as jacobi takes the number 1


@pytest.mark.parametrize("number", [0.5, 1, np.float64(0.5)], ids=repr)
def test_any_number_is_a_scalar(number):
    A, b, scalar = ls.CSR(values_on(P, 2), P), normal((2, 4, 2)), torch.tensor(float(number), dtype=F64)
    for method, keys in (("jacobi", ["weight"]), ("heavyball", ["alpha", "beta"]), ("sor", ["omega"])):
        one, other = (
            getattr(S, method)(A, b, **dict.fromkeys(keys, n), iterations=3).x for n in (number, scalar)
        )
        assert torch.equal(one, other)


def test_the_inverse_diagonal_follows_the_values():
    A, b = ls.CSR(values_on(P), P), normal((4,), seed=1)
    for learns in (False, True):
        A.requires_grad_(learns)
        for _ in range(2):
            S.jacobi(A, b, iterations=2)
            with torch.no_grad():
                A.values[P.diagonal_positions] *= 1.5
            fresh = ls.CSR(A.values.detach().clone(), P)
            assert torch.equal(S.jacobi(A, b, iterations=2).x, S.jacobi(fresh, b, iterations=2).x)


def test_equal_bounds():
    """lmin = lmax: no step has momentum, and all derivatives are numbers."""
    A, b = ls.problems.poisson((6,)), normal((6,))
    bounds = [torch.tensor(2.0, dtype=F64, requires_grad=True) for _ in range(2)]
    x = S.chebyshev(A, b, lmin=bounds[0], lmax=bounds[1], iterations=5).x
    near(x, S.richardson(A, b, weight=0.5, iterations=5).x)
    grads = torch.autograd.grad(x.sum(), bounds, create_graph=True)
    assert all(g.isfinite() for g in (*grads, *torch.autograd.grad(sum(grads), bounds)))
    step = 1e-6
    more, less = (S.chebyshev(A, b, lmin=2.0, lmax=2.0 + s, iterations=5).x.sum() for s in (step, 0))
    assert float(grads[1]) == pytest.approx(float(more - less) / step, rel=1e-4)


@pytest.mark.filterwarnings("ignore::learnsolve.solvers.ConvergenceWarning")
@pytest.mark.parametrize("name", ["gauss_seidel", "sor", "ssor"])
def test_batches_that_come_to_rounding_level_are_loops(name):
    """A member starts again there; the triangles are those of all members."""
    A, method = poisson(3, 2), getattr(S, name)
    values, b = A.values * torch.tensor([[1.0], [1.5]]).double(), normal((2, A.shape[0], 1))
    ours = method(A.with_values(values), b, rtol=1e-17, maxiter=80)
    assert ours.x.shape == b.shape
    for i in range(2):
        assert torch.equal(ours.x[i], method(A.with_values(values[i]), b[i], rtol=1e-17, maxiter=80).x)


def test_no_sweep_has_zero_gradients():
    A, b = poisson(), normal((16,))
    w = torch.tensor(1.2, dtype=F64, requires_grad=True)
    for how in (
        {"iterations": 0},
        {"iterations": 0, "gradient": "checkpointed"},
        {"maxiter": 0, "gradient": "unrolled"},
    ):
        assert torch.autograd.grad(S.sor(A, b, omega=w, **how).x.sum(), w)[0] == 0
    assert S.SOR(1.0, iterations=0).double()(A, b).x.requires_grad


def test_modules_hold_what_learns():
    A, b = poisson(), normal((16, 2))
    for make in (S.Richardson, S.Heavyball, S.Chebyshev):
        learned, numbers = (
            torch.nn.Linear(16, 16, bias=False).double(),
            [0.3, 0.4][: 1 + (make is not S.Richardson)],
        )
        assert any(name.startswith("M.") for name, _ in make(*numbers, M=learned).named_parameters())
        inside = make(*numbers, M=lambda r: learned(r.mT).mT)  # noqa: B023
        assert not any("M" in name for name, _ in inside.named_parameters())
    for logit in (1e3, -1e3):  # where sigmoid is rounded
        solver = S.SOR(1.0).double()
        torch.nn.init.constant_(solver.logit, logit)
        assert torch.isfinite(solver(A, b).x).all()


# --- how a solve ended ---


def test_the_worst_column_counts():
    """One diverging column or member of the batch among others."""
    A = ls.problems.poisson((8,))
    # Of the smallest eigenvalue: a weight of 1.5 is good.
    mode, rough = torch.sin(torch.arange(1, 9, dtype=F64) * math.pi / 9), normal((8,))
    b = torch.stack((mode, rough, mode), -1)
    assert S.jacobi(A, mode, weight=1.5, iterations=20).status is Status.MAX_ITERATIONS
    assert S.jacobi(A, b, weight=1.5, iterations=20).status is Status.DIVERGED
    assert S.jacobi(A, b.mT.unsqueeze(-1), weight=1.5, iterations=20).status is Status.DIVERGED
    b[3, 2] = math.nan
    assert S.jacobi(A, b, iterations=1).status is Status.NON_FINITE


@pytest.mark.parametrize("learns", [False, True])
def test_overflow(learns):
    """Of the norm alone, or of the iterates too."""
    for dtype, iterations in ((torch.float32, 1), (torch.float32, 5), (F64, 5), (F64, 20)):
        weight = torch.tensor(1e30, dtype=dtype, requires_grad=learns)
        A = ls.problems.poisson((8,), dtype=dtype)
        solution = S.jacobi(A, torch.ones(8, dtype=dtype), weight=weight, iterations=iterations)
        expected = Status.DIVERGED if (dtype, iterations) == (F64, 5) else Status.NON_FINITE
        assert (solution.status, solution.converged) == (expected, False)


def test_solution():
    norms, x = torch.tensor([3.0, 1.0]), torch.ones(2)
    asked = []
    solution = Solution(x, 1, lambda: asked.append(1) or norms, 0, ())
    assert not asked  # the norms are computed when asked for
    assert solution.residual_norms is norms
    assert solution.status is Status.MAX_ITERATIONS
    assert solution.residual_norms is norms
    assert len(asked) == 1
    assert repr(solution) == "Solution(x=(2,), iterations=1, status=MAX_ITERATIONS)"
    # Tenfold is not yet more than tenfold.
    assert Solution(x, 1, lambda: torch.tensor([1.0, 10.0]), 0, ()).status is Status.MAX_ITERATIONS
    assert Solution(x, 1, lambda: torch.tensor([1.0, 10.1]), 0, ()).status is Status.DIVERGED
    assert Solution(torch.tensor([math.nan]), 1, lambda: norms, 0, ()).status is Status.NON_FINITE
