"""The compiled operators themselves: schema, fake kernels, and what they say to wrong arguments."""

import functools

import pytest
import scipy.sparse
import torch
from ops.cases import CASES
from ops.incomplete_cases import dominant
from ops.incomplete_cases import small as incomplete_pattern
from reference import normal, pattern_of, random, small_pattern
from scipy.sparse import eye_array
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

import learnsolve as ls
from learnsolve.ops import _sparse_product, pcg
from learnsolve.ops._incomplete import plan_of
from learnsolve.ops._triangular import Side, _adjoint_system, _system
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
    return [(*S, v, g[:, 0], x[:, 0]), (*S, v, g, x), (*S, v, gb, xb), (*S, vb, gb, x), (*S, vb, gb, xb)]


def richardson_arguments(P, dtype):
    n = P.shape[0]
    A = structure(P)
    v, s, b, x0 = normal((P.nnz,), dtype), *(normal((1, n), dtype, seed) for seed in (1, 2, 3))
    B, X0 = normal((n, 3), dtype), normal((n, 3), dtype, 1)
    several = (normal((2, P.nnz), dtype), normal((2, 1, n), dtype))
    BB, XX = (t.repeat(2, 1, 1) for t in (B, X0))
    m = normal((4,), dtype, 4)
    return [
        (A, v, s, None, b[0], x0[0], None, 4, 0),
        (A, v, s, None, b[0], x0[0], None, 4, 1),
        (A, v, normal((4, n), dtype), None, B, X0, None, 4, 2),
        (A, *several, None, BB, XX, None, 3, 2),
        (A, v, s[0], m[:1], b[0], x0[0], x0[0] + 1, 4, 0),
        (A, v, s, m, B, X0, X0 + 1, 4, 1),
        (A, v, s, m, B, X0, None, 4, 2),
        (A, *several, normal((2, 3), dtype), BB, XX, XX + 1, 3, 2),
    ]


def richardson_backward_arguments(P, dtype):
    out = []
    for A, v, s, m, b, x0, before, iterations, stride in richardson_arguments(P, dtype):
        if stride == 0:
            continue
        x, norms, kept, _ = ops.csr_richardson(A, v, s, m, b, x0, before, iterations, stride)
        fixed = (A, structure(P, True), v, s, m, b, before, [kept, norms])
        one, none, sizes = torch.ones_like(x), x.new_empty(0), (iterations, stride)
        out.append((*fixed, [one, torch.ones_like(norms), none], *sizes, (True,) * 5))
        out.append((*fixed, [one, none, one], *sizes, (False,) * 4 + (True,)))
        out.append((*fixed, [one, none, none], *sizes, (False,) * 3 + (True, False)))
    return out


def scatter_arguments(P, dtype):
    ptr, idx, _, blocks = structure(P)
    m, n = P.shape
    vectors = (normal((P.nnz,), dtype), normal((m,), dtype), normal((n,), dtype))
    return [(ptr, idx, blocks, *vectors, *needs) for needs in ((True, True), (False, True), (True, False))]


def incomplete_plan(P, kind):
    """The plan of a small matrix, in the index type of P; its values, two factors and crow."""
    Q = incomplete_pattern(P.dtype)
    plan = plan_of(Q, kind)
    entries = plan.lower.nnz + sum(U.nnz for U in plan.upper)
    return (tuple(t.to(P.dtype) for t in plan.tensors), plan.cholesky), Q, entries


def incomplete_factor_arguments(P, dtype):
    out = []
    for kind in ("ic0", "mic0", "ilu0"):
        plan, Q, _ = incomplete_plan(P, kind)
        out += [(*plan, Q.crow_indices, dominant(Q, batch, dtype), False) for batch in ((), (2,))]
    return out


def incomplete_derivative_arguments(operands, sized):
    """`operands`: "f" in the places of the factors, "v" in those of A's values."""

    def arguments(P, dtype):
        out = []
        for kind in ("ic0", "mic0", "ilu0"):
            plan, Q, entries = incomplete_plan(P, kind)
            for batch in ((), (2,)):
                sizes = ((*batch, entries if o == "f" else Q.nnz) for o in operands)
                tensors = (normal(size, dtype, seed).abs() + 1 for seed, size in enumerate(sizes))
                out.append((*plan, *tensors, *((Q.nnz,) if sized else ())))
        return out

    return arguments


def spgemm_arguments(P, dtype, operands=("a", "b"), columns=False, shared=True):
    """With a plan, with a mask and its plan, with a mask and no plan; without and with batches."""
    out = []
    for mask, limit in ((None, 2**30), (P, 2**30), (P, 0)):
        before = ls.ops.set_spgemm_plan_limit(limit)
        Q = ls.SparsityPattern(P.crow_indices.clone(), P.col_indices.clone(), P.shape)
        if columns:
            arrays = _sparse_product._by_columns(Q, P, mask)
        else:
            wanted = _sparse_product.LEFT if operands[0] == "g" else _sparse_product.PRODUCT
            arrays = _sparse_product._by_rows(Q, P, mask, wanted)
        ls.ops.set_spgemm_plan_limit(before)
        nnz = {"a": P.nnz, "b": P.nnz, "g": _sparse_product.result_pattern(Q, P, mask).nnz}
        single = [normal((nnz[x],), dtype, seed) for seed, x in enumerate(operands)]
        batch = [normal((2, nnz[x]), dtype, seed) for seed, x in enumerate(operands)]
        out.append((*arrays, *single))
        out.append((*arrays, *batch))
        if shared:
            out.append((*arrays, single[0], batch[1], True))
    return out


def triangular_samples(P, dtype):
    """(system of the solve, of its backward, values, right-hand side), on a pattern with a diagonal."""
    S = pattern_of(random(*P.shape, 0.4) + eye_array(P.shape[0]), P.dtype)
    v, b = normal((S.nnz,), dtype) + 5, normal((P.shape[0], 3), dtype)
    vb, bb = normal((2, S.nnz), dtype) + 5, normal((2, P.shape[0], 3), dtype)
    for side in (Side(True, False, False), Side(True, True, True), Side(False, False, True)):
        for values, rhs in ((v, b[:, :0]), (v, b[:, 0]), (v, b), (v, bb), (vb, bb)):
            yield _system(S, side), _adjoint_system(S, side), values, rhs


def sptrsv_arguments(P, dtype):
    return [(*system, v, b) for system, _, v, b in triangular_samples(P, dtype)]


def sptrsv_backward_arguments(P, dtype):
    return [(*adjoint, v, b, b + 1) for _, adjoint, v, b in triangular_samples(P, dtype)]


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


SAMPLES = {
    "csr_incomplete_factor": incomplete_factor_arguments,
    "csr_incomplete_tangent": incomplete_derivative_arguments("fv", False),
    "csr_incomplete_adjoint": incomplete_derivative_arguments("ff", True),
    "csr_incomplete_product": incomplete_derivative_arguments("ff", True),
    "csr_incomplete_product_adjoint": incomplete_derivative_arguments("fv", False),
    "csr_spgemm": spgemm_arguments,
    "csr_spgemm_left": lambda P, dtype: spgemm_arguments(P, dtype, ("g", "b")),
    "csr_spgemm_right": lambda P, dtype: spgemm_arguments(P, dtype, ("a", "g"), True),
    "csr_spgemm_backward": lambda P, dtype: spgemm_arguments(P, dtype, ("a", "b", "g"), True, False),
    "csr_add": add_arguments,
    "csr_add_backward": add_backward_arguments,
    "csr_spmv_scatter_backward": scatter_arguments,
    "csr_spmm": spmm_arguments,
    "csr_sddmm": sddmm_arguments,
    "csr_spmm_backward": backward_arguments,
    "csr_sptrsv": sptrsv_arguments,
    "csr_sptrsv_backward": sptrsv_backward_arguments,
    "csr_richardson": richardson_arguments,
    "csr_richardson_backward": richardson_backward_arguments,
    "csr_pcg": pcg_arguments,
    "csr_pcg_backward": pcg_backward_arguments,
}


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


def wide(sample, first, last):
    """The arguments first ... last - 1 with int64 in place of int32."""
    made = (t.long() for t in sample[first:last])
    return (*sample[:first], *made, *sample[last:])


@pytest.mark.parametrize("name", ["csr_richardson_backward", "csr_pcg_backward"])
def test_a_transpose_with_other_indices_is_refused(name):
    sample = SAMPLES[name](pattern_of(random(6, 6, 0.4), torch.int32), torch.float64)[0]
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
    M = pcg._preconditioner(normal((L.nnz,)).abs() + 1, L, number)

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


def test_wrong_arguments_of_the_sparse_product_are_refused():
    P = small_pattern()
    v, w = normal((P.nnz,)), normal((P.nnz,))
    names = ["a_ptr", "a_idx", "perm", "b_ptr", "b_idx", "c_ptr", "c_idx", "positions", "starts", "blocks"]
    tensors, masked, columns = _sparse_product._by_rows(P, P.T, None)
    good = dict(zip(names, tensors, strict=True)) | {"a": v, "b": w}

    def call(arguments):
        *plan, a, b = arguments.values()
        return ops.csr_spgemm(plan, masked, columns, a, b)

    call(good)
    for change, message in (
        ({"a": v[:-1]}, r"csr_spgemm: a must be \(7\) or \(B, 7\)"),
        ({"b": w.float()}, "csr_spgemm: operands must have one dtype"),
        ({"a_idx": good["a_idx"].int()}, "csr_spgemm: every pattern needs"),
        ({"positions": good["positions"][:-1]}, "csr_spgemm: positions must have an entry a product"),
        ({"positions": good["positions"].long()}, "csr_spgemm: a plan must be int32"),
        ({"blocks": good["blocks"][:, :2]}, "csr_spgemm: blocks must be"),
        ({"blocks": good["blocks"][:-1]}, "csr_spgemm: blocks must cover all rows"),
        ({"c_ptr": good["b_ptr"], "c_idx": good["b_idx"]}, "csr_spgemm: C must have the rows of A"),
        ({"a": v.repeat(2, 1), "b": w.repeat(3, 1)}, "csr_spgemm: batch sizes 2 and 3"),
    ):
        with pytest.raises(RuntimeError, match=message):
            call(good | change)


@pytest.mark.parametrize(
    ("at", "change", "message"),
    [
        (8, lambda v: v[:-1], r"csr_sptrsv: values must hold"),
        (9, lambda b: b[:-1], r"csr_sptrsv: b must have 6 rows, got 5"),
        (9, lambda b: b.float(), r"csr_sptrsv: b and values must have one dtype"),
        (8, lambda v: v.repeat(2, 1), r"csr_sptrsv: with values \(B, nnz\), b must be \(B, n, k\)"),
        (1, lambda idx: idx[:-1], r"csr_sptrsv: ptr must end"),
        (3, lambda blocks: blocks[:, :2], r"csr_sptrsv: blocks must be \(number of blocks \+ 1, 3\)"),
        (4, lambda order: order.int(), r"csr_sptrsv: order and levels must have the index type"),
        (5, lambda levels: torch.tensor([0, 6]), r"csr_sptrsv: order and levels must cover all rows"),
        (7, lambda unit: False, r"csr_sptrsv: a row has no diagonal entry"),
    ],
)
def test_wrong_arguments_of_the_triangular_solve_are_refused(at, change, message):
    S = pattern_of(eye_array(6).tocsr())
    tensors, *choices = _system(S, Side(True, at == 7, False))
    arguments = [*tensors, *choices, normal((6,)) + 5, normal((6,))]
    ops.csr_sptrsv(arguments[:6], *arguments[6:])
    arguments[at] = change(arguments[at])
    with pytest.raises(RuntimeError, match=message):
        ops.csr_sptrsv(arguments[:6], *arguments[6:])


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


def test_wrong_arguments_of_the_incomplete_factorisation_are_refused():
    plan, Q, entries = incomplete_plan(small_pattern(), "ic0")
    tensors, cholesky = plan
    *_, pairs, units = tensors
    v, f = dominant(Q), normal((entries,))
    with pytest.raises(RuntimeError, match="csr_incomplete_factor: crow must end with the number of values"):
        ops.csr_incomplete_factor(*plan, Q.crow_indices, v[:-1], True)
    with pytest.raises(RuntimeError, match=r"csr_incomplete_factor: order, source, .* do not fit"):
        ops.csr_incomplete_factor((*tensors[:4], pairs[:-1], units), cholesky, Q.crow_indices, v, True)
    with pytest.raises(RuntimeError, match="csr_incomplete_tangent: a plan must have one index type"):
        ops.csr_incomplete_tangent((tensors[0].int(), *tensors[1:]), cholesky, f, v)
    with pytest.raises(RuntimeError, match="csr_incomplete_tangent: a plan must hold 6 tensors, got 5"):
        ops.csr_incomplete_tangent(tensors[:-1], cholesky, f, v)
    with pytest.raises(RuntimeError, match="csr_incomplete_adjoint: g must be"):
        ops.csr_incomplete_adjoint(*plan, f, f[:-1], Q.nnz)
    with pytest.raises(RuntimeError, match="csr_incomplete_product: operands must have one dtype"):
        ops.csr_incomplete_product(*plan, f, f.float(), Q.nnz)
    with pytest.raises(RuntimeError, match="csr_incomplete_product_adjoint: batches must be the same, got 2"):
        ops.csr_incomplete_product_adjoint(*plan, f.repeat(2, 1), v.repeat(3, 1))
