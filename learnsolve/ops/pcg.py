"""Preconditioned conjugate gradients by the compiled loop: a fixed number of iterations as one differentiable
operation, and iterations to a tolerance without a gradient.

Forward and adjoint are compiled calls (formulas: csrc/kernels/pcg.h and pcg_adjoint.h; when a column stops:
pcg_column.cuh), split so that Python can handle an interrupt in time.

A column that has reached the rounding level, or cannot continue, is frozen: it keeps x and r, cotangents of
both pass through, and later iterations add nothing to any gradient. `status` says why and when.

Sources: Saad, "Iterative Methods for Sparse Linear Systems" (2003), algorithm 9.1; the problem of learning
from truncated iterations: Nytko et al., "Optimized Sparse Matrix Operations for Reverse Mode Automatic
Differentiation", arXiv 2212.05159, section 4.3.
"""

import enum
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from learnsolve import _library  # noqa: F401  (registers torch.ops.learnsolve)
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.autograd import Operation, apply_vmap, distinct, needs_graph, pullback, pushforward
from learnsolve.ops.products import _raw_dots, dots, product
from learnsolve.ops.sweeps import (
    WORK,
    iterations_of_a_call,
    placeholder,
    residual_norm,
    separate,
    separate_columns,
    together,
)
from learnsolve.ops.triangular import Side, _only_read, _system, solve

# Conjugate gradients as a composition of public operations: the definition of the compiled loop, used for
# its second derivatives, forward mode and unusual batches. csrc/kernels/pcg_column.cuh has the same rules
# and names.


LOWER, LOWER_T = Side(True, False, False), Side(True, False, True)


class Stop(enum.IntEnum):
    """Why a column has stopped."""

    RUNNING = 0  # it has not
    ROUNDING = 1  # the residual meets its target, or r, <r, M r> or <p, A p> is at rounding level
    CURVATURE = 2  # <p, A p> <= 0: A is not positive definite
    PRECONDITIONER = 3  # <r, M r> <= 0: M is not positive definite
    NON_FINITE = 4  # infinities or NaNs; x and r are from before
    DIVERGED = 5  # the residual has grown by the inverse of the rounding unit


def preconditioner_map(m: Tensor, factor: SparsityPattern | None, kind: int) -> Callable[[Tensor], Tensor]:
    """r -> M r on (..., n, k)."""
    if kind == 0:
        return lambda r: r
    if kind == 1:
        return lambda r: m.unsqueeze(-1) * r
    assert factor is not None
    if kind == 2:
        return lambda r: product(m, product(m, r, factor, True), factor, False)
    return lambda r: solve(m, solve(m, r, factor, LOWER), factor, LOWER_T)


class _Columns:
    """The running columns: `PcgColumn` of csrc/kernels/pcg_column.cuh for all columns at once."""

    def __init__(self, size: Tensor, length: Tensor):
        info = torch.finfo(size.dtype)
        self.smallest = info.tiny
        self.low, self.high = info.eps * torch.maximum(size, length), size / info.eps
        self.why = torch.zeros_like(size, dtype=torch.int64)
        self.when = torch.zeros_like(self.why)
        self.stop(~size.isfinite(), Stop.NON_FINITE, 0)
        self.stop(size <= self.low, Stop.ROUNDING, 0)

    def run(self) -> Tensor:
        return self.why == 0

    def stop(self, where: Tensor, why: Stop, when: int) -> None:
        where = where & self.run()
        self.why, self.when = torch.where(where, why, self.why), torch.where(where, when, self.when)

    def divisor(self, value: Tensor, not_positive: Stop, when: int) -> None:
        """Stop columns in which the method cannot divide by this inner product."""
        value = value.detach()
        self.stop(~value.isfinite(), Stop.NON_FINITE, when)
        self.stop(value <= 0, not_positive, when)
        self.stop(value < self.smallest, Stop.ROUNDING, when)


def reference_pcg(
    values: Tensor, m: Tensor, b: Tensor, x0: Tensor,
    pattern: SparsityPattern, factor: SparsityPattern | None, kind: int, iterations: int, from_zero: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    vector = b.dim() == 1
    if vector:
        b, x0 = b.unsqueeze(-1), x0 if from_zero else x0.unsqueeze(-1)
    M = preconditioner_map(m, factor, kind)

    def dot(u, v):
        return dots(u, v, True)

    def column_norms(r):
        return residual_norm(r, -2, keepdim=True)

    def divide(a, b, where):
        return torch.where(where, a, 0) / torch.where(where, b, 1)

    r = b if from_zero else b - product(values, x0, pattern, False)
    x = torch.zeros_like(r) if from_zero else x0
    norm = column_norms(r)
    columns = _Columns(norm.detach(), column_norms(b).detach())
    r = torch.where(norm.detach().isfinite(), r, 0)
    z = M(r)
    rho = dot(r, z)
    columns.divisor(rho, Stop.PRECONDITIONER, 0)
    p = torch.where(columns.run(), z, 0)
    norms = [norm]
    for i in range(iterations):
        q = product(values, p, pattern, False)
        pi = dot(p, q)
        columns.divisor(pi, Stop.CURVATURE, i)
        alpha = divide(rho, pi, columns.run())
        columns.stop(~alpha.detach().isfinite(), Stop.NON_FINITE, i)
        columns.stop(alpha.detach() == 0, Stop.ROUNDING, i)
        new_r = torch.where(columns.run(), r - alpha * q, r)
        new_norm = column_norms(new_r)
        size = new_norm.detach()
        columns.stop(~size.isfinite(), Stop.NON_FINITE, i)
        moved = columns.run()
        r, norm = torch.where(moved, new_r, r), torch.where(moved, new_norm, norm)
        x = torch.where(moved, x + alpha * p, x)
        norms.append(norm)
        columns.stop(size <= columns.low, Stop.ROUNDING, i + 1)
        columns.stop(size > columns.high, Stop.DIVERGED, i + 1)
        z = M(r)
        new_rho = dot(r, z)
        columns.divisor(new_rho, Stop.PRECONDITIONER, i + 1)
        beta, runs = divide(new_rho, rho, columns.run()), columns.run()
        p, rho = torch.where(runs, z + beta * p, 0), torch.where(runs, new_rho, rho)
    history, status = torch.cat(norms, -2), torch.cat((columns.why, columns.when), -2)
    if vector:
        return x.squeeze(-1), history.squeeze(-1), status.squeeze(-1)
    return x, history, status


def reference_adjoint(*fixed) -> Callable:
    """(values, m, b, x0, gx, gnorms) -> gradients for the first four, differentiable."""

    def adjoint(values, m, b, x0, gx, gnorms):
        _, pull = pullback(lambda *t: reference_pcg(*t, *fixed)[:2], values, m, b, x0)
        return pull((gx, gnorms))

    return adjoint


KINDS = ("none", "diagonal", "product", "triangular")


def fitting(
    kind: str, pattern: SparsityPattern, factor: SparsityPattern | None
) -> tuple[int, SparsityPattern, SparsityPattern | None]:
    """The code of the kind, and the patterns with a common index type."""
    if factor is not None and factor.dtype != pattern.dtype:
        pattern, factor = _wide(pattern), _wide(factor)
    return KINDS.index(kind), pattern, factor


def _wide(pattern: SparsityPattern) -> SparsityPattern:
    return pattern if pattern.dtype == torch.int64 else pattern._plan_once(_widen_indices)[0]


def _widen_indices(pattern: SparsityPattern) -> tuple[SparsityPattern]:
    return (
        SparsityPattern._construct(pattern.crow_indices.long(), pattern.col_indices.long(), pattern.shape),
    )


def preconditioner(m: Tensor | None, factor: SparsityPattern | None, kind: int) -> tuple[Tensor, ...]:
    """M in the form of the raw operators (csrc/ops/pcg.h)."""
    if kind == 0:
        return ()
    assert m is not None
    if kind == 1:
        return (m,)
    assert factor is not None
    if kind == 2:
        return (m, *factor._structure(False), *factor._structure(True))
    return (m, *factor._structure(False), *_system(factor, LOWER).tensors, *_system(factor, LOWER_T).tensors)


RHO, STOP, WHEN = 0, 4, 5  # rows of the state of a column (csrc/kernels/views.h)


class Directions:
    """p = M r + beta p with beta = rho / rho_old and rho = <r, M r>, after a step without M has computed x
    and r. `M` takes blocks (n, k) or (B, n, k). Stopping rules: csrc/kernels/pcg_column.cuh.

    `flexible`: beta = (rho - <r_old, M r>) / rho_old, for an M that is not linear and symmetric."""

    def __init__(self, M: Callable[[Tensor], Tensor], flexible: bool = False):
        self.M, self.flexible = M, flexible
        self.rho: Tensor | None = None
        self.r: Tensor | None = None

    def __call__(self, r: Tensor, p: Tensor | None, carry: Tensor, runs: Tensor, iterations: int) -> Tensor:
        """The direction after `iterations`. `p` is the previous one. `runs`, (B, k): the running columns.
        Writes rho, and why and when a column stops, to `carry`, (B, 6, k)."""
        z, old, r_old = self.M(r), self.rho, self.r
        self.rho = rho = _raw_dots(r, z, False).reshape(runs.shape)
        if self.flexible:
            self.r = r
        carry[:, RHO] = rho
        wide = (*r.shape[:-2], 1, r.shape[-1])
        if p is not None and old is not None:
            part = rho if r_old is None else rho - _raw_dots(r_old, z, False).reshape(runs.shape)
            z = torch.addcmul(z, (part / old).reshape(wide), p)
        info = torch.finfo(rho.dtype)
        goes_on = runs & (rho.clamp(info.tiny, info.max) == rho)
        if goes_on.all():
            return z
        why = torch.where(rho > 0, Stop.ROUNDING, Stop.PRECONDITIONER)
        why = torch.where(rho.isfinite(), why, Stop.NON_FINITE)
        stops = runs & ~goes_on
        carry[:, STOP] = torch.where(stops, why, carry[:, STOP])
        carry[:, WHEN] = torch.where(stops, iterations, carry[:, WHEN])
        return torch.where(goes_on.reshape(wide), z, 0)


_raw = torch.ops.learnsolve.csr_pcg.default
_raw_backward = torch.ops.learnsolve.csr_pcg_backward.default

_FIRST_CALL = 32  # iterations to a tolerance; later calls double this, as far as interrupts allow
_WORK = WORK  # of one call


def pcg_iterations(
    values: Tensor,
    b: Tensor,
    x0: Tensor | None,
    pattern: SparsityPattern,
    iterations: int,
    *,
    kind: str = "none",
    m: Tensor | None = None,
    factor: SparsityPattern | None = None,
    checkpointed: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """x after `iterations` steps, and the residual norm before each and after the last. Unchecked arguments.

    Parameters
    ----------
    values : (nnz,) or (B, nnz)
    b : (n,), (n, k) or (B, n, k), with B if values or m have it
    x0 : of b's shape. None: zero
    kind : the form of M: "none", the identity; "diagonal", diag(m); "product", L L^T, or "triangular", (L
        L^T)^-1, where L has the values m on the pattern `factor`, with n rows and, for a product, any number
        of columns; lower triangular for solves
    m : (n,) or (B, n); values of L, (nnz of factor,) or (B, nnz of factor)
    checkpointed : keep O(sqrt(iterations)) vectors for the backward and repeat the iterations between them,
        which is bitwise identical

    Returns
    -------
    x, of b's shape
    norms, (iterations + 1,), (iterations + 1, k) or (B, iterations + 1, k)
    status, int64, (2,), (2, k) or (B, 2, k): a `Stop`, and the iteration before which the column stopped

    Notes
    -----
    Gradients for values, m, b and x0, also through the norms, exact for the iterations that ran. For a column
    whose cotangents are all exactly zero, the backward pass only reads them.
    """
    number, pattern, factor = fitting(kind, pattern, factor)
    from_zero = x0 is None
    M = placeholder(values) if m is None else m
    X = placeholder(values) if x0 is None else x0
    tensors = (values, M, b, X)
    constants = (pattern, factor, number, iterations, from_zero, checkpointed)
    if torch.compiler.is_dynamo_compiling():
        return _PCG.traced.apply(*distinct(*tensors), *constants, any(t.requires_grad for t in tensors))[:3]
    if needs_graph(*tensors):
        return _PCG.eager.apply(*tensors, *constants, True)[:3]
    return _PCG.forward(*tensors, *constants, False)[:3]  # type: ignore[return-value]


class PCGState(NamedTuple):
    """The state passed from one call of `Iterations` to the next."""

    x: Tensor
    r: Tensor
    p: Tensor  # the next direction; with `between` the previous one
    carry: Tensor  # (B, 6, k): csrc/kernels/views.h


class Iterations:
    """Iterations to a tolerance in several calls, without a gradient. Arguments are as for
    `pcg_iterations`, with b (n, k) or (B, n, k). No tensor may require grad.

    `every`: iterations per call. None: 32, 64, 128, ..., as far as interrupts allow. `between`, with kind
    "none": M as a function of blocks of b's shape, which is called between calls of one iteration each, and
    may be nonlinear if `flexible`.
    """

    def __init__(
        self,
        values: Tensor,
        b: Tensor,
        x0: Tensor | None,
        pattern: SparsityPattern,
        every: int | None = None,
        *,
        kind: str = "none",
        m: Tensor | None = None,
        factor: SparsityPattern | None = None,
        between: Callable[[Tensor], Tensor] | None = None,
        flexible: bool = False,
    ):
        number, pattern, factor = fitting(kind, pattern, factor)
        self.fixed = (pattern._structure(False), values, number, preconditioner(m, factor, number))
        shared = values.dim() == 1 and (m is None or m.dim() == 1)
        self.lead = b.shape[:-2] if shared and between is None and separate(b) else None
        self.x0, self.b = self.separate_columns(x0), self.separate_columns(b)
        alone = b if self.lead is None else self.b[:1]
        self.longest = _longest(values, 0 if m is None else m.shape[-1], alone)
        self.directions = None if between is None else Directions(between, flexible)
        self.length, self.growth = (_FIRST_CALL, 2) if every is None else (every, 1)

    def most(self, count: int) -> int:
        """The largest number of iterations of the next call."""
        return 1 if self.directions is not None else min(count, self.length, self.longest)

    def __call__(
        self, state: PCGState | None, count: int, done: int, runs: Tensor | None, target: Tensor
    ) -> tuple[PCGState, Tensor]:
        """`count` iterations after `done`, at most `most`, and the norm after each, from the recurrence. A
        column whose norm is at or below its `target`, (..., 1, k), also stops, as ROUNDING. `runs`, (..., 1,
        k): the columns that have not been stopped. None: all."""
        self.length *= self.growth
        p: Any = None
        carry: Any
        if state is not None:
            x, r, p, carry = state
            if runs is not None:
                carry[:, STOP] = torch.where(runs.reshape(carry[:, STOP].shape), carry[:, STOP], 1)
        elif self.directions is None:
            x, r, carry = self.x0, self.b, None
        else:
            x, r, _, _, carry, *_ = _raw(*self.fixed, self.x0, self.b, (), target, 0, 0, False)
        if self.directions is not None:
            p = self.directions(r, p, carry, carry[:, STOP] == 0, done)
        given, outs = [] if carry is None else [p, carry], []
        # Columns apart take all iterations of a call before the next begins, as many in one call of the
        # operator as interrupts allow.
        width = max(self.longest // max(count, 1), 1)
        for i in [0] if self.lead is None else range(0, len(self.b), width):
            parts = [x, r, target, *given]
            if self.lead is not None:
                parts = [t if t is None else self.separate_columns(t)[i : i + width] for t in parts]
            out = _raw(*self.fixed, *parts[:2], parts[3:], parts[2], done, count, False)
            outs.append((*out[:3], *out[4:6]))
        x, r, after, carry, history = outs[0] if len(outs) == 1 else map(torch.cat, zip(*outs, strict=True))
        return self.together(
            x, r, after if self.directions is None else p, carry,
            history if given else history[..., 1:, :],
        )  # fmt: skip

    def separate_columns(self, t: Any) -> Any:
        return t if t is None or self.lead is None else separate_columns(t)

    def together(self, *tensors: Tensor) -> tuple[PCGState, Tensor]:
        if self.lead is not None:
            x, r, p, carry, history = (together(t, self.lead) for t in tensors)
            tensors = x, r, p, carry if self.lead else carry.unsqueeze(0), history
        return PCGState(*tensors[:4]), tensors[4]

    def direction(self, state: PCGState) -> Tensor:
        """The next direction."""
        if self.directions is None:
            return state.p
        return self.directions(state.r, state.p, state.carry, torch.ones_like(state.carry[:, STOP]) > 0, 0)


def _status(carry: Tensor, b: Tensor) -> Tensor:
    return carry[:, STOP:].to(torch.int64).reshape(*b.shape[: max(b.dim() - 2, 0)], 2, *b.shape[1:][-1:])


def _longest(values: Tensor, entries: int, b: Tensor) -> int:
    """Iterations of one call with an M of so many entries, so that Python can handle an interrupt in
    between."""
    work = (values.shape[-1] + 2 * entries) * max(b.numel(), 1) // max(b.shape[max(b.dim() - 2, 0)], 1)
    return iterations_of_a_call(values, work + 12 * b.numel() + 1, _WORK)


def _calls(values: Tensor, m: Tensor, b: Tensor, iterations: int, checkpointed: bool) -> list[int]:
    """The number of iterations of each call."""
    length = _longest(values, m.shape[-1], b)
    if checkpointed:
        length = min(length, max(1, round(iterations**0.5)))
    return [min(length, iterations - i) for i in range(0, iterations, length)] or [0]


class _PCG(Operation):
    """x, norms and status of `pcg_iterations`, and the tensors that its adjoint needs."""

    @staticmethod
    def forward(values, m, b, x0, pattern, factor, kind, iterations, from_zero, checkpointed, recorded):
        fixed = (pattern._structure(False), values, kind, preconditioner(m, factor, kind))
        store = recorded and not checkpointed
        x, r = None if from_zero else x0, b
        state: Any = ()
        first, norms, saved = 0, [], []
        for count in _calls(values, m, b, iterations, checkpointed):
            out = _raw(*fixed, x, r, state, None, first, count, store)
            x, r, p, before, carry, history, scalars, residuals, directions = out
            state = (p, carry)
            norms.append(history)
            first += count
            if store:
                saved += [residuals, directions, r, scalars]
            elif recorded and first < iterations:
                saved += [r, p, before, carry]
        axis = 0 if b.dim() == 1 else -2
        return x, norms[0] if len(norms) == 1 else torch.cat(norms, axis), _status(state[1], b), *saved

    @staticmethod
    def setup_context(ctx, inputs, output):
        values, m, b, x0, *constants = inputs
        ctx.constants = tuple(constants)
        ctx.outputs = len(output)
        ctx.mark_non_differentiable(*output[2:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(values, m, b, x0, output[1], *output[3:])

    @staticmethod
    def backward(ctx, gx, gnorms, *_):
        values, m, b, x0, norms, *saved = ctx.saved_tensors
        rest = (None,) * 7
        if gx is None and gnorms is None:
            return (None,) * 4 + rest
        needs = tuple(ctx.needs_input_grad[:4])
        given = [g for g in (gx, gnorms) if g is not None]
        constants = ctx.constants[:-1]
        if not torch.compiler.is_dynamo_compiling() and needs_graph(values, m, b, x0, *given):
            gx = torch.zeros_like(b) if gx is None else gx
            gnorms = torch.zeros_like(norms) if gnorms is None else gnorms
            grads = _PCGAdjoint.eager.apply(values, m, b, x0, gx, gnorms, norms, constants, *saved)
        else:
            grads = _adjoint(values, m, b, x0, gx, gnorms, norms, constants, saved, needs)
        given = [g if needed else None for g, needed in zip(grads, needs, strict=True)]
        return (*given, *rest)

    @staticmethod
    def jvp(ctx, *tangents):
        constants = ctx.constants[:5]
        out = pushforward(lambda *t: reference_pcg(*t, *constants)[:2], ctx.saved_tensors[:4], tangents[:4])
        return (*out, *(None,) * (ctx.outputs - 2))

    @staticmethod
    def vmap(info, in_dims, values, m, b, x0, pattern, factor, kind, iterations, from_zero, checkpointed, _):
        def front(t, dim):
            return t if dim is None else t.movedim(dim, 0)

        v_dim, m_dim, b_dim, x_dim = in_dims[:4]
        inner = [t.dim() - (d is not None) for t, d in zip((values, m, b, x0), in_dims[:4], strict=True)]
        if inner[0] > 1 or inner[1] > 1 or inner[2] > 2:
            # A batch within the map: the kernel supports only one batch axis.
            def iterate(v, m, b, x):
                return reference_pcg(v, m, b, x, pattern, factor, kind, iterations, from_zero)

            return apply_vmap(iterate, in_dims[:4], (values, m, b, x0))
        n = info.batch_size
        vector = inner[2] == 1
        shared = v_dim is None and m_dim is None and vector and b_dim is not None
        axis = 1 if shared else 0  # a batch of vectors: columns of one system

        def laid_out(t, dim):
            t = t.expand((n, *t.shape)).movedim(0, axis) if dim is None else t.movedim(dim, axis)
            return t.unsqueeze(-1) if vector and not shared else t

        B, X = laid_out(b, b_dim), None if from_zero else laid_out(x0, x_dim)
        v, M = front(values, v_dim), None if kind == 0 else front(m, m_dim)
        out = pcg_iterations(
            v, B, X, pattern, iterations,
            kind=KINDS[kind], m=M, factor=factor, checkpointed=checkpointed,
        )  # fmt: skip
        if vector and not shared:
            out = tuple(t.squeeze(-1) for t in out)
        return out, (axis,) * 3


def _adjoint(values, m, b, x0, gx, gnorms, norms, constants, saved, needs):
    pattern, factor, kind, iterations, from_zero, checkpointed = constants
    A, M = pattern._structure(False), preconditioner(m, factor, kind)
    start = None if from_zero else x0
    needs = [int(needs[0]), int(needs[1]), int(needs[3] and not from_zero)]
    axis = 0 if b.dim() == 1 else -2
    sums, gx0, end = [], None, iterations
    for j, count in reversed(list(enumerate(_calls(values, m, b, iterations, checkpointed)))):
        first, before = end - count, ()
        if checkpointed:
            r, p, *before, carry = saved[4 * (j - 1) : 4 * j] if j else (b, None, None)
            state = (p, carry) if j else ()
            again = _raw(A, values, kind, M, r if j else start, r, state, None, first, count, True)
            forward = [again[7], again[8], again[1], again[6]]
        else:
            forward = saved[4 * j : 4 * j + 4]
            if j:
                before = (saved[4 * j - 3][:, -1],)
        at, rows = (first + 1, count) if j else (0, count + 1)
        forward = (*forward, _narrow(norms, axis, at, rows), *before)
        bars = None if gnorms is None else _narrow(gnorms, axis, at, rows)
        *sums, gx0 = _raw_backward(
            A, pattern._structure(True), values, kind, M, start, forward, gx, bars, sums, needs
        )
        end = first
    rbar, _, _, gv, gm = sums
    if kind == 3 and needs[1]:
        gm = _only_read(gm.neg(), factor, LOWER)
    return gv, gm, rbar, gx0


def _narrow(t: Tensor, axis: int, first: int, count: int) -> Tensor:
    """`t.narrow`, or `t` itself if nothing is cut off."""
    return t if count == t.shape[axis] else t.narrow(axis, first, count)


class _PCGAdjoint(Operation):
    """Gradients for (values, m, b, x0), as a differentiable operation."""

    @staticmethod
    def forward(values, m, b, x0, gx, gnorms, norms, constants, *saved):
        return _adjoint(values, m, b, x0, gx, gnorms, norms, constants, saved, (True,) * 4)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.constants = inputs[7][:5]
        ctx.inputs = len(inputs)
        ctx.save_for_backward(*inputs[:6])

    @staticmethod
    def backward(ctx, *cotangents):
        _, pull = pullback(reference_adjoint(*ctx.constants), *ctx.saved_tensors)
        return (*pull(cotangents), *(None,) * (ctx.inputs - 6))

    @staticmethod
    def jvp(ctx, *tangents):
        return pushforward(reference_adjoint(*ctx.constants), ctx.saved_tensors, tangents[:6])

    @staticmethod
    def vmap(info, in_dims, *args):
        return apply_vmap(reference_adjoint(*args[7][:5]), in_dims[:6], args[:6])
