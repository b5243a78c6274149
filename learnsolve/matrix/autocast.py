"""Under `torch.autocast` learnsolve computes in full precision.

Public functions cast operands of lower precision to the dtype of the matrix and run with autocast off, like a
function with `torch.amp.custom_fwd(cast_inputs=torch.float32)`: a solver whose products are rounded to
bfloat16 does not converge. Functions and classes are guarded where a package exports them; internal calls are
not guarded and have no overhead.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learnsolve.matrix.csr import CSR

enabled: Callable[[], bool] = torch._C._is_any_autocast_enabled  # on any device
_LOW = (torch.float16, torch.bfloat16)
_FULL = {
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.complex64: torch.float32,  # the precision of cast operands
    torch.complex128: torch.float64,
    np.dtype("float32"): torch.float32,
    np.dtype("float64"): torch.float64,
}
_guarded: set[type] = set()


def full_precision(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, unaffected by `torch.autocast`."""

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        if enabled():
            return without_autocast(function, args, keywords)
        return function(*args, **keywords)

    return call


def without_autocast(function: Callable[..., Any], args: tuple, keywords: dict[str, Any]) -> Any:
    """`function` with operands cast to the first full precision among them, default float32."""
    dtype = _first((args, keywords)) or torch.float32
    args, keywords = _cast(args, dtype), _cast(keywords, dtype)
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):
                return without_autocast(function, args, keywords)
    return function(*args, **keywords)


def guard(package: dict[str, Any], wrapped: Callable[[Any], Any] = full_precision) -> None:
    """Guard what a package exports: its functions, and the methods of its classes and of their bases."""
    for name in package["__all__"]:
        value = package[name]
        if inspect.isfunction(value):
            package[name] = value.as_exported = wrapped(value)  # type: ignore[attr-defined]
            package[name].__module__ = package["__name__"]  # for pickle
        elif inspect.isclass(value):
            for cls in value.__mro__:
                if cls.__module__.startswith("learnsolve.") and cls not in _guarded:
                    _guarded.add(cls)
                    public = [method for method in vars(cls) if not method.startswith("_")]
                    guard_methods(cls, "__init__", "__call__", "__matmul__", *public)


def guard_methods(cls: type, *names: str) -> None:
    """Guard the names that are methods of this class."""
    for name in names:
        method = vars(cls).get(name)
        if inspect.isfunction(method):
            setattr(cls, name, full_precision(method))
        elif isinstance(method, classmethod):
            setattr(cls, name, classmethod(full_precision(method.__func__)))


def _first(value: Any) -> torch.dtype | None:
    """The first full precision in the arguments of a call."""
    if isinstance(value, (list, tuple, dict)):
        parts = value.values() if isinstance(value, dict) else value
    elif isinstance(value, torch.nn.Module):
        made = "_parameters" in vars(value)  # otherwise this is a call of its __init__
        parts = (*value.parameters(), *value.buffers()) if made else ()
    else:
        try:
            return _FULL.get(getattr(value, "dtype", None))
        except TypeError:  # a preconditioner without one
            return None
    return next((dtype for part in parts if (dtype := _first(part)) is not None), None)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """An argument with its tensors and matrices of lower precision cast to `dtype`."""
    if isinstance(value, (Tensor, CSR)):
        return value.to(dtype=dtype) if value.dtype in _LOW else value
    if type(value) in (list, tuple):
        return type(value)(_cast(part, dtype) for part in value)
    return {key: _cast(part, dtype) for key, part in value.items()} if type(value) is dict else value
