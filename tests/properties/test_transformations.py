"""`torch.func.vmap` over an argument of every public call equals a loop, in values and gradients, or an error
names the call, or says that vmap cannot do it."""

import re
import warnings
from functools import partial

import pytest
import torch
from registry import F64, outputs
from stress.graphs import CASES, _direction, carriers

# Torch's vmap has no rules for its own sparse tensors.
OF_TORCH = {"learnsolve.CSR.from_torch.T", "learnsolve.CSR.to_torch.self"}
PARAMETERS = [
    pytest.param(case, id=case.name, marks=[pytest.mark.slow] if i % 8 else [])
    for i, case in enumerate(case for case in CASES.values() if case.name not in OF_TORCH)
]


@pytest.fixture
def modules_in_float64():
    """When they are made: within torch.func no module can be converted."""
    torch.set_default_dtype(F64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", PARAMETERS)
@pytest.mark.usefixtures("modules_in_float64")
def test_a_map_equals_a_loop(case):
    for start, make, pattern in carriers(case.value):
        generator = torch.Generator().manual_seed(0)
        step = start.detach() * _direction(start, pattern, generator)
        both = torch.stack((start.detach(), start.detach() + 0.1 * step))

        def f(t, make=make):
            torch.manual_seed(0)
            return tuple(outputs(case.f(make(t))))

        try:
            alone = [f(t) for t in both]
        except (TypeError, ValueError):
            return  # wants a number, or the other one of two arguments must change too
        together = unless_refused(case, partial(torch.func.vmap(f), both))
        if {t.shape for t in alone[0]} != {t.shape for t in alone[1]}:  # each has a pattern of its own
            assert together is None
            return
        for found, *expected in zip(together, *alone, strict=True) if together else ():
            torch.testing.assert_close(found, torch.stack(expected), rtol=1e-8, atol=1e-10, equal_nan=True)
        weights = [torch.randn(t.shape, dtype=t.dtype, generator=generator) for t in alone[0]]
        assert_same_gradients(case, f, both, weights)


def assert_same_gradients(case, f, both, weights):
    def F(t):
        return sum((w * p).sum() for w, p in zip(weights, f(t), strict=True))

    def of_a_loop():
        return torch.stack([torch.func.grad(F)(t) for t in both]) if weights else None

    def of_a_map():
        t = both.clone().requires_grad_()
        loss = sum((w * p).sum() for w, p in zip(weights, torch.func.vmap(f)(t), strict=True))
        found = torch.autograd.grad(loss, t, allow_unused=True)[0] if loss.requires_grad else None
        return torch.zeros_like(t) if found is None else found

    try:
        expected = of_a_loop()
    except (TypeError, ValueError, NotImplementedError) as error:
        expected, why = None, str(error)
        assert re.search(rf"\b{case.argument}\b", why)
    for compute in (lambda: torch.func.vmap(torch.func.grad(F))(both), of_a_map) if weights else ():
        found = unless_refused(case, compute)
        assert found is None or expected is not None, f"{compute} is not refused: {why}"
        if found is not None:
            torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


def unless_refused(case, compute):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return compute()
        except (TypeError, ValueError, NotImplementedError, RuntimeError) as error:
            named = case.call.partition(",")[0].partition("(")[0]
            if not re.search(rf"\b({named}|vmap)\b", str(error), re.IGNORECASE):
                raise
