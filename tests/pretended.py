"""A CUDA device where there is none: tensors of the host that say they are on "cuda:0".

Inside `PretendedCuda`, whatever is moved to or made on a CUDA device is marked, and so is whatever is
computed from it. Marked tensors answer `device`, `is_cpu` and `is_cuda` as those of a device do, and the
rules of a device hold: operands must be on one device (numbers and tensors without axes excepted), NumPy
cannot see them, a random generator must be of their device. What makes the host wait for the device is noted
in `waits`.

Their numbers are computed by the CUDA operators that are compiled for the host (tests/conftest.py), and by
torch's for the CPU.
"""

import contextlib
import traceback
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch
import torch.utils.checkpoint
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
# Results whose shape or Python value depends on numbers of the device.
WAITING = {
    "_local_scalar_dense",
    "equal",
    "is_nonzero",
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_consecutive",
    "unique_dim",
    "bincount",
    "linalg_lstsq",
}
HOST_ARGUMENTS = {"bounds", "levels"}  # of the library's operators: what a launch is made by
COPIES = ("copy_", "_to_copy")


def _storage(t: Tensor):
    while torch._C._functorch.is_functorch_wrapped_tensor(t):
        t = torch._C._functorch.get_unwrapped(t)
    return t.untyped_storage()


class PretendedCuda:
    # Storages, kept, lest their addresses are used again. Of all devices of this kind: the library shares
    # some patterns between calls.
    marked: dict[int, object] = {}  # noqa: RUF012

    def __init__(self) -> None:
        self.waits: list[str] = []
        self.anywhere: dict[
            int, object
        ] = {}  # zeros that autograd makes, on whichever device they are needed
        self.asked = False  # a factory was called from Python
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "PretendedCuda":
        stream = SimpleNamespace(synchronize=lambda: None)
        for name, value in (
            ("device", contextlib.nullcontext),
            ("synchronize", lambda *_: None),
            ("current_stream", lambda *_: stream),
            ("is_current_stream_capturing", lambda: False),
        ):
            self._stack.enter_context(mock.patch.object(torch.cuda, name, value))
        # What checkpoints compare, devices for one, is seen once with and once without the modes.
        checks = torch.utils.checkpoint._allowed_determinism_checks_to_fns
        self._stack.enter_context(mock.patch.dict(checks, {"default": checks["none"]}))
        # Backward passes run under the modes too, instead of being handed to them.
        self._stack.enter_context(mock.patch("torch.autograd.has_torch_function", return_value=False))
        self._stack.enter_context(_Operations(self))
        self._stack.enter_context(_Functions(self))
        return self

    def __exit__(self, *error) -> None:
        self._stack.__exit__(*error)

    def mark(self, tensors, on: bool = True) -> None:
        with torch._C.DisableTorchFunction():
            for t in tree_leaves(tensors):
                if isinstance(t, Tensor) and t.layout is torch.strided:
                    storage = _storage(t)
                    if on:
                        self.marked[storage._cdata] = storage
                    else:
                        self.marked.pop(storage._cdata, None)

    def has(self, t: Tensor) -> bool:
        with torch._C.DisableTorchFunction():
            return t.layout is torch.strided and _storage(t)._cdata in self.marked

    def wait(self, what: str) -> None:
        """Noted with the line of the library that waits."""
        here = [f for f in traceback.extract_stack() if "/learnsolve/" in f.filename]
        at = f" in {Path(here[-1].filename).name}:{here[-1].lineno}" if here else ""
        self.waits.append(what + at)


class _Move(torch.autograd.Function):
    """A copy on the other side; its gradient comes back."""

    @staticmethod
    def forward(t, cuda: PretendedCuda, on: bool):
        out = t.clone()
        cuda.mark(out, on)
        return out

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.cuda, ctx.on = inputs

    @staticmethod
    def backward(ctx, g):
        return _Move.apply(g, ctx.cuda, not ctx.on), None, None


def _device(value) -> torch.device | None:
    if isinstance(value, torch.device):
        return value
    if isinstance(value, str) and value.split(":")[0] in ("cpu", "cuda", "meta"):
        return torch.device(value)
    return None


class _Functions(TorchFunctionMode):
    """What Python asks for: devices, moves, factories."""

    def __init__(self, cuda: PretendedCuda):
        super().__init__()
        self.cuda = cuda

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, cuda, name = dict(kwargs or {}), self.cuda, getattr(func, "__name__", "")
        first = args[0] if args and isinstance(args[0], Tensor) else None
        on = first is not None and cuda.has(first)
        if name == "__get__" and on:
            of = func.__self__
            if of is Tensor.device:
                return CUDA
            if of in (Tensor.is_cuda, Tensor.is_cpu):
                return of is Tensor.is_cuda
        if func is Tensor.backward:
            with self:
                return torch.autograd.backward(*args, **kwargs)
        if name in ("cpu", "cuda") and first is not None:
            return self._to(first, CPU if name == "cpu" else CUDA)
        if name == "to" and first is not None:
            return self._to_call(first, args[1:], kwargs)
        if name in ("numpy", "__array__") and on:
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu()")
        if name == "tolist" and on:
            cuda.wait("tolist")
        if name == "__deepcopy__" and on:
            out = func(*args, **kwargs)
            cuda.mark(out)
            return out
        for other in args:
            if not isinstance(other, Tensor) and hasattr(other, "__torch_function__"):  # a CSR: x @ A
                with self:
                    return type(other).__torch_function__(func, types, args, kwargs)
        asked, cuda.asked = cuda.asked, True
        try:
            return self._call(func, name, args, kwargs, on)
        finally:
            cuda.asked = asked

    def _call(self, func, name, args, kwargs, on):
        cuda, device = self.cuda, _device(kwargs.get("device"))
        if device is None or device.type == "meta":
            return func(*args, **kwargs)
        kwargs["device"] = CPU
        generator = kwargs.get("generator")
        if device.type == "cuda" and generator is not None:
            raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
        if device.type == "cuda" and name in ("tensor", "as_tensor", "asarray"):
            cuda.wait(name)
            if on and name != "tensor":
                return func(*args, **kwargs)
        out = func(*args, **kwargs)
        if on and device.type == "cpu":
            cuda.wait(name)
        cuda.mark(out, device.type == "cuda")
        return out

    def _to(self, t: Tensor, device: torch.device, *rest, **kwargs) -> Tensor:
        kwargs.pop("non_blocking", None)
        if device.type == "meta":
            return t.to(device, *rest, **kwargs)
        moves = self.cuda.has(t) != (device.type == "cuda")
        if moves:
            self.cuda.wait(f"to {device.type}")
            t = _Move.apply(t, self.cuda, device.type == "cuda")
        if rest or kwargs:
            t = t.to(*rest, **kwargs)
        return t

    def _to_call(self, t: Tensor, args: tuple, kwargs: dict) -> Tensor:
        device = _device(kwargs.pop("device", None))
        if args and isinstance(args[0], Tensor):
            device, args = (CUDA if self.cuda.has(args[0]) else CPU), (args[0].dtype, *args[1:])
        elif args and _device(args[0]) is not None:
            device, args = _device(args[0]), args[1:]
        args = tuple(a for a in args if a is not None)
        kwargs = {k: v for k, v in kwargs.items() if v is not None}
        if device is None:
            return t.to(*args, **kwargs) if args or kwargs else t
        return self._to(t, device, *args, **kwargs)


class _Operations(TorchDispatchMode):
    """What is computed, in a backward pass too: results are where their operands are."""

    def __init__(self, cuda: PretendedCuda):
        super().__init__()
        self.cuda = cuda

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunction():
            return self._run(func, args, kwargs or {}, self.cuda)

    def _run(self, func, args, kwargs, cuda):
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        tensors = [t for t in tensors if t.layout is torch.strided]  # torch's sparse tensors are made of them
        there = [t for t in tensors if cuda.has(t)]
        if not there:
            out = func(*args, **kwargs)
            if not cuda.asked and all(_storage(t)._cdata in cuda.anywhere for t in tensors):
                for t in tree_leaves(out):
                    if isinstance(t, Tensor) and t.layout is torch.strided:
                        cuda.anywhere[_storage(t)._cdata] = _storage(t)
            return out
        host = [a for p, a in zip(func._schema.arguments, args, strict=False) if p.name in HOST_ARGUMENTS]
        ours, name = func.namespace == "learnsolve", func._schema.name.split("::")[1]
        left = [t for t in tensors if not cuda.has(t) and (ours or t.dim() > 0)]
        left = [t for t in left if not any(t is h for h in host) and _storage(t)._cdata not in cuda.anywhere]
        if left and name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            cuda.wait(f"{name} by indices of the host")
            left = [t for t in left if t is args[0]]
        if left and name not in COPIES:
            shapes = [tuple(t.shape) for t in left]
            raise RuntimeError(
                f"{name}: all tensors must be on one device, those of {shapes} are on the host"
            )
        if left and name == "copy_":
            cuda.wait("copy_")
        masks = name in ("index", "index_put", "index_put_", "_index_put_impl_") and any(
            isinstance(t, Tensor) and t.dtype == torch.bool for t in args[1]
        )
        repeats = name == "repeat_interleave" and kwargs.get("output_size") is None
        if name in WAITING or masks or repeats:
            cuda.wait(name)
        on = [t for t in tensors if cuda.has(t)]
        out = func(*args, **kwargs)
        if name == "copy_":
            return out  # stays where it was
        if on:
            cuda.mark(out)
        return out


def moved(value, device="cuda"):
    """Tensors, matrices and whatever else has `.to` in a structure of tuples, lists and dictionaries."""
    if isinstance(value, (tuple, list)):
        return type(value)(moved(v, device) for v in value)
    if isinstance(value, dict):
        return {k: moved(v, device) for k, v in value.items()}
    return value.to(device) if hasattr(value, "to") and not isinstance(value, type) else value
