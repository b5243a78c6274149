"""richardson, heavyball, chebyshev: each bad argument, and how a solve ends that does not converge."""

import math

import pytest
import torch
from reference import normal
from solvers.stationary import METHODS, S, run

import learnsolve as ls
from learnsolve.solvers import SolverError, Status


@pytest.mark.parametrize("method", METHODS)
def test_divergence_is_named(method):
    A, b = ls.problems.poisson((8,)), normal((8, 2))
    given = {"richardson": (3.0,), "heavyball": (3.0, 0.9), "chebyshev": (1e-3, 0.1)}[method]
    for keywords in ({"iterations": 30}, {"maxiter": 3000}):
        solution = run(method, A, b, given=given, **keywords)
        assert solution.status is Status.DIVERGED
        assert not solution.converged
        assert solution.x.isfinite().all()
        with pytest.raises(SolverError, match="DIVERGED"):
            run(method, A, b, given=given, throw=True, **keywords)
    far = run(method, A, b, given=given, iterations=3000)
    assert far.status is Status.NON_FINITE
    bad = b.clone()
    bad[0, 0] = float("nan")
    for keywords in ({"iterations": 3}, {"maxiter": 3000}, {"iterations": 3, "M": lambda r: r}):
        assert run(method, A, bad, **keywords).status is Status.NON_FINITE
    mixed = run(method, A, bad, maxiter=3000)
    assert mixed.statuses == [Status.NON_FINITE, Status.CONVERGED]
    assert run(method, A, b, iterations=3, throw=True).status is Status.MAX_ITERATIONS


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"iterations": 3, "rtol": 1e-3}, ValueError, "rtol must not be given beside iterations"),
        ({"iterations": 3, "atol": 0.0}, ValueError, "atol must not"),
        ({"iterations": 3, "maxiter": 3}, ValueError, "maxiter must not"),
        ({"iterations": 3, "adjoint_rtol": 1e-3}, ValueError, 'adjoint_rtol belongs to gradient="implicit"'),
        ({"iterations": 3, "gradient": "implicit"}, ValueError, "gradient must be one of"),
        ({"gradient": "exact"}, ValueError, "gradient must be one of"),
        ({"iterations": -1}, ValueError, "iterations must be at least 0"),
        ({"iterations": 2.0}, TypeError, "iterations must be an int"),
        ({"iterations": 3, "callback": 3}, TypeError, "callback must be callable"),
        ({"b": torch.ones(5, dtype=torch.float64)}, ValueError, "rows"),
        ({"iterations": 3, "b": torch.ones(5, dtype=torch.float64)}, ValueError, "rows"),
        ({"iterations": 3, "b": torch.ones(4)}, TypeError, "dtype"),
        ({"iterations": 3, "x0": torch.ones(5, dtype=torch.float64)}, ValueError, "x0 must have b's shape"),
        ({"x0": torch.ones(5, dtype=torch.float64)}, ValueError, "x0 must have b's shape"),
        ({"iterations": 3, "M": 3}, TypeError, "M must be a callable"),
        ({"rtol": -1.0}, ValueError, "rtol must not be negative"),
    ],
)
def test_errors(method, change, error, match):
    b = change.get("b", torch.ones(4, dtype=torch.float64))
    with pytest.raises(error, match=f"{method}: .*{match}"):
        run(
            method,
            ls.problems.poisson((4,)),
            b,
            change.get("x0"),
            **{k: v for k, v in change.items() if k not in ("x0", "b")},
        )


def test_errors_of_parameters():
    A, b = ls.problems.poisson((4,)), torch.ones(4, dtype=torch.float64)
    ones = torch.ones(3, dtype=torch.float64)
    for call, error, match in [
        (lambda: S.heavyball(A, b, alpha="1", beta=0.1), TypeError, "heavyball: alpha must be a number"),
        (
            lambda: S.heavyball(A, b, alpha=1, beta=True, iterations=2),
            TypeError,
            "heavyball: beta must be a number",
        ),
        (
            lambda: S.heavyball(A, b, alpha=ones, beta=0.1, iterations=2),
            ValueError,
            "heavyball: alpha must have shape",
        ),
        (
            lambda: S.heavyball(A, b, alpha=ones, beta=0.1),
            ValueError,
            r"heavyball: alpha .*needs iterations=",
        ),
        (
            lambda: S.heavyball(A, b, alpha=1, beta=ones, iterations=2),
            ValueError,
            "heavyball: beta must have shape",
        ),
        (lambda: S.heavyball(A, b, alpha=1, beta=ones), ValueError, r"heavyball: beta must have shape \(\)"),
        (lambda: S.heavyball(A, b, alpha=1, beta=ones[0].float()), TypeError, "heavyball: beta has dtype"),
        (
            lambda: S.richardson(A, b, weight=b, iterations=4),
            ValueError,
            r"richardson: weight .*one a row or one a",
        ),
        (lambda: S.chebyshev(A, b, lmin=0.0, lmax=1.0), ValueError, "chebyshev: lmin must be positive"),
        (
            lambda: S.chebyshev(A, b, lmin=1.0, lmax=math.inf),
            ValueError,
            "chebyshev: lmax must be positive and finite",
        ),
        (
            lambda: S.chebyshev(A, b, lmin=2.0, lmax=1.0),
            ValueError,
            "chebyshev: lmin must not be larger than lmax",
        ),
        (lambda: S.chebyshev(A, b, lmin=ones, lmax=1.0), ValueError, "chebyshev: lmin must have shape"),
        (lambda: S.Chebyshev(-1.0, 1.0), ValueError, "Chebyshev: lmin must be positive and finite"),
        (lambda: S.Heavyball(gradient="implicit"), ValueError, "Heavyball: gradient"),
        (lambda: S.Richardson(torch.tensor(1)), TypeError, "Richardson: weight must be float32 or float64"),
    ]:
        with pytest.raises(error, match=match):
            call()
