"""The best weights of one Jacobi sweep, without training."""

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import torch
from torch import Tensor

from learnsolve.matrix.csr import CSR


def expected_energy(A: CSR, weight: Tensor) -> float:
    r"""The mean of :math:`j^T A j` over e ~ N(0, I), j = e - w D^-1 A e one sweep: a quadratic in w.

    With :math:`B = D^{-1} A` and :math:`W = \mathrm{diag}(w)`,

    .. math:: \mathrm{tr}((I - W B)^T A (I - W B)) = \mathrm{tr} A - 2 \sum_i w_i (A B^T)_{ii}
              + \sum_{ij} w_i\, A_{ij} (B B^T)_{ij}\, w_j.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson(16)
    >>> expected_energy(A, torch.zeros(16, dtype=torch.float64))  # the trace
    32.0
    """
    M, rhs = _quadratic(A)
    w = weight.detach().cpu().double().numpy()
    return float(A.diagonal().sum().item() - 2 * w @ rhs + w @ (M @ w))


def optimal_weights(A: CSR) -> Tensor | None:
    r"""The minimizer of `expected_energy`: :math:`(A \circ B B^T) w = \mathrm{diag}(A B^T)`.

    Parameters
    ----------
    A : CSR, shape (n, n), symmetric positive definite

    Returns
    -------
    Tensor, shape (n,), of A's dtype on the CPU; None if the system is singular or not definite.

    Notes
    -----
    The matrix is sparse, on A's own pattern, and by Schur's product theorem positive definite if A is: the
    system is solved by conjugate gradients. Cost: the product B B^T and some tens of products.

    Examples
    --------
    >>> import learnsolve as ls
    >>> optimal_weights(ls.problems.poisson(4))
    tensor([0.7778, 0.5556, 0.5556, 0.7778], dtype=torch.float64)
    """
    M, rhs = _quadratic(A)
    diagonal = M.diagonal()
    if not (diagonal > 0).all():
        return None
    # Scaled to a unit diagonal, so that the condition number depends only on the couplings.
    scale = 1 / np.sqrt(diagonal)
    scaled = scipy.sparse.diags_array(scale) @ M @ scipy.sparse.diags_array(scale)
    y, failed = scipy.sparse.linalg.cg(scaled, scale * rhs, rtol=1e-13, maxiter=2000)
    w = scale * y
    if failed or not np.isfinite(w).all():
        return None
    return torch.from_numpy(w).to(A.dtype)


def _quadratic(A: CSR) -> tuple[scipy.sparse.csr_array, np.ndarray]:
    S = A.detach().to(dtype=torch.float64).to_scipy()
    B = scipy.sparse.diags_array(1 / S.diagonal()) @ S
    M = S.multiply(B @ B.T).tocsr()
    return M, np.asarray(S.multiply(B).sum(axis=1)).ravel()
