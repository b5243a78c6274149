"""One run, from its settings to its report."""

from __future__ import annotations

import math
from pathlib import Path

from learnsolve.recipes.harness import checkpoint, command_line, tensorboard
from learnsolve.recipes.harness import folder as run_folder
from learnsolve.recipes.harness.base import Outcome, Recipe, RunSettings, SettingError
from learnsolve.recipes.harness.loop import Run, train
from learnsolve.recipes.harness.metrics import check_metrics
from learnsolve.recipes.harness.parallel import ALONE, Group
from learnsolve.recipes.harness.report import write_report


def train_one(name: str, Recipe: type[Recipe], settings: RunSettings, group: Group = ALONE) -> Outcome | None:
    """Train in the folder of the settings, new or resumed, and write the report; None in a process that does
    not write."""
    with group.together():
        recipe = Recipe(settings)
    run = _prepare(settings, recipe, group)
    train(run)
    with group.together():
        if group.writes:
            return write_report(run.folder, name, recipe, run.step, run.seconds, run.report)
    return None


def _prepare(settings: RunSettings, recipe: Recipe, group: Group) -> Run:
    """The run in its folder: a new one, or the one that is resumed."""
    folder = Path(settings.out)
    run = Run(folder, settings, recipe, recipe.optimizer(), group=group)
    folders = (tensorboard.FOLDER,) if settings.logger == "tensorboard" else ()
    with group.together():
        if group.writes:
            try:
                if settings.resume is None:
                    run_folder.take(folder, settings, recipe.files, folders)
                else:
                    _load(run)
                    run_folder.resume(folder, recipe.files, folders)
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
