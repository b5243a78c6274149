"""The two ways in which the loop may go: by compiled code, or by operations of torch."""

from contextlib import contextmanager

import pytest

from learnsolve.solvers.core import loop


@contextmanager
def eager():
    """Nothing is compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "at_once", lambda *_: None)
        patch.setattr(loop, "fitting", lambda *_: None)
        yield


@contextmanager
def compiled():
    """No iteration goes by operations of torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop._Loop, "stepped", None)
        yield
