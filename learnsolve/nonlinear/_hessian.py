"""`hessian`: sparse Hessians of scalar functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from learnsolve.matrix import convert
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.nonlinear._compress import Plan, symmetric_plan
from learnsolve.nonlinear._jacobian import Jacobian


class Hessian(Jacobian):
    """What `hessian` returns: ``H(u, *args)`` is a symmetric CSR, the Jacobian of f's gradient."""

    function = "hessian"
    modes = ("auto", "star", "columns")

    def _flat(self, x: Tensor, shape: torch.Size, args: tuple) -> Tensor:
        def scalar(x: Tensor) -> Tensor:
            out = super(Hessian, self)._flat(x, shape, args)
            if out.numel() != 1:
                raise ValueError(
                    f"hessian: f must return one number, got {out.numel()}; use jacobian where f returns more"
                )
            return out.reshape(())

        return torch.func.grad(scalar)(x)

    def _plans(self, pattern: SparsityPattern, mode: str) -> list[tuple[Plan, str]]:
        methods = ("star", "columns") if self.mode == "auto" else (self.mode,)
        best = min((symmetric_plan(pattern, method) for method in methods), key=lambda plan: plan.count)
        # Products with the transpose are the same: they serve where torch has no forward mode.
        return [(best, "forward"), (best, "reverse")]

    def _pattern(self, u: Tensor, args: tuple) -> tuple[SparsityPattern, str]:
        pattern, mode = super()._pattern(u, args)
        if not pattern.equals(pattern.T):
            arrays = [t.numpy() for t in (pattern.col_indices, pattern.crow_indices)]
            S = scipy.sparse.csr_array((np.ones(pattern.nnz, dtype=bool), *arrays), shape=pattern.shape)
            pattern = convert.scipy_parts(scipy.sparse.csr_array(S + S.T, dtype=np.float64))[1]
        return pattern, mode


def hessian(
    f: Callable[..., Tensor], pattern: Any = None, mode: Literal["auto", "star", "columns"] = "auto"
) -> Hessian:
    return Hessian(f, pattern, mode)
