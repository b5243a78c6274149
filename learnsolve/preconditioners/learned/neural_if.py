"""A graph network that predicts an incomplete Cholesky factor.

Source: P. Häusner, O. Öktem, J. Sjölund, "Neural incomplete factorization: learning preconditioners for the
conjugate gradient method", Transactions on Machine Learning Research, 2024.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from learnsolve.matrix.csr import CSR
from learnsolve.nn import positive_diagonal
from learnsolve.ops.segment_max import segment_max
from learnsolve.ops.segment_sum import segment_sum
from learnsolve.ops.triangle import tril
from learnsolve.preconditioners.learned._saved import loadable
from learnsolve.preconditioners.learned.factor_network import FactorNetwork, NetworkStart, unit_rows


@loadable
class NeuralIF(FactorNetwork):
    r"""A graph network that predicts a factor on the pattern of tril(A): a function A -> M.

    .. math::
        M = (L L^T)^{-1}, \qquad L = D^{1/2} C, \qquad
        c_{ij} = g_{ij} \ (i > j), \qquad c_{ii} = e^{g_{ii} / 2}

    where g is the network on the graph of tril(:math:`D^{-1/2} A D^{-1/2}`), D = diag(A). There is no
    factorization, hence no breakdown. An untrained network is Jacobi's method. For the features see
    docs/preconditioners.md.

    Parameters
    ----------
    rounds : blocks of message passing, `nn.GraphNetBlock`
    width : features of nodes and edges, and of the hidden layers
    aggregate : "sum", "mean", "max", "softmax" or several, over the rows and over the columns
    seed : of the initial weights
    dtype, device : of the weights: torch.float32 or torch.float64. M has the dtype of A

    Raises
    ------
    TypeError
        in a call, for anything but a CSR, such as a vector: M is ``network(A)``, not the network.
    ValueError
        in a call, for a matrix whose diagonal is not positive.

    Notes
    -----
    M is symmetric positive definite for all weights. Gradient: exact, for the weights and A's values, to any
    order. A batch of matrices on one pattern is one call. Cost of a call: about rounds (2
    width + 1) width multiplications per entry of L.

    Source: P. Häusner, O. Öktem, J. Sjölund, "Neural incomplete factorization: learning preconditioners for
    the conjugate gradient method", TMLR 2024.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.random_spd(200, seed=0, density=0.02), torch.ones(200, dtype=torch.float64)
    >>> torch.allclose(ls.preconditioners.NeuralIF(rounds=2)(A)(b), b / A.diagonal())
    True
    """

    node_features = 5

    def __init__(
        self,
        *,
        rounds: int = 3,
        width: int = 8,
        aggregate: str | Sequence[str] = "sum",
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ):
        options: Any = {"aggregate": aggregate, "seed": seed, "dtype": dtype, "device": device}
        super().__init__(rounds=rounds, width=width, **options)
        torch.nn.init.zeros_(self.last.weight)
        torch.nn.init.zeros_(self.last.bias)

    def start(self, A: CSR) -> NetworkStart:
        """The scaled lower triangle of A, or of each matrix of a batch, and its features."""
        scale = unit_rows("NeuralIF", A)
        L = tril(A)
        P, row, column = L.pattern, L.pattern.row_indices.long(), L.pattern.col_indices.long()
        entries = L.values / (scale[..., row] * scale[..., column])
        beside = entries.masked_fill(row == column, 0.0)
        sizes = torch.stack((beside.abs(), beside.square()), -1)
        parts = segment_sum(sizes, P), segment_sum(sizes, P, "column"), segment_max(sizes[..., :1], P)
        x = torch.cat(parts, -1)
        return NetworkStart(P, scale, x, entries)

    def entries(self, start: NetworkStart, g: Tensor) -> Tensor:
        return positive_diagonal(g, start.pattern, "sqrt_exp")
