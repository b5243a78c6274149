"""Solve the same systems with several preconditioners, and compare."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse.linalg
import torch
from torch import Tensor

from learnsolve import solvers
from learnsolve._clock import timed
from learnsolve.evaluation._result import Evaluation, Row, Spread
from learnsolve.evaluation._systems import Matrix, System, systems_of
from learnsolve.matrix import checks
from learnsolve.matrix.convert import TensorLike
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.preconditioners.base import Preconditioner
from learnsolve.preconditioners.learned.factor_network import MatrixNetwork
from learnsolve.solvers.core.operators import compiled_form
from learnsolve.solvers.core.report import quiet
from learnsolve.solvers.options import KRYLOV
from learnsolve.solvers.solution import Solution, Status

MADE = (Preconditioner, CSR, scipy.sparse.linalg.LinearOperator, torch.nn.Module)


class _Run(NamedTuple):
    """One system, solved with one preconditioner."""

    history: Tensor  # of the run to the tightest tolerance
    iterations: list[int | None]  # for each tolerance; None if it was not reached
    seconds: list[float | None]
    statuses: list[Status]
    executions: list[str]


class _Setup(NamedTuple):
    first: list[float]
    later: list[float]


def evaluate(
    A: Any,
    b: TensorLike | Sequence[TensorLike],
    preconditioners: Mapping[str, Any],
    *,
    rtol: float | Iterable[float] = (1e-3, 1e-6, 1e-9),
    solver: str | Callable[..., Solution] = "cg",
    maxiter: int | None = None,
    repeats: int = 3,
    on_error: str = "raise",
) -> Evaluation:
    r"""Iterations and seconds of a solver with each of several preconditioners, for systems A x = b.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz); StencilOperator; `BlockBatch`, each block a matrix; a SciPy
        or torch matrix; or a sequence of these
    b : Tensor or NumPy array, (n,) or (..., n, k), each column a system; or a sequence, one per matrix
    preconditioners : a dict from names to None; to a Preconditioner, CSR, LinearOperator or Module for all
        matrices; or to a class, function or network A -> M, called and timed for each matrix (a plain
        function f: r -> M r as ``lambda A: f``)
    rtol : finite tolerances; reached if the solver, called with it, reports convergence
    solver : "cg", "fcg", "minres", "bicgstab", "gmres", "fgmres"; or a callable
        ``(A, b, *, rtol, maxiter, M) -> Solution``, such as ``functools.partial(gmres, restart=50)``
    maxiter, repeats : int; default: the solver's; how often to time (the median is reported)
    on_error : "raise"; or "row": an error of a factory or the solver (no TypeError) is a row's message

    Returns
    -------
    Evaluation

    Raises
    ------
    ValueError, TypeError
        if arguments are invalid; or, naming the preconditioner, with the error of a factory or the solver.

    Notes
    -----
    A system is solved separately to each tolerance, one after another, without gradient; the run to the
    tightest gives the history. The first setup has no plans, later ones reuse them. Seconds of executions
    other than "compiled" include those of Python. Counts and residuals are deterministic. Cost: systems x
    tolerances x (repeats + 1) solves per preconditioner, one if a system does not converge.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.anisotropic((20, 20), 0.1, 0.0), torch.ones(400, dtype=torch.float64)
    >>> result = ls.evaluate(A, b, {"none": None, "Jacobi": ls.preconditioners.Jacobi}, repeats=1)
    >>> result.rows[0].converged, result.rows[0].iterations.mean, len(str(result).splitlines())
    (1, 37.0, 8)
    """
    name = "evaluate"
    tolerances = _tolerances(name, rtol)
    repeats = checks.integer(name, "repeats", repeats, 1)
    checks.one_of(name, "on_error", on_error, ("raise", "row"))
    if maxiter is not None:
        maxiter = checks.integer(name, "maxiter", maxiter, 0)
    if isinstance(solver, str):
        checks.one_of(name, "solver", solver, KRYLOV)
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
    for label in preconditioners:
        if not isinstance(label, str):
            raise TypeError(f"{name}: names of preconditioners must be strings, got {label!r}")
    groups = systems_of(name, A, b)
    rows, histories = [], {}
    for label, argument in preconditioners.items():
        setup = _Setup([], [])
        try:
            with torch.no_grad():
                runs = [
                    _solve(solve, system, M, tolerances, maxiter, repeats)
                    for matrix, systems in groups
                    for M in [_build(argument, matrix, setup, repeats, called == "cg")]
                    for system in systems
                ]
        except TypeError as error:  # a mistake in the call, not a failure of one method
            raise TypeError(f"{name}: preconditioner {label!r}: {error}") from error
        except (ValueError, RuntimeError, ArithmeticError) as error:
            # The class of an error may require other arguments than a message, so a ValueError is raised.
            if on_error == "raise":
                raise ValueError(f"{name}: preconditioner {label!r}: {error}") from error
            runs, message = [], str(error) or type(error).__name__
        else:
            message = ""
        histories[label] = [run.history for run in runs]
        count = sum(len(systems) for _, systems in groups)
        rows += [
            _row(label, tolerance, i, count, runs, setup, message) for i, tolerance in enumerate(tolerances)
        ]
    return Evaluation(rows, histories, called)


def _tolerances(name: str, rtol: Any) -> list[float]:
    if isinstance(rtol, (Tensor, np.ndarray)):
        rtol = rtol.tolist()
    if isinstance(rtol, (Real, str)) or not isinstance(rtol, Iterable):
        rtol = [rtol]
    tolerances = list(rtol)
    for t in tolerances:
        checks.tolerance(name, "rtol", t)
    if not tolerances:
        raise ValueError(f"{name}: rtol must be a tolerance or several, got none")
    return sorted((float(t) for t in tolerances), reverse=True)


def _build(argument: Any, A: Matrix, setup: _Setup, repeats: int, compiled: bool) -> Any:
    """The preconditioner of A. A class is a factory, even if its objects are preconditioners. `compiled`:
    data that `cg` computes once from M for its compiled loop is part of the setup."""
    if argument is None or (isinstance(argument, MADE) and not isinstance(argument, MatrixNetwork)):
        batch: Any = getattr(argument, "batch_shape", ())
        if batch:
            raise ValueError(
                f"was built from a batch of matrices, shape {tuple(batch)}, but systems are solved "
                "one by one; pass its class, or a function A -> M"
            )
        return argument
    if not callable(argument):
        raise TypeError(
            f"must be None, a preconditioner, or a function A -> M, got {type(argument).__name__}"
        )
    factory: Callable[[Matrix], Any] = argument
    fresh: Callable[[], Matrix] = lambda: A  # noqa: E731
    if isinstance(A, CSR):
        P, values = A.pattern, A.values
        unknown = SparsityPattern(P.crow_indices.clone(), P.col_indices.clone(), P.shape)
        # A new CSR each time: a CSR caches quantities computed from its values.
        fresh = lambda: CSR(values, unknown)  # noqa: E731

    def make() -> Any:
        M = factory(fresh())
        if compiled:
            compiled_form(M)
        return M

    seconds, M = timed(make, [A.device])
    if not setup.first:
        _check_made(factory, M, A)
    setup.first.append(seconds)
    later = [timed(make, [A.device])[0] for _ in range(repeats)]
    setup.later.append(statistics.median(later))
    return M


def _check_made(factory: Callable[[Any], Any], M: Any, A: Matrix) -> None:
    """Detect a function r -> M r passed instead of A -> M, which often runs, with a meaningless result: if it
    returns a matrix for the matrix, it is also called with a vector."""
    what = type(M).__name__
    if isinstance(M, Matrix):
        column = torch.ones(A.shape[0], 1, dtype=A.dtype, device=A.device)
        try:
            answer = factory(column)
        except Exception:  # a factory may raise anything for a vector
            return
        if not isinstance(answer, Tensor) or answer.shape != column.shape:
            return
        what = "a vector for a vector"
    elif isinstance(M, MADE) or callable(M):
        return
    raise TypeError(
        f"must be a function A -> M that returns a preconditioner, got {what}; pass a plain function "
        "f: r -> M r as lambda A: f, and no preconditioner as None"
    )


def _solve(
    solve: Callable[..., Solution],
    system: System,
    M: Any,
    tolerances: list[float],
    maxiter: int | None,
    repeats: int,
) -> _Run:
    A, b = system
    run = partial(solve, A, b, maxiter=maxiter, M=M)
    iterations, seconds, statuses, executions = [], [], [], []
    solution = None
    for rtol in tolerances:
        with quiet():  # the status is part of the report
            solution = run(rtol=rtol)
        if not isinstance(solution, Solution):
            raise TypeError(f"solver must return a Solution, got {type(solution).__name__}")
        converged = solution.status is Status.CONVERGED
        took = [timed(partial(run, rtol=rtol), [A.device])[0] for _ in range(repeats if converged else 0)]
        iterations.append(solution.iterations if converged else None)
        seconds.append(statistics.median(took) if took else None)
        statuses.append(solution.status)
        executions.append(solution.execution)
    assert solution is not None
    return _Run(_relative(solution.residual_norms.detach(), b), iterations, seconds, statuses, executions)


def _relative(norms: Tensor, b: Tensor) -> Tensor:
    """norms / ||b||, whose squares may exceed the range of the dtype: scaled by a power of two."""
    norms, b = norms.double(), b.double()
    largest = float(b.abs().max()) if b.numel() else 0.0
    if largest == 0:
        return norms
    # 1022, so that the inverse is finite too.
    unit = 2.0 ** max(-1022, math.frexp(largest)[1] - 1) if math.isfinite(largest) else 1.0
    return norms / unit / torch.linalg.vector_norm(b / unit)


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
        execution=" or ".join(dict.fromkeys(run.executions[i] for run in runs)),
        failures=dict(Counter(run.statuses[i].name for run in runs if run.iterations[i] is None)),
        message=message,
    )
