"""Every public call refuses a bad argument by an error of its own that names the argument. Each argument in
turn is replaced by something else: of another type, shape, dtype, device, sign, or not finite."""

import inspect
import re
import warnings

import pytest
import torch
from registry import F64, beside, called, calls, number, outputs
from torch import Tensor

import learnsolve as ls

# What an error may name in place of the argument.
ALIASES = {"axis": "dim", "offset": "k", "diagonal": "k", "matrices": "matrix 0", "samples": "a sample"}
ALIASES |= {"d": "r", "coefficients": "r|matrix", "graph": "edge_index"}
ALIASES |= {"blocks": "a list of rows|matrix 0", "dim": "indices", "E": "A", "edge_weight": "row sums|matrix"}
# Passed on: to the system, to matplotlib, to torch, to a tuple, to f; "T" is made sparse by torch.
PASSED_ON = {"path", "ax", "device", "dtype", "generator", "T", "CSR.size.dim", "a"}
TEXT = {"comment"}  # any str is one
WRONG = {"an object": object(), "a word": "no such", "a list of words": ["no such"]}
OTHER_MATRIX = ls.CSR.from_dense(torch.ones(3, 7, dtype=F64))


# What is taken in place of the sample, by an argument of every call or of one; what is not named is refused.
# Other dtypes of all operands, more batch axes, and what is not finite have properties of their own.
TAKEN = {
    "a number": "",
    "negative": "diagonal off alpha beta diag.k diagonal.k eye.k tril.k triu.k eigsh.which anisotropic.theta "
    "convection_diffusion.reaction helmholtz.shift dt",
    "NaN": "alpha beta",
    "infinite": "rtol atol btol conlim damp adjoint_rtol alpha beta CSR.pow.exponent",
    "complex": "add.alpha add.beta helmholtz.shift",
    "a flag": "add.alpha add.beta",
    "a list": "compare_preconditioners.rtol",
    "integers": "CSR.values CSR.from_dense.D CSR.with_values.values diag.d diagonal.A inverse_diagonal.A "
    "permute.A sum.A trace.A transpose.A tril.A triu.A fill_pattern.A interface_pattern.A lower_pattern.A "
    "GraphNetBlock().graph SparseDropout().X",
    "half": "CSR.values CSR.from_dense.D CSR.with_values.values diag.d",
    "sparse": "CSR.values CSR.with_values.values",
    "on meta": "CSR.from_coo.values diag.d stencil_matrix.coefficients convection_diffusion.wind kappa "
    "helmholtz.kh p1_mass.rho K",
    "longer": "CSR.from_dense.D diag.d stencil.x Polynomial.coefficients points kappa helmholtz.kh K "
    "convergence_factor.history u0 u fixed_point.x0",
    "a scalar": "u0 u fixed_point.x0",
    "a pattern": "fill_pattern.A lower_pattern.A GraphNetBlock().graph",
    "of another shape": "svds.A diagonal.A kron.A kron.B norm.A sum.A trace.A transpose.A tril.A triu.A "
    "SparseMatrix.A write_matrix_market.A",
}
# Factors of a step, of any size or sign.
STEPS = "Jacobi jacobi Richardson richardson ErrorPropagator two_grid_factor two_grid_symbols"
for _how in ("negative", "NaN", "infinite"):
    TAKEN[_how] += "".join(f" {name}.weight" for name in STEPS.split())


def replacements(value):
    """(how, another value)."""
    yield from ((how, w) for how, w in WRONG.items() if how != "a list of words" or isinstance(value, Tensor))
    if isinstance(value, Tensor) and value.is_floating_point():
        yield "integers", value.long()
        yield "half", value.half()
        yield "on meta", value.to("meta")
        yield "longer", torch.cat((value, value)) if value.dim() else value.expand(3)
        yield "single", value.float()
        yield "a scalar", value.new_ones(())
        yield "a batch", value.expand((2, 3, 1, 1, *value.shape))
        yield "NaN values", torch.full_like(value, torch.nan)
        if value.dim():
            yield "sparse", value.to_sparse()
    elif isinstance(value, ls.CSR):
        yield "integers", value.with_values(value.values.long())
        yield "single", value.to(torch.float32)
        yield "of another shape", OTHER_MATRIX
        yield "NaN values", value.with_values(torch.full_like(value.values, torch.nan))
        yield "a pattern", value.pattern
        yield "dense", value.to_dense()
    elif isinstance(value, bool):
        yield "a number", 3
    elif isinstance(value, (int, float)):
        yield "negative", -7
        yield "NaN", float("nan")
        yield "infinite", float("inf")
        yield "complex", 1j
        yield "a flag", True
        yield "a list", [1, 2]
    elif isinstance(value, str):
        yield "a number", 3


def is_taken(call, key, how):
    if how in WRONG:
        return key in TEXT
    names = {key, f"{call.partition(',')[0]}.{key}"}
    if how.startswith("not "):  # as it is declared
        return False
    return how not in TAKEN or not names.isdisjoint(TAKEN[how].split())


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
    declared = getattr(function.__init__ if inspect.isclass(function) else function, "rules", {})
    rule = declared.get(key)
    wrong = [("not " + rule.says, other) for other in rule.wrong] if rule else []
    for how, other in (*replacements(value), *wrong):
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
            faults += [] if is_taken(name, key, how) else [(key, how, "is taken")]
    assert faults == []
