"""The messages of the compiled operators for wrong arguments."""

import pytest
import torch
from ops.incomplete_cases import dominant
from ops.raw_samples import SAMPLES, both_structures, incomplete_plan, ops, structure, union
from reference import normal, pattern_of, random, small_pattern
from scipy.sparse import eye_array

import learnsolve as ls
from learnsolve.ops import pcg
from learnsolve.ops.core import sparse_product
from learnsolve.ops.core.triangular import Side, _system


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


@pytest.mark.parametrize(
    ("place", "wrong", "message"),
    [
        (0, lambda t: t[:1], "places must hold row and col, or none, got 1"),
        (0, lambda t: (t[0], t[1][1:]), "places must be two index arrays of 7 entries"),
        (0, lambda t: (t[0], t[1].int()), "places must be two index arrays of 7 entries"),
        (0, lambda t: [i.double() for i in t], "indices must be int32 or int64"),
        (1, lambda t: t[0], r"z must be \(B, n, k\), got 2"),
        (1, lambda t: t.half(), "operands must have one dtype"),
        (2, lambda t: t[:, 1:], r"ends must be \(1, 2m, 8\)"),
        (2, lambda t: t[:, :0], "ends must have rows"),
        (3, lambda t: t[:, 1:], r"w1 must be \(f, 3\)"),
        (4, lambda t: t[1:], r"b1 must be \(8\)"),
        (5, lambda t: t[:, 1:], r"w2 must be \(o, 8\) or empty"),
        (6, lambda t: t[1:], r"b2 must be \(2\)"),
        (7, lambda t: t[:, 1:], r"g must be \(1, 7, 2\)"),
    ],
)
def test_wrong_perceptrons_are_refused(place, wrong, message):
    given = list(SAMPLES["perceptron_backward"](small_pattern(torch.int64), torch.float64)[0])
    given[place] = wrong(given[place])
    with pytest.raises(RuntimeError, match=f"perceptron_backward: {message}"):
        ops.perceptron_backward(*given)
    if place < 7:
        with pytest.raises(RuntimeError, match=f"perceptron: {message}"):
            ops.perceptron(*given[:7])


def test_wrong_features_are_refused():
    P = small_pattern()
    S, e = structure(P), normal((P.nnz, 2))
    top, at = ops.csr_segment_max(S, e)
    for call, message in (
        (lambda: ops.csr_segment_max(S, e[1:]), r"csr_segment_max: e must be \(7, k\) or \(B, 7, k\)"),
        (lambda: ops.csr_segment_softmax(S, e[:, 0]), "csr_segment_softmax: e must be"),
        (
            lambda: ops.csr_segment_softmax(S, e.half()),
            "csr_segment_softmax: values must be float32 or float64",
        ),
        (
            lambda: ops.csr_segment_softmax_backward(S, e, e[:, :1]),
            "operands must have one batch and one number",
        ),
        (lambda: ops.csr_segment_softmax_backward(S, e, e.float()), "y and g must have one dtype"),
        (lambda: ops.csr_segment_place(S, at, e), r"csr_segment_place: g must be \(4, k\)"),
        (lambda: ops.csr_segment_place(S, at.int(), top), "at must be of the structure's index type"),
        (lambda: ops.csr_segment_max(S[:3], e), "csr_segment_max: a structure must hold 4 tensors, got 3"),
    ):
        with pytest.raises(RuntimeError, match=message):
            call()


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


def test_wrong_arguments_of_the_sparse_product_are_refused():
    P = small_pattern()
    v, w = normal((P.nnz,)), normal((P.nnz,))
    names = ["a_ptr", "a_idx", "perm", "b_ptr", "b_idx", "c_ptr", "c_idx", "positions", "starts", "blocks"]
    tensors, masked, columns = sparse_product._by_rows(P, P.T, None)
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


def test_wrong_arguments_of_the_incomplete_factorization_are_refused():
    plan, Q, entries = incomplete_plan(small_pattern(), "ic0")
    tensors, cholesky = plan
    *_, pairs, units, sizes = tensors
    v, f = dominant(Q), normal((entries,))
    with pytest.raises(RuntimeError, match="csr_incomplete_factor: crow must end with the number of values"):
        ops.csr_incomplete_factor(*plan, Q.crow_indices[:-1], v, True)
    with pytest.raises(RuntimeError, match="csr_incomplete_factor: the plan is for"):
        ops.csr_incomplete_factor(*plan, Q.crow_indices, v[:-1], True)
    with pytest.raises(RuntimeError, match=r"csr_incomplete_factor: order, source, .* do not fit"):
        ops.csr_incomplete_factor((*tensors[:4], pairs[:-1], units, sizes), cholesky, Q.crow_indices, v, True)
    with pytest.raises(RuntimeError, match="csr_incomplete_tangent: a plan must have one index type"):
        ops.csr_incomplete_tangent((tensors[0].int(), *tensors[1:]), cholesky, f, v)
    with pytest.raises(RuntimeError, match="csr_incomplete_tangent: a plan must hold 7 tensors, got 6"):
        ops.csr_incomplete_tangent(tensors[:-1], cholesky, f, v)
    with pytest.raises(RuntimeError, match="csr_incomplete_adjoint: g must be"):
        ops.csr_incomplete_adjoint(*plan, f, f[:-1], Q.nnz)
    with pytest.raises(RuntimeError, match="csr_incomplete_product: operands must have one dtype"):
        ops.csr_incomplete_product(*plan, f, f.float(), Q.nnz)
    with pytest.raises(RuntimeError, match="csr_incomplete_product_adjoint: batches must be the same, got 2"):
        ops.csr_incomplete_product_adjoint(*plan, f.repeat(2, 1), v.repeat(3, 1))
