"""The race on matrices of one grid: tuning, then held-out matrices, all contestants on each.

Every step is a row of a ledger, so that an interrupted race goes on. Held-out matrices are those of the split
"test"; tuning, of classical contestants too, sees those of "validation" alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import scipy.sparse as sp
from racing import DIRECT, TRAINING, Session, origin, right_hand_sides, tuned
from training import family

from benchmarks import contestants
from benchmarks.contestants import CONTESTANTS, Contestant, ours, prepare
from benchmarks.ledger import Ledger
from learnsolve.preconditioners import load


@dataclass(frozen=True)
class Options:
    """Matrices of the tuning; held-out ones; how often each is solved, of which the fastest counts; how many
    of them with 2 and with `columns` right-hand sides; seconds to tune a contestant, for up to 65,536
    unknowns, and in proportion for more; times the best
    classical one of the tuning up to which a contestant takes part; iterations after which a solve has
    failed."""

    tuned: int = 3
    held_out: int = 48
    repeats: int = 3
    many: int = 2
    columns: int = 32
    seconds: float = 20.0
    hopeless: float = 3.0
    maxiter: int = 2000


@dataclass(frozen=True)
class Course:
    """Diffusion tensors of one kind on a grid."""

    dimensions: int
    side: int
    kind: str = "regions"

    @property
    def name(self) -> str:
        return f"{self.dimensions}D {self.kind} {self.side}"

    def matrices(self, split: str, count: int) -> Any:
        for sample in family(split, count, self.side, self.dimensions, self.kind):
            S = sp.csr_matrix(sample.A.to_scipy())
            S.sort_indices()
            yield S


def race(path: Path, course: Course, weights: dict[str, Path], options: Options) -> None:
    """All rows of a course, into the ledger at `path`; `weights`: files of learned contestants, by name."""
    prepare(1)
    contestants.MAXITER = options.maxiter
    ledger, matrices = Ledger(path), list(course.matrices("validation", options.tuned))
    entrants: dict[str, tuple[Contestant, dict[str, Any], float]] = {}
    everyone = {who: c for who, c in CONTESTANTS.items() if c.takes(True) and not c.absent}
    everyone |= {who: Contestant(ours(load(file)), module="") for who, file in weights.items()}
    seconds, best = options.seconds * max(1.0, matrices[0].shape[0] / 65_536), math.inf
    for who in sorted(everyone, key=lambda who: who not in DIRECT):  # these bound what others may take
        c, bound = everyone[who], options.hopeless * best
        row = ledger(f"tune|{who}", lambda c=c, bound=bound: tuned(c, True, matrices, seconds, bound))
        if "failed" not in row:
            entrants[who] = c, c.settings[row["setting"]], row["total"]
            best = min(best, row["total"] if who not in weights else math.inf)
    field = [who for who in everyone if who in entrants]
    field = [who for who in field if who in weights or entrants[who][2] < options.hopeless * best]
    sessions: dict[str, Session] = {}

    def session(who: str) -> Session:
        if who not in sessions:
            c, setting, _ = entrants[who]
            sessions[who] = Session(c, setting, True, matrices[0])
        return sessions[who]

    for i, S in enumerate(course.matrices("test", options.held_out)):
        for columns in (1, 2, options.columns) if i < options.many else (1,):

            def solved(S=S, i=i, k=columns) -> dict[str, Any]:
                b = right_hand_sides(S, i) if k == 1 else right_hand_sides(S, TRAINING + i, k)
                return fastest({who: session(who) for who in field}, S, b, options.repeats)

            ledger(f"{columns}|{i}", solved)
    sessions.clear()
    for who in field:
        c, setting, _ = entrants[who]
        ledger(f"memory|{who}", lambda c=c, s=setting: memory(c, s, matrices[0]))
    ledger("end", lambda: {"unknowns": matrices[0].shape[0], "measured": origin()})


def fastest(sessions: dict[str, Session], S: Any, b: Any, repeats: int) -> dict[str, dict[str, Any]]:
    """Of each contestant the solve that took the processors least time, of some in turns, or why one
    failed."""
    rows: dict[str, dict[str, Any]] = {}
    for turn in range(repeats):
        for who in [*sessions][:: -1 if turn % 2 else 1]:
            if "failed" not in rows.get(who, {}):
                try:
                    row = sessions[who](S, b)[0]
                    rows[who] = min(rows.get(who, row), row, key=lambda r: r["cpu"])
                except Exception as error:
                    rows[who] = {"failed": f"{type(error).__name__}: {error}"}
    return {who: rows[who] for who in sessions}


def memory(contestant: Contestant, setting: dict[str, Any], S: Any) -> dict[str, Any]:
    session = Session(contestant, setting, True, S, memory=True)
    return {"MB": session.memory and session.memory / 2**20, "first": session.first}
