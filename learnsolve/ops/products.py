"""Products of a matrix with dense blocks, sampled products, and sums of columns, differentiable to any order.

They are the derivatives of a trilinear form,

    Phi(v, x, g) = sum_b <g_b, A(v_b) x_b>,      A(v): the matrix with values v,

where each of v, x, g has a batch axis b or is shared by the batch: dPhi/dg = A x is the product, dPhi/dx =
A^T g the product with the transpose, dPhi/dv = the entries of g x^T on the pattern, the sampled product.

Source: Nytko et al., "Optimized Sparse Matrix Operations for Reverse Mode Automatic Differentiation", arXiv
2212.05159, table 1.
"""

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import scipy.sparse.linalg
import torch
from torch import Tensor

from learnsolve import _library  # noqa: F401  (registers torch.ops.learnsolve)
from learnsolve.matrix import checks, device_analysis
from learnsolve.matrix.checks import Numbers, SquareMatrix, like
from learnsolve.matrix.convert import conjugate
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, to_numpy
from learnsolve.ops import across, complex_values
from learnsolve.ops.autograd import (
    Derivative,
    Gradients,
    Operation,
    add,
    apply_vmap,
    broadcast,
    dispatch,
    gradient,
    gradients,
    gradients_of_both,
    needs_graph,
    separate_gradients,
)

_raw = torch.ops.learnsolve.csr_spmm.default
_raw_sddmm = torch.ops.learnsolve.csr_sddmm.default
_raw_backward = torch.ops.learnsolve.csr_spmm_backward.default
_raw_scatter_backward = torch.ops.learnsolve.csr_spmv_scatter_backward.default

# The operands v, x, g of Phi.
_VALUES, _X, _G = 0, 1, 2


def product(values: Tensor, x: Tensor, pattern: SparsityPattern, transpose: bool) -> Tensor:
    """`spmm` on values and pattern, unchecked: brings any batch axes to the one axis of the kernels."""
    if values.dtype is not x.dtype and values.is_complex() != x.is_complex():
        if x.is_complex():
            return complex_values.columns(lambda x: product(values, x, pattern, transpose), x)
        x = x.to(values.dtype)
    if values.dim() == 1 and x.dim() <= 3:
        role = _X if transpose else _G
        if torch.compiler.is_dynamo_compiling():
            return dispatch(_Product, (values, x), role, False, pattern)
        if needs_graph(values, x):
            return _Product.eager.apply(values, x, role, False, pattern)
        if transpose:
            return _Product.forward(values, x, role, False, pattern)
        return _raw(*pattern._structure(False), values, x, False)  # of the loops of solvers
    if x.dim() == 1:
        return product(values, x.unsqueeze(-1), pattern, transpose).squeeze(-1)
    return broadcast(_Product, _X if transpose else _G, values, x, pattern)


def sddmm_values(u: Tensor, w: Tensor, pattern: SparsityPattern) -> Tensor:
    """`sddmm` on tensors of any batch axes, unchecked."""
    if u.is_complex() != w.is_complex():
        dtype = torch.promote_types(u.dtype, w.dtype)
        u, w = u.to(dtype), w.to(dtype)
    if u.dim() <= 2 and w.dim() <= 2:
        return dispatch(_Product, (w, u), _VALUES, False, pattern)
    return broadcast(_Product, _VALUES, w, u, pattern)


def _product(v: Tensor, x: Tensor, pattern: SparsityPattern, transpose: bool) -> Tensor:
    """A x for v (nnz) or (B, nnz) and x (n), (n, k) or (B, n, k)."""
    return dispatch(_Product, (v, x), _X if transpose else _G, False, pattern)


def _values_gradient(u: Tensor, w: Tensor, pattern: SparsityPattern, transpose: bool, like: Tensor) -> Tensor:
    """dPhi/dv for y-side u and x-side w, in the shape of `like`."""
    if transpose:
        u, w = w, u
    return gradient(_Product, _VALUES, w, _X, u, like, pattern)


def _scatters(v: Tensor, x: Tensor, pattern: SparsityPattern) -> bool:
    """Is a product with the transpose cheaper in the order of A's rows? For a real vector, on the CPU."""
    if torch.compiler.is_dynamo_compiling() or v.dim() > 1 or x.dim() > 2 or x.numel() != x.shape[0]:
        return False
    if v.is_complex():
        return False
    return not device_analysis.here(v) and pattern._prefers_scatter


def _scatter_gradients(v: Tensor, g: Tensor, x: Tensor, pattern: SparsityPattern, need_values: bool):
    """The gradients for values and x of A x with one column, raw: (gv, gx), gv empty if not needed."""
    ptr, idx, _, blocks = pattern._structure(False)
    gv, gx = _raw_scatter_backward(ptr, idx, blocks, v, g.reshape(-1), x.reshape(-1), need_values, True)
    return gv, gx.reshape(x.shape)


def _complex_gradients(ctx, g: Tensor, values: Tensor, x: Tensor) -> tuple:
    """`gradients` by torch's convention, at conjugate operands."""
    role, _, pattern = ctx.constants
    if role == _VALUES or torch.compiler.is_dynamo_compiling() or needs_graph(values, g, x):
        return gradients(_Product, ctx, g, (conjugate(values), conjugate(x)))
    need_values, need_x = ctx.needs_input_grad[:2]
    gv = gradient(_AtConjugate, _VALUES, g, role, x, values, role, pattern) if need_values else None
    gx = gradient(_AtConjugate, 3 - role, g, role, values, x, role, pattern) if need_x else None
    return gv, gx, None, None, None


class _Product(Derivative):
    """dPhi/dg and dPhi/dx, the products with A and with A^T, and dPhi/dv, the sampled product.

    Operands are v (nnz) or (B, nnz), and x and g (n), (n, k) or (B, n, k)."""

    @staticmethod
    def axes(role, pattern):
        return 1 if role == _VALUES else 2

    @staticmethod
    def forward(u, x, role, shared, pattern):
        if role == _VALUES:
            ptr, idx, _, blocks = pattern._structure(False)
            return _raw_sddmm(ptr, idx, blocks, x, u, shared)
        values, transpose = u, role == _X
        if transpose and _scatters(values, x, pattern):
            # A gather through the transpose waits for memory at each entry; lsqr needs it in every iteration.
            like = x.new_empty((pattern.shape[1], *x.shape[1:]))
            return _scatter_gradients(values, x, like, pattern, False)[1]
        return _raw(*pattern._structure(transpose), values, x, shared)

    @staticmethod
    def backward(ctx, g):
        need_values, need_x = ctx.needs_input_grad[:2]
        role, _, pattern = ctx.constants
        values, x = ctx.saved_tensors
        if g.is_complex():
            return _complex_gradients(ctx, g, values, x)
        if role != _VALUES and need_x:
            if role == _G and _scatters(values, x, pattern) and not needs_graph(values, g, x):
                gv, gx = _scatter_gradients(values, g, x, pattern, need_values)
                return gv if need_values else None, gx, None, None, None
            if need_values:
                return *dispatch(_Gradients, (values, x, g), role, pattern), None, None, None
            if values.dim() == 1 and g.dim() == x.dim():  # nothing is summed: `gradients`, in fewer calls
                other = _X if role == _G else _G
                return None, dispatch(_Product, (values, g), other, False, pattern), None, None, None
        return gradients(_Product, ctx, g, (values, x))

    @classmethod
    def vmap(cls, info, in_dims, u, x, role, shared, pattern):
        if role != _VALUES and in_dims[0] is None and u.dim() == 1 and not shared:
            if x.dim() == 2:  # a batch of vectors: the columns of a matrix, at no copy if it lies last
                return dispatch(cls, (u, x.movedim(in_dims[1], 1)), role, False, pattern), 1
            if x.dim() == 3:
                return dispatch(cls, (u, x.movedim(in_dims[1], 0)), role, False, pattern), 0
        return super().vmap(info, in_dims, u, x, role, shared, pattern)


class _AtConjugate(Derivative):
    """The gradients of a complex product, the derivative `of`, for calls that nothing tracks: kernels
    conjugate what was saved, and nothing is copied."""

    @staticmethod
    def axes(role, of, pattern):
        return _Product.axes(role, pattern)

    @staticmethod
    def forward(u, x, role, shared, of, pattern):
        if role == _VALUES:
            ptr, idx, _, blocks = pattern._structure(False)
            return _raw_sddmm(ptr, idx, blocks, x, u, shared, of)  # _X: the conjugate of x here, _G: of u
        return _raw(*pattern._structure(role == _X), u, x, shared, True)


class _Gradients(Gradients):
    """Both gradients of a product in one pass."""

    derivative = _Product

    @staticmethod
    def forward(v, x, g, role, pattern):
        if g.dim() < 3 and (v.dim() == 2 or x.dim() == 3):
            return separate_gradients(
                _Product, v, x, g, role, pattern
            )  # the product was summed over its batch
        transpose = role == _X
        crow, col, _, blocks = pattern._structure(False)
        return _raw_backward(*pattern._structure(not transpose), crow, col, blocks, v, g, x)

    @staticmethod
    def backward(ctx, hv, hx):
        return gradients_of_both(_Product, ctx, hv, hx)


class HostOperator(scipy.sparse.linalg.LinearOperator):
    """`apply(of, X, transpose)` for NumPy arrays, on the host, without gradient. `of` has a shape. It, or
    `like`, has a dtype and a device. Later changes of its values take effect."""

    def __init__(self, of: Any, apply: Callable[[Any, Tensor, bool], Tensor], like: Tensor | None = None):
        self.of, self.apply, self.like = of, apply, of if like is None else like
        super().__init__(dtype=np.dtype(str(self.like.dtype).removeprefix("torch.")), shape=of.shape)

    def _multiply(self, x: np.ndarray, transpose: bool) -> np.ndarray:
        if np.iscomplexobj(x) and not self.like.dtype.is_complex:
            return self._multiply(np.real(x), transpose) + 1j * self._multiply(np.imag(x), transpose)
        # A copy: torch does not accept read-only arrays or negative strides.
        vectors = torch.from_numpy(np.array(x, dtype=self.dtype)).to(self.like.device)
        with torch.no_grad():
            return to_numpy(self.apply(self.of, vectors, transpose))

    def _matvec(self, x: np.ndarray) -> np.ndarray:
        return self._multiply(x.reshape(-1), False)

    def _rmatvec(self, x: np.ndarray) -> np.ndarray:
        return self._rmatmat(x.reshape(-1))

    def _matmat(self, X: np.ndarray) -> np.ndarray:
        return self._multiply(X, False)

    def _rmatmat(self, X: np.ndarray) -> np.ndarray:
        return self._multiply(X.conj(), True).conj()  # A^H X


def matrix_product(A: Any, x: Tensor, transpose: bool) -> Tensor:
    """`apply` for a CSR."""
    return product(A.values.detach(), x, A.pattern, transpose)


# Sums of columns, with the same bits for any number of threads: derivatives of sum_b sum_c a_bc <u_bc,
# v_bc>. torch splits a sum among its threads from `SPLIT` elements on. Shorter ones are left to it in
# `dots` and `multiply_columns`, with autograd's own derivatives, which have less overhead than a Function.


_raw_dots = torch.ops.learnsolve.column_dots.default
_raw_combination = torch.ops.learnsolve.column_combination.default

# The operands a, u, v of Phi.
_A, _U, _V = 0, 1, 2


SPLIT = 32768  # at::internal::GRAIN_SIZE


def dots(u: Tensor, v: Tensor, keepdim: bool = False) -> Tensor:
    """<u, v> of each column, (..., k), for u and v (..., n, k), over all rows where processes share them.
    Nothing is conjugated."""
    if u.numel() < SPLIT and v.numel() < SPLIT:
        return across.total((u * v).sum(-2, keepdim))
    return across.total(deterministic_dots(u, v).unsqueeze(-2) if keepdim else deterministic_dots(u, v))


def deterministic_dots(u: Tensor, v: Tensor) -> Tensor:
    """`dots` whose bits do not depend on the layout of memory either."""
    return _apply(_A, u, v)


def multiply_columns(a: Tensor | float, v: Tensor) -> Tensor:
    """a o v for v (..., n, k) or (n,), and a coefficient of each column, (..., 1, k), or of all, whose
    gradient is a dot."""
    if v.numel() < SPLIT or not isinstance(a, Tensor) or not needs_graph(a):
        return a * v
    if v.dim() == 1:
        return multiply_columns(a.reshape(1, 1), v.unsqueeze(-1)).squeeze(-1) if a.numel() == 1 else a * v
    if a.dim() > 1 and a.shape[-2] != 1:
        return a * v  # of each row
    if a.dim() < 2 or a.shape[-1] != v.shape[-1]:
        a = a.expand((*a.shape[:-2], 1, v.shape[-1]))
    return _apply(_U, a.squeeze(-2), v)


def times(v: Tensor, s: Any) -> Tensor:
    """v s for v (..., n) and s, a float or a tensor. The gradient of a scalar or (..., 1) is a sum."""
    if not _sums(v, s):
        return v * s
    s = s.to(torch.result_type(v, s))
    return multiply_columns(s.unsqueeze(-1) if s.dim() else s, v.unsqueeze(-1)).squeeze(-1)


def divide_columns(v: Tensor, s: float | Tensor) -> Tensor:
    """v / s, likewise: by s times ones, which keeps the bits of the quotient."""
    return v / (times(v.new_ones(()).expand(v.shape), s) if _sums(v, s) else s)


def spread(s: Tensor, n: int) -> Tensor:
    """s (..., 1) as (..., n), likewise. An s of shape (..., n) is returned as it is."""
    rows = s.expand(*s.shape[:-1], n)
    ones = s.new_ones(()).expand(rows.shape)
    return times(ones, s) if _sums(ones, s) else rows


def _sums(v: Tensor, s: object) -> bool:
    if not isinstance(s, Tensor) or v.numel() < SPLIT or s.device != v.device:
        return False
    return (s.dim() == 0 or s.shape[-1] == 1 < v.shape[-1]) and needs_graph(s)


def combination(a: Tensor, v: Tensor) -> Tensor:
    """sum_j a_j o v_j, (..., n, k), for a (j, ..., 1, k) and v (j, ..., n, k)."""
    if v.numel() < SPLIT:
        return (a * v).sum(0)
    if v.dim() == 3:
        a = a.to(v.dtype) if v.is_complex() else a
        return dispatch(_Columns, (a.squeeze(-2), v), _U, True)
    out = multiply_columns(a[0], v[0])
    for i in range(1, len(a)):
        out = out + multiply_columns(a[i], v[i])
    return out


def total(t: Tensor) -> Tensor:
    """The sum along the last axis."""
    if t.is_complex():
        return torch.complex(total(t.real), total(t.imag))
    if t.dtype not in (torch.float32, torch.float64):
        return t.sum(-1)
    column = t.unsqueeze(-1)
    return deterministic_dots(
        column, torch.ones((), dtype=t.dtype, device=t.device).expand(column.shape)
    ).squeeze(-1)


def _apply(role: int, u: Tensor, v: Tensor) -> Tensor:
    inner = 1 if role == _U else 2
    if u.is_complex() != v.is_complex():
        return complex_values.bilinear(lambda u, v: _apply(role, u, v), u, v, (inner, 2))
    if u.dim() <= inner + 1 and v.dim() <= 3 and (u.dim() == inner or v.dim() == 2 or len(u) == len(v)):
        return dispatch(_Columns, (u, v), role, False)
    return broadcast(_Columns, role, u, v)


class _Columns(Derivative):
    """The derivatives of Phi. Operands are a (k) or (B, k), and u and v (n, k) or (B, n, k)."""

    @staticmethod
    def axes(role):
        return 1 if role == _A else 2

    @staticmethod
    def forward(u, v, role, shared):
        if role == _A:
            return _raw_dots(u, v, shared)
        return _raw_combination(u, v) if shared else u.unsqueeze(-2) * v

    @staticmethod
    def backward(ctx, g):
        u, v = ctx.saved_tensors
        return gradients(_Columns, ctx, g, (conjugate(u), conjugate(v)))


@torch.library.register_fake("learnsolve::column_dots")
def _(u, v, sum_batch=False):
    k = v.shape[-1:]
    if sum_batch or (u.dim() == 2 and v.dim() == 2):
        return u.new_empty(k)
    u_batch = u.shape[0] if u.dim() == 3 else 1
    return u.new_empty((v.shape[0] if v.dim() == 3 and u_batch == 1 else u_batch, *k))


@torch.library.register_fake("learnsolve::column_combination")
def _(a, v):
    return v.new_empty(v.shape[-2:])


def spmm(A: CSR, x: Tensor, *, transpose: bool = False) -> Tensor:
    r"""Sparse matrix times dense vector or matrix, :math:`y = A x` or :math:`y = A^T x`.

    Parameters
    ----------
    A : CSR, shape (m, n), float32 or float64, or complex. Its values may have batch axes, (..., nnz)
    x : Tensor, shape (n,) or (..., n, k), of A's precision and device ((m,) or (..., m, k) if `transpose`)
    transpose : multiply by the transpose, which is not formed

    Returns
    -------
    Tensor, shape (..., m) for a vector, (..., m, k) for a matrix. Batch axes broadcast.

    Raises
    ------
    ValueError, TypeError
        if shapes, dtypes or devices do not match.

    Notes
    -----
    Gradient: :math:`\bar x = A^T \bar y`, :math:`\bar A = (\bar y x^T)` on the pattern, at the cost of about
    one pass over the cached transposed pattern. Any order, forward mode, vmap, `torch.compile`. For complex
    values :math:`\bar x = A^H \bar y`, as in torch. The transpose is :math:`A^T`, not ``A.H``.

    Cost: 2 nnz k flops. Values and indices are read once per 32 columns (float64) or 64 columns (float32)
    with AVX2. The backward pass reads and writes values once more. The result is bitwise identical on every
    run and for every number of threads.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((4,))
    >>> ls.ops.spmm(A, torch.arange(4.0, dtype=torch.float64))
    tensor([-1.,  0.,  0.,  4.], dtype=torch.float64)
    """
    if not (type(A) is CSR and transpose is False and checks.fits(A.values, x, A.pattern)):
        checks.matrix("spmm", "A", A)
        checks.dtype("spmm", "A.values", A.values, or_complex=True)
        checks.same_kind("spmm", "x", x, A.values, or_complex=True)
        checks.rows("spmm", "x", x, "A", A.pattern.shape, 0 if transpose else 1)
        checks.batches("spmm", A.values.shape[:-1], x.shape[:-2], "A.values and x")
    return product(A.values, x, A.pattern, transpose)


def sddmm(
    U: Numbers, V: Annotated[Tensor, like("U", or_complex=True)], pattern: SparsityPattern | CSR
) -> Tensor:
    r"""Entries of :math:`U V^T` on a pattern, :math:`c_{ij} = u_i^T v_j`: without conjugation.

    Parameters
    ----------
    U : Tensor, shape (m,) or (..., m, k), float32 or float64, or complex
    V : Tensor, shape (n,) or (..., n, k), of U's precision and device
    pattern : SparsityPattern, shape (m, n), or a CSR, whose values are not read

    Returns
    -------
    Tensor, shape (..., nnz): values for `CSR`. U V^T itself is never formed.

    Notes
    -----
    Gradient: :math:`\bar U = \bar C V`, :math:`\bar V = \bar C^T U` where the matrix :math:`\bar C` has
    the incoming gradient as its values. Any order, forward mode, vmap, `torch.compile`.

    Cost: 2 nnz k flops. Reads the indices and writes the values once. Deterministic.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> P = ls.problems.poisson((3,)).pattern
    >>> ls.ops.sddmm(torch.tensor([1.0, 2.0, 3.0]), torch.ones(3), P)
    tensor([1., 1., 2., 2., 2., 3., 3.])
    """
    if isinstance(pattern, CSR):
        pattern = pattern.pattern
    checks.pattern("sddmm", "pattern", pattern, like=U)
    checks.rows("sddmm", "U", U, "pattern", pattern.shape, 0)
    checks.rows("sddmm", "V", V, "pattern", pattern.shape, 1)
    if (U.dim() == 1) != (V.dim() == 1) or (U.dim() > 1 and U.shape[-1] != V.shape[-1]):
        raise ValueError(
            "sddmm: U and V must both be vectors or both have shape (..., rows, k), with one k, got "
            f"{tuple(U.shape)} and {tuple(V.shape)}"
        )
    checks.batches("sddmm", U.shape[:-2], V.shape[:-2], "U and V")
    return sddmm_values(U, V, pattern)


def quadratic_form(
    A: SquareMatrix, x: Annotated[Tensor, like("A", rows_of=0, or_complex=True)], *, symmetric: bool = False
) -> Tensor:
    r"""Quadratic form :math:`q = x^T A x`, summed over the columns of x: :math:`\operatorname{tr}(X^T A X)`,
    or :math:`x^H A x` if x is complex.

    Parameters
    ----------
    A : CSR, shape (n, n), float32 or float64, or complex. Its values may have batch axes, (..., nnz)
    x : Tensor, shape (n,) or (..., n, k), of A's precision and device
    symmetric : declares that A equals its transpose (not checked). The backward pass then needs no product

    Returns
    -------
    Tensor, shape (...): one value per member of the batch.

    Notes
    -----
    Gradient: :math:`\bar x = \bar q (A x + A^T x)`, :math:`\bar A = \bar q\, x x^T` on the pattern. A x is
    saved by the forward pass, so the backward pass costs one more product, or none if `symmetric`. Any order.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((3,))
    >>> ls.ops.quadratic_form(A, torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    tensor(12., dtype=torch.float64)
    """
    values, pattern = A.values, A.pattern
    if (
        torch.compiler.is_dynamo_compiling()
        or values.dim() > 1
        or x.dim() > 2
        or complex_values.either(values, x)
    ):
        y = product(values, x, pattern, False)
        return _inner(conjugate(x), y)
    if needs_graph(values, x):
        return _QuadraticForm.eager.apply(values, x, pattern, symmetric)[0]
    return _QuadraticForm.forward(values, x, pattern, symmetric)[0]


def _inner(x: Tensor, y: Tensor) -> Tensor:
    """<x, y>, summed over all columns, for each member of a batch."""
    axes = min(x.dim(), 2)
    column = (x.shape[-axes:].numel(), 1)
    x, y = x.reshape((*x.shape[:-axes], *column)), y.reshape((*y.shape[:-axes], *column))
    return deterministic_dots(x, y).squeeze(-1)


class _QuadraticForm(Operation):
    """(q, A x). A x is returned so that it can be saved."""

    @staticmethod
    def forward(values: Tensor, x: Tensor, pattern: SparsityPattern, symmetric: bool):
        y = product(values, x, pattern, False)
        return _inner(x, y), y

    @staticmethod
    def setup_context(ctx, inputs, output):
        values, x, ctx.pattern, ctx.symmetric = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(values, x, output[1])

    @staticmethod
    def backward(ctx, g, _):
        if g is None:
            return (None,) * 4
        values, x, y = ctx.saved_tensors
        pattern = ctx.pattern
        again = needs_graph(values, x, g)
        if again:
            y = product(values, x, pattern, False)  # with a graph, since this gradient is differentiated
        need_values, need_x = ctx.needs_input_grad[:2]
        gx = gv = None
        if need_x:
            # `symmetric` holds for these values, not for the directions of a second derivative.
            once = ctx.symmetric and not again
            gx = y * (g + g) if once else g * (y + product(values, x, pattern, True))
        if need_values:
            gv = sddmm_values(g * x, x, pattern)
        return gv, gx, None, None

    @staticmethod
    def jvp(ctx, tv, tx, *_):
        values, x = ctx.saved_tensors[:2]
        pattern = ctx.pattern
        by_values = None if tv is None else _inner(x, product(tv, x, pattern, False))
        by_x = None
        if tx is not None:
            by_x = _inner(tx, product(values, x, pattern, False) + product(values, x, pattern, True))
        return add(by_values, by_x), None

    @staticmethod
    def vmap(info, in_dims, values, x, pattern, symmetric):
        def form(values: Tensor, x: Tensor):
            y = product(values, x, pattern, False)
            return _inner(x, y), y

        return apply_vmap(form, in_dims[:2], (values, x))
