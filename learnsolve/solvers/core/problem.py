"""A problem A x = b for any b, which gradients (gradient.py) solve for several right-hand sides, and its
views: units, a null space."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy.sparse
import torch
from scipy.sparse import csgraph
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.cache import makes_plain_tensors, numbers
from learnsolve.matrix.convert import conjugate
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, to_numpy
from learnsolve.ops import across
from learnsolve.ops.autograd import needs_graph
from learnsolve.ops.blocks import Layout
from learnsolve.ops.indexing import construct_pattern
from learnsolve.ops.operators import Between
from learnsolve.ops.products import product
from learnsolve.solvers.core.advance import Criterion, parts_at_once
from learnsolve.solvers.core.gradient import Implicit, Solve, transforms_active
from learnsolve.solvers.core.loop import Method, explain_failures, iterate, report
from learnsolve.solvers.core.operators import (
    Blocks,
    Columns,
    Function,
    LinearOperator,
    Matrix,
    Outcome,
    System,
    divide,
    dot,
    find_pcg_form,
    largest,
    safe_size,
    size,
    source,
    surely_finite,
)
from learnsolve.solvers.solution import CODE, Iteration, Report, Solution, SolverError, Status

# Units in which A and b are of size one, so that no inner product of a method leaves the range of the
# dtype.
#
# A method multiplies vectors of the size of b and of A b with each other: for a cotangent of 1e-12 in
# float32, or of 1e200 in float64, it would compute zeros and infinities and report a breakdown. All units
# are powers of two, so the iterates are the same to the last bit. If sizes are ordinary, there are no units
# and no cost.


# Ordinary exponents of two. The largest product is <A b, A b>, the smallest rtol^2 <b, A b>.
ORDINARY = {torch.float32: 20, torch.float64: 150, torch.complex64: 20, torch.complex128: 150}


def scale_system(system: System, method: object) -> tuple[System, Any]:
    """The system in units, and the function that maps its outcome back. Returns the same system if sizes are
    ordinary. A device that must not be synchronized always gets units, and the compiled loop of cg only units
    of b, since M would have to be scaled in its own form."""
    b, criterion = system.b, system.criterion
    if _surely_ordinary(system):
        return system, lambda out: _finite(None, out)
    size_A = system.A.largest_entry()
    if system.is_asynchronous and parts_at_once(method, system):
        units = _rhs_units(b)
    else:
        units = _choose(size_A, b, criterion.negligible, system.is_asynchronous)
    if units is None:
        return system, lambda out: _finite(size_A, out)
    of_x, of_b = units.unit_x, units.unit_b
    inner = replace(
        system,
        A=_operator(system.A, units),
        M=_preconditioner(system.M, units),
        b=b / of_b,
        x0=None if system.x0 is None else units.scale(system.x0),
        criterion=criterion.rescale(of_b),
    )
    if (callback := system.callback) is not None:

        def notify(at: Iteration) -> Any:
            norm = (at.residual_norm.unsqueeze(-2) * of_b).squeeze(-2)
            return callback(at._replace(x=at.x * of_x, residual_norm=norm))

        inner.callback = notify

    def back(out: Outcome) -> Outcome:
        x = units.unscale(out.x)
        if criterion.has_tolerance:
            out = _check_underflow(inner, out, units.scale(x.detach()))
        return _finite(size_A, out._replace(x=x, norms=out.norms * of_b))

    return inner, back


def _finite(size_A: Tensor | None, out: Outcome) -> Outcome:
    """Find a NaN that no product has met: in x if a column of A is empty, in A if b is zero. Also one that a
    method took for something else, such as an infinite curvature."""
    x = out.x.detach()
    if x.is_cpu and across.everywhere(surely_finite(x)) and (size_A is None or surely_finite(size_A)):
        return out
    lost = across.anywhere(~torch.isfinite(x).all(dim=-2))
    if size_A is not None:
        lost = lost | ~torch.isfinite(size_A).squeeze(-2)
    return out._replace(codes=torch.where(lost, CODE[Status.NON_FINITE], out.codes))


@torch.no_grad()
def _check_underflow(system: System, out: Outcome, x: Tensor) -> Outcome:
    """The outcome judged by the caller's x, some of whose digits may be below the range."""
    lost = (out.codes == CODE[Status.CONVERGED]) & across.anywhere((x != out.x).any(dim=-2))
    if not bool(lost.any()):
        return out
    b = system.b.detach()
    r = b - system.A(x)
    holds = system.criterion.fresh().begin(system.A, b, x, r, size(r), size(b)).squeeze(-2)
    codes = torch.where(lost & ~holds, CODE[Status.STAGNATED], out.codes)
    return explain_failures(system, out._replace(x=x, codes=codes))


class Units(NamedTuple):
    """Powers of two."""

    unit_A: Tensor | None  # (..., 1, 1); None: A is not scaled
    unit_b: Tensor  # (..., 1, k)

    @property
    def unit_x(self) -> Tensor:
        return self.unit_b if self.unit_A is None else self.unit_b / self.unit_A

    def scale(self, x: Tensor) -> Tensor:
        """x in these units. Zeros stay zeros where the unit itself is beyond the range of the dtype."""
        return x / self.unit_x if self._holds else torch.where(x == 0, 0, x / self.unit_x)

    def unscale(self, x: Tensor) -> Tensor:
        return x * self.unit_x if self._holds else torch.where(x == 0, 0, x * self.unit_x)

    @property
    def _holds(self) -> bool:
        info = torch.finfo(self.unit_b.dtype)
        return self.unit_x.is_cpu and fits_range(self.unit_x, info.smallest_normal, info.max)


def _operator(A: Any, units: Units) -> Any:
    """A in these units: scaled entry by entry if the entries are known, as compiled code and subnormal
    entries require, otherwise its results are scaled."""
    return A if units.unit_A is None else A.divide_entries(units.unit_A)


def _preconditioner(M: object, units: Units) -> Any:
    """M, an approximation of A^-1, which may be nonlinear and is applied to unscaled residuals."""
    if M is None or (units.unit_A is None and find_pcg_form(source(M)) is not None):  # it is linear
        return M
    return Between(M, lambda r: r * units.unit_b, lambda z: z / units.unit_x)


def _surely_ordinary(system: System) -> bool:
    """For one matrix and one column on the CPU, in few calls, which dominate the time of small solves."""
    A, b, negligible, limit = system.A, system.b, system.criterion.negligible, 2.0 ** ORDINARY[system.b.dtype]
    if not isinstance(A, Matrix) or not isinstance(negligible, (int, float)) or negligible > limit:
        return False
    values, n = A.A.values, b.shape[-2]
    if values.dim() != 1 or values.numel() == 0 or not values.is_cpu or not b.is_cpu or b.numel() != n:
        return False
    if values.is_complex():
        return False
    least, most = torch.aminmax(values.detach())
    # The largest entry of b is at least ||b|| / sqrt(n).
    return (
        1 / limit <= max(-least.item(), most.item()) <= limit
        and n**0.5 / limit <= system.length.item() <= limit
    )


def _choose(size_A: Tensor | None, b: Tensor, negligible: float | Tensor, unseen: bool) -> Units | None:
    """None if sizes are ordinary. That is not checked if `unseen`, since it would synchronize a device.
    Values below `negligible` do not matter."""
    if b.numel() == 0 and across.across() is None:
        return None
    limit, size_b = 2.0 ** ORDINARY[b.dtype], largest(b, -2)
    if isinstance(negligible, Tensor) or negligible > 0:
        size_b = size_b.clamp(min=negligible)
    if (
        b.is_cpu
        and fits_range(size_b, 1 / limit, limit)
        and (size_A is None or fits_range(size_A, 1 / limit, limit))
    ):
        return None
    of_b = _unit(size_b)
    of_A = torch.ones_like(of_b[..., :1]) if size_A is None else _unit(size_A)
    if not unseen and all(bool(((u <= limit) & (u >= 1 / limit)).all()) for u in (of_A, of_b)):
        return None
    return Units(of_A, of_b)


def fits_range(size: Tensor, low: float, high: float) -> bool:
    """Whether all values are in [low, high], which NaN is not. The usual case takes few calls, which dominate
    the time of small solves on the CPU."""
    if size.numel() == 1:
        return low <= size.item() <= high
    least, most = torch.aminmax(size)
    return low <= least.item() and most.item() <= high


def _rhs_units(b: Tensor) -> Units | None:
    """The unit of b only, 1 where its size is ordinary, without synchronizing the device."""
    if b.numel() == 0:
        return None
    unit = _unit(largest(b, -2))
    limit = 2.0 ** ORDINARY[b.dtype]
    return Units(None, torch.where((unit <= limit) & (unit >= 1 / limit), 1, unit))


def _unit(size: Tensor) -> Tensor:
    """The power of two at or below each size, or 1 for zeros, infinities and NaNs."""
    size = torch.where(torch.isfinite(size) & (size > 0), size, 1)
    return size / (2 * torch.frexp(size).mantissa)


# Singular systems: `null_space=` of the Krylov methods, and null vectors detected in a matrix.
#
# The orthonormal columns of N span the null space of A, and the columns of N' the null space of A^T (N' = N
# for a symmetric A). With them a method computes the least-squares solution of minimum norm,
#
#     x = A^+ b:    solve A y = b - N' N'^T b, from any y0;    x = y - N N^T y.
#
# b and y are projected once each, whatever the number of iterations. In between, the iteration is the same
# as for a nonsingular system: its residuals lie in the range of A, where A has an inverse, and a component
# of y along N changes no residual. Derivatives: docs/gradients.md, "Singular systems".
#
# Source: Saad, "Iterative Methods for Sparse Linear Systems" (2003), section 6.5; Golub, Pereyra, "The
# differentiation of pseudo-inverses", SIAM J. Numer. Anal. 10 (1973) 413-432, equation 4.12.


CONSTANTS = "constants"


class DetectedConstants(str):
    """CONSTANTS that `ls.solve` found, not its caller. A component along them is not dropped without a word:
    of b never, of a cotangent only if A is `exactly` singular, since otherwise A may well be regular."""

    __slots__ = ("exactly",)
    exactly: bool


_USES = f'null_space must be None, "{CONSTANTS}", a tensor (n, k) of null vectors, or a pair of them'


class NullSpace:
    """Bases of the null spaces of A and A^T, sparse matrices n x k with orthonormal columns.

    `judged`: CONVERGED is said only of what solves A x = b for the whole b. `derivatives_judged`: likewise of
    the systems of derivatives.
    """

    def __init__(
        self, right: CSR, left: CSR, layout: Layout | None, judged: bool = False, derivatives: bool = False
    ):
        self.right, self.left, self.layout = right, left, layout
        self.judged, self.derivatives_judged = judged, derivatives

    @property
    def T(self) -> NullSpace:
        return NullSpace(self.left, self.right, self.layout, self.judged, self.derivatives_judged)

    @property
    def derivative_space(self) -> NullSpace:
        return NullSpace(self.right, self.left, self.layout, self.derivatives_judged, self.derivatives_judged)

    def consistent(self, b: Tensor) -> Tensor:
        """b without its component along the null space of A^T, or zero where only rounding errors remain."""
        rest = self._without(self.left, b)
        noise = safe_size(rest) <= 16 * torch.finfo(b.dtype).eps * safe_size(b)
        return torch.where(noise, 0, rest)

    def shortest(self, x: Tensor) -> Tensor:
        return self._without(self.right, x)

    def _without(self, N: CSR, x: Tensor) -> Tensor:
        if self.layout is not None:
            x = self.layout.unpad(x)
        for _ in range(2):  # the second pass removes rounding errors if x is nearly in the null space
            x = x - product(N.values, product(N.values, x, N.pattern, True), N.pattern, False)
        return x if self.layout is None else self.layout.pad(x)

    @torch.no_grad()
    def note(self, b: Tensor, rest: Tensor) -> str:
        """A message on the component of b that was dropped, or empty for rounding errors, and on a device,
        which it would synchronize."""
        if not b.is_cpu or b.numel() == 0:
            return ""
        length = safe_size(b)
        share = float((safe_size(b - rest) / torch.where(length == 0, 1, length)).max())
        if not share > torch.finfo(b.dtype).eps ** 0.5:
            return ""
        along, end = "null_space", ""
        if self.judged:
            along, end = "the constants", ', and null_space="constants" asks for that'
        return f"b has a component of {share:.2g} ||b|| along {along}, which was removed{end}. "

    @torch.no_grad()
    def check_given(self, system: System, out: Outcome) -> Outcome:
        """The outcome judged by the caller's b, all of it."""
        b, x = system.b.detach(), out.x.detach()
        r = b - system.A(x)
        # The method summed the same values in another order.
        norm, length = safe_size(r) / 1.01, safe_size(b)
        holds = system.criterion.fresh().begin(system.A, b, x, r, norm, length).squeeze(-2)
        lost = (out.codes == CODE[Status.CONVERGED]) & ~holds
        return out._replace(codes=torch.where(lost, CODE[Status.INCONSISTENT], out.codes))


def project_system(system: System, null: NullSpace | None) -> tuple[System, Any]:
    """The system on the range of a singular A, and the function that maps its outcome back."""
    if null is None:
        return system, lambda out: out
    b = null.consistent(system.b)
    inner = replace(system, b=b)
    if (callback := system.callback) is not None:
        inner.callback = lambda at: callback(at._replace(x=null.shortest(at.x)))

    def back(out: Outcome) -> Outcome:
        out = out._replace(x=null.shortest(out.x), note=null.note(system.b, b) + out.note)
        return null.check_given(system, out) if null.judged else out

    return inner, back


def check_null_space(
    name: str, value: Any, A: LinearOperator, b: Tensor, layout: Layout | None, symmetric: bool, reads: bool
) -> NullSpace | None:
    """`null_space=` of a solve, checked against the values of A if it `reads` them, which synchronizes a
    device."""
    if value is None:
        return None
    pair = isinstance(value, (tuple, list))
    if pair and (symmetric or len(value) != 2):
        remedy = "but A is symmetric here: pass one" if symmetric else f"got {len(value)} of them"
        raise ValueError(
            f"{name}: a pair in null_space must hold the null vectors of A, then of A^T, {remedy}"
        )
    with torch.no_grad():
        bases = [_basis(name, N, A, b, layout, reads) for N in (value if pair else (value,))]
        right, left = bases[0], bases[-1]
        if right.shape[1] != left.shape[1]:
            raise ValueError(
                f"{name}: null_space must have as many null vectors of A as of A^T, got {right.shape[1]} and "
                f"{left.shape[1]}"
            )
        if reads:
            # A callable holds its own parameters.
            plain = A if isinstance(A, Function) else A.with_parameters(tuple(map(numbers, A.parameters)))
            plain_b = numbers(b)
            _check_null(name, "A", plain, right, plain_b, layout, "")
            transposed = _find_transpose(plain)
            if not symmetric and transposed is not None:
                hint = "" if pair else ". Pass null_space=(N, N_left) for A and A^T"
                _check_null(name, "A^T", transposed, left, plain_b, layout, hint)
            if pair:
                _check_complementary(name, right, left)
    if isinstance(value, DetectedConstants):
        return NullSpace(right, left, layout, True, not value.exactly)
    return NullSpace(right, left, layout)


def _find_transpose(A: LinearOperator) -> LinearOperator | None:
    try:
        return A.T
    except ValueError:  # a callable without its transpose
        return None


def _basis(name: str, vectors: Any, A: LinearOperator, b: Tensor, layout: Layout | None, reads: bool) -> CSR:
    """Orthonormal columns, per block if there are blocks."""
    n = b.shape[-2] if layout is None else sum(layout.sizes)
    if isinstance(vectors, str):
        if vectors != CONSTANTS:
            raise ValueError(f"{name}: {_USES}, got {vectors!r}")
        inner = A.inner if isinstance(A, Blocks) else A
        if not isinstance(inner, Matrix):  # its graph is unknown: one component
            ones = torch.full((n,), max(n, 1) ** -0.5, dtype=b.dtype, device=b.device)
            return CSR(ones, _full(n, 1, b.device))
        parts, weights = inner.A.pattern._plan_once(components)
        return CSR(weights.to(b.dtype), parts)
    if isinstance(vectors, np.ndarray):
        vectors = torch.from_numpy(vectors)
    if not isinstance(vectors, Tensor):
        raise TypeError(f"{name}: {_USES}, got {type(vectors).__name__}")
    if vectors.requires_grad:
        raise ValueError(
            f"{name}: null_space requires grad, but it is determined by A and gets no gradient. Detach it"
        )
    vectors = numbers(vectors)
    checks.same_kind(name, "null_space", vectors, numbers(b))
    if vectors.dim() < 2 or vectors.shape[-2] != n or vectors.shape[-1] > n:
        raise ValueError(
            f"{name}: null_space must have shape ({n}, k), a null vector in each column, got "
            f"{tuple(vectors.shape)}"
        )
    if layout is None:
        checks.batches(name, vectors.shape[:-2], b.shape[:-2], "null_space and b")
        return CSR(_orthonormal(name, vectors, reads).flatten(-2), _full(n, vectors.shape[-1], b.device))
    if vectors.dim() > 2:
        raise ValueError(f"{name}: null_space of a BlockBatch must have two axes, got {tuple(vectors.shape)}")
    values = layout.unpad(_orthonormal(name, layout.pad(vectors), reads)).flatten()
    return CSR(values, _block_indicator(layout, vectors.shape[-1]))


def _orthonormal(name: str, V: Tensor, reads: bool) -> Tensor:
    """The columns of V (..., n, k), one after another, orthogonalized twice and normalized."""
    done: list[Tensor] = []
    for j, v in enumerate(V.unbind(-1)):
        v = v.unsqueeze(-1)
        v = divide(v, size(v), torch.isfinite(size(v)))
        rest = v
        for _ in range(2):
            for u in done:
                rest = rest - dot(u, rest) * u
        if reads and not bool((size(rest) > 100 * torch.finfo(V.dtype).eps).all()):
            raise ValueError(
                f"{name}: the columns of null_space must be finite and linearly independent, column {j} is "
                "zero, not finite or a combination of those before it. Remove it"
            )
        done.append(rest / size(rest))
    return torch.cat(done, -1) if done else V


@makes_plain_tensors
@lru_cache(maxsize=8)
def _full(n: int, k: int, device: torch.device) -> SparsityPattern:
    crow = torch.arange(n + 1, device=device, dtype=torch.int64) * k
    return SparsityPattern._construct(crow, torch.arange(k, device=device).repeat(n), (n, k))


@makes_plain_tensors
def _block_indicator(layout: Layout, k: int) -> SparsityPattern:
    """Each row has k entries, in the columns of its block."""
    n, device = sum(layout.sizes), layout.batch.device
    columns = layout.batch.unsqueeze(-1) * k + torch.arange(k, device=device)
    crow = torch.arange(n + 1, device=device) * k
    return SparsityPattern._construct(crow, columns.flatten(), (n, k * len(layout.sizes)))


def components(P: SparsityPattern) -> tuple[SparsityPattern, Tensor]:
    """The connected components of the graph of P as a pattern n x count with one entry per row, and
    1 / sqrt(rows of its component) for each row."""
    n = P.shape[0]
    ones = np.ones(P.nnz, dtype=np.int8)
    S = scipy.sparse.csr_array((ones, to_numpy(P.col_indices), to_numpy(P.crow_indices)), shape=P.shape)
    count, label = csgraph.connected_components(S, directed=True, connection="weak")
    sizes = np.bincount(label, minlength=count)
    parts = construct_pattern(P, np.arange(n + 1), label, (n, count))
    return parts, torch.from_numpy(sizes[label] ** -0.5).to(P.device)


def _check_null(
    name: str, label: str, A: LinearOperator, N: CSR, b: Tensor, layout: Layout | None, hint: str
) -> None:
    """||A v|| <= eps^(3/4) ||A|| ||v|| for each null vector v: about 10^4 rounding errors."""
    P, values = N.pattern, N.values
    # For components check the sum: they share no row, and no entry of A joins two.
    summed = bool(P.nnz == P.shape[0]) and P.shape[1] != 1
    for j in range(1 if summed else P.shape[1]):
        e = torch.zeros(P.shape[1], 1, dtype=b.dtype, device=b.device)
        e[slice(None) if summed else j] = 1
        v = product(values, e, P, False)
        if layout is not None:
            v = layout.pad(v)
        if A.watched:  # a callable has the shape of the user's b, a LinearOperator its batch axes
            v = v.expand(b.shape)
        norm_A = A.largest_entry()
        if norm_A is None:  # a lower bound, not from b, which may be zero or a null vector
            y = torch.frac(0.618034 * torch.arange(b.shape[-2], dtype=b.dtype, device=b.device)) - 0.4
            y = y.unsqueeze(-1).expand(b.shape)
            norm_A = safe_size(A(y)) / size(y).clamp(min=torch.finfo(b.dtype).tiny)
        ratio = divide(safe_size(A(v)), norm_A * size(v), norm_A > 0)
        worst, limit = float(ratio.max()) if ratio.numel() else 0.0, torch.finfo(b.dtype).eps ** 0.75
        if not worst <= limit:
            what = (
                "null_space" if summed or P.shape[1] == 1 else f"column {j} of null_space, orthonormalized,"
            )
            raise ValueError(
                f"{name}: {what} is not in the null space of {label}: ||{label} v|| is {worst:.2g} "
                f"||A|| ||v||, at most {limit:.1g} is rounding{hint}. A regular A needs no null_space"
            )


def _check_complementary(name: str, right: CSR, left: CSR) -> None:
    """Krylov methods stay in the range of A, which must not contain a null vector: N'^T N is nonsingular."""
    gram = torch.linalg.svdvals((left.to_dense().mT @ right.to_dense()).double())
    if gram.numel() and not float(gram.min()) > 1e-6:
        raise ValueError(
            f"{name}: a null vector of A is in the range of A (the null spaces of A and of A^T are "
            "orthogonal in a direction): Krylov methods break down. Use lsqr or lsmr, which need no "
            "null_space"
        )


def detect_constants(A: CSR) -> DetectedConstants | None:
    """Constants, if they are null vectors of a square A and of its transpose as far as the dtype tells.

    If A was made by rounding the entries of a singular matrix, its sums over m entries are off by about
    m^1/2 eps times the sum of the moduli, in either direction. Sums of a component of A's graph that all have
    one sign and exceed the rounding of an entry are a shift, however small: A is regular.
    """
    values = numbers(A.values)
    eps, plain = torch.finfo(values.dtype).eps, A.with_values(values)
    if not bool((plain.sum(1).abs() <= eps**0.5 * plain.with_values(values.abs()).sum(1)).all()):
        return None  # most matrices
    v = values.double()
    if A.nnz:  # in units of the largest entry, by two steps within the range of the dtype
        exponent = -torch.frexp(v.abs().amax(-1, keepdim=True)).exponent
        v = torch.ldexp(torch.ldexp(v, exponent // 2), exponent - exponent // 2)
    # Of what float64 rounds v to on a common grid, sums are exact, and so small those of the rest that
    # rounding errors in them do not matter.
    coarse = (v + 3 * 2.0**25) - 3 * 2.0**25
    plain, ratios = A.with_values(v), []
    for d in (1, 0):
        sums = plain.with_values(coarse).sum(d) + plain.with_values(v - coarse).sum(d)
        size, count = plain.with_values(v.abs()).sum(d), A.with_values(torch.ones_like(v)).sum(d)
        if not bool((sums.abs() <= 2 * eps * count.sqrt() * size).all()):
            return None
        ratios.append(torch.where(size > 0, sums / size, 0))
    part = A.pattern._plan_once(components)[0].col_indices.long().expand(ratios[0].shape)
    parts = (*part.shape[:-1], int(part.max()) + 1 if part.numel() else 0)
    shifted = torch.ones(parts, dtype=torch.bool, device=part.device)
    for ratio in ratios:
        low, high = (
            ratio.new_zeros(parts).scatter_reduce(-1, part, ratio, f"a{which}", include_self=False)
            for which in ("min", "max")
        )
        shifted &= (low > eps / 3) | (high < -eps / 3)
    if bool(shifted.any()):
        return None
    found = DetectedConstants(CONSTANTS)
    found.exactly = not any(bool(ratio.any()) for ratio in ratios)
    return found


ADJOINT, TANGENT = "adjoint solve of the backward pass", "solve for the tangent"


class Solver(ABC):
    """What finds x = A^-1 b for any b, with the derivatives of x: an iteration here, or a KSP of PETSc."""

    name: str  # of the solver, for messages
    A: Any
    remedy: ClassVar[str]  # for a derivative that is not exact
    keeps_b: ClassVar[bool] = False  # derivatives read b

    @abstractmethod
    def adjoint(self) -> Solver:
        """The solver of the transposed system, whose own adjoint is this one."""

    @abstractmethod
    def solved(self, b: Tensor, ended: Report) -> Tensor:
        """A^-1 b, a constant. Failures are reported."""

    def linear(self, b: Tensor, what: str, ended: Report) -> Tensor:
        """A^-1 b for a derivative, itself differentiable. A failure is reported like a failed solve."""
        advice = f", so the derivative is not exact ({self.remedy})"
        named: Solver = replace(self, name=f"{self.name}, {what}", advice=advice)  # type: ignore[type-var]
        try:
            x = named.solved(b, ended)
        except SolverError as error:
            ended.solution = error.solution
            raise
        if needs_graph(b, *self.A.parameters):
            return Implicit.apply(self, Report(), x, b, *self.A.parameters)  # type: ignore[return-value]
        return x

    def pullback(
        self, g: Tensor, x: Tensor, b: Tensor | None, need: bool, report: Report
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        """The gradients of <g, x>, x = A^-1 b, for b and, if there is a `need`, for the parameters."""
        y = self.adjoint().linear(conjugate(g), ADJOINT, report)
        return conjugate(y), self.A.pullback(-y, x) if need else (None,) * len(self.A.parameters)

    def tangent(
        self, x: Tensor, b: Tensor, tb: Tensor | None, tangents: tuple[Tensor | None, ...], report: Report
    ) -> Tensor:
        """dx for changes of b and the parameters."""
        right = torch.zeros_like(b) if tb is None else tb
        if any(t is not None for t in tangents):
            right = right - self.A.pushforward(x, tangents)
        return self.linear(right, TANGENT, report)


@dataclass(eq=False)
class Problem(Solver):
    remedy = "see adjoint_rtol, adjoint_maxiter"

    name: str
    method: Method
    A: LinearOperator
    M: Callable[[Tensor], Tensor] | None
    criterion: Criterion
    maxiter: int
    columns: Columns
    throw: bool
    gradient: str = "implicit"
    callback: Callable[[Iteration], object] | None = None
    null: NullSpace | None = None  # of a singular A
    transposed_M: Callable[[], object] | None = None  # makes the preconditioner of A^T
    advice: str = ""  # appended to the warning if it did not converge

    def with_parameters(self, parameters: tuple[Tensor, ...]) -> Problem:
        return replace(self, A=self.A.with_parameters(parameters))

    def adjoint(self) -> Problem:
        """The transposed problem, whose own adjoint is this one."""
        M = None if self.transposed_M is None else self.transposed_M()
        null = None if self.null is None else self.null.T
        return replace(self, A=self.A.T, M=M, transposed_M=lambda: self.M, null=null)

    def run(self, b: Tensor, x0: Tensor | None) -> Outcome:
        """Pass b through each view to the loop, and the outcome back through them in reverse."""
        system = System(
            self.name, self.A, self.M, b, x0, self.criterion.fresh(), self.columns.callback(self.callback)
        )
        system, from_range = project_system(system, self.null)
        with across.include_processes(across.find_processes(self.A)):
            system, from_units = scale_system(system, self.method)
            return from_range(from_units(iterate(self.method, system, self.maxiter, self.gradient)))

    def solved(self, b: Tensor, ended: Report) -> Tensor:
        if transforms_active():
            x, _, _ = Solve.apply(self, ended, b, None, *self.A.parameters)  # type: ignore[misc]
            return x
        with torch.no_grad():
            out = self.run(b, None)
        ended.solution = self.reported(out)
        return out.x

    def solution(self, out: Outcome, adjoint: Report | None = None) -> Solution:
        iterations = out.norms.shape[-2] - 1
        x, norms, codes, axis = self.columns.unpack(out.x, out.norms, out.codes)
        solution = Solution(
            x, iterations, norms, axis, codes=codes, adjoint=adjoint, note=out.note, backend=out.backend
        )
        solution.method = self.name.partition(",")[0]  # "cg, adjoint solve of the backward"
        solution.products = self.method.products(iterations)
        return solution

    def reported(self, out: Outcome) -> Solution:
        """The solution. A failure warns or raises."""
        solution = self.solution(out)
        report(
            self.name, solution, self.throw, self.criterion.has_tolerance or bool(self.advice), self.advice
        )
        return solution
