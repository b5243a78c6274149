"""Kept Jacobians of functions that have changed since the first call."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import learnsolve as ls
from learnsolve.nonlinear import hessian, jacobian

from .programs import integers, numbers

REFUSED = (ValueError, RuntimeError, NotImplementedError)


class Kept(NamedTuple):
    """A function of u and args, and what changes it."""

    f: Callable[..., Tensor]
    args: tuple
    change: Callable[[], Any]
    nothing_dropped: Callable[..., Tensor] | None = None  # f afterwards, where it draws what it drops


Kind = Callable[[random.Random, Tensor], Kept]
KINDS: dict[str, Kind] = {}


def kind(name: str) -> Callable[[Kind], Kind]:
    def register(make: Kind) -> Kind:
        KINDS[name] = make
        return make

    return register


def gather(u: Tensor, at: Any) -> Tensor:
    return u[at] * u[at].sin() + u[: len(at)]


def by_index(name: str, change: Callable[[Tensor, Tensor], Any], wrap: Any = lambda at: at) -> None:
    """A kind in which integers among args are overwritten."""

    @kind(name)
    def make(r: random.Random, u: Tensor) -> Kept:
        n = len(u)
        at = integers(r, n, n - 1)
        return Kept(
            lambda u, held: gather(u, next(iter(held.values())) if isinstance(held, dict) else held),
            (wrap(at),),
            lambda: change(at, integers(r, n, n - 1)),
        )


def through_numpy(at: Tensor, new: Tensor) -> None:
    at.numpy()[:] = new.numpy()


def as_data(at: Tensor, new: Tensor) -> None:
    at.data = new


by_index("integers in place", lambda at, new: at.copy_(new))
by_index("integers through NumPy", through_numpy)
by_index("integers by .data", as_data)
by_index("integers by .data, in place", lambda at, new: at.data.copy_(new))
by_index("integers in a dictionary", through_numpy, lambda at: {"at": at})
by_index("integers by set_", lambda at, new: at.set_(new))  # type: ignore[arg-type]


@kind("integers in inference mode")
def in_inference_mode(r: random.Random, u: Tensor) -> Kept:
    n = len(u)
    with torch.inference_mode():
        at = integers(r, n, n - 1)

    def change() -> None:
        with torch.inference_mode():
            at.copy_(integers(r, n, n - 1))

    return Kept(lambda u, at: gather(u, at.clone()), (at,), change)


@kind("a mask through NumPy")
def masked(r: random.Random, u: Tensor) -> Kept:
    mask = integers(r, 2, len(u)).bool()

    def change() -> None:
        mask.numpy()[:] = integers(r, 2, len(u)).bool().numpy()

    return Kept(lambda u, mask: torch.where(mask, u * u, u.roll(1)), (mask,), change)


@kind("a NumPy array")
def array(r: random.Random, u: Tensor) -> Kept:
    at = integers(r, len(u), len(u) - 1).numpy()

    def change() -> None:
        at[:] = integers(r, len(u), len(u) - 1).numpy()

    return Kept(lambda u, at: gather(u, torch.from_numpy(at)), (at,), change)


@kind("a list of numbers")
def numbers_of_list(r: random.Random, u: Tensor) -> Kept:
    shifts = [1]

    def change() -> None:
        shifts.append(r.randrange(len(u)))

    return Kept(lambda u, shifts: torch.stack([u.roll(s) ** 2 for s in shifts]).sum(0), (shifts,), change)


class Gather(torch.nn.Module):
    def __init__(self, at: Tensor):
        super().__init__()
        self.register_buffer("at", at)

    def forward(self, u: Tensor) -> Tensor:
        return gather(u, self.at)


def buffers(r: random.Random, u: Tensor) -> tuple[Gather, Callable[[], None]]:
    module = Gather(integers(r, len(u), len(u) - 1))

    def change() -> None:
        module.load_state_dict({"at": integers(r, len(u), len(u) - 1)})

    return module, change


@kind("buffers of a module in args")
def buffers_in_args(r: random.Random, u: Tensor) -> Kept:
    module, change = buffers(r, u)
    return Kept(lambda u, module: module(u), (module,), change)


@kind("buffers of a module")
def buffers_of_f(r: random.Random, u: Tensor) -> Kept:
    module, change = buffers(r, u)
    return Kept(module, (), change)


@kind("a frozen weight")
def frozen(r: random.Random, u: Tensor) -> Kept:
    layer = torch.nn.Linear(len(u), 3, bias=False, dtype=u.dtype).requires_grad_(False)

    def change() -> None:
        layer.weight.data = numbers(r, 3, len(u), zeros=0.7).to(u.dtype)

    change()
    return Kept(lambda u: layer(u).tanh(), (), change)


@kind("a frozen kernel")
def kernel(r: random.Random, u: Tensor) -> Kept:
    weight = numbers(r, 1, 1, 3, zeros=0.7).to(u.dtype)
    return Kept(
        lambda u: F.conv1d(u[None, None], weight, padding=1).sin(),
        (),
        lambda: weight.copy_(numbers(r, 1, 1, 3, zeros=0.3)),
    )


@kind("a constant matrix")
def constant(r: random.Random, u: Tensor) -> Kept:
    D = numbers(r, 4, len(u), zeros=0.7).to(u.dtype)
    return Kept(lambda u: D @ (u * u), (), lambda: D.numpy().fill(r.uniform(1, 2)))


@kind("an index of the closure, in place")
def closure_index(r: random.Random, u: Tensor) -> Kept:
    at = integers(r, len(u), len(u) - 1)
    return Kept(lambda u: gather(u, at), (), lambda: at.copy_(integers(r, len(u), len(u) - 1)))


@kind("an index of the closure, another")
def other_index(r: random.Random, u: Tensor) -> Kept:
    at = integers(r, len(u), len(u) - 1)

    def change() -> None:
        nonlocal at
        at = integers(r, len(u), len(u) - 1)

    return Kept(lambda u: gather(u, at), (), change)


shift = 0


@kind("a global number")
def global_number(r: random.Random, u: Tensor) -> Kept:
    def change() -> None:
        global shift
        shift = r.randrange(len(u))

    change()
    return Kept(lambda u: u * u.roll(shift), (), change)


class Options:
    def __init__(self) -> None:
        self.shift, self.shifts = 0, [0]


@kind("an attribute of an object in args")
def attribute(r: random.Random, u: Tensor) -> Kept:
    o = Options()

    def change() -> None:
        o.shift = r.randrange(len(u))

    return Kept(lambda u, o: u * u.roll(o.shift), (o,), change)


@kind("a list of an object in args")
def terms(r: random.Random, u: Tensor) -> Kept:
    o = Options()
    return Kept(
        lambda u, o: torch.stack([u.roll(s) for s in o.shifts]).prod(0),
        (o,),
        lambda: o.shifts.append(r.randrange(len(u))),
    )


@kind("another sparse matrix")
def matrix(r: random.Random, u: Tensor) -> Kept:
    def random_matrix() -> ls.CSR:
        return ls.CSR.from_dense(numbers(r, 3, len(u), zeros=0.6).to(u.dtype))

    own = SimpleNamespace(A=random_matrix())
    return Kept(lambda u: own.A @ u.sin(), (), lambda: setattr(own, "A", random_matrix()))


@kind("another torch.sparse matrix")
def torch_sparse(r: random.Random, u: Tensor) -> Kept:
    def random_matrix() -> Tensor:
        return numbers(r, 3, len(u), zeros=0.6).to(u.dtype).to_sparse()

    own = SimpleNamespace(A=random_matrix())
    return Kept(lambda u: (own.A @ u[:, None]).sin(), (), lambda: setattr(own, "A", random_matrix()))


def switched(name: str, others: Callable[[Tensor], Tensor], first: Any = torch.sin) -> None:
    """A kind in which f calls another operation."""

    @kind(name)
    def make(r: random.Random, u: Tensor) -> Kept:
        state = SimpleNamespace(f=first)
        return Kept(
            lambda u: state.f(u), (), lambda: setattr(state, "f", others if state.f is first else first)
        )


def into_zeros(u: Tensor) -> Tensor:
    out = torch.zeros(len(u), dtype=u.dtype)
    out[1:] = u[1:] * u[:-1]
    return out


switched("an operation that vmap gets wrong", lambda u: torch.cdist(u[:, None], u.flip(0)[:2, None] + 1))
switched("an operation without vmap", into_zeros, lambda u: u * u)
switched(
    "an operation that forward mode gets wrong",
    lambda u: u.new_ones(2).scatter_reduce(0, torch.arange(len(u)) % 2, u, "prod"),
    lambda u: torch.stack([u[::2].sum(), u[1::2].prod()]),
)
switched("a size", lambda u: u[1:] * u[:-1], lambda u: u * u)
switched("a derivative that was 0", lambda u: u**2, lambda u: torch.ones_like(u))


@kind("a branch by values of u")
def branch(r: random.Random, u: Tensor) -> Kept:
    return Kept(lambda u: u.sin() if u.sum() > 0 else u.roll(1) * u, (), lambda: None)


@kind("dropout")
def dropout(r: random.Random, u: Tensor) -> Kept:
    module = torch.nn.Dropout(0.5).eval()
    return Kept(lambda u: module(u * u), (), module.train, lambda u: 2 * u * u)


def dense(f: Callable[..., Tensor], u: Tensor, args: tuple) -> Tensor:
    """Row by row, as torch differentiates without transformations."""
    x = u.clone().requires_grad_()
    out = f(x, *args).reshape(-1)
    rows = [
        torch.autograd.grad(o, x, retain_graph=True, allow_unused=True)[0] for o in out if o.requires_grad
    ]
    rows = [torch.zeros_like(u) if row is None else row for row in rows]
    return torch.stack(rows) if rows else u.new_zeros(len(out), len(u))


def squares(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda u, *args: f(u, *args).square().sum()


def dense_hessian(f: Callable[..., Tensor], u: Tensor, args: tuple) -> Tensor:
    def gradient(x: Tensor, *args: Any) -> Tensor:
        out = squares(f)(x, *args) + 0 * x.sum()
        return torch.autograd.grad(out, x, create_graph=True)[0]

    return dense(gradient, u, args)


def fault(name: str, seed: int, counts: Counter) -> str | None:
    r = random.Random(seed)
    dtype, n = r.choice([torch.float32, torch.float64]), r.randint(3, 9)
    u = numbers(r, n).to(dtype)
    kept = KINDS[name](r, u)
    args, form = kept.args, r.choice(["jacobian", "jacobian", "vmap", "graph", "hessian"])
    mode: Any = r.choice(["auto", "forward", "reverse"])
    J = hessian(squares(kept.f)) if form == "hessian" else jacobian(kept.f, mode=mode)
    counts["kept"] += 1
    for step in range(r.randint(2, 4)):
        if step:
            u = u.neg() if name.startswith("a branch") else numbers(r, n).to(dtype)
            kept.change()
        try:
            if form == "vmap":
                both = torch.stack([u / 2, u])
                values = torch.vmap(lambda u: J(u, *args).values)(both)[1]
                found = ls.CSR(values, J.analysis(u, *args).pattern).to_dense()
            else:
                x = u.clone().requires_grad_() if form == "graph" else u
                found = J(x, *args).to_dense().detach()
        except REFUSED:
            counts["refused"] += 1
            return None
        draws = step > 0 and kept.nothing_dropped is not None
        f = kept.nothing_dropped if draws else kept.f
        true = (dense_hessian if form == "hessian" else dense)(f, u, args)
        if draws:  # the draw of `found` is not known
            true = true.where(found != 0, 0)
        counts["changes"] += step > 0
        tolerance = 100 * torch.finfo(dtype).eps ** 0.5 * float(true.abs().max() if true.numel() else 0)
        if found.shape != true.shape or not float((found - true).abs().max()) <= tolerance:
            error = (
                f"differs by {float((found - true).abs().max()):.2g}"
                if found.shape == true.shape
                else (f"has shape {tuple(found.shape)}")
            )
            return f"{form} ({mode}) after {name} {error} at seed {seed}"
    return None


def kept(count: int, seed: int, counts: Counter) -> Iterator[str]:
    """A kept Jacobian of a function that has changed is that of the changed function, or an error.

    Changes of integers, buffers, frozen weights, closures, global numbers, objects, matrices, operations,
    sizes and branches, of `jacobian` in each mode, with a graph, under vmap, and of `hessian`.

    A fault is a Jacobian that differs from that of torch, row by row, by 100 roots of the rounding unit.
    """
    names = list(KINDS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in range(count):
            if sentence := fault(names[i % len(names)], 100_000 * seed + i, counts):
                yield sentence
