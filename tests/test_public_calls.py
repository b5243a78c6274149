"""Promises of every public module, constructor, solver and generator of problems. They are found through
`__all__`, so that a new one is tested too; GIVEN has the arguments without a default, by name."""

import inspect
import random
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

import learnsolve as ls

F64 = torch.float64
A = ls.problems.poisson((4, 4))
P = ls.preconditioners
PERIODIC = ls.problems.poisson((4, 4), boundary="periodic")
(LINEAR,) = P.Hierarchy.linear((4, 4), periodic=True, levels=2).prolongations
GROUPS = (ls.ops, ls.solvers, ls.preconditioners, ls.nn)
MODULES = {
    cls: group
    for group in GROUPS
    for cls in map(vars(group).get, group.__all__)
    if inspect.isclass(cls) and issubclass(cls, torch.nn.Module) and cls is not P.Trainable
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
    "b": lambda: torch.ones(16, dtype=F64),
    "d": lambda: torch.ones(16, dtype=F64),
    "alpha": lambda: 0.2,
    "beta": lambda: 0.3,
    "shape": lambda: (4, 4),
    "epsilon": lambda: 0.1,
    "theta": lambda: 0.5,
    "kappa": lambda: torch.ones(4, 4, dtype=F64),
    "edge_index": lambda: torch.tensor([[0, 1], [1, 0]]),
    "weights": lambda: torch.ones(2, dtype=F64),
    "grounded": lambda: torch.tensor([True, False, False]),
    "wind": lambda: torch.ones(2, 4, 4, dtype=F64),
    "kh": lambda: torch.ones(4, 4, dtype=F64),
    "mesh": lambda: ls.problems.random_mesh(16, seed=0),
    "points": lambda: torch.tensor([[0, 0], [4, 0], [0, 4], [1, 1]], dtype=F64),
    "triangles": lambda: torch.tensor([[0, 1, 3], [1, 2, 3], [2, 0, 3]]),
    "seed": lambda: 0,
    "name": lambda: "unit_square",
    "E": lambda: ls.analysis.ErrorPropagator(A, P.Jacobi(A)),
    "history": lambda: torch.tensor([1.0, 0.5, 0.2]),
    "prolongations": lambda: P.AMG(A, max_coarse=4).hierarchy.prolongations,
    "preconditioners": lambda: {"AMG": P.AMG, "none": None},
    "fn": lambda: lambda: None,
    "in_features": lambda: 2,
    "out_features": lambda: 3,
    "node_features": lambda: 2,
    "edge_features": lambda: 2,
    "path": lambda: _saved(),
}


def _saved():
    path = Path(tempfile.mkdtemp()) / "network.safetensors"
    P.NeuralIF(rounds=1, width=2).save(path)
    return path


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


# --- dtypes ---

OTHER_DTYPES = [torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
COMPUTED = [
    getattr(P, name)
    for name in P.__all__
    if name not in ("Hierarchy", "Preconditioner", "Trainable") and not name.endswith("_pattern")
]
TYPED = {
    f"{make.__qualname__}-{argument}": (make, argument)
    for make in dict.fromkeys([*COMPUTED, *(make for _, make in constructors())])
    for argument, parameter in inspect.signature(make).parameters.items()
    if "CSR" in str(parameter.annotation) or ("Tensor" in str(parameter.annotation) and argument != "M")
}


@pytest.mark.parametrize("dtype", OTHER_DTYPES, ids=str)
@pytest.mark.parametrize("name", TYPED)
def test_only_float32_and_float64_are_accepted(name, dtype):
    make, argument = TYPED[name]
    for value in starts(inspect.signature(make).parameters[argument].annotation, argument, torch.clone):
        if not isinstance(value, (ls.CSR, torch.Tensor)):
            continue
        with pytest.raises(TypeError):
            make(**{**required(make), argument: value.to(dtype)})


# --- random numbers ---

# Draw from torch's generator: initial weights, as the modules of torch.nn do; samples, as torch.randn does,
# unless a generator is given.
DRAWS = {"GCNConv", "GraphNetBlock", "ResGCN", "analysis.krylov_basis", "analysis.krylov_samples"}
RECORDS = {
    "MatrixProperties",
    "Iteration",
    "Solution",
    "Status",
    "SolverError",
    "Estimate",
    "ExtremeEigenvalues",
}
RECORDS |= {"ConvergenceWarning", "ExtremeEigenvalues", "DelaunayGraph", "ProblemDataset", "Sample"}
GENERAL = {"Preconditioner", "Trainable", "PROPERTIES", "ErrorPropagator"}
OTHERS = {"set_check_every", "matrix_market"}  # a setting of the process; needs a file
CALLS = {
    **dict(constructors()),
    **{
        f"{group.__name__.split('.')[1]}.{name}": getattr(group, name)
        for group in (ls.solvers, ls.preconditioners, ls.problems, ls.analysis)
        for name in group.__all__
        if name not in RECORDS | GENERAL | OTHERS
    },
    "preconditioners.BlockJacobi": lambda: P.BlockJacobi(A, 4),
    **{
        f"analysis.{f.__name__}": lambda f=f: f(
            PERIODIC, LINEAR, grid=(4, 4), period=(4, 4), without_constants=True
        )
        for f in (ls.analysis.two_grid_symbols, ls.analysis.two_grid_factor)
    },
    "problems.dataset": lambda: ls.problems.dataset("random_spd", "train", 1, n=16)[0],
    "gcn_norm": ls.nn.gcn_norm,
    "evaluate": ls.evaluate,
    "cg, gradient": lambda: ls.solvers.cg(A.detach().requires_grad_(), GIVEN["b"]()).x.sum().backward(),
    "AMG, aggregation": lambda: P.AMG(ls.problems.poisson((12, 12)), max_coarse=4),
    "AMG, general": lambda: P.AMG(ls.CSR.from_scipy(nonsymmetric()), max_coarse=4),
    "AMG, classical": lambda: P.AMG(ls.problems.poisson((12, 12)), method="ruge_stuben", max_coarse=4),
    "spectral_radius, low rank": lambda: ls.analysis.spectral_radius(low_rank(), method="arnoldi"),
    "spsolve": lambda: ls.ops.spsolve(A, GIVEN["b"]()),
}


def nonsymmetric():
    S = ls.problems.poisson((12, 12)).to_scipy().tocsr()
    S.data[::3] *= 1.2
    return S


def low_rank():
    return ls.CSR.from_dense(torch.diag(torch.arange(50, dtype=F64).clamp(max=2) * (torch.arange(50) < 3)))


def states():
    _, numbers, *rest = np.random.get_state()  # noqa: NPY002
    return random.getstate(), numbers.tolist(), rest, torch.random.get_rng_state().tolist()


@pytest.mark.parametrize("name", CALLS)
def test_random_numbers_of_the_process_are_left_alone(name, monkeypatch):
    """No global generator is used, and none with a seed of the system, which would not be deterministic."""
    if name in DRAWS:
        pytest.skip("draws from torch's generator, as documented")
    seeded = np.random.default_rng

    def default_rng(seed=None):
        assert seed is not None, "the seed of this generator comes from the system"
        return seeded(seed)

    arguments = required(CALLS[name])
    before, touched = states(), []
    monkeypatch.setattr(np.random, "default_rng", default_rng)
    for function in ("seed", "set_state", "rand", "random", "uniform", "permutation"):
        original = getattr(np.random, function)
        spy = lambda *args, original=original: touched.append(original.__name__) or original(*args)  # noqa: E731
        monkeypatch.setattr(np.random, function, spy)
    CALLS[name](**arguments)
    assert states() == before
    assert touched == []


@pytest.mark.parametrize("make", ["AMG, aggregation", "AMG, general", "AMG, classical"])
def test_concurrent_constructions_are_equal(make):
    """Whatever the global generator gives, and whichever thread draws from it meanwhile."""

    def numbers(_):
        np.random.rand(3)  # noqa: NPY002
        return [T.values for T in CALLS[make]().hierarchy.transfers]

    first = numbers(None)
    assert first
    with ThreadPoolExecutor(4) as threads:
        for found in threads.map(numbers, range(12)):
            assert all(torch.equal(a, b) for a, b in zip(first, found, strict=True))


def test_a_thread_that_draws_gets_no_number_twice():
    """A seed set for a moment would repeat the numbers of a thread that draws meanwhile."""
    with ThreadPoolExecutor(2) as threads:
        done = threads.submit(lambda: [CALLS["AMG, aggregation"]() for _ in range(8)])
        drawn = []
        while not done.done():
            drawn += np.random.rand(16).tolist()  # noqa: NPY002
        done.result()
    assert len(set(drawn)) == len(drawn)


# --- default dtypes ---


@pytest.mark.parametrize(
    "make",
    [
        lambda: ls.ops.eye(4),
        lambda: ls.ops.zeros(4),
        lambda: ls.problems.poisson((4, 4)),
        lambda: ls.problems.anisotropic((4, 4), 0.1, 0.3),
        lambda: ls.problems.random_spd(16, 0),
        lambda: ls.problems.gallery("unit_square"),
        lambda: ls.problems.graph_laplacian(GIVEN["edge_index"]()),
        lambda: ls.problems.p1_mass(GIVEN["mesh"]()),
        lambda: ls.problems.p1_stiffness(GIVEN["mesh"]()),
        lambda: ls.problems.dataset("random_spd", "train", 1, n=16)[0].A,
        lambda: P.Factored.bidiagonal(4).L,
        lambda: P.Hierarchy.linear((5, 5), levels=2).prolongations[0],
    ],
)
def test_matrices_made_without_data_are_float64(make):
    """Whatever torch's default is: they fit one another."""
    assert make().dtype == F64


# --- autocast ---


def tensors_in(value):
    """The numbers of a result: of a preconditioner what it does, of other modules their parameters."""
    if isinstance(value, P.Preconditioner):
        value = value(torch.linspace(-1, 1, value.shape[0], dtype=value.dtype))
    if isinstance(value, torch.Tensor):
        return [torch.view_as_real(value) if value.is_complex() else value]
    if isinstance(value, ls.CSR):
        return [value.values]
    if isinstance(value, ls.solvers.Solution):
        return [value.x, value.residual_norms]
    if isinstance(value, torch.nn.Module):
        value = list(value.parameters())
    return [t for part in value for t in tensors_in(part)] if isinstance(value, (list, tuple)) else []


@pytest.mark.parametrize("name", CALLS)
def test_autocast_leaves_results_alone(name, monkeypatch):
    module = sys.modules[__name__]
    for matrix in ("A", "PERIODIC", "LINEAR"):
        monkeypatch.setattr(module, matrix, getattr(module, matrix).to(torch.float32))
    monkeypatch.setattr(module, "F64", torch.float32)
    arguments, found = required(CALLS[name]), []
    for autocast in (False, True):
        torch.manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            found.append(tensors_in(CALLS[name](**arguments)))
    for a, b in zip(*found, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a.nan_to_num(), b.nan_to_num())
