"""Measurements that survive an interruption: JSON lines of rows by key; and processes that may die."""

from __future__ import annotations

import faulthandler
import json
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from benchmarks.harness import apart, reason

DEATHS = 20  # of the processes of one task
LIMIT = 180  # seconds for a row, without another limit; then the process is ended, in compiled loops too


class Ledger:
    """Rows by key in a file. A key at which the process died twice, or was ended once for its time, is a row
    that failed."""

    def __init__(self, path: Path):
        self.path, self.rows, self.starts, key, limit = path, {}, {}, "", LIMIT
        self.late = path.with_suffix(".late")  # where the watchdog of a row writes
        path.parent.mkdir(parents=True, exist_ok=True)
        for line in path.read_text().splitlines() if path.exists() else ():
            record = json.loads(line)
            key, row, limit = record["key"], record.get("row"), record.get("limit", LIMIT)
            if row is not None:
                self.rows[key] = row
            else:
                self.starts[key] = self.starts.get(key, 0) + 1
        if self.late.exists() and self.late.stat().st_size and key not in self.rows:
            self(key, lambda: {"failed": f"took more than {limit:.0f} s"})
        self.rows |= {
            key: {"failed": "its process died"}
            for key, count in self.starts.items()
            if count > 1 and key not in self.rows
        }

    def __call__(self, key: str, make: Callable[[], dict[str, Any]], limit: float = LIMIT) -> dict[str, Any]:
        """make(), once for a key; an error is the row {"failed": reason}."""
        if key not in self.rows:
            self._append({"key": key, "limit": limit})
            with self.late.open("w") as late:
                faulthandler.dump_traceback_later(limit, exit=True, file=late)
                try:
                    row = make()
                except Exception as error:
                    row = {"failed": reason(error)}
                finally:
                    faulthandler.cancel_dump_traceback_later()
            self.rows[key] = row
            self._append({"key": key, "row": row})
        return self.rows[key]

    def forget(self, which: Callable[[str], bool]) -> None:
        lines = self.path.read_text().splitlines(keepends=True) if self.path.exists() else []
        self.path.write_text("".join(line for line in lines if not which(json.loads(line)["key"])))
        self.rows = {key: row for key, row in self.rows.items() if not which(key)}

    def _append(self, record: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")


def supervised(f: Callable[..., Any], *args: Any) -> Any:
    """f(*args) in a process, and again in another where that dies: with a `Ledger` it goes on from there."""
    for _ in range(DEATHS):
        try:
            return apart(f, *args)
        except BrokenProcessPool:
            continue
    raise RuntimeError(f"{f.__name__}: its process has died {DEATHS} times")
