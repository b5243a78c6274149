"""Ordinary tensors, wherever they are made."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def plain_tensors() -> Iterator[None]:
    """Tensors made inside are ordinary ones, wherever the caller is. What a pattern keeps and shares must not
    belong to a transformation of `torch.func` or to inference mode. Also a decorator."""
    with torch.inference_mode(False), torch._C._DisableFuncTorch():
        yield
