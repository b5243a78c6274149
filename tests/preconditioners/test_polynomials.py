"""Chebyshev and Neumann: the polynomials, bounds, positive definiteness, options, errors."""

import numpy as np
import pytest
import torch
from numpy.polynomial import chebyshev as T
from preconditioners.cases import dense, general, spd
from reference import normal

import learnsolve as ls
from learnsolve.preconditioners.classical import _spectrum

P, S = ls.preconditioners, ls.solvers


def jacobi_spectrum(A):
    """Of D^-1 A, for a symmetric A."""
    d = A.diagonal().rsqrt()
    return torch.linalg.eigvalsh(d[:, None] * A.to_dense() * d)


@pytest.mark.parametrize("degree", [0, 1, 2, 5])
def test_chebyshev_is_the_best_polynomial(degree):
    """1 - t p(t) is the scaled Chebyshev polynomial, on the eigenvalues of a diagonal matrix."""
    t = np.linspace(0.3, 2.0, 30)
    A = ls.ops.diag(torch.from_numpy(t))
    M = P.Chebyshev(A, lmin=0.4, lmax=1.8, degree=degree, M=None)
    residual = 1 - t * M(torch.ones(30, dtype=torch.float64)).numpy()
    coefficients = [0] * (degree + 1) + [1]
    theta, delta = 1.1, 0.7
    expected = T.chebval((theta - t) / delta, coefficients) / T.chebval(theta / delta, coefficients)
    assert np.allclose(residual, expected, rtol=1e-11, atol=1e-13)
    inside = (t >= 0.4) & (t <= 1.8)
    assert np.abs(residual[inside]).max() <= 1 / T.chebval(theta / delta, coefficients) * (1 + 1e-12)


def test_one_eigenvalue():
    A = ls.ops.diag(torch.full((3,), 4.0, dtype=torch.float64))
    r = normal((3,))
    for degree in (0, 3):
        assert torch.allclose(P.Chebyshev(A, lmin=4.0, lmax=4.0, degree=degree, M=None)(r), r / 4)


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
@pytest.mark.parametrize("A", [spd(), general()])
def test_neumann_is_the_truncated_series(A, degree):
    weight = 0.8
    for M, inner in (("jacobi", P.Jacobi(A)), (P.Jacobi(A), P.Jacobi(A)), (None, None), (P.SOR(A), P.SOR(A))):
        W = weight * (torch.eye(20, dtype=A.dtype) if inner is None else dense(inner))
        step = torch.eye(20, dtype=A.dtype) - W @ A.to_dense()
        expected = sum(torch.linalg.matrix_power(step, i) for i in range(degree + 1)) @ W
        found = P.Neumann(A, degree=degree, weight=weight, M=M)
        torch.testing.assert_close(dense(found), expected, rtol=1e-10, atol=1e-11)
        torch.testing.assert_close(dense(found.T), expected.mT, rtol=1e-10, atol=1e-11)


def test_the_compiled_sweeps_agree_with_the_loop():
    A, R = general(), normal((2, 3, 20, 4))
    M = P.Neumann(A, degree=3, weight=0.7)
    torch.testing.assert_close(M(R), super(P.Neumann, M)._columns(R), rtol=1e-13, atol=1e-13)


def test_when_neumann_is_positive_definite():
    """Always for even degrees; for odd ones if weight < 2 / lmax."""
    A = spd()
    lmax = float(jacobi_spectrum(A)[-1])
    for degree in (0, 1, 2, 3, 4):
        for of_bound, positive in ((0.95, True), (1.05, degree % 2 == 0)):
            D = dense(P.Neumann(A, degree=degree, weight=of_bound * 2 / lmax))
            assert bool(torch.linalg.eigvalsh((D + D.mT) / 2).min() > 0) == positive


def test_chebyshev_is_positive_definite_if_lmax_is_above_the_spectrum():
    A = spd()
    lmin, lmax = (float(t) for t in jacobi_spectrum(A)[[0, -1]])
    for degree in (0, 1, 2, 5):
        D = dense(P.Chebyshev(A, lmin=5 * lmin, lmax=lmax * 1.01, degree=degree))
        assert torch.linalg.eigvalsh((D + D.mT) / 2).min() > 0


@pytest.mark.parametrize(
    "A",
    [
        ls.problems.poisson((30, 30)),
        ls.problems.poisson((9, 9, 9)),
        ls.problems.poisson((900,)),
        ls.problems.anisotropic((30, 30), epsilon=0.01, theta=0.5),
        ls.problems.poisson((3,)),
        spd(20),
    ],
)
def test_the_estimate_lies_above_the_spectrum_and_not_far(A):
    M = P.Chebyshev(A)
    lmax = float(jacobi_spectrum(A)[-1])
    assert lmax * 0.999 < float(M.lmax) < 1.11 * lmax
    assert torch.allclose(M.lmin, M.lmax / 30)
    assert torch.equal(P.Chebyshev(A).lmax, M.lmax)  # deterministic


def test_the_estimate_of_a_batch_and_of_invariant_subspaces():
    A = spd()
    both = P.Chebyshev(A.with_values(torch.stack((A.values, 3 * A.values))), M=None)
    assert both.lmax.shape == (2,)
    assert torch.allclose(both.lmax, torch.stack((both.lmax[0], 3 * both.lmax[0])))
    one = ls.ops.eye(7, dtype=torch.float64) * 5.0
    assert torch.allclose(P.Chebyshev(one, M=None).lmax, torch.tensor(5.5).double())
    nothing = ls.ops.eye(0, dtype=torch.float64)
    assert P.Chebyshev(nothing)(normal((0, 2))).shape == (0, 2)
    known = _spectrum.largest_eigenvalue(
        lambda X: X * torch.tensor([1.0, 2.0, 9.0])[:, None], torch.ones(3, 1)
    )
    assert torch.allclose(known, torch.tensor(9.9))


def test_degrees_and_inner_preconditioners_count():
    A, b = ls.problems.poisson((50, 50)), normal((2500,))
    count = lambda M: S.cg(A, b, M=M, rtol=1e-8).iterations  # noqa: E731
    plain = count(None)
    assert plain > count(P.Chebyshev(A, degree=1)) > count(P.Chebyshev(A, degree=4))
    assert (
        plain
        > count(P.Neumann(A, degree=1))
        > count(P.Neumann(A, degree=5))
        > count(P.Chebyshev(A, degree=5))
    )
    assert count(P.Chebyshev(A, degree=1, M=P.IC0(A))) < count(P.IC0(A))
    assert count(P.Neumann(A, degree=2, weight=0.9)) != count(P.Neumann(A, degree=2, weight=0.3))
    lmax = float(P.Chebyshev(A).lmax)
    assert count(P.Chebyshev(A, lmin=lmax / 200, lmax=lmax)) != count(
        P.Chebyshev(A, lmin=lmax / 3, lmax=lmax)
    )


def test_parameters_learn():
    A, r = general(), normal((20, 2)).requires_grad_()
    v = A.values.clone().requires_grad_()
    lmin, lmax, weight = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (0.2, 2.2, 0.8))
    for apply, args in (
        (lambda v, a, z, r: P.Chebyshev(A.with_values(v), lmin=a, lmax=z, degree=2)(r), (v, lmin, lmax, r)),
        (lambda v, w, r: P.Neumann(A.with_values(v), degree=2, weight=w)(r), (v, weight, r)),
        (
            lambda v, w, r: P.Neumann(A.with_values(v), degree=1, weight=w, M=P.SOR(A.with_values(v)))(r),
            (v, weight, r),
        ),
    ):
        assert torch.autograd.gradcheck(apply, args, check_forward_ad=True, fast_mode=True)
        assert torch.autograd.gradgradcheck(apply, args, fast_mode=True)
    assert {id(t) for t in P.Chebyshev(A, lmin=lmin, lmax=lmax).depends_on} >= {
        id(lmin),
        id(lmax),
        id(A.values),
    }
    omega = torch.tensor(1.2, dtype=torch.float64, requires_grad=True)
    inner = P.Neumann(A, degree=1, M=P.SOR(A, omega))
    assert any(t is omega for t in inner.depends_on)
    values = torch.stack((A.values, 2 * A.values))
    many = torch.tensor([0.5, 0.9], dtype=torch.float64)
    together = P.Neumann(A.with_values(values), degree=2, weight=many)(r)
    assert torch.allclose(together[1], P.Neumann(A * 2.0, degree=2, weight=0.9)(r))
    together = P.Chebyshev(A.with_values(values), lmin=many / 5, lmax=2 + many, M=None)(r)
    assert torch.allclose(together[0], P.Chebyshev(A, lmin=0.1, lmax=2.5, M=None)(r))


def test_compile():
    A, r = spd(), normal((20,))
    for make in (
        lambda v: P.Chebyshev(A.with_values(v), lmin=0.1, lmax=2.0, degree=2, symmetric=True),
        lambda v: P.Neumann(A.with_values(v), degree=2, symmetric=True),
    ):
        compiled = torch.compile(lambda v: make(v)(r), fullgraph=True, backend="aot_eager")  # noqa: B023
        assert torch.allclose(compiled(A.values), make(A.values)(r))
        torch._dynamo.reset()


def test_symmetric_is_the_truth():
    A = spd()
    assert P.Chebyshev(A).symmetric
    assert not P.Chebyshev(A, M=P.SOR(A)).symmetric
    assert not P.Neumann(general()).symmetric
    assert P.Neumann(general(), symmetric=True).symmetric


class Bent(P.Preconditioner):
    linear = False

    def __init__(self):
        self.shape, self.depends_on = (20, 20), (normal((1,)),)


A = spd()


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: P.Chebyshev(A.to_dense().tolist()), TypeError, "Chebyshev: A must be a CSR"),
        (lambda: P.Chebyshev(A[:3]), ValueError, r"Chebyshev: A must be square, got shape \(3, 20\)"),
        (lambda: P.Chebyshev(A, degree=-1), ValueError, "degree must be at least 0, got -1"),
        (
            lambda: P.Chebyshev(A, lmin=2.0, lmax=1.0),
            ValueError,
            "lmin must not be above lmax, got 2.0 and 1.0",
        ),
        (
            lambda: P.Chebyshev(A, lmin=-1.0, lmax=1.0),
            ValueError,
            "lmin must be positive and finite, got -1.0",
        ),
        (
            lambda: P.Chebyshev(A, lmin=1.0, lmax=float("inf")),
            ValueError,
            "lmax must be positive and finite, got inf",
        ),
        (
            lambda: P.Chebyshev(A, lmin="0", lmax=1.0),
            TypeError,
            "lmin must be a number or a torch.Tensor, got str",
        ),
        (lambda: P.Chebyshev(A, lmax=torch.tensor(2.0)), TypeError, "lmax has dtype torch.float32"),
        (lambda: P.Chebyshev(A, lmax=normal((3,)).abs()), ValueError, r"batch \(\), got shape \(3,\)"),
        (
            lambda: P.Chebyshev(A, lmax=-torch.ones(()).double()),
            ValueError,
            "lmax must be positive .* got -1.0",
        ),
        (lambda: P.Chebyshev(A, M="ilu"), ValueError, "M must be one of .* got 'ilu'"),
        (lambda: P.Chebyshev(A, M=A), TypeError, 'M must be a Preconditioner, "jacobi" or None, got CSR'),
        (lambda: P.Chebyshev(A, M=Bent()), ValueError, "Chebyshev: M must be linear, and Bent is not"),
        (
            lambda: P.Chebyshev(A, M=P.Jacobi(spd(5))),
            ValueError,
            r"M must have A's shape \(20, 20\), got \(30, 30\)",
        ),
        (lambda: P.Chebyshev(A, M=P.Jacobi(A.to(torch.float32))), TypeError, "M must be torch.float64"),
        (lambda: P.Chebyshev(A * 0.0), ValueError, "A must not have zeros on its diagonal, row 0"),
        (lambda: P.Neumann(A, degree=1.5), TypeError, "Neumann: degree must be an int, got float"),
        (
            lambda: P.Neumann(A, weight=0.0),
            ValueError,
            "Neumann: weight must be positive and finite, got 0.0",
        ),
        (lambda: P.Neumann(A, symmetric=1), TypeError, "Neumann: symmetric must be True or False"),
    ],
)
def test_errors(make, error, words):
    with pytest.raises(error, match=words):
        make()
