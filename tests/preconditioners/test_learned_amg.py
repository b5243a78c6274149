"""Learned cycles: grids, free restrictions, batches; `NeuralAMG`: its formula, gradients, files."""

import numpy as np
import pytest
import torch
from preconditioners.cases import dense, general, spd
from pyamg.classical.interpolate import classical_interpolation
from pyamg.strength import classical_strength_of_connection
from reference import normal
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call

import learnsolve as ls
from learnsolve.ops.spgemm import galerkin
from learnsolve.preconditioners import AMG, Hierarchy, NeuralAMG, load

P = ls.preconditioners
F64 = torch.float64


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


def trained(**options):
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
    A, network = graph(), trained()
    while A.shape[0] > 20:
        start = network.start(A)
        P = network.prolongation(start)
        assert (P.values - start.P.values).abs().max() > 1e-2
        torch.testing.assert_close(P.sum(1), start.P.sum(1))
        A = galerkin(P, A)


def test_sums_of_either_sign_are_kept():
    A, network = matrix(), trained()
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
    report = audited(trained(max_coarse=2))
    assert report.ok, str(report)
    assert not any("direction" in entry.where for entry in report.undecided), str(report)  # of all entries


def test_an_audit_finds_that_spectral_radii_are_held():
    report = audited(trained(max_coarse=2, smoother="jacobi"))
    assert any(entry.test == "difference" for entry in report.failures)


def test_the_prolongation_by_its_weights():
    network = trained(width=2)
    start = network.start(matrix(n=5))
    names, weights = zip(*((k, p.detach()) for k, p in network.named_parameters()), strict=True)

    class Prolongation(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network

        def forward(self):
            return self.network.prolongation(start).values

    def values(*given):
        return functional_call(
            Prolongation(), {f"network.{k}": v for k, v in zip(names, given, strict=True)}, ()
        )

    assert gradcheck(values, tuple(w.clone().requires_grad_() for w in weights))


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
