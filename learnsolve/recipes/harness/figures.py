"""Figures in one style: no global state, colors that color-blind readers can distinguish."""

import io
from collections.abc import Iterable, Mapping
from typing import Any

from learnsolve.recipes.harness.checkpoint import History
from learnsolve.recipes.harness.settings import need

# Okabe and Ito, "Color Universal Design" (2008).
BLACK, BLUE, ORANGE, PURPLE, GRAY = "#000000", "#0072B2", "#D55E00", "#CC79A7", "#777777"
GREEN = "#009E73"
COLORS = BLUE, PURPLE, ORANGE, GREEN, BLACK  # of curves that are drawn together


STYLES = {  # by the beginning of a curve's name
    ("best constant",): {"color": GREEN, "linestyle": (0, (5, 1))},
    ("learned", "network"): {"color": BLUE, "linewidth": 2.0},
    ("weight 1", "start", "one pair"): {"color": GRAY, "linestyle": "--"},
    ("textbook", "asymptotic"): {"color": ORANGE, "linestyle": "-."},
    ("closed form", "best"): {"color": BLACK, "linestyle": ":", "linewidth": 2.0},
}


def style(name: str) -> dict[str, Any]:
    return next(found for beginnings, found in STYLES.items() if name.startswith(beginnings))


def new_figure(title: str, xlabel: str, ylabel: str) -> tuple[Any, Any]:
    """A figure with one pair of axes."""
    figure = need("matplotlib.figure").Figure(figsize=(7, 4.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def new_panels(title: str, count: int) -> tuple[Any, list[Any]]:
    """A figure with `count` pairs of axes in a row, for images."""
    figure = need("matplotlib.figure").Figure(figsize=(1.5 + 4.5 * count, 4.5), dpi=120, layout="compressed")
    figure.suptitle(title)
    return figure, list(figure.subplots(1, count, squeeze=False, sharex=True, sharey=True)[0])


def finish(axes: Any, **legend: Any) -> None:
    axes.margins(x=0.01)
    axes.legend(frameon=False, **legend)


def known(history: History, name: str) -> tuple[list[int], list[float]]:
    """The steps that have an entry in this column, and the entries."""
    pairs = [(s, v) for s, v in zip(history["step"], history[name], strict=True) if v is not None]
    return [s for s, _ in pairs], [v for _, v in pairs]


def band(axes: Any, steps: Any, mean: Any, lower: Any, upper: Any, **line: Any) -> None:
    """A mean over trainings, in a band from `lower` to `upper`."""
    axes.plot(steps, mean, **{"linewidth": 1.8, **line})
    axes.fill_between(steps, lower, upper, color=line["color"], alpha=0.2, linewidth=0)


def loss_figure(
    title: str,
    ylabel: str,
    history: History,
    *,
    baselines: Iterable[tuple[str, float]] = (),
    held_out: str = "held-out",
    log: bool = False,
) -> Any:
    """Training and held-out loss over the steps, and losses (name, value) to compare with."""
    figure, axes = new_figure(title, "optimizer step", ylabel)
    for name, value in baselines:
        axes.axhline(value, label=f"{name}, held-out", **style(name))
    axes.plot(history["step"], history["loss"], color=BLUE, linewidth=2, label="training")
    axes.plot(*known(history, "held_out_loss"), color=PURPLE, linewidth=1.2, label=held_out)
    if log:
        axes.set_yscale("log")
    finish(axes)
    return figure


def each_figure(
    title: str,
    xlabel: str,
    ylabel: str,
    values: Mapping[int, float],
    mean: float,
    deviation: float,
    color: str = BLUE,
    **line: Any,
) -> Any:
    """A value of each training, by its number, and their mean in a band of two deviations."""
    figure, axes = new_figure(title, xlabel, ylabel)
    axes.axhspan(mean - 2 * deviation, mean + 2 * deviation, color=color, alpha=0.15, linewidth=0)
    axes.axhline(mean, color=BLACK, linewidth=1, **line)
    axes.plot(list(values), list(values.values()), linestyle="none", marker="o", markersize=5, color=color)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False)
    return figure


def png(figure: Any) -> bytes:
    """The figure as a PNG file's content."""
    canvas = need("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
    buffer = io.BytesIO()
    canvas.print_png(buffer)
    return buffer.getvalue()
