"""The race on one family: tuning and training, then held-out matrices, one contestant after another.

A set-up is that of a sequence: of new values on a pattern that is known, where the family has one pattern,
from the arrays of the matrix. Every step is a row of a ledger, so that an interrupted race goes on.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import scipy.sparse as sp
import torch
from families import FAMILIES, TRAINING
from learned import LEARNED, features, train
from racing import Session, right_hand_sides, tuned

import learnsolve as ls
from benchmarks.contestants import CONTESTANTS, Contestant, ours, prepare, timed
from benchmarks.ledger import Ledger

TUNED = 2  # matrices of the size of the race


@dataclass
class Options:
    """Held-out matrices; how many of them with `columns` right-hand sides; seconds to tune or train a
    contestant; the share of the usual size; steps (None: for the seconds) and matrices of a training;
    matrices of a half and a quarter of the side, for the learned choice; times the best total of tuning from
    which a contestant is shown by that alone."""

    matrices: int
    many: int
    columns: int
    seconds: float
    scale: float = 1.0
    steps: int | None = None
    trained: int = 8
    small: int = 9
    hopeless: float = 10.0


def held_out(session: Session, S: Any, seed: int, columns: int | None) -> dict[str, Any]:
    row, solve = session(S, right_hand_sides(S, seed))
    row |= {"first": session.first, "MB": session.memory and session.memory / 2**20}
    if columns:
        B = right_hand_sides(S, seed, columns)
        row["many"] = timed(lambda: solve, S, B)[0]["solve"]
    return row


def race(path: Path, name: str, options: Options) -> None:
    """All rows of a family, into the ledger at `path`."""
    prepare(1)
    family, ledger = FAMILIES[name], Ledger(path)
    size = round(family.size * options.scale)
    matrices: list[Any] = [family.matrix(TRAINING + i, size) for i in range(TUNED)]
    entrants: dict[str, tuple[Contestant, dict[str, Any], dict[str, Any]]] = {}
    for who, c in CONTESTANTS.items():
        if c.takes(family.symmetric) and not c.absent:
            row = ledger(f"tune|{who}", lambda c=c: tuned(c, family.symmetric, matrices, options.seconds))
            if "failed" not in row:
                entrants[who] = c, c.settings[row["setting"]], row
    for who, of in LEARNED.items():
        if of.symmetric in (None, family.symmetric):
            file, network = path.with_name(f"{path.stem} {who}.pt"), of.make()

            def training(network=network, of=of, file=file) -> dict[str, Any]:
                data = family.training(options.trained)
                row = train(network, data, of.depth, options.seconds, options.steps)
                torch.save(network.state_dict(), file)
                return row | tuned(Contestant(ours(network)), family.symmetric, matrices, 0.0)

            if "failed" not in (row := ledger(f"train|{who}", training)):
                network.load_state_dict(torch.load(file, weights_only=True))
                entrants[who] = Contestant(ours(network)), {}, row
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
            affordable = later[who] < max(options.hopeless / 2 * min(later.values()), options.seconds)
            columns = options.columns if i < options.many and affordable else None

            def measured(S=S, i=i, columns=columns, c=c, setting=setting) -> dict[str, Any]:
                nonlocal session
                session = session or Session(c, setting, family.symmetric, matrices[0], memory=True)
                return held_out(session, S, i, columns)

            ledger(f"solve|{who}|{i}", measured)
    ledger("size", lambda: {"unknowns": matrices[0].shape[0]})


def expected(row: dict[str, Any], columns: int) -> float:
    """Seconds of a set-up and of many columns, one after another, by the rows of tuning."""
    return sum(r["set-up"] + columns * r["solve"] for r in row["rows"]) / len(row["rows"])


def of_small(c: Contestant, setting: dict[str, Any], family: Any, which: int, size: int) -> dict[str, Any]:
    S = family.matrix(TRAINING + which, size)
    session = Session(c, setting, family.symmetric, S)
    row, _ = session(S, right_hand_sides(S, which))
    return {"total": row["set-up"] + row["solve"], "features": of_features(S)["features"]}


def of_features(S: sp.csr_matrix) -> dict[str, Any]:
    A = ls.CSR.from_scipy(S)
    features(A)
    begin = time.perf_counter()
    values = features(A).tolist()
    return {"features": values, "seconds": time.perf_counter() - begin}
