"""Graphs in the form of PyTorch Geometric, and graph convolutions on them.

Source: T. N. Kipf, M. Welling, "Semi-Supervised Classification with Graph Convolutional Networks", ICLR 2017.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, TypeGuard

import numpy as np
import torch
from torch import Tensor

from learnsolve.arguments import Count, Index, ints
from learnsolve.matrix import checks
from learnsolve.matrix.cache import makes_plain_tensors
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, sort_triples
from learnsolve.ops.arithmetic import add
from learnsolve.ops.blocks import eye
from learnsolve.ops.indexing import Assembly, sum_at_places
from learnsolve.ops.products import spmm
from learnsolve.ops.structure import scale_symmetric

_NAME = "pattern_from_edge_index"


def pattern_from_edge_index(edge_index: checks.EdgeIndex, n: Index) -> tuple[SparsityPattern, Tensor]:
    """The sparsity pattern of a list of edges, and their order in it.

    Edge k is the entry (edge_index[0, k], edge_index[1, k]), as in PyTorch Geometric's
    ``from_scipy_sparse_matrix``. There, messages go to ``edge_index[1]``: aggregate by columns.

    Parameters
    ----------
    edge_index : integer Tensor, shape (2, E), without duplicate edges
    n : number of nodes

    Returns
    -------
    SparsityPattern, shape (n, n), int32 if edge_index is, otherwise int64, and order, int64, shape (E,):
    entry p is edge ``order[p]``, so edge features (..., E, f) become entry features as
    ``e[..., order, :]``.

    Raises
    ------
    ValueError
        for a duplicate edge or a node outside 0 <= node < n.

    Notes
    -----
    Cost: O(E log E), on the host, to sort edges not used recently, otherwise O(E) to compare. Equal
    edges return the same pattern object while they are among the last 8.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> P, order = ls.nn.pattern_from_edge_index(torch.tensor([[1, 0, 0], [0, 2, 1]]), 3)
    >>> P.col_indices, order
    (tensor([1, 2, 0]), tensor([2, 1, 0]))
    """
    edges, n = checks.edges(_NAME, edge_index, n)
    dtype = torch.int32 if edge_index.dtype == torch.int32 else torch.int64
    pattern, order = _sort_edges(edges.tobytes(), n, dtype, edge_index.device)
    return pattern, order.clone()  # the caller may change it


@makes_plain_tensors
@lru_cache(maxsize=8)
def _sort_edges(
    key: bytes, n: int, dtype: torch.dtype, device: torch.device
) -> tuple[SparsityPattern, Tensor]:
    edges = checks.decode_edges(key)
    crow, col, order, starts = sort_triples(edges[0], edges[1], (n, n))
    twice = np.flatnonzero(np.diff(starts) > 1)
    if len(twice):
        a, b = order[starts[twice[0]] :][:2]
        raise ValueError(
            f"{_NAME}: an edge must not be listed twice, got {tuple(edges[:, a].tolist())} at {a} and at "
            f"{b}. Add their features up with CSR.from_coo"
        )
    crow, col = (torch.from_numpy(x).to(device, dtype) for x in (crow, col))
    return SparsityPattern._construct(crow, col, (n, n)), torch.from_numpy(order).to(device, torch.int64)


def is_edges(t: object) -> TypeGuard[Tensor]:
    """Whether the tensor holds integers. Features are real."""
    return isinstance(t, Tensor) and not (t.is_floating_point() or t.is_complex() or t.dtype == torch.bool)


def add_self_loops(function: str, edge_index: Tensor, weights: Tensor | None, n: int | None) -> CSR:
    """Entry (edge_index[1, k], edge_index[0, k]) is weight k, repeated ones added up, and each diagonal
    entry is 1, or the weight of the node's last self-loop."""
    edges, n = checks.edges(function, checks.edge_index(function, "edge_index", edge_index), n)
    if weights is None:
        weights = torch.ones(edges.shape[1], device=edge_index.device)
    checks.last_axes(function, "edge_weight", weights, E=edges.shape[1])
    checks.one_device(function, "edge_weight", weights, edge_index, "edge_index")
    pattern, gather, source = _plan_assembly(edges.tobytes(), n, edge_index.device)
    one = weights.new_ones((*weights.shape[:-1], 1))
    return CSR(sum_at_places(torch.cat((weights, one), -1)[..., source], gather), pattern)


@makes_plain_tensors
@lru_cache(maxsize=8)
def _plan_assembly(
    key: bytes, n: int, device: torch.device
) -> tuple[SparsityPattern, SparsityPattern, Tensor]:
    """The pattern, the sums of its entries, and the weight of each term. E stands for 1."""
    source, target = checks.decode_edges(key)
    loop = source == target
    kept, own, nodes = np.flatnonzero(~loop), np.full(n, len(loop)), np.arange(n)
    own[source[loop]] = np.flatnonzero(loop)
    rows, columns = (torch.from_numpy(np.append(ends[kept], nodes)) for ends in (target, source))
    plan = Assembly(rows, columns, (n, n), device=device)
    return plan.pattern, plan.places, torch.from_numpy(np.append(kept, own)).to(device)


def gcn_norm(
    A: CSR | Tensor, edge_weight: checks.RealNumbers | None = None, *, n: Index | None = None
) -> CSR:
    r"""The matrix of a graph convolution, :math:`\hat A = \tilde D^{-1/2} (A + I) \tilde D^{-1/2}`.

    :math:`\tilde D` is the diagonal matrix of the row sums of A + I.

    Parameters
    ----------
    A : CSR, square, float32 or float64: the edges of a graph, with nonnegative weights. Its values may have
        batch axes. Or ``edge_index`` as in PyTorch Geometric, integers, shape (2, E): edge k goes from
        node ``edge_index[0, k]`` to node ``edge_index[1, k]``, its row. Duplicate edges are summed,
        and a node with an edge to itself keeps that weight instead of 1
    edge_weight : Tensor, shape (..., E), the weights of edge_index. Default: ones of torch's default
        dtype
    n : the number of nodes of edge_index. Default: the largest node plus one

    Returns
    -------
    CSR on A's pattern plus the diagonal.

    Raises
    ------
    ValueError
        if A is not square, a node is outside 0 <= node < n, or a row sum of A + I is not positive and finite.

    Notes
    -----
    Differentiable with respect to A's values. Cost: a sum, a sampled product and a product of values. Compute
    the result once and pass it to `GCNConv`. Do not call this under `torch.compile`, which cannot create
    patterns.

    References
    ----------
    T. N. Kipf, M. Welling, "Semi-Supervised Classification with Graph Convolutional Networks", ICLR 2017.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> edge = ls.CSR.from_dense(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    >>> ls.nn.gcn_norm(edge).to_dense()
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]])
    """
    if is_edges(A):
        return scale_symmetric("gcn_norm", add_self_loops("gcn_norm", A, edge_weight, n), "row_sums")
    checks.matrix("gcn_norm", "A", A)
    if edge_weight is not None or n is not None:
        raise ValueError("gcn_norm: edge_weight and n are only used with an edge_index. A CSR has its own")
    assert isinstance(A, CSR)
    checks.dtype("gcn_norm", "A.values", A.values)
    checks.square("gcn_norm", "A", A.shape)
    identity = eye(A.shape[0], dtype=A.dtype, device=A.device, index_dtype=A.col_indices.dtype)
    return scale_symmetric("gcn_norm", add(A, identity), "row_sums")


class GCNConv(torch.nn.Module):
    r"""Graph convolution :math:`X' = \hat A X \Theta + 1 b^T`.

    Parameters
    ----------
    in_features, out_features : numbers of columns of X and X'
    bias : whether the layer has a bias b
    batch_shape : leading axes of :math:`\Theta` and b: layers side by side, each with separate weights
    dtype, device : dtype and device of the weights

    Attributes
    ----------
    weight : :math:`\Theta`, shape ``(*batch_shape, in_features, out_features)``
    bias : b, shape ``(*batch_shape, out_features)``, or None

    Notes
    -----
    Weights start from Glorot and Bengio's uniform distribution on (-a, a), a = sqrt(6 / (in + out)). A bias
    starts at zero. `load_state_dict` also accepts the state of PyTorch Geometric's ``GCNConv``.

    Differentiable to any order with respect to :math:`\hat A`, X and the weights. The product uses the
    cheaper order of :math:`\hat A (X \Theta)` and :math:`(\hat A X) \Theta`, for sparse X the first.

    Source: T. N. Kipf, M. Welling, "Semi-Supervised Classification with Graph Convolutional Networks", ICLR
    2017.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> ring = ls.CSR.from_coo(torch.arange(4), (torch.arange(4) + 1) % 4, torch.ones(4), (4, 4))
    >>> A = ls.nn.gcn_norm(ring + ring.T)
    >>> conv = ls.nn.GCNConv(3, 2)
    >>> conv(A, torch.rand(4, 3)).shape
    torch.Size([4, 2])
    """

    bias: torch.nn.Parameter | None

    def __init__(
        self,
        in_features: Count,
        out_features: Count,
        bias: bool = False,
        *,
        batch_shape: Annotated[Sequence[int], ints(0)] = (),
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = torch.nn.Parameter(
            torch.empty((*batch_shape, in_features, out_features), dtype=dtype, device=device)
        )
        if bias:
            self.bias = torch.nn.Parameter(
                torch.empty((*batch_shape, out_features), dtype=dtype, device=device)
            )
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    @property
    def limit(self) -> float:
        """The bound a of the uniform distribution of the initial weights."""
        return (6 / (self.in_features + self.out_features)) ** 0.5

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: object) -> None:
        if (theirs := state_dict.pop(f"{prefix}lin.weight", None)) is not None:  # from PyTorch Geometric
            state_dict[f"{prefix}weight"] = theirs.mT
        super()._load_from_state_dict(state_dict, prefix, *others)

    def reset_parameters(self) -> None:
        """Redraw the weights from torch's generator and set the bias to zero."""
        torch.nn.init.uniform_(self.weight, -self.limit, self.limit)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def forward(
        self, A: CSR | Tensor, X: Tensor | CSR, edge_weight: checks.RealNumbers | None = None
    ) -> Tensor:
        r"""Apply the layer, ``conv(A, X)``, or in PyTorch Geometric's order ``conv(X, A)`` and
        ``conv(x, edge_index, edge_weight)``.

        Parameters
        ----------
        A : CSR, shape (m, n): :math:`\hat A` as returned by `gcn_norm`, or only the required rows of it.
            Its values may have batch axes. Or ``edge_index``, shape (2, E), with weights if not all are ones:
            the matrix is then ``gcn_norm(edge_index, edge_weight, n=n)``, normalized in every call
        X : Tensor, shape (..., n, in_features), or CSR, shape (n, in_features), whose values may have batch
            axes

        Returns
        -------
        Tensor, shape (..., m, out_features). Batch axes of A, X and the weights broadcast.

        Raises
        ------
        ValueError
            if shapes do not match.
        TypeError
            if dtypes or devices do not match.
        """
        A, X = self._graph_first(A, X, edge_weight)
        self._check(A, X)
        if isinstance(X, CSR):
            Y = spmm(A, spmm(X, self.weight))
        elif self._weights_first(A, X):
            Y = spmm(A, X @ self.weight)
        else:
            Y = spmm(A, X) @ self.weight
        return Y if self.bias is None else Y + self.bias.unsqueeze(-2)

    def _graph_first(
        self, A: CSR | Tensor, X: CSR | Tensor, edge_weight: Tensor | None
    ) -> tuple[CSR, CSR | Tensor]:
        # Two CSRs are A and sparse features.
        if not isinstance(A, CSR) and (isinstance(X, CSR) or is_edges(X)):
            A, X = X, A
        if isinstance(A, Tensor) and is_edges(A):
            n = X.shape[-2] if len(X.shape) > 1 else 0
            if edge_weight is None:
                edge_weight = self.weight.new_ones(A.shape[-1])
            A = gcn_norm(A, edge_weight, n=n)
        elif edge_weight is not None:
            raise ValueError(
                "GCNConv: edge_weight is only used with an edge_index. The weights of a CSR are its values"
            )
        return A, X  # type: ignore[return-value]  # checked next

    def _check(self, A: CSR, X: Tensor | CSR) -> None:
        checks.matrix("GCNConv", "A", A)
        checks.dtype("GCNConv", "A.values", A.values)
        if not isinstance(X, CSR):
            checks.same_kind("GCNConv", "X", X, self.weight)
        elif X.dtype != self.weight.dtype:
            raise TypeError(
                f"GCNConv: X has dtype {X.dtype}, the weights {self.weight.dtype}. Convert one with .to()"
            )
        checks.last_axes("GCNConv", "X", X, **{"n = A.shape[1]": A.shape[1], "in_features": self.in_features})

    def _weights_first(self, A: CSR, X: Tensor) -> bool:
        """Whether A (X W) needs fewer multiplications than (A X) W."""
        a, x, w = A.batch_shape, X.shape[:-2], self.weight.shape[:-2]
        f_in, f_out = self.in_features, self.out_features
        m, n = A.shape
        first = torch.broadcast_shapes(x, w).numel() * n * f_in * f_out
        first += torch.broadcast_shapes(a, x, w).numel() * A.nnz * f_out
        last = torch.broadcast_shapes(a, x).numel() * A.nnz * f_in
        last += torch.broadcast_shapes(a, x, w).numel() * m * f_in * f_out
        return first <= last

    def extra_repr(self) -> str:
        batch = tuple(self.weight.shape[:-2])
        side = f", batch_shape={batch}" if batch else ""
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}{side}"
