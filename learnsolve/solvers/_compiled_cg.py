"""`cg` to a tolerance by the compiled loop, where no graph is wanted: the solves of gradient="implicit",
forward and adjoint.

The numbers are those of the general loop (_loop.py) to rounding, and so is the rule by which a column stops;
what the recurrence calls converged is measured anew, and goes on in the general loop if it is not. 2D
Poisson, rtol 1e-8, without M: n = 900 1.2 ms, not 15; n = 10,000 8.2, not 59 (SciPy 18); n = 90,000 172, not
650.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from learnsolve.ops._autograd import tracked
from learnsolve.ops.pcg import Stop
from learnsolve.ops.pcg_solve import pcg_solve
from learnsolve.ops.richardson import residual_norm
from learnsolve.ops.structure import transpose
from learnsolve.solvers import _looks
from learnsolve.solvers._loop import iterate
from learnsolve.solvers._operator import Matrix, compiled_form
from learnsolve.solvers._vectors import size
from learnsolve.solvers.base import CODE, Status

_STATUS = {
    Stop.RUNNING: Status.MAX_ITERATIONS,
    Stop.ROUNDING: Status.MAX_ITERATIONS,  # unless the caller knows of a tolerance that was met there
    Stop.CURVATURE: Status.INDEFINITE,
    Stop.PRECONDITIONER: Status.INDEFINITE,
    Stop.NON_FINITE: Status.NON_FINITE,
    Stop.DIVERGED: Status.DIVERGED,
}


def codes_of(why: Tensor) -> Tensor:
    """Codes of the general loop for the `Stop` of each column."""
    if why.is_cpu:
        return torch.tensor([CODE[_STATUS[stop]] for stop in Stop], device="cpu")[why]
    # A table would have to be moved to the device, which waits for it.
    codes = torch.full_like(why, CODE[_STATUS[Stop.RUNNING]])
    for stop in Stop:
        codes = torch.where(why == stop, CODE[_STATUS[stop]], codes)
    return codes


def has_kernels(values: Tensor, b: Tensor) -> bool:
    """Are both where compiled loops run?"""
    return values.device == b.device and (b.is_cpu or b.is_cuda)


def fits(m: Tensor | None, b: Tensor) -> bool:
    """Is this the M of one matrix, and a partner of b?"""
    return m is None or (m.dim() == 1 and m.dtype == b.dtype and m.device == b.device)


def fitting_form(A: Any, M: Any, b: Tensor) -> tuple | None:
    """(kind, m, factor) of M if the compiled loop takes A, M and b, else None."""
    if not (isinstance(A, Matrix) and has_kernels(A.A.values, b)) or b.numel() == 0:
        return None
    form = compiled_form(M)
    return form if form is not None and fits(form[1], b) else None


def compiled_cg(
    method: Any, A: Any, M: Any, form: tuple, b: Tensor, x0: Tensor | None, criterion: Any, maxiter: int,
) -> tuple[Tensor, Tensor, Tensor] | None:  # fmt: skip
    """x, norms and codes as `iterate` has them; None where somebody differentiates or transforms. A is a
    `Matrix`, the criterion a `ResidualNorm`."""
    kind, m, factor = form
    matrix = transpose(A.A) if A.transpose else A.A
    if tracked(matrix.values, b) or (m is not None and m.requires_grad and torch.is_grad_enabled()):
        return None
    lead, k = b.shape[:-2], b.shape[-1]
    values = matrix.values.detach()
    if values.dim() > 1:
        values = values.expand((*lead, values.shape[-1])).reshape(lead.numel(), -1)
    nothing = size(b) == 0
    start = None if x0 is None else torch.where(nothing, 0, x0)  # A x = 0 is solved by zero

    def shaped(t: Tensor) -> Tensor:
        """With one batch axis at most, as the kernel has it."""
        return t if len(lead) < 2 else t.reshape(lead.numel(), *t.shape[-2:])

    converged = torch.zeros((*b.shape[:-2], 1, k), dtype=torch.bool, device=b.device)

    def limits(r: Tensor, norm: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        nonlocal converged
        r, norm = r.reshape(b.shape), norm.reshape(*lead, 1, k)
        begun = criterion.begin(A, b, b if start is None else start, r, norm)
        converged = (begun | nothing) & norm.isfinite()
        low = torch.maximum(criterion.target, criterion.floor)
        done, low, high = (shaped(t.expand_as(norm)) for t in (converged, low, criterion.limit))
        return done, low, high

    solved = pcg_solve(
        values, shaped(b), None if start is None else shaped(start), matrix.pattern, maxiter, limits,
        _looks.check_every() if b.is_cuda else None,
        kind=kind, m=None if m is None else m.detach(), factor=factor,
    )  # fmt: skip
    x = solved.x.reshape(b.shape)
    norms, why, when = (t.reshape(*lead, *t.shape[-i:]) for t, i in zip(solved[1:], (2, 1, 1), strict=True))
    codes = torch.where(converged.squeeze(-2), CODE[Status.CONVERGED], codes_of(why))
    close = (why == Stop.ROUNDING) & ~converged.squeeze(-2)
    if not close.any():
        return x, norms, codes
    true = residual_norm(b - A(x), -2)
    codes = torch.where(close & (true <= criterion.target.squeeze(-2)), CODE[Status.CONVERGED], codes)
    codes = torch.where(close & ~true.isfinite(), CODE[Status.NON_FINITE], codes)
    rows = torch.arange(norms.shape[-2], device=b.device).unsqueeze(-1)
    norms = torch.where(close.unsqueeze(-2) & (rows >= when.unsqueeze(-2)), true.unsqueeze(-2), norms)
    again = (close & (codes == CODE[Status.MAX_ITERATIONS])).unsqueeze(-2)
    left = maxiter - int(when[again.squeeze(-2)].min()) if again.any() else 0
    if left <= 0:
        return x, norms, codes
    rest = iterate(method, A, M, torch.where(again, b, 0), torch.where(again, x, 0), criterion, left)
    x = torch.where(again, rest.x, x)
    tail = norms[..., -1:, :].expand(*norms.shape[:-2], rest.norms.shape[-2] - 1, k)
    norms = torch.cat((norms, torch.where(again, rest.norms[..., 1:, :], tail)), dim=-2)
    return x, norms, torch.where(again.squeeze(-2), rest.codes, codes)
