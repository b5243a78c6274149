"""The folder of a run. files.json lists the run's own files: no others are replaced or removed."""

import contextlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from learnsolve.recipes.harness import checkpoint
from learnsolve.recipes.harness.base import RunSettings, SettingError
from learnsolve.recipes.harness.command_line import CONFIG
from learnsolve.recipes.harness.metrics import NAME as METRICS

LIST, REPORT, HTML = "files.json", "report.json", "report.html"
WRITTEN_BY = "learnsolve.train"
EVENTS = "events.out.tfevents.*"  # of TensorBoard, which names them by time and process
# The checkpoint is deleted first: an interruption must not leave it beside files of another run.
EVERY_RUN = (checkpoint.TENSORS, checkpoint.SUMMARY, checkpoint.MODEL, METRICS, REPORT, HTML, CONFIG, LIST)


def take(folder: Path, settings: RunSettings, files: Iterable[str], folders: Iterable[str] = ()) -> None:
    """Make the folder fit for a new run, and list in it what the run will write: beside the files of every
    run `files`, and what it keeps in `folders` of their own.

    An earlier run is removed only with --overwrite. Files that are not listed stay; the folder is refused if
    the new run would write over one of them, or if there is no earlier run in it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = {path.name for path in folder.iterdir()}
    except (OSError, ValueError) as error:
        raise SettingError(f"--out {folder} cannot be used as a folder: {reason(error)}") from error
    ours = {*EVERY_RUN, *files}
    earlier = _listed(folder, ours) if held else set()
    if earlier is None:
        raise SettingError(f"--out {folder} holds other files; choose a new or empty folder")
    if held and not settings.overwrite:
        raise SettingError(
            f"--out {folder} already holds a run; continue it with --resume {folder}, replace it with "
            "--overwrite true, or choose another --out"
        )
    strangers = sorted(held & ours - earlier)
    if strangers:
        raise SettingError(
            f"--out {folder} holds {', '.join(strangers)}, which the run in it did not write and this one "
            "would replace; move it, or choose another --out"
        )
    before = _folders(folder)
    # A kill while files are removed leaves none that is not listed.
    write_list(folder, {*earlier, *ours}, {*before, *folders})
    for name in [*EVERY_RUN, *sorted(earlier - set(EVERY_RUN))]:
        if name != LIST:
            (folder / name).unlink(missing_ok=True)
    remove_leftovers(folder, {*earlier, *ours})
    for name in before:
        _forget(folder / name)
    write_list(folder, ours, folders)


def resume(folder: Path, files: Iterable[str], folders: Iterable[str] = ()) -> None:
    """Remove what killed writers have left in a run's folder, and its report, which is that of an earlier
    end; and list what the run will write."""
    ours = {*EVERY_RUN, *files}
    remove_leftovers(folder, ours)
    write_list(folder, ours | (_listed(folder, ours) or set()), {*_folders(folder), *folders})
    (folder / REPORT).unlink(missing_ok=True)


def _forget(folder: Path) -> None:
    """Remove what a run has written in a folder of its own, and the folder if that was all."""
    if folder.is_symlink() or not folder.is_dir():
        return
    names, inner = _listed(folder, set()) or set(), _folders(folder)
    remove_leftovers(folder, names)
    for path in (*(folder / name for name in names), *folder.glob(EVENTS)):
        path.unlink(missing_ok=True)
    for name in inner:
        _forget(folder / name)
    with contextlib.suppress(OSError):  # other files are in it
        folder.rmdir()


def write_list(folder: Path, names: Iterable[str], folders: Iterable[str] = ()) -> None:
    content: dict[str, Any] = {"written_by": WRITTEN_BY, "files": sorted(names)}
    if inner := sorted(folders):
        content["folders"] = inner
    checkpoint.write_atomic(folder / LIST, json.dumps(content, indent=2) + "\n")


def remove_leftovers(folder: Path, names: Iterable[str]) -> None:
    """Delete the temporary files of writers that were killed while they wrote one of `names`."""
    for name in names:
        for path in folder.glob(f".{name}.*.tmp"):
            if path.name[len(name) + 2 : -4].isdigit():  # the writer's process
                path.unlink(missing_ok=True)


def _listed(folder: Path, ours: set[str]) -> set[str] | None:
    """The files of the run in a folder; None if there is no run. Runs of earlier versions have no list: their
    checkpoint shows that they are runs, and their files are taken to be `ours`."""
    try:
        content: Any = json.loads((folder / LIST).read_bytes())
        if content["written_by"] == WRITTEN_BY:
            return {name for name in content["files"] if _plain(name) and not (folder / name).is_dir()}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    try:
        checkpoint.read_state(folder)
    except (SettingError, OSError):
        return None
    return ours - {LIST}


def _folders(folder: Path) -> set[str]:
    """The folders of the run in a folder."""
    try:
        content: Any = json.loads((folder / LIST).read_bytes())
        return (
            {name for name in content["folders"] if _plain(name)}
            if content["written_by"] == WRITTEN_BY
            else set()
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return set()


def _plain(name: Any) -> bool:
    """Can a recipe have written it? A damaged list must not lead elsewhere, nor be read as a pattern."""
    return isinstance(name, str) and re.fullmatch(r"\w[\w.-]{,99}", name, re.ASCII) is not None


def reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
