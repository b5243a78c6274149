import pytest
import torch
from reference import set_isa_or_skip

import learnsolve as ls
from learnsolve import _library
from learnsolve.matrix import device_analysis


@pytest.fixture(autouse=True)
def one_thread():
    """The dense references are tiny: threads would only get into each other's way. Tests of parallel
    execution set their own number, which this restores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=_library.instruction_sets())
def isa(request):
    """Each compiled instruction set in turn."""
    before = _library.instruction_set()
    set_isa_or_skip(request.param)
    yield request.param
    _library.select_instruction_set(before)


@pytest.fixture(params=[True, False], ids=["planned", "no plan"])
def planned(request, monkeypatch):
    """Sparse products with a plan, and without; on a device then in several stretches."""
    monkeypatch.setattr(device_analysis, "SORTED", 400)
    if request.param:
        yield True
        return
    with ls.set_options(spgemm_plan_bytes=0):
        yield False
