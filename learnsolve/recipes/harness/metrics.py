"""metrics.csv: one row a step. Rows are kept in memory and written at intervals.

A checkpoint notes how many bytes of the file belong to it. A resumed run cuts the file there, so that no
step is ever written twice.
"""

import csv
import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from learnsolve.recipes.harness.base import History, SettingError

COLUMNS = ("step", "loss", "held_out_loss", "gradient_norm", "seconds")
NAME = "metrics.csv"


class Metrics:
    """Appends to metrics.csv in `folder`, from its first `size` bytes on.

    `columns` are those of the recipe, behind COLUMNS. `also` is called with every row as a dictionary.
    """

    def __init__(
        self,
        folder: Path,
        size: int,
        columns: Sequence[str] = (),
        also: Callable[[dict[str, Any]], None] | None = None,
    ):
        self._names, self._columns, self._also = (*COLUMNS, *columns), len(columns), also
        self._rows: list[tuple] = []
        path = folder / NAME
        if size == 0:
            path.write_text(",".join([*COLUMNS, *columns]) + "\n")
        else:
            os.truncate(path, size)
        self._file = path.open("a")

    def add(self, *row, measured: Sequence[float | None] | None = None) -> None:
        """The values of COLUMNS in order, None for a missing one, and those of the recipe if measured."""
        more = (None,) * self._columns if measured is None else tuple(measured)
        self._rows.append((*row, more))
        if self._also is not None:
            self._also(dict(zip(self._names, (*row, *more), strict=True)))

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


def check_metrics(folder: Path, size: int, step: int) -> None:
    """SettingError unless the first `size` bytes of metrics.csv are the rows of `step` steps."""
    try:
        with (folder / NAME).open("rb") as file:
            content = file.read(size)
        if len(content) < size:
            raise ValueError(f"it has {len(content)} bytes, the checkpoint counts {size}")
        history = _columns(io.StringIO(content.decode(), newline=""))
        if history["step"] != list(range(step)):
            raise ValueError(f"it does not have one row for each of {step} steps")
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise SettingError(f"--resume {folder}: {NAME} is damaged ({error}); start again") from error


def read_metrics(folder: Path) -> History:
    """The columns of metrics.csv by name."""
    with (folder / NAME).open(newline="") as file:
        return _columns(file)


def _columns(file: TextIO) -> History:
    reader = csv.DictReader(file)
    rows = list(reader)
    if tuple(reader.fieldnames or ())[: len(COLUMNS)] != COLUMNS:
        raise ValueError(f"its columns must begin with {', '.join(COLUMNS)}")
    if any(None in row or None in row.values() for row in rows):
        raise ValueError("a row has more or fewer entries than there are columns")
    history: History = {"step": [int(row["step"]) for row in rows]}
    for name in (reader.fieldnames or COLUMNS)[1:]:
        history[name] = [float(row[name]) if row[name] else None for row in rows]
    return history
