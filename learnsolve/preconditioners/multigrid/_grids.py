"""Linear interpolation between grids.

Source: Briggs, Henson, McCormick, "A Multigrid Tutorial" (2000), chapter 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse
import torch

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.plain import makes_plain_tensors
from learnsolve.ops.kron import kron

NAME = "Hierarchy.linear"


@makes_plain_tensors
def linear_prolongations(
    shape: int | Sequence[int],
    levels: int | None,
    periodic: bool,
    dtype: torch.dtype,
    device: torch.device | str | None,
) -> list[CSR]:
    """See `Hierarchy.linear`."""
    checks.flag(NAME, "periodic", periodic)
    given = [shape] if isinstance(shape, int) else checks.sequence(NAME, "shape", shape, "ints")
    sizes = [checks.integer(NAME, "shape", n, 1) for n in given]
    most = None if levels is None else checks.integer(NAME, "levels", levels, 2)
    found: list[CSR] = []
    while sizes and all(_coarser(n, periodic) for n in sizes) and (most is None or len(found) + 1 < most):
        P = _axis(sizes[0], periodic, dtype)
        for n in sizes[1:]:
            P = kron(P, _axis(n, periodic, dtype))
        found.append(P if device is None else P.to(device))
        sizes = [n // 2 for n in sizes]
    if not found:
        rule = "even numbers of at least 4" if periodic else "odd numbers of at least 3"
        raise ValueError(f"{NAME}: shape must have {rule} to have a coarser grid, got {shape}")
    return found


def _coarser(n: int, periodic: bool) -> bool:
    return n % 2 == 0 and n >= 4 if periodic else n % 2 == 1 and n >= 5


def _axis(n: int, periodic: bool, dtype: torch.dtype) -> CSR:
    coarse = np.arange(n // 2)
    center = 2 * coarse + (0 if periodic else 1)
    rows = np.concatenate((center - 1, center, center + 1)) % n
    values = np.repeat((0.5, 1.0, 0.5), n // 2)
    S = scipy.sparse.coo_array((values, (rows, np.tile(coarse, 3))), shape=(n, n // 2))
    return CSR.from_scipy(S.tocsr(), dtype=dtype)
