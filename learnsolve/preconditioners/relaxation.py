"""Relaxations: a diagonal, Jacobi, SOR and SSOR.

Source: Saad, "Iterative Methods for Sparse Linear Systems" (2003), sections 4.1, 10.2 and 12.4.
"""

from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.cache import readable
from learnsolve.matrix.checks import Numbers, RealSystem, System, per_row
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.arithmetic import check_inside, check_open_interval, plain_values
from learnsolve.ops.indexing import _plan_permutation, permute_values
from learnsolve.ops.products import divide_columns, multiply_columns, times
from learnsolve.ops.structure import diagonal, reuse_inverse_diagonal, scale_columns, symmetry
from learnsolve.ops.triangular import sptrsv, tril
from learnsolve.ordering import greedy_coloring
from learnsolve.preconditioners.base import Part, Preconditioner, finite


class Diagonal(Preconditioner):
    r"""A differentiable diagonal, :math:`M = \mathrm{diag}(d)`, for example predicted by a network.

    Linear, symmetric, positive definite if d is positive.

    Parameters
    ----------
    d : Tensor, shape (n,), or (..., n) for a batch of systems, real or complex

    Raises
    ------
    ValueError
        if d is a scalar or, on the CPU, not finite (the message names the index).

    Notes
    -----
    Gradient: exact, for d and r, to any order. Cost: one multiplication per row. Compiled loops (`cg`,
    and sweeps with `iterations`) support it. `Trainable` learns d.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((8, 8)), torch.ones(64, dtype=torch.float64)
    >>> theta = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)  # a network's parameter
    >>> M = ls.preconditioners.Diagonal(theta.exp() / ls.ops.diagonal(A))
    >>> ls.solvers.richardson(A, b, M=M, iterations=4).residual_norms[-1].backward()
    >>> theta.grad is not None
    True
    """

    is_diagonal = True  # `pcg_form` needs no computation
    d: Tensor

    def __init__(self, d: Numbers):
        name = type(self).__name__
        if d.dim() == 0:
            raise ValueError(f"{name}: d must have shape (n,) or (..., n), got a scalar. Use d.expand(n)")
        if readable(d):
            finite(name, "d", d)
        self.d, self.shape, self.batch_shape = d, (d.shape[-1], d.shape[-1]), d.shape[:-1]
        self.depends_on = (d,)

    def learnable(self) -> dict[str, Part]:
        return {"d": Part(self.d, "all")}

    def mv(self, R: Tensor) -> Tensor:
        return self.d.unsqueeze(-1) * R

    def rmv(self, R: Tensor) -> Tensor:
        return self.mv(R)

    @property
    def symmetric(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """For a complex d: whether M is Hermitian, that is, d is real up to rounding."""
        d = getattr(self, "d", None)  # a `Trainable` removes it
        if d is None or not d.is_complex():
            return True
        return bool((d.imag.abs() <= 64 * torch.finfo(d.dtype).eps * d.abs()).all())

    @property
    def T(self) -> Preconditioner:
        return self

    def real_equivalent(self) -> Preconditioner | None:
        """The real form of a Hermitian diagonal, on the rows of ops/triangular.py, or None for others."""
        return Diagonal(self.d.real.repeat_interleave(2, -1)) if self.symmetric else None

    def pcg_form(self) -> tuple[str, Tensor, None]:
        return "diagonal", self.d, None


class Jacobi(Diagonal):
    r"""The inverse of the diagonal, :math:`M = \mathrm{diag}(w) D^{-1}`: linear, symmetric, one
    multiplication per row, and positive definite if w and D are positive.

    For weighted Jacobi sweeps with a trainable weight, see `solvers.Jacobi`.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz), without zeros on the diagonal
    weight : w, float or Tensor, shape () or (..., n), which may require grad

    Raises
    ------
    ValueError
        if a diagonal entry is missing or zero, A is not finite (the message names the row), or the weight is
        not finite.

    Notes
    -----
    Gradient: exact, for A's values, the weight and r, to any order. `Trainable` learns one weight per row.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((10, 10))
    >>> M = ls.preconditioners.Jacobi(A)
    >>> bool((M(torch.ones(100, dtype=torch.float64)) == 0.25).all())
    True
    """

    takes_complex = True

    def __init__(self, A: System, weight: Annotated[float | Tensor, per_row("A")] = 1.0):
        Preconditioner.__init__(self, A, weight)
        if not isinstance(weight, Tensor):
            checks.real("Jacobi", "weight", weight, "finite")
        elif readable(weight):
            finite("Jacobi", "weight", weight)
        self.weight, self._inverse = weight, reuse_inverse_diagonal(A, "Jacobi")
        plain = not isinstance(weight, Tensor) and weight == 1
        self.d = self._inverse if plain else times(self._inverse, self.weight)
        self.batch_shape = self.d.shape[:-1]

    def learnable(self) -> dict[str, Part]:
        w = torch.as_tensor(self.weight, dtype=self._inverse.dtype, device=self._inverse.device)
        return {"weight": Part(w if w.dim() else w.expand(self.shape[0]), "all")}

    def with_tensors(self, tensors: dict[str, Any]) -> Preconditioner:
        w = tensors["weight"]
        return super().with_tensors(tensors | {"d": None if w is None else times(self._inverse, w)})


# Sweeps through the unknowns as triangular solves: the core of SOR and SSOR, as preconditioners and as
# solvers.
#
# For A = L + D + U and T = A with its diagonal divided by omega, a sweep adds M r to x, with
#
#     forward     M = (D / omega + L)^-1
#     backward    M = (D / omega + U)^-1
#     symmetric   M = (2 - omega) (D / omega + U)^-1 (D / omega) (D / omega + L)^-1
#
# where the symmetric sweep is a forward and then a backward sweep. A triangular solve reads only one
# triangle of T.
#
# Source: Saad, "Iterative Methods for Sparse Linear Systems" (2003), sections 4.1, 10.2 and 12.4.


DIRECTIONS = ("forward", "backward", "symmetric")


class Sweep(NamedTuple):
    """One of the three M, for r in the order of the unknowns or, `multicolor`, color by color."""

    direction: str
    multicolor: bool

    def system(self, A: CSR, omega: float | Tensor) -> CSR:
        """T, in the order of the sweep."""
        values = _divide_diagonal(A, omega)
        if self.multicolor:
            return A.pattern._plan_once(color_order).matrix(CSR(values, A.pattern))
        return CSR(values, A.pattern)

    def clone_system(self, A: CSR, omega: float | Tensor) -> CSR:
        """T, unaffected by in-place changes of A's values."""
        T = self.system(A, omega)
        return T.clone() if T.values is A.values else T

    def pattern(self, original: SparsityPattern) -> SparsityPattern:
        """The pattern of T."""
        return original._plan_once(color_order).pattern if self.multicolor else original

    def apply(
        self, T: CSR, original: SparsityPattern, omega: float | Tensor, R: Tensor, transpose: bool
    ) -> Tensor:
        """M R or M^T R for blocks of columns R (..., n, k), for the matrix on the pattern `original`."""
        if self.multicolor:
            order = original._plan_once(color_order)
            return order.back(self._sweep_rows(T, omega, order.there(R), transpose))
        return self._sweep_rows(T, omega, R, transpose)

    def _sweep_rows(self, T: CSR, omega: float | Tensor, R: Tensor, transpose: bool) -> Tensor:
        if self.direction != "symmetric":
            return sptrsv(T, R, lower=self.direction == "forward", transpose=transpose)
        # M^T = (2 - omega) (D / omega + L)^-T (D / omega) (D / omega + U)^-T: the upper triangle first.
        z = sptrsv(T, R, lower=not transpose, transpose=transpose)
        factor = 2 - (omega[..., None, None] if isinstance(omega, Tensor) else omega)
        z = multiply_columns(factor, diagonal(T).unsqueeze(-1)) * z
        return sptrsv(T, z, lower=transpose, transpose=transpose)


_RANGE: tuple[float, str, tuple[str, str]] = (
    2,
    "lie in 0 < omega < 2",
    (". 1 is Gauss-Seidel", ". To train it, use 2 sigmoid(t) with a parameter t"),
)


def check_relaxation(function: str, A: CSR, omega: object) -> float | Tensor:
    """Check the diagonal, and omega, which is returned as a float or tensor."""
    with torch.no_grad():  # for its errors: the diagonal must not have zeros
        reuse_inverse_diagonal(A, function)
    return check_open_interval(function, "omega", omega, A.values, *_RANGE)


def check_omega(function: str, omega: float | Tensor) -> None:
    check_inside(function, "omega", omega, *_RANGE)


def check_sweep(function: str, A: Any, multicolor: object) -> None:
    checks.matrix(function, "A", A)
    checks.dtype(function, "A.values", A.values)
    checks.flag(function, "multicolor", multicolor)
    with torch.no_grad():  # for its errors: the diagonal must not have zeros
        reuse_inverse_diagonal(A, function)


def _divide_diagonal(A: CSR, omega: float | Tensor) -> Tensor:
    if not isinstance(omega, Tensor):
        if omega == 1:
            return A.values
    elif omega.dim():
        omega = omega.unsqueeze(-1)
    d = divide_columns(diagonal(A), omega)
    values = A.values.expand(*d.shape[:-1], A.nnz)
    return values.index_copy(-1, A.pattern.diagonal_positions.long(), d)


def _reorder(R: Tensor, order: Tensor, back: Tensor) -> Tensor:
    """R[..., order, :]"""
    if R.shape[-1] == 1:  # torch copies rows one by one, but single elements faster
        return permute_values(R.squeeze(-1), order, back).unsqueeze(-1)
    return permute_values(R, order, back, -2)


class _Order(NamedTuple):
    """The order of the unknowns by color."""

    pattern: SparsityPattern  # of the matrix, unknowns color by color
    at: Tensor  # position of each entry in the original pattern
    inverse: Tensor
    rows: Tensor  # unknowns color by color
    places: Tensor  # position of each unknown in this order

    def matrix(self, A: CSR) -> CSR:
        return CSR(permute_values(A.values, self.at, self.inverse), self.pattern)

    def there(self, R: Tensor) -> Tensor:
        """Reorder blocks of columns from the order of the unknowns."""
        return _reorder(R, self.rows, self.places)

    def back(self, R: Tensor) -> Tensor:
        return _reorder(R, self.places, self.rows)


def color_order(P: SparsityPattern) -> _Order:
    rows = greedy_coloring(P).rows.long()
    plan, inverse = _plan_permutation(P, rows, rows)
    places = torch.empty_like(rows)
    places[rows] = torch.arange(len(rows), device=rows.device)
    assert plan.pattern is not None
    assert plan.at is not None
    return _Order(plan.pattern, plan.at, inverse, rows, places)


class SOR(Preconditioner):
    r"""One sweep of successive over-relaxation: linear, not symmetric.

    .. math:: M = \omega (D + \omega L)^{-1} \quad \text{(forward)}, \qquad
              M = \omega (D + \omega U)^{-1} \quad \text{(backward)}

    with A = L + D + U. omega = 1 is Gauss-Seidel. It suits `gmres`, `fgmres` and `bicgstab`, while `cg` needs
    `SSOR`. For sweeps with a trainable omega, see `solvers.SOR`.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz), without zeros on the diagonal
    omega : float or Tensor, 0 < omega < 2; shape () or one per matrix of the batch
    direction : "forward" or "backward", first to last unknown or last to first
    multicolor : sweep color by color, with the colors of `ordering.greedy_coloring`. The triangular solve
        then has as many levels as there are colors

    Raises
    ------
    ValueError
        if a diagonal entry is missing or zero, A is not finite (the message names the row), or omega is out
        of its range.

    Notes
    -----
    Gradient: exact, for A's values, omega and r. Cost: one triangular solve, nnz flops per column, on one
    triangle of the original A, with `multicolor` two more passes over r. The order is planned once per
    pattern.

    Source: D. M. Young, "Iterative methods for solving partial difference equations of elliptic type", Trans.
    AMS 76 (1954), doi:10.1090/S0002-9947-1954-0059635-7.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[2.0, -1.0], [-1.0, 2.0]]))
    >>> ls.preconditioners.SOR(A)(torch.tensor([2.0, 1.0]))
    tensor([1., 1.])
    """

    def __init__(
        self,
        A: RealSystem,
        omega: float | Tensor = 1.0,
        *,
        direction: Literal["forward", "backward"] = "forward",
        multicolor: bool = False,
    ):
        self.omega = check_relaxation("SOR", A, omega)
        super().__init__(A, omega)
        self._sweep, self._pattern = Sweep(direction, multicolor), A.pattern
        self._system = self._sweep.clone_system(A, self.omega)

    def mv(self, R: Tensor) -> Tensor:
        return self._sweep.apply(self._system, self._pattern, self.omega, R, False)

    def rmv(self, R: Tensor) -> Tensor:
        return self._sweep.apply(self._system, self._pattern, self.omega, R, True)


class SSOR(Preconditioner):
    r"""A forward sweep of `SOR` and a backward one: linear, symmetric if A is.

    .. math:: M = \omega (2 - \omega) (D + \omega U)^{-1} D (D + \omega L)^{-1}

    with A = L + D + U. Positive definite for a symmetric positive definite A and every 0 < omega < 2.

    Parameters
    ----------
    A, omega, multicolor : see `SOR`
    symmetric : bool, whether A is symmetric. Default: determined from the values (not
        under `torch.compile`)

    Raises
    ------
    ValueError
        see `SOR`.

    Notes
    -----
    Gradient: exact, for A's values, omega and r. Cost: two triangular solves, 2 nnz flops per column. The
    choice of omega matters little: the best omega of `sor` works well, and 1 is a good start.

    The compiled loop of `cg` supports it if A is symmetric with a positive diagonal and `multicolor` is off,
    as :math:`M = (K K^T)^{-1}` with :math:`K = (D / \omega + L) ((2 - \omega) D / \omega)^{-1/2}`. Its lower
    triangle gets the gradient of both. On the CPU the solves also yield the product with A (Eisenstat), if A
    has at least six entries per row: an iteration reads A once.

    References
    ----------
    O. Axelsson, "A generalized SSOR method", BIT 12 (1972) 443-467, doi:10.1007/BF01932955; S. C. Eisenstat,
    SIAM J. Sci. Stat. Comput. 2 (1981) 1-4, doi:10.1137/0902001

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((50, 50)), torch.ones(2500, dtype=torch.float64)
    >>> M = ls.preconditioners.SSOR(A, omega=1.8)
    >>> ls.solvers.cg(A, b, M=M).iterations < ls.solvers.cg(A, b).iterations / 2
    True
    """

    def __init__(
        self,
        A: RealSystem,
        omega: float | Tensor = 1.0,
        *,
        multicolor: bool = False,
        symmetric: bool | None = None,
    ):
        self.omega = check_relaxation("SSOR", A, omega)
        super().__init__(A, omega)
        self.symmetric = symmetry("SSOR", A, symmetric)
        self._sweep, self._pattern = Sweep("symmetric", multicolor), A.pattern
        self.omega = self.omega.clone() if isinstance(self.omega, Tensor) else self.omega
        self._system = self._sweep.clone_system(A, self.omega)

    def mv(self, R: Tensor) -> Tensor:
        return self._sweep.apply(self._system, self._pattern, self.omega, R, False)

    def rmv(self, R: Tensor) -> Tensor:
        return self._sweep.apply(self._system, self._pattern, self.omega, R, True)

    def pcg_form(self) -> tuple[str, Tensor, Any] | None:
        if not self.symmetric or self._sweep.multicolor:
            return None
        K = self._kept_factor(self._cholesky)
        return None if K is None else ("triangular", K.values, K.pattern)

    def _cholesky(self) -> CSR | None:
        """K of the lower triangle, or None if M is not positive definite."""
        d = diagonal(self._system)
        if d.is_cpu and not (plain_values(d) > 0).all():
            return None
        omega = self.omega[..., None] if isinstance(self.omega, Tensor) else self.omega
        return scale_columns(tril(self._system), ((2 - omega) * d).rsqrt())
