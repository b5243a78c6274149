"""Vectors to train M(A x) = x on: Gaussian, or with images A x that are white noise in a Krylov space, and a
loss for networks that predict directions: the residual that the best step along a direction leaves.

Sources: J. Chen, "Graph Neural Preconditioners for Iterative Solutions of Sparse Linear Systems", ICLR 2025;
A. Kaneda et al., "A Deep Conjugate Direction Method for Iteratively Solving Linear Systems", ICML 2023; K. W.
Lan et al., "A Neural-Preconditioned Poisson Solver for Mixed Dirichlet and Neumann Boundary Conditions", ICML
2024.
"""

from __future__ import annotations

import torch
from torch import Tensor

from learnsolve.arguments import Count
from learnsolve.matrix import checks
from learnsolve.matrix.cache import plain_tensors
from learnsolve.matrix.checks import RealSystem, operands
from learnsolve.matrix.convert import TensorLike
from learnsolve.matrix.csr import CSR
from learnsolve.ops.products import multiply_columns, spmm
from learnsolve.solvers.core.arguments import check_b, check_operands
from learnsolve.solvers.core.operators import Blocks, Columns, divide, dot, largest, make_operator, root, size


def krylov_basis(A: RealSystem, m: Count = 40, generator: torch.Generator | None = None) -> Tensor:
    r""":math:`Q = V_m Z S^{-1}`, for which :math:`A Q` has orthonormal columns, from m steps of Arnoldi.

    :math:`A V_m = V_{m+1} H` with a random first vector, and :math:`H = W S Z^T` is the singular value
    decomposition. So :math:`A Q = V_{m+1} W`.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz)
    m : steps
    generator : for the first vector, on the CPU. Default: torch's global generator

    Returns
    -------
    Tensor, shape (..., n, m), detached from the autograd graph. Columns are zero if the space has fewer
    dimensions, or
        A maps one of its directions to zero, up to rounding.

    Raises
    ------
    ValueError
        if a product with A is not finite.

    Notes
    -----
    Constant: no derivatives. Cost: m products, and 4 m^2 inner products. Source: as for `krylov_samples`.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((8, 8))
    >>> AQ = A @ ls.analysis.krylov_basis(A, 10, torch.Generator().manual_seed(0))
    >>> torch.allclose(AQ.T @ AQ, torch.eye(10, dtype=A.dtype))
    True
    """
    name = "krylov_basis"
    with torch.no_grad():
        A = A.detach()
        v = _normal(A, (*A.batch_shape, A.shape[0], 1), generator)
        every = torch.ones((), dtype=torch.bool, device=v.device)
        V = [divide(v, root(dot(v, v)), every)]
        H = v.new_zeros(*A.batch_shape, m + 1, m)
        noise = torch.zeros_like(v[..., :1, :])
        for j in range(m):
            w = spmm(A, V[j])
            if not bool(torch.isfinite(w).all()):
                raise ValueError(f"{name}: a product with A is not finite. Scale A, or find its bad entries")
            noise = torch.maximum(noise, 10 * torch.finfo(w.dtype).eps * size(w))
            basis = torch.cat(V, -1)
            for _ in range(2):  # once leaves rounding errors of the other directions
                h = basis.mT @ w
                w = w - basis @ h
                H[..., : j + 1, j : j + 1] += h
            below = root(dot(w, w))
            below = torch.where(below <= noise, 0, below)  # rounding errors only: the space is complete
            H[..., j + 1 : j + 2, j : j + 1] = below
            V.append(divide(w, below, every))
        _, S, Zt = torch.linalg.svd(H, full_matrices=False)
        small = m * torch.finfo(S.dtype).eps * S[..., :1]
        inverse = torch.where(small < S, 1 / torch.where(small < S, S, 1), 0)
        return torch.cat(V[:-1], -1) @ (Zt.mT * inverse.unsqueeze(-2))


def krylov_samples(
    A: RealSystem, m: int | Tensor = 40, count: Count = 16, generator: torch.Generator | None = None
) -> Tensor:
    r"""Random x for training M(A x) = x, as for GNP: half of them Gaussian, half from a Krylov space of A.

    The first ``count - count // 2`` columns are from N(0, I). The others are Q e with e from N(0, I) and the
    Q of `krylov_basis`: their images A x are white noise in the space :math:`A \mathcal{K}_m`. So they
    include directions that A nearly annihilates, which are hardly visible in A x for x from N(0, I).

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz)
    m : Arnoldi steps, or a Q from `krylov_basis`, which avoids repeating them in a loop
    count : number of columns
    generator : on the CPU. Default: torch's global generator

    Returns
    -------
    Tensor, shape (..., n, count), detached from the autograd graph. The b = A x are the inputs of the
    network. The halves differ
        in size: normalize b if the loss does not.

    Raises
    ------
    ValueError, TypeError
        if a product with A is not finite, m is not positive, or Q does not match A.

    Notes
    -----
    Cost: as for `krylov_basis`, plus a product with Q. Source: J. Chen, "Graph Neural Preconditioners for
    Iterative Solutions of Sparse Linear Systems", ICLR 2025, arXiv 2406.00809.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.convection_diffusion(torch.ones(2, 8, 8), 4.0, scheme="central")
    >>> generator = torch.Generator().manual_seed(0)
    >>> Q = ls.analysis.krylov_basis(A, 20, generator)
    >>> x = ls.analysis.krylov_samples(A, Q, 16, generator)
    >>> b = A @ x
    >>> x.shape, b.shape
    (torch.Size([64, 16]), torch.Size([64, 16]))
    """
    name = "krylov_samples"
    Q = m if isinstance(m, Tensor) else krylov_basis(A, checks.integer(name, "m", m, 1), generator)
    checks.same_kind(name, "m", Q, A.values)
    expected = (*A.batch_shape, A.shape[0])
    if tuple(Q.shape[:-1]) != expected:
        raise ValueError(
            f"{name}: m must be a number of steps or have the shape {(*expected, 'm')} of "
            f"krylov_basis(A, m), got {tuple(Q.shape)}"
        )
    with torch.no_grad():
        few = count // 2
        X = _normal(A, (*expected, count - few), generator)
        E = _normal(A, (*Q.shape[:-2], Q.shape[-1], few), generator)
        return torch.cat((X, Q.detach() @ E), -1)


def _normal(A: CSR, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    """Drawn on the CPU in float64: dtype and device change the rounding, not the vectors."""
    with plain_tensors():
        return torch.randn(shape, dtype=torch.float64, device="cpu", generator=generator).to(A.values)


def one_step_loss(A: object, b: TensorLike, d: TensorLike) -> Tensor:
    r"""The relative residual after the best step along d:

    .. math::

        \ell = \|b - \alpha A d\|^2 / \|b\|^2, \quad \alpha = \langle b, d \rangle / \langle d, A d \rangle

    The step minimizes the energy of the error, as in conjugate gradients. The loss trains networks b -> d
    without solutions. Neither the length nor the sign of d matters.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz), symmetric positive definite, or a `BlockBatch`, a
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
    A direction without curvature, such as d = 0, has loss 1 and gradient zero. A residual of zero has loss
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
    operator = make_operator(name, A, b, None, (), symmetric=True, blocks=True)
    batch = check_operands(name, A, b)
    checks.same_kind(name, "d", d, b)
    if d.shape != b.shape:
        raise ValueError(f"{name}: d must have b's shape {tuple(b.shape)}, got {tuple(d.shape)}")
    columns = Columns(b.dim() == 1, batch, operator.layout if isinstance(operator, Blocks) else None)
    R, D = (
        _unit(columns.pack(b)),
        _unit(columns.pack(d)),
    )  # the loss depends on neither scale, and squares stay within the range
    Q = operator(D)
    every = torch.ones((), dtype=torch.bool, device=R.device)
    alpha = divide(dot(R, D), dot(D, Q), every)
    left = R - multiply_columns(alpha, Q)
    loss = divide(dot(left, left), dot(R, R), every).squeeze(-2)
    return loss.squeeze(-1) if columns.vector else loss


def _unit(v: Tensor) -> Tensor:
    """v with a largest entry of one. The scale is a constant."""
    if v.shape[-2] == 0:
        return v
    size = largest(v, -2)
    return v / torch.where((size > 0) & torch.isfinite(size), size, 1)
