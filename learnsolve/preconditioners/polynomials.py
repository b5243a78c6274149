"""Polynomials in M A: the truncated Neumann series, Chebyshev's, and those with any coefficients.

Source: Saad, "Iterative Methods for Sparse Linear Systems" (2003), section 12.3 and algorithm 12.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from math import comb
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learnsolve.arguments import Index, Positive
from learnsolve.matrix import checks
from learnsolve.matrix.cache import readable
from learnsolve.matrix.checks import RealSystem
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.arithmetic import absolute, check_open_interval, plain_values
from learnsolve.ops.products import divide_columns, multiply_columns, product, times
from learnsolve.ops.structure import inverse_diagonal, sum, symmetry
from learnsolve.ops.sweeps import richardson_sweeps
from learnsolve.preconditioners.base import Part, Preconditioner, check_finite, finite
from learnsolve.preconditioners.relaxation import Diagonal, Jacobi

# Steps of Arnoldi's method, and the safety factor of its estimate, a lower bound: after 10 steps it is within
# a few percent for the spectra of elliptic problems.
_STEPS, _SAFETY = 10, 1.1

# Default lmax / lmin. A few eigenvalues below lmin cost cg little, and the polynomial serves the others. As
# in pyamg's smoother.
RATIO = 30.0


def largest_eigenvalue(apply: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """1.1 times the largest modulus of a Ritz value of `apply` after 10 steps from `start` (..., n, 1): shape
    (...). Without the factor it is a lower bound. It is a constant to every derivative."""
    with torch.no_grad():
        n = start.shape[-2]
        steps = min(_STEPS, n)
        eps = torch.finfo(start.dtype).eps
        q = start / torch.linalg.vector_norm(start, dim=-2, keepdim=True)
        basis, H = [q], []
        for j in range(steps):
            w = apply(basis[j])
            before, column = torch.linalg.vector_norm(w, dim=-2), []
            for q in basis:  # modified Gram-Schmidt
                h = (q.mT @ w).squeeze(-1)
                column.append(h)
                w = w - q * h.unsqueeze(-1)
            norm = torch.linalg.vector_norm(w, dim=-2)
            # In an invariant subspace only rounding errors remain: zeros from here on.
            norm = torch.where(norm > 100 * eps * before, norm, 0)
            basis.append(torch.where(norm > 0, w.squeeze(-1) / norm, 0).unsqueeze(-1))
            column += [norm] + [torch.zeros_like(norm)] * (steps - j - 1)
            H.append(torch.cat(column[:steps], dim=-1))
        hessenberg = torch.stack(H, dim=-1)
        finite = hessenberg.isfinite().all(-1).all(-1)
        hessenberg = torch.where(finite[..., None, None], hessenberg, 0)  # eigvals raises otherwise
        largest = torch.linalg.eigvals(hessenberg).abs().amax(dim=-1)
        # Forward mode goes through `no_grad`, and so do the outer levels of torch.func.
        return (_SAFETY * torch.where(finite, largest, torch.nan)).detach()


Apply = Callable[[Tensor], Tensor]


class PolynomialPreconditioner(Preconditioner):
    """p(M A) M for an inner M, so that the transpose is p(M^T A^T) M^T: the same recursion with transposes.

    A subclass defines `_polynomial(A, M, R)`, for products with A and with M as functions of blocks of
    columns.
    """

    def __init__(self, A: CSR, degree: int, M: object, symmetric: bool | None) -> None:
        name = type(self).__name__
        super().__init__(A)
        self.degree = degree
        if isinstance(M, str):
            checks.check_choice(name, "M", M, ("jacobi",))
            M = Jacobi(A)
        if not (M is None or isinstance(M, Preconditioner)):
            raise TypeError(
                f'{name}: M must be a Preconditioner, "jacobi" or None, got {type(M).__name__}. CSR matrices '
                "and functions are not supported"
            )
        if M is not None:
            if not M.linear:
                raise ValueError(f"{name}: M must be linear, and {type(M).__name__} is not")
            if M.shape != A.shape:
                raise ValueError(f"{name}: M must have A's shape {A.shape}, got {M.shape}")
            if M.dtype != A.dtype or M.device != A.device:
                raise TypeError(
                    f"{name}: M must be {A.dtype} on {A.device}, as A is, got {M.dtype} on {M.device}"
                )
            checks.batches(name, A.batch_shape, M.batch_shape, "A.values and M")
        self.A, self.M = A.clone(), M
        self.symmetric = (M is None or M.symmetric) and symmetry(name, A, symmetric)
        if M is not None:
            self.batch_shape = torch.broadcast_shapes(A.batch_shape, M.batch_shape)
            self.depends_on += tuple(t for t in M.depends_on if t is not A.values)

    def _polynomial(self, A: Apply, M: Apply, R: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} must define _polynomial")

    def _operator(self, transpose: bool) -> Apply:
        return lambda X: product(self.A.values, X, self.A.pattern, transpose)

    def _inner(self, transpose: bool) -> Apply:
        if self.M is None:
            return lambda R: R
        return self.M.T if transpose else self.M

    def mv(self, R: Tensor) -> Tensor:
        return self._polynomial(self._operator(False), self._inner(False), R)

    def rmv(self, R: Tensor) -> Tensor:
        return self._polynomial(self._operator(True), self._inner(True), R)

    def _inverse_diagonal(self) -> Tensor | None:
        """M as a diagonal, if one compiled operation can run all steps (ops/sweeps.py), otherwise None."""
        if self.batch_shape or not (self.M is None or isinstance(self.M, Diagonal)):
            return None
        return torch.ones_like(self.A.values[:1]).expand(self.shape[0]) if self.M is None else self.M.d

    def _swept(
        self, scale: Tensor, R: Tensor, start: Tensor, steps: int, momentum: Tensor | None = None
    ) -> Tensor:
        B, X = (t.reshape(t.shape[:-2].numel(), *t.shape[-2:]) if t.dim() > 3 else t for t in (R, start))
        x, _ = richardson_sweeps(self.A.values, scale, B, X, self.A.pattern, steps, momentum=momentum)
        return x.reshape(R.shape)

    def _parameter(self, key: str, value: object) -> float | Tensor:
        """A positive float, or a tensor with one per matrix, as a factor of blocks of columns."""
        values = self.A.values.expand(*self.batch_shape, -1)
        value = check_open_interval(
            type(self).__name__, key, value, values, math.inf, "be positive and finite"
        )
        if not isinstance(value, Tensor):
            return value
        self.depends_on = (*self.depends_on, value)
        return value[..., None, None] if value.dim() else value


class Neumann(PolynomialPreconditioner):
    r"""The first terms of the Neumann series of the inverse: `degree` + 1 weighted sweeps from zero.

    .. math:: M_p = \sum_{i=0}^{d} (I - w M A)^i\, w M

    Linear, and symmetric if A and M are. If, in addition, both are positive definite, it is positive definite
    for every even degree, and for odd degrees if w < 2 / lmax, where lmax is the largest eigenvalue of M A.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz)
    degree : products with A per call
    weight : float or Tensor, positive. A tensor may require grad and has shape () or one value per
        matrix of the batch
    M, symmetric : see `Chebyshev`

    Raises
    ------
    ValueError, TypeError
        see `Chebyshev`, without bounds.

    Notes
    -----
    Gradient: exact, for A's values, the weight, the tensors of M, and r, to any order. Cost: `degree`
    products with A and one more with M. With M="jacobi" and one matrix the whole polynomial is one compiled
    operation. A Chebyshev polynomial of the same degree is better at the same cost, if the spectrum is
    known.

    References
    ----------
    P. F. Dubois, A. Greenbaum, G. H. Rodrigue, "Approximating the inverse of a matrix for use in iterative
    algorithms on vector processors", Computing 22 (1979) 257-268, doi:10.1007/BF02243566

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.problems.poisson((3,))
    >>> ls.preconditioners.Neumann(A, degree=1)(torch.tensor([0.0, 4.0, 0.0], dtype=torch.float64))
    tensor([1., 2., 1.], dtype=torch.float64)
    """

    def __init__(
        self,
        A: RealSystem,
        *,
        degree: Index = 1,
        weight: float | Tensor = 1.0,
        M: object = "jacobi",
        symmetric: bool | None = None,
    ):
        super().__init__(A, degree, M, symmetric)
        self.weight, self._weight = weight, self._parameter("weight", weight)

    def _polynomial(self, A: Apply, M: Apply, R: Tensor) -> Tensor:
        x = multiply_columns(self._weight, M(R))
        for _ in range(self.degree):
            x = x + multiply_columns(self._weight, M(R - A(x)))
        return x

    def mv(self, R: Tensor) -> Tensor:
        inverse = self._inverse_diagonal()
        if inverse is None:
            return super().mv(R)
        scale = times(inverse, self._weight)
        return self._swept(scale, R, scale.unsqueeze(-1) * R, self.degree)


class Chebyshev(PolynomialPreconditioner):
    r"""The optimal polynomial for eigenvalues in [lmin, lmax]: `degree` + 1 Chebyshev steps from zero.

    .. math:: M_p = p(M A)\, M, \qquad
              1 - t\, p(t) = T_{d+1}\!\Bigl(\frac{\theta - t}{\delta}\Bigr) \Big/
                             T_{d+1}\!\Bigl(\frac{\theta}{\delta}\Bigr), \qquad
              \theta, \delta = \tfrac{1}{2} (l_{\max} \pm l_{\min})

    Linear, and symmetric if A and M are. It is positive definite if both are and all eigenvalues of M A are
    below lmax. `solvers.Chebyshev` is the iteration with trainable bounds.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz)
    lmin, lmax : 0 < lmin <= lmax, floats or Tensors, shape () or one per matrix of the batch. Default lmax:
        1.1 times an estimate of the largest eigenvalue of M A by 10 Arnoldi steps. Default lmin: lmax / 30
    degree : products with A per call
    M : inner Preconditioner, linear; "jacobi" for the inverse of the diagonal, or None
    symmetric : bool, whether A is symmetric. Default: determined from the values (not under `torch.compile`)

    Attributes
    ----------
    lmin, lmax : as given, or estimates (tensors with A's batch shape)

    Raises
    ------
    ValueError, TypeError
        if bounds or M are invalid, a diagonal entry is zero ("jacobi"), or A is zero or not finite.

    Notes
    -----
    Gradient: exact, for A's values, lmin, lmax, the tensors of M, and r, to any order. Estimated bounds are
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
        A: RealSystem,
        *,
        lmin: float | Tensor | None = None,
        lmax: float | Tensor | None = None,
        degree: Index = 3,
        M: object = "jacobi",
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
        self._coefficients = _chebyshev_steps((wide + narrow) / 2, (wide - narrow) / 2, self.degree)
        self._sweeps, inverse = None, self._inverse_diagonal()
        if inverse is not None:
            scale, momentum = (_stack(t, A.values) for t in zip(*self._coefficients, strict=True))
            self._sweeps = scale.unsqueeze(-1) * inverse, momentum

    def _polynomial(self, A: Apply, M: Apply, R: Tensor) -> Tensor:
        (first, _), *rest = self._coefficients
        r, x = R, multiply_columns(first, M(R))
        step = x
        for scale, momentum in rest:
            r = r - A(step)
            step = multiply_columns(momentum, step) + multiply_columns(scale, M(r))
            x = x + step
        return x

    def mv(self, R: Tensor) -> Tensor:
        if self._sweeps is None:
            return super().mv(R)
        scale, momentum = self._sweeps
        return self._swept(scale, R, torch.zeros_like(R), self.degree + 1, momentum)

    def _estimate(self) -> Tensor:
        A, n = self.A, self.shape[0]
        if n == 0:
            return torch.ones(self.batch_shape, dtype=A.dtype, device=A.device)
        start = A.pattern._plan_once(_start)[0].to(A.values)
        apply, inner = self._operator(False), self._inner(False)
        found = largest_eigenvalue(lambda X: inner(apply(X)), start.expand(*self.batch_shape, n, 1))
        if torch.compiler.is_dynamo_compiling() or not found.is_cpu:
            return found
        if not (good := (values := plain_values(found)).isfinite() & (values > 0)).all():
            raise ValueError(
                "Chebyshev: the largest eigenvalue of M A was estimated for lmax, and must be positive and "
                f"finite, got {float(values[~good][0])}. See whether A is zero or overflows, or pass lmax="
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


def _chebyshev_steps(theta: Any, delta: Any, degree: int) -> list[tuple[Any, Any]]:
    """a and m of the steps x <- x + a M (r - A x) + m (x - the x before), from 0, with rho_0 = delta / theta,

        rho_k = delta s_k,  s_k = 1 / (2 theta - delta rho_{k-1}),  a_k = 2 s_k,  m_k = rho_k rho_{k-1}

    and a_0 = 1 / theta, m_0 = 0: no division by delta, which is zero for a single eigenvalue."""
    rho, found = delta / theta, [(1 / theta, 0 * theta)]
    for _ in range(degree):
        s = 1 / (2 * theta - delta * rho)
        found.append((2 * s, delta * s * rho))
        rho = delta * s
    return found


def _stack(numbers: tuple[Any, ...], like: Tensor) -> Tensor:
    """Stack without a copy from the host, which a CUDA graph could not capture."""
    return torch.stack([t.reshape(()) if isinstance(t, Tensor) else like.new_full((), t) for t in numbers])


def _start(P: SparsityPattern) -> tuple[Tensor]:
    """The start vector of the estimate. A plan, since random numbers are not available under vmap."""
    generator = torch.Generator("cpu").manual_seed(0)
    start = torch.randn((P.shape[0], 1), dtype=torch.float64, generator=generator, device="cpu")
    return (start.to(P.device),)


class Polynomial(PolynomialPreconditioner):
    r"""The polynomial with given coefficients, :math:`M_p = \sum_k c_k\, B_k(M A)\, M`.

    Linear, and symmetric if A and M are. It is positive definite if M is and p > 0 on the eigenvalues of M A.

    Parameters
    ----------
    A : CSR, shape (n, n), values (..., nnz)
    coefficients : floats or Tensor (degree + 1,), or (..., degree + 1), one set per matrix of the batch
    interval : None for powers, :math:`B_k(t) = t^k`; (lo, hi), floats or Tensors, for Chebyshev polynomials
        on this interval, which are better conditioned for degrees above about four
    M : inner Preconditioner, linear; "jacobi" for the inverse of the diagonal, or None
    symmetric : bool, whether A is symmetric. Default: determined from the values (not under `torch.compile`)

    Attributes
    ----------
    coefficients, interval : Tensors, or None for the interval
    degree : int

    Raises
    ------
    ValueError
        if there are no coefficients, the interval is invalid, a diagonal entry is zero ("jacobi"), M is not
        linear, shapes do not match, or A is not finite.
    TypeError
        if coefficients, the interval or M have another type, dtype or device.

    Notes
    -----
    Gradient: exact, for coefficients, interval, A's values, the tensors of M, and r, to any order. Cost:
    `degree` products with A, one more with M. ``neumann(A, degree)`` and ``chebyshev(A, degree)`` are
    initial polynomials for training. ``on`` applies the coefficients to another matrix.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> theta = torch.zeros(3, dtype=torch.float64, requires_grad=True)  # a network's parameters
    >>> M = ls.preconditioners.Polynomial(ls.problems.poisson((8, 8)), 1 + theta.tanh(), interval=(0.0, 2.0))
    >>> M(torch.ones(64, dtype=torch.float64)).sum().backward()
    >>> theta.grad.shape
    torch.Size([3])
    """

    coefficients: Tensor
    interval: Tensor | None

    def __init__(
        self,
        A: RealSystem,
        coefficients: Sequence[float] | Tensor,
        *,
        interval: Sequence[float] | Tensor | None = None,
        M: object = "jacobi",
        symmetric: bool | None = None,
    ):
        name = type(self).__name__
        self.coefficients = _given_coefficients(name, coefficients, A.values)
        super().__init__(A, self.coefficients.shape[-1] - 1, M, symmetric)
        batch = self.coefficients.shape[:-1]
        checks.batches(name, self.batch_shape, batch, "A.values, or M, and coefficients")
        self.batch_shape = torch.broadcast_shapes(self.batch_shape, batch)
        self.interval = None if interval is None else _interval(name, interval, A.values)
        self.depends_on += (self.coefficients, *(() if self.interval is None else (self.interval,)))

    @classmethod
    def neumann(cls, A: RealSystem, degree: Index, *, symmetric: bool | None = None) -> Polynomial:
        r"""Neumann's series, :math:`\sum_{k=0}^{d} (I - D^{-1} A)^k D^{-1}`, in powers of
        :math:`D^{-1} A`."""
        c = [(-1.0) ** k * comb(degree + 1, k + 1) for k in range(degree + 1)]
        return cls(A, c, symmetric=symmetric)

    @classmethod
    def chebyshev(
        cls,
        A: RealSystem,
        degree: Index,
        *,
        lmin: Positive | None = None,
        lmax: Positive | None = None,
        symmetric: bool | None = None,
    ) -> Polynomial:
        r"""The smallest error :math:`\max |1 - t\, p(t)|` for eigenvalues t of
        :math:`D^{-1} A` in [lmin, lmax].

        Default lmax: Gershgorin's bound, a constant. Default lmin: lmax / 30. The result is then a smoother,
        and safe, since p is positive below lmin too.
        """
        name = "Polynomial.chebyshev"
        check_finite(name, A)
        if lmax is None:
            with torch.no_grad():
                rows = sum(absolute(A), 1) * inverse_diagonal(A).abs()
            lmax = float(rows.max()) if rows.numel() else 1.0
        hi = checks.real(name, "lmax", lmax, "positive and finite")
        lo = hi / RATIO if lmin is None else lmin
        if lo >= hi:
            raise ValueError(f"{name}: lmin must be below lmax, got {lo} and {hi}. Swap them")
        return cls(A, _chebyshev_coefficients(degree, lo, hi), interval=(lo, hi), symmetric=symmetric)

    def learnable(self) -> dict[str, Part]:
        parts = {"coefficients": Part(self.coefficients, "all")}
        if self.interval is not None:
            parts["interval"] = Part(self.interval, default=False, state=True)
        return parts

    def _polynomial(self, A: Apply, M: Apply, R: Tensor) -> Tensor:
        """Evaluate the polynomial by Horner's and Clenshaw's schemes."""
        c = [t[..., None, None] if t.dim() else t for t in self.coefficients.unbind(-1)]
        V = M(R)
        out = multiply_columns(c[-1], V)
        if self.interval is None:
            for k in reversed(range(len(c) - 1)):
                out = multiply_columns(c[k], V) + M(A(out))
            return out
        lo, hi = self.interval.unbind()
        before = torch.zeros_like(out)
        for k in reversed(range(len(c) - 1)):
            mapped = divide_columns(2 * M(A(out)) - multiply_columns(hi + lo, out), hi - lo)
            out, before = multiply_columns(c[k], V) + (mapped if k == 0 else 2 * mapped) - before, out
        return out


def _given_coefficients(function: str, given: Sequence[float] | Tensor, like: Tensor) -> Tensor:
    """A tensor (..., degree + 1) with the dtype and device of `like`."""
    if not isinstance(given, Tensor):
        numbers = checks.sequence(function, "coefficients", given, "floats")
        numbers = [checks.real(function, "coefficients", c) for c in numbers]
        given = torch.tensor(numbers, dtype=like.dtype, device=like.device)
    checks.same_kind(function, "coefficients", given, like)
    if given.dim() == 0 or given.shape[-1] == 0:
        raise ValueError(f"{function}: coefficients must have shape (degree + 1,), got {tuple(given.shape)}")
    if readable(given):
        finite(function, "coefficients", given)
    return given


def _interval(function: str, given: Sequence[float] | Tensor, like: Tensor) -> Tensor:
    """A tensor (lo, hi) with the dtype and device of `like`. Floats are checked, and tensors if they can be
    read without synchronizing a device."""
    valid = True
    given = given if isinstance(given, Tensor) else checks.sequence(function, "interval", given, "floats")
    if isinstance(given, Tensor):
        ends = given
    elif any(isinstance(t, Tensor) for t in given):
        ends = torch.stack([torch.as_tensor(t, dtype=like.dtype, device=like.device) for t in given])
    else:
        numbers = [checks.real(function, "interval", t) for t in given]
        valid = len(numbers) == 2 and -math.inf < numbers[0] < numbers[1] < math.inf
        ends = torch.tensor(numbers, dtype=like.dtype, device=like.device)
    checks.same_kind(function, "interval", ends, like)
    valid = valid and ends.shape == (2,)
    if valid and readable(ends):
        lo, hi = ends.detach()
        valid = bool(lo < hi) and bool(ends.detach().isfinite().all())
    if not valid:
        raise ValueError(f"{function}: interval must be (lo, hi) with lo < hi, got {given}")
    return ends


def _chebyshev_coefficients(degree: int, lo: float, hi: float) -> list[float]:
    """The coefficients of p with 1 - t p(t) = T_{d+1}(s(t)) / T_{d+1}(s(0)), where s maps the interval onto
    (-1, 1) in reverse, in the Chebyshev polynomials of the interval."""
    T = np.polynomial.chebyshev.Chebyshev.basis(degree + 1)

    def p(s):
        t = (lo + hi + (hi - lo) * s) / 2
        return (1 - T(-s) / T((hi + lo) / (hi - lo))) / t

    return np.polynomial.chebyshev.chebinterpolate(p, degree).tolist()
