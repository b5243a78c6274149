"""Pictures of a pattern: with matplotlib, and for notebooks without."""

from __future__ import annotations

import html as escaping
from typing import Any

import numpy as np

from learnsolve._pattern_checks import as_numpy
from learnsolve.pattern import SparsityPattern

_SPY_CELLS, _HTML_CELLS = 512, 48  # along the longer axis, at most


def spy(pattern: SparsityPattern, ax: Any, options: dict[str, Any]) -> Any:
    if ax is None:
        try:
            from matplotlib import pyplot
        except ImportError as error:
            raise ImportError(
                "CSR.spy needs matplotlib: pip install 'learnsolve[train]'", name="matplotlib"
            ) from error
        ax = pyplot.figure().add_subplot()
    rows, columns = pattern.shape
    extent = (-0.5, columns - 0.5, rows - 0.5, -0.5)  # of the matrix, whatever the cells
    defaults = {"cmap": "Greys", "vmin": 0, "vmax": 1, "interpolation": "nearest", "extent": extent}
    ax.imshow(_cells(pattern, _SPY_CELLS), **{**defaults, **options})
    ax.set_title(f"{rows} x {columns}, {pattern.nnz} entries")
    return ax


def html(text: str, pattern: SparsityPattern) -> str:
    """The text above an SVG with a square for each cell that has an entry."""
    line = f"<code>{escaping.escape(text)}</code>"
    if pattern.device.type == "meta":
        return line
    cells = _cells(pattern, _HTML_CELLS)
    height, width = cells.shape
    squares = "".join(f"M{j} {i}h1v1h-1z" for i, j in np.argwhere(cells).tolist())
    return (
        f'{line}<br><svg viewBox="0 0 {width} {height}" width="{4 * width}" height="{4 * height}" '
        f'style="border:1px solid"><path fill="currentColor" d="{squares}"/></svg>'
    )


def _cells(pattern: SparsityPattern, most: int) -> np.ndarray:
    """Which cells of a grid of at most most x most have an entry."""
    rows, columns = pattern.shape
    scale = max(1, -(-max(rows, columns) // most))
    cells = np.zeros((max(1, -(-rows // scale)), max(1, -(-columns // scale))), dtype=bool)
    cells[as_numpy(pattern.row_indices) // scale, as_numpy(pattern.col_indices) // scale] = True
    return cells
