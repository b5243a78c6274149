"""Figures in one style: no global state, colours that colour-blind readers can distinguish."""

import io
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from learnsolve.evaluation._figure import curves
from learnsolve.recipes.harness.checkpoint import History
from learnsolve.recipes.harness.settings import need

# Okabe and Ito, "Color Universal Design" (2008).
BLACK, BLUE, ORANGE, PURPLE, GREY = "#000000", "#0072B2", "#D55E00", "#CC79A7", "#777777"
GREEN = "#009E73"
COLOURS = BLUE, PURPLE, ORANGE, GREEN, BLACK  # of curves that are drawn together


STYLES = {  # by the beginning of a curve's name
    ("best constant",): {"color": GREEN, "linestyle": (0, (5, 1))},
    ("learned", "network"): {"color": BLUE, "linewidth": 2.0},
    ("weight 1", "start", "one pair"): {"color": GREY, "linestyle": "--"},
    ("textbook", "asymptotic"): {"color": ORANGE, "linestyle": "-."},
    ("closed form", "best"): {"color": BLACK, "linestyle": ":", "linewidth": 2.0},
}


LOOKS: dict[str, dict[str, Any]] = {  # of preconditioners
    "learned": {"color": BLUE, "linewidth": 2.2},
    "none": {"color": BLACK, "linestyle": "--"},
    "Jacobi": {"color": GREY, "linestyle": ":", "linewidth": 2.0},
    "SSOR": {"color": GREY, "linestyle": "-."},
    "IC(0)": {"color": ORANGE},
    "ILU(0)": {"color": ORANGE},
    "MIC(0)": {"color": ORANGE, "linestyle": "--"},
    "ICT": {"color": ORANGE, "linestyle": ":"},
    "AMG": {"color": PURPLE},
    "RS-AMG": {"color": PURPLE, "linestyle": "--"},
    "inner GMRES": {"color": GREY, "linestyle": "-."},
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
    figure, axes = new_figure(title, "optimiser step", ylabel)
    for name, value in baselines:
        axes.axhline(value, label=f"{name}, held-out", **style(name))
    axes.plot(history["step"], history["loss"], color=BLUE, linewidth=2, label="training")
    axes.plot(*known(history, "held_out_loss"), color=PURPLE, linewidth=1.2, label=held_out)
    if log:
        axes.set_yscale("log")
    finish(axes)
    return figure


def residuals_figure(
    title: str, curves: Mapping[str, list[float]], labels: Mapping[str, str]
) -> tuple[Any, Any]:
    """Curves of `MatrixRecipe.residual_curve`, by name."""
    figure, axes = new_figure(title, "sweep", r"$\|A x_k\| / \|A x_0\|$, held-out vectors")
    for name, curve in curves.items():
        axes.semilogy(range(len(curve)), curve, label=labels[name], **style(name))
    finish(axes)
    return figure, axes


def solves_figure(
    title: str, ylabel: str, histories: Mapping[str, list[Any]], tolerances: Collection[float] = ()
) -> Any:
    """Residuals of `evaluate` by preconditioner; with lines at the tolerances."""
    figure, axes = new_figure(title, "iteration", ylabel)
    curves(axes, histories, LOOKS)
    for rtol in sorted(tolerances):
        axes.axhline(rtol, color=GREY, linewidth=0.6, zorder=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    if tolerances:
        axes.set_ylim(bottom=min(tolerances) / 100)
    finish(axes)
    return figure


def png(figure: Any) -> bytes:
    """The figure as a PNG file's content."""
    canvas = need("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
    buffer = io.BytesIO()
    canvas.print_png(buffer)
    return buffer.getvalue()
