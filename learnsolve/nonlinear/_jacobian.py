"""`jacobian`: sparse Jacobians of functions, by compressed derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from torch._C._functorch import get_interpreter_stack
from torch.utils import _pytree as pytree

from learnsolve.matrix import checks, convert
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.matrix.plain import outside_of_graphs, sample, transformations
from learnsolve.matrix.unchanged import version
from learnsolve.nonlinear._compress import Plan, compressed_values, plan
from learnsolve.nonlinear._pattern import check_argument, flat_output, outside, random_like, trace_pattern
from learnsolve.nonlinear._trace import Watch

_MODES = ("auto", "forward", "reverse")


class Analysis(NamedTuple):
    """The results of the first call."""

    pattern: SparsityPattern
    plan: Plan
    mode: str
    """"forward" or "reverse"."""
    by_vmap: bool
    """If False, derivatives are computed one by one, since f has an operation that vmap does not support."""
    arguments: tuple
    """Integer tensors among args, held so that their addresses are not reused."""


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
        return self._matrix(self.analysis(u, *args), u, args)

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
        key, held = _key(u, args)
        analysis = self._analyses.get(key)
        if analysis is None:
            self._check_alone(u, args)
            with outside(self.function, u, args) as (plain, plain_args):
                analysis = self._analyze(plain, plain_args)._replace(arguments=held)
            if len(self._analyses) >= 8:
                self._analyses.pop(next(iter(self._analyses)))
            self._analyses[key] = analysis
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
        first = None
        for compression, direction in self._plans(pattern, mode):
            if direction == "forward" and only_reverse:
                continue
            for by_vmap in (True, False):
                analysis = Analysis(pattern, compression, direction, by_vmap, ())
                try:
                    self._verify(analysis, u, args)
                    return analysis
                except (RuntimeError, NotImplementedError) as error:
                    first = first or error
        raise first or NotImplementedError(only_reverse)

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

    def _derivative(self, analysis: Analysis, u: Tensor, args: tuple) -> Callable[[Tensor], Tensor]:
        x = u.reshape(-1)

        def flat(x: Tensor) -> Tensor:
            return self._flat(x, u.shape, args)

        if analysis.mode == "forward":
            return lambda s: torch.func.jvp(flat, (x,), (s,))[1]
        pull = torch.func.vjp(flat, x)[1]
        return lambda s: pull(s)[0]

    def _matrix(self, analysis: Analysis, u: Tensor, args: tuple) -> CSR:
        derivative = self._derivative(analysis, u, args)
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

    def _verify(self, analysis: Analysis, u: Tensor, args: tuple) -> None:
        """Compare a product of J with a random vector with the derivative of f along it."""
        with torch.no_grad():
            A = self._matrix(analysis, u, args)
            A = A if analysis.mode == "forward" else A.T
            v = random_like(u.new_empty(A.shape[1]))
            true = self._derivative(analysis, u, args)(v)
            small = torch.finfo(u.dtype).eps ** 0.5
            error = (A @ v - true).abs()
            error[~(error > small * (abs(A) @ v.abs() + true.abs()))] = 0
        # If all derivatives of a row are rounding errors, so may this be: look at the largest errors.
        worst = error.topk(min(3, len(error)))
        for line in worst.indices[worst.values > 0].tolist():
            self._check_line(analysis, u, args, line, small)

    def _check_line(self, analysis: Analysis, u: Tensor, args: tuple, line: int, small: float) -> None:
        """Is an entry of this row of J (in reverse mode of this column) missed? Halves of what the pattern
        leaves out are searched by derivatives in the same mode, as f may have no other."""
        forward = analysis.mode == "forward"
        lines = analysis.pattern if forward else analysis.pattern.T
        inside = lines.col_indices[lines.crow_indices[line] : lines.crow_indices[line + 1]].long()
        left = u.new_ones(lines.shape[1], dtype=torch.bool).index_fill(0, inside, False)
        at, derivative = left.nonzero().squeeze(-1), self._derivative(analysis, u, args)

        def along(weights: Tensor, at: Tensor) -> float:
            return float(derivative(torch.zeros_like(weights).index_copy(0, at, weights[at]))[line])

        v, ones = random_like(u.new_empty(len(left))), u.new_ones(len(left))
        largest = abs(along(v, inside))
        while len(at) > 1:
            at = max(at.chunk(2), key=lambda half: abs(along(v, half)))
        missed = along(ones, at)
        if not abs(missed) > small * max(largest, abs(missed)):
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
        called as ``J(u, *args)``. The first call determines pattern and colors for arguments of these shapes.

    Raises
    ------
    ValueError
        if f uses random numbers or writes into u; if `pattern` has the wrong shape; if it lacks an
        entry (the message names it): the first call compares J with one derivative in a random direction.
    TypeError
        if u is not a tensor of float32 or float64, or f does not return a tensor with u's dtype.

    Notes
    -----
    Gradient: the values are differentiable in u, args and parameters of f. Any order, forward mode, vmap.
    Cost: one derivative of f per color (docs/jacobians.md). Source: A. Curtis, M. Powell and J. Reid, "On the
    estimation of sparse Jacobian matrices", IMA J. Appl. Math. 13 (1974).

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


def _longest(pattern: SparsityPattern) -> int:
    return int(pattern.crow_indices.diff().max()) if pattern.shape[0] else 0


def _key(u: Tensor, args: tuple) -> tuple[Any, tuple]:
    """Arguments with equal keys have the same pattern: values of floating-point tensors may differ. All other
    arguments are part of the program, which may branch on them or index with them."""
    leaves, structure = pytree.tree_flatten(args)  # the structure holds the patterns of CSRs
    key: list[Any] = [tuple(u.shape), u.dtype, u.device, structure]
    held = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            key.append(tuple(leaf.shape))
            if not leaf.is_floating_point():
                key += [id(leaf), version(leaf)]
                held.append(leaf)
        elif isinstance(leaf, np.ndarray):
            key += [leaf.shape, leaf.dtype, leaf.tobytes()]
        elif isinstance(leaf, slice):
            key.append(leaf.__reduce__())
        else:
            try:
                hash(leaf)
            except TypeError:
                leaf = object()  # never found again
            key += [type(leaf), leaf]
    return tuple(key), tuple(held)


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
