"""One function for any matrix: it looks at A and chooses a method and a preconditioner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from learnsolve import _check, _inputs
from learnsolve._conversion import TensorLike
from learnsolve._plain import numbers, outside_of_graphs
from learnsolve.csr import CSR
from learnsolve.ops._symmetry import symmetry
from learnsolve.ops.spsolve import spsolve
from learnsolve.preconditioners import IC0, ILU0, MIC0, Jacobi
from learnsolve.solvers.bicgstab import bicgstab
from learnsolve.solvers.cg import cg
from learnsolve.solvers.core.gradient import mapped
from learnsolve.solvers.core.projected import CONSTANTS, sums_to_zero
from learnsolve.solvers.core.report import quiet, report
from learnsolve.solvers.gmres import gmres
from learnsolve.solvers.lsqr import lsqr
from learnsolve.solvers.minres import minres
from learnsolve.solvers.solution import CODE, Solution, SolverError, Status

DIRECT = 2_000  # rows: up to here a factorisation takes a few milliseconds, and it has no tolerance to miss
LAST_RESORT = 100_000  # rows, up to which a factorisation is tried where iterations fail
SHIFTS = (0.0, 1e-3, 1e-2, 1e-1, 1.0)  # of the diagonal, relative, for incomplete factors
FIRST = 1_000  # iterations of gmres before something else is tried
METHODS: dict[str, Callable[..., Solution]] = {
    "cg": cg, "minres": minres, "gmres": gmres, "bicgstab": bicgstab, "lsqr": lsqr,
}  # fmt: skip
OTHERWISE = {Status.INDEFINITE, Status.BREAKDOWN, Status.STAGNATED, Status.MAX_ITERATIONS, Status.DIVERGED}


class Choice(NamedTuple):
    method: str
    M: str  # what makes it, or "given", or "no M"
    why: str
    maxiter: int | None = None


@outside_of_graphs
def solve(
    A: Any,
    b: TensorLike,
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
    solution. The choice reads the values of A: O(nnz), and it waits for a device.

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
    if mapped(A.values):
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
    choices = list(_choices(A, M, singular)) if method == "auto" else [_asked(A, method, M)]
    for choice in choices:
        last = choice is choices[-1]
        preconditioner, note = _preconditioner(choice.M, A, M)
        tried.append(f"{choice.method}{note}: {choice.why}")
        try:
            with quiet():
                solution = _run(choice, A, b, preconditioner, rtol, atol, maxiter, throw, null_space)
        except SolverError as error:
            solution = error.solution
        except ValueError as error:
            if last or choice.method != "direct" or "singular" not in str(error):
                raise
            tried[-1] += "; A is singular"
            continue
        if last or solution.converged or solution.status not in OTHERWISE:
            break
        tried[-1] += f"; {solution.status.name}"
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


def _choices(A: CSR, M: Any, singular: bool = False) -> Iterator[Choice]:
    """What to try, in order."""
    m, n = A.shape
    given = "given" if not isinstance(M, str) else ""
    host = A.device.type == "cpu"
    if m != n:
        yield Choice("lsqr", given or "no M", f"A is {m} x {n}")
        return
    if host and n <= DIRECT and not given and not singular:
        yield Choice("direct", "no M", f"{n} rows are few")
    values, diagonal = numbers(A.values), numbers(A.diagonal())
    if symmetry("solve", A, None):
        if bool((diagonal > 0).all()):
            dominant = _dominant(A, values, diagonal)
            why = "A is symmetric" + (
                " and diagonally dominant, without positive entries beside the diagonal"
                if dominant
                else ", its diagonal positive"
            )
            yield Choice("cg", given or (("MIC0" if dominant else "IC0") if host else "Jacobi"), why)
        yield Choice("minres", "no M", "A is symmetric and may be indefinite")
    else:
        full = bool((diagonal != 0).all())
        own = ("ILU0" if host else "Jacobi") if full else "no M"
        yield Choice("gmres", given or own, "A is not symmetric", FIRST)
        yield Choice("bicgstab", given or own, "it needs no restarts")
    if host and n <= LAST_RESORT and (n > DIRECT or given) and not singular:
        yield Choice("direct", "no M", "iterations failed")


def _asked(A: CSR, method: str, M: Any) -> Choice:
    """The method that was asked for, with an M that fits it."""
    own = "no M"
    if isinstance(M, str) and method in ("cg", "gmres", "bicgstab") and A.shape[0] == A.shape[1]:
        own = next((c.M for c in _choices(A, M) if c.method == method), "no M")
    return Choice(method, "given" if not isinstance(M, str) and M is not None else own, "as asked")


def _dominant(A: CSR, values: Tensor, diagonal: Tensor) -> bool:
    """a_ij <= 0 beside the diagonal, and no row sum below zero but for rounding: MIC(0) exists."""
    P = A.pattern
    beside = P.row_indices != P.col_indices
    if bool((values[..., beside] > 0).any()):
        return False
    sums = A.with_values(values).sum(1)
    return bool((sums >= -64 * torch.finfo(values.dtype).eps * diagonal).all())


def _preconditioner(name: str, A: CSR, M: Any) -> tuple[Any, str]:
    """M, and words for it."""
    if name == "no M":
        return None, ""
    if name == "given":
        return M, "" if M is None else " with the given M"
    plain = A.with_values(numbers(A.values))
    if name == "Jacobi":
        return Jacobi(plain), " with Jacobi"
    make: Any = {"IC0": IC0, "MIC0": MIC0, "ILU0": ILU0}[name]
    for shift in SHIFTS:
        try:
            made = make(plain, shift=shift)
        except ValueError:  # a pivot is not positive, or zero
            continue
        return made, f" with {name}" + (f", shifted by {shift:g}" if shift else "")
    return Jacobi(plain), " with Jacobi"


def _run(
    choice: Choice,
    A: CSR,
    b: Tensor,
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
