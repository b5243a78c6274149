"""The benchmarks run on tiny problems, check what they time, and see what moved between two runs."""

import copy
import json
import os
import re
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from learnsolve import CSR

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))

import learnsolve as ls  # noqa: E402
from benchmarks import calls, contestants, documents, harness, instructions, ledger, peers, report  # noqa: E402
from benchmarks.__main__ import SECTIONS, main  # noqa: E402
from benchmarks.ledger import Ledger, supervised  # noqa: E402

GPU_SECTIONS = (
    *("spmv", "sptrsv", "pcg", "spmm", "spgemm", "solve", "stationary"),
    *("checks", "training", "add", "sorts"),
)


def command(*arguments: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", *arguments]
    return subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_every_section_runs(tmp_path, capsys):
    done = command("benchmarks", "--quick", "--name", "quick", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    record, page = json.loads((tmp_path / "quick.json").read_text()), (tmp_path / "quick.md").read_text()
    assert {row["section"] for row in record["rows"]} == set(SECTIONS)
    assert not [note for note in record["notes"] if "Error" in note]
    for row in record["rows"]:
        ours = row["cells"].get(harness.OURS)
        assert ours is None or ours.get("median", 0) > 0, (row["section"], row["case"], row["way"], ours)
        assert not [cell for cell in row["cells"].values() if "wrong" in cell.get("failed", "")], row
    assert all(f"## {name}" in page for name in SECTIONS)
    assert (tmp_path / "quick-figure11.png").stat().st_size > 1000
    path = str(tmp_path / "quick.json")
    assert main(["compare", path, path]) == 0
    assert " 0 moved" in capsys.readouterr().out
    assert main(["compare", path]) == 2


@pytest.mark.slow
def test_gpu_benchmarks_on_the_cpu(tmp_path):
    out = tmp_path / "gpu.json"
    done = command("benchmarks.gpu", "--device", "cpu", "--quick", "--seconds", "0.001", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(out.read_text())
    ours = [line for line in record["left_out"] if not line.startswith(("torch,", "unplanned, torch,"))]
    assert not ours
    assert {row["section"] for row in record["rows"]} == set(GPU_SECTIONS)
    assert all(value > 0 for row in record["rows"] for value in row.values() if isinstance(value, float))
    assert all(t["met"] == "yes" for t in record["targets"] if t["target"] == "same bits on every run")
    page = out.with_suffix(".md").read_text()
    assert all(f"## {name}" in page for name in (*GPU_SECTIONS, "Targets"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "sections are table2"),
        (["calls", "nothing"], "got nothing"),
        (["--matrices", "/nowhere"], "no .mtx files there"),
        pytest.param(
            ["--device", "cuda"],
            "no CUDA device",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device"),
        ),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_tables_of_the_rows_where_a_peer_is_faster():
    cells = {harness.OURS: {"median": 2e-6}, "SciPy": {"median": 1e-6}, "torch CSR": {"median": 8e-6}}
    row = {"section": "table2", "case": "SpMV", "way": "forward", "dtype": "float32", "threads": 1}
    rows = [
        row | {"cells": cells, "ratio": 2.0, "best peer": "SciPy"},
        row | {"way": "forward + sum + backward", "cells": cells, "ratio": 0.25, "best peer": "torch CSR"},
        row | {"section": "operations", "threads": 2, "cells": cells, "ratio": 3.0, "best peer": "SciPy"},
        row | {"section": "loops", "case": "equal", "cells": cells, "ratio": 1.01, "best peer": "SciPy"},
    ]
    assert "| SpMV | 2 µs | 1 µs, SciPy | 2 µs | 8 µs, torch CSR |" in documents.table2({"rows": rows})
    slower = documents.slower({"rows": rows}).splitlines()[2:]
    assert slower == ["| SpMV, forward | float32, 2 threads | 2 µs | 1 µs, SciPy | 3.00 |"]
    causes = documents.causes({"rows": rows})
    assert "| calls below 0.4 ms | 1 | 3 |" in causes
    assert "1 of 3 cases" in causes


def test_whole_steps_count_both_passes_against_each_peer():
    row = {"section": "operations", "case": "A x", "dtype": "float32", "threads": 1}
    forward = {harness.OURS: {"median": 2.0}, "SciPy": {"median": 1.0}, "torch CSR": {"median": 3.0}}
    backward = {harness.OURS: {"median": 2.0}, "torch CSR": {"median": 9.0}, "loop": {"median": 0.1}}
    rows = [row | {"way": "forward", "cells": forward}, row | {"way": "backward", "cells": backward}]
    rows.append(row | {"way": "forward", "case": "alone", "cells": {harness.OURS: {"median": 1.0}}})
    assert documents.leads({"rows": rows}, "forward", "backward") == [3.0]  # SciPy has no backward pass
    assert documents.leads({"rows": rows}, "forward") == [0.5]
    text = documents.whole_steps({"rows": rows})
    assert "in 1 of 1 combinations" in text
    assert "slower in 1 of 1." in text


def test_tables_of_the_pages_are_those_of_the_committed_run():
    record = json.loads(documents.RUN.read_text())
    assert {page.name for page in documents.pages()} >= {"README.md", "performance.md"}
    for page in documents.pages():
        text = page.read_text()
        assert text == documents.rewritten(text, record), f"run python -m benchmarks write-docs ({page.name})"


@pytest.mark.slow
def test_a_ledger_goes_on_after_an_interruption_and_marks_what_kills_a_process(tmp_path):
    path = tmp_path / "rows.jsonl"
    assert Ledger(path)("a", lambda: {"x": 1}) == {"x": 1}
    assert Ledger(path)("a", failing) == {"x": 1}
    assert "out of memory" in Ledger(path)("b", failing)["failed"]
    for times in (1, 2):
        with pytest.raises(BrokenProcessPool):
            harness.apart(dies, path)
        assert ("c" in Ledger(path).rows) == (times == 2)
    assert supervised(dies, path)["failed"] == "its process died"
    assert supervised(hangs, path)["failed"].startswith("took more than")
    Ledger(path).forget(lambda key: key == "a")
    assert sorted(Ledger(path).rows) == ["b", "c", "d"]


def dies(path):
    return Ledger(path)("c", lambda: os._exit(1))


def hangs(path):
    ledger.LIMIT = 0.1
    return Ledger(path)("d", lambda: re.match("(a*)*b", 40 * "a"))  # a compiled loop


@pytest.mark.parametrize("symmetric", [True, False])
def test_contestants_solve_again_with_other_values(symmetric):
    A = ls.problems.poisson((12, 12))
    if not symmetric:
        A = ls.problems.convection_diffusion(torch.ones(2, 12, 12, dtype=torch.float64))
    S = sp.csr_matrix(A.to_scipy())
    assert contestants.is_symmetric(S) == symmetric
    B = np.random.default_rng(0).standard_normal((144, 3))
    for name, contestant in contestants.CONTESTANTS.items():
        if contestant.absent or not contestant.takes(symmetric):
            continue
        set_up = contestant.start(S, symmetric, **contestant.settings[-1])
        for factor in (1.0, 1.5):
            row, solve = contestants.timed(lambda f=factor, s=set_up: s(f * S.data), factor * S, B[:, 0])
            assert row["residual"] <= 2e-8, name
            assert np.abs(factor * S @ solve(B)[0] - B).max() < 1e-6, name
    with pytest.raises(ArithmeticError, match="true residual"):
        contestants.timed(lambda: lambda b: (0.9 * b, 3), sp.eye_array(144), B[:, 0])


def test_axes_of_a_grid_run_backward():
    for shape in ((5, 7), (3, 4, 5), (9,)):
        S = sp.csr_matrix(ls.problems.poisson(shape).to_scipy())
        order = np.arange(S.shape[0]).reshape(shape)
        for axis in range(1, len(shape) + 1):
            np.testing.assert_array_equal(contestants.flipped(S, axis), np.flip(order, -axis).ravel())
    np.testing.assert_array_equal(
        contestants.flipped(sp.csr_array(np.tri(4) + np.eye(4, k=1)), 2), [3, 2, 1, 0]
    )
    np.testing.assert_array_equal(contestants.flipped(sp.csr_array(np.eye(3)), 1), [2, 1, 0])


def failing():
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory")


def test_wrong_and_failing_columns_are_shown_as_such():
    run = harness.Run(seconds=1e-4, rounds=2, slow=0.05)
    x = torch.arange(1.0, 5.0, dtype=torch.float64)
    columns = {
        harness.OURS: lambda: lambda: x * 2,
        "SciPy": lambda: lambda: 2 * x.numpy(),
        "off": lambda: lambda: x * 2.001,
        "NaN": lambda: lambda: x * float("nan"),
        "short": lambda: lambda: [x, x],
        "large": lambda: failing,
        "slow": lambda: lambda: (torch.arange(3e7).cumsum(0), x * 2)[1],
    }
    row = run.row("2 x", columns)
    cells = row["cells"]
    assert list(cells) == list(columns)
    assert cells["off"] == {"failed": "wrong by 5.0e-04"}
    assert cells["NaN"] == {"failed": "wrong by inf"}
    assert "2 results instead of 1" in cells["short"]["failed"]
    assert cells["large"] == {"failed": "out of memory"}
    assert (cells["slow"]["slow"], cells["slow"]["samples"]) == (True, 1)
    assert len(cells[harness.OURS]["rounds"]) == 2
    assert row["best peer"] == "SciPy"
    page = report.markdown([report.shown(row)])
    assert "out of memory" in page
    assert "(one call)" in page


def test_results_of_all_libraries_are_compared_entry_by_entry():
    S = peers.csr(np.array([[2.0, 0, -1], [0, 0, 3], [4, 5, 0]]))
    A = CSR.from_scipy(S)
    same = [A, A.to_torch(), A.to_torch(torch.sparse_coo), S.tocsc(), A.to_dense()]
    assert [harness.deviation(harness.canonical(M), [S]) for M in same] == [0] * 5
    moved = CSR.from_dense(A.to_dense().T.contiguous())
    assert harness.deviation(harness.canonical(moved), [S]) > 0.5
    assert harness.deviation(harness.canonical([A.to_dense() * 2]), [S.data], [S.tocoo().coords]) == 1
    matrix = peers.Matrix(peers.csr(np.eye(3)), torch.device("cpu"))
    with pytest.raises(ValueError, match="differs"):
        matrix._same(2 * torch.eye(3, dtype=torch.float64))


def test_memory_is_measured():
    size = 64 * 2**20
    # Meanwhile the system may take pages of the process away, which hides as much: one of some is right.
    peaks = (harness.peak_bytes(lambda: torch.ones(size, dtype=torch.uint8)) for _ in range(10))
    assert any(peak is None or 0.9 < peak / size < 1.5 for peak in peaks)


def test_counts_of_instructions_may_grow_by_a_tenth():
    committed = {"still": 100.0, "within": 100.0, "beyond": 100.0}
    counts = {"still": 100.0, "within": 109.0, "beyond": 111.0, "new": 1.0}
    lines = instructions.exceeding(counts, committed)
    assert [line.split(":")[0] for line in lines] == ["beyond", "new"]
    assert list(json.loads(instructions.FILE.read_text())["counts"]) == list(calls.cases())


def test_compare_reports_what_moved_beyond_noise():
    cell = {"median": 1.0, "iqr": 0.1, "samples": 9, "rounds": [0.9, 1.0, 1.1]}
    about = {"section": "s", "way": "forward", "dtype": "float64", "threads": 1}
    cases = ("still", "noisy", "slower", "breaks")
    both = [about | {"case": case, "cells": {harness.OURS: cell, "SciPy": cell}} for case in cases]
    a = {"rows": both, "name": "a"}
    b = copy.deepcopy(a)
    _, noisy, slower, breaks = (row["cells"] for row in b["rows"])
    noisy[harness.OURS] = cell | {"median": 1.4, "rounds": [1.05, 1.4, 1.5]}
    slower[harness.OURS] = cell | {"median": 1.5, "rounds": [1.4, 1.5, 1.6]}
    breaks[harness.OURS] = {"failed": "wrong by 1"}
    text = report.compare(a, b)
    assert [case for case in cases if case in text] == ["slower", "breaks"]
    assert "8 figures in both, 2 moved" in text
