"""Training tasks: settings, model, loss, report and plots.

`learnsolve.train` runs them. `RECIPES` lists them without importing any. `training` is their shared code.
"""

import importlib

from learnsolve.recipes.training.recipe import Recipe

RECIPES = {
    "jacobi": "One weight for every row of Jacobi's method.",
    "heavyball": "Step and momentum of the heavy ball.",
    "heavyball_network": "A network that predicts both from the matrix.",
    "pcg": "A preconditioner for conjugate gradients, by their residuals.",
    "precorrector": "A network that corrects incomplete Cholesky factors.",
    "neuralif": "A network that predicts incomplete factors of random matrices.",
    "stencil": "A perceptron that predicts factors from the stencils of a grid.",
    "gnp": "A nonlinear network for one matrix that ILU(0) fails on.",
    "multigrid": "A network that corrects the prolongations of multigrid.",
    "newton": "A network that predicts the start of Newton's method.",
    "gcn": "Classes of a citation graph's nodes, by graph convolutions.",
}
FAMILY = dict.fromkeys(("precorrector", "neuralif", "stencil", "multigrid"), "family")
MODULES = {**FAMILY, "heavyball_network": "heavyball"}  # the others have a file each


def load(name: str) -> type[Recipe]:
    """The class of the recipe `name`: HeavyballNetworkRecipe of heavyball_network."""
    module = importlib.import_module(f"learnsolve.recipes.{MODULES.get(name, name)}")
    return getattr(module, f"{name.title().replace('_', '')}Recipe")


__all__ = ["RECIPES", "Recipe", "load"]
