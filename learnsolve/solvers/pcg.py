"""Conjugate gradients as a module, with a trainable preconditioner."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from learnsolve import _check
from learnsolve._conversion import TensorLike
from learnsolve.solvers.cg import cg
from learnsolve.solvers.core.arguments import GRADIENTS
from learnsolve.solvers.fcg import fcg
from learnsolve.solvers.solution import Solution


class PCG(torch.nn.Module):
    """`cg`, or `fcg`, with a trainable preconditioner.

    Parameters
    ----------
    M : callable r -> M r, usually a torch.nn.Module, whose parameters are then those of this module
    flexible : use `fcg`, for an M that is nonlinear or not symmetric
    rtol, atol, maxiter : as for `cg`; rtol=0 for exactly `maxiter` iterations
    gradient : "unrolled" or "checkpointed" for the gradient of M; "implicit" for an M that is not trained
    throw, null_space : as for `cg`

    Raises
    ------
    ValueError
        if gradient is not one of the three.
    TypeError
        if M is not callable; the rest is checked in a call, as by `cg`.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> class Scale(torch.nn.Module):
    ...     symmetric = True  # else `cg` refuses a module
    ...
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.weight = torch.nn.Parameter(torch.linspace(0.5, 1, 64, dtype=torch.float64))
    ...     def forward(self, r):
    ...         return self.weight * r
    >>> A, b = ls.problems.poisson((8, 8)), torch.ones(64, dtype=torch.float64)
    >>> solver = ls.solvers.PCG(Scale(), rtol=0.0, maxiter=4)
    >>> solver(A, b).residual_norms[-1].backward()
    >>> solver.M.weight.grad.shape
    torch.Size([64])
    """

    def __init__(
        self,
        M: Callable[[Tensor], Tensor],
        *,
        flexible: bool = False,
        rtol: float | None = 1e-5,
        atol: float | None = 0.0,
        maxiter: int | None = None,
        gradient: str = "unrolled",
        throw: bool = False,
        null_space: Any = None,
    ):
        super().__init__()
        if not callable(M):
            raise TypeError(f"PCG: M must be a callable r -> M r, got {type(M).__name__}; for none use cg")
        _check.one_of("PCG", "gradient", gradient, GRADIENTS)
        self.M = M
        self.flexible = flexible
        self.rtol, self.atol, self.maxiter = rtol, atol, maxiter
        self.gradient, self.throw, self.null_space = gradient, throw, null_space

    def forward(self, A: Any, b: TensorLike, x0: TensorLike | None = None) -> Solution:
        """`cg` for A x = b with the parameters as they are now; arguments and result as there."""
        return (fcg if self.flexible else cg)(
            A,
            b,
            x0,
            rtol=self.rtol,
            atol=self.atol,
            maxiter=self.maxiter,
            M=self.M,
            gradient=self.gradient,
            throw=self.throw,
            null_space=self.null_space,
        )

    def extra_repr(self) -> str:
        return (
            f"flexible={self.flexible}, rtol={self.rtol}, atol={self.atol}, maxiter={self.maxiter}, "
            f"gradient={self.gradient!r}"
        )
