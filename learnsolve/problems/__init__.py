"""Matrices for training and testing, one family per file, and data sets of them.

`FACTS` maps each name to the known properties of its matrices.
"""

from learnsolve._autocast import guard
from learnsolve.problems.anisotropic import FACTS as _anisotropic
from learnsolve.problems.anisotropic import anisotropic
from learnsolve.problems.convection_diffusion import FACTS as _convection_diffusion
from learnsolve.problems.convection_diffusion import convection_diffusion
from learnsolve.problems.datasets import ProblemDataset, Sample, dataset
from learnsolve.problems.delaunay_graph import DelaunayGraph, delaunay_graph
from learnsolve.problems.diffusion import FACTS as _diffusion
from learnsolve.problems.diffusion import diffusion
from learnsolve.problems.facts import Facts
from learnsolve.problems.gallery import FACTS as _gallery
from learnsolve.problems.gallery import gallery
from learnsolve.problems.gaussian_field import gaussian_field
from learnsolve.problems.graph_laplacian import FACTS as _graph_laplacian
from learnsolve.problems.graph_laplacian import graph_laplacian
from learnsolve.problems.grounded_laplacian import FACTS as _grounded_laplacian
from learnsolve.problems.grounded_laplacian import grounded_laplacian
from learnsolve.problems.helmholtz import FACTS as _helmholtz
from learnsolve.problems.helmholtz import helmholtz
from learnsolve.problems.matrix_market import FACTS as _matrix_market
from learnsolve.problems.matrix_market import matrix_market
from learnsolve.problems.mesh import TriangleMesh, random_mesh
from learnsolve.problems.nodal_diffusion import FACTS as _nodal_diffusion
from learnsolve.problems.nodal_diffusion import nodal_diffusion
from learnsolve.problems.p1 import MASS_FACTS, STIFFNESS_FACTS, p1_mass, p1_stiffness
from learnsolve.problems.poisson import FACTS as _poisson
from learnsolve.problems.poisson import poisson
from learnsolve.problems.random_spd import FACTS as _random_spd
from learnsolve.problems.random_spd import random_spd

FACTS: dict[str, Facts] = {
    "anisotropic": _anisotropic,
    "convection_diffusion": _convection_diffusion,
    "diffusion": _diffusion,
    "gallery": _gallery,
    "graph_laplacian": _graph_laplacian,
    "grounded_laplacian": _grounded_laplacian,
    "helmholtz": _helmholtz,
    "matrix_market": _matrix_market,
    "nodal_diffusion": _nodal_diffusion,
    "p1_mass": MASS_FACTS,
    "p1_stiffness": STIFFNESS_FACTS,
    "poisson": _poisson,
    "random_spd": _random_spd,
}

__all__ = [
    "FACTS",
    "DelaunayGraph",
    "Facts",
    "ProblemDataset",
    "Sample",
    "TriangleMesh",
    "anisotropic",
    "convection_diffusion",
    "dataset",
    "delaunay_graph",
    "diffusion",
    "gallery",
    "gaussian_field",
    "graph_laplacian",
    "grounded_laplacian",
    "helmholtz",
    "matrix_market",
    "nodal_diffusion",
    "p1_mass",
    "p1_stiffness",
    "poisson",
    "random_mesh",
    "random_spd",
]
guard(globals())
