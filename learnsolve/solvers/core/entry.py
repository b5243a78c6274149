"""The entry of all solvers: arguments are checked here, once, and become a problem of blocks of columns,
which is solved with the requested gradient."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import scipy.sparse.linalg
import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.cache import outside_of_graphs
from learnsolve.matrix.checks import operands
from learnsolve.matrix.convert import TensorLike
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import Recent, SparsityPattern, equal, intern
from learnsolve.ops import across
from learnsolve.ops.complex_values import tall, untall
from learnsolve.ops.operators import LinearOperator, RealForm
from learnsolve.ops.pcg import KINDS, pcg_iterations, preconditioner_map
from learnsolve.ops.products import sddmm_values
from learnsolve.ops.structure import transpose
from learnsolve.ops.triangular import real_matrix
from learnsolve.solvers.core.advance import STOP_CODE, ResidualNorm
from learnsolve.solvers.core.arguments import (
    check_b,
    check_complex,
    check_export,
    check_symmetric,
    check_system,
    check_x0,
    refuse_what_has_no_implicit_gradient,
    refuse_what_learns,
)
from learnsolve.solvers.core.gradient import implicit, transforms_active, unroll
from learnsolve.solvers.core.loop import Method, quiet, report
from learnsolve.solvers.core.operators import (
    Applied,
    Blocks,
    Columns,
    DependencyGuard,
    combine_preconditioners,
    find_pcg_form,
    make_preconditioner,
    says,
    split_options,
    wrap_scipy_operator,
)
from learnsolve.solvers.core.problem import CONSTANTS, Problem, check_null_space
from learnsolve.solvers.options import KRYLOV, SOLVERS, Options
from learnsolve.solvers.solution import CODE, COMPILED, EAGER, Solution, Status

# Solves as part of the graph that `torch.compile` or `torch.export` traces.
#
# A fixed number of iterations of `cg` is traced through its compiled calls. The number of iterations of any
# other solve depends on its values, so its loop cannot be traced: it becomes one operator, `solve`, which
# runs the solver outside the traced code, on the tensors that A and M consist of. Hence M must have a
# compiled form (`pcg_form`: none, a diagonal, a factor). A solve that does not converge warns when the
# graph runs, or raises with `throw`, as outside a graph. Its gradient is one more operator: to a tolerance
# the adjoint solve, for a fixed number of iterations the same iterations again, recorded. All other calls
# break the graph (`outside_of_graphs` in entry.py).


_patterns: Recent[SparsityPattern] = Recent(8)  # not analyzed again
_TAGS = (torch.Tag.cudagraph_unsafe,)


def trace_solve(
    name: str, method: Any, A: Any, b: Any, x0: Any, options: Options, symmetric: bool
) -> Solution | None:
    """A solve with the implicit gradient, or for a fixed number of iterations, or None for any other call.
    Inside an operator `iterations` is a tensor; to a tolerance `residual_norms` has only the first and the
    last norm."""
    if transforms_active() or name not in KRYLOV or not isinstance(A, CSR) or not isinstance(b, Tensor):
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
    form = find_pcg_form(options.M)
    if form is None:
        return None
    check_system(name, A, b, x0, options, symmetric)
    if symmetric and not method.flexible:
        check_symmetric(name, options.M)
    if not fixed:
        refuse_what_learns(name, x0, options.M, (A.values,))
    elif name == "cg" and not (options.throw or null) and A.values.dim() == 1 and b.dim() <= 2:
        return _trace_cg(A, b, x0, options, *form)
    kind, m, factor = form
    maxiter = 10 * A.shape[0] if options.maxiter is None else options.maxiter
    call = Call(
        name=name,
        kind=kind,
        null=",".join(["given" if isinstance(N, Tensor) else N for N in null]),
        fixed=fixed,
        throw=options.throw,
        from_zero=x0 is None,
        restart=method.restart,
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
    x, norms, codes, iterations = solve_in_graph([A.values, b, *others], *call.encode())
    steps = (
        (method.state_vectors or method.restart)
        and kind in ("none", "diagonal")
        and b.dim() == 1
        and A.values.dim() == 1
    )
    backend = COMPILED if name == "cg" or (steps and b.is_cpu) else EAGER
    return Solution(
        x, iterations, norms, -1 if b.dim() == 1 else -2, codes=codes, backend=backend, method=name
    )


def _is_null(null: object) -> bool:
    """Whether this is a valid `null_space`. Anything else is rejected outside the graph."""
    if isinstance(null, Tensor):
        return not null.requires_grad
    return isinstance(null, str) and null == CONSTANTS


def _trace_cg(
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
    return Solution(x, options.maxiter, norms, 0, codes=codes.detach(), backend=COMPILED, method="cg")


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

    def encode(self) -> tuple[str, list[int], list[float]]:
        """The arguments of the operators. Integers may be symbols: one graph serves every `maxiter`."""
        return " ".join(self[:3]), [int(n) for n in self[3:10]], [*self[10:]]

    @classmethod
    def decode(cls, words: str, counts: Sequence[int], tolerances: Sequence[float]) -> Call:
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
def solve_in_graph(
    tensors: list[Tensor], words: str, counts: list[int], tolerances: list[float]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, norms, codes and the number of iterations of a `Call`. Not checked."""
    call = Call.decode(words, counts, tolerances)
    with torch.no_grad():
        solution, norms = call.run(*call.operands([t.detach() for t in tensors]))
    report(call.name, solution, call.throw, call.rtol > 0 or call.atol > 0)
    outputs = (solution.x, norms, solution._codes, torch.tensor(solution.iterations, device=norms.device))
    return tuple(t.clone(memory_format=torch.contiguous_format) for t in outputs)  # type: ignore


@solve_in_graph.register_fake
def _(tensors, *encode):
    call, (values, b) = Call.decode(*encode), tensors[:2]
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
    """The gradients for the tensors with the indices `requested`. The last tensor is x."""
    call = Call.decode(words, counts, tolerances)
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
        report(f"{call.name}, adjoint solve of the backward pass", solution, call.throw, True, advice)
        y = solution.x.clone(memory_format=torch.contiguous_format)
        u, w = (t.unsqueeze(-1) if b.dim() == 1 else t for t in (y.neg(), x))
        return [
            y.sum_to_size(b.shape) if i else sddmm_values(u, w, A.pattern).sum_to_size(A.values.shape)
            for i in requested
        ]


@gradient.register_fake
def _(tensors, gx, gnorms, requested, *_):
    return [tensors[i].new_empty(tensors[i].shape) for i in requested]


def _keep(ctx, inputs, output):
    tensors, *ctx.encode = inputs
    ctx.mark_non_differentiable(*output[2 if Call.decode(*ctx.encode).fixed else 1 :])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, output[0])


def _backward(ctx, gx, gnorms, *_):
    grads: list[Tensor | None] = [None] * len(ctx.needs_input_grad[0])
    if gx is not None or gnorms is not None:
        requested = [i for i, need in enumerate(ctx.needs_input_grad[0]) if need]
        computed = gradient([*ctx.saved_tensors], gx, gnorms, requested, *ctx.encode)
        for i, g in zip(requested, computed, strict=True):
            grads[i] = g
    return grads, None, None, None


solve_in_graph.register_autograd(_backward, setup_context=_keep)


class OfForm:
    """A preconditioner given by its compiled form."""

    symmetric = True

    def __init__(self, kind: str, m: Tensor, factor: SparsityPattern | None):
        self.kind, self.m, self.factor = kind, m, factor

    def pcg_form(self) -> tuple[str, Tensor, SparsityPattern | None]:
        return self.kind, self.m, self.factor

    def __call__(self, r: Tensor) -> Tensor:
        M = preconditioner_map(self.m, self.factor, KINDS.index(self.kind))
        return M(r) if r.dim() > 1 else M(r.unsqueeze(-1)).squeeze(-1)


def _pattern(crow: Tensor, col: Tensor, shape: tuple[int, int]) -> SparsityPattern:
    """The pattern with these arrays: from an earlier call, from the user's program, or a new one."""
    pattern = SparsityPattern._construct(crow, col, shape)

    def match(known: SparsityPattern) -> SparsityPattern | None:
        alike = known.dtype == pattern.dtype and known._is_current() and equal(known, pattern)
        return known if alike else None

    return _patterns.find(match) or _patterns.add(intern(SparsityPattern(crow, col, shape)))


# Complex systems for methods with real coefficients: they solve the real form of ops/triangular.py,
# which has the iterates, norms, statuses and derivatives of the complex system.


def real_system(
    name: str, A: object, b: Tensor, x0: Tensor | None, options: Options
) -> tuple[Any, Tensor, Tensor | None, Options]:
    """A, b, x0 and the options of the real form."""
    check_b(name, b, or_complex=True)
    check_complex(name, A, b, options)
    if x0 is not None:
        checks.same_kind(name, "x0", x0, b)
    implicit = options.gradient == "implicit"
    if implicit:
        refuse_what_learns(name, None, options.M, (A.values,) if isinstance(A, CSR) else ())
    callback, transpose = options.callback, options.transpose
    real = replace(
        options,
        M=_preconditioner(name, options.M, b, implicit),
        # The transpose of the real form is the real form of the conjugate transpose.
        transpose=None
        if transpose is None
        else _wrap_real_rows(name, "transpose", lambda y: transpose(y.conj()).conj()),
        callback=None if callback is None else lambda at: callback(at._replace(x=untall(at.x))),
    )
    return _matrix(name, A, b), tall(b), None if x0 is None else tall(x0), real


def complex_solution(solution: Solution) -> Solution:
    solution.x = untall(solution.x)
    return solution


def _matrix(name: str, A: object, b: Tensor) -> Any:
    if isinstance(A, CSR):
        checks.rows(name, "b", b, "A", A.shape)
        return real_matrix(A)
    if isinstance(A, scipy.sparse.linalg.LinearOperator):
        return _wrap_real_rows(name, "A", _accept_vectors(wrap_scipy_operator(name, "A", A, True)))
    if isinstance(A, LinearOperator):
        checks.rows(name, "b", b, "A", A.shape)
        return RealForm(A)
    if not callable(A):
        raise TypeError(
            f"{name}: with complex values A must be a CSR, a LinearOperator or a callable, got "
            f"{type(A).__name__}"
        )
    return _wrap_real_rows(name, "A", A)


def _preconditioner(name: str, M: object, b: Tensor, implicit: bool) -> Any:
    """M on real rows; constant if the gradient does not depend on it."""
    if M is None:
        return None
    if isinstance(M, CSR):
        checks.same_kind(name, "M.values", M.values, b)
        return real_matrix(M.detach() if implicit else M)
    if isinstance(M, scipy.sparse.linalg.LinearOperator):
        return _wrap_real_rows(name, "M", _accept_vectors(wrap_scipy_operator(name, "M", M, True)))
    make = says(M, "real_equivalent")
    real = None if make is None else make()
    form = None if real is None else find_pcg_form(real)
    if form is not None:
        kind, m, factor = form
        assert m is not None
        return OfForm(kind, m.detach() if implicit else m, factor)
    if isinstance(M, type) or not callable(M):
        return M  # the solver raises the error
    return _wrap_real_rows(name, "M", M, implicit)


def _wrap_real_rows(
    function: str, name: str, f: Callable[..., Any], constant: bool = False
) -> Callable[[Tensor], Tensor]:
    def apply(x: Tensor) -> Tensor:
        v = untall(x)
        checks.same_kind(function, f"the result of {name}", y := f(v), v)
        y = tall(y)
        return y.detach() if constant else y

    return apply


def _accept_vectors(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: f(x) if x.dim() > 1 else f(x.unsqueeze(-1)).squeeze(-1)


def solve(
    name: str,
    method: Method,
    A: object,
    b: TensorLike,
    x0: TensorLike | None,
    options: Options,
    symmetric: bool = False,
    needs_transposed_M: bool = True,
) -> Solution:
    """Check the arguments, run the method, differentiate according to `options.gradient`.

    `symmetric`: A and M are their own transposes. `needs_transposed_M`: the adjoint solve needs a transpose
    of M, or else runs without one.
    """
    if torch.compiler.is_dynamo_compiling():
        if _needs_real_form(method, b):
            return _solve_real_form(name, method, A, b, x0, options, symmetric)
        traced = trace_solve(name, method, A, b, x0, options, symmetric)
        if traced is None:
            return _outside(name, method, A, b, x0, options, symmetric, needs_transposed_M)
        return traced
    check_export(name)
    start = time.perf_counter()
    A, b, x0 = operands(name, A, b, x0)
    if _needs_real_form(method, b):
        return _solve_real_form(name, method, A, b, x0, options, symmetric)
    operator, batch = check_system(name, A, b, x0, options, symmetric)
    layout = operator.layout if isinstance(operator, Blocks) else None
    columns = Columns(b.dim() == 1, batch, layout)
    B, X0 = columns.pack(b), None if x0 is None else columns.pack(x0)
    systems = split_options(name, options, columns._replace(layout=None).pack(b) if batch else b, layout)
    for part_options, _ in systems:
        if symmetric and not method.flexible:
            check_symmetric(name, part_options.M)
    Ms = [make_preconditioner(name, "M", part_options.M, part) for part_options, part in systems]
    for part_options, part in systems:
        make_preconditioner(name, "adjoint_M", part_options.adjoint_M, part)
    shared, criterion = across.find_processes(operator), ResidualNorm(options.rtol, options.atol)
    rows = B.shape[-2] if shared is None else shared.rows
    reads = B.is_cpu or criterion.has_tolerance  # otherwise do not synchronize the device
    recorded = options.gradient != "implicit"
    if not recorded:
        for i, (part_options, part) in enumerate(systems):
            Ms[i] = refuse_what_has_no_implicit_gradient(
                name, operator, part_options.M, Ms[i], x0, part, part_options.adjoint_M
            )
    problem = Problem(
        name,
        method,
        operator,
        combine_preconditioners(layout, Ms),
        criterion,
        10 * rows if options.maxiter is None else options.maxiter,
        columns,
        options.throw,
        options.gradient,
        options.callback,
        check_null_space(name, options.null_space, operator, B, layout, symmetric, reads),
    )

    def adjoint_M() -> Any:
        turned = [
            _adjoint_preconditioner(name, part_options, M, part, symmetric, needs_transposed_M)
            for (part_options, part), M in zip(systems, Ms, strict=True)
        ]
        return combine_preconditioners(layout, turned)

    if (
        not recorded
        and torch.is_grad_enabled()
        and (B.requires_grad or any(t.requires_grad for t in operator.parameters))
    ):
        adjoint_M()  # refuses now what a backward would refuse after the solve

    def derived() -> tuple[Problem, Tensor]:
        maxiter = problem.maxiter if options.adjoint_maxiter is None else options.adjoint_maxiter
        rtol = options.rtol if options.adjoint_rtol is None else options.adjoint_rtol
        criterion = ResidualNorm(rtol, 0.0)  # no atol, since the right-hand side may have any size
        same = replace(problem, criterion=criterion, maxiter=maxiter, callback=None, transposed_M=adjoint_M)
        if problem.null is not None:
            same.null = problem.null.derivative_space
        return same, B

    solution = unroll(problem, B, X0) if recorded else implicit(problem, B, X0, derived)
    if solution.x.is_cpu:  # would synchronize a device
        solution.seconds = time.perf_counter() - start
    return solution


def _needs_real_form(method: Method, b: object) -> bool:
    return isinstance(b, Tensor) and b.is_complex() and not method.takes_complex


def _solve_real_form(
    name: str, method: Method, A: Any, b: Any, x0: Any, options: Options, symmetric: bool
) -> Solution:
    if options.M is not None and not method.flexible:
        check_symmetric(name, options.M)
    if isinstance(A, CSR):
        checks.square(name, "A", A.shape)
    if x0 is not None:
        check_x0(name, x0, b)
    A, b, x0, options = real_system(name, A, b, x0, options)
    return complex_solution(solve(name, method, A, b, x0, options, symmetric))


_outside = outside_of_graphs(
    lambda *arguments: solve(*arguments),  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    "a solve can be traced into a graph (fullgraph=True, torch.export) only with a CSR as A, no M or an M "
    "with a compiled form for solvers.cg, no callback, gradient='implicit', or, for a fixed "
    "number of `iterations`, 'unrolled': docs/solvers.md, 'torch.compile and torch.export'",
)


def _adjoint_preconditioner(
    name: str, options: Options, M: Any, b: Tensor, symmetric: bool, needed: bool
) -> Callable[[Tensor], Tensor] | None:
    if options.adjoint_M is not None:
        return make_preconditioner(name, "adjoint_M", options.adjoint_M, b)
    if M is None or symmetric:
        return M
    M = M.function if isinstance(M, DependencyGuard) else M
    if not isinstance(M, Applied):
        return M.T
    T = M.find_transpose()
    if T is None and needed:
        raise ValueError(
            f"{name}: the implicit gradient solves with the transpose of A and needs the transpose of M. Set "
            "M.T, or pass adjoint_M=. If no gradient is wanted, solve under torch.no_grad()"
        )
    return T
