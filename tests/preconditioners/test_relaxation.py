"""SOR and SSOR as preconditioners: dense formulas, options, theory, errors."""

import pytest
import torch
from preconditioners.cases import dense, general, spd
from reference import normal

import learnsolve as ls

P, S = ls.preconditioners, ls.solvers


def parts(A, order=None):
    D = A.to_dense()
    if order is not None:
        D = D[order][:, order]
    return torch.diag(torch.diag(D)), torch.tril(D, -1), torch.triu(D, 1)


@pytest.mark.parametrize("multicolor", [False, True])
@pytest.mark.parametrize("omega", [1.0, 0.4, 1.9, torch.tensor(1.3, dtype=torch.float64)])
@pytest.mark.parametrize("A", [spd(), general()])
def test_formulas(A, omega, multicolor):
    order = ls.ordering.greedy_coloring(A).rows.long() if multicolor else torch.arange(A.shape[0])
    back = torch.argsort(order)
    D, L, U = parts(A, order)
    w = float(omega)
    lower, upper = D + w * L, D + w * U
    for M, expected in (
        (P.SOR(A, omega, multicolor=multicolor), w * torch.linalg.inv(lower)),
        (P.SOR(A, omega, direction="backward", multicolor=multicolor), w * torch.linalg.inv(upper)),
        (
            P.SSOR(A, omega, multicolor=multicolor),
            w * (2 - w) * torch.linalg.inv(upper) @ D @ torch.linalg.inv(lower),
        ),
    ):
        expected = expected[back][:, back]
        torch.testing.assert_close(dense(M), expected, rtol=1e-10, atol=1e-13)
        torch.testing.assert_close(dense(M.T), expected.mT, rtol=1e-10, atol=1e-13)


def test_a_sweep_of_the_solver():
    A, r = general(), normal((20, 2))
    assert torch.equal(P.SOR(A, 1.2)(r), S.sor(A, r, omega=1.2, iterations=1).x)
    assert torch.equal(P.SSOR(A, 1.2)(r), S.ssor(A, r, omega=1.2, iterations=1).x)


def test_multicolor_has_as_many_levels_as_colors():
    A = ls.problems.poisson((30, 30))
    M = P.SOR(A, multicolor=True)
    from learnsolve import _analysis
    from learnsolve.matrix.pattern import as_numpy

    for system, levels in ((A, 59), (M._system, 2)):
        P_ = system.pattern
        found = _analysis.level_schedule(as_numpy(P_.crow_indices), as_numpy(P_.col_indices), False)[1]
        assert len(found) - 1 == levels


def test_the_order_is_planned_once():
    A = ls.problems.poisson((5, 5))
    one = P.SSOR(A, multicolor=True)
    assert P.SOR(A.with_values(2 * A.values), 1.5, multicolor=True)._system.pattern is one._system.pattern


def test_ssor_speeds_cg_up_and_sor_gmres():
    A, b = ls.problems.poisson((60, 60)), normal((3600,))
    plain = S.cg(A, b, rtol=1e-8).iterations
    counts = {w: S.cg(A, b, M=P.SSOR(A, w), rtol=1e-8).iterations for w in (1.0, 1.9)}
    assert counts[1.9] < counts[1.0] < plain
    assert counts[1.9] < plain / 3
    wind = general(20)
    b = normal((wind.shape[0],))
    assert S.gmres(wind, b, M=P.SOR(wind)).iterations < S.gmres(wind, b).iterations / 1.5


@pytest.mark.parametrize("multicolor", [False, True])
def test_omega_learns(multicolor):
    A, r = general(), normal((20, 2)).requires_grad_()
    omega = torch.tensor(1.2, dtype=torch.float64, requires_grad=True)
    for make in (
        lambda v, w: P.SOR(A.with_values(v), w, multicolor=multicolor),
        lambda v, w: P.SOR(A.with_values(v), w, direction="backward", multicolor=multicolor),
        lambda v, w: P.SSOR(A.with_values(v), w, multicolor=multicolor),
    ):
        args = (A.values.clone().requires_grad_(), omega, r)
        apply = lambda v, w, r: make(v, w)(r)  # noqa: B023, E731
        assert torch.autograd.gradcheck(apply, args, check_forward_ad=True, fast_mode=True)
        assert torch.autograd.gradgradcheck(apply, args, fast_mode=True)
        assert any(t is omega for t in make(*args[:2]).depends_on)
    with pytest.raises(ValueError, match="M requires grad"):
        S.gmres(A, r.detach(), M=P.SOR(A, omega))
    S.gmres(A, r.detach(), M=P.SOR(A, omega), gradient="unrolled").residual_norms[3].sum().backward()
    assert omega.grad


def test_one_omega_a_matrix():
    A = spd()
    omega = torch.tensor([0.7, 1.4], dtype=torch.float64)
    r = normal((20, 2))
    together = P.SSOR(A.with_values(torch.stack((A.values, 2 * A.values))), omega)(r)
    assert torch.allclose(together[0], P.SSOR(A, 0.7)(r))
    assert torch.allclose(together[1], P.SSOR(A * 2.0, 1.4)(r))


def test_a_diagonal_matrix_and_none_at_all():
    eye = ls.ops.eye(3, dtype=torch.float64)
    assert torch.allclose(P.SSOR(eye, 0.5)(torch.ones(3, dtype=torch.float64)), torch.tensor(0.75).double())
    nothing = ls.ops.eye(0, dtype=torch.float64)
    for M in (P.SOR(nothing), P.SSOR(nothing, multicolor=True)):
        assert M(normal((0, 2))).shape == (0, 2)


def test_symmetric_is_the_truth():
    assert P.SSOR(spd(), 1.2, multicolor=True).symmetric
    assert not P.SSOR(general()).symmetric
    assert P.SSOR(general(), symmetric=True).symmetric
    with pytest.raises(ValueError, match="cg: needs a linear, symmetric M, and SSOR is not symmetric"):
        S.cg(general(), normal((20,)), M=P.SSOR(general()))


A = spd()
ZERO = A.with_values(torch.where(A.pattern.row_indices + A.col_indices == 4, 0, A.values))
HOLE = ls.CSR.from_dense(torch.tensor([[1.0, 1.0], [1.0, 0.0]]))


@pytest.mark.parametrize("kind", [P.SOR, P.SSOR])
@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda M: M(A.to_dense().tolist()), TypeError, "A must be a CSR, got list"),
        (lambda M: M(ZERO), ValueError, "A must not have zeros on its diagonal, row 2 has one"),
        (lambda M: M(HOLE), ValueError, "A must have an entry on its diagonal in every row, row 1 has none"),
        (lambda M: M(A[:3]), ValueError, r"A must be square, got shape \(3, 20\)"),
        (lambda M: M(A, 0.0), ValueError, "omega must lie in 0 < omega < 2, got 0.0"),
        (lambda M: M(A, 2), ValueError, "omega must lie in 0 < omega < 2, got 2.0"),
        (lambda M: M(A, float("nan")), ValueError, "omega must lie in 0 < omega < 2, got nan"),
        (lambda M: M(A, True), TypeError, "omega must be a number or a torch.Tensor, got bool"),
        (lambda M: M(A, torch.tensor(2.5).double()), ValueError, "got 2.5; to train it, use 2 sigmoid"),
        (lambda M: M(A, torch.tensor(1.5)), TypeError, "omega has dtype torch.float32"),
        (lambda M: M(A, torch.ones(20).double()), ValueError, r"one for each matrix of the batch \(\)"),
        (lambda M: M(A, multicolor="yes"), TypeError, "multicolor must be True or False, got 'yes'"),
    ],
)
def test_errors(kind, make, error, words):
    with pytest.raises(error, match=f"{kind.__name__}: .*{words}"):
        make(kind)


def test_errors_of_options():
    with pytest.raises(ValueError, match=r"SOR: direction must be one of .*got 'symmetric'"):
        P.SOR(A, 1.0, direction="symmetric")
    with pytest.raises(TypeError, match="SSOR: symmetric must be True or False"):
        P.SSOR(A, symmetric="yes")
