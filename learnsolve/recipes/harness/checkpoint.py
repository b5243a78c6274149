"""Checkpoints that a kill at any moment leaves intact.

state.safetensors is the checkpoint: parameters and optimiser state, and in its header the rest as JSON. It
is replaced in one atomic rename, so that tensors and step always belong together. state.json repeats the
header for readers, with the file's SHA-256; a kill between the two renames leaves it one checkpoint behind,
which loading detects and repairs.
"""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from learnsolve._files import replace_file
from learnsolve.recipes.harness.base import SettingError
from learnsolve.recipes.harness.extras import need

FORMAT = 1
FACTS: dict[str, Any] = {"step": int, "seconds": (int, float), "metrics_bytes": int}  # none is negative
TENSORS, SUMMARY, MODEL = "state.safetensors", "state.json", "model.safetensors"


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write bytes or text; `path` holds the old content or the new one, never a part."""
    replace_file(path, content.encode() if isinstance(content, str) else content, durable=True)


def save_model(folder: Path, model: torch.nn.Module) -> None:
    """model.safetensors: the tensors of the model's state_dict, and what a `FactorNetwork` says of itself."""
    save, header = need("safetensors.torch").save, getattr(model, "header", dict)
    write_atomic(folder / MODEL, save(_contiguous(model.state_dict()), header() or None))


def save_state(
    folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, facts: dict[str, Any]
) -> None:
    """Write a checkpoint. `facts` (JSON) holds at least "step"."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for index, entries in optimizer.state_dict()["state"].items():
        for name, tensor in entries.items():
            if not isinstance(tensor, Tensor):
                raise TypeError(
                    f"the optimiser's state {name!r} is not a tensor and could not be restored exactly"
                )
            tensors[f"optimizer.{index}.{name}"] = tensor
    facts = {"format": FORMAT, **facts}
    # The JSON is one string: safetensors headers hold text only, and the order of several is not kept.
    content = need("safetensors.torch").save(_contiguous(tensors), {"state": json.dumps(facts)})
    write_atomic(folder / TENSORS, content)
    _write_summary(folder, facts, hashlib.sha256(content).hexdigest())
    save_model(folder, model)


def load_state(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Restore model and optimiser from the last checkpoint and return its facts."""
    facts, content = read_state(folder)
    tensors = need("safetensors.torch").load(content)
    try:
        model.load_state_dict(
            {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
        )
        state: dict[int, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            if key.startswith("optimizer."):
                _, index, name = key.split(".", 2)
                state.setdefault(int(index), {})[name] = tensor
        _check_optimizer(optimizer, state, list(model.parameters()), facts["step"])
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    except (RuntimeError, ValueError) as error:
        what = " ".join(str(error).split())
        raise SettingError(
            f"--resume {folder}: {TENSORS} does not fit this run: {what}; start again"
        ) from error
    if facts != _read_summary(folder)[0]:
        _write_summary(folder, facts, hashlib.sha256(content).hexdigest())
    return facts


def _check_optimizer(
    optimizer: torch.optim.Optimizer, state: dict[int, dict[str, Tensor]], parameters: list[Any], step: int
) -> None:
    """ValueError if the optimiser cannot have this state after `step` steps for the parameters."""
    adam = isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW)
    lost = any(not entries.keys() >= {"step", "exp_avg", "exp_avg_sq"} for entries in state.values())
    if not set(state) <= set(range(len(parameters))) or (state and not step):
        raise ValueError("the optimiser's state is that of other parameters")
    if adam and (lost or bool(state) != bool(step)):
        raise ValueError("the optimiser's state is not complete")
    for index, entries in state.items():
        for name, tensor in entries.items():
            if name == "step" and int(tensor) != step:
                raise ValueError(f"its step is {step}, the optimiser's {int(tensor)}")
            if tensor.dim() and tensor.shape != parameters[index].shape:
                raise ValueError(f"the optimiser's {name} has shape {tuple(tensor.shape)}")


def read_state(folder: Path) -> tuple[dict[str, Any], bytes]:
    """The facts and the bytes of the last checkpoint, verified."""
    path = folder / TENSORS
    if not path.is_file():
        raise SettingError(
            f"--resume {folder}: there is no {TENSORS} to resume from; start with --out instead"
        )
    content, load = path.read_bytes(), need("safetensors.torch").load
    try:
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        facts = json.loads(header["__metadata__"]["state"])
        load(content)
    except Exception as error:  # any error of the parsers on a damaged file
        raise SettingError(f"--resume {folder}: {TENSORS} is damaged ({error}); start again") from error
    if not isinstance(facts, dict):
        raise SettingError(f"--resume {folder}: {TENSORS} is damaged (it has no facts); start again")
    if facts.get("format") != FORMAT:
        raise SettingError(
            f"--resume {folder}: {TENSORS} has format {facts.get('format')}, this version reads {FORMAT}; "
            "start again"
        )
    summary, digest = _read_summary(folder)
    if summary == facts and digest != hashlib.sha256(content).hexdigest():
        raise SettingError(
            f"--resume {folder}: {TENSORS} does not match the SHA-256 in {SUMMARY}; start again"
        )
    for name, kind in FACTS.items():
        value: Any = facts.get(name)
        if not isinstance(value, kind) or isinstance(value, bool) or not 0 <= value < math.inf:
            raise SettingError(f"--resume {folder}: {TENSORS} is damaged ({name} is {value!r}); start again")
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
