"""Writers in processes that are killed."""

import contextlib
import io
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

import learnsolve as ls
from learnsolve import train
from learnsolve.recipes.harness import checkpoint
from learnsolve.recipes.jacobi import JacobiRecipe

TRAINING = ["jacobi", "--test_vectors", "10", "--checkpoint_seconds", "0", "--threads", "1", "--quiet"]
SIZE = 20_000  # numbers of a version: tens of microseconds to some milliseconds of writing


def kills(count: int, seed: int, counts: Counter) -> Iterator[str]:
    """A process that is killed (SIGKILL) while it writes leaves the former file or the new one, never a
    part.

    A fork writes versions of a file in a loop and is killed at a random moment. What it leaves must be
    one whole version: the last that was reported, or the next. Every tenth case is a training that writes
    a checkpoint at each step: killed and resumed, it must end with the weights of one that was left
    alone.
    """
    rng = np.random.default_rng(seed)
    writers = list(WRITERS.items())
    for i in range(count):
        if i % 10 == 9:
            with tempfile.TemporaryDirectory() as made:
                fault = _training(Path(made), rng.random())
            counts["killed trainings"] += 1
            if fault:
                yield f"training, seed {seed}, case {i}: {fault}"
            continue
        name, (write, read) = writers[i % len(writers)]
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
            checkpoint.remove_leftovers(path.parent, ["out.mtx", *checkpoint.EVERY_RUN])
            if left := list(path.parent.glob(".*")):
                yield f"{where}: {left} would never be removed"


def _killed(write: Callable[[Path, int], None], path: Path, seconds: float) -> int:
    """The last version that a process had written when it was killed, this long after its first."""
    threads, (ours, theirs) = torch.get_num_threads(), os.pipe()
    torch.set_num_threads(1)  # a fork has none of the others
    if (child := os.fork()) == 0:
        try:
            for version in range(2, 10_000):
                write(path, version)
                os.write(theirs, version.to_bytes(4, "little"))
        finally:
            os._exit(1)
    torch.set_num_threads(threads)
    os.close(theirs)
    first = os.read(ours, 4)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    rest = first
    while chunk := os.read(ours, 4096):
        rest = (rest + chunk)[-4:] if (len(rest) + len(chunk)) % 4 == 0 else rest + chunk
    os.close(ours)
    return int.from_bytes(rest[-4:], "little")


def _training(made: Path, share: float) -> str | None:
    """What is wrong with one that is killed after this share of its time, and resumed."""
    options = [*TRAINING, "--steps", "40"]
    code, seconds = _trained([*options, "--out", str(made / "whole")])
    if code:
        return f"undisturbed, it ends with exit code {code}"
    killed = made / "killed"
    _trained([*options, "--out", str(killed)], share * seconds)
    begun = (killed / "state.json").exists()
    again = ["jacobi", "--resume", str(killed)] if begun else [*options, "--overwrite", "--out", str(killed)]
    if code := _trained(again)[0]:
        return f"{'resumed' if begun else 'begun again'}, it ends with exit code {code}"
    same = [(made / name / "model.safetensors").read_bytes() for name in ("whole", "killed")]
    return None if same[0] == same[1] else f"{'resumed' if begun else 'begun again'}, it has other weights"


def _trained(options: list[str], seconds: float | None = None) -> tuple[int, float]:
    """The exit code and the time of a training in a process of its own, killed after `seconds`."""
    start, threads = time.perf_counter(), torch.get_num_threads()
    torch.set_num_threads(1)  # a fork has none of the others
    if (child := os.fork()) == 0:
        code = 1
        try:
            JacobiRecipe.figures = lambda *_: iter(())  # nearly all of its time
            with contextlib.redirect_stdout(io.StringIO()):
                code = train.main(options)
        finally:
            os._exit(code)
    torch.set_num_threads(threads)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), time.perf_counter() - start


def _module(version: int) -> torch.nn.Linear:
    module = torch.nn.Linear(SIZE, 1)
    with torch.no_grad():
        for p in module.parameters():
            p.fill_(version)
    return module


def _one(values: torch.Tensor) -> int:
    """The number that all of them are."""
    assert bool((values == values[0]).all()), "parts of two versions"
    return int(values[0])


def _save_state(path: Path, version: int) -> None:
    module = _module(version)
    optimizer = torch.optim.SGD(module.parameters())
    checkpoint.save_state(path.parent, module, optimizer, {"step": version, "seconds": 0, "metrics_bytes": 0})


def _load_state(path: Path) -> int:
    module = _module(0)
    facts = checkpoint.load_state(path.parent, module, torch.optim.SGD(module.parameters()))
    version = _one(module.weight.detach().flatten())
    assert facts["step"] == version, f"step {facts['step']} with weights of {version}"
    return version


LINE = ls.problems.poisson((SIZE // 3,))
WRITERS: dict[str, tuple[Callable[[Path, int], None], Callable[[Path], int]]] = {
    "CSR.save": (
        lambda path, k: LINE.with_values(torch.full_like(LINE.values, k)).save(path),
        lambda path: _one(ls.CSR.load(path).values),
    ),
    "write_matrix_market": (
        lambda path, k: ls.io.write_matrix_market(path, LINE.with_values(torch.full_like(LINE.values, k))),
        lambda path: _one(ls.problems.matrix_market(path).values),
    ),
    "checkpoint": (_save_state, _load_state),
    "report": (
        lambda path, k: checkpoint.write_atomic(path, f"{k}\n" * SIZE),
        lambda path: _one(torch.tensor([int(line) for line in path.read_text().splitlines()])),
    ),
}
