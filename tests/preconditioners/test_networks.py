"""Networks A -> M: what they give before training, equivariance, batches, gradients, files."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls
from learnsolve.preconditioners import IC0, Jacobi, NeuralIF, PreCorrector, load
from learnsolve.preconditioners.learned._factor_network import Start

NETWORKS = (PreCorrector, NeuralIF)
both = pytest.mark.parametrize("Network", NETWORKS, ids=lambda N: N.__name__)


def trained(Network, **options):
    """With weights at which nothing is zero."""
    network = Network(**{"rounds": 2, "width": 4, "dtype": torch.float64, "seed": 1} | options)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in (*network.last.parameters(), *([network.alpha] if Network is PreCorrector else [])):
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
    for network, classical in ((PreCorrector(), IC0), (NeuralIF(), Jacobi)):
        torch.testing.assert_close(network(A)(r), classical(A)(r), rtol=1e-6, atol=1e-12)


@both
def test_a_factor_is_lower_triangular_with_a_positive_diagonal(Network):
    (A,) = matrices(1)
    L = trained(Network).factor(A)
    assert L.dtype == A.dtype
    assert torch.equal(L.to_dense(), L.to_dense().tril())
    assert (L.diagonal() > 0).all()
    scaled = trained(Network).factor(A.with_values(1e6 * A.values))
    torch.testing.assert_close(scaled.values, 1e3 * L.values)


def test_neural_if_follows_a_scaling_from_both_sides():
    (A,) = matrices(1)
    s = torch.linspace(0.1, 3, 25, dtype=A.dtype)
    network = trained(NeuralIF)
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
    permuted = Start(moved.pattern, start.scale[p], start.x[p], start.e[place])
    found = network.messages(permuted)
    torch.testing.assert_close(found, network.messages(start)[place])
    assert found.std() > 1e-3


@both
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


@both
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


@both
def test_in_cg_and_evaluate(Network):
    (A,) = matrices(1)
    b, network = torch.ones(25, dtype=A.dtype), trained(Network).requires_grad_(False)
    found = ls.solvers.cg(A, b, M=network(A))
    assert found.converged
    rows = ls.evaluate(A, b, {"network": network}, rtol=1e-5, repeats=1).rows
    assert rows[0].iterations.mean == found.iterations
    assert rows[0].setup.mean > 0
    with pytest.raises(TypeError, match=rf"{Network.__name__}: A must be a CSR, got Tensor; .*M = network"):
        ls.solvers.cg(A, b, M=network)
    trainable = trained(Network)
    solution = ls.solvers.cg(A, b, M=trainable(A), rtol=0.0, maxiter=3, gradient="unrolled")
    solution.residual_norms[-1].backward()
    assert all(bool(p.grad.isfinite().all()) for p in trainable.parameters())


@both
def test_what_a_network_refuses(Network):
    name = Network.__name__
    for options, error, message in (
        ({"rounds": 0}, ValueError, "rounds must be at least 1"),
        ({"width": 5000}, ValueError, "rounds and width must be at most 4096"),
        ({"dtype": torch.float16}, ValueError, "dtype must be torch.float32 or torch.float64"),
        ({"aggregate": "median"}, ValueError, "rows must be one of"),
    ):
        with pytest.raises(error, match=message):
            Network(**options)
    bad = ls.CSR.from_dense(torch.tensor([[1.0, 0.5], [0.5, -2.0]], dtype=torch.float64))
    with pytest.raises(ValueError, match=f"{name}: A must have a positive diagonal, row 1 has -2"):
        Network()(bad)


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_file_gives_the_network_back(Network, dtype, tmp_path):
    (A,) = matrices(1)
    network, path = trained(Network, dtype=dtype, aggregate=("mean", "max")), tmp_path / "a.safetensors"
    network.save(path)
    again = load(path)
    assert type(again) is Network
    assert again.settings() == network.settings()
    assert torch.equal(again.factor(A).values, network.factor(A).values)
    assert not any(p.requires_grad for p in again.parameters())
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


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
    refused("has format 2, this version reads 1")
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
