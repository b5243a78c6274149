"""Code shared by the differentiable operations.

Each operation is an `Operation` around one raw operator: with its derivatives as static methods. Two
`torch.autograd.Function`s are made from it, because `torch.compile` rejects a `jvp`. Derivatives of a
trilinear form

    Phi(t_0, t_1, t_2) = sum_b phi(t_0b, t_1b, t_2b),      linear in each,

where each operand has a batch axis b or is shared by the batch, are closed under differentiation: the
products of a matrix or a stencil with vectors, and of two sparse matrices.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import unwrap_if_dead
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from learnsolve import _library  # noqa: F401  (registers torch.ops.learnsolve)


class Nestable(torch.autograd.Function):
    """Base of all Functions with a `jvp`, which may itself be differentiated in forward mode.

    torch calls a `jvp` with forward mode turned off, because the saved tensors have the tangents of this
    level. Under torch.func the tangents of outer levels are lost with them, so forward mode is turned on
    here, for saved tensors without the tangents of this level, as in torch's own rules.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "jvp" in vars(cls):
            cls.jvp = staticmethod(_differentiable(cls.jvp))  # type: ignore[method-assign]


def _differentiable(jvp: Callable[..., object]) -> Callable[..., Any]:
    @wraps(jvp)
    def run_outer_levels(ctx: object, *tangents: object) -> Any:
        if not torch._C._are_functorch_transforms_active():  # one level
            return jvp(ctx, *tangents)
        with forward_ad._set_fwd_grad_enabled(True):
            return jvp(_PrimalContext(ctx), *tangents)

    return run_outer_levels


class _PrimalContext:
    """A context whose saved tensors have no tangents of this level."""

    def __init__(self, ctx):
        self.ctx = ctx

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ctx, name)

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        saved = self.ctx.saved_tensors
        return tuple(None if t is None else forward_ad.unpack_dual(t, level=0).primal for t in saved)


class Eager(Nestable):
    """Base of a Function that `torch.compile` does not trace: a faster `apply`.

    `torch.autograd.Function.apply` binds the arguments to the signature of `forward` in every call, to fill
    in defaults that no operation here has. This takes longer than the operator itself.
    """

    _apply: Callable[..., Any]  # `apply` of torch's base class, looked up once

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._apply = super(torch.autograd.Function, cls).apply  # type: ignore[misc]

    @classmethod
    def apply(cls, *args: object) -> Any:
        if torch._C._are_functorch_transforms_active():
            return super().apply(*args)  # type: ignore[misc]
        plain = [unwrap_if_dead(arg) if isinstance(arg, Tensor) else arg for arg in args]
        return cls._apply(*plain)


class Operation:
    """A differentiable operation: base of classes with the static methods `forward`, `backward`, `jvp`,
    `vmap` and perhaps `setup_context` of a `torch.autograd.Function`.

    `forward` takes `operands` tensors, then constants. By default, several operands become
    `ctx.saved_tensors`. The constants become `ctx.constants`. Tensors saved for `backward` are available to
    `jvp` too.

    `eager` is the Function with all of them; `traced`, for `torch.compile`, is the Function without `jvp`.
    """

    operands = 1
    eager: Any
    traced: Any

    def __init_subclass__(cls) -> None:
        names = ("forward", "setup_context", "backward", "jvp", "vmap")
        members: dict[str, Any] = {n: staticmethod(getattr(cls, n)) for n in names if hasattr(cls, n)}
        own = members.get("setup_context")
        for_both = _keeps(cls.operands, True) if own is None else _keeps_for_both(own)
        both = {**members, "setup_context": staticmethod(for_both)}
        members.setdefault("setup_context", staticmethod(_keeps(cls.operands, False)))
        cls.eager = type(cls.__name__, (Eager,), both)
        members.pop("jvp", None)
        cls.traced = type(cls.__name__, (torch.autograd.Function,), members)


def _keeps(operands: int, both: bool) -> Callable[[Any, tuple, Any], None]:
    """The default setup. With `both` it does the same as `_keeps_for_both`, in one call."""

    def setup_context(ctx, inputs: tuple, output: object) -> None:
        if operands > 1:
            ctx.save_for_backward(*inputs[:operands])
            if both and forward_mode_may_come():
                ctx.save_for_forward(*inputs[:operands])
        ctx.constants = inputs[operands:]

    return setup_context


def _keeps_for_both(setup: Callable[[Any, tuple, Any], None]) -> Callable[[Any, tuple, Any], None]:
    """`setup` that also saves its tensors for `jvp` if forward mode may follow."""

    def setup_context(ctx, inputs: tuple, output: object) -> None:
        setup(ctx, inputs, output)
        if forward_mode_may_come():
            ctx.save_for_forward(*(ctx.to_save or ()))

    return setup_context


class Multilinear(Operation):
    """Linear in each of its operands: the derivative along a tangent is the operation itself, with the
    tangent in place of the operand."""

    @classmethod
    def jvp(cls, ctx, *tangents: Any) -> Tensor | None:
        kept: tuple = ctx.saved_tensors or (None,)
        along = (
            dispatch(cls, (*kept[:i], t, *kept[i + 1 :]), *ctx.constants)
            for i, t in enumerate(tangents[: cls.operands])
            if t is not None
        )
        return add(*along)


class OfLastAxes(Multilinear):
    """Linear in one tensor, along axes that are counted from the last one: a mapped axis goes first."""

    @classmethod
    def vmap(cls, info: object, in_dims: tuple, values: Tensor, *constants: object) -> tuple[Tensor, int]:
        return dispatch(cls, (values.movedim(in_dims[0], 0),), *constants), 0


class LinearSolve(Operation):
    """x = M(p)^-1 b for a matrix M that is linear in p: forward(p, b, *constants). p and x are saved, and a
    subclass has times(p, x, *constants) = M(p) x, so that dx = M(p)^-1 (db - M(dp) x)."""

    operands = 2
    times: Callable[..., Tensor]

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: object) -> None:
        ctx.save_for_backward(inputs[0], output)
        ctx.constants = inputs[2:]

    @classmethod
    def jvp(cls, ctx, tp: Tensor | None, tb: Tensor | None, *_: object) -> Tensor:
        p, x = ctx.saved_tensors
        by_p = None if tp is None else -cls.times(tp, x, *ctx.constants)
        return dispatch(cls, (p, add(tb, by_p)), *ctx.constants)  # type: ignore[arg-type]


def needs_graph(*tensors: Tensor) -> bool:
    """Whether autograd or a functorch transform tracks this call. If not, the raw operator suffices. No
    transform tracks `plain_tensors`."""
    if torch.is_grad_enabled():
        for t in tensors:
            if t.requires_grad:
                return True
    return forward_mode_may_come() and not _excluded(_FRONT)


def dispatch(operation: Any, tensors: tuple[Tensor, ...], *constants: Any) -> Any:
    """Run one operation through the Function that this call needs: `traced` while `torch.compile` traces,
    `eager` if autograd or a functorch transform tracks the call, and otherwise only its `forward`."""
    if torch.compiler.is_dynamo_compiling():
        return operation.traced.apply(*distinct(*tensors), *constants)
    if needs_graph(*tensors):
        return operation.eager.apply(*tensors, *constants)
    return operation.forward(*tensors, *constants)


def distinct(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The same tensors, with a view in place of a repeated one: Dynamo (torch 2.13) rejects a Function that
    is called with the same tensor twice."""
    out: list[Tensor] = []
    for t in tensors:
        again = False
        for o in out:
            again = again or o is t
        out.append(t.view_as(t) if again else t)
    return tuple(out)


_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
_FRONT = torch._C.DispatchKey.FuncTorchDynamicLayerFrontMode


def forward_mode_may_come() -> bool:
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def keep_for_forward_mode(ctx, *tensors: Tensor) -> None:
    """`save_for_forward`, which takes time, only if forward mode or a functorch transform is active."""
    if forward_mode_may_come():
        ctx.save_for_forward(*tensors)


def apply_vmap(function: Callable, in_dims: tuple, args: tuple) -> tuple[Any, Any]:
    """A vmap rule by composition: map `function`, made of public operations, over `args`."""
    out = torch.vmap(function, in_dims=in_dims, out_dims=0)(*args)
    return out, tuple(0 for _ in out) if isinstance(out, tuple) else 0


def pullback(function: Callable, *primals: object) -> tuple[Any, Callable]:
    """`torch.func.vjp` without auxiliary output, also of what a backward pass saved at a level that has
    ended."""
    out, pull = torch.func.vjp(function, *tree_map_only(Tensor, unwrap_if_dead, primals))[:2]
    return out, pull


def pushforward(function: Callable, primals: tuple, tangents: tuple) -> tuple:
    """The tangents of function(*primals), a tuple. A tangent may be None. Computed as the transpose of the
    transpose, since torch does not nest the forward mode of `torch.autograd`, where a jvp may run."""
    tangents = tuple(torch.zeros_like(p) if t is None else t for p, t in zip(primals, tangents, strict=True))
    out, pull = pullback(function, *primals)
    _, push = pullback(pull, tuple(torch.zeros_like(o) for o in out))
    return push(tangents)[0]


def add(*terms: Tensor | None) -> Tensor | None:
    """The sum of the terms that are not None."""
    total = None
    for t in terms:
        if t is not None:
            total = t if total is None else total + t
    return total


# D_r is the derivative by operand r, at the other two, in their order; for a cotangent h of D_r, which
# takes the place of operand r, the gradients are D_p and D_q again. Every `backward` names its class:
# Dynamo (torch 2.13) takes a class for a Function only if it finds it by a name.


# The operands of D_0, D_1 and D_2.
OTHERS = ((1, 2), (0, 2), (0, 1))


class Derivative(Multilinear):
    """D_role(u, v), summed over the batch if `shared`: a subclass has `forward(u, v, role, shared, *form)`
    for at most one batch axis, `backward`, which is `gradients`, and `axes`."""

    operands = 2

    @staticmethod
    def axes(role: int, *form: object) -> int:
        """How many axes an operand has besides those of batches. A vector may lack the last of them."""
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
        return apply_vmap(
            lambda *t: separate_gradients(cls.derivative, *t, *constants), in_dims[:3], (u, v, h)
        )


def broadcast(of: type[Derivative], role: int, u: Tensor, v: Tensor, *form: object) -> Tensor:
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
    of: type[Derivative], role: int, h: Tensor, place: int, other: Tensor, like: Tensor, *form: object
) -> Tensor:
    """D_role at h, in the place of operand `place`, and the third operand, in the shape of `like`."""
    third = 3 - role - place
    u, v = (h, other) if place < third else (other, h)
    shared = like.dim() <= of.axes(role, *form) and (
        h.dim() > of.axes(place, *form) or other.dim() > of.axes(third, *form)
    )
    out = dispatch(of, (u, v), role, shared, *form)
    return out if out.shape == like.shape else out.expand(like.shape)


def gradients(of: type[Derivative], ctx, h: Tensor, saved: tuple[Tensor, Tensor] | None = None) -> tuple:
    """The `backward` of a derivative. `saved`: ctx.saved_tensors, which checkpoints allow to read once."""
    u, v = ctx.saved_tensors if saved is None else saved
    role, _, *form = ctx.constants
    p, q = OTHERS[role]
    need_u, need_v = ctx.needs_input_grad[:2]
    gu = gradient(of, p, h, role, v, u, *form) if need_u else None
    gv = gradient(of, q, h, role, u, v, *form) if need_v else None
    return gu, gv, *(None for _ in ctx.constants)


def separate_gradients(
    of: type[Derivative], u: Tensor, v: Tensor, h: Tensor, role: int, *form: object
) -> tuple:
    """What `Gradients` computes, by two operations."""
    p, q = OTHERS[role]
    return gradient(of, p, h, role, v, u, *form), gradient(of, q, h, role, u, v, *form)


def gradients_of_both(of: type[Derivative], ctx, hu: Tensor | None, hv: Tensor | None) -> tuple:
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


# Batched gradients (`is_grads_batched=True`) of operators that take lists of tensors: one call per member.
# torch loops by itself for operators without lists, and the operations have vmap rules for torch.func.


_torch: Any = torch  # its functions for batches are private
_functorch: Any = torch._C._functorch  # type: ignore[attr-defined]
_rules = torch.library.Library("learnsolve", "IMPL")


class _Members:
    """A tensor with the batch axis first, of size 1 if it has none at this level."""

    def __init__(self, t: Tensor):
        self.t = t

    def __getitem__(self, i: int) -> Tensor:
        return self.t[min(i, len(self.t) - 1)]


def _is_legacy_batch(t: object) -> bool:
    return isinstance(t, Tensor) and _functorch.is_legacy_batchedtensor(t)


def _level(args: object) -> int:
    """The innermost batch level. The backward pass of CUDA tensors runs on a thread without this information,
    so it is read from the tensors: a tensor without an axis at a level gets one, here of size 0."""
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    if level > 0:
        return level
    given = [t for t in tree_leaves(args) if _is_legacy_batch(t)]
    return next(n for n in range(64, 0, -1) for t in given if len(_torch._remove_batch_dim(t, n, 0, 0)))


def _rule(operator: Any) -> Any:
    def loop(*args: object) -> Any:
        level = _level(args)

        def members(t: object) -> Any:
            return _Members(_torch._remove_batch_dim(t, level, 1, 0)) if _is_legacy_batch(t) else t

        def member(t: object, i: int) -> Any:
            return t[i] if isinstance(t, _Members) else t

        args = tree_map(members, args)
        count = max(len(t.t) for t in tree_leaves(args) if isinstance(t, _Members))
        results = [operator(*tree_map(lambda t: member(t, i), args)) for i in range(count)]  # noqa: B023
        if isinstance(results[0], Tensor):
            return _torch._add_batch_dim(torch.stack(results), 0, level)
        return tuple(_torch._add_batch_dim(torch.stack(t), 0, level) for t in zip(*results, strict=True))

    return loop


for _name in torch._C._dispatch_get_all_op_names():
    if _name.startswith("learnsolve::"):
        _operator = getattr(torch.ops.learnsolve, _name.removeprefix("learnsolve::")).default
        if any("List[Tensor]" in str(a.type) for a in _operator._schema.arguments):
            _rules.impl(_operator, _rule(_operator), "Batched")


# Shapes of the raw operators' results, for `torch.compile` and meta tensors (csrc/ops/schema.cpp), if
# several files use an operator; the others are next to their operation.


@torch.library.register_fake("learnsolve::csr_spmm")
def _(ptr, idx, perm, blocks, values, x, sum_batch=False, conjugate=False):
    m = ptr.shape[0] - 1
    if x.dim() == 1 and values.dim() == 1:
        return values.new_empty(m)
    k = 1 if x.dim() == 1 else x.shape[-1]
    if sum_batch or (x.dim() < 3 and values.dim() == 1):
        return values.new_empty(m, k)
    batch = values.shape[0] if values.dim() == 2 else 1
    return values.new_empty(x.shape[0] if x.dim() == 3 and batch == 1 else batch, m, k)


@torch.library.register_fake("learnsolve::csr_sddmm")
def _(ptr, idx, blocks, u, v, sum_batch=False, conjugate=0):
    nnz = idx.shape[0]
    if sum_batch or (u.dim() < 3 and v.dim() < 3):
        return u.new_empty(nnz)
    u_batch = u.shape[0] if u.dim() == 3 else 1
    return u.new_empty(v.shape[0] if v.dim() == 3 and u_batch == 1 else u_batch, nnz)


@torch.library.register_fake("learnsolve::csr_spmm_backward")
def _(ptr, idx, perm, blocks, crow, col, row_blocks, values, g, x):
    return values.new_empty(values.shape), values.new_empty(x.shape)


@torch.library.register_fake("learnsolve::csr_spmv_scatter_backward")
def _(ptr, idx, blocks, values, g, x, need_values, need_x):
    return values.new_empty(values.shape if need_values else (0,)), x.new_empty(x.shape if need_x else (0,))


@torch.library.register_fake("learnsolve::csr_richardson")
def _(A, values, scale, momentum, b, x0, before, iterations, stride):
    saved = -(-iterations // stride) if stride > 0 else 0
    if momentum is not None and stride > 1:
        saved *= 2
    batch, k = b.shape[: b.dim() - 2] if b.dim() == 3 else b.shape[:0], b.shape[-1:] if b.dim() > 1 else ()
    n = b.shape[-2] if b.dim() > 1 else b.shape[0]
    return (
        b.new_empty(b.shape),
        b.new_empty((*batch, iterations, *k)),
        b.new_empty((*batch, saved, n, *k)),
        b.new_empty(b.shape if momentum is not None and stride == 0 else (0,)),
    )


@torch.library.register_fake("learnsolve::csr_richardson_backward")
def _(A, At, values, scale, momentum, b, before, kept, cotangents, iterations, stride, needs):
    def like(t, needed):
        return values.new_empty(t.shape if needed and t is not None else (0,))

    need_values, need_scale, need_momentum, need_b, need_x0 = needs
    return (
        like(values, need_values),
        like(scale, need_scale),
        like(momentum, need_momentum),
        like(b, need_b),
        b.new_empty(b.shape),
        like(before, need_x0 and momentum is not None),
    )


def _factor_entries(plan: list[Tensor], cholesky: bool) -> int:
    if len(plan) == 6:  # complete fill
        return plan[1].shape[0] * (1 if cholesky else 2)
    order, units = plan[0], plan[5]
    return order.shape[0] + units.shape[0]


@torch.library.register_fake("learnsolve::csr_incomplete_factor")
def _(plan, cholesky, crow, values, check):
    batch = values.shape[:-1]
    return values.new_empty(*batch, _factor_entries(plan, cholesky)), values.new_empty(
        *batch, 2, dtype=torch.float64
    )


@torch.library.register_fake("learnsolve::csr_incomplete_tangent")
@torch.library.register_fake("learnsolve::csr_incomplete_product_adjoint")
def _(plan, cholesky, x, w):
    return x.new_empty(*x.shape[:-1], _factor_entries(plan, cholesky))


@torch.library.register_fake("learnsolve::csr_incomplete_adjoint")
@torch.library.register_fake("learnsolve::csr_incomplete_product")
def _(plan, cholesky, x, z, nnz):
    return x.new_empty(*x.shape[:-1], nnz)


def _contraction(u: Tensor, v: Tensor, nnz: int, sum_batch: bool) -> Tensor:
    if sum_batch or (u.dim() == 1 and v.dim() == 1):
        return u.new_empty(nnz)
    batch = u.shape[0] if u.dim() == 2 else 1
    return u.new_empty(v.shape[0] if v.dim() == 2 and batch == 1 else batch, nnz)


@torch.library.register_fake("learnsolve::csr_spgemm")
def _(plan, masked, columns, a, b, sum_batch=False):
    return _contraction(a, b, plan[6].shape[0], sum_batch)


@torch.library.register_fake("learnsolve::csr_spgemm_left")
def _(plan, masked, columns, g, b, sum_batch=False):
    return _contraction(g, b, plan[1].shape[0], sum_batch)


@torch.library.register_fake("learnsolve::csr_spgemm_right")
def _(plan, masked, a, g, sum_batch=False):
    return _contraction(a, g, plan[4].shape[0], sum_batch)


@torch.library.register_fake("learnsolve::csr_spgemm_backward")
def _(plan, masked, a, b, g):
    return a.new_empty(a.shape), b.new_empty(b.shape)


@torch.library.register_fake("learnsolve::csr_sptrsv")
def _(triangle, upper, unit, values, b):
    return b.new_empty(b.shape)


@torch.library.register_fake("learnsolve::csr_sptrsv_backward")
def _(triangle, upper, unit, rows, transpose, values, g, x):
    return values.new_empty(values.shape), g.new_empty(g.shape)


@torch.library.register_fake("learnsolve::csr_pcg")
def _(A, values, kind, M, x, r, state, target, first, iterations, store):
    begins = len(state) == 0
    batch, k = (r.shape[0] if r.dim() == 3 else 1), (r.shape[-1] if r.dim() > 1 else 1)
    n, saved = r.shape[max(r.dim() - 2, 0)], iterations if store else 0
    columns = r.shape[-1:] if r.dim() > 1 else ()
    return (
        r.new_empty(r.shape),
        r.new_empty(r.shape),
        r.new_empty(r.shape),
        r.new_empty((0,) if store else r.shape),
        r.new_empty((batch, 6, k)),
        r.new_empty((*r.shape[: max(r.dim() - 2, 0)], iterations + begins, *columns)),
        r.new_empty((batch, iterations, 3, k)),
        r.new_empty((batch, saved, n, k)),
        r.new_empty((batch, saved, n, k)),
    )


@torch.library.register_fake("learnsolve::csr_pcg_backward")
def _(A, transpose, values, kind, M, x0, forward, gx, gnorms, sums, needs):
    _, _, last, scalars, _, *before = forward
    batch, k = scalars.shape[0], scalars.shape[-1]
    return (
        last.new_empty(last.shape),
        last.new_empty(last.shape),
        last.new_empty((batch, 3, k)),
        values.new_empty(values.shape if needs[0] else (0,)),
        values.new_empty(M[0].shape if needs[1] and M else (0,)),
        last.new_empty(last.shape if needs[2] and not before else (0,)),
    )
