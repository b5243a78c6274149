"""Finite differences of a function of one variable, and their accuracy.

Central differences d(h) = f' + h^2 f''' / 6 + ... for h and 2 h: the extrapolated value (4 d(h) - d(2 h)) / 3
is free of the first term, whose size |d(h) - d(2 h)| / 3 estimates the error (it exceeds that of the
extrapolated value if f is smooth). Rounding adds eps times the sum of the moduli, divided by h.

One-sided differences differ by h f'' if f is smooth, half as much for half the step. At a kink they differ by
the same amount for every step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Difference(NamedTuple):
    value: float
    error: float  # an estimate
    kink: tuple[float, float] | None  # the one-sided derivatives, if they differ


def difference(
    at: Callable[[float], tuple[float, float]], here: tuple[float, float], h: float, eps: float
) -> Difference:
    """The derivative at 0; `at(t)` is a sum and the sum of its moduli, `here` both at 0."""
    (zero, size), ahead, behind = here, [], []
    for t in (h, 2 * h):
        for value, side in ((at(t), ahead), (at(-t), behind)):
            side.append((value[0] - zero) / t)
            size = max(size, value[1])
    rounding = 2 * eps * size / h
    near, far = ((a - b) / 2 for a, b in zip(ahead, behind, strict=True))
    jump, wide = (a + b for a, b in zip(ahead, behind, strict=True))
    kink = None
    if abs(jump) > 20 * rounding and abs(jump) > 0.75 * abs(wide) and abs(jump) > 1e-3 * max(map(abs, ahead)):
        kink = (0.0 - behind[0], 0.0 + ahead[0])
    return Difference((4 * near - far) / 3, abs(near - far) / 3 + rounding, kink)
