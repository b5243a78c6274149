"""The product and the sampled product, differentiable to any order: what `spmm` and `sddmm` are made of.

They are the derivatives of one trilinear form,

    Phi(v, x, g) = sum_b <g_b, A(v_b) x_b>,      A(v): the matrix with values v,

where each of v, x, g has a batch axis b or is shared by the batch: dPhi/dg = A x is the product, dPhi/dx
= A^T g the product with the transpose, dPhi/dv = the entries of g x^T on the pattern, the sampled
product. A derivative for a shared operand is summed over the batch.

Source: Nytko et al., "Optimized Sparse Matrix Operations for Reverse Mode Automatic Differentiation",
arXiv 2212.05159, table 1.
"""

import torch
from torch import Tensor

from learnsolve import _device_analysis, _library  # noqa: F401  (_library registers torch.ops.learnsolve)
from learnsolve.ops._autograd import Multilinear, Operation, add, dispatch, tracked, vmapped
from learnsolve.pattern import SparsityPattern

_raw = torch.ops.learnsolve.csr_spmm.default
_raw_sddmm = torch.ops.learnsolve.csr_sddmm.default
_raw_backward = torch.ops.learnsolve.csr_spmm_backward.default
_raw_scatter_backward = torch.ops.learnsolve.csr_spmv_scatter_backward.default


def product(values: Tensor, x: Tensor, pattern: SparsityPattern, transpose: bool) -> Tensor:
    """`spmm` on values and pattern, unchecked: brings any batch axes to the one axis of the kernels."""
    if values.dim() == 1 and x.dim() <= 3:
        return _product(values, x, pattern, transpose, False)
    if x.dim() == 1:
        return product(values, x.unsqueeze(-1), pattern, transpose).squeeze(-1)
    batch = torch.broadcast_shapes(values.shape[:-1], x.shape[:-2])
    v = _one_batch_axis(values, batch, 1)
    X = _one_batch_axis(x, batch, 2)
    y = _product(v, X, pattern, transpose, False)
    return y.reshape(batch + y.shape[-2:])


def sampled(u: Tensor, w: Tensor, pattern: SparsityPattern) -> Tensor:
    """`sddmm` on tensors of any batch axes, unchecked."""
    if u.dim() <= 2 and w.dim() <= 2:
        return _sampled(u, w, pattern, False)
    batch = torch.broadcast_shapes(u.shape[:-2], w.shape[:-2])
    out = _sampled(_one_batch_axis(u, batch, 2), _one_batch_axis(w, batch, 2), pattern, False)
    return out.reshape(batch + out.shape[-1:])


def _one_batch_axis(t: Tensor, batch: torch.Size, inner: int) -> Tensor:
    """`t` without batch axes if it is shared by the whole batch, else with one."""
    tail = t.shape[t.dim() - inner :]
    if t.shape[: t.dim() - inner].numel() == 1 and batch.numel() != 1:
        return t.reshape(tail)
    return t.expand(batch + tail).reshape((batch.numel(), *tail))


def _product(v: Tensor, x: Tensor, pattern: SparsityPattern, transpose: bool, shared: bool) -> Tensor:
    """A x for v (nnz) or (B, nnz) and x (n), (n, k) or (B, n, k); summed over the batch if `shared`."""
    return dispatch(_SpMM, (v, x), pattern, transpose, shared)


def _sampled(u: Tensor, w: Tensor, pattern: SparsityPattern, shared: bool) -> Tensor:
    """<u_i, w_j> on the pattern for u, w (n), (n, k) or (B, n, k); summed over the batch if `shared`."""
    return dispatch(_SDDMM, (u, w), pattern, shared)


def _dense_gradient(v: Tensor, g: Tensor, pattern: SparsityPattern, transpose: bool, like: Tensor) -> Tensor:
    """dPhi/dx (`transpose` as in A^T g) or dPhi/dg, in the shape of `like`."""
    batched = v.dim() == 2 or g.dim() == 3
    y = _product(v, g, pattern, transpose, batched and like.dim() < 3)
    return y if y.shape == like.shape else y.expand(like.shape)


def _values_gradient(u: Tensor, w: Tensor, pattern: SparsityPattern, transpose: bool, like: Tensor) -> Tensor:
    """dPhi/dv for y-side u and x-side w, in the shape of `like`."""
    if transpose:
        u, w = w, u
    out = _sampled(u, w, pattern, (u.dim() == 3 or w.dim() == 3) and like.dim() < 2)
    return out if out.shape == like.shape else out.expand(like.shape)


def _scatters(v: Tensor, x: Tensor, pattern: SparsityPattern) -> bool:
    """Is a product with the transpose cheaper in the order of A's rows? For a vector, on the CPU."""
    if torch.compiler.is_dynamo_compiling() or v.dim() > 1 or x.dim() > 2 or x.numel() != x.shape[0]:
        return False
    return not _device_analysis.here(v) and pattern._prefers_scatter


def _scattered(v: Tensor, g: Tensor, x: Tensor, pattern: SparsityPattern, need_values: bool):
    """The gradients for values and x of A x with one column, raw: (gv, gx), gv empty if not needed."""
    ptr, idx, _, blocks = pattern._structure(False)
    gv, gx = _raw_scatter_backward(ptr, idx, blocks, v, g.reshape(-1), x.reshape(-1), need_values, True)
    return gv, gx.reshape(x.shape)


class _SpMM(Multilinear):
    operands = 2

    @staticmethod
    def forward(values, x, pattern, transpose, shared):
        if transpose and _scatters(values, x, pattern):
            # lsqr, A 267,000 x 66,000 with 17.6 million entries: a product took 0.02 s, not 0.17 to 0.20.
            like = x.new_empty((pattern.shape[1], *x.shape[1:]))
            return _scattered(values, x, like, pattern, False)[1]
        return _raw(*pattern._structure(transpose), values, x, shared)

    @staticmethod
    def backward(ctx, g):  # type: ignore[override]
        values, x = ctx.saved_tensors
        need_values, need_x = ctx.needs_input_grad[:2]
        pattern, transpose, _ = ctx.constants
        gv = gx = None
        if need_x and not transpose and _scatters(values, x, pattern) and not tracked(values, g, x):
            gv, gx = _scattered(values, g, x, pattern, need_values)
            gv = gv if need_values else None
        elif need_values and need_x:
            gv, gx = _both_gradients(values, g, x, pattern, transpose)
        elif need_values:
            gv = _values_gradient(g, x, pattern, transpose, values)
        elif need_x:
            gx = _dense_gradient(values, g, pattern, not transpose, x)
        return gv, gx, None, None, None

    @staticmethod
    def vmap(info, in_dims, values, x, pattern, transpose, shared):
        v_dim, x_dim = in_dims[:2]
        if v_dim is None and values.dim() == 1 and not shared:
            if x.dim() == 2:  # a batch of vectors: the columns of a matrix, at no copy if it lies last
                return _product(values, x.movedim(x_dim, 1), pattern, transpose, False), 1
            if x.dim() == 3:
                return _product(values, x.movedim(x_dim, 0), pattern, transpose, False), 0
        n = info.batch_size
        vector = (x.dim() if x_dim is None else x.dim() - 1) == 1
        v = values.unsqueeze(0) if v_dim is None else values.movedim(v_dim, 0)
        X = x.unsqueeze(0) if x_dim is None else x.movedim(x_dim, 0)
        X = X.unsqueeze(-1) if vector else X
        # Both get a batch axis of their own behind that of the map, which the kernel may sum.
        v = v if v.dim() == 3 else v.unsqueeze(1)
        X = X if X.dim() == 4 else X.unsqueeze(1)
        y = product(v, X, pattern, transpose)
        inner = values.dim() - (v_dim is not None) == 2 or x.dim() - (x_dim is not None) == 3
        y = y.sum(1) if shared or not inner else y
        y = y.squeeze(-1) if vector else y
        return y.expand((n, *y.shape[1:])), 0


def _both_gradients(v: Tensor, g: Tensor, x: Tensor, pattern: SparsityPattern, transpose: bool):
    return dispatch(_SpMMBackward, (v, g, x), pattern, transpose)


def _gradients_apart(v: Tensor, g: Tensor, x: Tensor, pattern: SparsityPattern, transpose: bool):
    """What `_SpMMBackward` computes, by two operations that know how to be differentiated."""
    return (
        _values_gradient(g, x, pattern, transpose, v),
        _dense_gradient(v, g, pattern, not transpose, x),
    )


class _SpMMBackward(Operation):
    """Both gradients of the product in one pass: (gv, gx) in the shapes of v and x."""

    @staticmethod
    def forward(v, g, x, pattern, transpose):
        if g.dim() < 3 and (v.dim() == 2 or x.dim() == 3):
            return _gradients_apart(v, g, x, pattern, transpose)  # the product was summed over its batch
        crow, col, _, blocks = pattern._structure(False)
        return _raw_backward(*pattern._structure(not transpose), crow, col, blocks, v, g, x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        v, g, x, ctx.pattern, ctx.transpose = inputs
        ctx.save_for_backward(v, g, x)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, hv, hx):  # type: ignore[override]
        v, g, x = ctx.saved_tensors
        need_v, need_g, need_x = ctx.needs_input_grad[:3]
        pattern, transpose = ctx.pattern, ctx.transpose
        rv = rg = rx = None
        if need_g:
            rg = add(
                None if hv is None else _dense_gradient(hv, x, pattern, transpose, g),
                None if hx is None else _dense_gradient(v, hx, pattern, transpose, g),
            )
        if need_v and hx is not None:
            rv = _values_gradient(g, hx, pattern, transpose, v)
        if need_x and hv is not None:
            rx = _dense_gradient(hv, g, pattern, not transpose, x)
        return rv, rg, rx, None, None

    @staticmethod
    def jvp(ctx, tv, tg, tx, *_):  # type: ignore[override]
        v, g, x = ctx.saved_tensors
        pattern, transpose = ctx.pattern, ctx.transpose
        gv = add(
            None if tg is None else _values_gradient(tg, x, pattern, transpose, v),
            None if tx is None else _values_gradient(g, tx, pattern, transpose, v),
        )
        gx = add(
            None if tv is None else _dense_gradient(tv, g, pattern, not transpose, x),
            None if tg is None else _dense_gradient(v, tg, pattern, not transpose, x),
        )
        return torch.zeros_like(v) if gv is None else gv, torch.zeros_like(x) if gx is None else gx

    @staticmethod
    def vmap(info, in_dims, v, g, x, pattern, transpose):
        return vmapped(lambda v, g, x: _gradients_apart(v, g, x, pattern, transpose), in_dims[:3], (v, g, x))


class _SDDMM(Multilinear):
    operands = 2

    @staticmethod
    def forward(u, w, pattern, shared):
        ptr, idx, _, blocks = pattern._structure(False)
        return _raw_sddmm(ptr, idx, blocks, u, w, shared)

    @staticmethod
    def backward(ctx, h):  # type: ignore[override]
        u, w = ctx.saved_tensors
        pattern, need_u, need_w = ctx.constants[0], *ctx.needs_input_grad[:2]
        gu = _dense_gradient(h, w, pattern, False, u) if need_u else None
        gw = _dense_gradient(h, u, pattern, True, w) if need_w else None
        return gu, gw, None, None

    @staticmethod
    def vmap(info, in_dims, u, w, pattern, shared):
        def batched(t, dim):  # (map or 1, batch or 1, n, k)
            vector = t.dim() - (dim is not None) == 1
            t = t.unsqueeze(0) if dim is None else t.movedim(dim, 0)
            t = t.unsqueeze(-1) if vector else t
            return t if t.dim() == 4 else t.unsqueeze(1)

        inner = u.dim() - (in_dims[0] is not None) == 3 or w.dim() - (in_dims[1] is not None) == 3
        out = sampled(batched(u, in_dims[0]), batched(w, in_dims[1]), pattern)
        return (out.sum(1) if shared or not inner else out), 0
