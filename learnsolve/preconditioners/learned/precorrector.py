"""A graph network that corrects an incomplete Cholesky factor.

Source: V. Trifonov et al., "Learning from Linear Algebra: A Graph Neural Network Approach to Preconditioner
Design for Conjugate Gradient Solvers", arXiv 2405.15557.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from learnsolve.matrix.csr import CSR
from learnsolve.ops.spmm import spmm
from learnsolve.preconditioners.classical.factored import Factored
from learnsolve.preconditioners.classical.incomplete import IC0
from learnsolve.preconditioners.learned._saved import loadable
from learnsolve.preconditioners.learned.factor_network import FactorNetwork, NetworkStart, unit_rows


@loadable
class PreCorrector(FactorNetwork):
    r"""A graph network that corrects IC(0), on its pattern: a function A -> M of symmetric matrices.

    .. math::
        M = (L L^T)^{-1}, \qquad L = D^{1/2} C, \qquad
        c_{ij} = \hat l_{ij} + \alpha\, g_{ij} \ (i > j), \qquad c_{ii} = \hat l_{ii}\, e^{\alpha g_{ii}}

    where :math:`\hat L = D^{-1/2} L_{IC}`, D = diag(A), g is the network on the graph of :math:`L_{IC}`, and
    :math:`\alpha` is a weight, initially 0: an untrained network is IC(0) (docs/preconditioners.md).

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
        in a call, for a matrix without an IC(0) factor.

    Notes
    -----
    M is symmetric positive definite for all weights. A subclass may override `classical` to use another
    factor. Gradient: exact, for the weights and A's values, to any order. A batch of matrices on one pattern
    is one call. Cost: IC(0), then about rounds (2 width + 1) width multiplications per entry of L.

    Source: V. Trifonov et al., "Learning from Linear Algebra: A Graph Neural Network Approach to
    Preconditioner Design for Conjugate Gradient Solvers", arXiv 2405.15557, 2024.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((20, 20)), torch.ones(400, dtype=torch.float64)
    >>> network = ls.preconditioners.PreCorrector(rounds=2, width=8)
    >>> torch.allclose(network(A)(b), ls.preconditioners.IC0(A)(b))
    True
    """

    node_features = 2

    def __init__(
        self,
        *,
        rounds: int = 3,
        width: int = 8,
        aggregate: str | Sequence[str] = "mean",
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ):
        options: Any = {"aggregate": aggregate, "seed": seed, "dtype": dtype, "device": device}
        super().__init__(rounds=rounds, width=width, **options)
        self.alpha = torch.nn.Parameter(torch.zeros((), dtype=dtype, device=device))

    def classical(self, A: CSR) -> Factored:
        """The factor to correct: IC(0). A subclass may use any other factor L L^T, such as ``MIC0(A,
        pattern=fill_pattern(A, 1))``."""
        return IC0(A)

    def start(self, A: CSR) -> NetworkStart:
        """`classical` of A, or of each matrix of a batch, and its features."""
        scale = unit_rows(type(self).__name__, A)
        L = self.classical(A).L
        ones = torch.ones(A.shape[0], 1, dtype=A.dtype, device=A.device)
        lost = (A @ ones - spmm(L, spmm(L, ones, transpose=True))).squeeze(-1) / scale.square()
        entries = L.values / scale[..., L.pattern.row_indices.long()]
        on = L.pattern.diagonal_positions.long()
        return NetworkStart(L.pattern, scale, torch.stack((entries[..., on], 10 * lost), -1), entries)

    def entries(self, start: NetworkStart, g: Tensor) -> Tensor:
        on, g = start.pattern.diagonal_positions.long(), self.alpha * g
        diagonal = start.e.index_select(-1, on) * g.index_select(-1, on).exp()
        return (start.e + g).index_copy(-1, on, diagonal)
