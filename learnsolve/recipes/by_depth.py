"""Incremental training of weights that differ from iteration to iteration: depth 1 first, then 2, ...

Source: D. Ito, S. Takabe, T. Wadayama, "Trainable ISTA for sparse signal recovery", IEEE Trans. Signal
Processing 67 (2019), section III; S. Takabe, T. Wadayama, "Convergence acceleration via Chebyshev step:
plausible interpretation of deep-unfolded gradient descent", arXiv 2010.13335.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from learnsolve.recipes.schedule import iterations_at


def train_by_depth(
    loss: Callable[..., Tensor],
    weights: Sequence[Tensor],
    optimizer: torch.optim.Optimizer,
    *,
    steps: int,
    carry: bool = False,
) -> list[float]:
    """Train the first weight of an iteration, then the first two, and so on, each depth starting from the
    weights learned at the previous one: a deep iteration starts near a good shallow one.

    Parameters
    ----------
    loss : function of the weights of the first iterations, ``w[:depth]`` for each of `weights`, for any depth
    weights : parameters of the same length, with one entry per iteration: the step sizes of
        `solvers.richardson`, alpha and beta of `solvers.heavyball`
    optimizer : optimizer of the weights, which keeps its state from depth to depth. Without weight decay,
        which would change weights that are not trained yet
    steps : optimizer steps at each depth
    carry : a new iteration starts from the weights of the previous one instead of its own

    Returns
    -------
    list of float, the loss before the last step of each depth

    Raises
    ------
    ValueError
        if the weights differ in length, or steps is less than 1
    FloatingPointError
        if a loss is not finite; the weights are those after the last good step

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((16,))
    >>> w = torch.nn.Parameter(torch.full((3,), 0.2, dtype=torch.float64))
    >>> x = torch.randn(16, 8, dtype=A.dtype, generator=torch.Generator().manual_seed(0))
    >>> error = lambda w: ls.solvers.richardson(A, A @ x, weight=w, iterations=len(w)).x - x
    >>> optimizer = torch.optim.Adam([w], lr=0.02)
    >>> losses = train_by_depth(lambda w: error(w).square().mean(), [w], optimizer, steps=30)
    >>> losses[0] > losses[1] > losses[2]
    True
    """
    depths = {len(w) for w in weights}
    if len(depths) != 1 or 0 in depths:
        raise ValueError(
            f"train_by_depth: weights must have one length, an entry for each iteration, got {sorted(depths)}"
        )
    if steps < 1:
        raise ValueError(f"train_by_depth: steps must be at least 1, got {steps}")
    (most,), losses = depths, []
    for step in range(most * steps):
        depth = iterations_at(step, most, steps)
        if carry and depth > 1 and step % steps == 0:
            with torch.no_grad():
                for w in weights:
                    w[depth - 1] = w[depth - 2]
        value = loss(*(w[:depth] for w in weights))
        number = value.item()
        if not -float("inf") < number < float("inf"):
            raise FloatingPointError(
                f"train_by_depth: the loss is {number} at depth {depth}, step {step % steps}; lower the "
                "learning rate or start from smaller weights"
            )
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        if (step + 1) % steps == 0:
            losses.append(number)
    return losses
