"""A NaN or an infinity in an argument of any public call: an error that names it, or it reaches every number
that depends on it, and nothing is called CONVERGED."""

import re
import warnings

import pytest
import torch
from registry import outputs, plain_name
from stress.graphs import CASES, carriers

import learnsolve as ls

CONVERGED = ls.solvers.Status.CONVERGED
NUMBERS = "finite|singular|positive"  # what an error may be about, in place of a name


@pytest.mark.parametrize("name", CASES)
def test_what_is_not_finite_is_refused_or_stays(name):
    case = CASES[name]
    for start, make, _ in carriers(case.value):
        t = start.detach()
        if t.numel():
            for at, bad in ((0, torch.nan), (t.numel() // 2, torch.inf)):
                assert_refused_or_stays(case, t, make, at, bad)


def assert_refused_or_stays(case, t, make, at, bad):
    def f(value):
        changed = t.clone()
        changed.view(-1)[at] = value
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = case.f(make(changed))
            return result, [v.to_dense() for v in outputs(result)]

    try:
        result, found = f(bad)
    except (TypeError, ValueError, NotImplementedError, RuntimeError) as error:
        named = plain_name(case.call).rpartition(".")[2]
        if not re.search(rf"\b({case.argument}|{named})\b|{NUMBERS}", str(error), re.IGNORECASE):
            raise
        return
    done = None  # the columns of a solution that are called so
    if isinstance(result, ls.solvers.Solution):
        done = [i for i, status in enumerate(result.statuses) if status == CONVERGED]
        count = len(result.statuses)
        assert found[0].reshape(-1, count)[:, done].isfinite().all()
    if bad == bad:  # an infinity may well give a number, 1 / inf say
        return
    number = float(t.view(-1)[at])
    try:
        before, after = f(number)[1], f(number * 1.001)[1]
    except (TypeError, ValueError):
        return  # which must not change alone
    for here, there, v in zip(before, after, found, strict=True):
        if here.shape == there.shape == v.shape and v.numel():
            depends = (here - there).abs() > 1e-6 * here.abs().max()
            if done is not None:  # may keep the last x that is finite
                assert not depends.reshape(-1, count)[:, done].any()
            else:
                assert not v[depends].isfinite().any()
