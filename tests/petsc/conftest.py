"""Tests in the processes of mpirun: all run the same ones, and one that fails anywhere ends all."""

import os
import sys

import pytest

try:
    from petsc4py import PETSc
except ImportError:
    PETSc = None


def pytest_collection_modifyitems(items):
    if PETSc is None:
        skip = pytest.mark.skip(reason="needs petsc4py: make test-petsc")
        for item in items:
            if "tests/petsc/" in str(item.fspath).replace(os.sep, "/"):
                item.add_marker(skip)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if report.failed and PETSc is not None and PETSc.COMM_WORLD.size > 1:
        where = f"process {PETSc.COMM_WORLD.rank} of {PETSc.COMM_WORLD.size}"
        print(f"{where}: {item.nodeid}\n{report.longreprtext}", file=sys.stderr, flush=True)
        os._exit(1)
