"""Options, and the versions, threads, instruction set and CUDA to include in bug reports."""

import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import scipy
import torch

from learnsolve import _library
from learnsolve.matrix import checks
from learnsolve.matrix.cache import budget
from learnsolve.ops.direct import available
from learnsolve.ops.sparse_products import swap_plan_limit
from learnsolve.solvers.options import swap_check_every

_OPTIONS: dict[str, Callable[[Any], Any]] = {  # set a value, and return the previous one
    "plan_cache_bytes": budget.set_limit,
    "spgemm_plan_bytes": swap_plan_limit,
    "buffer_pool_bytes": _library.swap_buffer_pool_limit,
    "check_every": swap_check_every,
}


class set_options:
    """Set options, for all threads. ``with set_options(...):`` restores the previous values at its end.

    Parameters
    ----------
    **options : the options to change. The others keep their values
    plan_cache_bytes : int, initially 64 MiB: the size of all cached plans. An operation on several patterns
        (`add`, `spgemm`, `hstack`, `kron`, ...), or on a pattern and integers (``A[2:5]``, `tril` with k),
        plans once per combination. Beyond the limit the least recently used plans are dropped, except the
        last 16 and those in use by `torch.compile` or a CUDA graph. When a plan is computed for the third
        time, a warning is issued, once after each setting.
    spgemm_plan_bytes : int, initially 1 GiB: the largest plan of one sparse product: 4 per multiply-add on
        the CPU. On a CUDA device 8 (int64 indices: 16) for the product, as much again for each gradient. A
        larger product searches for its positions in each pass, by slow sorts on a device. 0: no plans.
    buffer_pool_bytes : int, initially 256 MiB: the memory of freed results (256 KiB and more, CPU) that is
        kept for later ones. torch's profiler does not see it, and such a tensor cannot be enlarged in place
        (`Tensor.resize_`). 0: nothing is kept. torch 2.10 never keeps any.
    check_every : int or None: on a CUDA device a solve to a tolerance checks for convergence, which
        synchronizes, after so many iterations. None, initially: after an eighth of the iterations so far, at
        most 32 (compiled `cg`: 32, 64, 128, ...). The results do not change, but late checks waste
        iterations.

    Raises
    ------
    TypeError
        if an option does not exist or has the wrong type.
    ValueError
        if a number is negative, or check_every is 0.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.set_options(plan_cache_bytes=2**26)
    set_options(plan_cache_bytes=67108864)
    >>> A = ls.problems.poisson((4, 4))
    >>> with ls.set_options(check_every=10, spgemm_plan_bytes=0):
    ...     product = A @ A
    """

    def __init__(self, **options: object):
        checks.keywords("set_options", options, _OPTIONS)
        for name, value in options.items():
            if name != "check_every":
                options[name] = checks.integer("set_options", name, value, 0, 2**63 - 1)
            elif value is not None:
                options[name] = checks.integer("set_options", name, value, 1)
        self._options = options
        self._before = {name: _OPTIONS[name](value) for name, value in options.items()}

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.items():
            _OPTIONS[name](value)

    def __repr__(self) -> str:
        return f"set_options({', '.join(f'{name}={value}' for name, value in self._options.items())})"


def config() -> dict[str, Any]:
    """The output of `show_config` as a dictionary of plain values.

    Returns
    -------
    dict with the keys
        ``learnsolve``, ``torch``, ``numpy``, ``scipy``, ``python`` : str, versions
        ``threads`` : int, as torch.get_num_threads()
        ``instruction_set`` : str, the variant of the CPU kernels in use
        ``instruction_sets`` : list of str, all compiled variants
        ``cuda_built``, ``cuda_loaded`` : bool, whether the CUDA operators were built and are in use
        ``direct_solvers`` : list of str, libraries that `factorize` can use here, its first choice first
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
