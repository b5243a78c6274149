"""Algebraic multigrid with trainable prolongations and smoothers.

Source: Greenfeld, Galun, Basri, Yavneh, Kimmel, "Learning to optimize multigrid PDE solvers", ICML 2019;
Nytko et al., "Optimized Sparse Matrix Operations for Reverse Mode Automatic Differentiation", arXiv
2212.05159, section 4.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from learnsolve import _check
from learnsolve.preconditioners._held import Holder
from learnsolve.preconditioners.amg import AMG
from learnsolve.preconditioners.base import Preconditioner

LEARN = ("prolongation", "smoother")
INSTEAD = "leave it out of `learn`, or use the AMG, which is differentiable with respect to it"


class LearnedAMG(Holder):
    r"""An `AMG` whose prolongations, or weights of Jacobi, are parameters: linear; symmetric as that is.

    Parameters
    ----------
    M : AMG, where training starts; its matrix, cycle, sweeps and hierarchy stay
    learn : of "prolongation", the entries of every P_l on its pattern, and "smoother", a weight for each
        unknown of each level, for ``smoother="jacobi"``; if not given, what M has of them

    Attributes
    ----------
    prolongations, weights : torch.nn.ParameterList, shapes (nnz(P_l),) and (n_l,), empty if not trained

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
    restriction that is P^T is trained with P; any other stays as it is.

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
            learn = LEARN if M.weights is not None else LEARN[:1]
        if isinstance(learn, str) or not learn:
            raise ValueError(f"LearnedAMG: learn must be one or more of {LEARN} in a tuple, got {learn!r}")
        for part in learn:
            _check.one_of("LearnedAMG", "learn", part, LEARN)
        if not len(M.hierarchy):
            raise ValueError("LearnedAMG: M must have more than one level; make it with a smaller max_coarse")
        self.M = M
        self.shape, self.batch_shape, self.symmetric = M.shape, M.batch_shape, M.symmetric
        prolongations, weights = [], []
        if "prolongation" in learn:
            for level, P in enumerate(M.hierarchy.prolongations):
                _check.start("LearnedAMG", f"M.hierarchy.prolongations[{level}].values", P.values, INSTEAD)
            prolongations = [P.values.clone() for P in M.hierarchy.prolongations]
        if "smoother" in learn:
            if M.weights is None:
                raise ValueError('LearnedAMG: only smoother="jacobi" has weights to train; make M with it')
            for n, w in zip(M.hierarchy.sizes, M.weights, strict=False):
                start = torch.as_tensor(w, dtype=M.dtype, device=M.device)
                _check.start("LearnedAMG", f"M.weights[{len(weights)}]", start, INSTEAD)
                weights.append(start.expand(n).clone())
        self.prolongations = torch.nn.ParameterList(prolongations)
        self.weights = torch.nn.ParameterList(weights)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """`.to`, `.float` and the like: the AMG goes along, and first, for it may refuse."""
        M, like = self.M, fn(self.M.operators[0].values.detach())
        if (like.dtype, like.device) != (M.dtype, M.device):
            kind = {"dtype": like.dtype, "device": like.device}
            weights = M.weights and [w.to(**kind) if isinstance(w, Tensor) else w for w in M.weights]
            A, hierarchy = M.operators[0].to(**kind), M.hierarchy.to(**kind)
            self.M = AMG(A, hierarchy=hierarchy, weight=weights, **M.options)
        return super()._apply(fn, recurse)

    @property
    def made_of(self) -> tuple[Tensor, ...]:  # type: ignore[override]
        M = self.M
        read = [M.operators[0].values]
        if not len(self.prolongations):
            read += [P.values for P in M.hierarchy.prolongations]
        read += [R.values for R in M.hierarchy.restrictions if R is not None]
        if not len(self.weights):
            read += [w for w in M.weights or () if isinstance(w, Tensor)]
        return (*self.parameters(), *read)

    def current(self) -> AMG:
        M, hierarchy = self.M, self.M.hierarchy
        if len(self.prolongations):
            pairs = zip(hierarchy.prolongations, self.prolongations, strict=True)
            hierarchy = hierarchy.with_prolongations([P.with_values(v) for P, v in pairs])
        weights = list(self.weights) if len(self.weights) else M.weights
        return AMG(M.operators[0], hierarchy=hierarchy, weight=weights, **M.options)

    pcg_form = Preconditioner.pcg_form  # None; `current` would set up the cycle
