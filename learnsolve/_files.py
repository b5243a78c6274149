"""Writing files."""

import os
from pathlib import Path


def replace_file(path: str | os.PathLike[str], content: bytes) -> None:
    """A file that is there is replaced at once, not in parts."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
