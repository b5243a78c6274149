"""Gauss-Seidel, SOR and SSOR: each bad argument."""

import pytest
import torch
from reference import normal
from solvers.krylov import poisson

import learnsolve as ls

S = ls.solvers
A, B = poisson(), normal((16,))
LEARNS = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
ZERO = A.with_values(torch.where(A.pattern.row_indices * 17 == 34, 0, A.values))
BAD = [
    (lambda: S.gauss_seidel(lambda x: x, B), TypeError, "gauss_seidel: A must be a CSR, got function"),
    (lambda: S.ssor(A[:3], B[:3]), ValueError, r"ssor: A must be square, got shape \(3, 16\)"),
    (lambda: S.sor(ZERO, B, omega=1), ValueError, "sor: A must not have zeros on its diagonal, row 2"),
    (lambda: S.sor(A, B[:3], omega=1, iterations=2), ValueError, "b must have .* = 16 rows"),
    (lambda: S.sor(A, B[:3], omega=1), ValueError, "b must have .* = 16 rows"),
    (lambda: S.ssor(A, B.float(), iterations=2), TypeError, "b has dtype torch.float32"),
    (lambda: S.ssor(A, B, B[:3], iterations=2), ValueError, r"ssor: x0 must have b's shape \(16,\)"),
    (lambda: S.sor(A, B, omega=2.0), ValueError, "sor: omega must lie in 0 < omega < 2, got 2.0"),
    (lambda: S.ssor(A, B, omega=0 * LEARNS), ValueError, "ssor: omega must lie in 0 < omega < 2, got 0.0"),
    (lambda: S.ssor(A, B, omega=B), ValueError, r"omega must have shape \(\) or in full \(1, 1\) .*\(16,\)"),
    (lambda: S.ssor(A, B, omega="best"), TypeError, "omega must be a number or a torch.Tensor"),
    (lambda: S.ssor(A, B, omega=torch.tensor(1.0)), TypeError, "omega has dtype"),
    (lambda: S.sor(A, B, omega=LEARNS), ValueError, 'sor: omega requires grad, .*Use gradient="unrolled"'),
    (lambda: S.gauss_seidel(A, B, direction="up"), ValueError, "direction must be one of .*got 'up'"),
    (lambda: S.ssor(A, B, multicolour=1), TypeError, "multicolour must be True or False, got 1"),
    (lambda: S.ssor(A, B, iterations=-1), ValueError, "iterations must be at least 0, got -1"),
    (lambda: S.ssor(A, B, gradient="exact"), ValueError, "gradient must be one of .* got 'exact'"),
    (
        lambda: S.ssor(A, B, iterations=2, gradient="exact"),
        ValueError,
        r"gradient must be one of \('unrolled', 'checkpointed'\), got 'exact'",
    ),
    (
        lambda: S.ssor(A, B, iterations=2, gradient="implicit"),
        ValueError,
        'ssor: gradient="implicit" belongs to a converged solution',
    ),
    (lambda: S.SOR(2.5), ValueError, "SOR: omega must lie in 0 < omega < 2, got 2.5"),
    (lambda: S.SOR(1.5, direction="up"), ValueError, "SOR: direction must be one of"),
    (lambda: S.SOR(1.5, gradient="implicit"), ValueError, "SOR: gradient must be one of"),
]


@pytest.mark.parametrize(("call", "kind", "message"), BAD)
def test_errors(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rtol", 1e-3),
        ("atol", 0.0),
        ("maxiter", 5),
        ("callback", print),
        ("throw", True),
        ("adjoint_rtol", 1e-3),
        ("adjoint_maxiter", 5),
    ],
)
def test_a_fixed_number_excludes_tolerances(key, value):
    with pytest.raises(ValueError, match=f"gauss_seidel: iterations asks for exactly 3 sweeps, so {key} has"):
        S.gauss_seidel(A, B, iterations=3, **{key: value})


def test_omega_is_one_if_not_given_and_options_are_checked():
    A, b = ls.problems.poisson((5,)), torch.ones(5, dtype=torch.float64)
    S = ls.solvers
    assert torch.equal(S.sor(A, b, iterations=3).x, S.gauss_seidel(A, b, iterations=3).x)
    for options in ({}, {"iterations": 2}):
        with pytest.raises(TypeError, match="sor: throw must be True or False, got 'yes'"):
            S.sor(A, b, throw="yes", **options)
        with pytest.raises(ValueError, match="sor: gradient must be one of"):
            S.sor(A, b, gradient="", **options)
    with pytest.raises(TypeError, match="cg: throw must be True or False"):
        S.cg(A, b, throw="yes")
