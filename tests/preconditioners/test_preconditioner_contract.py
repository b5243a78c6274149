"""The contract of every preconditioner in cases.py, and symmetry read off the numbers."""

from functools import cache

import numpy as np
import pytest
import scipy.sparse
import torch
from preconditioners.cases import CASES, dense, general, matrix, spd
from reference import assert_nested_forward_mode, normal

import learnsolve as ls
from learnsolve.ops.core.symmetry import symmetry


def rows(*conditions):
    chosen = [c for c in CASES if all(condition(c) for condition in conditions)]
    return pytest.mark.parametrize("case", chosen, ids=[c.name for c in chosen])


@cache
def properties(case):
    M = case.make(matrix(case))
    return M.linear, M.symmetric, isinstance(M, ls.preconditioners.Trainable)


def linear(case):
    return properties(case)[0]


def symmetric(case):
    return properties(case)[1]


def learns(case):
    return properties(case)[2]


@rows()
def test_shapes_dtypes_and_columns(case):
    A = matrix(case)
    M = case.make(A)
    assert isinstance(M, ls.preconditioners.Preconditioner)
    assert M.shape == A.shape
    assert M.dtype == A.dtype
    R = normal((2, A.shape[0], 3))
    together = M(R)
    assert together.shape == R.shape
    assert together.dtype == R.dtype
    for i in range(2):
        for j in range(3):
            assert torch.allclose(together[i, :, j], M(R[i, :, j]), rtol=1e-12, atol=1e-14)
    assert M(R[0, :, :0]).shape == (A.shape[0], 0)


@rows()
def test_single_precision(case):
    A = matrix(case)
    M, single = case.make(A), case.make(A.to(dtype=torch.float32))
    r = normal((A.shape[0],))
    out = single(r.float())
    assert out.dtype == torch.float32
    assert torch.allclose(out.double(), M(r), rtol=1e-3, atol=1e-4)


@rows(linear)
def test_linear(case):
    M = case.make(matrix(case))
    x, y = normal((M.shape[0],), seed=1), normal((M.shape[0],), seed=2)
    assert torch.allclose(M(2 * x - 3 * y), 2 * M(x) - 3 * M(y), rtol=1e-10, atol=1e-12)


@rows(linear)
def test_transpose(case):
    M = case.make(matrix(case))
    x, y = normal((M.shape[0],), seed=1), normal((M.shape[0],), seed=2)
    assert torch.allclose(M(x) @ y, x @ M.T(y), rtol=1e-10, atol=1e-12)
    assert torch.allclose(M.T.T(x), M(x))
    assert torch.allclose(dense(M.T), dense(M).T, rtol=1e-10, atol=1e-12)


@rows(linear)
def test_symmetric_where_it_says_so_and_only_there(case):
    D = dense(case.make(matrix(case)))
    really = torch.allclose(D, D.T, rtol=1e-10, atol=1e-12)
    assert case.make(matrix(case)).symmetric == really
    if really and case.positive:
        assert torch.linalg.eigvalsh((D + D.T) / 2).min() > 0


@rows(lambda c: c.batched)
def test_a_batch_of_matrices_is_a_loop(case):
    A = matrix(case)
    values = torch.stack((A.values, A.values * (1 + 0.1 * torch.rand_like(A.values))))
    values[1] = torch.where(A.pattern.row_indices == A.col_indices, 1.5 * A.values, A.values)
    r = normal((A.shape[0], 2))
    together = case.make(A.with_values(values))(r)
    assert together.shape == (2, *r.shape)
    for i in range(2):
        assert torch.allclose(together[i], case.make(A.with_values(values[i]))(r), rtol=1e-10, atol=1e-12)


@rows(lambda c: c.differentiable, lambda c: not learns(c))
def test_gradients_of_the_matrix_and_of_r(case, quick):
    A = matrix(case)
    values, r = A.values.clone().requires_grad_(), normal((A.shape[0], 2)).requires_grad_()
    apply = lambda v, r: case.make(A.with_values(v))(r)  # noqa: E731
    assert torch.autograd.gradcheck(apply, (values, r), fast_mode=quick)
    assert torch.autograd.gradgradcheck(apply, (values, r), fast_mode=True)


NESTED = ("IC0", "Chebyshev, estimated", "Schwarz, Robin values")  # by `make test`


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(c, marks=() if c.name in NESTED else pytest.mark.slow, id=c.name)
        for c in CASES
        if not learns(c)
    ],
)
def test_forward_mode_in_forward_mode(case):
    A = matrix(case)
    apply = lambda v, r: case.make(A.with_values(v))(r)  # noqa: E731
    assert_nested_forward_mode(apply, (A.values, normal((A.shape[0], 2))), apply, 1e-10)


@rows(learns)
def test_gradients_of_the_parameters_and_of_r(case, quick):
    M = case.make(matrix(case))
    names = [name for name, p in M.named_parameters() if p.requires_grad]
    parameters = [p.detach().clone().requires_grad_() for p in M.parameters() if p.requires_grad]
    r = normal((M.shape[0], 2)).requires_grad_()
    apply = lambda r, *p: torch.func.functional_call(M, dict(zip(names, p, strict=True)), (r,))  # noqa: E731
    assert parameters
    assert torch.autograd.gradcheck(apply, (r, *parameters), fast_mode=quick)
    assert torch.autograd.gradgradcheck(apply, (r, *parameters), fast_mode=True)


@rows(symmetric, lambda c: c.matrix == "spd" and c.positive)
def test_cg_converges_and_its_implicit_gradient_is_right(case):
    A = matrix(case)
    M = case.make(A)
    if isinstance(M, torch.nn.Module):
        M.requires_grad_(False)
    b = normal((A.shape[0],)).requires_grad_()
    solution = ls.solvers.cg(A, b, M=M, rtol=1e-12)
    assert solution.converged, solution.summary()
    (g,) = torch.autograd.grad(solution.x.sum(), b)
    D = A.to_dense()
    assert torch.allclose(solution.x, torch.linalg.solve(D, b), rtol=1e-9, atol=1e-11)
    assert torch.allclose(g, torch.linalg.solve(D, torch.ones_like(b)), rtol=1e-9, atol=1e-11)


@rows(linear)
def test_gmres_converges_and_its_implicit_gradient_is_right(case):
    A = matrix(case)
    M = case.make(A)
    if isinstance(M, torch.nn.Module):
        M.requires_grad_(False)
    b = normal((A.shape[0],)).requires_grad_()
    solution = ls.solvers.gmres(A, b, M=M, rtol=1e-12, restart=40)
    assert solution.converged, solution.summary()
    (g,) = torch.autograd.grad(solution.x.sum(), b)
    assert torch.allclose(g, torch.linalg.solve(A.to_dense().T, torch.ones_like(b)), rtol=1e-9, atol=1e-11)


@rows(symmetric, lambda c: c.matrix == "spd" and c.positive)
def test_the_compiled_loop_agrees_with_the_general_one(case):
    A = matrix(case)
    M = case.make(A)
    if M.pcg_form() is None:
        pytest.skip("no compiled form")
    b = normal((A.shape[0], 2))
    fused = ls.solvers.cg(A, b, M=M, rtol=0, maxiter=4, gradient="unrolled")
    general = ls.solvers.cg(A, b, M=lambda r: M(r), rtol=0, maxiter=4, gradient="unrolled")
    assert torch.allclose(fused.x, general.x, rtol=1e-10)
    assert torch.allclose(fused.residual_norms, general.residual_norms, rtol=1e-8)


@rows(linear)
def test_for_scipy(case):
    M = case.make(matrix(case))
    operator = M.to_scipy_linear_operator()
    D, X = dense(M).cpu().numpy(), np.random.default_rng(0).standard_normal((M.shape[0], 2))
    assert np.allclose(operator @ X, D @ X)
    assert np.allclose(operator.rmatvec(X[:, 0]), D.T @ X[:, 0])
    x, y = X.T
    assert np.allclose(operator @ (x + 1j * y), D @ x + 1j * (D @ y))
    assert np.allclose(operator.rmatvec(x + 1j * y), D.T @ x + 1j * (D.T @ y))


def test_rounding_is_no_asymmetry_and_anything_else_is():
    A = spd()
    d = torch.linspace(1e-9, 1e9, 20, dtype=torch.float64).sqrt()
    for M in (
        A,
        A.to(dtype=torch.float32),
        A.scale_rows(d).scale_columns(d),
        A.scale_columns(d).scale_rows(d),
    ):
        assert symmetry("f", M, None)
    assert not symmetry("f", general(), None)
    v = A.values.clone()
    v[1] *= 1 + 1e-12
    assert not symmetry("f", A.with_values(v), None)
    assert not symmetry("f", A.with_values(torch.stack((A.values, v))), None)
    assert symmetry("f", A.with_values(torch.stack((A.values, 2 * A.values))), None)
    v[1] = torch.nan
    assert not symmetry("f", A.with_values(v), None)


def test_patterns_count():
    one_way = ls.CSR.from_scipy(scipy.sparse.csr_array([[1.0, 2.0], [0.0, 1.0]]))
    assert not symmetry("f", one_way, None)
    assert not symmetry("f", spd()[:3], None)
    assert symmetry("f", ls.CSR.from_scipy(scipy.sparse.csr_array((0, 0))), None)


def test_after_changes_that_raise_no_version():
    A = spd()
    assert symmetry("f", A, None)
    A.values.data[1] += 1
    assert not symmetry("f", A, None)
    assert symmetry("f", A, True)


def test_under_vmap():
    """Mapped axes may lie anywhere."""
    A, r = spd(), normal((20,))
    values = torch.stack((A.values, 2 * A.values), dim=-1)

    def f(v):
        M = ls.preconditioners.SSOR(A.with_values(v))
        assert M.symmetric
        return M(r)

    out = torch.vmap(f, in_dims=-1)(values)
    assert torch.allclose(out[1], out[0] / 2)
    with torch.inference_mode():
        assert ls.preconditioners.SSOR(A.with_values(A.values.clone())).symmetric
