"""Incomplete factors on A's pattern or a given pattern: two triangular solves.

Source: Saad, "Iterative Methods for Sparse Linear Systems" (2003), section 10.3.
"""

from torch import Tensor

from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.core.symmetry import symmetric_pattern, symmetry
from learnsolve.ops.incomplete import ic0, ilu0, mic0
from learnsolve.preconditioners.base import Preconditioner
from learnsolve.preconditioners.classical.complex_form import of_complex
from learnsolve.preconditioners.classical.factored import Factored


class IC0(Factored):
    r"""Incomplete Cholesky without fill, :math:`M = (L L^T)^{-1}`: linear, symmetric, positive definite.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz), assumed symmetric: only its lower triangle is read
    pattern : SparsityPattern whose lower triangle L uses instead of A's: ``fill_pattern(A, k)`` for IC(k)
    shift, on_breakdown : as for `ops.ic0`

    Attributes
    ----------
    L : CSR, the factor
    shift : Tensor, the shift used, with A's batch shape

    Raises
    ------
    ValueError, TypeError, NotImplementedError
        as for `ops.ic0`.

    Notes
    -----
    Gradient: exact, for A's values, a tensor shift, and r, to any order. Cost: the factorization
    once, two triangular solves with L, 2 nnz flops per column, per call. Compiled in `cg`.

    References
    ----------
    J. A. Meijerink and H. A. van der Vorst, "An iterative solution method for linear systems of which the
    coefficient matrix is a symmetric M-matrix", Math. Comp. 31 (1977) 148-162,
    doi:10.1090/S0025-5718-1977-0438681-4

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((50, 50)), torch.ones(2500, dtype=torch.float64)
    >>> M = ls.preconditioners.IC0(A)
    >>> ls.solvers.cg(A, b, M=M).iterations < ls.solvers.cg(A, b).iterations / 2
    True
    """

    def __init__(
        self,
        A: CSR,
        *,
        pattern: SparsityPattern | None = None,
        shift: float | Tensor = 0.0,
        on_breakdown: str = "raise",
    ):
        if of_complex(self, A, pattern, True, shift=shift, on_breakdown=on_breakdown):
            return
        Preconditioner.__init__(self, A, shift, finite=False)
        self.L, self.shift = ic0(A, pattern=pattern, shift=shift, on_breakdown=on_breakdown)


class MIC0(Factored):
    r"""Modified incomplete Cholesky without fill: `IC0` that preserves A's row sums.

    For elliptic problems on fine grids: the condition number of M A is O(1/h), not O(1/h^2). A small `shift`,
    or an `omega` slightly below 1, guarantees this and the existence of the factor.

    Parameters
    ----------
    A, pattern, shift, on_breakdown : as for `ops.mic0`
    omega : the fraction of the dropped fill that is compensated, from 0 (`IC0`) to 1

    Attributes
    ----------
    L, shift : as for `IC0`

    Raises
    ------
    ValueError, TypeError, NotImplementedError
        as for `ops.mic0`.

    Notes
    -----
    Gradient and cost are as for `IC0`; a tensor omega also gets a gradient.

    References
    ----------
    I. Gustafsson, "A class of first order factorization methods", BIT 18 (1978) 142-156,
    doi:10.1007/BF01931691

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((100, 100)), torch.ones(10_000, dtype=torch.float64)
    >>> IC0, MIC0 = ls.preconditioners.IC0, ls.preconditioners.MIC0
    >>> ls.solvers.cg(A, b, M=MIC0(A)).iterations < ls.solvers.cg(A, b, M=IC0(A)).iterations
    True
    """

    def __init__(
        self,
        A: CSR,
        *,
        pattern: SparsityPattern | None = None,
        shift: float | Tensor = 0.0,
        omega: float | Tensor = 1.0,
        on_breakdown: str = "raise",
    ):
        Preconditioner.__init__(self, A, shift, omega, finite=False)
        factor = mic0(A, pattern=pattern, shift=shift, omega=omega, on_breakdown=on_breakdown)
        self.L, self.shift = factor


class ILU0(Factored):
    r"""Incomplete LU without fill, :math:`M = (L U)^{-1}`: linear, symmetric if A (and the pattern) is.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz)
    pattern : SparsityPattern of L + U instead of A's: ``fill_pattern(A, k)`` for ILU(k)
    shift, on_breakdown : as for `ops.ilu0`
    symmetric : bool, whether A and the pattern are symmetric; default: determined from the values, once per
        matrix (not under `torch.compile`)

    Attributes
    ----------
    L, U : CSR, the factors; the unit diagonal of L is stored
    shift : Tensor, the shift used, with A's batch shape

    Raises
    ------
    ValueError, TypeError, NotImplementedError
        as for `ops.ilu0`.

    Notes
    -----
    Gradient: exact, for A's values, a tensor shift, and r, to any order. Cost: the factorization
    once, one triangular solve with L and one with U, 2 nnz flops per column, per call.

    References
    ----------
    Y. Saad, "Iterative Methods for Sparse Linear Systems", 2nd edition, SIAM, 2003, section 10.3

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[2.0, 1.0], [4.0, 5.0]]))
    >>> ls.preconditioners.ILU0(A)(torch.tensor([3.0, 9.0]))  # no fill is dropped: A^-1 r
    tensor([1., 1.])
    """

    def __init__(
        self,
        A: CSR,
        *,
        pattern: SparsityPattern | None = None,
        shift: float | Tensor = 0.0,
        on_breakdown: str = "raise",
        symmetric: bool | None = None,
    ):
        if of_complex(self, A, pattern, False, shift=shift, on_breakdown=on_breakdown, symmetric=symmetric):
            return
        Preconditioner.__init__(self, A, shift, finite=False)
        self.L, self.U, self.shift = ilu0(A, pattern=pattern, shift=shift, on_breakdown=on_breakdown)
        if symmetric is None and pattern is not None and not symmetric_pattern(pattern):
            symmetric = False
        self.symmetric = symmetry("ILU0", A, symmetric)
