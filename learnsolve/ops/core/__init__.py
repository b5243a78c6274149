"""Code shared by the operations: derivatives of products and solves, and kernel calls."""
