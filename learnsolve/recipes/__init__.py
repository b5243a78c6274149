"""Training tasks: settings, model, loss, report and plots.

`learnsolve.train` runs them. `RECIPES` lists them without importing any. `training` is their shared code.
"""

import importlib
from dataclasses import dataclass

from learnsolve.recipes.training.recipe import Recipe


@dataclass(frozen=True)
class Entry:
    """The recipe's class, a phrase on what it learns, and its module here, if that has another name."""

    class_name: str
    summary: str
    module: str = ""


RECIPES: dict[str, Entry] = {
    "jacobi": Entry("JacobiRecipe", "One weight for every row of Jacobi's method."),
    "heavyball": Entry("HeavyballRecipe", "Step and momentum of the heavy ball."),
    "heavyball_network": Entry("HeavyballNetworkRecipe", "A network that predicts both from the matrix."),
    "pcg": Entry("PcgRecipe", "A preconditioner for conjugate gradients, by their residuals."),
    "precorrector": Entry(
        "PrecorrectorRecipe", "A network that corrects incomplete Cholesky factors.", "family"
    ),
    "neuralif": Entry(
        "NeuralifRecipe", "A network that predicts incomplete factors of random matrices.", "family"
    ),
    "stencil": Entry("StencilRecipe", "A perceptron that predicts factors from the stencils of a grid."),
    "gnp": Entry("GnpRecipe", "A nonlinear network for one matrix that ILU(0) fails on."),
    "multigrid": Entry("MultigridRecipe", "A network that corrects the prolongations of multigrid."),
    "newton": Entry("NewtonRecipe", "A network that predicts the start of Newton's method."),
    "gcn": Entry("GcnRecipe", "Classes of a citation graph's nodes, by graph convolutions."),
}


def load(name: str) -> type[Recipe]:
    """The class of the recipe `name`."""
    entry = RECIPES[name]
    return getattr(importlib.import_module(f"learnsolve.recipes.{entry.module or name}"), entry.class_name)


__all__ = ["RECIPES", "Entry", "Recipe", "load"]
