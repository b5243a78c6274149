"""What a `CSR` offers beside its arithmetic under the names of torch and NumPy: transposes, sizes, moves and
conversions, a picture, a file. Nothing here computes; it calls the methods of the matrix."""

from __future__ import annotations

import os
from typing import Any, Self

import torch
from torch import Tensor

from learnsolve import _csr_files, _csr_pictures
from learnsolve.pattern import SparsityPattern


class Views:
    """Mixed into `CSR`."""

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
        """The conjugate transpose, ``A.T``: values are real."""
        return self.T

    @property
    def ndim(self) -> int:
        """2, the length of ``A.shape``, of a batch too: its axes are ``A.batch_shape``."""
        return len(self.shape)

    def __len__(self) -> int:
        """The number of rows, ``A.shape[0]``."""
        return self.shape[0]

    def __bool__(self) -> bool:
        # Else Python would take it from __len__.
        raise TypeError("CSR: a matrix is neither true nor false; compare with None, or look at A.nnz")

    # --- moves and conversions ---
    def cpu(self) -> Self:
        return self.to(device="cpu")

    def cuda(self, device: torch.device | int | str | None = None) -> Self:
        """On the current CUDA device, or another one."""
        if isinstance(device, int) and not isinstance(device, bool):
            device = torch.device("cuda", device)
        return self.to(device="cuda" if device is None else device)

    def float(self) -> Self:
        """With values in float32."""
        return self.to(dtype=torch.float32)

    def double(self) -> Self:
        """With values in float64."""
        return self.to(dtype=torch.float64)

    # --- pictures ---
    def spy(self, ax: Any = None, **options: Any) -> Any:
        """A picture of the pattern with matplotlib, which is needed (``pip install 'learnsolve[train]'``).

        Parameters
        ----------
        ax : matplotlib Axes; those of a new figure if not given
        options : for ``Axes.imshow``, such as ``cmap``

        Returns
        -------
        The Axes. A cell is dark where it has an entry, also a zero; of a matrix with more than 512 rows or
        columns a cell is several. O(nnz). No gradient.
        """
        return _csr_pictures.spy(self.pattern, ax, options)

    def _repr_html_(self) -> str:
        """For notebooks: the facts, and a small picture of the pattern."""
        return _csr_pictures.html(repr(self), self.pattern)

    # --- files ---
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write values and pattern to a safetensors file, which `CSR.load` reads (``pip install
        'learnsolve[train]'``). A file that is there is replaced at once, not in parts. No gradient."""
        _csr_files.save(path, self.values, self.pattern)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, device: torch.device | str | None = None) -> Self:
        """A matrix from the file that ``A.save(path)`` has written, checked. Reading runs no code.

        Matrices of one pattern share the object, as those of pickles do. A ValueError for a file that is
        damaged or holds something else.

        Examples
        --------
        >>> import tempfile, learnsolve as ls
        >>> path = f"{tempfile.mkdtemp()}/A.safetensors"
        >>> ls.problems.poisson((3,)).save(path)
        >>> ls.CSR.load(path)
        CSR(shape=(3, 3), nnz=7, dtype=float64, device=cpu, density=77.8%)
        """
        made: Any = cls
        return made(*_csr_files.load(path)).to(device=device)
