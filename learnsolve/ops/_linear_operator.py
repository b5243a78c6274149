"""A CSR as SciPy's solvers take it."""

import numpy as np
import scipy.sparse.linalg
import torch

from learnsolve.csr import CSR
from learnsolve.ops._product import product


class CSROperator(scipy.sparse.linalg.LinearOperator):
    """Products by our kernels, on the host, without gradient. Values that change later are seen."""

    def __init__(self, A: CSR):
        self.A = A
        super().__init__(dtype=np.dtype(str(A.dtype).removeprefix("torch.")), shape=A.shape)

    def _multiply(self, x: np.ndarray, transpose: bool) -> np.ndarray:
        A = self.A
        if np.iscomplexobj(x):
            return self._multiply(np.real(x), transpose) + 1j * self._multiply(np.imag(x), transpose)
        # A copy: torch does not take read-only arrays, or negative strides.
        vectors = torch.from_numpy(np.array(x, dtype=self.dtype)).to(A.device)
        with torch.no_grad():
            return product(A.values.detach(), vectors, A.pattern, transpose).cpu().numpy()

    def _matvec(self, x: np.ndarray) -> np.ndarray:
        return self._multiply(x.reshape(-1), False)

    def _rmatvec(self, x: np.ndarray) -> np.ndarray:
        return self._multiply(x.reshape(-1), True)

    def _matmat(self, X: np.ndarray) -> np.ndarray:
        return self._multiply(X, False)

    def _rmatmat(self, X: np.ndarray) -> np.ndarray:
        return self._multiply(X, True)
