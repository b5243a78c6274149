"""`jacobian_pattern`: where the Jacobian of a function may have entries, from its program."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import (
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    maybe_get_bdim,
)
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils import _pytree as pytree

from learnsolve.matrix import checks
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.matrix.plain import plain_tensors
from learnsolve.nonlinear import _operators, _products, _rules  # noqa: F401  (they register rules)
from learnsolve.nonlinear._trace import Lists, Rows, Tracer, count_of
from learnsolve.solvers.core.report import users_frame


def jacobian_pattern(f: Callable[..., Tensor], u: Tensor, *args: Any) -> SparsityPattern:
    r"""Where the Jacobian of f with respect to u may have entries, from the operations that f calls.

    Parameters
    ----------
    f : function of u and args that returns a tensor of u's dtype, of torch and `learnsolve` operations
    u : Tensor, float32 or float64, of any shape
    args : further arguments of f: tensors, matrices, numbers, nested in lists, tuples and dictionaries

    Returns
    -------
    SparsityPattern, shape (f(u).numel(), u.numel())
        :math:`\partial f_i / \partial u_j` is zero at all u where it has no entry (i, j), with i and j in the
        order of the flattened tensors.

    Raises
    ------
    ValueError
        if f uses random numbers, writes into u, or depends on u in more than 2^28 entries.
    TypeError
        if u is not a tensor of float32 or float64, or f returns something else.

    Warns
    -----
    RuntimeWarning
        names an operation without a rule, whose results are taken to depend on all of its arguments, and one
        by which values of u or args decide what f computes (`if`, indices): the pattern is that of these.

    Notes
    -----
    Global: it holds for all values of u and of floating-point args; both branches of `torch.where` count, and
    any element of a line may be its largest. Integers and numbers in args and constants of f are a part of
    the program, with the zeros of constant matrices that do not require grad. Some entries may always be 0.
    Cost: one derivative of f along one direction, and O(nnz) for each operation. No gradient. Source: the
    index sets of A. Griewank and A. Walther, "Evaluating Derivatives", SIAM 2008, section 7.1.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> ls.nonlinear.jacobian_pattern(lambda u: u[1:] * u[:-1], torch.ones(1000))
    SparsityPattern(shape=(999, 1000), nnz=1998, indices=int32, device=cpu)
    """
    check_argument("jacobian_pattern", u)
    return find_pattern("jacobian_pattern", f, u, args)


def find_pattern(function: str, f: Callable[..., Tensor], u: Tensor, args: tuple) -> SparsityPattern:
    """`jacobian_pattern`, called by `function`."""

    def flat(x: Tensor, shape: torch.Size, args: tuple) -> Tensor:
        return flat_output(function, f(x.reshape(shape), *args), x)

    with outside(function, u, args) as (plain, plain_args):
        return trace_pattern(function, flat, plain, plain_args, "auto")[0]


@contextmanager
def outside(function: str, u: Tensor, args: tuple) -> Iterator[tuple[Tensor, tuple]]:
    """The numbers of the arguments, outside of the transformations of torch.func that are active; the first
    of those that `vmap` maps over, since the pattern is that of all."""
    with temporarily_clear_interpreter_stack(), within_torch(function):
        u, args = pytree.tree_map(lambda t: first_of(function, t) if isinstance(t, Tensor) else t, (u, args))
        yield u.clone(memory_format=torch.contiguous_format), args


_MEMORY = (
    "f must consist of operations of torch and learnsolve, but takes the memory of a tensor that depends on "
    "u, as .numpy() and torch.sparse_coo_tensor do; write f in torch, with a learnsolve.CSR for a sparse "
    "matrix, or an autograd.Function with a jvp"
)
_SPARSE = (
    "f uses a torch.sparse tensor T in an operation other than T @ u, or T is not a constant in COO layout; "
    "make it a learnsolve.CSR, CSR.from_torch(T), or dense, T.to_dense()"
)
_REASONS = {"data pointer": _MEMORY, "numpy()": _MEMORY, "do not have strides": _SPARSE}
_REASONS |= {"access storage of Sparse": _SPARSE, "_sparse_coo_tensor": _SPARSE, "with _to_sparse": _SPARSE}
_REASONS |= {"with sparse_mask": _SPARSE}


@contextmanager
def within_torch(function: str) -> Iterator[None]:
    """What torch says of an f that it cannot differentiate, in our words."""
    try:
        yield
    except RuntimeError as error:
        for said, reason in _REASONS.items():
            if said in str(error):
                raise ValueError(f"{function}: {reason}") from error
        raise


def first_of(function: str, t: Tensor) -> Tensor:
    while is_functorch_wrapped_tensor(t):
        inner = get_unwrapped(t)
        if is_batchedtensor(t):
            if not t.is_floating_point():
                raise NotImplementedError(
                    f"{function}: torch.func.vmap maps over an integer tensor among args, which may decide "
                    "the pattern; map over floating-point tensors only"
                )
            inner = inner.select(maybe_get_bdim(t), 0)
        t = inner
    return t.detach()


class _Content:
    """A tensor that is a part of the program, as a key: equal to those with the same values."""

    def __init__(self, t: Tensor):
        self.t = t

    def __hash__(self) -> int:
        return hash((self.t.shape, self.t.dtype, self.t.device))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Content) and hash(self) == hash(other) and torch.equal(self.t, other.t)


def program_key(function: str, u: Tensor, args: tuple, keep: bool = False) -> tuple:
    """Arguments with equal keys have the same pattern: values of floating-point tensors may differ. All
    other arguments are part of the program, which may branch on them or index with them. `keep`: with
    copies of what may change."""
    leaves, structure = pytree.tree_flatten(args)  # the structure holds the patterns of CSRs
    key: list[Any] = [tuple(u.shape), u.dtype, u.device, structure]
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            key.append(tuple(leaf.shape))
            if not leaf.is_floating_point():
                t = first_of(function, leaf)
                key.append(_Content(t.clone() if keep else t))
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
    return tuple(key)


def trace_pattern(
    function: str, f: Callable[[Tensor, torch.Size, tuple], Tensor], u: Tensor, args: tuple, mode: str
) -> tuple[SparsityPattern, str]:
    """The pattern, and the mode that found it: torch has no forward mode for some operations."""
    x = u.reshape(-1)

    def flat(x: Tensor) -> Tensor:
        return f(x, u.shape, args)

    if mode != "reverse":
        try:
            return _pattern(function, *_forward(function, flat, x, args)), mode
        except (NotImplementedError, RuntimeError) as error:  # of torch's forward mode
            if mode == "forward":
                raise
            try:
                return _pattern(function, *_reverse(function, flat, x, args)).T, "reverse"
            except (NotImplementedError, RuntimeError):
                raise error from None
    return _pattern(function, *_reverse(function, flat, x, args)).T, "reverse"


def _forward(function: str, flat: Callable, x: Tensor, args: tuple) -> tuple[Tracer, Rows]:
    """Rows of J: its products with a tangent."""
    tracer = Tracer(function, x, _rules, x.numel())
    mark(tracer, x, args)
    tangent = random_like(x)
    tracer.write(tangent, identity(x.numel()))
    with torch.no_grad(), tracer, Lists(tracer):
        out, along = torch.func.jvp(flat, (x,), (tangent,))[:2]
    if tracer.only_reverse:
        raise NotImplementedError(tracer.only_reverse)
    rows = tracer.rows(along)
    return tracer, tracer.empty(out.numel()) if rows is None else rows


def _reverse(function: str, flat: Callable, x: Tensor, args: tuple) -> tuple[Tracer, Rows]:
    """Rows of J^T: its products with a cotangent."""
    tracer = Tracer(function, x, _rules, 0)
    mark(tracer, x, args)
    with tracer, Lists(tracer):
        out, pull = torch.func.vjp(flat, x)[:2]
    tracer.width = out.numel()
    cotangent = random_like(out)
    tracer.write(cotangent, identity(out.numel()))
    with tracer:
        along = pull(cotangent)[0]
    rows = tracer.rows(along)
    return tracer, tracer.empty(x.numel()) if rows is None else rows


def mark(tracer: Tracer, x: Tensor, args: tuple) -> None:
    """u and floating-point args take other values in other calls; integers are a part of the program."""
    for t in (x, *pytree.tree_leaves(args)):
        if isinstance(t, Tensor) and t.is_floating_point():
            tracer.write(t, None)


def random_like(t: Tensor) -> Tensor:
    """Numbers of which no derivative vanishes by chance; the same in each call."""
    with plain_tensors():
        generator = torch.Generator().manual_seed(20)
        return torch.randn(t.shape, dtype=t.dtype, generator=generator).to(t.device)


def identity(n: int) -> Rows:
    dtype = np.int32 if n < 2**31 - 1 else np.int64
    parts = (np.ones(n, dtype=bool), np.arange(n, dtype=dtype), np.arange(n + 1, dtype=dtype))
    return Rows(parts, shape=(n, n))


_SAY = {
    "dense": "no rule for {}: its results are taken to depend on all that its arguments depend on",
    "values": "{} reads values of u or args, which decide what f computes: the pattern is that of these",
}


def _pattern(function: str, tracer: Tracer, rows: Rows) -> SparsityPattern:
    for kind, what in tracer.notes:
        warnings.warn(f"{function}: {_SAY[kind].format(what)}", RuntimeWarning, stacklevel=users_frame())
    return pattern_of(rows, tracer.width)


def pattern_of(rows: Rows, width: int) -> SparsityPattern:
    shape = (count_of(rows), width)
    dtype = np.int32 if max(*shape, len(rows.indices)) < 2**31 else np.int64
    crow, col = (torch.from_numpy(a.astype(dtype)) for a in (rows.indptr, rows.indices))
    return SparsityPattern(crow, col, shape)


def check_argument(function: str, u: Any) -> None:
    checks.tensor(function, "u", u)
    checks.dtype(function, "u", u)


def flat_output(function: str, out: Any, u: Tensor) -> Tensor:
    if not isinstance(out, Tensor):
        raise TypeError(f"{function}: f must return a torch.Tensor, got {type(out).__name__}")
    if out.dtype != u.dtype:
        raise TypeError(
            f"{function}: f must return the dtype of u, {u.dtype}, got {out.dtype}; convert one with .to()"
        )
    return out.reshape(-1)
