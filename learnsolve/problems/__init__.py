"""Matrices for training and testing, and data sets of them.

`PROPERTIES` maps each name to the known properties of its matrices.
"""

from learnsolve.matrix.checks import export
from learnsolve.problems import files, graphs, grids, meshes, stochastic
from learnsolve.problems._grid import MatrixProperties
from learnsolve.problems.datasets import ProblemDataset, Sample, dataset
from learnsolve.problems.files import matrix_market, pyamg_gallery
from learnsolve.problems.graphs import DelaunayGraph, delaunay_graph, graph_laplacian, grounded_laplacian
from learnsolve.problems.grids import (
    anisotropic,
    convection_diffusion,
    diffusion,
    diffusion_tensor,
    helmholtz,
    nodal_diffusion,
    poisson,
)
from learnsolve.problems.meshes import TriangleMesh, p1_mass, p1_stiffness, random_mesh
from learnsolve.problems.stochastic import gaussian_field, random_spd

PROPERTIES: dict[str, MatrixProperties] = {
    name: facts
    for family in (grids, graphs, meshes, stochastic, files)
    for name, facts in family.PROPERTIES.items()
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
    "diffusion_tensor",
    "gaussian_field",
    "graph_laplacian",
    "grounded_laplacian",
    "helmholtz",
    "matrix_market",
    "nodal_diffusion",
    "p1_mass",
    "p1_stiffness",
    "poisson",
    "pyamg_gallery",
    "random_mesh",
    "random_spd",
]
export(globals())
