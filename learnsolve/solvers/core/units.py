"""Units in which A and b are of size one, so that no inner product of a method leaves the range of the dtype.

A method multiplies vectors of the size of b and of A b with each other: for a cotangent of 1e-12 in float32,
or of 1e200 in float64, it would compute zeros and infinities and report a breakdown. All units are powers of
two, so the iterates are the same to the last bit. If sizes are ordinary, there are no units and no cost.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from learnsolve.ops.core import across as _across
from learnsolve.ops.core.across import across
from learnsolve.solvers.core.advance_cg import parts_at_once
from learnsolve.solvers.core.operators import Matrix, Operator, compiled_form, source
from learnsolve.solvers.core.report import explained
from learnsolve.solvers.core.system import Outcome, System
from learnsolve.solvers.core.vectors import largest, size, surely_finite
from learnsolve.solvers.solution import CODE, Iteration, Status

# Ordinary exponents of two. The largest product is <A b, A b>, the smallest rtol^2 <b, A b>.
ORDINARY = {torch.float32: 20, torch.float64: 150, torch.complex64: 20, torch.complex128: 150}


def in_units(system: System, method: Any) -> tuple[System, Any]:
    """The system in units, and the function that maps its outcome back; the same system if sizes are
    ordinary. A device that must not be synchronized always gets units, and the compiled loop of cg only units
    of b, since M would have to be scaled in its own form."""
    b, criterion = system.b, system.criterion
    if _surely_ordinary(system):
        return system, lambda out: _finite(None, out)
    size_A = system.A.size()
    if system.unattended and parts_at_once(method, system):
        units = _of_right_hand_side(b)
    else:
        units = _choose(size_A, b, criterion.negligible, system.unattended)
    if units is None:
        return system, lambda out: _finite(size_A, out)
    of_x, of_b = units.of_x, units.of_b
    inner = replace(
        system,
        A=_operator(system.A, units),
        M=_preconditioner(system.M, units),
        b=b / of_b,
        x0=None if system.x0 is None else units.into(system.x0),
        criterion=criterion.in_units(of_b),
    )
    if (callback := system.callback) is not None:

        def notify(at: Iteration) -> Any:
            norm = (at.residual_norm.unsqueeze(-2) * of_b).squeeze(-2)
            return callback(at._replace(x=at.x * of_x, residual_norm=norm))

        inner.callback = notify

    def back(out: Outcome) -> Outcome:
        x = units.out_of(out.x)
        if criterion.has_tolerance:
            out = _with_digits_lost(inner, out, units.into(x.detach()))
        return _finite(size_A, out._replace(x=x, norms=out.norms * of_b))

    return inner, back


def _finite(size_A: Tensor | None, out: Outcome) -> Outcome:
    """Find a NaN that no product has met: in x if a column of A is empty, in A if b is zero. Also one that a
    method took for something else, such as an infinite curvature."""
    x = out.x.detach()
    if x.is_cpu and _across.everywhere(surely_finite(x)) and (size_A is None or surely_finite(size_A)):
        return out
    lost = _across.anywhere(~torch.isfinite(x).all(dim=-2))
    if size_A is not None:
        lost = lost | ~torch.isfinite(size_A).squeeze(-2)
    return out._replace(codes=torch.where(lost, CODE[Status.NON_FINITE], out.codes))


@torch.no_grad()
def _with_digits_lost(system: System, out: Outcome, x: Tensor) -> Outcome:
    """The outcome judged by the caller's x, some of whose digits may be below the range."""
    lost = (out.codes == CODE[Status.CONVERGED]) & _across.anywhere((x != out.x).any(dim=-2))
    if not bool(lost.any()):
        return out
    b = system.b.detach()
    r = b - system.A(x)
    holds = system.criterion.fresh().begin(system.A, b, x, r, size(r), size(b)).squeeze(-2)
    codes = torch.where(lost & ~holds, CODE[Status.STAGNATED], out.codes)
    return explained(system, out._replace(x=x, codes=codes))


class Units(NamedTuple):
    """Powers of two."""

    of_A: Tensor | None  # (..., 1, 1); None: A is not scaled
    of_b: Tensor  # (..., 1, k)

    @property
    def of_x(self) -> Tensor:
        return self.of_b if self.of_A is None else self.of_b / self.of_A

    def into(self, x: Tensor) -> Tensor:
        """x in these units. Zeros stay zeros where the unit itself is beyond the range of the dtype."""
        return x / self.of_x if self._holds else torch.where(x == 0, 0, x / self.of_x)

    def out_of(self, x: Tensor) -> Tensor:
        return x * self.of_x if self._holds else torch.where(x == 0, 0, x * self.of_x)

    @property
    def _holds(self) -> bool:
        info = torch.finfo(self.of_b.dtype)
        return self.of_x.is_cpu and within(self.of_x, info.smallest_normal, info.max)


class InUnits:
    """A, whose results are divided by its unit."""

    def __init__(self, A: Operator, unit: Any):
        self.A, self.unit = A, unit

    def __call__(self, x: Tensor) -> Tensor:
        return self.A(x) / self.unit

    @property
    def T(self) -> InUnits:
        return InUnits(self.A.T, self.unit)

    def magnitude(self, x: Tensor) -> Tensor | None:
        y = self.A.magnitude(x)
        return None if y is None else y / self.unit

    def frobenius(self) -> Tensor | None:
        norm = self.A.frobenius()
        return None if norm is None else norm / self.unit


def _operator(A: Any, units: Units) -> Any:
    """A in these units: scaled entry by entry if the entries are known, as compiled code and subnormal
    entries require, otherwise its results are scaled."""
    if units.of_A is None:
        return A
    return A.divided(units.of_A) if hasattr(A, "divided") else InUnits(A, units.of_A)


def _preconditioner(M: Any, units: Units) -> Any:
    """M, an approximation of A^-1, which may be nonlinear and is applied to unscaled residuals."""
    if M is None or (units.of_A is None and compiled_form(source(M)) is not None):  # it is linear
        return M
    return lambda r: M(r * units.of_b) / units.of_x


def _surely_ordinary(system: System) -> bool:
    """For one matrix and one column on the CPU, in few calls, which dominate the time of small solves."""
    A, b, negligible, limit = system.A, system.b, system.criterion.negligible, 2.0 ** ORDINARY[system.b.dtype]
    if not isinstance(A, Matrix) or not isinstance(negligible, (int, float)) or negligible > limit:
        return False
    values, n = A.A.values, b.shape[-2]
    if values.dim() != 1 or values.numel() == 0 or not values.is_cpu or not b.is_cpu or b.numel() != n:
        return False
    if values.is_complex():
        return False
    least, most = torch.aminmax(values.detach())
    # The largest entry of b is at least ||b|| / sqrt(n).
    return (
        1 / limit <= max(-least.item(), most.item()) <= limit
        and n**0.5 / limit <= system.length.item() <= limit
    )


def _choose(size_A: Tensor | None, b: Tensor, negligible: float | Tensor, unseen: bool) -> Units | None:
    """None if sizes are ordinary. That is not checked if `unseen`, since it would synchronize a device.
    Values below `negligible` do not matter."""
    if b.numel() == 0 and across() is None:
        return None
    limit, size_b = 2.0 ** ORDINARY[b.dtype], largest(b, -2)
    if isinstance(negligible, Tensor) or negligible > 0:
        size_b = size_b.clamp(min=negligible)
    if b.is_cpu and within(size_b, 1 / limit, limit) and (size_A is None or within(size_A, 1 / limit, limit)):
        return None
    of_b = _unit(size_b)
    of_A = torch.ones_like(of_b[..., :1]) if size_A is None else _unit(size_A)
    if not unseen and all(bool(((u <= limit) & (u >= 1 / limit)).all()) for u in (of_A, of_b)):
        return None
    return Units(of_A, of_b)


def within(size: Tensor, low: float, high: float) -> bool:
    """Whether all values are in [low, high]; NaN is not. The usual case takes few calls, which dominate the
    time of small solves on the CPU."""
    if size.numel() == 1:
        return low <= size.item() <= high
    least, most = torch.aminmax(size)
    return low <= least.item() and most.item() <= high


def _of_right_hand_side(b: Tensor) -> Units | None:
    """The unit of b only, 1 where its size is ordinary, without synchronizing the device."""
    if b.numel() == 0:
        return None
    unit = _unit(largest(b, -2))
    limit = 2.0 ** ORDINARY[b.dtype]
    return Units(None, torch.where((unit <= limit) & (unit >= 1 / limit), 1, unit))


def _unit(size: Tensor) -> Tensor:
    """The power of two at or below each size; 1 for zeros, infinities and NaNs."""
    size = torch.where(torch.isfinite(size) & (size > 0), size, 1)
    return size / (2 * torch.frexp(size).mantissa)
