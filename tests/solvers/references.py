"""Comparison of solves: with one another, with dense algebra, and of the two ways that a loop may go."""

from collections.abc import Callable, Iterable
from contextlib import contextmanager

import pytest
import torch
from reference import normal
from torch import Tensor
from torch.autograd import grad

from learnsolve.solvers import Solution
from learnsolve.solvers.core import loop


def close(actual: Iterable[Tensor], expected: Iterable[Tensor], tolerance: float) -> None:
    """Each tensor to `tolerance` of its largest entry. Some are zero but for rounding."""
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        scale = max(float(e.detach().abs().max()), 1e-3) if e.numel() else 1.0
        torch.testing.assert_close(a / scale, e / scale, rtol=0, atol=tolerance, msg=lambda m: f"{i}: {m}")  # noqa: B023


def equal(actual: Iterable[Tensor], expected: Iterable[Tensor]) -> bool:
    """The same bits."""
    return all(torch.equal(a, e) for a, e in zip(actual, expected, strict=True))


def agree(ours: Solution, theirs: Solution, tolerance: float = 1e-8) -> None:
    """The same ends, iterates and histories, to rounding, which the methods amplify."""
    assert ours.statuses == theirs.statuses
    assert ours.iterations == theirs.iterations
    close((ours.x, ours.residual_norms), (theirs.x, theirs.residual_norms), tolerance)


def gradients(solve: Callable[..., Tensor], *inputs: Tensor, scale: float = 1.0) -> tuple[Tensor, ...]:
    """Of <w, solve(*inputs)> for each input, with the same random w for results of the same shape."""
    inputs = tuple(t.detach().clone().requires_grad_() for t in inputs)
    x = solve(*inputs)
    return grad(x, inputs, scale * normal(x.shape, x.dtype, seed=7), materialize_grads=True)


@contextmanager
def eager():
    """Nothing is compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "at_once", lambda *_: None)
        patch.setattr(loop, "fitting", lambda *_: None)
        yield


@contextmanager
def compiled():
    """No iteration goes by operations of torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop._Loop, "stepped", None)
        yield
