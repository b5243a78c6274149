"""A graph convolutional network with skip connections, on the graph of a matrix, with signed entries.

Source: J. Chen, "Graph Neural Preconditioners for Iterative Solutions of Sparse Linear Systems", ICLR 2025.
"""

from __future__ import annotations

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.nn._layers import linear
from learnsolve.ops.spmm import spmm


class ResGCN(torch.nn.Module):
    r"""Graph convolutions on the entries of a matrix, each added to the previous features:

    .. math::

        X_0 = X \Theta_0 + 1 c_0^T, \qquad
        X_{l+1} = X_l + \mathrm{ReLU}(A X_l W_l + X_l U_l + 1 c_l^T), \qquad Y = X_L \Theta_1 + 1 c_1^T

    Parameters
    ----------
    in_features, out_features : numbers of columns of X and Y
    width : number of columns in between
    layers : L
    transpose : add :math:`A^T X_l V_l` inside the ReLU, so that features move both ways along an entry of a
        nonsymmetric matrix
    dtype, device : of the parameters

    Raises
    ------
    ValueError
        if a number of columns or the width is less than 1, or layers negative.
    TypeError
        if one of them is not an int, or transpose not a bool.

    Notes
    -----
    A is used as given, with its signs; scale it, for example by a bound of its norm, so that features
    neither grow nor vanish (`preconditioners.GNP` does). Weights start as in `torch.nn.Linear`.
    Differentiable to any order with respect to A's values, X and the parameters; equivariant to permutations
    of the nodes. Cost per layer: a product with `width` columns, 2 width^2 multiplications per node.

    Source: J. Chen, "Graph Neural Preconditioners for Iterative Solutions of Sparse Linear Systems", ICLR
    2025, arXiv 2406.00809, without the separate skip connection: its U is the only one.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((5, 5)) / 8.0
    >>> network = ls.nn.ResGCN(1, 1, width=8, layers=3, dtype=A.dtype)
    >>> network(A, torch.ones(4, 25, 1, dtype=A.dtype)).shape  # four inputs at once
    torch.Size([4, 25, 1])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        width: int = 16,
        layers: int = 8,
        transpose: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ):
        super().__init__()
        name = "ResGCN"
        self.in_features = checks.integer(name, "in_features", in_features, 1)
        self.out_features = checks.integer(name, "out_features", out_features, 1)
        width, layers = checks.integer(name, "width", width, 1), checks.integer(name, "layers", layers, 0)
        checks.flag(name, "transpose", transpose)
        self.transpose = transpose

        def map_(n: int, m: int, bias: bool = True) -> torch.nn.Linear:
            return torch.nn.Linear(n, m, bias, dtype=dtype, device=device)

        self.first, self.last = map_(in_features, width), map_(width, out_features)
        self.own = torch.nn.ModuleList([map_(width, width) for _ in range(layers)])
        self.rows = torch.nn.ModuleList([map_(width, width, False) for _ in range(layers)])
        both = layers if transpose else 0
        self.columns = torch.nn.ModuleList([map_(width, width, False) for _ in range(both)])

    def forward(self, A: CSR, X: Tensor) -> Tensor:
        """Apply the network.

        Parameters
        ----------
        A : CSR, shape (n, n), values (..., nnz)
        X : Tensor, shape (..., n, in_features)

        Returns
        -------
        Tensor, shape (..., n, out_features); batch axes broadcast.

        Raises
        ------
        ValueError
            if shapes do not match.
        TypeError
            if dtypes or devices do not match.
        """
        checks.matrix("ResGCN", "A", A)
        checks.dtype("ResGCN", "A.values", A.values)
        checks.square("ResGCN", "A", A.shape)
        checks.same_kind("ResGCN", "X", X, self.first.weight)
        wanted = (A.shape[0], self.in_features)
        if X.dim() < 2 or tuple(X.shape[-2:]) != wanted:
            raise ValueError(
                f"ResGCN: X must have shape (..., n = {wanted[0]}, in_features = {wanted[1]}), got "
                f"{tuple(X.shape)}"
            )
        X = linear(X, self.first.weight, self.first.bias)
        for i, own in enumerate(self.own):
            Y = linear(X, own.weight, own.bias)  # type: ignore[arg-type]
            Y = Y + spmm(A, linear(X, self.rows[i].weight))  # type: ignore[arg-type]
            if self.transpose:
                Y = Y + spmm(A, linear(X, self.columns[i].weight), transpose=True)  # type: ignore[arg-type]
            X = X + torch.relu(Y)
        return linear(X, self.last.weight, self.last.bias)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, transpose={self.transpose}"
