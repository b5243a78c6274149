"""Hostile options, config files and folders of runs: each ends with one line and the documented exit code."""

import errno
import hashlib
import json
import os

import pytest
import torch
from safetensors.torch import load_file, save

from learnsolve import recipes, train
from learnsolve.recipes.harness import checkpoint, settings
from learnsolve.recipes.harness.settings import SettingError

BOMB = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
VALUES = {
    "brackets": "[" * 100_000,
    "braces": "{" * 50_000,
    "closed": "[" * 5_000 + "]" * 5_000,
    "dashes": "- " * 50_000,
    "question marks": "? " * 5_000,
    "alias": "[&x [1], *x]",
    "digits": "9" * 5_000,
    "more than 64 bits": str(10**20),
    "less than 64 bits": str(-(10**20)),
    "exponent": "1e999999",
    "tag": "!!python/object/apply:os.system ['touch ran']",
    "nothing": "",
    "control characters": "\x01\x1b[31m",
    "surrogate": "\udcff",
    "mapping": "{a: 1}",
}


def refused(capsys, code: int, *words: str) -> None:
    printed = capsys.readouterr()
    assert code == train.BAD_SETTING, printed.err
    assert printed.err.startswith("learnsolve.train: ")
    assert printed.err.count("\n") == 1
    for word in words:
        assert word in printed.err


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("recipe", recipes.RECIPES)
def test_a_value_is_parsed_or_refused(recipe, name, tmp_path, monkeypatch):
    """Of every option, with the option's own parser and checks; no value reaches anything else."""
    monkeypatch.chdir(tmp_path)
    Settings = recipes.load(recipe).Settings
    options = [o for o in settings.flat(Settings()) if o not in ("out", "resume", "config")]
    for option in options if name in ("brackets", "alias") else options[:: len(options) // 3]:
        message = option
        try:
            settings.parse(recipe, Settings, [f"--{option}={VALUES[name]}"])
        except SettingError as error:
            message = str(error)
        assert "\n" not in message
        assert option in message or "option" in message
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"problem:\n  shape: " + b"[" * 100_000, "nested 32 deep"),
        (b"problem:\n  shape: '" + b"[" * 100_000 + b"'", "nested 32 deep"),
        (b"- " * 50_000, "nested 32 deep"),
        (BOMB.encode(), "aliases are not supported"),
        (b"steps: &n 3\nseed: *n\n", "aliases are not supported"),
        (b"out: \xff\xfe\n", "must be UTF-8"),
        (b"x" * (2**20 + 1), "larger than"),
        (b"config: other.yaml\n", "cannot name another"),
        (b"{config: other.yaml}\n", "cannot name another"),
        (b'"config": other.yaml\n', "cannot name another"),
        (b"  steps: 1\n  config: other.yaml\n", "cannot name another"),
        (b"<<: {config: other.yaml}\n", "cannot name another"),
        (b"problem: null\n", "--problem"),
        (b"seed: 0\nsweeps:\n", "--sweeps must have a value"),
        (b"evaluate_every: ~\n", "--evaluate_every must have a value"),
        (b"problem: {shape: null}\n", "--problem.shape must have a value"),
        (b"problem: 3\n", ""),
        (b"3\n", ""),
        (b"- a\n", ""),
        (b"1: 2\n", ""),
        (b"steps: [\n", ""),
        (b'out: "a\\0b"\n', "cannot be used as a folder"),
    ],
)
def test_a_config_file_is_refused(run, capsys, tmp_path, content, words):
    (tmp_path / "bad.yaml").write_bytes(content)
    refused(capsys, train.main(["jacobi", "--steps", "0", "--config", "bad.yaml"]), words)
    refused(capsys, train.main(["jacobi", "--steps", "0", "--config=bad.yaml"]), words)


# --- runs to resume ---


def signed(folder, **changes) -> None:
    """Change facts of the checkpoint (None: remove), with a header and a hash that agree."""
    facts, content = checkpoint.read_state(folder)
    facts = {name: value for name, value in {**facts, **changes}.items() if value is not None}
    content = save(load_file(folder / "state.safetensors"), {"state": json.dumps(facts)})
    (folder / "state.safetensors").write_bytes(content)
    summary = {**facts, "sha256": hashlib.sha256(content).hexdigest()}
    (folder / "state.json").write_text(json.dumps(summary))


@pytest.mark.parametrize(
    "changes",
    [
        {"step": 3},
        {"step": 3, "random": {"seed": 0, "step": 3}},
        {"step": -(10**18)},
        {"step": 10**30},
        {"step": True},
        {"step": 5.0},
        {"step": "5"},
        {"step": None},
        {"seconds": None},
        {"seconds": "x"},
        {"seconds": -1.0},
        {"first_loss": None},
        {"first_loss": "x"},
        {"metrics_bytes": None},
        {"metrics_bytes": 0},
        {"metrics_bytes": 17},
        {"metrics_bytes": 10**9},
        {"random": None},
        {"random": {"seed": 1, "step": 5}},
        {"recipe": {}},
        {"recipe": {"shortened_steps": 0}},
        {"recipe": [1]},
        {"format": 7},
    ],
)
def test_a_checkpoint_with_other_facts_is_refused(run, no_pictures, capsys, changes):
    recipe = "pcg" if "recipe" in changes else "jacobi"
    options = ("--nx", 4, "--ny", 4, "--evaluated", 1) if recipe == "pcg" else ()
    _, folder = run("--steps", 5, *options, recipe=recipe)
    capsys.readouterr()
    signed(folder, **changes)
    refused(capsys, run("--resume", "run", "--steps", 9, out=None, recipe=recipe)[0], "--resume run: ")


@pytest.mark.parametrize("keys", ["optimizer.0.exp_avg", "optimizer.0.step", "model.weight"])
def test_a_checkpoint_with_other_tensors_is_refused(run, no_pictures, capsys, keys):
    _, folder = run("--steps", 5)
    capsys.readouterr()
    facts, _ = checkpoint.read_state(folder)
    for changed in ({}, {keys: torch.zeros(3)}):
        tensors = {k: v for k, v in load_file(folder / "state.safetensors").items() if k != keys} | changed
        (folder / "state.safetensors").write_bytes(save(tensors, {"state": json.dumps(facts)}))
        (folder / "state.json").unlink(missing_ok=True)
        refused(capsys, run("--resume", "run", "--steps", 9, out=None)[0], "does not fit this run")


DAMAGE = {
    "metrics.csv": [None, b"", b"\xff\xfe\x00" * 200, b"x" * 5000, b"step,loss\n" * 200],
    "config.yaml": [b"\xff", b"steps: [", b"3", BOMB.encode(), b"problem: null\n"],
    "state.json": [b"[]", b"\xff", b"[" * 100_000],
    "state.safetensors": [b"hello", "cut", "flipped"],
}


@pytest.mark.parametrize(("name", "damage"), [(name, d) for name, ds in DAMAGE.items() for d in ds])
def test_a_damaged_file_is_refused_or_repaired(run, no_pictures, capsys, name, damage):
    _, folder = run("--steps", 5)
    capsys.readouterr()
    content = bytearray((folder / name).read_bytes())
    if damage == "flipped":
        content[-3] ^= 1
    if damage is None:
        (folder / name).unlink()
    else:
        damaged = {"cut": content[:-9], "flipped": content}
        (folder / name).write_bytes(damaged[damage] if isinstance(damage, str) else damage)
    code, _ = run("--resume", "run", "--steps", 7, out=None)
    if name == "state.json":  # a copy
        assert code == train.OK
    else:
        refused(capsys, code, name if name != "config.yaml" else "")


# --- a full disk, a folder that cannot be written ---


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("call", [1, 2, 3, 4, 6, 9])
def test_a_failing_write_ends_with_one_line(run, no_pictures, capsys, monkeypatch, call, number):
    """The first write that fails, and all after it: in the beginning, at a checkpoint, in the end."""
    calls, fsync = iter(range(1, 1000)), os.fsync

    def failing(file):
        if next(calls) >= call:
            raise OSError(number, os.strerror(number))
        fsync(file)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        code, folder = run("--steps", 5)
    printed = capsys.readouterr()
    assert code in (train.FAILED, train.BAD_SETTING)
    assert printed.err.count("\n") == 1
    assert os.strerror(number) in printed.err
    assert not list(folder.glob(".*.tmp"))


def test_a_failing_write_of_rows_ends_with_one_line(run, no_pictures, capsys, monkeypatch):
    from learnsolve.recipes.harness.checkpoint import Metrics

    def full(self):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Metrics, "flush", full)
    code, _ = run("--steps", 5)
    assert code == train.FAILED
    assert capsys.readouterr().err.count("\n") == 1
