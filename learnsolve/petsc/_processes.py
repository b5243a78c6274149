"""petsc4py, imported on demand, the end of all processes if one raises an exception, and the distribution of
rows.

Sums over processes, differentiable to any order.

A scalar that all processes share is of one of two kinds. *In common*: each has it, with its full cotangent.
*A copy*: each has one, and the cotangents of all copies add up to the scalar's, as for an operand that is
used in several places. Sum : copies -> in common and Copies : in common -> copies are adjoints of each other,

    (Sum c) = sum_p c_p,    (Copies s)_p = s,    <g, Sum c> = sum_p <(Copies g)_p, c_p>,

so each is the other's derivative, and the set is closed. Loops work with copies (ops/across.py): their
sums are Copies(Sum(.)). Callers get values in common, also from `dot` and `norm`.
"""

from __future__ import annotations

import ctypes
import operator
import os
import sys
import traceback
import warnings
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from learnsolve.arguments import Index, Rule
from learnsolve.matrix import checks
from learnsolve.ops.autograd import Nestable

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
            f"({error}). Debian's needs a NumPy before 2 and runs by scripts/petsc.sh, another one is "
            "reinstalled for this NumPy and PETSC_DIR",
            name="petsc4py",
        ) from error
    version = PETSc.Sys.getVersion()[:2]
    if version < OLDEST:
        raise ImportError(f"learnsolve.petsc needs PETSc 3.18 or newer, got {version[0]}.{version[1]}")
    if np.dtype(PETSc.ScalarType) != np.float64:
        raise ImportError(
            f"learnsolve.petsc needs a PETSc of float64, got {np.dtype(PETSc.ScalarType)}. Choose another "
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
            "each of them solves the whole problem. Start the program with the mpirun of the MPI that "
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


def was_option_read(name: str) -> bool:
    """Whether PETSc has read this option of the database. petsc4py has this call from 3.19 on. Before,
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
            f"{t.device}. Convert it with .to('cpu', torch.float64)"
        )


def _local(function: str, name: str, value: Any) -> Tensor:
    checks.tensor(function, name, value)
    check_dtype(function, name, value)
    return value


Local = Annotated[
    Tensor,
    Rule(_local, "a float64 tensor on the CPU", (object(), 3.0, [1.0], torch.ones(3, dtype=torch.float32))),
]


class Processes:
    """The processes of PETSC_COMM_WORLD. Sums are bitwise identical in all of them, since each adds all parts
    in the same order."""

    def __init__(self) -> None:
        comm = engine().COMM_WORLD
        self.rank, self.size = comm.rank, comm.size
        self._gathers: dict[int, tuple[object, object, object]] = {}

    def gather(self, t: Tensor) -> Tensor:
        """Every process's t, (processes, *t.shape), float64, by one scatter of PETSc (an MPI_Allgather)."""
        t, count = t.detach(), t.numel()
        if self.size == 1 or count == 0:
            return t.expand(self.size, *t.shape).clone()
        if count not in self._gathers:
            own = engine().Vec().createMPI((count, count * self.size))
            scatter, whole = engine().Scatter.toAll(own)
            if count > 4096:  # only scatters for the sums of loops are cached
                return self._gather(own, scatter, whole, t, destroy=True)
            self._gathers[count] = own, scatter, whole
        own, scatter, whole = self._gathers[count]
        return self._gather(own, scatter, whole, t)

    def _gather(self, own: Any, scatter: Any, whole: Any, t: Tensor, destroy: bool = False) -> Tensor:
        own.array_w[:] = t.reshape(-1).numpy()
        scatter.scatter(own, whole)
        found = torch.from_numpy(np.array(whole.array_r)).reshape(self.size, *t.shape)
        if destroy:
            for each in (scatter, whole, own):
                each.destroy()
        return found

    def concatenate(self, t: Tensor) -> Tensor:
        """The vectors of all processes, of any lengths, concatenated."""
        if self.size == 1:
            return t.detach().clone()
        own = engine().Vec().createMPI((t.numel(), engine().DECIDE))
        scatter, whole = engine().Scatter.toAll(own)
        own.array_w[:] = t.detach().numpy()
        scatter.scatter(own, whole)
        found = torch.from_numpy(np.array(whole.array_r))
        for each in (scatter, whole, own):
            each.destroy()
        return found

    def sum(self, t: Tensor) -> Tensor:
        """The sum of local values, in common."""
        return _Sum.apply(t, self)  # type: ignore[return-value]

    def copies(self, t: Tensor) -> Tensor:
        return _Copies.apply(t, self)  # type: ignore[return-value]

    def shown(self, t: Tensor) -> Tensor:
        return _Shown.apply(t, self)  # type: ignore[return-value]

    def total(self, t: Tensor) -> Tensor:
        return self.copies(self.sum(t))

    def largest(self, t: Tensor) -> Tensor:
        return self.gather(t).amax(0)


@cache
def processes() -> Processes:
    return Processes()


class Linear(Nestable):
    """A linear map of t by what moves it between processes."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.by = inputs


class _Sum(Linear):
    @staticmethod
    def forward(t, processes):
        return processes.gather(t).sum(0)

    @staticmethod
    def backward(ctx, g):  # type: ignore[override]
        return ctx.by.copies(g), None

    @staticmethod
    def jvp(ctx, t, _):  # type: ignore[override]
        return ctx.by.sum(t)


class _Copies(Linear):
    @staticmethod
    def forward(t, processes):
        return t.clone()

    @staticmethod
    def backward(ctx, g):  # type: ignore[override]
        return ctx.by.sum(g), None

    @staticmethod
    def jvp(ctx, t, _):  # type: ignore[override]
        return ctx.by.copies(t)


class _Shown(Linear):
    """The value of equal copies, as their mean: the identity, with the derivative Copies(.) / P."""

    @staticmethod
    def forward(t, processes):
        return t.clone()

    @staticmethod
    def backward(ctx, g):  # type: ignore[override]
        return ctx.by.copies(g) / ctx.by.size, None

    @staticmethod
    def jvp(ctx, t, _):  # type: ignore[override]
        return ctx.by.shown(t)


def share(n: Index) -> tuple[int, int]:
    """This process's share of n rows, (lo, hi), consecutive. Shares differ by at most one row.

    Parameters
    ----------
    n : int, the total number of rows

    Returns
    -------
    (lo, hi) : rows lo to hi - 1, for ``problems.poisson(shape, rows=(lo, hi))``

    Examples
    --------
    In one process (with two processes, (0, 5) and (5, 10)):

    >>> from learnsolve import petsc
    >>> petsc.share(10)
    (0, 10)
    """
    rank, size = processes().rank, processes().size
    return n * rank // size, n * (rank + 1) // size


class Rows:
    """The local rows lo to hi - 1 of n, and the sums over processes that loops need (ops/across.py).

    Attributes
    ----------
    starts : (processes + 1,) int64, the first row of each process, and n
    """

    def __init__(self, function: str, name: str, row_range: Any, n: int):
        try:
            lo, hi = (operator.index(i) for i in row_range)
        except (TypeError, ValueError):
            raise TypeError(f"{function}: {name} must be two integers (lo, hi), got {row_range!r}") from None
        self.lo, self.hi, self.rows, self.count = lo, hi, n, hi - lo
        ranges = processes().gather(torch.tensor([lo, hi, n], dtype=torch.float64)).long()
        starts, ends = ranges[:, 0].tolist(), ranges[:, 1].tolist()
        good = starts == [0, *ends[:-1]] and ends[-1] == n and all(map(operator.le, starts, ends))
        if not good or len(set(ranges[:, 2].tolist())) > 1:
            listed = ", ".join(f"({a}, {b})" for a, b in zip(starts, ends, strict=True))
            raise ValueError(
                f"{function}: the {name}s of the processes must follow one another from 0 to n = {n}, got "
                f"{listed}. petsc.share(n) divides n rows"
            )
        self.starts = torch.tensor([*starts, n])
        self.most = int((ranges[:, 1] - ranges[:, 0]).max())

    def check(self, function: str, name: str, t: Tensor) -> None:
        """t must hold the local rows of one or several vectors."""
        if t.dim() not in (1, 2) or t.shape[0] != self.count:
            whole = t.dim() in (1, 2) and t.shape[0] == self.rows
            raise ValueError(
                f"{function}: {name} must be the rows of this process, ({self.count},) or ({self.count}, k), "
                f"got shape {tuple(t.shape)}"
                + (f", the rows of all processes. Pass {name}[{self.lo}:{self.hi}]" if whole else "")
            )

    def same(self, other: Rows) -> bool:
        return self is other or torch.equal(self.starts, other.starts)

    def total(self, t: Tensor) -> Tensor:
        return processes().total(t)

    def largest(self, t: Tensor) -> Tensor:
        return processes().largest(t)

    def shown(self, t: Tensor) -> Tensor:
        return processes().shown(t)

    def parameter(self, name: str, key: str, value: Tensor, rows: bool) -> Tensor:
        if rows and processes().size > 1:
            if self.most == 1 and value.numel() > 1:
                raise ValueError(f"{name}: with one row a process, {key} must be one number for all rows")
            if bool(processes().largest(torch.tensor([float(value.shape[-1] != 1)]))):
                if value.shape[-1] != self.count:
                    raise ValueError(
                        f"{name}: {key} must have one number for each of the {self.count} rows of this "
                        f"process, or one for all rows in every process, got shape {tuple(value.shape)}"
                    )
                return value
        return processes().copies(value)
