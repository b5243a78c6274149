"""The report of a solve that did not converge: the reason and the accuracy, as a warning or an exception."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from learnsolve.matrix.convert import conjugate
from learnsolve.ops.core import across
from learnsolve.ops.core.across import rows
from learnsolve.solvers.core.system import Outcome, System
from learnsolve.solvers.core.vectors import divide, dot, size
from learnsolve.solvers.solution import CODE, ConvergenceWarning, Solution, SolverError, Status, worst

_SILENT = {Status.CONVERGED, Status.STOPPED_BY_CALLBACK}
_STEPS = 30


_quiet: ContextVar[list[str] | None] = ContextVar("_quiet", default=None)


@contextmanager
def quiet() -> Iterator[list[str]]:
    """Solves inside do not warn, because the caller reports their statuses. The list receives what those of
    derivatives, in forward mode, would have said. Not a `warnings` filter: filters are global to all threads,
    and changing them makes Python show warnings again."""
    held: list[str] = []
    before = _quiet.set(held)
    try:
        yield held
    finally:
        _quiet.reset(before)


def report(name: str, solution: Solution, throw: bool, requested: bool, advice: str = "") -> None:
    """Raise, or warn where a tolerance was `requested`."""
    if not (throw or requested) or (status := solution.status) is Status.CONVERGED:
        return
    if throw:
        raise SolverError(name, solution)
    if status in _SILENT:
        return
    # Without values, which would make every warning different: Python shows equal ones once per line.
    text = f"{name}: did not converge{advice}: {status.name}. {status} (Solution.summary() has numbers.)"
    if (held := _quiet.get()) is None:
        warnings.warn(text, ConvergenceWarning, stacklevel=users_frame())
    elif advice:
        held.append(text)


def users_frame() -> int:
    """The stacklevel, relative to the caller, of the first frame outside learnsolve and torch."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in _OURS:
        level, frame = level + 1, frame.f_back
    return level


_OURS = {"learnsolve", "torch"}


def explained(system: System, out: Outcome) -> Outcome:
    """The outcome with codes for columns that failed for a reason that no single iteration shows, and a note
    on them."""
    return out if worst(out.codes) <= CODE[Status.CONVERGED] else _reasons(system, out)


@torch.no_grad()
def _reasons(system: System, out: Outcome) -> Outcome:
    failed = out.codes > CODE[Status.CONVERGED]
    A, b, x, codes = system.A, system.b.detach(), out.x.detach(), out.codes
    # Overrides the code of the method, such as a breakdown for an infinite curvature.
    broken = failed & across.anywhere(~torch.isfinite(b - A(x)).all(dim=-2))
    codes = torch.where(broken, CODE[Status.NON_FINITE], codes)
    if bool((broken == failed).all()):
        return out._replace(codes=codes)
    why = ""
    if system.criterion.square:
        codes, why = without_solution(A, b, x, codes)
    return out._replace(codes=codes, note=why + system.criterion.accuracy(A, b, x, codes))


def without_solution(A: Any, b: Tensor, x: Tensor, codes: Tensor) -> tuple[Tensor, str]:
    """`codes` (..., k), with INCONSISTENT for columns that failed because A x = b has no solution, and the
    size of the component of b outside the range of A.

    For every solution z and every y, <y, b> = <A^T y, z>, so ||z|| >= |<y, b>| / ||A^T y||. The bound is
    evaluated for four y: the constants, the residual of the solve, x, which may have grown along the null
    space, and an approximate least-squares residual.
    """
    lost = codes == CODE[Status.STAGNATED]
    broken = (codes == CODE[Status.BREAKDOWN]) | (codes == CODE[Status.INDEFINITE])
    broken = broken | (codes == CODE[Status.DIVERGED])
    if not (lost | broken).any():
        return codes, ""
    try:
        At = A.T
    except ValueError:  # a callable without a transpose
        return codes, ""
    eps, proved = torch.finfo(b.dtype).eps, torch.zeros_like(lost)
    # A method that broke down has met a singular direction. Rounding errors have many causes, such as a
    # condition number of 1e5 in float32, but leave a small residual; without a solution a part of b remains.
    r = b - A(x)
    large = size(r) > (eps**0.25 if b.dtype == torch.float32 else -1) * size(b)
    sure = torch.where(large, eps**-0.75, eps**-0.9)
    limit = torch.where(broken.unsqueeze(-2), eps**-0.5, sure)
    norm_b = _norm(At, b / torch.where(size(b) == 0, 1, size(b)))
    share, constant = 0.0, False
    for number, y in enumerate((torch.ones_like(b), r, x, _least_residual(A, At, b))):
        y = divide(y, size(y), torch.isfinite(size(y)))
        part, image = dot(y.conj(), b).abs() / size(b).clamp(min=torch.finfo(b.dtype).tiny), size(At(y))
        tells = (part * _norm(At, y) >= limit * image) | (part * norm_b >= sure * image)
        tells = (part > eps**0.5) & tells & (lost | broken).unsqueeze(-2)
        if bool(tells.any()):
            constant = constant or number == 0
            share = max(share, float(torch.where(tells, part, 0).max()))
        proved |= tells.squeeze(-2)
    codes = torch.where((lost | broken) & proved, CODE[Status.INCONSISTENT], codes)
    if not share:
        return codes, ""
    along = 'the constants; null_space="constants"' if constant else "a null vector of A^T; null_space="
    return codes, f"b has a component of {share:.2g} ||b|| along {along} leaves it out. "


def _norm(A: Any, y: Tensor) -> Tensor:
    """|| |A| |y| ||, or a lower bound of ||A|| for y of length one."""
    entries = A.magnitude(y)
    return size(A(y)) if entries is None else size(entries)


def _least_residual(A: Any, At: Any, b: Tensor) -> Tensor:
    """b - A x after some steps of conjugate gradients for least squares. Directions and their images have
    norms of about one, whatever the scale of A, so no square leaves the dtype's range."""
    r, s = b, conjugate(At(conjugate(b)))
    length = size(s)
    p = divide(s, length, length > 0)
    for _ in range(min(_STEPS, rows(b))):
        q = A(p)
        q = divide(q, size(q), size(q) > 0)
        r = r - dot(q, r) * q
        s, before = conjugate(At(conjugate(r))), length
        length = size(s)
        p = divide(s, length, length > 0) + divide(length, before, before > 0) * p
    return r
