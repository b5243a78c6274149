"""A residual as a function of tensors, the linear solves of its Jacobian, and the derivatives of its root."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._autograd import (
    _pop_saved_tensors_default_hooks,
    _push_saved_tensors_default_hooks,
    _top_saved_tensors_default_hooks,
)
from torch._C._functorch import is_functorch_wrapped_tensor, unwrap_if_dead
from torch.nn import Module
from torch.utils import _pytree as pytree

from learnsolve.matrix import checks
from learnsolve.matrix.cache import run_as_operation, sample, transformations, version
from learnsolve.matrix.checks import full_precision
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.nonlinear._pattern import translate_errors
from learnsolve.ops.arithmetic import add
from learnsolve.ops.autograd import Nestable, keep_for_forward_mode, pullback, pushforward
from learnsolve.ops.blocks import eye
from learnsolve.ops.operators import LinearOperator
from learnsolve.ops.structure import symmetry
from learnsolve.preconditioners import AMG, factorize
from learnsolve.solvers import automatic
from learnsolve.solvers.core.loop import quiet
from learnsolve.solvers.krylov import bicgstab, cg, gmres, minres
from learnsolve.solvers.solution import CODE, Solution, Status, worst


def if_alike(y: object, u: Tensor, made: Callable[[Tensor], Tensor]) -> Any:
    """made(y), or y if it is not like u, so that an error names the result of f, not a later failure."""
    return made(y) if isinstance(y, Tensor) and (y.shape, y.dtype) == (u.shape, u.dtype) else y


class Arguments:
    """All tensors of args: the leaves of its pytree (a CSR is one), and the parameters of modules in it, or
    of f, if it is a module or the method of one."""

    def __init__(self, f: object, args: tuple):
        self.leaves, self.spec = pytree.tree_flatten(list(args))
        owners = (f, getattr(f, "__self__", None), *self.leaves)
        parts = {id(m): m for owner in owners if isinstance(owner, Module) for m in owner.modules()}
        named = [(m, name, p) for m in parts.values() for name, p in m._parameters.items() if p is not None]
        parameters = list({id(p): p for *_, p in named}.values())
        places = {id(p): i for i, p in enumerate(parameters)}
        # Each place where a module holds a parameter, once, by whatever path the module is reached.
        self.held = [(m._parameters, name, places[id(p)]) for m, name, p in named]
        self.count = len(parameters)
        self.at = [i for i, leaf in enumerate(self.leaves) if isinstance(leaf, Tensor)]
        self.tensors: tuple[Tensor, ...] = (*parameters, *(self.leaves[i] for i in self.at))

    def bind(self, f: Callable, name: str) -> Callable[..., Any]:
        """f as a function of u and the tensors, for the solver of this name."""

        def call(u: Tensor, *tensors: Tensor) -> Any:
            leaves = list(self.leaves)
            for i, t in zip(self.at, tensors[self.count :], strict=True):
                leaves[i] = t
            args = pytree.tree_unflatten(leaves, self.spec)
            with translate_errors(name), self.holding(tensors):
                return f(u, *args)

        return call

    @contextmanager
    def holding(self, tensors: tuple[Tensor, ...]) -> Iterator[None]:
        """The modules have these tensors for parameters. Not by torch's `functional_call`, which leaves its
        tensors in a module that it reaches twice."""
        before = [parameters[name] for parameters, name, _ in self.held]
        try:
            for parameters, name, i in self.held:
                parameters[name] = tensors[i]  # type: ignore[assignment]
            yield
        finally:
            for (parameters, name, _), p in zip(self.held, before, strict=True):
                parameters[name] = p


class Residual:
    """f of u and tensors, and its Jacobian if assembled, for one system, or for the systems along the leading
    `levels` axes of u, one vmap each."""

    def __init__(
        self,
        name: str,
        call: Callable[..., Tensor],
        jacobian: Any = None,
        levels: int = 0,
        words: str = "f u",
    ):
        self.name, self.call, self.jacobian, self.levels = name, call, jacobian, levels
        self.words = words  # for messages: the names of the function and of the unknowns
        self.trusted = False  # whether it was checked before
        self.axes: tuple[tuple[int | None, ...], ...] = ()  # dims of the tensors, for each level

    def __call__(self, u: Tensor, *tensors: Tensor) -> Tensor:
        return self.call(u, *tensors)

    def add_batch_axis(self, dims: tuple[int | None, ...]) -> Residual:
        """The residual over a new first axis of u, and of the tensors whose dims is 0."""
        jacobian = None if self.jacobian is None else self.jacobian.add_batch_axis(dims)
        other = Residual(self.name, torch.vmap(self.call, (0, *dims)), jacobian, self.levels + 1, self.words)
        other.trusted, other.axes = self.trusted, (dims, *self.axes)
        return other

    def alone(self, u: Tensor, tensors: tuple[Tensor, ...]) -> None:
        """Check that f, and a user's Jacobian, use no other tensors that torch.func or forward mode
        transforms. This shows only where the solve is called, and only if the arguments are plain."""
        u, tensors = sample(u), tuple(sample(t) for t in tensors)
        f, v = self.words.split()
        calls = {f: self.call}
        if self.jacobian is not None and self.jacobian.users:
            calls["jacobian"] = self.jacobian.values
        for function, call in calls.items():
            y = call(u, *tensors)
            if isinstance(y, Tensor) and transformations(y):
                raise ValueError(
                    f"{self.name}: {function} uses a tensor that torch.func transforms (vmap, grad, jvp), or "
                    "forward mode, and that is not among its arguments. Pass it, "
                    f"{function}({v}, *args)"
                )

    def first(self, u: Tensor, tensors: tuple[Tensor, ...], square: bool) -> Tensor:
        """f(u), checked: its shape, dtype and values, and whether f is a function of u and args only."""
        name, (f, v) = self.name, self.words.split()
        u, tensors = u.detach(), tuple(t.detach() for t in tensors)
        before = [version(t) for t in (u, *tensors)]
        with torch.enable_grad():
            r = self(u, *tensors)
        if not isinstance(r, Tensor):
            raise TypeError(f"{name}: {f}({v}, *args) must return a torch.Tensor, got {type(r).__name__}")
        changed = [i for i, t in enumerate((u, *tensors)) if version(t) != before[i]]
        if changed:
            what = v if changed[0] == 0 else "one of args"
            raise ValueError(f"{name}: {f} changes {what} in place. Let it work on a copy, {what}.clone()")
        if r.requires_grad:
            raise ValueError(
                f"{name}: {f} uses a tensor that requires grad and that is not among its arguments, so it "
                f"would get no right gradient. Pass it, {f}({v}, *args), or detach it. For derivatives in "
                f"{f} use torch.func.grad, not requires_grad_()"
            )
        if square and r.shape != u.shape:
            shapes = (tuple(t.shape[self.levels :]) for t in (u, r))
            raise ValueError(
                f"{name}: {f}({v}, *args) must have the shape of {v}, {next(shapes)}, as many equations as "
                f"unknowns, got {next(shapes)}. least_squares takes any number of equations"
            )
        if r.dtype != u.dtype or r.device != u.device:
            raise TypeError(
                f"{name}: {f}({v}, *args) must have dtype and device of {v}, {u.dtype} on {u.device}, got "
                f"{r.dtype} on {r.device}. Convert args, or {v}0, with .to()"
            )
        if not bool(torch.isfinite(r).flatten(self.levels).all(-1).any()):  # of a batch all systems
            bad = int((~torch.isfinite(r)).sum())
            raise ValueError(
                f"{name}: {f}({v}0, *args) must be finite, got {bad} of {r.numel()} entries that are not. "
                f"Start from another {v}0, or check args"
            )
        with torch.no_grad():
            if not self.trusted and not torch.equal(*(t.nan_to_num() for t in (r, self(u, *tensors)))):
                raise ValueError(
                    f"{name}: {f}({v}0, *args) gave other numbers when it was called again. A solve needs a "
                    "function: draw random numbers outside and pass them, and put modules with dropout in "
                    "eval()"
                )
        return r

    def assembled(self, u: Tensor, tensors: tuple[Tensor, ...]) -> bool:
        """Is the Jacobian a CSR? Found out when one is first asked for."""
        if self.jacobian is not None:
            self.jacobian.prepare(u, tensors)
        return self.jacobian is not None and self.jacobian.known


class MatrixJacobian:
    """The values of the Jacobian on its pattern, from a function of u and the tensors that returns a CSR:
    `call`, or the result of `find`(u, *tensors) for the first u, which is None if only products with the
    Jacobian should be used."""

    def __init__(
        self,
        name: str,
        call: Callable[..., Any] | None,
        find: Callable[..., object] | None = None,
        users: bool = False,
    ):
        self.name, self.find = name, find
        self.users = users  # whether a user wrote `call`
        self.call: Any = call
        self.pattern: SparsityPattern | None = None

    def values(self, u: Tensor, *tensors: Tensor) -> Tensor:
        J = self.call(u, *tensors)
        checks.matrix(self.name, "the result of jacobian(u, *args)", J)
        self.pattern = J.pattern
        return J.values

    def prepare(self, u: Tensor, tensors: tuple[Tensor, ...]) -> None:
        if self.find is not None:
            self.call, self.find = self.find(u, *tensors), None

    @property
    def known(self) -> bool:
        return self.call is not None

    def add_batch_axis(self, dims: tuple[int | None, ...]) -> MatrixJacobian:
        return _VmapJacobian(self, dims)


class _VmapJacobian(MatrixJacobian):
    """The Jacobian over a new first axis."""

    def __init__(self, inner: MatrixJacobian, dims: tuple[int | None, ...]):
        self.inner, self.dims = inner, dims

    def values(self, u: Tensor, *tensors: Tensor) -> Tensor:
        return torch.vmap(self.inner.values, (0, *self.dims))(u, *tensors)

    def prepare(self, u: Tensor, tensors: tuple[Tensor, ...]) -> None:
        one = (t if dim is None else t[0] for t, dim in zip(tensors, self.dims, strict=True))
        self.inner.prepare(u[0], tuple(one))

    @property
    def known(self) -> bool:
        return self.inner.known

    @property
    def pattern(self) -> SparsityPattern | None:  # type: ignore[override]
        return self.inner.pattern


# Derivatives of the solution of F(x, *p) = 0, however it was found.
#
# With J the derivative of F for x, and lambda = J^-T xbar,
#
#     pbar = -(dF/dp)^T lambda,    in forward mode dx = -J^-1 (dF/dp) dp.
#
# lambda solves a linear equation of the same kind, J(x, p)^T lambda - xbar = 0, whose derivatives come from
# the same rule, to all orders. J itself is only solved with, as a constant; only its products are
# differentiated.


class LoopResult(NamedTuple):
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

    def find(self, x0: Tensor | None, *p: Tensor) -> LoopResult:
        raise NotImplementedError

    def solve(self, x: Tensor, p: tuple[Tensor, ...], b: Tensor, transpose: bool) -> LoopResult:
        raise NotImplementedError

    def add_batch_axis(self, dims: tuple[int | None, ...]) -> Rule:
        raise NotImplementedError

    def release(self) -> None:
        """Keep no matrix, now or after a `solve`."""

    def replace_failures(
        self, g: Tensor, codes: Tensor, x: Tensor, p: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """x and p where derivatives of F are computed, for the cotangent g."""
        return x, p


@dataclass(frozen=True, eq=False)
class LinearizedRule(Rule):
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

    def find(self, x0: Tensor | None, *parameters: Tensor) -> LoopResult:
        b, x, *p = parameters
        return self.rule.solve(x, tuple(p), b, self.transpose)

    def solve(self, x: Tensor, p: tuple[Tensor, ...], b: Tensor, transpose: bool) -> LoopResult:
        return self.rule.solve(p[1], p[2:], b, self.transpose != transpose)

    def add_batch_axis(self, dims: tuple[int | None, ...]) -> LinearizedRule:
        return replace(self, rule=self.rule.add_batch_axis(dims[2:]))


def linear_solve(rule: Rule, x: Tensor, p: tuple[Tensor, ...], b: Tensor, transpose: bool) -> Tensor:
    """J(x, p)^-1 b, differentiable in all of them."""
    return Implicit.apply(LinearizedRule(rule, transpose), None, b, x, *p)[0]  # type: ignore[index]


class Implicit(Nestable):
    """x, norms and codes."""

    @staticmethod
    def forward(rule: Rule, x0: Tensor | None, *p: Tensor):
        with _without_hooks() as checkpointed:
            like = p[0] if x0 is None else x0
            out = run_as_operation(
                lambda: tuple(rule.find(x0, *p)[:3]), p, range(rule.levels - like.dim(), 0)
            )
        if checkpointed:  # else what a rule keeps, which is no saved tensor, would live as long as the graph
            rule.release()
        return out

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: Any) -> None:
        ctx.rule, _, *p = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[0], output[2], *p)
        keep_for_forward_mode(ctx, output[0], output[2], *p)

    @staticmethod
    @full_precision
    def backward(ctx, g: Tensor | None, *_: object):  # type: ignore[override]
        x, codes, *p = (unwrap_if_dead(t) for t in ctx.saved_tensors)
        at = [i for i in range(len(p)) if ctx.needs_input_grad[2 + i]]
        grads: list[Tensor | None] = [None] * len(p)
        if g is not None and at:
            x, p = ctx.rule.replace_failures(g, codes, x, p)
            y = linear_solve(ctx.rule, x, tuple(p), g, True)
            pull = pullback(_restrict(ctx.rule, x, p, at), *(p[i] for i in at))[1]
            for i, t in zip(at, pull(-y), strict=True):
                grads[i] = t
        return None, None, *grads

    @staticmethod
    def jvp(ctx, _rule: object, _x0: object, *tangents: object):  # type: ignore[override]
        x, _, *p = ctx.saved_tensors
        at = [i for i, t in enumerate(tangents) if t is not None]

        F = _restrict(ctx.rule, x, p, at)
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
        return Implicit.apply(rule.add_batch_axis(places), *tensors), (0, 0, 0)


def _restrict(rule: Rule, x: Tensor, p: list[Tensor], at: list[int]) -> Any:
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


# J d = b for the Jacobian of a residual: assembled or matrix-free, factored or with a Krylov method.
#
# The preconditioner of an assembled Jacobian is kept while it is good enough: it is rebuilt if a solve
# needs twice as many iterations as with the new preconditioner, or fails.


KRYLOV: dict[str, Callable[..., Solution]] = {
    "cg": cg,
    "minres": minres,
    "bicgstab": bicgstab,
    "gmres": gmres,
}
LINEAR = ("auto", "direct", *KRYLOV)
DIRECT = 2e9  # flops of SuperLU (choices.direct_cost): about the cost of a hierarchy and some cycles
INNER = 500  # maximum number of iterations of a solve for a direction
_EQUAL = 1e-3  # relative to b, to compare two matrices
_RESTART = 30  # of gmres


class Products(LinearOperator):
    """J of one column by derivatives of f: J^T y is the pullback of f, recorded once, and J v the pullback of
    that, 10 times faster than `torch.func.jvp`."""

    watched = False  # `Residual.alone` looks for other tensors

    def __init__(self, residual: Residual, u: Tensor, p: tuple[Tensor, ...]):
        r, pull = pullback(lambda z: residual(z, *p), u)
        self.u, self.r, self.pull = u, r, pull
        self.push = cache(lambda: pullback(pull, torch.zeros_like(r))[1])  # of the copies that a solve makes
        super().__init__((r.shape[residual.levels :].numel(), u.shape[residual.levels :].numel()))

    def mv(self, x: Tensor, *_: Tensor) -> Tensor:
        return self.push()((x.reshape(self.u.shape),))[0].detach().reshape(*x.shape[:-2], -1, 1)

    def rmv(self, y: Tensor, *_: Tensor) -> Tensor:
        return self.pull(y.reshape(self.r.shape))[0].detach().reshape(*y.shape[:-2], -1, 1)


class ShiftedOperator(LinearOperator):
    """A + shift I."""

    watched = False

    def __init__(self, A: LinearOperator, shift: Tensor):
        super().__init__(A.shape)
        self.A, self.shift = A, shift

    def mv(self, x: Tensor, *_: Tensor) -> Tensor:
        return self.A(x) + broadcast_scalar(self.shift, x) * x

    def rmv(self, y: Tensor, *_: Tensor) -> Tensor:
        return self.A.T(y) + broadcast_scalar(self.shift, y) * y


class Systems:
    """Linear systems with the Jacobian of `residual` at the u and p of the last `update`."""

    by_products = "gmres"  # the method if J is not assembled
    methods: tuple[str, ...] = LINEAR

    def __init__(self, residual: Residual, linear: Any, M: Any):
        self.residual, self.linear, self.M = residual, linear, M
        self.how, self.why = linear, ""
        self.kept: Any  # a preconditioner, and its number of iterations when it was new
        self.usual: int | None = None
        self.transient = False
        self.release()

    def release(self) -> None:
        self.u: Any = None
        self.p: tuple[Tensor, ...] = ()
        self.J: Any = None
        self.lost: Tensor | None = None  # systems whose Jacobian is not finite
        self.matrix = self.A = self.factors = self.kept = self.J

    def add_batch_axis(self, dims: tuple[int | None, ...]) -> Systems:
        return type(self)(self.residual.add_batch_axis(dims), self.linear, self.M)

    @torch.no_grad()
    def update(self, u: Tensor, p: tuple[Tensor, ...], shift: Tensor | None = None) -> None:
        """Set the Jacobian at u, with `shift`, one scalar per system, added to its diagonal."""
        self.u, self.p = u.detach(), tuple(t.detach() for t in p)
        self.J = self.matrix = self.A = None  # free their memory for reuse
        assembled, batch = self.residual.jacobian, u.shape[: self.residual.levels]
        if not self.residual.assembled(self.u, self.p):
            self.J = Products(self.residual, self.u, self.p)
        else:
            values, n = assembled.values(self.u, *self.p).detach(), u.numel() // max(batch.numel(), 1)
            finite = torch.isfinite(values).all(-1)
            self.lost = ~finite
            if batch and bool(self.lost.any()) and bool(finite.any()):  # others must not meet it
                values = torch.where(finite.unsqueeze(-1), values, values[finite][0])
            self.J = CSR(values, assembled.pattern)
            self.check(n)
        self.matrix = self.of(self.J)
        self.shift(shift)

    def check(self, n: int) -> None:
        if self.J.shape != (n, n):
            raise ValueError(
                f"{self.residual.name}: jacobian(u, *args) must have shape {(n, n)}, as u has {n} entries, "
                f"got {self.J.shape}"
            )

    def of(self, J: Any) -> Any:
        """The matrix of the systems."""
        return J

    A: Any

    def shift(self, shift: Tensor | None) -> None:
        self.A = self.matrix
        if shift is not None and isinstance(self.A, CSR):
            n, values = self.A.shape[0], self.A.values
            self.A = add(self.A, eye(n, dtype=values.dtype, device=values.device), beta=shift.unsqueeze(-1))
        elif shift is not None:
            self.A = ShiftedOperator(self.A, shift)

    def at(self, u: Tensor, p: tuple[Tensor, ...]) -> None:
        """`update`, unless the Jacobian already belongs to u and p."""
        mine, same = (self.u, *self.p), self.u is not None and not is_functorch_wrapped_tensor(self.u)
        for a, b in zip((u, *p), mine, strict=False):
            same = same and a.shape == b.shape and a.data_ptr() == b.data_ptr() and version(a) == version(b)
        if not same:
            self.update(u, p)

    @torch.no_grad()
    def solve(
        self, b: Tensor, rtol: float, maxiter: int | None = None, transpose: bool = False
    ) -> LoopResult:
        """Solve J d = b to rtol ||b||. The norms are of the linear residual."""
        out = self._solve(b, rtol, maxiter, transpose)
        if self.lost is not None and bool(self.lost.any()):
            x, codes = torch.where(broadcast_scalar(self.lost, b), torch.nan, out.x), CODE[Status.NON_FINITE]
            out = out._replace(x=x, codes=torch.where(self.lost, codes, out.codes))
        if self.residual.levels and bool((nothing := norm(b, self.residual.levels) == 0).any()):
            x, codes = torch.where(broadcast_scalar(nothing, b), 0, out.x), CODE[Status.CONVERGED]
            out = out._replace(x=x, codes=torch.where(nothing, codes, out.codes))
        return out

    def _solve(self, b: Tensor, rtol: float, maxiter: int | None, transpose: bool) -> LoopResult:
        levels, batch = self.residual.levels, b.shape[: self.residual.levels]
        right = column(b, levels)
        if self.how == "auto" or (self.how == "direct" and not isinstance(self.A, CSR)):
            self._choose()
        size = norm(right, levels)
        if isinstance(self.A, CSR) and not bool(torch.isfinite(self.A.values).all()):
            codes = torch.full(batch, CODE[Status.NON_FINITE], device=b.device)
            return LoopResult(torch.full_like(b, torch.nan), torch.stack((size, size), -1), codes)
        A = self.A.T if transpose else self.A
        if callable(self.how):
            x = self.how(A, right)
            x = getattr(x, "x", x)  # a Solution
            if not isinstance(x, Tensor) or x.shape != right.shape:
                got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
                raise ValueError(
                    f"{self.residual.name}: linear(J, b) must return a Tensor of b's shape "
                    f"{tuple(right.shape)}, or a "
                    f"Solution with it, got {got}"
                )
            left = norm(A @ x - right, levels)
            codes = torch.where(left <= rtol * size, CODE[Status.CONVERGED], CODE[Status.MAX_ITERATIONS])
            return LoopResult(x.reshape(b.shape), torch.stack((size, left), -1), codes)
        if self.how == "direct":
            x, codes = self._direct(right, transpose)
            return LoopResult(x.reshape(b.shape), torch.stack((size, torch.zeros_like(size)), -1), codes)
        with quiet():
            M = self._preconditioner()
            M = M.T if transpose and M is not None else M
            options = {"restart": _RESTART} if self.how == "gmres" else {}
            solution = KRYLOV[self.how](A, right, M=M, rtol=rtol, maxiter=maxiter, **options)
        codes = solution._codes
        assert codes is not None
        if self.linear == "auto" and solution.status in _OTHERWISE and self._another():
            return self._solve(b, rtol, maxiter, transpose)
        if self.usual is None:
            self.usual = solution.iterations
        elif solution.iterations > 2 * self.usual + 5 or worst(codes) != CODE[Status.CONVERGED]:
            self.kept = None
        norms = solution.residual_norms.reshape(*batch, -1)
        return LoopResult(solution.x.reshape(b.shape), norms, codes.reshape(batch), solution.note)

    def _factorize(self) -> Any:
        """The factors of A, reusing the earlier analysis."""
        F, self.factors = self.factors, None
        if F is None or F.A.pattern is not self.A.pattern:
            F = factorize(self.A)
        elif F.A.values is not self.A.values:
            F.refactorize(self.A.values)
        self.factors = F
        return F

    def _direct(self, b: Tensor, transpose: bool) -> tuple[Tensor, Tensor]:
        batch = b.shape[:-2]
        codes = torch.full(batch, CODE[Status.CONVERGED], device=b.device)
        try:
            return self._factorize().solve(b, transpose=transpose), codes
        except ValueError as error:
            if batch and batch.numel() > 1:
                return self._one_by_one(b, transpose)
            singular = "singular" in str(error) or "overflow" in str(error)
            status = Status.SINGULAR_JACOBIAN if singular else Status.NON_FINITE
            return torch.full_like(b, torch.nan), torch.full_like(codes, CODE[status])

    def _one_by_one(self, b: Tensor, transpose: bool) -> tuple[Tensor, Tensor]:
        """Solve with matrices of which some are singular."""
        whole, n, batch = self.A, b.shape[-2], b.shape[:-2]
        x, codes = [], []
        for values, right in zip(
            whole.values.expand(*batch, -1).reshape(-1, whole.nnz), b.reshape(-1, n), strict=True
        ):
            self.A, self.factors = whole.with_values(values), None
            solution, code = self._direct(right, transpose)
            x.append(solution)
            codes.append(code)
        self.A, self.factors = whole, None
        return torch.stack(x).reshape(b.shape), torch.stack(codes).reshape(batch)

    def _choose(self) -> None:
        A = self.A
        if not isinstance(A, CSR):
            if self.how == "direct":
                raise ValueError(
                    f'{self.residual.name}: linear="direct" needs an assembled Jacobian. Pass its pattern, '
                    'jacobian=..., or use linear="gmres"'
                )
            self.how, self.why = self.by_products, "J by products"
            return
        symmetric = symmetry("root", A, None)
        positive = bool((A.diagonal() > 0).all())
        if A.device.type == "cpu" and automatic.direct_cost(A) * A.batch_shape.numel() <= DIRECT:
            self.how, self.why = "direct", "a factorization is cheap"
        elif symmetric and positive:
            self.how, self.why = "cg", "J is symmetric, its diagonal positive"
        else:
            self.how, self.why = "gmres", "J is not symmetric" if not symmetric else "J is indefinite"

    def _another(self) -> bool:
        """Choose another method after a failed iteration chosen by "auto"."""
        if not isinstance(self.A, CSR) or self.A.device.type != "cpu":
            return False
        if automatic.direct_cost(self.A) <= automatic.LAST_RESORT:
            self.how, self.why = "direct", f"{self.how} failed"
            return True
        if self.how != "gmres":
            self.how, self.why, self.kept = "gmres", f"{self.how} failed", None
            return True
        return False

    def _preconditioner(self) -> Any:
        if self.kept is None and (self.M is None or not isinstance(self.A, CSR)):
            return None
        if self.kept is None:
            self.usual = None
            self.kept = self.M(self.A) if callable(self.M) else _fitting(self.A, self.how)
        return self.kept

    @torch.no_grad()
    def refine(
        self, out: LoopResult, b: Tensor, rtol: float, maxiter: int | None, transpose: bool
    ) -> LoopResult:
        """`out` with A x = b, for the Jacobian of f: refined by products with it where A lacks small entries,
        as a given pattern may. Raises an error where it lacks large ones."""
        if not isinstance(self.A, CSR) or self.A is not self.matrix:
            return out
        levels, x = self.residual.levels, out.x
        right = column(b, levels)
        A, J, size = self.A, Products(self.residual, self.u, self.p), norm(right, levels)
        A, J = (A.T, J.T) if transpose else (A, J)
        own = norm(A @ column(x, levels) - right, levels)
        r = right - J(column(x, levels))
        left = norm(r, levels)
        if bool(((own <= _EQUAL * size) & (left > 10 * _EQUAL * size)).any()):
            raise ValueError(
                f"{self.residual.name}: jacobian is not the Jacobian of {self.residual.words[0]} at the "
                f"solution: a solve with it leaves {float((left / size).max()):.2g} of the right-hand side. "
                "Pass a pattern with all entries, or correct the function"
            )
        goal = torch.maximum(rtol * size, 10 * own)
        if bool((left > goal).any()):
            image = A.with_values(A.values.abs()) @ column(x, levels).abs()
            goal = goal + 10 * torch.finfo(x.dtype).eps * norm(image, levels)
        codes, norms = out.codes, out.norms
        while bool((far := left > goal).any()):
            step = self._solve(
                torch.where(broadcast_scalar(far, b), r.reshape(b.shape), 0), rtol, maxiter, transpose
            )
            x_next = x + step.x
            r_next = right - J(column(x_next, levels))
            better = far & (norm(r_next, levels) < left / 2)
            codes = torch.where(
                far & ~better & (codes == CODE[Status.CONVERGED]), CODE[Status.STAGNATED], codes
            )
            x, r = (
                torch.where(broadcast_scalar(better, x), x_next, x),
                torch.where(broadcast_scalar(better, r), r_next, r),
            )
            goal = torch.where(far & ~better, torch.inf, goal)
            left = norm(r, levels)
            norms = torch.cat((norms, left.unsqueeze(-1)), -1)
        return out._replace(x=x, codes=codes, norms=norms)

    def inverse(self) -> Any:
        """An approximate inverse of an assembled matrix, for systems near this one."""
        if self.how == "auto":
            self._choose()
        if self.how != "direct":
            return self._preconditioner()
        return self._factorize().solve

    @property
    def method(self) -> str:
        if callable(self.how):
            return getattr(self.how, "__name__", "callable")
        M = f" with {type(self.kept).__name__}" if self.kept is not None and self.how in KRYLOV else ""
        return f"{self.how}{M}"


NOT_FINITE = (
    "The Jacobian of f is not finite, where f is: a derivative in f does not exist there, such as the "
    "derivative of sqrt or of a norm at 0. "
)
_OTHERWISE = {Status.INDEFINITE, Status.BREAKDOWN, Status.STAGNATED, Status.MAX_ITERATIONS, Status.DIVERGED}


def _fitting(A: CSR, method: str) -> Any:
    diagonal = A.diagonal()
    if bool((diagonal == 0).any()) or method == "minres":
        return None
    if method == "cg" and A.device.type == "cpu":
        return AMG(A)
    return automatic.preconditioner("ILU(0)" if A.device.type == "cpu" else "Jacobi", A, None)[0]


def column(u: Tensor, levels: int) -> Tensor:
    """u as a vector, or as one column per system."""
    return u.reshape(*u.shape[:levels], -1, 1) if levels else u.reshape(-1)


def norm(r: Tensor, levels: int) -> Tensor:
    """||r|| of each system, a constant, even if squares leave the range of the dtype."""
    r = r.detach().flatten(levels)
    size = torch.linalg.vector_norm(r, dim=-1)
    if bool(((size > torch.finfo(r.dtype).tiny ** 0.5) & (size < torch.inf)).all()):
        return size
    unit = r.abs().amax(-1)
    unit = torch.where((unit > 0) & torch.isfinite(unit), unit, 1)
    return unit * torch.linalg.vector_norm(r / unit.unsqueeze(-1), dim=-1)


def broadcast_scalar(t: Tensor, u: Tensor) -> Tensor:
    """One scalar per system, shaped to multiply u."""
    return t.reshape((*t.shape, *[1] * (u.dim() - t.dim())))
