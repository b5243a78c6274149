"""Linear least squares by a direct solve of the augmented system."""

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.matrix.plain import readable
from learnsolve.ops.core.direct.backend import Request
from learnsolve.ops.core.direct.factors import Factors
from learnsolve.ops.core.direct.solve import solved
from learnsolve.ops.structure import scale_rows

_SYMMETRIC = Request("ldlt")


def lstsq(A: CSR, b: Tensor, *, damp: float | Tensor = 0.0, weight: Tensor | None = None) -> Tensor:
    r"""Minimize :math:`\sum_i w_i (A x - b)_i^2 + \mathtt{damp}^2 \|x\|^2` over x by a direct solve.

    Parameters
    ----------
    A : CSR, shape (m, n), float32 or float64; its values may have batch axes, (..., nnz)
    b : Tensor, shape (m,) or (..., m, k), of A's dtype and device
    damp : float or Tensor, shape (), the regularization
    weight : Tensor, shape (m,), positive; default: ones

    Returns
    -------
    Tensor, shape (..., n) for a vector, (..., n, k) for a matrix; batch axes broadcast.

    Raises
    ------
    ValueError
        if shapes do not match; if the columns of A, with `damp` of [A; damp I], are linearly dependent up to
        rounding errors of the normal equations (without `damp` always if m < n);
        if a weight is not positive, or values are not finite.

    Notes
    -----
    With :math:`B = W^{1/2} A` and a scale :math:`\alpha`, the symmetric system (quasi-definite with `damp`)

    .. math:: \begin{pmatrix} \alpha I & B \\ B^T & -\mathtt{damp}^2 / \alpha\, I \end{pmatrix}
              \begin{pmatrix} s \\ x \end{pmatrix} = \begin{pmatrix} W^{1/2} b \\ 0 \end{pmatrix}

    is solved. Gradient: for A's values, b, damp and weight, to any order; forward mode, vmap,
    `torch.compile`. Cost: a factorization of order m + n; backward: two triangular solves. `solvers.lsqr`
    needs only O(nnz) memory, and finds the solution of minimum norm if columns are linearly dependent.

    Source: Saunders, "Cholesky-based methods for sparse least squares: the benefits of regularization", in
    Linear and Nonlinear Conjugate Gradient-Related Methods, SIAM (1996).

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]))
    >>> ls.ops.lstsq(A, torch.tensor([1.0, 3.0, 5.0]))
    tensor([1., 2.])
    """
    name = "lstsq"
    checks.matrix(name, "A", A)
    checks.dtype(name, "A.values", A.values)
    checks.same_kind(name, "b", b, A.values)
    m, n = A.shape
    vector = b.dim() == 1
    if b.dim() == 0 or b.shape[0 if vector else -2] != m:
        raise ValueError(f"{name}: b must have shape (m,) or (..., m, k) with m = {m}, got {tuple(b.shape)}")
    if isinstance(damp, Tensor):
        checks.same_kind(name, "damp", damp, A.values)
        if damp.dim():
            raise ValueError(f"{name}: damp must be a float or have shape (), got {tuple(damp.shape)}")
    elif not 0 <= checks.real(name, "damp", damp) < float("inf"):
        raise ValueError(f"{name}: damp must be finite and at least 0, got {damp}")
    damped = isinstance(damp, Tensor) or damp > 0
    if m < n and not damped:
        raise ValueError(
            f"{name}: A is {m} x {n}, so that its columns depend on each other; give damp > 0, or use "
            "solvers.lsqr for the solution of minimum norm"
        )
    if weight is not None:
        checks.same_kind(name, "weight", weight, A.values)
        if weight.shape != (m,):
            raise ValueError(f"{name}: weight must have shape (m,) = ({m},), got {tuple(weight.shape)}")
        if readable(weight) and not bool((weight > 0).all()):
            i = int((~(weight > 0)).nonzero()[0])
            raise ValueError(
                f"{name}: weight must be positive, got {weight[i].item()} in row {i}; leave out rows that do "
                "not count"
            )
        root = weight.sqrt()
        A, b = scale_rows(A, root), b * (root if vector else root.unsqueeze(-1))
    alpha = A.values.detach().abs().amax() if A.values.numel() else A.values.new_ones(())
    alpha = torch.where(alpha > 0, alpha, 1)
    P, order = A.pattern._planned(_augmented, damped)
    v = A.values
    parts = [alpha.expand(*v.shape[:-1], m), v, v]
    if damped:
        parts.append((-(damp**2) / alpha).expand(*v.shape[:-1], n))
    values = torch.cat(parts, -1).index_select(-1, order)
    rhs = b.unsqueeze(-1) if vector else b
    rhs = torch.cat((rhs, rhs.new_zeros((*rhs.shape[:-2], n, rhs.shape[-1]))), -2)
    how = _SYMMETRIC._replace(unknowns=str(n))
    factors = " ".join(how) if torch.compiler.is_dynamo_compiling() else Factors(name, how)
    x = solved(values, rhs, P, False, factors)[..., m:, :]
    return x.squeeze(-1) if vector else x


def _augmented(P: SparsityPattern, damped: bool) -> tuple[SparsityPattern, Tensor]:
    """The pattern of the augmented matrix, and the positions of its entries in I, B, B^T and the corner."""
    m, n = P.shape
    first, last = (torch.arange(k, device=P.device) for k in (m, n if damped else 0))
    rows = torch.cat((first, P.row_indices, P.col_indices + m, last + m))
    columns = torch.cat((first, P.col_indices + m, P.row_indices, last + m))
    order = torch.argsort(rows.long() * (m + n) + columns)
    counts = torch.bincount(rows, minlength=m + n)
    crow = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
    crow, columns = crow.to(P.dtype), columns[order].to(P.dtype)
    return SparsityPattern._trusted(crow, columns, (m + n, m + n)), order
