"""Writers of files on a disk that fails and in processes that are killed, and what recipes do meanwhile."""

import builtins
import contextlib
import errno
import functools
import importlib
import io
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import learnsolve as ls
from learnsolve import recipes, train
from learnsolve.recipes.jacobi import JacobiRecipe
from learnsolve.recipes.training import checkpoint

from ._calls import quiet
from ._children import forked

NUMBERS = (errno.ENOSPC, errno.EIO, errno.EDQUOT)


def disk(count: int, seed: int, counts: Counter) -> Iterator[str]:
    """A fault of the disk while a file is written is an OSError that names the file; the former file is
    intact.

    Every writer of the library replaces a file while the disk is full, or fails, at one of its steps:
    opening, a write, a sync, the rename. No temporary file may be left, and the same call must work
    afterwards.
    """
    rng = np.random.default_rng(seed)
    writers = list(WRITERS.items())
    for i in range(count):
        name, (write, _) = writers[i % len(writers)]
        yield from _one(name, write, rng, counts, f"{name}, seed {seed}, case {i}")


SIZE = 20_000  # numbers of a version: tens of microseconds to some milliseconds of writing
LINE = ls.problems.poisson((SIZE // 3,))


def _filled(k: int) -> ls.CSR:
    return LINE.with_values(torch.full_like(LINE.values, k))


def _uniform(values: torch.Tensor) -> int:
    """The number that all of them are."""
    assert bool((values == values[0]).all()), "parts of two versions"
    return int(values[0])


def _module(version: int) -> torch.nn.Linear:
    module = torch.nn.Linear(SIZE, 1)
    for p in module.parameters():
        torch.nn.init.constant_(p, version)
    return module


def _save_state(path: Path, k: int) -> None:
    module = _module(k)
    facts = {"step": k, "seconds": 0, "metrics_bytes": 0}
    checkpoint.save_state(path.parent, module, torch.optim.SGD(module.parameters()), facts)


def _load_state(path: Path) -> int:
    module = _module(0)
    facts = checkpoint.load_state(path.parent, module, torch.optim.SGD(module.parameters()))
    version = _uniform(module.weight.detach().flatten())
    assert facts["step"] == version, f"step {facts['step']} with weights of {version}"
    return version


@functools.cache
def _table(k: int) -> Any:
    A = ls.problems.poisson((3, 3))
    with quiet():
        return ls.compare_preconditioners(
            A, torch.ones(9, dtype=A.dtype), {"none": None}, rtol=(1e-2, 1e-8)[k - 1]
        )


def _rows(path: Path, k: int) -> None:
    arrays = {key: np.full(3, k) for key in PLANETOID.ARRAYS}
    PLANETOID._store(path, arrays, "d")


# Writers of a file, or several in its folder, of contents that a number chooses; and a reader of the number.
PLANETOID = importlib.import_module("learnsolve.io.planetoid")
WRITERS: dict[str, tuple[Callable[[Path, int], None], Callable[[Path], int] | None]] = {
    "CSR.save": (lambda path, k: _filled(k).save(path), lambda path: _uniform(ls.CSR.load(path).values)),
    "write_matrix_market": (
        lambda path, k: ls.io.write_matrix_market(path, _filled(k)),
        lambda path: _uniform(ls.problems.matrix_market(path).values),
    ),
    "checkpoint": (_save_state, _load_state),
    "report": (
        lambda path, k: checkpoint.write_atomic(path, f"{k}\n" * SIZE),
        lambda path: _uniform(torch.tensor([int(line) for line in path.read_text().splitlines()])),
    ),
    "network": (lambda path, k: ls.preconditioners.NeuralIF(rounds=k, width=2).save(path), None),
    "model": (lambda path, k: checkpoint.save_model(path.parent, _module(k)), None),
    "to_csv": (lambda path, k: _table(k).to_csv(path), None),
    "to_json": (lambda path, k: _table(k).to_json(path), None),
    "plot": (lambda path, k: _table(k).plot(path.with_suffix(".png")), None),
    "planetoid": (_rows, None),
}


def _one(
    name: str, write: Callable[[Path, int], None], rng: np.random.Generator, counts: Counter, where: str
) -> list[str]:
    faults = []
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "out.mtx"
        write(path, 2)
        after = _contents(path.parent)
        write(path, 1)
        with _disk(0) as disk:
            write(path, 1)
        before = _contents(path.parent)
        if before == after:
            faults.append(f"{where}: two contents are written alike")
        at, number = int(rng.integers(1, disk.seen + 1)), int(rng.choice(NUMBERS))
        error = None
        try:
            with _disk(at, number) as disk:
                write(path, 2)
        except OSError as raised:
            error = raised
        where = f"{where}: {errno.errorcode[number]} at {disk.what}"
        counts["faults of the disk"] += 1
        if error is None:
            faults.append(f"{where} was not heard of")
        elif error.errno != number or path.parent.name not in str(error):
            faults.append(f"{where}: the error does not name the file: {error}")
        found = _contents(path.parent)
        if left := found.keys() - before.keys() - after.keys():
            faults.append(f"{where} leaves {sorted(left)}")
        for key, content in before.items():
            if key in found and found[key] not in (content, after.get(key)):
                faults.append(f"{where} leaves a part of {key}")
            if key not in found:
                faults.append(f"{where}: {key} is gone")
        write(path, 2)
        if _contents(path.parent) != after:
            faults.append(f"{where}: the next call writes something else")
    return faults


def _contents(place: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in place.iterdir()}


class _Disk:
    """Counts steps, and fails at one of them."""

    def __init__(self, at: int, number: int):
        self.at, self.number, self.seen, self.what = at, number, 0, "no step"

    def step(self, what: str, *names: Any) -> None:
        self.seen += 1
        if self.seen == self.at:
            self.what = what
            raise OSError(self.number, os.strerror(self.number), *names)


class _File:
    """A file whose writes are steps. One that fails has written a part."""

    def __init__(self, file: Any, disk: _Disk):
        self._file, self._disk = file, disk

    def write(self, content: Any) -> Any:
        try:
            self._disk.step("a write")
        except OSError:
            self._file.write(content[: len(content) // 2])
            raise
        return self._file.write(content)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._file)

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


@contextmanager
def _disk(at: int, number: int = 0) -> Iterator[_Disk]:
    """Python's ways to write, through a disk that fails at step `at`."""
    disk, real = _Disk(at, number), io.open

    def opened(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if not set(mode) & set("wax+"):
            return real(file, mode, *arguments, **options)
        disk.step("opening", os.fspath(file))
        return _File(real(file, mode, *arguments, **options), disk)

    def before(what: str, function: Callable[..., Any], name: bool) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            disk.step(what, *([os.fspath(arguments[0])] if name else []))
            return function(*arguments, **options)

        return step

    was = os.replace, os.fsync
    builtins.open = io.open = opened
    os.replace, os.fsync = before("the rename", os.replace, True), before("a sync", os.fsync, False)
    try:
        yield disk
    finally:
        builtins.open = io.open = real
        os.replace, os.fsync = was


TRAINING = ["jacobi", "--test_vectors", "10", "--checkpoint_seconds", "0", "--threads", "1", "--quiet"]


def kills(count: int, seed: int, counts: Counter) -> Iterator[str]:
    """A process that is killed (SIGKILL) while it writes leaves the former file or the new one, never a
    part.

    A fork writes versions of a file in a loop and is killed at a random moment. What it leaves must be
    one whole version: the last that was reported, or the next. Every tenth case is a training that writes
    a checkpoint at each step: killed and resumed, it must end with the weights of one that was left
    alone.
    """
    rng = np.random.default_rng(seed)
    writers = [(name, write, read) for name, (write, read) in WRITERS.items() if read]
    for i in range(count):
        if i % 10 == 9:
            with tempfile.TemporaryDirectory() as made:
                fault = _training(Path(made), rng.random())
            counts["killed trainings"] += 1
            if fault:
                yield f"training, seed {seed}, case {i}: {fault}"
            continue
        name, write, read = writers[i % len(writers)]
        with tempfile.TemporaryDirectory() as made:
            path = Path(made) / "out.mtx"
            write(path, 1)
            done = _killed(write, path, rng.random() * 0.02)
            counts["kills"] += 1
            where = f"{name}, seed {seed}, case {i}"
            try:
                version = read(path)
            except Exception as error:  # of any kind: the file cannot be read
                yield f"{where}: after version {done}, {type(error).__name__}: {error}"
                continue
            if version not in (done, done + 1):
                yield f"{where}: version {version} is there, {done} was written"
            checkpoint.remove_leftovers(path.parent, ["out.mtx", *checkpoint.FILES])
            if left := list(path.parent.glob(".*")):
                yield f"{where}: {left} would never be removed"


def _killed(write: Callable[[Path, int], None], path: Path, seconds: float) -> int:
    """The last version that a process had written when it was killed, this long after its first."""
    ours, theirs = os.pipe()

    def versions() -> int:
        for version in range(2, 10_000):
            write(path, version)
            os.write(theirs, version.to_bytes(4, "little"))
        return 0

    child = forked(versions)
    os.close(theirs)
    told = os.read(ours, 4)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(ours, "rb") as pipe:
        return int.from_bytes((told + pipe.read())[-4:], "little")


def _training(made: Path, share: float) -> str | None:
    """What is wrong with one that is killed after this share of its time, and resumed."""
    options = [*TRAINING, "--steps", "40"]
    code, seconds = _trained([*options, "--out", str(made / "whole")])
    if code:
        return f"undisturbed, it ends with exit code {code}"
    killed = made / "killed"
    _trained([*options, "--out", str(killed)], share * seconds)
    begun = (killed / "state.safetensors").exists()
    again = ["jacobi", "--resume", str(killed)] if begun else [*options, "--overwrite", "--out", str(killed)]
    if code := _trained(again)[0]:
        return f"{'resumed' if begun else 'begun again'}, it ends with exit code {code}"
    same = [(made / name / "model.safetensors").read_bytes() for name in ("whole", "killed")]
    return None if same[0] == same[1] else f"{'resumed' if begun else 'begun again'}, it has other weights"


def _trained(options: list[str], seconds: float | None = None) -> tuple[int, float]:
    """The exit code and the time of a training in a process of its own, killed after `seconds`."""

    def training() -> int:
        JacobiRecipe.figures = lambda *_: iter(())  # nearly all of its time
        with contextlib.redirect_stdout(io.StringIO()):
            return train.main(options)

    start, child = time.perf_counter(), forked(training)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), time.perf_counter() - start


# --- what a recipe does beside training ---

RECIPES = [name for name in recipes.RECIPES if name != "gcn"]  # that may have to download its data set
FORBIDDEN = ("socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.fork", "urllib.")
ALLOWED = ("socket.gethostname",)  # asks the kernel alone
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def audit(count: int, seed: int, counts: Counter) -> Iterator[str]:
    """A recipe opens no socket, starts no process, and writes only to its folder and to caches.

    `python -m learnsolve.train RECIPE --steps 2` in a fork, whose events of Python's audit hooks are
    recorded.
    """
    for i in range(count):
        name = RECIPES[(i + seed) % len(RECIPES)]
        with tempfile.TemporaryDirectory() as made:
            record = Path(made) / "events.json"
            _, status = os.waitpid(forked(lambda: _recipe(name, record)), 0)  # noqa: B023
            events = json.loads(record.read_text()) if record.exists() else ["no record was written"]
        counts["recipes"] += 1
        yield from (f"{name}, seed {seed}: {event}" for event in events)
        if code := os.waitstatus_to_exitcode(status):
            yield f"{name}, seed {seed}: ended with {code}"


def _recipe(name: str, record: Path) -> int:
    """In a fork, as hooks cannot be removed: records what must not be done."""
    folder = record.parent
    os.environ |= {"MPLCONFIGDIR": str(folder / "cache"), "XDG_CACHE_HOME": str(folder / "cache")}
    os.environ["HOME"] = str(folder / "home")
    os.chdir(folder)
    events: list[str] = []
    may = (str(folder / "out"), str(folder / "cache"), "/dev/null")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        fonts = event == "subprocess.Popen" and arguments[0] == "fc-list"  # matplotlib, once for each cache
        if event.startswith((*FORBIDDEN, "ftplib.")) and event not in ALLOWED and not fonts:
            events.append(f"{event} {arguments!r:.200}")
        elif event == "open" and isinstance(arguments[0], (str, bytes)):
            path, mode, flags = os.path.abspath(os.fsdecode(arguments[0])), arguments[1], arguments[2] or 0
            writes = bool(set(mode) & set("wax+")) if mode else bool(flags & WRITES)
            if writes and not path.startswith(may) and "__pycache__" not in path:
                events.append(f"wrote {path}")

    sys.addaudithook(hook)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    code = train.main([name, "--steps", "2", "--out", "out", "--quiet", "true", "--threads", "1"])
    events = list(dict.fromkeys(events))
    may = (str(folder),)
    record.write_text(json.dumps(events))
    return code
