"""The stationary methods, and their one recurrence

    x' = x + S_k (b - A x) + c_k (x - x before)

on dense matrices by torch alone. A row says what S_k and c_k are; every test of the contract in
test_stationary.py runs for it. Preconditioned conjugate gradients on dense matrices, and systems for them.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import scipy.sparse
import torch
from reference import coordinates, densify, grid, normal, pattern_of, power_law, random
from scipy.sparse import eye_array
from torch import Tensor

import learnsolve as ls
from learnsolve.ops import pcg
from learnsolve.ops.pcg import KINDS, pcg_iterations

S = ls.solvers
MATRICES = {
    "random": random(30, 30, 0.2) + eye_array(30),
    "5 points": grid(5, 6),
    "power law": power_law(40) + eye_array(40),
    "full": random(7, 7, 1.1),
    "diagonal": eye_array(5),
    "1 x 1": eye_array(1),
}

# Batch axes of A's values, and of b those axes and its columns.
SHAPES = {
    "vector": ((), None, ()),
    "one column": ((), (), (1,)),
    "columns": ((), (), (3,)),
    "batch of b": ((), (2,), (2,)),
    "batch of values": ((2,), (), (3,)),
    "batch of values, vector": ((2,), None, ()),
    "batch of both": ((2,), (2,), (2,)),
    "broadcast batches": ((2, 1), (3,), (2,)),
    "two batch axes of b": ((), (2, 3), (2,)),
}

# Shapes of a parameter for a batch B, N steps and n rows.
FORMS = ["()", "(n,)", "(N,)", "(B,)", "(N, B)", "(1, 1)", "(1, n)", "(N, 1)", "(N, n)"]
FORMS += ["(1, N, 1)", "(B, 1, 1)", "(B, N, 1)", "(B, N, n)"]
WITHOUT_ROWS = {"(n,)": "()", "(1, n)": "(1, 1)", "(N, n)": "(N, 1)", "(B, N, n)": "(B, N, 1)"}


def size_of(form: str, B: tuple, N: int, n: int) -> tuple[int, ...]:
    letters = re.findall(r"\w", form)
    sizes = {"B": B, "N": (N,), "n": (n,), "1": (1,)}
    axes = [sizes[letter] for letter in letters]
    if form.startswith("(1,") and len(letters) == 3:
        axes[0] = (1,) * len(B)
    return tuple(itertools.chain(*axes))


def in_full(form: str, value: Tensor) -> Tensor:
    """As (..., 1 or N, 1 or n)."""
    short = {"()": lambda t: t.reshape(1, 1), "(n,)": lambda t: t.unsqueeze(0)}
    short |= {"(N,)": lambda t: t.unsqueeze(-1), "(B,)": lambda t: t[..., None, None]}
    short |= {"(N, B)": lambda t: t.movedim(0, -1).unsqueeze(-1)}
    return short.get(form, lambda t: t)(value)


def small_square() -> ls.SparsityPattern:
    """4 x 4, not symmetric, rows of one to three entries: for derivative checks."""
    D = torch.tensor([[1, 0, 1, 1], [0, 1, 0, 0], [1, 1, 1, 0], [0, 0, 1, 1]])
    return pattern_of(ls.CSR.from_dense(D.double()).to_scipy())


def values_on(
    P: ls.SparsityPattern, *batch: int, dtype: torch.dtype = torch.float64, seed: int = 0
) -> Tensor:
    """Random, not symmetric, with a diagonal well away from zero."""
    rows, columns = coordinates(P)
    v = 0.3 * normal((*batch, P.nnz), seed=seed)
    return torch.where(torch.as_tensor(rows == columns), v.abs() + 2, v).to(dtype)


def halved() -> ls.CSR:
    """2D Poisson's matrix with eigenvalues between 0.38 and 3.62."""
    A = ls.problems.poisson((4, 4))
    return ls.CSR(A.values / 2, A.pattern)


@dataclass(frozen=True)
class System:
    """What a dense step is made of; `sign` +1 makes every sign a +, so that sums of |inputs| come out."""

    D: Tensor
    M: Tensor
    order: Tensor  # of the unknowns in a sweep
    sign: int = -1


@dataclass(frozen=True)
class Row:
    """A method: how it is called, and S_k, as a function of r, and c_k by dense algebra."""

    method: str
    parameters: dict[str, tuple[float, bool]]  # where each starts, and may it depend on the row?
    step: Callable[[System, int, list[Tensor]], tuple[Callable[[Tensor], Tensor], Any]]
    keywords: dict[str, Any] = field(default_factory=dict)
    M: str = ""  # "diagonal", "callable"
    module: str = ""  # its class, if it has one
    terms: Callable[[ls.SparsityPattern], int] = lambda P: 0  # roundings of a step beside b - A x and x + s r

    @property
    def name(self) -> str:
        more = [f"{key} {value}" for key, value in self.keywords.items()]
        return ", ".join([self.method, *([f"{self.M} M"] if self.M else []), *more])

    @property
    def stops(self) -> bool:
        """Can it run to a tolerance?"""
        return self.method != "jacobi"

    @property
    def sweeps(self) -> bool:
        """Is it made of triangular solves? Then it takes neither an M nor, with iterations, a callback."""
        return "sor" in self.method or self.method == "gauss_seidel"

    @property
    def shapes(self) -> list[str]:
        """Only jacobi takes one vector for several matrices."""
        return [shape for shape in SHAPES if self.method == "jacobi" or shape != "batch of values, vector"]

    def form(self, key: str, form: str) -> str:
        return form if self.parameters[key][1] else WITHOUT_ROWS.get(form, form)

    def inputs(
        self,
        P: ls.SparsityPattern,
        shape: str = "columns",
        form: str = "(N,)",
        N: int = 3,
        dtype: torch.dtype = torch.float64,
        requires_grad: bool = False,
        seed: int = 0,
    ) -> list[Tensor]:
        """values, b, x0, the parameters."""
        of_A, of_b, columns = SHAPES[shape]
        batch = torch.broadcast_shapes(of_A, of_b or ())
        of_b = (*(of_b or ()), P.shape[0], *columns)
        made = [values_on(P, *of_A, dtype=dtype, seed=seed)]
        made += [normal(of_b, dtype, seed + i) for i in (3, 4)]
        for i, (key, (start, _)) in enumerate(self.parameters.items()):
            size = size_of(self.form(key, form), batch, N, P.shape[0])
            made.append(start * (1 + 0.2 * normal(size, dtype, seed + 5 + i).clamp(-1, 1)))
        return [t.requires_grad_(requires_grad) for t in made]

    def solve(self, A: Any, b: Tensor, x0: Tensor | None = None, *given: Any, **keywords: Any) -> S.Solution:
        """By the library; without parameters given, with those where they start."""
        given = given or tuple(start for start, _ in self.parameters.values())
        if self.M and "M" not in keywords:
            keywords["M"] = self.preconditioner(A)
        own = dict(zip(self.parameters, given, strict=True))
        return getattr(S, self.method)(A, b, x0, **own, **self.keywords, **keywords)

    def preconditioner(self, A: Any) -> Any:
        return ls.preconditioners.Jacobi(A) if self.M == "diagonal" else Tridiagonal(A.shape[0], A.dtype)

    def sparse(
        self, P: ls.SparsityPattern, v: Tensor, b: Tensor, x0: Tensor, *given: Tensor, **keywords: Any
    ) -> tuple[Tensor, Tensor]:
        solution = self.solve(ls.CSR(v, P), b, x0, *given, **keywords)
        return solution.x, solution.residual_norms

    def dense(
        self,
        P: ls.SparsityPattern,
        v: Tensor,
        b: Tensor,
        x0: Tensor,
        *given: Tensor,
        iterations: int,
        form: str = "(N,)",
        sign: int = -1,
    ) -> tuple[Tensor, Tensor]:
        """x and the norms of all residuals."""
        vector = b.dim() == 1
        if vector:
            b, x0 = b.unsqueeze(-1), x0.unsqueeze(-1)
        D = densify(P, v)
        M = {"diagonal": lambda: torch.diag_embed(torch.diagonal(D, dim1=-2, dim2=-1).reciprocal())}
        M |= {"callable": lambda: tridiagonal(P.shape[0], v.dtype)}
        system = System(D, M.get(self.M, lambda: torch.eye(P.shape[0], dtype=v.dtype))(), self.order(P), sign)
        full = [in_full(self.form(key, form), t) for key, t in zip(self.parameters, given, strict=True)]
        x = x0.expand(torch.broadcast_shapes(D.shape[:-2], b.shape[:-2]) + b.shape[-2:])
        before, norms = x, []
        for k in range(iterations + 1):
            r = b + sign * (D @ x)
            norms.append(torch.linalg.vector_norm(r, dim=-2))
            if k < iterations:
                of_step = [t[..., k if t.shape[-2] > 1 else 0, :].unsqueeze(-1) for t in full]
                correct, c = self.step(system, k, of_step)
                before, x = x, x + correct(r) + (0 if c is None else c * (x + sign * before))
        norms = torch.stack(norms, dim=-2)
        return (x.squeeze(-1), norms.squeeze(-1)) if vector else (x, norms)

    def order(self, P: ls.SparsityPattern) -> Tensor:
        if self.keywords.get("multicolor"):
            return ls.ordering.greedy_coloring(P).rows.long()
        return torch.arange(P.shape[0])


def tridiagonal(n: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.eye(n, dtype=dtype) + 0.1 * torch.ones(n, n, dtype=dtype).triu(-1).tril(1)


class Tridiagonal:
    """A preconditioner that the compiled loop does not know."""

    def __init__(self, n: int, dtype: torch.dtype = torch.float64):
        self.T, self.D = self, tridiagonal(n, dtype)

    def __call__(self, r: Tensor) -> Tensor:
        return self.D @ r


def chebyshev_coefficients(lmin: Any, lmax: Any, k: int) -> tuple[Any, Any]:
    """Of step k: Saad, "Iterative Methods for Sparse Linear Systems" (2003), algorithm 12.1."""
    theta, delta = (lmax + lmin) / 2, (lmax - lmin) / 2
    rho, a, c = delta / theta, 1 / theta, None
    for _ in range(k):
        new = 1 / (2 * theta / delta - rho)
        a, c, rho = 2 * new / delta, new * rho, new
    return a, c


def _triangle(s: System, omega: Any, lower: bool) -> Callable[[Tensor], Tensor]:
    """(D / omega + L)^-1, or U in place of L, in the order of the sweep."""
    D = s.D[..., s.order, :][..., :, s.order]
    d = torch.diag_embed(torch.diagonal(D, dim1=-2, dim2=-1))
    T = d / omega - s.sign * (torch.tril(D, -1) if lower else torch.triu(D, 1))
    back = torch.argsort(s.order)
    return lambda r: torch.linalg.solve_triangular(T, r[..., s.order, :], upper=not lower)[..., back, :]


def relaxation(direction: str) -> Callable:
    def step(s: System, k: int, given: list[Tensor]) -> tuple[Callable[[Tensor], Tensor], None]:
        omega = given[0] if given else 1.0
        forward, backward = (_triangle(s, omega, lower) for lower in (True, False))

        def both(r: Tensor) -> Tensor:
            y = forward(r)
            return y + backward(r + s.sign * (s.D @ y))

        return {"forward": forward, "backward": backward, "symmetric": both}[direction], None

    return step


def jacobi(s: System, k: int, given: list[Tensor]) -> tuple[Callable[[Tensor], Tensor], None]:
    scale = given[0] / torch.diagonal(s.D, dim1=-2, dim2=-1).unsqueeze(-1)
    return lambda r: scale * r, None


def momentum(s: System, k: int, given: list[Tensor]) -> tuple[Callable[[Tensor], Tensor], Any]:
    """richardson and heavyball"""
    return lambda r: given[0] * (s.M @ r), given[1] if len(given) > 1 else None


def chebyshev(s: System, k: int, given: list[Tensor]) -> tuple[Callable[[Tensor], Tensor], Any]:
    a, c = chebyshev_coefficients(*given, k)
    return lambda r: a * (s.M @ r), c


def _of_triangles(P: ls.SparsityPattern) -> int:
    return 3 * (P.nnz + P.shape[0])


WEIGHT = {"weight": (0.3, True)}
BALL = {"alpha": (0.3, True), "beta": (0.35, False)}
BOUNDS = {"lmin": (0.3, False), "lmax": (5.0, False)}
OMEGA = {"omega": (1.1, False)}
MS = ("", "diagonal", "callable")


def _sweep(method: str, order: str, module: str = "", **keywords: Any) -> Row:
    parameters = {} if method == "gauss_seidel" else OMEGA
    return Row(method, parameters, relaxation(order), keywords, "", module, _of_triangles)


ROWS = [
    Row("jacobi", {"weight": (0.7, True)}, jacobi, module="Jacobi"),
    *(Row("richardson", WEIGHT, momentum, M=M, module="Richardson", terms=lambda P: 4) for M in MS),
    *(Row("heavyball", BALL, momentum, M=M, module="Heavyball", terms=lambda P: 6) for M in MS),
    *(Row("chebyshev", BOUNDS, chebyshev, M=M, module="Chebyshev", terms=lambda P: 99) for M in MS),
    _sweep("gauss_seidel", "forward"),
    _sweep("gauss_seidel", "backward", direction="backward"),
    _sweep("sor", "forward", "SOR"),
    _sweep("sor", "backward", "SOR", direction="backward", multicolor=True),
    _sweep("sor", "symmetric", "SOR", direction="symmetric"),
    _sweep("ssor", "symmetric", multicolor=True),
]
MODES = ("unrolled", "checkpointed")


def rows(condition: Callable[[Row], Any] = lambda row: True) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", [r for r in ROWS if condition(r)], ids=lambda r: r.name)


def weighted(out: Iterable[Tensor]) -> Any:
    """A sum with positive weights that nothing else has."""
    return sum(
        (t * (1.5 + torch.arange(2.0 + i, 2.0 + i + t.numel()).to(t).cos()).reshape(t.shape)).sum()
        for i, t in enumerate(out)
    )


def results(f: Callable, inputs: Iterable[Tensor], which: Sequence[tuple[int, ...]] = ((0, 1),)) -> tuple:
    """Values, and gradients of all inputs through each choice of the outputs, zero if there are none."""
    inputs = [t.detach().clone().requires_grad_() for t in inputs]
    out = f(*inputs)
    losses = [weighted([out[i] for i in choice]) for choice in which]
    keywords = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    return [t.detach() for t in out], [torch.autograd.grad(loss, inputs, **keywords) for loss in losses]


def near(actual: Any, expected: Any, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


# Batch axes of the values, of m; shape of b for n rows.
PCG_SHAPES = {
    "vector": ((), (), lambda n: (n,)),
    "one column": ((), (), lambda n: (n, 1)),
    "columns": ((), (), lambda n: (n, 3)),
    "many columns": ((), (), lambda n: (n, 13)),
    "batch of b": ((), (), lambda n: (2, n, 2)),
    "batch of values": ((2,), (), lambda n: (2, n, 1)),
    "batch of m": ((), (2,), lambda n: (2, n, 2)),
    "batch of all": ((2,), (2,), lambda n: (2, n, 3)),
}


class PCGSystem(NamedTuple):
    """Tensors that learn, and what stays."""

    values: Tensor
    m: Tensor | None
    b: Tensor
    x0: Tensor | None
    P: ls.SparsityPattern
    factor: ls.SparsityPattern | None
    kind: str

    @property
    def inputs(self) -> list[Tensor]:
        return [t for t in self[:4] if t is not None]

    def with_inputs(self, *inputs: Tensor) -> "System":
        rest = iter(inputs)
        return self._replace(
            **{name: next(rest) for name in self._fields[:4] if getattr(self, name) is not None}
        )

    def leaves(self) -> "System":
        return self.with_inputs(*(t.detach().clone().requires_grad_() for t in self.inputs))


def lower(P: ls.SparsityPattern) -> ls.SparsityPattern:
    """The lower triangle of P."""
    S = ls.CSR(torch.ones(P.nnz, dtype=torch.float64), P).to_scipy()
    return pattern_of(scipy.sparse.tril(S).tocsr(), P.dtype)


def pcg_system(
    kind: str,
    shape: str = "vector",
    S=None,
    dtype: torch.dtype = torch.float64,
    index: torch.dtype = torch.int32,
    start: bool = True,
    symmetric: bool = True,
    seed: int = 0,
) -> PCGSystem:
    """A matrix with the pattern S, symmetric positive definite or nearly, L on its lower triangle."""
    P = pattern_of(grid(5, 5) if S is None else S, index)
    n = P.shape[0]
    of_values, of_m, of_b = PCG_SHAPES[shape]
    rows, columns = (torch.as_tensor(t) for t in coordinates(P))
    v = 0.2 * normal((*of_values, P.nnz), seed=seed + 1) - 0.5
    if symmetric:
        v = 0.5 * (v + v[..., P.transpose_permutation.long()])
    v = torch.where(rows == columns, v.abs() + 5, v)
    factor = m = None
    if kind == "diagonal":
        m = 0.2 + 0.1 * normal((*of_m, n), seed=seed + 2).abs()
    elif kind != "none":
        factor = lower(P)
        rows, columns = (torch.as_tensor(t) for t in coordinates(factor))
        m = 0.1 * normal((*of_m, factor.nnz), seed=seed + 2)
        m = torch.where(rows == columns, m.abs() + (0.6 if kind == "product" else 2), m).to(dtype)
    b = normal(of_b(n), dtype, seed=seed + 3)
    x0 = normal(of_b(n), dtype, seed=seed + 4) if start else None
    return PCGSystem(v.to(dtype), None if m is None else m.to(dtype), b, x0, P, factor, kind)


def fused(s: PCGSystem, iterations: int, checkpointed: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    return pcg_iterations(
        s.values, s.b, s.x0, s.P, iterations, kind=s.kind, m=s.m, factor=s.factor, checkpointed=checkpointed
    )


def unfused(s: PCGSystem, iterations: int) -> tuple[Tensor, Tensor, Tensor]:
    empty = s.values.new_empty(0)
    return pcg.reference_pcg(
        s.values, empty if s.m is None else s.m, s.b, empty if s.x0 is None else s.x0,
        s.P, s.factor, KINDS.index(s.kind), iterations, s.x0 is None,
    )  # fmt: skip


def dense_pcg(s: PCGSystem, iterations: int) -> tuple[Tensor, Tensor]:
    """The textbook's iterations, which know of no column that stops."""
    A = densify(s.P, s.values)
    b = s.b.unsqueeze(-1) if s.b.dim() == 1 else s.b
    x = torch.zeros_like(b) if s.x0 is None else s.x0.reshape(b.shape)
    if s.factor is not None:
        L = densify(s.factor, s.m)
        M = L @ L.mT if s.kind == "product" else torch.linalg.inv(L @ L.mT)
    else:
        M = torch.eye(s.P.shape[0], dtype=b.dtype) if s.m is None else torch.diag_embed(s.m)
    r = b - A @ x
    p = z = M @ r
    rho, norms = (r * z).sum(-2, keepdim=True), [r.square().sum(-2).sqrt()]
    for _ in range(iterations):
        q = A @ p
        alpha = rho / (p * q).sum(-2, keepdim=True)
        x, r = x + alpha * p, r - alpha * q
        z = M @ r
        old, rho = rho, (r * z).sum(-2, keepdim=True)
        p = z + rho / old * p
        norms.append(r.square().sum(-2).sqrt())
    norms = torch.stack(norms, -2)
    return (x.squeeze(-1), norms.squeeze(-1)) if s.b.dim() == 1 else (x, norms)


def pcg_gradients(s: PCGSystem, function, iterations: int, gx: bool = True, gnorms: bool = True, **options):
    """x, norms, and the gradients of every input for random cotangents."""
    s = s.leaves()
    x, norms = function(s, iterations, **options)[:2]
    loss = torch.zeros((), dtype=x.dtype)
    if gx:
        loss = loss + (x * normal(x.shape, x.dtype, seed=8)).sum()
    if gnorms:
        loss = loss + (norms * normal(norms.shape, x.dtype, seed=9)).sum()
    grads = torch.autograd.grad(loss, s.inputs, allow_unused=True, materialize_grads=True)
    return [x.detach(), norms.detach(), *grads]
