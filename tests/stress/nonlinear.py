"""Small nonlinear systems of every character, through all nonlinear solvers; and matrices with multiple
eigenvalues, and with huge or tiny rows, through all methods of `eigsh`."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sp
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
                self.counts["rejected"] += self.systems
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
    while counts["systems"] + counts["rejected"] < count:
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


# --- eigenvalues ---

SPECTRA = ("copies", "grid", "hypercube", "components", "rows", "rows", "penalty")


class Spectrum:
    """One matrix, all its eigenvalues, and one call."""

    def __init__(self, seed: int):
        self.seed, self.rng, self.counts = seed, np.random.default_rng(seed), Counter()
        rng = self.rng
        self.form = str(rng.choice(SPECTRA))
        self.B: sp.csr_array | None = None
        self.A, self.exact = getattr(self, self.form)()
        scale = 10.0 ** float(rng.choice([0, 0, 0, 0, 8, -8, 100, -100]))
        single = abs(np.log10(scale)) < 10 and not self.graded and rng.random() < 0.2
        self.dtype = torch.float32 if single else torch.float64
        self.A, self.exact = scale * self.A, np.sort(scale * self.exact)
        n = self.A.shape[0]
        self.k = int(min(rng.integers(1, 40), n))
        end = float(rng.choice(self.exact) * 1.001 + 1e-3 * scale)
        draw = rng.random()
        self.which: str | float = "smallest" if draw < 0.6 else "largest" if draw < 0.8 else end
        self.options: dict = {"method": "auto"}
        if not isinstance(self.which, float) and rng.random() < 0.15:
            self.options = {"method": "lobpcg", "maxiter": 60}
        elif 1 < self.k < n and rng.random() < 0.3:
            self.options = {"method": "arpack"}
        self.options["which"] = self.which

    @property
    def graded(self) -> bool:
        return self.form in ("rows", "penalty")

    def random(self, n: int) -> sp.csr_array:
        """A connected graph's Laplacian with random weights, positive definite by up to 1."""
        rng = self.rng
        i = np.concatenate((np.arange(n - 1), rng.integers(0, n, n)))
        j = np.concatenate((np.arange(1, n), rng.integers(0, n, n)))
        W = sp.csr_array((rng.uniform(0.1, 1, len(i)), (i, j)), shape=(n, n))
        W = W + W.T
        shift = rng.uniform(0, 1, n) ** 3 * (rng.random() < 0.8) + 1e-6
        return sp.csr_array(sp.diags_array(W.sum(1) + shift) - W)

    def copies(self) -> tuple[sp.csr_array, np.ndarray]:
        """Every eigenvalue 3 to 40 times, in an order of the unknowns that hides it."""
        rng, m = self.rng, int(self.rng.integers(3, 41))
        n = int(rng.integers(2, max(3, 600 // m)))
        A, B = self.random(n), self.random(n) + sp.eye_array(n)
        if rng.random() < 0.4:
            A = A - float(rng.uniform(0, 2)) * sp.eye_array(n)
        general = rng.random() < 0.3
        exact = scipy.linalg.eigvalsh(A.toarray(), B.toarray() if general else None)
        order = rng.permutation(n * m)
        A, B = (sp.csr_array(sp.kron(sp.eye_array(m), S, "csr")[order][:, order]) for S in (A, B))
        self.B = B if general else None
        return A, np.repeat(exact, m)

    def grid(self) -> tuple[sp.csr_array, np.ndarray]:
        d = int(self.rng.integers(2, 4))
        n, periodic = int(self.rng.integers(4, 20 if d == 2 else 9)), bool(self.rng.random() < 0.5)
        line = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n)).tolil()
        if periodic:
            line[0, n - 1] = line[n - 1, 0] = -1.0
        A, exact = line.tocsr(), scipy.linalg.eigvalsh(line.toarray())
        values = exact
        for _ in range(d - 1):
            A = sp.kronsum(A, line, "csr")
            values = np.add.outer(values, exact).ravel()
        return sp.csr_array(A), values

    def hypercube(self) -> tuple[sp.csr_array, np.ndarray]:
        edge = sp.csr_array([[1.0, -1.0], [-1.0, 1.0]])
        A, values = edge, np.array([0.0, 2.0])
        for _ in range(int(self.rng.integers(3, 9))):
            A, values = sp.kronsum(A, edge, "csr"), np.add.outer(values, [0.0, 2.0]).ravel()
        return sp.csr_array(A), values

    def components(self) -> tuple[sp.csr_array, np.ndarray]:
        """Laplacians of several graphs: the value zero as often, of single vertices too."""
        sizes = self.rng.integers(1, 60, int(self.rng.integers(2, 15)))
        parts = [self.random(int(n)) for n in sizes]
        parts = [P - sp.diags_array(P.sum(1)) for P in parts]
        return sp.csr_array(sp.block_diag(parts)), np.concatenate(
            [scipy.linalg.eigvalsh(P.toarray()) for P in parts]
        )

    def rows(self) -> tuple[sp.csr_array, np.ndarray]:
        """Some rows and columns scaled. The values are squares of the singular values of the scaled Cholesky
        factor, which Jacobi's method computes to full relative accuracy."""
        rng = self.rng
        n = int(rng.integers(3, 400))
        A, s = self.random(n), np.ones(n)
        for _ in range(int(rng.integers(1, 4))):
            s[rng.integers(n)] = 10.0 ** float(rng.integers(-4, 16))
        if rng.random() < 0.3:
            self.B = sp.csr_array(sp.diags_array(10.0 ** rng.uniform(-2, 2, n)))
        G = scipy.linalg.cholesky(A.toarray(), lower=True) * s[:, None]
        if self.B is not None:
            G = G / np.sqrt(self.B.diagonal())[:, None]
        S = sp.diags_array(s)
        return sp.csr_array(S @ A @ S), scipy.linalg.lapack.dgejsv(G, joba=0)[0] ** 2

    def penalty(self) -> tuple[sp.csr_array, np.ndarray]:
        """Huge diagonal entries, as for Dirichlet conditions: up to 1e-12, the values without these rows."""
        rng = self.rng
        n, p = int(rng.integers(3, 400)), int(rng.integers(1, 4))
        A, size = self.random(n + p), 10.0 ** float(rng.integers(14, 40))
        rows = rng.permutation(n + p)
        d = np.zeros(n + p)
        d[rows[:p]] = size
        kept = np.sort(rows[p:])
        exact = scipy.linalg.eigvalsh(A.toarray()[np.ix_(kept, kept)])
        return sp.csr_array(A + sp.diags_array(d)), np.concatenate((exact, np.full(p, size)))

    def run(self) -> str | None:
        k, A = self.k, ls.CSR.from_scipy(self.A).to(self.dtype)
        B = None if self.B is None else ls.CSR.from_scipy(self.B).to(self.dtype)
        if isinstance(self.which, float):
            wanted = np.sort(self.exact[np.argsort(abs(self.exact - self.which))[:k]])
        else:
            wanted = self.exact[:k] if self.which == "smallest" else self.exact[-k:]
        what = (
            f"eigenpairs, Spectrum({self.seed}), {self.form}, n = {len(self.exact)}, k = {k}, {self.options}"
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                pairs = ls.eigsh(A, k, B=B, **self.options)
            except ValueError as error:
                self.counts["rejected"] += 1
                known = "is singular for sigma", "no bound of the eigenvalues is known", "ARPACK needs k < n"
                return None if any(words in str(error) for words in known) else f"{what}: raised {error}"
        self.counts[pairs.status.name] += 1
        if not pairs.converged:
            able = not self.graded and self.options["method"] != "lobpcg"
            return f"{what}: {pairs.summary()}" if able else None
        values, U = pairs.values.double().numpy(), abs(pairs.vectors.double().numpy())
        eps = torch.finfo(self.dtype).eps
        rtol = 1e-8 if eps < 1e-10 else 1e-4
        if self.B is None:
            sizes, unit = np.linalg.norm(abs(self.A) @ U, axis=0) / np.linalg.norm(U, axis=0), 1.0
        else:
            sizes, unit = np.full(k, abs(self.exact).max()), 30.0
        if isinstance(self.which, float):  # a pair on the other side may be as near
            values, wanted = (np.sort(abs(v - self.which)) for v in (values, wanted))
        off = abs(values - wanted)
        bound = unit * (
            rtol * np.minimum(abs(pairs.values.double().numpy()).max(), sizes) + 200 * eps * sizes
        )
        if not self.graded:  # of the reference
            bound = bound + 1e-14 * abs(self.exact).max()
        if (off <= bound + 1e-12 * abs(wanted)).all():
            return None
        i = int(np.argmax(off / (bound + 1e-12 * abs(wanted))))
        return f"{what}: CONVERGED, {pairs.method}, value {i} is {values[i]:.9g}, not {wanted[i]:.9g}"


def eigenpairs(count: int, seed: int, counts: Counter) -> Iterator[str]:
    """CONVERGED means that the k values are those asked for, with all copies of multiple ones: clusters of 3
    to 40 equal values, matrices with single huge or tiny rows, all methods, both sides of 256 unknowns.

    The values are known from smaller matrices, or by Jacobi's method. Every call has to converge, except for
    LOBPCG and for scaled matrices; of these 90 % where the smallest values are asked for.
    """
    able = missed = 0
    for i in range(count):
        case = Spectrum(seed * STRIDE + i)
        fault = case.run()
        counts += case.counts
        if fault:
            yield fault
        if case.graded and case.which == "smallest" and case.options["method"] != "lobpcg":
            able, missed = able + 1, missed + 1 - case.counts["CONVERGED"]
    if missed > 0.1 * able + 1:
        yield f"eigenpairs: of {able} scaled matrices {missed} did not converge"
