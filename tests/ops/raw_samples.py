"""Arguments for the compiled operators, from a pattern and a type of numbers."""

import scipy.sparse
import torch
from ops.factor_cases import dominant
from ops.factor_cases import small as incomplete_pattern
from reference import normal, pattern_of, random
from scipy.sparse import eye_array

import learnsolve as ls
from learnsolve.ops.add import union_plan
from learnsolve.ops.core import sparse_product
from learnsolve.ops.core.incomplete import plan_of
from learnsolve.ops.core.triangular import Side, _adjoint_system, _system
from learnsolve.ops.triangle import triangle_of

ops = torch.ops.learnsolve


COMPLETE = ("complete", "complete lu")


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
    vz, xz = v * (1 + 2j), x * (2 - 1j)
    return [
        (*A, vz, xz),
        (*structure(P, True), vz, y * 1j, False, True),
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
        (ptr, idx, blocks, u * 1j, vb * (2 - 1j), True, 2),
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
    if kind in COMPLETE:
        Q = ls.preconditioners.fill_pattern(Q, None)
        Q = triangle_of(Q, "lower") if kind == "complete" else Q
    plan = plan_of(Q, kind)
    tensors, cholesky = plan.elimination
    if kind in COMPLETE:
        return (
            ((*(t.to(P.dtype) for t in tensors),), cholesky),
            Q,
            len(tensors[1]) * (2 - cholesky),
            plan.size,
        )
    entries, size = tensors[-1].tolist()
    return ((*(t.to(P.dtype) for t in tensors[:-1]), tensors[-1]), cholesky), Q, entries, size


def incomplete_factor_arguments(P, dtype):
    out = []
    for kind in ("ic0", "mic0", "ilu0", "relaxed", *COMPLETE):
        plan, Q, _, size = incomplete_plan(P, kind)
        crow = torch.cat((Q.crow_indices, Q.crow_indices.new_tensor([size])))
        for batch in ((), (2,)):
            values = torch.nn.functional.pad(dominant(Q, batch, dtype), (0, size - Q.nnz))
            out.append((*plan, crow, values, False))
    return out


def incomplete_derivative_arguments(operands, sized):
    """`operands`: "f" in the places of the factors, "v" in those of A's values."""

    def arguments(P, dtype):
        out = []
        for kind in ("ic0", "mic0", "ilu0", "relaxed", *COMPLETE):
            plan, _, entries, size = incomplete_plan(P, kind)
            for batch in ((), (2,)):
                sizes = ((*batch, entries if o == "f" else size) for o in operands)
                tensors = (normal(size, dtype, seed).abs() + 1 for seed, size in enumerate(sizes))
                out.append((*plan, *tensors, *((size,) if sized else ())))
        return out

    return arguments


def spgemm_arguments(P, dtype, operands=("a", "b"), columns=False, shared=True):
    """With a plan, with a mask and its plan, with a mask and no plan; without and with batches."""
    out = []
    for mask, limit in ((None, 2**30), (P, 2**30), (P, 0)):
        before = ls.ops.set_spgemm_plan_limit(limit)
        Q = ls.SparsityPattern(P.crow_indices.clone(), P.col_indices.clone(), P.shape)
        arrays = (sparse_product._by_columns if columns else sparse_product._by_rows)(Q, P, mask)
        ls.ops.set_spgemm_plan_limit(before)
        nnz = {"a": P.nnz, "b": P.nnz, "g": sparse_product.result_pattern(Q, P, mask).nnz}
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


def krylov_arguments(P, dtype):
    """Of each method two iterations from random states; gmres from x, and from one Arnoldi vector."""
    n = P.shape[0]
    A, v, d, b = structure(P), normal((P.nnz,), dtype), normal((n,), dtype).abs(), normal((n,), dtype)
    vector, one = lambda *lead: normal((*lead, n, 1), dtype), torch.ones(1, 1, dtype=dtype)
    return [
        (A, v, 0, d, b, [vector()] * 9, [one] * 10, 0.0, 1e6, 2, 1),
        (structure(P, True), v, 1, None, b, [vector()] * 5, [one] * 3, 0.0, 1e6, 2, 1),
        (A, v, 2, d, b, [vector()] * 2, [one] * 2, 0.0, 1e6, 2, 3),
        (A, v, 2, None, b, [vector(), vector(), vector(2), vector(1)], [one] * 4, 0.0, 1e6, 2, 3),
    ]


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


def segment_arguments(P, dtype, *operands):
    """`operands`: "e" features of the entries, "g" of the rows, "at" places of entries of the rows."""
    out = []
    for transpose, batch in ((False, ()), (True, ()), (False, (2,))):
        S = structure(P, transpose)
        sizes = {"e": P.nnz, "g": len(S[0]) - 1}
        at = ops.csr_segment_max(S, normal((*batch, P.nnz, 3), dtype))[1]
        made = (at if o == "at" else normal((*batch, sizes[o], 3), dtype, i) for i, o in enumerate(operands))
        out.append((S, *made))
    return out


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


SAMPLES = {
    "linear_steps": linear_steps_arguments,
    "linear_steps_backward": lambda P, dtype: linear_steps_arguments(P, dtype, True),
    "perceptron": perceptron_arguments,
    "perceptron_backward": lambda P, dtype: perceptron_arguments(P, dtype, True),
    "column_dots": lambda P, dtype: [*column_samples(P, dtype), (*column_samples(P, dtype)[-1], True)],
    "column_combination": lambda P, dtype: column_samples(P, dtype, (3,)),
    "csr_segment_max": lambda P, dtype: segment_arguments(P, dtype, "e"),
    "csr_segment_place": lambda P, dtype: segment_arguments(P, dtype, "at", "g"),
    "csr_segment_softmax": lambda P, dtype: segment_arguments(P, dtype, "e"),
    "csr_segment_softmax_backward": lambda P, dtype: segment_arguments(P, dtype, "e", "e"),
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
    "csr_krylov": krylov_arguments,
    "csr_pcg_backward": pcg_backward_arguments,
}
