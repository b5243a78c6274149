"""One function for any matrix: it looks at A and chooses a method and a preconditioner."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import torch
from torch import Tensor

from learnsolve import _check, _inputs
from learnsolve._plain import outside_of_graphs
from learnsolve.csr import CSR
from learnsolve.ops._symmetry import numbers
from learnsolve.ops.spsolve import spsolve
from learnsolve.solvers._choices import Choice, choices, factor, fitting, preconditioner
from learnsolve.solvers._implicit import transformed
from learnsolve.solvers._null_space import CONSTANTS, sums_to_zero
from learnsolve.solvers._report import quiet, report
from learnsolve.solvers._solve import _mapped
from learnsolve.solvers.base import CODE, Solution, SolverError, Status
from learnsolve.solvers.bicgstab import bicgstab
from learnsolve.solvers.cg import cg
from learnsolve.solvers.gmres import gmres
from learnsolve.solvers.lsqr import lsqr
from learnsolve.solvers.minres import minres

METHODS: dict[str, Callable[..., Solution]] = {
    "cg": cg, "minres": minres, "gmres": gmres, "bicgstab": bicgstab, "lsqr": lsqr,
}  # fmt: skip
OTHERWISE = {Status.INDEFINITE, Status.BREAKDOWN, Status.STAGNATED, Status.MAX_ITERATIONS, Status.DIVERGED}


@outside_of_graphs
def solve(
    A: Any,
    b: Any,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    method: str = "auto",
    M: Any = "auto",
    null_space: Any = "auto",
    throw: bool = False,
) -> Solution:
    r"""Solve :math:`A x = b` by a method and a preconditioner that fit A; minimise the residual if A is not
    square.

    Parameters
    ----------
    A : CSR, shape (m, n), values (..., nnz); or a matrix of SciPy, torch or NumPy
    b : Tensor or NumPy array, shape (m,) or (..., m, k), of A's dtype and device
    rtol, atol : the tolerance, :math:`\|b - A x\| \le \max(\mathtt{rtol} \|b\|, \mathtt{atol})`
    maxiter : int; the method's own limit if not given
    method : "auto", "direct" (`ops.spsolve`), "cg", "minres", "gmres", "bicgstab" or "lsqr"
    M : "auto"; None; or a preconditioner, as for the method
    null_space : "auto": "constants" if all rows and columns of A sum to zero; None; or the null space of a
        singular A, as for `cg`
    throw : raise `SolverError` if the tolerance was not reached

    Returns
    -------
    Solution; its `choice` says what was chosen and why.

    Raises
    ------
    ValueError, TypeError
        if shapes, dtypes or arguments do not fit, as in the methods.
    SolverError
        if `throw` and a column did not converge.

    Notes
    -----
    "auto" takes, on the CPU, a direct solve up to 2,000 rows. Else, for a symmetric A with a positive
    diagonal, `cg` with MIC(0) if A is diagonally dominant without positive entries beside the diagonal, or
    with IC(0) if not; for any other symmetric A, `minres`; for the rest `gmres` with ILU(0). On a CUDA device
    M is Jacobi's, whose application does not wait for other rows. Where a method breaks down or stagnates
    the next one is tried: `minres` after `cg`, `bicgstab` after `gmres`, and at last, up to 100,000 rows, a
    direct solve. Rows and columns that sum to zero, as those of graph Laplacians and of Neumann and periodic
    boundaries do, make A singular, with the constants as null vectors: "auto" then solves with
    null_space="constants", without a direct solve, says so in `choice`, and reports INCONSISTENT where b has
    a component along them that the tolerance would notice. null_space="constants" leaves that component out.
    On 2D Poisson with 700^2 unknowns MIC(0) takes 0.61 s with its set-up, IC(0) 1.75 s,
    algebraic multigrid 1.03 s, of which 0.79 s are set-up.

    Gradient: the implicit one of the method, for A and b; M is taken for a constant, which it is for the
    solution. The choice reads the values of A: once for a matrix, O(nnz), and it waits for a device.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((60, 60))
    >>> solution = ls.solve(A, torch.ones(3600, dtype=torch.float64), rtol=1e-8)
    >>> solution.choice
    'cg with MIC0: A is symmetric and diagonally dominant, without positive entries beside the diagonal'
    """
    A, b = _inputs.operands("solve", A, b)
    _check.matrix("solve", "A", A, "; make one with CSR.from_*; the methods, such as cg, take operators")
    _check.one_of("solve", "method", method, ("auto", "direct", *METHODS))
    if _mapped(A.values):
        raise NotImplementedError(
            "solve: under vmap the values of A cannot be read to choose by; call a method, such as cg, or "
            "give A.values a batch axis"
        )
    if isinstance(M, str):
        _check.one_of("solve", "M", M, ("auto",))
    if method == "direct" and not isinstance(M, str) and M is not None:
        raise ValueError('solve: method="direct" takes no M; leave it out')
    found = isinstance(null_space, str) and null_space == "auto"
    if found:
        takes = method not in ("direct", "lsqr") and A.shape[0] == A.shape[1]
        null_space = CONSTANTS if takes and sums_to_zero(A) else None
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
            with quiet():
                solution = _run(choice, A, b, x0, made, rtol, atol, maxiter, throw, null_space)
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
            choice = attempts.send(status)
        except StopIteration:
            break
        tried[-1] += "; A is singular" if failure is not None else f"; {status.name}"
        x0 = None if failure is not None else _start(solution)
    if failure is not None:
        raise failure
    solution.choice = "; then ".join(tried)
    if found and singular:
        solution.choice = f'null_space="constants", as the rows of A sum to zero; {solution.choice}'
        _judge_as_given(solution, A, b, rtol, atol)
    report("solve", solution, throw, True)
    return solution


def _judge_as_given(solution: Solution, A: CSR, b: Tensor, rtol: float, atol: float) -> None:
    """Of a null space that was found, not given: x must solve A x = b, not only for a part of b."""
    axis = -1 if b.dim() == 1 else -2
    with torch.no_grad():
        x, right = numbers(solution.x), numbers(b)
        left = torch.linalg.vector_norm(right - A.with_values(numbers(A.values)) @ x, dim=axis)
        target = (rtol * torch.linalg.vector_norm(right, dim=axis)).clamp(min=atol)
        assert solution._codes is not None
        # The method measured another sum of the same numbers.
        lost = (solution._codes == CODE[Status.CONVERGED]) & (left > 1.01 * target)
        solution._codes = torch.where(lost, CODE[Status.INCONSISTENT], solution._codes)
    if bool(lost.any()):
        solution.note += (
            "The rows and columns of A sum to zero; x solves A x = b but for the component of b along the "
            'constants, and null_space="constants" asks for that. '
        )


def _start(solution: Solution) -> Tensor | None:
    """x, where it is nearer than where it came from: the next attempt starts from there."""
    if transformed():  # mapped: the norms have other axes
        return None
    norms, axis = solution.residual_norms.detach(), solution._axis
    nearer = norms.select(axis, -1) < norms.select(axis, 0)
    return torch.where(nearer if axis == -1 else nearer.unsqueeze(-2), solution.x.detach(), 0)


def _asked(A: CSR, method: str, M: Any) -> Generator[Choice, Status, None]:
    """The method that was asked for, with an M that fits it."""
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
) -> Solution:
    if choice.method == "direct":
        return _direct(A, b, rtol, atol)
    options: dict[str, Any] = {"maxiter": choice.maxiter if maxiter is None else maxiter, "throw": throw}
    if maxiter is None and choice.maxiter is not None:  # which bounds an attempt, not its gradient
        options["adjoint_maxiter"] = 10 * A.shape[0]
    options |= {} if x0 is None else {"x0": x0}
    options |= {} if null_space is None else {"null_space": null_space}
    options |= {"rtol": rtol, "atol": atol} if choice.method != "lsqr" else {"atol": rtol, "btol": rtol}
    return METHODS[choice.method](A, b, **options, **({} if M is None else {"M": M}))


def _direct(A: CSR, b: Tensor, rtol: float, atol: float) -> Solution:
    """`spsolve`, judged by its residual."""
    for name, value in (("rtol", rtol), ("atol", atol)):
        _check.tolerance("solve", name, value)
    x = spsolve(A, b)
    axis = -1 if b.dim() == 1 else -2
    with torch.no_grad():
        after = torch.linalg.vector_norm(b - A @ x, dim=axis)
        before = torch.linalg.vector_norm(b, dim=axis).expand(after.shape)
        reached = after <= (rtol * before).clamp(min=atol)
        codes = torch.where(reached, CODE[Status.CONVERGED], CODE[Status.STAGNATED])
        codes = torch.where(after.isfinite(), codes, CODE[Status.NON_FINITE])
    return Solution(x, 1, torch.stack((before, after), axis), axis, codes=codes, loop="direct")
