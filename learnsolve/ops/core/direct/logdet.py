"""log |det A| from factors, as an operation with derivatives of any order.

The gradient is A^-T on A's pattern. No library computes entries of the inverse, so this uses the complete
factors of `ops.selected_inverse`, made when a derivative is computed. If elimination without row exchanges
breaks down or is unstable, and for complex values, it solves with the existing factors, once per column of A.
"""

import torch
from torch import Tensor

from learnsolve.matrix.convert import conjugate
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.core.autograd import Operation, dispatch
from learnsolve.ops.core.complete import factored
from learnsolve.ops.core.direct import choice
from learnsolve.ops.core.direct import factors as direct
from learnsolve.ops.core.direct.factors import Factors
from learnsolve.ops.core.direct.solve import has_numbers, solved
from learnsolve.ops.core.gather import permuted, take
from learnsolve.ops.logdet import selected_inverse

_raw = torch.ops.learnsolve.direct_logdet.default
_COLUMNS = 64  # columns of the inverse at a time


def logdet(values: Tensor, pattern: SparsityPattern, factors: Factors | str) -> Tensor:
    """log |det A|, () or (B,), for values (nnz,) or (B, nnz)."""
    return dispatch(_Logdet, (values,), pattern, factors)


class _Logdet(Operation):
    @staticmethod
    def forward(values, pattern, factors):
        if not isinstance(factors, str):
            if has_numbers(values):
                return direct.logdets(factors.of(pattern, values), values)
            factors.share()
            factors = " ".join(factors.how)
        return _raw(*pattern._structure(False)[:2], values, factors)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.constants = inputs[1:]

    @staticmethod
    def backward(ctx, g):
        (values,) = ctx.saved_tensors
        return g.unsqueeze(-1) * conjugate(_inverse(values, *ctx.constants)), None, None

    @staticmethod
    def jvp(ctx, tv, *_):
        (values,) = ctx.saved_tensors
        t = (_inverse(values, *ctx.constants) * tv).sum(-1)
        return t.real.clone() if t.is_complex() else t

    @staticmethod
    def vmap(info, in_dims, values, pattern, factors):
        v = values.movedim(in_dims[0], 0)
        return logdet(v.reshape(-1, v.shape[-1]), pattern, factors).reshape(v.shape[:-1]), 0


def _inverse(values: Tensor, pattern: SparsityPattern, factors: Factors | str) -> Tensor:
    """The entries of A^-T on A's pattern, differentiable."""
    if values.is_complex():
        return _by_columns(values, pattern, factors)
    A = CSR(values, pattern).to("cpu")
    if torch.compiler.is_dynamo_compiling():
        return _by_elimination(A).to(values.device)
    try:
        # Further derivatives are for a matrix that need not stay symmetric.
        if not torch.is_grad_enabled() and _definite(factors):
            return selected_inverse(A).values.to(values.device)
        return _by_elimination(A).to(values.device)
    except ValueError:  # a pivot is zero or too small
        return _by_columns(values, pattern, factors)


def _definite(factors: Factors | str) -> bool:
    return not isinstance(factors, str) and all(
        f.factor.negative() == 0 and choice.symmetric(f.pattern, torch.from_numpy(f.data))
        for f in factors.all
    )


def _by_elimination(A: CSR) -> Tensor:
    F = factored(A, "factorize/complete lu", "minimum_degree")
    return take(F.inverse(), F.fill.where).reshape(A.values.shape)


def _by_columns(values: Tensor, pattern: SparsityPattern, factors: Factors | str) -> Tensor:
    n, T = pattern.shape[0], pattern.T  # its rows are A's columns
    parts = []
    for first in range(0, n, _COLUMNS):
        last = min(n, first + _COLUMNS)
        E = torch.eye(n, dtype=values.dtype, device=values.device)[:, first:last]
        X = solved(values, E, pattern, True, factors)
        entries = slice(int(T.crow_indices[first]), int(T.crow_indices[last]))
        parts.append(X[..., T.col_indices[entries].long(), T.row_indices[entries].long() - first])
    return permuted(torch.cat(parts, -1), pattern._inverse_permutation, pattern.transpose_permutation)
