"""Sparse matrices: `CSR`, `SparsityPattern`, and their caches."""
