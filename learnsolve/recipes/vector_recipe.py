"""`VectorRecipe`: recipes that learn from a batch of test vectors, of which a step may keep the hardest, and
which several processes may share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Literal

from torch import Tensor

from learnsolve.recipes.base import Recipe, RunSettings, SettingError


@dataclass
class VectorSettings(RunSettings):
    """Options of recipes that learn from a batch of test vectors.

    Parameters
    ----------
    hard_fraction : float
        Learn in every step from this fraction of the test vectors only, those with the largest losses.
    hard_pass : str
        With --hard_fraction: two computes the losses of all vectors without a graph, then those of the
        hardest anew; one computes all with a graph, and gives zeros to the backward of the others.
    """

    hard_fraction: float = 1.0
    hard_pass: Literal["two", "one"] = "two"

    def check(self) -> None:
        super().check()
        if not 0 < self.hard_fraction <= 1:
            raise SettingError(
                f"--hard_fraction must be above 0 and at most 1, got {self.hard_fraction}; 0.25 keeps "
                "a quarter"
            )
        if self.hard_pass != "two" and self.hard_fraction == 1:
            raise SettingError(f"--hard_pass {self.hard_pass} needs a --hard_fraction below 1, such as 0.25")


class VectorRecipe(Recipe):
    """A recipe whose loss is a sum over test vectors.

    Attributes
    ----------
    count : how many test vectors a step has, in all processes
    indices : which of them this process has: `share(count)` of `learnsolve.recipes._parallel`. What a recipe
        stops by or records of all training vectors it sums by `summed` from there
    vector_dim : the axis of `vectors` along which they are counted
    """

    settings: Any
    count: int
    indices: range
    vector_dim: ClassVar[int] = -1

    def vectors(self, step: int) -> Tensor:
        """The test vectors `indices` of `step`, none of them possibly; or numbers by which `losses` finds
        them."""
        raise NotImplementedError

    def losses(self, vectors: Tensor, step: int) -> Tensor:
        """One loss for each of `vectors`. Over all vectors they add up to the loss of the step: for a mean,
        each is divided by `count`."""
        raise NotImplementedError

    def total(self, vectors: Tensor, step: int) -> Tensor:
        """The sum of `losses`; for recipes that have it cheaper than one by one."""
        return self.losses(vectors, step).sum()

    def loss(self, step: int) -> Tensor:
        return self.total(self.vectors(step), step)


def number_kept(fraction: float, count: int) -> int:
    """How many of `count` vectors are kept: ceil(fraction * count), for the fraction as it is written."""
    return math.ceil(Fraction(str(fraction)) * count)
