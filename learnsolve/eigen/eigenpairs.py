"""The results of `eigsh` and `svds`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from learnsolve.solvers.solution import Status


class Eigenpairs(NamedTuple):
    """Eigenvalues and eigenvectors; ``values, vectors = eigsh(A, k)[:2]``.

    Attributes
    ----------
    values : Tensor, shape (..., k), ascending, differentiable
    vectors : Tensor, shape (..., n, k), differentiable, U^T B U = I. In each column the first of the largest
        entries in magnitude (up to 0.1 %) is positive
    residual_norms : Tensor, shape (..., k), constants: ||A u - lambda B u|| / ||B u||, for B = I a bound of
        the distance to an eigenvalue
    statuses : list of `solvers.Status`, one per pair, in order for a batch
    gaps : Tensor, shape (..., k), constants: the distance to the nearest other of these values
    method : str, the method that ran: "dense", "shift-invert", "Lanczos" or "LOBPCG", and the reason
    iterations : int, products with the operator, or steps; 0 for "dense"

    Examples
    --------
    >>> import learnsolve as ls
    >>> pairs = ls.eigsh(ls.problems.poisson((8, 8)), 3)
    >>> pairs
    Eigenpairs(values=(3,), vectors=(64, 3), status=CONVERGED, method='dense: n is at most 256')
    >>> pairs.converged, bool(pairs.gaps[1] < 1e-12)  # the second and the third are equal
    (True, True)
    """

    values: Tensor
    vectors: Tensor
    residual_norms: Tensor
    statuses: list[Status]
    gaps: Tensor
    method: str
    iterations: int

    @property
    def status(self) -> Status:
        """The worst status of all pairs."""
        order = list(Status)
        return max(self.statuses, key=order.index)

    @property
    def converged(self) -> bool:
        return self.status is Status.CONVERGED

    def summary(self) -> str:
        """One paragraph for an error message."""
        bad = [i for i, status in enumerate(self.statuses) if status is not Status.CONVERGED]
        return (
            f"{self.status.name} in {len(bad)} of {len(self.statuses)} pairs, the first is {bad[:1]}, after "
            f"{self.iterations} iterations of {self.method}; largest residual "
            f"{float(self.residual_norms.nan_to_num(torch.inf).max()):.3g}. {self.status}"
        )

    def __repr__(self) -> str:
        return (
            f"Eigenpairs(values={tuple(self.values.shape)}, vectors={tuple(self.vectors.shape)}, "
            f"status={self.status.name}, method={self.method!r})"
        )


class SingularTriplets(NamedTuple):
    """Singular values and vectors, A v = s u, A^T u = s v; ``U, S, V = svds(A, k)[:3]``.

    Attributes
    ----------
    U : Tensor, shape (..., m, k), differentiable
    S : Tensor, shape (..., k), descending, differentiable
    V : Tensor, shape (..., n, k), differentiable, signs as for `Eigenpairs.vectors`
    pairs : Eigenpairs of the symmetric matrix used

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[3.0, 0.0], [0.0, 2.0], [0.0, 0.0]]))
    >>> ls.svds(A, 1).S
    tensor([3.])
    """

    U: Tensor
    S: Tensor
    V: Tensor
    pairs: Eigenpairs
