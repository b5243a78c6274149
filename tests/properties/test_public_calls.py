"""Promises of every public call (tests/registry.py): gradients, dtypes, random numbers, autocast."""

import inspect
import random
import re
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from registry import F64, VECTOR, A, P, beside, called, calls, number, outputs
from stress.graphs import CASES, carriers

import learnsolve as ls

CALLS = {f"{group}.{name}": (call, beside(name, call)) for group, name, call in calls()}


def is_constructor(name):
    call = CALLS[name][0]
    owner = call if inspect.isclass(call) else getattr(call, "__self__", None)
    return inspect.isclass(owner) and issubclass(owner, torch.nn.Module)


def dual(value):
    return torch.autograd.forward_ad.make_dual(value, torch.ones_like(value))


TRACKED = {
    "graph": lambda value: value.clone().requires_grad_() * 1,
    "leaf": lambda value: value.clone().requires_grad_(),
    "Parameter": lambda value: torch.nn.Parameter(value.clone()),
    "dual": lambda value: dual(value.clone()),
}
ROWS = [case for case in CASES.values() if ";" not in case.call]
ARGUMENTS = [case for case in ROWS if is_constructor(f"{case.group}.{case.call}")]


@pytest.mark.parametrize("how", TRACKED)
@pytest.mark.parametrize("case", ARGUMENTS, ids=lambda case: f"{case.call}-{case.argument}")
def test_no_module_drops_a_gradient(case, how):
    """What a module would copy into its state is rejected if it requires grad; else the module holds it."""
    with torch.autograd.forward_ad.dual_level():
        for start, make, _ in carriers(case.value):
            value = make(TRACKED[how](start.detach()))
            try:
                module, message = case.f(value), ""
            except (TypeError, ValueError) as error:
                module, message = None, str(error)
            required = re.search(r"must be|requires grad.*\.detach\(\)", message)
            assert required or getattr(module, case.argument) is value


MADE = [case for case in ROWS if case.group == "preconditioners"]


@pytest.mark.parametrize("case", MADE, ids=lambda case: f"{case.call}-{case.argument}")
def test_an_implicit_gradient_refuses_a_preconditioner_that_learns(case):
    for start, make, _ in carriers(case.value):
        t = start.detach().clone()

        def solve(t, make=make):
            return ls.solvers.fgmres(A, VECTOR, M=case.f(make(t))).x.sum()

        try:
            M = case.f(make(t.requires_grad_()))
        except (TypeError, ValueError):
            return  # that it names the argument: the harness `graphs`
        if isinstance(M, P.Preconditioner) and M(VECTOR).requires_grad:
            calls = solve, torch.func.grad(solve), lambda t: torch.func.jvp(solve, (t,), (t,))
            for call, value in zip(calls, (t, t.detach(), t.detach()), strict=True):
                with pytest.raises(ValueError, match=r'fgmres: M requires grad, .*gradient="unrolled"'):
                    call(value)


# --- dtypes ---

OTHER_DTYPES = [torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
TYPED = [
    case
    for case in ROWS
    if (case in ARGUMENTS or (case.group == "preconditioners" and inspect.isclass(case.function)))
    and isinstance(case.value, (ls.CSR, torch.Tensor))
]


@pytest.mark.parametrize("dtype", OTHER_DTYPES, ids=str)
@pytest.mark.parametrize("case", TYPED, ids=lambda case: f"{case.call}-{case.argument}")
def test_only_float32_and_float64_are_accepted(case, dtype):
    if dtype.is_complex and case.call in ("Diagonal", "Jacobi", "IC", "ILU", "Factorization"):
        assert case.f(case.value.to(dtype)).dtype == dtype
        return
    with pytest.raises(TypeError):
        case.f(case.value.to(dtype))


@pytest.mark.parametrize(
    "make",
    [
        lambda: ls.ops.eye(4),
        lambda: ls.ops.zeros(4),
        lambda: ls.problems.poisson((4, 4)),
        lambda: ls.problems.anisotropic((4, 4), 0.1, 0.3),
        lambda: ls.problems.random_spd(16, 0),
        lambda: ls.problems.pyamg_gallery("unit_square"),
        lambda: ls.problems.graph_laplacian(torch.tensor([[0, 1], [1, 0]])),
        lambda: ls.problems.p1_mass(ls.problems.random_mesh(16, seed=0)),
        lambda: ls.problems.p1_stiffness(ls.problems.random_mesh(16, seed=0)),
        lambda: ls.problems.dataset("random_spd", "train", 1, n=16)[0].A,
        lambda: P.FactorPreconditioner.bidiagonal(4).L,
        lambda: P.Hierarchy.linear((5, 5), levels=2).prolongations[0],
    ],
)
def test_matrices_made_without_data_are_float64(make):
    """Whatever torch's default is: they fit one another."""
    assert make().dtype == F64


# What reads no values, or those of another argument.
BLIND = {"learnsolve.CSR.with_values", "nn.GraphNetBlock()", "problems.TriangleMesh"}


def imaginary(value, size):
    """With imaginary parts, `size` times the real ones in opposite order."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return torch.complex(value, size * value.flip(-1))
    if isinstance(value, ls.CSR):
        return value.with_values(imaginary(value.values, size))
    return [imaginary(v, size) for v in value] if isinstance(value, list) else value


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in CALLS if "unrolled" not in name])
def test_complex_values_are_taken_or_refused_by_name(name, tmp_path, monkeypatch):
    """What takes them gives the real result where imaginary parts are zero, and another where not."""
    monkeypatch.chdir(tmp_path)
    call, given = CALLS[name]
    for key in inspect.signature(call).parameters:
        value = given.get(key, number(name.rpartition(".")[2], key))
        if repr(imaginary(value, 0.0)) == repr(value):
            continue
        arguments = beside(name.split(".", 1)[1], call, key)
        try:
            zero, other = (outputs(called(call, arguments | {key: imaginary(value, i)})) for i in (0.0, 0.25))
        except (TypeError, NotImplementedError) as error:
            if "complex" not in str(error):
                raise
            continue
        real = outputs(called(call, arguments | {key: value}))
        for a, b in zip(real, zero, strict=True):
            b = torch.view_as_complex(b) if b.dim() > a.dim() else b
            torch.testing.assert_close(b.to(torch.complex128), a.to_dense().to(torch.complex128))
        assert not real or name in BLIND or not all(map(torch.equal, zero, other)), key


# --- random numbers ---

# Draw from torch's generator: initial weights, as the modules of torch.nn do; samples, as torch.randn does,
# unless a generator is given.
DRAWS = {"nn.GCNConv", "nn.GraphNetBlock", "nn.ResGCN", "analysis.krylov_basis", "analysis.krylov_samples"}
GRID = ls.problems.poisson((12, 12))
LOW_RANK = ls.CSR.from_dense(torch.diag(torch.tensor([1.0, 2, 2] + 47 * [0], dtype=F64)))


def nonsymmetric():
    S = GRID.to_scipy().tocsr()
    S.data[::3] *= 1.2
    return ls.CSR.from_scipy(S)


CALLS |= {
    "problems.dataset": (lambda: ls.problems.dataset("random_spd", "train", 1, n=16)[0], {}),
    "cg, gradient": (lambda: ls.solvers.cg(A.detach().requires_grad_(), A[0].T).x.sum().backward(), {}),
    "AMG, aggregation": (lambda: P.AMG(GRID, max_coarse=4), {}),
    "AMG, general": (lambda: P.AMG(nonsymmetric(), max_coarse=4), {}),
    "AMG, classical": (lambda: P.AMG(GRID, method="ruge_stuben", max_coarse=4), {}),
    "spectral_radius, low rank": (lambda: ls.analysis.spectral_radius(LOW_RANK, method="arnoldi"), {}),
}


def states():
    _, numbers, *rest = np.random.get_state()  # noqa: NPY002
    return random.getstate(), numbers.tolist(), rest, torch.random.get_rng_state().tolist()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(CALLS.keys() - DRAWS))
def test_random_numbers_of_the_process_are_left_alone(name, monkeypatch):
    """No global generator is used, and none with a seed of the system, which would not be deterministic."""
    seeded = np.random.default_rng

    def default_rng(seed=None):
        assert seed is not None, "the seed of this generator comes from the system"
        return seeded(seed)

    before, touched = states(), []
    monkeypatch.setattr(np.random, "default_rng", default_rng)
    for function in ("seed", "set_state", "rand", "random", "uniform", "permutation"):
        original = getattr(np.random, function)
        spy = lambda *args, original=original: touched.append(original.__name__) or original(*args)  # noqa: E731
        monkeypatch.setattr(np.random, function, spy)
    called(*CALLS[name])
    assert states() == before
    assert touched == []


@pytest.mark.parametrize("make", ["AMG, aggregation", "AMG, general", "AMG, classical"])
def test_concurrent_constructions_are_equal(make):
    """Whatever the global generator gives, and whichever thread draws from it meanwhile."""

    def transfers(_):
        np.random.rand(3)  # noqa: NPY002
        return [T.values for T in CALLS[make][0]().hierarchy.transfers]

    first = transfers(None)
    assert first
    with ThreadPoolExecutor(4) as threads:
        for found in threads.map(transfers, range(12)):
            assert all(torch.equal(a, b) for a, b in zip(first, found, strict=True))


def test_a_thread_that_draws_gets_no_number_twice():
    """A seed set for a moment would repeat the numbers of a thread that draws meanwhile."""
    with ThreadPoolExecutor(2) as threads:
        done = threads.submit(lambda: [CALLS["AMG, aggregation"][0]() for _ in range(8)])
        drawn = []
        while not done.done():
            drawn += np.random.rand(16).tolist()  # noqa: NPY002
        done.result()
    assert len(set(drawn)) == len(drawn)


# --- autocast ---


# Without layers and modules, of which the harness of tests/stress has the results and their gradients.
PLAIN = [name for name in CALLS if "." in name and not (name.endswith("()") or is_constructor(name))]


def single(value):
    """In single precision, which alone autocast lowers."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.is_floating_point() else value
    if isinstance(value, ls.CSR | P.Hierarchy):
        return value.to(torch.float32)
    if isinstance(value, P.Diagonal):
        return P.Diagonal(value.d.float())
    return [single(v) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", PLAIN)
def test_autocast_leaves_results_alone(name):
    function, arguments = CALLS[name]
    arguments, found = {key: single(value) for key, value in arguments.items()}, []
    for autocast in (False, True):
        torch.manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found.append(outputs(called(function, arguments)))
    for a, b in zip(*found, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a.to_dense().nan_to_num(), b.to_dense().nan_to_num())
