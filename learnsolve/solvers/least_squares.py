"""LSQR and LSMR, for least squares and for any rectangular system.

Sources: Paige and Saunders, "LSQR: An algorithm for sparse linear equations and sparse least squares", ACM
Trans. Math. Softw. 8 (1982) 43-71, doi:10.1145/355984.355989; Fong and Saunders, "LSMR", SIAM J. Sci. Comput.
33 (2011) 2950-2971.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Unpack

import scipy.sparse.linalg
import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.cache import outside_of_graphs, readable
from learnsolve.matrix.checks import operands
from learnsolve.matrix.convert import TensorLike
from learnsolve.ops.autograd import add
from learnsolve.ops.products import multiply_columns
from learnsolve.solvers.core.advance import rounding_level, terms
from learnsolve.solvers.core.arguments import (
    check_b,
    check_operands,
    check_options,
    number,
    refuse_what_has_no_implicit_gradient,
)
from learnsolve.solvers.core.entry import complex_solution, real_system
from learnsolve.solvers.core.gradient import implicit, unroll
from learnsolve.solvers.core.loop import Method
from learnsolve.solvers.core.operators import (
    Columns,
    Function,
    LinearOperator,
    Outcome,
    divide,
    dot,
    make_operator,
    root,
    safe_size,
    size,
)
from learnsolve.solvers.core.problem import ADJOINT, TANGENT, Problem
from learnsolve.solvers.options import LeastSquaresOptions, Options, read_options, solver
from learnsolve.solvers.solution import CODE, Report, Solution, Status

# Code shared by `lsqr` and `lsmr`: damping, the stopping rule, derivatives.
#
# A damped problem is the least-squares problem of the larger matrix [A; damp I] and [b; 0], so the methods
# need no code for damping. From x0 they find x = x0 + A^+ (b - A x0), of least norm from x0 = 0. The
# derivatives of x = A^+ b, where A keeps its rank, are made of other solutions of least norm and
# differentiated like them: with r = b - A x,
#
#     bbar = A^+T xbar,    Abar = -bbar x^T + r (A^+ bbar)^T + (A^+T x) (xbar - A^T bbar)^T on the pattern,
#     dx = A^+ (db - dA x + A^+T dA^T r - A t) + t,    t = dA^T A^+T x.
#
# The last term of Abar, and t - A^+ A t, vanish if the columns of A are independent; the second term of
# Abar, and dA^T r, if b is in the range of A.
#
# Source: Golub and Pereyra, "The differentiation of pseudo-inverses and nonlinear least squares problems
# whose variables separate", SIAM J. Numer. Anal. 10 (1973) 413-432.


@dataclass(frozen=True, eq=False)
class DampedOperator(LinearOperator):
    """[A; damp I], or its transpose."""

    A: LinearOperator
    damp: float
    columns: int
    transpose: bool = False

    @property
    def parameters(self) -> tuple[Tensor, ...]:  # type: ignore[override]
        return self.A.parameters

    @property
    def by_columns(self) -> bool:  # type: ignore[override]
        return self.A.by_columns

    def with_parameters(self, parameters: tuple[Tensor, ...]) -> DampedOperator:
        return replace(self, A=self.A.with_parameters(parameters))

    def core(self) -> int | None:
        return self.A.core()

    def add_batch_axis(self, axes: tuple[int | None, ...]) -> DampedOperator:
        return replace(self, A=self.A.add_batch_axis(axes))

    @property
    def T(self) -> DampedOperator:
        return replace(self, transpose=not self.transpose)

    def _above(self, x: Tensor) -> Tensor:
        """The rows that belong to A."""
        return x[..., : x.shape[-2] - self.columns, :]

    def _below(self, x: Tensor) -> Tensor:
        return x[..., x.shape[-2] - self.columns :, :]

    def __call__(self, x: Tensor) -> Tensor:
        if not self.transpose:
            return torch.cat((self.A(x), self.damp * x), dim=-2)
        return self.A.T(self._above(x)) + self.damp * self._below(x)

    def pullback(self, y: Tensor, x: Tensor) -> tuple[Tensor | None, ...]:
        return self.A.T.pullback(y, self._above(x)) if self.transpose else self.A.pullback(self._above(y), x)

    def pushforward(self, x: Tensor, tangents: tuple[Tensor | None, ...]) -> Tensor:
        if self.transpose:
            return self.A.T.pushforward(self._above(x), tangents)
        return torch.cat((self.A.pushforward(x, tangents), torch.zeros_like(x)), dim=-2)

    def largest_entry(self) -> Tensor | None:
        largest = self.A.largest_entry()
        return None if largest is None else torch.clamp(largest, min=self.damp)

    def magnitude(self, x: Tensor) -> Tensor | None:
        if not self.transpose:
            y = self.A.magnitude(x)
            return None if y is None else torch.cat((y, self.damp * x.abs()), dim=-2)
        y = self.A.T.magnitude(self._above(x))
        return None if y is None else y + self.damp * self._below(x).abs()

    def frobenius(self) -> Tensor | None:
        norm = self.A.frobenius()
        return None if norm is None else torch.hypot(norm, norm.new_tensor(self.damp * self.columns**0.5))


@dataclass(eq=False)
class LeastSquaresProblem(Problem):
    """min ||b - A x||, with the derivatives of A^+ b."""

    keeps_b = True
    shape: tuple[int, int] = (0, 0)  # of A

    def adjoint(self) -> LeastSquaresProblem:
        return replace(self, A=self.A.T, shape=self.shape[::-1])

    def run(self, b: Tensor, x0: Tensor | None) -> Outcome:
        return super().run(b, b.new_zeros((*b.shape[:-2], self.shape[1], b.shape[-1])) if x0 is None else x0)

    def pullback(
        self, g: Tensor, x: Tensor, b: Tensor, need: bool, report: Report
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        report.solution = None

        def linear(problem: Problem, right: Tensor) -> Tensor:
            ended = Report()
            try:
                return problem.linear(right, ADJOINT, ended)
            finally:  # the worst is reported
                known, new = report.solution, ended.solution
                if new is not None and (known is None or CODE[new.status] > CODE[known.status]):
                    report.solution = new

        transposed = self.adjoint()
        y = linear(transposed, g)
        if not need:
            return y, (None,) * len(self.A.parameters)
        terms, r, left = [(-y, x)], b - self.A(x), g - self.A.T(y)
        if not (self.onto or self._solves(self.A, r, b, x)):
            terms.append((r, linear(self, y)))
        if not (transposed.onto or self._solves(self.A.T, left, g, y)):
            terms.append((linear(transposed, x), left))
        return y, tuple(add(*of_one) for of_one in zip(*(self.A.pullback(*t) for t in terms), strict=True))

    def tangent(
        self, x: Tensor, b: Tensor, tb: Tensor | None, tangents: tuple[Tensor | None, ...], report: Report
    ) -> Tensor:
        if all(t is None for t in tangents):
            return super().tangent(x, b, tb, tangents, report)
        transposed, A = self.adjoint(), self.A
        right = add(tb, -A.pushforward(x, tangents))
        assert right is not None
        if not self.onto:
            right = right + transposed.linear(A.T.pushforward(b - A(x), tangents), TANGENT, Report())
        if transposed.onto:
            return self.linear(right, TANGENT, report)
        t = A.T.pushforward(transposed.linear(x, TANGENT, Report()), tangents)
        return self.linear(right - A(t), TANGENT, report) + t

    @property
    def onto(self) -> bool:
        """Whether A is known to have independent rows."""
        return isinstance(self.A, DampedOperator) and self.A.transpose

    def _solves(self, A: LinearOperator, r: Tensor, b: Tensor, x: Tensor) -> bool:
        """Whether r = b - A x is zero to the tolerance, and no derivative of it is asked for."""
        if torch.is_grad_enabled() or not readable(r):
            return False
        criterion: Any = self.criterion
        norm_A = criterion.estimate_norm(A)
        return bool(criterion.solves(safe_size(r), safe_size(b), 0 if norm_A is None else norm_A, x).all())


class LeastSquares:
    """SciPy's rules, with the Frobenius norm of A, or the method's estimate if the entries of A are not
    known:

        ||r|| <= btol ||b|| + atol ||A|| ||x||        (the system has a solution)
        ||A^T r|| <= atol ||A|| ||r||                 (it has none)

    A tolerance below the rounding unit is replaced by it. The method gives up if its estimate of cond(A)
    exceeds conlim. `form`: how often A's entries occur in the operator, 2 for the real form of a complex A.
    """

    fixed = False
    square = False
    negligible = 0.0
    reads: tuple[str, ...] = ("A_norm", "condition")

    def __init__(self, atol: float, btol: float, conlim: float, form: int = 1):
        self.atol, self.btol, self.conlim, self.form = atol, btol, conlim, form
        self.has_tolerance = atol > 0 or btol > 0

    def fresh(self) -> LeastSquares:
        return copy(self)

    def rescale(self, of_b: Tensor) -> LeastSquares:
        return copy(self)

    def begin(
        self, A: LinearOperator, b: Tensor, x: Tensor, r: Tensor, norm: Tensor, length: Tensor
    ) -> Tensor:
        eps = torch.finfo(b.dtype).eps
        self.atol, self.btol = max(self.atol, eps), max(self.btol, eps)
        self.length, self.A_norm, normal = length, self.estimate_norm(A), safe_size(A.T(r))
        if (A_norm := self.A_norm) is None:
            # ||A^T b|| / ||b|| <= ||A||, which a solve from x = 0 computes in its first iteration.
            of_b = normal if r is b else safe_size(A.T(b))
            A_norm = of_b / torch.where(length == 0, 1, length)
        return self._small(x, norm, normal, A_norm) | (length == 0)

    def estimate_norm(self, A: LinearOperator) -> Tensor | None:
        """||A||, if its entries are known: those of a complex A occur twice in its real form."""
        norm = A.frobenius()
        return None if norm is None else norm / self.form**0.5

    def solves(self, norm: Tensor, length: Tensor, A_norm: Any, x: Tensor) -> Tensor:
        return norm <= self.btol * length + self.atol * A_norm * safe_size(x)

    def _small(self, x: Tensor, norm: Tensor, normal: Tensor, A_norm: Tensor) -> Tensor:
        A_norm = A_norm if self.A_norm is None else self.A_norm
        # Infinity is an overflow here and proves nothing.
        solved = self.solves(norm, self.length, A_norm, x)
        small = (normal <= self.atol * A_norm * norm) & torch.isfinite(A_norm * norm)
        return (solved & torch.isfinite(A_norm * safe_size(x)) | small) & torch.isfinite(norm)

    def seems_done(self, state: Any, norm: Tensor) -> Tensor:
        return self._small(state.x, norm, state.normal.detach().abs(), state.A_norm.detach())

    def is_done(self, A: LinearOperator, state: Any, r: Tensor, norm: Tensor) -> Tensor:
        return self._small(state.x, norm, safe_size(A.T(r)), state.A_norm.detach())

    def failure(self, state: Any, norm: Tensor) -> Tensor:
        limit = self.conlim if self.conlim > 0 else torch.inf
        return torch.where(state.condition.detach() > limit, CODE[Status.ILL_CONDITIONED], 0)

    def measure(self, A: LinearOperator, b: Tensor, x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        """A^T r, with the rounding errors of r."""
        g = A.T(r)
        return size(g), rounding_level(A.T, terms(A, x, b, g), torch.zeros_like(x), r)

    def accuracy(self, A: LinearOperator, b: Tensor, x: Tensor, codes: Tensor) -> str:
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
    form: int = 1,
) -> Solution:
    """Check the arguments, run the method, differentiate according to `options.gradient`."""
    A, b, x0 = operands(name, A, b, x0)
    if isinstance(b, Tensor) and b.is_complex():
        A, b, x0, options = real_system(name, A, b, x0, options)
        return complex_solution(solve(name, method, A, b, x0, damp, atol, btol, conlim, options, form=2))
    check_b(name, b)
    if options.iterations is None:
        atol, btol = (1e-6 if tolerance is None else tolerance for tolerance in (atol, btol))
    else:
        atol = btol = 0.0
    conlim = 1e8 if conlim is None else conlim
    check_options(name, replace(options, atol=atol))
    for key, value in (("damp", damp), ("btol", btol), ("conlim", conlim)):
        number(name, key, value)
    operator = make_operator(name, A, b, options.transpose, options.parameters, square=False)
    columns = Columns(b.dim() == 1, check_operands(name, A, b))
    B = columns.pack(b)
    known = not isinstance(operator, Function) or isinstance(A, scipy.sparse.linalg.LinearOperator)
    n = A.shape[1] if known else operator.T(B.detach()).shape[-2]
    X0 = None if x0 is None else _start(name, n, b, x0, columns)
    maxiter = 10 * n if options.maxiter is None else options.maxiter
    damped: LinearOperator = operator
    padded = B
    if damp:
        damped = DampedOperator(operator, float(damp), n)
        padded = torch.cat((B, B.new_zeros((*B.shape[:-2], n, B.shape[-1]))), dim=-2)
    criterion = LeastSquares(atol, btol, conlim, form)
    ends = options.throw, options.gradient, options.callback
    problem = LeastSquaresProblem(
        name, method, damped, None, criterion, maxiter, columns, *ends, shape=(padded.shape[-2], n)
    )
    if options.gradient == "implicit":
        start = B.new_zeros((*B.shape[:-2], n, B.shape[-1])) if X0 is None else X0
        refuse_what_has_no_implicit_gradient(name, operator, None, None, x0, start)
        rtol = atol if options.adjoint_rtol is None else options.adjoint_rtol
        again = replace(
            problem,
            criterion=LeastSquares(rtol, rtol, conlim, form),
            maxiter=maxiter if options.adjoint_maxiter is None else options.adjoint_maxiter,
            callback=None,
        )
        solution = implicit(problem, padded, X0, lambda: (again, padded))
    else:
        solution = unroll(problem, padded, X0)
    with torch.no_grad():
        x = solution.x.detach().unsqueeze(-1) if columns.vector else solution.x.detach()
        norm = size(operator.T(B - operator(x)) - damp**2 * x).squeeze(-2)
        solution.normal_residual_norm = norm.squeeze(-1) if columns.vector else norm
    return solution


def _start(name: str, n: int, b: Tensor, x0: Tensor, columns: Columns) -> Tensor:
    checks.same_kind(name, "x0", x0, b)
    shape = (n,) if b.dim() == 1 else (*b.shape[:-2], n, b.shape[-1])
    if x0.shape != shape:
        raise ValueError(f"{name}: x0 must have shape {shape}, got {tuple(x0.shape)}")
    return columns.pack(x0)


class _Bidiagonal(NamedTuple):
    """Golub and Kahan: A V = U B, with the lower bidiagonal B of the alphas and betas."""

    u: Tensor
    v: Tensor
    alpha: Tensor
    Av: Tensor  # A v
    square: Tensor  # ||B||^2, Frobenius


def _first_vectors(A: LinearOperator, r: Tensor, running: Tensor) -> tuple[_Bidiagonal, Tensor]:
    """beta u = r, alpha v = A^T u, and beta."""
    u, beta = _unit(r, running)
    v, alpha = _unit(A.T(u), running)
    return _Bidiagonal(u, v, alpha, A(v), alpha.detach() ** 2), beta


def _next_vectors(A: LinearOperator, state: Any, running: Tensor) -> tuple[_Bidiagonal, Tensor]:
    """beta u = A v - alpha u, alpha v = A^T u - beta v, from a state with the previous vectors, and beta."""
    u, beta = _unit(state.Av - multiply_columns(state.alpha, state.u), running)
    v, alpha = _unit(A.T(u) - multiply_columns(beta, state.v), running)
    return _Bidiagonal(u, v, alpha, A(v), state.square + beta.detach() ** 2 + alpha.detach() ** 2), beta


def _unit(u: Tensor, running: Tensor) -> tuple[Tensor, Tensor]:
    length = root(dot(u, u))
    return divide(u, length, running), length


class LSQRState(NamedTuple):
    x: Tensor
    r: Tensor
    u: Tensor
    v: Tensor
    alpha: Tensor
    Av: Tensor
    square: Tensor
    w: Tensor  # the direction
    Aw: Tensor
    rho_bar: Tensor
    phi_bar: Tensor  # ||r||
    directions: Tensor  # sum of ||w / rho||^2
    normal: Tensor  # ||A^T r||
    A_norm: Tensor
    condition: Tensor


class LSQR(Method):
    """QR factorization of the bidiagonal matrix by rotations."""

    def products(self, iterations: int) -> int:
        return 2 * iterations

    def start(self, A: LinearOperator, M: None, x: Tensor, r: Tensor, running: Tensor) -> LSQRState:
        q, beta = _first_vectors(A, r, running)
        zero = torch.zeros_like(beta)
        return LSQRState(
            x, r, *q, q.v, q.Av, q.alpha, beta, zero, (q.alpha * beta).detach(), q.alpha.detach(), zero + 1
        )  # fmt: skip

    def step(
        self, A: LinearOperator, M: None, b: Tensor, state: LSQRState, running: Tensor
    ) -> tuple[LSQRState, Tensor]:
        s = state
        q, beta = _next_vectors(A, s, running)
        rho = root(s.rho_bar * s.rho_bar + beta * beta)
        cosine, sine = divide(s.rho_bar, rho, running), divide(beta, rho, running)
        step = divide(cosine * s.phi_bar, rho, running)
        x, r = s.x + multiply_columns(step, s.w), s.r - multiply_columns(step, s.Aw)
        phi_bar = sine * s.phi_bar
        turn = divide(sine * q.alpha, rho, running)
        w, Aw = q.v - multiply_columns(turn, s.w), q.Av - multiply_columns(turn, s.Aw)
        directions = s.directions + divide(size(s.w), rho.detach(), running) ** 2
        A_norm = (q.square - q.alpha.detach() ** 2).clamp(min=0).sqrt()  # of the columns processed so far
        new = LSQRState(
            x, r, *q, w, Aw, -cosine * q.alpha, phi_bar, directions,
            (q.alpha * cosine * phi_bar).detach(), A_norm, A_norm * directions.sqrt(),
        )  # fmt: skip
        return new, torch.where(rho == 0, CODE[Status.BREAKDOWN], 0)


@solver(LeastSquaresOptions)
def lsqr(
    A: object,
    b: TensorLike,
    x0: TensorLike | None = None,
    *,
    damp: float = 0.0,
    atol: float | None = 1e-6,
    btol: float | None = 1e-6,
    conlim: float | None = 1e8,
    **options: Unpack[LeastSquaresOptions],
) -> Solution:
    r"""LSQR: x that minimizes :math:`\|b - A x\|^2 + \mathtt{damp}^2 \|x\|^2`, for A of any shape.

    A column stops, as in SciPy, when :math:`\|r\| \le \mathtt{btol} \|b\| + \mathtt{atol} \|A\| \|x\|` or
    :math:`\|A^T r\| \le \mathtt{atol} \|A\| \|r\|`, with the true residual r and the Frobenius norm of A, or
    the estimate of it by the method if the entries of A are not known.

    Parameters
    ----------
    A : CSR, shape (m, n), values (..., nnz), or a SciPy LinearOperator, or a callable with `transpose`
    b : Tensor or NumPy array, shape (m,) or (..., m, k)
    x0 : Tensor or NumPy array, shape (n,) or (..., n, k), or zero if not given
    damp : float, the damping of x (SciPy damps x - x0)
    atol, btol : the tolerances, at least the rounding unit. None: 1e-6
    conlim : stop (ILL_CONDITIONED) when the estimate of the condition number of A exceeds it. 0: never
    adjoint_rtol, adjoint_maxiter : of the adjoint solves, atol and btol too. Default: atol and maxiter
    options : shared keywords

    Returns
    -------
    Solution, with `residual_norms` :math:`\sqrt{\|b - A x\|^2 + \mathtt{damp}^2 \|x\|^2}`, and, at the end,
    `normal_residual_norm` :math:`\|A^T (b - A x) - \mathtt{damp}^2 x\|`

    Raises
    ------
    ValueError, TypeError, SolverError : as `cg`

    Notes
    -----
    x has the least norm (from x0 = 0). Implicit gradient of any order, forward mode, with r = b - A x:
    :math:`\bar b = A^{+T} \bar x`, :math:`\bar A = -\bar b x^T + r (A^+ \bar b)^T + (A^{+T} x) (\bar x - A^T
    \bar b)^T` on the pattern: up to three solves, for changes of A that keep its rank (docs/gradients.md).
    Cost per iteration: one product with A and one with its transpose.

    Examples
    --------
    >>> import torch, learnsolve as ls  # a line through three points
    >>> A = ls.CSR.from_dense(torch.tensor([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]], dtype=torch.float64))
    >>> b = torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64)
    >>> ls.solvers.lsqr(A, b, atol=1e-12, btol=1e-12).x
    tensor([1.0000, 0.5000], dtype=torch.float64)
    """
    read = read_options("lsqr", options, atol=(atol, 1e-6), btol=(btol, 1e-6))
    return solve("lsqr", LSQR(), A, b, x0, damp, atol, btol, conlim, read)


class LSMRState(NamedTuple):
    x: Tensor
    r: Tensor
    u: Tensor
    v: Tensor
    alpha: Tensor
    Av: Tensor
    square: Tensor
    h: Tensor  # directions and their products with A
    Ah: Tensor
    h_bar: Tensor
    Ah_bar: Tensor
    alpha_bar: Tensor  # rotations
    rho: Tensor
    rho_bar: Tensor
    c_bar: Tensor
    s_bar: Tensor
    zeta_bar: Tensor  # +-||A^T r||
    largest: Tensor  # on the diagonal of the second factor; smallest: without the last
    smallest: Tensor
    normal: Tensor
    A_norm: Tensor
    condition: Tensor


class LSMR(Method):
    """MINRES for A^T A x = A^T b: two QR factorizations of bidiagonal matrices by rotations."""

    def products(self, iterations: int) -> int:
        return 2 * iterations

    def start(self, A: LinearOperator, M: None, x: Tensor, r: Tensor, running: Tensor) -> LSMRState:
        q, beta = _first_vectors(A, r, running)
        one, zero, none = torch.ones_like(beta), torch.zeros_like(beta), torch.zeros_like(x)
        zeta_bar = q.alpha * beta
        return LSMRState(
            x, r, *q, q.v, q.Av, none, torch.zeros_like(q.Av), q.alpha, one, one, one, zero, zeta_bar,
            zero, torch.full_like(zero, torch.inf), zeta_bar.detach(), q.alpha.detach(), one,
        )  # fmt: skip

    def step(
        self, A: LinearOperator, M: None, b: Tensor, state: LSMRState, running: Tensor
    ) -> tuple[LSMRState, Tensor]:
        s = state
        q, beta = _next_vectors(A, s, running)
        rho = root(s.alpha_bar * s.alpha_bar + beta * beta)
        c, theta = divide(s.alpha_bar, rho, running), divide(beta, rho, running) * q.alpha
        theta_bar, above = s.s_bar * rho, s.c_bar * rho
        rho_bar = root(above * above + theta * theta)
        c_bar, s_bar = divide(above, rho_bar, running), divide(theta, rho_bar, running)
        zeta, zeta_bar = c_bar * s.zeta_bar, -s_bar * s.zeta_bar
        back = divide(theta_bar * rho, s.rho * s.rho_bar, running)
        h_bar, Ah_bar = s.h - multiply_columns(back, s.h_bar), s.Ah - multiply_columns(back, s.Ah_bar)
        step = divide(zeta, rho * rho_bar, running)
        turn = divide(theta, rho, running)
        # The condition number is estimated from the diagonal of the second factor, without its initial 1.
        known = above.detach().abs()
        largest = torch.maximum(s.largest, known)
        smallest = torch.minimum(s.smallest, known)
        new = LSMRState(
            s.x + multiply_columns(step, h_bar), s.r - multiply_columns(step, Ah_bar),
            *q, q.v - multiply_columns(turn, s.h), q.Av - multiply_columns(turn, s.Ah), h_bar, Ah_bar,
            c * q.alpha, rho, rho_bar, c_bar, s_bar, zeta_bar,
            torch.maximum(s.largest, rho_bar.detach()), torch.minimum(s.smallest, rho_bar.detach()),
            zeta_bar.detach(), (q.square - q.alpha.detach() ** 2).clamp(min=0).sqrt(), largest / smallest,
        )  # fmt: skip
        return new, torch.where(rho * rho_bar == 0, CODE[Status.BREAKDOWN], 0)


@solver(LeastSquaresOptions)
def lsmr(
    A: object,
    b: TensorLike,
    x0: TensorLike | None = None,
    *,
    damp: float = 0.0,
    atol: float | None = 1e-6,
    btol: float | None = 1e-6,
    conlim: float | None = 1e8,
    **options: Unpack[LeastSquaresOptions],
) -> Solution:
    r"""LSMR: x that minimizes :math:`\|b - A x\|^2 + \mathtt{damp}^2 \|x\|^2`, for A of any shape.

    Like `lsqr`, but each iterate minimizes :math:`\|A^T r\|`, which decreases steadily: safer to stop early.

    Parameters
    ----------
    A, b, x0, damp, atol, btol, conlim, maxiter, iterations, callback, gradient, throw : see `lsqr`
    adjoint_rtol, adjoint_maxiter, transpose, parameters : see `lsqr`

    Returns
    -------
    Solution, as for `lsqr`

    Raises
    ------
    ValueError, TypeError, SolverError
        as `cg`.

    Notes
    -----
    Gradients and cost are as for `lsqr`.

    References
    ----------
    D. C.-L. Fong, M. A. Saunders, "LSMR: An iterative algorithm for sparse least-squares problems", SIAM J.
    Sci. Comput. 33 (2011) 2950-2971, doi:10.1137/10079687X

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]], dtype=torch.float64))
    >>> b = torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64)
    >>> ls.solvers.lsmr(A, b, atol=1e-12, btol=1e-12).x
    tensor([1.0000, 0.5000], dtype=torch.float64)
    """
    read = read_options("lsmr", options, atol=(atol, 1e-6), btol=(btol, 1e-6))
    return solve("lsmr", LSMR(), A, b, x0, damp, atol, btol, conlim, read)
