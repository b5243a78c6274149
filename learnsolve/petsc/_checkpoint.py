"""The part of a file of trained weights that a process reads: its own rows, if the weights have rows."""

from __future__ import annotations

import json
import os
from typing import Any

from torch import Tensor


class Checkpoint:
    """A safetensors file, read by slices.

    Attributes
    ----------
    shapes : by name
    """

    def __init__(self, path: str | os.PathLike[str]):
        try:
            from safetensors import SafetensorError, safe_open
        except ImportError as error:
            raise ImportError(
                "petsc.LearnedPC needs safetensors: pip install 'learnsolve[train]'", name="safetensors"
            ) from error
        self.path = str(path)
        if not os.path.isfile(self.path):
            raise FileNotFoundError(f"petsc.LearnedPC: there is no file {self.path}")
        try:
            self._file: Any = safe_open(self.path, "pt")
        except SafetensorError as error:
            raise ValueError(
                f"petsc.LearnedPC: {path} is damaged, or no safetensors file ({error})"
            ) from error
        names = self._file.keys()
        self.shapes = {name: tuple(self._file.get_slice(name).get_shape()) for name in names}

    def __contains__(self, name: str) -> bool:
        return name in self.shapes

    def whole(self, name: str) -> Tensor:
        return self._file.get_tensor(name)

    def part(self, name: str, lo: int, hi: int, axis: int = 0) -> Tensor:
        s = self._file.get_slice(name)
        return s[:, lo:hi] if axis == 1 else s[lo:hi]

    def rows(self, prefix: str, lo: int, hi: int) -> tuple[Tensor, Tensor, int]:
        """crow and columns of the rows lo to hi - 1 of the pattern `prefix`, and the number of entries
        before."""
        crow = self.part(f"{prefix}crow_indices", lo, hi + 1).long()
        first, last = int(crow[0]), int(crow[-1])
        return crow - first, self.part(f"{prefix}col_indices", first, last).long(), first

    def form(self) -> str | None:
        """The form of a `Factored`, if the header has it."""
        header = json.loads((self._file.metadata() or {}).get("learnsolve", "{}"))
        return header.get("settings", {}).get("start", {}).get("form")

    def tensors(self) -> dict[str, Tensor]:
        return {name: self.whole(name) for name in self.shapes}
