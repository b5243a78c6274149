"""Assembly from elements: the pattern is built once, values are linear in a coefficient per element."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from learnsolve import _analysis
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.core.product import product
from learnsolve.problems._grid import index_dtype
from learnsolve.problems._plan import SymmetricPlan, symmetric_plan


class ElementPlan(NamedTuple):
    """A matrix :math:`\\sum_e c_e P_e^T K_e P_e` with symmetric element matrices K_e and coefficients c_e.

    The diagonal and the entries above it are a sparse matrix times c. Entry p of that sparse matrix is the
    number `order[p]` of the flattened element matrices.
    """

    plan: SymmetricPlan
    places: SparsityPattern  # (diagonal entries, then those above it) x elements
    order: Tensor

    def weights(self, local: Tensor) -> Tensor:
        """The data of `matrix` from element matrices K, (elements, k, k), or a shared one (k, k)."""
        local = local.expand(self.places.shape[1], *local.shape[-2:]).reshape(-1)
        return local.index_select(0, self.order)

    def matrix(self, weights: Tensor, coefficients: Tensor, shift: float = 0.0) -> CSR:
        """The matrix for coefficients (..., elements); `shift` is added to the diagonal."""
        weights = weights.to(coefficients.dtype)
        sums = product(weights, coefficients.unsqueeze(-1), self.places, False).squeeze(-1)
        n = self.plan.pattern.shape[0]
        return self.plan.matrix(sums[..., :n] + shift, sums[..., n:])


def element_plan(
    elements: np.ndarray, n: int, device: torch.device, keep: np.ndarray | None = None
) -> ElementPlan:
    """For elements (e, k): the rows of the matrix that the k nodes of each element belong to, all different;
    -1 for a node without a row, whose value is zero. `keep`, (k, k): where element matrices have entries."""
    count, k = elements.shape
    a, b = np.nonzero(np.triu(np.ones((k, k)) if keep is None else keep))
    low, high = (np.take(elements, c, axis=1).ravel() for c in (a, b))
    inside = np.flatnonzero((low >= 0) & (high >= 0))
    low, high = low[inside].astype(np.int64), high[inside].astype(np.int64)
    low, high = np.minimum(low, high), np.maximum(low, high)
    above = low < high
    pairs, rank = np.unique(low[above] * n + high[above], return_inverse=True)
    rows = low.copy()
    rows[above] = n + rank
    sources = inside // len(a)
    local = sources * (k * k) + (a * k + b)[inside % len(a)]
    index = index_dtype(max(n + len(pairs), count), len(rows))
    crow, col, order, _ = _analysis.sort_triples(rows, sources, n + len(pairs))
    crow, col = (torch.from_numpy(a).to(device, index) for a in (crow, col))
    places = SparsityPattern._trusted(crow, col, (n + len(pairs), count))
    plan = symmetric_plan(n, pairs // n, pairs % n, device)
    return ElementPlan(plan, places, torch.from_numpy(local[order]).to(device))
