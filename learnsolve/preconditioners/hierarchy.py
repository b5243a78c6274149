"""The grids of a multigrid method: coarsening, and transfers between grids.

Sources: Trottenberg, Oosterlee, Schueller, "Multigrid" (2001), appendix A (K. Stueben; A.7 for aggressive
coarsening); J. W. Ruge, K. Stueben, "Algebraic multigrid", in S. F. McCormick (ed.), "Multigrid Methods"
(1987); Vanek, Mandel, Brezina, "Algebraic multigrid by smoothed aggregation for second and fourth order
elliptic problems", Computing 56 (1996), doi:10.1007/BF02238511; Briggs, Henson, McCormick, "A Multigrid
Tutorial" (2000), chapter 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from learnsolve import _analysis
from learnsolve.arguments import Count, Index, at_least, within
from learnsolve.matrix import checks
from learnsolve.matrix.cache import makes_plain_tensors, plain_tensors
from learnsolve.matrix.checks import AnyTensor, RealDtype, RealSquareMatrix
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import to_numpy
from learnsolve.ops.arithmetic import plain_values
from learnsolve.ops.blocks import kron
from learnsolve.ops.sparse_products import galerkin, spgemm
from learnsolve.ops.structure import (
    reuse_inverse_diagonal,
    scale_rows,
    symmetric_pattern,
    symmetry,
    transpose,
)
from learnsolve.preconditioners.base import check_finite, finite

# Strong connections, determined by how an error at one point spreads.
#
# Source: L. N. Olson, J. Schroder, R. S. Tuminaro, "A new perspective on strength measures in algebraic
# multigrid", Numer. Linear Algebra Appl. 17 (2010), doi:10.1002/nla.669.


_DROP = 4.0  # a connection is strong up to this multiple of the best measure in its row


def evolution(A: CSR, b: torch.Tensor, radius: float) -> CSR:
    r"""1 for the strong entries of A and of A^T, on A's pattern, else 0.

    Two steps :math:`z = (I - D^{-1} A / \rho)^2 \delta_i` of Jacobi's method, on the pattern: j is close to i
    if z_j agrees with the candidate b scaled to agree in i, that is, :math:`|1 - z_i b_j / (b_i z_j)|` is
    small.
    """
    rows, columns = A.pattern.row_indices.long(), A.pattern.col_indices.long()
    own = rows == columns
    jacobi = scale_rows(A, -1 / (radius * A.diagonal()))
    jacobi = jacobi.with_values(jacobi.values + own)
    z = spgemm(jacobi, jacobi, mask=A.pattern)
    here = z.diagonal()[rows] / b[rows]
    there = z.values / b[columns]
    measure = torch.where((here * there > 0) & ~own, (1 - here / there).abs(), torch.inf)
    best = measure.new_full((A.shape[0],), torch.inf).scatter_reduce(0, rows, measure, "amin")
    strong = A.with_values(((measure <= _DROP * best[rows]) & measure.isfinite()).to(A.dtype))
    if not symmetric_pattern(A.pattern):
        return strong
    return strong.with_values(torch.maximum(strong.values, transpose(strong).values))


class Step(NamedTuple):
    """From one level to the next: prolongation, restriction if it is not the transpose, rho(D^-1 A) if
    known."""

    P: CSR
    R: CSR | None = None
    radius: float | None = None


class Levels(NamedTuple):
    steps: list[Step]
    operators: list[CSR]  # A and the coarse matrices: one more than steps


def coarsened(
    function: str, A: CSR, max_levels: int, max_coarse: int, step: Callable[[CSR], Step | None]
) -> Levels:
    """The levels of the `mean` of A, by `step(matrix)`, which is None if there is nothing to coarsen."""
    found = Levels([], [mean(function, A)])
    with plain_tensors():
        while len(found.operators) < max_levels and (A := found.operators[-1]).shape[0] > max_coarse:
            level = f"{function}, level {len(found.steps)}" if found.steps else function
            check_finite(level, A)
            reuse_inverse_diagonal(A, level)  # for its ValueError
            made = step(A)
            if made is None:
                break
            found.steps.append(made)
            found.operators.append(coarse_matrix(made.P, made.R, A))
    return found


def coarse_matrix(P: CSR, R: CSR | None, A: CSR) -> CSR:
    return galerkin(P, A) if R is None else spgemm(R, spgemm(A, P))


def mean(function: str, A: CSR) -> CSR:
    """The mean of a batch of square matrices, or the one matrix, detached from the autograd graph."""
    values = plain_values(A.values)
    if values.shape != A.values.shape:
        raise ValueError(
            f"{function}: inside torch.func.vmap there is not one matrix to analyze. Make an AMG outside, "
            "and pass hierarchy=M.hierarchy"
        )
    with plain_tensors():
        return CSR(values.flatten(0, -2).mean(0) if values.dim() > 1 else values, A.pattern)


def arrays(A: CSR) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The arrays of one matrix on the host, for the compiled functions."""
    P = A.pattern
    return to_numpy(P.crow_indices), to_numpy(P.col_indices), to_numpy(A.values.double())


def diagonal(A: CSR) -> np.ndarray:
    return to_numpy(A.diagonal().double())


def wrap_arrays(A: CSR, made: tuple[np.ndarray, np.ndarray, np.ndarray], columns: int) -> CSR:
    """A matrix with A's dtype and device from the result of a compiled function."""
    ptr, idx, values = (torch.from_numpy(a) for a in made)
    pattern = type(A.pattern)._construct(ptr.to(A.device), idx.to(A.device), (len(ptr) - 1, columns))
    return CSR(values.to(A.device, A.dtype), pattern)


def spectral_radius(A: CSR, symmetric: bool) -> float:
    """An estimate of rho(D^-1 A) for the `mean` of A, at most the largest row sum of magnitudes.

    For a symmetric A with a positive diagonal, Lanczos's method in the inner product of D: the distance of an
    eigenvalue from its estimate is at most the residual, which is added so that smoothers do not diverge.
    Three steps for large matrices, since more did not change iteration counts. Otherwise 30 steps of
    Arnoldi's method, accurate to about a percent.
    """
    A = mean("AMG", A)
    with plain_tensors():
        d = diagonal(A)
    if symmetric and (d > 0).all():
        H, k, bound = _analysis.arnoldi(*arrays(A), d, 15 if A.nnz < 2**16 else 3, True)
        ritz, Y = np.linalg.eigh(H[:k, :k], UPLO="L")
        return float(min(ritz[-1] + abs(H[k, k - 1] * Y[-1, -1]), bound))
    H, k, bound = _analysis.arnoldi(*arrays(A), d, 30, False)
    return float(min(abs(np.linalg.eigvals(H[:k, :k])).max(), bound))


OMEGA = 4 / 3  # of the Jacobi step that smooths a prolongation
Part = Annotated[float, within("0 <= {} < 1", lambda value: 0 <= value < 1, 1.0)]


def smoothed_aggregation(
    function: str,
    A: CSR,
    symmetric: bool,
    max_levels: int,
    max_coarse: int,
    *,
    strength: str = "symmetric",
    theta: float = 0.0,
    near_null: np.ndarray | None = None,
    block: int = 1,
) -> Levels:
    """The levels of A. A restriction is the transpose of the prolongation if A is `symmetric`, otherwise of
    the prolongation for A^T."""
    B = np.ones((A.shape[0], 1)) if near_null is None else near_null
    bases, size = [B] * (1 if symmetric else 2), block  # for A, and for A^T

    def step(A: CSR) -> Step | None:
        nonlocal bases, size
        radius, measured = None, A
        if strength == "evolution":
            radius = spectral_radius(A, symmetric)
            b = torch.from_numpy(bases[0][:, 0]).to(A.device, A.dtype)
            measured = evolution(A, b, radius)
        of, count = _analysis.aggregate(*arrays(measured), size, theta)
        columns = count * bases[0].shape[1]
        if not 0 < columns < A.shape[0]:
            return None
        radius = radius or spectral_radius(A, symmetric)
        sides = []
        for side, S in enumerate((A,) if symmetric else (A, A.T)):
            T = bases[side].copy()
            bases[side] = _analysis.orthonormalize(of, size, count, T)
            made = _analysis.smoothed_prolongation(*arrays(S), of, size, count, T, OMEGA / radius)
            sides.append(wrap_arrays(A, made, columns))
        size = bases[0].shape[1]
        return Step(sides[0], None if symmetric else sides[1].T, radius)

    return coarsened(function, A, max_levels, max_coarse, step)


def candidates(function: str, A: CSR, near_null: torch.Tensor) -> np.ndarray:
    """The checked near-null vectors."""
    if near_null.dim() != 2 or near_null.shape[0] != A.shape[0] or near_null.shape[1] == 0:
        raise ValueError(
            f"{function}: near_null must have shape ({A.shape[0]}, k), k vectors as columns, got "
            f"{tuple(near_null.shape)}"
        )
    finite(function, "near_null", near_null)
    return np.ascontiguousarray(to_numpy(near_null.detach().double()))


THETA = 0.25  # an entry is strong if it is at least this fraction of the largest in its row
_MULTIPASS = -1  # in place of a number of entries


def ruge_stuben(
    function: str,
    A: CSR,
    max_levels: int,
    max_coarse: int,
    theta: float = THETA,
    second_pass: bool = False,
    most: int = 0,
    aggressive: int = 0,
) -> Levels:
    """The levels of A, with classical interpolation or, for `most` entries per row, extended+i, and on the
    first `aggressive` levels with two splittings and multipass interpolation."""
    left = aggressive

    def step(A: CSR) -> Step | None:
        nonlocal left
        left, twice = left - 1, left > 0
        strong, coarse = _analysis.classical_splitting(*arrays(A), theta, second_pass, twice)
        P = _prolongation(A, strong, coarse, _MULTIPASS if twice else most)
        return None if P is None else Step(P)

    return coarsened(function, A, max_levels, max_coarse, step)


def _prolongation(A: CSR, strong: np.ndarray, coarse: np.ndarray, most: int) -> CSR | None:
    """The prolongation, or None if all points, or none, are coarse."""
    columns = int(coarse.sum())
    if not 0 < columns < A.shape[0]:
        return None
    return wrap_arrays(A, _analysis.interpolation(*arrays(A), diagonal(A), strong, coarse, most), columns)


def interpolation(A: CSR) -> tuple[CSR | None, Tensor]:
    r"""The first prolongation of "ruge_stuben" with both passes of the coarsening, and the coarse points in
    increasing order, or None if all points, or none, are coarse.

    With the strong connections of i to coarse points, C_i, and to fine points that share a strong coarse
    point, F_i, and with :math:`a^-` for entries whose sign differs from the diagonal's (called modified in
    pyamg):

    .. math:: p_{ij} = -\frac{a_{ij} + \sum_{k \in F_i} a_{ik} a^-_{kj} / \sum_{l \in C_i} a^-_{kl}}
                             {\sum_{m \notin C_i \cup F_i} a_{im}}

    The choice depends on values. The entries stay attached to A's autograd graph.

    The second pass ensures that two strongly connected fine points share a strong coarse neighbor. After only
    the first pass, the default of `AMG`, some fine points have no coarse neighbor, and an empty row.
    """
    with plain_tensors():
        S = mean("NeuralAMG", A)
        found, coarse = _analysis.classical_splitting(*arrays(S), THETA, True, False)
        P = _prolongation(S, found, coarse, 0)
        if P is None:
            return None, torch.zeros(0, dtype=torch.long, device=A.device)
        rows, columns = A.pattern.row_indices.long(), A.pattern.col_indices.long()
        strong, is_coarse = (torch.from_numpy(t).to(A.device).bool() for t in (found, coarse))
        strong &= ~is_coarse[rows]
        to_coarse = strong & is_coarse[columns]
        C = A.with_values(to_coarse.to(torch.float32))
        to_fine = strong & ~to_coarse & (spgemm(C, C.T, mask=A.pattern).values > 0)
        points = is_coarse.nonzero().squeeze(1)
    weights = _weights(A, to_coarse, to_fine).index_select(-1, positions(A, P, points))
    return P.with_values(torch.where(is_coarse[P.pattern.row_indices], 1.0, weights)), points


def _weights(A: CSR, to_coarse: Tensor, to_fine: Tensor) -> Tensor:
    """The formula for each entry of A."""
    row, v = A.pattern.row_indices, A.values
    opposite = A.with_values(torch.where(v * A.diagonal()[row] < 0, v, 0))
    sums = spgemm(A.with_values(to_coarse.to(v.dtype)), opposite.T, mask=A.pattern).values
    used = to_fine & (sums.abs() > 1e-15 * v.abs())
    shares = A.with_values(torch.where(used, v / torch.where(used, sums, 1), 0))
    through = spgemm(shares, opposite, mask=A.pattern).values
    rest = A.with_values(torch.where(to_coarse | to_fine, 0, v)).sum(1)[row]
    return -(v + through) / torch.where(to_coarse, rest, 1)


def positions(A: CSR, P: CSR, coarse: Tensor) -> Tensor:
    """Positions of (i, f(c)) in A for the entries (i, c) of P, where f(c) is the coarse point c."""
    return _find(A, P.pattern.row_indices, coarse[P.pattern.col_indices.long()])


def _find(A: CSR, rows: Tensor, columns: Tensor) -> Tensor:
    keys = A.pattern.row_indices.long() * A.shape[1] + A.pattern.col_indices  # increasing
    wanted = rows.long() * A.shape[1] + columns
    at = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
    if not torch.equal(keys[at], wanted):
        raise ValueError("NeuralAMG: A must have an entry for each pair that its interpolation couples")
    return at


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
    given = [shape] if isinstance(shape, int) else checks.sequence(NAME, "shape", shape, "ints")
    sizes = [checks.integer(NAME, "shape", n, 1) for n in given]
    found: list[CSR] = []
    while sizes and all(_coarser(n, periodic) for n in sizes) and (levels is None or len(found) + 1 < levels):
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


class Hierarchy:
    """Prolongations, restrictions and spectral radii of all levels but the coarsest.

    Parameters
    ----------
    prolongations : CSRs. The l-th has shape (n_l, n_(l + 1)), n_0 rows of the matrix
    restrictions : as many CSRs of shape (n_(l + 1), n_l), or None (default) for the transpose of the
        prolongation
    radii : estimates of the spectral radius of D^-1 A on each level, None: computed

    Raises
    ------
    ValueError
        if the numbers of restrictions, radii and prolongations differ, or shapes do not match.
    TypeError
        if a prolongation or restriction is not a real CSR.

    Notes
    -----
    `AMG` is differentiable in prolongations and restrictions that are attached to an autograd graph or
    require grad. Their values may have batch axes, (..., nnz), which broadcast with the matrix's: one cycle
    each.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> P = ls.CSR.from_dense(torch.tensor([[0.5], [1.0], [0.5]], dtype=torch.float64))
    >>> M = ls.preconditioners.AMG(ls.problems.poisson((3,)), hierarchy=ls.preconditioners.Hierarchy([P]))
    >>> M.hierarchy
    Hierarchy(3, 1)
    """

    def __init__(
        self,
        prolongations: Sequence[CSR],
        restrictions: Sequence[CSR | None] | None = None,
        radii: Sequence[float | None] | None = None,
    ):
        self.prolongations = checks.sequence("Hierarchy", "prolongations", prolongations, "CSRs")
        count = len(self.prolongations)

        def match_count(name: str, given: object) -> tuple[Any, ...]:
            given = (None,) * count if given is None else checks.sequence("Hierarchy", name, given)
            if len(given) != count:
                raise ValueError(
                    f"Hierarchy: {name} must be as many as the prolongations, {count}, got {len(given)}"
                )
            return given

        self.restrictions, self.radii = match_count("restrictions", restrictions), match_count("radii", radii)
        for level, (P, R) in enumerate(zip(self.prolongations, self.restrictions, strict=True)):
            for name, T in (("prolongations", P), ("restrictions", R)):
                if T is not None or name == "prolongations":
                    checks.matrix("Hierarchy", f"{name}[{level}]", T)
                    assert T is not None
                    checks.dtype("Hierarchy", f"{name}[{level}].values", T.values)
            if R is not None and R.shape != P.shape[::-1]:
                raise ValueError(
                    f"Hierarchy: restrictions[{level}] must have shape {P.shape[::-1]}, got {R.shape}"
                )
            if level and P.shape[0] != self.prolongations[level - 1].shape[1]:
                raise ValueError(
                    f"Hierarchy: prolongations[{level}] must have as many rows as the one before it has "
                    f"columns, {self.prolongations[level - 1].shape[1]}, got shape {P.shape}"
                )

    @property
    def transfers(self) -> tuple[CSR, ...]:
        """Prolongations, and restrictions that are not their transposes."""
        return tuple(T for T in (*self.prolongations, *self.restrictions) if T is not None)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of unknowns of each level, including the coarsest."""
        last = tuple(P.shape[1] for P in self.prolongations[-1:])
        return tuple(P.shape[0] for P in self.prolongations) + last

    @property
    def batch_shape(self) -> torch.Size:
        """The broadcast batch shape of the transfers."""
        return torch.broadcast_shapes(*(T.batch_shape for T in self.transfers))

    @classmethod
    def smoothed_aggregation(
        cls,
        A: RealSquareMatrix,
        *,
        strength: Literal["symmetric", "evolution"] = "symmetric",
        theta: Part = 0.0,
        near_null: AnyTensor | None = None,
        block: Count = 1,
        symmetric: bool | None = None,
        max_levels: Count = 10,
        max_coarse: Count = 100,
    ) -> Hierarchy:
        r"""Build by smoothed aggregation, the default of `AMG`. Strongly connected nodes form aggregates, one
        coarse unknown each. The piecewise constant interpolation T is smoothed by a step of Jacobi's method,
        :math:`P = (I - \omega D^{-1} A) T` with :math:`\omega = (4/3) / \rho(D^{-1} A)`.

        Parameters
        ----------
        A : CSR, shape (n, n). For a batch the mean is used
        strength : "symmetric", :math:`a_{ij}^2 \ge \theta^2 |a_{ii} a_{jj}|`, or "evolution", based on the
            spread of errors, for strong anisotropy that is not aligned with the grid
        theta : for "symmetric"
        near_null : Tensor, shape (n, k), vectors with small A v: k unknowns per aggregate. Default: a
            constant. For elasticity pass the rigid body modes
        block : the number of rows per node, which stay together
        symmetric : bool, whether A is symmetric. Default: determined. If False, restrictions come from A^T
        max_levels, max_coarse : the maximum number of levels, and of unknowns of the coarsest

        Raises
        ------
        ValueError, TypeError
            if arguments do not match one another.

        Notes
        -----
        There is no gradient, since values determine the choice. Bitwise identical for any number of threads.
        Cost: O(nnz) per level, mostly for the two products of the next matrix, with cached plans.

        Examples
        --------
        >>> import learnsolve as ls
        >>> A = ls.problems.poisson((64, 64))
        >>> ls.preconditioners.Hierarchy.smoothed_aggregation(A)
        Hierarchy(4096, 704, 80)
        """
        function = "Hierarchy.smoothed_aggregation"
        if strength == "evolution":
            for name, value, default in (("theta", theta, 0.0), ("block", block, 1)):
                checks.check_unused(function, name, value, "strength='symmetric'", default)
        if A.shape[0] % block:
            raise ValueError(f"{function}: block must divide A's {A.shape[0]} rows, got {block}")
        vectors = None if near_null is None else candidates(function, A, near_null)
        if strength == "evolution" and vectors is not None and (vectors.shape[1] > 1 or not vectors.all()):
            raise ValueError(
                f"{function}: strength='evolution' needs a near_null of one vector without zeros, got "
                f"{vectors.shape[1]} with {(vectors == 0).sum()} zeros. Use strength='symmetric'"
            )
        same = symmetry(function, A, symmetric)
        options: dict[str, Any] = {"strength": strength, "theta": theta, "near_null": vectors, "block": block}
        return build_hierarchy(smoothed_aggregation(function, A, same, max_levels, max_coarse, **options))

    @classmethod
    def ruge_stuben(
        cls,
        A: RealSquareMatrix,
        *,
        theta: Part = THETA,
        second_pass: bool = False,
        interpolation: Literal["classical", "extended+i"] = "classical",
        max_entries: Count | None = None,
        aggressive: Index = 0,
        max_levels: Count = 10,
        max_coarse: Count = 100,
    ) -> Hierarchy:
        r"""Build by classical coarsening, ``method="ruge_stuben"`` of `AMG`. Coarse points are points on
        which many others depend. Each fine point is interpolated from coarse points to which it is strongly
        connected, :math:`|a_{ij}| \ge \theta \max_k |a_{ik}|`.

        Parameters
        ----------
        A : CSR, shape (n, n). For a batch the mean is used
        theta : the fraction above
        second_pass : whether any two strongly connected fine points must share a coarse point
        interpolation : "classical" (formula: docs/preconditioners.md), or "extended+i", also from coarse
            points at distance two
        max_entries : entries per row for "extended+i". Default 4
        aggressive : the number of finest levels whose coarse points are split once more and which
            use multipass interpolation: less memory; 1 suits three dimensions
        max_levels, max_coarse : the maximum number of levels, and of unknowns of the coarsest

        Notes
        -----
        There is no gradient. Bitwise identical for any number of threads. Source: Ruge, Stueben, "Algebraic
        multigrid" (1987); De Sterck, Falgout, Nolting, Yang, Numer. Linear Algebra Appl. 15 (2008),
        doi:10.1002/nla.559.

        Examples
        --------
        >>> import learnsolve as ls
        >>> ls.preconditioners.Hierarchy.ruge_stuben(ls.problems.poisson((32, 32)))
        Hierarchy(1024, 512, 133, 32)
        """
        function = "Hierarchy.ruge_stuben"
        entries = max_entries or 4
        if interpolation == "classical":
            checks.check_unused(function, "max_entries", max_entries, "interpolation='extended+i'")
            entries = 0
        limits = max_levels, max_coarse
        return build_hierarchy(ruge_stuben(function, A, *limits, theta, second_pass, entries, aggressive))

    @classmethod
    def linear(
        cls,
        shape: int | Sequence[int],
        *,
        levels: Annotated[int, at_least(2)] | None = None,
        periodic: bool = False,
        dtype: RealDtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> Hierarchy:
        r"""Linear interpolation on grids where every other point is on the next grid: [1/2, 1, 1/2] on each
        axis, bilinear in two dimensions.

        Parameters
        ----------
        shape : points per axis, numbered as in `problems.poisson`: :math:`2^k - 1`, of which the odd ones
            (from zero) are coarse, so that all neighbors are inside or on a Dirichlet boundary. With
            `periodic` it must be even, and the even ones are coarse
        levels : the maximum number of grids. Default: until an axis has 3 points (periodic: 4)

        Raises
        ------
        ValueError
            if the grid has no coarser grid.

        Examples
        --------
        >>> import learnsolve as ls
        >>> H = ls.preconditioners.Hierarchy.linear((15, 15))
        >>> H
        Hierarchy(225, 49, 9)
        >>> M = ls.preconditioners.AMG(ls.problems.poisson((15, 15)), hierarchy=H, weight=0.8)
        """
        return cls(linear_prolongations(shape, levels, periodic, dtype, device))

    def with_prolongations(
        self, prolongations: Sequence[CSR], restrictions: Sequence[CSR | None] | None = None
    ) -> Hierarchy:
        """Replace the prolongations, on the same levels. A restriction that was the transpose remains the
        transpose, if `restrictions` are not given."""
        return Hierarchy(
            prolongations, self.restrictions if restrictions is None else restrictions, self.radii
        )

    def to(self, *args: Any, **keywords: Any) -> Hierarchy:
        """Convert to another dtype or device, like `CSR.to`."""
        return self.each(lambda T: T.to(*args, **keywords))

    def each(self, function: Callable[[CSR], CSR]) -> Hierarchy:
        """Apply `function` to each transfer."""
        return Hierarchy(
            [function(P) for P in self.prolongations],
            [None if R is None else function(R) for R in self.restrictions],
            self.radii,
        )

    def __len__(self) -> int:
        return len(self.prolongations)

    def __repr__(self) -> str:
        return f"Hierarchy({', '.join(map(str, self.sizes))})"


def build_hierarchy(levels: Levels) -> Hierarchy:
    return Hierarchy(*zip(*levels.steps, strict=True)) if levels.steps else Hierarchy([])
