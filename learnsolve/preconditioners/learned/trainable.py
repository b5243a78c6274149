"""A module made from any preconditioner that is computed from tensors; some of them are its parameters.

Sources: Nytko et al., "Optimized Sparse Matrix Operations for Reverse Mode Automatic Differentiation", arXiv
2212.05159, section 4 (factors, cycles); Greenfeld, Galun, Basri, Yavneh, Kimmel, "Learning to optimize
multigrid PDE solvers", ICML 2019; A. Katrutsa, T. Daulbaev, I. Oseledets, "Deep multigrid: learning
prolongation and restriction matrices", arXiv 1711.03825.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.nn.modules import _difference
from learnsolve.preconditioners.base import Part, Preconditioner
from learnsolve.preconditioners.learned._parts import POSITIVE, current, module_of
from learnsolve.preconditioners.learned._saved import Saved, loadable
from learnsolve.preconditioners.learned._start import made, settings_of


class _Ready(Saved):
    """A module without `super().__init__()`: subclasses need not call it."""

    def __new__(cls, *_: Any, **__: Any) -> Self:
        M = super().__new__(cls)
        torch.nn.Module.__init__(M)
        return M


@loadable
class Trainable(_Ready, Preconditioner):
    """A preconditioner with parameters: tensors of M, or of a subclass. Solvers compute their gradient with
    gradient="unrolled" or "checkpointed". Table of names and defaults: docs/preconditioners.md.

    Parameters
    ----------
    M : Preconditioner, the start of the training; tensors that are not learned stay fixed
    learn : names of tensors of M, such as ("L",) for `Factored`, ("coefficients",) for `Polynomial`
    positive : None, or "exp" or "softplus": the parameters are the logarithms, or inverse softplus, of the
        diagonals of factors (U keeps its signs) and of all entries of d, weights, coefficients

    Attributes
    ----------
    each name of `learn` : a module or a list of them; calling it returns the tensor or `CSR`. Parameters are
        `values`; with `positive` `log_` or `raw_values`, or `off_diagonal` and `log_` or `raw_diagonal`
    depends_on : tuple of Tensors, the parameters and others
    shape, linear, symmetric, T, dtype, device, batch_shape : as for a `Preconditioner`

    Raises
    ------
    ValueError
        if `learn` names something else, or tensors are not finite, not positive or require grad.
    TypeError
        if M is not a Preconditioner or is a module; in a call, if only one of the modules that share
        parameters was converted.

    Notes
    -----
    ``build()`` returns the preconditioner for the current parameters, with their graph: build once for
    several calls of an `AMG`. State dicts include the patterns of matrices; other patterns raise an error.
    ``save(path)`` and `preconditioners.load` write and read files. Gradient: exact, for the parameters and r,
    to any order. Cost: as for M, plus a pass over the values. Subclasses: docs/extending.md.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((16, 16)), torch.ones(256, dtype=torch.float64)
    >>> M = ls.preconditioners.Trainable(ls.preconditioners.IC0(A), positive="exp")
    >>> ls.solvers.cg(A, b, M=M, rtol=0.0, maxiter=4, gradient="unrolled").residual_norms[-1].backward()
    >>> M.L.log_diagonal.grad.shape
    torch.Size([256])
    """

    if TYPE_CHECKING:  # type checkers do not know the names in `learn`

        def __getattr__(self, name: str) -> Any: ...

    forward = Preconditioner.forward  # before torch.nn.Module's, which only raises
    M: Preconditioner | None = None  # the fixed part

    # Do not call Module's `__init__` here, which would reset the module.
    def __init__(
        self,
        M: Preconditioner | None = None,
        *,
        learn: Sequence[str] | None = None,
        positive: str | None = None,
    ):
        if M is None and type(self) is not Trainable:
            return
        if not isinstance(M, Preconditioner) or isinstance(M, torch.nn.Module):
            raise TypeError(
                "Trainable: M must be a Preconditioner that is computed from tensors, as IC0(A) is, got "
                f"{type(M).__name__}"
            )
        if positive is not None:
            checks.one_of("Trainable", "positive", positive, POSITIVE)
        parts = M._learnable()
        self.learn, self.positive = _names(type(M).__name__, parts, learn), positive
        if positive is not None and not any(parts[name].positive for name in self.learn):
            raise ValueError(
                f"Trainable: positive={positive!r} applies to none of {self.learn}; leave it out"
            )
        held = [*self.learn, *(name for name, part in parts.items() if part.state and name not in self.learn)]
        self.M = M._without(held)
        for name in held:
            self.add_module(name, module_of(name, parts[name], positive, name in self.learn))
        self._held, self._keeps_tensors = tuple(held), self.M._like() is not None
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
            raise NotImplementedError(f"{type(self).__name__} must define build, or _columns")
        parts = {name: current(self._modules[name]) for name in self._held}
        if self._keeps_tensors:
            self._check_kind(parts[self._held[0]])
        return self.M._with(parts)

    def _check_kind(self, part: Any) -> None:
        learned = part[0] if isinstance(part, list) else part
        fixed = self.M and self.M._like()
        if fixed is not None and (learned.dtype, learned.device) != (fixed.dtype, fixed.device):
            raise TypeError(
                f"Trainable: its parameters are {learned.dtype} on {learned.device}, what it keeps of the "
                f"matrix {fixed.dtype} on {fixed.device}: a module that shares the parameters was converted; "
                "convert this one as well"
            )

    def on(self, M: Preconditioner) -> Trainable:
        """The same parameters for the matrix of M: ``learned.on(Jacobi(B))``."""
        other = self._compared("on", M)
        for name in self._held:
            setattr(other, name, getattr(self, name))
        return other

    @torch.no_grad()
    def assign_(self, M: Preconditioner) -> Self:
        """Set the parameters, in place, to the tensors of M, on the patterns of this module and in its dtype:
        ``learned.assign_(IC0(B))``. After an error nothing has changed."""
        theirs = self._compared("assign_", M).state_dict()
        for name, tensor in self.state_dict().items():
            tensor.copy_(theirs[name])
        return self

    def _compared(self, function: str, M: Preconditioner) -> Trainable:
        """A module that starts at M, checked to have the same state as this."""
        function = f"Trainable.{function}"
        other = Trainable(M, learn=self.learn, positive=self.positive)
        if other.settings() != self.settings():
            raise ValueError(
                f"{function}: M must be as this module's, {self.settings()}, got {other.settings()}"
            )
        ours, theirs = self.state_dict(), other.state_dict()
        for name in sorted(
            ours.keys() | theirs.keys(), key=lambda name: (not name.endswith("_indices"), name)
        ):
            a, b = ours.get(name), theirs.get(name)
            if a is None or b is None:
                raise ValueError(f"{function}: {name} is in the state of only one of the two")
            if name.endswith("_indices") and (fault := _difference(b, a)) is not None:
                raise ValueError(f"{function}: M must have the pattern of this module, but {name} {fault}")
            if a.shape != b.shape:
                raise ValueError(
                    f"{function}: {name} must have shape {tuple(a.shape)}, as here, got {tuple(b.shape)}"
                )
            if a.is_floating_point() and (a.dtype, a.device) != (b.dtype, b.device):
                raise TypeError(
                    f"{function}: {name} must be {a.dtype} on {a.device}, as here, got {b.dtype} on "
                    f"{b.device}; convert one with .to()"
                )
        return other

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """`.to`, `.float` and the like also move the fixed part, first, because that may raise."""
        like = None if self.M is None else self.M._like()
        if self.M is not None and like is not None:
            to = fn(like.detach())
            if (to.dtype, to.device) != (like.dtype, like.device):
                self.M = self.M._converted(dtype=to.dtype, device=to.device)
        return super()._apply(fn, recurse)

    def _columns(self, R: Tensor) -> Tensor:
        return self.build()._columns(R)

    def _transposed(self, R: Tensor) -> Tensor:
        return self.build()._transposed(R)

    def pcg_form(self) -> tuple[str, Tensor, Any] | None:
        if self.M is None:
            return None if type(self).build is Trainable.build else self.build().pcg_form()
        # An AMG would set up its cycle only to return None.
        return None if type(self.M).pcg_form is Preconditioner.pcg_form else self.build().pcg_form()

    def settings(self) -> dict[str, Any]:
        """A description of M, and the other arguments, for JSON."""
        if self.M is None:
            return super().settings()
        return {"start": settings_of(self), "learn": list(self.learn), "positive": self.positive}

    @classmethod
    def _made(cls, settings: dict[str, Any], tensors: dict[str, Tensor], M: Any = None) -> Self:
        M = made(settings["start"], tensors) if M is None else M
        return cls(M, learn=settings["learn"], positive=settings["positive"])

    def extra_repr(self) -> str:
        kind = "" if self.M is None else f", of={type(self.M).__name__}, positive={self.positive!r}"
        return f"shape={self.shape}{kind}"


def _names(kind: str, parts: dict[str, Part], learn: Sequence[str] | None) -> tuple[str, ...]:
    if not parts:
        raise ValueError(f"Trainable: {kind} has no tensors that can be learned; see the table of Trainable")
    if learn is None:
        return tuple(name for name, part in parts.items() if part.default)
    if isinstance(learn, str) or not learn or not set(learn) <= parts.keys():
        raise ValueError(
            f"Trainable: learn must be one or more of {tuple(parts)}, the tensors of this {kind}, in a "
            f"tuple, got {learn!r}"
        )
    return tuple(learn)
