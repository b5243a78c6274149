"""Graph convolutions.

Source: T. N. Kipf, M. Welling, "Semi-Supervised Classification with Graph Convolutional Networks", ICLR 2017.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from learnsolve import _check
from learnsolve.csr import CSR
from learnsolve.ops.add import add
from learnsolve.ops.diagonals import eye
from learnsolve.ops.spmm import spmm
from learnsolve.ops.symmetric_scaling import symmetric_scaling


def gcn_normalise(A: CSR) -> CSR:
    r"""The matrix of a graph convolution, :math:`\hat A = \tilde D^{-1/2} (A + I) \tilde D^{-1/2}`.

    :math:`\tilde D` is the diagonal matrix of the row sums of A + I.

    Parameters
    ----------
    A : CSR, square, float32 or float64: the edges of a graph, with weights that are not negative; its values
        may have batch axes

    Returns
    -------
    CSR on A's pattern and the diagonal.

    Raises
    ------
    ValueError
        if A is not square, or a row sum of A + I is not positive and finite.

    Notes
    -----
    Differentiable in A's values; cost: a sum, a sampled product and a product of values. Compute it once and
    keep it: `GCNConv` takes the result. Not to be called under `torch.compile`, which cannot make patterns.

    References
    ----------
    T. N. Kipf, M. Welling, "Semi-Supervised Classification with Graph Convolutional Networks", ICLR 2017.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> edge = ls.CSR.from_dense(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    >>> ls.nn.gcn_normalise(edge).to_dense()
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]])
    """
    _check.matrix("gcn_normalise", "A", A)
    _check.dtype("gcn_normalise", "A.values", A.values)
    _check.square("gcn_normalise", "A", A.shape)
    identity = eye(A.shape[0], dtype=A.dtype, device=A.device, index_dtype=A.col_indices.dtype)
    return symmetric_scaling(add(A, identity), by="row_sums")


class GCNConv(torch.nn.Module):
    r"""Graph convolution :math:`X' = \hat A X \Theta + 1 b^T`.

    Parameters
    ----------
    in_features, out_features : numbers of columns of X and X'
    bias : whether there is a b
    batch_shape : leading axes of :math:`\Theta` and b: that many layers side by side, each with weights of
        its own
    dtype, device : of the weights

    Attributes
    ----------
    weight : :math:`\Theta`, shape (*batch_shape, in_features, out_features)
    bias : b, shape (*batch_shape, out_features), or None

    Notes
    -----
    Weights start from Glorot and Bengio's uniform distribution on (-a, a), a = sqrt(6 / (in + out)), each
    layer of the batch by itself; a bias starts from zero.

    The product is taken in the cheaper order: :math:`\hat A (X \Theta)` and :math:`(\hat A X) \Theta` differ
    in the product with :math:`\hat A`, which has `out_features` columns in one and `in_features` in the
    other, each times the batch it then has. With sparse X it is always the first: the second would form
    :math:`\hat A X`, a sparse matrix with more entries than X. Differentiable to any order in
    :math:`\hat A`, X and the weights.

    References
    ----------
    T. N. Kipf, M. Welling, "Semi-Supervised Classification with Graph Convolutional Networks", ICLR 2017; X.
    Glorot, Y. Bengio, "Understanding the difficulty of training deep feedforward neural networks", AISTATS
    2010.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> ring = ls.CSR.from_coo(torch.arange(4), (torch.arange(4) + 1) % 4, torch.ones(4), (4, 4))
    >>> A = ls.nn.gcn_normalise(ring + ring.T)
    >>> conv = ls.nn.GCNConv(3, 2)
    >>> conv(A, torch.rand(4, 3)).shape
    torch.Size([4, 2])
    """

    bias: torch.nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        *,
        batch_shape: Sequence[int] = (),
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ):
        super().__init__()
        self.in_features = _check.integer("GCNConv", "in_features", in_features, 1)
        self.out_features = _check.integer("GCNConv", "out_features", out_features, 1)
        _check.flag("GCNConv", "bias", bias)
        batch = tuple(_check.integer("GCNConv", "batch_shape", b, 0) for b in batch_shape)
        self.weight = torch.nn.Parameter(
            torch.empty((*batch, in_features, out_features), dtype=dtype, device=device)
        )
        if bias:
            self.bias = torch.nn.Parameter(torch.empty((*batch, out_features), dtype=dtype, device=device))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    @property
    def limit(self) -> float:
        """a of the uniform distribution that weights start from."""
        return (6 / (self.in_features + self.out_features)) ** 0.5

    def reset_parameters(self) -> None:
        """Draw the weights anew from torch's generator; the bias becomes zero."""
        torch.nn.init.uniform_(self.weight, -self.limit, self.limit)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def forward(self, A: CSR, X: Tensor | CSR) -> Tensor:
        r"""Apply the layer.

        Parameters
        ----------
        A : CSR, shape (m, n): :math:`\hat A`, such as `gcn_normalise` makes, or the rows of it for which the
            result is wanted; its values may have batch axes
        X : Tensor, shape (..., n, in_features), or CSR, shape (n, in_features), whose values may have batch
            axes

        Returns
        -------
        Tensor, shape (..., m, out_features); batch axes of A, X and the weights broadcast.

        Raises
        ------
        ValueError
            if shapes do not fit.
        TypeError
            if dtypes or devices do not fit.
        """
        self._check(A, X)
        if isinstance(X, CSR):
            Y = spmm(A, spmm(X, self.weight))
        elif self._weights_first(A, X):
            Y = spmm(A, X @ self.weight)
        else:
            Y = spmm(A, X) @ self.weight
        return Y if self.bias is None else Y + self.bias.unsqueeze(-2)

    def _check(self, A: CSR, X: Tensor | CSR) -> None:
        _check.matrix("GCNConv", "A", A)
        if not isinstance(X, CSR):
            _check.same_kind("GCNConv", "X", X, self.weight)
        elif X.dtype != self.weight.dtype:
            raise TypeError(
                f"GCNConv: X has dtype {X.dtype}, the weights {self.weight.dtype}; convert one with .to()"
            )
        n = A.shape[1]
        if len(X.shape) < 2 or tuple(X.shape[-2:]) != (n, self.in_features):
            raise ValueError(
                f"GCNConv: X must have shape (..., n = A.shape[1] = {n}, in_features = {self.in_features}), "
                f"got {tuple(X.shape)}"
            )

    def _weights_first(self, A: CSR, X: Tensor) -> bool:
        """Has A (X W) fewer products of entries than (A X) W?"""
        a, x, w = A.batch_shape, X.shape[:-2], self.weight.shape[:-2]
        f_in, f_out = self.in_features, self.out_features
        m, n = A.shape
        first = torch.broadcast_shapes(x, w).numel() * n * f_in * f_out
        first += torch.broadcast_shapes(a, x, w).numel() * A.nnz * f_out
        last = torch.broadcast_shapes(a, x).numel() * A.nnz * f_in
        last += torch.broadcast_shapes(a, x, w).numel() * m * f_in * f_out
        return first <= last

    def extra_repr(self) -> str:
        batch = tuple(self.weight.shape[:-2])
        side = f", batch_shape={batch}" if batch else ""
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}{side}"
