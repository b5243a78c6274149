"""What pages quote of `benchmarks multigrid`, `direct`, `eigen`, experiments/leaderboard and learned_factor,
from committed results."""

from __future__ import annotations

import json
from typing import Any

from benchmarks import ROOT
from benchmarks.report import duration, markdown

MULTIGRID = ROOT / "benchmarks/results/bench-multigrid.json"
DIRECT = MULTIGRID.with_name("bench-direct.json")
BOARD = ROOT / "experiments/leaderboard/results/leaderboard.json"
RACES = ROOT / "experiments/learned_factor/results/races.json"
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


def direct(_: Row) -> str:
    """First / again, one thread."""
    lines: dict[str, dict[str, str]] = {}
    for row in json.loads(DIRECT.read_text())["rows"]:
        if (row["section"], row["threads"]) == ("direct", 1):
            for who, cell in row["cells"].items():
                line, time = lines.setdefault(who, {"": who}), duration(cell["median"])
                line[row["case"]] = f"{line[row['case']]} / {time}" if row["case"] in line else time
    return markdown(list(lines.values()))


def eigen(_: Row) -> str:
    """Of each way all libraries."""
    rows = [row for row in json.loads(DIRECT.read_text())["rows"] if row["section"] == "eigen"]
    names = dict.fromkeys(who for row in rows for who in row["cells"])
    return markdown(
        [
            {"": f"{row['case']}, {row['way']}"}
            | {who: duration(row["cells"][who]["median"]) if who in row["cells"] else "" for who in names}
            for row in rows
        ]
    )


def _ratio(row: Row) -> str:
    if row["low"] == "":
        return f"{row['ratio']:.3g}"
    ends = "[{:.3g}, {:.3g}]" if row["matrices"] >= 6 else "({:.3g} to {:.3g})"
    return f"{row['ratio']:.3g} {ends.format(row['low'], row['high'])}"


def leaderboard(_: Row) -> str:
    """Every contestant by family: seconds, and their ratio to those of the best classical one."""
    record = json.loads(BOARD.read_text())
    parts = []
    for family, count in record["families"].items():
        rows = [row for row in record["board"] if row["family"] == family]
        lines: dict[str, dict[str, str]] = {}
        for row in sorted(rows, key=lambda r: (r["right-hand sides"], r["ratio"])):
            line = lines.setdefault(row["contestant"], {"": _name(row)})
            if row["right-hand sides"] == 1:
                some = row["iterations"] != ""
                line["setup"] = duration(row["set-up s"]) if some else ""
                line["iterations"] = f"{row['iterations']:.0f}" if some else ""
                line["MB"] = f"{row['MB']:.0f}" if row["MB"] != "" else ""
                line["training"] = duration(row["training s"]) if row["learned"] else ""
            way = f"{row['right-hand sides']} rhs"
            line[way] = f"{duration(row['total s'])}, {_ratio(row)}"
            line[f"paid, {way}"] = str(row["paid after"])
        size = f"{count['matrices']} matrices, {count['unknowns']:,} unknowns"
        parts += [f"### {family[0].upper()}{family[1:]}: {size}", markdown([*lines.values()])]
        parts += _failures(record["failures"][family], count["matrices"])
        if about := count.get("measured"):
            parts.append("{cpu}, {date}, commit {commit}.".format(**about))
    return "\n\n".join(parts)


def _failures(reasons: dict[str, str], matrices: int) -> list[str]:
    """A line for each contestant that failed, in training or on some of the matrices."""
    found: dict[str, list[str]] = {}
    for key, why in reasons.items():
        phase, who = key.split("|")[:2]
        found.setdefault(f"{who} fails" + (" on {} of {} matrices" if phase == "solve" else ""), []).append(
            why
        )
    return [f"{who.format(len(whys), matrices)}: {whys[0]}." for who, whys in found.items()]


def _name(row: Row) -> str:
    name = f"*{row['contestant']}*" if row["learned"] else row["contestant"]
    return name if row["matrices"] else f"{name} (training matrices)"


def winners(_: Row) -> str:
    """A line for each family: the best classical contestant, and the best learned one; and what follows."""
    record = json.loads(BOARD.read_text())
    lines, found = [], []
    for family in record["families"]:
        line = {"": family}
        for count in dict.fromkeys(row["right-hand sides"] for row in record["board"]):
            rows = [r for r in record["board"] if (r["family"], r["right-hand sides"]) == (family, count)]
            best = min((r for r in rows if r["learned"]), key=lambda r: r["ratio"])
            what = (
                f"{best['matrices']} matrices, too few"
                if best["matrices"] < 6
                else "slower"
                if best["low"] > 1
                else "undecided"
                if best["high"] >= 1
                else "faster"
            )
            found.append((best["ratio"], best["contestant"], family, count, what))
            line[f"{count} rhs"] = record["picked"][family][str(count)]["best"]
            line[f"best learned, {count} rhs"] = f"{best['contestant']}, {_ratio(best)}: {what}"
        lines.append(line)
    wins = sum(what == "faster" for *_, what in found)
    cases = f"A learned method is faster than the best other in {wins or 'none'} of {len(found)} cases"
    ratio, who, family, count, _ = min(found)
    sides = "one right-hand side" if count == 1 else f"{count} right-hand sides"
    ahead = f"The {'furthest ahead' if ratio < 1 else 'closest'} is {who} with {ratio:.2f} of its seconds"
    return f"{markdown(lines)}\n\n{cases}, beyond the 95% interval. {ahead} ({family}, {sides})."


def bandits(_: Row) -> str:
    picked = json.loads(BOARD.read_text())["picked"]
    lines = []
    for family, counts in picked.items():
        for count, of in counts.items():
            if count != "settings":
                numbers = {k: f"{v:.2f}" for k, v in of["bandit"].items() if k != "solves"}
                lines.append({"": family, "rhs": count, "solves": str(of["bandit"]["solves"])} | numbers)
    return markdown(lines)


def races(_: Row) -> str:
    """Every contestant on each course: processor seconds, over those of the best classical one."""
    parts, record = [], json.loads(RACES.read_text())
    for name, board in record["boards"].items():
        lines = []
        for row in board:
            some = row["iterations"] != ""
            wins = f"{row['wins']} of {row['matrices']}"
            line = {"": f"*{row['contestant']}*" if row["learned"] else row["contestant"]}
            line |= {"iterations": f"{row['iterations']:.0f}" if some else ""}
            line |= {"setup": duration(row["set-up s"]) if some else ""}
            line |= {"setup and solve": duration(row["total s"]) if row["total s"] != "" else "fails"}
            line |= {"ratio": _ratio(row) if row["ratio"] != "" else "", "fastest on": wins}
            line |= {
                key[:-2]: duration(row[key]) if row[key] != "" else "" for key in row if key.endswith("rhs s")
            }
            line |= {"MB": f"{row['MB']:.0f}" if row["MB"] != "" else "", "failed": str(row["failed"] or "")}
            lines.append(line | {"paid after": str(row["paid after"])})
        title = f"### {name}: {board[0]['matrices']} held-out matrices, {board[0]['unknowns']:,} unknowns"
        parts += [title, markdown(lines)]
        if about := record["found"][name].get("measured"):
            parts.append("{cpu}, {date}, commit {commit}.".format(**about))
    return "\n\n".join(parts)
