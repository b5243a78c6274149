"""Batches of matrices and preconditioners: the results and gradients of a loop."""

import pytest
import torch

import learnsolve as ls
from learnsolve.analysis import ErrorPropagator, condition_number, extreme_eigenvalues, spectral_radius

F64 = torch.float64
P = ls.preconditioners


def family(shape: tuple[int, ...], side: int = 5) -> ls.CSR:
    """Symmetric positive definite, with simple eigenvalues."""
    A = ls.problems.poisson((side, side + 1))
    generator = torch.Generator().manual_seed(3)
    scale = 1 + torch.rand(*shape, A.shape[0], dtype=F64, generator=generator)
    batch = A.with_values(A.values.expand(*shape, -1))
    return batch.scale_rows(scale).scale_columns(scale)


def members(A: ls.CSR, v: torch.Tensor) -> list[ls.CSR]:
    return [A.with_values(values) for values in v.reshape(-1, A.nnz)]


HIERARCHY = P.AMG(ls.problems.poisson((5, 6)), max_coarse=10, smoother="jacobi").hierarchy


def two_grid(A: ls.CSR) -> P.AMG:
    return P.AMG(A, hierarchy=HIERARCHY, weight=0.6)


CALLS = {
    "radius, dense": lambda A: spectral_radius(ErrorPropagator(A, P.Jacobi(A), 0.7), method="dense"),
    "radius, Arnoldi": lambda A: spectral_radius(
        ErrorPropagator(A, P.Jacobi(A), 0.7), method="arnoldi", rtol=1e-12
    ),
    "radius, two grids": lambda A: spectral_radius(ErrorPropagator(A, two_grid(A))),
    "condition": lambda A: condition_number(A, rtol=1e-12),
    "condition, two grids": lambda A: condition_number(A, two_grid(A), rtol=1e-12),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("shape", [(3,), (2, 1)], ids=str)
def test_equal_to_a_loop(name, shape):
    A, call = family(shape), CALLS[name]
    v, w = (A.values.clone().requires_grad_() for _ in "vw")
    found = call(A.with_values(v))
    loop = [call(B) for B in members(A, w)]
    assert found.value.shape == found.error.shape == torch.Size(shape)
    assert found.converged is True
    torch.testing.assert_close(found.value.reshape(-1), torch.stack([e.value for e in loop]))
    bounds = torch.stack([e.error for e in loop])
    torch.testing.assert_close(found.error.reshape(-1), bounds, rtol=0.1, atol=1e-11)
    weights = torch.linspace(1, 2, v.shape[:-1].numel(), dtype=F64)
    (found.value.reshape(-1) * weights).sum().backward()
    sum(c * e.value for c, e in zip(weights, loop, strict=True)).backward()
    torch.testing.assert_close(v.grad, w.grad, rtol=1e-6, atol=1e-8)


def test_a_batch_of_preconditioners_for_one_matrix():
    A = family(())
    d = torch.linspace(0.5, 1.5, 2 * A.shape[0], dtype=F64).reshape(2, -1)
    kappa = condition_number(A, P.Diagonal(d)).value
    radius = spectral_radius(ErrorPropagator(A, P.Diagonal(d), 0.1)).value
    for i in range(2):
        torch.testing.assert_close(kappa[i], condition_number(A, P.Diagonal(d[i])).value)
        one = spectral_radius(ErrorPropagator(A, P.Diagonal(d[i]), 0.1)).value
        torch.testing.assert_close(radius[i], one)


def test_one_matrix_that_is_not_finite_or_singular():
    A = family((2,))
    v = A.values.clone()
    v[1, 0] = torch.inf
    v.requires_grad_()
    with pytest.warns(RuntimeWarning, match="matrix 1 of the batch"):
        found = spectral_radius(A.with_values(v))
    assert not found.converged
    assert found.value[0] == spectral_radius(A.with_values(v.detach()[0])).value
    assert found.value[1].isnan()
    with pytest.warns(RuntimeWarning, match="matrix 1 of the batch"):
        assert extreme_eigenvalues(A.with_values(v)).smallest.isnan().tolist() == [False, True]
    singular = torch.stack((A.values[0], torch.zeros_like(A.values[0])))
    with pytest.warns(RuntimeWarning, match="of matrix 1 of the batch, may be zero"):
        kappa = condition_number(A.with_values(singular.requires_grad_())).value
    assert kappa.isinf().tolist() == [False, True]
    kappa[0].backward()
    assert singular.grad.isfinite().all()


def test_shapes_are_checked():
    A = family((2,))
    E = ErrorPropagator(A, P.Jacobi(A))
    assert E.batch_shape == (2,)
    with pytest.raises(ValueError, match=r"for a batch of shape \(2,\) X must have shape"):
        E(torch.ones(30, dtype=F64))
    with pytest.raises(ValueError, match="batch axes of A and M must broadcast"):
        ErrorPropagator(A, P.Jacobi(family((3,))))
    with pytest.raises(ValueError, match="empty batch"):
        spectral_radius(family((0,)))
