"""The benchmarks of the CUDA operators run: on tiny problems, without a device."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
SECTIONS = ("spmv", "spmm", "spgemm", "add", "sptrsv", "pcg", "stationary")


def run(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_gpu_benchmarks_on_the_cpu(tmp_path):
    out = tmp_path / "gpu.json"
    done = run("--device", "cpu", "--quick", "--seconds", "0.001", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    ours = [line for line in found["left_out"] if not line.startswith(("torch,", "unplanned, torch,"))]
    assert not ours
    assert {row["section"] for row in found["rows"]} == set(SECTIONS)
    assert all(row["fwd"] > 0 for row in found["rows"])
    assert {t["met"] for t in found["targets"]} <= {"yes", "MISSED"}
    assert all(t["met"] == "yes" for t in found["targets"] if t["target"] == "same bits on every run")
    page = out.with_suffix(".md").read_text()
    assert all(f"## {name}" in page for name in (*SECTIONS, "Targets"))


@pytest.mark.slow
def test_unknown_section():
    done = run("--device", "cpu", "--only", "spmv,nothing")
    assert done.returncode == 2
    assert "sections are spmv, spmm" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_says_so():
    done = run()
    assert done.returncode == 2
    assert "no CUDA device" in done.stdout
