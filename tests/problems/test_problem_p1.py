"""problems.p1_stiffness and p1_mass, on meshes of all kinds: beyond their contract."""

import copy
import math
import pickle

import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from problems.graphs import grid_mesh
from reference import normal
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls

pytestmark = pytest.mark.cpu_only  # meshes are on the CPU

P = ls.problems
MESH = P.random_mesh(20, seed=1)


def test_on_a_grid_it_is_poisson():
    A = P.p1_stiffness(grid_mesh(6, 5))
    assert torch.equal(A.to_dense(), P.poisson((5, 4)).to_dense())


def test_without_fixed_points():
    mesh = grid_mesh(3, 3, fixed=torch.zeros(16, dtype=torch.bool))
    one = torch.ones(16, dtype=torch.float64)
    assert torch.equal(P.p1_stiffness(mesh) @ one, torch.zeros(16, dtype=torch.float64))
    assert float(one @ (P.p1_mass(mesh) @ one)) == pytest.approx(9.0, rel=1e-15)  # the area


SMALL = P.random_mesh(16, seed=0)


@pytest.mark.parametrize("what", ["stiffness", "mass", "areas"])
def test_derivatives_in_the_points(what):
    kappa = normal((len(SMALL.triangles),)).exp()

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
    kappa = normal((len(mesh.triangles),)).exp().requires_grad_()
    u = normal((len(mesh.free),), seed=1)
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
