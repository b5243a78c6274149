"""A module made from any preconditioner that is computed from tensors. Some of them are its parameters.
Modules are saved as safetensors with class and settings in the header, and loading one runs no code.

Sources: Nytko et al., "Optimized Sparse Matrix Operations for Reverse Mode Automatic Differentiation", arXiv
2212.05159, section 4 (factors, cycles); Greenfeld, Galun, Basri, Yavneh, Kimmel, "Learning to optimize
multigrid PDE solvers", ICML 2019; A. Katrutsa, T. Daulbaev, I. Oseledets, "Deep multigrid: learning
prolongation and restriction matrices", arXiv 1711.03825.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from torch import Tensor

from learnsolve.matrix import checks, convert
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.nn.modules import HoldsPattern, _difference, parameter
from learnsolve.ops.indexing import permute_values
from learnsolve.preconditioners.base import Part, Preconditioner, check_constants, finite
from learnsolve.preconditioners.factors import FactorPreconditioner, check_has_diagonal
from learnsolve.preconditioners.relaxation import Diagonal

DTYPES = {"float32": torch.float32, "float64": torch.float64}


class SavedModule(torch.nn.Module):
    """Base of modules that `preconditioners.load` reads, by the name of their class. A subclass has

    settings()              arguments of its constructor, for JSON, that make one with the same state dict;
                            a dtype by its name, "float64"
    _made(settings, tensors)    only if it is not ``cls(**settings)``: for a module whose size is in the file
    """

    def settings(self) -> dict[str, Any]:
        raise NotImplementedError(f"{type(self).__name__} must define settings")

    @classmethod
    def _made(cls, settings: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        """A module with these settings. Its tensors are replaced later, so they need no memory."""
        with torch.device("meta"):
            return cls(**settings)

    def header(self) -> dict[str, str]:
        """The metadata of the file: class and settings."""
        about = {"format": 1, "network": type(self).__name__, "settings": self.settings()}
        if (dtype := about["settings"].get("dtype", "float64")) not in DTYPES:
            raise TypeError(f"save: the weights must be float32 or float64, got {dtype}. Call .float()")
        return {"learnsolve": json.dumps(about)}

    def save(self, path: str | Path) -> None:
        """Write weights and settings to a safetensors file for `preconditioners.load`. An existing file is
        replaced atomically."""
        convert.write_tensors("save", path, self.state_dict(), self.header())


def load(
    path: str | Path, *, M: Preconditioner | None = None, device: torch.device | str = "cpu"
) -> SavedModule:
    """Read a network A -> M, or another module saved by its `save`, such as a `Trainable`, from its file.

    Parameters
    ----------
    path : model.safetensors of a run of `learnsolve.train`, or a file written by ``network.save(path)``
    M : for a `Trainable`, which is saved without its matrix: the preconditioner inside it, such as
        ``Jacobi(A)`` or ``Polynomial(A, [1.0])``, with as many coefficients as trained. Not for factors
    device : of the weights

    Returns
    -------
    The saved module, such as a `PreCorrector` or `NeuralIF`. Its weights do not require grad, so that
    ``M=network(A)`` works in any solver. Call ``network.requires_grad_(True)`` to train it further.

    Raises
    ------
    ValueError
        if the file is damaged, needs an M or does not use it, holds something else, was written by a later
        version, or has weights that are not finite or do not match its settings.
    OSError
        if the file cannot be read.
    ImportError
        without safetensors (``pip install 'learnsolve[train]'``).

    Notes
    -----
    The file holds only tensors and strings: reading it runs no code.

    Examples
    --------
    >>> import tempfile, torch, learnsolve as ls
    >>> network, path = ls.preconditioners.PreCorrector(rounds=2), f"{tempfile.mkdtemp()}/network.safetensors"
    >>> network.save(path)
    >>> again = ls.preconditioners.load(path)
    >>> A, b = ls.problems.poisson((20, 20)), torch.ones(400, dtype=torch.float64)
    >>> ls.solvers.cg(A, b, M=again(A)).converged
    True
    """
    other = "it is not the file of a network. Pass model.safetensors of a run"
    tensors, header = convert.read_tensors("load", path)
    about = header.get("learnsolve")
    if about is None:
        raise ValueError(f"load: {path} has no settings of a network, {other}")
    network = _made(path, about, tensors, other, M)
    if (fault := _misfit(network.state_dict(), tensors)) is not None:
        raise ValueError(f"load: {path} does not fit its settings, {fault}")
    for name, found in tensors.items():
        if not bool(found.isfinite().all()):
            raise ValueError(f"load: {path} has weights that are not finite, in {name}. Train it again")
    network.load_state_dict(tensors, assign=True)
    return network.to(device).requires_grad_(False)


def _made(
    path: str | Path, about: str, tensors: dict[str, Tensor], other: str, M: Preconditioner | None
) -> SavedModule:
    """The module with these settings."""
    try:
        facts = json.loads(about)
        made_by, kind, settings = facts["format"], facts["network"], dict(facts["settings"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"load: the settings in {path} are damaged ({error!r})") from error
    if made_by != 1:
        raise ValueError(
            f"load: {path} has format {made_by!r}, this version reads format 1. Update learnsolve"
        )
    classes = _subclasses(SavedModule)
    if not isinstance(kind, str) or kind not in classes:
        raise ValueError(f"load: {path} is of {kind!r}, known are {', '.join(sorted(classes))}. {other}")
    start = settings.get("start")
    if M is None and isinstance(start, dict) and start.get("complete") is False:
        raise ValueError(
            f"load: {path} has the parameters of a {start.get('M')}, and not its matrix. Pass M=, such as "
            "M=Jacobi(A)"
        )
    if M is not None and kind != "Trainable":
        raise ValueError(f"load: M= is for a Trainable, and {path} is of a {kind}. Remove it")
    try:
        if "dtype" in settings:
            settings["dtype"] = DTYPES[settings["dtype"]]
        return classes[kind]._made(settings, tensors, **({} if M is None else {"M": M}))
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        if M is not None:
            raise ValueError(f"load: {path} does not fit M ({error})") from error
        raise ValueError(f"load: the settings in {path} are damaged ({error})") from error


def _subclasses(kind: type[SavedModule]) -> dict[str, type[SavedModule]]:
    """By name. Of several with the same name, the one defined last."""
    found: dict[str, type[SavedModule]] = {}
    for below in kind.__subclasses__():
        found |= {below.__name__: below} | _subclasses(below)
    return found


def _misfit(wanted: dict[str, Tensor], tensors: dict[str, Tensor]) -> str | None:
    """Why these tensors cannot be the state of a module, or None. Patterns first, which explain sizes."""
    names = sorted(wanted.keys() | tensors.keys())
    for name in sorted(names, key=lambda name: not name.endswith("_indices")):
        found, expected = tensors.get(name), wanted.get(name)
        if found is None or expected is None:
            return f"{name} {'is missing' if found is None else 'has no place in the module'}"
        pattern = name.endswith("_indices") and not expected.is_meta
        if pattern and (fault := _difference(found, expected)) is not None:
            return f"the pattern is another, {name} {fault}"
        if found.shape != expected.shape or found.dtype != expected.dtype:
            return (
                f"{name} has shape {tuple(found.shape)} and {found.dtype}, expected {tuple(expected.shape)} "
                f"and {expected.dtype}"
            )
    return None


# The tensors of a preconditioner as parameters, one module each; calling it returns the current tensor.
#
# The names in the state dict show the map to positive values: ``values`` are the values themselves,
# ``log_values`` their logarithms, ``raw_values`` their inverse softplus; likewise for ``diagonal``.


PREFIX = {None: "", "exp": "log_", "softplus": "raw_"}
How = Literal["exp", "softplus"]
INSTEAD = "use M itself, which stays attached to the autograd graph"


def positive(raw: Tensor, how: str | None) -> Tensor:
    """The values that a parameter represents: positive, unless `how` is None."""
    if how is None:
        return raw
    info = torch.finfo(raw.dtype)  # for large |raw| an exponential rounds to 0 or overflows
    return (raw.exp() if how == "exp" else torch.nn.functional.softplus(raw)).clamp(info.tiny, info.max)


def _raw(value: Tensor, how: str | None) -> Tensor:
    """The parameter that represents `value`."""
    if how is None:
        return value
    # log(e^v - 1), without overflow for large v or cancellation for small ones
    return value.log() if how == "exp" else value + (-torch.expm1(-value)).log()


def wrap_parameter(name: str, part: Part, how: str | None, learned: bool) -> torch.nn.Module:
    """The module of a part with this name, or a list with one module per item of a sequence."""
    value, how = part.value, how if part.positive else None
    if isinstance(value, (list, tuple)):
        items = (
            wrap_parameter(f"{name}[{i}]", part._replace(value=v), how, learned) for i, v in enumerate(value)
        )
        return torch.nn.ModuleList(items)
    if isinstance(value, CSR):
        return MatrixValues("Trainable", name, value, how, part.positive == "absolute diagonal")
    return TensorValues(name, value, how, learned)


def current(module: Any) -> Any:
    """The tensor or matrix, or a list of them, for the current parameters."""
    # Call `forward` directly: the overhead of Module's `__call__` matters in small solves.
    return [m.forward() for m in module] if isinstance(module, torch.nn.ModuleList) else module.forward()


def _check_start(function: str, name: str, value: Tensor, instead: str) -> None:
    """`value` must be finite and must not require grad, since a parameter would cut the autograd graph."""
    checks.dtype(function, name, value)
    checks.start(function, name, value, instead)
    finite(function, name, value)


class TensorValues(torch.nn.Module):
    """A tensor. All entries are positive if `how` is not None."""

    def __init__(self, name: str, start: Tensor, how: str | None, learned: bool):
        super().__init__()
        _check_start("Trainable", name, start, INSTEAD)
        if how is not None and not bool((start > 0).all()):
            raise ValueError(
                f"Trainable: {name} must be positive for positive={how!r}, the smallest is "
                f"{float(start.min()):.6g}. Use positive=None"
            )
        self.how, self.key = how, f"{PREFIX[how]}values"
        value = parameter(_raw(start, how))
        if learned:
            self.register_parameter(self.key, value)
        else:
            self.register_buffer(self.key, value.detach())

    def forward(self) -> Tensor:
        return positive(getattr(self, self.key), self.how)


def _plan_split(P: SparsityPattern) -> tuple[Tensor, Tensor]:
    """The entries off the diagonal and then those on it, and the place of each entry in this order."""
    split = (P.row_indices == P.col_indices).to(torch.uint8).argsort(stable=True)
    return split, split.argsort()


class MatrixValues(HoldsPattern):
    """A matrix with parameters `values`, or, if `how` is not None, with a positive diagonal or, if `signed`,
    a diagonal with fixed signs, from `off_diagonal` and `log_diagonal` or `raw_diagonal`."""

    sign: Tensor
    instead = INSTEAD

    def __init__(self, function: str, name: str, start: CSR, how: str | None, signed: bool = False):
        super().__init__()
        _check_start(function, f"{name}.values", start.values, self.instead)
        self._hold(start.pattern)
        self.how, self.key, self.signed = how, f"{PREFIX[how]}diagonal", signed
        if how is None:
            self.values = parameter(start.values)
            return
        checks.square(function, name, start.shape)
        check_has_diagonal(function, name, start)
        split, _ = start.pattern._plan_once(_plan_split)
        off, diagonal = start.values.detach()[..., split].tensor_split((-start.shape[0],), -1)
        size = diagonal.abs() if signed else diagonal
        # The solve divides by the diagonal, and the reciprocal of a subnormal number overflows.
        bad = ~(size >= torch.finfo(size.dtype).tiny)
        if bad.any():
            at = tuple(bad.nonzero()[0].tolist())
            rule = "without zeros" if signed else "positive"
            raise ValueError(
                f"{function}: the diagonal of {name} must be {rule}, row {at[-1]} has "
                f"{diagonal[at].item():.6g}. Shift it, or change the sign of that column"
            )
        self.off_diagonal = parameter(off)
        self.register_parameter(self.key, parameter(_raw(size, how)))
        if signed:
            self.register_buffer("sign", diagonal.sign())

    def matrix(self) -> CSR:
        """The matrix, as a differentiable function of the parameters."""
        if self.how is None:
            return CSR(self.values, self.pattern)
        d = positive(getattr(self, self.key), self.how)
        split, join = self.pattern._plan_once(_plan_split)
        values = torch.cat((self.off_diagonal, self.sign * d if self.signed else d), -1)
        return CSR(permute_values(values, join, split), self.pattern)

    forward = matrix

    def extra_repr(self) -> str:
        return f"{self.pattern.shape}, nnz={self.pattern.nnz}, positive={self.how!r}"


def read_settings(module: Trainable) -> dict[str, Any]:
    """Settings for JSON; "complete" if `made` needs only these and the tensors of the file."""
    M: Any = module.M
    complete = not module._keeps_tensors and isinstance(M, (Diagonal, FactorPreconditioner))
    settings: dict[str, Any] = {"M": type(M).__name__, "complete": complete}
    if complete and isinstance(M, FactorPreconditioner):
        columns = module.L.pattern.shape[1]
        settings |= {"form": M.form, "columns": columns, "shift": M.shift}
    return settings


def made(settings: dict[str, Any], tensors: dict[str, Tensor]) -> Preconditioner:
    """A preconditioner with these patterns. Its values are replaced later."""
    if settings["M"] == "Diagonal":
        (d,) = tensors.values()
        return Diagonal(torch.ones_like(d))
    columns, shift = settings["columns"], settings["shift"]
    rows = len(tensors["L.crow_indices"]) - 1
    L = _matrix(tensors, "L", (rows, columns))
    U = _matrix(tensors, "U", (columns, rows)) if "U.crow_indices" in tensors else None
    if shift is None:
        (shift,) = (torch.ones_like(t) for name, t in tensors.items() if name.startswith("shift."))
    return FactorPreconditioner(L, U, form=settings["form"], shift=shift)


def _matrix(tensors: dict[str, Tensor], name: str, shape: tuple[int, int]) -> CSR:
    """A matrix on the saved pattern, with ones on the diagonal."""
    pattern = SparsityPattern(tensors[f"{name}.crow_indices"], tensors[f"{name}.col_indices"], shape)
    split = f"{name}.off_diagonal" in tensors
    values = tensors[f"{name}.off_diagonal" if split else f"{name}.values"]
    if values.shape[-1] != pattern.nnz - (shape[0] if split else 0):
        raise ValueError(f"{name} has {values.shape[-1]} numbers for {pattern.nnz} entries")
    ones = (pattern.row_indices == pattern.col_indices).to(values.dtype)
    return CSR(ones.expand(*values.shape[:-1], -1), pattern)


class _ReadyModule(SavedModule):
    """A module before its `__init__`, so that subclasses need not call `super().__init__()`."""

    def __new__(cls, *_: object, **__: object) -> Self:
        M = super().__new__(cls)
        torch.nn.Module.__init__(M)
        return M


class Trainable(_ReadyModule, Preconditioner):
    """A preconditioner with parameters: tensors of M, or of a subclass. Solvers compute their gradient with
    gradient="unrolled" or "checkpointed". Table of names and defaults: docs/preconditioners.md.

    Parameters
    ----------
    M : Preconditioner, the start of the training. Tensors that are not learned stay fixed
    learn : names of tensors of M, such as ("L",) for factors, ("coefficients",) for `Polynomial`
    positive : None, or "exp" or "softplus": the parameters are the logarithms, or inverse softplus, of the
        diagonals of factors (U keeps its signs) and of all entries of d, weights, coefficients

    Attributes
    ----------
    each name of `learn` : a module or a list of them. Calling it returns the tensor or `CSR`. Parameters are
        `values`. If `positive`: `log_` or `raw_values`, or `off_diagonal` and `log_` or `raw_diagonal`
    depends_on : tuple of Tensors, the parameters and others
    shape, linear, symmetric, T, dtype, device, batch_shape : as for a `Preconditioner`

    Raises
    ------
    ValueError
        if `learn` names something else, or tensors are not finite, not positive or require grad.
    TypeError
        if M is not a Preconditioner or is a module, or, in a call, if only one of the modules that share
        parameters was converted.

    Notes
    -----
    ``build()`` returns the preconditioner for the current parameters, with their graph: build once for
    several calls of an `AMG`. State dicts include the patterns of matrices. Other patterns raise an error.
    ``save(path)`` and `preconditioners.load` write and read files. Gradient: exact, for the parameters and r,
    to any order. Cost: as for M, plus a pass over the values. Subclasses: docs/extending.md.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((16, 16)), torch.ones(256, dtype=torch.float64)
    >>> M = ls.preconditioners.Trainable(ls.preconditioners.IC(A), positive="exp")
    >>> ls.solvers.cg(A, b, M=M, iterations=4, gradient="unrolled").residual_norms[-1].backward()
    >>> M.L.log_diagonal.grad.shape
    torch.Size([256])
    """

    if TYPE_CHECKING:  # type checkers do not know the names in `learn`

        def __getattr__(self, name: str) -> Any: ...

    forward = Preconditioner.forward  # before torch.nn.Module's, which only raises
    M: Preconditioner | None = None  # the fixed part
    positive: How | None

    def __init__(
        self,
        M: Preconditioner | None = None,
        *,
        learn: Sequence[str] | None = None,
        positive: How | None = None,
    ):
        if M is None and type(self) is not Trainable:
            return
        if not isinstance(M, Preconditioner) or isinstance(M, torch.nn.Module):
            raise TypeError(
                "Trainable: M must be a Preconditioner that is computed from tensors, as IC(A) is, got "
                f"{type(M).__name__}"
            )
        parts = M.learnable()
        self.learn, self.positive = _names(type(M).__name__, parts, learn), positive
        if positive is not None and not any(parts[name].positive for name in self.learn):
            raise ValueError(f"Trainable: positive={positive!r} does not apply to {self.learn}. Remove it")
        held = [*self.learn, *(name for name, part in parts.items() if part.state and name not in self.learn)]
        for name in held:
            self.add_module(name, wrap_parameter(name, parts[name], positive, name in self.learn))
        self.M, self._held = M.with_tensors(dict.fromkeys(held)), tuple(held)
        self._keeps_tensors = self.M._reference_tensor() is not None
        check_constants(self.M._tensors())
        self.shape, self.batch_shape = M.shape, M.batch_shape
        self.linear, self.symmetric = self.M.linear, self.M.symmetric

    @property
    def depends_on(self) -> tuple[Tensor, ...]:  # type: ignore[override]
        fixed = () if self.M is None else self.M.depends_on
        return (*self.parameters(), *fixed, *vars(self).get("_others", ()))

    @depends_on.setter
    def depends_on(self, tensors: Iterable[Tensor]) -> None:
        self._others = tuple(tensors)

    def build(self) -> Preconditioner:
        """The preconditioner for the current parameters, with their graph."""
        if self.M is None:
            raise NotImplementedError(f"{type(self).__name__} must define build, or mv")
        parts = {name: current(self._modules[name]) for name in self._held}
        if self._keeps_tensors:
            part, fixed = parts[self._held[0]], self.M._require_reference()
            learned = part[0] if isinstance(part, list) else part
            if (learned.dtype, learned.device) != (fixed.dtype, fixed.device):
                raise TypeError(
                    f"Trainable: its parameters are {learned.dtype} on {learned.device}, what it keeps of "
                    f"the matrix {fixed.dtype} on {fixed.device}: a module that shares the parameters was "
                    "converted. Convert this one as well"
                )
        return self.M.with_tensors(parts)

    def on(self, M: Preconditioner) -> Trainable:
        """The same parameters for the matrix of M: ``learned.on(Jacobi(B))``."""
        other = self._compare_parts("on", M)
        for name in self._held:
            setattr(other, name, getattr(self, name))
        return other

    @torch.no_grad()
    def assign_(self, M: Preconditioner) -> Self:
        """Set the parameters, in place, to the tensors of M, on the patterns of this module and in its dtype:
        ``learned.assign_(IC(B))``. After an error nothing has changed."""
        theirs = self._compare_parts("assign_", M).state_dict()
        for name, tensor in self.state_dict().items():
            tensor.copy_(theirs[name])
        return self

    def _compare_parts(self, function: str, M: Preconditioner) -> Trainable:
        """A module that starts at M, checked to have the same state as this."""
        other = Trainable(M, learn=self.learn, positive=self.positive)
        if other.settings() != self.settings():
            raise ValueError(
                f"Trainable.{function}: M must be as this module's, {self.settings()}, got {other.settings()}"
            )
        if (other.dtype, other.device) != (self.dtype, self.device):
            raise TypeError(
                f"Trainable.{function}: M must be {self.dtype} on {self.device}, as this module is, got "
                f"{other.dtype} on {other.device}. Convert one with .to()"
            )
        if (fault := _misfit(self.state_dict(), other.state_dict())) is not None:
            raise ValueError(f"Trainable.{function}: M must have the state of this module, but {fault}")
        return other

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """`.to`, `.float` and the like also move the fixed part, first, because that may raise."""
        if self.M is not None and (like := self.M._reference_tensor()) is not None:
            to = fn(like.detach())
            if (to.dtype, to.device) != (like.dtype, like.device):
                self.M = self.M._convert(dtype=to.dtype, device=to.device)
        return super()._apply(fn, recurse)

    def mv(self, R: Tensor) -> Tensor:
        return self.build().mv(R)

    def rmv(self, R: Tensor) -> Tensor:
        return self.build().rmv(R)

    def pcg_form(self) -> tuple[str, Tensor, Any] | None:
        none = Preconditioner.pcg_form  # an AMG would set up its cycle only to return None
        if type(self).build is Trainable.build and getattr(type(self.M), "pcg_form", none) is none:
            return None
        return self.build().pcg_form()

    def settings(self) -> dict[str, Any]:
        """A description of M, and the other arguments, for JSON."""
        if self.M is None:
            return super().settings()
        return {"start": read_settings(self), "learn": list(self.learn), "positive": self.positive}

    @classmethod
    def _made(cls, settings: dict[str, Any], tensors: dict[str, Tensor], M: Any = None) -> Self:
        M = made(settings["start"], tensors) if M is None else M
        return cls(M, learn=settings["learn"], positive=settings["positive"])

    def extra_repr(self) -> str:
        kind = "" if self.M is None else f", of={type(self.M).__name__}, positive={self.positive!r}"
        return f"shape={self.shape}{kind}"


def _names(kind: str, parts: dict[str, Part], learn: Sequence[str] | None) -> tuple[str, ...]:
    if not parts:
        raise ValueError(f"Trainable: {kind} has no tensors that can be learned. See the table of Trainable")
    if learn is None:
        return tuple(name for name, part in parts.items() if part.default)
    if isinstance(learn, str) or not learn or not set(learn) <= parts.keys():
        raise ValueError(
            f"Trainable: learn must be one or more of {tuple(parts)}, the tensors of this {kind}, in a "
            f"tuple, got {learn!r}"
        )
    return tuple(learn)
