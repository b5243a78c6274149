"""Solves as part of the graph that `torch.compile` or `torch.export` traces: a fixed number of iterations of
`cg`, whose compiled calls are traced, and the others with an M of a compiled form, as one operation each
(graph_operator.py). What is neither breaks the graph (`outside_of_graphs` in door.py).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from learnsolve.csr import CSR
from learnsolve.ops._pcg_unfused import Stop
from learnsolve.ops.pcg import pcg_iterations
from learnsolve.solvers.core.arguments import (
    check_b,
    check_operands,
    check_options,
    check_symmetric,
    check_x0,
    no_implicit_gradient,
)
from learnsolve.solvers.core.graph_operator import opaque
from learnsolve.solvers.core.operators import as_operator, as_preconditioner, compiled_form
from learnsolve.solvers.core.projected import CONSTANTS
from learnsolve.solvers.options import Options
from learnsolve.solvers.solution import CODE, COMPILED, EAGER, Solution, Status

METHODS = (
    "cg",
    "fcg",
    "minres",
    "bicgstab",
    "gmres",
    "fgmres",
)


def _traced_cg(A: Any, b: Any, x0: Any, options: Options) -> Solution | None:
    """`cg` with gradient "unrolled" or "checkpointed", rtol = atol = 0 and a maxiter, for one CSR and an M of
    the compiled loop; None for any other call. The norms are those of all iterations, as on a CUDA device."""
    fixed = options.gradient != "implicit" and options.maxiter is not None and options.callback is None
    if not fixed or options.rtol != 0 or options.atol != 0 or options.throw or options.null_space is not None:
        return None
    form = compiled_form(options.M)
    if form is None or not isinstance(A, CSR) or not isinstance(b, Tensor):
        return None
    if A.values.dim() > 1 or b.dim() > 2:
        return None
    _check_call("cg", A, b, x0, options, True)
    kind, m, factor = form
    B, X0 = (t.unsqueeze(-1) if t is not None and b.dim() == 1 else t for t in (b, x0))
    assert B is not None
    assert options.maxiter is not None
    start = None if X0 is None else torch.where((B == 0).all(0, keepdim=True), 0, X0)
    x, norms, status = pcg_iterations(
        A.values,
        B,
        start,
        A.pattern,
        options.maxiter,
        kind=kind,
        m=m,
        factor=factor,
        checkpointed=options.gradient == "checkpointed",
    )
    why = status[0]
    codes = torch.full_like(why, CODE[Status.MAX_ITERATIONS])
    for stop, code in _CODES.items():
        codes = torch.where(why == stop, code, codes)
    codes = torch.where(norms[0] == 0, CODE[Status.CONVERGED], codes)
    codes = torch.where(torch.isfinite(x).all(0), codes, CODE[Status.NON_FINITE])
    if b.dim() == 1:
        x, norms, codes = x.squeeze(-1), norms.squeeze(-1), codes.squeeze(-1)
    return Solution(x, options.maxiter, norms, 0, codes=codes.detach(), loop=COMPILED)


def traced_solve(
    name: str, A: Any, b: Any, x0: Any, options: Options, symmetric: bool, restart: int
) -> Solution | None:
    """A solve with the implicit gradient, or for a fixed number of iterations, as one operation; None for any
    other call. To a tolerance `residual_norms` are the first and the last, and `iterations` is a tensor."""
    if name == "cg" and (traced := _traced_cg(A, b, x0, options)) is not None:
        return traced
    if name not in METHODS or not isinstance(A, CSR) or not isinstance(b, Tensor):
        return None
    if options.callback is not None or options.parameters or options.transpose is not None:
        return None
    fixed = options.gradient != "implicit"
    given = options.null_space
    null = () if given is None else tuple(given) if isinstance(given, (tuple, list)) else (given,)
    if isinstance(options.atol, Tensor) or options.adjoint_M is not None or not all(map(_is_null, null)):
        return None
    if fixed and (options.rtol != 0 or options.atol != 0 or options.maxiter is None):
        return None
    form = compiled_form(options.M)
    if form is None:
        return None
    _check_call(name, A, b, x0, options, symmetric)
    if not fixed:
        _refuse_what_learns(name, A, x0, options.M)
    kind, m, factor = form
    maxiter = 10 * A.shape[0] if options.maxiter is None else options.maxiter
    of_adjoint = options.rtol if options.adjoint_rtol is None else options.adjoint_rtol
    its_maxiter = maxiter if options.adjoint_maxiter is None else options.adjoint_maxiter
    m = m if fixed or m is None else m.detach()
    x, norms, codes, iterations = opaque(
        A.values,
        b,
        x0 if fixed or x0 is None else x0.detach(),
        m,
        null,
        A.pattern,
        factor,
        (
            *(name, restart, kind, float(options.rtol), float(options.atol), maxiter, fixed, options.throw),
            *(float(of_adjoint), its_maxiter),
        ),
    )
    steps = name != "fcg" and kind in ("none", "diagonal") and b.dim() == 1 and A.values.dim() == 1
    loop = COMPILED if name == "cg" or (steps and b.is_cpu) else EAGER
    axis = -1 if b.dim() == 1 else -2
    return Solution(x, iterations, norms, axis, codes=codes, loop=loop)  # type: ignore[arg-type]


def _is_null(given: Any) -> bool:
    """May `null_space` have it? Anything else is refused outside of the graph."""
    if isinstance(given, Tensor):
        return not given.requires_grad
    return isinstance(given, str) and given == CONSTANTS


def _check_call(name: str, A: CSR, b: Tensor, x0: Tensor | None, options: Options, symmetric: bool) -> None:
    check_b(name, b)
    check_options(name, options)
    as_operator(name, A, b, None, options.parameters)
    check_operands(name, A, b)
    check_x0(name, x0, b)
    if symmetric:
        check_symmetric(name, options.M)
    as_preconditioner(name, "M", options.M, b)


def _refuse_what_learns(name: str, A: CSR, x0: Tensor | None, M: Any) -> None:
    """As `refuse_what_has_no_implicit_gradient`, of what can be traced: an M made of A's own values may
    learn, since the solution depends on A only."""
    if not torch.is_grad_enabled():
        return
    if x0 is not None and x0.requires_grad:
        raise no_implicit_gradient(name, "x0")
    if M is None:
        return
    named = getattr(M, "depends_on", None) or tuple(M.parameters())
    for t in named:
        if t.requires_grad and not (hasattr(M, "depends_on") and t is A.values):
            raise no_implicit_gradient(name, "M")


_CODES = {
    int(Stop.CURVATURE): CODE[Status.INDEFINITE],
    int(Stop.PRECONDITIONER): CODE[Status.INDEFINITE],
    int(Stop.NON_FINITE): CODE[Status.NON_FINITE],
    int(Stop.DIVERGED): CODE[Status.DIVERGED],
}
