"""SuiteSparse's CHOLMOD, through scikit-sparse 0.4 (extra `cholmod`): the supernodal Cholesky factorization.

Source: Chen, Davis, Hager and Rajamanickam, "Algorithm 887: CHOLMOD, supernodal sparse Cholesky factorization
and update/downdate", ACM Trans. Math. Softw. 35 (2008).
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import numpy as np
import scipy.sparse

from learnsolve.ops.core.direct.backend import NotDefinite, Structure


@functools.cache
def library() -> Any:
    """ImportError if it is missing or has another version."""
    from sksparse import cholmod  # type: ignore[import-not-found]

    if not hasattr(cholmod, "analyze"):
        raise ImportError("scikit-sparse 0.5 and later are not supported; install scikit-sparse<0.5")
    return cholmod


class Cholmod:
    name: ClassVar[str] = "cholmod"
    kinds: ClassVar[tuple[str, ...]] = ("cholesky",)
    orderings: ClassVar[dict[str, Any]] = {
        "minimum_degree": "amd",
        "nested_dissection": "metis",
        "natural": "natural",
    }
    dtypes: ClassVar[tuple[str, ...]] = ("float64",)

    def __init__(self, structure: Structure, kind: str, ordering: str):
        arrays = np.zeros(structure.nnz), structure.indices, structure.indptr
        self.A = scipy.sparse.csc_matrix(arrays, shape=structure.shape)
        method = "default" if ordering == "auto" else self.orderings[ordering]
        try:
            self.symbolic = library().analyze(self.A, mode="supernodal", ordering_method=method)
        except library().CholmodOutOfMemoryError:
            raise MemoryError from None

    def factor(self, data: np.ndarray) -> Factored:
        A = self.A.copy()
        A.data = data
        try:
            return Factored(self.symbolic.cholesky(A))
        except library().CholmodNotPositiveDefiniteError as error:
            raise NotDefinite(int(self.symbolic.P()[error.column])) from None
        except (library().CholmodOutOfMemoryError, library().CholmodTooLargeError):
            raise MemoryError from None


class Factored:
    backend: str = "cholmod"
    kind: str = "cholesky"

    def __init__(self, factor: Any):
        self.factor = factor
        self._entries = 0

    @property
    def entries(self) -> int:
        if not self._entries:  # L is copied
            self._entries = int(self.factor.L().nnz)
        return self._entries

    def solve(self, b: np.ndarray, transpose: bool) -> np.ndarray:
        return self.factor.solve_A(b)

    def logdet(self) -> float:
        return float(self.factor.logdet())

    def negative(self) -> int:
        return 0
