"""A graph network that corrects the prolongations of classical algebraic multigrid.

Source: I. Luz, M. Galun, H. Maron, R. Basri, I. Yavneh, "Learning algebraic multigrid using graph neural
networks", ICML 2020; D. Greenfeld et al., "Learning to optimize multigrid PDE solvers", ICML 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from learnsolve import _check
from learnsolve.csr import CSR
from learnsolve.ops.spgemm import galerkin
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
    graph : Start, features on the graph of A
    """

    A: CSR
    P: CSR | None
    places: Tensor
    fine: Tensor
    graph: Start

    def to(self, dtype: torch.dtype) -> Grids:
        P = None if self.P is None else self.P.to(dtype)
        return Grids(self.A.to(dtype), P, self.places, self.fine.to(dtype), self.graph.to(dtype))


@loadable
class NeuralAMG(MatrixNetwork):
    r"""A graph network that corrects Ruge-Stueben interpolation, on its pattern: a function A -> M.

    .. math::

        p_{ij} = \hat p_{ij}\, e^{\alpha g_{ij}}

    in rows of fine points, where :math:`\hat P` is the prolongation of pyamg's "ruge_stuben", g is the
    network on the graph of A, and :math:`\alpha` a weight that begins with 0: an untrained network is
    ``AMG(A, method="ruge_stuben")``. Each level is made of the coarse operator of the learned one above it,
    by the same weights.

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
    Features: of an edge :math:`a_{ij} / \sqrt{a_{ii} a_{jj}}`, of a node whether it is coarse and ten times
    its scaled row sum. So M for c A is M for A, divided by c; the weights do not depend on the size of A.

    Gradient: exact, for the weights and for A's values where they enter features, smoothers and coarse
    operators; :math:`\hat P` and the splitting are numbers. `prolongation(start(A))` is the P of two grids
    alone, for losses; ``network(start(A))`` a cycle on two grids, with the graph of its weights.

    Published: the network gives P itself, and rows are scaled to sums of one; here they need not
    keep their sums.

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
    >>> classical = ls.preconditioners.AMG(A, method="ruge_stuben", max_coarse=50)
    >>> torch.allclose(M(b), classical(b))
    True
    """

    node_features = 2
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
        self.alpha = torch.nn.Parameter(torch.zeros((), dtype=dtype, device=device))

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
        pattern, inside = A.pattern, torch.zeros_like(scale)
        row, column = pattern.row_indices.long(), pattern.col_indices.long()
        entries = A.values / (scale[row] * scale[column])
        sums = row_sums(A, 1) / scale.square()
        if P is None:
            nothing = torch.zeros(0, dtype=torch.long, device=A.device)
            x = torch.stack((inside, 10 * sums), -1)
            return Grids(A, None, nothing, nothing.to(A.dtype), Start(pattern, scale, x, entries))
        inside[coarse] = 1
        places = _places(A, P, coarse)
        fine = 1 - inside[P.pattern.row_indices.long()]
        x = torch.stack((inside, 10 * sums), -1)
        return Grids(A, P, places, fine, Start(pattern, scale, x, entries))

    def prolongation(self, start: Grids) -> CSR:
        """P of two grids, values of A's dtype, with a graph to the weights."""
        P = start.P
        if P is None:
            raise ValueError("NeuralAMG: the matrix has no coarser grid, all its unknowns are coarse or fine")
        g = self.messages(start.graph.to(self.dtype)).index_select(-1, start.places)
        return P.with_values(P.values * (self.alpha * g).to(P.dtype).mul(start.fine).exp())

    def forward(self, A: CSR | Grids) -> AMG:
        """M of A; or of what `start(A)` has given, the cycle on two grids."""
        if isinstance(A, Grids):
            found = [] if A.P is None else [self.prolongation(A)]
            return AMG(A.A, hierarchy=Hierarchy(found), **self.options)
        level, found = A, []
        unit_rows("NeuralAMG", A)
        while len(found) + 1 < self.max_levels and level.shape[0] > self.max_coarse:
            start = self.start(level)
            if start.P is None:
                break
            found.append(self.prolongation(start))
            level = galerkin(found[-1], level)
        return AMG(A, hierarchy=Hierarchy(found), **self.options)

    def classical(self, A: CSR) -> AMG:
        """The untrained one, for comparison."""
        sizes = {"max_levels": self.max_levels, "max_coarse": self.max_coarse}
        return AMG(A, method="ruge_stuben", **sizes, **self.options)


def _places(A: CSR, P: CSR, coarse: Tensor) -> Tensor:
    """Where (i, f(c)) is among the entries of A, for the entries (i, c) of P, f(c) the coarse point c."""
    n, row = A.shape[1], A.pattern.row_indices.long()
    keys = row * n + A.pattern.col_indices.long()  # increasing
    wanted = P.pattern.row_indices.long() * n + coarse[P.pattern.col_indices.long()]
    at = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
    if not torch.equal(keys[at], wanted):
        raise ValueError("NeuralAMG: A must have an entry for each pair that its interpolation couples")
    return at
