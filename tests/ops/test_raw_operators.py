"""The compiled operators themselves: schema, fake kernels, the warning instead of a gradient; and with
arguments that do not fit, where each call raises or returns, and none ends the process."""

import contextlib
import functools
import mmap
import os
from random import Random

import pytest
import torch
from ops.cases import CASES
from ops.direct import VALUES
from ops.direct import P as DIRECT
from ops.incomplete_cases import dominant
from ops.incomplete_cases import small as incomplete_pattern
from ops.raw_samples import SAMPLES, incomplete_plan, ops, structure
from reference import densify, normal, pattern_of, random
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten_with_path, tree_map_only, tree_unflatten

import learnsolve as ls
from learnsolve import _library

OPERATORS = sorted(
    name.removeprefix("learnsolve::")
    for name in torch._C._dispatch_get_all_op_names()
    if name.startswith("learnsolve::") and not name.startswith("learnsolve::direct_")
)


class Recorder(TorchDispatchMode):
    """Keeps the arguments of each call of a raw operator."""

    def __init__(self):
        super().__init__()
        self.calls = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "learnsolve":
            kept = tree_map_only(torch.Tensor, torch.Tensor.detach, args)
            self.calls.setdefault(function.name().removeprefix("learnsolve::"), []).append(kept)
        return function(*args, **(kwargs or {}))


@functools.cache
def recorded(dtype, index):
    """The calls that the rows of cases.py make, forward and backward."""
    P = pattern_of(random(6, 6, 0.4), index)
    with Recorder() as recorder:
        for case in (c for c in CASES if c.make is None):
            inputs = case.inputs(P, dtype, requires_grad=True)
            y = case.sparse(P, *inputs)
            torch.autograd.grad(y, inputs, torch.ones_like(y), allow_unused=True)
    return recorder.calls


def samples_of(name, dtype, index):
    """Arguments made for this operator, or the first and the last that an operation has."""
    if name in SAMPLES:
        return SAMPLES[name](pattern_of(random(6, 6, 0.4), index), dtype)
    calls = recorded(dtype, index)[name]
    return [calls[0], calls[-1]]


@pytest.mark.few
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=["int32", "int64"])
def test_opcheck(name, dtype, index):
    utils = ["test_schema", "test_faketensor", "test_autograd_registration"]
    for sample in samples_of(name, dtype, index):
        torch.library.opcheck(getattr(ops, name).default, sample, test_utils=utils)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATORS)
def test_opcheck_with_symbolic_shapes(name):
    sample = samples_of(name, torch.float64, torch.int32)[-1]  # the one with most axes
    torch.library.opcheck(getattr(ops, name).default, sample, test_utils=["test_aot_dispatch_dynamic"])


@pytest.mark.parametrize("name", OPERATORS)
def test_a_gradient_is_not_lost_silently(name):
    """The raw operators have no derivative: torch says so when a backward reaches one."""
    sample = samples_of(name, torch.float64, torch.int32)[-1]
    inputs = [
        t.clone().requires_grad_() if isinstance(t, torch.Tensor) and t.is_floating_point() else t
        for t in sample
    ]
    out = getattr(ops, name)(*inputs)
    first = next(t for t in (out if isinstance(out, (tuple, list)) else (out,)) if t.numel())
    assert first.requires_grad
    with pytest.warns(UserWarning, match="autograd kernel was not registered"):
        first.sum().backward()


@pytest.mark.parametrize("kind", ["ic0", "mic0", "ilu0"])
def test_incomplete_factors_with_either_index_type(kind):
    P = incomplete_pattern()
    v, results = dominant(P), []
    for index in (torch.int32, torch.int64):
        plan, Q, *_ = incomplete_plan(pattern_of(random(6, 6, 0.4), index), kind)
        f, breakdown = ops.csr_incomplete_factor(*plan, Q.crow_indices, v, True)
        assert breakdown[0] == -1
        z = ops.csr_incomplete_tangent(*plan, f, v)
        w = ops.csr_incomplete_adjoint(*plan, f, f, P.nnz)
        more = (
            ops.csr_incomplete_product(*plan, f, z, P.nnz),
            ops.csr_incomplete_product_adjoint(*plan, f, w),
        )
        results.append((f, z, w, *more))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.few
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=["int32", "int64"])
def test_the_direct_solve(index, dtype):
    Q = DIRECT.to(dtype=index)
    crow, col, v = Q.crow_indices, Q.col_indices, VALUES.to(dtype)
    how = "auto auto auto"
    utils = ["test_schema", "test_faketensor", "test_autograd_registration", "test_aot_dispatch_dynamic"]
    for sample in (
        (crow, col, v, normal((5,), dtype), False, how),
        (crow, col, v, normal((5, 2), dtype), True, how),
        (crow, col, v.repeat(2, 1), normal((2, 5, 2), dtype), False, how),
    ):
        torch.library.opcheck(ops.direct_solve.default, sample, test_utils=utils)
        torch.library.opcheck(ops.direct_logdet.default, (*sample[:3], how), test_utils=utils)
    x = ops.direct_solve(crow, col, v, torch.ones(5, dtype=dtype), True, how)
    torch.testing.assert_close(densify(DIRECT, v).mT @ x, torch.ones(5, dtype=dtype))


def test_the_adjoint_of_an_empty_system_reads_the_norms_that_it_has():
    """The p before the call is empty there, but given: norms begin with that of the first iteration."""
    A, v = (
        structure(ls.SparsityPattern(torch.zeros(1, dtype=torch.int64), torch.zeros(0).long(), (0, 0))),
        normal((0,)),
    )
    b, history = normal((0, 2)), torch.full((4, 2), torch.nan, dtype=torch.float64)
    history[:2] = 1
    scalars = torch.zeros(1, 2, 3, 2, dtype=torch.float64)
    forward = (normal((1, 2, 0, 2)), normal((1, 2, 0, 2)), b, scalars, history[:2], normal((1, 0, 2)))
    bars = ops.csr_pcg_backward(A, A, v, 0, (), None, forward, None, history[:2], (), (1, 1, 1))[2]
    assert torch.equal(bars[0, 2], torch.full((2,), 2.0, dtype=torch.float64))  # held for the call before


# --- one argument of a valid call corrupted, in a child process ---
# What is checked always and what on request (LEARNSOLVE_CHECK=1) csrc/ops/schema.cpp says.

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
    if t.is_floating_point() or t.is_complex() or len(out) == 0:
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


def run(name, contents, rounds):
    """The exit status of a child process that makes the calls, and the last one's arguments."""
    samples = samples_of(name, torch.float64, torch.int32) + samples_of(name, torch.float32, torch.int64)
    operator = getattr(ops, name)
    told = mmap.mmap(-1, 2**16)
    child = os.fork()
    if child == 0:
        status = 0
        try:
            _library._cpu.learnsolve_check_contents(int(contents))
            rng = Random(f"{name} 0")
            for i in range(rounds):
                arguments = corrupted(name, rng.choice(samples), rng, contents)
                text = f"{i}: {describe(arguments)}".encode()[: len(told) - 1]
                told[: len(text) + 1] = text + b"\0"
                with contextlib.suppress(RuntimeError, MemoryError, TypeError, ValueError):
                    operator(*arguments)
        except BaseException as error:
            told[:] = repr(error).encode()[: len(told)].ljust(len(told), b"\0")
            status = 1
        os._exit(status)
    _, status = os.waitpid(child, 0)
    return status, told[: told.find(b"\0")].decode()


@pytest.mark.cpu_only
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("contents", [False, True], ids=["sizes", "contents"])
@pytest.mark.parametrize("name", OPERATORS)
def test_no_call_ends_the_process(name, contents, quick):
    status, last = run(name, contents, 100 if quick else 250)
    assert status == 0, f"status {status} in {last}"


@pytest.mark.cpu_only
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
