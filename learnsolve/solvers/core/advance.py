"""Compiled code for the loop (loop.py), and the criteria by which it decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from learnsolve.matrix import device_analysis
from learnsolve.matrix.cache import vmap_active
from learnsolve.matrix.csr import CSR
from learnsolve.ops.across import across
from learnsolve.ops.arithmetic import can_broadcast
from learnsolve.ops.autograd import forward_mode_may_come, needs_graph
from learnsolve.ops.pcg import RHO, STOP, WHEN, Iterations, Stop, pcg_iterations
from learnsolve.ops.program import Operand, can_be_recorded, learned_numbers, record_steps, run_program
from learnsolve.ops.program_adjoint import Attach, RecordedIterations, find_adjoint
from learnsolve.ops.sweeps import gmres_steps, separate
from learnsolve.solvers.core.operators import (
    Blocks,
    DependencyGuard,
    Matrix,
    Outcome,
    PaddedPreconditioner,
    System,
    factors_of,
    find_pcg_form,
    says,
    size,
    source,
    store_vector,
)
from learnsolve.solvers.options import check_every
from learnsolve.solvers.solution import CODE, COMPILED, PYTHON_M, Status

# When a column has converged or failed, and when that is checked, for the loop of all methods (loop.py).
#
# `ResidualNorm` is the criterion for linear systems; least_squares.py has the criterion for least squares.
# A column stops, with this `Status`, when
#
#     the true residual norm is at or below the target     CONVERGED; a recurrence alone is not trusted
#     the residual norm exceeds max(||r_0||, ||b||) / eps  DIVERGED
#     the residual norm is infinite or NaN                  NON_FINITE; x is the last finite iterate
#     rounding errors keep it from falling                  STAGNATED (`Schedule`)
#     the method reports that it cannot continue            INDEFINITE, BREAKDOWN, ILL_CONDITIONED
#     all iterations ran                                    MAX_ITERATIONS
#
# Compiled code of `cg` has the same rules (csrc/kernels/pcg_column.cuh): there a column at or below the
# target, or at the rounding level, waits until it is judged by its true residual.


AWAITS_CHECK = -1  # the code of a column that waits to be judged by its true residual


class Criterion(Protocol):
    """Whether a column has converged. All results are (..., 1, k). `norm` is ||r||."""

    fixed: bool  # no column can meet a tolerance: all iterations run
    has_tolerance: bool  # a tolerance, so that a column that does not meet it has failed
    square: bool  # requires A x = b, which may have no solution
    reads: tuple[str, ...]  # the fields of a state that `is_done` reads, other than x and r
    negligible: Any  # the size of b below which nothing matters

    def fresh(self) -> Criterion:
        """A copy for another run."""
        ...

    def rescale(self, of_b: Tensor) -> Criterion:
        """A copy for a scaled system with right-hand side b / of_b."""
        ...

    def begin(self, A: Any, b: Tensor, x: Tensor, r: Tensor, norm: Tensor, length: Tensor) -> Tensor:
        """Whether x is a solution before the first iteration. Called once, before the other methods."""
        ...

    def seems_done(self, state: Any, norm: Tensor) -> Tensor:
        """Whether to compute the true residual, judging by the norm of the method."""
        ...

    def is_done(self, A: Any, state: Any, r: Tensor, norm: Tensor) -> Tensor:
        """Whether the column has converged, judging by the true residual r."""
        ...

    def failure(self, state: Any, norm: Tensor) -> Tensor:
        """The code of a Status for a column that failed, 0 for others."""
        ...

    def measure(self, A: Any, b: Tensor, x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        """The quantity that must become small, from the true residual r, and its level of rounding errors."""
        ...

    def accuracy(self, A: Any, b: Tensor, x: Tensor, codes: Tensor) -> str:
        """The accuracy of the worst column and the requested accuracy, for a message."""
        ...


class ResidualNorm:
    """||b - A x|| <= max(rtol ||b||, atol), with one atol, or one per column."""

    square = True
    reads: tuple[str, ...] = ()

    def __init__(self, rtol: float, atol: float | Tensor):
        self.rtol, self.atol = rtol, atol
        self.fixed = rtol == 0 and not isinstance(atol, Tensor) and atol == 0
        self.has_tolerance = not self.fixed
        self.negligible = atol

    def fresh(self) -> ResidualNorm:
        return ResidualNorm(self.rtol, self.atol)

    def rescale(self, of_b: Tensor) -> ResidualNorm:
        """For b / of_b. A float divided by a tensor would be multiplied by its reciprocal, which is infinite
        for the smallest units."""
        if not isinstance(self.atol, Tensor) and self.atol == 0:
            return ResidualNorm(self.rtol, 0.0)
        atol = self.atol if isinstance(self.atol, Tensor) else of_b.new_tensor(self.atol)
        return ResidualNorm(self.rtol, atol / of_b)

    def compute_target(self, b: Tensor, length: Tensor) -> Tensor:
        relative = self.rtol * length
        if isinstance(self.atol, Tensor):
            return torch.maximum(relative, self.atol.to(length))
        return relative.clamp(min=self.atol) if self.atol else relative

    def begin(self, A: Any, b: Tensor, x: Tensor, r: Tensor, norm: Tensor, length: Tensor) -> Tensor:
        self.target, self.first = self.compute_target(b, length), (norm, length)
        return norm <= self.target

    @cached_property
    def floor(self) -> Tensor:
        """A recurrence for r is meaningless below the rounding level of its initial value."""
        norm, _ = self.first
        return torch.finfo(norm.dtype).eps * norm

    @cached_property
    def limit(self) -> Tensor:
        norm, length = self.first
        return torch.maximum(norm, length) / torch.finfo(norm.dtype).eps

    def seems_done(self, state: Any, norm: Tensor) -> Tensor:
        return norm <= torch.maximum(self.target, self.floor)

    def is_done(self, A: Any, state: Any, r: Tensor, norm: Tensor) -> Tensor:
        return norm <= self.target

    def failure(self, state: Any, norm: Tensor) -> Tensor:
        return (norm > self.limit) * CODE[Status.DIVERGED]

    def measure(self, A: Any, b: Tensor, x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        return size(r), rounding_level(A, x, b, r)

    def accuracy(self, A: Any, b: Tensor, x: Tensor, codes: Tensor) -> str:
        length = size(b)
        length = torch.where(length == 0, 1, length)
        reached, asked = size(b - A(x)) / length, self.compute_target(b, size(b)) / length
        lost = (codes.unsqueeze(-2) != CODE[Status.CONVERGED]) & torch.isfinite(reached)
        if not lost.any():
            return ""
        worst = torch.where(lost, reached / asked, -1).argmax()
        value, target = (t.expand_as(lost).flatten()[worst].item() for t in (reached, asked))
        return f"||b - A x|| / ||b|| is {value:.2g}, asked: {target:.2g}. "


class Schedule(NamedTuple):
    """When a column stagnates: only rounding errors keep its residual from falling.

    After iterations 20, 40, 60, 80, 100, 125, 156, ... (each 1 / `share` of the previous number later, and at
    least `least` later) the true residual r = b - A x is measured. A column stops as STAGNATED if

        ||r|| <= 10 eps || |A| |x| + |b| ||      more accuracy cannot be expected, and
        ||r|| > the smallest one before, halved  no progress since then

    and this holds again after a restart from r, if the method's own residual had drifted away from it. For
    the reasons see "Stagnation" in docs/solvers.md.
    """

    least: int
    share: int

    def after(self, done: int) -> int:
        """The first scheduled iteration after `done`."""
        at = 0
        while at <= done:
            at += max(self.least, at // self.share)
        return at

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self.after(number - 1) == number


LOOP_SCHEDULE = Schedule(20, 4)
# For the compiled loop of cg, where a measurement costs two iterations: 480, 960, 1920, ..., and for recorded
# steps: 20, 40, 80, 160, ...
CG_SCHEDULE, STEPS_SCHEDULE = Schedule(480, 1), Schedule(20, 1)


def rounding_level(A: Any, x: Tensor, b: Tensor, y: Tensor) -> Tensor:
    """10 eps || |A| |x| + |b| ||, (..., 1, k)."""
    return 10 * torch.finfo(b.dtype).eps * size(terms(A, x, b, y))


def terms(A: Any, x: Tensor, b: Tensor, y: Tensor) -> Tensor:
    """|A| |x| + |b|. If the entries of A are not known, its norm (..., 1, k) from ||A y|| / ||y||, a lower
    bound of ||A|| that is close, since rounding errors have components in all directions."""
    entries = A.magnitude(x)
    if entries is not None:
        return entries + b.abs()
    length = size(y)
    norm_A = size(A(y)) / torch.where(length == 0, 1, length)
    return norm_A * size(x) + size(b)


# Compiled conjugate gradients for the loop (loop.py): `run_fixed_number`, a fixed number of iterations as one
# operation, which autograd may record, and `fitting_cg`, many iterations per call to a tolerance, without
# autograd.
#
# Columns stop on their own in compiled code, by the rules of `ResidualNorm` (csrc/kernels/pcg_column.cuh):
# a column at or below its target, or at the rounding level, waits until the loop judges it by its true
# residual, and continues in the loop if that is larger.
#
# A fixed number of iterations never synchronizes a CUDA device, so a solve can be part of a CUDA graph. No
# value is read back: the solution has all requested iterations, in which columns that have stopped keep
# their last norm, and A is used without scaling, whatever the size of its entries.


STOP_CODE = {
    Stop.RUNNING: 0,
    Stop.ROUNDING: AWAITS_CHECK,
    Stop.CURVATURE: CODE[Status.INDEFINITE],
    Stop.PRECONDITIONER: CODE[Status.INDEFINITE],
    Stop.NON_FINITE: CODE[Status.NON_FINITE],
    Stop.DIVERGED: CODE[Status.DIVERGED],
}
_CODES = torch.tensor([STOP_CODE[stop] for stop in Stop], device="cpu")
_LAST = torch.tensor(CODE[Status.MAX_ITERATIONS], device="cpu")
_ONE = _CODES.reshape(-1, 1, 1).unbind()  # of one column


class _Form(NamedTuple):
    """An M in the form of compiled code (ops/pcg.py). An M of kind PYTHON_M is called between the steps."""

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

        def flatten_members(t: Tensor) -> Tensor:
            if t.dim() == 1:
                return t
            if t.shape[:-1].numel() == 1:
                return t.reshape(t.shape[-1])
            return t.expand((*lead, t.shape[-1])).reshape(lead.numel(), t.shape[-1])

        return flatten_members(self.A.values), None if self.form.m is None else flatten_members(self.form.m)


def _merge_batch(t: Any) -> Any:
    """With one batch axis at most."""
    return t if t is None or t.dim() < 4 else t.reshape(-1, *t.shape[-2:])


def _join_parts(A: Any, parts: list[_Part], blocks: list[Tensor], b: Tensor) -> Tensor:
    """Columns of the whole system from the rows of its parts."""
    if parts[0].block is not None:
        return A.layout.pad(torch.cat(blocks, -2))
    return blocks[0] if blocks[0].dim() == b.dim() else blocks[0].reshape(b.shape)


def run_fixed_number(method: Any, system: System, maxiter: int, gradient: str) -> Outcome | None:
    """A fixed number of iterations as one differentiable operation, with the exact gradient of the iterations
    that ran, or None if the operation does not support the system."""
    parts = None if gradient == "implicit" else parts_at_once(method, system)
    if parts is None:
        return None
    A, b, x0, outs = system.A, system.b, system.x0, []
    start = None if x0 is None else torch.where(size(b) == 0, 0, x0)  # the solution of A x = 0 is zero
    for part in parts:
        columns = part.of(b)
        values, m = part.operands(columns)
        if m is not None and vmap_active(m):
            raise NotImplementedError(
                f"{system.name}: M is made from a tensor that torch.func.vmap maps over. Make one M for all "
                "systems outside of vmap"
            )
        outs.append(
            pcg_iterations(
                values, _merge_batch(columns), _merge_batch(part.of(start)), part.A.pattern, maxiter,
                kind=part.form.kind, m=m, factor=part.form.factor, checkpointed=gradient == "checkpointed",
            )
        )  # fmt: skip
    xs, histories, states = (list(ts) for ts in zip(*outs, strict=True))
    x = _join_parts(A, parts, xs, b)
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
    codes = _stop_codes(why)
    codes = torch.where(codes <= 0, CODE[Status.MAX_ITERATIONS], codes)  # there is no tolerance
    codes = torch.where(norms[..., 0, :].detach() == 0, CODE[Status.CONVERGED], codes)
    if reads:
        ran = torch.where(why == Stop.RUNNING, maxiter, when)
        norms = norms[..., : 1 + int(ran.max()), :]
    return Outcome(x, norms, codes, "", COMPILED)


def parts_at_once(method: Any, system: System) -> list[_Part] | None:
    """The parts of a system for `run_fixed_number`, or None if it does not support the system."""
    fits = method.cg_state is not None and not method.flexible
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
    if parts is None or needs_graph(A.parameters[0], b):
        return None
    recorded = torch.is_grad_enabled()
    if recorded and any(part.form.learns() or part.form.kind == PYTHON_M for part in parts):
        return None
    return CompiledCG(system, parts, method.flexible, method.cg_state)


class Advance:
    """Compiled code for the loop, see below. Its state is that of the method unless `start` is one."""

    backend: str
    schedule: Schedule = LOOP_SCHEDULE
    start: Callable[[Tensor, Tensor], Any] | None = None

    def __call__(
        self, state: Any, count: int, done: int, running: Any
    ) -> tuple[Any, Tensor, tuple[Tensor, Tensor | int] | None]:
        raise NotImplementedError

    def export_state(self, state: Any) -> Any:
        return state


class State(NamedTuple):
    x: Tensor
    r: Tensor
    parts: tuple  # of each part (ops/pcg.py); empty at the start


class CompiledCG(Advance):
    """`Advance` (advance.py) of conjugate gradients."""

    schedule: Schedule = CG_SCHEDULE

    def __init__(self, system: System, parts: list[_Part], flexible: bool, state_type: Any):
        self.system, self.parts, self.flexible, self.state_type = system, parts, flexible, state_type
        self.A, self.b = system.A, system.b
        self.backend = PYTHON_M if parts[0].form.kind == PYTHON_M else COMPILED

    def start(self, x: Tensor, r: Tensor) -> State:
        x0 = None if self.system.x0 is None else x
        every = check_every() if self.b.is_cuda else None
        self.runs = []
        for part in self.parts:
            b = part.of(self.b)
            values, m = part.operands(b)
            form: dict[str, Any] = {"kind": part.form.kind, "m": m, "factor": part.form.factor}
            if part.form.kind == PYTHON_M:
                form = {"between": _bind_shape(self.system.M, self.b.shape), "flexible": self.flexible}
            start = _merge_batch(part.of(x0))
            self.runs.append(Iterations(values, _merge_batch(b), start, part.A.pattern, every, **form))
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
            after, history = run(before, count, done, part_running, _merge_batch(target))
            parts.append(after)
            histories.append(history)
        x = _join_parts(self.A, self.parts, [p.x for p in parts], self.b)
        r = _join_parts(self.A, self.parts, [p.r for p in parts], self.b)
        one, lead = self.parts[0].block is None, targets.shape[:-2]
        norms = histories[0] if one else torch.stack(histories)
        if lead:
            norms = norms.reshape(*lead, *norms.shape[-2:])
        stops = _stops(parts[0].carry if one else torch.cat([p.carry for p in parts]), targets.shape)
        return State(x, r, tuple(parts)), norms, stops

    def export_state(self, state: State) -> Any:
        directions, rhos = [], []
        for run, part in zip(self.runs, state.parts, strict=True):
            directions.append(run.direction(part))
            rhos.append(part.carry[:, RHO])
        p = _join_parts(self.A, self.parts, directions, self.b)
        rho = torch.cat(rhos).reshape(*self.b.shape[:-2], 1, self.b.shape[-1])
        return self.state_type(state.x, state.r, p, rho)


def _bind_shape(M: Any, shape: torch.Size) -> Callable[[Tensor], Tensor]:
    """M for vectors with one batch axis. Not a method, because that would be a reference cycle, which keeps
    all vectors of a solve until the garbage collector runs."""
    return lambda r: M(r.reshape(shape)).reshape(r.shape)


def _parts(A: Any, M: Any, b: Tensor, flexible: bool = False) -> list[_Part] | None:
    """A matrix, or each block of a `BlockBatch`, with its M, or None if compiled code does not support
    them."""
    if not isinstance(A, (Matrix, Blocks)) or A.parameters[0].device != b.device:
        return None
    if not (b.is_cpu or b.is_cuda):
        return None
    if isinstance(A, Matrix):
        form = _form(M, b, flexible)
        return None if form is None else [_Part(A.known_csr(), form)]
    if b.dim() != 3 or b.is_cuda:  # on a device the loop runs the blocks in parallel
        return None
    forms = _forms_of_blocks(A, M, b)
    if forms is None:
        return None
    return [_Part(B, form, i) for i, (B, form) in enumerate(zip(A.parts(), forms, strict=True))]


def _form(M: Any, b: Tensor, flexible: bool = False) -> _Form | None:
    """`flexible`: M is called between the steps, since the compiled forms are linear and symmetric."""
    form = None if flexible else find_pcg_form(source(M))
    if form is not None:
        m = form[1]
        if m is None or (
            m.dtype == b.dtype and m.device == b.device and can_broadcast(m.shape[:-1], b.shape[:-2])
        ):
            return _Form(*form)
    return _Form(PYTHON_M) if b.is_cpu else None


def _forms_of_blocks(A: Blocks, M: Any, b: Tensor) -> list[_Form] | None:
    """The form of each block, from a list of M or from the parts of one M for the whole matrix."""
    sizes, maps = A.layout.sizes, M.maps if isinstance(M, PaddedPreconditioner) else [M]
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
    """The code of each column and the iteration of its stop. A single column needs no torch operation, which
    would take longer than an iteration of a small system."""
    if carry.is_cpu and carry.shape[2] == 1 and len(shape) == 2:
        (rows,) = carry.tolist()
        return _ONE[int(rows[STOP][0])], int(rows[WHEN][0])
    why, when = carry[:, STOP:].long().unbind(1)
    return _stop_codes(why).reshape(shape), when.reshape(shape)


def _stop_codes(why: Tensor) -> Tensor:
    """The loop's codes for the `Stop` of each column."""
    if why.is_cpu:
        return _CODES.take(why)
    # A lookup table would have to be copied to the device, which synchronizes.
    codes = torch.zeros_like(why)
    for stop, code in STOP_CODE.items():
        codes = torch.where(why == stop, code, codes)
    return codes


# Compiled code that advances the state of a method by many iterations per call. The loop (loop.py) decides;
# `fitting` finds the code that supports a system.
#
#     start        None if the state is the state of the method; otherwise how its own state begins
#     __call__     the state after up to `count` iterations of columns that are `running` (None: all); their
#                  norms (..., iterations, k), none if the loop must run the next one with torch operations;
#                  and for each column its code (AWAITS_CHECK: judged by its true residual), and since when;
#                  or None. It returns early where its only column seems done, and before an iteration that
#                  breaks down, is not finite or is in doubt
#     export_state     the method's state, for the loop to go on with
#     schedule     when the loop measures stagnation
#     backend    as `Solution.backend`
#
# Here, for one right-hand side on the CPU: methods with `state_vectors` are recorded (ops/program.py), with
# an M that has operands; without autograd also `gmres` and `fgmres`, without M or with a diagonal, and any
# other M is called between steps of one iteration each.
# The gain: `python -m benchmarks loops`.
#
# `tiles`: many columns on a CPU run in tiles, one after another, because blocks of all of them do not fit
# the cache, and the compiled steps take a single column. Tiles are chosen by the method, its M, n and k
# alone, because the rounding errors of a column depend on them. In each the loop runs as if there were no
# others. In small systems the compiled loop of cg has columns one by one by itself (ops/sweeps.py),
# which costs less than a solve for each.


# Entries that a call may read, so that Python handles an interrupt in time: half a second.
_MOST = 5 * 10**8

# Columns that torch operations work on together; rows from which on that is faster than all at once, and from
# which on two or three columns take longer together.
_WIDTH, _MANY_ROWS, _ROWS = 8, 2**15, 2**13
_FIRST_CALL = 32  # iterations that keep what their adjoint reads; later calls double this


def fitting(method: Any, system: System, gradient: str) -> Advance | None:
    """The code that advances this method on this system, or None if the loop uses torch operations."""
    if system.callback is not None or (gradient == "checkpointed" and not method.state_vectors):
        return None
    if method.cg_state is not None:
        return fitting_cg(method, system) if gradient == "implicit" else None
    return _fitting_steps(method, system, gradient) if _has_steps(method) else None


def _has_steps(method: Any) -> bool:
    return bool(method.state_vectors or method.restart)


class GmresSteps(Advance):
    """Steps of gmres, whose state has a basis of any size (csrc/ops/gmres.cpp)."""

    def __init__(
        self, method: Any, A: Matrix, diagonal: Tensor | None, M: Callable[[Tensor], Tensor] | None,
        b: Tensor, criterion: ResidualNorm,
    ):  # fmt: skip
        self.restart = method.restart
        pattern = A.A.pattern
        self.fixed = (pattern._structure(A.transpose), A.A.values, diagonal, b.squeeze(-1))
        self.most = max(_MOST // (pattern.nnz + (20 + 3 * min(self.restart, 100)) * len(b)), 1)
        self.M = M  # called before each iteration, if it is not a diagonal
        self.backend = COMPILED if M is None else PYTHON_M
        self.criterion, self.bounds = criterion, None
        self.none = b.new_empty(0, 1)

    def __call__(self, state: Any, count: int, done: int, running: Any) -> tuple[Any, Tensor, None]:
        if self.bounds is None:
            target, floor, limit = self.criterion.target, self.criterion.floor, self.criterion.limit
            self.bounds = (float(torch.maximum(target, floor)), float(limit))
        x, r, V, P, _, c, s, eta, largest = state
        vectors, scalars = (x, r, V[: len(c) + 1], P[: len(c)]), (eta, largest, c, s)
        count = min(count, self.most)
        if len(c) == self.restart:  # a restart from x
            if self.M is not None:
                return state, self.none, None  # M needs a vector that does not exist yet
            vectors, scalars = (x, r), (eta, largest)
        elif self.M is not None:
            vectors, count = (*vectors, self.M(V[len(c)])), 1
        new, numbers, norms, counts = gmres_steps(
            *self.fixed, vectors, scalars, *self.bounds, count, self.restart
        )
        ran, j = counts.tolist()
        if ran == 0:
            return state, self.none, None
        new, numbers = new.unsqueeze(-1), numbers.reshape(-1, 1, 1)
        room = len(numbers) // 2 - 1
        if self.M is None:
            V, P = new[2 : 3 + j], new[3 + room : 3 + room + j]
        else:
            V, P = store_vector(V, j, new[2], self.restart + 1), store_vector(P, j - 1, new[3], self.restart)
        c, s = numbers[2 : 2 + j], numbers[2 + room : 2 + room + j]
        state = type(state)(new[0], new[1], V, P, None, c, s, numbers[0], numbers[1])
        return state, norms[:ran].unsqueeze(-1), None


class RecordedSteps(Advance):
    """Steps of a method that is recorded (ops/program.py), of which the first `state_vectors` fields of the
    state are vectors. `graph`: autograd records them, as one operation (ops/program_adjoint.py)."""

    backend, schedule = COMPILED, STEPS_SCHEDULE

    def __init__(
        self, method: Any, A: Matrix, M: Any, factors: Sequence[Operand], b: Tensor, criterion: ResidualNorm,
        graph: bool,
    ):  # fmt: skip
        ops, pattern, values = tuple(factor.op for factor in factors), A.A.pattern, A.A.values
        self.symmetric = M is None or says(M, "symmetric") is True  # M.T is M; its operands may be others
        mirrored = all(o.is_transpose(other) for o, other in zip(factors, reversed(factors), strict=True))
        self.method, self.program = method, record_steps(method, ops, self.symmetric, b.dtype)
        makes: dict[str, Callable[[], Sequence[Operand] | None]] = {
            "A": lambda: [Operand.product(pattern, values, A.transpose)],
            "A.T": lambda: [Operand.product(pattern, values, not A.transpose)],
            "M": lambda: factors,
            "M.T": lambda: factors if mirrored else factors_of(M, pattern, True),
        }
        names = makes if graph else dict(self.program.operands)
        self.maps = {name: makes[name]() or () for name in names}
        operands = [self.maps[name][place] for name, place in self.program.operands]
        self.values = [operand.values for operand in operands]
        needs = tuple(t.requires_grad for t in self.values)
        self.tensors = list(learned_numbers(method).values())
        learned = len(self.tensors) if needs_graph(*self.tensors) else 0
        self.adjoint = find_adjoint(self.program, len(ops), mirrored, needs, learned) if graph else None
        if self.adjoint and any(len(self.maps[name]) <= at for name, at in self.adjoint.backward.operands):
            self.adjoint = None  # M does not say what its transpose is
        tensors = [t for operand in operands for t in (*operand.structure, operand.values.detach())]
        program = self.program if self.adjoint is None else self.adjoint.forward
        self.fixed = (tensors, [operand.form for operand in operands], program.code)
        self.b, self.criterion, self.bounds = b, criterion, None
        self.eager: list[range] = []  # iterations that Python runs, the same when they are repeated
        self.none = b.new_empty(0, b.shape[1])
        vectors = 2 * self.program.vectors + 10
        entries = sum(operand.values.numel() for operand in operands)
        self.most = max(_MOST // (entries + vectors * len(b)), 1)

    def __call__(self, state: Any, count: int, done: int, running: Any) -> tuple[Any, Tensor, None]:
        if self.bounds is None:
            target, floor, limit = self.criterion.target, self.criterion.floor, self.criterion.limit
            own = [t.detach().to(limit).reshape(1, 1) for t in self.tensors]
            self.bounds = (torch.maximum(target, floor), limit, torch.ones_like(limit), *own)
        known = self.program.vectors
        if any(done in stretch for stretch in self.eager):
            return state, self.none, None
        count = min(count, self.most if self.adjoint is None else max(_FIRST_CALL, done), self.most)
        with torch.no_grad():
            vectors, numbers = [*state[:known], self.b], self.program.numbers((*state[known:], *self.bounds))
            out = run_program(*self.fixed, vectors, numbers, (), 0, count, self.adjoint is not None)
        fields, numbers, norms, ran, *tape = out
        if (iterations := ran.item()) == 0:
            # Iterations that Python decides about often follow one another.
            last = self.eager[-1] if self.eager else range(-1)
            length = min(2 * len(last), 16) if last.stop == done else 2
            self.eager.append(range(done, done + length))
            return state, norms[:0], None
        scalars = numbers[: len(state) - known].to(self.b.dtype).unsqueeze(-2).unbind(0)
        new, norms = [fields[0].clone(), *fields[1:].unbind(0), *scalars], norms[:iterations]
        if self.adjoint is not None:
            those = RecordedIterations(self.method, self.adjoint, self.maps, self.symmetric, iterations, tape)
            *new, norms = Attach.apply(those, [*new, norms], *state, self.b, *self.values, *self.tensors)
        return type(state)(*new), norms, None


def _fitting_steps(method: Any, system: System, gradient: str) -> GmresSteps | RecordedSteps | None:
    A, b, x0 = system.A, system.b, system.x0
    if not isinstance(A, Matrix) or not isinstance(system.criterion, ResidualNorm):
        return None
    values, M = A.A.values, source(system.M)
    if not (
        b.is_cpu
        and values.is_cpu
        and not device_analysis.here(b)
        and b.dim() == 2
        and b.shape[1] == 1
        and values.dim() == 1
        and not values.is_complex()
        and len(b)
    ):
        return None
    graph = needs_graph(b, values) or (x0 is not None and needs_graph(x0))
    if can_be_recorded(method):
        operands = factors_of(M, A.A.pattern)
        if operands is None or any(not _fits(o.values, b, system.M) for o in operands):
            return None
        graph = graph or needs_graph(*(o.values for o in operands), *learned_numbers(method).values())
        if graph and (forward_mode_may_come() or torch.compiler.is_dynamo_compiling()):
            return None
        try:
            steps = RecordedSteps(method, A, M, operands, b, system.criterion, graph)
        except NotImplementedError:
            if learned_numbers(method):
                return None  # of which a step may make anything
            raise
        return None if graph and steps.adjoint is None else steps
    if graph:
        return None
    # Any other form would be computed here in vain.
    form = find_pcg_form(M) if M is None or says(M, "is_diagonal") else None
    if form is None and torch.is_grad_enabled():
        return None
    diagonal, between = (None, system.M) if form is None else (form[1], None)
    if diagonal is not None and not (
        len(diagonal) == len(b) and _fits(diagonal, b, system.M) and not needs_graph(diagonal)
    ):
        return None
    return GmresSteps(method, A, diagonal, between, b, system.criterion)


def _fits(m: Tensor, b: Tensor, M: Any) -> bool:
    """Whether numbers of M are of one matrix, of b's dtype, on the CPU, and none that the solve checks."""
    if m.dim() != 1 or m.dtype != b.dtype or not m.is_cpu:
        return False
    return not (m.requires_grad and isinstance(M, DependencyGuard))


def tiles(method: Any, system: System, gradient: str) -> list[int]:
    """The numbers of columns of the tiles; empty: all at once."""
    b = system.b
    n, k = b.shape[-2:]
    if k == 1 or b.numel() == 0 or not b.is_cpu:
        return []
    records = gradient != "implicit" and method.state_vectors > 0  # a tile as one operation
    if not records and (gradient != "implicit" or torch.is_grad_enabled()):
        return []
    if system.callback is not None or across() is not None or not _splits(system):
        return []
    few = k < 4 and n >= _ROWS
    if method.cg_state is not None and isinstance(system.A, Matrix):  # compiled, or M between compiled steps
        own = fitting(method, system, gradient) if n >= _ROWS and (few or separate(b)) else None
        return [1] * k if own is not None and (few or own.backend == COMPILED) else []
    # A solve of its own costs a column more than it saves where both are small.
    if _has_steps(method) and k <= max(8, n // 16):
        one = fitting(method, next(split_columns(system, [1, k - 1])), gradient)
        if one is not None and (one.backend == COMPILED or n >= _ROWS):
            return [1] * k
    if records:
        return []
    if k > _WIDTH and n >= _MANY_ROWS:
        rest = k % _WIDTH
        return [_WIDTH] * (k // _WIDTH) + ([rest] if rest > 3 else [1] * rest)
    return [1] * k if few else []


def _splits(system: System) -> bool:
    """A user's function, other than a `Preconditioner`, may be made for all columns, and so is what scales
    them (problem.py)."""
    M = source(system.M)
    known = system.A.by_columns and (M is None or says(M, "by_columns"))
    return known and not isinstance(system.criterion.negligible, torch.Tensor)


def split_columns(system: System, widths: list[int]) -> Iterator[System]:
    if not widths:
        yield system
        return
    starts = [None] * len(widths) if system.x0 is None else system.x0.split(widths, -1)
    for b, x0 in zip(system.b.split(widths, -1), starts, strict=True):
        x0 = None if x0 is None else x0.contiguous()
        yield replace(system, b=b.contiguous(), x0=x0, criterion=system.criterion.fresh())


def side_by_side(outs: list[Outcome]) -> Outcome:
    """The outcome of all columns. Histories end with the last norm of a column that has stopped."""
    if len(outs) == 1:
        return outs[0]
    length = max(out.norms.shape[-2] for out in outs)
    norms = [
        torch.cat((h, h[..., -1:, :].expand(*h.shape[:-2], length - h.shape[-2], -1)), -2)
        for h in (out.norms for out in outs)
    ]
    x, codes = torch.cat([out.x for out in outs], -1), torch.cat([out.codes for out in outs], -1)
    return Outcome(x, torch.cat(norms, -1), codes, "", outs[0].backend)
