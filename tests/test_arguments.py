"""What annotations declare is checked where a package exports a function, by place and by name."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
import torch
from torch import Tensor

import learnsolve as ls
from learnsolve.arguments import Count, Positive, read_rules, within
from learnsolve.matrix.checks import RealSquareMatrix, like, make_public


def solve(
    A: RealSquareMatrix,
    b: Annotated[Tensor, like("A", rows_of=0)],
    n: Count = 1,
    *,
    kind: Literal["a", "b"] | None = None,
    scale: float | Tensor = 1.0,
    shift: Positive | None = None,
    omega: Annotated[float, within("0 < {} < 2", lambda value: 0 < value < 2, 2.0)] = 1.0,
    symmetric: bool = True,
    start: Annotated[Tensor, like("A")] | None = None,
    unchecked: object = None,
) -> tuple:
    return A, b, n, kind, scale, shift, omega, symmetric, start, unchecked


A = ls.problems.poisson((2, 2))
B = torch.ones(4, dtype=torch.float64)
CALL = make_public(solve, "solve")


def test_what_is_declared():
    assert [*read_rules(solve)] == ["A", "b", "n", "kind", "scale", "shift", "omega", "symmetric", "start"]


def test_arguments_by_place_and_by_name():
    x = torch.ones(())
    assert CALL(A, B)[:3] == (A, B, 1)
    assert CALL(b=B, n=3, A=A, kind="b", scale=x, omega=0.5)[2:7] == (3, "b", x, None, 0.5)
    assert CALL(A.to_scipy(), B)[0].shape == A.shape  # of another library


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"A": 3.0}, TypeError, "A must be a CSR, got float"),
        ({"A": ls.CSR.from_dense(torch.ones(2, 3))}, ValueError, r"A must be square, got shape \(2, 3\)"),
        ({"b": B.float()}, TypeError, "b has dtype torch.float32, the matrix torch.float64"),
        ({"b": B[:3]}, ValueError, r"b must have A.shape\[0\] = 4 rows"),
        ({"n": 0}, ValueError, "n must be at least 1, got 0"),
        ({"n": None}, TypeError, "n must be an int, got NoneType"),
        ({"kind": "c"}, ValueError, r"kind must be one of \('a', 'b'\), got 'c'"),
        ({"scale": "1"}, TypeError, "scale must be a number or a torch.Tensor, got str"),
        ({"shift": 0.0}, ValueError, "shift must be positive and finite, got 0.0"),
        ({"omega": 2}, ValueError, "omega must lie in 0 < omega < 2, got 2.0"),
        ({"symmetric": 1}, TypeError, "symmetric must be True or False, got 1"),
        ({"start": 3.0}, TypeError, "start must be a torch.Tensor, got float"),
    ],
)
def test_messages(given, error, message):
    with pytest.raises(error, match=f"^solve: {message}"):
        CALL(**{"A": A, "b": B, **given})


def test_what_refers_to_another_argument_is_checked_after_it():
    for given in ({"b": B[:3], "A": A.to_scipy()}, {"b": B.float(), "A": A}):
        with pytest.raises((TypeError, ValueError), match=r"^solve: b "):
            CALL(**given)
    with pytest.raises(ValueError, match=r"^solve: b must have"):
        CALL(A.to_scipy(), B[:3])


def test_python_says_what_does_not_fit_the_signature():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'points'"):
        ls.problems.TriangleMesh(triangles=torch.tensor([[0, 1, 2]]), fixed=torch.ones(3) > 0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    for args, named in (((A,), {}), ((A, B, 1, "a"), {}), ((A, B), {"A": A}), ((A, B), {"m": 3})):
        with pytest.raises(TypeError, match="solve"):
            CALL(*args, **named)
