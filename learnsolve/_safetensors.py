"""Files in the safetensors format: numbers, names and a header of strings. Reading one runs no code."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from torch import Tensor

from learnsolve._files import replace_file


def _safetensors(function: str) -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError(
            f"{function} needs safetensors: pip install 'learnsolve[train]'", name="safetensors"
        ) from error
    return safetensors.torch


def write(
    function: str, path: str | os.PathLike[str], tensors: dict[str, Tensor], header: dict[str, str]
) -> None:
    """A file that is there is replaced at once, not in parts."""
    tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    replace_file(path, _safetensors(function).save(tensors, header))


def read(function: str, path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and header; a ValueError for a file that is damaged."""
    content, load = Path(path).read_bytes(), _safetensors(function).load
    try:
        length = int.from_bytes(content[:8], "little")
        return load(content), json.loads(content[8 : 8 + length]).get("__metadata__", {})
    except Exception as error:  # the parsers raise errors of many classes for a damaged file
        raise ValueError(f"{function}: {path} is damaged, or no safetensors file ({error})") from error
