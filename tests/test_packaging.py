"""What an import says when it cannot work, every instruction set, and what pip needs of the library."""

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import warnings
from pathlib import Path

import pytest
import torch

import learnsolve as ls
from learnsolve import _library
from learnsolve.petsc import _processes

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "learnsolve"
FIND_TORCH = ROOT / "scripts" / "find_torch.py"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MODULES = (
    ls,
    ls.ops,
    ls.solvers,
    ls.preconditioners,
    ls.preconditioners.learned,
    ls.problems,
    ls.ordering,
    ls.nn,
    ls.io,
    ls.analysis,
)
TORCH = str(Path(torch.__file__).parent)


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess:
    """A command without what tests or an editable install put into the environment."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX")}
    return subprocess.run(
        [*map(str, command)], capture_output=True, text=True, check=False, cwd=cwd, env=clean | environment
    )


COPIES = {  # of the Python files, out of reach of the installed extension: what is added, and the message
    "an old torch": (
        {"torch/__init__.py": "__version__ = '2.9.1+cpu'\nclass Tensor: pass\n"},
        r"learnsolve needs torch >= 2\.10, found 2\.9\.1\+cpu.*pip install",
    ),
    "no extension": ({}, "learnsolve's compiled extension is not built"),
    "no operators": ({"_analysis": ""}, r"learnsolve_cpu\.so is missing"),
    "operators that do not load": (
        {"_analysis": "", "learnsolve/learnsolve_cpu.so": "not a library"},
        "does not load with torch",
    ),
}
# The first copy has a torch of its own. The others are imported in forks of one process with the real one; so
# is a whole copy with each LEARNSOLVE_ISA, which multiplies once.
TRIES = """
import json, os, sys
copies, sys.path[:], whole, names = json.loads(sys.argv[1])

def attempt(place, name=None):
    if os.fork():
        return os.wait()
    sys.path.insert(0, place)
    if name is not None:
        os.environ["LEARNSOLVE_ISA"] = name
    import learnsolve as ls
    import numpy, torch
    A = ls.problems.poisson((12, 9), dtype=torch.float64)
    x = torch.linspace(-1, 1, 108, dtype=torch.float64)
    assert numpy.allclose(A @ x, A.to_scipy() @ x.numpy(), rtol=1e-14, atol=1e-14)
    print(ls.config()["instruction_set"], flush=True)
    os._exit(0)

for copy in copies:
    attempt(copy)
    import torch
import numpy, scipy.sparse
for name in names:
    attempt(whole, name)
"""
REQUESTED = (*_library.instruction_sets(), "nonsense")


@pytest.fixture(scope="module")
def tries(tmp_path_factory):
    """(errors of the copies, errors of requests for instruction sets, those that were used, all errors)."""
    folder = tmp_path_factory.mktemp("tries")
    for name, (files, _) in COPIES.items():
        ignored = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(PACKAGE, folder / name / "learnsolve", ignore=ignored)
        for file, text in files.items():
            if file == "_analysis":
                for built in _library.folder.glob("_analysis*"):
                    shutil.copy(built, folder / name / "learnsolve")
            else:
                (folder / name / file).parent.mkdir(exist_ok=True)
                (folder / name / file).write_text(text)
    shutil.copytree(PACKAGE, folder / "whole" / "learnsolve")
    for built in _library.folder.glob("*.so"):
        shutil.copy(built, folder / "whole" / "learnsolve")
    # -S leaves out the import hooks that an editable install puts into site-packages.
    places = [str(folder / name) for name in COPIES], [p for p in sys.path if p and p != str(ROOT)]
    given = json.dumps([*places, str(folder / "whole"), REQUESTED])
    done = run(sys.executable, "-I", "-S", "-c", TRIES, given, cwd=Path("/"), OMP_NUM_THREADS="1")
    errors = [line for line in done.stderr.splitlines() if line.startswith("ImportError: ")]
    return errors[: len(COPIES)], errors[len(COPIES) :], done.stdout.split(), done.stderr


@pytest.mark.slow
def test_an_import_that_cannot_work_says_what_to_run(tries):
    errors, *_, everything = tries
    assert len(errors) == len(COPIES), everything
    for error, (_, message) in zip(errors, COPIES.values(), strict=True):
        assert re.search(message, error)
        assert "torch >=" in error or _library.REBUILD in error


def test_every_instruction_set_can_be_requested_and_others_are_rejected(tries):
    _, (*errors, last), found, everything = tries
    *names, _ = REQUESTED
    assert last.startswith("ImportError: LEARNSOLVE_ISA must be one of ")
    assert all(name in last for name in REQUESTED)
    assert all("this machine does not have these instructions" in error for error in errors), everything
    assert found == [name for name in names if name in found], everything
    assert len(found) + len(errors) == len(names), everything
    assert found


def test_show_config_prints_the_dictionary(capsys):
    ls.show_config()
    printed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    values = ls.config()
    assert list(printed) == list(values)
    assert printed["torch"] == values["torch"] == torch.__version__
    assert values["learnsolve"] == ls.__version__
    assert values["instruction_set"] in values["instruction_sets"]
    assert printed["cuda_built"] == ("yes" if (_library.folder / "learnsolve_cuda.so").exists() else "no")
    for threads in (1, 2):
        torch.set_num_threads(threads)
        assert ls.config()["threads"] == threads


def test_without_petsc4py_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "petsc4py.PETSc", None)
    with pytest.raises(ImportError, match=r"pip install 'learnsolve\[petsc\]'.*scripts/petsc\.sh") as caught:
        _processes.engine.__wrapped__()
    assert caught.value.name == "petsc4py"

    def fails(name):
        raise ValueError("numpy.dtype size changed")

    monkeypatch.setattr(_processes, "import_module", fails)
    with pytest.raises(ImportError, match=r"installed, but cannot .* NumPy \d.*size changed\).*petsc\.sh"):
        _processes.engine.__wrapped__()


@pytest.mark.parametrize("name", _processes._LAUNCHED)
@pytest.mark.parametrize("count", [1, 4])
def test_processes_that_do_not_know_of_one_another_are_warned(monkeypatch, name, count):
    for variable in _processes._LAUNCHED:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, str(count))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _processes._warn_if_alone()
    messages = [str(w.message) for w in caught]
    assert len(messages) == (count > 1)
    assert not messages or f"{name} says that 4 processes were started, but PETSc sees one" in messages[0]


# --- builds ---


def test_a_build_finds_the_torch_of_its_own_python():
    done = run(sys.executable, FIND_TORCH)
    assert done.stdout.split(";")[0] == TORCH, done.stderr


def test_a_build_that_pip_isolates_finds_the_torch_behind(tmp_path):
    # As pip does it: a sitecustomize.py on PYTHONPATH takes the folders of installed packages away.
    tmp_path.joinpath("sitecustomize.py").write_text(
        "import sys; sys.path[:] = [p for p in sys.path if not p.endswith('-packages')]\n"
    )
    assert run(sys.executable, "-c", "import torch", PYTHONPATH=str(tmp_path)).returncode == 1
    done = run(sys.executable, FIND_TORCH, PYTHONPATH=str(tmp_path))
    assert done.stdout.split(";")[0] == TORCH, done.stderr


def test_a_build_in_an_environment_of_its_own_finds_the_torch_of_its_parent(tmp_path):
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path)
    done = run(tmp_path / "bin" / "python", FIND_TORCH)  # this test's Python is its parent process
    assert done.stdout.split(";")[0] == TORCH, done.stderr


def test_a_build_uses_the_torch_that_is_named(tmp_path):
    done = run(sys.executable, FIND_TORCH, LEARNSOLVE_TORCH_PYTHON=sys.executable)
    assert done.stdout.split(";")[0] == TORCH, done.stderr
    done = run(sys.executable, FIND_TORCH, LEARNSOLVE_TORCH_PYTHON=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"LEARNSOLVE_TORCH_PYTHON={tmp_path}" in done.stderr


def test_a_build_without_torch_says_in_one_line_what_to_do(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(FIND_TORCH.parent))
    monkeypatch.delenv("LEARNSOLVE_TORCH_PYTHON", raising=False)
    import find_torch

    monkeypatch.setattr(find_torch, "ask", lambda *place, version: None)
    assert find_torch.main() == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert "--no-build-isolation" in line


def test_pip_never_downloads_torch_to_build():
    system = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]
    assert not [r for r in system["requires"] if r.startswith("torch")]
    extra = sorted(r for r in PROJECT["optional-dependencies"]["build"] if "=" in r)
    assert extra[2:] == sorted(system["requires"])


def test_links_of_the_long_description_are_absolute(monkeypatch):
    monkeypatch.syspath_prepend(str(FIND_TORCH.parent))
    monkeypatch.chdir(ROOT)
    from long_description import dynamic_metadata

    repository = PROJECT["urls"]["Repository"]
    owner, _, name = repository.removeprefix("https://github.com/").partition("/")
    site = f"https://{owner}.github.io/{name}/"  # as GitHub publishes it
    assert PROJECT["urls"]["Documentation"] == site
    assert all(url.startswith(repository) for url in PROJECT["urls"].values() if url != site)
    links = re.findall(r"\]\(([^)]*)\)", dynamic_metadata("readme", {})["text"])
    assert all(link.startswith(("https://", "#")) for link in links)  # or within the page
    for link in links:
        if link.startswith(repository):
            _, _, path = link.removeprefix(repository).partition("/main/")
            assert (ROOT / path.partition("#")[0]).exists(), link


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_public_functions_have_types(module):
    public = getattr(module, "__all__", None) or [
        name for name, f in vars(module).items() if inspect.isfunction(f) and not name.startswith("_")
    ]
    functions = {}
    for name in public:
        thing = getattr(module, name)
        if inspect.isclass(thing):
            for key, f in vars(thing).items():
                if not key.startswith("_") or key in ("__init__", "__call__", "__getitem__", "__matmul__"):
                    functions[f"{name}.{key}"] = getattr(f, "__func__", getattr(f, "fget", f))
        else:
            functions[name] = thing
    untyped = []
    for name, f in functions.items():
        if not inspect.isfunction(f) or not f.__module__.startswith("learnsolve"):
            continue
        signature = inspect.signature(f)
        untyped += [
            f"{name}: {p.name}"
            for p in signature.parameters.values()
            if p.annotation is p.empty and p.name != "self" and p.name != "cls"
        ]
        if signature.return_annotation is signature.empty and not name.endswith("__init__"):
            untyped.append(f"{name}: result")
    assert not untyped


@pytest.mark.cpu_only
def test_the_operator_library_uses_torchs_stable_interface_alone():
    if shutil.which("nm") is None:
        pytest.skip("no nm")
    symbols = run("nm", "-D", "--undefined-only", _library.folder / "learnsolve_cpu.so").stdout.split()
    assert any(s.startswith("aoti_torch_") for s in symbols)
    # Mangled names of at::, c10::, torch:: would bind the library to one release of torch.
    assert not [s for s in symbols if re.match(r"_ZNK?(2at|3c10|5torch)", s)]


@pytest.mark.slow
def test_a_users_program_passes_strict_type_checkers(tmp_path):
    # Beside a link to the package, as if it were installed.
    tmp_path.joinpath("learnsolve").symlink_to(ROOT / "learnsolve")
    shutil.copy(ROOT / "tests" / "typed_usage.py", tmp_path)
    tmp_path.joinpath("pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    pytest.importorskip("mypy")
    done = run(
        sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "typed_usage.py", cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout
    done = run(
        sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "typed_usage.py", cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_the_sdist_holds_what_a_build_needs(tmp_path):
    code = f"from scikit_build_core.build import build_sdist; print(build_sdist({str(tmp_path)!r}))"
    done = run(sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*.tar.gz")
    assert path.stat().st_size < 2e6
    with tarfile.open(path) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert {"CMakeLists.txt", "csrc/ops/schema.cpp", "learnsolve/py.typed", "scripts/find_torch.py"} <= names
    assert {name.split("/")[0] for name in names if "/" in name} == {"csrc", "learnsolve", "scripts"}
    assert not [name for name in names if name.endswith((".so", ".json", ".png"))]
