"""The grids of a multigrid method: how vectors go from one to the next.

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
    restrictions : as many; a CSR of shape (n_(l + 1), n_l), or None for the transpose of the prolongation.
        All None if not given
    radii : estimates of the spectral radius of D^-1 A on each level, None where it is to be found

    Raises
    ------
    ValueError
        if restrictions or radii are not as many as the prolongations, or shapes do not follow one another.
    TypeError
        if one of them is not a CSR.

    Notes
    -----
    `AMG` is differentiable in prolongations and restrictions that have a graph or require grad. Their values
    may have batch axes, (..., nnz), which broadcast with the matrix's: a cycle for each.

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
        self.prolongations = tuple(prolongations)
        count = len(self.prolongations)
        self.restrictions = (None,) * count if restrictions is None else tuple(restrictions)
        self.radii = (None,) * count if radii is None else tuple(radii)
        for name, given in (("restrictions", self.restrictions), ("radii", self.radii)):
            if len(given) != count:
                raise ValueError(
                    f"Hierarchy: {name} must be as many as the prolongations, {count}, got {len(given)}"
                )
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
        """Unknowns of each level but the coarsest, and of that."""
        last = tuple(P.shape[1] for P in self.prolongations[-1:])
        return tuple(P.shape[0] for P in self.prolongations) + last

    @property
    def batch_shape(self) -> torch.Size:
        """That of the transfers, broadcast."""
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
        r"""Nodes with strong connections are joined to aggregates, one coarse unknown each; the piecewise
        constant interpolation T is smoothed by a step of Jacobi's method, :math:`P = (I - \omega D^{-1} A) T`
        with :math:`\omega = (4/3) / \rho(D^{-1} A)`. What `AMG` makes if it is not told otherwise.

        Parameters
        ----------
        A : CSR, shape (n, n); the mean of a batch counts
        strength : "symmetric", :math:`a_{ij}^2 \ge \theta^2 |a_{ii} a_{jj}|`; or "evolution", by how errors
            spread: for strong anisotropy that the grid does not follow
        theta : float in [0, 1), of "symmetric"
        near_null : Tensor, shape (n, k), vectors with small A v: as many unknowns for each aggregate. A
            constant if not given; for elasticity the rigid body motions
        block : rows of one node, which stay together
        symmetric : bool, compared if not given; else restrictions are made of A^T
        max_levels, max_coarse : int >= 1, most levels, most unknowns of the coarsest

        Raises
        ------
        ValueError, TypeError
            if arguments do not match one another.

        Notes
        -----
        There is no gradient: values choose. The same bits for any number of threads. Cost: O(nnz) for each
        level, most of it for the two products of the next matrix, whose plans stay for refreshes.

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
        r"""Coarse points are points on which many others depend; each fine one is interpolated from coarse
        ones that it is strongly connected to, :math:`|a_{ij}| \ge \theta \max_k |a_{ik}|`. What `AMG` makes
        with ``method="ruge_stuben"``.

        Parameters
        ----------
        A : CSR, shape (n, n); the mean of a batch counts
        theta : float in [0, 1)
        second_pass : bool, whether any two strongly connected fine points get a coarse point in common
        interpolation : "classical" (docs/preconditioners.md has the formula), or "extended+i", from coarse
            points at distance two as well
        max_entries : int >= 1, of a row for "extended+i"; 4 if not given
        aggressive : int >= 0, levels, from the finest on, whose coarse points are split once more and
            interpolate in several passes: less memory; 1 suits three dimensions
        max_levels, max_coarse : int >= 1, most levels, most unknowns of the coarsest

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
        r"""Linear interpolation on grids of which every other point is on the next: [1/2, 1, 1/2] on each
        axis, bilinear in two dimensions.

        Parameters
        ----------
        shape : points on each axis, numbered as `problems.poisson` does: :math:`2^k - 1`, of which those with
            odd numbers (from zero) are coarse, so that all neighbors are inside or on a Dirichlet boundary;
            with `periodic` even, and the even ones are coarse
        levels : grids at most, at least 2; until an axis has 3 points (periodic: 4) or fewer if not given

        Raises
        ------
        ValueError
            if the grid has no coarser one.

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
        """Others on the same levels, with a graph or not; a restriction that was the transpose remains it,
        if `restrictions` are not given."""
        return Hierarchy(
            prolongations, self.restrictions if restrictions is None else restrictions, self.radii
        )

    def to(self, *args: Any, **keywords: Any) -> Hierarchy:
        """In another dtype or on another device, as `CSR.to`."""
        return self.each(lambda T: T.to(*args, **keywords))

    def each(self, function: Callable[[CSR], CSR]) -> Hierarchy:
        """With `function` of each transfer in its place."""
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
