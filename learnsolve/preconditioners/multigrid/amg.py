"""Algebraic multigrid: cycles on a hierarchy, differentiable.

Source: Briggs, Henson, McCormick, "A Multigrid Tutorial" (2000), chapters 3 and 8; Vanek, Mandel, Brezina,
"Algebraic multigrid by smoothed aggregation for second and fourth order elliptic problems", Computing 56
(1996), doi:10.1007/BF02238511; Ruge, Stueben, "Algebraic multigrid" (1987).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from learnsolve.matrix import checks, device_analysis
from learnsolve.matrix.csr import CSR
from learnsolve.ops.core.autograd import tracked
from learnsolve.ops.core.linear_steps import LinearSteps, product
from learnsolve.ops.core.symmetry import symmetry
from learnsolve.ops.diagonal import shared_inverse_diagonal
from learnsolve.preconditioners.base import Part, Preconditioner, check_numbers
from learnsolve.preconditioners.multigrid._direct import DirectSolver
from learnsolve.preconditioners.multigrid._given import hierarchy_for
from learnsolve.preconditioners.multigrid._hierarchy import Hierarchy
from learnsolve.preconditioners.multigrid._level import coarse_matrix, spectral_radius
from learnsolve.preconditioners.multigrid._smoothers import (
    Chebyshev,
    GaussSeidel,
    Jacobi,
    Weight,
    jacobi_weights,
)

SMOOTHERS = ("gauss_seidel", "jacobi", "chebyshev")
# The cycles on the next level, in order: W is W twice, F is F and then V.
_CYCLES = {"V": "V", "W": "WW", "F": "FV"}
_PSEUDO = {None: None, "lu": False, "pinv": True}


class AMG(Preconditioner):
    r"""One cycle of algebraic multigrid from zero, linear (formulas: docs/preconditioners.md).

    Parameters
    ----------
    A : CSR, shape (n, n), float32 or float64, without zeros on the diagonal; its values may have batch axes
    method : "smoothed_aggregation" (default) or "ruge_stuben", as in `Hierarchy`
    hierarchy : instead of `method`: a `Hierarchy`, such as another AMG's, or a pyamg MultilevelSolver
    cycle : "V", "W" or "F"
    smoother : "gauss_seidel", symmetric; "jacobi", the default for CUDA or with `weight`; "chebyshev"
    presweeps, postsweeps : int >= 0, not both 0
    weight : for "jacobi", positive: float or Tensor, () or (..., n_l), or a sequence of one per level except
        the coarsest; default :math:`(4/3) / \rho(D^{-1} A_l)`
    degree : for "chebyshev", the number of steps, default 3
    max_levels, max_coarse : int >= 1, the maximum number of levels, and of unknowns of the coarsest; default
        10, 100
    aggressive : int >= 0, for "ruge_stuben": levels that are coarsened twice; 1 suits three dimensions
    coarse_solver : "lu" or, for singular matrices, "pinv"; default: depends on the coarsest matrix
    symmetric : bool, whether A is symmetric; default: determined from the values (not under `torch.compile`)

    Attributes
    ----------
    hierarchy, operators : Hierarchy; tuple of CSR, A and the coarse matrices
    weights : list, one per level except the coarsest; None if the smoother is not "jacobi"
    operator_complexity : float, entries of all levels divided by A's

    Raises
    ------
    ValueError, TypeError; NotImplementedError (CUDA tensors)
        if A is not finite or has a zero on its diagonal, a matrix is singular, or arguments are invalid.

    Notes
    -----
    Gradient: exact, for r, the values of A, transfers and weights, with the hierarchy held fixed; any order.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> M = ls.preconditioners.AMG(A := ls.problems.poisson((64, 64)))
    >>> ls.solvers.cg(A, torch.ones(4096, dtype=torch.float64), M=M, rtol=1e-8).iterations < 20
    True
    """

    def __init__(
        self,
        A: CSR,
        *,
        method: str | None = None,
        hierarchy: Any = None,
        cycle: str = "V",
        smoother: str | None = None,
        presweeps: int = 1,
        postsweeps: int = 1,
        weight: Weight | Sequence[Weight] | None = None,
        degree: int | None = None,
        max_levels: int | None = None,
        max_coarse: int | None = None,
        aggressive: int = 0,
        coarse_solver: str | None = None,
        symmetric: bool | None = None,
    ):
        super().__init__(A, *(weight if isinstance(weight, (list, tuple)) else (weight,)))
        check_numbers("AMG", A)
        if A.batch_shape.numel() == 0:
            raise ValueError(
                f"AMG: needs a matrix, got an empty batch of shape {tuple(A.batch_shape)}; leave it out"
            )
        checks.one_of("AMG", "cycle", cycle, tuple(_CYCLES))
        if smoother is None:
            apart = device_analysis.here(A.values)  # there a forward sweep takes one launch per color
            smoother = "jacobi" if apart or weight is not None else "gauss_seidel"
        checks.one_of("AMG", "smoother", smoother, SMOOTHERS)
        checks.one_of("AMG", "coarse_solver", coarse_solver, tuple(_PSEUDO))
        self.cycle = cycle
        self.sweeps = tuple(
            checks.integer("AMG", name, given, 0)
            for name, given in (("presweeps", presweeps), ("postsweeps", postsweeps))
        )
        if self.sweeps == (0, 0):
            raise ValueError(
                "AMG: presweeps and postsweeps must not both be 0; a coarse correction alone is singular"
            )
        for name, given, user in (("weight", weight, "jacobi"), ("degree", degree, "chebyshev")):
            if given is not None and smoother != user:
                raise ValueError(f"AMG: {name} belongs to smoother={user!r}, got smoother={smoother!r}")
        if degree is not None or smoother == "chebyshev":
            degree = checks.integer("AMG", "degree", 3 if degree is None else degree, 1)
        self.options: dict[str, Any] = {
            "cycle": cycle,
            "smoother": smoother,
            "presweeps": self.sweeps[0],
            "postsweeps": self.sweeps[1],
            "degree": degree,
            "coarse_solver": coarse_solver,
            "symmetric": symmetry("AMG", A, symmetric),
        }
        same = bool(self.options["symmetric"])
        hierarchy, found = hierarchy_for(A, method, hierarchy, max_levels, max_coarse, aggressive, same)
        weights = jacobi_weights(weight, hierarchy.sizes, A)
        kept = hierarchy if found else hierarchy.each(_kept)
        plain = A.values.dim() == 1 and not tracked(A.values)  # then it is its own mean, without a derivative
        self._set_up(_kept(A), kept, weights and [_kept(w) for w in weights], found if plain else None)

    def _set_up(
        self, A: CSR, hierarchy: Hierarchy, weights: list[Weight] | None, found: list[CSR] | None = None
    ) -> None:
        """Set up from `_kept` data; the radii found are written into `hierarchy`. `found`: the matrices of
        the levels."""
        self._join_batches(hierarchy, weights)
        smoother, degree = self.options["smoother"], self.options["degree"]
        self.depends_on += tuple(T.values for T in hierarchy.transfers if T.requires_grad)
        operators, levels, radii, used = [A], [], [], []
        A, own = _own(A), hierarchy.each(_own)
        for number, (P, R) in enumerate(zip(own.prolongations, own.restrictions, strict=True)):
            function = f"AMG, level {number}" if number else "AMG"
            given = hierarchy.radii[number]
            asked = smoother == "chebyshev" or (smoother == "jacobi" and weights is None)
            if asked or smoother == "gauss_seidel":
                shared_inverse_diagonal(A, function)  # for its ValueError
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
        remedy = 'use coarse_solver="pinv" (for at most 2000 unknowns), coarsen further'
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

    def __deepcopy__(self, memo: dict[int, Any]) -> AMG:
        """Rebuilt from copies: computed tensors may have a graph, which torch does not copy."""
        try:
            A, hierarchy, weight = copy.deepcopy((self.operators[0], self.hierarchy, self.weights), memo)
        except RuntimeError as error:
            raise RuntimeError(
                "AMG: what has a graph cannot be copied: A's values, those of prolongations or weights were "
                "computed from something that requires grad; copy an AMG of A.detach()"
            ) from error
        return self._on(A, hierarchy, weight)

    def _learnable(self) -> dict[str, Part]:
        H = self.hierarchy
        if not len(H):
            raise ValueError("Trainable: M must have more than one level; make it with a smaller max_coarse")
        restrictions = [P.T if R is None else R for P, R in zip(H.prolongations, H.restrictions, strict=True)]
        parts = {"prolongations": Part(H.prolongations), "restrictions": Part(restrictions, default=False)}
        if self.weights is not None:
            weights = [torch.as_tensor(w, dtype=self.dtype, device=self.device) for w in self.weights]
            sizes = zip(weights, H.sizes, strict=False)
            parts["weights"] = Part([w if w.dim() else w.expand(n) for w, n in sizes], "all")
        return parts

    def _without(self, names: Collection[str]) -> Preconditioner:
        """Keeps everything: fixed parts may have a graph, since `_with` sets up everything again."""
        symmetric = self.symmetric and "restrictions" not in names
        return self._trusted(**{**vars(self), "symmetric": symmetric})

    def _with(self, parts: dict[str, Any]) -> AMG:
        A, H, weights = self.operators[0], self.hierarchy, parts.get("weights", self.weights)
        M = self._trusted(
            shape=self.shape,
            batch_shape=A.batch_shape,
            depends_on=(A.values, *(w for w in weights or () if isinstance(w, Tensor))),
            cycle=self.cycle,
            sweeps=self.sweeps,
            options=self.options,
        )
        prolongations = parts.get("prolongations", H.prolongations)
        M._set_up(A, H.with_prolongations(prolongations, parts.get("restrictions")), weights)
        return M

    def _converted(self, **kind: Any) -> AMG:
        weights = self.weights and [w.to(**kind) if isinstance(w, Tensor) else w for w in self.weights]
        return self._on(self.operators[0].to(**kind), self.hierarchy.to(**kind), weights)

    def _on(self, A: CSR, hierarchy: Hierarchy, weight: Any) -> AMG:
        return AMG(A, hierarchy=hierarchy, weight=weight or None, **self.options)

    @property
    def operator_complexity(self) -> float:
        return sum(A.nnz for A in self.operators) / max(self.operators[0].nnz, 1)

    def _columns(self, R: Tensor) -> Tensor:
        return self._run(R, False)

    def _transposed(self, R: Tensor) -> Tensor:
        return self._run(R, True)

    def _run(self, R: Tensor, transpose: bool) -> Tensor:
        if torch.compiler.is_dynamo_compiling():
            return self._correction(0, R, self.cycle, transpose)
        if transpose not in self._steps:
            recorded = self._recorded(transpose)
            self._steps[transpose] = recorded and LinearSteps(*recorded)
        steps = self._steps[transpose]
        return self._correction(0, R, self.cycle, transpose) if steps is None else steps(R)

    def _recorded(self, transpose: bool) -> tuple[Callable, Sequence[CSR], Sequence[Tensor]] | None:
        """For cycles with Jacobi sweeps and a dense coarse inverse."""
        if self.weights is None or not self._levels or self._coarsest.inverse is None or self.batch_shape:
            return None
        matrices = [T for level in self._levels for T in (level.A, level.P, level.R) if T is not None]
        others = [*(level.S.scale for level in self._levels), self._coarsest.inverse]  # type: ignore[union-attr]
        return (lambda b: self._correction(0, b, self.cycle, transpose)), matrices, others

    def _correction(self, number: int, b: Tensor, cycles: str, transpose: bool) -> Tensor:
        """Run the cycles from zero in order; transposed, in reverse order."""
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
        coarse = self._correction(number + 1, level.restricted(r, transpose), _CYCLES[cycle], transpose)
        e = level.prolonged(coarse, transpose)
        y = e if x is None else x + e
        for _ in range(after):
            y = level.S.again(y, b, transpose)
        return y

    def __repr__(self) -> str:
        sizes = ", ".join(str(A.shape[0]) for A in self.operators)
        return (
            f"AMG(levels=({sizes}), cycle={self.cycle}, operator_complexity={self.operator_complexity:.2f})"
        )


def _trained(T: Any) -> bool:
    """Whether others may change T in place, possibly without a new version of the tensor."""
    t = T.values if isinstance(T, CSR) else T
    return isinstance(t, torch.nn.Parameter) or (isinstance(t, Tensor) and t.requires_grad)


def _kept(T: Any) -> Any:
    """The data for a set-up, repeated in each step of a `Trainable`: T itself if trained, else a copy."""
    return T if _trained(T) or isinstance(T, (int, float)) else T.clone()


def _own(T: Any) -> Any:
    """A copy of `_kept` data to read: trained tensors could get out of step with the coarse matrices."""
    return T.clone() if _trained(T) else T


class _Level(NamedTuple):
    A: CSR
    P: CSR
    R: CSR | None
    S: Jacobi | Chebyshev | GaussSeidel

    def restricted(self, r: Tensor, transpose: bool) -> Tensor:
        T, other = (self.P, True) if transpose or self.R is None else (self.R, False)
        return product(T.values, r, T.pattern, other)

    def prolonged(self, e: Tensor, transpose: bool) -> Tensor:
        T, other = (self.R, True) if transpose and self.R is not None else (self.P, False)
        return product(T.values, e, T.pattern, other)
