"""The rounding floor of a residual: what rounding its arguments changes.

A residual below it cannot be told from zero, so that a tolerance relative to the first residual is met there,
however small that is: for a start at the solution it is rounding errors only.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from learnsolve.nonlinear._linear import norm
from learnsolve.nonlinear._residual import Residual

_UNITS = 16  # rounding units by which arguments are changed at most
_TRIALS = 8  # so that no entry of f happens to change little in all of them
_FAR = 64  # times the change in the first trial: no rounding error


@torch.no_grad()
def rounding(
    f: Residual,
    u: Tensor,
    p: tuple[Tensor, ...],
    r: Tensor,
    measured: Tensor | None = None,
    through: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """The floor of each entry of r = f(u), by calls of f; or with `through`, a linear map without signs, of
    the entries of `measured`, through(r). 0 if one call shows that no system is near it."""
    u, r, p = u.detach(), r.detach(), tuple(t.detach() for t in p)
    measured = r if measured is None else measured
    unit = _UNITS * torch.finfo(u.dtype).eps
    generator = torch.Generator().manual_seed(0)

    def rounded(t: Tensor) -> Tensor:
        if not t.is_floating_point():
            return t
        change = torch.rand(t.shape, dtype=torch.float64, generator=generator)  # equal ones would cancel
        return t * (1 + unit * (2 * change - 1).to(t))

    floor = torch.zeros_like(r)
    for trial in range(_TRIALS):
        floor = torch.maximum(floor, (f(rounded(u), *map(rounded, p)) - r).abs())
        if trial == 0:
            near = norm(measured, f.levels) <= _FAR * norm(_mapped(through, floor, r, unit), f.levels)
            if not bool(near.any()):
                return torch.zeros_like(measured)
    return _mapped(through, floor, r, unit)


def _mapped(through: Callable[[Tensor], Tensor] | None, floor: Tensor, r: Tensor, unit: float) -> Tensor:
    """The derivatives in the map are rounded too, by a unit."""
    return floor if through is None else through(floor + unit * r.abs())


def explained(r: Tensor, floor: Tensor, levels: int) -> Tensor:
    """Which systems have no entry above the floor, of whatever size the others are."""
    return (r.detach().abs() <= floor).flatten(levels).all(-1)
