"""Operations on the segments of a pattern, its rows or its columns: sums, maxima, softmax, features of nodes
at entries, perceptrons on edges."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from learnsolve import _library  # noqa: F401  (registers torch.ops.learnsolve)
from learnsolve.matrix import checks
from learnsolve.matrix.checks import Rule, full_precision
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops import complex_values
from learnsolve.ops.autograd import (
    Multilinear,
    Operation,
    add,
    apply_vmap,
    dispatch,
    needs_graph,
    pullback,
    pushforward,
)
from learnsolve.ops.indexing import drop_empty_columns
from learnsolve.ops.products import product, sddmm_values

_raw_spmm = torch.ops.learnsolve.csr_spmm.default

LARGE = 32 << 20  # bytes


def _features(*, entries: bool, or_complex: bool = False) -> Rule:
    """Features of the entries of `pattern`, or of its rows or columns (`by`)."""

    def check(function: str, name: str, t: Tensor, given: dict[str, object]) -> Tensor:
        checks.tensor(function, name, t)
        checks.dtype(function, name, t, or_complex)
        pattern: Any = given.get("pattern")
        side = given.get("by", "row") == "column"
        checks.pattern(function, "pattern", pattern, like=t)
        size, what = (pattern.nnz, "nnz") if entries else (pattern.shape[side], f"pattern.shape[{int(side)}]")
        if t.dim() == 0 or t.shape[0 if t.dim() == 1 else -2] != size:
            raise ValueError(
                f"{function}: {name} must have shape ({what} = {size},) or (..., {size}, f), got "
                f"{tuple(t.shape)}"
            )
        return t

    says = f"a tensor of features of the {'entries' if entries else 'rows or columns'} of pattern"
    return Rule(check, says, (object(), 3.0, torch.ones(3, dtype=torch.int64)), "pattern")


def sum_segments(e: Tensor, pattern: SparsityPattern, by: str) -> Tensor:
    """Sums over the segments. A single feature is summed as values of the pattern, without indices if rows
    repeat, as on a grid."""
    if e.is_complex():
        return complex_values.columns(lambda e: sum_segments(e, pattern, by), e)
    if e.dim() == 1:
        pattern = drop_empty_columns(pattern) if by == "row" else pattern
        return product(e, _ones(pattern.shape[by == "row"], e), pattern, by == "column")
    return dispatch(_Sums, (e,), pattern, by == "column")


def spread(x: Tensor, pattern: SparsityPattern, by: str) -> Tensor:
    """For each entry the features of its segment: the adjoint of `sum_segments`."""
    if x.is_complex():
        return complex_values.columns(lambda x: spread(x, pattern, by), x)
    if x.dim() == 1:
        pattern = drop_empty_columns(pattern) if by == "row" else pattern
        ones = _ones(pattern.shape[by == "row"], x)
        return sddmm_values(x, ones, pattern) if by == "row" else sddmm_values(ones, x, pattern)
    return dispatch(_Spread, (x,), pattern, by == "column")


class _Features(Operation):
    """Of features, whose leading axes are a batch: a mapped axis becomes the first of them."""

    @classmethod
    def vmap(cls, info, in_dims, *inputs):
        tensors, constants = inputs[: cls.operands], inputs[cls.operands :]
        first = (
            t.expand((info.batch_size, *t.shape)) if dim is None else t.movedim(dim, 0)
            for t, dim in zip(tensors, in_dims, strict=False)
        )
        out = dispatch(cls, tuple(first), *constants)
        return out, (0, 0) if isinstance(out, tuple) else 0


class _Sums(_Features, Multilinear):
    """A product with the 0/1 matrix (segments x entries)."""

    @staticmethod
    def forward(e, pattern, columns):
        S = pattern._plan_once(_column_incidence if columns else _row_incidence)
        y = _raw_spmm(*S._structure(False), _ones(S.nnz, e), flat(e))
        return y.reshape((*e.shape[:-2], *y.shape[-2:]))

    @staticmethod
    def backward(ctx, g):
        return dispatch(_Spread, (g,), *ctx.constants), None, None


class _Spread(_Features, Multilinear):
    """A product with its transpose, for which torch's copy of rows is faster, except for results so large
    that our operators request huge pages (csrc/ops/tensors.h), which torch does not."""

    @staticmethod
    def forward(x, pattern, columns):
        if x.is_cpu and pattern.nnz * x.shape[:-2].numel() * x.shape[-1] * x.itemsize >= LARGE:
            S = pattern._plan_once(_column_incidence if columns else _row_incidence)
            y = _raw_spmm(*S._structure(True), _ones(S.nnz, x), flat(x))
            return y.reshape((*x.shape[:-2], *y.shape[-2:]))
        return x.index_select(-2, pattern.col_indices if columns else pattern.row_indices)

    @staticmethod
    def backward(ctx, g):
        return dispatch(_Sums, (g,), *ctx.constants), None, None


def sum_values(e: Tensor, pattern: SparsityPattern, by: str) -> Tensor:
    """Sums of (..., nnz) over the segments: each feature as values of the pattern."""
    return dispatch(_SumsOfValues, (e,), pattern, by == "column")


def spread_values(x: Tensor, pattern: SparsityPattern, by: str) -> Tensor:
    """For each entry the value of its segment, (..., nnz): the adjoint of `sum_values`."""
    return dispatch(_SpreadOfValues, (x,), pattern, by == "column")


class _SumsOfValues(_Features, Multilinear):
    @staticmethod
    def forward(e, pattern, columns):
        pattern = pattern if columns else drop_empty_columns(pattern)
        ones = _ones(pattern.shape[not columns], e).unsqueeze(-1)
        values = e.reshape(e.shape[:-1].numel(), pattern.nnz)
        return _raw_spmm(*pattern._structure(columns), values, ones).reshape(*e.shape[:-1], -1)

    @staticmethod
    def backward(ctx, g):
        return dispatch(_SpreadOfValues, (g,), *ctx.constants), None, None


class _SpreadOfValues(_Features, Multilinear):
    @staticmethod
    def forward(x, pattern, columns):
        flat = x.reshape(x.shape[:-1].numel(), x.shape[-1])  # torch has a fast path for the last of two axes
        chosen = flat.index_select(1, pattern.col_indices if columns else pattern.row_indices)
        return chosen.reshape(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx, g):
        return dispatch(_SumsOfValues, (g,), *ctx.constants), None, None


def sum_endpoints(ends: Tensor, pattern: SparsityPattern) -> Tensor:
    """ends[..., 2i, :] + ends[..., 2j + 1, :] for each entry (i, j): one pass instead of three."""
    S = pattern._plan_once(_both_ends)
    return product(_ones(S.nnz, ends), ends, S, False)


def sums_at_ends(e: Tensor, pattern: SparsityPattern) -> Tensor:
    """The adjoint of `sum_endpoints`: in row 2i the sum of row i, in row 2j + 1 the sum of column j."""
    S = pattern._plan_once(_both_ends)
    return product(_ones(S.nnz, e), e, S, True)


def reduce_both_ends(e: Tensor, pattern: SparsityPattern, mean: bool) -> Tensor:
    """Sums or means of row i and of column i side by side, (..., n, 2f), for a square pattern."""
    S = pattern._plan_once(_both_ends)
    values = pattern._plan_once(_shares_of_both).to(e.dtype) if mean else _ones(S.nnz, e)
    return product(values, e, S, True).reshape(*e.shape[:-2], pattern.shape[0], 2 * e.shape[-1])


def _ones(n: int, like: Tensor) -> Tensor:
    return torch.ones(n, dtype=like.dtype, device=like.device)


def _row_incidence(P: SparsityPattern) -> SparsityPattern:
    entries = torch.arange(P.nnz, dtype=P.dtype, device=P.device)
    return SparsityPattern._construct(P.crow_indices, entries, (P.shape[0], P.nnz))


def _column_incidence(P: SparsityPattern) -> SparsityPattern:
    transposed, entries = P._transposition()  # entries of a column are in the order of its rows: sorted
    return SparsityPattern._construct(transposed.crow_indices, entries, (P.shape[1], P.nnz))


def _both_ends(P: SparsityPattern) -> SparsityPattern:
    narrow = P.dtype == torch.int32 and 2 * max(*P.shape, P.nnz) <= torch.iinfo(torch.int32).max
    dtype = torch.int32 if narrow else torch.int64
    pairs = torch.stack((2 * P.row_indices.to(dtype), 2 * P.col_indices.to(dtype) + 1), 1).sort(1).values
    crow = torch.arange(0, 2 * P.nnz + 1, 2, dtype=dtype, device=P.device)
    return SparsityPattern._construct(crow, pairs.reshape(-1), (P.nnz, 2 * max(P.shape)))


def lengths(pattern: SparsityPattern, by: str) -> Tensor:
    """The number of entries of each segment, at least 1, shape (segments, 1)."""
    return pattern._plan_once(_row_lengths if by == "row" else _column_lengths)


def _shares_of_both(P: SparsityPattern) -> Tensor:
    """For each entry of `_both_ends` 1 / the length of its segment."""
    both = torch.cat((lengths(P, "row"), lengths(P, "column")), 1).reshape(-1)
    return both.double().reciprocal()[P._plan_once(_both_ends).col_indices.long()]


def _row_lengths(P: SparsityPattern) -> Tensor:
    return P.crow_indices.diff().clamp(min=1).unsqueeze(-1)


def _column_lengths(P: SparsityPattern) -> Tensor:
    return _row_lengths(P.T)


def flat(t: Tensor) -> Tensor:
    """(n, f) or (batch, n, f), for the operators."""
    return t if t.dim() <= 3 else t.reshape(t.shape[:-2].numel(), *t.shape[-2:])


def segment_sum(
    E: Annotated[Tensor, _features(entries=True, or_complex=True)],
    pattern: SparsityPattern,
    by: Literal["row", "column"] = "row",
) -> Tensor:
    r"""Sum of the features of all entries in a row, :math:`x_i = \sum_j e_{ij}`, or in a column.

    Parameters
    ----------
    E : Tensor, shape (nnz,) or (..., nnz, f), float32 or float64, or complex: features of the entries
    pattern : SparsityPattern, shape (m, n)
    by : "row" or "column", the segments

    Returns
    -------
    Tensor, shape (m,) or (..., m, f) by rows, (n,) or (..., n, f) by columns. 0 for a segment without entries

    Notes
    -----
    Gradient: the gradient of the segment at each of its entries, which is `gather`, and vice versa. Any
    order, forward mode, vmap, `torch.compile`. For a single feature, ``CSR(e, pattern).sum(1)`` is
    equivalent.

    Cost: reads nnz f values once. The result is bitwise identical on every run and for every number of
    threads.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> P = ls.CSR.from_dense(torch.tensor([[1.0, 1.0], [0.0, 1.0]])).pattern
    >>> e = torch.tensor([1.0, 2.0, 4.0])
    >>> ls.ops.segment_sum(e, P, "row"), ls.ops.segment_sum(e, P, "column")
    (tensor([3., 4.]), tensor([1., 6.]))
    """
    return sum_segments(E, pattern, by)


def segment_mean(
    E: Annotated[Tensor, _features(entries=True, or_complex=True)],
    pattern: SparsityPattern,
    by: Literal["row", "column"] = "row",
) -> Tensor:
    """Mean of the features of all entries in a row or column: `segment_sum` divided by the number of entries.

    Parameters
    ----------
    E, pattern, by : see `segment_sum`

    Returns
    -------
    Tensor, as for `segment_sum`. 0 for a segment without entries.

    Notes
    -----
    Gradient and cost are as for `segment_sum`.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> P = ls.CSR.from_dense(torch.tensor([[1.0, 1.0], [0.0, 1.0]])).pattern
    >>> ls.ops.segment_mean(torch.tensor([1.0, 2.0, 4.0]), P)
    tensor([1.5000, 4.0000])
    """
    count = lengths(pattern, by)
    return sum_segments(E, pattern, by) / (count[:, 0] if E.dim() == 1 else count)


_raw_max = torch.ops.learnsolve.csr_segment_max.default
_raw_place = torch.ops.learnsolve.csr_segment_place.default


def segment_max(
    E: Annotated[Tensor, _features(entries=True)],
    pattern: SparsityPattern,
    by: Literal["row", "column"] = "row",
) -> Tensor:
    r"""Maximum of the features over all entries of a row, :math:`x_i = \max_j e_{ij}`, or of a column, for
    each feature separately.

    Parameters
    ----------
    E : Tensor, shape (nnz,) or (..., nnz, f), float32 or float64: features of the entries
    pattern : SparsityPattern, shape (m, n)
    by : "row" or "column", the segments

    Returns
    -------
    Tensor, shape (m,) or (..., m, f) by rows, (n,) or (..., n, f) by columns. 0 for a segment without
    entries, NaN for one with a NaN. For the minimum use ``-segment_max(-E, ...)``.

    Notes
    -----
    Gradient: passed to the first of the largest entries of the segment (in the order of the pattern), zero
    elsewhere, like `torch.max` along a dimension and torch-scatter's ``scatter_max``. torch's
    ``scatter_reduce`` with "amax" instead divides it among equal entries. Any order, forward mode, vmap,
    `torch.compile`.

    Cost: reads nnz f values once and writes the position of each maximum. Backward: writes nnz f values.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> P = ls.CSR.from_dense(torch.tensor([[1.0, 1.0], [0.0, 1.0]])).pattern
    >>> e = torch.tensor([3.0, 2.0, 4.0])
    >>> ls.ops.segment_max(e, P, "row"), ls.ops.segment_max(e, P, "column")
    (tensor([3., 4.]), tensor([3., 4.]))
    """
    if E.dim() == 1:
        return segment_max(E.unsqueeze(-1), pattern, by).squeeze(-1)
    return dispatch(_Max, (E,), pattern, by == "column")[0]


def _take(e: Tensor, at: Tensor) -> Tensor:
    """e[..., at[..., i, c], c], 0 for at = -1."""
    if e.shape[-2] == 0:
        return e.new_zeros((*e.shape[:-2], *at.shape[-2:]))
    at = at.long()
    return torch.where(at < 0, 0, torch.gather(e, -2, at.clamp(min=0)))


class _Max(_Features):
    """(maximum, its position)"""

    @staticmethod
    def forward(e, pattern, columns):
        top, at = _raw_max(pattern._structure(columns), flat(e))
        shape = (*e.shape[:-2], *top.shape[-2:])
        return top.reshape(shape), at.reshape(shape)

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[1])
        ctx.constants = inputs[1:]

    @staticmethod
    def backward(ctx, g, _):
        (at,) = ctx.saved_tensors
        return None if g is None else dispatch(_Place, (g, at), *ctx.constants), None, None

    @staticmethod
    def jvp(ctx, t, *_):
        (at,) = ctx.saved_tensors
        return dispatch(_Take, (t, at), *ctx.constants), None


class _Linear(_Features, Multilinear):
    """Linear in its first operand, for positions `at`."""

    operands = 2

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: object) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.constants = inputs[2:]

    @classmethod
    def jvp(cls, ctx, t, *_):
        return dispatch(cls, (t, *ctx.saved_tensors), *ctx.constants)


class _Take(_Linear):
    """The entries at these positions."""

    @staticmethod
    def forward(e, at, pattern, columns):
        return _take(e, at)

    @staticmethod
    def backward(ctx, g):
        return dispatch(_Place, (g, *ctx.saved_tensors), *ctx.constants), None, None, None


class _Place(_Linear):
    """The adjoint of `_Take`: g at these positions, zeros elsewhere."""

    @staticmethod
    def forward(g, at, pattern, columns):
        out = _raw_place(pattern._structure(columns), flat(at), flat(g))
        return out.reshape((*g.shape[:-2], *out.shape[-2:]))

    @staticmethod
    def backward(ctx, g):
        return dispatch(_Take, (g, *ctx.saved_tensors), *ctx.constants), None, None, None


@torch.library.register_fake("learnsolve::csr_segment_max")
def _(S, e):
    size = (*e.shape[:-2], S[0].shape[0] - 1, e.shape[-1])
    return e.new_empty(size), e.new_empty(size, dtype=S[1].dtype)


@torch.library.register_fake("learnsolve::csr_segment_place")
def _(S, at, g):
    return g.new_empty((*g.shape[:-2], S[1].shape[0], g.shape[-1]))


_raw_softmax = torch.ops.learnsolve.csr_segment_softmax.default
_raw_softmax_backward = torch.ops.learnsolve.csr_segment_softmax_backward.default


def segment_softmax(
    E: Annotated[Tensor, _features(entries=True)],
    pattern: SparsityPattern,
    by: Literal["row", "column"] = "row",
) -> Tensor:
    r"""Softmax over each row, :math:`a_{ij} = \exp(e_{ij}) / \sum_k \exp(e_{ik})`, or over each column, for
    each feature separately. The weights are positive and sum to 1 over every row that has an entry.

    Parameters
    ----------
    E : Tensor, shape (nnz,) or (..., nnz, f), float32 or float64: features of the entries
    pattern : SparsityPattern, shape (m, n)
    by : "row" or "column", the segments

    Returns
    -------
    Tensor of E's shape.

    Notes
    -----
    The largest entry of a segment is subtracted first, so finite features never overflow. As with
    `torch.softmax`, a NaN or an infinity makes its whole segment NaN. An entry of -infinity has weight 0, but
    a segment with only such entries is NaN. Weights below 1e-307 (1e-37 in float32) are 0.

    Gradient: :math:`\bar e_{ij} = a_{ij} (\bar a_{ij} - \sum_k a_{ik} \bar a_{ik})`. Any order, forward mode,
    vmap, `torch.compile`.

    Cost: reads and writes nnz f values, and computes as many exponentials. The backward pass reads the
    weights and the incoming gradient once. Deterministic.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> P = ls.CSR.from_dense(torch.tensor([[1.0, 1.0], [0.0, 1.0]])).pattern
    >>> ls.ops.segment_softmax(torch.tensor([0.0, 0.0, 5.0]), P)
    tensor([0.5000, 0.5000, 1.0000])
    """
    if E.dim() == 1:
        return segment_softmax(E.unsqueeze(-1), pattern, by).squeeze(-1)
    return dispatch(_Softmax, (E,), pattern, by == "column")


class _Softmax(_Features):
    @staticmethod
    def forward(e, pattern, columns):
        return _raw_softmax(pattern._structure(columns), flat(e)).reshape(e.shape)

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.constants = inputs[1:]

    @staticmethod
    def backward(ctx, g):
        return dispatch(_Tangent, (*ctx.saved_tensors, g), *ctx.constants), None, None

    @staticmethod
    def jvp(ctx, t, *_):  # the derivative is symmetric
        return dispatch(_Tangent, (*ctx.saved_tensors, t), *ctx.constants)


class _Tangent(_Features):
    """T(y, g) = y (g - sum of y g over the segment): symmetric in g: <h, T(y, g)> = <g, T(y, h)>."""

    operands = 2

    @staticmethod
    def forward(y, g, pattern, columns):
        S = pattern._structure(columns)
        return _raw_softmax_backward(S, flat(y), flat(g)).reshape(y.shape)

    @staticmethod
    def backward(ctx, h):
        y, g = ctx.saved_tensors
        by_y = by_g = None
        if ctx.needs_input_grad[0]:
            # h (g - s(y g)) - g s(y h), with s the sum over the segment, at each of its entries.
            by_y = h * (g - _segment_sums(y * g, *ctx.constants)) - g * _segment_sums(y * h, *ctx.constants)
        if ctx.needs_input_grad[1]:
            by_g = dispatch(_Tangent, (y, h), *ctx.constants)
        return by_y, by_g, None, None

    @staticmethod
    def jvp(ctx, ty, tg, *_):
        y, g = ctx.saved_tensors
        by_y = by_g = None
        if ty is not None:
            sums = _segment_sums(y * g, *ctx.constants)
            by_y = ty * (g - sums) - y * _segment_sums(ty * g, *ctx.constants)
        if tg is not None:
            by_g = dispatch(_Tangent, (y, tg), *ctx.constants)
        return add(by_y, by_g)


def _segment_sums(e: Tensor, pattern: SparsityPattern, columns: bool) -> Tensor:
    by = "column" if columns else "row"
    return spread(sum_segments(e, pattern, by), pattern, by)


@torch.library.register_fake("learnsolve::csr_segment_softmax")
def _(S, e):
    return e.new_empty(e.shape)


@torch.library.register_fake("learnsolve::csr_segment_softmax_backward")
def _(S, y, g):
    return y.new_empty(y.shape)


def gather(
    X: Annotated[Tensor, _features(entries=False, or_complex=True)],
    pattern: SparsityPattern,
    by: Literal["row", "column"] = "row",
) -> Tensor:
    r"""Gather for each entry (i, j) of a pattern the features :math:`x_i` of its row or :math:`x_j` of its
    column.

    Parameters
    ----------
    X : Tensor, shape (m,) or (..., m, f) by rows, (n,) or (..., n, f) by columns, float32 or float64, or
        complex
    pattern : SparsityPattern, shape (m, n)
    by : "row" or "column"

    Returns
    -------
    Tensor, shape (nnz,) or (..., nnz, f): one row of features per entry.

    Notes
    -----
    Gradient: :math:`\bar x_i = \sum_{p \text{ in row } i} \bar e_p`, which is `segment_sum`, in a fixed
    order, and vice versa. Any order, forward mode, vmap, `torch.compile`.

    Apply linear maps before gathering: ``gather(X @ W, P)`` is cheaper than ``gather(X, P) @ W``.

    Cost: writes nnz f values and reads as many, from the cache if neighboring rows are close together. From
    32 MiB on, a plan of a few indices per entry is cached with the pattern.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> P = ls.CSR.from_dense(torch.tensor([[1.0, 1.0], [0.0, 1.0]])).pattern
    >>> x = torch.tensor([10.0, 20.0])
    >>> ls.ops.gather(x, P, "row"), ls.ops.gather(x, P, "column")
    (tensor([10., 10., 20.]), tensor([10., 20., 20.]))
    """
    return spread(X, pattern, by)


# h_p = W1 z_p + b1 (+ u_i + v_j for p = entry (i, j)), y_p = W2 max(h_p, 0) + b2 (without W2: h_p).
# Derivatives are those of `reference_perceptron`. The first is also an operator, which recomputes h instead
# of storing it.


_raw_perceptron = torch.ops.learnsolve.perceptron.default
_raw_perceptron_backward = torch.ops.learnsolve.perceptron_backward.default


def perceptron(
    z: Tensor,
    first: tuple[Tensor, Tensor | None],
    second: tuple[Tensor, Tensor | None] | None = None,
    ends: Tensor | None = None,
    pattern: SparsityPattern | None = None,
) -> Tensor:
    """y (..., n, o) for z (..., n, k) on the CPU; `first` and `second` are (W, b).

    For the entries of a pattern, ends (..., 2m, f) holds u_i in row 2i and v_j in row 2j + 1; its batch axes
    match z.
    """
    none = z.new_empty(0)
    w1, b1 = first
    w2, b2 = (none, none) if second is None else second
    b1 = w1.new_zeros(len(w1)) if b1 is None else b1
    b2 = w2.new_zeros(len(w2)) if b2 is None else b2
    return dispatch(_Perceptron, (z, none if ends is None else ends, w1, b1, w2, b2), pattern)


def reference_perceptron(pattern: SparsityPattern | None) -> Callable:
    """The same with torch operations: (z, ends, W1, b1, W2, b2) -> (y,)."""

    def forward(z, ends, w1, b1, w2, b2):
        h = torch.nn.functional.linear(z, w1, b1)
        if pattern is not None:
            h = h + sum_endpoints(ends, pattern)
        return (torch.nn.functional.linear(h.relu(), w2, b2) if w2.numel() else h,)

    return forward


def _reference_adjoint(pattern: SparsityPattern | None) -> Callable:
    """(z, ends, W1, b1, W2, b2, g) -> gradients for the first six, differentiable."""

    def adjoint(*args):
        _, pull = pullback(reference_perceptron(pattern), *args[:6])
        return pull((args[6],))

    return adjoint


def _places(pattern: SparsityPattern | None) -> tuple[Tensor, ...]:
    return () if pattern is None else (pattern.row_indices, pattern.col_indices)


def _blocks(t: Tensor) -> Tensor:
    """(B, n, k)"""
    return t if t.dim() == 3 or t.dim() < 2 else t.reshape(t.shape[:-2].numel(), *t.shape[-2:])


class _Perceptron(Operation):
    operands = 6

    @staticmethod
    def forward(z, ends, w1, b1, w2, b2, pattern):
        y = _raw_perceptron(_places(pattern), _blocks(z), _blocks(ends), w1, b1, w2, b2)
        return y.reshape(*z.shape[:-1], y.shape[-1])

    @staticmethod
    def backward(ctx, g):
        operands, (pattern,) = ctx.saved_tensors, ctx.constants
        needs = ctx.needs_input_grad[:6]
        every = needs_graph(*operands, g)  # its derivatives are for all operands
        grads = dispatch(
            _Adjoint, (*operands, g), pattern, every or needs[0], pattern is not None and (every or needs[1])
        )
        return (*(t if needed else None for t, needed in zip(grads, needs, strict=True)), None)

    @staticmethod
    def jvp(ctx, *tangents):
        return pushforward(reference_perceptron(*ctx.constants), ctx.saved_tensors, tangents[:6])[0]

    @staticmethod
    def vmap(info, in_dims, *args):
        (y,), (dim,) = apply_vmap(reference_perceptron(args[6]), in_dims[:6], args[:6])
        return y, dim


class _Adjoint(Operation):
    """The gradients for z, ends, W1, b1, W2 and b2, or empty where the gradients for z and ends are not
    needed."""

    operands = 7

    @staticmethod
    def forward(z, ends, w1, b1, w2, b2, g, pattern, need_z, need_ends):
        two = w2.numel() > 0
        given = (_places(pattern), _blocks(z), _blocks(ends), w1, b1, w2, b2, _blocks(g))
        gz, gh, *of_weights = _raw_perceptron_backward(*given, need_z, need_ends and two)
        gends = ends.new_empty(0)
        if need_ends:
            sums = sums_at_ends(gh if two else given[-1], pattern)
            gends = sums.reshape(ends.shape)
        return gz.reshape(z.shape) if need_z else gz, gends, *of_weights

    @staticmethod
    @full_precision
    def backward(ctx, *cotangents):
        _, pull = pullback(_reference_adjoint(ctx.constants[0]), *ctx.saved_tensors)
        return *pull(cotangents), None, None, None

    @staticmethod
    def jvp(ctx, *tangents):
        return pushforward(_reference_adjoint(ctx.constants[0]), ctx.saved_tensors, tangents[:7])

    @staticmethod
    def vmap(info, in_dims, *args):
        return apply_vmap(_reference_adjoint(args[7]), in_dims[:7], args[:7])


@torch.library.register_fake("learnsolve::perceptron")
def _(places, z, ends, w1, b1, w2, b2):
    return z.new_empty((*z.shape[:-1], w2.shape[0] if w2.dim() == 2 else w1.shape[0]))


@torch.library.register_fake("learnsolve::perceptron_backward")
def _(places, z, ends, w1, b1, w2, b2, g, need_z, need_h):
    gz = z.new_empty(z.shape if need_z else 0)
    gh = z.new_empty((*z.shape[:-1], w1.shape[0]) if need_h else 0)
    return gz, gh, *(t.new_empty(t.shape) for t in (w1, b1, w2, b2))


# The factor of `preconditioners.PointwiseFactor` without derivatives: csrc/ops/schema.cpp.
pointwise_factor = torch.ops.learnsolve.pointwise_factor.default


@torch.library.register_fake("learnsolve::pointwise_factor")
def _(A, L, values, scale, weights, omega, unit):
    return values.new_empty(values.shape[0], L[1].shape[0])
