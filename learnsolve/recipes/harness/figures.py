"""Figures of metrics.csv over the steps, as data, in the style of `evaluation.figures`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from learnsolve.evaluation.figures import BLACK, BLUE, COLORS, Line, picture
from learnsolve.recipes.harness.checkpoint import History

Series = tuple[Any, Any, tuple[Any, Any] | None]  # x, y and a band
LOSSES = {"loss": "training", "held_out_loss": "held-out"}  # columns and their labels
HELD_OUT_MATRICES = LOSSES | {"held_out_loss": "held-out matrices"}


@dataclass(frozen=True)
class Curves:
    """A figure of columns of metrics.csv (with labels) over the steps: for one run, or for --seeds with mean
    and band. Title and labels may name settings, such as "{sweeps} sweeps"."""

    title: str = "Loss"
    ylabel: str = "loss"
    columns: Mapping[str, str] = field(default_factory=lambda: dict(LOSSES))
    log: bool = False  # for the value axis
    xlabel: str = "optimizer step"
    ylim: tuple[float | None, float | None] | None = None

    def of(self, settings: Any) -> Curves:
        """Insert the values of the settings."""
        labels = {column: label.format_map(vars(settings)) for column, label in self.columns.items()}
        return replace(self, title=self.title.format_map(vars(settings)), columns=labels)

    def picture(self, title: str, series: Callable[[str], Series], levels: Iterable[Line] = ()) -> Any:
        """The figure, or None if no column has an entry; `series`: the steps of a column, its values, and
        their band or None. Levels far above the curves are left out."""
        lines = []
        for (column, label), color in zip(self.columns.items(), COLORS, strict=False):
            steps, values, band = series(column)
            if len(steps):
                style = {"color": color, "linewidth": 1.5 if lines else 2}
                lines.append(Line(label, values, steps, band, style))
        if not lines:
            return None
        if self.log:
            highest = max(max(line.y) for line in lines)
            levels = [level for level in levels if 0 < level.y < 30 * highest]
        log, options = "y" * self.log, {"ylim": self.ylim} if self.ylim else {}
        return picture(title, self.xlabel, self.ylabel, [*levels, *lines], log=log, **options)


def levels(records: Mapping[str, Mapping[str, Any]], key: str, but: Collection[str] = ()) -> list[Line]:
    """The value on held-out data of each record that has one, for `Curves`."""
    named = {name: record[key] for name, record in records.items() if name not in but and key in record}
    return [Line(f"{name}, held-out", value) for name, value in named.items()]


def of_run(history: History, column: str) -> Series:
    """A column of metrics.csv, with a band of two deviations if it has a deviation."""
    pairs = [(k, v) for k, v in zip(history["step"], history.get(column, ()), strict=False) if v is not None]
    steps, values = np.array(pairs).reshape(-1, 2).T
    deviations = np.array([v for v in history.get(f"{column}_std", ()) if v is not None])
    whole = len(values) == len(deviations) > 0
    return steps, values, (values - 2 * deviations, values + 2 * deviations) if whole else None


def each_figure(
    title: str,
    xlabel: str,
    ylabel: str,
    values: Mapping[int, float],
    mean: float,
    deviation: float,
    label: str,
    color: str = BLUE,
) -> Any:
    """A value of each training by its index, and their mean in a band of two deviations."""
    points = {"color": color, "linestyle": "none", "marker": "o", "markersize": 5}
    lines = [Line(label, mean, style={"color": BLACK, "linewidth": 1})]
    lines.append(Line("", list(values.values()), list(values), style=points))
    figure = picture(title, xlabel, ylabel, lines)
    (axes,) = figure.axes
    axes.axhspan(mean - 2 * deviation, mean + 2 * deviation, color=color, alpha=0.15, linewidth=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    return figure
