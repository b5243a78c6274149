"""No keyword of the Krylov methods is ignored."""

import warnings

import pytest
import torch
import torch.utils.checkpoint
from reference import normal
from solvers.krylov import ANY, RECTANGULAR, SQUARE, S, matrix

# Solves that cannot converge, or are stopped before, are part of what is tested.
pytestmark = pytest.mark.filterwarnings("ignore::learnsolve.solvers.ConvergenceWarning")

KEYWORDS = {
    "rtol": {"rtol": 1e-2},
    "atol": {"atol": 10.0},
    "maxiter": {"maxiter": 2},
    "M": {"M": lambda r: torch.linspace(1, 2, 16).double()[:, None] * r},
    "callback": {"callback": lambda at: True},
}


@pytest.mark.parametrize("key", KEYWORDS)
@pytest.mark.parametrize("name", SQUARE)
def test_every_keyword_changes_the_result(name, key):
    A, b = matrix(name), normal((16, 1))
    plain, changed = getattr(S, name)(A, b), getattr(S, name)(A, b, **KEYWORDS[key])
    assert not torch.equal(plain.x, changed.x)


@pytest.mark.parametrize("name", SQUARE)
def test_every_keyword_changes_the_gradient(name):
    A, b = matrix(name), normal((16, 1))
    w = normal((16, 1), seed=9).abs() + 1

    def gradient(**keywords):
        v = A.values.clone().requires_grad_()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            getattr(S, name)(A.with_values(v), b, **keywords).x.mul(w.flip(0)).sum().backward()
        return v.grad

    plain = gradient(rtol=1e-3)
    changed = [{"adjoint_rtol": 1e-8}, {"adjoint_maxiter": 2}, {"gradient": "unrolled"}]
    if name in ANY:
        changed.append({"adjoint_M": lambda r: w * r})
    for keywords in changed:
        assert not torch.equal(plain, gradient(rtol=1e-3, **keywords)), keywords
    checkpointed = gradient(rtol=1e-3, gradient="checkpointed")
    torch.testing.assert_close(checkpointed, gradient(rtol=1e-3, gradient="unrolled"), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", RECTANGULAR)
def test_every_keyword_of_least_squares(name):
    A, b = matrix(name), normal((8,))
    plain = getattr(S, name)(A, b)
    consistent = getattr(S, name)(A, A @ normal((5,)))
    changed = {"damp": 0.1, "atol": 1e-1, "maxiter": 2, "conlim": 1.5, "callback": lambda at: True}
    for keywords in ({key: value} for key, value in changed.items()):
        assert not torch.equal(plain.x, getattr(S, name)(A, b, **keywords).x), keywords
    assert not torch.equal(consistent.x, getattr(S, name)(A, A @ normal((5,)), btol=0.5).x)
