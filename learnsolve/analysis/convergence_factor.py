"""The asymptotic factor by which an iteration reduces the residual."""

from __future__ import annotations

import torch
from torch import Tensor

from learnsolve.analysis._estimate import Estimate, warn
from learnsolve.matrix import checks
from learnsolve.solvers.solution import Solution, Status


def convergence_factor(history: Tensor | Solution, *, last: float = 0.5, rtol: float = 0.05) -> Estimate:
    r"""The mean factor by which the last part of an iteration reduced the residual,
    :math:`\rho = (\|r_N\| / \|r_m\|)^{1 / (N - m)}`.

    Parameters
    ----------
    history : Solution, or its `residual_norms`: Tensor, shape (N + 1,) or (..., N + 1, k). A column of a
        Solution counts until it stopped; a Tensor is used in full.
    last : the fraction of the iterations that is used, in (0, 1]; at least one iteration is
    rtol : finite tolerance for `converged`; see `error`

    Returns
    -------
    Estimate, value and error of shape () or (..., k). The error, which is not a bound, is the difference
    between the
        factors of the two halves of that part; `converged`: it is at most rtol times the factor everywhere.

    Raises
    ------
    ValueError, TypeError
        if there is no iteration, `last` is not in (0, 1], or `history` is neither a Solution nor a Tensor.
    RuntimeWarning
        (a warning) if norms are not finite, or if the factor has not settled.

    Notes
    -----
    A residual of exactly zero gives the factor 0 with gradient zero. At rounding level residuals no longer
    fall: use fewer iterations. Gradient: exact, to any order, through the two norms (for a Solution, unless
    its gradient is "implicit"). Cost: negligible.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((15,))
    >>> weight = torch.tensor(2 / 3, dtype=torch.float64, requires_grad=True)
    >>> b = torch.randn(15, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    >>> solution = ls.solvers.jacobi(A, b, weight=weight, iterations=300)
    >>> factor = ls.analysis.convergence_factor(solution)
    >>> exact = 1 - 2 / 3 * (1 - torch.cos(torch.tensor(torch.pi / 16)))
    >>> abs(float(factor.value.detach() - exact)) < 1e-6, factor.converged
    (True, True)
    """
    name = "convergence_factor"
    if isinstance(history, Solution):
        norms = history.residual_norms
    elif isinstance(history, Tensor):
        checks.tensor(name, "history", history)
        norms = history
    else:
        raise TypeError(f"{name}: history must be a Solution or a Tensor, got {type(history).__name__}")
    if isinstance(last, bool) or not isinstance(last, (int, float)) or not 0 < last <= 1:
        raise ValueError(f"{name}: last must be in (0, 1], got {last!r}")
    checks.tolerance(name, "rtol", rtol)
    checks.dtype(name, "history", norms)
    if norms.is_meta:
        raise ValueError(f"{name}: history must have data, got a tensor on meta")
    vector = norms.dim() == 1
    if vector:
        norms = norms.unsqueeze(-1)
    if norms.dim() == 0 or norms.shape[-2] < 2:
        raise ValueError(
            f"{name}: history must have shape (N + 1,) or (..., N + 1, k) with N >= 1 iterations, got "
            f"{tuple(norms.shape[: 1 if vector else None])}"
        )
    end = _ends(history, norms.detach(), vector)
    count = (last * end).ceil().long().clamp(min=1)
    value = _factor(norms, end, count)
    # The factors of the halves; one iteration has none, and its error is unknown.
    half = torch.div(count, 2, rounding_mode="floor").clamp(min=1)
    with torch.no_grad():
        late, early = _factor(norms, end, half), _factor(norms, end - half, count - half)
        error = torch.where(count > 1, (late - early).abs(), torch.inf)
        error = torch.where((norms == 0).all(-2), 0, error)
        settled = bool((error <= rtol * value).all())
        finite = bool(torch.isfinite(value).all())
    if not finite:
        warn(name, "the history has infinities or NaNs: the iteration diverged; use fewer iterations")
    elif not settled:
        warn(
            name,
            f"the factor has not settled: it changes by up to {float(error.max()):.2g} within the part used; "
            "run more iterations, or use a smaller part of them (last)",
        )
    if vector:
        value, error = value.squeeze(-1), error.squeeze(-1)
    return Estimate(value, error, settled and finite)


def _ends(history: Tensor | Solution, norms: Tensor, vector: bool) -> Tensor:
    """The last iteration of each column, (..., k)."""
    N = norms.shape[-2] - 1
    whole = torch.full(norms[..., 0, :].shape, N, device=norms.device)
    if isinstance(history, Tensor) or history._codes is None:
        return whole
    ran_on = (Status.MAX_ITERATIONS, Status.STOPPED_BY_CALLBACK)
    stopped = torch.tensor([s not in ran_on for s in history.statuses], device=norms.device)
    moves = norms[..., 1:, :] != norms[..., :-1, :]
    number = torch.arange(1, N + 1, device=norms.device).unsqueeze(-1)
    stop = (moves * number).amax(-2).clamp(min=1)
    return torch.where(stopped.reshape(whole.shape), stop, whole)


def _factor(norms: Tensor, end: Tensor, count: Tensor) -> Tensor:
    """(norms[end] / norms[end - count]) ** (1 / count)."""
    count = count.clamp(min=1)
    pick = lambda at: norms.gather(-2, at.clamp(min=0).unsqueeze(-2)).squeeze(-2)  # noqa: E731
    new, old = pick(end), pick(end - count)
    zero = new == 0  # solved, possibly from the start: 0 / 0
    new, old = torch.where(zero, 1, new), torch.where(zero, 1, old)
    return torch.where(zero, 0, torch.exp((new.log() - old.log()) / count))
