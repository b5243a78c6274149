"""Training tasks, one a file: settings, how to build, the loss, what to report and plot.

`learnsolve.train` runs them. `RECIPES` lists them without importing any.
"""

import importlib
from dataclasses import dataclass

from learnsolve.recipes.base import Recipe


@dataclass(frozen=True)
class Entry:
    """Where a recipe's class is, and what it learns in one sentence."""

    module: str
    class_name: str
    summary: str


RECIPES: dict[str, Entry] = {
    "jacobi": Entry(
        "learnsolve.recipes.jacobi", "JacobiRecipe", "One weight for every row of Jacobi's method."
    ),
    "heavyball": Entry(
        "learnsolve.recipes.heavyball", "HeavyballRecipe", "Step and momentum of the heavy ball."
    ),
    "pcg": Entry(
        "learnsolve.recipes.pcg", "PcgRecipe", "A preconditioner for conjugate gradients, by their residuals."
    ),
    "gcn": Entry(
        "learnsolve.recipes.gcn", "GcnRecipe", "Classes of a citation graph's nodes, by graph convolutions."
    ),
}


def load(name: str) -> type[Recipe]:
    """The class of the recipe `name`."""
    entry = RECIPES[name]
    return getattr(importlib.import_module(entry.module), entry.class_name)


__all__ = ["RECIPES", "Entry", "Recipe", "load"]
