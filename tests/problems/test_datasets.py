"""problems.dataset: splits, determinism, the published parameters, shared patterns, worker processes."""

import math
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import learnsolve as ls
from learnsolve.problems import dataset
from learnsolve.problems.datasets import FAMILIES

pytestmark = pytest.mark.cpu_only

# Each family, small; the second one differs in every parameter.
SMALL = {
    "convection_diffusion": [{"n": 6}, {"n": 7, "epsilon": 0.2, "scheme": "upwind", "wind": "random"}],
    "delaunay_laplacian": [{"n": 12, "blocks": 3}, {"n": 60, "boundary": "dirichlet", "weights": "uniform"}],
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
    with pytest.raises(ValueError, match=r"none of 10,000 fields of variance 0.5 has a contrast in \(1e\+30"):
        data[0]
    data = dataset("helmholtz", "train", 1, std=1000.0, length=0.01)
    with pytest.raises(ValueError, match=r"none of 10,000 fields .* stays above minimum = 3.0"):
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
