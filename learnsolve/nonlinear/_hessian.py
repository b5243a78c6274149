"""`hessian`: sparse Hessians of scalar functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.nonlinear._compress import Plan, symmetric_plan
from learnsolve.nonlinear._jacobian import Jacobian
from learnsolve.nonlinear._pattern import pattern_of


class Hessian(Jacobian):
    """The result of `hessian`: ``H(u, *args)`` is a symmetric CSR, the Jacobian of f's gradient."""

    function = "hessian"
    modes = ("auto", "star", "acyclic", "columns")

    def _flat(self, x: Tensor, shape: torch.Size, args: tuple) -> Tensor:
        def scalar(x: Tensor) -> Tensor:
            out = super(Hessian, self)._flat(x, shape, args)
            if out.numel() != 1:
                raise ValueError(
                    f"hessian: f must return one number, got {out.numel()}; use jacobian where f returns more"
                )
            return out.reshape(())

        return torch.func.grad(scalar)(x)

    def _plans(self, pattern: SparsityPattern, mode: str) -> Iterator[tuple[Plan, str]]:
        methods = ("star", "columns") if self.mode == "auto" else (self.mode,)
        best = min((symmetric_plan(pattern, method) for method in methods), key=lambda plan: plan.count)
        # Products with the transpose are the same: used if torch has no forward mode.
        yield best, "forward"
        yield best, "reverse"

    def _pattern(self, u: Tensor, args: tuple) -> tuple[SparsityPattern, str]:
        pattern, mode = super()._pattern(u, args)
        if pattern.shape[0] == pattern.shape[1] and not pattern.equals(pattern.T):
            arrays = [t.numpy() for t in (pattern.col_indices, pattern.crow_indices)]
            S = scipy.sparse.csr_array((np.ones(pattern.nnz, dtype=bool), *arrays), shape=pattern.shape)
            pattern = pattern_of(scipy.sparse.csr_array(S + S.T), pattern.shape[0])
        return pattern, mode


def hessian(
    f: Callable[..., Tensor],
    pattern: Any = None,
    mode: Literal["auto", "star", "acyclic", "columns"] = "auto",
) -> Hessian:
    r"""The sparse Hessian of a scalar function: ``hessian(f)(u, *args)`` is a symmetric CSR.

    The Jacobian of f's gradient, whose entries are read from either side of the diagonal.

    Parameters
    ----------
    f : function of u and args that returns one element, a tensor with u's dtype
    pattern : SparsityPattern, CSR or SciPy matrix, or None: as for `jacobian`; an entry (i, j) without (j, i)
        is completed
    mode : "star" and "acyclic", the colorings of `learnsolve.ordering.symmetric_coloring`; "columns", the
        coloring of `column_coloring`; "auto", star or columns, whichever has fewer colors

    Returns
    -------
    Hessian
        called as ``H(u, *args)``, with the pattern and colors of its first call.

    Raises
    ------
    ValueError
        if f returns more than one element, and as for `jacobian`.
    TypeError
        as for `jacobian`.

    Notes
    -----
    Gradient: as for `jacobian`. Cost: one derivative of f's gradient per color, if one variable occurs in all
    terms, two or three. Source: A. Gebremedhin et al., "New acyclic and star coloring algorithms with
    application to computing Hessians", SIAM J. Sci. Comput. 29 (2007).

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> f = lambda u: (u[:-1] * u[-1]).square().sum()
    >>> H = ls.nonlinear.hessian(f)
    >>> H(torch.arange(1.0, 5.0)).to_dense()
    tensor([[32.,  0.,  0., 16.],
            [ 0., 32.,  0., 32.],
            [ 0.,  0., 32., 48.],
            [16., 32., 48., 28.]])
    """
    return Hessian(f, pattern, mode)
