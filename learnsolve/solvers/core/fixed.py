"""A fixed number of stationary steps: by the compiled sweeps of ops/richardson.py for a CSR matrix and a
diagonal M, else by public operations (ops/_steps.py), which give the same numbers.

All steps run, whatever b is, so that a loss on them is the same function of the parameters for every b.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeGuard

import torch
from torch import Tensor

from learnsolve import _check
from learnsolve.csr import CSR
from learnsolve.ops import _across
from learnsolve.ops._dots import spread, times
from learnsolve.ops._product import product
from learnsolve.ops._steps import residual_norm, stationary_steps
from learnsolve.ops.richardson import richardson_sweeps
from learnsolve.solvers.core.arguments import check_operands, check_x0
from learnsolve.solvers.core.blocks import Blocks, Columns, joined, systems_of
from learnsolve.solvers.core.gradient import transformed
from learnsolve.solvers.core.operators import as_operator, as_preconditioner, compiled_form
from learnsolve.solvers.core.repeated import repeated
from learnsolve.solvers.options import Options
from learnsolve.solvers.solution import CODE, COMPILED, Iteration, Solution, SolverError, Status

FIXED_GRADIENTS = ("unrolled", "checkpointed")


class FixedNumber(torch.nn.Module):
    """A method for a fixed number of iterations; its parameters are those of the method."""

    def __init__(self, iterations: int, gradient: str):
        super().__init__()
        name = type(self).__name__
        _check.one_of(name, "gradient", gradient, FIXED_GRADIENTS)
        self.iterations = _check.integer(name, "iterations", iterations, 0)
        self.gradient = gradient

    def extra_repr(self) -> str:
        shapes = "".join(f"{key}={tuple(p.shape)}, " for key, p in self._parameters.items() if p is not None)
        return f"{shapes}iterations={self.iterations}, gradient={self.gradient!r}"


def with_last(norms: Tensor, r: Tensor) -> Tensor:
    """The norms before each step, and that of the last residual."""
    axis = 0 if r.dim() == 1 else -2
    return torch.cat((norms, residual_norm(r, axis, keepdim=True)), axis)


def compiled(
    A: CSR,
    b: Tensor,
    x0: Tensor,
    scale: Tensor,
    iterations: int,
    checkpointed: bool,
    momenta: Tensor | None = None,
) -> Solution:
    values, pattern = A.values, A.pattern
    x, norms = _sweeps(A, scale, b, x0, iterations, checkpointed, momenta)
    complete = lambda: with_last(norms, b - product(values, x, pattern, False))  # noqa: E731
    axis = 0 if b.dim() == 1 else -2
    return Solution(x, iterations, complete, axis, (values, b, x), execution=COMPILED)


def _sweeps(
    A: CSR,
    scale: Tensor,
    b: Tensor,
    x0: Tensor,
    iterations: int,
    checkpointed: bool,
    momenta: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """`richardson_sweeps` for any batch axes, on A's values, on scale (..., rows, n), on momenta (..., rows)
    and on b, as the one axis of the kernel."""
    several = momenta is not None and momenta.dim() > 1
    if A.values.dim() == 1 and b.dim() <= 2 and scale.dim() <= 2 and not several:
        return richardson_sweeps(A.values, scale, b, x0, A.pattern, iterations, checkpointed, momenta)
    batch = torch.broadcast_shapes(A.batch_shape, b.shape[:-2], scale.shape[:-2])

    def flat(t: Tensor, inner: int) -> Tensor:
        tail = t.shape[t.dim() - inner :]
        return t.expand(batch + tail).reshape((batch.numel(), *tail))

    b, x0, values = flat(b, 2), flat(x0, 2), A.values
    values = flat(values, 1) if values.dim() > 1 else values
    scale = flat(scale, 2) if scale.dim() > 2 else scale
    momenta = flat(momenta, 1) if momenta is not None and several else momenta
    x, norms = richardson_sweeps(values, scale, b, x0, A.pattern, iterations, checkpointed, momenta)
    return x.reshape(batch + x.shape[1:]), norms.reshape(batch + norms.shape[1:])


def run_fixed(
    name: str,
    A: Any,
    b: Tensor,
    x0: Tensor | None,
    options: Options,
    iterations: int,
    scale: Tensor,
    momenta: Tensor | None,
) -> Solution:
    """`iterations` steps: `scale` (..., 1 or iterations, 1 or n), `momenta` (..., 1 or iterations) or None,
    with batch axes that broadcast to those of A and b."""
    if not (options.callback is None or callable(options.callback)):
        raise TypeError(f"{name}: callback must be callable, got {type(options.callback).__name__}")
    operator = as_operator(name, A, b, options.transpose, tuple(options.parameters), blocks=True)
    layout = operator.layout if isinstance(operator, Blocks) else None
    batch = check_operands(name, A, b)
    check_x0(name, x0, b)
    x0 = torch.zeros_like(b) if x0 is None else x0
    checkpointed = options.gradient == "checkpointed"
    form = compiled_form(options.M)
    diagonal = form is not None and form[0] in ("none", "diagonal")
    if form is not None and diagonal and _has_kernel(A) and options.callback is None:
        m = form[1]
        rows = spread(scale, A.shape[0]) if m is None else times(m.unsqueeze(-2), scale)
        solution = compiled(A, b, x0, rows, iterations, checkpointed, momenta)
    else:
        columns, systems = Columns(b.dim() == 1, batch, layout), systems_of(name, options, b, layout)
        M = joined(layout, [as_preconditioner(name, "M", own.M, part) for own, part in systems])
        if layout is not None and scale.shape[-1] != 1:
            scale = layout.padded(scale.mT).mT
        steps = Steps(name, operator, M, scale, momenta, columns.told(options.callback))
        solution = steps.solution(columns, b, x0, iterations, checkpointed)
    if options.throw and solution.status in (Status.NON_FINITE, Status.DIVERGED):
        raise SolverError(name, solution)
    return solution


def _has_kernel(A: Any) -> TypeGuard[CSR]:
    return isinstance(A, CSR) and (A.values.is_cpu or A.values.is_cuda)


class Steps:
    """Steps by public operations, on blocks of columns (..., n, k)."""

    def __init__(
        self,
        function: str,
        A: Callable[[Tensor], Tensor],
        M: Callable[[Tensor], Tensor] | Sequence[Callable[[Tensor], Tensor]] | None,
        scale: Tensor | None = None,
        momenta: Tensor | None = None,
        callback: Callable[[Iteration], Any] | None = None,
    ):
        self.function = function
        self.A, self.M, self.scale, self.momenta = A, M, scale, momenta
        self.callback = callback
        self.ran: dict[int, int] = {}  # steps of each segment; a callback may have ended it

    def run(
        self, b: Tensor, x: Tensor, iterations: int, checkpointed: bool, r: Tensor | None = None
    ) -> tuple[Tensor, Tensor, int, bool]:
        """x, the norms before each step, how many steps ran, whether the callback stopped them. `r`: b - A x,
        if it is known. `checkpointed`: the graph keeps O(sqrt(iterations)) iterates, and a backward repeats
        the steps between them."""
        # Checkpoints work by hooks on saved tensors, which transformations of torch.func do not have.
        segments = checkpointed and torch.is_grad_enabled() and not transformed()
        length = max(1, round(iterations**0.5) if segments else iterations)
        before, norms, done, stopped = x, [], 0, False
        while done < iterations and not stopped:
            count = min(length, iterations - done)
            run = partial(self._segment, done, count)
            if segments:
                x, before, part = repeated(self.function, run, b, x, before, r)
            else:
                x, before, part = run(b, x, before, r)
            norms.append(part)
            self.ran[done] = ran = part.shape[-2]
            stopped = ran < count
            done, r = done + ran, None
        return x, torch.cat(norms, -2) if norms else b.new_empty(b[..., :0, :].shape), done, stopped

    def _segment(self, first: int, count: int, b: Tensor, x: Tensor, before: Tensor, r: Tensor | None):
        """`count` steps from number `first` on. When a backward repeats them, the callback is not called."""
        end = first + self.ran.get(first, count)
        stops = (lambda number, *_: number == end) if first in self.ran else self._stops
        numbers = range(first, first + count)
        with _across.over(_across.of(self.A)):
            return stationary_steps(self.A, self.M, self.scale, self.momenta, b, x, before, numbers, r, stops)

    def solution(
        self, columns: Columns, b: Tensor, x: Tensor, iterations: int, checkpointed: bool
    ) -> Solution:
        b, x = columns.into(b), columns.into(x)
        x, norms, done, stopped = self.run(b, x, iterations, checkpointed)
        shared, codes = _across.of(self.A), None
        with _across.over(shared):
            norms = with_last(norms, b - self.A(x))
        norms = norms if shared is None else shared.shown(norms)
        if not stopped and done:
            stopped = self._stops(done, x, norms[..., -1:, :])
        if stopped:
            lost = ~torch.isfinite(norms.detach()[..., -1, :])
            codes = torch.where(lost, CODE[Status.NON_FINITE], CODE[Status.STOPPED_BY_CALLBACK])
        x, norms, *codes, axis = columns.out_of(x, norms, *([] if codes is None else [codes]))
        return Solution(x, done, norms, axis, codes=codes[0] if codes else None)

    def _stops(self, number: int, x: Tensor, norm: Tensor) -> bool:
        if self.callback is None or number == 0:
            return False
        x, norm = x.detach(), norm.detach().squeeze(-2)
        return self.callback(Iteration(number, x, norm, torch.zeros_like(norm, dtype=torch.bool))) is True
