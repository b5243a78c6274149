"""Options and fixtures of all tests."""

import os
import random

import numpy as np
import pytest
import torch

if os.environ.get("LEARNSOLVE_CUDA_ON_HOST", "0") not in ("", "0"):
    # The CUDA operators, compiled for the host, in place of those for the CPU: for the tests of products,
    # sums, stencils and triangular solves (.ci/run). Other operations do not understand their plans.
    from learnsolve import _device_analysis, _library

    torch.ops.load_library(str(_library.folder / "learnsolve_cuda_on_host.so"))
    _device_analysis.everywhere = True
    if os.environ["LEARNSOLVE_CUDA_ON_HOST"] == "merge":  # all rows by the merge path, long or not
        from learnsolve.ops import _triangular

        _device_analysis._LONG_ROW = 0
        _triangular._TICKET_LEVELS = _triangular._TICKET_WIDTH = 0  # and all levels by ticket


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the long tests too (CI does)")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--slow") or os.environ.get("CI", "").lower() not in ("", "0", "false"):
        return
    skip = pytest.mark.skip(reason="long; run it with --slow")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def same_start():
    """Every test begins with the same seeds and leaves the number of threads as it was."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  SciPy's random matrices use it
    torch.manual_seed(0)
    before = torch.get_num_threads()
    yield
    if torch.get_num_threads() != before:
        torch.set_num_threads(before)
