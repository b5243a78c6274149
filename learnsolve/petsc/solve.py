"""Solve a distributed system by PETSc, with the implicit gradient."""

from __future__ import annotations

import atexit
import math
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from learnsolve.arguments import Index, NotNegative
from learnsolve.ops.autograd import needs_graph
from learnsolve.petsc._processes import Local, engine, was_option_read
from learnsolve.petsc.matrix import MatrixOfSolve, Operator
from learnsolve.solvers.core.gradient import Implicit
from learnsolve.solvers.core.loop import report as report_failure
from learnsolve.solvers.core.problem import Solver
from learnsolve.solvers.solution import CODE, Report, Solution, Status

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


class ColumnResult(NamedTuple):
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
        M: object,
        options: dict,
        rtol: float,
        atol: float,
        maxiter: int,
    ):
        PETSc = engine()
        self.rtol, self.atol, self.maxiter, self.symmetric = rtol, atol, maxiter, method in SYMMETRIC
        self.method, self.mat, self.ksp = method, mat, PETSc.KSP().create(comm=PETSc.COMM_WORLD)
        self._of_transpose = function, method, M, options
        _alive.add(self)
        self.x, self.b = self.mat.createVecs()
        self.r = self.b.duplicate()
        try:
            self._set_up(function, method, M, options)
        except BaseException:
            self.destroy()
            raise

    def _set_up(self, function: str, method: str, M: object, options: dict) -> None:
        PETSc, ksp = engine(), self.ksp
        ksp.setOperators(self.mat)
        _set_type(function, "method", ksp.setType, method)
        if method in _RIGHT:
            ksp.setPCSide(PETSc.PC.Side.RIGHT)
        if method not in _OF_PRECONDITIONED:
            ksp.setNormType(PETSc.KSP.NormType.UNPRECONDITIONED)
        pc = ksp.getPC()
        if M is None or isinstance(M, str):
            _set_type(function, "M", pc.setType, M or "none")
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
                if not was_option_read(prefix + key.removeprefix("-")):
                    raise ValueError(
                        f"{function}: PETSc has not used options[{key!r}] for method {method!r} and this M. "
                        "Correct its name, or remove it"
                    )
        except PETSc.Error as error:
            if error.ierr not in _REFUSED:
                raise
            what = f"M {M!r}" if isinstance(M, str) else "this M"
            blocks = ""
            if PETSc.COMM_WORLD.size > 1 and M in ("icc", "ilu"):
                blocks = f". In several processes use M='bjacobi', options={{'sub_pc_type': {M!r}}}"
            raise ValueError(
                f"{function}: PETSc rejects method {method!r} with {what} and options {options}: "
                f"{_said(error)}{blocks}"
            ) from error
        finally:
            for key in options:
                database.delValue(prefix + key.removeprefix("-"))

    def solve(self, b: Tensor, x: Tensor, guess: bool, transpose: bool, derivative: bool) -> ColumnResult:
        """Solve for one column: x, the guess or zeros, becomes the solution. Derivatives have no atol."""
        if transpose and not self.symmetric and self._assembles_transpose():
            return self._transpose().solve(b, x, guess, False, derivative)
        self.b.placeArray(b.numpy())
        self.x.placeArray(x.numpy())
        try:
            return self._solve(guess, transpose and not self.symmetric, 0.0 if derivative else self.atol)
        finally:
            self.b.resetArray()
            self.x.resetArray()

    def _solve(self, guess: bool, transpose: bool, atol: float) -> ColumnResult:
        ksp, length = self.ksp, self.b.norm()
        if length == 0:  # the solution is zero for every guess
            self.x.set(0.0)
            return ColumnResult([0.0], CODE[Status.CONVERGED])
        target = max(self.rtol * length, atol)
        norms = [self._true_norm(transpose) if guess else length]
        if not math.isfinite(norms[0]):
            return ColumnResult(norms, CODE[Status.NON_FINITE])
        if norms[0] <= target:
            return ColumnResult(norms, CODE[Status.CONVERGED])
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
                return ColumnResult(norms, CODE[Status.NON_FINITE])
            if true <= target:
                return ColumnResult(norms, CODE[Status.CONVERGED])
            if reason in _STATUS:
                return ColumnResult(norms, CODE[_STATUS[reason]])
            if len(norms) > self.maxiter:
                return ColumnResult(norms, CODE[Status.MAX_ITERATIONS])
            if true > before / 2:
                break
        return ColumnResult(norms, CODE[Status.STAGNATED])

    def _assembles_transpose(self) -> bool:
        """Whether the transpose is right: hypre's is not the transpose of the operator that it applies."""
        return self.ksp.getPC().getType() == "hypre" or "hypre" in self._of_transpose[3].values()

    def _transpose(self) -> System:
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


def _set_type(function: str, name: str, set_type: Any, value: str) -> None:
    try:
        set_type(value)
    except engine().Error as error:
        file = ". Pass a file of trained weights as petsc.LearnedPC(file)" if "." in value else ""
        raise ValueError(
            f"{function}: {name} {value!r} is not known to this PETSc ({str(error).splitlines()[0]}){file}"
        ) from None


def _said(error: object) -> str:
    """The message, without the code, the calls and the links before it."""
    lines = [line.split("] ", 1)[-1] for line in str(error).splitlines()[1:]]
    return " ".join(line for line in lines if "() at " not in line and "https:" not in line).rstrip(".")


def stack_results(ended: list[ColumnResult]) -> tuple[Tensor, Tensor]:
    """Norms (iterations + 1, k), where a stopped column keeps its last, and codes (k,)."""
    longest = max((len(e.norms) for e in ended), default=1)
    padded = [e.norms + e.norms[-1:] * (longest - len(e.norms)) for e in ended]
    norms = torch.tensor(padded, dtype=torch.float64).reshape(len(ended), longest).T
    return norms, torch.tensor([e.code for e in ended], dtype=torch.int64)


def solve(
    A: MatrixOfSolve,
    b: Local,
    x0: Local | None = None,
    *,
    rtol: NotNegative = 1e-5,
    atol: NotNegative = 0.0,
    maxiter: Index | None = None,
    method: str = "cg",
    M: object = "bjacobi",
    options: Mapping[str, Any] | None = None,
    throw: bool = False,
) -> Solution:
    r"""Solve A x = b by a PETSc KSP, with the gradient of the solution for A and b.

    A column stops when :math:`\|b - A x\| \le \max(\mathtt{rtol} \|b\|, \mathtt{atol})`.

    Parameters
    ----------
    A : petsc.Matrix, square
    b : Tensor, the local rows, (n,) or (n, k), float64. Each of the k columns is solved separately
    x0 : Tensor of b's shape, the initial guess. Default zero
    rtol, atol : the tolerance
    maxiter : int, default 10 n
    method : a KSP type: "cg", "fcg", "gmres", "bcgs", "minres", ...
    M : a PC type: "bjacobi" (incomplete factors), "gamg", "hypre", "jacobi", "none"; None; or a `LearnedPC`
    options : PETSc options of this KSP, ``{"pc_gamg_threshold": 0.02, "sub_pc_type": "icc"}``
    throw : raise `SolverError` if a solve or its adjoint did not converge

    Returns
    -------
    Solution, with the same `status` and `adjoint` in every process. Inner norms are the method's

    Raises
    ------
    ValueError, TypeError
        if shapes, types or dtypes are invalid, PETSc has no such method or M, or x0 requires grad.
    SolverError
        if `throw` and a column did not converge.

    Notes
    -----
    Gradient: implicit, :math:`\bar b = \lambda = A^{-T} \bar x` by the same KSP, :math:`\bar A = -\lambda
    x^T` on the local entries, any order, forward mode, not under `torch.func`. docs/petsc.md has the cost.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> from learnsolve import petsc
    >>> lo, hi = petsc.share(64)
    >>> A = petsc.Matrix.from_rows(ls.problems.poisson((8, 8), rows=(lo, hi)), (lo, hi))
    >>> petsc.solve(A, torch.ones(hi - lo, dtype=torch.float64), rtol=1e-10, M="gamg").converged
    True
    """
    name = "petsc.solve"
    maxiter = 10 * A.shape[0] if maxiter is None else maxiter
    operator = A.to_operator(name, b)
    if x0 is not None:
        if x0.shape != b.shape:
            raise ValueError(f"{name}: x0 must have b's shape {tuple(b.shape)}, got {tuple(x0.shape)}")
        if needs_graph(x0):
            raise ValueError(
                f"{name}: x0 requires grad, but a converged solution does not depend on it. Detach it"
            )
    if torch._C._are_functorch_transforms_active():
        raise NotImplementedError(f"{name}: does not run under transformations of torch.func. Use backward")
    if not isinstance(method, str):
        raise TypeError(f'{name}: method must be the name of a KSP type, "cg", got {type(method).__name__}')
    if not isinstance(options or {}, Mapping) or not all(isinstance(key, str) for key in options or ()):
        raise TypeError(
            f'{name}: options must map names of PETSc\'s options to values, {{"sub_pc_type": "icc"}}, got '
            f"{options!r}"
        )
    M = _preconditioner(name, M)
    if rtol == 0 and needs_graph(b, *operator.parameters):
        raise ValueError(
            f"{name}: a gradient is solved for relative to itself, and rtol is 0. Pass a positive rtol"
        )
    system = System(name, A.to_petsc(), method, M, dict(options or {}), float(rtol), float(atol), maxiter)
    solver = KSP(name, operator, system, throw, b.dim() == 1)
    B, X0 = (None if t is None else t if t.dim() == 2 else t.unsqueeze(-1) for t in (b, x0))
    assert B is not None
    return solver.solution(B, X0)


def _preconditioner(name: str, M: object) -> Any:
    if M is None or isinstance(M, str):
        return M
    # `apply` of a module is torch's.
    if isinstance(M, (type, torch.nn.Module)) or not hasattr(M, "apply"):
        given = M.__name__ if isinstance(M, type) else type(M).__name__
        raise TypeError(
            f"{name}: M must be the name of a PC type, None or a petsc.LearnedPC, got {given}. "
            "petsc.LearnedPC(source) makes one from a file, a Polynomial or a function from a block to a "
            "Preconditioner"
        )
    return M


@dataclass
class KSP(Solver):
    """The solver of A x = b, or of the transposed system, for `Implicit`."""

    remedy = "ask for a smaller rtol"

    name: str
    A: Operator
    system: System
    throw: bool
    vector: bool
    advice: str = ""

    def with_parameters(self, parameters: tuple[Tensor, ...]) -> KSP:
        return replace(
            self, A=self.A.with_parameters(parameters)
        )  # the values that the KSP has, with a graph

    def adjoint(self) -> KSP:
        return replace(self, A=self.A.T)

    def run(self, b: Tensor, x0: Tensor | None, derivative: bool = False) -> tuple[Tensor, Solution]:
        """x, a constant, and the plain solution. Failures are reported."""
        columns, ended = [], []
        for j in range(b.shape[1]):
            x = torch.zeros(len(b), dtype=b.dtype) if x0 is None else x0.detach()[:, j].clone()
            column = b.detach()[:, j].contiguous()
            ended.append(self.system.solve(column, x, x0 is not None, self.A.turned, derivative))
            columns.append(x)
        x = torch.stack(columns, 1) if columns else torch.zeros_like(b.detach())
        norms, codes = stack_results(ended)
        solution = self._make_solution(x, norms, codes)
        report_failure(self.name, solution, self.throw, True, self.advice)
        return x, solution

    def _make_solution(
        self, x: Tensor, norms: Tensor, codes: Tensor, report: Report | None = None
    ) -> Solution:
        iterations = len(norms) - 1
        if self.vector:
            x, norms, codes = x.squeeze(-1), norms.squeeze(-1), codes.squeeze(-1)
        axis, method = -1 if self.vector else -2, self.system.method
        return Solution(
            x, iterations, norms, axis, codes=codes, adjoint=report, backend="PETSc", method=method
        )

    def solution(self, b: Tensor, x0: Tensor | None) -> Solution:
        x, plain = self.run(b, x0)
        if not needs_graph(b, *self.A.parameters):
            self.system.destroy()
            return plain
        report = Report()
        x = Implicit.apply(self, report, x, b, *self.A.parameters)
        plain.x = x.squeeze(-1) if self.vector else x  # type: ignore[union-attr]
        plain._adjoint = report
        return plain

    def solved(self, b: Tensor, ended: Report) -> Tensor:
        x, ended.solution = self.run(b, None, derivative=True)
        return x
