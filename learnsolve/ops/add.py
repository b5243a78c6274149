"""Sums of two matrices on the union of their patterns."""

import builtins
from typing import Any, NamedTuple

import torch
from torch import Tensor

from learnsolve import _analysis, _library  # noqa: F401  (registers torch.ops.learnsolve)
from learnsolve.matrix import checks, device_analysis
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, as_numpy
from learnsolve.ops.core import complex
from learnsolve.ops.core.autograd import Multilinear, Operation, dispatch, tracked
from learnsolve.ops.core.dots import times
from learnsolve.ops.core.operands import factor, fit, one_shape

_raw = torch.ops.learnsolve.csr_add.default
_raw_backward = torch.ops.learnsolve.csr_add_backward.default

Scalar = float | builtins.complex | Tensor


@torch.library.register_fake("learnsolve::csr_add")
def _(codes, starts, nnz, a, b, alpha, beta):
    return a.new_empty((*a.shape[:-1], nnz))


@torch.library.register_fake("learnsolve::csr_add_backward")
def _(codes, starts, na, nb, g, alpha, beta, need_a, need_b):
    ga = g.new_empty((*g.shape[:-1], na) if need_a else (0,))
    return ga, g.new_empty((*g.shape[:-1], nb) if need_b else (0,))


def add(A: CSR, B: CSR, *, alpha: Scalar = 1, beta: Scalar = 1) -> CSR:
    r"""Sum of two sparse matrices, :math:`C = \alpha A + \beta B`.

    Parameters
    ----------
    A, B : CSR of the same shape, device and precision, real or complex; batch axes of their values broadcast
    alpha, beta : scalars, or tensors with one element or one per matrix of the batch, shape (..., 1)

    Returns
    -------
    CSR on the union of the patterns: every entry of A or B is an entry of C, even if zero. The pattern is A's
    or B's pattern itself if one contains the other, otherwise a new one, which later calls reuse.

    Raises
    ------
    ValueError
        if shapes or batch axes do not match.
    TypeError
        if dtypes or devices do not match, or an operand is not a CSR: adding a scalar would fill the matrix.

    Notes
    -----
    Gradient, V on C's pattern: :math:`\bar A = \alpha V`, :math:`\bar B = \beta V` on the patterns of A and
    B, :math:`\bar\alpha = \langle V, A \rangle`, :math:`\bar\beta = \langle V, B \rangle`. Any order; forward
    mode, vmap, `torch.compile`. Deterministic.

    Cost: one pass over the values, and another in the backward. The union is planned once per pair of
    patterns, in O(nnz), and takes two bits per entry of C (two indices on a CUDA device); matrices on the
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
    for name, M in (("A", A), ("B", B)):
        checks.matrix("add", name, M)
    return added("add", A, B, alpha, beta)


def added(function: str, A: CSR, B: CSR, alpha: Any, beta: Any) -> CSR:
    """`add` for two matrices; errors name `function`."""
    P, Q = A.pattern, B.pattern
    one_shape(function, A, B)
    fit(function, A, B)
    a, alpha = _scaled(function, "alpha", A, alpha)
    b, beta = _scaled(function, "beta", B, beta)
    checks.batches(function, a.shape[:-1], b.shape[:-1], "alpha A and beta B")
    plan = None if P is Q else union_plan(P, Q)
    if plan is None or plan.lies == "both":
        return CSR(torch.add(a if alpha == 1 else alpha * a, b, alpha=beta), P)
    if plan.lies == "B":
        return CSR(_merge(b, a, Q, P, beta, alpha), Q)
    return CSR(_merge(a, b, P, Q, alpha, beta), P if plan.pattern is None else plan.pattern)


def _scaled(function: str, name: str, A: CSR, s: Any) -> tuple[Tensor, float]:
    """Values and a float factor; a tensor is multiplied into the values, so that it gets a gradient."""
    s = factor(function, name, A, s)
    if isinstance(s, float):
        return A.values, s
    values = times(A.values, s)
    if not isinstance(s, Tensor):
        return values, 1.0
    if not checks.one_precision(values.dtype, A.dtype) or s.device.type not in (values.device.type, "cpu"):
        raise TypeError(
            f"{function}: {name} ({s.dtype}, {s.device}) must have the dtype and device of the matrix, "
            f"{A.dtype} on {A.device}; convert it with .to()"
        )
    return values, 1.0


class UnionPlan(NamedTuple):
    codes: Tensor  # csrc/kernels/views.h; on a device `places` themselves, and no starts
    starts: Tensor
    nnz: int
    lies: str  # on the pattern "A", "B" or "both", or "new"
    pattern: SparsityPattern | None  # if new

    def places(self) -> Tensor:
        """(2, nnz): the position of each entry of the union in A and in B; -1 if it is not there."""
        return self.codes if self.codes.dim() == 2 else _decoded(self.codes, self.nnz, self.starts.dtype)


def _decoded(codes: Tensor, nnz: int, dtype: torch.dtype) -> Tensor:
    bits = (codes.unsqueeze(1) >> torch.arange(8, device=codes.device)) & 1
    there = bits.reshape(-1, 2, 4).transpose(0, 1).reshape(2, -1)[:, :nnz] == 1
    return torch.where(there, there.cumsum(1) - 1, -1).to(dtype)


def union_plan(P: SparsityPattern, Q: SparsityPattern) -> UnionPlan:
    return P._planned(_plan_union, Q)


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
        merged = _analysis.merge_patterns(*(as_numpy(t.to(index)) for t in arrays))
        crow, col, codes, starts = (P._tensor(a) for a in merged)
        if there:
            codes, starts = _decoded(codes, len(col), index), starts[:0].clone()
    nnz = len(col)
    lies = {(True, True): "both", (True, False): "A", (False, True): "B", (False, False): "new"}[
        nnz == P.nnz, nnz == Q.nnz
    ]
    pattern = SparsityPattern._trusted(crow, col, P.shape) if lies == "new" else None
    return UnionPlan(codes, starts, nnz, lies, pattern)


def _merge(a: Tensor, b: Tensor, P: SparsityPattern, Q: SparsityPattern, alpha: float, beta: float) -> Tensor:
    """alpha a + beta b on the union of P and Q, for values of any batch axes."""
    if complex.either(a, b):
        a, b = (t.to(torch.promote_types(a.dtype, b.dtype)) for t in (a, b))
        P, Q = complex.doubled(P), complex.doubled(Q)
        return complex.unflat(_merge(complex.flat(a), complex.flat(b), P, Q, alpha, beta))
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
        elif torch.compiler.is_dynamo_compiling() or tracked(g):
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
