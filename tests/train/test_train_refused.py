"""What users of the training program do wrong, and folders that another program or a crash left."""

import errno
import importlib
import json
import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import planetoid_files as files
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save

import learnsolve
from learnsolve import recipes, train
from learnsolve._first_line import first_line
from learnsolve.recipes import petsc
from learnsolve.recipes.training import checkpoint, settings
from learnsolve.recipes.training.settings import RunSettings, SettingError, flat, parse

ASYMMETRIC = "%%MatrixMarket matrix coordinate real general\n2 2 3\n1 1 1\n2 1 3\n2 2 1\n"
NEGATIVE = "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 1\n2 2 -1\n"
RECTANGULAR = "%%MatrixMarket matrix coordinate real general\n2 3 2\n1 1 1\n2 2 -1\n"


# Arguments of the program, and words of its answer.
BAD = """
jacobi --stepz 3 => unrecognized arguments: --stepz=3. Did you mean --steps?
jacobi -steps 3 => unrecognized arguments: -steps 3. Did you mean --steps?
jacobi --seed 9223372036854775807 --seeds 2 => leaves no room for --seeds 2. Pass a smaller one
jacobi --nothing_like_it 3 => unrecognized arguments: --nothing_like_it=3. See python -m
jacobi --problem.shap 3 => Did you mean --problem.shape?
jacobi stray => unrecognized arguments: stray
jacobi --steps => argument --steps: expected one argument
jacobi --steps 1.5 => --steps must be a whole number, got '1.5'
jacobi --device tpu => --device must be auto, cpu, cuda or cuda:N, got 'tpu'
jacobi --device cuda => --device cuda needs a GPU
jacobi --out '' => --out must name a folder
jacobi --out file => --out file cannot be used as a folder
jacobi --out full => --out full holds other files
jacobi --threads '' => --threads must be a whole number or null, got ''
jacobi --config => --config: expected one argument
jacobi --config none.yaml => none.yaml
jacobi --config bad.yaml => --config bad.yaml: Option 'stepz' is not accepted. Did you mean --steps?
jacobi --config nested.yaml --lr 1 => --config nested.yaml: Option 'problem.shap' is not accepted
jacobi --config three.yaml => --config three.yaml: Key must be a string, got: 3
jacobi --config good.yaml --config wrong.yaml => --config wrong.yaml: --problem.shape must be
jacobi --config good.yaml --steps x => train: --steps must be a whole number, got 'x'
jacobi --problem 3 => --problem must have options below it, got '3'
jacobi --resume nowhere => --resume nowhere: there is no run
jacobi --test_vectors identity --resample => needs random vectors. Pass a number to --test_vectors
jacobi --test_vectors identity --problem.shape [65,64] => has n = 4160. Pass a number,
jacobi --test_vectors 100000000 --problem.shape 100000 => GiB are free. Use fewer
jacobi --problem.shape [99999999,99999999] => GiB are free. Choose a smaller grid
jacobi --seed 9223372036854775808 => --seed must be a 64-bit number
jacobi --steps 100000000000000000000 => --steps must be a 64-bit number
jacobi --threads 2000 => --threads must be at most 1024
jacobi --hard_fraction 1.5 => --hard_fraction must be above 0 and at most 1, got 1.5
jacobi --problem.shape 16,16 => --problem.shape must be a whole number or a list of whole numbers, got
jacobi --problem.shape 0 => --problem.shape: poisson: shape must have
jacobi --problem.shape [2,2,2,2] => --problem.shape: poisson: shape must have
jacobi --problem.epsilon 0.5 => --problem.epsilon is not used by --problem.name poisson
jacobi --problem.name matrix_market => needs --problem.path
jacobi --problem.name pyamg_gallery --problem.matrix x => --problem.matrix: pyamg_gallery: name must be one of
jacobi --problem.name diffusion --problem.shape [3,3] --problem.contrast 0.5 => contrast
jacobi --problem.name matrix_market --problem.path none.mtx => none.mtx
jacobi --problem.name matrix_market --problem.path asymmetric.mtx => needs a symmetric matrix, but
jacobi --problem.name matrix_market --problem.path negative.mtx => diagonal entry of row 1 is -1
jacobi --problem.name matrix_market --problem.path rectangular.mtx => square

heavyball --hidden 3 => unrecognized arguments: --hidden=3. See python -m learnsolve.train heavyball

heavyball_network --problem.shape 9 => unrecognized arguments: --problem.shape=9
heavyball_network --grid [16] => --grid must have two or three axes
heavyball_network --grid [4,4,4] => --family anisotropic has two axes. Pass two sizes to --grid, or

pcg --target inf => --target must be a number or null, got 'inf'
pcg --tolerances 1e-3 => --tolerances must be a list of numbers or null, got '1e-3'
pcg --guard 0.5 => --guard must be between 0 and 0.01
pcg --guard 0.01 --form triangular --start ic --problem.shape 200 => --guard
pcg --start ic => --start ic is a factor for --form triangular, not for product. Pass
pcg --start fsai --form triangular => Pass --start paper or ic
pcg --tolerances [1e-3,x] => --tolerances must be a list of numbers or null, got [0.001, 'x']
precorrector --aggregate [] => --aggregate must name an aggregation such as [mean], got []
neuralif --scales 2 => --scales must be a list of whole numbers, got '2'
pcg --tolerances [2.0] => --tolerances must be between 0 and 1

precorrector --scales [1] => --scales must be at least 2
precorrector --contrast [1.0] => --contrast must be the smallest and the largest
precorrector --tolerances [2.0] => --tolerances must be between 0 and 1
neuralif --loss product => Pass --resample false
neuralif --density 2.0 => --density must be above 0 and at most 1
multigrid --max_coarse 256 => --max_coarse must be at least 1 and below 256
multigrid --grid 33 => --grid must be at most 32 with --loss cycles, which factors dense
gnp --test_vectors identity => --test_vectors must be a number here
gnp --problem.shape [4,4,4] => convection_diffusion needs a shape of two axes
gnp --problem.contrast 3 => not used by --problem.name convection_diffusion
newton --p 1.5 => --p must be at least 2
newton --modes 21 => --modes must be at most 20 on --grid 32, got 21
newton --rtol 1.0 => --rtol must be between 0 and 1, got 1.0
newton --length -1.0 => --length: gaussian_field: length
newton --scales [1] => --scales must be at least 2

gcn --data nowhere => --data: planetoid: there is no file nowhere
gcn --data planetoid --dataset cora => --data: planetoid: there is no file planetoid/ind.cora.x
gcn --dataset cora => one that can be downloaded (citeseer), got 'cora'
gcn --data hostile => asks for os.system, which no Planetoid file needs
gcn --data unlabeled => a test node of citeseer has no label
gcn --dropout 1 => --dropout must be a probability below 1, got 1.0
gcn --steps -1 => --steps must be at least 0, got -1
gcn --data planetoid --hidden 1000000000000 => GiB are free. Use fewer
"""
CASES = [tuple(line.split(" => ")) for line in BAD.splitlines() if line]


@pytest.mark.parametrize(("command", "words"), CASES, ids=[command for command, _ in CASES])
def test_bad_input_is_one_sentence_and_exit_code_2(tmp_path, monkeypatch, capsys, command, words):
    if words.endswith("needs a GPU") and torch.cuda.is_available():
        pytest.skip("torch sees a GPU")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEARNSOLVE_CACHE", str(tmp_path / "cache"))
    files.write(tmp_path / "planetoid")
    files.write(tmp_path / "hostile", x=b"cos\nsystem\n(S'touch ran'\ntR.")
    files.write(tmp_path / "unlabeled", ty=np.zeros((8, 3), np.int32))
    for name, text in (("asymmetric", ASYMMETRIC), ("negative", NEGATIVE), ("rectangular", RECTANGULAR)):
        (tmp_path / f"{name}.mtx").write_text(text)
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    (tmp_path / "bad.yaml").write_text("stepz: 3\n")
    (tmp_path / "wrong.yaml").write_text("steps: 3\nproblem: {shape: x}\n")
    (tmp_path / "nested.yaml").write_text("problem: {shap: 3}\n")
    (tmp_path / "three.yaml").write_text("3: 4\n")
    (tmp_path / "good.yaml").write_text("steps: 3\n")
    assert train.main(shlex.split(command)) == train.BAD_SETTING
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("learnsolve.train: ")
    assert printed.err.count("\n") == 1
    assert words in printed.err
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "ran").exists()


COMMON = flat(RunSettings())
TEXTS = {"out", "resume", "device", "problem.matrix", "problem.path", "data", "dataset"}  # take any


def options(recipe):
    """Of those that all recipes have, jacobi's."""
    Settings = recipes.load(recipe).Settings
    names = [o for o in flat(Settings()) if o not in TEXTS and (recipe == "jacobi" or o not in COMMON)]
    return [*names, *(["config"] if recipe == "jacobi" else [])]


# Of any sign, or checked when a problem is made; and where 0 is a choice.
OF_ANY_SIGN = ("contrast", "epsilon", "peclet", "reaction", "shape", "shift", "theta", "length", "variance")
OF_ANY_SIGN += ("alpha", "beta")
ZERO = {"seed", "checkpoint_seconds", "steps", "schedule_steps", "validated", "weight_decay"}
ZERO |= {"layers", "guard", "dropout"}


@pytest.mark.rows(2)
@pytest.mark.parametrize("recipe", recipes.RECIPES)
def test_the_message_names_the_option(recipe):
    """Of a value that it cannot be, and of a number out of its range."""
    Settings = recipes.load(recipe).Settings
    for option in options(recipe):
        words = ("[[x]]",) if option == "config" else ("[[x]]", "nan", "-7", "0")
        for word in words[: 2 if option.endswith(OF_ANY_SIGN) else 3 if option in ZERO else None]:
            with pytest.raises(SettingError) as caught:
                parse(recipe, Settings, [f"--{option}", word])
            message = str(caught.value)
            name = f"--{option}"
            assert message.startswith(name), f"{recipe} --{option}: {message}"
            assert word.strip("[]") in message.removeprefix(name), f"{recipe} --{option}: {message}"


@pytest.mark.parametrize(
    ("recipe", "words", "start"),
    [
        ("jacobi", "--problem.shape 0", "--problem.shape: poisson: shape must"),
        ("multigrid", "--max_coarse 0 --matrices 1 --held_out_matrices 1 --grid 4", "--max_coarse"),
        ("precorrector", "--variance -1 --matrices 1 --held_out_matrices 1 --grid 4", "--variance"),
        ("precorrector", "--contrast [2,1] --matrices 1 --held_out_matrices 1 --grid 4", "--contrast"),
        ("neuralif", "--rows 0 --matrices 1 --held_out_matrices 1", "--rows"),
        ("multigrid", "--grid 0 --matrices 1 --held_out_matrices 1", "--grid"),
    ],
)
def test_an_error_of_the_library_is_one_of_the_option(recipe, words, start):
    Recipe = recipes.load(recipe)
    with pytest.raises(SettingError, match=f"^{start}"):
        Recipe(parse(recipe, Recipe.Settings, words.split()))


def test_no_checkpoint_during_training(run, rows, no_pictures):
    code, folder = run("--steps", 3, "--checkpoint_seconds", ".inf")
    assert code == train.OK
    assert run("--resume", "run", "--steps", 5, out=None)[0] == train.OK
    assert len(rows(folder)) == 6


def test_an_asymmetric_matrix_over_processes_is_refused_with_its_numbers():
    rows = object.__new__(petsc.Rows)
    rows.lo, rows.hi, rows.norm = 0, 2, torch.linalg.vector_norm
    rows.A = torch.tensor([[1.0, 3.0], [0.0, 1.0]], dtype=torch.float64)
    with pytest.raises(SettingError, match=r"\(A - A\^T\) x is [\d.]+, the norm of A x [\d.]+\. Choose"):
        rows._check_energy(lambda A, x, transpose: A.T @ x)


@pytest.mark.parametrize("recipe", recipes.RECIPES)
def test_advice_is_a_sentence(recipe):
    Recipe = recipes.load(recipe)
    assert Recipe.advice[0].isupper()


def test_an_unknown_recipe(capsys):
    assert train.main(["jacoby"]) == train.BAD_SETTING
    known = ", ".join(recipes.RECIPES)
    message = f"learnsolve.train: unknown recipe 'jacoby'. Did you mean jacobi? The recipes are: {known}\n"
    assert capsys.readouterr().err == message
    assert train.main(["nothing"]) == train.BAD_SETTING
    assert f"unknown recipe 'nothing'. The recipes are: {known}\n" in capsys.readouterr().err


def test_gcn_without_a_network(tmp_path, monkeypatch, capsys):
    pytest.importorskip("pooch")
    monkeypatch.setenv("LEARNSOLVE_CACHE", str(tmp_path))
    monkeypatch.setattr(importlib.import_module("learnsolve.io.planetoid"), "URL", "http://127.0.0.1:9/")
    assert train.main(["gcn", "--out", str(tmp_path / "run")]) == train.BAD_SETTING
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("learnsolve.train: --data: planetoid: cannot download http://127.0.0.1:9/ind.")
    assert "refused" in message
    assert "Caused by" not in message
    assert message.endswith("Get the files elsewhere and pass the folder with them")
    assert not (tmp_path / "run").exists()


def test_a_terminal_shows_a_line_before_torch_is_imported(tmp_path):
    """torch is a file that fails here."""
    (tmp_path / "torch.py").write_text("raise SystemExit(3)")
    path = os.pathsep.join([str(tmp_path), str(Path(learnsolve.__file__).parents[1])])
    own, terminal = pty.openpty()
    words = [sys.executable, "-m", "learnsolve.train", "jacobi"]
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": path}, stderr=terminal, check=False)
    assert done.returncode == 3
    os.close(terminal)
    assert os.read(own, 1000) == b"learnsolve.train jacobi: loading torch ...\r\n"
    os.close(own)


def test_the_first_line_is_that_of_a_training():
    program = ["python", "-m", "learnsolve.train"]
    assert first_line([*program, "heavyball", "--steps", "7"]) == (
        "learnsolve.train heavyball: loading torch ..."
    )
    for words in ([], ["--help"], ["jacobi", "--help"], ["jacobi", "--quiet"], ["jacobi", "--print_config"]):
        assert first_line([*program, *words]) is None
    assert first_line(["python", "-m", "pytest"]) is None


def test_a_run_is_replaced_only_with_overwrite(run, rows, no_pictures, capsys):
    _, folder = run("--steps", 5)
    first = rows(folder)
    assert run("--steps", 3)[0] == train.BAD_SETTING
    assert "--resume run, replace it with --overwrite true" in capsys.readouterr().err
    assert rows(folder) == first
    assert run("--steps", 3, "--overwrite")[0] == train.OK
    assert rows(folder)[:3] == first[:3]
    assert len(rows(folder)) == 4


def test_overwrite_leaves_files_that_the_run_did_not_write(run, no_pictures, capsys):
    _, folder = run("--steps", 2)
    (folder / "loss.png").write_text("listed")
    for name in ("thesis.tex", "photograph.png", ".notes.tmp", ".loss.png.old.tmp"):
        (folder / name).write_text("a stranger's")
    (folder / ".loss.png.123.tmp").write_text("of a writer that was killed")
    assert run("--steps", 3, "--overwrite")[0] == train.OK
    for name in ("thesis.tex", "photograph.png", ".notes.tmp", ".loss.png.old.tmp"):
        assert (folder / name).read_text() == "a stranger's"
    assert not (folder / "loss.png").exists()
    assert not (folder / ".loss.png.123.tmp").exists()


def test_overwrite_replaces_another_recipes_run(run, no_pictures):
    _, folder = run("--steps", 2, recipe="heavyball")
    (folder / "parameters.png").write_text("of heavyball")
    assert run("--steps", 2, "--overwrite")[0] == train.OK
    assert not (folder / "parameters.png").exists()


@pytest.mark.parametrize(
    "strangers",
    [
        {"config.yaml": "steps: 3\n", "loss.png": "x", "report.json": "{}"},
    ],
)
def test_overwrite_refuses_a_folder_without_a_run(run, capsys, tmp_path, strangers):
    folder = tmp_path / "run"
    folder.mkdir()
    for name, text in strangers.items():
        (folder / name).write_text(text)
    assert run("--steps", 3, "--overwrite")[0] == train.BAD_SETTING
    assert "--out run holds other files" in capsys.readouterr().err
    assert {path.name: path.read_text() for path in folder.iterdir()} == strangers


def test_a_missing_package_is_named_with_its_extra(run, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, folder = run()
    assert code == train.FAILED
    assert "learnsolve.train needs matplotlib" in (message := capsys.readouterr().err)
    assert "pip install 'learnsolve[train]'" in message
    assert not folder.exists()


# --- hostile options, config files and folders of runs ---


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
        (b"out: \xff\xfe\n", "'utf-8' codec can't decode"),
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


@pytest.mark.parametrize("changes", [{"step": 3}, {"seconds": None}, {"metrics_bytes": 17}])
def test_a_checkpoint_with_other_facts_is_refused(run, no_pictures, capsys, changes):
    _, folder = run("--steps", 5)
    capsys.readouterr()
    path = folder / "state.safetensors"
    with safe_open(path, "pt") as file:
        header = file.metadata()
    facts = json.dumps(json.loads(header["state"]) | changes)
    path.write_bytes(save(load_file(path), header | {"state": facts}))
    refused(capsys, run("--resume", "run", "--steps", 9, out=None)[0], "state.safetensors is damaged")


def test_a_checkpoint_has_the_same_bytes_every_time(run, no_pictures):
    _, folder = run("--steps", 1)
    facts, tensors = checkpoint.read_state(folder)
    assert {checkpoint.pack_file(tensors, facts) for _ in range(20)} == {
        (folder / "state.safetensors").read_bytes()
    }


@pytest.mark.parametrize("size", [0, 17, 10**9])
def test_rows_that_are_not_those_of_the_checkpoint_are_refused(run, no_pictures, capsys, size):
    _, folder = run("--steps", 5)
    capsys.readouterr()
    facts, tensors = checkpoint.read_state(folder)
    packed = checkpoint.pack_file(tensors, facts | {"metrics_bytes": size})
    (folder / "state.safetensors").write_bytes(packed)
    refused(capsys, run("--resume", "run", "--steps", 9, out=None)[0], "metrics.csv is damaged")


@pytest.mark.parametrize("keys", ["optimizer.0.exp_avg", "optimizer.0.step", "model.weight"])
def test_a_checkpoint_with_other_tensors_is_refused(run, no_pictures, capsys, keys):
    _, folder = run("--steps", 5)
    capsys.readouterr()
    path = folder / "state.safetensors"
    with safe_open(path, "pt") as file:
        header, before = file.metadata(), load_file(path)
    for changed in ({}, {keys: torch.zeros(3)}):
        path.write_bytes(save({k: v for k, v in before.items() if k != keys} | changed, header))
        refused(capsys, run("--resume", "run", "--steps", 9, out=None)[0], "state.safetensors is damaged")


def test_a_checkpoint_of_another_model_is_refused(run, no_pictures, capsys):
    _, folder = run("--steps", 5)
    capsys.readouterr()
    facts, tensors = checkpoint.read_state(folder)
    other = checkpoint.pack_file(tensors | {"model.weight": torch.zeros(3)}, facts)
    (folder / "state.safetensors").write_bytes(other)
    refused(capsys, run("--resume", "run", "--steps", 9, out=None)[0], "does not fit this run")


DAMAGE = {
    "metrics.csv": [None, b"", b"\xff\xfe\x00" * 200, b"x" * 5000, b"step,loss\n" * 200],
    "config.yaml": [b"\xff", b"steps: [", b"3", BOMB.encode(), b"problem: null\n"],
    "state.safetensors": [b"hello", "cut", "flipped"],
}


@pytest.mark.parametrize(("name", "damage"), [(name, d) for name, ds in DAMAGE.items() for d in ds])
def test_a_damaged_file_is_refused(run, no_pictures, capsys, name, damage):
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
    from learnsolve.recipes.training.checkpoint import Metrics

    def full(self):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Metrics, "flush", full)
    code, _ = run("--steps", 5)
    assert code == train.FAILED
    assert capsys.readouterr().err.count("\n") == 1
