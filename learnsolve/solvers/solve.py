"""One function for any matrix: it analyzes A and chooses a method and a preconditioner."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch import Tensor

from learnsolve.matrix import checks, inputs
from learnsolve.matrix.convert import TensorLike
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.interning import equal
from learnsolve.matrix.plain import chooses, numbers, outside_of_graphs
from learnsolve.ops.spsolve import spsolve
from learnsolve.preconditioners.direct import Factorization
from learnsolve.solvers.bicgstab import bicgstab
from learnsolve.solvers.cg import cg
from learnsolve.solvers.core.arguments import check_b, check_operands
from learnsolve.solvers.core.choices import Choice, Ending, choices, factor, fitting, preconditioner
from learnsolve.solvers.core.gradient import mapped, transformed
from learnsolve.solvers.core.projected import Detected, detected
from learnsolve.solvers.core.report import quiet, report, users_frame
from learnsolve.solvers.core.vectors import safe_size
from learnsolve.solvers.gmres import gmres
from learnsolve.solvers.lsqr import lsqr
from learnsolve.solvers.minres import minres
from learnsolve.solvers.solution import CODE, DIRECT, ConvergenceWarning, Solution, SolverError, Status

METHODS: dict[str, Callable[..., Solution]] = {
    "cg": cg, "minres": minres, "gmres": gmres, "bicgstab": bicgstab, "lsqr": lsqr,
}  # fmt: skip
_NO_GRAPH = (
    "ls.solve chooses by the values of A, which are not known while a graph is traced (fullgraph=True, "
    "torch.export): write ls.solvers.cg(A, b, M=...).x, with the method and M that Solution.selected names"
)
OTHERWISE = {Status.INDEFINITE, Status.BREAKDOWN, Status.STAGNATED, Status.MAX_ITERATIONS, Status.DIVERGED}


def solve(
    A: Any,
    b: TensorLike,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    method: str | Factorization = "auto",
    M: Any = "auto",
    null_space: Any = "auto",
    throw: bool = False,
) -> Solution:
    r"""Solve :math:`A x = b` with a method and preconditioner suited to A, or minimize the residual.

    Parameters
    ----------
    A : CSR, shape (m, n), values (..., nnz); or a SciPy, torch or NumPy matrix
    b : Tensor or NumPy array, shape (m,) or (..., m, k), of A's dtype and device
    rtol, atol : the tolerance, :math:`\|b - A x\| \le \max(\mathtt{rtol} \|b\|, \mathtt{atol})`
    maxiter : int, limit of each attempt. Default: see docs/solvers.md, or the limit of the method
    method : "auto", "direct" (`ops.spsolve`), "cg", "minres", "gmres", "bicgstab" or "lsqr"; or factors
        of A, `ls.factorize(A)`
    M : "auto"; None; or a preconditioner, as for the method
    null_space : "auto": "constants" if all row and column sums of A are zero; None; or the null space of a
        singular A, as for `cg`
    throw : raise `SolverError` if the tolerance was not reached

    Returns
    -------
    Solution; its attribute `selected` says what was chosen and why.

    Raises
    ------
    ValueError, TypeError
        as for the methods.
    SolverError
        if `throw` and a column did not converge.

    Notes
    -----
    How "auto" chooses: docs/solvers.md. The choice reads the values of A in O(nnz) and synchronizes a device.
    If "auto" detected null vectors and b has a component along them above the tolerance, the status is
    INCONSISTENT; null_space="constants" drops the component. Gradient: the implicit gradient of the method,
    for A and b. Under vmap b may be mapped; in a graph (`fullgraph=True`) call the method directly.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((16, 16, 16))
    >>> solution = ls.solve(A, torch.ones(4096, dtype=torch.float64), rtol=1e-8)
    >>> solution.selected
    'cg with Jacobi: A is symmetric, its diagonal positive'
    """
    if torch.compiler.is_exporting():
        raise NotImplementedError(_NO_GRAPH)
    A, b = inputs.operands("solve", A, b)
    checks.matrix("solve", "A", A, "; make one with CSR.from_*; the methods, such as cg, take operators")
    check_b("solve", b, or_complex=True)
    if b.is_complex():
        checks.one_dtype("solve", b, A.values)
    check_operands("solve", A, b)
    checks.rows("solve", "b", b, "A", A.shape)
    factors = None
    if isinstance(method, Factorization):
        factors, method = method, "direct"
        _check_factors(factors, A)
    checks.one_of("solve", "method", method, ("auto", "direct", *METHODS))
    if mapped(A.values):
        raise NotImplementedError(
            "solve: under vmap the values of A cannot be read to choose by; call a method, such as cg, or "
            "give A.values a batch axis"
        )
    if isinstance(M, str):
        checks.one_of("solve", "M", M, ("auto",))
    if method == "direct" and not isinstance(M, str) and M is not None:
        raise ValueError('solve: method="direct" takes no M; leave it out')
    automatic = isinstance(null_space, str) and null_space == "auto"
    if automatic:
        takes = method not in ("direct", "lsqr") and A.shape[0] == A.shape[1]
        real = not A.values.is_complex()
        null_space = detected(A) if takes and real else None
    elif null_space is not None and (method in ("direct", "lsqr") or A.shape[0] != A.shape[1]):
        raise ValueError(
            "solve: null_space belongs to cg, minres, gmres and bicgstab; lsqr finds the solution of minimum "
            "norm without it, and a direct solve needs a regular A"
        )
    tried: list[str] = []
    singular = null_space is not None
    attempts = choices(A, b, M, singular) if method == "auto" else _asked(A, method, M)
    choice, x0 = next(attempts), None
    while True:
        made, note = preconditioner(choice.M, A, M)
        tried.append(f"{choice.method}{note}: {choice.why}")
        failure = None
        try:
            with quiet() as said:
                solution = _run(choice, A, b, x0, made, rtol, atol, maxiter, throw, null_space, factors)
            status = solution.status
        except SolverError as error:
            solution = error.solution
            status = solution.status
        except ValueError as error:
            if choice.method != "direct" or "singular" not in str(error):
                raise
            failure, status = error, Status.BREAKDOWN
        if status not in OTHERWISE:
            break
        try:
            ending = Ending(status) if failure is not None else _ending(solution, b, rtol, atol)
            choice = attempts.send(ending)
        except StopIteration:
            break
        tried[-1] += "; A is singular" if failure is not None else f"; {status.name}"
        x0 = None if failure is not None else _start(solution)
    if failure is not None:
        raise failure
    solution.selected = "; then ".join(tried)
    if isinstance(null_space, Detected):
        found = 'null_space="constants", as the rows of A sum to zero'
        exactly = "" if null_space.exactly else " up to rounding"
        solution.selected = f"{found}; {solution.selected}"
        solution.note = f"{found}{exactly}, and so do its columns. {solution.note}"
    report("solve", solution, throw, True)
    for text in said:
        warnings.warn(text, ConvergenceWarning, stacklevel=users_frame())
    return solution


solve = outside_of_graphs(chooses(solve), _NO_GRAPH)


def _start(solution: Solution) -> Tensor | None:
    """x if it is closer to a solution than its start: the next attempt then starts from it."""
    if transformed():  # under vmap the norms have other axes
        return None
    norms, axis = solution.residual_norms.detach(), solution._axis
    nearer = norms.select(axis, -1) < norms.select(axis, 0)
    return torch.where(nearer if axis == -1 else nearer.unsqueeze(-2), solution.x.detach(), 0)


def _ending(solution: Solution, b: Tensor, rtol: float, atol: float) -> Ending:
    """For the slowest column, extrapolated from the second half of the iterations."""
    count = solution.residual_norms.shape[solution._axis] - 1
    if solution.status is not Status.MAX_ITERATIONS or transformed() or count < 2:
        return Ending(solution.status)
    norms = solution.residual_norms.detach().movedim(solution._axis, 0)
    target = (rtol * torch.linalg.vector_norm(b.detach(), dim=solution._axis)).clamp(min=atol)
    gain, distance = (norms[count // 2] / norms[-1]).log(), (norms[-1] / target).log()
    ratio = float(torch.where(distance <= 0, 0, torch.where(gain > 0, distance / gain, torch.inf)).max())
    power = min(ratio * math.log(count / (count // 2)), 100.0)
    return Ending(solution.status, ratio * (count - count // 2), count * math.expm1(power))


def _asked(A: CSR, method: str, M: Any) -> Generator[Choice, Ending, None]:
    """The requested method, with an M that suits it."""
    made = "given" if not isinstance(M, str) and M is not None else "no M"
    if isinstance(M, str) and method in ("cg", "gmres", "bicgstab") and A.shape[0] == A.shape[1]:
        own, plain = fitting(A)
        if method == own or (method, own) == ("gmres", "bicgstab"):
            made = factor(A, own) if plain == "Jacobi" and A.device.type == "cpu" else plain
    yield Choice(method, made, "as asked")


def _run(
    choice: Choice,
    A: CSR,
    b: Tensor,
    x0: Tensor | None,
    M: Any,
    rtol: float,
    atol: float,
    maxiter: int | None,
    throw: bool,
    null_space: Any,
    factors: Factorization | None,
) -> Solution:
    if choice.method == "direct":
        return _direct(A, b, rtol, atol, factors)
    options: dict[str, Any] = {"maxiter": choice.maxiter if maxiter is None else maxiter, "throw": throw}
    if maxiter is None and choice.maxiter is not None:  # the limit is for the attempt, not for its gradient
        options["adjoint_maxiter"] = 10 * A.shape[0]
    options |= {} if x0 is None else {"x0": x0}
    options |= {} if null_space is None else {"null_space": null_space}
    options |= {"rtol": rtol, "atol": atol} if choice.method != "lsqr" else {"atol": rtol, "btol": rtol}
    return METHODS[choice.method](A, b, **options, **({} if M is None else {"M": M}))


def _check_factors(F: Factorization, A: CSR) -> None:
    same = F.A is A or (equal(F.A.pattern, A.pattern) and torch.equal(numbers(F.A.values), numbers(A.values)))
    if not same:
        raise ValueError(
            "solve: method has the factors of another matrix; call method.refactorize(A.values), or use them "
            'as a preconditioner, ls.solve(A, b, method="gmres", M=F)'
        )


def _direct(A: CSR, b: Tensor, rtol: float, atol: float, factors: Factorization | None) -> Solution:
    """`spsolve`, with a status from its residual."""
    for name, value in (("rtol", rtol), ("atol", atol)):
        checks.tolerance("solve", name, value)
    x = spsolve(A, b) if factors is None else factors._solved_for(A, b)
    axis = -1 if b.dim() == 1 else -2
    with torch.no_grad():
        after, before = (
            safe_size(t.unsqueeze(-1)).squeeze(-1).squeeze(-1) if axis == -1 else safe_size(t).squeeze(-2)
            for t in (b - A @ x, b)
        )
        before = before.expand(after.shape)
        reached = after <= (rtol * before).clamp(min=atol)
        codes = torch.where(reached, CODE[Status.CONVERGED], CODE[Status.STAGNATED])
        codes = torch.where(after.isfinite(), codes, CODE[Status.NON_FINITE])
    return Solution(x, 1, torch.stack((before, after), axis), axis, codes=codes, execution=DIRECT)
