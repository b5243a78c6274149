"""Preconditioned conjugate gradients, a fixed number of iterations as one differentiable operation.

Forward and adjoint are one compiled call each (formulas: csrc/kernels/pcg.h and pcg_adjoint.h), cut into
several where they would run for long, so that Python hears an interrupt in between. Second derivatives,
forward mode and unusual batches go through `_unfused`, the same iterations as a composition of public
operations.

A column that has reached rounding level, or cannot go on, stands still: it keeps x and r, cotangents of both
pass through, and the iterations from there on add nothing to any gradient. Why and when is in `status`.

Sources: Saad, "Iterative Methods for Sparse Linear Systems" (2003), algorithm 9.1; the problem of learning by
truncated iterations: Nytko et al., "Optimized Sparse Matrix Operations for Reverse Mode Automatic
Differentiation", arXiv 2212.05159, section 4.3.
"""

import enum
from collections.abc import Callable

import torch
from torch import Tensor

from learnsolve import _library  # noqa: F401  (registers torch.ops.learnsolve)
from learnsolve.ops._autograd import Eager, keep_for_forward_mode, pullback, tracked, vmapped
from learnsolve.ops._calls import WORK, iterations_of_a_call
from learnsolve.ops._product import product
from learnsolve.ops._triangular import Side, _only_read, _system, solve
from learnsolve.ops.richardson import residual_norm
from learnsolve.pattern import SparsityPattern

_raw = torch.ops.learnsolve.csr_pcg.default
_raw_backward = torch.ops.learnsolve.csr_pcg_backward.default

KINDS = ("none", "diagonal", "product", "triangular")
_LOWER, _LOWER_T = Side(True, False, False), Side(True, False, True)

_WORK = WORK  # of one call


class Stop(enum.IntEnum):
    """Why a column stands still."""

    RUNNING = 0  # it does not
    ROUNDING = 1  # the residual, or <r, M r> or <p, A p>, is at rounding level
    CURVATURE = 2  # <p, A p> <= 0: A is not positive definite
    PRECONDITIONER = 3  # <r, M r> <= 0: M is not
    NON_FINITE = 4  # infinities or NaNs; x and r are those from before
    DIVERGED = 5  # the residual has grown by the inverse of the rounding unit


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
    """x after `iterations` steps, the norm of the residual before each and after the last. Not checked.

    Parameters
    ----------
    values : (nnz,) or (B, nnz)
    b : (n,), (n, k) or (B, n, k); B if values or m have it
    x0 : of b's shape; None: zero
    kind : what M is: "none" the identity; "diagonal" diag(m); "product" L L^T and "triangular" (L L^T)^-1,
        for the L with values m on the pattern `factor`, lower triangular for the latter
    m : (n,) or (B, n); values of L, (nnz of factor,) or (B, nnz of factor)
    checkpointed : keep O(sqrt(iterations)) vectors for the backward, and repeat the iterations between them:
        the same bits

    Returns
    -------
    x, of b's shape
    norms, (iterations + 1,), (iterations + 1, k) or (B, iterations + 1, k)
    status, int64, (2,), (2, k) or (B, 2, k): a `Stop`, and the iteration before which the column stopped

    Notes
    -----
    Gradients for values, m, b and x0, also through the norms, exact for the iterations that ran. A column
    whose cotangents are all exactly zero costs nothing in the backward but a look at them.
    """
    number = KINDS.index(kind)
    if factor is not None and factor.dtype != pattern.dtype:
        pattern, factor = (_wide(P) for P in (pattern, factor))
    from_zero = x0 is None
    M = values.new_empty(0) if m is None else m
    X = values.new_empty(0) if x0 is None else x0
    args = (values, M, b, X, pattern, factor, number, iterations, from_zero, checkpointed)
    if torch.compiler.is_dynamo_compiling():
        learns = values.requires_grad or M.requires_grad or b.requires_grad or X.requires_grad
        return _PCG.apply(*args, learns)[:3]  # type: ignore[return-value]
    if tracked(values, M, b, X):
        return _PCGForwardMode.apply(*args, True)[:3]  # type: ignore[return-value]
    return _PCG.forward(*args, False)[:3]  # type: ignore[return-value]


def _wide(pattern: SparsityPattern) -> SparsityPattern:
    return pattern if pattern.dtype == torch.int64 else pattern._planned(_with_int64)[0]


def _with_int64(pattern: SparsityPattern) -> tuple[SparsityPattern]:
    return (SparsityPattern._trusted(pattern.crow_indices.long(), pattern.col_indices.long(), pattern.shape),)


def _preconditioner(m: Tensor, factor: SparsityPattern | None, kind: int) -> Callable[[Tensor], Tensor]:
    """r -> M r on (..., n, k)."""
    if kind == 0:
        return lambda r: r
    if kind == 1:
        return lambda r: m.unsqueeze(-1) * r
    assert factor is not None
    if kind == 2:
        return lambda r: product(m, product(m, r, factor, True), factor, False)
    return lambda r: solve(m, solve(m, r, factor, _LOWER), factor, _LOWER_T)


def _unfused(
    values: Tensor, m: Tensor, b: Tensor, x0: Tensor,
    pattern: SparsityPattern, factor: SparsityPattern | None, kind: int, iterations: int, from_zero: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    vector = b.dim() == 1
    if vector:
        b, x0 = b.unsqueeze(-1), x0 if from_zero else x0.unsqueeze(-1)
    M = _preconditioner(m, factor, kind)
    info = torch.finfo(b.dtype)

    def dot(u, v):
        return (u * v).sum(-2, keepdim=True)

    def norm_of(r):
        return residual_norm(r, -2, keepdim=True)

    def divide(a, b, where):
        return torch.where(where, a, 0) / torch.where(where, b, 1)

    def stop(why, when, where, code, now):
        where = where & (why == 0)
        return torch.where(where, code, why), torch.where(where, now, when)

    def judge(why, when, value, code, now):
        """Is this inner product one that the method can divide by?"""
        value = value.detach()
        why, when = stop(why, when, ~value.isfinite(), Stop.NON_FINITE, now)
        why, when = stop(why, when, value <= 0, code, now)
        return stop(why, when, value < info.tiny, Stop.ROUNDING, now)

    r = b if from_zero else b - product(values, x0, pattern, False)
    x = torch.zeros_like(r) if from_zero else x0
    norm = norm_of(r)
    size = norm.detach()
    low, high = info.eps * torch.maximum(size, norm_of(b).detach()), size / info.eps
    why = torch.zeros_like(size, dtype=torch.int64)
    when = torch.zeros_like(why)
    why, when = stop(why, when, ~size.isfinite(), Stop.NON_FINITE, 0)
    why, when = stop(why, when, size <= low, Stop.ROUNDING, 0)
    r = torch.where(size.isfinite(), r, 0)
    z = M(r)
    rho = dot(r, z)
    why, when = judge(why, when, rho, Stop.PRECONDITIONER, 0)
    p = torch.where(why == 0, z, 0)
    norms = [norm]
    for i in range(iterations):
        q = product(values, p, pattern, False)
        curvature = dot(p, q)
        why, when = judge(why, when, curvature, Stop.CURVATURE, i)
        alpha = divide(rho, curvature, why == 0)
        step = alpha.detach()
        why, when = stop(why, when, ~step.isfinite(), Stop.NON_FINITE, i)
        why, when = stop(why, when, step == 0, Stop.ROUNDING, i)
        new_r = torch.where(why == 0, r - alpha * q, r)
        new_norm = norm_of(new_r)
        size = new_norm.detach()
        why, when = stop(why, when, ~size.isfinite(), Stop.NON_FINITE, i)
        moved = why == 0
        r, norm = torch.where(moved, new_r, r), torch.where(moved, new_norm, norm)
        x = torch.where(moved, x + alpha * p, x)
        norms.append(norm)
        why, when = stop(why, when, size <= low, Stop.ROUNDING, i + 1)
        why, when = stop(why, when, size > high, Stop.DIVERGED, i + 1)
        z = M(r)
        new_rho = dot(r, z)
        why, when = judge(why, when, new_rho, Stop.PRECONDITIONER, i + 1)
        beta = divide(new_rho, rho, why == 0)
        p, rho = torch.where(why == 0, z + beta * p, 0), torch.where(why == 0, new_rho, rho)
    history, status = torch.cat(norms, -2), torch.cat((why, when), -2)
    if vector:
        return x.squeeze(-1), history.squeeze(-1), status.squeeze(-1)
    return x, history, status


def _unfused_adjoint(*fixed) -> Callable:
    """(values, m, b, x0, gx, gnorms) -> gradients for the first four, differentiable."""

    def adjoint(values, m, b, x0, gx, gnorms):
        _, pull = pullback(lambda *t: _unfused(*t, *fixed)[:2], values, m, b, x0)
        return pull((gx, gnorms))

    return adjoint


def _tangents(function: Callable, primals: tuple, tangents: tuple) -> tuple:
    """Forward mode, which torch does not nest: the transpose of the transpose is the tangent map itself."""
    tangents = tuple(torch.zeros_like(p) if t is None else t for p, t in zip(primals, tangents, strict=True))
    out, pull = pullback(function, *primals)
    _, push = pullback(pull, tuple(torch.zeros_like(o) for o in out))
    return push(tangents)[0]


def _calls(values: Tensor, m: Tensor, b: Tensor, iterations: int, checkpointed: bool) -> list[int]:
    """Iterations of each call."""
    work = (values.shape[-1] + 2 * m.shape[-1]) * max(b.numel(), 1) // max(b.shape[max(b.dim() - 2, 0)], 1)
    length = iterations_of_a_call(values, work + 12 * b.numel() + 1, _WORK)
    if checkpointed:
        length = min(length, max(1, round(iterations**0.5)))
    return [min(length, iterations - i) for i in range(0, iterations, length)] or [0]


def _factor_structures(factor: SparsityPattern | None, kind: int) -> list[Tensor]:
    if kind < 2:
        return []
    assert factor is not None
    ptr, idx, _, blocks = factor._structure(False)
    if kind == 2:
        return [ptr, idx, blocks, *factor._structure(True)]
    triangles = (t for side in (_LOWER, _LOWER_T) for t in _system(factor, side).tensors)
    return [ptr, idx, blocks, *triangles]


class _PCG(torch.autograd.Function):
    @staticmethod
    def forward(values, m, b, x0, pattern, factor, kind, iterations, from_zero, checkpointed, learns):
        ptr, idx, _, blocks = pattern._structure(False)
        fixed = (ptr, idx, blocks, values, kind, m if kind else None, _factor_structures(factor, kind))
        x, r, p, carry = None if from_zero else x0, b, None, None
        first, norms, saved = 0, [], []
        for count in _calls(values, m, b, iterations, checkpointed):
            store = learns and not checkpointed
            out = _raw(*fixed, x, r, p, carry, first, count, store)
            x, r, p, before, carry, history, scalars, residuals, directions = out
            norms.append(history)
            first += count
            if store:
                saved += [scalars, residuals, directions, r]
            elif learns and first < iterations:
                saved += [r, p, before, carry]
        axis = 0 if b.dim() == 1 else -2
        assert carry is not None
        status = carry[:, 4:].to(torch.int64).reshape(*b.shape[: max(b.dim() - 2, 0)], 2, *b.shape[1:][-1:])
        return x, norms[0] if len(norms) == 1 else torch.cat(norms, axis), status, *saved

    @staticmethod
    def setup_context(ctx, inputs, output):
        values, m, b, x0, *fixed = inputs
        ctx.fixed = tuple(fixed)
        ctx.outputs = len(output)
        ctx.mark_non_differentiable(*output[2:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(values, m, b, x0, output[1], *output[3:])

    @staticmethod
    def backward(ctx, gx, gnorms, *_):  # type: ignore[override]
        values, m, b, x0, norms, *saved = ctx.saved_tensors
        rest = (None,) * 7
        if gx is None and gnorms is None:
            return (None,) * 4 + rest
        needs = tuple(ctx.needs_input_grad[:4])
        given = [g for g in (gx, gnorms) if g is not None]
        fixed = ctx.fixed[:-1]
        if not torch.compiler.is_dynamo_compiling() and tracked(values, m, b, x0, *given):
            gx = torch.zeros_like(b) if gx is None else gx
            gnorms = torch.zeros_like(norms) if gnorms is None else gnorms
            grads = _PCGAdjointForwardMode.apply(values, m, b, x0, gx, gnorms, norms, fixed, *saved)
        else:
            grads = _adjoint(values, m, b, x0, gx, gnorms, norms, fixed, saved, needs)
        wanted = [g if needed else None for g, needed in zip(grads, needs, strict=True)]
        return (*wanted, *rest)

    @staticmethod
    def vmap(info, in_dims, values, m, b, x0, pattern, factor, kind, iterations, from_zero, checkpointed, _):
        def front(t, dim):
            return t if dim is None else t.movedim(dim, 0)

        v_dim, m_dim, b_dim, x_dim = in_dims[:4]
        inner = [t.dim() - (d is not None) for t, d in zip((values, m, b, x0), in_dims[:4], strict=True)]
        if inner[0] > 1 or inner[1] > 1 or inner[2] > 2:
            # A batch within the map: two batch axes are more than the kernel has.
            def unfused(v, m, b, x):
                return _unfused(v, m, b, x, pattern, factor, kind, iterations, from_zero)

            return vmapped(unfused, in_dims[:4], (values, m, b, x0))
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


class _PCGForwardMode(Eager, _PCG):
    @staticmethod
    def setup_context(ctx, inputs, output):
        _PCG.setup_context(ctx, inputs, output)
        keep_for_forward_mode(ctx, *inputs[:4])

    @staticmethod
    def jvp(ctx, *tangents):  # type: ignore[override]
        fixed = ctx.fixed[:5]
        out = _tangents(lambda *t: _unfused(*t, *fixed)[:2], ctx.saved_tensors[:4], tangents[:4])
        return (*out, *(None,) * (ctx.outputs - 2))


def _adjoint(values, m, b, x0, gx, gnorms, norms, fixed, saved, needs):
    pattern, factor, kind, iterations, from_zero, checkpointed = fixed
    ptr, idx, _, blocks = pattern._structure(False)
    preconditioner = (values, kind, m if kind else None, _factor_structures(factor, kind))
    both = (ptr, idx, blocks, *pattern._structure(True), *preconditioner)
    start = None if from_zero else x0
    axis = 0 if b.dim() == 1 else -2
    state: list[Tensor | None] = [None] * 5
    end = iterations
    calls = _calls(values, m, b, iterations, checkpointed)
    for j, count in reversed(list(enumerate(calls))):
        first, before = end - count, None
        if checkpointed:
            r, p, before, carry = saved[4 * (j - 1) : 4 * j] if j else (b, None, None, None)
            again = _raw(
                ptr, idx, blocks, *preconditioner, r if j else start, r, p, carry, first, count, True
            )
            last, scalars, residuals, directions = again[1], *again[6:]
        else:
            scalars, residuals, directions, last = saved[4 * j : 4 * j + 4]
            if j:
                before = saved[4 * j - 2][:, -1]
        at, rows = (first + 1, count) if j else (0, count + 1)
        history = norms.narrow(axis, at, rows)
        bars = None if gnorms is None else gnorms.narrow(axis, at, rows)
        *state, gx0 = _raw_backward(
            *both, start, residuals, directions, last, before, scalars, history, gx, bars, *state,
            needs[0], needs[1], needs[3] and not from_zero,
        )  # fmt: skip
        end = first
    rbar, _, _, gv, gm = state
    if kind == 3 and needs[1]:
        assert gm is not None
        gm = _only_read(gm.neg(), factor, _LOWER)
    return gv, gm, rbar, gx0


class _PCGAdjoint(torch.autograd.Function):
    """Gradients for (values, m, b, x0), as an operation that has derivatives itself."""

    @staticmethod
    def forward(values, m, b, x0, gx, gnorms, norms, fixed, *saved):
        return _adjoint(values, m, b, x0, gx, gnorms, norms, fixed, saved, (True,) * 4)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.fixed = inputs[7][:5]
        ctx.inputs = len(inputs)
        ctx.save_for_backward(*inputs[:6])

    @staticmethod
    def backward(ctx, *cotangents):  # type: ignore[override]
        _, pull = pullback(_unfused_adjoint(*ctx.fixed), *ctx.saved_tensors)
        return (*pull(cotangents), *(None,) * (ctx.inputs - 6))

    @staticmethod
    def vmap(info, in_dims, *args):
        return vmapped(_unfused_adjoint(*args[7][:5]), in_dims[:6], args[:6])


class _PCGAdjointForwardMode(Eager, _PCGAdjoint):
    @staticmethod
    def setup_context(ctx, inputs, output):
        _PCGAdjoint.setup_context(ctx, inputs, output)
        keep_for_forward_mode(ctx, *inputs[:6])

    @staticmethod
    def jvp(ctx, *tangents):  # type: ignore[override]
        return _tangents(_unfused_adjoint(*ctx.fixed), ctx.saved_tensors, tangents[:6])
