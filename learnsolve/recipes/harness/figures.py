"""Pictures as data: `picture` draws lines, levels and bands in one style, with the legend below the axes,
where it hides nothing; `LOOKS` gives each name its color in all pictures, one that color-blind readers can
distinguish."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from learnsolve.evaluation._figure import medians
from learnsolve.recipes.harness.checkpoint import History
from learnsolve.recipes.harness.settings import need

# Okabe and Ito, "Color Universal Design" (2008).
BLACK, BLUE, ORANGE, PURPLE, GRAY, GREEN = "#000000", "#0072B2", "#D55E00", "#CC79A7", "#777777", "#009E73"
COLORS = BLUE, PURPLE, ORANGE, GREEN, BLACK  # of curves that are drawn together
Series = tuple[Any, Any, tuple[Any, Any] | None]  # x, y and a band
WIDTH = 840  # pixels
LOSSES = {"loss": "training", "held_out_loss": "held-out"}  # columns and their labels
HELD_OUT_MATRICES = LOSSES | {"held_out_loss": "held-out matrices"}
LOOKS: dict[tuple[str, ...], dict[str, Any]] = {  # by the beginning of a name
    ("best constant",): {"color": GREEN, "linestyle": (0, (5, 1))},
    ("learned", "network"): {"color": BLUE, "linewidth": 2.2},
    ("weight 1", "start", "one pair"): {"color": GRAY, "linestyle": "--"},
    ("textbook", "asymptotic"): {"color": ORANGE, "linestyle": "-."},
    ("closed form", "best"): {"color": BLACK, "linestyle": ":", "linewidth": 2.0},
    ("none",): {"color": BLACK, "linestyle": "--"},
    ("Jacobi",): {"color": GRAY, "linestyle": ":", "linewidth": 2.0},
    ("SSOR", "inner GMRES"): {"color": GRAY, "linestyle": "-."},
    ("IC(0)", "ILU(0)"): {"color": ORANGE},
    ("MIC(0)",): {"color": ORANGE, "linestyle": "--"},
    ("ICT",): {"color": ORANGE, "linestyle": ":"},
    ("AMG",): {"color": PURPLE},
    ("RS-AMG",): {"color": PURPLE, "linestyle": "--"},
}


def look(name: str) -> dict[str, Any]:
    return next(kind for beginnings, kind in LOOKS.items() if name.startswith(beginnings))


@dataclass(frozen=True)
class Line:
    """A curve; without `x` a level, without `y` a vertical line. `band`: its lower and upper end.

    A label "" is not in the legend. `style` is matplotlib's; None is that of `LOOKS` for the label.
    """

    label: str
    y: Any = None
    x: Any = None
    band: tuple[Any, Any] | None = None
    style: Mapping[str, Any] | None = None

    def draw(self, axes: Any) -> None:
        style = {"linewidth": 1.5, **(look(self.label) if self.style is None else self.style)}
        label = self.label or None
        if self.x is None:
            axes.axhline(self.y, label=label, **style)
        elif self.y is None:
            axes.axvline(self.x, label=label, **style)
        else:
            axes.plot(self.x, self.y, label=label, **style)
        if self.band is not None:
            axes.fill_between(self.x, *self.band, color=style["color"], alpha=0.2, linewidth=0)


@dataclass(frozen=True)
class Curves:
    """A picture of columns of metrics.csv (their labels) over the steps, of one run, and of --seeds with mean
    and band. Title and labels may name settings, as "{sweeps} sweeps"."""

    title: str = "Loss"
    ylabel: str = "loss"
    columns: Mapping[str, str] = field(default_factory=lambda: dict(LOSSES))
    log: bool = False  # the axis of the values
    xlabel: str = "optimizer step"
    ylim: tuple[float | None, float | None] | None = None

    def of(self, settings: Any) -> Curves:
        """With the settings' values."""
        labels = {column: label.format_map(vars(settings)) for column, label in self.columns.items()}
        return replace(self, title=self.title.format_map(vars(settings)), columns=labels)

    def picture(self, title: str, series: Callable[[str], Series], levels: Iterable[Line] = ()) -> Any:
        """The figure, or None if no column has an entry; `series`: the steps of a column, its values, and
        their band or None. A level far above the curves, which would only squeeze them, is left out."""
        lines = []
        for (column, label), color in zip(self.columns.items(), COLORS, strict=False):
            steps, values, band = series(column)
            if len(steps):
                lines.append(
                    Line(label, values, steps, band, {"color": color, "linewidth": 2 - 0.5 * bool(lines)})
                )
        if self.log and lines:
            highest = max(max(line.y) for line in lines)
            levels = [level for level in levels if 0 < level.y < 30 * highest]
        log, options = "y" * self.log, {"ylim": self.ylim} if self.ylim else {}
        return (
            picture(title, self.xlabel, self.ylabel, [*levels, *lines], log=log, **options) if lines else None
        )


def new_figure(title: str, xlabel: str, ylabel: str, size: tuple[float, float] = (7, 4.5)) -> tuple[Any, Any]:
    """A figure with one pair of axes."""
    Figure = need("matplotlib.figure").Figure
    figure = Figure(figsize=size, dpi=WIDTH / size[0], layout="constrained")
    axes = figure.add_subplot()
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def new_panels(title: str, count: int) -> tuple[Any, list[Any]]:
    """A figure with `count` pairs of axes in a row, for images."""
    figure = need("matplotlib.figure").Figure(figsize=(1.5 + 4.5 * count, 4.5), dpi=120, layout="compressed")
    figure.suptitle(title)
    return figure, list(figure.subplots(1, count, squeeze=False, sharex=True, sharey=True)[0])


def picture(
    title: str, xlabel: str, ylabel: str, lines: Iterable[Line] = (), *, log: str = "", **options: Any
) -> Any:
    """A figure of the lines; `log` names its logarithmic axes ("y", "xy"), `options` are those of
    `axes.set`."""
    figure, axes = new_figure(title, xlabel, ylabel, size=(5.6, 3.6))
    axes.title.set_size("medium" if max(map(len, title.split("\n"))) < 56 else "small")
    for line in lines:
        line.draw(axes)
    axes.set(**{f"{axis}scale": "log" for axis in log}, **options)
    axes.margins(x=0.01)
    ticker, (bottom, top) = need("matplotlib.ticker"), axes.get_ylim()
    if log and bottom > 0 and top < 10 * bottom:  # numbers in place of powers
        axes.yaxis.set_major_locator(ticker.MaxNLocator(6))
        axes.yaxis.set_major_formatter(ticker.ScalarFormatter())
        axes.yaxis.set_minor_locator(ticker.NullLocator())
    if entries := axes.get_legend_handles_labels()[1]:
        longest = max(len(re.sub(r"\\\w+|[$\\]", "", entry)) for entry in entries)  # without TeX
        columns = max(1, min(len(entries), 92 // (longest + 8)))
        figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize="small")
    return figure


def levels(records: Mapping[str, Mapping[str, Any]], key: str, but: Collection[str] = ()) -> list[Line]:
    """The value on held-out data of each record that has one, for `Curves`."""
    named = {name: record[key] for name, record in records.items() if name not in but and key in record}
    return [Line(f"{name}, held-out", value) for name, value in named.items()]


def of_run(history: History, column: str) -> Series:
    """A column of metrics.csv; where it has a deviation, in a band of two."""
    pairs = [(k, v) for k, v in zip(history["step"], history.get(column, ()), strict=False) if v is not None]
    steps, values = np.array(pairs).reshape(-1, 2).T
    deviations = np.array([v for v in history.get(f"{column}_std", ()) if v is not None])
    whole = len(values) == len(deviations) > 0
    return steps, values, (values - 2 * deviations, values + 2 * deviations) if whole else None


def residuals_figure(
    title: str,
    histories: Mapping[str, list[Any]],
    tolerances: Iterable[float] = (),
    *,
    xlabel: str = "iteration",
    more: Iterable[Line] = (),
) -> Any:
    """Relative residuals by name, as `Evaluation.histories` has them: median and range over systems."""
    lines = [
        Line(name, median, range(len(median)), None if low is median else (low, high))
        for name, median, low, high in medians(histories)
    ]
    levels = sorted(tolerances)
    lines += [Line("", rtol, style={"color": GRAY, "linewidth": 0.6, "zorder": 0}) for rtol in levels]
    limits = {"ylim": (levels[0] / 100, None)} if levels else {}
    figure = picture(title, xlabel, "relative residual norm", [*lines, *more], log="y", **limits)
    figure.axes[0].xaxis.get_major_locator().set_params(integer=True)
    return figure


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
    """A value of each training, by its number, and their mean in a band of two deviations."""
    points = {"color": color, "linestyle": "none", "marker": "o", "markersize": 5}
    lines = [Line(label, mean, style={"color": BLACK, "linewidth": 1})]
    lines.append(Line("", list(values.values()), list(values), style=points))
    figure = picture(title, xlabel, ylabel, lines)
    (axes,) = figure.axes
    axes.axhspan(mean - 2 * deviation, mean + 2 * deviation, color=color, alpha=0.15, linewidth=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    return figure


def png(figure: Any) -> bytes:
    """The figure as a PNG file's content."""
    canvas = need("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
    buffer = io.BytesIO()
    canvas.print_png(buffer)
    return buffer.getvalue()
