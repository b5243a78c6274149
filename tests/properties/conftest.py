"""Fixtures of the properties."""

import pytest
import torch


@pytest.fixture
def modules_in_float64():
    """When they are made: within torch.func no module can be converted."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
