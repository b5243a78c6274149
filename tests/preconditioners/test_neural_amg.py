"""`NeuralAMG`: classical before training, its prolongations by their formula, scaling, gradients, files."""

import pytest
import torch
from torch.autograd import gradcheck

import learnsolve as ls
from learnsolve.preconditioners import AMG, NeuralAMG, load

F64 = torch.float64


def matrix(i=0, n=8):
    data = ls.problems.dataset("q1_diffusion", "train", i + 1, n=n, boundary="dirichlet", period=None)
    return data[i].A


def trained(**options):
    """With weights at which nothing is zero."""
    network = NeuralAMG(**{"rounds": 2, "width": 4, "dtype": F64, "seed": 1, "max_coarse": 5} | options)
    with torch.no_grad():
        w = network.last.weight
        w.copy_(torch.linspace(-0.5, 0.5, w.numel()).reshape(w.shape))
    return network


def test_untrained_it_is_ruge_stueben():
    r = torch.linspace(-1, 1, 64, dtype=F64)
    network = NeuralAMG(max_coarse=5, smoother="jacobi", cycle="W")
    for i in range(3):
        M, classical = network(matrix(i)), network.classical(matrix(i))
        assert M.hierarchy.sizes == classical.hierarchy.sizes
        assert len(M.hierarchy) >= 2
        torch.testing.assert_close(M(r), classical(r))
        assert M.symmetric
        assert M.cycle == "W"


def graph(n=200):  # some rows of the classical P with one pass are empty
    return ls.problems.dataset("delaunay_laplacian", "train", 5, n=n, boundary="dirichlet")[4].A


def test_no_row_of_a_prolongation_on_a_graph_is_empty():
    """As pyamg leaves some with the first pass of the coarsening alone: no values can mend those."""
    A = graph()
    P = NeuralAMG().start(A).P
    assert (P.pattern.crow_indices.diff() > 0).all()
    assert (AMG(A, method="ruge_stuben", max_coarse=5).hierarchy.prolongations[0].sum(1) == 0).any()


def test_the_sums_of_rows_are_kept():
    A, network = graph(), trained()
    start = network.start(A)
    P = network.prolongation(start)
    assert (P.values - start.P.values).abs().max() > 0.01
    torch.testing.assert_close(P.sum(1), start.P.sum(1))


def test_prolongation_by_its_formula():
    A, network = matrix(), trained()
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
    expected *= classical.sum(1, keepdim=True) / expected.sum(1, keepdim=True)
    torch.testing.assert_close(P.to_dense().detach(), expected)
    assert (P.to_dense() != classical).any()
    assert len(flags) == P.shape[1]


def test_scaling_and_sizes():
    network = trained()
    for n in (8, 16):
        A = matrix(n=n)
        M, other = network(A), network(A.with_values(1e6 * A.values))
        r = torch.linspace(-1, 1, n * n, dtype=F64)
        torch.testing.assert_close(other(r), 1e-6 * M(r))
        assert len(M.hierarchy) >= 2


def test_gradients():
    A, network = matrix(n=5), trained(width=2, max_coarse=2, smoother="jacobi")
    start = network.start(A)
    r = torch.linspace(-1, 1, 25, dtype=F64)
    names, weights = zip(*((k, p.detach()) for k, p in network.named_parameters()), strict=True)

    def apply(*values):
        given = dict(zip(names, values, strict=True))
        return torch.func.functional_call(network, given, (start,))(r)

    assert gradcheck(apply, tuple(w.clone().requires_grad_() for w in weights), fast_mode=True)
    network(A)(r).square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in network.parameters())
    values = A.values.clone().requires_grad_()
    network(A.with_values(values))(r).sum().backward()
    assert values.grad.any()


def test_files(tmp_path):
    A, network, path = (
        matrix(),
        trained(cycle="W", presweeps=2, postsweeps=2),
        tmp_path / "network.safetensors",
    )
    network.save(path)
    again = load(path)
    assert type(again) is NeuralAMG
    assert again.settings() == network.settings()
    r = torch.ones(64, dtype=F64)
    assert torch.equal(again(A)(r), network(A)(r))
    assert not any(p.requires_grad for p in again.parameters())


def test_what_it_refuses(monkeypatch):
    A = matrix()
    with pytest.raises(ValueError, match=r"NeuralAMG: needs one matrix, got a batch of shape \(2,\)"):
        NeuralAMG(max_coarse=5)(A.with_values(A.values.expand(2, -1)))
    with pytest.raises(TypeError, match="the network is a function A -> M"):
        NeuralAMG()(torch.ones(3))
    with pytest.raises(ValueError, match="max_levels must be at least 2"):
        NeuralAMG(max_levels=1)
    diagonal = ls.ops.eye(9)
    with pytest.raises(ValueError, match="has no coarser grid"):
        NeuralAMG().prolongation(NeuralAMG().start(diagonal.to(F64)))
    assert isinstance(NeuralAMG(max_coarse=2)(diagonal.to(F64)), AMG)


def test_cg_and_evaluate():
    A, network = matrix(), trained()
    network.requires_grad_(False)
    found = ls.evaluate(A, torch.ones(64, 1, dtype=F64), {"network": network, "none": None})
    assert "network" in str(found)
