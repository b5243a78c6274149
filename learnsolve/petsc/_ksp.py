"""A PETSc KSP with its matrix, which it destroys, and vectors, from setup to destruction."""

from __future__ import annotations

import atexit
import math
import weakref
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from learnsolve.petsc._engine import engine, option_used
from learnsolve.solvers.solution import CODE, Status

_alive: weakref.WeakSet[System] = weakref.WeakSet()
_numbers = count()  # numbers of KSPs for option prefixes; equal in all processes, which run the same program
_RESTARTS = 3  # for a KSP whose own residual has drifted from b - A x
# Methods that minimize or watch ||b - A x|| itself if M is applied from the right.
_RIGHT = {"gmres", "lgmres", "bcgs", "bcgsl", "ibcgs", "fbcgs", "fbcgsr", "gcr", "tfqmr"}
_OF_PRECONDITIONED = {
    "minres",
    "symmlq",
    "lsqr",
    "cgne",
    "tcqmr",
    "cgs",
    "preonly",
}  # they offer no other norm

# For a symmetric A: the transposed system is the system.
SYMMETRIC = {"cg", "groppcg", "pipecg", "pipelcg", "pipecgrr", "fcg", "pipefcg", "minres", "symmlq"}

_STATUS = {
    -3: Status.MAX_ITERATIONS,
    -4: Status.DIVERGED,
    -5: Status.BREAKDOWN,
    -6: Status.BREAKDOWN,
    -7: Status.BREAKDOWN,  # a nonsymmetric A or M
    -8: Status.INDEFINITE,
    -9: Status.NON_FINITE,
    -10: Status.INDEFINITE,
    -11: Status.BREAKDOWN,  # the set-up of M failed
    4: Status.MAX_ITERATIONS,
    5: Status.INDEFINITE,
    6: Status.INDEFINITE,
}


# PETSc's error codes for invalid choices of the caller: support, size, state, value, type, package.
_REFUSED = {56, 60, 62, 63, 75, 86, 92}


class Ended(NamedTuple):
    """The result of a column: norms, from ||b - A x0|| to the true last one, and the code of its Status."""

    norms: list[float]
    code: int


class System:
    """KSP and matrix. They are destroyed by `destroy`, with the last reference, or before PETSc ends: a KSP
    with a Python preconditioner that exists at exit crashes PETSc 3.18."""

    def __init__(
        self,
        function: str,
        mat: Any,
        method: str,
        M: Any,
        options: dict,
        rtol: float,
        atol: float,
        maxiter: int,
    ):
        PETSc = engine()
        self.rtol, self.atol, self.maxiter, self.symmetric = rtol, atol, maxiter, method in SYMMETRIC
        self.mat, self.ksp = mat, PETSc.KSP().create(comm=PETSc.COMM_WORLD)
        self._of_transpose = function, method, M, options
        _alive.add(self)
        self.x, self.b = self.mat.createVecs()
        self.r = self.b.duplicate()
        try:
            self._set_up(function, method, M, options)
        except BaseException:
            self.destroy()
            raise

    def _set_up(self, function: str, method: str, M: Any, options: dict) -> None:
        PETSc, ksp = engine(), self.ksp
        ksp.setOperators(self.mat)
        _typed(function, "method", ksp.setType, method)
        if method in _RIGHT:
            ksp.setPCSide(PETSc.PC.Side.RIGHT)
        if method not in _OF_PRECONDITIONED:
            ksp.setNormType(PETSc.KSP.NormType.UNPRECONDITIONED)
        pc = ksp.getPC()
        if M is None or isinstance(M, str):
            _typed(function, "M", pc.setType, M or "none")
        else:
            pc.setType("python")
            pc.setPythonContext(M)
        ksp.setTolerances(self.rtol, self.atol, 1 / np.finfo(np.float64).eps, self.maxiter)
        prefix, database = f"learnsolve_{next(_numbers)}_", PETSc.Options()
        ksp.setOptionsPrefix(prefix)
        for key, value in options.items():
            database[prefix + key.removeprefix("-")] = value
        try:
            ksp.setFromOptions()
            ksp.setUp()
            ksp.setUpOnBlocks()
            for key in options:
                if not option_used(prefix + key.removeprefix("-")):
                    raise ValueError(
                        f"{function}: PETSc has not used options[{key!r}] for method {method!r} and this M; "
                        "correct its name, or leave it out"
                    )
        except PETSc.Error as error:
            if error.ierr not in _REFUSED:
                raise
            what = f"M {M!r}" if isinstance(M, str) else "this M"
            blocks = ""
            if PETSc.COMM_WORLD.size > 1 and M in ("icc", "ilu"):
                blocks = f"; in several processes take M='bjacobi', options={{'sub_pc_type': {M!r}}}"
            raise ValueError(
                f"{function}: PETSc rejects method {method!r} with {what} and options {options}: "
                f"{_said(error)}{blocks}"
            ) from error
        finally:
            for key in options:
                database.delValue(prefix + key.removeprefix("-"))

    def solve(self, b: Tensor, x: Tensor, guess: bool, transpose: bool, derivative: bool) -> Ended:
        """Solve for one column: x, the guess or zeros, becomes the solution. Derivatives have no atol."""
        if transpose and not self.symmetric and self._assembles_transpose():
            return self._transposed().solve(b, x, guess, False, derivative)
        self.b.placeArray(b.numpy())
        self.x.placeArray(x.numpy())
        try:
            return self._solve(guess, transpose and not self.symmetric, 0.0 if derivative else self.atol)
        finally:
            self.b.resetArray()
            self.x.resetArray()

    def _solve(self, guess: bool, transpose: bool, atol: float) -> Ended:
        ksp, length = self.ksp, self.b.norm()
        if length == 0:  # the solution is zero for every guess
            self.x.set(0.0)
            return Ended([0.0], CODE[Status.CONVERGED])
        target = max(self.rtol * length, atol)
        norms = [self._true_norm(transpose) if guess else length]
        if not math.isfinite(norms[0]):
            return Ended(norms, CODE[Status.NON_FINITE])
        if norms[0] <= target:
            return Ended(norms, CODE[Status.CONVERGED])
        true = norms[0]
        for attempt in range(1 + _RESTARTS):
            left = self.maxiter - len(norms) + 1
            ksp.setTolerances(atol=atol, max_it=left)
            ksp.setInitialGuessNonzero(guess or attempt > 0)
            ksp.setConvergenceHistory(left + 1, reset=True)
            (ksp.solveTranspose if transpose else ksp.solve)(self.b, self.x)
            reason = ksp.getConvergedReason()
            own = ksp.getConvergenceHistory().tolist()[1:]
            norms += own[: ksp.getIterationNumber()]
            norms += [norms[-1]] * (ksp.getIterationNumber() - len(own))
            before, true = true, self._true_norm(transpose)
            norms[-1] = true
            if not math.isfinite(true):
                return Ended(norms, CODE[Status.NON_FINITE])
            if true <= target:
                return Ended(norms, CODE[Status.CONVERGED])
            if reason in _STATUS:
                return Ended(norms, CODE[_STATUS[reason]])
            if len(norms) > self.maxiter:
                return Ended(norms, CODE[Status.MAX_ITERATIONS])
            if true > before / 2:
                break
        return Ended(norms, CODE[Status.STAGNATED])

    def _assembles_transpose(self) -> bool:
        """Whether the transpose is right: hypre's is not the transpose of the operator that it applies."""
        return self.ksp.getPC().getType() == "hypre" or "hypre" in self._of_transpose[3].values()

    def _transposed(self) -> System:
        """The same KSP with the assembled transpose, cached."""
        if "transposed" not in vars(self):
            mat = engine().Mat()
            self.mat.transpose(mat)
            function, method, M, options = self._of_transpose
            self.transposed = System(function, mat, method, M, options, self.rtol, self.atol, self.maxiter)
        return self.transposed

    def _true_norm(self, transpose: bool) -> float:
        (self.mat.multTranspose if transpose else self.mat.mult)(self.x, self.r)
        self.r.aypx(-1.0, self.b)
        return self.r.norm()

    def destroy(self) -> None:
        """Destroy in order, once: later objects hold earlier ones."""
        for each in ("transposed", "ksp", "r", "b", "x", "mat"):
            if (held := self.__dict__.pop(each, None)) is not None:
                held.destroy()

    def __del__(self) -> None:
        self.destroy()


@atexit.register
def _destroy_all() -> None:
    """Registered after petsc4py's own finalization, hence run before it."""
    for system in list(_alive):
        system.destroy()


def _typed(function: str, name: str, set_type: Any, value: str) -> None:
    try:
        set_type(value)
    except engine().Error as error:
        file = "; a file of trained weights is petsc.LearnedPC(file)" if "." in value else ""
        raise ValueError(
            f"{function}: {name} {value!r} is none of this PETSc's ({str(error).splitlines()[0]}){file}"
        ) from None


def _said(error: Any) -> str:
    """The message, without the code, the calls and the links before it."""
    lines = [line.split("] ", 1)[-1] for line in str(error).splitlines()[1:]]
    return " ".join(line for line in lines if "() at " not in line and "https:" not in line).rstrip(".")


def stacked(ended: list[Ended]) -> tuple[Tensor, Tensor]:
    """Norms (iterations + 1, k), where a stopped column keeps its last, and codes (k,)."""
    longest = max((len(e.norms) for e in ended), default=1)
    padded = [e.norms + e.norms[-1:] * (longest - len(e.norms)) for e in ended]
    norms = torch.tensor(padded, dtype=torch.float64).reshape(len(ended), longest).T
    return norms, torch.tensor([e.code for e in ended], dtype=torch.int64)
