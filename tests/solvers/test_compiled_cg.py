"""cg to a tolerance by the compiled loop, compared with the general one."""

import pytest
import torch
from preconditioners.cases import spd
from reference import normal
from solvers.paths import eager

import learnsolve as ls
from learnsolve.solvers.core import problem
from learnsolve.solvers.core.operators import Matrix
from learnsolve.solvers.core.stagnation import Schedule
from learnsolve.solvers.solution import EAGER

# Solves that cannot converge, or are stopped before, are part of what is tested.
pytestmark = pytest.mark.filterwarnings("ignore::learnsolve.solvers.ConvergenceWarning")

P = ls.preconditioners
FORMS = {
    "none": lambda A: None,
    "Jacobi": P.Jacobi,
    "IC0": P.IC0,
    "FSAI": lambda A: _frozen(A),
    "SSOR": lambda A: P.SSOR(A, 1.4),
    "BlockJacobi": lambda A: P.BlockJacobi(A, 3),
    "Schwarz": lambda A: P.AdditiveSchwarz(A, n_subdomains=3),
}
# What has no form is called between the steps.
APART = {
    "function": lambda A: lambda r: 0.25 * r,
    "AMG": P.AMG,
    "Chebyshev": P.Chebyshev,
    "multicolour SSOR": lambda A: P.SSOR(A, multicolour=True),
    "CSR": lambda A: ls.ops.diag(1 / A.diagonal()),
    "columns in memory": lambda A: lambda r: (0.25 * r.mT.contiguous().mT) if r.dim() > 1 else 0.25 * r,
}


def _frozen(A):
    return P.Trainable(P.FSAI(A)).requires_grad_(False)


@pytest.fixture
def used(monkeypatch):
    """Which solves are compiled."""
    calls, real = [], problem.iterate

    def spy(*args):
        out = real(*args)
        calls.append(out.execution != EAGER)
        return out

    monkeypatch.setattr(problem, "iterate", spy)
    return calls


def general(monkeypatch, solve):
    with eager():
        return solve()


def agree(ours, theirs, rtol=1e-9):
    assert ours.statuses == theirs.statuses
    assert ours.iterations == theirs.iterations
    torch.testing.assert_close(ours.x, theirs.x, rtol=rtol, atol=1e-12)
    torch.testing.assert_close(ours.residual_norms, theirs.residual_norms, rtol=1e-6, atol=1e-11)


@pytest.mark.few(2)
@pytest.mark.parametrize("form", [*FORMS, *APART])
@pytest.mark.parametrize("shape", [(20,), (20, 3), (2, 20, 3), (2, 2, 20, 1)], ids=str)
@pytest.mark.parametrize("start", [False, True], ids=["zero", "x0"])
def test_the_same_as_the_general_loop(form, shape, start, used, monkeypatch):
    A = spd()
    M, b = (FORMS | APART)[form](A), normal(shape)
    x0 = normal(shape, seed=5) if start else None
    solve = lambda: ls.solvers.cg(A, b, x0, M=M, rtol=1e-6)  # noqa: E731
    ours = solve()
    assert used == [True]
    assert ours.loop == ("compiled" if form in FORMS else "compiled, M apart")
    theirs = general(monkeypatch, solve)
    assert theirs.loop == "op by op"
    agree(ours, theirs, 1e-7)


@pytest.mark.parametrize("lead", [(3,), (2, 3)], ids=str)
def test_a_batch_of_matrices(lead, used, monkeypatch):
    A = spd()
    A = A.with_values(A.values * (1 + torch.rand(*lead, 1, dtype=torch.float64)))
    b = normal((*lead, 20, 2))
    solve = lambda: ls.solvers.cg(A, b, rtol=1e-8)  # noqa: E731
    ours = solve()
    assert used == [True]
    agree(ours, general(monkeypatch, solve))


@pytest.mark.parametrize("M", [None, lambda r: 0.25 * r], ids=["none", "apart"])
def test_columns_have_their_own_ends(M, used, monkeypatch):
    """Zero, solved at the start, ordinary (or short of iterations), not finite."""
    A = spd()
    easy = torch.zeros(20, dtype=torch.float64)
    x = normal((20,), seed=4)
    b = torch.stack((easy, A @ x, normal((20,)), torch.full((20,), torch.nan, dtype=torch.float64)), dim=1)
    x0 = torch.stack((x, x, 0 * x, 0 * x), dim=1)
    for maxiter in (3, None):
        solve = lambda m=maxiter: ls.solvers.cg(A, b, x0, rtol=1e-9, maxiter=m, M=M)  # noqa: E731
        ours, theirs = solve(), general(monkeypatch, solve)
        assert ours.statuses == theirs.statuses
        assert [s.name for s in ours.statuses][:2] == ["CONVERGED", "CONVERGED"]
        assert ours.statuses[3].name == "NON_FINITE"
        assert ours.statuses[2].name == ("CONVERGED" if maxiter is None else "MAX_ITERATIONS")
        torch.testing.assert_close(ours.x[:, :3], theirs.x[:, :3], rtol=1e-9, atol=1e-10)
        assert torch.equal(ours.x[:, 0], easy)
    assert used


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_indefinite_is_named(sign, used):
    D = torch.diag(torch.tensor([3.0, 2.0, -1.0 * sign, sign], dtype=torch.float64))
    solution = ls.solvers.cg(ls.CSR.from_dense(D), torch.ones(4, dtype=torch.float64))
    assert solution.status.name == "INDEFINITE"
    assert used == [True]


def test_what_the_recurrence_believes_is_measured(used, monkeypatch):
    """Where the recurrence falls below the tolerance and b - A x does not, the general loop goes on."""
    n = 60
    d = torch.logspace(0, 11, n, dtype=torch.float64)
    Q = torch.linalg.qr(normal((n, n)))[0]
    A = ls.CSR.from_dense((Q * d) @ Q.T)
    b = A @ normal((n,), seed=3)
    for rtol in (1e-8, 1e-12, 1e-16):
        solve = lambda r=rtol: ls.solvers.cg(A, b, rtol=r, maxiter=400)  # noqa: E731
        solution = solve()
        true = torch.linalg.vector_norm(b - A @ solution.x)
        assert solution.converged == bool(true <= rtol * torch.linalg.vector_norm(b))
        assert solution.residual_norms.shape == (solution.iterations + 1,)
        assert solution.iterations <= 400
        if rtol < 1e-14:
            assert solution.status is general(monkeypatch, solve).status
    assert used == [True, True, True, False]


@pytest.mark.filterwarnings("ignore::learnsolve.solvers.ConvergenceWarning")
@pytest.mark.parametrize("of", ["columns", "blocks"])
def test_what_stagnates_stands_still_while_others_run(of, monkeypatch):
    """The loop stops it, and compiled code that knows nothing of that must not move it."""
    level = torch.tensor([torch.inf, 0.0], dtype=torch.float64)
    level = level.reshape(2, 1, 1) if of == "blocks" else level.unsqueeze(0)
    reached = lambda self, A, b, x, r: (torch.ones_like(level), level)  # noqa: E731
    monkeypatch.setattr("learnsolve.solvers.core.criterion.ResidualNorm.reached", reached)
    monkeypatch.setattr("learnsolve.solvers.core.advance_cg.CompiledCG.due", Schedule(8, 1))
    A, b = ls.problems.poisson((200,)), normal((200, 2))
    if of == "blocks":
        A, b = ls.BlockBatch([A, A]), b.mT.reshape(-1)
    solution, sooner = (ls.solvers.cg(A, b, rtol=1e-12, maxiter=maxiter) for maxiter in (40, 16))
    assert [status.name for status in solution.statuses] == ["STAGNATED", "MAX_ITERATIONS"]
    ours, theirs = (s.x.reshape(2, 200) if of == "blocks" else s.x.mT for s in (solution, sooner))
    assert torch.equal(ours[0], theirs[0])
    assert not torch.equal(ours[1], theirs[1])


def test_norms_of_a_column_that_is_done_are_true_ones(used):
    """From the iteration on in which it was, while another one goes on."""
    A = ls.problems.poisson((300,)).to(torch.float32)
    b = torch.stack((A @ torch.ones(300), normal((300,)).float()), 1)
    solution = ls.solvers.cg(A, b, rtol=1e-4, maxiter=400)
    assert used == [True]
    assert solution.statuses[0].name == "CONVERGED"
    norms = solution.residual_norms[:, 0]
    true = torch.linalg.vector_norm((b - A @ solution.x)[:, 0])  # in the rounding of the product that judged
    done = (norms <= 1e-4 * norms[0]).nonzero().min()
    assert done < solution.iterations - 50
    assert torch.allclose(norms[done:], true, rtol=1e-5, atol=0)


def test_implicit_gradients_go_through_it_twice(used):
    A = spd()
    values, b = A.values.clone().requires_grad_(), normal((20, 2)).requires_grad_()
    ls.solvers.cg(A.with_values(values), b, M=P.IC0(A), rtol=1e-13).x.square().sum().backward()
    assert used == [True, True]
    D = A.to_dense().requires_grad_()
    c = b.detach().clone().requires_grad_()
    torch.linalg.solve(D, c).square().sum().backward()
    torch.testing.assert_close(b.grad, c.grad, rtol=1e-9, atol=1e-11)
    picked = D.grad[A.pattern.row_indices.long(), A.col_indices.long()]
    torch.testing.assert_close(values.grad, picked, rtol=1e-8, atol=1e-10)


def test_who_goes_another_way(used):
    """In units M is called between the steps."""
    A, b = spd(), normal((20,))
    with torch.no_grad():
        ls.solvers.cg(A, b, callback=lambda at: False)  # a callback
        ls.solvers.cg(1e200 * A, 1e200 * b, M=P.Jacobi(1e200 * A))  # in units, with an M
        ls.solvers.fcg(A, b)
        ls.solvers.cg(lambda x: A @ x, b)
    assert used == [False, True, False, False]


@pytest.mark.parametrize(
    ("M", "status"),
    [
        (lambda r: -r, "INDEFINITE"),
        (lambda r: 0 * r, "INDEFINITE"),
        (lambda r: torch.full_like(r, torch.nan), "NON_FINITE"),
        (lambda r: torch.full_like(r, torch.inf), "NON_FINITE"),
        (lambda r: r * torch.linspace(1, -2, 20, dtype=r.dtype)[:, None], "INDEFINITE"),
    ],
    ids=["negative", "zero", "NaN", "infinite", "indefinite"],
)
def test_an_M_that_is_not_positive_definite_is_named(M, status, used):
    b = normal((20, 2))
    b[:, 1] = 0
    solution = ls.solvers.cg(spd(), b, M=M, rtol=1e-10)
    assert used == [True]
    assert [s.name for s in solution.statuses] == [status, "CONVERGED"]
    assert solution.x.isfinite().all()


def test_M_is_called_once_an_iteration_and_its_errors_are_seen():
    A, b, calls = spd(), normal((20,)), []
    solution = ls.solvers.cg(A, b, M=lambda r: calls.append(r.shape) or r)
    assert calls == [(20,)] * solution.iterations
    with pytest.raises(ValueError, match=r"cg: the result of M must have shape \(20,\)"):
        ls.solvers.cg(A, b, M=lambda r: r[:-1])
    with pytest.raises(ZeroDivisionError):
        ls.solvers.cg(A, b, M=lambda r: 1 // 0)


def test_gradients_with_M_apart(used):
    A = spd()
    values, b = A.values.clone().requires_grad_(), normal((20, 2)).requires_grad_()
    solve = lambda v, c: ls.solvers.cg(A.with_values(v), c, M=lambda r: 0.25 * r, rtol=1e-13)  # noqa: E731
    solution = solve(values, b)
    solution.x.square().sum().backward()
    assert used == [True, True]
    assert solution.loop == solution.adjoint.loop == "compiled, M apart"
    D, c = A.to_dense().requires_grad_(), b.detach().clone().requires_grad_()
    torch.linalg.solve(D, c).square().sum().backward()
    torch.testing.assert_close(b.grad, c.grad, rtol=1e-9, atol=1e-11)
    mapped = torch.func.vmap(lambda c: solve(A.values, c).x)(b.detach().mT)
    torch.testing.assert_close(mapped, torch.linalg.solve(D, c).detach().mT, rtol=1e-9, atol=1e-11)
    unrolled = ls.solvers.cg(A, b, M=lambda r: 0.25 * r, rtol=0, maxiter=3, gradient="unrolled")
    assert unrolled.loop == "op by op"


@pytest.mark.parametrize("of_A", [1.0, 1e160, 1e-160])
@pytest.mark.parametrize("of_b", [1e120, 1e-120])
def test_extraordinary_sizes_change_nothing(of_A, of_b, used):
    A, b = spd(), normal((20, 2))
    powers = [2.0 ** int(torch.tensor(s, dtype=torch.float64).log2()) for s in (of_A, of_b)]
    plain = ls.solvers.cg(A, b, rtol=1e-8)
    scaled = ls.solvers.cg(powers[0] * A, powers[1] * b, rtol=1e-8)
    assert used == [True, True]
    assert scaled.statuses == plain.statuses
    assert torch.equal(scaled.x, plain.x * (powers[1] / powers[0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_iterations_in_several_calls(dtype, monkeypatch):
    A = ls.problems.poisson((40, 40)).to(dtype=dtype)
    b = torch.ones(1600, dtype=dtype)
    solve = lambda: ls.solvers.cg(A, b, rtol=1e-5)  # noqa: E731
    ours, theirs = solve(), general(monkeypatch, solve)
    assert ours.iterations > 32  # more than one call
    assert abs(ours.iterations - theirs.iterations) <= 1
    torch.testing.assert_close(ours.x, theirs.x, rtol=1e-3, atol=1e-3)


def test_same_bits_for_any_number_of_threads():
    A = ls.problems.poisson((150, 150))
    b = torch.linspace(-1, 1, 22500, dtype=torch.float64)
    before = torch.get_num_threads()
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(ls.solvers.cg(A, b, M=P.Jacobi(A)).x)
    torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_the_size_kept_of_a_matrix_follows_changes_in_place():
    A = ls.problems.poisson((8,))
    assert Matrix(A).size().item() == 2.0
    A.values.mul_(3.0)
    assert Matrix(A).size().item() == 6.0


@pytest.mark.parametrize("batch", [(), (2,)])
def test_fcg_calls_a_nonlinear_m_between_compiled_steps(batch):
    A = ls.problems.poisson((9, 8))
    if batch:
        A = ls.CSR.stack([A, ls.ops.symmetric_scaling(A)])
    b = torch.randn(*batch, 72, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def M(r):
        return r + 0.5 * torch.tanh(3 * r)

    options = {"M": M, "rtol": 1e-9}
    compiled = ls.solvers.fcg(A, b, **options)
    general = ls.solvers.fcg(A, b, **options, callback=lambda at: None)  # a callback needs the general loop
    assert (compiled.loop, general.loop) == ("compiled, M apart", "op by op")
    assert compiled.iterations == general.iterations
    torch.testing.assert_close(compiled.residual_norms, general.residual_norms, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(compiled.x, general.x)
    fourth = [solve(A, b, M=M, rtol=1e-14, maxiter=4).x for solve in (ls.solvers.cg, ls.solvers.fcg)]
    assert not torch.allclose(*fourth, rtol=1e-6)  # cg does not subtract <r_old, M r>


def test_fcg_without_m_and_with_a_recorded_graph_runs_op_by_op():
    A, b = ls.problems.poisson((5, 5)), torch.ones(25, dtype=torch.float64)
    assert ls.solvers.fcg(A, b).loop == "op by op"
    assert ls.solvers.fcg(A, b, M=lambda r: r, gradient="unrolled").loop == "op by op"
    jacobi = ls.solvers.fcg(A, b, M=ls.preconditioners.Jacobi(A))
    assert jacobi.loop == "compiled, M apart"
    torch.testing.assert_close(jacobi.x, ls.ops.spsolve(A, b), rtol=1e-4, atol=1e-5)
