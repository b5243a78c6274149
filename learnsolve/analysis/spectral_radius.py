"""The spectral radius of an error propagator, as a loss.

Source: Saad, "Numerical Methods for Large Eigenvalue Problems" (2011), sections 3.2 and 7.5; Lehoucq,
Sorensen, Yang, "ARPACK Users' Guide" (1998).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from learnsolve.analysis._dominant import Pair, Search, arnoldi, dense
from learnsolve.analysis._estimate import Estimate, warn, with_derivative
from learnsolve.analysis._operands import Map, Space, as_array, constant, member, space_of
from learnsolve.matrix import checks
from learnsolve.matrix.plain import plain_tensors
from learnsolve.ops.core.autograd import tracked
from learnsolve.solvers.core.operators import as_operator

METHODS = ("auto", "dense", "arnoldi")
DENSE = 256  # up to this n all eigenvalues of the dense matrix take a tenth of a second
NONLINEAR = 1e-2


def spectral_radius(
    E: Any,
    n: int | None = None,
    *,
    method: str = "auto",
    rtol: float | None = None,
    maxiter: int | None = None,
    dtype: torch.dtype | None = None,
) -> Estimate:
    r"""The largest modulus of an eigenvalue, :math:`\rho(E) = \max_i |\lambda_i(E)|`, of any linear map E.

    Parameters
    ----------
    E : an `ErrorPropagator`; or a CSR, values (..., nnz), StencilOperator or
        scipy.sparse.linalg.LinearOperator; or a linear, differentiable callable on blocks of columns (n, k)
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
    Gradient: first order, reverse and forward mode; second derivatives raise. "dense" costs n products and
    O(n^3); "arnoldi" from 40 to several hundred products, and as many with :math:`E^T` for a gradient. Same
    bits with the same numbers of threads. docs/gradients.md has the derivative and the meaning of the error.

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
    space = space_of(name, "E", E, n, dtype)
    checks.one_of(name, "method", method, METHODS)
    if rtol is None:
        rtol = 1e-6 if space.dtype == torch.float64 else 1e-3
    checks.tolerance(name, "rtol", rtol)
    if maxiter is not None:
        maxiter = checks.integer(name, "maxiter", maxiter, 1)
    start = space.for_all(space.start())
    apply = as_operator(name, E, start, None, ())
    _check_linear(name, constant(name, apply), space)
    count = space.batch.numel()
    # Arnoldi for four eigenvalues needs n > 5.
    if method == "dense" or space.n < 8 or (method == "auto" and space.n <= DENSE):
        eye = torch.eye(space.n, dtype=space.dtype, device=space.device)
        D = as_array(name, constant(name, apply)(space.for_all(eye))).reshape(count, space.n, space.n)
        searches = [dense(matrix) for matrix in D]
    else:
        searches = [arnoldi(name, member(apply, space, i), space, rtol, maxiter) for i in range(count)]
    return _estimate(name, apply, space, searches, rtol)


def _check_linear(name: str, apply: Map, space: Space) -> None:
    with plain_tensors():
        x, y = space.start(), space.start().flip(0)
        probes = torch.cat((torch.zeros_like(x), x, y, x - 2 * y), 1)
    image = apply(space.for_all(probes))
    with plain_tensors():
        for zero, at_x, at_y, both in image.reshape(-1, space.n, 4).mT:
            if not all(bool(v.isfinite().all()) for v in (zero, at_x, at_y, both)):
                continue
            if (zero != 0).any():
                raise ValueError(
                    f"{name}: E must be linear, got E(0) of norm {float(zero.norm()):.3g}; pass the map of "
                    "errors, the iteration with b = 0"
                )
            off = (both - at_x + 2 * at_y).norm()
            # Far above rounding, including that of an E near zero, and above inexact inner solves.
            if off > NONLINEAR * sum(v.norm() for v in (at_x, 2 * at_y, x, 2 * y)):
                raise ValueError(
                    f"{name}: E must be linear, got E(x - 2 y) that differs from E(x) - 2 E(y) by "
                    f"{float(off / (at_x.norm() + 2 * at_y.norm())):.2g} of their size; pass a linear map"
                )


def _estimate(name: str, apply: Map, space: Space, searches: list[Search], rtol: float) -> Estimate:
    pairs = [search(False, None) for search in searches]
    for i, pair in enumerate(pairs):
        if pair is None:
            warn(
                name,
                f"{space.which(i)}products with E have infinities or NaNs, so the radius is NaN without a "
                "gradient; check E",
            )
    nothing = np.zeros(space.n, dtype=np.complex128)
    vectors = [nothing if pair is None else pair.vector for pair in pairs]
    shape = (*space.batch, space.n, 2)
    EV = apply(torch.stack([_real(v, space) for v in vectors]).reshape(shape))
    known = as_array(name, EV).astype(np.float64).reshape(-1, space.n, 2)
    ends = [_accuracy(name, space, i, pair, known[i], rtol) for i, pair in enumerate(pairs)]
    value, error = (
        space.numbers(*numbers).reshape(space.batch) for numbers in list(zip(*ends, strict=True))[:2]
    )
    converged = all(end[2] for end in ends)
    if not tracked(EV) or all(pair is None for pair in pairs):
        return Estimate(value, error, converged)
    C = [
        nothing if pair is None or pair.value == 0 else _cotangent(name, space, i, pair, searches[i])
        for i, pair in enumerate(pairs)
    ]
    form = (torch.stack([_real(c, space) for c in C]).reshape(shape) * EV).sum((-2, -1))
    return Estimate(with_derivative(name, value, form), error, converged)


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
            f"{space.which(i)}Arnoldi did not converge: {radius:.6g} with a residual of {residual:.2g}; "
            'allow more restarts (maxiter) or a larger rtol, or use method="dense"',
        )
    return radius, residual, converged


def _cotangent(name: str, space: Space, i: int, right: Pair, search: Search) -> np.ndarray:
    """c, whose real and imaginary part give d rho = Re <c, dE v>."""
    radius = abs(right.value)
    left = search(True, right.value)
    if left is None or not left.converged or abs(left.value - right.value) > 1e-3 * radius:
        warn(
            name,
            f"{space.which(i)}the left eigenvector was not found: the derivative is wrong; see maxiter and "
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
