"""How programs end: one exception ends all processes, and a KSP with our preconditioner ends before PETSc.
Examples in docstrings of learnsolve.petsc run, in any number of processes."""

import doctest
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("petsc4py", reason="needs petsc4py: make test-petsc")

import torch
from petsc4py import PETSc

import learnsolve as ls
from learnsolve import petsc
from learnsolve.petsc._processes import processes

LIVING = []

HEAD = """
import torch, learnsolve as ls
from learnsolve import petsc
from learnsolve.petsc._processes import processes
A = petsc.Matrix.from_scipy(ls.problems.poisson((6, 6)).to_scipy())
b = torch.ones(A.row_range[1] - A.row_range[0], dtype=torch.float64)
"""


def run(program, count):
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    # A process of MPI cannot start mpirun with what it has been told about itself.
    told = ("OMPI_", "ORTE", "PMIX", "PMI_")
    plain = {key: value for key, value in os.environ.items() if not key.startswith(told)}
    plain |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    plain |= {"OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
    command = ["mpirun", "--oversubscribe", "-n", str(count), sys.executable, "-c", HEAD + program]
    return subprocess.run(command, env=plain, capture_output=True, text=True, timeout=60)


@pytest.mark.skipif(PETSc.COMM_WORLD.size > 1, reason="starts mpirun itself")
def test_an_exception_in_one_process_ends_all():
    done = run("if processes().rank == 1:\n    raise ValueError('only here')\nprint(petsc.norm(b))\n", 2)
    assert done.returncode != 0
    assert "process 1 of 2 ends all" in done.stderr
    assert "ValueError: only here" in done.stderr


def test_a_graph_that_lives_at_the_exit():
    """It lives until the process of these tests ends, which then crashes if PETSc is finalized before: run.py
    exits as usual if all tests pass, and scripts/petsc.sh sees its exit code."""
    A = petsc.Matrix.from_scipy(ls.problems.poisson((6, 6)).to_scipy())
    b = torch.ones(A.row_range[1] - A.row_range[0], dtype=torch.float64, requires_grad=True)
    M = petsc.LearnedPC(ls.preconditioners.Polynomial.chebyshev(ls.problems.poisson((6, 6)), 3))
    solution = petsc.solve(A, b, M=M)
    solution.cycle = [solution]
    LIVING.append(solution)
    assert solution.converged


FOLDER = Path(petsc.__file__).parent
MODULES = [p.stem for p in sorted(FOLDER.glob("*.py")) if ">>> " in p.read_text()]


def test_every_public_name_has_its_example_in_one_of_these():
    assert {"_processes", "learned_pc", "matrix", "solve"} <= set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    if name == "_processes" and processes().size > 1:
        pytest.skip("prints the share of one process alone")
    text = (FOLDER / f"{name}.py").read_text()
    assert "+SKIP" not in text, "an example that does not run"
    result = doctest.testmod(importlib.import_module(f"learnsolve.petsc.{name}"))
    assert result.attempted == text.count(">>> ")
    assert result.failed == 0
