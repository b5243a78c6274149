"""What a library for direct solves offers: an `Analysis` of a pattern, which makes a `Factor` per matrix.

A pattern keeps its analyses (`Structure`), so that further matrices on it are factored faster. A factor never
changes: a graph that holds it differentiates through it after the analysis has made others.
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
# All of them count rows and entries in C ints.
LARGEST = int(np.iinfo(np.intc).max)


class Request(NamedTuple):
    """What the caller asked for."""

    kind: str = "auto"
    backend: str = "auto"
    ordering: str = "auto"


AUTO = Request()


class Factor(Protocol):
    """The factors of one matrix A.

    Attributes
    ----------
    backend, kind : what made them, and which: "cholesky", "ldlt" or "lu"
    entries : int, stored in them
    """

    backend: str
    kind: str

    @property
    def entries(self) -> int: ...

    def solve(self, b: np.ndarray, transpose: bool) -> np.ndarray:
        """A^-1 b or A^-T b, for b (n,) or (n, k)."""
        ...

    def logdet(self) -> float | None:
        """log |det A|; None if the factors do not tell."""
        ...

    def negative(self) -> int | None:
        """The number of negative eigenvalues of a symmetric A; None if the factors do not tell."""
        ...


class Analysis(Protocol):
    """What a library computes from a pattern alone, and keeps.

    Attributes
    ----------
    kinds : the kinds of factors that it makes
    orderings : name of the library's own for each that it has
    """

    name: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    orderings: ClassVar[dict[str, Any]]
    dtypes: ClassVar[tuple[str, ...]]

    def __init__(self, structure: Structure, kind: str, ordering: str): ...

    def factor(self, data: np.ndarray) -> Factor:
        """The factors of the matrix with these values, which are finite; for "cholesky" and "ldlt" those of
        a symmetric matrix. Raises what is below, or MemoryError."""
        ...


class Singular(Exception):
    """A pivot is zero."""


class NotDefinite(Exception):
    """A pivot of a Cholesky factorization is not positive. `row`: of A; -1 if the library does not tell."""

    def __init__(self, row: int = -1):
        super().__init__(row)
        self.row = row


class Unreliable(Exception):
    """The library had to replace pivots, or has lost accuracy: another one decides."""


class Structure:
    """A pattern on the host, as C ints, and what libraries keep of it.

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
    """Made once for a pattern."""
    return P._cached("direct", _structure, P)[0]


def _structure(P: SparsityPattern) -> tuple[Structure, torch.Tensor, torch.Tensor]:
    crow, col = (t.to(torch.int32).cpu().contiguous() for t in (P.crow_indices, P.col_indices))
    return Structure(crow, col, P.shape), crow, col  # tensors, so that they are counted
