"""Linear maps of any type as functions of blocks of columns, with and without their derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse.linalg
import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.convert import check_real
from learnsolve.matrix.pattern import as_numpy
from learnsolve.matrix.plain import plain_tensors

Map = Callable[[Tensor], Tensor]


class Space(NamedTuple):
    """The length, dtype and device of vectors, and the batch axes of the map."""

    n: int
    dtype: torch.dtype
    device: torch.device
    batch: torch.Size = torch.Size()

    def start(self) -> Tensor:
        """A column, the same in each call: random, so that no eigenvector is orthogonal to it."""
        g = torch.Generator("cpu").manual_seed(0)
        with plain_tensors():
            start = torch.randn(self.n, 1, dtype=torch.float64, generator=g, device="cpu")
            return start.to(self.dtype).to(self.device)

    def numbers(self, *values: float) -> Tensor:
        return torch.tensor(values, dtype=self.dtype, device=self.device)

    def for_all(self, X: Tensor) -> Tensor:
        """Columns (n, k), the same for each matrix of the batch."""
        return X.expand(*self.batch, *X.shape)

    def which(self, i: int) -> str:
        """The prefix of messages about matrix i."""
        return f"matrix {i} of the batch: " if self.batch else ""


def space_of(function: str, name: str, A: Any, n: int | None, dtype: torch.dtype | None) -> Space:
    """The space that A, square, maps into itself."""
    shape = getattr(A, "shape", None)
    if shape is None:
        if n is None:
            raise ValueError(f"{function}: the size of a callable {name} is unknown; pass n=")
        n = checks.integer(function, "n", n, 1)
        dtype = torch.float64 if dtype is None else dtype
        checks.one_of(function, "dtype", dtype, checks.SUPPORTED)
        return Space(n, dtype, torch.device("cpu"))
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"{function}: {name} must be square, got shape {tuple(shape)}")
    if shape[0] == 0:
        raise ValueError(f"{function}: {name} has no rows, so there are no eigenvalues; skip the call")
    for key, argument, known in (("n", n, shape[0]), ("dtype", dtype, _dtype(A))):
        if argument is not None and argument != known:
            raise ValueError(
                f"{function}: {key} is for a callable {name}; that of this {type(A).__name__} is "
                f"{known}, got {argument}"
            )
    check_real(function, name, _dtype(A))
    batch = torch.Size(getattr(A, "batch_shape", ()))
    if batch.numel() == 0:
        raise ValueError(f"{function}: {name} is an empty batch of shape {tuple(batch)}; leave it out")
    return Space(int(shape[0]), _dtype(A), getattr(A, "device", torch.device("cpu")), batch)


def with_batch_of(function: str, space: Space, M: Any) -> Space:
    """The space of products with A and M, whose batch axes are broadcast."""
    checks.batches(function, space.batch, batch := torch.Size(getattr(M, "batch_shape", ())), "A and M")
    if not batch:  # `broadcast_shapes` is Python: 30 us
        return space
    return space._replace(batch=torch.broadcast_shapes(space.batch, batch))


def member(apply: Map, space: Space, i: int) -> Map:
    """The map of matrix i of a batch, by products with all matrices, zeros for the others."""
    if not space.batch:
        return apply
    count = space.batch.numel()
    one = torch.zeros(count, 1, 1, dtype=space.dtype, device=space.device)
    one[i] = 1

    def of_one(X: Tensor) -> Tensor:
        return apply((one * X).reshape(*space.batch, *X.shape)).reshape(count, *X.shape)[i]

    return of_one


def _dtype(A: Any) -> torch.dtype:
    if isinstance(A, scipy.sparse.linalg.LinearOperator):
        return torch.float32 if np.dtype(A.dtype) == np.float32 else torch.float64
    return A.dtype if isinstance(getattr(A, "dtype", None), torch.dtype) else torch.float64


def linear(function: str, name: str, M: Any) -> None:
    if not getattr(M, "linear", True):
        raise ValueError(
            f"{function}: {type(M).__name__} is not linear, so {name} has no eigenvalues; measure it with "
            "learnsolve.evaluate"
        )


def constant(function: str, f: Map) -> Map:
    """f without derivatives: the result belongs to neither a graph nor a transformation."""

    def apply(X: Tensor) -> Tensor:
        with torch.no_grad():
            return plain(function, f(X))

    return apply


def plain(function: str, t: Tensor) -> Tensor:
    """The values of t."""
    functorch: Any = torch._C._functorch  # type: ignore[attr-defined]
    while functorch.is_functorch_wrapped_tensor(t):
        if functorch.is_batchedtensor(t):
            raise NotImplementedError(
                f"{function}: vmap is not supported, since the number of steps depends on the data; call "
                "it for one matrix after another"
            )
        t = functorch.get_unwrapped(t)
    with plain_tensors():
        return t.detach()


def as_array(function: str, t: Tensor) -> np.ndarray:
    """The values of t on the host."""
    t = plain(function, t)
    with plain_tensors():
        return as_numpy(t)
