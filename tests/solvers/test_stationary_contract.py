"""What every stationary method promises, row by row: iterates and gradients of the dense recurrence for each
shape of A, b and the parameters, transformations, norms, memory, layouts. How they stop and end, and their
modules: test_stationary_ends.py."""

import itertools
import math

import pytest
import torch
from reference import assert_within, layouts, normal, pattern_of, same_bits
from solvers.stationary_cases import (
    FORMS,
    MATRICES,
    MODES,
    ROWS,
    SHAPES,
    Row,
    close,
    halved,
    results,
    rows,
    small_square,
    values_on,
    weighted,
)
from torch import func
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls
from learnsolve.solvers import Status

P = small_square()
F64 = torch.float64


every_row = rows()


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
            close([t.double() for t in g[0]], both, 1e-11 if dtype == F64 else 1e-2)


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
            close(results(of(row, iterations=N, gradient=mode), inputs, which), expected, 1e-11)


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
                    close(t.grad, expected, 1e-13)


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

# The shape of A and b, and that of the parameters: each once.
COMBINATIONS = [("columns", form) for form in ("()", "(n,)", "(N,)", "(1, n)", "(N, 1)", "(N, n)")] + [
    *(("vector", "(N, n)"), ("one column", "(n,)"), ("batch of b", "(B,)"), ("batch of values", "(N, B)")),
    *(("batch of both", "(B, N, n)"), ("broadcast batches", "(N, B)"), ("batch of both", "(N, n)")),
]


@every_row
def test_gradcheck(row, quick):
    """Every second combination, the next row has the others. Under vmap, and forward over reverse,
    which take most of the time: every third, others in each row."""
    if quick and row.M == "diagonal":
        pytest.skip("long; run it with --slow")  # the sweeps without M
    at = ROWS.index(row)
    every = [(c, MODES[(i // 2 + at // 2) % 2], (i + at) % 3 == 0) for i, c in enumerate(COMBINATIONS)]
    for combination, mode, deep in [every[(5 * at + at // 2) % len(every)]] if quick else every[at % 2 :: 2]:
        deep = at % 2 == 0 if quick else deep
        inputs = row.inputs(P, *combination, N=3, requires_grad=True)
        f = of(row, iterations=3, gradient=mode)
        # Checkpoints of steps op by op work by hooks on saved tensors.
        batched = deep and (mode == "unrolled" or not (row.sweeps or row.M == "callable"))
        checks = {"check_batched_grad": batched, "check_batched_forward_grad": batched, "fast_mode": True}
        assert gradcheck(f, inputs, check_forward_ad=True, **checks)
        assert gradgradcheck(f, inputs, check_fwd_over_rev=deep and mode == "unrolled", fast_mode=True)


@every_row
def test_torch_func(row):
    """Reverse, forward and mapped, over each input and over all: as of the dense recurrence."""
    inputs = row.inputs(P, "columns", "()")
    every = tuple(range(len(inputs)))
    tangents = tuple(normal(t.shape, seed=20 + i) for i, t in enumerate(inputs))
    stacks = [torch.stack((t, 1.1 * t, 0.9 * t), -1) for t in inputs]

    def both(transform):
        found = [transform(of(row, iterations=3, gradient=mode)) for mode in MODES]
        expected = transform(lambda *t: row.dense(P, *t, iterations=3, form="()"))
        close(found, [expected] * 2, 1e-11)

    def gradient(f):
        return func.grad(lambda *t: torch.sin(weighted(f(*t))), argnums=every)

    both(lambda f: gradient(f)(*inputs))
    both(lambda f: func.jvp(f, tuple(inputs), tangents))
    both(lambda f: func.jvp(lambda *t: func.jvp(f, t, tangents), tuple(inputs), tuple(inputs)))
    both(lambda f: func.vmap(f, in_dims=-1)(*stacks))
    both(lambda f: func.vmap(gradient(f), in_dims=-1)(*stacks))
    for i in every:
        dims = tuple(-1 if j == i else None for j in every)
        one = [stacks[j] if j == i else t for j, t in enumerate(inputs)]
        both(lambda f: func.vmap(f, in_dims=dims)(*one))  # noqa: B023
    both(lambda f: results(func.vmap(f, in_dims=-1), stacks)[1])


# One or two of each operator, of each M and of each kind of parameter; the first six in quick runs.
COMPILED = [
    *("jacobi-unrolled", "jacobi-checkpointed", "richardson, diagonal M-unrolled", "heavyball-checkpointed"),
    *("chebyshev-unrolled", "sor, direction backward, multicolor True-checkpointed"),
    *(
        "richardson, callable M-checkpointed",
        "heavyball, diagonal M-unrolled",
        "heavyball, callable M-unrolled",
    ),
    *("chebyshev, diagonal M-checkpointed", "gauss_seidel-unrolled", "sor-checkpointed"),
    *("sor, direction symmetric-unrolled", "ssor, multicolor True-checkpointed"),
]


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(
    "name", [pytest.param(c, marks=pytest.mark.slow if i > 5 else ()) for i, c in enumerate(COMPILED)]
)
def test_compile(name):
    (row,) = (row for row in ROWS if row.name == name.rpartition("-")[0])
    mode = name.rpartition("-")[2]
    combinations = [("vector", "()"), ("columns", "()"), ("batch of both", "(N, B)")]
    shape, form = combinations[COMPILED.index(name) % 3]
    breaks = row.sweeps and form != "()"  # an omega of its own for each step
    inputs = row.inputs(P, shape, form)
    f = of(row, iterations=1 if shape == "vector" else 3, gradient=mode)
    inputs = (
        inputs[:3] if form == "()" and mode == "checkpointed" else inputs
    )  # parameters are tensors or numbers
    compiled = torch.compile(f, fullgraph=not breaks, backend="aot_eager")
    close(results(compiled, inputs), results(f, inputs))


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
    close(from_zero.x, row.solve(A, x0, zero, iterations=3).x)
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
    close(*[(solution.x, solution.residual_norms) for solution in given], 1e-12)


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
