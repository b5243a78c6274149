"""M in the compiled loop of pcg.py: the kinds that its operators support, or any function between steps."""

from collections.abc import Callable

import torch
from torch import Tensor

from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.core.dots import _raw_dots
from learnsolve.ops.core.pcg_unfused import LOWER, LOWER_T, Stop
from learnsolve.ops.core.triangular import _system

KINDS = ("none", "diagonal", "product", "triangular")


def fitting(
    kind: str, pattern: SparsityPattern, factor: SparsityPattern | None
) -> tuple[int, SparsityPattern, SparsityPattern | None]:
    """The code of the kind, and the patterns with a common index type."""
    if factor is not None and factor.dtype != pattern.dtype:
        pattern, factor = _wide(pattern), _wide(factor)
    return KINDS.index(kind), pattern, factor


def _wide(pattern: SparsityPattern) -> SparsityPattern:
    return pattern if pattern.dtype == torch.int64 else pattern._planned(_with_int64)[0]


def _with_int64(pattern: SparsityPattern) -> tuple[SparsityPattern]:
    return (SparsityPattern._trusted(pattern.crow_indices.long(), pattern.col_indices.long(), pattern.shape),)


def preconditioner(m: Tensor | None, factor: SparsityPattern | None, kind: int) -> tuple[Tensor, ...]:
    """M in the form of the raw operators (csrc/ops/pcg.h)."""
    if kind == 0:
        return ()
    assert m is not None
    if kind == 1:
        return (m,)
    assert factor is not None
    if kind == 2:
        return (m, *factor._structure(False), *factor._structure(True))
    return (m, *factor._structure(False), *_system(factor, LOWER).tensors, *_system(factor, LOWER_T).tensors)


RHO, STOP, WHEN = 0, 4, 5  # rows of the state of a column (csrc/kernels/views.h)


class Directions:
    """p = M r + beta p with beta = rho / rho_old and rho = <r, M r>, after a step without M has computed x
    and r. `M` takes blocks (n, k) or (B, n, k). Stopping rules: csrc/kernels/pcg_column.cuh.

    `flexible`: beta = (rho - <r_old, M r>) / rho_old, for an M that is not linear and symmetric."""

    def __init__(self, M: Callable[[Tensor], Tensor], flexible: bool = False):
        self.M, self.flexible = M, flexible
        self.rho: Tensor | None = None
        self.r: Tensor | None = None

    def __call__(self, r: Tensor, p: Tensor | None, carry: Tensor, runs: Tensor, iterations: int) -> Tensor:
        """The direction after `iterations`; `p` is the previous one. `runs`, (B, k): the running columns.
        Writes rho, and why and when a column stops, to `carry`, (B, 6, k)."""
        z, old, r_old = self.M(r), self.rho, self.r
        self.rho = rho = _raw_dots(r, z, False).reshape(runs.shape)
        if self.flexible:
            self.r = r
        carry[:, RHO] = rho
        wide = (*r.shape[:-2], 1, r.shape[-1])
        if p is not None and old is not None:
            part = rho if r_old is None else rho - _raw_dots(r_old, z, False).reshape(runs.shape)
            z = torch.addcmul(z, (part / old).reshape(wide), p)
        info = torch.finfo(rho.dtype)
        goes_on = runs & (rho.clamp(info.tiny, info.max) == rho)
        if goes_on.all():
            return z
        why = torch.where(rho > 0, Stop.ROUNDING, Stop.PRECONDITIONER)
        why = torch.where(rho.isfinite(), why, Stop.NON_FINITE)
        stops = runs & ~goes_on
        carry[:, STOP] = torch.where(stops, why, carry[:, STOP])
        carry[:, WHEN] = torch.where(stops, iterations, carry[:, WHEN])
        return torch.where(goes_on.reshape(wide), z, 0)
