"""What every operation of the table promises: values, derivatives of any order, transformations, layouts, and
the same in graphs of torch.compile."""

import itertools

import pytest
import torch
from ops.cases import CASES, is_branch
from ops.rows import Case, moved
from reference import (
    assert_within,
    forward_along,
    gradients,
    layouts,
    normal,
    on_cuda,
    pattern_of,
    random,
    reverse_along,
    same_bits,
    small_pattern,
    structures,
)

import learnsolve as ls
from learnsolve.matrix.cache import outside_of_graphs

STRUCTURES = structures()
MOVES = torch.cuda.is_available() and not on_cuda()
ON_DEVICE = [moved(case, "cuda") for case in CASES] if MOVES else []
EVERY = CASES + ON_DEVICE
every_case = pytest.mark.parametrize("case", EVERY, ids=lambda c: c.name)
# Those with any numbers as inputs.
every_sum = pytest.mark.parametrize("case", [c for c in EVERY if c.make is None], ids=lambda c: c.name)
# By `make test` for one case of each Function and branch.
transformed = pytest.mark.parametrize(
    "case", [pytest.param(c, marks=() if is_branch(c) else pytest.mark.slow, id=c.name) for c in EVERY]
)


@pytest.mark.skipif(not ON_DEVICE, reason="the cases run on one device alone")
def test_every_case_runs_on_the_device():
    """On CUDA tensors all tests below are those of the CPU: inputs go there and results come back."""
    for case, there in zip(CASES, ON_DEVICE, strict=True):
        inputs = case.inputs(P := case.pattern())
        torch.testing.assert_close(there.sparse(P, *inputs), case.sparse(P, *inputs), rtol=1e-12, atol=1e-12)


@every_sum
def test_value_and_gradients(case: Case, quick: bool):
    pairs = list(itertools.product((torch.int32, torch.int64), (torch.float32, torch.float64)))
    # One pair of types with each structure, each pair with some, and with a structure in another case; or two
    # pairs, with both types of each kind.
    first = [(i + EVERY.index(case)) % 4 for i in range(len(STRUCTURES))]
    some = [
        (s, pairs[k]) for s, i in zip(STRUCTURES, first, strict=True) for k in ((i,) if quick else (i, 3 - i))
    ]
    for structure, (index, dtype) in some:
        S, n = STRUCTURES[structure], min(STRUCTURES[structure].shape)
        P = pattern_of(S[:n, :n] if case.square else S, index)
        inputs = case.inputs(P, dtype)
        exact = [t.double() for t in inputs]
        size = [t.abs() for t in exact]
        ones = [torch.ones_like(t) for t in exact]
        what = f"{case.name}, {structure}, {index}, {dtype}"

        out = case.sparse(P, *inputs)
        reference = case.dense(P, *exact)
        assert out.dtype == dtype
        assert_within(out, reference, case.majorant(P, *size), case.majorant(P, *ones), what)

        g = normal(out.shape, dtype, seed=9)
        found = gradients(lambda *a: case.sparse(P, *a), inputs, g)  # noqa: B023
        wanted = gradients(lambda *a: case.dense(P, *a), exact, g.double())  # noqa: B023
        magnitude = gradients(lambda *a: case.majorant(P, *a), size, g.double().abs())  # noqa: B023
        terms = gradients(lambda *a: case.majorant(P, *a), ones, torch.ones_like(reference))  # noqa: B023
        for i, t in enumerate(found):
            assert t.dtype == dtype
            assert_within(t, wanted[i], magnitude[i].abs(), terms[i].abs(), f"gradient {i} of {what}")


@every_case
def test_gradient_of_some_inputs_only(case: Case):
    """Each input alone, the others constant: the same gradient as with all of them, and None elsewhere."""
    P = case.pattern()
    inputs = case.inputs(P)
    out = case.sparse(P, *inputs)
    assert not out.requires_grad
    g = normal(out.shape, seed=9)
    together = gradients(lambda *a: case.sparse(P, *a), inputs, g)
    for i in range(len(inputs)):
        some = [t.clone().requires_grad_(j == i) for j, t in enumerate(inputs)]
        case.sparse(P, *some).backward(g)
        torch.testing.assert_close(some[i].grad, together[i], rtol=1e-13, atol=1e-13)
        assert all(t.grad is None for j, t in enumerate(some) if j != i)


@pytest.mark.rows(8)
@transformed
def test_torch_func(case: Case):
    P = case.pattern()
    inputs = tuple(case.inputs(P))
    every = tuple(range(len(inputs)))
    tangents = tuple(normal(t.shape, seed=20 + i) for i, t in enumerate(inputs))
    func = torch.func

    def both(transform):
        found = transform(lambda *a: case.sparse(P, *a))
        wanted = transform(lambda *a: case.dense(P, *a))
        close(found, wanted, case)

    def loss(f):
        # Not polynomial: every term of every second derivative is there.
        return lambda *a: torch.sin(f(*a)).sum()

    g = normal(case.dense(P, *inputs).shape, seed=30)
    both(lambda f: func.grad(loss(f), argnums=every)(*inputs))
    both(lambda f: func.vjp(f, *inputs)[1](g))
    both(lambda f: func.jvp(f, inputs, tangents))
    both(lambda f: func.jacrev(f, argnums=every)(*inputs))
    both(lambda f: func.jacfwd(f, argnums=every)(*inputs))
    both(lambda f: func.hessian(loss(f), argnums=every)(*inputs))
    both(lambda f: func.jacrev(func.jacrev(loss(f), argnums=every), argnums=every)(*inputs))
    # Forward over reverse along one direction: a Hessian-vector product.
    both(lambda f: func.jvp(lambda *a: func.grad(loss(f), argnums=every)(*a), inputs, tangents))


@transformed
@pytest.mark.rows(6)
def test_forward_mode_in_forward_mode(case: Case):
    """One mechanism for all."""
    P, func = case.pattern(), torch.func
    inputs = tuple(case.inputs(P))
    ways = [tuple(normal(t.shape, seed=20 + 9 * k + i) for i, t in enumerate(inputs)) for k in range(3)]
    many = tuple(torch.stack((t, -2 * u)) for t, u in zip(*ways[1:], strict=True))

    def mapped(along, f):
        return lambda *a: torch.vmap(lambda *t: along(f, t)(*a))(*many)

    def of_two(f):
        return lambda *a: torch.vmap(f)(*(torch.stack((t, 2 * t)) for t in a))

    for stack in (
        lambda f, along: along(along(along(f, ways[0]), ways[1]), ways[2]),
        lambda f, along: along(mapped(along, f), ways[0]),
        lambda f, along: mapped(along, along(f, ways[0])),
        lambda f, along: along(of_two(along(f, ways[0])), ways[1]),
        lambda f, along: func.grad(lambda *a: along(along(f, ways[0]), ways[1])(*a).sum()),
        lambda f, along: along(along(func.grad(lambda *a: f(*a).sum()), ways[0]), ways[1]),
    ):
        found = stack(lambda *a: torch.sin(case.sparse(P, *a)), forward_along)(*inputs)
        wanted = stack(lambda *a: torch.sin(case.dense(P, *a)), reverse_along)(*inputs)
        scale = max(1.0, float(wanted.abs().max())) if wanted.numel() else 1.0
        torch.testing.assert_close(found, wanted, rtol=0.0, atol=10 * scale * case.tolerance)


def close(found, wanted, case):
    torch.testing.assert_close(found, wanted, rtol=case.tolerance, atol=case.tolerance)


def stacked(case, P, batched, dim, size):
    """Inputs of a map: a stack along `dim` of those in `batched`; and the same one by one."""
    inputs, others = case.inputs(P), [case.inputs(P, seed=40 + 9 * b) for b in range(size)]
    every = range(len(inputs))
    singles = [[(other if i in batched else inputs)[i] for i in every] for other in others]
    stacks = [torch.stack([s[i] for s in singles], dim) if i in batched else inputs[i] for i in every]
    return stacks, singles


@pytest.mark.rows(8)
@transformed
def test_vmap(case: Case):
    P = case.pattern()
    every = tuple(range(len(case.inputs(P))))

    def f(*a):
        return case.sparse(P, *a)

    def gradient(*a):
        return torch.func.grad(lambda *b: torch.sin(f(*b)).sum(), argnums=every)(*a)

    subsets = (
        [s for r in (1, 2 if len(every) < 4 else len(every)) for s in itertools.combinations(every, r)]
        if len(every) < 4
        else [(0,), every]
    )
    for batched, dim, out_dim in itertools.product(subsets, (0, -1), (0, -1)):
        stacks, singles = stacked(case, P, batched, dim, 3)
        in_dims = tuple(dim if i in batched else None for i in every)
        found = torch.vmap(f, in_dims=in_dims, out_dims=out_dim)(*stacks)
        wanted = torch.stack([f(*s) for s in singles], out_dim)
        close(found, wanted, case)
        if out_dim == 0:
            # Gradients per sample.
            found = torch.vmap(gradient, in_dims=in_dims)(*stacks)
            one_by_one = [gradient(*s) for s in singles]
            wanted = tuple(torch.stack(g) for g in zip(*one_by_one, strict=True))
            close(found, wanted, case)
            # The gradient of a map.
            g = normal(torch.vmap(f, in_dims=in_dims)(*stacks).shape, seed=8)
            found = gradients(torch.vmap(f, in_dims=in_dims), stacks, g)
            wanted = gradients(lambda *a: torch.vmap(lambda *b: case.dense(P, *b), in_dims)(*a), stacks, g)  # noqa: B023
            close(found, wanted, case)


@transformed
def test_nested_vmap(case: Case):
    P = case.pattern()
    inputs = case.inputs(P)
    for outer, inner in itertools.product(range(len(inputs)), repeat=2):
        stacks, _ = stacked(case, P, (inner,), 0, 3)
        stacks[outer] = torch.stack((stacks[outer], 1.5 * stacks[outer]))
        inner_dims = tuple(0 if i == inner else None for i in range(len(inputs)))
        outer_dims = tuple(0 if i == outer else None for i in range(len(inputs)))

        def nested(f):
            return torch.vmap(torch.vmap(f, in_dims=inner_dims), in_dims=outer_dims)  # noqa: B023

        found = nested(lambda *a: case.sparse(P, *a))(*stacks)
        wanted = nested(lambda *a: case.dense(P, *a))(*stacks)
        close(found, wanted, case)


@every_case
def test_any_layout(case: Case):
    P = case.pattern()
    dtype = torch.float32 if case.make is None else torch.float64
    inputs = case.inputs(P, dtype)

    def f(*a):
        return case.sparse(P, *a)

    def same(found, wanted, what):
        for a, b in zip(found, wanted, strict=True):
            near = torch.allclose(a, b, rtol=case.tolerance, atol=case.tolerance)
            assert same_bits(a, b) or (near and not case.bits), what

    for i in range(len(inputs)):
        for name, view in layouts(inputs[i]):
            if case.make is not None and not torch.equal(view, inputs[i]):
                continue  # other numbers, which are perhaps no operand
            there, copy = list(inputs), list(inputs)
            there[i], copy[i] = view, view.clone(memory_format=torch.contiguous_format)
            found, wanted = f(*there), f(*copy)
            same([found], [wanted], f"input {i}, {name}")
            g = normal(found.shape, dtype, seed=9)
            same(gradients(f, there, g), gradients(f, copy, g), f"gradients with input {i}, {name}")
    for name, g in layouts(normal(f(*inputs).shape, dtype, seed=9)):
        copy = g.clone(memory_format=torch.contiguous_format)
        same(gradients(f, inputs, g), gradients(f, inputs, copy), f"incoming gradient, {name}")


@every_case
def test_small_cotangents_count(case: Case):
    """The adjoint is linear in the cotangent: scaled by a power of two, it scales to the bit."""
    P = case.pattern()
    inputs, f = case.inputs(P), lambda *a: case.sparse(P, *a)
    g = normal(f(*inputs).shape, seed=9)
    wanted = gradients(f, inputs, g)
    for scale in (2.0**-200, 2.0**-40, 2.0**60):
        assert all(map(torch.equal, gradients(f, inputs, g * scale), [t * scale for t in wanted]))


@every_case
def test_the_first_use_may_be_in_inference_mode(case: Case):
    """What is kept there for later calls serves gradients too."""
    P, Q = case.pattern(), case.pattern()
    inputs = case.inputs(P)
    with torch.inference_mode():
        out = case.sparse(P, *inputs).clone()
    assert torch.equal(out.clone(), case.sparse(Q, *inputs))
    found, wanted = (gradients(lambda *a: case.sparse(R, *a), inputs, torch.ones_like(out)) for R in (P, Q))  # noqa: B023
    assert all(map(torch.equal, found, wanted))


# --- torch.compile(fullgraph=True), forward and backward ---

in_a_graph = pytest.mark.usefixtures("fresh_compiler")


def compiled(function, backend="aot_eager"):
    return torch.compile(function, fullgraph=True, backend=backend)


# Beside one case of each Function and branch: what has lines of its own in Python. Other shapes of an operand
# change nothing that a graph could tell (test_raw_operators.py has those of the fake kernels).
MORE = {
    *("galerkin", "spmm two batch axes of x", "sddmm broadcast batches", "stencil variable", "to_dense"),
    *(
        "scale_columns",
        "A + B",
        "A * B",
        "s * A",
        "diagonal -1",
        "trace",
        "vstack",
        "block",
        "A[slice, slice]",
    ),
    *("add one pattern", "gather column", "segment_mean column", "sptrsv, batch of both, upper"),
    *("ic on a pattern", "jacobi, scalar, vector, unrolled", "jacobi, row and sweep, columns, checkpointed"),
}
# By `make test` one of each Function: a batch takes the same graph, of other operators.
COMPILED = [
    pytest.param(c, marks=() if is_branch(c) and "batch" not in c.name else pytest.mark.slow, id=c.name)
    for c in CASES
    if c.compiles and (is_branch(c) or c.name in MORE)
]


@pytest.mark.rows(5)
@in_a_graph
@pytest.mark.parametrize("case", COMPILED)
def test_compiled_cases(case, quick):
    """With a pattern that nothing has been computed for yet; then with the same one again."""
    P, close = case.pattern(), {"rtol": case.tolerance, "atol": case.tolerance}
    assert P.cache_bytes() == 0
    f = compiled(lambda *a: case.sparse(P, *a))
    inputs = case.inputs(P)
    for seed in (9, 10):
        g = normal(case.dense(P, *inputs).shape, seed=seed)
        if not quick:  # a graph without a backward
            torch.testing.assert_close(f(*inputs), case.dense(P, *inputs), **close)
        leaves = [t.detach().requires_grad_() for t in inputs]
        out = f(*leaves)
        torch.testing.assert_close(out.detach(), case.dense(P, *inputs), **close)
        wanted = gradients(lambda *a: case.dense(P, *a), inputs, g)
        torch.testing.assert_close(torch.autograd.grad(out, leaves, g), wanted, **close)


def energy(A, x):
    """Several operations, several of them on one matrix, as a solver has them."""
    r = ls.ops.spmm(A, x) - A.diagonal() * x
    r = r + ls.ops.spmm(A.T, torch.sin(r)) + A.sum(1)
    w = ls.ops.sddmm(r, x, A.pattern)
    return (ls.ops.spmm(A.with_values(w) + A, r) ** 2).sum()


@in_a_graph
def test_compiled_with_a_matrix_as_an_argument():
    """What was compiled for one pattern is not run on another of the same shape."""
    f = compiled(energy)
    for seed, used in ((0, False), (1, True), (0, True)):
        P = pattern_of(random(12, 12, 0.3, seed))
        v, x = normal((P.nnz,), seed=1), normal((12,), seed=2)
        wanted = gradients(lambda v, x, P=P: energy(ls.CSR(v, P), x), [v, x], torch.ones((), dtype=v.dtype))
        if not used:
            P.drop_caches()
        found = gradients(lambda v, x, P=P: f(ls.CSR(v, P), x), [v, x], torch.ones((), dtype=v.dtype))
        torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)


@in_a_graph
@pytest.mark.slow
@pytest.mark.skipif(" " in torch.__file__, reason="torch's Inductor does not quote its folder")
def test_compiled_by_inductor():
    """One trip through the compiler that users have: generated code around the operators."""
    P = small_pattern()

    def residual(v, x):
        return ls.ops.spmm(ls.CSR(v, P), torch.sin(x)) * 2 - 1

    v, x, g = normal((P.nnz,)), normal((5, 2), seed=1), normal((4, 2), seed=2)
    f = compiled(residual, "inductor")
    torch.testing.assert_close(f(v, x), residual(v, x), rtol=1e-12, atol=1e-12)
    wanted = gradients(residual, [v, x], g)
    torch.testing.assert_close(gradients(f, [v, x], g), wanted, rtol=1e-12, atol=1e-12)


@in_a_graph
def test_compiled_for_changing_sizes():
    P = pattern_of(random(9, 7, 0.3))
    f = torch.compile(
        lambda v, x: ls.ops.spmm(ls.CSR(v, P), x), fullgraph=True, backend="aot_eager", dynamic=True
    )
    v = normal((P.nnz,))
    for k in (2, 3, 5, 1):
        x = normal((7, k), seed=k)
        torch.testing.assert_close(f(v, x), ls.CSR(v, P) @ x)


@in_a_graph
@pytest.mark.parametrize("left", [True, False], ids=["A @ x", "x @ A"])
def test_compiled_operators_are_refused_where_sides_are_unknown(left):
    """Dynamo hands `A @ x` and `x @ A` on alike: better no result than the wrong one."""
    A = ls.CSR.from_scipy(random(6, 6, 0.5))
    f = compiled((lambda A, x: A @ x) if left else (lambda A, x: x @ A))
    x = normal((6,))
    try:
        found = f(A, x)
    except Exception as error:
        assert "learnsolve.ops.spmm" in str(error)  # noqa: PT017
    else:
        torch.testing.assert_close(found, A @ x if left else x @ A)


@in_a_graph
@pytest.mark.parametrize("name", ["spgemm", "galerkin", "sddmm", "symmetric_scaling"])
def test_compiled_with_one_tensor_twice(name):
    """Dynamo refuses an autograd.Function that is given one tensor twice."""
    A = ls.problems.poisson((5,))

    Q = pattern_of(random(A.nnz, A.nnz, 0.2))

    def f(v):
        B = A.with_values(v)
        if name == "sddmm":
            return ls.ops.sddmm(v, v, Q)
        made = ls.ops.symmetric_scaling(B) if name == "symmetric_scaling" else getattr(ls.ops, name)(B, B)
        return made.values

    v = A.values + 0.01 * normal(A.values.shape, seed=3)
    g = normal(f(v).shape, seed=4)
    leaf = v.clone().requires_grad_()
    found = compiled(f)(leaf)
    torch.testing.assert_close(found.detach(), f(v))
    torch.testing.assert_close(torch.autograd.grad(found, leaf, g), gradients(f, [v], g))


@in_a_graph
def test_what_runs_outside_of_graphs_is_not_compiled():
    """Neither the function nor what it calls: the graphs are what stands before and after it."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph.code)
        return graph.forward

    def inner(x):
        return x.sin()

    @outside_of_graphs
    def outer(x):
        return inner(x).cos()

    x = torch.linspace(0, 1, 5)
    result = torch.compile(lambda x: outer(x + 1) * 2, backend=backend)(x)
    torch.testing.assert_close(result, (x + 1).sin().cos() * 2)
    assert len(graphs) == 2
    assert not any("sin" in code or "cos" in code for code in graphs)
