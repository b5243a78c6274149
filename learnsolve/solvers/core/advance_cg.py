"""Compiled conjugate gradients for the loop (loop.py): `at_once`, a fixed number of iterations as one
operation, which autograd may record, and `fitting_cg`, many iterations per call to a tolerance, without
autograd.

Columns stop on their own in compiled code, by the rules of `ResidualNorm` (csrc/kernels/pcg_column.cuh): a
column at or below its target, or at the rounding level, waits until the loop judges it by its true residual,
and continues in the loop if that is larger.

A fixed number of iterations never synchronizes a CUDA device, so a solve can be part of a CUDA graph. No
value is read back: the solution has all requested iterations, in which columns that have stopped keep their
last norm, and A is used without scaling, whatever the size of its entries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from learnsolve.matrix import device_analysis
from learnsolve.matrix.csr import CSR
from learnsolve.ops.core.autograd import tracked
from learnsolve.ops.core.operands import broadcasts_to
from learnsolve.ops.core.pcg_preconditioner import RHO, STOP, WHEN
from learnsolve.ops.core.pcg_unfused import Stop
from learnsolve.ops.pcg import Iterations, pcg_iterations
from learnsolve.solvers.core.criterion import CG_SCHEDULE, STANDS, Schedule, check_every
from learnsolve.solvers.core.operators import Blocks, Matrix, Padded, compiled_form, source
from learnsolve.solvers.core.system import Outcome, System
from learnsolve.solvers.core.vectors import size
from learnsolve.solvers.solution import CODE, COMPILED, PYTHON_M, Status

STOP_CODE = {
    Stop.RUNNING: 0,
    Stop.ROUNDING: STANDS,
    Stop.CURVATURE: CODE[Status.INDEFINITE],
    Stop.PRECONDITIONER: CODE[Status.INDEFINITE],
    Stop.NON_FINITE: CODE[Status.NON_FINITE],
    Stop.DIVERGED: CODE[Status.DIVERGED],
}
_CODES = torch.tensor([STOP_CODE[stop] for stop in Stop], device="cpu")
_LAST = torch.tensor(CODE[Status.MAX_ITERATIONS], device="cpu")
_ONE = _CODES.reshape(-1, 1, 1).unbind()  # of one column


class _Form(NamedTuple):
    """An M in the form of compiled code (ops/pcg.py); an M of kind PYTHON_M is called between the steps."""

    kind: str
    m: Tensor | None = None
    factor: Any = None

    def learns(self) -> bool:
        return self.m is not None and self.m.requires_grad


class _Part(NamedTuple):
    """One matrix with its M: the system itself, or a block of it."""

    A: CSR
    form: _Form
    block: int | None = None

    def of(self, t: Tensor | None) -> Any:
        """The rows of this part in a block of columns."""
        return t if t is None or self.block is None else t[self.block, : self.A.shape[0]]

    def operands(self, b: Tensor) -> tuple[Tensor, Tensor | None]:
        """The values of A and M with the batch axes of b merged into one, or none, as the kernels expect."""
        lead = b.shape[:-2]

        def of_members(t: Tensor) -> Tensor:
            if t.dim() == 1:
                return t
            if t.shape[:-1].numel() == 1:
                return t.reshape(t.shape[-1])
            return t.expand((*lead, t.shape[-1])).reshape(lead.numel(), t.shape[-1])

        return of_members(self.A.values), None if self.form.m is None else of_members(self.form.m)


def _shaped(t: Any) -> Any:
    """With one batch axis at most."""
    return t if t is None or t.dim() < 4 else t.reshape(-1, *t.shape[-2:])


def _joined(A: Any, parts: list[_Part], blocks: list[Tensor], b: Tensor) -> Tensor:
    """Columns of the whole system from the rows of its parts."""
    if parts[0].block is not None:
        return A.layout.padded(torch.cat(blocks, -2))
    return blocks[0] if blocks[0].dim() == b.dim() else blocks[0].reshape(b.shape)


def at_once(method: Any, system: System, maxiter: int, gradient: str) -> Outcome | None:
    """A fixed number of iterations as one differentiable operation, with the exact gradient of the iterations
    that ran; None if the operation does not support the system."""
    parts = None if gradient == "implicit" else parts_at_once(method, system)
    if parts is None:
        return None
    A, b, x0, outs = system.A, system.b, system.x0, []
    start = None if x0 is None else torch.where(size(b) == 0, 0, x0)  # the solution of A x = 0 is zero
    for part in parts:
        columns = part.of(b)
        values, m = part.operands(columns)
        outs.append(
            pcg_iterations(
                values, _shaped(columns), _shaped(part.of(start)), part.A.pattern, maxiter,
                kind=part.form.kind, m=m, factor=part.form.factor, checkpointed=gradient == "checkpointed",
            )
        )  # fmt: skip
    xs, histories, states = (list(ts) for ts in zip(*outs, strict=True))
    x = _joined(A, parts, xs, b)
    norms, status = histories[0], states[0]
    if parts[0].block is not None:
        norms, status = torch.stack(histories), torch.stack(states)
    elif b.dim() > 3:
        norms, status = (t.reshape(*b.shape[:-2], *t.shape[-2:]) for t in (histories[0], states[0]))
    reads = not device_analysis.here(b) and status.numel() > 0
    one = status.numel() == 2 and status.dim() == 2
    if reads and not (status.tolist()[0][0] if one else status.select(-2, 0).any()):  # some stopped early
        return Outcome(x, norms, _LAST.expand(b.shape[:-2] + b.shape[-1:]), "", COMPILED)
    why, when = status.unbind(-2)
    codes = _codes_of(why)
    codes = torch.where(codes <= 0, CODE[Status.MAX_ITERATIONS], codes)  # there is no tolerance
    codes = torch.where(norms[..., 0, :].detach() == 0, CODE[Status.CONVERGED], codes)
    if reads:
        ran = torch.where(why == Stop.RUNNING, maxiter, when)
        norms = norms[..., : 1 + int(ran.max()), :]
    return Outcome(x, norms, codes, "", COMPILED)


def parts_at_once(method: Any, system: System) -> list[_Part] | None:
    """The parts of a system for `at_once`; None if it does not support the system."""
    fits = hasattr(method, "cg_state") and not method.flexible
    if not fits or not system.criterion.fixed or system.callback is not None:
        return None
    parts = _parts(system.A, system.M, system.b)
    return None if parts is None or any(part.form.kind == PYTHON_M for part in parts) else parts


def fitting_cg(method: Any, system: System) -> CompiledCG | None:
    """Solves to a tolerance; None also if autograd or a transformation tracks the call."""
    A, M, b = system.A, system.M, system.b
    if b.numel() == 0 or (method.flexible and (M is None or isinstance(A, Blocks))):
        return None
    parts = _parts(A, M, b, method.flexible)
    if parts is None or tracked(A.parameters[0], b):
        return None
    recorded = torch.is_grad_enabled()
    if recorded and any(part.form.learns() or part.form.kind == PYTHON_M for part in parts):
        return None
    return CompiledCG(system, parts, method.flexible, method.cg_state)


class State(NamedTuple):
    x: Tensor
    r: Tensor
    parts: tuple  # of each part (ops/pcg.py); empty at the start


class CompiledCG:
    """`Advance` (advance.py) of conjugate gradients."""

    due: Schedule = CG_SCHEDULE

    def __init__(self, system: System, parts: list[_Part], flexible: bool, state_type: Any):
        self.system, self.parts, self.flexible, self.state_type = system, parts, flexible, state_type
        self.A, self.b = system.A, system.b
        self.execution = PYTHON_M if parts[0].form.kind == PYTHON_M else COMPILED

    def start(self, x: Tensor, r: Tensor) -> State:
        x0 = None if self.system.x0 is None else x
        every = check_every() if self.b.is_cuda else None
        self.runs = []
        for part in self.parts:
            b = part.of(self.b)
            values, m = part.operands(b)
            form: dict[str, Any] = {"kind": part.form.kind, "m": m, "factor": part.form.factor}
            if part.form.kind == PYTHON_M:
                form = {"between": _between(self.system.M, self.b.shape), "flexible": self.flexible}
            start = _shaped(part.of(x0))
            self.runs.append(Iterations(values, _shaped(b), start, part.A.pattern, every, **form))
        return State(x, r, ())

    def __call__(
        self, state: State, count: int, done: int, running: Tensor | None
    ) -> tuple[State, Tensor, tuple[Tensor, Tensor | int]]:
        targets = self.system.criterion.target
        for run in self.runs:
            count = run.most(count)
        parts, histories = [], []
        for i, (part, run) in enumerate(zip(self.parts, self.runs, strict=True)):
            part_running, target = running, targets
            before = state.parts[i] if state.parts else None
            if part.block is not None:
                part_running, target = None if running is None else running[i], targets[i]
                if before is not None and part_running is not None and not part_running.any():
                    parts.append(before)
                    histories.append(target.expand(count, -1))  # of columns that have stopped: not used
                    continue
            after, history = run(before, count, done, part_running, _shaped(target))
            parts.append(after)
            histories.append(history)
        x = _joined(self.A, self.parts, [p.x for p in parts], self.b)
        r = _joined(self.A, self.parts, [p.r for p in parts], self.b)
        one, lead = self.parts[0].block is None, targets.shape[:-2]
        norms = histories[0] if one else torch.stack(histories)
        if lead:
            norms = norms.reshape(*lead, *norms.shape[-2:])
        stops = _stops(parts[0].carry if one else torch.cat([p.carry for p in parts]), targets.shape)
        return State(x, r, tuple(parts)), norms, stops

    def released(self, state: State) -> Any:
        directions, rhos = [], []
        for run, part in zip(self.runs, state.parts, strict=True):
            directions.append(run.direction(part))
            rhos.append(part.carry[:, RHO])
        p = _joined(self.A, self.parts, directions, self.b)
        rho = torch.cat(rhos).reshape(*self.b.shape[:-2], 1, self.b.shape[-1])
        return self.state_type(state.x, state.r, p, rho)


def _between(M: Any, shape: torch.Size) -> Callable[[Tensor], Tensor]:
    """M for vectors with one batch axis. Not a method, because that would be a reference cycle, which keeps
    all vectors of a solve until the garbage collector runs."""
    return lambda r: M(r.reshape(shape)).reshape(r.shape)


def _parts(A: Any, M: Any, b: Tensor, flexible: bool = False) -> list[_Part] | None:
    """A matrix, or each block of a `BlockBatch`, with its M; None if compiled code does not support them."""
    if not isinstance(A, (Matrix, Blocks)) or A.parameters[0].device != b.device:
        return None
    if not (b.is_cpu or b.is_cuda):
        return None
    if isinstance(A, Matrix):
        form = _form(M, b, flexible)
        return None if form is None else [_Part(A.csr, form)]
    if b.dim() != 3 or b.is_cuda:  # on a device the loop runs the blocks in parallel
        return None
    forms = _forms_of_blocks(A, M, b)
    if forms is None:
        return None
    return [_Part(B, form, i) for i, (B, form) in enumerate(zip(A.parts(), forms, strict=True))]


def _form(M: Any, b: Tensor, flexible: bool = False) -> _Form | None:
    """`flexible`: M is called between the steps, since the compiled forms are linear and symmetric."""
    form = None if flexible else compiled_form(source(M))
    if form is not None:
        m = form[1]
        if m is None or (
            m.dtype == b.dtype and m.device == b.device and broadcasts_to(m.shape[:-1], b.shape[:-2])
        ):
            return _Form(*form)
    return _Form(PYTHON_M) if b.is_cpu else None


def _forms_of_blocks(A: Blocks, M: Any, b: Tensor) -> list[_Form] | None:
    """The form of each block, from a list of M or from the parts of one M for the whole matrix."""
    sizes, maps = A.layout.sizes, M.maps if isinstance(M, Padded) else [M]
    if len(maps) > 1:
        forms = [_form(M, b[i]) for i, M in enumerate(maps)]
        return forms if all(form is not None and form.kind != PYTHON_M for form in forms) else None  # type: ignore[return-value]
    whole = _form(maps[0], b[0])
    if whole is None or whole.kind == PYTHON_M:
        return None
    if whole.m is None:
        return [whole] * len(sizes)
    if whole.factor is None:
        if len(whole.m) != sum(sizes):
            return None  # the loop raises the error
        return [whole._replace(m=m) for m in whole.m.split(sizes)]
    try:
        factors = A.batch.split(CSR(whole.m, whole.factor))
    except ValueError:  # M couples blocks
        return None
    return [whole._replace(m=L.values, factor=L.pattern) for L in factors]


def _stops(carry: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor | int]:
    """The code of each column and the iteration of its stop; a single column needs no torch operation, which
    would take longer than an iteration of a small system."""
    if carry.is_cpu and carry.shape[2] == 1 and len(shape) == 2:
        (rows,) = carry.tolist()
        return _ONE[int(rows[STOP][0])], int(rows[WHEN][0])
    why, when = carry[:, STOP:].long().unbind(1)
    return _codes_of(why).reshape(shape), when.reshape(shape)


def _codes_of(why: Tensor) -> Tensor:
    """The loop's codes for the `Stop` of each column."""
    if why.is_cpu:
        return _CODES.take(why)
    # A lookup table would have to be copied to the device, which synchronizes.
    codes = torch.zeros_like(why)
    for stop, code in STOP_CODE.items():
        codes = torch.where(why == stop, code, codes)
    return codes
