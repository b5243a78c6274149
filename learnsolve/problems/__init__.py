"""Matrices for training and testing, one family per file.

`FACTS` maps each name to the known properties of its matrices.
"""

from learnsolve.problems.anisotropic import FACTS as _anisotropic
from learnsolve.problems.anisotropic import anisotropic
from learnsolve.problems.diffusion import FACTS as _diffusion
from learnsolve.problems.diffusion import diffusion
from learnsolve.problems.facts import Facts
from learnsolve.problems.gallery import FACTS as _gallery
from learnsolve.problems.gallery import gallery
from learnsolve.problems.graph_laplacian import FACTS as _graph_laplacian
from learnsolve.problems.graph_laplacian import graph_laplacian
from learnsolve.problems.matrix_market import FACTS as _matrix_market
from learnsolve.problems.matrix_market import matrix_market
from learnsolve.problems.poisson import FACTS as _poisson
from learnsolve.problems.poisson import poisson

FACTS: dict[str, Facts] = {
    "anisotropic": _anisotropic,
    "diffusion": _diffusion,
    "gallery": _gallery,
    "graph_laplacian": _graph_laplacian,
    "matrix_market": _matrix_market,
    "poisson": _poisson,
}

__all__ = [
    "FACTS",
    "Facts",
    "anisotropic",
    "diffusion",
    "gallery",
    "graph_laplacian",
    "matrix_market",
    "poisson",
]
