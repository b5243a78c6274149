"""Learned cycles: linear interpolation on grids, free restrictions, transfers and weights with batch axes."""

import pytest
import torch
from preconditioners.cases import dense, general, spd
from reference import normal
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls

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


def test_derivatives():
    A, b = spd(), normal((20, 1))
    make, inputs = batched(A, P.AMG(A, max_coarse=3).hierarchy)
    assert gradcheck(lambda *t: make(*t)(b), inputs, fast_mode=True)
    assert gradgradcheck(lambda *t: make(*t)(b), inputs, fast_mode=True)
