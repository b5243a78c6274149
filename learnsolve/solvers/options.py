"""The keywords that solvers share: named, typed and described once."""

import inspect
import re
import textwrap
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, ParamSpec, TypedDict, TypeVar

from torch import Tensor

from learnsolve.matrix.inputs import matrix
from learnsolve.solvers.solution import Iteration

P = ParamSpec("P")
T = TypeVar("T")
SOLVERS: dict[str, Callable[..., Any]] = {}  # by name, for graphs
_KINDS: dict[str, Any] = {}  # of their options
# Of a square A, with M: `evaluate` and graphs take them by name. Keywords of a method's own: graph.Call.
KRYLOV = ("cg", "fcg", "minres", "bicgstab", "gmres", "fgmres")


class SweepOptions(TypedDict, total=False):
    """Of `sor` and its variants."""

    rtol: float | None
    atol: float | None
    maxiter: int | None
    callback: Callable[[Iteration], Any] | None
    gradient: str | None
    throw: bool
    adjoint_rtol: float | None
    adjoint_maxiter: int | None


class LeastSquaresOptions(TypedDict, total=False):
    """Of `lsqr` and `lsmr`."""

    maxiter: int | None
    callback: Callable[[Iteration], Any] | None
    gradient: str
    throw: bool
    adjoint_rtol: float | None
    adjoint_maxiter: int | None
    transpose: Callable[[Tensor], Tensor] | None
    parameters: tuple[Tensor, ...]


class SymmetricOptions(TypedDict, total=False):
    """Of `cg`, `fcg` and `minres`."""

    rtol: float | None
    atol: float | None
    maxiter: int | None
    M: Any
    callback: Callable[[Iteration], Any] | None
    gradient: str
    throw: bool
    adjoint_rtol: float | None
    adjoint_maxiter: int | None
    parameters: tuple[Tensor, ...]
    null_space: Any


class SolverOptions(SymmetricOptions, total=False):
    """Of `bicgstab`, `gmres` and `fgmres`."""

    adjoint_M: Any
    transpose: Callable[[Tensor], Tensor] | None


class StationaryOptions(SweepOptions, total=False):
    """Of `richardson`, `heavyball` and `chebyshev`."""

    M: Any
    adjoint_M: Any
    transpose: Callable[[Tensor], Tensor] | None
    parameters: tuple[Tensor, ...]


MEANING = {
    "rtol, atol": r"""the tolerance: a column stops when
        :math:`\|b - A x\| \le \max(\mathtt{rtol} \|b\|, \mathtt{atol})`; None: 1e-5 and 0""",
    "maxiter": "int, 10 n if not given",
    "M": "an approximation of A^-1, linear: callable r -> M r, CSR or LinearOperator",
    "callback": "called after every iteration with an `Iteration`; returning True stops",
    "gradient": """"implicit", one adjoint solve at the solution, for A and b; "unrolled", the exact gradient
        of the iterations that ran, for all that requires grad, M and x0 too, and of `residual_norms`;
        "checkpointed", the same numbers in O(sqrt(iterations)) memory""",
    "throw": "raise `SolverError` where a solve or its adjoint did not converge",
    "adjoint_rtol, adjoint_maxiter": "of the adjoint solve; rtol and maxiter if not given",
    "adjoint_M": "of the adjoint solve with A^T, gradient='implicit'; the transpose of M (M.T) if not given",
    "transpose": "callable x -> A^T x, if A is a callable and gradient='implicit' is to be differentiated",
    "parameters": """tensors that a callable A computes with and that require grad (gradient="implicit")""",
    "null_space": """of a singular A: "constants", on each connected component of A's graph (graph Laplacians,
        Neumann and periodic boundaries); or a Tensor (n, k), of A's batch axes if it has some, of k linearly
        independent vectors; of a `BlockBatch` its rows are null vectors of each block. x is then
        :math:`A^+ b`, of minimum norm, and the component of b along them is left out. Where A and A^T have
        different ones, a pair of them""",
}

ITERATIONS = {  # of methods that also run a fixed number of steps
    "iterations": """int >= 0: run exactly this number of steps, whatever b is; excludes rtol, atol, maxiter
        and adjoint_*. If not given, steps run to the tolerance""",
    "gradient": """with `iterations` "unrolled" (if not given), the exact gradient of the steps that ran, for
        all that requires grad and of `residual_norms`, or "checkpointed", the same numbers in
        O(sqrt(iterations)) memory; without also "implicit" (if not given), one adjoint solve at the solution,
        for A and b""",
    "throw": """raise `SolverError` where a solve or its adjoint did not converge; with `iterations`, where it
        diverged""",
}
MODULE = {  # of modules with trainable parameters
    "iterations": "int >= 0, the number of steps",
    "M": "as for the function; the parameters of a torch.nn.Module are then those of this module",
    "gradient": """"unrolled", the exact gradient of the steps; "checkpointed", the same numbers in
        O(sqrt(iterations)) memory""",
}
# The sections of a docstring that does not have its own.
OF_SOLVERS = """
    Returns
    -------
    Solution

    Raises
    ------
    ValueError
        if shapes or values do not fit, keywords exclude one another, or something requires grad that
        gradient="implicit" has no gradient for.
    TypeError
        if types, dtypes or devices do not fit.
"""
OF_THROW = """    SolverError
        if `throw` and a solve failed.
"""
OF_MODULES = """
    Raises
    ------
    ValueError
        if an initial value requires grad, or a value does not fit.
    TypeError
        if a type or dtype does not fit.

    Notes
    -----
    Initial values are numbers or floating-point Tensors of any shape that the function takes. A number
    becomes a parameter of torch's default dtype; ``.double()`` for float64 matrices.
"""


def solver(kind: Any, **defaults: Any) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A solver whose `**options` are of this kind: its signature lists them, with `defaults` where they
    differ from `Options`, and its docstring says what they mean where it does not do so itself."""

    def decorated(function: Callable[P, T]) -> Callable[P, T]:
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
        meanings = {"iterations": ""} | MEANING | ITERATIONS if "iterations" in keys else MEANING
        function.__doc__ = described(function.__doc__ or "", keys, meanings, OF_SOLVERS + OF_THROW)
        return function

    return decorated


def smoother(function: Callable[P, T]) -> Callable[P, T]:
    """A solver for a fixed number of steps without shared `**options`."""
    keys = inspect.signature(function).parameters
    function.__doc__ = described(function.__doc__ or "", keys, MODULE, OF_SOLVERS)
    return function


def described(text: str, keys: Collection[str], meanings: Mapping[str, str], sections: str) -> str:
    """The docstring with the line of its `options` replaced by the `meanings` of those of these keys that it
    does not describe itself, and by the `sections`, unless it has its own."""
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

    rtol: Any = 1e-5  # a number; None, for this and the next: the default
    atol: Any = 0.0
    maxiter: int | None = None
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
        self.M = None if self.M is None else matrix(self.M)
        self.adjoint_M = None if self.adjoint_M is None else matrix(self.adjoint_M)


def options_of(name: str, arguments: Mapping[str, Any]) -> Options:
    """`**options` of the solver `name`, checked for keywords that it does not have."""
    keys = _KINDS[name].__annotations__
    for key in arguments:
        if key not in keys:
            similar = get_close_matches(key, keys, 1)
            hint = f"; did you mean {similar[0]}?" if similar else f"; it takes {', '.join(keys)}"
            raise TypeError(f"{name}() got an unexpected keyword argument {key!r}{hint}")
    return Options(**arguments)
