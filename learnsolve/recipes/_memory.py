"""Memory that a run may use."""

import os

import torch


def free_memory(device: str) -> float:
    """Bytes that are free on the device; infinity where the system does not tell."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return float("inf")
