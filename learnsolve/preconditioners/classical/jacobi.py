"""The inverse of the diagonal, with weights.

Source: Saad, "Iterative Methods for Sparse Linear Systems" (2003), section 10.2.
"""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.plain import readable
from learnsolve.ops.core.dots import times
from learnsolve.ops.diagonal import shared_inverse_diagonal
from learnsolve.preconditioners.base import Part, Preconditioner
from learnsolve.preconditioners.classical.diagonal import Diagonal


class Jacobi(Diagonal):
    r"""The inverse of the diagonal, :math:`M = \mathrm{diag}(w) D^{-1}`: linear, symmetric, one
    multiplication per row; positive definite if w and D are positive.

    For weighted Jacobi sweeps with a trainable weight, see `solvers.Jacobi`.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz), without zeros on the diagonal
    weight : w, float or Tensor, shape () or (..., n), which may require grad

    Raises
    ------
    ValueError
        if a diagonal entry is missing or zero, A is not finite (the message names the row), or the weight is
        not finite or has the wrong shape.
    TypeError
        if a type, dtype or device is wrong.

    Notes
    -----
    Gradient: exact, for A's values, the weight and r, to any order. `Trainable` learns one weight per row.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((10, 10))
    >>> M = ls.preconditioners.Jacobi(A)
    >>> bool((M(torch.ones(100, dtype=torch.float64)) == 0.25).all())
    True
    """

    takes_complex = True

    def __init__(self, A: CSR, weight: float | Tensor = 1.0):
        Preconditioner.__init__(self, A, weight)
        self.weight, self._inverse = _checked(weight, A), shared_inverse_diagonal(A, "Jacobi")
        plain = not isinstance(weight, Tensor) and weight == 1
        self.d = self._inverse if plain else times(self._inverse, self.weight)
        self.batch_shape = self.d.shape[:-1]

    def _learnable(self) -> dict[str, Part]:
        w = torch.as_tensor(self.weight, dtype=self._inverse.dtype, device=self._inverse.device)
        return {"weight": Part(w if w.dim() else w.expand(self.shape[0]), "all")}

    def _without(self, names: Collection[str]) -> Preconditioner:
        return super()._without({*names, "d"})

    def _with(self, parts: dict[str, Any]) -> Preconditioner:
        return super()._with({**parts, "d": times(self._inverse, parts["weight"])})


def _checked(weight: float | Tensor, A: CSR) -> float | Tensor:
    if not isinstance(weight, Tensor):
        return checks.real("Jacobi", "weight", weight, "finite", "a number or a torch.Tensor")
    checks.same_kind("Jacobi", "weight", weight, A.values)
    n = A.shape[0]
    if weight.dim() and weight.shape[-1] != n:
        raise ValueError(f"Jacobi: weight must have shape () or (..., {n}), got {tuple(weight.shape)}")
    checks.batches("Jacobi", A.batch_shape, weight.shape[:-1], "A.values and weight")
    if readable(weight) and not weight.detach().isfinite().all():
        raise ValueError(
            "Jacobi: weight must be finite, got infinities or NaNs; find out where they come from"
        )
    return weight
