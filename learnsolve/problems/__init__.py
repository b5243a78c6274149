"""Matrices for training and testing, one family per file, and data sets of them.

`PROPERTIES` maps each name to the known properties of its matrices.
"""

from learnsolve.matrix.autocast import guard
from learnsolve.problems.anisotropic import PROPERTIES as _anisotropic
from learnsolve.problems.anisotropic import anisotropic
from learnsolve.problems.convection_diffusion import PROPERTIES as _convection_diffusion
from learnsolve.problems.convection_diffusion import convection_diffusion
from learnsolve.problems.datasets import ProblemDataset, Sample, dataset
from learnsolve.problems.delaunay_graph import DelaunayGraph, delaunay_graph
from learnsolve.problems.diffusion import PROPERTIES as _diffusion
from learnsolve.problems.diffusion import diffusion
from learnsolve.problems.gallery import PROPERTIES as _gallery
from learnsolve.problems.gallery import gallery
from learnsolve.problems.gaussian_field import gaussian_field
from learnsolve.problems.graph_laplacian import PROPERTIES as _graph_laplacian
from learnsolve.problems.graph_laplacian import graph_laplacian
from learnsolve.problems.grounded_laplacian import PROPERTIES as _grounded_laplacian
from learnsolve.problems.grounded_laplacian import grounded_laplacian
from learnsolve.problems.helmholtz import PROPERTIES as _helmholtz
from learnsolve.problems.helmholtz import helmholtz
from learnsolve.problems.matrix_market import PROPERTIES as _matrix_market
from learnsolve.problems.matrix_market import matrix_market
from learnsolve.problems.mesh import TriangleMesh, random_mesh
from learnsolve.problems.nodal_diffusion import PROPERTIES as _nodal_diffusion
from learnsolve.problems.nodal_diffusion import nodal_diffusion
from learnsolve.problems.p1 import MASS_PROPERTIES, STIFFNESS_PROPERTIES, p1_mass, p1_stiffness
from learnsolve.problems.poisson import PROPERTIES as _poisson
from learnsolve.problems.poisson import poisson
from learnsolve.problems.properties import MatrixProperties
from learnsolve.problems.random_spd import PROPERTIES as _random_spd
from learnsolve.problems.random_spd import random_spd

PROPERTIES: dict[str, MatrixProperties] = {
    "anisotropic": _anisotropic,
    "convection_diffusion": _convection_diffusion,
    "diffusion": _diffusion,
    "gallery": _gallery,
    "graph_laplacian": _graph_laplacian,
    "grounded_laplacian": _grounded_laplacian,
    "helmholtz": _helmholtz,
    "matrix_market": _matrix_market,
    "nodal_diffusion": _nodal_diffusion,
    "p1_mass": MASS_PROPERTIES,
    "p1_stiffness": STIFFNESS_PROPERTIES,
    "poisson": _poisson,
    "random_spd": _random_spd,
}

__all__ = [
    "PROPERTIES",
    "DelaunayGraph",
    "MatrixProperties",
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
