"""Names from other libraries on a `CSR`: they work as there, or an error says what to write instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy as np
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from learnsolve.matrix.pattern_checks import as_numpy

_INSTEAD = {
    **{name: f"A.values.{name}(), or with the zeros A.to_dense().{name}()" for name in ("max", "min")},
    **{f"to{name}": f'A.to_scipy("{name}")' for name in ("csr", "csc", "coo")},
    **dict.fromkeys(("dot", "mm", "mv", "matmul"), "A @ x"),
    "astype": "A.to(dtype)",
    "copy": "A.clone()",
    "data": "A.values",
    "indices": "A.col_indices",
    "indptr": "A.crow_indices",
    "mean": "A.sum(dim) / A.shape[dim]",
    "multiply": "A * B",
    "numpy": "A.toarray()",
    "to_sparse_csr": "A.to_torch()",
    "todense": "A.to_dense() for a tensor, A.toarray() for an array",
    "transpose": "A.T",
}


class _Missing:
    """A missing attribute, whose error says what to write instead."""

    def __init__(self, name: str, remedy: str):
        self.message = f"CSR: a matrix has no attribute {name!r}; write {remedy}"

    def __get__(self, A: Any, owner: Any) -> Any:
        raise AttributeError(self.message)


class Habits:
    """Mixin of `CSR`."""

    __slots__ = ()

    shape: tuple[int, int]
    T: Any
    to_dense: Any

    # --- supported ---
    def t(self) -> Any:
        """``A.T``, as in torch."""
        return self.T

    @overload
    def size(self) -> tuple[int, int]: ...
    @overload
    def size(self, dim: int) -> int: ...
    def size(self, dim: int | None = None) -> tuple[int, int] | int:
        """``A.shape``, or ``A.shape[dim]``, as in torch; no gradient."""
        return self.shape if dim is None else self.shape[dim]

    def toarray(self) -> np.ndarray:
        """The dense NumPy array, as in SciPy: a copy on the host, without gradient."""
        dense: Tensor = self.to_dense()
        return as_numpy(dense)

    # --- not supported: errors with a remedy ---
    __array_ufunc__ = None  # NumPy leaves `array * A` to __rmul__

    if not TYPE_CHECKING:  # otherwise type checkers would find every attribute and treat a CSR as an array

        def __dir__(self) -> list[str]:
            return sorted(set(super().__dir__()) - set(_INSTEAD))

        def __array__(self, *_: Any, **__: Any) -> Any:
            # Otherwise NumPy would make an array of one object.
            raise TypeError(
                "CSR: a sparse matrix is not a NumPy array; use A.toarray(), or A.to_scipy() for a sparse "
                "one. For S @ A with a SciPy matrix S write CSR.from_scipy(S) @ A"
            )

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_is_param":  # the mark that torch.nn.Parameter sets on its argument
            raise TypeError(
                "Parameter: takes a tensor, got a CSR; a matrix with trainable values is "
                "learnsolve.nn.SparseMatrix(A, trainable=True), and "
                "A.with_values(torch.nn.Parameter(A.values)) one whose values are a parameter held elsewhere"
            )
        super().__setattr__(name, value)


for _name, _remedy in _INSTEAD.items():  # a __getattr__ would slow down every other attribute
    setattr(Habits, _name, _Missing(_name, _remedy))


def alias(method: str, default: Any, **names: Any) -> Any:
    """The value of an argument with several names."""
    arguments = {name: value for name, value in names.items() if value is not None}
    if len(arguments) > 1:
        raise TypeError(f"CSR.{method}: {' and '.join(arguments)} are names of one argument; leave one out")
    return next(iter(arguments.values()), default)


def no_matrix_function(func: Any, types: Any) -> Any:
    """Raise the error of a torch function that does not accept a CSR."""
    if is_dynamo_compiling() or any(not issubclass(t, (Habits, Tensor)) for t in types):
        return NotImplemented
    name = getattr(func, "__name__", str(func))
    raise TypeError(
        f"torch.{name}: takes no CSR; write A @ x, an operation of learnsolve.ops, or give it A.values, "
        "A.to_dense() or A.to_torch()"
    )
