"""Matrices with multiple eigenvalues, and with huge or tiny rows, through all methods of `eigsh`."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator

import numpy as np
import scipy.linalg
import scipy.sparse as sp
import torch

import learnsolve as ls

STRIDE = 1_000_000  # cases of one seed at most
FORMS = ("copies", "grid", "hypercube", "components", "rows", "rows", "penalty")


class Case:
    """One matrix, all its eigenvalues, and one call."""

    def __init__(self, seed: int):
        self.seed, self.rng, self.counts = seed, np.random.default_rng(seed), Counter()
        rng = self.rng
        self.form = str(rng.choice(FORMS))
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
        what = f"eigenpairs, Case({self.seed}), {self.form}, n = {len(self.exact)}, k = {k}, {self.options}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                pairs = ls.eigsh(A, k, B=B, **self.options)
            except ValueError as error:
                self.counts["refused"] += 1
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
        case = Case(seed * STRIDE + i)
        fault = case.run()
        counts += case.counts
        if fault:
            yield fault
        if case.graded and case.which == "smallest" and case.options["method"] != "lobpcg":
            able, missed = able + 1, missed + 1 - case.counts["CONVERGED"]
    if missed > 0.1 * able + 1:
        yield f"eigenpairs: of {able} scaled matrices {missed} did not converge"
