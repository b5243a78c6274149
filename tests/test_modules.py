"""Every public torch.nn.Module of the library, and its constructors: found by themselves, so that a new one
is tested too. Arguments are made by the rows of GIVEN."""

import inspect
import re

import pytest
import torch

import learnsolve as ls

F64 = torch.float64
A = ls.problems.poisson((4, 4))
P = ls.preconditioners
GROUPS = (ls.ops, ls.solvers, ls.preconditioners, ls.nn)
MODULES = {
    cls: group
    for group in GROUPS
    for cls in map(vars(group).get, group.__all__)
    if inspect.isclass(cls) and issubclass(cls, torch.nn.Module) and cls is not P.Learned
}
# What an argument without a default is in a call that works, by its name.
GIVEN = {
    "A": lambda: A,
    "L": lambda: A.tril(),
    "M": lambda: P.AMG(A, max_coarse=4),
    "pattern": lambda: A.tril().pattern,
    "coefficients": lambda: torch.ones(2, dtype=F64),
    "lmin": lambda: 1.0,
    "lmax": lambda: 4.0,
    "n": lambda: 16,
    "degree": lambda: 2,
    "in_features": lambda: 2,
    "out_features": lambda: 3,
}


def constructors():
    """(name, callable) for each module and each of its constructors."""
    for cls in MODULES:
        yield cls.__name__, cls
        for name, method in inspect.getmembers(cls, inspect.ismethod):
            if method.__self__ is cls and not name.startswith("_") and cls.__module__ == method.__module__:
                yield f"{cls.__name__}.{name}", method


def starts(kind, name, tracked):
    """Values for an argument with this annotation that carry a graph, or are leaves that require grad."""
    kind = str(kind)
    if "AMG" in kind:
        H = P.AMG(A, max_coarse=4).hierarchy
        H = H.with_prolongations([T.with_values(tracked(T.values)) for T in H.prolongations])
        return [P.AMG(A, max_coarse=4, weight=tracked(torch.full((), 0.6, dtype=F64))), P.AMG(A, hierarchy=H)]
    if "CSR" in kind:
        matrix = {"L": A.tril(), "U": A.triu()}.get(name, A)
        return [matrix.with_values(tracked(matrix.values))]
    values = []
    if "Sequence[float]" in kind or "tuple[float" in kind:
        values.append([tracked(torch.tensor(end, dtype=F64)) for end in (0.5, 2.0)])
    elif "float" in kind:
        values.append(tracked(torch.tensor(0.6, dtype=F64)))
    if "Tensor" in kind and "Callable" not in kind:
        values.append(tracked(torch.full((2 if name == "coefficients" else 16,), 0.6, dtype=F64)))
    return values


def dual(value):
    return torch.autograd.forward_ad.make_dual(value, torch.ones_like(value))


TRACKED = {
    "graph": lambda value: value.clone().requires_grad_() * 1,
    "leaf": lambda value: value.clone().requires_grad_(),
    "Parameter": lambda value: torch.nn.Parameter(value.clone()),
    "dual": lambda value: dual(value.clone()),
}
ARGUMENTS = [
    pytest.param(make, argument, id=f"{name}-{argument}")
    for name, make in constructors()
    for argument, parameter in inspect.signature(make).parameters.items()
    if starts(parameter.annotation, argument, torch.clone)
]


def required(make):
    parameters = inspect.signature(make).parameters.items()
    return {name: GIVEN[name]() for name, p in parameters if p.default is p.empty}


@pytest.mark.parametrize("how", TRACKED)
@pytest.mark.parametrize(("make", "argument"), ARGUMENTS)
def test_no_module_drops_a_gradient(make, argument, how):
    """What a module would copy into its state is refused if it requires grad; else the module holds it."""
    kind = inspect.signature(make).parameters[argument].annotation
    arguments = required(make)
    make(**arguments)  # works without
    with torch.autograd.forward_ad.dual_level():
        for value in starts(kind, argument, TRACKED[how]):
            if argument == "U":
                arguments["L"] = A.tril(-1)
            try:
                module, error = make(**{**arguments, argument: value}), None
            except (TypeError, ValueError) as raised:
                module, error = None, raised
            if error is None:
                assert getattr(module, argument) is value
            else:  # TypeError: a number is required
                rule = "must be" if isinstance(error, TypeError) else r"requires grad.*\.detach\(\)"
                assert re.search(rule, str(error))
