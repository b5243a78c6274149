"""What every preconditioner has: checks of its argument, a transpose, flags, a form for SciPy.

A subclass defines what it does with blocks of columns, (..., n, k); docs/extending.md has an example:

    _columns(R)       M R
    _transposed(R)    M^T R; not needed if the preconditioner is `symmetric`, or not `linear`

One that is computed from a matrix keeps what it computed (with its graph, so that unrolled solvers
differentiate through it) and is rebuilt when the matrix changes; this is cheap, since patterns keep the
plans. `Trainable` (learned/trainable.py) makes a torch.nn.Module of one: its parameters are what `_learnable`
names and `_with` puts back.

Some of the first kind read A's values in every call, in addition to what they computed once (`SOR`, `SSOR`,
`Neumann`, `Chebyshev`, `AMG`). They read a copy: after a change of the values in place, of which torch's
versions do not always tell, they would mix old and new ones. All continue with the matrix as it was.
"""

from __future__ import annotations

import cmath
import functools
import inspect
import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, Self

import scipy.sparse.linalg
import torch
from torch import Tensor
from torch.autograd import forward_ad

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.inputs import matrix
from learnsolve.matrix.plain import readable
from learnsolve.ops.core.linear_operator import HostOperator


class Part(NamedTuple):
    """A tensor, a CSR, or a sequence of them, that a preconditioner is computed from and that can be learned.

    Attributes
    ----------
    value : as it is; without the entries that are never read
    positive : what `Trainable(positive=)` maps to positive numbers: "all" entries; the "diagonal" of a CSR,
        or its "absolute diagonal", which keeps its signs; "" for nothing
    default : learned where a `Trainable` is given no names
    state : in the state dict also where it is not learned, since the others mean nothing without it
    """

    value: Any
    positive: str = ""
    default: bool = True
    state: bool = False


class Preconditioner:
    """M(r) ~ A^-1 r, for r of shape (n,) or (..., n, k).

    Attributes
    ----------
    shape : (n, n)
    linear : bool, M(r) is a matrix times r
    symmetric : bool, <M x, y> = <x, M y>: fit for `cg` and `minres` (which need M positive definite as well)
    T : the transpose, a Preconditioner; itself if `symmetric`
    dtype, device : of the tensors that it computes with
    batch_shape : batch axes of the matrices that it is made of
    depends_on : the tensors that it depends on and that may require gradients

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
    ...     def _columns(self, R):
    ...         return self.inverse * R
    >>> A, b = ls.problems.poisson((8, 8)), torch.ones(64, dtype=torch.float64)
    >>> ls.solvers.cg(A, b, M=Diagonal(A)).converged
    True
    """

    linear: bool = True
    symmetric: bool = False
    shape: tuple[int, int]
    batch_shape: torch.Size = torch.Size()
    depends_on: tuple[Tensor, ...] = ()
    _factor: tuple[CSR | None] | None = None  # by `_kept_factor`

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "__init__" in vars(cls):
            cls.__init__ = _takes_matrices(cls.__init__)  # type: ignore[method-assign]

    def __init__(self, A: CSR, *others: Any, finite: bool = True):
        """For a preconditioner made of the square matrix A and of `others`, tensors or floats."""
        name = type(self).__name__
        checks.matrix(name, "A", A)
        checks.dtype(name, "A.values", A.values)
        checks.square(name, "A", A.shape)
        if finite:
            check_finite(name, A)
        self.shape, self.batch_shape = A.shape, A.batch_shape
        self.depends_on = (A.values, *(t for t in others if isinstance(t, Tensor)))

    def _columns(self, R: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} must define _columns")

    def _transposed(self, R: Tensor) -> Tensor:
        if self.symmetric:
            return self._columns(R)
        raise NotImplementedError(f"{type(self).__name__} must define _transposed")

    @classmethod
    def _trusted(cls, **attributes: Any) -> Self:
        """One with these attributes, unchecked."""
        M = cls.__new__(cls)
        vars(M).update(attributes)
        return M

    def _like(self) -> Tensor | None:
        """A tensor of the dtype and on the device of M, if it has any: of those that it is made of, or else
        of its attributes."""
        held = (a.values if isinstance(a, CSR) else a for a in vars(self).values())
        numbers = (t for t in held if isinstance(t, Tensor) and t.is_floating_point())
        return next(itertools.chain(self.depends_on, numbers), None)

    def _of_one_kind(self) -> Tensor:
        like = self._like()
        if like is None:
            raise TypeError(
                f"{type(self).__name__}: has no dtype and device; set depends_on to the tensors that it "
                "computes with"
            )
        return like

    @property
    def dtype(self) -> torch.dtype:
        return self._of_one_kind().dtype

    @property
    def device(self) -> torch.device:
        return self._of_one_kind().device

    @property
    def T(self) -> Preconditioner:
        if not self.linear:
            raise ValueError(f"{type(self).__name__}: is not linear and has no transpose; use fcg or fgmres")
        return self if self.symmetric else Transposed(self)

    def _learnable(self) -> dict[str, Part]:
        """What `Trainable` can learn, by the name of the attribute."""
        return {}

    def _without(self, names: Collection[str]) -> Preconditioner:
        """M without these parts, symmetric where it is for all values of them."""
        gone = [v.values if isinstance(v, CSR) else v for v in map(vars(self).get, names)]
        check_constants(t for t in self.depends_on if all(t is not v for v in gone))
        rest = {k: v for k, v in vars(self).items() if k not in (*names, "_factor", "depends_on")}
        return self._trusted(**rest)

    def _with(self, parts: dict[str, Any]) -> Preconditioner:
        """What `_without` has left, with these values of the parts, unchecked."""
        tensors = tuple(v.values if isinstance(v, CSR) else v for v in parts.values())
        return self._trusted(**{**vars(self), **parts, "depends_on": tensors})

    def _converted(self, **kind: Any) -> Preconditioner:
        """In another dtype and on another device."""
        return self._trusted(**{k: _converted(v, kind) for k, v in vars(self).items() if k != "_factor"})

    def pcg_form(self) -> tuple[str, Tensor, Any] | None:
        """(kind, m, factor) for the compiled loop of `cg` (ops/pcg.py), or None."""
        return None

    def _recorded(self, transpose: bool) -> tuple[Callable, Sequence[CSR], Sequence[Tensor]] | None:
        """M or M^T as a function that can be written down as `LinearSteps`, with what it reads; or None."""
        return None

    def _kept_factor(self, make: Callable[[], CSR | None]) -> CSR | None:
        """`make()`, cached, since solvers need it in every solve: on the CPU, while nothing that M is made
        of requires a gradient. On a device other streams would have to wait for it."""
        if any(t.requires_grad or t.is_inference() or not t.is_cpu for t in self.depends_on):
            return make()
        if self._factor is None:
            self._factor = (make(),)
        return self._factor[0]

    def forward(self, r: Tensor) -> Tensor:
        """M r, of r's shape, (n,) or (..., n, k)."""
        name = type(self).__name__
        checks.tensor(name, "r", r)
        like = self.depends_on[0] if self.depends_on else r
        if r.dtype != like.dtype or r.device != like.device:
            checks.check_real(name, "r", r.dtype)
            raise TypeError(
                f"{name}: r must be {like.dtype} on {like.device}, as the preconditioner is, got {r.dtype} "
                f"on {r.device}; convert one with .to()"
            )
        if r.dim() == 0 or r.shape[0 if r.dim() == 1 else -2] != self.shape[0]:
            raise ValueError(
                f"{name}: r must have shape ({self.shape[0]},) or (..., {self.shape[0]}, k), got "
                f"{tuple(r.shape)}"
            )
        if r.dim() > 1:
            if self.batch_shape:
                checks.batches(name, self.batch_shape, r.shape[:-2], "the preconditioner and r")
            return self._columns(r)
        if self.batch_shape:
            raise ValueError(
                f"{name}: for a batch of matrices r must have shape (..., n, k), got {tuple(r.shape)}; "
                "r.unsqueeze(-1) is one column for all"
            )
        return self._columns(r.unsqueeze(-1)).squeeze(-1)

    def __call__(self, r: Tensor) -> Tensor:
        """M r, as `forward`."""
        return self.forward(r)

    def to_scipy_linear_operator(self) -> scipy.sparse.linalg.LinearOperator:
        """M for SciPy's solvers, on the host and without gradient; in float64 if M has no dtype."""
        if not self.linear:
            raise ValueError(f"{type(self).__name__}: is not linear, so it cannot be a LinearOperator")
        like = self._like()
        if like is None:
            like = torch.empty(0, dtype=torch.float64, device="cpu")
        return HostOperator(self, _applied, like)


def _takes_matrices(make: Callable[..., None]) -> Callable[..., None]:
    """The constructor `make`, whose A may be a matrix of another library (inputs.py)."""
    if list(inspect.signature(make).parameters)[1:2] != ["A"]:
        return make

    @functools.wraps(make)
    def init(self: Any, *args: Any, **keywords: Any) -> None:
        if args:
            args = matrix(args[0]), *args[1:]
        elif "A" in keywords:
            keywords["A"] = matrix(keywords["A"])
        make(self, *args, **keywords)

    return init


class Transposed(Preconditioner):
    """The transpose of another preconditioner."""

    def __init__(self, M: Preconditioner):
        self.M = M
        self.shape, self.batch_shape, self.depends_on = M.shape, M.batch_shape, M.depends_on

    def _columns(self, R: Tensor) -> Tensor:
        return self.M._transposed(R)

    def _transposed(self, R: Tensor) -> Tensor:
        return self.M._columns(R)

    def _like(self) -> Tensor | None:
        return self.M._like()

    @property
    def T(self) -> Preconditioner:
        return self.M

    def __repr__(self) -> str:
        return f"Transposed({self.M!r})"


def check_finite(function: str, A: CSR, name: str = "A") -> None:
    """No NaN and no infinity in A, where its values are `readable`."""
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
        f"{function}: {name}'s values must be finite, got {v[tuple(at)].item()} in row {row}{which}; find "
        "out where it comes from"
    )


def check_constants(tensors: Iterable[Tensor]) -> None:
    """What a `Trainable` keeps has no graph, which the backward of its first training step would free."""
    if any(t.requires_grad or forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        raise ValueError(
            "Trainable: M depends on a tensor that requires grad and is not learned, whose graph would end "
            "with the first step; make M of A.detach(), or use M itself, which keeps the graph"
        )


def check_numbers(function: str, A: CSR) -> None:
    """A holds values (is not on the meta device)."""
    if A.values.is_meta:
        raise NotImplementedError(
            f"{function}: needs A's values, and a matrix on {A.device} has none; use a matrix on the CPU or "
            "on a CUDA device"
        )


def _converted(value: Any, kind: dict[str, Any]) -> Any:
    if isinstance(value, Preconditioner) and not isinstance(value, torch.nn.Module):
        return value._converted(**kind)
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(_converted(v, kind) for v in value)
    if isinstance(value, CSR) or (isinstance(value, Tensor) and value.is_floating_point()):
        return value.to(**kind)
    return value


def _applied(M: Preconditioner, X: Tensor, transpose: bool) -> Tensor:
    return (M.T if transpose else M)(X)
