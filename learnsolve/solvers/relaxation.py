"""Gauss-Seidel and successive over-relaxation, forward, backward and symmetric, and a triangular solve with a
trainable matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Unpack

import torch
from torch import Tensor

from learnsolve.arguments import Index
from learnsolve.matrix import checks
from learnsolve.matrix.checks import operands
from learnsolve.matrix.convert import TensorLike
from learnsolve.matrix.csr import CSR
from learnsolve.ops.triangular import sptrsv, tril, triu
from learnsolve.preconditioners.factors import check_has_diagonal, check_triangular
from learnsolve.preconditioners.relaxation import Sweep, check_omega, check_sweep
from learnsolve.preconditioners.trainable import MatrixValues
from learnsolve.solvers.core.arguments import check_b, check_operands, check_x0, refuse_parameters_that_learn
from learnsolve.solvers.core.entry import solve
from learnsolve.solvers.core.gradient import attach_zero_gradient
from learnsolve.solvers.core.loop import Method
from learnsolve.solvers.core.operators import Columns, Map, Matrix
from learnsolve.solvers.core.stationary import (
    FixedNumber,
    Parameters,
    Steps,
    Value,
    read_fixed_options,
    start,
)
from learnsolve.solvers.options import SweepOptions, solver
from learnsolve.solvers.solution import Solution

# Gauss-Seidel and successive over-relaxation, forward, backward and symmetric.
#
# Source: Saad, "Iterative Methods for Sparse Linear Systems" (2003), section 4.1.


Direction = Literal["forward", "backward", "symmetric"]


class State(NamedTuple):
    x: Tensor
    r: Tensor
    values: Tensor  # of the triangles in S


@dataclass(frozen=True, eq=False)
class Correction(Method):
    """x' = x + S (b - A x), where S is the triangular solves of a sweep. For the operator A^T it uses S^T,
    which converges as fast: I - S^T A^T = (I - A S)^T, and A S has the eigenvalues of S A."""

    sweep: Sweep
    omega: Value

    in_columns = False  # the values belong to no column

    def start(self, A: Matrix, M: Map | None, x: Tensor, r: Tensor, running: Tensor | None) -> State:
        return State(x, r, self.values(A))

    def step(
        self, A: Matrix, M: Map | None, b: Tensor, state: State, running: Tensor | None
    ) -> tuple[State, Tensor]:
        x = state.x + self.map(A, state.values)(state.r)
        return State(x, b - A(x), state.values), torch.zeros_like(b[..., :1, :], dtype=torch.int64)

    def values(self, A: Matrix) -> Tensor:
        return self.sweep.system(A.A, self.omega).values

    def map(self, A: Matrix, values: Tensor) -> Callable[[Tensor], Tensor]:
        P, T = A.A.pattern, CSR(values, self.sweep.pattern(A.A.pattern))
        return lambda r: self.sweep.apply(T, P, self.omega, r, A.transpose)


_BESIDE: dict[str, str] = dict.fromkeys(
    ("rtol", "atol", "maxiter", "callback", "throw", "adjoint_rtol", "adjoint_maxiter"),
    "iterations asks for exactly {iterations} sweeps, so {key} has no use, got {value!r}. Pass only one of "
    "them",
)


def _relax(
    name: str, A: CSR, b: Any, x0: Any, omega: Value, sweep: Sweep, iterations: int | None, options: Mapping
) -> Solution:
    A, b, x0 = operands(name, A, b, x0)
    check_sweep(name, A, sweep.multicolor)
    check_b(name, b)
    if iterations is not None:
        checks.flag(name, "throw", options.get("throw", False))
        if options.get("gradient") == "implicit":
            raise ValueError(
                f'{name}: gradient="implicit" needs a converged solution, not a number of '
                'iterations. Use "unrolled" or "checkpointed", or remove iterations'
            )
        options = {key: value for key, value in options.items() if value is not False}
    omegas = Parameters(name, A, b, iterations).read("omega", omega, rows=False)
    check_omega(name, omegas)
    learned = (omega,) if isinstance(omega, Tensor) else ()
    if isinstance(omegas, Tensor):
        # No unbind: if omega is changed in place before backward, torch's error would be about a view.
        corrections = [Correction(sweep, omegas.squeeze(-1).select(-1, i)) for i in range(omegas.shape[-2])]
    else:
        corrections = [Correction(sweep, omegas)]
    settings = read_fixed_options(name, iterations, options, _BESIDE)
    if iterations is None:
        refuse_parameters_that_learn(name, settings.gradient, omega=omega)
        solution = solve(name, corrections[0], A, b, x0, settings)
        if settings.gradient != "implicit" and solution.iterations == 0:
            solution.x = attach_zero_gradient(solution.x, *learned)
        return solution
    checks.rows(name, "b", b, "A", A.shape)
    columns = Columns(b.dim() == 1, check_operands(name, A, b))
    check_x0(name, x0, b)
    B, operator = columns.pack(b), Matrix(A)
    X = torch.zeros_like(B) if x0 is None else columns.pack(x0)
    if iterations == 0:
        X = attach_zero_gradient(X, B, A.values, *learned)
    steps = Steps(name, operator, _sweeps(corrections, operator), columns)
    r = B if x0 is None else None
    return steps.solution(B, X, iterations, settings.gradient == "checkpointed", r, (A.values, b))


def _sweeps(corrections: list[Correction], A: Matrix) -> Any:
    """S of all steps, or one S per step. The latter are made when needed, and again by a backward pass that
    repeats the steps, so that checkpoints hold no more than necessary."""
    if len(corrections) == 1:
        return corrections[0].map(A, corrections[0].values(A))
    return [lambda r, one=one: one.map(A, one.values(A))(r) for one in corrections]


@solver(SweepOptions, rtol=None, atol=None, gradient=None)
def sor(
    A: CSR,
    b: TensorLike,
    x0: TensorLike | None = None,
    *,
    omega: Value = 1.0,
    direction: Direction = "forward",
    multicolor: bool = False,
    iterations: Index | None = None,
    **options: Unpack[SweepOptions],
) -> Solution:
    r"""Successive over-relaxation: each unknown in turn moves omega times the step that would solve its row.

    .. math:: x_{k+1} = x_k + \omega (D + \omega L)^{-1} (b - A x_k)

    for a forward sweep with A = L + D + U. A backward sweep has U in place of L. It converges for a symmetric
    positive definite A and every 0 < omega < 2.

    Parameters
    ----------
    A, b, x0 : see `jacobi`
    omega : float or Tensor, which may require grad, 0 < omega < 2, default 1 (Gauss-Seidel); () or one
        per sweep or member of the batch ("Shapes of parameters" in docs/solvers.md)
    direction : "forward", first to last unknown; "backward"; or "symmetric", one sweep of each: `ssor`
    multicolor : sweep through the unknowns color by color, with the colors of `ordering.greedy_coloring`.
        Unknowns of one color are relaxed simultaneously
    callback, throw : see `cg`. Neither is used with `iterations`
    options : shared keywords

    Notes
    -----
    Implicit gradient as for `bicgstab`, with the transposed sweeps, which converge as fast. Cost: one product
    with A and one triangular solve per sweep (two if symmetric). Backward: the transposes of both and
    the gradients of the values. The best omega for Poisson matrices: docs/solvers.md.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((20, 20)), torch.ones(400, dtype=torch.float64)
    >>> omega = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    >>> ls.solvers.sor(A, b, omega=omega, iterations=10).residual_norms[-1].backward()
    >>> bool(omega.grad < 0)  # a larger omega would have converged faster
    True
    """
    return _relax("sor", A, b, x0, omega, Sweep(direction, multicolor), iterations, options)


@solver(SweepOptions, rtol=None, atol=None, gradient=None)
def ssor(
    A: CSR,
    b: TensorLike,
    x0: TensorLike | None = None,
    *,
    omega: Value = 1.0,
    multicolor: bool = False,
    iterations: Index | None = None,
    **options: Unpack[SweepOptions],
) -> Solution:
    r"""Symmetric successive over-relaxation: a forward sweep of `sor`, then a backward one.

    .. math:: x_{k+1} = x_k + \omega (2 - \omega) (D + \omega U)^{-1} D (D + \omega L)^{-1} (b - A x_k)

    One product with A and two triangular solves count as one iteration. Gradients are as for `sor`.

    Parameters
    ----------
    A, b, x0, omega, multicolor, callback, throw : see `sor`
    options : shared keywords

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((8,)), torch.ones(8, dtype=torch.float64)
    >>> ls.solvers.ssor(A, b, omega=1.5).iterations < ls.solvers.sor(A, b, omega=1.1).iterations
    True
    """
    return _relax("ssor", A, b, x0, omega, Sweep("symmetric", multicolor), iterations, options)


@solver(SweepOptions, rtol=None, atol=None, gradient=None)
def gauss_seidel(
    A: CSR,
    b: TensorLike,
    x0: TensorLike | None = None,
    *,
    direction: Direction = "forward",
    multicolor: bool = False,
    iterations: Index | None = None,
    **options: Unpack[SweepOptions],
) -> Solution:
    r"""Gauss-Seidel, `sor` with omega = 1: each unknown in turn solves its row for the current others.

    .. math:: x_{k+1} = x_k + (D + L)^{-1} (b - A x_k)

    Parameters
    ----------
    A, b, x0, direction, multicolor, callback, throw : see `sor`
    options : shared keywords

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[2.0, -1.0], [-1.0, 2.0]]))
    >>> ls.solvers.gauss_seidel(A, torch.tensor([2.0, 1.0]), iterations=1).x
    tensor([1., 1.])
    """
    return _relax("gauss_seidel", A, b, x0, 1.0, Sweep(direction, multicolor), iterations, options)


class SOR(FixedNumber):
    r"""`sor` with a trainable `omega` = 2 sigmoid(`logit`), which lies in (0, 2) for every value of the
    parameter `logit`.

    As a preconditioner (one sweep from zero): `preconditioners.SOR`.

    Parameters
    ----------
    omega : the initial value, 0 < omega < 2
    direction, multicolor : see `sor`
    options : shared keywords

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((8,)), torch.ones(8, dtype=torch.float64)
    >>> solver = ls.solvers.SOR(1.0, iterations=4).double()
    >>> solver(A, b).residual_norms[-1].backward()
    >>> bool(solver.logit.grad < 0)  # a larger omega would have converged faster
    True
    """

    function, keywords = staticmethod(sor), ("omega", "direction", "multicolor")
    logit: torch.nn.Parameter

    def __init__(
        self,
        omega: Value = 1.0,
        iterations: int = 1,
        *,
        direction: Direction = "forward",
        multicolor: bool = False,
        gradient: str = "unrolled",
    ):
        super().__init__(iterations, gradient)
        omega = start("SOR", "omega", omega)
        if not ((omega > 0) & (omega < 2)).all():
            raise ValueError(f"SOR: omega must lie in 0 < omega < 2, got {omega.tolist()}. 1 is Gauss-Seidel")
        self.logit = torch.nn.Parameter(torch.log(omega / (2 - omega)))
        self.direction, self.multicolor = direction, multicolor

    @property
    def omega(self) -> Tensor:
        info = torch.finfo(self.logit.dtype)  # for large |logit| sigmoid rounds to 0 or 1
        return (2 * torch.sigmoid(self.logit)).clamp(info.tiny, 2 - info.eps)

    def extra_repr(self) -> str:
        keys = ("iterations", "direction", "multicolor", "gradient")
        return ", ".join(f"{key}={vars(self)[key]!r}" for key in keys)


class TriangularSolve(MatrixValues):
    r"""A triangular solve whose matrix is trainable, :math:`x = L^{-1} b` or :math:`L^{-T} b`.

    Parameters
    ----------
    L : CSR, shape (n, n), float32 or float64, triangular: the pattern and the initial values (..., nnz)
    lower : L is lower triangular, otherwise upper
    unit_diagonal : the diagonal is one and not trainable. Diagonal entries of L are ignored
    transpose : solve with the transpose
    positive : None, "exp" or "softplus": the diagonal is this function of a parameter, so that it stays
        positive and L nonsingular

    Attributes
    ----------
    values : Parameter on the pattern, if `positive` is None
    off_diagonal, and log_diagonal ("exp") or raw_diagonal ("softplus") : Parameters, with `positive`
    matrix() : L, a CSR

    Raises
    ------
    ValueError
        if L has entries in the other triangle, a row without its diagonal entry, or a diagonal that is not
        positive with `positive`, and, in a call, for a zero on the diagonal (the message names the row).

    Notes
    -----
    The module holds the matrix, so it is called with b only. It returns the Tensor x, not a `Solution`,
    because a direct solve has no iterations, residual history or status. If it fails, it raises. Gradient and
    cost are as for `ops.sptrsv`.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> L = ls.problems.poisson((4,)).tril()
    >>> solve = ls.solvers.TriangularSolve(L, positive="exp")
    >>> x = solve(torch.ones(4, dtype=torch.float64))
    >>> x.sum().backward()
    >>> solve.log_diagonal.grad.shape
    torch.Size([4])
    """

    instead = "call ops.sptrsv, which differentiates with respect to it"

    def __init__(
        self,
        L: checks.RealSquareMatrix,
        *,
        lower: bool = True,
        unit_diagonal: bool = False,
        transpose: bool = False,
        positive: Literal["exp", "softplus"] | None = None,
    ):
        if unit_diagonal and positive is not None:
            raise ValueError(
                "TriangularSolve: with unit_diagonal=True there is no diagonal to keep positive, got "
                f"positive={positive!r}. Remove one"
            )
        check_triangular("TriangularSolve", "L", L, lower)
        if unit_diagonal:
            L = tril(L, -1) if lower else triu(L, 1)
        else:
            check_has_diagonal("TriangularSolve", "L", L)
        super().__init__("TriangularSolve", "L", L, positive)
        self.lower, self.unit_diagonal, self.transpose = lower, unit_diagonal, transpose

    def forward(self, b: Tensor) -> Tensor:  # type: ignore[override]
        """Solve L x = b, or L^T x = b with `transpose`. b and x have shape (n,) or (..., n, k)."""
        return sptrsv(
            self.matrix(), b, lower=self.lower, unit_diagonal=self.unit_diagonal, transpose=self.transpose
        )

    def extra_repr(self) -> str:
        flags = ("lower", "unit_diagonal", "transpose")
        return ", ".join((super().extra_repr(), *(f"{flag}={vars(self)[flag]}" for flag in flags)))
