"""Compiled code that advances a solve, and the loop that decides: how solves end by both, what happens
between two calls, and what goes which way."""

import pytest
import torch
from preconditioners.cases import spd
from reference import normal
from solvers.cases import quiet
from solvers.krylov import SYMMETRIC, S, convection, poisson
from solvers.references import agree, eager

import learnsolve as ls
from learnsolve.solvers.core import advance
from learnsolve.solvers.core.advance import Schedule
from learnsolve.solvers.core.operators import Matrix
from learnsolve.solvers.solution import COMPILED, EAGER, PYTHON_M

METHODS = {
    "cg": S.cg,
    "fcg": lambda *args, M=None, **keywords: S.fcg(*args, M=M or (lambda r: r), **keywords),
    "minres": S.minres,
    "bicgstab": S.bicgstab,
    "gmres": S.gmres,
    "gmres(3)": lambda *args, **keywords: S.gmres(*args, restart=3, **keywords),
    "gmres(1)": lambda *args, **keywords: S.gmres(*args, restart=1, **keywords),
    "fgmres": S.fgmres,
}
STEPS = [m for m in METHODS if "cg" not in m]  # with code of csrc/ops/krylov_methods.h


def matrix(method: str) -> ls.CSR:
    return poisson(6, 5) if method in SYMMETRIC else convection(6, 5)


def with_entry(A: ls.CSR, value: float) -> ls.CSR:
    return A.with_values(torch.where(torch.arange(A.nnz) == 7, value, A.values))


def diagonal(*d: float) -> ls.CSR:
    return ls.ops.diag(torch.tensor(d, dtype=torch.float64))


class Form:
    """An M of any entries that states its form."""

    linear = symmetric = is_diagonal = True

    def __init__(self, d):
        self.d, self.T = d, self

    def __call__(self, r):
        return self.d * r

    def pcg_form(self):
        return "diagonal", self.d, None


ONES = torch.ones(30, dtype=torch.float64)
SHIFT = ls.CSR.from_dense(torch.roll(torch.eye(12), 1, 1).double())
# A (none: that of the method), b, keywords.
EDGES = {
    "b = 0": (None, 0 * ONES, {}),
    "n = 1": (diagonal(3.0), ONES[:1], {}),
    "identity": (ls.ops.diag(ONES), ONES, {}),
    "diagonal of two numbers": (diagonal(*[1.0] * 9, *[2.0] * 9), normal((18,)), {}),
    "zero matrix": (ls.ops.diag(0 * ONES), ONES, {}),
    "singular": (ls.ops.diag(torch.arange(30.0, dtype=torch.float64) % 6), ONES, {}),
    "skew": (ls.CSR.from_dense(torch.tensor([[0.0, 1.0], [-1.0, 0.0]]).double()), ONES[:2], {}),
    "cyclic shift": (SHIFT, torch.eye(12, dtype=torch.float64)[0], {}),
    "indefinite": (ls.ops.diag(torch.arange(30.0, dtype=torch.float64) % 6 - 2.5), ONES, {}),
    "NaN in b": (None, torch.nan * ONES, {}),
    "NaN in A": (with_entry(poisson(6, 5), torch.nan), ONES, {}),
    "infinite A": (with_entry(poisson(6, 5), torch.inf), ONES, {}),
    "large entries": (with_entry(poisson(6, 5), 1e200), ONES, {}),
    "maxiter=0": (None, ONES, {"maxiter": 0}),
    "maxiter=3": (None, ONES, {"maxiter": 3}),
    "a fixed number": (None, ONES, {"rtol": 0, "maxiter": 9}),
    "atol": (None, ONES, {"rtol": 0, "atol": 1e-3}),
    "negative M": (None, ONES, {"M": -1.0}),
    "M = 0": (None, ONES, {"M": 0.0}),
    "M with NaN": (None, ONES, {"M": torch.nan}),
    "diverges": (None, ONES, {"x0": 1e-9 * ONES, "rtol": 1e-5}),
}


@quiet
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("method", METHODS)
def test_edges_end_as_op_by_op(method, edge):
    A, b, keywords = EDGES[edge]
    A = matrix(method) if A is None else A
    if (method, edge) == ("fcg", "large entries"):
        pytest.skip("M r underflows in units of A: what is then said is chance")
    if "M" in keywords:
        keywords = {"M": Form(keywords["M"] * torch.ones_like(b))}
    solve = lambda: METHODS[method](A, b, **{"rtol": 1e-9, "maxiter": 60, **keywords})  # noqa: E731
    ours = solve()
    with eager():
        theirs = solve()
    assert ours.statuses == theirs.statuses
    if edge == "singular":  # and inconsistent: when that shows is chance
        return
    # Compiled cg does not count the iteration that breaks down.
    if method in ("cg", "fcg") and ours.iterations == theirs.iterations - 1 == 0:
        return
    assert ours.iterations == theirs.iterations
    if torch.isfinite(torch.cat((A.values, theirs.residual_norms))).all():
        ours.x, theirs.x = A @ ours.x, A @ theirs.x  # as A may be singular
        agree(ours, theirs)


@quiet
def test_what_goes_which_way():
    """Besides what the rows of cases.py promise."""
    A, b = matrix("cg"), normal((30,))
    two, jacobi = normal((30, 2)), ls.preconditioners.Jacobi(A)
    assert S.cg(A, b, callback=lambda at: None).execution == EAGER
    assert S.cg(1e200 * A, 1e200 * b).execution == COMPILED
    assert (
        S.cg(1e200 * A, 1e200 * b, M=jacobi).execution == PYTHON_M
    )  # in units M is called between the steps
    for x, options in ((b, {"rtol": 1e-3}), (b, {"atol": 1e-3}), (two, {"callback": lambda _: None})):
        unrolled = S.cg(A, x.requires_grad_(), maxiter=2, gradient="unrolled", **{"rtol": 0.0} | options)
        assert unrolled.execution == EAGER
    with torch.autograd.forward_ad.dual_level():
        assert S.minres(A, normal((30,)), gradient="unrolled").execution == EAGER


# --- between two calls ---


@pytest.mark.parametrize("method", STEPS)
def test_calls_may_be_short(method, monkeypatch):
    """So that an interrupt is handled in time: the next call goes on where one ended."""
    A, b = matrix(method), normal((30,))
    solve = lambda: METHODS[method](A, b, rtol=1e-8)  # noqa: E731
    whole = solve()
    calls, raw = [], advance.krylov_steps
    monkeypatch.setattr(advance, "krylov_steps", lambda *args: (calls.append(args[-2]), raw(*args))[1])
    for most in (1, 2):
        monkeypatch.setattr(advance, "_MOST", most * (A.nnz + 23 * 30 if "gmres" not in method else 10**6))
        agree(solve(), whole)
    assert len(calls) > 3
    assert "gmres" in method or set(calls) <= {1, 2}


@quiet
@pytest.mark.parametrize("method", STEPS)
def test_each_call_returns_the_residual_of_its_x(method, monkeypatch):
    """The loop goes on from both, and gmres updates them once a call."""
    A, b, calls, raw = matrix(method), normal((30,)), [], advance.krylov_steps
    monkeypatch.setattr(advance, "krylov_steps", lambda *args: (calls.append(raw(*args)), calls[-1])[1])
    METHODS[method](A, b, rtol=1e-6, maxiter=90)
    assert calls
    for vectors, *_, counts in calls:
        assert counts[0] > 0
        torch.testing.assert_close(vectors[1], b - A @ vectors[0], rtol=0, atol=1e-12 * float(b.norm()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_iterations_in_several_calls_of_cg(dtype):
    A, b = ls.problems.poisson((40, 40)).to(dtype=dtype), torch.ones(1600, dtype=dtype)
    ours = S.cg(A, b, rtol=1e-5)
    with eager():
        theirs = S.cg(A, b, rtol=1e-5)
    assert ours.iterations > 32  # more than one call
    assert abs(ours.iterations - theirs.iterations) <= 1
    torch.testing.assert_close(ours.x, theirs.x, rtol=1e-3, atol=1e-3)


@quiet
def test_what_the_recurrence_believes_is_measured():
    """Where the recurrence falls below the tolerance and b - A x does not, the general loop goes on."""
    d, Q = torch.logspace(0, 11, 60, dtype=torch.float64), torch.linalg.qr(normal((60, 60)))[0]
    A = ls.CSR.from_dense((Q * d) @ Q.T)
    b = A @ normal((60,), seed=3)
    for rtol in (1e-8, 1e-12, 1e-16):
        solution = S.cg(A, b, rtol=rtol, maxiter=400)
        true = torch.linalg.vector_norm(b - A @ solution.x)
        assert solution.converged == bool(true <= rtol * torch.linalg.vector_norm(b))
        assert solution.residual_norms.shape == (solution.iterations + 1,)
        assert solution.iterations <= 400
    with eager():
        assert solution.status is S.cg(A, b, rtol=1e-16, maxiter=400).status


@quiet
@pytest.mark.parametrize("of", ["columns", "blocks"])
def test_what_stagnates_stands_still_while_others_run(of, monkeypatch):
    """The loop stops it, and compiled code that knows nothing of that must not move it."""
    level = torch.tensor([torch.inf, 0.0], dtype=torch.float64)
    level = level.reshape(2, 1, 1) if of == "blocks" else level.unsqueeze(0)
    reached = lambda self, A, b, x, r: (torch.ones_like(level), level)  # noqa: E731
    monkeypatch.setattr("learnsolve.solvers.core.advance.ResidualNorm.reached", reached)
    monkeypatch.setattr("learnsolve.solvers.core.advance.CompiledCG.due", Schedule(8, 1))
    A, b = ls.problems.poisson((200,)), normal((200, 2))
    if of == "blocks":
        A, b = ls.BlockBatch([A, A]), b.mT.reshape(-1)
    solution, sooner = (S.cg(A, b, rtol=1e-12, maxiter=maxiter) for maxiter in (40, 16))
    assert [status.name for status in solution.statuses] == ["STAGNATED", "MAX_ITERATIONS"]
    ours, theirs = (s.x.reshape(2, 200) if of == "blocks" else s.x.mT for s in (solution, sooner))
    assert torch.equal(ours[0], theirs[0])
    assert not torch.equal(ours[1], theirs[1])


def test_norms_of_a_column_that_is_done_are_true_ones():
    """From the iteration on in which it was, while another one goes on."""
    A = ls.problems.poisson((300,)).to(torch.float32)
    b = torch.stack((A @ torch.ones(300), normal((300,)).float()), 1)
    solution = S.cg(A, b, rtol=1e-4, maxiter=400)
    assert solution.execution == COMPILED
    assert solution.statuses[0].name == "CONVERGED"
    norms = solution.residual_norms[:, 0]
    true = torch.linalg.vector_norm((b - A @ solution.x)[:, 0])  # in the rounding of the product that judged
    done = (norms <= 1e-4 * norms[0]).nonzero().min()
    assert done < solution.iterations - 50
    assert torch.allclose(norms[done:], true, rtol=1e-5, atol=0)


@quiet
def test_statuses_of_a_fixed_number_of_iterations():
    A = spd()
    A = A.with_values(torch.where(torch.arange(A.nnz) == A.pattern.diagonal_positions[0], -20.0, A.values))
    b = normal((20, 3))
    b[:, :2] = 0
    b[0, 1] = 1
    options = {"rtol": 0.0, "maxiter": 2, "gradient": "unrolled"}
    solution = S.cg(A, b, torch.ones_like(b), **options)
    assert solution.statuses[0] is S.Status.CONVERGED
    assert not solution.x[:, 0].any()
    solution = S.cg(A, b, **options)
    assert solution.statuses[:2] == [S.Status.CONVERGED, S.Status.INDEFINITE]
    with pytest.raises(S.SolverError, match="INDEFINITE"):
        S.cg(A, b, throw=True, **options)
    alone = S.cg(A, b[:, 1], **options)
    assert (alone.status, alone.iterations, alone.execution) == (S.Status.INDEFINITE, 0, COMPILED)
    assert alone.residual_norms.tolist() == [1]


def test_the_size_kept_of_a_matrix_follows_changes_in_place():
    A = ls.problems.poisson((8,))
    assert Matrix(A).size().item() == 2.0
    A.values.mul_(3.0)
    assert Matrix(A).size().item() == 6.0


def test_raw_operator_checks_its_state():
    A, b = poisson(), torch.ones(16, dtype=torch.float64)
    fixed = (A.pattern._structure(False), A.values, 1, None, b)
    with pytest.raises(RuntimeError, match="the state is not that of the method"):
        advance.krylov_steps(*fixed, [b] * 4, [b[:1]] * 3, 0.0, 1.0, 1, 1)
    with pytest.raises(RuntimeError, match="one dtype"):
        advance.krylov_steps(*fixed, [b] * 4 + [b.float()], [b[:1]] * 3, 0.0, 1.0, 1, 1)
    state = [b, b, b, b[:0], b], [b[0], b[0], b[:0], b[:0]]
    with pytest.raises(RuntimeError, match="for one iteration that is not a restart"):
        advance.krylov_steps(*fixed[:2], 2, *fixed[3:], *state, 0.0, 1.0, 2, 3)
