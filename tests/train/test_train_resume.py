"""Checkpoints: an interrupted run continues bit for bit, and a kill at any moment leaves a good state."""

import json
import os
import signal
import time

import pytest
import torch
from fork_program import Program
from safetensors.torch import load_file
from train.train_cases import SMALL

from learnsolve import train
from learnsolve.recipes.harness import checkpoint
from learnsolve.recipes.jacobi import JacobiRecipe

BALL, NETWORK, PCG, PRECORRECTOR, NEURALIF, GNP = (
    f"{name} {SMALL[name]} --evaluate_every 3"
    for name in ("heavyball", "heavyball_network", "pcg", "precorrector", "neuralif", "gnp")
)
PCG += " --resample --patience 100 --clip 0.02 --schedule cosine --schedule_steps 24 --curriculum 5"
PRECORRECTOR += " --schedule_steps 24"
RUNS = [
    "jacobi --test_vectors 10",
    "jacobi --test_vectors 10 --resample",
    "jacobi --test_vectors 10 --hard_fraction 0.25",
    "jacobi --test_vectors 10 --resample --hard_fraction 0.25 --hard_pass one",
    "jacobi --test_vectors 10 --dtype float32 --problem.shape [5,4]",
    f"{BALL} --resample",
    f"{BALL} --hard_fraction 0.5",
    NETWORK,
    f"{NETWORK} --hard_fraction 0.5",
    PCG,
    f"{PCG} --form triangular",
    f"{PCG} --hard_fraction 0.5",
    PRECORRECTOR,
    f"{PRECORRECTOR} --resample --hard_fraction 0.5",
    f"{NEURALIF} --schedule_steps 24",
    f"{GNP} --schedule_steps 24",
    "gcn",
    "gcn --seeds 3",
    "gcn --variant demo --dtype float64",
]


@pytest.fixture(autouse=True)
def _numbers_only(no_pictures):
    pass


def same_run(rows, a, b) -> None:
    assert rows(a) == rows(b)
    assert (a / "model.safetensors").read_bytes() == (b / "model.safetensors").read_bytes()


# One of most recipes; CI takes all.
QUICK = {*RUNS[:6], NETWORK, PCG, PRECORRECTOR, "gcn --seeds 3"}


@pytest.mark.parametrize(
    "command", [pytest.param(c, marks=() if c in QUICK else pytest.mark.slow) for c in RUNS]
)
def test_a_run_with_more_steps_continues_bit_for_bit(run, rows, command):
    recipe, *options = command.split()
    _, whole = run("--steps", 24, *options, out="whole", recipe=recipe)
    run("--steps", 9, *options, out="parts", recipe=recipe)
    code, parts = run("--resume", "parts", "--steps", 24, out=None, recipe=recipe)
    assert code == train.OK
    same_run(rows, whole, parts := parts / "parts")
    assert json.loads((parts / "state.json").read_text())["step"] == 24
    assert "steps: 24" in (parts / "config.yaml").read_text()


def test_resuming_a_finished_run_changes_nothing(run, rows):
    _, once = run("--steps", 5, out="once")
    run("--steps", 5, out="twice")
    assert run("--resume", "twice", out="twice")[0] == train.OK
    same_run(rows, once, once.parent / "twice")


def test_an_interrupted_continuation_has_no_report(run, monkeypatch):
    """That of the earlier end is not that of these weights."""
    _, folder = run("--steps", 3)
    loss = JacobiRecipe.loss

    def interrupted(self, step):
        if step == 4:
            signal.raise_signal(signal.SIGINT)
        return loss(self, step)

    monkeypatch.setattr(JacobiRecipe, "loss", interrupted)
    assert run("--resume", "run", "--steps", 6, out=None)[0] == train.INTERRUPTED
    assert not (folder / "report.json").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("options", [[], ["--resample"]])
def test_a_signal_leaves_a_checkpoint(run, rows, monkeypatch, capsys, number, options):
    _, whole = run("--steps", 30, *options, out="whole")
    before = signal.getsignal(number)
    loss = JacobiRecipe.loss

    def interrupted(self, step):
        if step == 12:
            signal.raise_signal(number)
        return loss(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(JacobiRecipe, "loss", interrupted)
        capsys.readouterr()
        code, parts = run("--steps", 30, *options, out="a folder")
    assert code == train.INTERRUPTED
    assert signal.getsignal(number) is before
    message = capsys.readouterr().err
    assert "stopped at step 12" in message
    assert message.rstrip().endswith("python -m learnsolve.train jacobi --resume 'a folder'")
    assert len(rows(parts)) == 12
    assert run("--resume", "a folder", out=None)[0] == train.OK
    same_run(rows, whole, parts)


def test_processes_that_are_interrupted_and_killed(run, rows, tmp_path):
    """Ctrl-C and kill -9 for real: one run suffers both and still ends like one that was left alone."""

    def stopped(number: signal.Signals, after: int, *arguments: str) -> str:
        program = Program(tmp_path, train.__file__, "jacobi", "--quiet", *arguments, place=tmp_path)
        deadline = time.monotonic() + 120
        while step_of(tmp_path / "run") < after:
            assert program.process.is_alive(), program.end()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert program.process.pid is not None
        os.kill(program.process.pid, number)
        program.process.join(60)
        assert program.process.exitcode == {signal.SIGKILL: -number, signal.SIGINT: train.INTERRUPTED}[number]
        return program.file.read_text()

    every = ["--steps", "1000000", "--checkpoint_seconds", "0"]
    stopped(signal.SIGKILL, 5, "--out", "run", "--threads", "1", *every)
    message = stopped(signal.SIGINT, step_of(tmp_path / "run") + 5, "--resume", "run")
    assert "--resume run" in message

    facts, _ = checkpoint.read_state(tmp_path / "run")
    _, whole = run("--steps", facts["step"], out="whole")
    # The interrupted run has rows for all steps taken; the finished one has that of its last weights too.
    assert rows(tmp_path / "run") == rows(whole)[:-1]
    assert not list((tmp_path / "run").glob(".*.tmp"))
    assert torch.equal(
        load_file(tmp_path / "run" / "model.safetensors")["weight"],
        load_file(whole / "model.safetensors")["weight"],
    )


def step_of(folder) -> int:
    try:
        return json.loads((folder / "state.json").read_text())["step"]
    except FileNotFoundError:
        return -1


class Killed(BaseException):
    """Stands for SIGKILL at one system call."""


@pytest.mark.parametrize("when", range(6))
def test_a_kill_between_any_two_renames_leaves_one_good_state(tmp_path, monkeypatch, when):
    def facts_of(step: int):
        return {"step": step, "seconds": 0.0, "metrics_bytes": 0}

    def pair(value: float, steps: int):
        model = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.constant_(model.weight, value)
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(2)).sum().backward()
        for _ in range(steps):
            optimizer.step()
        return model, optimizer

    old, new, loaded = pair(1.0, 1), pair(2.0, 2), pair(0.0, 0)
    checkpoint.save_state(tmp_path, *old, facts_of(1))
    renames = iter(range(100))
    rename = os.replace

    def dying(*paths):
        # Even numbers: killed just before a rename; odd ones: just after it.
        here = next(renames)
        if here == when // 2 and when % 2 == 0:
            raise Killed
        rename(*paths)
        if here == when // 2:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", dying)
        with pytest.raises(Killed):
            checkpoint.save_state(tmp_path, *new, facts_of(2))
    facts = checkpoint.load_state(tmp_path, *loaded)
    expected = old if when == 0 else new
    assert facts["step"] == (1 if when == 0 else 2)
    torch.testing.assert_close(loaded[0].weight, expected[0].weight, rtol=0, atol=0)
    for name, tensor in expected[1].state_dict()["state"][0].items():
        assert torch.equal(loaded[1].state_dict()["state"][0][name], tensor)
    assert json.loads((tmp_path / "state.json").read_text())["step"] == facts["step"]


def test_what_would_change_the_run_is_refused_and_the_run_left_alone(run, capsys):
    _, folder = run("--steps", 3)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for option, value in {
        "--lr": 0.1,
        "--seed": 1,
        "--dtype": "float32",
        "--problem.shape": 17,
        "--problem.name": "diffusion",
        "--test_vectors": 10,
        "--resample": "true",
        "--sweeps": 2,
        "--evaluate_every": 3,
        "--hard_fraction": 0.5,
        "--steps": 2,
        "--out": "elsewhere",
    }.items():
        capsys.readouterr()
        assert run(option, value, "--resume", "run", out=None)[0] == train.BAD_SETTING, option
        message = capsys.readouterr().err
        assert message.count("\n") == 1
        assert option in message
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_divergence_stops_and_keeps_the_last_good_state(run, rows, capsys):
    code, folder = run("--lr", 1e3, "--checkpoint_seconds", 0)
    assert code == train.FAILED
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "step 1: the training diverged" in message
    assert "smaller --lr" in message
    facts, _ = checkpoint.read_state(folder)
    assert facts["step"] == 0
    assert torch.equal(load_file(folder / "model.safetensors")["weight"], torch.ones(16, dtype=torch.float64))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops(run, monkeypatch, capsys, value):
    loss = JacobiRecipe.loss
    monkeypatch.setattr(
        JacobiRecipe, "loss", lambda self, step: loss(self, step) * (value if step == 9 else 1)
    )
    code, folder = run("--checkpoint_seconds", 0)
    assert code == train.FAILED
    assert "step 9: the training diverged: loss" in capsys.readouterr().err
    assert checkpoint.read_state(folder)[0]["step"] == 8


def test_an_energy_below_zero_stops(run, capsys, tmp_path):
    indefinite = "%%MatrixMarket matrix coordinate real symmetric\n2 2 3\n1 1 1\n2 1 3\n2 2 1\n"
    (tmp_path / "indefinite.mtx").write_text(indefinite)
    code, _ = run("--problem.name", "matrix_market", "--problem.path", "indefinite.mtx")
    assert code == train.FAILED
    assert "positive definite" in capsys.readouterr().err
