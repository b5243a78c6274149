"""Files: atomic replacement, and tensors with a header of strings in the safetensors format, which runs no
code when read.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

from torch import Tensor


def replace_file(path: str | os.PathLike[str], content: bytes, durable: bool = False) -> None:
    """`path` holds the old content or the new content, never a part, whatever happens to this process. With
    `durable` the new content is on the disk when this returns. An OSError names the file.

    The temporary file is in the same folder: a rename is atomic only within a file system.
    """
    path = Path(path)
    # Only digits after the name, by which a resumed run recognizes leftovers of killed writers.
    temporary = path.with_name(f".{path.name}.{os.getpid()}{threading.get_native_id():08}.tmp")
    try:
        try:
            temporary.write_bytes(content)
            if durable:
                with temporary.open("rb") as file:
                    os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        if durable:
            _sync(path.parent)  # the rename itself
    except OSError as error:
        # A failed write or sync does not name a file, and the temporary name would not help the reader.
        error.filename, error.filename2 = str(path), None
        raise


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _safetensors(function: str) -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError(
            f"{function} needs safetensors: pip install 'learnsolve[train]'", name="safetensors"
        ) from error
    return safetensors.torch


def write_tensors(
    function: str, path: str | os.PathLike[str], tensors: dict[str, Tensor], header: dict[str, str]
) -> None:
    """An existing file is replaced atomically."""
    tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    replace_file(path, _safetensors(function).save(tensors, header))


def read_tensors(function: str, path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and header; a ValueError for a damaged file."""
    content, load = Path(path).read_bytes(), _safetensors(function).load
    try:
        length = int.from_bytes(content[:8], "little")
        return load(content), json.loads(content[8 : 8 + length]).get("__metadata__") or {}
    except Exception as error:  # the parsers raise errors of many classes for a damaged file
        raise ValueError(f"{function}: {path} is damaged, or no safetensors file ({error})") from error
