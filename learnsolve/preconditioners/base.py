"""The base of all preconditioners: argument checks, a transpose, flags, a SciPy LinearOperator.

A subclass defines products with blocks of columns, (..., n, k). docs/extending.md has an example:

    mv(R)     M R
    rmv(R)    M^T R, not needed if the preconditioner is `symmetric`, or not `linear`

A preconditioner computed from a matrix stores its data (attached to the autograd graph, so that unrolled
solvers differentiate through it) and is rebuilt when the matrix changes. This is cheap, since patterns cache
the plans. It is no torch.nn.Module, which would take half as long again to make. `Trainable` (trainable.py)
makes one of it: `learnable` lists its parameters, and `with_tensors` replaces them.

Some preconditioners of the first kind also read A's values in every call (`SOR`, `SSOR`, `Neumann`,
`Chebyshev`, `AMG`). They read a copy: after an in-place change of the values, which torch's versions do not
always show, they would mix old and new values. All of them keep using the original matrix.
"""

from __future__ import annotations

import cmath
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import scipy.sparse.linalg
import torch
from torch import Tensor
from torch.autograd import forward_ad

from learnsolve.matrix import checks
from learnsolve.matrix.cache import readable
from learnsolve.matrix.csr import CSR
from learnsolve.ops.products import HostOperator
from learnsolve.ops.program import Operand


class Part(NamedTuple):
    """A tensor, a CSR, or a sequence of them, that defines a preconditioner and can be learned.

    Attributes
    ----------
    value : the current value, without entries that are never read
    positive : the entries that `Trainable(positive=)` keeps positive: "all"; the "diagonal" of a CSR,
        or its "absolute diagonal", which keeps its signs; "" for nothing
    default : learned if a `Trainable` is given no names
    state : in the state dict even if not learned, since the others are meaningless without it
    """

    value: Any
    positive: str = ""
    default: bool = True
    state: bool = False


# Of another library or dense, also for a class of a user.
_ANY_MATRIX = checks.Rule(
    lambda function, name, value: checks.with_entries(checks.convert_matrix(value)), "a matrix"
)


class Preconditioner:
    """M(r) ~ A^-1 r, for r of shape (n,) or (..., n, k).

    Attributes
    ----------
    shape : (n, n)
    linear : bool, M(r) is a matrix times r
    symmetric : bool, <M x, y> = <x, M y>: suitable for `cg` and `minres` (if M is also positive definite)
    T : the transpose, a Preconditioner, or itself if `symmetric`
    dtype, device : the dtype and device of its tensors
    batch_shape : batch axes of the matrices that it is computed from
    depends_on : the tensors that it depends on and that may require grad

    Examples
    --------
    A subclass defines the product with blocks of columns (docs/extending.md):

    >>> import torch, learnsolve as ls
    >>> class Diagonal(ls.preconditioners.Preconditioner):
    ...     symmetric = True
    ...
    ...     def __init__(self, A):
    ...         super().__init__(A)
    ...         self.inverse = 1 / A.diagonal().unsqueeze(-1)
    ...
    ...     def mv(self, R):
    ...         return self.inverse * R
    >>> A, b = ls.problems.poisson((8, 8)), torch.ones(64, dtype=torch.float64)
    >>> ls.solvers.cg(A, b, M=Diagonal(A)).converged
    True
    """

    linear: bool = True
    takes_complex: bool = False
    symmetric: bool = False
    by_columns = True  # for solvers: M of some columns are columns of M of all
    shape: tuple[int, int]
    batch_shape: torch.Size = torch.Size()
    depends_on: tuple[Tensor, ...] = ()
    _factor: tuple[CSR | None] | None = None  # set by `_kept_factor`

    def __init_subclass__(cls, **keywords: object) -> None:
        super().__init_subclass__(**keywords)
        checks.export_methods(cls, "__init__", defaults={"A": _ANY_MATRIX})

    def __init__(self, A: CSR | None = None, *others: object, finite: bool = True):
        """For a preconditioner computed from the square matrix A and `others`, tensors or floats."""
        name = type(self).__name__
        if A is None:
            raise TypeError(
                f"{name}: A is missing, the matrix that it is made for. Call {name}(A), or, in a "
                "constructor, super().__init__(A)"
            )
        checks.matrix(name, "A", A)
        checks.dtype(name, "A.values", A.values, self.takes_complex)
        checks.square(name, "A", A.shape)
        if finite:
            check_finite(name, A)
        self.shape, self.batch_shape = A.shape, A.batch_shape
        self.depends_on = (A.values, *(t for t in others if isinstance(t, Tensor)))

    def mv(self, R: Tensor) -> Tensor:
        """M R for blocks of columns R, (..., n, k), unchecked."""
        raise NotImplementedError(f"{type(self).__name__} must define mv")

    def rmv(self, R: Tensor) -> Tensor:
        """M^T R, without conjugation."""
        if self.symmetric:
            return self.mv(R)
        raise NotImplementedError(f"{type(self).__name__} must define rmv")

    @classmethod
    def _construct(cls, **attributes: object) -> Self:
        """A preconditioner with these attributes, unchecked."""
        M = cls.__new__(cls)
        vars(M).update(attributes)
        return M

    def _reference_tensor(self) -> Tensor | None:
        """A tensor with M's dtype and device, if any: one that M is computed from, or an attribute."""
        numbers = (t for t in self._tensors() if t.is_floating_point())
        return next(itertools.chain(self.depends_on, numbers), None)

    def _tensors(self) -> Iterator[Tensor]:
        """Of its attributes, and those that an inner preconditioner depends on."""
        for value in vars(self).values():
            if isinstance(value, Preconditioner):
                yield from value.depends_on
            elif isinstance(value, (Tensor, CSR)):
                yield value.values if isinstance(value, CSR) else value

    def _require_reference(self) -> Tensor:
        like = self._reference_tensor()
        if like is None:
            raise TypeError(
                f"{type(self).__name__}: has no dtype and device. Set depends_on to the tensors that it "
                "computes with"
            )
        return like

    @property
    def dtype(self) -> torch.dtype:
        return self._require_reference().dtype

    @property
    def device(self) -> torch.device:
        return self._require_reference().device

    @property
    def T(self) -> Preconditioner:
        if not self.linear:
            raise ValueError(f"{type(self).__name__}: is not linear and has no transpose. Use fcg or fgmres")
        return self if self.symmetric else TransposedPreconditioner(self)

    def learnable(self) -> dict[str, Part]:
        """The parts that `Trainable` can learn, by attribute name."""
        return {}

    def with_tensors(self, tensors: dict[str, Any]) -> Preconditioner:
        """M with these values of its `learnable` parts, unchecked. It depends on them alone. Without a part
        (None) it is `symmetric` if it is for all values of the part."""
        given = (v.values if isinstance(v, CSR) else v for v in tensors.values() if v is not None)
        return self._construct(**{**vars(self), **tensors, "depends_on": tuple(given), "_factor": None})

    def _convert(self, **kind: object) -> Preconditioner:
        """A copy with another dtype or device."""
        return self._construct(**{k: _convert_part(v, kind) for k, v in vars(self).items() if k != "_factor"})

    def pcg_form(self) -> tuple[str, Tensor, Any] | None:
        """(kind, m, factor) for the compiled loop of `cg` (ops/pcg.py), or None."""
        return None

    def operands(self, transpose: bool) -> Sequence[Operand] | None:
        """What M or M^T multiplies a vector with, one after another, for recorded methods (ops/program.py),
        where `pcg_form` has none; or None."""
        return None

    def _record(self, transpose: bool) -> tuple[Callable, Sequence[CSR], Sequence[Tensor]] | None:
        """M or M^T as a function that can be recorded as `LinearSteps`, with its operands, or None."""
        return None

    def _kept_factor(self, make: Callable[[], CSR | None]) -> CSR | None:
        """`make()`, cached, since every solve needs it: on the CPU, while M depends on nothing that requires
        grad. On a device other streams would have to wait for it."""
        if any(t.requires_grad or t.is_inference() or not t.is_cpu for t in self.depends_on):
            return make()
        if self._factor is None:
            self._factor = (make(),)
        return self._factor[0]

    def forward(self, r: Tensor) -> Tensor:
        """M r, with r's shape, (n,) or (..., n, k)."""
        name = type(self).__name__
        checks.tensor(name, "r", r)
        like = self.depends_on[0] if self.depends_on else r
        if r.dtype != like.dtype or r.device != like.device:
            checks.check_real(name, "r", r.dtype)
            raise TypeError(
                f"{name}: r must be {like.dtype} on {like.device}, as the preconditioner is, got {r.dtype} "
                f"on {r.device}. Convert one with .to()"
            )
        if r.dim() == 0 or r.shape[0 if r.dim() == 1 else -2] != self.shape[0]:
            raise ValueError(
                f"{name}: r must have shape ({self.shape[0]},) or (..., {self.shape[0]}, k), got "
                f"{tuple(r.shape)}"
            )
        if r.dim() > 1:
            if self.batch_shape:
                checks.batches(name, self.batch_shape, r.shape[:-2], "the preconditioner and r")
            return self.mv(r)
        if self.batch_shape:
            raise ValueError(
                f"{name}: for a batch of matrices r must have shape (..., n, k), got {tuple(r.shape)}. "
                "r.unsqueeze(-1) is one column for all"
            )
        return self.mv(r.unsqueeze(-1)).squeeze(-1)

    def __call__(self, r: Tensor) -> Tensor:
        """M r, like `forward`."""
        return self.forward(r)

    def to_scipy_linear_operator(self) -> scipy.sparse.linalg.LinearOperator:
        """M for SciPy's solvers, on the host and without gradient, in float64 if M has no dtype."""
        if not self.linear:
            raise ValueError(f"{type(self).__name__}: is not linear, so it cannot be a LinearOperator")
        like = self._reference_tensor()
        if like is None:
            like = torch.empty(0, dtype=torch.float64, device="cpu")
        return HostOperator(self, _apply_on_host, like)


class TransposedPreconditioner(Preconditioner):
    """The transpose of another preconditioner."""

    def __init__(self, M: Preconditioner):
        self.M = M
        self.shape, self.batch_shape, self.depends_on = M.shape, M.batch_shape, M.depends_on

    def mv(self, R: Tensor) -> Tensor:
        return self.M.rmv(R)

    def rmv(self, R: Tensor) -> Tensor:
        return self.M.mv(R)

    def operands(self, transpose: bool) -> Sequence[Operand] | None:
        return self.M.operands(not transpose)

    def _reference_tensor(self) -> Tensor | None:
        return self.M._reference_tensor()

    @property
    def T(self) -> Preconditioner:
        return self.M

    def __repr__(self) -> str:
        return f"Transposed({self.M!r})"


def check_finite(function: str, A: CSR, name: str = "A") -> None:
    """Raise for NaN or infinity in A, if its values are `readable`."""
    if not readable(A.values):
        return
    v = A.values.detach()
    if cmath.isfinite(v.sum().item()):  # one pass; a sum of finite values may still overflow
        return
    if not (bad := ~v.isfinite()).any():
        return
    at: list[int] = bad.nonzero()[0].tolist()
    which = f", matrix {at[0] if len(at) == 2 else tuple(at[:-1])} of the batch" if len(at) > 1 else ""
    row = int(A.pattern.row_indices[at[-1]])
    raise ValueError(
        f"{function}: {name}'s values must be finite, got {v[tuple(at)].item()} in row {row}{which}. Find "
        "out where it comes from"
    )


def finite(function: str, name: str, t: Tensor) -> None:
    """Raise for NaN or infinity in a tensor whose values can be read."""
    if bool((good := t.detach().isfinite()).all()):
        return
    at: list[int] = (~good).nonzero()[0].tolist()
    where = f" at index {', '.join(map(str, at))}" if at else ""
    raise ValueError(
        f"{function}: {name} must be finite, got {t.detach()[tuple(at)].item()}{where}. Find out where it "
        "comes from"
    )


def check_constants(tensors: Iterable[Tensor]) -> None:
    """The fixed tensors of a `Trainable` must have no graph, which its first backward would free."""
    if any(t.requires_grad or forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        raise ValueError(
            "Trainable: M depends on a tensor that requires grad and is not learned, whose autograd graph "
            "would be freed by the first step. Make M from A.detach(), or use M itself, which stays attached "
            "to the graph"
        )


def check_numbers(function: str, A: CSR) -> None:
    """Raise if A has no values (is on the meta device)."""
    if A.values.is_meta:
        raise NotImplementedError(
            f"{function}: needs A's values, but a matrix on {A.device} has no values. Use a matrix on the "
            "CPU or on a CUDA device"
        )


def _convert_part(value: object, kind: dict[str, Any]) -> Any:
    if isinstance(value, Preconditioner) and not isinstance(value, torch.nn.Module):
        return value._convert(**kind)
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(_convert_part(v, kind) for v in value)
    if isinstance(value, CSR) or (isinstance(value, Tensor) and value.is_floating_point()):
        return value.to(**kind)
    return value


def _apply_on_host(M: Preconditioner, X: Tensor, transpose: bool) -> Tensor:
    return (M.T if transpose else M)(X)
