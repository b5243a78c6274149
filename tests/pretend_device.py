"""A simulated device: it computes on the host, and refuses what a CUDA device would refuse.

Without a GPU torch has no CUDA device to offer, but it has the device "meta". Tensors made there under
`PretendDevice` hold numbers. An operation that mixes them with tensors of the CPU, `.numpy()` without
`.cpu()`, or a tensor made without its device, fails as on a CUDA device. So tests of Python code for CUDA
tensors can run anywhere: `pytest --device pretend`. Kernels are those of the CPU, or with
LEARNSOLVE_CUDA_EMULATOR=1 (tests/conftest.py) the emulated CUDA operators, whose plans fit.

Operations that would make the host wait for the device are recorded in `waits`, and in `known` which streams
the allocator knows to read a memory; `stream` is the current one.
"""

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import learnsolve
import learnsolve as ls
from learnsolve.matrix import cache

DEVICE = torch.device("meta")
LIBRARY = str(Path(learnsolve.__file__).parent) + os.sep

aten = torch.ops.aten
# Operations that take tensors of both devices: copies, and places given by tensors of the CPU.
COPIES = {aten.copy_, aten._to_copy, aten.to}
PLACES = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index_put}
# Operations whose result has a shape, or is a number of Python, that depends on numbers of the device.
WAITING = {
    aten._local_scalar_dense,
    aten.equal,
    aten.is_nonzero,
    aten.nonzero,
    aten.masked_select,
    aten._unique2,
    aten.unique_consecutive,
    aten.unique_dim,
    aten.bincount,
    aten.linalg_lstsq,
}
waits: list[str] = []
known: set[tuple[int, int]] = set()
stream = SimpleNamespace(stream_id=0, synchronize=lambda: None)
# Operands of our operators that say where levels begin: the host launches a kernel for each.
ON_HOST = {"bounds", "levels"}
OF_DATA = ("tensor", "as_tensor", "asarray")
# These change a shape in place.
RESHAPING = ("squeeze_", "unsqueeze_", "t_", "transpose_", "swapdims_", "swapaxes_", "as_strided_")


class There(Tensor):
    """A tensor of the device: `numbers` is its contents, on the host."""

    numbers: Tensor
    is_cuda, is_meta = True, False  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, numbers: Tensor) -> "There":
        if numbers._is_zerotensor():  # has no memory to measure
            numbers = numbers.clone()
        # torch looks for these marks on the tensor that it sees.
        conjugate, negative = numbers.is_conj(), numbers.is_neg()
        numbers = numbers.conj() if conjugate else numbers
        numbers = torch._neg_view(numbers) if negative else numbers
        # A tensor of torch's "meta": of the same shape, in a memory of the same size, which is not there.
        size = numbers.untyped_storage().nbytes() // numbers.itemsize
        whole = torch.empty(size, dtype=numbers.dtype, device=DEVICE)
        shape = numbers.shape, numbers.stride(), numbers.storage_offset()
        t = Tensor._make_subclass(cls, whole.as_strided(*shape))
        torch._C._set_conj(t, conjugate)
        torch._C._set_neg(t, negative)
        t.numbers = numbers
        return t

    @property
    def data(self) -> Tensor:  # type: ignore[override]
        return Tensor.data.__get__(self)  # type: ignore[attr-defined]

    @data.setter
    def data(self, other: "There") -> None:  # as `Module.float` does with parameters
        Tensor.data.__set__(self, other)  # type: ignore[attr-defined]
        self.numbers = other.numbers

    def data_ptr(self) -> int:
        return self.numbers.data_ptr()

    def memory(self) -> int:
        return self.numbers.untyped_storage().data_ptr()

    def record_stream(self, s: Any) -> None:
        known.add((self.memory(), s.stream_id))

    @classmethod
    def __torch_dispatch__(cls, operator: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        return dispatch(operator, args, kwargs or {})  # also where the mode is off, in a backward say

    __torch_function__ = torch._C._disabled_torch_function_impl


There.__name__ = "Tensor"  # in messages


def dispatch(operator: Any, args: tuple, kwargs: dict) -> Any:
    """Compute on the host; the result is where a device would have it."""
    packet = operator.overloadpacket
    given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    there = any(isinstance(t, There) for t in given)
    if there and waits_for_it(packet, args, kwargs):
        wait(packet.__name__)
    if kwargs.get("device") is not None:
        there = torch.device(kwargs["device"]) == DEVICE
        kwargs = kwargs | {"device": "cpu"}
        if there and kwargs.get("generator") is not None:
            raise RuntimeError("Expected a generator of the device, but found one of the CPU")
    if packet in COPIES:
        here = isinstance(args[0], There)
        there = here if packet == aten.copy_ else there
        if len({isinstance(t, There) for t in given} | {there}) == 2:
            wait(packet.__name__)
    elif there and packet not in PLACES:
        strangers = [t for t in foreign(operator, args, kwargs) if not isinstance(t, There)]
        if strangers:
            raise RuntimeError(
                f"{operator}: expected all tensors to be on the same device, but found at least two, the "
                f"pretended one and cpu: {[tuple(t.shape) for t in strangers]}"
            )
    result = operator(*tree_map(numbers_of, args), **tree_map(numbers_of, kwargs))
    if there and packet.__name__ in RESHAPING:
        guard = torch._C._DisableTorchDispatch()  # of the shape that torch sees too
        operator(*args, **kwargs)
        del guard
    return tree_map(lambda t: There(t) if isinstance(t, Tensor) else t, result) if there else result


def foreign(operator: Any, args: tuple, kwargs: dict) -> list[Tensor]:
    """The tensors that must be on the device: for torch all but single numbers; for an operator of ours all
    but those that it reads on the host."""
    if operator.namespace != "learnsolve":
        return [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.dim()]
    named = dict(zip((a.name for a in operator._schema.arguments), args, strict=False)) | kwargs
    return [t for name, t in named.items() if isinstance(t, Tensor) and name not in ON_HOST]


def waits_for_it(packet: Any, args: tuple, kwargs: dict) -> bool:
    if packet in PLACES:  # given by a mask, or sent over from the CPU
        return any(t.dtype == torch.bool or not isinstance(t, There) for t in args[1] if t is not None)
    return packet in WAITING or (packet == aten.repeat_interleave and kwargs.get("output_size") is None)


def wait(what: str) -> None:
    """Noted with the line of the library that waits."""
    frame = sys._getframe()
    while frame and not frame.f_code.co_filename.startswith(LIBRARY):
        frame = frame.f_back
    at = f" in {Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame else ""
    waits.append(what + at)


def numbers_of(value: Any) -> Any:
    return value.numbers if isinstance(value, There) else value


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, operator: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        return dispatch(operator, args, kwargs or {})


def _of_data(function: Any) -> Any:
    """`torch.tensor` and its variants, which read their data before any mode sees them."""

    def make(
        data: Any, *args: Any, device: Any = None, requires_grad: bool = False, **keywords: Any
    ) -> Tensor:
        if isinstance(data, Tensor):
            return function(data, *args, device=data.device if device is None else device, **keywords)
        made = function(data, *args, device="cpu", **keywords)
        made = made.to(torch.empty(0).device if device is None else device)
        return made.requires_grad_() if requires_grad else made

    return make


class PretendDevice:
    """Context in which torch's device "meta" computes."""

    def __enter__(self) -> None:
        self.context = ExitStack()
        self._replace(
            torch.cuda,
            device=lambda _: nullcontext(),
            current_stream=lambda *_: stream,
            is_current_stream_capturing=lambda: False,
            synchronize=lambda *_: None,
        )
        self._replace(cache, _raw_stream=lambda _: stream.stream_id)
        self._replace(torch, **{name: _of_data(getattr(torch, name)) for name in OF_DATA})
        self._replace(torch, compile=lambda *_, **__: pytest.skip("torch.compile: not on this device"))
        tolist = Tensor.tolist  # which a subclass does not have
        self._replace(Tensor, tolist=lambda t: tolist(t.cpu()))
        self.context.enter_context(_Dispatch())

    def _replace(self, owner: Any, **functions: Any) -> None:
        for name, function in functions.items():
            self.context.enter_context(patch.object(owner, name, function))

    def __exit__(self, *error: Any) -> None:
        self.context.close()


TESTS = str(Path(__file__).resolve().parent)
NAMES = ("cpu", "cuda", "pretend")


def what_is_missing(name: str, on_host: bool) -> str:
    """Why tests cannot run on this device; nothing if they can."""
    if name == "cuda" and not torch.cuda.is_available():
        return "--device cuda: torch sees no CUDA device"
    if name == "pretend" and not on_host:
        return (
            "--device pretend needs the emulated CUDA operators: build and run with "
            "LEARNSOLVE_CUDA_EMULATOR=1"
        )
    return ""


def moved(function: Callable) -> Callable:
    """The constructor, for calls that a test makes without a device."""

    @functools.wraps(function)
    def make(*args: Any, **keywords: Any) -> Any:
        made = function(*args, **keywords)
        if "device" in keywords or not sys._getframe(1).f_code.co_filename.startswith(TESTS):
            return made
        return made.to(torch.empty(0).device) if isinstance(made, ls.CSR) else made

    return make


@contextmanager
def tensors_on(name: str) -> Iterator[torch.device]:
    if name == "cpu":
        yield torch.device("cpu")
        return
    makers = [f for f, v in vars(ls.problems).items() if inspect.isfunction(v)]
    kept = [(ls.problems, f, getattr(ls.problems, f)) for f in makers]
    kept.append((ls.CSR, "from_scipy", inspect.getattr_static(ls.CSR, "from_scipy")))
    for owner, maker, function in kept[:-1]:
        setattr(owner, maker, moved(function))
    ls.CSR.from_scipy = staticmethod(moved(ls.CSR.from_scipy))  # type: ignore[method-assign]
    try:
        device = DEVICE if name == "pretend" else torch.device(name)
        with PretendDevice() if name == "pretend" else nullcontext():
            torch.set_default_device(device)
            torch.backends.cudnn.allow_tf32 = False  # references need all digits
            yield device
    finally:
        torch.set_default_device(None)
        for owner, maker, function in kept:
            setattr(owner, maker, function)
