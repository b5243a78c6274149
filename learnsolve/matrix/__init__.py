"""Sparse matrices: `CSR`, `SparsityPattern`, and what is kept for them."""
