"""`jacobian` and `hessian`: sparse Jacobians of functions and Hessians of scalar ones, by compressed
derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from torch._C._functorch import get_interpreter_stack
from torch.utils import _pytree as pytree

from learnsolve import _analysis, ordering
from learnsolve.matrix import checks, convert
from learnsolve.matrix.cache import numbers, outside_of_graphs, sample, transformations
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, to_numpy
from learnsolve.nonlinear._pattern import (
    VARIABLE,
    build_pattern,
    flat_output,
    generic_point,
    outside,
    program_key,
    trace_pattern,
)
from learnsolve.nonlinear._trace import Watch
from learnsolve.ops.autograd import needs_graph, pushforward
from learnsolve.ops.products import spmm
from learnsolve.ops.triangular import sptrsv

# A Jacobian from few derivatives: one for each color of its columns (or rows), and its entries taken out.
#
# Columns of one color have no row in common, so the derivative of f along the sum of their unit vectors
# shows the entries of all of them. Which entry stands where is planned once per pattern.


# A group has at most so many elements: larger arrays go back to the system when they are freed, and come
# again page by page.
_ELEMENTS = 2**21


class Plan(NamedTuple):
    """How the values of a pattern are read from compressed derivatives, an array of shape (count, length)."""

    colors: Tensor
    """Color of each element of a seed, shape (width,)."""
    count: int
    """Of the colors."""
    length: int
    """Of one derivative."""
    group: int
    """How many derivatives are computed at a time: they take no more memory than the values."""
    positions: Tensor
    """Place of each value in the flattened array, shape (nnz,), group by group with an order. Of the
    pattern's index type where that holds them."""
    ptr: tuple[int, ...]
    """Values of group g are those from ptr[g] to ptr[g + 1]."""
    order: Tensor | None
    """Place of each value of the pattern among them, shape (nnz,). None: the whole array is not much larger
    than the values, and is kept."""
    triangle: SparsityPattern | None = None
    """Of an acyclic coloring: what is read are right-hand sides, sums of unknowns, a unit lower triangle."""
    unknown: Tensor | None = None
    """Which unknown each value is, int64, shape (nnz,)."""


def plan(pattern: SparsityPattern, mode: str) -> Plan:
    """For products with J ("forward") or with J^T ("reverse")."""
    return pattern._plan_once(_plan, mode)


def _plan(pattern: SparsityPattern, mode: str) -> Plan:
    seeded = pattern if mode == "forward" else pattern.T
    coloring = ordering.column_coloring(seeded)
    rows, columns = _places(pattern)
    shown, seeds = (rows, columns) if mode == "forward" else (columns, rows)
    return make_plan(coloring, coloring.colors.long()[seeds], shown, seeded.shape)


def _places(pattern: SparsityPattern) -> tuple[Tensor, Tensor]:
    """Row and column of each entry. The pattern keeps no rows for this one use."""
    return torch.repeat_interleave(pattern.crow_indices.diff()), pattern.col_indices.long()


def symmetric_plan(pattern: SparsityPattern, method: str) -> Plan:
    """For products with a symmetric matrix, colored by "star", "acyclic" or "columns"."""
    return pattern._plan_once(_symmetric_plan, method)


def _symmetric_plan(pattern: SparsityPattern, method: str) -> Plan:
    if method == "columns":
        return _plan(pattern, "forward")
    coloring = ordering.symmetric_coloring(pattern, "acyclic" if method == "acyclic" else "star")
    colors = coloring.colors.long()
    rows, columns = _places(pattern)
    if method == "acyclic":
        arrays = (pattern.crow_indices, pattern.col_indices, pattern.transpose_permutation, coloring.colors)
        ptr, idx, equation, unknown = (
            pattern._tensor(a) for a in _analysis.substitution(*(to_numpy(a) for a in arrays))
        )
        at, number = equation.long(), len(equation)
        plan = make_plan(coloring, colors[columns[at]], rows[at], pattern.shape)
        triangle = SparsityPattern(ptr, idx, (number, number))
        return plan._replace(triangle=triangle, unknown=unknown.long())
    # Where row i has no other entry in a column of the color of j, the product for this color shows (i, j) in
    # row i. Else i is the center of a star of these two colors, and that for the color of i shows (j, i) in
    # row j.
    _, of, number = torch.unique(
        rows * coloring.count + colors[columns], return_inverse=True, return_counts=True
    )
    alone = number[of] == 1
    color = torch.where(alone, colors[columns], colors[rows])
    return make_plan(coloring, color, torch.where(alone, rows, columns), pattern.shape)


def make_plan(coloring: ordering.Coloring, color: Tensor, element: Tensor, shape: tuple[int, int]) -> Plan:
    """Each value is that `element` of the derivative of that `color`, an array of `shape` times a seed."""
    length, width = shape
    count = coloring.count if len(color) else 0  # no values, no derivatives
    group = max(1, min(-(-len(color) // max(length, width, 1)), _ELEMENTS // max(length, width, 1)))
    positions, order, ptr = color * length + element, None, (0, len(color))
    index = torch.int32 if count * length < 2**31 else torch.int64
    if count * length > 4 * len(color):
        by_group = (color // group).argsort(stable=True)
        sizes = torch.bincount(color // group, minlength=-(-count // group))
        ptr = (0, *sizes.cumsum(0).tolist())
        positions = positions[by_group]
        order = torch.empty_like(by_group)
        order[by_group] = torch.arange(len(color), device=color.device)
        order = order.to(index)
    return Plan(coloring.colors, count, length, group, positions.to(index), ptr, order)


def probe_values(
    function: str, derivative: Callable[[Tensor], Tensor], plan: Plan, like: Tensor, by_vmap: bool = True
) -> Tensor:
    """The values, shape (nnz,), for the linear function `derivative` of seeds."""

    def together(seeds: Tensor) -> Tensor:
        if len(seeds) == 1:
            return derivative(seeds[0])[None]
        return torch.vmap(derivative)(seeds) if by_vmap else torch.stack([derivative(s) for s in seeds])

    parts, whole = [], None
    for g, first in enumerate(range(0, plan.count, plan.group)):
        last = min(first + plan.group, plan.count)
        some = torch.arange(first, last, device=like.device, dtype=plan.colors.dtype)
        seeds = (plan.colors == some[:, None]).to(like.dtype)
        if torch._C._are_functorch_transforms_active() and seeds.shape[1] == like.numel():
            # Mapped where u is: in forward mode f may write a mapped tangent into a copy of u.
            seeds = seeds + torch.zeros_like(like).reshape(-1)
        shown = together(seeds)
        if shown.shape[1] != plan.length:
            raise ValueError(
                f"{function}: the size of f(u) must not depend on values of u, but was {plan.length} at the "
                f"first call and is {shown.shape[1]} now. Use torch.where in place of masks as indices"
            )
        if plan.order is not None:
            positions = plan.positions[plan.ptr[g] : plan.ptr[g + 1]] - first * plan.length
            shown = shown.reshape(-1).index_select(0, positions)
        elif plan.group < plan.count and not needs_graph(shown):  # no second copy of all parts
            whole = shown.new_empty(plan.count, plan.length) if whole is None else whole
            whole[first:last] = shown
            continue
        parts.append(shown)
    if plan.count == 0:
        return like.new_zeros(0)
    if whole is None:
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        parts.clear()
    values = whole.reshape(-1).index_select(0, plan.positions if plan.order is None else plan.order)
    if plan.triangle is None:
        return values
    ones = values.new_ones(plan.triangle.nnz)
    return sptrsv(CSR(ones, plan.triangle), values, unit_diagonal=True)[plan.unknown]


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
    """What its error was at the first call, by rounding, relative to the largest element, with a margin."""


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

    def __init__(self, f: Callable[..., Tensor], pattern: object = None, mode: str = "auto"):
        checks.check_choice(self.function, "mode", mode, self.modes)
        if not callable(f):
            raise TypeError(f"{self.function}: f must be a function of u and args, got {type(f).__name__}")
        self.f, self.mode = f, mode
        self.pattern = None if pattern is None else convert_pattern(self.function, pattern)
        self._analyses: dict[object, Analysis] = {}

    modes: tuple[str, ...] = _MODES

    def __call__(self, u: Tensor, *args: object) -> CSR:
        """The Jacobian at u, shape (f(u).numel(), u.numel())."""
        VARIABLE.check(self.function, "u", u)
        key = program_key(self.function, u, args)
        kept = self._analyses.get(key)
        if kept is not None:
            try:
                J = self._matrix(kept, u, args)
                if self._holds(kept, J, u, args):
                    return J
            except (NotImplementedError, RuntimeError):
                pass  # f may have changed, and the next lines say what is wrong otherwise
        return self._matrix(self._renew(key, u, args), u, args)

    # Dynamo would break its graph at each value that the analysis reads.
    __call__ = outside_of_graphs(
        __call__, "sparse Jacobians are called outside of the graphs of torch.compile"
    )

    def colors(self, u: Tensor, *args: object) -> int:
        """The number of derivatives of f in a call with these arguments."""
        return self.analysis(u, *args).plan.count

    def analysis(self, u: Tensor, *args: object) -> Analysis:
        """Pattern and coloring for these arguments, found at the first call with their shapes."""
        VARIABLE.check(self.function, "u", u)
        key = program_key(self.function, u, args)
        return self._analyses.get(key) or self._renew(key, u, args)

    def _renew(self, key: object, u: Tensor, args: tuple) -> Analysis:
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
                "that is not among its arguments. Pass it, f(u, *args)"
            )

    def _analyze(self, u: Tensor, args: tuple) -> Analysis:
        pattern, mode = self._pattern(u, args)
        only_reverse = self._check_shape(pattern, u, args)
        first: Exception | None = None
        along = generic_point(u.new_empty(max(pattern.shape)))
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
        values = probe_values(self.function, derivative, analysis.plan, u, analysis.by_vmap)
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
                "linear, or that changes from call to call. Correct it, or tighten the tolerance of a solve "
                "in f"
            )
        other = analysis._replace(check="reverse" if mode == "forward" else "forward")
        remedy = f'Use mode="{other.check}"' if self.mode == mode else "Write f with other operations"
        h = torch.finfo(u.dtype).eps ** (1 / 3) * (float(u.abs().max()) or 1.0 if u.numel() else 1.0)
        v = generic_point(u).clamp(-1, 1)
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
            A, remedy = self._matrix(analysis, near, args), "Write f with other operations"
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
                f"element {i} of f along a random direction, where differences of f yield "
                f"{float(true[i]):.3g}. {remedy}"
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

        v, ones = generic_point(u.new_empty(len(left))), u.new_ones(len(left))
        largest = abs(along(v, inside))
        while len(at) > 1:
            at = max(at.chunk(2), key=lambda half: abs(along(v, half)))
        missed = along(ones, at)
        if not abs(missed) > torch.finfo(u.dtype).eps ** 0.5 * max(largest, abs(missed)):
            return
        i, j = (line, int(at)) if forward else (int(at), line)
        remedy = "or remove pattern=" if self.pattern is not None else "or pass pattern="
        raise ValueError(
            f"{self.function}: the pattern has no entry ({i}, {j}), but f depends on u there: the derivative "
            f"is {missed:.3g}. Add it, {remedy}"
        )


def jacobian(
    f: Callable[..., Tensor], pattern: object = None, mode: Literal["auto", "forward", "reverse"] = "auto"
) -> Jacobian:
    r"""The sparse Jacobian of a function: ``jacobian(f)(u, *args)`` is a CSR.

    .. math:: J_{ij} = \partial f_i / \partial u_j

    Parameters
    ----------
    f : function of u and args that returns a tensor of u's dtype. Both may have any shape, and i and j index
        their elements in the order of the flattened tensors
    pattern : SparsityPattern, CSR or SciPy matrix with an entry wherever J may be nonzero, default: that of
        `jacobian_sparsity`
    mode : "forward", by columns (`torch.func.jvp`); "reverse", by rows (`torch.func.vjp`); "auto", the mode
        with fewer colors, or the mode that torch supports for all operations of f

    Returns
    -------
    Jacobian
        called as ``J(u, *args)``. The first call determines pattern and colors for arguments of these shapes.
        A call that finds that f has changed determines them again.

    Raises
    ------
    ValueError
        if f uses random numbers or writes into u, if `pattern` has the wrong shape or lacks an entry (the
        message names it), or torch's derivative is wrong: each call compares J with one derivative in a
        random direction, the first also both modes.
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
    relative to the largest element, otherwise 0. `slack`: rounding, relative to the largest element."""
    true = derivative(v)
    error = numbers((spmm(A, v, transpose=transpose) - true).abs())
    size = numbers(spmm(abs(A), v.abs(), transpose=transpose) + true.abs())
    largest = torch.where(size.isfinite(), size, 0).amax(-1, keepdim=True) if size.numel() else size
    bound = torch.finfo(size.dtype).eps ** 0.5 * size + slack * largest
    return torch.where(error > bound, error / largest, 0)


def _longest(pattern: SparsityPattern) -> int:
    return int(pattern.crow_indices.diff().max()) if pattern.shape[0] else 0


def convert_pattern(function: str, pattern: object, argument: str = "pattern") -> SparsityPattern:
    if isinstance(pattern, CSR):
        return pattern.pattern
    if isinstance(pattern, SparsityPattern):
        return pattern
    if scipy.sparse.issparse(pattern):
        return convert.scipy_parts(pattern)[1]
    raise TypeError(
        f"{function}: {argument} must be a SparsityPattern, a CSR or a SciPy matrix, got "
        f"{type(pattern).__name__}"
    )


class Hessian(Jacobian):
    """The result of `hessian`: ``H(u, *args)`` is a symmetric CSR, the Jacobian of f's gradient."""

    function = "hessian"
    modes = ("auto", "star", "acyclic", "columns")

    def _flat(self, x: Tensor, shape: torch.Size, args: tuple) -> Tensor:
        def scalar(x: Tensor) -> Tensor:
            out = super(Hessian, self)._flat(x, shape, args)
            if out.numel() != 1:
                raise ValueError(
                    f"hessian: f must return one number, got {out.numel()}. Use jacobian where f returns more"
                )
            return out.reshape(())

        return torch.func.grad(scalar)(x)

    def _plans(self, pattern: SparsityPattern, mode: str) -> Iterator[tuple[Plan, str]]:
        methods = ("star", "columns") if self.mode == "auto" else (self.mode,)
        best = min((symmetric_plan(pattern, method) for method in methods), key=lambda plan: plan.count)
        # Products with the transpose are the same: used if torch has no forward mode.
        yield best, "forward"
        yield best, "reverse"

    def _pattern(self, u: Tensor, args: tuple) -> tuple[SparsityPattern, str]:
        pattern, mode = super()._pattern(u, args)
        if pattern.shape[0] == pattern.shape[1] and not pattern.equals(pattern.T):
            arrays = [t.numpy() for t in (pattern.col_indices, pattern.crow_indices)]
            S = scipy.sparse.csr_array((np.ones(pattern.nnz, dtype=bool), *arrays), shape=pattern.shape)
            pattern = build_pattern(scipy.sparse.csr_array(S + S.T), pattern.shape[0])
        return pattern, mode


def hessian(
    f: Callable[..., Tensor],
    pattern: object = None,
    mode: Literal["auto", "star", "acyclic", "columns"] = "auto",
) -> Hessian:
    r"""The sparse Hessian of a scalar function: ``hessian(f)(u, *args)`` is a symmetric CSR.

    The Jacobian of f's gradient, whose entries are read from either side of the diagonal.

    Parameters
    ----------
    f : function of u and args that returns one element, a tensor with u's dtype
    pattern : SparsityPattern, CSR or SciPy matrix, or None: as for `jacobian`. An entry (i, j) without (j, i)
        is completed
    mode : "star" and "acyclic", the colorings of `learnsolve.ordering.symmetric_coloring`; "columns", the
        coloring of `column_coloring`; "auto", star or columns, whichever has fewer colors

    Returns
    -------
    Hessian
        called as ``H(u, *args)``, with the pattern and colors of its first call.

    Raises
    ------
    ValueError
        if f returns more than one element, and as for `jacobian`.
    TypeError
        see `jacobian`.

    Notes
    -----
    Gradient: as for `jacobian`. Cost: one derivative of f's gradient per color, if one variable occurs in all
    terms, two or three. Source: A. Gebremedhin et al., "New acyclic and star coloring algorithms with
    application to computing Hessians", SIAM J. Sci. Comput. 29 (2007).

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> f = lambda u: (u[:-1] * u[-1]).square().sum()
    >>> H = ls.nonlinear.hessian(f)
    >>> H(torch.arange(1.0, 5.0)).to_dense()
    tensor([[32.,  0.,  0., 16.],
            [ 0., 32.,  0., 32.],
            [ 0.,  0., 32., 48.],
            [16., 32., 48., 28.]])
    """
    return Hessian(f, pattern, mode)
