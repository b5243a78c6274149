"""`--engine petsc`: the matrix of a training distributed over the processes of mpirun, by blocks of rows.

The loss of a step is computed in all processes, on their rows: each makes only its rows of the matrix and of
the test vectors. All processes hold the parameters and update them identically, with the gradient over all
rows. The first process evaluates on the whole matrix, which only it makes, writes and prints.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.recipes.matrix import build, check_square, not_positive
from learnsolve.recipes.training.parallel import Group
from learnsolve.recipes.training.settings import MissingExtra, SettingError


def distribute_rows(Recipe: Any) -> Any:
    """A `MatrixRecipe` with its losses over the rows of the matrix."""

    class OverRows(Recipe):
        def __init__(self, settings: object):
            check(settings)
            super().__init__(settings)
            # Pcg needs it for the initial factor, whose learned entries stay in all processes.
            self.__dict__.pop("A", None)

        def make_space(self) -> Rows:
            return Rows(self.settings)

    return OverRows


def check(settings: Any) -> None:
    """Raise SettingError for settings that do not support distributed rows."""
    if settings.seeds > 1:
        raise SettingError(
            f"--seeds {settings.seeds} trains in one process, but --engine petsc trains in the processes of "
            "mpirun. Start mpirun once for each --seed"
        )
    if getattr(settings, "form", "product") != "product":
        raise SettingError("--engine petsc has no triangular solves over processes. Pass --form product")
    for option, wrong, remedy in (
        ("dtype", settings.dtype != "float64", "float64"),
        ("device", settings.device != "cpu", "cpu"),
        ("hard_fraction", settings.hard_fraction != 1, "1"),
    ):
        if wrong:
            value = getattr(settings, option)
            raise SettingError(
                f"--engine petsc needs --{option} {remedy}, got {value}. Pass it, or --engine torch"
            )
    if "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise SettingError("--engine petsc is started by mpirun. torchrun is for --engine torch")
    try:
        from learnsolve.petsc._processes import engine

        engine()
    except ImportError as error:
        raise MissingExtra(str(error)) from error


class Rows:
    """A square matrix over the processes, in place of `WholeMatrix`.

    Attributes
    ----------
    A, n : petsc.Matrix, and the number of unknowns
    rows : the rows of the test vectors in this process
    """

    def __init__(self, settings: object):
        from learnsolve import petsc
        from learnsolve.petsc._processes import processes

        self.processes, self.dot, self.norm = processes(), petsc.dot, petsc.norm
        local = build(settings, petsc.share)
        self.n = local.shape[1]
        self.lo, self.hi = petsc.share(self.n)
        self.rows = slice(self.lo, self.hi)
        self._analyzed: dict[SparsityPattern, Any] = {}
        rows = self.processes.sum(torch.tensor(local.shape[0], dtype=torch.float64))
        check_square((int(rows), self.n))
        self.A: Any = petsc.Matrix.from_rows(local, (self.lo, self.hi))
        self._check_energy(petsc.spmm)

    def _check_energy(self, spmm: Any) -> None:
        """`problem.check_energy`, which needs the whole matrix, for distributed rows."""
        generator = torch.Generator().manual_seed(self.lo)
        x = torch.randn(self.hi - self.lo, generator=generator, dtype=torch.float64)
        y = self.A @ x
        difference, size = (self.norm(v).item() for v in (y - spmm(self.A, x, transpose=True), y))
        if difference > 1e-6 * size:
            raise SettingError(
                "--problem: this recipe needs a symmetric matrix, but for a random x the norm of (A - A^T) x "
                f"is {difference:.3g}, the norm of A x {size:.3g}. Choose another problem"
            )
        diagonal = self.A.diagonal()
        bad = torch.nonzero(diagonal <= 0).flatten()
        last = (self.lo + float(bad[-1]), float(diagonal[bad[-1]])) if len(bad) else (-1.0, 0.0)
        everywhere = self.processes.gather(torch.tensor(last, dtype=torch.float64))
        row, entry = everywhere[everywhere[:, 0].argmax()].tolist()
        if row >= 0:
            raise not_positive(int(row), entry)

    def local(self, t: Tensor) -> Tensor:
        """The rows of this process; the gradient of t sums over all processes."""
        return self.processes.copies(t)[self.rows]

    def matrix(self, A: CSR) -> Any:
        """The matrix over the processes; the gradient for A.values sums over all. The analysis is cached."""
        from learnsolve import petsc

        crow = A.crow_indices
        first, last = int(crow[self.lo]), int(crow[self.hi])
        values = self.processes.copies(A.values)[first:last]
        if A.pattern not in self._analyzed:
            pointers = crow[self.lo : self.hi + 1] - first
            part = SparsityPattern(pointers, A.col_indices[first:last], (self.hi - self.lo, self.n))
            self._analyzed[A.pattern] = petsc.Matrix(values.detach(), part, (self.lo, self.hi), self.n)
        return self._analyzed[A.pattern].with_values(values)

    def product(self, model: Any) -> Any:
        """r -> L L^T r"""
        from learnsolve.petsc import spmm

        L = self.matrix(model.L)
        return lambda r: spmm(L, spmm(L, r, transpose=True))

    def energy(self, x: Tensor) -> Tensor:
        """tr(X^T A X)"""
        return self.dot(x, self.A @ x).sum()


@dataclass(frozen=True)
class RowGroup(Group):
    """The processes of mpirun. `size` stays 1: no process has vectors of its own."""

    def total(self, value: float, *flags: bool) -> tuple[float, ...]:
        from learnsolve.petsc._processes import processes

        if not flags:
            return (value,)
        return value, *(processes().largest(torch.tensor([float(f) for f in flags])) > 0).tolist()

    def exit_codes(self, failure: BaseException | None) -> list[int | None]:
        from learnsolve.petsc._processes import processes

        code = -1 if failure is None else self.exit_code(failure)
        codes = processes().gather(torch.tensor(float(code))).int().tolist()
        return [None if code < 0 else code for code in codes]

    def end(self, error: BaseException) -> None:
        """Nothing to report: an error in one process ends all of them (learnsolve.petsc)."""


def make_group(exit_code: Any) -> Group:
    from learnsolve.petsc._processes import processes

    return RowGroup(processes().rank, 1, None, exit_code)


def leave(code: int) -> None:
    """End a failed process: PETSc's finalization would wait for the others."""
    if code and "petsc4py.PETSc" in sys.modules and sys.modules["petsc4py.PETSc"].COMM_WORLD.size > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
