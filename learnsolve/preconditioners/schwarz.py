"""Additive Schwarz: the sum of the solutions on overlapping subdomains.

Source: Smith, Bjorstad, Gropp, "Domain Decomposition" (1996), chapters 1 and 2; Cai, Sarkis, "A restricted
additive Schwarz preconditioner for general sparse linear systems", SIAM J. Sci. Comput. 21 (1999),
doi:10.1137/S106482759732678X.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learnsolve import _check
from learnsolve._plain import makes_plain_tensors, plain_tensors
from learnsolve.csr import CSR
from learnsolve.ops._gather import take
from learnsolve.ops._product import product
from learnsolve.ops._symmetry import symmetry
from learnsolve.ops.spgemm import galerkin
from learnsolve.pattern import as_numpy
from learnsolve.preconditioners._direct import DirectSolver, cholesky, inverses
from learnsolve.preconditioners._subdomains import Subdomains, plan_factors, plan_given, plan_subdomains
from learnsolve.preconditioners.base import Preconditioner, check_numbers

_CORE = 64  # rows of a subdomain, before its overlap, if their number is not given


class AdditiveSchwarz(Preconditioner):
    r"""Local solves on overlapping subdomains, added up: linear.

    .. math:: M = \sum_i \tilde R_i^T A_i^{-1} R_i + P_0 (P_0^T A P_0)^{-1} P_0^T, \quad A_i = R_i A R_i^T

    R_i takes the rows of subdomain i; :math:`\tilde R_i = R_i`, or, `restricted`, R_i with zeros for rows
    that another subdomain owns. The second term if `coarse`: P_0 is one on the rows that a subdomain owns.

    Parameters
    ----------
    A : CSR, shape (n, n), float32 or float64; its values may have batch axes
    subdomains : sequence of arrays of integers, the rows of each, all rows in at least one; a row belongs to
        the first that names it. If not given, parts of the graph by recursive bisection
    n_subdomains : int, 1 to n, the number of parts; n / 64, rounded up, if neither is given
    overlap : int >= 0, rings of neighbours, in the graph of A + A^T, by which subdomains are extended
    restricted : bool, restricted additive Schwarz: fewer iterations and no row counted twice, not symmetric
    coarse : bool, add the coarse correction
    symmetric : bool, whether A is symmetric; if not given its numbers are compared, once for a matrix (not
        under `torch.compile`)

    Attributes
    ----------
    sizes : tuple of int, rows of each subdomain with its overlap

    Raises
    ------
    ValueError
        if A is not finite; if a local matrix is singular (the message names the subdomain), or the coarse
        one; if subdomains leave a row out, or their inverses would hold more than 2^27 numbers for a matrix.
    TypeError
        if types, dtypes or devices do not fit.
    NotImplementedError
        for CUDA tensors.

    Notes
    -----
    Symmetric if A is and it is not `restricted` (or nothing overlaps); the transpose of a restricted one
    restricts before the local solves. Positive definite if A is as well.

    Gradient: exact in r and in the values of A, of any order.

    The local inverses are dense: the sum of s_i^2 numbers, s_i the sizes rounded up to multiples of 8, and as
    many again for the graph if A requires grad; a call takes twice as many flops a column. Subdomains of one
    rounded size are one batch. Set-up: 2 s_i^3 flops each. Which entry goes where is planned once for a
    pattern, on the host, and kept with it; for subdomains that are given, in every construction. Without
    `coarse`, and symmetric positive definite, `cg` runs it in its compiled loop, as a product of sparse
    factors :math:`G G^T` with the local inverses' Cholesky factors, which have the gradient of their
    symmetric parts, and hold half as many numbers as the inverses. The same
    bits on every run with the same number of threads: the dense inverses are LAPACK's, which sums in another
    order on more threads.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((32, 32))
    >>> M = ls.preconditioners.AdditiveSchwarz(A, n_subdomains=16, overlap=2, coarse=True)
    >>> M.symmetric
    True
    >>> ls.solvers.cg(A, torch.ones(1024, dtype=torch.float64), M=M, rtol=1e-8).converged
    True
    """

    def __init__(
        self,
        A: CSR,
        subdomains: Sequence[Any] | None = None,
        *,
        n_subdomains: int | None = None,
        overlap: int = 1,
        restricted: bool = False,
        coarse: bool = False,
        symmetric: bool | None = None,
    ):
        name = "AdditiveSchwarz"
        super().__init__(A)
        check_numbers(name, A)
        overlap = _check.integer(name, "overlap", overlap, 0)
        _check.flag(name, "restricted", restricted)
        _check.flag(name, "coarse", coarse)
        self.plan = plan = _plan(A, subdomains, n_subdomains, overlap)
        self.inverses = self._inverses(A)
        self._ones = torch.ones(plan.restriction.nnz, dtype=A.dtype, device=A.device)
        self._kept = plan.owned.to(A.dtype) if restricted else self._ones
        self._parts = CSR(torch.ones(A.shape[0], dtype=A.dtype, device=A.device), plan.parts)
        self._coarse = None
        if coarse:
            self._coarse = DirectSolver(name, galerkin(self._parts, A), False, "leave coarse=True out")
        overlapping = plan.restriction.nnz > A.shape[0]
        symmetric = symmetry(name, A, symmetric)
        self.symmetric = symmetric and not (restricted and overlapping)

    def _inverses(self, A: CSR) -> tuple[Tensor, ...]:
        numbers = self.plan.numbers.split([count for count, _ in self.plan.groups])

        def singular(group: int) -> Callable[[int], Exception]:
            def error(i: int) -> Exception:
                count = self.plan.groups[group][0]
                with plain_tensors():
                    number = int(numbers[group][i % count])
                which = f" (matrix {i // count} of the batch)" if A.batch_shape else ""
                return ValueError(
                    f"AdditiveSchwarz: the matrix of subdomain {number}, of {self.sizes[number]} rows, is "
                    f"singular up to rounding{which}; choose other subdomains or another overlap, or shift "
                    "the diagonal"
                )

            return error

        blocks = self.plan.local_matrices(A)
        return tuple(inverses(D, singular(group)) for group, D in enumerate(blocks))

    @property
    @makes_plain_tensors
    def sizes(self) -> tuple[int, ...]:
        filled = as_numpy(self.plan.restriction.crow_indices)
        padded = np.repeat([size for _, size in self.plan.groups], [count for count, _ in self.plan.groups])
        sizes = np.diff(filled[np.concatenate(([0], np.cumsum(padded))).astype(np.int64)])
        found = np.empty_like(sizes)
        found[as_numpy(self.plan.numbers)] = sizes
        return tuple(found.tolist())

    def _columns(self, R: Tensor) -> Tensor:
        return self._sum(R, self._ones, self._kept, False)

    def _transposed(self, R: Tensor) -> Tensor:
        return self._sum(R, self._kept, self._ones, True)

    def _sum(self, R: Tensor, into: Tensor, out: Tensor, transpose: bool) -> Tensor:
        slots = self.plan.restriction
        local = product(into, R, slots, False).split([c * s for c, s in self.plan.groups], -2)
        solved = []
        for (count, size), inverse, r in zip(self.plan.groups, self.inverses, local, strict=True):
            blocks = r.reshape(*r.shape[:-2], count, size, r.shape[-1])
            z = (inverse.mT if transpose else inverse) @ blocks
            solved.append(z.reshape(*z.shape[:-3], count * size, z.shape[-1]))
        z = product(out, torch.cat(solved, -2), slots, True) if solved else R
        if self._coarse is not None:
            P = self._parts
            coarse = self._coarse(product(P.values, R, P.pattern, True), transpose)
            z = z + product(P.values, coarse, P.pattern, False)
        return z

    def pcg_form(self) -> tuple[str, Tensor, Any] | None:
        # The factor of the coarse correction would be dense below its diagonal.
        if not self.symmetric or self._coarse is not None or not self.plan.groups:
            return None
        G = self._kept_factor(self._cholesky)
        return None if G is None else ("product", G.values, G.pattern)

    def _cholesky(self) -> CSR | None:
        """G with M = G G^T: the local R_i^T L_i, A_i^-1 = L_i L_i^T, side by side; None where an A_i is not
        positive definite."""
        factors = [cholesky(X) for X in self.inverses]
        if any(L is None for L in factors):
            return None
        plan = self.plan.restriction._planned(plan_factors, self.plan.groups)
        numbers = torch.cat([L.flatten(-3) for L in factors], -1)  # type: ignore[union-attr]
        return CSR(take(numbers, plan.at), plan.pattern)

    def __repr__(self) -> str:
        sizes = self.sizes
        return (
            f"AdditiveSchwarz({len(sizes)} subdomains of {min(sizes, default=0)} to {max(sizes, default=0)})"
        )


def _plan(A: CSR, subdomains: Any, n_subdomains: int | None, overlap: int) -> Subdomains:
    n = A.shape[0]
    if subdomains is None:
        count = -(-n // _CORE) if n_subdomains is None else n_subdomains
        count = _check.integer("AdditiveSchwarz", "n_subdomains", count, min(n, 1))
        if count > n:
            raise ValueError(
                f"AdditiveSchwarz: n_subdomains must be at most A.shape[0] = {n}, got {n_subdomains}"
            )
        return A.pattern._planned(plan_subdomains, count, overlap)
    if n_subdomains is not None:
        raise ValueError("AdditiveSchwarz: subdomains and n_subdomains were both given; leave one out")
    cores = [_rows(rows, number, n) for number, rows in enumerate(subdomains)]
    left_out = np.ones(n, dtype=bool)
    for rows in cores:
        left_out[rows] = False
    if left_out.any():
        raise ValueError(
            f"AdditiveSchwarz: subdomains must hold every row, row {left_out.argmax()} is in none; M would "
            "be singular"
        )
    with plain_tensors():
        return plan_given(A.pattern, cores, overlap)


def _rows(rows: Any, number: int, n: int) -> np.ndarray:
    a = as_numpy(rows) if isinstance(rows, Tensor) else np.asarray(rows)
    if a.ndim != 1 or a.size == 0 or a.dtype.kind not in "iu":
        raise ValueError(
            f"AdditiveSchwarz: subdomains[{number}] must be a list of one or more integers, got {a.dtype} of "
            f"shape {a.shape}"
        )
    if a.min() < 0 or a.max() >= n:
        raise ValueError(
            f"AdditiveSchwarz: subdomains[{number}] must hold rows from 0 to {n - 1}, got {a.min()} "
            f"to {a.max()}"
        )
    return np.unique(a.astype(np.int64))
