"""metrics.csv: one row a step. Rows are kept in memory and written at intervals.

A checkpoint notes how many bytes of the file belong to it. A resumed run cuts the file there, so that no
step is ever written twice.
"""

import csv
import os
from collections.abc import Sequence
from pathlib import Path

from learnsolve.recipes.harness.base import History

COLUMNS = ("step", "loss", "held_out_loss", "gradient_norm", "seconds")
NAME = "metrics.csv"


class Metrics:
    """Appends to metrics.csv in `folder`, from its first `size` bytes on.

    `columns` are those of the recipe, behind COLUMNS.
    """

    def __init__(self, folder: Path, size: int, columns: Sequence[str] = ()):
        self._columns = len(columns)
        self._rows: list[tuple] = []
        path = folder / NAME
        if size == 0:
            path.write_text(",".join([*COLUMNS, *columns]) + "\n")
        else:
            os.truncate(path, size)
        self._file = path.open("a")

    def add(self, *row, measured: Sequence[float | None] | None = None) -> None:
        """The values of COLUMNS in order, None for a missing one, and those of the recipe if measured."""
        self._rows.append((*row, (None,) * self._columns if measured is None else tuple(measured)))

    def flush(self) -> None:
        self._file.writelines(
            f"{step},{loss!r},{_text(held)},{norm!r},{seconds:.6f}{''.join(f',{_text(m)}' for m in more)}\n"
            for step, loss, held, norm, seconds, more in self._rows
        )
        self._rows.clear()
        self._file.flush()

    def size(self) -> int:
        """Bytes of the file, all of them on disk when this returns."""
        self.flush()
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        self.flush()
        self._file.close()


def _text(value: float | None) -> str:
    return "" if value is None else repr(value)


def read_metrics(folder: Path) -> History:
    """The columns of metrics.csv by name."""
    with (folder / NAME).open(newline="") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    history: History = {"step": [int(row["step"]) for row in rows]}
    for name in (reader.fieldnames or COLUMNS)[1:]:
        history[name] = [float(row[name]) if row[name] else None for row in rows]
    return history
