"""Modules that hold parameters; parameters that stand for positive numbers."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor

from learnsolve import _check
from learnsolve.csr import CSR
from learnsolve.preconditioners.base import Learned, Preconditioner, check_finite

POSITIVE = ("exp", "softplus")
Kind = TypeVar("Kind", bound=Preconditioner)


def positive(raw: Tensor, how: str | None) -> Tensor:
    """The numbers that a parameter stands for: positive, unless `how` is None."""
    if how is None:
        return raw
    info = torch.finfo(raw.dtype)  # far out an exponential rounds to 0, or overflows
    return (raw.exp() if how == "exp" else torch.nn.functional.softplus(raw)).clamp(info.tiny, info.max)


def raw(value: Tensor, how: str | None) -> Tensor:
    """The parameter that stands for `value`."""
    if how is None:
        return value
    # log(e^v - 1), without overflow for large v or cancellation for small ones
    return value.log() if how == "exp" else value + (-torch.expm1(-value)).log()


def check_start(function: str, name: str, value: Tensor, instead: str) -> None:
    """`value` must be fit for `parameter`: finite, and without a graph, which would end there."""
    _check.dtype(function, name, value)
    _check.start(function, name, value, instead)
    if not bool(value.isfinite().all()):
        raise ValueError(
            f"{function}: {name} must be finite, got infinities or NaNs; find out where they come from"
        )


def check_constant(function: str, A: CSR, instead: str) -> None:
    """What a module computes from A is a buffer or a parameter, without the graph of A's values."""
    _check.matrix(function, "A", A)
    _check.dtype(function, "A.values", A.values)
    _check.start(function, "A.values", A.values, instead)
    check_finite(function, A)


def one_kind(M: Learned, parameter: Tensor, kept: Tensor) -> None:
    """``M.on(B)`` shares the parameter, so converting one module converts half of the other."""
    if parameter.dtype != kept.dtype or parameter.device != kept.device:
        raise TypeError(
            f"{type(M).__name__}: its parameter is {parameter.dtype} on {parameter.device}, what it keeps of "
            f"the matrix {kept.dtype} on {kept.device}: a module that shares the parameter was converted; "
            "convert this one as well"
        )


class Holder(Learned):
    """Holds the parameters of a preconditioner that may carry a graph, `current()`, and applies that."""

    def current(self) -> Preconditioner:
        """The preconditioner of the parameters as they are, with their graph."""
        raise NotImplementedError(f"{type(self).__name__} must define current")

    def _with(self, kind: type[Kind], **attributes: Any) -> Kind:
        """Of this kind, of attributes that this module has checked."""
        return kind._trusted(
            shape=self.shape, batch_shape=self.batch_shape, depends_on=self.depends_on, **attributes
        )

    def _columns(self, R: Tensor) -> Tensor:
        return self.current()._columns(R)

    def _transposed(self, R: Tensor) -> Tensor:
        return self.current()._transposed(R)

    def pcg_form(self) -> tuple[str, Tensor, Any] | None:
        return self.current().pcg_form()
