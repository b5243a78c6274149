import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """The dense references are tiny: threads would only get into each other's way. Tests of parallel
    execution set their own number, which this restores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
