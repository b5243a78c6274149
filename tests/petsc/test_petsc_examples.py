"""Examples in docstrings of learnsolve.petsc run, in any number of processes."""

import pytest

pytest.importorskip("petsc4py", reason="needs petsc4py: make test-petsc")

import doctest
import importlib
from pathlib import Path

from learnsolve import petsc
from learnsolve.petsc._processes import processes

FOLDER = Path(petsc.__file__).parent
MODULES = [p.stem for p in sorted(FOLDER.glob("*.py")) if ">>> " in p.read_text()]


def test_every_public_name_has_its_example_in_one_of_these():
    assert {"_rows", "learned_pc", "matrix", "operations", "solve"} <= set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    if name == "_rows" and processes().size > 1:
        pytest.skip("prints the share of one process alone")
    text = (FOLDER / f"{name}.py").read_text()
    assert "+SKIP" not in text, "an example that does not run"
    result = doctest.testmod(importlib.import_module(f"learnsolve.petsc.{name}"))
    assert result.attempted == text.count(">>> ")
    assert result.failed == 0
