"""cholesky, ldlt, lu, logdet, slogdet, selected_inverse: patterns, larger systems, breakdown, errors."""

import pytest
import scipy.sparse as sp
import torch
from ops.complete_cases import NAMES, dense, library
from ops.incomplete_cases import STRUCTURES, dominant, small
from reference import assert_same_bits, densify, grid, normal, pattern_of

import learnsolve as ls
from learnsolve.ops.core import incomplete

every_name = pytest.mark.parametrize("name", NAMES)
# Supernodes of many columns with long tails, of odd sizes.
GRIDS = {"9 points": grid(9, 7), "7 points": grid(7, 4), "two grids": sp.block_diag([grid(5, 6), grid(9, 3)])}


@every_name
@pytest.mark.parametrize("structure", STRUCTURES)
def test_values(name, structure):
    for index, dtype in ((torch.int32, torch.float32), (torch.int64, torch.float64)):
        P = pattern_of(STRUCTURES[structure], index)
        if P.shape[0] == 0:
            assert library(name, P, dominant(P)).numel() in (0, 1, 2)
            continue
        for batch, order in (
            ((), "natural"),
            ((), "minimum_degree"),
            ((2, 2), torch.arange(P.shape[0]).flip(0)),
        ):
            v = dominant(P, batch, dtype)
            found, wanted = library(name, P, v, order), dense(name, P, v.double(), order)
            assert found.dtype == dtype
            tolerance = 1e-5 if dtype == torch.float32 else 1e-12
            torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)


@every_name
@pytest.mark.parametrize("structure", GRIDS)
def test_second_derivatives_on_grids(name, structure):
    P = pattern_of(GRIDS[structure], torch.int32)
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
        v, t = dominant(P, dtype=dtype) / 10, normal((P.nnz,), dtype, seed=1)

        def product(f, v, t):
            return torch.func.jvp(torch.func.grad(lambda v: (f(name, P, v) ** 3).sum()), (v,), (t,))

        for found, wanted in zip(product(library, v, t), product(dense, v.double(), t.double()), strict=True):
            scale = float(wanted.abs().max())
            torch.testing.assert_close(found.double() / scale, wanted / scale, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("structure", {**STRUCTURES, **GRIDS})
def test_patterns_are_the_complete_fill(structure):
    P = pattern_of({**STRUCTURES, **GRIDS}[structure], torch.int32)
    n = P.shape[0]
    for order in (torch.arange(n), ls.ordering.minimum_degree(P).long()):
        A = ls.ops.permute(ls.CSR(dominant(P), P), order)
        both = (A + A.T).pattern
        wanted = ls.preconditioners.fill_pattern(both, n)
        assert ls.preconditioners.fill_pattern(A, None).equals(wanted)
        L, U, p = ls.ops.lu(ls.CSR(dominant(P), P), ordering=order)
        assert torch.equal(p.long(), order)
        assert L.pattern.equals(ls.ops.tril(ls.CSR(normal((wanted.nnz,)), wanted)).pattern)
        assert U.pattern.equals(L.pattern.T)
        again = ls.ops.lu(ls.CSR(dominant(P, seed=1), P), ordering=order.clone())
        assert again.L.pattern is L.pattern
        assert again.U.pattern is U.pattern


@every_name
def test_same_bits_for_any_number_of_threads_and_batch(name):
    P = pattern_of(grid(5, 30), torch.int32)
    v = dominant(P, (5,))

    def results(v):
        v = v.clone().requires_grad_()
        f = library(name, P, v)
        (grad,) = torch.autograd.grad(f, v, f.detach(), create_graph=True)
        return [t.detach() for t in (f, grad, *torch.autograd.grad(grad, v, v.detach()))]

    alone = [torch.stack(t) for t in zip(*(results(one) for one in v), strict=True)]
    assert all(torch.equal(a, b) for a, b in zip(results(v), alone, strict=True))
    assert_same_bits(lambda: results(v))


def test_only_the_lower_triangle_is_read():
    P = small()
    v = dominant(P)
    upper = densify(P, torch.arange(P.nnz) + 1.0).triu(1)[densify(P, torch.ones(P.nnz)) > 0] > 0
    for name in ("cholesky", "ldlt"):
        spoiled = torch.where(upper, torch.nan, v).requires_grad_()
        out = library(name, P, spoiled)
        assert torch.equal(out, library(name, P, v))
        (grad,) = torch.autograd.grad(out.sum(), spoiled)
        assert (grad[upper] == 0).all()


def test_the_gradient_of_logdet_is_the_selected_inverse():
    A = ls.problems.poisson((7, 6)).requires_grad_()
    ls.ops.logdet(A).backward()
    torch.testing.assert_close(A.values.grad, ls.ops.selected_inverse(A).values, rtol=1e-14, atol=0)
    B = A.with_values(dominant(A.pattern)).requires_grad_()
    ls.ops.slogdet(B).logabsdet.backward()
    inverse = ls.ops.selected_inverse(B, kind="lu")
    torch.testing.assert_close(
        B.values.grad, inverse.values[A.pattern.transpose_permutation], rtol=1e-14, atol=0
    )


@pytest.mark.parametrize("kind", ["cholesky", "lu"])
@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
def test_the_selected_inverse_is_the_same_with_a_graph(kind, batch):
    """Without one the gradient of the determinant by the factors is not stored."""
    A = ls.problems.poisson((7, 6))
    v = A.values * (1 + torch.arange(2.0).reshape(2, 1)) if batch else A.values.clone()
    with_graph = ls.ops.selected_inverse(A.with_values(v.requires_grad_()), kind=kind).values
    assert with_graph.requires_grad
    with torch.no_grad():
        assert torch.equal(ls.ops.selected_inverse(A.with_values(v), kind=kind).values, with_graph)


def test_breakdown_names_the_row_of_A():
    D = torch.diag(torch.arange(1.0, 6)).double()
    D[1, 1] = -3.0
    A = ls.CSR.from_dense(D)
    for order in (torch.tensor([4, 3, 2, 1, 0]), "natural", "minimum_degree"):
        with pytest.raises(
            ValueError, match=r"cholesky: .*positive.*row 1, .*is -3; .*not positive definite: take"
        ):
            ls.ops.cholesky(A, ordering=order)
    with pytest.raises(ValueError, match=r"logdet: .*row 1.*ops.slogdet"):
        ls.ops.logdet(A)
    with pytest.raises(ValueError, match=r'selected_inverse: .*row 1.*kind="lu"'):
        ls.ops.selected_inverse(A)
    assert ls.ops.slogdet(A).sign == -1
    assert (ls.ops.ldlt(A).D < 0).sum() == 1
    zero = A.with_values(torch.stack((A.values, A.values.clamp(min=0))))
    for f in (ls.ops.lu, ls.ops.ldlt, ls.ops.slogdet):
        with pytest.raises(ValueError, match=r"nonzero.*row 1 of matrix 1 of the batch.* is 0; .*spsolve"):
            f(zero)
    traced = torch.compile(
        lambda v: ls.ops.lu(A.with_values(v)).U.values, backend="aot_eager", fullgraph=True
    )
    with pytest.raises(RuntimeError, match="row 1 in the order of elimination"):
        traced(zero.values[1])


def test_growth_is_reported():
    A = ls.CSR.from_dense(torch.tensor([[1e-12, 1.0], [1.0, 1.0]], dtype=torch.float64))
    for f in (ls.ops.lu, ls.ops.ldlt, ls.ops.slogdet):
        with pytest.warns(RuntimeWarning, match=r"unstable here: \|L\| \|U\| is 1e\+12 times as large as A"):
            f(A, ordering="natural")
        f(A, ordering=torch.tensor([1, 0]))  # warnings are errors


def test_errors():
    A = ls.problems.poisson((3, 3))
    permutation = "ordering must hold each of 0, ..., 8 once, got torch.int64 of shape"
    for error, message, arguments in (
        (TypeError, "A must be a CSR, got Tensor", {"A": torch.ones(2, 2)}),
        (TypeError, "A.values must be float32 or float64", {"A": A.to(torch.float16)}),
        (ValueError, r"A must be square, got shape \(2, 9\)", {"A": A[:2]}),
        (ValueError, "ordering must be one of .*, got 'amd'", {"ordering": "amd"}),
        (ValueError, permutation + r" \(3,\); learnsolve.ordering", {"ordering": torch.arange(3)}),
        (ValueError, permutation + r" \(9,\) that does not", {"ordering": torch.zeros(9, dtype=torch.int64)}),
    ):
        for name in ("cholesky", "ldlt", "lu", "logdet", "slogdet", "selected_inverse"):
            with pytest.raises(error, match=f"{name}: {message}"):
                getattr(ls.ops, name)(**{"A": A} | arguments)
    for name in ("logdet", "selected_inverse"):
        for B in (A.tril(), A.with_values(dominant(A.pattern))):
            with pytest.raises(ValueError, match=f"{name}: A must be symmetric, with both triangles"):
                getattr(ls.ops, name)(B)
    with pytest.raises(ValueError, match="selected_inverse: kind must be one of"):
        ls.ops.selected_inverse(A, kind="qr")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(incomplete, "PLAN_LIMIT", 64)
        with pytest.raises(ValueError, match=r"lu: L would have \d+ entries, more than the 2 that"):
            ls.ops.lu(ls.problems.poisson((5, 3)))
    huge = ls.CSR.from_dense(torch.tensor([[1e-200, 0], [1e200, 1]], dtype=torch.float64))
    with pytest.raises(
        ValueError, match=r"lu: every pivot must be nonzero and finite, that of row 1, .* is nan; .*scale A"
    ):
        ls.ops.lu(huge, ordering="natural")


def test_logdet_and_its_derivatives_by_known_eigenvalues():
    n = 40
    one = 4 * (torch.pi * torch.arange(1, n + 1, dtype=torch.float64) / (2 * n + 2)).sin() ** 2
    eigenvalues = (one + one[:, None]).flatten() + 0.3
    A, shift = ls.problems.poisson((n, n)), torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    value = ls.ops.logdet(A + shift * ls.ops.eye(n * n, dtype=A.dtype))
    for wanted in (eigenvalues.log(), 1 / eigenvalues, -1 / eigenvalues**2, 2 / eigenvalues**3):
        torch.testing.assert_close(value.detach(), wanted.sum(), rtol=1e-12, atol=0)
        (value,) = torch.autograd.grad(value, shift, create_graph=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logdet_takes_rounding_errors_for_symmetric(dtype):
    a = 0.3 * (1 + torch.finfo(dtype).eps)
    A = ls.CSR.from_dense(torch.tensor([[2.0, a], [0.3, 2.0]], dtype=dtype))
    assert A.values[1] != A.values[2]
    assert ls.ops.logdet(A).isfinite()
