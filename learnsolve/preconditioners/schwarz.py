"""Additive Schwarz: the sum of solutions on overlapping subdomains of a graph."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch
from scipy.sparse import csgraph
from torch import Tensor

from learnsolve.arguments import Index
from learnsolve.matrix import checks
from learnsolve.matrix.cache import makes_plain_tensors, plain_tensors
from learnsolve.matrix.checks import RealSystem, SquareMatrix, check_arguments, convert_matrix
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, to_numpy
from learnsolve.ops.blocks import block_diag
from learnsolve.ops.indexing import construct_pattern, place, places, repeat_values, take
from learnsolve.ops.products import product
from learnsolve.ops.sparse_products import galerkin
from learnsolve.ops.structure import symmetry
from learnsolve.preconditioners.base import Preconditioner, check_numbers
from learnsolve.preconditioners.direct import DirectSolver, cholesky, inverses

# Overlapping subdomains of a graph, and the positions of the entries of their matrices.
#
# Source: Karypis, Kumar, "A fast and high quality multilevel scheme for partitioning irregular graphs",
# SIAM J. Sci. Comput. 20 (1998), section 2 (recursive bisection); Smith, Bjorstad, Gropp, "Domain
# Decomposition" (1996), chapter 1.


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
        flat = place(repeat_values(A.values, self.entries), self.at, self.size)
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
    crow, n = to_numpy(slots.crow_indices), slots.shape[1]
    row_of = np.full(slots.shape[0], -1, dtype=np.int64)  # row of a slot; -1: padding
    row_of[np.diff(crow) > 0] = to_numpy(slots.col_indices)
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
    pattern = construct_pattern(slots, starts, column[order], (n, slots.shape[0]))
    return LocalFactors(pattern, slots._tensor(np.concatenate(at or [row_of[:0]])[order]))


def plan_subdomains(P: SparsityPattern, count: int, overlap: int) -> Subdomains:
    """`count` parts by recursive bisection, extended by `overlap` layers of neighbors."""
    G = graph(P)
    return _plan_overlap(P, G, _bisect(G, count), overlap)


def plan_explicit(P: SparsityPattern, cores: Sequence[np.ndarray], overlap: int) -> Subdomains:
    return _plan_overlap(P, graph(P), cores, overlap)


def graph(P: SparsityPattern) -> Any:
    """Ones where rows are coupled in either direction, and on the diagonal."""
    n = P.shape[0]
    ones = np.ones(P.nnz, dtype=np.int32)
    S = scipy.sparse.csr_array((ones, to_numpy(P.col_indices), to_numpy(P.crow_indices)), shape=P.shape)
    G = scipy.sparse.csr_array(S + S.T + scipy.sparse.diags_array(np.ones(n), dtype=np.int32))
    G.data[:] = 1
    return G


def _bisect(G: Any, count: int) -> list[np.ndarray]:
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


def _plan_overlap(P: SparsityPattern, G: object, cores: Sequence[np.ndarray], overlap: int) -> Subdomains:
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
            f"numbers, at most {_LIMIT} are allowed. Use more subdomains, or less overlap"
        )
    B, sizes, padded = B[numbers], sizes[numbers], padded[numbers]
    group_sizes, group_counts = np.unique(padded, return_counts=True)
    first_slot = np.concatenate(([0], np.cumsum(padded)))
    first_number = np.concatenate(([0], np.cumsum(padded**2)))
    # Slots: padding gives empty rows of the restriction.
    lengths = np.stack((sizes, padded - sizes), 1).reshape(-1)
    filled = np.repeat(np.tile((1, 0), count), lengths)
    slots = construct_pattern(P, np.concatenate(([0], np.cumsum(filled))), B.indices, (first_slot[-1], n))
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
        construct_pattern(P, ownership, owner, (n, count)),
    )


def _entries(
    P: SparsityPattern, B: Any, sizes: np.ndarray, padded: np.ndarray, first_number: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Positions in the local matrices, and their entries of A."""
    n = P.shape[0]
    numbers = np.arange(1, P.nnz + 1)  # from 1 on: SciPy could drop a zero
    S = scipy.sparse.csr_array((numbers, to_numpy(P.col_indices), to_numpy(P.crow_indices)), shape=P.shape)
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


def subdomain_sizes(plan: Subdomains) -> np.ndarray:
    """The number of rows of each subdomain, in the user's order."""
    filled = to_numpy(plan.restriction.crow_indices)
    padded = np.repeat([size for _, size in plan.groups], [count for count, _ in plan.groups])
    sizes = np.diff(filled[np.concatenate(([0], np.cumsum(padded))).astype(np.int64)])
    found = np.empty_like(sizes, dtype=np.int64)
    found[to_numpy(plan.numbers)] = sizes
    return found


def choose_plan(A: CSR, subdomains: Any, n_subdomains: int | None, overlap: int) -> Subdomains:
    """The plan for the arguments of `AdditiveSchwarz`, cached with A's pattern."""
    n = A.shape[0]
    if subdomains is None:
        count = -(-n // _CORE) if n_subdomains is None else n_subdomains
        checks.integer("AdditiveSchwarz", "n_subdomains", count, min(n, 1), n)
        return A.pattern._plan_once(plan_subdomains, count, overlap)
    if n_subdomains is not None:
        raise ValueError("AdditiveSchwarz: subdomains and n_subdomains were both given. Remove one")
    try:
        subdomains = list(subdomains)
    except TypeError:
        raise TypeError(
            "AdditiveSchwarz: subdomains must be a sequence with the rows of each, got "
            f"{type(subdomains).__name__}. To set their number pass n_subdomains={subdomains}"
        ) from None
    cores = [_rows(rows, number, n) for number, rows in enumerate(subdomains)]
    left_out = np.ones(n, dtype=bool)
    for rows in cores:
        left_out[rows] = False
    if left_out.any():
        raise ValueError(
            f"AdditiveSchwarz: subdomains must hold every row, row {left_out.argmax()} is in none. Otherwise "
            "M is singular"
        )
    if torch.compiler.is_dynamo_compiling():
        with plain_tensors():
            return plan_explicit(A.pattern, cores, overlap)
    return A.pattern._plan_once(plan_explicit, _Cores(cores), overlap)


class _Cores(list):
    """The row indices of subdomains."""

    def __str__(self) -> str:
        known = hashlib.sha256()
        for rows in self:
            known.update(len(rows).to_bytes(8, "little") + rows.tobytes())
        return known.hexdigest()


def _rows(rows: object, number: int, n: int) -> np.ndarray:
    a = to_numpy(rows) if isinstance(rows, Tensor) else np.asarray(rows)
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


# Interfaces of overlapping subdomains, and the positions of interface values in the local matrices.
#
# The rows of all local matrices, subdomain by subdomain in the order of `AdditiveSchwarz`, each in
# ascending order, are the rows of one block-diagonal matrix L, which is added to the local matrices.


@makes_plain_tensors
@check_arguments
def interface_pattern(
    A: SquareMatrix,
    subdomains: Sequence[object] | None = None,
    *,
    n_subdomains: int | None = None,
    overlap: Index = 1,
) -> SparsityPattern:
    r"""The pattern of interface values of `AdditiveSchwarz`, with one block per subdomain.

    A row of a subdomain is on its interface if it is coupled, in the graph of A + A^T, with a row outside.
    The entries are (i, j) for two coupled interface rows of the same subdomain, and i = j.

    Parameters
    ----------
    A, subdomains, n_subdomains, overlap : see `AdditiveSchwarz`

    Returns
    -------
    SparsityPattern, shape (N, N), N the sum of the sizes of the subdomains with their overlap: rows of
    subdomain 0 in ascending order, then of 1, and so on. `AdditiveSchwarz.rows` has their indices in A

    Raises
    ------
    ValueError, TypeError
        see `AdditiveSchwarz`.

    Notes
    -----
    Cost: O(nnz + N), on the host. Patterns for the same arguments are equal, but not the same object.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((6,))
    >>> P = ls.preconditioners.learned.interface_pattern(A, [[0, 1, 2], [3, 4, 5]])
    >>> P.row_indices.tolist()  # 0 to 3 and 2 to 5: the last row of the first, the first of the second
    [3, 4]
    >>> robin = torch.tensor([-0.5, -0.5], dtype=torch.float64, requires_grad=True)
    >>> M = ls.preconditioners.AdditiveSchwarz(A, [[0, 1, 2], [3, 4, 5]], local=ls.CSR(robin, P))
    >>> M(torch.ones(6, dtype=torch.float64)).sum().backward()
    >>> robin.grad.shape
    torch.Size([2])
    """
    plan = choose_plan(A, subdomains, n_subdomains, overlap)
    sizes, rows = subdomain_sizes(plan), subdomain_rows(plan)
    n, total = A.shape[0], len(rows)
    which = np.repeat(np.arange(len(sizes)), sizes)  # subdomain of each local row
    at = np.arange(total + 1)
    B = scipy.sparse.csr_array((np.ones(total, dtype=np.int32), rows, at), shape=(total, n))
    coupled = scipy.sparse.coo_array(B @ graph(A.pattern))  # local rows x rows of A
    # Sorted by subdomain and row: a search finds the local row of a column, if the subdomain has it.
    keys = which.astype(np.int64) * n + rows
    wanted = which[coupled.row].astype(np.int64) * n + coupled.col
    j = np.minimum(np.searchsorted(keys, wanted), max(total - 1, 0))
    inside = keys[j] == wanted
    interface = np.bincount(coupled.row, ~inside, minlength=total) > 0
    keep = inside & interface[coupled.row] & interface[j]
    i, j = coupled.row[keep], j[keep]
    order = np.lexsort((j, i))
    starts = np.concatenate(([0], np.cumsum(np.bincount(i, minlength=total))))
    return construct_pattern(A.pattern, starts, j[order], (total, total))


def subdomain_rows(plan: Subdomains) -> np.ndarray:
    """The rows of A of the local rows, in the order of the subdomains."""
    sizes, numbers = subdomain_sizes(plan), to_numpy(plan.numbers)
    rows = to_numpy(plan.restriction.col_indices).astype(np.int64)  # in the order of the plan
    return rows[np.argsort(np.repeat(numbers, sizes[numbers]), kind="stable")]


def added(L: CSR, plan: Subdomains) -> Tensor:
    """The values of L at their positions in the concatenated local matrices: (..., plan.size)."""
    (at,) = plan.restriction._plan_once(
        _places, L.pattern, plan.groups, tuple(to_numpy(plan.numbers).tolist())
    )
    return place(L.values, at, plan.size)


def _places(
    slots: SparsityPattern, P: SparsityPattern, groups: tuple[tuple[int, int], ...], numbers: tuple[int, ...]
) -> tuple[Tensor]:
    padded = np.repeat([size for _, size in groups], [count for count, _ in groups]).astype(np.int64)
    starts = np.concatenate(([0], np.cumsum(padded)))
    sizes, first, width = (np.empty(len(numbers), dtype=np.int64) for _ in range(3))
    order = np.asarray(numbers, dtype=np.int64)
    sizes[order] = np.diff(to_numpy(slots.crow_indices)[starts])
    first[order], width[order] = np.concatenate(([0], np.cumsum(padded**2)))[:-1], padded
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    i, j = to_numpy(P.row_indices).astype(np.int64), to_numpy(P.col_indices).astype(np.int64)
    k = np.searchsorted(offsets, i, side="right") - 1
    wrong = (j < offsets[k]) | (j >= offsets[k + 1])
    if wrong.any():
        e = int(wrong.argmax())
        raise ValueError(
            f"AdditiveSchwarz: local must be block diagonal, one block per subdomain, but its entry ({i[e]}, "
            f"{j[e]}) leaves the block of rows {offsets[k[e]]} to {offsets[k[e] + 1] - 1}. See M.rows"
        )
    return (slots._tensor(first[k] + (i - offsets[k]) * width[k] + (j - offsets[k])),)


# Additive Schwarz: the sum of solutions on overlapping subdomains.
#
# Source: Smith, Bjorstad, Gropp, "Domain Decomposition" (1996), chapters 1 and 2; Cai, Sarkis, "A restricted
# additive Schwarz preconditioner for general sparse linear systems", SIAM J. Sci. Comput. 21 (1999),
# doi:10.1137/S106482759732678X; St-Cyr, Gander, Thomas, "Optimized multiplicative, additive, and restricted
# additive Schwarz preconditioning", SIAM J. Sci. Comput. 29 (2007), doi:10.1137/060652610 (Robin values);
# Taghibakhshi et al., "Learning interface conditions in domain decomposition solvers", NeurIPS 2022, arXiv
# 2205.09833 (learned values).


class AdditiveSchwarz(Preconditioner):
    r"""The sum of local solves on overlapping subdomains: linear.

    .. math::
        M = \sum_i \tilde R_i^T (A_i + L_i)^{-1} R_i + P_0 (P_0^T A P_0)^{-1} P_0^T, \quad A_i = R_i A R_i^T

    R_i restricts to the rows of subdomain i. Column i of P_0 is one on the rows that it owns.

    Parameters
    ----------
    A : CSR, shape (n, n), float32 or float64. Its values may have batch axes
    subdomains : integer arrays, the rows of each. The first with a row owns it. Default: graph bisection
    n_subdomains : int, 1 to n, the number of parts. Default: n / 64, rounded up
    overlap : layers of neighbors in the graph of A + A^T by which subdomains are extended
    restricted : True (RAS): rows owned by others are zero in :math:`\tilde R_i`; "symmetric": also in R_i
    local : the L_i, default zero: a block-diagonal CSR, (N, N), whose rows are `rows`, or a sequence of
        (s_i, s_i) CSRs or dense tensors
    coarse : bool, whether to add the second term
    symmetric : bool, whether A is symmetric. Default: determined from the values (not under `torch.compile`)

    Attributes
    ----------
    sizes : tuple of int, the sizes of the subdomains with overlap. N is their sum
    rows : int64 Tensor, shape (N,), the rows of subdomain 0 in ascending order, then of 1, ...

    Raises
    ------
    ValueError, TypeError, NotImplementedError
        if A is not finite, a local or coarse matrix is singular (named), a row is in no subdomain, or
        inverses have more than 2^27 entries, if a type is wrong, or for CUDA tensors.

    Notes
    -----
    Gradient: exact, for r, A and `local`, to any order. Cost: 2 s_i^3 flops, then 2 s_i^2 per column.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> M = ls.preconditioners.AdditiveSchwarz(ls.problems.poisson((32, 32)), n_subdomains=16, coarse=True)
    >>> M.symmetric
    True
    """

    def __init__(
        self,
        A: RealSystem,
        subdomains: Sequence[object] | None = None,
        *,
        n_subdomains: int | None = None,
        overlap: Index = 1,
        restricted: bool | str = False,
        coarse: bool = False,
        local: CSR | Sequence[Any] | None = None,
        symmetric: bool | None = None,
    ):
        name = "AdditiveSchwarz"
        super().__init__(A)
        check_numbers(name, A)
        if restricted != "symmetric":
            checks.flag(name, "restricted", restricted)
        self.plan = plan = choose_plan(A, subdomains, n_subdomains, overlap)
        L = None if local is None else self._local(A, local)
        self.inverses = self._inverses(A, L)
        ones = torch.ones(plan.restriction.nnz, dtype=A.dtype, device=A.device)
        owned = plan.owned.to(A.dtype) if restricted else ones
        self._into, self._out = owned if restricted == "symmetric" else ones, owned
        self._parts = CSR(torch.ones(A.shape[0], dtype=A.dtype, device=A.device), plan.parts)
        self._coarse = None
        if coarse:
            self._coarse = DirectSolver(name, galerkin(self._parts, A), False, "Remove coarse=True")
        overlapping = plan.restriction.nnz > A.shape[0]
        symmetric = symmetry(name, A, symmetric) and (L is None or symmetry(name, L, symmetric))
        self.symmetric = symmetric and not (restricted is True and overlapping)
        self._restricted = restricted is not False and overlapping

    def _local(self, A: CSR, local: CSR | Sequence[Any]) -> CSR:
        """`local` as one block-diagonal CSR."""
        name, sizes = "AdditiveSchwarz", self.sizes
        L: Any = convert_matrix(local)
        if isinstance(L, (list, tuple)):
            if len(L) != len(sizes):
                raise ValueError(
                    f"{name}: local must have one matrix for each of {len(sizes)} subdomains, got {len(L)}"
                )
            blocks = [convert_matrix(block) for block in L]
            for i, (block, size) in enumerate(zip(blocks, sizes, strict=True)):
                checks.matrix(name, f"local[{i}]", block)
                if block.shape != (size, size):
                    raise ValueError(
                        f"{name}: local[{i}] must have shape ({size}, {size}), the rows of the subdomain "
                        f"with its overlap, got {tuple(block.shape)}"
                    )
            L = block_diag(blocks)
        checks.matrix(name, "local", L)
        total = sum(sizes)
        if L.shape != (total, total):
            raise ValueError(
                f"{name}: local must have shape ({total}, {total}), the rows of all subdomains with their "
                f"overlap, got {tuple(L.shape)}"
            )
        checks.same_kind(name, "local.values", L.values, A.values)
        check_numbers(name, L)
        checks.batches(name, L.batch_shape, A.batch_shape, "local.values and A.values")
        self.batch_shape = torch.broadcast_shapes(L.batch_shape, A.batch_shape)
        self.depends_on = (*self.depends_on, L.values)
        return L

    def _inverses(self, A: CSR, L: CSR | None) -> tuple[Tensor, ...]:
        numbers = self.plan.numbers.split([count for count, _ in self.plan.groups])

        def singular(group: int) -> Callable[[int], Exception]:
            def error(i: int) -> Exception:
                count = self.plan.groups[group][0]
                with plain_tensors():
                    number = int(numbers[group][i % count])
                which = f" (matrix {i // count} of the batch)" if self.batch_shape else ""
                return ValueError(
                    f"AdditiveSchwarz: the matrix of subdomain {number}, of {self.sizes[number]} rows, is "
                    f"singular up to rounding{which}. Choose other subdomains or another overlap, or shift "
                    "the diagonal"
                )

            return error

        blocks = self.plan.local_matrices(A, None if L is None else added(L, self.plan))
        return tuple(inverses(D, singular(group)) for group, D in enumerate(blocks))

    @property
    @makes_plain_tensors
    def sizes(self) -> tuple[int, ...]:
        return tuple(subdomain_sizes(self.plan).tolist())

    @property
    @makes_plain_tensors
    def rows(self) -> Tensor:
        return torch.from_numpy(subdomain_rows(self.plan)).to(self.plan.numbers.device)

    def mv(self, R: Tensor) -> Tensor:
        return self._sum(R, self._into, self._out, False)

    def rmv(self, R: Tensor) -> Tensor:
        return self._sum(R, self._out, self._into, True)

    def _sum(self, R: Tensor, into: Tensor, out: Tensor, transpose: bool) -> Tensor:
        slots = self.plan.restriction
        local = product(into, R, slots, False).split([c * s for c, s in self.plan.groups], -2)
        solved = []
        for (count, size), inverse, r in zip(self.plan.groups, self.inverses, local, strict=True):
            blocks = r.reshape(*r.shape[:-2], count, size, r.shape[-1])
            z = (inverse.mT if transpose else inverse) @ blocks
            solved.append(z.reshape(*z.shape[:-3], count * size, z.shape[-1]))
        z = product(out, torch.cat(solved, -2), slots, True) if solved else R
        if self._coarse is not None:
            P = self._parts
            coarse = self._coarse(product(P.values, R, P.pattern, True), transpose)
            z = z + product(P.values, coarse, P.pattern, False)
        return z

    def pcg_form(self) -> tuple[str, Tensor, Any] | None:
        # The factor of the coarse correction would be dense below its diagonal,
        # and the matrix of a restricted method is not lower triangular in slots.
        if not self.symmetric or self._restricted or self._coarse is not None or not self.plan.groups:
            return None
        G = self._kept_factor(self._cholesky)
        return None if G is None else ("product", G.values, G.pattern)

    def _cholesky(self) -> CSR | None:
        """G with M = G G^T: the local R_i^T L_i side by side, with A_i^-1 = L_i L_i^T, or None if an A_i is
        not positive definite."""
        factors = [cholesky(X) for X in self.inverses]
        if any(L is None for L in factors):
            return None
        plan = self.plan.restriction._plan_once(plan_factors, self.plan.groups)
        numbers = torch.cat([L.flatten(-3) for L in factors], -1)  # type: ignore[union-attr]
        return CSR(take(numbers, plan.at), plan.pattern)

    def __repr__(self) -> str:
        sizes = self.sizes
        return (
            f"AdditiveSchwarz({len(sizes)} subdomains of {min(sizes, default=0)} to {max(sizes, default=0)})"
        )
