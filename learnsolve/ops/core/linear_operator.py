"""A linear map of tensors as a SciPy LinearOperator."""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse.linalg
import torch
from torch import Tensor

from learnsolve.matrix.pattern_checks import as_numpy
from learnsolve.ops.core.product import product


class HostOperator(scipy.sparse.linalg.LinearOperator):
    """`apply(of, X, transpose)` for NumPy arrays, on the host, without gradient. `of` has a shape; it, or
    `like`, has a dtype and a device. Later changes of its values take effect."""

    def __init__(self, of: Any, apply: Callable[[Any, Tensor, bool], Tensor], like: Tensor | None = None):
        self.of, self.apply, self.like = of, apply, of if like is None else like
        super().__init__(dtype=np.dtype(str(self.like.dtype).removeprefix("torch.")), shape=of.shape)

    def _multiply(self, x: np.ndarray, transpose: bool) -> np.ndarray:
        if np.iscomplexobj(x) and not self.like.dtype.is_complex:
            return self._multiply(np.real(x), transpose) + 1j * self._multiply(np.imag(x), transpose)
        # A copy: torch does not accept read-only arrays or negative strides.
        vectors = torch.from_numpy(np.array(x, dtype=self.dtype)).to(self.like.device)
        with torch.no_grad():
            return as_numpy(self.apply(self.of, vectors, transpose))

    def _matvec(self, x: np.ndarray) -> np.ndarray:
        return self._multiply(x.reshape(-1), False)

    def _rmatvec(self, x: np.ndarray) -> np.ndarray:
        return self._rmatmat(x.reshape(-1))

    def _matmat(self, X: np.ndarray) -> np.ndarray:
        return self._multiply(X, False)

    def _rmatmat(self, X: np.ndarray) -> np.ndarray:
        return self._multiply(X.conj(), True).conj()  # A^H X


def matrix_product(A: Any, x: Tensor, transpose: bool) -> Tensor:
    """`apply` for a CSR."""
    return product(A.values.detach(), x, A.pattern, transpose)
