"""What pages quote of `benchmarks multigrid` and of experiments/leaderboard, from their committed results."""

from __future__ import annotations

import json
from typing import Any

from benchmarks import ROOT
from benchmarks.report import duration, markdown

MULTIGRID = ROOT / "benchmarks/results/bench-multigrid.json"
BOARD = ROOT / "experiments/leaderboard/results/leaderboard.json"
Row = dict[str, Any]


def contestants(_: Row) -> str:
    """Set-up of new values and solve, one thread, with the iterations."""
    lines: dict[str, dict[str, str]] = {}
    rows = [r for r in json.loads(MULTIGRID.read_text())["rows"] if r["threads"] == 1]
    problems = list(dict.fromkeys(row["case"] for row in rows))
    for row in rows:
        if row["way"] != "set-up + solve":
            continue
        for who, cell in row["cells"].items():
            line = lines.setdefault(who, {"": who} | dict.fromkeys(problems, ""))
            line[row["case"]] = "fails" if "failed" in cell else duration(cell["median"])
            if cell.get("iterations"):
                line[row["case"]] += f" ({cell['iterations']})"
    return markdown(list(lines.values()))


def _ratio(row: Row) -> str:
    return f"{row['ratio']:.3g} [{row['low']:.3g}, {row['high']:.3g}]"


def leaderboard(_: Row) -> str:
    """Every contestant by family: seconds, and their ratio to those of the best classical one."""
    board = json.loads(BOARD.read_text())["board"]
    counts = list(dict.fromkeys(row["right-hand sides"] for row in board))
    parts = []
    for family in dict.fromkeys(row["family"] for row in board):
        rows = [row for row in board if row["family"] == family]
        lines: dict[str, dict[str, str]] = {}
        for row in sorted(rows, key=lambda r: (r["right-hand sides"], r["ratio"])):
            who = row["contestant"]
            name = f"*{who}*" if row["learned"] else who
            blank = {"": name, "set-up": "", "iterations": "", "MB": "", "training": ""}
            line = lines.setdefault(
                who, blank | {f"{n} rhs": "" for n in counts} | {f"paid, {n} rhs": "" for n in counts}
            )
            count = row["right-hand sides"]
            if count == counts[0] and row["iterations"] != "":
                line |= {"set-up": duration(row["set-up s"]), "iterations": f"{row['iterations']:.0f}"}
                line["MB"] = "" if row["MB"] == "" else f"{row['MB']:.0f}"
            line[f"{count} rhs"] = f"{duration(row['total s'])}, {_ratio(row)}"
            if row["learned"]:
                line["training"] = duration(row["training s"])
                line[f"paid, {count} rhs"] = f"{row['paid after']}"
        parts += [
            f"### {family[0].upper()}{family[1:]}, {max(r['matrices'] for r in rows)} matrices",
            markdown([*lines.values()]),
        ]
    return "\n\n".join(parts)


def winners(_: Row) -> str:
    """A line for each family: the best classical contestant, and the best learned one."""
    record = json.loads(BOARD.read_text())
    lines = []
    for family in dict.fromkeys(row["family"] for row in record["board"]):
        line = {"": family}
        for count in dict.fromkeys(row["right-hand sides"] for row in record["board"]):
            rows = [r for r in record["board"] if (r["family"], r["right-hand sides"]) == (family, count)]
            best = min((r for r in rows if r["learned"]), key=lambda r: r["ratio"])
            first = record["picked"][family][str(count)]["best"]
            what = "faster" if best["high"] < 1 else "slower" if best["low"] > 1 else "no difference"
            line[f"{count} rhs"] = first
            line[f"best learned, {count} rhs"] = f"{best['contestant']}, {_ratio(best)}: {what}"
        lines.append(line)
    return markdown(lines)


def bandits(_: Row) -> str:
    picked = json.loads(BOARD.read_text())["picked"]
    lines = []
    for family, counts in picked.items():
        for count, of in counts.items():
            if count != "settings":
                numbers = {k: f"{v:.2f}" for k, v in of["bandit"].items() if k != "solves"}
                lines.append({"": family, "rhs": count, "solves": str(of["bandit"]["solves"])} | numbers)
    return markdown(lines)
