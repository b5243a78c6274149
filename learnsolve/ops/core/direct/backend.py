"""The interface of a direct-solver library: an `Analysis` of a pattern, which makes a `Factor` per matrix.

A pattern keeps its analyses (`Structure`), so that further matrices on it are factored faster. A factor is
immutable: a graph that holds it differentiates through it after the analysis has made others.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import scipy.sparse
import torch

from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.core.singular import no_matching

KINDS = ("cholesky", "ldlt", "lu")
ORDERINGS = ("auto", "minimum_degree", "colamd", "nested_dissection", "natural")
# All libraries count rows and entries in C ints.
LARGEST = int(np.iinfo(np.intc).max)


class Request(NamedTuple):
    """The options of the caller, as words."""

    kind: str = "auto"
    backend: str = "auto"
    ordering: str = "auto"
    unknowns: str = ""  # how many, of least squares: the last ones of the augmented system of ops/lstsq.py


AUTO = Request()


class Factor(Protocol):
    """The factors of one matrix A.

    Attributes
    ----------
    backend, kind : the library, and "cholesky", "ldlt" or "lu"
    entries : int, stored entries
    """

    backend: str
    kind: str

    @property
    def entries(self) -> int: ...

    def solve(self, b: np.ndarray, transpose: bool) -> np.ndarray:
        """A^-1 b or A^-T b, for b (n,) or (n, k)."""
        ...

    def logdet(self) -> float | None:
        """log |det A|; None if not available from the factors."""
        ...

    def negative(self) -> int | None:
        """The number of negative eigenvalues of a symmetric A; None if not available from the factors."""
        ...


class Analysis(Protocol):
    """The data that a library computes from a pattern and keeps.

    Attributes
    ----------
    kinds : the supported kinds of factors
    orderings : the library's name of each supported ordering
    """

    name: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    orderings: ClassVar[dict[str, Any]]
    dtypes: ClassVar[tuple[str, ...]]

    def __init__(self, structure: Structure, kind: str, ordering: str): ...

    def factor(self, data: np.ndarray) -> Factor:
        """The factors of the matrix with these finite values; for "cholesky" and "ldlt" the matrix is
        symmetric. Raises one of the exceptions below, or MemoryError."""
        ...


class Singular(Exception):
    """A pivot is zero."""


class NotDefinite(Exception):
    """A pivot of a Cholesky factorization is not positive. `row`: of A; -1 if unknown."""

    def __init__(self, row: int = -1):
        super().__init__(row)
        self.row = row


class Unreliable(Exception):
    """The library had to replace pivots, or has lost accuracy: another library is tried."""


class Structure:
    """A pattern on the host, as C ints, and the data that libraries keep for it.

    `fault`: why every matrix on it is singular, empty if not. SuperLU breaks down on some of them, in calls
    of BLAS with invalid sizes.
    """

    def __init__(self, crow: torch.Tensor, col: torch.Tensor, shape: tuple[int, int]):
        self.shape, self.n, self.nnz = shape, shape[0], len(col)
        self.indptr, self.indices = crow.numpy(), col.numpy()
        self.analyses: dict[tuple[str, str, str], Analysis] = {}
        rows = np.repeat(np.arange(self.n, dtype=np.intc), np.diff(self.indptr))
        self.fault = ""
        if np.count_nonzero(rows == self.indices) < self.n:
            self.fault = no_matching(self.matrix(np.ones(self.nnz, np.int8)))

    def matrix(self, data: np.ndarray) -> scipy.sparse.csr_array:
        return scipy.sparse.csr_array((data, self.indices, self.indptr), shape=self.shape)


def structure(P: SparsityPattern) -> Structure:
    """The structure of a pattern, made once."""
    return P._cached("direct", _structure, P)[0]


def _structure(P: SparsityPattern) -> tuple[Structure, torch.Tensor, torch.Tensor]:
    # Copies: NumPy does not notice that `share_memory_` moves what a tensor holds.
    crow, col = (t.to("cpu", torch.int32, copy=True) for t in (P.crow_indices, P.col_indices))
    return Structure(crow, col, P.shape), crow, col  # tensors, so that their memory is counted
