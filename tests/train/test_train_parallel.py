"""Runs that stop and go on, and runs of several processes: those that nothing interrupted, of one process."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from fork_program import Program
from quick import runs_all
from safetensors.torch import load_file
from train.train_cases import SMALL

from learnsolve import train
from learnsolve.recipes.jacobi import JacobiRecipe
from learnsolve.recipes.training import checkpoint, parallel
from learnsolve.recipes.training.recipe import normal_vectors
from learnsolve.recipes.training.settings import SettingError

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]
USUAL = ["--test_vectors", "7", "--problem.shape", "[4,4]"]
CURVES = {
    "fixed": [],
    "resampled": ["--resample", "--sweeps", "2"],
    "identity": ["--test_vectors", "identity"],
    "hardest": ["--hard_fraction", "0.4"],
    "hardest_resampled": ["--resample", "--hard_fraction", "0.4"],
    "one_vector": ["--test_vectors", "1"],
}
SCALARS = ["heavyball", "--problem.shape", "[4,4]", "--alpha", "0.1", "--sweeps", "4", "--test_vectors", "7"]
NETWORK = ["heavyball_network", "--grid", "[3,3]", "--held_out_matrices", "2", "--sweeps", "4"]
PCG = ["pcg", "--problem.shape", "[4,4]", "--held_out", "5", "--evaluated", "2", "--test_vectors", "7"]
OTHERS = {
    "heavyball": [*SCALARS, "--resample"],
    "heavyball_identity_hardest": [*SCALARS, "--test_vectors", "identity", "--hard_fraction", "0.4"],
    "network": [*NETWORK, "--matrices", "5", "--resample"],
    "network_hardest": [*NETWORK, "--matrices", "5", "--resample", "--hard_fraction", "0.4"],
    "network_one_matrix": [*NETWORK, "--matrices", "1"],
    "pcg": [*PCG, "--clip", "0.02", "--schedule", "cosine", "--curriculum", "5", "--resample"],
    "pcg_guarded": [*PCG, "--guard", "0.01", "--lr", "2"],
    "pcg_hardest": [*PCG, "--clip", "0.02", "--hard_fraction", "0.4"],
    "pcg_triangular_hardest": [*PCG, "--form", "triangular", "--hard_fraction", "0.4"],
    "pcg_target": [*PCG, "--test_vectors", "ramp", "--target", "0.001", "--lr", "0.01"],
    "pcg_target_hardest": [*PCG, "--target", "0.04", "--lr", "0.01", "--hard_fraction", "0.4"],
    "pcg_patience": [*PCG, "--lr", "0.3", "--patience", "2", "--evaluate_every", "2"],
}
QUICK = {  # what `make test` runs; CI runs them all
    *("fixed", "hardest_resampled", "pcg", "resumed", "begun_here", "talking", "taken"),
    *("fails", "stopped", "after all"),
}
EARLY = {"pcg_target", "pcg_target_hardest", "pcg_patience"}  # end before their last step


def argv(out: str, *options: str) -> list[str]:
    recipe, *options = options if options and not options[0].startswith("-") else ("jacobi", *USUAL, *options)
    return [recipe, "--steps", "30", "--threads", "1", "--quiet", "--out", f"runs/{out}", *options]


CASES = {
    **{name: {"argv": argv(name, *options)} for name, options in (CURVES | OTHERS).items()},
    "fixed": {"argv": argv("fixed"), "draws": True},
    "resumed": {"argv": ["jacobi", "--resume", "runs/begun", "--steps", "30", "--quiet"]},
    "begun_here": {"argv": argv("begun_here", "--steps", "15")},
    "talking": {"argv": [word for word in argv("talking") if word != "--quiet"]},
    "help": {"argv": ["jacobi", "--help"]},
    "bad option": {"argv": argv("bad", "--lr", "0")},
    "taken": {"argv": argv("begun")},
    "gcn": {"argv": ["gcn"]},
    "diverges": {"argv": argv("diverges", "--lr", "1e3")},
    "fails": {"argv": argv("fails"), "fail": [1, 5]},
    "stopped": {"argv": argv("stopped"), "stop": [1, 12]},
    "finishes": {"argv": argv("finishes"), "finish": [1, 9]},
    "after all": {"argv": ["jacobi", "--resume", "runs/stopped", "--quiet"]},
}


def launched(processes: int, folder: Path, cases: dict[str, dict]) -> dict[str, list[dict]]:
    """What each process says of each case; with torchrun's variables, without its seconds."""
    (folder / "cases").write_text(json.dumps(list(cases.values())))
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    script = str(Path(__file__).with_name("parallel_cases.py"))
    same = {"MASTER_ADDR": "localhost", "MASTER_PORT": store.port, "TORCHELASTIC_USE_AGENT_STORE": True}
    same |= {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
    variables = [same | {"RANK": rank, "LOCAL_RANK": rank} for rank in range(processes)]
    texts = [{key: str(value) for key, value in each.items()} for each in variables]
    for program in [Program(folder, script, "cases", place=folder, **each) for each in texts]:
        program.end(100)
    of_rank = [json.loads((folder / f"cases.{rank}").read_text()) for rank in range(processes)]
    return {name: [results[i] for results in of_rank] for i, name in enumerate(cases)}


@pytest.fixture(scope="module")
def begin():
    """Make a run in this process, which every run in several is compared with."""
    before = torch.get_num_threads()

    def begin(folder: Path, *argv: str) -> None:
        here = Path.cwd()
        os.chdir(folder)
        try:
            assert train.main(argv) == train.OK
        finally:
            os.chdir(here)

    yield begin
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def two(tmp_path_factory, begin, request):
    """All cases in two processes: (results by case, folder)."""
    folder = tmp_path_factory.mktemp("two")
    begin(folder, *argv("begun", "--steps", "15"))
    cases = {name: case for name, case in CASES.items() if runs_all(request.config) or name in QUICK}
    return launched(2, folder, cases), folder


def quick_or_slow(name, *more):
    return pytest.param(name, *more, id=name, marks=() if name in QUICK else pytest.mark.slow)


@pytest.fixture
def same_curve(begin, rows, tmp_path):
    """Compare a run with one of the same options in one process."""

    def same(folder: Path, *options: str) -> None:
        begin(tmp_path, *argv("alone", *options, "--overwrite"))
        alone, shared = rows(tmp_path / "runs/alone"), rows(folder)
        assert len(alone) == len(shared)
        assert (len(alone) < 31) == (folder.name in EARLY)
        for a, b in zip(alone, shared, strict=True):
            assert [k for k in a if a[k]] == [k for k in b if b[k]]
            numbers = [[float(row[k]) for k in row if row[k]] for row in (a, b)]
            # Sums of 7 vectors and 16 rows in another order, and what Adam makes of it in 30 steps.
            assert numbers[1] == pytest.approx(numbers[0], rel=1e-11)
        weights = [load_file(f / "model.safetensors") for f in (tmp_path / "runs/alone", folder)]
        torch.testing.assert_close(*weights, rtol=0, atol=1e-11)

    return same


@pytest.fixture(autouse=True)
def _numbers_only(no_pictures):
    pass


@pytest.mark.rows(1)
@pytest.mark.parametrize("name", [quick_or_slow(name) for name in CURVES | OTHERS])
def test_two_processes_follow_the_curve_of_one(two, same_curve, name):
    results, folder = two
    assert [r["code"] for r in results[name]] == [train.OK] * 2
    same_curve(folder / "runs" / name, *(CURVES | OTHERS)[name])


@pytest.mark.slow
def test_four_processes_follow_the_curve_of_one(tmp_path, same_curve):
    names = "fixed", "hardest", "one_vector"
    for name, results in launched(4, tmp_path, {name: CASES[name] for name in names}).items():
        assert [r["code"] for r in results] == [train.OK] * 4
        same_curve(tmp_path / "runs" / name, *CURVES[name])


def test_a_run_goes_on_with_another_number_of_processes(two, begin, same_curve):
    results, folder = two
    assert [r["code"] for r in results["resumed"]] == [train.OK] * 2
    same_curve(folder / "runs/begun")
    begin(folder, "jacobi", "--resume", "runs/begun_here", "--steps", "30", "--quiet")
    same_curve(folder / "runs/begun_here")


def test_only_rank_0_writes_and_prints(two):
    results, folder = two
    for name, (first, second) in results.items():
        assert not second["wrote"], name
        assert second["out"] == "", name
        assert second["err"] == "" or name == "fails"
        assert [first["open"], second["open"]] == [False, False], name  # no process group is left
    first = results["talking"][0]
    assert first["wrote"]
    assert first["err"].startswith("step 30 of 30, loss ")
    assert first["out"].endswith("Results: runs/talking\n")
    report = json.loads((folder / "runs/hardest_resampled/report.json").read_text())
    assert report["processes"] == 2
    assert report["hardest"] == {"kept": 3, "of": 7}
    pictures = {"loss.png", "weights.png"}
    assert pictures == {path.name for path in (folder / "runs/fixed").glob("*.png")}


@pytest.mark.parametrize(
    ("name", "code", "speaker", "words"),
    [
        quick_or_slow("bad option", train.BAD_SETTING, 0, "--lr must be a positive number"),
        quick_or_slow("taken", train.BAD_SETTING, 0, "--out runs/begun already holds a run"),
        quick_or_slow("gcn", train.BAD_SETTING, 0, "gcn has no test vectors to share among 2 processes"),
        quick_or_slow("diverges", train.FAILED, 0, "step 1: the training diverged"),
        quick_or_slow("fails", train.BAD_SETTING, 1, "this process has had enough"),
        quick_or_slow(
            "stopped", train.INTERRUPTED, 0, "stopped at step 12. Resume with: torchrun --nproc-per-node 2"
        ),
    ],
)
def test_what_ends_one_process_ends_all_with_one_message(two, name, code, speaker, words):
    results, _ = two
    assert [r["code"] for r in results[name]] == [code] * 2
    message = results[name][speaker]["err"]
    assert message.startswith("learnsolve.train: ")
    assert message.count("\n") == 1
    assert words in message
    assert results[name][1 - speaker]["err"] == ""


@pytest.mark.slow
def test_help_is_printed_once(two):
    assert "--hard_fraction" in two[0]["help"][0]["out"]


@pytest.mark.slow
def test_clipping_guard_and_stops_are_at_work_in_the_cases_above(two, rows):
    _, folder = two
    table = {name: rows(folder / "runs" / name) for name in ("pcg", "pcg_guarded", *EARLY)}
    assert float(table["pcg"][0]["gradient_norm"]) > 0.02
    assert float(table["pcg_guarded"][-1]["shortened_steps"]) > 0
    assert all(len(table[name]) > 2 for name in EARLY)
    for name in ("pcg_target", "pcg_target_hardest"):
        target = float(OTHERS[name][OTHERS[name].index("--target") + 1])
        assert (
            float(table[name][-1]["training_residual"]) < target < float(table[name][0]["training_residual"])
        )


@pytest.mark.slow
def test_one_process_may_end_the_training_early(two, rows):
    results, folder = two
    assert [r["code"] for r in results["finishes"]] == [train.OK] * 2
    table = rows(folder / "runs/finishes")
    assert table[:-1] == rows(folder / "runs/fixed")[:9]
    assert table[-1]["step"] == "9"
    assert table[-1]["held_out_loss"]


def test_an_interrupted_run_goes_on_bit_for_bit(two, rows):
    results, folder = two
    assert [r["code"] for r in results["after all"]] == [train.OK] * 2
    assert rows(folder / "runs/stopped") == rows(folder / "runs/fixed")
    same = [(folder / "runs" / name / "model.safetensors").read_bytes() for name in ("stopped", "fixed")]
    assert same[0] == same[1]


@pytest.mark.slow
def test_ctrl_c_at_torchrun_leaves_a_checkpoint(tmp_path):
    options = ["--steps", "1000000", "--quiet", "--threads", "1", "--checkpoint_seconds", "0", "--out", "run"]
    command = [*TORCHRUN, "2", "-m", "learnsolve.train", "jacobi", *options]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while (
        not (tmp_path / "run/state.safetensors").exists()
        or checkpoint.read_state(tmp_path / "run")[0]["step"] < 20
    ):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=60)
    stopped = checkpoint.read_state(tmp_path / "run")[0]["step"]
    assert f"learnsolve.train: stopped at step {stopped}. Resume with: torchrun" in message
    assert message.count("learnsolve.train: ") == 1


# --- parts of the runs by several processes, in one process ---


def test_shares_are_neighbors_and_cover_everything(monkeypatch):
    monkeypatch.setattr(parallel.dist, "is_initialized", lambda: True)
    for size in (1, 2, 3, 8):
        monkeypatch.setattr(parallel.dist, "get_world_size", lambda size=size: size)
        for count in (0, 1, 5, 7, 100):
            shares = []
            for rank in range(size):
                monkeypatch.setattr(parallel.dist, "get_rank", lambda rank=rank: rank)
                shares.append(parallel.share(count))
            assert [i for share in shares for i in share] == list(range(count))
            assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_no_vectors_are_an_empty_array():
    kind = {"dtype": torch.float32, "device": "cpu"}
    assert normal_vectors(5, [], seed=0, stream=0, step=0, **kind).shape == (5, 0)


def test_half_of_torchruns_variables_are_refused(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert train.main(["jacobi"]) == train.BAD_SETTING
    assert "LOCAL_RANK is not: start several processes with torchrun" in capsys.readouterr().err


def test_a_process_that_was_killed_is_reported_in_a_sentence():
    class Store:
        def compare_set(self, key, expected, desired):
            return desired.encode()

    group = parallel.Group(0, 2, Store(), lambda error: 1)
    lost = RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:5000")
    with pytest.raises(parallel.Lost, match="another process has ended"):
        group.end(lost)
    group.end(RuntimeError("out of memory"))  # its own: raised as it is


def test_one_gpu_is_not_for_several_processes(monkeypatch):
    monkeypatch.setattr(parallel.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_RANK", "1")
    parallel.take_device("cpu")
    with pytest.raises(SettingError, match=r"cuda:0 is one GPU for several processes\. --device cuda"):
        parallel.take_device("cuda:0")
    with pytest.raises(SettingError, match="process 1 of this machine has no GPU: torch sees 1"):
        parallel.take_device("cuda")


# --- checkpoints ---


BALL, BALLS, CG, PRECORRECTOR, NEURALIF, GNP = (
    f"{name} {SMALL[name]} --evaluate_every 3"
    for name in ("heavyball", "heavyball_network", "pcg", "precorrector", "neuralif", "gnp")
)
CG += " --resample --patience 100 --clip 0.02 --schedule cosine --schedule_steps 24 --curriculum 5"
PRECORRECTOR += " --schedule_steps 24"
RUNS = [
    "jacobi --test_vectors 10",
    "jacobi --test_vectors 10 --resample",
    "jacobi --test_vectors 10 --hard_fraction 0.25",
    "jacobi --test_vectors 10 --resample --hard_fraction 0.25",
    "jacobi --test_vectors 10 --dtype float32 --problem.shape [5,4]",
    f"{BALL} --resample",
    f"{BALL} --hard_fraction 0.5",
    BALLS,
    f"{BALLS} --hard_fraction 0.5",
    CG,
    f"{CG} --form triangular",
    f"{CG} --hard_fraction 0.5",
    PRECORRECTOR,
    f"{PRECORRECTOR} --resample --hard_fraction 0.5",
    f"{NEURALIF} --schedule_steps 24",
    f"{GNP} --schedule_steps 24",
    "gcn",
    "gcn --dtype float64",
]


def same_run(rows, a, b) -> None:
    assert rows(a) == rows(b)
    assert (a / "model.safetensors").read_bytes() == (b / "model.safetensors").read_bytes()


# One of most recipes; CI takes all.
OF_MOST = {*RUNS[:6], BALLS, CG, PRECORRECTOR}


@pytest.mark.rows(2)
@pytest.mark.parametrize(
    "command", [pytest.param(c, marks=() if c in OF_MOST else pytest.mark.slow) for c in RUNS]
)
def test_a_run_with_more_steps_continues_bit_for_bit(run, rows, command):
    recipe, *options = command.split()
    _, whole = run("--steps", 24, *options, out="whole", recipe=recipe)
    run("--steps", 9, *options, out="parts", recipe=recipe)
    code, parts = run("--resume", "parts", "--steps", 24, out=None, recipe=recipe)
    assert code == train.OK
    same_run(rows, whole, parts := parts / "parts")
    assert checkpoint.read_state(parts)[0]["step"] == 24
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
        return checkpoint.read_state(folder)[0]["step"]
    except SettingError:
        return -1


class Killed(BaseException):
    """Stands for SIGKILL at one system call."""


@pytest.mark.parametrize("when", range(4))
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
