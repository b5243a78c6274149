"""Matrices for training and testing, and data sets of them.

`PROPERTIES` maps each name to the known properties of its matrices.
"""

from learnsolve.matrix.checks import export
from learnsolve.problems._grid import MatrixProperties
from learnsolve.problems.datasets import ProblemDataset, Sample, dataset
from learnsolve.problems.files import (
    GALLERY_PROPERTIES,
    MATRIX_MARKET_PROPERTIES,
    matrix_market,
    pyamg_gallery,
)
from learnsolve.problems.graphs import (
    GRAPH_LAPLACIAN_PROPERTIES,
    GROUNDED_LAPLACIAN_PROPERTIES,
    DelaunayGraph,
    delaunay_graph,
    graph_laplacian,
    grounded_laplacian,
)
from learnsolve.problems.grids import (
    ANISOTROPIC_PROPERTIES,
    CONVECTION_DIFFUSION_PROPERTIES,
    DIFFUSION_PROPERTIES,
    DIFFUSION_TENSOR_PROPERTIES,
    HELMHOLTZ_PROPERTIES,
    NODAL_DIFFUSION_PROPERTIES,
    POISSON_PROPERTIES,
    anisotropic,
    convection_diffusion,
    diffusion,
    diffusion_tensor,
    helmholtz,
    nodal_diffusion,
    poisson,
)
from learnsolve.problems.meshes import (
    MASS_PROPERTIES,
    STIFFNESS_PROPERTIES,
    TriangleMesh,
    p1_mass,
    p1_stiffness,
    random_mesh,
)
from learnsolve.problems.stochastic import RANDOM_SPD_PROPERTIES, gaussian_field, random_spd

PROPERTIES: dict[str, MatrixProperties] = {
    "anisotropic": ANISOTROPIC_PROPERTIES,
    "convection_diffusion": CONVECTION_DIFFUSION_PROPERTIES,
    "diffusion": DIFFUSION_PROPERTIES,
    "diffusion_tensor": DIFFUSION_TENSOR_PROPERTIES,
    "pyamg_gallery": GALLERY_PROPERTIES,
    "graph_laplacian": GRAPH_LAPLACIAN_PROPERTIES,
    "grounded_laplacian": GROUNDED_LAPLACIAN_PROPERTIES,
    "helmholtz": HELMHOLTZ_PROPERTIES,
    "matrix_market": MATRIX_MARKET_PROPERTIES,
    "nodal_diffusion": NODAL_DIFFUSION_PROPERTIES,
    "p1_mass": MASS_PROPERTIES,
    "p1_stiffness": STIFFNESS_PROPERTIES,
    "poisson": POISSON_PROPERTIES,
    "random_spd": RANDOM_SPD_PROPERTIES,
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
