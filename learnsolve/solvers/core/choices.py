"""The methods that `ls.solve` tries for a matrix, in order, and the limit of each attempt.

Costs are counted in flops of a direct solve (`direct_cost`). All attempts before the direct solve together
take at most about half of its time, so that `ls.solve` takes little longer than the best method, iterative or
direct. The rule uses the matrix, the number of columns of b and residual norms, but never a clock.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, as_numpy
from learnsolve.matrix.plain import numbers
from learnsolve.ops.core.direct.choice import expected
from learnsolve.ops.core.symmetry import symmetric_pattern, symmetry
from learnsolve.ordering import reverse_cuthill_mckee
from learnsolve.preconditioners import IC0, ILU0, MIC0, Jacobi
from learnsolve.solvers.solution import Status

FACTORS = 400  # flops in the time that SuperLU spends on the structure of an entry of the factors
# Measured for a new pattern, in flops of SuperLU: per entry of A, per entry of the factors, per flop.
LIBRARIES = {"superlu": (0, FACTORS, 1.0), "pardiso": (5_000, 200, 0.12), "cholmod": (2_500, 200, 0.25)}
DIRECT = 8e7  # 8 ms: below this, start with a direct solve, which cannot miss a tolerance
LAST_RESORT = 1e12  # 100 s, or some gigabytes of factors: no direct solve above this
SHARE = 0.65  # of a direct solve, for all attempts before it
ENTRY = 5  # flops in the time of an entry in a product with A
# Measured cost of an iteration in products with A: without M or with Jacobi, and with triangular solves.
PLAIN = {"cg": 1.0, "minres": 1.5, "bicgstab": 2.0}
TRIANGULAR = {"cg": 2.5, "bicgstab": 8.0}
SETUP = 60  # an incomplete factor of a new pattern, likewise: 70 for 10^4 rows, 20 to 40 for 10^6
PROBE = 30  # products before a direct solve is estimated, which takes as long
QUICK = {"cg": 145, "bicgstab": 125}  # iterations with Jacobi's M, before an incomplete factor is made
SAFE = 60  # such iterations where ILU(0) is stable, as A is diagonally dominant
FEW = 20  # fewer iterations than this are not worth starting
FIRST = 1_000  # iterations of bicgstab before gmres, where a direct solve is not an option
SHIFTS = (0.0, 1e-3, 1e-2, 1e-1, 1.0)  # of the diagonal, relative, for incomplete factors


class Choice(NamedTuple):
    method: str
    M: str  # the name of the preconditioner, or "given", or "no M"
    why: str
    maxiter: int | None = None


class Ending(NamedTuple):
    """How an attempt ended, and the iterations that it would still have needed: at least `least` if the norms
    keep falling at the same rate, at most `most` if they fall as a power of the iterations."""

    status: Status = Status.MAX_ITERATIONS
    least: float = 0.0
    most: float = torch.inf


NOTHING_YET = Ending()


def choices(A: CSR, b: Tensor, M: Any, singular: bool) -> Generator[Choice, Ending, None]:
    """The choices in order; `send` receives the ending of each."""
    m, n = A.shape
    if m != n:
        yield Choice("lsqr", "no M" if isinstance(M, str) else "given", f"A is {m} x {n}")
        return
    cost, spent, ending = torch.inf, 0.0, NOTHING_YET
    columns = max(b.shape[-1], 1) if b.dim() > 1 else 1
    product, setup = ENTRY * max(A.nnz, 1) * columns, SETUP / columns
    if A.device.type == "cpu" and not singular:
        if FACTORS * A.nnz > max(DIRECT / 4, FEW * product):  # a lower bound of a direct solve
            ending, spent = (yield from _iterations(A, M, PROBE, setup)), PROBE
            if ending.most <= 2 * setup:
                more = PROBE + 2 * setup
                ending, spent = (yield from _iterations(A, M, more, setup, PROBE, ending)), more
        cost = direct_cost(A)
    products = SHARE * cost / product if cost <= LAST_RESORT else torch.inf
    cheap = isinstance(M, str) and (cost <= DIRECT or products < FEW)
    if not cheap:
        yield from _iterations(A, M, products, setup, spent, ending)
    if cost <= LAST_RESORT:
        why = "a factorization is cheap" if cheap else "iterations take longer"
        if (yield Choice("direct", "no M", why)).status is Status.BREAKDOWN:  # A is singular
            yield from _iterations(A, M, torch.inf, setup)


def _iterations(
    A: CSR, M: Any, products: float, setup: float, spent: float = 0.0, ending: Ending = NOTHING_YET
) -> Generator[Choice, Ending, Ending]:
    """Iterative methods within the cost of so many products with A, of which an incomplete factor takes
    `setup`; `spent` were used by an attempt that ended with `ending`."""
    method, plain = fitting(A)
    incomplete = isinstance(M, str) and plain == "Jacobi" and A.device.type == "cpu"
    plain = plain if isinstance(M, str) else "given"
    if method != "minres" and ending.status is not Status.INDEFINITE:
        # A limit only if a direct solve or gmres follows.
        most = FIRST if method == "bicgstab" and products == torch.inf else torch.inf
        limit, rest = min((products - spent) / PLAIN[method], most), 0.0
        if incomplete:
            quick = SAFE if method == "bicgstab" and _dominant(A) else QUICK[method]
            if method == "cg" and ending.least > setup:
                quick = 0  # a factor saves more than it costs
            quick = max(min(quick - spent / PLAIN[method], limit), 0)
            rest = (products - spent - quick * PLAIN[method] - setup) / TRIANGULAR[method]
            limit = quick if rest >= FEW else limit
        why = "A is symmetric, its diagonal positive" if method == "cg" else "A is not symmetric"
        if limit >= 1:
            ending = yield Choice(method, plain, why if not spent else "more iterations", _limit(limit))
        if rest >= FEW and ending.status is not Status.INDEFINITE:
            plain = factor(A, method)
            ending = yield Choice(method, plain, "these are many iterations", _limit(min(rest, most)))
    if method == "bicgstab" and products == torch.inf:
        yield Choice("gmres", plain, "it does not break down")
    limit = (products - spent) / PLAIN["minres"]
    if (method == "minres" and limit >= 1) or (ending.status is Status.INDEFINITE and limit > FEW):
        yield Choice("minres", "no M", "A is symmetric and may be indefinite", _limit(limit))
    return ending


def _limit(iterations: float) -> int | None:
    return None if iterations == torch.inf else max(int(iterations), 1)


def fitting(A: CSR) -> tuple[str, str]:
    """An iterative method, and an M without setup cost."""
    diagonal, symmetric = numbers(A.diagonal()), symmetry("solve", A, None)
    if symmetric:
        return ("cg", "Jacobi") if bool((diagonal.real > 0).all()) else ("minres", "no M")
    return "bicgstab", "Jacobi" if bool((diagonal != 0).all()) else "no M"


def factor(A: CSR, method: str) -> str:
    """The incomplete factor to use with `method`."""
    if method != "cg":
        return "ILU0"
    return "MIC0" if _modified(A) else "IC0"


def _dominant(A: CSR) -> bool:
    """|a_ii| >= the sum of the |a_ij|, j != i, but for rounding, by rows or by columns."""
    size = A.with_values(numbers(A.values).abs())
    twice = (2 + 64 * torch.finfo(A.dtype).eps) * size.diagonal()
    return any(bool((twice >= size.sum(dim)).all()) for dim in (1, 0))


def _modified(A: CSR) -> bool:
    """Whether MIC(0) exists and is better than IC(0).

    If A is diagonally dominant and a_ij <= 0 off the diagonal, its pivots are at least a_ii minus the |a_ij|
    of earlier columns. Where that is almost zero in 4 to 16 % of the rows (coefficients that jump, graphs in
    random order) MIC(0) needed up to 60 times the iterations of IC(0); the last row of a Laplacian does no
    harm.
    """
    P, values, diagonal = A.pattern, numbers(A.values), numbers(A.diagonal())
    if values.is_complex():  # there is no complex MIC(0)
        return False
    if bool(((values > 0) & (P.row_indices != P.col_indices)).any()) or not _dominant(A):
        return False
    least = diagonal + A.with_values(torch.where(P.row_indices > P.col_indices, values, 0)).sum(1)
    return bool(((least < 0.01 * diagonal).sum(-1) <= 0.01 * A.shape[0]).all())


def preconditioner(name: str, A: CSR, M: Any) -> tuple[Any, str]:
    """M and its description."""
    if name == "no M":
        return None, ""
    if name == "given":
        return M, "" if M is None else " with the given M"
    plain = A.with_values(numbers(A.values))
    if name == "Jacobi":
        return Jacobi(plain), " with Jacobi"
    make: Any = {"IC0": IC0, "MIC0": MIC0, "ILU0": ILU0}[name]
    for shift in SHIFTS:
        try:
            factor_M = make(plain, shift=shift)
        except ValueError:  # a pivot is not positive, or zero
            continue
        return factor_M, f" with {name}" + (f", shifted by {shift:g}" if shift else "")
    return Jacobi(plain), " with Jacobi"


def direct_cost(A: CSR, library: str | None = None) -> float:
    """The cost of `spsolve` with A on the host, by the given library or the default one, in flops of SuperLU
    (about 1e-10 s each). O(nnz), once per pattern. Accurate within a factor of three on meshes; too large on
    trees and on graphs with few cycles.

    In reverse Cuthill-McKee order the envelope of A + A^T has rows of w entries, about the size of the
    separators of the graph. A band of this width needs 2 n w entries and n w^2 flops. An order that reduces
    fill leaves at most about 8 entries per nonzero, and 10 (w / n)^1/2 of the flops: n^1.5 in the plane.
    """
    entries, flops = A.pattern._planned(_direct_cost)
    if not entries or not A.values.numel():
        return 0.0
    kind = "lu"
    if library is None:
        kind, library = expected(A.pattern, numbers(A.values).reshape(-1, A.nnz)[0])
    of_A, of_factors, of_flops = LIBRARIES[library]
    both = 2 if kind == "lu" and library != "superlu" else 1  # L and U; SuperLU has no other kind
    return of_A * A.nnz + both * (of_factors * entries + of_flops * flops)


def _direct_cost(P: SparsityPattern) -> tuple[float, float]:
    """Entries and flops."""
    n = P.shape[0]
    sides = [P] if symmetric_pattern(P) else [P, P.T]
    if n == 0 or not all(np.diff(as_numpy(side.crow_indices)).all() for side in sides):
        return 0.0, 0.0  # no factor of an empty row
    place = np.empty(n, dtype=np.int64)
    place[as_numpy(reverse_cuthill_mckee(P))] = np.arange(n)
    first = place
    for side in sides:
        of_rows = np.minimum.reduceat(place[as_numpy(side.col_indices)], as_numpy(side.crow_indices)[:-1])
        first = np.minimum(first, of_rows)
    width = (place - first).astype(np.float64)
    entries = min(2 * width.sum() + n, 8 * P.nnz)
    flops = np.square(width).sum()
    by_order = min(2.0, 10 * (flops / n) ** 0.25 / n**0.5)
    return float(entries), float(by_order * flops)
