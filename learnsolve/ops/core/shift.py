"""The search for a shift with which the incomplete factors of incomplete.py exist."""

import warnings
from collections.abc import Iterator

import torch
from torch import Tensor

from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.core.autograd import Nestable
from learnsolve.ops.core.incomplete import _raw_factor, breakdown_message, plan_of, shifted

_FIRST_SHIFT, _TRIES = 1e-3, 30


class Search(Nestable):
    """The first shift for which the factors exist, of shift, 1e-3 (or twice the shift, if that is larger),
    its double, ...; values (B, nnz), shift (B). A constant to every derivative."""

    @staticmethod
    def forward(values, shift, pattern, kind):
        return _search(values, shift, pattern, kind)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx, *_):  # type: ignore[override]
        return None, None, None, None

    @staticmethod
    def jvp(ctx, *_):  # type: ignore[override]
        return None

    @staticmethod
    def vmap(info, in_dims, values, shift, pattern, kind):
        size = info.batch_size
        v, s = (
            t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in zip((values, shift), in_dims[:2], strict=True)
        )
        found = Search.apply(v.reshape(-1, v.shape[-1]), s.reshape(-1), pattern, kind)
        return found.reshape(size, -1), 0  # type: ignore[union-attr]


def _search(values: Tensor, shift: Tensor, pattern: SparsityPattern, kind: str) -> Tensor:
    plan = plan_of(pattern, kind)
    crow = pattern.crow_indices if plan.crow is None else plan.crow
    shift, open_ = shift.clone(), torch.arange(len(shift), device=shift.device)
    breakdown = shift.new_empty(0, 2)
    for attempt in range(_TRIES + 1):
        if attempt:
            shift[open_] = (2 * shift[open_]).clamp(min=_FIRST_SHIFT)
        v = shifted(values[open_], shift[open_], pattern)
        breakdown = _raw_factor(*plan.elimination, crow, v, False)[1]
        failed = breakdown[:, 0] >= 0
        open_, breakdown = open_[failed], breakdown[failed]
        if len(open_) == 0:
            break
    else:
        at, (row, pivot) = int(open_[0]), breakdown[0].tolist()
        message = breakdown_message(kind, int(row), pivot, at if len(shift) > 1 else None)
        raise in_vain(message, float(shift[at]))
    if attempt:
        warn(kind.partition("/")[0], float(shift.max()))
    return shift


def attempts(shift: float) -> Iterator[float]:
    """The shifts to try, in order."""
    for _ in range(_TRIES + 1):
        yield shift
        shift = max(2 * shift, _FIRST_SHIFT)


def in_vain(message: str, last: float) -> ValueError:
    return ValueError(
        f"{message}, even with shift {last:.3g} (the last of {_TRIES} tries); a shift relative to the "
        "diagonal does not help where that is zero or negative: permute the rows, or add a multiple of the "
        "identity"
    )


def warn(kind: str, largest: float) -> None:
    warnings.warn(
        f"{kind}: a pivot broke down, the diagonal was shifted by {largest:.3g} times itself (result.shift); "
        "give shift=... to choose it",
        RuntimeWarning,
        stacklevel=3,
    )
