"""One function for any matrix: the methods that `ls.solve` tries for a matrix, in order, and the limit of
each attempt.

Costs are counted in flops of a direct solve (`direct_cost`). All attempts before the direct solve together
take at most about half of its time, so that `ls.solve` takes little longer than the best method, iterative or
direct. The rule uses the matrix, the number of columns of b and residual norms, but never a clock.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse.linalg
import torch
from torch import Tensor

from learnsolve.arguments import Index, NotNegative
from learnsolve.matrix import checks
from learnsolve.matrix.cache import chooses, numbers, outside_of_graphs, vmap_active
from learnsolve.matrix.convert import TensorLike
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, equal, to_numpy
from learnsolve.ops.direct import predict_choice, spsolve
from learnsolve.ops.operators import LinearOperator
from learnsolve.ops.structure import symmetric_pattern, symmetry
from learnsolve.ordering import reverse_cuthill_mckee
from learnsolve.preconditioners import IC, ILU, MIC, Jacobi
from learnsolve.preconditioners.direct import Factorization
from learnsolve.solvers.core.arguments import check_b, check_operands
from learnsolve.solvers.core.gradient import transforms_active
from learnsolve.solvers.core.loop import quiet, report, users_frame
from learnsolve.solvers.core.operators import safe_size
from learnsolve.solvers.core.problem import DetectedConstants, detect_constants
from learnsolve.solvers.krylov import bicgstab, cg, gmres, minres
from learnsolve.solvers.least_squares import lsqr
from learnsolve.solvers.solution import CODE, DIRECT, ConvergenceWarning, Solution, SolverError, Status

FACTORS = 400  # flops in the time that SuperLU spends on the structure of an entry of the factors
# Measured for a new pattern, in flops of SuperLU: per entry of A, per entry of the factors, per flop.
LIBRARIES = {"superlu": (0, FACTORS, 1.0), "pardiso": (5_000, 200, 0.12), "cholmod": (2_500, 200, 0.25)}
DIRECT_FIRST = 8e7  # 8 ms: below this, start with a direct solve, which cannot miss a tolerance
LAST_RESORT = 1e12  # 100 s, or some gigabytes of factors: no direct solve above this
SHARE = 0.65  # of a direct solve, for all attempts before it
ENTRY = 5  # flops in the time of an entry in a product with A
# Measured cost of an iteration in products with A: without M or with Jacobi, and with triangular solves.
PLAIN = {"cg": 1.0, "minres": 1.5, "bicgstab": 2.0}
TRIANGULAR = {"cg": 2.5, "bicgstab": 8.0}
SETUP = 60  # an incomplete factor of a new pattern, likewise: 70 for 10^4 rows, 20 to 40 for 10^6
PROBE = 30  # products before a direct solve is estimated, which takes as long
QUICK = {"cg": 145, "bicgstab": 125}  # iterations with Jacobi's M, before an incomplete factor is made
SAFE = 60  # such iterations where ILU(0) is stable, as A is diagonally dominant
FEW = 20  # fewer iterations than this are not worth starting
FIRST = 1_000  # iterations of bicgstab before gmres, where a direct solve is not an option
SHIFTS = (0.0, 1e-3, 1e-2, 1e-1, 1.0)  # of the diagonal, relative, for incomplete factors


class Choice(NamedTuple):
    method: str
    M: str  # the name of the preconditioner, or "given", or "no M"
    why: str
    maxiter: int | None = None


class Ending(NamedTuple):
    """How an attempt ended, and the iterations that it would still have needed: at least `least` if the norms
    keep falling at the same rate, at most `most` if they fall as a power of the iterations."""

    status: Status = Status.MAX_ITERATIONS
    least: float = 0.0
    most: float = torch.inf


NOTHING_YET = Ending()


def choices(A: CSR, b: Tensor, M: object, singular: bool) -> Generator[Choice, Ending, None]:
    """The choices in order. `send` receives the ending of each."""
    m, n = A.shape
    if m != n:
        yield Choice("lsqr", "no M" if isinstance(M, str) else "given", f"A is {m} x {n}")
        return
    cost, spent, ending = torch.inf, 0.0, NOTHING_YET
    columns = max(b.shape[-1], 1) if b.dim() > 1 else 1
    product, setup = ENTRY * max(A.nnz, 1) * columns, SETUP / columns
    if A.device.type == "cpu" and not singular:
        if FACTORS * A.nnz > max(DIRECT_FIRST / 4, FEW * product):  # a lower bound of a direct solve
            ending, spent = (yield from _iterations(A, M, PROBE, setup)), PROBE
            if ending.most <= 2 * setup:
                more = PROBE + 2 * setup
                ending, spent = (yield from _iterations(A, M, more, setup, PROBE, ending)), more
        cost = direct_cost(A)
    products = SHARE * cost / product if cost <= LAST_RESORT else torch.inf
    cheap = isinstance(M, str) and (cost <= DIRECT_FIRST or products < FEW)
    if not cheap:
        yield from _iterations(A, M, products, setup, spent, ending)
    if cost <= LAST_RESORT:
        why = "a factorization is cheap" if cheap else "iterations take longer"
        if (yield Choice("direct", "no M", why)).status is Status.BREAKDOWN:  # A is singular
            yield from _iterations(A, M, torch.inf, setup)


def _iterations(
    A: CSR, M: object, products: float, setup: float, spent: float = 0.0, ending: Ending = NOTHING_YET
) -> Generator[Choice, Ending, Ending]:
    """Iterative methods within the cost of so many products with A, of which an incomplete factor takes
    `setup`; `spent` were used by an attempt that ended with `ending`."""
    method, plain = fitting(A)
    incomplete = isinstance(M, str) and plain == "Jacobi" and A.device.type == "cpu"
    plain = plain if isinstance(M, str) else "given"
    if method != "minres" and ending.status is not Status.INDEFINITE:
        # A limit only if a direct solve or gmres follows.
        most = FIRST if method == "bicgstab" and products == torch.inf else torch.inf
        limit, rest = min((products - spent) / PLAIN[method], most), 0.0
        if incomplete:
            quick = SAFE if method == "bicgstab" and _dominant(A) else QUICK[method]
            if method == "cg" and ending.least > setup:
                quick = 0  # a factor saves more than it costs
            quick = max(min(quick - spent / PLAIN[method], limit), 0)
            rest = (products - spent - quick * PLAIN[method] - setup) / TRIANGULAR[method]
            limit = quick if rest >= FEW else limit
        why = "A is symmetric, its diagonal positive" if method == "cg" else "A is not symmetric"
        if limit >= 1:
            ending = yield Choice(method, plain, why if not spent else "more iterations", _limit(limit))
        if rest >= FEW and ending.status is not Status.INDEFINITE:
            plain = factor(A, method)
            ending = yield Choice(method, plain, "these are many iterations", _limit(min(rest, most)))
    if method == "bicgstab" and products == torch.inf:
        yield Choice("gmres", plain, "it does not break down")
    limit = (products - spent) / PLAIN["minres"]
    if (method == "minres" and limit >= 1) or (ending.status is Status.INDEFINITE and limit > FEW):
        yield Choice("minres", "no M", "A is symmetric and may be indefinite", _limit(limit))
    return ending


def _limit(iterations: float) -> int | None:
    return None if iterations == torch.inf else max(int(iterations), 1)


def fitting(A: CSR) -> tuple[str, str]:
    """An iterative method, and an M without setup cost."""
    diagonal, symmetric = numbers(A.diagonal()), symmetry("solve", A, None)
    if symmetric:
        return ("cg", "Jacobi") if bool((diagonal.real > 0).all()) else ("minres", "no M")
    return "bicgstab", "Jacobi" if bool((diagonal != 0).all()) else "no M"


def factor(A: CSR, method: str) -> str:
    """The incomplete factor to use with `method`."""
    if method != "cg":
        return "ILU(0)"
    return "MIC(0)" if _prefers_mic(A) else "IC(0)"


def _dominant(A: CSR) -> bool:
    """|a_ii| >= the sum of the |a_ij|, j != i, but for rounding, by rows or by columns."""
    size = A.with_values(numbers(A.values).abs())
    twice = (2 + 64 * torch.finfo(A.dtype).eps) * size.diagonal()
    return any(bool((twice >= size.sum(dim)).all()) for dim in (1, 0))


def _prefers_mic(A: CSR) -> bool:
    """Whether MIC(0) exists and is better than IC(0).

    If A is diagonally dominant and a_ij <= 0 off the diagonal, its pivots are at least a_ii minus the |a_ij|
    of earlier columns. Where that is almost zero in 4 to 16 % of the rows (coefficients that jump, graphs in
    random order) MIC(0) needed up to 60 times the iterations of IC(0). The last row of a Laplacian does no
    harm.
    """
    P, values, diagonal = A.pattern, numbers(A.values), numbers(A.diagonal())
    if values.is_complex():  # there is no complex MIC(0)
        return False
    if bool(((values > 0) & (P.row_indices != P.col_indices)).any()) or not _dominant(A):
        return False
    least = diagonal + A.with_values(torch.where(P.row_indices > P.col_indices, values, 0)).sum(1)
    return bool(((least < 0.01 * diagonal).sum(-1) <= 0.01 * A.shape[0]).all())


def preconditioner(name: str, A: CSR, M: object) -> tuple[Any, str]:
    """M and its description."""
    if name == "no M":
        return None, ""
    if name == "given":
        return M, "" if M is None else " with the given M"
    plain = A.with_values(numbers(A.values))
    if name == "Jacobi":
        return Jacobi(plain), " with Jacobi"
    make: Any = {"IC(0)": IC, "MIC(0)": MIC, "ILU(0)": ILU}[name]
    for shift in SHIFTS:
        try:
            factor_M = make(plain, shift=shift)
        except ValueError:  # a pivot is not positive, or zero
            continue
        return factor_M, f" with {name}" + (f", shifted by {shift:g}" if shift else "")
    return Jacobi(plain), " with Jacobi"


def direct_cost(A: CSR, library: str | None = None) -> float:
    """The cost of `spsolve` with A on the host, by the given library or the default one, in flops of SuperLU
    (about 1e-10 s each). O(nnz), once per pattern. Accurate within a factor of three on meshes, but too large
    on trees and on graphs with few cycles.

    In reverse Cuthill-McKee order the envelope of A + A^T has rows of w entries, about the size of the
    separators of the graph. A band of this width needs 2 n w entries and n w^2 flops. An order that reduces
    fill leaves at most about 8 entries per nonzero, and 10 (w / n)^1/2 of the flops: n^1.5 in the plane.
    """
    entries, flops = A.pattern._plan_once(_direct_cost)
    if not entries or not A.values.numel():
        return 0.0
    kind = "lu"
    if library is None:
        kind, library = predict_choice(A.pattern, numbers(A.values).reshape(-1, A.nnz)[0])
    of_A, of_factors, of_flops = LIBRARIES[library]
    both = 2 if kind == "lu" and library != "superlu" else 1  # L and U; SuperLU has no other kind
    return of_A * A.nnz + both * (of_factors * entries + of_flops * flops)


def _direct_cost(P: SparsityPattern) -> tuple[float, float]:
    """Entries and flops."""
    n = P.shape[0]
    sides = [P] if symmetric_pattern(P) else [P, P.T]
    if n == 0 or not all(np.diff(to_numpy(side.crow_indices)).all() for side in sides):
        return 0.0, 0.0  # no factor of an empty row
    place = np.empty(n, dtype=np.int64)
    place[to_numpy(reverse_cuthill_mckee(P))] = np.arange(n)
    first = place
    for side in sides:
        of_rows = np.minimum.reduceat(place[to_numpy(side.col_indices)], to_numpy(side.crow_indices)[:-1])
        first = np.minimum(first, of_rows)
    width = (place - first).astype(np.float64)
    entries = min(2 * width.sum() + n, 8 * P.nnz)
    flops = np.square(width).sum()
    by_order = min(2.0, 10 * (flops / n) ** 0.25 / n**0.5)
    return float(entries), float(by_order * flops)


METHODS: dict[str, Callable[..., Solution]] = {
    "cg": cg, "minres": minres, "gmres": gmres, "bicgstab": bicgstab, "lsqr": lsqr,
}  # fmt: skip
_NO_GRAPH = (
    "ls.solve chooses a method by the values of A, which are not known while a graph is traced "
    "(fullgraph=True, torch.export). Write ls.solvers.cg(A, b, M=...).x, with the method and M that "
    "Solution.method names"
)
OTHERWISE = {Status.INDEFINITE, Status.BREAKDOWN, Status.STAGNATED, Status.MAX_ITERATIONS, Status.DIVERGED}


def solve(
    A: Any,
    b: TensorLike,
    *,
    rtol: NotNegative = 1e-5,
    atol: NotNegative = 0.0,
    maxiter: Index | None = None,
    method: str | Factorization = "auto",
    M: Any = "auto",
    null_space: Any = "auto",
    throw: bool = False,
) -> Solution:
    r"""Solve :math:`A x = b` with a method and preconditioner suited to A, or minimize the residual.

    Parameters
    ----------
    A : CSR, shape (m, n), values (..., nnz), a SciPy, torch or NumPy matrix, or a LinearOperator
    b : Tensor or NumPy array, shape (m,) or (..., m, k), of A's dtype and device
    rtol, atol : the tolerance, :math:`\|b - A x\| \le \max(\mathtt{rtol} \|b\|, \mathtt{atol})`
    maxiter : int, limit of each attempt. Default: see docs/solvers.md, or the limit of the method
    method : "auto", "direct" (`ops.spsolve`), "cg", "minres", "gmres", "bicgstab" or "lsqr", or factors
        of A, `ls.factorize(A)`
    M : "auto"; None; or a preconditioner, as for the method
    null_space : "auto": "constants" if all row and column sums of A are zero; None; or the null space of a
        singular A, as for `cg`
    throw : raise `SolverError` if the tolerance was not reached

    Returns
    -------
    Solution. Its attributes `method` and `reason` say what was chosen and why.

    Raises
    ------
    ValueError, TypeError
        as for the methods.
    SolverError
        if `throw` and a column did not converge.

    Notes
    -----
    How "auto" chooses: docs/solvers.md. The choice reads the values of A in O(nnz) and synchronizes a device.
    If "auto" detected null vectors and b has a component along them above the tolerance, the status is
    INCONSISTENT. null_space="constants" drops the component. Gradient: the implicit gradient of the method,
    for A and b. Under vmap b may be mapped. In a graph (`fullgraph=True`) call the method directly.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((16, 16, 16))
    >>> solution = ls.solve(A, torch.ones(4096, dtype=torch.float64), rtol=1e-8)
    >>> solution.method, solution.reason
    ('cg with Jacobi', 'A is symmetric, its diagonal positive')
    """
    if torch.compiler.is_exporting():
        raise NotImplementedError(_NO_GRAPH)
    A, b = checks.operands("solve", A, b)
    A = checks.with_entries(A)
    products = isinstance(A, (LinearOperator, scipy.sparse.linalg.LinearOperator))
    products = products and method != "direct" and not isinstance(method, Factorization)
    if not products:
        checks.matrix("solve", "A", A)
    check_b("solve", b, or_complex=True)
    if b.is_complex() and not products:
        checks.one_dtype("solve", b, A.values)
    check_operands("solve", A, b)
    checks.rows("solve", "b", b, "A", A.shape)
    factors = None
    if isinstance(method, Factorization):
        factors, method = method, "direct"
        _check_factors(factors, A)
    checks.check_choice("solve", "method", method, ("auto", "direct", *METHODS))
    if not products and vmap_active(A.values):
        raise NotImplementedError(
            "solve: under vmap the values of A cannot be read to choose a method. Call one, such as cg, or "
            "pass A.values with a batch axis"
        )
    if isinstance(M, str):
        checks.check_choice("solve", "M", M, ("auto",))
    if method == "direct" and not isinstance(M, str) and M is not None:
        raise ValueError('solve: method="direct" takes no M. Remove it')
    automatic = isinstance(null_space, str) and null_space == "auto"
    if automatic:
        takes = not products and method not in ("direct", "lsqr") and A.shape[0] == A.shape[1]
        null_space = detect_constants(A) if takes and not A.values.is_complex() else None
    elif null_space is not None and (method in ("direct", "lsqr") or A.shape[0] != A.shape[1]):
        raise ValueError(
            "solve: null_space is only used by cg, minres, gmres and bicgstab. lsqr finds the solution of "
            "minimum norm without it, and a direct solve needs a regular A"
        )
    tried: list[str] = []
    singular = null_space is not None
    if method != "auto":
        attempts = _follow_request(A, method, M)
    else:
        attempts = _by_products(A, b, M) if products else choices(A, b, M, singular)
    choice, x0 = next(attempts), None
    while True:
        made, note = preconditioner(choice.M, A, M)
        ran, failure = f"{choice.method}{note}", None
        try:
            with quiet() as said:
                solution = _run(choice, A, b, x0, made, rtol, atol, maxiter, throw, null_space, factors)
            status = solution.status
        except SolverError as error:
            solution = error.solution
            status = solution.status
        except ValueError as error:
            if choice.method != "direct" or "singular" not in str(error):
                raise
            failure, status = error, Status.BREAKDOWN
        if status not in OTHERWISE:
            break
        why = choice.why
        try:
            ending = Ending(status) if failure is not None else _ending(solution, b, rtol, atol)
            choice = attempts.send(ending)
        except StopIteration:
            break
        tried.append(f"{ran}: {why}; {'A is singular' if failure is not None else status.name}")
        x0 = None if failure is not None else _start(solution)
    if failure is not None:
        raise failure
    before = f"; before, {'; then '.join(tried)}" if tried else ""
    solution.method, solution.reason = ran, f"{choice.why}{before}"
    if isinstance(null_space, DetectedConstants):
        found = 'null_space="constants", as the rows of A sum to zero'
        exactly = "" if null_space.exactly else " up to rounding"
        solution.reason = f"{found}; {solution.reason}"
        solution.note = f"{found}{exactly}, and so do its columns. {solution.note}"
    report("solve", solution, throw, True)
    for text in said:
        warnings.warn(text, ConvergenceWarning, stacklevel=users_frame())
    return solution


solve = outside_of_graphs(chooses(solve), _NO_GRAPH)


def _start(solution: Solution) -> Tensor | None:
    """x if it is closer to a solution than its start: the next attempt then starts from it."""
    if transforms_active():  # under vmap the norms have other axes
        return None
    norms, axis = solution.residual_norms.detach(), solution._axis
    nearer = norms.select(axis, -1) < norms.select(axis, 0)
    return torch.where(nearer if axis == -1 else nearer.unsqueeze(-2), solution.x.detach(), 0)


def _ending(solution: Solution, b: Tensor, rtol: float, atol: float) -> Ending:
    """For the slowest column, extrapolated from the second half of the iterations."""
    count = solution.residual_norms.shape[solution._axis] - 1
    if solution.status is not Status.MAX_ITERATIONS or transforms_active() or count < 2:
        return Ending(solution.status)
    norms = solution.residual_norms.detach().movedim(solution._axis, 0)
    target = (rtol * torch.linalg.vector_norm(b.detach(), dim=solution._axis)).clamp(min=atol)
    gain, distance = (norms[count // 2] / norms[-1]).log(), (norms[-1] / target).log()
    ratio = float(torch.where(distance <= 0, 0, torch.where(gain > 0, distance / gain, torch.inf)).max())
    power = min(ratio * math.log(count / (count // 2)), 100.0)
    return Ending(solution.status, ratio * (count - count // 2), count * math.expm1(power))


def _by_products(A: Any, b: Tensor, M: object) -> Generator[Choice, Ending, None]:
    """The choices for an operator without entries."""
    made, why = "given" if not isinstance(M, str) else "no M", "A gives products only"
    if A.shape[0] != A.shape[1]:
        yield Choice("lsqr", made, f"{why} and is {A.shape[0]} x {A.shape[1]}")
    elif not (isinstance(A, LinearOperator) and A.symmetric) or b.is_complex():
        yield Choice("gmres", made, f"{why}, and may not be symmetric")
    elif (yield Choice("cg", made, f"{why} and is symmetric")).status is Status.INDEFINITE:
        yield Choice("minres", "no M", "A is symmetric and may be indefinite")


def _follow_request(A: Any, method: str, M: object) -> Generator[Choice, Ending, None]:
    """The requested method, with an M that suits it."""
    made = "given" if not isinstance(M, str) and M is not None else "no M"
    square = isinstance(A, CSR) and A.shape[0] == A.shape[1]
    if isinstance(M, str) and square and method in ("cg", "gmres", "bicgstab"):
        own, plain = fitting(A)
        if method == own or (method, own) == ("gmres", "bicgstab"):
            made = factor(A, own) if plain == "Jacobi" and A.device.type == "cpu" else plain
    yield Choice(method, made, "as asked")


def _run(
    choice: Choice,
    A: CSR,
    b: Tensor,
    x0: Tensor | None,
    M: object,
    rtol: float,
    atol: float,
    maxiter: int | None,
    throw: bool,
    null_space: object,
    factors: Factorization | None,
) -> Solution:
    if choice.method == "direct":
        return _direct(A, b, rtol, atol, factors)
    options: dict[str, Any] = {"maxiter": choice.maxiter if maxiter is None else maxiter, "throw": throw}
    if maxiter is None and choice.maxiter is not None:  # the limit is for the attempt, not for its gradient
        options["adjoint_maxiter"] = 10 * A.shape[0]
    options |= {} if x0 is None else {"x0": x0}
    options |= {} if null_space is None else {"null_space": null_space}
    options |= {"rtol": rtol, "atol": atol} if choice.method != "lsqr" else {"atol": rtol, "btol": rtol}
    return METHODS[choice.method](A, b, **options, **({} if M is None else {"M": M}))


def _check_factors(F: Factorization, A: CSR) -> None:
    same = F.A is A or (equal(F.A.pattern, A.pattern) and torch.equal(numbers(F.A.values), numbers(A.values)))
    if not same:
        raise ValueError(
            "solve: method has the factors of another matrix. Call method.refactorize(A.values), or use them "
            'as a preconditioner, ls.solve(A, b, method="gmres", M=F)'
        )


def _direct(A: CSR, b: Tensor, rtol: float, atol: float, factors: Factorization | None) -> Solution:
    """`spsolve`, with a status from its residual."""
    x = spsolve(A, b) if factors is None else factors._solve_with_gradient(A, b)
    axis = -1 if b.dim() == 1 else -2
    with torch.no_grad():
        after, before = (
            safe_size(t.unsqueeze(-1)).squeeze(-1).squeeze(-1) if axis == -1 else safe_size(t).squeeze(-2)
            for t in (b - A @ x, b)
        )
        before = before.expand(after.shape)
        reached = after <= (rtol * before).clamp(min=atol)
        codes = torch.where(reached, CODE[Status.CONVERGED], CODE[Status.STAGNATED])
        codes = torch.where(after.isfinite(), codes, CODE[Status.NON_FINITE])
    return Solution(x, 1, torch.stack((before, after), axis), axis, codes=codes, backend=DIRECT)
