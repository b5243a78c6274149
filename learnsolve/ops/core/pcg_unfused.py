"""Conjugate gradients of pcg.py as a composition of public operations: the definition of the compiled loop,
used for its second derivatives, forward mode and unusual batches.

csrc/kernels/pcg_column.cuh states when a column stops; here the same rules are written with operations that
autograd differentiates, under the same names.
"""

import enum
from collections.abc import Callable

import torch
from torch import Tensor

from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.core.autograd import pullback
from learnsolve.ops.core.dots import dots
from learnsolve.ops.core.product import product
from learnsolve.ops.core.triangular import Side, solve
from learnsolve.ops.richardson import residual_norm

LOWER, LOWER_T = Side(True, False, False), Side(True, False, True)


class Stop(enum.IntEnum):
    """Why a column has stopped."""

    RUNNING = 0  # it has not
    ROUNDING = 1  # the residual meets its target, or r, <r, M r> or <p, A p> is at rounding level
    CURVATURE = 2  # <p, A p> <= 0: A is not positive definite
    PRECONDITIONER = 3  # <r, M r> <= 0: M is not positive definite
    NON_FINITE = 4  # infinities or NaNs; x and r are from before
    DIVERGED = 5  # the residual has grown by the inverse of the rounding unit


def applied(m: Tensor, factor: SparsityPattern | None, kind: int) -> Callable[[Tensor], Tensor]:
    """r -> M r on (..., n, k)."""
    if kind == 0:
        return lambda r: r
    if kind == 1:
        return lambda r: m.unsqueeze(-1) * r
    assert factor is not None
    if kind == 2:
        return lambda r: product(m, product(m, r, factor, True), factor, False)
    return lambda r: solve(m, solve(m, r, factor, LOWER), factor, LOWER_T)


class _Columns:
    """The running columns: `PcgColumn` of csrc/kernels/pcg_column.cuh for all columns at once."""

    def __init__(self, size: Tensor, length: Tensor):
        info = torch.finfo(size.dtype)
        self.smallest = info.tiny
        self.low, self.high = info.eps * torch.maximum(size, length), size / info.eps
        self.why = torch.zeros_like(size, dtype=torch.int64)
        self.when = torch.zeros_like(self.why)
        self.stop(~size.isfinite(), Stop.NON_FINITE, 0)
        self.stop(size <= self.low, Stop.ROUNDING, 0)

    def run(self) -> Tensor:
        return self.why == 0

    def stop(self, where: Tensor, why: Stop, when: int) -> None:
        where = where & self.run()
        self.why, self.when = torch.where(where, why, self.why), torch.where(where, when, self.when)

    def divisor(self, value: Tensor, not_positive: Stop, when: int) -> None:
        """Stop columns in which the method cannot divide by this inner product."""
        value = value.detach()
        self.stop(~value.isfinite(), Stop.NON_FINITE, when)
        self.stop(value <= 0, not_positive, when)
        self.stop(value < self.smallest, Stop.ROUNDING, when)


def unfused(
    values: Tensor, m: Tensor, b: Tensor, x0: Tensor,
    pattern: SparsityPattern, factor: SparsityPattern | None, kind: int, iterations: int, from_zero: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    vector = b.dim() == 1
    if vector:
        b, x0 = b.unsqueeze(-1), x0 if from_zero else x0.unsqueeze(-1)
    M = applied(m, factor, kind)

    def dot(u, v):
        return dots(u, v, True)

    def norm_of(r):
        return residual_norm(r, -2, keepdim=True)

    def divide(a, b, where):
        return torch.where(where, a, 0) / torch.where(where, b, 1)

    r = b if from_zero else b - product(values, x0, pattern, False)
    x = torch.zeros_like(r) if from_zero else x0
    norm = norm_of(r)
    columns = _Columns(norm.detach(), norm_of(b).detach())
    r = torch.where(norm.detach().isfinite(), r, 0)
    z = M(r)
    rho = dot(r, z)
    columns.divisor(rho, Stop.PRECONDITIONER, 0)
    p = torch.where(columns.run(), z, 0)
    norms = [norm]
    for i in range(iterations):
        q = product(values, p, pattern, False)
        pi = dot(p, q)
        columns.divisor(pi, Stop.CURVATURE, i)
        alpha = divide(rho, pi, columns.run())
        columns.stop(~alpha.detach().isfinite(), Stop.NON_FINITE, i)
        columns.stop(alpha.detach() == 0, Stop.ROUNDING, i)
        new_r = torch.where(columns.run(), r - alpha * q, r)
        new_norm = norm_of(new_r)
        size = new_norm.detach()
        columns.stop(~size.isfinite(), Stop.NON_FINITE, i)
        moved = columns.run()
        r, norm = torch.where(moved, new_r, r), torch.where(moved, new_norm, norm)
        x = torch.where(moved, x + alpha * p, x)
        norms.append(norm)
        columns.stop(size <= columns.low, Stop.ROUNDING, i + 1)
        columns.stop(size > columns.high, Stop.DIVERGED, i + 1)
        z = M(r)
        new_rho = dot(r, z)
        columns.divisor(new_rho, Stop.PRECONDITIONER, i + 1)
        beta, runs = divide(new_rho, rho, columns.run()), columns.run()
        p, rho = torch.where(runs, z + beta * p, 0), torch.where(runs, new_rho, rho)
    history, status = torch.cat(norms, -2), torch.cat((columns.why, columns.when), -2)
    if vector:
        return x.squeeze(-1), history.squeeze(-1), status.squeeze(-1)
    return x, history, status


def unfused_adjoint(*fixed) -> Callable:
    """(values, m, b, x0, gx, gnorms) -> gradients for the first four, differentiable."""

    def adjoint(values, m, b, x0, gx, gnorms):
        _, pull = pullback(lambda *t: unfused(*t, *fixed)[:2], values, m, b, x0)
        return pull((gx, gnorms))

    return adjoint
