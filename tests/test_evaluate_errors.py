"""`evaluate`: failures by name, bad arguments, errors of preconditioners."""

import math

import numpy as np
import pytest
import torch
from evaluated import F64, MATRICES, Jacobi, Skew

import learnsolve as ls


def test_failures_have_names():
    A = MATRICES["poisson 2D"]()
    D = torch.ones(625, dtype=F64)
    D[3] = -1
    zero = ls.CSR.from_dense(torch.zeros(625, 625, dtype=F64))
    P = {
        "none": None,
        "indefinite": lambda A: lambda r: D * r,
        "NaN": lambda A: lambda r: r * torch.nan,
        "zero": zero,
    }
    result = ls.evaluate(A, torch.randn(625, 2, dtype=F64), P, rtol=(1e-1, 1e-9), maxiter=30, repeats=1)
    found = {(row.preconditioner, row.rtol): (row.converged, row.failures) for row in result.rows}
    assert found["none", 1e-1] == (2, {})
    assert found["none", 1e-9] == (0, {"MAX_ITERATIONS": 2})
    assert found["indefinite", 1e-9] == (0, {"INDEFINITE": 2})
    assert found["NaN", 1e-9] == (0, {"NON_FINITE": 2})
    assert found["zero", 1e-9] == (0, {"INDEFINITE": 2})
    failed = result.rows[1]
    assert math.isnan(failed.seconds.mean)
    assert "2 MAX_ITERATIONS" in str(result)


def test_a_refused_preconditioner_is_named():
    A, b = MATRICES["poisson 1D"](), torch.ones(60, dtype=F64)
    P = {"fine": Jacobi, "skew": Skew}
    with pytest.raises(ValueError, match="evaluate: preconditioner 'skew': cg: needs a linear, symmetric M"):
        ls.evaluate(A, b, P, repeats=1)
    result = ls.evaluate(A, b, P, repeats=1, on_error="row", rtol=1e-6)
    fine, skew = result.rows
    assert fine.converged == 1
    assert not fine.message
    assert (skew.converged, skew.failures) == (0, {})
    assert skew.message.startswith("cg: needs a linear, symmetric M")
    assert skew.message in str(result)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"solver": "lsqr"}, ValueError, "solver must be one of"),
        ({"solver": 3}, TypeError, "solver must be a name or a callable"),
        ({"rtol": ()}, ValueError, "rtol must be a tolerance or several"),
        ({"rtol": (-1.0,)}, ValueError, "rtol must be finite and not negative"),
        ({"rtol": math.inf}, ValueError, "rtol must be finite and not negative, got inf"),
        ({"rtol": (1e-3, math.nan)}, ValueError, "rtol must be finite and not negative, got nan"),
        ({"rtol": "a"}, TypeError, "rtol must be a number, got str"),
        ({"rtol": None}, TypeError, "rtol must be a number, got NoneType"),
        ({"preconditioners": {3: None}}, TypeError, "names of preconditioners must be strings, got 3"),
        ({"preconditioners": {"x": lambda A: 3}}, TypeError, "'x': must be a function A -> M .* got int"),
        ({"preconditioners": {"x": lambda A: None}}, TypeError, "must be a function A -> M .* got NoneType"),
        ({"preconditioners": {"x": lambda r: 0.5 * r}}, TypeError, "a plain function .* lambda A: f"),
        ({"solver": lambda *_, **__: 3}, TypeError, "solver must return a Solution, got int"),
        ({"repeats": 0}, ValueError, "repeats must be at least 1"),
        ({"maxiter": -1}, ValueError, "maxiter must be at least 0"),
        ({"on_error": "warn"}, ValueError, "on_error must be one of"),
        ({"preconditioners": [None]}, TypeError, "preconditioners must be a dict"),
        ({"preconditioners": {"x": 3}}, TypeError, "preconditioner 'x': must be None, a preconditioner, or"),
        ({"b": torch.ones(3, dtype=F64)}, ValueError, "b must have A.shape"),
        ({"b": torch.ones(60)}, TypeError, "b has dtype"),
        ({"A": []}, TypeError, "sequences of them"),
        ({"A": [], "b": []}, ValueError, "one b for each A"),
        ({"A": [3], "b": [3]}, TypeError, "A must hold CSRs, BlockBatches or StencilOperators"),
    ],
)
def test_errors(change, error, match):
    arguments = {
        "A": MATRICES["poisson 1D"](),
        "b": torch.ones(60, dtype=F64),
        "preconditioners": {"x": None},
        "repeats": 1,
    }
    with pytest.raises(error, match=match):
        ls.evaluate(**(arguments | change))


def test_a_preconditioner_of_a_batch_needs_its_factory():
    A = MATRICES["poisson 1D"]()
    batch = A.with_values(torch.stack((A.values, 2 * A.values)))
    with pytest.raises(ValueError, match="was built from a batch of matrices"):
        ls.evaluate(batch, torch.ones(60, 1, dtype=F64), {"J": Jacobi(batch)}, repeats=1)
    assert ls.evaluate(batch, torch.ones(60, 1, dtype=F64), {"J": Jacobi}, repeats=1).rows[0].converged == 2


class Particular(ValueError):
    def __init__(self, code: int, text: str):
        super().__init__(f"{code}: {text}")


def fails_with(error):
    def factory(A):
        raise error

    return factory


@pytest.mark.parametrize(
    "error",
    [
        Particular(3, "of its own"),
        UnicodeDecodeError("utf-8", b"a", 0, 1, "of its own"),
        np.linalg.LinAlgError("of its own"),
        torch.linalg.LinAlgError("of its own"),
        NotImplementedError("of its own"),
        RuntimeError("of its own"),
        ZeroDivisionError("of its own"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_any_kind(error):
    A, b = MATRICES["poisson 1D"](), torch.ones(60, dtype=F64)
    P = {"none": None, "bad": fails_with(error)}
    with pytest.raises(ValueError, match=r"evaluate: preconditioner 'bad': .*of its own") as caught:
        ls.evaluate(A, b, P, repeats=1)
    assert caught.value.__cause__ is error
    fine, bad = ls.evaluate(A, b, P, rtol=1e-3, repeats=1, on_error="row").rows
    assert (fine.converged, bad.converged) == (1, 0)
    assert "of its own" in bad.message
