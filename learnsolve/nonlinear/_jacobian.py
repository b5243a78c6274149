"""`jacobian`: sparse Jacobians of functions, by compressed derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import scipy.sparse
import torch
from torch import Tensor
from torch._C._functorch import get_interpreter_stack
from torch.utils import _pytree as pytree

from learnsolve.matrix import checks, convert
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.matrix.plain import numbers, outside_of_graphs, sample, transformations
from learnsolve.nonlinear._compress import Plan, compressed_values, plan
from learnsolve.nonlinear._pattern import (
    check_argument,
    flat_output,
    outside,
    program_key,
    random_like,
    trace_pattern,
)
from learnsolve.nonlinear._trace import Watch
from learnsolve.ops.core.autograd import pushforward
from learnsolve.ops.spmm import spmm

_MODES = ("auto", "forward", "reverse")
_ROUNDING = (
    1e-3  # error of a product with J, relative to its largest element, up to which rounding explains it
)


class Analysis(NamedTuple):
    """The results of the first call."""

    pattern: SparsityPattern
    plan: Plan
    mode: str
    """"forward" or "reverse"."""
    by_vmap: bool
    """If False, derivatives are computed one by one, since f has an operation that vmap does not support, or
    gets wrong."""
    check: str
    """The mode of the product that checks each J."""
    along: Tensor
    """Random numbers, at least as many as the longer side of J, for this product."""
    slack: float = 0.0
    """What its error was at the first call, by rounding, relative to the largest element; with a margin."""


class Jacobian:
    """The result of `jacobian`: ``J(u, *args)`` is a CSR.

    Attributes
    ----------
    f : the function
    mode : as passed
    pattern : the given pattern, or None

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> J = ls.nonlinear.Jacobian(torch.sin)
    >>> J(torch.zeros(3)).values, J.colors(torch.zeros(3))
    (tensor([1., 1., 1.]), 1)
    """

    function = "jacobian"

    def __init__(self, f: Callable[..., Tensor], pattern: Any = None, mode: str = "auto"):
        checks.one_of(self.function, "mode", mode, self.modes)
        if not callable(f):
            raise TypeError(f"{self.function}: f must be a function of u and args, got {type(f).__name__}")
        self.f, self.mode = f, mode
        self.pattern = None if pattern is None else as_pattern(self.function, pattern)
        self._analyses: dict[Any, Analysis] = {}

    modes: tuple[str, ...] = _MODES

    def __call__(self, u: Tensor, *args: Any) -> CSR:
        """The Jacobian at u, shape (f(u).numel(), u.numel())."""
        check_argument(self.function, u)
        key = program_key(self.function, u, args)
        kept = self._analyses.get(key)
        if kept is not None:
            try:
                J = self._matrix(kept, u, args)
                if self._holds(kept, J, u, args):
                    return J
            except (NotImplementedError, RuntimeError):
                pass  # f may have changed, and the next lines say what is wrong otherwise
        return self._matrix(self._renewed(key, u, args), u, args)

    # Dynamo would break its graph at each value that the analysis reads.
    __call__ = outside_of_graphs(
        __call__, "sparse Jacobians are called outside of the graphs of torch.compile"
    )

    def colors(self, u: Tensor, *args: Any) -> int:
        """The number of derivatives of f in a call with these arguments."""
        return self.analysis(u, *args).plan.count

    def analysis(self, u: Tensor, *args: Any) -> Analysis:
        """Pattern and coloring for these arguments, found at the first call with their shapes."""
        check_argument(self.function, u)
        key = program_key(self.function, u, args)
        return self._analyses.get(key) or self._renewed(key, u, args)

    def _renewed(self, key: Any, u: Tensor, args: tuple) -> Analysis:
        self._check_alone(u, args)
        with outside(self.function, u, args) as (plain, plain_args):
            analysis = self._analyze(plain, plain_args)
        self._analyses.pop(key, None)
        if len(self._analyses) >= 8:
            self._analyses.pop(next(iter(self._analyses)))
        self._analyses[program_key(self.function, u, args, keep=True)] = analysis
        return analysis

    def _check_alone(self, u: Tensor, args: tuple) -> None:
        """The analysis, outside of torch.func, cannot tell tensors of its levels from its own."""
        if not torch._C._are_functorch_transforms_active():
            return
        u, args = pytree.tree_map(lambda t: sample(t) if isinstance(t, Tensor) else t, (u, args))
        acting = transformations(self._flat(u.reshape(-1), u.shape, args))
        if acting & {"jvp", "vmap"} or (acting and len(get_interpreter_stack() or ()) > 1):
            raise ValueError(
                f"{self.function}: f uses a tensor that torch.func transforms (vmap, jvp, nested grad) and "
                "that is not among its arguments; pass it, f(u, *args)"
            )

    def _analyze(self, u: Tensor, args: tuple) -> Analysis:
        pattern, mode = self._pattern(u, args)
        only_reverse = self._check_shape(pattern, u, args)
        first: Exception | None = None
        along = random_like(u.new_empty(max(pattern.shape)))
        for compression, direction in self._plans(pattern, mode):
            if direction == "forward" and only_reverse:
                first = first or NotImplementedError(only_reverse)
                continue
            found = []
            try:
                for by_vmap in (True, False):  # which may have no rule for an operation, or a wrong one
                    analysis = Analysis(pattern, compression, direction, by_vmap, direction, along)
                    try:
                        found.append((self._verify(analysis, u, args), analysis))
                    except (RuntimeError, NotImplementedError) as error:
                        first = first or error
                        continue
                    if not found[-1][0]:
                        break
                for error, analysis in found:
                    if error <= 10 * found[-1][0]:
                        return self._compare(analysis._replace(slack=10 * error), u, args)
            except ValueError as error:  # torch may be right in the other mode
                first = first or error
        assert first is not None
        raise first

    def _pattern(self, u: Tensor, args: tuple) -> tuple[SparsityPattern, str]:
        """The coloring and the mode."""
        mode = self.mode if self.mode in _MODES else "auto"
        if self.pattern is not None:
            return self.pattern, mode
        return trace_pattern(self.function, self._flat, u, args, mode)

    def _plans(self, pattern: SparsityPattern, mode: str) -> Iterator[tuple[Plan, str]]:
        """The colorings in the order in which they are tried: fewer colors first."""
        if mode != "auto":
            yield plan(pattern, mode), mode
            return
        # No coloring has fewer colors than the longest row, or column, has entries.
        fewest = {"forward": _longest(pattern), "reverse": _longest(pattern.T)}
        one, other = sorted(fewest, key=fewest.__getitem__)
        if fewest[other] < plan(pattern, one).count and plan(pattern, other).count < plan(pattern, one).count:
            one, other = other, one
        yield plan(pattern, one), one
        yield plan(pattern, other), other  # for functions for which torch lacks one of the modes

    def _flat(self, x: Tensor, shape: torch.Size, args: tuple) -> Tensor:
        """f as a function of vectors."""
        return flat_output(self.function, self.f(x.reshape(shape), *args), x)

    def _derivative(self, mode: str, u: Tensor, args: tuple) -> Callable[[Tensor], Tensor]:
        x = u.reshape(-1)

        def flat(x: Tensor) -> Tensor:
            return self._flat(x, u.shape, args)

        if mode == "forward":
            return lambda s: torch.func.jvp(flat, (x,), (s,))[1]
        pull = torch.func.vjp(flat, x)[1]
        return lambda s: pull(s)[0]

    def _matrix(self, analysis: Analysis, u: Tensor, args: tuple) -> CSR:
        derivative = self._derivative(analysis.mode, u, args)
        values = compressed_values(self.function, derivative, analysis.plan, u, analysis.by_vmap)
        return CSR(values, analysis.pattern)

    def _check_shape(self, pattern: SparsityPattern, u: Tensor, args: tuple) -> str:
        """Also whether only the reverse mode is right, and why."""
        with torch.no_grad(), Watch(self.function, u) as watch:
            out = self._flat(u.reshape(-1), u.shape, args)
        if pattern.shape != (out.numel(), u.numel()):
            raise ValueError(
                f"{self.function}: pattern must have a row for each element of f(u) and a column for each of "
                f"u, shape {(out.numel(), u.numel())}, got {pattern.shape}"
            )
        return watch.only_reverse

    @torch.no_grad()
    def _errors(self, analysis: Analysis, A: CSR, u: Tensor, args: tuple) -> Tensor:
        """f is called again: it must not use random numbers now."""
        transpose, derivative = (
            analysis.check == "reverse",
            self._derivative(analysis.check, u.detach(), args),
        )
        v = analysis.along[: A.shape[0 if transpose else 1]]
        return errors(A.detach(), derivative, v, transpose, analysis.slack)

    def _holds(self, analysis: Analysis, A: CSR, u: Tensor, args: tuple) -> bool:
        """Whether f is still as it was when it was analyzed."""
        if torch._C._len_torch_dispatch_stack() or torch._C._is_tracing():
            return True  # operations are recorded: there are no numbers to look at
        return not bool(self._errors(analysis, A, u, args).any())

    def _verify(self, analysis: Analysis, u: Tensor, args: tuple) -> float:
        """The largest error, which is 0 but for rounding or what torch gets wrong, if no entry is missed."""
        with torch.no_grad():
            error = self._errors(analysis, self._matrix(analysis, u, args), u, args)
        # If all derivatives of a row are rounding errors, so may this be: look at the largest errors.
        worst = error.topk(min(3, len(error)))
        for line in worst.indices[worst.values > 0].tolist():
            self._check_line(analysis, u, args, line)
        return float(worst.values.sum())

    @torch.no_grad()
    def _compare(self, analysis: Analysis, u: Tensor, args: tuple) -> Analysis:
        """With the other mode, if there is one, which then checks the following calls: derivatives by torch
        may be wrong in either. If they differ, not only at this u, where f may have a kink, differences of f
        decide."""
        mode, error = analysis.mode, analysis.slack / 10
        if error > _ROUNDING:
            eps, size = torch.finfo(u.dtype).eps, self._flat(u.reshape(-1), u.shape, args).abs().max()
            if self._matrix(analysis, u, args).values.abs().max() <= 1e4 * eps * (1 + size):
                return analysis._replace(slack=0.0)  # all derivatives are rounding errors
            raise ValueError(
                f"{self.function}: derivatives of f in {mode} mode along a direction and along its parts "
                f"differ by {error:.2g} of the largest: an operation of f has a derivative that is not "
                "linear, or not always the same; correct it, or tighten the tolerance of a solve in f"
            )
        other = analysis._replace(check="reverse" if mode == "forward" else "forward")
        remedy = f'use mode="{other.check}"' if self.mode == mode else "write f with other operations"
        h = torch.finfo(u.dtype).eps ** (1 / 3) * (float(u.abs().max()) or 1.0 if u.numel() else 1.0)
        v = random_like(u).clamp(-1, 1)
        near = u + 10 * h * (v + v.sign())
        v, differs = v.reshape(-1), None
        try:
            for at in (u, near):
                A = self._matrix(analysis, at, args)
                if not bool(self._errors(other, A, at, args).any()):
                    return analysis if at is near else analysis._replace(check="reverse")
            differs = self._along(other.check, near, args, v)
        except (RuntimeError, NotImplementedError) as error:
            if "not differentiable with respect to" not in str(error):  # forward mode then says zero
                return analysis
            A, remedy = self._matrix(analysis, near, args), "write f with other operations"
        ends = [self._flat(near.reshape(-1) + t * v, u.shape, args) for t in (h, -h)]
        mine, true = A @ v, (ends[0] - ends[1]) / (2 * h)
        bound = 0.01 * (abs(A) @ v.abs() + true.abs()) + 100 * h**2 * (ends[0].abs() + ends[1].abs())
        if differs is not None:  # if both are as far away, the differences are wrong
            bound = torch.maximum(bound, 10 * (differs - true).abs())
        wrong = ((mine - true).abs() > bound).nonzero()
        if len(wrong):
            i = int(wrong[0])
            raise ValueError(
                f"{self.function}: torch's {mode} mode gives a wrong derivative: {float(mine[i]):.3g} for "
                f"element {i} of f along a random direction, where differences of f give "
                f"{float(true[i]):.3g}; {remedy}"
            )
        return analysis

    def _along(self, mode: str, u: Tensor, args: tuple, v: Tensor) -> Tensor:
        """J v by derivatives of this mode."""
        if mode == "forward":
            return self._derivative(mode, u, args)(v)
        return pushforward(lambda x: (self._flat(x, u.shape, args),), (u.reshape(-1),), (v,))[0]

    def _check_line(self, analysis: Analysis, u: Tensor, args: tuple, line: int) -> None:
        """Is an entry of this row of J (in reverse mode of this column) missed? Halves of what the pattern
        leaves out are searched by derivatives in the same mode, as f may have no other."""
        forward = analysis.mode == "forward"
        lines = analysis.pattern if forward else analysis.pattern.T
        inside = lines.col_indices[lines.crow_indices[line] : lines.crow_indices[line + 1]].long()
        left = u.new_ones(lines.shape[1], dtype=torch.bool).index_fill(0, inside, False)
        at, derivative = left.nonzero().squeeze(-1), self._derivative(analysis.mode, u, args)

        def along(weights: Tensor, at: Tensor) -> float:
            return float(derivative(torch.zeros_like(weights).index_copy(0, at, weights[at]))[line])

        v, ones = random_like(u.new_empty(len(left))), u.new_ones(len(left))
        largest = abs(along(v, inside))
        while len(at) > 1:
            at = max(at.chunk(2), key=lambda half: abs(along(v, half)))
        missed = along(ones, at)
        if not abs(missed) > torch.finfo(u.dtype).eps ** 0.5 * max(largest, abs(missed)):
            return
        i, j = (line, int(at)) if forward else (int(at), line)
        remedy = "or leave pattern= out" if self.pattern is not None else "or give pattern="
        raise ValueError(
            f"{self.function}: the pattern has no entry ({i}, {j}), but f depends on u there: the derivative "
            f"is {missed:.3g}; add it, {remedy}"
        )


def jacobian(
    f: Callable[..., Tensor], pattern: Any = None, mode: Literal["auto", "forward", "reverse"] = "auto"
) -> Jacobian:
    r"""The sparse Jacobian of a function: ``jacobian(f)(u, *args)`` is a CSR.

    .. math:: J_{ij} = \partial f_i / \partial u_j

    Parameters
    ----------
    f : function of u and args that returns a tensor of u's dtype; both may have any shape, and i and j index
        their elements in the order of the flattened tensors
    pattern : SparsityPattern, CSR or SciPy matrix with an entry wherever J may be nonzero, default: that of
        `jacobian_pattern`
    mode : "forward", by columns (`torch.func.jvp`); "reverse", by rows (`torch.func.vjp`); "auto", the mode
        with fewer colors, or the mode that torch supports for all operations of f

    Returns
    -------
    Jacobian
        called as ``J(u, *args)``. The first call determines pattern and colors for arguments of these shapes;
        a call that finds that f has changed determines them again.

    Raises
    ------
    ValueError
        if f uses random numbers or writes into u; if `pattern` has the wrong shape; if it lacks an
        entry (the message names it), or torch's derivative is wrong: each call compares J with one derivative
        in a random direction, the first also both modes.
    TypeError
        if u is not a tensor of float32 or float64, or f does not return a tensor with u's dtype.

    Notes
    -----
    Gradient: the values are differentiable in u, args and parameters of f. Any order, forward mode, vmap.
    Cost: one derivative of f per color, and one for the check (docs/jacobians.md). Source: A. Curtis, M.
    Powell and J. Reid, "On the estimation of sparse Jacobian matrices", IMA J. Appl. Math. 13 (1974).

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> J = ls.nonlinear.jacobian(lambda u: u[1:] * u[:-1])
    >>> J(torch.arange(1.0, 5.0)).to_dense()
    tensor([[2., 1., 0., 0.],
            [0., 3., 2., 0.],
            [0., 0., 4., 3.]])
    """
    return Jacobian(f, pattern, mode)


def errors(
    A: CSR, derivative: Callable[[Tensor], Tensor], v: Tensor, transpose: bool, slack: float = 0.0
) -> Tensor:
    """The elements of A v, or A^T v, that differ from the derivative of f along v by more than rounding,
    relative to the largest element; else 0. `slack`: rounding, relative to the largest element."""
    true = derivative(v)
    error = numbers((spmm(A, v, transpose=transpose) - true).abs())
    size = numbers(spmm(abs(A), v.abs(), transpose=transpose) + true.abs())
    largest = torch.where(size.isfinite(), size, 0).amax(-1, keepdim=True) if size.numel() else size
    bound = torch.finfo(size.dtype).eps ** 0.5 * size + slack * largest
    return torch.where(error > bound, error / largest, 0)


def _longest(pattern: SparsityPattern) -> int:
    return int(pattern.crow_indices.diff().max()) if pattern.shape[0] else 0


def as_pattern(function: str, pattern: Any) -> SparsityPattern:
    if isinstance(pattern, CSR):
        return pattern.pattern
    if isinstance(pattern, SparsityPattern):
        return pattern
    if scipy.sparse.issparse(pattern):
        return convert.scipy_parts(pattern)[1]
    raise TypeError(
        f"{function}: pattern must be a SparsityPattern, a CSR or a SciPy matrix, got "
        f"{type(pattern).__name__}"
    )
