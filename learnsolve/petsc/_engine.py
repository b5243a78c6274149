"""petsc4py, imported when something needs it; and the end of all processes where one has an exception."""

from __future__ import annotations

import ctypes
import os
import sys
import traceback
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import torch

OLDEST = (3, 18)


@cache
def engine() -> Any:
    """The module petsc4py.PETSc, for real numbers of float64.

    The options of the command line are PETSc's if the program has called petsc4py.init(sys.argv) before, or
    as the environment's PETSC_OPTIONS.
    """
    try:
        PETSc: Any = import_module("petsc4py.PETSc")
    except ImportError as error:
        raise ImportError(
            "learnsolve.petsc needs petsc4py (pip install 'learnsolve[petsc]', or Debian's "
            "python3-petsc4py and "
            f"scripts/petsc.sh): {error}"
        ) from error
    version = PETSc.Sys.getVersion()[:2]
    if version < OLDEST:
        raise ImportError(f"learnsolve.petsc needs PETSc 3.18 or newer, got {version[0]}.{version[1]}")
    if np.dtype(PETSc.ScalarType) != np.float64:
        raise ImportError(
            f"learnsolve.petsc needs a PETSc of float64, got {np.dtype(PETSc.ScalarType)}; choose another "
            f"build "
            "by PETSC_DIR and PETSC_ARCH"
        )
    if PETSc.COMM_WORLD.size > 1:
        sys.excepthook = _end_all
    return PETSc


def _end_all(kind: Any, error: BaseException, trace: Any) -> None:
    """The message, and the end of this process without a farewell to the others: mpirun then ends them. To
    leave as usual would wait, in MPI_Finalize, for processes that wait for this one's numbers."""
    comm = engine().COMM_WORLD
    text = "".join(traceback.format_exception(kind, error, trace))
    print(f"process {comm.rank} of {comm.size} ends all:\n{text}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(1)


def option_used(name: str) -> bool:
    """Whether PETSc has asked for this option of the database. petsc4py has this call from 3.19 on; before,
    the library that petsc4py is linked to is asked itself."""
    PETSc = engine()
    if hasattr(PETSc.Options, "used"):
        return bool(PETSc.Options().used(name))
    flag = ctypes.c_int(0)  # a PetscBool of PETSc 3.18
    if code := ctypes.CDLL(PETSc.__file__).PetscOptionsUsed(None, name.encode(), ctypes.byref(flag)):
        raise PETSc.Error(code)
    return bool(flag.value)


def check_dtype(function: str, name: str, t: torch.Tensor) -> None:
    if t.dtype != torch.float64 or not t.is_cpu:
        raise TypeError(
            f"{function}: {name} must be float64 on the CPU, as PETSc's numbers are, got {t.dtype} on "
            f"{t.device}; "
            "convert it with .to()"
        )
