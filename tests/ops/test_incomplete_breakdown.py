"""ic0, mic0 and ilu0: shifts, breakdown, the search for a shift, arguments."""

import warnings

import numpy as np
import pytest
import torch
from ops.incomplete_cases import STRUCTURES, dominant, every_kind, library, small
from reference import normal, pattern_of

import learnsolve as ls
from learnsolve.matrix import device_analysis


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


@every_kind
def test_gradient_for_a_shift(kind):
    P = small()
    v, shift = dominant(P).requires_grad_(), torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    f = lambda v, s: library(kind, P, v, shift=s)  # noqa: E731
    assert torch.autograd.gradcheck(f, (v, shift), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, (v, shift))
    searched = lambda v, s: library(kind, P, v, shift=s, on_breakdown="shift")  # noqa: E731
    assert torch.autograd.gradcheck(searched, (v, shift), check_forward_ad=True)


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
    if device_analysis.everywhere:  # a CUDA operator raises nothing: to look would be to wait
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
def test_no_warning_where_nothing_breaks_down(kind):
    P = small()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = library(kind, P, dominant(P), on_breakdown="shift")
    assert torch.equal(found, library(kind, P, dominant(P)))


@every_kind
def test_errors(kind):
    op, P = getattr(ls.ops, kind), small()
    A = ls.CSR(dominant(P), P)
    wide = ls.CSR.from_dense(torch.ones(2, 3))
    hole = ls.CSR.from_dense(torch.tensor([[1.0, 0, 0], [0, 1, 0], [1, 1, 0]]))
    minus = torch.tensor(-0.5, dtype=A.dtype)
    for error, message, call in (
        (TypeError, "A must be a CSR, got Tensor", lambda: op(torch.ones(2, 2))),
        (TypeError, "A.values must be float32 or float64", lambda: op(A.to(torch.float16))),
        (ValueError, r"A must be square, got shape \(2, 3\)", lambda: op(wide)),
        (ValueError, "A must have an entry on its diagonal in every row, row 2 has none", lambda: op(hole)),
        (ValueError, "on_breakdown must be one of", lambda: op(A, on_breakdown="ignore")),
        (TypeError, "shift must be a number or a torch.Tensor, got str", lambda: op(A, shift="1")),
        (ValueError, "shift must be finite and not negative, got -1", lambda: op(A, shift=-1)),
        (ValueError, "shift must be finite and not negative, got -0.5", lambda: op(A, shift=minus)),
        (
            ValueError,
            "shift must be finite and not negative, got -0.5",
            lambda: torch.func.grad(lambda s: op(A, shift=s).L.values.sum())(minus),
        ),
        (
            ValueError,
            "shift must be finite and not negative, got nan",
            lambda: op(A, shift=minus * torch.nan),
        ),
        (TypeError, "shift has dtype torch.float32", lambda: op(A, shift=torch.tensor(1.0))),
        (ValueError, "shift must broadcast to the batch axes", lambda: op(A, shift=A.values[:3])),
    ):
        with pytest.raises(error, match=f"{kind}: {message}"):
            call()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("learnsolve.ops.core.incomplete.PLAN_LIMIT", 8)
        with pytest.raises(ValueError, match=rf"{kind}: the elimination on this pattern has \d+ products"):
            op(ls.CSR(A.values, small()))
    with pytest.raises(Exception, match=r"cannot be traced by torch.compile"):
        torch.compile(
            lambda v: library(kind, P, v, on_breakdown="shift"), backend="aot_eager", fullgraph=True
        )(A.values)


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


@every_kind
def test_numbers_of_numpy_are_shifts(kind):
    P = small()
    wanted = library(kind, P, dominant(P), shift=0.5)
    assert torch.equal(library(kind, P, dominant(P), shift=np.float32(0.5)), wanted)
