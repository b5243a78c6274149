"""The programs in scripts/: `make gpu` without a device, the budget of spilled registers, planted faults."""

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


def python(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


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
    done = python(ROOT / "scripts" / "gpu.py")
    assert done.returncode == 2
    assert all(words in done.stderr for words in ("cannot run here", "no CUDA device", "make test"))


def test_unknown_step():
    done = python(ROOT / "scripts" / "gpu.py", "--only", "tests,nothing")
    assert done.returncode == 2
    assert "got nothing" in done.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"python": "3.10.1"}, "3.11 or newer"),
        ({"torch": None, "error": "ImportError: libcudart"}, r"cannot be imported \(ImportError: libcudart"),
        ({"torch": "2.9.1"}, "2.10 or newer"),
        ({"device": None}, "check the driver with nvidia-smi"),
        ({"device": None, "cuda": None}, "a build without CUDA"),
        ({"nvcc": None}, "CUDA_HOME"),
        ({"absent": ["pytest", "scikit_build_core"]}, "pip install pytest scikit-build-core"),
        ({"ninja": None}, "pip install ninja"),
    ],
)
def test_what_is_missing_and_what_to_do(gpu, change, message):
    assert gpu.missing(PROPERTIES) == []
    (line,) = gpu.missing(PROPERTIES | change)
    assert re.search(message, line)


def test_a_step_that_takes_too_long_ends_with_its_children(gpu, tmp_path):
    start = time.monotonic()
    code = "import subprocess; print('begun', flush=True); subprocess.run(['sleep', '60'])"
    status, output = gpu.run([sys.executable, "-c", code], 2, tmp_path / "log")
    assert status == 124
    assert "begun" in output
    assert time.monotonic() - start < 30


def test_outcomes_of_tests(gpu, tmp_path):
    (tmp_path / "report.xml").write_text(
        "<testsuites><testsuite>"
        '<testcase classname="test_it" name="test_good"/>'
        '<testcase classname="test_it" name="test_bad"><failure message="no"/></testcase>'
        '<testcase classname="test_it" name="test_set_up"><error message="no"/></testcase>'
        '<testcase classname="test_it" name="test_more[0]"><skipped message="a package"/></testcase>'
        '<testcase classname="test_it" name="test_more[1]"><skipped message="a package"/></testcase>'
        "</testsuite></testsuites>"
    )
    passed, failed, skipped = gpu.outcomes(tmp_path / "report.xml")
    assert passed == 1
    assert failed == ["test_it::test_bad", "test_it::test_set_up"]
    assert skipped == ["test_it::test_more[0] and 1 more: a package"]


MEMCHECK = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 8 bytes
=========     at void learnsolve::row_kernel<double, int>(learnsolve::RowPass<double, int>)+0x120
=========     by thread (3,0,0) in block (0,0,0)
========= Uninitialized __global__ memory read of size 4 bytes
=========     at void at::native::vectorized_elementwise_kernel<4>(int)+0x80
========= ERROR SUMMARY: 2 errors
"""


def test_findings_of_the_sanitizer(gpu):
    (line,), others = gpu.findings(MEMCHECK)
    assert others == 1
    assert line.startswith("Invalid __global__ read of size 8 bytes | at void learnsolve::row_kernel")
    assert gpu.findings("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n") == ([], 0)
    (step,) = gpu.sanitizers(PROPERTIES, 10)
    assert (step.ok, step.what) == (True, "skipped")


def test_results_are_written(gpu, tmp_path):
    steps = [gpu.Step("memcheck", False, 20.0, "did not finish", ["why"])]
    out = gpu.write(PROPERTIES, steps, tmp_path / "results")
    assert out.name == "gpu-nvidia-h200.json"
    assert '"did not finish"' in out.read_text()
    assert "FAILED memcheck, 20 s: did not finish\n    - why" in out.with_suffix(".md").read_text()


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


PTXAS = """ptxas info    : Compiling entry function 'lean' for 'sm_90'
ptxas info    : Function properties for lean
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Compiling entry function 'greedy' for 'sm_75'
ptxas info    : Function properties for greedy
    40 bytes stack frame, 96 bytes spill stores, 128 bytes spill loads
"""


@pytest.mark.parametrize(("budget", "code", "status"), [(96, 0, 0), (95, 0, 1), (1000, 3, 3)])
def test_the_budget_of_spilled_registers(budget, code, status):
    compiler = f"import sys; sys.stderr.write({PTXAS!r}); sys.exit({code})"
    done = python(ROOT / "scripts" / "spill_budget.py", str(budget), sys.executable, "-c", compiler)
    assert done.returncode == status
    if status == 1:
        message = "error: 96 bytes of registers are spilled, more than 95: greedy (sm_75)"
        assert done.stderr.strip() == message


def test_kernels_that_wait_load_what_was_written(monkeypatch):
    kernel = ".visible .entry {name}(\n)\n{{\n ld.global{nc}.f32 %f1, [%rd1];\n {waits}\n}}\n"
    waits = kernel.format(name="levels", nc=".nc", waits="bar.sync 0;")
    others = kernel.format(name="product", nc=".nc", waits="") + kernel.format(
        name="sums", nc="", waits="bar.sync 0;"
    )
    incoherent = script(monkeypatch, "spill_budget").incoherent
    assert incoherent(others) == []
    assert incoherent(others + waits) == ["waits, and loads by ld.global.nc: levels"]


def test_every_planted_fault_applies(monkeypatch):
    mutate = script(monkeypatch, "mutate")
    faults = mutate.read_faults((ROOT / "scripts" / "faults.txt").read_text())
    assert len({fault.name for fault in faults}) == len(faults) > 50
    for fault in faults:
        mutate.planted(fault, (ROOT / fault.file).read_text())
        where = "tests/petsc" if fault.tests[0] == "mpirun" else fault.tests[0].partition("::")[0]
        assert (ROOT / where).exists(), fault.name
    one = "a: b.py\n- x\n+ y\ntests/t.py\n"
    assert len(mutate.read_faults(f"{one}\n{one}")) == 2
    with pytest.raises(ValueError, match="'a' has a line that begins with 'te'"):
        mutate.read_faults(one + one)
