"""A graph network that corrects the prolongations of classical algebraic multigrid.

Source: I. Luz, M. Galun, H. Maron, R. Basri, I. Yavneh, "Learning algebraic multigrid using graph neural
networks", ICML 2020; D. Greenfeld et al., "Learning to optimize multigrid PDE solvers", ICML 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from learnsolve import _check
from learnsolve.csr import CSR
from learnsolve.ops.spgemm import galerkin, spgemm
from learnsolve.ops.structure import sum as row_sums
from learnsolve.preconditioners._classical import interpolation
from learnsolve.preconditioners._factor_network import MatrixNetwork, Start, unit_rows
from learnsolve.preconditioners._hierarchy import Hierarchy
from learnsolve.preconditioners._saved import loadable
from learnsolve.preconditioners.amg import AMG


class Grids(NamedTuple):
    """What the network takes of a matrix: two grids, and features.

    Attributes
    ----------
    A : CSR
    P : CSR, the classical prolongation; None if there is no coarser grid
    places : positions of its entries among those of A; for a coarse point that of the diagonal
    fine : 1 where the row of an entry is a fine point, 0 where it is a coarse one
    sums : those of the rows of P that are kept, 0 for the others
    graph : Start, features on the graph of A
    """

    A: CSR
    P: CSR | None
    places: Tensor
    fine: Tensor
    sums: Tensor
    graph: Start

    def to(self, dtype: torch.dtype) -> Grids:
        P = None if self.P is None else self.P.to(dtype)
        fine, sums = self.fine.to(dtype), self.sums.to(dtype)
        return Grids(self.A.to(dtype), P, self.places, fine, sums, self.graph.to(dtype))


@loadable
class NeuralAMG(MatrixNetwork):
    r"""A graph network that corrects Ruge-Stueben interpolation, on its pattern: a function A -> M.

    .. math::

        p_{ij} = s_i\, \hat p_{ij}\, e^{g_{ij}}

    in rows of fine points, where :math:`\hat P` is classical interpolation (pyamg's "ruge_stuben" with both
    passes of its coarsening), g is the network on the graph of A, and :math:`s_i` keeps the sum of the row,
    so that constants are still interpolated exactly where they were. An untrained network has g = 0. Each
    level is made of the coarse operator of the learned one above it, by the same weights.

    Parameters
    ----------
    rounds : blocks of message passing, `nn.GraphNetBlock`
    width : features of nodes and edges, and of the hidden layers
    aggregate : "sum", "mean", "max", "softmax" or several, over the rows and over the columns
    max_levels, max_coarse : int >= 2 and >= 1, most levels, and most unknowns of the coarsest
    cycle, smoother, presweeps, postsweeps : of the `AMG`
    seed : of the first weights
    dtype, device : of the weights: torch.float32 or torch.float64. M has the dtype of A

    Raises
    ------
    TypeError
        from a call, for what is no CSR, such as a vector: M is ``network(A)``, not the network.
    ValueError
        from a call, for a batch, or a matrix whose diagonal is not positive.
    ImportError
        from a call, if pyamg is not installed.

    Notes
    -----
    Features: of an edge :math:`a_{ij} / \sqrt{a_{ii} a_{jj}}`, :math:`a_{ij} / a_{ii}`, the entry of
    :math:`\hat P`, what one, two and four steps of Jacobi's method on its pattern make of it, and the order
    of Gauss-Seidel; of a node whether it is coarse and ten times its scaled row sum. So M for c A is M for A,
    divided by c; the weights do not depend on the size of A.

    Gradient: exact, for the weights and for A's values where they enter features, smoothers and coarse
    operators; :math:`\hat P` and the splitting are numbers. `prolongation(start(A))` is the P of two grids
    alone, for losses; ``network(start(A))`` a cycle on two grids, with the graph of its weights.

    Published: the network gives P itself, and rows are scaled to sums of one. Here a row of
    :math:`\hat P` with a negative entry is not scaled.

    References
    ----------
    I. Luz, M. Galun, H. Maron, R. Basri, I. Yavneh, "Learning algebraic multigrid using graph neural
    networks", ICML 2020.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((20, 20)), torch.ones(400, dtype=torch.float64)
    >>> network = ls.preconditioners.NeuralAMG(rounds=2, max_coarse=50)
    >>> with torch.no_grad():
    ...     M = network(A)
    >>> torch.equal(M(b), network.classical(A)(b))
    True
    """

    node_features, edge_features = 2, 8
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
        self.max_levels = _check.integer("NeuralAMG", "max_levels", max_levels, 2)
        self.max_coarse = _check.integer("NeuralAMG", "max_coarse", max_coarse, 1)
        self.options: dict[str, Any] = {
            "cycle": cycle,
            "smoother": smoother,
            "presweeps": presweeps,
            "postsweeps": postsweeps,
        }
        torch.nn.init.zeros_(self.last.weight)
        torch.nn.init.zeros_(self.last.bias)

    def settings(self) -> dict[str, Any]:
        levels = {"max_levels": self.max_levels, "max_coarse": self.max_coarse}
        return super().settings() | levels | self.options

    def start(self, A: CSR) -> Grids:  # type: ignore[override]
        """Two grids of A, classical, and the features."""
        scale = unit_rows("NeuralAMG", A)
        if A.batch_shape:
            raise ValueError(
                f"NeuralAMG: needs one matrix, got a batch of shape {tuple(A.batch_shape)}; the grids depend "
                "on the numbers: call it for one after another"
            )
        P, coarse = interpolation(A)
        pattern, is_coarse = A.pattern, torch.zeros_like(scale)
        row, column = pattern.row_indices.long(), pattern.col_indices.long()
        sums = row_sums(A, 1) / scale.square()
        entries = [
            A.values / (scale[row] * scale[column]),
            A.values / scale[row].square(),
            (column < row).to(A.dtype),
        ]
        if P is None:
            nothing = torch.zeros(0, dtype=torch.long, device=A.device)
            x, none = torch.stack((is_coarse, 10 * sums), -1), torch.zeros_like(entries[0])
            graph = Start(pattern, scale, x, torch.stack((*entries, *[none] * 5), -1))
            return Grids(A, None, nothing, nothing.to(A.dtype), nothing.to(A.dtype), graph)
        is_coarse[coarse] = 1
        places = _places(A, P, coarse)
        fine = 1 - is_coarse[P.pattern.row_indices.long()]
        on_edges = [P.values, torch.ones_like(fine)]
        Q = P
        for steps in (1, 1, 2):
            for _ in range(steps):
                Q = _smoothed(A, Q, fine)
            on_edges.append((Q.values / P.values.clamp(min=1e-3) - 1).clamp(-2, 2))
        entries += [torch.zeros_like(A.values).index_copy(0, places, v * fine) for v in on_edges]
        x = torch.stack((is_coarse, 10 * sums), -1)
        graph = Start(pattern, scale, x, torch.stack(entries, -1))
        negative = row_sums(P.with_values((P.values < 0).to(P.dtype)), 1) > 0
        return Grids(A, P, places, fine, row_sums(P, 1).masked_fill(negative, 0), graph)

    def prolongation(self, start: Grids) -> CSR:
        """P of two grids, values of A's dtype, with a graph to the weights."""
        P = start.P
        if P is None:
            raise ValueError("NeuralAMG: the matrix has no coarser grid, all its unknowns are coarse or fine")
        g = self.messages(start.graph.to(self.dtype)).index_select(-1, start.places)
        corrected = P.with_values(P.values * g.to(P.dtype).mul(start.fine).exp())
        kept = start.sums != 0
        return corrected.scale_rows(
            torch.where(kept, start.sums, 1) / torch.where(kept, row_sums(corrected, 1), 1)
        )

    def forward(self, A: CSR | Grids) -> AMG:
        """M of A; or of what `start(A)` has given, the cycle on two grids."""
        if isinstance(A, Grids):
            found = [] if A.P is None else [self.prolongation(A)]
            return AMG(A.A, hierarchy=Hierarchy(found), **self.options)
        return self._cycle(A, self.prolongation)

    def classical(self, A: CSR) -> AMG:
        """The untrained one, for comparison."""
        return self._cycle(A, lambda start: start.P)

    def _cycle(self, A: CSR, prolongation: Callable[[Grids], Any]) -> AMG:
        level, found = A, []
        unit_rows("NeuralAMG", A)
        while len(found) + 1 < self.max_levels and level.shape[0] > self.max_coarse:
            start = self.start(level)
            if start.P is None:
                break
            found.append(prolongation(start))
            level = galerkin(found[-1], level)
        return AMG(A, hierarchy=Hierarchy(found), **self.options)


def _smoothed(A: CSR, P: CSR, fine: Tensor) -> CSR:
    """P - (2/3) D^-1 A P on P's pattern, in rows of fine points: a step to the ideal one, A P = 0 there."""
    change = spgemm(A, P, mask=P.pattern).scale_rows(2 / 3 / A.diagonal())
    return P.with_values(P.values - fine * change.values)


def _places(A: CSR, P: CSR, coarse: Tensor) -> Tensor:
    """Where (i, f(c)) is among the entries of A, for the entries (i, c) of P, f(c) the coarse point c."""
    n, row = A.shape[1], A.pattern.row_indices.long()
    keys = row * n + A.pattern.col_indices.long()  # increasing
    wanted = P.pattern.row_indices.long() * n + coarse[P.pattern.col_indices.long()]
    at = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
    if not torch.equal(keys[at], wanted):
        raise ValueError("NeuralAMG: A must have an entry for each pair that its interpolation couples")
    return at
