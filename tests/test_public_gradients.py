"""No public call drops a gradient without a word: the table of `carriers`, which finds the calls itself."""

import pytest
import torch
from carriers import CASES, fault

pytestmark = pytest.mark.cpu_only


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_arrives_or_the_argument_is_named(name):
    assert fault(CASES[name]) is None


def test_of_a_mistake_the_fault_is_said():
    case = CASES["problems.diffusion.kappa"]

    def refuses(kappa):
        if kappa.requires_grad:
            raise ValueError("detach it")
        return case.f(kappa)

    def drops_results(kappa):
        return case.f(kappa if kappa.is_leaf else kappa.detach())

    mistakes = {
        "has the derivative 0, differences": lambda kappa: case.f(kappa.detach()),
        "has the derivative": lambda kappa: case.f(kappa + 0.1 * kappa.detach()),
        "error that does not name it: detach it": refuses,
        "None for a result": drops_results,
        "has no result that could carry a graph": lambda kappa: object(),
    }
    for words, f in mistakes.items():
        assert words in str(fault(case._replace(f=f)))
    assert "has no gradient, and its docstring" in str(
        fault(case._replace(call="evaluate", f=lambda kappa: torch.ones(2)))
    )
