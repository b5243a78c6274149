"""Dropout on the entries of a sparse matrix."""

from numbers import Real

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR


class SparseDropout(torch.nn.Module):
    r"""In training mode, set each entry of a sparse matrix to zero with probability p.

    .. math:: y_{ij} = x_{ij} \, m_{ij} / (1 - p), \qquad m_{ij} \in \{0, 1\}, \quad P(m_{ij} = 0) = p

    on the entries of X, so that the expected value of each is x_ij. In evaluation mode: X itself.

    Parameters
    ----------
    p : float, 0 <= p < 1

    Raises
    ------
    ValueError
        if p is not within 0 <= p < 1.
    TypeError
        if p is not a number.

    Notes
    -----
    The result is on X's pattern: dropped entries are stored as zeros, so that the plans of the pattern are
    used for every draw. Dropped entries are zero even if they were infinite or NaN. Differentiable with
    respect to X's values. Cost: one random number per entry.

    References
    ----------
    N. Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", Journal of
    Machine Learning Research 15, 2014.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> drop = ls.nn.SparseDropout(0.5)
    >>> X = ls.CSR.from_dense(torch.tensor([[1.0, 0.0], [2.0, 3.0]]))
    >>> drop(X, keep=torch.tensor([True, False, True])).to_dense()
    tensor([[2., 0.],
            [0., 6.]])
    >>> drop.eval()(X) is X
    True
    """

    def __init__(self, p: float = 0.5):
        super().__init__()
        if isinstance(p, bool) or not isinstance(p, Real):
            raise TypeError(f"SparseDropout: p must be a number, got {type(p).__name__}")
        if not 0 <= float(p) < 1:
            raise ValueError(f"SparseDropout: p must be a probability below 1, got {p}")
        self.p = float(p)

    def forward(self, X: CSR, keep: Tensor | None = None) -> CSR:
        """Drop entries of X.

        Parameters
        ----------
        X : CSR; its values may have batch axes
        keep : Tensor of bool, shape (..., nnz): True for entries to keep, instead of a draw from torch's
            generator, even for p = 0; ignored in evaluation mode. Additional batch axes give a batch of
            matrices

        Raises
        ------
        ValueError
            if the shape of `keep` does not match X.
        TypeError
            if X is not a CSR, or `keep` is not a tensor of bool on its device.
        """
        checks.matrix("SparseDropout", "X", X, "; use torch.nn.Dropout for dense features")
        if keep is not None:
            _check_keep(X, keep)
        if not self.training or (self.p == 0 and keep is None):
            return X
        if keep is None:
            keep = torch.rand_like(X.values) >= self.p
        # Not a product with the mask: an infinity times zero is NaN.
        return X.with_values(torch.where(keep, X.values * (1 / (1 - self.p)), 0))

    def extra_repr(self) -> str:
        return f"p={self.p}"


def _check_keep(X: CSR, keep: Tensor) -> None:
    name = "SparseDropout"
    checks.tensor(name, "keep", keep)
    if keep.dtype != torch.bool:
        raise TypeError(f"{name}: keep must be a tensor of bool, got {keep.dtype}; use keep != 0")
    if keep.device != X.values.device:
        raise TypeError(
            f"{name}: keep is on {keep.device}, the matrix on {X.values.device}; move one with .to()"
        )
    if keep.dim() == 0 or keep.shape[-1] != X.nnz:
        raise ValueError(f"{name}: keep must have shape (..., nnz = {X.nnz}), got {tuple(keep.shape)}")
    checks.batches(name, X.batch_shape, keep.shape[:-1], "X and keep")
