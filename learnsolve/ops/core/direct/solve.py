"""x = A^-1 b from factors, as an operation with derivatives of any order."""

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor

from learnsolve.matrix import checks
from learnsolve.matrix.convert import conjugate
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.core.autograd import LinearSolve, dispatch
from learnsolve.ops.core.direct import factors as direct
from learnsolve.ops.core.direct.backend import AUTO
from learnsolve.ops.core.direct.factors import Factors
from learnsolve.ops.core.product import _values_gradient, product

_raw = torch.ops.learnsolve.direct_solve.default
DEFAULT = " ".join(AUTO)  # in a graph, instead of factors: the factors to make


def has_numbers(t: Tensor) -> bool:
    """Whether `t` has values: not if it represents a shape or a batch, or while operations are recorded."""
    ordinary = type(t) is Tensor or type(t) is torch.nn.Parameter
    return ordinary and not is_legacy_batchedtensor(t) and not torch._C._len_torch_dispatch_stack()


def check_matrix(function: str, A: CSR) -> None:
    checks.matrix(function, "A", A)
    checks.dtype(function, "A.values", A.values, or_complex=True)
    checks.square(function, "A", A.shape)


def check_right_hand_side(function: str, A: CSR, b: Tensor) -> None:
    if isinstance(b, Tensor) and b.is_complex():
        checks.one_dtype(function, b, A.values)
    checks.same_kind(function, "b", b, A.values)
    n = A.shape[0]
    if b.dim() == 0 or b.shape[0 if b.dim() == 1 else -2] != n:
        raise ValueError(
            f"{function}: b must have shape (n,) or (..., n, k) with n = A.shape[0] = {n}, got "
            f"{tuple(b.shape)}"
        )
    checks.batches(function, A.values.shape[:-1], b.shape[:-2], "A.values and b")


def solved(
    values: Tensor, b: Tensor, pattern: SparsityPattern, transpose: bool, factors: Factors | str
) -> Tensor:
    """`spsolve` on values and pattern, unchecked. Batch axes along which the matrix is constant become
    columns of b: one factor per matrix, and gradients are summed where they are computed."""
    if values.dim() == 1 and b.dim() <= 2:
        return _solve(values, b, pattern, transpose, factors)
    if b.dim() == 1:
        return solved(values, b.unsqueeze(-1), pattern, transpose, factors).squeeze(-1)
    n, k = b.shape[-2:]
    batch = torch.broadcast_shapes(values.shape[:-1], b.shape[:-2])
    axes = len(batch)
    missing = axes - (values.dim() - 1)
    own = [i + missing for i in _own_axes(values)]
    rest = [i for i in range(axes) if i not in own]
    order = [*own, axes, *rest, axes + 1]
    columns = b.expand((*batch, n, k)).permute(order)
    own_shape, rest_shape = (torch.Size([batch[i] for i in some]) for some in (own, rest))
    v = matrices(values)
    flat = (n, rest_shape.numel() * k)
    x = _solve(v, columns.reshape((own_shape.numel(), *flat) if own else flat), pattern, transpose, factors)
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return x.reshape((*own_shape, n, *rest_shape, k)).permute(inverse)


def _own_axes(values: Tensor) -> list[int]:
    """The batch axes along which the matrix varies."""
    return [i for i, size in enumerate(values.shape[:-1]) if size != 1]


def matrices(values: Tensor) -> Tensor:
    """One matrix, (nnz,), or all different matrices, (B, nnz)."""
    nnz, own = values.shape[-1], _own_axes(values)
    return values.reshape((values.shape[:-1].numel(), nnz) if own else (nnz,))


def _solve(
    values: Tensor, b: Tensor, pattern: SparsityPattern, transpose: bool, factors: Factors | str
) -> Tensor:
    """Solve for values (nnz,) with b (n,) or (n, k), or (B, nnz) with (B, n, k)."""
    return dispatch(_Solve, (values, b), pattern, transpose, factors)


class _Solve(LinearSolve):
    @staticmethod
    def forward(values, b, pattern, transpose, factors):
        if not isinstance(factors, str):
            if has_numbers(values) and has_numbers(b):
                return direct.solve(factors, pattern, values, b, transpose)
            # An operator goes through torch's dispatcher, which handles such tensors.
            factors.share()
            factors = " ".join(factors.how)
        return _raw(*pattern._structure(False)[:2], values, b, transpose, factors)

    @staticmethod
    def times(values, x, pattern, transpose, factors):
        return product(values, x, pattern, transpose)

    @staticmethod
    def backward(ctx, g):
        values, x = ctx.saved_tensors
        pattern, transpose, factors = ctx.constants
        # With the conjugate transpose.
        y = conjugate(_solve(values, conjugate(g), pattern, not transpose, factors))
        gv = None
        if ctx.needs_input_grad[0]:
            gv = -_values_gradient(y, conjugate(x), pattern, transpose, values)
        return gv, y if ctx.needs_input_grad[1] else None, None, None, None

    @staticmethod
    def vmap(info, in_dims, values, b, pattern, transpose, factors):
        v_dim, b_dim = in_dims[:2]
        vector = b.dim() == (1 if b_dim is None else 2)
        v = values.unsqueeze(0) if v_dim is None else values.movedim(v_dim, 0)
        rhs = b.unsqueeze(0) if b_dim is None else b.movedim(b_dim, 0)
        x = solved(v, rhs.unsqueeze(-1) if vector else rhs, pattern, transpose, factors)
        return (x.squeeze(-1) if vector else x), 0
