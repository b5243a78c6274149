"""Systems of every character through all iterative solvers."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import learnsolve as ls
from learnsolve.solvers import ConvergenceWarning, Status
from learnsolve.solvers.core.problem import ORDINARY
from learnsolve.solvers.options import KRYLOV

from ._systems import DEFINITE, LEAST_SQUARES, REGULAR, SYMMETRIC, Systems, beside, draw, length, near

BOUNDED, SWEEPS = ("richardson", "heavyball", "chebyshev"), ("gauss_seidel", "sor", "ssor")
SOLVERS = (*KRYLOV, *KRYLOV, *LEAST_SQUARES, *BOUNDED, *SWEEPS, "jacobi")
MADE_FOR = {"cg": DEFINITE, "fcg": DEFINITE, "minres": SYMMETRIC, "bicgstab": REGULAR, "gmres": REGULAR}
MADE_FOR |= {"fgmres": REGULAR, "lsqr": REGULAR, "lsmr": REGULAR} | dict.fromkeys(
    (*BOUNDED, *SWEEPS), DEFINITE
)
OWN_TRANSPOSE = {"cg", "fcg", "minres"}
RTOL = {torch.float64: (1e-2, 1e-5, 1e-5, 1e-8, 1e-12, 1e-15), torch.float32: (1e-2, 1e-5, 1e-5, 1e-7)}
MISSES = 0.01
LAST = 4  # products: the rest of an iteration, and the judgment of what it left
STRIDE = 1_000_000  # cases of one seed at most


class Case:
    """One solve, and what is wrong with it."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.name = str(self.rng.choice(SOLVERS))
        self.systems = draw(self.rng)
        self.dtype = self.systems.b.dtype
        self.eps, self.u = (torch.finfo(self.dtype).eps * np.longdouble(f) for f in (1, 0.5))
        self.seed, self.faults, self.counts = seed, [], Counter()
        self.able = 0

    def fault(self, said: str, member: int | None = None, column: int = 0) -> None:
        s = self.systems
        what = f"{self.name}, {str(self.dtype).removeprefix('torch.')}, n = {s.pattern.shape[0]}, {s.told}"
        if member is not None:
            what += f", A {s.kinds[member]} {s.scales[member]}, b {s.right[member][column]}"
        self.faults.append(f"converged, Case({self.seed}): {said} ({what}, [{member}, {column}])")

    def run(self) -> Case:
        torch.manual_seed(self.seed)
        self.choose()
        s, keywords = self.systems, self.keywords
        if self.backward:
            s.values.requires_grad_()
            s.b.requires_grad_()
        self.counted = Counted(s) if self.as_function else None
        A = self.counted if self.as_function else s.matrix
        with warnings.catch_warnings(record=True) as caught, np.errstate(all="ignore"):
            warnings.simplefilter("always")
            try:
                solution = getattr(ls.solvers, self.name)(A, s.b, s.x0, **keywords)
            except (ValueError, NotImplementedError) as error:
                if "diagonal" not in str(error) or self.name not in (*SWEEPS, "jacobi"):
                    self.fault(f"raised {type(error).__name__}: {error}")
                self.counts["rejected"] += 1
                return self
            except Exception as error:  # any other is a fault
                self.fault(f"raised {type(error).__name__}: {error}")
                return self
            self.judge(solution)
            self.warned(solution.status, caught, self.asked)
            if self.backward:
                self.differentiate(solution)
        return self

    def choose(self) -> None:
        rng, s, name = self.rng, self.systems, self.name
        self.backward = bool(rng.random() < 0.2) and name != "jacobi"
        alone = s.b.dim() == 1
        self.as_function = (
            alone and not self.backward and name in (*KRYLOV, *LEAST_SQUARES) and rng.random() < 0.2
        )
        n = s.pattern.shape[0]
        self.rtol, self.atol = float(rng.choice(RTOL[self.dtype])), 0.0
        self.maxiter = 3 * n + 10 if name in (*KRYLOV, *LEAST_SQUARES) else 120
        if rng.random() < 0.15:
            self.maxiter = int(rng.integers(4))
        keywords: dict[str, Any] = {"maxiter": self.maxiter}
        if name in LEAST_SQUARES:
            keywords |= {"atol": self.rtol, "btol": self.rtol}
            s.told["M"] = "none"
        elif name == "jacobi":
            keywords = {"iterations": int(rng.integers(12))}
            s.told["M"] = "none"
        else:
            if rng.random() < 0.15:
                self.atol = float(10 ** rng.uniform(-12, 1))
                self.rtol = self.rtol if rng.random() < 0.5 else 0.0
            keywords |= {"rtol": self.rtol, "atol": self.atol}
            if name in SWEEPS:
                s.told["M"] = "none"
            else:
                keywords["M"] = s.M
        if name in ("gmres", "fgmres"):
            keywords["restart"] = int(rng.choice([3, 30]))
        if name in ("sor", "ssor"):
            keywords["omega"] = float(rng.choice([0.8, 1.2]))
        if name in BOUNDED:
            keywords |= self.bounds()
        if self.as_function and name not in OWN_TRANSPOSE:
            keywords["transpose"] = lambda y: s.matrix.T @ y
        self.iterates: list[torch.Tensor] | None = None
        if rng.random() < 0.15 and name != "jacobi":
            iterates = self.iterates = []

            def callback(at: Any) -> None:
                iterates.append(at.x.detach().clone())

            keywords["callback"] = callback
        self.keywords = keywords
        self.asked = name != "jacobi"

    def bounds(self) -> dict[str, Any]:
        """Of the spectrum of each A, as far as it has one."""
        found = []
        for D, scale in zip(self.systems.dense().astype(float), self.systems.scales, strict=True):
            if np.isfinite(D).all() and scale == "one":
                eigenvalues = np.linalg.eigvalsh((D + D.T) / 2)
                least, most = eigenvalues[0], eigenvalues[-1]
                found.append((max(least, 1e-3 * abs(most), 1e-6), max(most, 1e-5)))
            else:
                found.append((1.0, 2.0))
        low, high = torch.as_tensor(np.array(found), dtype=self.dtype).T
        if self.systems.values.dim() == 1:
            return {"lmin": low.item(), "lmax": high.item()}
        return {"lmin": low.reshape(-1, 1, 1), "lmax": high.reshape(-1, 1, 1)}

    def judge(self, solution: ls.solvers.Solution) -> None:
        s = self.systems
        self.A, self.b, self.x = s.dense(), s.columns(s.b), s.columns(solution.x)
        self.x0 = np.zeros_like(self.x) if s.x0 is None else s.columns(s.x0)
        members, _, k = self.b.shape
        statuses = np.array(solution.statuses).reshape(members, k) if self.asked else None
        norms = solution.residual_norms.detach().numpy().astype(np.longdouble)
        norms = norms.reshape(members, -1, k)
        if norms.shape[1] != solution.iterations + 1:
            self.fault(f"{norms.shape[1]} norms of {solution.iterations} iterations")
        for i in range(members):
            for j in range(k):
                self.counts["systems"] += 1
                status = solution.status if statuses is None else statuses[i, j]
                self.counts[status.name] += 1
                self.column(i, j, status, norms[i, :, j])
        if self.counted is not None and self.counted.after > LAST:
            self.fault(f"{self.counted.after} products with A after the first that was not finite", 0)

    def column(self, i: int, j: int, status: Status, norms: np.ndarray) -> None:
        A, b, x, x0 = self.A[i], self.b[i, :, j], self.x[i, :, j], self.x0[i, :, j]
        finite = bool(np.isfinite(A).all() and np.isfinite(b).all())
        if self.counted is not None and not self.counted.calls:
            return  # of a b without size, or within atol: what A holds is not known
        zero, small = self.asked and not b.any(), self.asked and length(b) <= self.range(b)[0]
        start = small or np.isfinite(x0).all()  # of a b without size the solution is zero, whatever x0 is
        if self.asked and not (finite and start) and status is not Status.NON_FINITE:
            self.fault(f"status {status.name} though A, b or x0 is not finite", i, j)
        if status is Status.CONVERGED and not np.isfinite(x).all():
            self.fault("CONVERGED with an x that is not finite", i, j)
        if not finite or not start or not np.isfinite(x).all():
            return
        r, slack = self.residual(A, x, b)
        norm, target = length(r), self.target(A, x, b, r, slack)
        reached, within = norm, target
        if self.name in LEAST_SQUARES and norm > target:
            reached, within = self.normal(A, r, slack)
        if status is Status.CONVERGED and not reached <= within:
            self.fault(f"CONVERGED with {shown(reached)}, at most {shown(within)}", i, j)
        told = self.agrees(norms[-1], norm, slack + self.lost(A), b)
        if status is Status.CONVERGED and not told:
            self.fault(f"the last norm is {shown(norms[-1])}, the residual's {shown(norm)}", i, j)
        if zero or not small:
            self.history(A, b, np.zeros_like(x0) if zero else x0, norms, i, j)
        self.miss(i, j, status, norm, target)

    def residual(self, A, x, b) -> tuple[np.ndarray, np.longdouble]:
        """b - A x, and how far off its norm may be where it is computed in the dtype."""
        m = (A != 0).sum(1).max() + 2
        tiny = np.longdouble(torch.finfo(self.dtype).smallest_normal) * self.eps
        size = length(np.abs(A) @ np.abs(x) + np.abs(b))
        return b - A @ x, m * self.u / (1 - m * self.u) * size + m * tiny * len(b)

    def lost(self, A: np.ndarray) -> np.longdouble:
        """What a residual changes by where x is rounded below the dtype's range."""
        return length(A.ravel()) * self.eps * np.longdouble(torch.finfo(self.dtype).smallest_normal)

    def of_norm(self, norm: np.longdouble, slack: np.longdouble) -> np.longdouble:
        return slack + (len(self.b[0]) + 4) * self.u * (norm + slack)

    def range(self, b: np.ndarray) -> tuple[np.longdouble, np.longdouble]:
        """Below and above it squares leave the dtype's range, and so norms: relative to b or `atol`, which a
        solve takes as its unit unless it lies within ORDINARY."""
        unit = max(np.abs(b).max(), np.longdouble(self.atol)) if self.asked else np.longdouble(1)
        info, room = torch.finfo(self.dtype), np.longdouble(2.0 ** ORDINARY[self.dtype])
        unit = unit if unit > 0 else np.longdouble(1)
        low, high = (np.sqrt(np.longdouble(x)) * unit for x in (info.smallest_normal, info.max))
        return len(b) * room * low, high / (len(b) * room)

    def agrees(self, norm: Any, true: np.longdouble, slack: np.longdouble, b: np.ndarray) -> bool:
        low, high = self.range(b)
        off = self.of_norm(true, slack)
        return bool(abs(norm - true) <= off + low or (not np.isfinite(norm) and true + off >= high))

    def target(self, A, x, b, r, slack) -> np.longdouble:
        """With the allowance."""
        if self.name in LEAST_SQUARES:
            tolerance = max(np.longdouble(self.rtol), self.eps)
            asked = tolerance * (length(b) + length(A.ravel()) * length(x))
        else:
            asked = max(np.longdouble(self.rtol) * length(b), np.longdouble(self.atol))
        return asked + self.of_norm(asked, slack) + self.of_norm(asked, np.longdouble(0))

    def normal(self, A, r, slack) -> tuple[np.longdouble, np.longdouble]:
        """||A^T r|| of least squares, and its tolerance."""
        scale, m = length(A.ravel()), (A != 0).sum(0).max() + 2
        asked = max(np.longdouble(self.rtol), self.eps) * scale * (length(r) + slack)
        off = length(np.abs(A).T @ np.abs(r)) * m * self.u / (1 - m * self.u) + scale * slack
        return length(A.T @ r), asked + self.of_norm(asked, off) + (A.size + 4) * self.u * asked

    def history(self, A, b, x0, norms, i: int, j: int) -> None:
        r, slack = self.residual(A, x0, b)
        if not self.agrees(norms[0], length(r), slack, b):
            self.fault(f"the first norm is {shown(norms[0])}, not {shown(length(r))}", i, j)
        finite = np.isfinite(norms)
        if self.asked and not finite.all() and finite[finite.argmin() :].any():
            self.fault("the history goes on after a number that is not finite", i, j)
        if self.iterates is None or self.images_leave_range(A):
            return
        grown, size_A = length(x0), length(A.ravel())
        for at, x in enumerate(self.iterates, 1):
            x = self.systems.columns(x)[i, :, j]
            if not np.isfinite(x).all() or at >= len(norms):
                return
            grown = max(grown, length(x))
            true, slack = length(b - A @ x), self.residual(A, x, b)[1]
            # Each update of x and r is rounded: Greenbaum, SIAM J. Matrix Anal. Appl. 18 (1997) 535-551.
            drift = 10 * len(b) * (at + 1) * self.u * (size_A * grown + length(b))
            if not self.agrees(norms[at], true, slack + drift + self.lost(A), b):
                self.fault(f"norm {at} is {shown(norms[at])}, the residual's {shown(true)}", i, j)
                return

    def images_leave_range(self, A: np.ndarray) -> bool:
        """Do squares of A M v, for v of length one, lie where the dtype has fewer digits, or none?"""
        M = self.systems.M
        if not isinstance(M, ls.CSR):
            return False
        by_M = length(M.values.numpy().astype(np.longdouble).ravel())
        size, info = length(A.ravel()) * by_M, torch.finfo(self.dtype)
        return not info.smallest_normal / info.eps**2 < size**2 < info.max * info.eps

    def miss(self, i: int, j: int, status: Status, norm, target) -> None:
        s, named = self.systems, self.name
        x_size = length(np.abs(self.x[i, :, j]))
        info = torch.finfo(self.dtype)
        exact = x_size == 0 or info.smallest_normal / info.eps < x_size < info.max * info.eps
        able = (
            s.kinds[i] in MADE_FOR.get(named, ())
            and s.condition[i] < (10 if named in (*BOUNDED, *SWEEPS) else 1e3)
            and self.rtol >= 50 * self.eps * s.condition[i]
            and self.maxiter > 10
            and s.told["M"] in ("none", "identity")
            and s.told["x0"] in ("none", "zeros")
            and s.scales[i] in (("one",) if named in (*BOUNDED, *SWEEPS) else ("one", "huge", "tiny"))
            and s.right[i][j] not in ("subnormal",)
            and self.keywords.get("restart", 30) == 30
            and bool(exact)
        )
        if not able or self.atol > 0:
            return
        self.able += 1
        if status is not Status.CONVERGED:
            self.fault(f"MISS: {status.name} with {shown(norm)}, at most {shown(target)}", i, j)

    def warned(self, status: Status, caught: list, asked: bool) -> None:
        said = [str(w.message) for w in caught if issubclass(w.category, ConvergenceWarning)]
        failed = asked and status is not Status.CONVERGED and (self.rtol > 0 or self.atol > 0)
        if failed != bool(said):
            self.fault(f"{status.name} with warnings {said}")
        # Adjoints of least squares are up to three solves, and each may warn.
        if failed and said and not any(status.name in text for text in said):
            self.fault(f"{status.name}, but the warnings say {said}")

    def differentiate(self, solution: Any) -> None:
        s = self.systems
        g = torch.as_tensor(self.rng.standard_normal(solution.x.shape)).to(self.dtype)
        kind = str(self.rng.choice(["normal", "normal", "zero", "nan", "huge", "tiny"]))
        g = g * {"zero": 0.0, "nan": torch.nan, "huge": 1e30, "tiny": 1e-30}.get(kind, 1.0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                _, by_b = torch.autograd.grad(solution.x, (s.values, s.b), g)
            except Exception as error:
                if "transpose of M" not in str(error):
                    self.fault(f"backward raised {type(error).__name__}: {error}")
                return
        adjoint = solution.adjoint
        if adjoint is None:
            self.fault("a backward without Solution.adjoint")
            return
        self.counts["backward"] += 1
        self.warned(adjoint.status, caught, True)
        said = [str(w.message) for w in caught]
        if said and "adjoint" not in said[0]:
            self.fault(f"the backward warns {said[0]}")
        if self.name not in LEAST_SQUARES and not torch.equal(by_b.nan_to_num(), adjoint.x.nan_to_num()):
            self.fault("the gradient for b is not the solution of the adjoint system")
        found, wanted = s.columns(adjoint.x), s.columns(g)
        statuses = np.array(adjoint.statuses).reshape(wanted.shape[0], -1)
        for i, A in enumerate(self.A):
            for j in range(wanted.shape[2]):
                y, c, status = found[i, :, j], wanted[i, :, j], statuses[i, j]
                if not (np.isfinite(A).all() and np.isfinite(c).all()):
                    if status is not Status.NON_FINITE:
                        self.fault(f"adjoint {status.name} though A or the cotangent is not finite", i, j)
                    continue
                if status is not Status.CONVERGED:
                    continue
                self.counts["adjoints"] += 1
                if not np.isfinite(y).all():
                    self.fault("an adjoint CONVERGED that is not finite", i, j)
                    continue
                r, slack = self.residual(A.T, y, c)
                if self.name in LEAST_SQUARES:
                    reached, within = length(r), self.target(A.T, y, c, r, slack)
                    if reached > within:
                        reached, within = self.normal(A.T, r, slack)
                    # The report is that of the worst of up to three solves.
                    if adjoint.status is Status.CONVERGED and not reached <= within:
                        self.fault(f"adjoint CONVERGED with {shown(reached)}, at most {shown(within)}", i, j)
                    continue
                asked = np.longdouble(self.rtol) * length(c)
                if not length(r) <= asked + self.of_norm(asked, slack) + self.of_norm(
                    asked, np.longdouble(0)
                ):
                    self.fault(f"adjoint CONVERGED with {shown(length(r))}, asked {shown(asked)}", i, j)


class Counted:
    """A as a function that counts its calls after the first result that was not finite."""

    def __init__(self, systems: Systems):
        self.A, self.calls, self.after, self.broken = systems.matrix, 0, 0, False

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.after += self.broken
        y = self.A @ x
        self.broken = self.broken or not bool(torch.isfinite(y).all())
        return y


def shown(number: Any) -> str:
    """Numbers beyond the range of float as well."""
    return np.format_float_scientific(np.longdouble(number), 6)


def converged(count: int, seed: int, counts: Counter) -> Iterator[str]:
    """CONVERGED means that the residual meets the tolerance, and a status names what is not finite: systems
    of every character, also such as no method can solve, all solvers, preconditioners that lie.

    Each column is a system, and is judged in extended precision, by NumPy alone. Every fourth time it is
    compared with what it gets alone, among 1 to 33 columns, and `ls.solve` gets a system at the border of
    singular and symmetric (`near`), in 0 to 33 columns: a gradient is exact or warned of, and a wrong
    `null_space` is rejected.

    docs/robustness.md lists the faults.

    Rounding: with m entries in a row and u the unit roundoff the computed residual is off by at most
    gamma_(m+1) (|A| |x| + |b|), entry by entry (Higham, Accuracy and Stability of Numerical Algorithms,
    section 3.5), and by m smallest numbers where products underflow; a norm of n numbers, and so a
    target, by n + 2 units.
    """
    able: Counter[str] = Counter()
    missed: dict[str, list[str]] = {}
    while counts["systems"] + counts["rejected"] < count:
        case = Case(seed * STRIDE + counts["solves"]).run()
        counts += case.counts
        counts["solves"] += 1
        if counts["solves"] % 4 == 0:
            number = seed * STRIDE + counts["solves"]
            yield from beside(number, counts)
            yield from near(number, counts)
        able[case.name] += case.able
        for fault in case.faults:
            if "MISS" in fault:
                missed.setdefault(case.name, []).append(fault)
            else:
                yield fault
    for name, faults in missed.items():
        if len(faults) > MISSES * able[name] + 1:
            yield f"{name} missed {len(faults)} of {able[name]}; the first: {faults[0]}"
    counts["solvable"], counts["missed"] = sum(able.values()), sum(map(len, missed.values()))
