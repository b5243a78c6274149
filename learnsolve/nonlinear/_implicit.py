"""Derivatives of the solution of F(x, *p) = 0, however it was found.

With J the derivative of F for x, and lambda = J^-T xbar,

    pbar = -(dF/dp)^T lambda,    in forward mode dx = -J^-1 (dF/dp) dp.

lambda solves a linear equation of the same kind, J(x, p)^T lambda - xbar = 0, whose derivatives come from the
same rule, to all orders. J itself is only solved with, as a constant; only its products are differentiated.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor
from torch._C._autograd import (
    _pop_saved_tensors_default_hooks,
    _push_saved_tensors_default_hooks,
    _top_saved_tensors_default_hooks,
)
from torch._C._functorch import unwrap_if_dead

from learnsolve.matrix.autocast import full_precision
from learnsolve.matrix.plain import as_one
from learnsolve.ops.core.autograd import Nestable, keep_for_forward_mode, pullback, pushforward


class Ended(NamedTuple):
    """The result of a loop, for the systems along the leading axes of x."""

    x: Tensor
    norms: Tensor  # (..., iterations + 1)
    codes: Tensor  # (...)
    note: str = ""
    normal: Tensor | None = None  # for least squares, ||J^T r||


@dataclass(frozen=True, eq=False)
class Rule:
    """An equation: F, a method to find x, and a method to solve with J, without derivatives."""

    dense = 0  # the number of p that are states, with all mapped axes, like x
    levels = 0  # the number of mapped axes

    def F(self, x: Tensor, *p: Tensor) -> Tensor:
        raise NotImplementedError

    def find(self, x0: Tensor | None, *p: Tensor) -> Ended:
        raise NotImplementedError

    def solve(self, x: Tensor, p: tuple[Tensor, ...], b: Tensor, transpose: bool) -> Ended:
        raise NotImplementedError

    def mapped(self, dims: tuple[int | None, ...]) -> Rule:
        raise NotImplementedError

    def release(self) -> None:
        """Keep no matrix, now or after a `solve`."""

    def spared(self, g: Tensor, codes: Tensor, x: Tensor, p: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """x and p where derivatives of F are computed, for the cotangent g."""
        return x, p


@dataclass(frozen=True, eq=False)
class Linearized(Rule):
    """J(x, p) y = b, or its transpose, as an equation for y with parameters b, x, *p."""

    rule: Rule
    transpose: bool

    @property
    def dense(self) -> int:  # type: ignore[override]
        return 2 + self.rule.dense

    @property
    def levels(self) -> int:  # type: ignore[override]
        return self.rule.levels

    def F(self, y: Tensor, *parameters: Tensor) -> Tensor:
        b, x, *p = parameters
        if self.transpose:
            return pullback(lambda z: self.rule.F(z, *p), x)[1](y)[0] - b
        return pushforward(lambda z: (self.rule.F(z, *p),), (x,), (y,))[0] - b

    def find(self, x0: Tensor | None, *parameters: Tensor) -> Ended:
        b, x, *p = parameters
        return self.rule.solve(x, tuple(p), b, self.transpose)

    def solve(self, x: Tensor, p: tuple[Tensor, ...], b: Tensor, transpose: bool) -> Ended:
        return self.rule.solve(p[1], p[2:], b, self.transpose != transpose)

    def mapped(self, dims: tuple[int | None, ...]) -> Linearized:
        return replace(self, rule=self.rule.mapped(dims[2:]))


def linear_solve(rule: Rule, x: Tensor, p: tuple[Tensor, ...], b: Tensor, transpose: bool) -> Tensor:
    """J(x, p)^-1 b, differentiable in all of them."""
    return Implicit.apply(Linearized(rule, transpose), None, b, x, *p)[0]  # type: ignore[index]


class Implicit(Nestable):
    """x, norms and codes."""

    @staticmethod
    def forward(rule: Rule, x0: Tensor | None, *p: Tensor):
        with _without_hooks() as checkpointed:
            like = p[0] if x0 is None else x0
            out = as_one(lambda: tuple(rule.find(x0, *p)[:3]), p, range(rule.levels - like.dim(), 0))
        if checkpointed:  # else what a rule keeps, which is no saved tensor, would live as long as the graph
            rule.release()
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        ctx.rule, _, *p = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[0], output[2], *p)
        keep_for_forward_mode(ctx, output[0], output[2], *p)

    @staticmethod
    @full_precision
    def backward(ctx: Any, g: Tensor | None, *_: Any):  # type: ignore[override]
        x, codes, *p = (unwrap_if_dead(t) for t in ctx.saved_tensors)
        at = [i for i in range(len(p)) if ctx.needs_input_grad[2 + i]]
        grads: list[Tensor | None] = [None] * len(p)
        if g is not None and at:
            x, p = ctx.rule.spared(g, codes, x, p)
            y = linear_solve(ctx.rule, x, tuple(p), g, True)
            pull = pullback(_of_some(ctx.rule, x, p, at), *(p[i] for i in at))[1]
            for i, t in zip(at, pull(-y), strict=True):
                grads[i] = t
        return None, None, *grads

    @staticmethod
    def jvp(ctx: Any, _rule: Any, _x0: Any, *tangents: Any):  # type: ignore[override]
        x, _, *p = ctx.saved_tensors
        at = [i for i, t in enumerate(tangents) if t is not None]

        F = _of_some(ctx.rule, x, p, at)
        along = pushforward(lambda *q: (F(*q),), tuple(p[i] for i in at), tuple(tangents[i] for i in at))
        return linear_solve(ctx.rule, x, tuple(p), -along[0], False), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple, rule: Rule, x0: Tensor | None, *p: Tensor):
        dims = in_dims[1:]
        tensors: list[Any] = []
        for i, (t, dim) in enumerate(zip((x0, *p), dims, strict=True)):
            if t is None:
                tensors.append(None)
            elif dim is not None:
                tensors.append(t.movedim(dim, 0))
            else:  # x0 and the states have every mapped axis
                tensors.append(t.expand(info.batch_size, *t.shape) if i <= rule.dense else t)
        places = tuple(None if dim is None and i >= rule.dense else 0 for i, dim in enumerate(dims[1:]))
        return Implicit.apply(rule.mapped(places), *tensors), (0, 0, 0)


def _of_some(rule: Rule, x: Tensor, p: list[Tensor], at: list[int]) -> Any:
    """F at x as a function of the p with these indices."""

    def F(*some: Tensor) -> Tensor:
        every = list(p)
        for i, t in zip(at, some, strict=True):
            every[i] = t
        return rule.F(x, *every)

    return F


@contextmanager
def _without_hooks() -> Iterator[bool]:
    """torch.func does not work under saved-tensor hooks, such as those of a checkpoint around a solve. A
    forward that saves nothing can disable them."""
    hooks: list[Any] = []
    while (top := _top_saved_tensors_default_hooks(True)) is not None:
        hooks.append(top)
        _pop_saved_tensors_default_hooks()
    try:
        yield bool(hooks)
    finally:
        for pack, unpack in reversed(hooks):
            _push_saved_tensors_default_hooks(pack, unpack)
