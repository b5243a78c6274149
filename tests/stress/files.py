"""Files that are damaged, hostile or valid."""

import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from . import _binary, _market
from ._children import in_children

SECONDS = 20  # of one file
MEMORY = 2**30  # bytes that a child may allocate

# Of a hundred files, how many are of each kind.
SHARES: dict[str, tuple[int, Callable]] = {
    "Matrix Market": (56, lambda rng, folder, write: _market.one(rng, folder / "A.mtx", write)),
    "matrices": (12, _binary.matrix),
    "networks": (8, _binary.network),
    "run folders": (8, _binary.run_folder),
    "configs": (2, _binary.config),
    "pickles": (8, _binary.planetoid_pickle),
    "npz": (6, _binary.planetoid_npz),
}
KINDS = [kind for kind, (share, _) in SHARES.items() for _ in range(share)]
assert len(KINDS) == 100


def files(count: int, seed: int, counts: Counter) -> Iterator[str]:
    """Damaged and hostile files are refused with an error: none ends or holds up the process, takes its
    memory, runs code or writes elsewhere; valid ones are read as an independent reader does.

    Matrix Market files, matrices and networks in safetensors, checkpoints and configs of
    learnsolve.train, and Planetoid's pickles and .npz files, each in a child process.
    """
    _binary.samples()
    with tempfile.TemporaryDirectory(prefix="stress-") as folder:
        guard = Guard(Path(folder))
        case = lambda seed, number: one(seed, number, guard)  # noqa: E731
        yield from in_children(count, seed, counts, case, seconds=SECONDS, memory=MEMORY, prepare=guard.begin)


def one(seed: int, number: int, guard: "Guard") -> tuple[str, str | None]:
    """The kind of the file and its fault, or None."""
    rng = random.Random(seed * 2**32 + number)
    kind = KINDS[rng.randrange(100)]
    guard.clear()
    return kind, SHARES[kind][1](rng, guard.folder, guard.write) or guard.seen()


class Guard:
    """A folder for the files, and what the process does beside reading them: Python's audit events."""

    RUNS = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect")
    WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
    CHANGES = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "shutil.rmtree")

    def __init__(self, folder: Path):
        self.folder, self.events = folder, []

    def begin(self) -> None:
        """In the child: the hook stays until it ends."""
        torch.set_num_threads(1)
        sys.dont_write_bytecode = True
        os.chdir(self.folder)
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple) -> None:
        if event in self.RUNS:
            self.events.append(f"{event}{arguments[:2]}")
        elif event in self.CHANGES or (event == "open" and arguments[2] & self.WRITES):
            # A file name, or a number of an open file, or (of the changes) two names.
            for path in arguments[: 1 + (event in ("os.rename", "os.link", "os.symlink"))]:
                if isinstance(path, str | bytes | os.PathLike) and not self._inside(os.fsdecode(path)):
                    self.events.append(f"{event} {os.fsdecode(path)}")

    def _inside(self, path: str) -> bool:
        return os.path.abspath(path).startswith(f"{self.folder}{os.sep}")

    def clear(self) -> None:
        for path in self.folder.iterdir():
            path.rmdir() if path.is_dir() else path.unlink()
        self.events.clear()

    def write(self, path: Path, content: bytes) -> Path:
        path.write_bytes(content)
        return path

    def seen(self) -> str | None:
        """What the process did that it must not do, or None."""
        if (self.folder / "ran").exists():
            return "code of the file ran: it made a file"
        return f"the process did {self.events[0]}" if self.events else None
