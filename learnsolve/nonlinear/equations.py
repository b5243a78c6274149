"""Roots, fixed points and least squares of nonlinear functions, with derivatives."""

from __future__ import annotations

import copy
import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, ParamSpec, TypeVar

import torch
from torch import Tensor

from learnsolve.arguments import CALLABLE, Index, NotNegative, Positive
from learnsolve.matrix import checks
from learnsolve.matrix.cache import numbers, outside_of_graphs, plain_tensors, vmap_active
from learnsolve.matrix.checks import _full as full
from learnsolve.matrix.checks import check_arguments, real_tensor
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.nonlinear._linear import (
    INNER,
    Arguments,
    Implicit,
    LinearizedRule,
    LoopResult,
    MatrixJacobian,
    Residual,
    Rule,
    Systems,
    broadcast_scalar,
    if_alike,
)
from learnsolve.nonlinear._methods import Normal, Settings, anderson, levenberg_marquardt, newton
from learnsolve.nonlinear._pattern import Function, generic_point, require_values
from learnsolve.nonlinear.jacobians import convert_pattern, errors
from learnsolve.nonlinear.jacobians import jacobian as sparse_jacobian
from learnsolve.ops.autograd import needs_graph, pullback
from learnsolve.solvers.core.gradient import transforms_active
from learnsolve.solvers.core.loop import report
from learnsolve.solvers.solution import CODE, Iteration, Report, Solution, Status

Loop = Callable[..., LoopResult]
P = ParamSpec("P")
T = TypeVar("T")
DENSE = 200  # unknowns up to which a dense Jacobian is used if no pattern is known
FULL = 0.1  # fraction of all entries above which a pattern is too full to be useful


@dataclass(frozen=True, eq=False)
class Root(Rule):
    """f(u, *p) = 0."""

    f: Residual
    systems: Systems
    loop: Loop
    settings: Settings
    adjoint: tuple[float, int | None]  # rtol and maxiter
    throw: bool
    ended: Report
    report: Report
    shift: Tensor | None = None  # for a direction of the unrolled loop
    square = True

    @property
    def levels(self) -> int:  # type: ignore[override]
        return self.f.levels

    def F(self, x: Tensor, *p: Tensor) -> Tensor:
        r = self.f(x, *p)
        return r if self.shift is None else r + broadcast_scalar(self.shift, x) * x

    def find(self, x0: Tensor | None, *p: Tensor) -> LoopResult:
        assert x0 is not None
        return self.run(x0.clone(), p, self.f.first(x0.clone(), p, self.square))

    def run(self, u: Tensor, p: tuple[Tensor, ...], r: Tensor) -> LoopResult:
        def direction(u: Tensor, b: Tensor, eta: float, shift: Tensor | None) -> LoopResult:
            if not torch.is_grad_enabled():
                return self.systems.solve(b, eta, INNER)
            step = replace(self, systems=copy.copy(self.systems), shift=shift)
            return LoopResult(*Implicit.apply(LinearizedRule(step, False), None, b, u, *p))  # type: ignore[misc]

        out = self.loop(self.f, self.systems, direction, u, p, r, self.settings)
        solution = self.solution(out)
        if not torch.is_grad_enabled():  # in the unrolled loop x holds the graph, whose steps hold this rule
            self.ended.solution = solution
        advice = f" ({out.note.rstrip('. ')})" if out.note else ""
        report(self.f.name, solution, self.throw, self.settings.rtol > 0 or self.settings.atol > 0, advice)
        return out

    def solve(self, x: Tensor, p: tuple[Tensor, ...], b: Tensor, transpose: bool) -> LoopResult:
        self.systems.at(x, p)
        out = self.systems.solve(b, *self.adjoint, transpose)
        out = self.systems.refine(out, b, *self.adjoint, transpose)
        if self.systems.transient:
            self.systems.release()
        return self.reported(out, transpose)

    def reported(self, out: LoopResult, transpose: bool) -> LoopResult:
        self.report.solution = solution = self.solution(out)
        what = "adjoint solve of the backward pass" if transpose else "linear solve of a step or tangent"
        advice = ", so the derivative is not exact (see adjoint_rtol, adjoint_maxiter)"
        report(f"{self.f.name}, {what}", solution, self.throw, True, advice)
        return out

    def release(self) -> None:
        self.systems.transient = True
        self.systems.release()

    def replace_failures(
        self, g: Tensor, codes: Tensor, x: Tensor, p: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """A solved system takes the place of each that failed and whose cotangent is zero. It adds zero to
        the gradients of what systems share, not the NaN that zero times one of its derivatives may be."""
        solved = codes == CODE[Status.CONVERGED]
        gone = ~solved & (g == 0).flatten(self.levels).all(-1)
        if not bool(numbers(gone).any()):
            return x, p
        first = solved.flatten().int().argmax()
        at = []
        for n in reversed(codes.shape):
            at.insert(0, (first % n).reshape(1))
            first = first // n

        def spare(t: Tensor, levels: list[int]) -> Tensor:
            other, all_gone = t, gone
            for axis, level in enumerate(levels):
                other = other.index_select(axis, at[level])
            for level in reversed(range(self.levels)):
                all_gone = all_gone if level in levels else all_gone.all(level)
            return torch.where(broadcast_scalar(all_gone, t), other, t)

        every = list(range(self.levels))
        return spare(x, every), [
            spare(t, [level for level in every if self.f.axes[level][i] is not None]) for i, t in enumerate(p)
        ]

    def add_batch_axis(self, dims: tuple[int | None, ...]) -> Root:
        systems = self.systems.add_batch_axis(dims)
        return replace(self, f=systems.residual, systems=systems)

    def solution(self, out: LoopResult, adjoint: Report | None = None) -> Solution:
        iterations = out.norms.shape[-1] - 1
        solution = Solution(out.x, iterations, out.norms, -1, codes=out.codes, adjoint=adjoint, note=out.note)
        solution.method, solution.reason = self.systems.method, self.systems.why
        solution.normal_residual_norm = out.normal
        return solution


def solve(
    name: str,
    f: Callable[..., Tensor],
    u0: Tensor,
    args: tuple,
    loop: Loop,
    settings: Settings,
    *,
    jacobian: object,
    linear: object,
    M: object,
    gradient: str,
    throw: bool,
    adjoint_rtol: float | None,
    adjoint_maxiter: int | None,
    residual: Callable[..., Any] | None = None,
    words: str = "f u",
    kind: Callable[..., Root] = Root,
    systems: type[Systems] = Systems,
    trusted: bool = False,
) -> Solution:
    """f is the user's function. `residual`, derived from it, must become zero."""
    start = time.perf_counter()
    if not callable(linear):
        checks.check_choice(name, "linear", linear, systems.methods)
    if M is not None and not callable(M):
        checks.check_choice(name, "M", M, ("auto", None))
    arguments = Arguments(f, args)
    p, call = arguments.tensors, arguments.bind(f if residual is None else residual, name)
    r = Residual(name, call, _make_jacobian(name, arguments, call, jacobian, u0), words=words)
    r.trusted = trusted
    rtol = (settings.rtol or torch.finfo(u0.dtype).eps ** 0.5) if adjoint_rtol is None else adjoint_rtol
    if transforms_active() and not trusted:
        r.alone(u0, p)
    rule = kind(r, systems(r, linear, M), loop, settings, (rtol, adjoint_maxiter), throw, Report(), Report())
    if gradient == "unrolled":
        if any(vmap_active(t) for t in (u0, *p)):
            raise NotImplementedError(
                f'{name}: vmap needs gradient="implicit", since the number of iterations depends on the data'
            )
        r.first(u0, p, rule.square)
        solution = rule.solution(rule.run(u0, p, r(u0, *p)))
    else:
        out = LoopResult(*Implicit.apply(rule, u0.detach(), *p))  # type: ignore[misc]
        if (ended := rule.ended.solution) is not None:
            out = out._replace(note=ended.note, normal=ended.normal_residual_norm)
        solution = rule.solution(out, rule.report if needs_graph(*p) else None)
    solution.seconds = time.perf_counter() - start if solution.x.is_cpu else None
    return solution


def outside(function: Callable[P, T]) -> Callable[P, T]:
    """A public function, at which torch.compile breaks its graph."""
    return outside_of_graphs(
        function,
        "nonlinear solves end by the values of f, which are not known while a graph is traced "
        "(fullgraph=True, torch.export). Call them outside of the graph",
    )


def _make_jacobian(
    name: str, arguments: Arguments, call: Callable, jacobian: object, u0: Tensor
) -> MatrixJacobian | None:
    """The Jacobian from a user's `jacobian`, or its pattern. None means that only products are known."""
    if callable(jacobian) and not isinstance(jacobian, CSR):
        return MatrixJacobian(name, arguments.bind(jacobian, name), users=True)
    if jacobian is not None and not isinstance(jacobian, str):
        pattern = convert_pattern(name, jacobian, "jacobian")
        if pattern.shape[1] != u0.numel():
            raise ValueError(
                f"{name}: jacobian must be a pattern with a column for each of the {u0.numel()} unknowns, "
                f"got shape {tuple(pattern.shape)}"
            )
        return MatrixJacobian(name, sparse_jacobian(call, pattern))
    checks.check_choice(name, "jacobian", jacobian, ("auto", None))
    if jacobian is None:
        return None
    return (
        MatrixJacobian(name, dense(call))
        if u0.numel() <= DENSE
        else MatrixJacobian(name, None, _finder(call))
    )


def _finder(call: Callable[..., Any]) -> Callable[..., Any]:
    """The Jacobian on the pattern of f's program, if it is sparse and can be determined."""

    def find(u: Tensor, *p: Tensor) -> Callable[..., CSR] | None:
        J = sparse_jacobian(call)
        try:
            pattern = J.analysis(u, *p).pattern
        except (ValueError, NotImplementedError):  # too many entries, or an operation without a derivative
            return None
        return J if pattern.nnz <= FULL * pattern.shape[0] * pattern.shape[1] else None

    return find


def dense(f: Callable[..., Tensor]) -> Callable[..., CSR]:
    """The Jacobian of f with all entries, row by row where torch's vmap cannot do it, or is wrong."""

    def jacobian(u: Tensor, *p: Tensor) -> CSR:
        r, pull = pullback(lambda u: f(u, *p), u)
        rows = torch.eye(r.numel(), dtype=r.dtype, device=r.device)
        pattern = _full(r.numel(), u.numel(), u.device)

        def row(v: Tensor) -> Tensor:
            return pull(v.reshape(r.shape))[0].reshape(-1)

        try:
            J = CSR(torch.vmap(row)(rows).reshape(-1), pattern)
            with torch.no_grad():
                slack = 100 * torch.finfo(u.dtype).eps
                wrong = errors(J.detach(), row, generic_point(rows[0]), transpose=True, slack=slack)
        except RuntimeError:
            wrong = rows
        return CSR(torch.cat([row(e) for e in rows]), pattern) if bool(wrong.any()) else J

    return jacobian


@functools.lru_cache(16)
def _full(m: int, n: int, device: torch.device) -> SparsityPattern:
    with plain_tensors():
        return full(torch.empty(m, n, device=device))


def make_settings(
    u0: Tensor,
    rtol: float | None,
    atol: float,
    maxiter: int,
    callback: Callable[[Iteration], object] | None,
    **others: Any,
) -> Settings:
    least = math.sqrt(torch.finfo(u0.dtype).eps)
    return Settings(least if rtol is None else rtol, atol, maxiter, callback, **others)


def _start(function: str, name: str, u0: Tensor) -> Tensor:
    if u0.numel() == 0:
        raise ValueError(f"{function}: {name} must have at least one entry, got shape {tuple(u0.shape)}")
    return require_values(function, name, u0)


Start = Annotated[Tensor, real_tensor(_start)]
Callback = Annotated[Callable[[Iteration], Any], CALLABLE]
Gradient = Literal["implicit", "unrolled"]


@check_arguments
@outside
def root(
    f: Function,
    u0: Start,
    *args: object,
    method: Literal["newton", "newton-krylov", "chord", "lm", "anderson"] = "newton",
    jacobian: object = "auto",
    linear: object = "auto",
    M: object = "auto",
    rtol: NotNegative | None = None,
    atol: NotNegative = 0.0,
    maxiter: Index = 50,
    line_search: object = "backtracking",
    pseudo_transient: Positive | None = None,
    forcing: Positive | None = None,
    callback: Callback | None = None,
    gradient: Gradient = "implicit",
    throw: bool = False,
    adjoint_rtol: NotNegative | None = None,
    adjoint_maxiter: Index | None = None,
) -> Solution:
    r"""Solve :math:`f(u, \mathtt{args}) = 0` for u by Newton's method, differentiably in args.

    Parameters
    ----------
    f : callable ``(u, *args)`` -> Tensor of u's shape, dtype and device, also a torch.nn.Module or its method
    u0 : Tensor of any shape, float32 or float64: the initial guess
    args : the arguments of f, in any nesting: tensors, CSR, modules (their parameters), constants
    method : "newton"; "newton-krylov", with products only; "chord", which keeps the Jacobian while a step
        halves the residual; "lm", see `least_squares`; "anderson", for u <- u - f(u), see `fixed_point`
    jacobian : "auto", on the pattern of f's program (`jacobian_sparsity`); its pattern, a SparsityPattern,
        CSR or SciPy matrix; a callable ``(u, *args)`` -> CSR, such as `jacobian(f)`, which keeps its pattern
        for the calls of a loop, or None for products only
    linear : "auto", "direct", "cg", "minres", "bicgstab", "gmres", or a callable (J, b) -> J^-1 b, also
        called with J.T
    M : "auto"; None; or a callable J -> preconditioner, such as `preconditioners.AMG`, reused while good
    rtol, atol : the tolerance, :math:`\|f(u)\| \le \max(\mathtt{rtol} \|f(u_0)\|, \mathtt{atol})`. Default
        rtol: the square root of the rounding unit. With rtol > 0 rounding errors of f are small enough
    maxiter : int >= 0, steps
    line_search : "backtracking", Armijo's rule on 1/2 ||f||^2; None, full steps; float or Tensor, a
        damping, or a callable (step, u, f(u), d) -> damping
    pseudo_transient : float > 0, the first time step of pseudo-transient continuation, in place of a line
        search, for f with stable du/dt = -f(u)
    forcing : float, relative tolerance of inexact linear solves. Default: Eisenstat and Walker's
    callback, throw, adjoint_rtol, adjoint_maxiter : see `solvers.cg`, with one iterate per step
    gradient : "implicit", one adjoint solve; "unrolled", through the steps, also for u0 and a damping

    Returns
    -------
    Solution. With gradient="implicit" u0 gets no gradient, since u does not depend on it.

    Raises
    ------
    ValueError, TypeError, SolverError
        if arguments are invalid, or if f is not a function of u and args only, changes them or is not finite
        at u0.

    Notes
    -----
    Gradient: with :math:`J^T \lambda = \bar u` it is :math:`-\lambda^T \partial f / \partial \mathtt{args}`;
    any order, forward mode, vmap (each system stops independently). docs/nonlinear.md has the rules of
    "auto", and costs.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> a = torch.tensor([4.0, 9.0], dtype=torch.float64, requires_grad=True)
    >>> u = ls.nonlinear.root(lambda u, a: u * u - a, torch.ones(2, dtype=torch.float64), a).x
    >>> u.detach(), torch.autograd.grad(u.sum(), a)[0]
    (tensor([2.0000, 3.0000], dtype=torch.float64), tensor([0.2500, 0.1667], dtype=torch.float64))
    """
    krylov = method == "newton-krylov"
    if method not in ("newton", "newton-krylov", "chord"):
        checks.check_unused("root", "line_search", line_search, "Newton's method", "backtracking")
        checks.check_unused("root", "pseudo_transient", pseudo_transient, "Newton's method")
    if method == "lm" and gradient == "unrolled":
        raise NotImplementedError(
            'root: gradient="unrolled" takes method="newton", "chord" or "anderson", not "lm"'
        )
    if method == "chord" and pseudo_transient is not None:
        raise ValueError(
            'root: pseudo_transient changes the matrix in every step. Use method="newton", not "chord"'
        )
    settings = make_settings(
        u0,
        rtol,
        atol,
        maxiter,
        callback,
        line_search=_line_search(line_search, u0, gradient),
        pseudo_transient=pseudo_transient,
        forcing=forcing,
        chord=method == "chord",
    )
    return solve(
        "root",
        f,
        u0,
        args,
        _LOOPS.get(method, newton),
        settings,
        jacobian=None if krylov else jacobian,
        linear=linear,
        M=M,
        gradient=gradient,
        throw=throw,
        adjoint_rtol=adjoint_rtol,
        adjoint_maxiter=adjoint_maxiter,
    )


_LOOPS = {"lm": levenberg_marquardt, "anderson": anderson}


def _line_search(rule: object, u0: Tensor, gradient: str) -> Any:
    if isinstance(rule, Tensor):
        return _damping("root", "line_search", rule, u0, gradient)
    if rule is None or rule == "backtracking" or callable(rule):
        return rule
    if isinstance(rule, str):
        checks.check_choice("root", "line_search", rule, ("backtracking", None))
    return _damping("root", "line_search", rule, u0, gradient)


def _damping(function: str, name: str, value: object, u0: Tensor, gradient: str) -> float | Tensor:
    if not isinstance(value, Tensor):
        return checks.real(function, name, value, "positive and finite", "a number or a torch.Tensor")
    if value.shape not in (torch.Size(), torch.Size([1]), u0.shape):
        raise ValueError(
            f"{function}: {name}, a Tensor, must have one element or the shape of the start, "
            f"{tuple(u0.shape)}, got {tuple(value.shape)}"
        )
    if gradient == "implicit" and vmap_active(value):  # the steps run below the levels of torch.func
        raise NotImplementedError(
            f'{function}: {name} mapped by torch.func.vmap needs gradient="unrolled". Pass one number for '
            "the whole batch"
        )
    return value


@check_arguments
@outside
def fixed_point(
    g: Function,
    x0: Start,
    *args: object,
    memory: Index = 5,
    damping: float | Tensor = 1.0,
    jacobian: object = "auto",
    linear: object = "auto",
    M: object = "auto",
    rtol: NotNegative | None = None,
    atol: NotNegative = 0.0,
    maxiter: Index = 1000,
    callback: Callback | None = None,
    gradient: Gradient = "implicit",
    throw: bool = False,
    adjoint_rtol: NotNegative | None = None,
    adjoint_maxiter: Index | None = None,
) -> Solution:
    r"""Solve :math:`x = g(x, \mathtt{args})` by Anderson acceleration.

    Parameters
    ----------
    g : callable ``(x, *args)`` -> Tensor of x's shape, dtype and device
    x0 : Tensor of any shape, float32 or float64
    args : see `root`
    memory : int >= 0, the number of differences that a step combines. 0: plain iteration x <- g(x)
    damping : float, or Tensor, which gradient="unrolled" differentiates: the factor of g(x) - x in a step
    jacobian, linear, M : for the derivative of :math:`x - g(x)`, as for `root`
    rtol, atol : the tolerance for :math:`\|g(x) - x\|`, as for `root`
    maxiter, callback, gradient, throw, adjoint_rtol, adjoint_maxiter : see `root`

    Returns
    -------
    Solution, with :math:`\|g(x_i) - x_i\|` as `residual_norms`

    Raises
    ------
    ValueError, TypeError, SolverError
        see `root`.

    Notes
    -----
    Gradient: as for `root`, for :math:`f(x) = x - g(x)`. Cost per iteration: one call of g, with 2 `memory`
    vectors stored.

    References
    ----------
    H. F. Walker, P. Ni, "Anderson acceleration for fixed-point iterations", SIAM J. Numer. Anal. 49 (2011)
    1715-1735, doi:10.1137/10078356X

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> a = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    >>> x0 = torch.zeros(1, dtype=torch.float64)
    >>> solution = ls.nonlinear.fixed_point(lambda x, a: a * torch.cos(x), x0, a)
    >>> solution.x.detach()
    tensor([0.4502], dtype=torch.float64)
    >>> solution.x.sum().backward()
    >>> a.grad
    tensor(0.7395, dtype=torch.float64)
    """
    settings = make_settings(x0, rtol, atol, maxiter, callback, memory=memory)
    settings.damping = _damping("fixed_point", "damping", damping, x0, gradient)

    def residual(x: Tensor, *args: object) -> Any:
        return if_alike(g(x, *args), x, lambda y: x - y)

    return solve(
        "fixed_point",
        g,
        x0,
        args,
        anderson,
        settings,
        jacobian=jacobian,
        linear=linear,
        M=M,
        gradient=gradient,
        throw=throw,
        adjoint_rtol=adjoint_rtol,
        adjoint_maxiter=adjoint_maxiter,
        residual=residual,
        words="g x",
    )


@dataclass(frozen=True, eq=False)
class Minimum(Root):
    """J(u)^T r(u) = 0, whose Jacobian is the Hessian H of 1/2 ||r||^2: solved by cg with M from J^T J."""

    hessian: Any = None  # Systems
    square = False

    def F(self, x: Tensor, *p: Tensor) -> Tensor:
        return self.hessian.residual(x, *p)

    def solve(self, x: Tensor, p: tuple[Tensor, ...], b: Tensor, transpose: bool) -> LoopResult:
        self.hessian.at(x, p)
        if self.hessian.how == "cg" and self.f.assembled(x, p):
            self.systems.at(x, p)
            self.hessian.kept = self.systems.inverse()
        return self.reported(self.hessian.solve(b, *self.adjoint), transpose)

    def add_batch_axis(self, dims: tuple[int | None, ...]) -> Minimum:
        systems = self.systems.add_batch_axis(dims)
        return replace(self, f=systems.residual, systems=systems, hessian=self.hessian.add_batch_axis(dims))


def _minimum(r: Residual, systems: Systems, *rest: Any, few: bool) -> Minimum:
    def gradient(u: Tensor, *p: Tensor) -> Tensor:
        value, pull = pullback(lambda z: r(z, *p), u)
        return pull(value)[0]

    assembled = MatrixJacobian(r.name, dense(gradient)) if few else None
    hessian = Systems(Residual(r.name, gradient, assembled), "direct" if few else "cg", None)
    return Minimum(r, systems, *rest, hessian=hessian)


@check_arguments
@outside
def least_squares(
    r: Function,
    u0: Start,
    *args: object,
    method: Literal["lm", "gauss-newton"] = "lm",
    jacobian: object = "auto",
    linear: object = "auto",
    M: object = "auto",
    rtol: NotNegative | None = None,
    atol: NotNegative = 0.0,
    maxiter: Index = 100,
    callback: Callback | None = None,
    gradient: Literal["implicit"] = "implicit",
    throw: bool = False,
    adjoint_rtol: NotNegative | None = None,
    adjoint_maxiter: Index | None = None,
) -> Solution:
    r"""u that minimizes :math:`\frac12 \|r(u, \mathtt{args})\|^2`, by Levenberg-Marquardt or Gauss-Newton.

    Each step solves the normal equations :math:`(J^T J + \mu I) d = -J^T r`.

    Parameters
    ----------
    r : callable ``(u, *args)`` -> Tensor of any shape, with u's dtype and device
    u0 : Tensor of any shape, float32 or float64
    args : see `root`
    method : "lm", or "gauss-newton", which starts with mu = 0 and increases it if a step does not decrease r
    jacobian : see `root`, with rows for the entries of r
    linear, M : see `root`, for the normal equations: "auto" factors them, or runs `cg` if J is not
        assembled; "lsmr", without M, uses J and does not square its condition number
    rtol, atol : the tolerance, :math:`\|J^T r\| \le \max(\mathtt{rtol} \|J_0^T r_0\|, \mathtt{atol})`.
        Default rtol: the square root of the rounding unit
    maxiter : int >= 0, steps, including rejected ones
    callback, throw, adjoint_rtol, adjoint_maxiter : see `root`
    gradient : "implicit"

    Returns
    -------
    Solution, with :math:`\|r(u_i)\|` as `residual_norms`, and `normal_residual_norm` :math:`\|J^T r\|` at
    the end

    Raises
    ------
    ValueError, TypeError, SolverError
        see `root`.

    Notes
    -----
    Gradient: as for `root`, for :math:`f(u) = J^T r`, whose Jacobian is the full Hessian (dense up to 200
    unknowns, otherwise products, with `cg`). Any order. Normal equations square the condition number of J.

    References
    ----------
    D. W. Marquardt, "An algorithm for least-squares estimation of nonlinear parameters", J. SIAM 11 (1963)
    431-441, doi:10.1137/0111030

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> t = torch.linspace(0, 1, 5, dtype=torch.float64)
    >>> y = 2 * torch.exp(-3 * t)
    >>> r = lambda u, y: u[0] * torch.exp(-u[1] * t) - y
    >>> solution = ls.nonlinear.least_squares(r, torch.ones(2, dtype=torch.float64), y)
    >>> solution.x
    tensor([2.0000, 3.0000], dtype=torch.float64)
    """
    name = "least_squares"
    settings = make_settings(u0, rtol, atol, maxiter, callback, normal=True)
    settings.gauss_newton = method == "gauss-newton"
    return solve(
        name,
        r,
        u0,
        args,
        levenberg_marquardt,
        settings,
        jacobian=jacobian,
        linear=linear,
        M=M,
        gradient=gradient,
        throw=throw,
        adjoint_rtol=adjoint_rtol,
        adjoint_maxiter=adjoint_maxiter,
        words="r u",
        kind=functools.partial(_minimum, few=u0.numel() <= DENSE),
        systems=Normal,
    )
