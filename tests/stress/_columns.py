"""Columns beside others against the same columns alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import learnsolve as ls
from learnsolve.solvers.core import advance
from learnsolve.solvers.options import KRYLOV

from ._systems import one_matrix, pattern, place

LEAST_SQUARES = ("lsqr", "lsmr")


def beside(seed: int, counts: Counter) -> Iterator[str]:
    """1 to 33 columns of a system for which the method is made: each gets what it gets alone, to the bit
    where columns have loops of their own, also in tiles, which large matrices have."""
    rng = np.random.default_rng((seed, 33))
    name = str(rng.choice((*KRYLOV, *LEAST_SQUARES, "jacobi", "chebyshev")))
    n, k = int(rng.choice([3, 8, 20, 30])), int(rng.integers(1, 34))
    P = pattern(n, float(rng.choice([0.15, 0.5])), int(rng.integers(3)))
    rows, places = place(P)
    mask = np.zeros((n, n), bool)
    mask[rows, places] = True
    kind = "nonsymmetric" if name in ("bicgstab", "gmres", "fgmres", *LEAST_SQUARES) else "spd"
    D = one_matrix(kind, mask, rng)
    A = ls.CSR(torch.as_tensor(D[rows, places]), P)
    b = torch.as_tensor(rng.standard_normal((n, k)) * (rng.random(k) > 0.1))
    x0 = torch.as_tensor(rng.standard_normal((n, k))) if rng.random() < 0.3 else None
    keywords: dict[str, Any] = {"atol": 1e-10, "btol": 1e-10} if name in LEAST_SQUARES else {"rtol": 1e-8}
    M = str(rng.choice(["none", "Jacobi", "ILU0"])) if name in KRYLOV else "none"
    if name == "jacobi":
        keywords = {"iterations": int(rng.integers(1, 12))}
    elif name == "chebyshev":
        low, *_, high = np.linalg.eigvalsh((D + D.T) / 2)
        keywords |= {"lmin": low, "lmax": high}
    elif M != "none":
        symmetric = name in ("cg", "fcg", "minres") and M == "ILU0"
        keywords["M"] = getattr(ls.preconditioners, "IC0" if symmetric else M)(A)
    solve, told = getattr(ls.solvers, name), f"{name}, {k} columns, n = {n}, M {M}, beside({seed})"
    rows_of_tiles = 1 if rng.random() < 0.5 else advance._MANY_ROWS
    with patch.multiple(advance, _MANY_ROWS=rows_of_tiles, _ROWS=rows_of_tiles):
        block = solve(A, b, x0, **keywords)
    counts["columns"] += k
    exact = (name == "cg" and k < 4) or (name in KRYLOV and block.execution == "compiled" and name != "cg")
    for j in range(k):
        one = solve(A, b[:, j].contiguous(), None if x0 is None else x0[:, j].contiguous(), **keywords)
        x, y = block.x[:, j], one.x
        if name != "jacobi" and block.statuses[j] is not one.status:
            yield f"{told}: column {j} is {block.statuses[j].name}, alone {one.status.name}"
        tolerance = 0 if exact else 1e-13 if name == "jacobi" else 1e-5
        if not ((x - y).abs().max() <= tolerance * y.abs().max()):
            yield f"{told}: column {j} is off by {(x - y).abs().max():.2g} of {y.abs().max():.2g}"
        tail = block.residual_norms[one.iterations :, j]
        if not bool((tail - tail[0] == 0).all()) and exact:
            yield f"{told}: the history of column {j} goes on after its stop"
