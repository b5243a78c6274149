"""Loops that are one compiled call are cut into several where they would run for long: Python hears an
interrupt in between.
"""

from torch import Tensor

# Numbers that one call may go through: about 0.1 s, and a few times that for an adjoint, so no call is longer
# than an interrupt may wait.
WORK = 100_000_000
# A CUDA device goes through so many times as many (not measured), and nobody waits for it; but the host may
# launch no more iterations in that time.
_DEVICE_FACTOR, _DEVICE_ITERATIONS = 100, 10_000


def iterations_of_a_call(values: Tensor, numbers: int, work: int) -> int:
    """How many iterations that go through so many numbers each one call may have, by where `values` are."""
    if values.is_cuda:
        return max(1, min(_DEVICE_FACTOR * work // numbers, _DEVICE_ITERATIONS))
    return max(1, work // numbers)
