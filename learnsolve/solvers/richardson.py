"""Richardson's iteration, x <- x + w M (b - A x).

Source: Richardson, "The approximate arithmetical solution by finite differences of physical problems
involving differential equations", Phil. Trans. R. Soc. A 210 (1911) 307-357; Saad, "Iterative Methods for
Sparse Linear Systems" (2003), section 4.2.
"""

from collections.abc import Mapping
from typing import Any, Unpack

from torch import Tensor

from learnsolve._conversion import TensorLike
from learnsolve._inputs import operands
from learnsolve.solvers.core.fixed import FixedNumber
from learnsolve.solvers.core.parameters import Parameters, trainable
from learnsolve.solvers.core.spectrum import bounds, given_bounds
from learnsolve.solvers.core.stationary import run
from learnsolve.solvers.options import StationaryOptions, solver
from learnsolve.solvers.solution import Solution


def richardson_weight(lmin: Any, lmax: Any) -> Any:
    r"""The best weight, :math:`2 / (\lambda_{\min} + \lambda_{\max})`, for an M A with positive eigenvalues.

    Parameters
    ----------
    lmin, lmax : numbers or Tensors, the extreme eigenvalues of M A; differentiable

    Returns
    -------
    number or Tensor. The error shrinks by (kappa - 1) / (kappa + 1) a step, kappa = lmax / lmin.

    Raises
    ------
    ValueError
        if a bound is not positive and finite (of tensors: not checked under `torch.compile`, under
        transformations of `torch.func` and on a GPU), or the number lmin is larger than the number lmax.
    TypeError
        if a bound is not a number or a float32 or float64 tensor.

    Examples
    --------
    >>> import learnsolve as ls
    >>> ls.solvers.richardson_weight(1.0, 3.0)
    0.5
    """
    low, high = given_bounds("richardson_weight", lmin, lmax)
    return 2 / (low + high)


@solver(StationaryOptions, rtol=None, atol=None, gradient=None)
def richardson(
    A: Any,
    b: TensorLike,
    x0: TensorLike | None = None,
    *,
    weight: float | Tensor | None = None,
    lmin: float | Tensor | None = None,
    lmax: float | Tensor | None = None,
    iterations: int | None = None,
    **options: Unpack[StationaryOptions],
) -> Solution:
    r"""Richardson's iteration, :math:`x_{k+1} = x_k + w_k \circ M (b - A x_k)`.

    Parameters
    ----------
    A : CSR, BlockBatch, LinearOperator or callable, shape (n, n), as for `cg`; M A with eigenvalues of
        positive real part
    b : Tensor or NumPy array, shape (n,) or (..., n, k)
    x0 : like b; zero if not given
    weight : number or Tensor, for N = iterations and a batch B: (), (n,), (N,), (N, n), (B,), (N, B) or in
        full (B, N, n) with ones allowed ("Shapes of parameters" in docs/solvers.md).
        If not given, 1 with an M and without bounds, else `richardson_weight` of lmin and lmax
    lmin, lmax : instead of `weight`: bounds of the spectrum of M A, with shapes and estimates as for
        `chebyshev`. The weight of the estimates converges for a symmetric positive definite A, if the largest
        eigenvalue was not underestimated by more than an eighth
    iterations : int >= 0: run this number of steps, whatever b is. If not given, a column stops when
        :math:`\|b - A x\| \le \max(\mathtt{rtol} \|b\|, \mathtt{atol})`, with rtol = 1e-5 and atol = 0 if not
        given
    M : an approximation of A^-1, linear: a preconditioner, callable r -> M r, CSR or LinearOperator
    callback : called after every iteration with an `Iteration`; returning True stops
    gradient : with iterations "unrolled" (if not given) or "checkpointed", as for `jacobi`; without
        "implicit" (if not given), "unrolled" or "checkpointed", as for `cg`
    throw : raise `SolverError` where a solve or its adjoint did not converge; with iterations, where it
        diverged
    options : shared keywords

    Returns
    -------
    Solution

    Raises
    ------
    ValueError
        if shapes or values do not fit, iterations and a tolerance are both given, or something requires grad
        that gradient="implicit" has no gradient for.
    TypeError
        if types, dtypes or devices do not fit.
    SolverError
        if `throw` and a solve failed.

    Notes
    -----
    Gradient with iterations: exact, of the steps that ran, for everything that requires grad, to any order.
    Else the implicit one, as for `bicgstab`.
    With iterations, a CSR and M None or diagonal (`preconditioners.Jacobi`) all steps are one
    compiled operation, and so is their adjoint (formulas: `jacobi`, `heavyball`).
    Cost: one product with A and one with M a step.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((8,)), torch.ones(8, dtype=torch.float64)
    >>> w = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    >>> ls.solvers.richardson(A, b, weight=w, iterations=50).residual_norms[-1].backward()
    >>> bool(w.grad < 0)  # a larger weight would have converged faster
    True
    >>> ls.solvers.richardson(A, b, maxiter=500).converged  # with an estimated weight
    True
    """
    name = "richardson"
    A, b, x0 = operands(name, A, b, x0)

    def fixed(read: Parameters) -> tuple[Tensor, None]:
        w = _weight(read, weight, lmin, lmax, options)
        return read.tensor("weight", w), None

    def until(read: Parameters):
        w = _weight(read, weight, lmin, lmax, options)
        w = read.of_columns("weight", w)
        return lambda t: (w, None, t)

    return run(name, A, b, x0, iterations, options, fixed, until, weight=weight, lmin=lmin, lmax=lmax)


def _weight(read: Parameters, weight: Any, lmin: Any, lmax: Any, options: Mapping[str, Any]) -> Any:
    free = lmin is None and lmax is None
    if weight is not None:
        if not free:
            raise ValueError("richardson: weight must not be given beside lmin or lmax, which choose one")
        return weight
    if free and options.get("M") is not None:
        return 1.0
    low, high = bounds(read, lmin, lmax, options)
    return 2 / (low + high)


class Richardson(FixedNumber):
    """`richardson` with a trainable weight.

    Parameters
    ----------
    weight : number or floating-point Tensor, the initial weight, of any shape that `richardson` takes. A
        number becomes a parameter of torch's default dtype; ``.double()`` for float64 matrices.
    iterations : int
    M : as for `richardson`; a Module's parameters are then those of this module
    gradient : "unrolled" or "checkpointed"

    Raises
    ------
    ValueError
        if weight requires grad, iterations is negative, or gradient not one of the two.
    TypeError
        if weight is not a number or a float32 or float64 tensor, or iterations not an int.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((8,)), torch.ones(8, dtype=torch.float64)
    >>> smoother = ls.solvers.Richardson(0.4, iterations=3).double()
    >>> smoother(A, b).residual_norms.shape
    torch.Size([4])
    """

    def __init__(
        self, weight: float | Tensor = 1.0, iterations: int = 1, M: Any = None, gradient: str = "unrolled"
    ):
        super().__init__(iterations, gradient)
        self.weight = trainable("Richardson", "weight", weight)
        self.M = M

    def forward(self, A: Any, b: TensorLike, x0: TensorLike | None = None) -> Solution:
        """`richardson` with the weight as it is now; arguments and result as there."""
        return richardson(
            A, b, x0, weight=self.weight, iterations=self.iterations, M=self.M, gradient=self.gradient
        )
