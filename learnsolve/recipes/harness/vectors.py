"""Test vectors, each a function of (seed, stream, step, index) alone.

No generator is shared between vectors, so that a run needs no random state beyond its step, and each
process can draw any of them.
"""

import hashlib
import struct
from collections.abc import Iterable

import torch
from torch import Tensor

TRAINING, HELD_OUT, COEFFICIENTS = 0, 1, 2


def stream_seed(seed: int, stream: int, step: int, index: int) -> int:
    """A 64-bit seed; neighbouring arguments give unrelated seeds."""
    key = struct.pack("<4q", seed, stream, step, index)
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")


def normal_vectors(
    n: int,
    indices: Iterable[int],
    *,
    seed: int,
    stream: int,
    step: int,
    dtype: torch.dtype,
    device: torch.device | str,
    rows: slice = slice(None),
) -> Tensor:
    """The columns `indices` of step `step`, shape (n, len(indices)), from N(0, I); `rows` of them.

    Drawn on the CPU in float64, whatever the dtype and device: those change the rounding, not the vectors.
    """
    generator = torch.Generator()
    columns = []
    for index in indices:
        generator.manual_seed(stream_seed(seed, stream, step, index))
        columns.append(torch.randn(n, generator=generator, dtype=torch.float64)[rows].to(dtype, copy=True))
    if not columns:
        return torch.empty((len(range(n)[rows]), 0), dtype=dtype, device=device)
    return torch.stack(columns, dim=1).to(device)
