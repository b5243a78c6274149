"""Calls and their inputs: what they change and share, changes in place, and low precision."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

import learnsolve as ls
from learnsolve.solvers.options import KRYLOV

from . import _calls
from ._calls import CALLS, Call, Sample, digest, flat, turns

ITSELF = ("tril", "triu")  # "A itself, if all its entries lie there"
SWEEPS = ("gauss_seidel", "sor", "ssor")
# The arguments of a stationary method for a number u.
STATIONARY: dict[str, Callable[[Any], dict[str, Any]]] = {
    "richardson": lambda u: {"weight": u},
    "heavyball": lambda u: {"alpha": u, "beta": u},
    "chebyshev": lambda u: {"lmin": u, "lmax": 9.0},
    "gauss_seidel": lambda u: {},
    "sor": lambda u: {"omega": u},
    "ssor": lambda u: {"omega": u},
}


def _idle() -> dict[str, Call]:
    """Solves from a start x0 that have nothing to do, by their names: x0 is the solution, as it is for b = 0,
    or there are no iterations for b and x0 themselves."""

    def call(name: str, scale: float) -> Call:
        def solve(s: Sample, v: Tensor, x: Tensor) -> object:
            A, x = ls.CSR(v, s.P), x * scale
            return getattr(ls.solvers, name)(A, A @ x, x.detach())

        return Call("ax", solve, "spd")

    def given(name: str, **options: object) -> Call:
        method = getattr(ls.solvers, name)
        return Call("axx", lambda s, v, b, x: method(ls.CSR(v, s.P), b, x.detach(), **options), "spd")

    fixed = {"jacobi": {}, **{name: keywords(0.1) for name, keywords in STATIONARY.items()}}
    found = {f"{name}, at the solution": call(name, 1) for name in KRYLOV}
    found |= {f"{name}, b = 0": call(name, 0) for name in KRYLOV}
    found |= {f"{name}, no iterations": given(name, maxiter=0) for name in KRYLOV}
    return found | {f"{name}, no iterations": given(name, iterations=0, **o) for name, o in fixed.items()}


def aliases(count: int, seed: int, counts: Counter) -> Iterator[str]:
    """No call changes its inputs, and no result shares memory with them.

    Every operation, solver and preconditioner; solves too that have nothing to do: no iterations, a start
    that is the solution, b = 0. In a third of the turns the call is repeated with operands that torch holds
    as the negative, or the conjugate, of other numbers: a fault is another result.
    """
    for turn in turns({**CALLS, **_idle()}, count, seed, 1000, counts):
        yield from turn.faults(_shared(turn.s, turn.call, bool(turn.number % 2), turn.name in ITSELF))
        if turn.number % 3 == 0:
            yield from turn.faults(_pending(turn.s, turn.call, counts))


def _pending(s: Sample, call: Call, counts: Counter) -> Iterator[str]:
    leaves = [t.detach() for t in call.make(s)]
    wanted = flat(call.f(s, *leaves))
    counts["operands with a pending sign"] += 1
    for t, w in zip(flat(call.f(s, *map(_with_bit, leaves))), wanted, strict=True):
        atol = 1e-6 * float(w.abs().max()) if w.numel() else 0.0
        if not torch.allclose(t, w, rtol=1e-6, atol=atol, equal_nan=True):
            yield "another result for operands with a pending negation or conjugation"
            return


def _with_bit(t: Tensor) -> Tensor:
    """t with torch's neg bit, or conj bit."""
    return t.conj().resolve_conj().conj() if t.is_complex() else torch._neg_view(-t)


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
    whole = [(t.data_ptr(), t.shape) for t in (results[0], leaves[0])]
    if may_be_itself and whole[0] == whole[1]:
        shared.remove(0)
    if shared:
        yield f"results {shared} lie in the memory of an input"


def _overlap(a: Tensor, b: Tensor) -> bool:
    (a0, a1), (b0, b1) = (
        (m.data_ptr(), m.data_ptr() + m.nbytes()) for m in map(Tensor.untyped_storage, (a, b))
    )
    return a.numel() > 0 and b.numel() > 0 and a0 < b1 and b0 < a1


# Of a diagonal d.
PRECONDITIONERS: dict[str, Callable[[Tensor], Any]] = {
    "": lambda d: None,
    ", M": ls.preconditioners.Diagonal,
    ", a function M": lambda d: lambda r: (d if r.dim() == 1 else d.unsqueeze(-1)) * r,
}
# Words of torch's error and of ours.
NOTICED = ("modified by an inplace operation", "changed in place")


def _solves() -> dict[str, Call]:
    """Solves that read A, b, x0, a number u and the diagonal d of M as they are given."""

    def call(name: str, keywords: Callable, M: Callable, **options: Any) -> Call:
        method = getattr(ls.solvers, name)

        def solve(s: Sample, v: Tensor, b: Tensor, x0: Tensor, u: Tensor, d: Tensor) -> Any:
            given = {} if M(d) is None else {"M": M(d)}
            if options["gradient"] == "implicit":  # of A and b alone
                return method(_calls.A(s, v), b, **keywords(float(u)), **options)
            return method(_calls.A(s, v), b, x0, **keywords(u), **given, **options)

        return Call("axxup", solve, "spd")

    found, none, jacobi = {}, PRECONDITIONERS[""], lambda u: {"weight": u}
    for gradient in ("unrolled", "checkpointed"):
        four, fixed = ({"gradient": gradient, key: 4} for key in ("maxiter", "iterations"))
        for kind, M in PRECONDITIONERS.items():
            end = f"{kind}, {gradient}"
            for name in KRYLOV:
                found[name + end] = call(name, lambda u: {"rtol": 0.0}, M, **four)
            for name, keywords in STATIONARY.items():
                if not (kind and name in SWEEPS):
                    found[f"{name}, fixed{end}"] = call(name, keywords, M, **fixed)
                    found[name + end] = call(name, keywords, M, **four)
        found[f"jacobi, {gradient}"] = call("jacobi", jacobi, none, **fixed)
        for name in ("lsqr", "lsmr"):
            found[f"{name}, {gradient}"] = _calls._solver(name, "vy", "any", **four)
    implicit = {"maxiter": 4, "adjoint_maxiter": 4, "gradient": "implicit"}
    return found | {f"{name}, implicit": call(name, f, none, **implicit) for name, f in STATIONARY.items()}


def _step(kind: type, **options: Any) -> Callable[[Tensor], None]:
    def step(t: Tensor) -> None:
        optimizer = kind([t], lr=1e-3, **options)
        t.grad = torch.cos(torch.arange(t.numel(), dtype=t.dtype)).reshape(t.shape) - 2
        optimizer.step()
        t.grad = None

    return step


def _entry(t: Tensor) -> None:
    t.view(-1)[-1:].mul_(1.25)


# Of a Parameter, without autograd.
CHANGES: dict[str, Callable[[Tensor], Any]] = {
    "mul_": lambda t: t.mul_(1.25),
    "copy_": lambda t: t.copy_(1.25 * t),
    "one entry": _entry,
    "foreach": lambda t: torch._foreach_mul_([t], 1.25),
    "inference mode": torch.inference_mode()(lambda t: t.mul_(1.25)),
    "SGD": _step(torch.optim.SGD, foreach=False),
    "Adam, foreach": _step(torch.optim.Adam, foreach=True),
}
# They raise no version: torch itself does not notice them between forward and backward.
UNSEEN: dict[str, Callable[[Tensor], Any]] = {
    "SGD, fused": _step(torch.optim.SGD, fused=True),
    "Adam, fused": _step(torch.optim.Adam, fused=True),
    "data": lambda t: t.data.mul_(1.25),
    "one entry of data": lambda t: _entry(t.data),
}


def inplace(count: int, seed: int, counts: Counter) -> Iterator[str]:
    """A change in place before the backward raises or leaves the gradient as it was; after any change, also
    one that raises no version, a call gives what a fresh matrix gives.

    Every operation, solver, preconditioner and layer; solvers with every `gradient=`.

    An operand is changed between forward and backward: in place, one entry of it, under inference mode, by
    an optimizer. A fault is a backward that neither raises an error about the change nor gives the gradient
    of the original values. Then parameters change, also by fused optimizers and through `.data`, and
    matrices made of them are used again. A fault is a result with other bits than that of fresh matrices.
    Last, operands, the pattern and its transpose move to shared memory, as a queue of processes moves them,
    and the memory that they leave is filled: a fault is a call that gives other bits then.
    """
    rng = np.random.default_rng(seed)
    # Fewer rows than 6: 4 weights could be of 4 rows or of 4 sweeps.
    for turn in turns({**CALLS, **_solves()}, count, seed, 400, counts, first=7 * seed, rows=6):
        for part in (_before_backward, _after_a_change, _in_shared_memory):
            yield from turn.faults(part(turn.s, turn.call, rng, counts))


def _before_backward(s: Sample, call: Call, rng: np.random.Generator, counts: Counter) -> Iterator[str]:
    changes = list(CHANGES)
    how = changes[rng.integers(len(changes))]
    leaves = call.make(s)
    at = int(rng.integers(len(leaves)))
    wanted = _gradients(s, leaves, flat(call.f(s, *leaves)))
    if not wanted:
        return
    leaves = call.make(s)
    found = flat(call.f(s, *leaves))
    with torch.no_grad():
        CHANGES[how](leaves[at])
    try:
        gradients = _gradients(s, leaves, found)
    except RuntimeError as error:
        counts["changes raised"] += 1
        if not any(words in str(error) for words in NOTICED):
            yield f"{how} of operand {at}: {error}"
        return
    counts["changes of no matter"] += 1
    for i, (f, w) in enumerate(zip(gradients, wanted, strict=True)):
        if not torch.allclose(f, w, rtol=1e-8, atol=1e-8 * float(w.abs().max()), equal_nan=True):
            yield f"{how} of operand {at}: gradient {i} is another after it"
            return


def _gradients(s: Sample, leaves: list[Tensor], found: list[Tensor]) -> list[Tensor]:
    wanted = [t for t in found if t.requires_grad]
    by = [s.normal(*t.shape, salt=77 + i) for i, t in enumerate(wanted)]
    grads = torch.autograd.grad(wanted, leaves, by, allow_unused=True) if wanted else ()
    return [g for g in grads if g is not None and g.numel()]


def _after_a_change(s: Sample, call: Call, rng: np.random.Generator, counts: Counter) -> Iterator[str]:
    """Of a Parameter, whose numbers a matrix has without its gradient."""
    how, change = list({**CHANGES, **UNSEEN}.items())[rng.integers(len(CHANGES) + len(UNSEEN))]
    owners = [torch.nn.Parameter(t.detach()) for t in call.make(s)]
    given = [t.detach() for t in owners]
    matrices: dict[int, ls.CSR] = {}

    def again(s: Sample, v: Tensor) -> ls.CSR:
        return matrices.setdefault(id(v), ls.CSR(v, s.P))

    with patch.object(_calls, "A", again):
        call.f(s, *given)
        with torch.no_grad():
            for t in owners:
                change(t)
        results = _outcome(s, call, given)
    counts["calls after a change"] += 1
    if results != _outcome(s, call, [t.clone() for t in given]):
        yield f"after {how} another result than that of a fresh matrix"


def _in_shared_memory(s: Sample, call: Call, rng: np.random.Generator, counts: Counter) -> Iterator[str]:
    s.fresh()
    given = [t.detach() for t in call.make(s)]
    _outcome(s, call, given)
    moved = [t for P in (s.P, s.P.T) for t in (P.crow_indices, P.col_indices, P.row_indices)]
    moved = [t for t in (*moved, s.P.transpose_permutation, *given) if rng.random() < 0.8]
    sizes = [t.untyped_storage().nbytes() for t in moved]
    for t in moved:
        t.share_memory_()
    left = [torch.full((size,), 0xF7, dtype=torch.uint8) for size in sizes for _ in range(4)]
    counts["calls in shared memory"] += 1
    found = _outcome(s, call, [1.25 * t for t in given])  # of other numbers: no factors are kept for them
    s.fresh()
    if found != _outcome(s, call, [1.25 * t for t in given]):
        yield f"another result in shared memory, with {len(left)} arrays in what was left"


def _outcome(s: Sample, call: Call, operands: list[Tensor]) -> Any:
    try:
        return [digest(t) for t in flat(call.f(s, *operands))]
    except ValueError as error:  # of values that do not fit any more
        return str(error)


# --- autocast ---

# Whose graphs have dense products and inverses of torch: a backward inside of the context rounds these.
OF_TORCH = {name for name in CALLS if re.search("AMG|Schwarz|BlockJacobi|GCNConv", name)}
ROUNDED = 0.1
BLOCKS = "xyXre"  # leaves that calls hand on as they are, and that are no values of a matrix


def autocast(count: int, seed: int, counts: Counter) -> Iterator[str]:
    """Under `torch.autocast` every public call gives the bits that it gives without, and the gradients.

    Operations, solvers, preconditioners and layers, in bfloat16 and float16; with operands of that
    precision they give what they give for `x.float()`, and gradients in the precision of each operand.

    A fault is a result or gradient of another dtype or with other bits than without autocast, also by a
    backward inside of the context; or, with operands of low precision, a result with other bits than for
    `x.float()`, or a gradient that is not that gradient rounded to its operand's dtype.
    """
    rng = np.random.default_rng(seed)
    for turn in turns(CALLS, count, seed, 600, counts):
        turn.s.dtype = [torch.float32, torch.float64][int(rng.integers(2))]
        low = [torch.bfloat16, torch.float16][int(rng.integers(2))]
        turn.where += f", {turn.s.dtype}, autocast to {low}"
        yield from turn.faults(_faults(Case(turn.s, turn.name, turn.call, low), counts))


@dataclass
class Case:
    s: Sample
    name: str
    call: Call
    low: torch.dtype

    def run(
        self, leaves: Sequence[Tensor], autocast: bool
    ) -> tuple[list[Tensor], list[Tensor | None], list[Tensor | None]]:
        """The results, and the gradients of the leaves by a backward after the context and by one inside."""
        leaves = [t.detach().requires_grad_() for t in leaves]
        with torch.autocast("cpu", self.low, enabled=autocast):
            found = flat(self.call.f(self.s, *leaves))
        wanted = [t for t in found if t.requires_grad]
        if not wanted:
            return found, [], []
        by = [self.s.normal(*t.shape, salt=77 + i).to(t.dtype) for i, t in enumerate(wanted)]
        grads = torch.autograd.grad(wanted, leaves, by, allow_unused=True, retain_graph=autocast)
        with torch.autocast("cpu", self.low, enabled=autocast):
            inside = torch.autograd.grad(wanted, leaves, by, allow_unused=True) if autocast else ()
        return found, list(grads), list(inside)

    def lowered(self) -> list[bool]:
        """The leaves that are tried in low precision. A matrix in float64 tells that of the result."""
        codes = self.call.leaves
        if self.s.dtype == torch.float64 and codes[0] not in "vVa":
            return [False]
        alone = len(codes) == 1 and self.s.dtype == torch.float32
        return [c in BLOCKS or alone for c in codes]


def _faults(case: Case, counts: Counter) -> Iterator[str]:
    leaves = [t.detach() for t in case.call.make(case.s)]
    results, grads, _ = case.run(leaves, False)
    found, after, inside = case.run(leaves, True)
    yield from _other_bits("results", found, results)
    yield from _other_bits("gradients", after, grads)
    if case.name in OF_TORCH:
        yield from _not_near("gradients, backward inside,", inside, grads, ROUNDED)
    else:
        yield from _other_bits("gradients, backward inside,", inside, grads)
    counts["results and gradients"] += len(found) + len(after) + len(inside)

    if any(lowered := case.lowered()):
        low = [t.to(case.low) if lower else t for t, lower in zip(leaves, lowered, strict=True)]
        results, grads, _ = case.run([t.to(case.s.dtype) for t in low], False)
        found, after, _ = case.run(low, True)
        yield from _other_bits("results of low precision", found, results)
        # The parts of the gradient of an operand that is used several times are rounded one by one.
        rounded = [None if g is None else g.to(t.dtype) for g, t in zip(grads, low, strict=False)]
        bound = 8 * torch.finfo(case.low).eps
        yield from _not_near("gradients of low precision", after, rounded, bound)
        counts["of low precision"] += len(found) + len(after)


def _other_bits(what: str, found: Sequence[Tensor | None], wanted: Sequence[Tensor | None]) -> list[str]:
    kinds = [None if t is None else (t.dtype, t.shape, digest(t)) for t in found]
    same = [None if t is None else (t.dtype, t.shape, digest(t)) for t in wanted]
    which = [i for i, (a, b) in enumerate(zip(kinds, same, strict=True)) if a != b]
    return [f"{what} {which} are others"] if which else []


def _not_near(
    what: str, found: Sequence[Tensor | None], wanted: Sequence[Tensor | None], rtol: float
) -> list[str]:
    """Of one dtype and shape, and within `rtol` of the largest number."""

    def near(a: Tensor | None, b: Tensor | None) -> bool:
        if a is None or b is None:
            return a is b
        size = float(b.abs().nan_to_num(0, 0, 0).amax()) if b.numel() else 0.0
        same = a.dtype == b.dtype and a.shape == b.shape
        return same and torch.allclose(a.double(), b.double(), 0, rtol * size, equal_nan=True)

    which = [i for i, pair in enumerate(zip(found, wanted, strict=True)) if not near(*pair)]
    return [f"{what} {which} are others"] if which else []
