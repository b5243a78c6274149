"""Recipes that learn from a batch of test vectors: a step may keep the hardest, processes may share them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Literal

from torch import Tensor

from learnsolve.recipes.harness.base import Recipe, RunSettings, SettingError, at_least, check_memory
from learnsolve.recipes.harness.vectors import normal_vectors

IDENTITY_LIMIT = 4096  # unknowns: n columns of n numbers, 128 MiB in float64, and several times that in use
HELD_OUT_VECTORS = 100


@dataclass
class VectorSettings(RunSettings):
    """Options of recipes that learn from a batch of test vectors.

    Parameters
    ----------
    hard_fraction : float
        Learn in each step only from this fraction of the test vectors, those with the largest losses.
    hard_pass : str
        With --hard_fraction: two computes the losses of all vectors without a graph, then those of the
        hardest again; one computes all with a graph, and gives zeros to the backward of the others.
    test_vectors : int
        How many random test vectors, or identity for the columns of I, which give the exact expectation.
    resample : bool
        Draw other test vectors at every step instead of a fixed set.
    held_out : int
        Random vectors to evaluate on; null for as many as test vectors, at most 100.
    """

    hard_fraction: float = 1.0
    hard_pass: Literal["two", "one"] = "two"
    test_vectors: int | Literal["identity"] = 100
    resample: bool = False
    held_out: int | None = None

    def check(self) -> None:
        super().check()
        if not 0 < self.hard_fraction <= 1:
            raise SettingError(
                f"--hard_fraction must be above 0 and at most 1, got {self.hard_fraction}; 0.25 keeps "
                "a quarter"
            )
        if self.hard_pass != "two" and self.hard_fraction == 1:
            raise SettingError(f"--hard_pass {self.hard_pass} needs a --hard_fraction below 1, such as 0.25")
        given = self.test_vectors
        if isinstance(given, int):
            at_least("test_vectors", given, 1)
        elif self.resample:
            raise SettingError("--resample true needs random vectors; give --test_vectors a number")
        if self.held_out is None:
            self.held_out = min(given, HELD_OUT_VECTORS) if isinstance(given, int) else HELD_OUT_VECTORS
        at_least("held_out", self.held_out, 1)

    def check_vectors(self, n: int, arrays: int) -> None:
        """Refuse vectors of n numbers for which the free memory is too small; a step holds `arrays` arrays of
        their size."""
        given = self.test_vectors
        if given == "identity" and n > IDENTITY_LIMIT:
            raise SettingError(
                f"--test_vectors identity needs n^2 numbers and takes n <= {IDENTITY_LIMIT}, but the matrix "
                f"has n = {n}; give it a number, such as 100"
            )
        many = max({"identity": n}.get(given, 1) if isinstance(given, str) else given, self.held_out or 0)
        what = f"--test_vectors {given} with n = {n}"
        check_memory(what, arrays * n * many, self, "use fewer (and --held_out), such as 4")


class VectorRecipe(Recipe):
    """A recipe whose loss is a sum over test vectors.

    Attributes
    ----------
    count : number of test vectors of a step, in all processes
    indices : those of this process: `share(count)` of `learnsolve.recipes.harness.parallel`. What a recipe
        records, or stops by, over all training vectors it sums by `summed` from there
    vector_dim : the axis of `vectors` along which they are counted
    """

    count: int
    indices: range
    vector_dim: ClassVar[int] = -1

    def vectors(self, step: int) -> Tensor:
        """The test vectors `indices` of `step`, possibly none; or numbers by which `losses` finds them."""
        raise NotImplementedError

    def losses(self, vectors: Tensor, step: int) -> Tensor:
        """One loss for each of `vectors`. Over all vectors they sum to the loss of the step: for a mean, each
        is divided by `count`."""
        raise NotImplementedError

    def total(self, vectors: Tensor, step: int) -> Tensor:
        """The sum of `losses`; for recipes that can compute it at a lower cost than one by one."""
        return self.losses(vectors, step).sum()

    def loss(self, step: int) -> Tensor:
        return self.total(self.vectors(step), step)

    def normal(self, A: Any, indices: range, stream: int, step: int = 0, rows: slice = slice(None)) -> Tensor:
        """Vectors from N(0, I) for the rows of A, each a function of the seed and these arguments."""
        return normal_vectors(
            A.shape[0],
            indices,
            seed=self.settings.seed,
            stream=stream,
            step=step,
            dtype=A.dtype,
            device=self.settings.device,
            rows=rows,
        )


def number_kept(fraction: float, count: int) -> int:
    """How many of `count` vectors are kept: ceil(fraction * count), for the fraction as it is written."""
    return math.ceil(Fraction(str(fraction)) * count)
