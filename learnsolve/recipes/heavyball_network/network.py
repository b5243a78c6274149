"""A family of matrices on one pattern, and a graph network that predicts alpha and beta from a matrix."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from learnsolve import problems
from learnsolve.matrix.csr import CSR
from learnsolve.nn import GCNConv
from learnsolve.recipes.harness.recipe import COEFFICIENTS, stream_seed
from learnsolve.recipes.harness.settings import SettingError

if TYPE_CHECKING:
    from learnsolve.recipes.heavyball_network import HeavyballNetworkSettings

EPSILON = (1e-3, 1.0)  # for the anisotropic family, log-uniform; angles are uniform
CONTRAST = (1.0, 1e3)  # for the diffusion family, log-uniform; then coefficients as in problem.py
FEATURES = 3


def family(settings: HeavyballNetworkSettings, count: int, part: int) -> CSR:
    """Matrices 0 .. count - 1 of a part of the family, values (count, nnz); each depends only on its
    index."""
    matrices = [_one(settings, part, index) for index in range(count)]
    values = torch.stack([A.values for A in matrices]).to(settings.torch_dtype)
    return CSR(values, matrices[0].pattern).to(device=settings.device)


def _one(settings: HeavyballNetworkSettings, part: int, index: int) -> CSR:
    generator = torch.Generator().manual_seed(stream_seed(settings.seed, COEFFICIENTS, part, index))
    grid = tuple(settings.grid)
    u, v = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
    if settings.family == "anisotropic":
        low, high = EPSILON
        # Angles at which entries vanish have probability zero.
        return problems.anisotropic(grid, low * (high / low) ** u, math.pi * v)
    low, high = CONTRAST
    contrast = low * (high / low) ** u
    try:
        return problems.diffusion(contrast ** torch.rand(grid, generator=generator, dtype=torch.float64))
    except ValueError as error:
        raise SettingError(f"--grid: {' '.join(str(error).split())}") from error


def bound(A: CSR) -> Tensor:
    """The largest row sum of magnitudes, which no eigenvalue exceeds; shape (...)."""
    return A.norm(math.inf)


class ParameterNetwork(torch.nn.Module):
    r"""(alpha, beta) of the heavy ball from the graph of A, inside the region in which it converges.

    Rounds of message passing on :math:`\hat A = A / \|A\|_\infty`,

    .. math:: X \leftarrow \mathrm{silu}(\hat A X W_k + X U_k + c_k),

    then the mean, minimum and maximum over the grid points, and a layer with two outputs u and v:

    .. math:: \beta = \sigma(v), \quad \alpha = \sigma(u)\, 2 (1 + \beta) / \|A\|_\infty.

    The heavy ball converges for :math:`0 \le \beta < 1` and
    :math:`0 < \alpha < 2 (1 + \beta) / \lambda_{\max}`, and :math:`\|A\|_\infty \ge \lambda_{\max}`:
    it does so for all weights.

    The features of a grid point: its diagonal entry, the sum of its row and the sum of the squares of its
    row, relative to :math:`\|A\|_\infty`. Nothing depends on the scale of A, or on the order of the points.

    Parameters
    ----------
    layers, hidden : rounds of message passing, width of the hidden layers
    seed : determines the weights
    """

    def __init__(self, layers: int, hidden: int, *, seed: int, dtype: torch.dtype):
        super().__init__()
        sizes = [FEATURES] + [hidden] * layers
        pairs = list(itertools.pairwise(sizes))
        self.messages = torch.nn.ModuleList(GCNConv(i, o, dtype=dtype) for i, o in pairs)
        self.own = torch.nn.ModuleList(torch.nn.Linear(i, o, dtype=dtype) for i, o in pairs)
        self.last = torch.nn.Linear(3 * hidden, 2, dtype=dtype)
        generator = torch.Generator().manual_seed(stream_seed(seed, COEFFICIENTS, -1, 0))
        with torch.no_grad():
            for p in self.parameters():
                limit = (6 / sum(p.shape)) ** 0.5 if p.dim() == 2 else 0.0
                draw = torch.rand(p.shape, generator=generator, dtype=torch.float64)
                p.copy_(limit * (2 * draw - 1))
            self.last.weight.mul_(0.1)  # near beta = 1/2 for every matrix

    def scaled(self, A: CSR) -> tuple[Tensor, Tensor]:
        """alpha times the bound, and beta, each with A's batch shape."""
        size = bound(A).unsqueeze(-1)
        H = A.with_values(A.values / size)
        ones = torch.ones((*H.batch_shape, H.shape[0], 1), dtype=A.dtype, device=A.device)
        squares = H.with_values(H.values.square())
        X = torch.cat((H.diagonal().unsqueeze(-1), H @ ones, squares @ ones), -1)
        for message, own in zip(self.messages, self.own, strict=True):
            X = torch.nn.functional.silu(message(H, X) + own(X))
        pooled = torch.cat((X.mean(-2), X.amin(-2), X.amax(-2)), -1)
        u, v = self.last(pooled).unbind(-1)
        beta = torch.sigmoid(v)
        return torch.sigmoid(u) * 2 * (1 + beta), beta

    def forward(self, A: CSR) -> tuple[Tensor, Tensor]:
        scaled, beta = self.scaled(A)
        return scaled / bound(A), beta
