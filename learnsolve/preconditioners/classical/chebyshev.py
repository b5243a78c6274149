"""Chebyshev polynomials in the matrix.

Source: Saad, "Iterative Methods for Sparse Linear Systems" (2003), section 12.3 and algorithm 12.1.
"""

from typing import Any

import torch
from torch import Tensor

from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.core.dots import scaled
from learnsolve.ops.core.operands import plain_values
from learnsolve.preconditioners.classical._polynomial import Apply, PolynomialPreconditioner
from learnsolve.preconditioners.classical._spectrum import RATIO, largest_eigenvalue


class Chebyshev(PolynomialPreconditioner):
    r"""The optimal polynomial for eigenvalues in [lmin, lmax]: `degree` + 1 Chebyshev steps from zero.

    .. math:: M_p = p(M A)\, M, \qquad
              1 - t\, p(t) = T_{d+1}\!\Bigl(\frac{\theta - t}{\delta}\Bigr) \Big/
                             T_{d+1}\!\Bigl(\frac{\theta}{\delta}\Bigr), \qquad
              \theta, \delta = \tfrac{1}{2} (l_{\max} \pm l_{\min})

    Linear; symmetric if A and M are; positive definite if both are and all eigenvalues of M A are below lmax.
    `solvers.Chebyshev` is the iteration with trainable bounds.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz)
    lmin, lmax : 0 < lmin <= lmax, floats or Tensors, shape () or one per matrix of the batch. Default lmax:
        1.1 times an estimate of the largest eigenvalue of M A by 10 Arnoldi steps; default lmin: lmax / 30
    degree : int >= 0, products with A per call
    M : inner Preconditioner, linear; "jacobi" for the inverse of the diagonal; or None
    symmetric : bool, whether A is symmetric; default: determined from the values (not under `torch.compile`)

    Attributes
    ----------
    lmin, lmax : as given, or estimates (tensors with A's batch shape)

    Raises
    ------
    ValueError, TypeError
        if bounds, types, dtypes or devices are invalid, a diagonal entry is zero ("jacobi"), M is not linear,
        or A is zero or not finite.

    Notes
    -----
    Gradient: exact, for A's values, lmin, lmax, the tensors of M, and r, to any order; estimated bounds are
    constants. Cost: `degree` products with A, `degree` + 1 with M, no inner products.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> M = ls.preconditioners.Chebyshev(ls.problems.poisson((50, 50)), degree=3)
    >>> bool(1.9 < M.lmax < 2.2)  # the largest eigenvalue of D^-1 A is 1.996
    True
    """

    def __init__(
        self,
        A: CSR,
        *,
        lmin: float | Tensor | None = None,
        lmax: float | Tensor | None = None,
        degree: int = 3,
        M: Any = "jacobi",
        symmetric: bool | None = None,
    ):
        super().__init__(A, degree, M, symmetric)
        if lmax is None:
            lmax = self._estimate()
            self.lmax, wide = lmax, lmax[..., None, None]
        else:
            self.lmax, wide = lmax, self._parameter("lmax", lmax)
        if lmin is None:
            self.lmin, narrow = lmax / RATIO, wide / RATIO
        else:
            self.lmin, narrow = lmin, self._parameter("lmin", lmin)
        self._check_order(narrow, wide)
        self._coefficients = _coefficients((wide + narrow) / 2, (wide - narrow) / 2, self.degree)
        self._sweeps, inverse = None, self._inverse_diagonal()
        if inverse is not None:
            scale, momentum = (_stacked(t, A.values) for t in zip(*self._coefficients, strict=True))
            self._sweeps = scale.unsqueeze(-1) * inverse, momentum

    def _polynomial(self, A: Apply, M: Apply, R: Tensor) -> Tensor:
        (first, _), *rest = self._coefficients
        r, x = R, scaled(first, M(R))
        step = x
        for scale, momentum in rest:
            r = r - A(step)
            step = scaled(momentum, step) + scaled(scale, M(r))
            x = x + step
        return x

    def _columns(self, R: Tensor) -> Tensor:
        if self._sweeps is None:
            return super()._columns(R)
        scale, momentum = self._sweeps
        return self._swept(scale, R, torch.zeros_like(R), self.degree + 1, momentum)

    def _estimate(self) -> Tensor:
        A, n = self.A, self.shape[0]
        if n == 0:
            return torch.ones(self.batch_shape, dtype=A.dtype, device=A.device)
        start = A.pattern._planned(_start)[0].to(A.values)
        apply, inner = self._operator(False), self._inner(False)
        found = largest_eigenvalue(lambda X: inner(apply(X)), start.expand(*self.batch_shape, n, 1))
        if torch.compiler.is_dynamo_compiling() or not found.is_cpu:
            return found
        if not (good := (values := plain_values(found)).isfinite() & (values > 0)).all():
            raise ValueError(
                "Chebyshev: the largest eigenvalue of M A was estimated for lmax, and must be positive and "
                f"finite, got {float(values[~good][0])}; see whether A is zero or overflows, or pass lmax="
            )
        return found

    def _check_order(self, lmin: Any, lmax: Any) -> None:
        if torch.compiler.is_dynamo_compiling():
            return
        if isinstance(lmin, Tensor) or isinstance(lmax, Tensor):
            seen = all(t.is_cpu for t in (lmin, lmax) if isinstance(t, Tensor))
            if not seen or torch._C._are_functorch_transforms_active():
                return
        ordered = lmin <= lmax
        if not (bool(ordered.all()) if isinstance(ordered, Tensor) else ordered):
            raise ValueError(f"Chebyshev: lmin must not be above lmax, got {self.lmin} and {self.lmax}")


def _coefficients(theta: Any, delta: Any, degree: int) -> list[tuple[Any, Any]]:
    """a and m of the steps x <- x + a M (r - A x) + m (x - the x before), from 0, with rho_0 = delta / theta,

        rho_k = delta s_k,  s_k = 1 / (2 theta - delta rho_{k-1}),  a_k = 2 s_k,  m_k = rho_k rho_{k-1}

    and a_0 = 1 / theta, m_0 = 0: no division by delta, which is zero for a single eigenvalue."""
    rho, found = delta / theta, [(1 / theta, 0 * theta)]
    for _ in range(degree):
        s = 1 / (2 * theta - delta * rho)
        found.append((2 * s, delta * s * rho))
        rho = delta * s
    return found


def _stacked(numbers: tuple[Any, ...], like: Tensor) -> Tensor:
    """Stack without a copy from the host, which a CUDA graph could not capture."""
    return torch.stack([t.reshape(()) if isinstance(t, Tensor) else like.new_full((), t) for t in numbers])


def _start(P: SparsityPattern) -> tuple[Tensor]:
    """The start vector of the estimate. A plan, since random numbers are not available under vmap."""
    generator = torch.Generator("cpu").manual_seed(0)
    start = torch.randn((P.shape[0], 1), dtype=torch.float64, generator=generator, device="cpu")
    return (start.to(P.device),)
