"""Elementwise arithmetic between matrices and with scalars, sums on the union of two patterns; values on a
larger pattern."""

from collections.abc import Callable
from numbers import Complex, Real
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from learnsolve import (
    _analysis,
    _library,  # noqa: F401  (registers torch.ops.learnsolve)
)
from learnsolve.matrix import checks, device_analysis
from learnsolve.matrix.cache import innermost
from learnsolve.matrix.checks import Matrix, Rule, sparse_matrix, with_entries
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, equal, to_numpy
from learnsolve.ops import complex_values
from learnsolve.ops.autograd import Multilinear, Operation, dispatch, needs_graph
from learnsolve.ops.indexing import take
from learnsolve.ops.products import divide_columns, times


def fit(function: str, A: CSR, B: CSR, first: str = "A", second: str = "B") -> None:
    """The matrices must have the same precision and device, and batch axes that broadcast, real or
    complex."""
    checks.dtype(function, f"{first}.values", A.values, or_complex=True)
    checks.same_kind(function, f"{second}.values", B.values, A.values, or_complex=True)
    checks.batches(function, A.batch_shape, B.batch_shape, f"{first}.values and {second}.values")


def one_shape(function: str, A: CSR, B: CSR, names: str = "A and B") -> None:
    if A.shape != B.shape:
        raise ValueError(f"{function}: {names} must have the same shape, got {A.shape} and {B.shape}")


def matrix_like(of: str, *, same_shape: bool = False, remedy: str = checks.MAKE) -> Rule:
    """A matrix that fits another argument, a matrix."""

    def check(function: str, name: str, value: Any, given: dict[str, Any]) -> CSR:
        if checks.is_usual(value) and checks.is_usual(other := given.get(of)):
            a, b = other.values, value.values
            if (
                a.dtype == b.dtype
                and a.is_cpu
                and b.is_cpu
                and (not same_shape or other.shape == value.shape)
            ):
                return value
        checks.matrix(function, name, value := with_entries(value), remedy)
        if isinstance(other := given.get(of), CSR):
            if same_shape:
                one_shape(function, other, value, f"{of} and {name}")
            fit(function, other, value, of, name)
        return value

    says = f"a sparse matrix of {of}'s {'shape, ' if same_shape else ''}precision and device"
    return Rule(check, says, (object(), 3.0, torch.eye(3)), of)


def check_open_interval(
    function: str,
    name: str,
    value: object,
    values: Tensor,
    high: float,
    rule: str,
    remedies: tuple[str, str] = ("", ""),
) -> float | Tensor:
    """`value`: a float between 0 and `high`, or a tensor of them, one per matrix of the batch of `values`.
    `remedies`: for a float, for a tensor."""
    value = one_each(function, name, value, values)
    check_inside(function, name, value, high, rule, remedies)
    return value


def one_each(function: str, name: str, value: object, values: Tensor) -> float | Tensor:
    """A float, or a tensor of one number per matrix of the batch of `values`."""
    if not isinstance(value, Tensor):
        return checks.number(function, name, value)
    checks.same_kind(function, name, value, values)
    batch = values.shape[:-1]
    if not can_broadcast(value.shape, batch):
        raise ValueError(
            f"{function}: {name} must be one number, or one for each matrix of the batch {tuple(batch)}, got "
            f"shape {tuple(value.shape)}"
        )
    return value


def check_inside(
    function: str,
    name: str,
    value: float | Tensor,
    high: float,
    rule: str,
    remedies: tuple[str, str] = ("", ""),
) -> None:
    """0 < value < high, for a float or all elements of a tensor (checked only on the CPU)."""
    every_one(function, name, value, lambda t: (t > 0) & (t < high), rule, remedies)


def every_one(
    function: str,
    name: str,
    value: float | Tensor,
    held: Callable[[Any], Any],
    rule: str,
    remedies: tuple[str, str] = ("", ""),
) -> None:
    """`held(value)` for a float or all elements of a tensor (checked only on the CPU)."""
    if not isinstance(value, Tensor):
        if not held(value):
            raise ValueError(f"{function}: {name} must {rule}, got {value}{remedies[0]}")
    elif value.is_cpu and not torch.compiler.is_dynamo_compiling():
        plain = plain_values(value)
        if not (good := held(plain)).all():
            raise ValueError(f"{function}: {name} must {rule}, got {float(plain[~good][0])}{remedies[1]}")


def can_broadcast(shape: torch.Size, batch: torch.Size) -> bool:
    ends = zip(reversed(shape), reversed(batch), strict=False)
    return len(shape) <= len(batch) and all(s in (1, b) for s, b in ends)


def plain_values(t: Tensor) -> Tensor:
    """The values of a tensor under `torch.func` transformations, detached from the autograd graph."""
    return innermost(t).detach()


def factor(function: str, name: str, A: CSR, s: object) -> Any:
    """A scalar as a float or tensor that broadcasts with (..., nnz)."""
    rule = f"{name} must be a number or a tensor with one element (or one per matrix, shape (..., 1))"
    if isinstance(s, Tensor):
        # A scalar takes the matrix's precision, as with torch tensors; an array would change it.
        if s.dim() > 1 and s.dtype != A.dtype and not checks.one_precision(s.dtype, A.dtype):
            raise TypeError(
                f"{function}: {name} has dtype {s.dtype}, the matrix {A.dtype}. Convert one with .to()"
            )
        if s.numel() == 1 and s.dim() <= 1:
            return s.reshape(())
        if s.dim() > 1 and s.shape[-1] == 1:
            checks.batches(function, A.batch_shape, s.shape[:-1], f"A.values and {name}")
            return s
        raise TypeError(
            f"{function}: {rule}, got shape {tuple(s.shape)}. Use scale_rows or scale_columns for a vector"
        )
    if isinstance(s, Real):  # includes NumPy scalars
        return float(s)
    if isinstance(s, Complex):
        return complex(s)
    raise TypeError(f"{function}: {rule}, got {type(s).__name__}")


_raw = torch.ops.learnsolve.csr_add.default
_raw_backward = torch.ops.learnsolve.csr_add_backward.default

Scalar = float | complex | Tensor


@torch.library.register_fake("learnsolve::csr_add")
def _(codes, starts, nnz, a, b, alpha, beta):
    return a.new_empty((*a.shape[:-1], nnz))


@torch.library.register_fake("learnsolve::csr_add_backward")
def _(codes, starts, na, nb, g, alpha, beta, need_a, need_b):
    ga = g.new_empty((*g.shape[:-1], na) if need_a else (0,))
    return ga, g.new_empty((*g.shape[:-1], nb) if need_b else (0,))


def add(
    A: Matrix, B: Annotated[CSR, matrix_like("A", same_shape=True)], *, alpha: Scalar = 1, beta: Scalar = 1
) -> CSR:
    r"""Sum of two sparse matrices, :math:`C = \alpha A + \beta B`.

    Parameters
    ----------
    A, B : CSR of the same shape, device and precision, real or complex. Batch axes of their values broadcast
    alpha, beta : scalars, or tensors with one element or one per matrix of the batch, shape (..., 1)

    Returns
    -------
    CSR on the union of the patterns: every entry of A or B is an entry of C, even if zero. The pattern is A's
    or B's pattern itself if one contains the other, otherwise a new one, which later calls reuse.

    Notes
    -----
    Gradient, V on C's pattern: :math:`\bar A = \alpha V`, :math:`\bar B = \beta V` on the patterns of A and
    B, :math:`\bar\alpha = \langle V, A \rangle`, :math:`\bar\beta = \langle V, B \rangle`. Any order, forward
    mode, vmap, `torch.compile`. Deterministic.

    Cost: one pass over the values, and another in the backward pass. The union is planned once per pair of
    patterns, in O(nnz), and takes two bits per entry of C (two indices on a CUDA device). Matrices on the
    same pattern object need no plan.

    Source: Nytko et al., "Optimized Sparse Matrix Operations for Reverse Mode Automatic Differentiation",
    arXiv 2212.05159, table 1.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[1.0, 2.0], [0.0, 3.0]]))
    >>> B = ls.CSR.from_dense(torch.tensor([[1.0, 0.0], [5.0, 0.0]]))
    >>> ls.ops.add(A, B, beta=-1).to_dense()
    tensor([[ 0.,  2.],
            [-5.,  3.]])
    """
    return add_matrices("add", A, B, alpha, beta)


def add_matrices(function: str, A: CSR, B: CSR, alpha: object, beta: object) -> CSR:
    """`add` for two matrices that fit. Errors name `function`."""
    P, Q = A.pattern, B.pattern
    a, alpha = _scale_values(function, "alpha", A, alpha)
    b, beta = _scale_values(function, "beta", B, beta)
    checks.batches(function, a.shape[:-1], b.shape[:-1], "alpha A and beta B")
    plan = None if P is Q else union_plan(P, Q)
    if plan is None or plan.lies == "both":
        return CSR(torch.add(a if alpha == 1 else alpha * a, b, alpha=beta), P)
    if plan.lies == "B":
        return CSR(_merge(b, a, Q, P, beta, alpha), Q)
    return CSR(_merge(a, b, P, Q, alpha, beta), P if plan.pattern is None else plan.pattern)


def _scale_values(function: str, name: str, A: CSR, s: object) -> tuple[Tensor, float]:
    """Values and a float factor. A tensor is multiplied into the values, so that it gets a gradient."""
    s = factor(function, name, A, s)
    if isinstance(s, float):
        return A.values, s
    values = times(A.values, s)
    if not isinstance(s, Tensor):
        return values, 1.0
    if not checks.one_precision(values.dtype, A.dtype) or s.device.type not in (values.device.type, "cpu"):
        raise TypeError(
            f"{function}: {name} ({s.dtype}, {s.device}) must have the dtype and device of the matrix, "
            f"{A.dtype} on {A.device}. Convert it with .to()"
        )
    return values, 1.0


class UnionPlan(NamedTuple):
    codes: Tensor  # csrc/kernels/views.h; on a device `places` themselves, and no starts
    starts: Tensor
    nnz: int
    lies: str  # on the pattern "A", "B" or "both", or "new"
    pattern: SparsityPattern | None  # if new

    def places(self) -> Tensor:
        """(2, nnz): the position of each entry of the union in A and in B, or -1 if it is not there."""
        return (
            self.codes
            if self.codes.dim() == 2
            else _decode_positions(self.codes, self.nnz, self.starts.dtype)
        )


def _decode_positions(codes: Tensor, nnz: int, dtype: torch.dtype) -> Tensor:
    bits = (codes.unsqueeze(1) >> torch.arange(8, device=codes.device)) & 1
    there = bits.reshape(-1, 2, 4).transpose(0, 1).reshape(2, -1)[:, :nnz] == 1
    return torch.where(there, there.cumsum(1) - 1, -1).to(dtype)


def union_plan(P: SparsityPattern, Q: SparsityPattern) -> UnionPlan:
    return P._plan_once(_plan_union, Q)


def _plan_union(P: SparsityPattern, Q: SparsityPattern) -> UnionPlan:
    wide = P.dtype == torch.int64 or Q.dtype == torch.int64
    wide = wide or P.nnz + Q.nnz > torch.iinfo(torch.int32).max
    index = torch.int64 if wide else torch.int32
    arrays = (P.crow_indices, P.col_indices, Q.crow_indices, Q.col_indices)
    # Positions of entries must fit into an index.
    sorted_there = P.shape[0] * P.shape[1] < 2**62 and P.nnz + Q.nnz <= device_analysis.MOST_SORTED
    there = device_analysis.here(P.crow_indices)
    if there and sorted_there:
        crow, col, codes = device_analysis.merge_patterns(*arrays, P.shape[1], index)
        starts = codes.new_empty(0)
    else:
        merged = _analysis.merge_patterns(*(to_numpy(t.to(index)) for t in arrays))
        crow, col, codes, starts = (P._tensor(a) for a in merged)
        if there:
            codes, starts = _decode_positions(codes, len(col), index), starts[:0].clone()
    nnz = len(col)
    lies = {(True, True): "both", (True, False): "A", (False, True): "B", (False, False): "new"}[
        nnz == P.nnz, nnz == Q.nnz
    ]
    pattern = SparsityPattern._construct(crow, col, P.shape) if lies == "new" else None
    return UnionPlan(codes, starts, nnz, lies, pattern)


def _merge(a: Tensor, b: Tensor, P: SparsityPattern, Q: SparsityPattern, alpha: float, beta: float) -> Tensor:
    """alpha a + beta b on the union of P and Q, for values of any batch axes."""
    if complex_values.either(a, b):
        a, b = (t.to(torch.promote_types(a.dtype, b.dtype)) for t in (a, b))
        P, Q = complex_values.duplicate_columns(P), complex_values.duplicate_columns(Q)
        return complex_values.unflat(
            _merge(complex_values.flat(a), complex_values.flat(b), P, Q, alpha, beta)
        )
    if a.dim() == 1 and b.dim() == 1:
        return _merge_one_axis(a, b, P, Q, alpha, beta)
    batch = torch.broadcast_shapes(a.shape[:-1], b.shape[:-1])
    a, b = (t.expand(batch + t.shape[-1:]).reshape(batch.numel(), t.shape[-1]) for t in (a, b))
    c = _merge_one_axis(a, b, P, Q, alpha, beta)
    return c.reshape(batch + c.shape[-1:])


def _merge_one_axis(a, b, P, Q, alpha, beta):
    return dispatch(_Merge, (a, b), P, Q, alpha, beta)


def _split(
    g: Tensor, P: SparsityPattern, Q: SparsityPattern, alpha: float, beta: float
) -> tuple[Tensor, Tensor]:
    """The adjoint of `_merge`: alpha times the entries of g on P, and beta times those on Q."""
    if g.dim() > 2:
        parts = _split(g.reshape(g.shape[:-1].numel(), g.shape[-1]), P, Q, alpha, beta)
        ga, gb = (t.reshape(g.shape[:-1] + t.shape[-1:]) for t in parts)
        return ga, gb
    return dispatch(_Split, (g,), P, Q, alpha, beta)


class _Merge(Operation):
    @staticmethod
    def forward(a, b, P, Q, alpha, beta):
        plan = union_plan(P, Q)
        return _raw(plan.codes, plan.starts, plan.nnz, a, b, alpha, beta)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.constants = inputs[2:]

    @staticmethod
    def backward(ctx, g):
        need_a, need_b = ctx.needs_input_grad[:2]
        P, Q, alpha, beta = ctx.constants
        ga = gb = None
        if need_a and alpha == 1 and g.shape[-1] == P.nnz:
            ga, need_a = g, False
        if not need_a and not need_b:
            parts = (None, None)
        elif torch.compiler.is_dynamo_compiling() or needs_graph(g):
            parts = _split(g, P, Q, alpha, beta)
        else:
            plan = union_plan(P, Q)
            parts = _raw_backward(plan.codes, plan.starts, P.nnz, Q.nnz, g, alpha, beta, need_a, need_b)
        ga = parts[0] if need_a else ga
        gb = parts[1] if need_b else gb
        return ga, gb, None, None, None, None

    @staticmethod
    def jvp(ctx, ta, tb, *_):
        some = tb if ta is None else ta
        ta, tb = (
            some.new_zeros((*some.shape[:-1], pattern.nnz)) if t is None else t
            for t, pattern in zip((ta, tb), ctx.constants[:2], strict=True)
        )
        return _merge(ta, tb, *ctx.constants)

    @staticmethod
    def vmap(info, in_dims, a, b, P, Q, alpha, beta):
        # Either both operands already have a batch axis, or neither.
        a, b = (
            t.unsqueeze(0) if dim is None else t.movedim(dim, 0)
            for t, dim in zip((a, b), in_dims[:2], strict=True)
        )
        return _merge(a, b, P, Q, alpha, beta), 0


class _Split(Multilinear):
    @staticmethod
    def forward(g, P, Q, alpha, beta):
        plan = union_plan(P, Q)
        return _raw_backward(plan.codes, plan.starts, P.nnz, Q.nnz, g, alpha, beta, True, True)

    @staticmethod
    def backward(ctx, ha, hb):
        return _merge(ha, hb, *ctx.constants), None, None, None, None

    @staticmethod
    def vmap(info, in_dims, g, P, Q, alpha, beta):
        return _split(g.movedim(in_dims[0], 0), P, Q, alpha, beta), (0, 0)


def add_values(function: str, A: CSR, B: Any, negate: bool = False) -> CSR:
    """A + B or A - B. B may be a sparse matrix of another library."""
    B = sparse_matrix(B)
    checks.matrix(
        *(function, "B", B),
        ": adding a number to a sparse matrix would fill it. Add to A.values to shift the stored entries",
    )
    fit(function, A, B)
    if A.pattern is B.pattern:
        return A.with_values(A.values - B.values if negate else A.values + B.values)
    one_shape(function, A, B)
    return add_matrices(function, A, B, 1, -1 if negate else 1)


def multiply(function: str, A: CSR, B: object) -> CSR:
    """A * B: entry by entry on the intersection of the patterns for two matrices, otherwise by a scalar."""
    if not isinstance(B, CSR):
        return A.with_values(times(A.values, factor(function, "s", A, B)))
    P, Q = A.pattern, B.pattern
    one_shape(function, A, B)
    fit(function, A, B)
    if P is Q:
        return A.with_values(A.values * B.values)
    plan = P._plan_once(_plan_intersection, Q)
    a = A.values if plan.in_a is None else take(A.values, plan.in_a)
    b = B.values if plan.in_b is None else take(B.values, plan.in_b)
    pattern = P if plan.in_a is None else Q if plan.in_b is None else plan.pattern
    return CSR(a * b, pattern)  # type: ignore[arg-type]


class _IntersectionPlan(NamedTuple):
    in_a: Tensor | None  # positions of the common entries; None if all are common
    in_b: Tensor | None
    pattern: SparsityPattern | None  # if it is neither A's nor B's


def _plan_intersection(P: SparsityPattern, Q: SparsityPattern) -> _IntersectionPlan:
    plan = union_plan(P, Q)
    if plan.lies == "both":
        return _IntersectionPlan(None, None, None)
    places = plan.places()
    at_a, at_b = places[:, (places >= 0).all(0)].long()
    if len(at_a) == P.nnz or len(at_b) == Q.nnz:
        return _IntersectionPlan(
            None if len(at_a) == P.nnz else at_a.clone(), None if len(at_b) == Q.nnz else at_b.clone(), None
        )
    index = P.dtype if P.dtype == Q.dtype else torch.int64
    crow = torch.searchsorted(at_a, P.crow_indices.long())
    pattern = SparsityPattern._construct(crow.to(index), P.col_indices[at_a].to(index), P.shape)
    return _IntersectionPlan(at_a, at_b, pattern)


def divide(A: CSR, s: object) -> CSR:
    """A / s."""
    if isinstance(s, CSR):
        raise TypeError("A / s: s must be a scalar, got a CSR. Divide A.values where entries are not zero")
    return A.with_values(divide_columns(A.values, factor("A / s", "s", A, s)))


def absolute(A: CSR) -> CSR:
    """|A|, entry by entry. The derivative at zero is zero."""
    return A.with_values(A.values.abs())


def power(A: CSR, exponent: object) -> CSR:
    """A ** e, entry by entry, for a float e > 0, so that missing entries stay zero."""
    if not isinstance(exponent, Real) or isinstance(exponent, bool) or not float(exponent) > 0:
        raise ValueError(
            f"A ** exponent: exponent must be a positive number, got {exponent!r}, or what is not stored "
            "would not stay zero. Use A.with_values(A.values ** exponent) for the stored ones"
        )
    return A.with_values(A.values ** float(exponent))


_REMEDY = ". Use a pattern that has it, such as the pattern of a sum of the matrices"


def expand_pattern(function: str, A: CSR, pattern: SparsityPattern) -> CSR:
    """A on `pattern`, zeros where A has no entry: the sum with a matrix of zeros."""
    checks.pattern(function, "pattern", pattern, A.shape, A)
    if equal(A.pattern, pattern):
        return CSR(A.values, pattern)
    checks.dtype(function, "the values", A.values, or_complex=True)
    plan = union_plan(pattern, A.pattern)
    if plan.lies not in ("A", "both"):
        raise _outside(function, A, plan)
    zeros = torch.zeros(pattern.nnz, dtype=A.dtype, device=A.device)
    return add_matrices(function, CSR(zeros, pattern), A, 1, 1)


def _outside(function: str, A: CSR, plan: UnionPlan) -> ValueError:
    given, own = plan.places()
    at = int(own[given < 0][0])
    row, column = int(A.pattern.row_indices[at]), int(A.col_indices[at])
    return _error(function, row, column, A.values[..., at], " (an explicit zero is one)")


def _error(function: str, row: int, column: int, value: Tensor, more: str = "") -> ValueError:
    number = f", {value.item():.6g}" if value.dim() == 0 else ""
    return ValueError(
        f"{function}: every entry{more} must lie on the pattern, but the entry in row {row}, column "
        f"{column}{number} does not{_REMEDY}, or drop the entry first"
    )


def dense_on_pattern(D: Tensor, pattern: SparsityPattern) -> CSR:
    """D's values at the entries of the pattern, including zeros, all differentiable."""
    function = "CSR.from_dense"
    checks.pattern(function, "pattern", pattern, (D.shape[0], D.shape[1]), D)
    rows, columns = pattern.row_indices.long(), pattern.col_indices.long()
    outside = D.detach() != 0
    outside[rows, columns] = False
    if bool(outside.any()):
        row, column = (int(i) for i in outside.nonzero()[0])
        raise _error(function, row, column, D[row, column].detach())
    return CSR(D[rows, columns], pattern)
