"""Figures as data: `picture` draws lines, levels and bands in one style, with the legend below the axes,
where it hides nothing. `LOOKS` gives each name the same color in all figures, safe for color-blind
readers."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from learnsolve.evaluation.comparison import Evaluation

# Okabe and Ito, "Color Universal Design" (2008).
BLACK, BLUE, ORANGE, PURPLE, GRAY, GREEN = "#000000", "#0072B2", "#D55E00", "#CC79A7", "#777777", "#009E73"
COLORS = BLUE, PURPLE, ORANGE, GREEN, BLACK, "#56B4E9", "#E69F00"  # of curves that are drawn together
WIDTH = 840  # pixels
STYLES = "-", "--", ":"
LOOKS: dict[tuple[str, ...], dict[str, object]] = {  # by the beginning of a name
    ("best constant",): {"color": GREEN, "linestyle": (0, (5, 1))},
    ("learned", "network"): {"color": BLUE, "linewidth": 2.2},
    ("weight 1", "start", "one pair"): {"color": GRAY, "linestyle": "--"},
    ("textbook", "asymptotic"): {"color": ORANGE, "linestyle": "-."},
    ("closed form", "best"): {"color": BLACK, "linestyle": ":", "linewidth": 2.0},
    ("none",): {"color": BLACK, "linestyle": "--"},
    ("Jacobi",): {"color": GRAY, "linestyle": ":", "linewidth": 2.0},
    ("SSOR(1.8)",): {"color": GRAY},
    ("SSOR", "inner GMRES"): {"color": GRAY, "linestyle": "-."},
    ("IC(0)", "ILU(0)"): {"color": ORANGE},
    ("MIC(0)",): {"color": ORANGE, "linestyle": "--"},
    ("MIC(2)",): {"color": ORANGE, "linestyle": "-."},
    ("ICT",): {"color": ORANGE, "linestyle": ":"},
    ("direct",): {"color": GREEN},
    ("AMG",): {"color": PURPLE},
    ("RS-AMG",): {"color": PURPLE, "linestyle": "--"},
}


def look(name: str) -> dict[str, Any]:
    return next(kind for beginnings, kind in LOOKS.items() if name.startswith(beginnings))


@dataclass(frozen=True)
class Line:
    """A curve. Without `x` it is a horizontal level, without `y` a vertical line. `band`: its lower and upper
    end.

    A label "" is not in the legend. `style` is matplotlib's. None is the style of `LOOKS` for the label.
    """

    label: str
    y: Any = None
    x: Any = None
    band: tuple[object, object] | None = None
    style: Mapping[str, object] | None = None

    def draw(self, axes: Any) -> None:
        style = {"linewidth": 1.5, **(look(self.label) if self.style is None else self.style)}
        # matplotlib omits labels that begin with "_" from the legend.
        label = f" {self.label}" if self.label.startswith("_") else self.label or None
        if self.x is None:
            axes.axhline(self.y, label=label, **style)
        elif self.y is None:
            axes.axvline(self.x, label=label, **style)
        else:
            axes.plot(self.x, self.y, label=label, **style)
        if self.band is not None:
            axes.fill_between(self.x, *self.band, color=style["color"], alpha=0.2, linewidth=0)


def _load(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(
            "pictures need matplotlib: pip install 'learnsolve[train]'", name="matplotlib"
        ) from error


def new_figure(title: str, xlabel: str, ylabel: str, size: tuple[float, float] = (7, 4.5)) -> tuple[Any, Any]:
    """A figure with one pair of axes."""
    Figure = _load("matplotlib.figure").Figure
    figure = Figure(figsize=size, dpi=WIDTH / size[0], layout="constrained")
    axes = figure.add_subplot()
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def new_panels(title: str, count: int) -> tuple[Any, list[Any]]:
    """A figure with `count` pairs of axes in a row, for images."""
    figure = _load("matplotlib.figure").Figure(figsize=(1.5 + 4.5 * count, 4.5), dpi=120, layout="compressed")
    figure.suptitle(title)
    return figure, list(figure.subplots(1, count, squeeze=False, sharex=True, sharey=True)[0])


def picture(
    title: str, xlabel: str, ylabel: str, lines: Iterable[Line] = (), *, log: str = "", **options: object
) -> Any:
    """A figure of the lines; `log` names its logarithmic axes ("y", "xy"), `options` are passed to
    `axes.set`."""
    figure, axes = new_figure(title, xlabel, ylabel, size=(5.6, 3.6))
    axes.title.set_size("medium" if max(map(len, title.split("\n"))) < 56 else "small")
    for line in lines:
        line.draw(axes)
    axes.set(**{f"{axis}scale": "log" for axis in log}, **options)
    axes.margins(x=0.01)
    ticker, (bottom, top) = _load("matplotlib.ticker"), axes.get_ylim()
    if log and bottom > 0 and top < 10 * bottom:  # plain numbers instead of powers
        axes.yaxis.set_major_locator(ticker.MaxNLocator(6))
        axes.yaxis.set_major_formatter(ticker.ScalarFormatter())
        axes.yaxis.set_minor_locator(ticker.NullLocator())
    if entries := axes.get_legend_handles_labels()[1]:
        longest = max(len(re.sub(r"\\\w+|[$\\]", "", entry)) for entry in entries)  # without TeX
        columns = max(1, min(len(entries), 92 // (longest + 8)))
        figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize="small")
    return figure


def bars(title: str, xlabel: str, values: Mapping[str, Iterable[float]]) -> Any:
    """A bar of stacked parts for each name, the shortest first; without those ten times as long."""
    parts = {name: list(numbers) for name, numbers in values.items()}
    shown = sorted(parts, key=lambda name: sum(parts[name]), reverse=True)
    shown = [name for name in shown if sum(parts[name]) <= 10 * sum(parts[shown[-1]])]
    figure = picture(title, xlabel, "")
    (axes,) = figure.axes
    left, colors = [0.0] * len(shown), [look(name)["color"] for name in shown]
    for number, lengths in enumerate(zip(*(parts[name] for name in shown), strict=True)):
        drawn = axes.barh(shown, lengths, left=left, color=colors, alpha=0.5**number)
        left = [a + b for a, b in zip(left, lengths, strict=True)]
    axes.bar_label(drawn, [f" {total:.3g}" for total in left])
    axes.margins(x=0.1)
    axes.grid(False, axis="y")
    return figure


def residuals_figure(
    title: str,
    histories: Mapping[str, list[Tensor]],
    tolerances: Iterable[float] = (),
    *,
    xlabel: str = "iteration",
    more: Iterable[Line] = (),
    styles: Mapping[str, Mapping[str, object]] | None = None,
) -> Any:
    """Relative residuals by name, as in `Evaluation.histories`: median and range over systems. `styles` by
    name, default `LOOKS`."""
    lines = [
        Line(
            name, median, range(len(median)), None if low is median else (low, high), (styles or {}).get(name)
        )
        for name, median, low, high in medians(histories)
    ]
    levels = sorted(tolerances)
    lines += [Line("", rtol, style={"color": GRAY, "linewidth": 0.6, "zorder": 0}) for rtol in levels]
    limits = {"ylim": (levels[0] / 100, None)} if levels else {}
    figure = picture(title, xlabel, "relative residual norm", [*lines, *more], log="y", **limits)
    figure.axes[0].xaxis.get_major_locator().set_params(integer=True)
    return figure


def figure(evaluation: Evaluation) -> Any:
    """`Evaluation.plot`: any names, with styles by their order."""
    names, styles = list(evaluation.histories), {}
    for i, name in enumerate(names):
        # Thicker lines below remain visible.
        style = {"color": COLORS[i % len(COLORS)], "linestyle": STYLES[i // len(COLORS) % len(STYLES)]}
        styles[name] = style | {"linewidth": 1.4 + 1.6 * (1 - (i + 1) / len(names))}
    systems = max(map(len, evaluation.histories.values()), default=0)
    title = evaluation.solver + f", median and range of {systems} systems" * (systems > 1)
    tolerances = {row.rtol for row in evaluation.rows}
    made = residuals_figure(title, evaluation.histories, tolerances, styles=styles)
    _load("matplotlib.backends.backend_agg").FigureCanvasAgg(made)
    return made


def png(figure: object) -> bytes:
    """The figure as a PNG file's content."""
    canvas = _load("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
    buffer = io.BytesIO()
    canvas.print_png(buffer)
    return buffer.getvalue()


def medians(histories: Mapping[str, list[Tensor]]) -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
    """For each preconditioner that solved a system: its name, and the median, smallest and largest of its
    residuals. For a single system these are the same array three times."""
    for name, runs in histories.items():
        if runs:
            table = _pad_histories(runs)
            median = table.median(0).values
            yield (name, median, *((table.amin(0), table.amax(0)) if len(runs) > 1 else (median, median)))


def _pad_histories(histories: list[Tensor]) -> Tensor:
    """(systems, iterations + 1). A system that has stopped keeps its last residual. A residual of zero, which
    a logarithmic axis cannot show, is replaced by the smallest positive one."""
    longest = max(len(h) for h in histories)
    table = torch.stack([torch.cat((h, h[-1:].expand(longest - len(h)))) for h in histories])
    positive = table[(table > 0) & torch.isfinite(table)]
    return torch.where(table == 0, positive.min(), table) if positive.numel() else table
