"""Linear functions of a block of columns as a list of steps: recorded once, run as one operation.

A `Register` block of columns supports the operations of a tensor x + y, x - y, `multiply_rows`, `product` and
`dense_product`. Each of these records a step. The list runs compiled (csrc/ops/linear_steps.cpp), with one
operation of autograd for all of it, or step by step by differentiable operations: under `torch.compile`,
`torch.func` and forward mode, on devices, for batches of columns and for second derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from learnsolve import _library  # noqa: F401  (registers torch.ops.learnsolve)
from learnsolve.matrix import device_analysis
from learnsolve.matrix.checks import full_precision
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops import products as _product
from learnsolve.ops.autograd import Eager, forward_mode_may_come, needs_graph

_raw = torch.ops.learnsolve.linear_steps.default
_raw_backward = torch.ops.learnsolve.linear_steps_backward.default

# Kinds of steps, as in csrc/ops/linear_steps.cpp.
_MULTIPLY, _RESIDUAL, _ADD, _SUBTRACT, _SCALE, _SCALE_ADD, _DENSE = range(7)


class Register:
    """A block of columns (n, k) to be computed: register `number` of the list."""

    def __init__(self, steps: LinearSteps, number: int):
        self.steps, self.number = steps, number

    def __add__(self, other: Register) -> Register:
        last = self.steps.takes_back(other, _SCALE)
        if last is not None:  # y + s o x
            return self.steps.add(_SCALE_ADD, last[1], 0, last[3], self.number)
        return self.steps.add(_ADD, 0, 0, other.number, self.number)

    def __sub__(self, other: Register) -> Register:
        last = self.steps.takes_back(other, _MULTIPLY)
        if last is not None:  # y - A x
            return self.steps.add(_RESIDUAL, *last[1:4], self.number)
        return self.steps.add(_SUBTRACT, 0, 0, other.number, self.number)


def product(values: Tensor, x: Any, pattern: SparsityPattern, transpose: bool) -> Any:
    """`_product.product`, or a step if x is recorded."""
    if isinstance(x, Register):
        return x.steps.add(_MULTIPLY, x.steps.matrix(values, pattern), int(transpose), x.number, 0)
    return _product.product(values, x, pattern, transpose)


def multiply_rows(s: Tensor, x: Any) -> Any:
    """s o x for s (..., n, 1), or a step."""
    if isinstance(x, Register):
        return x.steps.add(_SCALE, x.steps.operand(s), 0, x.number, 0)
    return s * x


def dense_product(D: Tensor, x: Any, transpose: bool) -> Any:
    """D x or D^T x, or a step."""
    if isinstance(x, Register):
        return x.steps.add(_DENSE, x.steps.operand(D), int(transpose), x.number, 0)
    return (D.mT if transpose else D) @ x


class LinearSteps:
    """`function` of a block of columns as recorded steps, for matrices without batch axes.

    Parameters
    ----------
    function : a linear function of one block of columns, composed of the steps above
    matrices : the CSRs that it multiplies by
    others : scalars per row (n, 1), or dense matrices
    times : how often it is applied in succession
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        matrices: Sequence[CSR],
        others: Sequence[Tensor],
        times: int = 1,
    ):
        apart = {(id(A.values), id(A.pattern)): A for A in matrices}
        self.patterns = [A.pattern for A in apart.values()]
        self.operands = (*(A.values for A in apart.values()), *others)
        self.structures = [t for P in self.patterns for way in (False, True) for t in P._structure(way)]
        keys: list[object] = [*apart, *map(id, others)]
        self._numbers = {key: number for number, key in enumerate(keys)}
        self._written: list[tuple[int, ...]] = []
        result = function(Register(self, 0))
        count = len(self._written)
        assert result.number == count
        self._written += [
            (*step[:3], step[3] + done, step[4] + done)
            for done in range(count, times * count, count)
            for step in self._written
        ]
        self.steps = [number for step in self._written for number in step]

    def add(self, *step: int) -> Register:
        assert min(step) >= 0, "a block is used that a later step has taken up"
        self._written.append(step)
        return Register(self, len(self._written))

    def takes_back(self, x: Register, kind: int) -> tuple[int, ...] | None:
        """Remove and return the last step if it computed x and is of this kind, which makes x invalid."""
        if x.number != len(self._written) or x.number == 0 or self._written[-1][0] != kind:
            return None
        x.number = -1
        return self._written.pop()

    def operand(self, t: Tensor) -> int:
        return self._numbers[id(t)]

    def matrix(self, values: Tensor, pattern: SparsityPattern) -> int:
        return self._numbers[id(values), id(pattern)]

    def __call__(self, b: Tensor) -> Tensor:
        """Apply to b (..., n, k)."""
        apart = b.dim() != 2 or device_analysis.here(b) or torch.compiler.is_dynamo_compiling()
        if apart or forward_mode_may_come():
            return self.run_separately(b, self.operands)
        if needs_graph(b, *self.operands):
            return _Run.apply(self, b, *self.operands)
        return _raw(self.structures, self.operands, b, self.steps, False)[0]

    def run_separately(self, b: Tensor, operands: Sequence[Tensor]) -> Tensor:
        """Run step by step."""
        registers = [b]
        for kind, operand, transpose, x, y in self._written:
            to, other = registers[x], registers[y]
            if kind in (_MULTIPLY, _RESIDUAL):
                to = _product.product(operands[operand], to, self.patterns[operand], bool(transpose))
            elif kind in (_SCALE, _SCALE_ADD):
                to = operands[operand] * to
            elif kind == _DENSE:
                to = dense_product(operands[operand], to, bool(transpose))
            if kind in (_ADD, _SCALE_ADD):
                to = other + to
            elif kind in (_RESIDUAL, _SUBTRACT):
                to = other - to
            registers.append(to)
        return registers[-1]


class _Run(Eager):
    """All steps at once. Higher derivatives use single steps."""

    @staticmethod
    def forward(ctx, steps: LinearSteps, b: Tensor, *operands: Tensor) -> Tensor:
        *registers, x = _raw(steps.structures, operands, b, steps.steps, True)
        ctx.save_for_backward(b, *operands, *registers)
        ctx.steps = steps
        return x

    @staticmethod
    @full_precision
    def backward(ctx, *gradients: Tensor) -> tuple[Any, ...]:
        (g,), steps, saved = gradients, ctx.steps, ctx.saved_tensors
        count, needs = 1 + len(steps.operands), ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():
            # Operands may depend on one another. Derivatives with respect to views do not follow those paths.
            inputs = [t.view_as(t) for t in saved[:count]]
            wanted = [t for t, need in zip(inputs, needs, strict=True) if need]
            x = steps.run_separately(inputs[0], inputs[1:])
            found = iter(torch.autograd.grad(x, wanted, g, create_graph=True, allow_unused=True))
            return None, *(next(found) if need else None for need in needs)
        registers = (saved[0], *saved[count:])
        found = _raw_backward(steps.structures, saved[1:count], registers, g, steps.steps, needs)
        return None, *(t if need else None for t, need in zip(found, needs, strict=True))


@torch.library.register_fake("learnsolve::linear_steps")
def _(structures, operands, b, steps, keep):
    rows = [b.shape[0]]
    for at in range(0, len(steps), 5):
        kind, operand, transpose, x, _ = steps[at : at + 5]
        if kind in (_MULTIPLY, _RESIDUAL):
            rows.append(structures[8 * operand + 4 * transpose].shape[0] - 1)
        elif kind == _DENSE:
            rows.append(operands[operand].shape[1 if transpose else 0])
        else:
            rows.append(rows[x])
    return [b.new_empty((n, b.shape[1])) for n in (rows[1:] if keep else rows[-1:])]


@torch.library.register_fake("learnsolve::linear_steps_backward")
def _(structures, operands, registers, g, steps, needs):
    of = (registers[0], *operands)
    return [t.new_empty(t.shape if need else (0,)) for t, need in zip(of, needs, strict=True)]
