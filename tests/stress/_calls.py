"""Random matrices of all kinds, and every public operation and solver as a function of tensors, with what it
needs of a matrix."""

import contextlib
import hashlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import torch
from preconditioners.cases import CASES
from torch import Tensor

import learnsolve as ls
from learnsolve import ops, solvers
from learnsolve.solvers.options import KRYLOV

P = ls.preconditioners


def _csr(S: Any, shape: tuple[int, int] | None = None) -> Any:
    """A SciPy matrix, whose types pyright does not know well."""
    return scipy.sparse.csr_array(S, shape=shape)


def _bands(n: int, width: int) -> Any:
    rows = np.repeat(np.arange(n), 2 * width + 1)
    columns = rows + np.tile(np.arange(-width, width + 1), n)
    kept = (columns >= 0) & (columns < n)
    return _csr((np.ones(kept.sum()), (rows[kept], columns[kept])), (n, n))


def _stencil(rng: np.random.Generator, entries: int) -> Any:
    """5, 9 or 7 points on a grid with sides of their own."""
    points = int(rng.choice([5, 7, 9]))
    d = 3 if points == 7 else 2
    sides = [max(2, round((entries / points) ** (1 / d)))] * d
    sides[0] += int(rng.integers(0, 5))
    if points == 9:
        return _csr(scipy.sparse.kron(*(_bands(n, 1) for n in sides)))
    return ls.problems.poisson(tuple(sides)).to_scipy()


def _of_lengths(rng: np.random.Generator, lengths: np.ndarray, n: int) -> Any:
    """Rows with these numbers of entries, in columns drawn at random."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    S = _csr((np.ones(len(rows)), (rows, rng.integers(0, max(n, 1), len(rows)))), (len(lengths), n))
    S.sum_duplicates()
    return S


def _random(rng: np.random.Generator, entries: int) -> Any:
    n = entries // int(rng.integers(4, 12))
    return _of_lengths(rng, rng.poisson(entries / n, n), n)


def _power_law(rng: np.random.Generator, entries: int) -> Any:
    """A few rows hold a large part of the entries."""
    n = entries // 8
    lengths = np.minimum(n, 2 + n // (4 * (np.arange(n) + 1)))
    return _of_lengths(rng, rng.permutation(lengths), n)


def _banded(rng: np.random.Generator, entries: int) -> Any:
    width = int(rng.integers(1, 7))
    return _bands(max(entries // (2 * width + 1), width + 1), width)


def _empty_rows(rng: np.random.Generator, entries: int) -> Any:
    """Half of the rows, and a stretch of them, hold nothing."""
    n = entries // 4
    lengths = rng.poisson(8, n) * (rng.random(n) < 0.5)
    lengths[n // 3 : n // 2] = 0
    return _of_lengths(rng, lengths, n)


def _wide(rng: np.random.Generator, entries: int) -> Any:
    m = max(entries // 60, 1)
    return _of_lengths(rng, rng.poisson(60, m), 7 * m)


def _tall(rng: np.random.Generator, entries: int) -> Any:
    m = entries // 3
    return _of_lengths(rng, rng.poisson(3, m), max(m // 40, 1))


def _arrow(rng: np.random.Generator, entries: int) -> Any:
    """A full row, a full column, a diagonal."""
    n = entries // 3
    ends = np.zeros(n, dtype=int) + int(rng.integers(0, n))
    rows = np.concatenate([np.arange(n), ends, np.arange(n)])
    columns = np.concatenate([np.arange(n), np.arange(n), ends])
    return _csr((np.ones(3 * n), (rows, columns)), (n, n))


KINDS: dict[str, Callable[[np.random.Generator, int], Any]] = {
    "stencil": _stencil,
    "random": _random,
    "power law": _power_law,
    "banded": _banded,
    "empty rows": _empty_rows,
    "wide": _wide,
    "tall": _tall,
    "arrow": _arrow,
}


@dataclass
class Sample:
    """A pattern and the numbers of everything else, all of them made from the seed alone."""

    kind: str
    seed: int
    S: Any
    dtype: torch.dtype
    index: torch.dtype
    columns: int | None  # of right-hand sides; None: vectors
    P: ls.SparsityPattern
    spd: bool  # symmetric pattern with a full diagonal
    _dominant: Tensor | None = None

    @classmethod
    def draw(cls, kind: str, seed: int, work: int) -> "Sample":
        """About `work` products of an entry and a number. Patterns that are square are symmetric with a full
        diagonal, but for one kind."""
        rng = np.random.default_rng(seed)
        columns = [None, None, 1, 2, 3, 5, 9][int(rng.integers(0, 7))]
        S = KINDS[kind](rng, work // (columns or 1))
        spd = S.shape[0] == S.shape[1] and kind != "empty rows"
        if spd:
            S = _csr(S + S.T + scipy.sparse.eye_array(S.shape[0]))
        S.sort_indices()
        index = [torch.int32, torch.int64][int(rng.integers(0, 2))]
        return cls(kind, seed, S, torch.float64, index, columns, _pattern(S, index), spd)

    def fresh(self) -> None:
        """A pattern that has no plans yet."""
        self.P = _pattern(self.S, self.index)

    def normal(self, *shape: int, salt: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(1000 * self.seed + salt)
        return torch.randn(shape, dtype=torch.float64, generator=generator).to(self.dtype)

    def dominant(self) -> Tensor:
        """Symmetric values with a dominant diagonal: entry (i, j) is made of i and j alone."""
        if self._dominant is None:
            rows = np.repeat(np.arange(self.S.shape[0]), np.diff(self.S.indptr))
            low, high = np.minimum(rows, self.S.indices), np.maximum(rows, self.S.indices)
            noise = np.abs(np.sin(low * 12.9898 + high * 78.233 + self.seed) * 43758.5453)
            values = -0.2 - 0.8 * np.modf(noise)[0]
            sums = np.bincount(rows, weights=np.where(low == high, 0, -values), minlength=self.S.shape[0])
            self._dominant = torch.from_numpy(np.where(low == high, 0.05 + sums[rows], values))
        return self._dominant.to(self.dtype, copy=True)

    def leaf(self, code: str, salt: int) -> Tensor:
        """v values, V two members of them, a those of a dominant matrix; x and y blocks of vectors for the
        columns and the rows, X a batch of them; c and r a vector each, e features of entries, s a number; p
        and u a vector and a number between 0.1 and 1."""
        (m, n), tail = self.P.shape, () if self.columns is None else (self.columns,)
        if code == "a":
            return self.dominant()
        if code in "pu":
            return 0.1 + 0.9 * self.normal(*((n,) if code == "p" else ()), salt=salt).sigmoid()
        nnz, pairs = self.P.nnz, (2, n, self.columns or 1)
        blocks = {"v": (nnz,), "V": (2, nnz), "x": (n, *tail), "y": (m, *tail), "X": pairs, "e": (nnz, 3)}
        return self.normal(*(blocks | {"c": (n,), "r": (m,), "s": ()})[code], salt=salt)


def _pattern(S: Any, index: torch.dtype) -> ls.SparsityPattern:
    crow, columns = (torch.from_numpy(a.astype(np.int64)).to(index) for a in (S.indptr, S.indices))
    return ls.SparsityPattern(crow, columns, S.shape)


def digest(t: Tensor) -> bytes:
    return hashlib.sha1(t.detach().contiguous().numpy().tobytes(), usedforsecurity=False).digest()


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
    """The numbers of a result: of factors without a status or an order."""
    if isinstance(found, Tensor):
        return [found] if found.is_floating_point() else []
    if isinstance(found, ls.CSR):
        return [found.values]
    if isinstance(found, solvers.Solution):
        return [found.x, found.residual_norms]
    return [t for part in found for t in flat(part)] if isinstance(found, (list, tuple)) else []


def _shifted(s: Sample) -> ls.SparsityPattern:
    """Another pattern of the same shape: the columns in opposite order."""
    columns = s.P.shape[1] - 1 - s.P.col_indices
    return ls.CSR.from_coo(s.P.row_indices, columns, torch.ones(s.P.nnz), s.P.shape).pattern


def _thin(s: Sample, size: int) -> ls.CSR:
    """Two entries in each of `size` rows."""
    n = max(size // 3, 2)
    rows = torch.arange(size).repeat_interleave(2)
    columns = (rows * 7 + torch.arange(2 * size) % 2) % n
    return ls.CSR.from_coo(rows, columns, s.normal(2 * size, salt=50), (size, n))


def _any_order(s: Sample, size: int) -> np.ndarray:
    return np.random.default_rng(s.seed).permutation(size)


def _window(s: Sample) -> Tensor:
    return s.normal(3, 3, salt=61)


def _of_grid(s: Sample) -> Tensor:
    """About as many numbers as the matrix has entries."""
    return s.normal(max(s.P.nnz // 30, 3), 30, salt=60)


def _bands_of(e: Tensor) -> Tensor:
    return e.mT.contiguous()


def _mask(s: Sample, v: Tensor) -> ls.SparsityPattern:
    return (ls.CSR(v.detach(), s.P) @ _thin(s, s.P.shape[1])).triu().pattern


def _three_times(s: Sample, e: Tensor) -> ls.CSR:
    return ops.Assembly(s.P.row_indices.repeat(3), s.P.col_indices.repeat(3), s.P.shape)(e.flatten())


def A(s: Sample, v: Tensor) -> ls.CSR:
    return ls.CSR(v, s.P)


def _of(leaves: str, names: str, needs: str = "any", light: int = 10**9, **options: Any) -> dict[str, Call]:
    """Operations of a matrix and of the other leaves."""

    def call(name: str) -> Call:
        def f(s: Sample, v: Tensor, *rest: Tensor) -> Any:
            return getattr(ops, name)(A(s, v), *rest, **options)

        return Call(leaves, f, needs, light)

    return {name: call(name) for name in names.split()}


LINE = [(-1,), (0,), (1,)]
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
    "spgemm mask": Call("v", lambda s, v: ops.spgemm(A(s, v), _thin(s, s.P.shape[1]), mask=_mask(s, v))),
    "galerkin": Call("v", lambda s, v: ops.galerkin(_thin(s, s.P.shape[0]), A(s, v)), "square"),
    "add": Call("vvs", lambda s, v, w, t: ops.add(A(s, v), A(s, w), alpha=t)),
    "add union": Call("vv", lambda s, v, w: A(s, v) + ls.CSR(w, _shifted(s))),
    "A * B": Call("vv", lambda s, v, w: A(s, v) * ls.CSR(w, _shifted(s))),
    "arithmetic": Call("vs", lambda s, v, t: [A(s, v).abs() ** 2, -A(s, v), A(s, v) / t, t * A(s, v)]),
    **_of("v", "transpose"),
    "diagonal": Call("v", lambda s, v: [ops.diagonal(A(s, v)), A(s, v).diagonal(-1)]),
    **_of("v", "trace", "square"),
    **_of("a", "inverse_diagonal", "spd"),
    "sum": Call("V", lambda s, v: [ops.sum(A(s, v)), ops.sum(A(s, v), 0), ops.sum(A(s, v), 1)]),
    "norm": Call("v", lambda s, v: [ops.norm(A(s, v), o, dim) for o, dim in NORMS]),
    **_of("vx", "quadratic_form", "square"),
    **_of("vr", "scale_rows"),
    **_of("vc", "scale_columns"),
    **_of("a", "symmetric_scaling", "spd"),
    **_of("v", "tril"),
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
    "real_equivalent": Call("vv", lambda s, v, w: ops.real_equivalent(A(s, v), A(s, w))),
    "zeros": Call("c", lambda s, c: ops.zeros(len(c), dtype=s.dtype) @ c),
    "eye": Call("c", lambda s, c: ops.eye(len(c), dtype=s.dtype) @ c),
    "Assembly": Call("e", _three_times),
    "gather": Call("xy", lambda s, x, y: [ops.gather(y, s.P), ops.gather(x, s.P, "column")]),
    "stencil": Call("s", lambda s, t: ops.stencil(_window(s) * t, _of_grid(s).requires_grad_())),
    "stencil x": Call("v", lambda s, v: ops.stencil(_window(s), v[: len(v) // 8 * 8].unflatten(0, (-1, 8)))),
    "stencil variable": Call("e", lambda s, e: ops.stencil(_bands_of(e), _bands_of(e)[0], offsets=LINE)),
    "stencil_matrix": Call("e", lambda s, e: ops.stencil_matrix(_bands_of(e), (len(e),), offsets=LINE)),
    "StencilOperator": Call(
        "e", lambda s, e: ops.StencilOperator(_bands_of(e), (len(e),), offsets=LINE) @ e[:, 0]
    ),
}
for by in ("row", "column"):
    for name in ("segment_sum", "segment_mean", "segment_max", "segment_softmax"):
        f = getattr(ops, name)
        CALLS[f"{name} {by}"] = Call("e", lambda s, e, f=f, by=by: f(e, s.P, by))


def _layer(s: Sample, network: torch.nn.Module, width: int, v: Tensor, *more: Tensor) -> Any:
    """With weights of the sample, whatever torch's generator has drawn."""
    network = network.to(s.dtype)
    with torch.no_grad():
        for i, p in enumerate(network.parameters()):
            p.copy_(0.3 * s.normal(*p.shape, salt=200 + i))
    return network(A(s, v), s.normal(s.P.shape[1], width, salt=62), *more)


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
        "ax", lambda s, v, x: ops.sptrsv(A(s, 0.01 * v).tril(), x, transpose=True, unit_diagonal=True), "spd"
    ),
    "sptrsv batch": Call("aX", lambda s, v, x: ops.sptrsv(A(s, v).tril(), x), "spd"),
    "factorize": Call("ax", lambda s, v, x: ls.factorize(A(s, v))(x), "local", light=20_000),
    **_of("ax", "spsolve", "local", 20_000),
    **_of("ay", "lstsq", "local", 20_000, damp=0.5),
    **_of("a", "cholesky ldlt lu logdet slogdet selected_inverse", "local", 20_000),
    **_of("a", "ic mic ilu", "spd"),
    **_of("a", "ict ilut", "spd", 60_000, max_fill=2),
}


def _solver(
    name: str, leaves: str = "ax", needs: str = "spd", M: Any = None, numbers: Any = None, **options: Any
) -> Call:
    """A method, with a preconditioner of A, and with numbers that are made of the third leaf."""

    def f(s: Sample, v: Tensor, b: Tensor, *third: Tensor) -> Any:
        more = {} if M is None else {"M": M(A(s, v))}
        return getattr(solvers, name)(A(s, v), b, **more, **(numbers(*third) if third else {}), **options)

    return Call(leaves, f, needs)


# Krylov methods, with the gradient of the solution and of the iterations, with and without a preconditioner.
for name in KRYLOV:
    CALLS[name] = _solver(name, rtol=1e-3, maxiter=6, adjoint_maxiter=6)
    CALLS[f"{name} unrolled"] = _solver(name, iterations=3, gradient="unrolled")
    CALLS[f"{name} with M"] = _solver(name, M=P.SSOR, rtol=1e-3, maxiter=4, adjoint_maxiter=4)
for name in ("lsqr", "lsmr"):
    CALLS[name] = _solver(name, "vy", "any", damp=0.5, maxiter=4, adjoint_maxiter=4)
    CALLS[f"{name} unrolled"] = _solver(name, "vy", "any", maxiter=3, gradient="unrolled")


def _pcg(M: Any) -> Call:
    return Call("ax", lambda s, v, x: solvers.CG(M(A(s, v)), iterations=3)(A(s, v), x), "spd")


# Stationary methods.
CALLS |= {
    "solve": Call("ax", lambda s, v, x: ls.solve(A(s, v), x, rtol=1e-2), "local", light=20_000),
    "jacobi": _solver("jacobi", "axc", numbers=lambda c: {"weight": 0.1 * c}, iterations=4),
    "jacobi checkpointed": _solver(
        "jacobi", "axs", numbers=lambda t: {"weight": t.tanh()}, iterations=5, gradient="checkpointed"
    ),
    "richardson": _solver("richardson", "axs", numbers=lambda t: {"weight": 0.1 * t}, iterations=4),
    "richardson with M": _solver("richardson", M=P.IC, weight=0.5, iterations=2),
    "heavyball": _solver(
        "heavyball", "axs", numbers=lambda t: {"alpha": 0.1 * t, "beta": 0.1 * t}, iterations=4
    ),
    "chebyshev": _solver("chebyshev", lmin=0.5, lmax=9.0, iterations=4),
    "gauss_seidel": _solver("gauss_seidel", iterations=2),
    "sor": _solver("sor", "axs", numbers=lambda t: {"omega": 1 + 0.1 * t}, iterations=2),
    "ssor": _solver("ssor", "axs", numbers=lambda t: {"omega": 1 + 0.1 * t}, iterations=2),
    "gauss_seidel multicolor": _solver("gauss_seidel", iterations=2, multicolor=True),
    "CG": _pcg(P.Jacobi),
    "CG of a factor": _pcg(P.IC),
}

# Preconditioners, applied: the rows of tests/preconditioners for any number of unknowns, and others.
OF_A_SIZE = ("AMG", "weights", "learned AMG", "Schwarz, Robin", "Schwarz, restricted on")
COSTLY = ("AMG", "Schwarz", "SPAI", "ICT", "ILUT", "Factorization", "Neural", "PreCorrector", "GNP")
COSTLY += ("Trainable AMG", "learned SPAI")
MAKERS: dict[str, Callable[[ls.CSR], Any]] = {
    case.name: case.make
    for case in CASES
    if case.matrix == "spd" and not any(word in case.name for word in OF_A_SIZE)
}
MAKERS |= {
    "AMG": P.AMG,
    "AMG, classical": lambda M: P.AMG(M, method="ruge_stuben"),
    "Trainable AMG": lambda M: P.Trainable(P.AMG(M.detach(), max_coarse=4)),
    "NeuralIF": lambda M: P.NeuralIF(rounds=1, width=2, dtype=M.dtype)(M),
    "PreCorrector": lambda M: P.PreCorrector(rounds=1, width=2, dtype=M.dtype)(M),
    "NeuralAMG": lambda M: P.NeuralAMG(rounds=1, width=2, dtype=M.dtype)(M),
    "GNP": lambda M: P.GNP(M.detach(), width=4, layers=2, dtype=M.dtype),
}


def _applied(make: Callable[[ls.CSR], Any], name: str) -> Call:
    """Of a module the gradients of its parameters too."""

    def f(s: Sample, v: Tensor, x: Tensor) -> Any:
        M = make(A(s, v.detach() if name.startswith("learned") else v))
        return _learned(s, M, x) if name.startswith("learned") else M(x)

    needs, light = ("local", 20_000) if name.startswith(COSTLY) else ("spd", 10**9)
    return Call("ax", f, needs, light)


CALLS |= {f"preconditioner {name}": _applied(make, name) for name, make in MAKERS.items()}
# Their numbers.
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
}
# Layers of networks and estimates of spectra, which are made of kernels of their own too.
CALLS |= {
    "GCNConv": Call("a", lambda s, v: _layer(s, ls.nn.GCNConv(3, 5), 3, v), "spd"),
    "ResGCN": Call("a", lambda s, v: _layer(s, ls.nn.ResGCN(3, 2, width=4, layers=2), 3, v), "spd"),
    "GraphNetBlock": Call(
        "ae",
        lambda s, v, e: _layer(s, ls.nn.GraphNetBlock(2, 3, rows=("mean", "max"), columns="sum"), 2, v, e),
        "spd",
    ),
    "extreme_eigenvalues": Call(
        "a", lambda s, v: ls.analysis.extreme_eigenvalues(A(s, v), steps=6)[:2], "spd"
    ),
}
del by, name, f
