"""The benchmarks run on tiny problems, check what they time, and see what moved between two runs."""

import copy
import gc
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from learnsolve import CSR

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))


from benchmarks import calls, documents, harness, instructions, peers, report  # noqa: E402
from benchmarks.__main__ import SECTIONS, main  # noqa: E402

GPU_SECTIONS = (
    *("spmv", "spmm", "spgemm", "add", "sptrsv", "pcg", "stationary", "solve", "training"),
    *("rows", "scans", "tickets", "lanes", "loops", "checks", "sorts"),
)
PNG = b"\x89PNG\r\n\x1a\n"


def command(*arguments: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """The record of a quick run of everything, its page, and the folder: 17 s, so its tests are slow ones."""
    folder = tmp_path_factory.mktemp("benchmarks")
    done = command("benchmarks", "--quick", "--name", "quick", "--out", str(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "quick.json").read_text()), (folder / "quick.md").read_text(), folder


@pytest.mark.slow
def test_every_section_runs(quick):
    record, page, folder = quick
    assert {row["section"] for row in record["rows"]} == set(SECTIONS)
    assert not [note for note in record["notes"] if "Error" in note]
    for row in record["rows"]:
        ours = row["cells"].get(harness.OURS)
        assert ours is None or ours.get("median", 0) > 0, (row["section"], row["case"], row["way"], ours)
        assert not [cell for cell in row["cells"].values() if "wrong" in cell.get("failed", "")], row
    assert all(f"## {name}" in page for name in SECTIONS)
    assert "Share of matrices within a factor" in page
    assert (folder / "quick-figure11.png").read_bytes().startswith(PNG)
    assert set(record["triad_gb_s"]) == {"1"}
    assert {"cpu", "torch", "scipy", "instruction_set", "load"} <= set(record["machine"])


@pytest.mark.slow
def test_a_section_runs_in_a_process_of_its_own(tmp_path):
    done = command(
        "benchmarks", "calls", "--seconds", "1e-4", "--rounds", "1", "--name", "calls", "--out", str(tmp_path)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert {row["section"] for row in json.loads((tmp_path / "calls.json").read_text())["rows"]} == {"calls"}


def test_tables_of_the_rows_where_a_peer_is_faster():
    cells = {harness.OURS: {"median": 2e-6}, "SciPy": {"median": 1e-6}, "torch CSR": {"median": 8e-6}}
    row = {"section": "table2", "case": "SpMV", "way": "forward", "dtype": "float32", "threads": 1}
    rows = [
        row | {"cells": cells, "ratio": 2.0, "best peer": "SciPy"},
        row | {"way": "forward + sum + backward", "cells": cells, "ratio": 0.25, "best peer": "torch CSR"},
        row | {"section": "operations", "threads": 2, "cells": cells, "ratio": 3.0, "best peer": "SciPy"},
        row | {"section": "loops", "case": "equal", "cells": cells, "ratio": 1.01, "best peer": "SciPy"},
    ]
    assert "| SpMV | 2 us | 1 us, SciPy | 2 us | 8 us, torch CSR |" in documents.table2({"rows": rows})
    slower = documents.slower({"rows": rows}).splitlines()[2:]
    assert slower == ["| SpMV, forward | float32, 2 threads | 2 us | 1 us, SciPy | 3.00 |"]
    causes = documents.causes({"rows": rows})
    assert "| calls below 0.4 ms | 1 | 3 |" in causes
    assert "of 3 cases" in causes


def test_tables_of_the_pages_are_those_of_the_committed_run():
    record = json.loads(documents.RUN.read_text())
    assert {page.name for page in documents.pages()} >= {"README.md", "performance.md"}
    for page in documents.pages():
        text = page.read_text()
        assert text == documents.rewritten(text, record), f"run python -m benchmarks write-docs ({page.name})"


@pytest.mark.slow
def test_backward_is_measured_where_there_is_one(quick):
    rows = [
        row
        for row in quick[0]["rows"]
        if row["section"] == "table2" and row["case"].startswith("SpMV, n = 200")
    ]
    by_way = {row["way"]: row["cells"] for row in rows[:3]}
    assert list(by_way) == list(harness.WAYS)
    assert "SciPy" in by_way[harness.FORWARD]
    assert "SciPy" not in by_way[harness.BACKWARD]
    assert by_way[harness.BACKWARD]["torch CSR"]["partial"]  # by x only
    assert "partial" not in by_way[harness.BACKWARD][harness.OURS]


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
    assert cells["slow"]["slow"]
    assert cells["slow"]["samples"] == 1
    assert len(cells[harness.OURS]["rounds"]) == 2
    assert row["best peer"] == "SciPy"
    ours, theirs = (cells[name]["rounds"] for name in (harness.OURS, "SciPy"))
    assert min(a / b for a, b in zip(ours, theirs, strict=True)) <= row["ratio"]
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
    places = S.tocoo().coords
    full = harness.canonical(
        A.to_dense() + torch.eye(3) * torch.tensor([0.0, 7.0, 7.0])
    )  # more entries: allowed
    assert harness.deviation(full, [S.data], [places]) == 0
    assert harness.deviation(harness.canonical([A.to_dense() * 2]), [S.data], [places]) == 1
    assert harness.deviation([None], [S.data]) == 0
    assert harness.cotangent(A.to_dense()).unique().numel() == 7  # (7 i + 3 j) mod 11 for i, j < 3
    for y in (A, A.to_torch(), A.to_torch(torch.sparse_coo)):
        g = harness.canonical(harness.cotangent(y))[0]
        wanted = harness.cotangent(A.to_dense()).numpy()[places]
        assert np.array_equal(g if g.ndim == 1 else g.data, wanted)


def test_a_converted_matrix_that_differs_is_refused():
    matrix = peers.Matrix(peers.csr(np.eye(3)), torch.device("cpu"))
    with pytest.raises(ValueError, match="differs"):
        matrix._same(2 * torch.eye(3, dtype=torch.float64))


def test_medians_and_first_calls():
    made = []
    found = harness.medians({"a": lambda: made.append("a"), "b": lambda: made.append("b")}, 1e-3)
    assert set(found) == {"a", "b"}
    assert all(0 < t < 1 for t in found.values())
    turns = "".join(made[2:]).replace("aa", "a")
    assert turns.count("ab") >= 1
    assert turns.count("ba") >= 1
    prepared = []
    times = harness.first_calls(lambda: prepared.append(0) or len(prepared), lambda i: i, repeat=3)
    assert len(times) == 3
    assert len(prepared) == 3


def test_memory_is_measured_and_limited():
    megabytes = 64
    # Meanwhile the system may take pages of the process away, which hides as much: one of three is right.
    found = [harness.peak_bytes(lambda: torch.ones(megabytes * 2**20, dtype=torch.uint8)) for _ in range(3)]
    # It counts in batches.
    assert any(f is None or 0.9 < f / (megabytes * 2**20) < 1.5 for f in found)
    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        harness.limit_memory(share=0.5)
        if resource.getrlimit(resource.RLIMIT_AS) != before:  # Linux, without CUDA
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            with pytest.raises(RuntimeError, match="allocate memory") as caught:
                torch.empty(2 * free + 2**33, dtype=torch.uint8)
            assert harness.reason(caught.value) == "out of memory"
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_garbage_freed_meanwhile_does_not_hide_memory():
    megabytes = 64
    garbage = [torch.ones(2 * megabytes * 2**20, dtype=torch.uint8)]
    garbage.append(garbage)  # only the collector frees it
    del garbage

    def task():
        gc.collect()
        torch.ones(megabytes * 2**20, dtype=torch.uint8)

    found = harness.peak_bytes(task)
    assert found is None or 0.9 < found / (megabytes * 2**20) < 1.5


def test_counts_of_instructions_may_grow_by_a_tenth():
    committed = {"still": 100.0, "within": 100.0, "beyond": 100.0}
    found = {"still": 100.0, "within": 109.0, "beyond": 111.0, "new": 1.0}
    said = instructions.exceeding(found, committed)
    assert [line.split(":")[0] for line in said] == ["beyond", "new"]


def test_every_small_call_has_a_count():
    assert list(json.loads(instructions.FILE.read_text())["counts"]) == list(calls.cases())


@pytest.mark.slow
def test_compare_reports_what_moved_beyond_noise(quick, tmp_path, capsys):
    a = {"rows": [], "name": "a"}
    cell = {"median": 1.0, "iqr": 0.1, "samples": 9, "rounds": [0.9, 1.0, 1.1]}
    about = {"section": "s", "way": "forward", "dtype": "float64", "threads": 1}
    for case in ("still", "noisy", "slower", "breaks"):
        a["rows"].append({**about, "case": case, "cells": {harness.OURS: dict(cell), "SciPy": dict(cell)}})
    b = copy.deepcopy(a)
    cells = {row["case"]: row["cells"][harness.OURS] for row in b["rows"]}
    cells["noisy"] |= {"median": 1.4, "rounds": [1.05, 1.4, 1.5]}
    cells["slower"] |= {"median": 1.5, "rounds": [1.4, 1.5, 1.6]}
    cells["breaks"].clear()
    cells["breaks"]["failed"] = "wrong by 1"
    text = report.compare(a, b)
    assert "slower" in text
    assert "breaks" in text
    assert "noisy" not in text
    assert "still" not in text
    assert "8 figures in both, 2 moved" in text
    assert "the machine's own change): 1.000" in text
    path = quick[2] / "quick.json"
    assert main(["compare", str(path), str(path)]) == 0
    assert " 0 moved" in capsys.readouterr().out
    assert main(["compare", str(path)]) == 2


def test_a_profile_counts_failures_as_infinitely_slow():
    cells = [
        {"a": {"median": 1.0}, "b": {"median": 1.4}},
        {"a": {"failed": "out of memory"}, "b": {"median": 1.0}},
    ]
    lines = report.profile({"profile": "A x", "way": "forward", "cells": c} for c in cells)
    by_name = {line["library"]: line for line in lines}
    assert (by_name["a"]["1"], by_name["a"]["10"]) == ("50%", "50%")
    assert (by_name["b"]["1"], by_name["b"]["1.5"]) == ("50%", "100%")


@pytest.mark.parametrize(
    ("arguments", "said"),
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
def test_bad_arguments(arguments, said, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_gpu_benchmarks_on_the_cpu(tmp_path):
    out = tmp_path / "gpu.json"
    done = command("benchmarks.gpu", "--device", "cpu", "--quick", "--seconds", "0.001", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    ours = [line for line in found["left_out"] if not line.startswith(("torch,", "unplanned, torch,"))]
    assert not ours
    assert {row["section"] for row in found["rows"]} == set(GPU_SECTIONS)
    assert all(value > 0 for row in found["rows"] for value in row.values() if isinstance(value, float))
    assert {t["met"] for t in found["targets"]} <= {"yes", "MISSED"}
    assert all(t["met"] == "yes" for t in found["targets"] if t["target"] == "same bits on every run")
    page = out.with_suffix(".md").read_text()
    assert all(f"## {name}" in page for name in (*GPU_SECTIONS, "Targets"))


@pytest.mark.slow
def test_unknown_gpu_section():
    done = command("benchmarks.gpu", "--device", "cpu", "--only", "spmv,nothing")
    assert done.returncode == 2
    assert "sections are spmv, spmm" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_says_so():
    done = command("benchmarks.gpu")
    assert done.returncode == 2
    assert "no CUDA device" in done.stdout
