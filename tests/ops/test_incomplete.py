"""ic0, mic0 and ilu0: values, what they preserve, threads, memory, shifts, breakdown, errors."""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from ops.incomplete_cases import (
    OMEGA,
    STRUCTURES,
    dominant,
    every_elimination,
    every_kind,
    library,
    loops,
    small,
)
from ops.test_memory import peak
from reference import assert_same_bits, densify, grid, normal, on_cuda, on_pattern, pattern_of

import learnsolve as ls
from learnsolve.ops.core import incomplete

ROUNDING = {torch.float32: 2e-5, torch.float64: 1e-13}


@every_elimination
@pytest.mark.parametrize("structure", STRUCTURES)
def test_value_and_gradient(kind, structure):
    for index, dtype in itertools.product((torch.int32, torch.int64), (torch.float32, torch.float64)):
        P = pattern_of(STRUCTURES[structure], index)
        for batch in ((), (3,), (2, 2), (0,)):
            if batch and (index, dtype) != (torch.int32, torch.float64):
                continue
            v = dominant(P, batch, dtype).requires_grad_()
            exact = v.detach().double().requires_grad_()
            found, wanted = library(kind, P, v), loops(kind, P, exact)
            assert found.dtype == dtype
            tolerance = {"rtol": ROUNDING[dtype], "atol": ROUNDING[dtype]}
            torch.testing.assert_close(found.double(), wanted, **tolerance)
            g = normal(found.shape, dtype, seed=3)
            (grad,) = torch.autograd.grad(found, v, g)
            assert grad.dtype == dtype
            if P.nnz == 0 or 0 in batch:
                continue
            (reference,) = torch.autograd.grad(wanted, exact, g.double())
            torch.testing.assert_close(grad.double(), reference, **tolerance)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_what_is_preserved(structure):
    P = pattern_of(STRUCTURES[structure])
    v = dominant(P)
    A = ls.CSR(v, P)
    close = {"rtol": 1e-13, "atol": 1e-13}
    L, U, shift = ls.ops.ilu0(A)
    torch.testing.assert_close(on_pattern(P, L.to_dense() @ U.to_dense()), v, **close)
    x = normal((P.shape[0],))
    torch.testing.assert_close(L @ (U @ x), L.to_dense() @ (U.to_dense() @ x), **close)
    assert float(shift) == 0
    lower = densify(P, v).tril()
    symmetric = lower + lower.tril(-1).mT
    Q = L.pattern
    L = ls.ops.ic0(A).L
    torch.testing.assert_close(on_pattern(Q, L.to_dense() @ L.to_dense().mT), on_pattern(Q, lower), **close)
    M = ls.ops.mic0(A).L.to_dense()
    off = densify(Q, torch.ones(Q.nnz, dtype=v.dtype)).tril(-1) > 0
    torch.testing.assert_close((M @ M.mT)[off], lower[off], **close)
    torch.testing.assert_close((M @ M.mT).sum(1), symmetric.sum(1), **close)


@every_kind
def test_patterns_are_the_same_objects_in_every_call(kind):
    P = small()
    first, second = (getattr(ls.ops, kind)(ls.CSR(dominant(P, seed=s), P)) for s in (0, 1))
    assert first.L.pattern is second.L.pattern
    assert first.L.pattern is ls.CSR(dominant(P), P).tril().pattern
    if kind == "ilu0":
        assert first.U.pattern is second.U.pattern is ls.CSR(dominant(P), P).triu().pattern
    assert first.L.pattern.dtype == P.dtype
    ls.SparsityPattern(first.L.crow_indices, first.L.col_indices, first.L.shape)  # valid


@pytest.mark.parametrize("kind", ["ic0", "mic0"])
def test_the_upper_triangle_is_not_read(kind):
    P = small()
    v = dominant(P)
    upper = densify(P, torch.arange(P.nnz) + 1.0).triu(1)[densify(P, torch.ones(P.nnz)) > 0] > 0
    spoiled = torch.where(upper, torch.nan, v).requires_grad_()
    L = library(kind, P, spoiled)
    assert torch.equal(L, library(kind, P, v))
    (grad,) = torch.autograd.grad(L.sum(), spoiled)
    assert upper.any()
    assert (grad[upper] == 0).all()
    assert (grad[~upper] != 0).any()


def test_stored_ones_of_L_have_no_effect_on_the_gradient():
    P = small()
    v = dominant(P).requires_grad_()
    L = ls.ops.ilu0(ls.CSR(v, P)).L
    assert torch.equal(L.diagonal(), torch.ones(5, dtype=v.dtype))
    (grad,) = torch.autograd.grad(L.diagonal().sum(), v)
    assert torch.equal(grad, torch.zeros_like(v))


@every_kind
def test_explicit_zeros_stay_entries(kind):
    P = small()
    v = dominant(P)
    v[P.diagonal_positions[3] - 1] = 0  # (3, 1)
    v[P.diagonal_positions[4] - 1] = 0  # (4, 3)
    v.requires_grad_()
    L = library(kind, P, v)
    assert len(L) == len(library(kind, P, dominant(P)))
    (grad,) = torch.autograd.grad(L.sum(), v)
    assert (grad[v.detach() == 0] != 0).all()


@every_elimination
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_same_bits_for_any_number_of_threads_and_batch(kind, dtype):
    P = pattern_of(grid(5, 60), torch.int32)
    v = dominant(P, (5,), dtype)

    def results(v):
        v = v.clone().requires_grad_()
        f = library(kind, P, v)
        (grad,) = torch.autograd.grad(f, v, f.detach(), create_graph=True)
        return [t.detach() for t in (f, grad, *torch.autograd.grad(grad, v, v.detach()))]

    alone = [torch.stack(t) for t in zip(*(results(one) for one in v), strict=True)]
    assert all(torch.equal(a, b) for a, b in zip(results(v), alone, strict=True))
    assert_same_bits(lambda: results(v))


@every_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_many_blocks_have_the_bits_of_one(kind, dtype):
    """On a CUDA device most levels of them are wide, a launch each; those of one go through one block."""
    copies, one = 500, grid(5, 4)
    small, large = (pattern_of(S, torch.int32) for S in (one, sp.block_diag([one] * copies, format="csr")))
    if on_cuda():
        for P, wide in ((small, {False}), (large, {False, True})):
            bounds = incomplete.plan_of(P, kind).elimination[0][7]
            assert set((np.diff(bounds) >= 2048).tolist()) == wide  # csrc/ops/incomplete.cu

    def results(P, v):
        v = v.clone().requires_grad_()
        factors = getattr(ls.ops, kind)(ls.CSR(v, P))
        f = [F.values for F in (factors.L, getattr(factors, "U", None)) if F is not None]
        (grad,) = torch.autograd.grad(f, v, [t.detach() for t in f], create_graph=True)
        return [t.detach() for t in (*f, grad, *torch.autograd.grad(grad, v, v.detach()))]

    v = dominant(small, (), dtype)
    for alone, many in zip(results(small, v), results(large, v.repeat(copies)), strict=True):
        assert torch.equal(many.reshape(copies, -1), alone.expand(copies, -1))


@every_kind
def test_memory(kind):
    P = pattern_of(grid(9, 60), torch.int32)
    entries, products = P.nnz, 9 * P.nnz
    v = dominant(P).requires_grad_()
    library(kind, P, v)
    # The plan: 16 bytes an entry, 8 a product; and the patterns of the factors.
    assert P.cache_bytes() <= 4 * (8 * entries + 2 * products + 8 * P.shape[0])
    factors = getattr(ls.ops, kind)
    A = ls.CSR(v, P)
    size = entries + P.shape[0] if kind == "ilu0" else (entries + P.shape[0]) // 2
    assert peak(lambda: factors(A)) <= 8 * (size + 4096)
    result = factors(A)
    outputs = [M.values for M in result[:-1]]
    gs = [torch.ones_like(t) for t in outputs]
    # The gradient, the working copy of the incoming one and, for LU, the two parts of that put together.
    found = peak(lambda: torch.autograd.grad(outputs, v, gs))
    assert found <= 8 * (entries + (2 if kind == "ilu0" else 1) * size + 4096)


@every_kind
@pytest.mark.parametrize("tensor", [False, True])
def test_shift_is_relative_to_the_diagonal(kind, tensor):
    P = small()
    v = dominant(P, (2,))
    on = torch.zeros(P.nnz, dtype=torch.bool)
    on[P.diagonal_positions] = True
    shift = torch.tensor([0.25, 0.5], dtype=v.dtype) if tensor else 0.25
    wanted = library(kind, P, torch.where(on, v * (1 + torch.as_tensor(shift).reshape(-1, 1)), v))
    result = getattr(ls.ops, kind)(ls.CSR(v, P), shift=shift)
    assert torch.equal(library(kind, P, v, shift=shift), wanted)
    assert torch.equal(result.shift, torch.as_tensor(shift, dtype=v.dtype).expand(2))


@every_elimination
def test_gradient_for_a_shift(kind):
    P = small()
    v, shift = dominant(P).requires_grad_(), torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    f = lambda v, s: library(kind, P, v, shift=s)  # noqa: E731
    assert torch.autograd.gradcheck(f, (v, shift), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, (v, shift))
    searched = lambda v, s: library(kind, P, v, shift=s, on_breakdown="shift")  # noqa: E731
    assert torch.autograd.gradcheck(searched, (v, shift), check_forward_ad=True)


def test_omega():
    """0 is ic0, 1 is mic0, as numbers and tensors; between them a part of the dropped fill. It is learned,
    one value for each matrix of a batch, and goes with a search for a shift."""
    P = pattern_of(STRUCTURES["9 points"])
    v = dominant(P, (2,))
    omega = torch.tensor([0.0, 1.0], dtype=v.dtype)
    ends = [library(kind, P, one) for kind, one in zip(("ic0", "mic0"), v, strict=True)]
    assert torch.equal(library("mic0", P, v, omega=omega), torch.stack(ends))
    assert torch.equal(library("mic0", P, v[0], omega=0), ends[0])
    L = ls.ops.mic0(ls.CSR(v[1], P), omega=OMEGA).L.to_dense()
    lower = densify(P, v[1]).tril()
    symmetric, dropped = lower + lower.tril(-1).mT, torch.zeros_like(lower)
    for k in range(len(L)):
        dropped[k + 1 :, k + 1 :] += torch.outer(L[k + 1 :, k], L[k + 1 :, k])
    dropped *= densify(P, torch.ones(P.nnz, dtype=v.dtype)) == 0
    wanted = (symmetric + (1 - OMEGA) * dropped).sum(1)
    torch.testing.assert_close((L @ L.mT).sum(1), wanted, rtol=1e-13, atol=1e-13)

    Q, omega = small(), torch.tensor([0.3, 0.7], dtype=v.dtype, requires_grad=True)
    values = dominant(Q, (2,)).requires_grad_()
    f = lambda v, omega: library("mic0", Q, v, omega=omega)  # noqa: E731
    assert torch.autograd.gradcheck(f, (values, omega), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, (values, omega))
    each = torch.func.vmap(lambda v, omega: f(v, omega))(values, omega)
    assert torch.equal(each, f(values, omega))
    D = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=v.dtype)
    with pytest.warns(RuntimeWarning, match="mic0: a pivot broke down, the diagonal was shifted by 1.02"):
        shift = ls.ops.mic0(ls.CSR.from_dense(D), omega=0.5, on_breakdown="shift").shift
    with pytest.raises(ValueError, match=r"mic0: every pivot must be positive.* that of row 1"):
        ls.ops.mic0(ls.CSR.from_dense(D), omega=0.5)
    assert float(shift) == 1.024
    A = ls.CSR(v, P)
    for error, message, wrong in (
        (ValueError, "must be between 0 and 1, got 1.5", 1.5),
        (ValueError, "must be between 0 and 1, got -0.5", torch.tensor([0.5, -0.5], dtype=v.dtype)),
        (TypeError, "must be a number or a torch.Tensor, got str", "1"),
        (TypeError, "has dtype torch.float32", torch.tensor(0.5)),
        (ValueError, "must broadcast to the batch axes", v[0]),
    ):
        with pytest.raises(error, match=f"mic0: omega {message}"):
            ls.ops.mic0(A, omega=wrong)


def indefinite(P, row, value=-3.0):
    """Values whose pivot in `row` is what `value` makes of it."""
    v = dominant(P)
    v[P.diagonal_positions[row]] = value
    return v


@every_kind
def test_breakdown_names_row_and_value(kind):
    P = small()
    v = indefinite(P, 1, 0.0)  # row 1 has no entry before its diagonal
    message = rf"{kind}: every pivot must be .* that of row 1 is 0; add a shift: shift=1e-2, say, or"
    with pytest.raises(ValueError, match=message):
        library(kind, P, v)
    batch = torch.stack([dominant(P), v])
    with pytest.raises(ValueError, match=r"that of row 1 of matrix 1 of the batch .* is 0;"):
        library(kind, P, batch)
    with pytest.raises(ValueError, match=r"that of row 1 of matrix 1 of the batch .* is 0;"):
        torch.vmap(lambda v: library(kind, P, v))(batch)
    with pytest.raises(ValueError, match="that of row 0 is nan"):
        library(kind, P, indefinite(P, 0, torch.nan).requires_grad_())
    if on_cuda():  # a CUDA operator raises nothing: to look would be to wait
        return
    with pytest.raises(RuntimeError, match=r"csr_incomplete_factor: the pivot of row 1 is 0.*use a shift"):
        torch.compile(lambda v: library(kind, P, v), fullgraph=True, backend="aot_eager")(v)


@pytest.mark.parametrize("kind", ["ic0", "mic0"])
def test_a_negative_pivot_is_a_breakdown_of_cholesky_only(kind):
    P = small()
    v = indefinite(P, 0)
    with pytest.raises(ValueError, match="must be positive and finite, that of row 0 is -3"):
        library(kind, P, v)
    library("ilu0", P, v)


def weak_diagonal(P, scale):
    v = dominant(P)
    at = P.diagonal_positions
    v[at] = v[at] * scale
    return v


@pytest.mark.parametrize("kind", ["ic0", "mic0"])
def test_search_for_a_shift(kind):
    P = pattern_of(STRUCTURES["5 points"])
    bad = weak_diagonal(P, 0.05)
    with pytest.raises(ValueError, match="every pivot must be positive"):
        library(kind, P, bad)
    batch = torch.stack([dominant(P), bad])
    with pytest.warns(RuntimeWarning, match=rf"{kind}: .* shifted by .* times itself"):
        result = getattr(ls.ops, kind)(ls.CSR(batch, P), on_breakdown="shift")
    shift = float(result.shift[1])
    assert float(result.shift[0]) == 0
    assert shift > 0
    assert torch.log2(result.shift[1] / 1e-3) % 1 == 0  # 1e-3, doubled
    assert torch.equal(result.L.values[0], library(kind, P, batch[0]))
    assert torch.equal(result.L.values[1], library(kind, P, bad, shift=shift))
    with pytest.raises(ValueError, match="every pivot must be positive"):  # it is the first that works
        library(kind, P, bad, shift=shift / 2)
    with pytest.warns(RuntimeWarning):
        mapped = torch.vmap(lambda v: library(kind, P, v, on_breakdown="shift"))(batch)
    assert torch.equal(mapped, result.L.values)


@pytest.mark.parametrize("kind", ["ic0", "mic0"])
def test_gradient_holds_a_searched_shift_constant(kind):
    P = pattern_of(STRUCTURES["5 points"])
    v = weak_diagonal(P, 0.05).requires_grad_()
    with pytest.warns(RuntimeWarning):
        result = getattr(ls.ops, kind)(ls.CSR(v, P), on_breakdown="shift")
    g = normal(result.L.values.shape)
    (found,) = torch.autograd.grad(result.L.values, v, g)
    (wanted,) = torch.autograd.grad(library(kind, P, v, shift=float(result.shift)), v, g)
    assert torch.equal(found, wanted)
    with pytest.warns(RuntimeWarning):
        tangent = torch.func.jvp(
            lambda v: library(kind, P, v, on_breakdown="shift"), (v.detach(),), (torch.ones_like(v),)
        )[1]
    assert abs(float(tangent @ g - found.sum())) < 1e-11 * float(found.abs().sum())


def test_lu_search_for_a_shift():
    A = ls.CSR.from_dense(torch.ones(2, 2, dtype=torch.float64))  # the second pivot is 0
    with pytest.raises(ValueError, match="that of row 1 is 0"):
        ls.ops.ilu0(A)
    with pytest.warns(RuntimeWarning, match="shifted by 0.001 times"):
        result = ls.ops.ilu0(A, on_breakdown="shift")
    assert float(result.shift) == 1e-3


@every_kind
def test_a_search_in_vain_says_so(kind):
    P = small()
    with pytest.raises(ValueError, match=r"row 1 is 0, even with shift 5.37e\+05 .*30 tries.*identity"):
        library(kind, P, indefinite(P, 1, 0.0), on_breakdown="shift")


@every_kind
def test_errors(kind):
    op, P = getattr(ls.ops, kind), small()
    A = ls.CSR(dominant(P), P)
    hole = ls.CSR.from_dense(torch.tensor([[1.0, 0, 0], [0, 1, 0], [1, 1, 0]]))
    minus, single = torch.tensor(-0.5, dtype=A.dtype), torch.tensor(1.0)
    finite = "shift must be finite and not negative, got "
    for error, message, arguments in (
        (TypeError, "A must be a CSR, got Tensor", {"A": torch.ones(2, 2)}),
        (TypeError, "A.values must be float32 or float64", {"A": A.to(torch.float16)}),
        (ValueError, r"A must be square, got shape \(2, 5\)", {"A": A[:2]}),
        (ValueError, "A must have an entry on its diagonal in every row, row 2 has none", {"A": hole}),
        (ValueError, "on_breakdown must be one of", {"on_breakdown": "ignore"}),
        (TypeError, "shift must be a number or a torch.Tensor, got str", {"shift": "1"}),
        (ValueError, finite + "-1", {"shift": -1}),
        (ValueError, finite + "-0.5", {"shift": minus}),
        (ValueError, finite + "nan", {"shift": minus * torch.nan}),
        (TypeError, "shift has dtype torch.float32", {"shift": single}),
        (ValueError, "shift must broadcast to the batch axes", {"shift": A.values[:3]}),
    ):
        with pytest.raises(error, match=f"{kind}: {message}"):
            op(**{"A": A} | arguments)
    with pytest.raises(ValueError, match=f"{kind}: {finite}-0.5"):
        torch.func.grad(lambda s: op(A, shift=s).L.values.sum())(minus)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("learnsolve.ops.core.incomplete.PLAN_LIMIT", 8)
        with pytest.raises(ValueError, match=rf"{kind}: the elimination on this pattern has \d+ products"):
            op(ls.CSR(A.values, small()))
    searching = torch.compile(lambda A: op(A, on_breakdown="shift").L, backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match=r"cannot be traced by torch.compile"):
        searching(A)
    wanted = library(kind, P, A.values, shift=0.5)
    assert torch.equal(library(kind, P, A.values, shift=np.float32(0.5)), wanted)


def test_an_overflow_that_reaches_no_pivot_is_named():
    D = torch.tensor([[1e-300, 0, 1], [1e300, 1, 0], [0, 0, 1]], dtype=torch.float64)
    A = ls.CSR.from_dense(D)
    with pytest.raises(ValueError, match=r"ilu0: .* of L in row 1, column 0 is inf; scale the rows"):
        ls.ops.ilu0(A)
    batch = A.with_values(torch.stack((torch.ones_like(A.values), A.values)))
    with pytest.raises(ValueError, match=r"ilu0: .* row 1, column 0 of matrix 1 of the batch .* is inf"):
        ls.ops.ilu0(batch)
    huge = torch.full((A.nnz,), 1e308, dtype=torch.float64)  # no entry overflows, their sum does
    assert ls.ops.ilu0(A.with_values(huge)).U.values.isfinite().all()
