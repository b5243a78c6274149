"""The quadratic form of a matrix; for a symmetric positive definite matrix its root is the energy norm."""

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.convert import conjugate
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.core import complex
from learnsolve.ops.core.autograd import Operation, add, tracked, vmapped
from learnsolve.ops.core.dots import ordered_dots
from learnsolve.ops.core.product import product, sampled


def quadratic_form(A: CSR, x: Tensor, *, symmetric: bool = False) -> Tensor:
    r"""Quadratic form :math:`q = x^T A x`, summed over the columns of x: :math:`\operatorname{tr}(X^T A X)`;
    :math:`x^H A x` if x is complex.

    Parameters
    ----------
    A : CSR, shape (n, n), float32 or float64, or complex; its values may have batch axes, (..., nnz)
    x : Tensor, shape (n,) or (..., n, k), of A's precision and device
    symmetric : declares that A equals its transpose (not checked); the backward then needs no product

    Returns
    -------
    Tensor, shape (...): one value per member of the batch.

    Raises
    ------
    ValueError
        if shapes do not match.
    TypeError
        if dtypes or devices do not match.

    Notes
    -----
    Gradient: :math:`\bar x = \bar q (A x + A^T x)`, :math:`\bar A = \bar q\, x x^T` on the pattern. A x is
    saved by the forward, so the backward costs one more product, or none if `symmetric`. Any order.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((3,))
    >>> ls.ops.quadratic_form(A, torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    tensor(12., dtype=torch.float64)
    """
    name = "quadratic_form"
    checks.matrix(name, "A", A)
    values, pattern = A.values, A.pattern
    checks.dtype(name, "A.values", values, or_complex=True)
    checks.same_kind(name, "x", x, values, or_complex=True)
    checks.square(name, "A", pattern.shape)
    checks.rows(name, "x", x, "A", pattern.shape)
    checks.flag(name, "symmetric", symmetric)
    if torch.compiler.is_dynamo_compiling() or values.dim() > 1 or x.dim() > 2 or complex.either(values, x):
        checks.batches(name, values.shape[:-1], x.shape[:-2], "A.values and x")
        y = product(values, x, pattern, False)
        return _inner(conjugate(x), y)
    if tracked(values, x):
        return _QuadraticForm.eager.apply(values, x, pattern, symmetric)[0]
    return _QuadraticForm.forward(values, x, pattern, symmetric)[0]


def _inner(x: Tensor, y: Tensor) -> Tensor:
    """<x, y>, summed over all columns, for each member of a batch."""
    axes = min(x.dim(), 2)
    column = (x.shape[-axes:].numel(), 1)
    x, y = x.reshape((*x.shape[:-axes], *column)), y.reshape((*y.shape[:-axes], *column))
    return ordered_dots(x, y).squeeze(-1)


class _QuadraticForm(Operation):
    """(q, A x); A x is returned so that it can be saved."""

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
        again = tracked(values, x, g)
        if again:
            y = product(values, x, pattern, False)  # with a graph, since this gradient is differentiated
        need_values, need_x = ctx.needs_input_grad[:2]
        gx = gv = None
        if need_x:
            # `symmetric` holds for these values, not for the directions of a second derivative.
            once = ctx.symmetric and not again
            gx = y * (g + g) if once else g * (y + product(values, x, pattern, True))
        if need_values:
            gv = sampled(g * x, x, pattern)
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

        return vmapped(form, in_dims[:2], (values, x))
