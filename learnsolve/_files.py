"""Writing files."""

import os
import threading
from pathlib import Path


def replace_file(path: str | os.PathLike[str], content: bytes, durable: bool = False) -> None:
    """`path` holds the old content or the new one, never a part, whatever becomes of this process. With
    `durable` the new one is on the disk when this returns. An OSError names the file.

    The temporary file lies in the same folder: a rename is atomic only within one file system.
    """
    path = Path(path)
    # Of digits alone behind the name, by which a resumed run knows what killed writers have left.
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
        # A write or a sync that fails does not say where, and the temporary file is no name to a reader.
        error.filename, error.filename2 = str(path), None
        raise


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
