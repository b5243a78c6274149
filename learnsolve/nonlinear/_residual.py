"""f(u, *args) as a function of tensors: the form for loops, Jacobians and derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils import _pytree as pytree

from learnsolve.matrix import checks
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.matrix.plain import sample, transformations
from learnsolve.matrix.unchanged import version
from learnsolve.nonlinear._pattern import within_torch


def if_alike(y: Any, u: Tensor, made: Callable[[Tensor], Tensor]) -> Any:
    """made(y); or y if it is not like u, so that an error names the result of f, not a later failure."""
    return made(y) if isinstance(y, Tensor) and (y.shape, y.dtype) == (u.shape, u.dtype) else y


class Arguments:
    """All tensors of args: the leaves of its pytree (a CSR is one), and the parameters of modules in it, or
    of f, if it is a module or the method of one."""

    def __init__(self, f: Any, args: tuple):
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
            with within_torch(name), self.holding(tensors):
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

    def mapped(self, dims: tuple[int | None, ...]) -> Residual:
        """The residual over a new first axis of u, and of the tensors whose dims is 0."""
        jacobian = None if self.jacobian is None else self.jacobian.mapped(dims)
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
                    "forward mode, and that is not among its arguments; pass it, "
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
            raise ValueError(f"{name}: {f} changes {what} in place; let it work on a copy, {what}.clone()")
        if r.requires_grad:
            raise ValueError(
                f"{name}: {f} uses a tensor that requires grad and that is not among its arguments, so it "
                f"would get no right gradient; pass it, {f}({v}, *args), or detach it; for derivatives in "
                f"{f} use torch.func.grad, not requires_grad_()"
            )
        if square and r.shape != u.shape:
            shapes = (tuple(t.shape[self.levels :]) for t in (u, r))
            raise ValueError(
                f"{name}: {f}({v}, *args) must have the shape of {v}, {next(shapes)}, as many equations as "
                f"unknowns, got {next(shapes)}; least_squares takes any number of equations"
            )
        if r.dtype != u.dtype or r.device != u.device:
            raise TypeError(
                f"{name}: {f}({v}, *args) must have dtype and device of {v}, {u.dtype} on {u.device}, got "
                f"{r.dtype} "
                f"on {r.device}; convert args, or {v}0, with .to()"
            )
        if not bool(torch.isfinite(r).flatten(self.levels).all(-1).any()):  # of a batch all systems
            bad = int((~torch.isfinite(r)).sum())
            raise ValueError(
                f"{name}: {f}({v}0, *args) must be finite, got {bad} of {r.numel()} entries that are not; "
                f"start from another {v}0, or check args"
            )
        with torch.no_grad():
            if not self.trusted and not torch.equal(*(t.nan_to_num() for t in (r, self(u, *tensors)))):
                raise ValueError(
                    f"{name}: {f}({v}0, *args) gave other numbers when it was called again; a solve needs a "
                    "function: draw random numbers outside and pass them, and put modules with dropout in "
                    "eval()"
                )
        return r

    def assembled(self, u: Tensor, tensors: tuple[Tensor, ...]) -> bool:
        """Is the Jacobian a CSR? Found out when one is first asked for."""
        if self.jacobian is not None:
            self.jacobian.prepare(u, tensors)
        return self.jacobian is not None and self.jacobian.known


class Assembled:
    """The values of the Jacobian on its pattern, from a function of u and the tensors that returns a CSR:
    `call`, or the result of `find`(u, *tensors) for the first u, which is None if only products with the
    Jacobian should be used."""

    def __init__(
        self,
        name: str,
        call: Callable[..., Any] | None,
        find: Callable[..., Any] | None = None,
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

    def mapped(self, dims: tuple[int | None, ...]) -> Assembled:
        return _Mapped(self, dims)


class _Mapped(Assembled):
    """The Jacobian over a new first axis."""

    def __init__(self, inner: Assembled, dims: tuple[int | None, ...]):
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
