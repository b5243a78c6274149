"""A triangular matrix with trainable values; a parametrisation can keep its diagonal positive."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from learnsolve import _check
from learnsolve.csr import CSR
from learnsolve.nn._holds_pattern import HoldsPattern, _difference, parameter
from learnsolve.ops._gather import permuted
from learnsolve.ops.triangle import tril, triu
from learnsolve.pattern import SparsityPattern, as_numpy
from learnsolve.preconditioners._held import POSITIVE, check_start, positive, raw
from learnsolve.preconditioners.factored import check_has_diagonal, check_triangular


class Parts(NamedTuple):
    """Entries off the diagonal and on it, as one list: in this order, and back."""

    off: int
    split: Tensor  # place in the pattern of each of the list
    join: Tensor  # place in the list of each of the pattern


def _plan_parts(P: SparsityPattern) -> Parts:
    on = as_numpy(P.diagonal_positions).astype(np.int64)
    off = np.setdiff1d(np.arange(P.nnz), on, assume_unique=True)
    split = np.concatenate((off, on))
    join = np.empty_like(split)
    join[split] = np.arange(len(split))
    return Parts(len(off), P._tensor(split), P._tensor(join))


class TriangularFactor(HoldsPattern):
    """Values of a triangular CSR as parameters: `matrix()` is the CSR.

    With `positive` None there is one parameter, `values`, in the order of the pattern; with "exp" or
    "softplus" there are two, `off_diagonal` and `diagonal`, the latter of numbers whose exponential (or
    softplus) stands on the diagonal, times the `sign` that it had at the start if `any_sign`. With
    `unit_diagonal` the entries on the diagonal are left out: they would not be read.
    """

    sign: Tensor
    instead = "use preconditioners.Factored, which keeps the graph of its factors"

    def __init__(
        self,
        function: str,
        name: str,
        L: CSR,
        *,
        lower: bool,
        unit_diagonal: bool = False,
        positive: str | None = None,
        any_sign: bool = False,
    ):
        super().__init__()
        _check.matrix(function, name, L)
        if positive is not None:
            _check.one_of(function, "positive", positive, POSITIVE)
        self.function, self.name, self.any_sign = function, name, any_sign
        self.lower, self.unit_diagonal = lower, unit_diagonal
        self.positive = None if unit_diagonal else positive
        L = self._part_that_is_read(L)
        self._hold(L.pattern)
        self.shape = L.shape
        if self.positive is None:
            self.values = parameter(L.values)
            return
        off, diagonal, sign = self._split(L)
        self.off_diagonal, self.diagonal = parameter(off), parameter(diagonal)
        if any_sign:
            self.register_buffer("sign", sign)

    def _part_that_is_read(self, L: CSR) -> CSR:
        function, name = self.function, self.name
        check_start(function, f"{name}.values", L.values, self.instead)
        _check.square(function, name, L.shape)
        check_triangular(function, name, L, self.lower)
        if self.unit_diagonal:
            return tril(L, -1) if self.lower else triu(L, 1)
        check_has_diagonal(function, name, L)
        return L

    def _split(self, L: CSR) -> tuple[Tensor, Tensor, Tensor]:
        """Values off the diagonal, numbers that stand for the diagonal, its sign."""
        plan = L.pattern._planned(_plan_parts)
        values = L.values.detach().index_select(-1, plan.split)
        off, diagonal = values[..., : plan.off], values[..., plan.off :]
        size = diagonal.abs() if self.any_sign else diagonal
        # Of a subnormal number the reciprocal overflows, and the solve divides by it.
        bad = ~(size >= torch.finfo(size.dtype).tiny)
        if bad.any():
            at = tuple(bad.nonzero()[0].tolist())
            rule = "without zeros" if self.any_sign else "positive"
            raise ValueError(
                f"{self.function}: the diagonal of {self.name} must be {rule}, row {at[-1]} has "
                f"{diagonal[at].item():.6g}; shift it, or change the sign of that column"
            )
        return off, raw(size, self.positive), diagonal.sign()

    def matrix(self) -> CSR:
        """The triangular matrix, a differentiable function of the parameters."""
        if self.positive is None:
            return CSR(self.values, self.pattern)
        d = positive(self.diagonal, self.positive)
        if self.any_sign:
            d = self.sign * d
        plan = self.pattern._planned(_plan_parts)
        values = permuted(torch.cat((self.off_diagonal, d), -1), plan.join, plan.split)
        return CSR(values, self.pattern)

    def assignments(self, L: CSR) -> list[tuple[Tensor, Tensor]]:
        """Checked: what to copy where, so that `matrix()` is L, on the same pattern."""
        function = f"{self.function}.assign_"
        _check.matrix(function, self.name, L)
        learnt = self.values if self.positive is None else self.diagonal
        _check.same_kind(function, f"{self.name}.values", L.values, learnt)
        if L.batch_shape != learnt.shape[:-1]:
            raise ValueError(
                f"{function}: {self.name} must have the batch axes of this module, "
                f"{tuple(learnt.shape[:-1])}, got {tuple(L.batch_shape)}"
            )
        L = self._part_that_is_read(L)
        if L.pattern is not self.pattern:
            for key in ("crow_indices", "col_indices"):
                fault = _difference(getattr(L.pattern, key), getattr(self.pattern, key))
                if fault is not None:
                    raise ValueError(
                        f"{self.function}.assign_: {self.name} must have the pattern of this module, but "
                        f"{key} {fault}; make a new module"
                    )
        with torch.no_grad():
            if self.positive is None:
                return [(self.values, L.values.detach())]
            off, diagonal, sign = self._split(L)
            pairs: list[tuple[Tensor, Tensor]] = [(self.off_diagonal, off), (self.diagonal, diagonal)]
            return [*pairs, (self.sign, sign)] if self.any_sign else pairs

    def extra_repr(self) -> str:
        return (
            f"shape={self.shape}, nnz={self.pattern.nnz}, lower={self.lower}, "
            f"unit_diagonal={self.unit_diagonal}, positive={self.positive!r}"
        )


def assign(pairs: list[tuple[Tensor, Tensor]]) -> None:
    with torch.no_grad():
        for target, source in pairs:
            target.copy_(source)
