"""Units in which A and b are of size one, so that no inner product of a method leaves the range of the dtype.

A method multiplies vectors of the size of b, and of A b, with each other: for a cotangent of 1e-12 in
float32, or of 1e200 in float64, it would compute zeros and infinities and report a breakdown. All units are
powers of two, so the iterates are the same to the last bit. Where sizes are ordinary there are no units, and
nothing is spent on them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from learnsolve.ops._across import across
from learnsolve.solvers.core.operators import Operator
from learnsolve.solvers.core.vectors import largest

# Exponents of two that are ordinary. The largest product is <A b, A b>, the smallest rtol^2 <b, A b>.
ORDINARY = {torch.float32: 20, torch.float64: 150}


class Units(NamedTuple):
    of_A: Tensor | None  # (..., 1, 1); None: A is taken as it is
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

    def form(self, form: Any) -> Any:
        """What the compiled loop of conjugate gradients takes in these units (advance_cg.py), or None: M
        would have to be scaled in its own form."""
        taken = form is not None and (self.of_A is None or not (form.fixed or form.kind != "none"))
        return form if taken else None


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


def matrix(A: Any, units: Units) -> Any:
    """A `Matrix` or `Blocks`, divided by its unit: entry by entry, which a compiled loop needs."""
    return A if units.of_A is None else A.divided(units.of_A)


def operator(A: Any, units: Units) -> Any:
    """A in these units: its results divided, or its entries where they are subnormal, whose products with
    numbers of size one have few digits."""
    info, unit = torch.finfo(units.of_b.dtype), units.of_A
    few = unit is not None and unit.is_cpu and bool((unit < info.smallest_normal / info.eps).any())
    return matrix(A, units) if few and hasattr(A, "divided") else InUnits(A, unit)


def preconditioner(M: Any, units: Units) -> Any:
    """M, an approximation of A^-1, which may be nonlinear and is given residuals as they are."""
    return None if M is None else lambda r: M(r * units.of_b) / units.of_x


def choose(size_A: Tensor | None, b: Tensor, atol: float = 0.0, unseen: bool = False) -> Units | None:
    """None where sizes are ordinary. That is not checked if `unseen`: it would wait for a device. No number
    below `atol` matters."""
    if b.numel() == 0 and across() is None:
        return None
    limit, size_b = 2.0 ** ORDINARY[b.dtype], largest(b, -2)
    if isinstance(atol, Tensor) or atol > 0:
        size_b = size_b.clamp(min=atol)
    if b.is_cpu and within(size_b, 1 / limit, limit) and (size_A is None or within(size_A, 1 / limit, limit)):
        return None
    of_b = _unit(size_b)
    of_A = torch.ones_like(of_b[..., :1]) if size_A is None else _unit(size_A)
    if not unseen and all(bool(((u <= limit) & (u >= 1 / limit)).all()) for u in (of_A, of_b)):
        return None
    return Units(of_A, of_b)


def number(atol: float | Tensor, unit: Any) -> Any:
    """`atol` in a unit of b. A number divided by a tensor would be multiplied with its reciprocal, infinity
    for the smallest units."""
    if isinstance(unit, Tensor) and not isinstance(atol, Tensor):
        return unit.new_tensor(atol) / unit
    return atol / unit


def within(size: Tensor, low: float, high: float) -> bool:
    """Are all of these numbers in [low, high]? NaN is not. Few calls, for what is so as a rule: small solves
    on the CPU take the time of their calls."""
    if size.numel() == 1:
        return low <= size.item() <= high
    least, most = torch.aminmax(size)
    return low <= least.item() and most.item() <= high


def of_right_hand_side(b: Tensor) -> Units | None:
    """The unit of b alone, 1 where its size is ordinary: without waiting for the device."""
    if b.numel() == 0:
        return None
    unit = _unit(largest(b, -2))
    limit = 2.0 ** ORDINARY[b.dtype]
    return Units(None, torch.where((unit <= limit) & (unit >= 1 / limit), 1, unit))


def _unit(size: Tensor) -> Tensor:
    """The power of two at or below each size; 1 for zeros, infinities and NaNs."""
    size = torch.where(torch.isfinite(size) & (size > 0), size, 1)
    return size / (2 * torch.frexp(size).mantissa)
