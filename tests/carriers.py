"""Every public call with each of its arguments in turn made of a tensor that carries a graph. The gradient
arrives and is that of differences, or an error names the argument: `fault(case)` says what is wrong.

The calls are found through `__all__`, so that a new one is tested too. `NUMBERS` has what is passed for an
argument, by its name or, where one call needs another, by ``call.argument``; `WITH` what must be passed
beside it, and beside all arguments of a call.
"""

from __future__ import annotations

import inspect
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import learnsolve as ls

F64 = torch.float64
P, S = ls.preconditioners, ls.solvers
# Records of results, base classes, settings, and what takes functions.
OTHERS = {"Evaluation", "Iteration", "Solution", "SolverError", "Status", "ConvergenceWarning", "Estimate"}
OTHERS |= {
    "ExtremeEigenvalues",
    "DelaunayGraph",
    "MatrixProperties",
    "PROPERTIES",
    "ProblemDataset",
    "Sample",
    "Graph",
}
OTHERS |= {"IncompleteCholesky", "IncompleteLU", "Preconditioner", "Trainable", "profile", "Sample", "Graph"}
OTHERS |= {
    "set_check_every",
    "set_buffer_pool_limit",
    "set_plan_cache_limit",
    "set_spgemm_plan_limit",
    "dataset",
}
OTHERS |= {
    "dataset",
    "planetoid",
    "matrix_market",
    "load",
    "CSR.load",
    "CSR.from_scipy",
    "CSR.cuda",
    "CSR.requires_grad_",
}
# Measurements, files, SciPy's matrices, samples: the docstring says that there is no gradient.
WITHOUT = {"evaluate", "write_matrix_market", "krylov_basis", "krylov_samples"}
WITHOUT |= {
    f"CSR.{name}"
    for name in ("detach", "save", "size", "spy", "to_scipy", "to_scipy_linear_operator", "toarray")
}
NO_GRADIENT = re.compile(
    r"no gradient|without (a |their )?(gradient|graph|history)|no derivatives", re.IGNORECASE
)


class Case(NamedTuple):
    """`call` as a function of one argument, f(argument), which is `value` otherwise."""

    group: str
    call: str
    argument: str
    f: Callable[[Any], Any]
    value: Any
    doc: str

    @property
    def name(self) -> str:
        return f"{self.group}.{self.call}.{self.argument}"


def random(*shape: int, seed: int = 0) -> Tensor:
    """Between 0.5 and 1.5."""
    return torch.rand(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed)) + 0.5


A = ls.problems.diffusion(random(4, 4))
PERIODIC = ls.problems.nodal_diffusion(random(4, 4), boundary="periodic")
HIERARCHY = P.AMG(A, max_coarse=4).hierarchy
(LINEAR,) = P.Hierarchy.linear((4, 4), periodic=True, levels=2).prolongations
MESH = ls.problems.random_mesh(16, seed=0)
EDGES = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])

NUMBERS: dict[str, Any] = {
    "A": A,
    "B": A.tril(),
    "D": A.to_dense(),
    "E": random(A.nnz),
    "L": A.tril(),
    "M": P.Diagonal(random(16)),
    "P": LINEAR,
    "R": LINEAR.T,
    "T": A.to_dense(),
    "U": random(16, 2),
    "V": random(16, 2, seed=1),
    "X": random(16),
    "adjoint_M": P.Diagonal(random(16)),
    "alpha": 0.1,
    "b": random(16),
    "beta": 0.2,
    "coefficients": random(3, 3),
    "col_indices": A.col_indices,
    "columns": A.col_indices,
    "crow_indices": A.crow_indices,
    "d": random(16, seed=2),
    "degree": 2,
    "e": random(A.nnz, 2),
    "edge_features": 2,
    "edge_index": EDGES,
    "edge_weight": random(4),
    "epsilon": 0.3,
    "exponent": 2.0,
    "graph": A,
    "grid": (4, 4),
    "grounded": torch.tensor([True, False, False]),
    "hierarchy": HIERARCHY,
    "history": random(9).cumprod(0),
    "in_features": 2,
    "interval": (0.5, 6.0),
    "kappa": random(3, 3),
    "keep": torch.arange(A.nnz) % 3 > 0,
    "kh": random(3, 3),
    "lmax": 6.0,
    "lmin": 0.5,
    "local": A,
    "matrices": [A, A],
    "mesh": MESH,
    "n": 16,
    "name": "unit_square",
    "node_features": 2,
    "null_space": torch.ones(16, 1, dtype=F64),
    "omega": 1.1,
    "ord": None,
    "out_features": 3,
    "p": range(16),
    "parameters": (random(16),),
    "path": Path(tempfile.gettempdir()) / "carriers.mtx",
    "pattern": A.pattern,
    "peclet": 0.7,
    "period": (4, 4),
    "points": torch.tensor([[0, 0], [4, 0], [0, 4], [1, 1]], dtype=F64),
    "preconditioners": {"none": None},
    "prolongations": HIERARCHY.prolongations,
    "r": random(16),
    "radii": [1.5] * len(HIERARCHY),
    "reaction": 0.4,
    "restrictions": [T.T for T in HIERARCHY.prolongations],
    "rho": random(len(MESH.triangles)),
    "rows": A.pattern.row_indices,
    "samples": [A, A],
    "seed": 0,
    "self": A,
    "shape": (4, 4),
    "shift": 0.3,
    "theta": 0.5,
    "triangles": torch.tensor([[0, 1, 3], [1, 2, 3], [2, 0, 3]]),
    "values": random(A.nnz),
    "weight": 0.3,
    "weights": random(4),
    "wind": random(2, 3, 3),
    "x": random(16),
    "x0": random(16),
    "CSR.from_coo.shape": (16, 16),
    "Factored.U": A.triu(),
    "GCNConv().X": random(16, 2),
    "GraphNetBlock().x": random(16, 2),
    "PCG.null_space": "constants",
    "Polynomial.coefficients": random(3),
    "ResGCN().X": random(16, 2),
    "SparseDropout().X": A,
    "diag.d": random(4),
    "galerkin.P": HIERARCHY.prolongations[0],
    "kron.A": ls.problems.poisson((2,)),
    "krylov_samples.m": random(16, 3),
    "p1_stiffness.kappa": random(len(MESH.triangles)),
    "spectral_radius.E": A,
    "stencil.x": random(4, 4),
    "two_grid_symbols.A": PERIODIC,
    "two_grid_factor.A": PERIODIC,
}
_UNIT = A.tril(-1)
WITH: dict[str, dict[str, Any]] = {
    "AMG": {"hierarchy": HIERARCHY},  # otherwise chosen by the numbers of A, and held
    "BlockJacobi": {"block_size": 4},
    "Chebyshev": {"lmin": 0.5, "lmax": 6.0},  # estimates are constants
    "Factored.U": {"L": _UNIT},
    "Polynomial.chebyshev": {"lmin": 0.5, "lmax": 6.0},
    "Factored.shift": {"form": "product"},
    "GCNConv().edge_weight": {"A": EDGES, "X": random(3, 2)},
    "gcn_norm.edge_weight": {"A": EDGES},
    "heavyball.alpha": {"beta": 0.2},
    "heavyball.beta": {"alpha": 0.1},
    "null_space": {"A": PERIODIC, "b": random(16) - random(16).mean()},
    "two_grid_symbols": {"without_constants": True},
    "two_grid_factor": {"without_constants": True},
    "NeuralAMG": {"max_coarse": 2},
    "SparseDropout()": {"keep": torch.arange(A.nnz) % 3 > 0},
    "chebyshev, unrolled": {"lmin": 0.5, "lmax": 6.0},
    "heavyball, unrolled": {"alpha": 0.1, "beta": 0.2},
    "heavyball, unrolled.lmin": {"alpha": None, "beta": None, "lmax": 6.0},
    "heavyball, unrolled.lmax": {"alpha": None, "beta": None, "lmin": 0.5},
    "richardson, unrolled": {"weight": 0.1},
    "richardson, unrolled.lmin": {"weight": None, "lmax": 6.0},
    "richardson, unrolled.lmax": {"weight": None, "lmin": 0.5},
}


def calls() -> Iterator[tuple[str, str, Callable[..., Any]]]:
    """Functions, constructors, methods of `CSR`, calls of modules; solvers also with unrolled gradients."""
    for module in (ls, ls.ops, S, P, ls.problems, ls.nn, ls.analysis, ls.io):
        group = module.__name__.removeprefix("learnsolve.")
        for name in module.__all__:
            call = getattr(module, name)
            if name in OTHERS or not callable(call):
                continue
            yield group, name, call
            if not inspect.isclass(call):
                if {"gradient", "maxiter"} <= inspect.signature(call).parameters.keys():
                    yield group, f"{name}, unrolled", partial(call, gradient="unrolled", maxiter=4)
                continue
            for key, method in inspect.getmembers(call, callable):
                public = not key.startswith("_") and "learnsolve" in (getattr(method, "__module__", "") or "")
                made = inspect.ismethod(method) and method.__self__ is call
                if public and (made or call is ls.CSR) and f"{name}.{key}" not in OTHERS:
                    yield group, f"{name}.{key}", method
            if issubclass(call, torch.nn.Module):
                yield group, f"{name}()", call(**beside(name, call)).to(F64).forward


def number(call: str, argument: str, annotation: str = "") -> Any:
    default = 0.1 if "float" in annotation else None
    return NUMBERS.get(f"{call}.{argument}", NUMBERS.get(argument, default))


def beside(call: str, function: Callable[..., Any], argument: str = "") -> dict[str, Any]:
    """What is passed beside the argument."""
    parameters = inspect.signature(function).parameters
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    given = {
        name: number(call, name)
        for name, p in parameters.items()
        if p.default is p.empty and p.kind not in variable
    }
    if "gradient" in parameters and "maxiter" in parameters and "unrolled" not in call:  # a solver
        exact = {"rtol": 1e-13, "btol": 1e-13, "maxiter": 2000, "atol": 1e-14}
        given |= {key: exact[key] for key in exact.keys() & parameters.keys()}
    for key in (argument, call, f"{call}.{argument}"):
        given |= {name: value for name, value in WITH.get(key, {}).items() if name in parameters}
    return given


def cases() -> Iterator[Case]:
    for group, call, function in calls():
        for name, p in inspect.signature(function).parameters.items():
            kind, value = str(p.annotation), number(call, name, str(p.annotation))
            takes_numbers = re.search(r"Tensor|CSR|Any|float|Mesh|Matrices|empty", kind)
            together = not (name.startswith("adjoint") and "unrolled" in call)
            if takes_numbers and together and any(True for _ in carriers(value)):
                f = partial(_call, function, beside(call, function, name), name)
                yield Case(group, call, name, f, value, inspect.getdoc(function) or "")


def _call(function: Callable[..., Any], others: dict[str, Any], name: str, value: Any) -> Any:
    others = {**others, name: value}
    if name == "parameters":  # of an A that is a function
        others["A"] = lambda x: value[0] * x
        if "transpose" in inspect.signature(function).parameters:
            others["transpose"] = others["A"]
    if name == "T":
        others["T"] = value.to_sparse_csr()
    if "self" in others:
        return function(others.pop("self"), **others)
    return function(**others)


def carriers(value: Any) -> Iterator[tuple[Tensor, Callable[[Tensor], Any], ls.SparsityPattern | None]]:
    """(t, f, pattern): f(t) is `value`, of which t has the numbers, on the pattern if they are a matrix's."""
    if isinstance(value, float):
        yield torch.tensor(value, dtype=F64), lambda t: t, None
    elif isinstance(value, Tensor) and value.is_floating_point():
        yield value, lambda t: t, None
    elif isinstance(value, ls.CSR):
        yield value.values, value.with_values, value.pattern
    elif isinstance(value, P.Diagonal):
        yield value.d, P.Diagonal, None
    elif isinstance(value, P.Hierarchy):
        for t, f, pattern in carriers(value.prolongations):
            yield t, lambda t, f=f: value.with_prolongations(f(t)), pattern
    elif isinstance(value, ls.problems.TriangleMesh):
        yield value.points, lambda t: ls.problems.TriangleMesh(t, value.triangles, value.fixed), None
    elif isinstance(value, (list, tuple)) and value:
        for t, f, pattern in carriers(value[0]):
            yield t, lambda t, f=f: type(value)((f(t), *value[1:])), pattern


def outputs(result: Any) -> list[Tensor]:
    """The numbers of a result; of a function or a module those that it gives."""
    if isinstance(result, Tensor):
        result = torch.view_as_real(result) if result.is_complex() else result
        return [result] if result.is_floating_point() else []
    if isinstance(result, float):
        return [torch.tensor(result, dtype=F64)]
    if isinstance(result, ls.CSR):
        return [result.values]
    if isinstance(result, ls.analysis.Estimate):
        return [result.value]  # and an indication of its error
    if isinstance(result, S.Solution):
        return [result.x]
    if isinstance(result, (list, tuple)):
        return [t for part in result for t in outputs(part)]
    if isinstance(result, ls.BlockBatch):
        return [result.matrix.values]
    if isinstance(result, P.Hierarchy):
        return [T.values for T in result.transfers]
    if isinstance(result, ls.problems.TriangleMesh):
        return [result.areas]
    if isinstance(result, torch.nn.Module):
        arguments = {"A": A, "b": random(16), "r": random(16)}
        taken = inspect.signature(result.forward).parameters
        return outputs(result.to(F64)(*(arguments[name] for name in taken if name in arguments)))
    if isinstance(result, ls.ops.StencilOperator):
        return [result @ random(16)]
    if isinstance(result, ls.SparsityPattern) or not callable(result):
        return []
    return outputs(result(random(16)))


def fault(case: Case, seed: int = 0) -> str | None:
    """A sentence, or None. The seed is that of a direction and of a cotangent."""
    generator = torch.Generator().manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for start, make, pattern in carriers(case.value):
            v = start.detach() * _direction(start, pattern, generator)
            if (found := _fault(case, start.detach(), make, v, generator)) is not None:
                return f"{case.name} {found}"
    return None


def _fault(
    case: Case,
    start: Tensor,
    make: Callable[[Tensor], Any],
    v: Tensor,
    generator: torch.Generator,
) -> str | None:
    try:
        result = case.f(case.value)
    except Exception as error:
        return f"does not work without a graph: {type(error).__name__}: {error}"
    plain = outputs(result)
    w = [torch.randn(p.shape, dtype=F64, generator=generator) for p in plain]

    def total(result: Any) -> Any:
        return sum((a * b).sum() for a, b in zip(w, outputs(result), strict=True))

    t, gradients = start.clone().requires_grad_(), []
    for argument in (t, t * 1):  # a leaf, and a result
        try:
            loss = total(case.f(make(argument)))
        except (TypeError, ValueError) as error:
            gradients.append("refused")
            if not re.search(rf"\b{case.argument}\b", str(error)):
                return f"is refused by an error that does not name it: {error}"
        else:
            tracked = isinstance(loss, Tensor) and loss.requires_grad
            gradients += torch.autograd.grad(loss, t, allow_unused=True) if tracked else [None]
    first, second = gradients
    if type(first) is not type(second) or (isinstance(first, Tensor) and not torch.allclose(first, second)):
        return f"has the gradients {first} for a leaf and {second} for a result"
    if first == "refused":
        return None
    if case.call in WITHOUT and first is None:
        return None if NO_GRADIENT.search(case.doc) else "has no gradient, and its docstring does not say so"
    if not plain and not isinstance(result, (bool, ls.SparsityPattern)):
        return "has no result that could carry a graph: list it in WITHOUT"
    gradient, h = torch.zeros_like(t) if first is None else first, 1e-5
    ahead, behind = (total(case.f(make(start + s * v))) for s in (h, -h))
    expected, own = float((ahead - behind) / (2 * h)), float((gradient * v).sum())
    size = abs(expected) + float(gradient.norm() * v.norm())
    rounding = float(sum((a * b).abs().sum() for a, b in zip(w, plain, strict=True)))
    eps = 1e-3 if any(p.dtype == torch.float32 for p in plain) else 1e-13
    if abs(own - expected) > 1e-6 * size + eps / h * rounding:
        return f"has the derivative {own:.6g}, differences give {expected:.6g}"
    return None


def _direction(t: Tensor, pattern: ls.SparsityPattern | None, generator: torch.Generator) -> Tensor:
    """Relative; of a square matrix symmetric, so that a symmetric one remains it."""
    if pattern is None:
        return torch.rand(t.shape, dtype=F64, generator=generator) - 0.5
    D = torch.rand(*pattern.shape, dtype=F64, generator=generator) - 0.5
    return (D + D.T if D.shape[0] == D.shape[1] else D)[pattern.row_indices, pattern.col_indices]


CASES = {case.name: case for case in cases()}
