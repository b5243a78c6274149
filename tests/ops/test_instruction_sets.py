"""Every compiled variant of the kernels gives the right numbers, over the row lengths, stencils and column
counts for which they have code of their own."""

import pytest
import torch
from reference import assert_within, banded, grid, normal, pattern_of, power_law, random

import learnsolve as ls
from learnsolve import _library

COLUMNS = (1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 33, 64, 100)
MATRICES = {f"rows of {length}": banded(45, length) for length in range(1, 13)} | {
    "5 points": grid(5, 11),
    "9 points": grid(9, 11),
    "7 points": grid(7, 6),
    "random": random(37, 29, 0.2),
    "power law": power_law(40),
}


def check(P, dtype, k, transpose):
    """y = A x (or A^T x), its gradients together and apart, and the sampled product."""
    m, n = reversed(P.shape) if transpose else P.shape
    tail = () if k is None else (k,)
    rows, columns = P.row_indices.long(), P.col_indices.long()
    if transpose:
        rows, columns = columns, rows
    v, x, g = (normal(shape, dtype, seed=i) for i, shape in enumerate(((P.nnz,), (n, *tail), (m, *tail))))

    def product(a, t, to, source, size):
        a = a if t.dim() == 1 else a.unsqueeze(-1)
        return torch.zeros(size, *tail, dtype=torch.float64).index_add_(0, to, a * t[source])

    def sampled(s, t):
        return (s[rows] * t[columns]).reshape(P.nnz, -1).sum(-1)

    a, b, c = v.double(), x.double(), g.double()
    ones = torch.ones(P.nnz, dtype=torch.float64)
    y_ref = [
        product(a, b, rows, columns, m),
        product(a.abs(), b.abs(), rows, columns, m),
        product(ones, torch.ones_like(b), rows, columns, m),
    ]
    gx_ref = [
        product(a, c, columns, rows, n),
        product(a.abs(), c.abs(), columns, rows, n),
        product(ones, torch.ones_like(c), columns, rows, n),
    ]
    gv_ref = [sampled(c, b), sampled(c.abs(), b.abs()), sampled(torch.ones_like(c), torch.ones_like(b))]

    what = f"{dtype}, k = {k}, transpose = {transpose}"
    A, X = ls.CSR(v.requires_grad_(), P), x.requires_grad_()
    y = ls.ops.spmm(A, X, transpose=transpose)
    assert_within(y, *y_ref, f"product, {what}")
    gv, gx = torch.autograd.grad(y, (v, x), g, retain_graph=True)
    assert_within(gv, *gv_ref, f"gradient for values, {what}")
    assert_within(gx, *gx_ref, f"gradient for x, {what}")
    (gv,) = torch.autograd.grad(y, v, g, retain_graph=True)
    (gx,) = torch.autograd.grad(y, x, g)
    assert_within(gv, *gv_ref, f"gradient for values alone, {what}")
    assert_within(gx, *gx_ref, f"gradient for x alone, {what}")


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_values_and_gradients(isa, name, dtype):
    for index in (torch.int32, torch.int64):
        P = pattern_of(MATRICES[name], index)
        for transpose in (False, True):
            check(P, dtype, None, transpose)
    for k in COLUMNS:
        check(pattern_of(MATRICES[name]), dtype, k, False)


def test_misaligned_memory(isa):
    """Vector loads must not assume an alignment."""
    for name, S in MATRICES.items():
        P = pattern_of(S, torch.int32)
        for dtype in (torch.float32, torch.float64):
            v, x = normal((P.nnz + 1,), dtype)[1:], normal((P.shape[1] + 1,), dtype)[1:]
            assert torch.equal(ls.CSR(v, P) @ x, ls.CSR(v.clone(), P) @ x.clone()), name


def test_an_unknown_variant_is_refused():
    with pytest.raises(ValueError, match=rf"{_library.instruction_sets()[0]}.*got 'sse9'"):
        _library.select_instruction_set("sse9")
