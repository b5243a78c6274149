"""Calls under `torch.autocast`."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ._calls import CALLS, Call, flat, turns
from ._samples import Sample, digest

# Whose graphs have dense products and inverses of torch: a backward inside of the context rounds these.
OF_TORCH = {
    "GCNConv",
    *(f"preconditioner {name}" for name in ("AMG", "AMG, classical", "Trainable AMG", "NeuralAMG")),
    *(f"preconditioner {name}" for name in ("AdditiveSchwarz", "BlockJacobi")),
}
ROUNDED = 0.1
BLOCKS = "xyXre"  # leaves that calls hand on as they are, and that are no values of a matrix


def autocast(count: int, seed: int, counts: Counter) -> Iterator[str]:
    """Under `torch.autocast` every public call gives the bits that it gives without, and the gradients.

    Operations, solvers, preconditioners and layers, in bfloat16 and float16; with operands of that
    precision they give what they give for `x.float()`, and gradients in the precision of each operand.
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
    which = []
    for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
        if a is None or b is None:
            same = a is b
        else:
            size = float(b.abs().nan_to_num(0, 0, 0).amax()) if b.numel() else 0.0
            same = a.dtype == b.dtype and a.shape == b.shape
            same = same and torch.allclose(a.double(), b.double(), 0, rtol * size, equal_nan=True)
        if not same:
            which.append(i)
    return [f"{what} {which} are others"] if which else []
