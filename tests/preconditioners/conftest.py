"""Preconditioners are compared with tiny dense references, as operations are: one thread."""

from ops.conftest import one_thread

__all__ = ["one_thread"]
