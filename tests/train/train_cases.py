"""The recipes on small problems: as objects, and as runs of the training program."""

from typing import Any

from learnsolve import recipes

FEW = "--matrices 3 --batch 2 --held_out_matrices 2 --test_vectors 3 --width 3 --validated 1"
FEW += " --evaluated 1 --scales [] --repeats 1"
GRAPH = f"{FEW} --rounds 1"
# Options with which each recipe is small.
SMALL = {
    "jacobi": "--test_vectors 5",
    "heavyball": "--test_vectors 5",
    "heavyball_network": "--grid [3,4] --matrices 3 --held_out_matrices 2",
    "pcg": "--problem.shape [5,4] --test_vectors 5 --held_out 5 --evaluated 2",
    "precorrector": f"--grid 4 {GRAPH}",
    "neuralif": f"--rows 12 --density 0.2 {GRAPH}",
    "multigrid": f"--grid 6 {GRAPH}",
    "stencil": f"--grid 4 {FEW} --layers 2",
    "gnp": "--problem.shape [5,4] --test_vectors 3 --width 3 --layers 1 --krylov 4 --evaluated 1 --repeats 1",
    "newton": "--grid 4 --modes 2 --width 3 --rounds 1 --batch 2 --held_out 1 --evaluated 1 --scales [] "
    "--solved 2 --repeats 1",
    "gcn": "",
}


def make(name: str, **options: Any) -> Any:
    """The recipe; `shape` is --problem.shape."""
    Recipe = recipes.load(name)
    shape = options.pop("shape", None)
    settings: Any = Recipe.Settings(**options)
    if shape is not None:
        settings.problem.shape = shape
    settings.check()
    return Recipe(settings)
