"""Trainings one after the other, in each of several processes: `parallel_cases.py FILE`.

FILE is JSON, a list of cases: "argv", "draws" where it draws its figures, which would take nearly all of the
others' time, and "fail", "stop" or "finish", [rank, step] where that process raises an error, sends itself
signals or ends the training. What each process did goes into FILE.RANK.
"""

import contextlib
import gc
import io
import json
import os
import signal
import sys
from typing import Any

import torch.distributed as dist

from learnsolve import recipes, train
from learnsolve.recipes.jacobi import JacobiRecipe
from learnsolve.recipes.training.settings import SettingError

RANK = int(os.environ["RANK"])
TRUE_LOSS = JacobiRecipe.loss
written: list[str] = []


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Notes relative paths that are written to: those of a run."""
    if event != "open" or not isinstance(arguments[0], str | bytes | os.PathLike):
        return
    path, writing = os.fspath(arguments[0]), arguments[2] & (os.O_WRONLY | os.O_RDWR)
    if isinstance(path, str) and writing and path.startswith("runs"):
        written.append(path)


def loss(case: dict[str, Any]):
    def patched(self: JacobiRecipe, step: int):
        if case.get("fail") == [RANK, step]:
            raise SettingError("this process has had enough")
        self.finished = case.get("finish") == [RANK, step]
        if case.get("stop") == [RANK, step]:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)  # torchrun may send more than one
        return TRUE_LOSS(self, step)

    return patched


def main(file: str) -> None:
    sys.addaudithook(watch)
    Recipes = {Recipe: Recipe.figures for Recipe in map(recipes.load, recipes.RECIPES)}
    with open(file) as opened:
        cases = json.load(opened)
    results = []
    gc.freeze()  # a group of processes that ends collects garbage, twice
    for case in cases:
        written.clear()
        JacobiRecipe.loss = loss(case)  # type: ignore[method-assign]
        for Recipe, figures in Recipes.items():
            Recipe.figures = figures if case.get("draws") else lambda *_: iter(())  # type: ignore[method-assign]
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = train.main(case["argv"])
        results.append(
            {
                "code": code,
                "out": out.getvalue(),
                "err": err.getvalue(),
                "wrote": bool(written),
                "open": dist.is_initialized(),
            }
        )
    with open(f"{file}.{RANK}", "w") as opened:
        json.dump(results, opened)


if __name__ == "__main__":
    main(sys.argv[1])
    # As learnsolve.train under torchrun: threads of gloo have been seen to abort or hold up the exit of a
    # process after all cases had ended.
    os._exit(0)
