"""Derivatives of every public call for each argument that carries numbers: first and second, by backward, in
forward mode, and forward mode in forward mode. The gradients themselves against differences."""

import warnings

import pytest
import torch
from registry import F64, outputs
from stress.graphs import CASES, _direction, carriers, fault
from torch.autograd import forward_ad
from torch.func import jvp

# Why it is refused, by the argument: the library's own words, or torch's.
FIRST_ALONE = "has first derivatives only"
NO_FORWARD_MODE = "forward mode cannot reach|Trying to use forward AD"


def assert_near(a, b, rtol=1e-5):
    assert abs(a - b) <= rtol * max(1.0, abs(a), abs(b))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("modules_in_float64")
def test_derivatives_of_both_modes_and_orders(name):
    case = CASES[name]
    assert fault(case) is None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for start, make, pattern in carriers(case.value):
            assert_derivatives(case, start.detach(), make, pattern)


def assert_derivatives(case, start, make, pattern):
    generator = torch.Generator().manual_seed(0)
    v = start * _direction(start, pattern, generator)
    weights = [torch.randn(p.shape, dtype=F64, generator=generator) for p in outputs(case.f(case.value))]

    def F(t):
        return sum((w * p).sum() for w, p in zip(weights, outputs(case.f(make(t))), strict=True))

    t = start.clone().requires_grad_()
    try:
        loss = F(t)
    except (TypeError, ValueError, NotImplementedError):
        return  # that it names the argument: `graphs`
    if not (isinstance(loss, torch.Tensor) and loss.requires_grad):
        return
    (found,) = torch.autograd.grad(loss, t, allow_unused=True)
    if found is None:  # of the pattern alone
        return
    first = float((found * v).sum())
    try:
        slope = (torch.autograd.grad(F(t), t, create_graph=True)[0] * v).sum()
        found = torch.autograd.grad(slope, t, allow_unused=True)[0] if slope.requires_grad else None
        second = 0.0 if found is None else float((found * v).sum())
    except NotImplementedError as error:
        second = None if FIRST_ALONE in str(error) else str(error)
    assert not isinstance(second, str)

    def forward(t):
        return jvp(F, (t,), (v,))[1]

    try:
        with forward_ad.dual_level():
            tangent = forward_ad.unpack_dual(F(forward_ad.make_dual(start, v))).tangent
    except NotImplementedError as error:
        with pytest.raises(NotImplementedError, match=NO_FORWARD_MODE):
            raise error
        return
    assert_near(float(tangent), first)
    assert_near(float(forward(start)), first)
    if second is not None:
        assert_near(float(jvp(forward, (start,), (v,))[1]), second)
