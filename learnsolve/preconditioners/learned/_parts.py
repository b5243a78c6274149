"""The tensors of a preconditioner as parameters, one module each; calling it returns the current tensor.

The names in the state dict show the map to positive values: ``values`` are the values themselves,
``log_values`` their logarithms, ``raw_values`` their inverse softplus; likewise for ``diagonal``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, as_numpy
from learnsolve.nn.modules import HoldsPattern, parameter
from learnsolve.ops.core.gather import permuted
from learnsolve.preconditioners.base import Part
from learnsolve.preconditioners.classical.factored import check_has_diagonal

PREFIX = {None: "", "exp": "log_", "softplus": "raw_"}
POSITIVE = ("exp", "softplus")
INSTEAD = "use M itself, which keeps the graph"


def positive(raw: Tensor, how: str | None) -> Tensor:
    """The values that a parameter represents: positive, unless `how` is None."""
    if how is None:
        return raw
    info = torch.finfo(raw.dtype)  # for large |raw| an exponential rounds to 0 or overflows
    return (raw.exp() if how == "exp" else torch.nn.functional.softplus(raw)).clamp(info.tiny, info.max)


def _raw(value: Tensor, how: str | None) -> Tensor:
    """The parameter that represents `value`."""
    if how is None:
        return value
    # log(e^v - 1), without overflow for large v or cancellation for small ones
    return value.log() if how == "exp" else value + (-torch.expm1(-value)).log()


def module_of(name: str, part: Part, how: str | None, learned: bool) -> torch.nn.Module:
    """The module of a part with this name, or a list with one module per item of a sequence."""
    value = part.value
    if isinstance(value, (list, tuple)):
        items = (part._replace(value=v) for v in value)
        return torch.nn.ModuleList(
            module_of(f"{name}[{i}]", item, how, learned) for i, item in enumerate(items)
        )
    how = how if part.positive else None
    if isinstance(value, CSR):
        return MatrixValues("Trainable", name, value, how, part.positive == "absolute diagonal")
    return TensorValues(name, value, how, learned)


def current(module: Any) -> Any:
    """The tensor or matrix, or a list of them, for the current parameters."""
    # Call `forward` directly: the overhead of Module's `__call__` matters in small solves.
    return [m.forward() for m in module] if isinstance(module, torch.nn.ModuleList) else module.forward()


def _check_start(function: str, name: str, value: Tensor, instead: str) -> None:
    """`value` must be finite and must not require grad, since a parameter would cut the graph."""
    checks.dtype(function, name, value)
    checks.start(function, name, value, instead)
    if not bool(value.isfinite().all()):
        raise ValueError(
            f"{function}: {name} must be finite, got infinities or NaNs; find out where they come from"
        )


class TensorValues(torch.nn.Module):
    """A tensor; all entries are positive if `how` is not None."""

    def __init__(self, name: str, start: Tensor, how: str | None, learned: bool):
        super().__init__()
        _check_start("Trainable", name, start, INSTEAD)
        if how is not None and not bool((start > 0).all()):
            raise ValueError(
                f"Trainable: {name} must be positive for positive={how!r}, the smallest is "
                f"{float(start.min()):.6g}; use positive=None"
            )
        self.how, self.key = how, f"{PREFIX[how]}values"
        value = parameter(_raw(start, how))
        if learned:
            self.register_parameter(self.key, value)
        else:
            self.register_buffer(self.key, value.detach())

    def forward(self) -> Tensor:
        return positive(getattr(self, self.key), self.how)


class Split(NamedTuple):
    """The permutation of entries into a list, off-diagonal entries first, and back."""

    off: int
    split: Tensor  # position in the pattern of each element of the list
    join: Tensor  # position in the list of each entry of the pattern


def _plan_split(P: SparsityPattern) -> Split:
    on = as_numpy(P.diagonal_positions).astype(np.int64)
    off = np.setdiff1d(np.arange(P.nnz), on, assume_unique=True)
    split = np.concatenate((off, on))
    join = np.empty_like(split)
    join[split] = np.arange(len(split))
    return Split(len(off), P._tensor(split), P._tensor(join))


class MatrixValues(HoldsPattern):
    """A matrix with parameters `values`; or, if `how` is not None, with a positive diagonal or, if `signed`,
    a diagonal with fixed signs, from `off_diagonal` and `log_diagonal` or `raw_diagonal`."""

    sign: Tensor
    instead = INSTEAD

    def __init__(self, function: str, name: str, start: CSR, how: str | None, signed: bool = False):
        super().__init__()
        _check_start(function, f"{name}.values", start.values, self.instead)
        self._hold(start.pattern)
        self.how, self.key, self.signed = how, f"{PREFIX[how]}diagonal", signed
        if how is None:
            self.values = parameter(start.values)
            return
        checks.square(function, name, start.shape)
        check_has_diagonal(function, name, start)
        plan = start.pattern._planned(_plan_split)
        values = start.values.detach().index_select(-1, plan.split)
        off, diagonal = values[..., : plan.off], values[..., plan.off :]
        size = diagonal.abs() if signed else diagonal
        # The solve divides by the diagonal, and the reciprocal of a subnormal number overflows.
        bad = ~(size >= torch.finfo(size.dtype).tiny)
        if bad.any():
            at = tuple(bad.nonzero()[0].tolist())
            rule = "without zeros" if signed else "positive"
            raise ValueError(
                f"{function}: the diagonal of {name} must be {rule}, row {at[-1]} has "
                f"{diagonal[at].item():.6g}; shift it, or change the sign of that column"
            )
        self.off_diagonal = parameter(off)
        self.register_parameter(self.key, parameter(_raw(size, how)))
        if signed:
            self.register_buffer("sign", diagonal.sign())

    def matrix(self) -> CSR:
        """The matrix, as a differentiable function of the parameters."""
        if self.how is None:
            return CSR(self.values, self.pattern)
        d = positive(getattr(self, self.key), self.how)
        plan = self.pattern._planned(_plan_split)
        values = torch.cat((self.off_diagonal, self.sign * d if self.signed else d), -1)
        return CSR(permuted(values, plan.join, plan.split), self.pattern)

    forward = matrix

    def extra_repr(self) -> str:
        return f"{self.pattern.shape}, nnz={self.pattern.nnz}, positive={self.how!r}"
