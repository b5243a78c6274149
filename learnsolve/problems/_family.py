"""The base of the families of `dataset`: seeds, right-hand sides, parameter checks."""

import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.problems.gaussian_field import two_fields


class Family:
    """Base of all families: frozen dataclasses whose fields are the parameters of the data set, checked on
    construction. `draw(seed)` returns the arguments of `problem`.

    Attributes
    ----------
    problem : the function of `learnsolve.problems` that makes the matrix
    right_hand_side : "normal", N(0, I); "uniform", U(0, 1); or "solution": b = A x with x ~ N(0, I)
    one_pattern : whether all samples have the same pattern
    first_seeds : of the three splits
    """

    problem: ClassVar[Callable[..., CSR]]
    right_hand_side: ClassVar[Literal["normal", "uniform", "solution"]] = "normal"
    one_pattern: ClassVar[bool] = True
    first_seeds: ClassVar[dict[str, int]] = {"train": 0, "validation": 2**40, "test": 2**41}

    def draw(self, seed: int) -> dict[str, Any]:
        raise NotImplementedError

    def constants(self) -> dict[str, Any]:
        """The arguments of `problem` that all samples share."""
        return {}

    def _integer(self, name: str, minimum: int) -> None:
        checks.integer("dataset", name, getattr(self, name), minimum)

    def _real(self, name: str, rule: str = "finite and not negative") -> None:
        checks.real("dataset", name, getattr(self, name), rule)

    def _one_of(self, name: str, *allowed: str) -> None:
        checks.one_of("dataset", name, getattr(self, name), allowed)


def in_order(name: str, value: Any) -> tuple[float, float]:
    """`value` as (smallest, largest)."""
    try:
        low, high = (float(v) for v in value)
    except (TypeError, ValueError):
        raise ValueError(f"dataset: {name} must be (smallest, largest), got {value!r}") from None
    if not 0 < low <= high < math.inf:
        raise ValueError(f"dataset: {name} must be 0 < smallest <= largest < inf, got {value!r}")
    return low, high


def rejection_fields(seed: int, *arguments: Any) -> Iterator[np.ndarray]:
    """10,000 independent fields of variance 1, from which the first accepted one is used."""
    rng = np.random.default_rng(seed)
    for _ in range(5000):
        yield from two_fields(rng, *arguments)


def right_hand_side(family: Family, seed: int, A: CSR) -> tuple[Tensor, Tensor | None]:
    """(b, x), with x None if it is not known."""
    # A separate random stream: b is independent of the result of `draw` for the same seed.
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
    n = A.shape[0]
    vector = rng.random(n) if family.right_hand_side == "uniform" else rng.standard_normal(n)
    vector = torch.from_numpy(vector).to(A.dtype)
    return (A @ vector, vector) if family.right_hand_side == "solution" else (vector, None)
