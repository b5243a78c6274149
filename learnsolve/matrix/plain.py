"""Ordinary tensors, whatever the context in which they are created."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch._C._functorch import (
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    is_legacy_batchedtensor,
    maybe_get_bdim,
    maybe_get_level,
    peek_interpreter_stack,
)
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
from torch.autograd import forward_ad

try:
    from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
except ImportError:  # private names of torch
    set_code_exec_strategy = None

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def plain_tensors() -> Iterator[None]:
    """Tensors created inside are ordinary ones, whatever the context of the caller. Cached and shared data of
    a pattern must not belong to a `torch.func` transformation or to inference mode."""
    with torch.inference_mode(False), torch._C._DisableFuncTorch():
        yield


def readable(v: Tensor) -> bool:
    """Whether Python may read the values of `v`: not under transformations, under `torch.compile`, while
    operations are recorded, or on a GPU."""
    if torch.compiler.is_dynamo_compiling() or type(v) not in (Tensor, torch.nn.Parameter) or not v.is_cpu:
        return False
    if is_legacy_batchedtensor(v) or torch._C._is_tracing():
        return False
    return not (torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack())


def unmapped(t: Tensor) -> Tensor:
    """The tensor behind one that `torch.func` differentiates, for values without a derivative."""
    while is_functorch_wrapped_tensor(t):
        if is_batchedtensor(t):
            raise NotImplementedError(
                "patterns, index arrays, files and arrays of NumPy cannot be made of a tensor that "
                "torch.func.vmap maps over: make them outside of the transformed function, and map over "
                "values, learnsolve.CSR(values, pattern)"
            )
        t = get_unwrapped(t)
    return t


def as_one(run: Callable[[], T], inputs: Sequence[Tensor], dims: Sequence[int]) -> T:
    """`run()`, a solve whose first result depends on `inputs` along `dims`: a dispatch mode with a method of
    this name (nonlinear/_trace.py) takes it as one operation."""
    mode = _follower()
    return run() if mode is None else mode.as_one(run, inputs, dims)


def _follower() -> Any:
    modes = torch._C._len_torch_dispatch_stack()
    mode = torch._C._get_dispatch_stack_at(modes - 1) if modes else None
    return mode if hasattr(mode, "as_one") else None


def chooses(function: Callable[P, T]) -> Callable[P, T]:
    """The values that `function` reads decide how it solves, not what its results depend on."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        mode = _follower()
        if mode is None or mode.choosing:
            return function(*args, **kwargs)
        mode.choosing = True
        try:
            return function(*args, **kwargs)
        finally:
            mode.choosing = False

    return call


def outside_of_graphs(function: Callable[P, T], why: str | None = None) -> Callable[P, T]:
    """`torch.compile` does not trace `function`: it breaks its graph there, or, with `fullgraph=True`, raises
    an error that says `why`.

    The same as `torch.compiler.disable`, without loading Dynamo here, which takes seconds.
    """
    if set_code_exec_strategy is None:
        return torch.compiler.disable(function, reason=why)  # type: ignore[return-value]
    function._torchdynamo_disable_msg = why  # type: ignore[attr-defined]
    function._torchdynamo_disable = True  # type: ignore[attr-defined]  # called while Dynamo traces
    # Called by compiled code, after the graph break: neither this frame nor those below it are compiled.
    skip = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    set_code_exec_strategy(function.__code__, skip)  # type: ignore[attr-defined]
    return function


def constant_in_graphs(function: Callable[P, T]) -> Callable[P, T]:
    """`torch.compile` calls `function` while it traces and treats the result as a constant: the mark set by
    `torch.compiler.assume_constant_result`, without loading Dynamo."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def makes_plain_tensors(make: Callable[P, T]) -> Callable[P, T]:
    """Run `make` within `plain_tensors`, and outside the graph that `torch.compile` traces."""

    @wraps(make)
    def outside(*args: P.args, **kwargs: P.kwargs) -> T:
        with plain_tensors():
            return make(*args, **kwargs)

    return outside_of_graphs(outside)


def numbers(t: Tensor) -> Tensor:
    """The values of a tensor under torch.func transformations, mapped axes first."""
    mapped: list[int] = []  # axis of each map, outermost first, in the tensor that it holds
    while is_functorch_wrapped_tensor(t):
        if is_batchedtensor(t):
            mapped.append(maybe_get_bdim(t))
        t = get_unwrapped(t)
    for i, dim in enumerate(reversed(mapped)):
        t = t.movedim(dim + i, i)
    return t.detach()


def sample(t: Tensor) -> Tensor:
    """The values of a tensor under torch.func transformations, of the first index of each map: a plain
    tensor, also at the levels of the transformations."""
    with plain_tensors():
        values = numbers(t)
        return values[(0,) * (values.dim() - t.dim())]


def carries_graph(t: Tensor) -> bool:
    """Whether t requires grad or has a tangent, at any level of torch.func."""
    if t.requires_grad or torch.compiler.is_dynamo_compiling():
        return t.requires_grad
    held = t
    while is_functorch_wrapped_tensor(held):
        held = get_unwrapped(held)
    return held.requires_grad or bool(transformations(t) - {"vmap"})


def transformations(t: Tensor) -> set[str]:
    """What acts on t at any level: torch.func's "grad", "jvp" and "vmap", and "dual", forward mode outside of
    torch.func. Each level is looked at from within: from above, the tangents of a lower one are not
    visible."""
    interpreter = peek_interpreter_stack()
    if interpreter is None:
        return {"dual"} if forward_ad.unpack_dual(t).tangent is not None else set()
    acting: set[str] = set()
    if is_functorch_wrapped_tensor(t) and maybe_get_level(t) == interpreter.level():
        if is_batchedtensor(t):
            acting.add("vmap")
        else:
            acting |= {"grad"} if t.requires_grad else set()
            acting |= {"jvp"} if forward_ad.unpack_dual(t).tangent is not None else set()
        t = get_unwrapped(t)
    with temporarily_pop_interpreter_stack():
        return acting | transformations(t)
