"""Lists of steps as one operation, against the same steps one by one."""

import pytest
import torch
from ops.raw_samples import SAMPLES, linear_steps_arguments, ops, structure
from reference import normal, pattern_of, random

import learnsolve as ls
from learnsolve.ops.core.linear_steps import LinearSteps, dense_product, product, scaled_rows

F64 = torch.float64


def made_of(P, dtype=F64, times=1):
    """A function of all kinds of steps, and what it reads."""
    A = ls.CSR(normal((P.nnz,), dtype).requires_grad_(), P)
    s, D = (
        normal((P.shape[0], 1), dtype, 1).requires_grad_(),
        normal((2, P.shape[0]), dtype, 2).requires_grad_(),
    )

    def function(b):
        x = product(A.values, b, P, False)
        r = b - product(A.values, x, P, True)
        y = x + scaled_rows(s, r)
        z = dense_product(D, y + scaled_rows(s, y), False)
        return (r - scaled_rows(s, dense_product(D, z, True))) - (y + y)

    return function, LinearSteps(function, [A, A], [s, D], times), (A.values, s, D)


def derivatives(x, inputs, g):
    return (x, *torch.autograd.grad(x, inputs, g))


# Elementwise steps are shared among threads from about 50,000 numbers on.
@pytest.mark.parametrize(
    ("n", "k", "dtype"),
    [*((7, k, dtype) for k in (1, 2, 5) for dtype in (torch.float32, F64)), (1, 2, F64), (30_000, 2, F64)],
)
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=["int32", "int64"])
def test_as_step_by_step(dtype, index, n, k):
    P = pattern_of(random(7, 7, 0.5)) if n == 7 else ls.problems.poisson((n,)).pattern
    function, steps, operands = made_of(P.to(dtype=index), dtype)
    b, g = normal((n, k), dtype, 3).requires_grad_(), normal((n, k), dtype, 4)
    inputs = (b, *operands)
    found, expected = derivatives(steps(b), inputs, g), derivatives(function(b), inputs, g)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    with torch.no_grad():
        torch.testing.assert_close(steps(b), expected[0])
    torch.testing.assert_close(steps.apart(b, steps.operands), expected[0])
    B, each = torch.stack((b, 2 * b)).detach(), torch.stack((function(b), function(2 * b)))
    torch.testing.assert_close(torch.func.vmap(steps)(B), each)
    torch.testing.assert_close(steps(B), each)
    tangents = (torch.func.jvp(f, (b.detach(),), (g,))[1] for f in (steps, function))
    torch.testing.assert_close(*tangents)


def test_several_times():
    P = pattern_of(random(7, 7, 0.5))
    function, steps, operands = made_of(P, times=3)
    b, g = normal((7, 2)).requires_grad_(), normal((7, 2), seed=4)
    x = b
    for _ in range(3):
        x = function(x)
    inputs = (b, *operands)
    for one, other in zip(derivatives(steps(b), inputs, g), derivatives(x, inputs, g), strict=True):
        torch.testing.assert_close(one, other)


def test_derivatives():
    _, steps, operands = made_of(pattern_of(random(4, 4, 0.6)), times=2)
    b = normal((4, 2)).requires_grad_()
    assert torch.autograd.gradcheck(lambda b, *_: steps(b), (b, *operands))
    assert torch.autograd.gradgradcheck(lambda b, *_: steps(b), (b, *operands))


def test_derivatives_of_operands_that_are_made_of_one_another():
    """Up to the third: the ways from one operand to the next must not count twice."""
    P = pattern_of(random(4, 4, 0.6))
    b, v = normal((4, 2)).requires_grad_(), normal((P.nnz,), seed=1).requires_grad_()

    def operands(v):
        A = ls.CSR(v, P)
        return (A @ A).values, A.to_dense(), A.sum(1).unsqueeze(-1)

    def f(b, v, at_once=True):
        squared, D, s = operands(v)
        A, B = ls.CSR(v, P), ls.CSR(squared, (ls.CSR(v, P) @ ls.CSR(v, P)).pattern)

        def function(x):
            y = product(B.values, product(A.values, x, P, False), B.pattern, True)
            return x - dense_product(D, x + scaled_rows(s, y), False)

        return (LinearSteps(function, [A, B], [s, D]) if at_once else function)(b)

    def grad(f):
        def g(b, v):
            return torch.autograd.grad(f(b, v).square().sum(), (b, v), create_graph=True)

        return g

    def total(f):
        return lambda b, v: torch.cat([g.flatten() for g in f(b, v)])

    first = grad(f)
    second = grad(total(first))
    expected = grad(lambda b, v: f(b, v, False))
    torch.testing.assert_close(first(b, v), torch.autograd.grad(f(b, v).square().sum(), (b, v)))
    torch.testing.assert_close(first(b, v), expected(b, v))
    torch.testing.assert_close(second(b, v), grad(total(expected))(b, v))
    assert torch.autograd.gradgradcheck(f, (b, v))
    assert torch.autograd.gradgradcheck(total(first), (b, v), fast_mode=True)


def test_nothing_is_written_to_what_was_given():
    """Among the cotangents are some that several registers share, and the given one. Only the gradients that
    are asked for are computed."""
    for arguments in SAMPLES["linear_steps_backward"](pattern_of(random(6, 6, 0.5)), F64):
        given = [t for a in arguments[1:3] for t in a] + [arguments[3]]
        copies = [t.clone() for t in given]
        whole = ops.linear_steps_backward(*arguments[:-1], [True] * 4)
        for need, one, other in zip(arguments[-1], ops.linear_steps_backward(*arguments), whole, strict=True):
            assert torch.equal(one, other) if need else one.numel() == 0
        assert all(torch.equal(t, copy) for t, copy in zip(given, copies, strict=True))


def test_a_block_that_a_step_has_taken_up_is_not_used_again():
    A = ls.CSR.from_dense(torch.eye(3, dtype=F64))

    def function(b):
        x = product(A.values, b, A.pattern, False)
        return (b - x) + x

    with pytest.raises(AssertionError, match="taken up"):
        LinearSteps(function, [A], [])


P = pattern_of(random(6, 6, 0.5))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": []}, "steps must hold 5 numbers for each step, at least one, got 0"),
        ({"steps": [0, 0, 0, 0]}, "steps must hold 5 numbers for each step, at least one, got 4"),
        ({"steps": [7, 0, 0, 0, 0]}, "step 0 has an unknown kind"),
        ({"steps": [0, 0, 0, 1, 0]}, "step 0 reads a register that no earlier step has written"),
        ({"steps": [2, 0, 0, 0, -1]}, "step 0 reads a register that no earlier step has written"),
        ({"steps": [0, 1, 0, 0, 0]}, "step 0 has no operand of its kind"),
        ({"steps": [4, 0, 0, 0, 0]}, "step 0 has no operand of its kind"),
        ({"steps": [4, 3, 0, 0, 0]}, "step 0 has no operand of its kind"),
        ({"steps": [6, 2, 0, 0, 0, 0, 0, 0, 1, 0]}, "step 1 multiplies a register of another size"),
        ({"steps": [6, 2, 0, 0, 0, 4, 1, 0, 1, 0]}, "step 1 scales a register of another size"),
        ({"steps": [6, 2, 0, 0, 0, 2, 0, 0, 0, 1]}, "step 1 combines registers of different sizes"),
        ({"steps": [6, 2, 1, 0, 0]}, "step 0 multiplies a register of another size"),
        ({"b": normal((6,))}, r"b must be \(n, k\), got 1 dimensions"),
        ({"b": normal((6, 2)).float()}, "operands and b must have one dtype"),
        ({"operands": [normal((P.nnz - 1,)), normal((6, 1)), normal((2, 6))]}, "operand 0 must be .* nnz = "),
        ({"structures": structure(P)}, "structures must hold 8 tensors for each matrix, got 4"),
        ({"structures": [*structure(P), *structure(pattern_of(random(6, 6, 0.4)))]}, "the same entries"),
    ],
)
def test_wrong_lists_are_refused(change, message):
    S, operands, b, steps, keep = linear_steps_arguments(P, F64)[0]
    arguments = {"structures": S, "operands": operands, "b": b, "steps": steps, "keep": keep}
    ops.linear_steps(**arguments)
    with pytest.raises(RuntimeError, match=f"linear_steps: {message}|linear_steps: .*{message}"):
        ops.linear_steps(**arguments | change)


def test_wrong_registers_are_refused():
    S, operands, registers, g, steps, needs = linear_steps_arguments(P, F64, True)[0]
    for wrong, message in (
        ((registers[:-1], g, needs), "registers must be those of the forward"),
        (([], g, needs), "registers must begin with b"),
        (([registers[0], registers[1][:-1], *registers[2:]], g, needs), "register 1 must be that"),
        ((registers, g[:-1], needs), "g must have the shape of the result"),
        ((registers, g, needs[1:]), "needs must be one for b and each operand, got 3"),
    ):
        with pytest.raises(RuntimeError, match=f"linear_steps_backward: {message}"):
            ops.linear_steps_backward(S, operands, wrong[0], wrong[1], steps, wrong[2])
