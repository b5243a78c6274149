"""Arguments of public functions: checks, which name the function, the rule, the value and the remedy;
operands under `torch.autocast`; matrices, vectors and graphs of other libraries."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeGuard, overload

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from learnsolve.arguments import (  # noqa: F401  (used as checks.integer, ...)
    PLAIN,
    UNIONS,
    Rule,
    check_choice,
    check_unused,
    checker,
    choice,
    flag,
    instance,
    integer,
    keywords,
    number,
    read_rules,
    real,
    sequence,
    tolerance,
    words,
)
from learnsolve.matrix import convert
from learnsolve.matrix.cache import carries_graph, makes_plain_tensors
from learnsolve.matrix.convert import TensorLike, check_real, real_on_a_device
from learnsolve.matrix.csr import CSR, is_operator
from learnsolve.matrix.pattern import SparsityPattern, check_range, to_numpy

SUPPORTED = (torch.float32, torch.float64)
COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}  # of the same precision
_COMPLEX = tuple(COMPLEX.values())
MAKE = ". Make one with CSR.from_dense, CSR.from_scipy, CSR.from_torch or CSR.from_coo"
_IN_A_MODULE = "in a module hold it as nn.SparseMatrix(A), which follows the module"


def tensor(function: str, name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        remedy = ". Make one with torch.from_numpy" if isinstance(value, np.ndarray) else graph_remedy(value)
        if isinstance(value, (list, tuple, float, int)):
            remedy = f". Make one with torch.tensor({name}, dtype=A.dtype)"
        raise TypeError(f"{function}: {name} must be a torch.Tensor, got {type(value).__name__}{remedy}")
    if value.layout is not torch.strided:
        raise TypeError(
            f"{function}: {name} must be a dense tensor, got layout {value.layout}. Make a matrix of it with "
            "CSR.from_torch, or call .to_dense()"
        )


def integers(function: str, name: str, value: Any) -> None:
    tensor(function, name, value)
    if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        raise TypeError(f"{function}: {name} must hold integers, got {value.dtype}")


def fits(values: Tensor, x: object, pattern: SparsityPattern) -> bool:
    """Whether x is a plain vector or block of columns for a matrix of one set of values, which passes all
    other checks too: in small calls, they take as long as the rest of the call."""
    return (
        type(x) is Tensor
        and x.dtype is values.dtype
        and x.dtype in SUPPORTED
        and x.layout is torch.strided
        and 0 < x.dim() < 3
        and x.shape[0] == pattern.shape[1]
        and values.shape == (pattern.nnz,)
        and ((x.is_cpu and values.is_cpu) or x.device == values.device)
    )


def matrix(function: str, name: str, A: object, remedy: str = MAKE) -> None:
    if not isinstance(A, CSR):
        if isinstance(getattr(A, "matrix", None), CSR):  # a BlockBatch
            remedy = f". Pass {name}.matrix, its block-diagonal CSR"
        if hasattr(A, "row_range"):  # a petsc.Matrix
            remedy = ". Pass a petsc.Matrix to petsc.spmm, petsc.solve and the solvers (cg, minres, ...)"
        if callable(A) and not isinstance(A, type):  # a LinearOperator, or a function
            remedy = (
                ", which gives products only, and entries are needed. Make a CSR, or define csr(*parameters) "
                "of a LinearOperator. Methods such as cg, minres and gmres need products only"
            )
        remedy = graph_remedy(A) or remedy
        raise TypeError(f"{function}: {name} must be a CSR, got {type(A).__name__}{remedy}")
    if (A.values.shape or (-1,))[-1] != A.pattern.nnz:  # checked when A was made, but tensors can be swapped
        raise ValueError(
            f"{function}: {name}.values has now shape {tuple(A.values.shape)}, the pattern "
            f"{A.pattern.nnz} entries. Make another matrix with learnsolve.CSR(values, pattern)"
        )


def pattern(
    function: str, name: str, value: Any, shape: tuple[int, int] | None = None, like: object = None
) -> None:
    """`value` must be a SparsityPattern, of this shape and on the device of `like`, if given."""
    _is_pattern(function, name, value)
    if shape is not None and value.shape != shape:
        raise ValueError(f"{function}: {name} must have the shape {shape}, got {value.shape}")
    if like is not None:
        one_device(function, name, value, like, "the values")


def graph_remedy(value: object) -> str:
    """The remedy for a graph of PyTorch Geometric given in place of its edges."""
    return ". For this graph pass its .edge_index" if hasattr(value, "edge_index") else ""


def square(function: str, name: str, shape: tuple[int, int]) -> None:
    if shape[0] != shape[1]:
        raise ValueError(f"{function}: {name} must be square, got shape {shape}")


def rows(function: str, name: str, x: Tensor, matrix: str, shape: tuple[int, int], side: int = 0) -> None:
    """`x`, (n,) or (..., n, k), must have as many rows as the size of axis `side` of the matrix."""
    if x.dim() == 0 or x.shape[0 if x.dim() == 1 else -2] != shape[side]:
        raise ValueError(
            f"{function}: {name} must have {matrix}.shape[{side}] = {shape[side]} rows, got shape "
            f"{tuple(x.shape)}"
        )


def dtype(function: str, name: str, value: Tensor, or_complex: bool = False) -> None:
    if value.dtype not in SUPPORTED and not (or_complex and value.dtype in _COMPLEX):
        if not or_complex:
            check_real(function, name, value.dtype)
        supported = "complex64 or complex128" if value.is_complex() else "float32 or float64"
        raise TypeError(
            f"{function}: {name} must be {supported}, got {value.dtype}. Convert it with .to(dtype=...)"
        )


def same_kind(
    function: str, name: str, value: Any, values: Tensor, or_complex: bool = False, of: str = "the matrix"
) -> None:
    """`value` must be a tensor with the dtype and device of `values`, those `of` the matrix. With
    `or_complex` it may be real or complex, with their precision."""
    tensor(function, name, value)
    if value.dtype != values.dtype and not (or_complex and one_precision(value.dtype, values.dtype)):
        if not or_complex:
            check_real(function, name, value.dtype)
        remedy = f"Convert it with .to({values.dtype})"
        if value.dtype in SUPPORTED or (or_complex and value.dtype in _COMPLEX):
            remedy = f"Convert one with .to(), or make the matrix with dtype={value.dtype} ({_IN_A_MODULE})"
        raise TypeError(f"{function}: {name} has dtype {value.dtype}, {of} {values.dtype}. {remedy}")
    if not (value.is_cpu and values.is_cpu):
        if value.device != values.device:
            raise TypeError(
                f"{function}: {name} is on {value.device}, {of} on {values.device}. Move one with "
                f".to() ({_IN_A_MODULE})"
            )
        real_on_a_device(function, name, value)


def one_device(function: str, name: str, value: Any, other: Any, of: str) -> None:
    if value.device != other.device:
        raise TypeError(
            f"{function}: {name} is on {value.device}, {of} on {other.device}. Move one with .to()"
        )


def last_axes(function: str, name: str, value: Any, **sizes: int) -> None:
    """The last axes of a tensor or a matrix must have these sizes."""
    if tuple(value.shape[-len(sizes) :]) != tuple(sizes.values()):
        axes = ", ".join(f"{axis} = {size}" for axis, size in sizes.items())
        raise ValueError(f"{function}: {name} must have shape (..., {axes}), got {tuple(value.shape)}")


def one_precision(a: torch.dtype, b: torch.dtype) -> bool:
    return COMPLEX.get(a, a) == COMPLEX.get(b, b)


def one_dtype(function: str, b: Tensor, values: Tensor) -> None:
    """A complex b and a matrix must have the same dtype."""
    if b.dtype != values.dtype:
        raise TypeError(
            f"{function}: b has dtype {b.dtype}, the matrix {values.dtype}. Convert one of them, for example "
            f"with A.to({b.dtype})"
        )


def batches(function: str, a: torch.Size, b: torch.Size, names: str) -> None:
    """Batch axes `a` and `b`, of the operands `names`, must broadcast."""
    if a and b and any(i != j and i != 1 and j != 1 for i, j in zip(reversed(a), reversed(b), strict=False)):
        raise ValueError(
            f"{function}: the batch axes of {names} must broadcast, got {tuple(a)} and {tuple(b)}. Reshape "
            "one of them"
        )


def start(function: str, name: str, value: Tensor, instead: str) -> None:
    """`value`, which a module copies into its state, must not require grad: the copy has no derivative."""
    if carries_graph(value):
        raise ValueError(
            f"{function}: {name} requires grad, but would get no gradient, because the module keeps a copy. "
            f"Pass {name.removesuffix('.values')}.detach() to start from its numbers, or {instead}"
        )


# Rules of tensors and matrices, for the annotations of public functions.


def is_usual(A: object) -> TypeGuard[CSR]:
    """A CSR of one set of real values."""
    return type(A) is CSR and A.values.dtype in SUPPORTED and A.values.shape == (A.pattern.nnz,)


def _matrix(real_only: bool, square_too: bool, or_dense: bool = False, any_dtype: bool = False) -> Rule:
    def check(function: str, name: str, value: Any) -> CSR:
        if is_usual(value) and (not square_too or value.shape[0] == value.shape[1]):
            return value  # in a small call, words for messages take as long as all else
        matrix(function, name, value := with_entries(value if not or_dense else convert_matrix(value)))
        if not any_dtype:
            dtype(function, f"{name}.values", value.values, or_complex=not real_only)
        if square_too:
            square(function, name, value.shape)
        return value

    kind = [*(["square"] if square_too else []), *(["real"] if real_only else [])]
    kind = [*kind, *([] if or_dense else ["sparse"])]
    return Rule(
        check, " ".join(["a", *kind, "matrix"]), (object(), 3.0, *([] if or_dense else [torch.eye(3)]))
    )


AnyMatrix = Annotated[CSR, _matrix(False, False, any_dtype=True)]  # integers too
Matrix = Annotated[CSR, _matrix(False, False)]
SquareMatrix = Annotated[CSR, _matrix(False, True)]
RealMatrix = Annotated[CSR, _matrix(True, False)]
RealSquareMatrix = Annotated[CSR, _matrix(True, True)]
System = Annotated[CSR, _matrix(False, True, or_dense=True)]  # a matrix to solve with may be dense
RealSystem = Annotated[CSR, _matrix(True, True, or_dense=True)]
DenseOrSparse = Annotated[CSR, _matrix(True, False, or_dense=True)]
RealDtype = Annotated[torch.dtype, choice(SUPPORTED)]
PLAIN[SparsityPattern] = instance(SparsityPattern, "a SparsityPattern", ". Pass A.pattern for a CSR")
_is_pattern = PLAIN[SparsityPattern].check  # torch.compile traces functions


def like(of: str, rows_of: int | None = None, or_complex: bool = False) -> Rule:
    """A tensor of the dtype and device of another argument, a matrix or a tensor. With `rows_of`, as many
    rows as the size of that axis of the matrix, and batch axes that broadcast with its own."""

    def check(function: str, name: str, value: Any, given: dict[str, Any]) -> Any:
        other = given.get(of)
        if isinstance(other, CSR):
            same_kind(function, name, value, other.values, or_complex)
            if rows_of is not None:
                rows(function, name, value, of, other.shape, rows_of)
                batches(function, other.batch_shape, value.shape[:-2], f"{of}.values and {name}")
        elif isinstance(other, Tensor):
            same_kind(function, name, value, other, or_complex, of)
        return value

    return Rule(check, f"a tensor of {of}'s dtype and device", (object(), 3.0, [1.0]), of)


def row_factor(function: str, name: str, value: Tensor, values: Tensor, n: int) -> None:
    """A tensor of the dtype and device of `values`, with one number, or one for each of n rows."""
    same_kind(function, name, value, values)
    if value.dim() and value.shape[-1] != n:
        raise ValueError(f"{function}: {name} must have shape () or (..., {n}), got {tuple(value.shape)}")


def per_row(of: str) -> Rule:
    def check(function: str, name: str, value: object, given: dict[str, object]) -> object:
        if not isinstance(value, Tensor):
            return number(function, name, value)
        if isinstance(A := given.get(of), CSR):
            row_factor(function, name, value, A.values, A.shape[0])
            batches(function, A.batch_shape, value.shape[:-1], f"{of}.values and {name}")
        return value

    says = f"a number or a tensor of {of}'s dtype and device, one number or one for each row"
    return Rule(check, says, (object(), True, "1"), of)


def pattern_like(of: str) -> Rule:
    """A pattern of the shape and device of another argument, a matrix."""

    def check(function: str, name: str, value: object, given: dict[str, object]) -> object:
        other = given.get(of)
        shape = other.shape if isinstance(other, CSR) else None
        pattern(function, name, value, shape, None if shape is None else other)
        return value

    return Rule(check, f"a SparsityPattern of {of}'s shape and device", (object(), 3.0), of)


_has_pattern = instance((SparsityPattern, CSR), "a SparsityPattern or a CSR").check


def _check_pattern(function: str, name: str, value: object) -> Any:
    _has_pattern(function, name, value := with_entries(value))
    return value


def _square_pattern(function: str, name: str, value: object) -> object:
    square(function, name, (value := _check_pattern(function, name, value)).shape)
    return value


def _numbers(or_complex: bool) -> Rule:
    def check(function: str, name: str, value: Any) -> Any:
        tensor(function, name, value)
        dtype(function, name, value, or_complex)
        return value

    what = "a tensor of float32 or float64" + (", or complex" if or_complex else "")
    return Rule(check, what, (object(), 3.0, [1.0], torch.ones(3, dtype=torch.int64)))


def _any_tensor(function: str, name: str, value: object) -> object:
    tensor(function, name, value)
    return value


SquarePattern = Annotated[
    SparsityPattern | CSR, Rule(_square_pattern, "a square SparsityPattern or CSR", (object(), "no such", 3))
]
AnyTensor = Annotated[Tensor, Rule(_any_tensor, "a tensor", (object(), 3.0, [1.0]))]
RealNumbers = Annotated[Tensor, _numbers(False)]
Numbers = Annotated[Tensor, _numbers(True)]
IndexDtype = Annotated[torch.dtype, choice((torch.int32, torch.int64))]
UNIONS[frozenset((SparsityPattern, CSR))] = Rule(
    _check_pattern, "a SparsityPattern or a sparse matrix", (object(), "no such", 3)
)


def number_or_like(of: str, rule: str = "") -> Rule:
    """A number that follows `rule`, as in `real`, or a tensor as for `like`."""
    as_other = like(of).check

    def check(function: str, name: str, value: object, given: dict[str, object]) -> object:
        if isinstance(value, Tensor):
            return as_other(function, name, value, given)
        return real(function, name, value, rule, "a number or a torch.Tensor")

    return Rule(check, f"a number, or a tensor of {of}'s dtype and device", ("1", [1.0]), of)


def real_tensor(further: Callable[..., Tensor], of: str = "") -> Rule:
    """A float32 or float64 tensor that passes a further check, with `of` given the arguments of the call."""
    plain = _numbers(False)
    numbers = plain.check

    def check(function: str, name: str, value: object, *given: object) -> object:
        return further(function, name, numbers(function, name, value), *given)

    return Rule(check, plain.says, plain.wrong, of)


# Under `torch.autocast` learnsolve computes in full precision: a solver whose products are rounded to
# bfloat16 does not converge. Functions and classes are wrapped where a package exports them. Calls inside of
# the library are not and have no overhead.


enabled: Callable[[], bool] = torch._C._is_any_autocast_enabled  # on any device
_LOW = (torch.float16, torch.bfloat16)
_FULL = {
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.complex64: torch.float32,  # the precision of cast operands
    torch.complex128: torch.float64,
    np.dtype("float32"): torch.float32,
    np.dtype("float64"): torch.float64,
}
_exported: set[type] = set()


def full_precision(function: Callable[..., object]) -> Callable[..., Any]:
    """`function`, unaffected by `torch.autocast`."""

    @functools.wraps(function)
    def call(*args: object, **named: object) -> object:
        if enabled():
            return without_autocast(function, args, named)
        return function(*args, **named)

    return call


def without_autocast(function: Callable[..., object], args: tuple, named: dict[str, object]) -> object:
    """`function` with operands cast to the first full precision among them, default float32."""
    dtype = _first((args, named)) or torch.float32
    args, named = _cast(args, dtype), _cast(named, dtype)
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):
                return without_autocast(function, args, named)
    return function(*args, **named)


def make_public(
    function: Callable[..., object], name: str, defaults: dict[str, Rule] | None = None
) -> Callable[..., Any]:
    """`function` for users: its arguments are checked by their declarations, and `torch.autocast` does not
    affect it. `name` stands in messages, `defaults` are for arguments without a rule or annotated as CSR."""
    if hasattr(function, "rules"):  # by another package
        return function
    rules, names = read_rules(function), inspect.unwrap(function).__code__.co_varnames
    for key, rule in (defaults or {}).items():
        if key in names and rules.get(key, _CSR) is _CSR:
            rules[key] = rule
    call = _wrap_checks(function, name, rules) if rules else full_precision(function)
    call.rules = rules  # type: ignore[attr-defined]
    return call


def _wrap_checks(function: Callable[..., object], name: str, rules: dict[str, Rule]) -> Callable[..., Any]:
    check = checker(function, name, rules)

    def check_and_call(*args: object, **named: object) -> object:
        args, named = check(args, named)
        return function(*args, **named)

    @functools.wraps(function)
    def call(*args: object, **named: object) -> object:
        if enabled():
            return without_autocast(check_and_call, args, named)
        args, named = check(args, named)
        return function(*args, **named)

    return call


def check_arguments(function: Callable[..., object]) -> Callable[..., Any]:
    """Check the arguments of a function that no package exports, or that runs under `torch.autocast`."""
    check = checker(function, function.__name__, rules := read_rules(function))

    @functools.wraps(function)
    def call(*args: object, **named: object) -> object:
        args, named = check(args, named)
        return function(*args, **named)

    call.rules = rules  # type: ignore[attr-defined]
    return call


def export(package: dict[str, Any], prefix: str = "") -> None:
    """Make what a package exports what users call: its functions, and the methods of its classes and of
    their bases. `prefix` stands before their names in messages."""
    for name in package["__all__"]:
        value = package[name]
        if inspect.isfunction(value):
            package[name] = value.as_exported = make_public(value, prefix + name)  # type: ignore
            package[name].__module__ = package["__name__"]  # for pickle
        elif inspect.isclass(value):
            for cls in value.__mro__:
                if cls.__module__.startswith("learnsolve.") and cls not in _exported:
                    _exported.add(cls)
                    public = [method for method in vars(cls) if not method.startswith("_")]
                    export_methods(cls, "__init__", "__call__", "__matmul__", *public, prefix=prefix)


def export_methods(cls: type, *names: str, defaults: dict[str, Rule] | None = None, prefix: str = "") -> None:
    """Make the names that are methods of this class what users call."""
    for name in names:
        method = vars(cls).get(name)
        called = name.startswith("__") or name == "forward"  # of a module
        shown = prefix + (cls.__name__ if called else f"{cls.__name__}.{name}")
        if inspect.isfunction(method):
            record = name == "__init__" and "__dataclass_fields__" in vars(cls)  # which the library makes
            setattr(cls, name, full_precision(method) if record else make_public(method, shown, defaults))
        elif isinstance(method, classmethod):
            setattr(cls, name, classmethod(make_public(method.__func__, shown)))


def _first(value: object) -> torch.dtype | None:
    """The first full precision in the arguments of a call."""
    if isinstance(value, (list, tuple, dict)):
        parts = value.values() if isinstance(value, dict) else value
    elif isinstance(value, torch.nn.Module):
        made = "_parameters" in vars(value)  # otherwise this is a call of its __init__
        parts = (*value.parameters(), *value.buffers()) if made else ()
    else:
        try:
            return _FULL.get(getattr(value, "dtype", None))
        except (TypeError, IndexError):  # a preconditioner without one, an operator that is being made
            return None
    return next((dtype for part in parts if (dtype := _first(part)) is not None), None)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """An argument with its tensors and matrices of lower precision cast to `dtype`."""
    if isinstance(value, (Tensor, CSR)):
        return value.to(dtype=dtype) if value.dtype in _LOW else value
    if type(value) in (list, tuple):
        return type(value)(_cast(part, dtype) for part in value)
    return {key: _cast(part, dtype) for key, part in value.items()} if type(value) is dict else value


# A matrix of another library becomes a CSR with a new pattern, analyzed in each call: in a loop, convert
# once with `CSR.from_*`. Edges are integers of shape (2, E), as in PyTorch Geometric.


def convert_matrix(A: object) -> Any:
    """A as a CSR if it is a matrix of another library, otherwise A itself.

    A dense tensor that requires grad keeps its zeros as entries, since they have gradients too; any other
    tensor has only its nonzeros as entries.
    """
    if isinstance(A, CSR):
        return A
    if isinstance(A, Tensor) and A.layout == torch.strided and A.dim() == 2:
        return CSR(A.flatten(), _full(A)) if A.requires_grad else CSR.from_dense(A)
    return CSR.from_dense(A) if isinstance(A, np.ndarray) and A.ndim == 2 else sparse_matrix(A)


def sparse_matrix(A: Any) -> Any:
    """A as a CSR if it is a sparse matrix of another library, or an `nn.SparseMatrix`, otherwise A itself."""
    if isinstance(A, CSR):
        return A
    if isinstance(A, Tensor):
        return A if A.layout == torch.strided else CSR.from_torch(A)
    if getattr(type(A), "is_sparse_matrix", False):
        return A.matrix
    return CSR.from_scipy(A) if scipy.sparse.issparse(A) else A


def with_entries(A: Any) -> Any:
    """`sparse_matrix`, for what reads entries: also of an operator that knows them (`LinearOperator.csr`)."""
    A = sparse_matrix(A)
    known = A.known_csr() if is_operator(A) else None
    return A if known is None else known


def _each(A: object) -> Any:
    return [_each(one) for one in A] if isinstance(A, (list, tuple)) else with_entries(A)


# What is annotated as CSR may be a matrix of another library. Not a dense tensor: it may be another argument.
for _type in (CSR, Sequence[CSR], Sequence[Sequence[CSR | None]]):
    PLAIN[_type] = Rule(lambda function, name, value: _each(value), "a sparse matrix", exact=CSR)
_CSR = PLAIN[CSR]


@overload
def operands(function: str, A: object, *vectors: TensorLike) -> tuple[Any, *tuple[Tensor, ...]]: ...
@overload
def operands(
    function: str, A: object, b: TensorLike, x0: TensorLike | None, /
) -> tuple[Any, Tensor, Tensor | None]: ...
def operands(function: str, A: object, *vectors: object) -> tuple[Any, ...]:
    """A converted by `matrix`, and vectors, with NumPy arrays as tensors on its device."""
    A = convert_matrix(A)
    for v in vectors:
        if isinstance(v, np.ndarray):
            break
    else:
        return A, *vectors
    like = A.values if isinstance(A, CSR) else None
    try:
        return A, *(convert.copy_array(v, like) for v in vectors)
    except TypeError as error:
        raise TypeError(f"{function}: {error}") from None


def _full(D: Tensor) -> SparsityPattern:
    rows, columns = D.shape
    crow = torch.arange(rows + 1, device=D.device) * columns
    col = torch.arange(columns, device=D.device).repeat(rows)
    return SparsityPattern._construct(crow, col, (rows, columns))


def edge_index(function: str, name: str, value: Any) -> Tensor:
    integers(function, name, value)
    if value.dim() != 2 or value.shape[0] != 2:
        raise ValueError(
            f"{function}: {name} must have shape (2, E), got {tuple(value.shape)}. For pairs of shape "
            "(E, 2), pass pairs.T"
        )
    return value


EdgeIndex = Annotated[
    Tensor, Rule(edge_index, "an integer tensor of shape (2, E)", (3, torch.ones(2, 3), torch.arange(4)))
]


@makes_plain_tensors
def edges(function: str, edge_index: Tensor, n: int | None) -> tuple[np.ndarray, int]:
    """(edges, n): a copy of the edges, int64, shape (2, E), and the number of nodes, by default the largest
    node plus one. The bytes of the edges are the key of cached data: comparing them is cheap compared with
    sorting edges again."""
    ends = to_numpy(edge_index).astype(np.int64)
    if n is None and ends.size == 0:
        raise ValueError(f"{function}: without edges, n must be the number of nodes")
    n = max(int(ends.max()) + 1, 0) if n is None else integer(function, "n", n, 0)
    for k in (0, 1):
        check_range(function, f"edge_index[{k}]", ends[k], n, "nodes")
    return ends, n


def decode_edges(key: bytes) -> np.ndarray:
    """The edges, int64, (2, E), from their bytes."""
    return np.frombuffer(key, dtype=np.int64).reshape(2, -1)
