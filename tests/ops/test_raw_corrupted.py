"""Raw operators with arguments that do not fit: each call raises or returns, none ends the process.

Every call runs in a child process, with one argument of a valid call corrupted. What is checked always and
what on request (LEARNSOLVE_CHECK=1) csrc/ops/schema.cpp says."""

import contextlib
import mmap
import os
import random

import pytest
import torch
from ops.test_raw_operators import OPERATORS, ops, samples_of
from torch.utils._pytree import tree_flatten_with_path, tree_unflatten

import learnsolve as ls
from learnsolve import _library

pytestmark = [pytest.mark.cpu_only, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")]

DTYPES = [
    torch.float32,
    torch.float64,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.float16,
    torch.complex128,
]
# What no size tells, so that a wrong one is content: the rows of operands that a matrix multiplies.
OPERANDS = {
    "csr_spmm": (5,),
    "csr_sddmm": (4,),
    "csr_spmv_scatter_backward": (5,),
    "csr_spmm_backward": (8, 9),
}


def sizes_of(t, rng):
    """Another shape, dtype, device or layout: what an operator always refuses, or can use."""
    kinds = ["shorter", "longer", "empty", "scalar", "more axes", "flat", "other dtype", "meta", "strided"]
    kind = rng.choice(kinds)
    if kind == "shorter" and t.dim() and t.shape[-1]:
        return t[..., :-1] if rng.random() < 0.5 else t[:-1]
    if kind == "longer" and t.dim():
        return torch.cat((t, t), rng.choice((0, -1)))
    if kind == "empty" and t.dim():
        return t[..., :0] if rng.random() < 0.5 else t[:0]
    if kind == "scalar":
        return t.new_zeros(())
    if kind == "more axes":
        return t[None].expand(rng.choice((1, 2, 3)), *t.shape)
    if kind == "flat":
        return t.flatten()
    if kind == "other dtype":
        return t.to(rng.choice(DTYPES))
    if kind == "meta":
        return t.to("meta")
    return torch.stack((t, t), -1)[..., 0]


def contents_of(t, rng):
    """Other indices, some of them negative or far too large."""
    out = t.clone().flatten()
    if t.is_floating_point() or len(out) == 0:
        return sizes_of(t, rng)
    most = torch.iinfo(t.dtype).max
    for _ in range(rng.choice((1, 1, 2, len(out)))):
        i = rng.randrange(len(out))
        near = int(out[i]) + rng.choice((-2, -1, 1, 2, 3))
        out[i] = rng.choice((min(max(near, 0), most), rng.randrange(20), most, most // 2, 0))
        if rng.random() < 0.3:
            out[i] = -1 if t.dtype.is_signed else 255
    return out.reshape(t.shape)


def corrupted(name, arguments, rng, contents):
    """The arguments with one of them changed."""
    if rng.random() < 0.1:
        lists = [i for i, a in enumerate(arguments) if isinstance(a, list | tuple)]
        if lists:
            i = rng.choice(lists)
            a = list(arguments[i])
            other = rng.choice((a[:-1], a + a[-1:], [], a[::-1] if contents else a[1:]))
            return [*arguments[:i], other, *arguments[i + 1 :]]
    leaves, tree = tree_flatten_with_path(list(arguments))
    values = [leaf for _, leaf in leaves]
    i = rng.choice([i for i in range(len(values)) if contents or i not in OPERANDS.get(name, ())])
    v = values[i]
    if isinstance(v, torch.Tensor):
        values[i] = (contents_of if contents and rng.random() < 0.7 else sizes_of)(v, rng)
    elif isinstance(v, bool):
        values[i] = not v if contents else v
    elif isinstance(v, int):
        values[i] = rng.choice((-1, -(2**62), 2**62, *((0, v + 1, v - 1) if contents else ())))
    elif v is None:
        values[i] = rng.choice((torch.ones(1), torch.ones(3, dtype=torch.float64).to("meta")))
    return tree_unflatten(values, tree)


def describe(arguments):
    leaves = tree_flatten_with_path(list(arguments))[0]
    kind = lambda t: (t.dtype, t.device, tuple(t.shape)) if isinstance(t, torch.Tensor) else t  # noqa: E731
    return "; ".join(f"{''.join(map(str, place))} {kind(t)}" for place, t in leaves)


def run(name, contents, rounds, seed):
    """The exit status of a child process that makes the calls, and the last one's arguments."""
    samples = samples_of(name, torch.float64, torch.int32) + samples_of(name, torch.float32, torch.int64)
    operator = getattr(ops, name)
    told = mmap.mmap(-1, 2**16)
    child = os.fork()
    if child == 0:
        status = 0
        try:
            _library._cpu.learnsolve_check_contents(int(contents))
            rng = random.Random(f"{name} {seed}")
            for i in range(rounds):
                arguments = corrupted(name, rng.choice(samples), rng, contents)
                text = f"{seed}, {i}: {describe(arguments)}".encode()[: len(told) - 1]
                told[: len(text) + 1] = text + b"\0"
                with contextlib.suppress(RuntimeError, MemoryError, TypeError, ValueError):
                    operator(*arguments)
        except BaseException as error:
            told[:] = repr(error).encode()[: len(told)].ljust(len(told), b"\0")
            status = 1
        os._exit(status)
    _, status = os.waitpid(child, 0)
    return status, told[: told.find(b"\0")].decode()


@pytest.mark.parametrize("contents", [False, True], ids=["sizes", "contents"])
@pytest.mark.parametrize("name", OPERATORS)
def test_no_call_ends_the_process(name, contents):
    status, last = run(name, contents, 250, 0)
    assert status == 0, f"status {status} in {last}"


def test_contents_of_an_expanded_operand_are_its_own():
    """What lies behind it in memory is not."""
    S = ls.ops.eye(4).pattern._structure(False)
    memory = torch.full((100,), 10**6, dtype=S[1].dtype)
    memory[:4] = torch.arange(4)
    g = torch.ones(3, 4, 1)
    _library._cpu.learnsolve_check_contents(1)
    try:
        out = ops.csr_segment_place(S, memory[:4, None].expand(3, 4, 1), g)
    finally:
        _library._cpu.learnsolve_check_contents(os.environ.get("LEARNSOLVE_CHECK", "") not in ("", "0"))
    assert torch.equal(out, g)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
@pytest.mark.parametrize("name", OPERATORS)
def test_no_call_of_many_ends_the_process(name, seed):
    for contents in (False, True):
        status, last = run(name, contents, 2000, seed)
        assert status == 0, f"status {status} in {last}"
