"""Sparse direct solve: one LU factorization for the solution and for its derivatives of any order."""

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor, is_legacy_batchedtensor

from learnsolve import _library  # noqa: F401  (registers torch.ops.learnsolve)
from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.matrix.unchanged import version
from learnsolve.ops.core import superlu
from learnsolve.ops.core.autograd import LinearSolve, dispatch
from learnsolve.ops.core.product import _values_gradient, product
from learnsolve.ops.core.superlu import Factors

_raw = torch.ops.learnsolve.superlu_solve.default


def spsolve(A: CSR, b: Tensor, *, transpose: bool = False) -> Tensor:
    r"""Solve :math:`A x = b`, or :math:`A^T x = b`, by a sparse LU factorization (SciPy's SuperLU).

    Parameters
    ----------
    A : CSR, shape (n, n), float32 or float64; its values may have batch axes, (..., nnz)
    b : Tensor, shape (n,) or (..., n, k), of A's dtype and device
    transpose : solve with the transpose

    Returns
    -------
    Tensor, shape (..., n) for a vector, (..., n, k) for a matrix; batch axes broadcast.

    Raises
    ------
    ValueError
        if shapes do not fit; if A is singular (the message names the row, or what else was found), or has
        values that are not finite; if the solution overflows.
    TypeError
        if dtypes or devices do not fit.

    Notes
    -----
    Gradient: :math:`\bar b = A^{-T} \bar x`, :math:`\bar A = -\bar b\, x^T` on the pattern (if `transpose`,
    :math:`A^{-1} \bar x` and :math:`-x\, \bar b^T`). Any order; forward mode, vmap, `torch.compile`. A
    backward costs two triangular solves with the factors of the forward, which live as long as the graph, and
    a sampled product. `factorized` keeps them for later calls.

    Cost: one factorization per matrix of the batch, in A's precision, on the host; then 2 flops per entry
    of the factors and column of b. docs/operations.md has orderings, pivoting and memory. A nearly singular
    matrix is accepted: the relative error is about its condition number times the unit roundoff, and a
    RuntimeWarning says when rounding errors in A x are about as large as b.

    Source: Demmel et al., "A supernodal approach to sparse partial pivoting", SIAM J. Matrix Anal. Appl. 20
    (1999).

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> ls.ops.spsolve(ls.problems.poisson((3,)), torch.ones(3, dtype=torch.float64))
    tensor([1.5000, 2.0000, 1.5000], dtype=torch.float64)
    """
    _check_matrix("spsolve", A)
    _check_right_hand_side("spsolve", A, b)
    checks.flag("spsolve", "transpose", transpose)
    factors = None if torch.compiler.is_dynamo_compiling() else Factors("spsolve")
    return _solved(A.values, b, A.pattern, transpose, factors)


def factorized(A: CSR) -> "Factorized":
    """LU factors of A, kept for any number of solves: ``factorized(A).solve(b)`` is ``spsolve(A, b)``.

    Parameters
    ----------
    A : CSR, as for `spsolve`

    Returns
    -------
    Factorized

    Raises
    ------
    ValueError, TypeError
        as `spsolve`.
    RuntimeError
        from a solve after A's values were changed, in place or by assignment.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> F = ls.ops.factorized(ls.problems.poisson((3,)))
    >>> F(torch.ones(3, dtype=torch.float64))
    tensor([1.5000, 2.0000, 1.5000], dtype=torch.float64)
    >>> F
    Factorized(shape=(3, 3), nnz=7, factors=12, fill=1.71, dtype=float64, device=cpu)
    """
    _check_matrix("factorized", A)
    if torch.compiler.is_dynamo_compiling():
        raise NotImplementedError(
            "factorized: cannot be traced by torch.compile; call it outside and use what it returns inside, "
            "or call spsolve, whose backward reuses the factors of the forward"
        )
    return Factorized(A)


class Factorized:
    """A matrix with its LU factors, made by `factorized`. Calling it is `solve`.

    Attributes
    ----------
    A : CSR, the matrix
    dtype : of A

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[2.0, 1.0], [0.0, 4.0]]))
    >>> F, b = ls.ops.factorized(A), torch.tensor([4.0, 8.0])
    >>> F.solve(b), F.solve(b, transpose=True)
    (tensor([1., 2.]), tensor([2.0000, 1.5000]))
    """

    def __init__(self, A: CSR):
        _check_matrix("Factorized", A)
        self.A = A
        self._values = A.values
        self._version = version(A.values)
        self._factors = Factors("factorized")
        # Inside a transformation the values are not available yet: the first solve factors.
        if _has_numbers(A.values) and not is_functorch_wrapped_tensor(A.values):
            self._factors.of(*A.pattern._structure(False)[:2], _matrices(A.values))
            self._factors.share()

    @property
    def dtype(self) -> torch.dtype:
        return self.A.dtype

    def solve(self, b: Tensor, *, transpose: bool = False) -> Tensor:
        """``spsolve(A, b, transpose=transpose)`` without another factorization; differentiable in the values
        of A and in b, to any order."""
        A = self.A
        _check_right_hand_side("factorized", A, b)
        checks.flag("factorized", "transpose", transpose)
        if torch.compiler.is_dynamo_compiling():
            # The operator looks for factors of these values, and recomputes them if none are kept.
            return _solved(A.values, b, A.pattern, transpose, None)
        if A.values is not self._values or (self._version >= 0 and version(A.values) != self._version):
            raise RuntimeError(
                "factorized: the values of A were changed after it was factored; call factorized(A) again, "
                "or factor a copy, factorized(A.clone())"
            )
        return _solved(A.values, b, A.pattern, transpose, self._factors)

    __call__ = solve

    def __reduce__(self):
        return factorized, (self.A,)

    def __repr__(self) -> str:
        A, entries = self.A, self._factors.nnz
        matrices = A.batch_shape.numel()
        batch = f", batch={tuple(A.batch_shape)}" if A.values.dim() > 1 else ""
        dtype = str(A.dtype).removeprefix("torch.")
        fill = f"{entries / max(matrices * A.nnz, 1):.3g}"
        return (
            f"Factorized(shape={A.shape}, nnz={A.nnz}{batch}, factors={entries}, fill={fill}, dtype={dtype}, "
            f"device={A.device})"
        )


def _has_numbers(t: Tensor) -> bool:
    """Does `t` hold values? Not if it represents a shape or a batch, or while operations are recorded."""
    ordinary = type(t) is Tensor or type(t) is torch.nn.Parameter
    return ordinary and not is_legacy_batchedtensor(t) and not torch._C._len_torch_dispatch_stack()


def _check_matrix(function: str, A: CSR) -> None:
    checks.matrix(function, "A", A)
    checks.dtype(function, "A.values", A.values)
    checks.square(function, "A", A.shape)


def _check_right_hand_side(function: str, A: CSR, b: Tensor) -> None:
    checks.same_kind(function, "b", b, A.values)
    n = A.shape[0]
    if b.dim() == 0 or b.shape[0 if b.dim() == 1 else -2] != n:
        raise ValueError(
            f"{function}: b must have shape (n,) or (..., n, k) with n = A.shape[0] = {n}, got "
            f"{tuple(b.shape)}"
        )
    checks.batches(function, A.values.shape[:-1], b.shape[:-2], "A.values and b")


def _solved(
    values: Tensor, b: Tensor, pattern: SparsityPattern, transpose: bool, factors: Factors | None
) -> Tensor:
    """`spsolve` on values and pattern, unchecked. Of the batch axes, those in which the matrix is the same
    become columns of b: one factor for each matrix, and gradients that are summed where they are made."""
    if values.dim() == 1 and b.dim() <= 2:
        return _solve(values, b, pattern, transpose, factors)
    if b.dim() == 1:
        return _solved(values, b.unsqueeze(-1), pattern, transpose, factors).squeeze(-1)
    n, k = b.shape[-2:]
    batch = torch.broadcast_shapes(values.shape[:-1], b.shape[:-2])
    axes = len(batch)
    missing = axes - (values.dim() - 1)
    own = [i + missing for i in _own_axes(values)]
    rest = [i for i in range(axes) if i not in own]
    order = [*own, axes, *rest, axes + 1]
    columns = b.expand((*batch, n, k)).permute(order)
    own_shape, rest_shape = (torch.Size([batch[i] for i in some]) for some in (own, rest))
    v = _matrices(values)
    flat = (n, rest_shape.numel() * k)
    x = _solve(v, columns.reshape((own_shape.numel(), *flat) if own else flat), pattern, transpose, factors)
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return x.reshape((*own_shape, n, *rest_shape, k)).permute(inverse)


def _own_axes(values: Tensor) -> list[int]:
    """The batch axes along which there are other matrices."""
    return [i for i, size in enumerate(values.shape[:-1]) if size != 1]


def _matrices(values: Tensor) -> Tensor:
    """One matrix, (nnz,), or all different ones, (B, nnz)."""
    nnz, own = values.shape[-1], _own_axes(values)
    return values.reshape((values.shape[:-1].numel(), nnz) if own else (nnz,))


def _solve(
    values: Tensor, b: Tensor, pattern: SparsityPattern, transpose: bool, factors: Factors | None
) -> Tensor:
    """For values (nnz,) with b (n,) or (n, k), or (B, nnz) with (B, n, k)."""
    return dispatch(_Solve, (values, b), pattern, transpose, factors)


class _Solve(LinearSolve):
    @staticmethod
    def forward(values, b, pattern, transpose, factors):
        crow, col = pattern._structure(False)[:2]
        if factors is None or not (_has_numbers(values) and _has_numbers(b)):
            # An operator goes through torch's dispatcher, which handles such tensors.
            if factors is not None:
                factors.share()
            return _raw(crow, col, values, b, transpose)
        return superlu.solve(factors, crow, col, values, b, transpose)

    @staticmethod
    def times(values, x, pattern, transpose, factors):
        return product(values, x, pattern, transpose)

    @staticmethod
    def backward(ctx, g):
        values, x = ctx.saved_tensors
        pattern, transpose, factors = ctx.constants
        y = _solve(values, g, pattern, not transpose, factors)
        gv = None
        if ctx.needs_input_grad[0]:
            gv = -_values_gradient(y, x, pattern, transpose, values)
        return gv, y if ctx.needs_input_grad[1] else None, None, None, None

    @staticmethod
    def vmap(info, in_dims, values, b, pattern, transpose, factors):
        v_dim, b_dim = in_dims[:2]
        vector = b.dim() == (1 if b_dim is None else 2)
        v = values.unsqueeze(0) if v_dim is None else values.movedim(v_dim, 0)
        rhs = b.unsqueeze(0) if b_dim is None else b.movedim(b_dim, 0)
        x = _solved(v, rhs.unsqueeze(-1) if vector else rhs, pattern, transpose, factors)
        return (x.squeeze(-1) if vector else x), 0
