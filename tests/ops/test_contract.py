"""What every operation of the table promises: values, derivatives of any order, transformations, layouts."""

import itertools

import pytest
import torch
from ops.case import Case, moved
from ops.cases import CASES, is_branch
from reference import (
    assert_within,
    forward_along,
    gradients,
    layouts,
    normal,
    on_cuda,
    pattern_of,
    reverse_along,
    same_bits,
    structures,
)
from torch.autograd import gradcheck, gradgradcheck

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


@transformed
def test_gradcheck(case: Case, quick: bool):
    P = case.pattern()
    inputs = case.inputs(P, requires_grad=True)
    assert gradcheck(
        lambda *a: case.sparse(P, *a),
        inputs,
        check_forward_ad=True,
        check_batched_grad=case.batched,
        check_batched_forward_grad=case.batched,
        fast_mode=quick or (case.fast and not case.full) or not is_branch(case),
    )


@transformed
def test_gradgradcheck(case: Case, quick: bool):
    P = case.pattern()
    inputs = case.inputs(P, requires_grad=True)
    assert gradgradcheck(
        lambda *a: case.sparse(P, *a),
        inputs,
        check_fwd_over_rev=True,
        check_batched_grad=case.batched,
        fast_mode=quick or (case.fast and not case.full) or not is_branch(case),
    )


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


# One mechanism for all: by `make test` for a few.
NESTED = {"spmm vector", "transpose batch", "sptrsv, vector, lower", "ic0", "logdet", "pcg, diagonal, vector"}


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=() if c.name in NESTED else pytest.mark.slow, id=c.name) for c in EVERY]
)
def test_forward_mode_in_forward_mode(case: Case, quick: bool):
    P, func = case.pattern(), torch.func
    inputs = tuple(case.inputs(P))
    ways = [tuple(normal(t.shape, seed=20 + 9 * k + i) for i, t in enumerate(inputs)) for k in range(3)]
    many = tuple(torch.stack((t, -2 * u)) for t, u in zip(*ways[1:], strict=True))

    def mapped(along, f):
        return lambda *a: torch.vmap(lambda *t: along(f, t)(*a))(*many)

    def of_two(f):
        return lambda *a: torch.vmap(f)(*(torch.stack((t, 2 * t)) for t in a))

    stacks = [lambda f, along: along(along(f, ways[0]), ways[1])]
    if not quick:
        stacks += [
            lambda f, along: along(along(along(f, ways[0]), ways[1]), ways[2]),
            lambda f, along: along(mapped(along, f), ways[0]),
            lambda f, along: mapped(along, along(f, ways[0])),
            lambda f, along: along(of_two(along(f, ways[0])), ways[1]),
            lambda f, along: func.grad(lambda *a: along(along(f, ways[0]), ways[1])(*a).sum()),
            lambda f, along: along(along(func.grad(lambda *a: f(*a).sum()), ways[0]), ways[1]),
        ]
    for stack in stacks:
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
