"""`check_gradients`: derivatives against finite differences and identities."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from learnsolve.arguments import Count, Function, Index, Positive
from learnsolve.matrix.checks import check_arguments
from learnsolve.matrix.csr import CSR
from learnsolve.solvers.solution import Solution

# Finite differences of a function of one variable, and their accuracy.
#
# Central differences d(h) = f' + h^2 f''' / 6 + ... for h and 2 h: the extrapolated value (4 d(h) - d(2 h))
# / 3 is free of the first term, whose size |d(h) - d(2 h)| / 3 estimates the error (it exceeds that of the
# extrapolated value if f is smooth). Rounding adds eps times the sum of the moduli, divided by h.
#
# One-sided differences differ by h f'' if f is smooth, half as much for half the step. At a kink they
# differ by the same amount for every step.


class Difference(NamedTuple):
    value: float
    error: float  # an estimate
    kink: tuple[float, float] | None  # the one-sided derivatives, if they differ


def difference(
    at: Callable[[float], tuple[float, float]], here: tuple[float, float], h: float, eps: float
) -> Difference:
    """The derivative at 0. `at(t)` is a sum and the sum of its moduli, `here` both at 0."""
    (zero, size), ahead, behind = here, [], []
    for t in (h, 2 * h):
        for value, side in ((at(t), ahead), (at(-t), behind)):
            side.append((value[0] - zero) / t)
            size = max(size, value[1])
    rounding = 2 * eps * size / h
    near, far = ((a - b) / 2 for a, b in zip(ahead, behind, strict=True))
    jump, wide = (a + b for a, b in zip(ahead, behind, strict=True))
    kink = None
    if abs(jump) > 20 * rounding and abs(jump) > 0.75 * abs(wide) and abs(jump) > 1e-3 * max(map(abs, ahead)):
        kink = (0.0 - behind[0], 0.0 + ahead[0])
    return Difference((4 * near - far) / 3, abs(near - far) / 3 + rounding, kink)


class VariedFunction:
    """fn as a function of the tensors that are varied, to a list of tensors."""

    def __init__(self, fn: Callable[..., Any], args: Sequence[Any]):
        self.fn, self.args = fn, args
        able = [i for i, a in enumerate(args) if _is_number(a.values if isinstance(a, CSR) else a)]
        self.positions = [i for i in able if args[i].requires_grad] or able
        if not self.positions:
            raise ValueError(
                "check_gradients: an argument must be a CSR or a tensor of float32 or float64, got "
                f"({', '.join(type(a).__name__ for a in args)}). Other arguments are bound in fn"
            )
        self.names = [f"args[{i}]" + ".values" * isinstance(args[i], CSR) for i in self.positions]
        values = [args[i] for i in self.positions]
        self.inputs = [(a.values if isinstance(a, CSR) else a).detach().clone() for a in values]
        self.values = self(self.inputs)
        if not self.values:
            raise ValueError(
                "check_gradients: fn must return floating-point tensors, CSR matrices or Solutions, or lists "
                "of them, but it returns none. Convert what it returns"
            )

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        args = list(self.args)
        for i, t in zip(self.positions, inputs, strict=True):
            args[i] = args[i].with_values(t) if isinstance(args[i], CSR) else t
        return list(_tensors(self.fn(*args)))


def _is_number(t: object) -> bool:
    return isinstance(t, Tensor) and t.layout == torch.strided and t.dtype in (torch.float32, torch.float64)


def _tensors(result: object) -> Iterator[Tensor]:
    if isinstance(result, (list, tuple)):
        for part in result:
            yield from _tensors(part)
    elif isinstance(result, Solution):
        yield result.x
    elif isinstance(result, CSR):
        yield result.values
    elif isinstance(result, Tensor) and result.is_floating_point():
        yield result


@dataclass(frozen=True)
class GradientEntry:
    """One comparison.

    Attributes
    ----------
    test : str, "repeated", "difference", "dot product" or "transpose"
    where : str, the input, and the entry that was varied, or the index of a random direction
    found : float, from the derivatives of the function
    expected : float, from the test
    error : float, \\|found - expected\\|
    allowed : float, the largest accepted error
    verdict : str, "ok", "FAILED", or "undecided"
    note : str, why it failed or is undecided

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> report = ls.testing.check_gradients(torch.sin, torch.ones(1, dtype=torch.float64), directions=1)
    >>> [entry.test for entry in report.entries]
    ['repeated', 'difference', 'difference', 'dot product']
    """

    test: str
    where: str
    found: float = 0.0
    expected: float = 0.0
    error: float = 0.0
    allowed: float = 0.0
    verdict: str = "ok"
    note: str = ""


@dataclass(frozen=True)
class GradientReport:
    """The result of `check_gradients`. Printing it shows a table: failures, undecided tests, then the largest
    errors.

    Attributes
    ----------
    entries : list of `GradientEntry`, in the order of the tests
    ok : bool, whether nothing failed. Undecided tests do not count, see `undecided`
    failures : list of failed entries
    undecided : list of undecided entries
    notes : list of str, limits of the whole check, such as float32

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> x = torch.tensor([0.0, 1.0], dtype=torch.float64)
    >>> report = ls.testing.check_gradients(torch.relu, x)
    >>> report.ok, report.undecided[0].note
    (True, 'the one-sided derivatives are 0 and 1.54: not differentiable here')
    """

    entries: list[GradientEntry]
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.failures

    @property
    def failures(self) -> list[GradientEntry]:
        return [entry for entry in self.entries if entry.verdict == "FAILED"]

    @property
    def undecided(self) -> list[GradientEntry]:
        return [entry for entry in self.entries if entry.verdict == "undecided"]

    def __str__(self) -> str:
        order = {"FAILED": 0, "undecided": 1, "ok": 2}
        first = sorted(self.entries, key=lambda e: (order[e.verdict], -_share(e)))
        lines = [("verdict", "test", "where", "found", "expected", "error", "allowed", "note")]
        for e in first[:_LINES]:
            numbers = (f"{e.found:.6g}", f"{e.expected:.6g}", f"{e.error:.1e}", f"{e.allowed:.1e}")
            lines.append((e.verdict, e.test, e.where, *numbers, e.note))
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        table = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        if len(first) > _LINES:
            table.append(f"and {len(first) - _LINES} more")
        passed = len(first) - len(self.failures) - len(self.undecided)
        head = f"{passed} ok, {len(self.failures)} FAILED, {len(self.undecided)} undecided"
        return "\n".join([head, *table, *self.notes])


_LINES = 20


def _share(entry: GradientEntry) -> float:
    return entry.error / entry.allowed if entry.allowed else 0.0


_SAFETY = 10  # error estimates are not bounds


@check_arguments
def check_gradients(
    fn: Function,
    *args: object,
    entries: Index = 20,
    directions: Count = 3,
    step: Positive | None = None,
    rtol: Positive | None = None,
    seed: int = 0,
) -> GradientReport:
    r"""Check the derivatives of fn(\*args), for example of a custom autograd function.

    With J the Jacobian of fn at args, for random v and w:

    .. math::
        \langle w, J e_j \rangle \approx (\phi(h) - \phi(-h)) / 2 h, \;
        \phi(h) = \langle w, f(x + h e_j) \rangle, \quad
        \langle J v, w \rangle = \langle v, J^T w \rangle, \quad
        \langle f(v), w \rangle = \langle v, J^T w \rangle

    These are the tests "difference" (also of v in place of :math:`e_j`), "dot product" (of forward mode) and
    "transpose" (if f is linear in the input). "repeated": a second call returns equal results. "undecided":
    the estimated error of a difference is too large; docs/gradients.md says when. Cost: about 4 (entries +
    directions) calls per input, 2 backwards per direction. The arguments are not changed.

    Parameters
    ----------
    fn : callable, returns a tensor, a CSR, a `Solution`, or lists or tuples of them
    args : arguments of fn. Those that require grad are varied, or all if none does: float32 or float64
        tensors, and CSR matrices, by their values
    entries, directions, seed : int, the number of single entries and random directions tested per input, and
        the seed
    step : h relative to the entry, or to the root mean square of its input if that is larger
    rtol : the accepted relative error: default 1.5e-8 in float64, 3.5e-4 in float32

    Returns
    -------
    GradientReport, with `ok`, `failures` and `undecided`. Print it for a table

    Raises
    ------
    ValueError
        if there is nothing to vary, or fn returns no floating-point values.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, x = ls.problems.poisson((4, 4)), torch.linspace(0, 1, 16, dtype=torch.float64)
    >>> ls.testing.check_gradients(lambda A, x: (A @ x).sin(), A, x).ok
    True
    """
    call = VariedFunction(fn, args)
    eps = max(torch.finfo(t.dtype).eps for t in (*call.inputs, *call.values))
    generator = torch.Generator().manual_seed(seed)
    h, least = eps ** (1 / 3) if step is None else step, eps**0.5 if rtol is None else rtol
    return _Audit(call, entries, directions, h, least, eps, generator).report()


class _Audit:
    def __init__(
        self,
        call: VariedFunction,
        entries: int,
        directions: int,
        step: float,
        rtol: float,
        eps: float,
        generator,
    ):
        self.call, self.entries, self.directions = call, entries, directions
        self.step, self.rtol, self.eps, self.generator = step, rtol, eps, generator
        self.rows: list[GradientEntry] = []

    def report(self) -> GradientReport:
        again = self.call(self.call.inputs)
        same = all(torch.equal(a, b) for a, b in zip(again, self.call.values, strict=True))
        note = "" if same else "a second call returns other numbers. Fix the seeds in fn"
        self.rows.append(GradientEntry("repeated", "fn", verdict="ok" if same else "FAILED", note=note))
        for number in range(self.directions):
            self.direction(number)
        notes = []
        if self.eps > 1e-10:
            digits = f"differences have an error of about {self.eps ** (2 / 3):.0e}"
            notes.append(f"float32: {digits}. Check in float64")
        return GradientReport(self.rows, notes)

    def random(self, like: Sequence[Tensor]) -> list[Tensor]:
        return [torch.randn(t.shape, generator=self.generator, dtype=torch.float64).to(t) for t in like]

    def direction(self, number: int) -> None:
        """All tests with one cotangent w, single entries only with the first."""
        w = self.random(self.call.values)
        try:
            gradients = self.backward(w)
        except Exception as error:  # any error of fn
            self.rows.append(_failure_entry("difference", f"backward {number}", error))
            return
        for i, (name, x, gradient) in enumerate(
            zip(self.call.names, self.call.inputs, gradients, strict=True)
        ):
            if not bool(torch.isfinite(gradient).all()):
                bad = GradientEntry("difference", name, verdict="FAILED", note="the gradient is not finite")
                self.rows.append(bad)
                continue
            length = float(gradient.norm())
            typical = length / math.sqrt(max(x.numel(), 1))
            if number == 0 and x.numel():
                chosen = torch.randperm(x.numel(), generator=self.generator)[: self.entries].tolist()
                for j in sorted(chosen):
                    e = torch.zeros_like(x).flatten()
                    e[j] = 1
                    at = tuple(int(k) for k in torch.unravel_index(torch.tensor(j), x.shape))
                    where = f"{name}[{', '.join(map(str, at))}]"
                    own = float(gradient.flatten()[j])
                    size = max(float(x.flatten()[j].abs()), _mean_square(x))
                    self.compare(where, i, e.view_as(x), w, own, max(abs(own), typical), size)
            (v,) = self.random([x])
            where = f"{name}, direction {number}"
            self.compare(where, i, v, w, _dot([v], [gradient]), length, _mean_square(x))
            self.transpose(where, i, v, w)
        self.dot_product(number, w, gradients)

    def backward(self, w: list[Tensor], inputs: list[Tensor] | None = None) -> list[Tensor]:
        inputs = [t.detach().clone().requires_grad_() for t in (inputs or self.call.inputs)]
        with torch.enable_grad():
            values = self.call(inputs)
            pairs = [(y, g) for y, g in zip(values, w, strict=True) if y.requires_grad]
            if not pairs:  # fn detaches: its derivative is zero, which differences check
                return [torch.zeros_like(t) for t in inputs]
            outputs, cotangents = zip(*pairs, strict=True)
            grads = torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True)
        return [torch.zeros_like(t) if g is None else g.detach() for t, g in zip(inputs, grads, strict=True)]

    def compare(
        self, where: str, i: int, v: Tensor, w: list[Tensor], own: float, scale: float, size: float
    ) -> None:
        h = self.step * (size or 1.0)

        def sums(values: list[Tensor]) -> tuple[float, float]:
            return _dot(w, values), _dot([a.abs() for a in w], [a.abs() for a in values])

        def at(t: float) -> tuple[float, float]:
            inputs = list(self.call.inputs)
            inputs[i] = inputs[i] + t * v
            with torch.no_grad():
                return sums(self.call(inputs))

        slope = difference(at, sums(self.call.values), h, self.eps)
        self.rows.append(self.judge(where, own, scale, slope))

    def judge(self, where: str, own: float, scale: float, by: Difference) -> GradientEntry:
        error, doubt = abs(own - by.value), _SAFETY * by.error
        allowed = self.rtol * max(scale, abs(by.value)) + doubt
        verdict, note = "ok" if error <= allowed else "FAILED", ""
        if by.kink is not None:
            note = "the one-sided derivatives are {:.3g} and {:.3g}: not differentiable here".format(*by.kink)
            verdict = "undecided"
        elif not math.isfinite(by.value + by.error):
            verdict, note = "undecided", "fn is not finite next to this point"
        elif doubt > 0.01 * max(abs(own), abs(by.value)) and doubt > self.rtol * scale:
            note = f"the difference itself has an error of about {by.error:.1e}"
            verdict = "undecided" if verdict == "ok" else verdict
        return GradientEntry("difference", where, own, by.value, error, allowed, verdict, note)

    def dot_product(self, number: int, w: list[Tensor], gradients: list[Tensor]) -> None:
        v, where = self.random(self.call.inputs), f"direction {number}"
        try:
            inputs = tuple(self.call.inputs)
            tangents = torch.func.jvp(lambda *t: tuple(self.call(t)), inputs, tuple(v))[1]
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:100]
            note = f"no forward mode: {reason}"
            self.rows.append(GradientEntry("dot product", where, verdict="undecided", note=note))
            return
        self.identity("dot product", where, w, list(tangents), v, gradients)

    def transpose(self, where: str, i: int, v: Tensor, w: list[Tensor]) -> None:
        """Only if fn is linear in the input, judged by its values at some points."""
        x = self.call.inputs[i]

        def of(t: Tensor) -> list[Tensor]:
            with torch.no_grad():
                return self.call([t if j == i else s for j, s in enumerate(self.call.inputs)])

        def sums(parts: Sequence[tuple[float, list[Tensor]]]) -> bool:
            """Whether the sums of these multiples are zero."""
            for column in zip(*(values for _, values in parts), strict=True):
                terms = [factor * t for (factor, _), t in zip(parts, column, strict=True)]
                if len({t.shape for t in terms}) > 1:
                    return False
                off, size = torch.stack(terms).sum(0).norm(), sum(float(t.norm()) for t in terms)
                if not float(off) <= 100 * self.eps * math.sqrt(off.numel() + x.numel()) * size:
                    return False
            return True

        try:
            # Along x first: a nonlinear function, such as a solve in its matrix, may not exist elsewhere.
            fx = self.call.values
            if not (sums([(2, fx), (-1, of(2 * x))]) and sums([(1, fx), (1, of(-x))])):
                return
            fv = of(v)
            if not sums([(1, fx), (-0.5, fv), (-1, of(x - 0.5 * v))]):
                return
        except Exception:  # such values are not valid inputs of fn
            return
        inputs = [v if j == i else s for j, s in enumerate(self.call.inputs)]
        self.identity("transpose", where, w, fv, [v], [self.backward(w, inputs)[i]])

    def identity(
        self, test: str, where: str, w: list[Tensor], Jv: list[Tensor], v: list[Tensor], Jw: list[Tensor]
    ) -> None:
        number, expected = _dot(v, Jw), _dot(w, Jv)
        size = max(_norm(v) * _norm(Jw), _norm(w) * _norm(Jv))
        error, allowed = abs(number - expected), self.rtol * size
        verdict = "ok" if error <= allowed else "FAILED"
        self.rows.append(GradientEntry(test, where, number, expected, error, allowed, verdict))


def _failure_entry(test: str, where: str, error: Exception) -> GradientEntry:
    return GradientEntry(test, where, verdict="FAILED", note=f"{type(error).__name__}: {str(error)[:200]}")


def _dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    return float(sum(float((s.double() * t.double()).sum()) for s, t in zip(a, b, strict=True)))


def _norm(a: Sequence[Tensor]) -> float:
    return math.sqrt(_dot(a, a))


def _mean_square(x: Tensor) -> float:
    return float(x.double().norm()) / math.sqrt(max(x.numel(), 1))
