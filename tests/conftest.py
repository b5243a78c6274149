"""Options and fixtures of all tests."""

import contextlib
import gc
import os
import random
import re
from collections import Counter

import numpy as np
import pretend_device
import progress
import pytest
import torch
from quick import enough, runs_all

# Until all tests are collected: what is imported and collected stays, and looking through it again and again
# takes a third of that time.
gc.disable()

EMULATED = os.environ.get("LEARNSOLVE_CUDA_EMULATOR", "0") not in ("", "0")
if EMULATED:
    # The CUDA operators, their threads emulated, in place of those for the CPU: for the tests of products,
    # sums, stencils and triangular solves (.ci/run). Other operations do not understand their plans.
    from learnsolve import _library
    from learnsolve.matrix import device_analysis

    _library.load_cuda("learnsolve_cuda_emulated")
    device_analysis.everywhere = True

# Complex values, for which the emulated operators have no kernels, and operations that a device leaves to the
# host, which would be given its plans.
ON_HOST = re.compile(
    r"^test_complex_|, complex |\[(ops\.|factorize\.)?(cholesky|ldlt|lu|logdet|slogdet|selected_inverse)\b"
)

# Files that take long for the number of their tests come first: in the end no process waits for another.
LONG = (
    *("stress", "experiments", "train_parallel", "benchmarks"),
    *("scripts", "packaging", "pages"),
)


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the long tests too (CI does)")
    parser.addoption(
        "--device",
        choices=pretend_device.NAMES,
        default="cpu",
        help="where tests make their tensors (pretend_device.py)",
    )
    progress.add_options(parser)


def pytest_configure(config):
    if missing := pretend_device.what_is_missing(config.getoption("--device"), EMULATED):
        raise pytest.UsageError(missing)
    # All the while: modules of tests make tensors when they are imported.
    context = contextlib.ExitStack()
    context.enter_context(pretend_device.tensors_on(config.getoption("--device")))
    config.add_cleanup(context.close)
    progress.configure(config)


def pytest_collection_modifyitems(config, items):
    there = config.getoption("--device")
    for item in items if there != "cpu" else ():
        if "cpu_only" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="about the CPU alone"))
    for item in items if EMULATED else ():
        if ON_HOST.search(item.name):
            item.add_marker(pytest.mark.skip(reason="computed by the host, whatever the device"))
    order = {f"test_{name}": i for i, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.path.stem, len(LONG)))
    if not runs_all(config):
        skip = pytest.mark.skip(reason="long; run it with --slow")
        for item in set(items) - enough(items, capped=not EMULATED):
            item.add_marker(skip)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """What lives as long as the process need not be looked through later, either."""
    yield
    gc.collect(), gc.freeze(), gc.enable()


def pytest_terminal_summary(terminalreporter):
    """How many tests were skipped, by reason."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(r.longrepr[2] if isinstance(r.longrepr, tuple) else str(r.longrepr) for r in skipped)
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")


@pytest.fixture(scope="session")
def quick(pytestconfig) -> bool:
    """Is this `make test`, without --slow and outside CI?"""
    return not runs_all(pytestconfig)


@pytest.fixture
def fresh_compiler():
    """Clear the caches of torch.compile before and after the test."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


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
