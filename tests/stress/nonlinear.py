"""Small nonlinear systems of every character, with and without roots, through all nonlinear solvers."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import learnsolve as ls
from learnsolve.solvers import ConvergenceWarning, SolverError, Status

SOLVERS = (
    "newton",
    "newton",
    "newton-krylov",
    "chord",
    "lm",
    "anderson",
    "fixed_point",
    "least_squares",
    "gauss-newton",
)
FORMS = ("monotone", "polynomial", "exponential", "wave", "rootless", "domain", "kink", "singular", "linear")
SILENT = {Status.CONVERGED, Status.STOPPED_BY_CALLBACK}
STRIDE = 1_000_000  # cases of one seed at most


def terms(xp: Any, form: str, B: Any, u: Any, a: Any, s: Any) -> list[Any]:
    """f(u) is the sum of these; xp is torch or NumPy."""
    linear = B @ u
    match form:
        case "monotone":  # B is positive definite
            return [s * linear, s * u**3, -s * a]
        case "polynomial":
            return [s * linear, s * a * u**2, s * u**3, -s * a]
        case "exponential":
            return [s * linear, -s * a * xp.exp(u)]
        case "wave":
            return [s * linear, 3 * s * xp.sin(3 * u), -s * a]
        case "rootless":
            return [s * u**2, s * a**2, s + 0 * u]
        case "domain":
            return [s * xp.log(abs(u)), s * linear, -s * a]
        case "kink":
            return [s * abs(u), s * linear, -s * a]
        case "singular":
            return [s * (u - a) ** 2 * u, s * (0 * linear)]
    return [s * linear, -s * a]


class Case:
    """One call, for a batch of systems of one form, and what is wrong with it."""

    def __init__(self, seed: int):
        self.rng, self.seed, self.faults, self.counts = np.random.default_rng(seed), seed, [], Counter()
        rng = self.rng
        self.name, self.form = str(rng.choice(SOLVERS)), str(rng.choice(FORMS))
        self.dtype = torch.float64 if rng.random() < 0.7 else torch.float32
        self.systems, self.n = int(rng.integers(1, 7)), int(rng.integers(1, 6))
        power = float(
            rng.choice([0, 0, 0, 6, -6, 30, -30] if self.dtype == torch.float64 else [0, 0, 0, 6, -6])
        )
        if self.dtype == torch.float64 and rng.random() < 0.05:
            power = float(rng.choice([-200, 200]))
        self.s = 10.0**power
        self.eps = torch.finfo(self.dtype).eps

    def fault(self, said: str) -> None:
        dtype = str(self.dtype).removeprefix("torch.")
        what = f"{self.name}, {self.form}, {dtype}, n = {self.n}, scale {self.s:g}"
        self.faults.append(f"nonlinear, Case({self.seed}): {said} ({what}, {self.options})")

    def draw(self, *shape: int) -> torch.Tensor:
        return torch.as_tensor(self.rng.standard_normal(shape), dtype=self.dtype)

    def run(self) -> Case:
        rng, n = self.rng, self.n
        C = self.draw(n, n)
        self.B = C @ C.T + 0.5 * torch.eye(n, dtype=self.dtype) if self.form == "monotone" else C
        self.a, self.u0 = self.draw(self.systems, n), self.draw(self.systems, n)
        if rng.random() < 0.1:
            self.u0 = self.u0 * 100
        self.rtol = float(
            rng.choice([1e-3, 1e-6, 1e-8, 1e-10] if self.dtype == torch.float64 else [1e-2, 1e-4])
        )
        self.atol = 0.0 if rng.random() < 0.8 else self.s * float(10 ** rng.uniform(-8, 0))
        self.options: dict[str, Any] = {"rtol": self.rtol, "atol": self.atol}
        if rng.random() < 0.2:
            self.options["maxiter"] = int(rng.integers(6))
        if self.name in ("newton", "newton-krylov"):
            draw = rng.random()
            if draw < 0.15:
                self.options["line_search"] = None
            elif draw < 0.3:
                self.options["pseudo_transient"] = float(10 ** rng.uniform(-2, 2))
        solutions: list[ls.solvers.Solution] = []

        def one(u0: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
            solutions.append(self.call(u0, a))
            return solutions[0].x

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                u = torch.vmap(one)(self.u0, self.a) if self.systems > 1 else one(self.u0[0], self.a[0])[None]
            except ValueError as error:
                if "must be finite" not in str(error):
                    self.fault(f"raised {error}")
                self.counts["refused"] += self.systems
                return self
            except Exception as error:  # any other is a fault
                if not isinstance(error, SolverError):
                    self.fault(f"raised {type(error).__name__}: {error}")
                return self
        statuses = solutions[0].statuses
        said = any(issubclass(w.category, ConvergenceWarning) for w in caught)
        if said != any(status not in SILENT for status in statuses):
            self.fault(f"a warning: {said}, statuses {[s.name for s in statuses]}")
        for i, status in enumerate(statuses):
            self.counts["systems"] += 1
            self.counts[status.name] += 1
            self.judge(i, u[i], status)
            if status is Status.CONVERGED and self.form != "rootless":
                self.start_at_the_solution(i, u[i])
        return self

    def call(self, u0: torch.Tensor, a: torch.Tensor) -> ls.solvers.Solution:
        N, B, s = ls.nonlinear, self.B, self.s

        def f(u: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
            return sum(terms(torch, self.form, B, u, a, s))  # type: ignore[return-value]

        if self.name == "fixed_point":
            return N.fixed_point(lambda u, a: u - f(u, a), u0, a, **self.options)
        if self.name in ("least_squares", "gauss-newton"):
            method = "lm" if self.name == "least_squares" else self.name
            return N.least_squares(f, u0, a, method=method, **self.options)
        return N.root(f, u0, a, method=self.name, **self.options)

    def start_at_the_solution(self, i: int, u: torch.Tensor) -> None:
        """Newton's method in extended precision from u, then the solver from the rounded root."""
        if self.name in ("least_squares", "gauss-newton") and abs(np.log10(self.s)) > 100:
            return  # squares leave the range
        a, s = self.a[i].numpy().astype(np.longdouble), np.longdouble(self.s)
        x, h = u.numpy().astype(np.longdouble), np.longdouble(1e-7)

        def f(x: Any) -> Any:
            return sum(terms(np, self.form, self.B.numpy().astype(np.longdouble), x, a, s)) / s

        for _ in range(8):
            h = 1e-7 * np.where(x != 0, abs(x), 1)
            unit = np.diag(h)
            J = np.stack([(f(x + e) - f(x - e)) / (2 * e.sum()) for e in unit], 1).astype(np.float64)
            if not np.isfinite(J).all() or np.linalg.cond(J) > 1e6:
                return
            x = x - np.linalg.solve(J, f(x).astype(np.float64))
        if not abs(f(x)).max() <= 1e-17 * (1 + abs(x).max()):
            return
        self.counts["starts at the solution"] += 1
        start = torch.as_tensor(x.astype(np.float64)).to(self.dtype)
        self.options = {"rtol": self.rtol}
        status = self.call(start, self.a[i]).status
        if status is not Status.CONVERGED:
            self.fault(f"{status.name} from a start at the solution [{i}] {start.tolist()}")

    def judge(self, i: int, u: torch.Tensor, status: Status) -> None:
        """By NumPy, in extended precision."""
        if status is not Status.CONVERGED:
            return
        if not torch.isfinite(u).all():
            self.fault(f"CONVERGED at {u.tolist()}")
            return
        (size, noise), (first, _) = self.measure(u, i), self.measure(self.u0[i], i)
        target = max(self.rtol * first, self.atol)
        if not size <= target * (1 + 1e-3) + noise:
            self.fault(
                f"CONVERGED, but what should be small is {size:.3g}, asked {target:.3g}, noise "
                f"{noise:.3g}, [{i}]"
            )

    def measure(self, u: torch.Tensor, i: int) -> tuple[float, float]:
        """||f(u)||, or ||J^T f||, and what rounding may add to it."""
        B, a, x = (t.numpy().astype(np.longdouble) for t in (self.B, self.a[i], u))
        s = np.longdouble(self.s)

        def f(x: Any, matrix: Any = B) -> list[Any]:
            return terms(np, self.form, matrix, x, a, s)

        parts = f(x)
        size = sum(abs(part) for part in parts) + abs(s) * (abs(B) @ abs(x))
        if self.name == "fixed_point":  # u - (u - f)
            size = size + 4 * abs(x)
        rounding = 16 * (self.n + 4) * self.eps * size
        r: Any = sum(parts)
        if self.name not in ("least_squares", "gauss-newton"):
            return float(np.sqrt((r * r).sum())), float(np.sqrt((rounding * rounding).sum()))
        # A logarithm changes over |u|, however small that is.
        h = np.longdouble(1e-7) * (np.maximum(abs(x), 1) if self.form != "domain" else abs(x))
        J = np.stack(
            [
                (sum(f(x + h[j] * e)) - sum(f(x - h[j] * e))) / (2 * h[j])
                for j, e in enumerate(np.eye(self.n))
            ],
            1,
        )
        g = J.T @ r
        rounding = abs(J).T @ rounding + 64 * self.eps * (abs(J).T @ abs(r)) + 1e-9 * (abs(J).T @ abs(r))
        return float(np.sqrt((g * g).sum())), float(np.sqrt((rounding * rounding).sum()))


def nonlinear(count: int, seed: int, counts: Counter) -> Iterator[str]:
    """CONVERGED means that f(u), or J^T r for least squares, meets the tolerance, and any other status
    warns: small nonlinear systems of every character, also without roots, all nonlinear solvers, alone and
    under vmap.

    Each system is judged in extended precision, by NumPy alone. At least 98 % of the monotone systems are to
    be solved by Newton's method with its line search. From the root, rounded to the dtype, every solver is to
    report CONVERGED.
    """
    able = missed = 0
    while counts["systems"] + counts["refused"] < count:
        case = Case(seed * STRIDE + counts["calls"]).run()
        counts += case.counts
        counts["calls"] += 1
        yield from case.faults
        if (
            case.form == "monotone"
            and case.name in ("newton", "chord")
            and not {"maxiter", "line_search", "pseudo_transient"} & set(case.options)
        ):
            able += case.counts["systems"]
            missed += case.counts["systems"] - case.counts["CONVERGED"] - case.counts["STAGNATED"]
    if missed > 0.02 * able + 1:
        yield f"missed {missed} of {able} monotone systems"
    counts["solvable"], counts["missed"] = able, missed
