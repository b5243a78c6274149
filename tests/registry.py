"""Every public call with arguments that work, for tests of what all calls promise.

The calls are found through `__all__`, so that a new one is tested too. `NUMBERS` has what is passed for an
argument, by its name or, where one call needs another, by ``call.argument``; `WITH` what must be passed
beside it, and beside all arguments of a call.
"""

from __future__ import annotations

import inspect
import re
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import learnsolve as ls

F64 = torch.float64
P, S, N = ls.preconditioners, ls.solvers, ls.nonlinear
# Left out: records of results; base classes, settings, and readers of files.
RECORDS = {"ConvergenceWarning", "DelaunayGraph", "Eigenpairs", "Estimate", "Evaluation"}
RECORDS |= {"ExtremeEigenvalues", "Graph", "SingularTriplets"}
RECORDS |= {"IncompleteCholesky", "IncompleteLU", "Iteration", "MatrixProperties", "PROPERTIES"}
RECORDS |= {"Cholesky", "LDLT", "LU", "SignLogdet"}
RECORDS |= {"NetworkStart", "ProblemDataset", "Sample", "Solution", "SolverError", "Status"}
OTHERS = {"CSR.cuda", "CSR.from_scipy", "CSR.load", "CSR.requires_grad_", "LinearOperator"}
OTHERS |= {"Preconditioner", "Trainable"}
OTHERS |= {
    "FactorNetwork",
    "dataset",
    "load",
    "matrix_market",
    "planetoid",
    "profile",
    "set_options",
}


def random(*shape: int, seed: int = 0) -> Tensor:
    """Between 0.5 and 1.5."""
    return torch.rand(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed)) + 0.5


A = ls.problems.diffusion(random(4, 4))
PERIODIC = ls.problems.nodal_diffusion(random(4, 4), boundary="periodic")
HIERARCHY = P.AMG(A, max_coarse=4).hierarchy
(LINEAR,) = P.Hierarchy.linear((4, 4), periodic=True, levels=2).prolongations
MESH = ls.problems.random_mesh(16, seed=0)
VECTOR = random(16)
_TENSORS = 2 * torch.eye(2) + random(3, 3, 2, 2)
EDGES = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])


def cubic(u: Tensor, a: Tensor | float = 1.0) -> Tensor:
    """Of any length and dtype; its Jacobian is not symmetric."""
    return u + 0.1 * u**3 - 0.3 * u.roll(1) - a


def energy(u: Tensor) -> Tensor:
    return (u * cubic(u)).sum()


NUMBERS: dict[str, Any] = {
    "A": A,
    "B": A.tril(),
    "D": A.to_dense(),
    "E": random(A.nnz),
    "K": (_TENSORS + _TENSORS.mT) / 2,
    "L": A.tril(),
    "M": P.Diagonal(random(16)),
    "P": LINEAR,
    "R": LINEAR.T,
    "T": A.to_dense(),
    "U": random(16, 2),
    "V": random(16, 2, seed=1),
    "X": random(16),
    "a": random(16),
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
    "dt": 0.1,
    "e": random(A.nnz, 2),
    "edge_features": 2,
    "edge_index": EDGES,
    "edge_weight": random(4),
    "epsilon": 0.3,
    "exponent": 2.0,
    "f": cubic,
    "g": lambda u: u - 0.5 * cubic(u),
    "graph": A,
    "grid": (4, 4),
    "grounded": torch.tensor([True, False, False]),
    "hierarchy": HIERARCHY,
    "history": random(9).cumprod(0),
    "im": A,
    "in_features": 2,
    "interval": (0.5, 6.0),
    "iterations": 3,
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
    "re": A.tril(),
    "reaction": 0.4,
    "restrictions": [T.T for T in HIERARCHY.prolongations],
    "rho": random(len(MESH.triangles)),
    "rows": A.pattern.row_indices,
    "samples": [A, A],
    "seed": 0,
    "self": A,
    "shape": (4, 4),
    "shift": 0.3,
    "steps": 2,
    "theta": 0.5,
    "triangles": torch.tensor([[0, 1, 3], [1, 2, 3], [2, 0, 3]]),
    "u": random(16),
    "u0": random(16),
    "values": random(A.nnz),
    "weight": 0.3,
    "weights": random(4),
    "wind": random(2, 3, 3),
    "x": random(16),
    "x0": random(16),
    "Assembly.rows": A.pattern.row_indices // 2,  # of entries that repeat
    "Assembly.shape": (16, 16),
    "CSR.from_coo.shape": (16, 16),
    "FactorPreconditioner.U": A.triu(),
    "GCNConv().X": random(16, 2),
    "GraphNetBlock().x": random(16, 2),
    "Hierarchy.linear.shape": (5, 5),
    "SparsityPattern.shape": (16, 16),
    "MIC.omega": 0.7,
    "CG.null_space": "constants",
    "Polynomial.coefficients": random(3),
    "ResGCN().X": random(16, 2),
    "SparseDropout().X": A,
    "block.blocks": [[A, A.tril()]],
    "diag.d": random(4),
    "eigsh.B": ls.ops.diag(random(16)),
    "eigsh.k": 1,  # of a grid the second and the third are equal
    "hessian.f": energy,
    "galerkin.P": HIERARCHY.prolongations[0],
    "kron.A": ls.problems.poisson((2,)),
    "least_squares.r": cubic,
    "lstsq.weight": random(16),
    "krylov_samples.m": random(16, 3),
    "mic.omega": 0.7,
    "p1_stiffness.kappa": random(len(MESH.triangles)),
    "root.line_search": 0.7,
    "root, unrolled.line_search": 0.7,
    "spectral_radius.E": A,
    "stencil.x": random(4, 4),
    "svds.k": 1,
    "two_grid_symbols.A": PERIODIC,
    "two_grid_factor.A": PERIODIC,
}
_UNIT = A.tril(-1)
WITH: dict[str, dict[str, Any]] = {
    "AMG": {"hierarchy": HIERARCHY},  # otherwise chosen by the numbers of A, and held
    "BlockJacobi": {"block_size": 4},
    "Chebyshev": {"lmin": 0.5, "lmax": 6.0},  # estimates are constants
    "FactorPreconditioner.U": {"L": _UNIT},
    "Polynomial.chebyshev": {"lmin": 0.5, "lmax": 6.0},
    "FactorPreconditioner.shift": {"form": "product"},
    "GCNConv().edge_weight": {"A": EDGES, "X": random(3, 2)},
    "gcn_norm.edge_weight": {"A": EDGES},
    "heavyball.alpha": {"beta": 0.2},
    "heavyball.beta": {"alpha": 0.1},
    "null_space": {"A": PERIODIC, "b": random(16) - random(16).mean()},
    "two_grid_symbols": {"without_constants": True},
    "two_grid_factor": {"without_constants": True},
    "NeuralAMG": {"max_coarse": 2},
    "StencilFactor": {"diagonals": 5},
    "SparseDropout()": {"keep": torch.arange(A.nnz) % 3 > 0},
    "chebyshev, unrolled": {"lmin": 0.5, "lmax": 6.0},
    "heavyball, iterations": {"alpha": 0.1, "beta": 0.2},
    "heavyball, unrolled": {"alpha": 0.1, "beta": 0.2},
    "heavyball, unrolled.lmin": {"alpha": None, "beta": None, "lmax": 6.0},
    "heavyball, unrolled.lmax": {"alpha": None, "beta": None, "lmin": 0.5},
    "chebyshev, iterations": {"lmin": 0.5, "lmax": 6.0},
    "richardson, iterations": {"weight": 0.1},
    "real_equivalent": {"im": A.tril()},
    "richardson, unrolled": {"weight": 0.1},
    "richardson, unrolled.lmin": {"weight": None, "lmax": 6.0},
    "richardson, unrolled.lmax": {"weight": None, "lmin": 0.5},
}

# Other operands of a row, in a row of its own "name; sample": three columns; and, of what takes any matrix,
# one that is not symmetric, in incomplete factors with fill. Solvers that take an M get one, stationary
# methods parameters of each step or row, Krylov methods a stencil.
_COLUMNS = {name: random(16, 3, seed=3) for name in ("b", "r", "x", "x0", "X")}
_GENERAL = A.with_values(A.values * (1 + 0.2 * random(A.nnz, seed=4)))
_STENCIL = torch.tensor([[0, -1.0, 0], [-1, 5, -0.7], [0, -1.2, 0]], dtype=F64)
SAMPLES: dict[str, dict[str, Any]] = {
    "columns": {**_COLUMNS, "M": P.IC(A)},
    "general": {
        **_COLUMNS,
        "A": _GENERAL,
        "B": _GENERAL.triu(),
        "M": P.ILU(_GENERAL),
        "level": 1,
        **{f"{name}, iterations.M": None for name in ("chebyshev", "heavyball", "richardson")},  # compiled
        "jacobi, iterations.weight": random(3, 16),
        "richardson, iterations.weight": 0.1 * random(3, 16),
        "heavyball, iterations.alpha": 0.1 * random(16),
        "heavyball, iterations.beta": 0.2 * random(3),
        "chebyshev, iterations.lmin": 0.5 * random(3),
        "chebyshev, iterations.lmax": 6.0 * random(3, 1),
        "sor, iterations.omega": random(3),
        "ssor, iterations.omega": random(3),
    },
    "stencil": {"A": ls.ops.StencilOperator(_STENCIL, (4, 4))},
}
OF_ANY = ("bicgstab", "fgmres", "gmres")
SYMMETRIC = {"CG", "cg", "eigsh", "fcg", "logdet", "minres", "selected_inverse"}


def samples_of(call: str, function: Callable[..., Any]) -> Iterator[str]:
    given = beside(call, function)
    if call in OF_ANY:
        yield "stencil"
    if given.get("A") is A and plain_name(call) not in SYMMETRIC:
        yield "general"
    elif any(given[name].shape == (16,) for name in given.keys() & _COLUMNS.keys()):
        yield "columns"


def plain_name(call: str) -> str:
    return re.match(r"[\w.]*", call)[0]  # type: ignore[index]


# Behind f and its start: what a solve of f(u, a) is given before a.
OF_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "root": (cubic, random(16)),
    "fixed_point": (lambda u, a: u - 0.5 * cubic(u, a), random(16)),
    "least_squares": (lambda u, a: torch.cat([cubic(u, a), u - 1]), random(16)),
    "implicit_euler": (lambda u, a: -cubic(u, a), random(16), 2, 0.1),
    "trapezoidal": (lambda u, a: -cubic(u, a), random(16), 2, 0.1),
}


def of_arguments(solve: Callable[..., Any], given: tuple[Any, ...]) -> Callable[..., Any]:
    def call(a: Tensor) -> Any:
        return solve(*given, a, rtol=1e-13)

    call.__doc__ = solve.__doc__
    return call


# What does not go with a number of iterations; and weights from lmin and lmax.
TO_A_TOLERANCE = {"rtol", "atol", "btol", "maxiter", "adjoint_rtol", "adjoint_maxiter", "adjoint_M"}
TO_A_TOLERANCE |= {"callback", "throw", "gradient"}
STOPPING = ("cg", "fcg", "minres", "bicgstab", "gmres", "fgmres", "lsqr", "lsmr")


def of_iterations(name: str, solve: Callable[..., Any]) -> Callable[..., Any]:
    """x and the norms; of methods that stop a column that fails, what says so."""
    signature = inspect.signature(solve)
    left = TO_A_TOLERANCE | ({"lmin", "lmax"} if name != "chebyshev" else set())
    kept = [p for key, p in signature.parameters.items() if key not in left]

    def call(*args: Any, **given: Any) -> Any:
        solution = solve(*args, **{"iterations": 3, "gradient": "unrolled", **given})
        return solution if name in STOPPING else (solution.x, solution.residual_norms)

    call.__doc__ = solve.__doc__
    call.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    return call


def rows() -> Iterator[tuple[str, str, Callable[..., Any]]]:
    """`calls`, and those of operations, solvers and preconditioners with the operands of `SAMPLES`."""
    for group, name, call in calls():
        yield group, name, call
        if group in ("learnsolve", "ops", "solvers", "preconditioners"):
            yield from ((group, f"{name}; {sample}", call) for sample in samples_of(name, call))


def calls() -> Iterator[tuple[str, str, Callable[..., Any]]]:
    """Functions, constructors, methods of `CSR`, calls of modules; solvers also with unrolled gradients."""
    for module in (ls, ls.ops, S, P, P.learned, N, ls.problems, ls.nn, ls.analysis, ls.io):
        group = module.__name__.removeprefix("learnsolve.").partition(".")[0]
        for name in module.__all__:
            call = getattr(module, name)
            if name in RECORDS | OTHERS or not callable(call):
                continue
            yield group, name, call
            if not inspect.isclass(call):
                if module is N and name in OF_ARGUMENTS:
                    yield group, f"{name}, of a", of_arguments(call, OF_ARGUMENTS[name])
                if module is S and "iterations" in inspect.signature(call).parameters:
                    yield group, f"{name}, iterations", of_iterations(name, call)
                if (
                    name != "least_squares"
                    and {"gradient", "maxiter"} <= inspect.signature(call).parameters.keys()
                ):
                    yield group, f"{name}, unrolled", partial(call, gradient="unrolled", maxiter=4)
                continue
            for key, method in inspect.getmembers(call, callable):
                public = not key.startswith("_") and "learnsolve" in (getattr(method, "__module__", "") or "")
                made = inspect.ismethod(method) and method.__self__ is call
                if public and (made or call is ls.CSR) and f"{name}.{key}" not in OTHERS:
                    yield group, f"{name}.{key}", method
            if issubclass(call, torch.nn.Module):
                yield group, f"{name}()", call(**beside(name, call)).to(F64).forward
            elif call is ls.ops.Assembly:
                yield group, f"{name}()", call(**beside(name, call)).__call__


def number(call: str, argument: str, annotation: str = "") -> Any:
    default = 0.1 if "float" in annotation and "dtype" not in annotation else None
    call, _, sample = call.partition("; ")
    usual = SAMPLES[sample] if sample else {}
    own = f"{call}.{argument}"
    return usual.get(own, NUMBERS.get(own, usual.get(argument, NUMBERS.get(argument, default))))


def beside(call: str, function: Callable[..., Any], argument: str = "") -> dict[str, Any]:
    """What is passed beside the argument."""
    row, (call, _, sample) = call, call.partition("; ")
    parameters = inspect.signature(function).parameters
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    given = {
        name: number(row, name)
        for name, p in parameters.items()
        if (sample and name in ("M", "level")) or (p.default is p.empty and p.kind not in variable)
    }
    if "gradient" in parameters and "maxiter" in parameters and "," not in call:  # a solver
        exact = {"rtol": 1e-13, "btol": 1e-13, "maxiter": 2000, "atol": 1e-14}
        given |= {key: exact[key] for key in exact.keys() & parameters.keys()}
    for key in (argument, call, f"{call}.{argument}"):
        given |= {name: value for name, value in WITH.get(key, {}).items() if name in parameters}
    return given


def called(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    arguments = dict(arguments)
    if "parameters" in arguments:  # of an A that is a function

        def scaled(x: Tensor) -> Tensor:
            d = arguments["parameters"][0]
            return d * x if x.dim() == d.dim() else d.unsqueeze(-1) * x

        arguments["A"] = scaled
        if "transpose" in inspect.signature(function).parameters:
            arguments["transpose"] = arguments["A"]
    if isinstance(arguments.get("T"), Tensor):
        arguments["T"] = arguments["T"].to_sparse_csr()
    if "self" in arguments:
        return function(arguments.pop("self"), **arguments)
    return function(**arguments)


def outputs(result: Any) -> list[Tensor]:
    """The numbers of a result; of a function or a module those that it gives."""
    if isinstance(result, Tensor):
        result = torch.view_as_real(result.to_dense()) if result.is_complex() else result
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
        arguments = {"A": A, "b": VECTOR, "r": VECTOR}
        taken = inspect.signature(result.forward).parameters
        if any(p.is_floating_point() and p.dtype != F64 for p in result.parameters()):
            result = result.to(F64)
        return outputs(result(*(arguments[name] for name in taken if name in arguments)))
    if isinstance(result, ls.ops.StencilOperator):
        return [result @ VECTOR.to(result.dtype)]
    if isinstance(result, ls.ops.Assembly):
        return outputs(result(random(result.places.shape[1])))
    if isinstance(result, ls.SparsityPattern) or not callable(result):
        return []
    dtype = getattr(result, "dtype", F64)  # SciPy's operators have one of NumPy
    return outputs(result(VECTOR.to(dtype if isinstance(dtype, torch.dtype) else F64)))
