"""Jacobians of random programs, and kept ones of functions that have changed since the first call."""

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
from learnsolve.nonlinear import hessian, jacobian, jacobian_sparsity

F64 = torch.float64


def numbers(r: random.Random, *shape: int, zeros: float = 0.0) -> Tensor:
    count = torch.Size(shape).numel()
    return torch.tensor(
        [0.0 if r.random() < zeros else r.uniform(-1, 1) for _ in range(count)], dtype=F64
    ).reshape(shape)


def integers(r: random.Random, below: int, *shape: int) -> Tensor:
    return torch.tensor([r.randrange(below) for _ in range(torch.Size(shape).numel())]).reshape(shape)


def axis(r: random.Random, x: Tensor) -> int:
    return r.randrange(x.dim())


def flat2(r: random.Random, x: Tensor) -> Tensor:
    """As a matrix."""
    sizes = [n for n in range(1, x.numel() + 1) if x.numel() % n == 0]
    return x.reshape(r.choice(sizes), -1)


def matrix(r: random.Random, n: int) -> ls.CSR:
    D = numbers(r, n, n, zeros=0.6)
    return ls.CSR.from_dense(D + 4 * torch.eye(n, dtype=F64))


def written(r: random.Random, x: Tensor) -> Tensor:
    """In place, through views."""
    y, d = x.clone(), axis(r, x)
    n = x.shape[d]
    if n > 1:
        a, b = y.narrow(d, 0, n - 1), y.narrow(d, 1, n - 1)
        ways: list[Callable[[], Any]] = [
            lambda: a.add_(x.narrow(d, 1, n - 1)),
            lambda: b.copy_(x.narrow(d, 0, n - 1) ** 2),
            lambda: a.mul_(0.5).select(d, 0).zero_(),
            lambda: y.transpose(0, -1)[0].fill_(1.5),
        ]
        r.choice(ways)()
    return y


def accumulated(r: random.Random, x: Tensor) -> Tensor:
    v, n = x.reshape(-1), 5
    at, m = integers(r, n, v.numel()), min(n, v.numel())
    zeros = x.new_zeros(n) + (v[:n].sum() if r.random() < 0.3 else 0)
    ways: list[Callable[[], Tensor]] = [
        lambda: zeros.index_add(0, at, v),
        lambda: zeros.scatter_add(0, at, v),
        lambda: zeros.index_put((at,), v, accumulate=True),
        lambda: zeros.index_put((torch.arange(m),), v[:n]),
    ]
    return r.choice(ways)()


def weights_of(r: random.Random, x: Tensor) -> Tensor:
    A, v = matrix(r, r.randint(2, 5)), x.reshape(-1)
    values = v[integers(r, v.numel(), A.nnz)]
    return ls.CSR(values, A.pattern) @ v[integers(r, v.numel(), A.shape[1])]


def blocks_of(r: random.Random, x: Tensor) -> Tensor:
    """A batch of well-conditioned matrices."""
    n = r.choice([1, 2, 3])
    v = x.reshape(-1)[: x.numel() // n**2 * n**2] if x.numel() >= n * n else x.reshape(-1).repeat(9)[: n * n]
    return v.tanh().reshape(-1, n, n) + 4 * torch.eye(n, dtype=F64)


def linear_algebra(r: random.Random, x: Tensor) -> Tensor:
    B, L = blocks_of(r, x), torch.linalg
    ways: list[Callable[[], Tensor]] = [
        lambda: L.solve(B, B.sin()),
        lambda: L.solve(B[0].detach(), B.flatten(1).T[: B.shape[1]]),
        lambda: L.inv(B),
        lambda: torch.logdet(B),
        lambda: L.cholesky(B @ B.mT),
        lambda: L.matrix_exp(B / 4),
        lambda: L.eigvalsh(B + B.mT + torch.diag(torch.arange(B.shape[-1]))),
    ]
    return r.choice(ways)()


def transformed(r: random.Random, x: Tensor) -> Tensor:
    d, fft = axis(r, x), torch.fft

    def doubled() -> Tensor:
        z = torch.complex(x, x.roll(1, d))
        z.real.mul_(2)
        return (z.conj() * z.flip(0)).imag

    ways: list[Callable[[], Tensor]] = [
        lambda: fft.fft(x, dim=d).abs(),
        lambda: fft.irfft(fft.rfft(x, dim=d) * 1j, n=x.shape[d], dim=d),
        lambda: fft.ifftn(fft.fftn(x).sin()).real,
        doubled,
    ]
    return r.choice(ways)()


def resampled(r: random.Random, x: Tensor) -> Tensor:
    y, to = flat2(r, x)[None], F.interpolate
    factor = r.choice([0.5, 1.5, 2.0]) if y.shape[-1] > 1 else 2
    ways: list[Callable[[], Tensor]] = [
        lambda: to(y, scale_factor=factor, mode="linear"),
        lambda: to(y[None], size=(3, 4), mode=r.choice(["bilinear", "bicubic"]), align_corners=True),
        lambda: to(y, size=5, mode=r.choice(["nearest", "nearest-exact", "area"])),
        lambda: F.adaptive_avg_pool2d(y, (2, 2)),
        lambda: F.fold(F.unfold(y[None], (1, 1)) ** 2, y.shape[1:], (1, 1)),
        lambda: F.pad(y, (1, 1), mode="replicate"),
        lambda: F.pad(y, (0, 1), mode="circular"),
    ]
    return r.choice(ways)()


def sparse_product(r: random.Random, x: Tensor) -> Tensor:
    A, v = matrix(r, 3), x.reshape(-1)
    B = ls.CSR(v[integers(r, v.numel(), A.nnz)], A.pattern)
    return r.choice((lambda: A @ B, lambda: B.T @ B, lambda: ls.ops.spgemm(B, A, mask=A.pattern)))().values


def solved(r: random.Random, x: Tensor) -> Tensor:
    y = flat2(r, x)
    A, exact = matrix(r, len(y)), {"rtol": 1e-12, "atol": 1e-300, "maxiter": 100}
    ways: list[Callable[[], Tensor]] = [
        lambda: ls.ops.spsolve(A, y),
        lambda: ls.ops.sptrsv(A.tril(), y),
        lambda: ls.solvers.gmres(A, y, **exact).x,
    ]
    return r.choice(ways)()


UNARY = [torch.sin, torch.tanh, torch.relu, torch.abs, torch.square, torch.sigmoid, torch.floor, torch.sign]
UNARY += [F.softplus, F.gelu, F.leaky_relu, F.silu, torch.round, lambda x: x.clamp(-0.5, 0.5)]
UNARY += [lambda x: 1 / (1 + x * x), lambda x: x.detach() * x.roll(1), lambda x: (x > 0.1).to(x.dtype) * x]
UNARY += [lambda x: x * 0.5 - 1]
BINARY = [torch.add, torch.mul, torch.sub, torch.maximum, torch.hypot, lambda a, b: torch.lerp(a, b, 0.3)]
BINARY += [torch.atan2, lambda a, b: a / (2 + b.tanh()), lambda a, b: torch.where(a > b, a, b * b)]
LINES = [torch.sum, torch.mean, torch.amax, torch.prod, torch.logsumexp, lambda x, d: x.max(d).values]
LINES += [lambda x, d: x.min(d).values, lambda x, d: (1 + x * x).norm(dim=d), lambda x, d: x.median(d).values]
ALONG = [lambda x, d: x.sort(d).values, torch.cumsum, torch.cumprod, torch.softmax, torch.log_softmax]
ALONG += [lambda x, d: x - x.mean(d, keepdim=True), lambda x, d: x.flip(d), lambda x, d: x.cummax(d).values]
Step = Callable[[random.Random, Tensor], Tensor]
STEPS: dict[str, Step] = {
    "unary": lambda r, x: r.choice(UNARY)(x),
    "unary again": lambda r, x: r.choice(UNARY)(x),
    "along": lambda r, x: r.choice(ALONG)(x, axis(r, x)),
    "lines": lambda r, x: r.choice(LINES)(x, axis(r, x)).reshape(-1),
    "with lines": lambda r, x: x * x.sum(axis(r, x), keepdim=True),
    "constant": lambda r, x: x * numbers(r, *x.shape, zeros=0.3) + numbers(r, x.shape[-1]),
    "roll": lambda r, x: x.roll(r.randint(-2, 2), axis(r, x)) - x,
    "turned": lambda r, x: x.transpose(0, -1),
    "reshaped": lambda r, x: flat2(r, x),
    "slice": lambda r, x: x[..., r.randint(0, 1) :: r.randint(1, 2)] if x.shape[-1] > 1 else x,
    "pad": lambda r, x: F.pad(x, (r.randint(0, 2), r.randint(0, 2)), value=2.0),
    "circular": lambda r, x: (
        F.pad(x.reshape(1, 1, -1), (1, 1), mode=r.choice(["circular", "reflect"])) if x.numel() > 1 else x
    ),
    "cat": lambda r, x: torch.cat([x, x.flip(0) * 2], axis(r, x)),
    "stack": lambda r, x: torch.stack([x, x.sin()], r.randint(0, x.dim())),
    "select": lambda r, x: x.index_select(axis(r, x), integers(r, min(x.shape), 3)),
    "index": lambda r, x: x.reshape(-1)[integers(r, x.numel(), 2, 3)],
    "gather": lambda r, x: x.gather(-1, integers(r, x.shape[-1], *x.shape[:-1], 2)),
    "by values": lambda r, x: x.reshape(-1)[x.reshape(-1).argsort()[:3]],
    "mask": lambda r, x: x.masked_fill(numbers(r, *x.shape) > 0, 1.0),
    "triangle": lambda r, x: flat2(r, x).tril(r.randint(-1, 1)),
    "diagonal": lambda r, x: flat2(r, x).diagonal(),
    "windows": lambda r, x: x.reshape(-1).unfold(0, min(3, x.numel()), 2),
    "repeat": lambda r, x: (
        x.repeat_interleave(2, axis(r, x)) if r.random() < 0.5 else x.repeat(2, *x.shape[1:])
    ),
    "in place": written,
    "accumulated": accumulated,
    "constant matrix": lambda r, x: (y := flat2(r, x)) @ numbers(r, y.shape[1], 3, zeros=0.5),
    "constant matrix, left": lambda r, x: numbers(r, 2, (y := flat2(r, x)).shape[0], zeros=0.5) @ y,
    "gram": lambda r, x: (y := flat2(r, x)) @ y.mT,
    "batched": lambda r, x: torch.einsum(
        "bij,bj->bi", (y := flat2(r, x))[:, None] * numbers(r, 2, y.shape[1]), y
    ),
    "convolution": lambda r, x: F.conv1d(
        x.reshape(1, 1, -1), numbers(r, 2, 1, 3, zeros=0.4), padding=r.randint(1, 2), stride=r.randint(1, 2)
    ),
    "convolution 2d": lambda r, x: F.conv2d(
        flat2(r, x)[None, None], numbers(r, 1, 1, 3, 3, zeros=0.5), padding=(1, 1), dilation=1
    ),
    "transposed": lambda r, x: F.conv_transpose1d(x.reshape(1, 1, -1), numbers(r, 1, 2, 2), stride=2),
    "own weight": lambda r, x: F.conv1d(numbers(r, 1, 1, 6), x.reshape(-1)[:3].reshape(1, 1, -1)),
    "pool": lambda r, x: F.avg_pool2d(flat2(r, x)[None, None], (1, 2), padding=(0, 1), stride=1),
    "largest": lambda r, x: F.max_pool1d(x.reshape(1, 1, -1), 2) if x.numel() > 1 else x,
    "norm": lambda r, x: F.layer_norm(x, x.shape[-1:]),
    "sparse": lambda r, x: matrix(r, x.numel()) @ x.reshape(-1),
    "sparse columns": lambda r, x: ls.ops.spmm(
        matrix(r, (y := flat2(r, x)).shape[0]), y, transpose=r.random() < 0.5
    ),
    "own values": weights_of,
    "segments": lambda r, x: ls.ops.segment_softmax(
        x.reshape(-1)[integers(r, x.numel(), (P := matrix(r, 4).pattern).nnz)], P
    ),
    "stencil": lambda r, x: ls.ops.stencil(
        numbers(r, 3, zeros=0.3), x.reshape(-1), boundary=r.choice(["dirichlet", "periodic"])
    ),
    "linear algebra": linear_algebra,
    "transformed": transformed,
    "resampled": resampled,
    "sparse product": sparse_product,
    "solved": solved,
    "table": lambda r, x: numbers(r, 9)[(4 + 4 * x.tanh()).long()] * x,
    "means of segments": lambda r, x: x.new_zeros(4).scatter_reduce(
        0, integers(r, 4, x.numel()), x.reshape(-1), r.choice(["sum", "mean"])
    ),
    "blocks": lambda r, x: torch.block_diag(flat2(r, x), x.reshape(1, -1)[:, :3]),
    "decides": lambda r, x: x.sin() if x.sum() > 0 else x.roll(1, 0) * 2,
}


def program(seed: int) -> tuple[Callable[[Tensor], Tensor], Tensor, list[str]]:
    """A function, an argument, and the names of its steps."""
    r = random.Random(seed)
    shape = r.choice([(7,), (3, 4), (2, 3, 2), (12,), (5, 2), (1, 6)])
    names = r.choices(list(STEPS), k=r.randint(1, 5))
    gradient = r.random() < 0.2

    def steps(u: Tensor) -> Tensor:
        r, x = random.Random(seed + 1), u
        for name in names:
            y = STEPS[name](r, x)
            y = y.reshape(1) if y.dim() == 0 else y
            if y.shape == x.shape and r.random() < 0.4:
                y = r.choice(BINARY)(x, y)
            if 0 < y.numel() <= 48:
                x = y
        return x

    f = torch.func.grad(lambda u: steps(u).square().sum()) if gradient else steps
    return f, numbers(r, *shape), [*names, "gradient"] if gradient else names


def jacobian_of_program(f: Callable[[Tensor], Tensor], u: Tensor) -> Tensor:
    def flat(x: Tensor) -> Tensor:
        return f(x.reshape(u.shape)).reshape(-1)

    try:
        return torch.func.jacfwd(flat)(u.reshape(-1))
    except (RuntimeError, NotImplementedError):  # no forward mode, or values decide
        rows = torch.autograd.functional.jacobian(flat, u.reshape(-1))
        assert isinstance(rows, Tensor)
        return rows


def fault(seed: int, counts: Counter) -> str | None:
    f, u, names = program(seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pattern = jacobian_sparsity(f, u)
    said = " ".join(str(w.message) for w in caught)
    allowed = ls.CSR(torch.ones(pattern.nnz, dtype=F64), pattern).to_dense() != 0
    r = random.Random(seed + 2)
    others = [] if "reads values" in said else [numbers(r, *u.shape), 3 * numbers(r, *u.shape)]
    counts["programs"] += 1
    counts["programs with a warning"] += "jacobian_sparsity:" in said
    D = torch.zeros(())
    for x in (u, *others):
        D = jacobian_of_program(f, x)
        missed = (D != 0) & D.isfinite() & ~allowed
        if missed.any():
            return f"pattern of {names} misses {missed.nonzero()[0].tolist()} at seed {seed}"
    D = jacobian_of_program(f, u)
    counts["entries"] += int((D != 0).sum())
    counts["surplus entries"] += int((allowed & (D == 0)).sum())
    if seed % 3 == 0 and D.isfinite().all():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            J = jacobian(f)(u).to_dense()
        counts["Jacobians"] += 1
        if not torch.allclose(J, D, rtol=1e-9, atol=1e-9 * float(D.abs().max())):
            return f"Jacobian of {names} differs by {float((J - D).abs().max()):.2g} at seed {seed}"
    return None


def programs(count: int, seed: int, counts: Counter) -> Iterator[str]:
    """The pattern that is found in a program holds every entry of its dense Jacobian, also at other points,
    and compressed derivatives on it give the Jacobian.

    Programs of up to five steps (elementwise, moves, reductions, in place, matrices, transforms,
    interpolation, convolutions, sparse operations, solves, control flow, gradients) on up to twelve inputs.
    Those whose values decide what they compute must say so, and are compared at one point.

    A fault is an entry of the dense Jacobian that the pattern misses, or a Jacobian that differs by 1e-9.
    """
    for i in range(count):
        if sentence := fault(100_000 * seed + i, counts):
            yield sentence


# --- kept Jacobians ---

REFUSED = (ValueError, RuntimeError, NotImplementedError)


class Draw(NamedTuple):
    """What kinds make their states of."""

    r: random.Random
    n: int
    dtype: torch.dtype

    def at(self) -> Tensor:
        return integers(self.r, self.n, self.n - 1)

    def shift(self) -> int:
        return self.r.randrange(self.n)

    def matrix(self, *shape: int, zeros: float = 0.7) -> Tensor:
        return numbers(self.r, *shape, zeros=zeros).to(self.dtype)


class Kept(NamedTuple):
    """A function of u and args, and what changes it."""

    f: Callable[..., Tensor]
    args: tuple
    change: Callable[[], Any]
    nothing_dropped: Callable[..., Tensor] | None = None  # f afterwards, where it draws what it drops


class Kind(NamedTuple):
    """f(u, state), without f the state itself; change(state, draw) may give another one."""

    state: Callable[[Draw], Any]
    f: Callable[[Tensor, Any], Tensor] | None
    change: Callable[[Any, Draw], Any]
    passed: bool = False  # as an argument; otherwise f holds the state
    nothing_dropped: Callable[..., Tensor] | None = None

    def __call__(self, r: random.Random, u: Tensor) -> Kept:
        draw = Draw(r, len(u), u.dtype)
        state, f = self.state(draw), self.f

        def change() -> None:
            nonlocal state
            new = self.change(state, draw)
            state = state if new is None else new

        if f is None or self.passed:
            return Kept(f or state, (state,) if self.passed else (), change)
        return Kept(lambda u: f(u, state), (), change, self.nothing_dropped)


def gather(u: Tensor, at: Any) -> Tensor:
    return u[at] * u[at].sin() + u[: len(at)]


def terms(u: Tensor, shifts: list[int]) -> Tensor:
    return torch.stack([u.roll(s) ** 2 for s in shifts]).sum(0)


def through_numpy(at: Tensor, new: Tensor) -> None:
    at.numpy()[:] = new.numpy()


class Gather(torch.nn.Module):
    def __init__(self, at: Tensor):
        super().__init__()
        self.register_buffer("at", at)

    def forward(self, u: Tensor) -> Tensor:
        return gather(u, self.at)


class Options:
    def __init__(self) -> None:
        self.shift, self.shifts = 0, [0]


shift = 0


def another_shift(_: Any, d: Draw) -> None:
    global shift
    shift = d.shift()


def into_zeros(u: Tensor) -> Tensor:
    out = torch.zeros(len(u), dtype=u.dtype)
    out[1:] = u[1:] * u[:-1]
    return out


def switched(other: Callable[[Tensor], Tensor], first: Any = torch.sin) -> Kind:
    """A kind in which f calls another operation."""

    def change(s: Any, d: Draw) -> None:
        s.f = other if s.f is first else first

    return Kind(lambda d: SimpleNamespace(f=first), lambda u, s: s.f(u), change)


def another(make: Callable[[Draw], Any], f: Callable[[Tensor, Any], Tensor]) -> Kind:
    """A kind in which f finds another matrix in an object."""
    return Kind(
        lambda d: SimpleNamespace(A=make(d)), lambda u, s: f(u, s.A), lambda s, d: setattr(s, "A", make(d))
    )


BY_INDEX: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "in place": lambda at, new: at.copy_(new),
    "through NumPy": through_numpy,
    "by .data": lambda at, new: setattr(at, "data", new),
    "by .data, in place": lambda at, new: at.data.copy_(new),
    "by set_": lambda at, new: at.set_(new),  # type: ignore[arg-type]
}
BUFFERS = lambda d: Gather(d.at()), lambda m, d: m.load_state_dict({"at": d.at()}) and None
KINDS: dict[str, Kind] = {
    **{
        f"integers {how}": Kind(Draw.at, gather, lambda s, d, f=f: f(s, d.at()), True)
        for how, f in BY_INDEX.items()
    },
    "integers in a dictionary": Kind(
        lambda d: {"at": d.at()},
        lambda u, s: gather(u, s["at"]),
        lambda s, d: through_numpy(s["at"], d.at()),
        True,
    ),
    "integers in inference mode": Kind(
        torch.inference_mode()(Draw.at),
        lambda u, at: gather(u, at.clone()),
        torch.inference_mode()(lambda at, d: at.copy_(d.at())),
        True,
    ),
    "a mask through NumPy": Kind(
        lambda d: integers(d.r, 2, d.n).bool(),
        lambda u, mask: torch.where(mask, u * u, u.roll(1)),
        lambda mask, d: through_numpy(mask, integers(d.r, 2, d.n).bool()),
        True,
    ),
    "a NumPy array": Kind(
        lambda d: d.at().numpy(),
        lambda u, at: gather(u, torch.from_numpy(at)),
        lambda at, d: at.__setitem__(slice(None), d.at().numpy()),
        True,
    ),
    "a list of numbers": Kind(lambda d: [1], terms, lambda s, d: s.append(d.shift()), True),
    "buffers of a module in args": Kind(BUFFERS[0], lambda u, m: m(u), BUFFERS[1], True),
    "buffers of a module": Kind(BUFFERS[0], None, BUFFERS[1]),
    "a frozen weight": Kind(
        lambda d: torch.nn.Parameter(d.matrix(3, d.n), requires_grad=False),
        lambda u, w: F.linear(u, w).tanh(),
        lambda w, d: setattr(w, "data", d.matrix(3, d.n)),
    ),
    "a frozen kernel": Kind(
        lambda d: d.matrix(1, 1, 3),
        lambda u, w: F.conv1d(u[None, None], w, padding=1).sin(),
        lambda w, d: w.copy_(d.matrix(1, 1, 3, zeros=0.3)),
    ),
    "a constant matrix": Kind(
        lambda d: d.matrix(4, d.n), lambda u, D: D @ (u * u), lambda D, d: D.numpy().fill(d.r.uniform(1, 2))
    ),
    "an index of the closure, in place": Kind(Draw.at, gather, lambda at, d: at.copy_(d.at())),
    "an index of the closure, another": Kind(Draw.at, gather, lambda at, d: d.at()),
    "a global number": Kind(lambda d: another_shift(None, d), lambda u, _: u * u.roll(shift), another_shift),
    "an attribute of an object in args": Kind(
        lambda d: Options(),
        lambda u, o: u * u.roll(o.shift),
        lambda o, d: setattr(o, "shift", d.shift()),
        True,
    ),
    "a list of an object in args": Kind(
        lambda d: Options(),
        lambda u, o: torch.stack([u.roll(s) for s in o.shifts]).prod(0),
        lambda o, d: o.shifts.append(d.shift()),
        True,
    ),
    "another sparse matrix": another(
        lambda d: ls.CSR.from_dense(d.matrix(3, d.n, zeros=0.6)), lambda u, A: A @ u.sin()
    ),
    "another torch.sparse matrix": another(
        lambda d: d.matrix(3, d.n, zeros=0.6).to_sparse(), lambda u, A: (A @ u[:, None]).sin()
    ),
    "an operation that vmap gets wrong": switched(lambda u: torch.cdist(u[:, None], u.flip(0)[:2, None] + 1)),
    "an operation without vmap": switched(into_zeros, lambda u: u * u),
    "an operation that forward mode gets wrong": switched(
        lambda u: u.new_ones(2).scatter_reduce(0, torch.arange(len(u)) % 2, u, "prod"),
        lambda u: torch.stack([u[::2].sum(), u[1::2].prod()]),
    ),
    "a size": switched(lambda u: u[1:] * u[:-1], lambda u: u * u),
    "a derivative that was 0": switched(lambda u: u**2, lambda u: torch.ones_like(u)),
    "a branch by values of u": Kind(
        lambda d: None, lambda u, _: u.sin() if u.sum() > 0 else u.roll(1) * u, lambda _, d: None
    ),
    "dropout": Kind(
        lambda d: torch.nn.Dropout(0.5).eval(),
        lambda u, m: m(u * u),
        lambda m, d: m.train(),
        nothing_dropped=lambda u: 2 * u * u,
    ),
}


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


def kept_fault(name: str, seed: int, counts: Counter) -> str | None:
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
            counts["rejected"] += 1
            return None
        draws = step > 0 and kept.nothing_dropped is not None
        f = kept.nothing_dropped if draws else kept.f
        true = (dense_hessian if form == "hessian" else dense)(f, u, args)
        if draws:  # the draw of `found` is not known
            true = true.where(found != 0, 0)
        counts["changes"] += step > 0
        tolerance = 100 * torch.finfo(dtype).eps ** 0.5 * float(true.abs().max() if true.numel() else 0)
        if found.shape != true.shape or not float((found - true).abs().max()) <= tolerance:
            same = found.shape == true.shape
            off = (
                f"differs by {float((found - true).abs().max()):.2g}"
                if same
                else f"has shape {tuple(found.shape)}"
            )
            return f"{form} ({mode}) after {name} {off} at seed {seed}"
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
            if sentence := kept_fault(names[i % len(names)], 100_000 * seed + i, counts):
                yield sentence
