"""Weighted Jacobi, x <- x + w D^-1 (b - A x), with trainable weights.

Source: Nytko et al., "Optimized Sparse Matrix Operations for Reverse Mode Automatic Differentiation",
arXiv 2212.05159, section 4.1; Saad, "Iterative Methods for Sparse Linear Systems" (2003), section 4.1.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.convert import TensorLike
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.inputs import operands
from learnsolve.ops.core import across
from learnsolve.ops.core.autograd import tracked
from learnsolve.ops.core.dots import times
from learnsolve.ops.core.product import product
from learnsolve.ops.core.steps import residual_norm
from learnsolve.ops.diagonal import shared_inverse_diagonal
from learnsolve.solvers.core.arguments import check_b, check_x0
from learnsolve.solvers.core.parameters import FIXED_GRADIENTS, FixedNumber, Parameters, Value
from learnsolve.solvers.core.stationary import compiled, run_fixed, solution_of
from learnsolve.solvers.options import Options, smoother
from learnsolve.solvers.solution import EAGER, Solution


@smoother
def jacobi(
    A: CSR,
    b: TensorLike,
    x0: TensorLike | None = None,
    *,
    weight: Value = 1.0,
    iterations: int = 1,
    gradient: str = "unrolled",
) -> Solution:
    r"""Weighted Jacobi sweeps, :math:`x_{k+1} = x_k + w_k \circ D^{-1} (b - A x_k)`, `iterations` of them.

    Parameters
    ----------
    A : CSR, shape (n, n), float32 or float64, without zeros on the diagonal D; its values may be (..., nnz)
    b : Tensor or NumPy array, shape (n,) or (..., n, k): one or k right-hand sides
    x0 : like b; zero if not given
    weight : float or Tensor, () or one per row, sweep or member of the batch ("Shapes of parameters" in
        docs/solvers.md)
    options : shared keywords

    Notes
    -----
    The gradient is exact for the values of A, b, x0 and weight, to any order; adjoint and cost as for
    `richardson`. There is no gradient="implicit": a converged solution does not depend on the weight.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((8,))
    >>> w = torch.full((8,), 2 / 3, dtype=torch.float64, requires_grad=True)
    >>> solution = ls.solvers.jacobi(A, torch.ones(8, dtype=torch.float64), weight=w, iterations=50)
    >>> solution.residual_norms[-1].backward()
    >>> bool((w.grad < 0).all())  # larger weights would have converged faster
    True
    """
    name = "jacobi"
    A, b, x0 = operands(name, A, b, x0)
    iterations = checks.integer(name, "iterations", iterations, 0)
    checks.one_of(name, "gradient", gradient, FIXED_GRADIENTS)
    if across.of(A) is not None:  # rows in several processes: sweep by sweep, with w of the local rows
        check_b(name, b)
        w = Parameters(name, A, b, iterations).read("weight", weight)
        scale = w * A.inverse_diagonal(name).unsqueeze(0)  # pyright: ignore[reportAttributeAccessIssue]
        return run_fixed(name, A, b, x0, Options(gradient=gradient), iterations, scale, None)
    checks.matrix(name, "A", A)
    values = A.values
    checks.dtype(name, "A.values", values)
    checks.same_kind(name, "b", b, values)
    checks.rows(name, "b", b, "A", A.pattern.shape)
    check_x0(name, x0, b)
    x0 = torch.zeros_like(b) if x0 is None else x0
    if values.dim() > 1:
        checks.batches(name, values.shape[:-1], b.shape[:-2], "A.values and b")
        if b.dim() == 1:  # one vector for a batch of matrices: add an axis of columns, removed at the end
            columns = jacobi(
                A, b[:, None], x0[:, None], weight=weight, iterations=iterations, gradient=gradient
            )
            x = columns.x.squeeze(-1)
            return Solution(x, iterations, lambda: columns.residual_norms.squeeze(-1), -1, (x,))
    scale = _scale(A, b, weight, iterations)
    if iterations == 1 and _only_scale_learns(scale, values, b, x0):
        return solution_of(A, b, *_one_sweep(A, scale, b, x0), iterations, EAGER)
    return compiled(A, b, x0, scale, iterations, gradient == "checkpointed")


def _only_scale_learns(scale: Tensor, *others: Tensor) -> bool:
    return tracked(scale) and not tracked(*others) and not torch.compiler.is_dynamo_compiling()


def _one_sweep(A: CSR, scale: Tensor, b: Tensor, x0: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
    """x and the norm before the sweep. If the residual is a constant, three torch operations are faster than
    the fused one (python -m benchmarks training)."""
    vector, r = b.dim() == 1, b - product(A.values, x0, A.pattern, False)
    scale = scale.squeeze(-2) if scale.dim() > 1 else scale
    x = torch.addcmul(x0, scale if vector else scale.unsqueeze(-1), r)
    return x, lambda: residual_norm(r, 0 if vector else -2, keepdim=True)


def _scale(A: CSR, b: Tensor, weight: Value, iterations: int) -> Tensor:
    """weight / D, shape (n,) or (..., 1 or iterations, n)."""
    inverse, single = shared_inverse_diagonal(A, "jacobi"), A.values.dim() == 1
    if isinstance(weight, Tensor) and single:
        checks.same_kind("jacobi", "weight", weight, b)
        of_rows = weight.shape == inverse.shape and weight.shape[0] != iterations and b.dim() <= 2
        if of_rows or weight.dim() == 0:
            return times(inverse, weight)  # views would cost a small step more than the product
    factor = Parameters("jacobi", A, b, iterations).read("weight", weight)
    if isinstance(factor, Tensor):
        return times(inverse if single else inverse.unsqueeze(-2), factor)
    scale = inverse if factor == 1 else factor * inverse
    return scale if single else scale.unsqueeze(-2)


class Jacobi(FixedNumber):
    """`jacobi` with a trainable weight. As a preconditioner: `preconditioners.Jacobi`.

    Parameters
    ----------
    weight : the initial weight
    options : shared keywords

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((8,))
    >>> smoother = ls.solvers.Jacobi(torch.ones(8, dtype=torch.float64), iterations=2)
    >>> smoother(A, torch.ones(8, dtype=torch.float64)).x.shape
    torch.Size([8])
    """

    function, keywords = staticmethod(jacobi), ("weight",)
    weight: torch.nn.Parameter

    def __init__(self, weight: Value = 1.0, iterations: int = 1, gradient: str = "unrolled"):
        super().__init__(iterations, gradient, weight=weight)
