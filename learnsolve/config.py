"""The configuration of learnsolve: versions, threads, instruction set, CUDA. Include it in bug reports."""

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import scipy
import torch

from learnsolve import _library
from learnsolve.ops.direct import available


def config() -> dict[str, Any]:
    """The output of `show_config` as a dictionary of plain values.

    Returns
    -------
    dict with the keys
        ``learnsolve``, ``torch``, ``numpy``, ``scipy``, ``python`` : str, versions;
        ``threads`` : int, as torch.get_num_threads();
        ``instruction_set`` : str, the variant of the CPU kernels in use;
        ``instruction_sets`` : list of str, all compiled variants;
        ``cuda_built``, ``cuda_loaded`` : bool, whether the CUDA operators were built and are in use;
        ``direct_solvers`` : list of str, libraries that `factorize` can use here, its first choice first;
        ``device`` : str, name of the GPU in use, or else the processor's architecture.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.config()["instruction_set"] in ls.config()["instruction_sets"]
    True
    """
    try:
        own = version("learnsolve")
    except PackageNotFoundError:  # on sys.path without having been installed
        own = "unknown"
    return {
        "learnsolve": own,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "instruction_set": _library.instruction_set(),
        "instruction_sets": _library.instruction_sets(),
        "cuda_built": _library.cuda_built,
        "cuda_loaded": _library.cuda_loaded,
        "direct_solvers": available(),
        "device": torch.cuda.get_device_name() if _library.cuda_loaded else f"CPU ({platform.machine()})",
    }


def show_config() -> None:
    """Print versions, threads, instruction sets and CUDA, one per line.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.show_config()  # doctest: +ELLIPSIS
    learnsolve        ...
    torch             ...
    """
    for key, value in config().items():
        if isinstance(value, bool):
            value = "yes" if value else "no"
        elif isinstance(value, list):
            value = ", ".join(value)
        print(f"{key:<18}{value}")
