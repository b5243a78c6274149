"""Checks of the coefficients of problems."""

import math

import torch
from torch import Tensor

from learnsolve.matrix import checks


def grid_axes(
    function: str,
    name: str,
    value: Tensor,
    dimensions: int | None,
    allowed: tuple[int, ...],
    vector: bool = False,
) -> int:
    """The number of grid axes of a coefficient: `dimensions`, or by default all axes. `vector`: an axis of
    components precedes them."""
    checks.tensor(function, name, value)
    checks.dtype(function, name, value)
    d = value.dim() - vector if dimensions is None else dimensions
    numbers = f"{', '.join(map(str, allowed[:-1]))} or {allowed[-1]}"
    if d not in allowed:
        if dimensions is not None:
            raise ValueError(f"{function}: dimensions must be {numbers}, got {dimensions!r}")
        first = "an axis of components and " if vector else ""
        raise ValueError(
            f"{function}: {name} must have {first}{numbers} axes, got shape {tuple(value.shape)}; "
            "for a batch, pass dimensions, the number of axes of the grid"
        )
    if value.dim() < d + vector or min(value.shape[-d:]) < 1 or (vector and value.shape[-d - 1] != d):
        shape = ", ".join(["...", *([str(d)] if vector else []), *("nx", "ny", "nz")[:d]])
        raise ValueError(
            f"{function}: {name} must have shape ({shape}), with a grid point at least, got "
            f"{tuple(value.shape)}"
        )
    return d


def check_sign(function: str, name: str, value: Tensor, *, zero: bool) -> None:
    """Require that every entry is finite and positive, or zero if `zero`.

    Only plain CPU tensors are checked: checking a CUDA tensor would wait for the device, and the tensors of
    `torch.func` and `torch.compile` have no values to check.
    """
    if (
        value.device.type != "cpu"
        or torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
    ):
        return
    value = value.detach()
    bad = ~((value >= 0 if zero else value > 0) & (value < math.inf))
    if bool(bad.any()):
        at = tuple(bad.nonzero()[0].tolist())
        rule = "finite and not negative" if zero else "positive and finite"
        raise ValueError(
            f"{function}: {name} must be {rule}, got {name}[{', '.join(map(str, at))}] = {value[at].item()}; "
            "an unconstrained parameter can go through torch.exp or softplus"
        )
