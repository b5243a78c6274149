"""Direct solves on the host: the choice of a library, factors, and solves with derivatives of any order.

The rule of "auto": SuperLU's LU below `SMALL` rows and for bands of at most `BAND` diagonals on either side.
Otherwise PARDISO, if installed: Cholesky for symmetric matrices with a positive diagonal; LDL^T for other
symmetric matrices and if Cholesky meets a pivot that is not positive; LU otherwise. Without PARDISO, CHOLMOD,
if it is installed and its Cholesky factorization succeeds. SuperLU in all other cases, and if PARDISO has to
replace pivots.

A factor is looked up by comparing values, not by the identity of a tensor: torch transformations pass the
same values in other tensors, and values changed without torch's knowledge do not match an old factor. A
comparison costs O(nnz), less than any solve.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor

from learnsolve import _library  # noqa: F401  (registers torch.ops.learnsolve)
from learnsolve.matrix import checks
from learnsolve.matrix.cache import plain_tensors, readable
from learnsolve.matrix.checks import RealMatrix, SquareMatrix, like
from learnsolve.matrix.convert import conjugate
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import Recent, SparsityPattern, to_numpy
from learnsolve.ops import direct_backends
from learnsolve.ops.autograd import LinearSolve, dispatch
from learnsolve.ops.direct_backends import (
    AUTO,
    KINDS,
    LARGEST,
    ORDERINGS,
    Analysis,
    Cholmod,
    Factor,
    NotDefinite,
    Pardiso,
    Request,
    Singular,
    Structure,
    SuperLU,
    Unreliable,
    structure,
    sums_to_zero,
    why_singular,
)
from learnsolve.ops.products import _values_gradient, product
from learnsolve.ops.structure import _equal, _test_symmetry, scale_rows, symmetric_pattern

SMALL = 4_000  # rows: below this, SuperLU is at least as fast as an analysis by PARDISO
BAND = 16  # SuperLU factors these as fast as PARDISO, and solves 10 times faster
BACKENDS: dict[str, type[Analysis]] = {"pardiso": Pardiso, "cholmod": Cholmod, "superlu": SuperLU}
EXTRAS = {"pardiso": "pypardiso", "cholmod": "scikit-sparse"}


@functools.cache
def missing(backend: str) -> str:
    """Why a library cannot be used, empty if it can."""
    try:
        if backend == "pardiso":
            direct_backends.mkl()
        elif backend == "cholmod":
            direct_backends.library()
    except (ImportError, OSError, AttributeError) as error:
        return str(error)
    return ""


def available() -> list[str]:
    return [name for name in BACKENDS if not missing(name)]


def check_request(function: str, how: Request, dtype: torch.dtype) -> Request:
    """The request, if it is available."""
    kind, backend, ordering = how[:3]
    for name, value, values in (
        ("kind", kind, ("auto", *KINDS)),
        ("backend", backend, ("auto", *BACKENDS, "cudss")),
        ("ordering", ordering, ORDERINGS),
    ):
        checks.check_choice(function, name, value, values)
    if backend == "cudss":
        raise NotImplementedError(
            f'{function}: backend="cudss" (NVIDIA cuDSS, factors on the device) is declared, but does not '
            'exist yet. Use backend="auto", which factors on the host'
        )
    if backend == "auto":
        if ordering != "auto" and not any(ordering in BACKENDS[name].orderings for name in available()):
            raise ValueError(
                f'{function}: ordering="{ordering}" needs PARDISO or CHOLMOD. Install learnsolve[pardiso], '
                'or use ordering="auto"'
            )
        return how
    if why := missing(backend):
        raise ImportError(
            f'{function}: backend="{backend}" needs {EXTRAS[backend]} ({why}). Install '
            f'learnsolve[{backend}], or use backend="auto"'
        )
    chosen, name = BACKENDS[backend], str(dtype).removeprefix("torch.")
    for what, value, values in (
        ("kind", kind, chosen.kinds),
        ("ordering", ordering, tuple(chosen.orderings)),
        ("a matrix of dtype", name, chosen.dtypes),
    ):
        if value != "auto" and value not in values:
            raise ValueError(
                f'{function}: backend="{backend}" takes {what} {" or ".join(values)}, got {value}. Use '
                'backend="auto"'
            )
    return how._replace(kind=chosen.kinds[0]) if len(chosen.kinds) == 1 else how


def symmetric(P: SparsityPattern, data: torch.Tensor) -> bool:
    """Whether the matrix is symmetric up to rounding, as in `symmetry`."""
    found = _test_symmetry(data, P)
    return _equal(data.to(P.device), P) if found is None and symmetric_pattern(P) else bool(found)


def factor(P: SparsityPattern, data: torch.Tensor, how: Request) -> Factor:
    """The factors of the matrix with finite values `data`, on the host. Raises as `Analysis.factor`."""
    indefinite: NotDefinite | None = None
    for kind, backend in _plan(P, data, how):
        if kind == "cholesky" and indefinite is not None:
            continue
        try:
            return _analysis(structure(P), backend, kind, how.ordering).factor(data.numpy())
        except NotDefinite as error:
            indefinite = error
        except Unreliable:
            pass
    assert indefinite is not None  # otherwise SuperLU was the last
    raise indefinite


def predict_choice(P: SparsityPattern, data: torch.Tensor) -> tuple[str, str]:
    """The kind and library that "auto" tries first for values on the host."""
    return next(_plan(P, data.resolve_conj().resolve_neg(), AUTO))


def _analysis(S: Structure, backend: str, kind: str, ordering: str) -> Analysis:
    ordering = ordering if ordering in BACKENDS[backend].orderings else "auto"
    key = backend, kind, ordering
    if key not in S.analyses:
        S.analyses[key] = BACKENDS[backend](S, kind, ordering)
    return S.analyses[key]


def _plan(P: SparsityPattern, data: torch.Tensor, how: Request) -> Iterator[tuple[str, str]]:
    """Pairs of kind and library, to be tried in this order."""
    kind, backend, ordering = how[:3]
    names = [backend]
    if backend == "auto":
        names = [n for n in available() if n != "superlu" and ordering in ("auto", *BACKENDS[n].orderings)]
        by_superlu = names and ordering in ("auto", *SuperLU.orderings)
        if by_superlu and (P.shape[0] < SMALL or P._plan_once(_bandwidth) <= BAND):
            names = []
    kinds = [kind]
    if kind == "auto":
        kinds = ["lu"]
        if any(name != "superlu" for name in names) and symmetric(P, data):
            at = P.diagonal_positions.cpu()
            kinds = ["ldlt", "lu"]
            if bool((at >= 0).all()) and bool((data[at].real > 0).all()):
                kinds = ["cholesky", *kinds]
    for k in kinds:
        for name in names:
            if k in BACKENDS[name].kinds and data.numpy().dtype.name in BACKENDS[name].dtypes:
                yield k, name
    if "superlu" not in names:  # the last resort
        yield kinds[-1], "superlu"


def _bandwidth(P: SparsityPattern) -> int:
    crow, col = to_numpy(P.crow_indices), to_numpy(P.col_indices)
    rows = np.flatnonzero(np.diff(crow))  # whose columns are sorted
    return int(np.abs(np.stack((col[crow[rows]], col[crow[rows + 1] - 1])) - rows).max(initial=0))


class FactoredMatrix(NamedTuple):
    """A matrix with its factors."""

    pattern: SparsityPattern
    data: np.ndarray
    largest: float  # largest absolute value
    factor: Factor

    @property
    def S(self) -> scipy.sparse.csr_array:
        return structure(self.pattern).matrix(self.data)


class Factors:
    """Factors of the matrices that occur in one solve and its derivatives of any order.

    `function` is the public function that messages name.
    """

    __slots__ = ("__weakref__", "_factored", "function", "how")

    def __init__(self, function: str, how: Request = AUTO):
        self.function, self.how = function, how
        self._factored: list[tuple[SparsityPattern, Tensor, list[FactoredMatrix]]] = []

    def find(self, P: SparsityPattern, values: Tensor, how: Request) -> list[FactoredMatrix] | None:
        """Factors of `values`, (nnz,) or (B, nnz) on the host, if they exist: one per matrix."""
        for pattern, known, factors in self._factored:
            if self.how == how and (known is values or _same(known, values)) and _same_pattern(pattern, P):
                return factors
        return None

    def of(self, P: SparsityPattern, values: Tensor) -> list[FactoredMatrix]:
        values = _host(values)
        factors = self.find(P, values, self.how)
        if factors is None:
            with plain_tensors():
                values = values.clone()
            factors = _factor(self.function, P, values, self.how)
            self._factored.append((P, values, factors))
        return factors

    @property
    def all(self) -> list[FactoredMatrix]:
        return [f for _, _, factors in self._factored for f in factors]

    def bytes(self) -> int:
        """The size of the entries and indices of all factors."""
        index = np.intc().itemsize
        return sum((f.data.itemsize + index) * f.factor.entries for f in self.all)

    def share(self) -> None:
        """Let calls through the operator find these factors while a reference to them exists."""
        with _recent.lock:
            _recent.shared.add(self)


def solve(factors: Factors, P: SparsityPattern, values: Tensor, b: Tensor, transpose: bool) -> Tensor:
    """A^-1 b, or A^-T b, for values (nnz,) with b (n,) or (n, k), or (B, nnz) with (B, n, k)."""
    return _solve_on_host(factors.function, factors.of(P, values), b, transpose)


def _solve_on_host(function: str, factors: list[FactoredMatrix], b: Tensor, transpose: bool) -> Tensor:
    rhs = _host(b).numpy()
    if rhs.size == 0:
        x = np.empty_like(rhs)
    elif rhs.ndim < 3:
        x = _solve_one(function, factors[0], rhs, transpose)
    else:
        x = np.stack([_solve_one(function, *pair, transpose) for pair in zip(factors, rhs, strict=True)])
    return torch.from_numpy(np.ascontiguousarray(x)).to(b.device)


def _solve_one(function: str, A: FactoredMatrix, b: np.ndarray, transpose: bool) -> np.ndarray:
    x = A.factor.solve(b, transpose)
    # `not <=` is true for NaN too.
    if not _largest(x) * A.largest <= 0.01 * _largest(b) / np.finfo(b.dtype).eps:
        _judge(function, A.S, x, b, transpose)
    return x


def _judge(function: str, S: scipy.sparse.csr_array, x: np.ndarray, b: np.ndarray, transpose: bool) -> None:
    """Reject a solution that is not finite, and warn if its residual is large."""
    usable = np.isfinite(b).all(0)
    if (usable & ~np.isfinite(x).all(0)).any():
        raise ValueError(
            f"{function}: the solution is not finite, though A and the right-hand side are: A is singular to "
            f"working precision, or the numbers leave the range of {b.dtype}. Rescale the equations, use "
            "float64, or add a shift to the diagonal of A"
        )
    # Is rounding in A x about as large as b? Each equation counts relative to its largest coefficient.
    # A singular matrix whose last pivot is rounding gives 0.01 to 30 (Laplacians with random weights); others
    # come close only at condition numbers that exceed the precision.
    size = abs(S.T.tocsr() if transpose else S)
    with np.errstate(all="ignore"):
        scale = 1 / size.max(1).toarray()
        if b.ndim == 2:
            scale = scale[:, None]
        rounding = np.finfo(b.dtype).eps * (scale * (size @ np.abs(x))).max(0)
        useless = rounding >= 0.1 * (scale * np.abs(b)).max(0)
    if (usable & useless).any():
        warnings.warn(
            f"{function}: A is nearly singular{sums_to_zero(S)}: rounding errors in A x are about as large "
            "as the right-hand side. Fix one of the unknowns that are not determined, add a shift to the "
            "diagonal, or use float64",
            RuntimeWarning,
            stacklevel=2,
        )


def _largest(a: np.ndarray) -> float:
    if not a.size:
        return 0.0
    return np.abs(a).max() if np.iscomplexobj(a) else max(a.max(), -a.min())


def _factor(function: str, P: SparsityPattern, values: Tensor, how: Request) -> list[FactoredMatrix]:
    n = P.shape[0]
    if max(n, P.nnz) > LARGEST:
        raise ValueError(
            f"{function}: direct solvers count up to {LARGEST}, A has {n} rows and {P.nnz} entries. Use an "
            "iterative solver"
        )
    if n == 0:
        return []
    if fault := structure(P).fault:
        if how.unknowns:
            raise _dependent(function, "A")
        raise ValueError(
            f"{function}: A is structurally singular: {fault}. Remove that row and column, or add "
            "entries there"
        )
    single = values.dim() == 1
    made = []
    for at, data in enumerate(values.unsqueeze(0) if single else values):
        which = "A" if single else f"matrix {at} of the batch"
        numbers = data.numpy()
        largest = _largest(numbers)
        if not np.isfinite(largest):
            p = int(np.flatnonzero(~np.isfinite(numbers))[0])
            raise ValueError(
                f"{function}: the values of {which} must be finite, got {numbers[p]} at row "
                f"{int(P.row_indices[p])}, column {int(P.col_indices[p])} (values[{p}]). Look for "
                "what made it"
            )
        made.append(FactoredMatrix(P, numbers, float(largest), _factor_one(function, which, P, data, how)))
        if how.unknowns:
            _check_independent(function, which, made[-1], int(how.unknowns))
    return made


def _check_independent(function: str, which: str, K: FactoredMatrix, n: int) -> None:
    """For K = a [I, B; B^T, -c I]: the smallest eigenvalue of (B^T B + c I) / (D D^T), of unit diagonal, by
    two steps of inverse iteration. At the level of rounding errors the columns of B depend on each other, and
    the factors yield any one of the solutions."""
    S, m = structure(K.pattern), K.pattern.shape[0] - n
    if not m or not n:
        return
    first, a = S.indptr[m], K.data[0]
    entries = K.data[first:] / a
    terms = np.where(S.indices[first:] < m, entries * entries, -entries)
    D = np.sqrt(np.add.reduceat(terms, S.indptr[m:-1] - first))
    x, size = np.random.default_rng(0).standard_normal(n).astype(D.dtype), 0.0
    with np.errstate(all="ignore"):
        for _ in range(2):
            b = np.concatenate((np.zeros(m, D.dtype), D * (x / np.linalg.norm(x))))
            x = a * K.factor.solve(b, False)[m:] * D
            size = 1 / np.linalg.norm(x)
    if not size > 10 * np.finfo(D.dtype).eps:  # true for NaN too
        raise _dependent(function, which)


def _dependent(function: str, which: str) -> ValueError:
    return ValueError(
        f"{function}: the columns of {which} depend on each other up to rounding errors. Pass damp, or more "
        "of it, or use solvers.lsqr for the solution of minimum norm"
    )


def _factor_one(function: str, which: str, P: SparsityPattern, data: Tensor, how: Request) -> Factor:
    if how.kind in ("cholesky", "ldlt") and not symmetric(P, data):
        needed = "Hermitian" if data.is_complex() else "symmetric"
        raise ValueError(
            f'{function}: kind="{how.kind}" needs a {needed} matrix, which {which} is not. Use kind="lu", '
            'or kind="auto"'
        )
    try:
        return factor(P, data, how)
    except Singular:
        if how.unknowns:
            raise _dependent(function, which) from None
        raise ValueError(
            f"{function}: {which} is {why_singular(structure(P).matrix(data.numpy()))}"
        ) from None
    except NotDefinite as error:
        row = f" in row {error.row}" if error.row >= 0 else ""
        raise ValueError(
            f"{function}: {which} is not positive definite: the elimination met a pivot that is not positive"
            f'{row}. Use kind="ldlt" or kind="auto", or add a shift to the diagonal'
        ) from None
    except MemoryError:
        raise MemoryError(
            f"{function}: out of memory while factoring {which}, {P.shape[0]} rows and {P.nnz} entries. Use "
            "an iterative solver such as cg or gmres, which needs O(nnz)"
        ) from None


def logdets(factors: list[FactoredMatrix], values: Tensor) -> Tensor:
    """log |det A| for values (nnz,), or (B, nnz)."""
    batch = values.shape[:-1]
    logs = [_logdet(A) for A in factors] or [0.0] * batch.numel()
    return torch.tensor(logs, dtype=values.dtype.to_real(), device=values.device).reshape(batch)


def _logdet(A: FactoredMatrix) -> float:
    found = A.factor.logdet()
    if found is None:
        data = torch.from_numpy(A.data)
        found = _factor_one("factorize", "A", A.pattern, data, Request("lu", "superlu")).logdet()
    assert found is not None
    return found


def _host(t: Tensor) -> Tensor:
    return t.detach().resolve_conj().resolve_neg().cpu().contiguous()


def _same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.device == b.device and a.shape == b.shape and torch.equal(a, b)


def _same_pattern(P: SparsityPattern, Q: SparsityPattern) -> bool:
    return P is Q or all(_same(a, b) for a, b in zip(P._arrays, Q._arrays, strict=True))


# --- for torch.compile: the same as opaque operators ---

# The backward may never run: hence the limit.
_recent = Recent(8, 2**30, Factors.bytes)


def _find_recent(crow: Tensor, col: Tensor, values: Tensor, how: Request) -> list[FactoredMatrix]:
    """The factors from an earlier call."""
    values, shape = _host(values), (len(crow) - 1, len(crow) - 1)
    P = SparsityPattern._construct(crow, col, shape)
    factors = _recent.find(lambda known: known.find(P, values, how))
    if factors is None:
        # The plans of the pattern are kept as long as one of its matrices.
        same = _recent.find(
            lambda known: next((Q for Q, _, _ in known._factored if _same_pattern(Q, P)), None)
        )
        new = Factors("lstsq" if how.unknowns else "spsolve", how)
        factors = new.of(same or SparsityPattern._construct(crow.clone(), col.clone(), shape), values)
        _recent.add(new)
    return factors


@torch.library.custom_op("learnsolve::direct_solve", mutates_args=())
def direct_solve(crow: Tensor, col: Tensor, values: Tensor, b: Tensor, transpose: bool, how: str) -> Tensor:
    """`solve`, with the factors of a recent call if it had the same values. `how`: a Request."""
    request = Request(*how.split())
    factors = _find_recent(crow, col, values, request)
    return _solve_on_host("lstsq" if request.unknowns else "spsolve", factors, b, transpose)


@direct_solve.register_fake
def _(crow, col, values, b, transpose, how):
    return b.new_empty(b.shape)


@torch.library.custom_op("learnsolve::direct_logdet", mutates_args=())
def direct_logdet(crow: Tensor, col: Tensor, values: Tensor, how: str) -> Tensor:
    """`logdets`, with factors as for `direct_solve`."""
    return logdets(_find_recent(crow, col, values, Request(*how.split())), values)


@direct_logdet.register_fake
def _(crow, col, values, how):
    return values.new_empty(values.shape[:-1], dtype=values.dtype.to_real())


_raw = torch.ops.learnsolve.direct_solve.default
DEFAULT = " ".join(AUTO)  # in a graph, instead of factors: the factors to make


def has_numbers(t: Tensor) -> bool:
    """Whether `t` has values: not if it represents a shape or a batch, or while operations are recorded."""
    ordinary = type(t) is Tensor or type(t) is torch.nn.Parameter
    return ordinary and not is_legacy_batchedtensor(t) and not torch._C._len_torch_dispatch_stack()


def check_matrix(function: str, A: CSR) -> None:
    checks.matrix(function, "A", A)
    checks.dtype(function, "A.values", A.values, or_complex=True)
    checks.square(function, "A", A.shape)


def check_right_hand_side(function: str, A: CSR, b: Tensor) -> None:
    if isinstance(b, Tensor) and b.is_complex():
        checks.one_dtype(function, b, A.values)
    checks.same_kind(function, "b", b, A.values)
    checks.rows(function, "b", b, "A", A.shape)
    checks.batches(function, A.values.shape[:-1], b.shape[:-2], "A.values and b")


def solve_values(
    values: Tensor, b: Tensor, pattern: SparsityPattern, transpose: bool, factors: Factors | str
) -> Tensor:
    """`spsolve` on values and pattern, unchecked. Batch axes along which the matrix is constant become
    columns of b: one factor per matrix, and gradients are summed where they are computed."""
    if values.dim() == 1 and b.dim() <= 2:
        return _solve(values, b, pattern, transpose, factors)
    if b.dim() == 1:
        return solve_values(values, b.unsqueeze(-1), pattern, transpose, factors).squeeze(-1)
    n, k = b.shape[-2:]
    batch = torch.broadcast_shapes(values.shape[:-1], b.shape[:-2])
    axes = len(batch)
    missing = axes - (values.dim() - 1)
    own = [i + missing for i in _own_axes(values)]
    rest = [i for i in range(axes) if i not in own]
    order = [*own, axes, *rest, axes + 1]
    columns = b.expand((*batch, n, k)).permute(order)
    own_shape, rest_shape = (torch.Size([batch[i] for i in some]) for some in (own, rest))
    v = matrices(values)
    flat = (n, rest_shape.numel() * k)
    x = _solve(v, columns.reshape((own_shape.numel(), *flat) if own else flat), pattern, transpose, factors)
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return x.reshape((*own_shape, n, *rest_shape, k)).permute(inverse)


def _own_axes(values: Tensor) -> list[int]:
    """The batch axes along which the matrix varies."""
    return [i for i, size in enumerate(values.shape[:-1]) if size != 1]


def matrices(values: Tensor) -> Tensor:
    """One matrix, (nnz,), or all different matrices, (B, nnz)."""
    nnz, own = values.shape[-1], _own_axes(values)
    return values.reshape((values.shape[:-1].numel(), nnz) if own else (nnz,))


def _solve(
    values: Tensor, b: Tensor, pattern: SparsityPattern, transpose: bool, factors: Factors | str
) -> Tensor:
    """Solve for values (nnz,) with b (n,) or (n, k), or (B, nnz) with (B, n, k)."""
    return dispatch(_Solve, (values, b), pattern, transpose, factors)


class _Solve(LinearSolve):
    @staticmethod
    def forward(values, b, pattern, transpose, factors):
        if not isinstance(factors, str):
            if has_numbers(values) and has_numbers(b):
                return solve(factors, pattern, values, b, transpose)
            # An operator goes through torch's dispatcher, which handles such tensors.
            factors.share()
            factors = " ".join(factors.how)
        return _raw(*pattern._structure(False)[:2], values, b, transpose, factors)

    @staticmethod
    def times(values, x, pattern, transpose, factors):
        return product(values, x, pattern, transpose)

    @staticmethod
    def backward(ctx, g):
        values, x = ctx.saved_tensors
        pattern, transpose, factors = ctx.constants
        # With the conjugate transpose.
        y = conjugate(_solve(values, conjugate(g), pattern, not transpose, factors))
        gv = None
        if ctx.needs_input_grad[0]:
            gv = -_values_gradient(y, conjugate(x), pattern, transpose, values)
        return gv, y if ctx.needs_input_grad[1] else None, None, None, None

    @staticmethod
    def vmap(info, in_dims, values, b, pattern, transpose, factors):
        v_dim, b_dim = in_dims[:2]
        vector = b.dim() == (1 if b_dim is None else 2)
        v = values.unsqueeze(0) if v_dim is None else values.movedim(v_dim, 0)
        rhs = b.unsqueeze(0) if b_dim is None else b.movedim(b_dim, 0)
        x = solve_values(v, rhs.unsqueeze(-1) if vector else rhs, pattern, transpose, factors)
        return (x.squeeze(-1) if vector else x), 0


def spsolve(A: SquareMatrix, b: Tensor, *, transpose: bool = False) -> Tensor:
    r"""Solve :math:`A x = b`, or :math:`A^T x = b`, by a sparse factorization (docs/direct.md).

    Parameters
    ----------
    A : CSR, shape (n, n), real or complex. Its values may have batch axes, (..., nnz)
    b : Tensor, shape (n,) or (..., n, k), of A's dtype and device
    transpose : solve with the transpose

    Returns
    -------
    Tensor, shape (..., n) for a vector, (..., n, k) for a matrix. Batch axes broadcast.

    Raises
    ------
    ValueError, TypeError
        if A is singular (the message names the row or the reason), or has values that are not finite, the
        solution overflows, or b does not fit.

    Notes
    -----
    Gradient: :math:`\bar b = A^{-T} \bar x`, :math:`\bar A = -\bar b\, x^T` on the pattern (if `transpose`,
    :math:`A^{-1} \bar x` and :math:`-x\, \bar b^T`), for complex values with adjoints, not transposes. Any
    order, forward mode, vmap, `torch.compile`. The backward pass costs a sampled product and two triangular
    solves with the factors of the forward pass, which live as long as the graph. `ls.factorize` keeps them.

    Cost: one factorization per matrix of the batch, in A's precision, on the host. Then 2 flops per entry of
    the factors and column of b. The analysis is cached with the pattern (docs/direct.md). A nearly singular
    matrix is accepted: the relative error is about the condition number times the unit roundoff, and a
    RuntimeWarning is issued if rounding errors in A x are about as large as b.

    Source: Demmel et al., "A supernodal approach to sparse partial pivoting", SIAM J. Matrix Anal. Appl. 20
    (1999).

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> ls.ops.spsolve(ls.problems.poisson((3,)), torch.ones(3, dtype=torch.float64))
    tensor([1.5000, 2.0000, 1.5000], dtype=torch.float64)
    """
    check_right_hand_side("spsolve", A, b)
    factors = DEFAULT if torch.compiler.is_dynamo_compiling() else Factors("spsolve")
    return solve_values(A.values, b, A.pattern, transpose, factors)


_SYMMETRIC = Request("ldlt")


def lstsq(
    A: RealMatrix,
    b: Annotated[Tensor, like("A", rows_of=0)],
    *,
    damp: float | Tensor = 0.0,
    weight: Annotated[Tensor, like("A")] | None = None,
) -> Tensor:
    r"""Minimize :math:`\sum_i w_i (A x - b)_i^2 + \mathtt{damp}^2 \|x\|^2` over x by a direct solve.

    Parameters
    ----------
    A : CSR, shape (m, n), float32 or float64. Its values may have batch axes, (..., nnz)
    b : Tensor, shape (m,) or (..., m, k), of A's dtype and device
    damp : float or Tensor, shape (), the regularization
    weight : Tensor, shape (m,), positive. Default: ones

    Returns
    -------
    Tensor, shape (..., n) for a vector, (..., n, k) for a matrix. Batch axes broadcast.

    Raises
    ------
    ValueError
        if the columns of A, with `damp` of [A; damp I], are linearly dependent up to rounding errors of the
        normal equations (without `damp` always if m < n), or if a weight is not positive, values are not
        finite, or shapes do not match.

    Notes
    -----
    With :math:`B = W^{1/2} A` and a scale :math:`\alpha`, the symmetric system (quasi-definite with `damp`)

    .. math:: \begin{pmatrix} \alpha I & B \\ B^T & -\mathtt{damp}^2 / \alpha\, I \end{pmatrix}
              \begin{pmatrix} s \\ x \end{pmatrix} = \begin{pmatrix} W^{1/2} b \\ 0 \end{pmatrix}

    is solved. Gradient: for A's values, b, damp and weight, to any order, forward mode, vmap,
    `torch.compile`. Cost: a factorization of order m + n. Backward: two triangular solves. `solvers.lsqr`
    needs only O(nnz) memory, and finds the solution of minimum norm if columns are linearly dependent.

    Source: Saunders, "Cholesky-based methods for sparse least squares: the benefits of regularization", in
    Linear and Nonlinear Conjugate Gradient-Related Methods, SIAM (1996).

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]))
    >>> ls.ops.lstsq(A, torch.tensor([1.0, 3.0, 5.0]))
    tensor([1., 2.])
    """
    name = "lstsq"
    m, n = A.shape
    vector = b.dim() == 1
    if isinstance(damp, Tensor):
        checks.same_kind(name, "damp", damp, A.values)
        if damp.dim():
            raise ValueError(f"{name}: damp must be a float or have shape (), got {tuple(damp.shape)}")
    else:
        checks.tolerance(name, "damp", damp)
    damped = isinstance(damp, Tensor) or damp > 0
    if m < n and not damped:
        raise ValueError(
            f"{name}: A is {m} x {n}, so that its columns depend on each other. Pass damp > 0, or use "
            "solvers.lsqr for the solution of minimum norm"
        )
    if weight is not None:
        if weight.shape != (m,):
            raise ValueError(f"{name}: weight must have shape (m,) = ({m},), got {tuple(weight.shape)}")
        if readable(weight) and not bool((weight > 0).all()):
            i = int((~(weight > 0)).nonzero()[0])
            raise ValueError(
                f"{name}: weight must be positive, got {weight[i].item()} in row {i}. Remove rows that do "
                "not count"
            )
        root = weight.sqrt()
        A, b = scale_rows(A, root), b * (root if vector else root.unsqueeze(-1))
    alpha = A.values.detach().abs().amax() if A.values.numel() else A.values.new_ones(())
    alpha = torch.where(alpha > 0, alpha, 1)
    P, order = A.pattern._plan_once(_augment, damped)
    v = A.values
    parts = [alpha.expand(*v.shape[:-1], m), v, v]
    if damped:
        parts.append((-(damp**2) / alpha).expand(*v.shape[:-1], n))
    values = torch.cat(parts, -1).index_select(-1, order)
    rhs = b.unsqueeze(-1) if vector else b
    rhs = torch.cat((rhs, rhs.new_zeros((*rhs.shape[:-2], n, rhs.shape[-1]))), -2)
    how = _SYMMETRIC._replace(unknowns=str(n))
    factors = " ".join(how) if torch.compiler.is_dynamo_compiling() else Factors(name, how)
    x = solve_values(values, rhs, P, False, factors)[..., m:, :]
    return x.squeeze(-1) if vector else x


def _augment(P: SparsityPattern, damped: bool) -> tuple[SparsityPattern, Tensor]:
    """The pattern of the augmented matrix, and the positions of its entries in I, B, B^T and the corner."""
    m, n = P.shape
    first, last = (torch.arange(k, device=P.device) for k in (m, n if damped else 0))
    rows = torch.cat((first, P.row_indices, P.col_indices + m, last + m))
    columns = torch.cat((first, P.col_indices + m, P.row_indices, last + m))
    order = torch.argsort(rows.long() * (m + n) + columns)
    counts = torch.bincount(rows, minlength=m + n)
    crow = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
    crow, columns = crow.to(P.dtype), columns[order].to(P.dtype)
    return SparsityPattern._construct(crow, columns, (m + n, m + n)), order
