"""`cg` by the compiled loop of ops/pcg.py: a fixed number of iterations, which autograd may record, and
solves to a tolerance without a graph, which are those of gradient="implicit", forward and adjoint.

To a tolerance the iterates are those of the general loop (loop.py) to rounding, and so is the rule by which
a column stops; what the recurrence calls converged is measured by its true residual, and continues in the
general loop if it is not, as does what seems to stagnate. 2D Poisson, rtol 1e-8, without M: n = 900 1.2 ms,
not 15; n = 10,000 8.2, not 59 (SciPy 18); n = 90,000 172, not 650.

With a fixed number, nothing waits for a CUDA device, so that a solve can be part of a CUDA graph. No value is
read back: the solution has all requested iterations, in which columns that have stopped keep their last norm,
and A is used as it is, whatever the size of its entries.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from learnsolve import _device_analysis
from learnsolve.csr import CSR
from learnsolve.ops._autograd import tracked
from learnsolve.ops._operands import broadcasts_to
from learnsolve.ops.pcg import Stop, pcg_iterations, pcg_solve
from learnsolve.ops.richardson import residual_norm
from learnsolve.ops.structure import transpose
from learnsolve.solvers.core import checks
from learnsolve.solvers.core.blocks import Blocks
from learnsolve.solvers.core.loop import Outcome, iterate
from learnsolve.solvers.core.operators import Matrix, compiled_form
from learnsolve.solvers.core.vectors import size
from learnsolve.solvers.solution import CODE, COMPILED, M_APART, Status

_STATUS = {
    Stop.RUNNING: Status.MAX_ITERATIONS,
    Stop.ROUNDING: Status.MAX_ITERATIONS,  # there was no tolerance that it met
    Stop.CURVATURE: Status.INDEFINITE,
    Stop.PRECONDITIONER: Status.INDEFINITE,
    Stop.NON_FINITE: Status.NON_FINITE,
    Stop.DIVERGED: Status.DIVERGED,
}
_CODES = torch.tensor([CODE[_STATUS[stop]] for stop in Stop], device="cpu")


_FIRST_LOOK = 480


class Form(NamedTuple):
    """What the compiled loop takes beside A and b."""

    kind: str  # of M (ops/pcg.py); or M_APART: it is called between the steps
    m: Tensor | None
    factor: Any
    fixed: bool  # number of iterations
    blocks: tuple[Form, ...] = ()  # of a BlockBatch, one each; kind is then "none", or else any other

    def learns(self) -> bool:
        given = self.m is not None and self.m.requires_grad
        return given or any(form.learns() for form in self.blocks)

    @property
    def loop(self) -> str:
        """As `Solution.loop`."""
        return M_APART if self.kind == M_APART else COMPILED


def fitting_form(A: Any, M: Any, b: Tensor, fixed: bool, flexible: bool = False) -> Form | None:
    """The form of M if the compiled loop takes A, M and b, else None. `flexible`: M is called between the
    steps, since the steps with a form are those of a linear, symmetric one."""
    if not isinstance(A, (Matrix, Blocks)) or A.parameters[0].device != b.device:
        return None
    if not (b.is_cpu or b.is_cuda) or (b.numel() == 0 and not fixed):
        return None
    if flexible and (M is None or isinstance(A, Blocks)):
        return None
    if isinstance(A, Blocks):
        return _form_of_blocks(A, M, b, fixed)
    form = None if flexible else compiled_form(M)
    if form is not None:
        m = form[1]
        if m is None or (
            m.dtype == b.dtype and m.device == b.device and broadcasts_to(m.shape[:-1], b.shape[:-2])
        ):
            return Form(*form, fixed)
    return Form(M_APART, None, None, fixed) if b.is_cpu and not fixed else None


def _form_of_blocks(A: Blocks, M: Any, b: Tensor, fixed: bool) -> Form | None:
    """Where each block has a form: of an M of its own, or of its part of one for the whole matrix."""
    if b.dim() != 3 or b.is_cuda:  # on a device the blocks run side by side in the general loop
        return None
    inner, sizes = A.inner, A.layout.sizes
    if isinstance(M, (list, tuple)):
        forms = [fitting_form(inner, one, b[i], fixed) for i, one in enumerate(M)]
    else:
        whole = fitting_form(inner, M, b[0], fixed)
        if whole is None or whole.kind == M_APART:
            return None
        if whole.m is not None and whole.factor is None and len(whole.m) != sum(sizes):
            return None  # the general loop says what is wrong
        if whole.m is None:
            forms = [whole] * len(sizes)
        elif whole.factor is None:
            forms = [whole._replace(m=m) for m in whole.m.split(sizes)]
        else:
            try:
                factors = A.batch.split(CSR(whole.m, whole.factor))
            except ValueError:  # it couples blocks
                return None
            forms = [whole._replace(m=L.values, factor=L.pattern) for L in factors]
    found = tuple(form for form in forms if form is not None and form.kind != M_APART)
    if len(found) < len(forms):
        return None
    kinds = {form.kind for form in found}
    return Form("none" if kinds == {"none"} else "blocks", None, None, fixed, found)


def compiled_cg(
    form: Form,
    method: Any,
    A: Any,
    M: Any,
    b: Tensor,
    x0: Tensor | None,
    criterion: Any,
    maxiter: int,
    checkpointed: bool,
) -> Outcome | None:
    """`iterate` by the compiled loop; None, to a tolerance, if autograd or a transform tracks the call. A is
    a `Matrix` or `Blocks`, the criterion a `ResidualNorm`."""
    fixed = form.fixed
    if isinstance(A, Blocks) and b.dim() != 3:  # a batch axis of vmap
        return None
    recorded = torch.is_grad_enabled()
    if form.kind == M_APART and recorded:
        return None
    if not fixed and (tracked(A.parameters[0], b) or (form.learns() and recorded)):
        return None
    # The solution of A x = 0 is zero.
    start = None if x0 is None else torch.where(size(b) == 0, 0, x0)
    target: Any = 0 if fixed else criterion.target_for(b)
    given = (b, start, target, criterion, maxiter, checkpointed)
    if isinstance(A, Blocks):
        x, norms, status = _run_blocks(form, A, *given)
    else:
        x, norms, status = _run(form, A, M, *given, method.flexible)
    why, when = status.unbind(-2)
    if fixed and not _device_analysis.here(b) and why.numel() and not why.any():
        return Outcome(x, norms, torch.full_like(why, CODE[Status.MAX_ITERATIONS]))  # all ran to the end
    first = norms[..., :1, :].detach()
    converged = ((first <= target) & first.isfinite()).squeeze(-2)
    codes = torch.where(converged, CODE[Status.CONVERGED], _codes_of(why))
    if not fixed:
        return _measured(Outcome(x, norms, codes), why, when, method, A, M, b, criterion, target, maxiter)
    if not _device_analysis.here(b):
        ran = torch.where(why == Stop.RUNNING, maxiter, when)
        norms = norms[..., : 1 + (int(ran.max()) if ran.numel() else 0), :]
    return Outcome(x, norms, codes)


def _run(
    form: Form,
    A: Matrix,
    M: Any,
    b: Tensor,
    start: Tensor | None,
    target: Any,
    criterion: Any,
    maxiter: int,
    checkpointed: bool,
    flexible: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """x, norms and status of ops/pcg.py."""
    matrix = transpose(A.A) if A.transpose else A.A
    values, m, lead = matrix.values, form.m, b.shape[:-2]
    if not form.fixed:
        values, m = values.detach(), None if m is None else m.detach()

    def of_members(t: Tensor) -> Tensor:
        """Numbers of a matrix, (..., size), as those of all members, (size,), or of each, (B, size)."""
        if t.dim() == 1:
            return t
        if t.shape[:-1].numel() == 1:
            return t.reshape(t.shape[-1])
        return t.expand((*lead, t.shape[-1])).reshape(lead.numel(), t.shape[-1])

    def shaped(t: Tensor) -> Tensor:
        """With one batch axis at most, as the kernel has it."""
        return t if len(lead) < 2 else t.reshape(lead.numel(), *t.shape[-2:])

    values, m = of_members(values), None if m is None else of_members(m)
    start = None if start is None else shaped(start)
    of_M: dict[str, Any] = {"kind": form.kind, "m": m, "factor": form.factor}
    if form.kind == M_APART:
        of_M = {"apart": lambda r: M(r.reshape(b.shape)).reshape(r.shape), "flexible": flexible}
    if form.fixed:
        x, norms, status = pcg_iterations(
            values, shaped(b), start, matrix.pattern, maxiter, checkpointed=checkpointed, **of_M
        )
    else:
        every = checks.check_every() if b.is_cuda else None
        x, norms, status = pcg_solve(
            *(values, shaped(b), start, matrix.pattern, maxiter, shaped(target), every),
            _Stalls(A, b, criterion),
            **of_M,
        )
    if len(lead) > 1:
        x, norms, status = (t.reshape(*lead, *t.shape[-2:]) for t in (x, norms, status))
    return x, norms, status


def _run_blocks(
    form: Form,
    A: Blocks,
    b: Tensor,
    start: Tensor | None,
    target: Any,
    criterion: Any,
    maxiter: int,
    checkpointed: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """One block after another, in less time than the general loop takes for all side by side: 2D Poisson,
    rtol 1e-8, one thread: 32 blocks of 115 rows 4.4 ms, not 9.9; 32 of 945 rows 17, not 70; 128 of 115 rows
    17, not 18."""
    solutions = []
    for i, (matrix, its) in enumerate(zip(A.parts(), form.blocks, strict=True)):
        n = matrix.shape[0]
        x0, aim = None if start is None else start[i, :n], target if form.fixed else target[i]
        x, norms, status = _run(
            its, Matrix(matrix), None, b[i, :n], x0, aim, criterion, maxiter, checkpointed
        )
        if not form.fixed and norms.shape[-2] <= maxiter:
            # What seems to stagnate is judged by its true residual, as is what came to the rounding level.
            why, when = status.unbind(-2)
            ended = torch.where(why == Stop.RUNNING, norms.shape[-2] - 1, when)
            status = torch.stack((torch.where(why == Stop.RUNNING, int(Stop.ROUNDING), why), ended), -2)
        solutions.append((x, norms, status))
    xs, histories, states = zip(*solutions, strict=True)
    longest = max(norms.shape[-2] for norms in histories)
    histories = [  # a column that has stopped keeps its last norm
        torch.cat((norms, norms[-1:].expand(longest - len(norms), -1))) for norms in histories
    ]
    return A.layout.padded(torch.cat(xs, -2)), torch.stack(histories), torch.stack(states)


class _Stalls:
    """Which columns seem to stagnate (stagnation.py): their recurrence may never meet the target, and the
    general loop decides. Two products at 480 iterations or more, and whenever their number has doubled."""

    def __init__(self, A: Matrix, b: Tensor, criterion: Any):
        self.A, self.b, self.criterion = A, b, criterion
        self.next, self.best = _FIRST_LOOK, torch.inf

    def __call__(self, x: Tensor, iterations: int) -> Tensor | None:
        if iterations < self.next:
            return None
        self.next = 2 * iterations
        x = x.reshape(self.b.shape)
        reached, level = self.criterion.reached(self.A, self.b, x, self.b - self.A(x))
        vain = (reached <= level) & (reached > 0.5 * self.best)
        self.best = reached.clamp(max=self.best)
        return vain


def _measured(
    out: Outcome,
    why: Tensor,
    when: Tensor,
    method: Any,
    A: Matrix | Blocks,
    M: Any,
    b: Tensor,
    criterion: Any,
    target: Tensor,
    maxiter: int,
) -> Outcome:
    """The outcome by the true residuals, of columns that the recurrence brought to their target."""
    x, norms, codes = out
    ran = norms.shape[-2] - 1
    close = (why == Stop.ROUNDING) & (codes != CODE[Status.CONVERGED])
    if ran < maxiter:
        close, when = close | (why == Stop.RUNNING), torch.where(why == Stop.RUNNING, ran, when)
    if not close.any():
        return out
    true = residual_norm(b - A(x), -2)
    codes = torch.where(close & (true <= target.squeeze(-2)), CODE[Status.CONVERGED], codes)
    codes = torch.where(close & ~true.isfinite(), CODE[Status.NON_FINITE], codes)
    rows = torch.arange(norms.shape[-2], device=b.device).unsqueeze(-1)
    norms = torch.where(close.unsqueeze(-2) & (rows >= when.unsqueeze(-2)), true.unsqueeze(-2), norms)
    again = (close & (codes == CODE[Status.MAX_ITERATIONS])).unsqueeze(-2)
    left = maxiter - int(when[again.squeeze(-2)].min()) if again.any() else 0
    if left <= 0:
        return Outcome(x, norms, codes)
    rest = iterate(method, A, M, torch.where(again, b, 0), torch.where(again, x, 0), criterion, left)
    tail = norms[..., -1:, :].expand(*norms.shape[:-2], rest.norms.shape[-2] - 1, -1)
    norms = torch.cat((norms, torch.where(again, rest.norms[..., 1:, :], tail)), dim=-2)
    codes = torch.where(again.squeeze(-2), rest.codes, codes)
    return Outcome(torch.where(again, rest.x, x), norms, codes)


def _codes_of(why: Tensor) -> Tensor:
    """Codes of the general loop for the `Stop` of each column."""
    if why.is_cpu:
        return _CODES[why]
    # The table would have to be moved to the device, which waits for it.
    codes = torch.full_like(why, CODE[_STATUS[Stop.RUNNING]])
    for stop in Stop:
        codes = torch.where(why == stop, CODE[_STATUS[stop]], codes)
    return codes
