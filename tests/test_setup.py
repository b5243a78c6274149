"""The message of `import learnsolve` when it cannot work, and that every instruction set works."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from learnsolve import _library, config

PACKAGE = Path(__file__).resolve().parents[1] / "learnsolve"


def python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Run code in a new interpreter that knows nothing of this one's folder."""
    return subprocess.run(
        [sys.executable, *arguments, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": "", **environment},
        cwd="/",
        check=False,
    )


def last_line(result: subprocess.CompletedProcess) -> str:
    assert result.returncode == 1, result.stdout + result.stderr
    return result.stderr.strip().splitlines()[-1]


def import_copy(tmp_path: Path, *folders: str) -> str:
    """Code that imports a copy of the Python files, out of reach of the installed extension."""
    shutil.copytree(PACKAGE, tmp_path / "learnsolve", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    # -S leaves out the import hooks that an editable install puts into site-packages.
    path = [*folders, str(tmp_path), *(p for p in sys.path if p and p != str(PACKAGE.parent))]
    return f"import json, sys; sys.path[:] = json.loads({json.dumps(json.dumps(path))}); import learnsolve"


def test_an_old_torch_is_refused(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '2.9.1+cpu'\nclass Tensor: pass\n")
    message = last_line(python(import_copy(tmp_path, str(tmp_path)), "-I", "-S"))
    assert message.startswith("ImportError: learnsolve needs torch >= 2.10, found 2.9.1+cpu")
    assert "pip install" in message


def test_a_missing_extension_says_what_to_run(tmp_path):
    message = last_line(python(import_copy(tmp_path), "-I", "-S"))
    assert message.startswith("ImportError: learnsolve's compiled extension is not built")
    assert _library.REBUILD in message


def test_a_missing_operator_library_says_what_to_run(tmp_path):
    code = import_copy(tmp_path)
    for built in _library.folder.glob("_analysis*"):
        shutil.copy(built, tmp_path / "learnsolve")
    message = last_line(python(code, "-I", "-S"))
    assert "learnsolve_cpu.so is missing" in message
    assert _library.REBUILD in message


def test_a_library_that_does_not_load_says_what_to_run(tmp_path):
    code = import_copy(tmp_path)
    for built in _library.folder.glob("_analysis*"):
        shutil.copy(built, tmp_path / "learnsolve")
    (tmp_path / "learnsolve" / "learnsolve_cpu.so").write_text("not a library")
    message = last_line(python(code, "-I", "-S"))
    assert "does not load with torch" in message
    assert _library.REBUILD in message


def test_an_unknown_instruction_set_is_refused():
    message = last_line(python("import learnsolve", LEARNSOLVE_ISA="nonsense"))
    assert message.startswith("ImportError: LEARNSOLVE_ISA must be one of ")
    assert all(name in message for name in _library.instruction_sets())
    assert "nonsense" in message


@pytest.mark.slow
@pytest.mark.parametrize(("variants", "seconds"), [("native", 110), ("all", 300)])
def test_a_build_says_what_it_compiles_and_how_long_that_takes(tmp_path, variants, seconds):
    pybind11 = pytest.importorskip("pybind11")
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if cmake is None:
        pytest.skip("no cmake here")
    options = [f"-DPython_EXECUTABLE={sys.executable}", f"-Dpybind11_DIR={pybind11.get_cmake_dir()}"]
    done = subprocess.run(
        [cmake, "-S", PACKAGE.parent, "-B", tmp_path, *options],
        capture_output=True,
        text=True,
        env={**os.environ, "LEARNSOLVE_ISA_VARIANTS": variants, "LEARNSOLVE_CUDA": "0"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "building the CPU operators only" in done.stdout
    minutes, cores = re.findall(r"takes about (\d+) min on (\d+) cores", done.stdout)[0]
    assert int(minutes) == math.ceil(seconds // int(cores) / 60)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if i else ())
        for i, name in enumerate(_library.instruction_sets())
    ],
)
def test_every_instruction_set_can_be_asked_for(name):
    code = """
import numpy as np, torch, learnsolve as ls
A = ls.problems.poisson((12, 9), dtype=torch.float64)
x = torch.linspace(-1, 1, 108, dtype=torch.float64)
assert np.allclose(A @ x, A.to_scipy() @ x.numpy(), rtol=1e-14, atol=1e-14)
print(ls.config()["instruction_set"])
"""
    result = python(code, LEARNSOLVE_ISA=name)
    if "this machine does not have these instructions" in result.stderr:
        assert name != "baseline"
        return
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [name]


def test_show_config_prints_the_dictionary(capsys):
    import learnsolve

    learnsolve.show_config()
    printed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    values = config()
    assert list(printed) == list(values)
    assert printed["torch"] == values["torch"] == __import__("torch").__version__
    assert values["learnsolve"] == learnsolve.__version__
    assert values["instruction_set"] in values["instruction_sets"]
    assert printed["cuda_built"] == ("yes" if (_library.folder / "learnsolve_cuda.so").exists() else "no")


def test_config_follows_the_number_of_threads():
    import torch

    torch.set_num_threads(1)
    assert config()["threads"] == 1
    torch.set_num_threads(2)
    assert config()["threads"] == 2
