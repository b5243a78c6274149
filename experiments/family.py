"""What the experiments on families of matrices share: losses in the same seconds, tables, pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common import BLUE, GRAY, ORANGE, PURPLE, new_figure, trained

LOSSES = ("product", "frobenius", "iterations")
COLORS = dict(zip(LOSSES, (BLUE, ORANGE, PURPLE), strict=True))
PROBE = 30  # steps by which the time of one is known


def in_seconds(recipe: str, folder: Path, seconds: float, options: list[Any], **of_loss: list[Any]) -> dict:
    """Reports and curves of the recipe with each of the losses, each trained for about `seconds`: as many
    steps as a short run says; without those that diverge. `of_loss`: further options of a loss."""
    few = ["--evaluated", 1, "--scales", "[]", "--steps", PROBE, "--validated", 0]
    found = {}
    for loss in LOSSES:
        mine = [*options, *of_loss.get(loss, ()), "--loss", loss]
        try:
            _, probe, _ = trained(recipe, folder / f"probe_{loss}", *mine, *few, "--evaluate_every", PROBE)
        except SystemExit:
            continue
        steps = max(PROBE, round(seconds / probe["seconds_per_step"]))
        every = ["--steps", steps, "--evaluate_every", max(1, steps // 25)]
        try:
            history, report, _ = trained(recipe, folder / loss, *mine, *every)
        except SystemExit:  # the training has diverged, and said so
            continue
        found[loss] = {"history": history, "report": report}
    return found


def rows_of(report: dict, rtol: Any, n: int | None = None) -> dict[str, dict]:
    """Rows of the final evaluation at one tolerance and size, by preconditioner."""
    n = report["problem"]["n"] if n is None else n
    every = [row for row in report["evaluation"] if row["rtol"] == rtol and row["n"] == n]
    return {row["preconditioner"]: row for row in every}


def compared(found: dict, rtol: Any) -> list[dict]:
    """A row for each loss: at the end of its training, and on held-out matrices in the seconds of the
    shortest."""
    common = min(run["report"]["seconds"] for run in found.values())
    return [
        {
            "loss": loss,
            "steps": run["report"]["steps"],
            "seconds": run["report"]["seconds"],
            "iterations": rows_of(run["report"], rtol)["learned"]["iterations"],
            "deviation": rows_of(run["report"], rtol)["learned"]["iterations_std"],
            "IC(0)": rows_of(run["report"], rtol)["IC(0)"]["iterations"],
            "same seconds": common,
            "held-out": _held_out(run["history"], common),
        }
        for loss, run in found.items()
    ]


def _held_out(history: dict, seconds: float) -> float | None:
    """Iterations of the last evaluation within these seconds; None if a solve did not converge there."""
    columns = (history[name] for name in ("seconds", "held_out_loss", "iterations"))
    known = [(at, count) for at, loss, count in zip(*columns, strict=True) if loss is not None]
    return next((count for at, count in reversed(known) if at <= seconds), None)


def times(report: dict, rtol: float) -> list[dict]:
    """Set-up and solve in milliseconds, and how many right-hand sides of a matrix make the network faster
    than IC(0); "never" if its solve is not faster."""
    found = []
    for n in dict.fromkeys(row["n"] for row in report["evaluation"]):
        rows = rows_of(report, rtol, n)
        learned, other = rows["learned"], rows["IC(0)"]
        more = learned["setup_seconds"] - other["setup_seconds"]
        saved = other["seconds"] - learned["seconds"] if other["converged"] == other["systems"] else 0.0
        for name, row in rows.items():
            if row["converged"] < row["systems"]:
                continue
            setup = row["setup_seconds"] or 0.0
            found.append(
                {
                    "n": n,
                    "preconditioner": name,
                    "iterations": row["iterations"],
                    "set-up ms": 1e3 * setup,
                    "solve ms": 1e3 * row["seconds"],
                    "both ms": 1e3 * (setup + row["seconds"]),
                    "faster than IC(0) from": ""
                    if name != "learned"
                    else ("never" if saved <= 0 else f"{max(1, more / saved):.1f} right-hand sides"),
                }
            )
    return found


def iterations_figure(title: str, found: dict, baseline: float):
    """Iterations on held-out matrices against seconds of training, a curve for each loss."""
    figure, axes = new_figure(title, "seconds of training", "mean iterations on held-out matrices")
    for loss, run in found.items():
        history = run["history"]
        points = [
            (s, v) for s, v in zip(history["seconds"], history["iterations"], strict=True) if v is not None
        ]
        if points:
            axes.plot(*zip(*points, strict=True), color=COLORS[loss], linewidth=2, label=loss)
    if baseline:
        axes.axhline(baseline, color=GRAY, linestyle="--", label="IC(0)")
    axes.legend(frameon=False)
    return figure
