"""richardson, heavyball, chebyshev: ways to stop, paths that agree, gradients, statuses, errors, modules."""

import math

import pytest
import scipy.sparse.linalg
import torch
from reference import densify, gradients, normal
from solvers.dense_jacobi import small_square, values_on
from solvers.dense_momentum import close
from torch.autograd import gradcheck, gradgradcheck

import learnsolve as ls
from learnsolve.solvers import SolverError, Status, _fixed

S = ls.solvers
METHODS = ("richardson", "heavyball", "chebyshev")
K = 7
# Names of what learns, for eigenvalues between 0.3 and 4.
PARAMETERS = {
    "richardson": {"weight": 0.45},
    "heavyball": {"alpha": 0.5, "beta": 0.35},
    "chebyshev": {"lmin": 0.3, "lmax": 4.0},
}


def tensors(method, requires_grad=False):
    values = PARAMETERS[method].values()
    return [torch.tensor(v, dtype=torch.float64, requires_grad=requires_grad) for v in values]


def run(method, A, b, x0=None, *, given=None, **keywords):
    """Any of the three; `given`: its parameters in order."""
    of_method = PARAMETERS[method] if given is None else dict(zip(PARAMETERS[method], given, strict=True))
    if method == "chebyshev":
        return S.chebyshev(A, b, *of_method.values(), x0, **keywords)
    return getattr(S, method)(A, b, x0, **of_method, **keywords)


def dense_coefficients(method, given, N):
    if method == "richardson":
        return [given[0]] * N, [0.0] * N
    if method == "heavyball":
        return [given[0]] * N, [given[1]] * N
    # Saad, algorithm 12.1
    theta, delta = (given[1] + given[0]) / 2, (given[1] - given[0]) / 2
    rho, a, c = delta / theta, [1 / theta], [0.0]
    for _ in range(N - 1):
        new = 1 / (2 * theta / delta - rho)
        a.append(2 * new / delta)
        c.append(new * rho)
        rho = new
    return a, c


def dense_run(method, D, M, b, x0, given, N):
    """x and N + 1 norms."""
    a, c = dense_coefficients(method, given, N)
    x = before = x0
    norms = []
    for k in range(N + 1):
        r = b - D @ x
        norms.append(torch.linalg.vector_norm(r, dim=0 if b.dim() == 1 else -2))
        if k < N:
            before, x = x, x + a[k] * (M @ r) + c[k] * (x - before)
    return x, torch.stack(norms, 0 if b.dim() == 1 else -2)


def halved():
    """2D Poisson's matrix with eigenvalues between 0.38 and 3.62."""
    A = ls.problems.poisson((4, 4))
    return ls.CSR(A.values / 2, A.pattern)


class Tridiagonal:
    """A preconditioner that the compiled loop does not know."""

    def __init__(self, n):
        self.D = torch.eye(n, dtype=torch.float64) + 0.1 * torch.ones(n, n, dtype=torch.float64).triu(
            -1
        ).tril(1)

    def __call__(self, r):
        return self.D @ r


@pytest.mark.parametrize("gradient", ["unrolled", "checkpointed"])
@pytest.mark.parametrize("shape", [(4,), (4, 3), (2, 4, 3)], ids=str)
@pytest.mark.parametrize("kind", ["none", "diagonal", "other"])
@pytest.mark.parametrize("method", METHODS)
def test_fixed_steps(method, kind, shape, gradient):
    """Against dense autograd: x, norms, and all gradients, by the compiled loop and the other one."""
    P = small_square()
    v, b, x0 = values_on(P), normal(shape, seed=3), normal(shape, seed=4)
    start = [t.requires_grad_() for t in (v, b, x0, *tensors(method))]
    g = normal(shape, seed=8)

    def grads(out):
        x, norms = out
        loss = (x * g).sum() + (norms * normal(norms.shape, seed=9)).sum()
        return [x, norms, *torch.autograd.grad(loss, start)]

    M = {"none": torch.eye(4, dtype=torch.float64), "other": Tridiagonal(4).D}.get(kind)
    D = densify(P, v)
    M = torch.diag(D.diagonal().reciprocal()) if M is None else M
    wanted = grads(dense_run(method, D, M, b, x0, start[3:], K))

    def found(A, **keywords):
        M = (
            {"none": None, "other": Tridiagonal(4)}.get(kind)
            if kind != "diagonal"
            else ls.preconditioners.Jacobi(ls.CSR(v, P))
        )
        out = run(method, A, b, x0, given=start[3:], iterations=K, gradient=gradient, M=M, **keywords)
        assert out.status in (Status.MAX_ITERATIONS, Status.DIVERGED)
        assert out.iterations == K
        return grads((out.x, out.residual_norms))

    A = ls.CSR(v, P)
    close(found(A), wanted, 1e-11)
    close(found(lambda x: A @ x), wanted, 1e-11)
    seen = []
    close(found(A, callback=lambda at: seen.append(at)), wanted, 1e-11)
    assert [at.iteration for at in seen] == list(range(1, K + 1))
    close([at.residual_norm for at in seen], wanted[1].unbind(0 if len(shape) == 1 else -2)[1:], 1e-11)
    close([seen[-1].x], wanted[:1], 1e-11)


@pytest.mark.parametrize("method", METHODS)
def test_the_compiled_loop_is_taken(method, monkeypatch):
    taken, real = [], _fixed.richardson_sweeps
    monkeypatch.setattr(_fixed, "richardson_sweeps", lambda *a: taken.append(a) or real(*a))
    A, b = ls.problems.poisson((4, 4)), normal((16,))
    for M in (None, ls.preconditioners.Jacobi(A)):
        run(method, A, b, iterations=3, M=M)
    assert len(taken) == 2
    run(method, A, b, iterations=3, callback=lambda _: None)
    run(method, A, b, iterations=3, M=lambda r: r)
    run(method, lambda x: A @ x, b, iterations=3)
    run(method, A, b)
    assert len(taken) == 2


def test_batches():
    """Of matrices, of right-hand sides, of preconditioners."""
    P = small_square()
    v, b = values_on(P, 2, 1, seed=1), normal((3, 4, 2), seed=3)
    A = ls.CSR(v, P)
    for M in (None, ls.preconditioners.Jacobi(A)):
        both = S.heavyball(A, b, alpha=0.2, beta=0.3, iterations=4, M=M)
        assert both.residual_norms.shape == (2, 3, 5, 2)
        for i in range(2):
            for j in range(3):
                one = ls.CSR(v[i, 0], P)
                m = None if M is None else ls.preconditioners.Jacobi(one)
                alone = S.heavyball(one, b[j], alpha=0.2, beta=0.3, iterations=4, M=m)
                close([both.x[i, j], both.residual_norms[i, j]], [alone.x, alone.residual_norms])


@pytest.mark.parametrize("shape", [(), (4,), (5,), (1, 4), (5, 1), (5, 4), (1, 1)], ids=str)
def test_shapes_of_alpha_and_weight(shape):
    P, n, N = small_square(), 4, 5
    A, b = ls.CSR(values_on(P), P), normal((4, 2))
    alpha, beta = 0.2 + 0.05 * normal(shape, seed=1), 0.4 + 0.1 * normal((N,), seed=2)
    rows = alpha.unsqueeze(1) if shape == (N,) else alpha
    rows = rows.expand(N, n)
    for momentum, solve in (
        (beta, lambda **k: S.heavyball(A, b, alpha=alpha, beta=beta, iterations=N, **k)),
        (torch.zeros(N), lambda **k: S.richardson(A, b, weight=alpha, iterations=N, **k)),
    ):
        x = before = torch.zeros_like(b)
        for k in range(N):
            before, x = x, x + rows[k, :, None] * (b - A @ x) + momentum[k] * (x - before)
        close([solve().x], [x])
        close([solve(M=lambda r: r).x], [x])
    if shape in {(), (4,)}:
        wide = ls.problems.poisson((4,))
        assert S.heavyball(wide, b, alpha=alpha, beta=0.3, rtol=1e-9, maxiter=2000).converged


@pytest.mark.parametrize("method", METHODS)
def test_iterations_with_a_right_hand_side_of_zero(method):
    """All run: the error is what the recipes learn from."""
    A, x0 = ls.problems.poisson((8,)), normal((8, 3))
    b = torch.zeros_like(x0)
    fixed = run(method, A, b, x0, iterations=4)
    assert (fixed.x != 0).all()
    close([run(method, A, b, x0, iterations=4, M=lambda r: r).x], [fixed.x])
    assert (run(method, A, b, x0).x == 0).all()


@pytest.mark.parametrize("method", METHODS)
def test_until_a_tolerance(method):
    """SciPy's rule, by the true residual, columns on their own."""
    A = halved()
    D, b = A.to_dense(), normal((16, 3), seed=2) * torch.tensor([1.0, 1e-3, 1e4], dtype=torch.float64)
    seen = []
    solution = run(method, A, b, rtol=1e-9, maxiter=2000, callback=seen.append)
    assert solution.converged
    assert len(seen) == solution.iterations
    norms, size = solution.residual_norms, b.norm(dim=0)
    close([norms[-1]], [(b - A @ solution.x).norm(dim=0)], 1e-12)
    assert (norms[-1] <= 1e-9 * size).all()
    for c in range(3):
        met = (norms[:, c] <= 1e-9 * size[c]).nonzero()[0]
        assert (norms[met:, c] == norms[met, c]).all()
    close([solution.x / size], [torch.linalg.solve(D, b / size)], 1e-8)
    # The steps are those of a fixed number.
    alone = run(method, A, b[:, 0], rtol=1e-9, maxiter=2000)
    again = run(method, A, b[:, 0], iterations=alone.iterations)
    close([alone.x, alone.residual_norms], [again.x, again.residual_norms], 1e-11)
    assert run(method, A, b, maxiter=2, rtol=1e-9).status is Status.MAX_ITERATIONS
    assert run(method, A, b, rtol=1e-9, callback=lambda at: at.iteration == 3).iterations == 3
    assert run(method, A, b, callback=lambda at: at.iteration == 3).status is Status.STOPPED_BY_CALLBACK
    with pytest.raises(SolverError, match="MAX_ITERATIONS"):
        run(method, A, b, maxiter=2, rtol=1e-9, throw=True)


@pytest.mark.parametrize("A_size", [1e-200, 1.0, 1e200])
@pytest.mark.parametrize("b_size", [1e-200, 1e100])
def test_extraordinary_sizes(A_size, b_size):
    """alpha belongs to A: the same iterations in any units, but for alpha."""
    A, b = ls.problems.poisson((6,)), normal((6,))
    options = {"beta": 0.3, "maxiter": 500}
    plain = S.heavyball(A, b, alpha=0.4, **options)
    assert plain.converged
    if not 1e-280 < b_size / A_size < 1e280:
        pytest.skip("the solution is no number")
    scaled = S.heavyball(ls.CSR(A.values * A_size, A.pattern), b * b_size, alpha=0.4 / A_size, **options)
    assert scaled.converged
    assert scaled.iterations == plain.iterations
    close([scaled.x * (A_size / b_size)], [plain.x])


@pytest.mark.parametrize("method", METHODS)
def test_implicit_gradient(method):
    """On a matrix that is not symmetric, against dense solves; callables and LinearOperators too."""
    P = small_square()
    v, b = values_on(P).requires_grad_(), normal((4, 2), seed=3).requires_grad_()
    options = {"rtol": 1e-13, "maxiter": 3000}
    wanted = gradients(lambda v, b: torch.linalg.solve(densify(P, v), b), [v, b], normal((4, 2), seed=8))

    def solve(v, b, **keywords):
        return run(method, ls.CSR(v, P), b, **options, **keywords).x

    close(gradients(solve, [v, b], normal((4, 2), seed=8)), wanted, 1e-9)
    scaled = lambda v, b: solve(v, b, M=ls.preconditioners.Jacobi(ls.CSR(v, P)))  # noqa: E731
    close(gradients(scaled, [v, b], normal((4, 2), seed=8)), wanted, 1e-9)
    assert gradcheck(solve, (v, b), check_forward_ad=True, atol=1e-5)
    assert gradgradcheck(solve, (v, b), atol=1e-5)
    D = densify(P, v.detach())

    def by_callable(b):
        return run(method, lambda x: D @ x, b, transpose=lambda x: D.T @ x, **options).x

    close(gradients(by_callable, [b], normal((4, 2), seed=8)), wanted[1:], 1e-9)
    operator = scipy.sparse.linalg.aslinearoperator(ls.CSR(v.detach(), P).to_scipy())
    close([run(method, operator, b.detach(), **options).x], [torch.linalg.solve(D, b.detach())], 1e-9)
    mapped = torch.vmap(lambda b: solve(v.detach(), b))(torch.stack((b.detach(), 2 * b.detach())))
    close([mapped[1]], [torch.linalg.solve(D, 2 * b.detach())], 1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_unrolled_until_a_tolerance(method):
    """The gradient of the iterations that ran, for the parameters too."""
    A, b = halved(), normal((16, 2))
    found = []
    for options in ({"rtol": 1e-4, "gradient": "unrolled"}, {"rtol": 1e-4, "gradient": "checkpointed"}):
        given = tensors(method, True)
        solution = run(method, A, b[:, :1], given=given, maxiter=500, **options)
        assert solution.converged
        loss = solution.x.sum() + solution.residual_norms.log().sum()
        found.append(torch.autograd.grad(loss, given))
    given = tensors(method, True)
    fixed = run(method, A, b[:, :1], given=given, iterations=solution.iterations)
    wanted = torch.autograd.grad(fixed.x.sum() + fixed.residual_norms.log().sum(), given)
    close(found[0], wanted, 1e-10)
    close(found[1], wanted, 1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_what_learns_and_has_no_implicit_gradient(method):
    A, b = ls.problems.poisson((4,)), normal((4,))
    for i, key in enumerate(PARAMETERS[method]):
        given = tensors(method)
        given[i].requires_grad_()
        with pytest.raises(ValueError, match=rf'{method}: {key} learns.*"unrolled"'):
            run(method, A, b, given=given)
        with torch.no_grad():
            run(method, A, b, given=given)


@pytest.mark.parametrize("method", METHODS)
def test_derivatives_for_the_parameters(method):
    P, (v, b) = small_square(), (values_on(small_square()), normal((4, 2)))

    def f(*given):
        solution = run(method, ls.CSR(v, P), b, given=given, iterations=4)
        return solution.x, solution.residual_norms

    given = tensors(method, True)
    assert gradcheck(f, given, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(f, given, check_fwd_over_rev=True)
    several = [torch.stack((t.detach(), 1.1 * t.detach())) for t in given]
    x, _ = torch.vmap(f)(*several)
    for i in range(2):
        close([x[i]], [f(*(t[i] for t in several))[0]])


def test_equal_bounds():
    """lmin = lmax: no step has momentum, and all derivatives are numbers."""
    A, b = ls.problems.poisson((6,)), normal((6,))
    bounds = [torch.tensor(2.0, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    x = S.chebyshev(A, b, *bounds, iterations=5).x
    close([x], [S.richardson(A, b, weight=0.5, iterations=5).x])
    grads = torch.autograd.grad(x.sum(), bounds, create_graph=True)
    assert all(g.isfinite() for g in grads)
    assert all(g.isfinite() for g in torch.autograd.grad(sum(grads), bounds))
    step = 1e-6
    more, less = (S.chebyshev(A, b, 2.0, 2.0 + s, iterations=5).x.sum() for s in (step, 0))
    assert float(grads[1]) == pytest.approx(float(more - less) / step, rel=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_divergence_is_named(method):
    A, b = ls.problems.poisson((8,)), normal((8, 2))
    given = {"richardson": (3.0,), "heavyball": (3.0, 0.9), "chebyshev": (1e-3, 0.1)}[method]
    for keywords in ({"iterations": 30}, {"maxiter": 3000}):
        solution = run(method, A, b, given=given, **keywords)
        assert solution.status is Status.DIVERGED
        assert not solution.converged
        assert solution.x.isfinite().all()
        with pytest.raises(SolverError, match="DIVERGED"):
            run(method, A, b, given=given, throw=True, **keywords)
    far = run(method, A, b, given=given, iterations=3000)
    assert far.status is Status.NON_FINITE
    bad = b.clone()
    bad[0, 0] = float("nan")
    for keywords in ({"iterations": 3}, {"maxiter": 3000}, {"iterations": 3, "M": lambda r: r}):
        assert run(method, A, bad, **keywords).status is Status.NON_FINITE
    mixed = run(method, A, bad, maxiter=3000)
    assert mixed.statuses == [Status.NON_FINITE, Status.CONVERGED]
    assert run(method, A, b, iterations=3, throw=True).status is Status.MAX_ITERATIONS


@pytest.mark.parametrize("gradient", ["unrolled", "checkpointed"])
def test_a_callback_ends_fixed_steps(gradient):
    A, b = ls.problems.poisson((8,)), normal((8,)).requires_grad_()
    for at in (1, 3, 6, 9):
        calls = []
        solution = S.heavyball(
            A, b, alpha=0.4, beta=0.3, iterations=9, gradient=gradient,
            callback=lambda s: calls.append(s.iteration) or s.iteration == at,  # noqa: B023
        )  # fmt: skip
        assert solution.status is Status.STOPPED_BY_CALLBACK
        assert solution.iterations == at
        assert solution.residual_norms.shape == (at + 1,)
        wanted = S.heavyball(A, b, alpha=0.4, beta=0.3, iterations=at)
        close([solution.x, solution.residual_norms], [wanted.x, wanted.residual_norms])
        close(torch.autograd.grad(solution.x.sum(), b), torch.autograd.grad(wanted.x.sum(), b))
        assert calls == list(range(1, at + 1))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"iterations": 3, "rtol": 1e-3}, ValueError, "rtol must not be given beside iterations"),
        ({"iterations": 3, "atol": 0.0}, ValueError, "atol must not"),
        ({"iterations": 3, "maxiter": 3}, ValueError, "maxiter must not"),
        ({"iterations": 3, "adjoint_rtol": 1e-3}, ValueError, 'adjoint_rtol belongs to gradient="implicit"'),
        ({"iterations": 3, "gradient": "implicit"}, ValueError, "gradient must be one of"),
        ({"gradient": "exact"}, ValueError, "gradient must be one of"),
        ({"iterations": -1}, ValueError, "iterations must be at least 0"),
        ({"iterations": 2.0}, TypeError, "iterations must be an int"),
        ({"iterations": 3, "callback": 3}, TypeError, "callback must be callable"),
        ({"b": torch.ones(5, dtype=torch.float64)}, ValueError, "rows"),
        ({"iterations": 3, "b": torch.ones(5, dtype=torch.float64)}, ValueError, "rows"),
        ({"iterations": 3, "b": torch.ones(4)}, TypeError, "dtype"),
        ({"iterations": 3, "x0": torch.ones(5, dtype=torch.float64)}, ValueError, "x0 must have b's shape"),
        ({"x0": torch.ones(5, dtype=torch.float64)}, ValueError, "x0 must have b's shape"),
        ({"iterations": 3, "M": 3}, TypeError, "M must be a callable"),
        ({"rtol": -1.0}, ValueError, "rtol must not be negative"),
    ],
)
def test_errors(method, change, error, match):
    b = change.get("b", torch.ones(4, dtype=torch.float64))
    with pytest.raises(error, match=f"{method}: .*{match}"):
        run(
            method,
            ls.problems.poisson((4,)),
            b,
            change.get("x0"),
            **{k: v for k, v in change.items() if k not in ("x0", "b")},
        )


def test_errors_of_parameters():
    A, b = ls.problems.poisson((4,)), torch.ones(4, dtype=torch.float64)
    ones = torch.ones(3, dtype=torch.float64)
    for call, error, match in [
        (lambda: S.heavyball(A, b, alpha="1", beta=0.1), TypeError, "heavyball: alpha must be a number"),
        (
            lambda: S.heavyball(A, b, alpha=1, beta=True, iterations=2),
            TypeError,
            "heavyball: beta must be a number",
        ),
        (
            lambda: S.heavyball(A, b, alpha=ones, beta=0.1, iterations=2),
            ValueError,
            "heavyball: alpha must have shape",
        ),
        (
            lambda: S.heavyball(A, b, alpha=ones, beta=0.1),
            ValueError,
            r"heavyball: alpha .*needs iterations=",
        ),
        (
            lambda: S.heavyball(A, b, alpha=1, beta=ones, iterations=2),
            ValueError,
            "heavyball: beta must have shape",
        ),
        (lambda: S.heavyball(A, b, alpha=1, beta=ones), ValueError, r"heavyball: beta must have shape \(\)"),
        (lambda: S.heavyball(A, b, alpha=1, beta=ones[0].float()), TypeError, "heavyball: beta has dtype"),
        (
            lambda: S.richardson(A, b, weight=b, iterations=4),
            ValueError,
            r"richardson: weight .*one a row or one a",
        ),
        (lambda: S.chebyshev(A, b, 0.0, 1.0), ValueError, "chebyshev: lmin must be positive"),
        (lambda: S.chebyshev(A, b, 1.0, math.inf), ValueError, "chebyshev: lmax must be positive and finite"),
        (lambda: S.chebyshev(A, b, 2.0, 1.0), ValueError, "chebyshev: lmin must not be larger than lmax"),
        (lambda: S.chebyshev(A, b, ones, 1.0), ValueError, "chebyshev: lmin must have shape"),
        (lambda: S.Chebyshev(-1.0, 1.0), ValueError, "Chebyshev: lmin must be one positive"),
        (lambda: S.Heavyball(gradient="implicit"), ValueError, "Heavyball: gradient"),
        (lambda: S.Richardson(torch.tensor(1)), TypeError, "Richardson: weight must be a floating-point"),
    ]:
        with pytest.raises(error, match=match):
            call()


def modules(**keywords):
    return {
        "richardson": S.Richardson(0.4, iterations=K, **keywords),
        "heavyball": S.Heavyball(0.5, torch.full((K,), 0.4), iterations=K, **keywords),
        "chebyshev": S.Chebyshev(0.3, 4.0, iterations=K, **keywords),
    }


@pytest.mark.parametrize("gradient", ["unrolled", "checkpointed"])
@pytest.mark.parametrize("method", METHODS)
def test_modules(method, gradient):
    A, b = ls.problems.poisson((4, 4)), normal((16, 2))
    solver = modules(gradient=gradient)[method].double()
    solution = solver(A, b)
    assert solution.iterations == K
    given = {
        "richardson": lambda: [solver.weight],
        "heavyball": lambda: [solver.alpha, solver.beta],
        "chebyshev": lambda: [solver.lmin, solver.lmax],
    }[method]()
    close([solution.x], [run(method, A, b, given=given, iterations=K).x])
    solution.residual_norms[-1].sum().backward()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in solver.parameters())
    again = modules()[method].double()
    again.load_state_dict(solver.state_dict())
    assert repr(solver).startswith(method.capitalize())
    learned = torch.nn.Linear(16, 16, bias=False).double()
    inside = type(solver)(
        *([0.3] if method == "richardson" else [0.3, 0.4]), iterations=2, M=lambda r: learned(r.mT).mT
    )
    assert not any("M" in name for name, _ in inside.named_parameters())
    module = type(solver)(*([0.3] if method == "richardson" else [0.3, 0.4]), iterations=2, M=learned)
    assert any(name.startswith("M.") for name, _ in module.named_parameters())


def test_learning_reaches_the_optimum_of_theory():
    """Bounds that are learned from the residual after K steps on the worst errors find the spectrum."""
    A = ls.problems.poisson((8,))
    values, vectors = torch.linalg.eigh(A.to_dense())
    solver = S.Chebyshev(float(values[0]) * 2, float(values[-1]) * 0.9, iterations=4).double()
    optimizer = torch.optim.Adam(solver.parameters(), lr=0.02)
    for _ in range(400):
        optimizer.zero_grad()
        e = solver(A, torch.zeros_like(vectors), vectors).x.norm(dim=0)
        e.pow(40).sum().pow(1 / 40).backward()
        optimizer.step()
    q = (math.sqrt(values[-1] / values[0]) - 1) / (math.sqrt(values[-1] / values[0]) + 1)
    assert float(e.detach().max()) <= 1.03 * 2 * q**4 / (1 + q**8)


@pytest.mark.few
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("gradient", ["unrolled", "checkpointed"])
@pytest.mark.parametrize("scaled", [False, True], ids=["", "M"])
@pytest.mark.parametrize("method", METHODS)
def test_compile(method, scaled, gradient):
    P = small_square()
    inputs = [values_on(P), normal((4, 2)), *tensors(method)]

    def f(v, b, *given):
        A = ls.CSR(v, P)
        M = ls.preconditioners.Jacobi(A) if scaled else None
        solution = run(method, A, b, given=given, iterations=5, M=M, gradient=gradient)
        return solution.x + solution.residual_norms.sum()

    g = normal((4, 2), seed=9)
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    close([compiled(*inputs)], [f(*inputs)])
    close(gradients(compiled, inputs, g), gradients(f, inputs, g))


@pytest.mark.usefixtures("fresh_compiler")
def test_compile_with_numbers():
    A, b = ls.problems.poisson((8,)), normal((8,))
    for method in METHODS:
        f = lambda b: run(method, A, b, iterations=3).x  # noqa: B023, E731
        close([torch.compile(f, fullgraph=True, backend="aot_eager")(b)], [f(b)])
