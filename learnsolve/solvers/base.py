"""What every solver returns: `Solution`, and `Status`, a sentence on what happened."""

from __future__ import annotations

import enum
from collections.abc import Callable

import torch
from torch import Tensor


class Status(enum.Enum):
    """How a solve ended. The value is a sentence: what happened and what to try."""

    CONVERGED = "The residual norm reached the tolerance."
    MAX_ITERATIONS = "All requested iterations ran; no tolerance was reached or asked for."
    DIVERGED = (
        "The residual norm grew more than tenfold: the iteration diverges. Use a smaller weight; for a "
        "symmetric positive definite A, Jacobi converges if 0 < weight < 2 / lambda_max(D^-1 A)."
    )
    NON_FINITE = (
        "The iteration produced infinities or NaNs: it left the range of the dtype, or A, b, x0 or "
        "the weight hold them. Check the input, reduce the weight or the number of "
        "iterations, or use float64."
    )

    def __str__(self) -> str:
        return self.value


class Solution:
    """The result of a solve.

    Attributes
    ----------
    x : Tensor, the last iterate, of b's shape (with A's batch axes, if it has some that b has not)
    iterations : int, how many ran
    residual_norms : Tensor, shape (..., iterations + 1), or (..., iterations + 1, k) for k right-hand sides:
        ||b - A x_i|| for every iterate, the initial one first; differentiable. Completed when it is asked
        for: the last norm costs a product with A. RuntimeError if A's values, b or x were changed in place
        since the solve.
    status : Status, of the worst column; asking for it waits for the device
    converged : bool, status is CONVERGED
    """

    def __init__(
        self,
        x: Tensor,
        iterations: int,
        residual_norms: Callable[[], Tensor],
        axis: int,
        needs: tuple[Tensor, ...],
    ):
        self.x = x
        self.iterations = iterations
        self._complete = residual_norms
        self._norms: Tensor | None = None
        self._axis = axis  # of residual_norms, along which the iterates lie
        self._grad_enabled = torch.is_grad_enabled()
        self._needs = [(t, _version(t)) for t in needs]

    @property
    def residual_norms(self) -> Tensor:
        if self._norms is not None:
            return self._norms
        if any(_version(t) != version for t, version in self._needs):
            raise RuntimeError(
                "Solution.residual_norms: A.values, b or x was changed in place after the solve; ask for the "
                "norms before, or solve with clones"
            )
        # As at the time of the solve, whoever asks first: a graph must not depend on who that was.
        with torch.set_grad_enabled(self._grad_enabled):
            self._norms = self._complete()
        return self._norms

    @property
    def status(self) -> Status:
        norms = self.residual_norms.detach()
        if not (torch.isfinite(norms).all() and torch.isfinite(self.x.detach()).all()):
            return Status.NON_FINITE
        if (norms.select(self._axis, -1) > 10 * norms.select(self._axis, 0)).any():
            return Status.DIVERGED
        return Status.MAX_ITERATIONS

    @property
    def converged(self) -> bool:
        return self.status is Status.CONVERGED

    def __repr__(self) -> str:
        return f"Solution(x={tuple(self.x.shape)}, iterations={self.iterations}, status={self.status.name})"


def _version(t: Tensor) -> int:
    return -1 if torch.compiler.is_dynamo_compiling() or t.is_inference() else t._version
