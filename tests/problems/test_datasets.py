"""Datasets, meshes, random fields and real matrices: splits, published parameters, determinism."""

import math
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import scipy.io
import scipy.sparse
import scipy.sparse.linalg
import torch
from problems.graphs import grid_mesh
from real_data import MISSING, data_folder
from reference import normal
from torch.utils.data import DataLoader

import learnsolve as ls
from learnsolve.problems import dataset, gaussian_field
from learnsolve.problems.datasets import FAMILIES
from learnsolve.problems.stochastic import _amplitudes

pytestmark = pytest.mark.cpu_only

# Each family, small; the second one differs in every parameter.
SMALL = {
    "convection_diffusion": [{"n": 6}, {"n": 7, "epsilon": 0.2, "scheme": "upwind", "wind": "random"}],
    "delaunay_laplacian": [{"n": 12, "blocks": 3}, {"n": 60, "boundary": "dirichlet", "weights": "uniform"}],
    "diffusion_tensor": [
        {"n": 6},
        {"n": 5, "kind": "constant"},
        {"n": 4, "kind": "smooth", "dimensions": 3, "regions": 1, "epsilon": (0.1, 0.5), "length": 0.3},
    ],
    "helmholtz": [{}, {"n": 9, "dimensions": 2, "mean": 6.0, "std": 1.0, "minimum": 2.0, "shift": -1.0}],
    "log_gaussian_diffusion": [
        {"n": 12, "contrast": None},
        {"n": 15, "contrast": (5.0, 9.0), "variance": 0.2, "length": 0.1, "covariance": "exponential"},
    ],
    "p1_diffusion": [{"n": 40}, {"n": 30, "domain": "square", "scale": 1.0, "mesh_seed": 3}],
    "q1_diffusion": [{"n": 8, "period": 4}, {"n": 9, "boundary": "dirichlet", "period": None, "shift": 0.5}],
    "random_spd": [{"n": 60, "density": 0.02}, {"n": 40, "density": 0.05, "alpha": 0.5}],
}
ALL = [(name, options) for name, cases in SMALL.items() for options in cases]


def same(s, t):
    assert s.seed == t.seed
    assert torch.equal(s.A.to_dense(), t.A.to_dense())
    assert torch.equal(s.b, t.b)
    assert (s.x is None and t.x is None) or torch.equal(s.x, t.x)
    assert s.inputs.keys() == t.inputs.keys()
    for key, value in s.inputs.items():
        assert torch.equal(value, t.inputs[key]) if isinstance(value, torch.Tensor) else True


def test_every_family_is_here():
    assert set(SMALL) == set(FAMILIES)


@pytest.mark.parametrize(("name", "options"), ALL)
def test_sequence(name, options):
    data = dataset(name, "train", 4, **options)
    assert len(data) == 4
    samples = list(data)
    assert [s.seed for s in samples] == [0, 1, 2, 3]
    same(samples[3], data[-1])
    same(samples[1], dataset(name, "train", 2, **options)[np.int64(1)])
    for i in range(3):
        assert not torch.equal(samples[i].b, samples[i + 1].b[: len(samples[i].b)])
    with pytest.raises(IndexError, match="index 4 in a data set of 4 samples"):
        data[4]
    with pytest.raises(TypeError, match="an index must be an int, got slice"):
        data[1:2]


@pytest.mark.parametrize(("name", "options"), ALL)
def test_a_sample(name, options):
    """The matrix is that of its inputs, b that of its family; one pattern where the family has one."""
    data = dataset(name, "validation", 2, **options)
    s, t = data
    again = data.problem(**s.inputs)
    assert data.problem is getattr(ls.problems, data.problem.__name__)
    assert torch.equal(again.to_dense(), s.A.to_dense())
    assert s.b.shape == (s.A.shape[0],)
    if s.x is not None:
        assert torch.equal(s.A @ s.x, s.b)
    if data.family.one_pattern:
        assert s.A.pattern is t.A.pattern
        assert dataset(name, "test", 1, **options)[0].A.pattern is s.A.pattern
    assert not torch.equal(s.A.values, t.A.values[: s.A.nnz]) or options.get("std") == 0.0
    tensors = {k: v for k, v in s.inputs.items() if isinstance(v, torch.Tensor) and v.is_floating_point()}
    for key, value in tensors.items():
        leaf = value.clone().requires_grad_()
        A = data.problem(**{**s.inputs, key: leaf})
        (gradient,) = torch.autograd.grad(A.values.square().sum(), leaf)
        assert gradient.abs().max() > 0


@pytest.mark.parametrize(("name", "options"), ALL)
def test_float32(name, options):
    s, t = (dataset(name, "test", 1, dtype=d, **options)[0] for d in (torch.float32, torch.float64))
    assert s.A.dtype == s.b.dtype == torch.float32
    for key, value in s.inputs.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            assert torch.equal(value, t.inputs[key].float())
    # Sums of up to a dozen products of rounded coefficients.
    scale = float(t.A.values.abs().max())
    torch.testing.assert_close(s.A.to_dense().double(), t.A.to_dense(), rtol=0, atol=1e-6 * scale)


def test_splits_are_disjoint():
    for name in SMALL:
        splits = [dataset(name, split, 1000).seeds for split in ("train", "validation", "test")]
        seeds = [s for split in splits for s in split]
        assert len(set(seeds)) == 3000
    assert dataset("random_spd", "train", 1000).seeds == range(0, 1000)
    assert dataset("random_spd", "validation", 10).seeds == range(10_000, 10_010)
    assert dataset("random_spd", "test", 100).seeds == range(103_600, 103_700)
    assert len(dataset("random_spd", "train", 10_000)) == 10_000


# --- what the families draw ---


def test_log_gaussian_diffusion():
    """Fields outside the band are drawn again; those inside are kept."""
    free = list(dataset("log_gaussian_diffusion", "train", 40, n=20, contrast=None))
    band = list(dataset("log_gaussian_diffusion", "train", 40, n=20, contrast=(30, 90)))

    def contrast(s):
        return float(s.inputs["kappa"].max() / s.inputs["kappa"].min())

    inside = [30 <= contrast(s) <= 90 for s in free]
    assert 5 < sum(inside) < 35
    assert all(30 <= contrast(s) <= 90 for s in band)
    for s, t, kept in zip(free, band, inside, strict=True):
        assert torch.equal(s.inputs["kappa"], t.inputs["kappa"]) == kept
    k = ls.problems.gaussian_field((21, 21), seed=7, variance=0.5)
    torch.testing.assert_close(free[7].inputs["kappa"], 21**2 * k.exp(), rtol=1e-14, atol=0)
    assert free[0].A.shape == (400, 400)


@pytest.mark.parametrize(
    ("options", "band"),
    [
        ({}, (80, 250)),
        ({"variance": 0.7}, (250, 900)),
        ({"n": 64, "variance": 1.1}, (400, 1200)),
        ({"n": 400}, (90, 280)),
    ],
)
def test_published_contrast(options, band):
    assert dataset("log_gaussian_diffusion", "train", 1, **options).family.contrast == band


def test_a_band_that_no_field_reaches():
    data = dataset("log_gaussian_diffusion", "train", 1, n=3, contrast=(1e30, 1e31))
    with pytest.raises(ValueError, match=r"no field among 10,000 of variance 0.5 has a contrast in \(1e\+30"):
        data[0]
    data = dataset("helmholtz", "train", 1, std=1000.0, length=0.01)
    with pytest.raises(ValueError, match=r"no field among 10,000 .* stays above minimum = 3.0"):
        data[0]


@pytest.mark.parametrize("boundary", ["periodic", "dirichlet"])
def test_greenfeld_stencils(boundary):
    """The published stencils: neighbors through (i - 1) % n, the center summed before boundary entries are
    dropped."""
    n = 6
    s = dataset("q1_diffusion", "train", 1, n=n, boundary=boundary, period=None)[0]
    g = np.exp(np.random.default_rng(0).standard_normal((n, n)))
    A = np.zeros((n, n, n, n))
    for i in range(n):
        for j in range(n):
            up, left = (i - 1) % n, (j - 1) % n
            down, right = (i + 1) % n, (j + 1) % n
            A[i, j, i, right] = -(g[up, j] + g[i, j]) / 6
            A[i, j, down, j] = -(g[i, left] + g[i, j]) / 6
            A[i, j, down, left] = -g[i, left] / 3
            A[i, j, down, right] = -g[i, j] / 3
            A[i, j, i, left] = -(g[up, left] + g[i, left]) / 6
            A[i, j, up, left] = -g[up, left] / 3
            A[i, j, up, j] = -(g[up, left] + g[up, j]) / 6
            A[i, j, up, right] = -g[up, j] / 3
            A[i, j, i, j] = -A[i, j].sum()
            if boundary == "dirichlet":
                for k in range(n):
                    if i == 0:
                        A[i, j, n - 1, k] = 0
                    if i == n - 1:
                        A[i, j, 0, k] = 0
                    if j == 0:
                        A[i, j, k, n - 1] = 0
                    if j == n - 1:
                        A[i, j, k, 0] = 0
    np.testing.assert_allclose(s.A.to_scipy().toarray(), A.reshape(n * n, n * n), rtol=1e-14, atol=1e-15)


def test_periods():
    kappa = dataset("q1_diffusion", "train", 1, n=16)[0].inputs["kappa"]
    assert kappa.shape == (16, 16)
    assert torch.equal(kappa[:8, :8], kappa[8:, 8:])
    assert not torch.equal(kappa[:4, :4], kappa[4:8, 4:8])
    w = dataset("delaunay_laplacian", "train", 1, n=20, blocks=3)[0].inputs["weights"]
    assert torch.equal(w.view(9, -1), w.view(9, -1)[:1].expand(9, -1))


def test_distributions_of_coefficients():
    """Means and variances of the logarithms, of N numbers: deviations 1 / sqrt(N) and sqrt(2 / N)."""
    for name, key, options, scale in [
        ("q1_diffusion", "kappa", {"n": 64, "period": None}, 1.0),
        ("delaunay_laplacian", "weights", {"n": 1000, "boundary": "dirichlet"}, 1.0),
        ("p1_diffusion", "kappa", {"n": 1000}, 0.5),
    ]:
        sample = dataset(name, "train", 1, **options)[0]
        z = sample.inputs[key].log() / scale
        assert (sample.x[:20] - z.flatten()[:20]).abs().max() > 0.1  # numbers of their own
        assert abs(float(z.mean())) < 4 / math.sqrt(len(z.flatten()))
        assert abs(float(z.square().mean()) - 1) < 4 * math.sqrt(2 / len(z.flatten()))
    uniform = dataset("delaunay_laplacian", "train", 1, n=1000, boundary="dirichlet", weights="uniform")[0]
    w = uniform.inputs["weights"]
    assert abs(float(w.mean()) - 0.5) < 4 / math.sqrt(12 * len(w))
    b = dataset("random_spd", "train", 1, n=2000, density=1e-3)[0].b
    assert 0 <= float(b.min()) < float(b.max()) < 1
    assert abs(float(b.mean()) - 0.5) < 4 / math.sqrt(12 * 2000)
    b = dataset("log_gaussian_diffusion", "train", 1, n=50, contrast=None)[0].b
    assert abs(float(b.mean())) < 4 / 50
    assert abs(float(b.square().mean()) - 1) < 4 * math.sqrt(2) / 50


def test_helmholtz_wavenumbers():
    """k h inside of a grid with its boundary; k above the minimum, with the stated mean and deviation."""
    k = torch.stack([s.inputs["kh"] for s in dataset("helmholtz", "train", 300)]) * 30
    assert k.shape == (300, 29)
    assert k.min() > 3
    # Drawing again those below 3, 2.5 deviations away, changes both by a few per cent.
    assert abs(float(k.mean()) - 8) < 0.4
    assert abs(float(k.std()) - 2) < 0.25
    # exp(-r^2 / (2 l^2)), at the nodes of 30 elements.
    whole = 8 + 2 * ls.problems.gaussian_field(31, seed=4, length=0.3 * math.sqrt(2), spacing=1 / 30)
    assert whole.min() > 3  # accepted at once
    torch.testing.assert_close(k[4], whole[1:-1])
    constant = dataset("helmholtz", "train", 1, std=0, mean=5.0)[0].inputs["kh"]
    assert torch.equal(constant, torch.full((29,), 5.0 / 30, dtype=torch.float64))


@pytest.mark.parametrize("dimensions", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_tensors(dimensions):
    """Of the strength 1 along a uniform direction, across it log-uniform from 1e-3 to 1."""

    def tensors(count, **options):
        data = dataset("diffusion_tensor", "train", count, dimensions=dimensions, **options)
        return torch.stack([data.family.draw(seed)["K"] for seed in data.seeds])

    (K,) = tensors(1, n=9)
    assert K.shape == (*(10,) * dimensions, *(dimensions,) * 2)
    assert torch.equal(K, K.mT)
    assert 1 < len(K.reshape(-1, dimensions**2).unique(dim=0)) <= 8
    assert len(tensors(1, n=9, regions=90)[0].reshape(-1, dimensions**2).unique(dim=0)) > 8
    for kind in ("constant", "smooth"):
        K = tensors(400, n=2, kind=kind)[(slice(None), *(1,) * dimensions)]
        strengths, axes = torch.linalg.eigh(K)
        torch.testing.assert_close(strengths[:, -1], torch.ones(400, dtype=torch.float64))
        decades = strengths[:, :-1].log10()
        assert -3 <= decades.min() < decades.max() <= 1e-12
        # A uniform number has the variance 1/12 of its range; a component squared of a direction at most 1/8.
        assert (decades.mean() + 1.5).abs() < 4 * 3 / math.sqrt(12 * 400)
        mean = torch.einsum("ki,kj->ij", axes[..., -1], axes[..., -1]) / 400
        assert (mean - torch.eye(dimensions) / dimensions).abs().max() < 4 / math.sqrt(8 * 400)
    # From one cell to the next, rotation vectors change by N(0, v) in each component. That turns a direction
    # by v in two dimensions, and by up to 2 v, less where vectors are long, in three.
    K = tensors(12, n=19, kind="smooth", epsilon=(1e-3, 1e-2))
    along = torch.linalg.eigh(K)[1][..., -1]
    sines = 1 - (along[:, 1:] * along[:, :-1]).sum(-1).square()
    ratio = sines.mean() / (2 - 2 * math.exp(-((1 / 20 / 0.2) ** 2)))
    assert 0.6 < ratio / (dimensions - 1) < 1.2
    (one,) = tensors(1, n=3, kind="constant")
    assert torch.equal(one, one[(0,) * dimensions].expand_as(one))


def test_winds():
    s = dataset("convection_diffusion", "train", 1, n=8)[0]
    wind = s.inputs["wind"]
    assert torch.equal(wind, wind[:, :1, :1].expand_as(wind))
    assert 1 / 9 / 0.1 <= s.inputs["peclet"] <= 1 / 9 / 0.01
    wind = dataset("convection_diffusion", "train", 1, n=30, wind="random")[0].inputs["wind"]
    assert float(wind.norm(dim=0).max()) == pytest.approx(1.0, rel=1e-15)
    # Central differences of central differences commute: no divergence but rounding.
    divergence = (wind[0, 2:, 1:-1] - wind[0, :-2, 1:-1]) + (wind[1, 1:-1, 2:] - wind[1, 1:-1, :-2])
    assert divergence.abs().max() < 1e-14


# --- threads, processes, workers ---


@pytest.mark.parametrize(("name", "options"), ALL)
def test_threads_and_pickles(name, options):
    data = dataset(name, "train", 6, **options)
    wanted = list(data)
    with ThreadPoolExecutor(3) as pool:
        for found, s in zip(pool.map(data.__getitem__, range(6)), wanted, strict=True):
            same(found, s)
            assert not data.family.one_pattern or found.A.pattern is s.A.pattern
    again = pickle.loads(pickle.dumps(data))
    assert repr(again) == repr(data)
    same(again[2], wanted[2])
    s = pickle.loads(pickle.dumps(wanted[3]))
    same(s, wanted[3])
    assert s.inputs.get("mesh") is wanted[3].inputs.get("mesh")
    if data.family.one_pattern:
        assert s.A.pattern is wanted[3].A.pattern
        size = sum(t.numel() for t in s.inputs.values() if isinstance(t, torch.Tensor))
        size += s.A.nnz + len(s.b) * (1 if s.x is None else 2)
        assert len(pickle.dumps(wanted[3])) < 8 * size + 4000  # no indices
    assert name not in repr(s)
    assert f"Sample(seed=3, A=CSR(shape={s.A.shape}" in repr(s)


def test_a_pattern_outlives_the_plans_of_its_problem():
    data = dataset("q1_diffusion", "train", 2, n=5, period=None)
    first = data[0].A.pattern
    for n in range(6, 16):  # more grids than nodal_diffusion keeps
        ls.problems.nodal_diffusion(torch.ones(n, n))
    assert data[1].A.pattern is first


def test_data_loader():
    data = dataset("p1_diffusion", "train", 6, n=40)
    wanted = list(data)
    loader = DataLoader(data, batch_size=4, collate_fn=list, num_workers=2)  # type: ignore[arg-type]
    for _ in range(2):
        batches = list(loader)
        assert [len(batch) for batch in batches] == [4, 2]
        for found, s in zip((s for batch in batches for s in batch), wanted, strict=True):
            same(found, s)
            assert found.A.pattern is s.A.pattern


@pytest.mark.slow
def test_another_process():
    """Neither the hashes of strings nor what was drawn before matter."""
    code = (
        "import sys; from learnsolve.problems import dataset\n"
        f"for name, options in {ALL}:\n"
        "    s = dataset(name, 'test', 1, **options)[0]\n"
        "    print(s.A.values.numpy().tobytes().hex(), s.b.numpy().tobytes().hex())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for line, (name, options) in zip(done.stdout.splitlines(), ALL, strict=True):
        s = dataset(name, "test", 1, **options)[0]
        assert line.split() == [t.numpy().tobytes().hex() for t in (s.A.values, s.b)]


# --- matrices of applications, from the folder LEARNSOLVE_DATA ---


class Real(NamedTuple):
    name: str
    shape: tuple[int, int]
    nnz: int  # with both triangles of a symmetric matrix
    symmetric: bool


MATRICES = [
    Real("1138_bus", (1138, 1138), 4054, True),
    Real("ash219", (219, 85), 438, False),
    Real("bcsstk01", (48, 48), 400, True),
    Real("bcsstk16", (4884, 4884), 290_378, True),
    Real("delaunay_n13", (8192, 8192), 49_094, True),
    Real("fs_183_1", (183, 183), 1069, False),
    Real("west0067", (67, 67), 294, False),
]
each = pytest.mark.parametrize("real", MATRICES, ids=lambda real: real.name)


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real data; skips the test, saying why, where there is none."""
    folder = data_folder()
    if folder is None:
        pytest.skip(MISSING)
    return folder


@pytest.fixture
def path(data, real):
    return data / "matrices" / f"{real.name}.mtx"


@each
def test_sizes_and_symmetry(real, path):
    A = ls.problems.matrix_market(path)
    ls.SparsityPattern(A.crow_indices, A.col_indices, A.shape)  # looks at every index
    assert A.shape == real.shape
    assert A.nnz == real.nnz
    assert A.dtype == torch.float64
    assert A.col_indices.dtype == torch.int32
    same = A.T.pattern.equals(A.pattern) and torch.equal(A.T.values, A.values)
    assert same == real.symmetric


def test_pattern_files_have_ones(data):
    A = ls.problems.matrix_market(data / "matrices" / "delaunay_n13.mtx")
    assert (A.values == 1).all()


def test_bad_scaling(data):
    """Entries of very different size survive, in float32 too where it can hold them."""
    path = data / "matrices" / "fs_183_1.mtx"
    A = ls.problems.matrix_market(path)
    size = A.values.abs()
    assert size.max() / size[size > 0].min() > 1e9
    assert torch.equal(ls.problems.matrix_market(path, dtype=torch.float32).values, A.values.float())


def test_laplacian_of_a_triangulation(data):
    W = ls.problems.matrix_market(data / "matrices" / "delaunay_n13.mtx")
    edges = torch.stack((W.pattern.row_indices, W.col_indices))
    L = ls.problems.graph_laplacian(edges)
    assert L.shape == W.shape
    assert L.nnz == 49_094 + 8192
    reference = scipy.sparse.csgraph.laplacian(W.to_scipy())
    assert abs(L.to_scipy() - reference).max() == 0
    assert (L @ torch.ones(8192, dtype=torch.float64)).abs().max() == 0
    assert scipy.sparse.csgraph.connected_components(W.to_scipy())[0] == 1
    # Of one component: the next eigenvalue is positive. Shifted a little, so that it can be factorized.
    small = scipy.sparse.linalg.eigsh(
        ls.problems.graph_laplacian(edges, shift=1e-3).to_scipy().tocsc(),
        k=2,
        sigma=0,
        return_eigenvectors=False,
    )
    assert sorted(small - 1e-3)[0] == pytest.approx(0, abs=1e-9)
    assert sorted(small - 1e-3)[1] > 1e-5


# --- problems.gaussian_field ---


COVARIANCES = {"gaussian": lambda r: np.exp(-(r**2)), "exponential": lambda r: np.exp(-r)}


def distances(shape, spacing):
    axes = [np.arange(n) * h for n, h in zip(shape, spacing, strict=True)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(shape))
    return np.linalg.norm(points[:, None] - points, axis=2)


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize(("shape", "length"), [((40,), 0.1), ((9, 12), 0.2), ((6, 6), 0.6), ((4, 5, 3), 0.3)])
def test_the_covariance_is_exact(shape, length, covariance):
    """The field is linear in white noise. Its covariance, from the response to each noise variable, is the
    stated one in every entry."""
    steps = tuple(1 / n / length for n in shape)
    amplitudes = _amplitudes(shape, steps, covariance)
    torus = amplitudes.shape
    size = math.prod(torus)
    responses = np.fft.fftn(amplitudes * np.eye(size).reshape(size, *torus), axes=range(1, len(shape) + 1))[
        (slice(None), *(slice(n) for n in shape))
    ].reshape(size, -1)
    # The real part of the transform of white noise a + i b is sum_k a_k Re(response) - b_k Im(response).
    found = responses.real.T @ responses.real + responses.imag.T @ responses.imag
    wanted = COVARIANCES[covariance](distances(shape, steps))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-10)
    # The two fields of a transform are independent: Cov(Re, Im) = 0.
    both = responses.real.T @ responses.imag
    np.testing.assert_allclose(both, both.T, rtol=0, atol=2e-10)


def test_statistics_over_seeds():
    """Mean, variance and covariances at a lag, within four standard deviations of their estimates, which
    follow from the covariance (Isserlis): Var(u_p u_q, u_r u_s) = c_pr c_qs + c_ps c_qr."""
    shape, length, variance, seeds = (12, 12), 0.15, 0.7, 400
    fields = np.stack(
        [gaussian_field(shape, s, length=length, variance=variance).numpy() for s in range(seeds)]
    )
    c = variance * COVARIANCES["gaussian"](distances(shape, [1 / 12 / length] * 2))
    u = fields.reshape(seeds, -1)
    assert abs(u.mean()) < 4 * math.sqrt(c.mean() / seeds)
    number = np.arange(144).reshape(shape)
    for dx, dy in [(0, 0), (1, 0), (0, 2), (2, 1)]:
        p, q = number[: 12 - dx, : 12 - dy].ravel(), number[dx:, dy:].ravel()
        found = (u[:, p] * u[:, q]).mean()
        deviation = math.sqrt(
            (c[np.ix_(p, p)] * c[np.ix_(q, q)] + c[np.ix_(p, q)] * c[np.ix_(q, p)]).mean() / seeds
        )
        assert abs(found - c[p[0], q[0]]) < 4 * deviation
        assert deviation < 0.05 * variance  # the test can fail


def test_the_range_of_the_published_fields():
    """PreCorrector's fields on 65 x 65 cells, variance 0.5: contrasts exp(max - min) of 103 on average
    after fields outside 46 to 199 are drawn again. parafields gives exp(4.69) as the geometric mean of all,
    with a deviation of 0.48 of the logarithm."""
    ranges = [np.ptp(gaussian_field((65, 65), s, variance=0.5).numpy()) for s in range(60)]
    assert abs(np.mean(ranges) - 4.69) < 4 * 0.48 * math.sqrt(2 / 60)
    accepted = [r for r in np.exp(ranges) if 46 <= r <= 199]
    assert abs(np.mean(accepted) - 103) < 4 * 40 / math.sqrt(len(accepted))


def test_scale_and_spacing():
    one = gaussian_field((6, 7), 5)
    assert torch.equal(gaussian_field((6, 7), 5, variance=4.0), 2 * one)
    assert torch.equal(gaussian_field((6, 7), 5, variance=0.0), 0 * one)
    wide = gaussian_field((8, 8), 5, length=1.0, spacing=0.5)
    assert torch.equal(wide, gaussian_field((8, 8), 5, length=2.0, spacing=1.0))
    assert torch.equal(gaussian_field((8, 8), 5), gaussian_field((8, 8), 5, spacing=1 / 8))
    assert gaussian_field(5, 0).shape == (5,)
    single = gaussian_field((6, 7), 5, dtype=torch.float32)
    assert torch.equal(single, one.float())


def test_the_same_in_threads_and_after_other_random_numbers():
    wanted = [gaussian_field((20, 20), s) for s in range(16)]
    np.random.standard_normal(3)  # noqa: NPY002
    torch.randn(3)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda s: gaussian_field((20, 20), s), range(16)))
    assert all(map(torch.equal, found, wanted))
    assert not torch.equal(wanted[0], wanted[1])


@pytest.mark.slow
def test_too_long_a_correlation():
    with pytest.raises(ValueError, match="correlation length is too large for the grid"):
        gaussian_field((16, 16), 0, length=30.0)


# --- problems.p1_stiffness and p1_mass, on meshes of all kinds ---


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


FEW = P.random_mesh(16, seed=0)


def test_a_shape_derivative_follows_the_scale_of_the_mesh():
    """In two dimensions K(s x) = K(x) and M(s x) = s^2 M(x): the compliance f^T K^-1 f, f = M 1, goes as s^4,
    so its derivative along x is four times itself."""
    points = FEW.points.clone().requires_grad_()
    mesh = P.TriangleMesh.delaunay(points, FEW.fixed)
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


def test_a_mesh_does_not_change():
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
