"""The derivatives of a trilinear form, differentiable to any order: the core of the products of a matrix
or a stencil with vectors, and of two sparse matrices.

    Phi(t_0, t_1, t_2) = sum_b phi(t_0b, t_1b, t_2b),      linear in each,

where each operand has a batch axis b or is shared by the batch. D_r is the derivative by operand r, at the
other two, in their order; that for a shared operand is summed over the batch. The set is closed: for a
cotangent h of D_r, which takes the place of operand r, the gradients are D_p and D_q again.

Functions here take the `Derivative` as their first argument, and every `backward` names its class: Dynamo
(torch 2.13) takes a class for a Function only if it finds it by a name.
"""

from typing import Any

import torch
from torch import Tensor

from learnsolve.ops.core.autograd import Multilinear, Operation, add, dispatch, vmapped

# The operands of D_0, D_1 and D_2.
OTHERS = ((1, 2), (0, 2), (0, 1))


class Derivative(Multilinear):
    """D_role(u, v), summed over the batch if `shared`: a subclass has `forward(u, v, role, shared, *form)`
    for at most one batch axis, `backward`, which is `gradients`, and `axes`."""

    operands = 2

    @staticmethod
    def axes(role: int, *form: Any) -> int:
        """How many axes an operand has besides those of batches; a vector may lack the last of them."""
        raise NotImplementedError

    @classmethod
    def vmap(cls, info, in_dims, u, v, role, shared, *form):
        laid_out, batched, vector = [], False, False
        for t, dim, operand in zip((u, v), in_dims[:2], OTHERS[role], strict=True):
            axes = cls.axes(operand, *form)
            t = t.unsqueeze(0) if dim is None else t.movedim(dim, 0)
            if t.dim() == axes:
                t, vector = t.unsqueeze(-1), True
            batched = batched or t.dim() == axes + 2
            laid_out.append(t if t.dim() == axes + 2 else t.unsqueeze(1))  # (map or 1, batch or 1, ...)
        out = broadcast(cls, role, *laid_out, *form)
        out = out.squeeze(-1) if vector and cls.axes(role, *form) > 1 else out
        out = out.sum(1) if shared and batched else out if batched else out.squeeze(1)
        return out.expand((info.batch_size, *out.shape[1:])), 0


class Gradients(Operation):
    """(D_p(h, v), D_q(h, u)) for the cotangent h of D_role(u, v), in the shapes of u and v, in one pass:
    a subclass has `derivative`, `forward(u, v, h, role, *form)` and `backward`, `gradients_of_both`."""

    operands = 3
    derivative: type[Derivative]

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:3])
        ctx.constants = inputs[3:]
        ctx.set_materialize_grads(False)

    @classmethod
    def jvp(cls, ctx, tu, tv, th, *_):
        u, v, h = ctx.saved_tensors
        role, *form = ctx.constants
        (p, q), of = OTHERS[role], cls.derivative
        gu = add(
            None if th is None else gradient(of, p, th, role, v, u, *form),
            None if tv is None else gradient(of, p, tv, q, h, u, *form),
        )
        gv = add(
            None if tu is None else gradient(of, q, tu, p, h, v, *form),
            None if th is None else gradient(of, q, th, role, u, v, *form),
        )
        return torch.zeros_like(u) if gu is None else gu, torch.zeros_like(v) if gv is None else gv

    @classmethod
    def vmap(cls, info, in_dims, u, v, h, *constants):
        return vmapped(lambda *t: apart(cls.derivative, *t, *constants), in_dims[:3], (u, v, h))


def broadcast(of: type[Derivative], role: int, u: Tensor, v: Tensor, *form: Any) -> Tensor:
    """D_role(u, v) for any batch axes, which are brought to the one of the kernels."""
    p, q = (of.axes(operand, *form) for operand in OTHERS[role])
    batch = torch.broadcast_shapes(u.shape[: u.dim() - p], v.shape[: v.dim() - q])
    out = dispatch(of, (one_batch_axis(u, batch, p), one_batch_axis(v, batch, q)), role, False, *form)
    return out.reshape(batch + out.shape[out.dim() - of.axes(role, *form) :])


def one_batch_axis(t: Tensor, batch: torch.Size, inner: int) -> Tensor:
    """`t` without batch axes if it is shared by the whole batch, else with one."""
    tail = t.shape[t.dim() - inner :]
    if t.shape[: t.dim() - inner].numel() == 1 and batch.numel() != 1:
        return t.reshape(tail)
    return t.expand(batch + tail).reshape((batch.numel(), *tail))


def gradient(
    of: type[Derivative], role: int, h: Tensor, place: int, other: Tensor, like: Tensor, *form: Any
) -> Tensor:
    """D_role at h, in the place of operand `place`, and the third operand; in the shape of `like`."""
    third = 3 - role - place
    u, v = (h, other) if place < third else (other, h)
    shared = like.dim() <= of.axes(role, *form) and (
        h.dim() > of.axes(place, *form) or other.dim() > of.axes(third, *form)
    )
    out = dispatch(of, (u, v), role, shared, *form)
    return out if out.shape == like.shape else out.expand(like.shape)


def gradients(of: type[Derivative], ctx: Any, h: Tensor, saved: tuple[Tensor, Tensor] | None = None) -> tuple:
    """The `backward` of a derivative. `saved`: ctx.saved_tensors, which checkpoints allow to read once."""
    u, v = ctx.saved_tensors if saved is None else saved
    role, _, *form = ctx.constants
    p, q = OTHERS[role]
    need_u, need_v = ctx.needs_input_grad[:2]
    gu = gradient(of, p, h, role, v, u, *form) if need_u else None
    gv = gradient(of, q, h, role, u, v, *form) if need_v else None
    return gu, gv, *(None for _ in ctx.constants)


def apart(of: type[Derivative], u: Tensor, v: Tensor, h: Tensor, role: int, *form: Any) -> tuple:
    """What `Gradients` computes, by two operations."""
    p, q = OTHERS[role]
    return gradient(of, p, h, role, v, u, *form), gradient(of, q, h, role, u, v, *form)


def gradients_of_both(of: type[Derivative], ctx: Any, hu: Tensor | None, hv: Tensor | None) -> tuple:
    """The `backward` of `Gradients`: the derivatives of Phi with hu for u, plus Phi with hv for v."""
    u, v, h = ctx.saved_tensors
    role, *form = ctx.constants
    p, q = OTHERS[role]
    need_u, need_v, need_h = ctx.needs_input_grad[:3]
    ru = rv = rh = None
    if need_u and hv is not None:
        ru = gradient(of, p, hv, q, h, u, *form)
    if need_v and hu is not None:
        rv = gradient(of, q, hu, p, h, v, *form)
    if need_h:
        rh = add(
            None if hu is None else gradient(of, role, hu, p, v, h, *form),
            None if hv is None else gradient(of, role, hv, q, u, h, *form),
        )
    return ru, rv, rh, *(None for _ in ctx.constants)
