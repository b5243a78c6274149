"""Learned against classical preconditioners, multigrid of all libraries and direct solvers, set-up included.

Five families of matrices, cg (bicgstab where they are not symmetric) to 1e-8, one and many right-hand sides,
a thread each. Every contestant has the same seconds for tuning, or training, on other matrices. Missing
libraries are named and left out. Seconds are those that processors worked. Two families are measured at a
time, on two cores. --resume goes on after an interruption, --again replaces the rows of some contestants.
Families that are not measured again keep their committed results.
"""

import json
import math
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import ROOT, Experiment, new_panels, table

sys.path.insert(0, str(Path(__file__).resolve().parent))
from choice import bandit, learned_choice
from families import FAMILIES
from learned import LEARNED
from race import Options, race
from racing import geometric, show_names, show_ratio

from benchmarks.contestants import CONTESTANTS, MAXITER, RTOL
from benchmarks.ledger import Ledger, supervised

RESULTS = Path(__file__).resolve().parent / "results"
CHOICE = "learned choice"
ARMS = 5  # of the bandit: the best of the tuning


def training(rows: dict, who: str) -> dict:
    """The row of the training of a learned contestant: of the trial alone, if it was left behind there."""
    return rows.get(f"train|{who}") or rows.get(f"trial|{who}") or {}


def measured(rows: dict, who: str, way: str) -> dict[int, dict]:
    """Rows by held-out matrix; by training matrix, -1 and -2, of a contestant that tuning has left behind."""
    of_tuning = rows.get(f"tune|{who}") or training(rows, who)
    found = {-1 - i: row for i, row in enumerate(of_tuning.get("rows", []))} if way == "solve" else {}
    for i in range(sum(key.startswith(f"solve|{who}|") for key in rows)):
        if way in (row := rows[f"solve|{who}|{i}"]):
            found[i] = row
    return found


def standing(family: str, rows: dict, columns: int) -> tuple[list[dict], dict]:
    """A row for each contestant and number of right-hand sides; the choice and the bandit."""
    board, picked = [], {}
    for count, way in ((1, "solve"), (columns, "many")):
        known = {who: measured(rows, who, way) for who in (*CONTESTANTS, *LEARNED)}
        times = {
            who: {i: row["cpu"] if way == "solve" else row["cpu set-up"] + row[way] for i, row in of.items()}
            for who, of in known.items()
            if of
        }
        complete = max(len([i for i in t if i >= 0]) for t in times.values())
        arms = {
            who: [t[i] for i in range(complete)]
            for who, t in times.items()
            if who not in LEARNED and {*range(complete)} <= {*t}
        }
        best = min(arms, key=lambda who: statistics.fmean(map(math.log, arms[who])))
        chosen = learned_choice(rows, arms)
        tuned = sorted(arms, key=lambda who: rows[f"tune|{who}"]["total"])[:ARMS]
        picked[count] = {"best": best, "choice": chosen["picks"]}
        picked[count]["bandit"] = bandit({who: arms[who] for who in tuned})
        opponent = times[best]
        times[CHOICE] = dict(enumerate(chosen["totals"]))
        for who, all_of_it in times.items():
            seconds = {i: s for i, s in all_of_it.items() if i >= 0} or all_of_it
            each = [known[who][i] for i in seconds] if who != CHOICE else []
            learned = who in LEARNED or who == CHOICE
            trained = (chosen if who == CHOICE else training(rows, who)).get("training s")
            saved = statistics.fmean(opponent[i] - seconds[i] for i in seconds)
            board.append(
                {
                    "family": family,
                    "right-hand sides": count,
                    "contestant": who,
                    "learned": learned,
                    "matrices": sum(i >= 0 for i in seconds),
                    "failed": sum("failed" in r for k, r in rows.items() if k.startswith(f"solve|{who}|")),
                    "set-up s": statistics.fmean(r["cpu set-up"] for r in each) if each else "",
                    "total s": statistics.fmean(seconds.values()),
                    "first set-up s": each[0].get("first", "") if each else "",
                    "iterations": statistics.fmean(r["iterations"] for r in each) if each else "",
                    "residual": max(r["residual"] for r in each) if each else "",
                    "MB": (each[0].get("MB") or "") if each else "",
                    **geometric([seconds[i] / opponent[i] for i in seconds]),
                    "training s": trained if learned else "",
                    "paid after": "" if not learned else math.ceil(trained / saved) if saved > 0 else "never",
                }
            )
    return board, picked


def figure(board: list[dict], columns: int):
    names = list(dict.fromkeys(row["family"] for row in board))
    figure, panels = new_panels(
        "Seconds of set-up and solve, over those of the best classical one", len(names)
    )
    figure.set_size_inches(2.0 + 2.4 * len(names), 7.5)
    order = [*CONTESTANTS, *LEARNED, CHOICE]
    order = [who for who in order if any(row["contestant"] == who for row in board)][::-1]
    for axes, name in zip(panels, names, strict=True):
        for row in (row for row in board if row["family"] == name):
            one = row["right-hand sides"] == 1
            y = order.index(row["contestant"]) + (0.15 if one else -0.15)
            show_ratio(axes, row, y, filled=one)
        axes.set_xscale("log")
        show_names(axes, name, order)
    bars = "bars: 95 % intervals (fewer than six matrices: ranges)"
    figure.supxlabel(f"filled: one right-hand side, hollow: {columns}; orange: learned; {bars}", fontsize=9)
    return figure


def main() -> None:
    experiment = Experiment(
        __file__,
        __doc__,
        ("--matrices", {"type": int, "default": 24, "help": "held-out ones of a family; default 24"}),
        ("--many", {"type": int, "default": 6, "help": "of them with many right-hand sides; default 6"}),
        ("--seconds", {"type": float, "default": 600, "help": "to tune or train a contestant; default 600"}),
        ("--trial", {"type": float, "default": 30, "help": "to train one that is not among the best two"}),
        ("--scale", {"type": float, "default": 1, "help": "share of the usual side of the grids; default 1"}),
        ("--families", {"help": "some of them, by commas"}),
        ("--resume", {"action": "store_true", "help": "keep what an interrupted run has measured"}),
        ("--again", {"default": "", "help": "contestants, by commas: keep all rows but theirs"}),
        ("--report", {"action": "store_true", "help": "no measurements, only the files"}),
    )
    args = experiment.args
    options = Options(args.matrices, args.many, 32, args.seconds, args.trial, args.scale)
    if experiment.quick:
        options = Options(2, 1, 4, 0.0, 0.0, 0.06, 6, trained=2, small=4, repeats=1, hopeless=1e9)
    names = args.families.split(",") if args.families else [*FAMILIES][:: 4 if experiment.quick else 1]
    for who, contestant in CONTESTANTS.items():
        if contestant.absent:
            print(f"{who}: {contestant.absent}")
    folder = Path(tempfile.mkdtemp()) if experiment.quick else ROOT / "runs/leaderboard"
    paths = {name: folder / f"{name}.jsonl" for name in names}
    if not args.report:
        again = args.again.split(",") if args.again else []
        if unknown := [who for who in again if who not in (*CONTESTANTS, *LEARNED)]:
            raise SystemExit(f"--again: no contestants {unknown}; there are {[*CONTESTANTS, *LEARNED]}")
        for path in paths.values():
            if not (args.resume or again):
                path.unlink(missing_ok=True)
            Ledger(path).forget(lambda key: key.split("|")[1:2] in [[who] for who in again])
        measure = race if experiment.quick else lambda *job: supervised(race, *job)
        with ThreadPoolExecutor(1 if experiment.quick else 2) as pool:
            list(pool.map(measure, paths.values(), names, [options] * len(names)))
    earlier = {} if experiment.quick else json.loads((RESULTS / "leaderboard.json").read_text())
    board, picked, failures, sizes = [], {}, {}, {}
    for name in names if experiment.quick else FAMILIES:
        rows = Ledger(folder / f"{name}.jsonl").rows
        if "end" not in rows:
            board += [row for row in earlier["board"] if row["family"] == name]
            for of, key in ((picked, "picked"), (failures, "failures"), (sizes, "families")):
                of |= {name: earlier[key][name]} if name in earlier[key] else {}
            continue
        found, picked[name] = standing(name, rows, options.columns)
        board += found
        sizes[name] = {"matrices": max(row["matrices"] for row in found)} | rows["end"]
        failures[name] = {key: row["failed"] for key, row in rows.items() if "failed" in row}
        settings = {k: r for k, r in rows.items() if k.startswith(("tune|", "trial|", "train|"))}
        picked[name]["settings"] = {
            key: CONTESTANTS[who].settings[row["setting"]]
            if (who := key.split("|")[1]) in CONTESTANTS
            else row
            for key, row in settings.items()
            if "failed" not in row
        }
    shown = (
        "family",
        "right-hand sides",
        "contestant",
        "iterations",
        "total s",
        "ratio",
        "low",
        "high",
        "paid after",
    )
    print(table([{key: row[key] for key in shown} for row in board]))
    experiment.csv("leaderboard.csv", board)
    experiment.figure("leaderboard.png", figure(board, options.columns))
    experiment.json(
        "leaderboard.json",
        rtol=RTOL,
        maxiter=MAXITER,
        families=sizes,
        board=board,
        picked=picked,
        failures=failures,
        absent={who: c.absent for who, c in CONTESTANTS.items() if c.absent},
    )


if __name__ == "__main__":
    main()
