"""J d = b for the Jacobian of a residual: assembled or matrix-free, factored or with a Krylov method.

The preconditioner of an assembled Jacobian is kept while it is good enough: it is rebuilt if a solve needs
twice as many iterations as with the new preconditioner, or fails.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from learnsolve.matrix.csr import CSR
from learnsolve.matrix.unchanged import version
from learnsolve.nonlinear._implicit import Ended
from learnsolve.nonlinear._residual import Residual
from learnsolve.ops.add import add
from learnsolve.ops.core.autograd import pullback
from learnsolve.ops.core.symmetry import symmetry
from learnsolve.ops.diagonals import eye
from learnsolve.preconditioners import AMG, factorize
from learnsolve.solvers.bicgstab import bicgstab
from learnsolve.solvers.cg import cg
from learnsolve.solvers.core import choices
from learnsolve.solvers.core.report import quiet
from learnsolve.solvers.gmres import gmres
from learnsolve.solvers.minres import minres
from learnsolve.solvers.solution import CODE, Solution, Status, worst

KRYLOV: dict[str, Callable[..., Solution]] = {
    "cg": cg,
    "minres": minres,
    "bicgstab": bicgstab,
    "gmres": gmres,
}
LINEAR = ("auto", "direct", *KRYLOV)
DIRECT = 2e9  # flops of SuperLU (choices.direct_cost): about the cost of a hierarchy and some cycles
INNER = 500  # maximum number of iterations of a solve for a direction
_EQUAL = 1e-3  # relative to b, to compare two matrices
_RESTART = 30  # of gmres


class Products:
    """v -> J v for vectors (n,), or blocks of one column (..., n, 1), by derivatives of f: J^T y is the
    pullback of f, recorded once, and J v the pullback of that, 10 times faster than `torch.func.jvp`."""

    def __init__(self, residual: Residual, u: Tensor, p: tuple[Tensor, ...]):
        self.levels, self.u, self.transpose = residual.levels, u, False
        self.r, self.pull = pullback(lambda z: residual(z, *p), u)
        self.push: Any = None

    def __call__(self, v: Tensor) -> Tensor:
        if self.transpose:
            y = self.pull(v.reshape(self.r.shape))[0]
        else:
            if self.push is None:
                self.push = pullback(self.pull, torch.zeros_like(self.r))[1]
            y = self.push((v.reshape(self.u.shape),))[0]
        return column(y.detach(), self.levels)

    @property
    def T(self) -> Products:
        other = copy.copy(self)
        other.transpose = not self.transpose
        return other


class Shifted:
    """v -> A v + shift v."""

    def __init__(self, A: Any, shift: Tensor):
        self.A, self.shift = A, shift

    def __call__(self, v: Tensor) -> Tensor:
        return self.A(v) + over(self.shift, v) * v

    @property
    def T(self) -> Shifted:
        return Shifted(self.A.T, self.shift)


class Systems:
    """Linear systems with the Jacobian of `residual` at the u and p of the last `update`."""

    by_products = "gmres"  # the method if J is not assembled
    methods: tuple[str, ...] = LINEAR

    def __init__(self, residual: Residual, linear: Any, M: Any):
        self.residual, self.linear, self.M = residual, linear, M
        self.how, self.why = linear, ""
        self.kept: Any  # a preconditioner, and its number of iterations when it was new
        self.usual: int | None = None
        self.transient = False
        self.release()

    def release(self) -> None:
        self.u: Any = None
        self.p: tuple[Tensor, ...] = ()
        self.J: Any = None
        self.lost: Tensor | None = None  # systems whose Jacobian is not finite
        self.matrix = self.A = self.factors = self.kept = self.J

    def mapped(self, dims: tuple[int | None, ...]) -> Systems:
        return type(self)(self.residual.mapped(dims), self.linear, self.M)

    @torch.no_grad()
    def update(self, u: Tensor, p: tuple[Tensor, ...], shift: Tensor | None = None) -> None:
        """Set the Jacobian at u, with `shift`, one scalar per system, added to its diagonal."""
        self.u, self.p = u.detach(), tuple(t.detach() for t in p)
        self.J = self.matrix = self.A = None  # free their memory for reuse
        assembled, batch = self.residual.jacobian, u.shape[: self.residual.levels]
        if not self.residual.assembled(self.u, self.p):
            self.J = Products(self.residual, self.u, self.p)
        else:
            values, n = assembled.values(self.u, *self.p).detach(), u.numel() // max(batch.numel(), 1)
            finite = torch.isfinite(values).all(-1)
            self.lost = ~finite
            if batch and bool(self.lost.any()) and bool(finite.any()):  # others must not meet it
                values = torch.where(finite.unsqueeze(-1), values, values[finite][0])
            self.J = CSR(values, assembled.pattern)
            self.check(n)
        self.matrix = self.of(self.J)
        self.shift(shift)

    def check(self, n: int) -> None:
        if self.J.shape != (n, n):
            raise ValueError(
                f"{self.residual.name}: jacobian(u, *args) must have shape {(n, n)}, as u has {n} entries, "
                f"got {self.J.shape}"
            )

    def of(self, J: Any) -> Any:
        """The matrix of the systems."""
        return J

    A: Any

    def shift(self, shift: Tensor | None) -> None:
        self.A = self.matrix
        if shift is not None and isinstance(self.A, CSR):
            n, values = self.A.shape[0], self.A.values
            self.A = add(self.A, eye(n, dtype=values.dtype, device=values.device), beta=shift.unsqueeze(-1))
        elif shift is not None:
            self.A = Shifted(self.A, shift)

    def at(self, u: Tensor, p: tuple[Tensor, ...]) -> None:
        """`update`, unless the Jacobian already belongs to u and p."""
        mine, same = (self.u, *self.p), self.u is not None and not is_functorch_wrapped_tensor(self.u)
        for a, b in zip((u, *p), mine, strict=False):
            same = same and a.shape == b.shape and a.data_ptr() == b.data_ptr() and version(a) == version(b)
        if not same:
            self.update(u, p)

    @torch.no_grad()
    def solve(self, b: Tensor, rtol: float, maxiter: int | None = None, transpose: bool = False) -> Ended:
        """Solve J d = b to rtol ||b||. The norms are of the linear residual."""
        out = self._solve(b, rtol, maxiter, transpose)
        if self.lost is not None and bool(self.lost.any()):
            x, codes = torch.where(over(self.lost, b), torch.nan, out.x), CODE[Status.NON_FINITE]
            out = out._replace(x=x, codes=torch.where(self.lost, codes, out.codes))
        if self.residual.levels and bool((nothing := norm(b, self.residual.levels) == 0).any()):
            x, codes = torch.where(over(nothing, b), 0, out.x), CODE[Status.CONVERGED]
            out = out._replace(x=x, codes=torch.where(nothing, codes, out.codes))
        return out

    def _solve(self, b: Tensor, rtol: float, maxiter: int | None, transpose: bool) -> Ended:
        levels, batch = self.residual.levels, b.shape[: self.residual.levels]
        right = column(b, levels)
        if self.how == "auto" or (self.how == "direct" and not isinstance(self.A, CSR)):
            self._choose()
        size = norm(right, levels)
        if isinstance(self.A, CSR) and not bool(torch.isfinite(self.A.values).all()):
            codes = torch.full(batch, CODE[Status.NON_FINITE], device=b.device)
            return Ended(torch.full_like(b, torch.nan), torch.stack((size, size), -1), codes)
        A = self.A.T if transpose else self.A
        if callable(self.how):
            x = self.how(A, right)
            x = getattr(x, "x", x)  # a Solution
            if not isinstance(x, Tensor) or x.shape != right.shape:
                got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
                raise ValueError(
                    f"{self.residual.name}: linear(J, b) must return a Tensor of b's shape "
                    f"{tuple(right.shape)}, or a "
                    f"Solution with it, got {got}"
                )
            left = norm((A @ x if isinstance(A, CSR) else A(x)) - right, levels)
            codes = torch.where(left <= rtol * size, CODE[Status.CONVERGED], CODE[Status.MAX_ITERATIONS])
            return Ended(x.reshape(b.shape), torch.stack((size, left), -1), codes)
        if self.how == "direct":
            x, codes = self._direct(right, transpose)
            return Ended(x.reshape(b.shape), torch.stack((size, torch.zeros_like(size)), -1), codes)
        with quiet():
            M = self._preconditioner()
            M = M.T if transpose and M is not None else M
            options = {"restart": _RESTART} if self.how == "gmres" else {}
            solution = KRYLOV[self.how](A, right, M=M, rtol=rtol, maxiter=maxiter, **options)
        codes = solution._codes
        assert codes is not None
        if self.linear == "auto" and solution.status in _OTHERWISE and self._another():
            return self._solve(b, rtol, maxiter, transpose)
        if self.usual is None:
            self.usual = solution.iterations
        elif solution.iterations > 2 * self.usual + 5 or worst(codes) != CODE[Status.CONVERGED]:
            self.kept = None
        norms = solution.residual_norms.reshape(*batch, -1)
        return Ended(solution.x.reshape(b.shape), norms, codes.reshape(batch), solution.note)

    def _factored(self) -> Any:
        """The factors of A, reusing the earlier analysis."""
        F, self.factors = self.factors, None
        if F is None or F.A.pattern is not self.A.pattern:
            F = factorize(self.A)
        elif F.A.values is not self.A.values:
            F.refactorize(self.A.values)
        self.factors = F
        return F

    def _direct(self, b: Tensor, transpose: bool) -> tuple[Tensor, Tensor]:
        batch = b.shape[:-2]
        codes = torch.full(batch, CODE[Status.CONVERGED], device=b.device)
        try:
            return self._factored().solve(b, transpose=transpose), codes
        except ValueError as error:
            if batch and batch.numel() > 1:
                return self._one_by_one(b, transpose)
            singular = "singular" in str(error) or "overflow" in str(error)
            status = Status.SINGULAR_JACOBIAN if singular else Status.NON_FINITE
            return torch.full_like(b, torch.nan), torch.full_like(codes, CODE[status])

    def _one_by_one(self, b: Tensor, transpose: bool) -> tuple[Tensor, Tensor]:
        """Solve with matrices of which some are singular."""
        whole, n, batch = self.A, b.shape[-2], b.shape[:-2]
        x, codes = [], []
        for values, right in zip(
            whole.values.expand(*batch, -1).reshape(-1, whole.nnz), b.reshape(-1, n), strict=True
        ):
            self.A, self.factors = whole.with_values(values), None
            solution, code = self._direct(right, transpose)
            x.append(solution)
            codes.append(code)
        self.A, self.factors = whole, None
        return torch.stack(x).reshape(b.shape), torch.stack(codes).reshape(batch)

    def _choose(self) -> None:
        A = self.A
        if not isinstance(A, CSR):
            if self.how == "direct":
                raise ValueError(
                    f'{self.residual.name}: linear="direct" needs an assembled Jacobian; give its pattern, '
                    'jacobian=..., or use linear="gmres"'
                )
            self.how, self.why = self.by_products, ": J by products"
            return
        symmetric = symmetry("root", A, None)
        positive = bool((A.diagonal() > 0).all())
        if A.device.type == "cpu" and choices.direct_cost(A) * A.batch_shape.numel() <= DIRECT:
            self.how, self.why = "direct", ": a factorization is cheap"
        elif symmetric and positive:
            self.how, self.why = "cg", ": J is symmetric, its diagonal positive"
        else:
            self.how, self.why = "gmres", ": J is not symmetric" if not symmetric else ": J is indefinite"

    def _another(self) -> bool:
        """Choose another method after a failed iteration chosen by "auto"."""
        if not isinstance(self.A, CSR) or self.A.device.type != "cpu":
            return False
        if choices.direct_cost(self.A) <= choices.LAST_RESORT:
            self.how, self.why = "direct", f": {self.how} failed"
            return True
        if self.how != "gmres":
            self.how, self.why, self.kept = "gmres", f": {self.how} failed", None
            return True
        return False

    def _preconditioner(self) -> Any:
        if self.kept is None and (self.M is None or not isinstance(self.A, CSR)):
            return None
        if self.kept is None:
            self.usual = None
            self.kept = self.M(self.A) if callable(self.M) else _fitting(self.A, self.how)
        return self.kept

    @torch.no_grad()
    def confirmed(self, out: Ended, b: Tensor, rtol: float, maxiter: int | None, transpose: bool) -> Ended:
        """`out` with A x = b, for the Jacobian of f: refined by products with it where A lacks small entries,
        as a given pattern may; an error where it lacks large ones."""
        if not isinstance(self.A, CSR) or self.A is not self.matrix:
            return out
        levels, x = self.residual.levels, out.x
        right = column(b, levels)
        A, J, size = self.A, Products(self.residual, self.u, self.p), norm(right, levels)
        A, J = (A.T, J.T) if transpose else (A, J)
        own = norm(A @ column(x, levels) - right, levels)
        r = right - J(column(x, levels))
        left = norm(r, levels)
        if bool(((own <= _EQUAL * size) & (left > 10 * _EQUAL * size)).any()):
            raise ValueError(
                f"{self.residual.name}: jacobian is not that of {self.residual.words[0]} at the solution: "
                f"a solve with it leaves {float((left / size).max()):.2g} of the right-hand side; give a "
                "pattern with all entries, or correct the function"
            )
        goal = torch.maximum(rtol * size, 10 * own)
        if bool((left > goal).any()):
            image = A.with_values(A.values.abs()) @ column(x, levels).abs()
            goal = goal + 10 * torch.finfo(x.dtype).eps * norm(image, levels)
        codes, norms = out.codes, out.norms
        while bool((far := left > goal).any()):
            step = self._solve(torch.where(over(far, b), r.reshape(b.shape), 0), rtol, maxiter, transpose)
            x_next = x + step.x
            r_next = right - J(column(x_next, levels))
            better = far & (norm(r_next, levels) < left / 2)
            codes = torch.where(
                far & ~better & (codes == CODE[Status.CONVERGED]), CODE[Status.STAGNATED], codes
            )
            x, r = torch.where(over(better, x), x_next, x), torch.where(over(better, r), r_next, r)
            goal = torch.where(far & ~better, torch.inf, goal)
            left = norm(r, levels)
            norms = torch.cat((norms, left.unsqueeze(-1)), -1)
        return out._replace(x=x, codes=codes, norms=norms)

    def inverse(self) -> Any:
        """An approximate inverse of an assembled matrix, for systems near this one."""
        if self.how == "auto":
            self._choose()
        if self.how != "direct":
            return self._preconditioner()
        return self._factored().solve

    @property
    def selected(self) -> str:
        if callable(self.how):
            return getattr(self.how, "__name__", "callable")
        M = f" with {type(self.kept).__name__}" if self.kept is not None and self.how in KRYLOV else ""
        return f"{self.how}{M}{self.why}"


NOT_FINITE = (
    "The Jacobian of f is not finite, where f is: a derivative in f does not exist there, such as that of "
    "sqrt or of a norm at 0. "
)
_OTHERWISE = {Status.INDEFINITE, Status.BREAKDOWN, Status.STAGNATED, Status.MAX_ITERATIONS, Status.DIVERGED}


def _fitting(A: CSR, method: str) -> Any:
    diagonal = A.diagonal()
    if bool((diagonal == 0).any()) or method == "minres":
        return None
    if method == "cg" and A.device.type == "cpu":
        return AMG(A)
    return choices.preconditioner("ILU0" if A.device.type == "cpu" else "Jacobi", A, None)[0]


def column(u: Tensor, levels: int) -> Tensor:
    """u as a vector, or as one column per system."""
    return u.reshape(*u.shape[:levels], -1, 1) if levels else u.reshape(-1)


def norm(r: Tensor, levels: int) -> Tensor:
    """||r|| of each system, a constant, even if squares leave the range of the dtype."""
    r = r.detach().flatten(levels)
    size = torch.linalg.vector_norm(r, dim=-1)
    if bool(((size > torch.finfo(r.dtype).tiny ** 0.5) & (size < torch.inf)).all()):
        return size
    unit = r.abs().amax(-1)
    unit = torch.where((unit > 0) & torch.isfinite(unit), unit, 1)
    return unit * torch.linalg.vector_norm(r / unit.unsqueeze(-1), dim=-1)


def over(t: Tensor, u: Tensor) -> Tensor:
    """One scalar per system, shaped to multiply u."""
    return t.reshape((*t.shape, *[1] * (u.dim() - t.dim())))
