"""Public calls with arguments that carry a graph."""

from __future__ import annotations

import inspect
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from registry import F64, P, beside, called, calls, number, outputs
from torch import Tensor

import learnsolve as ls

# Measurements, files, SciPy's matrices, samples: the docstring says that there is no gradient.
WITHOUT = {"evaluate", "write_matrix_market", "krylov_basis", "krylov_samples"}
WITHOUT |= {"Hierarchy.smoothed_aggregation", "Hierarchy.ruge_stuben"}
WITHOUT |= {
    f"CSR.{name}"
    for name in ("detach", "save", "size", "spy", "to_scipy", "to_scipy_linear_operator", "toarray")
}
NO_GRADIENT = re.compile(
    r"no gradient|without (a |their )?(gradient|graph|history)|no derivatives", re.IGNORECASE
)


class Case(NamedTuple):
    """`call` as a function of one argument, f(argument), which is `value` otherwise."""

    group: str
    call: str
    argument: str
    function: Callable[..., Any]
    others: dict[str, Any]
    value: Any
    doc: str

    @property
    def name(self) -> str:
        return f"{self.group}.{self.call}.{self.argument}"

    def f(self, value: Any) -> Any:
        return called(self.function, {**self.others, self.argument: value})


def cases() -> Iterator[Case]:
    for group, call, function in calls():
        for name, p in inspect.signature(function).parameters.items():
            kind, value = str(p.annotation), number(call, name, str(p.annotation))
            takes_numbers = re.search(r"Tensor|CSR|Any|float|Mesh|Matrices|empty", kind)
            together = not (name.startswith("adjoint") and "unrolled" in call)
            if takes_numbers and together and any(True for _ in carriers(value)):
                doc = inspect.getdoc(function) or ""
                yield Case(group, call, name, function, beside(call, function, name), value, doc)


def carriers(value: Any) -> Iterator[tuple[Tensor, Callable[[Tensor], Any], ls.SparsityPattern | None]]:
    """(t, f, pattern): f(t) is `value`, of which t has the numbers, on the pattern if they are a matrix's."""
    if isinstance(value, float):
        yield torch.tensor(value, dtype=F64), lambda t: t, None
    elif isinstance(value, Tensor) and value.is_floating_point():
        yield value, lambda t: t, None
    elif isinstance(value, ls.CSR):
        yield value.values, value.with_values, value.pattern
    elif isinstance(value, P.Diagonal):
        yield value.d, P.Diagonal, None
    elif isinstance(value, P.Hierarchy):
        for t, f, pattern in carriers(value.prolongations):
            yield t, lambda t, f=f: value.with_prolongations(f(t)), pattern
    elif isinstance(value, ls.problems.TriangleMesh):
        yield value.points, lambda t: ls.problems.TriangleMesh(t, value.triangles, value.fixed), None
    elif isinstance(value, (list, tuple)) and value:
        for t, f, pattern in carriers(value[0]):
            yield t, lambda t, f=f: type(value)((f(t), *value[1:])), pattern


def fault(case: Case, seed: int = 0) -> str | None:
    """A sentence, or None. The seed is that of a direction and of a cotangent."""
    generator = torch.Generator().manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for start, make, pattern in carriers(case.value):
            v = start.detach() * _direction(start, pattern, generator)
            if (found := _fault(case, start.detach(), make, v, generator)) is not None:
                return f"{case.name} {found}"
    return None


def _fault(
    case: Case,
    start: Tensor,
    make: Callable[[Tensor], Any],
    v: Tensor,
    generator: torch.Generator,
) -> str | None:
    try:
        result = case.f(case.value)
    except Exception as error:
        return f"does not work without a graph: {type(error).__name__}: {error}"
    plain = outputs(result)
    w = [torch.randn(p.shape, dtype=F64, generator=generator) for p in plain]

    def total(result: Any) -> Any:
        return sum((a * b).sum() for a, b in zip(w, outputs(result), strict=True))

    t, gradients = start.clone().requires_grad_(), []
    for argument in (t, t * 1):  # a leaf, and a result
        try:
            loss = total(case.f(make(argument)))
        except (TypeError, ValueError) as error:
            gradients.append("refused")
            if not re.search(rf"\b{case.argument}\b", str(error)):
                return f"is refused by an error that does not name it: {error}"
        else:
            tracked = isinstance(loss, Tensor) and loss.requires_grad
            gradients += torch.autograd.grad(loss, t, allow_unused=True) if tracked else [None]
    first, second = gradients
    if type(first) is not type(second) or (isinstance(first, Tensor) and not torch.allclose(first, second)):
        return f"has the gradients {first} for a leaf and {second} for a result"
    if first == "refused":
        return None
    if case.call in WITHOUT and first is None:
        return None if NO_GRADIENT.search(case.doc) else "has no gradient, and its docstring does not say so"
    if not plain and not isinstance(result, (bool, ls.SparsityPattern)):
        return "has no result that could carry a graph: list it in WITHOUT"
    gradient, h = torch.zeros_like(t) if first is None else first, 1e-5
    ahead, behind = (total(case.f(make(start + s * v))) for s in (h, -h))
    expected, own = float((ahead - behind) / (2 * h)), float((gradient * v).sum())
    size = abs(expected) + float(gradient.norm() * v.norm())
    rounding = float(sum((a * b).abs().sum() for a, b in zip(w, plain, strict=True)))
    eps = 1e-3 if any(p.dtype == torch.float32 for p in plain) else 1e-13
    if abs(own - expected) > 1e-6 * size + eps / h * rounding:
        return f"has the derivative {own:.6g}, differences give {expected:.6g}"
    return None


def _direction(t: Tensor, pattern: ls.SparsityPattern | None, generator: torch.Generator) -> Tensor:
    """Relative; of a square matrix symmetric, so that a symmetric one remains it."""
    if pattern is None:
        return torch.rand(t.shape, dtype=F64, generator=generator) - 0.5
    D = torch.rand(*pattern.shape, dtype=F64, generator=generator) - 0.5
    return (D + D.T if D.shape[0] == D.shape[1] else D)[pattern.row_indices, pattern.col_indices]


CASES = {case.name: case for case in cases()}


def graphs(count: int, seed: int, counts: Counter) -> Iterator[str]:
    """An argument of a public call that requires grad gets the gradient of differences, or an error names
    it.

    Every call of tests/registry.py, each argument in turn a leaf and a result, in random directions.

    A fault is a call that accepts the argument with a gradient (zero, if there is none) that differs from
    central differences by more than 1e-6 of the product of the lengths, or an error that does not name the
    argument.
    """
    cases, counts["arguments"] = list(CASES.values()), count
    for i in range(count):
        number = seed + 2 * (i // len(cases))
        if sentence := fault(cases[i % len(cases)], number):
            yield f"{sentence}, seed {number}"
