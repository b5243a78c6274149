"""Learned weights on the inverse of the diagonal."""

import pytest
import torch
from preconditioners.cases import spd
from reference import normal

import learnsolve as ls

S = ls.preconditioners.ScaledJacobi


@pytest.mark.parametrize("positive", [None, "exp", "softplus"])
def test_formula(positive):
    A, r = spd(), normal((20, 2))
    d = A.diagonal().unsqueeze(1)
    assert torch.allclose(S(A, positive=positive)(r), r / d, rtol=1e-14)
    w = torch.linspace(0.5, 60, 20, dtype=torch.float64)
    M = S(A, w, positive=positive)
    assert torch.allclose(M.weight, w, rtol=1e-14)
    assert torch.allclose(M(r), w.unsqueeze(1) * r / d, rtol=1e-14)
    with torch.no_grad():
        M.raw_weight.copy_(normal((20,)) * 5)
    assert bool((M.weight > 0).all()) == (positive is not None)


def test_weights_for_another_matrix():
    A, B = spd(), spd() * 3.0
    M = S(A, 0.7, positive="softplus")
    N = M.on(B)
    assert N.raw_weight is M.raw_weight
    assert torch.allclose(N(normal((20,))) * 3, M(normal((20,))), rtol=1e-14)
    other = S(B)
    other.load_state_dict(S(A, 0.7).state_dict())
    assert set(other.state_dict()) == {"raw_weight"}
    assert torch.allclose(other(normal((20,))) * 3, M(normal((20,))), rtol=1e-14)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda A: S(A.to_dense().tolist()), TypeError, "A must be a CSR"),
        (lambda A: S(A.requires_grad_()), ValueError, r"A.values requires grad.*A.detach\(\)"),
        (lambda A: S(A.tril(-1)), ValueError, "row 0 has none"),
        (lambda A: S(A, torch.ones(3, dtype=torch.float64)), ValueError, r"shape \(20,\), got \(3,\)"),
        (lambda A: S(A, torch.ones(20)), TypeError, "float32"),
        (lambda A: S(A, -1.0, positive="exp"), ValueError, "the smallest is -1"),
        (lambda A: S(A, float("nan")), ValueError, "weight must be finite"),
        (lambda A: S(A, positive="square"), ValueError, "positive must be one of"),
        (lambda A: S(A).on(ls.problems.poisson((3,))), ValueError, r"shape \(20, 20\)"),
        (lambda A: S(A).on(A.to(torch.float32)), TypeError, "float32"),
    ],
)
def test_errors(make, error, words):
    with pytest.raises(error, match=words):
        make(spd())
