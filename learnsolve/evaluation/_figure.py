"""Residuals over iterations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    systems = max(map(len, evaluation.histories.values()), default=0)
    for name, median, low, high in medians(evaluation.histories):
        # matplotlib omits labels that begin with "_" from the legend.
        label = f" {name}" if name.startswith("_") else name
        axes.semilogy(range(len(median)), median, label=label, **looks[name])
        if low is not median:
            axes.fill_between(range(len(low)), low, high, color=looks[name]["color"], alpha=0.15, linewidth=0)
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


def medians(histories: Mapping[str, list[Tensor]]) -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
    """Of each preconditioner that solved a system: its name, the median of its systems' residuals, the
    smallest and the largest; of a single system the same array three times."""
    for name, runs in histories.items():
        if runs:
            table = _padded(runs)
            median = table.median(0).values
            yield (name, median, *((table.amin(0), table.amax(0)) if len(runs) > 1 else (median, median)))


def _padded(histories: list[Tensor]) -> Tensor:
    """(systems, iterations + 1); a system that has stopped keeps its last residual. A residual of zero, which
    a logarithmic axis cannot show, is replaced by the smallest positive one."""
    longest = max(len(h) for h in histories)
    table = torch.stack([torch.cat((h, h[-1:].expand(longest - len(h)))) for h in histories])
    positive = table[(table > 0) & torch.isfinite(table)]
    return torch.where(table == 0, positive.min(), table) if positive.numel() else table
