"""What README and docs quote of the committed run: tables between two comments of a page, and figures.

    <!-- benchmarks: NAME -->          a table of TABLES
    <!-- end of benchmarks -->

`python -m benchmarks write-docs` writes all of them again; a test sees that none has drifted.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import ROOT, standings
from benchmarks.harness import OURS
from benchmarks.report import duration, markdown

RUN = ROOT / "benchmarks/results/bench-amd-epyc.json"
FRONT_DOOR = ROOT / "benchmarks/results/front-door.json"
REGRESSION = ROOT / "experiments/thread_slow_backward_regression/results"
BLOCK = re.compile(r"(<!-- benchmarks: (\S+) -->\n).*?(<!-- end of benchmarks -->)", re.DOTALL)
NOISE = 1.05  # a peer is faster from here on
OUR_OWN = ("checkpointed", "all columns", "loop", "our CSR")  # columns that compare two ways of ours
Row = dict[str, Any]

# Where a peer is faster: the first cause whose rule takes a row.
CAUSES: dict[str, Callable[[Row], bool]] = {
    "gradient of A + B": lambda row: row["way"] == "backward" and " + " in row["case"],
    "set-up of AMG": lambda row: row["way"] == "set-up and one application",
    "AMG on small matrices": lambda row: "M = AMG" in row["case"],
    "gathers and sums of few features": lambda row: row["section"] == "networks",
    "first call on new patterns": lambda row: row["way"] == "first call",
    "direct solves": lambda row: "direct" in row["case"],
    "calls below 0.4 ms": lambda row: row["cells"][OURS]["median"] < 4e-4,
    "rows of very different lengths": lambda row: "power law" in row["case"],
}


def single(run: Row, section: str, dtype: str = "float64") -> list[Row]:
    """The rows of a section on one thread."""
    return [r for r in run["rows"] if (r["section"], r["dtype"], r["threads"]) == (section, dtype, 1)]


def table2(run: Row) -> str:
    """The paper's table 2 at its sizes: float32, one thread."""
    ways = {"forward": "forward", "forward + sum + backward": "forward and backward"}
    lines: dict[str, dict[str, str]] = {}
    for row in single(run, "table2", "float32"):
        way, cells, peer = ways.get(row["way"]), row["cells"], row.get("best peer")
        if way is None or "torch dense" in cells:
            continue
        best = f"{duration(cells[peer]['median'])}, {peer}" if peer else "none"
        line = lines.setdefault(row["case"], {"": row["case"]})
        line |= {way: duration(cells[OURS]["median"]), f"best peer, {way}".removesuffix(", forward"): best}
    return markdown(list(lines.values()))


def lost(run: Row) -> list[Row]:
    """The rows in which a peer takes less time: of each case and way the worst of dtypes and threads."""
    worst: dict[tuple[str, str], Row] = {}
    for row in run["rows"]:
        key = row["case"], row["way"]
        if row.get("best peer") not in OUR_OWN and row.get("ratio", 0) > max(
            NOISE, worst.get(key, {}).get("ratio", 0)
        ):
            worst[key] = row
    return list(worst.values())


def slower(run: Row) -> str:
    return markdown(
        [
            {
                "where a peer is faster": f"{row['case']}, {row['way']}",
                "": f"{row['dtype']}, {row['threads']} thread{'s' * (row['threads'] != 1)}",
                OURS: duration(row["cells"][OURS]["median"]),
                "best peer": f"{duration(row['cells'][row['best peer']]['median'])}, {row['best peer']}",
                "ours / theirs": f"{row['ratio']:.2f}",
            }
            for row in lost(run)
        ]
    )


def causes(run: Row) -> str:
    """The same rows by cause, and of how many."""
    groups: dict[str, list[Row]] = {cause: [] for cause in CAUSES} | {"others": []}
    slow = lost(run)
    for row in slow:
        groups[next((cause for cause, rule in CAUSES.items() if rule(row)), "others")].append(row)
    lines = []
    for cause, rows in groups.items():
        if rows:
            ratios = sorted(row["ratio"] for row in rows)
            reach = f"{ratios[0]:.2g} to {ratios[-1]:.3g}" if len(rows) > 1 else f"{ratios[0]:.2g}"
            lines.append({"where": cause, "cases": str(len(rows)), "our time / theirs": reach})
    return f"{markdown(lines)}\n\n{len(slow)} of {cases(run)} cases, by more than 5%."


def cases(run: Row) -> int:
    return len({(row["case"], row["way"]) for row in run["rows"] if "ratio" in row})


# (section, case) of what a user gains, in whole calls that autograd records; float64, one thread.
GAINS = (
    ("table2", "SpMV, n = 32768"),
    ("operations", "A x, 2D Poisson, n = 1000000, 1 column"),
    ("operations", "A x, irregular, n = 32768, 1 column"),
    ("operations", "A x, 1D Poisson, n = 16384, 32 columns"),
    ("operations", "A x, irregular, n = 32768, 32 columns"),
    ("table2", "SpTRSV, n = 32768"),
    ("operations", "A B, 2D Poisson, n = 90000"),
    ("table2", "Sp + Sp, n = 32768"),
    ("table2", "direct solve, n = 22500"),
    ("operations", "3 x 3 stencil, 1000^2"),
    ("solvers", "cg, an iteration, n = 10000"),
    ("solvers", "minres, an iteration, n = 10000"),
    ("solvers", "bicgstab, an iteration, n = 10000"),
    ("solvers", "gmres, an iteration, n = 10000"),
    ("solvers", "cg, M = none, 2D Poisson 300^2"),
    ("training", "heavyball, n = 32768, 4 vectors"),
    ("training", "pcg, n = 4096, 100 vectors"),
)
FORWARD, BACKWARD = ("forward", "solve", "step"), ("backward", "solve + gradient")


def gains(run: Row) -> str:
    def cell(row: Row | None) -> str:
        times = {} if row is None else {k: c["median"] for k, c in row["cells"].items() if "median" in c}
        peers = [name for name in times if name not in (OURS, *OUR_OWN)]
        if row is None or not peers:
            return ""
        peer = min(peers, key=times.__getitem__)
        return f"{duration(row['cells'][OURS]['median'])} ({peer} {duration(row['cells'][peer]['median'])})"

    lines = []
    for section, case in GAINS:
        rows = [r for r in single(run, section) if r["case"] == case]
        first = next((r for r in rows if r["way"] in FORWARD), None)
        second = next((r for r in rows if r["way"] in BACKWARD), None)
        lines.append(
            {"": case, "forward, solve or step": cell(first), "backward, or solve and gradient": cell(second)}
        )
    return markdown(lines)


# Targets for ratios: (what, at most, row of the numerator, row of the denominator, its column).
Key = tuple[str, str, str]
TARGETS: tuple[tuple[str, float, Key, Key, str], ...] = (
    *(
        (
            f"both gradients of {name} over its forward",
            most,
            (section, case, "backward"),
            (section, case, "forward"),
            OURS,
        )
        for name, most, section, case in (
            ("a product, 1D Poisson", 2.0, "table2", "SpMV, n = 32768"),
            ("a product, 2D Poisson", 2.0, "operations", "A x, 2D Poisson, n = 1000000, 1 column"),
            ("a product, irregular rows", 2.0, "operations", "A x, irregular, n = 32768, 1 column"),
            ("a product with 64 columns", 1.5, "table2", "SpDMM, n = 16384, 64 columns"),
            ("a bidiagonal solve", 2.0, "table2", "SpTRSV, n = 32768"),
            ("a triangular solve, 2D", 2.0, "operations", "L of ILU(0), 2D, n = 1000000"),
            ("a triangular solve, 3D", 2.0, "operations", "L of ILU(0), 3D, n = 1000000"),
            ("ILU(0)", 2.0, "operations", "ilu, 2D, n = 1000000"),
        )
    ),
    *(
        (f"{name} over SciPy's time", most, (section, case, "forward"), (section, case, "forward"), "SciPy")
        for name, most, section, case in (
            ("a product with irregular rows", 0.8, "operations", "A x, irregular, n = 32768, 1 column"),
            ("a product with 64 columns", 0.5, "table2", "SpDMM, n = 16384, 64 columns"),
            ("a sparse product, 2D", 0.25, "operations", "A B, 2D Poisson, n = 90000"),
            ("a triple product P^T A P", 0.25, "operations", "P^T A P, Ruge-Stueben, n = 90000"),
            ("a sum of two patterns", 0.25, "operations", "A + B, two patterns, n = 90000"),
        )
    ),
    (
        "a training step of jacobi at n = 16 over dense torch's",
        1.0,
        ("training", "jacobi, n = 16, 100 vectors", "step"),
        ("training", "jacobi, n = 16, 100 vectors", "step"),
        "torch dense",
    ),
)


def targets(run: Row) -> str:
    rows = {
        (r["section"], r["case"], r["way"]): r["cells"]
        for r in reversed(run["rows"])
        if (r["dtype"], r["threads"]) == ("float64", 1)
    }
    lines = []
    for what, most, ours, other, column in TARGETS:
        ratio = rows[ours][OURS]["median"] / rows[other][column]["median"]
        met = "yes" if ratio <= most else "no"
        lines.append({"target": what, "at most": f"{most:g}", "measured": f"{ratio:.2f}", "met": met})
    return markdown(lines)


def regression(_: Row) -> str:
    """The question of a slow backward, at its size and at a tenth of it."""
    lines = []
    for name in ("full", "tenth"):
        result = json.loads((REGRESSION / f"{name}.json").read_text())
        entries = f"{result['problem']['entries'] / 1e6:.1f} million"
        lines += [
            {
                "entries": entries,
                "": row["by"],
                "forward": duration(row["forward s"]),
                "gradient for x": duration(row["backward s"]),
                "ratio": f"{row['backward / forward']:.2g}",
            }
            for row in result["times"]
        ]
    return markdown(lines)


def cg_loops(run: Row) -> str:
    """An iteration of cg as part of one operation, and op by op."""
    lines = []
    for row in single(run, "loops"):
        if row["case"].startswith("cg"):
            cells = {k: duration(c["median"]) for k, c in row["cells"].items() if "median" in c}
            lines.append({"": f"{row['case']}, {row['way']}"} | cells)
    return markdown(lines)


# Of the matrices of `front_door`, one of each kind.
CHOICES = (
    "Poisson 300x300",
    "Poisson 46x46x46",
    "anisotropic 1e-3 150x150",
    "jumps 1e4 200x200",
    "Stokes 130x130",
    "complex Helmholtz 60x60",
    "convection strong 300x300",
    "Laplacian power law 20000",
    "delaunay_n13",
)


def front_door(_: Row) -> str:
    """What `ls.solve` chooses, against the best single method."""
    lines = []
    run = json.loads(FRONT_DOOR.read_text())
    rows = {row["case"]: row for row in run["rows"] if row["way"] == "to 1e-08"}
    for case in CHOICES:
        row = rows[case]
        best, ours = row["cells"][row["best"]]["median"], row["cells"][OURS]["median"]
        lines.append(
            {
                "to 1e-8": case,
                "rows": f"{row['rows']:,}",
                "`ls.solve`": duration(ours),
                "by": row["method"],
                "best single method": f"{row['best']}, {duration(best)}",
                "ratio": f"{ours / best:.2f}",
            }
        )
    ratios = sorted(row["of best"] for row in run["rows"] if "of best" in row)
    shares = ", ".join(f"{limit:g} in {sum(r <= limit for r in ratios)}" for limit in (1.5, 2.0, 3.0))
    note = f"Of {len(ratios)} solves, the ratio is at most {shares}, and {ratios[-1]:.3g} in all."
    return f"{markdown(lines)}\n\n{note} A best time below 1 ms counts as 1 ms."


def iterations(run: Row) -> str:
    """The time of an iteration over SciPy's."""
    lines: dict[str, dict[str, str]] = {}
    for row in single(run, "solvers"):
        method, _, rest = row["case"].partition(", an iteration, ")
        if rest:
            ratio = row["cells"][OURS]["median"] / row["cells"]["SciPy"]["median"]
            lines.setdefault(method, {"": f"`{method}`"})[rest] = f"{ratio:.2f}"
    return markdown(list(lines.values()))


def batches(run: Row) -> str:
    """A batch in one call of `cg`, against a loop in Python."""
    rows = [row for row in run["rows"] if row["section"] == "batches"]
    return markdown(
        [
            {
                "": f"{row['case']}, {row['way']}",
                "threads": str(row["threads"]),
                "one call": duration(row["cells"][OURS]["median"]),
                "a loop": duration(row["cells"]["loop"]["median"]),
            }
            for row in rows
        ]
    )


def pages() -> list[Path]:
    found = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), RUN.with_name("slower-cases.md")]
    found += [ROOT / f"experiments/{name}/README.md" for name in ("leaderboard", "learned_factor")]
    return [page for page in found if BLOCK.search(page.read_text())]


# Where the numbers of a table come from, unless it is RUN.
SOURCES = {
    "front_door": FRONT_DOOR,
    "regression": REGRESSION / "full.json",
    "contestants": standings.MULTIGRID,
    **dict.fromkeys(("direct", "eigen"), standings.DIRECT),
    **dict.fromkeys(("leaderboard", "winners", "bandits"), standings.BOARD),
    "races": standings.RACES,
}


def measured(table: str, run: Row) -> str:
    """Where and when the numbers of a table were measured."""
    record = json.loads(SOURCES[table].read_text()) if table in SOURCES else run
    about = record.get("machine") or record["environment"]
    return "*{cpu}, torch {torch}, {date}, commit {commit}.*".format(**about)


def rewritten(text: str, run: Row) -> str:
    def block(found: re.Match) -> str:
        name = found[2]
        return f"{found[1]}{TABLES[name](run)}\n\n{measured(name, run)}\n{found[3]}"

    return BLOCK.sub(block, text)


# --- whole steps: forward and backward pass together ---


def times_of(*cells: Row) -> dict[str, float]:
    """The seconds of each library over these cells, of those that are in all of them."""
    names = [name for name in cells[0] if all("median" in c.get(name, {}) for c in cells)]
    return {name: sum(c[name]["median"] for c in cells) for name in names if name not in OUR_OWN}


def passes(run: Row, *ways: str) -> dict[tuple, dict[str, float]]:
    """By section, case, dtype and threads: the seconds of these passes together, where there is a peer."""
    found: dict[tuple, list[Row]] = {}
    for row in run["rows"]:
        if row["way"] in ways:
            key = tuple(row[name] for name in ("section", "case", "dtype", "threads"))
            found.setdefault(key, []).append(row["cells"])
    known = {key: times_of(*cells) for key, cells in found.items() if len(cells) == len(ways)}
    return {key: times for key, times in known.items() if OURS in times and len(times) > 1}


def fastest_peer(times: dict[str, float]) -> str:
    return min((name for name in times if name != OURS), key=times.__getitem__)


def leads(run: Row, *ways: str) -> list[float]:
    """The seconds of the fastest peer over ours, the smallest first."""
    return sorted(times[fastest_peer(times)] / times[OURS] for times in passes(run, *ways).values())


def whole_steps(run: Row) -> str:
    """How many of them are the fastest, and by how much."""
    both, alone = leads(run, "forward", "backward"), leads(run, "forward")
    return (
        f"Forward plus backward pass beat every peer in {sum(t > 1 for t in both)} of {len(both)} "
        "combinations of operation, matrix, dtype and threads, by "
        f"{statistics.median(both):.1f} times in the median and {both[0]:.2f} times at least. A forward pass "
        f"alone is {statistics.median(alone):.1f} times faster in the median, and slower in "
        f"{sum(t < 1 for t in alone)} of {len(alone)}. Across all {cases(run)} cases, which include setups "
        f"and whole solves, a peer wins {len(lost(run))} ([where](docs/performance.md#slower-cases))."
    )


# Of an operation: its name in the figure, and its case; float32, one thread.
BARS = {
    "sparse · vector": "SpMV, n = 32768",
    "sparse · sparse": "SpSpMM, n = 16384",
    "triangular solve": "SpTRSV, n = 32768",
    "direct solve": "direct solve, n = 22500",
}


def bars(run: Row) -> Any:
    """The fastest peer's seconds for both passes, over ours."""
    from learnsolve.evaluation.figures import BLUE, GRAY, new_figure

    rows = {"rows": single(run, "table2", "float32")}
    known = {case: times for (_, case, *_), times in passes(rows, "forward", "backward").items()}
    figure, axes = new_figure("", "seconds of a forward and a backward pass, learnsolve = 1", "")
    figure.set_size_inches(7.2, 2.3)
    for y, case in enumerate(reversed(BARS.values())):
        times = known[case]
        peer = fastest_peer(times)
        ratio = times[peer] / times[OURS]
        axes.barh([y + 0.2, y - 0.2], [1, ratio], height=0.36, color=[BLUE, GRAY])
        axes.text(ratio, y - 0.2, f" {peer}: {ratio:.1f}", va="center", fontsize=8)
    axes.text(1, len(BARS) - 0.8, " learnsolve", va="center", fontsize=8, color=BLUE)
    axes.set_yticks(range(len(BARS)), [*BARS][::-1])
    axes.set_xlim(0, 1.2 * axes.get_xlim()[1])
    return figure


TABLES = {
    f.__name__: f
    for f in (
        table2,
        whole_steps,
        causes,
        slower,
        gains,
        targets,
        regression,
        cg_loops,
        front_door,
        iterations,
        batches,
        standings.contestants,
        standings.direct,
        standings.eigen,
        standings.leaderboard,
        standings.winners,
        standings.bandits,
        standings.races,
    )
}


def write() -> list[Path]:
    """All pages and figures."""
    from benchmarks import figure11
    from learnsolve.evaluation.figures import png

    run = json.loads(RUN.read_text())
    written = []
    for page in pages():
        text = page.read_text()
        if (new := rewritten(text, run)) != text:
            page.write_text(new)
            written.append(page)
    pictures = {
        ROOT / "docs/images/speed.png": bars(run),
        RUN.with_name(f"{RUN.stem}-figure11.png"): figure11.draw(figure11.rows(run)),
    }
    for path, figure in pictures.items():
        path.write_bytes(png(figure))
    return [*written, *pictures]
