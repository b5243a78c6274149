"""A factor predicted row by row, against every tuned classical preconditioner and direct solvers, set-up
included.

Trains networks for diffusion with full tensors that turn by regions, in two and three dimensions, two at a
time, and races them on held-out matrices: cg to 1e-8 from new values, one thread.
Seconds are those that processors worked. --weights races with the committed weights; --resume goes on after
an interruption, and --report writes the files of what was measured. Courses that are not measured again keep
their committed results.
"""

import ast
import csv
import json
import math
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import ROOT, Experiment, new_panels, table

sys.path.insert(0, str(Path(__file__).resolve().parent))
from heat import Course, Options, race
from racing import geometric, show_names, show_ratio
from training import STAGES, Stage, train_file

from benchmarks.contestants import CONTESTANTS, RTOL
from benchmarks.ledger import Ledger, supervised

COURSES = (Course(2, 256), Course(2, 512), Course(3, 40), Course(3, 64))
TRANSFER = (Course(2, 256, "smooth"), Course(2, 256, "constant"))
ALL = "learned, all seeds"


def standing(course: Course, rows: dict, learned: list[str], seconds: dict[str, float]) -> list[dict]:
    """A row for each contestant: its time over that of the classical one that is the best on all matrices."""
    solves = [rows[f"1|{i}"] for i in range(sum(key.startswith("1|") for key in rows))]
    times = {who: [row[who].get("cpu", math.inf) for row in solves] for who in solves[0]}
    classical = [who for who in times if who not in learned]
    mean = {who: statistics.fmean(map(math.log, t)) for who, t in times.items() if math.inf not in t}
    best = min((who for who in classical if who in mean), key=lambda who: mean[who])
    nets = [who for who in learned if who in mean]
    if len(nets) > 1:  # of a matrix: the geometric mean over the seeds
        times[ALL] = [
            math.exp(statistics.fmean(map(math.log, t))) for t in zip(*(times[n] for n in nets), strict=True)
        ]
    counts = sorted({int(key.split("|")[0]) for key in rows if key[0].isdigit()} - {1})
    board = []
    for who, of in times.items():
        done = [i for i, t in enumerate(of) if t < math.inf]
        each = [solves[i][who] for i in done] if who != ALL else []
        saved = statistics.fmean(times[best][i] - of[i] for i in done) if done else 0.0
        cost = seconds.get(who, 0.0)
        board.append(
            {
                "course": course.name,
                "unknowns": rows["end"]["unknowns"],
                "contestant": who,
                "learned": who in learned or who == ALL,
                "matrices": len(of),
                "failed": len(of) - len(done),
                "wins": sum(of[i] < min(times[c][i] for c in classical if c != who) for i in done),
                "iterations": statistics.median(r["iterations"] for r in each) if each else "",
                "set-up s": statistics.median(r["cpu set-up"] for r in each) if each else "",
                "total s": statistics.median(of[i] for i in done) if done else "",
                **(
                    geometric([of[i] / times[best][i] for i in done])
                    if done
                    else dict.fromkeys(("ratio", "low", "high"), "")
                ),
                **{f"{k} rhs s": median_of(rows, who, k) for k in counts},
                "MB": rows.get(f"memory|{who}", {}).get("MB") or "",
                "training s": cost or "",
                "paid after": "" if not cost else math.ceil(cost / saved) if saved > 0 else "never",
            }
        )
    return sorted(board, key=lambda row: row["ratio"] if row["ratio"] != "" else math.inf)


def name_of(seed: int) -> str:
    return f"learned, seed {seed}"


def median_of(rows: dict, who: str, columns: int) -> float | str:
    """Seconds for so many right-hand sides."""
    each = [row[who] for key, row in rows.items() if key.startswith(f"{columns}|") and who in row]
    return statistics.median(row["cpu"] for row in each if "cpu" in row) if each else ""


def curves(path: Path) -> dict[tuple[int, int], list[dict]]:
    """The rows of committed trainings, by dimensions and seed."""
    found: dict[tuple[int, int], list[dict]] = {}
    for row in csv.DictReader(path.open()):
        found.setdefault((int(row["dimensions"]), int(row["seed"])), []).append(row)
    return found


def figure(boards: dict[str, list[dict]]):
    figure, panels = new_panels("Seconds over those of the best classical contestant", len(boards))
    figure.set_size_inches(2.5 + 3.2 * len(boards), 5.5)
    shown = {name: [row for row in board if row["ratio"] != ""] for name, board in boards.items()}
    order = list(dict.fromkeys(row["contestant"] for rows in shown.values() for row in rows))[::-1]
    for axes, (name, rows) in zip(panels, shown.items(), strict=True):
        for row in rows:
            show_ratio(axes, row, order.index(row["contestant"]))
        show_names(axes, name, order)
    figure.supxlabel("geometric means and 95 % intervals over held-out matrices; orange: learned", fontsize=9)
    return figure


def main() -> None:
    experiment = Experiment(
        __file__,
        __doc__,
        ("--seeds", {"type": int, "default": 3, "help": "trainings in each dimension; default 3"}),
        ("--held_out", {"type": int, "default": 48, "help": "matrices of a race; default 48"}),
        ("--courses", {"help": "some of them, by commas: '2D regions 256'"}),
        ("--weights", {"action": "store_true", "help": "race with the committed weights"}),
        ("--resume", {"action": "store_true", "help": "keep what an interrupted run has measured"}),
        ("--report", {"action": "store_true", "help": "no measurements, only the files"}),
    )
    args = experiment.args
    options, courses, seeds, stages = (
        Options(held_out=args.held_out),
        (*COURSES, *TRANSFER),
        args.seeds,
        STAGES,
    )
    folder = ROOT / "runs/learned_factor"
    if experiment.quick:
        options = Options(1, 2, 1, 1, 4, seconds=0.0, hopeless=1e9)
        courses, seeds, folder = (Course(2, 16),), 1, Path(tempfile.mkdtemp())
        stages = {2: (Stage(8, 4, 4, 2),)}
    if args.courses:
        wanted, known = args.courses.split(","), {course.name: course for course in courses}
        if unknown := [name for name in wanted if name not in known]:
            raise SystemExit(f"--courses: no {unknown}; there are {[*known]}")
        courses = tuple(known[name] for name in wanted)
    trained, committed = Ledger(folder / "training.jsonl"), Path(__file__).resolve().parent / "results"
    jobs = [(d, seed) for seed in range(seeds) for d in sorted({c.dimensions for c in courses})]
    files = {(d, k): folder / f"factor-{d}d-{k}.safetensors" for d, k in jobs}
    run = (lambda f, *job: f(*job)) if experiment.quick else supervised
    if args.weights:
        files = {(d, k): committed / file.name for (d, k), file in files.items()}
        if missing := [file.name for file in files.values() if not file.exists()]:
            raise SystemExit(f"--weights: no {missing}; choose --courses in 2D, or train")
    elif not args.report:
        if not args.resume:
            trained.forget(lambda key: key in map(str, jobs))

        def training(job: tuple[int, int]) -> None:
            if str(job) not in trained.rows:
                rows = run(train_file, files[job], *job, stages[job[0]])
                trained(str(job), lambda: {"rows": rows})

        with ThreadPoolExecutor(1 if experiment.quick else 2) as pool:
            list(pool.map(training, jobs))
    for course in [] if args.report else courses:
        path = folder / f"{course.name}.jsonl"
        if not args.resume:
            path.unlink(missing_ok=True)
        names = {name_of(k): files[d, k] for d, k in jobs if d == course.dimensions}
        run(race, path, course, names, options)
    boards, found, losses = {}, {}, {} if experiment.quick else curves(committed / "losses.csv")
    earlier = {} if experiment.quick else json.loads((committed / "races.json").read_text())
    for job, training_of in trained.rows.items():
        d, k = ast.literal_eval(job)
        losses[d, k] = [{"dimensions": d, "seed": k, **row} for row in training_of["rows"]]
    for course in courses if experiment.quick else (*COURSES, *TRANSFER):
        path = folder / f"{course.name}.jsonl"
        rows = Ledger(path).rows
        if "end" not in rows:
            for kept, key in ((boards, "boards"), (found, "found")):
                kept |= {name: of for name, of in earlier.get(key, {}).items() if name == course.name}
            continue
        seconds = {
            name_of(k): float(of[-1]["seconds"]) for (d, k), of in losses.items() if d == course.dimensions
        }
        learned = [who for who in rows["1|0"] if who not in CONTESTANTS]
        boards[course.name] = standing(course, rows, learned, seconds)
        found[course.name] = {
            "measured": rows["end"]["measured"],
            "settings": {
                who: CONTESTANTS[who].settings[row["setting"]]
                for key, row in rows.items()
                if key.startswith("tune|") and "failed" not in row and (who := key[5:]) in CONTESTANTS
            },
            "failures": {
                key: row["failed"] for key, row in rows.items() if key.startswith("tune|") and "failed" in row
            },
        }
    shown = (
        "course",
        "contestant",
        "iterations",
        "total s",
        "ratio",
        "low",
        "high",
        "wins",
        "failed",
        "paid after",
    )
    every = [row for board in boards.values() for row in board]
    print(table([{key: row[key] for key in shown} for row in every]))
    for file in files.values():
        if file.exists() and not args.weights:
            experiment.keep(file, file.name)
    experiment.csv("races.csv", every)
    if losses:
        experiment.csv("losses.csv", [row for job in sorted(losses) for row in losses[job]])
    experiment.figure("races.png", figure(boards))
    experiment.json(
        "races.json",
        options=asdict(options),
        rtol=RTOL,
        boards=boards,
        found=found,
        stages={d: [asdict(stage) for stage in of] for d, of in stages.items()},
        absent={who: c.absent for who, c in CONTESTANTS.items() if c.absent},
    )


if __name__ == "__main__":
    main()
