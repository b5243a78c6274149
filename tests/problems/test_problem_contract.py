"""What every problem with coefficients promises, a row each: the matrix is right, a batch is a loop on one
pattern, derivatives of every kind, and a first call that may be anywhere."""

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
    beside, across, center = {"fd": (1 / 2, 0, 1), "q1": (1 / 6, 1 / 3, 2 / 3)}[stencil]

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
            partial(P.nodal_diffusion, stencil=stencil, boundary=boundary),
            nodal(stencil, boundary),
            s,
        )
        for stencil, boundary in itertools.product(("fd", "q1"), ("dirichlet", "periodic"))
        for s in ((3, 3), (4, 6), (7, 3))
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

    c = row.coefficients()
    leaf = c.clone().requires_grad_()
    assert gradcheck(squares, leaf, check_forward_ad=True, check_batched_grad=True, fast_mode=quick)
    assert gradcheck(
        row.values, leaf, check_forward_ad=True, check_batched_forward_grad=True, fast_mode=quick
    )
    assert gradgradcheck(squares, leaf, check_fwd_over_rev=True, fast_mode=quick or leaf.numel() > 20)
    func, many = torch.func, row.coefficients(4)
    torch.testing.assert_close(func.jacrev(squares)(c), func.jacfwd(squares)(c))
    for dim in (0, many.dim() - 1):
        mapped = func.vmap(row.values, in_dims=dim)(many.movedim(0, dim))
        torch.testing.assert_close(mapped, torch.stack([row.values(one) for one in many]))
    gradient = func.grad(lambda c: squares(c).sum())
    torch.testing.assert_close(func.vmap(gradient)(many), torch.stack([gradient(one) for one in many]))


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
    "poisson-q1": lambda **rows: P.poisson((4, 7), stencil="q1", **rows),
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
