"""Every harness of `make stress` with few cases."""

import os
import signal
from collections import Counter

import pytest
import torch

from . import HARNESSES, Report, promise, run
from .__main__ import BEGIN, END, PAGE, _replaced, in_a_process
from ._children import in_children
from .graphs import CASES, fault


@pytest.mark.cpu_only
@pytest.mark.parametrize("name", HARNESSES)
def test_harness_finds_no_fault(name, quick):
    count = max(HARNESSES[name].short // (3 if quick else 1), 1)
    # torch.func, interrupted while it has a dispatch key removed, is broken for the rest of its process.
    separate = name == "interrupts"
    report = Report(**in_a_process(name, count, 0)) if separate else run(name, count, 0)
    assert not report.faults, "\n".join(report.faults)
    assert report.name == name
    assert sum(report.counts.values()) >= count
    assert f"| `{name}` | {promise(name)} | " in PAGE.read_text()


def test_reports_of_two_processes_are_added_up():
    report = Report("a", {"x": 1, "y": 2}, ["f"], 1.0).merged(Report("a", {"x": 3}, ["g"], 2.0))
    assert report == Report("a", {"x": 4, "y": 2}, ["f", "g"], 3.0)
    assert report.tried() == "4 x, 2 y"


def test_table_keeps_the_rows_of_harnesses_that_did_not_run():
    text = f"head\n{BEGIN}\n| `a` | old | 1 |\n| `b` | old | 2 |\n{END}\nfoot\n"
    lines = _replaced(text, {"b": "| `b` | new | 3 |"}, ["b", "a"]).splitlines()
    assert lines[0] == "head"
    assert lines[4:6] == ["| `b` | new | 3 |", "| `a` | old | 1 |"]
    assert lines[-1] == "foot"


def test_a_lost_gradient_is_a_fault():
    case = CASES["problems.diffusion.kappa"]

    def rejects(kappa):
        if kappa.requires_grad:
            raise ValueError("detach it")
        return case.f(kappa)

    def drops_results(kappa):
        return case.f(kappa if kappa.is_leaf else kappa.detach())

    mistakes = {
        "has the derivative 0, differences": lambda kappa: case.f(kappa.detach()),
        "has the derivative": lambda kappa: case.f(kappa + 0.1 * kappa.detach()),
        "error that does not name it: detach it": rejects,
        "None for a result": drops_results,
        "has no result that could carry a graph": lambda kappa: object(),
    }
    for words, f in mistakes.items():
        assert words in str(fault(case._replace(function=f)))
    constant = case._replace(call="compare_preconditioners", function=lambda kappa: torch.ones(2))
    assert "has no gradient, and its docstring" in str(fault(constant))


def test_what_a_case_does_to_its_process_is_a_fault():
    def one(seed, number):
        if number == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        while number == 3:
            pass
        if number == 5:
            bytearray(2**40)
        return "odd" if number % 2 else "even", "wrong" if number == 6 else None

    counts: Counter[str] = Counter()
    faults = list(in_children(8, 0, counts, one, seconds=0.3, memory=2**28))
    assert counts == {"even": 4, "odd": 1, "raised": 1, "ended early": 2}
    for line, words in zip(faults, ("SIGSEGV", "did not end", "MemoryError", "wrong"), strict=True):
        assert words in line
    assert [line.split(", ")[1][:6] for line in faults] == ["case 1", "case 3", "case 5", "case 6"]
