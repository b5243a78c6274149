"""`mpirun -n N python tests/petsc/run.py [pytest's options]`: the tests of learnsolve.petsc in N processes.

The first process reports; a test that fails in any of them ends all (conftest.py).
"""

import os
import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    from petsc4py import PETSc

    options = [
        "--color=no",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--tb=short",
        str(Path(__file__).parent),
        *sys.argv[1:],
    ]
    if PETSc.COMM_WORLD.rank:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if code := pytest.main(options):
        sys.stdout.flush()
        os._exit(code)  # to leave as usual would wait for the others
