"""The grids of a multigrid method: transfers between grids.

Source: Trottenberg, Oosterlee, Schueller, "Multigrid" (2001), appendix A (K. Stueben); Vanek, Mandel,
Brezina, "Algebraic multigrid by smoothed aggregation" (1996).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.ops.core.symmetry import symmetry
from learnsolve.preconditioners.multigrid._aggregation import STRENGTHS, candidates, smoothed_aggregation
from learnsolve.preconditioners.multigrid._classical import INTERPOLATIONS, THETA, ruge_stuben
from learnsolve.preconditioners.multigrid._grids import linear_prolongations
from learnsolve.preconditioners.multigrid._level import Levels


class Hierarchy:
    """Prolongations, restrictions and spectral radii of all levels but the coarsest.

    Parameters
    ----------
    prolongations : CSRs; the l-th has shape (n_l, n_(l + 1)), n_0 rows of the matrix
    restrictions : as many CSRs of shape (n_(l + 1), n_l), or None (default) for the transpose of the
        prolongation
    radii : estimates of the spectral radius of D^-1 A on each level, None: computed

    Raises
    ------
    ValueError
        if the numbers of restrictions, radii and prolongations differ, or shapes do not match.
    TypeError
        if a prolongation or restriction is not a CSR.

    Notes
    -----
    `AMG` is differentiable in prolongations and restrictions that have a graph or require grad. Their values
    may have batch axes, (..., nnz), which broadcast with the matrix's: one cycle each.

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

        def as_many(name: str, given: Any) -> tuple[Any, ...]:
            given = (None,) * count if given is None else checks.sequence("Hierarchy", name, given)
            if len(given) != count:
                raise ValueError(
                    f"Hierarchy: {name} must be as many as the prolongations, {count}, got {len(given)}"
                )
            return given

        self.restrictions, self.radii = as_many("restrictions", restrictions), as_many("radii", radii)
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
        A: CSR,
        *,
        strength: str = "symmetric",
        theta: float = 0.0,
        near_null: Tensor | None = None,
        block: int = 1,
        symmetric: bool | None = None,
        max_levels: int = 10,
        max_coarse: int = 100,
    ) -> Hierarchy:
        r"""Build by smoothed aggregation, the default of `AMG`. Strongly connected nodes form aggregates, one
        coarse unknown each; the piecewise constant interpolation T is smoothed by a step of Jacobi's method,
        :math:`P = (I - \omega D^{-1} A) T` with :math:`\omega = (4/3) / \rho(D^{-1} A)`.

        Parameters
        ----------
        A : CSR, shape (n, n); of a batch the mean is used
        strength : "symmetric", :math:`a_{ij}^2 \ge \theta^2 |a_{ii} a_{jj}|`; or "evolution", based on the
            spread of errors, for strong anisotropy that is not aligned with the grid
        theta : float in [0, 1), for "symmetric"
        near_null : Tensor, shape (n, k), vectors with small A v: k unknowns per aggregate. Default: a
            constant; for elasticity pass the rigid body modes
        block : the number of rows per node, which stay together
        symmetric : bool, whether A is symmetric; default: determined. If False, restrictions come from A^T
        max_levels, max_coarse : int >= 1, the maximum number of levels, and of unknowns of the coarsest

        Raises
        ------
        ValueError, TypeError
            if arguments do not match one another.

        Notes
        -----
        There is no gradient, since values determine the choice. The same bits for any number of threads.
        Cost: O(nnz) per level, mostly for the two products of the next matrix, with cached plans.

        Examples
        --------
        >>> import learnsolve as ls
        >>> A = ls.problems.poisson((64, 64))
        >>> ls.preconditioners.Hierarchy.smoothed_aggregation(A)
        Hierarchy(4096, 704, 80)
        """
        function = "Hierarchy.smoothed_aggregation"
        checks.matrix(function, "A", A)
        checks.dtype(function, "A.values", A.values)
        checks.one_of(function, "strength", strength, STRENGTHS)
        theta = _part(function, theta)
        block = checks.integer(function, "block", block, 1)
        if strength == "evolution" and (theta or block > 1):
            raise ValueError(
                f"{function}: theta and block belong to strength='symmetric', got theta={theta} and "
                f"block={block}"
            )
        if A.shape[0] % block:
            raise ValueError(f"{function}: block must divide A's {A.shape[0]} rows, got {block}")
        vectors = None if near_null is None else candidates(function, A, near_null)
        if strength == "evolution" and vectors is not None and (vectors.shape[1] > 1 or not vectors.all()):
            raise ValueError(
                f"{function}: strength='evolution' needs a near_null of one vector without zeros, got "
                f"{vectors.shape[1]} with {(vectors == 0).sum()} zeros; use strength='symmetric'"
            )
        same = symmetry(function, A, symmetric)
        most = limits(function, max_levels, max_coarse)
        options: dict[str, Any] = {"strength": strength, "theta": theta, "near_null": vectors, "block": block}
        return of_levels(smoothed_aggregation(function, A, same, *most, **options))

    @classmethod
    def ruge_stuben(
        cls,
        A: CSR,
        *,
        theta: float = THETA,
        second_pass: bool = False,
        interpolation: str = "classical",
        max_entries: int | None = None,
        aggressive: int = 0,
        max_levels: int = 10,
        max_coarse: int = 100,
    ) -> Hierarchy:
        r"""Build by classical coarsening, ``method="ruge_stuben"`` of `AMG`. Coarse points are points on
        which many others depend; each fine point is interpolated from coarse points to which it is strongly
        connected, :math:`|a_{ij}| \ge \theta \max_k |a_{ik}|`.

        Parameters
        ----------
        A : CSR, shape (n, n); of a batch the mean is used
        theta : float in [0, 1)
        second_pass : bool, whether any two strongly connected fine points must share a coarse point
        interpolation : "classical" (formula: docs/preconditioners.md), or "extended+i", also from coarse
            points at distance two
        max_entries : int >= 1, entries per row for "extended+i"; default 4
        aggressive : int >= 0, the number of finest levels whose coarse points are split once more and which
            use multipass interpolation: less memory; 1 suits three dimensions
        max_levels, max_coarse : int >= 1, the maximum number of levels, and of unknowns of the coarsest

        Raises
        ------
        ValueError, TypeError
            if arguments are invalid.

        Notes
        -----
        There is no gradient. The same bits for any number of threads. Source: Ruge, Stueben, "Algebraic
        multigrid" (1987); De Sterck, Falgout, Nolting, Yang, Numer. Linear Algebra Appl. 15 (2008),
        doi:10.1002/nla.559.

        Examples
        --------
        >>> import learnsolve as ls
        >>> ls.preconditioners.Hierarchy.ruge_stuben(ls.problems.poisson((32, 32)))
        Hierarchy(1024, 512, 133, 32)
        """
        function = "Hierarchy.ruge_stuben"
        checks.matrix(function, "A", A)
        checks.dtype(function, "A.values", A.values)
        checks.flag(function, "second_pass", second_pass)
        checks.one_of(function, "interpolation", interpolation, INTERPOLATIONS)
        if interpolation == "classical" and max_entries is not None:
            raise ValueError(
                f"{function}: max_entries belongs to interpolation='extended+i', got {max_entries} for "
                "'classical'; leave it out"
            )
        entries = checks.integer(function, "max_entries", 4 if max_entries is None else max_entries, 1)
        entries = 0 if interpolation == "classical" else entries
        aggressive = checks.integer(function, "aggressive", aggressive, 0)
        most = limits(function, max_levels, max_coarse)
        theta = _part(function, theta)
        return of_levels(ruge_stuben(function, A, *most, theta, second_pass, entries, aggressive))

    @classmethod
    def linear(
        cls,
        shape: int | Sequence[int],
        *,
        levels: int | None = None,
        periodic: bool = False,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> Hierarchy:
        r"""Linear interpolation on grids where every other point is on the next grid: [1/2, 1, 1/2] on each
        axis, bilinear in two dimensions.

        Parameters
        ----------
        shape : points per axis, numbered as in `problems.poisson`: :math:`2^k - 1`, of which the odd ones
            (from zero) are coarse, so that all neighbors are inside or on a Dirichlet boundary; with
            `periodic` even, and the even ones are coarse
        levels : the maximum number of grids, at least 2; default: until an axis has 3 points (periodic: 4)

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


def limits(function: str, max_levels: Any, max_coarse: Any) -> tuple[int, int]:
    levels = checks.integer(function, "max_levels", 10 if max_levels is None else max_levels, 1)
    return levels, checks.integer(function, "max_coarse", 100 if max_coarse is None else max_coarse, 1)


def _part(function: str, theta: Any) -> float:
    theta = checks.number(function, "theta", theta)
    if not 0 <= theta < 1:
        raise ValueError(f"{function}: theta must be at least 0 and less than 1, got {theta}")
    return theta


def of_levels(levels: Levels) -> Hierarchy:
    return Hierarchy(*zip(*levels.steps, strict=True)) if levels.steps else Hierarchy([])
