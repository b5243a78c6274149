"""Products and sums of distributed vectors, closed under differentiation."""

from __future__ import annotations

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.ops.core.dots import dots
from learnsolve.petsc._engine import check_dtype
from learnsolve.petsc._processes import processes
from learnsolve.petsc.matrix import Matrix


def spmm(A: Matrix, x: Tensor, *, transpose: bool = False) -> Tensor:
    r"""Product of a distributed matrix, or its transpose, with distributed vectors.

    .. math:: y = A x \quad\text{or}\quad y = A^T x

    Parameters
    ----------
    A : petsc.Matrix
    x : Tensor, the local rows, (n,) or (n, k), float64
    transpose : multiply with the transpose

    Returns
    -------
    Tensor, the local rows

    Raises
    ------
    ValueError
        if shapes do not match.
    TypeError
        if A is not a petsc.Matrix or x is not float64 on the CPU.

    Notes
    -----
    Gradient: with respect to A.values and x, to any order, forward mode. Let H be the exchange of entries
    that other processes hold, and its adjoint :math:`H^T`, which adds into them. Then :math:`A x = A_p H x`
    and :math:`A^T y = H^T A_p^T y` for the local rows :math:`A_p`, so :math:`\bar x = H^T A_p^T \bar y`, and
    :math:`\bar A` are the entries of :math:`\bar y (H x)^T`. Cost: one exchange and the product of
    `ops.spmm`.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> from learnsolve import petsc
    >>> lo, hi = petsc.share(64)
    >>> A = petsc.Matrix.from_rows(ls.problems.poisson((8, 8), rows=(lo, hi)), (lo, hi))
    >>> x = torch.ones(hi - lo, dtype=torch.float64)
    >>> y = petsc.spmm(A, petsc.spmm(A, x), transpose=True)
    >>> petsc.dot(x, y)  # ||A x||^2
    tensor(40., dtype=torch.float64)
    """
    name = "petsc.spmm"
    if not isinstance(A, Matrix):
        raise TypeError(
            f"{name}: A must be a petsc.Matrix, got {type(A).__name__}; make one with "
            "petsc.Matrix.from_rows, or for a CSR use ops.spmm"
        )
    return A.product(name, x, transpose)


def dot(u: Tensor, v: Tensor) -> Tensor:
    r"""Inner product of distributed vectors, :math:`\langle u, v \rangle`, of each column.

    Parameters
    ----------
    u, v : Tensors, the local rows, (n,) or (n, k), float64

    Returns
    -------
    Tensor, () or (k,), the same in every process

    Raises
    ------
    ValueError
        if shapes differ.
    TypeError
        if u or v is not float64 on the CPU.

    Notes
    -----
    Gradient: for u and v, to any order, forward mode. A loss that uses it is the same in every process, and
    each process must call its backward. Cost: one reduction over the processes; none in the first backward.

    Examples
    --------
    >>> import torch
    >>> from learnsolve import petsc
    >>> lo, hi = petsc.share(64)
    >>> x = torch.arange(lo, hi, dtype=torch.float64)  # 0 to 63 over the processes
    >>> petsc.dot(x, x)
    tensor(85344., dtype=torch.float64)
    """
    for name, t in (("u", u), ("v", v)):
        checks.tensor("petsc.dot", name, t)
        check_dtype("petsc.dot", name, t)
    if u.shape != v.shape or u.dim() not in (1, 2):
        raise ValueError(
            f"petsc.dot: u and v must have one shape, (n,) or (n, k), got {tuple(u.shape)} and "
            f"{tuple(v.shape)}"
        )
    if u.dim() == 1:
        u, v = u.unsqueeze(-1), v.unsqueeze(-1)
        return processes().sum(dots(u, v)).squeeze(-1)
    return processes().sum(dots(u, v))


def norm(u: Tensor) -> Tensor:
    r"""Euclidean norm of a distributed vector, :math:`\sqrt{\langle u, u \rangle}`, of each column, with
    derivative 0 at zero.

    Parameters
    ----------
    u : Tensor, the local rows, (n,) or (n, k), float64

    Returns
    -------
    Tensor, () or (k,), the same in every process; gradient and cost as for `dot`

    Raises
    ------
    ValueError, TypeError
        as for `dot`.

    Examples
    --------
    >>> import torch
    >>> from learnsolve import petsc
    >>> lo, hi = petsc.share(64)
    >>> petsc.norm(torch.ones(hi - lo, dtype=torch.float64))
    tensor(8., dtype=torch.float64)
    """
    square = dot(u, u)
    zero = square == 0
    return torch.where(zero, 0, torch.where(zero, 1, square).sqrt())
