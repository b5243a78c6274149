"""`check_gradients`: derivatives against finite differences and identities."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.testing._differences import Difference, difference
from learnsolve.testing._varied import Varied
from learnsolve.testing.report import GradientEntry, GradientReport

_SAFETY = 10  # error estimates are not bounds


def check_gradients(
    fn: Callable[..., Any],
    *args: Any,
    entries: int = 20,
    directions: int = 3,
    step: float | None = None,
    rtol: float | None = None,
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
    "transpose" (if f is linear in the input). "repeated": a second call returns the same. "undecided":
    the estimated error of a difference is too large; docs/gradients.md says when. Cost: about 4 (entries +
    directions) calls per input, 2 backwards per direction. The arguments are not changed.

    Parameters
    ----------
    fn : callable, returns a tensor, a CSR, a `Solution`, or lists or tuples of them
    args : arguments of fn. Those that require grad are varied, or all if none does: float32 or float64
        tensors, and CSR matrices, by their values
    entries, directions, seed : int, the number of single entries and random directions tested per input, and
        the seed
    step : float > 0, h relative to the entry, or to the root mean square of its input if that is larger
    rtol : float > 0, the accepted relative error: default 1.5e-8 in float64, 3.5e-4 in float32

    Returns
    -------
    GradientReport, with `ok`, `failures` and `undecided`; print it for a table

    Raises
    ------
    ValueError, TypeError
        if there is nothing to vary, fn returns no floating-point values, or an argument is invalid.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, x = ls.problems.poisson((4, 4)), torch.linspace(0, 1, 16, dtype=torch.float64)
    >>> ls.testing.check_gradients(lambda A, x: (A @ x).sin(), A, x).ok
    True
    """
    if not callable(fn):
        raise TypeError(
            f"check_gradients: fn must be callable, got {type(fn).__name__}; pass its arguments after it"
        )
    entries = checks.integer("check_gradients", "entries", entries, 0)
    directions = checks.integer("check_gradients", "directions", directions, 1)
    for name, value in (("step", step), ("rtol", rtol)):
        if value is not None and not checks.real("check_gradients", name, value) > 0:
            raise ValueError(
                f"check_gradients: {name} must be positive, got {value}; leave it out for the default"
            )
    call = Varied(fn, args)
    eps = max(torch.finfo(t.dtype).eps for t in (*call.inputs, *call.values))
    generator = torch.Generator().manual_seed(seed)
    h, least = eps ** (1 / 3) if step is None else step, eps**0.5 if rtol is None else rtol
    return _Audit(call, entries, directions, h, least, eps, generator).report()


class _Audit:
    def __init__(
        self, call: Varied, entries: int, directions: int, step: float, rtol: float, eps: float, generator
    ):
        self.call, self.entries, self.directions = call, entries, directions
        self.step, self.rtol, self.eps, self.generator = step, rtol, eps, generator
        self.rows: list[GradientEntry] = []

    def report(self) -> GradientReport:
        again = self.call(self.call.inputs)
        same = all(torch.equal(a, b) for a, b in zip(again, self.call.values, strict=True))
        note = "" if same else "a second call returns other numbers; fix the seeds in fn"
        self.rows.append(GradientEntry("repeated", "fn", verdict="ok" if same else "FAILED", note=note))
        for number in range(self.directions):
            self.direction(number)
        notes = []
        if self.eps > 1e-10:
            digits = f"differences have an error of about {self.eps ** (2 / 3):.0e}"
            notes.append(f"float32: {digits}; check in float64")
        return GradientReport(self.rows, notes)

    def random(self, like: Sequence[Tensor]) -> list[Tensor]:
        return [torch.randn(t.shape, generator=self.generator, dtype=torch.float64).to(t) for t in like]

    def direction(self, number: int) -> None:
        """All tests with one cotangent w; single entries only with the first."""
        w = self.random(self.call.values)
        try:
            gradients = self.backward(w)
        except Exception as error:  # any error of fn
            self.rows.append(_failed("difference", f"backward {number}", error))
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
        self.rows.append(self.judged(where, own, scale, slope))

    def judged(self, where: str, own: float, scale: float, by: Difference) -> GradientEntry:
        error, doubt = abs(own - by.value), _SAFETY * by.error
        allowed = self.rtol * max(scale, abs(by.value)) + doubt
        verdict, note = "ok" if error <= allowed else "FAILED", ""
        if by.kink is not None:
            note = "the one-sided derivatives are {:.3g} and {:.3g}: not differentiable here".format(*by.kink)
            verdict = "undecided"
        elif not math.isfinite(by.value + by.error):
            verdict, note = "undecided", "fn is not finite beside this point"
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


def _failed(test: str, where: str, error: Exception) -> GradientEntry:
    return GradientEntry(test, where, verdict="FAILED", note=f"{type(error).__name__}: {str(error)[:200]}")


def _dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    return float(sum(float((s.double() * t.double()).sum()) for s, t in zip(a, b, strict=True)))


def _norm(a: Sequence[Tensor]) -> float:
    return math.sqrt(_dot(a, a))


def _mean_square(x: Tensor) -> float:
    return float(x.double().norm()) / math.sqrt(max(x.numel(), 1))
