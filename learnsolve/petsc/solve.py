"""Solve a distributed system by PETSc, with the implicit gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.ops.core.autograd import tracked
from learnsolve.petsc._engine import check_dtype
from learnsolve.petsc._ksp import System, stacked
from learnsolve.petsc._operator import Operator
from learnsolve.petsc.matrix import Matrix
from learnsolve.solvers.core.gradient import Implicit
from learnsolve.solvers.core.problem import Solver
from learnsolve.solvers.core.report import report as report_failure
from learnsolve.solvers.solution import Report, Solution, SolverError


def solve(
    A: Matrix,
    b: Tensor,
    x0: Tensor | None = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    method: str = "cg",
    M: Any = "bjacobi",
    options: Mapping[str, Any] | None = None,
    throw: bool = False,
) -> Solution:
    r"""Solve A x = b by a PETSc KSP, with the gradient of the solution for A and b.

    A column stops when :math:`\|b - A x\| \le \max(\mathtt{rtol} \|b\|, \mathtt{atol})`.

    Parameters
    ----------
    A : petsc.Matrix, square
    b : Tensor, the local rows, (n,) or (n, k), float64; each of the k columns is solved separately
    x0 : Tensor of b's shape, the initial guess; default zero
    rtol, atol : the tolerance
    maxiter : int, default 10 n
    method : a KSP type: "cg", "fcg", "gmres", "bcgs", "minres", ...
    M : a PC type: "bjacobi" (incomplete factors), "gamg", "hypre", "jacobi", "none"; None; or a `LearnedPC`
    options : PETSc options of this KSP, ``{"pc_gamg_threshold": 0.02, "sub_pc_type": "icc"}``
    throw : raise `SolverError` if a solve or its adjoint did not converge

    Returns
    -------
    Solution, with the same `status` and `adjoint` in every process; inner norms are the method's

    Raises
    ------
    ValueError, TypeError
        if shapes, types or dtypes are invalid, PETSc has no such method or M, or x0 requires grad.
    SolverError
        if `throw` and a column did not converge.

    Notes
    -----
    Gradient: implicit, :math:`\bar b = \lambda = A^{-T} \bar x` by the same KSP, :math:`\bar A = -\lambda
    x^T` on the local entries; any order, forward mode, not under `torch.func`. docs/petsc.md has the cost.

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
    if not isinstance(A, Matrix):
        raise TypeError(
            f"{name}: A must be a petsc.Matrix, got {type(A).__name__}; make one with "
            "petsc.Matrix.from_rows, or for a CSR use learnsolve.solve"
        )
    for key, value in (("rtol", rtol), ("atol", atol)):
        checks.tolerance(name, key, value)
    checks.flag(name, "throw", throw)
    maxiter = 10 * A.shape[0] if maxiter is None else checks.integer(name, "maxiter", maxiter, 0)
    checks.tensor(name, "b", b)
    operator = A.as_operator(name, b)
    if x0 is not None:
        checks.tensor(name, "x0", x0)
        check_dtype(name, "x0", x0)
        if x0.shape != b.shape:
            raise ValueError(f"{name}: x0 must have b's shape {tuple(b.shape)}, got {tuple(x0.shape)}")
        if tracked(x0):
            raise ValueError(
                f"{name}: x0 requires grad, but a converged solution does not depend on it; detach it"
            )
    if torch._C._are_functorch_transforms_active():
        raise NotImplementedError(f"{name}: does not run under transformations of torch.func; use backward")
    if not isinstance(method, str):
        raise TypeError(f'{name}: method must be the name of a KSP type, "cg", got {type(method).__name__}')
    if not isinstance(options or {}, Mapping) or not all(isinstance(key, str) for key in options or ()):
        raise TypeError(
            f'{name}: options must map names of PETSc\'s options to values, {{"sub_pc_type": "icc"}}, got '
            f"{options!r}"
        )
    M = _preconditioner(name, M)
    if rtol == 0 and tracked(b, *operator.parameters):
        raise ValueError(f"{name}: a gradient is solved for relative to itself, and rtol is 0; give one")
    system = System(name, A.to_petsc(), method, M, dict(options or {}), float(rtol), float(atol), maxiter)
    solver = KSP(name, operator, system, throw, b.dim() == 1)
    B, X0 = (None if t is None else t if t.dim() == 2 else t.unsqueeze(-1) for t in (b, x0))
    assert B is not None
    return solver.solution(B, X0)


def _preconditioner(name: str, M: Any) -> Any:
    if M is None or isinstance(M, str):
        return M
    # `apply` of a module is torch's.
    if isinstance(M, (type, torch.nn.Module)) or not hasattr(M, "apply"):
        given = M.__name__ if isinstance(M, type) else type(M).__name__
        raise TypeError(
            f"{name}: M must be the name of a PC type, None or a petsc.LearnedPC, got {given}; "
            "petsc.LearnedPC(source) makes one of a file, a Polynomial or a function from a block to a "
            "Preconditioner"
        )
    return M


@dataclass
class KSP(Solver):
    """The solver of A x = b, or of the transposed system, for `Implicit`."""

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
        """x, a constant, and the plain solution; failures are reported."""
        columns, ended = [], []
        for j in range(b.shape[1]):
            x = torch.zeros(len(b), dtype=b.dtype) if x0 is None else x0.detach()[:, j].clone()
            column = b.detach()[:, j].contiguous()
            ended.append(self.system.solve(column, x, x0 is not None, self.A.transpose, derivative))
            columns.append(x)
        x = torch.stack(columns, 1) if columns else torch.zeros_like(b.detach())
        norms, codes = stacked(ended)
        solution = self._as_given(x, norms, codes)
        report_failure(self.name, solution, self.throw, True, self.advice)
        return x, solution

    def _as_given(self, x: Tensor, norms: Tensor, codes: Tensor, report: Report | None = None) -> Solution:
        iterations = len(norms) - 1
        if self.vector:
            x, norms, codes = x.squeeze(-1), norms.squeeze(-1), codes.squeeze(-1)
        solution = Solution(
            x, iterations, norms, -1 if self.vector else -2, codes=codes, adjoint=report, execution="PETSc"
        )
        return solution

    def solution(self, b: Tensor, x0: Tensor | None) -> Solution:
        x, plain = self.run(b, x0)
        if not tracked(b, *self.A.parameters):
            self.system.destroy()
            return plain
        report = Report()
        x = Implicit.apply(self, report, x, b, *self.A.parameters)
        plain.x = x.squeeze(-1) if self.vector else x  # type: ignore[union-attr]
        plain._adjoint = report
        return plain

    def linear(self, b: Tensor, what: str, report: Report) -> Tensor:
        named = replace(
            self,
            name=f"{self.name}, {what}",
            advice=", so the derivative is not exact (ask for a smaller rtol)",
        )
        try:
            x, report.solution = named.run(b, None, derivative=True)
        except SolverError as error:
            report.solution = error.solution
            raise
        if tracked(b, *self.A.parameters):
            return Implicit.apply(self, Report(), x, b, *self.A.parameters)  # type: ignore[return-value]
        return x
