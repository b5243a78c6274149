"""Algebraic multigrid: smoothers, and cycles on a hierarchy, differentiable.

Sources: Briggs, Henson, McCormick, "A Multigrid Tutorial" (2000), chapters 3 and 8; and those of
hierarchy.py.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from learnsolve.arguments import Count, Index
from learnsolve.matrix import checks, device_analysis
from learnsolve.matrix.cache import plain_tensors, readable
from learnsolve.matrix.checks import RealSystem
from learnsolve.matrix.csr import CSR
from learnsolve.ops.autograd import needs_graph
from learnsolve.ops.linear_steps import LinearSteps, multiply_rows, product
from learnsolve.ops.products import times
from learnsolve.ops.structure import diagonal, reuse_inverse_diagonal, scale_rows, symmetry
from learnsolve.ops.triangular import Side, solve, tril, triu
from learnsolve.preconditioners.base import Part, Preconditioner, check_numbers
from learnsolve.preconditioners.direct import DirectSolver
from learnsolve.preconditioners.hierarchy import (
    Hierarchy,
    build_hierarchy,
    coarse_matrix,
    ruge_stuben,
    smoothed_aggregation,
    spectral_radius,
)
from learnsolve.preconditioners.relaxation import color_order

# Smoothers of multigrid: one sweep is x <- x + S (b - A x), with S here.
#
# S is symmetric if A is, and the same before and after the coarse correction, so that the cycle is
# symmetric. `transpose` selects the sweep for A^T, with S^T. Each smoother has
#
#     first(b, transpose)      x = S b, the sweep from zero, and b - A x
#     again(x, b, transpose)   x + S (b - A x)
#
# Source: Adams, Brezina, Hu, Tuminaro, "Parallel multigrid smoothing: polynomial versus Gauss-Seidel", J.
# Comput. Phys. 188 (2003), doi:10.1016/S0021-9991(03)00194-3; Saad, "Iterative Methods for Sparse Linear
# Systems" (2003), algorithm 12.1 (Chebyshev) and sections 4.1 and 12.4 (Gauss-Seidel, multicoloring).


class _Explicit:
    """A smoother given as a function r -> S r of the residual."""

    A: CSR

    def step(self, r: Tensor, transpose: bool) -> Tensor:
        raise NotImplementedError

    def first(self, b: Tensor, transpose: bool) -> tuple[Tensor, Tensor]:
        x = self.step(b, transpose)
        return x, b - product(self.A.values, x, self.A.pattern, transpose)

    def again(self, x: Tensor, b: Tensor, transpose: bool) -> Tensor:
        return x + self.step(b - product(self.A.values, x, self.A.pattern, transpose), transpose)


class Jacobi(_Explicit):
    """S = w D^-1, w a scalar or one per row."""

    def __init__(self, function: str, A: CSR, weight: float | Tensor):
        self.A, self.scale = A, times(reuse_inverse_diagonal(A, function), weight).unsqueeze(-1)

    def step(self, r: Tensor, transpose: bool) -> Tensor:
        return multiply_rows(self.scale, r)


class Chebyshev(_Explicit):
    """S = p(D^-1 A) D^-1: `degree` steps of the Chebyshev iteration from zero, for eigenvalues of D^-1 A in
    [rho / 30, 1.1 rho]."""

    def __init__(self, function: str, A: CSR, radius: float, degree: int):
        self.A, self.degree = A, degree
        self.inverse = reuse_inverse_diagonal(A, function).unsqueeze(-1)
        low, high = radius / 30, 1.1 * radius
        self.center, self.half_width = (high + low) / 2, (high - low) / 2

    def step(self, r: Tensor, transpose: bool) -> Tensor:
        # With the transpose p(D^-1 A^T) D^-1 = (p(D^-1 A) D^-1)^T, since D^-1 A^T D^-1 = (D^-1 A D^-1)^T.
        sigma = self.center / self.half_width
        x = d = self.inverse * r / self.center
        rho = 1 / sigma
        for _ in range(self.degree - 1):
            r = r - product(self.A.values, d, self.A.pattern, transpose)
            rho_old, rho = rho, 1 / (2 * sigma - rho)
            d = rho * rho_old * d + (2 * rho / self.half_width) * (self.inverse * r)
            x = x + d
        return x


class GaussSeidel:
    """S = (D + U)^-1 D (D + L)^-1, a forward and a backward sweep. On a device color by color, so that each
    triangular solve has as many levels as there are colors.

    With F = (D + L)^-1, V = D^-1 U and B = (I + V)^-1, S is B F, and no sweep needs a product with all of A:

        first   z = F b, x = B z, b - A x = L (z - x)            since (D + U) x = D z and (D + L) z = b
        again   y = F (b - D V x), x' = B (y + V x)              since L y = b - D V x - D y

    and for A^T

        first   z = B^T b, x = F^T z, b - A^T x = V^T (z - D x)
        again   y = B^T (b - L^T x), x' = F^T (y + L^T x)

    Both cost 3/2 times the products and solves of a cycle with one Jacobi step on each side.
    """

    def __init__(self, function: str, A: CSR):
        inverse = reuse_inverse_diagonal(A, function)
        if readable(inverse) and inverse.isinf().any():
            row = int(inverse.detach().isinf().nonzero()[0, -1])
            raise ValueError(
                f"{function}: A must have a diagonal whose reciprocal does not overflow, row {row} has "
                f"{float(diagonal(A)[..., row].detach().abs().min())}. Scale A"
            )
        self.order = A.pattern._plan_once(color_order) if device_analysis.here(A.values) else None
        if self.order is not None:
            A, inverse = self.order.matrix(A), self.order.there(inverse.unsqueeze(-1)).squeeze(-1)
        self.A, self.d = A, diagonal(A).unsqueeze(-1)
        self.L, self.V = tril(A, -1), scale_rows(triu(A, 1), inverse)

    def first(self, b: Tensor, transpose: bool) -> tuple[Tensor, Tensor]:
        b = self._there(b)
        if transpose:
            z = self._B(b, True)
            x = self._F(z, True)
            r = product(self.V.values, z - self.d * x, self.V.pattern, True)
        else:
            z = self._F(b, False)
            x = self._B(z, False)
            r = product(self.L.values, z - x, self.L.pattern, False)
        return self._back(x), self._back(r)

    def again(self, x: Tensor, b: Tensor, transpose: bool) -> Tensor:
        x, b = self._there(x), self._there(b)
        if transpose:
            t = product(self.L.values, x, self.L.pattern, True)
            x = self._F(t + self._B(b - t, True), True)
        else:
            t = product(self.V.values, x, self.V.pattern, False)
            x = self._B(t + self._F(torch.addcmul(b, self.d, t, value=-1), False), False)
        return self._back(x)

    def _F(self, b: Tensor, transpose: bool) -> Tensor:
        return solve(self.A.values, b, self.A.pattern, Side(True, False, transpose))

    def _B(self, b: Tensor, transpose: bool) -> Tensor:
        return solve(self.V.values, b, self.V.pattern, Side(False, True, transpose))

    def _there(self, b: Tensor) -> Tensor:
        return b if self.order is None else self.order.there(b)

    def _back(self, x: Tensor) -> Tensor:
        return x if self.order is None else self.order.back(x)


Weight = float | Tensor


def jacobi_weights(weight: Any, sizes: Sequence[int], A: CSR) -> list[Weight] | None:
    """The checked weights, one per level of these sizes except the coarsest, or None if none is given."""
    if weight is None:
        return None
    count = max(len(sizes) - 1, 0)
    several = isinstance(weight, (list, tuple))
    weights = list(weight) if several else [weight] * max(count, 1)  # checked even on a single level
    if several and len(weights) != count:
        raise ValueError(
            f"AMG: weight must be one, or one for each of the {count} levels but the coarsest, got "
            f"{len(weights)}"
        )
    for level, w in enumerate(weights):
        if not isinstance(w, Tensor):
            if not 0 < checks.number("AMG", "weight", w) < float("inf"):
                raise _not_positive(level, w)
            continue
        n = (*sizes, A.shape[0])[level]
        checks.row_factor("AMG", f"weight on level {level}", w, A.values, n)
        if torch.compiler.is_dynamo_compiling() or isinstance(w, torch.nn.Parameter):
            continue  # training may move a parameter anywhere
        if type(w) is not Tensor or is_functorch_wrapped_tensor(w):
            continue
        good = (w.detach() > 0) & w.detach().isfinite()
        if not good.all():
            raise _not_positive(level, float(w.detach()[~good].reshape(-1)[0]))
    return weights[:count]


def _not_positive(level: int, value: object) -> ValueError:
    return ValueError(
        f"AMG: weight on level {level} must be positive and finite, got {value}. Pass 2/3, or remove it"
    )


def choose_hierarchy(
    A: CSR,
    method: str | None,
    given: object,
    max_levels: int | None,
    max_coarse: int | None,
    aggressive: int,
    symmetric: bool,
) -> tuple[Hierarchy, list[CSR] | None]:
    """The checked hierarchy, `given` or built by `method`, and in the latter case also the matrices of its
    levels, for the mean of a batch."""
    if given is None:
        most = max_levels or 10, max_coarse or 100
        if method == "ruge_stuben":
            levels = ruge_stuben("AMG", A, *most, aggressive=aggressive)
        else:
            checks.check_unused("AMG", "aggressive", aggressive, "method='ruge_stuben'", 0)
            levels = smoothed_aggregation("AMG", A, symmetric, *most)
        return build_hierarchy(levels), levels.operators
    others = {"method": method, "max_levels": max_levels, "max_coarse": max_coarse}
    for name, value in (others | {"aggressive": aggressive or None}).items():
        if value is not None:
            raise ValueError(f"AMG: {name} is for making a hierarchy, but one was passed. Remove either")
    if not isinstance(given, Hierarchy):
        if not hasattr(given, "levels"):
            raise TypeError(
                "AMG: hierarchy must be a Hierarchy, as M.hierarchy of another AMG is, or a pyamg "
                f"MultilevelSolver, got {type(given).__name__}"
            )
        given = _convert_solver(given, A)
    if len(given) and given.prolongations[0].shape[0] != A.shape[0]:
        raise ValueError(
            f"AMG: hierarchy must fit a matrix with {A.shape[0]} rows, but its first prolongation has shape "
            f"{given.prolongations[0].shape}"
        )
    for name in ("prolongations", "restrictions"):
        for level, T in enumerate(getattr(given, name)):
            if T is not None:
                checks.same_kind("AMG", f"hierarchy.{name}[{level}].values", T.values, A.values)
    return given, None


def _convert_solver(solver: Any, A: CSR) -> Hierarchy:
    """The hierarchy of a pyamg MultilevelSolver."""
    levels = solver.levels[:-1]
    # The radii found by pyamg's own Jacobi smoother, if it has one, to use the same weights.
    radii = [getattr(level.A, "rho_D_inv", None) for level in levels]
    return _convert_transfers([(level.P, level.R) for level in levels], radii, A)


def _convert_transfers(transfers: Sequence[tuple[Any, Any]], radii: Sequence[Any], A: CSR) -> Hierarchy:
    """SciPy matrices converted to CSRs with A's dtype, index type and device."""
    prolongations, restrictions = [], []
    for number, (P, R) in enumerate((P.tocsr(), R.tocsr()) for P, R in transfers):
        if np.iscomplexobj(P.data):
            raise NotImplementedError(f"AMG: level {number} of hierarchy is complex, which is not supported")
        transposed = abs(R - P.T).sum() == 0
        prolongations.append(_convert_array(P, A))
        restrictions.append(None if transposed else _convert_array(R, A))
    numbers = [None if radius is None else float(radius) for radius in radii]
    return Hierarchy(prolongations, restrictions, numbers)


def _convert_array(S: object, A: CSR) -> CSR:
    with plain_tensors():
        T = CSR.from_scipy(S, dtype=A.dtype)
        return CSR(T.values, T.pattern.to(dtype=A.pattern.dtype)).to(A.device)


Cycle = Literal["V", "W", "F"]
Smoother = Literal["gauss_seidel", "jacobi", "chebyshev"]
# The cycles on the next level, in order: W is W twice, F is F and then V.
_CYCLES = {"V": "V", "W": "WW", "F": "FV"}
_PSEUDO = {None: None, "lu": False, "pinv": True}


class AMG(Preconditioner):
    r"""One cycle of algebraic multigrid from zero, linear (formulas: docs/preconditioners.md).

    Parameters
    ----------
    A : CSR, shape (n, n), float32 or float64, without zeros on the diagonal. Its values may have batch axes
    method : "smoothed_aggregation" (default) or "ruge_stuben", as in `Hierarchy`
    hierarchy : instead of `method`: a `Hierarchy`, such as another AMG's, or a pyamg MultilevelSolver
    cycle : "V", "W" or "F"
    smoother : "gauss_seidel", symmetric; "jacobi", the default for CUDA or with `weight`; "chebyshev"
    presweeps, postsweeps : not both 0
    weight : for "jacobi", positive: float or Tensor, () or (..., n_l), or a sequence of one per level except
        the coarsest. Default :math:`(4/3) / \rho(D^{-1} A_l)`
    degree : for "chebyshev", the number of steps, default 3
    max_levels, max_coarse : the maximum number of levels, and of unknowns of the coarsest. Default 10, 100
    aggressive : for "ruge_stuben": levels that are coarsened twice. 1 suits three dimensions
    coarse_solver : "lu" or, for singular matrices, "pinv". Default: depends on the coarsest matrix
    symmetric : bool, whether A is symmetric. Default: determined from the values (not under `torch.compile`)

    Attributes
    ----------
    hierarchy, operators : Hierarchy; tuple of CSR, A and the coarse matrices
    weights : list, one per level except the coarsest, or None if the smoother is not "jacobi"
    operator_complexity : float, entries of all levels divided by A's

    Raises
    ------
    ValueError, TypeError; NotImplementedError (CUDA tensors)
        if A is not finite or has a zero on its diagonal, a matrix is singular, or arguments do not match one
        another.

    Notes
    -----
    Gradient: exact, for r, the values of A, transfers and weights, with a fixed hierarchy, to any order.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> M = ls.preconditioners.AMG(A := ls.problems.poisson((64, 64)))
    >>> ls.solvers.cg(A, torch.ones(4096, dtype=torch.float64), M=M, rtol=1e-8).iterations < 20
    True
    """

    def __init__(
        self,
        A: RealSystem,
        *,
        method: Literal["smoothed_aggregation", "ruge_stuben"] | None = None,
        hierarchy: object = None,
        cycle: Cycle = "V",
        smoother: Smoother | None = None,
        presweeps: Index = 1,
        postsweeps: Index = 1,
        weight: Weight | Sequence[Weight] | None = None,
        degree: Count | None = None,
        max_levels: Count | None = None,
        max_coarse: Count | None = None,
        aggressive: Index = 0,
        coarse_solver: Literal["lu", "pinv"] | None = None,
        symmetric: bool | None = None,
    ):
        super().__init__(A, *(weight if isinstance(weight, (list, tuple)) else (weight,)))
        check_numbers("AMG", A)
        if A.batch_shape.numel() == 0:
            raise ValueError(
                f"AMG: needs a matrix, got an empty batch of shape {tuple(A.batch_shape)}. Remove it"
            )
        if smoother is None:
            apart = device_analysis.here(A.values)  # there a forward sweep takes one launch per color
            smoother = "jacobi" if apart or weight is not None else "gauss_seidel"
        self.cycle, self.sweeps = cycle, (presweeps, postsweeps)
        if self.sweeps == (0, 0):
            raise ValueError(
                "AMG: presweeps and postsweeps must not both be 0. A coarse correction alone is singular"
            )
        for name, given, user in (("weight", weight, "jacobi"), ("degree", degree, "chebyshev")):
            if smoother != user:
                checks.check_unused("AMG", name, given, f"smoother={user!r}")
        if smoother == "chebyshev":
            degree = degree or 3
        self.options: dict[str, Any] = {
            "cycle": cycle,
            "smoother": smoother,
            "presweeps": presweeps,
            "postsweeps": postsweeps,
            "degree": degree,
            "coarse_solver": coarse_solver,
            "symmetric": symmetry("AMG", A, symmetric),
        }
        same = bool(self.options["symmetric"])
        hierarchy, found = choose_hierarchy(A, method, hierarchy, max_levels, max_coarse, aggressive, same)
        weights = jacobi_weights(weight, hierarchy.sizes, A)
        kept = hierarchy if found else hierarchy.each(_kept)
        plain = A.values.dim() == 1 and not needs_graph(
            A.values
        )  # then it is its own mean, without a derivative
        self._set_up(_kept(A), kept, weights and [_kept(w) for w in weights], found if plain else None)

    def _set_up(
        self, A: CSR, hierarchy: Hierarchy, weights: list[Weight] | None, found: list[CSR] | None = None
    ) -> None:
        """Set up from `_kept` data. The radii found are written into `hierarchy`. `found`: the matrices of
        the levels."""
        self._join_batches(hierarchy, weights)
        smoother, degree = self.options["smoother"], self.options["degree"]
        self.depends_on += tuple(
            T.values for T in hierarchy.transfers if T.requires_grad or needs_graph(T.values)
        )
        operators, levels, radii, used = [A], [], [], []
        A, own = _own(A), hierarchy.each(_own)
        for number, (P, R) in enumerate(zip(own.prolongations, own.restrictions, strict=True)):
            function = f"AMG, level {number}" if number else "AMG"
            given = hierarchy.radii[number]
            asked = smoother == "chebyshev" or (smoother == "jacobi" and weights is None)
            if asked or smoother == "gauss_seidel":
                reuse_inverse_diagonal(A, function)  # for its ValueError
            radius = given or 0.0
            if given is None and asked:
                radius = spectral_radius(A, self.options["symmetric"])
            radii.append(radius or None)
            if smoother == "jacobi":
                used.append(weights[number] if weights else 4 / (3 * radius))
                S = Jacobi(function, A, _own(used[-1]))
            elif smoother == "chebyshev":
                S = Chebyshev(function, A, radius, degree)
            else:
                S = GaussSeidel(function, A)
            levels.append(_Level(A, P, R, S))
            A = found[number + 1] if found else coarse_matrix(P, R, A)
            operators.append(A)
        self._levels = tuple(levels)
        self._steps: dict[bool, LinearSteps | None] = {}  # the cycle and its transpose, after their first use
        remedy = 'Use coarse_solver="pinv" (for at most 2000 unknowns), coarsen further'
        self._coarsest = DirectSolver("AMG", A, _PSEUDO[self.options["coarse_solver"]], remedy)
        self.operators = tuple(operators)
        self.weights = used if smoother == "jacobi" else None
        self.hierarchy, hierarchy.radii = hierarchy, tuple(radii)
        balanced = self.sweeps[0] == self.sweeps[1] and (self.cycle != "F" or len(levels) <= 2)
        transposed = all(R is None for R in hierarchy.restrictions)
        self.symmetric = (not levels or (balanced and transposed)) and self.options["symmetric"]

    def _join_batches(self, hierarchy: Hierarchy, weights: Any) -> None:
        """Set `batch_shape` from the matrix, the transfers and the weights."""
        others = [("transfers", T.batch_shape) for T in hierarchy.transfers]
        others += [("weights", w.shape[:-1]) for w in weights or () if isinstance(w, Tensor)]
        for name, batch in others:
            if not batch:
                continue  # `broadcast_shapes` is slow Python
            checks.batches("AMG", self.batch_shape, batch, f"A and {name}")
            self.batch_shape = torch.broadcast_shapes(self.batch_shape, batch)

    def __deepcopy__(self, memo: dict[int, object]) -> AMG:
        """Rebuilt from copies: computed tensors may be attached to an autograd graph, which torch does not
        copy."""
        try:
            A, hierarchy, weight = copy.deepcopy((self.operators[0], self.hierarchy, self.weights), memo)
        except RuntimeError as error:
            raise RuntimeError(
                "AMG: tensors attached to the autograd graph cannot be copied: values of A, prolongations or "
                "weights were computed from something that requires grad. Copy an AMG of A.detach()"
            ) from error
        return self._rebuild(A, hierarchy, weight)

    def learnable(self) -> dict[str, Part]:
        H = self.hierarchy
        if not len(H):
            raise ValueError("Trainable: M must have more than one level. Make it with a smaller max_coarse")
        restrictions = [P.T if R is None else R for P, R in zip(H.prolongations, H.restrictions, strict=True)]
        parts = {"prolongations": Part(H.prolongations), "restrictions": Part(restrictions, default=False)}
        if self.weights is not None:
            weights = [torch.as_tensor(w, dtype=self.dtype, device=self.device) for w in self.weights]
            sizes = zip(weights, H.sizes, strict=False)
            parts["weights"] = Part([w if w.dim() else w.expand(n) for w, n in sizes], "all")
        return parts

    def with_tensors(self, tensors: dict[str, Any]) -> AMG:
        """Set up again, so that fixed parts may be attached to an autograd graph. Nothing is dropped."""
        M = self._construct(**vars(self) | {"symmetric": self.symmetric and "restrictions" not in tensors})
        if None not in tensors.values():
            A, H, weights = self.operators[0], self.hierarchy, tensors.get("weights", self.weights)
            M.batch_shape = A.batch_shape
            M.depends_on = (A.values, *(w for w in weights or () if isinstance(w, Tensor)))
            H = H.with_prolongations(
                tensors.get("prolongations", H.prolongations), tensors.get("restrictions")
            )
            M._set_up(A, H, weights)
        return M

    def _convert(self, **kind: Any) -> AMG:
        weights = self.weights and [w.to(**kind) if isinstance(w, Tensor) else w for w in self.weights]
        return self._rebuild(self.operators[0].to(**kind), self.hierarchy.to(**kind), weights)

    def _rebuild(self, A: CSR, hierarchy: Hierarchy, weight: Any) -> AMG:
        return AMG(A, hierarchy=hierarchy, weight=weight or None, **self.options)

    @property
    def operator_complexity(self) -> float:
        return sum(A.nnz for A in self.operators) / max(self.operators[0].nnz, 1)

    def mv(self, R: Tensor) -> Tensor:
        return self._run(R, False)

    def rmv(self, R: Tensor) -> Tensor:
        return self._run(R, True)

    def _run(self, R: Tensor, transpose: bool) -> Tensor:
        if torch.compiler.is_dynamo_compiling():
            return self._correction(0, R, self.cycle, transpose)
        if transpose not in self._steps:
            recorded = self._record(transpose)
            self._steps[transpose] = recorded and LinearSteps(*recorded)
        steps = self._steps[transpose]
        return self._correction(0, R, self.cycle, transpose) if steps is None else steps(R)

    def _record(self, transpose: bool) -> tuple[Callable, Sequence[CSR], Sequence[Tensor]] | None:
        """For cycles with Jacobi sweeps and a dense coarse inverse."""
        if self.weights is None or not self._levels or self._coarsest.inverse is None or self.batch_shape:
            return None
        matrices = [T for level in self._levels for T in (level.A, level.P, level.R) if T is not None]
        others = [*(level.S.scale for level in self._levels), self._coarsest.inverse]  # type: ignore[union-attr]
        return (lambda b: self._correction(0, b, self.cycle, transpose)), matrices, others

    def _correction(self, number: int, b: Tensor, cycles: str, transpose: bool) -> Tensor:
        """Run the cycles from zero in order, or in reverse order if transposed."""
        if number == len(self._levels):
            return self._coarsest(b, transpose)
        x: Any = None
        for cycle in reversed(cycles) if transpose else cycles:
            x = self._cycle(number, x, b, cycle, transpose)
        return x

    def _cycle(self, number: int, x: Tensor | None, b: Tensor, cycle: str, transpose: bool) -> Tensor:
        """One cycle from x (None: zero). Transposed: with A^T, R^T in place of P, and S^T."""
        level = self._levels[number]
        before, after = reversed(self.sweeps) if transpose else self.sweeps
        r: Tensor | None = b if x is None else None
        if before and x is None:
            x, r = level.S.first(b, transpose)
            before -= 1
        for _ in range(before):
            x, r = level.S.again(x, b, transpose), None  # type: ignore[arg-type]
        if r is None:
            r = b - product(level.A.values, x, level.A.pattern, transpose)  # type: ignore[arg-type]
        coarse = self._correction(number + 1, level.restrict(r, transpose), _CYCLES[cycle], transpose)
        e = level.prolong(coarse, transpose)
        y = e if x is None else x + e
        for _ in range(after):
            y = level.S.again(y, b, transpose)
        return y

    def __repr__(self) -> str:
        sizes = ", ".join(str(A.shape[0]) for A in self.operators)
        return (
            f"AMG(levels=({sizes}), cycle={self.cycle}, operator_complexity={self.operator_complexity:.2f})"
        )


def _may_change(T: object) -> bool:
    """Whether others may change T in place, possibly without a new version of the tensor."""
    t = T.values if isinstance(T, CSR) else T
    return isinstance(t, torch.nn.Parameter) or (isinstance(t, Tensor) and t.requires_grad)


def _kept(T: Any) -> Any:
    """The data for a setup, repeated in each step of a `Trainable`: T itself if trained, else a copy."""
    return T if _may_change(T) or isinstance(T, (int, float)) else T.clone()


def _own(T: Any) -> Any:
    """A copy of `_kept` data to read: trained tensors could get out of step with the coarse matrices."""
    return T.clone() if _may_change(T) else T


class _Level(NamedTuple):
    A: CSR
    P: CSR
    R: CSR | None
    S: Jacobi | Chebyshev | GaussSeidel

    def restrict(self, r: Tensor, transpose: bool) -> Tensor:
        T, other = (self.P, True) if transpose or self.R is None else (self.R, False)
        return product(T.values, r, T.pattern, other)

    def prolong(self, e: Tensor, transpose: bool) -> Tensor:
        T, other = (self.R, True) if transpose and self.R is not None else (self.P, False)
        return product(T.values, e, T.pattern, other)
