"""Solves as part of the graph that `torch.compile` or `torch.export` traces: a fixed number of iterations of
`cg`, whose compiled calls are traced, and the others with an M of a compiled form, as one operator each
(graph_operator.py). What is neither breaks the graph (`outside_of_graphs` in door.py).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from learnsolve.matrix.csr import CSR
from learnsolve.ops.core.pcg_unfused import Stop
from learnsolve.ops.pcg import pcg_iterations
from learnsolve.solvers.core.arguments import check_symmetric, check_system, refuse_what_learns
from learnsolve.solvers.core.gradient import transformed
from learnsolve.solvers.core.graph_operator import Call, solve
from learnsolve.solvers.core.operators import compiled_form
from learnsolve.solvers.core.projected import CONSTANTS
from learnsolve.solvers.options import Options
from learnsolve.solvers.solution import CODE, COMPILED, EAGER, Solution, Status

METHODS = ("cg", "fcg", "minres", "bicgstab", "gmres", "fgmres")


def traced_solve(
    name: str, method: Any, A: Any, b: Any, x0: Any, options: Options, symmetric: bool
) -> Solution | None:
    """A solve with the implicit gradient, or for a fixed number of iterations; None for any other call. In an
    operator `iterations` is a tensor, and to a tolerance `residual_norms` are the first and the last."""
    if transformed() or name not in METHODS or not isinstance(A, CSR) or not isinstance(b, Tensor):
        return None
    if options.callback is not None or options.parameters or options.transpose is not None:
        return None
    null = options.null_space
    null = () if null is None else tuple(null) if isinstance(null, (tuple, list)) else (null,)
    if isinstance(options.atol, Tensor) or options.adjoint_M is not None or not all(map(_is_null, null)):
        return None
    fixed = options.gradient != "implicit"
    if fixed and (options.rtol != 0 or options.atol != 0 or options.maxiter is None):
        return None
    form = compiled_form(options.M)
    if form is None:
        return None
    check_system(name, A, b, x0, options, symmetric)
    if symmetric and not getattr(method, "flexible", False):
        check_symmetric(name, options.M)
    if not fixed:
        refuse_what_learns(name, x0, options.M, (A.values,))
    elif name == "cg" and not (options.throw or null) and A.values.dim() == 1 and b.dim() <= 2:
        return _traced_cg(A, b, x0, options, *form)
    kind, m, factor = form
    maxiter = 10 * A.shape[0] if options.maxiter is None else options.maxiter
    call = Call(
        name=name,
        kind=kind,
        null=",".join(["given" if isinstance(N, Tensor) else N for N in null]),
        fixed=fixed,
        throw=options.throw,
        from_zero=x0 is None,
        restart=getattr(method, "restart", 0),
        maxiter=maxiter,
        adjoint_maxiter=maxiter if options.adjoint_maxiter is None else options.adjoint_maxiter,
        factor_columns=0 if factor is None else factor.shape[1],
        rtol=float(options.rtol),
        atol=float(options.atol),
        adjoint_rtol=float(options.rtol if options.adjoint_rtol is None else options.adjoint_rtol),
    )
    others = [t if fixed else t.detach() for t in (x0, m) if t is not None]
    others += [N.detach() for N in null if isinstance(N, Tensor)]
    for pattern in (A.pattern, factor):
        if pattern is not None:
            others += pattern._structure(False)[:2]
    x, norms, codes, iterations = solve([A.values, b, *others], *call.encoded())
    steps = name != "fcg" and kind in ("none", "diagonal") and b.dim() == 1 and A.values.dim() == 1
    execution = COMPILED if name == "cg" or (steps and b.is_cpu) else EAGER
    return Solution(x, iterations, norms, -1 if b.dim() == 1 else -2, codes=codes, execution=execution)


def _is_null(null: Any) -> bool:
    """May `null_space` have it? Anything else is rejected outside of the graph."""
    if isinstance(null, Tensor):
        return not null.requires_grad
    return isinstance(null, str) and null == CONSTANTS


def _traced_cg(
    A: CSR, b: Tensor, x0: Tensor | None, options: Options, kind: str, m: Tensor | None, factor: Any
) -> Solution:
    """A fixed number of iterations, for one matrix. The norms are those of all iterations, as on a CUDA
    device."""
    B, start = (t.unsqueeze(-1) if t is not None and b.dim() == 1 else t for t in (b, x0))
    assert B is not None
    assert options.maxiter is not None
    if start is not None:
        start = torch.where((B == 0).all(0, keepdim=True), 0, start)
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
    codes = torch.full_like(status[0], CODE[Status.MAX_ITERATIONS])
    for stop, code in _CODES.items():
        codes = torch.where(status[0] == stop, code, codes)
    codes = torch.where(norms[0] == 0, CODE[Status.CONVERGED], codes)
    codes = torch.where(torch.isfinite(x).all(0), codes, CODE[Status.NON_FINITE])
    if b.dim() == 1:
        x, norms, codes = x.squeeze(-1), norms.squeeze(-1), codes.squeeze(-1)
    return Solution(x, options.maxiter, norms, 0, codes=codes.detach(), execution=COMPILED)


_CODES = {
    int(Stop.CURVATURE): CODE[Status.INDEFINITE],
    int(Stop.PRECONDITIONER): CODE[Status.INDEFINITE],
    int(Stop.NON_FINITE): CODE[Status.NON_FINITE],
    int(Stop.DIVERGED): CODE[Status.DIVERGED],
}
