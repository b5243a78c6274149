"""The loss of one step, against dense algebra, and vectors from Krylov spaces."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls
from learnsolve.analysis import krylov_basis, krylov_samples, one_step_loss

F64 = torch.float64
A = ls.problems.diffusion(torch.linspace(1, 5, 12, dtype=F64).reshape(3, 4))


def drawn(*shape):
    return torch.randn(shape, dtype=F64, generator=torch.Generator().manual_seed(sum(shape)))


def dense(D, b, d):
    """One column, by the formula."""
    q = D @ d
    return (b - (b @ d) / (d @ q) * q).square().sum() / b.square().sum()


def test_columns_and_batches_agree_with_dense_algebra():
    stack = ls.CSR.stack([A, 2.0 * A + ls.ops.eye(12, dtype=F64)])
    b, d = drawn(2, 12, 3), drawn(2, 12, 3) + 1
    found = one_step_loss(stack, b, d)
    D = stack.to_dense()
    expected = [[dense(D[i], b[i, :, c], d[i, :, c]) for c in range(3)] for i in range(2)]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=F64), rtol=1e-13, atol=0)
    torch.testing.assert_close(one_step_loss(A, b[0, :, 0], d[0, :, 0]), dense(D[0], b[0, :, 0], d[0, :, 0]))
    torch.testing.assert_close(one_step_loss(lambda x: A @ x, b[0], d[0]), found[0])


def test_blocks_of_different_sizes():
    members = [A, ls.problems.poisson((5,))]
    batch = ls.BlockBatch(members)
    b, d = drawn(17, 2), drawn(17, 2) + 1
    apart = [one_step_loss(m, *t) for m, *t in zip(members, batch.split(b), batch.split(d), strict=True)]
    torch.testing.assert_close(one_step_loss(batch, b, d), torch.stack(apart))


@pytest.mark.parametrize("scale", [-3.0, 1e-200, 1e200])
def test_scales_do_not_matter(scale):
    b, d = drawn(12), drawn(12) + 1
    torch.testing.assert_close(one_step_loss(A, b, scale * d), one_step_loss(A, b, d), rtol=1e-12, atol=0)
    torch.testing.assert_close(one_step_loss(A, scale * b, d), one_step_loss(A, b, d), rtol=1e-12, atol=0)


def test_derivatives():
    def loss(v, b, d):
        return one_step_loss(ls.CSR(v, A.pattern), b, d)

    given = [t.requires_grad_() for t in (A.values.clone(), drawn(12, 2), drawn(12, 2) + 1)]
    assert gradcheck(loss, given, check_forward_ad=True)
    assert gradgradcheck(loss, given)


def test_no_direction_and_no_residual():
    d = torch.stack((torch.zeros(12, dtype=F64), drawn(12)), -1).requires_grad_()
    b = torch.stack((drawn(12), torch.zeros(12, dtype=F64)), -1).requires_grad_()
    loss = one_step_loss(A, b, d)
    assert loss.tolist() == [1.0, 0.0]
    for grad in torch.autograd.grad(loss.sum(), (b, d)):
        assert bool((grad == 0).all())


def test_arguments_that_do_not_fit():
    with pytest.raises(ValueError, match=r"one_step_loss: d must have b's shape \(12,\), got \(12, 1\)"):
        one_step_loss(A, drawn(12), drawn(12, 1))
    with pytest.raises(TypeError, match="one_step_loss: d has dtype"):
        one_step_loss(A, drawn(12), drawn(12).float())
    with pytest.raises(ValueError, match="krylov_basis: m must be at least 1, got 0"):
        krylov_basis(A, 0)
    with pytest.raises(ValueError, match=r"krylov_samples: m must be a number of steps or have the shape"):
        krylov_samples(A, drawn(11, 3))


WIND = ls.problems.convection_diffusion(drawn(2, 6, 6), 4.0, scheme="central")


def test_images_of_the_basis_are_orthonormal_and_span_the_krylov_space():
    Q = krylov_basis(WIND, 8, torch.Generator().manual_seed(3))
    D = WIND.to_dense()
    torch.testing.assert_close((D @ Q).T @ (D @ Q), torch.eye(8, dtype=F64))
    v = torch.randn(36, dtype=F64, generator=torch.Generator().manual_seed(3))
    K = [v / v.norm()]
    for _ in range(7):
        K.append(D @ K[-1] / (D @ K[-1]).norm())
    K = torch.stack(K, -1)
    torch.testing.assert_close(K @ torch.linalg.lstsq(K, Q).solution, Q, rtol=1e-8, atol=1e-8)


def test_a_batch_is_its_matrices():
    stack = ls.CSR.stack([WIND, ls.problems.convection_diffusion(drawn(2, 6, 6), 2.0)])
    Q = krylov_basis(stack, 5)
    AQ = stack @ Q
    torch.testing.assert_close(AQ.mT @ AQ, torch.eye(5, dtype=F64).expand(2, 5, 5))
    assert krylov_samples(stack, 5, 3).shape == (2, 36, 3)


def test_a_space_that_is_complete_and_a_singular_matrix():
    eye = ls.ops.eye(6, dtype=F64)
    assert (krylov_basis(eye, 4).norm(dim=0) > 0.5).sum() == 1
    nilpotent = ls.CSR.from_dense(torch.diag(torch.ones(5, dtype=F64), 1))
    Q = krylov_basis(nilpotent, 6)
    assert bool(Q.isfinite().all())
    assert Q.norm() < 1e3


def test_half_are_normal_and_half_white_in_the_krylov_space():
    Q = krylov_basis(WIND, 4, torch.Generator().manual_seed(0))
    x = krylov_samples(WIND, Q, 4001, torch.Generator().manual_seed(1))
    assert abs(x[:, :2001].var() - 1) < 0.05
    e = (WIND @ Q).T @ (WIND @ x[:, 2001:])
    torch.testing.assert_close(e @ e.T / 2000, torch.eye(4, dtype=F64), rtol=0, atol=0.1)
    torch.testing.assert_close((WIND @ Q) @ e, WIND @ x[:, 2001:])


def test_samples_depend_on_the_generator_alone():
    before = torch.random.get_rng_state()
    one, two = (krylov_samples(WIND, 5, 4, torch.Generator().manual_seed(2)) for _ in range(2))
    assert torch.equal(one, two)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not torch.equal(krylov_samples(WIND, 5, 4), krylov_samples(WIND, 5, 4))
