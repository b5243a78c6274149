"""Solves to a tolerance on a device that is checked from time to time, compared with the CPU, which is
checked after every iteration. The device is simulated; A is a function, so that no kernel is needed."""

import math
from functools import partial
from typing import ClassVar

import pytest
import torch
from pretend_device import DEVICE, PretendDevice, waits
from reference import normal
from solvers.cases import MODES, quiet
from solvers.krylov import RECTANGULAR, SQUARE, SYMMETRIC, dense_solution, matrix, run
from solvers.references import agree, close

import learnsolve as ls
from learnsolve.ops.core.pcg_preconditioner import STOP
from learnsolve.ops.pcg import Iterations
from learnsolve.solvers.core.advance import ResidualNorm
from learnsolve.solvers.core.loop import iterate
from learnsolve.solvers.core.operators import Function, System
from learnsolve.solvers.core.stationary import State
from learnsolve.solvers.solution import CODE

pytestmark = quiet

S = ls.solvers
STATIONARY = {
    "richardson": partial(S.richardson, weight=0.25, maxiter=400),
    "heavyball": partial(S.heavyball, alpha=0.2, beta=0.3),
    "chebyshev": partial(S.chebyshev, lmin=0.7, lmax=7.3),
}
METHODS = (*SQUARE, *RECTANGULAR, *STATIONARY)


@pytest.fixture
def device():
    with PretendDevice():
        yield


@pytest.fixture(params=[1, 7, None])
def every(request):
    before = S.set_check_every(request.param)
    yield request.param
    S.set_check_every(before)


def system(name):
    D = matrix("cg" if name in STATIONARY else name).to_dense()
    b = normal((D.shape[0], 4))
    b[:, 1] = 0  # done before the first iteration
    b[:, 2] = D @ torch.ones(D.shape[1], dtype=D.dtype)  # done before the others
    return D, b


def solved(name, D, b, tol=1e-9, **keywords):
    """The solution of D x = b and x's gradient for b, on the host; computed where they are."""
    b = b.detach().clone().requires_grad_()
    solution = run_on(name, D, b, tol, keywords)
    (gradient,) = torch.autograd.grad(solution.x.square().sum(), b)
    solution.x, solution._norms = solution.x.detach().cpu(), solution.residual_norms.detach().cpu()
    return solution, gradient.cpu()


def both(name, D, b, **keywords):
    """There and here: the same, but for rounding."""
    there, here = solved(name, D.to(DEVICE), b.to(DEVICE), **keywords), solved(name, D, b, **keywords)
    agree(there[0], here[0], 1e-6)
    close([there[1]], [here[1]], 1e-6)
    return there[0], here[0]


def run_on(name, D, b, tol, keywords):
    def A(x):
        return D @ x

    if name not in SYMMETRIC:
        keywords["transpose"] = lambda y: D.mT @ y
    if name in STATIONARY:
        return STATIONARY[name](A, b, rtol=tol, **keywords)
    return run(name, A, b, tol=tol, **keywords)


@pytest.mark.few
@pytest.mark.parametrize("gradient", MODES)
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("every", [7, None], indirect=True)
def test_results_do_not_tell(name, gradient, every, device):
    """Nor do gradients, through iterations in which nothing moves any more."""
    D, b = system(name)
    _, here = both(name, D, b, gradient=gradient)
    assert here.converged
    assert torch.allclose(here.x, dense_solution(name, D, b), rtol=0, atol=1e-6)


@pytest.mark.few
@pytest.mark.parametrize("name", METHODS)
def test_number_of_looks(name, every, device):
    """Each reads once, and once more where something seems done."""
    D, b = (t.to(DEVICE) for t in system(name))
    waits.clear()
    with torch.no_grad():
        n = run_on(name, D, b, 1e-9, {}).iterations
    looks = {1: n, 7: -(-n // 7), None: n if n <= 16 else 16 + 8 * (n // 16).bit_length()}[every]
    assert sum("core/loop.py" in wait for wait in waits) <= 1 + looks + 3


@pytest.mark.few
@pytest.mark.parametrize("maxiter", [0, 1, 5])
@pytest.mark.parametrize("name", METHODS)
def test_no_more_than_maxiter(name, maxiter, every, device):
    for gradient in MODES[1:]:
        actual, _ = both(name, *system(name), gradient=gradient, maxiter=maxiter)
        assert actual.iterations == maxiter


@pytest.mark.few
@pytest.mark.parametrize("name", [*SYMMETRIC, *RECTANGULAR])
def test_columns_that_fail_between_two_looks(name, every, device):
    D = torch.diag(torch.tensor([1.0, 2.0, -3.0, 4.0, 0.0], dtype=torch.float64))
    b = torch.tensor([[1.0, 1, 1], [0, 1, 1], [0, 1, 0], [0, 0, 0], [0, 0, 1]], dtype=torch.float64)
    _, here = both(name, D, b, gradient="unrolled")
    assert here.statuses[0] == S.Status.CONVERGED
    assert name in RECTANGULAR or not here.converged


@pytest.mark.few
@pytest.mark.parametrize("name", SQUARE)
def test_beyond_what_the_recurrence_knows(name, every, device):
    """In float32 r drifts away from b - A x: converged is what the true residual says, after new starts."""
    D, b = (t.float() for t in system(name))
    b, options = b + 100, {"tol": 3e-7, "gradient": "unrolled", "maxiter": 300}
    actual, _ = solved(name, D.to(DEVICE), b.to(DEVICE), **options)
    expected, _ = solved(name, D, b, **options)
    assert actual.statuses == expected.statuses
    holds = torch.linalg.vector_norm(b - D @ actual.x, dim=0) <= 3.3e-7 * torch.linalg.vector_norm(b, dim=0)
    assert holds[[t == S.Status.CONVERGED for t in expected.statuses]].all()


class Drifting:
    """Richardson's iteration, whose recurrence for r is wrong until its third start: far too small."""

    starts = 0

    def start(self, A, M, x, r, running):
        self.starts += 1
        return State(x, r, x, torch.zeros_like(r[:1]))

    def step(self, A, M, b, state, running):
        x = state.x + 0.3 * (b - A(state.x))
        r = (b - A(x)) * (1 if self.starts == 3 else 1e-3)
        return State(x, r, state.x, state.t + 1), torch.zeros_like(running, dtype=torch.int64)


def diagonal_system(device):
    D = torch.diag(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)).to(device)
    return Function("A", lambda x: D @ x, None, ()), torch.eye(3, dtype=torch.float64, device=device)[:, :2]


def test_nothing_is_called_converged_on_the_word_of_a_recurrence(every, device):
    A, b = diagonal_system(DEVICE)
    b, method = b[:, :1], Drifting()
    actual = iterate(method, System("test", A, None, b, None, ResidualNorm(1e-8, 0.0)), 200)
    assert method.starts == 3
    assert actual.codes.item() == CODE[S.Status.CONVERGED]
    true = torch.linalg.vector_norm(b - A(actual.x))
    assert true <= 1e-8
    # The norm with which it stood still is the true one, also where that sent it on.
    torch.testing.assert_close(actual.norms[-1, 0], true)
    assert (actual.norms[:-1] > 1e-8).all()


def test_what_is_judged_is_the_state_of_that_iteration(every, device):
    """Also what a criterion reads beside x and r, though columns stand still at different times."""

    class Watching(ResidualNorm):
        reads = ("t",)
        judged: ClassVar = {}

        def is_done(self, A, state, r, norm):
            for column in (norm <= self.target).nonzero()[:, 1].tolist():
                self.judged.setdefault(column, state.t[0, column].item())
            return super().is_done(A, state, r, norm)

    method = Drifting()
    method.starts = 2
    A, b = diagonal_system(DEVICE)
    actual = iterate(method, System("test", A, None, b, None, Watching(1e-8, 0.0)), 200)
    needed = (actual.norms > 1e-8).sum(0)
    assert needed[0] > 2 * needed[1]
    assert Watching.judged == {0: needed[0], 1: needed[1]}


@pytest.mark.parametrize(
    ("condition", "dtype"),
    [(1e2, torch.float32)]
    + [
        pytest.param(*p, marks=pytest.mark.slow)
        for p in ((1e2, torch.float64), (1e4, torch.float32), (1e4, torch.float64))
    ],
)
def test_minres_goes_on_to_rounding_level(condition, dtype, device):
    """A fixed number of iterations, without checks: a bound on rounding errors says little about them."""
    Q = torch.linalg.qr(normal((40, 40)))[0]
    D = (Q * torch.logspace(0, math.log10(condition), 40, dtype=Q.dtype)) @ Q.mT
    D, b = ((D + D.mT) / 2).to(dtype), normal((40, 1), dtype)

    def error(D, b):
        D = D.to(b.device)
        x = S.minres(lambda x: D @ x, b, rtol=0, maxiter=150, gradient="unrolled").x
        r = b.cpu().double() - D.cpu().double() @ x.cpu().double()
        return float(torch.linalg.vector_norm(r) / torch.linalg.vector_norm(b.cpu().double()))

    waits.clear()
    ours = error(D, b.to(DEVICE))
    assert sum("core/loop.py" in wait for wait in waits) == 0
    assert ours <= 2 * error(D, b) <= 100 * condition * torch.finfo(dtype).eps


@pytest.mark.few
@pytest.mark.parametrize("where", ["cpu", "device"])
@pytest.mark.parametrize("gradient", ["unrolled", "checkpointed"])
@pytest.mark.parametrize("name", ["fcg", "fgmres"])
def test_an_M_without_a_derivative_at_zero(name, gradient, where, device):
    """A network is given unit vectors. It is not asked about columns that are done."""
    place = DEVICE if where == "device" else torch.device("cpu")
    D, b = (t.to(place) for t in system("cg"))

    def gradients(b):
        w = torch.tensor(0.3, dtype=b.dtype, device="cpu").to(place).requires_grad_()
        T = D.clone().requires_grad_()

        def M(r):
            length = torch.linalg.vector_norm(r, dim=-2, keepdim=True)
            return length * (w * r / length + 0.1 * torch.tanh(r / length))

        x = getattr(S, name)(lambda x: T @ x, b, M=M, rtol=1e-9, gradient=gradient).x
        return [g.cpu() for g in torch.autograd.grad(x.square().sum(), (w, T))]

    S.set_check_every(50)
    actual = gradients(b)
    S.set_check_every(1)
    one_by_one = [gradients(b[:, j : j + 1]) for j in (0, 2, 3)]
    S.set_check_every(None)
    for g, parts in zip(actual, zip(*one_by_one, strict=True), strict=True):
        torch.testing.assert_close(g, sum(parts), rtol=1e-5, atol=1e-10)


def test_a_callback_is_told_at_once(every, device):
    D, b = system("cg")
    ends = []
    T = D.to(DEVICE)
    solution = S.cg(lambda x: T @ x, b.to(DEVICE), rtol=1e-9, callback=lambda at: ends.append(at.converged))
    assert len(ends) == solution.iterations
    assert ends[-1].all()
    assert not ends[-2].all()


@pytest.mark.parametrize("kind", ["none", "diagonal"])
def test_the_compiled_loop(kind):
    A, b = matrix("cg"), normal((16, 2))
    m = 1 / A.diagonal() if kind == "diagonal" else None

    target = 1e-9 * torch.linalg.vector_norm(b, dim=-2, keepdim=True)
    results = []
    for every in (None, 1, 5, 100):
        run, state, norms = Iterations(A.values, b, None, A.pattern, every, kind=kind, m=m), None, []
        running = torch.ones(1, 2, dtype=torch.bool)
        while running.any():
            state, history = run(state, run.most(100), len(norms), running, target)
            norms += history
            running = state.carry[:, STOP] == 0
        results.append((state.x, torch.stack(norms)[: int(state.carry[:, -1].max())]))
    for actual in results[1:]:
        for ours, theirs in zip(actual, results[0], strict=True):
            assert torch.equal(ours, theirs)


def test_what_is_set():
    assert S.set_check_every(5) is None
    assert S.set_check_every(None) == 5
    with pytest.raises(TypeError, match="set_check_every: iterations must be an int, got float"):
        S.set_check_every(2.5)
    with pytest.raises(ValueError, match="set_check_every: iterations must be at least 1, got 0"):
        S.set_check_every(0)
    assert S.set_check_every(None) is None
