"""ic, mic and ilu: values, what they preserve, threads, memory, shifts, breakdown, errors."""

import functools
import itertools

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from ops.factor_cases import OMEGA, STRUCTURES, dominant, every_elimination, every_kind, library, loops, small
from ops.rows import EMPTY, SHAPES
from ops.systems import (
    F64,
    SIDES,
    TRIANGULAR,
    TRIANGULAR_MATRICES,
    band,
    dense_triangular,
    full,
    solve_triangular,
    triangle,
    values_for,
    with_ones,
)
from reference import (
    assert_same_bits,
    coordinates,
    densify,
    gradients,
    grid,
    normal,
    on_cuda,
    on_pattern,
    pattern_of,
    peak,
    random,
)
from torch import func

import learnsolve as ls
from learnsolve.ops import incomplete_factors

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
    L, U, shift = ls.ops.ilu(A)
    torch.testing.assert_close(on_pattern(P, L.to_dense() @ U.to_dense()), v, **close)
    x = normal((P.shape[0],))
    torch.testing.assert_close(L @ (U @ x), L.to_dense() @ (U.to_dense() @ x), **close)
    assert float(shift) == 0
    lower = densify(P, v).tril()
    symmetric = lower + lower.tril(-1).mT
    Q = L.pattern
    L = ls.ops.ic(A).L
    torch.testing.assert_close(on_pattern(Q, L.to_dense() @ L.to_dense().mT), on_pattern(Q, lower), **close)
    M = ls.ops.mic(A).L.to_dense()
    off = densify(Q, torch.ones(Q.nnz, dtype=v.dtype)).tril(-1) > 0
    torch.testing.assert_close((M @ M.mT)[off], lower[off], **close)
    torch.testing.assert_close((M @ M.mT).sum(1), symmetric.sum(1), **close)


@pytest.mark.parametrize("kind", ["ic", "mic"])
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
    L = ls.ops.ilu(ls.CSR(v, P)).L
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
            bounds = incomplete_factors.factor_plan(P, kind).elimination[0][7]
            assert set((np.diff(bounds) >= 2048).tolist()) == wide  # csrc/ops/factors.cu

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
    size = entries + P.shape[0] if kind == "ilu" else (entries + P.shape[0]) // 2
    assert peak(lambda: factors(A)) <= 8 * (size + 4096)
    result = factors(A)
    outputs = [M.values for M in result[:-1]]
    gs = [torch.ones_like(t) for t in outputs]
    # The gradient, the working copy of the incoming one and, for LU, the two parts of that put together.
    found = peak(lambda: torch.autograd.grad(outputs, v, gs))
    assert found <= 8 * (entries + (2 if kind == "ilu" else 1) * size + 4096)


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
    searched = lambda v, s: library(kind, P, v, shift=s, on_breakdown="shift")  # noqa: E731
    assert torch.autograd.gradcheck(searched, (v, shift), check_forward_ad=True)


def test_omega():
    """0 is ic, 1 is mic, as numbers and tensors; between them a part of the dropped fill. It is learned,
    one value for each matrix of a batch, and goes with a search for a shift."""
    P = pattern_of(STRUCTURES["9 points"])
    v = dominant(P, (2,))
    omega = torch.tensor([0.0, 1.0], dtype=v.dtype)
    ends = [library(kind, P, one) for kind, one in zip(("ic", "mic"), v, strict=True)]
    assert torch.equal(library("mic", P, v, omega=omega), torch.stack(ends))
    assert torch.equal(library("mic", P, v[0], omega=0), ends[0])
    L = ls.ops.mic(ls.CSR(v[1], P), omega=OMEGA).L.to_dense()
    lower = densify(P, v[1]).tril()
    symmetric, dropped = lower + lower.tril(-1).mT, torch.zeros_like(lower)
    for k in range(len(L)):
        dropped[k + 1 :, k + 1 :] += torch.outer(L[k + 1 :, k], L[k + 1 :, k])
    dropped *= densify(P, torch.ones(P.nnz, dtype=v.dtype)) == 0
    wanted = (symmetric + (1 - OMEGA) * dropped).sum(1)
    torch.testing.assert_close((L @ L.mT).sum(1), wanted, rtol=1e-13, atol=1e-13)

    Q, omega = small(), torch.tensor([0.3, 0.7], dtype=v.dtype, requires_grad=True)
    values = dominant(Q, (2,)).requires_grad_()
    f = lambda v, omega: library("mic", Q, v, omega=omega)  # noqa: E731
    assert torch.autograd.gradcheck(f, (values, omega), check_forward_ad=True)
    D = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=v.dtype)
    with pytest.warns(RuntimeWarning, match="mic: .* in 11 factorizations, .* by 1.02"):
        shift = ls.ops.mic(ls.CSR.from_dense(D), omega=0.5, on_breakdown="shift").shift
    with pytest.raises(ValueError, match=r"mic: every pivot must be positive.* but the pivot of row 1"):
        ls.ops.mic(ls.CSR.from_dense(D), omega=0.5)
    assert float(shift) == 1.024
    A = ls.CSR(v, P)
    for error, message, wrong in (
        (ValueError, "must be between 0 and 1, got 1.5", 1.5),
        (ValueError, "must be between 0 and 1, got -0.5", torch.tensor([0.5, -0.5], dtype=v.dtype)),
        (ValueError, "must be one number, or one for each matrix of the batch", v[0]),
    ):
        with pytest.raises(error, match=f"mic: omega {message}"):
            ls.ops.mic(A, omega=wrong)


def indefinite(P, row, value=-3.0):
    """Values whose pivot in `row` is what `value` makes of it."""
    v = dominant(P)
    v[P.diagonal_positions[row]] = value
    return v


@every_kind
def test_breakdown_names_row_and_value(kind):
    P = small()
    v = indefinite(P, 1, 0.0)  # row 1 has no entry before its diagonal
    message = rf"{kind}: every pivot must be .* but the pivot of row 1 is 0. Add a shift: shift=1e-2, say, or"
    with pytest.raises(ValueError, match=message):
        library(kind, P, v)
    batch = torch.stack([dominant(P), v])
    with pytest.raises(ValueError, match=r"the pivot of row 1 of matrix 1 of the batch .* is 0\."):
        library(kind, P, batch)
    with pytest.raises(ValueError, match=r"the pivot of row 1 of matrix 1 of the batch .* is 0\."):
        torch.vmap(lambda v: library(kind, P, v))(batch)
    with pytest.raises(ValueError, match="the pivot of row 0 is nan"):
        library(kind, P, indefinite(P, 0, torch.nan).requires_grad_())
    if on_cuda():  # a CUDA operator raises nothing: to look would be to wait
        return
    with pytest.raises(RuntimeError, match=r"csr_incomplete_factor: the pivot of row 1 is 0.*use a shift"):
        torch.compile(lambda v: library(kind, P, v), fullgraph=True, backend="aot_eager")(v)


@pytest.mark.parametrize("kind", ["ic", "mic"])
def test_a_negative_pivot_is_a_breakdown_of_cholesky_only(kind):
    P = small()
    v = indefinite(P, 0)
    with pytest.raises(ValueError, match="must be positive and finite, but the pivot of row 0 is -3"):
        library(kind, P, v)
    library("ilu", P, v)


def weak_diagonal(P, scale):
    v = dominant(P)
    at = P.diagonal_positions
    v[at] = v[at] * scale
    return v


@pytest.mark.parametrize("kind", ["ic", "mic"])
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


@pytest.mark.parametrize("kind", ["ic", "mic"])
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
    with pytest.raises(ValueError, match="the pivot of row 1 is 0"):
        ls.ops.ilu(A)
    with pytest.warns(RuntimeWarning, match="shifted by 0.001 times"):
        result = ls.ops.ilu(A, on_breakdown="shift")
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
    minus = torch.tensor(-0.5, dtype=A.dtype)
    for message, arguments in (
        ("A must have an entry on its diagonal in every row, row 2 has none", {"A": hole}),
        ("shift must be one number, or one for each matrix", {"shift": A.values[:3]}),
    ):
        with pytest.raises(ValueError, match=f"{kind}: {message}"):
            op(**{"A": A} | arguments)
    with pytest.raises(ValueError, match=f"{kind}: shift must be finite and not negative, got -0.5"):
        torch.func.grad(lambda s: op(A, shift=s).L.values.sum())(minus)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("learnsolve.ops.incomplete_factors.PLAN_LIMIT", 8)
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
    with pytest.raises(ValueError, match=r"ilu: .* of L in row 1, column 0 is inf. Scale the rows"):
        ls.ops.ilu(A)
    batch = A.with_values(torch.stack((torch.ones_like(A.values), A.values)))
    with pytest.raises(ValueError, match=r"ilu: .* row 1, column 0 of matrix 1 of the batch .* is inf"):
        ls.ops.ilu(batch)
    huge = torch.full((A.nnz,), 1e308, dtype=torch.float64)  # no entry overflows, their sum does
    assert ls.ops.ilu(A.with_values(huge)).U.values.isfinite().all()


CLOSE = {"rtol": 1e-11, "atol": 1e-11}


@every_elimination
def test_third_derivatives(kind):
    P = small()
    v, t = dominant(P), normal((P.nnz,), seed=1)

    def third(f):
        def along(h):
            return lambda v: (torch.func.grad(h)(v) * t).sum()

        return torch.func.grad(along(along(lambda v: torch.sin(f(kind, P, v)).sum())))(v)

    torch.testing.assert_close(third(library), third(loops), **CLOSE)


@pytest.mark.rows(2)
@every_elimination
@pytest.mark.usefixtures("fresh_compiler")
def test_compile_with_a_shift(kind):
    P, shift = small(), torch.tensor(0.1, dtype=torch.float64)
    f = torch.compile(lambda v, s: library(kind, P, v, shift=s), fullgraph=True, backend="aot_eager")
    batch = dominant(P, (2,))
    torch.testing.assert_close(f(batch, shift), library(kind, P, batch, shift=shift), **CLOSE)


def _hessian_product(f, v, t):
    return torch.func.jvp(torch.func.grad(lambda v: (f(v) ** 3).sum()), (v,), (t,))[1]


@every_elimination
@pytest.mark.parametrize("structure", ["9 points", "power law", "random symmetric"])
def test_second_derivatives_on_larger_patterns(kind, structure):
    """In float32 too: what the derivative checks do not reach."""
    P = pattern_of(STRUCTURES[structure])
    for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 1e-4)):
        v, t = dominant(P, dtype=dtype), normal((P.nnz,), dtype, seed=1)

        found = _hessian_product(lambda v: library(kind, P, v), v, t)
        wanted = _hessian_product(lambda v: loops(kind, P, v), v.double(), t.double())
        scale = float(wanted.abs().max())
        torch.testing.assert_close(found.double() / scale, wanted / scale, rtol=tolerance, atol=tolerance)


every_side = pytest.mark.parametrize(
    "side", SIDES, ids=lambda s: " ".join(k for k, v in s.items() if v) or "none"
)


def assert_solves(x, v, b, P, side):
    """|x - exact| <= 2 (n + 4) u |T^-1| |T| |exact|: what substitution errs by, with a rounding more an entry
    for the reciprocal (Higham, Accuracy and Stability of Numerical Algorithms, theorem 8.5), twice."""
    T = triangle(full(P, v.double()), side["lower"], side["unit_diagonal"], side["transpose"])
    u = 2.0**-24 if v.dtype == torch.float32 else 2.0**-53
    X, B = (t.double().unsqueeze(-1) if t.dim() == 1 else t.double() for t in (x, b))
    exact = torch.linalg.solve(T, B)
    bound = 2 * (T.shape[-1] + 4) * u * (torch.linalg.inv(T).abs() @ (T.abs() @ exact.abs()))
    bad = ~((X - exact).abs() <= bound)
    assert not bad.any(), f"{side}: {int(bad.sum())} of {bad.numel()} are off"


def check(Q, v, columns, side):
    """The solution and both gradients; returns the right-hand side, the cotangent and the gradients."""
    b, g = (normal((Q.shape[0], *columns), v.dtype, seed=s) for s in (1, 2))
    x = solve_triangular(v, b, Q, **side)
    assert x.dtype == v.dtype
    assert_solves(x, v, b, Q, side)
    found = gradients(lambda *a: solve_triangular(*a, Q, **side), [v, b], g)
    wanted = gradients(lambda *a: dense_triangular(*a, Q, **side), [v.double(), b.double()], g.double())
    tolerance = 1e-5 if v.dtype == torch.float32 else 1e-12
    for t, w in zip(found, wanted, strict=True):
        torch.testing.assert_close(t.double(), w, rtol=tolerance, atol=tolerance)
    return b, g, found


@pytest.mark.parametrize("structure", TRIANGULAR_MATRICES)
@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=["float32", "float64"])
def test_value_and_gradients(structure, dtype, quick):
    S = TRIANGULAR_MATRICES[structure]
    for index, (i, side) in itertools.product((torch.int32, torch.int64), enumerate(SIDES)):
        Q = pattern_of(S, index)
        v = values_for(Q, dtype=dtype)
        columns_of = ((), (1,), (3,), (70,)) if index == torch.int32 else ((),)
        for columns in columns_of[i.bit_count() % 2 :: 2] if quick and len(columns_of) > 1 else columns_of:
            b, g, found = check(Q, v, columns, side)
            only = torch.autograd.grad(solve_triangular(v, b.requires_grad_(), Q, **side), b, g)[0]
            assert torch.equal(only, found[1])


@pytest.mark.parametrize("shape", EMPTY)
def test_empty(shape):
    batch, of_b = SHAPES[shape]
    v, b = values_for(TRIANGULAR, *batch).requires_grad_(), normal(of_b).requires_grad_()
    x = solve_triangular(v, b)
    assert x.shape == (*batch, *of_b)
    assert [t.shape for t in torch.autograd.grad(x.sum(), (v, b))] == [v.shape, b.shape]


@every_side
def test_what_is_not_read_changes_nothing_and_has_no_gradient(side):
    for structure in ("dense", "9 points, both triangles", "chain in a tridiagonal matrix", "random"):
        Q = pattern_of(TRIANGULAR_MATRICES[structure])
        rows, columns = (torch.from_numpy(i) for i in coordinates(Q))
        read = columns <= rows if side["lower"] else columns >= rows
        read &= (columns != rows) | (not side["unit_diagonal"])
        clean = values_for(Q)
        for junk in (torch.nan, 0.0, torch.inf):
            v = torch.where(read, clean, junk).requires_grad_()
            for columns_of_b in ((), (3,)):
                b = normal((Q.shape[0], *columns_of_b), seed=1).requires_grad_()
                x = solve_triangular(v, b, Q, **side)
                assert torch.equal(x, solve_triangular(clean, b, Q, **side))
                gv, gb = torch.autograd.grad(x, (v, b), torch.ones_like(x), create_graph=True)
                assert (gv[~read] == 0).all()
                assert (gv[read] != 0).all()
                second = torch.autograd.grad((gv.square().sum() + gb.square().sum()), (v, b))
                assert (second[0][~read] == 0).all()
                assert all(t.isfinite().all() for t in (x, gv, gb, *second))
                solve = functools.partial(solve_triangular, b=b.detach(), P=Q, **side)
                tangent = func.jvp(solve, (v.detach(),), (v.detach(),))[1]
                assert tangent.isfinite().all()


def test_a_scan_survives_factors_that_overflow():
    """Products of neighboring off-diagonal entries are 1e400; the solution is small."""
    n = 64
    Q = pattern_of(band(n, -1, 0), torch.int32)
    rows, columns = (torch.from_numpy(i) for i in coordinates(Q))
    for dtype, huge in ((F64, 1e200), (torch.float32, 1e30)):
        v = torch.ones(Q.nnz, dtype=dtype)
        v[columns < rows] = huge
        b = torch.zeros(n, dtype=dtype)
        for transpose in (False, True):
            assert torch.equal(solve_triangular(v, b, Q, transpose=transpose), b)
        # Every second coupling is missing: x = 1, 1 - huge, ... stays in range.
        v[(columns < rows) & (rows % 2 == 0)] = 0
        b += 1
        x = solve_triangular(v, b, Q)
        assert torch.equal(x[::2], b[::2])
        assert torch.equal(x[1::2], torch.full_like(x[1::2], 1) - huge)
    b[20] = torch.nan
    x = solve_triangular(torch.ones_like(v), b, Q)
    assert x[:20].isfinite().all()
    assert x[20:].isnan().all()


@pytest.mark.parametrize("side", SIDES[::2], ids=["lower", "lower unit", "upper", "upper unit"])
def test_a_chain_of_200_000_rows(side):
    """No recursion, no quadratic analysis."""
    n = 200_000
    Q = pattern_of(band(n, -1, 0, 1), torch.int32)
    v, b = values_for(Q).requires_grad_(), normal((n,)).requires_grad_()
    x = solve_triangular(v, b, Q, **side)
    gv, gb = torch.autograd.grad(x, (v, b), torch.ones_like(x))
    S = ls.CSR(v.detach(), Q).to_scipy()
    T = sp.csr_array(sp.tril(S) if side["lower"] else sp.triu(S))
    if side["unit_diagonal"]:
        T.setdiag(1)
    residual = torch.from_numpy(T @ x.detach().numpy()) - b.detach()
    assert residual.abs().max() < 1e-12
    y = torch.from_numpy(T.T @ gb.numpy())
    assert (y - 1).abs().max() < 1e-12
    rows, columns = coordinates(Q)
    wanted = -gb[rows] * x.detach()[columns]
    assert torch.equal(gv[gv != 0], wanted[gv != 0])


LARGE = {
    "wide levels": sp.csr_array(sp.tril(random(3000, 3000, 0.02)) + sp.eye_array(3000)),
    "many columns": sp.csr_array(sp.tril(grid(5, 60))),
    "chain": band(40_000, -1, 0),
    "random": with_ones(random(2000, 2000, 0.02, seed=2)),
}


@pytest.mark.rows(2)
@pytest.mark.skipif(on_cuda(), reason="threads of the CPU operators")
@pytest.mark.parametrize("structure", LARGE)
@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=["float32", "float64"])
def test_same_bits_for_any_number_of_threads(structure, dtype, monkeypatch):
    monkeypatch.setattr("learnsolve.ops.triangular._LEVEL_WORK", 100)
    Q = pattern_of(LARGE[structure], torch.int32)
    v = values_for(Q, dtype=dtype)
    v3 = values_for(Q, 3, dtype=dtype)
    n = Q.shape[0]

    def everything():
        results = []
        for side in SIDES[::3]:
            for a, shape in ((v, (n,)), (v, (n, 70)), (v, (3, n, 2)), (v3, (n, 2))):
                w, b = a.clone().requires_grad_(), normal(shape, dtype, seed=5).requires_grad_()
                x = solve_triangular(w, b, Q, **side)
                results += [x.detach(), *torch.autograd.grad(x, (w, b), normal(x.shape, dtype, seed=6))]
        return results

    assert_same_bits(everything, (2, 3))


@pytest.mark.skipif(on_cuda(), reason="a plan for the CPU operators")
def test_levels_are_used_where_they_are_wide(monkeypatch):
    from learnsolve.ops import triangular

    Q = pattern_of(LARGE["wide levels"])
    *_, levels = triangular._system(Q, triangular.Side(True, False, False)).tensors
    assert len(levels) == 0
    monkeypatch.setattr(triangular, "_LEVEL_WORK", 100)
    Q = pattern_of(LARGE["wide levels"])
    *_, levels = triangular._system(Q, triangular.Side(True, False, False)).tensors
    assert len(levels) > 2


@pytest.mark.parametrize("columns", [None, 64])
def test_memory_of_triangular_solves(columns):
    n = 2_000 if columns and on_cuda() else 20_000
    Q = pattern_of(
        sp.csr_array(sp.tril(sp.random_array((n, n), density=8 / n, rng=0)) + sp.eye_array(n)), torch.int32
    )
    v = values_for(Q).requires_grad_()
    b = normal((n, *(() if columns is None else (columns,))), seed=1).requires_grad_()
    torch.autograd.grad(solve_triangular(v, b, Q).sum(), (v, b))  # analysis is not counted
    nk = b.numel()
    besides = 8 * 4096
    assert peak(lambda: solve_triangular(v, b, Q)) <= 8 * nk + besides
    x = solve_triangular(v, b, Q)
    g = torch.ones_like(x)
    assert peak(lambda: torch.autograd.grad(x, (v, b), g, retain_graph=True)) <= 8 * (Q.nnz + nk) + besides
    x_of_b = solve_triangular(v.detach(), b, Q)
    assert peak(lambda: torch.autograd.grad(x_of_b, b, g)) <= 8 * nk + besides
    if columns:
        g.requires_grad_()
        gv, gb = torch.autograd.grad(x, (v, b), g, create_graph=True)
        found = peak(lambda: torch.autograd.grad(gv.sum() + gb.sum(), (v, b, g)))
        assert found <= 8 * (8 * Q.nnz + 8 * nk) + besides
        assert found < 8 * Q.nnz * columns


def test_a_matrix_that_is_the_triangle_costs_no_copy_of_its_indices():
    Q = pattern_of(TRIANGULAR_MATRICES["ILU(0), 5 points"], torch.int32)
    v, b = values_for(Q), normal((Q.shape[0],))
    solve_triangular(v, b, Q)
    assert Q.cache_bytes() < 8 * Q.nnz


@pytest.mark.usefixtures("isa")
def test_every_instruction_set():
    for structure, dtype in itertools.product(TRIANGULAR_MATRICES, (torch.float32, F64)):
        Q = pattern_of(TRIANGULAR_MATRICES[structure])
        for side, columns in itertools.product(SIDES[::3], ((), (2,), (37,))):
            check(Q, values_for(Q, dtype=dtype), columns, side)


def refuses_zero(solve, message):
    """A CUDA operator does not wait for the device to look: the result has NaN, where
    tests/ops/test_cuda_triangular.py says."""
    if on_cuda():
        assert solve().isnan().any()
        return
    with pytest.raises(ValueError, match=f"sptrsv: .*{message}"):
        solve()


@pytest.mark.parametrize("structure", ["chain", "band of 2", "random", "long rows", "dense"])
@pytest.mark.parametrize("transpose", [False, True])
def test_a_zero_on_the_diagonal_is_named(structure, transpose):
    Q = pattern_of(TRIANGULAR_MATRICES[structure])
    place, n = Q.diagonal_positions, Q.shape[0]
    solve = functools.partial(solve_triangular, P=Q, transpose=transpose)
    for zero, columns in itertools.product((0.0, -0.0, 1e-310), ((), (3,))):
        v, b = values_for(Q), normal((n, *columns))
        v[place[n // 2]] = zero
        both = torch.stack((values_for(Q), v))
        for learns in (False, True):
            kind = "overflow" if zero else "zeros on its diagonal"
            w = v.clone().requires_grad_(learns)
            refuses_zero(functools.partial(solve, w, b), rf"{kind}, row {n // 2} has -?[01]")
        slope = func.grad(lambda v, b: solve(v, b).sum())
        refuses_zero(functools.partial(slope, v, b), rf" row {n // 2} has")
        refuses_zero(functools.partial(solve, both, b), rf" row {n // 2} of matrix 1 of the batch .* has")
        solve_triangular(v, b, Q, transpose=transpose, unit_diagonal=True)
    v = values_for(Q)
    v[place[n // 2]] = torch.nan  # is no zero: it spreads
    assert solve_triangular(v, normal((n,)), Q, transpose=transpose).isnan().any()


def test_a_row_without_a_diagonal_is_named():
    hole, b = pattern_of(sp.csr_array(np.array([[1, 0, 0], [1, 0, 1], [0, 1, 1]]))), normal((3,))
    v = torch.ones(hole.nnz, dtype=F64)
    with pytest.raises(ValueError, match=r"sptrsv: .* row 1 has none"):
        ls.ops.sptrsv(ls.CSR(v, hole), b)
    wanted = dense_triangular(v, b, hole, unit_diagonal=True)
    torch.testing.assert_close(solve_triangular(v, b, hole, unit_diagonal=True), wanted)


def test_a_zero_on_the_diagonal_of_a_batch_is_named():
    Q = pattern_of(TRIANGULAR_MATRICES["random"])
    row, v = Q.shape[0] // 2, torch.stack([values_for(Q)] * 6).reshape(2, 3, -1)
    v[1, 1, Q.diagonal_positions[row]] = 0
    b = normal((2, 3, Q.shape[0], 1))
    slope = func.grad(lambda v, b: solve_triangular(v, b, Q).sum())
    refuses_zero(lambda: solve_triangular(v, b, Q), rf" row {row} of matrix 4 of the batch")
    refuses_zero(lambda: slope(v, b), rf" row {row} of matrix 4 of the batch")
    refuses_zero(  # a map has no numbers
        lambda: func.vmap(lambda v, b: solve_triangular(v, b, Q))(v[1], b[1, ..., 0]), rf" row {row} has 0"
    )


@pytest.mark.parametrize("transpose", [False, True])
def test_runs_of_longer_and_longer_rows(transpose):
    """One column, through rows of a grid with more and more fill: of equal length, in runs."""
    A, b = ls.problems.poisson((20, 20)), normal((400,))
    for level in range(6):
        L = ls.ops.ic(A, level=level).L
        D = L.to_dense().mT if transpose else L.to_dense()
        wanted = torch.linalg.solve_triangular(D, b.unsqueeze(-1), upper=transpose).squeeze(-1)
        found = ls.ops.sptrsv(L, b, transpose=transpose)
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
