"""Every public operation and solver as a function of tensors, with what it needs of a matrix."""

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import learnsolve as ls
from learnsolve import ops, solvers
from learnsolve.solvers.options import KRYLOV

from ._samples import KINDS, Sample

P = ls.preconditioners


@dataclass(frozen=True)
class Call:
    """f(sample, *leaves) gives a tensor, a CSR, a Solution, or several; `leaves` are codes of Sample.leaf.

    `needs` is "any" pattern, "square", "spd" or "local", which is "spd" without long rows; `light` is a limit
    for the entries of those that cost more.
    """

    leaves: str
    f: Callable[..., Any]
    needs: str = "any"
    light: int = 10**9

    def takes(self, s: Sample) -> bool:
        square = s.P.shape[0] == s.P.shape[1]
        local = s.spd and int(np.diff(s.S.indptr).max(initial=0)) < 100
        able = {"any": True, "square": square, "spd": s.spd, "local": local}[self.needs]
        return able and s.P.nnz <= self.light

    def tensors(self, s: Sample, leaves: list[Tensor], backward: bool = True) -> list[Tensor]:
        """The results, then the gradients of the leaves."""
        found = flat(self.f(s, *leaves))
        wanted = [t for t in found if t.requires_grad]
        if not backward or not wanted:
            return [t.detach() for t in found]
        by = [s.normal(*t.shape, salt=77 + i).to(t.dtype) for i, t in enumerate(wanted)]
        grads = torch.autograd.grad(wanted, leaves, by, allow_unused=True)
        return [t.detach() for t in (*found, *(g for g in grads if g is not None))]

    def make(self, s: Sample) -> list[Tensor]:
        return [s.leaf(code, salt).requires_grad_() for salt, code in enumerate(self.leaves)]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of solves that end before they have converged."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@dataclass
class Turn:
    """A call on a matrix that it takes, with the sentence that repeats it."""

    number: int
    name: str
    call: Call
    s: Sample
    where: str

    def faults(self, sentences: Iterator[str]) -> Iterator[str]:
        """What is yielded, and what is raised: of any kind, the others are tried."""
        try:
            for sentence in sentences:
                yield f"{self.where}: {sentence}"
        except Exception as error:
            yield f"{self.where}: {type(error).__name__}: {error}"


def turns(
    calls: dict[str, Call], count: int, seed: int, work: int, counts: Counter, first: int = -1, rows: int = 0
) -> Iterator[Turn]:
    """`count` times the next call, on a random matrix of at least so many rows and columns."""
    rng, names, number = np.random.default_rng((seed, 1)), list(calls), first
    with quiet():
        while counts["calls"] < count:
            number += 1
            name = names[number % len(names)]
            s = Sample.draw(str(rng.choice(list(KINDS))), int(rng.integers(2**31)), work)
            if calls[name].takes(s) and min(s.P.shape) >= rows:
                counts["calls"] += 1
                where = f"{name}, {s.kind} {s.P.shape}, seed {seed}, case {number}"
                yield Turn(number, name, calls[name], s, where)


def flat(found: Any) -> list[Tensor]:
    if isinstance(found, Tensor):
        return [found]
    if isinstance(found, ls.CSR):
        return [found.values]
    if isinstance(found, solvers.Solution):
        return [found.x, found.residual_norms]
    return [t for part in found for t in flat(part)]


def _shifted(s: Sample) -> ls.SparsityPattern:
    """Another pattern of the same shape: the columns in opposite order."""
    other = ls.CSR.from_coo(
        s.P.row_indices, s.P.shape[1] - 1 - s.P.col_indices, torch.ones(s.P.nnz), s.P.shape
    )
    return other.pattern


def _thin(s: Sample, size: int) -> ls.CSR:
    """Two entries in each of `size` rows."""
    n = max(size // 3, 2)
    rows = torch.arange(size).repeat_interleave(2)
    columns = (rows * 7 + torch.arange(2 * size) % 2) % n
    return ls.CSR.from_coo(rows, columns, s.normal(2 * size, salt=50), (size, n))


def _any_order(s: Sample, size: int) -> np.ndarray:
    return np.random.default_rng(s.seed).permutation(size)


def _grid(s: Sample, *sizes: int) -> tuple[int, ...]:
    """A grid with about as many points as the matrix has entries."""
    first = max(s.P.nnz // int(np.prod(sizes)), 3)
    return (first, *sizes)


def A(s: Sample, v: Tensor) -> ls.CSR:
    return ls.CSR(v, s.P)


NORMS: list[tuple[float | None, int | None]] = [(None, None), (1, None), (torch.inf, None), (2, 0), (2, 1)]

# Operations on any matrix, square or not.
CALLS: dict[str, Call] = {
    "spmm": Call("vx", lambda s, v, x: A(s, v) @ x),
    "spmm transpose": Call("vy", lambda s, v, y: ops.spmm(A(s, v), y, transpose=True)),
    "spmm batch of values": Call("Vx", lambda s, v, x: ops.spmm(A(s, v), x)),
    "spmm batch of x": Call("vX", lambda s, v, x: ops.spmm(A(s, v), x)),
    "x @ A": Call("vr", lambda s, v, x: x @ A(s, v)),
    "sddmm": Call("yx", lambda s, y, x: ops.sddmm(y, x, s.P)),
    "spgemm": Call("v", lambda s, v: A(s, v) @ _thin(s, s.P.shape[1])),
    "spgemm mask": Call(
        "v",
        lambda s, v: ops.spgemm(
            A(s, v),
            _thin(s, s.P.shape[1]),
            mask=(ls.CSR(v.detach(), s.P) @ _thin(s, s.P.shape[1])).triu().pattern,
        ),
    ),
    "galerkin": Call("v", lambda s, v: ops.galerkin(_thin(s, s.P.shape[0]), A(s, v)), "square"),
    "add": Call("vvs", lambda s, v, w, t: ops.add(A(s, v), A(s, w), alpha=t)),
    "add union": Call("vv", lambda s, v, w: A(s, v) + ls.CSR(w, _shifted(s))),
    "A * B": Call("vv", lambda s, v, w: A(s, v) * ls.CSR(w, _shifted(s))),
    "arithmetic": Call("vs", lambda s, v, t: [A(s, v).abs() ** 2, -A(s, v), A(s, v) / t, t * A(s, v)]),
    "transpose": Call("v", lambda s, v: ops.transpose(A(s, v))),
    "diagonal": Call("v", lambda s, v: [ops.diagonal(A(s, v)), A(s, v).diagonal(-1)]),
    "trace": Call("v", lambda s, v: ops.trace(A(s, v)), "square"),
    "inverse_diagonal": Call("a", lambda s, v: ops.inverse_diagonal(A(s, v)), "spd"),
    "sum": Call("V", lambda s, v: [ops.sum(A(s, v)), ops.sum(A(s, v), 0), ops.sum(A(s, v), 1)]),
    "norm": Call("v", lambda s, v: [ops.norm(A(s, v), o, dim) for o, dim in NORMS]),
    "quadratic_form": Call("vx", lambda s, v, x: ops.quadratic_form(A(s, v), x), "square"),
    "scale_rows": Call("vr", lambda s, v, r: ops.scale_rows(A(s, v), r)),
    "scale_columns": Call("vc", lambda s, v, c: ops.scale_columns(A(s, v), c)),
    "symmetric_scaling": Call("a", lambda s, v: ops.symmetric_scaling(A(s, v)), "spd"),
    "tril": Call("v", lambda s, v: ops.tril(A(s, v))),
    "triu": Call("v", lambda s, v: ops.triu(A(s, v), 1)),
    "permute": Call("v", lambda s, v: ops.permute(A(s, v), *(_any_order(s, size) for size in s.P.shape))),
    "A[rows]": Call("v", lambda s, v: A(s, v)[_any_order(s, s.P.shape[0])[: s.P.shape[0] // 2]]),
    "A[:, columns]": Call("v", lambda s, v: A(s, v)[:, ::2]),
    "hstack": Call("vv", lambda s, v, w: ops.hstack([A(s, v), A(s, w)])),
    "vstack": Call("vv", lambda s, v, w: ops.vstack([A(s, v), A(s, w)])),
    "block_diag": Call("vv", lambda s, v, w: ops.block_diag([A(s, v), A(s, w).T])),
    "block": Call("vv", lambda s, v, w: ops.block([[A(s, v), None], [None, A(s, w).T]])),
    "kron": Call("v", lambda s, v: ops.kron(ops.eye(2, dtype=s.dtype, index_dtype=s.index), A(s, v))),
    "diag": Call("c", lambda s, c: ops.diag(c)),
    "real_form": Call("vv", lambda s, v, w: ops.real_form(A(s, v), A(s, w))),
    "zeros": Call("c", lambda s, c: ops.zeros(len(c), dtype=s.dtype) @ c),
    "eye": Call("c", lambda s, c: ops.eye(len(c), dtype=s.dtype) @ c),
    "from_coo": Call(
        "e",
        lambda s, e: ls.CSR.from_coo(
            s.P.row_indices.repeat(3), s.P.col_indices.repeat(3), e.flatten(), s.P.shape
        ),
    ),
    "gather": Call("xy", lambda s, x, y: [ops.gather(y, s.P), ops.gather(x, s.P, "column")]),
    "stencil": Call(
        "s", lambda s, t: ops.stencil(_window(s) * t, s.normal(*_grid(s, 30), salt=60).requires_grad_())
    ),
    "stencil x": Call(
        "v", lambda s, v: ops.stencil(_window(s), v[: v.numel() // 8 * 8].unflatten(0, (-1, 8)))
    ),
    "stencil variable": Call("e", lambda s, e: ops.stencil(_of_grid(e), _of_grid(e)[0], offsets=LINE)),
    "stencil_matrix": Call("e", lambda s, e: ops.stencil_matrix(_of_grid(e), (len(e),), offsets=LINE)),
    "StencilOperator": Call(
        "ec", lambda s, e, c: ops.StencilOperator(_of_grid(e), (len(e),), offsets=LINE) @ e[:, 0]
    ),
}
for by in ("row", "column"):
    for name in ("segment_sum", "segment_mean", "segment_max", "segment_softmax"):
        f = getattr(ops, name)
        CALLS[f"{name} {by}"] = Call("e", lambda s, e, f=f, by=by: f(e, s.P, by))

LINE = [(-1,), (0,), (1,)]


def _window(s: Sample) -> Tensor:
    return s.normal(3, 3, salt=61)


def _of_grid(e: Tensor) -> Tensor:
    return e.mT.contiguous()


def _network(s: Sample, network: torch.nn.Module) -> Any:
    """With weights of the sample, whatever torch's generator has drawn."""
    network = network.to(s.dtype)
    with torch.no_grad():
        for i, p in enumerate(network.parameters()):
            p.copy_(0.3 * s.normal(*p.shape, salt=200 + i))
    return network


def _detached(s: Sample) -> ls.CSR:
    return A(s, s.dominant())


def _learned(s: Sample, module: Any, *arguments: Any) -> list[Tensor]:
    """The result of a module, and the gradients of its parameters."""
    found = flat(module(*arguments))
    parameters, by = list(module.parameters()), s.normal(*found[0].shape, salt=99)
    return [*found, *torch.autograd.grad(found[0], parameters, by, retain_graph=True)]


# Triangular and direct solves, incomplete factors.
CALLS |= {
    "sptrsv lower": Call("ax", lambda s, v, x: ops.sptrsv(A(s, v).tril(), x), "spd"),
    "sptrsv upper": Call("ax", lambda s, v, x: ops.sptrsv(A(s, v).triu(), x, lower=False), "spd"),
    "sptrsv transpose": Call(
        "ax",
        lambda s, v, x: ops.sptrsv(A(s, 0.01 * v).tril(), x, transpose=True, unit_diagonal=True),
        "spd",
    ),
    "sptrsv batch": Call("aX", lambda s, v, x: ops.sptrsv(A(s, v).tril(), x), "spd"),
    "spsolve": Call("ax", lambda s, v, x: ops.spsolve(A(s, v), x), "local", light=20_000),
    "factorize": Call("ax", lambda s, v, x: ls.factorize(A(s, v))(x), "local", light=20_000),
    "lstsq": Call("ay", lambda s, v, y: ops.lstsq(A(s, v), y, damp=0.5), "local", light=20_000),
    "cholesky": Call("a", lambda s, v: ops.cholesky(A(s, v))[:1], "local", light=20_000),
    "ldlt": Call("a", lambda s, v: ops.ldlt(A(s, v))[:2], "local", light=20_000),
    "lu": Call("a", lambda s, v: ops.lu(A(s, v))[:2], "local", light=20_000),
    "logdet": Call("a", lambda s, v: ops.logdet(A(s, v)), "local", light=20_000),
    "slogdet": Call("a", lambda s, v: ops.slogdet(A(s, v))[1], "local", light=20_000),
    "selected_inverse": Call("a", lambda s, v: ops.selected_inverse(A(s, v)), "local", light=20_000),
    "ic0": Call("a", lambda s, v: ops.ic0(A(s, v))[:1], "spd"),
    "mic0": Call("a", lambda s, v: ops.mic0(A(s, v))[:1], "spd"),
    "ilu0": Call("a", lambda s, v: ops.ilu0(A(s, v))[:2], "spd"),
    "ict": Call("a", lambda s, v: ops.ict(A(s, v), fill=2)[:1], "spd", light=60_000),
    "ilut": Call("a", lambda s, v: ops.ilut(A(s, v), fill=2)[:2], "spd", light=60_000),
}

# Krylov methods, with the gradient of the solution and of the iterations, with and without a preconditioner.
for name in KRYLOV:
    f = getattr(solvers, name)
    CALLS[name] = Call(
        "ax", lambda s, v, x, f=f: f(A(s, v), x, rtol=1e-3, maxiter=6, adjoint_maxiter=6), "spd"
    )
    CALLS[f"{name} unrolled"] = Call(
        "ax", lambda s, v, x, f=f: f(A(s, v), x, rtol=0.0, maxiter=3, gradient="unrolled"), "spd"
    )
    CALLS[f"{name} with M"] = Call(
        "ax",
        lambda s, v, x, f=f: f(A(s, v), x, rtol=1e-3, maxiter=4, M=P.SSOR(A(s, v)), adjoint_maxiter=4),
        "spd",
    )
for name in ("lsqr", "lsmr"):
    f = getattr(solvers, name)
    CALLS[name] = Call("vy", lambda s, v, y, f=f: f(A(s, v), y, damp=0.5, maxiter=4, adjoint_maxiter=4))
    CALLS[f"{name} unrolled"] = Call("vy", lambda s, v, y, f=f: f(A(s, v), y, maxiter=3, gradient="unrolled"))
# Stationary methods.
CALLS |= {
    "solve": Call("ax", lambda s, v, x: ls.solve(A(s, v), x, rtol=1e-2), "local", light=20_000),
    "jacobi": Call("axc", lambda s, v, x, c: solvers.jacobi(A(s, v), x, weight=0.1 * c, iterations=4), "spd"),
    "jacobi checkpointed": Call(
        "axs",
        lambda s, v, x, t: solvers.jacobi(A(s, v), x, weight=t.tanh(), iterations=5, gradient="checkpointed"),
        "spd",
    ),
    "richardson": Call(
        "axs", lambda s, v, x, t: solvers.richardson(A(s, v), x, weight=0.1 * t, iterations=4), "spd"
    ),
    "richardson with M": Call(
        "ax",
        lambda s, v, x: solvers.richardson(A(s, v), x, weight=0.5, iterations=2, M=P.IC0(A(s, v))),
        "spd",
    ),
    "heavyball": Call(
        "axs",
        lambda s, v, x, t: solvers.heavyball(A(s, v), x, alpha=0.1 * t, beta=0.1 * t, iterations=4),
        "spd",
    ),
    "chebyshev": Call(
        "ax", lambda s, v, x: solvers.chebyshev(A(s, v), x, lmin=0.5, lmax=9.0, iterations=4), "spd"
    ),
    "gauss_seidel": Call("ax", lambda s, v, x: solvers.gauss_seidel(A(s, v), x, iterations=2), "spd"),
    "sor": Call("axs", lambda s, v, x, t: solvers.sor(A(s, v), x, omega=1 + 0.1 * t, iterations=2), "spd"),
    "ssor": Call("axs", lambda s, v, x, t: solvers.ssor(A(s, v), x, omega=1 + 0.1 * t, iterations=2), "spd"),
    "gauss_seidel multicolor": Call(
        "ax", lambda s, v, x: solvers.gauss_seidel(A(s, v), x, iterations=2, multicolor=True), "spd"
    ),
    "PCG": Call("ax", lambda s, v, x: solvers.PCG(P.Jacobi(A(s, v)), rtol=0.0, maxiter=3)(A(s, v), x), "spd"),
    "PCG of a factor": Call(
        "ax", lambda s, v, x: solvers.PCG(P.IC0(A(s, v)), rtol=0.0, maxiter=3)(A(s, v), x), "spd"
    ),
}

# Preconditioners, applied.
for name, make in {
    "Jacobi": P.Jacobi,
    "IC0": P.IC0,
    "MIC0": P.MIC0,
    "ILU0": P.ILU0,
    "SOR": P.SOR,
    "SSOR": P.SSOR,
    "BlockJacobi": lambda M: P.BlockJacobi(M, 4),
    "Chebyshev": lambda M: P.Chebyshev(M, lmin=0.2, lmax=2.0),
    "Neumann": lambda M: P.Neumann(M, degree=2),
    "Polynomial": lambda M: P.Polynomial(M, [0.5, -0.1]),
    "FSAI": P.FSAI,
    "Diagonal": lambda M: P.Diagonal(1 / M.diagonal()),
    "Factored": lambda M: P.Factored(0.1 * M.tril(), form="product"),
    "Trainable Jacobi": lambda M: P.Trainable(P.Jacobi(M.detach())),
    "Trainable Polynomial": lambda M: P.Trainable(P.Polynomial.neumann(M.detach(), 2)),
    "Trainable product": lambda M: P.Trainable(P.Factored(M.detach().tril(), form="product")),
    "Trainable IC0": lambda M: P.Trainable(P.IC0(M.detach()), positive="exp"),
}.items():
    CALLS[f"preconditioner {name}"] = Call("ax", lambda s, v, x, f=make: f(A(s, v))(x), "spd")
for name, make in {
    "AMG": P.AMG,
    "AMG, classical": lambda M: P.AMG(M, method="ruge_stuben"),
    "AdditiveSchwarz": lambda M: P.AdditiveSchwarz(M, n_subdomains=4),
    "SPAI": P.SPAI,
    "ICT": lambda M: P.ICT(M, fill=1),
    "ILUT": lambda M: P.ILUT(M, fill=1),
    "Trainable AMG": lambda M: P.Trainable(P.AMG(M.detach(), max_coarse=4)),
    "NeuralIF": lambda M: P.NeuralIF(rounds=1, width=2, dtype=M.dtype)(M),
    "PreCorrector": lambda M: P.PreCorrector(rounds=1, width=2, dtype=M.dtype)(M),
    "NeuralAMG": lambda M: P.NeuralAMG(rounds=1, width=2, dtype=M.dtype)(M),
    "GNP": lambda M: P.GNP(M.detach(), width=4, layers=2, dtype=M.dtype),
}.items():
    CALLS[f"preconditioner {name}"] = Call("ax", lambda s, v, x, f=make: f(A(s, v))(x), "local", light=20_000)
# Their parameters, and those of learned ones.
CALLS |= {
    "Neumann weight": Call("axs", lambda s, v, x, t: P.Neumann(A(s, v), weight=0.1 * t.exp())(x), "spd"),
    "SSOR omega": Call("axs", lambda s, v, x, t: P.SSOR(A(s, v), 1 + 0.5 * t.tanh())(x), "spd"),
    "Polynomial coefficients": Call(
        "axs", lambda s, v, x, t: P.Polynomial(A(s, v), torch.stack([t, 0.1 * t]))(x), "spd"
    ),
    "Chebyshev ends": Call(
        "axs", lambda s, v, x, t: P.Chebyshev(A(s, v), lmin=0.2 + t.exp(), lmax=9 + t.exp())(x), "spd"
    ),
    "learned Chebyshev": Call(
        "ax", lambda s, v, x: _learned(s, solvers.Chebyshev(0.5, 2.0, 3).to(s.dtype), A(s, v), x), "spd"
    ),
    "learned Jacobi": Call("x", lambda s, x: _learned(s, P.Trainable(P.Jacobi(_detached(s))), x), "spd"),
    "learned Polynomial": Call(
        "x", lambda s, x: _learned(s, P.Trainable(P.Polynomial.neumann(_detached(s), 2)), x), "spd"
    ),
    "learned Polynomial, Chebyshev": Call(
        "x", lambda s, x: _learned(s, P.Trainable(P.Polynomial.chebyshev(_detached(s), 2)), x), "spd"
    ),
    "learned IC0": Call(
        "x", lambda s, x: _learned(s, P.Trainable(P.IC0(_detached(s)), positive="exp"), x), "spd"
    ),
    "learned product": Call(
        "x", lambda s, x: _learned(s, P.Trainable(P.Factored(_detached(s).tril(), form="product")), x), "spd"
    ),
}
# Layers of networks and estimates of spectra, which are made of kernels of their own too.
CALLS |= {
    "GCNConv": Call(
        "a", lambda s, v: _network(s, ls.nn.GCNConv(3, 5))(A(s, v), s.normal(s.P.shape[1], 3, salt=62)), "spd"
    ),
    "ResGCN": Call(
        "a",
        lambda s, v: _network(s, ls.nn.ResGCN(3, 2, width=4, layers=2))(
            A(s, v), s.normal(s.P.shape[1], 3, salt=62)
        ),
        "spd",
    ),
    "GraphNetBlock": Call(
        "ae",
        lambda s, v, e: _network(s, ls.nn.GraphNetBlock(2, 3, rows=("mean", "max"), columns="sum"))(
            A(s, v), s.normal(s.P.shape[1], 2, salt=63), e
        ),
        "spd",
    ),
    "extreme_eigenvalues": Call(
        "a", lambda s, v: ls.analysis.extreme_eigenvalues(A(s, v), steps=6)[:2], "spd"
    ),
}
del by, name, f, make
