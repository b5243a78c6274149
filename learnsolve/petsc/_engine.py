"""petsc4py, imported on demand; and the end of all processes if one raises an exception."""

from __future__ import annotations

import ctypes
import os
import sys
import traceback
import warnings
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import torch

OLDEST = (3, 18)
# Where launchers state the number of processes: Open MPI, MPICH and Intel MPI, srun.
_LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


@cache
def engine() -> Any:
    """The module petsc4py.PETSc, for real float64 values.

    Command line options are passed to PETSc if the program has called petsc4py.init(sys.argv) before; the
    environment variable PETSC_OPTIONS also sets options.
    """
    try:
        PETSc: Any = import_module("petsc4py.PETSc")
    except ModuleNotFoundError as error:
        raise ImportError(
            "learnsolve.petsc needs petsc4py (pip install 'learnsolve[petsc]', or Debian's "
            f"python3-petsc4py and scripts/petsc.sh): {error}",
            name="petsc4py",
        ) from error
    except Exception as error:  # ValueError if it was compiled for another NumPy
        raise ImportError(
            f"learnsolve.petsc: petsc4py is installed, but cannot be imported with NumPy {np.__version__} "
            f"({error}); Debian's needs a NumPy before 2 and runs by scripts/petsc.sh, another one is "
            "reinstalled for this NumPy and PETSC_DIR",
            name="petsc4py",
        ) from error
    version = PETSc.Sys.getVersion()[:2]
    if version < OLDEST:
        raise ImportError(f"learnsolve.petsc needs PETSc 3.18 or newer, got {version[0]}.{version[1]}")
    if np.dtype(PETSc.ScalarType) != np.float64:
        raise ImportError(
            f"learnsolve.petsc needs a PETSc of float64, got {np.dtype(PETSc.ScalarType)}; choose another "
            "build by PETSC_DIR and PETSC_ARCH"
        )
    if PETSc.COMM_WORLD.size > 1:
        sys.excepthook = _end_all
    else:
        _warn_if_alone()
    return PETSc


def _warn_if_alone() -> None:
    """A launcher of another MPI starts processes that are not connected: each has the whole problem,
    and nothing fails."""
    said = next(((name, os.environ[name]) for name in _LAUNCHED if name in os.environ), None)
    if said and said[1] not in ("0", "1"):
        warnings.warn(
            f"learnsolve.petsc: {said[0]} says that {said[1]} processes were started, but PETSc sees one: "
            "each of them solves the whole problem; start the program with the mpirun of the MPI that "
            "petsc4py was compiled with",
            RuntimeWarning,
            stacklevel=3,
        )


def _end_all(kind: Any, error: BaseException, trace: Any) -> None:
    """Print the message and end this process without finalizing MPI, so that mpirun ends the others. A
    regular exit would wait, in MPI_Finalize, for processes that wait for data from this one."""
    comm = engine().COMM_WORLD
    text = "".join(traceback.format_exception(kind, error, trace))
    print(f"process {comm.rank} of {comm.size} ends all:\n{text}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(1)


def option_used(name: str) -> bool:
    """Whether PETSc has read this option of the database. petsc4py has this call from 3.19 on; before,
    the library that petsc4py is linked to is called directly."""
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
            f"{t.device}; convert it with .to('cpu', torch.float64)"
        )
