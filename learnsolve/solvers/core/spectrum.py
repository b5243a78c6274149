"""Bounds `lmin`, `lmax` of the spectrum of M A, estimated where they are not given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learnsolve import _check
from learnsolve.ops import _across
from learnsolve.ops.block_batch import BlockBatch
from learnsolve.preconditioners.base import readable
from learnsolve.preconditioners.classical._spectrum import RATIO, largest_eigenvalue
from learnsolve.solvers.core.operators import as_operator, as_preconditioner
from learnsolve.solvers.core.parameters import Parameters


def bounds(read: Parameters, lmin: Any, lmax: Any, options: Mapping[str, Any]) -> tuple[Any, Any]:
    """`lmin` and `lmax` as `read.read` has them: lmax, if it is None, 1.1 times an estimate by 10 steps of
    Arnoldi's method, constant to every derivative; lmin lmax / 30. `options` of the call: M,
    `transpose` and `parameters`."""
    low, high = _bound(read, "lmin", lmin), _bound(read, "lmax", lmax)
    high = _estimate(read, options) if high is None else high
    low = high / RATIO if low is None else low
    _check_order(read.name, low, high)
    return low, high


def given_bounds(name: str, lmin: Any, lmax: Any) -> tuple[Any, Any]:
    """Checked: 0 < lmin <= lmax < inf for numbers, 0 < t < inf for tensors that are `readable`."""
    low, high = (
        _positive(name, key, value if isinstance(value, Tensor) else _check.number(name, key, value))
        for key, value in (("lmin", lmin), ("lmax", lmax))
    )
    _check_order(name, low, high)
    return low, high


def _positive(name: str, key: str, value: Any) -> Any:
    if isinstance(value, Tensor):
        _check.dtype(name, key, value)
        if not readable(value) or (good := (value > 0) & (value < math.inf)).all():
            return value
        got = float(value.detach()[~good][0])
    elif 0 < value < math.inf:
        return value
    else:
        got = value
    raise ValueError(
        f"{name}: {key} must be positive and finite, got {got}; it bounds the spectrum of M A, which must be "
        "positive"
    )


def _check_order(name: str, low: Any, high: Any) -> None:
    """Of numbers: bounds that are learned may cross on the way, and mean the same then."""
    if not isinstance(low, Tensor) and not isinstance(high, Tensor) and low > high:
        raise ValueError(f"{name}: lmin must not be larger than lmax, got {low} and {high}; swap them")


def _bound(read: Parameters, key: str, value: Any) -> Any:
    if value is None:
        return None
    return _positive(read.name, key, read.read(key, value, rows=False))


def _estimate(read: Parameters, options: Mapping[str, Any]) -> Tensor:
    """In the form in full of Parameters, with one number a member of the batch; 1 where there is none that is
    positive, so that the solve says what is wrong."""
    name, A, b, M = read.name, read.A, read.b, options.get("M")
    if torch.compiler.is_dynamo_compiling():
        raise NotImplementedError(
            f"{name}: the largest eigenvalue of M A is not estimated under torch.compile; pass lmax= or, for "
            "richardson, weight="
        )
    if _across.of(A) is not None:
        raise NotImplementedError(
            f"{name}: the largest eigenvalue of M A is not estimated for rows in several processes; pass "
            "lmax= or, for richardson, weight="
        )
    if isinstance(M, (list, tuple)):
        raise ValueError(
            f"{name}: the largest eigenvalue of M A is not estimated for one M a block; pass lmax= or, for "
            "richardson, weight="
        )
    A = A.matrix if isinstance(A, BlockBatch) else A
    apply = as_operator(name, A, b, options.get("transpose"), tuple(options.get("parameters", ())))
    inner = as_preconditioner(name, "M", M, b)
    whole = not hasattr(A, "batch_shape") or A.batch_shape or getattr(M, "batch_shape", ())
    batch = read.batch if whole else torch.Size()
    if read.n == 0:
        return b.new_ones((*batch, 1, 1))
    start = torch.from_numpy(np.random.default_rng(0).standard_normal((read.n, 1)))
    start = start.to(dtype=b.dtype, device=b.device).expand(*batch, read.n, 1)
    found = largest_eigenvalue(lambda X: apply(X) if inner is None else inner(apply(X)), start)
    good = found.isfinite() & (found > 0)
    return torch.where(good, found, 1)[..., None, None]
