"""Residuals over iterations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from learnsolve.evaluation._result import Evaluation

# Okabe and Ito, "Color Universal Design" (2008), without yellow, which is hard to see on white.
COLORS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
STYLES = ("-", "--", ":")


def figure(evaluation: Evaluation) -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "Evaluation.plot needs matplotlib: pip install 'learnsolve[train]'", name="matplotlib"
        ) from error
    made = Figure(figsize=(7.5, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(made)
    axes = made.add_subplot()
    looks = {}
    for i, name in enumerate(evaluation.histories):
        color, style = COLORS[i % len(COLORS)], STYLES[i // len(COLORS) % len(STYLES)]
        # A line below another remains visible beside it.
        width = 1.4 + 1.6 * (1 - (i + 1) / len(evaluation.histories))
        looks[name] = {"color": color, "linestyle": style, "linewidth": width}
    systems = curves(axes, evaluation.histories, looks)
    for rtol in sorted({row.rtol for row in evaluation.rows}):
        axes.axhline(rtol, color="#999999", linewidth=0.6, zorder=0)
    what = f", median and range of {systems} systems" if systems > 1 else ""
    axes.set_title(f"{evaluation.solver}{what}")
    axes.set_xlabel("iterations")
    axes.set_ylabel("relative residual norm, ||b - A x|| / ||b||")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if systems:
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return made


def curves(axes: Any, histories: Mapping[str, list[Tensor]], looks: Mapping[str, Mapping[str, Any]]) -> int:
    """The median of each preconditioner's systems in a band from the smallest to the largest, drawn as
    `looks` says. Returns the largest number of systems."""
    for name, runs in histories.items():
        if not runs:
            continue
        table = _padded(runs)
        steps = range(table.shape[1])
        # matplotlib omits labels that begin with "_" from the legend.
        label = f" {name}" if name.startswith("_") else name
        axes.semilogy(steps, table.median(0).values, label=label, **looks[name])
        if len(runs) > 1:
            low, high, color = table.amin(0), table.amax(0), looks[name]["color"]
            axes.fill_between(steps, low, high, color=color, alpha=0.15, linewidth=0)
    return max(map(len, histories.values()), default=0)


def _padded(histories: list[Tensor]) -> Tensor:
    """(systems, iterations + 1); a system that has stopped keeps its last residual. A residual of zero, which
    a logarithmic axis cannot show, is replaced by the smallest positive one."""
    longest = max(len(h) for h in histories)
    table = torch.stack([torch.cat((h, h[-1:].expand(longest - len(h)))) for h in histories])
    positive = table[(table > 0) & torch.isfinite(table)]
    return torch.where(table == 0, positive.min(), table) if positive.numel() else table
