"""The compiled operators themselves: schema, fake kernels, and what they say to wrong arguments."""

import pytest
import scipy.sparse
import torch
from reference import normal, pattern_of, random, small_pattern

import learnsolve as ls
from learnsolve.ops.add import union_plan

ops = torch.ops.learnsolve


def structure(P, transpose=False):
    return P._structure(transpose)


def both_structures(P):
    """Of A^T, then of A: what the fused backward takes."""
    ptr, idx, _, blocks = structure(P)
    return (*structure(P, True), ptr, idx, blocks)


def spmm_arguments(P, dtype):
    m, n = P.shape
    v, x, y = normal((P.nnz,), dtype), normal((n, 3), dtype), normal((m, 3), dtype)
    vb, xb = normal((2, P.nnz), dtype), normal((2, n, 3), dtype)
    A, At = structure(P), structure(P, True)
    return [
        (*A, v, x[:, 0]),
        (*A, v, x),
        (*A, v, xb),
        (*A, vb, x),
        (*A, vb, xb),
        (*A, vb, xb, True),
        (*A, v, xb, True),
        (*A, vb, x[:, 0]),
        (*A, v, x[:, :0]),
        (*At, v, y),
    ]


def sddmm_arguments(P, dtype):
    m, n = P.shape
    ptr, idx, _, blocks = structure(P)
    u, v = normal((m, 3), dtype), normal((n, 3), dtype)
    ub, vb = normal((2, m, 3), dtype), normal((2, n, 3), dtype)
    return [
        (ptr, idx, blocks, u[:, 0], v[:, 0]),
        (ptr, idx, blocks, u, v),
        (ptr, idx, blocks, ub, v),
        (ptr, idx, blocks, u, vb),
        (ptr, idx, blocks, ub, vb),
        (ptr, idx, blocks, ub, vb, True),
    ]


def backward_arguments(P, dtype):
    m, n = P.shape
    S = both_structures(P)
    v, g, x = normal((P.nnz,), dtype), normal((m, 3), dtype), normal((n, 3), dtype)
    vb, gb, xb = normal((2, P.nnz), dtype), normal((2, m, 3), dtype), normal((2, n, 3), dtype)
    return [
        (*S, v, g[:, 0], x[:, 0]),
        (*S, v, g, x),
        (*S, v, gb, xb),
        (*S, vb, gb, x),
        (*S, vb, gb, xb),
    ]


def richardson_arguments(P, dtype):
    n = P.shape[0]
    ptr, idx, _, blocks = structure(P)
    A = (ptr, idx, blocks)
    v, s, b, x0 = normal((P.nnz,), dtype), *(normal((1, n), dtype, seed) for seed in (1, 2, 3))
    B, X0 = normal((n, 3), dtype), normal((n, 3), dtype, 1)
    return [
        (*A, v, s, b[0], x0[0], 4, 0),
        (*A, v, s, b[0], x0[0], 4, 1),
        (*A, v, normal((4, n), dtype), B, X0, 4, 2),
        (
            *A,
            normal((2, P.nnz), dtype),
            normal((2, 1, n), dtype),
            *(t.repeat(2, 1, 1) for t in (B, X0)),
            3,
            2,
        ),
    ]


def richardson_backward_arguments(P, dtype):
    tptr, tidx, tperm, tblocks = structure(P, True)
    needs = len(ops.csr_richardson_backward.default._schema.arguments) - 16
    out = []
    for ptr, idx, blocks, v, s, b, x0, iterations, stride in richardson_arguments(P, dtype):
        if stride == 0:
            continue
        x, norms, iterates = ops.csr_richardson(ptr, idx, blocks, v, s, b, x0, iterations, stride)
        fixed = (ptr, idx, blocks, tptr, tidx, tperm, tblocks, v, s, b, iterates, norms, torch.ones_like(x))
        out.append((*fixed, torch.ones_like(norms), iterations, stride, *(True,) * needs))
        out.append((*fixed, None, iterations, stride, *(False,) * (needs - 1), True))
    return out


def scatter_arguments(P, dtype):
    ptr, idx, _, blocks = structure(P)
    m, n = P.shape
    vectors = (normal((P.nnz,), dtype), normal((m,), dtype), normal((n,), dtype))
    return [(ptr, idx, blocks, *vectors, *needs) for needs in ((True, True), (False, True), (True, False))]


def union(P):
    """A plan for P and its identity-like part, and their numbers of entries."""
    Q = pattern_of(scipy.sparse.eye_array(*P.shape), P.dtype)
    plan = union_plan(P, Q)
    return (plan.codes, plan.starts), plan.nnz, P.nnz, Q.nnz


def add_arguments(P, dtype):
    plan, nnz, na, nb = union(P)
    return [
        (*plan, nnz, normal((na,), dtype), normal((nb,), dtype), 2.0, -1.0),
        (*plan, nnz, normal((2, na), dtype), normal((2, nb), dtype), 1.0, 1.0),
    ]


def add_backward_arguments(P, dtype):
    plan, nnz, na, nb = union(P)
    needs = ((True, True), (False, True), (True, False))
    g = normal((2, nnz), dtype)
    return [(*plan, na, nb, t, 2.0, -1.0, *need) for t in (g, g[0]) for need in needs]


SAMPLES = {
    "csr_add": add_arguments,
    "csr_add_backward": add_backward_arguments,
    "csr_spmv_scatter_backward": scatter_arguments,
    "csr_spmm": spmm_arguments,
    "csr_sddmm": sddmm_arguments,
    "csr_spmm_backward": backward_arguments,
    "csr_richardson": richardson_arguments,
    "csr_richardson_backward": richardson_backward_arguments,
}


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=["int32", "int64"])
def test_opcheck(name, dtype, index):
    P = pattern_of(random(6, 6, 0.4), index)
    # Static shapes throughout; symbolic ones, which are slow to trace, for one combination.
    utils = ["test_schema", "test_faketensor"]
    if (dtype, index) == (torch.float64, torch.int32):
        utils += ["test_autograd_registration", "test_aot_dispatch_dynamic"]
    for sample in SAMPLES[name](P, dtype):
        torch.library.opcheck(getattr(ops, name).default, sample, test_utils=utils)


def test_every_operator_is_checked():
    assert set(SAMPLES) == {name for name in dir(ops) if name.startswith("csr_")}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_gradient_is_not_lost_silently(name):
    """The raw operators have no derivative: torch says so when a backward reaches one."""
    P = pattern_of(random(6, 6, 0.4))
    sample = SAMPLES[name](P, torch.float64)[-1]
    inputs = [
        t.clone().requires_grad_() if isinstance(t, torch.Tensor) and t.is_floating_point() else t
        for t in sample
    ]
    out = getattr(ops, name)(*inputs)
    first = next(t for t in (out if isinstance(out, tuple) else (out,)) if t.numel())
    assert first.requires_grad
    with pytest.warns(UserWarning, match="autograd kernel was not registered"):
        first.sum().backward()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: {**a, "values": a["values"][:-1]}, "csr_spmm: values must be .* nnz = 7"),
        (lambda a: {**a, "values": a["values"].half()}, "csr_spmm: x and values must have one dtype"),
        (
            lambda a: {**a, "values": a["values"].half(), "x": a["x"].half()},
            "csr_spmm: values must be float32 or float64",
        ),
        (lambda a: {**a, "idx": a["idx"].int()}, "csr_spmm: .* one index type"),
        (lambda a: {**a, "ptr": a["ptr"][:0]}, "csr_spmm: ptr must hold rows"),
        (lambda a: {**a, "blocks": a["blocks"][:0]}, "csr_spmm: blocks must be"),
        (lambda a: {**a, "x": a["x"][None, None]}, "csr_spmm: x must be .* got 4 dimensions"),
        (
            lambda a: {**a, "values": a["values"].repeat(2, 1), "x": a["x"].repeat(3, 1, 1)},
            "csr_spmm: batch sizes 2 and 3",
        ),
    ],
)
def test_wrong_arguments_are_refused(change, message):
    P = small_pattern()
    ptr, idx, perm, blocks = structure(P)
    arguments = {"ptr": ptr, "idx": idx, "perm": perm, "blocks": blocks}
    arguments |= {"values": normal((P.nnz,)), "x": normal((5, 2))}
    ops.csr_spmm(**arguments)
    with pytest.raises(RuntimeError, match=message):
        ops.csr_spmm(**change(arguments))


def test_wrong_arguments_of_the_others_are_refused():
    P = small_pattern()
    ptr, idx, _, blocks = structure(P)
    with pytest.raises(RuntimeError, match="csr_sddmm: u must have 4 rows"):
        ops.csr_sddmm(ptr, idx, blocks, normal((3, 2)), normal((5, 2)))
    with pytest.raises(RuntimeError, match=r"csr_sddmm: .* as many columns"):
        ops.csr_sddmm(ptr, idx, blocks, normal((4, 2)), normal((5, 3)))
    with pytest.raises(RuntimeError, match="csr_spmm_backward: x and g do not match"):
        ops.csr_spmm_backward(*both_structures(P), normal((P.nnz,)), normal((4, 2)), normal((5, 3)))


def test_wrong_plans_of_a_sum_are_refused():
    (codes, starts), nnz, na, nb = union(small_pattern())
    a, b = normal((na,)), normal((nb,))
    ops.csr_add(codes, starts, nnz, a, b, 1.0, 1.0)
    for arguments, message in (
        ((codes[:-1], starts, nnz, a, b), "csr_add: codes must be uint8"),
        ((codes, starts[:-1], nnz, a, b), r"csr_add: starts must be \(number of chunks"),
        ((codes, starts, nnz, a[:-1], b), "csr_add: starts must end with"),
        ((codes, starts, nnz, a, b.float()), "csr_add: a and b must .* of one dtype"),
        ((codes, starts, nnz, a.expand(2, -1), b), "csr_add: a and b must both"),
    ):
        with pytest.raises(RuntimeError, match=message):
            ops.csr_add(*arguments, 1.0, 1.0)
    with pytest.raises(RuntimeError, match="csr_add_backward: starts must end with"):
        ops.csr_add_backward(codes, starts, na + 1, nb, normal((nnz,)), 1.0, 1.0, True, True)


def test_meta_tensors_give_shapes():
    P = small_pattern()
    A = [None if t is None else t.to("meta") for t in structure(P)]
    y = ops.csr_spmm(*A, normal((P.nnz,)).to("meta"), normal((5, 2)).to("meta"))
    assert y.is_meta
    assert y.shape == (4, 2)


def test_results_never_share_memory_with_arguments():
    P = ls.CSR.from_dense(torch.eye(3, dtype=torch.float64)).pattern
    v, x = torch.ones(3, dtype=torch.float64), normal((3,))
    y = ls.ops.spmm(ls.CSR(v, P), x)
    assert y.data_ptr() not in (v.data_ptr(), x.data_ptr())
