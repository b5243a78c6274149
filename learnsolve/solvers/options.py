"""The keywords that solvers share: their names, types and descriptions, and when solves on a device are
checked."""

import inspect
import re
import textwrap
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, ParamSpec, TypedDict, TypeVar

from torch import Tensor

from learnsolve.matrix.checks import convert_matrix, integer, keywords
from learnsolve.solvers.solution import Iteration

P = ParamSpec("P")
T = TypeVar("T")
SOLVERS: dict[str, Callable[..., Any]] = {}  # by name, for graphs
_KINDS: dict[str, object] = {}  # of their options
# Solvers for a square A with M: `compare_preconditioners` and graphs take them by name. Other keywords:
# graph.Call.
KRYLOV = ("cg", "fcg", "minres", "bicgstab", "gmres", "fgmres")


class SweepOptions(TypedDict, total=False):
    """Options of `sor` and its variants."""

    rtol: float | None
    atol: float | None
    maxiter: int | None
    callback: Callable[[Iteration], object] | None
    gradient: str | None
    throw: bool
    adjoint_rtol: float | None
    adjoint_maxiter: int | None


class LeastSquaresOptions(TypedDict, total=False):
    """Options of `lsqr` and `lsmr`."""

    maxiter: int | None
    iterations: int | None
    callback: Callable[[Iteration], object] | None
    gradient: str
    throw: bool
    adjoint_rtol: float | None
    adjoint_maxiter: int | None
    transpose: Callable[[Tensor], Tensor] | None
    parameters: tuple[Tensor, ...]


class SymmetricOptions(TypedDict, total=False):
    """Options of `cg`, `fcg` and `minres`."""

    rtol: float | None
    atol: float | None
    maxiter: int | None
    iterations: int | None
    M: Any
    callback: Callable[[Iteration], object] | None
    gradient: str
    throw: bool
    adjoint_rtol: float | None
    adjoint_maxiter: int | None
    parameters: tuple[Tensor, ...]
    null_space: object


class SolverOptions(SymmetricOptions, total=False):
    """Options of `bicgstab`, `gmres` and `fgmres`."""

    adjoint_M: object
    transpose: Callable[[Tensor], Tensor] | None


class StationaryOptions(SweepOptions, total=False):
    """Options of `richardson`, `heavyball` and `chebyshev`."""

    M: Any
    adjoint_M: object
    transpose: Callable[[Tensor], Tensor] | None
    parameters: tuple[Tensor, ...]


MEANING = {
    "rtol, atol": r"""the tolerance: a column stops when
        :math:`\|b - A x\| \le \max(\mathtt{rtol} \|b\|, \mathtt{atol})`. None: 1e-5 and 0""",
    "maxiter": "int, 10 n if not given",
    "iterations": """int >= 0: run exactly this number of iterations, unless a column fails. Excludes the
        tolerances and maxiter. gradient="unrolled" differentiates what ran. MAX_ITERATIONS is then not a
        failure, also for throw""",
    "M": "an approximation of A^-1, linear: callable r -> M r, CSR or LinearOperator",
    "callback": "called after every iteration with an `Iteration`. Returning True stops the solve",
    "gradient": """"implicit", one adjoint solve at the solution, for A and b; "unrolled", the exact gradient
        of the iterations that ran, for all inputs that require grad, M and x0 included, and of
        `residual_norms`; "checkpointed", the same values in O(sqrt(iterations)) memory""",
    "throw": "raise `SolverError` if a solve or its adjoint solve did not converge",
    "adjoint_rtol, adjoint_maxiter": "of the adjoint solve. Default: rtol and maxiter",
    "adjoint_M": "preconditioner of the adjoint solve with A^T, for gradient='implicit'. Default: M.T",
    "transpose": "callable x -> A^T x, needed to differentiate a callable A with gradient='implicit'",
    "parameters": "tensors used by a callable A that require grad, for gradient='implicit'",
    "null_space": """of a singular A: "constants", on each connected component of A's graph (graph Laplacians,
        Neumann and periodic boundaries), or a Tensor (n, k), with A's batch axes if it has any, of k linearly
        independent vectors. For a `BlockBatch` its rows are null vectors of each block. x is then
        :math:`A^+ b`, of minimum norm, and the component of b along the null vectors is dropped. If the null
        spaces of A and A^T differ, a pair of them""",
}

ITERATIONS = {  # of methods that also run a fixed number of steps
    "iterations": """int >= 0: run exactly this number of steps, for every b. Excludes rtol, atol, maxiter
        and adjoint_*. If not given, run until the tolerance is met""",
    "gradient": """with `iterations`: "unrolled" (default), the exact gradient of the steps that ran, for all
        inputs that require grad and of `residual_norms`, or "checkpointed", the same values in
        O(sqrt(iterations)) memory. To a tolerance also "implicit" (default), one adjoint solve at the
        solution, for A and b""",
    "throw": """raise `SolverError` if a solve or its adjoint solve did not converge, or,
        with `iterations`, if it diverged""",
}
MODULE = {  # of modules with trainable parameters
    "iterations": "int >= 0, the number of steps",
    "M": "as for the function. The parameters of a torch.nn.Module become parameters of this module",
    "gradient": """"unrolled", the exact gradient of the steps; "checkpointed", the same numbers in
        O(sqrt(iterations)) memory""",
}
# Sections for docstrings that do not have them.
OF_SOLVERS = """
    Returns
    -------
    Solution

    Raises
    ------
    ValueError
        if shapes or values are wrong, keywords exclude one another, or a tensor without an implicit gradient
        requires grad with gradient="implicit".
    TypeError
        if a type, dtype or device is wrong.
"""
OF_THROW = """    SolverError
        if `throw` and a solve failed.
"""
OF_MODULES = """
    Raises
    ------
    ValueError
        if an initial value requires grad, or a value is invalid.
    TypeError
        if a type or dtype is wrong.

    Notes
    -----
    Initial values are floats or floating-point Tensors of any shape that the function accepts. A float
    becomes a parameter of torch's default dtype. Call ``.double()`` for float64 matrices.
"""


def solver(kind: object, **defaults: object) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a solver whose `**options` are of this kind: list them in its signature, with `defaults` where
    they differ from `Options`, and document those that its docstring does not describe."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        SOLVERS[function.__name__], _KINDS[function.__name__] = function, kind
        signature, keyword = inspect.signature(function), inspect.Parameter.KEYWORD_ONLY
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        default = {field.name: field.default for field in fields(Options)} | defaults
        shared = [
            inspect.Parameter(key, keyword, default=default[key], annotation=kind.__annotations__[key])
            for key in kind.__annotations__
        ]
        function.__signature__ = signature.replace(parameters=[*own, *shared])  # type: ignore[attr-defined]
        keys = [p.name for p in own if p.kind is keyword] + list(kind.__annotations__)
        steps = "iterations" in signature.parameters
        meanings = {"iterations": ""} | MEANING | ITERATIONS if steps else MEANING
        function.__doc__ = describe_options(function.__doc__ or "", keys, meanings, OF_SOLVERS + OF_THROW)
        return function

    return decorate


def smoother(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a solver for a fixed number of steps, without shared `**options`."""
    keys = inspect.signature(function).parameters
    function.__doc__ = describe_options(function.__doc__ or "", keys, MODULE, OF_SOLVERS)
    return function


def describe_options(text: str, keys: Collection[str], meanings: Mapping[str, str], sections: str) -> str:
    """The docstring with its `options` line replaced by the `meanings` of the keys that it does not describe
    itself, and with the `sections` that it does not have."""
    own = set(re.findall(r"\w+", " ".join(re.findall(r"^    ([\w, ]+?) :", text, re.MULTILINE))))
    lines = ""
    for names, meaning in meanings.items():
        left = [name for name in names.split(", ") if name in keys and name not in own]
        if left:
            lines += (
                textwrap.fill(
                    f"{', '.join(left)} : {' '.join(meaning.split())}",
                    110,
                    initial_indent="    ",
                    subsequent_indent="        ",
                    break_long_words=False,
                )
                + "\n"
            )
    if "\n    Raises\n" not in text:
        lines += sections
    return re.sub(r"^    options : .*\n", lambda _: lines, text, flags=re.MULTILINE)


@dataclass(eq=False)
class Options:
    """The keywords of a call, by any solver."""

    rtol: Any = 1e-5  # a float; None, here and for atol: the default
    atol: Any = 0.0
    maxiter: int | None = None
    iterations: int | None = None
    M: Any = None
    callback: Callable | None = None
    gradient: str = "implicit"
    throw: bool = False
    adjoint_rtol: float | None = None
    adjoint_maxiter: int | None = None
    adjoint_M: Any = None
    transpose: Callable | None = None
    parameters: tuple[Tensor, ...] = ()
    null_space: Any = None

    def __post_init__(self):
        self.rtol = 1e-5 if self.rtol is None else self.rtol
        self.atol = 0.0 if self.atol is None else self.atol
        self.M = None if self.M is None else convert_matrix(self.M)
        self.adjoint_M = None if self.adjoint_M is None else convert_matrix(self.adjoint_M)


def read_options(name: str, arguments: Mapping[str, Any], **others: tuple[Any, float]) -> Options:
    """`**options` of the solver `name`, checked for unknown keywords; `others` as in `fix_iterations`."""
    keywords(name, arguments, _KINDS[name].__annotations__)
    return fix_iterations(name, Options(**arguments), **others)


BESIDE_ITERATIONS = "{key} must not be passed with iterations, which all run. Remove one"


def fix_iterations(name: str, options: Options, **others: tuple[object, float]) -> Options:
    """These new options of a call, in which a number of `iterations` becomes a limit without a tolerance.
    `others`: more tolerances of the call, with their defaults."""
    if options.iterations is None:
        return options
    iterations = integer(name, "iterations", options.iterations, 0)
    given = {"rtol": (options.rtol, 1e-5), "atol": (options.atol, 0.0), "maxiter": (options.maxiter, None)}
    for key, (value, default) in (given | others).items():
        if value is not None and (isinstance(value, Tensor) or value != default):
            raise ValueError(f"{name}: {BESIDE_ITERATIONS.format(key=key)}")
    options.rtol, options.atol, options.maxiter = 0.0, 0.0, iterations
    return options


# When the host checks a solve to a tolerance on a device. A check waits for the device, which then waits for
# the host to launch the next iteration. Between two checks, columns that seem done do not move: a late check
# costs only the iterations after the last column stopped, which are not part of a graph.
_every: int | None = None  # None: see `_limit_gap`
# A short solve may have a costly M; a long one must not be slowed down. Not measured.
_SHARE, _LONGEST = 8, 32


def swap_check_every(iterations: int | None) -> int | None:
    """Set the interval, for solves that begin later, and return the previous one."""
    global _every
    before, _every = _every, iterations
    return before


def check_every() -> int | None:
    return _every


def gaps() -> Callable[[int], int]:
    """The number of iterations to the next check, as a function of the iterations so far."""
    every = _every
    return _limit_gap if every is None else lambda done: every


def _limit_gap(done: int) -> int:
    return min(max(1, done // _SHARE), _LONGEST)
