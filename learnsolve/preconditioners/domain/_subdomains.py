"""Overlapping subdomains of a graph, and the positions of the entries of their matrices.

Source: Karypis, Kumar, "A fast and high quality multilevel scheme for partitioning irregular graphs", SIAM J.
Sci. Comput. 20 (1998), section 2 (recursive bisection); Smith, Bjorstad, Gropp, "Domain Decomposition"
(1996), chapter 1.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch
from scipy.sparse import csgraph
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, as_numpy
from learnsolve.matrix.plain import plain_tensors
from learnsolve.ops.core.gather import place
from learnsolve.ops.core.selection import handed_out, places, trusted

_STEP = 8  # sizes are padded to multiples of this: few groups, little padding
_CORE = 64  # default number of rows of a subdomain, without its overlap
_LIMIT = 2**27  # entries of all local inverses of one matrix: 1 GiB in float64


class Subdomains(NamedTuple):
    """The plan of `AdditiveSchwarz` for one pattern. Slots are the rows of all local matrices, group by
    group: subdomains of similar size are padded to the same size, so that a group is one batch of dense
    matrices."""

    count: int
    groups: tuple[tuple[int, int], ...]  # (number of subdomains, padded size) of each
    numbers: Tensor  # indices of the subdomains, in this order
    restriction: SparsityPattern  # slots x n, one entry per slot that is not padding
    owned: Tensor  # for those entries: 1 if the subdomain owns the row, else 0
    entries: SparsityPattern  # the entry of A for each entry of a local matrix
    at: Tensor  # and its position in the concatenated local matrices
    padding: Tensor  # positions of the ones on padded diagonals
    parts: SparsityPattern  # n x count: the subdomain that owns each row

    @property
    def size(self) -> int:
        """The number of elements of all local matrices."""
        return sum(count * size * size for count, size in self.groups)

    def local_matrices(self, A: CSR, added: Tensor | None = None) -> list[Tensor]:
        """The blocks of A, one (..., count, size, size) per group, with ones on the padded diagonal, plus
        `added`, flat, (..., size)."""
        flat = place(handed_out(A.values, self.entries), self.at, self.size)
        flat = flat + torch.zeros(self.size, dtype=A.dtype, device=A.device).index_fill(0, self.padding, 1)
        sizes = [count * size * size for count, size in self.groups]
        flat = flat if added is None else flat + added
        shapes = [(*flat.shape[:-1], count, size, size) for count, size in self.groups]
        return [b.reshape(s) for b, s in zip(flat.split(sizes, -1), shapes, strict=True)]


class LocalFactors(NamedTuple):
    """An n x slots matrix of the lower triangular factors of local matrices, with rows in place."""

    pattern: SparsityPattern
    at: Tensor  # position of each entry in the concatenated local matrices


def plan_factors(slots: SparsityPattern, groups: tuple[tuple[int, int], ...]) -> LocalFactors:
    """The plan for `Subdomains.restriction` and its `groups`."""
    crow, n = as_numpy(slots.crow_indices), slots.shape[1]
    row_of = np.full(slots.shape[0], -1, dtype=np.int64)  # row of a slot; -1: padding
    row_of[np.diff(crow) > 0] = as_numpy(slots.col_indices)
    rows, columns, at, slot, number = [], [], [], 0, 0
    for count, size in groups:
        i, j = np.tril_indices(size)
        which = np.arange(count)[:, None]
        row = row_of[slot + which * size + i]
        filled = row >= 0
        rows.append(row[filled])
        columns.append((slot + which * size + j)[filled])
        at.append((number + which * size * size + i * size + j)[filled])
        slot, number = slot + count * size, number + count * size * size
    row, column = (np.concatenate(t or [row_of[:0]]) for t in (rows, columns))
    order = np.lexsort((column, row))
    starts = np.concatenate(([0], np.cumsum(np.bincount(row, minlength=n))))
    pattern = trusted(slots, starts, column[order], (n, slots.shape[0]))
    return LocalFactors(pattern, slots._tensor(np.concatenate(at or [row_of[:0]])[order]))


def plan_subdomains(P: SparsityPattern, count: int, overlap: int) -> Subdomains:
    """`count` parts by recursive bisection, extended by `overlap` layers of neighbors."""
    G = graph(P)
    return _planned(P, G, _bisected(G, count), overlap)


def plan_given(P: SparsityPattern, cores: Sequence[np.ndarray], overlap: int) -> Subdomains:
    return _planned(P, graph(P), cores, overlap)


def graph(P: SparsityPattern) -> Any:
    """Ones where rows are coupled in either direction, and on the diagonal."""
    n = P.shape[0]
    ones = np.ones(P.nnz, dtype=np.int32)
    S = scipy.sparse.csr_array((ones, as_numpy(P.col_indices), as_numpy(P.crow_indices)), shape=P.shape)
    G = scipy.sparse.csr_array(S + S.T + scipy.sparse.diags_array(np.ones(n), dtype=np.int32))
    G.data[:] = 1
    return G


def _bisected(G: Any, count: int) -> list[np.ndarray]:
    """Recursive halves along breadth-first levels from a peripheral vertex (SciPy's reverse Cuthill-McKee
    order), in proportion if `count` is odd."""
    done, todo = [], [(np.arange(G.shape[0]), G, count)] if count else []
    while todo:
        rows, G, parts = todo.pop()
        if parts == 1:
            done.append(np.sort(rows))
            continue
        order = csgraph.reverse_cuthill_mckee(G, symmetric_mode=True)
        cut = round(len(rows) * (parts // 2) / parts)
        for half, share in ((order[cut:], parts - parts // 2), (order[:cut], parts // 2)):
            todo.append((rows[half], scipy.sparse.csr_array(G[half][:, half]), share))
    return done


def _planned(P: SparsityPattern, G: Any, cores: Sequence[np.ndarray], overlap: int) -> Subdomains:
    n, count = P.shape[0], len(cores)
    sizes = np.array([len(c) for c in cores], dtype=np.int64)
    crow = np.concatenate(([0], np.cumsum(sizes)))
    rows = np.concatenate([np.asarray(c, dtype=np.int64) for c in cores]) if count else crow[:0]
    owner = np.full(n, -1)
    owner[rows[::-1]] = np.repeat(np.arange(count), sizes)[::-1]  # the first subdomain with a row owns it
    B = scipy.sparse.csr_array((np.ones(len(rows), dtype=np.int32), rows, crow), shape=(count, n))
    for _ in range(overlap):
        B = scipy.sparse.csr_array(B @ G)
        B.data[:] = 1
    B.sort_indices()
    sizes = np.diff(B.indptr).astype(np.int64)
    padded = np.maximum((sizes + _STEP - 1) // _STEP * _STEP, _STEP)
    if count == 1:
        padded = sizes
    numbers = np.lexsort((np.arange(count), padded))
    total = int((padded.astype(np.float64) ** 2).sum())
    if total > _LIMIT:
        raise ValueError(
            f"AdditiveSchwarz: the inverses of {count} subdomains of up to {sizes.max()} rows hold {total} "
            f"numbers, at most {_LIMIT} are allowed; use more subdomains, or less overlap"
        )
    B, sizes, padded = B[numbers], sizes[numbers], padded[numbers]
    group_sizes, group_counts = np.unique(padded, return_counts=True)
    first_slot = np.concatenate(([0], np.cumsum(padded)))
    first_number = np.concatenate(([0], np.cumsum(padded**2)))
    # Slots: padding gives empty rows of the restriction.
    lengths = np.stack((sizes, padded - sizes), 1).reshape(-1)
    filled = np.repeat(np.tile((1, 0), count), lengths)
    slots = trusted(P, np.concatenate(([0], np.cumsum(filled))), B.indices, (first_slot[-1], n))
    owned = owner[B.indices] == np.repeat(numbers, sizes)
    local = np.concatenate([np.arange(p - s) + s for s, p in zip(sizes, padded, strict=True)] or [sizes])
    base, width = (np.repeat(v, padded - sizes) for v in (first_number[:-1], padded))
    padding = base + local * (width + 1)
    at, entries = _entries(P, B, sizes, padded, first_number)
    ownership = np.arange(n + 1)
    return Subdomains(
        count,
        tuple((int(c), int(s)) for s, c in zip(group_sizes, group_counts, strict=True)),
        P._tensor(numbers),
        slots,
        P._tensor(owned),
        places(P, entries),
        P._tensor(at),
        P._tensor(padding),
        trusted(P, ownership, owner, (n, count)),
    )


def _entries(
    P: SparsityPattern, B: Any, sizes: np.ndarray, padded: np.ndarray, first_number: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Positions in the local matrices, and their entries of A."""
    n = P.shape[0]
    numbers = np.arange(1, P.nnz + 1)  # from 1 on: SciPy could drop a zero
    S = scipy.sparse.csr_array((numbers, as_numpy(P.col_indices), as_numpy(P.crow_indices)), shape=P.shape)
    # Row s of T is the row of A in slot s, restricted to columns in the subdomain.
    T = scipy.sparse.csr_array(S[B.indices])
    T.sort_indices()
    subdomain = np.repeat(np.repeat(np.arange(len(sizes)), sizes), np.diff(T.indptr))
    row = np.repeat(np.concatenate([np.arange(s) for s in sizes] or [sizes]), np.diff(T.indptr))
    # B's entries are sorted by subdomain and column: a search finds the local column.
    keys = np.repeat(np.arange(len(sizes)), sizes).astype(np.int64) * n + B.indices
    wanted = subdomain.astype(np.int64) * n + T.indices
    found = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
    there = keys[found] == wanted if len(keys) else np.zeros(0, dtype=bool)
    found, subdomain, row = found[there], subdomain[there], row[there]
    column = found - np.concatenate(([0], np.cumsum(sizes)))[subdomain]
    return first_number[subdomain] + row * padded[subdomain] + column, T.data[there] - 1


def sizes_of(plan: Subdomains) -> np.ndarray:
    """The number of rows of each subdomain, in the user's order."""
    filled = as_numpy(plan.restriction.crow_indices)
    padded = np.repeat([size for _, size in plan.groups], [count for count, _ in plan.groups])
    sizes = np.diff(filled[np.concatenate(([0], np.cumsum(padded))).astype(np.int64)])
    found = np.empty_like(sizes, dtype=np.int64)
    found[as_numpy(plan.numbers)] = sizes
    return found


def plan_of(A: CSR, subdomains: Any, n_subdomains: int | None, overlap: int) -> Subdomains:
    """The plan for the arguments of `AdditiveSchwarz`, cached with A's pattern."""
    checks.matrix("AdditiveSchwarz", "A", A)
    checks.square("AdditiveSchwarz", "A", A.shape)
    overlap = checks.integer("AdditiveSchwarz", "overlap", overlap, 0)
    n = A.shape[0]
    if subdomains is None:
        count = -(-n // _CORE) if n_subdomains is None else n_subdomains
        count = checks.integer("AdditiveSchwarz", "n_subdomains", count, min(n, 1))
        if count > n:
            raise ValueError(
                f"AdditiveSchwarz: n_subdomains must be at most A.shape[0] = {n}, got {n_subdomains}"
            )
        return A.pattern._planned(plan_subdomains, count, overlap)
    if n_subdomains is not None:
        raise ValueError("AdditiveSchwarz: subdomains and n_subdomains were both given; leave one out")
    try:
        subdomains = list(subdomains)
    except TypeError:
        raise TypeError(
            "AdditiveSchwarz: subdomains must be a sequence with the rows of each, got "
            f"{type(subdomains).__name__}; their number is n_subdomains={subdomains}"
        ) from None
    cores = [_rows(rows, number, n) for number, rows in enumerate(subdomains)]
    left_out = np.ones(n, dtype=bool)
    for rows in cores:
        left_out[rows] = False
    if left_out.any():
        raise ValueError(
            f"AdditiveSchwarz: subdomains must hold every row, row {left_out.argmax()} is in none; M would "
            "be singular"
        )
    if torch.compiler.is_dynamo_compiling():
        with plain_tensors():
            return plan_given(A.pattern, cores, overlap)
    return A.pattern._planned(plan_given, _Cores(cores), overlap)


class _Cores(list):
    """The row indices of subdomains."""

    def __str__(self) -> str:
        known = hashlib.sha256()
        for rows in self:
            known.update(len(rows).to_bytes(8, "little") + rows.tobytes())
        return known.hexdigest()


def _rows(rows: Any, number: int, n: int) -> np.ndarray:
    a = as_numpy(rows) if isinstance(rows, Tensor) else np.asarray(rows)
    if a.ndim != 1 or a.size == 0 or a.dtype.kind not in "iu":
        raise ValueError(
            f"AdditiveSchwarz: subdomains[{number}] must be a list of one or more integers, got {a.dtype} of "
            f"shape {a.shape}"
        )
    if a.min() < 0 or a.max() >= n:
        raise ValueError(
            f"AdditiveSchwarz: subdomains[{number}] must hold rows from 0 to {n - 1}, got {a.min()} "
            f"to {a.max()}"
        )
    return np.unique(a.astype(np.int64))
