"""The effect of a stationary method on the error, its spectral radius as a loss, and the factor by which an
iteration reduces the residual.

Sources: Saad, "Iterative Methods for Sparse Linear Systems" (2003), section 4.2; "Numerical Methods for Large
Eigenvalue Problems" (2011), sections 3.2 and 7.5; Lehoucq, Sorensen, Yang, "ARPACK Users' Guide" (1998).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import scipy.sparse.linalg
import torch
from torch import Tensor

from learnsolve.analysis.spectrum import (
    Estimate,
    Map,
    Space,
    attach_derivative,
    broadcast_space,
    constant,
    host_values,
    infer_space,
    linear,
    member,
    warn,
)
from learnsolve.arguments import Count, NotNegative, within
from learnsolve.eigen._methods import SEEDED
from learnsolve.matrix import checks
from learnsolve.matrix.cache import plain_tensors
from learnsolve.matrix.checks import RealDtype
from learnsolve.matrix.csr import CSR
from learnsolve.ops.autograd import needs_graph
from learnsolve.ops.linear_steps import LinearSteps, product
from learnsolve.preconditioners.base import Preconditioner
from learnsolve.solvers.core.operators import make_operator, make_preconditioner
from learnsolve.solvers.solution import Solution, Status


class ErrorPropagator:
    r"""The error propagator of :math:`x \leftarrow x + w \circ M (b - A x)`,

    .. math:: E = (I - W_N M A) \cdots (I - W_1 M A), \quad W_k = \mathrm{diag}(w_k).

    Parameters
    ----------
    A : CSR, values (..., nnz), StencilOperator or scipy.sparse.linalg.LinearOperator, shape (n, n), or a
        callable on blocks of columns (n, k)
    M : a preconditioner, as for solvers; Jacobi(A) for Jacobi's method. Default: the identity
    weight : float or Tensor of shape (), (n,), or for N sweeps (N, 1) or (N, n)
    sweeps : N, for one weight
    n, dtype : size and dtype (default float64) of a callable A

    Raises
    ------
    ValueError
        if shapes do not match, or M is not linear.
    TypeError
        if dtypes or devices do not match.

    Notes
    -----
    For a batch of matrices, or of preconditioners, it is a batch of propagators, and X has shape (..., n, k).

    Applying it to a vector (n,) or a block of columns (..., n, k) costs N products with A and with M, and is
    differentiable with respect to A, M and weight. With an `AMG` of smoother="jacobi" and the weight 1 all
    sweeps are one compiled operation.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((3,))
    >>> E = ls.analysis.ErrorPropagator(A, ls.preconditioners.Jacobi(A), 2 / 3)
    >>> E(torch.eye(3, dtype=torch.float64))
    tensor([[0.3333, 0.3333, 0.0000],
            [0.3333, 0.3333, 0.3333],
            [0.0000, 0.3333, 0.3333]], dtype=torch.float64)
    """

    def __init__(
        self,
        A: object,
        M: object = None,
        weight: float | Tensor = 1.0,
        *,
        sweeps: Count | None = None,
        n: Count | None = None,
        dtype: RealDtype | None = None,
    ):
        name = "ErrorPropagator"
        space = broadcast_space(name, infer_space(name, "A", A, n, dtype), M)
        self.shape, self.dtype, self.device = (space.n, space.n), space.dtype, space.device
        self.batch_shape = space.batch
        start = space.expand_columns(torch.empty(space.n, 1, dtype=space.dtype, device=space.device))
        linear(name, "the error propagator", M)
        self.A = make_operator(name, A, start, None, ())
        self.M = make_preconditioner(name, "M", M, start)
        weighted = isinstance(weight, Tensor) or weight != 1
        if not isinstance(weight, Tensor):
            weight = torch.as_tensor(weight, dtype=space.dtype, device=space.device)
        checks.same_kind(name, "weight", weight, start)
        if weight.dim() > 2 or (weight.dim() > 0 and weight.shape[-1] not in (1, space.n)):
            raise ValueError(
                f"{name}: weight must have shape (), ({space.n},), (N, 1) or (N, {space.n}), got "
                f"{tuple(weight.shape)}"
            )
        if weight.dim() == 2:
            checks.check_unused(name, "sweeps", sweeps, "one weight")
        self.weight, self.sweeps = weight, len(weight) if weight.dim() == 2 else sweeps or 1
        traced = torch.compiler.is_dynamo_compiling()
        recorded = M._record(False) if isinstance(M, Preconditioner) and not traced else None
        self._steps: LinearSteps | None = None
        if recorded and isinstance(A, CSR) and not A.batch_shape and not weighted:
            cycle, matrices, others = recorded

            def sweep(X: object) -> Any:
                return X - cycle(product(A.values, X, A.pattern, False))

            self._steps = LinearSteps(sweep, [A, *matrices], others, self.sweeps)

    def __call__(self, X: Tensor) -> Tensor:
        """E X, with X's shape, (n,) or (..., n, k)."""
        name = "ErrorPropagator"
        checks.tensor(name, "X", X)
        n = self.shape[0]
        if X.dim() == 0 or X.shape[0 if X.dim() == 1 else -2] != n:
            raise ValueError(f"{name}: X must have shape ({n},) or (..., {n}, k), got {tuple(X.shape)}")
        if X.dtype != self.dtype or X.device != self.device:
            raise TypeError(
                f"{name}: X must be {self.dtype} on {self.device}, as A is, got {X.dtype} on {X.device}. "
                "Convert one with .to()"
            )
        if X.dim() > 1:
            checks.batches(name, self.batch_shape, X.shape[:-2], "the propagator and X")
            return self._columns(X)
        if self.batch_shape:
            raise ValueError(
                f"{name}: for a batch of shape {tuple(self.batch_shape)} X must have shape (..., {n}, k), "
                f"got {tuple(X.shape)}. X.unsqueeze(-1) is one column for all"
            )
        return self._columns(X.unsqueeze(-1)).squeeze(-1)

    def _columns(self, X: Tensor) -> Tensor:
        if self._steps is not None:
            return self._steps(X)
        weight = self.weight
        for w in weight if weight.dim() == 2 else [weight] * self.sweeps:
            Z = self.A(X)
            Z = Z if self.M is None else self.M(Z)
            X = X - (w if w.dim() == 0 else w.unsqueeze(-1)) * Z
        return X

    def __repr__(self) -> str:
        weight = tuple(self.weight.shape)
        return f"ErrorPropagator(shape={self.shape}, weight={weight}, sweeps={self.sweeps})"


class Pair(NamedTuple):
    """An eigenvalue and its eigenvector of norm 1, on the host."""

    value: complex
    vector: np.ndarray
    converged: bool


# Finds an eigenvalue, of the transpose or not: the dominant one, or the one nearest to a given value. None if
# a product is not finite.
Search = Callable[[bool, complex | None], Pair | None]


def dense(D: np.ndarray) -> Search:

    def search(transpose: bool, near: complex | None) -> Pair | None:
        if not np.isfinite(D).all():
            return None
        return _pick(*np.linalg.eig(D.T if transpose else D), near, True)

    return search


def arnoldi(name: str, apply: Map, space: Space, rtol: float, maxiter: int | None) -> Search:
    def search(transpose: bool, near: complex | None) -> Pair | None:
        f = _transpose(name, apply, space.start()) if transpose else constant(name, apply)
        return _dominant(name, f, space, rtol, maxiter, near)

    return search


def _pick(values: np.ndarray, vectors: np.ndarray, near: complex | None, converged: bool) -> Pair:
    at = int(np.argmax(np.abs(values)) if near is None else np.argmin(np.abs(values - near)))
    vector = vectors[:, at].astype(np.complex128)
    return Pair(complex(values[at]), vector / np.linalg.norm(vector), converged)


def _dominant(
    name: str, apply: Map, space: Space, rtol: float, maxiter: int | None, near: complex | None
) -> Pair | None:
    kind = np.float32 if space.dtype == torch.float32 else np.float64
    lost = False

    def matvec(x: np.ndarray) -> np.ndarray:
        nonlocal lost
        X = torch.from_numpy(np.array(x, dtype=kind).reshape(-1, 1)).to(space.device)
        y = host_values(name, apply(X))[:, 0]
        lost = lost or not np.isfinite(y).all()
        return np.zeros_like(y) if lost else y

    start = host_values(name, space.start())[:, 0]
    first = matvec(start)
    if lost:
        return None
    if not first.any():  # a random vector is mapped to zero, hence all are
        return Pair(0.0, start / np.linalg.norm(start), True)
    operator = scipy.sparse.linalg.LinearOperator((space.n, space.n), matvec=matvec, dtype=kind)  # type: ignore
    converged, ncv = True, min(space.n, 40)
    eigs: Any = scipy.sparse.linalg.eigs
    try:
        # Four, since up to four may share one modulus: complex pairs of both signs.
        pairs: Any = eigs(operator, k=4, ncv=ncv, v0=start, tol=rtol, maxiter=maxiter, which="LM", **SEEDED)
    except scipy.sparse.linalg.ArpackError as error:
        pairs, converged = (getattr(error, "eigenvalues", ()), getattr(error, "eigenvectors", None)), False
    if lost:
        return None
    if len(pairs[0]) == 0:
        pairs = _ritz(matvec, start, ncv)
    return _pick(pairs[0], pairs[1], near, converged)


def _ritz(
    matvec: Callable[[np.ndarray], np.ndarray], start: np.ndarray, m: int
) -> tuple[np.ndarray, np.ndarray]:
    """The Ritz pairs of one Arnoldi process, reported where ARPACK returns nothing."""
    V, H = [start.astype(float) / np.linalg.norm(start)], np.zeros((m + 1, m))
    for k in range(m):
        w = matvec(V[k]).astype(float)
        for _ in range(2):
            for i, v in enumerate(V):
                h = v @ w
                H[i, k] += h
                w = w - h * v
        H[k + 1, k] = np.linalg.norm(w)
        if H[k + 1, k] <= 1e-14 * np.abs(H).max():
            m = k + 1
            break
        V.append(w / H[k + 1, k])
    values, S = np.linalg.eig(H[:m, :m])
    return values, np.stack(V[:m], 1) @ S


def _transpose(name: str, apply: Map, start: Tensor) -> Map:
    """x -> E^T x, the derivative of <x, E(y)> with respect to y."""
    try:
        y, pull = torch.func.vjp(apply, torch.zeros_like(start))[:2]
        pull(torch.zeros_like(y))
    except RuntimeError as error:
        raise ValueError(
            f"{name}: the gradient needs the transpose of E, but E is not differentiable with respect to its "
            f'argument ({error}). Write E with differentiable operations, or use method="dense"'
        ) from error
    return constant(name, lambda X: pull(X)[0])


DENSE = 256  # up to this n all eigenvalues of the dense matrix take a tenth of a second
NONLINEAR = 1e-2


def spectral_radius(
    E: object,
    n: Count | None = None,
    *,
    method: Literal["auto", "dense", "arnoldi"] = "auto",
    rtol: NotNegative | None = None,
    maxiter: Count | None = None,
    dtype: RealDtype | None = None,
) -> Estimate:
    r"""The largest modulus of an eigenvalue, :math:`\rho(E) = \max_i |\lambda_i(E)|`, of any linear map E.

    Parameters
    ----------
    E : `ErrorPropagator`, CSR, values (..., nnz), StencilOperator, scipy.sparse.linalg.LinearOperator, or a
        linear, differentiable callable on blocks of columns (n, k)
    n, dtype : size and dtype (default float64) of a callable E
    method : "dense", all eigenvalues of E as a dense matrix; "arnoldi", implicitly restarted Arnoldi (ARPACK)
        on products with E; "auto", "dense" up to n = 256
    rtol, maxiter : for Arnoldi: relative error, default 1e-6 (1e-3 in float32); restarts, default 10 n

    Returns
    -------
    Estimate, with shape () or the batch shape of E. The error is the norm of the residual
        :math:`E v - \lambda v`, :math:`\|v\| = 1`: a backward error, to which `converged` refers.

    Raises
    ------
    ValueError
        if E is not square, not linear (as a random test shows), or `n` is missing.
    RuntimeWarning
        (a warning) if Arnoldi did not converge, a product is not finite (the value is NaN), or the derivative
        is meaningless because the eigenvalue is too ill-conditioned.

    Notes
    -----
    Gradient: first order, reverse and forward mode. Second derivatives raise. "dense" costs n products and
    O(n^3); "arnoldi" from 40 to several hundred products, and as many with :math:`E^T` for a gradient.
    Bitwise identical with the same number of threads. docs/gradients.md has the derivative and the meaning of
    the error.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, weight = ls.problems.poisson((15,)), torch.tensor(2 / 3, dtype=torch.float64, requires_grad=True)
    >>> E = ls.analysis.ErrorPropagator(A, ls.preconditioners.Jacobi(A), weight)
    >>> rho = ls.analysis.spectral_radius(E).value  # 1 - (1 - cos(pi / 16)) w
    >>> rho.backward()
    >>> round(float(rho.detach()), 6), round(float(weight.grad), 6)
    (0.98719, -0.019215)
    """
    name = "spectral_radius"
    space = infer_space(name, "E", E, n, dtype)
    if rtol is None:
        rtol = 1e-6 if space.dtype == torch.float64 else 1e-3
    start = space.expand_columns(space.start())
    apply = make_operator(name, E, start, None, ())
    _check_linear(name, constant(name, apply), space)
    count = space.batch.numel()
    # Arnoldi for four eigenvalues needs n > 5.
    if method == "dense" or space.n < 8 or (method == "auto" and space.n <= DENSE):
        eye = torch.eye(space.n, dtype=space.dtype, device=space.device)
        D = host_values(name, constant(name, apply)(space.expand_columns(eye))).reshape(
            count, space.n, space.n
        )
        searches = [dense(matrix) for matrix in D]
    else:
        searches = [arnoldi(name, member(apply, space, i), space, rtol, maxiter) for i in range(count)]
    return _estimate(name, apply, space, searches, rtol)


def _check_linear(name: str, apply: Map, space: Space) -> None:
    with plain_tensors():
        x, y = space.start(), space.start().flip(0)
        probes = torch.cat((torch.zeros_like(x), x, y, x - 2 * y), 1)
    image = apply(space.expand_columns(probes))
    with plain_tensors():
        for zero, at_x, at_y, both in image.reshape(-1, space.n, 4).mT:
            if not all(bool(v.isfinite().all()) for v in (zero, at_x, at_y, both)):
                continue
            if (zero != 0).any():
                raise ValueError(
                    f"{name}: E must be linear, got E(0) of norm {float(zero.norm()):.3g}. Pass the map of "
                    "errors, the iteration with b = 0"
                )
            off = (both - at_x + 2 * at_y).norm()
            # Far above rounding, including that of an E near zero, and above inexact inner solves.
            if off > NONLINEAR * sum(v.norm() for v in (at_x, 2 * at_y, x, 2 * y)):
                raise ValueError(
                    f"{name}: E must be linear, got E(x - 2 y) that differs from E(x) - 2 E(y) by "
                    f"{float(off / (at_x.norm() + 2 * at_y.norm())):.2g} of their size. Pass a linear map"
                )


def _estimate(name: str, apply: Map, space: Space, searches: list[Search], rtol: float) -> Estimate:
    pairs = [search(False, None) for search in searches]
    for i, pair in enumerate(pairs):
        if pair is None:
            warn(
                name,
                f"{space.which(i)}products with E have infinities or NaNs, so the radius is NaN without a "
                "gradient. Check E",
            )
    nothing = np.zeros(space.n, dtype=np.complex128)
    vectors = [nothing if pair is None else pair.vector for pair in pairs]
    shape = (*space.batch, space.n, 2)
    EV = apply(torch.stack([_real(v, space) for v in vectors]).reshape(shape))
    known = host_values(name, EV).astype(np.float64).reshape(-1, space.n, 2)
    ends = [_accuracy(name, space, i, pair, known[i], rtol) for i, pair in enumerate(pairs)]
    value, error = (
        space.numbers(*numbers).reshape(space.batch) for numbers in list(zip(*ends, strict=True))[:2]
    )
    converged = all(end[2] for end in ends)
    if not needs_graph(EV) or all(pair is None for pair in pairs):
        return Estimate(value, error, converged)
    C = [
        nothing if pair is None or pair.value == 0 else _cotangent(name, space, i, pair, searches[i])
        for i, pair in enumerate(pairs)
    ]
    form = (torch.stack([_real(c, space) for c in C]).reshape(shape) * EV).sum((-2, -1))
    return Estimate(attach_derivative(name, value, form), error, converged)


def _accuracy(
    name: str, space: Space, i: int, pair: Pair | None, image: np.ndarray, rtol: float
) -> tuple[float, float, bool]:
    """Radius, residual, and whether the latter is small enough."""
    if pair is None:
        return np.nan, np.inf, False
    radius = abs(pair.value)
    residual = float(np.linalg.norm(image[:, 0] + 1j * image[:, 1] - pair.value * pair.vector))
    # Rounding is not a failure to converge.
    allowed = max(10 * rtol * radius, 1e3 * torch.finfo(space.dtype).eps * float(np.linalg.norm(image)))
    converged = pair.converged and residual <= allowed
    if not converged:
        warn(
            name,
            f"{space.which(i)}Arnoldi did not converge: {radius:.6g} with a residual of {residual:.2g}. "
            'Allow more restarts (maxiter) or a larger rtol, or use method="dense"',
        )
    return radius, residual, converged


def _cotangent(name: str, space: Space, i: int, right: Pair, search: Search) -> np.ndarray:
    """c, whose real and imaginary part give d rho = Re <c, dE v>."""
    radius = abs(right.value)
    left = search(True, right.value)
    if left is None or not left.converged or abs(left.value - right.value) > 1e-3 * radius:
        warn(
            name,
            f"{space.which(i)}the left eigenvector was not found: the derivative is wrong. See maxiter and "
            "method",
        )
    if left is None:
        return np.full(space.n, np.nan, dtype=np.complex128)
    scale = left.vector @ right.vector  # u^T v, without conjugation
    if abs(scale) < torch.finfo(space.dtype).eps ** 0.5:
        warn(
            name,
            f"{space.which(i)}the left and the right eigenvector are nearly orthogonal ({abs(scale):.1g}): a "
            "multiple or defective eigenvalue, whose derivative is meaningless",
        )
    return np.conj(np.conj(right.value) / radius * left.vector / (scale or 1))


def _real(vector: np.ndarray, space: Space) -> Tensor:
    """Real and imaginary parts as two columns."""
    parts = torch.from_numpy(np.stack((np.real(vector), np.imag(vector)), 1))
    return parts.to(space.dtype).to(space.device)


Fraction = Annotated[float, within("0 < {} <= 1", lambda value: 0 < value <= 1, 0.0)]


def convergence_factor(
    history: Tensor | Solution, *, last: Fraction = 0.5, rtol: NotNegative = 0.05
) -> Estimate:
    r"""The mean factor by which the last part of an iteration reduced the residual,
    :math:`\rho = (\|r_N\| / \|r_m\|)^{1 / (N - m)}`.

    Parameters
    ----------
    history : Solution, or its `residual_norms`: Tensor, shape (N + 1,) or (..., N + 1, k). A column of a
        Solution counts until it stopped. A Tensor is used in full.
    last : the fraction of the iterations that is used; at least one iteration is
    rtol : tolerance for `converged`. See `error`

    Returns
    -------
    Estimate, value and error of shape () or (..., k). The error, which is not a bound, is the difference
    between the factors of the two halves of that part. `converged` says that it is at most rtol times the
    factor everywhere.

    Raises
    ------
    ValueError, TypeError
        if there is no iteration, or `history` is neither a Solution nor a Tensor.
    RuntimeWarning
        (a warning) if norms are not finite, or if the factor has not settled.

    Notes
    -----
    A residual of exactly zero yields the factor 0 with gradient zero. At rounding level residuals no longer
    fall: use fewer iterations. Gradient: exact, to any order, through the two norms (for a Solution, unless
    its gradient is "implicit"). Cost: negligible.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((15,))
    >>> weight = torch.tensor(2 / 3, dtype=torch.float64, requires_grad=True)
    >>> b = torch.randn(15, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    >>> solution = ls.solvers.jacobi(A, b, weight=weight, iterations=300)
    >>> factor = ls.analysis.convergence_factor(solution)
    >>> exact = 1 - 2 / 3 * (1 - torch.cos(torch.tensor(torch.pi / 16)))
    >>> abs(float(factor.value.detach() - exact)) < 1e-6, factor.converged
    (True, True)
    """
    name = "convergence_factor"
    norms = history.residual_norms if isinstance(history, Solution) else history
    if not isinstance(norms, Tensor):
        raise TypeError(f"{name}: history must be a Solution or a Tensor, got {type(history).__name__}")
    checks.tensor(name, "history", norms)
    checks.dtype(name, "history", norms)
    if norms.is_meta:
        raise ValueError(f"{name}: history must have data, got a tensor on meta")
    vector = norms.dim() == 1
    if vector:
        norms = norms.unsqueeze(-1)
    if norms.dim() == 0 or norms.shape[-2] < 2:
        raise ValueError(
            f"{name}: history must have shape (N + 1,) or (..., N + 1, k) with N >= 1 iterations, got "
            f"{tuple(norms.shape[: 1 if vector else None])}"
        )
    end = _ends(history, norms.detach(), vector)
    count = (last * end).ceil().long().clamp(min=1)
    value = _factor(norms, end, count)
    # The factors of the halves; one iteration has none, and its error is unknown.
    half = torch.div(count, 2, rounding_mode="floor").clamp(min=1)
    with torch.no_grad():
        late, early = _factor(norms, end, half), _factor(norms, end - half, count - half)
        error = torch.where(count > 1, (late - early).abs(), torch.inf)
        error = torch.where((norms == 0).all(-2), 0, error)
        settled = bool((error <= rtol * value).all())
        finite = bool(torch.isfinite(value).all())
    if not finite:
        warn(name, "the history has infinities or NaNs: the iteration diverged. Use fewer iterations")
    elif not settled:
        warn(
            name,
            f"the factor has not settled: it changes by up to {float(error.max()):.2g} within the part used. "
            "Run more iterations, or use a smaller part of them (last)",
        )
    if vector:
        value, error = value.squeeze(-1), error.squeeze(-1)
    return Estimate(value, error, settled and finite)


def _ends(history: Tensor | Solution, norms: Tensor, vector: bool) -> Tensor:
    """The last iteration of each column, (..., k)."""
    N = norms.shape[-2] - 1
    whole = torch.full(norms[..., 0, :].shape, N, device=norms.device)
    if isinstance(history, Tensor) or history._codes is None:
        return whole
    ran_on = (Status.MAX_ITERATIONS, Status.STOPPED_BY_CALLBACK)
    stopped = torch.tensor([s not in ran_on for s in history.statuses], device=norms.device)
    moves = norms[..., 1:, :] != norms[..., :-1, :]
    number = torch.arange(1, N + 1, device=norms.device).unsqueeze(-1)
    stop = (moves * number).amax(-2).clamp(min=1)
    return torch.where(stopped.reshape(whole.shape), stop, whole)


def _factor(norms: Tensor, end: Tensor, count: Tensor) -> Tensor:
    """(norms[end] / norms[end - count]) ** (1 / count)."""
    count = count.clamp(min=1)
    pick = lambda at: norms.gather(-2, at.clamp(min=0).unsqueeze(-2)).squeeze(-2)  # noqa: E731
    new, old = pick(end), pick(end - count)
    zero = new == 0  # solved, possibly from the start: 0 / 0
    new, old = torch.where(zero, 1, new), torch.where(zero, 1, old)
    return torch.where(zero, 0, torch.exp((new.log() - old.log()) / count))
