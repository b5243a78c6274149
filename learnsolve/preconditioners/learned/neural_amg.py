"""A graph network that corrects the prolongations of classical algebraic multigrid.

Source: I. Luz, M. Galun, H. Maron, R. Basri, I. Yavneh, "Learning algebraic multigrid using graph neural
networks", ICML 2020; D. Greenfeld et al., "Learning to optimize multigrid PDE solvers", ICML 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.ops.spgemm import galerkin, spgemm
from learnsolve.preconditioners.learned._saved import loadable
from learnsolve.preconditioners.learned.factor_network import MatrixNetwork, NetworkStart, unit_rows
from learnsolve.preconditioners.multigrid._classical import interpolation, positions
from learnsolve.preconditioners.multigrid._hierarchy import Hierarchy
from learnsolve.preconditioners.multigrid.amg import AMG


class Grids(NamedTuple):
    """The input of the network from a matrix: two grids, and features.

    Attributes
    ----------
    A : CSR
    P : CSR, the classical prolongation; None if there is no coarser grid
    places : positions of its entries in A; for coarse points, of the diagonal entry
    fine : 1 if the row of an entry is a fine point, 0 if it is a coarse point
    graph : NetworkStart, features on the graph of A
    """

    A: CSR
    P: CSR | None
    places: Tensor
    fine: Tensor
    graph: NetworkStart

    def to(self, dtype: torch.dtype) -> Grids:
        P = None if self.P is None else self.P.to(dtype)
        return Grids(self.A.to(dtype), P, self.places, self.fine.to(dtype), self.graph.to(dtype))


@loadable
class NeuralAMG(MatrixNetwork):
    r"""A graph network that corrects Ruge-Stueben interpolation, on its pattern: a function A -> M.

    .. math:: p_{ij} = s_i\, \hat p_{ij}\, e^{g_{ij}}

    in rows of fine points, where :math:`\hat P` is classical interpolation, g is the network on the graph of
    A, and :math:`s_i` preserves the sums of the positive and of the negative entries of the row. An untrained
    network equals `classical`. All levels share the weights; for the features see docs/preconditioners.md.

    Parameters
    ----------
    rounds : blocks of message passing, `nn.GraphNetBlock`
    width : features of nodes and edges, and of the hidden layers
    aggregate : "sum", "mean", "max", "softmax" or several, over the rows and over the columns
    max_levels, max_coarse : int >= 2 and >= 1, the maximum number of levels, and of unknowns of the coarsest
    cycle, smoother, presweeps, postsweeps : as for `AMG`
    seed : of the initial weights
    dtype, device : of the weights: torch.float32 or torch.float64. M has the dtype of A

    Raises
    ------
    TypeError
        in a call, for anything but a CSR, such as a vector: M is ``network(A)``, not the network.
    ValueError
        in a call, for a batch, or a matrix whose diagonal is not positive.

    Notes
    -----
    Gradient: exact, for the weights and A's values, on all levels, with splitting and strong connections held
    fixed; with smoother "jacobi" or "chebyshev" the spectral radii are also fixed, as in `AMG`. Source: Luz
    et al., "Learning algebraic multigrid using graph neural networks", ICML 2020.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((20, 20)), torch.ones(400, dtype=torch.float64)
    >>> network = ls.preconditioners.NeuralAMG(rounds=2, max_coarse=50)
    >>> torch.allclose(network(A)(b), network.classical(A)(b))
    True
    """

    node_features = 2
    edge_features = 8
    batches = False

    def __init__(
        self,
        *,
        rounds: int = 3,
        width: int = 8,
        aggregate: str | Sequence[str] = "mean",
        max_levels: int = 10,
        max_coarse: int = 100,
        cycle: str = "V",
        smoother: str | None = None,
        presweeps: int = 1,
        postsweeps: int = 1,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ):
        super().__init__(rounds, width, aggregate, seed, dtype, device)
        self.max_levels = checks.integer("NeuralAMG", "max_levels", max_levels, 2)
        self.max_coarse = checks.integer("NeuralAMG", "max_coarse", max_coarse, 1)
        self.options: dict[str, Any] = {
            "cycle": cycle,
            "smoother": smoother,
            "presweeps": presweeps,
            "postsweeps": postsweeps,
        }
        for p in self.last.parameters():
            torch.nn.init.zeros_(p)

    def settings(self) -> dict[str, Any]:
        levels = {"max_levels": self.max_levels, "max_coarse": self.max_coarse}
        return super().settings() | levels | self.options

    def interpolation(self, A: CSR) -> tuple[CSR | None, Tensor]:
        """The classical P, None if there is no coarser grid, and the coarse points of its columns."""
        if A.batch_shape:
            raise ValueError(
                f"NeuralAMG: needs one matrix, got a batch of shape {tuple(A.batch_shape)}; the grids depend "
                "on the numbers: call it for one after another"
            )
        return interpolation(A)

    def start(self, A: CSR) -> Grids:  # type: ignore[override]
        """Two grids of A by classical coarsening, and the features."""
        scale = unit_rows("NeuralAMG", A)
        P, coarse = self.interpolation(A)
        row, column = A.pattern.row_indices.long(), A.pattern.col_indices.long()
        is_coarse = torch.zeros_like(scale).index_fill(-1, coarse, 1)
        places = fine = row[:0]
        if P is not None:
            places = positions(A, P, coarse)
            fine = 1 - is_coarse.index_select(-1, P.pattern.row_indices)
        entries = A.values / (scale[..., row] * scale[..., column])
        x = torch.stack((is_coarse, 10 * A.sum(1) / scale.square()), -1)
        e = [A.values / scale.square()[..., row], (column < row).to(A.dtype).expand_as(entries)]
        e += [torch.zeros_like(entries).index_copy(-1, places, f) for f in _of_entries(A, P, fine)]
        return Grids(A, P, places, fine, NetworkStart(A.pattern, scale, x, entries, torch.stack(e, -1)))

    def prolongation(self, start: Grids) -> CSR:
        """P of two grids, with A's dtype and a graph to the weights."""
        P = start.P
        if P is None:
            raise ValueError("NeuralAMG: the matrix has no coarser grid, all its unknowns are coarse or fine")
        g = self.messages(start.graph.to(self.dtype)).index_select(-1, start.places)
        values = P.values * g.to(P.dtype).mul(start.fine).exp()
        for side in (P.values > 0, P.values < 0):
            old, new = (P.with_values(v * side).sum(1) for v in (P.values, values))
            factors = old / torch.where(new == 0, 1, new)
            values = torch.where(side, values * factors.index_select(-1, P.pattern.row_indices), values)
        return P.with_values(values)

    def forward(self, A: CSR | Grids) -> AMG:
        """M for A; for the result of `start(A)`, the cycle on two grids."""
        if isinstance(A, Grids):
            found = [] if A.P is None else [self.prolongation(A)]
            return AMG(A.A, hierarchy=Hierarchy(found), **self.options)

        def learned(level: CSR) -> CSR | None:
            start = self.start(level)
            return None if start.P is None else self.prolongation(start)

        return self._levels(A, learned)

    def classical(self, A: CSR) -> AMG:
        """The AMG of an untrained network, for comparison."""
        return self._levels(A, lambda level: self.interpolation(level)[0])

    def _levels(self, A: CSR, prolongation: Callable[[CSR], CSR | None]) -> AMG:
        level, found = A, []
        unit_rows("NeuralAMG", A)
        while len(found) + 1 < self.max_levels and level.shape[0] > self.max_coarse:
            if (P := prolongation(level)) is None:
                break
            found.append(P)
            level = galerkin(P, level)
        return AMG(A, hierarchy=Hierarchy(found), **self.options)


def _of_entries(A: CSR, P: CSR | None, fine: Tensor) -> list[Tensor]:
    """Features of the entries of P in rows of fine points: one, the entry, and its relative change by 1, 2
    and 4 steps of Jacobi's method for A P = 0 in these rows, on P's pattern."""
    if P is None:
        return [fine.to(A.dtype)] * 5
    found, Q = [fine, P.values * fine], P
    scale = 2 / 3 / A.diagonal()
    for steps in (1, 1, 2):
        for _ in range(steps):
            change = spgemm(A, Q, mask=P.pattern).scale_rows(scale)
            Q = P.with_values(Q.values - fine * change.values)
        found.append((fine * (Q.values - P.values) / P.values.abs().clamp(min=1e-3)).clamp(-2, 2))
    return found
