"""Interfaces of overlapping subdomains, and the positions of interface values in the local matrices.

The rows of all local matrices, subdomain by subdomain in the order of `AdditiveSchwarz`, each in ascending
order, are the rows of one block-diagonal matrix L, which is added to the local matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse
from torch import Tensor

from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, as_numpy
from learnsolve.matrix.plain import makes_plain_tensors
from learnsolve.ops.core.gather import place
from learnsolve.ops.core.selection import trusted
from learnsolve.preconditioners.domain._subdomains import Subdomains, graph, plan_of, sizes_of


@makes_plain_tensors
def interface_pattern(
    A: CSR, subdomains: Sequence[Any] | None = None, *, n_subdomains: int | None = None, overlap: int = 1
) -> SparsityPattern:
    r"""The pattern of interface values of `AdditiveSchwarz`, with one block per subdomain.

    A row of a subdomain is on its interface if it is coupled, in the graph of A + A^T, with a row outside.
    The entries are (i, j) for two coupled interface rows of the same subdomain, and i = j.

    Parameters
    ----------
    A, subdomains, n_subdomains, overlap : as for `AdditiveSchwarz`

    Returns
    -------
    SparsityPattern, shape (N, N), N the sum of the sizes of the subdomains with their overlap: rows of
    subdomain 0 in ascending order, then of 1, ...; `AdditiveSchwarz.rows` has their indices in A

    Raises
    ------
    ValueError, TypeError
        as for `AdditiveSchwarz`.

    Notes
    -----
    Cost: O(nnz + N), on the host. Patterns for the same arguments are equal, but not the same object.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((6,))
    >>> P = ls.preconditioners.interface_pattern(A, [[0, 1, 2], [3, 4, 5]])
    >>> P.row_indices.tolist()  # 0 to 3 and 2 to 5: the last row of the first, the first of the second
    [3, 4]
    >>> robin = torch.tensor([-0.5, -0.5], dtype=torch.float64, requires_grad=True)
    >>> M = ls.preconditioners.AdditiveSchwarz(A, [[0, 1, 2], [3, 4, 5]], local=ls.CSR(robin, P))
    >>> M(torch.ones(6, dtype=torch.float64)).sum().backward()
    >>> robin.grad.shape
    torch.Size([2])
    """
    plan = plan_of(A, subdomains, n_subdomains, overlap)
    sizes, rows = sizes_of(plan), rows_of(plan)
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
    return trusted(A.pattern, starts, j[order], (total, total))


def rows_of(plan: Subdomains) -> np.ndarray:
    """The rows of A of the local rows, in the order of the subdomains."""
    sizes, numbers = sizes_of(plan), as_numpy(plan.numbers)
    rows = as_numpy(plan.restriction.col_indices).astype(np.int64)  # in the order of the plan
    return rows[np.argsort(np.repeat(numbers, sizes[numbers]), kind="stable")]


def added(L: CSR, plan: Subdomains) -> Tensor:
    """The values of L at their positions in the concatenated local matrices: (..., plan.size)."""
    (at,) = plan.restriction._planned(_places, L.pattern, plan.groups, tuple(as_numpy(plan.numbers).tolist()))
    return place(L.values, at, plan.size)


def _places(
    slots: SparsityPattern, P: SparsityPattern, groups: tuple[tuple[int, int], ...], numbers: tuple[int, ...]
) -> tuple[Tensor]:
    padded = np.repeat([size for _, size in groups], [count for count, _ in groups]).astype(np.int64)
    starts = np.concatenate(([0], np.cumsum(padded)))
    sizes, first, width = (np.empty(len(numbers), dtype=np.int64) for _ in range(3))
    order = np.asarray(numbers, dtype=np.int64)
    sizes[order] = np.diff(as_numpy(slots.crow_indices)[starts])
    first[order], width[order] = np.concatenate(([0], np.cumsum(padded**2)))[:-1], padded
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    i, j = as_numpy(P.row_indices).astype(np.int64), as_numpy(P.col_indices).astype(np.int64)
    k = np.searchsorted(offsets, i, side="right") - 1
    wrong = (j < offsets[k]) | (j >= offsets[k + 1])
    if wrong.any():
        e = int(wrong.argmax())
        raise ValueError(
            f"AdditiveSchwarz: local must be block diagonal, one block per subdomain, but its entry ({i[e]}, "
            f"{j[e]}) leaves the block of rows {offsets[k[e]]} to {offsets[k[e] + 1] - 1}; see M.rows"
        )
    return (slots._tensor(first[k] + (i - offsets[k]) * width[k] + (j - offsets[k])),)
