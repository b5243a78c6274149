"""What problems refuse, and in which words."""

import math

import numpy as np
import pytest
import torch
from problems.graphs import GROUNDED, PATHS

import learnsolve as ls

P = ls.problems
pytestmark = pytest.mark.cpu_only

E1 = torch.tensor([[0], [1]])
MESH = P.random_mesh(20, seed=1)
ONE = torch.ones(len(MESH.triangles))
SQUARE = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
TWO = torch.tensor([[0, 1, 2], [0, 2, 3]])
NONE = torch.zeros(4, dtype=torch.bool)
KAPPA = torch.ones(5, 4, 3)


def laplacian(edges, **options):
    return P.graph_laplacian(torch.tensor(edges), **{"both_directions": False} | options)


def grounded(**change):
    arguments = {"edge_index": PATHS, "weights": torch.ones(7), "grounded": GROUNDED, **change}
    return P.grounded_laplacian(**arguments, both_directions=False)


def kappa(value):
    k = torch.ones(2, 3, 4)
    k[1, 0, 2] = value
    return k


def spd(**options):
    return P.random_spd(**{"n": 10, "seed": 0} | options)


def convection(*shape, **options):
    return P.convection_diffusion(torch.ones(shape), **options)


def nodal(*shape, **options):
    return P.nodal_diffusion(torch.ones(shape), **options)


def field(**options):
    return P.gaussian_field(**{"shape": (4, 4), "seed": 0} | options)


def data(name, split="train", count=1, **options):
    return P.dataset(name, split, count, **options)


SPD, LOG = "random_spd", "log_gaussian_diffusion"
VALUES = [
    (lambda: P.poisson(()), r"poisson: shape must have 1 or 2 or 3 dimensions, got \(\)"),
    (lambda: P.poisson((2, 2, 2, 2)), "poisson: shape must have 1 or 2 or 3 dimensions"),
    (lambda: P.poisson((3, 0)), r"poisson: .* at least one grid point per dimension, got \(3, 0\)"),
    (lambda: P.poisson(-1), "poisson: .* at least one grid point per dimension, got -1"),
    (lambda: P.poisson(3, stencil="fe"), r"poisson: stencil must be one of \('fd', 'q1'\), got 'fe'"),
    (lambda: P.poisson(3, boundary="neumann"), "poisson: boundary must be one of .*'periodic'.*'neumann'"),
    (lambda: P.poisson((4, 2), boundary="periodic"), r"poisson: .* 3 points along each axis.*\(4, 2\)"),
    (lambda: P.poisson((3, 3), rows=(2, 10)), r"poisson: rows must be \(lo, hi\) with 0 <= lo <= hi <= 9"),
    (lambda: P.anisotropic((3,), 0.1, 0.0), "anisotropic: shape must have 2 dimensions"),
    (lambda: P.anisotropic((3, 3), 0.0, 0.0), "anisotropic: epsilon must be positive and finite, got 0.0"),
    (lambda: P.anisotropic((3, 3), math.inf, 0.0), "anisotropic: epsilon must be positive .*, got inf"),
    (lambda: P.anisotropic((3, 3), math.nan, 0.0), "anisotropic: epsilon must be positive .*, got nan"),
    (lambda: P.anisotropic((3, 3), 0.1, math.nan), "anisotropic: theta must be finite, got nan"),
    (lambda: P.anisotropic((3, 3), 1.0, 0.0, discretization="FE"), "discretization must be one of .* 'FE'"),
    (lambda: P.gallery("nought"), "gallery: name must be one of airfoil, bar, .*, unit_square, got 'nought'"),
    (lambda: spd(n=0), "random_spd: n must be at least 1"),
    (lambda: spd(seed=-1), "random_spd: seed must be at least 0"),
    (lambda: spd(density=0.0), "random_spd: density must lie in 0 < density <= 1, got 0.0"),
    (lambda: spd(density=1.5), "random_spd: density must lie in"),
    (lambda: spd(alpha=0.0), "random_spd: alpha must be positive and finite, got 0.0"),
    (lambda: spd(alpha=math.nan), "random_spd: alpha must be positive"),
    # coefficients on grids
    *(
        (
            lambda v=value: P.diffusion(kappa(v)),
            rf"diffusion: kappa must be positive and finite, got kappa\[1, 0, 2\] = {value}; .* torch.exp",
        )
        for value in (0.0, -1.5, math.inf, math.nan)
    ),
    (lambda: P.diffusion(torch.ones(3)), r"diffusion: kappa must have 2 or 3 axes, got shape \(3,\)"),
    (lambda: P.diffusion(torch.ones(2, 2, 2, 2)), "diffusion: .* pass dimensions, the number of axes"),
    (lambda: P.diffusion(torch.ones(2, 2), dimensions=3), r"shape \(..., nx, ny, nz\), .*, got \(2, 2\)"),
    (lambda: P.diffusion(torch.ones(2, 2), dimensions=1), "diffusion: dimensions must be 2 or 3, got 1"),
    (lambda: P.diffusion(torch.ones(2, 0)), "diffusion: .* with a grid point at least"),
    (lambda: P.diffusion(KAPPA, dimensions=2, rows=(0, 1)), "diffusion: rows are of one grid"),
    (lambda: nodal(1, 4), r"nodal_diffusion: .* at least 2 x 2 cells .*dirichlet.* got \(1, 4\)"),
    (lambda: nodal(2, 4, boundary="periodic"), "nodal_diffusion: .* at least 3 x 3 cells"),
    (lambda: nodal(4), r"nodal_diffusion: .* shape \(..., cx, cy\)"),
    (lambda: nodal(4, 4, stencil="fe"), r"nodal_diffusion: stencil must be one of \('fd', 'q1'\)"),
    (lambda: nodal(4, 4, boundary="neumann"), "nodal_diffusion: boundary must be one of"),
    (lambda: nodal(4, 4, shift=-1.0), "nodal_diffusion: shift must be finite and not negative"),
    (lambda: nodal(4, 4, shift=math.nan), "nodal_diffusion: shift must be finite and not negative"),
    (lambda: P.nodal_diffusion(torch.zeros(4, 4)), r"kappa must be positive and finite, got kappa\[0, 0\]"),
    (lambda: convection(3, 4, 4), r"wind must have shape \(..., 2, nx, ny\).* got \(3, 4, 4\)"),
    (lambda: convection(5), "an axis of components and 1, 2 or 3 axes, got .* for a batch, pass"),
    (lambda: convection(2, 4, 0), "convection_diffusion: wind must have shape"),
    (lambda: convection(2, 4, 4, dimensions=4), "dimensions must be 1, 2 or 3, got 4"),
    (lambda: convection(2, 4, 4, scheme="downwind"), "convection_diffusion: scheme must be one of"),
    (lambda: convection(2, 4, 4, peclet=-1.0), "peclet must be finite and not negative"),
    (lambda: convection(2, 4, 4, reaction=math.nan), "convection_diffusion: reaction must be finite"),
    (lambda: convection(2, 4, 4, reaction=torch.ones(3)), r"reaction must have.*\(3,\)"),
    (lambda: P.helmholtz(torch.ones(())), "helmholtz: kh must have 1, 2 or 3 axes"),
    (lambda: P.helmholtz(torch.ones(2, 2, 2, 2)), "helmholtz: .* for a batch, pass dimensions"),
    (lambda: P.helmholtz(torch.ones(4), dimensions=2), r"helmholtz: kh must have shape \(..., nx, ny\)"),
    (lambda: P.helmholtz(torch.ones(4, 0)), "helmholtz: .* with a grid point at least"),
    (lambda: P.helmholtz(torch.ones(4), dimensions=0), "helmholtz: dimensions must be 1, 2 or 3, got 0"),
    (lambda: P.helmholtz(torch.ones(4), boundary="open"), "helmholtz: boundary must be one of"),
    (lambda: P.helmholtz(torch.ones(4), shift=complex(1, math.inf)), "helmholtz: shift must be finite"),
    (lambda: P.helmholtz(torch.ones(4), shift=math.inf), "helmholtz: shift must be finite"),
    # graphs
    (
        lambda: laplacian([[0, 1, 1, 2], [1, 0, 2, 2]], both_directions=True),
        r"in both directions, got \[1, 2\] 1 times and \[2, 1\] 0 times; .* pass both_directions=False",
    ),
    (lambda: laplacian([[0, 1], [1, 3]], n=3), r"nodes .* 0 <= index < 3, got edge_index\[1\]\[1\] = 3"),
    (lambda: laplacian([[0], [-1]]), r"0 <= index < 1, got edge_index\[1\]\[0\] = -1"),
    (lambda: laplacian([[0, 1, 2]]), r"graph_laplacian: .* shape \(2, E\), got \(1, 3\)"),
    (lambda: laplacian([[0, 1], [1, 2], [2, 0]]), r"shape \(2, E\), got \(3, 2\); of pairs, .* pairs.T"),
    (lambda: P.graph_laplacian(E1[:, :0]), "graph_laplacian: without edges, n must give the number of nodes"),
    (lambda: laplacian([[0], [1]], n=-1), "graph_laplacian: n must be at least 0"),
    (lambda: laplacian([[0], [1]], shift=-1.0), "shift must be finite and not negative, got -1.0"),
    (lambda: laplacian([[0], [1]], shift=math.nan), "shift must be finite and not negative, got nan"),
    (lambda: laplacian([[0], [1]], weights=torch.ones(2)), r"weights .* \(..., m = 1\), got \(2,\)"),
    (lambda: laplacian([[0], [1]], weights=torch.tensor(1.0)), "graph_laplacian: weights must have shape"),
    (lambda: laplacian([[0], [1]], weights=torch.tensor([[1.0], [-2.0]])), r"weights\[1, 0\] = -2.0"),
    (
        lambda: laplacian([[0], [1]], weights=torch.tensor([math.nan])),
        r"graph_laplacian: .*weights\[0\] = nan",
    ),
    (lambda: grounded(edge_index=torch.tensor([[0, 1], [1, 7]])), r"< 7, got edge_index\[1\]\[1\] = 7"),
    (
        lambda: grounded(edge_index=torch.tensor([[-1], [0]])),
        r"grounded_laplacian: .*edge_index\[0\]\[0\] = -1",
    ),
    (lambda: grounded(edge_index=PATHS.T), r"grounded_laplacian: .* got \(7, 2\); of pairs, .* pairs.T"),
    (lambda: grounded(weights=torch.ones(3)), r"grounded_laplacian: weights must have shape \(..., m = 7\)"),
    (lambda: grounded(weights=-torch.ones(7)), r"grounded_laplacian: .*weights\[0\] = -1.0"),
    (lambda: grounded(weights=torch.full((7,), math.nan)), r"grounded_laplacian: .*weights\[0\] = nan"),
    (lambda: grounded(grounded=GROUNDED[None]), r"grounded_laplacian: grounded must have shape \(nodes,\)"),
    (
        lambda: grounded(grounded=torch.ones(7, dtype=torch.bool)),
        "grounded_laplacian: all nodes are grounded",
    ),
    (lambda: P.delaunay_graph(2, 0), "delaunay_graph: n must be at least 3"),
    (lambda: P.delaunay_graph(10, -1), "delaunay_graph: seed must be at least 0"),
    (lambda: P.delaunay_graph(10, 0, boundary="neumann"), "delaunay_graph: boundary must be one of"),
    (lambda: P.delaunay_graph(10, 0, boundary="periodic", blocks=2), "blocks must be at least 3"),
    (lambda: P.delaunay_graph(3, 0), "delaunay_graph: each of the n = 3 points has a neighbor outside"),
    # meshes
    (lambda: P.p1_mass(MESH, ONE[1:]), r"p1_mass: rho must have shape \(..., triangles = "),
    (lambda: P.p1_stiffness(MESH, 0 * ONE), r"p1_stiffness: kappa must be positive .*, got kappa\[0\]"),
    (lambda: P.random_mesh(3, seed=0), "random_mesh: n must be at least 16"),
    (lambda: P.random_mesh(30, seed=0, domain="disc"), "random_mesh: domain must be one of"),
    (lambda: P.TriangleMesh(SQUARE, TWO), "TriangleMesh: .*all points are fixed"),
    (lambda: P.TriangleMesh(SQUARE, TWO + 2, NONE), r"0 <= point < 4, got triangles\[0\] = \[2, 3, 4\]"),
    (lambda: P.TriangleMesh(SQUARE, TWO[:, :2], NONE), r"TriangleMesh: triangles must have shape \(any, 3\)"),
    (lambda: P.TriangleMesh(SQUARE[:, :1], TWO, NONE), r"TriangleMesh: points must have shape \(any, 2\)"),
    (lambda: P.TriangleMesh(SQUARE, TWO, NONE[:3]), r"a bool tensor of shape \(points = 4,\)"),
    (lambda: P.TriangleMesh(SQUARE, E1.new_tensor([[0, 1, 1]]), NONE), r"have an area, got triangles\[0\]"),
    (lambda: P.TriangleMesh(SQUARE / 0, TWO, NONE), r"TriangleMesh: points must be finite, got points\[0\]"),
    (
        lambda: torch.func.vmap(lambda x: P.TriangleMesh(x, TWO, NONE).areas)(SQUARE.expand(2, 4, 2)),
        "TriangleMesh: inside torch.func.vmap",
    ),
    # random fields and data sets
    (lambda: field(shape=(3, 3, 3, 3)), "gaussian_field: .*1 or 2 or 3 dimensions"),
    (lambda: field(shape=(3, 0)), "gaussian_field: .*at least one grid point"),
    (lambda: field(seed=-1), "gaussian_field: seed must be at least 0"),
    (lambda: field(length=0.0), "gaussian_field: length must be positive and finite, got 0.0"),
    (lambda: field(spacing=math.inf), "gaussian_field: spacing must be positive and finite"),
    (lambda: field(variance=-1.0), "gaussian_field: variance must be finite and not negative"),
    (lambda: field(covariance="gauss"), r"covariance must be one of \('gaussian', 'exponential'\)"),
    (lambda: data("poisson"), "dataset: name must be one of convection_diffusion, .*, random_spd"),
    (lambda: data(None), "dataset: name must be one of"),
    (lambda: data(SPD, "val"), r"dataset: split must be one of \('train', 'validation', 'test'\)"),
    (lambda: data(SPD, count=-1), "dataset: .*count must be at least 0"),
    (lambda: data(SPD, count=10_001), r"dataset: .* 10000 seeds for split='train'.* got count=10001"),
    (lambda: data(SPD, m=3), "dataset: .*the parameters n, density, alpha, got 'm'"),
    (lambda: data(SPD, n=0), "dataset: .*n must be at least 1"),
    (lambda: data(SPD, density=0.0), "dataset: .*density must be positive"),
    (lambda: data(LOG, n=32), r"dataset: .*no contrast .* \(32, 0.5\)"),
    (lambda: data(LOG, contrast="all"), "dataset: .*contrast must be one of"),
    (lambda: data(LOG, contrast=(9, 2)), "dataset: .*0 < smallest <= largest"),
    (lambda: data(LOG, contrast=9.0), r"dataset: .*\(smallest, largest\)"),
    (lambda: data(LOG, variance=math.nan), "dataset: .*variance must be finite"),
    (lambda: data("q1_diffusion", n=12), "dataset: .*period must divide n = 12, got 8"),
    (lambda: data("q1_diffusion", n=2, period=None), "dataset: .*n must be at least 3"),
    (lambda: data("delaunay_laplacian", weights="one"), "dataset: .*weights must be one of"),
    (lambda: data("p1_diffusion", domain="disc"), "dataset: .*domain must be one of"),
    (lambda: data("convection_diffusion", epsilon=0), "dataset: .*epsilon must be 0 < smallest"),
    (lambda: data("helmholtz", mean=2.0), "dataset: .*mean must be larger than minimum = 3.0"),
    (lambda: data("helmholtz", dimensions=4), "dataset: .*dimensions must be one of"),
    (lambda: data("helmholtz", shift=math.inf), "dataset: .*shift must be finite"),
]
TYPES = [
    (lambda: P.poisson(2.0), "poisson: shape must be an int or a tuple of ints, got 2.0"),
    (lambda: P.poisson((2, 2.5)), "poisson: shape must be an int or a tuple of ints"),
    (lambda: P.poisson("16"), "poisson: shape must be an int or a tuple of ints"),
    (lambda: P.poisson(3, dtype=torch.int64), "poisson: dtype must be torch.float32 or torch.float64"),
    (lambda: P.anisotropic((3, 3), torch.tensor(0.1), 0.0), "epsilon must be a number, got Tensor"),
    (lambda: P.anisotropic((3, 3), 0.1, "x"), "anisotropic: theta must be a number, got str"),
    (
        lambda: P.anisotropic((3, 3), 0.1, 0.0, dtype=torch.float16),
        "anisotropic: dtype must be torch.float32",
    ),
    (lambda: P.anisotropic((3, 3), 0.1, 0.0, rows=3), "anisotropic: rows must be two ints"),
    (
        lambda: P.gallery("knot", dtype=torch.complex64),
        "gallery: dtype must be torch.float32 or torch.float64",
    ),
    (lambda: spd(n=2.0), "random_spd: n must be an int"),
    (lambda: spd(dtype=torch.float16), "random_spd: dtype must be"),
    (lambda: P.diffusion(torch.ones(2, 2).long()), "diffusion: kappa must be float32 or float64"),
    (lambda: P.diffusion(np.ones((2, 2))), "diffusion: kappa must be a torch.Tensor, got ndarray"),
    (lambda: P.nodal_diffusion(torch.ones(4, 4).int()), "nodal_diffusion: kappa must be float32 or float64"),
    (lambda: P.nodal_diffusion([[1.0]]), "nodal_diffusion: kappa must be a torch.Tensor"),
    (lambda: convection(2, 4, 4, peclet=torch.ones(())), "convection_diffusion: peclet must be a number"),
    (lambda: convection(2, 4, 4, reaction=torch.ones(4).double()), "reaction has dtype"),
    (lambda: P.convection_diffusion(torch.ones(2, 4, 4).long()), "wind must be float32 or float64"),
    (lambda: P.helmholtz(torch.ones(4), shift=torch.ones(())), "helmholtz: shift must be a number"),
    (lambda: P.helmholtz(torch.ones(4, dtype=torch.complex64)), "kh must be real, got torch.complex64"),
    (lambda: laplacian([[0], [1]], both_directions=1), "both_directions must be True or False, got 1"),
    (lambda: laplacian([[0.0], [1.0]]), "graph_laplacian: edge_index must hold integers, got torch.float32"),
    (lambda: P.graph_laplacian([[0, 1]]), "graph_laplacian: edge_index must be a torch.Tensor, got list"),
    (lambda: laplacian([[0], [1]], n=2.0), "graph_laplacian: n must be an int"),
    (lambda: laplacian([[0], [1]], shift=torch.tensor(1.0)), "shift must be a number, got Tensor"),
    (lambda: laplacian([[0], [1]], weights=torch.ones(1).long()), "weights must be float32 or float64"),
    (lambda: laplacian([[0], [1]], weights=[1.0]), "weights must be a torch.Tensor, got list"),
    (
        lambda: laplacian([[0], [1]], weights=torch.ones(1, device="meta")),
        "weights are on meta, edge_index on",
    ),
    (lambda: grounded(edge_index=PATHS.double()), "grounded_laplacian: edge_index must hold integers"),
    (lambda: grounded(weights=torch.ones(7, device="meta")), "weights are on meta, edge_index on cpu"),
    (lambda: grounded(grounded=GROUNDED.to("meta")), "grounded is on meta, edge_index on cpu"),
    (lambda: grounded(grounded=GROUNDED.long()), "grounded_laplacian: grounded must be bool"),
    (lambda: P.p1_stiffness(ONE), "p1_stiffness: mesh must be a TriangleMesh, got Tensor"),
    (lambda: P.TriangleMesh(SQUARE, TWO.float(), NONE), "TriangleMesh: triangles must be integers"),
    (lambda: P.TriangleMesh(SQUARE.long(), TWO, NONE), "TriangleMesh: points must be float32 or float64"),
    (lambda: field(seed=None), "gaussian_field: seed must be an int"),
    (lambda: field(length=torch.ones(())), "gaussian_field: length must be a number"),
    (lambda: field(dtype=torch.int32), "gaussian_field: dtype must be"),
    (lambda: data(SPD, count=1.5), "dataset: .*count must be an int"),
    (lambda: data(SPD, dtype=torch.int32), "dataset: .*dtype must be"),
]
OTHERS = [
    (lambda: P.poisson(3, stencil="q1"), "poisson: stencil='q1' is for two dimensions"),
    (lambda: P.poisson((3, 3, 3), stencil="q1"), "poisson: .*use stencil='fd'"),
    (lambda: P.gallery("helmholtz_2D"), "gallery: 'helmholtz_2D' is a complex matrix"),
]
ALL = [
    (error, *case)
    for error, cases in zip(
        (ValueError, TypeError, NotImplementedError), (VALUES, TYPES, OTHERS), strict=True
    )
    for case in cases
]


@pytest.mark.parametrize(("error", "call", "words"), ALL, ids=[words for *_, words in ALL])
def test_errors(error, call, words):
    with pytest.raises(error, match=words):
        call()


def test_a_density_of_zero_is_one():
    assert float(P.p1_mass(MESH, 0 * ONE).values.abs().max()) == 0
