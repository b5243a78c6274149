"""Networks on the entries of a sparse matrix. Narrow ones run as operators on the CPU
(ops/segments.py).

Sources: P. W. Battaglia et al., "Relational inductive biases, deep learning, and graph networks", arXiv
1806.01261, 2018, without the global attribute; J. Chen, "Graph Neural Preconditioners for Iterative Solutions
of Sparse Linear Systems", ICLR 2025.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from learnsolve.arguments import Count, Index, ints, some_of
from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.nn.graphs import pattern_from_edge_index
from learnsolve.ops import segments
from learnsolve.ops.indexing import permute_values
from learnsolve.ops.products import spmm
from learnsolve.ops.segments import perceptron, segment_max, segment_mean, segment_softmax, segment_sum

MOST = 32  # features in a row of a layer: wider maps are faster as matrix products

Layer = tuple[Tensor, Tensor | None]


def linear(t: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if _narrow(t, weight):
        return perceptron(t, (weight, bias))
    return torch.nn.functional.linear(t, weight, bias)


def through(layers: torch.nn.Sequential, t: Tensor) -> Tensor:
    """The layers in sequence."""
    if not is_plain(layers, torch.nn.Sequential):
        return layers(t)
    every: list[Any] = list(layers)
    if not is_plain(every[0], torch.nn.Linear):
        return _rest(every, t)
    return _apply_layers(every, t, (every[0].weight, every[0].bias))


def through_edges(
    layers: torch.nn.Sequential, e: Tensor, weight: Tensor, ends: Tensor, pattern: SparsityPattern
) -> Tensor:
    """The same for the entries of a pattern: the linear first layer uses this weight instead of its own, and
    `ends` are added to its result (`segments.sum_endpoints`)."""
    every: list[Any] = list(layers)
    return _apply_layers(every, e, (weight, every[0].bias), ends, pattern)


def _apply_layers(
    every: list[Any],
    t: Tensor,
    first: Layer,
    ends: Tensor | None = None,
    pattern: SparsityPattern | None = None,
) -> Tensor:
    if not _narrow(t, first[0]):
        t = torch.nn.functional.linear(t, *first)
        if ends is not None and pattern is not None:
            t = t + segments.sum_endpoints(ends, pattern)
        return _rest(every[1:], t)
    two = len(every) > 2 and is_plain(every[1], torch.nn.ReLU) and is_plain(every[2], torch.nn.Linear)
    if two and _narrow(t, every[2].weight):
        second = every[2].weight, every[2].bias
        return _rest(every[3:], perceptron(t, first, second, ends, pattern))
    return _rest(every[1:], perceptron(t, first, None, ends, pattern))


def _rest(layers: list[Any], t: Tensor) -> Tensor:
    for layer in layers:
        t = linear(t, layer.weight, layer.bias) if is_plain(layer, torch.nn.Linear) else layer(t)
    return t


def _narrow(t: Tensor, weight: Tensor) -> bool:
    alike = t.dtype == weight.dtype and t.device == weight.device
    return t.is_cpu and alike and max(weight.shape) <= MOST


def is_plain(layer: Any, kind: type) -> bool:
    """Whether calling the module does nothing beyond its class (no hooks)."""
    hooks = layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks
    return type(layer) is kind and not any(hooks)


def _softmax_sum(E: Tensor, P: SparsityPattern, by: Literal["row", "column"]) -> Tensor:
    return segment_sum(segment_softmax(E, P, by) * E, P, by)


AGGREGATIONS = {"sum": segment_sum, "mean": segment_mean, "max": segment_max, "softmax": _softmax_sum}


class GraphNetBlock(torch.nn.Module):
    r"""New edge features from edges and their two nodes, then new node features from nodes and their edges:

    .. math:: e'_{ij} = \phi_e(x_i, x_j, e_{ij}), \qquad
        x'_i = \phi_v\bigl(x_i, \rho_j(e'_{ij}), \rho_j(e'_{ji})\bigr)

    Edges are the entries of a square pattern; :math:`\rho` aggregates row i and column i (docs/networks.md).

    Parameters
    ----------
    node_features, edge_features : numbers of columns of x and e
    node_out, edge_out : columns of x' and e'. Default: those of x and e. ``node_out=0``: no :math:`\phi_v`
    hidden : widths of the hidden layers of both networks, () for a single linear map
    rows, columns : "sum", "mean", "max", "softmax", several of them or (): aggregations, at least one
    activation : factory of the activation between layers
    dtype, device : of the parameters

    Attributes
    ----------
    edge_mlp : :math:`\phi_e`, a `torch.nn.Sequential` of :math:`(x_i, x_j, e_{ij})` in this order
    node_mlp : :math:`\phi_v`, of :math:`(x_i, \text{rows}, \text{columns})`, or None for ``node_out=0``

    Raises
    ------
    ValueError
        if no aggregation is named.
    TypeError
        if activation is a module instead of a factory.

    Notes
    -----
    Differentiable to any order with respect to x, e and the parameters, deterministic, and equivariant to
    permutations of the nodes. Source: Battaglia et al., arXiv 1806.01261, 2018.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((5, 5))
    >>> block = ls.nn.GraphNetBlock(2, 1, edge_out=4, rows=("mean", "max"), dtype=A.dtype)
    >>> [t.shape for t in block(A, torch.ones(25, 2, dtype=A.dtype), A.values.unsqueeze(-1))]
    [torch.Size([25, 2]), torch.Size([105, 4])]
    """

    def __init__(
        self,
        node_features: Count,
        edge_features: Count,
        *,
        node_out: Index | None = None,
        edge_out: Count | None = None,
        hidden: Annotated[Sequence[int], ints(1)] = (16,),
        rows: Annotated[str | Sequence[str], some_of(*AGGREGATIONS)] = "sum",
        columns: Annotated[str | Sequence[str], some_of(*AGGREGATIONS)] = (),
        activation: Callable[[], torch.nn.Module] = torch.nn.ReLU,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ):
        super().__init__()
        name = "GraphNetBlock"
        self.node_features, self.edge_features = node_features, edge_features
        node_out = node_features if node_out is None else node_out
        edge_out = edge_features if edge_out is None else edge_out
        if isinstance(activation, torch.nn.Module) or not callable(activation):
            given = type(activation).__name__
            raise TypeError(f"{name}: activation must make a module, as torch.nn.ReLU does, got a {given}")
        self.rows, self.columns = ((how,) if isinstance(how, str) else tuple(how) for how in (rows, columns))
        if not self.rows and not self.columns:
            raise ValueError(f"{name}: rows and columns must name at least one aggregation, got none")

        self._aggregations = [(how, "row") for how in self.rows] + [(how, "column") for how in self.columns]

        def mlp(*sizes: int) -> torch.nn.Sequential:
            layers: list[torch.nn.Module] = []
            for width, following in pairwise(sizes):
                layers += [torch.nn.Linear(width, following, dtype=dtype, device=device), activation()]
            return torch.nn.Sequential(*layers[:-1])

        self.edge_mlp = mlp(2 * node_features + edge_features, *hidden, edge_out)
        aggregated = edge_out * (len(self.rows) + len(self.columns))
        self.node_mlp = mlp(node_features + aggregated, *hidden, node_out) if node_out else None

    def forward(self, graph: CSR | SparsityPattern | Tensor, x: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the block.

        Parameters
        ----------
        graph : SparsityPattern, shape (n, n), or a CSR, for its pattern, or edges in any order as in PyTorch
            Geometric, ``edge_index`` (2, nnz): edge k is entry (edge_index[0, k], edge_index[1, k])
        x : Tensor, shape (..., n, node_features)
        e : Tensor, shape (..., nnz, edge_features), in the order of the entries or of edge_index

        Returns
        -------
        x', shape (..., n, node_out), and e', (..., nnz, edge_out), in the order of e. Batch axes broadcast.

        Raises
        ------
        ValueError
            if shapes do not match, or edge_index has a duplicate edge.
        TypeError
            if dtypes or devices do not match.

        Notes
        -----
        ``edge_index`` sorts its edges at first use, and compares and permutes in every call. In a
        loop, and under `torch.compile`, use the result of `pattern_from_edge_index` instead.
        """
        for what, t in (("x", x), ("e", e)):
            checks.same_kind("GraphNetBlock", what, t, next(self.parameters()))
        if not isinstance(graph, Tensor):
            return self._apply_fused(_pattern(graph), x, e)
        n = x.shape[-2] if x.dim() > 1 else 0
        P, order = pattern_from_edge_index(checks.edge_index("GraphNetBlock", "graph", graph), n)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        self._check(P, x, e)
        x, e = self._apply_fused(P, x, permute_values(e, order, back, -2))
        return x, permute_values(e, back, order, -2)

    def _apply_fused(self, P: SparsityPattern, x: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
        self._check(P, x, e)
        batch = torch.broadcast_shapes(x.shape[:-2], e.shape[:-2])
        x, e = (t.expand(*batch, *t.shape[-2:]) for t in (x, e))
        first: Any = self.edge_mlp[0]
        by_ends, by_edge = first.weight.split((2 * self.node_features, self.edge_features), 1)
        # Node i: its product with the weights for rows, then with those for columns.
        both = linear(x, torch.cat(by_ends.split(self.node_features, 1)))
        ends = both.reshape(*batch, 2 * P.shape[0], first.out_features)
        e = through_edges(self.edge_mlp, e, by_edge, ends, P)
        if self.node_mlp is None:
            return x[..., :0], e
        return through(self.node_mlp, torch.cat((x, *self._aggregate(e, P)), -1)), e

    def _aggregate(self, e: Tensor, P: SparsityPattern) -> list[Tensor]:
        if self.rows == self.columns in (("sum",), ("mean",)):
            return [segments.reduce_both_ends(e, P, self.rows == ("mean",))]
        return [AGGREGATIONS[how](e, P, by) for how, by in self._aggregations]

    def _check(self, P: SparsityPattern, x: Tensor, e: Tensor) -> None:
        name = "GraphNetBlock"
        if P.shape[0] != P.shape[1]:
            raise ValueError(f"{name}: the graph must be a square pattern, got shape {P.shape}")
        checks.one_device(name, "x", x, P, "the graph")
        checks.last_axes(name, "x", x, n=P.shape[0], node_features=self.node_features)
        checks.last_axes(name, "e", e, nnz=P.nnz, edge_features=self.edge_features)
        checks.batches(name, x.shape[:-2], e.shape[:-2], "x and e")

    def extra_repr(self) -> str:
        return f"rows={self.rows}, columns={self.columns}"


def _pattern(graph: object) -> SparsityPattern:
    pattern = graph.pattern if isinstance(graph, CSR) else graph
    if not isinstance(pattern, SparsityPattern):
        raise TypeError(
            "GraphNetBlock: graph must be a SparsityPattern, a CSR or edge_index, a tensor (2, nnz), got "
            f"{type(graph).__name__}"
        )
    return pattern


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

    Notes
    -----
    A is used as given, with its signs. Scale it, for example by a bound of its norm, so that features
    neither grow nor vanish (`preconditioners.GNP` does). Weights start as in `torch.nn.Linear`.
    Differentiable to any order with respect to A's values, X and the parameters, equivariant to permutations
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
        in_features: Count,
        out_features: Count,
        *,
        width: Count = 16,
        layers: Index = 8,
        transpose: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ):
        super().__init__()
        self.in_features, self.out_features, self.transpose = in_features, out_features, transpose

        def map_(n: int, m: int, bias: bool = True) -> torch.nn.Linear:
            return torch.nn.Linear(n, m, bias, dtype=dtype, device=device)

        self.first, self.last = map_(in_features, width), map_(width, out_features)
        self.own = torch.nn.ModuleList([map_(width, width) for _ in range(layers)])
        self.rows = torch.nn.ModuleList([map_(width, width, False) for _ in range(layers)])
        both = layers if transpose else 0
        self.columns = torch.nn.ModuleList([map_(width, width, False) for _ in range(both)])

    def forward(self, A: checks.RealSquareMatrix, X: Tensor) -> Tensor:
        """Apply the network.

        Parameters
        ----------
        A : CSR, shape (n, n), values (..., nnz)
        X : Tensor, shape (..., n, in_features)

        Returns
        -------
        Tensor, shape (..., n, out_features). Batch axes broadcast.

        Raises
        ------
        ValueError
            if shapes do not match.
        TypeError
            if dtypes or devices do not match.
        """
        checks.same_kind("ResGCN", "X", X, self.first.weight)
        checks.last_axes("ResGCN", "X", X, n=A.shape[0], in_features=self.in_features)
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
