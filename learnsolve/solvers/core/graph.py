"""Solves as part of the graph that `torch.compile` or `torch.export` traces.

A fixed number of iterations of `cg` is traced through its compiled calls. The number of iterations of any
other solve depends on its values, so its loop cannot be traced: it becomes one operator, `solve`, which runs
the solver outside the traced code, on the tensors that A and M consist of. Hence M must have a compiled form
(`pcg_form`: none, a diagonal, a factor). A solve that does not converge warns when the graph runs, or raises
with `throw`, as outside a graph. Its gradient is one more operator: to a tolerance the adjoint solve, for a
fixed number of iterations the same iterations again, recorded. All other calls break the graph
(`outside_of_graphs` in door.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from learnsolve.matrix import interning
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.core.pcg_preconditioner import KINDS
from learnsolve.ops.core.pcg_unfused import applied
from learnsolve.ops.core.product import sampled
from learnsolve.ops.pcg import pcg_iterations
from learnsolve.ops.structure import transpose
from learnsolve.solvers.core.advance_cg import STOP_CODE
from learnsolve.solvers.core.arguments import check_symmetric, check_system, refuse_what_learns
from learnsolve.solvers.core.gradient import transformed
from learnsolve.solvers.core.operators import compiled_form
from learnsolve.solvers.core.projected import CONSTANTS
from learnsolve.solvers.core.report import quiet, report
from learnsolve.solvers.options import KRYLOV, SOLVERS, Options
from learnsolve.solvers.solution import CODE, COMPILED, EAGER, Solution, Status

_patterns: interning.Recent[SparsityPattern] = interning.Recent(8)  # not analyzed again
_TAGS = (torch.Tag.cudagraph_unsafe,)


def traced_solve(
    name: str, method: Any, A: Any, b: Any, x0: Any, options: Options, symmetric: bool
) -> Solution | None:
    """A solve with the implicit gradient, or for a fixed number of iterations; None for any other call.
    Inside an operator `iterations` is a tensor; to a tolerance `residual_norms` has only the first and the
    last norm."""
    if transformed() or name not in KRYLOV or not isinstance(A, CSR) or not isinstance(b, Tensor):
        return None
    if b.is_complex():
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
    steps = hasattr(method, "steps") and kind in ("none", "diagonal") and b.dim() == 1 and A.values.dim() == 1
    execution = COMPILED if name == "cg" or (steps and b.is_cpu) else EAGER
    return Solution(x, iterations, norms, -1 if b.dim() == 1 else -2, codes=codes, execution=execution)


def _is_null(null: Any) -> bool:
    """Whether this is a valid `null_space`. Anything else is rejected outside the graph."""
    if isinstance(null, Tensor):
        return not null.requires_grad
    return isinstance(null, str) and null == CONSTANTS


def _traced_cg(
    A: CSR, b: Tensor, x0: Tensor | None, options: Options, kind: str, m: Tensor | None, factor: Any
) -> Solution:
    """A fixed number of iterations for one matrix. The norms include all iterations, as on a CUDA device."""
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


_CODES = {int(stop): code for stop, code in STOP_CODE.items() if code > 0}


class Call(NamedTuple):
    """A solve without its tensors. The list of tensors has A's values, b, x0 unless `from_zero`, m unless
    `kind` is "none", the null vectors if "given", A's pattern, and the pattern of the factor of M if there is
    one. Words come first, then integers, then floats.

    `fixed`: a fixed number of iterations, with all norms (columns that have stopped keep their last) and the
    gradient of the iterations. Otherwise to a tolerance, with the first and the last norm and the implicit
    gradient.
    """

    name: str  # of the solver
    kind: str  # of M
    null: str  # for A, or A and A^T: "constants" or "given"; empty for a nonsingular A
    fixed: bool
    throw: bool
    from_zero: bool
    restart: int  # 0: the solver has none
    maxiter: int
    adjoint_maxiter: int
    factor_columns: int
    rtol: float
    atol: float
    adjoint_rtol: float

    def encoded(self) -> tuple[str, list[int], list[float]]:
        """The arguments of the operators. Integers may be symbols: one graph serves every `maxiter`."""
        return " ".join(self[:3]), [int(n) for n in self[3:10]], [*self[10:]]

    @classmethod
    def decoded(cls, words: str, counts: Sequence[int], tolerances: Sequence[float]) -> Call:
        return cls(*words.split(" "), *counts, *tolerances)  # type: ignore[arg-type]

    def operands(self, tensors: Sequence[Tensor]) -> tuple[CSR, Tensor, Tensor | None, Any, list[Any]]:
        """A, b, x0, M and the null spaces."""
        parts = iter(tensors)
        values, b = next(parts), next(parts)
        x0 = None if self.from_zero else next(parts)
        m = None if self.kind == "none" else next(parts)
        null = [next(parts) if of == "given" else CONSTANTS for of in self.null.split(",") if of]
        crow, col, *factor = parts
        n, M = len(crow) - 1, None
        if m is not None:
            shape = (n, self.factor_columns)
            M = OfForm(self.kind, m, _pattern(factor[0], factor[1], shape) if factor else None)
        return CSR(values, _pattern(crow, col, (n, n))), b, x0, M, null

    def run(self, A: CSR, b: Tensor, x0: Tensor | None, M: Any, null: list[Any]) -> tuple[Solution, Tensor]:
        """The solution, and the norms that the operator returns."""
        keywords: dict[str, Any] = {"restart": self.restart} if self.restart else {}
        if null:
            keywords["null_space"] = null[0] if len(null) == 1 else tuple(null)
        # A fixed number runs as with a gradient, so that its repetition gives the same values.
        keywords["gradient"] = "unrolled" if self.fixed else "implicit"
        tolerance = {"rtol": self.rtol, "atol": self.atol, "maxiter": self.maxiter}
        with quiet():
            solution = SOLVERS[self.name](A, b, x0, M=M, **tolerance, **keywords)
        norms, axis = solution.residual_norms, solution._axis
        last = norms.narrow(axis, norms.shape[axis] - 1, 1)
        if not self.fixed:
            return solution, torch.cat((norms.narrow(axis, 0, 1), last), axis)
        return solution, torch.cat((norms, *[last] * (self.maxiter + 1 - norms.shape[axis])), axis)


@torch.library.custom_op("learnsolve_graph::solve", mutates_args=(), tags=_TAGS)
def solve(
    tensors: list[Tensor], words: str, counts: list[int], tolerances: list[float]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, norms, codes and the number of iterations of a `Call`. Not checked."""
    call = Call.decoded(words, counts, tolerances)
    with torch.no_grad():
        solution, norms = call.run(*call.operands([t.detach() for t in tensors]))
    report(call.name, solution, call.throw, call.rtol > 0 or call.atol > 0)
    outputs = (solution.x, norms, solution._codes, torch.tensor(solution.iterations, device=norms.device))
    return tuple(t.clone(memory_format=torch.contiguous_format) for t in outputs)  # type: ignore


@solve.register_fake
def _(tensors, *encoded):
    call, (values, b) = Call.decoded(*encoded), tensors[:2]
    n, k = (b.shape[0], ()) if b.dim() == 1 else (b.shape[-2], b.shape[-1:])
    lead = torch.broadcast_shapes(values.shape[:-1], b.shape[:-2])
    x, norms = (b.new_empty((*lead, m, *k)) for m in (n, call.maxiter + 1 if call.fixed else 2))
    return x, norms, *(b.new_empty(shape, dtype=torch.int64) for shape in ((*lead, *k), ()))


@torch.library.custom_op("learnsolve_graph::solve_gradient", mutates_args=(), tags=_TAGS)
def gradient(
    tensors: list[Tensor],
    gx: Tensor | None,
    gnorms: Tensor | None,
    requested: list[int],
    words: str,
    counts: list[int],
    tolerances: list[float],
) -> list[Tensor]:
    """The gradients for the tensors with the indices `requested`; the last tensor is x."""
    call = Call.decoded(words, counts, tolerances)
    if call.fixed:
        leaves = [t.detach().requires_grad_(i in requested) for i, t in enumerate(tensors[:-1])]
        recorded = torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.AutogradFunctionality, False)
        with recorded, torch.enable_grad():  # an operator is called below autograd
            solution, norms = call.run(*call.operands(leaves))
            pairs = ((t, g) for t, g in ((solution.x, gx), (norms, gnorms)) if g is not None)
            outputs, cotangents = zip(*(pair for pair in pairs if pair[0].requires_grad), strict=True)
            inputs = [leaves[i] for i in requested]
            grads = torch.autograd.grad(outputs, inputs, cotangents, materialize_grads=True)
        return [g.clone(memory_format=torch.contiguous_format) for g in grads]
    assert gx is not None
    adjoint = call._replace(rtol=call.adjoint_rtol, atol=0.0, maxiter=call.adjoint_maxiter)
    with torch.no_grad():
        *plain, x = (t.detach() for t in tensors)
        A, b, _, M, null = call.operands(plain)  # every M with a compiled form is symmetric
        solution, _ = adjoint.run(transpose(A), gx.detach(), None, M, null[::-1])
        advice = ", so the derivative is not exact (see adjoint_rtol, adjoint_maxiter)"
        report(f"{call.name}, adjoint solve of the backward", solution, call.throw, True, advice)
        y = solution.x.clone(memory_format=torch.contiguous_format)
        u, w = (t.unsqueeze(-1) if b.dim() == 1 else t for t in (y.neg(), x))
        return [
            y.sum_to_size(b.shape) if i else sampled(u, w, A.pattern).sum_to_size(A.values.shape)
            for i in requested
        ]


@gradient.register_fake
def _(tensors, gx, gnorms, requested, *_):
    return [tensors[i].new_empty(tensors[i].shape) for i in requested]


def _keep(ctx, inputs, output):
    tensors, *ctx.encoded = inputs
    ctx.mark_non_differentiable(*output[2 if Call.decoded(*ctx.encoded).fixed else 1 :])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, output[0])


def _backward(ctx, gx, gnorms, *_):
    grads: list[Tensor | None] = [None] * len(ctx.needs_input_grad[0])
    if gx is not None or gnorms is not None:
        requested = [i for i, need in enumerate(ctx.needs_input_grad[0]) if need]
        computed = gradient([*ctx.saved_tensors], gx, gnorms, requested, *ctx.encoded)
        for i, g in zip(requested, computed, strict=True):
            grads[i] = g
    return grads, None, None, None


solve.register_autograd(_backward, setup_context=_keep)


class OfForm:
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
    """The pattern with these arrays: from an earlier call, from the user's program, or a new one."""
    pattern = SparsityPattern._trusted(crow, col, shape)

    def match(known: SparsityPattern) -> SparsityPattern | None:
        alike = known.dtype == pattern.dtype and known._is_unchanged() and interning.equal(known, pattern)
        return known if alike else None

    return _patterns.find(match) or _patterns.add(interning.intern(SparsityPattern(crow, col, shape)))
