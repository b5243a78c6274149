"""What loops see: A and M as operators on blocks of columns, for a CSR, a `BlockBatch` or a function, and a
system as blocks of columns and nothing else."""

from __future__ import annotations

import cmath
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse.linalg
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.graph import get_gradient_edge

from learnsolve.matrix import checks, convert
from learnsolve.matrix.checks import full_precision
from learnsolve.matrix.convert import conjugate
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops import complex_values, structure
from learnsolve.ops.across import across, find_processes
from learnsolve.ops.autograd import Nestable, needs_graph
from learnsolve.ops.blocks import BlockBatch, Layout
from learnsolve.ops.operators import LinearOperator, Map, Matrix
from learnsolve.ops.products import SPLIT, dots, multiply_columns
from learnsolve.ops.program import Operand
from learnsolve.solvers.options import Options
from learnsolve.solvers.solution import EAGER, Iteration


def dot(u: Tensor, v: Tensor) -> Tensor:
    """<u, v> of each column, (..., 1, k), with u conjugated if complex."""
    if not u.is_complex():
        return dots(u, v, True)
    if u.numel() < SPLIT:
        return dots(u.conj(), v, True)
    return conjugate(dots(u, conjugate(v), True))  # of v, where u may be many


def square(u: Tensor) -> Tensor:
    """<u, u> of each column, a real number."""
    if u.is_complex():
        u = complex_values.tall(u)
    return dots(u, u, True)


def divide(a: Tensor, b: Tensor, where: Tensor) -> Tensor:
    """a / b where `where` holds and b is not zero, else 0. Its derivatives there are 0 too, not NaN."""
    good = where & (b != 0)
    if a.numel() >= SPLIT and a.numel() > b.numel():  # the gradient for b is then a dot
        return multiply_columns(torch.where(good, 1, 0) / torch.where(good, b, 1), torch.where(good, a, 0))
    return torch.where(good, a, 0) / torch.where(good, b, 1)


def axpy(u: Tensor, a: Tensor, v: Tensor) -> Tensor:
    """u + a o v, in one pass for complex numbers, which no compiled loop supports."""
    if u.is_complex() and not needs_graph(u, a, v):
        return torch.addcmul(u, a.to(u.dtype), v)
    return u + multiply_columns(a, v)


def root(t: Tensor) -> Tensor:
    """The square root of what is positive, else 0, where its derivatives are 0 too. NaN stays NaN."""
    if not torch.is_grad_enabled():
        return t.clamp(min=0).sqrt()
    good = ~(t <= 0)
    return torch.where(good, torch.where(good, t, 1).sqrt(), 0)


def safe_size(u: Tensor) -> Tensor:
    """`size` of vectors whose squares may leave the range of the dtype."""
    if u.shape[-2] == 0 and across() is None:
        return size(u)
    unit = largest(u, -2)
    unit = torch.where((unit > 0) & torch.isfinite(unit), unit, 1)
    return unit * size(u / unit)


def surely_finite(t: Tensor) -> bool:
    """All of it, at the cost of a pass: a sum of finite numbers may overflow."""
    return cmath.isfinite((t if t.numel() == 1 else t.detach().sum()).item())


def largest(u: Tensor, dim: int) -> Tensor:
    """The largest modulus along an axis that stays, a constant, in a tenth of the time of an infinity
    norm."""
    processes = across()
    if processes is None:
        return u.detach().abs().amax(dim, keepdim=True)
    return processes.largest(u.detach().abs().amax(dim, True) if u.shape[dim] else u.detach().sum(dim, True))


def size(u: Tensor) -> Tensor:
    """||u|| of each column, (..., 1, k), a constant."""
    u = u.detach()
    if u.numel() < SPLIT and across() is None and not u.is_complex():  # of which the norm is slow
        return torch.linalg.vector_norm(u, dim=-2, keepdim=True)
    return square(u).sqrt()


def store_vector(vectors: Tensor, j: int, v: Tensor, most: int) -> Tensor:
    """The vectors with v as number j. Copies of all are made where autograd records, else when room ends."""
    if torch.is_grad_enabled():
        return torch.cat((vectors, v.unsqueeze(0)))
    if len(vectors) == j:
        room = 32 if v.is_cpu else min(j, 32)  # what is not written takes no memory of a CPU
        vectors = torch.cat((vectors, vectors.new_empty((max(min(most - j, room), 1), *v.shape))))
    vectors[j] = v
    return vectors


# A x = b for the loop (loop.py): blocks of columns and nothing else.
#
# Other features are *views*: a view is a function that restates a system and returns, with it, the function
# that maps the outcome back. `Problem.run` (problem.py) is the only place that names them:
#
#     a null space: a singular A, solved on its range
#     units: entries near the limits of the dtype, in units in which they are of size one
#
# Vectors, batch axes and blocks of a `BlockBatch` become blocks of columns on entry, outside the gradient
# (`Columns`). Rows in several processes need no view: only sums over rows differ (ops/across.py).


@dataclass
class System:
    """A x = b for blocks of columns (..., n, k), and the criterion for each of them."""

    name: str  # of the solver, for messages
    A: Any  # LinearOperator
    M: Callable[[Tensor], Tensor] | None
    b: Tensor
    x0: Tensor | None
    criterion: Any  # Criterion (advance.py), of this run alone
    callback: Callable[[Iteration], Any] | None = None

    @cached_property
    def length(self) -> Tensor:
        """||b||, (..., 1, k)."""
        return size(self.b)

    @property
    def is_asynchronous(self) -> bool:
        """A device runs all iterations and the host does not wait for it."""
        return self.b.is_cuda and self.criterion.fixed and self.callback is None


class Outcome(NamedTuple):
    x: Tensor
    norms: Tensor  # (..., iterations + 1, k)
    codes: Tensor  # (..., k), of the final Status of each column
    note: str = ""  # on the accuracy of columns that did not converge
    backend: str = EAGER  # `Solution.backend`


class Columns(NamedTuple):
    """The caller's b and x as blocks of columns (..., n, k), and back."""

    vector: bool = False  # b has no axis of columns
    batch: torch.Size = torch.Size()  # of A
    layout: Layout | None = None  # of the blocks of a BlockBatch

    def pack(self, t: Tensor) -> Tensor:
        t = t.unsqueeze(-1) if self.vector else t
        if self.batch:
            t = t.expand(torch.broadcast_shapes(self.batch, t.shape[:-2]) + t.shape[-2:])
        return t if self.layout is None else self.layout.pad(t)

    def unpack(self, x: Tensor, *of_columns: Tensor) -> tuple[Any, ...]:
        """x, the values per column (..., k), and the axis of the rows in (..., rows, k)."""
        x = x if self.layout is None else self.layout.unpad(x)
        if self.vector and x.dim() == 2:  # under vmap it has a batch axis
            return x.squeeze(-1), *[t.squeeze(-1) for t in of_columns], -1
        return x, *of_columns, -2

    def callback(self, callback: Callable[[Iteration], Any] | None) -> Callable[[Iteration], Any] | None:
        """The callback for blocks of columns."""
        if callback is None or (self.layout is None and not self.vector):
            return callback
        return lambda at: callback(Iteration(at.iteration, *self.unpack(*at[1:])[:-1]))


Edge = tuple[Any, int]  # a node of autograd's graph, and the index of its result


class Function(LinearOperator):
    """A callable x -> A x on blocks of columns, with `parameters` that it computes with."""

    by_columns = False  # it may be made for all of them

    def __init__(
        self,
        function: str,
        apply: Callable[[Tensor], Tensor],
        transpose: Callable[[Tensor], Tensor] | None,
        parameters: tuple[Tensor, ...],
    ):
        self.function, self.apply, self.transpose = function, apply, transpose
        self.parameters = parameters

    def __call__(self, x: Tensor) -> Tensor:
        return self.apply(x)

    @property
    def T(self) -> Function:
        if self.transpose is None:
            raise ValueError(
                f"{self.function}: needs the transpose of A, which cannot be derived from a callable. "
                "Pass transpose=, a callable x -> A^T x"
            )
        return Function(self.function, self.transpose, self.apply, self.parameters)

    def with_parameters(self, parameters: tuple[Tensor, ...]) -> Function:
        # A callable holds its own parameters, so they cannot be replaced.
        if all(new is old for new, old in zip(parameters, self.parameters, strict=True)):
            return self
        raise self._cannot()

    def pushforward(self, x: Tensor, tangents: tuple[Tensor | None, ...]) -> Tensor:
        raise self._cannot()

    def _cannot(self) -> NotImplementedError:
        return NotImplementedError(
            f"{self.function}: transformations of torch.func and forward mode cannot reach the parameters "
            'of a callable A. Pass A as a CSR, or use gradient="unrolled"'
        )

    def pullback(self, y: Tensor, x: Tensor) -> tuple[Tensor | None, ...]:
        learn = tuple(p for p in self.parameters if p.requires_grad)
        if not learn:
            return (None,) * len(self.parameters)
        grads = iter(_Pullback.apply(self.apply, y, x, *learn))  # type: ignore[arg-type]
        return tuple(next(grads) if p.requires_grad else None for p in self.parameters)

    def core(self) -> int:
        raise self._cannot()


class DependencyGuard:
    """A function of blocks of columns that raises `error` if its first result depends on tensors that require
    grad, other than by way of those that `named` returns."""

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        error: Exception,
        named: Callable[[], Sequence[Tensor]] = tuple,
        first: Map | None = None,
    ):
        self.function, self.named = function, named  # found only for a result that requires grad
        self.first = function if first is None else first  # for the first result, with the same values
        self.error: Exception | None = error

    def __call__(self, x: Tensor) -> Tensor:
        error, self.error = self.error, None
        if error is not None:
            with torch.enable_grad():
                y = self.first(x.detach())
            if isinstance(y, Tensor) and y.requires_grad and depends_on_others(y, self.named()):
                raise error
            self.named = tuple  # which may hold b
            if not torch.is_grad_enabled() and isinstance(y, Tensor):
                return y.detach()
        return self.function(x)

    @property
    def T(self) -> Any:
        return self.function.T  # type: ignore[attr-defined]


class _Pullback(torch.autograd.Function):
    """d<y, A x>/dp, differentiated by differentiating once more: no third order."""

    @staticmethod
    def forward(ctx, apply, y, x, *parameters):
        ctx.product, ctx.parameters = apply, parameters
        ctx.save_for_backward(y, x)
        with torch.enable_grad():
            # Detached: y and x may depend on the parameters.
            return partial_derivatives((y.detach() * apply(x.detach())).sum(), parameters, False)

    @staticmethod
    @once_differentiable
    @full_precision
    def backward(ctx, *h):
        y, x = (t.detach().requires_grad_() for t in ctx.saved_tensors)
        with torch.enable_grad():
            first = partial_derivatives((y * ctx.product(x)).sum(), ctx.parameters, True)
            total = torch.stack([(a * b.conj()).sum().real for a, b in zip(first, h, strict=True)]).sum()
            return None, *partial_derivatives(total, (y, x, *ctx.parameters), False)


def _edge(t: Tensor) -> Edge:
    return get_gradient_edge(t)[:2]


def _find_upstream(starts: Iterable[Edge], ends: Collection[Edge]) -> tuple[set[Edge], bool]:
    """The ends upstream of the starts (the search stops at them), and whether there is another leaf."""
    met, other = set(), False
    nodes, todo = set(), list(starts)
    while todo:
        edge = todo.pop()
        if edge in ends:
            met.add(edge)
        elif edge[0] is not None and edge[0] not in nodes:
            nodes.add(edge[0])
            other = other or not edge[0].next_functions
            todo += edge[0].next_functions
    return met, other


def depends_on_others(y: Tensor, named: Sequence[Tensor]) -> bool:
    """Whether y depends on a leaf that requires grad other than through a named tensor."""
    return y.requires_grad and _find_upstream([_edge(y)], {_edge(t) for t in named if t.requires_grad})[1]


def leaves(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """The leaves that require grad and that these tensors are computed from. Not inside of torch.func, from
    where they are out of reach."""
    with torch.enable_grad():
        found, nodes, todo = [], set(), [_edge(t) for t in tensors if t.requires_grad]
    while todo:
        node = todo.pop()[0]
        if node is not None and node not in nodes:
            nodes.add(node)
            found += [node.variable] if hasattr(node, "variable") else []
            todo += node.next_functions
    return tuple(found)


def partial_derivatives(y: Tensor, inputs: Sequence[Tensor], create_graph: bool) -> tuple[Tensor, ...]:
    """dy/dt for a scalar y and each t of the inputs, with the others held constant.

    `torch.autograd.grad` follows all paths from y to t, so the inputs on which no other input depends come
    first. The next ones subtract the paths through them: their derivatives are added to y's with a minus
    sign. An input that occurs twice has its derivative once.
    """
    left = {_edge(t): t for t in inputs} if y.requires_grad else {}
    upstream = {edge: _find_upstream(edge[0].next_functions, left)[0] for edge in left}
    partials: dict[Edge, Tensor] = {}
    outputs, weights = [y], [torch.ones_like(y)]
    while left:
        needed = set().union(*(upstream[edge] for edge in left))
        now = {edge: left.pop(edge) for edge in [*left] if edge not in needed}
        grads = torch.autograd.grad(
            outputs, [*now.values()], weights, retain_graph=True, create_graph=create_graph, allow_unused=True
        )
        of = {edge: g for edge, g in zip(now, grads, strict=True) if g is not None}
        partials |= of
        outputs += [now[edge] for edge in of]
        weights += [-g for g in of.values()]
    return tuple(
        torch.zeros_like(t) if g is None else g
        for t, g in ((t, partials.pop(_edge(t), None)) for t in inputs)
    )


def wrap_callable(
    function: str, name: str, f: Callable[..., Any], vector: bool, square: bool
) -> Callable[[Tensor], Tensor]:
    """Callables receive what the user passed, a vector if b is one, and must return a tensor of the same
    shape."""

    def apply(x: Tensor) -> Tensor:
        as_vector = vector and x.dim() == 2  # under vmap it has a batch axis
        v = x.squeeze(-1) if as_vector else x
        y = f(v)
        checks.tensor(function, f"the result of {name}", y)
        same = y.shape == v.shape
        if not square:
            same = y.dim() == v.dim() and (as_vector or y.shape[-1] == v.shape[-1])
        if not same:
            rule = f"shape {tuple(v.shape)}" if square else f"as many columns as its argument, {v.shape[-1]}"
            raise ValueError(f"{function}: the result of {name} must have {rule}, got shape {tuple(y.shape)}")
        if y.dtype != v.dtype or y.device != v.device:
            raise TypeError(
                f"{function}: the result of {name} must be {v.dtype} on {v.device}, as b is, got "
                f"{y.dtype} on {y.device}. Convert what it computes with"
            )
        return y.unsqueeze(-1) if as_vector else y

    return apply


def wrap_scipy_operator(
    function: str, name: str, A: scipy.sparse.linalg.LinearOperator, complex: bool = False
) -> Callable[..., Tensor]:
    """Products with a SciPy operator, or its transpose, as a function of blocks of columns."""

    if not complex:
        convert.check_real(function, f"the LinearOperator {name}", A.dtype)

    def product(X: np.ndarray, transpose: bool) -> np.ndarray:
        # `rmatmat` is by the conjugate transpose.
        Y = np.asarray(A.rmatmat(X.conj()) if transpose else A.matmat(X))
        # Its dtype need not be what the operator says.
        if not complex:
            convert.check_real(function, f"the result of the LinearOperator {name}", Y.dtype)
        return Y.conj() if transpose and complex else Y

    def apply(x: Tensor, transpose: bool = False) -> Tensor:
        if x.shape[:-2].numel() == 0:
            raise ValueError(
                f"{function}: a LinearOperator {name} cannot be applied to an empty batch, got shape "
                f"{tuple(x.shape)}. Skip the solve"
            )
        return _Host.apply(x, product, transpose)  # type: ignore[return-value]

    return apply


def hosted(function: str, name: str, A: scipy.sparse.linalg.LinearOperator, b: Tensor) -> Function:
    forward = wrap_scipy_operator(function, name, A, b.is_complex())
    return Function(function, forward, lambda x: forward(x, True), ())


class _Host(Nestable):
    """product(X, transpose) of NumPy arrays (n, k) for tensors (..., n, k): linear, without parameters."""

    @staticmethod
    def forward(x, product, transpose):
        blocks = x.detach().resolve_conj().resolve_neg().cpu().reshape(x.shape[:-2].numel(), *x.shape[-2:])
        out = [torch.from_numpy(np.ascontiguousarray(product(block.numpy(), transpose))) for block in blocks]
        y = torch.stack(out)
        return y.reshape(*x.shape[:-2], *y.shape[1:]).to(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.product, ctx.transpose = inputs

    @staticmethod
    def backward(ctx, g):  # type: ignore[override]
        return conjugate(_Host.apply(conjugate(g), ctx.product, not ctx.transpose)), None, None

    @staticmethod
    def jvp(ctx, t, *_):  # type: ignore[override]
        return _Host.apply(t, ctx.product, ctx.transpose)


class Blocks(LinearOperator):
    """A `BlockBatch`, one system per block, on vectors padded with zeros to the size of the largest.

    With E the 0/1 matrix that pads, the operator is E A E^T and M is E M E^T (`PaddedPreconditioner`).
    Padding stays zero in every method, and a method computes each of its per-column values once per block,
    (..., B, 1, k).
    """

    watched = False

    def __init__(self, A: BlockBatch, inner: Matrix):
        self.batch, self.layout, self.inner = A, A._layout, inner
        self.parameters = inner.parameters

    def _replace_inner(self, inner: Matrix) -> Blocks:
        return Blocks(self.batch, inner)

    def __call__(self, x: Tensor) -> Tensor:
        return self.layout.pad(self.inner(self.layout.unpad(x)))

    @property
    def T(self) -> Blocks:
        return self._replace_inner(self.inner.T)

    def with_parameters(self, parameters: tuple[Tensor, ...]) -> Blocks:
        return self._replace_inner(self.inner.with_parameters(parameters))

    def pullback(self, y: Tensor, x: Tensor) -> tuple[Tensor | None, ...]:
        return self.inner.pullback(self.layout.unpad(y), self.layout.unpad(x))

    def pushforward(self, x: Tensor, tangents: tuple[Tensor | None, ...]) -> Tensor:
        return self.layout.pad(self.inner.pushforward(self.layout.unpad(x), tangents))

    def largest_entry(self) -> Tensor | None:
        values = self.inner.A.values.detach()
        if values.shape[-1] == 0:
            return None
        values = torch.where(values.isnan(), torch.inf, values.abs())
        of = self._blocks_of_entries()
        largest = values.new_zeros((*values.shape[:-1], len(self.layout.sizes)))
        return largest.scatter_reduce(-1, of.expand(values.shape), values, "amax")[..., None, None]

    def magnitude(self, x: Tensor) -> Tensor | None:
        y = self.inner.magnitude(self.layout.unpad(x))
        return None if y is None else self.layout.pad(y)

    def divide_entries(self, unit: Tensor) -> Blocks:
        values = self.inner.A.values
        return self.with_parameters((values / unit.flatten()[self._blocks_of_entries()],))

    def parts(self) -> list[CSR]:
        """The matrix of each block."""
        parts = self.batch.split(self.inner.A)
        return [structure.transpose(A) for A in parts] if self.inner.transpose else parts

    def _blocks_of_entries(self) -> Tensor:
        return self.layout.batch[self.inner.A.pattern.row_indices]

    def core(self) -> int:
        return 0  # values (..., nnz) of all blocks go with x of shape (..., B, largest, k)


class Applied:
    """A callable M, a user's, on blocks of columns."""

    back: Applied | None = None  # what this is the transpose of

    def __init__(self, function: str, name: str, M: Any, b: Tensor):
        self.function, self.name, self.original = function, name, M
        self.shape, self.kind = b.shape, {"dtype": b.dtype, "device": b.device}
        self.apply = wrap_callable(function, name, M, b.dim() == 1, True)

    def __call__(self, r: Tensor) -> Tensor:
        return self.apply(r)

    def find_transpose(self) -> Any:
        """M^T, or None if M does not say what it is."""
        M = self.original
        if self.back is not None or not says(M, "linear"):
            return self.back
        if (T := self if says(M, "symmetric") else says(M, "T")) is not None and T is not self:
            like = torch.empty((), **self.kind).expand(self.shape)  # b is not kept for this
            T = make_preconditioner(self.function, f"{self.name}.T", T, like)
            if isinstance(T, Applied):
                T.back = self
        return T

    @property
    def T(self) -> Any:
        if (T := self.find_transpose()) is None:
            kind, name = type(self.original).__name__, self.name
            raise ValueError(
                f"{self.function}: needs the transpose of {name}, which {kind} does not have. Set {name}.T "
                f"or {name}.symmetric = True"
            )
        return T


class PaddedPreconditioner:
    """M of the whole block-diagonal matrix, or one for each block, on padded blocks of columns."""

    def __init__(self, layout: Layout, maps: Sequence[Map | None]):
        self.layout, self.maps = layout, maps

    @property
    def T(self) -> PaddedPreconditioner:
        return PaddedPreconditioner(self.layout, [M if M is None else M.T for M in self.maps])  # type: ignore[attr-defined]

    def __call__(self, r: Tensor) -> Tensor:
        r = self.layout.unpad(r)
        if len(self.maps) == 1 and self.maps[0] is not None:
            return self.layout.pad(self.maps[0](r))
        parts = zip(r.split(self.layout.sizes, -2), self.maps, strict=True)
        return self.layout.pad(torch.cat([s if M is None else M(s) for s, M in parts], -2))


def make_operator(
    function: str,
    A: Any,
    b: Tensor,
    transpose: object,
    parameters: Iterable[Tensor],
    symmetric: bool = False,
    square: bool = True,
    blocks: bool = False,
) -> LinearOperator:
    """A CSR, a SciPy LinearOperator or a callable as an operator for the loops. With `blocks` a BlockBatch
    becomes one on padded columns."""
    if type(parameters) is not tuple:
        parameters = checks.sequence(function, "parameters", parameters, "Tensors")
    for i, p in enumerate(parameters):
        checks.tensor(function, f"parameters[{i}]", p)
    if isinstance(A, type):
        raise TypeError(f"{function}: A is the class {A.__name__}, not a matrix. Pass an object of it")
    if isinstance(A, LinearOperator) or (type(A) is not CSR and find_processes(A) is not None):
        if transpose is not None or parameters:
            raise ValueError(
                f"{function}: transpose and parameters are only used with a callable A. {type(A).__name__} "
                "has its own"
            )
        return A.to_operator(function, b, square)
    rows = b.shape[0 if b.dim() == 1 else -2]
    if isinstance(A, BlockBatch) and not blocks:
        raise TypeError(
            f"{function}: takes no BlockBatch. A.matrix is the block-diagonal CSR, one system, and "
            "A.split(A.matrix) are the blocks"
        )
    if isinstance(A, (CSR, BlockBatch, scipy.sparse.linalg.LinearOperator)):
        if transpose is not None:
            raise ValueError(
                f"{function}: transpose is only used with a callable A. {type(A).__name__} has its own"
            )
        shape = A.shape
        if square and shape[0] != shape[1]:
            raise ValueError(f"{function}: A must be square, got shape {shape}. lsqr and lsmr take any")
        if rows != shape[0]:
            raise ValueError(
                f"{function}: b must have A.shape[0] = {shape[0]} rows, got shape {tuple(b.shape)}"
            )
    if isinstance(A, (CSR, BlockBatch)):
        if parameters:
            raise ValueError(
                f"{function}: parameters are only used with a callable A. The parameters of a "
                f"{type(A).__name__} are its values"
            )
        matrix = A if isinstance(A, CSR) else A.matrix
        checks.matrix(function, "A", matrix)
        if matrix.values.is_complex() and not b.is_complex():
            checks.same_kind(function, "b", b, matrix.values)
        checks.dtype(function, "A.values", matrix.values, or_complex=True)
        return Matrix(A) if isinstance(A, CSR) else Blocks(A, Matrix(matrix))
    if isinstance(A, scipy.sparse.linalg.LinearOperator):
        if parameters:
            raise ValueError(
                f"{function}: parameters are only used with a callable A. A LinearOperator has none"
            )
        return hosted(function, "A", A, b)
    if not callable(A):
        raise TypeError(
            f"{function}: A must be a CSR, a BlockBatch, a LinearOperator of learnsolve or SciPy or a "
            f"callable, got {type(A).__name__}. Make a CSR with CSR.from_*"
        )
    if not (transpose is None or callable(transpose)):
        raise TypeError(
            f"{function}: transpose must be a callable x -> A^T x, got {type(transpose).__name__}"
        )
    vector = b.dim() == 1
    apply = wrap_callable(function, "A", A, vector, square)
    if transpose is None:
        return Function(function, apply, apply if symmetric else None, parameters)
    return Function(
        function, apply, wrap_callable(function, "transpose", transpose, vector, square), parameters
    )


def make_preconditioner(function: str, name: str, M: object, b: Tensor) -> Callable[[Tensor], Tensor] | None:
    """M as a function of blocks of columns."""
    if M is None:
        return None
    if isinstance(M, type):
        raise TypeError(
            f"{function}: {name} is the class {M.__name__}, not a preconditioner. Pass {M.__name__}(A)"
        )
    n = b.shape[0 if b.dim() == 1 else -2]
    if isinstance(M, (CSR, LinearOperator, scipy.sparse.linalg.LinearOperator)) and M.shape != (n, n):
        raise ValueError(f"{function}: {name} must have shape ({n}, {n}), as A has, got {tuple(M.shape)}")
    if isinstance(M, CSR):
        checks.same_kind(function, f"{name}.values", M.values, b)
        checks.batches(function, M.batch_shape, b.shape[:-2], f"{name}.values and b")
        if len(M.batch_shape) > max(b.dim() - 2, 0):
            raise ValueError(
                f"{function}: {name} must not have more batch axes than A or b, got {tuple(M.batch_shape)}. "
                "Reshape b to (..., n, k)"
            )
        return Matrix(M)
    if isinstance(M, LinearOperator):
        return M
    if isinstance(M, scipy.sparse.linalg.LinearOperator):
        return hosted(function, name, M, b)
    if not callable(M):
        raise TypeError(
            f"{function}: {name} must be a callable r -> M r, a CSR or a LinearOperator, got "
            f"{type(M).__name__}. For a diagonal d pass ops.diag(d)"
        )
    return Applied(function, name, M, b)


def split_options(
    name: str, options: Options, b: Tensor, layout: Layout | None
) -> list[tuple[Options, Tensor]]:
    """The options and the right-hand side that each M belongs to: one, or with a list of M one per block."""
    if layout is None or not isinstance(options.M, (list, tuple)):
        return [(options, b)]
    for key, given in (("M", options.M), ("adjoint_M", options.adjoint_M)):
        listed = isinstance(given, (list, tuple))
        if given is not None and (not listed or len(given) != len(layout.sizes)):
            count = len(given) if listed else type(given).__name__
            raise ValueError(
                f"{name}: {key} must be a list of one for each of {len(layout.sizes)} blocks, as M is, got "
                f"{count}"
            )
    adjoints = [None] * len(layout.sizes) if options.adjoint_M is None else options.adjoint_M
    parts = b.split(layout.sizes, 0 if b.dim() == 1 else -2)
    return [
        (replace(options, M=M, adjoint_M=T), part)
        for M, T, part in zip(options.M, adjoints, parts, strict=True)
    ]


def combine_preconditioners(layout: Layout | None, maps: Sequence[Map | None]) -> Map | None:
    """The M of a solve: the single one, or, with blocks, all of them on padded columns."""
    if layout is None:
        return maps[0]
    return None if all(M is None for M in maps) else PaddedPreconditioner(layout, maps)


def source(M: object) -> Any:
    """The caller's M behind an M of the loops."""
    M = M.function if isinstance(M, DependencyGuard) else M
    return M.original if isinstance(M, Applied) else M


_UNSAID: dict[str, Any] = {"linear": True, "batch_shape": (), "by_columns": False, "is_diagonal": False}


def says(M: object, what: str) -> Any:
    """What an M, which may be any callable, says of itself, or what is taken to hold if it does not."""
    return getattr(M, what, _UNSAID.get(what))


def factors_of(M: object, pattern: SparsityPattern, transpose: bool = False) -> Sequence[Operand] | None:
    """What M, or M^T, multiplies a vector with, one after another, for a recorded method (ops/program.py),
    else None. `pattern` is that of A, whose type of indices all have."""
    form = find_pcg_form(M)
    factors: Sequence[Operand] | None
    if form is None:
        operands = says(M, "operands")
        factors = None if operands is None else operands(transpose)
    else:
        kind, m, L = form
        if kind == "none":
            return ()
        if m is None or m.dim() != 1:
            return None
        if kind == "diagonal":
            return (Operand.rows(m),) if len(m) == pattern.shape[0] else None
        if kind == "product":
            if L.shape != pattern.shape:
                return None
            factors = Operand.product(L, m, True), Operand.product(L, m, False)
        else:
            factors = Operand.solve(L, m, True, False, False), Operand.solve(L, m, True, False, True)
    fits = factors is not None and all(o.structure[1].dtype == pattern.dtype for o in factors)
    return factors if fits else None


def find_pcg_form(M: object) -> tuple[str, Tensor | None, Any] | None:
    """(kind, m, factor) of M for the compiled loop of `cg` (ops/pcg.py), else None. A
    preconditioner provides it by a method `pcg_form()`."""
    if isinstance(M, type):
        return None
    if M is None:
        return "none", None, None
    form = says(M, "pcg_form")
    return None if form is None else form()
