"""Methods of a `CSR` other than arithmetic, with the names of torch and NumPy: transposes, sizes, moves and
conversions; plots with matplotlib and pictures in notebooks without it; safetensors files with the shape in
the header."""

from __future__ import annotations

import html as escaping
import json
import os
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from learnsolve.matrix import convert, files, interning
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.matrix.pattern_checks import as_numpy
from learnsolve.matrix.plain import unmapped


class Views:
    """Mixin of `CSR`."""

    __slots__ = ()

    values: Tensor
    pattern: SparsityPattern
    shape: Any
    to: Any
    T: Any

    # --- transposes and sizes ---
    @property
    def mT(self) -> Self:
        """``A.T``: batch axes stay in front."""
        return self.T

    @property
    def H(self) -> Self:
        """The conjugate transpose, ``A.T`` if values are real."""
        return self.conj().T

    def conj(self) -> Self:
        """With conjugate values; A itself if they are real."""
        return self._with(convert.conjugate(self.values)) if self.values.is_complex() else self

    @property
    def real(self) -> Self:
        """The real parts of the values, on A's pattern; A itself if they are real."""
        return self._with(self.values.real) if self.values.is_complex() else self

    @property
    def imag(self) -> Self:
        """The imaginary parts of the values, on A's pattern; zeros if they are real."""
        return self._with(self.values.imag if self.values.is_complex() else torch.zeros_like(self.values))

    def _with(self, values: Tensor) -> Self:
        made: Any = type(self)
        return made(values, self.pattern)

    @property
    def ndim(self) -> int:
        """2, the length of ``A.shape``, also for a batch, whose axes are ``A.batch_shape``."""
        return len(self.shape)

    def __len__(self) -> int:
        """The number of rows, ``A.shape[0]``."""
        return self.shape[0]

    def __bool__(self) -> bool:
        # Otherwise Python would use __len__.
        raise TypeError("CSR: a matrix is neither true nor false; compare with None, or look at A.nnz")

    # --- moves and conversions ---
    def cpu(self) -> Self:
        return self.to(device="cpu")

    def cuda(self, device: torch.device | int | str | None = None) -> Self:
        """A copy on the current CUDA device, or another one."""
        if isinstance(device, int) and not isinstance(device, bool):
            device = torch.device("cuda", device)
        return self.to(device="cuda" if device is None else device)

    def float(self) -> Self:
        """A copy with float32 values."""
        return self.to(dtype=torch.float32)

    def double(self) -> Self:
        """A copy with float64 values."""
        return self.to(dtype=torch.float64)

    # --- pictures ---
    def __repr__(self) -> str:
        (rows, columns), nnz, batch = self.shape, self.pattern.nnz, tuple(self.values.shape[:-1])
        facts = {
            "shape": (rows, columns),
            "nnz": nnz,
            **({"batch": batch} if batch else {}),
            "dtype": str(self.values.dtype).removeprefix("torch."),
            "device": self.values.device,
            "density": f"{nnz / max(rows * columns, 1):.1%}",
            **({"requires_grad": True} if self.values.requires_grad else {}),
        }
        return f"CSR({', '.join(f'{name}={value}' for name, value in facts.items())})"

    def spy(self, ax: Any = None, **options: Any) -> Any:
        """Plot the pattern with matplotlib (``pip install 'learnsolve[train]'``).

        Parameters
        ----------
        ax : matplotlib Axes; default: the axes of a new figure
        options : for ``Axes.imshow``, such as ``cmap``

        Returns
        -------
        The Axes. A cell is dark if it has an entry, even a zero; for a matrix with more than 512 rows or
        columns a cell covers several entries. O(nnz). No gradient.
        """
        return _spy(self.pattern, ax, options)

    def _repr_html_(self) -> str:
        """For notebooks: the properties and a small picture of the pattern."""
        return _html(repr(self), self.pattern)

    # --- files ---
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write values and pattern to a safetensors file, which `CSR.load` reads (``pip install
        'learnsolve[train]'``). An existing file is replaced atomically. No gradient."""
        _save(path, self.values, self.pattern)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, device: torch.device | str | None = None) -> Self:
        """A matrix from a file written by ``A.save(path)``, checked. Reading runs no code.

        Matrices with the same pattern share the object, like pickled ones. Raises ValueError for a file that
        is damaged or holds something else.

        Examples
        --------
        >>> import tempfile, learnsolve as ls
        >>> path = f"{tempfile.mkdtemp()}/A.safetensors"
        >>> ls.problems.poisson((3,)).save(path)
        >>> ls.CSR.load(path)
        CSR(shape=(3, 3), nnz=7, dtype=float64, device=cpu, density=77.8%)
        """
        made: Any = cls
        return made(*_load(path)).to(device=device)


_SPY_CELLS, _HTML_CELLS = 512, 48  # along the longer axis, at most


def _spy(pattern: SparsityPattern, ax: Any, options: dict[str, Any]) -> Any:
    if ax is None:
        try:
            from matplotlib import pyplot
        except ImportError as error:
            raise ImportError(
                "CSR.spy needs matplotlib: pip install 'learnsolve[train]'", name="matplotlib"
            ) from error
        ax = pyplot.figure().add_subplot()
    rows, columns = pattern.shape
    extent = (-0.5, columns - 0.5, rows - 0.5, -0.5)  # of the matrix, independent of the cells
    defaults = {"cmap": "Greys", "vmin": 0, "vmax": 1, "interpolation": "nearest", "extent": extent}
    ax.imshow(_cells(pattern, _SPY_CELLS), **{**defaults, **options})
    ax.set_title(f"{rows} x {columns}, {pattern.nnz} entries")
    return ax


def _html(text: str, pattern: SparsityPattern) -> str:
    """The text above an SVG with one square per cell that has an entry."""
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
    """The cells of a grid of at most most x most that have an entry."""
    rows, columns = pattern.shape
    scale = max(1, -(-max(rows, columns) // most))
    cells = np.zeros((max(1, -(-rows // scale)), max(1, -(-columns // scale))), dtype=bool)
    cells[as_numpy(pattern.row_indices) // scale, as_numpy(pattern.col_indices) // scale] = True
    return cells


_KEYS = {"values", "crow_indices", "col_indices"}


def _save(path: str | os.PathLike[str], values: Tensor, pattern: SparsityPattern) -> None:
    with torch._C._DisableFuncTorch():
        values = unmapped(values)
    is_complex = values.is_complex()
    tensors = {
        "values": torch.view_as_real(values.detach().resolve_conj()) if is_complex else values,
        "crow_indices": pattern.crow_indices,
        "col_indices": pattern.col_indices,
    }
    parts = {"complex": True} if is_complex else {}  # the format has no complex128
    about = json.dumps({"format": 1, "matrix": "CSR", "shape": pattern.shape, **parts})
    files.write_tensors("CSR.save", path, tensors, {"learnsolve": about})


def _load(path: str | os.PathLike[str]) -> tuple[Tensor, SparsityPattern]:
    tensors, header = files.read_tensors("CSR.load", path)
    shape, is_complex = _shape_in(path, header)
    if tensors.keys() != _KEYS:
        raise ValueError(f"CSR.load: {path} is damaged, it must hold {sorted(_KEYS)}, got {sorted(tensors)}")
    try:
        pattern = SparsityPattern(tensors["crow_indices"], tensors["col_indices"], shape)
        values = tensors["values"]
        if is_complex:
            if values.dtype not in (torch.float32, torch.float64) or values.shape[-1:] != (2,):
                raise ValueError(f"complex values are of {values.dtype} and shape {tuple(values.shape)}")
            values = torch.view_as_complex(values)
        if values.dim() == 0 or values.shape[-1] != pattern.nnz:
            raise ValueError(f"values have shape {tuple(values.shape)}, entries are {pattern.nnz}")
    except (ValueError, TypeError) as error:
        raise ValueError(f"CSR.load: {path} is damaged ({error})") from error
    return values, interning.intern(pattern)


def _shape_in(path: str | os.PathLike[str], header: dict[str, str]) -> tuple[tuple[int, int], bool]:
    """The shape, and whether a last axis of the values holds real and imaginary parts."""
    try:
        about = json.loads(header["learnsolve"])
        made_by, kind = about["format"], about["matrix"]
        rows, columns = about["shape"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(
            f"CSR.load: {path} is not the file of a matrix; take one that A.save(path) has written"
        ) from error
    if (made_by, kind) != (1, "CSR"):
        raise ValueError(
            f"CSR.load: {path} has format {made_by!r} of {kind!r}, this version reads 1 of 'CSR'; update "
            "learnsolve"
        )
    return (rows, columns), about.get("complex") is True
