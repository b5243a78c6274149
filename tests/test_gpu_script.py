"""`make gpu` without a device, and how it parses the output of its tools."""

import importlib.util
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

ROOT = Path(__file__).resolve().parents[1]


def script(monkeypatch, name):
    spec = importlib.util.spec_from_file_location(f"{name}_script", ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    module = script(monkeypatch, "gpu")
    monkeypatch.setattr(module, "BUILD", tmp_path / "build")
    return module


PROPERTIES = {
    "python": "3.12.3",
    "torch": "2.11.0+cu130",
    "cuda": "13.0",
    "device": "NVIDIA H200",
    "capability": "90",
    "absent": [],
    "cupy": True,
    "nvcc": "/usr/local/cuda/bin/nvcc",
    "compute-sanitizer": None,
    "cmake": "cmake",
    "ninja": "ninja",
}


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_says_so():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "gpu.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "cannot run here" in done.stderr
    assert "no CUDA device" in done.stderr
    assert "make test" in done.stderr


def test_unknown_step():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "gpu.py", "--only", "tests,nothing"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "got nothing" in done.stderr


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"python": "3.10.1"}, "3.11 or newer"),
        (
            {"torch": None, "error": "ImportError: libcudart"},
            r"cannot be imported \(ImportError: libcudart\)",
        ),
        ({"torch": "2.9.1"}, "2.10 or newer"),
        ({"device": None}, "check the driver with nvidia-smi"),
        ({"device": None, "cuda": None}, "a build without CUDA"),
        ({"nvcc": None}, "CUDA_HOME"),
        ({"absent": ["pytest", "scikit_build_core"]}, "pip install pytest scikit-build-core"),
        ({"ninja": None}, "pip install ninja"),
    ],
)
def test_what_is_missing_and_what_to_do(gpu, change, said):
    assert gpu.missing(PROPERTIES) == []
    (line,) = gpu.missing(PROPERTIES | change)
    assert re.search(said, line)


def test_a_step_that_takes_too_long_ends_with_its_children(gpu, tmp_path):
    start = time.monotonic()
    command = [
        sys.executable,
        "-c",
        "import subprocess; print('begun', flush=True); subprocess.run(['sleep', '60'])",
    ]
    code, output = gpu.run(command, 2, tmp_path / "log")
    assert code == 124
    assert "begun" in output
    assert time.monotonic() - start < 30


def test_outcomes_of_tests(gpu, tmp_path):
    (tmp_path / "test_three.py").write_text(
        "import pytest\n"
        "def test_good(): pass\n"
        "def test_bad(): assert 0\n"
        "@pytest.mark.parametrize('i', range(3))\n"
        "def test_more(i): pytest.importorskip('a_package_that_nobody_has')\n"
        "@pytest.fixture\n"
        "def broken(): raise RuntimeError\n"
        "def test_set_up(broken): pass\n"
    )
    report = tmp_path / "report.xml"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--junitxml={report}",
        "test_three.py",
    ]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    passed, failed, skipped = gpu.outcomes(report)
    assert passed == 1
    assert failed == ["test_three::test_bad", "test_three::test_set_up"]
    (line,) = skipped
    assert line.startswith("test_three::test_more[0] and 2 more: ")
    assert "a_package_that_nobody_has" in line


MEMCHECK = """\
========= COMPUTE-SANITIZER
spmv: ok
========= Invalid __global__ read of size 8 bytes
=========     at void learnsolve::row_kernel<double, int>(learnsolve::RowPass<double, int>)+0x120
=========     by thread (3,0,0) in block (0,0,0)
=========     Address 0x7f0000 is out of bounds
========= Uninitialized __global__ memory read of size 4 bytes
=========     at void at::native::vectorized_elementwise_kernel<4>(int)+0x80
=========     by thread (0,0,0) in block (0,0,0)
========= ERROR SUMMARY: 2 errors
"""

RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at void learnsolve::levels_kernel<float>(int)+0x250
=========     and Read access at void learnsolve::levels_kernel<float>(int)+0x1f0 [16 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


def test_findings_of_the_sanitizer(gpu):
    ours, others = gpu.findings(MEMCHECK)
    assert others == 1
    (line,) = ours
    assert line.startswith("Invalid __global__ read of size 8 bytes | at void learnsolve::row_kernel")
    ours, others = gpu.findings(RACECHECK)
    assert (len(ours), others) == (1, 0)
    assert gpu.findings("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n") == ([], 0)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_every_failed_case_of_the_smoke_step_is_named(gpu):
    step = gpu.smoke(100)
    assert not step.ok
    assert len(step.notes) > 20
    assert step.what == f"0 cases ok, {len(step.notes)} failed"
    assert any(note.startswith("sptrsv, by ticket: FAILED, ") for note in step.notes)


def test_where_there_is_no_sanitizer(gpu):
    (step,) = gpu.sanitizers(PROPERTIES, 10)
    assert step.ok
    assert step.what == "skipped"
    assert "CUDA toolkit" in step.notes[0]


def test_results_are_written(gpu, tmp_path):
    steps = [
        gpu.Step("build", True, 100.0, "sm_90"),
        gpu.Step("memcheck", False, 20.0, "did not finish", ["why"]),
    ]
    out = gpu.write(PROPERTIES, steps, tmp_path / "results")
    assert out.name == "gpu-nvidia-h200.json"
    assert '"did not finish"' in out.read_text()
    page = out.with_suffix(".md").read_text()
    assert "FAILED memcheck, 20 s: did not finish\n    - why" in page


def test_the_files_of_the_device_exist(gpu):
    named = (*gpu.ABOUT_THE_DEVICE, *gpu.ON_THE_DEVICE)
    assert "tests/ops/test_cuda.py" in named
    assert all((ROOT / name).is_file() for name in named)


@pytest.mark.slow
def test_every_kind_of_kernel_runs_in_the_small_suite(monkeypatch, capsys):
    smoke = script(monkeypatch, "gpu_smoke")
    called = set()

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            called.add(function.name().split("::")[1].split(".")[0])
            return function(*args, **(kwargs or {}))

    monkeypatch.setattr(sys, "argv", ["gpu_smoke.py", "--device", "cpu"])
    with Operators():
        code = smoke.main()
    assert code == 0, capsys.readouterr().out
    sources = (path.read_text() for path in (ROOT / "csrc" / "ops").glob("*.cu"))
    on_cuda = {name for text in sources for name in re.findall(r'm\.impl\("(\w+)"', text)}
    assert len(on_cuda) > 20
    assert on_cuda <= called, f"no case of scripts/gpu_smoke.py calls {sorted(on_cuda - called)}"
