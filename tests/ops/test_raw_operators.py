"""The compiled operators themselves: schema, fake kernels, the warning instead of a gradient."""

import functools

import pytest
import torch
from ops.cases import CASES
from ops.direct import VALUES
from ops.direct import P as DIRECT
from ops.incomplete_cases import dominant
from ops.incomplete_cases import small as incomplete_pattern
from ops.raw_samples import SAMPLES, incomplete_plan, ops, structure
from reference import densify, normal, pattern_of, random, small_pattern
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

import learnsolve as ls

OPERATORS = sorted(
    name.removeprefix("learnsolve::")
    for name in torch._C._dispatch_get_all_op_names()
    if name.startswith("learnsolve::") and name != "learnsolve::superlu_solve"
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
    for sample in samples_of(name, torch.float64, torch.int32):
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


def test_meta_tensors_give_shapes():
    P = small_pattern()
    A = [t.to("meta") for t in structure(P)]
    y = ops.csr_spmm(*A, normal((P.nnz,)).to("meta"), normal((5, 2)).to("meta"))
    assert y.is_meta
    assert y.shape == (4, 2)


def test_results_never_share_memory_with_arguments():
    P = ls.CSR.from_dense(torch.eye(3, dtype=torch.float64)).pattern
    v, x = torch.ones(3, dtype=torch.float64), normal((3,))
    y = ls.ops.spmm(ls.CSR(v, P), x)
    assert y.data_ptr() not in (v.data_ptr(), x.data_ptr())


@pytest.mark.parametrize("kind", ["ic0", "mic0", "ilu0"])
def test_incomplete_factors_with_either_index_type(kind):
    P = incomplete_pattern()
    v, results = dominant(P), []
    for index in (torch.int32, torch.int64):
        plan, Q, _ = incomplete_plan(pattern_of(random(6, 6, 0.4), index), kind)
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


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=["int32", "int64"])
def test_the_direct_solve(index, dtype):
    Q = DIRECT.to(dtype=index)
    crow, col, v = Q.crow_indices, Q.col_indices, VALUES.to(dtype)
    utils = ["test_schema", "test_faketensor", "test_autograd_registration", "test_aot_dispatch_dynamic"]
    for sample in (
        (crow, col, v, normal((5,), dtype), False),
        (crow, col, v, normal((5, 2), dtype), True),
        (crow, col, v.repeat(2, 1), normal((2, 5, 2), dtype), False),
    ):
        torch.library.opcheck(ops.superlu_solve.default, sample, test_utils=utils)
    x = ops.superlu_solve(crow, col, v, torch.ones(5, dtype=dtype), True)
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
