"""Combine samples of a data set into a batch, for `torch.utils.data.DataLoader`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data._utils.collate import default_collate_fn_map

from learnsolve.matrix import checks
from learnsolve.matrix.checks import check_arguments
from learnsolve.matrix.csr import CSR
from learnsolve.ops.blocks import BlockBatch
from learnsolve.problems.datasets import Sample


@check_arguments
def collate(samples: Sequence[object], *, stack: bool = False) -> Any:
    """Combine several systems into one: the `collate_fn` of a `DataLoader`.

    Parameters
    ----------
    samples : list of CSRs, of tuples (A, b), (A, b, x), ... of a CSR and tensors over its rows, (n,) or (n,
        k), or None, or of samples of `problems.dataset`, used as (A, b, x)
    stack : batch matrices with equal patterns by `CSR.stack`: ``functools.partial(collate, stack=True)``.
        The type of the result depends on this argument, never on the data.

    Returns
    -------
    A `BlockBatch`, or a tuple of it and concatenated tensors, (n_1 + n_2 + ...,) or (..., k); None where all
    samples have None. With `stack`, a CSR with values (B, nnz) and tensors (B, n, k), k = 1 for vectors.

    Raises
    ------
    ValueError, TypeError
        if the samples differ in kind, or tensors do not match the rows of their matrix.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> matrices = [ls.problems.poisson(shape) for shape in ((5,), (2, 3), (4,))]
    >>> data = [(A, torch.ones(A.shape[0], dtype=A.dtype)) for A in matrices]
    >>> loader = torch.utils.data.DataLoader(data, batch_size=3, collate_fn=ls.collate)
    >>> for A, b in loader:
    ...     print(A, b.shape, ls.solvers.cg(A, b).status.name)
    BlockBatch(blocks=3, shape=(15, 15), nnz=43, dtype=float64, device=cpu) torch.Size([15]) CONVERGED
    """
    name = "collate"
    if not isinstance(samples, Sequence) or not samples:
        raise ValueError(f"{name}: expected a list of samples, at least one, got {samples!r}")
    rows = [_parts(name, sample) for sample in samples]
    if len({len(row) for row in rows}) > 1:
        raise ValueError(
            f"{name}: samples must have as many parts as each other, got {sorted({len(row) for row in rows})}"
        )
    matrices, *columns = zip(*rows, strict=True)
    for i, A in enumerate(matrices):
        checks.matrix(name, f"the matrix of sample {i}", A)
    parts = [_join_sides(name, f"part {i}", column, matrices, stack) for i, column in enumerate(columns, 1)]
    batch = CSR.stack(matrices) if stack else BlockBatch(matrices)
    return (batch, *parts) if isinstance(samples[0], (tuple, Sample)) or parts else batch


def _parts(name: str, sample: object) -> tuple:
    if isinstance(sample, CSR):
        return (sample,)
    if isinstance(sample, Sample):
        return sample.A, sample.b, sample.x
    if not isinstance(sample, (tuple, list)) or not sample:
        raise TypeError(
            f"{name}: a sample must be a CSR, a tuple (A, b) or (A, b, x), or one of problems.dataset, got "
            f"{type(sample).__name__}. For others write a function that picks A and b and calls collate"
        )
    return tuple(sample)


def _join_sides(name: str, what: str, column: tuple, matrices: tuple[CSR, ...], stack: bool) -> Tensor | None:
    if all(part is None for part in column):
        return None
    for i, (part, A) in enumerate(zip(column, matrices, strict=True)):
        checks.tensor(name, f"{what} of sample {i}", part)
        if part.dim() not in (1, 2) or part.dim() != column[0].dim() or len(part) != A.shape[0]:
            raise ValueError(
                f"{name}: {what} of sample {i} must have shape (n,) or (n, k) with n = {A.shape[0]}, as many "
                f"axes as the first, got {tuple(part.shape)}"
            )
    if not stack:
        return torch.cat(column)
    return torch.stack([part if part.dim() == 2 else part.unsqueeze(1) for part in column])


def _default(samples: Sequence[CSR], *, collate_fn_map: object = None) -> CSR:
    """The rule of `torch.utils.data.default_collate` for matrices: `CSR.stack`."""
    return CSR.stack(samples)


default_collate_fn_map[CSR] = _default
