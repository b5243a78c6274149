"""The probes of benchmarks/probes: their tables are read; on the emulator every variant is right."""

import importlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FACTS = {"device": "NVIDIA H200", "torch": "2.11.0", "capability": "90", "nvcc": "nvcc"}
OUTPUT = """copy: 4264 GB/s
| case | type | variant | us | least us | least/us | state |
|---|---|---|---|---|---|---|
| 5 points                   | f32 | now                        |    221.50 |    122.00 |  0.55 | right |
| 5 points                   | f64 | masks                      |       nan |    188.00 |   nan | WRONG |
cuSPARSE 2 is left out: refused
"""


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("gpu")


@pytest.fixture
def gpu_probes(gpu):
    return gpu.gpu_probes


def test_a_table_is_read(gpu_probes):
    read = gpu_probes.table(OUTPUT)
    assert read["about"] == ["copy: 4264 GB/s", "cuSPARSE 2 is left out: refused"]
    assert read["columns"][:4] == ["case", "type", "variant", "us"]
    assert read["rows"] == [
        ["5 points", "f32", "now", 221.5, 122.0, 0.55, "right"],
        ["5 points", "f64", "masks", None, 188.0, None, "WRONG"],
    ]


def replace_programs(gpu_probes, monkeypatch, **texts):
    """By shell scripts, which take the place of compilers too."""

    def command(plan, name):
        write = 'printf "#!/bin/sh\n%s" "$1" >"$0"; chmod +x "$0"'
        return ["sh", "-c", write, str(plan.folder / name), texts[name]]

    monkeypatch.setattr(gpu_probes, "command", command)
    monkeypatch.setattr(gpu_probes, "counters", lambda *_: {})


def test_wrong_results_and_crashes_fail_and_what_was_printed_stays(gpu, gpu_probes, monkeypatch, tmp_path):
    told = f"cat <<'END'\n{OUTPUT}END\n"
    crash = f"{told}kill -SEGV $$"
    replace_programs(
        gpu_probes, monkeypatch, ceilings="exit 0", products=crash, backward=told, triangular="exit 0"
    )
    plan = gpu.Plan(FACTS, tmp_path)
    step = gpu_probes.probes(plan, 60)
    assert not step.ok
    assert step.what == "2 right, 2 WRONG, 1 failed"
    assert any("masks" in note for note in step.notes)
    assert any(note.startswith("products: ended with -11") for note in step.notes)
    out = gpu.write(plan, [step], tmp_path / "results")
    record = json.loads((out.parent / "probes-nvidia-h200.json").read_text())
    assert record["gpu"] == "NVIDIA H200"
    assert len(record["probes"]["products"]["rows"]) == 2


def test_right_results_are_a_success(gpu, gpu_probes, monkeypatch, tmp_path):
    told = f"cat <<'END'\n{OUTPUT.replace('WRONG', 'right')}END\n"
    ceilings = "echo '| what | number | unit |'"
    replace_programs(
        gpu_probes, monkeypatch, ceilings=ceilings, products=told, backward=told, triangular=told
    )
    step = gpu_probes.probes(gpu.Plan(FACTS, tmp_path), 60)
    assert (step.ok, step.what, step.notes) == (True, "6 right", [])


@pytest.mark.slow
def test_every_variant_is_right_on_the_emulator(gpu, gpu_probes, tmp_path):
    """Compiled and run as a rehearsal does it."""
    plan = gpu.Plan({"device": "emulator"}, tmp_path, rehearsal=True)
    step = gpu_probes.probes(plan, 500)
    assert step.ok, step
    record = json.loads((tmp_path / "probes.json").read_text())
    rows = {name: record["probes"][name]["rows"] for name in ("products", "backward", "triangular")}
    variants = {name: {(row[1], row[2]) for row in some} for name, some in rows.items()}
    assert len(variants["products"]) == 2 * 16
    assert len(variants["backward"]) == 2 * 10
    assert len(variants["triangular"]) == 2 * 6
    assert {("f32", "masks"), ("f64", "tiles, 16 bytes")} <= variants["products"]
