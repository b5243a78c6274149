"""Small eigenproblems: one thread."""

from ops.conftest import one_thread

__all__ = ["one_thread"]
