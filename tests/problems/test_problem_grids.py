"""Problems on grids and of graphs: published values, closed forms, oddities."""

import itertools
import math
import sys

import numpy as np
import pyamg
import pytest
import scipy.sparse.linalg
import torch
from problems.graphs import EDGES
from pyamg.gallery.example import example_names
from reference import normal
from torch.autograd import gradgradcheck

import learnsolve as ls
from learnsolve.problems import _grid

P = ls.problems
SHAPES = [
    (1,),
    (2,),
    (7,),
    (1, 1),
    (1, 5),
    (5, 1),
    (2, 2),
    (3, 4),
    (1, 1, 1),
    (2, 1, 2),
    (1, 4, 1),
    (2, 3, 4),
]


def checked(A: ls.CSR) -> np.ndarray:
    """Through the constructor that looks at every index; no entry is zero."""
    D = ls.CSR(A.values, ls.SparsityPattern(A.crow_indices, A.col_indices, A.shape)).to_scipy().toarray()
    assert A.nnz == np.count_nonzero(D)
    return D


# --- poisson ---


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_poisson_of_pyamg(shape):
    for stencil, kind in (("fd", "FD"), ("fe", "FE"))[: 1 + (len(shape) == 2)]:
        S = pyamg.gallery.poisson(shape, format="csr", type=kind)
        assert np.array_equal(checked(P.poisson(shape, discretization=stencil)), S.toarray())


@pytest.mark.parametrize("shape", [(3,), (8,), (3, 5), (4, 3, 5)], ids=str)
def test_periodic_grids(shape):
    """Each axis a ring; the constants are null vectors."""
    A = P.poisson(shape, boundary="periodic")
    wanted = np.zeros(A.shape)
    for axis, n in enumerate(shape):
        ring = 2 * np.eye(n) - np.roll(np.eye(n), 1, 0) - np.roll(np.eye(n), -1, 0)
        before, after = (np.eye(math.prod(s)) for s in (shape[:axis], shape[axis + 1 :]))
        wanted += np.kron(np.kron(before, ring), after)
    assert np.array_equal(checked(A), wanted)
    assert not (A @ torch.ones(A.shape[0], dtype=A.dtype)).any()


def test_shapes_and_dtypes():
    A, B = P.poisson(5), P.poisson((5,))
    assert torch.equal(A.values, B.values)
    assert torch.equal(A.col_indices, B.col_indices)
    assert torch.equal(P.poisson([3, 2]).values, P.poisson(torch.Size((3, 2))).values)
    for f in (P.poisson, lambda s, **o: P.anisotropic(s, 0.1, 0.3, **o)):
        for dtype in (torch.float32, torch.float64):
            A = f((3, 3), dtype=dtype, device="cpu")
            assert torch.equal(A.values, f((3, 3)).values.to(dtype))
            assert A.crow_indices.dtype == A.col_indices.dtype == torch.int32
        assert f((3, 3), device="meta").device.type == "meta"


def test_indices_are_as_narrow_as_they_can_be(monkeypatch):
    assert _grid.index_dtype(10, 2**31 - 1) == _grid.index_dtype(2**31 - 1, 10) == torch.int32
    assert _grid.index_dtype(10, 2**31) == _grid.index_dtype(2**31, 10) == torch.int64
    monkeypatch.setattr(_grid, "INT32_MAX", 32)  # as for more than 2^31 entries, which no test could hold
    A = P.poisson((3, 3))
    assert A.nnz == 33
    assert A.crow_indices.dtype == A.col_indices.dtype == torch.int64
    assert np.array_equal(A.to_scipy().toarray(), pyamg.gallery.poisson((3, 3)).toarray())


def test_a_million_unknowns():
    A = P.poisson((100, 100, 100))
    assert A.shape == (10**6, 10**6)
    assert A.nnz == 7 * 10**6 - 6 * 10**4
    assert ls.ops.sum(A, 1).sum() == 6 * 10**4  # a face of the cube loses a neighbor


def test_it_may_be_made_anywhere():
    """A matrix made inside a transformation or inference mode is like any other."""
    x = torch.linspace(0, 1, 6, dtype=torch.float64)
    wanted = 2 * (P.poisson((2, 3)) @ x)
    torch.testing.assert_close(torch.func.grad(lambda x: x @ (P.poisson((2, 3)) @ x))(x), wanted)
    with torch.inference_mode():
        A = P.poisson((2, 3))
    assert not A.values.is_inference()
    v = A.values.clone().requires_grad_()
    (g,) = torch.autograd.grad((A.with_values(v).T.values ** 2).sum(), v)
    torch.testing.assert_close(g, 2 * A.values)


# --- anisotropic ---


@pytest.mark.parametrize("discretization", ["fd", "fe"])
@pytest.mark.parametrize("theta", [0.0, 0.3, math.pi / 4, math.pi / 2, -2.0])
def test_anisotropic_of_pyamg(discretization, theta):
    for epsilon, shape in itertools.product(
        (1e-3, 0.5, 1.0, 2.0, 100.0), ((4, 5), (1, 1), (1, 4), (4, 1), (2, 2))
    ):
        stencil = pyamg.gallery.diffusion_stencil_2d(epsilon, theta, type=discretization.upper())
        S = pyamg.gallery.stencil_grid(stencil, shape).toarray()
        A = P.anisotropic(shape, epsilon, theta, discretization=discretization)
        ls.SparsityPattern(A.crow_indices, A.col_indices, A.shape)  # looks at every index
        # A coefficient is a sum of a few terms of the size of 1 + epsilon.
        np.testing.assert_allclose(A.to_scipy().toarray(), S, rtol=0, atol=8 * 2**-53 * (1 + epsilon))


def test_the_direction_is_the_strong_one():
    """For theta = 0 points are coupled along x, the first axis; zeros of the stencil are no entries."""
    A = P.anisotropic((3, 3), 0.01, 0.0)
    row = A.to_dense()[4].unflatten(0, (3, 3))
    assert row[0, 1] == row[2, 1] == -1
    assert row[1, 0] == row[1, 2] == -0.01
    assert A.nnz == 33
    assert (A.values != 0).all()


# --- coefficients ---


def test_constant_coefficients_give_poisson():
    A = P.diffusion(torch.full((5, 5, 5), 3.0, dtype=torch.float64))
    assert torch.equal(A.to_dense()[62], 3 * P.poisson((5, 5, 5)).to_dense()[62])  # the middle
    one = torch.ones(5, 8, dtype=torch.float64)
    five = P.nodal_diffusion(one)
    assert torch.equal(five.to_dense(), P.poisson((4, 7)).to_dense())
    assert five.nnz == P.poisson((4, 7)).nnz
    for boundary, shape in (("dirichlet", (4, 7)), ("periodic", (5, 8))):
        nine = P.nodal_diffusion(3 * one, discretization="fe", boundary=boundary)
        torch.testing.assert_close(
            nine.to_dense(), P.poisson(shape, discretization="fe", boundary=boundary).to_dense()
        )
    for scheme in ("central", "upwind"):
        A = P.convection_diffusion(torch.zeros(2, 3, 5, dtype=torch.float64), scheme=scheme)
        assert torch.equal(A.to_dense(), P.poisson((3, 5)).to_dense())
        assert A.pattern is P.diffusion(torch.ones(3, 5)).pattern


def test_constant_tensors_give_known_stencils():
    one = torch.eye(2, dtype=torch.float64).expand(5, 8, 2, 2)
    torch.testing.assert_close(
        3 * P.diffusion_tensor(one).to_dense(), P.poisson((4, 7), discretization="fe").to_dense()
    )
    kappa = normal((5, 8)).exp()
    torch.testing.assert_close(
        P.diffusion_tensor(kappa.view(5, 8, 1, 1) * one).to_dense(),
        P.nodal_diffusion(kappa, discretization="fe").to_dense(),
    )
    for epsilon, theta in itertools.product((1e-3, 0.5, 20.0), (0.0, 0.3, -1.0)):
        c, s = math.cos(theta), math.sin(theta)
        Q = torch.tensor([[c, -s], [s, c]], dtype=torch.float64)
        K = Q @ torch.diag(Q.new_tensor([1, epsilon])) @ Q.T
        A = P.anisotropic((4, 7), epsilon, theta, discretization="fe")
        torch.testing.assert_close(P.diffusion_tensor(K.expand(5, 8, 2, 2)).to_dense(), A.to_dense())
    # Of the 27 points those at the distances 0, 1, sqrt 2 and sqrt 3.
    A = P.diffusion_tensor(torch.eye(3, dtype=torch.float64).expand(4, 4, 4, 3, 3))
    assert A.nnz == 343  # (1 + 2 + ... 7 pairs per axis) cubed
    steps = torch.stack(torch.meshgrid(*[torch.arange(-1.0, 2)] * 3, indexing="ij")).abs().sum(0)
    wanted = torch.tensor([8 / 3, 0, -1 / 6, -1 / 12], dtype=torch.float64)[steps.long()]
    torch.testing.assert_close(A.to_dense()[13].view(3, 3, 3), wanted)


def test_a_grid_that_is_turned():
    """Turned by 90 degrees, y to x and x to -y, and in three dimensions with its axes in another order, with
    the components of its tensors."""
    c = normal((4, 6, 2, 2))
    K, turn = c @ c.mT + 0.5 * torch.eye(2), torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    A = P.diffusion_tensor(K).to_dense().view(3, 5, 3, 5)
    turned = P.diffusion_tensor(torch.rot90(turn @ K @ turn.T)).to_dense().view(5, 3, 5, 3)
    torch.testing.assert_close(turned, torch.rot90(torch.rot90(A, 1, (0, 1)), 1, (2, 3)))
    c = normal((3, 4, 5, 3, 3))
    K = c @ c.mT + 0.5 * torch.eye(3)
    A = P.diffusion_tensor(K).to_dense().view(2, 3, 4, 2, 3, 4)
    order = [2, 0, 1]
    K = K.permute(2, 0, 1, 3, 4)[..., order, :][..., order]
    moved = P.diffusion_tensor(K).to_dense().view(4, 2, 3, 4, 2, 3)
    torch.testing.assert_close(moved, A.permute(2, 0, 1, 5, 3, 4))


def test_tensors_are_symmetric_up_to_rounding_and_have_symmetric_gradients():
    c = normal((3, 4, 2, 2))
    K = c @ c.mT + 0.5 * torch.eye(2)
    off = K.clone()
    off[..., 0, 1] *= 1 + 2**-50
    A = P.diffusion_tensor(off.requires_grad_())
    torch.testing.assert_close(A.to_dense(), P.diffusion_tensor(K).to_dense(), rtol=1e-14, atol=1e-14)
    (gradient,) = torch.autograd.grad(A.values.square().sum(), off)
    assert torch.equal(gradient, gradient.mT)
    assert (gradient[..., 0, 1] != 0).all()


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_extreme_coefficients_in_float32(scale):
    """Permeabilities in m^2 are of the order of 1e-15 and less: no square of them may be formed."""
    kappa = normal((3, 3), torch.float32).exp()
    got = P.diffusion(scale * kappa).values.double() / scale
    torch.testing.assert_close(got, P.diffusion(kappa).values.double(), rtol=1e-6, atol=0)
    K = kappa[..., None, None] * torch.tensor([[2.0, 1.0], [1.0, 1.0]])
    got = P.diffusion_tensor(scale * K).values.double() / scale
    torch.testing.assert_close(got, P.diffusion_tensor(K).values.double(), rtol=1e-6, atol=1e-6)


def test_third_derivative():
    def first(kappa):
        v = P.diffusion(kappa).values
        return torch.autograd.grad((v * v).sum(), kappa, create_graph=True)[0]

    assert gradgradcheck(first, normal((2, 2)).exp().requires_grad_())


def test_precorrector():
    """The published loop, of arXiv 2405.15557's fd_mtx2: offsets -n, -1, 0, 1, n, first axis fastest."""
    n = 6
    a = normal((n + 1, n + 1)).exp().numpy()
    A = np.zeros((n * n, n * n))
    for i, j in itertools.product(range(n), range(n)):
        row = i + n * j
        A[row, row] = a[i, j] + a[i, j + 1] + a[i + 1, j] + a[i + 1, j + 1]
        if i + 1 < n:
            A[row, row + 1] = A[row + 1, row] = -0.5 * (a[i + 1, j] + a[i + 1, j + 1])
        if j + 1 < n:
            A[row, row + n] = A[row + n, row] = -0.5 * (a[i, j + 1] + a[i + 1, j + 1])
    A *= (n + 1) ** 2
    ours = P.nodal_diffusion(torch.from_numpy(a * (n + 1) ** 2)).to_dense().numpy()
    order = np.arange(n * n).reshape(n, n).T.ravel()  # our last axis is fastest
    np.testing.assert_allclose(ours[np.ix_(order, order)], A, rtol=1e-15, atol=0)


@pytest.mark.parametrize("stencil", ["fd", "fe"])
def test_periodic_null_space_and_shift(stencil):
    kappa = normal((4, 5)).exp()
    A = P.nodal_diffusion(kappa, discretization=stencil, boundary="periodic")
    sums = A @ torch.ones(20, dtype=torch.float64)
    assert sums.abs().max() <= 12 * torch.finfo(torch.float64).eps * A.diagonal().max()
    assert torch.linalg.eigvalsh(A.to_dense())[1] > 0.1  # constants alone
    B = P.nodal_diffusion(kappa, discretization=stencil, boundary="periodic", shift=0.25)
    assert torch.equal(B.to_dense(), A.to_dense() + 0.25 * torch.eye(20, dtype=torch.float64))
    assert B.pattern is A.pattern


def test_the_published_stencil_of_helmholtz():
    """(-1, 2 - k^2 / (n + 1)^2, -1) of Deep multigrid: the eigenvalue of sin(j pi x) changes its sign at
    k = 2 (n + 1) sin(j pi / (2 (n + 1))), about j pi."""
    n = 31
    for j in (1, 3):
        at = 2 * (n + 1) * math.sin(j * math.pi / (2 * (n + 1)))
        for k, negative in ((at - 1e-6, j - 1), (at + 1e-6, j)):
            A = P.helmholtz(torch.full((n,), k / (n + 1), dtype=torch.float64))
            assert int((torch.linalg.eigvalsh(A.to_dense()) < 0).sum()) == negative


def test_waves_leave_through_an_absorbing_boundary():
    """To second order: i e^(ik|x - y|) / 2k is the wave of a point on a line."""
    errors = []
    for n in (50, 100):
        A = P.helmholtz(torch.full((n,), 15 / n, dtype=torch.float64), boundary="absorbing")
        b = torch.zeros(n, dtype=torch.complex128)
        b[n // 3] = 1 / n
        distance = (torch.arange(n) - n // 3).abs() / n
        errors.append((30 * ls.ops.spsolve(A, b) - 1j * torch.exp(15j * distance)).abs().max())
    assert errors[0] < 0.05
    assert 3.8 < errors[0] / errors[1] < 4.3
    corner = P.helmholtz(torch.full((3, 4), 0.7, dtype=torch.float64), shift=1 + 0.5j, boundary="absorbing")
    beyond = (1 + 0.35j) / (1 - 0.35j)
    d = corner.diagonal().reshape(3, 4)
    inside = 4 - (1 + 0.5j) * 0.49
    expected = torch.tensor([inside - 2 * beyond, inside - beyond, inside], dtype=d.dtype)
    torch.testing.assert_close(torch.stack((d[0, 0], d[0, 1], d[1, 1])), expected)
    assert P.helmholtz(torch.ones(3), shift=1j).dtype == torch.complex64
    kh = normal((2, 4, 3)).abs().requires_grad_()
    f = lambda kh: P.helmholtz(kh, shift=1 + 0.2j, boundary="absorbing", dimensions=2).values  # noqa: E731
    assert torch.autograd.gradcheck(f, kh, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, kh)


# --- convection ---


@pytest.mark.parametrize(("scheme", "speeds"), [("central", (0.7, -1.6)), ("upwind", (0.7, -3.0))])
def test_eigenvalues_for_a_constant_wind(scheme, speeds):
    shape = (4, 5)
    w = torch.tensor(speeds, dtype=torch.float64).view(2, 1, 1).expand(2, *shape)
    found = np.linalg.eigvals(P.convection_diffusion(w, scheme=scheme).to_scipy().toarray())
    lines = []
    for p, n in zip(map(abs, speeds), shape, strict=True):
        cosines = np.cos(np.arange(1, n + 1) * np.pi / (n + 1))
        if scheme == "central":
            lines.append(2 + 2 * math.sqrt(1 - p * p / 4) * cosines)
        else:
            lines.append(2 + p + 2 * math.sqrt(1 + p) * cosines)
    wanted = np.sort(np.add.outer(*lines).ravel())
    # Nonsymmetric: eigenvectors of condition r^n with r = (1 + p)^(1/2) at most per axis.
    np.testing.assert_allclose(np.sort(found.real), wanted, rtol=1e-11)
    assert abs(found.imag).max() < 1e-11


def test_upwind_is_an_m_matrix():
    D = P.convection_diffusion(normal((2, 5, 6)), 50.0).to_dense()
    assert (D - D.diag().diag() <= 0).all()
    assert (D.sum(1) >= -1e-12 * D.diagonal()).all()
    assert (torch.linalg.inv(D) >= -1e-15).all()
    central = P.convection_diffusion(normal((2, 5, 6)), 50.0, scheme="central").to_dense()
    assert (central - central.diag().diag() > 0).any()


def test_reaction_is_on_the_diagonal():
    w, c = normal((2, 3, 4)), normal((3, 4), seed=1).requires_grad_()
    plain = P.convection_diffusion(w, 2.0, scheme="central")
    A = P.convection_diffusion(w, 2.0, scheme="central", reaction=c)
    torch.testing.assert_close(A.to_dense() - plain.to_dense(), c.flatten().diag())
    A.values.sum().backward()
    assert bool((c.grad == 1).all())
    zero = P.convection_diffusion(w, 2.0, scheme="central", reaction=-4.0)
    assert bool((zero.diagonal() == 0).all())


# --- orders of convergence ---


def poisson_error(n, discretization="fd", scale=1.0):
    """-div grad u = f for u = sin(pi x) sin(2 pi y) on the unit square."""
    h = 1 / n
    x, y = np.meshgrid(*2 * [h * np.arange(1, n)], indexing="ij")
    u = np.sin(np.pi * x) * np.sin(2 * np.pi * y)
    return P.poisson((n - 1, n - 1), discretization=discretization), scale * h**2 * 5 * np.pi**2 * u, u


def diffusion_error(n):
    """-div(kappa grad u) = f, kappa = exp(sin(2 pi x) y), u = sin(pi x) sin(2 pi y) on the unit square."""
    points = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    x, y = (t.clone().requires_grad_() for t in torch.meshgrid(points, points, indexing="ij"))
    kappa = torch.exp(torch.sin(2 * math.pi * x) * y)
    u, f = torch.sin(math.pi * x) * torch.sin(2 * math.pi * y), 0
    ux, uy = torch.autograd.grad(u.sum(), (x, y), create_graph=True)
    for direction, derivative in ((x, ux), (y, uy)):
        f = f - torch.autograd.grad((kappa * derivative).sum(), direction, retain_graph=True)[0]
    return P.diffusion(kappa.detach()), f.detach().numpy() / n**2, u.detach().numpy()


def tensor_error(n, d):
    """-div(K grad u) = f with a full, varying K and a product u of sines on the unit square or cube."""
    n = n if d == 2 else n // 4
    nodes, middles = (
        torch.meshgrid(*[t] * d, indexing="ij")
        for t in (torch.arange(1, n, dtype=torch.float64) / n, (torch.arange(n).double() + 0.5) / n)
    )

    def K(*x):
        w = torch.stack([torch.cos(t + i) for i, t in enumerate(x)], -1)
        return w.unsqueeze(-1) * w.unsqueeze(-2) + 0.5 * torch.eye(d, dtype=torch.float64)

    x = [t.clone().requires_grad_() for t in nodes]
    u, f = math.prod(torch.sin(math.pi * t) for t in x), 0
    slopes = torch.stack(torch.autograd.grad(u.sum(), x, create_graph=True), -1)
    flux = (K(*x) @ slopes.unsqueeze(-1)).squeeze(-1)
    for a in range(d):
        f = f - torch.autograd.grad(flux[..., a].sum(), x[a], retain_graph=True)[0]
    return P.diffusion_tensor(K(*middles)), f.numpy() / n**2, u.detach().numpy()


def convection_error(n, scheme):
    """-0.1 u'' + w u' = f with w = cos(x), u = sin(pi x)."""
    h = 1 / (4 * n)
    x = torch.arange(1, 4 * n, dtype=torch.float64) * h
    u, slope = torch.sin(math.pi * x), math.pi * torch.cos(math.pi * x)
    f = 0.1 * math.pi**2 * u + torch.cos(x) * slope
    return (
        P.convection_diffusion(torch.cos(x)[None], h / 0.1, scheme=scheme),
        (h * h / 0.1 * f).numpy(),
        u.numpy(),
    )


@pytest.mark.parametrize(
    ("system", "options", "order"),
    [
        (poisson_error, {}, 2),
        (poisson_error, {"discretization": "fe", "scale": 3.0}, 2),
        (diffusion_error, {}, 2),
        (tensor_error, {"d": 2}, 2),
        (tensor_error, {"d": 3}, 2),
        (convection_error, {"scheme": "central"}, 2),
        (convection_error, {"scheme": "upwind"}, 1),
    ],
)
def test_order_of_convergence(system, options, order):
    errors = []
    for n in (16, 32, 64):
        A, f, u = system(n, **options)
        errors.append(np.abs(scipy.sparse.linalg.spsolve(A.to_scipy(), f.ravel()) - u.ravel()).max())
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert np.all(np.abs(orders - order) < 0.15), orders


# --- pyamg's examples ---


@pytest.mark.parametrize("name", sorted({*example_names} - {"helmholtz_2D"}))
def test_gallery_of_pyamg(name):
    A = P.pyamg_gallery(name)
    S = pyamg.gallery.load_example(name)["A"].tocsr()
    assert A.dtype == torch.float64
    assert A.shape == S.shape
    assert abs(A.to_scipy() - S).max() == 0


def test_gallery_in_float32_and_without_pyamg(monkeypatch):
    A = P.pyamg_gallery("knot", dtype=torch.float32, device="cpu")
    assert torch.equal(A.values, P.pyamg_gallery("knot").values.float())
    assert P.pyamg_gallery("knot", device="meta").device.type == "meta"
    monkeypatch.setitem(sys.modules, "pyamg.gallery", None)
    with pytest.raises(ImportError, match=r"needs pyamg: pip install 'learnsolve\[problems\]'"):
        P.pyamg_gallery("knot")


# --- M M^T + alpha I ---


def test_random_spd():
    """The same draws, the product written as an outer sum."""
    n, seed, density, alpha = 50, 3, 0.08, 0.25
    rng = np.random.default_rng(seed)
    M = np.zeros((n, n))
    places = np.unique(rng.integers(0, n * n, 200))
    M.flat[places] = rng.standard_normal(len(places))
    A = P.random_spd(n, seed, density=density, alpha=alpha)
    ls.SparsityPattern(A.crow_indices, A.col_indices, A.shape)
    wanted = alpha * np.eye(n) + sum(np.outer(column, column) for column in M.T)
    np.testing.assert_allclose(A.to_scipy().toarray(), wanted, rtol=0, atol=1e-14)
    single = P.random_spd(n, seed, density=density, alpha=alpha, dtype=torch.float32)
    assert torch.equal(single.values, A.values.float())
    D = A.to_dense()
    assert torch.equal(D, D.T)
    assert float(torch.linalg.eigvalsh(D)[0]) > alpha - 1e-13


def test_statistics_of_random_spd():
    """trace(A) - n alpha is the sum of squares of N(0, 1), one for each distinct position: chi square. Off
    the diagonal, an entry is there where two of the rows' columns agree."""
    n, density = 1000, 1e-2
    A = P.random_spd(n, 11, density=density)
    count = n * n * -math.expm1(-density)  # distinct positions among density n^2, up to +- sqrt(density) n
    squares = float(A.trace()) - n * 1e-3
    # Standard deviations: sqrt(2 count) of the squares, less than density n of the count.
    assert abs(squares - count) < 5 * (math.sqrt(2 * count) + density * n)
    share = (A.nnz - n) / (n * n - n)
    expected = -math.expm1(-n * (count / n**2) ** 2)
    assert abs(share / expected - 1) < 0.05  # standard deviation of the share: 1 %


@pytest.mark.slow
def test_published_density():
    A = P.random_spd(10_000, 0)
    assert 0.0098 < A.nnz / 10_000**2 < 0.0102


# --- laplacians of graphs beyond their contract ---


N = 7


def graph_laplacian(*arguments, **options):
    return P.graph_laplacian(*arguments, both_directions=False, **options)


def weights(size=EDGES.shape[1], seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(size, dtype=torch.float64, generator=generator) + 0.1


def test_two_edges_are_read_as_pyg_writes_them():
    """The one shape that both conventions have: edges 0-1 and 1-2."""
    L = graph_laplacian(torch.tensor([[0, 1], [1, 2]]), torch.tensor([1.0, 5.0]))
    assert L.to_dense().tolist() == [[1, -1, 0], [-1, 6, -5], [0, -5, 5]]
    edges, w, ground = torch.tensor([[0, 2], [3, 1]]), torch.tensor([1.0, 5.0]), torch.arange(4) == 1
    assert graph_laplacian(edges, w).to_dense()[0].tolist() == [1, 0, 0, -1]
    A = P.grounded_laplacian(edges, w, ground, both_directions=False)
    assert A.to_dense().tolist() == [[1, 0, -1], [0, 5, 0], [-1, 0, 1]]


def pyg(edge_index, w, n):
    """PyTorch Geometric's utils.get_laplacian(edge_index, w, num_nodes=n): without loops, D - A with the row
    sums D of A, which adds up the entries of edge_index."""
    inside = edge_index[0] != edge_index[1]
    A = torch.zeros(n, n, dtype=w.dtype).index_put(tuple(edge_index[:, inside]), w[inside], accumulate=True)
    return A.sum(1).diag() - A


@pytest.mark.parametrize("weighted", [False, True])
def test_of_an_undirected_edge_index_it_is_that_of_pyg(weighted):
    """Each edge in both directions, in any order, some of them twice; and loops."""
    loops = torch.tensor([[1, 6], [1, 6]])
    order = torch.randperm(2 * EDGES.shape[1] + 2, generator=torch.Generator().manual_seed(0))
    edge_index = torch.cat((EDGES, EDGES.flip(0), loops), 1)[:, order]
    w = torch.cat((weights(), weights(), torch.ones(2)))[order]
    w = w if weighted else torch.ones_like(w)
    L = P.graph_laplacian(edge_index, w if weighted else None, n=N)
    torch.testing.assert_close(L.to_dense(), pyg(edge_index, w, N))
    once = graph_laplacian(EDGES, weights() if weighted else None, n=N)
    torch.testing.assert_close(L.to_dense(), once.to_dense())
    free = torch.arange(N) != 4
    A = P.grounded_laplacian(edge_index, w, ~free)
    torch.testing.assert_close(A.to_dense(), pyg(edge_index, w, N)[free][:, free])


def test_two_directions_count_with_the_mean_of_their_weights():
    w = torch.tensor([1.0, 4.0], requires_grad=True)
    L = P.graph_laplacian(torch.tensor([[0, 1], [1, 0]]), w)
    assert L.to_dense().tolist() == [[2.5, -2.5], [-2.5, 2.5]]
    L.diagonal()[0].backward()
    assert w.grad.tolist() == [0.5, 0.5]


def test_the_matrix_of_pyg_for_two_weights_of_an_edge():
    """docs/migration.md; PyG takes the sums over the weights that leave a node."""
    edge_index, w = torch.tensor([[0, 1, 1, 2, 2], [1, 0, 2, 1, 2]]), torch.arange(1.0, 6)
    W = ls.CSR.from_coo(*edge_index, w, (3, 3))
    L = ls.ops.diag(W.sum(1)) - W
    assert L.to_dense().tolist() == [[1, -1, 0], [-2, 5, -3], [0, -4, 4]]
    mean = P.graph_laplacian(edge_index, w).to_dense()
    assert torch.equal(mean - mean.diag().diag(), (L + L.T).to_dense() / 2 - L.diagonal().diag())


def test_weights_default_to_one_and_no_edges_to_zero():
    L = graph_laplacian(EDGES)
    assert L.shape == (6, 6)
    assert L.dtype == torch.float64
    assert torch.equal(L.to_dense(), graph_laplacian(EDGES, torch.ones(EDGES.shape[1])).to_dense().double())
    none = graph_laplacian(EDGES[:, :0], n=3)
    assert torch.equal(none.to_dense(), torch.zeros(3, 3, dtype=torch.float64))


def test_symmetric_bit_for_bit_with_duplicates():
    """Edges in random order and direction, many of them several times, weights of very different size."""
    generator = torch.Generator().manual_seed(1)
    edges = torch.randint(0, 5, (2, 200), generator=generator)
    edges = edges[:, edges[0] != edges[1]]
    w = torch.randn(edges.shape[1], dtype=torch.float64, generator=generator).mul(8).exp()
    D = graph_laplacian(edges, w).to_dense()
    assert torch.equal(D, D.T)


def test_shift_makes_it_positive_definite():
    L = graph_laplacian(EDGES, weights(), n=N)
    shifted = graph_laplacian(EDGES, weights(), n=N, shift=0.5)
    torch.testing.assert_close(shifted.to_dense(), L.to_dense() + 0.5 * torch.eye(N, dtype=torch.float64))
    assert torch.linalg.eigvalsh(shifted.to_dense())[0] > 0.5 - 1e-14


# --- Delaunay graphs ---


def circumcircles_are_empty(points, edges):
    """Each edge of a Delaunay triangulation has a circle through its ends without points inside. Among the
    circles through p and q, centered at their middle plus t times the normal, a point r excludes an interval
    of t that ends where the circle passes through r."""
    for p, q in points[edges]:
        middle, normal = (p + q) / 2, np.array([p[1] - q[1], q[0] - p[0]])
        d = points - middle
        side = d @ normal
        at = ((d * d).sum(1) - (p - middle) @ (p - middle)) / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            t = at / side
        above, below = side > 1e-12, side < -1e-12
        # |d|^2 - 2 t side >= r^2: t <= at / side above the edge, t >= at / side below it.
        low, high = t[below].max(initial=-np.inf), t[above].min(initial=np.inf)
        if low > high + 1e-9 * (1 + abs(high)):
            return False
    return True


@pytest.mark.cpu_only  # graphs are on the CPU
def test_dirichlet_graph():
    """An edge joins two points of the square; a grounded node is one with an edge that leaves it."""
    graph = P.delaunay_graph(300, seed=1)
    points, edges = graph.points.numpy(), graph.edge_index.T.numpy()
    assert points.shape == (300, 2)
    assert points.min() >= 0
    assert points.max() <= 1
    assert (edges[:, 0] < edges[:, 1]).all()
    assert len(np.unique(edges, axis=0)) == len(edges)
    # Points outside make circles smaller, so this holds among the points inside as well.
    assert circumcircles_are_empty(points, edges)
    # Triangulated: a free node is enclosed by its neighbors, and each of them is joined to the next.
    free = np.flatnonzero(~graph.grounded.numpy())
    joined = {tuple(edge) for edge in edges.tolist()}
    for node in free:
        around = np.concatenate((edges[edges[:, 0] == node, 1], edges[edges[:, 1] == node, 0]))
        angles = np.arctan2(*(points[around] - points[node]).T)
        around, angles = around[np.argsort(angles)], np.sort(angles)
        assert np.diff(np.append(angles, angles[0] + 2 * np.pi)).max() < np.pi
        pairs = np.sort(np.stack((around, np.roll(around, 1)), -1), 1)
        assert joined.issuperset(map(tuple, pairs.tolist()))
    # About 4 sqrt(300) nodes next to the boundary.
    assert 40 < 300 - len(free) < 110


@pytest.mark.cpu_only
@pytest.mark.parametrize("blocks", [3, 4])
def test_periodic_graph(blocks):
    n = 40
    points, edge_index, grounded = P.delaunay_graph(n, seed=3, boundary="periodic", blocks=blocks)
    edges = edge_index.T
    assert len(points) == blocks**2 * n
    assert not grounded.any()
    # Euler on the torus: n points, 3 n edges, 2 n triangles.
    assert len(edges) == 3 * n * blocks**2
    assert len(torch.unique(edges.sort(1).values, dim=0)) == len(edges)
    # Every edge is the shortest of its copies, and short.
    x = points[edges]
    step = (x[:, 0] - x[:, 1] + blocks / 2) % blocks - blocks / 2
    assert step.norm(dim=1).max() < 1
    # Node i of a block has as many neighbors as node i of the next.
    degree = torch.bincount(edges.flatten(), minlength=len(points)).view(-1, n)
    assert (degree == degree[0]).all()
    # The torus does not depend on where a block begins.
    one = torch.ones(len(edges), dtype=torch.float64)
    A = P.grounded_laplacian(edge_index, one, grounded, both_directions=False)
    D = A.to_dense().view(blocks, blocks, n, blocks, blocks, n)
    assert torch.equal(D, D.roll((1, 1), (0, 3)))
    assert torch.equal(D, D.roll((1, 1), (1, 4)))
    assert torch.equal(A @ torch.ones(len(points), dtype=torch.float64), torch.zeros(len(points)).double())
