"""Methods to a tolerance: what their tests share, comparison of solves, and the table of what each promises.

A row is a method with a small system that it is made for, as a function of what learns: `v`, of which the
matrix is made, and b. Its reference is dense algebra in float64. Every test of the contract in test_krylov.py
runs for each row.
"""

import inspect
import re
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from reference import normal, on_cuda
from torch import Tensor
from torch.autograd import grad

import learnsolve as ls
from learnsolve.ops.complex_values import tall as real_rows
from learnsolve.ops.complex_values import untall as complex_rows
from learnsolve.solvers import Solution
from learnsolve.solvers.core import loop
from learnsolve.solvers.options import KRYLOV
from learnsolve.solvers.solution import COMPILED, EAGER, PYTHON_M

S, P = ls.solvers, ls.preconditioners
SQUARE = KRYLOV
SYMMETRIC = tuple(
    name for name in SQUARE if "adjoint_M" not in inspect.signature(getattr(S, name)).parameters
)
ANY = tuple(name for name in SQUARE if name not in SYMMETRIC)
RECTANGULAR = ("lsqr", "lsmr")
STATIONARY = {  # with parameters for Poisson's matrices
    "jacobi": {"weight": 0.6},
    "richardson": {"weight": 0.2},
    "heavyball": {"alpha": 0.2, "beta": 0.3},
    "chebyshev": {"lmin": 0.1, "lmax": 8.0},
    "gauss_seidel": {},
    "sor": {"omega": 1.2},
    "ssor": {"omega": 1.2},
}
MODES = ("implicit", "unrolled", "checkpointed")


def poisson(nx: int = 4, ny: int = 4) -> ls.CSR:
    return ls.problems.poisson((nx, ny))


def convection(nx: int, ny: int, speed: float = 0.4) -> ls.CSR:
    """Poisson's matrix and centered differences of a wind: not symmetric."""
    import scipy.sparse

    A = poisson(nx, ny).to_scipy()
    n = A.shape[0]
    wind = scipy.sparse.diags_array([np.full(n - 1, speed), np.full(n - 1, -speed)], offsets=[1, -1])
    return ls.CSR.from_scipy(scipy.sparse.csr_array(A + wind))


def tall(m: int = 8, n: int = 5) -> ls.CSR:
    return ls.CSR.from_dense(normal((m, n), seed=3))


def run(name: str, A, b, x0=None, tol: float = 1e-12, **keywords) -> ls.solvers.Solution:
    """Any of the methods, to a tolerance or for a number of iterations."""
    key = {"atol": tol, "btol": tol} if name in RECTANGULAR else {"rtol": tol}
    key = {} if "iterations" in keywords else key
    return getattr(S, name)(A, b, x0, **{**key, **STATIONARY.get(name, {}), **keywords})


def matrix(name: str) -> ls.CSR:
    return poisson() if name in SYMMETRIC else convection(4, 4) if name in ANY else tall()


def dense_solution(name: str, D: torch.Tensor, b: torch.Tensor, damp: float = 0.0) -> torch.Tensor:
    if name in SQUARE:
        return torch.linalg.solve(D, b)
    N = D.mT @ D + damp**2 * torch.eye(D.shape[-1], dtype=D.dtype)
    return torch.linalg.solve(N, D.mT @ b)


TRIANGLE_AND_TAIL = torch.tensor([[0, 1, 2, 2, 3], [1, 2, 0, 3, 4]])
WEIGHTS = torch.tensor([1.0, 2.0, 0.7, 1.3, 0.4], dtype=torch.float64)


def laplacian(weights: Tensor, edges: Tensor = TRIANGLE_AND_TAIL) -> ls.CSR:
    return ls.problems.graph_laplacian(edges, weights, both_directions=False)


def symmetric_part(A: ls.CSR) -> ls.CSR:
    """So that all that is differentiated is symmetric: else cg's iterations do not solve A x = b."""
    return A.with_values(0.5 * (A.values + A.values[..., A.pattern.transpose_permutation.long()]))


def shifted(A: ls.CSR) -> ls.CSR:
    """Of distinct eigenvalues, with any M: multiple ones take fewer iterations than their neighbors."""
    return A + ls.ops.diag(normal((A.shape[0],), seed=6).abs())


@dataclass(frozen=True)
class Case:
    """A method, its system, and what it promises."""

    name: str
    method: str
    build: Callable[[Tensor], ls.CSR]  # the matrix, of v (batch, nv)
    v: Tensor
    M: Callable[[ls.CSR], Any] | None = None
    keywords: dict[str, Any] = field(default_factory=dict)  # of every call
    vector: str = EAGER  # what runs the iterations (`Solution.backend`) for one right-hand side,
    columns: str = EAGER  # for several,
    fixed: str = EAGER  # and for a fixed number of them, whose derivatives are asked for
    function: bool = False  # A is a callable
    blocks: tuple[ls.CSR, ...] = ()  # of a `BlockBatch`

    @property
    def shape(self) -> torch.Size:
        return self.build(self.v).shape

    @property
    def square(self) -> bool:
        return self.method not in RECTANGULAR

    @property
    def symmetric(self) -> bool:
        return self.method in SYMMETRIC

    def takes(self, keyword: str) -> bool:
        return keyword in inspect.signature(getattr(S, self.method)).parameters

    def right(self, *tail: int, lead: tuple[int, ...] = (), dtype=torch.float64, seed: int = 0) -> Tensor:
        return normal((*lead, self.shape[0], *tail), dtype, seed)

    def start(self, b: Tensor) -> Tensor:
        """An x0 for b, in the row space of A, so that the solution does not depend on it."""
        x0 = self.right(*b.shape[-1:][: b.dim() - 1], lead=b.shape[:-2], dtype=b.dtype, seed=5)
        if self.shape[0] < self.shape[1]:
            return self.build(self.v).to_dense().to(b.dtype).mT @ x0
        return x0.narrow(0 if b.dim() == 1 else -2, 0, self.shape[1])

    def solve(self, v: Tensor, b: Tensor, x0: Tensor | None = None, **options: Any) -> S.Solution:
        return self.call(self.build(v), b, x0, **options)

    def call(
        self, A: Any, b: Tensor, x0: Tensor | None = None, tol: float | None = 1e-12, **options: Any
    ) -> S.Solution:
        keywords = {"rtol": tol} if self.square else {"atol": tol, "btol": tol}
        if self.M is not None and "M" not in options:
            keywords["M"] = self.M(A.matrix if isinstance(A, ls.BlockBatch) else A)
        if self.function:
            keywords["parameters"] = (A.values,) if A.values.requires_grad else ()
            if not self.symmetric:
                keywords["transpose"] = lambda y: A.T @ y
        operand = (lambda x: A @ x) if self.function else A
        return getattr(S, self.method)(operand, b, x0, **{**keywords, **self.keywords, **options})

    def dense(self, v: Tensor, b: Tensor) -> Tensor:
        """The solution, of b (..., n, k) or (n,)."""
        D = self.build(v).to_dense()
        if b.dim() == 1:
            return self.dense(v, b.unsqueeze(-1)).squeeze(-1)
        if "null_space" in self.keywords:
            return torch.linalg.pinv(D, hermitian=True) @ b
        if self.square:
            return torch.linalg.solve(D, b)
        damped = self.keywords.get("damp", 0.0) * torch.eye(D.shape[-1], dtype=D.dtype)
        D = torch.cat((D, damped.expand(*D.shape[:-2], -1, -1)), -2)
        return torch.linalg.pinv(D)[..., : b.shape[-2]] @ b


def row(name: str, M: Callable[[ls.CSR], Any] | None = None, **promises: Any) -> Case:
    """`name` begins with the method."""
    method = re.split(r"\W", name)[0]
    A, blocks = shifted(poisson(3, 5)), tuple(ls.problems.poisson(shape) for shape in ((2,), (4, 5), (6,)))
    if method in RECTANGULAR:
        A, blocks = tall(5, 8) if "wide" in name else tall(), ()
    elif method not in SYMMETRIC:
        A, blocks = shifted(convection(3, 5)), (convection(3, 3), convection(4, 5), convection(3, 2))
    build, v = A.with_values, A.values
    if method in SYMMETRIC:
        build = lambda v: symmetric_part(A.with_values(v))  # noqa: E731
    if "null space" in name:
        build, v = laplacian, WEIGHTS
        blocks = (laplacian(WEIGHTS), ls.problems.poisson((5,), boundary="periodic"))
        promises["keywords"] = {"null_space": "constants"}
    if on_cuda() and method not in ("cg", "fcg"):  # the others have no code for a device
        promises = {key: value for key, value in promises.items() if key == "keywords"}
    function = "of a function" in name
    return Case(name, method, build, v, M, function=function, blocks=() if function else blocks, **promises)


def constant(A: ls.CSR) -> Callable[[Tensor], Tensor]:
    """An M without a form that compiled code knows, whose result lies in memory by columns."""
    return lambda r: 0.25 * (r.mT.contiguous().mT if r.dim() > 1 else r)


def fsai(A: ls.CSR) -> Any:
    return P.Trainable(P.FSAI(A.detach())).requires_grad_(False)


def nonlinear(A: ls.CSR) -> Callable[[Tensor], Tensor]:
    return lambda r: 0.25 * r + 0.05 * torch.tanh(r)


WHOLE = {"vector": COMPILED, "columns": COMPILED, "fixed": COMPILED}
STEPS = {"vector": COMPILED, "fixed": COMPILED}
VECTOR, APART = {"vector": COMPILED}, {"vector": PYTHON_M, "columns": PYTHON_M}

CASES = [
    row("cg", **WHOLE),
    row("cg, Jacobi", P.Jacobi, **WHOLE),
    row("cg, IC", P.IC, **WHOLE),
    row("cg, FSAI", fsai, **WHOLE),
    row("cg, function", constant, **APART),
    row("cg, null space", **WHOLE),
    row("cg of a function"),
    row("fcg"),
    row("fcg, nonlinear", nonlinear, **APART),
    row("minres", **STEPS),
    row("minres, Jacobi", P.Jacobi, **STEPS),
    row("minres, SSOR", P.SSOR, **STEPS),
    row("bicgstab", **STEPS),
    row("bicgstab, Jacobi", P.Jacobi, **STEPS),
    row("bicgstab, ILU", P.ILU, **STEPS),
    row("bicgstab of a function"),
    row("gmres", **VECTOR),
    row("gmres, ILU", P.ILU, vector=PYTHON_M),
    row("gmres, null space", **VECTOR),
    row("gmres(3)", keywords={"restart": 3}, **VECTOR),
    row("gmres(1)", keywords={"restart": 1}, **VECTOR),
    row("fgmres, nonlinear", nonlinear, vector=PYTHON_M),
    row("fgmres, Jacobi", P.Jacobi, **VECTOR),
    row("lsqr"),
    row("lsqr, damped", keywords={"damp": 0.4}),
    row("lsqr of a function"),
    row("lsqr, wide"),
    row("lsmr"),
    row("lsmr, damped", keywords={"damp": 0.4}),
]


class Complex(Case):
    """A complex system as a function of real numbers: of real values v, and of b and x by real rows, so that
    what is promised of derivatives is tested by the same tests."""

    @property
    def shape(self) -> torch.Size:
        m, n = self.build(self.v).shape
        return torch.Size((2 * m, 2 * n))

    def solve(self, v: Tensor, b: Tensor, x0: Tensor | None = None, **options: Any) -> S.Solution:
        if (M := options.get("M")) is not None and not isinstance(M, P.Preconditioner):
            options["M"] = lambda r: complex_rows(M(real_rows(r)))
        solution = self.call(
            self.build(v), complex_rows(b), None if x0 is None else complex_rows(x0), **options
        )
        solution.x = real_rows(solution.x)
        return solution

    def dense(self, v: Tensor, b: Tensor) -> Tensor:
        if b.dim() == 1:
            return self.dense(v, b.unsqueeze(-1)).squeeze(-1)
        D, b = self.build(v).to_dense(), complex_rows(b)
        return real_rows(torch.linalg.solve(D, b) if self.square else torch.linalg.solve(D.mH @ D, D.mH @ b))


def complex_row(name: str, M: Callable[[ls.CSR], Any] | None = None, **promises: Any) -> Case:
    real = row(name)
    A = real.build(real.v)
    skew = torch.sign(A.pattern.col_indices - A.pattern.row_indices).double()
    if not real.symmetric:  # damped
        skew = skew + (skew == 0)
    build = lambda v: (B := real.build(v)).with_values(B.values * (1 + 0.4j * skew).to(v.dtype.to_complex()))  # noqa: E731
    return Complex(f"{name}, complex", real.method, build, real.v, M, function=real.function, **promises)


COMPLEX = [
    complex_row("cg", **WHOLE),
    complex_row("cg, IC", P.IC, **WHOLE),
    complex_row("minres, Jacobi", P.Jacobi, **STEPS),
    complex_row("bicgstab, ILU", P.ILU),
    complex_row("gmres"),
    complex_row("gmres of a function"),
    complex_row("fgmres, Jacobi", P.Jacobi),
    complex_row("lsqr"),
]
# Stationary methods, to a tolerance. What they promise of a number of iterations: stationary_cases.py.
LONG = {"maxiter": 3000}
RELAXATIONS = [
    row("richardson", keywords={"weight": 0.09, **LONG}),
    row("richardson, Jacobi", P.Jacobi, keywords={"weight": 0.8, **LONG}),
    row("heavyball", keywords={"alpha": 0.1, "beta": 0.4, **LONG}),
    row("chebyshev", keywords={"lmin": 0.5, "lmax": 20.0, **LONG}),
    row("gauss_seidel", keywords=LONG),
    row("sor", keywords={"omega": 1.1, "direction": "backward", "multicolor": True, **LONG}),
    row("ssor", keywords={"omega": 1.1, **LONG}),
]
# The first row of each method and of what it may be given: where a test is slow.
BRANCHES = ("cg, IC", "cg, function", "cg of a function", "fcg, nonlinear", "minres", "bicgstab")
BRANCHES += ("cg, IC, complex", "gmres, complex", "gmres of a function, complex", "bicgstab, ILU, complex")
BRANCHES += ("gmres, null space", "gmres(3)", "fgmres, Jacobi", "lsqr, damped", "lsmr")

every = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
every_method = pytest.mark.parametrize("case", [*CASES, *RELAXATIONS], ids=lambda c: c.name)


def in_branches(cases: list[Case]) -> Any:
    slow = pytest.mark.slow
    marked = [pytest.param(c, id=c.name, marks=() if c.name in BRANCHES else slow) for c in cases]
    return pytest.mark.parametrize("case", marked)


branch = in_branches(CASES)
complex_too = pytest.mark.parametrize("case", [*CASES, *COMPLEX, *RELAXATIONS], ids=lambda c: c.name)
complex_branch = in_branches([*CASES, *COMPLEX])
every_mode = pytest.mark.parametrize("mode", MODES)
# Solves that cannot converge, or are stopped before, are part of what is tested.
quiet = pytest.mark.filterwarnings("ignore::learnsolve.solvers.ConvergenceWarning")


def close(actual: Iterable[Tensor], expected: Iterable[Tensor], tolerance: float) -> None:
    """Each tensor to `tolerance` of its largest entry. Some are zero but for rounding."""
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        scale = max(float(e.detach().abs().max()), 1e-3) if e.numel() else 1.0
        torch.testing.assert_close(a / scale, e / scale, rtol=0, atol=tolerance, msg=lambda m: f"{i}: {m}")  # noqa: B023


def equal(actual: Iterable[Tensor], expected: Iterable[Tensor]) -> bool:
    """The same bits."""
    return all(torch.equal(a, e) for a, e in zip(actual, expected, strict=True))


def agree(ours: Solution, theirs: Solution, tolerance: float = 1e-8) -> None:
    """The same ends, iterates and histories, to rounding, which the methods amplify."""
    assert ours.statuses == theirs.statuses
    assert ours.iterations == theirs.iterations
    close((ours.x, ours.residual_norms), (theirs.x, theirs.residual_norms), tolerance)


def gradients(solve: Callable[..., Tensor], *inputs: Tensor, scale: float = 1.0) -> tuple[Tensor, ...]:
    """Of <w, solve(*inputs)> for each input, with the same random w for results of the same shape."""
    inputs = tuple(t.detach().clone().requires_grad_() for t in inputs)
    x = solve(*inputs)
    return grad(x, inputs, scale * normal(x.shape, x.dtype, seed=7), materialize_grads=True)


@contextmanager
def eager():
    """Nothing is compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "run_fixed_number", lambda *_: None)
        patch.setattr(loop, "fitting", lambda *_: None)
        yield


@contextmanager
def compiled():
    """No iteration goes by operations of torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop._Loop, "step", None)
        yield
