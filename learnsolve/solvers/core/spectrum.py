"""Bounds `lmin`, `lmax` of the spectrum of M A, estimated where they are not given."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learnsolve import _check
from learnsolve.ops import _across
from learnsolve.ops.block_batch import BlockBatch
from learnsolve.preconditioners._spectrum import RATIO, largest_eigenvalue
from learnsolve.preconditioners.base import readable
from learnsolve.solvers.core.operators import as_operator, as_preconditioner
from learnsolve.solvers.core.parameters import Parameters
from learnsolve.solvers.options import Options


def bounds(read: Parameters, lmin: Any, lmax: Any, options: Options) -> tuple[Any, Any]:
    """`lmin` and `lmax` as `read.read` has them: lmax, if it is None, 1.1 times an estimate by 10 steps of
    Arnoldi's method, constant to every derivative; lmin lmax / 30."""
    named = (("lmin", lmin), ("lmax", lmax))
    low, high = (None if value is None else read.read(key, value, rows=False) for key, value in named)
    low, high = _checked(read.name, low, high)
    high = _estimate(read, options) if high is None else high
    return high / RATIO if low is None else low, high


def given_bounds(name: str, lmin: Any, lmax: Any) -> tuple[Any, Any]:
    """The same, both given and outside of a call."""
    named = (("lmin", lmin), ("lmax", lmax))
    return _checked(name, *(t if isinstance(t, Tensor) else _check.number(name, key, t) for key, t in named))


def _checked(name: str, low: Any, high: Any) -> tuple[Any, Any]:
    """0 < lmin <= lmax < inf for numbers. Tensors that are `readable`: 0 < t < inf; bounds that are learned
    may cross on the way, and mean the same then."""
    for key, value in (("lmin", low), ("lmax", high)):
        wrong = None
        if isinstance(value, Tensor):
            _check.dtype(name, key, value)
            if readable(value) and not (good := (value > 0) & (value < math.inf)).all():
                wrong = float(value.detach()[~good][0])
        elif value is not None and not 0 < value < math.inf:
            wrong = value
        if wrong is not None:
            raise ValueError(
                f"{name}: {key} must be positive and finite, got {wrong}; it bounds the spectrum of M A, "
                "which must be positive"
            )
    if isinstance(low, float) and isinstance(high, float) and low > high:
        raise ValueError(f"{name}: lmin must not be larger than lmax, got {low} and {high}; swap them")
    return low, high


def _estimate(read: Parameters, options: Options) -> Tensor:
    """In the form in full of Parameters, with one value per member of the batch; 1 where there is none that
    is positive, so that the solve says what is wrong."""
    name, A, b, M = read.name, read.A, read.b, options.M
    for wrong, error, case in (
        (torch.compiler.is_dynamo_compiling(), NotImplementedError, "under torch.compile"),
        (_across.of(A) is not None, NotImplementedError, "for rows in several processes"),
        (isinstance(M, (list, tuple)), ValueError, "for one M a block"),
    ):
        if wrong:
            raise error(
                f"{name}: the largest eigenvalue of M A is not estimated {case}; pass lmax= or, for "
                "richardson, weight="
            )
    A = A.matrix if isinstance(A, BlockBatch) else A
    apply = as_operator(name, A, b, options.transpose, tuple(options.parameters))
    inner = as_preconditioner(name, "M", M, b)
    whole = not hasattr(A, "batch_shape") or A.batch_shape or getattr(M, "batch_shape", ())
    batch = read.batch if whole else torch.Size()
    if read.n == 0:
        return b.new_ones((*batch, 1, 1))
    start = torch.from_numpy(np.random.default_rng(0).standard_normal((read.n, 1)))
    start = start.to(dtype=b.dtype, device=b.device).expand(*batch, read.n, 1)
    largest = largest_eigenvalue(lambda X: apply(X) if inner is None else inner(apply(X)), start)
    good = largest.isfinite() & (largest > 0)
    return torch.where(good, largest, 1)[..., None, None]
