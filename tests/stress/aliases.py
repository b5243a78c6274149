"""No call changes its inputs, and no result shares memory with them.

Every operation, solver and preconditioner; solves too that have nothing to do: no iterations, a start that is
the solution, b = 0.
"""

import time
from collections import Counter

import numpy as np
import torch
from torch import Tensor

import learnsolve as ls

from ._calls import CALLS, Call, flat, quiet
from ._report import Report
from ._samples import KINDS, Sample, digest

ITSELF = ("tril", "triu")  # "A itself, if all its entries lie there"
SHORT = 150
KRYLOV = ("cg", "fcg", "minres", "bicgstab", "gmres", "fgmres")
FIXED = {
    "jacobi": {},
    "richardson": {"weight": 0.1},
    "heavyball": {"alpha": 0.1, "beta": 0.1},
    "chebyshev": {"lmin": 1.0, "lmax": 9.0},
    "gauss_seidel": {},
    "sor": {},
    "ssor": {},
}


def _idle() -> dict[str, Call]:
    """Solves from a start x0 that have nothing to do, by their names."""

    def call(name: str, zero: bool, **options: object) -> Call:
        method = getattr(ls.solvers, name)

        def solve(s: Sample, v: Tensor, x: Tensor) -> object:
            A, x = ls.CSR(v, s.P), x * (not zero)
            return method(A, A @ x, x.detach(), **options)

        return Call("ax", solve, "spd")

    def given(name: str, **options: object) -> Call:
        """b and x0 themselves."""
        method = getattr(ls.solvers, name)
        return Call("axx", lambda s, v, b, x: method(ls.CSR(v, s.P), b, x.detach(), **options), "spd")

    found = {f"{name}, at the solution": call(name, False) for name in KRYLOV}
    found |= {f"{name}, b = 0": call(name, True) for name in KRYLOV}
    found |= {f"{name}, no iterations": given(name, maxiter=0) for name in KRYLOV}
    found |= {f"{name}, no iterations": given(name, iterations=0, **o) for name, o in FIXED.items()}
    return found


def run(count: int, seed: int) -> Report:
    """`count` calls."""
    start, report, counts, rng = (
        time.perf_counter(),
        Report("aliases"),
        Counter(),
        np.random.default_rng(seed),
    )
    calls, i = list({**CALLS, **_idle()}.items()), -1
    with quiet():
        while counts["calls"] < count:
            i += 1
            name, call = calls[i % len(calls)]
            s = Sample.draw(list(KINDS)[int(rng.integers(len(KINDS)))], int(rng.integers(2**31)), 1000)
            if not call.takes(s):
                continue
            where = f"{name}, {s.kind}, seed {seed}, case {i}"
            report.faults += _one(s, call, bool(i % 2), where, name in ITSELF)
            counts["calls"] += 1
    report.counts, report.seconds = dict(counts), time.perf_counter() - start
    return report


def _one(s: Sample, call: Call, grad: bool, where: str, may_be_itself: bool) -> list[str]:
    leaves = [t.detach().requires_grad_(grad) for t in call.make(s)]
    inputs = [*leaves, s.P.crow_indices, s.P.col_indices]
    before, versions = [digest(t) for t in inputs], [t._version for t in inputs]
    try:
        found = flat(call.f(s, *leaves))
        if grad and any(t.requires_grad for t in found):
            wanted = [t for t in found if t.requires_grad]
            found += [
                g
                for g in torch.autograd.grad([t.sum() for t in wanted], leaves, allow_unused=True)
                if g is not None
            ]
    except Exception as error:  # of any kind: the others are tried
        return [f"{where}: {type(error).__name__}: {error}"]
    faults = []
    if [digest(t) for t in inputs] != before or [t._version for t in inputs] != versions:
        faults.append(f"{where}: an input was changed")
    shared = [i for i, t in enumerate(found) if any(_overlap(t, one) for one in inputs)]
    if may_be_itself and found[0].data_ptr() == leaves[0].data_ptr() and found[0].shape == leaves[0].shape:
        shared.remove(0)
    if shared:
        faults.append(f"{where}: results {shared} lie in the memory of an input")
    return faults


def _overlap(a: Tensor, b: Tensor) -> bool:
    if a.numel() == 0 or b.numel() == 0:
        return False
    (a0, a1), (b0, b1) = (_range(t) for t in (a, b))
    return a0 < b1 and b0 < a1


def _range(t: Tensor) -> tuple[int, int]:
    storage = t.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
