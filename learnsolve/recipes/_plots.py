"""Figures in one manner: no global state, colours that colour-blind readers tell apart."""

import io
from typing import Any

from learnsolve.recipes._extras import need

# Okabe and Ito, "Color Universal Design" (2008).
BLACK, BLUE, ORANGE, PURPLE, GREY = "#000000", "#0072B2", "#D55E00", "#CC79A7", "#777777"


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


def png(figure: Any) -> bytes:
    """The figure as a PNG file's content."""
    canvas = need("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
    buffer = io.BytesIO()
    canvas.print_png(buffer)
    return buffer.getvalue()
