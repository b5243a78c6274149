"""Operations, their backwards and the raw operators, with arguments that do not fit."""

import functools
import os
import random

import torch
from ops.cases import CASES
from ops.test_raw_operators import OPERATORS, corrupted, ops, samples_of, sizes_of
from reference import pattern_of
from reference import random as random_matrix

from learnsolve import _library


@functools.cache
def prepared():
    """What the cases start from: (operations with a pattern and inputs, raw operators with arguments)."""
    P = pattern_of(random_matrix(6, 6, 0.4))
    operations = [(case, P, case.inputs(P)) for case in CASES if case.make is None]
    raw = [(name, samples_of(name, torch.float64, torch.int32)) for name in OPERATORS]
    return operations, raw


def operation(rng: random.Random) -> str | None:
    """One input of an operation is mutated, and what is accepted goes backward."""
    case, P, inputs = rng.choice(prepared()[0])
    inputs, at = list(inputs), rng.randrange(len(inputs))
    inputs[at] = mutated(inputs[at], rng)
    inputs = [t.detach().requires_grad_(t.is_floating_point() or t.is_complex()) for t in inputs]
    try:
        y = case.sparse(P, *inputs)
    except (ValueError, TypeError, IndexError):
        return None
    except RuntimeError as error:  # a NotImplementedError of torch is one
        given = f"{inputs[at].dtype} of shape {tuple(inputs[at].shape)}"
        return f"{case.name}: {type(error).__name__} for input {at}, {given}: {error}"
    if isinstance(y, torch.Tensor) and y.requires_grad:
        wanted = [t for t in inputs if t.requires_grad]
        torch.autograd.grad(y, wanted, torch.ones_like(y), allow_unused=True)
    return None


def mutated(t: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """Another size, dtype or layout, or NaN and infinite values. No other device."""
    if rng.random() < 0.2:
        t = t.clone()
        t.view(-1)[rng.randrange(max(t.numel(), 1)) :][:1] = rng.choice(
            (float("nan"), float("inf"), 0.0, 1e308)
        )
        return t
    while (other := sizes_of(t, rng)).is_meta:
        pass
    return other


def raw_operator(rng: random.Random) -> str | None:
    """A raw operator with one argument changed, under LEARNSOLVE_CHECK=1: it raises or returns."""
    name, samples = rng.choice(prepared()[1])
    arguments = corrupted(name, rng.choice(samples), rng, True)
    _library._cpu.learnsolve_check_contents(1)
    try:
        getattr(ops, name)(*arguments)
    except (RuntimeError, MemoryError, TypeError, ValueError):
        pass
    finally:
        _library._cpu.learnsolve_check_contents(os.environ.get("LEARNSOLVE_CHECK", "") not in ("", "0"))
    return None
