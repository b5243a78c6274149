"""The files of an unfinished run: its folder, its rows in metrics.csv, and checkpoints that survive a kill at
any moment.

state.safetensors is the checkpoint: parameters and optimizer state, and in its header the rest as JSON. One
atomic rename replaces it, so that tensors and step always belong together. state.json repeats the header for
readers, with the file's SHA-256. A kill between the two renames leaves it one checkpoint behind, which
loading detects and repairs. A checkpoint notes how many bytes of metrics.csv belong to it: a resumed run cuts
the file there. files.json lists the run's own files: no others are replaced or removed.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import math
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor

from learnsolve.matrix.convert import replace_file
from learnsolve.recipes.training.settings import CONFIG, RunSettings, SettingError, need

FORMAT = 1
FIELDS: dict[str, Any] = {"step": int, "seconds": (int, float), "metrics_bytes": int}  # all nonnegative
TENSORS, SUMMARY, MODEL = "state.safetensors", "state.json", "model.safetensors"
METRICS, REPORT, HTML, LIST = "metrics.csv", "report.json", "report.html", "files.json"
COLUMNS = ("step", "loss", "held_out_loss", "gradient_norm", "seconds")
WRITTEN_BY = "learnsolve.train"
EVENTS = "events.out.tfevents.*"  # TensorBoard files, named by time and process
# The checkpoint is deleted first: an interruption must not leave it with files of another run.
EVERY_RUN = (TENSORS, SUMMARY, MODEL, METRICS, REPORT, HTML, CONFIG, LIST)
# Columns of metrics.csv by name; None if a step has no such entry.
History = dict[str, list]


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write bytes or text. `path` holds the old or the new content, never a part."""
    replace_file(path, content.encode() if isinstance(content, str) else content, durable=True)


def save_model(folder: Path, model: torch.nn.Module) -> None:
    """model.safetensors: the tensors of the model's state_dict, and the header of a `FactorNetwork`."""
    save, header = need("safetensors.torch").save, getattr(model, "header", dict)
    write_atomic(folder / MODEL, save(_contiguous(model.state_dict()), header() or None))


def save_state(
    folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, facts: dict[str, Any]
) -> None:
    """Write a checkpoint. `facts` (JSON) holds at least "step"."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for index, entries in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": tensor for name, tensor in entries.items()}
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"the state {name!r} is not a tensor and could not be restored exactly")
    facts = {"format": FORMAT, **facts}
    # The JSON is one string: safetensors headers hold only strings, whose order is not kept.
    content = need("safetensors.torch").save(_contiguous(tensors), {"state": json.dumps(facts)})
    write_atomic(folder / TENSORS, content)
    _write_summary(folder, facts, hashlib.sha256(content).hexdigest())
    save_model(folder, model)


def load_state(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Restore model and optimizer from the last checkpoint and return its facts."""
    facts, content = read_state(folder)
    weights: dict[str, Tensor] = {}
    state: dict[int, dict[str, Tensor]] = {}
    try:
        for key, tensor in need("safetensors.torch").load(content).items():
            owner, name = key.split(".", 1)
            if owner == "model":
                weights[name] = tensor
            elif owner == "optimizer":
                index, name = name.split(".", 1)
                state.setdefault(int(index), {})[name] = tensor
        model.load_state_dict(weights)
        _check_optimizer(optimizer, state, list(model.parameters()), facts["step"])
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    except (RuntimeError, ValueError) as error:
        what = " ".join(str(error).split())
        raise SettingError(
            f"--resume {folder}: {TENSORS} does not fit this run: {what}. Start again"
        ) from error
    if facts != _read_summary(folder)[0]:
        _write_summary(folder, facts, hashlib.sha256(content).hexdigest())
    return facts


def _check_optimizer(
    optimizer: torch.optim.Optimizer, state: dict[int, dict[str, Tensor]], parameters: list[Any], step: int
) -> None:
    """Raise ValueError if the optimizer cannot have this state after `step` steps for the parameters."""
    adam = isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW)
    lost = any(not entries.keys() >= {"step", "exp_avg", "exp_avg_sq"} for entries in state.values())
    if not set(state) <= set(range(len(parameters))) or (state and not step):
        raise ValueError("the optimizer's state belongs to other parameters")
    if adam and (lost or bool(state) != bool(step)):
        raise ValueError("the optimizer's state is not complete")
    for index, entries in state.items():
        for name, tensor in entries.items():
            if name == "step" and int(tensor) != step:
                raise ValueError(f"its step is {step}, the optimizer's {int(tensor)}")
            if tensor.dim() and tensor.shape != parameters[index].shape:
                raise ValueError(f"the optimizer's {name} has shape {tuple(tensor.shape)}")


def read_state(folder: Path) -> tuple[dict[str, Any], bytes]:
    """The facts and the bytes of the last checkpoint, verified."""
    path, tensors = folder / TENSORS, f"--resume {folder}: {TENSORS}"
    if not path.is_file():
        raise SettingError(
            f"--resume {folder}: there is no {TENSORS} to resume from. Start with --out instead"
        )
    content, load = path.read_bytes(), need("safetensors.torch").load
    try:
        length = int.from_bytes(content[:8], "little")
        facts = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["state"])
        load(content)
    except Exception as error:  # parsers raise many kinds of errors on a damaged file
        raise SettingError(f"{tensors} is damaged ({error}). Start again") from error
    if not isinstance(facts, dict):
        raise SettingError(f"{tensors} is damaged (it has no facts). Start again")
    if (number := facts.get("format")) != FORMAT:
        raise SettingError(f"{tensors} has format {number}, this version reads {FORMAT}. Start again")
    summary, digest = _read_summary(folder)
    if summary == facts and digest != hashlib.sha256(content).hexdigest():
        raise SettingError(f"{tensors} does not match the SHA-256 in {SUMMARY}. Start again")
    for name, kind in FIELDS.items():
        value: Any = facts.get(name)
        if not isinstance(value, kind) or isinstance(value, bool) or not 0 <= value < math.inf:
            raise SettingError(f"{tensors} is damaged ({name} is {value!r}). Start again")
    return facts, content


def _write_summary(folder: Path, facts: dict[str, Any], digest: str) -> None:
    write_atomic(folder / SUMMARY, json.dumps({**facts, "sha256": digest}, indent=2) + "\n")


def _read_summary(folder: Path) -> tuple[dict[str, Any], str | None]:
    try:
        summary = json.loads((folder / SUMMARY).read_text())
        return summary, summary.pop("sha256", None)
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return {}, None


def _contiguous(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


class Metrics:
    """Appends to metrics.csv in `folder` after its first `size` bytes.

    `columns` are the recipe's, after COLUMNS. `also` is called with every row as a dictionary.
    """

    def __init__(self, folder: Path, size: int, columns: Sequence[str] = (), also: Any = None):
        self._names, self._also = (*COLUMNS, *columns), also
        self._rows: list[tuple] = []
        path = folder / METRICS
        if size == 0:
            path.write_text(",".join(self._names) + "\n")
        else:
            os.truncate(path, size)
        self._file = path.open("a")

    def add(self, *row, measured: Sequence[float | None] | None = None) -> None:
        """The values of COLUMNS in order, None for a missing one, and the recipe's columns if measured."""
        more = [None] * (len(self._names) - len(COLUMNS)) if measured is None else measured
        self._rows.append((*row, *more))
        if self._also is not None:
            self._also(dict(zip(self._names, self._rows[-1], strict=True)))

    def flush(self) -> None:
        self._file.writelines(
            ",".join([*map(_text, row[:4]), f"{row[4]:.6f}", *map(_text, row[5:])]) + "\n"
            for row in self._rows
        )
        self._rows.clear()
        self._file.flush()

    def size(self) -> int:
        """The size of the file, which is on disk when this returns."""
        self.flush()
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        self.flush()
        self._file.close()


def _text(value: float | None) -> str:
    return "" if value is None else repr(value)


def check_metrics(folder: Path, size: int, step: int) -> None:
    """Raise SettingError unless the first `size` bytes of metrics.csv are the rows of `step` steps."""
    try:
        content = (folder / METRICS).read_bytes()[:size]
        if len(content) < size:
            raise ValueError(f"it has {len(content)} bytes, the checkpoint counts {size}")
        if _columns(io.StringIO(content.decode(), newline=""))["step"] != list(range(step)):
            raise ValueError(f"it does not have one row for each of {step} steps")
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise SettingError(f"--resume {folder}: {METRICS} is damaged ({error}). Start again") from error


def read_metrics(folder: Path) -> History:
    """The columns of metrics.csv by name."""
    with (folder / METRICS).open(newline="") as file:
        return _columns(file)


def _columns(file: TextIO) -> History:
    reader = csv.DictReader(file)
    rows = list(reader)
    if tuple(reader.fieldnames or ())[: len(COLUMNS)] != COLUMNS:
        raise ValueError(f"its columns must begin with {', '.join(COLUMNS)}")
    if any(None in row or None in row.values() for row in rows):
        raise ValueError("a row has more or fewer entries than there are columns")
    history: History = {"step": [int(row["step"]) for row in rows]}
    for name in (reader.fieldnames or COLUMNS)[1:]:
        history[name] = [float(row[name]) if row[name] else None for row in rows]
    return history


def take(folder: Path, settings: RunSettings, files: Iterable[str], folders: Iterable[str] = ()) -> None:
    """Prepare the folder for a new run, and list in it the files that the run will write: the files of every
    run, `files`, and the files in its `folders`.

    An earlier run is removed only with --overwrite. Files that are not listed stay. The folder is rejected if
    the new run would write over one of them, or if there is no earlier run in it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        present = {path.name for path in folder.iterdir()}
    except (OSError, ValueError) as error:
        raise SettingError(f"--out {folder} cannot be used as a folder: {reason(error)}") from error
    ours, listed = {*EVERY_RUN, *files}, _list(folder)
    if present and listed is None:
        raise SettingError(f"--out {folder} holds other files. Choose a new or empty folder")
    earlier, before = listed or (set(), set())
    if present and not settings.overwrite:
        raise SettingError(
            f"--out {folder} already holds a run. Continue it with --resume {folder}, replace it with "
            "--overwrite true, or choose another --out"
        )
    if strangers := sorted(present & ours - earlier):
        raise SettingError(
            f"--out {folder} holds {', '.join(strangers)}, which the run in it did not write and this one "
            "would replace. Move it, or choose another --out"
        )
    # A kill while files are removed leaves only listed files.
    write_list(folder, {*earlier, *ours}, {*before, *folders})
    for name in [*EVERY_RUN[:-1], *sorted(earlier - set(EVERY_RUN))]:
        (folder / name).unlink(missing_ok=True)
    remove_leftovers(folder, {*earlier, *ours})
    for name in before:
        _forget(folder / name)
    write_list(folder, ours, folders)


def resume(folder: Path, files: Iterable[str], folders: Iterable[str] = ()) -> None:
    """Remove leftovers of killed writers from a run's folder, and its report, which belongs to an earlier
    end, then list the files that the run will write."""
    ours, (earlier, before) = {*EVERY_RUN, *files}, _list(folder) or (set(), set())
    remove_leftovers(folder, ours)
    write_list(folder, ours | earlier, before | {*folders})
    (folder / REPORT).unlink(missing_ok=True)


def _forget(folder: Path) -> None:
    """Remove the files of a run from its own folder, and the folder if it is then empty."""
    if folder.is_symlink() or not folder.is_dir():
        return
    names, inner = _list(folder) or (set(), set())
    remove_leftovers(folder, names)
    for path in (*(folder / name for name in names), *folder.glob(EVENTS)):
        path.unlink(missing_ok=True)
    for name in inner:
        _forget(folder / name)
    with contextlib.suppress(OSError):  # it contains other files
        folder.rmdir()


def write_list(folder: Path, names: Iterable[str], folders: Iterable[str] = ()) -> None:
    content: dict[str, Any] = {"written_by": WRITTEN_BY, "files": sorted(names)}
    if inner := sorted(folders):
        content["folders"] = inner
    write_atomic(folder / LIST, json.dumps(content, indent=2) + "\n")


def remove_leftovers(folder: Path, names: Iterable[str]) -> None:
    """Delete the temporary files of writers that were killed while they wrote one of `names`."""
    for name in names:
        for path in folder.glob(f".{name}.*.tmp"):
            if path.name[len(name) + 2 : -4].isdigit():  # the writer's process
                path.unlink(missing_ok=True)


def _list(folder: Path) -> tuple[set[str], set[str]] | None:
    """The files and the folders of the run in a folder, or None if there is no run."""
    try:
        content: Any = json.loads((folder / LIST).read_bytes())
        if content["written_by"] != WRITTEN_BY or not isinstance(content["files"], list):
            return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    files, folders = filter(_plain, content["files"]), content.get("folders")
    inner = {*filter(_plain, folders)} if isinstance(folders, list) else set()
    return {name for name in files if not (folder / name).is_dir()}, inner


def _plain(name: Any) -> bool:
    """Whether a recipe can have written it: a damaged list must not name other folders or glob patterns."""
    return isinstance(name, str) and re.fullmatch(r"\w[\w.-]{,99}", name, re.ASCII) is not None


def reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
