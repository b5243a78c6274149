"""Algebraic multigrid with trainable prolongations and smoothers.

Source: Greenfeld, Galun, Basri, Yavneh, Kimmel, "Learning to optimize multigrid PDE solvers", ICML 2019;
Nytko et al., "Optimized Sparse Matrix Operations for Reverse Mode Automatic Differentiation", arXiv
2212.05159, section 4; A. Katrutsa, T. Daulbaev, I. Oseledets, "Deep multigrid: learning prolongation and
restriction matrices", arXiv 1711.03825.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from learnsolve import _check
from learnsolve.csr import CSR
from learnsolve.preconditioners._held import Holder
from learnsolve.preconditioners.amg import AMG
from learnsolve.preconditioners.base import Preconditioner

LEARN = ("prolongation", "smoother", "restriction")
INSTEAD = "leave it out of `learn`, or use the AMG, which is differentiable with respect to it"


class LearnedAMG(Holder):
    r"""An `AMG` whose prolongations, restrictions or weights of Jacobi are parameters: linear; symmetric as
    that is, unless restrictions are learned.

    Parameters
    ----------
    M : AMG, where training starts; its matrix, cycle, sweeps and hierarchy stay
    learn : of "prolongation", the entries of every P_l on its pattern, and "smoother", a weight for each
        unknown of each level, for ``smoother="jacobi"``; if not given, what M has of these; and
        "restriction", the entries of every R_l, which is not P_l^T any more and starts as M has it

    Attributes
    ----------
    prolongations, restrictions, weights : torch.nn.ParameterList, shapes (nnz(P_l),), (nnz(R_l),) and (n_l,),
        empty if not trained

    Raises
    ------
    ValueError
        if `learn` names something else, nothing, or a smoother without weights, or M has one level only.
    TypeError
        if M is not an AMG.

    Notes
    -----
    A call recomputes the coarse operators: two sparse products a level, a dense inverse. Give a solver
    ``M.current()``, which does it once and keeps the graph: gradient="unrolled" or "checkpointed". A
    restriction that is P^T is trained with P, unless it is learned itself; any other stays as it is.

    The functional form, for values that a network or a stencil gives, with or without batch axes, is
    ``AMG(A, hierarchy=H.with_prolongations([P.with_values(v), ...]), weight=[w, ...])``. Start from
    ``Hierarchy.linear(shape)`` on a grid, or from ``AMG(A, method="ruge_stuben")``.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((16, 16))
    >>> M = ls.preconditioners.LearnedAMG(ls.preconditioners.AMG(A, max_coarse=20, smoother="jacobi"))
    >>> b = torch.ones(256, dtype=torch.float64)
    >>> solution = ls.solvers.cg(A, b, M=M.current(), rtol=0, maxiter=3, gradient="unrolled")
    >>> solution.residual_norms[-1].backward()
    >>> [p.grad is not None for p in M.parameters()]
    [True, True, True, True]
    """

    def __init__(self, M: AMG, *, learn: Sequence[str] | None = None):
        super().__init__()
        if not isinstance(M, AMG):
            raise TypeError(f"LearnedAMG: M must be an AMG, got {type(M).__name__}; make one with AMG(A)")
        if learn is None:
            learn = LEARN[:2] if M.weights is not None else LEARN[:1]
        if isinstance(learn, str) or not learn:
            raise ValueError(f"LearnedAMG: learn must be one or more of {LEARN} in a tuple, got {learn!r}")
        for part in learn:
            _check.one_of("LearnedAMG", "learn", part, LEARN)
        if not len(M.hierarchy):
            raise ValueError("LearnedAMG: M must have more than one level; make it with a smaller max_coarse")
        self.M = M
        self.shape, self.batch_shape, self.symmetric = M.shape, M.batch_shape, M.symmetric
        prolongations, restrictions, weights = [], [], []
        if "prolongation" in learn:
            for level, P in enumerate(M.hierarchy.prolongations):
                _check.start("LearnedAMG", f"M.hierarchy.prolongations[{level}].values", P.values, INSTEAD)
            prolongations = [P.values.clone() for P in M.hierarchy.prolongations]
        self._restrictions: list[CSR] = []
        if "restriction" in learn:
            pairs = zip(M.hierarchy.prolongations, M.hierarchy.restrictions, strict=True)
            for level, (P, R) in enumerate(pairs):
                R = P.T if R is None else R
                _check.start("LearnedAMG", f"M.hierarchy.restrictions[{level}].values", R.values, INSTEAD)
                self._restrictions.append(R)
            restrictions = [R.values.clone() for R in self._restrictions]
            self.symmetric = False
        if "smoother" in learn:
            if M.weights is None:
                raise ValueError('LearnedAMG: only smoother="jacobi" has weights to train; make M with it')
            for n, w in zip(M.hierarchy.sizes, M.weights, strict=False):
                start = torch.as_tensor(w, dtype=M.dtype, device=M.device)
                _check.start("LearnedAMG", f"M.weights[{len(weights)}]", start, INSTEAD)
                weights.append(start.expand(n).clone())
        self.prolongations = torch.nn.ParameterList(prolongations)
        self.restrictions = torch.nn.ParameterList(restrictions)
        self.weights = torch.nn.ParameterList(weights)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """`.to`, `.float` and the like: the AMG goes along, and first, for it may refuse."""
        M, like = self.M, fn(self.M.operators[0].values.detach())
        if (like.dtype, like.device) != (M.dtype, M.device):
            kind = {"dtype": like.dtype, "device": like.device}
            weights = M.weights and [w.to(**kind) if isinstance(w, Tensor) else w for w in M.weights]
            A, hierarchy = M.operators[0].to(**kind), M.hierarchy.to(**kind)
            self.M = AMG(A, hierarchy=hierarchy, weight=weights, **M.options)
            self._restrictions = [R.to(**kind) for R in self._restrictions]
        return super()._apply(fn, recurse)

    @property
    def depends_on(self) -> tuple[Tensor, ...]:  # type: ignore[override]
        M = self.M
        read = [M.operators[0].values]
        if not len(self.prolongations):
            read += [P.values for P in M.hierarchy.prolongations]
        if not len(self.restrictions):
            read += [R.values for R in M.hierarchy.restrictions if R is not None]
        if not len(self.weights):
            read += [w for w in M.weights or () if isinstance(w, Tensor)]
        return (*self.parameters(), *read)

    def current(self) -> AMG:
        M, hierarchy = self.M, self.M.hierarchy
        prolongations: Sequence[CSR] = hierarchy.prolongations
        if len(self.prolongations):
            prolongations = [P.with_values(v) for P, v in zip(prolongations, self.prolongations, strict=True)]
        restrictions = None
        if len(self.restrictions):
            pairs = zip(self._restrictions, self.restrictions, strict=True)
            restrictions = [R.with_values(v) for R, v in pairs]
        hierarchy = hierarchy.with_prolongations(prolongations, restrictions)
        weights = list(self.weights) if len(self.weights) else M.weights
        return AMG(M.operators[0], hierarchy=hierarchy, weight=weights, **M.options)

    pcg_form = Preconditioner.pcg_form  # None; `current` would set up the cycle
