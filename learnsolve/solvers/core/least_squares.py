"""Code shared by `lsqr` and `lsmr`: damping, the stopping rule, derivatives.

A damped problem is the least-squares problem of the larger matrix [A; damp I] and [b; 0], so the methods need
no code for damping, and x0 does not change the solution. With r = b - A x, the solution satisfies A^T r -
damp^2 x = 0, that is, N x = A^T b with N = A^T A + damp^2 I, which is differentiated like any other system
(gradient.py). With w = N^-1 xbar, computed by conjugate gradients,

    bbar = A w,    Abar = r w^T - (A w) x^T on the pattern.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.convert import TensorLike
from learnsolve.matrix.inputs import operands
from learnsolve.matrix.plain import outside_of_graphs
from learnsolve.solvers.cg import ConjugateGradients
from learnsolve.solvers.core.arguments import (
    check_b,
    check_operands,
    check_options,
    number,
    refuse_what_has_no_implicit_gradient,
)
from learnsolve.solvers.core.complex_values import complex_solution, real_system
from learnsolve.solvers.core.criterion import ResidualNorm, rounding_level, terms
from learnsolve.solvers.core.gradient import implicit, unrolled
from learnsolve.solvers.core.loop import Method
from learnsolve.solvers.core.operators import Operator, as_operator
from learnsolve.solvers.core.problem import Problem
from learnsolve.solvers.core.system import Columns
from learnsolve.solvers.core.vectors import safe_size, size
from learnsolve.solvers.options import Options
from learnsolve.solvers.solution import CODE, Solution, Status


@dataclass(frozen=True, eq=False)
class _OfA:
    """An operator made of A and damp."""

    A: Operator
    damp: float

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return self.A.parameters

    def with_parameters(self, parameters: tuple[Tensor, ...]) -> Any:
        return replace(self, A=self.A.with_parameters(parameters))

    def core(self) -> int:
        return self.A.core()


@dataclass(frozen=True, eq=False)
class Damped(_OfA):
    """[A; damp I], or its transpose."""

    columns: int
    transpose: bool = False

    @property
    def T(self) -> Damped:
        return replace(self, transpose=not self.transpose)

    def __call__(self, x: Tensor) -> Tensor:
        if not self.transpose:
            return torch.cat((self.A(x), self.damp * x), dim=-2)
        rows = x.shape[-2] - self.columns
        return self.A.T(x[..., :rows, :]) + self.damp * x[..., rows:, :]

    def size(self) -> Tensor | None:
        largest = self.A.size()
        return None if largest is None else torch.clamp(largest, min=self.damp)

    def magnitude(self, x: Tensor) -> Tensor | None:
        if not self.transpose:
            y = self.A.magnitude(x)
            return None if y is None else torch.cat((y, self.damp * x.abs()), dim=-2)
        rows = x.shape[-2] - self.columns
        y = self.A.T.magnitude(x[..., :rows, :])
        return None if y is None else y + self.damp * x[..., rows:, :].abs()

    def frobenius(self) -> Tensor | None:
        norm = self.A.frobenius()
        return None if norm is None else torch.hypot(norm, norm.new_tensor(self.damp * self.columns**0.5))


class Normal(_OfA):
    """N = A^T A + damp^2 I."""

    @property
    def T(self) -> Normal:
        return self

    def __call__(self, x: Tensor) -> Tensor:
        y = self.A.T(self.A(x))
        return y if self.damp == 0 else y + self.damp**2 * x

    def size(self) -> Tensor | None:
        largest = self.A.size()
        return None if largest is None else torch.clamp(largest, min=self.damp) ** 2

    def magnitude(self, x: Tensor) -> Tensor | None:
        y = self.A.magnitude(x)
        y = None if y is None else self.A.T.magnitude(y)
        return None if y is None else y + self.damp**2 * x.abs()

    def pullback(self, y: Tensor, x: Tensor) -> tuple[Tensor | None, ...]:
        # <y, N x> = <A y, A x> + ...
        by_x, by_y = self.A.pullback(self.A(y), x), self.A.pullback(self.A(x), y)
        return tuple(None if p is None or q is None else p + q for p, q in zip(by_x, by_y, strict=True))

    def pushforward(self, x: Tensor, tangents: tuple[Tensor | None, ...]) -> Tensor:
        change = self.A.pushforward(x, tangents)
        return self.A.T(change) + self.A.T.pushforward(self.A(x), tangents)


class LeastSquares:
    """SciPy's rules, with the Frobenius norm of A; or the method's estimate if the entries of A are not
    known:

        ||r|| <= btol ||b|| + atol ||A|| ||x||        (the system has a solution)
        ||A^T r|| <= atol ||A|| ||r||                 (it has none)

    A tolerance below the rounding unit is replaced by it. The method gives up if its estimate of cond(A)
    exceeds conlim.
    """

    fixed = False
    square = False
    negligible = 0.0
    reads: tuple[str, ...] = ("A_norm", "condition")

    def __init__(self, atol: float, btol: float, conlim: float):
        self.atol, self.btol, self.conlim = atol, btol, conlim
        self.has_tolerance = atol > 0 or btol > 0

    def fresh(self) -> LeastSquares:
        return copy(self)

    def in_units(self, of_b: Tensor) -> LeastSquares:
        return copy(self)

    def begin(self, A: Any, b: Tensor, x: Tensor, r: Tensor, norm: Tensor, length: Tensor) -> Tensor:
        eps = torch.finfo(b.dtype).eps
        self.atol, self.btol = max(self.atol, eps), max(self.btol, eps)
        self.length, self.A_norm, normal = length, A.frobenius(), safe_size(A.T(r))
        if (A_norm := self.A_norm) is None:
            # ||A^T b|| / ||b|| <= ||A||, which a solve from x = 0 computes in its first iteration.
            of_b = normal if r is b else safe_size(A.T(b))
            A_norm = of_b / torch.where(length == 0, 1, length)
        return self._small(x, norm, normal, A_norm) | (length == 0)

    def _small(self, x: Tensor, norm: Tensor, normal: Tensor, A_norm: Tensor) -> Tensor:
        A_norm = A_norm if self.A_norm is None else self.A_norm
        # Infinity is an overflow here and proves nothing.
        solved = norm <= self.btol * self.length + self.atol * A_norm * safe_size(x)
        small = (normal <= self.atol * A_norm * norm) & torch.isfinite(A_norm * norm)
        return (solved & torch.isfinite(A_norm * safe_size(x)) | small) & torch.isfinite(norm)

    def seems_done(self, state: Any, norm: Tensor) -> Tensor:
        return self._small(state.x, norm, state.normal.detach().abs(), state.A_norm.detach())

    def is_done(self, A: Any, state: Any, r: Tensor, norm: Tensor) -> Tensor:
        return self._small(state.x, norm, safe_size(A.T(r)), state.A_norm.detach())

    def failure(self, state: Any, norm: Tensor) -> Tensor:
        limit = self.conlim if self.conlim > 0 else torch.inf
        return torch.where(state.condition.detach() > limit, CODE[Status.ILL_CONDITIONED], 0)

    def reached(self, A: Any, b: Tensor, x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        """A^T r, with the rounding errors of r."""
        g = A.T(r)
        return size(g), rounding_level(A.T, terms(A, x, b, g), torch.zeros_like(x), r)

    def accuracy(self, A: Any, b: Tensor, x: Tensor, codes: Tensor) -> str:
        r = b - A(x)
        length = size(r)
        lost = (codes.unsqueeze(-2) != CODE[Status.CONVERGED]) & torch.isfinite(length) & (length > 0)
        if not lost.any():
            return ""
        worst = torch.where(lost, size(A.T(r)) / torch.where(lost, length, 1), 0).max().item()
        return f"||A^T r|| / ||r|| is {worst:.2g}, asked: {self.atol:.2g} ||A||. "


@outside_of_graphs
def solve(
    name: str,
    method: Method,
    A: Any,
    b: TensorLike,
    x0: TensorLike | None,
    damp: float,
    atol: float | None,
    btol: float | None,
    conlim: float | None,
    options: Options,
) -> Solution:
    """Check the arguments, run the method, differentiate according to `options.gradient`."""
    A, b, x0 = operands(name, A, b, x0)
    if isinstance(b, Tensor) and b.is_complex():
        A, b, x0, options = real_system(name, A, b, x0, options)
        return complex_solution(solve(name, method, A, b, x0, damp, atol, btol, conlim, options))
    check_b(name, b)
    atol, btol = (1e-6 if tolerance is None else tolerance for tolerance in (atol, btol))
    conlim = 1e8 if conlim is None else conlim
    check_options(name, replace(options, atol=atol))
    for key, value in (("damp", damp), ("btol", btol), ("conlim", conlim)):
        number(name, key, value)
    operator = as_operator(name, A, b, options.transpose, tuple(options.parameters), square=False)
    columns = Columns(b.dim() == 1, check_operands(name, A, b))
    B = columns.into(b)
    X0 = _start(name, A, operator, b, x0, B, columns)
    n = X0.shape[-2]
    maxiter = 10 * n if options.maxiter is None else options.maxiter
    damped: Any = operator
    padded = B
    if damp:
        damped = Damped(operator, float(damp), n)
        padded = torch.cat((B, B.new_zeros((*B.shape[:-2], n, B.shape[-1]))), dim=-2)
    criterion = LeastSquares(atol, btol, conlim)
    ends = options.throw, options.gradient, options.callback
    problem = Problem(name, method, damped, None, criterion, maxiter, columns, *ends)
    if options.gradient == "implicit":
        refuse_what_has_no_implicit_gradient(name, operator, None, None, x0, X0)
        rtol = atol if options.adjoint_rtol is None else options.adjoint_rtol
        normal: Any = Normal(operator, float(damp))
        adjoint = replace(
            problem,
            method=ConjugateGradients(),
            A=normal,
            criterion=ResidualNorm(rtol, 0.0),
            maxiter=maxiter if options.adjoint_maxiter is None else options.adjoint_maxiter,
            callback=None,
        )
        solution = implicit(problem, padded, X0, lambda: (adjoint, operator.T(B)))
    else:
        solution = unrolled(problem, padded, X0)
    with torch.no_grad():
        x = solution.x.detach().unsqueeze(-1) if columns.vector else solution.x.detach()
        norm = size(operator.T(B - operator(x)) - damp**2 * x).squeeze(-2)
        solution.normal_residual_norm = norm.squeeze(-1) if columns.vector else norm
    return solution


def _start(
    name: str, A: Any, operator: Operator, b: Tensor, x0: Tensor | None, B: Tensor, columns: Columns
) -> Tensor:
    n = A.shape[1] if hasattr(A, "shape") else operator.T(B.detach()).shape[-2]
    if x0 is None:
        return B.new_zeros((*B.shape[:-2], n, B.shape[-1]))
    checks.same_kind(name, "x0", x0, b)
    shape = (n,) if b.dim() == 1 else (*b.shape[:-2], n, b.shape[-1])
    if x0.shape != shape:
        raise ValueError(f"{name}: x0 must have shape {shape}, got {tuple(x0.shape)}")
    return columns.into(x0)
