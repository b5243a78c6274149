"""Loads the compiled operators: `torch.ops.learnsolve` exists once this module is imported."""

import ctypes
import importlib.util
import os
from pathlib import Path
from typing import Any

import torch

MINIMUM_TORCH = (2, 10)
REBUILD = "pip install --no-build-isolation -e ."


def _torch_version() -> tuple[int, int]:
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def _folder() -> Path:
    """The folder with the compiled files. In an editable install it is not the source folder."""
    if _torch_version() < MINIMUM_TORCH:
        raise ImportError(
            f"learnsolve needs torch >= {'.'.join(map(str, MINIMUM_TORCH))}, found {torch.__version__}. "
            f"Run: pip install 'torch>=2.10', then in learnsolve's folder: {REBUILD}"
        )
    spec = importlib.util.find_spec("learnsolve._analysis")
    if spec is None or spec.origin is None:
        raise ImportError(
            "learnsolve's compiled extension is not built. Run in learnsolve's folder (it needs a C++ "
            f"compiler, and torch installed): {REBUILD}"
        )
    return Path(spec.origin).parent


def _load(name: str) -> Path:
    path = folder / f"{name}.so"
    if not path.exists():
        raise ImportError(f"learnsolve's operator library {path} is missing. Run in its folder: {REBUILD}")
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        raise ImportError(
            f"learnsolve's operator library {path} does not load with torch {torch.__version__} ({error}). "
            f"Rebuild it: {REBUILD}"
        ) from error
    return path


folder = _folder()
_cpu = ctypes.CDLL(str(_load("learnsolve_cpu")))
_cpu.learnsolve_isa.restype = ctypes.c_char_p
_cpu.learnsolve_isa_name.restype = ctypes.c_char_p
if _cpu.learnsolve_isa() is None:
    raise ImportError(
        "learnsolve was compiled for an instruction set that this machine does not have. Rebuild it here "
        f"({REBUILD}), or there for all instruction sets with LEARNSOLVE_ISA_VARIANTS=all"
    )

if os.environ.get("LEARNSOLVE_CHECK", "0") not in ("", "0"):
    _cpu.learnsolve_check_contents(1)  # check index arrays passed to raw operators: csrc/ops/host.h

_cpu.learnsolve_set_buffer_pool_limit.restype = ctypes.c_size_t
_cpu.learnsolve_set_buffer_pool_limit.argtypes = (ctypes.c_size_t,)
_cpu.learnsolve_buffer_bytes.restype = ctypes.c_size_t
_cpu.learnsolve_spgemm_fused.restype = ctypes.c_bool
_cpu.learnsolve_spgemm_fused.argtypes = (
    *(ctypes.c_bool, ctypes.c_bool, *4 * (ctypes.c_int64,)),
    ctypes.POINTER(ctypes.c_void_p),
)


def load_cuda(name: str = "learnsolve_cuda") -> None:
    """Register the CUDA operators, or under another name the operators for the emulator (csrc/emulator)."""
    _load(name)


cuda_built = (folder / "learnsolve_cuda.so").exists()
cuda_loaded = cuda_built and torch.cuda.is_available()
if cuda_loaded:
    load_cuda()


def instruction_sets() -> list[str]:
    """Names of the compiled variants of the CPU kernels, the portable one first."""
    names = []
    while (name := _cpu.learnsolve_isa_name(len(names))) is not None:
        names.append(name.decode())
    return names


def instruction_set() -> str:
    """The variant in use."""
    return _cpu.learnsolve_isa().decode()


def swap_buffer_pool_limit(bytes: int) -> int:
    """Set the limit of csrc/ops/buffers.h, and return the previous one."""
    return _cpu.learnsolve_set_buffer_pool_limit(bytes)


def drop_buffers() -> None:
    """Return the kept memory to the system."""
    _cpu.learnsolve_drop_buffers()


def buffer_bytes() -> int:
    """The size of the kept memory, in bytes."""
    return _cpu.learnsolve_buffer_bytes()


def spgemm_fused(rows: int, inner: int, columns: int, products: int, *arrays: Any) -> bool:
    """csrc/ops/sparse_products.cpp, on NumPy arrays, or False if out of memory."""
    doubles, wide = arrays[4].itemsize == 8, arrays[0].itemsize == 8
    addresses = (ctypes.c_void_p * len(arrays))(*(t.ctypes.data for t in arrays))
    return _cpu.learnsolve_spgemm_fused(doubles, wide, rows, inner, columns, products, addresses)


def operator_of_torch(name: str) -> Any:
    """For code that asks torch's operators about one another (nonlinear/_pattern.py)."""
    return getattr(torch.ops.aten, name).default


def select_instruction_set(name: str) -> None:
    """Use one variant of the CPU kernels. `LEARNSOLVE_ISA` does this at import."""
    outcome = _cpu.learnsolve_select_isa(name.encode())
    if outcome == 1:
        raise ValueError(f"LEARNSOLVE_ISA must be one of {', '.join(instruction_sets())}, got {name!r}")
    if outcome == 2:
        raise ValueError(f"LEARNSOLVE_ISA={name}: this machine does not have these instructions")


if wanted := os.environ.get("LEARNSOLVE_ISA"):
    try:
        select_instruction_set(wanted)
    except ValueError as error:
        raise ImportError(str(error)) from None
