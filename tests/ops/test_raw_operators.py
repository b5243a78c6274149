"""The compiled operators themselves: schema, fake kernels, the warning instead of a gradient; and with
arguments that do not fit, where each call raises or returns, and none ends the process."""

import contextlib
import functools
import mmap
import os
from itertools import pairwise
from random import Random

import pytest
import torch
from ops.cases import CASES
from ops.factor_cases import COMPLETE, KINDS
from ops.systems import VALUES
from ops.systems import P as DIRECT
from reference import densify, normal, pattern_of, random, small_pattern
from scipy.sparse import eye_array
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_flatten_with_path, tree_map_only, tree_unflatten

import learnsolve as ls
from learnsolve import _library
from learnsolve.ops import pcg
from learnsolve.ops.linear_steps import LinearSteps, dense_product, multiply_rows, product
from learnsolve.ops.program import Operand, record_steps
from learnsolve.ops.program_adjoint import find_adjoint
from learnsolve.ops.triangular import Side, _system
from learnsolve.preconditioners.inverses import lower_pattern
from learnsolve.solvers.krylov import BiCGSTAB, MinimalResidual

OPERATORS = sorted(
    name.removeprefix("learnsolve::")
    for name in torch._C._dispatch_get_all_op_names()
    if name.startswith("learnsolve::") and not name.startswith("learnsolve::direct_")
)


ops = torch.ops.learnsolve


def structure(P, transpose=False):
    return P._structure(transpose)


def scatter_arguments(P, dtype):
    ptr, idx, _, blocks = structure(P)
    m, n = P.shape
    vectors = (normal((P.nnz,), dtype), normal((m,), dtype), normal((n,), dtype))
    return [(ptr, idx, blocks, *vectors, *needs) for needs in ((True, True), (False, True), (True, False))]


def pcg_arguments(P, dtype):
    n = P.shape[0]
    A, product = structure(P), (*structure(P), *structure(P, True))
    v, vb, d = normal((P.nnz,), dtype), normal((2, P.nnz), dtype), normal((n,), dtype).abs()
    b, B, target = normal((n, 3), dtype), normal((2, n, 3), dtype), normal((3,), dtype).abs()
    out = [
        (A, v, 0, (), None, b[:, 0], (), None, 0, 3, False),
        (A, v, 1, (d,), b, b, (), target, 0, 3, True),
        (A, vb, 2, (v, *product), B, B, (), None, 0, 2, True),
    ]
    x, r, p, _, carry, *_ = ops.csr_pcg(*out[2])
    return [*out, (A, vb, 2, (v, *product), x, r, (p, carry), None, 2, 2, True)]


def gmres_arguments(P, dtype):
    """Two iterations from x, and from one Arnoldi vector."""
    n = P.shape[0]
    A, v, d, b = structure(P), normal((P.nnz,), dtype), normal((n,), dtype).abs(), normal((n,), dtype)
    vector, one = lambda *lead: normal((*lead, n, 1), dtype), torch.ones(1, 1, dtype=dtype)
    return [
        (A, v, d, b, [vector()] * 2, [one] * 2, 0.0, 1e6, 2, 3),
        (
            structure(P, True),
            v,
            None,
            b,
            [vector(), vector(), vector(2), vector(1)],
            [one] * 4,
            0.0,
            1e6,
            2,
            3,
        ),
    ]


def program_arguments(P, dtype):
    """Two iterations of minres and bicgstab without M, with a diagonal, with a product, and with triangular
    solves, from random states of one and of two columns."""
    n, v, out = P.shape[0], normal((P.nnz,), dtype), []
    ones = torch.ones(n, dtype=dtype)
    T = ls.CSR(torch.ones(P.nnz, dtype=dtype), P) + ls.ops.diag(n * ones)
    pattern = T.pattern.to(dtype=P.dtype)
    triangles = [Operand.solve(pattern, T.values, lower, lower, False) for lower in (True, False)]
    for M in (
        (),
        (Operand.rows(ones),),
        (Operand.product(P, v, True), Operand.product(P, v, False)),
        triangles,
    ):
        for k, method in ((1, MinimalResidual), (2, BiCGSTAB)):
            program = record_steps(method(), tuple(factor.op for factor in M), False, dtype)
            vectors = [normal((n, k), dtype, seed) for seed in range(program.vectors + 1)]
            given = len(method.state._fields) - program.vectors + 3
            numbers = program.numbers([torch.ones(1, k, dtype=torch.float64)] * given)
            operands = (Operand.product(P, v, k == 2), *M)
            tensors = [t for operand in operands for t in (*operand.structure, operand.values)]
            forms = [operand.form for operand in operands]
            out.append((tensors, forms, program.code, vectors, numbers, (), 0, 2, False))
        if not M:
            out += adjoint_arguments(program, P, v, dtype)
    return out


def adjoint_arguments(program, P, v, dtype):
    """Two iterations that keep a tape, and their adjoint."""
    adjoint, n = find_adjoint(program, 0, True, (True,)), P.shape[0]
    operands = {"A": Operand.product(P, v, False), "A.T": Operand.product(P, v, True)}
    out, tape = [], ()
    for program in adjoint[:2]:
        tensors = [t for name, _ in program.operands for t in (*operands[name].structure, v)]
        vectors = len(program.recorder.inputs) + program.vectors + 1
        given = len(program.fields) - program.vectors + len(program.given)
        states = [normal((n, 1), dtype, i) for i in range(vectors)]
        numbers = program.numbers([torch.ones(1, 1, dtype=torch.float64)] * given)
        forms = [0] * len(program.operands)
        out.append((tensors, forms, program.code, states, numbers, tape, len(tape) // 2, 2, True))
        if not tape:
            kept, known = ops.csr_program(*out[-1])[4:]
            tape = kept, torch.cat((known, known[:, :1]), 1)
    return out


def pcg_backward_arguments(P, dtype):
    out = []
    for first, then, needs in ((1, None, (1, 1, 1)), (2, 3, (1, 0, 0))):
        calls = pcg_arguments(P, dtype)
        A, v, kind, M, x0, *_ = calls[first]
        before = () if then is None else (ops.csr_pcg(*calls[first])[8][:, -1],)
        x, r, _, _, _, norms, scalars, R, D = ops.csr_pcg(*calls[first if then is None else then])
        forward = (R, D, r, scalars, norms, *before)
        given = (A, structure(P, True), v, kind, M, x0, forward, torch.ones_like(x))
        out += [(*given, gnorms, (), needs) for gnorms in (torch.ones_like(norms), None)]
        if before:
            *sums, _ = ops.csr_pcg_backward(*out[-1])
            out.append((*given, torch.ones_like(norms), sums, needs))
    return out


def column_samples(P, dtype, shape=(6, 3)):
    """With and without batches, `shape` that of the first operand of one member."""
    u, v = normal(shape, dtype), normal((6, 3), dtype, seed=1)
    ub, vb = normal((2, *shape), dtype), normal((2, 6, 3), dtype, seed=1)
    return [(u * (1 + 2j), vb * 1j), (u, v), (ub, v), (u, vb), (ub, vb)]


def perceptron_arguments(P, dtype, backward=False):
    """Rows that are edges or not, two layers or one."""
    out, places, none = [], (P.row_indices, P.col_indices), normal((0,), dtype)
    for batch, k, f, o in ((1, 3, 8, 2), (2, 8, 5, 0)):
        z, ends = normal((batch, P.nnz, k), dtype), normal((batch, 2 * max(P.shape), f), dtype, 1)
        first = (normal((f, k), dtype, 2), normal((f,), dtype, 3))
        second = (normal((o, f), dtype, 4), normal((o,), dtype, 5)) if o else (none, none)
        g = normal((batch, P.nnz, o or f), dtype, 6)
        for at in ((places, z, ends), ((), z, none)):
            needs = (o == 0, o > 0 and len(at[0]) > 0)
            out.append((*at, *first, *second, *((g, *needs) if backward else ())))
    return out


def pointwise_arguments(P, dtype):
    """By slots and by magnitude, for weights of either dtype."""
    index, n, out = P.col_indices.dtype, P.shape[0], []
    P = (ls.CSR(torch.ones(P.nnz), P) + ls.ops.eye(n, dtype=torch.float32)).pattern.to(dtype=index)
    L = lower_pattern(P)
    A, of_L = ((Q.crow_indices, Q.col_indices) for Q in (P, L))
    slots, slots_of_L = (1 + P.col_indices - P.row_indices).clamp(0, 2), 3 + L.col_indices - L.row_indices
    slots_of_L, of_a = slots_of_L.clamp(min=0), torch.tensor([3, 3, 0], dtype=index)
    for other, by_slot in ((dtype, True), (torch.float32, False), (torch.float64, False)):
        sizes = (2, 5, 5) if by_slot else (8, 4, 5)
        weights = [normal(s, other) for k, f in pairwise(sizes) for s in ((f, k), (f,))]
        patterns = ((*A, slots), (*of_L, slots_of_L, of_a)) if by_slot else (A, of_L)
        values = normal((2, P.nnz), dtype), normal((2, n), dtype, 1).abs()
        out.append((*patterns, *values, weights, 1.5, 0.5))
    return out


def linear_steps_arguments(P, dtype, backward=False):
    """Every kind of step, with and without a transpose; and one that takes a register twice."""
    (m, n), v = P.shape, normal((P.nnz,), dtype)
    S = [*structure(P), *structure(P, True)]
    operands = [v, normal((m, 1), dtype, 1), normal((2, m), dtype, 2)]
    every = [
        *(0, 0, 0, 0, 0, 4, 1, 0, 1, 0, 0, 0, 1, 2, 0, 1, 0, 0, 3, 0, 5, 1, 0, 1, 2),
        *(2, 0, 0, 5, 1, 6, 2, 0, 6, 0, 6, 2, 1, 7, 0, 3, 0, 0, 8, 6),
    ]
    out = []
    for steps, k in ((every, 3), ([2, 0, 0, 0, 0, 1, 0, 0, 1, 1], 1)):
        b = normal((n, k), dtype, 3)
        if not backward:
            out += [(S, operands, b, steps, keep) for keep in (True, False)]
            continue
        *registers, x = ops.linear_steps(S, operands, b, steps, True)
        for needs in ([True] * 4, [False, True, False, False], [True, False, False, True]):
            out.append((S, operands, [b, *registers], torch.ones_like(x), steps, needs))
    return out


# Of operators that the rows of the table do not call, or not with all kinds of arguments.
SAMPLES = {
    "linear_steps": linear_steps_arguments,
    "linear_steps_backward": lambda P, dtype: linear_steps_arguments(P, dtype, True),
    "perceptron": perceptron_arguments,
    "perceptron_backward": lambda P, dtype: perceptron_arguments(P, dtype, True),
    "pointwise_factor": pointwise_arguments,
    "column_dots": lambda P, dtype: [*column_samples(P, dtype), (*column_samples(P, dtype)[-1], True)],
    "column_combination": lambda P, dtype: column_samples(P, dtype, (3,)),
    "csr_spmv_scatter_backward": scatter_arguments,
    "csr_pcg": pcg_arguments,
    "csr_gmres": gmres_arguments,
    "csr_program": program_arguments,
    "csr_pcg_backward": pcg_backward_arguments,
}


class Recorder(TorchDispatchMode):
    """Keeps the arguments of each call of a raw operator."""

    def __init__(self):
        super().__init__()
        self.calls = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "learnsolve":
            kept = tree_map_only(torch.Tensor, torch.Tensor.detach, args)
            self.calls.setdefault(function.name().removeprefix("learnsolve::"), {})[kind_of(kept)] = kept
        return function(*args, **(kwargs or {}))


def kind_of(arguments):
    """What tells calls apart: types, axes and flags."""
    leaves = tree_flatten(list(arguments))[0]
    kinds = [(t.dtype, t.dim(), t.numel() == 0) if isinstance(t, torch.Tensor) else type(t) for t in leaves]
    flags = [a for a in leaves if isinstance(a, int)]
    return str((kinds, flags))


def axes_of(arguments):
    """Real before complex numbers, then by the number of axes."""
    tensors = [t for t in tree_flatten(list(arguments))[0] if isinstance(t, torch.Tensor)]
    return not any(t.is_complex() for t in tensors), sum(t.dim() for t in tensors)


def derive_twice(case, P, dtype):
    inputs = case.inputs(P, dtype, requires_grad=True)
    first = torch.autograd.grad(case.sparse(P, *inputs).square().sum(), inputs, create_graph=True)
    if (slope := sum(t.square().sum() for t in first)).requires_grad:
        torch.autograd.grad(slope, inputs, allow_unused=True)
    if case.name.partition(" ")[0] in (*KINDS, *COMPLETE):  # which forward mode has operators for
        loss = lambda v: case.sparse(P, v).square().sum()  # noqa: E731
        torch.func.jvp(torch.func.grad(loss), tuple(inputs), tuple(inputs))


@functools.cache
def recorded(dtype, index):
    """The calls that the rows of the table make, and their first and second derivatives."""
    with Recorder() as recorder:
        for limit in (2**30, 0):  # sparse products with a plan, and without
            P = pattern_of(random(6, 6, 0.4), index)
            of_plans = ("spgemm", "galerkin") if limit == 0 else ""
            with ls.set_options(spgemm_plan_bytes=limit):
                for case in (c for c in CASES if c.name.startswith(of_plans) and c.name[:3] != "pcg"):
                    derive_twice(case, P if case.make is None else case.pattern().to(dtype=index), dtype)
    return {name: sorted(calls.values(), key=axes_of) for name, calls in recorder.calls.items()}


def samples_of(name, dtype, index):
    """Arguments made for this operator, or each kind that an operation has, that with most axes last."""
    if name in SAMPLES:
        return SAMPLES[name](pattern_of(random(6, 6, 0.4), index), dtype)
    calls = recorded(dtype, index)[name]
    if name.startswith("csr_incomplete") and index == torch.int64:
        return [with_wide_plan(call) for call in calls]
    return calls


def with_wide_plan(arguments):
    """As for more than 2^31 products: the plans of small matrices are int32."""

    def wide(t):
        return t.long() if t.dtype == torch.int32 else t

    return tree_map_only(torch.Tensor, wide, arguments)


@pytest.mark.rows(6)
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


@pytest.mark.parametrize("name", [name for name in OPERATORS if name.startswith("csr_incomplete")])
def test_plans_of_either_index_type(name):
    for call in recorded(torch.float64, torch.int32)[name]:
        found, wanted = (getattr(ops, name)(*a) for a in (with_wide_plan(call), call))
        assert all(map(torch.equal, *(t if isinstance(t, tuple) else (t,) for t in (found, wanted))))


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


@pytest.mark.rows(12)
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


def short(t):
    return t[:-1]


def narrow(t):
    return t[..., :-1]


def flat(t):
    return t[..., 0]


def half(t):
    return t.half()


def single(t):
    return t.float()


def batch(size):
    return lambda t: t[None].repeat(size, *[1] * t.dim())


# An operator, other values for some tensors of its arguments (by number), and what the error says.
BAD = [
    ("csr_spmm", {4: short}, r"values must be .* nnz = \d+"),
    ("csr_spmm", {4: half, 5: half}, "values must be float32 or float64"),
    ("csr_spmm", {1: lambda idx: idx.int()}, ".* one index type"),
    ("csr_spmm", {0: lambda ptr: ptr[:0]}, "ptr must hold rows"),
    ("csr_spmm", {3: lambda blocks: blocks[:0]}, "blocks must be"),
    ("csr_spmm", {5: lambda x: x[None, None]}, "x must be .* got 4 dimensions"),
    ("csr_spmm", {4: batch(2), 5: batch(3)}, "batch sizes 2 and 3"),
    ("csr_sddmm", {3: short}, "u must have 6 rows"),
    ("csr_sddmm", {4: narrow}, ".* as many columns"),
    ("csr_spmm_backward", {9: narrow}, "x and g do not match"),
    ("perceptron_backward", {1: short}, r"places must be two index arrays of \d+ entries"),
    ("perceptron_backward", {0: lambda t: t.double(), 1: lambda t: t.double()},
        "indices must be int32 or int64"),
    ("perceptron_backward", {2: flat}, r"z must be \(B, n, k\), got 2"),
    ("perceptron_backward", {3: lambda t: t[:, 1:]}, r"ends must be \(1, 2m, 8\)"),
    ("perceptron_backward", {3: lambda t: t[:, :0]}, "ends must have rows"),
    ("perceptron_backward", {4: narrow}, r"w1 must be \(f, 3\)"),
    ("perceptron_backward", {6: narrow}, r"w2 must be \(o, 8\) or empty"),
    ("perceptron_backward", {7: short}, r"b2 must be \(2\)"),
    ("perceptron_backward", {8: narrow}, r"g must be \(1, \d+, 2\)"),
    ("pointwise_factor", {1: short}, "A's crow must go from 0"),
    ("pointwise_factor", {2: short}, "A must have a slot for each entry"),
    ("pointwise_factor", {3: lambda crow: crow[None]}, "L must be arrays of one index type"),
    ("pointwise_factor", {6: short}, "L's diagonals below the main one must be 3"),
    ("pointwise_factor", {7: narrow}, r"values must be \(B, \d+\)"),
    ("pointwise_factor", {8: narrow}, r"scale must be \(2, 6\)"),
    ("pointwise_factor", {9: single}, "weights must have one dtype"),
    ("pointwise_factor", {10: short}, r"weights must be \(f, k\) and \(f\)"),
    ("pointwise_factor", {11: narrow}, "a layer must take as many numbers"),
    ("pointwise_factor", {11: lambda w: w[:2], 12: lambda b: b[:2]}, "the layers must give 3 numbers"),
    ("csr_segment_max", {4: short}, r"e must be \(\d+, k\) or \(B, \d+, k\)"),
    ("csr_segment_softmax", {4: half}, "values must be float32 or float64"),
    ("csr_segment_softmax_backward", {5: narrow}, "operands must have one batch and one number"),
    ("csr_segment_place", {5: short}, r"g must be \(4, k\)"),
    ("csr_segment_place", {4: lambda at: at.int()}, "at must be of the structure's index type"),
    ("csr_sptrsv", {8: lambda v: v[:3]}, "values must hold"),
    ("csr_sptrsv", {9: short}, "b must have 5 rows, got 4"),
    ("csr_sptrsv", {8: batch(2)}, r"with values \(B, nnz\), b must be \(B, n, k\)"),
    ("csr_sptrsv", {1: short, 2: short}, "ptr must end"),
    ("csr_sptrsv", {3: narrow}, r"blocks must be \(number of blocks \+ 1, 3\)"),
    ("csr_sptrsv", {4: lambda order: order.int()}, "order and levels must have the index type"),
    ("csr_sptrsv", {5: lambda levels: torch.tensor([0, 6])}, "order and levels must cover all rows"),
    ("csr_add", {0: short}, "codes must be uint8"),
    ("csr_add", {1: short}, r"starts must be \(number of chunks"),
    ("csr_add", {3: short}, "starts must end with"),
    ("csr_add", {4: single}, "a and b must .* of one dtype"),
    ("csr_add", {3: batch(2)}, "a and b must both"),
    ("csr_add_backward", {2: lambda na: na + 1}, "starts must end with"),
    ("csr_incomplete_factor", {8: lambda crow: crow[:-2]}, "crow must end with the number of values"),
    ("csr_incomplete_factor", {9: short}, "the plan is for|order, source, .* do not fit"),
    ("csr_incomplete_factor", {4: short}, "order, source, .* do not fit"),
    ("csr_incomplete_tangent", {0: lambda order: order.int()}, "a plan must have one index type"),
    ("csr_incomplete_adjoint", {9: short}, "g must be"),
    ("csr_incomplete_product_adjoint", {8: batch(2), 9: batch(3)}, "batches must be the same, got 2"),
    ("csr_spgemm", {1: lambda idx: idx.int()}, "every pattern needs"),
    ("csr_spgemm", {5: short}, "C must have the rows of A"),
    ("csr_spgemm", {7: short}, "positions must have an entry a product"),
    ("csr_spgemm", {7: lambda positions: positions.long()}, "a plan must be int32"),
    ("csr_spgemm", {9: narrow}, "blocks must be"),
    ("csr_spgemm", {9: short}, "blocks must cover all rows"),
    ("csr_spgemm", {12: short}, r"a must be \(\d+\) or \(B, \d+\)"),
    ("csr_spgemm", {13: single}, "operands must have one dtype"),
    ("csr_spgemm", {12: batch(2), 13: batch(3)}, "batch sizes 2 and 3"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "message"), BAD, ids=[f"{n}, {m}" for n, _, m in BAD])
def test_wrong_arguments_are_refused(name, changes, message):
    samples = samples_of(name, torch.float64, torch.int64)
    if name in ("csr_spmm", "csr_sddmm", "csr_spmm_backward"):  # matrices; of others the one with fewest axes
        samples = [s for s in samples if [t.dim() for t in s if isinstance(t, torch.Tensor)][-1] == 2]
    if name.startswith("csr_incomplete"):  # complete ones have another plan
        samples = [s for s in samples if len(s[0]) == 7]
    sample = next(s for s in samples if axes_of(s)[0])
    getattr(ops, name)(*sample)
    leaves, tree = tree_flatten(list(sample))
    for at, change in changes.items():
        leaves[at] = change(leaves[at])
    with pytest.raises(RuntimeError, match=f"{name}: {message}"):
        getattr(ops, name)(*tree_unflatten(leaves, tree))


def test_lists_of_another_length_are_refused():
    P = small_pattern()
    tangents = samples_of("csr_incomplete_tangent", torch.float64, torch.int64)
    plan, *factors = next(s for s in tangents if len(s[0]) == 7)
    (row, _), *layers = SAMPLES["perceptron"](P, torch.float64)[0]
    for call, message in (
        (lambda: ops.csr_segment_max(structure(P)[:3], normal((P.nnz, 2))), "must hold 4 tensors, got 3"),
        (lambda: ops.perceptron([row], *layers), "places must hold row and col, or none, got 1"),
        (lambda: ops.csr_incomplete_tangent(plan[:-2], *factors), "hold 7 tensors, got 5"),
    ):
        with pytest.raises(RuntimeError, match=message):
            call()


def test_a_triangle_without_a_diagonal_is_refused():
    tensors, *_ = _system(pattern_of(eye_array(6).tocsr()), Side(True, True, False))
    with pytest.raises(RuntimeError, match="csr_sptrsv: a row has no diagonal entry"):
        ops.csr_sptrsv(tensors, True, False, normal((6,)) + 5, normal((6,)))


def wide(sample, first, last):
    """The arguments first ... last - 1 with int64 in place of int32."""
    made = (t.long() for t in sample[first:last])
    return (*sample[:first], *made, *sample[last:])


@pytest.mark.parametrize("name", ["csr_richardson_backward", "csr_pcg_backward"])
def test_a_transpose_with_other_indices_is_refused(name):
    sample = samples_of(name, torch.float64, torch.int32)[0]
    getattr(ops, name)(*sample)
    with pytest.raises(RuntimeError, match=f"{name}: both structures must hold the same entries"):
        getattr(ops, name)(sample[0], wide(sample[1], 0, 4), *sample[2:])


@pytest.mark.parametrize(
    ("kind", "parts", "message"),
    [
        ("product", (1, 5), "csr_pcg: the factor must have 6 rows, .* and the index type of A"),
        ("product", (5, 9), "csr_pcg: both structures must hold the same entries"),
        ("triangular", (5, 11), "csr_pcg: the triangles must be those of the factor"),
        ("triangular", (11, 17), "csr_pcg: the triangles must be those of the factor"),
    ],
)
def test_a_factor_with_other_indices_is_refused(kind, parts, message):
    P = pattern_of(random(6, 6, 0.4) + eye_array(6), torch.int32)
    L, number = ls.CSR(normal((P.nnz,)), P).tril().pattern, pcg.KINDS.index(kind)
    values, b = normal((P.nnz,)), normal((6, 2))
    M = pcg.preconditioner(normal((L.nnz,)).abs() + 1, L, number)

    def call(M, state=(), target=None, first=0):
        return ops.csr_pcg(structure(P), values, number, M, None, b, state, target, first, 2, False)

    call(M)
    for wrong, what in (
        ({"M": wide(M, *parts)}, message),
        ({"M": M[:-1]}, rf"csr_pcg: M must hold {len(M)} tensors for kind {number}, got {len(M) - 1}"),
        ({"target": b[:1, 0]}, "csr_pcg: target must have one number a column"),
        ({"state": (b,)}, "csr_pcg: to go on takes x, p and carry"),
        ({"first": 1}, "csr_pcg: iterations must not be negative, and begin with number 0, got 2 from 1"),
    ):
        with pytest.raises(RuntimeError, match=what):
            call(**{"M": M} | wrong)


F64 = torch.float64


def made_of(P, dtype=F64, times=1):
    """A function of all kinds of steps, and what it reads."""
    A = ls.CSR(normal((P.nnz,), dtype).requires_grad_(), P)
    s, D = (
        normal((P.shape[0], 1), dtype, 1).requires_grad_(),
        normal((2, P.shape[0]), dtype, 2).requires_grad_(),
    )

    def function(b):
        x = product(A.values, b, P, False)
        r = b - product(A.values, x, P, True)
        y = x + multiply_rows(s, r)
        z = dense_product(D, y + multiply_rows(s, y), False)
        return (r - multiply_rows(s, dense_product(D, z, True))) - (y + y)

    return function, LinearSteps(function, [A, A], [s, D], times), (A.values, s, D)


def derivatives(x, inputs, g):
    return (x, *torch.autograd.grad(x, inputs, g))


# Elementwise steps are shared among threads from about 50,000 numbers on.
@pytest.mark.parametrize(
    ("n", "k", "dtype"),
    [*((7, k, dtype) for k in (1, 2, 5) for dtype in (torch.float32, F64)), (1, 2, F64), (30_000, 2, F64)],
)
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=["int32", "int64"])
def test_as_step_by_step(dtype, index, n, k):
    P = pattern_of(random(7, 7, 0.5)) if n == 7 else ls.problems.poisson((n,)).pattern
    function, steps, operands = made_of(P.to(dtype=index), dtype)
    b, g = normal((n, k), dtype, 3).requires_grad_(), normal((n, k), dtype, 4)
    inputs = (b, *operands)
    found, expected = derivatives(steps(b), inputs, g), derivatives(function(b), inputs, g)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    with torch.no_grad():
        torch.testing.assert_close(steps(b), expected[0])
    torch.testing.assert_close(steps.run_separately(b, steps.operands), expected[0])
    B, each = torch.stack((b, 2 * b)).detach(), torch.stack((function(b), function(2 * b)))
    torch.testing.assert_close(torch.func.vmap(steps)(B), each)
    torch.testing.assert_close(steps(B), each)
    tangents = (torch.func.jvp(f, (b.detach(),), (g,))[1] for f in (steps, function))
    torch.testing.assert_close(*tangents)


def test_several_times():
    P = pattern_of(random(7, 7, 0.5))
    function, steps, operands = made_of(P, times=3)
    b, g = normal((7, 2)).requires_grad_(), normal((7, 2), seed=4)
    x = b
    for _ in range(3):
        x = function(x)
    inputs = (b, *operands)
    for one, other in zip(derivatives(steps(b), inputs, g), derivatives(x, inputs, g), strict=True):
        torch.testing.assert_close(one, other)


def test_derivatives_of_operands_that_are_made_of_one_another():
    """Up to the third: the ways from one operand to the next must not count twice."""
    P = pattern_of(random(4, 4, 0.6))
    b, v = normal((4, 2)).requires_grad_(), normal((P.nnz,), seed=1).requires_grad_()

    def operands(v):
        A = ls.CSR(v, P)
        return (A @ A).values, A.to_dense(), A.sum(1).unsqueeze(-1)

    def f(b, v, at_once=True):
        squared, D, s = operands(v)
        A, B = ls.CSR(v, P), ls.CSR(squared, (ls.CSR(v, P) @ ls.CSR(v, P)).pattern)

        def function(x):
            y = product(B.values, product(A.values, x, P, False), B.pattern, True)
            return x - dense_product(D, x + multiply_rows(s, y), False)

        return (LinearSteps(function, [A, B], [s, D]) if at_once else function)(b)

    def grad(f):
        def g(b, v):
            return torch.autograd.grad(f(b, v).square().sum(), (b, v), create_graph=True)

        return g

    def total(f):
        return lambda b, v: torch.cat([g.flatten() for g in f(b, v)])

    first = grad(f)
    second = grad(total(first))
    expected = grad(lambda b, v: f(b, v, False))
    torch.testing.assert_close(first(b, v), torch.autograd.grad(f(b, v).square().sum(), (b, v)))
    torch.testing.assert_close(first(b, v), expected(b, v))
    torch.testing.assert_close(second(b, v), grad(total(expected))(b, v))
    assert torch.autograd.gradgradcheck(f, (b, v))
    assert torch.autograd.gradgradcheck(total(first), (b, v), fast_mode=True)


def test_nothing_is_written_to_what_was_given():
    """Among the cotangents are some that several registers share, and the given one. Only the gradients that
    are asked for are computed."""
    for arguments in SAMPLES["linear_steps_backward"](pattern_of(random(6, 6, 0.5)), F64):
        given = [t for a in arguments[1:3] for t in a] + [arguments[3]]
        copies = [t.clone() for t in given]
        whole = ops.linear_steps_backward(*arguments[:-1], [True] * 4)
        for need, one, other in zip(arguments[-1], ops.linear_steps_backward(*arguments), whole, strict=True):
            assert torch.equal(one, other) if need else one.numel() == 0
        assert all(torch.equal(t, copy) for t, copy in zip(given, copies, strict=True))


def test_a_block_that_a_step_has_taken_up_is_not_used_again():
    A = ls.CSR.from_dense(torch.eye(3, dtype=F64))

    def function(b):
        x = product(A.values, b, A.pattern, False)
        return (b - x) + x

    with pytest.raises(AssertionError, match="taken up"):
        LinearSteps(function, [A], [])


P = pattern_of(random(6, 6, 0.5))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": [0, 0, 0, 0]}, "steps must hold 5 numbers for each step, at least one, got 4"),
        ({"steps": [7, 0, 0, 0, 0]}, "step 0 has an unknown kind"),
        ({"steps": [0, 0, 0, 1, 0]}, "step 0 reads a register that no earlier step has written"),
        ({"steps": [2, 0, 0, 0, -1]}, "step 0 reads a register that no earlier step has written"),
        ({"steps": [4, 3, 0, 0, 0]}, "step 0 has no operand of its kind"),
        ({"steps": [6, 2, 0, 0, 0, 0, 0, 0, 1, 0]}, "step 1 multiplies a register of another size"),
        ({"steps": [6, 2, 0, 0, 0, 4, 1, 0, 1, 0]}, "step 1 scales a register of another size"),
        ({"steps": [6, 2, 0, 0, 0, 2, 0, 0, 0, 1]}, "step 1 combines registers of different sizes"),
        ({"b": normal((6,))}, r"b must be \(n, k\), got 1 dimensions"),
        ({"b": normal((6, 2)).float()}, "operands and b must have one dtype"),
        ({"operands": [normal((P.nnz - 1,)), normal((6, 1)), normal((2, 6))]}, "operand 0 must be .* nnz = "),
        ({"structures": structure(P)}, "structures must hold 8 tensors for each matrix, got 4"),
        ({"structures": [*structure(P), *structure(pattern_of(random(6, 6, 0.4)))]}, "the same entries"),
    ],
)
def test_wrong_lists_are_refused(change, message):
    S, operands, b, steps, keep = linear_steps_arguments(P, F64)[0]
    arguments = {"structures": S, "operands": operands, "b": b, "steps": steps, "keep": keep}
    ops.linear_steps(**arguments)
    with pytest.raises(RuntimeError, match=f"linear_steps: {message}|linear_steps: .*{message}"):
        ops.linear_steps(**arguments | change)


def test_wrong_registers_are_refused():
    S, operands, registers, g, steps, needs = linear_steps_arguments(P, F64, True)[0]
    for wrong, message in (
        ((registers[:-1], g, needs), "registers must be those of the forward"),
        (([], g, needs), "registers must begin with b"),
        (([registers[0], registers[1][:-1], *registers[2:]], g, needs), "register 1 must be that"),
        ((registers, g[:-1], needs), "g must have the shape of the result"),
        ((registers, g, needs[1:]), "needs must be one for b and each operand, got 3"),
    ):
        with pytest.raises(RuntimeError, match=f"linear_steps_backward: {message}"):
            ops.linear_steps_backward(S, operands, wrong[0], wrong[1], steps, wrong[2])


# Programs of one state: x' = 2 b in the place of b, and x' = 2 (a vector of a tape that is not given).
PROGRAMS = {
    "writes to a state that is not its own next value": [
        *(2, 1, 0, 0, 2, 0, 0, 1, -1, -1, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1, 0, 0, -1, 1, 1, 0, 0, 0)
    ],
    "a tape is two tensors": [
        *(2, 1, 1, 0, 2, 0, 0, 1, -1, -1, 0, 1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 2, 1, 0, 0, 0)
    ],
}


@pytest.mark.parametrize("message", PROGRAMS)
def test_a_program_that_leaves_its_memory_is_refused(message):
    A = ls.problems.poisson((8,))
    vectors, numbers = [torch.ones(8, 1).double()] * 2, torch.tensor([[2.0], [0.0]]).double()
    code = torch.tensor(PROGRAMS[message])
    with pytest.raises(RuntimeError, match=message):
        ops.csr_program(
            [*A.pattern._structure(False), A.values], [0], code, vectors, numbers, [], 0, 3, False
        )
