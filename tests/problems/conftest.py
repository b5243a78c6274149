"""Fixtures of the problem tests."""

from pathlib import Path

import pytest
from real_data import MISSING, data_folder


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real data; skips the test, saying why, where there is none."""
    folder = data_folder()
    if folder is None:
        pytest.skip(MISSING)
    return folder
