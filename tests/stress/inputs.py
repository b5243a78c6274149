"""Calls and the memory of their inputs."""

from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor

import learnsolve as ls

from ._calls import CALLS, Call, flat, turns
from ._samples import Sample, digest

ITSELF = ("tril", "triu")  # "A itself, if all its entries lie there"
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


def aliases(count: int, seed: int, counts: Counter) -> Iterator[str]:
    """No call changes its inputs, and no result shares memory with them.

    Every operation, solver and preconditioner; solves too that have nothing to do: no iterations, a start
    that is the solution, b = 0.
    """
    for turn in turns({**CALLS, **_idle()}, count, seed, 1000, counts):
        yield from turn.faults(_shared(turn.s, turn.call, bool(turn.number % 2), turn.name in ITSELF))


def _shared(s: Sample, call: Call, grad: bool, may_be_itself: bool) -> Iterator[str]:
    leaves = [t.detach().requires_grad_(grad) for t in call.make(s)]
    inputs = [*leaves, s.P.crow_indices, s.P.col_indices]
    before, versions = [digest(t) for t in inputs], [t._version for t in inputs]
    results = flat(call.f(s, *leaves))
    if grad and any(t.requires_grad for t in results):
        sums = [t.sum() for t in results if t.requires_grad]
        gradients = torch.autograd.grad(sums, leaves, allow_unused=True)
        results += [g for g in gradients if g is not None]
    if [digest(t) for t in inputs] != before or [t._version for t in inputs] != versions:
        yield "an input was changed"
    shared = [i for i, t in enumerate(results) if any(_overlap(t, one) for one in inputs)]
    if (
        may_be_itself
        and results[0].data_ptr() == leaves[0].data_ptr()
        and results[0].shape == leaves[0].shape
    ):
        shared.remove(0)
    if shared:
        yield f"results {shared} lie in the memory of an input"


def _overlap(a: Tensor, b: Tensor) -> bool:
    if a.numel() == 0 or b.numel() == 0:
        return False
    (a0, a1), (b0, b1) = (_range(t) for t in (a, b))
    return a0 < b1 and b0 < a1


def _range(t: Tensor) -> tuple[int, int]:
    storage = t.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
