"""The result of every solver, `Solution`, and `Status`, which explains how a solve ended."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import Tensor

from learnsolve.matrix.cache import Versions, outside_of_graphs
from learnsolve.ops.structure import numbers


class Status(enum.Enum):
    """How a solve ended, from best to worst. The value is a message: what happened and what to try.

    Attributes
    ----------
    name : str, ``"CONVERGED"``, ``"MAX_ITERATIONS"``, ...
    value : str, the message, also returned by `str()`

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((8, 8)), torch.ones(64, dtype=torch.float64)
    >>> ls.solvers.cg(A, b).status is ls.solvers.Status.CONVERGED
    True
    >>> print(ls.solvers.Status.CONVERGED)
    The residual norm reached the tolerance.
    """

    CONVERGED = "The residual norm reached the tolerance."
    MAX_ITERATIONS = (
        "All allowed iterations ran without reaching the tolerance (or none was asked for). Allow more "
        "(maxiter), ask for less (rtol, atol), or use a better preconditioner (M)."
    )
    STOPPED_BY_CALLBACK = "The callback asked to stop before the tolerance was reached."
    STAGNATED = (
        "Rounding errors keep the residual from falling further: this is the accuracy of the dtype for this "
        "system. Solve in float64, ask for less (rtol, atol), or use a better preconditioner (M) or scaling."
    )
    BREAKDOWN = (
        "The method cannot go on: a quantity that it divides by became zero, or rounding errors as large as "
        "the residual. Does A x = b have a solution? If so, start from another x0, or use gmres. If not, use "
        "lsqr."
    )
    INDEFINITE = (
        "A direction of zero or negative curvature was met, <p, A p> <= 0 or <r, M r> <= 0: A or M is not "
        "positive definite. Use minres for a symmetric A, gmres or bicgstab for any other."
    )
    INCONSISTENT = (
        "A x = b has no solution, or only a huge one: A is singular or nearly so, and b has a component "
        'outside its range. The Krylov methods remove it with null_space= ("constants" for Neumann and '
        "periodic boundaries and graph Laplacians). Or use lsqr or lsmr, which minimize ||b - A x||."
    )
    ILL_CONDITIONED = (
        "The estimate of the condition number of A exceeded conlim. Regularize (damp), scale A's columns to "
        "similar norms, or allow more (conlim)."
    )
    DIVERGED = (
        "The residual norm grew: the iteration diverges. For a stationary method use a smaller weight "
        "(Jacobi on a symmetric positive definite A converges if 0 < weight < 2 / lambda_max(D^-1 A)). "
        "Otherwise use another method or a better preconditioner."
    )
    LINE_SEARCH_FAILED = (
        "No step along Newton's direction reduces ||f(u)||: f may have no root near u, the Jacobian may be "
        "wrong, or f is not smooth there. Start from another u0, take smaller steps "
        '(pseudo_transient=...), or minimize ||f(u)|| (method="lm").'
    )
    SINGULAR_JACOBIAN = (
        'The Jacobian of f is singular at an iterate. With method="lm" that is a minimum of ||f(u)||, but no '
        'root. Start from another u0, regularize f, or use method="lm" or pseudo_transient.'
    )
    NON_FINITE = (
        "The iteration met infinities or NaNs: it left the range of the dtype, or A, b, x0, M or a parameter "
        "holds them. Check the input, reduce the weight or the number of iterations, or use float64."
    )

    __hash__ = object.__hash__  # Enum's is Python code, which slows down lookups of codes in the loops

    def __str__(self) -> str:
        return self.value


# Values of `Solution.backend`.
COMPILED, PYTHON_M, EAGER, DIRECT = "compiled", "compiled, Python preconditioner", "eager", "direct"
_ENDED = (Status.MAX_ITERATIONS, Status.STOPPED_BY_CALLBACK, Status.STAGNATED)
STATUSES = tuple(Status)
CODE = {status: 1 + i for i, status in enumerate(STATUSES)}  # codes in the loops; 0 while a column runs


def worst(codes: Tensor) -> int:
    """The worst of these codes. Status is ordered from best to worst."""
    if codes.numel() == 1:
        return int(codes.item())
    return int(codes.max()) if codes.numel() else CODE[Status.CONVERGED]


def _worst(codes: Tensor) -> Status:
    return STATUSES[worst(numbers(codes)) - 1]  # over all systems of a vmap


_worst = outside_of_graphs(
    _worst,
    "how a solve ends is not known while a graph is traced (fullgraph=True, torch.export). Use .x there, "
    "x = ls.solvers.cg(A, b, M=...).x for x, info = ..., or return the Solution and ask it outside",
)


class Iteration(NamedTuple):
    """The argument of a callback, which returns True to stop the solve.

    Attributes
    ----------
    iteration : int, from 1
    x : Tensor, the iterate
    residual_norm : Tensor, shape () or (..., k), ||b - A x|| of each column, as the method computes it
    converged : bool Tensor of that shape

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((8, 8)), torch.ones(64, dtype=torch.float64)
    >>> solution = ls.solvers.cg(A, b, callback=lambda found: found.iteration == 3)
    >>> solution.status.name, solution.iterations
    ('STOPPED_BY_CALLBACK', 3)
    """

    iteration: int
    x: Tensor
    residual_norm: Tensor
    converged: Tensor


class ConvergenceWarning(UserWarning):
    """A solve to a tolerance, or the adjoint solve of a backward pass, did not converge.

    Python shows it once per line that calls a solver. ``warnings.simplefilter("error",
    learnsolve.solvers.ConvergenceWarning)`` makes it an exception, ``"ignore"`` silences it.

    Examples
    --------
    >>> import torch, warnings, learnsolve as ls
    >>> A, b = ls.problems.poisson((8, 8)), torch.ones(64, dtype=torch.float64)
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", ls.solvers.ConvergenceWarning)
    ...     try:
    ...         ls.solvers.cg(A, b, maxiter=2)
    ...     except ls.solvers.ConvergenceWarning as warning:
    ...         print(str(warning).partition(".")[0])
    cg: did not converge: MAX_ITERATIONS
    """


class Report:
    """Where a backward pass stores its report. It holds no tensor of the autograd graph: since a graph holds
    its report, a reference back would keep both alive."""

    solution: Solution | None = None


class SolverError(RuntimeError):
    """Raised with `throw` if a solve, or the adjoint solve of a backward pass, did not converge.

    Attributes
    ----------
    solution : Solution, with the last iterate

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((8, 8)), torch.ones(64, dtype=torch.float64)
    >>> try:
    ...     ls.solvers.cg(A, b, maxiter=2, throw=True)
    ... except ls.solvers.SolverError as error:
    ...     print(error.solution)
    Solution(x=(64,), iterations=2, status=MAX_ITERATIONS)
    """

    def __init__(self, function: str, solution: Solution):
        super().__init__(f"{function}: {solution.summary()}")
        self.solution = solution


if TYPE_CHECKING:  # type checkers infer the types in `x, info = cg(A, b)` only for a tuple

    class _Pair(tuple[Tensor, int]):
        def __new__(cls, *arguments: object, **keywords: object) -> Self: ...

else:
    _Pair = object


class Solution(_Pair):
    """The result of a solve. It unpacks as in SciPy: ``x, info = cg(A, b)``.

    Attributes
    ----------
    x : Tensor (also for a NumPy b), the last iterate, with b's shape and any batch axes of A that b lacks
    iterations : int, the iterations that ran (the largest number over all columns). `cg` on a CUDA device
        with a fixed number of iterations does not wait for it and reports the requested number.
    residual_norms : Tensor, shape (..., iterations + 1), or (..., iterations + 1, k) for k right-hand sides:
        ||b - A x_i|| for every iterate, starting with the initial one, differentiable unless the gradient is
        "implicit". For a `BlockBatch` the axis B follows the batch axes. A column that has stopped keeps its
        last norm. After a fixed number of iterations the last norm is computed by a product with A when
        the attribute is first read: RuntimeError if A's values, b or x were changed in place in between.
    status, converged : Status of the worst column, and whether it is CONVERGED. Reading synchronizes a device
    statuses : list of Status, one per column (batch axes, blocks of a `BlockBatch` and columns in order)
    normal_residual_norm : Tensor, () or (..., k), for least squares: ||A^T (b - A x) - damp^2 x||, else None
    info : int, SciPy's code: 0 converged, > 0 iterations without converging, < 0 breakdown
    note : str, for a solve that did not converge: the accuracy reached and the accuracy requested, part of
        `summary`. With `null_space`: the component of b that was dropped, if it is more than rounding
    method : str, the method that ran, such as "cg", or "cg with MIC(0)" if `learnsolve.solve` chose M
    reason : str, why `learnsolve.solve` chose it, and what it tried before, otherwise empty
    backend : str, how the iterations ran: "compiled", many iterations per call; "compiled, Python
        preconditioner", one iteration per compiled call with M called in between; "eager", one torch
        operation after another; "direct", a factorization; "PETSc"
    seconds : float, of a solve on the CPU, without the backward pass, or None for `jacobi`, with
        `iterations`, in graphs of torch.compile and on a CUDA device, which works asynchronously
    products : int, the products with A and A^T in the iterations: one per iteration, two for `bicgstab`,
        `lsqr` and `lsmr`, one more for each restart of `gmres`. The first residual and the final checks are
        not counted. None where `seconds` is
    adjoint : Solution of the last adjoint solve of gradient="implicit", detached from the autograd graph, or
        None before a backward pass

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((8, 8)), torch.ones(64, dtype=torch.float64)
    >>> ls.solvers.cg(A, b)
    Solution(x=(64,), iterations=10, status=CONVERGED)
    >>> x, info = ls.solvers.cg(A, b)
    >>> info
    0
    """

    def __init__(
        self,
        x: Tensor,
        iterations: Any,  # an int, or its symbol in a graph
        residual_norms: Tensor | Callable[[], Tensor],
        axis: int,
        needs: tuple[Tensor, ...] = (),
        codes: Tensor | None = None,
        adjoint: Report | None = None,
        note: str = "",
        backend: str = EAGER,
        method: str = "",
    ):
        self.x = x
        self.method = method
        self.reason = ""
        self.backend = backend
        self.seconds: float | None = None
        self.products: int | None = None
        self.normal_residual_norm: Tensor | None = None
        self.iterations: int = iterations
        self._norms, self._complete = (
            (None, residual_norms) if callable(residual_norms) else (residual_norms, None)
        )
        self._axis = axis  # the axis of residual_norms along which the iterates lie
        self._codes = codes
        self._adjoint = adjoint
        self.note = note
        self._grad_enabled = torch.is_grad_enabled()
        self._needs = Versions(needs) if needs else None

    @property
    def adjoint(self) -> Solution | None:
        return None if self._adjoint is None else self._adjoint.solution

    @property
    def residual_norms(self) -> Tensor:
        if self._norms is not None:
            return self._norms
        assert self._complete is not None
        unchanged = self._needs is None or self._needs.is_current()
        if unchanged is False:
            raise RuntimeError(
                "Solution.residual_norms: A.values, b or x was changed in place after the solve. Ask for the "
                "norms before, or solve with clones"
            )
        # Whether there is a graph is decided by the solve, not by where this is first read.
        with torch.set_grad_enabled(self._grad_enabled):
            self._norms = self._complete()
            if unchanged is not True:  # on a device: NaN instead of the error
                self._norms = torch.where(unchanged, self._norms, torch.nan)
        self._complete = self._needs = None  # what they hold is needed no longer
        return self._norms

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copies: the last norm cannot be computed there."""
        return {**vars(self), "_norms": self.residual_norms, "_complete": None, "_needs": None}

    @property
    def statuses(self) -> list[Status]:
        if self._codes is None:
            return [self.status]
        return [STATUSES[code - 1] for code in numbers(self._codes).reshape(-1).tolist()]

    @property
    def status(self) -> Status:
        if self._codes is not None:
            return _worst(self._codes)
        norms = self.residual_norms.detach()
        if not (torch.isfinite(norms).all() and torch.isfinite(self.x.detach()).all()):
            return Status.NON_FINITE
        if (norms.select(self._axis, -1) > 10 * norms.select(self._axis, 0)).any():
            return Status.DIVERGED
        return Status.MAX_ITERATIONS

    @property
    def converged(self) -> bool:
        return self.status is Status.CONVERGED

    def summary(self) -> str:
        """One paragraph for an error message."""
        bad = [i for i, status in enumerate(self.statuses) if status is not Status.CONVERGED]
        columns = f" in {len(bad)} of {len(self.statuses)} columns" if len(self.statuses) > 1 else ""
        norms = self.residual_norms.detach()
        last, first = (float(norms.select(self._axis, i).max()) for i in (-1, 0))
        steps = f"after {self.iterations} iteration{'' if self.iterations == 1 else 's'}"
        how = "by a factorization" if self.backend == DIRECT else steps
        return (
            f"{self.status.name}{columns} {how}, residual norm {last:.3g} "
            f"(initially {first:.3g}). {self.note}{self.status}"
        )

    @property
    def info(self) -> int:
        """SciPy's code: 0 if all columns converged; the number of iterations, at least 1, if they ended early
        (the limit, a callback, stagnation); negative if the method could not continue."""
        status = self.status
        if status is Status.CONVERGED:
            return 0
        return max(self.iterations, 1) if status in _ENDED else -CODE[status]

    def __iter__(self) -> Iterator[Any]:
        return iter((self.x, self.info))

    def __getitem__(self, index: Any) -> Any:
        return (self.x, self.info)[index]

    def __bool__(self) -> bool:
        raise TypeError(
            "Solution: has no truth value. Ask .converged, which is True where all columns converged (each: "
            "[s is Status.CONVERGED for s in solution.statuses])"
        )

    def __repr__(self) -> str:
        return f"Solution(x={tuple(self.x.shape)}, iterations={self.iterations}, status={self.status.name})"
