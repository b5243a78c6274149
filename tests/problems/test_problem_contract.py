"""What every problem promises: values, batches, derivatives, properties, errors."""

import inspect
import itertools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import scipy.sparse
import torch
from problems.graphs import EDGES, GROUNDED, PATHS, assembled, grid_mesh
from reference import normal
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls
from learnsolve.problems import PROPERTIES, MatrixProperties

P = ls.problems


@dataclass(frozen=True)
class Problem:
    """A row: `make(c)` is the matrix of coefficients c, of this shape and behind any batch axes."""

    name: str
    make: Callable[[torch.Tensor], ls.CSR]
    reference: Callable[[np.ndarray], np.ndarray]
    shape: tuple[int, ...]
    positive: bool = True  # coefficients exp(N(0, 1)), else N(0, 1)
    rounding: tuple[float, float] = (9, 0)  # |A - reference| <= (first |reference| + second) eps
    zeros: int | None = 0  # entries that are zero, if that is known

    def coefficients(self, *batch: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
        c = normal((*batch, *self.shape), seed=seed)
        return (c.exp() if self.positive else c).to(dtype)

    def values(self, c: torch.Tensor) -> torch.Tensor:
        return self.make(c).values


def finite_volumes(kappa):
    """Face by face, as the formula says."""
    shape, number = kappa.shape, np.arange(kappa.size).reshape(kappa.shape)
    A = np.zeros((kappa.size, kappa.size))
    for cell in np.ndindex(*shape):
        for axis, step in itertools.product(range(len(shape)), (-1, 1)):
            beside = tuple(c + step * (a == axis) for a, c in enumerate(cell))
            inside = 0 <= beside[axis] < shape[axis]
            face = 2 / (1 / kappa[cell] + 1 / kappa[beside]) if inside else 2 * kappa[cell]
            A[number[cell], number[cell]] += face
            if inside:
                A[number[cell], number[beside]] -= face
    return A


def nodal(stencil, boundary):
    """Node by node: each pair of nodes of a cell, from the table of the documentation."""
    beside, across, center = {"fd": (1 / 2, 0, 1), "fe": (1 / 6, 1 / 3, 2 / 3)}[stencil]

    def reference(kappa):
        cx, cy = kappa.shape
        nx, ny = (cx, cy) if boundary == "periodic" else (cx + 1, cy + 1)
        A = np.zeros((nx * ny, nx * ny))
        for i, j in np.ndindex(cx, cy):
            corners = [(i + a) % nx * ny + (j + b) % ny for a, b in np.ndindex(2, 2)]
            for (a, p), (b, q) in itertools.product(enumerate(corners), enumerate(corners)):
                A[p, q] += (center if a == b else -across if a + b == 3 else -beside) * kappa[i, j]
        if boundary == "periodic":
            return A
        inside = np.arange(nx * ny).reshape(nx, ny)[1:-1, 1:-1].ravel()
        return A[np.ix_(inside, inside)]

    return reference


def differences(scheme):
    """Point by point: second differences, and first differences of the scheme, for a Péclet number of 1.5."""

    def reference(wind):
        d, shape = len(wind), wind.shape[1:]
        number = np.arange(math.prod(shape)).reshape(shape)
        A = np.zeros((number.size,) * 2)
        for at, axis in itertools.product(np.ndindex(*shape), range(d)):
            p = 1.5 * wind[(axis, *at)]
            central = {0: 2, 1: p / 2 - 1, -1: -p / 2 - 1}
            upwind = {0: 2 + abs(p), 1: min(p, 0) - 1, -1: -max(p, 0) - 1}
            for step, weight in (central if scheme == "central" else upwind).items():
                to = tuple(c + step * (a == axis) for a, c in enumerate(at))
                if 0 <= to[axis] < shape[axis]:
                    A[number[at], number[to]] += weight
        return A

    return reference


def elements(mesh, kind):
    """Gradients by planes of the basis functions; products by the midpoint rule, exact for quadratics."""

    def reference(c):
        A = np.zeros((len(mesh.points),) * 2)
        for t, coefficient in zip(mesh.triangles.numpy(), c, strict=True):
            x = mesh.points.numpy()[t]
            planes = np.linalg.inv(
                np.column_stack((np.ones(3), x))
            )  # column k: the function that is 1 at corner k
            area = abs(np.linalg.det(planes)) ** -1 / 2
            middles = np.column_stack((np.ones(3), (x + np.roll(x, 1, 0)) / 2)) @ planes
            local = planes[1:].T @ planes[1:] if kind == "stiffness" else middles.T @ middles / 3
            A[np.ix_(t, t)] += coefficient * area * local
        free = mesh.free.numpy()
        return A[np.ix_(free, free)]

    return reference


def definite(c):
    """c c^T + 1/2, equal to its transpose in every bit."""
    half = torch.eye(c.shape[-1], dtype=c.dtype, device=c.device) / 2
    return half + c.unsqueeze(-1) * c.unsqueeze(-2)


def quadrature(c):
    """Cell by cell, the gradients at two Gauss points per axis, where products of slopes are integrated
    exactly."""
    K, cells = definite(torch.from_numpy(c)).numpy(), c.shape[:-1]
    d = len(cells)
    corners, points = [*np.ndindex(*(2,) * d)], [0.5 - 12**-0.5, 0.5 + 12**-0.5]
    number = np.arange(math.prod(n + 1 for n in cells)).reshape([n + 1 for n in cells])
    A = np.zeros((number.size,) * 2)
    for x in itertools.product(points, repeat=d):
        lines = np.array([[1 - t, t] for t in x])
        slopes = np.array(
            [
                [math.prod(2 * p[e] - 1 if e == a else lines[e, p[e]] for e in range(d)) for a in range(d)]
                for p in corners
            ]
        )
        for cell in np.ndindex(*cells):
            nodes = [number[tuple(np.add(cell, p))] for p in corners]
            A[np.ix_(nodes, nodes)] += slopes @ K[cell] @ slopes.T / 2**d
    inside = number[(slice(1, -1),) * d].ravel()
    return A[np.ix_(inside, inside)]


def csgraph(w):
    W = scipy.sparse.coo_array((w, EDGES.numpy()), shape=(7, 7))
    return scipy.sparse.csgraph.laplacian((W + W.T).toarray())


ROWS = [
    *(
        Problem(f"diffusion {s}", partial(P.diffusion, dimensions=len(s)), finite_volumes, s)
        for s in ((1, 1), (1, 4), (4, 1), (3, 4), (1, 1, 1), (2, 1, 3), (2, 3, 2))
    ),
    *(
        Problem(
            f"nodal_diffusion {stencil}, {boundary}, {s}",
            partial(P.nodal_diffusion, discretization=stencil, boundary=boundary),
            nodal(stencil, boundary),
            s,
        )
        for stencil, boundary in itertools.product(("fd", "fe"), ("dirichlet", "periodic"))
        for s in ((3, 3), (4, 6), (7, 3))
    ),
    *(
        Problem(
            f"diffusion_tensor {s}",
            lambda c: P.diffusion_tensor(definite(c)),
            quadrature,
            (*s, len(s)),
            positive=False,
            rounding=(8, 200),  # of sums of up to 48 products of numbers of about 10
        )
        for s in ((2, 2), (2, 5), (4, 3), (2, 2, 2), (2, 3, 4))
    ),
    *(
        Problem(
            f"convection_diffusion {scheme}, {s}",
            partial(P.convection_diffusion, peclet=1.5, scheme=scheme, dimensions=len(s)),
            differences(scheme),
            (len(s), *s),
            positive=False,
            rounding=(8, 8),
        )
        for scheme in ("central", "upwind")
        for s in ((5,), (1,), (3, 4), (4, 1), (2, 3, 2))
    ),
    *(
        Problem(
            f"helmholtz {shift}, {s}",
            partial(P.helmholtz, shift=shift, dimensions=len(s)),
            lambda kh, c=shift: P.poisson(kh.shape).to_dense().cpu().numpy() - np.diag(c * kh.ravel() ** 2),
            s,
            rounding=(4, 16),
        )
        for shift in (1.0, 0.0, -1.0, 0.5)
        for s in ((1,), (6,), (3, 4), (2, 3, 2))
    ),
    Problem(
        "graph_laplacian",
        lambda w: P.graph_laplacian(EDGES, w, n=7, both_directions=False),
        csgraph,
        (EDGES.shape[1],),
        zeros=1,  # the diagonal entry of a node without edges
    ),
    Problem(
        "grounded_laplacian",
        lambda w: P.grounded_laplacian(PATHS, w, GROUNDED, both_directions=False),
        lambda w: assembled(PATHS, w, GROUNDED),
        (PATHS.shape[1],),
        zeros=1,
    ),
]


def meshes() -> list[Problem]:
    made = {"square": P.random_mesh(20, seed=1), "disc": P.random_mesh(30, seed=2, domain="disc_with_hole")}
    return [
        Problem(
            f"p1_{kind} {name}",
            partial(getattr(P, f"p1_{kind}"), mesh),
            elements(mesh, kind),
            (len(mesh.triangles),),
            rounding=(0, 1e4),  # angles of at least 20 degrees: condition numbers of corners below 1e3
            zeros=None,
        )
        for name, mesh in {**made, "grid": grid_mesh(4, 3)}.items()
        for kind in ("stiffness", "mass")
    ]


ALL = [*ROWS, *meshes()]
every = pytest.mark.parametrize(
    "row", [pytest.param(r, id=r.name, marks=[pytest.mark.cpu_only] * ("p1" in r.name)) for r in ALL]
)


def forget():
    """What is kept of all problems."""
    for module in [m for name, m in sys.modules.items() if name.startswith("learnsolve.problems.")]:
        for f in vars(module).values():
            getattr(getattr(f, "__wrapped__", f), "cache_clear", lambda: None)()


@every
def test_value(row):
    for dtype in (torch.float32, torch.float64):
        c = row.coefficients(dtype=dtype)
        A = row.make(c)
        ls.SparsityPattern(A.crow_indices, A.col_indices, A.shape)  # looks at every index
        assert (A.dtype, A.col_indices.dtype) == (dtype, torch.int32)
        wanted = row.reference(c.double().cpu().numpy())
        relative, absolute = (e * torch.finfo(dtype).eps for e in row.rounding)
        np.testing.assert_allclose(A.to_scipy().toarray(), wanted, rtol=relative, atol=absolute)
        if row.zeros is not None:
            assert A.nnz == np.count_nonzero(wanted) + row.zeros


@every
def test_a_batch_is_a_loop(row):
    c = row.coefficients(2, 3)
    A = row.make(c)
    assert A.batch_shape == (2, 3)
    for at in np.ndindex(2, 3):
        one = row.make(c[at])
        assert one.pattern is A.pattern
        assert torch.equal(A.values[at], one.values)
    assert row.make(c.float()).pattern is A.pattern
    assert row.make(c[:0]).batch_shape == (0, 3)


@every
def test_derivatives(row, quick):
    def squares(c):
        return row.values(c).square()

    leaf, many = row.coefficients().requires_grad_(), row.coefficients(4)
    assert gradcheck(squares, leaf, check_forward_ad=True, fast_mode=quick)
    assert gradgradcheck(squares, leaf, check_fwd_over_rev=True, fast_mode=quick or leaf.numel() > 20)
    gradient = torch.func.grad(lambda c: squares(c).sum())
    mapped = torch.func.vmap(gradient, in_dims=-1)(many.movedim(0, -1))
    torch.testing.assert_close(mapped, torch.stack([gradient(one) for one in many]))


@every
def test_the_first_call_may_be_anywhere(row):
    """What is kept for later calls belongs neither to inference mode nor to a transformation."""

    def energy(c):
        return row.values(c).square().sum()

    def gradient():
        c = row.coefficients().requires_grad_()
        return torch.autograd.grad(energy(c), c)[0]

    wanted = gradient()
    forget()
    with torch.inference_mode():
        energy(row.coefficients())
    torch.testing.assert_close(gradient(), wanted)
    forget()
    torch.testing.assert_close(torch.func.grad(energy)(row.coefficients()), wanted)
    torch.testing.assert_close(gradient(), wanted)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name != "diffusion"))
        for name in sorted({row.name.split()[0] for row in ALL})
    ],
)
@pytest.mark.cpu_only
@pytest.mark.usefixtures("fresh_compiler")
def test_compile(name):
    row = next(r for r in ALL if r.name.startswith(name) and math.prod(r.shape) > 4)
    energy = lambda c: row.values(c).square().sum()  # noqa: E731
    c = row.coefficients().requires_grad_()
    found, wanted = (
        torch.autograd.grad(f(c), c) for f in (torch.compile(energy, backend="aot_eager"), energy)
    )
    torch.testing.assert_close(found, wanted)


# --- generators that make some rows of their matrix ---

KAPPA = torch.arange(60, dtype=torch.float64).reshape(5, 4, 3) % 7 + 0.1
PARTS = {
    "poisson-1": lambda **rows: P.poisson(11, **rows),
    "poisson-3": lambda **rows: P.poisson((4, 3, 5), **rows),
    "poisson-periodic": lambda **rows: P.poisson((4, 3), boundary="periodic", **rows),
    "poisson-fe": lambda **rows: P.poisson((4, 7), discretization="fe", **rows),
    "poisson-thin": lambda **rows: P.poisson((1, 6), dtype=torch.float32, **rows),
    "anisotropic": lambda **rows: P.anisotropic((5, 6), 0.1, 0.4, **rows),
    "anisotropic-fe": lambda **rows: P.anisotropic((5, 6), 0.1, 0.0, discretization="fe", **rows),
    "diffusion-2": lambda **rows: P.diffusion(KAPPA[:, :, 0], **rows),
    "diffusion-3": lambda **rows: P.diffusion(KAPPA, **rows),
}


@pytest.mark.parametrize("name", PARTS)
def test_rows_are_those_of_the_whole(name):
    A = PARTS[name]()
    n = A.shape[0]
    for lo, hi in ((0, n), (0, n // 3), (n // 3, n), (2, 2), (n, n)):
        part = PARTS[name](rows=(lo, hi))
        a, b = int(A.crow_indices[lo]), int(A.crow_indices[hi])
        assert part.shape == (hi - lo, n)
        assert torch.equal(part.crow_indices, A.crow_indices[lo : hi + 1] - a)
        assert torch.equal(part.col_indices, A.col_indices[a:b])
        assert torch.equal(part.values, A.values[a:b])


def test_gradients_of_parts_add_up():
    weights = torch.arange(12.0, dtype=torch.float64)
    whole, parts = (KAPPA[:4, :3, 0].clone().requires_grad_() for _ in range(2))
    (P.diffusion(whole) @ weights).square().sum().backward()
    for rows in ((0, 5), (5, 12)):
        (P.diffusion(parts, rows=rows) @ weights).square().sum().backward()
    torch.testing.assert_close(parts.grad, whole.grad)


# --- what problems refuse, and in which words ---


E1 = torch.tensor([[0], [1]])
MESH = P.random_mesh(20, seed=1)
ONE = torch.ones(len(MESH.triangles))
SQUARE = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
TWO = torch.tensor([[0, 1, 2], [0, 2, 3]])
NONE = torch.zeros(4, dtype=torch.bool)


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


def nodal_of(*shape, **options):
    return P.nodal_diffusion(torch.ones(shape), **options)


def tensors_of(*shape):
    return P.diffusion_tensor(torch.ones(shape))


def tensors_with(*rows):
    K = torch.eye(2).repeat(3, 4, 1, 1)
    K[1, 2] = torch.tensor(rows)
    return P.diffusion_tensor(K)


def field(**options):
    return P.gaussian_field(**{"shape": (4, 4), "seed": 0} | options)


def data(name, split="train", count=1, **options):
    return P.dataset(name, split, count, **options)


SPD, LOG = "random_spd", "log_gaussian_diffusion"
VALUES = [
    (lambda: P.poisson(()), r"poisson: shape must have 1 or 2 or 3 dimensions, got \(\)"),
    (lambda: P.poisson((3, 0)), r"poisson: .* at least one grid point per dimension, got \(3, 0\)"),
    (lambda: P.poisson((4, 2), boundary="periodic"), r"poisson: .* 3 points along each axis.*\(4, 2\)"),
    (lambda: P.poisson((3, 3), rows=(2, 10)), r"poisson: rows must be \(lo, hi\) with 0 <= lo <= hi <= 9"),
    (lambda: P.anisotropic((3,), 0.1, 0.0), "anisotropic: shape must have 2 dimensions"),
    (
        lambda: P.poisson(3, dtype=torch.int64),
        r"poisson: dtype must be one of \(torch.float32, torch.float64\)",
    ),
    (lambda: data(SPD, dtype=torch.int32), "dataset: dtype must be one of"),
    # coefficients on grids
    (lambda: P.diffusion(kappa(0.0)), r"kappa must be .*, got kappa\[1, 0, 2\] = 0.0\. .* torch.exp"),
    (lambda: P.diffusion(torch.ones(2, 2), dimensions=3), r"shape \(..., nx, ny, nz\), .*, got \(2, 2\)"),
    (lambda: P.diffusion(torch.ones(5, 4, 3), dimensions=2, rows=(0, 1)), "diffusion: rows are of one grid"),
    (lambda: nodal_of(2, 4, boundary="periodic"), "nodal_diffusion: .* at least 3 x 3 cells"),
    (lambda: tensors_of(2, 2, 2), r"K must have shape .* 2 cells along each axis, got \(2, 2, 2\)"),
    (lambda: tensors_of(1, 4, 2, 2), r"K must have shape .* got \(1, 4, 2, 2\)"),
    (lambda: tensors_of(4, 4, 2, 3), r"K must have shape .* got \(4, 4, 2, 3\)"),
    (lambda: tensors_of(4, 4, 3, 3), r"K must have shape .* got \(4, 4, 3, 3\)"),
    (lambda: tensors_of(4, 4, 4, 4), r"K must have shape .* got \(4, 4, 4, 4\)"),
    (
        lambda: tensors_with([1.0, 0.5], [0.25, 1.0]),
        r"K must be symmetric in each cell, got K\[1, 2\] = \[\[1.0, 0.5\], .*\. Use \(K \+ K.mT\) / 2",
    ),
    (lambda: tensors_with([1.0, 2.0], [2.0, 4.0]), r"K must be finite and positive definite .*L @ L.mT is"),
    (lambda: tensors_with([1.0, 0.0], [0.0, -1.0]), r"K must be finite and positive definite .*K\[1, 2\]"),
    (lambda: tensors_with([1.0, 0.0], [0.0, math.inf]), r"finite and positive definite .*K\[1, 2\]"),
    (lambda: convection(2, 4, 4, reaction=torch.ones(3)), r"reaction must have.*\(3,\)"),
    (lambda: P.helmholtz(torch.ones(4), dimensions=2), r"helmholtz: kh must have shape \(..., nx, ny\)"),
    (lambda: P.helmholtz(torch.ones(4), shift=complex(1, math.inf)), "helmholtz: shift must be finite"),
    # graphs
    (
        lambda: laplacian([[0, 1, 1, 2], [1, 0, 2, 2]], both_directions=True),
        r"in both directions, got \[1, 2\] 1 times and \[2, 1\] 0 times\. .* pass both_directions=False",
    ),
    (lambda: laplacian([[0, 1], [1, 3]], n=3), r"nodes .* 0 <= index < 3, got edge_index\[1\]\[1\] = 3"),
    (lambda: laplacian([[0, 1], [1, 2], [2, 0]]), r"shape \(2, E\), got \(3, 2\). For pairs .* pairs.T"),
    (lambda: P.graph_laplacian(E1[:, :0]), "graph_laplacian: without edges, n must be the number of nodes"),
    (
        lambda: grounded(edge_index=torch.tensor([[0, 1], [1, 7]]), weights=torch.ones(2)),
        r"< 7, got edge_index\[1\]\[1\] = 7",
    ),
    (lambda: grounded(edge_index=PATHS.T), r"grounded_laplacian: .* got \(7, 2\). For pairs .* pairs.T"),
    (lambda: grounded(grounded=GROUNDED[None]), r"grounded_laplacian: grounded must have shape \(nodes,\)"),
    (
        lambda: grounded(grounded=torch.ones(7, dtype=torch.bool)),
        "grounded_laplacian: all nodes are grounded",
    ),
    (lambda: P.delaunay_graph(3, 0), "delaunay_graph: each of the n = 3 points has a neighbor outside"),
    # meshes
    (lambda: P.TriangleMesh(SQUARE, TWO), "TriangleMesh: .*all points are fixed"),
    (lambda: P.TriangleMesh(SQUARE, TWO + 2, NONE), r"0 <= point < 4, got triangles\[0\] = \[2, 3, 4\]"),
    (lambda: P.TriangleMesh(SQUARE, TWO[:, :2], NONE), r"TriangleMesh: triangles must have shape \(any, 3\)"),
    (lambda: P.TriangleMesh(SQUARE, TWO, NONE[:3]), r"a bool tensor of shape \(points = 4,\)"),
    (lambda: P.TriangleMesh(SQUARE, E1.new_tensor([[0, 1, 1]]), NONE), r"have an area, got triangles\[0\]"),
    (
        lambda: torch.func.vmap(lambda x: P.TriangleMesh(x, TWO, NONE).areas)(SQUARE.expand(2, 4, 2)),
        "TriangleMesh: inside torch.func.vmap",
    ),
    # random fields and data sets
    (lambda: field(shape=(3, 3, 3, 3)), "gaussian_field: .*1 or 2 or 3 dimensions"),
    (lambda: field(shape=(3, 0)), "gaussian_field: .*at least one grid point"),
    (lambda: data("poisson"), "dataset: name must be one of convection_diffusion, .*, random_spd"),
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
    (lambda: data("diffusion_tensor", kind="layers"), "dataset: .*kind must be one of"),
    (lambda: data("diffusion_tensor", dimensions=1), "dataset: .*dimensions must be one of"),
    (lambda: data("diffusion_tensor", regions=0), "dataset: .*regions must be at least 1"),
    (lambda: data("diffusion_tensor", epsilon=(1, 0.1)), "dataset: .*epsilon must be 0 < smallest"),
    (lambda: data("delaunay_laplacian", weights="one"), "dataset: .*weights must be one of"),
    (lambda: data("p1_diffusion", domain="disc"), "dataset: .*domain must be one of"),
    (lambda: data("convection_diffusion", epsilon=0), "dataset: .*epsilon must be 0 < smallest"),
    (lambda: data("helmholtz", mean=2.0), "dataset: .*mean must be larger than minimum = 3.0"),
    (lambda: data("helmholtz", dimensions=4), "dataset: .*dimensions must be one of"),
    (lambda: data("helmholtz", shift=math.inf), "dataset: .*shift must be finite"),
]
TYPES = [
    (lambda: convection(2, 4, 4, reaction=torch.ones(4).double()), "reaction has dtype"),
    (lambda: P.helmholtz(torch.ones(4, dtype=torch.complex64)), "kh must be real, got torch.complex64"),
    (lambda: laplacian([[0.0], [1.0]]), "graph_laplacian: edge_index must hold integers, got torch.float32"),
    (lambda: grounded(edge_index=PATHS.double()), "grounded_laplacian: edge_index must hold integers"),
    (lambda: grounded(grounded=GROUNDED.to("meta")), "grounded is on meta, edge_index on cpu"),
    (lambda: grounded(grounded=GROUNDED.long()), "grounded_laplacian: grounded must be bool"),
    (lambda: P.TriangleMesh(SQUARE, TWO.float(), NONE), "TriangleMesh: triangles must hold integers"),
    (lambda: data(SPD, count=1.5), "dataset: .*count must be an int"),
]
OTHERS = [
    (lambda: P.poisson(3, discretization="fe"), "poisson: discretization='fe' is for two dimensions"),
    (lambda: P.pyamg_gallery("helmholtz_2D"), "pyamg_gallery: 'helmholtz_2D' is a complex matrix"),
]
ERRORS = [
    (error, *case)
    for error, cases in zip(
        (ValueError, TypeError, NotImplementedError), (VALUES, TYPES, OTHERS), strict=True
    )
    for case in cases
]


@pytest.mark.cpu_only
@pytest.mark.parametrize(("error", "call", "words"), ERRORS, ids=[words for *_, words in ERRORS])
def test_errors(error, call, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.cpu_only
def test_a_density_of_zero_is_one():
    assert float(P.p1_mass(MESH, 0 * ONE).values.abs().max()) == 0


# --- every fact that problems state, on small matrices of every problem ---


def lognormal(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).exp()


RING = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 4], [4, 0], [5, 6]]).T
BOTH = torch.cat((RING, RING.flip(0)), 1)
WIND = torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4).expand(2, 3, 4)
RANDOM_MESH = ls.problems.random_mesh(20, seed=0)
FREE_MESH = ls.problems.TriangleMesh(
    RANDOM_MESH.points, RANDOM_MESH.triangles, torch.zeros_like(RANDOM_MESH.fixed)
)
# A density of zero around one point.
HOLLOW = (RANDOM_MESH.triangles != RANDOM_MESH.free[0]).all(1).double()

# (arguments, keywords) of small matrices; what PROPERTIES[name] says must hold for each.
CASES = {
    "anisotropic": [
        (((4, 5), epsilon, theta), {"discretization": d})
        for d in ("fd", "fe")
        for epsilon, theta in [(0.1, 0.0), (1e-3, 0.4), (1.0, 0.4), (50.0, -1.0), (0.1, math.pi / 2)]
    ],
    "convection_diffusion": [
        ((0 * WIND,), {}),
        ((WIND,), {}),
        ((WIND, 50.0), {"scheme": "central"}),
        ((-WIND, 50.0), {"scheme": "central", "dimensions": 2}),
    ],
    "diffusion": [
        ((lognormal(4, 3),), {}),
        ((lognormal(2, 3, 2),), {}),
        ((torch.full((4, 3), 2.5),), {}),
        ((torch.full((1, 5), 0.5, dtype=torch.float64),), {}),
        ((torch.full((3, 2, 4), 2.0, dtype=torch.float64),), {"dimensions": 3}),
    ],
    "diffusion_tensor": [
        ((definite(normal((3, 4, 2))),), {}),
        ((definite(normal((3, 2, 4, 3))),), {}),
        ((torch.diag(torch.tensor([2.0, 0.5], dtype=torch.float64)).expand(5, 4, 2, 2),), {}),
        ((torch.diag(torch.tensor([1.0, 3.0, 0.1], dtype=torch.float64)).expand(3, 4, 4, 3, 3),), {}),
        ((definite(normal((2,))).expand(3, 4, 2, 2),), {}),
        ((torch.eye(2) * torch.arange(1.0, 7).view(2, 3, 1, 1),), {}),
    ],
    "pyamg_gallery": [
        ((name,), {}) for name in ("unit_square", "recirc_flow", "knot", "airfoil", "unit_cube")
    ],
    "graph_laplacian": [
        ((BOTH,), {}),
        ((RING, torch.arange(6.0, dtype=torch.float64)), {"n": 9, "both_directions": False}),
        ((BOTH,), {"shift": 0.25}),
    ],
    "grounded_laplacian": [
        ((BOTH, torch.arange(1.0, 13.0, dtype=torch.float64), torch.arange(7) % 6 == 0), {}),
        ((RING, torch.ones(6, dtype=torch.float64), torch.arange(7) == 3), {"both_directions": False}),
    ],
    "helmholtz": [
        ((lognormal(4, 3),), {}),
        ((torch.full((4, 3), 0.5, dtype=torch.float64),), {}),
        ((torch.full((9,), 1.5, dtype=torch.float64),), {}),
        ((torch.full((2, 3, 2), 1.0, dtype=torch.float64),), {"shift": -1.0}),
        ((torch.full((4, 3), 1.0, dtype=torch.float64),), {"shift": 0.5, "dimensions": 2}),
    ],
    "matrix_market": [(("general",), {}), (("symmetric",), {})],
    "nodal_diffusion": [
        ((k,), {"discretization": s, **options})
        for k in (lognormal(4, 3), torch.full((3, 5), 2.5, dtype=torch.float64))
        for s in ("fd", "fe")
        for options in ({}, {"boundary": "periodic"}, {"boundary": "periodic", "shift": 0.1})
    ],
    "p1_mass": [((RANDOM_MESH,), {}), ((FREE_MESH,), {}), ((RANDOM_MESH, HOLLOW), {})],
    "p1_stiffness": [((RANDOM_MESH,), {}), ((FREE_MESH,), {}), ((RANDOM_MESH, 1 + HOLLOW), {})],
    "poisson": [
        *((((n,),), {}) for n in (1, 2, 9)),
        *(((shape,), {"discretization": s}) for shape in ((1, 1), (4, 5)) for s in ("fd", "fe")),
        (((2, 3, 4),), {}),
        *(((shape,), {"boundary": "periodic"}) for shape in (3, (4, 5), (3, 6, 4))),
        (((4, 7),), {"discretization": "fe", "boundary": "periodic"}),
    ],
    "random_spd": [((30, seed), {"density": 0.05}) for seed in (0, 1)],
}
FILES = {
    "general": "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 1\n2 1 -4\n",
    "symmetric": "%%MatrixMarket matrix coordinate real symmetric\n2 2 2\n1 1 4\n2 2 1\n",
}
EXAMPLES = [(name, *case) for name, cases in CASES.items() for case in cases]


# True of every example that pyamg has today, but nothing that pyamg_gallery could promise of the next.
BY_CHANCE = {("pyamg_gallery", "positive_semidefinite")}


def holds(fact, D):
    if fact == "symmetric":
        return torch.equal(D, D.T)
    # x^T A x = x^T (A + A^T) x / 2, also of a nonsymmetric matrix.
    eigenvalues = torch.linalg.eigvalsh((D + D.T) / 2)
    # eigvalsh errs by a small multiple of u ||A||; no positive eigenvalue here is as small as that.
    rounding = 1e-13 * float(eigenvalues.abs().max())
    return float(eigenvalues[0]) > (rounding if fact == "positive_definite" else -rounding)


@pytest.fixture
def make(tmp_path):
    def make(name, args, keywords):
        if name == "matrix_market":
            path = tmp_path / "m.mtx"
            path.write_text(FILES[args[0]])
            args = (path,)
        return getattr(ls.problems, name)(*args, **keywords).to_dense().double()

    return make


def test_every_problem_states_its_properties():
    no_matrices = {"dataset", "delaunay_graph", "gaussian_field", "random_mesh"}
    functions = {n for n in ls.problems.__all__ if inspect.isfunction(getattr(ls.problems, n))}
    assert set(PROPERTIES) == functions - no_matrices
    assert set(PROPERTIES) == set(CASES)
    for name, facts in PROPERTIES.items():
        assert isinstance(facts, MatrixProperties)
        assert facts.formula, name
        assert facts.source, name


@pytest.mark.parametrize("fact", ["symmetric", "positive_definite", "positive_semidefinite"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_fact(name, fact, make):
    """A stated fact holds for every case; one that is not stated holds for some and not for others."""
    found = {holds(fact, make(name, *case)) for case in CASES[name]}
    stated = getattr(PROPERTIES[name], fact)
    if stated is not None:
        assert found == {stated}
    elif (name, fact) not in BY_CHANCE:
        assert found == {True, False}


def known(name, args, keywords):
    """Does the problem state the eigenvalues of this case?"""
    if name == "poisson":
        return True
    if name in ("diffusion", "helmholtz", "nodal_diffusion"):
        return bool((args[0] == args[0].flatten()[0]).all())
    if name == "diffusion_tensor":
        d = args[0].shape[-1]
        return bool((args[0] == args[0].reshape(-1, d, d)[0].diagonal().diag()).all())
    if name == "anisotropic":
        _, epsilon, theta = args
        return epsilon == 1.0 or theta in (0.0, math.pi / 2)
    return False


@pytest.mark.parametrize(("name", "args", "keywords"), EXAMPLES)
def test_eigenvalues(name, args, keywords, make):
    formula = PROPERTIES[name].eigenvalues
    if formula is None:
        assert not known(name, args, keywords)
        return
    if not known(name, args, keywords):
        with pytest.raises(ValueError, match=f"{name}: the eigenvalues are known for"):
            formula(*args, **keywords)
        return
    reference = torch.linalg.eigvalsh(make(name, args, keywords))
    stated = formula(*args, **keywords)
    assert stated.dtype == torch.float64
    assert stated.shape == reference.shape
    torch.testing.assert_close(stated, reference, rtol=1e-12, atol=1e-13 * float(reference.max()))


def test_eigenvalue_functions_take_the_arguments_of_their_problem():
    """All of them but where the matrix is to live, which rows of it, and in which precision."""
    for name, facts in PROPERTIES.items():
        if facts.eigenvalues is not None:
            of_problem = inspect.signature(getattr(ls.problems, name)).parameters
            of_formula = inspect.signature(facts.eigenvalues).parameters
            assert list(of_formula) == [p for p in of_problem if p not in ("dtype", "device", "rows")], name
            assert all(of_formula[p].kind == of_problem[p].kind for p in of_formula), name


def test_small_eigenvalues_are_accurate():
    """4 sin^2 keeps the digits that 2 - 2 cos would lose."""
    n = 100_000
    smallest = PROPERTIES["poisson"].eigenvalues((n,))[0].item()
    h = math.pi / (n + 1)
    assert smallest == pytest.approx(h**2 * (1 - h**2 / 12), rel=1e-14)


def test_null_space_of_the_graph_laplacian():
    assert "each connected component" in PROPERTIES["graph_laplacian"].null_space
    L = ls.problems.graph_laplacian(BOTH, n=9)
    components = torch.zeros(9, 4, dtype=torch.float64)
    for column, nodes in enumerate(([0, 1, 2, 3, 4], [5, 6], [7], [8])):
        components[nodes, column] = 1
    assert torch.equal(L @ components, torch.zeros_like(components))
    eigenvalues = torch.linalg.eigvalsh(L.to_dense())
    assert int((eigenvalues.abs() < 1e-13).sum()) == 4
