"""Complex values by real operations, on real and imaginary parts side by side, where no kernel takes them.

A real loss L of complex numbers z has the gradient dL/dRe z + i dL/dIm z, as everywhere in torch.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from learnsolve.matrix.pattern import SparsityPattern, to_numpy
from learnsolve.ops.autograd import forward_mode_may_come


def either(u: Tensor, v: Tensor) -> bool:
    return u.is_complex() or v.is_complex()


def parts(t: Tensor) -> Tensor:
    """Real and imaginary part along a new last axis."""
    if t.numel() == 0:
        return torch.stack((t.real, t.imag), -1)
    if forward_mode_may_come():  # a tangent may be a lazy conjugate, which a view of the real parts rejects
        t = 1 * t
    t = t.resolve_conj()
    if 1 in t.shape:  # torch 2.10 cannot differentiate a view with such an axis
        return torch.view_as_real(t.squeeze()).reshape(*t.shape, 2)
    return torch.view_as_real(t)


def join_parts(t: Tensor) -> Tensor:
    """The inverse of `parts`."""
    if t.numel() == 0:  # its strides may be odd, which no view takes
        return torch.complex(*t.unbind(-1))
    return torch.view_as_complex(t.contiguous())


def flat(t: Tensor) -> Tensor:
    """(..., k) as real numbers (..., 2 k): Re t_1, Im t_1, Re t_2, ..."""
    # `flatten` and `unflatten` have no rule for batched gradients.
    return parts(t).reshape(*t.shape[:-1], 2 * t.shape[-1])


def unflat(t: Tensor) -> Tensor:
    return join_parts(t.reshape(*t.shape[:-1], t.shape[-1] // 2, 2))


def tall(x: Tensor) -> Tensor:
    """(n,) as (2 n,), or (..., n, k) as (..., 2 n, k), likewise."""
    if x.dim() == 1:
        return flat(x)
    *batch, n, k = x.shape
    return parts(x).movedim(-1, -2).reshape(*batch, 2 * n, k)


def untall(x: Tensor) -> Tensor:
    if x.dim() == 1:
        return unflat(x)
    *batch, n, k = x.shape
    return torch.complex(*x.reshape(*batch, n // 2, 2, k).unbind(-2))


def columns(real: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """f(x) for a linear f, `real`, of the columns of x, (n,) or (..., n, k)."""
    return join_parts(real(parts(x))) if x.dim() == 1 else unflat(real(flat(x)))


def duplicate_columns(P: SparsityPattern) -> SparsityPattern:
    """Columns 2 j and 2 j + 1 for each column j."""
    return P._plan_once(_plan_duplicates)


def _plan_duplicates(P: SparsityPattern) -> SparsityPattern:
    crow, col = to_numpy(P.crow_indices), to_numpy(P.col_indices)
    dtype = np.int64 if max(2 * P.shape[1], 2 * P.nnz) > np.iinfo(np.int32).max else crow.dtype
    col = 2 * col.astype(dtype)
    col = np.stack((col, col + 1), -1).reshape(-1)
    return SparsityPattern._construct(
        P._tensor(2 * crow.astype(dtype)), P._tensor(col), (P.shape[0], 2 * P.shape[1])
    )


def bilinear(real: Callable[[Tensor, Tensor], Tensor], u: Tensor, v: Tensor, axes: tuple[int, int]) -> Tensor:
    """f(u, v) for a bilinear f, `real`, that takes any batch axes before the `axes` of u and of v."""
    batch = max(u.dim() - axes[0], v.dim() - axes[1])
    a, b = (_split(t, batch + n) if t.is_complex() else t for t, n in zip((u, v), axes, strict=True))
    if not (u.is_complex() and v.is_complex()):
        return torch.complex(*real(a, b).unbind(0))
    of_re, of_im = real(a.unsqueeze(1), b.unsqueeze(0)).unbind(0)
    return torch.complex(of_re[0] - of_im[1], of_re[1] + of_im[0])


def _split(t: Tensor, rank: int) -> Tensor:
    """Real and imaginary part along a new first axis, before batch axes of 1 up to this rank."""
    t = parts(t).movedim(-1, 0)
    return t.reshape(2, *(1,) * (rank + 1 - t.dim()), *t.shape[1:])
