"""Argument checks. Each raises an error that names the function, the rule, the value and the remedy."""

import math
from collections.abc import Callable, Iterable
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learnsolve.matrix.convert import check_real, real_on_a_device
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.plain import carries_graph

SUPPORTED = (torch.float32, torch.float64)
COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}  # of the same precision
_COMPLEX = tuple(COMPLEX.values())
MAKE = "; make one with CSR.from_dense, CSR.from_scipy, CSR.from_torch or CSR.from_coo"
_IN_A_MODULE = "in a module hold it as nn.SparseMatrix(A), which follows the module"


def tensor(function: str, name: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        remedy = "; torch.from_numpy makes one" if isinstance(value, np.ndarray) else of_graph(value)
        if isinstance(value, (list, tuple, float, int)):
            remedy = f"; torch.tensor({name}, dtype=A.dtype) makes one"
        raise TypeError(f"{function}: {name} must be a torch.Tensor, got {type(value).__name__}{remedy}")
    if value.layout is not torch.strided:
        raise TypeError(
            f"{function}: {name} must be a dense tensor, got layout {value.layout}; make a matrix of it with "
            "CSR.from_torch, or call .to_dense()"
        )


def fits(values: Any, x: Any, pattern: Any) -> bool:
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


def matrix(function: str, name: str, A: Any, remedy: str = MAKE) -> None:
    if not isinstance(A, CSR):
        if isinstance(getattr(A, "matrix", None), CSR):  # a BlockBatch
            remedy = f"; pass {name}.matrix, its block-diagonal CSR"
        if hasattr(A, "row_range"):  # a petsc.Matrix
            remedy = "; a petsc.Matrix goes to petsc.spmm, petsc.solve and the solvers (cg, minres, ...)"
        remedy = of_graph(A) or remedy
        raise TypeError(f"{function}: {name} must be a CSR, got {type(A).__name__}{remedy}")
    if (A.values.shape or (-1,))[-1] != A.pattern.nnz:  # checked when A was made, but tensors can be swapped
        raise ValueError(
            f"{function}: {name}.values has now shape {tuple(A.values.shape)}, the pattern "
            f"{A.pattern.nnz} entries; make another matrix with learnsolve.CSR(values, pattern)"
        )


def of_graph(value: Any) -> str:
    """The remedy for a graph of PyTorch Geometric given in place of its edges."""
    return "; of this graph pass its .edge_index" if hasattr(value, "edge_index") else ""


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
            f"{function}: {name} must be {supported}, got {value.dtype}; convert it with .to(dtype=...)"
        )


def same_kind(function: str, name: str, value: Any, values: Tensor, or_complex: bool = False) -> None:
    """`value` must be a tensor with the dtype and device of the matrix's values; with `or_complex`, with
    their precision, real or complex."""
    tensor(function, name, value)
    if value.dtype != values.dtype and not (or_complex and one_precision(value.dtype, values.dtype)):
        if not or_complex:
            check_real(function, name, value.dtype)
        remedy = f"convert it with .to({values.dtype})"
        if value.dtype in SUPPORTED or (or_complex and value.dtype in _COMPLEX):
            remedy = f"convert one with .to(), or make the matrix with dtype={value.dtype} ({_IN_A_MODULE})"
        raise TypeError(f"{function}: {name} has dtype {value.dtype}, the matrix {values.dtype}; {remedy}")
    if not (value.is_cpu and values.is_cpu):
        if value.device != values.device:
            raise TypeError(
                f"{function}: {name} is on {value.device}, the matrix on {values.device}; move one with "
                f".to() ({_IN_A_MODULE})"
            )
        real_on_a_device(function, name, value)


def one_precision(a: torch.dtype, b: torch.dtype) -> bool:
    return COMPLEX.get(a, a) == COMPLEX.get(b, b)


def one_dtype(function: str, b: Tensor, values: Tensor) -> None:
    """A complex b and a matrix must have the same dtype."""
    if b.dtype != values.dtype:
        raise TypeError(
            f"{function}: b has dtype {b.dtype}, the matrix {values.dtype}; convert one of them, as by "
            f"A.to({b.dtype})"
        )


def batches(function: str, a: torch.Size, b: torch.Size, names: str) -> None:
    """Batch axes `a` and `b`, of the operands `names`, must broadcast."""
    if a and b and any(i != j and i != 1 and j != 1 for i, j in zip(reversed(a), reversed(b), strict=False)):
        raise ValueError(
            f"{function}: the batch axes of {names} must broadcast, got {tuple(a)} and {tuple(b)}; reshape "
            "one of them"
        )


def start(function: str, name: str, value: Tensor, instead: str) -> None:
    """`value`, which a module copies into its state, must not require grad: the copy has no derivative."""
    if carries_graph(value):
        raise ValueError(
            f"{function}: {name} requires grad, but would get no gradient, because the module keeps a copy; "
            f"pass {name.removesuffix('.values')}.detach() to start from its numbers, or {instead}"
        )


def one_of(function: str, name: str, value: Any, allowed: tuple) -> None:
    if value not in allowed:
        raise ValueError(f"{function}: {name} must be one of {allowed}, got {value!r}")


def sequence(function: str, name: str, value: Any, of: str = "values") -> tuple[Any, ...]:
    """`value`, anything that can be iterated over but a string, as a tuple."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise TypeError(f"{function}: {name} must be a sequence of {of}, got {type(value).__name__}")
    return tuple(value)


def words(function: str, name: str, value: Any, allowed: tuple[str, ...]) -> tuple[str, ...]:
    """One of the words that are allowed, or a sequence of them, as a tuple."""
    every = (value,) if isinstance(value, str) else sequence(function, name, value, "names")
    for word in every:
        one_of(function, name, word, allowed)
    return every


def flag(function: str, name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{function}: {name} must be True or False, got {value!r}")


_RULES: dict[str, Callable[[float], bool]] = {
    "finite": math.isfinite,
    "finite and not negative": lambda value: 0 <= value < math.inf,
    "positive and finite": lambda value: 0 < value < math.inf,
}


def real(function: str, name: str, value: Any, rule: str = "", what: str = "a number") -> float:
    """`value`, a real Python or NumPy scalar that follows `rule`, one of _RULES, as a Python float. Tensors
    are rejected, because they would lose their gradient."""
    if type(value) is not float and (isinstance(value, bool) or not isinstance(value, Real)):
        raise TypeError(f"{function}: {name} must be {what}, got {type(value).__name__}")
    value = float(value)
    if rule and not _RULES[rule](value):
        raise ValueError(f"{function}: {name} must be {rule}, got {value}")
    return value


def number(function: str, name: str, value: Any) -> float:
    """`value`, a scalar for an argument that may also be a tensor, as a Python float."""
    return real(function, name, value, what="a number or a torch.Tensor")


def integer(function: str, name: str, value: Any, minimum: int) -> int:
    """`value`, a Python or NumPy integer, as a Python int."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{function}: {name} must be an int, got {type(value).__name__}")
    if value < minimum:
        raise ValueError(f"{function}: {name} must be at least {minimum}, got {value}")
    return value if isinstance(value, int) else int(value)


def memory(function: str, bytes: Any) -> None:
    """A limit in bytes must be a nonnegative int."""
    if isinstance(bytes, bool) or not isinstance(bytes, int):
        raise TypeError(f"{function}: bytes must be an int, got {type(bytes).__name__}")
    if bytes < 0:
        raise ValueError(f"{function}: bytes must not be negative, got {bytes}")


def tolerance(function: str, name: str, value: Any) -> None:
    real(function, name, value, "finite and not negative")
