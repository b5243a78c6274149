"""Every public call refuses a bad argument by an error of its own that names the argument. Each argument in
turn is replaced by something else: of another type, shape, dtype, device, sign, or not finite."""

import inspect
import re
import warnings

import pytest
import torch
from registry import F64, beside, called, calls, number, outputs

import learnsolve as ls

# What an error may name in place of the argument.
ALIASES = {"axis": "dim", "offset": "k", "diagonal": "k", "matrices": "matrix 0", "samples": "a sample"}
ALIASES |= {"d": "r", "coefficients": "r|matrix", "graph": "edge_index"}
ALIASES |= {"blocks": "a list of rows|matrix 0", "dim": "indices", "E": "A", "edge_weight": "row sums|matrix"}
# Passed on: to the system, to matplotlib, to torch, to a tuple; "T" is made sparse by torch.
PASSED_ON = {"path", "ax", "device", "dtype", "generator", "T", "CSR.size.dim"}
TEXT = {"comment"}  # any str is one
WRONG = {"an object": object(), "a word": "no such", "a list of words": ["no such"]}
OTHER_MATRIX = ls.CSR.from_dense(torch.ones(3, 7, dtype=F64))


def replacements(value):
    """(how, another value), and whether no call takes it."""
    for how, other in WRONG.items():
        if how != "a list of words" or isinstance(value, torch.Tensor):
            yield how, other, True
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        yield "integers", value.long(), False
        yield "half", value.half(), False
        yield "on meta", value.to("meta"), False
        yield "longer", torch.cat((value, value)) if value.dim() else value.expand(3), False
        yield "single", value.float(), False
        yield "a scalar", value.new_ones(()), False
        yield "a batch", value.expand((2, 3, 1, 1, *value.shape)), False
        yield "NaN", torch.full_like(value, torch.nan), False
        if value.dim():
            yield "sparse", value.to_sparse(), False
    elif isinstance(value, ls.CSR):
        yield "integers", value.with_values(value.values.long()), False
        yield "single", value.to(torch.float32), False
        yield "of another shape", OTHER_MATRIX, False
        yield "NaN", value.with_values(torch.full_like(value.values, torch.nan)), False
        yield "a pattern", value.pattern, False
        yield "dense", value.to_dense(), False
    elif isinstance(value, bool):
        yield "a number", 3, True
    elif isinstance(value, (int, float)):
        yield "negative", -7, False
        yield "NaN", float("nan"), False
        yield "infinite", float("inf"), False
        yield "complex", 1j, False
        yield "a flag", True, False
        yield "a list", [1, 2], False
    elif isinstance(value, str):
        yield "a number", 3, True


# Errors about the numbers of an argument, or about two arguments, may name what they are about instead.
NUMBERS = r"finite|singular|pivot|positive"


@pytest.mark.parametrize(
    ("name", "function"), [pytest.param(name, f, id=f"{group}.{name}") for group, name, f in calls()]
)
def test_a_bad_argument_is_refused_by_name(name, function, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for key, p in inspect.signature(function).parameters.items():
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and not {"self", *PASSED_ON} & {
            key,
            f"{name}.{key}",
        }:
            assert_refused(name, function, key, p)


def assert_refused(name, function, key, parameter):
    others = beside(name, function, key)
    value = others.get(key, number(name, key, str(parameter.annotation)))
    if value is None and parameter.default is not parameter.empty:
        value = parameter.default
    faults = []
    for how, other, refused in replacements(value):
        torch.manual_seed(0)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                outputs(called(function, {**others, key: other}))
        except (TypeError, ValueError, NotImplementedError, OverflowError) as error:
            pair = {*others} - {key} if how not in WRONG else set()
            names = "|".join([re.escape(key), ALIASES.get(key, key), *map(re.escape, pair)])
            said = (
                re.search(rf"\b({names})\b|{NUMBERS}", str(error)),
                re.match(r"[\w. +*/()\[\]-]+: ", str(error)),
            )
            faults += [] if all(said) else [(key, how, str(error))]
        else:
            faults += [(key, how, "is taken")] if refused and key not in TEXT else []
    assert faults == []
