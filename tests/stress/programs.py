"""Patterns of Jacobians of random programs."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

import learnsolve as ls
from learnsolve.nonlinear import jacobian, jacobian_pattern

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
        match r.randrange(4):
            case 0:
                a.add_(x.narrow(d, 1, n - 1))
            case 1:
                b.copy_(x.narrow(d, 0, n - 1) ** 2)
            case 2:
                a.mul_(0.5).select(d, 0).zero_()
            case 3:
                y.transpose(0, -1)[0] = 1.5
    return y


def accumulated(r: random.Random, x: Tensor) -> Tensor:
    v = x.reshape(-1)
    at, n = integers(r, 5, v.numel()), 5
    zeros = x.new_zeros(n) + (v[:n].sum() if r.random() < 0.3 else 0)
    match r.randrange(4):
        case 0:
            return zeros.index_add(0, at, v)
        case 1:
            return zeros.scatter_add(0, at, v)
        case 2:
            return zeros.index_put((at,), v, accumulate=True)
        case _:
            return zeros.index_put((torch.arange(min(n, v.numel())),), v[:n])


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
    B = blocks_of(r, x)
    match r.randrange(7):
        case 0:
            return torch.linalg.solve(B, B.sin())
        case 1:
            return torch.linalg.solve(B[0].detach(), B.flatten(1).T[: B.shape[1]])
        case 2:
            return torch.linalg.inv(B)
        case 3:
            return torch.logdet(B)
        case 4:
            return torch.linalg.cholesky(B @ B.mT)
        case 5:
            return torch.linalg.matrix_exp(B / 4)
        case _:
            return torch.linalg.eigvalsh(B + B.mT + torch.diag(torch.arange(B.shape[-1])))


def transformed(r: random.Random, x: Tensor) -> Tensor:
    d = axis(r, x)
    match r.randrange(4):
        case 0:
            return torch.fft.fft(x, dim=d).abs()
        case 1:
            return torch.fft.irfft(torch.fft.rfft(x, dim=d) * 1j, n=x.shape[d], dim=d)
        case 2:
            return torch.fft.ifftn(torch.fft.fftn(x).sin()).real
        case _:
            z = torch.complex(x, x.roll(1, d))
            z.real.mul_(2)
            return (z.conj() * z.flip(0)).imag


def resampled(r: random.Random, x: Tensor) -> Tensor:
    y = flat2(r, x)[None]
    match r.randrange(6):
        case 0:
            return F.interpolate(
                y, scale_factor=r.choice([0.5, 1.5, 2.0]) if y.shape[-1] > 1 else 2, mode="linear"
            )
        case 1:
            return F.interpolate(
                y[None], size=(3, 4), mode=r.choice(["bilinear", "bicubic"]), align_corners=True
            )
        case 2:
            return F.interpolate(y, size=5, mode=r.choice(["nearest", "nearest-exact", "area"]))
        case 3:
            return F.adaptive_avg_pool2d(y, (2, 2))
        case 4:
            return F.fold(F.unfold(y[None], (1, 1)) ** 2, y.shape[1:], (1, 1))
        case _:
            return (
                F.pad(y, (1, 1), mode="replicate") if r.random() < 0.5 else F.pad(y, (0, 1), mode="circular")
            )


def sparse_product(r: random.Random, x: Tensor) -> Tensor:
    A, v = matrix(r, 3), x.reshape(-1)
    B = ls.CSR(v[integers(r, v.numel(), A.nnz)], A.pattern)
    match r.randrange(3):
        case 0:
            return (A @ B).values
        case 1:
            return (B.T @ B).values
        case _:
            return ls.ops.spgemm(B, A, mask=A.pattern).values


def solved(r: random.Random, x: Tensor) -> Tensor:
    y = flat2(r, x)
    A = matrix(r, len(y))
    match r.randrange(3):
        case 0:
            return ls.ops.spsolve(A, y)
        case 1:
            return ls.ops.sptrsv(A.tril(), y)
        case _:
            return ls.solvers.gmres(A, y, rtol=1e-12, atol=1e-300, maxiter=100).x


UNARY = [
    torch.sin,
    torch.tanh,
    torch.relu,
    torch.abs,
    torch.square,
    torch.sigmoid,
    F.softplus,
    F.gelu,
    torch.floor,
]
UNARY += [
    torch.sign,
    F.leaky_relu,
    F.silu,
    torch.round,
    lambda x: x.clamp(-0.5, 0.5),
    lambda x: 1 / (1 + x * x),
]
UNARY += [lambda x: x.detach() * x.roll(1), lambda x: (x > 0.1).to(x.dtype) * x, lambda x: x * 0.5 - 1]
BINARY = [
    torch.add,
    torch.mul,
    torch.sub,
    torch.maximum,
    torch.hypot,
    lambda a, b: torch.where(a > b, a, b * b),
]
BINARY += [lambda a, b: a / (2 + b.tanh()), torch.atan2, lambda a, b: torch.lerp(a, b, 0.3)]
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
        numbers(r, 3, zeros=0.3), x.reshape(-1), boundary=r.choice(["zero", "periodic"])
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


def dense(f: Callable[[Tensor], Tensor], u: Tensor) -> Tensor:
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
        pattern = jacobian_pattern(f, u)
    said = " ".join(str(w.message) for w in caught)
    allowed = ls.CSR(torch.ones(pattern.nnz, dtype=F64), pattern).to_dense() != 0
    r = random.Random(seed + 2)
    others = [] if "reads values" in said else [numbers(r, *u.shape), 3 * numbers(r, *u.shape)]
    counts["programs"] += 1
    counts["programs with a warning"] += "jacobian_pattern:" in said
    D = torch.zeros(())
    for x in (u, *others):
        D = dense(f, x)
        missed = (D != 0) & D.isfinite() & ~allowed
        if missed.any():
            return f"pattern of {names} misses {missed.nonzero()[0].tolist()} at seed {seed}"
    D = dense(f, u)
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
