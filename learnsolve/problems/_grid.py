"""Matrices of one stencil on a structured grid, with zeros beyond its boundary or periodic, and what grid
problems and meshes share: checks of coefficients, and structure that a problem analyzes once and caches."""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from learnsolve.arguments import Rule, check_choice
from learnsolve.matrix.cache import makes_plain_tensors
from learnsolve.matrix.checks import real_tensor
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, check_device, sort_triples
from learnsolve.ops.indexing import permute_values
from learnsolve.ops.products import product
from learnsolve.ops.stencils import stencil_entries


@dataclass(frozen=True)
class MatrixProperties:
    """Properties of every matrix of a problem.

    A fact that depends on the arguments or on the data is None: it may be true or false.

    Attributes
    ----------
    formula : the equation or the matrix, in one line
    symmetric : A = A^T, bit for bit
    positive_definite : x^T A x > 0 for all x != 0
    positive_semidefinite : x^T A x >= 0 for all x
    null_space : description of the vectors with A x = 0, or None if there are none or they are not known
    eigenvalues : takes the arguments of the problem and returns all eigenvalues in ascending order (float64,
        on the CPU). Raises a ValueError for arguments without a known formula
    source : reference for the discretization or the data

    Examples
    --------
    >>> import learnsolve as ls
    >>> facts = ls.problems.PROPERTIES["poisson"]
    >>> facts.positive_semidefinite
    True
    >>> facts.eigenvalues((3,))
    tensor([0.5858, 2.0000, 3.4142], dtype=torch.float64)
    """

    formula: str
    symmetric: bool | None
    positive_definite: bool | None
    positive_semidefinite: bool | None
    source: str
    null_space: str | None = None
    eigenvalues: Callable[..., Tensor] | None = None


def coefficient(*allowed: int, vector: bool = False, positive: bool = False) -> Rule:
    """A coefficient on a grid of so many axes: of `dimensions`, or by default of all. `vector`: an axis of
    components precedes them."""
    numbers = f"{', '.join(map(str, allowed[:-1]))} or {allowed[-1]}"
    first = "an axis of components and " if vector else ""

    def check(function: str, name: str, value: Tensor, given: dict[str, Any]) -> Tensor:
        d = given.get("dimensions")
        if d is None and (d := value.dim() - vector) not in allowed:
            raise ValueError(
                f"{function}: {name} must have {first}{numbers} axes, got shape {tuple(value.shape)}. "
                "For a batch, pass dimensions, the number of axes of the grid"
            )
        check_choice(function, "dimensions", d, allowed)
        if value.dim() < d + vector or min(value.shape[-d:]) < 1 or (vector and value.shape[-d - 1] != d):
            shape = ", ".join(["...", *([str(d)] if vector else []), *("nx", "ny", "nz")[:d]])
            raise ValueError(
                f"{function}: {name} must have shape ({shape}), with a grid point at least, got "
                f"{tuple(value.shape)}"
            )
        return check_sign(function, name, value, zero=False) if positive else value

    return real_tensor(check, of="dimensions")


def _has_numbers(value: Tensor) -> bool:
    """Only plain CPU tensors are checked: checking a CUDA tensor would wait for the device, and the tensors
    of `torch.func` and `torch.compile` have no values to check."""
    return not (
        value.device.type != "cpu"
        or torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
    )


def check_sign(function: str, name: str, coefficient: Tensor, *, zero: bool) -> Tensor:
    """`coefficient`, every entry of which must be finite and positive, or zero if `zero`, where
    `_has_numbers`."""
    if not _has_numbers(coefficient):
        return coefficient
    value = coefficient.detach()
    bad = ~((value >= 0 if zero else value > 0) & (value < math.inf))
    if bool(bad.any()):
        at = tuple(bad.nonzero()[0].tolist())
        rule = "finite and not negative" if zero else "positive and finite"
        raise ValueError(
            f"{function}: {name} must be {rule}, got {name}[{', '.join(map(str, at))}] = {value[at].item()}. "
            "An unconstrained parameter can go through torch.exp or softplus"
        )
    return coefficient


def check_definite(function: str, name: str, tensors: Tensor) -> Tensor:
    """`tensors`, where matrices of the last two axes must be symmetric up to rounding, finite and positive
    definite, where `_has_numbers`."""
    if not _has_numbers(tensors):
        return tensors
    value = rest = tensors.detach()
    rounding = 512 * torch.finfo(value.dtype).eps * value.abs().amax((-2, -1), keepdim=True)
    wrong = ((value - value.mT).abs() > rounding).flatten(-2).any(-1)  # not for NaN
    bad = ~value.isfinite().flatten(-2).all(-1)
    while rest.shape[-1]:  # Gaussian elimination, whose pivots are positive
        pivot = rest[..., :1, :1]
        bad |= ~(pivot > 0)[..., 0, 0]
        rest = rest[..., 1:, 1:] - rest[..., 1:, :1] * (rest[..., :1, 1:] / pivot)
    for found, rule, remedy in (
        (wrong, "symmetric", f"Use ({name} + {name}.mT) / 2"),
        (bad, "finite and positive definite", "L @ L.mT is so for a triangular L with a positive diagonal"),
    ):
        if bool(found.any()):
            at = tuple(found.nonzero()[0].tolist())
            raise ValueError(
                f"{function}: {name} must be {rule} in each cell, got {name}[{', '.join(map(str, at))}] = "
                f"{value[at].tolist()}. {remedy}"
            )
    return tensors


INT32_MAX = torch.iinfo(torch.int32).max


def grid_sizes(shape: int | Sequence[int]) -> tuple[int, ...]:
    return tuple(operator.index(s) for s in (shape if isinstance(shape, Sequence) else (shape,)))


def sizes(*dimensions: int) -> Rule:
    """The shape of a grid of so many axes, as a tuple."""
    allowed = " or ".join(map(str, dimensions))

    def check(function: str, name: str, value: Any) -> tuple[int, ...]:
        try:
            points = grid_sizes(value)
        except TypeError:
            raise TypeError(f"{function}: {name} must be an int or a tuple of ints, got {value!r}") from None
        if len(points) not in dimensions:
            raise ValueError(f"{function}: {name} must have {allowed} dimensions, got {value!r}")
        if min(points) < 1:
            raise ValueError(
                f"{function}: {name} must have at least one grid point per dimension, got {value!r}"
            )
        return points

    return Rule(check, f"{allowed} sizes of at least 1", ((), (1, 1, 1, 1), (0,) * dimensions[0], "ab", 2.5))


def row_range(of: str) -> Rule:
    """(lo, hi) of the grid of another argument, its shape or a coefficient."""

    def check(function: str, name: str, value: Any, given: dict[str, Any]) -> tuple[int, int]:
        try:
            lo, hi = (operator.index(i) for i in value)
        except (TypeError, ValueError):
            raise TypeError(f"{function}: {name} must be two ints (lo, hi), got {value!r}") from None
        grid = given[of]
        n = grid.numel() if isinstance(grid, Tensor) else math.prod(grid_sizes(grid))
        if not 0 <= lo <= hi <= n:
            raise ValueError(f"{function}: {name} must be (lo, hi) with 0 <= lo <= hi <= {n}, got {value!r}")
        return lo, hi

    return Rule(check, f"(lo, hi) within the rows of {of}", ((-1, 1), (2, 1), (0, 10**9), 3, (1, 2, 3)), of)


def index_dtype(rows: int, nnz: int) -> torch.dtype:
    """The narrowest index type that can count rows and entries: int32 halves the bytes of int64."""
    return torch.int32 if max(rows, nnz) <= INT32_MAX else torch.int64


def check_rows(function: str, rows: Any, n: int) -> tuple[int, int]:
    """`rows`, (lo, hi) of a matrix of n rows."""
    try:
        lo, hi = (operator.index(i) for i in rows)
    except (TypeError, ValueError):
        raise TypeError(f"{function}: rows must be two ints (lo, hi), got {rows!r}") from None
    if not 0 <= lo <= hi <= n:
        raise ValueError(f"{function}: rows must be (lo, hi) with 0 <= lo <= hi <= {n}, got {rows!r}")
    return lo, hi


def neighbors(
    offsets: np.ndarray, shape: tuple[int, ...], lo: int, hi: int, periodic: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the points at these offsets (K, d) from the points lo to hi - 1, and whether they exist:
    both (hi - lo, K)."""
    points = np.unravel_index(np.arange(lo, hi), shape)
    inside = np.ones((hi - lo, len(offsets)), dtype=bool)
    numbers = np.repeat(np.arange(lo, hi)[:, None], len(offsets), 1)
    for axis, (at, size) in enumerate(zip(points, shape, strict=True)):
        moved = at[:, None] + offsets[:, axis]
        if periodic:
            moved %= size
        inside &= (moved >= 0) & (moved < size)
        numbers += (moved - at[:, None]) * math.prod(shape[axis + 1 :])
    return numbers, inside


def pattern_of_rows(
    numbers: np.ndarray, inside: np.ndarray, n: int, device: torch.device | str | None
) -> SparsityPattern:
    """Rows of a matrix with n columns, from their `neighbors` at ascending offsets."""
    index = index_dtype(n, int(inside.sum()))
    crow = torch.from_numpy(np.concatenate(([0], inside.sum(1).cumsum()))).to(device, index)
    col = torch.from_numpy(numbers[inside]).to(device, index)
    return SparsityPattern._construct(crow, col, (len(numbers), n))


@makes_plain_tensors
def stencil_matrix(
    stencil: np.ndarray,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device | str | None,
    periodic: bool = False,
    rows: tuple[int, int] | None = None,
) -> CSR:
    """The matrix with A[i, i + o] = stencil[o + 1], o in {-1, 0, 1}^d. Zeros are not stored. Periodic
    axes have at least 3 points. `rows`: only the rows lo to hi - 1."""
    check_device("problems", device)
    offsets = np.argwhere(stencil != 0) - 1
    n = math.prod(shape)
    if rows is not None:
        numbers, inside = neighbors(offsets, shape, *rows, periodic)
        each = np.broadcast_to(stencil[stencil != 0], inside.shape)
        if periodic:  # near the end of an axis columns do not ascend with the offsets
            order = numbers.argsort(1)
            numbers, each = (np.take_along_axis(a, order, 1) for a in (numbers, each))
        values = torch.from_numpy(each[inside]).to(device, dtype)
        return CSR(values, pattern_of_rows(numbers, inside, n, device))
    row, columns, place = stencil_entries(offsets.tolist(), (periodic,) * len(shape), shape)
    index = index_dtype(n, len(row))
    crow = torch.from_numpy(np.concatenate(([0], np.bincount(row, minlength=n).cumsum()))).to(index)
    col = torch.from_numpy(columns).to(index)
    values = torch.from_numpy(stencil[stencil != 0]).to(dtype)[torch.from_numpy(place)]
    return CSR(values.to(device), SparsityPattern._construct(crow.to(device), col.to(device), (n, n)))


# Angles of the eigenvectors of a symmetric stencil (b, a, b), whose eigenvalues are a + 2 b cos theta_k: by
# what is beyond the ends of a line of n points.
_ANGLES: dict[str, Callable[[int], Tensor]] = {
    "dirichlet": lambda n: torch.arange(1, n + 1, dtype=torch.float64) * (math.pi / (n + 1)),
    "half": lambda n: torch.arange(1, n + 1, dtype=torch.float64) * (math.pi / n),  # zero half a step outside
    "periodic": lambda n: torch.arange(n, dtype=torch.float64) * (2 * math.pi / n),
}

# (b, a, divisor) of a stencil (b, a, b) / divisor: integers, so that terms cancel to exactly zero.
IDENTITY = (0, 6, 6)
LINEAR = (1, 4, 6)  # the mass matrix of linear elements


class Separable(NamedTuple):
    """factor sum_a scales[a] K_a prod_{b != a} M_b + shift, with K = (-1, 2, -1) along one axis, M along the
    others. The matrices along an axis share their eigenvectors."""

    sizes: tuple[int, ...]
    scales: tuple[float, ...] = (1.0, 1.0, 1.0)
    mass: tuple[int, int, int] = IDENTITY
    ends: Literal["dirichlet", "half", "periodic"] = "dirichlet"
    factor: float = 1.0
    shift: complex = 0.0

    def stencil(self) -> np.ndarray:
        """Of factor 1, without the shift and between the ends."""
        d, (side, center, divisor) = len(self.sizes), self.mass
        K, M = np.array([-1.0, 2.0, -1.0]), np.array([side, center, side], dtype=np.float64)
        terms = [
            scale * reduce(np.multiply.outer, [K if b == a else M for b in range(d)])
            for a, scale in enumerate(self.scales[:d])
        ]
        return reduce(np.add, terms) / divisor ** (d - 1)

    def eigenvalues(self) -> Tensor:
        """Ascending, float64."""
        side, center, divisor = self.mass
        angles = [_ANGLES[self.ends](n) for n in self.sizes]
        lines = [(center + 2 * side * torch.cos(t)) / divisor for t in angles]
        total = torch.zeros(())
        for a, t in enumerate(angles):
            # 2 - 2 cos t = 4 sin^2(t / 2), without the cancellation for small t.
            term = [*lines[:a], self.scales[a] * (4 * torch.sin(t / 2) ** 2), *lines[a + 1 :]]
            total = total + reduce(lambda product, line: product.unsqueeze(-1) * line, term)
        return self.factor * total.flatten().sort().values + self.shift


class SymmetricPlan(NamedTuple):
    """A symmetric matrix from its diagonal d (n) and the entries c (u) above it.

    The values are a permutation of (d, c, c), so both triangles are bitwise identical, and the gradient is a
    permutation as well, without sums.
    """

    pattern: SparsityPattern
    forward: Tensor
    backward: Tensor

    def matrix(self, diagonal: Tensor, above: Tensor) -> CSR:
        """For d of shape (..., n) and c of shape (..., u)."""
        parts = torch.cat((diagonal, above, above), -1)
        return CSR(permute_values(parts, self.forward, self.backward), self.pattern)


def symmetric_plan(n: int, rows: np.ndarray, columns: np.ndarray, device: torch.device) -> SymmetricPlan:
    """For the positions (rows[e], columns[e]) above the diagonal, each given once, and the whole diagonal."""
    nnz = n + 2 * len(rows)
    index = index_dtype(n, nnz)
    every = np.arange(n)
    i, j = np.concatenate((every, rows, columns)), np.concatenate((every, columns, rows))
    crow, col, forward, _ = sort_triples(i, j, (n, n))
    backward = np.empty_like(forward)
    backward[forward] = np.arange(nnz)
    crow, col = (torch.from_numpy(a).to(device, index) for a in (crow, col))
    forward, backward = (torch.from_numpy(a).to(device) for a in (forward, backward))
    return SymmetricPlan(SparsityPattern._construct(crow, col, (n, n)), forward, backward)


# Few: a pattern of 10^6 cells and the caches of its operations take about 100 MB.
@makes_plain_tensors
@lru_cache(maxsize=8)
def grid_plan(
    shape: tuple[int, ...], device: torch.device, offsets: tuple[tuple[int, ...], ...] | None = None
) -> SymmetricPlan:
    """Each point of a grid with those at these offsets, whose first entry but zeros is positive. Default: one
    step along each axis. Couplings offset by offset, each in the order of its first points."""
    number = np.arange(math.prod(shape)).reshape(shape)
    lower, upper = [], []
    for offset in offsets or np.eye(len(shape), dtype=int).tolist():
        steps = list(zip(offset, shape, strict=True))
        lower.append(number[tuple(slice(max(-o, 0), n - max(o, 0)) for o, n in steps)].ravel())
        upper.append(number[tuple(slice(max(o, 0), n - max(-o, 0)) for o, n in steps)].ravel())
    return symmetric_plan(number.size, np.concatenate(lower), np.concatenate(upper), device)


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
        """The matrix for coefficients (..., elements). `shift` is added to the diagonal."""
        weights = weights.to(coefficients.dtype)
        sums = product(weights, coefficients.unsqueeze(-1), self.places, False).squeeze(-1)
        n = self.plan.pattern.shape[0]
        return self.plan.matrix(sums[..., :n] + shift, sums[..., n:])


def element_plan(
    elements: np.ndarray, n: int, device: torch.device, keep: np.ndarray | None = None
) -> ElementPlan:
    """For elements (e, k): the rows of the matrix that the k nodes of each element belong to, all different,
    or -1 for a node without a row, whose value is zero. `keep`, (k, k): where element matrices have
    entries."""
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
    crow, col, order, _ = sort_triples(rows, sources, (n + len(pairs), count))
    crow, col = (torch.from_numpy(a).to(device, index) for a in (crow, col))
    places = SparsityPattern._construct(crow, col, (n + len(pairs), count))
    plan = symmetric_plan(n, pairs // n, pairs % n, device)
    return ElementPlan(plan, places, torch.from_numpy(local[order]).to(device))
