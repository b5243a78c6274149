"""What the CUDA kernels ask of memory, by the meter of the emulator: as much as their budgets say."""

import json

import pytest
import torch

import learnsolve as ls
from benchmarks import traffic
from learnsolve.matrix import device_analysis

if not device_analysis.everywhere:
    pytest.skip("the meter is one of the emulated CUDA operators", allow_module_level=True)

BUDGETS = json.loads(traffic.BUDGETS.read_text())


@pytest.mark.parametrize("name", traffic.cases())
def test_budget(name):
    """No figure moves by more than 3 %, in either direction."""
    said = traffic.exceeding(name, traffic.rounded(traffic.count(traffic.cases()[name]())), BUDGETS)
    meant = f"if that is meant: python -m benchmarks.traffic --only '{name}' --update"
    assert not said, "\n".join((*said, meant))


def test_every_budget_has_a_case():
    assert list(BUDGETS) == list(traffic.cases())


def test_figures_that_moved_are_named():
    budget = {"l1": 1000, "launches": 2, "wavefronts": 0}
    for found, figures in (
        ({"l1": 1030, "launches": 2, "wavefronts": 0}, []),
        ({"l1": 969, "launches": 2, "wavefronts": 0}, ["l1"]),
        ({"l1": 1031, "launches": 3, "wavefronts": 1}, ["l1", "launches", "wavefronts"]),
    ):
        said = traffic.exceeding("A x", found, {"A x": budget})
        assert [line.split()[2] for line in said] == figures
    assert traffic.exceeding("A x", budget, {}) == ["A x: has no budget"]


def test_what_a_product_moves():
    """With the identity, every number once; each instruction of a warp asks for whole sectors."""
    n = 4096
    A = ls.ops.eye(n, dtype=torch.float64, index_dtype=torch.int32)
    x = torch.ones(n, dtype=torch.float64)
    A @ x  # plans
    (launch,) = traffic.launches(lambda: A @ x)
    least = 4 * (n + 1) + n * (4 + 8 + 8) + 8 * n
    assert least <= launch.figures["dram"] <= least + 20 * 32  # and the schedule
    assert launch.figures["stores"] == n // 16  # a tile has 128 rows, two lanes for each
    # Blocks share sectors of the row pointers and of the table of tiles.
    assert launch.figures["dram"] <= launch.figures["l2"] <= launch.figures["dram"] + n // 128 * 5 * 32
    assert launch.figures["l1"] >= launch.figures["l2"] - 8 * n


def test_the_slowest_ceiling_decides():
    """A launch takes as long as its slowest kind of memory."""
    quiet = dict.fromkeys(traffic.FIGURES, 0)
    for figure, bytes_of_a_second in (("l1", 16.7e12), ("l2", 5.2e12), ("dram", 4.264e12)):
        launch = traffic.Launch("", quiet | {figure: round(bytes_of_a_second)})
        assert traffic.seconds(launch) == pytest.approx(1.0)
