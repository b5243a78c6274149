"""A trained preconditioner compared with others by `evaluate`: candidates, and the figure of the solves."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from learnsolve import preconditioners
from learnsolve.evaluation._figure import curves
from learnsolve.recipes.harness.figures import BLACK, BLUE, GRAY, ORANGE, PURPLE, finish, new_figure

LEARNED = "learned"
AMG_COARSE = 100  # rows that AMG solves directly, at most
LOOKS: dict[str, dict[str, Any]] = {  # of preconditioners
    "learned": {"color": BLUE, "linewidth": 2.2},
    "none": {"color": BLACK, "linestyle": "--"},
    "Jacobi": {"color": GRAY, "linestyle": ":", "linewidth": 2.0},
    "SSOR": {"color": GRAY, "linestyle": "-."},
    "IC(0)": {"color": ORANGE},
    "ILU(0)": {"color": ORANGE},
    "MIC(0)": {"color": ORANGE, "linestyle": "--"},
    "ICT": {"color": ORANGE, "linestyle": ":"},
    "AMG": {"color": PURPLE},
    "RS-AMG": {"color": PURPLE, "linestyle": "--"},
    "inner GMRES": {"color": GRAY, "linestyle": "-."},
}


def with_amg(candidates: dict[str, Any], n: int) -> tuple[dict[str, Any], dict[str, str]]:
    """The candidates and AMG for n rows; and why it is left out, by its name."""
    if importlib.util.find_spec("pyamg") is None:
        return candidates, {"AMG": "pyamg is not installed: pip install 'learnsolve[problems]'"}
    # Several levels also where the matrix is small: on one, AMG is a direct solve.
    coarse = max(1, min(AMG_COARSE, n // 8))
    return candidates | {"AMG": partial(preconditioners.AMG, max_coarse=coarse)}, {}


def solves_figure(
    title: str, ylabel: str, histories: Mapping[str, list[Any]], tolerances: Collection[float] = ()
) -> Any:
    """Residuals of `evaluate` by preconditioner; with lines at the tolerances."""
    figure, axes = new_figure(title, "iteration", ylabel)
    curves(axes, histories, LOOKS)
    for rtol in sorted(tolerances):
        axes.axhline(rtol, color=GRAY, linewidth=0.6, zorder=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    if tolerances:
        axes.set_ylim(bottom=min(tolerances) / 100)
    finish(axes)
    return figure
