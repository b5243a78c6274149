"""Parameters of the stationary methods (weights, steps, momenta, bounds, omega): one rule for their shapes.

A parameter may have a number for each member of the batch, each step and each row. For the batch axes of A
and b (broadcast), N steps and n rows its shape in full is (*batch, N, n), with 1 along each axis on which it
does not depend. A shape with as many axes is read in full; short forms are

    ()          one number                    (N,)         one a step
    (n,)        one a row                     (N, n)       one a step and row, ones allowed
    batch       one a member                  (N, *batch)  one a step and member

A shape that two of them have is refused: its reading would change with the sizes. To a tolerance there is no
axis N (1 in full). Parameters that cannot depend on the row have 1 for n in full, and no short form with n.
"""

from typing import Any

import torch
from torch import Tensor

from learnsolve import _check
from learnsolve.ops import _across
from learnsolve.solvers.core.arguments import check_operands


class Parameters:
    """Reads the parameters of a call of the method `name`; steps=None: it runs to a tolerance."""

    def __init__(self, name: str, A: Any, b: Tensor, steps: int | None):
        self.name, self.A, self.b, self.steps = name, A, b, steps
        self.n = b.shape[0 if b.dim() == 1 else -2]

    @property
    def batch(self) -> torch.Size:
        of_A, of_b = getattr(self.A, "batch_shape", torch.Size()), self.b.shape[:-2]
        if not of_A or not of_b:
            return of_A or of_b
        return torch.broadcast_shapes(check_operands(self.name, self.A, self.b), of_b)

    def read(self, key: str, value: Any, rows: bool = True) -> Any:
        """A number; or a tensor, as (..., 1 or N, 1 or n)."""
        value, shared = self._read(key, value, rows), _across.of(self.A)
        if shared is None or not isinstance(value, Tensor):
            return value
        return shared.parameter(self.name, key, value, rows)

    def _read(self, key: str, value: Any, rows: bool) -> Any:
        if not isinstance(value, Tensor):
            return _check.number(self.name, key, value)
        _check.same_kind(self.name, key, value, self.b)
        if value.dim() == 0:
            return value.reshape(1, 1)
        shape, full = tuple(value.shape), self._full(rows)
        if len(shape) == len(full):
            if _fits(shape, full):
                return value
        elif value.numel() == 1 and len(shape) < len(full):
            return value.reshape(1, 1)
        found = self._readings(value, full, rows)
        if not found:
            raise ValueError(f"{self.name}: {key} must have shape {self._rule(rows)}, got {shape}")
        if len(found) > 1 and value.numel():
            fulls = [(1,) * (len(full) - t.dim()) + tuple(t.shape) for t in found.values()]
            raise ValueError(
                f"{self.name}: {key} of shape {shape} may be {' or '.join(found)}; give it in full, as "
                f"{' or '.join(map(str, fulls))}"
            )
        return next(iter(found.values()))

    def tensor(self, key: str, value: Any, rows: bool = True) -> Tensor:
        """`read`, a number as (1, 1)."""
        value = self.read(key, value, rows)
        return value if isinstance(value, Tensor) else self.b.new_full((1, 1), value)

    def of_rows(self, key: str, value: Tensor) -> bool:
        """Is it () or (n,), one for all steps and the whole batch, and can be nothing else?"""
        _check.same_kind(self.name, key, value, self.b)
        if value.dim() != 1:
            return value.dim() == 0
        return value.shape[0] == self.n != self.steps and not self.batch

    def of_steps(self, key: str, value: Any) -> Tensor:
        """`tensor` of what cannot depend on the row, without its last axis: (..., 1 or N)."""
        if isinstance(value, Tensor) and value.dim() == 0 and _across.of(self.A) is None:
            _check.same_kind(self.name, key, value, self.b)
            return value.reshape(1)
        return self.tensor(key, value, rows=False).squeeze(-1)

    def of_columns(self, key: str, value: Any, rows: bool = True) -> Any:
        """`read`, for a product with blocks of columns (..., n, k): a number, or (..., 1 or n, 1)."""
        value = self.read(key, value, rows)
        return value.mT if isinstance(value, Tensor) else value

    def _full(self, rows: bool) -> tuple[int, ...]:
        return (*self.batch, 1 if self.steps is None else self.steps, self.n if rows else 1)

    def _readings(self, value: Tensor, full: tuple[int, ...], rows: bool) -> dict[str, Tensor]:
        shape, batch, found = tuple(value.shape), full[:-2], {}
        if rows and shape == (self.n,):
            found["one a row"] = value.unsqueeze(0)
        if shape == (self.steps,):
            found["one a step"] = value.unsqueeze(-1)
        if batch and shape == batch:
            found["one a member of the batch"] = value.unsqueeze(-1).unsqueeze(-1)
        if batch and shape == (self.steps, *batch):
            found["one a step and member"] = value.movedim(0, -1).unsqueeze(-1)
        if batch and len(shape) == 2 and _fits(shape, full[-2:]):
            found["one a step and row"] = value
        return found

    def _rule(self, rows: bool) -> str:
        """The forms, and what their letters are."""
        members = ["B"] if len(self.batch) == 1 else [f"B{i + 1}" for i in range(len(self.batch))]
        n, N = ["n"] * rows, ["N"] * (self.steps is not None)
        forms = [[], n, N, members, N + members, N + n if members else []]
        forms = [f for i, f in enumerate(forms) if f not in forms[:i]]
        text = ", ".join(f"({', '.join(f)}{',' * (len(f) == 1)})" for f in forms)
        full = ", ".join((*members, *(N or "1"), *(n or "1")))
        sizes = [f"n = {self.n}"] * rows + [f"N = {self.steps} iterations"] * len(N)
        sizes += [f"{B} = {size}" for B, size in zip(members, self.batch, strict=True)]
        given = f", with {', '.join(sizes)}" if sizes else ""
        remedy = "" if N else "; one a step needs iterations="
        return f"{text} or in full ({full}) with ones allowed{given}{remedy}"


def _fits(shape: tuple[int, ...], full: tuple[int, ...]) -> bool:
    return all(s in (1, f) for s, f in zip(shape, full, strict=True))


def trainable(name: str, key: str, value: Any) -> torch.nn.Parameter:
    """A number or tensor as a parameter of the module `name`, whose function has it as the option `key`."""
    if not isinstance(value, Tensor):
        value = torch.tensor(_check.number(name, key, value))
    _check.dtype(name, key, value)
    function = f"solvers.{name.lower()}(..., {key}={key})"
    _check.start(name, key, value, f"call {function}, which differentiates with respect to it")
    return torch.nn.Parameter(value.detach().clone())
