"""The residual that the best step along a direction leaves: a loss for networks that predict directions.

Sources: A. Kaneda et al., "A Deep Conjugate Direction Method for Iteratively Solving Linear Systems", ICML
2023; K. W. Lan et al., "A Neural-Preconditioned Poisson Solver for Mixed Dirichlet and Neumann Boundary
Conditions", ICML 2024.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.convert import TensorLike
from learnsolve.matrix.inputs import operands
from learnsolve.ops.core.dots import scaled
from learnsolve.solvers.core.arguments import check_b, check_operands
from learnsolve.solvers.core.operators import Blocks, as_operator
from learnsolve.solvers.core.system import Columns
from learnsolve.solvers.core.vectors import divide, dot, largest


def one_step_loss(A: Any, b: TensorLike, d: TensorLike) -> Tensor:
    r"""The relative residual after the best step along d:

    .. math::

        \ell = \|b - \alpha A d\|^2 / \|b\|^2, \quad \alpha = \langle b, d \rangle / \langle d, A d \rangle

    The step minimizes the energy of the error, as in conjugate gradients. The loss trains networks b -> d
    without solutions; neither the length nor the sign of d matters.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz), symmetric positive definite; or a `BlockBatch`, a
        StencilOperator, a LinearOperator, or a callable x -> A x
    b : Tensor or NumPy array, shape (n,) or (..., n, k): residuals, or right-hand sides
    d : like b: directions, such as M(b)

    Returns
    -------
    Tensor, one loss per column: shape () for vectors, else (..., k); (blocks, k) for a `BlockBatch`.

    Raises
    ------
    ValueError, TypeError
        if shapes, types, dtypes or devices are invalid.

    Notes
    -----
    A direction without curvature, such as d = 0, has loss 1 and gradient zero; a residual of zero has loss
    zero. The loss can exceed 1. Gradient: with respect to A, b and d, to any order. Cost: one product.
    Sources: A. Kaneda et al., arXiv 2205.10763 (ICML 2023); K. W. Lan et al., arXiv 2310.00177 (ICML 2024).

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((10,))
    >>> b = torch.ones(10, dtype=torch.float64)
    >>> x = ls.ops.spsolve(A, b)
    >>> round(float(ls.analysis.one_step_loss(A, b, -3 * x)), 12)  # the solution needs one step
    0.0
    """
    name = "one_step_loss"
    A, b, d = operands(name, A, b, d)
    check_b(name, b)
    operator = as_operator(name, A, b, None, (), symmetric=True, blocks=True)
    batch = check_operands(name, A, b)
    checks.same_kind(name, "d", d, b)
    if d.shape != b.shape:
        raise ValueError(f"{name}: d must have b's shape {tuple(b.shape)}, got {tuple(d.shape)}")
    columns = Columns(b.dim() == 1, batch, operator.layout if isinstance(operator, Blocks) else None)
    R, D = (
        _unit(columns.into(b)),
        _unit(columns.into(d)),
    )  # the loss depends on neither scale, and squares stay within the range
    Q = operator(D)
    every = torch.ones((), dtype=torch.bool, device=R.device)
    alpha = divide(dot(R, D), dot(D, Q), every)
    left = R - scaled(alpha, Q)
    loss = divide(dot(left, left), dot(R, R), every).squeeze(-2)
    return loss.squeeze(-1) if columns.vector else loss


def _unit(v: Tensor) -> Tensor:
    """v with a largest entry of one; the scale is a constant."""
    if v.shape[-2] == 0:
        return v
    size = largest(v, -2)
    return v / torch.where((size > 0) & torch.isfinite(size), size, 1)
