"""`cg` for a fixed number of iterations, by the compiled loop of ops/pcg.py where it can.

On a CUDA device nothing here waits for it, so that a solve can be part of a CUDA graph. What would have to be
read is not: the solution has all iterations that were asked for, in which columns that have stopped keep
their last norm, and A is taken as it is, whatever the size of its entries.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from learnsolve import _device_analysis
from learnsolve._plain import outside_of_graphs
from learnsolve.csr import CSR
from learnsolve.ops.pcg import Stop, pcg_iterations
from learnsolve.solvers import _units
from learnsolve.solvers._compiled_cg import codes_of, fits, has_kernels
from learnsolve.solvers._operator import as_operator, compiled_form
from learnsolve.solvers._solve import Options, _mapped, check_b, check_operands, check_options, columns
from learnsolve.solvers._vectors import size
from learnsolve.solvers.base import CODE, Solution, SolverError, Status


@outside_of_graphs
def fused_cg(name: str, A: Any, b: Any, x0: Tensor | None, options: Options) -> Solution | None:
    """The solution, or None where the general loop is needed: then nothing has been done."""
    form = compiled_form(options.M)
    fixed = options.rtol == 0 and options.atol == 0 and options.maxiter is not None
    if form is None or not fixed or options.callback is not None or options.gradient == "implicit":
        return None
    if not (isinstance(A, CSR) and isinstance(b, Tensor) and has_kernels(A.values, b)):
        return None
    check_b(name, b)
    check_options(name, options)
    operator = as_operator(name, A, b, options.transpose, tuple(options.parameters), True)
    batch = check_operands(name, A, b)
    kind, m, factor = form
    same_x0 = x0 is None or (
        isinstance(x0, Tensor) and (x0.shape, x0.dtype, x0.device) == (b.shape, b.dtype, b.device)
    )
    B = columns(b, b.dim() == 1, batch)
    if not same_x0 or not fits(m, b):
        return None
    if _mapped(b) or _mapped(A.values):
        return None
    looks = not _device_analysis.here(b)
    if looks and _units.choose(operator, B) is not None:
        return None
    unit = None if looks else _units.of_right_hand_side(B)

    lead = B.shape[:-2]
    systems = math.prod(lead)  # not -1, which has no meaning for batches without numbers
    values = A.values
    if batch:
        values = values.expand((*lead, values.shape[-1])).reshape(systems, values.shape[-1])
    X = None
    if x0 is not None:  # A x = 0 is solved by zero, wherever one starts
        X = torch.where(size(B) == 0, 0, columns(x0, b.dim() == 1, batch))
        X = (X if unit is None else X / unit).reshape(systems, *B.shape[-2:])
    if unit is not None:
        B = B / unit
    assert options.maxiter is not None
    x, norms, status = pcg_iterations(
        values, B.reshape(systems, *B.shape[-2:]), X, A.pattern, options.maxiter,
        kind=kind, m=m, factor=factor, checkpointed=options.gradient == "checkpointed",
    )  # fmt: skip
    why, when = status.unbind(-2)
    iterations = options.maxiter
    if looks:
        ran = torch.where(why == Stop.RUNNING, options.maxiter, when)
        iterations = int(ran.max()) if ran.numel() else 0
    # At rounding level there was no tolerance that a column could have met: all iterations ran.
    codes = torch.where(norms.detach()[..., 0, :] == 0, CODE[Status.CONVERGED], codes_of(why))
    norms = norms[..., : iterations + 1, :]
    x, norms, codes = (t.reshape(*lead, *t.shape[1:]) for t in (x, norms, codes))
    if unit is not None:
        x, norms = x * unit, norms * unit
    if b.dim() == 1 and x.dim() == 2:
        solution = Solution(x.squeeze(-1), iterations, norms.squeeze(-1), -1, codes=codes.squeeze(-1))
    else:
        solution = Solution(x, iterations, norms, -2, codes=codes)
    if options.throw and not solution.converged:
        raise SolverError(name, solution)
    return solution
