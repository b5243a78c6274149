"""Factors predicted row by row: a small perceptron reads the scaled entries of a row of A and returns the row
of L, without messages between rows and without a factorization.

Sources: a perceptron on stencils is the network of D. Greenfeld, M. Galun, R. Kimmel, I. Yavneh, R. Basri,
"Learning to optimize multigrid PDE solvers", ICML 2019, for interpolation; P. Häusner, O. Öktem, J. Sjölund,
TMLR 2024, and V. Trifonov et al., arXiv 2405.15557, predict factors by graph networks (learned.py). The
factor of an untrained network is that of SSOR (O. Axelsson, BIT 12, 1972).
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from learnsolve.arguments import Index, at_least, within
from learnsolve.matrix import checks
from learnsolve.matrix.cache import readable
from learnsolve.matrix.checks import RealDtype
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, to_numpy
from learnsolve.nn.networks import is_plain, through
from learnsolve.ops.autograd import needs_graph
from learnsolve.ops.incomplete import fill_pattern
from learnsolve.ops.indexing import find, place, take
from learnsolve.ops.segments import pointwise_factor, spread_values
from learnsolve.preconditioners.inverses import lower_pattern
from learnsolve.preconditioners.learned import MOST, FactorMap, NetworkStart, Width, unit_rows

Omega = Annotated[float, within("0 < {} < 2", lambda value: 0 < value < 2, 2.0)]


class _Stencils(NamedTuple):
    """Positions in the arrays of a matrix on a grid."""

    pattern: SparsityPattern  # of L
    off: Tensor  # A's entries off the diagonal
    inputs: Tensor  # their places in the rows of features
    below: Tensor  # A's entries below the diagonal
    kept: Tensor  # their places in L
    outputs: Tensor  # for each entry of L its place in the rows of outputs
    a_slots: Tensor  # on which diagonal each entry is, of A and of L
    l_slots: Tensor
    of_a: Tensor  # for each diagonal of L below the main one that of A, or the number of these


class _Rows(NamedTuple):
    """Positions in the arrays of a matrix with any pattern. A group is the entries of a row on one side of
    the diagonal."""

    pattern: SparsityPattern  # of L
    off: Tensor  # A's entries off the diagonal
    groups: Tensor  # their groups, 2 row + (1 above the diagonal)
    starts: Tensor  # the first of each of these groups, for each of them
    below: Tensor  # which of them are below the diagonal
    kept: Tensor  # the places of these in L
    outputs: Tensor  # for each entry of L its place in the rows of outputs, without its rank


class PointwiseFactor(FactorMap):
    """Base of `StencilFactor` and `RowFactor`: L of M = (L L^T)^-1 with, in units of sqrt(a_ii) and up to a
    factor for each column, l_ij = a_ij + h_ij and l_ii = exp(h_ii) / omega."""

    def __init__(
        self,
        features: int,
        lower: int,
        width: int,
        layers: int,
        omega: float,
        seed: int,
        dtype: torch.dtype,
        device: torch.device | str | None,
    ):
        super().__init__()
        self.lower, self.width, self.layers, self.omega, self.seed = lower, width, layers, omega, seed
        sizes = [features, *[self.width] * self.layers]
        network: list[torch.nn.Module] = []
        with torch.random.fork_rng(devices=[]):  # weights depend only on the seed
            torch.manual_seed(self.seed)
            for here, there in pairwise(sizes):
                network += [torch.nn.Linear(here, there, dtype=dtype, device=device), torch.nn.SiLU()]
            last = torch.nn.Linear(sizes[-1], self.lower + 2, dtype=dtype, device=device)
        for p in last.parameters():
            torch.nn.init.zeros_(p)
        self.network = torch.nn.Sequential(*network, last)

    @property
    def dtype(self) -> torch.dtype:
        return self.network[0].weight.dtype  # type: ignore[return-value, union-attr]

    def settings(self) -> dict[str, Any]:
        own = {"width": self.width, "layers": self.layers, "omega": self.omega}
        return own | super().settings()

    def messages(self, start: NetworkStart) -> Tensor:
        """The outputs of the perceptron, (..., n, lower + 2): a correction for each kind of entry, one for
        the diagonal, and the logarithm of a factor for the column."""
        self._check_weights(start)
        return through(self.network, start.x)

    def _check_weights(self, start: NetworkStart) -> None:
        kinds, devices = ({getattr(p, key) for p in self.network.parameters()} for key in ("dtype", "device"))
        if len(kinds) > 1 or not kinds <= {torch.float32, torch.float64}:
            raise TypeError(
                f"{type(self).__name__}: the weights must all be torch.float32 or torch.float64, got "
                f"{', '.join(sorted(map(str, kinds)))}. Call .float() or .double()"
            )
        if devices != {start.x.device}:
            raise TypeError(
                f"{type(self).__name__}: the weights are on {', '.join(sorted(map(str, devices)))}, A is on "
                f"{start.x.device}. Move one with .to()"
            )

    def factor(self, A: CSR | NetworkStart) -> CSR:
        """L, lower triangular, values (..., nnz) with A's dtype, attached to the autograd graph of the
        weights and to A."""
        if not isinstance(A, CSR) or not self._uses_kernel(A.values):
            return super().factor(A)
        scale = unit_rows(type(self).__name__, A)
        (of_A, of_L), L = self._slots(A)
        patterns = ((P.crow_indices, P.col_indices, *slots) for P, slots in ((A.pattern, of_A), (L, of_L)))
        numbers = (t.reshape(t.shape[:-1].numel(), t.shape[-1]) for t in (A.values, scale))
        values = pointwise_factor(*patterns, *numbers, self._weights(), self.omega, self._unit)
        return CSR(values.reshape(*A.batch_shape, L.nnz), L)

    def _weights(self) -> list[Tensor]:
        layers: list[Any] = list(self.network)
        return [p for layer in layers[::2] for p in (layer.weight, layer.bias)]

    def _uses_kernel(self, values: Tensor) -> bool:
        """Whether the compiled pass can compute it: plain tensors on the CPU, without derivatives."""
        kinds = (torch.nn.Linear, torch.nn.SiLU)
        plain = all(is_plain(layer, kinds[i % 2]) for i, layer in enumerate(self.network))
        if not plain or len(self.network) % 2 == 0 or not is_plain(self.network, torch.nn.Sequential):
            return False
        given, dtype = (values, *self._weights()), self.dtype
        alike = dtype in checks.SUPPORTED and all(p.dtype == dtype for p in given[1:])
        return alike and all(map(readable, given)) and not needs_graph(*given)

    def _slots(self, A: CSR) -> tuple[tuple[tuple[Tensor, ...], ...], SparsityPattern]:
        """What the compiled pass reads of A and of L beyond their patterns, and L's pattern."""
        return ((), ()), lower_pattern(A.pattern)

    @property
    def _unit(self) -> float:
        return math.sqrt(self.omega / (2 - self.omega))

    def entries(self, start: NetworkStart, g: Tensor) -> Tensor:
        k = self.lower
        own, zero = g[..., k : k + 1].exp() / self.omega, torch.zeros_like(g[..., :1])
        rows = torch.cat((g[..., :k], zero, own), -1).flatten(-2)
        columns = g[..., k + 1].exp() * self._unit
        assert start.slots is not None
        return (start.e + self._gather_outputs(rows, start.slots)) * spread_values(
            columns, start.pattern, "column"
        )

    def _gather_outputs(self, rows: Tensor, slots: Tensor) -> Tensor:
        """The outputs of all rows at these places, which may differ from matrix to matrix."""
        return rows.gather(-1, slots)


def _scale_to_unit(function: str, A: CSR) -> tuple[Tensor, Tensor]:
    """sqrt(a_ii), and a_ij / sqrt(a_ii a_jj)."""
    scale = unit_rows(function, A)
    inverse = 1 / scale
    by_row, by_column = (spread_values(inverse, A.pattern, by) for by in ("row", "column"))
    return scale, A.values * by_row * by_column


class StencilFactor(PointwiseFactor):
    r"""A perceptron that predicts a factor from the stencils of a grid, row by row: a function A -> M.

    .. math::
        M = (L L^T)^{-1}, \qquad L = D^{1/2} C \,\mathrm{diag}(u), \qquad
        c_{ij} = \hat a_{ij} + h_{k(i,j)}(\hat a_i) \ (i > j), \qquad
        c_{ii} = e^{h_0(\hat a_i)} / \omega

    with :math:`\hat A = D^{-1/2} A D^{-1/2}`, D = diag(A), its row :math:`\hat a_i` (zeros where the grid
    ends), the diagonal k(i, j) of an entry, and a factor for each column, :math:`u_j = e^{h_u(\hat a_j)}
    \sqrt{\omega / (2 - \omega)}`. An untrained network is SSOR(omega).

    Parameters
    ----------
    diagonals : on which A has entries: 9 and 27 for bilinear and trilinear elements, 5 and 7 for differences,
        on any grid in row-major order
    width, layers : of the perceptron: features of a hidden layer, and number of these, with SiLU
    fill : level of fill of L's pattern (`fill_pattern`). 0: the pattern of tril(A)
    lower : diagonals of L below the main one. Default: as many as A has
    omega : of the SSOR that it starts from
    seed, dtype, device : of the weights: torch.float32 or torch.float64. M has the dtype of A

    Raises
    ------
    TypeError, ValueError
        in a call, for anything but a CSR (M is ``network(A)``), for other diagonals, or one not positive.

    Notes
    -----
    A must be symmetric, which is not checked. M is symmetric positive definite for all weights. Gradient:
    exact, for the weights and A's values, to any order. A batch of matrices on one pattern is one call. Cost:
    about width (diagonals + (layers - 1) width + lower) multiplications per row, on the CPU without gradients
    in one compiled pass.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((20, 20)), torch.ones(400, dtype=torch.float64)
    >>> network = ls.preconditioners.StencilFactor(5, omega=1.5)
    >>> torch.allclose(network(A)(b), ls.preconditioners.SSOR(A, omega=1.5)(b), rtol=1e-4)
    True
    """

    def __init__(
        self,
        diagonals: Annotated[int, at_least(3, MOST + 1)] = 9,
        *,
        width: Width = 32,
        layers: Width = 2,
        fill: Index = 0,
        lower: Width | None = None,
        omega: Omega = 1.6,
        seed: Index = 0,
        dtype: RealDtype = torch.float32,
        device: torch.device | str | None = None,
    ):
        if diagonals % 2 == 0:
            raise ValueError(
                f"StencilFactor: diagonals must be odd, as for a symmetric matrix, got {diagonals}"
            )
        self.diagonals, self.fill, of_A = diagonals, fill, diagonals // 2
        super().__init__(
            2 * of_A, of_A if lower is None else lower, width, layers, omega, seed, dtype, device
        )

    def settings(self) -> dict[str, Any]:
        own = {"diagonals": self.diagonals, "fill": self.fill, "lower": self.lower}
        return own | super().settings()

    def start(self, A: CSR) -> NetworkStart:
        """The scaled stencils of A, or of each matrix of a batch."""
        scale, v = _scale_to_unit("StencilFactor", A)
        at, n, features = self._places(A), A.shape[0], self.diagonals - 1
        x = place(take(v, at.off), at.inputs, n * features).unflatten(-1, (n, features))
        e = place(take(v, at.below), at.kept, at.pattern.nnz)
        return NetworkStart(at.pattern, scale, x, e, slots=at.outputs)

    def _places(self, A: CSR) -> _Stencils:
        return A.pattern._plan_once(_plan_stencils, self.diagonals, self.fill, self.lower)

    def _gather_outputs(self, rows: Tensor, slots: Tensor) -> Tensor:
        return take(rows, slots)

    def _slots(self, A: CSR) -> tuple[tuple[tuple[Tensor, ...], ...], SparsityPattern]:
        at = self._places(A)
        return ((at.a_slots,), (at.l_slots, at.of_a)), at.pattern


class RowFactor(PointwiseFactor):
    r"""A perceptron that predicts a factor from the sorted entries of each row: a function A -> M.

    .. math::
        M = (L L^T)^{-1}, \qquad L = D^{1/2} C \,\mathrm{diag}(u), \qquad
        c_{ij} = \hat a_{ij} + h_{r(i,j)}(x_i) \ (i > j), \qquad c_{ii} = e^{h_0(x_i)} / \omega

    on the pattern of tril(A), as `StencilFactor` for any pattern: the features x_i of row i are its entries
    in :math:`\hat A = D^{-1/2} A D^{-1/2}` below the diagonal and above it, each sorted by magnitude, and
    their sums. r(i, j) is the rank of an entry. An untrained network is SSOR(omega).

    Parameters
    ----------
    largest : number of entries on each side of the diagonal that the network reads and corrects. The others
        only take part in the sums
    width, layers, omega, seed, dtype, device : see `StencilFactor`

    Raises
    ------
    TypeError
        in a call, for anything but a CSR, such as a vector: M is ``network(A)``, not the network.
    ValueError
        in a call, for a matrix whose diagonal is not positive.

    Notes
    -----
    A must be symmetric, which is not checked. M is symmetric positive definite for all weights. Gradient:
    exact, for the weights and A's values, to any order, with the order of the entries fixed. A batch of
    matrices on one pattern is one call. Cost: about width (2 largest + (layers - 1) width + largest)
    multiplications per row, on the CPU without gradients in one compiled pass.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((20, 20)), torch.ones(400, dtype=torch.float64)
    >>> network = ls.preconditioners.RowFactor().requires_grad_(False)
    >>> ls.solvers.cg(A, b, M=network(A)).converged
    True
    """

    def __init__(
        self,
        *,
        largest: Annotated[int, at_least(1, MOST // 2 - 1)] = 8,
        width: Width = 32,
        layers: Width = 2,
        omega: Omega = 1.4,
        seed: Index = 0,
        dtype: RealDtype = torch.float32,
        device: torch.device | str | None = None,
    ):
        self.largest = largest
        super().__init__(2 * largest + 2, largest, width, layers, omega, seed, dtype, device)

    def settings(self) -> dict[str, Any]:
        return {"largest": self.largest} | super().settings()

    def start(self, A: CSR) -> NetworkStart:
        """The sorted scaled entries of A's rows, or of those of each matrix of a batch."""
        scale, v = _scale_to_unit("RowFactor", A)
        at, n, m = A.pattern._plan_once(_plan_rows, self.largest), A.shape[0], self.largest
        off = take(v, at.off)
        rank = _ranks(off.detach(), at.groups, at.starts)
        inputs = torch.where(rank < m, m * at.groups + rank, 2 * m * n)  # those at the end are dropped
        x = off.new_zeros((*off.shape[:-1], 2 * m * n + 1)).scatter(-1, inputs, off)
        sums = off.new_zeros((*off.shape[:-1], 2 * n)).index_add(-1, at.groups, off)
        x = torch.cat((x[..., :-1].unflatten(-1, (n, 2 * m)), sums.unflatten(-1, (n, 2))), -1)
        e = place(take(off, at.below), at.kept, at.pattern.nnz)
        below = rank.clamp(max=m).index_select(-1, at.below)
        slots = at.outputs + place(below, at.kept, at.pattern.nnz)
        return NetworkStart(at.pattern, scale, x, e, slots=slots)


def _plan_stencils(P: SparsityPattern, diagonals: int, fill: int, lower: int) -> _Stencils:
    row, col = _indices(P)
    of_A, a_slots = _diagonals("A", P, diagonals, "Make the network with diagonals={}")
    L = lower_pattern(fill_pattern(P, fill))
    of_L, l_slots = _diagonals("L", L, lower + 1, "Make it with lower={}", 1)
    off, below = np.flatnonzero(row != col), np.flatnonzero(col < row)
    inputs = row * (diagonals - 1) + a_slots - (col > row)
    rows_of_L, columns_of_L = _indices(L)
    outputs = rows_of_L * (lower + 2) + l_slots + (rows_of_L == columns_of_L)
    of_a = np.where(np.isin(of_L[:-1], of_A), np.searchsorted(of_A, of_L[:-1]), diagonals)
    arrays = off, inputs[off], below, find(L, row[below], col[below]), outputs
    compiled = (a.astype(to_numpy(P.col_indices).dtype) for a in (a_slots, l_slots, of_a))
    return _Stencils(L, *(torch.from_numpy(a).to(P.device) for a in (*arrays, *compiled)))


def _diagonals(name: str, P: SparsityPattern, wanted: int, remedy: str, less: int = 0) -> tuple[Any, Any]:
    """The diagonals with entries, and which of these each entry is on."""
    row, col = _indices(P)
    n = P.shape[0]
    which = np.flatnonzero(np.bincount(col - row + n - 1, minlength=1))
    if len(which) != wanted:
        again = f"{remedy.format(len(which) - less)}. " if len(which) >= 3 - less else ""
        raise ValueError(
            f"StencilFactor: {name} must have entries on {wanted} diagonals, as the network has, got "
            f"{len(which)}. {again}RowFactor accepts any pattern"
        )
    return which, np.searchsorted(which, col - row + n - 1)


def _plan_rows(P: SparsityPattern, largest: int) -> _Rows:
    row, col = _indices(P)
    off = np.flatnonzero(row != col)
    groups = 2 * row[off] + (col[off] > row[off])
    first = np.flatnonzero(np.diff(groups, prepend=-1))
    starts = np.repeat(first, np.diff(np.append(first, len(groups))))
    L = lower_pattern(P)
    rows_of_L, columns_of_L = _indices(L)
    outputs = rows_of_L * (largest + 2) + (largest + 1) * (rows_of_L == columns_of_L)
    below = np.flatnonzero(groups % 2 == 0)
    kept = find(L, row[off[below]], col[off[below]])
    return _Rows(L, *(torch.from_numpy(a).to(P.device) for a in (off, groups, starts, below, kept, outputs)))


def _indices(P: SparsityPattern) -> tuple[np.ndarray, np.ndarray]:
    row, col = (to_numpy(t).astype(np.int64) for t in (P.row_indices, P.col_indices))
    return row, col


def _ranks(v: Tensor, groups: Tensor, starts: Tensor) -> Tensor:
    """How many entries of its group are larger than each, or equal and earlier."""
    order = v.abs().argsort(dim=-1, descending=True, stable=True)
    order = order.gather(-1, groups[order].argsort(dim=-1, stable=True))
    rank = torch.arange(v.shape[-1], device=v.device) - starts[order]
    return torch.zeros_like(order).scatter(-1, order, rank)
