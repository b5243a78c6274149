"""Graph networks as preconditioners: trained for one matrix, or maps from a matrix to a triangular factor or
an AMG.

Sources: V. Trifonov et al., "Learning from Linear Algebra: A Graph Neural Network Approach to Preconditioner
Design for Conjugate Gradient Solvers", arXiv 2405.15557 (`PreCorrector`); P. Häusner, O. Öktem, J. Sjölund,
"Neural incomplete factorization: learning preconditioners for the conjugate gradient method", Transactions on
Machine Learning Research, 2024 (`NeuralIF`); J. Chen, "Graph Neural Preconditioners for Iterative Solutions
of Sparse Linear Systems", ICLR 2025 (`GNP`); I. Luz, M. Galun, H. Maron, R. Basri, I. Yavneh, "Learning
algebraic multigrid using graph neural networks", ICML 2020, and D. Greenfeld et al., "Learning to optimize
multigrid PDE solvers", ICML 2019 (`NeuralAMG`); P. W. Battaglia et al., arXiv 1806.01261, 2018 (the blocks).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from learnsolve.arguments import Count, Index, at_least, some_of
from learnsolve.matrix import checks
from learnsolve.matrix.cache import readable
from learnsolve.matrix.checks import RealDtype, RealSystem
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.nn import GraphNetBlock, positive_diagonal
from learnsolve.nn.modules import SparseMatrix
from learnsolve.nn.networks import AGGREGATIONS, ResGCN, linear
from learnsolve.ops.products import spmm
from learnsolve.ops.segments import segment_max, segment_sum
from learnsolve.ops.sparse_products import galerkin, spgemm
from learnsolve.ops.structure import norm
from learnsolve.ops.sweeps import residual_norm
from learnsolve.ops.triangular import tril
from learnsolve.preconditioners.amg import AMG, Cycle, Smoother
from learnsolve.preconditioners.base import Preconditioner, check_finite
from learnsolve.preconditioners.factors import IC, FactorPreconditioner
from learnsolve.preconditioners.hierarchy import Hierarchy, interpolation, positions
from learnsolve.preconditioners.schwarz import interface_pattern
from learnsolve.preconditioners.trainable import SavedModule, Trainable

# For networks of your own; the networks here are names of `preconditioners`.
__all__ = ["NetworkStart", "interface_pattern"]

MOST = 4096  # layers and their width, for damaged files
Width = Annotated[int, at_least(1, MOST)]
Aggregate = Annotated[str | Sequence[str], some_of(*AGGREGATIONS)]


class NetworkStart(NamedTuple):
    """The input of a network from a matrix, or a batch of matrices on one pattern; without its weights.

    Attributes
    ----------
    pattern : SparsityPattern of L
    scale : (..., n), L is diag(scale) times the output of the network
    x : (..., n, features), node features
    e : (..., nnz), the entries of the initial factor, in units of the scale
    more : (..., nnz, features), further features of the entries, or None
    slots : for each entry of L its place among the outputs of a pointwise network, or None

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
    slots: Tensor | None = None

    def _each(self, change: Callable[[Tensor], Tensor]) -> NetworkStart:
        more = None if self.more is None else change(self.more)
        return NetworkStart(
            self.pattern, change(self.scale), change(self.x), change(self.e), more, self.slots
        )

    def __getitem__(self, indices: Any) -> NetworkStart:  # type: ignore[override]
        """A selection of the matrices of a batch."""
        chosen, slots = self._each(lambda t: t[indices]), self.slots
        return chosen if slots is None or slots.dim() == 1 else chosen._replace(slots=slots[indices])

    def to(self, dtype: torch.dtype) -> NetworkStart:
        return self._each(lambda t: t.to(dtype))


class MatrixNetwork(SavedModule):
    """Networks A -> M. A subclass defines `start(A)`, what it reads of a matrix, and how M is computed from
    it."""

    batches: ClassVar[bool] = True  # supports a batch of matrices on one pattern
    symmetric = True  # like its M; a solver called with the network itself then explains the mistake
    dtype: torch.dtype
    seed: int

    def settings(self) -> dict[str, Any]:
        """The arguments of the constructor that make this network, without its weights, for JSON."""
        return {"seed": self.seed, "dtype": str(self.dtype).removeprefix("torch.")}

    def start(self, A: CSR) -> NetworkStart:
        raise NotImplementedError(f"{type(self).__name__} must define start")

    def forward(self, A: object) -> Preconditioner:
        """M, for A or the result of `start(A)`."""
        raise NotImplementedError(f"{type(self).__name__} must define forward")


class FactorMap(MatrixNetwork):
    """Networks A -> M = (L L^T)^-1: `entries(start, messages(start))` are those of L in units of the
    scale."""

    def messages(self, start: NetworkStart) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} must define messages")

    def entries(self, start: NetworkStart, g: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} must define entries")

    def factor(self, A: CSR | NetworkStart) -> CSR:
        """L, lower triangular, values (..., nnz) with A's dtype, attached to the autograd graph of the
        weights and A."""
        start = A if isinstance(A, NetworkStart) else self.start(A)
        inside = start.to(self.dtype)
        values = self.entries(inside, self.messages(inside)).to(start.scale.dtype)
        return CSR(values * start.scale.index_select(-1, start.pattern.row_indices), start.pattern)

    def forward(self, A: CSR | NetworkStart) -> FactorPreconditioner:
        """M = (L L^T)^-1, for `cg`, for A or the result of `start(A)`."""
        return FactorPreconditioner(self.factor(A))


class GraphNetwork(MatrixNetwork):
    """Networks by message passing on the graph of a matrix: M is computed from `messages`, one value per
    entry after `rounds` of it."""

    node_features: ClassVar[int]
    edge_features: ClassVar[int] = 1  # the entry, and the features in `NetworkStart.more`

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
        self.rounds, self.width, self.seed = rounds, width, seed
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
        own = {"rounds": self.rounds, "width": self.width, "aggregate": list(self.aggregate)}
        return own | super().settings()

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


class FactorNetwork(GraphNetwork, FactorMap):
    r"""Networks A -> M = (L L^T)^{-1}, on any pattern and from any initial factor: the base of `PreCorrector`
    and `NeuralIF`.

    A subclass sets `node_features`, and `edge_features` if `NetworkStart.more` has any, and defines

    - ``start(A)``, a `NetworkStart`: the pattern of L, features, scales, and initial entries;
    - ``entries(start, g)``, the entries of L in units of the scale, (..., nnz), from the network's output g,
      (..., nnz). Keep the diagonal positive, with `nn.positive_diagonal` or an exponential.

    To correct another factor than IC(0), override `PreCorrector.classical` instead.

    Parameters
    ----------
    rounds, width, aggregate, seed, dtype, device : see `PreCorrector`, with the same defaults

    Raises
    ------
    NotImplementedError
        from a call, if the subclass lacks a method.

    Notes
    -----
    ``network(A)`` is a `FactorPreconditioner`, ``network.factor(A)`` its L, both attached to the autograd
    graph of the weights and A. Both accept a `NetworkStart` instead of A, which does not depend on the
    weights: in training, compute it once per matrix. `load` reads the files of a subclass, found by its name,
    whose constructor must accept the result of `settings`.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> class Scaled(ls.preconditioners.FactorNetwork):
    ...     node_features = 1
    ...     def start(self, A):
    ...         L, x = A.tril(), A.sum(1).unsqueeze(-1)
    ...         return ls.preconditioners.learned.NetworkStart(L.pattern, A.diagonal().rsqrt(), x, L.values)
    ...     def entries(self, start, g):
    ...         return ls.nn.positive_diagonal(start.e + 0.01 * g, start.pattern, "exp")
    >>> A, b = ls.problems.poisson((8, 8)), torch.ones(64, dtype=torch.float64)
    >>> ls.solvers.cg(A, b, M=Scaled(rounds=2).requires_grad_(False)(A)).converged
    True
    """

    def __init__(
        self,
        *,
        rounds: Width = 3,
        width: Width = 8,
        aggregate: Aggregate = "mean",
        seed: Index = 0,
        dtype: RealDtype = torch.float32,
        device: torch.device | str | None = None,
    ):
        super().__init__(rounds, width, aggregate, seed, dtype, device)


def unit_rows(function: str, A: CSR) -> Tensor:
    """The square roots of A's diagonal, (..., n): dividing rows and columns by them makes it ones."""
    checks.matrix(
        function,
        "A",
        A,
        ". The network is a function A -> M: call it with the matrix and pass the result, M = network(A)",
    )
    checks.square(function, "A", A.shape)
    checks.dtype(function, "A.values", A.values)
    d = A.diagonal()
    if readable(d):
        plain = d.detach()
        if not bool((plain > 0).all()):
            at = tuple((~(plain > 0)).nonzero()[0].tolist())
            raise ValueError(
                f"{function}: A must have a positive diagonal, row {at[-1]} has {plain[at].item():.6g}. It "
                "must be symmetric positive definite"
            )
    return d.sqrt()


class GNP(Trainable):
    r"""A nonlinear network for one matrix, for `fgmres` and `fcg` if incomplete factors fail:

    .. math::
        M(r) = \frac{s}{\gamma}\, N\!\left(\frac{A}{\gamma}, \frac{r}{s}\right), \qquad
        s = \frac{\|r\|}{\sqrt n}, \qquad \gamma = \min(\|A\|_1, \|A\|_\infty)

    N is an `nn.ResGCN` with one input and one output feature. For training see docs/preconditioners.md.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz), not requiring grad. The module keeps a copy of A / γ
    width, layers, transpose : see `nn.ResGCN`
    seed : of the initial weights
    dtype : of the weights and of A / γ in the network. M has the dtype of A

    Attributes
    ----------
    network : the ResGCN
    matrix : `nn.SparseMatrix`, A / γ
    unit : γ, a buffer

    Raises
    ------
    ValueError, TypeError
        if A is not finite or requires grad.

    Notes
    -----
    M(c r) = c M(r) for c > 0, and M for c A is M / c. It is not linear: `cg` and `minres` reject it. A batch
    of matrices on one pattern shares the weights. Gradient: exact, for the weights and r, to any order, and
    zero at r = 0. Cost of a call: about layers (nnz + 2 n width) width multiplications per column. Source:
    Chen, arXiv 2406.00809, 2025.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((8, 8))
    >>> M = ls.preconditioners.GNP(A, width=8, layers=4)
    >>> (A @ M(A @ ls.analysis.krylov_samples(A, 20, 16))).abs().mean().backward()
    """

    linear = False
    unit: Tensor

    def __init__(
        self,
        A: RealSystem,
        *,
        width: Width = 16,
        layers: Annotated[int, at_least(0, MOST)] = 8,
        transpose: bool = False,
        seed: Index = 0,
        dtype: RealDtype = torch.float32,
    ):
        super().__init__()
        name = type(self).__name__
        checks.start(
            name, "A.values", A.values, "use nn.ResGCN, whose A may be attached to the autograd graph"
        )
        check_finite(name, A)
        self.width, self.layers, self.transpose, self.seed = width, layers, transpose, seed
        unit = torch.minimum(norm(A, 1), norm(A, float("inf")))
        self.register_buffer("unit", torch.where(unit > 0, unit, 1))
        self.matrix = SparseMatrix(A.with_values((A.values / self.unit.unsqueeze(-1)).to(dtype)))
        with torch.random.fork_rng(devices=[]):  # weights depend on the seed only
            torch.manual_seed(self.seed)
            self.network = ResGCN(
                1, 1, width=width, layers=layers, transpose=transpose, dtype=dtype, device="cpu"
            )
        self.network.to(A.device)
        self.shape, self.batch_shape = A.shape, A.batch_shape

    @property
    def depends_on(self) -> tuple[Tensor, ...]:  # type: ignore[override]
        return (self.unit, *self.parameters())  # r has the dtype of the first tensor

    def mv(self, R: Tensor) -> Tensor:
        A = self.matrix()
        if A.batch_shape:
            A = A.with_values(A.values.unsqueeze(-2))  # for each column
        R, size = _split(R)
        Y = self.network(A, R.mT.unsqueeze(-1).to(A.dtype)).squeeze(-1).mT
        return Y.to(size.dtype) * (size / self.unit[..., None, None])

    def settings(self) -> dict[str, Any]:
        """The arguments of the constructor except A, whose pattern and values are in the state dict."""
        dtype = str(self.network.first.weight.dtype).removeprefix("torch.")
        return {
            "width": self.width,
            "layers": self.layers,
            "transpose": self.transpose,
            "seed": self.seed,
            "dtype": dtype,
        }

    @classmethod
    def _made(cls, settings: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        crow, col = tensors["matrix.crow_indices"], tensors["matrix.col_indices"]
        n = len(crow) - 1
        values = tensors["matrix.values"].to(tensors["unit"].dtype)
        return cls(CSR(values, SparsityPattern(crow, col, (n, n))), **settings)

    def extra_repr(self) -> str:
        return f"shape={self.shape}"


def _split(R: Tensor) -> tuple[Tensor, Tensor]:
    """R / s and s = ||R|| / sqrt(n) for each column, with R / s = 0 and zero derivatives for zero columns."""
    if R.shape[-2] == 0:
        return R, R.sum(-2, keepdim=True)
    largest = R.detach().abs().amax(-2, keepdim=True)
    R = R / torch.where((largest > 0) & torch.isfinite(largest), largest, 1)  # keep squares in range
    size = residual_norm(R, -2, keepdim=True) / R.shape[-2] ** 0.5
    return R / torch.where(size > 0, size, 1), largest * size


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
        rounds: Width = 3,
        width: Width = 8,
        aggregate: Aggregate = "sum",
        seed: Index = 0,
        dtype: RealDtype = torch.float32,
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
    >>> torch.allclose(network(A)(b), ls.preconditioners.IC(A)(b))
    True
    """

    node_features = 2

    def __init__(
        self,
        *,
        rounds: Width = 3,
        width: Width = 8,
        aggregate: Aggregate = "mean",
        seed: Index = 0,
        dtype: RealDtype = torch.float32,
        device: torch.device | str | None = None,
    ):
        options: Any = {"aggregate": aggregate, "seed": seed, "dtype": dtype, "device": device}
        super().__init__(rounds=rounds, width=width, **options)
        self.alpha = torch.nn.Parameter(torch.zeros((), dtype=dtype, device=device))

    def classical(self, A: CSR) -> FactorPreconditioner:
        """The factor to correct: IC(0). A subclass may use any other factor L L^T, such as
        ``MIC(A, level=1)``."""
        return IC(A)

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


class Grids(NamedTuple):
    """The input of the network from a matrix: two grids, and features.

    Attributes
    ----------
    A : CSR
    P : CSR, the classical prolongation, or None if there is no coarser grid
    places : positions of its entries in A, or of the diagonal entry for coarse points
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


class NeuralAMG(GraphNetwork):
    r"""A graph network that corrects Ruge-Stueben interpolation, on its pattern: a function A -> M.

    .. math:: p_{ij} = s_i\, \hat p_{ij}\, e^{g_{ij}}

    in rows of fine points, where :math:`\hat P` is classical interpolation, g is the network on the graph of
    A, and :math:`s_i` preserves the sums of the positive and of the negative entries of the row. An untrained
    network equals `classical`. All levels share the weights. For the features see docs/preconditioners.md.

    Parameters
    ----------
    rounds : blocks of message passing, `nn.GraphNetBlock`
    width : features of nodes and edges, and of the hidden layers
    aggregate : "sum", "mean", "max", "softmax" or several, over the rows and over the columns
    max_levels, max_coarse : the maximum number of levels, and of unknowns of the coarsest
    cycle, smoother, presweeps, postsweeps : see `AMG`
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
    fixed. With smoother "jacobi" or "chebyshev" the spectral radii are also fixed, as in `AMG`. Source: Luz
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
        rounds: Width = 3,
        width: Width = 8,
        aggregate: Aggregate = "mean",
        max_levels: Annotated[int, at_least(2)] = 10,
        max_coarse: Count = 100,
        cycle: Cycle = "V",
        smoother: Smoother | None = None,
        presweeps: Index = 1,
        postsweeps: Index = 1,
        seed: Index = 0,
        dtype: RealDtype = torch.float32,
        device: torch.device | str | None = None,
    ):
        super().__init__(rounds, width, aggregate, seed, dtype, device)
        self.max_levels, self.max_coarse = max_levels, max_coarse
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
                f"NeuralAMG: needs one matrix, got a batch of shape {tuple(A.batch_shape)}. The grids depend "
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
        e += [torch.zeros_like(entries).index_copy(-1, places, f) for f in _entry_features(A, P, fine)]
        return Grids(A, P, places, fine, NetworkStart(A.pattern, scale, x, entries, torch.stack(e, -1)))

    def prolongation(self, start: Grids) -> CSR:
        """P of two grids, with A's dtype, attached to the autograd graph of the weights."""
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
        """M for A, or, for the result of `start(A)`, the cycle on two grids."""
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


def _entry_features(A: CSR, P: CSR | None, fine: Tensor) -> list[Tensor]:
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
