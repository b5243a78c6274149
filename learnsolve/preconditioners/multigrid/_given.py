"""The hierarchy of an `AMG`: built by a method, or given by the caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.plain import plain_tensors
from learnsolve.preconditioners.multigrid._aggregation import smoothed_aggregation
from learnsolve.preconditioners.multigrid._classical import ruge_stuben
from learnsolve.preconditioners.multigrid._hierarchy import Hierarchy, limits, of_levels

METHODS = ("smoothed_aggregation", "ruge_stuben")


def hierarchy_for(
    A: CSR, method: str | None, given: Any, max_levels: Any, max_coarse: Any, aggressive: int, symmetric: bool
) -> tuple[Hierarchy, list[CSR] | None]:
    """The checked hierarchy, `given` or built by `method`; in the latter case also the matrices of its
    levels, for the mean of a batch."""
    if given is None:
        method = METHODS[0] if method is None else method
        checks.one_of("AMG", "method", method, METHODS)
        most = limits("AMG", max_levels, max_coarse)
        checks.integer("AMG", "aggressive", aggressive, 0)
        if method == "ruge_stuben":
            levels = ruge_stuben("AMG", A, *most, aggressive=aggressive)
        elif aggressive:
            raise ValueError(
                f"AMG: aggressive belongs to method='ruge_stuben', got {aggressive} for {method!r}"
            )
        else:
            levels = smoothed_aggregation("AMG", A, symmetric, *most)
        return of_levels(levels), levels.operators
    others = {"method": method, "max_levels": max_levels, "max_coarse": max_coarse}
    for name, value in (others | {"aggressive": aggressive or None}).items():
        if value is not None:
            raise ValueError(f"AMG: {name} is for making a hierarchy, one was given; leave one of them out")
    if not isinstance(given, Hierarchy):
        if not hasattr(given, "levels"):
            raise TypeError(
                "AMG: hierarchy must be a Hierarchy, as M.hierarchy of another AMG is, or a pyamg "
                f"MultilevelSolver, got {type(given).__name__}"
            )
        given = _of_solver(given, A)
    if len(given) and given.prolongations[0].shape[0] != A.shape[0]:
        raise ValueError(
            f"AMG: hierarchy must be one of a matrix with {A.shape[0]} rows, its first prolongation has "
            f"shape {given.prolongations[0].shape}"
        )
    for name in ("prolongations", "restrictions"):
        for level, T in enumerate(getattr(given, name)):
            if T is not None:
                checks.same_kind("AMG", f"hierarchy.{name}[{level}].values", T.values, A.values)
    return given, None


def _of_solver(solver: Any, A: CSR) -> Hierarchy:
    """The hierarchy of a pyamg MultilevelSolver."""
    levels = solver.levels[:-1]
    # The radii found by pyamg's own Jacobi smoother, if it has one, to use the same weights.
    radii = [getattr(level.A, "rho_D_inv", None) for level in levels]
    return _carried([(level.P, level.R) for level in levels], radii, A)


def _carried(transfers: Sequence[tuple[Any, Any]], radii: Sequence[Any], A: CSR) -> Hierarchy:
    """SciPy matrices converted to CSRs with A's dtype, index type and device."""
    prolongations, restrictions = [], []
    for number, (P, R) in enumerate((P.tocsr(), R.tocsr()) for P, R in transfers):
        if np.iscomplexobj(P.data):
            raise NotImplementedError(f"AMG: level {number} of hierarchy is complex, which is not supported")
        transposed = abs(R - P.T).sum() == 0
        prolongations.append(_like(P, A))
        restrictions.append(None if transposed else _like(R, A))
    numbers = [None if radius is None else float(radius) for radius in radii]
    return Hierarchy(prolongations, restrictions, numbers)


def _like(S: Any, A: CSR) -> CSR:
    with plain_tensors():
        T = CSR.from_scipy(S, dtype=A.dtype)
        return CSR(T.values, T.pattern.to(dtype=A.pattern.dtype)).to(A.device)
