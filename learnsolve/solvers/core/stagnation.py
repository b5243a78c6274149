"""When a column stagnates: rounding errors alone keep its residual from falling.

After iterations 20, 40, 60, 80, 100, 125, 156, ... (each a quarter later than the last, 20 at least) the true
residual r = b - A x is measured. A column stops, as STAGNATED, if

    ||r|| <= 10 eps || |A| |x| + |b| ||      more accuracy cannot be expected, and
    ||r|| > the smallest one before, halved  none was gained since

once more after it has started again from r, where the method's own residual had drifted away from it.
The first is the limit of rounding: r itself is computed with an error of some eps (|A| |x| + |b|), entry by
entry, and no method that updates x in its own precision comes below it (Higham, "Accuracy and Stability of
Numerical Algorithms" (2002), sections 3.5 and 17.2; Greenbaum, "Estimating the attainable accuracy of
recursively computed residual methods", SIAM J. Matrix Anal. Appl. 18 (1997) 535-551). Measured, methods end
at 0.1 to 0.8 eps || |A| |x| + |b| ||. A plateau above it is not stagnation, however long. The second spares
slow convergence: at a constant rate, a column that took k iterations to fall to the limit falls in the next
k / 4 by far more than one half.

Where the entries of A are not known, |A| |x| is replaced by ||x|| times the largest ||A r|| / ||r|| measured,
a lower bound of ||A||: close to it, since rounding errors have components in all directions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from learnsolve.solvers.core.vectors import size

_LEVEL = 10


class Schedule(NamedTuple):
    """The iterations after which a solve measures: each 1 / `share` of those before later than the last, and
    `least` at least."""

    least: int
    share: int

    def after(self, done: int) -> int:
        """The first one after number `done`."""
        at = 0
        while at <= done:
            at += max(self.least, at // self.share)
        return at

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self.after(number - 1) == number


EAGER = Schedule(20, 4)
# Of the compiled loop of cg, to which a measurement costs two of its iterations: 480, 960, 1920, ...
COMPILED_CG = Schedule(480, 1)


def rounding_level(A: Any, x: Tensor, b: Tensor, y: Tensor) -> Tensor:
    """10 eps || |A| |x| + |b| ||, (..., 1, k)."""
    return _LEVEL * torch.finfo(b.dtype).eps * size(terms(A, x, b, y))


def terms(A: Any, x: Tensor, b: Tensor, y: Tensor) -> Tensor:
    """|A| |x| + |b|; where the entries of A are not known, its length by what A makes of y, (..., 1, k)."""
    entries = A.magnitude(x)
    if entries is not None:
        return entries + b.abs()
    length = size(y)
    norm_A = size(A(y)) / torch.where(length == 0, 1, length)
    return norm_A * size(x) + size(b)
