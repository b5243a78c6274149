"""Base classes of networks that map a matrix to a triangular factor or an AMG.

Sources: as for `PreCorrector` and `NeuralIF`; P. W. Battaglia et al., arXiv 1806.01261, 2018 (the blocks).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.nn import GraphNetBlock
from learnsolve.nn.networks import linear
from learnsolve.preconditioners.base import Preconditioner
from learnsolve.preconditioners.classical.factored import Factored
from learnsolve.preconditioners.learned._saved import Saved

MOST = 4096  # limits of rounds and width, for damaged files


class NetworkStart(NamedTuple):
    """The input of a network from a matrix, or a batch of matrices on one pattern; without its weights.

    Attributes
    ----------
    pattern : SparsityPattern of L
    scale : (..., n), L is diag(scale) times the output of the network
    x : (..., n, features), node features
    e : (..., nnz), the entries of the initial factor, in units of the scale
    more : (..., nnz, features), further features of the entries, or None

    Examples
    --------
    >>> import learnsolve as ls
    >>> A = ls.problems.poisson((4, 4))
    >>> start = ls.preconditioners.PreCorrector().start(A)
    >>> start.e.shape == (start.pattern.nnz,)
    True
    """

    pattern: SparsityPattern
    scale: Tensor
    x: Tensor
    e: Tensor
    more: Tensor | None = None

    def _each(self, change: Callable[[Tensor], Tensor]) -> NetworkStart:
        more = None if self.more is None else change(self.more)
        return NetworkStart(self.pattern, change(self.scale), change(self.x), change(self.e), more)

    def __getitem__(self, indices: Any) -> NetworkStart:  # type: ignore[override]
        """A selection of the matrices of a batch."""
        return self._each(lambda t: t[indices])

    def to(self, dtype: torch.dtype) -> NetworkStart:
        return self._each(lambda t: t.to(dtype))


class MatrixNetwork(Saved):
    """Networks A -> M by message passing on the graph of a matrix.

    A subclass defines `start(A)`, the features and scales of a matrix, and how M is computed from `messages`,
    one value per entry after `rounds` of message passing.
    """

    node_features: ClassVar[int]
    edge_features: ClassVar[int] = 1  # the entry, and the features in `NetworkStart.more`
    batches: ClassVar[bool] = True  # supports a batch of matrices on one pattern

    symmetric = True  # like its M; a solver called with the network itself then explains the mistake

    def __init__(
        self,
        rounds: int,
        width: int,
        aggregate: str | Sequence[str],
        seed: int,
        dtype: torch.dtype,
        device: torch.device | str | None,
    ):
        super().__init__()
        name = type(self).__name__
        self.rounds, self.width = (
            checks.integer(name, key, value, 1) for key, value in (("rounds", rounds), ("width", width))
        )
        if max(self.rounds, self.width) > MOST:
            raise ValueError(
                f"{name}: rounds and width must be at most {MOST}, got {self.rounds}, {self.width}"
            )
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"{name}: dtype must be torch.float32 or torch.float64, got {dtype}")
        self.seed = checks.integer(name, "seed", seed, 0)
        self.aggregate = (aggregate,) if isinstance(aggregate, str) else tuple(aggregate)
        options: Any = {"rows": self.aggregate, "columns": self.aggregate, "hidden": (width,)}
        options |= {"edge_out": width, "dtype": dtype, "device": device}
        sizes = [(self.node_features, self.edge_features), *[(width, width)] * (self.rounds - 1)]
        with torch.random.fork_rng(devices=[]):  # weights depend only on the seed
            torch.manual_seed(self.seed)
            blocks = [
                GraphNetBlock(nodes, edges, node_out=width if k < self.rounds else 0, **options)
                for k, (nodes, edges) in enumerate(sizes, 1)
            ]
            self.last = torch.nn.Linear(width + 1, 1, dtype=dtype, device=device)
        self.blocks = torch.nn.ModuleList(blocks)

    @property
    def dtype(self) -> torch.dtype:
        return self.last.weight.dtype

    def settings(self) -> dict[str, Any]:
        """The arguments of the constructor that make this network, without its weights, for JSON."""
        dtype = str(self.dtype).removeprefix("torch.")
        return {
            "rounds": self.rounds,
            "width": self.width,
            "aggregate": list(self.aggregate),
            "seed": self.seed,
            "dtype": dtype,
        }

    def start(self, A: CSR) -> NetworkStart:
        raise NotImplementedError(f"{type(self).__name__} must define start")

    def messages(self, start: NetworkStart) -> Tensor:
        """One value per entry, (..., nnz): rounds of message passing, each added to the previous features,
        and a linear map of the last features and the entry itself."""
        P, x, e = start.pattern, start.x, start.e.unsqueeze(-1)
        if start.more is not None:
            e = torch.cat((e, start.more), -1)
        x, h = self.blocks[0](P, x, e)
        for block in list(self.blocks)[1:]:
            dx, dh = block(P, x, h)
            x, h = x + dx if dx.shape[-1] else x, h + dh
        weight = self.last.weight  # for h and e, which are not concatenated
        by_features = linear(h, weight[:, :-1], self.last.bias).squeeze(-1)
        return by_features + weight[0, -1] * start.e

    def forward(self, A: Any) -> Preconditioner:
        """M, for A or the result of `start(A)`."""
        raise NotImplementedError(f"{type(self).__name__} must define forward")


class FactorNetwork(MatrixNetwork):
    r"""Networks A -> M = (L L^T)^{-1}, on any pattern and from any initial factor: the base of `PreCorrector`
    and `NeuralIF`.

    A subclass sets `node_features`, and `edge_features` if `NetworkStart.more` has any, and defines

    - ``start(A)``, a `NetworkStart`: the pattern of L, features, scales, and initial entries;
    - ``entries(start, g)``, the entries of L in units of the scale, (..., nnz), from the network's output g,
      (..., nnz). Keep the diagonal positive, with `nn.positive_diagonal` or an exponential.

    To correct another factor than IC(0), override `PreCorrector.classical` instead.

    Parameters
    ----------
    rounds, width, aggregate, seed, dtype, device : as for `PreCorrector`, with the same defaults

    Raises
    ------
    ValueError, NotImplementedError
        if arguments are invalid; from a call, if the subclass lacks a method.

    Notes
    -----
    ``network(A)`` is a `Factored`, ``network.factor(A)`` its L, both with a graph to the weights and to A.
    Both accept a `NetworkStart` instead of A, which does not depend on the weights: in training, compute it
    once per matrix. With the decorator ``preconditioners.loadable``, `load` reads the files of a subclass;
    its constructor must accept the result of `settings`.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> class Scaled(ls.preconditioners.FactorNetwork):
    ...     node_features = 1
    ...     def start(self, A):
    ...         L, x = A.tril(), A.sum(1).unsqueeze(-1)
    ...         return ls.preconditioners.NetworkStart(L.pattern, A.diagonal().rsqrt(), x, L.values)
    ...     def entries(self, start, g):
    ...         return ls.nn.positive_diagonal(start.e + 0.01 * g, start.pattern, "exp")
    >>> A, b = ls.problems.poisson((8, 8)), torch.ones(64, dtype=torch.float64)
    >>> ls.solvers.cg(A, b, M=Scaled(rounds=2).requires_grad_(False)(A)).converged
    True
    """

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
        super().__init__(rounds, width, aggregate, seed, dtype, device)

    def entries(self, start: NetworkStart, g: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} must define entries")

    def factor(self, A: CSR | NetworkStart) -> CSR:
        """L, lower triangular, values (..., nnz) with A's dtype, with a graph to the weights and to A."""
        start = A if isinstance(A, NetworkStart) else self.start(A)
        inside = start.to(self.dtype)
        values = self.entries(inside, self.messages(inside)).to(start.scale.dtype)
        return CSR(values * start.scale.index_select(-1, start.pattern.row_indices), start.pattern)

    def forward(self, A: CSR | NetworkStart) -> Factored:
        """M = (L L^T)^-1, for `cg`, for A or the result of `start(A)`."""
        return Factored(self.factor(A))


def unit_rows(function: str, A: CSR) -> Tensor:
    """The square roots of A's diagonal, (..., n): dividing rows and columns by them makes it ones."""
    checks.matrix(
        function,
        "A",
        A,
        "; the network is a function A -> M: call it with the matrix and pass the result, M = network(A)",
    )
    checks.square(function, "A", A.shape)
    checks.dtype(function, "A.values", A.values)
    d = A.diagonal()
    if not d.is_meta and not torch.compiler.is_compiling() and d.is_cpu:
        plain = d.detach()
        if not bool((plain > 0).all()):
            at = tuple((~(plain > 0)).nonzero()[0].tolist())
            raise ValueError(
                f"{function}: A must have a positive diagonal, row {at[-1]} has {plain[at].item():.6g}; it "
                "must be symmetric positive definite"
            )
    return d.sqrt()
