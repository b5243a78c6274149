"""A fixed number of iterations of `cg` as part of the graph that `torch.compile` or `torch.export` traces.

A solve to a tolerance reads values back, so it breaks the graph (`outside_of_graphs` in _solve.py).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from learnsolve.csr import CSR
from learnsolve.ops.pcg import Stop, pcg_iterations
from learnsolve.solvers._operator import as_operator, as_preconditioner, compiled_form
from learnsolve.solvers._options import (
    Options,
    check_b,
    check_operands,
    check_options,
    check_symmetric,
    check_x0,
)
from learnsolve.solvers.base import CODE, COMPILED, Solution, Status


def traced_cg(A: Any, b: Tensor, x0: Tensor | None, options: Options) -> Solution | None:
    """`cg` with gradient "unrolled" or "checkpointed", rtol = atol = 0 and a maxiter, for one CSR and an M of
    the compiled loop; None for any other call. The norms are those of all iterations, as on a CUDA device."""
    fixed = options.gradient != "implicit" and options.maxiter is not None and options.callback is None
    if not fixed or options.rtol != 0 or options.atol != 0 or options.throw:
        return None
    form = compiled_form(options.M)
    if form is None or not isinstance(A, CSR) or not isinstance(b, Tensor):
        return None
    if A.values.dim() > 1 or b.dim() > 2:
        return None
    check_b("cg", b)
    check_options("cg", options)
    as_operator("cg", A, b, None, options.parameters)
    check_operands("cg", A, b)
    check_x0("cg", x0, b)
    check_symmetric("cg", options.M)
    as_preconditioner("cg", "M", options.M, b)
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


_CODES = {
    int(Stop.CURVATURE): CODE[Status.INDEFINITE],
    int(Stop.PRECONDITIONER): CODE[Status.INDEFINITE],
    int(Stop.NON_FINITE): CODE[Status.NON_FINITE],
    int(Stop.DIVERGED): CODE[Status.DIVERGED],
}
