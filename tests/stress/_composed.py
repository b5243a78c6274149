"""Preconditioners and solves as functions of one tensor t, of which A, b, weights and M are all made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from preconditioners.cases import CASES, amg, general, spd
from reference import normal
from torch import Tensor
from torch.func import functional_call

import learnsolve as ls

P, S = ls.preconditioners, ls.solvers
SIZE = 5  # of t
Make = Callable[[ls.CSR], Any]
NETWORK = {"rounds": 1, "width": 2, "dtype": torch.float64}


def _rows() -> Iterator[tuple[str, tuple[bool, bool, Make]]]:
    """Names; whether A is symmetric, whether it may be a batch, M of A. The rows of the table of
    preconditioners, multigrid in all its forms, and networks."""
    for c in CASES:
        if c.differentiable:
            yield c.name, (c.matrix == "spd", c.batched, c.make)
    for cycle in "VWF":
        for smoother in ("jacobi", "gauss_seidel", "chebyshev"):
            for symmetric, method in ((True, "smoothed_aggregation"), (False, "ruge_stuben")):
                make = amg(spd(), method, cycle=cycle, smoother=smoother, presweeps=1 + (cycle == "V"))
                what = f"{method}, {cycle}, {smoother}"
                yield f"AMG, {what}", (symmetric, True, make)
                yield f"learned AMG, {what}", (symmetric, False, partial(_all_learned, make))
    yield "GNP", (False, False, lambda A: P.GNP(A, width=3, layers=2, dtype=torch.float64))
    yield "NeuralIF", (True, False, lambda A: P.NeuralIF(**NETWORK))
    yield "PreCorrector", (True, False, lambda A: P.PreCorrector(**NETWORK))
    yield "NeuralAMG", (True, False, lambda A: P.NeuralAMG(**NETWORK, max_levels=2, max_coarse=3))


def _all_learned(make: Make, A: ls.CSR) -> P.Trainable:
    M = make(A)
    weights = ["weights"] * (M.weights is not None)
    return P.Trainable(M, learn=("prolongations", "restrictions", *weights))


ROWS = dict(_rows())
NETWORKS = ("NeuralIF", "PreCorrector", "NeuralAMG")  # A -> M

# Solvers, and numbers with which they converge, for A and for M A.
KRYLOV, OF_ANY_MATRIX, LEAST_SQUARES = (
    ("cg", "fcg", "minres"),
    ("bicgstab", "gmres", "fgmres"),
    ("lsqr", "lsmr"),
)
SWEEPS = {"jacobi": {"weight": 0.7}, "gauss_seidel": {}, "sor": {"omega": 1.2}, "ssor": {"omega": 1.2}}
STEPS: dict[str, tuple[dict, dict]] = {
    "richardson": ({"weight": 0.06}, {"weight": 0.5}),
    "heavyball": ({"alpha": 0.1, "beta": 0.4}, {"alpha": 0.5, "beta": 0.2}),
    "chebyshev": ({"lmin": 0.8, "lmax": 30.0}, {"lmin": 0.1, "lmax": 3.0}),
}
# Made of A, with eigenvalues of M A between 0 and 2.
OF_A: dict[str, Make] = {
    "Jacobi": P.Jacobi,
    "IC0": P.IC0,
    "SSOR": P.SSOR,
    "BlockJacobi": lambda A: P.BlockJacobi(A, 4),
    "Neumann": lambda A: P.Neumann(A, degree=2),
    "AMG": amg(spd()),
    "AMG, Jacobi": amg(spd(), smoother="jacobi"),
    "Schwarz": lambda A: P.AdditiveSchwarz(A, n_subdomains=3),
}


class Parts:
    """Numbers near given ones, smoothly with t, each time in another way."""

    def __init__(self, t: Tensor, seed: int):
        self.t, self.seed = t, seed

    def near(self, x: Any) -> Tensor:
        self.seed += 1
        x = torch.as_tensor(x, dtype=torch.float64)
        C = normal((x.numel(), SIZE + 1), seed=self.seed)
        return x * (1 + 0.1 * torch.sin(C[:, :SIZE] @ self.t + C[:, SIZE])).view_as(x)

    def matrix(self, A: ls.CSR, batch: tuple[int, ...]) -> ls.CSR:
        """D A D with a diagonal matrix D: symmetric if A is."""
        d = self.near(torch.ones(*batch, max(A.shape)))
        return A.with_values(d[..., A.pattern.row_indices.long()] * A.values * d[..., A.col_indices.long()])

    def preconditioner(self, module: torch.nn.Module, A0: ls.CSR, A: ls.CSR) -> Any:
        """That of parameters near those of the module."""
        holder = _Held(module, A0)
        parameters = {name: self.near(p.detach()) for name, p in holder.named_parameters()}
        return functional_call(holder, parameters, (A, parameters))


class _Held(torch.nn.Module):
    """A module, as a function of its parameters that gives a preconditioner."""

    def __init__(self, M: Any, A0: ls.CSR):
        super().__init__()
        self.M, self.A0 = M, A0

    def forward(self, A: ls.CSR, parameters: dict[str, Tensor]) -> Any:
        if isinstance(self.M, P.NeuralAMG):  # the classical prolongation in it is a constant
            hierarchy = self.M(self.A0).hierarchy
            return P.AMG(A, hierarchy=hierarchy, smoother="jacobi", weight=0.7)
        if not isinstance(self.M, P.Trainable):
            return self.M(A)
        if self.M.M is not None:
            return self.M.build()
        own = {name.removeprefix("M."): p for name, p in parameters.items()}
        return lambda r: functional_call(self.M, own, (r,))


def preconditioner(rng: np.random.Generator) -> tuple[str, Callable[[Tensor], Tensor]]:
    name, seed = str(rng.choice(list(ROWS))), int(rng.integers(10**6))
    symmetric, batched, make = ROWS[name]
    A0 = spd() if symmetric else general()
    M0 = make(A0)
    trained = isinstance(M0, torch.nn.Module)
    if name in NETWORKS:
        for i, p in enumerate(M0.parameters()):
            p.data.copy_(0.3 * normal(p.shape, seed=seed + i))
    linear = getattr(M0, "linear", True)
    uses = ["applied", "in iterations", *["transposed", "in an error propagator"] * linear]
    use, mode = str(rng.choice(uses)), str(rng.choice(["unrolled", "checkpointed"]))
    batch = (2,) if batched and not trained and rng.random() < 0.3 else ()
    b0 = normal((*batch, A0.shape[0], int(rng.integers(1, 4))), seed=seed)
    solver = S.cg if linear and getattr(M0, "symmetric", True) else S.fgmres

    def f(t: Tensor) -> Tensor:
        of = Parts(t, seed)
        A, b = of.matrix(A0, batch), of.near(b0)
        M = of.preconditioner(M0, A0, A) if trained else make(A)
        if use == "in iterations":
            return solver(A, b, M=M, rtol=0.0, maxiter=3, gradient=mode).x
        if use == "in an error propagator":
            return ls.analysis.ErrorPropagator(A, M, sweeps=2)(b)
        return (M.T if use == "transposed" else M)(b)

    return f"{name}, {use}, r {tuple(b0.shape)}", f


def solver(rng: np.random.Generator) -> tuple[str, Callable[[Tensor], Tensor]]:
    name = str(rng.choice([*KRYLOV, *OF_ANY_MATRIX, *LEAST_SQUARES, *SWEEPS, *STEPS]))
    mode = str(rng.choice(["implicit"] * (name != "jacobi") + ["unrolled", "checkpointed"]))
    seed, count = int(rng.integers(10**6)), int(rng.integers(1, 5))
    A0 = general() if name in OF_ANY_MATRIX else spd()[:, :15] if name in LEAST_SQUARES else spd()
    free = name not in (*SWEEPS, *LEAST_SQUARES)  # to take M, and a callable
    M = str(rng.choice(list(OF_A))) if free and rng.random() < 0.7 else None
    called = free and M is None and rng.random() < 0.5
    batch = (2,) if mode == "implicit" and not called and rng.random() < 0.3 else ()
    b0 = normal((*batch, A0.shape[0], int(rng.integers(1, 4))), seed=seed)
    numbers = STEPS[name][M is not None] if name in STEPS else SWEEPS.get(name, {})
    keywords: dict[str, Any] = {"gradient": mode}
    tolerances = ("atol", "btol") if name in LEAST_SQUARES else ("rtol",)
    if mode == "implicit":
        keywords |= {**dict.fromkeys(tolerances, 1e-13), "maxiter": 2000, **numbers}
    elif name in (*SWEEPS, *STEPS):
        keywords |= {"iterations": count}
    else:
        keywords |= {**dict.fromkeys(tolerances, 0.0), "maxiter": count}

    def f(t: Tensor) -> Tensor:
        of = Parts(t, seed)
        A, b = of.matrix(A0, batch), of.near(b0)
        own = {} if mode == "implicit" else {key: of.near(value) for key, value in numbers.items()}
        if M is not None:
            own["M"] = OF_A[M](A)
        if not called:
            return getattr(S, name)(A, b, **keywords, **own).x
        d = A.diagonal().sqrt().unsqueeze(-1)  # made of A's values, which are named too
        own |= {"parameters": (A.values, d)} if mode == "implicit" else {}
        own |= {} if name in KRYLOV else {"transpose": lambda x: A.T @ x + 0.1 * d * x}
        return getattr(S, name)(lambda x: A @ x + 0.1 * d * x, b, **keywords, **own).x

    return f"{name}, {mode}, {'a callable' if called else M or 'no M'}, b {tuple(b0.shape)}", f
