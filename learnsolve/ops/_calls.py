"""A loop that would run long as one compiled call is split into several, so that Python can handle an
interrupt in between.
"""

from torch import Tensor

# Numbers that one call may process: about 0.1 s, and a few times that for an adjoint, so no call is longer
# than an interrupt may wait.
WORK = 100_000_000
# A CUDA device processes this many times as many numbers (not measured), and the host does not wait for it;
# the second number limits the iterations that the host launches in one call.
_DEVICE_FACTOR, _DEVICE_ITERATIONS = 100, 10_000


def iterations_of_a_call(values: Tensor, numbers: int, work: int) -> int:
    """Maximum number of iterations per call, given the work of one iteration (`numbers`) and the device."""
    if values.is_cuda:
        return max(1, min(_DEVICE_FACTOR * work // numbers, _DEVICE_ITERATIONS))
    return max(1, work // numbers)
