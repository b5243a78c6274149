"""The files of an unfinished run: its folder, its rows in metrics.csv, and checkpoints that survive a kill at
any moment.

state.safetensors is the checkpoint: parameters and optimizer state, and in its header the rest as JSON, with
the SHA-256 of all. One atomic rename replaces it, so that tensors and step always belong together. A
checkpoint notes how many bytes of metrics.csv belong to it: a resumed run cuts the file there.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor

from learnsolve.matrix.convert import replace_file
from learnsolve.recipes.training.settings import CONFIG, WRITTEN_BY, RunSettings, SettingError, need

TENSORS, MODEL, METRICS = "state.safetensors", "model.safetensors", "metrics.csv"
REPORT, HTML, EVALUATION = "report.json", "report.html", "evaluation.csv"
PICTURES = (
    *("accuracy", "convergence", "gap", "iterations", "loss", "parameters"),
    *("seeds", "sizes", "steps", "times", "weights"),
)
# All files that runs may write, and nothing else in a folder is removed. The checkpoint is deleted first: an
# interruption must not leave it with files of another run; config.yaml, which tells that a run is here, last.
FILES = (TENSORS, MODEL, METRICS, REPORT, HTML, EVALUATION, *(f"{name}.png" for name in PICTURES), CONFIG)
EVENTS = "tensorboard/events.out.tfevents.*"  # named by time and process
COLUMNS = ("step", "loss", "held_out_loss", "gradient_norm", "learning_rate", "seconds")
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
    write_atomic(folder / TENSORS, pack_file(_contiguous(tensors), facts))
    save_model(folder, model)


def pack_file(tensors: Mapping[str, Tensor], facts: dict[str, Any]) -> bytes:
    """The content of a checkpoint. The JSON is one string: safetensors headers hold only strings, whose order
    is not kept."""
    text = json.dumps({**facts, "sha256": _digest(tensors, facts)})
    return need("safetensors.torch").save(tensors, {"state": text})


def _digest(tensors: Mapping[str, Tensor], facts: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(facts).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_state(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The facts and the tensors of the last checkpoint, verified."""
    path, load = folder / TENSORS, need("safetensors.torch").load
    if not path.is_file():
        raise SettingError(
            f"--resume {folder}: there is no {TENSORS} to resume from. Start with --out instead"
        )
    content = path.read_bytes()
    try:
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
        tensors, facts = load(content), json.loads(header["state"])
        if facts.pop("sha256") != _digest(tensors, facts):
            raise ValueError("its SHA-256 is another")
    except Exception as error:  # parsers raise many kinds of errors on a damaged file
        raise SettingError(f"--resume {folder}: {TENSORS} is damaged ({error}). Start again") from error
    return facts, tensors


def load_state(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Restore model and optimizer from the last checkpoint and return its facts."""
    facts, tensors = read_state(folder)
    weights: dict[str, Tensor] = {}
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        owner, name = key.split(".", 1)
        if owner == "model":
            weights[name] = tensor
        else:
            index, name = name.split(".", 1)
            state.setdefault(int(index), {})[name] = tensor
    try:
        model.load_state_dict(weights)
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    except (RuntimeError, ValueError) as error:
        what = " ".join(str(error).split())
        raise SettingError(
            f"--resume {folder}: {TENSORS} does not fit this run: {what}. Start again"
        ) from error
    return facts


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
            ",".join([*map(_text, row[:5]), f"{row[5]:.6f}", *map(_text, row[6:])]) + "\n"
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


def take(folder: Path, settings: RunSettings) -> None:
    """Prepare the folder for a new run. The files of an earlier one are removed only with --overwrite, and
    all others stay. A folder with other files, but no run, is rejected."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder, [CONFIG])  # of a kill before there was anything else
        present = any(folder.iterdir())
    except (OSError, ValueError) as error:
        raise SettingError(f"--out {folder} cannot be used as a folder: {reason(error)}") from error
    if present and not _holds_run(folder):
        raise SettingError(f"--out {folder} holds other files. Choose a new or empty folder")
    if present and not settings.overwrite:
        raise SettingError(
            f"--out {folder} already holds a run. Continue it with --resume {folder}, replace it with "
            "--overwrite true, or choose another --out"
        )
    _remove(folder)


def resume(folder: Path) -> None:
    """Remove leftovers of killed writers from a run's folder, and its report, which belongs to an earlier
    end."""
    remove_leftovers(folder, FILES)
    (folder / REPORT).unlink(missing_ok=True)


def _holds_run(folder: Path) -> bool:
    try:
        return (folder / CONFIG).read_bytes().startswith(WRITTEN_BY.encode())
    except OSError:
        return False


def _remove(folder: Path) -> None:
    """Remove the files of a run from its folder, and its own folders that are then empty."""
    inner = [path for path in folder.glob("seed-*") if _holds_run(path) and not path.is_symlink()]
    for run in inner:
        _remove(run)
    remove_leftovers(folder, FILES)
    for path in (*folder.glob(EVENTS), *(folder / name for name in FILES)):
        path.unlink(missing_ok=True)
    for path in (*inner, folder / "tensorboard"):
        with contextlib.suppress(OSError):  # it contains other files, or there is none
            path.rmdir()


def remove_leftovers(folder: Path, names: Iterable[str]) -> None:
    """Delete the temporary files of writers that were killed while they wrote one of `names`."""
    for name in names:
        for path in folder.glob(f".{name}.*.tmp"):
            if path.name[len(name) + 2 : -4].isdigit():  # the writer's process
                path.unlink(missing_ok=True)


def reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
