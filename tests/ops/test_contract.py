"""What every operation of the table promises: values, derivatives of any order, transformations, layouts."""

import itertools

import pytest
import torch
from ops.cases import CASES, Case, moved
from reference import (
    assert_within,
    gradients,
    inputs_for,
    layouts,
    normal,
    pattern_of,
    small_pattern,
    structures,
)
from torch.autograd import gradcheck, gradgradcheck

STRUCTURES = structures()
ON_DEVICE = [moved(case, "cuda") for case in CASES] if torch.cuda.is_available() else []
every_case = pytest.mark.parametrize("case", CASES + ON_DEVICE, ids=lambda c: c.name)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: the cases run on the CPU alone")
def test_every_case_runs_on_the_device():
    """On CUDA tensors all tests below are those of the CPU: inputs go there and results come back."""
    P = small_pattern()
    for case, there in zip(CASES, ON_DEVICE, strict=True):
        inputs = inputs_for(case.shapes_on(P))
        torch.testing.assert_close(there.sparse(P, *inputs), case.sparse(P, *inputs), rtol=1e-12, atol=1e-12)


@every_case
@pytest.mark.parametrize("structure", STRUCTURES)
def test_value_and_gradients(case: Case, structure: str):
    S = STRUCTURES[structure]
    for index, dtype in itertools.product((torch.int32, torch.int64), (torch.float32, torch.float64)):
        P = pattern_of(S, index)
        inputs = inputs_for(case.shapes_on(P), dtype)
        exact = [t.double() for t in inputs]
        size = [t.abs() for t in exact]
        ones = [torch.ones_like(t) for t in exact]
        what = f"{case.name}, {index}, {dtype}"

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
def test_gradcheck(case: Case):
    P = small_pattern()
    inputs = inputs_for(case.shapes_on(P), requires_grad=True)
    assert gradcheck(
        lambda *a: case.sparse(P, *a),
        inputs,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
    )


@every_case
def test_gradgradcheck(case: Case):
    P = small_pattern()
    inputs = inputs_for(case.shapes_on(P), requires_grad=True)
    assert gradgradcheck(
        lambda *a: case.sparse(P, *a), inputs, check_fwd_over_rev=True, check_batched_grad=True
    )


@every_case
def test_gradient_of_some_inputs_only(case: Case):
    """Each input alone, the others constant: the same gradient as with all of them, and None elsewhere."""
    P = small_pattern()
    inputs = inputs_for(case.shapes_on(P))
    out = case.sparse(P, *inputs)
    assert not out.requires_grad
    g = normal(out.shape, seed=9)
    together = gradients(lambda *a: case.sparse(P, *a), inputs, g)
    for i in range(len(inputs)):
        some = [t.clone().requires_grad_(j == i) for j, t in enumerate(inputs)]
        case.sparse(P, *some).backward(g)
        torch.testing.assert_close(some[i].grad, together[i], rtol=1e-13, atol=1e-13)
        assert all(t.grad is None for j, t in enumerate(some) if j != i)


@every_case
def test_torch_func(case: Case):
    P = small_pattern()
    inputs = tuple(inputs_for(case.shapes_on(P)))
    every = tuple(range(len(inputs)))
    tangents = tuple(normal(t.shape, seed=20 + i) for i, t in enumerate(inputs))
    func = torch.func

    def both(transform):
        found = transform(lambda *a: case.sparse(P, *a))
        wanted = transform(lambda *a: case.dense(P, *a))
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)

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


def stacked(inputs, batched, dim, size):
    """Inputs of a map: a stack along `dim` of those in `batched`; and the same one by one."""
    stacks, singles = [], [list(inputs) for _ in range(size)]
    for i, t in enumerate(inputs):
        if i not in batched:
            stacks.append(t)
            continue
        for b in range(size):
            singles[b][i] = normal(t.shape, t.dtype, seed=40 + 7 * i + b)
        stacks.append(torch.stack([s[i] for s in singles], dim))
    return stacks, singles


@every_case
def test_vmap(case: Case):
    P = small_pattern()
    inputs = inputs_for(case.shapes_on(P))
    every = tuple(range(len(inputs)))

    def f(*a):
        return case.sparse(P, *a)

    def gradient(*a):
        return torch.func.grad(lambda *b: torch.sin(f(*b)).sum(), argnums=every)(*a)

    subsets = [s for r in (1, 2) for s in itertools.combinations(every, r)]
    for batched, dim, out_dim in itertools.product(subsets, (0, -1), (0, -1)):
        stacks, singles = stacked(inputs, batched, dim, 3)
        in_dims = tuple(dim if i in batched else None for i in every)
        found = torch.vmap(f, in_dims=in_dims, out_dims=out_dim)(*stacks)
        wanted = torch.stack([f(*s) for s in singles], out_dim)
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
        if out_dim == 0:
            # Gradients per sample.
            found = torch.vmap(gradient, in_dims=in_dims)(*stacks)
            one_by_one = [gradient(*s) for s in singles]
            wanted = tuple(torch.stack(g) for g in zip(*one_by_one, strict=True))
            torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
            # The gradient of a map.
            g = normal(torch.vmap(f, in_dims=in_dims)(*stacks).shape, seed=8)
            found = gradients(torch.vmap(f, in_dims=in_dims), stacks, g)
            wanted = gradients(lambda *a: torch.vmap(lambda *b: case.dense(P, *b), in_dims)(*a), stacks, g)  # noqa: B023
            torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@every_case
def test_nested_vmap(case: Case):
    P = small_pattern()
    inputs = inputs_for(case.shapes_on(P))
    for outer, inner in itertools.product(range(len(inputs)), repeat=2):
        stacks = list(inputs)
        stacks[inner] = normal((3, *stacks[inner].shape), seed=50)
        stacks[outer] = normal((2, *stacks[outer].shape), seed=51)
        inner_dims = tuple(0 if i == inner else None for i in range(len(inputs)))
        outer_dims = tuple(0 if i == outer else None for i in range(len(inputs)))

        def nested(f):
            return torch.vmap(torch.vmap(f, in_dims=inner_dims), in_dims=outer_dims)  # noqa: B023

        found = nested(lambda *a: case.sparse(P, *a))(*stacks)
        wanted = nested(lambda *a: case.dense(P, *a))(*stacks)
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@every_case
def test_any_layout(case: Case):
    P = small_pattern()
    inputs = inputs_for(case.shapes_on(P), torch.float32)

    def f(*a):
        return case.sparse(P, *a)

    for i in range(len(inputs)):
        for name, view in layouts(inputs[i]):
            there, copy = list(inputs), list(inputs)
            there[i], copy[i] = view, view.clone(memory_format=torch.contiguous_format)
            found, wanted = f(*there), f(*copy)
            assert torch.equal(found, wanted), f"input {i}, {name}"
            g = normal(found.shape, torch.float32, seed=9)
            pairs = zip(gradients(f, there, g), gradients(f, copy, g), strict=True)
            assert all(torch.equal(a, b) for a, b in pairs), f"gradients with input {i}, {name}"
    for name, g in layouts(normal(f(*inputs).shape, torch.float32, seed=9)):
        copy = g.clone(memory_format=torch.contiguous_format)
        pairs = zip(gradients(f, inputs, g), gradients(f, inputs, copy), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs), f"incoming gradient, {name}"


@every_case
def test_inputs_stay_as_they_are(case: Case):
    P = small_pattern()
    inputs = inputs_for(case.shapes_on(P))
    before = [t.clone() for t in inputs]
    g = torch.ones_like(case.sparse(P, *inputs))
    gradients(lambda *a: case.sparse(P, *a), inputs, g)
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))
    assert torch.equal(g, torch.ones_like(g))
