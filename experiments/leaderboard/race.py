"""The race on one family: tuning and training, then held-out matrices, one contestant after another.

A set-up is that of a sequence: of new values on a pattern that is known, where the family has one pattern,
from the arrays of the matrix. Every step is a row of a ledger, so that an interrupted race goes on.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import scipy.sparse as sp
import torch
from families import FAMILIES, TRAINING
from learned import LEARNED, features, train
from racing import DIRECT, Session, origin, right_hand_sides, tuned

import learnsolve as ls
from benchmarks.contestants import CONTESTANTS, Contestant, ours, prepare, timed
from benchmarks.ledger import LIMIT, Ledger

TUNED = 2  # matrices of the size of the race
AFFORDABLE = (
    10.0  # expected seconds of many right-hand sides: others are measured up to `hopeless` times the best
)


@dataclass
class Options:
    """Held-out matrices; how many of them with `columns` right-hand sides; processor seconds to tune a
    contestant, or to train one of the `finalists`, which are the best after a training of `trial` seconds;
    the share of the usual size; steps (None: for the seconds) and matrices of a training; matrices of a half
    and a quarter of the side, for the learned choice; how often a system is solved, of which the fastest
    counts; times the best total of tuning from which a contestant is shown by that alone."""

    matrices: int
    many: int
    columns: int
    seconds: float
    trial: float
    scale: float = 1.0
    steps: int | None = None
    finalists: int = 2
    trained: int = 32
    small: int = 9
    repeats: int = 2
    hopeless: float = 5.0


def held_out(session: Session, S: Any, seed: int, columns: int | None, repeats: int) -> dict[str, Any]:
    rows = [session(S, right_hand_sides(S, seed)) for _ in range(repeats)]
    row, solve = min(rows, key=lambda one: one[0]["cpu"])
    row |= {"first": session.first, "MB": session.memory and session.memory / 2**20}
    if columns:
        row["many"] = timed(lambda: solve, S, right_hand_sides(S, seed, columns))[0]["cpu"]
    return row


def race(path: Path, name: str, options: Options) -> None:
    """All rows of a family, into the ledger at `path`."""
    prepare(1)
    family, ledger = FAMILIES[name], Ledger(path)
    size = round(family.size * options.scale)
    matrices: list[Any] = [family.matrix(TRAINING + i, size) for i in range(TUNED)]
    entrants: dict[str, tuple[Contestant, dict[str, Any], dict[str, Any]]] = {}
    best = math.inf
    for who in sorted(CONTESTANTS, key=lambda who: who not in DIRECT):  # these bound what others may take
        if (c := CONTESTANTS[who]).takes(family.symmetric) and not c.absent:
            job = c, family.symmetric, matrices, options.seconds, options.hopeless * best
            row = ledger(f"tune|{who}", lambda job=job: tuned(*job), options.seconds + LIMIT)
            if "failed" not in row:
                entrants[who] = c, c.settings[row["setting"]], row
                best = min(best, row["total"])
    networks = {who: of.make(family) for who, of in LEARNED.items() if of.takes(family)}
    files = {who: path.with_name(f"{path.stem} {who}.pt") for who in networks}

    def training(who: str, seconds: float) -> dict[str, Any]:
        network = LEARNED[who].make(family)
        data = family.training(options.trained)
        row = train(network, data, LEARNED[who].depth, seconds, options.steps)
        torch.save(network.state_dict(), files[who])
        return row | tuned(Contestant(ours(network), module=""), family.symmetric, matrices, 0.0)

    rows = {}
    for who in networks:
        rows[who] = ledger(
            f"trial|{who}", lambda w=who: training(w, options.trial), 4 * options.trial + LIMIT
        )
    able = sorted((who for who in rows if "failed" not in rows[who]), key=lambda who: rows[who]["total"])
    for who in able:
        if who in able[: options.finalists]:
            limit = 4 * options.seconds + LIMIT
            rows[who] = ledger(f"train|{who}", lambda w=who: training(w, options.seconds), limit)
        if "failed" not in rows[who]:
            networks[who].load_state_dict(torch.load(files[who], weights_only=True))
            entrants[who] = Contestant(ours(networks[who]), module=""), {}, rows[who]
    for which in range(options.small):
        small = family.smaller(size, 4 if which % 3 else 2)
        for who, (c, setting, _) in entrants.items():
            if who not in LEARNED:
                key = f"small|{who}|{which}"
                ledger(key, lambda c=c, s=setting, w=which, n=small: of_small(c, s, family, w, n))
    best = min(row["total"] for _, _, row in entrants.values())
    later = {who: expected(row, options.columns) for who, (_, _, row) in entrants.items()}
    for i in range(-TUNED, options.matrices):
        S = matrices[-1 - i] if i < 0 else family.matrix(i, size)
        ledger(f"features|{i}", lambda S=S: of_features(S))
    for who, (c, setting, row) in entrants.items():
        session: Session | None = None
        for i in range(options.matrices if row["total"] < options.hopeless * best else 0):
            if f"solve|{who}|{i}" in ledger.rows:
                continue
            S = family.matrix(i, size)
            affordable = later[who] < max(options.hopeless * min(later.values()), AFFORDABLE)
            columns = options.columns if i < options.many and affordable else None

            def measured(S=S, i=i, columns=columns, c=c, setting=setting) -> dict[str, Any]:
                nonlocal session
                session = session or Session(c, setting, family.symmetric, matrices[0], memory=True)
                return held_out(session, S, i, columns, options.repeats)

            ledger(f"solve|{who}|{i}", measured)
    ledger(
        "end", lambda: {"unknowns": matrices[0].shape[0], "options": asdict(options), "measured": origin()}
    )


def expected(row: dict[str, Any], columns: int) -> float:
    """Seconds of a set-up and of many columns, one after another, by the rows of tuning."""
    each = [r["cpu set-up"] + columns * (r["cpu"] - r["cpu set-up"]) for r in row["rows"]]
    return sum(each) / len(each)


def of_small(c: Contestant, setting: dict[str, Any], family: Any, which: int, size: int) -> dict[str, Any]:
    S = family.matrix(TRAINING + which, size)
    session = Session(c, setting, family.symmetric, S)
    row, _ = session(S, right_hand_sides(S, which))
    return {"total": row["cpu"], "features": of_features(S)["features"]}


def of_features(S: sp.csr_matrix) -> dict[str, Any]:
    A = ls.CSR.from_scipy(S)
    features(A)
    begin = time.process_time()
    values = features(A).tolist()
    return {"features": values, "seconds": time.process_time() - begin}
