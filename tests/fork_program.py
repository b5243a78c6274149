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


class Program:
    """`python WORDS` in `place`, with more variables; output and errors go into a file of `folder`."""

    def __init__(self, folder: Path, *words: str, place: Path = Path(), **variables: str):
        self.words, self.place, self.variables = words, str(place.resolve()), variables
        self.file = folder / f"output{len(list(folder.glob('output*')))}"
        self.file.touch()
        self.process = FORKS.Process(target=_run, args=(words, self.place, str(self.file), variables))
        self.process.start()

    def end(self, seconds: float = 600) -> str:
        """What it has printed. An error if it has failed, or does not end."""
        self.process.join(seconds)
        printed = self.file.read_text()
        if self.process.exitcode != 0:
            self.process.kill()
            raise AssertionError(f"{' '.join(self.words)} ended with {self.process.exitcode}:\n{printed}")
        return printed


def _run(words: tuple[str, ...], place: str, file: str, variables: dict[str, str]) -> None:
    for descriptor in (1, 2):
        os.dup2(os.open(file, os.O_WRONLY | os.O_APPEND), descriptor)
    os.chdir(place)
    os.environ.update(variables)
    sys.dont_write_bytecode = True
    sys.argv = list(words)
    sys.path.insert(0, str(Path(words[0]).resolve().parent))
    runpy.run_path(words[0], run_name="__main__")
