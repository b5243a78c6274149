"""Solve the same systems with several preconditioners, and compare: rows of values, a table, files, a
figure."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import scipy.sparse.linalg
import torch
from torch import Tensor

from learnsolve import solvers
from learnsolve._clock import time_call
from learnsolve.arguments import Count, Index, instance
from learnsolve.matrix import checks
from learnsolve.matrix.checks import convert_matrix, operands
from learnsolve.matrix.convert import TensorLike, replace_file
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, to_numpy
from learnsolve.ops.blocks import BlockBatch
from learnsolve.ops.operators import LinearOperator
from learnsolve.preconditioners.base import Preconditioner
from learnsolve.preconditioners.learned import MatrixNetwork
from learnsolve.solvers.core.loop import quiet
from learnsolve.solvers.core.operators import find_pcg_form
from learnsolve.solvers.options import KRYLOV
from learnsolve.solvers.solution import Solution, Status


def align_columns(lines: Sequence[Sequence[str]], left: Collection[int]) -> str:
    """Lines of cells as text, with a rule below the first. Columns `left` are left-aligned."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

    def text(line: Sequence[str]) -> str:
        pairs = enumerate(zip(line, widths, strict=True))
        return "  ".join(c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in pairs).rstrip()

    return "\n".join([text(lines[0]), "  ".join("-" * width for width in widths), *map(text, lines[1:])])


def format_csv(rows: Sequence[Mapping[str, object]], end: str = "\n") -> str:
    """One line per row, below a header from the first row. NaN is an empty cell."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["preconditioner"], lineterminator=end)
    writer.writeheader()
    for row in rows:
        empty = {key: "" for key, value in row.items() if isinstance(value, float) and math.isnan(value)}
        writer.writerow({**row, **empty})
    return text.getvalue()


class Spread(NamedTuple):
    """Statistics over systems. `std` divides by the number of systems. All NaN if there are none."""

    mean: float
    std: float
    min: float
    max: float

    @classmethod
    def summarize(cls, numbers: list) -> Spread:
        if not numbers:
            return cls(math.nan, math.nan, math.nan, math.nan)
        t = torch.tensor(numbers, dtype=torch.float64, device="cpu")
        return cls(float(t.mean()), float(t.std(correction=0)), float(t.min()), float(t.max()))


@dataclass(frozen=True)
class Row:
    """One preconditioner at one tolerance.

    Attributes
    ----------
    preconditioner, rtol : name and tolerance
    systems, converged : number of systems, and of converged systems
    iterations : of the converged systems
    seconds : of a solve to this tolerance, for the converged systems, without setup; median over repeats
    setup : seconds to build the preconditioner for a matrix whose pattern was used before, or NaN for a
        preconditioner that was passed in
    first_setup : seconds to build it for a new pattern, without plans
    backend : how the iterations ran (`Solution.backend`): "compiled"; "compiled, Python preconditioner";
        "eager". With "eager", and with a cheap Python M, the seconds are mostly Python overhead. Several
        values if systems differ
    failures : number of unconverged systems by the name of their Status
    message : error of the solver or the factory, with ``on_error="row"``
    """

    preconditioner: str
    rtol: float
    systems: int
    converged: int
    iterations: Spread
    seconds: Spread
    setup: Spread
    first_setup: Spread
    backend: str = ""
    failures: dict[str, int] = field(default_factory=dict)
    message: str = ""


COMPUTES_FORM = ("cg", "minres", "bicgstab")  # `pcg_form` of M, in the first solve
SPREADS = ("iterations", "seconds", "setup", "first_setup")


@dataclass(frozen=True)
class Evaluation:
    """The result of `compare_preconditioners`. `str()` is a table.

    Attributes
    ----------
    rows : list of Row, one per preconditioner and tolerance
    histories : for each preconditioner, one Tensor (iterations + 1,) per system: ||b - A x_i|| / ||b|| of the
        run to the tightest tolerance
    solver : name of the solver

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((4, 4)), torch.ones(16, dtype=torch.float64)
    >>> result = ls.compare_preconditioners(A, b, {"none": None}, rtol=(1e-6,), repeats=1)
    >>> result.solver, result.rows[0].converged, result.rows[0].iterations.mean
    ('cg', 1, 3.0)
    >>> [len(history) for history in result.histories["none"]]
    [4]
    """

    rows: list[Row]
    histories: dict[str, list[Tensor]]
    solver: str

    def __str__(self) -> str:
        head = ["preconditioner", "rtol", "converged", "iterations", "seconds", "backend"]
        head += ["set-up", "first", "failures"]
        lines = [head, *(_cells(row) for row in self.rows)]
        return align_columns(lines, left={0, len(head) - 1})

    def to_csv(self, path: str | Path) -> None:
        """One line per row. A Spread becomes four columns, empty if there are no values."""
        replace_file(path, format_csv([_flat(row) for row in self.rows], end="\r\n").encode())

    def to_json(self, path: str | Path) -> None:
        """The rows and the histories. Numbers that are not finite become null."""
        rows = [asdict(row) | {key: getattr(row, key)._asdict() for key in SPREADS} for row in self.rows]
        content = {
            "solver": self.solver,
            "rows": rows,
            "histories": {name: [h.tolist() for h in all_] for name, all_ in self.histories.items()},
        }
        replace_file(path, (json.dumps(finite(content), indent=1) + "\n").encode())

    def plot(self, path: str | Path | None = None) -> Any:
        """A matplotlib Figure of the histories, one line per preconditioner: the median over systems, with a
        band from the smallest to the largest. Saved to `path` (.png, .svg, .pdf) if given."""
        from learnsolve.evaluation.figures import figure

        made = figure(self)
        if path is not None:
            content, path = io.BytesIO(), Path(path)
            path = path if path.suffix else path.with_suffix(".png")  # as matplotlib does
            made.savefig(content, format=path.suffix[1:])
            replace_file(path, content.getvalue())
        return made


def _cells(row: Row) -> list[str]:
    failures = ", ".join(f"{count} {name}" for name, count in row.failures.items())
    return [
        row.preconditioner,
        f"{row.rtol:.0e}",
        f"{row.converged}/{row.systems}",
        _number(row.iterations, "{:.1f}"),
        _number(row.seconds, "{:.2e}"),
        row.backend or "-",
        *(_number(getattr(row, key), "{:.2e}") for key in SPREADS[2:]),
        ": ".join(t for t in (failures, row.message) if t),
    ]


def _number(spread: Spread, form: str) -> str:
    if math.isnan(spread.mean):
        return "-"
    return form.format(spread.mean) + (f" +- {form.format(spread.std)}" if spread.std else "")


def _flat(row: Row) -> dict[str, object]:
    out: dict[str, object] = {}
    for key, value in vars(row).items():
        if isinstance(value, Spread):
            numbers = value._asdict().items()
            out |= {f"{key}_{part}": number for part, number in numbers}
        else:
            out[key] = " ".join(f"{k}:{v}" for k, v in value.items()) if isinstance(value, dict) else value
    return out


def finite(value: object) -> object:
    """The value with None for infinities and NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


Matrix = CSR | LinearOperator
Matrices = Matrix | BlockBatch


class System(NamedTuple):
    """One matrix and one right-hand side."""

    A: Matrix
    b: Tensor  # (n,)


def split_systems(name: str, A: object, b: object) -> list[list[System]]:
    """Each matrix of a batch separately, with its right-hand sides."""
    A = [convert_matrix(one) for one in A] if isinstance(A, (list, tuple)) else convert_matrix(A)
    if isinstance(A, Matrices):
        return _split_batch(name, A, b)
    if not isinstance(A, Sequence) or not isinstance(b, Sequence):
        raise TypeError(
            f"{name}: A must be a CSR, BlockBatch or LinearOperator, or A and b sequences of them and of "
            "tensors, got "
            f"{type(A).__name__} and {type(b).__name__}"
        )
    if len(A) != len(b) or not A:
        raise ValueError(
            f"{name}: needs one b for each A, got {len(A)} matrices and {len(b)} right-hand sides"
        )
    for one in A:
        if not isinstance(one, Matrices):
            raise TypeError(
                f"{name}: A must hold CSRs, BlockBatches or LinearOperators, got {type(one).__name__}. Make "
                "a CSR with CSR.from_scipy, CSR.from_torch or CSR.from_dense"
            )
    return [group for one, columns in zip(A, b, strict=True) for group in _split_batch(name, one, columns)]


def _split_batch(name: str, A: Matrices, b: Any) -> list[list[System]]:
    A, b = operands(name, A, b)
    if isinstance(A, BlockBatch):
        checks.same_kind(name, "b", b, A.matrix.values)
        pairs = zip(A.split(A.matrix), A.split(b), strict=True)
        return [group for one, columns in pairs for group in _split_batch(name, one, columns)]
    parameters = [t.detach() for t in ((A.values,) if isinstance(A, CSR) else A.parameters)]
    for t in parameters:
        checks.same_kind(name, "b", b, t)
    checks.square(name, "A", A.shape)
    checks.rows(name, "b", b, "A", A.shape)
    n = A.shape[0]
    b = b.detach()
    b = b.unsqueeze(-1) if b.dim() == 1 else b
    checks.batches(name, A.batch_shape, b.shape[:-2], "A and b")
    if not A.batch_shape:
        one = _with_parameters(A, *parameters)
        return [[System(one, c) for c in b.mT.reshape(-1, n)]]
    batch = torch.broadcast_shapes(A.batch_shape, b.shape[:-2])
    B = b.expand(*batch, *b.shape[-2:]).reshape(batch.numel(), *b.shape[-2:])
    (entries,) = parameters  # of a CSR or a stencil
    core = entries.shape[len(A.batch_shape) :]
    matrices = [_with_parameters(A, e) for e in entries.expand(*batch, *core).reshape(batch.numel(), *core)]
    return [[System(one, c) for c in columns.mT] for one, columns in zip(matrices, B, strict=True)]


def _with_parameters(A: Matrix, *parameters: Tensor) -> Matrix:
    return A.with_values(*parameters) if isinstance(A, CSR) else A.with_parameters(parameters)


MADE = (Preconditioner, CSR, scipy.sparse.linalg.LinearOperator, torch.nn.Module)


class _Run(NamedTuple):
    """One system, solved with one preconditioner."""

    history: Tensor  # of the run to the tightest tolerance
    iterations: list[int | None]  # for each tolerance; None if it was not reached
    seconds: list[float | None]
    statuses: list[Status]
    backends: list[str]


class _Setup(NamedTuple):
    first: list[float]
    later: list[float]


def compare_preconditioners(
    A: object,
    b: TensorLike | Sequence[TensorLike],
    preconditioners: Annotated[Mapping[str, object], instance(Mapping, "a dict from names")],
    *,
    rtol: float | Iterable[float] = (1e-3, 1e-6, 1e-9),
    solver: str | Callable[..., Solution] = "cg",
    maxiter: Index | None = None,
    repeats: Count = 3,
    on_error: Literal["raise", "row"] = "raise",
) -> Evaluation:
    r"""Iterations and seconds of a solver with each of several preconditioners, for systems A x = b.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz); LinearOperator; `BlockBatch`, each block a matrix; a SciPy or
        torch matrix; or a sequence of these
    b : Tensor or NumPy array, (n,) or (..., n, k), each column a system, or a sequence, one per matrix
    preconditioners : a dict from names to None; to a Preconditioner, CSR, LinearOperator or Module for all
        matrices; or to a class, function or network A -> M, called and timed for each matrix (a plain
        function f: r -> M r as ``lambda A: f``)
    rtol : finite tolerances, reached if the solver, called with it, reports convergence
    solver : "cg", "fcg", "minres", "bicgstab", "gmres", "fgmres", or a callable
        ``(A, b, *, rtol, maxiter, M) -> Solution``, such as ``functools.partial(gmres, restart=50)``
    maxiter : default: the solver's limit
    repeats : how often to time (the median is reported)
    on_error : "raise", or "row": an error of a factory or the solver (no TypeError) is a row's message

    Returns
    -------
    Evaluation

    Raises
    ------
    ValueError, TypeError
        if arguments are invalid, or, naming the preconditioner, with the error of a factory or the solver.

    Notes
    -----
    A system is solved separately to each tolerance, one after another, without gradient. The run to the
    tightest provides the history. The first setup has no plans, later ones reuse them. Seconds of backends
    other than "compiled" include those of Python. Counts and residuals are deterministic. Cost: systems x
    tolerances x (repeats + 1) solves per preconditioner, one if a system does not converge.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.anisotropic((20, 20), 0.1, 0.0), torch.ones(400, dtype=torch.float64)
    >>> M = {"none": None, "Jacobi": ls.preconditioners.Jacobi}
    >>> result = ls.compare_preconditioners(A, b, M, repeats=1)
    >>> result.rows[0].converged, result.rows[0].iterations.mean, len(str(result).splitlines())
    (1, 37.0, 8)
    """
    name = "compare_preconditioners"
    tolerances = _tolerances(name, rtol)
    if isinstance(solver, str):
        checks.check_choice(name, "solver", solver, KRYLOV)
        called, solve = solver, getattr(solvers, solver)
    elif callable(solver):
        inner = solver.func if isinstance(solver, partial) else solver
        called, solve = getattr(inner, "__name__", type(solver).__name__), solver
    else:
        raise TypeError(f"{name}: solver must be a name or a callable, got {type(solver).__name__}")
    for label in preconditioners:
        if not isinstance(label, str):
            raise TypeError(f"{name}: names of preconditioners must be strings, got {label!r}")
    groups = split_systems(name, A, b)
    rows, histories = [], {}
    for label, argument in preconditioners.items():
        setup = _Setup([], [])
        try:
            with torch.no_grad():
                runs = [
                    _solve(solve, system, M, tolerances, maxiter, repeats)
                    for systems in filter(None, groups)
                    for M in [_build(argument, systems[0], setup, repeats, called in COMPUTES_FORM)]
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
        count = sum(map(len, groups))
        rows += [
            _row(label, tolerance, i, count, runs, setup, message) for i, tolerance in enumerate(tolerances)
        ]
    return Evaluation(rows, histories, called)


def _tolerances(name: str, rtol: Any) -> list[float]:
    if isinstance(rtol, (Tensor, np.ndarray)):
        rtol = (to_numpy(rtol) if isinstance(rtol, Tensor) else rtol).tolist()
    if isinstance(rtol, (Real, str)) or not isinstance(rtol, Iterable):
        rtol = [rtol]
    tolerances = list(rtol)
    for t in tolerances:
        checks.tolerance(name, "rtol", t)
    if not tolerances:
        raise ValueError(f"{name}: rtol must be a tolerance or several, got none")
    return sorted((float(t) for t in tolerances), reverse=True)


def _build(argument: object, system: System, setup: _Setup, repeats: int, compiled: bool) -> object:
    """The preconditioner of its A. A class is a factory, even if its objects are preconditioners. `compiled`:
    data that the method computes once from M for its compiled loop is part of the setup."""
    if argument is None or (isinstance(argument, MADE) and not isinstance(argument, MatrixNetwork)):
        batch: Any = getattr(argument, "batch_shape", ())
        if batch:
            raise ValueError(
                f"was built from a batch of matrices, shape {tuple(batch)}, but systems are solved "
                "one by one. Pass its class, or a function A -> M"
            )
        return argument
    if not callable(argument):
        raise TypeError(
            f"must be None, a preconditioner, or a function A -> M, got {type(argument).__name__}"
        )
    A, b = system
    factory: Callable[[Matrix], object] = argument
    fresh: Callable[[], Matrix] = lambda: A  # noqa: E731
    if isinstance(A, CSR):
        P, values = A.pattern, A.values
        unknown = SparsityPattern(P.crow_indices.clone(), P.col_indices.clone(), P.shape)
        # A new CSR each time: a CSR caches quantities computed from its values.
        fresh = lambda: CSR(values, unknown)  # noqa: E731

    def make() -> object:
        M = factory(fresh())
        if compiled:
            find_pcg_form(M)
        return M

    seconds, M = time_call(make, [b.device])
    if not setup.first:
        _check_made(factory, M, b)
    setup.first.append(seconds)
    later = [time_call(make, [b.device])[0] for _ in range(repeats)]
    setup.later.append(statistics.median(later))
    return M


def _check_made(factory: Callable[..., object], M: object, b: Tensor) -> None:
    """Detect a function r -> M r passed instead of A -> M, which often runs, with a meaningless result: if it
    returns a matrix for the matrix, it is also called with a vector."""
    what = type(M).__name__
    if isinstance(M, Matrix):
        column = torch.ones_like(b).unsqueeze(-1)
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
        f"must be a function A -> M that returns a preconditioner, got {what}. Pass a plain function "
        "f: r -> M r as lambda A: f, and no preconditioner as None"
    )


def _solve(
    solve: Callable[..., Solution],
    system: System,
    M: object,
    tolerances: list[float],
    maxiter: int | None,
    repeats: int,
) -> _Run:
    A, b = system
    run = partial(solve, A, b, maxiter=maxiter, M=M)
    iterations, seconds, statuses, backends = [], [], [], []
    solution = None
    for rtol in tolerances:
        with quiet():  # the status is part of the report
            solution = run(rtol=rtol)
        if not isinstance(solution, Solution):
            raise TypeError(f"solver must return a Solution, got {type(solution).__name__}")
        converged = solution.status is Status.CONVERGED
        took = [time_call(partial(run, rtol=rtol), [b.device])[0] for _ in range(repeats if converged else 0)]
        iterations.append(solution.iterations if converged else None)
        seconds.append(statistics.median(took) if took else None)
        statuses.append(solution.status)
        backends.append(solution.backend)
    assert solution is not None
    return _Run(_relative(solution.residual_norms.detach(), b), iterations, seconds, statuses, backends)


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
        iterations=Spread.summarize([run.iterations[i] for run in runs if run.iterations[i] is not None]),
        seconds=Spread.summarize([run.seconds[i] for run in runs if run.seconds[i] is not None]),
        setup=Spread.summarize(setup.later),
        first_setup=Spread.summarize(setup.first),
        backend=" or ".join(dict.fromkeys(run.backends[i] for run in runs)),
        failures=dict(Counter(run.statuses[i].name for run in runs if run.iterations[i] is None)),
        message=message,
    )
