"""`LinearOperator`: what solvers see of a matrix, and the base of matrices without stored entries."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.convert import conjugate
from learnsolve.matrix.csr import CSR
from learnsolve.ops.complex_values import tall, untall
from learnsolve.ops.products import product, sddmm_values, spmm
from learnsolve.ops.structure import transpose

Map = Callable[[Tensor], Tensor]  # of blocks of columns


class LinearOperator:
    r"""A matrix that is given by its products :math:`A_\theta x`, for all solvers, with all gradients.

    A subclass passes its shape and the tensors :math:`\theta` that it computes with to ``__init__``, and
    defines ``mv``. Products with the transpose and all derivatives of a solve for :math:`\theta` follow.
    Operators can be added, scaled by a number or a tensor of one element, and multiplied, with a `CSR` too.

    Parameters
    ----------
    shape : (m, n)
    parameters : Tensors of floats. ``mv`` receives them after x and must use no other tensor that requires
        grad, nor them by another name

    Attributes
    ----------
    T, H : the transposed and the conjugate transposed operator
    symmetric : bool. A class, or an object, that sets it to True is its own transpose

    Raises
    ------
    TypeError, ValueError
        if x, or a product, has another number of rows, dtype or device.

    Notes
    -----
    ``mv(x, *parameters)`` maps blocks of columns (..., n, k) to (..., m, k), linearly, which is not checked.
    ``rmv(y, *parameters)``, the product with the transpose (without conjugation), can be defined too: by
    default it is the derivative of ``mv``. So can ``csr(*parameters)``, for what reads entries.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> class Convolution(ls.LinearOperator):
    ...     def mv(self, x, kernel):
    ...         return torch.nn.functional.conv1d(x.mT.unsqueeze(-2), kernel, padding=1).squeeze(-2).mT
    >>> kernel = torch.tensor([[[-1.0, 2.5, -1.0]]], dtype=torch.float64, requires_grad=True)
    >>> A, b = Convolution((50, 50), kernel), torch.ones(50, dtype=torch.float64)
    >>> x = ls.solvers.cg(A, b, rtol=1e-10).x
    >>> x.sum().backward()
    >>> bool((kernel.grad < 0).all())
    True
    """

    shape: tuple[int, int]
    parameters: tuple[Tensor, ...] = ()
    batch_shape = torch.Size()  # batch axes that are known
    symmetric = False
    turned = False  # whether this is the transpose of what `mv` says
    is_linear_operator = True  # for code below this layer
    watched = True  # whether `mv` may use tensors that are not parameters, which a solve looks for
    in_solve = False  # whether products must have the batch axes of x
    takes_complex = True
    by_columns = True  # whether products with some columns are columns of the product with all

    __array_ufunc__ = None  # NumPy leaves `array @ A` to __rmatmul__

    def __init__(self, shape: tuple[int, int], *parameters: Tensor):
        name = type(self).__name__
        sizes = [checks.integer(name, "shape", n, 0) for n in checks.sequence(name, "shape", shape, "ints")]
        if len(sizes) != 2:
            raise ValueError(f"{name}: shape must be (rows, columns), got {shape}")
        for i, p in enumerate(parameters):
            checks.tensor(name, f"parameters[{i}]", p)
            if not (p.is_floating_point() or p.is_complex()):
                raise TypeError(
                    f"{name}: parameters[{i}] must be a tensor of floats, got {p.dtype}. Keep one without "
                    "derivatives as an attribute"
                )
        self.shape = (sizes[0], sizes[1])
        self.parameters = parameters

    def mv(self, x: Tensor, *parameters: Tensor) -> Tensor:
        """A x for blocks of columns x, (..., n, k)."""
        raise NotImplementedError(f"{type(self).__name__} must define mv(x, *parameters)")

    def rmv(self, y: Tensor, *parameters: Tensor) -> Tensor:
        """A^T y for blocks of columns y, (..., m, k): the derivative of `mv`, which is linear."""
        if self.symmetric:
            return self.mv(y, *parameters)
        n = self.shape[0 if self.turned else 1]
        start = y.new_zeros((*y.shape[:-2], n, y.shape[-1]))
        return conjugate(_pullback(lambda x: self.mv(x, *parameters), start)(conjugate(y))[0])

    def csr(self, *parameters: Tensor) -> CSR | None:
        """A as a CSR, if a class knows its entries."""
        return None

    def known_csr(self) -> CSR | None:
        made, name = self.csr(*self.parameters), f"{type(self).__name__}.csr"
        if made is None:
            return None
        checks.matrix(name, "its result", made)
        shape = self.shape[::-1] if self.turned else self.shape
        if made.shape != shape:
            raise ValueError(f"{name}: its result must have shape {shape}, as mv has, got {made.shape}")
        return made.T if self.turned else made

    def to_csr(self) -> CSR:
        """The matrix as a CSR, differentiable. TypeError if its class does not define ``csr``."""
        known = self.known_csr()
        if known is None:
            checks.matrix(f"{type(self).__name__}.to_csr", "the operator", self)
        return known  # type: ignore[return-value]

    @property
    def T(self) -> Self:
        other = self.with_parameters(self.parameters)
        other.shape, other.turned = (self.shape[1], self.shape[0]), not self.turned
        return other

    @property
    def H(self) -> LinearOperator:
        return _Conjugate(self.T)  # of real vectors the same as T

    def with_parameters(self, parameters: tuple[Tensor, ...]) -> Self:
        """The same operator with other tensors."""
        other = copy.copy(self)
        other.parameters = tuple(parameters)
        other.__dict__.pop("apply", None)  # what a solve watches
        return other

    def apply(self, x: Tensor, /) -> Tensor:
        """A x for blocks of columns."""
        return (self.rmv if self.turned else self.mv)(x, *self.parameters)

    def __call__(self, x: Tensor) -> Tensor:
        name = type(self).__name__
        checks.tensor(name, "x", x)
        checks.rows(name, "x", x, "A", self.shape, 1)
        if x.dim() == 1:
            return self(x.unsqueeze(-1)).squeeze(-1)
        y, rows = self.apply(x), (*x.shape[:-2], self.shape[0], x.shape[-1])
        checks.tensor(name, "a product", y)
        if y.shape[-2:] != rows[-2:]:
            raise ValueError(
                f"{name}: a product with x of shape {tuple(x.shape)} must have {rows[-2:]} rows and columns, "
                f"got shape {tuple(y.shape)}. mv takes and returns blocks of columns"
            )
        if self.in_solve and y.shape != rows:
            raise ValueError(
                f"{name}: in a solve a product with x of shape {tuple(x.shape)} must have shape {rows}, got "
                f"{tuple(y.shape)}. For a batch of operators b must have shape (..., n, k), with their axes"
            )
        if y.dtype != x.dtype or y.device != x.device:
            raise TypeError(
                f"{name}: a product must be {x.dtype} on {x.device}, as x is, got {y.dtype} on {y.device}. "
                "Convert the parameters"
            )
        return y

    def __matmul__(self, x: Any) -> Any:
        x = checks.sparse_matrix(x)
        return _Product(self, wrap_operator(x)) if isinstance(x, (LinearOperator, CSR)) else self(x)

    def __rmatmul__(self, A: object) -> Any:
        if isinstance(A, Tensor):  # x A = (A^T x^T)^T
            return self.T @ A if A.dim() == 1 else (self.T @ A.mT).mT
        return _Product(wrap_operator(A), self)

    def __add__(self, other: LinearOperator | CSR) -> LinearOperator:
        return _Sum(self, wrap_operator(other))

    __radd__ = __add__

    def __sub__(self, other: LinearOperator | CSR) -> LinearOperator:
        return self + -1.0 * wrap_operator(other)

    def __rsub__(self, other: CSR) -> LinearOperator:
        return wrap_operator(other) + -1.0 * self

    def __mul__(self, scale: float | Tensor) -> LinearOperator:
        return _ScaledOperator(self, scale)

    __rmul__ = __mul__

    def __truediv__(self, scale: float | Tensor) -> LinearOperator:
        return self * (1 / scale)

    def __neg__(self) -> LinearOperator:
        return -1.0 * self

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape})"

    @property
    def depends_on(self) -> tuple[Tensor, ...]:
        return self.parameters

    # What the implicit gradient and the criteria of solvers ask.

    def to_operator(self, function: str, b: Tensor, square: bool = True) -> LinearOperator:
        if not hasattr(self, "shape"):
            raise TypeError(
                f"{function}: A has no shape. {type(self).__name__}.__init__ must call "
                "super().__init__(shape, *parameters)"
            )
        if square:
            checks.square(function, "A", self.shape)
        checks.rows(function, "b", b, "A", self.shape)
        other = copy.copy(self)
        other.in_solve = True
        return other

    def pullback(self, y: Tensor, x: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of y^T A x for the parameters, differentiable: its conjugate derivative."""
        if not self.parameters:
            return ()
        return _pullback(lambda *p: self.with_parameters(p).apply(x), *self.parameters)(conjugate(y))

    def pushforward(self, x: Tensor, tangents: tuple[Tensor | None, ...]) -> Tensor:
        """dA x, for a change of the parameters: the pullback, linear in y, pulled back."""
        pairs = zip(self.parameters, tangents, strict=True)
        moved = [torch.zeros_like(p) if t is None else t for p, t in pairs]
        pull = _pullback(lambda *p: self.with_parameters(p).apply(x), *self.parameters)
        zero = x.new_zeros((*x.shape[:-2], self.shape[0], x.shape[-1]))
        return _pullback(pull, zero)(tuple(moved))[0]

    def add_batch_axis(self, axes: tuple[int | None, ...]) -> LinearOperator:
        """Of parameters with a mapped axis each, or None: an operator for each, on blocks (B, ..., n, k)."""
        return _BatchOperator(self, axes)

    def divide_entries(self, unit: Tensor) -> LinearOperator:
        """A / unit, (..., 1, 1), a constant."""
        return InUnits(self, unit)

    def largest_entry(self) -> Tensor | None:
        """The largest entry, (..., 1, 1), if it is known."""
        return None

    def magnitude(self, x: Tensor) -> Tensor | None:
        """The product of the moduli of A and of x, if the entries are known."""
        return None

    def frobenius(self) -> Tensor | None:
        """The Frobenius norm, (..., 1, 1), if it is known."""
        return None

    def core(self) -> int | None:
        """The number of axes of the parameter that are not batch axes, if it may have such axes."""
        return None


def _pullback(f: Callable[..., object], *at: Tensor) -> Callable[..., tuple[Tensor, ...]]:
    return torch.func.vjp(f, *at)[1]


def wrap_operator(A: Any) -> LinearOperator:
    A = checks.sparse_matrix(A)
    if isinstance(A, LinearOperator):
        return A
    checks.matrix("LinearOperator", "A", A, ". A sum or a product takes a CSR or an operator")
    return Matrix(A)


class Matrix(LinearOperator):
    """A CSR or its transpose. In a solve, which has checked its arguments, products are not checked."""

    watched = False

    def __init__(self, A: CSR, transpose: bool = False):
        self.A, self.transpose, self.parameters = A, transpose, (A.values,)
        m, n = A.shape
        self.shape = (n, m) if transpose else (m, n)

    def __call__(self, x: Tensor) -> Tensor:
        return product(self.A.values, x, self.A.pattern, self.transpose)

    def __matmul__(self, x: object) -> Any:
        return spmm(self.A, x, transpose=self.transpose) if isinstance(x, Tensor) else super().__matmul__(x)

    @property
    def T(self) -> Matrix:
        return Matrix(self.A, not self.transpose)

    def known_csr(self) -> CSR:
        return transpose(self.A) if self.transpose else self.A

    def with_parameters(self, parameters: tuple[Tensor, ...]) -> Matrix:
        return Matrix(self.A.with_values(parameters[0]), self.transpose)

    def pullback(self, y: Tensor, x: Tensor) -> tuple[Tensor | None, ...]:
        u, w = (x, y) if self.transpose else (y, x)
        return (conjugate(sddmm_values(u, w, self.A.pattern).sum_to_size(self.A.values.shape)),)

    def pushforward(self, x: Tensor, tangents: tuple[Tensor | None, ...]) -> Tensor:
        assert tangents[0] is not None
        return product(tangents[0], x, self.A.pattern, self.transpose)

    def largest_entry(self) -> Tensor | None:
        values = self.A.values.detach()
        return None if values.shape[-1] == 0 else values.abs().amax(-1)[..., None, None]

    def magnitude(self, x: Tensor) -> Tensor | None:
        return product(self.A.values.detach().abs(), x.abs(), self.A.pattern, self.transpose)

    def frobenius(self) -> Tensor | None:
        if (unit := self.largest_entry()) is None:
            return None
        unit = torch.where((unit > 0) & unit.isfinite(), unit, 1)  # squares may leave the range of the dtype
        values = self.A.values.detach().unsqueeze(-1)
        return unit * torch.linalg.vector_norm(values / unit, dim=-2, keepdim=True)

    def core(self) -> int:
        return 1

    def divide_entries(self, unit: Tensor) -> Matrix:
        """Divide all entries by one scalar per matrix, (..., 1, 1)."""
        return Matrix(self.A.with_values(self.A.values / unit.squeeze(-1)), self.transpose)


class _Composite(LinearOperator):
    """An operator on top of others, whose parameters are theirs, one after another."""

    def __init__(self, shape: tuple[int, int], *parts: LinearOperator, factor: Tensor | None = None):
        others = () if factor is None else (factor,)
        super().__init__(shape, *(p for part in parts for p in part.parameters), *others)
        self.parts, self.of_parts = parts, self.parameters

    def of(self, parameters: tuple[Tensor, ...]) -> Sequence[LinearOperator]:
        if all(map(operator.is_, parameters, self.of_parts)):
            return self.parts
        found, at = [], 0
        for part in self.parts:
            found.append(part.with_parameters(parameters[at : (at := at + len(part.parameters))]))
        return found

    def csr(self, *parameters: Tensor) -> CSR | None:
        known = [A for part in self.of(parameters) if (A := part.known_csr()) is not None]
        return self.of_matrices(parameters, *known) if len(known) == len(self.parts) else None

    def of_matrices(self, parameters: tuple[Tensor, ...], *matrices: CSR) -> CSR | None:
        """The CSR that is made of those of the parts."""
        return None


class _Sum(_Composite):
    def __init__(self, A: LinearOperator, B: LinearOperator):
        if A.shape != B.shape:
            raise ValueError(f"LinearOperator: A + B needs equal shapes, got {A.shape} and {B.shape}")
        super().__init__(A.shape, A, B)
        self.symmetric = A.symmetric and B.symmetric

    def mv(self, x: Tensor, *parameters: Tensor) -> Tensor:
        A, B = self.of(parameters)
        return A @ x + B @ x

    def rmv(self, y: Tensor, *parameters: Tensor) -> Tensor:
        A, B = self.of(parameters)
        return A.T @ y + B.T @ y

    def of_matrices(self, parameters: tuple[Tensor, ...], *matrices: CSR) -> CSR:
        return matrices[0] + matrices[1]


class _Product(_Composite):
    def __init__(self, A: LinearOperator, B: LinearOperator):
        if A.shape[1] != B.shape[0]:
            raise ValueError(f"LinearOperator: A @ B needs fitting shapes, got {A.shape} and {B.shape}")
        super().__init__((A.shape[0], B.shape[1]), A, B)

    def mv(self, x: Tensor, *parameters: Tensor) -> Tensor:
        A, B = self.of(parameters)
        return A @ (B @ x)

    def rmv(self, y: Tensor, *parameters: Tensor) -> Tensor:
        A, B = self.of(parameters)
        return B.T @ (A.T @ y)

    def of_matrices(self, parameters: tuple[Tensor, ...], *matrices: CSR) -> CSR:
        return matrices[0] @ matrices[1]


class _ScaledOperator(_Composite):
    def __init__(self, A: LinearOperator, scale: float | Tensor):
        self.number = (
            None if isinstance(scale, Tensor) else checks.number("LinearOperator", "a factor", scale)
        )
        if isinstance(scale, Tensor) and scale.numel() != 1:
            raise ValueError(f"LinearOperator: a factor must have one element, got {tuple(scale.shape)}")
        super().__init__(A.shape, A, factor=scale.reshape(()) if isinstance(scale, Tensor) else None)
        self.symmetric = A.symmetric

    def mv(self, x: Tensor, *parameters: Tensor) -> Tensor:
        return self.of(parameters)[0] @ x * self.factor(parameters)

    def rmv(self, y: Tensor, *parameters: Tensor) -> Tensor:
        return self.of(parameters)[0].T @ y * self.factor(parameters)

    def of_matrices(self, parameters: tuple[Tensor, ...], *matrices: CSR) -> CSR:
        return matrices[0].with_values(matrices[0].values * self.factor(parameters))

    def factor(self, parameters: tuple[Tensor, ...]) -> float | Tensor:
        return parameters[-1] if self.number is None else self.number


class _Conjugate(_Composite):
    def __init__(self, A: LinearOperator):
        super().__init__(A.shape, A)

    def mv(self, x: Tensor, *parameters: Tensor) -> Tensor:
        return conjugate(self.of(parameters)[0](conjugate(x)))

    def rmv(self, y: Tensor, *parameters: Tensor) -> Tensor:
        return conjugate(self.of(parameters)[0].T(conjugate(y)))


class RealForm(_Composite):
    """A complex A on the real vectors of ops/complex_values.py."""

    def __init__(self, A: LinearOperator):
        super().__init__((2 * A.shape[0], 2 * A.shape[1]), A)

    def mv(self, x: Tensor, *parameters: Tensor) -> Tensor:
        return tall(self.of(parameters)[0](untall(x)))

    def rmv(self, y: Tensor, *parameters: Tensor) -> Tensor:
        return tall(self.of(parameters)[0].H(untall(y)))


class InUnits(LinearOperator):
    """A, whose products are divided by a unit that no reciprocal may stand for."""

    def __init__(self, A: LinearOperator, unit: Tensor):
        self.A, self.unit, self.parameters, self.by_columns = A, unit, A.parameters, A.by_columns

    def __call__(self, x: Tensor) -> Tensor:
        return self.A(x) / self.unit

    @property
    def T(self) -> InUnits:
        return InUnits(self.A.T, self.unit)

    def magnitude(self, x: Tensor) -> Tensor | None:
        y = self.A.magnitude(x)
        return None if y is None else y / self.unit

    def frobenius(self) -> Tensor | None:
        norm = self.A.frobenius()
        return None if norm is None else norm / self.unit


class Between:
    """An M of solvers between two maps of columns that are diagonal, hence their own transposes."""

    def __init__(self, M: Any, before: Map, after: Map):
        self.M, self.before, self.after = M, before, after

    def __call__(self, r: Tensor) -> Tensor:
        return self.after(self.M(self.before(r)))

    @property
    def T(self) -> Between:
        return Between(self.M.T, self.before, self.after)


class _BatchOperator(LinearOperator):
    def __init__(self, A: LinearOperator, axes: tuple[int | None, ...]):
        super().__init__(A.shape, *A.parameters)
        self.A, self.axes = A, axes

    def mv(self, x: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.vmap(lambda x, *p: self.A.with_parameters(p)(x), (0, *self.axes))(x, *parameters)

    def rmv(self, y: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.vmap(lambda y, *p: self.A.with_parameters(p).T(y), (0, *self.axes))(y, *parameters)
