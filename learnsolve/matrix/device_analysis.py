"""Analysis of a pattern for the kernels, computed on the device that holds it.

The counterpart of `learnsolve._analysis` for CUDA tensors: torch's sorts, searches and prefix sums (from CUB
on a CUDA device), so that only a few sizes pass through the host. Once per pattern, in O(nnz) or a radix
sort. All functions work on any device, and are tested on the CPU.
"""

import torch
from torch import Tensor

# Entries of a row per team, and of a tile: csrc/kernels/tuning.h.
PIECE, TILE = 1024, 1984
# Products per sort if there are too many for one sort, at 40 bytes each. Not measured.
SORTED = 2**24

# Maximum size of a sort by torch on a CUDA device. Larger patterns are analyzed on the host.
MOST_SORTED = 2**31 - 1

everywhere = False  # include CPU tensors, for tests of the emulated CUDA operators


def here(t: Tensor) -> bool:
    """Whether patterns with this array are analyzed here, not by `learnsolve._analysis` on the host."""
    return everywhere or not t.is_cpu


def is_valid(crow: Tensor, col: Tensor, columns: int) -> bool:
    """Whether these are the arrays of a pattern (analysis/pattern.h, `validate`). Synchronizes once."""
    nnz = len(col)
    starts = torch.zeros(nnz + 1, dtype=torch.bool, device=col.device)
    starts[crow.clamp(0, nnz).long()] = True
    good = (crow[0] == 0) & (crow[-1] == nnz) & (crow[1:] >= crow[:-1]).all()
    good = good & ((col >= 0) & (col < columns)).all()
    return bool(good & ((col[1:] > col[:-1]) | starts[1:-1]).all())


def row_indices(crow: Tensor, nnz: int) -> Tensor:
    """Row of each entry."""
    rows = torch.arange(len(crow) - 1, dtype=crow.dtype, device=crow.device)
    return torch.repeat_interleave(rows, crow.diff(), output_size=nnz)


def transpose(crow: Tensor, col: Tensor, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """(crow, col, permutation) of the transposed pattern. The sort is stable: rows stay in order."""
    by_column, permutation = torch.sort(col, stable=True)
    ends = torch.arange(columns + 1, dtype=col.dtype, device=col.device)
    starts = torch.searchsorted(by_column, ends).to(col.dtype)
    return starts, row_indices(crow, len(col))[permutation], permutation.to(col.dtype)


def diagonal_positions(crow: Tensor, col: Tensor, columns: int) -> Tensor:
    """Position of entry (i, i), -1 if missing."""
    n = min(len(crow) - 1, columns)
    rows = row_indices(crow, len(col))
    positions = torch.arange(len(col), dtype=col.dtype, device=col.device)
    # Entries off the diagonal go to one additional position.
    at = torch.full((n + 1,), -1, dtype=col.dtype, device=col.device)
    at[torch.where(rows == col, rows, n).long()] = positions
    return at[:n].clone()


def row_schedule(crow: Tensor, nnz: int) -> Tensor:
    """The distribution of rows (csrc/kernels/products.cuh): tiles and further pieces, two numbers each."""
    return torch.cat((*tiles(crow, nnz), further_pieces(crow, nnz))).to(crow.dtype)


def further_pieces(crow: Tensor, nnz: int) -> Tensor:
    """Row and first entry of each piece of PIECE entries after the first piece of its row, in order."""
    none = crow.new_empty((0, 2))
    if nnz <= PIECE:
        return none
    further = (crow.diff() - 1).clamp(min=0) // PIECE
    if not (total := int(further.sum())):
        return none
    row = torch.repeat_interleave(further, output_size=total)
    of_row = torch.arange(total, device=crow.device) - (further.cumsum(0) - further)[row]
    return torch.stack((row, crow[row] + PIECE * (of_row + 1)), 1)


def chunk_rows(rows: int) -> int:
    """The number of rows of a chunk (csrc/kernels/launch.cuh)."""
    return max(128, (-(-rows // 1024) + 31) // 32 * 32)


def tiles(crow: Tensor, nnz: int) -> tuple[Tensor, Tensor]:
    """Row and first entry of each tile, and (rows, nnz) until there are as many as follows from the sizes,
    then the first tile of each chunk, and the one after its last. Chunks are cut into equal tiles: where a
    row ends, or within a row of more than PIECE entries."""
    rows, device = len(crow) - 1, crow.device
    count = max(1, -(-rows // chunk_rows(rows)))
    first_row = (torch.arange(count + 1, device=device) * chunk_rows(rows)).clamp(max=rows)
    start = crow[first_row].long()
    entries = start.diff(append=start[-1:])  # of a chunk; none of the one after the last
    parts = ((entries + TILE - 1) // TILE).clamp(min=1)
    first = parts.cumsum(0) - parts  # tile of a chunk
    tile = torch.arange(count + nnz // TILE + 1, device=device)
    chunk = torch.searchsorted(first, tile, right=True) - 1
    part = tile - first[chunk]
    entry = start[chunk] + part * entries[chunk] // parts[chunk]
    row = torch.searchsorted(crow, entry.to(crow.dtype))
    within = crow[row] - crow[(row - 1).clamp(min=0)] > PIECE
    opens = (part == 0) | (chunk == count)
    row = torch.where(opens, first_row[chunk], row - (within & (crow[row] > entry)).long())
    entry = torch.where(opens | (crow[row] < entry), entry, crow[row].long())
    return torch.stack((row, entry), 1), torch.stack((first[:-1], first[1:]), 1)


def merge_patterns(
    a_crow: Tensor, a_col: Tensor, b_crow: Tensor, b_col: Tensor, columns: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """(crow, col) of the union of two patterns of the same shape, and the positions of each of its entries in
    A and in B, -1 if it is not there: (2, nnz)."""
    operands = _keys(a_crow, a_col, columns), _keys(b_crow, b_col, columns)
    keys = torch.unique(torch.cat(operands))
    places = torch.full((2, len(keys)), -1, dtype=dtype, device=a_crow.device)
    for side, operand in enumerate(operands):
        places[side, torch.searchsorted(keys, operand)] = torch.arange(
            len(operand), dtype=dtype, device=a_crow.device
        )
    crow, col = _decode_keys(keys, len(a_crow) - 1, columns)
    return crow.to(dtype), col.to(dtype), places


def first_products(a_col: Tensor, b_crow: Tensor) -> Tensor:
    """Index of the first product of each entry of A, then the number of products: int64, (nnz of A + 1,)."""
    first = torch.zeros(len(a_col) + 1, dtype=torch.int64, device=a_col.device)
    torch.cumsum(b_crow.diff()[a_col.long()], 0, dtype=torch.int64, out=first[1:])
    return first


def stretches(first: Tensor) -> list[tuple[int, int, int, int]]:
    """Stretches of A's entries with about SORTED products: their first entry and the end, their first product
    and the end."""
    cuts = torch.searchsorted(first, torch.arange(0, int(first[-1]), SORTED, device=first.device))
    cuts = torch.unique_consecutive(torch.cat((cuts, torch.tensor([len(first) - 1], device=first.device))))
    entries, products = cuts.tolist(), first[cuts].tolist()
    return list(zip(entries[:-1], entries[1:], products[:-1], products[1:], strict=True))


def _factors(first: Tensor, offset: Tensor, p0: int, p1: int, f0: int, f1: int) -> tuple[Tensor, Tensor]:
    """Entries of A and of B that the products of a stretch are made of."""
    entries = torch.arange(p0, p1, device=first.device)
    p = torch.repeat_interleave(entries, first[p0 : p1 + 1].diff(), output_size=f1 - f0)
    return p, torch.arange(f0, f1, device=first.device) + offset[p]


def product_segments(
    arrays: tuple[Tensor, ...], first: Tensor, wanted: int, stretch: tuple[int, int, int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Products a_p b_q of a stretch that fall on entry t of C, for the `arrays` of A, B and C: for each entry
    of A (`wanted` 0), B (1) or C (2) those that it takes part in, as (ptr, second, first), which are the
    entries of the other two matrices. Products without a place in C are left out."""
    a_crow, a_col, b_crow, b_col, c_crow, c_col = arrays
    known = torch.unique(c_col)  # so that row and column make a number of 62 bits
    rank = torch.searchsorted(known, b_col)
    rank = torch.where(torch.cat((known, known.new_full((1,), -1)))[rank] == b_col, rank, len(known))
    p, q = _factors(first, b_crow.long()[a_col.long()] - first[:-1], *stretch)
    number = row_indices(a_crow, len(a_col))[p].long() * (len(known) + 1) + rank[q]
    numbers = _keys(c_crow, torch.searchsorted(known, c_col), len(known) + 1)
    t = torch.searchsorted(numbers, number)
    found = torch.cat((numbers, numbers.new_full((1,), -1)))[t] == number
    at = [x[found].to(a_col.dtype) for x in (p, q, t)]
    results, count = at.pop(wanted), (len(a_col), len(b_col), len(c_col))[wanted]
    if wanted:
        results, order = torch.sort(results, stable=True)
        at = [x[order] for x in at]
    ends = torch.arange(count + 1, dtype=a_col.dtype, device=a_col.device)
    return torch.searchsorted(results, ends).to(a_col.dtype), at[1], at[0]


def product_pattern(
    a_crow: Tensor, a_col: Tensor, b_crow: Tensor, b_col: Tensor, columns: int, first: Tensor, most: int
) -> tuple[Tensor, Tensor] | None:
    """(crow, col) of A B for any number of products: one sort per stretch of A's entries with about SORTED
    products, which continues the last row of the previous stretch. None if there are more than `most`
    entries. Synchronizes once per stretch."""
    rows, nnz, device = len(a_crow) - 1, len(a_col), a_crow.device
    row_of, offset = row_indices(a_crow, nnz), b_crow.long()[a_col.long()] - first[:-1]
    parts_of_a = stretches(first)
    ends = torch.tensor([p1 for _, p1, _, _ in parts_of_a], dtype=torch.int64, device=device)
    opened = row_of[ends - 1].tolist()  # the row of the last entry of each stretch
    crow, parts = torch.zeros(rows + 1, dtype=torch.int64, device=device), []
    done, total, left_open = 0, 0, torch.empty(0, dtype=torch.int64, device=device)
    for stretch, last_row in zip(parts_of_a, opened, strict=True):
        p, q = _factors(first, offset, *stretch)
        keys = torch.unique(torch.cat((left_open, row_of[p].long() * columns + b_col[q].long())))
        end = rows if stretch[1] == nnz else last_row
        starts = torch.searchsorted(keys, torch.arange(done, end + 1, device=device) * columns)
        crow[done : end + 1] = total + starts
        finished = int(starts[-1])
        parts.append((keys[:finished] % max(columns, 1)).to(a_col.dtype))
        done, total, left_open = end, total + finished, keys[finished:]
        if total + len(left_open) > most:
            return None
    crow[done:] = total
    return crow.to(a_crow.dtype), torch.cat(parts) if parts else a_col[:0].clone()


def _keys(crow: Tensor, col: Tensor, columns: int) -> Tensor:
    """Row and column of each entry as one integer, in increasing order."""
    return row_indices(crow, len(col)).long() * columns + col.long()


def _decode_keys(keys: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    starts = torch.arange(rows + 1, device=keys.device) * columns
    return torch.searchsorted(keys, starts), keys % max(columns, 1)
