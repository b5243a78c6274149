"""Derivatives of eigenpairs, of any order: two operations that are closed under differentiation.

With A U = B U H, U^T B U = I, H = diag(lambda), and a change dA, dB, let N = U^T (dA U - dB U H) and W = B U:

    d lambda_j = N_jj,   dU = Y + U C,
    C_ij = N_ij / (lambda_j - lambda_i) between clusters,   C_ij = -u_i^T dB u_j / 2 within one,
    A Y - B Y H + W Z = -(dA U - dB U H),   W^T Y = 0.

The bordered system has a solution if no eigenvalue outside `lambda` equals one inside, however many of those
inside are equal. Within a cluster of equal values the vectors are a basis of its space: dU excludes their
rotation, on which invariant quantities (the projector, sums over the cluster) do not depend. In the gradient
U diag(g) U^T of a loss L(lambda), diag(g) becomes diag(g) + G within a cluster, to first order, with G_ij =
(L_ii - L_ij) N_ij: for L = sum f(lambda_i), the divided differences f''(lambda) of f' at equal points.

Source: Magnus, "On differentiating eigenvalues and eigenvectors", Econometric Theory 1 (1985) 179-191; for
clusters Stewart and Sun, "Matrix Perturbation Theory" (1990), section V.2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor, is_legacy_batchedtensor

from learnsolve.eigen._methods import lengths, orthonormal
from learnsolve.matrix.cache import numbers
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.autograd import Operation, add, dispatch, forward_mode_may_come
from learnsolve.ops.products import product, sddmm_values
from learnsolve.solvers.core.loop import quiet
from learnsolve.solvers.krylov import minres
from learnsolve.solvers.solution import Status

# (A - lambda_i B) y_i = r_i up to a multiple of B U, with U^T B y_i = 0, without derivatives.
#
# For the derivatives of the eigenvectors U. Their span is excluded from the space, so the systems are
# nonsingular, although each lambda_i is an eigenvalue.


Map = Callable[[Tensor], Tensor]
# (values (c,), R (n, c)) -> Y, and a message on failures, empty if there are none.
Solve = Callable[[Tensor, Tensor], tuple[Tensor, str]]
_STEPS = 40  # of `ShiftInvert`, in blocks; it restarts when the basis has `_BASIS` columns
_BASIS = 240


class DeflationSpace(NamedTuple):
    """Data shared by the methods: U, W = B U, and products with B."""

    U: Tensor
    W: Tensor
    B: Map
    rtol: float

    def project_vectors(self, X: Tensor) -> Tensor:
        """P X for vectors, P = I - U W^T."""
        return torch.addmm(X, self.U, self.W.mT @ X, alpha=-1)

    def project_transposed(self, R: Tensor) -> Tensor:
        """P^T R."""
        return torch.addmm(R, self.W, self.U.mT @ R, alpha=-1)

    def project_rhs(self, R: Tensor) -> Tensor:
        """P^T R for right-hand sides, or zero if it is only rounding, for example if R depends only on
        span(U)."""
        P = self.project_transposed(R)
        return P.where(P.norm(dim=0) > 1e3 * torch.finfo(R.dtype).eps * R.norm(dim=0), 0)


def eigenpair_solver(space: DeflationSpace, others: Tensor, V: Tensor) -> Solve:
    """Solves with all other eigenpairs of a dense matrix."""

    def solve(values: Tensor, R: Tensor) -> tuple[Tensor, str]:
        return V @ ((V.mT @ R) / (others.unsqueeze(-1) - values)), ""

    return solve


def shift_invert_solver(space: DeflationSpace, inverse: Map, sigma: float) -> Solve:
    """Solves with T = (A - sigma B)^-1, by Galerkin's method in a Krylov space shared by all columns:

        y - (lambda_i - sigma) T B y = T r.

    T B is symmetric in <u, B v>, and the spectrum of the left side clusters at 1: few products with blocks.
    Source: O'Leary, "The block conjugate gradient algorithm and related methods", Linear Algebra Appl. 29
    (1980).
    """

    def solve(values: Tensor, R: Tensor) -> tuple[Tensor, str]:
        Y = torch.zeros_like(R)
        mu = values - sigma
        W0 = space.project_vectors(inverse(space.project_rhs(R)))
        active = (W0 != 0).any(0)
        target = space.rtol * lengths(W0, space.B(W0))
        residual, left = W0, torch.zeros_like(target)
        for _ in range(3):  # repeated to remove rounding errors
            if not bool(active.any()):
                break
            Y[:, active] += _galerkin(space, inverse, mu[active], residual[:, active], target[active])
            residual = W0 - Y + mu * space.project_vectors(inverse(space.B(Y)))
            left = lengths(residual, space.B(residual))
            active = left > 10 * target
        lost = ~(left <= 1e3 * target)
        return Y, f"{int(lost.sum())} of {len(mu)} columns" if bool(lost.any()) else ""

    return solve


def _galerkin(space: DeflationSpace, inverse: Map, mu: Tensor, W0: Tensor, target: Tensor) -> Tensor:
    Q, BQ, S = orthonormal(W0, space.B)
    basis, images, start = [Q], [BQ], S
    H = S.new_zeros(0, 0)
    while True:
        size, width = sum(q.shape[1] for q in basis), basis[-1].shape[1]
        Z = space.project_vectors(inverse(images[-1]))
        column = [Z.new_zeros(q.shape[1], width) for q in basis]
        # Like Lanczos, only against the last two blocks: a restart handles the rounding errors.
        for i in range(max(0, len(basis) - 2), len(basis)):
            column[i] = images[i].mT @ Z
            Z.addmm_(basis[i], column[i], alpha=-1)
        grown = S.new_zeros(size, size)
        grown[: H.shape[0], : H.shape[0]] = H
        grown[:, size - width :] = torch.cat(column)
        grown[size - width :, :] = torch.cat(column).mT
        H = grown
        Q, BQ, beta = orthonormal(Z, space.B)
        theta, V = torch.linalg.eigh(0.5 * (H + H.mT))
        c = V @ ((V[: start.shape[0]].mT @ start) / (1 - mu * theta.unsqueeze(-1)))
        left = mu.abs() * (beta @ c[size - width :]).norm(dim=0)
        done = bool((left <= target).all()) or Q.shape[1] == 0
        if done or size + Q.shape[1] > max(_BASIS, 4 * len(mu)) or len(basis) == _STEPS:
            Y = torch.zeros_like(W0)
            for q, part in zip(basis, c.split([q.shape[1] for q in basis]), strict=True):
                Y.addmm_(q, part)
            return Y
        basis.append(Q)
        images.append(BQ)


def minres_solver(
    space: DeflationSpace, A: Map, M: Map | None, most: int, otherwise: Callable[[], Solve] | None = None
) -> Solve:
    """MINRES on P^T (A - lambda_i B) P, all columns in one call. M approximates A^-1. Columns that take more
    than `most` steps are passed to `otherwise`, if given."""

    made: list[Solve] = []

    def solve(values: Tensor, R: Tensor) -> tuple[Tensor, str]:
        def operator(X: Tensor) -> Tensor:
            X = space.project_vectors(X)
            return space.project_transposed(A(X) - space.B(X) * values)

        def precondition(X: Tensor) -> Tensor:
            assert M is not None
            return space.project_vectors(M(space.project_transposed(X)))

        size = R.norm(dim=0)
        size = size.where(size > 0, 1)
        with quiet():  # accuracy relative to R, which may be almost in the span of W
            solution = minres(
                operator,
                space.project_rhs(R) / size,
                M=precondition if M else None,
                rtol=0.0,
                atol=space.rtol,
                maxiter=most,
            )
        Y = space.project_vectors(solution.x) * size
        # STAGNATED: the accuracy is limited by rounding errors.
        good = (Status.CONVERGED, Status.STAGNATED)
        left = torch.tensor([status not in good for status in solution.statuses], device=R.device)
        if not bool(left.any()):
            return Y, ""
        if otherwise is None:
            return Y, solution.summary()
        made[:] = made or [otherwise()]
        Y[:, left], trouble = made[0](values[left], R[:, left])
        return Y, trouble

    return solve


# The number of uses of E below, each of which adds one correct order of derivatives within clusters.
_ORDERS = 3
_UNKNOWN = (
    "the second derivative of a function of equal eigenvalues is not available in this transformation of "
    "torch.func. Call torch.autograd.grad(..., create_graph=True) twice, or ask for fewer pairs"
)
_THIRD = (
    "third derivatives of a function of equal eigenvalues, other than their sum, lack terms within the "
    "cluster. Ask for fewer pairs"
)


@dataclass(eq=False)
class Known:
    """The results of a solve, without derivatives."""

    A: SparsityPattern
    B: SparsityPattern | None
    values: Tensor  # (k,)
    vectors: Tensor  # (n, k)
    cluster: Tensor  # bool (k, k): whether values i and j are equal up to rounding
    # (values (c,), R (n, c)) -> Y, message on failures: per column (A - lambda B) y = r up to a multiple of
    # W, W^T y = 0
    deflated: Callable[[Tensor, Tensor], tuple[Tensor, str]]
    judge: Callable[[str, Tensor, Tensor, Tensor, str], None]  # of (kind, R, U^T R, Y, message on failures)
    say: Callable[[str], None]  # a warning, or an error
    heard: list[str] | None = None  # what is kept instead

    def times_B(self, b: Tensor, X: Tensor) -> Tensor:
        return X if self.B is None else product(b, X, self.B, False)

    def block(self, a: Tensor, b: Tensor, values: Tensor, U: Tensor) -> tuple[Tensor, Tensor | None]:
        """H, and E = H - diag(lambda), which is zero but has nonzero derivatives within clusters."""
        if self.simple:
            return torch.diag(values), None
        H = torch.where(self.cluster, U.mT @ product(a, U, self.A, False), 0)
        return H, H - torch.diag(values)

    def bent(self, g: Tensor, values: Tensor, U: Tensor, E: Tensor) -> Tensor | None:
        """What U g lacks, for g = dL / d lambda: (L_ii - L_ij) E within clusters. It is zero, and has the
        first derivative of g there. L_ii - L_ij is the same for all pairs of a cluster if L is symmetric in
        their values, so one product of the Hessian with differences e_i - e_j yields it."""
        first = self.cluster.int().argmax(0)  # of each value, the first value of its cluster
        last = len(first) - 1 - self.cluster.flip(0).int().argmax(0)
        ends = torch.zeros_like(self.values).index_fill(0, first, 1).index_fill(0, last, -1)
        ends = (ends * (first != last)).expand_as(g)
        self.heard = heard = []  # by derivatives of higher order than the caller's
        bend = slope = None
        try:
            if not is_batchedtensor(g) and g.requires_grad:
                (h,) = torch.autograd.grad(g, values, ends, True, True, allow_unused=True)
                if h is None:
                    return None
                bend = 0.5 * (h[first] - h[last])
                if bend.requires_grad:
                    (slope,) = torch.autograd.grad(bend.sum(), values, None, True, allow_unused=True)
        except RuntimeError:  # torch.func has released the graph
            pass
        finally:
            self.heard = None
        if bend is None:
            return U @ dispatch(_Unknown, (E, g), self) if forward_mode_may_come() else None
        # Functions of the sum alone, and of values and their squares, have all orders.
        if slope is not None and not bool(self.small(slope * self.values.abs().max(), h, g)):
            E = dispatch(_FirstOrderOnly, (E,), 0 if heard else 1, self)
        return U @ (bend * E)

    def small(self, slope: Tensor, h: Tensor, g: Tensor) -> Tensor:
        """Whether a third derivative is rounding, compared with the second and first ones."""
        slope, h, g = (numbers(t).abs().amax() for t in (slope, h, g))
        return slope <= 1e3 * torch.finfo(g.dtype).eps * (h + g / self.values.abs().amax())

    def tell(self, text: str) -> None:
        if self.heard is None:
            self.say(text)
        else:
            self.heard.append(text)

    @property
    def simple(self) -> bool:
        return int(self.cluster.sum()) == len(self.values)

    def inverse_gaps(self, values: Tensor) -> Tensor:
        """F_ij = 1 / (lambda_j - lambda_i) between clusters, else 0."""
        gaps = values - values.unsqueeze(-1)
        return torch.where(self.cluster, 0, 1 / torch.where(self.cluster, 1, gaps))


def attach_gradient(a: Tensor, b: Tensor, known: Known) -> tuple[Tensor, Tensor]:
    """The values and vectors of `known` as functions of the values of A and B."""
    return dispatch(_Eigen, (a, b), known)


class _Eigen(Operation):
    @staticmethod
    def forward(a: Tensor, b: Tensor, known: Known):
        return known.values.clone(), known.vectors.clone()

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: Any) -> None:
        ctx.save_for_backward(*inputs[:2], *output)
        ctx.known = inputs[2]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, g_values: Tensor | None, g_vectors: Tensor | None):
        a, b, values, U = ctx.saved_tensors
        known: Known = ctx.known
        if g_values is None and g_vectors is None:
            return None, None, None
        H, E = known.block(a, b, values, U)
        X: Tensor | None = None
        within: Tensor | None = None
        if g_values is not None:
            X = U * g_values
            if E is not None:
                X = add(X, known.bent(g_values, values, U, E))
        if g_vectors is not None:
            W, F = known.times_B(b, U), known.inverse_gaps(values)
            G = U.mT @ g_vectors
            C = F * G
            for _ in range(0 if E is None else _ORDERS):
                C = F * (G - C @ E.mT + E.mT @ C)  # type: ignore[union-attr]
            T = _solve_bordered(a, b, H.mT, W, g_vectors, None, known, "reverse")[0]
            X = add(X, U @ C - T)
            within = U @ torch.where(known.cluster, G, 0)
        assert X is not None
        ga = _symmetric(X, U, known.A) if ctx.needs_input_grad[0] else None
        gb = None
        if known.B is not None and ctx.needs_input_grad[1]:
            Y = X @ H.mT if within is None else X @ H.mT + 0.5 * within
            gb = -_symmetric(Y, U, known.B)
        return ga, gb, None

    @staticmethod
    def jvp(ctx, ta: Tensor | None, tb: Tensor | None, _known: None):
        a, b, values, U = ctx.saved_tensors
        known: Known = ctx.known
        H, E = known.block(a, b, values, U)
        dA = None if ta is None else product(ta, U, known.A, False)
        dB = None if tb is None or known.B is None else product(tb, U, known.B, False)
        D = add(dA, None if dB is None else -dB @ H)
        if D is None:
            return torch.zeros_like(values), torch.zeros_like(U)
        N, F = U.mT @ D, known.inverse_gaps(values)
        C = F * N
        for _order in range(0 if E is None else _ORDERS):
            C = F * (N - C @ E + E @ C)  # type: ignore[operator]
        if dB is not None:
            C = C - torch.where(known.cluster, 0.5 * (U.mT @ dB), 0)
        Y = _solve_bordered(a, b, H, known.times_B(b, U), -D, None, known, "forward")[0]
        return N.diagonal(), Y + U @ C

    @staticmethod
    def vmap(*_: object):
        raise _no_vmap()


class _Unknown(Operation):
    """Zero. The derivative of `bent` warns where the autograd graph of g = dL / d lambda is out of reach."""

    @staticmethod
    def forward(E: Tensor, g: Tensor, known: Known) -> Tensor:
        return torch.zeros_like(E)

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: object) -> None:
        ctx.known = inputs[2]

    @staticmethod
    def backward(ctx, cotangent: Tensor):
        if ctx.needs_input_grad[1]:
            ctx.known.tell(_UNKNOWN)
        return None, None, None

    @staticmethod
    def jvp(ctx, tE: Tensor, tg: Tensor | None, _known: None):
        if tg is not None and bool(numbers(tg).any()):
            ctx.known.tell(_UNKNOWN)
        return torch.zeros_like(tE)

    @staticmethod
    def vmap(info: object, in_dims: tuple, E: Tensor, g: Tensor, known: Known):
        return dispatch(_Unknown, (E, g if in_dims[1] is None else g.sum(in_dims[1])), known), in_dims[0]


class _FirstOrderOnly(Operation):
    """The same tensor, of which `bent` is a function to first order: for further derivatives, a warning."""

    @staticmethod
    def forward(E: Tensor, orders: int, known: Known) -> Tensor:
        return E.clone()

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: object) -> None:
        ctx.orders, ctx.known = inputs[1:]

    @staticmethod
    def _change(ctx, change: Tensor) -> Tensor:
        if not ctx.orders:
            ctx.known.tell(_THIRD)
        return dispatch(_FirstOrderOnly, (change,), max(ctx.orders - 1, 0), ctx.known)

    @staticmethod
    def backward(ctx: object, cotangent: Tensor):
        return _FirstOrderOnly._change(ctx, cotangent), None, None

    @staticmethod
    def jvp(ctx: object, tangent: Tensor, *_: None):
        return _FirstOrderOnly._change(ctx, tangent)

    @staticmethod
    def vmap(info: object, in_dims: tuple, E: Tensor, orders: int, known: Known):
        return dispatch(_FirstOrderOnly, (E,), orders, known), in_dims[0]


def _symmetric(X: Tensor, U: Tensor, pattern: SparsityPattern) -> Tensor:
    """(X U^T + U X^T) / 2 on the pattern: a step along it leaves a symmetric matrix symmetric."""
    return 0.5 * sddmm_values(torch.cat((X, U), -1), torch.cat((U, X), -1), pattern)


def _no_vmap() -> NotImplementedError:
    return NotImplementedError(
        "eigsh: vmap over matrices is not supported, since the number of steps depends on the data. Pass "
        "values with batch axes, CSR(values (..., nnz), pattern)"
    )


def _solve_bordered(
    a: Tensor, b: Tensor, H: Tensor, W: Tensor, R: Tensor, S: Tensor | None, known: Known, kind: str
) -> tuple[Tensor, Tensor]:
    """(Y, Z) with A Y - B Y H + W Z = R and W^T Y = S, default S = 0."""
    if S is None:
        S = R.new_zeros((*R.shape[:-2], *H.shape))
    return dispatch(_BorderedSolve, (a, b, H, W, R, S), known, kind)


class _BorderedSolve(Operation):
    """Symmetric except for H, which is transposed in the adjoint; linear in (A, B, H, W)."""

    @staticmethod
    def forward(a, b, H, W, R, S, known, kind):
        if is_legacy_batchedtensor(R) or is_legacy_batchedtensor(S):
            raise NotImplementedError(
                "eigsh: is_grads_batched=True (vectorize=True) is not supported. Use torch.func.jacrev"
            )
        values, U = known.values, known.vectors
        G = U.mT @ R
        many = R.movedim(-2, 0).reshape(len(U), -1)  # a batch of right-hand sides becomes columns
        Y, trouble = known.deflated(values.repeat(many.shape[1] // len(values)), many)
        Y = Y.reshape(len(U), *R.shape[:-2], len(values)).movedim(0, -2)
        known.judge(kind, R, G, Y, trouble)
        return Y + U @ S, G - values.unsqueeze(-1) * S + S * values

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:4], *output)
        ctx.known = inputs[6]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, gY, gZ):
        a, b, H, W, Y, Z = ctx.saved_tensors
        known = ctx.known
        if gY is None and gZ is None:
            return (None,) * 8
        gY = torch.zeros_like(Y) if gY is None else gY
        R, S = _solve_bordered(a, b, H.mT, W, gY, gZ, known, "")
        need_a, need_b, need_H, need_W = ctx.needs_input_grad[:4]
        ga = -sddmm_values(R, Y, known.A).sum_to_size(a.shape) if need_a else None
        gb = None
        if known.B is not None and need_b:
            gb = sddmm_values(R, Y @ H, known.B).sum_to_size(b.shape)
        gH = (known.times_B(b, Y).mT @ R).sum_to_size(H.shape) if need_H else None
        gW = -(R @ Z.mT + Y @ S.mT).sum_to_size(W.shape) if need_W else None
        return ga, gb, gH, gW, R, S, None, None

    @staticmethod
    def jvp(ctx, ta, tb, tH, tW, tR, tS, *_):
        a, b, H, W, Y, Z = ctx.saved_tensors
        known = ctx.known
        R = add(
            tR,
            None if ta is None else -product(ta, Y, known.A, False),
            None if tb is None or known.B is None else product(tb, Y, known.B, False) @ H,
            None if tH is None else known.times_B(b, Y) @ tH,
            None if tW is None else -tW @ Z,
        )
        S = add(tS, None if tW is None else -tW.mT @ Y)
        return _solve_bordered(a, b, H, W, torch.zeros_like(Y) if R is None else R, S, known, "")

    @staticmethod
    def vmap(info, in_dims, a, b, H, W, R, S, known, kind):
        if any(d is not None for d in in_dims[:4]):
            raise _no_vmap()
        size = info.batch_size
        R, S = (
            t.expand(size, *t.shape) if d is None else t.movedim(d, 0)
            for t, d in zip((R, S), in_dims[4:6], strict=True)
        )
        return _solve_bordered(a, b, H, W, R, S, known, kind), (0, 0)
