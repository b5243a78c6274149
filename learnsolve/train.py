"""`python -m learnsolve.train RECIPE [--option value ...]`: learn the parameters of a solver.

With `torchrun --nproc-per-node N -m` in place of `python -m`, several processes share the work.

Exit codes: 0 done; 1 the training diverged, or an extra package is missing; 2 a setting cannot be used;
130 interrupted, with a checkpoint to resume from. docs/training.md lists the files of a run.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch

from learnsolve import recipes
from learnsolve.recipes.harness import checkpoint, command_line, parallel, report
from learnsolve.recipes.harness import folder as run_folder
from learnsolve.recipes.harness.base import RunSettings, SettingError
from learnsolve.recipes.harness.extras import MissingExtra, need
from learnsolve.recipes.harness.loop import Diverged, Interrupted, Run, train
from learnsolve.recipes.harness.metrics import check_metrics
from learnsolve.recipes.harness.parallel import Elsewhere, Group, Lost
from learnsolve.recipes.harness.vector_recipe import VectorRecipe

OK, FAILED, BAD_SETTING, INTERRUPTED = 0, 1, 2, 130
NO_MEMORY = ("can't allocate memory", "not enough memory", "std::bad_alloc")
EXTRAS = ("jsonargparse", "matplotlib", "safetensors", "tqdm", "yaml")


def usage() -> str:
    width = max(map(len, recipes.RECIPES))
    lines = [f"  {name.ljust(width)}  {entry.summary}" for name, entry in recipes.RECIPES.items()]
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
        with parallel.joined(_exit_code, leaves) as group:
            with group.together():
                settings, recipe = _build(name, options, group)
            folder = Path(settings.out)
            run = _prepare(folder, settings, recipe, group)
            train(run)
            with group.together():
                if group.writes:
                    outcome = report.write_report(folder, name, recipe, run.step, run.seconds, run.report)
                    print(report.table(outcome), "", outcome.sentence, f"Results: {folder}", sep="\n")
    except Elsewhere as error:
        return error.code
    except SystemExit as stop:  # --help and --print_config
        return _exit_code(stop)
    except (SettingError, MissingExtra) as error:
        return _fail(str(error), error)
    except Lost as error:
        return _fail(f"{error}; {_how_to_resume(name, folder)}", error)
    except Diverged as error:
        return _fail(f"{error}; the last good checkpoint is in {folder}", error)
    except Interrupted as stop:
        return _fail(f"stopped at step {stop.step}; {_how_to_resume(name, folder)}", stop)
    except OSError as error:
        where = error.filename or folder
        return _fail(f"{where}: {error.strerror or error}; {_how_to_resume(name, folder)}", error)
    except (MemoryError, RuntimeError) as error:
        if not _no_room(error):
            raise
        return _fail(f"the memory is too small ({' '.join(str(error).split())})", error)
    except KeyboardInterrupt as stop:  # before or after the training
        return _fail(f"interrupted; {_how_to_resume(name, folder)}", stop)
    return OK


def _exit_code(error: BaseException) -> int:
    if isinstance(error, SystemExit):
        return int(error.code or 0)
    if isinstance(error, SettingError):
        return BAD_SETTING
    return INTERRUPTED if isinstance(error, Interrupted | KeyboardInterrupt) else FAILED


def _no_room(error: BaseException) -> bool:
    """Memory that could not be allocated: torch raises a RuntimeError."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(
        words in str(error) for words in NO_MEMORY
    )


def _how_to_resume(name: str, folder: Path | None) -> str:
    if folder is None or not (folder / checkpoint.TENSORS).exists():
        return "nothing was trained yet"
    return (
        f"resume with: {parallel.launcher()} -m learnsolve.train {name} --resume {shlex.quote(str(folder))}"
    )


def _fail(sentence: str, error: BaseException) -> int:
    print(f"learnsolve.train: {sentence}", file=sys.stderr)
    return _exit_code(error)


def _build(name: str, options: Sequence[str], group: Group) -> tuple[RunSettings, recipes.Recipe]:
    if name not in recipes.RECIPES:
        known = ", ".join(recipes.RECIPES)
        raise SettingError(f"unknown recipe {name!r}; the recipes are: {known}")
    Recipe = recipes.load(name)
    # --help and --print_config are answered by one process.
    with contextlib.nullcontext() if group.writes else contextlib.redirect_stdout(io.StringIO()):
        settings = command_line.parse(name, Recipe.Settings, options)
    for package in EXTRAS:  # now, not after an hour of training
        need(package)
    if group.size > 1:
        if not issubclass(Recipe, VectorRecipe):
            raise SettingError(
                f"{name} has no test vectors to share among {group.size} processes; {Recipe.alone}"
            )
        parallel.take_device(settings.device)
    if settings.threads is None:
        settings.threads = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    return settings, Recipe(settings)


def _prepare(folder: Path, settings: RunSettings, recipe: recipes.Recipe, group: Group) -> Run:
    """The run in its folder: a new one, or the one that is resumed."""
    run = Run(folder, settings, recipe, recipe.optimizer(), group=group)
    with group.together():
        if group.writes:
            try:
                if settings.resume is None:
                    run_folder.take(folder, settings, type(recipe))
                else:
                    _load(run)
                    run_folder.resume(folder, type(recipe))
                checkpoint.write_atomic(folder / command_line.CONFIG, command_line.dump(settings))
            except OSError as error:
                raise SettingError(f"--out {folder} cannot be written: {run_folder.reason(error)}") from error
    with group.together():
        # After rank 0, which repairs what a kill has left.
        if not group.writes and settings.resume is not None:
            _load(run)
    return run


def _load(run: Run) -> None:
    facts = checkpoint.load_state(run.folder, run.recipe.model, run.optimizer)
    run.step, run.first_loss = facts["step"], facts.get("first_loss")
    run.seconds, run.metrics_bytes = facts["seconds"], facts["metrics_bytes"]
    check_metrics(run.folder, run.metrics_bytes, run.step)
    damaged = f"--resume {run.folder}: {checkpoint.TENSORS} is damaged"
    if facts.get("random") != {"seed": run.settings.seed, "step": run.step}:
        raise SettingError(f"{damaged} (its seed or step is not that of the run); start again")
    if run.step and not (isinstance(run.first_loss, float) and math.isfinite(run.first_loss)):
        raise SettingError(f"{damaged} (first_loss is {run.first_loss!r}); start again")
    try:
        run.recipe.restore(facts.get("recipe", {}))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SettingError(f"{damaged} (the recipe cannot use its facts: {error!r}); start again") from error
    if run.settings.steps < run.step:
        raise SettingError(f"--steps {run.settings.steps} is less than the {run.step} steps already taken")


def _launched() -> None:
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
        _launched()
    sys.exit(main())
