"""The product and the sampled product, differentiable to any order: the core of `spmm` and `sddmm`.

They are the derivatives of one trilinear form,

    Phi(v, x, g) = sum_b <g_b, A(v_b) x_b>,      A(v): the matrix with values v,

where each of v, x, g has a batch axis b or is shared by the batch: dPhi/dg = A x is the product, dPhi/dx
= A^T g the product with the transpose, dPhi/dv = the entries of g x^T on the pattern, the sampled
product. A derivative for a shared operand is summed over the batch.

Source: Nytko et al., "Optimized Sparse Matrix Operations for Reverse Mode Automatic Differentiation",
arXiv 2212.05159, table 1.
"""

from typing import Any

import torch
from torch import Tensor

from learnsolve import _library  # noqa: F401  (_library registers torch.ops.learnsolve)
from learnsolve.matrix import device_analysis
from learnsolve.matrix.convert import conjugate
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.core import complex
from learnsolve.ops.core.autograd import dispatch, tracked
from learnsolve.ops.core.trilinear import (
    Derivative,
    Gradients,
    apart,
    broadcast,
    gradient,
    gradients,
    gradients_of_both,
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
            return complex.columns(lambda x: product(values, x, pattern, transpose), x)
        x = x.to(values.dtype)
    if values.dim() == 1 and x.dim() <= 3:
        role = _X if transpose else _G
        if torch.compiler.is_dynamo_compiling():
            return dispatch(_Product, (values, x), role, False, pattern)
        if tracked(values, x):
            return _Product.eager.apply(values, x, role, False, pattern)
        if transpose:
            return _Product.forward(values, x, role, False, pattern)
        return _raw(*pattern._structure(False), values, x, False)  # of the loops of solvers
    if x.dim() == 1:
        return product(values, x.unsqueeze(-1), pattern, transpose).squeeze(-1)
    return broadcast(_Product, _X if transpose else _G, values, x, pattern)


def sampled(u: Tensor, w: Tensor, pattern: SparsityPattern) -> Tensor:
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


def _scattered(v: Tensor, g: Tensor, x: Tensor, pattern: SparsityPattern, need_values: bool):
    """The gradients for values and x of A x with one column, raw: (gv, gx), gv empty if not needed."""
    ptr, idx, _, blocks = pattern._structure(False)
    gv, gx = _raw_scatter_backward(ptr, idx, blocks, v, g.reshape(-1), x.reshape(-1), need_values, True)
    return gv, gx.reshape(x.shape)


def _complex_gradients(ctx: Any, g: Tensor, values: Tensor, x: Tensor) -> tuple:
    """`gradients` by torch's convention, at conjugate operands."""
    role, _, pattern = ctx.constants
    if role == _VALUES or torch.compiler.is_dynamo_compiling() or tracked(values, g, x):
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
            return _scattered(values, x, like, pattern, False)[1]
        return _raw(*pattern._structure(transpose), values, x, shared)

    @staticmethod
    def backward(ctx, g):
        need_values, need_x = ctx.needs_input_grad[:2]
        role, _, pattern = ctx.constants
        values, x = ctx.saved_tensors
        if g.is_complex():
            return _complex_gradients(ctx, g, values, x)
        if role != _VALUES and need_x:
            if role == _G and _scatters(values, x, pattern) and not tracked(values, g, x):
                gv, gx = _scattered(values, g, x, pattern, need_values)
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
            return apart(_Product, v, x, g, role, pattern)  # the product was summed over its batch
        transpose = role == _X
        crow, col, _, blocks = pattern._structure(False)
        return _raw_backward(*pattern._structure(not transpose), crow, col, blocks, v, g, x)

    @staticmethod
    def backward(ctx, hv, hx):
        return gradients_of_both(_Product, ctx, hv, hx)
