"""A row of the table of differentiable operations, for which every test of test_contract.py runs.

Each operation is written twice, on a `SparsityPattern` with the library and on dense matrices with torch
alone. Most are sums of products of their inputs with coefficients +1 or -1. Hence the dense form, with every
sign made +, evaluated at |inputs| gives the sums sum |a||x| of the error bound, and at ones the number of
terms; the same holds for its derivatives. Rows with inputs of their own (`make`) are not such sums: they have
a tolerance, and other files test their values.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from reference import inputs_for, small_pattern
from torch import Tensor

import learnsolve as ls

SHAPES = {  # batch axes of the values, shape of b for n = 5
    "vector": ((), (5,)),
    "one column": ((), (5, 1)),
    "columns": ((), (5, 3)),
    "no column": ((), (5, 0)),
    "batch of b": ((), (2, 5, 3)),
    "batch of values": ((2,), (5, 3)),
    "batch of values, vector": ((2,), (5,)),
    "batch of both": ((2,), (2, 5, 3)),
    "broadcast batches": ((2, 1), (3, 5, 2)),
    "empty batch": ((0,), (5,)),
}
EMPTY = ("no column", "empty batch")
FULL = [shape for shape in SHAPES if shape not in EMPTY]


@dataclass(frozen=True)
class Case:
    """An operation: f(pattern, *inputs) by the library and by dense torch."""

    name: str
    sparse: Callable[..., Tensor]
    dense: Callable[..., Tensor]
    shapes: Callable[[int, int, int], tuple] | None = None  # of the inputs, from m, n, nnz
    positive: Callable[..., Tensor] | None = None  # `dense` with every sign +, if that is another function
    compiles: bool = True
    pattern: Callable[[], ls.SparsityPattern] = small_pattern  # that derivatives are checked on
    make: Callable[[ls.SparsityPattern, int], list[Tensor]] | None = None  # inputs, from a pattern and a seed
    tolerance: float = 1e-12
    batched: bool = True  # torch maps its backward over several cotangents
    bits: bool = True  # that stay the same whatever the layout of an operand
    fast: bool = False  # check derivatives along directions, not entry by entry
    full: bool = False  # but entry by entry under --slow
    square: bool = False  # the matrix must be: of others the leading block is taken

    @property
    def majorant(self) -> Callable[..., Tensor]:
        return self.positive or self.dense

    def inputs(
        self,
        P: ls.SparsityPattern,
        dtype: torch.dtype = torch.float64,
        requires_grad: bool = False,
        seed: int = 0,
    ) -> list[Tensor]:
        if self.make is None:
            assert self.shapes is not None
            return inputs_for(self.shapes(*P.shape, P.nnz), dtype, requires_grad, seed)
        return [t.detach().to(dtype).requires_grad_(requires_grad) for t in self.make(P, seed)]


def moved(case: Case, device: str) -> Case:
    """The same operation on `device`, for inputs and results on the CPU."""

    def sparse(P, *inputs):
        return case.sparse(P.to(device), *(t.to(device) for t in inputs)).to("cpu")

    return dataclasses.replace(case, name=f"{case.name}, {device}", sparse=sparse)
