"""A whole solve as one operation of the graph that `torch.compile` or `torch.export` traces.

How often a solve iterates depends on its numbers, so that its loop cannot be traced. The operation runs the
solver itself, outside of what is traced, on the tensors that A and M consist of: hence M must have a compiled
form (`pcg_form`: none, a diagonal, a factor). What does not converge warns when the graph runs, or raises
with `throw`, as a solve outside of a graph does. Its adjoint is one operation more: to a tolerance the
adjoint solve, for a fixed number of iterations the same iterations again, recorded.
"""

from typing import Any

import torch
from torch import Tensor

from learnsolve import _arrivals
from learnsolve.csr import CSR
from learnsolve.ops._autograd import Operation
from learnsolve.ops._pcg_preconditioner import KINDS
from learnsolve.ops._pcg_unfused import applied
from learnsolve.ops._product import sampled
from learnsolve.ops.structure import transpose
from learnsolve.pattern import SparsityPattern
from learnsolve.solvers.core.projected import CONSTANTS
from learnsolve.solvers.core.report import quiet, report
from learnsolve.solvers.options import SOLVERS

_RECENT = 8  # patterns that calls have met, which are not analysed again
_recent: list[SparsityPattern] = []


def opaque(
    values: Tensor,
    b: Tensor,
    x0: Tensor | None,
    m: Tensor | None,
    null: tuple[Any, ...],
    pattern: SparsityPattern,
    factor: SparsityPattern | None,
    call: tuple,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, norms, codes and the number of iterations of a solve. Not checked.

    `call`: the solver's name and `restart` (0: it has none), kind of M, rtol, atol, maxiter, whether it is
    for a fixed number (all norms, of which columns that have stopped keep the last, and a gradient of the
    iterations) or to a tolerance (the first norm and the last, and the implicit gradient), throw, rtol and
    maxiter of the adjoint solve. `null`: the null space of A, or those of A and A^T, each a tensor or
    "constants"; empty for a regular A.
    """
    X = values.new_empty(0) if x0 is None else x0.view_as(x0)
    M = values.new_empty(0) if m is None else m.view_as(m)
    # One tensor for each of the two null spaces, and what they are in one word.
    given = [isinstance(its, Tensor) for its in null]
    N, N_left = (null[i].detach() if i < len(null) and given[i] else values.new_empty(0) for i in range(2))
    kinds = ",".join("given" if its else CONSTANTS for its in given)
    return _Solve.traced.apply(values, b, X, M, N, N_left, pattern, factor, x0 is None, (*call, kinds))


class _Solve(Operation):
    """`opaque`, with its gradient."""

    @staticmethod
    def forward(values, b, x0, m, N, N_left, pattern, factor, from_zero, call):
        return _solve(values, b, x0, m, N, N_left, *_arguments(pattern, factor), from_zero, *call)

    @staticmethod
    def setup_context(ctx, inputs, output):
        *operands, pattern, factor, from_zero, call = inputs
        ctx.constants = (pattern, factor, from_zero, call)
        fixed = call[6]
        ctx.mark_non_differentiable(*output[2 if fixed else 1 :])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*operands, output[0])

    @staticmethod
    def backward(ctx, gx, gnorms, *_):  # type: ignore[override]
        values, b, x0, m, N, N_left, x = ctx.saved_tensors
        pattern, factor, from_zero, call = ctx.constants
        given, fixed = _arguments(pattern, factor), call[6]
        rest = (None,) * 6
        if gx is None and gnorms is None:
            return (None,) * 4 + rest
        needs = list(ctx.needs_input_grad[:4])
        if fixed:
            grads = _again(values, b, x0, m, N, N_left, gx, gnorms, *given, from_zero, needs, *call)
            return (*(g if need else None for g, need in zip(grads, needs, strict=True)), *rest)
        y = _adjoint(values, gx, m, N, N_left, *given, *call)
        u, w = (t.unsqueeze(-1) if b.dim() == 1 else t for t in (y.neg(), x))
        of_A = sampled(u, w, pattern).sum_to_size(values.shape) if needs[0] else None
        return of_A, y.sum_to_size(b.shape) if needs[1] else None, None, None, *rest


def _arguments(pattern: SparsityPattern, factor: SparsityPattern | None) -> tuple[list[Tensor], int]:
    """Patterns as an operator takes them: arrays of A, and of the factor of M with its columns."""
    arrays = [*pattern._structure(False)[:2]]
    return (arrays, 0) if factor is None else ([*arrays, *factor._structure(False)[:2]], factor.shape[1])


_TAGS = (torch.Tag.cudagraph_unsafe,)


@torch.library.custom_op("learnsolve_graph::solve", mutates_args=(), tags=_TAGS)
def _solve(
    values: Tensor,
    b: Tensor,
    x0: Tensor,
    m: Tensor,
    N: Tensor,
    N_left: Tensor,
    arrays: list[Tensor],
    factor_columns: int,
    from_zero: bool,
    name: str,
    restart: int,
    kind: str,
    rtol: float,
    atol: float,
    maxiter: int,
    fixed: bool,
    throw: bool,
    adjoint_rtol: float,
    adjoint_maxiter: int,
    null: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A solve (`opaque`)."""
    A, M = _matrices(values, m, arrays, factor_columns, kind)
    keywords = {"rtol": rtol, "atol": atol, "maxiter": maxiter, **_own(restart, null, N, N_left)}
    start = None if from_zero else x0.detach()
    with torch.no_grad(), quiet():
        # A fixed number runs as it does with a gradient, so that its repetition has the same numbers.
        gradient = "unrolled" if fixed else "implicit"
        solution = SOLVERS[name](A, b.detach(), start, M=M, gradient=gradient, **keywords)
    report(name, solution, throw, rtol > 0 or atol > 0)
    norms = solution.residual_norms
    axis = -1 if b.dim() == 1 else -2
    if fixed:
        norms = _completed(norms, axis, maxiter)
    else:
        norms = torch.stack((norms.select(axis, 0), norms.select(axis, -1)), axis)
    iterations = torch.tensor(solution.iterations, device=b.device)
    codes = solution._codes
    assert codes is not None
    return tuple(
        t.clone(memory_format=torch.contiguous_format) for t in (solution.x, norms, codes, iterations)
    )  # type: ignore[return-value]


@_solve.register_fake
def _(
    values,
    b,
    x0,
    m,
    N,
    N_left,
    arrays,
    columns,
    from_zero,
    name,
    restart,
    kind,
    rtol,
    atol,
    maxiter,
    fixed,
    *_,
):
    rows = maxiter + 1 if fixed else 2
    iterations = b.new_empty((), dtype=torch.int64)
    if b.dim() == 1:
        return b.new_empty(b.shape), b.new_empty(rows), b.new_empty((), dtype=torch.int64), iterations
    lead, (n, k) = torch.broadcast_shapes(values.shape[:-1], b.shape[:-2]), b.shape[-2:]
    codes = b.new_empty((*lead, k), dtype=torch.int64)
    return b.new_empty((*lead, n, k)), b.new_empty((*lead, rows, k)), codes, iterations


@torch.library.custom_op(
    "learnsolve_graph::solve_adjoint", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,)
)
def _adjoint(
    values: Tensor,
    g: Tensor,
    m: Tensor,
    N: Tensor,
    N_left: Tensor,
    arrays: list[Tensor],
    factor_columns: int,
    name: str,
    restart: int,
    kind: str,
    rtol: float,
    atol: float,
    maxiter: int,
    fixed: bool,
    throw: bool,
    adjoint_rtol: float,
    adjoint_maxiter: int,
    null: str,
) -> Tensor:
    """A^-T g by the same method; M is its own transpose, as all with a compiled form are."""
    A, M = _matrices(values, m, arrays, factor_columns, kind)
    own = _own(restart, null, N, N_left, adjoint=True)
    keywords = {"rtol": adjoint_rtol, "maxiter": adjoint_maxiter, **own}
    with torch.no_grad(), quiet():
        solution = SOLVERS[name](transpose(A), g.detach(), M=M, **keywords)
    advice = ", so the derivative is not exact (see adjoint_rtol, adjoint_maxiter)"
    report(f"{name}, adjoint solve of the backward", solution, throw, True, advice)
    return solution.x.clone(memory_format=torch.contiguous_format)


@_adjoint.register_fake
def _(values, g, *_):
    return g.new_empty(g.shape)


@torch.library.custom_op("learnsolve_graph::solve_again", mutates_args=(), tags=_TAGS)
def _again(
    values: Tensor,
    b: Tensor,
    x0: Tensor,
    m: Tensor,
    N: Tensor,
    N_left: Tensor,
    gx: Tensor | None,
    gnorms: Tensor | None,
    arrays: list[Tensor],
    factor_columns: int,
    from_zero: bool,
    needs: list[bool],
    name: str,
    restart: int,
    kind: str,
    rtol: float,
    atol: float,
    maxiter: int,
    fixed: bool,
    throw: bool,
    adjoint_rtol: float,
    adjoint_maxiter: int,
    null: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients for values, b, x0 and m (where they are needed) of a fixed number of iterations."""
    recorded = torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.AutogradFunctionality, False)
    with recorded, torch.enable_grad(), quiet():  # an operator is called below autograd
        pairs = zip((values, b, x0, m), needs, strict=True)
        leaves = tuple(t.detach().requires_grad_(need) for t, need in pairs)
        A, M = _matrices(leaves[0], leaves[3], arrays, factor_columns, kind)
        own = _own(restart, null, N, N_left)
        start = None if from_zero else leaves[2]
        solution = SOLVERS[name](
            A, leaves[1], start, M=M, rtol=0.0, maxiter=maxiter, gradient="unrolled", **own
        )
        norms = _completed(solution.residual_norms, -1 if b.dim() == 1 else -2, maxiter)
        pairs = ((t, g) for t, g in ((solution.x, gx), (norms, gnorms)) if g is not None and t.requires_grad)
        outputs, cotangents = zip(*pairs, strict=True)
        wanted = [t for t, need in zip(leaves, needs, strict=True) if need]
        found = iter(torch.autograd.grad(outputs, wanted, cotangents, allow_unused=True))
    grads = [next(found) if need else None for need in needs]
    return tuple(  # type: ignore[return-value]
        torch.zeros_like(t, memory_format=torch.contiguous_format) if g is None else g.clone()
        for t, g in zip((values, b, x0, m), grads, strict=True)
    )


@_again.register_fake
def _(values, b, x0, m, *_):
    return tuple(t.new_empty(t.shape) for t in (values, b, x0, m))


def _completed(norms: Tensor, axis: int, maxiter: int) -> Tensor:
    """Norms of all iterations; columns that have stopped keep their last."""
    missing = maxiter + 1 - norms.shape[axis]
    if missing == 0:
        return norms
    last = norms.narrow(axis, norms.shape[axis] - 1, 1)
    return torch.cat((norms, *[last] * missing), axis)


def _own(restart: int, kinds: str, N: Tensor, N_left: Tensor, adjoint: bool = False) -> dict[str, Any]:
    """The arguments `restart` and `null_space` of the solve, or of that with A^T, where it has them."""
    found: dict[str, Any] = {"restart": restart} if restart else {}
    if not kinds:
        return found
    pairs = zip(kinds.split(","), (N, N_left), strict=False)
    parts = [its.detach() if kind == "given" else CONSTANTS for kind, its in pairs]
    parts = parts[::-1] if adjoint else parts
    return found | {"null_space": parts[0] if len(parts) == 1 else tuple(parts)}


def _matrices(
    values: Tensor, m: Tensor, arrays: list[Tensor], factor_columns: int, kind: str
) -> tuple[CSR, Any]:
    """A, and M from its form."""
    n = len(arrays[0]) - 1
    A = CSR(values if values.requires_grad else values.detach(), _pattern(arrays[0], arrays[1], (n, n)))
    if kind == "none":
        return A, None
    factor = _pattern(arrays[2], arrays[3], (n, factor_columns)) if len(arrays) > 2 else None
    return A, _OfForm(kind, m if m.requires_grad else m.detach(), factor)


class _OfForm:
    """A preconditioner given by its compiled form."""

    symmetric = True

    def __init__(self, kind: str, m: Tensor, factor: SparsityPattern | None):
        self.kind, self.m, self.factor = kind, m, factor

    def pcg_form(self) -> tuple[str, Tensor, SparsityPattern | None]:
        return self.kind, self.m, self.factor

    def __call__(self, r: Tensor) -> Tensor:
        M = applied(self.m, self.factor, KINDS.index(self.kind))
        return M(r) if r.dim() > 1 else M(r.unsqueeze(-1)).squeeze(-1)


def _pattern(crow: Tensor, col: Tensor, shape: tuple[int, int]) -> SparsityPattern:
    """The pattern with these arrays: that of an earlier call, the program's own, or else a new one."""
    for pattern in reversed(_recent):
        arrays = pattern._arrays
        if pattern.shape == shape and pattern._is_unchanged() and _same(arrays, (crow, col)):
            return pattern
    found = _arrivals.arrived(SparsityPattern(crow, col, shape))
    _recent.append(found)
    del _recent[:-_RECENT]
    return found


def _same(these: tuple[Tensor, ...], those: tuple[Tensor, ...]) -> bool:
    return all(
        t.dtype == u.dtype and t.device == u.device and t.shape == u.shape and torch.equal(t, u)
        for t, u in zip(these, those, strict=True)
    )
