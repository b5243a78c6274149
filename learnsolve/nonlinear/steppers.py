"""Implicit time steps, differentiated in O(sqrt(steps)) memory."""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from learnsolve.arguments import Index, checker, keywords, read_rules
from learnsolve.matrix.checks import check_arguments
from learnsolve.matrix.csr import CSR
from learnsolve.nonlinear._linear import if_alike
from learnsolve.nonlinear._methods import newton
from learnsolve.nonlinear._pattern import Function
from learnsolve.nonlinear.equations import Start, make_settings, outside, root, solve
from learnsolve.nonlinear.jacobians import convert_pattern
from learnsolve.ops.arithmetic import add
from learnsolve.ops.blocks import eye
from learnsolve.solvers.core.gradient import transforms_active
from learnsolve.solvers.solution import Solution


@check_arguments
@outside
def implicit_euler(
    f: Function, u0: Start, steps: Index, dt: float | Tensor, *args: object, **options: object
) -> Solution:
    r"""Time steps :math:`u_{k+1} = u_k + \Delta t\, f(u_{k+1}, \mathtt{args})`, first order, L-stable.

    Parameters
    ----------
    f : callable ``(u, *args)`` -> Tensor of u's shape: du/dt
    u0 : Tensor of any shape, float32 or float64
    steps : int >= 0
    dt : float, or Tensor with one element, which gets a gradient
    args : see `root`
    options : jacobian (of f, or its pattern), linear, M, rtol, atol, maxiter, forcing, throw, adjoint_rtol,
        adjoint_maxiter: for each step, as for `root`

    Returns
    -------
    Solution: `x`, u after the last step, `iterations`, of all steps together, `residual_norms`, (steps), at
    the end of each step, and status and statuses, the worst of all steps. Intermediate states need one call
    each.

    Raises
    ------
    ValueError, TypeError, SolverError
        see `root`.

    Notes
    -----
    Gradient: implicit for every step, for u0, dt and args, to any order, forward mode, vmap. The backward
    pass repeats the steps in segments of about sqrt(steps), and holds the graph of one segment at a time. A
    step also ends when its residual is below 10 rounding units of u.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> u0 = torch.ones(1, dtype=torch.float64, requires_grad=True)
    >>> u = ls.nonlinear.implicit_euler(lambda u: -u, u0, 4, 0.25).x
    >>> u.detach(), torch.autograd.grad(u.sum(), u0)[0]  # 1.25 ** -4
    (tensor([0.4096], dtype=torch.float64), tensor([0.4096], dtype=torch.float64))
    """
    return _steps("implicit_euler", 1.0, f, u0, steps, dt, args, options)


@check_arguments
@outside
def trapezoidal(
    f: Function, u0: Start, steps: Index, dt: float | Tensor, *args: object, **options: object
) -> Solution:
    r"""Steps :math:`u_{k+1} = u_k + \frac{\Delta t}{2} (f(u_k) + f(u_{k+1}))`, second order, A-stable.

    Parameters
    ----------
    f, u0, steps, dt, args, options : see `implicit_euler`

    Returns
    -------
    Solution, as for `implicit_euler`

    Raises
    ------
    ValueError, TypeError, SolverError
        see `root`.

    Notes
    -----
    Gradient and memory: as for `implicit_euler`.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> u0 = torch.ones(1, dtype=torch.float64)
    >>> ls.nonlinear.trapezoidal(lambda u: -u, u0, 4, 0.25).x  # (0.875 / 1.125) ** 4
    tensor([0.3660], dtype=torch.float64)
    """
    return _steps("trapezoidal", 0.5, f, u0, steps, dt, args, options)


_OPTIONS: dict[str, Any] = {
    "jacobian": "auto",
    "linear": "auto",
    "M": "auto",
    "rtol": None,
    "atol": 0.0,
    "maxiter": 50,
    "forcing": None,
    "throw": False,
    "adjoint_rtol": None,
    "adjoint_maxiter": None,
}
_RULES = read_rules(root)


def _steps(
    name: str,
    share: float,
    f: Callable,
    u0: Tensor,
    steps: int,
    dt: object,
    args: tuple,
    options: dict[str, Any],
) -> Solution:
    keywords(name, options, _OPTIONS)
    _, options = checker(root, name, _RULES)((), options)
    o = _OPTIONS | options
    rtol, atol, maxiter, forcing = (o.pop(key) for key in ("rtol", "atol", "maxiter", "forcing"))
    settings = make_settings(u0, rtol, atol, maxiter, None, relative_to_u=True, forcing=forcing)
    if not isinstance(dt, Tensor):
        dt = torch.as_tensor(dt, dtype=u0.dtype, device=u0.device)
    if dt.numel() != 1:
        raise ValueError(f"{name}: dt must be a number or have one element, got shape {tuple(dt.shape)}")
    o["jacobian"] = _step_jacobian(name, o["jacobian"], u0)

    def residual(v: Tensor, before: Tensor, weight: Tensor, *args: object) -> Any:
        return if_alike(f(v, *args), v, lambda y: v - weight * y - before)

    ended: dict[int, Solution] = {}

    def segment(u: Tensor, first: int, last: int) -> Tensor:
        for k in range(first, last):
            before = u if share == 1 else u + (dt - share * dt) * f(u, *args)
            step = solve(
                name,
                f,
                u,
                (before, share * dt, *args),
                newton,
                settings,
                residual=residual,
                gradient="implicit",
                trusted=k > 0,
                **o,
            )
            u = step.x
            ended.setdefault(k, step)
        return u

    u, length = u0, max(isqrt(steps), 1)
    for first in range(0, steps, length):
        last = min(first + length, steps)
        if torch.is_grad_enabled() and not transforms_active():
            u = checkpoint(segment, u, first, last, use_reentrant=False, preserve_rng_state=False)
        else:
            u = segment(u, first, last)
    return _join_solutions(u, [ended[k] for k in range(steps)])


def _step_jacobian(name: str, jacobian: object, u: Tensor) -> Any:
    """The Jacobian of v - weight f(v) - before, from the Jacobian of f."""
    if jacobian is None or isinstance(jacobian, str):
        return jacobian
    one = eye(u.numel(), dtype=u.dtype, device=u.device)
    if callable(jacobian) and not isinstance(jacobian, CSR):
        J: Any = jacobian
        return lambda v, before, weight, *args: add(one, J(v, *args), beta=-weight)
    pattern = convert_pattern(name, jacobian, "jacobian")
    return add(CSR(torch.ones(pattern.nnz, dtype=u.dtype, device=u.device), pattern), one).pattern


def _join_solutions(u: Tensor, steps: list[Solution]) -> Solution:
    """The worst status of the steps."""
    if not steps:
        return Solution(u, 0, u.new_zeros(1), -1, codes=torch.tensor(1, device=u.device))
    norms = torch.stack([step.residual_norms[..., -1] for step in steps], -1)
    codes = torch.stack([step._codes for step in steps], -1).amax(-1)  # type: ignore[arg-type]
    total = Solution(u, sum(step.iterations for step in steps), norms, -1, codes=codes)
    total.seconds = sum(step.seconds or 0.0 for step in steps)
    total.method, total.reason = steps[-1].method, steps[-1].reason
    return total
