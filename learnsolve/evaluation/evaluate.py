"""Solve the same systems with one preconditioner after the other, and count."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import scipy.sparse.linalg
import torch
from torch import Tensor

from learnsolve import _check, solvers
from learnsolve.csr import CSR
from learnsolve.evaluation._result import Evaluation, Row, Spread
from learnsolve.pattern import SparsityPattern
from learnsolve.preconditioners.base import Preconditioner
from learnsolve.solvers._options import number
from learnsolve.solvers.base import Solution, Status

SOLVERS = ("cg", "fcg", "minres", "bicgstab", "gmres", "fgmres")
MADE = (Preconditioner, CSR, scipy.sparse.linalg.LinearOperator, torch.nn.Module)


class _System(NamedTuple):
    A: CSR
    b: Tensor  # (n,)


class _Run(NamedTuple):
    """A system solved with a preconditioner."""

    status: Status  # of the run to the tightest tolerance
    history: Tensor
    iterations: list[int | None]  # to each tolerance, if it was reached
    seconds: list[float | None]
    statuses: list[Status]


class _Setup(NamedTuple):
    first: list[float]
    later: list[float]


def evaluate(
    A: CSR | Sequence[CSR],
    b: Tensor | Sequence[Tensor],
    preconditioners: Mapping[str, Any],
    *,
    rtol: float | Iterable[float] = (1e-3, 1e-6, 1e-9),
    solver: str | Callable[..., Solution] = "cg",
    maxiter: int | None = None,
    repeats: int = 3,
    on_error: str = "raise",
) -> Evaluation:
    r"""Iterations and seconds of a solver with each of several preconditioners, over systems A x = b.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz) for a batch of matrices; or a sequence of CSRs
    b : Tensor, (n,) or (..., n, k): each batch entry and each of the k columns is a system of its own; or a
        sequence of such tensors, one for each matrix of a sequence
    preconditioners : by name, one of

        - None, for none;
        - a Preconditioner, CSR, LinearOperator or torch.nn.Module, for all matrices alike;
        - a class or function A -> M that makes one of a matrix: it is called and timed for each. A plain
          function r -> M r is given as ``lambda A: f``.
    rtol : a tolerance or several; a system has reached one when ||b - A x|| <= rtol ||b||
    solver : "cg", "fcg", "minres", "bicgstab", "gmres", "fgmres"; or a callable
        (A, b, *, rtol, maxiter, M) -> Solution, such as ``functools.partial(gmres, restart=50)``
    maxiter : int, the solver's own if not given
    repeats : how often each solve, and each set-up, is timed; the median counts. 0: seconds are NaN
    on_error : "raise"; or "row", a ValueError of a factory or of the solver becomes the message of a row

    Returns
    -------
    Evaluation

    Raises
    ------
    ValueError
        if shapes or values do not fit; or, naming the preconditioner, if its factory or the solver refuses.
    TypeError
        if types do not fit.

    Notes
    -----
    One run to the tightest tolerance gives the history of residuals and from it the iterations to every
    tolerance. Seconds are those of runs to each tolerance by itself; if such a run does not confirm that it
    converged, the system counts as not converged there, with the name of its status. Systems are solved one
    after the other, without gradient. The first set-up works on a copy of A's pattern that nothing was
    planned for; later ones find the plans. Counts and residuals are deterministic, seconds are not.

    Cost: systems (1 + tolerances (repeats + 1)) solves a preconditioner.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.anisotropic((20, 20), 0.1, 0.0)
    >>> b = torch.ones(400, dtype=torch.float64)
    >>> result = ls.evaluate(A, b, {"none": None, "Jacobi": ls.preconditioners.Jacobi}, repeats=1)
    >>> [(row.preconditioner, row.rtol, row.converged) for row in result.rows][:3]
    [('none', 0.001, 1), ('none', 1e-06, 1), ('none', 1e-09, 1)]
    >>> result.rows[0].iterations.mean, len(str(result).splitlines())
    (37.0, 8)
    """
    name = "evaluate"
    tolerances = _tolerances(name, rtol)
    repeats = _check.integer(name, "repeats", repeats, 0)
    _check.one_of(name, "on_error", on_error, ("raise", "row"))
    if maxiter is not None:
        maxiter = _check.integer(name, "maxiter", maxiter, 0)
    if isinstance(solver, str):
        _check.one_of(name, "solver", solver, SOLVERS)
        called, solve = solver, getattr(solvers, solver)
    elif callable(solver):
        inner = solver.func if isinstance(solver, partial) else solver
        called, solve = getattr(inner, "__name__", type(solver).__name__), solver
    else:
        raise TypeError(f"{name}: solver must be a name or a callable, got {type(solver).__name__}")
    if not isinstance(preconditioners, Mapping):
        raise TypeError(
            f"{name}: preconditioners must be a dict from names, got {type(preconditioners).__name__}"
        )
    groups = _systems(name, A, b)
    rows, histories = [], {}
    for label, given in preconditioners.items():
        setup = _Setup([], [])
        try:
            with torch.no_grad():
                runs = [
                    _solve(solve, system, M, tolerances, maxiter, repeats)
                    for matrix, systems in groups
                    for M in [_made(given, matrix, setup, repeats)]
                    for system in systems
                ]
        except (ValueError, TypeError) as error:
            if on_error == "raise" or isinstance(error, TypeError):
                raise type(error)(f"{name}: preconditioner {label!r}: {error}") from error
            runs, message = [], str(error)
        else:
            message = ""
        histories[label] = [run.history for run in runs]
        count = sum(len(systems) for _, systems in groups)
        rows += [
            _row(label, tolerance, i, count, runs, setup, message) for i, tolerance in enumerate(tolerances)
        ]
    return Evaluation(rows, histories, called)


def _tolerances(name: str, rtol: Any) -> list[float]:
    found = [rtol] if isinstance(rtol, (int, float)) else list(rtol)
    for t in found:
        number(name, "rtol", t)
    if not found:
        raise ValueError(f"{name}: rtol must be a tolerance or several, got none")
    return sorted((float(t) for t in found), reverse=True)


def _systems(name: str, A: Any, b: Any) -> list[tuple[CSR, list[_System]]]:
    """Each matrix by itself, with its right-hand sides."""
    if isinstance(A, CSR):
        return _of_one(name, A, b)
    if not isinstance(A, Sequence) or not isinstance(b, Sequence):
        raise TypeError(
            f"{name}: A must be a CSR, or A and b sequences of them and of tensors, got {type(A).__name__} "
            f"and {type(b).__name__}"
        )
    if len(A) != len(b) or not A:
        raise ValueError(
            f"{name}: needs one b for each A, got {len(A)} matrices and {len(b)} right-hand sides"
        )
    for one in A:
        if not isinstance(one, CSR):
            raise TypeError(f"{name}: A must hold CSRs, got {type(one).__name__}; make one with CSR.from_*")
    return [group for one, its in zip(A, b, strict=True) for group in _of_one(name, one, its)]


def _of_one(name: str, A: CSR, b: Any) -> list[tuple[CSR, list[_System]]]:
    _check.same_kind(name, "b", b, A.values)
    n = A.shape[0]
    if A.shape[1] != n:
        raise ValueError(f"{name}: A must be square, got shape {A.shape}")
    if b.dim() == 0 or b.shape[0 if b.dim() == 1 else -2] != n:
        raise ValueError(f"{name}: b must have A.shape[0] = {n} rows, got shape {tuple(b.shape)}")
    A, b = A.detach(), b.detach()
    b = b.unsqueeze(-1) if b.dim() == 1 else b
    _check.batches(name, A.batch_shape, b.shape[:-2], "A.values and b")
    if not A.batch_shape:
        return [(A, [_System(A, c) for c in b.mT.reshape(-1, n)])]
    batch = torch.broadcast_shapes(A.batch_shape, b.shape[:-2])
    B = b.expand(*batch, *b.shape[-2:]).reshape(batch.numel(), *b.shape[-2:])
    values = A.values.expand(*batch, A.nnz).reshape(batch.numel(), A.nnz)
    matrices = [A.with_values(v) for v in values]
    return [(one, [_System(one, c) for c in its.mT]) for one, its in zip(matrices, B, strict=True)]


def _made(given: Any, A: CSR, setup: _Setup, repeats: int) -> Any:
    """The preconditioner of A. A class is a factory, also one whose objects are preconditioners."""
    if given is None or isinstance(given, MADE):
        batch: Any = getattr(given, "batch_shape", ())
        if batch:
            raise ValueError(
                f"is made of a batch of matrices, shape {tuple(batch)}, and systems are solved "
                "one by one; give its class, or a function A -> M"
            )
        return given
    if not callable(given):
        raise TypeError(f"must be None, a preconditioner, or a function A -> M, got {type(given).__name__}")
    factory: Callable[[CSR], Any] = given
    P = A.pattern
    unknown = SparsityPattern(P.crow_indices.clone(), P.col_indices.clone(), P.shape)
    # A new CSR each time: one keeps what was computed of its values.
    seconds, M = _timed(lambda: factory(CSR(A.values, unknown)))
    setup.first.append(seconds)
    if repeats:
        setup.later.append(
            _median([_timed(lambda: factory(CSR(A.values, unknown)))[0] for _ in range(repeats)])
        )
    return M


def _solve(
    solve: Callable[..., Solution],
    system: _System,
    M: Any,
    tolerances: list[float],
    maxiter: int | None,
    repeats: int,
) -> _Run:
    A, b = system
    run = partial(solve, A, b, maxiter=maxiter, M=M)
    solution = run(rtol=tolerances[-1])
    length = float(b.norm())
    norms = solution.residual_norms.detach().double()
    iterations, seconds, statuses = [], [], []
    for rtol in tolerances:
        reached = (norms <= rtol * length).nonzero()
        count = int(reached[0]) if len(reached) else None
        status = solution.status
        took = None
        if rtol == tolerances[-1] and status is not Status.CONVERGED:
            count = None  # at a residual that the recurrence, but not A, has reached
        elif count is not None:
            status = Status.CONVERGED
        if count is not None and repeats:
            status = run(rtol=rtol).status
            if status is Status.CONVERGED:
                took = _median([_timed(lambda rtol=rtol: run(rtol=rtol))[0] for _ in range(repeats)])
            else:
                count = None
        iterations.append(count)
        seconds.append(took)
        statuses.append(status)
    return _Run(solution.status, norms / (length or 1), iterations, seconds, statuses)


def _timed(f: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = f()
    # A device works on after the call; reading a number waits for it.
    if isinstance(result, Solution) and result.x.numel():
        result.x.reshape(-1)[0].item()
    return time.perf_counter() - start, result


def _median(numbers: list[float]) -> float:
    return sorted(numbers)[len(numbers) // 2]


def _row(label: str, rtol: float, i: int, systems: int, runs: list[_Run], setup: _Setup, message: str) -> Row:
    return Row(
        preconditioner=label,
        rtol=rtol,
        systems=systems,
        converged=sum(run.iterations[i] is not None for run in runs),
        iterations=Spread.of([run.iterations[i] for run in runs if run.iterations[i] is not None]),
        seconds=Spread.of([run.seconds[i] for run in runs if run.seconds[i] is not None]),
        setup=Spread.of(setup.later),
        first_setup=Spread.of(setup.first),
        failures=dict(Counter(run.statuses[i].name for run in runs if run.iterations[i] is None)),
        message=message,
    )
