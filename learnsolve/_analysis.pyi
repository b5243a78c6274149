"""Structure analysis of CSR patterns on NumPy index arrays, int32 or int64 (csrc/analysis)."""

import numpy as np

def validate(ptr: np.ndarray, idx: np.ndarray, columns: int) -> tuple[int, int, int]: ...
def symmetry_of(ptr: np.ndarray, idx: np.ndarray, values: np.ndarray) -> int: ...
def row_indices(ptr: np.ndarray, nnz: int) -> np.ndarray: ...
def transpose(ptr: np.ndarray, idx: np.ndarray, columns: int) -> tuple[np.ndarray, ...]: ...
def diagonal_positions(ptr: np.ndarray, idx: np.ndarray, columns: int) -> np.ndarray: ...
def row_blocks(ptr: np.ndarray, idx: np.ndarray, perm: np.ndarray | None, target: int) -> np.ndarray: ...
def elimination_products(
    ptr: np.ndarray, idx: np.ndarray, diagonal: np.ndarray, kind: int, enough: int
) -> int: ...
def elimination_levels(
    order: np.ndarray, pivot: np.ndarray, ptr: np.ndarray, pairs: np.ndarray, entries: int
) -> np.ndarray: ...
def elimination_plan(
    ptr: np.ndarray, idx: np.ndarray, diagonal: np.ndarray, kind: int, narrow: bool, products: int
) -> tuple[np.ndarray, ...]: ...
def level_fill(ptr: np.ndarray, idx: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]: ...
def complete_fill(
    ptr: np.ndarray, idx: np.ndarray, order: np.ndarray, most: int
) -> tuple[int, np.ndarray, np.ndarray]: ...
def threshold_pattern(
    ptr: np.ndarray, idx: np.ndarray, values: np.ndarray, cholesky: bool, fill: int, tolerance: float
) -> tuple[np.ndarray, np.ndarray, int, float]: ...
def count_products(a_idx: np.ndarray, b_ptr: np.ndarray) -> int: ...
def product_pattern(
    a_ptr: np.ndarray,
    a_idx: np.ndarray,
    b_ptr: np.ndarray,
    b_idx: np.ndarray,
    columns: int,
    most: int,
    threads: int,
) -> tuple[np.ndarray, np.ndarray] | None: ...
def positions_of_products(
    a_ptr: np.ndarray,
    a_idx: np.ndarray,
    b_ptr: np.ndarray,
    b_idx: np.ndarray,
    columns: int,
    c_ptr: np.ndarray,
    c_idx: np.ndarray,
    products: int,
    threads: int,
) -> tuple[np.ndarray, np.ndarray]: ...
def row_product_blocks(
    a_ptr: np.ndarray,
    a_idx: np.ndarray,
    b_ptr: np.ndarray,
    c_ptr: np.ndarray,
    repeated: np.ndarray | None,
    target: int,
) -> np.ndarray: ...
def column_product_blocks(
    t_ptr: np.ndarray,
    perm: np.ndarray,
    b_ptr: np.ndarray,
    positions: np.ndarray | None,
    starts: np.ndarray | None,
    target: int,
) -> np.ndarray: ...
def product_starts(a_idx: np.ndarray, b_ptr: np.ndarray, perm: np.ndarray) -> np.ndarray: ...
def greedy_coloring(
    ptr: np.ndarray, idx: np.ndarray, tptr: np.ndarray, tidx: np.ndarray, largest_first: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]: ...
def column_coloring(
    ptr: np.ndarray, idx: np.ndarray, tptr: np.ndarray, tidx: np.ndarray, order: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]: ...
def substitution(
    ptr: np.ndarray, idx: np.ndarray, perm: np.ndarray, colors: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]: ...
def as_column_coloring(
    ptr: np.ndarray, idx: np.ndarray, colors: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None: ...
def symmetric_coloring(
    ptr: np.ndarray, idx: np.ndarray, perm: np.ndarray, order: int, acyclic: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]: ...
def triangle(
    ptr: np.ndarray, idx: np.ndarray, perm: np.ndarray | None, upper: bool, k: int
) -> tuple[np.ndarray, ...] | None: ...
def triangle_blocks(ptr: np.ndarray, idx: np.ndarray, perm: np.ndarray | None) -> np.ndarray: ...
def level_schedule(ptr: np.ndarray, idx: np.ndarray, upper: bool) -> tuple[np.ndarray, np.ndarray]: ...
def merge_patterns(
    a_ptr: np.ndarray, a_idx: np.ndarray, b_ptr: np.ndarray, b_idx: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]: ...
def common_positions(
    a_ptr: np.ndarray, a_idx: np.ndarray, b_ptr: np.ndarray, b_idx: np.ndarray
) -> tuple[np.ndarray, np.ndarray]: ...
def match_rows(ptr: np.ndarray, idx: np.ndarray, columns: int) -> np.ndarray: ...
def aggregate(
    ptr: np.ndarray, idx: np.ndarray, values: np.ndarray, size: int, theta: float
) -> tuple[np.ndarray, int]: ...
def orthonormalize(of: np.ndarray, size: int, count: int, candidates: np.ndarray) -> np.ndarray: ...
def smoothed_prolongation(
    ptr: np.ndarray,
    idx: np.ndarray,
    values: np.ndarray,
    of: np.ndarray,
    size: int,
    count: int,
    candidates: np.ndarray,
    omega: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]: ...
def arnoldi(
    ptr: np.ndarray,
    idx: np.ndarray,
    values: np.ndarray,
    diagonal: np.ndarray,
    steps: int,
    symmetric: bool,
) -> tuple[np.ndarray, int, float]: ...
def classical_splitting(
    ptr: np.ndarray, idx: np.ndarray, values: np.ndarray, theta: float, second: bool, aggressive: bool
) -> tuple[np.ndarray, np.ndarray]: ...
def interpolation(
    ptr: np.ndarray,
    idx: np.ndarray,
    values: np.ndarray,
    diagonal: np.ndarray,
    strong: np.ndarray,
    coarse: np.ndarray,
    most: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]: ...
