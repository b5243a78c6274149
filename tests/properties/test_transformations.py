"""`torch.func.vmap` over an argument of every public call equals a loop, in values and gradients, or an error
names the call, or says that vmap cannot do it; a function that uses more than its arguments gives its
derivative or an error that says so; a graph (torch.compile, torch.export) equals the call."""

import inspect
import re
import warnings
from collections import Counter
from functools import partial

import pytest
import torch
from registry import beside, calls, outputs, plain_name
from stress.graphs import CASES, TAKING_FUNCTIONS, TRANSFORMS, _direction, carriers, judged

# Torch's vmap has no rules for its own sparse tensors.
OF_TORCH = {"learnsolve.CSR.from_torch.T", "learnsolve.CSR.to_torch.self"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in CASES if name not in OF_TORCH])
@pytest.mark.usefixtures("modules_in_float64")
def test_a_map_equals_a_loop(name):
    case = CASES[name]
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
            if not re.search(rf"\b({plain_name(case.call)}|vmap)\b", str(error), re.IGNORECASE):
                raise


@pytest.mark.rows(8)
@pytest.mark.parametrize("passed", [False, True], ids=["hidden", "passed"])
@pytest.mark.parametrize("name", [*TAKING_FUNCTIONS, "module"])
def test_what_a_function_uses_is_differentiated_or_named(name, passed):
    """Under every transformation; of a module with one path to its map, and with two."""
    for how in TRANSFORMS:
        for seed in range(4 if name == "module" else 1):
            assert judged(name, how, 3, passed, seed, Counter()) is None


# --- torch.compile ---

# Operations of which docs/operations.md promises no graph.
NO_GRAPH = {"Assembly", "StencilOperator", "diag", "eye", "ict", "ilut", "permute", "stencil_matrix", "zeros"}
LAYERS = {"GCNConv()", "GraphNetBlock()", "ResGCN()", "SparseDropout()", "positive_diagonal"}
OF_CSR = {
    "CSR",
    "abs",
    "clone",
    "conj",
    "cpu",
    "diagonal",
    "double",
    "float",
    "norm",
    "scale_columns",
}
OF_CSR |= {"scale_rows", "sum", "t", "to", "to_dense", "trace", "tril", "triu", "with_values"}
SOLVES = {"bicgstab", "cg", "fcg", "fgmres", "gmres", "minres"}
SWEEPS = {f"{name}, iterations" for name in ("chebyshev", "heavyball", "jacobi", "richardson", "sor", "ssor")}
SWEEPS |= {"Chebyshev()", "Heavyball()", "Jacobi()", "Richardson()", "SOR()", "TriangularSolve()"}
TOLERANCES = {"rtol", "atol", "maxiter"}


def promises_a_graph(group, name, given):
    method = name.rpartition(".")[2]
    return (
        (group == "ops" and name not in NO_GRAPH)
        or (group == "nn" and name in LAYERS)
        or (group == "learnsolve" and name.startswith("CSR") and method in OF_CSR)
        or (
            group == "solvers"
            and (name.partition(",")[0] in SOLVES or (name in SWEEPS and "rtol" not in given))
        )
    )


def programs():
    """(group, name, function, arguments): to a tolerance, and for a fixed number of iterations."""
    for group, name, function in calls():
        given, taken = beside(name, function), inspect.signature(function).parameters
        if "unrolled" in name and "rtol" in taken:
            given |= {"rtol": 0.0}
        if name in SWEEPS and "iterations" in taken:
            given = {key: value for key, value in given.items() if key not in TOLERANCES}
            given |= {"iterations": 3}
            given |= {"lmin": 0.5, "lmax": 6.0} if "lmin" in taken else {}
        if group not in ("io", "problems") and "parameters" not in given:
            yield group, name, function, given


GRAPHS = {f"{group}.{name}": row for group, name, *row in programs() if promises_a_graph(group, name, row[1])}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.rows(4)
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.usefixtures("modules_in_float64", "fresh_compiler")
def test_a_graph_equals_the_call(name):
    """With gradients, and a second call of the same shapes traces nothing anew."""
    program, leaves = of_leaves(name)

    def results(program):
        torch.manual_seed(0)
        found = program(leaves)
        loss = sum((t * torch.arange(1.0, 1 + t.numel()).view_as(t)).sum() for t in found)
        return found, torch.autograd.grad(loss, [*leaves.values()], allow_unused=True, materialize_grads=True)

    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    found = results(compiled)
    torch.testing.assert_close(found, results(program), rtol=1e-9, atol=1e-11)
    with torch.compiler.set_stance("fail_on_recompile"):
        torch.testing.assert_close(results(compiled), found, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.rows(4)
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.usefixtures("modules_in_float64", "fresh_compiler")
def test_an_exported_program_equals_the_call(name):
    program, leaves = of_leaves(name)

    class Program(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.called = getattr(GRAPHS[name][0], "__self__", None)  # a module, with parameters

        def forward(self, leaves):
            return program(leaves)

    leaves = {key: t.detach() for key, t in leaves.items()}
    torch.manual_seed(0)
    expected = program(leaves)
    exported = torch.export.export(Program(), (leaves,), strict=True)
    torch.manual_seed(0)
    torch.testing.assert_close(exported.module()(leaves), expected, rtol=1e-9, atol=1e-11)


def of_leaves(name):
    """The call as a function of a dict of its tensors, and these."""
    function, given = GRAPHS[name]
    carried = {
        key: next(carriers(value))
        for key, value in given.items()
        if not isinstance(value, float) and any(True for _ in carriers(value))
    }
    makes = {key: make for key, (_, make, _) in carried.items()}
    leaves = {key: start.detach().clone().requires_grad_() for key, (start, _, _) in carried.items()}

    def program(leaves):
        arguments = given | {key: make(leaves[key]) for key, make in makes.items()}
        first = [arguments.pop("self")] if "self" in arguments else []
        return outputs(function(*first, **arguments))

    return program, leaves
