"""The loop of every iterative method. It decides when a column stops, is judged by its true residual,
restarts, stagnates or fails, and sets status codes, norms and histories. Exceptions: a fixed number of
iterations of cg that autograd records is one operation (`run_fixed_number`), and so is a fixed number of
steps of a stationary method, which does not use this loop. The codes of the outcome are corrected in two
places: in `explain_failures` for failures that no iteration shows, and in problem.py for digits that the
caller's units cannot represent.

A method is two functions on blocks of columns (..., n, k):

    start(A, M, x, r, running) -> state             r = b - A x
    step(A, M, b, state, running) -> state, trouble    one iteration

A state is a NamedTuple of tensors with the column axis last. Its first two are x and r. `running`, (..., 1,
k), marks the columns that still count. The others are computed too and discarded, so a division that may fail
in them must be guarded with it (`divide`). `trouble`, (..., 1, k), is 0, or the code of a Status for a column
that cannot continue. Such a column keeps x and r from before the step.

M, where there is one, has a transpose too, `M.T`. Other members that a method may define: `Method`.

Compiled code only advances the state, by many iterations per call, if it supports the system (advance.py). On
a CPU columns run in tiles one after another where that is faster (`tiles`).

A `Criterion` says when to stop (advance.py). The host checks the columns after every iteration on a CPU,
and occasionally on a device (`gaps`): between two checks a column that seems done does not move, and is
judged at the next check.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor

from learnsolve.matrix.convert import conjugate
from learnsolve.ops import across
from learnsolve.ops.across import rows
from learnsolve.ops.operators import Between, Map
from learnsolve.ops.sweeps import residual_norm
from learnsolve.solvers.core.advance import (
    AWAITS_CHECK,
    LOOP_SCHEDULE,
    fitting,
    run_fixed_number,
    side_by_side,
    split_columns,
    tiles,
)
from learnsolve.solvers.core.gradient import run_segments
from learnsolve.solvers.core.operators import (
    Matrix,
    Outcome,
    System,
    divide,
    dot,
    size,
    surely_finite,
)
from learnsolve.solvers.options import gaps
from learnsolve.solvers.solution import (
    CODE,
    EAGER,
    ConvergenceWarning,
    Iteration,
    Solution,
    SolverError,
    Status,
    worst,
)

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
    """Raise, or warn where a tolerance was `requested`. Without one, to run all iterations is no failure."""
    if not (throw or requested) or (status := solution.status) is Status.CONVERGED:
        return
    if status is Status.MAX_ITERATIONS and not requested:
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


def explain_failures(system: System, out: Outcome) -> Outcome:
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


def without_solution(A: Map, b: Tensor, x: Tensor, codes: Tensor) -> tuple[Tensor, str]:
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
    along = 'the constants. null_space="constants"' if constant else "a null vector of A^T. null_space="
    return codes, f"b has a component of {share:.2g} ||b|| along {along} removes it. "


def _norm(A: Map, y: Tensor) -> Tensor:
    """|| |A| |y| ||, or a lower bound of ||A|| for y of length one."""
    entries = A.magnitude(y)
    return size(A(y)) if entries is None else size(entries)


def _least_residual(A: Map, At: Map, b: Tensor) -> Tensor:
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


# Iterations from one `restart_inaccurate` to the next on a device, where it costs as much as two steps.
_ACCURACY_INTERVAL = 8
# For all columns, until one has been measured or restarted.
_INFINITE, _NONE = torch.tensor(torch.inf, device="cpu"), torch.tensor(False, device="cpu")


class Method:
    """See above. The members below `step` have defaults."""

    def start(self, A: Map, M: Map | None, x: Tensor, r: Tensor, running: Tensor) -> Any:
        raise NotImplementedError

    def step(self, A: Map, M: Map | None, b: Tensor, state: object, running: Tensor) -> tuple[Any, Tensor]:
        raise NotImplementedError

    flexible = False  # M may change from step to step, and need not be linear or symmetric
    takes_complex = False  # inner products conjugate; other methods solve real forms (entry.py)
    in_columns = True  # False: a state holds more than columns, so single columns cannot restart
    # Data of compiled code (advance.py).
    cg_state: Any = None
    state: Any = None
    state_vectors = 0
    restart = 0

    def products(self, iterations: int) -> int:
        """The products with A and A^T."""
        return iterations

    def is_inaccurate(self, state: object, running: Tensor) -> Tensor | None:
        """Whether rounding errors may have outgrown r, (..., 1, k), for recurrences that are not reliable."""
        return None

    def lost(self, A: Map, b: Tensor, old: object, new: object) -> Tensor:
        """Whether they have."""
        raise NotImplementedError

    def restart_inaccurate(
        self, A: Map, M: Map | None, b: Tensor, old: object, new: object, doubt: Tensor
    ) -> tuple[Any, Tensor]:
        """The state and the trouble of a step in `doubt`."""
        raise NotImplementedError


class _Progress(NamedTuple):
    """Everything that changes from one iteration to the next."""

    state: Any
    codes: Tensor  # (..., 1, k), 0 while a column runs, AWAITS_CHECK while it waits to be judged
    norm: Tensor  # (..., 1, k)
    best: Tensor  # (..., 1, k), the smallest value that the criterion measured (`Schedule`)
    restarted: Tensor  # (..., 1, k), whether it has restarted from its true residual


class _StepResult(NamedTuple):
    """The result of one iteration or one compiled call."""

    progress: _Progress
    norms: Tensor  # (..., at least iterations, k)
    first: int  # iterations before it
    iterations: int = 1
    when: Tensor | int | None = None  # (..., 1, k), the iteration of each column's stop; None: the last

    def history(self) -> Tensor:
        """The norms, (..., iterations, k)."""
        n = self.iterations
        return self.norms if n == self.norms.shape[-2] else self.norms.narrow(-2, 0, n)

    def without_state(self) -> _StepResult:
        return self._replace(progress=self.progress._replace(state=None))

    def correct_norms(self, true: Tensor, every: bool) -> _StepResult:
        """With the true residual norm, from the iteration where a column stopped. `every`: all have
        stopped."""
        if isinstance(self.when, Tensor) and self.when.numel() > 1:
            waiting = self.progress.codes == AWAITS_CHECK
            norms = self.history()
            rows = torch.arange(
                self.first + 1, self.first + 1 + self.iterations, device=true.device
            ).unsqueeze(-1)
            norms = torch.where(waiting & (rows >= self.when), true, norms)
        elif (before := self.iterations - 1) < 0:
            return self
        else:
            last = true
            if not every:
                last = torch.where(
                    self.progress.codes == AWAITS_CHECK, true, self.norms.narrow(-2, before, 1)
                )
            norms = torch.cat((self.norms.narrow(-2, 0, before), last), -2) if before else last
        return _StepResult(self.progress, norms, *self[2:])

    def trim(self) -> _StepResult:
        """Without the iterations after all columns have stopped."""
        if self.when is None:
            return self
        last = self.when if isinstance(self.when, int) else max(_values(self.when), default=0)
        iterations = max(min(last - self.first, self.iterations), 0)
        return _StepResult(self.progress, self.norms, self.first, iterations, self.when)


def iterate(method: Method, system: System, maxiter: int, gradient: str = "implicit") -> Outcome:
    """Run `method` until every column has stopped. With gradient="checkpointed", backward needs
    O(sqrt(iterations)) memory: the graph keeps the state between segments of 1, 2, 3, ... iterations and
    repeats the iterations inside a segment.

    On a CUDA device, with a criterion without a tolerance and no callback, the host never synchronizes: a
    column at the rounding level stops there, whereas on the CPU it restarts."""
    outs: list[Outcome] = []
    for part in split_columns(system, tiles(method, system, gradient)):
        out = run_fixed_number(method, part, maxiter, gradient)
        if out is None:
            loop = _Loop(method, part, gradient)
            progress = loop.begin()
            if gradient == "checkpointed":
                (progress, norms), runs = run_segments(loop, progress, maxiter), True
            else:
                progress, norms, runs = loop.run(maxiter, 0, progress)
            codes = progress.codes
            if runs:
                codes = codes.masked_fill(codes == 0, CODE[Status.MAX_ITERATIONS])
            codes, x = codes.squeeze(-2), progress.state.x.contiguous()
            out = Outcome(x, torch.cat((loop.first, *norms), -2), codes, "", loop.backend)
        outs.append(out)
    out = side_by_side(outs)
    return explain_failures(system, out) if system.criterion.has_tolerance else out


def _values(codes: Tensor) -> Any:
    """The codes that occur. For few columns all codes, which costs only the read."""
    if codes.numel() == 1:
        return (codes.item(),)
    return codes.flatten().tolist() if codes.numel() <= 64 else torch.unique(codes).tolist()


class _Loop:
    """The iteration loop and its convergence checks."""

    def __init__(self, method: Method, system: System, gradient: str):
        self.method = method
        self.system = system
        self.A, self.M, self.b, self.criterion = system.A, system.M, system.b, system.criterion
        self.callback, self.is_asynchronous = system.callback, system.is_asynchronous
        self.on_device = self.b.is_cuda
        # A callback runs after every iteration. A backward that repeats a segment repeats its checks.
        self.gap = gaps() if self.on_device and self.callback is None else lambda done: 1
        self.compiled = fitting(method, system, gradient)
        self.backend = EAGER if self.compiled is None else self.compiled.backend
        self.schedule = LOOP_SCHEDULE if self.compiled is None else self.compiled.schedule

    def begin(self) -> _Progress:
        A, b, x0 = self.A, self.b, self.system.x0
        length = self.system.length
        if x0 is None:
            x, r = torch.zeros_like(b), b
        else:
            nothing = length == 0
            x = torch.where(nothing, 0, x0)  # the solution of A x = 0 is zero, whatever x0 is
            r = torch.where(nothing, 0, b - A(x))
        r_is_b = r is b and not torch.is_grad_enabled()
        self.first = norm = length if r_is_b else residual_norm(r, -2, keepdim=True)
        known = norm if r_is_b else norm.detach()
        codes = self.criterion.begin(A, b, x, r, known, length).long()  # 1: CONVERGED
        if not known.is_cpu or not surely_finite(known):
            codes = torch.where(known < torch.inf, codes, CODE[Status.NON_FINITE])
        start = None if self.compiled is None else self.compiled.start
        state = self.start(x, r, codes == 0) if start is None else start(x, r)
        return _Progress(state, codes, norm, _INFINITE, _NONE)

    def runs(self, progress: _Progress) -> tuple[bool, bool]:
        """Whether some column runs, and whether certainly all do."""
        values = [0] if self.is_asynchronous else _values(progress.codes)
        return 0 in values, not self.on_device and not any(values)

    def start(self, x: Tensor, r: Tensor, running: Tensor) -> Any:
        return self.method.start(self.A, self.guard_preconditioner(running), x, r, running)

    def guard_preconditioner(self, running: Tensor) -> Any:
        """M for columns that run. For the others M might be applied to 0, where a nonlinear M may not be
        differentiable. They are replaced by a vector of norm one, and their results by zeros."""
        preconditioner = self.M
        if preconditioner is None or isinstance(preconditioner, Matrix) or not torch.is_grad_enabled():
            return preconditioner

        return Between(
            preconditioner,
            lambda r: torch.where(running, r, max(r.shape[-2], 1) ** -0.5),
            lambda z: torch.where(running, z, 0),
        )

    def run(
        self, count: int, done: int, progress: _Progress, replay: bool = False
    ) -> tuple[_Progress, list[Tensor], bool]:
        """Up to `count` iterations after the first `done`, with a check after the last; their norms; whether
        columns are still running."""
        history: list[Tensor] = []
        runs, every, end = *self.runs(progress), done + count
        while done < end and runs:
            results: list[_StepResult] = []
            if (compiled := self.compiled) is not None:
                most = end - done if self.criterion.fixed else min(end, self.schedule.after(done)) - done
                advanced = compiled(progress.state, most, done, None if every else progress.codes == 0)
                if advanced[1].shape[-2]:
                    results = [self.record_advance(progress, every, done, *advanced)]
            steps = 0
            if not results:
                steps = end - done if self.is_asynchronous else min(self.gap(done), end - done)
            for i in range(steps):
                progress = self.step(progress, done + i + 1)
                if results and (self.is_asynchronous or not progress.norm.requires_grad):
                    results[-1] = results[-1].without_state()  # not needed any more
                results.append(_StepResult(progress, progress.norm, done + i))
            if not self.is_asynchronous:
                results, waiting, runs, alike = self.inspect(results)
                every = alike and runs
                if waiting:  # the recurrence for r may have drifted from b - A x
                    r = self.b - self.A(results[-1].progress.state.x)
                    results, runs = self.verify_convergence(results, r, alike)
            progress = results[-1].progress
            for result in results:
                history.append(result.history())
                done += result.iterations
            if self.callback is not None and not replay:
                progress, stops = self.notify(self.callback, done, progress)
                runs = runs and not stops
        return progress, history, runs

    def step(self, progress: _Progress, number: int) -> _Progress:
        """Iteration `number`."""
        state, codes, norm, best, restarted = progress
        running = codes == 0
        M = self.guard_preconditioner(running)
        new, trouble = self.method.step(self.A, M, self.b, state, running)
        if not self.on_device or number % _ACCURACY_INTERVAL == 0:
            doubt = self.method.is_inaccurate(new, running)
            if doubt is not None and (self.on_device or doubt.any()):
                new, more = self.method.restart_inaccurate(self.A, M, self.b, state, new, doubt)
                trouble = torch.where(trouble == 0, more, trouble)
        codes = torch.where(running, trouble, codes)
        new_norm = residual_norm(new.r, -2, keepdim=True)
        codes = codes.masked_fill((codes == 0) & ~(new_norm.detach() < torch.inf), CODE[Status.NON_FINITE])
        moved = codes == 0
        if self.on_device or not moved.all():  # without synchronizing a device
            # A column that has stopped does not use the rest of the state.
            now, before = new._asdict(), state._asdict()
            kept = {k: torch.where(moved, now[k], before[k]) for k in ("x", "r", *self.criterion.reads)}
            new = new._replace(**kept)
            new_norm = torch.where(moved, new_norm, norm)
        return self.classify(_Progress(new, codes, new_norm, best, restarted), number)

    def record_advance(
        self,
        progress: _Progress,
        every: bool,
        done: int,
        state: object,
        norms: Tensor,
        stops: tuple[Tensor, Tensor | int] | None,
    ) -> _StepResult:
        """The iterations of a compiled call. `every`: all columns were running before it."""
        ran = norms.shape[-2]
        number = done + ran
        if stops is None:
            progress = progress._replace(state=state, norm=norms.narrow(-2, ran - 1, 1))
            return _StepResult(self.classify(progress, number), norms, done, ran)
        codes, when = stops
        _, codes_before, norm, best, restarted = progress
        if not every:
            running = codes_before == 0
            norms = torch.where(running, norms, norm)
            codes = torch.where(running, codes, codes_before)
        progress = _Progress(state, codes, norms.narrow(-2, ran - 1, 1), best, restarted)
        if not self.criterion.fixed and number in self.schedule:
            progress = self.stop_stagnation(progress)
        return _StepResult(progress, norms, done, ran, when)

    def classify(self, progress: _Progress, number: int) -> _Progress:
        """Mark the columns that seem done or have failed after iteration `number`."""
        state, codes, norm, *_ = progress
        moved, known = codes == 0, norm.detach()
        waiting = moved & self.criterion.seems_done(state, known)
        codes = torch.where(
            waiting, CODE[Status.MAX_ITERATIONS] if self.is_asynchronous else AWAITS_CHECK, codes
        )
        lost = self.criterion.failure(state, known)
        progress = progress._replace(codes=torch.where(moved & ~waiting, lost, codes))
        return (
            self.stop_stagnation(progress)
            if not self.criterion.fixed and number in self.schedule
            else progress
        )

    def stop_stagnation(self, progress: _Progress) -> _Progress:
        """Stop the columns that stagnate (`Schedule`) and set their true norm."""
        state, codes, norm, best, restarted = progress
        r = self.b - self.A(state.x)
        true = residual_norm(r, -2, keepdim=True)
        with torch.no_grad():
            reached, level = self.criterion.measure(self.A, self.b, state.x.detach(), r.detach())
            done = self.criterion.is_done(self.A, state, r.detach(), true.detach())
        # A waiting column restarts from its true residual whenever it only seemed done.
        stalled = (codes == 0) | ((codes == AWAITS_CHECK) & ~done)
        stalled = stalled & (reached <= level) & (reached > 0.5 * best)
        restart = stalled & (codes == 0) & ~restarted & (norm.detach() < 0.5 * true.detach())
        if self.on_device:
            restart = torch.zeros_like(restart)  # finding out would synchronize the device
        elif restart.any():
            state = self.export_state(state)
            new = self.start(state.x, torch.where(restart, r, state.r), restart)
            state, restart = self.replace_columns(state, new, restart)
        stagnated = stalled & ~restart
        codes = torch.where(stagnated, CODE[Status.STAGNATED], codes)
        norm = torch.where(stalled, true, norm)
        return _Progress(state, codes, norm, torch.minimum(best, reached), restart)

    def inspect(self, results: list[_StepResult]) -> tuple[list[_StepResult], bool, bool, bool]:
        """The iterations with at least one active column, whether some columns wait, whether some run, and
        whether all certainly do the same."""
        alike = False
        if self.on_device:  # a single read
            waits = results[-1].progress.codes == AWAITS_CHECK
            ran = [(result.progress.codes == 0).any() for result in results]
            *ran, waiting = torch.stack((*ran, waits.any())).tolist()
            runs = ran[-1]
            # Later iterations changed no column and must not be part of a graph.
            last, results = results[-1], results[: 1 + sum(ran)]
            if results[-1].progress.state is None:
                results[-1] = last
        else:
            values = _values(results[-1].progress.codes)
            waiting, runs, alike = AWAITS_CHECK in values, 0 in values, len(set(values)) == 1
        if not runs:
            results[-1] = results[-1].trim()
        return results, waiting, runs, alike

    def verify_convergence(
        self, results: list[_StepResult], r: Tensor, every: bool
    ) -> tuple[list[_StepResult], bool]:
        """Judge waiting columns, some or `every` one, by the true residual r. Columns that have not converged
        restart from it."""
        state, codes, norm, best, restarted = results[-1].progress
        true = residual_norm(r, -2, keepdim=True)
        known = true.detach()
        results = [result.correct_norms(true, every) for result in results]
        holds = self.criterion.is_done(self.A, state, r.detach(), known)
        if every and all(_values(holds)):  # the usual case: nothing else to decide
            progress = _Progress(state, holds.long(), true, best, restarted)
            return [_StepResult(progress, *results[-1][1:])], False
        lost = self.criterion.failure(state, known).masked_fill(holds, CODE[Status.CONVERGED])
        lost = torch.where(known < torch.inf, lost, CODE[Status.NON_FINITE])
        waiting = codes == AWAITS_CHECK
        codes = torch.where(waiting, lost, codes)
        running = codes == 0
        restarted = waiting & running
        runs = 0 in _values(codes)
        if runs and bool(restarted.any()):
            state = self.export_state(state)
            new = self.start(state.x, torch.where(restarted, r, state.r), running)
            # All columns restart if the state and a fresh one differ in size.
            state, started = self.replace_columns(state, new, restarted)
            state = state if bool(started.any()) else new
        progress = _Progress(state, codes, torch.where(waiting, true, norm), best, restarted)
        return [*results[:-1], results[-1]._replace(progress=progress)], runs

    def replace_columns(self, state: Any, new: Any, where: Tensor) -> tuple[Any, Tensor]:
        """`state` with some columns replaced by `new`, or none if it is not columns, or sizes differ."""
        pairs = [*zip(state, new, strict=True)] if self.method.in_columns else []
        if not pairs or not all(t.shape == f.shape and t.dim() >= 2 for t, f in pairs):
            return state, torch.zeros_like(where)
        return type(state)(*(torch.where(where, f, t) for t, f in pairs)), where

    def export_state(self, state: object) -> Any:
        """The state of the method, when compiled code with its own state hands over."""
        if self.compiled is None or self.compiled.start is None:
            return state
        compiled, self.compiled, self.schedule = self.compiled, None, LOOP_SCHEDULE
        return compiled.export_state(state)

    def notify(self, callback: Callable, iteration: int, progress: _Progress) -> tuple[_Progress, bool]:
        state, codes, norm, *_ = progress
        converged = (codes == CODE[Status.CONVERGED]).squeeze(-2)
        if callback(Iteration(iteration, state.x.detach(), norm.detach().squeeze(-2), converged)) is not True:
            return progress, False
        return progress._replace(codes=torch.where(codes == 0, CODE[Status.STOPPED_BY_CALLBACK], codes)), True
