"""The messages of the compiled operators for wrong arguments."""

import pytest
import torch
from ops.incomplete_cases import dominant
from ops.raw_samples import SAMPLES, incomplete_plan, ops, structure
from reference import normal, pattern_of, random, small_pattern
from scipy.sparse import eye_array
from torch.utils._pytree import tree_flatten, tree_unflatten

import learnsolve as ls
from learnsolve.ops import pcg
from learnsolve.ops.core import sparse_product
from learnsolve.ops.core.triangular import Side, _system


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
    ("csr_spmm", {4: half}, "x and values must have one dtype"),
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
    ("perceptron_backward", {1: lambda t: t.int()}, r"places must be two index arrays of \d+ entries"),
    (
        "perceptron_backward",
        {0: lambda t: t.double(), 1: lambda t: t.double()},
        "indices must be int32 or int64",
    ),
    ("perceptron_backward", {2: flat}, r"z must be \(B, n, k\), got 2"),
    ("perceptron_backward", {2: half}, "operands must have one dtype"),
    ("perceptron_backward", {3: lambda t: t[:, 1:]}, r"ends must be \(1, 2m, 8\)"),
    ("perceptron_backward", {3: lambda t: t[:, :0]}, "ends must have rows"),
    ("perceptron_backward", {4: narrow}, r"w1 must be \(f, 3\)"),
    ("perceptron_backward", {5: short}, r"b1 must be \(8\)"),
    ("perceptron_backward", {6: narrow}, r"w2 must be \(o, 8\) or empty"),
    ("perceptron_backward", {7: short}, r"b2 must be \(2\)"),
    ("perceptron_backward", {8: narrow}, r"g must be \(1, \d+, 2\)"),
    ("perceptron", {4: narrow}, r"w1 must be \(f, 3\)"),
    ("csr_segment_max", {4: short}, r"e must be \(\d+, k\) or \(B, \d+, k\)"),
    ("csr_segment_softmax", {4: flat}, "e must be"),
    ("csr_segment_softmax", {4: half}, "values must be float32 or float64"),
    ("csr_segment_softmax_backward", {5: narrow}, "operands must have one batch and one number"),
    ("csr_segment_softmax_backward", {5: single}, "y and g must have one dtype"),
    ("csr_segment_place", {5: short}, r"g must be \(6, k\)"),
    ("csr_segment_place", {4: lambda at: at.int()}, "at must be of the structure's index type"),
    ("csr_sptrsv", {8: lambda v: v[:3]}, "values must hold"),
    ("csr_sptrsv", {9: short}, "b must have 6 rows, got 5"),
    ("csr_sptrsv", {9: single}, "b and values must have one dtype"),
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
    ("csr_incomplete_factor", {9: short}, "the plan is for"),
    ("csr_incomplete_factor", {4: short}, "order, source, .* do not fit"),
    ("csr_incomplete_tangent", {0: lambda order: order.int()}, "a plan must have one index type"),
    ("csr_incomplete_adjoint", {9: short}, "g must be"),
    ("csr_incomplete_product", {9: single}, "operands must have one dtype"),
    ("csr_incomplete_product_adjoint", {8: batch(2), 9: batch(3)}, "batches must be the same, got 2"),
]


@pytest.mark.parametrize(("name", "changes", "message"), BAD, ids=[f"{n}, {m}" for n, _, m in BAD])
def test_wrong_arguments_are_refused(name, changes, message):
    P = pattern_of(random(6, 6, 0.4), torch.int64)
    samples = SAMPLES[name](P, torch.float64)
    sample = samples[{"csr_spmm": 3, "csr_sddmm": 2, "csr_spmm_backward": 1, "csr_sptrsv": 1}.get(name, 0)]
    getattr(ops, name)(*sample)
    leaves, tree = tree_flatten(list(sample))
    for at, change in changes.items():
        leaves[at] = change(leaves[at])
    with pytest.raises(RuntimeError, match=f"{name}: {message}"):
        getattr(ops, name)(*tree_unflatten(leaves, tree))


def test_lists_of_another_length_are_refused():
    P = small_pattern()
    plan, Q, entries, _ = incomplete_plan(P, "ic0")
    perceptron = SAMPLES["perceptron"](P, torch.float64)[0]
    for call, message in (
        (
            lambda: ops.csr_segment_max(structure(P)[:3], normal((P.nnz, 2))),
            "a structure must hold 4 tensors, got 3",
        ),
        (
            lambda: ops.perceptron(perceptron[0][:1], *perceptron[1:]),
            "places must hold row and col, or none, got 1",
        ),
        (
            lambda: ops.csr_incomplete_tangent(plan[0][:-2], plan[1], normal((entries,)), dominant(Q)),
            "csr_incomplete_tangent: a plan must hold 7 tensors, got 5",
        ),
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
