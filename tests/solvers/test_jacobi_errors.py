"""Each bad argument of `jacobi` and `Jacobi`: type of the exception, function, rule, value."""

import re

import pytest
import torch
from reference import normal
from solvers.dense_jacobi import small_square, values_on

import learnsolve as ls

P = small_square()
A = ls.CSR(values_on(P), P)
AA = ls.CSR(values_on(P, 2), P)
B = normal((4,))
HOLE = ls.CSR.from_dense(torch.tensor([[1.0, 1.0], [1.0, 0.0]], dtype=B.dtype))
jacobi, Jacobi = ls.solvers.jacobi, ls.solvers.Jacobi


def with_zero(row):
    v = values_on(P, 2)
    v[..., P.diagonal_positions[row]] = 0
    return v


BAD = [
    (lambda: jacobi(A.to_dense().tolist(), B), TypeError, "A must be a CSR, got list; make one with CSR"),
    (lambda: jacobi(A.to(torch.int64), B.long()), TypeError, "A.values must be float32 or"),
    (
        lambda: jacobi(ls.CSR.from_dense(torch.ones(2, 3, dtype=B.dtype)), B[:2]),
        ValueError,
        r"A must be square, got shape \(2, 3\)",
    ),
    (
        lambda: jacobi(ls.CSR(with_zero(3)[0], P), B),
        ValueError,
        "A must not have zeros on its diagonal, row 3 has one; permute",
    ),
    (lambda: jacobi(ls.CSR(with_zero(1), P), B[:, None]), ValueError, "row 1 has one"),
    (
        lambda: jacobi(ls.CSR(with_zero(2)[0].requires_grad_(), P), B, iterations=3),
        ValueError,
        "row 2 has one",
    ),
    (
        lambda: jacobi(HOLE, B[:2]),
        ValueError,
        "A must have an entry on its diagonal in every row, row 1 has none; .*add the entry",
    ),
    (
        lambda: torch.func.grad(lambda v: jacobi(HOLE.with_values(v), B[:2]).x.sum())(HOLE.values),
        ValueError,
        "row 1 has none",
    ),
    (
        lambda: torch.vmap(lambda v: jacobi(HOLE.with_values(v), B[:2]).x)(HOLE.values.expand(2, -1)),
        ValueError,
        "row 1 has none",
    ),
    (lambda: jacobi(A, [1.0] * 4), TypeError, "b must be a torch.Tensor, got list"),
    (lambda: jacobi(A, B[0]), ValueError, r"b must have A.shape\[0\] = 4 rows.*\(\)"),
    (lambda: jacobi(A, B[:3]), ValueError, r"b must have A.shape\[0\] = 4 rows.*\(3,\)"),
    (lambda: jacobi(A, normal((2, 5, 3))), ValueError, r"4 rows.*\(2, 5, 3\)"),
    (lambda: jacobi(A, B.float()), TypeError, "b has dtype torch.float32.*float64"),
    (lambda: jacobi(A, B.to("meta")), TypeError, "b is on meta, the matrix on cpu"),
    (lambda: jacobi(A, B, 0.0), TypeError, "x0 must be a torch.Tensor, got float"),
    (lambda: jacobi(A, B, B[:, None]), ValueError, r"x0 must have b's shape \(4,\), got \(4, 1\)"),
    (lambda: jacobi(A, B, B.float()), TypeError, "x0 has dtype torch.float32"),
    (
        lambda: jacobi(AA, normal((3, 4, 1))),
        ValueError,
        r"batch axes of A.values and b must broadcast, got \(2,\) and \(3,\)",
    ),
    (lambda: jacobi(A, B, weight="1"), TypeError, "weight must be a number or .*, got str"),
    (lambda: jacobi(A, B, weight=True), TypeError, "weight must be a number or .*, got bool"),
    (lambda: jacobi(A, B, weight=None), TypeError, "weight must be .*, got NoneType"),
    (lambda: jacobi(A, B, weight=1j), TypeError, "weight must be .*, got complex"),
    (
        lambda: jacobi(A, B, weight=torch.ones(4)),
        TypeError,
        "weight has dtype torch.float32, the matrix torch.float64",
    ),
    (lambda: jacobi(A, B, iterations=-1), ValueError, "iterations .* 0, got -1"),
    (lambda: jacobi(A, B, iterations=2.0), TypeError, "iterations must be an int, got f"),
    (lambda: jacobi(A, B, iterations=True), TypeError, "iterations must be an int"),
    (
        lambda: jacobi(A, B, gradient="implicit"),
        ValueError,
        r"gradient must be one of \('unrolled', 'checkpointed'\), got 'implicit'",
    ),
]
BAD += [
    (
        lambda shape=shape: jacobi(A, B, weight=torch.ones(shape, dtype=B.dtype), iterations=2),
        ValueError,
        re.escape(
            "weight must have shape (), (n,), (N,) or in full (N, n) with ones allowed, with n = 4, "
            f"N = 2 iterations, got {shape}"
        ),
    )
    for shape in ((3,), (4, 1), (3, 4), (2, 3), (2, 1, 4), (2, 2, 4))
]


@pytest.mark.parametrize(("call", "kind", "message"), BAD)
def test_bad_argument(call, kind, message):
    with pytest.raises(Exception, match=f"^jacobi: .*{message}") as caught:
        call()
    assert type(caught.value) is kind, f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"iterations": -1}, ValueError, "Jacobi: iterations must be at least 0, got -1"),
        ({"iterations": 1.5}, TypeError, "Jacobi: iterations must be an int, got float"),
        ({"gradient": "implicit"}, ValueError, "Jacobi: gradient must be one of .*unrolled.*'implicit'"),
        ({"weight": "1"}, TypeError, "Jacobi: weight"),
        ({"weight": True}, TypeError, "Jacobi: weight"),
        ({"weight": 1}, None, ""),
        ({"weight": torch.ones(4, dtype=torch.int64)}, TypeError, "Jacobi: weight .*int64"),
    ],
    ids=lambda a: str(a)[:30],
)
def test_bad_argument_of_the_module(arguments, kind, message):
    if kind is None:
        assert Jacobi(**arguments).weight.is_floating_point()  # as jacobi takes the number 1
        return
    with pytest.raises(kind, match=message):
        Jacobi(**arguments)


def test_a_failed_call_leaves_nothing_behind():
    x = jacobi(A, B, iterations=3).x
    for call, kind, _ in BAD:
        with pytest.raises(kind):
            call()
    assert torch.equal(jacobi(A, B, iterations=3).x, x)
