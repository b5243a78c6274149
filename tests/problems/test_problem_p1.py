"""problems.p1_stiffness and p1_mass, on meshes of all kinds: against an assembly by quadrature."""

import copy
import math
import pickle

import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls

pytestmark = pytest.mark.cpu_only  # meshes are on the CPU

P = ls.problems
MESH = P.random_mesh(20, seed=1)


def coefficients(mesh, *batch, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*batch, len(mesh.triangles), dtype=torch.float64, generator=generator).exp().to(dtype)


def reference(mesh, c, kind):
    """Gradients by solving for the planes of the basis functions; products by the midpoint rule, which is
    exact for quadratics."""
    n = len(mesh.points)
    A = np.zeros((n, n))
    for t, coefficient in zip(mesh.triangles.numpy(), c.numpy(), strict=True):
        x = mesh.points.numpy()[t]
        corners = np.column_stack((np.ones(3), x))
        planes = np.linalg.inv(corners)  # column k: 1, x, y of the function that is 1 at corner k
        area = abs(np.linalg.det(corners)) / 2
        if kind == "stiffness":
            local = area * planes[1:].T @ planes[1:]
        else:
            middles = np.column_stack((np.ones(3), (x + np.roll(x, 1, 0)) / 2)) @ planes
            local = area / 3 * middles.T @ middles
        A[np.ix_(t, t)] += coefficient * local
    free = mesh.free.numpy()
    return A[np.ix_(free, free)]


def grid_mesh(nx, ny, **options):
    """Squares cut along one diagonal."""
    number = torch.arange((nx + 1) * (ny + 1)).view(nx + 1, ny + 1)
    a, b, c, d = (number[i : nx + i, j : ny + j].flatten() for i in (0, 1) for j in (0, 1))
    x, y = torch.meshgrid(torch.arange(nx + 1.0), torch.arange(ny + 1.0), indexing="ij")
    points = torch.stack((x.flatten(), y.flatten()), 1)
    triangles = torch.cat((torch.stack((a, b, d), 1), torch.stack((a, d, c), 1)))
    return P.TriangleMesh(points, triangles, **options)


@pytest.mark.parametrize(
    "mesh",
    [MESH, P.random_mesh(30, seed=2, domain="disc_with_hole"), grid_mesh(4, 3)],
    ids=["square", "disc", "grid"],
)
@pytest.mark.parametrize("kind", ["stiffness", "mass"])
def test_against_quadrature(mesh, kind):
    c = coefficients(mesh)
    A = getattr(P, f"p1_{kind}")(mesh, c)
    ls.SparsityPattern(A.crow_indices, A.col_indices, A.shape)
    wanted = reference(mesh, c, kind)
    # Angles of at least 20 degrees: the condition numbers of corner matrices stay below 1e3.
    np.testing.assert_allclose(A.to_scipy().toarray(), wanted, rtol=0, atol=1e-12 * abs(wanted).max())
    assert torch.equal(A.to_dense(), A.to_dense().mT)
    assert torch.linalg.eigvalsh(A.to_dense())[0] > 0
    assert A.pattern is P.p1_stiffness(mesh).pattern


def test_on_a_grid_it_is_poisson():
    A = P.p1_stiffness(grid_mesh(6, 5))
    assert torch.equal(A.to_dense(), P.poisson((5, 4)).to_dense())


def test_without_fixed_points():
    mesh = grid_mesh(3, 3, fixed=torch.zeros(16, dtype=torch.bool))
    one = torch.ones(16, dtype=torch.float64)
    assert torch.equal(P.p1_stiffness(mesh) @ one, torch.zeros(16, dtype=torch.float64))
    assert float(one @ (P.p1_mass(mesh) @ one)) == pytest.approx(9.0, rel=1e-15)  # the area


def test_a_batch_is_a_loop_in_both_dtypes():
    c = coefficients(MESH, 3)
    A = P.p1_stiffness(MESH, c)
    for i in range(3):
        assert torch.equal(A.values[i], P.p1_stiffness(MESH, c[i]).values)
    single = P.p1_stiffness(MESH, c[0].float())
    assert single.dtype == torch.float32
    assert single.pattern is A.pattern
    torch.testing.assert_close(single.values.double(), A.values[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["stiffness", "mass"])
def test_derivatives(kind):
    def values(c):
        return getattr(P, f"p1_{kind}")(MESH, c).values

    c = coefficients(MESH).requires_grad_()
    assert gradcheck(values, c, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(lambda c: values(c).square(), c)
    many = coefficients(MESH, 4)
    torch.testing.assert_close(torch.func.vmap(values)(many), torch.stack([values(one) for one in many]))


SMALL = P.random_mesh(16, seed=0)


@pytest.mark.parametrize("what", ["stiffness", "mass", "areas"])
def test_derivatives_in_the_points(what):
    kappa = coefficients(SMALL)

    def values(points):
        mesh = P.TriangleMesh(points, SMALL.triangles, SMALL.fixed)
        return mesh.areas if what == "areas" else getattr(P, f"p1_{what}")(mesh, kappa).values

    x = SMALL.points.clone().requires_grad_()
    patterns = {P.p1_mass(P.TriangleMesh(s * x, SMALL.triangles, SMALL.fixed)).pattern for s in (1, 2)}
    assert len(patterns) == 1
    assert gradcheck(values, x, check_forward_ad=True)
    assert gradgradcheck(values, x, fast_mode=True)
    total = lambda points: values(points).square().sum()  # noqa: E731
    (gradient,) = torch.autograd.grad(total(x), x)
    torch.testing.assert_close(torch.func.grad(total)(x.detach()), gradient)
    (single,) = torch.autograd.grad(total(xf := x.detach().float().requires_grad_()), xf)
    torch.testing.assert_close(single.double(), gradient, rtol=1e-4, atol=1e-4)


def test_a_shape_derivative_follows_the_scale_of_the_mesh():
    """In two dimensions K(s x) = K(x) and M(s x) = s^2 M(x): the compliance f^T K^-1 f, f = M 1, goes as s^4,
    so its derivative along x is four times itself."""
    points = SMALL.points.clone().requires_grad_()
    mesh = P.TriangleMesh.delaunay(points, SMALL.fixed)
    load = P.p1_mass(mesh).sum(1)
    compliance = load @ ls.ops.spsolve(P.p1_stiffness(mesh), load)
    compliance.backward()
    torch.testing.assert_close((points.grad * points.detach()).sum(), 4 * compliance.detach())


def test_gradient_of_the_energy():
    """d/d kappa_T of u . A(kappa) u is the energy of u in T, whatever the other coefficients are."""
    mesh = P.random_mesh(60, seed=5)
    kappa = coefficients(mesh).requires_grad_()
    u = torch.randn(len(mesh.free), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (gradient,) = torch.autograd.grad(u @ (P.p1_stiffness(mesh, kappa) @ u), kappa)
    full = torch.zeros(len(mesh.points), dtype=torch.float64).index_put((mesh.free,), u)
    corners = torch.cat((torch.ones(len(mesh.triangles), 3, 1), mesh.points[mesh.triangles]), 2)
    slopes = torch.linalg.solve(corners, full[mesh.triangles].unsqueeze(-1))[:, 1:, 0]
    torch.testing.assert_close(gradient, mesh.areas * slopes.square().sum(1), rtol=1e-11, atol=1e-12)


def test_second_order_convergence():
    """-div grad u = f for u = sin(pi x) sin(pi y) on unstructured meshes: the error in the mean is O(1/n)."""
    errors = []
    for n in (400, 1600, 6400):
        mesh = P.random_mesh(n, seed=0)
        x, y = mesh.points.numpy().T
        u = np.sin(math.pi * x) * np.sin(math.pi * y)
        every = P.TriangleMesh(mesh.points, mesh.triangles, torch.zeros(len(x), dtype=torch.bool))
        free = mesh.free.numpy()
        f = (P.p1_mass(every).to_scipy() @ (2 * math.pi**2 * u))[free]
        solution = scipy.sparse.linalg.spsolve(P.p1_stiffness(mesh).to_scipy(), f)
        error = solution - u[free]
        errors.append(math.sqrt(error @ (P.p1_mass(mesh).to_scipy() @ error)))
    orders = np.log2(np.array(errors[:-1]) / errors[1:])  # h halves
    assert np.all(np.abs(orders - 2) < 0.2), orders


@pytest.mark.parametrize("domain", ["square", "disc_with_hole"])
@pytest.mark.parametrize("n", [16, 100, 1000])
def test_random_mesh(n, domain):
    mesh = P.random_mesh(n, seed=4, domain=domain)
    assert abs(len(mesh.free) - n) < 4 + 0.05 * n
    x = mesh.points
    r = x.norm(dim=1)
    if domain == "square":
        area = 1.0
        rim = ((x == 0) | (x == 1)).any(1)
    else:
        inner = 2 * torch.pi / 3
        h = x[mesh.fixed].diff(dim=0).norm(dim=1).max()
        area = torch.pi * 8 / 9
        assert float(mesh.areas.sum()) > area - h**2 * inner  # polygons inside both circles
        area = float(mesh.areas.sum())
        rim = ((r - 1).abs() < 1e-12) | ((r - 1 / 3).abs() < 1e-12)
        assert ((r > 1 / 3 - 1e-12) & (r < 1 + 1e-12)).all()
    assert torch.equal(mesh.fixed, rim)
    # The default: the fixed points are those on the boundary, also around the hole.
    assert torch.equal(P.TriangleMesh(x, mesh.triangles).fixed, rim)
    assert float(mesh.areas.sum()) == pytest.approx(area, rel=1e-12)
    edges = x[mesh.triangles] - x[mesh.triangles].roll(1, 1)
    lengths = edges.norm(dim=2)
    sines = 2 * mesh.areas.unsqueeze(1) / (lengths * lengths.roll(1, 1))
    assert sines.min() > math.sin(math.radians(15))
    again = P.random_mesh(n, seed=4, domain=domain)
    assert torch.equal(again.points, mesh.points)
    assert not torch.equal(P.random_mesh(n, seed=5, domain=domain).points[:9], mesh.points[:9])


def test_delaunay_of_a_grid():
    line = torch.linspace(0, 1, 7, dtype=torch.float64)
    c, s = math.cos(0.3), math.sin(0.3)
    turn = torch.tensor([[c, s], [-s, c]], dtype=torch.float64)
    mesh = P.TriangleMesh.delaunay(torch.cartesian_prod(line, line) @ turn)
    assert len(mesh.triangles) == 72  # each square may be cut either way; nothing flat along the sides
    assert float(mesh.areas.sum()) == pytest.approx(1.0, rel=1e-14)
    assert len(mesh.free) == 25


def test_pickles_and_copies():
    again = pickle.loads(pickle.dumps(MESH))
    assert torch.equal(again.triangles, MESH.triangles)
    assert torch.equal(again.fixed, MESH.fixed)
    assert torch.equal(P.p1_mass(again).values, P.p1_mass(MESH).values)
    assert repr(copy.copy(MESH)) == repr(MESH)
    with pytest.raises(AttributeError, match="TriangleMesh is immutable: points cannot be set"):
        MESH.points = None


def test_a_mesh_shares_no_memory_with_its_arguments():
    points, triangles, fixed = MESH.points.clone(), MESH.triangles.clone(), MESH.fixed.clone()
    mesh = ls.problems.TriangleMesh(points, triangles, fixed)
    points += 1
    triangles += 1
    fixed.logical_not_()
    for name in ("points", "triangles", "fixed"):
        assert torch.equal(getattr(mesh, name), getattr(MESH, name)), name


SQUARE = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
TWO = torch.tensor([[0, 1, 2], [0, 2, 3]])
NONE = torch.zeros(4, dtype=torch.bool)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((SQUARE, TWO), ValueError, "all points are fixed"),
        ((SQUARE, TWO + 2, NONE), ValueError, r"0 <= point < 4, got triangles\[0\] = \[2, 3, 4\]"),
        ((SQUARE, TWO[:, :2], NONE), ValueError, r"triangles must have shape \(any, 3\)"),
        ((SQUARE[:, :1], TWO, NONE), ValueError, r"points must have shape \(any, 2\)"),
        ((SQUARE, TWO.float(), NONE), TypeError, "triangles must be integers"),
        ((SQUARE.long(), TWO, NONE), TypeError, "points must be float32 or float64"),
        ((SQUARE, TWO, NONE[:3]), ValueError, r"fixed must be a bool tensor of shape \(points = 4,\)"),
        ((SQUARE, torch.tensor([[0, 1, 1]]), NONE), ValueError, r"must have an area, got triangles\[0\]"),
        ((SQUARE / 0, TWO, NONE), ValueError, r"points must be finite, got points\[0\]"),
    ],
)
def test_mesh_errors(arguments, error, words):
    with pytest.raises(error, match="TriangleMesh: .*" + words):
        P.TriangleMesh(*arguments)


def test_a_batch_of_meshes_is_refused():
    with pytest.raises(ValueError, match=r"TriangleMesh: inside torch.func.vmap"):
        torch.func.vmap(lambda x: P.TriangleMesh(x, TWO, NONE).areas)(SQUARE.expand(2, 4, 2))


def test_errors():
    one = torch.ones(len(MESH.triangles))
    with pytest.raises(TypeError, match="p1_stiffness: mesh must be a TriangleMesh, got Tensor"):
        P.p1_stiffness(one)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"p1_mass: rho must have shape \(..., triangles = "):
        P.p1_mass(MESH, one[1:])
    with pytest.raises(ValueError, match=r"p1_stiffness: kappa must be positive and finite, got kappa\[0\]"):
        P.p1_stiffness(MESH, 0 * one)
    assert float(P.p1_mass(MESH, 0 * one).values.abs().max()) == 0
    with pytest.raises(ValueError, match="random_mesh: n must be at least 16"):
        P.random_mesh(3, seed=0)
    with pytest.raises(ValueError, match="random_mesh: domain must be one of"):
        P.random_mesh(30, seed=0, domain="disc")  # type: ignore[arg-type]
