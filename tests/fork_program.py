"""Runs a program as a new process would, without seconds of imports: a server that has made them forks."""

import multiprocessing
import os
import runpy
import sys
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["learnsolve.train", "matplotlib.pyplot", "torch._dynamo", "scipy.sparse.linalg"]
)


def _child(words: list[str], out: str, err: str) -> None:
    for name, descriptor in ((out, 1), (err, 2)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    sys.dont_write_bytecode = True
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).resolve().parent))
    runpy.run_path(words[0], run_name="__main__")


def run_program(folder: Path, *words: str) -> tuple[int, str, str]:
    """Exit code, output and errors of `python WORDS`, which are kept in two files of the folder."""
    out, err = folder / "out.txt", folder / "err.txt"
    process = FORKS.Process(target=_child, args=(list(words), str(out), str(err)))
    process.start()
    process.join()
    return process.exitcode or 0, out.read_text(), err.read_text()
