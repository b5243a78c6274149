"""The result of `evaluate`: rows of values, a table, files, a figure."""

from __future__ import annotations

import io
import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from learnsolve.evaluation._table import aligned, as_csv
from learnsolve.matrix.files import replace_file


class Spread(NamedTuple):
    """Statistics over systems; `std` divides by the number of systems. All NaN if there are none."""

    mean: float
    std: float
    min: float
    max: float

    @classmethod
    def of(cls, numbers: list) -> Spread:
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
    setup : seconds to build the preconditioner for a matrix whose pattern was used before; NaN for a
        preconditioner that was passed in
    first_setup : seconds to build it for a new pattern, without plans
    execution : how the iterations ran (`Solution.execution`): "compiled"; "compiled, Python preconditioner";
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
    execution: str = ""
    failures: dict[str, int] = field(default_factory=dict)
    message: str = ""


SPREADS = ("iterations", "seconds", "setup", "first_setup")


@dataclass(frozen=True)
class Evaluation:
    """The result of `evaluate`; `str()` is a table.

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
    >>> result = ls.evaluate(A, b, {"none": None}, rtol=(1e-6,), repeats=1)
    >>> result.solver, result.rows[0].converged, result.rows[0].iterations.mean
    ('cg', 1, 3.0)
    >>> [len(history) for history in result.histories["none"]]
    [4]
    """

    rows: list[Row]
    histories: dict[str, list[Tensor]]
    solver: str

    def __str__(self) -> str:
        head = ["preconditioner", "rtol", "converged", "iterations", "seconds", "execution"]
        head += ["set-up", "first", "failures"]
        lines = [head, *(_cells(row) for row in self.rows)]
        return aligned(lines, left={0, len(head) - 1})

    def to_csv(self, path: str | Path) -> None:
        """One line per row; a Spread becomes four columns, empty if there are no values."""
        replace_file(path, as_csv([_flat(row) for row in self.rows], end="\r\n").encode())

    def to_json(self, path: str | Path) -> None:
        """The rows and the histories; numbers that are not finite become null."""
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
        row.execution or "-",
        *(_number(getattr(row, key), "{:.2e}") for key in SPREADS[2:]),
        ": ".join(t for t in (failures, row.message) if t),
    ]


def _number(spread: Spread, form: str) -> str:
    if math.isnan(spread.mean):
        return "-"
    return form.format(spread.mean) + (f" +- {form.format(spread.std)}" if spread.std else "")


def _flat(row: Row) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in vars(row).items():
        if isinstance(value, Spread):
            numbers = value._asdict().items()
            out |= {f"{key}_{part}": number for part, number in numbers}
        else:
            out[key] = " ".join(f"{k}:{v}" for k, v in value.items()) if isinstance(value, dict) else value
    return out


def finite(value: Any) -> Any:
    """The value with None for infinities and NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
