"""Networks A -> M, GNP and NeuralAMG, learned cycles: formulas, gradients, solvers, files."""

import copy
import json
from functools import partial

import numpy as np
import pytest
import torch
from preconditioners.cases import dense, general, spd
from pyamg.classical.interpolate import classical_interpolation
from pyamg.strength import classical_strength_of_connection
from reference import TRANSFORMS, normal
from safetensors.torch import load_file, save_file
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call

import learnsolve as ls
from learnsolve.nn import ResGCN
from learnsolve.nn.networks import linear
from learnsolve.ops.sparse_products import galerkin
from learnsolve.preconditioners import (
    AMG,
    IC,
    MIC,
    FactorNetwork,
    Hierarchy,
    Jacobi,
    NeuralAMG,
    NeuralIF,
    PreCorrector,
    RowFactor,
    StencilFactor,
    fill_pattern,
    load,
    pointwise,
)
from learnsolve.preconditioners.learned import NetworkStart

NETWORKS = (PreCorrector, NeuralIF)
POINTWISE = {StencilFactor: {"diagonals": 5}, RowFactor: {"largest": 2}}
both = pytest.mark.parametrize("Network", NETWORKS, ids=lambda N: N.__name__)
every = pytest.mark.parametrize("Network", [*NETWORKS, *POINTWISE], ids=lambda N: N.__name__)


def trained(Network, **options):
    """With weights at which nothing is zero."""
    own = POINTWISE.get(Network, {"rounds": 2})
    network = Network(**{"width": 4, "dtype": torch.float64, "seed": 1} | own | options)
    last = network.network[-1] if Network in POINTWISE else network.last
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in (*last.parameters(), *([network.alpha] if Network is PreCorrector else [])):
            p.copy_(0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return network


def matrices(count, n=5):
    data = ls.problems.dataset("log_gaussian_diffusion", "train", count, n=n, variance=0.5, contrast=None)
    return [sample.A for sample in data]


def stacked(given):
    return given[0].with_values(torch.stack([A.values for A in given]))


def test_untrained_networks_are_classical():
    (A,) = matrices(1)
    r = torch.linspace(-1, 1, 25, dtype=A.dtype)
    ssor = partial(ls.preconditioners.SSOR, omega=1.3)
    for network, classical in (
        (PreCorrector(), IC),
        (NeuralIF(), Jacobi),
        (StencilFactor(5, omega=1.3, dtype=torch.float64), ssor),
        (RowFactor(largest=1, omega=1.3, dtype=torch.float64), ssor),
    ):
        torch.testing.assert_close(network(A)(r), classical(A)(r), rtol=1e-6, atol=1e-12)


def modified(A):
    return MIC(A, level=1, omega=0.95)


class Corrected(PreCorrector):
    """A user's: of another factor, on another pattern."""

    def classical(self, A):
        return modified(A)


class Relative(FactorNetwork):
    """A user's: every entry of that factor times an exponential; a second feature of the edges."""

    node_features, edge_features = 1, 2

    def __init__(self, **options):
        super().__init__(**options)
        torch.nn.init.zeros_(self.last.weight)
        torch.nn.init.zeros_(self.last.bias)

    def start(self, A):
        L = modified(A).L
        row, column = L.pattern.row_indices.long(), L.pattern.col_indices.long()
        scale = L.diagonal()
        return NetworkStart(
            L.pattern,
            scale,
            A.diagonal().sqrt().div(scale).unsqueeze(-1),
            L.values / scale[..., row],
            (scale[..., column] / scale[..., row]).unsqueeze(-1),
        )

    def entries(self, start, g):
        return start.e * g.exp()


@pytest.mark.parametrize("Network", [Corrected, Relative], ids=lambda N: N.__name__)
def test_a_corrector_of_any_factor(Network, tmp_path):
    """Untrained it is that factor; it learns for batches as well; its file is read."""
    given = matrices(2, n=6)
    A, b = given[0], torch.linspace(-1, 1, 36, dtype=torch.float64)
    network = Network(rounds=2, width=4, dtype=torch.float64)
    torch.testing.assert_close(network.factor(A).values, modified(A).L.values)
    assert network.factor(A).pattern.nnz > IC(A).L.nnz
    B, M = torch.eye(36, dtype=A.dtype).expand(2, -1, -1), network(network.start(stacked(given)))
    ls.solvers.cg(stacked(given), B, M=M, iterations=2, gradient="unrolled").x.sum().backward()
    with torch.no_grad():
        for p in network.parameters():
            p.sub_(1e-3 * p.grad)

    def f(v, p):
        weights = {"last.bias": p}
        return torch.func.functional_call(network, weights, (A.with_values(v),)).L.values

    inputs = [t.detach().clone().requires_grad_() for t in (A.values, network.last.bias)]
    assert gradcheck(f, inputs, fast_mode=True, check_forward_ad=True)
    network.save(tmp_path / "network.safetensors")
    again = load(tmp_path / "network.safetensors")
    assert type(again) is Network
    assert torch.equal(again(A)(b), network(A)(b))
    assert ls.solvers.cg(A, b, M=again(A)).converged


@every
def test_a_factor_is_lower_triangular_with_a_positive_diagonal(Network):
    (A,) = matrices(1)
    L = trained(Network).factor(A)
    assert L.dtype == A.dtype
    assert torch.equal(L.to_dense(), L.to_dense().tril())
    assert (L.diagonal() > 0).all()
    scaled = trained(Network).factor(A.with_values(1e6 * A.values))
    torch.testing.assert_close(scaled.values, 1e3 * L.values)


@pytest.mark.parametrize("Network", [NeuralIF, *POINTWISE], ids=lambda N: N.__name__)
def test_a_factor_follows_a_scaling_from_both_sides(Network):
    (A,) = matrices(1)
    s = torch.linspace(0.1, 3, 25, dtype=A.dtype)
    network = trained(Network)
    L = network.factor(A.scale_rows(s).scale_columns(s))
    torch.testing.assert_close(L.values, network.factor(A).scale_rows(s).values)


@both
def test_messages_are_equivariant_to_permutations(Network):
    (A,) = matrices(1)
    network = trained(Network, aggregate=("mean", "max"))
    start = network.start(A)
    p = torch.randperm(25, generator=torch.Generator().manual_seed(3))
    # Which entry of the graph comes to each place of the permuted one.
    P = start.pattern
    moved = ls.CSR(torch.arange(1.0, P.nnz + 1), P)[p][:, p]
    place = moved.values.long() - 1
    permuted = NetworkStart(moved.pattern, start.scale[p], start.x[p], start.e[place])
    found = network.messages(permuted)
    torch.testing.assert_close(found, network.messages(start)[place])
    assert found.std() > 1e-3


@every
def test_a_batch_is_a_loop(Network):
    given = matrices(3)
    network = trained(Network)
    batch = network.factor(stacked(given))
    for values, A in zip(batch.values, given, strict=True):
        torch.testing.assert_close(values, network.factor(A).values)
    start = network.start(stacked(given))
    torch.testing.assert_close(network.factor(start[[2, 0]]).values, batch.values[[2, 0]])
    B = torch.ones(3, 25, 1, dtype=torch.float64)
    one = network(given[1])(B[1])
    torch.testing.assert_close(network(stacked(given))(B)[1], one)


@every
def test_gradients(Network):
    (A,) = matrices(1, n=3)
    network = trained(Network, width=2)
    names = [name for name, _ in network.named_parameters()]
    given = [A.values, *(p.detach() for p in network.parameters())]

    def f(v, *parameters):
        weights = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(network, weights, (A.with_values(v),)).L.values

    inputs = [t.clone().requires_grad_() for t in given]
    assert gradcheck(f, inputs, fast_mode=True, check_forward_ad=True)
    assert gradgradcheck(f, inputs, fast_mode=True)
    network.zero_grad()
    network.factor(A).values.square().sum().backward()
    unused = [name for name, p in network.named_parameters() if p.grad is None]
    assert not unused, "processes that share a step wait for all gradients"


@every
def test_in_cg_and_evaluate(Network):
    (A,) = matrices(1)
    b, network = torch.ones(25, dtype=A.dtype), trained(Network).requires_grad_(False)
    found = ls.solvers.cg(A, b, M=network(A))
    assert found.converged
    rows = ls.compare_preconditioners(A, b, {"network": network}, rtol=1e-5, repeats=1).rows
    assert rows[0].iterations.mean == found.iterations
    assert rows[0].setup.mean > 0
    with pytest.raises(TypeError, match=rf"{Network.__name__}: A must be a CSR, got Tensor\. .*M = network"):
        ls.solvers.cg(A, b, M=network)
    trainable = trained(Network)
    solution = ls.solvers.cg(A, b, M=trainable(A), iterations=3, gradient="unrolled")
    solution.residual_norms[-1].backward()
    assert all(bool(p.grad.isfinite().all()) for p in trainable.parameters())


@every
def test_what_a_network_refuses(Network):
    name = Network.__name__
    for options, error, message in (({"width": 5000}, ValueError, f"{name}: .*must be at most 4096"),):
        with pytest.raises(error, match=message):
            Network(**options)
    bad = ls.CSR.from_dense(torch.tensor([[1.0, 0.5], [0.5, -2.0]], dtype=torch.float64))
    with pytest.raises(ValueError, match=f"{name}: A must have a positive diagonal, row 1 has -2"):
        Network()(bad)


def by_hand(network, A):
    """L, row by row."""
    S, n = A.to_dense().numpy(), A.shape[0]
    d = np.sqrt(S.diagonal())
    S = S / d[:, None] / d
    stencil, k = type(network) is StencilFactor, network.lower
    pattern = fill_pattern(A, network.fill) if stencil else A.pattern
    kept = ls.CSR(torch.ones(pattern.nnz), pattern).to_dense().numpy() + S != 0
    on_A, on_L = (
        sorted({j - i for i, j in zip(*np.nonzero(p), strict=True)}) for p in (S, np.tril(kept + kept.T))
    )
    x, slot = np.zeros((n, 2 * k + (0 if stencil else 2))), {}
    if stencil:
        x = np.zeros((n, len(on_A) - 1))
        for i, j in zip(*np.nonzero(S), strict=True):
            if i != j:
                x[i, on_A.index(j - i) - (j > i)] = S[i, j]
        slot = {
            (i, j): on_L.index(j - i) for i, j in zip(*np.nonzero(np.tril(kept + kept.T, -1)), strict=True)
        }
    else:
        for i in range(n):
            for side, columns in enumerate((range(i), range(i + 1, n))):
                large = sorted((j for j in columns if S[i, j]), key=lambda j: -abs(S[i, j]))
                x[i, 2 * k + side] = sum(S[i, j] for j in large)
                for rank, j in enumerate(large):
                    if rank < k:
                        x[i, side * k + rank] = S[i, j]
                    slot |= {(i, j): min(rank, k)} if side == 0 else {}
    with torch.no_grad():
        h = network.network(torch.from_numpy(x)).numpy()
    C = np.zeros((n, n))
    for (i, j), s in slot.items():
        C[i, j] = S[i, j] + (h[i, s] if s < k else 0)
    C += np.diag(np.exp(h[:, k]) / network.omega)
    return d[:, None] * C * np.exp(h[:, k + 1]) * np.sqrt(network.omega / (2 - network.omega))


@pytest.mark.parametrize(
    ("Network", "options"),
    [
        (StencilFactor, {}),
        (StencilFactor, {"fill": 1, "lower": 3}),
        (RowFactor, {}),
        (RowFactor, {"largest": 1}),
    ],
    ids=["stencil", "stencil, fill", "rows", "rows, entries left out"],
)
def test_a_pointwise_factor_by_hand(Network, options):
    (A,) = matrices(1)
    network = trained(Network, **options)
    for compiled in (False, True):
        L = network.requires_grad_(not compiled).factor(A)
        torch.testing.assert_close(L.to_dense(), torch.from_numpy(by_hand(network, A)))


@pytest.mark.rows(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("values", [torch.float32, torch.float64], ids=["of float32", "of float64"])
@pytest.mark.parametrize(
    ("Network", "options"),
    [
        (StencilFactor, {"width": 32}),
        (StencilFactor, {"width": 5, "fill": 1, "lower": 3, "layers": 3}),
        (StencilFactor, {"width": 40, "layers": 1}),
        (RowFactor, {"width": 32, "largest": 8}),
        (RowFactor, {"width": 5, "largest": 1, "layers": 3}),
        (RowFactor, {"width": 8, "layers": 1}),
    ],
    ids=["stencil", "stencil, fill", "stencil, a layer", "rows", "rows, entries left out", "rows, a layer"],
)
def test_a_compiled_factor_is_that_of_torch(Network, options, values, dtype):
    network = trained(Network, dtype=dtype, **options).requires_grad_(False)
    given = [A.with_values(A.values.to(values)) for A in matrices(3, n=9)]
    one = given[0]
    for A in (
        one,
        stacked(given),
        one.with_values(one.values.expand(2, 1, -1)),
        ls.CSR(one.values, one.pattern.to(dtype=torch.int32)),
        ls.CSR(one.values, one.pattern.to(dtype=torch.int64)),
    ):
        found, wanted = network.factor(A), network.factor(network.start(A))
        assert found.pattern is wanted.pattern
        assert found.dtype == wanted.dtype == values
        bound = 100 * max(torch.finfo(t).eps for t in (dtype, values))
        torch.testing.assert_close(found.values, wanted.values, rtol=bound, atol=bound)


@pytest.mark.parametrize(("Network", "options"), [(StencilFactor, {}), (RowFactor, {"largest": 1})])
def test_a_compiled_factor_of_what_is_not_finite(Network, options):
    """And of equal entries, whose order is theirs."""
    network = trained(Network, width=8, **options).requires_grad_(False)
    A = ls.problems.poisson((7, 7))
    off = (A.pattern.row_indices != A.pattern.col_indices).nonzero()[:, 0]
    for bad in ([torch.nan], [torch.inf], [-torch.inf], [torch.inf, torch.nan, torch.nan, -torch.inf], []):
        v = A.values.clone()
        v[off[40 : 40 + len(bad)]] = torch.tensor(bad, dtype=v.dtype)
        B = A.with_values(v)
        found, wanted = network.factor(B).values, network.factor(network.start(B)).values
        torch.testing.assert_close(found, wanted, equal_nan=True)
        assert bool(found.isfinite().all()) == (not bad)


def test_compiled_factors_of_small_matrices():
    for n in (0, 1, 2):
        A = 2 * ls.ops.eye(n)
        network = trained(RowFactor).requires_grad_(False)
        found, wanted = network.factor(A), network.factor(network.start(A))
        torch.testing.assert_close(found.values, wanted.values)
        none = A.with_values(A.values.expand(0, -1))
        assert network.factor(none).values.shape == (0, n)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_a_compiled_factor_of_long_rows(dtype):
    """The largest entries of a row with some equal ones, in more than one piece."""
    v = (50 * drawn(150, 150)).round().to(dtype)
    A = ls.CSR.from_dense(v + v.mT + 1e4 * torch.eye(150, dtype=dtype))
    for largest in (1, 3, 40):
        network = trained(RowFactor, largest=largest).requires_grad_(False)
        found, wanted = network.factor(A).values, network.factor(network.start(A)).values
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("Network", POINTWISE, ids=lambda N: N.__name__)
def test_when_a_factor_is_compiled(Network, monkeypatch):
    calls, raw = [], pointwise.pointwise_factor
    monkeypatch.setattr(pointwise, "pointwise_factor", lambda *given: (calls.append(given), raw(*given))[1])
    (A,) = matrices(1, n=3)
    network = trained(Network, width=2)

    def f(v):
        return v * network.factor(A.with_values(v)).values.sum()

    def compiled(call, *given):
        calls.clear()
        call(*given)
        return len(calls) == 1

    assert not compiled(f, A.values)
    for without in (torch.no_grad, torch.inference_mode):
        with without():
            assert compiled(f, A.values)
    network.requires_grad_(False)
    assert compiled(f, A.values)
    assert not compiled(f, A.values.clone().requires_grad_())
    assert not compiled(network.factor, network.start(A))
    for transform in TRANSFORMS.values():
        assert not compiled(transform, f, A.values)
    network.network[1].register_forward_hook(lambda *given: None)
    assert not compiled(f, A.values)


@pytest.mark.parametrize("Network", POINTWISE, ids=lambda N: N.__name__)
@pytest.mark.parametrize(
    "change",
    [
        lambda layers: layers.register_forward_hook(lambda module, given, out: 0 * out),
        lambda layers: layers[2].register_forward_pre_hook(lambda module, given: (0 * given[0],)),
        lambda layers: layers.append(torch.nn.SiLU()),
    ],
    ids=["a hook of all", "a hook of one", "another layer"],
)
def test_a_changed_perceptron_is_the_same_with_and_without_gradients(Network, change):
    (A,) = matrices(1)
    network = trained(Network)
    before = network.factor(A).values
    change(network.network)
    after = network.factor(A).values
    assert after.requires_grad
    assert not torch.allclose(before, after)
    with torch.no_grad():
        torch.testing.assert_close(network.factor(A).values, after)


@pytest.mark.parametrize("Network", POINTWISE, ids=lambda N: N.__name__)
def test_weights_of_another_dtype_are_refused(Network, tmp_path):
    (A,) = matrices(1)
    network = trained(Network)
    network.network[2].float()
    for grad in (True, False):
        with pytest.raises(TypeError, match=f"{Network.__name__}: the weights must all be"):
            network.requires_grad_(grad)(A)
    with pytest.raises(TypeError, match="save: the weights must be float32 or float64, got float16"):
        network.half().save(tmp_path / "network.safetensors")


@pytest.mark.parametrize("Network", POINTWISE, ids=lambda N: N.__name__)
def test_weights_on_another_device_are_refused(Network):
    (A,) = matrices(1)
    for grad in (True, False):
        with pytest.raises(TypeError, match=r"the weights are on meta, A is on cpu\. Move one"):
            trained(Network).to("meta").requires_grad_(grad)(A)
    # Of the operator torch would take the shapes, on the first one's device: numbers that nobody computed.
    with pytest.raises(RuntimeError, match="device"):
        linear(torch.ones(3, 2), torch.ones(2, 2, device="meta"), torch.ones(2, device="meta"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_functions_of_a_compiled_factor(dtype):
    """Of a number t above the diagonal: exp(t) on it, and silu(t) below it, where A has no entry."""
    t = torch.cat((torch.linspace(-86.5, 88.7, 20_000), torch.linspace(-2, 2, 5000))).to(dtype)
    crow, one = torch.tensor([0, 1, 3, 4]), torch.ones_like(t)
    A = crow, torch.tensor([0, 1, 2, 2]), torch.tensor([0, 0, 1, 0])
    L = crow, torch.tensor([0, 0, 1, 2]), torch.tensor([1, 0, 1, 1]), torch.tensor([2])
    given = A, L, torch.stack((one, one, t, one), -1), one[:, None].expand(-1, 3)
    below, own = torch.eye(3, dtype=dtype)[:2, :, None]
    none = torch.zeros(3, dtype=dtype)
    exact, eps = t.double(), torch.finfo(dtype).eps
    for at, weights, wanted in (
        (2, (own, none), exact.exp()),
        (1, (own[1:2], none[:1], below, none), exact / (1 + (-exact).exp())),
    ):
        found = torch.ops.learnsolve.pointwise_factor(*given, weights, 1.0, 1.0)[:, at]
        torch.testing.assert_close(found.double(), wanted, rtol=4 * eps, atol=0)


def test_what_pointwise_networks_refuse():
    A = ls.problems.poisson((4, 4))
    with pytest.raises(
        ValueError, match=r"StencilFactor: A must have .* 9 diagonals, .*got 5\. .*diagonals=5\. RowFactor"
    ):
        StencilFactor(9)(A)
    with pytest.raises(
        ValueError, match=r"StencilFactor: L must have .* 3 diagonals.*got 4\. .*lower=3\. RowFactor"
    ):
        StencilFactor(5, fill=1)(A)
    for make, message in (
        (lambda: StencilFactor(4), "diagonals must be odd"),
        (lambda: RowFactor(omega=2.0), "omega must lie in 0 < omega < 2, got 2.0"),
        (lambda: RowFactor(dtype=torch.float16), "dtype must be"),
    ):
        with pytest.raises(ValueError, match=message):
            make()


def test_files_that_are_refused(tmp_path):
    path = tmp_path / "network.safetensors"
    trained(PreCorrector).save(path)
    content, tensors = path.read_bytes(), load_file(path)
    length = int.from_bytes(content[:8], "little")
    about = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["learnsolve"])

    def written(tensors=tensors, **changes):
        save_file(tensors, path, {"learnsolve": json.dumps(about | changes)})

    def refused(message):
        with pytest.raises(ValueError, match=rf"load: .*network.safetensors {message}"):
            load(path)

    for broken in (content[:-3], content[: length // 2], b"", b"hello, this is no such file"):
        path.write_bytes(broken)
        refused("is damaged, or no safetensors file")
    save_file(tensors, path)
    refused("has no settings of a network")
    save_file(tensors, path, {"learnsolve": "{"})
    with pytest.raises(ValueError, match=r"the settings in .* are damaged"):
        load(path)
    written(format=2)
    refused("has format 2, this version reads format 1")
    written(network="Pickle")
    refused("is of 'Pickle', known are .*NeuralIF")
    written(network=[])
    refused(r"is of \[\], known are .*NeuralIF")
    for settings in ({"width": 10**9}, {"width": "8"}, {"dtype": "int8"}, {"other": 1}):
        written(settings=about["settings"] | settings)
        with pytest.raises(ValueError, match=r"the settings in .* are damaged"):
            load(path)
    written(settings=about["settings"] | {"width": 5})
    refused("does not fit its settings, .* has shape")
    written({k: v for k, v in tensors.items() if k != "alpha"})
    refused("does not fit its settings, alpha is missing")
    written(tensors | {"beta": torch.zeros(1)})
    refused("does not fit its settings, beta has no place")
    written(tensors | {"alpha": torch.tensor(torch.nan, dtype=torch.float64)})
    refused("has weights that are not finite, in alpha")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none")


F64 = torch.float64
P = ls.preconditioners


def drawn(*shape, seed=0):
    return torch.randn(shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


A = ls.problems.convection_diffusion(drawn(2, 4, 5), 3.0, scheme="central")
SMALL = {"width": 4, "layers": 2, "dtype": F64}


@pytest.mark.parametrize("transpose", [False, True])
def test_the_network_by_dense_algebra(transpose):
    torch.manual_seed(0)
    network = ResGCN(2, 3, width=5, layers=2, transpose=transpose, dtype=F64)
    X = drawn(20, 2)
    D, w = A.to_dense(), dict(network.named_parameters())
    H = X @ w["first.weight"].T + w["first.bias"]
    for i in range(2):
        Y = D @ H @ w[f"rows.{i}.weight"].T + H @ w[f"own.{i}.weight"].T + w[f"own.{i}.bias"]
        if transpose:
            Y = Y + D.T @ H @ w[f"columns.{i}.weight"].T
        H = H + Y.relu()
    torch.testing.assert_close(network(A, X), H @ w["last.weight"].T + w["last.bias"])


def test_the_formula_of_the_preconditioner():
    M, R = P.GNP(A, **SMALL), drawn(20, 3)
    D = A.to_dense()
    unit = min(D.abs().sum(0).max(), D.abs().sum(1).max())
    for c in range(3):
        s = R[:, c].norm() / 20**0.5
        expected = M.network(A / unit, (R[:, c] / s).unsqueeze(-1)).squeeze(-1) * s / unit
        torch.testing.assert_close(M(R)[:, c], expected)
        torch.testing.assert_close(M(R[:, c]), expected)


@pytest.mark.parametrize("c", [3.0, 1e-250, 1e250])
def test_scales_of_the_residual_and_of_the_matrix(c):
    r = drawn(20)
    M = P.GNP(A, **SMALL)
    torch.testing.assert_close(M(c * r) / c, M(r), rtol=1e-10, atol=0)
    torch.testing.assert_close(P.GNP(c * A, **SMALL)(r) * c, M(r), rtol=1e-10, atol=0)


def test_a_batch_of_matrices_shares_the_weights():
    stack = ls.CSR.stack([A, 2.0 * A])
    M, R = P.GNP(stack, **SMALL), drawn(2, 20, 3)
    each = torch.stack([P.GNP(m, **SMALL)(r) for m, r in zip((A, 2.0 * A), R, strict=True)])
    torch.testing.assert_close(M(R), each)
    with torch.no_grad():
        assert ls.solvers.fgmres(stack, R, M=M, rtol=1e-8).converged


def test_derivatives_of_gnp():
    M = P.GNP(A, width=3, layers=1, transpose=True, dtype=F64)
    names = [name for name, _ in M.named_parameters()]

    def apply(r, *weights):
        return torch.func.functional_call(M, dict(zip(names, weights, strict=True)), (r,))

    given = [t.detach().clone().requires_grad_() for t in (drawn(20, 2), *M.parameters())]
    assert gradcheck(apply, given, fast_mode=True, check_forward_ad=True)
    assert gradgradcheck(apply, given, fast_mode=True)


def test_a_residual_of_zero():
    M = P.GNP(A, **SMALL)
    r = torch.stack((torch.zeros(20, dtype=F64), drawn(20)), -1).requires_grad_()
    z = M(r)
    assert bool((z[:, 0] == 0).all())
    z.sum().backward()
    assert bool((r.grad[:, 0] == 0).all())
    assert bool(r.grad.isfinite().all())


def test_single_precision_inside_and_the_dtype_of_the_matrix_outside():
    M = P.GNP(A, width=4, layers=2)
    assert {p.dtype for p in M.parameters()} == {torch.float32}
    assert M(drawn(20)).dtype == M.dtype == F64
    torch.testing.assert_close(M(drawn(20)), copy.deepcopy(M).double()(drawn(20)), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("solver", ["fcg", "fgmres"])
def test_solvers_with_and_without_gradient(solver):
    matrix = A if solver == "fgmres" else ls.problems.poisson((4, 5))
    solve, M, b = getattr(ls.solvers, solver), P.GNP(matrix, **SMALL), drawn(20, 2)
    with torch.no_grad():
        M.network.last.weight.mul_(0.1)
        M.network.first.weight.fill_(1.0)  # M is not far from a multiple of the identity
        M.network.last.weight.add_(0.5)
    with pytest.raises(ValueError, match="M requires grad"):
        solve(matrix, b, M=M)
    norms = solve(matrix, b, M=M, iterations=4, gradient="unrolled").residual_norms
    norms[-1].sum().backward()
    assert all(bool((p.grad != 0).any()) for p in M.network.rows.parameters())
    with torch.no_grad():
        plain = solve(matrix, b, M=M, iterations=4)
        apart = torch.stack([solve(matrix, c, M=M, iterations=4).x for c in b.T], -1)
    torch.testing.assert_close(plain.residual_norms, norms.detach())
    torch.testing.assert_close(plain.x, apart)
    with pytest.raises(ValueError, match="GNP is not linear"):
        ls.solvers.cg(ls.problems.poisson((4, 5)), b, M=M)


def test_a_file_has_the_matrix(tmp_path):
    for matrix in (A, ls.CSR.stack([A, 2.0 * A])):
        M = P.GNP(matrix, width=4, layers=2, transpose=True, seed=3)
        with torch.no_grad():
            M.network.first.weight.add_(0.5)
        M.save(tmp_path / "m.safetensors")
        again = P.load(tmp_path / "m.safetensors")
        R = drawn(2, 20, 3)
        assert torch.equal(again(R), M(R))
        assert not any(p.requires_grad for p in again.parameters())
        assert ls.solvers.fgmres(matrix, R, M=again).converged


def test_arguments_that_do_not_fit():
    with pytest.raises(ValueError, match="GNP: width must be at most 4096, got 5000"):
        P.GNP(A, width=5000)
    with pytest.raises(ValueError, match=r"ResGCN: X must have shape \(\.\.\., n = 20, in_features = 1\)"):
        P.GNP(A, **SMALL).network(A, drawn(20, 2))


# --- learned cycles ---


@pytest.mark.parametrize(("shape", "sizes"), [((15, 15), (225, 49, 9)), ((7,), (7, 3)), (15, (15, 7, 3))])
def test_linear_interpolation(shape, sizes):
    H = P.Hierarchy.linear(shape)
    assert H.sizes == sizes
    axes = (shape,) if isinstance(shape, int) else shape
    # Exact for functions that are linear in each coordinate and zero on the boundary they touch: here x.
    n = axes[0]
    fine, coarse = (torch.arange(1, m + 1, dtype=F64) / (m + 1) for m in (n, n // 2))
    if len(axes) == 2:
        fine, coarse = (t.unsqueeze(1).expand(-1, len(t)).reshape(-1) for t in (fine, coarse))
    found = H.prolongations[0] @ coarse
    inside = (
        slice(0, n - 1) if len(axes) == 1 else torch.arange(n * n).reshape(n, n)[: n - 1, 1:-1].reshape(-1)
    )
    torch.testing.assert_close(found[inside], fine[inside])


def test_linear_interpolation_between_periodic_grids():
    H = P.Hierarchy.linear((8, 8), periodic=True, levels=2, dtype=torch.float32)
    (Q,) = H.prolongations
    assert Q.shape == (64, 16)
    assert torch.equal(Q.sum(1), torch.ones(64))
    assert torch.equal(Q.sum(0), torch.full((16,), 4.0))
    for shape, periodic in (((4, 4), False), ((3,), False), ((5, 5), True), ((), False)):
        with pytest.raises(ValueError, match=r"Hierarchy.linear: shape must have (odd|even) numbers"):
            P.Hierarchy.linear(shape, periodic=periodic)
    with pytest.raises(ValueError, match="levels must be at least 2"):
        P.Hierarchy.linear((7, 7), levels=1)


def test_a_free_restriction_starts_as_the_transpose():
    M = P.AMG(general(), max_coarse=1, smoother="jacobi")
    learned = P.Trainable(M, learn=("prolongations", "restrictions", "weights"))
    assert len(learned.restrictions) == len(M.hierarchy)
    torch.testing.assert_close(dense(learned), dense(M))
    assert not P.Trainable(P.AMG(spd(), max_coarse=1), learn=("restrictions",)).symmetric
    with torch.no_grad():
        R = learned.restrictions[0].values
        R.mul_(torch.linspace(0.5, 1.5, R.numel()))
    current = learned.build()
    R = current.hierarchy.restrictions[0].to_dense()
    assert (R != current.hierarchy.prolongations[0].to_dense().T).any()
    torch.testing.assert_close(dense(learned.T), dense(learned).T)
    learned(torch.ones(20, dtype=F64)).sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in learned.parameters())
    assert learned.float()(torch.ones(20)).dtype == torch.float32


def batched(A, H):
    """A cycle of values of all transfers and weights, a (2,)-batch of them."""

    def make(v, p, r, w):
        first = [H.prolongations[0].with_values(p), *H.prolongations[1:]]
        others = [H.prolongations[0].T.with_values(r), *[None] * (len(H) - 1)]
        weights = [w, *[0.6] * (len(H) - 1)]
        return P.AMG(A.with_values(v), hierarchy=H.with_prolongations(first, others), weight=weights)

    scale = torch.linspace(0.9, 1.1, 2, dtype=F64).unsqueeze(-1)
    Q = H.prolongations[0]
    inputs = A.values, Q.values * scale, Q.T.values * scale.flip(0), 0.6 * scale.expand(2, A.shape[0])
    return make, tuple(t.detach().clone().requires_grad_() for t in inputs)


def test_batches_of_transfers_and_weights_are_a_loop():
    A, b = general(), normal((20, 2))
    make, inputs = batched(A, P.AMG(A, max_coarse=3).hierarchy)
    M = make(*inputs)
    assert M.batch_shape == (2,)
    v = inputs[0]
    loop = [make(v, *(t[i] for t in inputs[1:])) for i in range(2)]
    torch.testing.assert_close(M(b), torch.stack([one(b) for one in loop]))
    torch.testing.assert_close(M.T(b), torch.stack([one.T(b) for one in loop]))
    by_loop = sum(
        ls.analysis.spectral_radius(ls.analysis.ErrorPropagator(A.with_values(v), one)).value for one in loop
    )
    E = ls.analysis.ErrorPropagator(A.with_values(v), make(*inputs))
    found = torch.autograd.grad(ls.analysis.spectral_radius(E).value.sum(), inputs)
    expected = torch.autograd.grad(by_loop, inputs)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)
    with pytest.raises(ValueError, match="batch axes of A and transfers must broadcast"):
        make(v.expand(3, -1), *inputs[1:])
    with pytest.raises(ValueError, match="batch axes of A and weights must broadcast"):
        make(v.expand(3, -1), inputs[1][0], inputs[2][0], inputs[3])


def test_derivatives_of_a_cycle():
    A, b = spd(), normal((20, 1))
    make, inputs = batched(A, P.AMG(A, max_coarse=3).hierarchy)
    assert gradcheck(lambda *t: make(*t)(b), inputs, fast_mode=True)
    assert gradgradcheck(lambda *t: make(*t)(b), inputs, fast_mode=True)


def matrix(i=0, n=8):
    data = ls.problems.dataset("q1_diffusion", "train", i + 1, n=n, boundary="dirichlet", period=None)
    return data[i].A


def trained_amg(**options):
    """With weights at which nothing is zero."""
    network = NeuralAMG(**{"rounds": 2, "width": 4, "dtype": F64, "seed": 1, "max_coarse": 5} | options)
    with torch.no_grad():
        network.last.weight.normal_(generator=torch.Generator().manual_seed(0))
    return network


def graph(n=300):
    return ls.problems.dataset("delaunay_laplacian", "train", 1, n=n, boundary="dirichlet")[0].A


def test_untrained_it_is_classical():
    r = torch.linspace(-1, 1, 64, dtype=F64)
    network = NeuralAMG(max_coarse=5, smoother="jacobi", cycle="W")
    for i in range(3):
        M, classical = network(matrix(i)), network.classical(matrix(i))
        assert M.hierarchy.sizes == classical.hierarchy.sizes
        assert len(M.hierarchy) >= 2
        torch.testing.assert_close(M(r), classical(r))
        assert M.symmetric
        assert M.cycle == "W"


def test_prolongation_by_its_formula():
    A, network = matrix(), trained_amg()
    start = network.start(A)
    P = network.prolongation(start)
    g = torch.zeros(64, 64, dtype=F64)
    on = A.pattern
    g[on.row_indices.long(), on.col_indices.long()] = network.messages(start.graph).detach()
    classical = start.P.to_dense()
    flags = start.graph.x[:, 0].nonzero().squeeze(1).tolist()
    factors = g[:, flags].exp()
    factors[flags] = 1
    expected = classical * factors
    assert (classical >= 0).all()
    expected *= (classical.sum(1) / expected.sum(1)).unsqueeze(1)
    torch.testing.assert_close(P.to_dense().detach(), expected)
    assert (P.to_dense() - classical).abs().max() > 1e-3
    assert len(flags) == P.shape[1]


def test_features_of_the_entries():
    A = matrix()
    start = NeuralAMG().start(A)
    dense, P = A.to_dense(), start.P.to_dense()
    flags = start.graph.x[:, 0].nonzero().squeeze(1).tolist()
    fine = torch.ones(64, 1, dtype=F64).index_fill(0, torch.tensor(flags), 0)
    row, column = A.pattern.row_indices.long(), A.pattern.col_indices.long()
    changes, Q = [], P
    for step in range(1, 5):
        Q = Q - fine * (P != 0) * (2 / 3) * (dense @ Q) / dense.diagonal().unsqueeze(1)
        if step in (1, 2, 4):
            changes.append(torch.where(P != 0, (Q - P) / P, 0).clamp(-2, 2))
    for found, of in zip(start.graph.more[:, 2:].T, ((P != 0) * fine, P * fine, *changes), strict=True):
        expected = torch.zeros(64, 64, dtype=F64)
        expected[:, flags] = of.to(F64)
        torch.testing.assert_close(found, expected[row, column])
    assert changes[2].abs().max() > 0.1
    torch.testing.assert_close(start.graph.more[:, 0], dense[row, column] / dense.diagonal()[row])
    assert torch.equal(start.graph.more[:, 1], (column < row).to(F64))


def test_no_row_of_the_prolongations_is_empty_on_a_delaunay_graph():
    A = graph()
    M, one_pass = NeuralAMG(max_coarse=20)(A), AMG(A, method="ruge_stuben", max_coarse=20)
    assert len(M.hierarchy) >= 2
    assert empty_rows(M) == 0
    assert empty_rows(one_pass) > 0


def empty_rows(M):
    """How many, of points with neighbors; all those of some points have been on the boundary."""
    return sum(
        int(((P.to_dense() == 0).all(1) & ((A.to_dense() != 0).sum(1) > 1)).sum())
        for A, P in zip(M.operators, M.hierarchy.prolongations, strict=False)
    )


def test_row_sums_are_kept():
    A, network = graph(), trained_amg()
    while A.shape[0] > 20:
        start = network.start(A)
        P = network.prolongation(start)
        assert (P.values - start.P.values).abs().max() > 1e-2
        torch.testing.assert_close(P.sum(1), start.P.sum(1))
        A = galerkin(P, A)


def test_sums_of_either_sign_are_kept():
    A, network = matrix(), trained_amg()
    start = network.start(A)
    signs = torch.where(torch.arange(start.P.nnz) % 3 == 0, -1.0, 1.0).to(F64)
    P = start.P.with_values(start.P.values * signs)
    found = network.prolongation(start._replace(P=P))
    for bound in ({"min": 0}, {"max": 0}):
        sums = [T.with_values(T.values.clamp(**bound)).sum(1) for T in (found, P)]
        torch.testing.assert_close(*sums)
    assert (found.values * signs >= 0).all()
    assert (found.values - P.values).abs().max() > 1e-3


def test_scaling_and_sizes():
    network = trained_amg()
    for n in (8, 16):
        A = matrix(n=n)
        M, other = network(A), network(A.with_values(1e6 * A.values))
        r = torch.linspace(-1, 1, n * n, dtype=F64)
        torch.testing.assert_close(other(r), 1e-6 * M(r))
        assert len(M.hierarchy) >= 2


def test_gradients_amg():
    A, network = matrix(n=5), trained_amg(width=2, max_coarse=2, smoother="jacobi")
    start = network.start(A)
    r = torch.linspace(-1, 1, 25, dtype=F64)
    names, weights = zip(*((k, p.detach()) for k, p in network.named_parameters()), strict=True)

    def apply(*values):
        given = dict(zip(names, values, strict=True))
        return functional_call(network, given, (start,))(r)

    assert gradcheck(apply, tuple(w.clone().requires_grad_() for w in weights), fast_mode=True)
    network(A)(r).square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in network.parameters())
    values = A.values.clone().requires_grad_()
    network(A.with_values(values))(r).sum().backward()
    assert values.grad.any()


@pytest.mark.parametrize("problem", [matrix, lambda: graph(100)], ids=["grid", "graph"])
def test_classical_interpolation_is_that_of_pyamg(problem):
    A = problem()
    P, coarse = NeuralAMG().interpolation(A)
    strength = classical_strength_of_connection(A.to_scipy(), 0.25)
    splitting = np.isin(np.arange(A.shape[0]), coarse.numpy()).astype(np.intc)
    expected = classical_interpolation(A.to_scipy(), strength, splitting)
    torch.testing.assert_close(P.to_dense(), torch.from_numpy(expected.toarray()))
    values = Hierarchy.ruge_stuben(A, second_pass=True, max_levels=2, max_coarse=1).prolongations[0]
    torch.testing.assert_close(P.to_dense(), values.to_dense())


def audited(network):
    """The derivatives of a cycle on four grids: for A's values and for a layer at each end of the network."""
    A, r = matrix(), torch.linspace(-1, 1, 64, dtype=F64)
    network.requires_grad_(False).last.weight.mul_(0.3)
    assert len(network(A).hierarchy) == 3
    names = ["blocks.0.edge_mlp.0.weight", "last.weight"]
    weights = [network.get_parameter(name).clone() for name in names]

    def cycle(A, *weights):
        return functional_call(network, dict(zip(names, weights, strict=True)), (A,))(r)

    return ls.testing.check_gradients(cycle, A, *weights, entries=2, directions=2)


def test_gradients_on_four_grids_are_those_of_differences():
    """The interpolation of a coarse level depends on the weights too."""
    report = audited(trained_amg(max_coarse=2))
    assert report.ok, str(report)
    assert not any("direction" in entry.where for entry in report.undecided), str(report)  # of all entries


def test_an_audit_finds_that_spectral_radii_are_held():
    report = audited(trained_amg(max_coarse=2, smoother="jacobi"))
    assert any(entry.test == "difference" for entry in report.failures)


@pytest.mark.parametrize(
    "network",
    [
        *(trained(N, dtype=d, aggregate=("mean", "max")) for N in NETWORKS for d in (F64, torch.float32)),
        trained_amg(cycle="W", presweeps=2, postsweeps=2),
    ],
    ids=lambda network: f"{type(network).__name__}-{network.last.weight.dtype}",
)
def test_a_file_gives_the_network_back(network, tmp_path):
    A, path, r = matrix(), tmp_path / "network.safetensors", torch.ones(64, dtype=F64)
    network.save(path)
    again = load(path)
    assert type(again) is type(network)
    assert again.settings() == network.settings()
    assert torch.equal(again(A)(r), network(A)(r))
    assert not any(p.requires_grad for p in again.parameters())
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_what_it_refuses(monkeypatch):
    A = matrix()
    with pytest.raises(ValueError, match=r"NeuralAMG: needs one matrix, got a batch of shape \(2,\)"):
        NeuralAMG(max_coarse=5)(A.with_values(A.values.expand(2, -1)))
    with pytest.raises(TypeError, match="The network is a function A -> M"):
        NeuralAMG()(torch.ones(3))
    with pytest.raises(ValueError, match="max_levels must be at least 2"):
        NeuralAMG(max_levels=1)
    diagonal = ls.ops.eye(9)
    with pytest.raises(ValueError, match="has no coarser grid"):
        NeuralAMG().prolongation(NeuralAMG().start(diagonal.to(F64)))
    assert isinstance(NeuralAMG(max_coarse=2)(diagonal.to(F64)), AMG)
