"""Matrices with a single diagonal, or without entries."""

import functools

import numpy as np
import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.matrix.pattern_checks import check_device
from learnsolve.matrix.plain import makes_plain_tensors


def eye(
    n: int,
    m: int | None = None,
    *,
    k: int = 0,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
    index_dtype: torch.dtype = torch.int64,
) -> CSR:
    """The identity with n rows and m (default n) columns and ones on diagonal k.

    Equal arguments return the same pattern object while it is among the last 64 requested.

    Parameters
    ----------
    n, m : int, rows and columns
    k : int, above the main diagonal if positive
    dtype : default float64, as for `learnsolve.problems`, regardless of torch's default dtype
    device : default: the CPU
    index_dtype : torch.int32 or torch.int64

    Returns
    -------
    CSR, shape (n, m)

    Raises
    ------
    ValueError, TypeError
        if a size is negative, or a type is not one of the above.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.ops.eye(2, 3).to_dense()
    tensor([[1., 0., 0.],
            [0., 1., 0.]], dtype=torch.float64)
    """
    n = checks.integer("eye", "n", n, 0)
    m = n if m is None else checks.integer("eye", "m", m, 0)
    k = checks.integer("eye", "k", k, -(2**62))
    checks.one_of("eye", "index_dtype", index_dtype, (torch.int32, torch.int64))
    check_device("eye", device)
    ones = torch.ones(max(0, min(n + min(k, 0), m - max(k, 0))), dtype=dtype, device=device)
    return CSR(ones, _pattern(n, m, k, index_dtype, ones.device))


def zeros(
    n: int,
    m: int | None = None,
    *,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
    index_dtype: torch.dtype = torch.int64,
) -> CSR:
    """A matrix without entries, with n rows and m (default n) columns; see `eye`.

    Parameters
    ----------
    n, m : int, rows and columns
    dtype, device, index_dtype : as for `eye`

    Returns
    -------
    CSR, shape (n, m)

    Raises
    ------
    ValueError, TypeError
        if a size is negative, or a type is not one of the above.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.ops.zeros(2, 3)
    CSR(shape=(2, 3), nnz=0, dtype=float64, device=cpu, density=0.0%)
    """
    n = checks.integer("zeros", "n", n, 0)
    m = n if m is None else checks.integer("zeros", "m", m, 0)
    checks.one_of("zeros", "index_dtype", index_dtype, (torch.int32, torch.int64))
    check_device("zeros", device)
    none = torch.zeros(0, dtype=dtype, device=device)
    return CSR(none, _pattern(n, m, m, index_dtype, none.device))


def diag(d: Tensor, k: int = 0, *, index_dtype: torch.dtype = torch.int64) -> CSR:
    """The square matrix with a copy of d on diagonal k.

    `diagonal` reads a diagonal. Patterns are shared as in `eye`. Cannot be called under `torch.compile`,
    which cannot create patterns: make a matrix first, then use ``D.with_values(d)``.

    Parameters
    ----------
    d : Tensor, shape (..., n)
    k : int, above the main diagonal if positive
    index_dtype : torch.int32 or torch.int64

    Returns
    -------
    CSR, shape (n + abs(k), n + abs(k)), of d's dtype and device, with d's batch axes

    Raises
    ------
    ValueError
        if d is a scalar, or index_dtype is neither of these.
    TypeError
        if d is not a tensor, or k not an int.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> ls.ops.diag(torch.tensor([5.0, 6.0]), 1).to_dense()
    tensor([[0., 5., 0.],
            [0., 0., 6.],
            [0., 0., 0.]])
    """
    checks.tensor("diag", "d", d)
    k = checks.integer("diag", "k", k, -(2**62))
    checks.one_of("diag", "index_dtype", index_dtype, (torch.int32, torch.int64))
    if d.dim() == 0:
        raise ValueError("diag: d must have shape (..., n), got a scalar; use A * s with A = eye(n)")
    n = d.shape[-1] + abs(k)
    return CSR(d.clone(), _pattern(n, n, k, index_dtype, d.device))


@makes_plain_tensors
@functools.lru_cache(maxsize=64)
def _pattern(n: int, m: int, k: int, dtype: torch.dtype, device: torch.device) -> SparsityPattern:
    rows = np.arange(n)
    inside = (rows + k >= 0) & (rows + k < m)
    crow = np.concatenate(([0], np.cumsum(inside)))
    crow, col = (torch.from_numpy(a).to(device, dtype) for a in (crow, rows[inside] + k))
    return SparsityPattern._trusted(crow, col, (n, m))
