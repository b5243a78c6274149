"""Additive Schwarz: the sum of solutions on overlapping subdomains.

Source: Smith, Bjorstad, Gropp, "Domain Decomposition" (1996), chapters 1 and 2; Cai, Sarkis, "A restricted
additive Schwarz preconditioner for general sparse linear systems", SIAM J. Sci. Comput. 21 (1999),
doi:10.1137/S106482759732678X; St-Cyr, Gander, Thomas, "Optimized multiplicative, additive, and restricted
additive Schwarz preconditioning", SIAM J. Sci. Comput. 29 (2007), doi:10.1137/060652610 (Robin values);
Taghibakhshi et al., "Learning interface conditions in domain decomposition solvers", NeurIPS 2022, arXiv
2205.09833 (learned values).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.inputs import matrix
from learnsolve.matrix.plain import makes_plain_tensors, plain_tensors
from learnsolve.ops.core.gather import take
from learnsolve.ops.core.product import product
from learnsolve.ops.core.symmetry import symmetry
from learnsolve.ops.spgemm import galerkin
from learnsolve.ops.stack import block_diag
from learnsolve.preconditioners.base import Preconditioner, check_numbers
from learnsolve.preconditioners.domain._interfaces import added, rows_of
from learnsolve.preconditioners.domain._subdomains import plan_factors, plan_of, sizes_of
from learnsolve.preconditioners.multigrid._direct import DirectSolver, cholesky, inverses


class AdditiveSchwarz(Preconditioner):
    r"""The sum of local solves on overlapping subdomains: linear.

    .. math::
        M = \sum_i \tilde R_i^T (A_i + L_i)^{-1} R_i + P_0 (P_0^T A P_0)^{-1} P_0^T, \quad A_i = R_i A R_i^T

    R_i restricts to the rows of subdomain i; column i of P_0 is one on the rows that it owns.

    Parameters
    ----------
    A : CSR, shape (n, n), float32 or float64; its values may have batch axes
    subdomains : integer arrays, the rows of each; the first with a row owns it. Default: graph bisection
    n_subdomains : int, 1 to n, the number of parts; default: n / 64, rounded up
    overlap : int >= 0, layers of neighbors in the graph of A + A^T by which subdomains are extended
    restricted : True (RAS): rows owned by others are zero in :math:`\tilde R_i`; "symmetric": also in R_i
    local : the L_i, default zero: a block-diagonal CSR, (N, N), whose rows are `rows`, or a sequence of
        (s_i, s_i) CSRs or dense tensors
    coarse : bool, whether to add the second term
    symmetric : bool, whether A is symmetric; default: determined from the values (not under `torch.compile`)

    Attributes
    ----------
    sizes : tuple of int, the sizes of the subdomains with overlap; N is their sum
    rows : int64 Tensor, shape (N,), the rows of subdomain 0 in ascending order, then of 1, ...

    Raises
    ------
    ValueError, TypeError, NotImplementedError
        if A is not finite, a local or coarse matrix is singular (named), a row is in no subdomain, or
        inverses have more than 2^27 entries; if a type is wrong; for CUDA tensors.

    Notes
    -----
    Gradient: exact, for r, A and `local`, to any order. Cost: 2 s_i^3 flops, then 2 s_i^2 per column.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> M = ls.preconditioners.AdditiveSchwarz(ls.problems.poisson((32, 32)), n_subdomains=16, coarse=True)
    >>> M.symmetric
    True
    """

    def __init__(
        self,
        A: CSR,
        subdomains: Sequence[Any] | None = None,
        *,
        n_subdomains: int | None = None,
        overlap: int = 1,
        restricted: bool | str = False,
        coarse: bool = False,
        local: CSR | Sequence[Any] | None = None,
        symmetric: bool | None = None,
    ):
        name = "AdditiveSchwarz"
        super().__init__(A)
        check_numbers(name, A)
        if restricted != "symmetric":
            checks.flag(name, "restricted", restricted)
        checks.flag(name, "coarse", coarse)
        self.plan = plan = plan_of(A, subdomains, n_subdomains, overlap)
        L = None if local is None else self._local(A, local)
        self.inverses = self._inverses(A, L)
        ones = torch.ones(plan.restriction.nnz, dtype=A.dtype, device=A.device)
        owned = plan.owned.to(A.dtype) if restricted else ones
        self._into, self._out = owned if restricted == "symmetric" else ones, owned
        self._parts = CSR(torch.ones(A.shape[0], dtype=A.dtype, device=A.device), plan.parts)
        self._coarse = None
        if coarse:
            self._coarse = DirectSolver(name, galerkin(self._parts, A), False, "leave coarse=True out")
        overlapping = plan.restriction.nnz > A.shape[0]
        symmetric = symmetry(name, A, symmetric) and (L is None or symmetry(name, L, symmetric))
        self.symmetric = symmetric and not (restricted is True and overlapping)
        self._restricted = restricted is not False and overlapping

    def _local(self, A: CSR, local: CSR | Sequence[Any]) -> CSR:
        """`local` as one block-diagonal CSR."""
        name, sizes = "AdditiveSchwarz", self.sizes
        L: Any = matrix(local)
        if isinstance(L, (list, tuple)):
            if len(L) != len(sizes):
                raise ValueError(
                    f"{name}: local must have one matrix for each of {len(sizes)} subdomains, got {len(L)}"
                )
            blocks = [matrix(block) for block in L]
            for i, (block, size) in enumerate(zip(blocks, sizes, strict=True)):
                checks.matrix(name, f"local[{i}]", block)
                if block.shape != (size, size):
                    raise ValueError(
                        f"{name}: local[{i}] must have shape ({size}, {size}), the rows of the subdomain "
                        f"with its overlap, got {tuple(block.shape)}"
                    )
            L = block_diag(blocks)
        checks.matrix(name, "local", L)
        total = sum(sizes)
        if L.shape != (total, total):
            raise ValueError(
                f"{name}: local must have shape ({total}, {total}), the rows of all subdomains with their "
                f"overlap, got {tuple(L.shape)}"
            )
        checks.same_kind(name, "local.values", L.values, A.values)
        check_numbers(name, L)
        checks.batches(name, L.batch_shape, A.batch_shape, "local.values and A.values")
        self.batch_shape = torch.broadcast_shapes(L.batch_shape, A.batch_shape)
        self.depends_on = (*self.depends_on, L.values)
        return L

    def _inverses(self, A: CSR, L: CSR | None) -> tuple[Tensor, ...]:
        numbers = self.plan.numbers.split([count for count, _ in self.plan.groups])

        def singular(group: int) -> Callable[[int], Exception]:
            def error(i: int) -> Exception:
                count = self.plan.groups[group][0]
                with plain_tensors():
                    number = int(numbers[group][i % count])
                which = f" (matrix {i // count} of the batch)" if self.batch_shape else ""
                return ValueError(
                    f"AdditiveSchwarz: the matrix of subdomain {number}, of {self.sizes[number]} rows, is "
                    f"singular up to rounding{which}; choose other subdomains or another overlap, or shift "
                    "the diagonal"
                )

            return error

        blocks = self.plan.local_matrices(A, None if L is None else added(L, self.plan))
        return tuple(inverses(D, singular(group)) for group, D in enumerate(blocks))

    @property
    @makes_plain_tensors
    def sizes(self) -> tuple[int, ...]:
        return tuple(sizes_of(self.plan).tolist())

    @property
    @makes_plain_tensors
    def rows(self) -> Tensor:
        return torch.from_numpy(rows_of(self.plan)).to(self.plan.numbers.device)

    def _columns(self, R: Tensor) -> Tensor:
        return self._sum(R, self._into, self._out, False)

    def _transposed(self, R: Tensor) -> Tensor:
        return self._sum(R, self._out, self._into, True)

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
        # The factor of the coarse correction would be dense below its diagonal,
        # and the matrix of a restricted method is not lower triangular in slots.
        if not self.symmetric or self._restricted or self._coarse is not None or not self.plan.groups:
            return None
        G = self._kept_factor(self._cholesky)
        return None if G is None else ("product", G.values, G.pattern)

    def _cholesky(self) -> CSR | None:
        """G with M = G G^T: the local R_i^T L_i side by side, with A_i^-1 = L_i L_i^T; None if an A_i is not
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
