"""Safetensors files, run folders, configs, pickles and .npz files: valid ones, mutated."""

import functools
import io
import json
import os
import pickle
import random
import sys
import zipfile

import numpy as np
import torch
from safetensors.torch import save

import learnsolve as ls
from learnsolve.io import _pickles
from learnsolve.recipes.harness import checkpoint, settings
from learnsolve.recipes.harness.settings import SettingError
from learnsolve.recipes.jacobi import JacobiRecipe as Recipe

MODULE = sys.modules["learnsolve.io.planetoid"]  # `learnsolve.io.planetoid` is the function
NUMBERS = (
    -1,
    0,
    1,
    2,
    7,
    2**31,
    2**40,
    10**15,
    2**62,
    2**63,
    2**64,
    10**30,
    1.5,
    True,
    None,
    "x",
    [],
    [1],
    {},
)
YAML = ("!!python/object/apply:os.system ['touch ran']", "&a [*a]", "{config: other.yaml}", "~")
TEXTS = ("", "F64", "I32", "I64", "BOOL", "F99", "nan", "float64", "\x00", "../outside", "[" * 2000)


class Runs:
    """A pickle that would run code."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


CALLS = (
    (os.system, ("touch ran",)),
    (os.mkdir, ("ran",)),
    (eval, ("open('ran', 'w')",)),
    (exec, ("import os; os.mkdir('ran')",)),
    (np.load, ("ran",)),
    (torch.load, ("ran",)),
    (bytearray, (10**15,)),
)


def changed(content: bytes, rng: random.Random) -> bytes:
    """The bytes of a file, damaged."""
    how = rng.randrange(6)
    if how == 0:
        return content[: rng.randrange(len(content) + 1)]
    if how == 1:
        return content + rng.randbytes(rng.randrange(1, 20))
    if how == 2:
        return rng.randbytes(rng.randrange(40))
    out = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8)) if out else 0):
        out[rng.randrange(len(out))] = rng.randrange(256)
    return bytes(out)


def other(value, rng: random.Random):
    """JSON with one thing changed, at any depth."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        if rng.random() < 0.1:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: other(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        return [*value[:at], other(value[at], rng), *value[at + 1 :]]
    if isinstance(value, str) and value[:1] == "{" and rng.random() < 0.9:  # JSON in a string
        return json.dumps(other(json.loads(value), rng))
    return rng.choice(rng.choice((NUMBERS, TEXTS)))


def safetensors(content: bytes, rng: random.Random) -> bytes:
    """A file with another header, or with damaged bytes."""
    if rng.random() < 0.1:
        return content
    if rng.random() < 0.3:
        return changed(content, rng)
    length = int.from_bytes(content[:8], "little")
    header = json.dumps(other(json.loads(content[8 : 8 + length]), rng)).encode()
    size = rng.choice((2**63, 10**15, 0, 7)) if rng.random() < 0.05 else len(header)
    return size.to_bytes(8, "little") + header + content[8 + length :]


@functools.cache
def samples() -> dict[str, bytes]:
    """The valid files, and what reading needs, imported."""
    A = ls.CSR.from_dense(torch.tensor([[1.0, 0, 2], [0, 3, 0]], dtype=torch.float64))
    about = json.dumps({"format": 1, "matrix": "CSR", "shape": [2, 3]})
    tensors = {"values": A.values, "crow_indices": A.crow_indices, "col_indices": A.col_indices}
    network = ls.preconditioners.PreCorrector(rounds=1, width=2)
    model, optimizer = trained()
    state = {f"model.{name}": t for name, t in model.state_dict().items()}
    for index, entries in optimizer.state_dict()["state"].items():
        state |= {f"optimizer.{index}.{name}": t for name, t in entries.items()}
    facts = {"format": 1, "step": 1, "seconds": 1.0, "metrics_bytes": 10, "random": {"seed": 0, "step": 1}}
    graph = {0: [1, 2], 1: [0], 2: [0]}
    stored = io.BytesIO()
    arrays = {key: np.arange(3) for key in MODULE.ARRAYS}
    held = arrays | {"digest": np.array("d"), "content": np.array(MODULE._content(arrays))}
    np.savez_compressed(stored, **held)
    return {
        "matrix": save(tensors, {"learnsolve": about}),
        "network": save(network.state_dict(), network.header()),
        "state": save(state, {"state": json.dumps(facts)}),
        "graph": pickle.dumps(graph, protocol=2),
        "npz": stored.getvalue(),
        "config": settings.dump(Recipe.Settings()).encode(),
    }


def trained():
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    return model, optimizer


def matrix(rng, folder, write) -> str | None:
    content = safetensors(samples()["matrix"], rng)
    path = write(folder / "A.safetensors", content)
    try:
        A = ls.CSR.load(path)
    except ValueError as error:
        valid = content == samples()["matrix"]
        return f"a valid file is refused: {error}" if valid else _named(error, "CSR.load: ")
    ls.SparsityPattern(A.crow_indices, A.col_indices, A.shape)
    if content == samples()["matrix"] and A.to_dense().tolist() != [[1, 0, 2], [0, 3, 0]]:
        return f"a valid file is read as {A.to_dense()}"
    return None


def network(rng, folder, write) -> str | None:
    content = safetensors(samples()["network"], rng)
    path = write(folder / "model.safetensors", content)
    try:
        found = ls.preconditioners.load(path)
    except ValueError as error:
        valid = content == samples()["network"]
        return f"a valid file is refused: {error}" if valid else _named(error, "load: ")
    finite = all(bool(p.isfinite().all()) for p in found.parameters())
    return None if finite else "weights that are not finite are read"


def run_folder(rng, folder, write) -> str | None:
    content = safetensors(samples()["state"], rng)
    write(folder / checkpoint.TENSORS, content)
    if rng.random() < 0.5:
        summary = json.dumps(other({"format": 1, "step": 1, "sha256": "0"}, rng)).encode()
        write(folder / checkpoint.SUMMARY, summary if rng.random() < 0.5 else changed(summary, rng))
    try:
        checkpoint.load_state(folder, *trained())
    except SettingError as error:
        valid = content == samples()["state"]
        return f"a valid state is refused: {error}" if valid else _named(error, "--resume ")
    return None


def config(rng, folder, write) -> str | None:
    content = samples()["config"]
    if rng.random() < 0.5:
        content = changed(content, rng)
    else:
        lines = content.split(b"\n")
        at = rng.randrange(len(lines))
        value = rng.choice((*map(str, NUMBERS), *TEXTS, *YAML))
        lines[at] = lines[at].split(b":")[0] + b": " + value.encode()
        content = b"\n".join(lines)
    path = write(folder / "config.yaml", content)
    words = ["--config", str(path)] if rng.random() < 0.5 else ["--resume", str(folder)]
    try:
        settings.parse("jacobi", Recipe.Settings, words)
    except SettingError as error:
        return None if "\n" not in str(error) else f"an error of several lines: {error}"
    return None


def planetoid_pickle(rng, folder, write) -> str | None:
    how, content = rng.random(), samples()["graph"]
    runs = how < 0.4
    if runs:
        bad = Runs(*rng.choice(CALLS))
        held = rng.choice((bad, {0: [bad]}, [bad], (bad,)))
        content = pickle.dumps(held, protocol=rng.choice((0, 1, 2, 4)))
    elif how < 0.9:
        content = changed(content, rng)
    path = write(folder / "ind.x.graph", content)
    try:
        _pickles.load(path)
    except _pickles.Refused as error:
        return None if content != samples()["graph"] else f"a valid pickle is refused: {error}"
    return "a pickle that runs code is read" if runs else None


def planetoid_npz(rng, folder, write) -> str | None:
    content = samples()["npz"]
    how = rng.random()
    if how < 0.3:
        stored = io.BytesIO()
        bad = np.empty(1, dtype=object)
        bad[0] = Runs(*rng.choice(CALLS))
        np.savez(stored, **dict.fromkeys(MODULE.ARRAYS, bad), digest=np.array("d"), content=bad)
        content = stored.getvalue()
    elif how < 0.5:  # an array that announces more than the file has
        content = content_of_header(rng)
    elif how < 0.9:
        content = changed(content, rng)
    path = write(folder / "x.npz", content)
    arrays = MODULE._load(path, "d")
    if arrays is None:
        return None if content != samples()["npz"] else "a valid file is refused"
    same = all(np.array_equal(arrays[key], np.arange(3)) for key in MODULE.ARRAYS)
    return None if same else f"read as {arrays}"


def content_of_header(rng) -> bytes:
    stored, array = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(
        array, {"descr": "<i8", "fortran_order": False, "shape": (rng.choice((10**15, 2**62, 10**9)),)}
    )
    with zipfile.ZipFile(stored, "w") as file:
        for key in ("digest", "content", *MODULE.ARRAYS):
            file.writestr(f"{key}.npy", array.getvalue())
    return stored.getvalue()


def _named(error: Exception, start: str) -> str | None:
    return None if str(error).startswith(start) else f"not the library's error: {error!r}"
