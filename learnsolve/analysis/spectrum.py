"""The smallest and the largest eigenvalue of A, or of M A, by Lanczos's method; the condition number.

Sources: Parlett, "The Symmetric Eigenvalue Problem" (1998), chapters 13 and 15; Saad, "Iterative Methods for
Sparse Linear Systems" (2003), section 9.2.1 for the inner product.

A M is symmetric in <u, v>_M = u^T M v and has the eigenvalues of M A. With Y = M V, V^T M V = I:

    A Y_k = V_k T_k + beta_k v_(k+1) e_k^T,  T_k s = theta s  =>  an eigenvalue is in theta +- beta_k |s_k|

and M A u ~ theta u for u = Y_k s, A u ~ theta z for z = V_k s: Lanczos never applies M^-1.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse.linalg
import torch
from torch import Tensor

from learnsolve.arguments import Count, NotNegative
from learnsolve.matrix import checks
from learnsolve.matrix.cache import innermost, plain_tensors, vmap_active
from learnsolve.matrix.checks import RealDtype
from learnsolve.matrix.convert import check_real
from learnsolve.matrix.pattern import to_numpy
from learnsolve.ops.autograd import Nestable, needs_graph
from learnsolve.solvers.core.arguments import check_symmetric
from learnsolve.solvers.core.loop import users_frame
from learnsolve.solvers.core.operators import make_operator, make_preconditioner


class Estimate(NamedTuple):
    """An estimated value.

    Attributes
    ----------
    value : Tensor, differentiable
    error : Tensor of the same shape, a constant: the error of the value, as defined by the function that
        returned it
    converged : bool, whether the error is within the requested tolerance. If not, a RuntimeWarning is issued
        as well

    Examples
    --------
    >>> import learnsolve as ls
    >>> kappa = ls.analysis.condition_number(ls.problems.poisson((15,)))
    >>> kappa.converged, bool(kappa.error < 1e-3 * kappa.value)
    (True, True)
    """

    value: Tensor
    error: Tensor
    converged: bool


def warn(function: str, message: str) -> None:
    warnings.warn(f"{function}: {message}", RuntimeWarning, stacklevel=users_frame())


def attach_derivative(function: str, value: Tensor, form: Tensor) -> Tensor:
    """`value`, with the first derivative of `form`, in which eigenvectors are constants. The first derivative
    of an eigenvalue does not need the derivatives of the eigenvectors. The second does, and raises."""
    return _FirstOrder.apply(function, value, form)  # type: ignore[return-value]


class _FirstOrder(Nestable):
    generate_vmap_rule = True

    @staticmethod
    def forward(function: str, value: Tensor, form: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: Tensor) -> None:
        ctx.function, _, form = inputs
        ctx.save_for_backward(form)
        ctx.save_for_forward(form)

    @staticmethod
    def backward(ctx, g: Tensor):  # type: ignore[override]
        return None, None, _Once.apply(ctx.function, g, ctx.saved_tensors[0])

    @staticmethod
    def jvp(ctx, _function: None, _value: Tensor | None, t: Tensor):  # type: ignore[override]
        return _Once.apply(ctx.function, t, ctx.saved_tensors[0])


class _Once(Nestable):
    """A derivative that depends on `form`, so that differentiating it again raises."""

    generate_vmap_rule = True

    @staticmethod
    def forward(function: str, g: Tensor, form: Tensor) -> Tensor:
        return g.clone()

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: Tensor) -> None:
        ctx.function = inputs[0]

    @staticmethod
    def backward(ctx, *_: Tensor):  # type: ignore[override]
        raise _no_second(ctx.function)

    @staticmethod
    def jvp(ctx, *_: object):  # type: ignore[override]
        raise _no_second(ctx.function)


def _no_second(function: str) -> NotImplementedError:
    return NotImplementedError(
        f"{function}: has first derivatives only. For second derivatives use ls.eigsh for a symmetric CSR, "
        "or torch.linalg.eigvalsh or eigvals on A.to_dense()"
    )


Map = Callable[[Tensor], Tensor]


class Space(NamedTuple):
    """The length, dtype and device of vectors, and the batch axes of the map."""

    n: int
    dtype: torch.dtype
    device: torch.device
    batch: torch.Size = torch.Size()

    def start(self) -> Tensor:
        """A column, the same in each call: random, so that no eigenvector is orthogonal to it."""
        g = torch.Generator("cpu").manual_seed(0)
        with plain_tensors():
            start = torch.randn(self.n, 1, dtype=torch.float64, generator=g, device="cpu")
            return start.to(self.dtype).to(self.device)

    def numbers(self, *values: float) -> Tensor:
        return torch.tensor(values, dtype=self.dtype, device=self.device)

    def expand_columns(self, X: Tensor) -> Tensor:
        """Columns (n, k), the same for each matrix of the batch."""
        return X.expand(*self.batch, *X.shape)

    def which(self, i: int) -> str:
        """The prefix of messages about matrix i."""
        return f"matrix {i} of the batch: " if self.batch else ""


def infer_space(function: str, name: str, A: object, n: int | None, dtype: torch.dtype | None) -> Space:
    """The space that A, square, maps into itself."""
    shape = getattr(A, "shape", None)
    if shape is None:
        if n is None:
            raise ValueError(f"{function}: the size of a callable {name} is unknown. Pass n=")
        return Space(n, dtype or torch.float64, torch.device("cpu"))
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"{function}: {name} must be square, got shape {tuple(shape)}")
    if shape[0] == 0:
        raise ValueError(f"{function}: {name} has no rows, so there are no eigenvalues. Skip the call")
    for key, argument, known in (("n", n, shape[0]), ("dtype", dtype, _dtype(A))):
        if argument is not None:
            user = f"a callable {name}, and this one has {key} = {known}"
            checks.check_unused(function, key, argument, user, known)
    check_real(function, name, _dtype(A))
    batch = torch.Size(getattr(A, "batch_shape", ()))
    if batch.numel() == 0:
        raise ValueError(f"{function}: {name} is an empty batch of shape {tuple(batch)}. Remove it")
    return Space(int(shape[0]), _dtype(A), getattr(A, "device", torch.device("cpu")), batch)


def broadcast_space(function: str, space: Space, M: object) -> Space:
    """The space of products with A and M, whose batch axes are broadcast."""
    checks.batches(function, space.batch, batch := torch.Size(getattr(M, "batch_shape", ())), "A and M")
    if not batch:  # `broadcast_shapes` is Python: 30 us
        return space
    return space._replace(batch=torch.broadcast_shapes(space.batch, batch))


def member(apply: Map, space: Space, i: int) -> Map:
    """The map of matrix i of a batch, by products with all matrices, zeros for the others."""
    if not space.batch:
        return apply
    count = space.batch.numel()
    one = torch.zeros(count, 1, 1, dtype=space.dtype, device=space.device)
    one[i] = 1

    def apply_member(X: Tensor) -> Tensor:
        return apply((one * X).reshape(*space.batch, *X.shape)).reshape(count, *X.shape)[i]

    return apply_member


def _dtype(A: Any) -> torch.dtype:
    if isinstance(A, scipy.sparse.linalg.LinearOperator):
        return torch.float32 if np.dtype(A.dtype) == np.float32 else torch.float64
    return A.dtype if isinstance(getattr(A, "dtype", None), torch.dtype) else torch.float64


def linear(function: str, name: str, M: object) -> None:
    if not getattr(M, "linear", True):
        raise ValueError(
            f"{function}: {type(M).__name__} is not linear, so {name} has no eigenvalues. Measure it with "
            "learnsolve.compare_preconditioners"
        )


def constant(function: str, f: Map) -> Map:
    """f without derivatives: the result belongs to neither a graph nor a transformation."""

    def apply(X: Tensor) -> Tensor:
        with torch.no_grad():
            return plain(function, f(X))

    return apply


def plain(function: str, t: Tensor) -> Tensor:
    """The values of t."""
    if vmap_active(t):
        raise NotImplementedError(
            f"{function}: vmap is not supported, since the number of steps depends on the data. Call "
            "it for one matrix after another"
        )
    with plain_tensors():
        return innermost(t).detach()


def host_values(function: str, t: Tensor) -> np.ndarray:
    """The values of t on the host."""
    t = plain(function, t)
    with plain_tensors():
        return to_numpy(t)


class Ends(NamedTuple):
    """The smallest and the largest Ritz value, with their vectors as columns (n, 2)."""

    theta: Tensor  # (2,)
    error: Tensor  # (2,), bounds of the distance to an eigenvalue
    u: Tensor
    z: Tensor
    steps: int
    converged: bool


def lanczos(name: str, A: Map, M: Map | None, space: Space, most: int, rtol: float) -> list[Ends | None]:
    """Up to `most` steps for each matrix of a batch, the products of all in one call. See `_steps`."""
    start = space.start()
    runs = [_steps(name, M is not None, start, most, rtol) for _ in range(space.batch.numel())]
    results: list[Ends | None] = [None] * len(runs)
    asked = {i: next(run) for i, run in enumerate(runs)}
    shape = (*space.batch, *start.shape)
    by_M = M is not None  # the runs request products with M and with A alternately
    while asked:
        with plain_tensors():
            columns = [asked.get(i, start) for i in range(len(runs))]
            X = torch.stack(columns).reshape(shape) if space.batch else columns[0]
        Y = (M if by_M else A)(X).reshape(len(runs), *start.shape)  # type: ignore[misc]
        by_M = M is not None and not by_M
        for i in list(asked):
            try:
                asked[i] = runs[i].send(Y[i])
            except StopIteration as stop:
                results[i] = stop.value
                del asked[i]
    return results


def _steps(
    name: str, with_M: bool, start: Tensor, most: int, rtol: float
) -> Generator[Tensor, Tensor, Ends | None]:
    """Up to `most` steps, until both extreme eigenvalues are known to a relative accuracy of `rtol`. Yields
    the vectors to multiply by M, if given, and by A alternately. None if a product is not finite."""
    n, eps = start.shape[0], torch.finfo(start.dtype).eps
    with plain_tensors():  # inference tensors could not be modified here
        V = start.new_empty(most + 1, n)
        Y = torch.empty_like(V) if with_M else V
    alpha, beta = [], []  # of the tridiagonal matrix
    size = length = 0.0  # size: its largest entry in magnitude
    w = start
    for k in range(most + 1):
        y = (yield w) if with_M else w
        with plain_tensors():  # A and M may run in a transformation of torch.func, this does not
            length = _length(name, w, y)
            if not length < torch.inf:
                return None
            if k:
                beta.append(length)
            # The space is exhausted: the Ritz values are eigenvalues.
            exhausted = k == n or (k > 0 and length <= 10 * eps * size)
            if exhausted or k == most or k == 5 or (k > 0 and k % 10 == 0):
                rest = 0.0 if exhausted else length
                ends = _ends(V[:k], Y[:k], alpha, beta, rest, eps * size * k, rtol)
                if exhausted or ends.converged or k == most:
                    return ends._replace(converged=ends.converged or exhausted)
            V[k] = w[:, 0] / length
            if with_M:
                Y[k] = y[:, 0] / length
            y = Y[k].unsqueeze(-1)
        w = yield y
        with plain_tensors():
            # Orthogonalize against all, twice: the vectors stay orthogonal to rounding, so no eigenvalue
            # appears twice.
            first = Y[: k + 1] @ w
            w = w - V[: k + 1].T @ first
            again = Y[: k + 1] @ w
            w = w - V[: k + 1].T @ again
            h = (first + again)[:, 0].tolist()
        size = max(size, *map(abs, h))
        _symmetric(name, h, beta, size, eps)
        alpha.append(h[k])
    raise AssertionError("the last step returns")


def _length(name: str, w: Tensor, y: Tensor) -> float:
    square = float((w * y).sum())
    if square < 0 and -square > 1e-8 * float(w.norm() * y.norm()):
        raise ValueError(
            f"{name}: M must be positive definite, got <r, M r> = {square:.3g}. Use spectral_radius otherwise"
        )
    return max(square, 0.0) ** 0.5 if square == square else torch.inf


def _symmetric(name: str, h: list[float], beta: list[float], size: float, eps: float) -> None:
    """<A v_k, v_i> is <v_k, A v_i>: zero for i < k - 1, beta for i = k - 1."""
    k = len(h) - 1
    off = max([abs(t) for t in h[: max(k - 1, 0)]] + ([abs(h[k - 1] - beta[k - 1])] if k else [0.0]))
    if off > eps**0.5 * size:
        raise ValueError(
            f"{name}: A and M must be symmetric, got <u, A v> and <v, A u> that differ by {off / size:.2g} "
            "of the largest. Use spectral_radius otherwise"
        )


def _ends(
    V: Tensor, Y: Tensor, alpha: list[float], beta: list[float], length: float, rounding: float, rtol: float
) -> Ends:
    k = len(alpha)
    # Two pairs of many: O(k) flops, where all pairs of a few thousand would take seconds. Bisection squares
    # entries, hence the scale, which is exact.
    scale = 2.0 ** (math.frexp(max(map(abs, alpha + beta)))[1] - 1)
    diagonal, off = np.array(alpha) / scale, np.array(beta[: k - 1]) / scale
    pairs = [
        scipy.linalg.eigh_tridiagonal(diagonal, off, select="i", select_range=(i, i)) for i in (0, k - 1)
    ]
    theta = torch.from_numpy(np.concatenate([p[0] for p in pairs])) * scale
    S = torch.from_numpy(np.concatenate([p[1] for p in pairs], 1))
    error = length * S[-1].abs() + rounding
    known = error <= torch.clamp(rtol * theta.abs(), min=2 * rounding)
    S = S.to(V.dtype).to(V.device)
    to = {"dtype": V.dtype, "device": V.device}
    return Ends(theta.to(**to), error.to(**to), Y.T @ S, V.T @ S, k, bool(known.all()))


class ExtremeEigenvalues(NamedTuple):
    """The result of `extreme_eigenvalues`.

    Attributes
    ----------
    smallest, largest : Tensor, shape () or the batch shape, differentiable
    errors : Tensor, shape (..., 2), constants: an eigenvalue lies within this distance of smallest and of
        largest
    steps : int, number of Lanczos steps, the largest of a batch
    converged : bool, whether all errors are within rtol of the eigenvalue (or at rounding level)

    Examples
    --------
    >>> import learnsolve as ls
    >>> smallest, largest, errors, steps, converged = ls.analysis.extreme_eigenvalues(ls.ops.eye(9) * 3.0)
    >>> smallest, largest, converged
    (tensor(3., dtype=torch.float64), tensor(3., dtype=torch.float64), True)
    """

    smallest: Tensor
    largest: Tensor
    errors: Tensor
    steps: int
    converged: bool


def extreme_eigenvalues(
    A: object,
    M: object = None,
    *,
    steps: Count = 200,
    rtol: NotNegative | None = None,
    n: Count | None = None,
    dtype: RealDtype | None = None,
) -> ExtremeEigenvalues:
    r"""The extreme eigenvalues of a symmetric A, or of M A with a symmetric positive definite M.

    Parameters
    ----------
    A : CSR, values (..., nnz), StencilOperator or scipy.sparse.linalg.LinearOperator, shape (n, n), or a
        callable on blocks of columns (n, k)
    M : a preconditioner: Preconditioner, CSR, LinearOperator, or callable on blocks of columns
    steps : maximum number of Lanczos steps
    rtol : stop when both errors are at most rtol times the eigenvalue. Default 1e-6, 1e-3 in float32
    n, dtype : size and dtype (default float64) of a callable A

    Returns
    -------
    ExtremeEigenvalues

    Raises
    ------
    ValueError, TypeError
        if A and M do not match, A or M is not symmetric, or M not positive definite.
    RuntimeWarning
        (a warning) if `steps` is too small, or a product is not finite (the values are NaN).

    Notes
    -----
    Lanczos's method with the same start vector in every call. docs/gradients.md has the method, its error
    bounds and its derivative: first order, reverse and forward mode, with respect to A and M. Second
    derivatives raise. Deterministic with the same number of threads. Cost: k steps take k products with A and
    with M and :math:`4 k^2 n` flops, k about :math:`\sqrt{\kappa}` times a logarithm. The backward pass costs
    as much as that of one product.

    Examples
    --------
    >>> import learnsolve as ls
    >>> A = ls.problems.poisson((15, 15))
    >>> ends = ls.analysis.extreme_eigenvalues(A)
    >>> ends.smallest, ends.largest, ends.converged
    (tensor(0.0769, dtype=torch.float64), tensor(7.9231, dtype=torch.float64), True)
    >>> exact = ls.problems.PROPERTIES["poisson"].eigenvalues((15, 15))
    >>> bool(abs(ends.smallest - exact[0]) <= ends.errors[0])
    True
    """
    name = "extreme_eigenvalues"
    return _extreme(name, A, M, steps, rtol, n, dtype)


def _extreme(
    name: str,
    A: object,
    M: object,
    steps: int,
    rtol: float | None,
    n: int | None,
    dtype: torch.dtype | None,
) -> ExtremeEigenvalues:
    space = infer_space(name, "A", A, n, dtype)
    if rtol is None:
        rtol = 1e-6 if space.dtype == torch.float64 else 1e-3
    space = broadcast_space(name, space, M)
    start = space.expand_columns(space.start())
    operator = make_operator(name, A, start, None, (), symmetric=True)
    linear(name, "M A", M)
    check_symmetric(name, M)
    precondition = make_preconditioner(name, "M", M, start)
    results = lanczos(
        name,
        constant(name, operator),
        None if precondition is None else constant(name, precondition),
        space,
        min(steps, space.n),
        rtol,
    )
    for i, ends in enumerate(results):
        _report(name, space.which(i), ends, rtol)
    nan, inf = space.numbers(torch.nan, torch.nan), space.numbers(torch.inf, torch.inf)
    values = torch.stack([nan if e is None else e.theta for e in results]).reshape(*space.batch, 2)
    errors = torch.stack([inf if e is None else e.error for e in results]).reshape(*space.batch, 2)
    known = [e for e in results if e is not None]
    taken = max((e.steps for e in known), default=0)
    converged = len(known) == len(results) and all(e.converged for e in known)
    if known:
        zero = torch.zeros_like(known[0].u)  # for matrices without a result
        shape = (*space.batch, *zero.shape)
        u, z = (
            torch.stack([zero if e is None else getattr(e, name) for e in results]).reshape(shape)
            for name in ("u", "z")
        )
        form = (u * operator(u)).sum(-2)
        if precondition is not None:
            form = form + values * (z * precondition(z)).sum(-2)
        if needs_graph(form):
            values = attach_derivative(name, values, form)
    return ExtremeEigenvalues(values[..., 0], values[..., 1], errors, taken, converged)


def _report(name: str, which: str, ends: Ends | None, rtol: float) -> None:
    if ends is None:
        warn(
            name,
            f"{which}products with A or M have infinities or NaNs, so the eigenvalues are NaN without a "
            "gradient. Check the entries of A and M",
        )
    elif not ends.converged:
        low, high = ends.theta.tolist()
        warn(
            name,
            f"{which}after {ends.steps} steps, {low:.4g} and {high:.4g} may be off by {ends.error[0]:.2g} "
            f"and {ends.error[1]:.2g}, more than rtol = {rtol:.2g} allows. Allow more steps or a larger rtol",
        )


def condition_number(
    A: object,
    M: object = None,
    *,
    steps: Count = 200,
    rtol: NotNegative | None = None,
    n: Count | None = None,
    dtype: RealDtype | None = None,
) -> Estimate:
    r"""The condition number of M A, :math:`\kappa = \lambda_{\max} / \lambda_{\min}`, A and M symmetric
    positive definite.

    In each iteration, conjugate gradients with M reduce the error by
    :math:`(\sqrt\kappa - 1) / (\sqrt\kappa + 1)` or less.

    Parameters
    ----------
    A, M, steps, rtol, n, dtype : see `extreme_eigenvalues`

    Returns
    -------
    Estimate, with shape () or the batch shape. Its `error` follows from the eigenvalue errors:
        :math:`(\lambda_{\max} + e_2) / (\lambda_{\min} - e_1) - \kappa`. For a matrix that is singular up to
        rounding the value is infinite and has no gradient.

    Raises
    ------
    ValueError
        if an eigenvalue is negative, or as for `extreme_eigenvalues`, including its warnings. Also warns if
        the matrix is singular up to the error.

    Notes
    -----
    Gradient and cost are as for `extreme_eigenvalues`. As a loss, its logarithm is better scaled.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.anisotropic((10, 10), 0.1, 0.3)
    >>> weight = torch.ones(100, dtype=torch.float64, requires_grad=True)
    >>> kappa = ls.analysis.condition_number(A, lambda r: weight.unsqueeze(-1) * r)
    >>> kappa.value.detach(), kappa.converged
    (tensor(50.5109, dtype=torch.float64), True)
    >>> kappa.value.log().backward()  # descend to learn a diagonal preconditioner
    >>> weight.grad.shape
    torch.Size([100])
    """
    name = "condition_number"
    extremes = _extreme(name, A, M, steps, rtol, n, dtype)
    low, high = extremes.smallest.detach(), extremes.largest.detach()
    off_low, off_high = extremes.errors.unbind(-1)
    if (low < -off_low).any():
        i = int((low < -off_low).reshape(-1).nonzero()[0])
        raise ValueError(
            f"{name}: A must be positive definite, got an eigenvalue {float(low.reshape(-1)[i]):.4g} "
            f"+- {float(off_low.reshape(-1)[i]):.2g}{_which(low, i)}. See extreme_eigenvalues"
        )
    error = (high + off_high) / (low - off_low) - high / low
    singular = low <= off_low
    if not singular.any():
        return Estimate(extremes.largest / extremes.smallest, error, extremes.converged)
    i = int(singular.reshape(-1).nonzero()[0])
    warn(
        name,
        f"the smallest eigenvalue, {float(low.reshape(-1)[i]):.3g} +- {float(off_low.reshape(-1)[i]):.2g}"
        f"{_which(low, i)}, may be zero: A is singular, or more steps are needed. An infinite value has no "
        "gradient",
    )
    infinite = torch.full_like(low, torch.inf)
    lost = singular if extremes.converged else singular & (low <= 0)
    if lost.all():
        return Estimate(infinite, infinite, False)
    # Divided by one where the value is replaced: no infinity reaches the gradient.
    value = torch.where(lost, infinite, extremes.largest / torch.where(lost, 1, extremes.smallest))
    return Estimate(value, torch.where(singular, infinite, error), False)


def _which(low: torch.Tensor, i: int) -> str:
    return f" of matrix {i} of the batch" if low.dim() else ""
