"""`python -m learnsolve.train RECIPE [--option value ...]`: learn the parameters of a solver.

With `torchrun --nproc-per-node N -m` in place of `python -m`, several processes share the work.

Exit codes: 0 done; 1 the training diverged, or an extra package is missing; 2 a setting cannot be used;
130 interrupted, with a checkpoint to resume from. docs/training.md lists the files of a run.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch

from learnsolve import recipes
from learnsolve.recipes import petsc
from learnsolve.recipes.training import checkpoint, parallel
from learnsolve.recipes.training import settings as command_line
from learnsolve.recipes.training.parallel import Elsewhere, Group, Lost
from learnsolve.recipes.training.recipe import VectorRecipe, table
from learnsolve.recipes.training.run import DivergenceError, TrainingInterrupt, train_one, train_seeds
from learnsolve.recipes.training.settings import MissingExtra, RunSettings, SettingError, need

OK, FAILED, BAD_SETTING, INTERRUPTED = 0, 1, 2, 130
NO_MEMORY = ("can't allocate memory", "not enough memory", "std::bad_alloc")
CHECKPOINTS = checkpoint.TENSORS, f"seed-*/{checkpoint.TENSORS}"  # of a run, or of those of --seeds
EXTRAS = ("jsonargparse", "matplotlib", "safetensors", "yaml")


def usage() -> str:
    width = max(map(len, recipes.RECIPES))
    lines = [f"  {name.ljust(width)}  {summary}" for name, summary in recipes.RECIPES.items()]
    return "\n".join(
        [
            "usage: python -m learnsolve.train RECIPE [--option value ...]",
            "",
            "recipes:",
            *lines,
            "",
            "python -m learnsolve.train RECIPE --help lists the options of a recipe.",
        ]
    )


def main(argv: Sequence[str] | None = None, leaves: bool = False) -> int:
    """Run a recipe from command line arguments and return the exit code. `leaves`: os._exit comes next."""
    argv = sys.argv[1:] if argv is None else list(argv)
    if not argv or argv[0] in ("-h", "--help"):
        print(usage())
        return OK
    name, *options = argv
    folder = None
    try:
        with parallel.join_group(_exit_code, leaves) as group:
            with group.together():
                settings, Recipe = _settings(name, options, group)
            if getattr(settings, "engine", "torch") == "petsc":
                petsc.check(settings)
                Recipe, group = petsc.distribute_rows(Recipe), petsc.make_group(_exit_code)
            folder = Path(settings.out)
            if settings.seeds > 1:
                outcome = train_seeds(name, Recipe, settings)
            else:
                outcome = train_one(name, Recipe, settings, group)
            if outcome is not None:
                print(table(outcome), "", outcome.sentence, f"Results: {folder}", sep="\n")
    except (Elsewhere, SystemExit) as error:  # --help and --print_config exit
        return _exit_code(error)
    except BaseException as error:
        if (sentence := _sentence(error, name, folder)) is None:
            raise
        print(f"learnsolve.train: {sentence}", file=sys.stderr)
        return _exit_code(error)
    return OK


def _sentence(error: BaseException, name: str, folder: Path | None) -> str | None:
    """What to print for an error, or None for a fault of the program."""
    match error:
        case SettingError() | MissingExtra():
            return str(error)
        case Lost():
            return f"{error}. {_how_to_resume(name, folder)}"
        case DivergenceError():
            return f"{error}. The last good checkpoint is in {error.folder}"
        case TrainingInterrupt():
            return f"stopped at {error.where}step {error.step}. {_how_to_resume(name, folder)}"
        case OSError():
            where = error.filename or folder
            return f"{where}: {error.strerror or error}. {_how_to_resume(name, folder)}"
        case KeyboardInterrupt():  # before or after the training
            return f"interrupted. {_how_to_resume(name, folder)}"
    return f"the memory is too small ({' '.join(str(error).split())})" if _no_room(error) else None


def _exit_code(error: BaseException) -> int:
    if isinstance(error, Elsewhere | SystemExit):
        return int(error.code or 0)
    if isinstance(error, SettingError):
        return BAD_SETTING
    return INTERRUPTED if isinstance(error, TrainingInterrupt | KeyboardInterrupt) else FAILED


def _no_room(error: BaseException) -> bool:
    """Memory that could not be allocated: torch raises a RuntimeError."""
    said = isinstance(error, RuntimeError) and any(words in str(error) for words in NO_MEMORY)
    return said or isinstance(error, MemoryError | torch.OutOfMemoryError)


def _how_to_resume(name: str, folder: Path | None) -> str:
    if folder is None or not any(any(folder.glob(place)) for place in CHECKPOINTS):
        return "Nothing was trained yet"
    return (
        f"Resume with: {parallel.launcher()} -m learnsolve.train {name} --resume {shlex.quote(str(folder))}"
    )


def _settings(name: str, options: Sequence[str], group: Group) -> tuple[RunSettings, type[recipes.Recipe]]:
    if name not in recipes.RECIPES:
        near = difflib.get_close_matches(name, recipes.RECIPES, n=1)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise SettingError(f"unknown recipe {name!r}. {hint}The recipes are: {', '.join(recipes.RECIPES)}")
    Recipe = recipes.load(name)
    # --help and --print_config are answered by one process.
    with contextlib.nullcontext() if group.writes else contextlib.redirect_stdout(io.StringIO()):
        settings = command_line.parse(name, Recipe.Settings, options)
    for package in EXTRAS:  # now, not after an hour of training
        need(package)
    if settings.logger == "tensorboard":
        need("tensorboard", "tensorboard")
    if group.size > 1:
        if not issubclass(Recipe, VectorRecipe):
            raise SettingError(
                f"{name} has no test vectors to share among {group.size} processes. Start it without torchrun"
            )
        if settings.seeds > 1:
            raise SettingError(
                f"--seeds {settings.seeds} trains one run after another in one process. Start it without "
                "torchrun, or a run with each --seed"
            )
        parallel.take_device(settings.device)
    if settings.threads is None:
        settings.threads = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    return settings, Recipe


def _torchrun_main() -> None:
    """`main` as one of torchrun's processes."""
    try:
        code = main(leaves=True)
    except BaseException:
        traceback.print_exc()
        code = FAILED
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    if "TORCHELASTIC_RUN_ID" in os.environ:
        _torchrun_main()
    code = main()
    petsc.leave(code)
    sys.exit(code)
