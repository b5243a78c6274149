"""The distribution of a pattern's rows over threads."""

import pytest
from reference import banded, grid, pattern_of, power_law, random, structures

from learnsolve.matrix import device_analysis

BLOCKS = structures() | {
    "long bands": banded(9000, 7),
    "wide bands": banded(300, 31),
    "grid": grid(5, 120),
    "cube": grid(7, 20),
    "power law": power_law(3000),
    "random": random(2000, 2000, 0.02),
}

# A device deals rows out otherwise (test_device_analysis.py).
of_the_cpu = pytest.mark.skipif(device_analysis.everywhere, reason="of the CPU operators alone")


@of_the_cpu
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("structure", BLOCKS)
def test_row_blocks(structure, transposed):
    """Blocks hold every row once, in order; uniform blocks are uniform; none is much heavier than most."""
    P = pattern_of(BLOCKS[structure])
    if transposed:
        ptr, idx, perm, blocks = P._structure(True)
    else:
        ptr, idx, perm, blocks = *P._structure(False)[:3], P.row_blocks
    rows = len(ptr) - 1
    first, length = blocks[:, 0], blocks[:, 1]
    assert blocks[-1].tolist() == [rows, 0]
    assert rows == 0 or first[0] == 0
    assert (first.diff() > 0).all()
    for b in range(len(blocks) - 1):
        r0, r1, size = int(first[b]), int(first[b + 1]), int(length[b])
        weight = int(ptr[r1] - ptr[r0]) + r1 - r0
        assert weight <= 8192 or r1 == r0 + 1
        if size:
            lengths = ptr[r0 : r1 + 1].diff()
            assert (lengths == size).all()
            columns = idx[ptr[r0] : ptr[r1]].view(-1, size)
            assert (columns.diff(dim=0) == 1).all()
            if perm is not None:
                assert (perm[ptr[r0] : ptr[r1]].view(-1, size).diff(dim=0) == size).all()


@of_the_cpu
def test_grids_are_uniform_nearly_everywhere():
    """What the fast path lives on: if detection breaks, nothing but speed tells."""
    for S in (banded(500, 5), grid(5, 100)):
        blocks = pattern_of(S).row_blocks
        uniform = blocks[:-1, 0].new_zeros(())
        for b in range(len(blocks) - 1):
            uniform += (blocks[b + 1, 0] - blocks[b, 0]) * (blocks[b, 1] > 0)
        assert uniform >= 0.95 * S.shape[0]
