"""The programs in scripts/: `make gpu` without a device, what the compiler says of kernels, faults."""

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from learnsolve import _library

ROOT = Path(__file__).resolve().parents[1]


def script(monkeypatch, name):
    monkeypatch.syspath_prepend(ROOT / "scripts")
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
def gpu(monkeypatch):
    return script(monkeypatch, "gpu")


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
    assert all(words in done.stderr for words in ("cannot run here", "no CUDA device", "--rehearse"))


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


def test_a_prebuilt_library_needs_no_compiler_of_cuda(gpu):
    assert gpu.missing(PROPERTIES | {"nvcc": None}, prebuilt=True) == []
    done = python(ROOT / "scripts" / "gpu.py", "--prebuilt", "/nowhere.so")
    assert done.returncode == 2
    assert "/nowhere.so is not a file" in done.stderr


def test_programs_are_found_beside_python(gpu, monkeypatch, tmp_path):
    for name in ("python", "ninja"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    assert gpu.tool("ninja") == str(tmp_path / "ninja")


@pytest.mark.parametrize("prebuilt", [False, True])
def test_build(gpu, monkeypatch, tmp_path, prebuilt):
    """What pip is told; and a prebuilt library lies beside what it has built."""
    calls = []

    def run(command, limit, log, **environment):
        calls.append((command, environment))
        (tmp_path / "site" / "learnsolve").mkdir(parents=True, exist_ok=True)
        return 0, str(tmp_path / "site")

    monkeypatch.setattr(gpu, "run", run)
    (tmp_path / "other.so").write_text("elsewhere")
    plan = gpu.Plan(PROPERTIES, tmp_path, tmp_path / "other.so" if prebuilt else None)
    step = gpu.build(plan, 10)
    assert (step.ok, step.what) == (True, "other.so" if prebuilt else "sm_90")
    (_, built), (_, loaded) = calls
    assert built["LEARNSOLVE_CUDA_EMULATOR"] == "0"
    assert loaded["PYTHONPATH"] == str(tmp_path / "site")
    if prebuilt:
        assert built["LEARNSOLVE_CUDA"] == "0"
        assert (tmp_path / "site" / "learnsolve" / "learnsolve_cuda.so").read_text() == "elsewhere"
        assert plan.is_built()
    else:
        assert built["LEARNSOLVE_CUDA_ARCHITECTURES"] == "90-real"
        assert "LEARNSOLVE_CUDA" not in built


def test_a_step_that_takes_too_long_ends_with_its_children(gpu, tmp_path):
    start = time.monotonic()
    code = "import subprocess; print('begun', flush=True); subprocess.run(['sleep', '60'])"
    status, output = gpu.run([sys.executable, "-c", code], 2, tmp_path / "log")
    assert status == 124
    assert "begun" in output
    assert time.monotonic() - start < 30


ITEMS = """
import os, sys, time
share, _, first = sys.argv[sys.argv.index("--shard") + 1].partition("+")
part, parts = map(int, share.split("/"))
items = ["good", "device error", "crash", "skipped", "never ends", "last"]
items = items[part - 1 :: parts][int(first) - 1 :]
out = open(sys.argv[sys.argv.index("--progress") + 1], "w", buffering=1)
out.write(f"all\\t{len(items)}\\n")
for item in items:
    out.write(f"begin\\t{item}\\n")
    if item == "device error":
        out.write(f"failed\\t{item}\\tCUDA error\\n")
        sys.exit(1)
    if item == "crash":
        print("the last words", flush=True)
        os._exit(3)
    if item == "never ends":
        time.sleep(60)
    waits = os.environ.get("CUDA_LAUNCH_BLOCKING")
    out.write(f"skipped\\t{item}\\tno reason\\n" if item == "skipped" else f"passed\\t{item}\\t{waits}\\n")
out.write("end\\n")
"""


@pytest.mark.parametrize("parts", [1, 2])
def test_a_new_process_goes_on_from_the_next_item(gpu, tmp_path, parts, monkeypatch):
    monkeypatch.delenv("CUDA_LAUNCH_BLOCKING", raising=False)
    command = gpu.Parts([sys.executable, "-c", ITEMS], tmp_path / "items.log", parts)
    found = gpu.all_parts([command], workers=2, limit=50, quiet=2)
    assert found.states == {
        "good": ("passed", "None"),
        "device error": ("failed", "CUDA error"),
        "crash": ("failed", "ended with 3: the last words"),
        "skipped": ("skipped", "no reason"),
        "never ends": ("failed", "took too long: "),
        "last": ("passed", "1"),
    }
    assert len(found.logs) == 4
    step = found.step("items")
    assert (step.ok, step.what) == (False, "2 passed, 3 failed")
    assert "device error: CUDA error" in step.notes
    assert step.notes[-1] == "1 skipped: no reason"


def test_what_cannot_start_or_has_no_time_is_no_success(gpu, tmp_path):
    command = gpu.Parts([sys.executable, "-c", "print('no torch'); exit(5)"], tmp_path / "items.log", 1)
    step = gpu.all_parts([command], 1, limit=50, quiet=9).step("items")
    assert not step.ok
    assert step.notes == ["items-1-of-1-0.log: did not start, ended with 5: no torch"]
    late = gpu.all_parts([command], 1, limit=1, quiet=9).step("items")
    assert not late.ok
    assert "not run: the time was over" in late.notes[0]


TESTS = """
import pytest

@pytest.mark.parametrize("i", range(6))
def test_it(i):
    if i == 2:
        raise RuntimeError("CUDA error: an illegal memory access")
    if i == 4:
        pytest.skip("no reason")
    assert i != 3
"""


@pytest.mark.slow
def test_pytest_stops_at_a_cuda_error_and_goes_on_from_any_test(tmp_path):
    (tmp_path / "test_some.py").write_text(TESTS)

    def lines(shard):
        progress = tmp_path / "progress"
        progress.unlink(missing_ok=True)
        options = ["-q", "-p", "no:cacheprovider", "-p", "conftest", "-k", "not 0", "--rootdir", tmp_path]
        line = ["-m", "pytest", *options, "--shard", shard, "--progress", progress, tmp_path / "test_some.py"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
        done = subprocess.run([sys.executable, *line], env=environment, capture_output=True, check=False)
        assert done.returncode in (1, 2), done.stdout
        return [entry.split("\t")[:2] for entry in progress.read_text().splitlines()]

    name = "test_some.py::test_it[{}]".format
    stopped = [["all", "5"], ["begin", name(1)], ["passed", name(1)], ["begin", name(2)], ["failed", name(2)]]
    assert lines("1/1") == stopped
    rest = lines("1/1+3")  # test 0 is not one of them
    assert rest[0] == ["all", "3"]
    assert [e for e in rest if e[0] not in ("all", "begin")] == [
        ["failed", name(3)],
        ["skipped", name(4)],
        ["passed", name(5)],
        ["end", ""],
    ]


MEMCHECK = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 8 bytes
=========     at void learnsolve::row_kernel<double, int>(learnsolve::RowPass<double, int>)+0x120
=========     by thread (3,0,0) in block (0,0,0)
========= Uninitialized __global__ memory read of size 4 bytes
=========     at void at::native::vectorized_elementwise_kernel<4>(int)+0x80
========= ERROR SUMMARY: 2 errors
"""


def test_findings_of_the_sanitizer(gpu, tmp_path):
    (line,), others = gpu.findings(MEMCHECK)
    assert others == 1
    assert line.startswith("Invalid __global__ read of size 8 bytes | at void learnsolve::row_kernel")
    assert gpu.findings("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n") == ([], 0)
    step = gpu.sanitizer(gpu.Plan(PROPERTIES, tmp_path), 10, "memcheck")
    assert (step.ok, step.what) == (True, "skipped")


def test_results_are_written_and_stay_until_the_next_build(gpu, tmp_path):
    plan = gpu.Plan(PROPERTIES, tmp_path)
    (tmp_path / "memcheck-1.log").write_text("all of it")
    steps = [gpu.Step("memcheck", False, "did not finish", ["why"], 20.0)]
    out = gpu.write(plan, steps, tmp_path / "results")
    assert out.name == "gpu-nvidia-h200.json"
    assert '"did not finish"' in out.read_text()
    assert "FAILED memcheck, 20 s: did not finish\n    - why" in out.with_suffix(".md").read_text()
    assert gpu.earlier(PROPERTIES, tmp_path / "results") == steps
    with tarfile.open(tmp_path / "results.tar.gz") as archive:
        assert set(archive.getnames()) == {out.name, "gpu-nvidia-h200.md", "memcheck-1.log"}


def test_the_files_of_the_device_exist(gpu):
    named = [*gpu.ABOUT_THE_DEVICE, *gpu.ON_THE_DEVICE.split()]
    assert "tests/ops/test_cuda.py" in named
    assert all((ROOT / name.partition("::")[0]).is_file() for name in named)


SANITIZER = """#!/bin/sh
while [ "$1" != "$PYTHON" ]; do shift; done
"$@"
echo "========= ERROR SUMMARY: 0 errors"
"""


@pytest.mark.slow
def test_rehearsal_of_all_steps(tmp_path):
    """On the emulator, with a tool in the place of compute-sanitizer that runs what it is given."""
    if not (_library.folder / "learnsolve_cuda_emulated.so").exists():
        pytest.skip("the emulator was not built: LEARNSOLVE_CUDA_EMULATOR=1 make setup")
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(SANITIZER.replace("$PYTHON", sys.executable))
    tool.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    options = ["--rehearse", "--only", "look,build,smoke,memcheck,tests,bench", "--sections", "sptrsv,pcg"]
    places = ["--folder", tmp_path / "build", "--results", tmp_path]
    line = [sys.executable, ROOT / "scripts" / "gpu.py", *options, *places]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((tmp_path / "gpu-emulator.json").read_text())
    told = {step["name"]: step["what"] for step in record["steps"]}
    assert list(told) == ["build", "smoke", "memcheck", "tests", "bench"]
    assert told["smoke"] == "2 passed, 0 failed"
    assert told["memcheck"] == "0 findings in our kernels, 0 in others; 2 passed, 0 failed"
    assert re.fullmatch(r"[1-9]\d* passed, 0 failed", told["tests"])
    (benchmarks,) = record["benchmarks"]
    assert {row["section"] for row in benchmarks["rows"]} == {"sptrsv", "pcg"}
    assert (tmp_path / "build" / "results.tar.gz").exists()


@pytest.mark.slow
def test_a_failed_case_is_seen_and_others_go_on(monkeypatch, capsys, gpu, tmp_path):
    """A wrong gradient, and an error of a device."""
    smoke = script(monkeypatch, "gpu_smoke")
    right = smoke.results

    def wrong(case, dtype, index, device):
        found = right(case, dtype, index, device)
        if dtype == torch.float32 and len(found) == 3:
            found[2] = found[2] * 1.001
        return found

    monkeypatch.setattr(smoke, "results", wrong)
    options = ["--device", "cpu", "--only", "^(sum|chain)$", "--progress", str(tmp_path / "progress")]
    monkeypatch.setattr(sys, "argv", ["gpu_smoke.py", *options])
    assert smoke.main() == 1
    assert "gradient 2 of 2 differs" in capsys.readouterr().out
    assert [line.split("\t")[:2] for line in (tmp_path / "progress").read_text().splitlines()] == [
        ["all", "2"],
        *(["begin", "sum"], ["passed", "sum"], ["begin", "chain"], ["failed", "chain"]),
        ["end", "2 cases, 1 failed"],
    ]


@pytest.mark.slow
def test_every_kind_of_kernel_runs_in_the_small_suite(monkeypatch, capsys, gpu):
    smoke = script(monkeypatch, "gpu_smoke")
    called = set()

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            called.add(function.name().split("::")[1].split(".")[0])
            return function(*args, **(kwargs or {}))

    monkeypatch.setattr(sys, "argv", ["gpu_smoke.py", "--device", "cpu", "--types", "1"])
    with Operators():
        code = smoke.main()
    assert code == 0, capsys.readouterr().out
    sources = (path.read_text() for path in (ROOT / "csrc" / "ops").glob("*.cu"))
    on_cuda = {name for text in sources for name in re.findall(r'm\.impl\("(\w+)"', text)}
    assert len(on_cuda) > 20
    assert on_cuda <= called, f"no case of scripts/gpu_smoke.py calls {sorted(on_cuda - called)}"


def test_every_planted_fault_applies(monkeypatch):
    mutate = script(monkeypatch, "mutate")
    faults = mutate.read_faults((ROOT / "scripts" / "faults.txt").read_text())
    assert len({(fault.name, fault.file) for fault in faults}) == len(faults) > 50
    for fault in faults:
        mutate.planted(fault, (ROOT / fault.file).read_text())
        where = "tests/petsc" if fault.tests[0] == "mpirun" else fault.tests[0].partition("::")[0]
        assert (ROOT / where).exists(), fault.name
    two = mutate.read_faults("a: b.py: t.py -k c\n- x\n- y\n+ z\n- u\nb: c/d.h: t.py")
    assert two[0][2:] == ([("x\ny", "z"), ("u", "")], ["t.py", "-k", "c"], "")
    assert two[1].name == "b"
    with pytest.raises(ValueError, match="'c' is not part of a fault"):
        mutate.read_faults("a: b.py: t.py\n- x\nc")


RULED = """def backward(ctx, g: int = 1):
    if ctx.n < 2 and g:
        raise ValueError("no - 1")
    f(g, keep=True)
    return x[ctx.n : 1] - ctx.y.T, -g
"""


def test_rules_make_faults(monkeypatch):
    mutate = script(monkeypatch, "mutate")
    made = list(mutate.rules.mutants("a.py", RULED))
    assert {(m.rule, m.now) for m in made} >= {
        ("comparison", "(ctx.n <= 2)"),
        ("and, or", "(ctx.n < 2 or g)"),
        ("condition", "(False)"),
        ("statement dropped", "pass"),
        ("constant", "(False)"),
        ("argument dropped", "(f(g))"),
        ("operator", "(x[ctx.n:1] + ctx.y.T)"),
        ("term dropped", "(x[ctx.n:1])"),
        ("index", "(2)"),
        ("call dropped", "(ctx.y)"),
        ("sign dropped", "(g)"),
        ("gradient", "return (None, -g)"),
    }
    assert all(ast.dump(ast.parse(m.text)) != ast.dump(ast.parse(RULED)) for m in made)
    assert all('raise ValueError("no - 1")' in m.text and "g: int = 1" in m.text for m in made)
    line = "  if (p + 1 < end) s += -a[p] * b;  // a < b"
    assert {m.now.removesuffix("  // a < b") for m in mutate.rules.mutants("a.h", line)} >= {
        "if (p + 1 <= end) s += -a[p] * b;",
        "if (p < end) s += -a[p] * b;",
        "if (false) s += -a[p] * b;",
        "if (p + 1 < end) s += a[p] * b;",
        "if (p + 1 < end) s = -a[p] * b;",
        "if (p + 1 < end) s += -a[p];",
    }
    named = mutate.Fault("by rules", "scripts/mutate.py", [], ["t.py"])
    drawn = mutate.drawn(named, 9, seed=1)
    assert len({f.mutant for f in drawn}) == len({f.name.split(", ")[1] for f in drawn}) == 9
    assert drawn == mutate.drawn(named, 9, seed=1) != mutate.drawn(named, 9, seed=2)
    assert mutate.planted(drawn[0], "") == drawn[0].mutant


OUTPUT = """copy: 4264 GB/s
| case | type | variant | us | least us | least/us | state |
|---|---|---|---|---|---|---|
| 5 points                   | f32 | now                        |    221.50 |    122.00 |  0.55 | right |
| 5 points                   | f64 | masks                      |       nan |    188.00 |   nan | WRONG |
cuSPARSE 2 is left out: refused
"""


def test_a_table_of_a_probe_is_read(gpu):
    read = gpu.table(OUTPUT)
    assert read["about"] == ["copy: 4264 GB/s", "cuSPARSE 2 is left out: refused"]
    assert read["columns"][:4] == ["case", "type", "variant", "us"]
    assert read["rows"] == [
        ["5 points", "f32", "now", 221.5, 122.0, 0.55, "right"],
        ["5 points", "f64", "masks", None, 188.0, None, "WRONG"],
    ]


def replace_programs(gpu, monkeypatch, **texts):
    """By shell scripts, which take the place of compilers too."""

    def compilation(plan, name):
        write = 'printf "#!/bin/sh\n%s" "$1" >"$0"; chmod +x "$0"'
        return ["sh", "-c", write, str(plan.folder / name), texts[name]]

    monkeypatch.setattr(gpu, "compilation", compilation)
    monkeypatch.setattr(gpu, "counters", lambda *_: {})


def test_wrong_results_and_crashes_fail_and_what_was_printed_stays(gpu, monkeypatch, tmp_path):
    told = f"cat <<'END'\n{OUTPUT}END\n"
    crash = f"{told}kill -SEGV $$"
    replace_programs(gpu, monkeypatch, ceilings="exit 0", products=crash, backward=told, triangular="exit 0")
    plan = gpu.Plan(PROPERTIES, tmp_path)
    step = gpu.probes(plan, 60)
    assert not step.ok
    assert step.what == "2 right, 2 WRONG, 1 failed"
    assert any("masks" in note for note in step.notes)
    assert any(note.startswith("products: ended with -11") for note in step.notes)
    out = gpu.write(plan, [step], tmp_path / "results")
    record = json.loads((out.parent / "probes-nvidia-h200.json").read_text())
    assert record["gpu"] == "NVIDIA H200"
    assert len(record["probes"]["products"]["rows"]) == 2


def test_right_results_are_a_success(gpu, monkeypatch, tmp_path):
    told = f"cat <<'END'\n{OUTPUT.replace('WRONG', 'right')}END\n"
    ceilings = "echo '| what | number | unit |'"
    replace_programs(gpu, monkeypatch, ceilings=ceilings, products=told, backward=told, triangular=told)
    step = gpu.probes(gpu.Plan(PROPERTIES, tmp_path), 60)
    assert (step.ok, step.what, step.notes) == (True, "6 right", [])


@pytest.mark.slow
def test_every_variant_is_right_on_the_emulator(gpu, tmp_path):
    """Compiled and run as a rehearsal does it."""
    plan = gpu.Plan({"device": "emulator"}, tmp_path, rehearsal=True)
    step = gpu.probes(plan, 500)
    assert step.ok, step
    record = json.loads((tmp_path / "probes.json").read_text())
    rows = {name: record["probes"][name]["rows"] for name in ("products", "backward", "triangular")}
    variants = {name: {(row[1], row[2]) for row in some} for name, some in rows.items()}
    assert len(variants["products"]) == 2 * 16
    assert len(variants["backward"]) == 2 * 10
    assert len(variants["triangular"]) == 2 * 6
    assert {("f32", "masks"), ("f64", "tiles, 16 bytes")} <= variants["products"]


PTXAS = """ptxas info    : Compiling entry function 'lean' for 'sm_90'
ptxas info    : Function properties for lean
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Function properties for called_once
    0 bytes stack frame, 200 bytes spill stores, 200 bytes spill loads
ptxas info    : Compiling entry function 'greedy' for 'sm_75'
ptxas info    : Function properties for greedy
    40 bytes stack frame, 96 bytes spill stores, 128 bytes spill loads
ptxas info    : Used 80 registers, used 0 barriers
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
    incoherent = script(monkeypatch, "spill_budget").incoherent

    kernel = ".visible .entry {name}(\n)\n{{\n ld.global{nc}.f32 %f1, [%rd1];\n {waits}\n}}\n"
    waits = kernel.format(name="levels", nc=".nc", waits="bar.sync 0;")
    others = kernel.format(name="product", nc=".nc", waits="") + kernel.format(
        name="sums", nc="", waits="bar.sync 0;"
    )
    assert incoherent(others) == []
    assert incoherent(others + waits) == ["waits, and loads by ld.global.nc: levels"]


def test_packs_are_stored_at_once(monkeypatch):
    spills = script(monkeypatch, "spill_budget")

    name = "columns_kernelILi8ELi{V}ELb{Sum}ELb0Efi"
    product, dots, single = (name.format(V=V, Sum=Sum) for V, Sum in ((4, 1), (4, 0), (1, 1)))
    ptx = ".target sm_75\n" + "".join(
        f".visible .entry {kernel}(\n)\n{{\n ld.global.v4.f32 %f1;\n st.global.f32 [%rd1], %f1;\n}}\n"
        for kernel in (dots, product, single)
    )
    found = spills.kernels(PTXAS.replace("greedy", product))
    said = f"{product}: 80 registers, 96 bytes spilled, of 16 bytes 1 loads and {{}} stores (sm_75)"
    assert spills.of_columns(found, ptx) == ([said.format(0)], [f"has no store of 16 bytes: {product}"])
    ptx = ptx.replace("st.global.f32", "st.global.v2.b64")
    assert spills.of_columns(found, ptx) == ([said.format(1)], [])


def test_the_tests_of_a_wheel_are_there(monkeypatch):
    assert [
        name for name in script(monkeypatch, "wheels").TESTS if not (ROOT / "tests" / name).exists()
    ] == []
