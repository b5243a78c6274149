"""problems.diffusion: against an assembly cell by cell, with derivatives of every kind."""

import itertools
import math

import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls

SHAPES = [(1, 1), (1, 4), (4, 1), (3, 4), (1, 1, 1), (2, 1, 3), (2, 3, 2)]


def positive(shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator).exp().to(dtype)


def assembled(kappa: np.ndarray) -> np.ndarray:
    """Face by face, as the formula says."""
    shape = kappa.shape
    A = np.zeros((kappa.size, kappa.size))
    number = np.arange(kappa.size).reshape(shape)
    for cell in itertools.product(*(range(s) for s in shape)):
        i = number[cell]
        for axis, step in itertools.product(range(len(shape)), (-1, 1)):
            beside = tuple(c + step * (a == axis) for a, c in enumerate(cell))
            if not 0 <= beside[axis] < shape[axis]:
                A[i, i] += 2 * kappa[cell]
                continue
            face = 2 / (1 / kappa[cell] + 1 / kappa[beside])
            A[i, i] += face
            A[i, number[beside]] -= face
    return A


def values(kappa):
    return ls.problems.diffusion(kappa).values


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_against_assembly(shape, dtype):
    kappa = positive(shape, dtype=dtype)
    A = ls.problems.diffusion(kappa)
    ls.SparsityPattern(A.crow_indices, A.col_indices, A.shape)  # looks at every index
    assert A.dtype == dtype
    assert A.col_indices.dtype == torch.int32
    reference = assembled(kappa.double().numpy())
    assert A.nnz == np.count_nonzero(reference)
    # The diagonal is a sum of at most 6 faces, each of three roundings.
    np.testing.assert_allclose(A.to_scipy().toarray(), reference, rtol=9 * torch.finfo(dtype).eps, atol=0)


def test_constant_coefficient_inside_is_poisson():
    A = ls.problems.diffusion(torch.full((5, 5, 5), 3.0, dtype=torch.float64))
    middle = 62
    row = A.to_dense()[middle]
    assert torch.equal(row, 3 * ls.problems.poisson((5, 5, 5)).to_dense()[middle])


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_extreme_coefficients_in_float32(scale):
    """Permeabilities in m^2 are of the order of 1e-15 and less: no square of them may be formed."""
    kappa = positive((3, 3), dtype=torch.float32)
    got = values(scale * kappa).double() / scale
    torch.testing.assert_close(got, values(kappa).double(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("batch", [(2,), (2, 3), (0,)], ids=str)
@pytest.mark.parametrize("shape", [(3, 2), (2, 2, 3)], ids=str)
def test_batch_is_a_loop(batch, shape):
    kappa = positive(batch + shape)
    A = ls.problems.diffusion(kappa, dimensions=len(shape))
    assert A.values.shape == (*batch, A.nnz)
    for at in itertools.product(*(range(b) for b in batch)):
        one = ls.problems.diffusion(kappa[at])
        assert one.pattern is A.pattern
        assert torch.equal(A.values[at], one.values)


def test_patterns_are_shared():
    A, B = (ls.problems.diffusion(positive((4, 3), seed)) for seed in (0, 1))
    assert A.pattern is B.pattern
    assert ls.problems.diffusion(positive((3, 4))).pattern is not A.pattern
    float32 = ls.problems.diffusion(positive((4, 3), dtype=torch.float32))
    assert float32.pattern is A.pattern
    assert (A + B).pattern is A.pattern


@pytest.mark.parametrize("shape", [(1, 2), (2, 3), (2, 2, 2)], ids=str)
def test_derivatives(shape):
    kappa = positive(shape).requires_grad_()
    assert gradcheck(values, kappa, check_forward_ad=True, check_batched_grad=True)
    assert gradcheck(values, kappa, check_forward_ad=True, check_batched_forward_grad=True)
    assert gradgradcheck(values, kappa, check_fwd_over_rev=True, check_rev_over_rev=True)


def test_third_derivative():
    def first(kappa):
        v = values(kappa)
        return torch.autograd.grad((v * v).sum(), kappa, create_graph=True)[0]

    assert gradgradcheck(first, positive((2, 2)).requires_grad_())


def test_gradient_through_a_solve():
    """The energy b . A(kappa)^-1 b falls where kappa grows: its gradient is -x^T (dA/dkappa) x."""
    kappa = positive((3, 4)).requires_grad_()
    b = torch.ones(12, dtype=torch.float64)
    x = torch.linalg.solve(ls.problems.diffusion(kappa).to_dense(), b)
    (by_solve,) = torch.autograd.grad(b @ x, kappa)
    x = x.detach()
    (by_form,) = torch.autograd.grad(x @ (ls.problems.diffusion(kappa) @ x), kappa)
    torch.testing.assert_close(by_solve, -by_form, rtol=1e-12, atol=1e-14)
    assert (by_solve < 0).all()


def test_torch_func():
    kappa = positive((2, 3))
    reverse, forward = torch.func.jacrev(values)(kappa), torch.func.jacfwd(values)(kappa)
    torch.testing.assert_close(reverse, forward, rtol=1e-13, atol=1e-14)
    many = positive((4, 2, 3), seed=1)
    assert torch.equal(torch.func.vmap(values)(many), torch.stack([values(k) for k in many]))
    last = torch.func.vmap(values, in_dims=2)(many.movedim(0, 2))
    assert torch.equal(last, torch.func.vmap(values)(many))

    curvature = torch.func.hessian(energy)(kappa)
    torch.testing.assert_close(curvature, torch.autograd.functional.hessian(energy, kappa))
    per_sample = torch.func.vmap(torch.func.grad(energy))(many)
    torch.testing.assert_close(per_sample, torch.stack([torch.func.grad(energy)(k) for k in many]))


def energy(kappa):
    return (ls.problems.diffusion(kappa).values ** 2).sum()


def test_the_first_call_may_be_anywhere():
    """What is kept for later calls belongs neither to inference mode nor to a transformation."""
    with torch.inference_mode():
        energy(positive((2, 9)))
    kappa = positive((2, 9)).requires_grad_()
    (wanted,) = torch.autograd.grad(energy(kappa), kappa)
    torch.testing.assert_close(torch.func.grad(energy)(positive((2, 9))), wanted)
    wanted = torch.func.grad(energy)(positive((2, 10)))
    kappa = positive((2, 10)).requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(energy(kappa), kappa)[0], wanted)


def test_compile():
    kappa = positive((3, 5)).requires_grad_()
    compiled = torch.compile(energy, backend="aot_eager")
    (got,) = torch.autograd.grad(compiled(kappa), kappa)
    (wanted,) = torch.autograd.grad(energy(kappa), kappa)
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 2)], ids=str)
def test_symmetric_positive_definite(shape):
    kappa = positive(shape, seed=5) ** 3  # a contrast of some 10^4
    D = ls.problems.diffusion(kappa).to_dense()
    assert torch.equal(D, D.T)
    assert torch.linalg.eigvalsh(D)[0] > 0


def test_second_order_convergence():
    """-div(kappa grad u) = f, kappa = exp(sin(2 pi x) y), u = sin(pi x) sin(2 pi y) on the unit square."""
    errors = []
    for n in (16, 32, 64):
        h = 1 / n
        points = torch.arange(n, dtype=torch.float64) * h + h / 2
        x, y = (t.clone().requires_grad_() for t in torch.meshgrid(points, points, indexing="ij"))
        kappa = torch.exp(torch.sin(2 * math.pi * x) * y)
        u = torch.sin(math.pi * x) * torch.sin(2 * math.pi * y)
        f = 0
        ux, uy = torch.autograd.grad(u.sum(), (x, y), create_graph=True)
        for direction, derivative in ((x, ux), (y, uy)):
            f = f - torch.autograd.grad((kappa * derivative).sum(), direction, retain_graph=True)[0]
        A = ls.problems.diffusion(kappa.detach()).to_scipy() / h**2
        solution = scipy.sparse.linalg.spsolve(A, f.detach().flatten().numpy())
        errors.append(np.abs(solution - u.detach().flatten().numpy()).max())
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert np.all(np.abs(orders - 2) < 0.15), orders


@pytest.mark.parametrize("value", [0.0, -1.5, math.inf, math.nan])
def test_coefficient_that_is_not_positive(value):
    kappa = torch.ones(2, 3, 4)
    kappa[1, 0, 2] = value
    shown = {0.0: "0.0", -1.5: "-1.5"}.get(value, str(value))
    words = rf"diffusion: kappa must be positive and finite, got kappa\[1, 0, 2\] = {shown}; .* torch.exp"
    with pytest.raises(ValueError, match=words):
        ls.problems.diffusion(kappa)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((torch.ones(3), None), ValueError, r"kappa must have 2 or 3 axes, got shape \(3,\)"),
        ((torch.ones(2, 2, 2, 2), None), ValueError, "pass dimensions, the number of axes"),
        ((torch.ones(2, 2), 3), ValueError, r"shape \(..., nx, ny, nz\), .*, got \(2, 2\)"),
        ((torch.ones(2, 2), 1), ValueError, "dimensions must be 2 or 3, got 1"),
        ((torch.ones(2, 0), None), ValueError, "with a grid point at least"),
        ((torch.ones(2, 2).long(), None), TypeError, "kappa must be float32 or float64"),
        ((np.ones((2, 2)), None), TypeError, "kappa must be a torch.Tensor, got ndarray"),
    ],
)
def test_errors(arguments, error, words):
    kappa, dimensions = arguments
    with pytest.raises(error, match="diffusion: .*" + words):
        ls.problems.diffusion(kappa, dimensions=dimensions)
