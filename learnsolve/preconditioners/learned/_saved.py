"""Modules saved as safetensors with class and settings in the header. `load` runs no code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from learnsolve.matrix import files

CLASSES: dict[str, type[Saved]] = {}  # by the name in the header; filled by `loadable`
DTYPES = {"float32": torch.float32, "float64": torch.float64}
Kind = TypeVar("Kind", bound="type[Saved]")


def loadable(kind: Kind) -> Kind:
    """Decorate a network class so that `preconditioners.load` can read its files, wherever the class is
    defined.

    Parameters
    ----------
    kind : a subclass of `FactorNetwork` or of another network with `save`; it replaces an earlier class of
        the same name

    Returns
    -------
    kind

    Raises
    ------
    TypeError
        if kind is not such a class.

    Examples
    --------
    >>> import learnsolve as ls
    >>> P = ls.preconditioners
    >>> @P.loadable
    ... class Corrector(P.PreCorrector):
    ...     def classical(self, A):
    ...         return P.MIC0(A, pattern=P.fill_pattern(A, 1))
    """
    if not (isinstance(kind, type) and issubclass(kind, Saved)):
        raise TypeError(
            f"loadable: needs a subclass of FactorNetwork, or of another network with save, got {kind!r}"
        )
    CLASSES[kind.__name__] = kind
    return kind


class Saved(torch.nn.Module):
    """Base of modules that `preconditioners.load` reads. A subclass is decorated with `loadable` and has

    settings()              arguments of its constructor, for JSON, that make one with the same state dict;
                            a dtype by its name, "float64"
    _made(settings, tensors)    only if it is not ``cls(**settings)``: for a module whose size is in the file
    """

    def settings(self) -> dict[str, Any]:
        raise NotImplementedError(f"{type(self).__name__} must define settings")

    @classmethod
    def _made(cls, settings: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        """A module with these settings; its tensors are replaced later, so they need no memory."""
        with torch.device("meta"):
            return cls(**settings)

    def header(self) -> dict[str, str]:
        """The metadata of the file: class and settings."""
        about = {"format": 1, "network": type(self).__name__, "settings": self.settings()}
        return {"learnsolve": json.dumps(about)}

    def save(self, path: str | Path) -> None:
        """Write weights and settings to a safetensors file for `preconditioners.load`. An existing file is
        replaced atomically."""
        files.write_tensors("save", path, self.state_dict(), self.header())
