"""The distribution of the rows of a matrix and its vectors over the processes."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.petsc._processes import processes


def share(n: int) -> tuple[int, int]:
    """This process's share of n rows, (lo, hi), consecutive; shares differ by at most one row.

    Parameters
    ----------
    n : int, the total number of rows

    Returns
    -------
    (lo, hi) : rows lo to hi - 1, for ``problems.poisson(shape, rows=(lo, hi))``

    Examples
    --------
    In one process; with two processes, (0, 5) and (5, 10):

    >>> from learnsolve import petsc
    >>> petsc.share(10)
    (0, 10)
    """
    n = checks.integer("petsc.share", "n", n, 0)
    rank, size = processes().rank, processes().size
    return n * rank // size, n * (rank + 1) // size


class Rows:
    """The local rows lo to hi - 1 of n, and the sums over processes that loops need (ops/core/across.py).

    Attributes
    ----------
    starts : (processes + 1,) int64, the first row of each process, and n
    """

    def __init__(self, function: str, name: str, row_range: Any, n: int):
        try:
            lo, hi = (operator.index(i) for i in row_range)
        except (TypeError, ValueError):
            raise TypeError(f"{function}: {name} must be two integers (lo, hi), got {row_range!r}") from None
        self.lo, self.hi, self.rows, self.count = lo, hi, n, hi - lo
        ranges = processes().gathered(torch.tensor([lo, hi, n], dtype=torch.float64)).long()
        starts, ends = ranges[:, 0].tolist(), ranges[:, 1].tolist()
        good = starts == [0, *ends[:-1]] and ends[-1] == n and all(map(operator.le, starts, ends))
        if not good or len(set(ranges[:, 2].tolist())) > 1:
            listed = ", ".join(f"({a}, {b})" for a, b in zip(starts, ends, strict=True))
            raise ValueError(
                f"{function}: the {name}s of the processes must follow one another from 0 to n = {n}, got "
                f"{listed}; petsc.share(n) divides n rows"
            )
        self.starts = torch.tensor([*starts, n])
        self.most = int((ranges[:, 1] - ranges[:, 0]).max())

    def check(self, function: str, name: str, t: Tensor) -> None:
        """t must hold the local rows of one or several vectors."""
        if t.dim() not in (1, 2) or t.shape[0] != self.count:
            whole = t.dim() in (1, 2) and t.shape[0] == self.rows
            raise ValueError(
                f"{function}: {name} must be the rows of this process, ({self.count},) or ({self.count}, k), "
                f"got shape {tuple(t.shape)}"
                + (f", those of all processes; pass {name}[{self.lo}:{self.hi}]" if whole else "")
            )

    def same(self, other: Rows) -> bool:
        return self is other or torch.equal(self.starts, other.starts)

    def total(self, t: Tensor) -> Tensor:
        return processes().total(t)

    def largest(self, t: Tensor) -> Tensor:
        return processes().largest(t)

    def shown(self, t: Tensor) -> Tensor:
        return processes().shown(t)

    def parameter(self, name: str, key: str, value: Tensor, rows: bool) -> Tensor:
        if rows and processes().size > 1:
            if self.most == 1 and value.numel() > 1:
                raise ValueError(f"{name}: with one row a process, {key} must be one number for all rows")
            if bool(processes().largest(torch.tensor([float(value.shape[-1] != 1)]))):
                if value.shape[-1] != self.count:
                    raise ValueError(
                        f"{name}: {key} must have one number for each of the {self.count} rows of this "
                        f"process, or one for all rows in every process, got shape {tuple(value.shape)}"
                    )
                return value
        return processes().copies(value)
